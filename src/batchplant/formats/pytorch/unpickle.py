"""Pickles of PyTorch, read without Python's own unpickler and without running anything.

Only the instructions that tensors and containers need are known, and only the names that ``objects.find``
knows. Nothing is ever imported or called.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable
from typing import Any

from ...errors import DamagedError, SchemaError, UnsafeError

# -- objects ------------------------------------------------------------------------------------------
# Stand-ins for Python names in PyTorch pickles: objects that record their arguments.

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

    make: Callable[..., object]


@dataclasses.dataclass
class Record:
    """An object of TorchScript: its attributes."""

    name: str
    state: object = None


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


def _plain(*arguments: object) -> object:
    """Values without meaning here: the first argument, or all of them."""
    return arguments[0] if len(arguments) == 1 else arguments


def _encode(text: object, encoding: object = "latin1") -> bytes:
    """Decode bytes as protocol 2 writes them."""
    if not isinstance(text, str) or encoding not in ("latin1", "latin-1", "utf-8", "ascii"):
        raise DamagedError("bytes that are no text")
    return text.encode(encoding)


def _dict(pairs: Iterable[tuple[object, object]] = (), *_: object) -> dict[Any, Any]:
    result: dict[Any, Any] = {}
    for key, value in pairs:
        set_key(result, key, value)
    return result


def _counter(counts: object = None) -> dict[Any, Any]:
    """Counter of keys: milestones of a learning rate schedule are stored so."""
    if counts is not None and type(counts) is not dict:
        raise DamagedError("a Counter of what is no dict")
    return dict(counts or {})


def set_key(into: dict[Any, Any], key: object, value: object) -> None:
    into[_key(key)] = value


def _key(key: object) -> object:
    # Python's hash of a tuple goes as deep as the tuple, without a limit.
    flat = key if type(key) is tuple else (key,)
    if not all(type(element) in (str, int, float, bool, bytes, type(None)) for element in flat):
        raise DamagedError(f"a {type(key).__name__} as the key of a dict")
    return key


_PARTS: dict[tuple[str, str], object] = {
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
    _PARTS[_module, "bytes"] = Maker(lambda *parts: parts[0] if parts else b"")
    _PARTS[_module, "complex"] = Maker(_plain)


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


# -- unpickle -----------------------------------------------------------------------------------------


class Unpickler:
    """One pickle after another, from ``at`` on; ``at`` is behind the last one that was loaded."""

    def __init__(self, data: memoryview, offset: int = 0) -> None:
        self._data, self.at = data, offset
        self.storages: dict[str, Storage] = {}

    def load(self) -> Any:
        start = self.at
        try:
            return self._load()
        except (
            IndexError,
            KeyError,
            TypeError,
            ValueError,
            OverflowError,
            AttributeError,
            struct.error,
        ) as error:
            raise DamagedError(
                f"the pickle is damaged: {type(error).__name__}: {error}", offset=self.at
            ) from None
        except (DamagedError, RecursionError) as error:
            if isinstance(error, DamagedError):
                raise error.at(offset=self.at) from None
            raise DamagedError("the pickle is nested too deep", offset=start) from None

    def _take(self, size: int) -> bytes:
        offset = self.at
        if offset + size > len(self._data):
            raise DamagedError("the pickle is cut short")
        self.at = offset + size
        return bytes(self._data[offset : offset + size])

    def _number(self, size: int) -> int:
        return int.from_bytes(self._take(size), "little")

    def _line(self) -> str:
        line = bytearray()
        while (byte := self._take(1)) != b"\n":
            line += byte
            if len(line) > 1000:
                raise DamagedError("a name without an end")
        return line.decode()

    def _load(self) -> object:
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        while True:
            code = self._take(1)[0]
            if code == 0x2E:
                return self._stack.pop()
            step = _STEPS.get(code)
            if step is None:
                raise DamagedError(f"the pickle has an instruction {code:#x}, which no tensor needs")
            step(self)

    def _put(self, number: int) -> None:
        self._memo[number] = self._stack[-1]

    def _push(self, value: object) -> None:
        self._stack.append(value)

    def _to_mark(self) -> list[object]:
        mark = self._marks.pop()
        result = self._stack[mark:]
        del self._stack[mark:]
        return result

    def _tuple(self, size: int) -> None:
        if len(self._stack) < size:
            raise DamagedError("a tuple of nothing")
        self._stack[-size:] = [tuple(self._stack[-size:])]

    def _append(self, values: list[object]) -> None:
        into = self._stack[-1]
        if type(into) is not list:
            raise DamagedError("something is appended to what is no list")
        into.extend(values)

    def _set_items(self, pairs: list[object]) -> None:
        into = self._stack[-1]
        if type(into) is not dict or len(pairs) % 2:
            raise DamagedError("keys are set in what is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            set_key(into, key, value)

    def _global(self) -> None:
        module = self._line()
        self._push(find(module, self._line()))

    def _stack_global(self) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if not isinstance(module, str) or not isinstance(name, str):
            raise DamagedError("a name that is no text")
        self._push(find(module, name))

    def _reduce(self) -> None:
        arguments, maker = self._stack.pop(), self._stack.pop()
        if isinstance(maker, Class):
            self._push(Record(maker.name, arguments or None))
        elif isinstance(maker, Maker) and isinstance(arguments, tuple):
            self._push(maker.make(*arguments))
        else:
            raise DamagedError("the pickle calls what cannot be called")

    def _build(self) -> None:
        state = self._stack.pop()
        target = self._stack[-1]
        # Of other objects, attributes beside their content are of no use here.
        if isinstance(target, Record):
            target.state = state

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


def _text(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(self._take(self._number(size)).decode("utf-8", "surrogatepass"))


def _bytes(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(self._take(self._number(size)))


def _long(size: int) -> Callable[[Unpickler], None]:
    return lambda self: self._push(int.from_bytes(self._take(self._number(size)), "little", signed=True))


def _constant(value: object) -> Callable[[Unpickler], None]:
    return lambda self: self._push(value)


_STEPS: dict[int, Callable[[Unpickler], object]] = {
    ord(code): step
    for code, step in {
        "\x80": lambda self: self._take(1),
        "\x95": lambda self: self._take(8),
        "(": lambda self: self._marks.append(len(self._stack)),
        "0": lambda self: self._stack.pop(),
        "N": _constant(None), "\x88": _constant(True), "\x89": _constant(False), ")": _constant(()),
        "]": lambda self: self._push([]), "}": lambda self: self._push({}),
        "\x8f": lambda self: self._push([]),
        "K": lambda self: self._push(self._number(1)), "M": lambda self: self._push(self._number(2)),
        "J": lambda self: self._push(struct.unpack("<i", self._take(4))[0]),
        "G": lambda self: self._push(struct.unpack(">d", self._take(8))[0]),
        "\x8a": _long(1), "\x8b": _long(4),
        "\x8c": _text(1), "X": _text(4), "\x8d": _text(8), "U": _text(1), "T": _text(4),
        "C": _bytes(1), "B": _bytes(4), "\x8e": _bytes(8), "\x96": _bytes(8),
        "q": lambda self: self._put(self._number(1)), "r": lambda self: self._put(self._number(4)),
        "\x94": lambda self: self._put(len(self._memo)),
        "h": lambda self: self._push(self._memo[self._number(1)]),
        "j": lambda self: self._push(self._memo[self._number(4)]),
        "t": lambda self: self._push(tuple(self._to_mark())),
        "\x85": lambda self: self._tuple(1), "\x86": lambda self: self._tuple(2),
        "\x87": lambda self: self._tuple(3),
        "l": lambda self: self._push(self._to_mark()),
        "a": lambda self: self._append([self._stack.pop()]), "e": lambda self: self._append(self._to_mark()),
        "\x90": lambda self: self._append(self._to_mark()),
        "s": lambda self: self._set_items([self._stack.pop(-2), self._stack.pop()]),
        "u": lambda self: self._set_items(self._to_mark()),
        "c": Unpickler._global, "\x93": Unpickler._stack_global,
        "R": Unpickler._reduce, "\x81": Unpickler._reduce, "b": Unpickler._build, "Q": Unpickler._persistent,
    }.items()
}  # fmt: skip
