"""PyTorch, what torch.save and torch.jit.save write.

A ZIP archive with ``data.pkl``, which says what the tensors are, and one member ``data/N`` for each storage,
not compressed. Files of PyTorch before 1.6 have the same pickle, and the storages behind it, without archive.

The pickle is read by a reader of our own that knows tensors and containers, and runs nothing. Tensors are
named by the keys that lead to them, joined with dots: ``{"model": {"weight": …}}`` has ``model.weight``. A
view with gaps is made whole when it is read. In a TorchScript archive the tensors are the attributes of the
modules.

A ``.bin`` file is known by its content. A model in several files has a ``pytorch_model.bin.index.json``
beside them; open that one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..data.tensors import TENSORS
from ..errors import BatchplantError, DamagedError, Problem, SchemaError, UnsafeError, located
from ..schema.columns import U8
from ..storage import limits, open_source
from ..storage.zips import CHECKED, ZipMembers, ZipSpool
from .base.format import Capabilities, Format, Probe
from .base.tensors import BITS, Entry, TensorReader, TensorWriter, indexed, read_parts, size_of
from .base.unpickle import CONTAINERS, Class, Maker, Record, Unpickler, plain

# -- objects ------------------------------------------------------------------------------------------
# Objects of PyTorch pickles: stand-ins that record their arguments, and storages that pickles refer to.

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


# -- reader -------------------------------------------------------------------------------------------
# Reads what torch.save and torch.jit.save write: archives, and the older files without one.

INDEX = ".bin.index.json"
# The pickle of a number that files without an archive begin with, of any protocol that writes it so.
LEGACY = re.compile(rb"\x80[\x02-\x05](?:\x95.{8})?\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19\.", re.DOTALL)
MAX_LEGACY_BYTES = 24
# A pickle may name one container in many places, and the containers in it again; few do.
MOST_REPEATED, MOST_DEPTH, MOST_NAME = 100_000, 200, 10_000
# Values beside the tensors that `info` shows.
SHOWN_VALUES, SHOWN_TEXT = 50, 200
BARE = "tensor"


class Checkpoint:
    """The tensors of one file, and what else it says."""

    def __init__(self, path: str) -> None:
        self.source = open_source(path)
        self.values: dict[str, Any] = {}
        self.hidden_values = 0
        self.code: list[str] = []
        self.members: ZipMembers | None = None
        self._path = path
        with located(path=path):
            head = self.source.view(0, min(MAX_LEGACY_BYTES, self.source.size)).tobytes()
            legacy = LEGACY.match(head)
            archive = self._open_archive() if legacy is None else self._open_legacy(legacy.end())
            self.entries = list(self._entries(archive))

    def _open_archive(self) -> Any:
        self.members = ZipMembers(self.source)
        self.members.will_need(self.members)
        roots = [name.removesuffix("data.pkl") for name in self.members if name.endswith("/data.pkl")]
        roots = [root for root in roots if root.count("/") == 1]
        if not roots:
            raise DamagedError("there is no data.pkl in it, so torch.save has not written it")
        self._root = roots[0]
        order = f"{self._root}byteorder"
        if order in self.members and self.members.view(order).tobytes().strip() == b"big":
            raise SchemaError("it was written on a big-endian machine; load and save it with PyTorch first")
        prefix = f"{self._root}code/"
        code = (name for name in self.members if name.startswith(prefix))
        self.code = [name.removeprefix(prefix) for name in code if not name.endswith(".debug_pkl")]
        self.kind = "TorchScript" if f"{self._root}constants.pkl" in self.members else "archive"
        name = f"{self._root}data.pkl"
        offset = self.members.start(name) if self.members.stored(name) else 0
        try:
            return TensorUnpickler(self.members.view(name).data).load()
        except DamagedError as error:
            error.offset = None if error.offset is None else offset + error.offset
            raise

    def _open_legacy(self, start: int) -> Any:
        """A number, a version, facts of the machine, the object, the keys of the storages; then these."""
        pickles = TensorUnpickler(self.source.view(0, self.source.size).data, start)
        version, machine = pickles.load(), pickles.load()
        if version != 1001 or not isinstance(machine, dict):
            raise DamagedError(f"an unknown version {str(version)[:40]}")
        if machine.get("little_endian") is False:
            raise SchemaError("it was written on a big-endian machine; load and save it with PyTorch first")
        self.kind = "file without an archive, as of PyTorch before 1.6"
        content, keys = pickles.load(), pickles.load()
        self._places: dict[str, tuple[int, int]] = {}
        offset = pickles.at
        for key in keys if isinstance(keys, list) else ():
            storage = pickles.storages.get(str(key))
            if storage is None:
                raise DamagedError(f"no tensor has the storage {str(key)[:40]}", offset=offset)
            count = int.from_bytes(self.source.view(offset, 8).tobytes(), "little")
            size = size_of(storage.dtype or "uint8", (count,))
            self.source.view(offset + 8, size)
            self._places[str(key)] = offset + 8, size
            offset += 8 + size
        return content

    def _place(self, storage: Storage) -> tuple[int | None, int]:
        """Return the start of a storage (None if it is compressed) and its size."""
        if self.members is None:
            if storage.key not in self._places:
                raise DamagedError(f"there is no storage {storage.key[:40]}")
            return self._places[storage.key]
        name = f"{self._root}data/{storage.key}"
        start = self.members.start(name)
        return start if self.members.stored(name) else None, self.members.size(name)

    def _entries(self, content: Any) -> Iterator[Entry]:
        for name, value in self._walk(content):
            if isinstance(value, OtherTensor):
                raise SchemaError(
                    f"tensor {name[:200]!r} is {value.kind}, which is no plain run of values; "
                    "make it a plain tensor before saving"
                )
            if isinstance(value, TensorView):
                try:
                    yield self._entry(name, value)
                except BatchplantError as error:
                    error.message = f"tensor {name[:200]!r}: {error.message}"
                    raise
            elif value is None or isinstance(value, bool | int | float | str):
                if len(self.values) < SHOWN_VALUES:
                    self.values[name] = value[:SHOWN_TEXT] if isinstance(value, str) else value
                else:
                    self.hidden_values += 1

    def _walk(self, content: Any) -> Iterator[tuple[str, Any]]:
        """Everything in it that is no container, by the names that lead there, joined with dots."""
        stack = [("", iter([(BARE, content)]) if not _parts(content) else iter(_parts(content)), id(content))]
        inside, seen, repeated = {id(content)}, {id(content)}, 0
        while stack:
            prefix, parts, number = stack[-1]
            for key, value in parts:
                name = f"{prefix}{key}"
                if len(name) > MOST_NAME:
                    raise DamagedError(f"a name has {len(name)} letters")
                within = _parts(value)
                if not within:
                    if not isinstance(value, dict | list | tuple | Record):
                        yield name, value
                    continue
                if id(value) in inside or len(stack) >= MOST_DEPTH:
                    raise DamagedError(f"the object at {name[:200]!r} holds itself, or is nested too deep")
                repeated += len(within) if id(value) in seen else 0
                if repeated > MOST_REPEATED:
                    raise DamagedError(f"it repeats more than {MOST_REPEATED} parts of itself")
                stack.append((f"{name}.", iter(within), id(value)))
                inside.add(id(value))
                seen.add(id(value))
                break
            else:
                stack.pop()
                inside.discard(number)

    def _entry(self, name: str, view: TensorView) -> Entry:
        storage = view.storage
        size = size_of(view.dtype, view.shape)
        width = BITS[view.dtype] // 8
        start, stored_bytes = self._place(storage)
        stored_width = BITS[storage.dtype] // 8 if storage.dtype else 1
        first = storage.offset * stored_width + view.offset * width
        if len(view.stride) != len(view.shape) or view.offset < 0 or any(step < 0 for step in view.stride):
            raise DamagedError("its strides are impossible")
        steps = zip(view.shape, view.stride, strict=True)
        last = sum((axis - 1) * step for axis, step in steps)
        end = first + (last + 1) * width if size else first
        if end > stored_bytes:
            raise DamagedError(
                f"it needs {end} bytes of storage {storage.key[:40]}, which has {stored_bytes}"
            )
        # It may repeat the values of its storage.
        limits.check("it", size, stored_bytes)
        plain = size == 0 or _contiguous(view.shape, view.stride)
        if start is not None and plain:
            return Entry(name, view.dtype, view.shape, (self._path, start + first, size))
        return Entry(name, view.dtype, view.shape, functools.partial(self._load, view, first, size, plain))

    def _load(self, view: TensorView, first: int, size: int, plain: bool) -> U8:
        start, stored_bytes = self._place(view.storage)
        if start is None:
            assert self.members is not None
            data = self.members.view(f"{self._root}data/{view.storage.key}")
        else:
            data = self.source.view(start, stored_bytes)
        if plain:
            return data[first : first + size]
        width = BITS[view.dtype] // 8
        strides = [step * width for step in view.stride]
        values = np.lib.stride_tricks.as_strided(
            data[first:], (*view.shape, width), (*strides, 1), writeable=False
        )
        return np.ascontiguousarray(values).reshape(-1)


def _parts(value: Any) -> list[tuple[str, Any]]:
    if isinstance(value, Record):
        value = value.state
    if isinstance(value, dict):
        return [(key if isinstance(key, str) else str(key)[:200], member) for key, member in value.items()]
    if isinstance(value, list | tuple):
        return [(str(number), member) for number, member in enumerate(value)]
    return []


def _contiguous(shape: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    expected = 1
    for axis, step in zip(reversed(shape), reversed(stride), strict=True):
        if axis != 1 and step != expected:
            return False
        expected *= axis
    return True


class PytorchReader(TensorReader):
    """Reads what torch.save and torch.jit.save wrote: state dicts, nested ones too, and TorchScript.

    PyTorch is not needed, and no code of the file is ever run. A name of Python in the file that tensors do
    not need is an error that names it.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        if not path.endswith(INDEX):
            self._files = [Checkpoint(path)]
            self._accept(path, self._files[0].entries, [self._files[0].source])
            return
        self._files = []
        entries = read_parts(path, self._read_part)
        self._accept(path, entries, [file.source for file in self._files])

    def _read_part(self, path: str) -> list[Entry]:
        self._files.append(Checkpoint(path))
        return self._files[-1].entries

    def facts(self) -> dict[str, object]:
        facts = super().facts()
        if self._files:
            first = self._files[0]
            facts["kind"] = first.kind
            if len(self._files) > 1:
                facts["files"] = len(self._files)
            if first.code:
                facts["code (never run)"] = first.code[:SHOWN_VALUES]
            if first.values:
                facts["values"] = first.values | (
                    {"…": f"and {first.hidden_values:,} more"} if first.hidden_values else {}
                )
        return facts

    def own_checks(self) -> tuple[str, ...]:
        return (CHECKED,) if any(file.members is not None for file in self._files) else ()

    def _verify(self) -> Iterator[Problem]:
        """The archives keep a CRC-32 of every member."""
        for file in self._files:
            if file.members is not None:
                yield from file.members.problems(file.source.path)


