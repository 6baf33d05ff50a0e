"""A sample as the Loader yields it, beside the original: what :func:`batchplant.loading.preview` gives."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...codecs import image
from ...errors import BatchplantError
from ...loading.plan import Output, Plan
from ...loading.preview import Cut, mixes, preview
from ...ops.moving import MoveBoxes, MovePolygons, Mover, MoveRle
from ...schema.kinds import Labels
from .cells.cell import cells_of
from .media import png
from .media.annotations import Drawn, of_json, of_labels, of_numbers, of_rle
from .pixels import as_shown, stretched
from .session import Session, Side

MOST_VIEWS = 16
# Of the original, and of each view.
LONGEST_SIDE, VIEW_SIDE, SMALL = 640, 384, 128
LETTERS, POINTS, FRAMES = 500, 400, 6


def augmented(
    session: Session, side: Side, sample: int, *, ops: str = "", seed: int | None = None, epoch: int = 0,
    count: int = 1,
) -> dict[str, Any]:  # fmt: skip
    """What the loader makes of a sample in ``count`` epochs from this one on."""
    loader = session.loaders.get(side, session.pipeline, ops, seed)
    originals: dict[tuple[str, int], dict[str, Any]] = {}
    views = []
    for number in range(epoch, epoch + min(count, MOST_VIEWS)):
        try:
            made = preview(loader, sample, number)
        except (BatchplantError, OSError, MemoryError) as error:
            views.append({"epoch": number, "error": str(error)})
            continue
        except Exception as error:
            # A function of the user's.
            views.append({"epoch": number, "error": f"{type(error).__name__}: {error}"})
            continue
        outputs = []
        for output in loader.plan.outputs:
            cut = made.cuts.get(output.name)
            if cut is not None and (output.field, cut.turn) not in originals:
                originals[output.field, cut.turn] = _original(side, sample, output.field, cut)
            drawn = {} if cut is None else {"box": cut.box, "flip": cut.flip, "turn": cut.turn}
            shown = shown_value(output, made.values[output.name])
            if "src" in shown and output.image is not None:
                shown["annotations"] = _annotations(side, loader.plan, output, made.values, shown["size"])
            outputs.append({"name": output.name, "field": output.field, **shown, **drawn})
        views.append({"epoch": number, "outputs": outputs, "batch": len(made.batch)})
    order = loader._options["order"]
    return {
        "sample": sample, "seed": loader.seed, "plan": str(loader.plan), "mixes": mixes(loader),
        "batch_size": loader.batch_size, "order": order if isinstance(order, str) else "its own",
        "originals": list(originals.values()), "views": views,
    }  # fmt: skip


def _annotations(
    side: Side, plan: Plan, canvas: Output, values: Mapping[str, Any], size: tuple[int, int]
) -> list[dict[str, Any]]:
    """Boxes, points, polygons and masks as they come out of the loader, to be drawn over their canvas.

    ``size``: height and width of that.
    """
    found = []
    for output in plan.outputs:
        mover = output.mover
        # Further steps may have made anything of the positions.
        if mover is None or mover.of != canvas.name or output.steps:
            continue
        drawn = _moved(mover, values[output.name], *size)
        if not drawn:
            continue
        for labels in plan.outputs:
            kind = side.reader.schema[labels.field] if labels.drawn is None else None
            same_rows = labels.rows_of in (output.name, output.rows_of) and labels.rows_of is not None
            if same_rows and isinstance(kind, Labels) and not labels.steps:
                drawn["labels"] = of_labels(values[labels.name], kind.names or ())
        format = getattr(mover, "format", None) or "xyxy"
        found.append({"field": output.field, "format": format, "relative": bool(mover.normalized), **drawn})
    return found


def _moved(mover: Mover, value: Any, height: int, width: int) -> Drawn:
    if isinstance(mover, MoveRle):
        return of_rle(value, height, width)
    if isinstance(mover, MovePolygons):
        return of_json([{"segmentation": rings} for rings in value or []])
    return of_numbers("boxes" if isinstance(mover, MoveBoxes) else "points", value)


def _original(side: Side, sample: int, field: str, cut: Cut) -> dict[str, Any]:
    """The whole image as the decoder sees it: turned only where the pipeline turns it."""
    height, width = cut.size
    found = {"field": field, "turn": cut.turn, "width": width, "height": height}
    try:
        cell = cells_of(side, [sample], [field])[0][field]
        upright = cell.pixels_shape is not None or image.orientation(cell.data) == 1
        turned = cut.turn != 1 or upright
        return {
            **found,
            "src": data_uri(as_shown(cell) if turned else image.expand(np.asarray(cell.value()))),
        }
    except (BatchplantError, OSError, MemoryError) as error:
        # The box may lie where it is not damaged.
        return {**found, "error": str(error)}


def data_uri(pixels: Any, longest: int = LONGEST_SIDE) -> str:
    """Pixels (height, width, channels) as text that a page can show, not larger than it needs."""
    pixels = np.asarray(pixels)
    pixels = pixels if pixels.dtype == np.uint8 else stretched(pixels)
    pixels = image.fit(np.ascontiguousarray(pixels[..., :3] if pixels.shape[2] > 4 else pixels), longest)
    pixels = image.expand(pixels)
    # Small images have hard edges that JPEG smears, and it has no alpha.
    if max(pixels.shape[:2]) <= SMALL or pixels.shape[2] in (2, 4):
        kind, data = "png", png.encode(pixels)
    else:
        kind, data = "jpeg", image.encode(image.squeeze(pixels), "jpeg", quality=92)
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


def shown_value(output: Output, value: Any) -> dict[str, Any]:
    """What the page shows of a value that comes out of a pipeline."""
    value = value.numpy() if hasattr(value, "numpy") and not isinstance(value, np.ndarray) else value
    if not isinstance(value, np.ndarray | np.generic) or value.dtype.kind not in "biuf":
        return {"text": f"{value!s:.{LETTERS}}"}
    array = np.asarray(value)
    said: dict[str, Any] = {"dtype": str(array.dtype), "shape": list(array.shape)}
    if array.ndim == 0:
        return {**said, "text": str(array.item())}
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    if finite.size:
        said |= {"min": finite.min(), "max": finite.max(), "mean": float(finite.mean())}
    pixels = _pixels(output, array)
    if pixels is not None:
        uri = data_uri(pixels[0], LONGEST_SIDE if array.ndim == 4 else VIEW_SIDE)
        size = pixels[0].shape[:2]
        return {**said, "src": uri, "size": size, **({"note": pixels[1]} if pixels[1] else {})}
    if array.size >= 32 and min(array.shape) <= 16 and array.ndim <= 2:
        # A sound, or something like it: its first channel.
        long = array if array.ndim == 1 else array.take(0, axis=int(np.argmin(array.shape)))
        return {**said, "peaks": _peaks(long.astype(np.float64))}
    return {**said, "text": np.array2string(array.reshape(-1)[:64], threshold=64, separator=", ")[:LETTERS]}


def _pixels(output: Output, array: Any) -> tuple[Any, str] | None:
    """The pixels of an image, or of the first frames of a video side by side; and how they were changed."""
    stage = output.image
    if array.ndim == 4 and array.shape[-1] in (1, 3, 4) and len(array):
        frames = array[np.linspace(0, len(array) - 1, min(FRAMES, len(array))).astype(int)]
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
        return stretched(np.append(array, [0.0, 1.0]))[:-2].reshape(array.shape), "0 to 1 shown as 0 to 255"
    return stretched(array), f"{low:.3g} to {high:.3g} shown as 0 to 255"


def _peaks(values: Any) -> list[list[float]]:
    """Lowest and highest value of each of a few parts."""
    parts = np.array_split(np.nan_to_num(values), min(POINTS, len(values)))
    return [[float(one.min()), float(one.max())] for one in parts]
