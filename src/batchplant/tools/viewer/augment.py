"""Samples after augmentation: by a pipeline out of a file of the user's, or by ops picked in the page."""

from __future__ import annotations

import base64
import dataclasses
import importlib.machinery
import inspect
import json
import os
import sys
import threading
import types
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ... import ops
from ...codecs import image
from ...data.reader import Reader
from ...errors import BatchplantError, NotFoundError, OptionError, exceptions_as, no_such
from ...loading.images import DecodeOptions
from ...loading.loader import Loader
from ...loading.plan import Output, Pipe, Plan
from ...loading.preview import Cut, mixes, preview
from ...ops.annotations import RLE, MoveBoxes, MovePolygons, Mover, MoveRle
from ...ops.joint import JointOp
from ...order import describe
from ...schema.kinds import Boxes, Keypoints, Labels, Polygons
from .. import Document
from .cells import Dataset, cells_of
from .overlays import Shapes, of_json, of_labels, of_numbers, of_rle
from .pixels import encode_png, stretch_to_bytes, to_grey_or_rgb

# Names that are looked for in a file where the user gives none.
PIPELINE_NAMES = ("pipelines", "pipeline", "augment", "loader")
# Arguments of a Loader that change a sample. Devices and threads do not.
LOADER_ARGUMENTS = ("order", "pipelines", "seed", "drop_last", "decode", "indices")

