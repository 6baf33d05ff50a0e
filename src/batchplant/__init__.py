"""Open, check, convert and load every format that machine-learning data lives in."""

from __future__ import annotations

import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

from . import engines
from . import frameworks as _frameworks
from ._version import __version__
from .capabilities import Capabilities
from .codecs.media.image_rules import ImageOptions
from .columns import Columns, Masked, Ragged, Spans
from .convert import convert
from .errors import (
    AccessError,
    BatchplantError,
    BusyError,
    DamagedError,
    DataError,
    DecodeError,
    EncodeError,
    ExistsError,
    FieldNameError,
    MissingLibraryError,
    NotFoundError,
    OptionError,
    Problem,
    SampleIndexError,
    SampleKeyError,
    SchemaError,
    UnknownFormatError,
    UnsafeError,
    WorkerError,
    WriteError,
)
from .format import Format, Probe
from .interleave import interleave
from .joined import concat
from .limits import max_bytes, max_pixels
from .reader import Reader
from .registry import create, open
from .schema import (
    Audio,
    Bool,
    Boxes,
    Bytes,
    Decimal,
    Duration,
    Field,
    Float,
    Image,
    Int,
    Json,
    Keypoints,
    Labels,
    List,
    Polygons,
    Schema,
    Struct,
    Tensor,
    Text,
    Time,
    Uuid,
    Video,
)
from .split import split
from .storage import index
from .verify import verify
from .writer import WriteOptions, Writer

if TYPE_CHECKING:
    from .expressions import col
    from .joining import join
    from .loading.loader import Loader
    from .loading.packing import Pack
    from .loading.pictures import PictureOptions
    from .loading.pipes import Pipe
    from .mix import Mix
    from .patches import Patches, VideoClips, VolumePatches
    from .viewer.notebook import view
    from .windows import Windows

# Names that take long to import, and where they stand; modules that are there without an import of their own.
_LATER = {
    "col": "expressions",
    "join": "joining",
    "Loader": "loading.loader",
    "Pack": "loading.packing",
    "PictureOptions": "loading.pictures",
    "Pipe": "loading.pipes",
    "Mix": "mix",
    "Patches": "patches",
    "VideoClips": "patches",
    "view": "viewer.notebook",
    "VolumePatches": "patches",
    "Windows": "windows",
}
_MODULES = ("expressions", "loading", "mix", "ops", "patches", "viewer", "windows")


def __getattr__(name: str) -> _Any:
    if name in _MODULES:
        return _importlib.import_module(f"batchplant.{name}")
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = globals()[name] = getattr(_importlib.import_module(f"batchplant.{_LATER[name]}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


@_frameworks.register("torch")
def _torch_part() -> object:
    from .interop import torch

    return torch


@_frameworks.register("map_dataset")
def _map_dataset_part() -> object:
    from .interop import map_dataset

    return map_dataset


@_frameworks.register("keras")
def _keras_part() -> object:
    from .interop import keras

    return keras


@_frameworks.register("dashboard")
def _dashboard_part() -> object:
    from .viewer import dashboard

    return dashboard


@_frameworks.register("notebook")
def _notebook_part() -> object:
    from .viewer import notebook

    return notebook


__all__ = [
    "AccessError",
    "Audio",
    "BatchplantError",
    "Bool",
    "Boxes",
    "BusyError",
    "Bytes",
    "Capabilities",
    "Columns",
    "DamagedError",
    "DataError",
    "Decimal",
    "DecodeError",
    "Duration",
    "EncodeError",
    "ExistsError",
    "Field",
    "FieldNameError",
    "Float",
    "Format",
    "Image",
    "ImageOptions",
    "Int",
    "Json",
    "Keypoints",
    "Labels",
    "List",
    "Loader",
    "Masked",
    "MissingLibraryError",
    "Mix",
    "NotFoundError",
    "OptionError",
    "Pack",
    "Patches",
    "PictureOptions",
    "Pipe",
    "Polygons",
    "Probe",
    "Problem",
    "Ragged",
    "Reader",
    "SampleIndexError",
    "SampleKeyError",
    "Schema",
    "SchemaError",
    "Spans",
    "Struct",
    "Tensor",
    "Text",
    "Time",
    "UnknownFormatError",
    "UnsafeError",
    "Uuid",
    "Video",
    "VideoClips",
    "VolumePatches",
    "Windows",
    "WorkerError",
    "WriteError",
    "WriteOptions",
    "Writer",
    "__version__",
    "col",
    "concat",
    "convert",
    "create",
    "engines",
    "index",
    "interleave",
    "join",
    "max_bytes",
    "max_pixels",
    "open",
    "split",
    "verify",
    "view",
]