# -- writer -------------------------------------------------------------------------------------------
# Writes a state dict as torch.save does; torch.load reads it with ``weights_only=True``.

ROOT = "archive/"
# Storages begin where PyTorch lets them begin.
ALIGN = 64
# Dtypes that have a storage of their own; the tensors of all others say their dtype.
TYPED = {dtype: name for name, dtype in STORAGES.items()}
UNTYPED = ("uint16", "uint32", "uint64", *(name for name in sorted(DTYPES) if name.startswith("float8")))


class PytorchWriter(TensorWriter):
    """Writes one state dict: an OrderedDict from names to tensors on the CPU. PyTorch is not needed."""

    dtypes = (*TYPED, *UNTYPED)

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        self._zip = ZipSpool(self._data, self.partial.spool("directory"))

    def _put(self, name: str, dtype: str, shape: tuple[int, ...], data: U8) -> int:
        return self._zip.add(f"{ROOT}data/{len(self.entries)}", data.data, align=ALIGN)

    def _finish(self) -> str:
        parts = [b"\x80\x02", _global("collections", "OrderedDict"), b")R("]
        for number, entry in enumerate(self.entries):
            parts.append(_text(entry.name) + _pickled_tensor(number, entry.dtype, entry.shape, entry.size))
        parts.append(b"u.")
        self._zip.add(f"{ROOT}data.pkl", b"".join(parts), align=ALIGN)
        self._zip.add(f"{ROOT}byteorder", b"little", align=ALIGN)
        self._zip.add(f"{ROOT}version", b"3\n", align=ALIGN)
        self._zip.finish()
        return "data"


