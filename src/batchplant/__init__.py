"""Open, check, convert and load every format that machine-learning data lives in."""

from __future__ import annotations

import functools as _functools
import importlib as _importlib
from typing import TYPE_CHECKING
from typing import Any as _Any

from ._version import __version__
from .codecs.media.image_rules import ImageOptions
from .compat import install_aliases as _install_aliases
from .data import hooks as _hooks
from .data.concat import concat, interleave
from .data.reader import Reader
from .data.split import split
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
from .formats.base.capabilities import Capabilities
from .formats.base.format import Format, Probe
from .formats.registry import create, open
from .jobs import engines
from .jobs.convert import convert
from .jobs.convert_options import ConvertOptions, ConvertTuning
from .jobs.verify import verify
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
from .schema.columns import Columns, Masked, Ragged
from .storage import index
from .storage.limits import max_bytes, max_pixels
from .storage.spans import Spans

if TYPE_CHECKING:
    from . import loading as loading
    from . import ops as ops
    from . import order as order
    from .data.expressions import col
    from .data.join import join
    from .data.mix import Mix
    from .data.patches import Patches, VideoClips, VolumePatches
    from .data.windows import Windows
    from .loading.decoded import DecodedCache
    from .loading.images import DecodeOptions
    from .loading.loader import Loader
    from .loading.packing import Pack
    from .loading.plan import Pipe
    from .order.mesh import Mesh
    from .tools.versions import show_versions
    from .tools.viewer.notebook import view

# Names that take long to import, and their modules.
_LAZY_NAMES = {
    "col": "data.expressions",
    "join": "data.join",
    "Loader": "loading.loader",
    "Mesh": "order.mesh",
    "Mix": "data.mix",
    "Pack": "loading.packing",
    "Patches": "data.patches",
    "DecodedCache": "loading.decoded",
    "DecodeOptions": "loading.images",
    "Pipe": "loading.plan",
    "show_versions": "tools.versions",
    "VideoClips": "data.patches",
    "view": "tools.viewer.notebook",
    "VolumePatches": "data.patches",
    "Windows": "data.windows",
}
# Modules that are attributes of the package without an import of their own.
_LAZY_MODULES = {
    "ffcv": "compat.ffcv",
    "ffrecord": "compat.ffrecord",
    "loading": "loading",
    "ops": "ops",
    "order": "order",
    "tfrecord": "compat.tfrecord",
}


def __getattr__(name: str) -> _Any:
    if name in _LAZY_MODULES:
        value = _importlib.import_module(f"batchplant.{_LAZY_MODULES[name]}")
    elif name in _LAZY_NAMES:
        value = getattr(_importlib.import_module(f"batchplant.{_LAZY_NAMES[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY_NAMES})


_install_aliases()


_hooks.register("open", lambda: open)
for _name, _module in {
    "torch": "interop.torch",
    "keras": "interop.keras",
    "dashboard": "tools.viewer.dashboard",
    "notebook": "tools.viewer.notebook",
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
    "show_versions",
    "split",
    "verify",
    "view",
]
