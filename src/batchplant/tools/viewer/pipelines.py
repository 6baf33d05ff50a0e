"""Which augmentations are shown: a pipeline out of a file of the user's, or ops picked in the page."""

from __future__ import annotations

import importlib.machinery
import inspect
import json
import os
import sys
import types
from collections.abc import Mapping, Sequence
from typing import Any

from ... import ops
from ...data.reader import Reader
from ...errors import NotFoundError, OptionError, no_such
from ...loading.loader import Loader
from ...loading.pipes import Pipe
from ...ops.moving import RLE, MoveRle
from ...schema.kinds import Boxes, Keypoints, Labels, Polygons

# What a file may call it, where no name is given.
NAMES = ("pipelines", "pipeline", "augment", "loader")
# Of a Loader's arguments those that say what becomes of a sample. Devices and threads change nothing of it.
KEPT = (
    "order",
    "order_options",
    "pipelines",
    "seed",
    "drop_last",
    "images",
    "indices",
    "dct",
    "fast_scale",
)

# Ops that the page offers, with the arguments that it lets people change, of the types of these values.
OFFERED: dict[str, dict[str, Any]] = {
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
MOST_OPS, MOST_PIXELS = 20, 2048
MAX_ARGUMENT = 1e9


def load(text: str) -> Any:
    """What ``FILE.py:NAME`` names. The file is run: it is the user's own."""
    path, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        path, name = text, ""
    if not os.path.isfile(path):
        raise NotFoundError("there is no such file; --pipeline takes FILE.py:NAME", path=path)
    module = _run(path)
    if name:
        if not hasattr(module, name):
            kinds = (Mapping, list, tuple, Loader, types.FunctionType)
            own = [one for one, value in vars(module).items() if one[0] != "_" and isinstance(value, kinds)]
            raise OptionError(no_such("name", name, own), path=path)
        return getattr(module, name)
    found = [one for one in NAMES if hasattr(module, one)]
    if not found:
        raise OptionError(f"name what to show, as in {path}:NAME (or call it {NAMES[0]})", path=path)
    return getattr(module, found[0])


def _run(path: str) -> Any:
    stem = os.path.splitext(os.path.basename(path))[0]
    name = (
        stem if stem.isidentifier() and stem not in sys.modules else f"batchplant_pipeline_{abs(hash(path))}"
    )
    loader = importlib.machinery.SourceFileLoader(name, os.path.abspath(path))
    module = types.ModuleType(name)
    module.__file__, module.__loader__ = loader.path, loader
    # As when Python runs it: modules beside it can be imported, and functions of it can be pickled.
    sys.path.insert(0, os.path.dirname(os.path.abspath(path)))
    sys.modules[name] = module
    try:
        # Not by the import system, which takes bytecode of what the file was a moment ago.
        exec(loader.source_to_code(loader.get_data(loader.path), loader.path), vars(module))
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise OptionError(f"it raised {type(error).__name__}: {error}", path=path) from error
    return module


def arguments(found: Any, reader: Reader) -> dict[str, Any]:
    """The arguments of a Loader that a pipeline stands for.

    It is a Loader, its keyword arguments, its ``pipelines``, the ops of the first image, or a function that
    gives one of these, of a Reader or of nothing.
    """
    if inspect.isfunction(found):
        given = [one for one in inspect.signature(found).parameters.values() if one.default is one.empty]
        found = found(reader) if given else found()
    if isinstance(found, Loader):
        return {**found._options, "batch_size": found.batch_size, "indices": found.indices}
    if isinstance(found, Mapping):
        values = dict(found)
        own = "pipelines" in values and "pipelines" not in reader.schema
        return values if own else {"pipelines": values}
    if isinstance(found, Sequence) and not isinstance(found, str):
        return {"pipelines": {_image(reader): list(found)}}
    if isinstance(found, Pipe):
        return {"pipelines": {found.field: found}}
    raise OptionError(
        f"a pipeline is a Loader, its arguments, pipelines or a list of ops, not {found!r:.100}"
    )


def _image(reader: Reader) -> str:
    for name, kind in reader.schema.items():
        if kind.kind == "image" and not getattr(kind, "mask", False):
            return name
    raise OptionError('there are no images: name the field, as in {"field": [ops]}', path=reader.path)


def picked(text: str, reader: Reader) -> dict[str, Any]:
    """Arguments of a Loader out of what the page sent: JSON, ``[[op, {argument: value}], …]``."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise OptionError(f"the ops are no JSON: {error}") from None
    if not isinstance(given, list) or len(given) > MOST_OPS:
        raise OptionError(f"the ops are a list of at most {MOST_OPS}")
    name = _image(reader)
    # Only this field and its annotations: others may be of kinds that no batch can have.
    annotations = _annotations(reader, name)
    others = {other: None for other in reader.schema if other != name and other not in annotations}
    return {"pipelines": {**others, name: [_op(one) for one in given]}}


def _annotations(reader: Reader, image: str) -> set[str]:
    """The fields that move with an image, and the classes and run-length masks beside its boxes."""
    schema = reader.schema
    found = {
        name
        for name, kind in schema.items()
        if isinstance(kind, Boxes | Keypoints | Polygons) and kind.of == image
    }
    labels = {label for name in found for label in getattr(schema[name], "labels", ())}
    masks = {name for name in labels if name == RLE and name in schema and MoveRle.fits(schema[name])}
    return found | masks | {name for name in labels if isinstance(schema.get(name), Labels)}


def _op(given: Any) -> ops.Op:
    if not (isinstance(given, list) and len(given) == 2 and isinstance(given[1], dict)):
        raise OptionError("an op is [name, {argument: value}]")
    name, values = given
    if not isinstance(name, str) or name not in OFFERED:
        raise OptionError(no_such("op", str(name)[:100], OFFERED))
    known = OFFERED[name]
    made = {}
    for argument, value in values.items():
        if argument not in known:
            raise OptionError(f"{name}: {no_such('argument', argument[:100], known)}")
        made[argument] = _typed(f"{name}: {argument}", value, known[argument])
    op: ops.Op = getattr(ops, name)(**{**known, **made})
    return op


def _typed(name: str, value: Any, like: Any) -> Any:
    if isinstance(like, tuple):
        if not isinstance(value, list) or len(value) != len(like):
            raise OptionError(f"{name} has to be {len(like)} numbers")
        return tuple(_typed(name, one, like[0]) for one in value)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    # A comparison, for a whole number may be too large for a float; NaN fails it, too.
    if not number or not -MAX_ARGUMENT <= value <= MAX_ARGUMENT:
        raise OptionError(f"{name} has to be a number")
    if isinstance(like, float):
        return float(value)
    if int(value) != value or not 0 <= value <= MOST_PIXELS:
        raise OptionError(f"{name} has to be a whole number from 0 to {MOST_PIXELS}")
    return int(value)
