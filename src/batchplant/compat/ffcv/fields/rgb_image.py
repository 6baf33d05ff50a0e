"""Field and decoders of images."""

from __future__ import annotations

import functools
import os
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from .... import _native, ops
from ....codecs.media import image as images
from ....codecs.media.image_rules import ImageOptions
from ....errors import DecodeError, OptionError
from ....ops.base import F64, Draws, Op
from ....schema.columns import I32
from ..pipeline.allocation_query import AllocationQuery
from ..pipeline.operation import Operation
from ..pipeline.state import State
from .base import ARG_TYPE, Array, DType, Field, Malloc, Read
from .basics import Decoder

IMAGE_MODES = {"jpg": 0, "raw": 1}
# A smart_threshold that no image exceeds.
UNLIMITED_BYTES = 1 << 62


def encode_jpeg(numpy_image: Array, quality: int) -> Array:
    """Encode RGB pixels as a JPEG."""
    return np.frombuffer(_native.jpeg_encode(np.ascontiguousarray(numpy_image), int(quality)), np.uint8)


def resizer(image: Array, target_resolution: int | None) -> Array:
    """Shrink an image whose longer side exceeds the target."""
    return images.fit(image, target_resolution)


def get_random_crop(
    height: int, width: int, scale: Sequence[float], ratio: Sequence[float]
) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of a random crop, drawn with ``np.random``."""
    for _ in range(10):
        area = height * width * np.random.uniform(scale[0], scale[1])
        aspect = np.exp(np.random.uniform(np.log(ratio[0]), np.log(ratio[1])))
        wide, high = round(np.sqrt(area * aspect)), round(np.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            top, left = np.random.randint(height - high + 1), np.random.randint(width - wide + 1)
            return int(top), int(left), int(high), int(wide)
    wide = min(width, round(height * max(ratio)))
    high = min(height, round(width / min(ratio)))
    return (height - high) // 2, (width - wide) // 2, high, wide


def get_center_crop(height: int, width: int, _: object, ratio: float) -> tuple[int, int, int, int]:
    """Return (top, left, height, width) of the central square, ``ratio`` of the shorter side wide."""
    side = int(ratio * min(height, width))
    return (height - side) // 2, (width - side) // 2, side, side


class VaryingSizeError(OptionError, TypeError):
    """The images of a file are not of one size; a TypeError, as in FFCV."""


@functools.cache
def _engine(process: int) -> _native.Engine:
    """Return an engine for users who call a decoder's function themselves; threads do not survive a fork."""
    return _native.Engine(1)


class SimpleRGBImageDecoder(Decoder):
    """Decodes images in their own size, which all images of the file must share."""

    def __init__(self) -> None:
        super().__init__()

    def _size(self) -> tuple[int, int]:
        sizes = [self.metadata[side] for side in ("height", "width")]
        smallest = [lengths.min(initial=65535) for lengths in sizes]
        largest = [lengths.max(initial=0) for lengths in sizes]
        if len(self.metadata) and smallest != largest:
            raise VaryingSizeError(
                f"the images of this file are from {smallest[1]}×{smallest[0]} to {largest[1]}×{largest[0]}; "
                "SimpleRGBImageDecoder needs one size: use RandomResizedCropRGBImageDecoder or "
                "CenterCropRGBImageDecoder"
            )
        return int(largest[0]), int(largest[1])

    def as_op(self, tensors: bool) -> Op:
        self._size()
        return ops.Decode()

    def fill(self, destination: Array, rows: Array, indices: Array, read: Read) -> None:
        cells = [np.ascontiguousarray(read(ptr)) for ptr in rows["data_ptr"]]
        shape = np.stack([rows["height"], rows["width"], np.full(len(rows), 3)], axis=1).astype(np.int32)
        raw = (rows["mode"] == IMAGE_MODES["raw"])[:, None]
        ids = np.asarray(indices, dtype=np.int64)
        op: Any = self.as_op(False)
        boxes = op.boxes(shape[:, :2], Draws(int(np.random.randint(2**31)), 0, ids, type(self).__name__))
        base, sizes = np.arange(len(cells), dtype=np.int32), np.array([len(cell) for cell in cells], np.int64)
        status, errors, _ = _engine(os.getpid()).decode(
            cells, base, np.zeros(len(cells), np.int64), sizes, np.where(raw, shape, 0).astype(np.int32),
            boxes, None, destination, layout="nhwc", filter="area", dct="fast",
        )  # fmt: skip
        for row in np.flatnonzero(status)[:1]:
            reason = errors[0][1] if errors else "the image cannot be decoded as RGB"
            raise DecodeError(reason, sample=int(ids[errors[0][0] if errors else row]))

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        shape, dtype = (*self._size(), 3), np.dtype("<u1")
        return State(True, previous_state.device, shape, dtype), AllocationQuery(shape, dtype)