# Ops that the page offers, with the arguments that users may change, of the types of these values.
OFFERED_OPS: dict[str, Document] = {
    "RandomResizedCrop": {"size": 224, "scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)},
    "CenterCrop": {"size": 224, "ratio": 0.875},
    "Resize": {"size": 224},
    "RandomHorizontalFlip": {"flip_prob": 0.5},
    "RandomCrop": {"size": 192, "padding": 0},
    "RandomTranslate": {"padding": 16},
    "RandomErasing": {"p": 0.5, "scale": (0.02, 0.33), "ratio": (0.3, 3.3)},
    "ColorJitter": {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "p": 1.0},
    "RandomBrightness": {"magnitude": 0.4, "p": 0.5},
    "RandomContrast": {"magnitude": 0.4, "p": 0.5},
    "RandomSaturation": {"magnitude": 0.4, "p": 0.5},
    "RandomHue": {"magnitude": 0.1, "p": 0.5},
    "RandomGrayscale": {"p": 0.1},
    "RandomSolarization": {"threshold": 128, "p": 0.5},
    "GaussianBlur": {"kernel_size": 9, "sigma": (0.1, 2.0), "p": 0.5},
}
MAX_OPS, MAX_PIXELS_ARGUMENT = 20, 2048
MAX_ARGUMENT = 1e9
# Loaders that are cached, each with an engine, and threads of each.
MAX_LOADERS, LOADER_THREADS = 4, 2
# Batch size of a pipeline without a Loader, in which ops may mix samples.
DEFAULT_BATCH_SIZE = 32


def load(text: str) -> Any:
    """Return the object that ``FILE.py:NAME`` names. This runs the file, which is the user's own."""
    path, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        path, name = text, ""
    if not os.path.isfile(path):
        raise NotFoundError("there is no such file; --pipeline takes FILE.py:NAME", path=path)
    module = _run(path)
    if name:
        if not hasattr(module, name):
            public = [attribute for attribute in vars(module) if attribute[0] != "_"]
            raise OptionError(no_such("name", name, public), path=path)
        return getattr(module, name)
    matches = [candidate for candidate in PIPELINE_NAMES if hasattr(module, candidate)]
    if not matches:
        raise OptionError(f"name what to show, as in {path}:NAME (or call it {PIPELINE_NAMES[0]})", path=path)
    return getattr(module, matches[0])


def _run(path: str) -> Any:
    stem = os.path.splitext(os.path.basename(path))[0]
    name = (
        stem if stem.isidentifier() and stem not in sys.modules else f"batchplant_pipeline_{abs(hash(path))}"
    )
    loader = importlib.machinery.SourceFileLoader(name, os.path.abspath(path))
    module = types.ModuleType(name)
    module.__file__, module.__loader__ = loader.path, loader
    # As when Python runs it: it can import modules beside it, and its functions can be pickled.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules[name] = module
    try:
        # Not by the import system, which could use stale bytecode.
        exec(loader.source_to_code(loader.get_data(loader.path), loader.path), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise OptionError(f"it raised {type(error).__name__}: {error}", path=path) from error
    return module


def loader_arguments(pipeline: Any, reader: Reader) -> dict[str, Any]:
    """Return the arguments of a Loader for a pipeline.

    A pipeline is a Loader, its keyword arguments, its ``pipelines``, the ops of the first image, or a
    function that returns one of these, with a Reader as its only argument or without arguments.
    """
    if inspect.isfunction(pipeline):
        parameters = inspect.signature(pipeline).parameters.values()
        required = any(parameter.default is parameter.empty for parameter in parameters)
        pipeline = pipeline(reader) if required else pipeline()
    if isinstance(pipeline, Loader):
        return {**vars(pipeline.config), "indices": pipeline.indices}
    if isinstance(pipeline, Mapping):
        values = dict(pipeline)
        is_arguments = "pipelines" in values and "pipelines" not in reader.schema
        return values if is_arguments else {"pipelines": values}
    if isinstance(pipeline, Sequence) and not isinstance(pipeline, str):
        if any(isinstance(entry, Mapping | JointOp) for entry in pipeline):
            return {"pipelines": pipeline}
        return {"pipelines": {_image(reader): list(pipeline)}}
    if isinstance(pipeline, Pipe):
        return {"pipelines": {pipeline.field: pipeline}}
    raise OptionError(
        f"a pipeline is a Loader, its arguments, pipelines or a list of ops, not {pipeline!r:.100}"
    )


def _image(reader: Reader) -> str:
    for name, kind in reader.schema.items():
        if kind.kind == "image" and not getattr(kind, "mask", False):
            return name
    raise OptionError('there are no images: name the field, as in {"field": [ops]}', path=reader.path)


def parse_ops(text: str, reader: Reader) -> dict[str, Any]:
    """Return the arguments of a Loader for ops in JSON: ``[[op, {argument: value}], …]``."""
    with exceptions_as(OptionError, "the ops are no JSON", ValueError, RecursionError):
        entries = json.loads(text)
    if not isinstance(entries, list) or len(entries) > MAX_OPS:
        raise OptionError(f"the ops are a list of at most {MAX_OPS}")
    name = _image(reader)
    # Only this field and its annotations: batches cannot hold all kinds of fields.
    annotations = _annotations(reader, name)
    unused = {field: None for field in reader.schema if field != name and field not in annotations}
    return {"pipelines": {**unused, name: [_op(entry) for entry in entries]}}


def _annotations(reader: Reader, image: str) -> set[str]:
    """Return the fields that move with an image, and the classes and run-length masks of its boxes."""
    schema = reader.schema
    fields = {
        name
        for name, kind in schema.items()
        if isinstance(kind, Boxes | Keypoints | Polygons) and kind.of == image
    }
    labels = {label for name in fields for label in getattr(schema[name], "labels", ())}
    masks = {name for name in labels if name == RLE and name in schema and MoveRle.fits(schema[name])}
    return fields | masks | {name for name in labels if isinstance(schema.get(name), Labels)}


def _op(entry: Any) -> ops.Op:
    if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[1], dict)):
        raise OptionError("an op is [name, {argument: value}]")
    name, values = entry
    if not isinstance(name, str) or name not in OFFERED_OPS:
        raise OptionError(no_such("op", str(name)[:100], OFFERED_OPS))
    defaults = OFFERED_OPS[name]
    arguments = {}
    for argument, value in values.items():
        if argument not in defaults:
            raise OptionError(f"{name}: {no_such('argument', argument[:100], defaults)}")
        arguments[argument] = _typed(f"{name}: {argument}", value, defaults[argument])
    return getattr(ops, name)(**{**defaults, **arguments})