def _pickled_tensor(number: int, dtype: str, shape: tuple[int, ...], size: int) -> bytes:
    typed = dtype in TYPED
    kind = _global("torch", TYPED[dtype]) if typed else _global("torch.storage", "UntypedStorage")
    count = math.prod(shape) if typed else size
    storage = b"(" + _text("storage") + kind + _text(str(number)) + _text("cpu") + _int(count) + b"tQ"
    steps = [math.prod(max(1, axis) for axis in shape[offset + 1 :]) for offset in range(len(shape))]
    rebuild = _global("torch._utils", "_rebuild_tensor_v2" if typed else "_rebuild_tensor_v3")
    # No gradient, no hooks.
    flags = b"\x89" + _global("collections", "OrderedDict") + b")R"
    metadata = b"" if typed else _global("torch", dtype)
    return b"".join([rebuild, b"(", storage, _int(0), _ints(shape), _ints(steps), flags, metadata, b"tR"])


def _global(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


def _text(text: str) -> bytes:
    data = text.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def _int(number: int) -> bytes:
    if number < 1 << 31:
        return b"J" + struct.pack("<i", number)
    return b"\x8a\x08" + struct.pack("<q", number)


def _ints(numbers: Any) -> bytes:
    return b"(" + b"".join(map(_int, numbers)) + b"t"


# -- format -------------------------------------------------------------------------------------------

__all__ = ["FORMAT"]


def sniff(probe: Probe) -> bool:
    """An archive with data.pkl in its one folder, or the number that older files begin with."""
    head = probe.head
    if probe.path.endswith(INDEX):
        return head.lstrip()[:1] == b"{"
    if LEGACY.match(head):
        return True
    if head[:4] != b"PK\3\4" or len(head) < 30:
        return False
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    if b"/" not in name:
        return False
    try:
        root = name.partition(b"/")[0].decode()
        return f"{root}/data.pkl" in ZipMembers(probe.source)
    except (BatchplantError, UnicodeDecodeError):
        return False


FORMAT = Format(
    name="pytorch",
    title="PyTorch",
    suffixes=(".pt", ".pth", ".ckpt", ".bin.index.json"),
    spec="https://docs.pytorch.org/docs/stable/notes/serialization.html",
    reader=PytorchReader,
    writer=PytorchWriter,
    sniff=sniff,
    only=TENSORS,
    parts=indexed(INDEX),
    notes="state dicts and TorchScript, read without PyTorch and without running anything; storages in place",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        checksums="tensor",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("PyTorch",),
    ),
)