class ResizedCropRGBImageDecoder(SimpleRGBImageDecoder):
    """Decodes a part of every image, resized; subclasses choose it with ``get_crop_generator``.

    ``output_size`` may be changed between epochs, for training at a growing resolution.
    """

    scale: Any = None
    ratio: Any = None

    def __init__(self, output_size: Sequence[int]) -> None:
        super().__init__()
        self.output_size = output_size

    def _size(self) -> tuple[int, int]:
        return int(self.output_size[0]), int(self.output_size[1])

    @property
    @abstractmethod
    def get_crop_generator(self) -> Callable[..., tuple[int, int, int, int]]:
        """Return a function of (height, width, scale, ratio) that returns (top, left, height, width)."""

    def as_op(self, tensors: bool) -> Op:
        crop = self.get_crop_generator
        if crop is get_random_crop:
            return ops.RandomResizedCrop(self._size(), self.scale, self.ratio, filter="area")
        if crop is get_center_crop:
            return ops.CenterCrop(self._size(), self.ratio, filter="area")
        return _UserCrop(self._size(), crop, self.scale, self.ratio)


class _UserCrop(ops.ImageDecoder):
    """Decoder whose crops a user's function chooses."""

    filter = "area"

    def __init__(self, size: tuple[int, int], crop: Callable[..., Any], scale: Any, ratio: Any) -> None:
        self.size, self.crop, self.scale, self.ratio = size, crop, scale, ratio

    def boxes(self, sizes: I32, draws: Draws) -> F64:
        crops = [self.crop(int(high), int(wide), self.scale, self.ratio) for high, wide in sizes]
        top, left, high, wide = np.array(crops, dtype=np.float64).reshape(-1, 4).T
        return np.stack([left, top, left + wide, top + high], axis=1)


class RandomResizedCropRGBImageDecoder(ResizedCropRGBImageDecoder):
    """Decodes a random part of random area (``scale``) and aspect (``ratio``), resized."""

    def __init__(
        self,
        output_size: Sequence[int],
        scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (0.75, 4 / 3),
    ) -> None:
        super().__init__(output_size)
        self.scale, self.ratio = scale, ratio

    @property
    def get_crop_generator(self) -> Callable[..., tuple[int, int, int, int]]:
        return get_random_crop


class CenterCropRGBImageDecoder(ResizedCropRGBImageDecoder):
    """Decodes the central square, ``ratio`` of the shorter side wide, resized."""

    def __init__(self, output_size: Sequence[int], ratio: float) -> None:
        super().__init__(output_size)
        self.ratio = ratio

    @property
    def get_crop_generator(self) -> Callable[..., tuple[int, int, int, int]]:
        return get_center_crop


class RGBImageField(Field):
    """RGB images: arrays (height, width, 3) of uint8, or PIL images.

    write_mode: ``raw``, ``jpg``, ``smart`` (JPEG where the raw pixels exceed ``smart_threshold`` bytes) or
    ``proportion`` (JPEG with probability ``compress_probability``). max_resolution bounds the longer side.
    """

    def __init__(
        self,
        write_mode: str = "raw",
        max_resolution: int | None = None,
        smart_threshold: int | None = None,
        jpeg_quality: int = 90,
        compress_probability: float = 0.5,
    ) -> None:
        self.write_mode, self.smart_threshold, self.max_resolution = (
            write_mode, smart_threshold, max_resolution,
        )  # fmt: skip
        self.jpeg_quality, self.proportion = int(jpeg_quality), compress_probability

    def options(self) -> ImageOptions:
        """Return the same options for batchplant's writer."""
        return ImageOptions(
            write_mode=self.write_mode,
            max_resolution=self.max_resolution,
            jpeg_quality=self.jpeg_quality,
            smart_threshold=UNLIMITED_BYTES if self.smart_threshold is None else int(self.smart_threshold),
            compress_probability=self.proportion,
        )

    @property
    def metadata_type(self) -> DType:
        return np.dtype([("mode", "<u1"), ("width", "<u2"), ("height", "<u2"), ("data_ptr", "<u8")])

    def get_decoder_class(self) -> type[Operation]:
        return SimpleRGBImageDecoder

    @staticmethod
    def from_binary(binary: Array) -> Field:
        return RGBImageField()

    def to_binary(self) -> Any:
        return np.zeros(1, dtype=ARG_TYPE)[0]

    def encode(self, destination: Array, image: Any, malloc: Malloc) -> None:
        pixels = np.asarray(image)
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
            raise OptionError(
                f"an RGB image is uint8 (height, width, 3), and this is {pixels.dtype} {pixels.shape}"
            )
        options = self.options()
        pixels = resizer(pixels, options.max_resolution)
        jpeg = {
            "jpg": True,
            "raw": False,
            "smart": pixels.nbytes > options.smart_threshold,
            "proportion": np.random.rand() < options.compress_probability,
        }[self.write_mode]
        data = encode_jpeg(pixels, self.jpeg_quality) if jpeg else np.ascontiguousarray(pixels).reshape(-1)
        destination["mode"] = IMAGE_MODES["jpg" if jpeg else "raw"]
        destination["height"], destination["width"] = pixels.shape[:2]
        destination["data_ptr"], memory = malloc(data.nbytes)
        memory[:] = data
