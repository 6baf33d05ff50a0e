"""Open, check, convert and load every format that machine-learning data lives in."""

from __future__ import annotations

import functools as _functools
import importlib as _importlib
import os as _os
import sys as _sys
import threading as _threading
from typing import TYPE_CHECKING
from typing import Any as _Any

from ._version import __version__
from .compat import install_aliases as _install_aliases
from .data import hooks as _hooks

if TYPE_CHECKING:
    from . import codecs as codecs
    from . import errors as errors
    from . import formats as formats
    from . import jobs as jobs
    from . import loading as loading
    from . import ops as ops
    from . import order as order
    from . import schema as schema
    from . import storage as storage
    from .codecs.media.image_rules import ImageOptions
    from .data.concat import concat, interleave
    from .data.expressions import col
    from .data.join import join
    from .data.layout import Layout
    from .data.mix import Mix
    from .data.patches import Patches, VideoClips, VolumePatches
    from .data.reader import Reader
    from .data.split import split
    from .data.windows import DeltaWindows, Windows
    from .data.writer import WriteOptions, Writer
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
    from .formats.base.format import Capabilities, Format, Probe
    from .formats.registry import create, open
    from .jobs import engines
    from .jobs.convert import convert
    from .jobs.convert_options import ConvertOptions, ConvertTuning
    from .jobs.verify import verify
    from .loading.decoded import DecodedCache
    from .loading.images import DecodeOptions
    from .loading.loader import Loader
    from .loading.packing import Pack
    from .loading.plan import Pipe
    from .loading.skipping import Skip
    from .order.mesh import Mesh
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
        Sparse,
        Struct,
        Tensor,
        Text,
        Time,
        Uuid,
        Video,
    )
    from .schema.columns import Columns, Masked, Ragged
    from .storage import index
    from .storage.limits import max_bytes, max_pixels
    from .storage.spans import Spans
    from .tools import metrics as metrics
    from .tools.versions import show_versions
    from .tools.viewer.notebook import view

# What is imported when it is first used: names by module, and the modules that are attributes of the package.
_NAMES_BY_MODULE = {
    "codecs.media.image_rules": "ImageOptions",
    "data.concat": "concat interleave",
    "data.expressions": "col",
    "data.join": "join",
    "data.layout": "Layout",
    "data.mix": "Mix",
    "data.patches": "Patches VideoClips VolumePatches",
    "data.reader": "Reader",
    "data.split": "split",
    "data.windows": "DeltaWindows Windows",
    "data.writer": "WriteOptions Writer",
    "errors": (
        "AccessError BatchplantError BusyError DamagedError DataError DecodeError EncodeError "
        "ExistsError FieldNameError MissingLibraryError NotFoundError OptionError Problem "
        "SampleIndexError SampleKeyError SchemaError UnknownFormatError UnsafeError WorkerError "
        "WriteError"
    ),
    "formats.base.format": "Capabilities Format Probe",
    "formats.registry": "create open",
    "jobs.convert": "convert",
    "jobs.convert_options": "ConvertOptions ConvertTuning",
    "jobs.verify": "verify",
    "loading.decoded": "DecodedCache",
    "loading.images": "DecodeOptions",
    "loading.loader": "Loader",
    "loading.packing": "Pack",
    "loading.plan": "Pipe",
    "loading.skipping": "Skip",
    "order.mesh": "Mesh",
    "schema": (
        "Audio Bool Boxes Bytes Decimal Duration Field Float Image Int Json Keypoints Labels List "
        "Polygons Schema Sparse Struct Tensor Text Time Uuid Video"
    ),
    "schema.columns": "Columns Masked Ragged",
    "storage.limits": "max_bytes max_pixels",
    "storage.spans": "Spans",
    "tools.versions": "show_versions",
    "tools.viewer.notebook": "view",
}
_MODULES = {
    "codecs": "codecs",
    "engines": "jobs.engines",
    "errors": "errors",
    "ffcv": "compat.ffcv",
    "ffrecord": "compat.ffrecord",
    "formats": "formats",
    "index": "storage.index",
    "jobs": "jobs",
    "loading": "loading",
    "metrics": "tools.metrics",
    "ops": "ops",
    "order": "order",
    "schema": "schema",
    "storage": "storage",
    "tfrecord": "compat.tfrecord",
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()}
_lock = _threading.RLock()


def _after_fork() -> None:
    """Replace the lock, which a thread of the parent may have held."""
    global _lock
    _lock = _threading.RLock()


_os.register_at_fork(after_in_child=_after_fork)


def __getattr__(name: str) -> _Any:
    path = _MODULES.get(name) or _MODULE_OF.get(name)
    # The import system asks for a module before it imports it itself, with locks of its own held.
    if path is None or _sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    # Two threads that each import parts of a package may get half of it.
    with _lock:
        module = _importlib.import_module(f"batchplant.{path}")
    value: _Any = module if name in _MODULES else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES})


_install_aliases()

_hooks.register("open", lambda: __getattr__("open"))
for _name, _module in {
    "torch": "interop.torch",
    "keras": "interop.keras",
    "dashboard": "tools.viewer.dashboard",
    "notebook": "tools.viewer.notebook",
    "service": "loading.service.client",
}.items():
    _hooks.register(_name, _functools.partial(_importlib.import_module, f"batchplant.{_module}"))


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
    "ConvertOptions",
    "ConvertTuning",
    "DamagedError",
    "DataError",
    "Decimal",
    "DecodeError",
    "DecodeOptions",
    "DecodedCache",
    "DeltaWindows",
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
    "Layout",
    "List",
    "Loader",
    "Masked",
    "Mesh",
    "MissingLibraryError",
    "Mix",
    "NotFoundError",
    "OptionError",
    "Pack",
    "Patches",
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
    "Skip",
    "Spans",
    "Sparse",
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
    "show_versions",
    "split",
    "verify",
    "view",
]
