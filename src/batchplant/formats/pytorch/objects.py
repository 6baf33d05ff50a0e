"""Objects of PyTorch pickles: stand-ins that record their arguments, and storages that pickles refer to."""

from __future__ import annotations

import dataclasses
from typing import Any

from ...errors import DamagedError, SchemaError, UnsafeError
from ..base.unpickle import CONTAINERS, Class, Maker, Unpickler, plain

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


def _sizes(sizes: object) -> tuple[int, ...]:
    if not isinstance(sizes, tuple | list) or not all(type(size) is int for size in sizes):
        raise DamagedError(f"a shape or stride is a {type(sizes).__name__}")
    return tuple(sizes)


def _tensor(storage: object, offset: object, size: object, stride: object, *ignored: object) -> object:
    """_rebuild_tensor (v1) and _rebuild_tensor_v2: storages of one dtype."""
    metadata = ignored[2] if len(ignored) > 2 else None
    return _view(storage, offset, size, stride, getattr(storage, "dtype", None), metadata)


def _tensor_v3(storage: object, offset: object, size: object, stride: object, *ignored: object) -> object:
    """The storage is bytes; the dtype is told."""
    if len(ignored) < 3 or not isinstance(ignored[2], DType):
        raise DamagedError("a tensor has no dtype")
    return _view(storage, offset, size, stride, ignored[2].name, ignored[3] if len(ignored) > 3 else None)


def _view(
    storage: object, offset: object, size: object, stride: object, dtype: str | None, metadata: object
) -> object:
    if not isinstance(storage, Storage) or dtype is None or type(offset) is not int:
        raise DamagedError("a tensor has no storage")
    if isinstance(metadata, dict) and any(metadata.values()):
        return OtherTensor("conjugated or negated")
    return TensorView(dtype, storage, offset, _sizes(size), _sizes(stride))


def _from_type(make: object, kind: object, arguments: object, state: object) -> object:
    if not isinstance(make, Maker) or not isinstance(kind, Class) or not isinstance(arguments, tuple):
        raise DamagedError("a tensor of a class of its own is damaged")
    return make.make(*arguments)


_PARTS: dict[tuple[str, str], object] = {
    **CONTAINERS,
    ("torch._utils", "_rebuild_tensor"): Maker(_tensor),
    ("torch._utils", "_rebuild_tensor_v2"): Maker(_tensor),
    ("torch._utils", "_rebuild_tensor_v3"): Maker(_tensor_v3),
    ("torch._utils", "_rebuild_parameter"): Maker(lambda data, *_: data),
    ("torch._utils", "_rebuild_parameter_with_state"): Maker(lambda data, *_: data),
    ("torch._tensor", "_rebuild_from_type_v2"): Maker(_from_type),
    ("torch", "Tensor"): Class("torch.Tensor"),
    ("torch.nn.parameter", "Parameter"): Class("torch.nn.Parameter"),
    ("torch.nn.parameter", "Buffer"): Class("torch.nn.Buffer"),
    ("torch", "Size"): Maker(plain),
    ("torch", "device"): Maker(plain),
    ("torch.serialization", "_get_layout"): Maker(plain),
    ("torch.storage", "UntypedStorage"): StorageType(None),
    ("torch", "UntypedStorage"): StorageType(None),
    ("torch.jit._pickle", "build_intlist"): Maker(plain),
    ("torch.jit._pickle", "build_doublelist"): Maker(plain),
    ("torch.jit._pickle", "build_boollist"): Maker(plain),
    ("torch.jit._pickle", "build_tensorlist"): Maker(plain),
    ("torch.jit._pickle", "restore_type_tag"): Maker(lambda value, *_: value),
}


def find(module: str, name: str) -> object:
    """Return the stand-in for a Python name; UnsafeError for every name that no tensor needs."""
    if (module, name) in _PARTS:
        return _PARTS[module, name]
    if module in ("torch", "torch.cuda") and name in STORAGES:
        return StorageType(STORAGES[name])
    if module == "torch" and name in DTYPES:
        return DType(name)
    if module == "torch._utils" and name in OTHER_TENSORS:
        placeholder = OtherTensor(OTHER_TENSORS[name])
        return Maker(lambda *_: placeholder)
    if module == "torch" and name.endswith("Storage"):
        raise SchemaError(f"tensors of torch.{name[:40]} are not read")
    if module.startswith("__torch__"):
        return Class(f"{module}.{name}")
    raise UnsafeError(
        f"its pickle asks for {module[:80]}.{name[:80]}, which no tensor needs and which could run code; "
        "it is not loaded. Save the model's state_dict() instead"
    )


class TensorUnpickler(Unpickler):
    """Unpickles tensors; ``storages``: those that the pickles refer to."""

    find = staticmethod(find)

    def __init__(self, data: memoryview, offset: int = 0) -> None:
        super().__init__(data, offset)
        self.storages: dict[str, Storage] = {}

    def _persistent(self) -> None:
        identifier: Any = self._stack.pop()
        if not isinstance(identifier, tuple) or len(identifier) < 5 or identifier[0] != "storage":
            raise UnsafeError(f"its pickle refers to a {str(identifier[:1])[:40]} outside of itself")
        _, kind, key, _, count, *views = identifier
        if not isinstance(kind, StorageType) or not isinstance(key, str | int) or type(count) is not int:
            raise DamagedError("a storage is not described as one")
        storage = Storage(str(key), kind.dtype, count)
        root = self.storages.setdefault(storage.key, storage)
        if root.dtype != storage.dtype or root.count != storage.count:
            # A storage of bytes may be seen as several dtypes; each tensor says its own.
            self.storages[storage.key] = root if root.count >= storage.count else storage
        if views and isinstance(views[0], tuple):
            _, offset, size = views[0]
            if type(offset) is not int or type(size) is not int or offset < 0 or size < 0:
                raise DamagedError("a part of a storage is not described as one")
            if offset + size > count:
                raise DamagedError("a part of a storage lies outside of it")
            storage = Storage(str(key), kind.dtype, size, offset)
        self._push(storage)