def _typed(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, tuple):
        if not isinstance(value, list) or len(value) != len(default):
            raise OptionError(f"{name} has to be {len(default)} numbers")
        return tuple(_typed(name, item, default[0]) for item in value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # Compare before converting: an integer may be too large for a float; NaN fails, too.
    if not number or not -MAX_ARGUMENT <= value <= MAX_ARGUMENT:
        raise OptionError(f"{name} has to be a number")
    if isinstance(default, float):
        return float(value)
    if int(value) != value or not 0 <= value <= MAX_PIXELS_ARGUMENT:
        raise OptionError(f"{name} has to be a whole number from 0 to {MAX_PIXELS_ARGUMENT}")
    return int(value)


class PipelineLoaders:
    """LRU cache of loaders, by pipeline and seed, that augment single samples."""

    def __init__(self) -> None:
        self._loaders: OrderedDict[tuple[str, int], Loader] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, reader: Reader, pipeline: Any, ops: str, seed: int | None) -> Loader:
        """Return the loader of the ops picked in the page, or with "" of ``pipeline``; seed None: its own."""
        key = ops, -1 if seed is None else seed
        with self._lock:
            if key in self._loaders:
                self._loaders.move_to_end(key)
                return self._loaders[key]
            arguments = parse_ops(ops, reader) if ops else loader_arguments(pipeline or {}, reader)
            loader = self._loaders[key] = _loader(reader, arguments, seed)
            while len(self._loaders) > MAX_LOADERS:
                # A request may still use it; its threads end with the last reference.
                self._loaders.popitem(last=False)
        return loader

    def close(self) -> None:
        with self._lock:
            for loader in self._loaders.values():
                loader.close()
            self._loaders.clear()


def _loader(reader: Reader, arguments: dict[str, Any], seed: int | None) -> Loader:
    options = {name: value for name, value in arguments.items() if name in LOADER_ARGUMENTS}
    if seed is not None:
        options["seed"] = seed
    if "decode" in options:
        decode = DecodeOptions.of(options["decode"])
        options["decode"] = dataclasses.replace(decode, backend=None, gpu_share=None)
    size = int(arguments.get("batch_size", DEFAULT_BATCH_SIZE))
    own: dict[str, Any] = {"workers": LOADER_THREADS, "prefetch_batches": 1, "rank": 0, "world_size": 1}
    return Loader(reader, size, **own, **options)


# -- a sample as the Loader yields it, beside the original ---------------------------------------------

MAX_VIEWS = 16
# Longer side of the original and of each view; images up to MAX_PNG_PIXELS are sent as PNG.
ORIGINAL_PIXELS, VIEW_PIXELS, MAX_PNG_PIXELS = 640, 384, 128
MAX_LETTERS, MAX_PEAKS, MAX_FRAMES = 500, 400, 6


def augment_sample(
    loader: Loader, dataset: Dataset, sample: int, *, epoch: int = 0, count: int = 1
) -> Document:
    """Return a sample as the loader yields it in ``count`` epochs, from ``epoch`` on."""
    originals: dict[tuple[str, int], Document] = {}
    views = []
    for number in range(epoch, epoch + min(count, MAX_VIEWS)):
        try:
            result = preview(loader, sample, number)
        except Exception as error:
            # Any other error is one of a user's function.
            own = isinstance(error, BatchplantError | OSError | MemoryError)
            message = str(error) if own else f"{type(error).__name__}: {error}"
            views.append({"epoch": number, "error": message})
            continue
        outputs = []
        for output in loader.plan.outputs:
            cut = result.cuts.get(output.name)
            if cut is not None and (output.field, cut.turn) not in originals:
                originals[output.field, cut.turn] = _original(dataset, sample, output.field, cut)
            drawn = {} if cut is None else {"box": cut.box, "flip": cut.flip, "turn": cut.turn}
            shown = render_value(output, result.values[output.name])
            if "src" in shown and output.image is not None:
                shown["annotations"] = _shapes_over(
                    dataset, loader.plan, output, result.values, shown["size"]
                )
            outputs.append({"name": output.name, "field": output.field, **shown, **drawn})
        views.append({"epoch": number, "outputs": outputs, "batch": len(result.batch)})
    return {
        "sample": sample, "seed": loader.seed, "plan": str(loader.plan), "mixes": mixes(loader),
        "batch_size": loader.batch_size, "order": describe(loader.config.order),
        "originals": list(originals.values()), "views": views,
    }  # fmt: skip


def _shapes_over(
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
