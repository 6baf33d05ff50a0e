"""A sample as the Loader yields it, beside the original, by :func:`batchplant.loading.preview`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...codecs import image
from ...errors import BatchplantError
from ...loading.plan import Output, Plan
from ...loading.preview import Cut, mixes, preview
from ...ops.annotations import MoveBoxes, MovePolygons, Mover, MoveRle
from ...order import describe
from ...schema.kinds import Labels
from .. import Document
from .cells import Dataset, cells_of
from .media.colours import encode_png
from .media.overlays import Shapes, of_json, of_labels, of_numbers, of_rle
from .pixels import stretch_to_bytes, to_grey_or_rgb
from .session import Session

MAX_VIEWS = 16
# Longer side of the original and of each view; images up to MAX_PNG_PIXELS are sent as PNG.
ORIGINAL_PIXELS, VIEW_PIXELS, MAX_PNG_PIXELS = 640, 384, 128
MAX_LETTERS, MAX_PEAKS, MAX_FRAMES = 500, 400, 6


def augment_sample(
    session: Session, dataset: Dataset, sample: int, *, ops: str = "", seed: int | None = None,
    epoch: int = 0, count: int = 1,
) -> Document:  # fmt: skip
    """Return a sample as the loader yields it in ``count`` epochs, from ``epoch`` on."""
    loader = session.loaders.get(dataset, session.pipeline, ops, seed)
    originals: dict[tuple[str, int], Document] = {}
    views = []
    for number in range(epoch, epoch + min(count, MAX_VIEWS)):
        try:
            result = preview(loader, sample, number)
        except (BatchplantError, OSError, MemoryError) as error:
            views.append({"epoch": number, "error": str(error)})
            continue
        except Exception as error:
            # A user's function failed.
            views.append({"epoch": number, "error": f"{type(error).__name__}: {error}"})
            continue
        outputs = []
        for output in loader.plan.outputs:
            cut = result.cuts.get(output.name)
            if cut is not None and (output.field, cut.turn) not in originals:
                originals[output.field, cut.turn] = _original(dataset, sample, output.field, cut)
            drawn = {} if cut is None else {"box": cut.box, "flip": cut.flip, "turn": cut.turn}
            shown = render_value(output, result.values[output.name])
            if "src" in shown and output.image is not None:
                shown["annotations"] = _annotations(
                    dataset, loader.plan, output, result.values, shown["size"]
                )
            outputs.append({"name": output.name, "field": output.field, **shown, **drawn})
        views.append({"epoch": number, "outputs": outputs, "batch": len(result.batch)})
    return {
        "sample": sample, "seed": loader.seed, "plan": str(loader.plan), "mixes": mixes(loader),
        "batch_size": loader.batch_size, "order": describe(loader.config.order),
        "originals": list(originals.values()), "views": views,
    }  # fmt: skip


def _annotations(
    dataset: Dataset, plan: Plan, canvas: Output, values: Mapping[str, Any], size: tuple[int, int]
) -> list[Document]:
    """Return annotations as the loader yields them, to draw over ``canvas`` of height and width ``size``."""
    annotations = []
    for output in plan.outputs:
        mover = output.mover
        # Further steps may have changed the positions.
        if mover is None or mover.of != canvas.name or output.steps:
            continue
        drawn = _moved(mover, values[output.name], *size)
        if not drawn:
            continue
        for labels in plan.outputs:
            kind = dataset.reader.schema[labels.field] if labels.drawn is None else None
            same_rows = labels.rows_of in (output.name, output.rows_of) and labels.rows_of is not None
            if same_rows and isinstance(kind, Labels) and not labels.steps:
                drawn["labels"] = of_labels(values[labels.name], kind.names or ())
        format = getattr(mover, "format", None) or "xyxy"
        annotations.append(
            {"field": output.field, "format": format, "relative": bool(mover.normalized), **drawn}
        )
    return annotations


def _moved(mover: Mover, value: Any, height: int, width: int) -> Shapes:
    if isinstance(mover, MoveRle):
        return of_rle(value, height, width)
    if isinstance(mover, MovePolygons):
        return of_json([{"segmentation": rings} for rings in value or []])
    return of_numbers("boxes" if isinstance(mover, MoveBoxes) else "points", value)


def _original(dataset: Dataset, sample: int, field: str, cut: Cut) -> Document:
    """Return the complete image as the decoder sees it: rotated only where the pipeline does."""
    height, width = cut.size
    original = {"field": field, "turn": cut.turn, "width": width, "height": height}
    try:
        cell = cells_of(dataset, [sample], [field])[0][field]
        upright = cell.pixels_shape is not None or image.orientation(cell.data) == 1
        turned = cut.turn != 1 or upright
        return {
            **original,
            "src": data_uri(to_grey_or_rgb(cell) if turned else image.expand(np.asarray(cell.value()))),
        }
    except (BatchplantError, OSError, MemoryError) as error:
        # The crop may lie in an undamaged part, so the views may still work.
        return {**original, "error": str(error)}


def data_uri(pixels: Any, longest: int = ORIGINAL_PIXELS) -> str:
    """Return pixels (height, width, channels) as a data URI, scaled down to the longest side."""
    pixels = np.asarray(pixels)
    pixels = pixels if pixels.dtype == np.uint8 else stretch_to_bytes(pixels)
    pixels = image.fit(np.ascontiguousarray(pixels[..., :3] if pixels.shape[2] > 4 else pixels), longest)
    pixels = image.expand(pixels)
    # Small images have hard edges that JPEG smears, and it has no alpha.
    if max(pixels.shape[:2]) <= MAX_PNG_PIXELS or pixels.shape[2] in (2, 4):
        kind, data = "png", encode_png(pixels)
    else:
        kind, data = "jpeg", image.encode(image.squeeze(pixels), "jpeg", quality=92)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def render_value(output: Output, value: Any) -> Document:
    """Return the JSON of a value that a pipeline yields."""
    value = value.numpy() if hasattr(value, "numpy") and not isinstance(value, np.ndarray) else value
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
        return {"text": f"{value!s:.{MAX_LETTERS}}"}
    array = np.asarray(value)
    summary: Document = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.ndim == 0:
        return {**summary, "text": str(array.item())}
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    if finite.size:
        summary |= {"min": finite.min(), "max": finite.max(), "mean": float(finite.mean())}
    pixels = _pixels(output, array)
    if pixels is not None:
        uri = data_uri(pixels[0], ORIGINAL_PIXELS if array.ndim == 4 else VIEW_PIXELS)
        size = pixels[0].shape[:2]
        return {**summary, "src": uri, "size": size, **({"note": pixels[1]} if pixels[1] else {})}
    if array.size >= 32 and min(array.shape) <= 16 and array.ndim <= 2:
        # Like a sound: show its first channel.
        long = array if array.ndim == 1 else array.take(0, axis=int(np.argmin(array.shape)))
        return {**summary, "peaks": _peaks(long.astype(np.float64))}
    return {
        **summary,
        "text": np.array2string(array.reshape(-1)[:64], threshold=64, separator=", ")[:MAX_LETTERS],
    }


def _pixels(output: Output, array: Any) -> tuple[Any, str] | None:
    """Return the pixels of an image, or of frames of a video side by side, and a note on changes."""
    stage = output.image
    if array.ndim == 4 and array.shape[-1] in (1, 3, 4) and len(array):
        frames = array[np.linspace(0, len(array) - 1, min(MAX_FRAMES, len(array))).astype(int)]
        return np.concatenate(list(frames), axis=1), f"{len(frames)} of {len(array)} frames"
    if array.ndim != 3 or stage is None:
        return None
    if output.spec.channels_first or (array.shape[0] in (1, 3, 4) and array.shape[2] not in (1, 3, 4)):
        array = np.moveaxis(array, 0, -1)
    if array.shape[2] not in (1, 2, 3, 4):
        return None
    if array.dtype == np.uint8:
        return array, ""
    normalize = stage.target.normalize
    if normalize is not None and not output.steps and len(normalize.mean) == array.shape[2]:
        pixels = array.astype(np.float64) * normalize.std + normalize.mean
        return np.rint(pixels).clip(0, 255).astype(np.uint8), "normalisation undone to show it"
    low, high = float(np.nanmin(array)), float(np.nanmax(array))
    if low >= 0 and high <= 1:
        return stretch_to_bytes(np.append(array, [0.0, 1.0]))[:-2].reshape(
            array.shape
        ), "0 to 1 shown as 0 to 255"
    return stretch_to_bytes(array), f"{low:.3g} to {high:.3g} shown as 0 to 255"


def _peaks(values: Any) -> list[list[float]]:
    """Return the minimum and maximum of each of up to MAX_PEAKS parts."""
    parts = np.array_split(np.nan_to_num(values), min(MAX_PEAKS, len(values)))
    return [[float(part.min()), float(part.max())] for part in parts]
