"""The random operations of tf.image. The draws are ours, not TensorFlow's numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...errors import OptionError, SchemaError
from .pixels import adjust_brightness, adjust_contrast
from .seeds import generator, stateless
from .values import Tensor, tensor


def _flip(image: Any, axis: int, draws: np.random.Generator) -> Any:
    """An image mirrored or not; of a batch each by its own draw."""
    image = tensor(image)
    if image.ndim == 3:
        return np.flip(image, axis) if draws.random() < 0.5 else image
    which = draws.random(len(image)) < 0.5
    return np.where(which[:, None, None, None], np.flip(image, axis), image).view(Tensor)


def random_flip_left_right(image: Any, seed: Any = None) -> Any:
    with generator(seed) as draws:
        return _flip(image, -2, draws)


def random_flip_up_down(image: Any, seed: Any = None) -> Any:
    with generator(seed) as draws:
        return _flip(image, -3, draws)


def stateless_random_flip_left_right(image: Any, seed: Any) -> Any:
    return _flip(image, -2, stateless(seed))


def stateless_random_flip_up_down(image: Any, seed: Any) -> Any:
    return _flip(image, -3, stateless(seed))


def _crop(value: Any, size: Any, draws: np.random.Generator) -> Any:
    value = tensor(value)
    wanted = [int(one) for one in np.asarray(size).reshape(-1)]
    if len(wanted) != value.ndim or any(a > b for a, b in zip(wanted, value.shape, strict=True)):
        raise SchemaError(f"no crop of {tuple(wanted)} can be cut from {value.shape}")
    starts = [int(draws.integers(room - one + 1)) for room, one in zip(value.shape, wanted, strict=True)]
    return value[tuple(slice(at, at + one) for at, one in zip(starts, wanted, strict=True))]


def random_crop(value: Any, size: Any, seed: Any = None, name: Any = None) -> Any:
    with generator(seed) as draws:
        return _crop(value, size, draws)


def stateless_random_crop(value: Any, size: Any, seed: Any, name: Any = None) -> Any:
    return _crop(value, size, stateless(seed))


def random_brightness(image: Any, max_delta: float, seed: Any = None) -> Any:
    with generator(seed) as draws:
        delta = draws.uniform(-max_delta, max_delta)
    return adjust_brightness(image, delta)


def random_contrast(image: Any, lower: float, upper: float, seed: Any = None) -> Any:
    if not 0 <= lower < upper:
        raise OptionError(f"lower and upper must be 0 <= lower < upper, not {lower} and {upper}")
    with generator(seed) as draws:
        factor = draws.uniform(lower, upper)
    return adjust_contrast(image, factor)


class BoundingBox(NamedTuple):
    begin: Any
    size: Any
    bboxes: Any


def sample_distorted_bounding_box(
    image_size: Any,
    bounding_boxes: Any,
    seed: Any = 0,
    min_object_covered: Any = 0.1,
    aspect_ratio_range: Any = (0.75, 1.33),
    area_range: Any = (0.05, 1.0),
    max_attempts: int = 100,
    use_image_if_no_bounding_boxes: bool = False,
    name: Any = None,
) -> BoundingBox:
    """A random crop of the image that shows enough of one of the boxes (top, left, bottom, right, 0 to 1).

    Gives where it begins, its size, and itself as a box; the whole image where no attempt succeeds.
    """
    height, width = (int(one) for one in np.asarray(image_size).reshape(-1)[:2])
    boxes = np.asarray(bounding_boxes, dtype=np.float64).reshape(-1, 4)
    if not len(boxes):
        if not use_image_if_no_bounding_boxes:
            raise SchemaError("there is no bounding box; use_image_if_no_bounding_boxes=True takes the image")
        boxes = np.array([[0.0, 0.0, 1.0, 1.0]])
    with generator(seed or None) as draws:
        top, left, tall, wide = _attempts(
            draws,
            height,
            width,
            boxes,
            float(min_object_covered),
            aspect_ratio_range,
            area_range,
            max_attempts,
        )
    box = np.array([top / height, left / width, (top + tall) / height, (left + wide) / width])
    return BoundingBox(
        np.array([top, left, 0], dtype=np.int32).view(Tensor),
        np.array([tall, wide, -1], dtype=np.int32).view(Tensor),
        box.astype(np.float32).reshape(1, 1, 4).view(Tensor),
    )


def _attempts(
    draws: np.random.Generator,
    height: int,
    width: int,
    boxes: Any,
    covered: float,
    aspects: Any,
    areas: Any,
    attempts: int,
) -> tuple[int, int, int, int]:
    pixels = boxes * [height, width, height, width]
    for _ in range(attempts):
        aspect = draws.uniform(float(aspects[0]), float(aspects[1]))
        area = draws.uniform(float(areas[0]), float(areas[1])) * height * width
        tall, wide = round((area / aspect) ** 0.5), round((area * aspect) ** 0.5)
        if not 1 <= tall <= height or not 1 <= wide <= width:
            continue
        top, left = int(draws.integers(height - tall + 1)), int(draws.integers(width - wide + 1))
        shown = np.minimum(pixels[:, 2:], [top + tall, left + wide]) - np.maximum(pixels[:, :2], [top, left])
        whole = np.prod(pixels[:, 2:] - pixels[:, :2], axis=1)
        if (np.prod(np.maximum(shown, 0), axis=1) >= covered * whole)[whole > 0].any():
            return top, left, tall, wide
    return 0, 0, height, width
