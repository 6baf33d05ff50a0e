"""Augmentations that the page shows: a pipeline out of a file of the user's, or ops picked in the page."""

from __future__ import annotations

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

from ... import ops
from ...data.reader import Reader
from ...errors import NotFoundError, OptionError, exceptions_as, no_such
from ...loading.images import DecodeOptions
from ...loading.loader import Loader
from ...loading.plan import Pipe
from ...ops.annotations import RLE, MoveRle
from ...ops.joint import JointOp
from ...schema.kinds import Boxes, Keypoints, Labels, Polygons
from .. import Document
from .cells import Dataset

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
            kinds = (Mapping, list, tuple, Loader, types.FunctionType)
            candidates = [
                attribute
                for attribute, value in vars(module).items()
                if attribute[0] != "_" and isinstance(value, kinds)
            ]
            raise OptionError(no_such("name", name, candidates), path=path)
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
        required = [
            parameter
            for parameter in inspect.signature(pipeline).parameters.values()
            if parameter.default is parameter.empty
        ]
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

    def get(self, dataset: Dataset, pipeline: Any, ops: str, seed: int | None) -> Loader:
        """Return the loader of the ops picked in the page, or with "" of ``pipeline``; seed None: its own."""
        key = ops, -1 if seed is None else seed
        with self._lock:
            if key in self._loaders:
                self._loaders.move_to_end(key)
                return self._loaders[key]
            arguments = (
                parse_ops(ops, dataset.reader) if ops else loader_arguments(pipeline or {}, dataset.reader)
            )
            loader = self._loaders[key] = _loader(dataset, arguments, seed)
            while len(self._loaders) > MAX_LOADERS:
                # A request may still use it; its threads end with the last reference.
                self._loaders.popitem(last=False)
        return loader

    def close(self) -> None:
        with self._lock:
            for loader in self._loaders.values():
                loader.close()
            self._loaders.clear()


def _loader(dataset: Dataset, arguments: dict[str, Any], seed: int | None) -> Loader:
    options = {name: value for name, value in arguments.items() if name in LOADER_ARGUMENTS}
    if seed is not None:
        options["seed"] = seed
    if "decode" in options:
        decode = DecodeOptions.of(options["decode"])
        options["decode"] = dataclasses.replace(decode, backend=None, gpu_share=None)
    size = int(arguments.get("batch_size", DEFAULT_BATCH_SIZE))
    return Loader(
        dataset.reader,
        size,
        workers=LOADER_THREADS,
        prefetch_batches=1,
        rank=0,
        world_size=1,
        **options,
    )
