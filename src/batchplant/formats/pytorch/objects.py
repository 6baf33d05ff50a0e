"""Stand-ins for Python names in PyTorch pickles: objects that record their arguments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ...errors import DamagedError, SchemaError, UnsafeError

STORAGES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16",
    "CharStorage": "int8", "ByteStorage": "uint8", "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip
DTYPES = {
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "uint16",
    "uint32", "uint64", "bool", "complex64", "complex128", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz",
    "float8_e5m2fnuz", "float8_e8m0fnu", "complex32", "float4_e2m1fn_x2", "qint8", "quint8", "qint32",
}  # fmt: skip
# What rebuilds tensors that are no plain runs of values.
OTHER_TENSORS = {
    "_rebuild_sparse_tensor": "sparse", "_rebuild_sparse_csr_tensor": "sparse",
    "_rebuild_qtensor": "quantized",
    "_rebuild_meta_tensor_no_storage": "meta", "_rebuild_nested_tensor": "nested",
    "_rebuild_wrapper_subclass": "wrapped",
}  # fmt: skip


@dataclasses.dataclass(frozen=True)
class DType:
    name: str


@dataclasses.dataclass(frozen=True)
class StorageType:
    """``dtype`` None: bytes, whose meaning the tensor tells."""

    dtype: str | None


@dataclasses.dataclass(frozen=True)
class Class:
    """A class that is only a name to us."""

    name: str


@dataclasses.dataclass(frozen=True)
class Maker:
    """Function of ours that REDUCE may call."""

    make: Callable[..., Any]


@dataclasses.dataclass
class Record:
    """An object of TorchScript: its attributes."""

    name: str
    state: Any = None


@dataclasses.dataclass(frozen=True)
class Storage:
    key: str
    dtype: str | None
    count: int
    # Of a storage that is a part of another, in values.
    offset: int = 0


@dataclasses.dataclass(frozen=True, eq=False)
class TensorView:
    dtype: str
    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]


@dataclasses.dataclass(frozen=True, eq=False)
class OtherTensor:
    kind: str


def _sizes(given: Any) -> tuple[int, ...]:
    if not isinstance(given, tuple | list) or not all(type(one) is int for one in given):
        raise DamagedError(f"a shape or stride is a {type(given).__name__}")
    return tuple(given)


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Any:
    """_rebuild_tensor (v1) and _rebuild_tensor_v2: storages of one dtype."""
    metadata = rest[2] if len(rest) > 2 else None
    return _view(storage, offset, size, stride, getattr(storage, "dtype", None), metadata)


def _tensor_v3(storage: Any, offset: Any, size: Any, stride: Any, *rest: Any) -> Any:
    """The storage is bytes; the dtype is told."""
    if len(rest) < 3 or not isinstance(rest[2], DType):
        raise DamagedError("a tensor has no dtype")
    return _view(storage, offset, size, stride, rest[2].name, rest[3] if len(rest) > 3 else None)


def _view(storage: Any, offset: Any, size: Any, stride: Any, dtype: str | None, metadata: Any) -> Any:
    if not isinstance(storage, Storage) or dtype is None or type(offset) is not int:
        raise DamagedError("a tensor has no storage")
    if isinstance(metadata, dict) and any(metadata.values()):
        return OtherTensor("conjugated or negated")
    return TensorView(dtype, storage, offset, _sizes(size), _sizes(stride))


def _from_type(make: Any, kind: Any, arguments: Any, state: Any) -> Any:
    if not isinstance(make, Maker) or not isinstance(kind, Class) or not isinstance(arguments, tuple):
        raise DamagedError("a tensor of a class of its own is damaged")
    return make.make(*arguments)


def _plain(*given: Any) -> Any:
    """Values without meaning here: the first argument, or all of them."""
    return given[0] if len(given) == 1 else given


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    """Decode bytes as protocol 2 writes them."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise DamagedError("bytes that are no text")
    return text.encode(encoding)


def _dict(*given: Any) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for pair in given[0] if given else ():
        set_key(result, *pair)
    return result


def _counter(counts: Any = None) -> dict[Any, Any]:
    """Counter of keys: milestones of a learning rate schedule are stored so."""
    if counts is not None and type(counts) is not dict:
        raise DamagedError("a Counter of what is no dict")
    return dict(counts or {})


def set_key(into: dict[Any, Any], key: Any, value: Any) -> None:
    into[_key(key)] = value


def _key(key: Any) -> Any:
    # Python's hash of a tuple goes as deep as the tuple, without a limit.
    flat = key if type(key) is tuple else (key,)
    if not all(type(one) in (str, int, float, bool, bytes, type(None)) for one in flat):
        raise DamagedError(f"a {type(key).__name__} as the key of a dict")
    return key


_PARTS: dict[tuple[str, str], Any] = {
    ("torch._utils", "_rebuild_tensor"): Maker(_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): Maker(_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): Maker(_tensor_v3),
    ("torch._utils", "_rebuild_parameter"): Maker(lambda data, *_: data),
    ("torch._utils", "_rebuild_parameter_with_state"): Maker(lambda data, *_: data),
    ("torch._tensor", "_rebuild_from_type_v2"): Maker(_from_type),
    ("torch", "Tensor"): Class("torch.Tensor"),
    ("torch.nn.parameter", "Parameter"): Class("torch.nn.Parameter"),
    ("torch.nn.parameter", "Buffer"): Class("torch.nn.Buffer"),
    ("torch", "Size"): Maker(_plain),
    ("torch", "device"): Maker(_plain),
    ("torch.serialization", "_get_layout"): Maker(_plain),
    ("torch.storage", "UntypedStorage"): StorageType(None),
    ("torch", "UntypedStorage"): StorageType(None),
    ("collections", "OrderedDict"): Maker(_dict),
    ("collections", "Counter"): Maker(_counter),
    ("_codecs", "encode"): Maker(_encode),
    ("torch.jit._pickle", "build_intlist"): Maker(_plain),
    ("torch.jit._pickle", "build_doublelist"): Maker(_plain),
    ("torch.jit._pickle", "build_boollist"): Maker(_plain),
    ("torch.jit._pickle", "build_tensorlist"): Maker(_plain),
    ("torch.jit._pickle", "restore_type_tag"): Maker(lambda value, *_: value),
}
for _module in ("builtins", "__builtin__"):
    _PARTS[_module, "set"] = Maker(_plain)
    _PARTS[_module, "frozenset"] = Maker(_plain)
    _PARTS[_module, "bytearray"] = Maker(_plain)
    # Protocol 2 has no other word for bytes of no length.
    _PARTS[_module, "bytes"] = Maker(lambda *given: given[0] if given else b"")
    _PARTS[_module, "complex"] = Maker(_plain)


def find(module: str, name: str) -> Any:
    """Return the stand-in for a Python name; UnsafeError for every name that no tensor needs."""
    if (module, name) in _PARTS:
        return _PARTS[module, name]
    if module in ("torch", "torch.cuda") and name in STORAGES:
        return StorageType(STORAGES[name])
    if module == "torch" and name in DTYPES:
        return DType(name)
    if module == "torch._utils" and name in OTHER_TENSORS:
        other = OtherTensor(OTHER_TENSORS[name])
        return Maker(lambda *_: other)
    if module == "torch" and name.endswith("Storage"):
        raise SchemaError(f"tensors of torch.{name[:40]} are not read")
    if module.startswith("__torch__"):
        return Class(f"{module}.{name}")
    raise UnsafeError(
        f"its pickle asks for {module[:80]}.{name[:80]}, which no tensor needs and which could run code; "
        "it is not loaded. Save the model's state_dict() instead"
    )
