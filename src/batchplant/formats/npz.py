"""NPZ, several NumPy arrays in one ZIP file.

Every ``name.npy`` member is an array; arrays of equal length are fields, with samples along the first
axis. Members that are stored (not deflated) are used in the mapping; deflated ones are unpacked when they
are first read. Kinds that are no array of numbers are kept as several members, and the schema beside them:

- ``name.data.npy`` the bytes of all cells, ``name.offsets.npy`` where they end,
- ``name.shape.npy`` for raw images, ``name.valid.npy`` where cells may be missing,
- ``batchplant.json`` the schema. `numpy.load` reads all of it.

The fields of a structured array are columns; a single value is none, unless there are only such. Arrays that
differ in length are no columns either: the file is a model then, one sample for each array. Tensors of a
model are written as one array each; the archive's comment says that they are no columns.
"""

from __future__ import annotations

import functools
import json
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..codecs import npy
from ..codecs.cells import encode_samples
from ..codecs.infer import infer_field
from ..codecs.media.image_rules import ANY_ENCODED, ImageTarget
from ..data.arrays import Array, MemoryArray
from ..data.layout import Layout
from ..data.reader import Reader
from ..data.tensors import NUMPY
from ..data.writer import WriteOptions
from ..errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, UnsafeError, located
from ..schema import EVERY_KIND, Field, Image, Schema
from ..schema.columns import I64, U8, AnyArray, AnyDType, Column, Columns, Ragged, as_bytes, column_runs
from ..storage import NOTE_ERRORS, MappedSource, open_source, parse
from ..storage.spans import Spans
from ..storage.zips import CHECKED, ZipMembers, ZipSpool
from .base.format import Capabilities, Format, Probe
from .base.tensors import BITS, Entry, TensorReader, TensorWriter, is_tensors

SCHEMA = "batchplant.json"
# The members of cells of differing length.
PARTS = ("data", "offsets", "shape", "valid")
# The comment of an archive whose arrays are the tensors of a model.
MODEL = b"batchplant tensors"
# Arrays begin where NumPy lets them begin when it maps a file.
ALIGN = 64


class NpzReader(TensorReader):
    """Reads .npz files. ``fields``: only these arrays; ``allow_pickle``: object arrays too (can run code).

    ``as_tensors``: whether the arrays are the tensors of a model, one sample each, and not columns. By
    default they are where we have written them so, and where they differ in length.
    """

    def __init__(
        self, path: str, *, fields: Iterable[str] | None = None, allow_pickle: bool = False,
        as_tensors: bool | None = None,
    ) -> None:  # fmt: skip
        self.path = path
        self._source = open_source(path)
        self._allow_pickle = allow_pickle
        self._arrays: dict[str, Any] = {}
        self._checked: dict[str, Ragged] = {}
        self._members = ZipMembers(self._source)
        self._members.will_need(self._members)
        self._in_memory = isinstance(self._source, MappedSource)
        names = None if fields is None else tuple(fields)
        self._is_model = as_tensors is True or (as_tensors is None and self._members.comment == MODEL)
        with located(path=path):
            if self._is_model or (SCHEMA not in self._members and as_tensors is None and self._differ(names)):
                self._open_model(names)
            else:
                self._open_noted(names) if SCHEMA in self._members else self._open_plain(names)

    def _open_noted(self, selected: Sequence[str] | None) -> None:
        try:
            self.schema = Schema.from_json(parse(self._members.view(SCHEMA).tobytes()))
        except NOTE_ERRORS as error:
            raise DamagedError(f"the schema is damaged: {error}") from None
        if selected is not None:
            self.schema = self.schema.select(selected)
        lengths = {
            self._count(name, field.cell[1]) if field.cell is not None else self._count(f"{name}.offsets") - 1
            for name, field in self.schema.items()
        }
        if len(lengths) != 1 or min(lengths) < 0:
            raise DamagedError(f"the fields differ in length: {sorted(lengths)}")
        self.length = lengths.pop()

    def _array_names(self) -> list[str]:
        return [name.removesuffix(".npy") for name in self._members if name.endswith(".npy")]

    def _differ(self, selected: Sequence[str] | None) -> bool:
        """True if these are arrays of numbers that cannot be columns: they differ in length."""
        heads = [self._header(name) for name in (self._array_names() if selected is None else ())]
        lengths = {head.shape[0] for head in heads if head.shape}
        return len(lengths) > 1 and all(_dtype(head.dtype) for head in heads)

    def _open_model(self, selected: Sequence[str] | None) -> None:
        self._is_model = True
        entries = []
        for name in self._array_names() if selected is None else selected:
            try:
                entries.append(self._entry(name))
            except BatchplantError as error:
                raise error.at(field=name) from None
        self._accept(self.path, entries, [self._source])

    def _entry(self, name: str) -> Entry:
        head, member = self._header(name), f"{name}.npy"
        dtype = _dtype(head.dtype)
        if dtype is None:
            raise SchemaError(f"an array of {head.dtype} is no tensor")
        size = self._members.size(member) - head.start
        if size != head.size:
            raise DamagedError(f"{size} bytes of values, and the header promises {head.size}")
        plain = head.dtype.newbyteorder("<") == head.dtype and (not head.fortran or len(head.shape) < 2)
        if plain and self._members.stored(member):
            return Entry(name, dtype, head.shape, (self.path, self._members.start(member) + head.start, size))
        return Entry(name, dtype, head.shape, functools.partial(self._values, name))

    def _values(self, name: str) -> U8:
        array = npy.read(self._members.view(f"{name}.npy"))
        return as_bytes(array.astype(array.dtype.newbyteorder("<"), order="C", copy=False))

    def _header(self, name: str) -> npy.Header:
        return npy.parse_header(self._members.head(f"{name}.npy", npy.MAX_HEADER_BYTES + 12).tobytes())

    def _open_plain(self, selected: Sequence[str] | None) -> None:
        columns = npy.choose(self._array_names(), selected, self._header, self._loaded)
        fields = {}
        for name, array in columns.items():
            try:
                objects = array.dtype.hasobject
                fields[name] = infer_field(array) if objects else npy.field_of(array.dtype, array.shape[1:])
            except BatchplantError as error:
                raise error.at(field=name) from None
        if not fields:
            raise DamagedError("there are no arrays in it")
        lengths = {name: len(array) for name, array in columns.items()}
        if len(set(lengths.values())) > 1:
            message = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise SchemaError(f"the arrays differ in length ({message}); choose equal ones with fields=[…]")
        self._arrays |= columns
        self.schema = Schema(fields)
        self.length = next(iter(lengths.values()))

    def _count(self, name: str, shape: tuple[int, ...] = ()) -> int:
        array = self._loaded(name)
        if array.ndim == 0 or array.shape[1:] != shape:
            raise DamagedError(f"{name} has the shape {array.shape}")
        return len(array)

    def _loaded(self, name: str) -> Any:
        """An array, or the rows of one that lies in a file on a server."""
        if name not in self._arrays:
            member, header = f"{name}.npy", self._header(name)
            if header.dtype.hasobject:
                self._arrays[name] = self._unpickle(name)
            elif self._in_memory or header.dtype.names or not self._members.stored(member):
                self._arrays[name] = npy.view(header, self._members.view(member)[header.start :])
            else:
                start, size = self._members.start(member) + header.start, self._members.size(member)
                self._arrays[name] = npy.stored(self._source, header, start, size - header.start)
        return self._arrays[name]

    def _unpickle(self, name: str) -> AnyArray:
        if not self._allow_pickle:
            raise UnsafeError(
                "an object array is a pickle, and loading a pickle can run any code; "
                "open it with allow_pickle=True (--option allow_pickle=true) only if you trust its source",
                field=name,
            )
        try:
            with np.load(self._source.file(), allow_pickle=True) as arrays:
                return np.asarray(arrays[name])
        # Pickles run code, which raises what it likes.
        except Exception as error:
            raise DamagedError(f"the pickle does not load: {type(error).__name__}: {error}") from None

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if self._is_model:
            return super()._read(indices, fields)
        return Columns.read(fields, lambda name: self._read_field(name, indices), self.path)

    def _read_field(self, name: str, indices: I64) -> Column:
        field = self.schema[name]
        if SCHEMA in self._members and field.cell is None:
            return self._ragged(name).take(indices)
        array = self._loaded(name)
        if array.dtype.hasobject:
            return encode_samples(Schema({name: field}), [{name: array[row]} for row in indices])[name]
        rows = npy.rows(array, indices, field)
        if field.cell is not None and (
            isinstance(rows, Ragged) or (rows.dtype, rows.shape[1:]) != field.cell
        ):
            raise DamagedError(f"the array is not {field}")
        return rows

    def _ragged(self, name: str) -> Ragged:
        if name not in self._checked:
            parts = [part for part in PARTS if f"{name}.{part}.npy" in self._members]
            arrays = {part: self._loaded(f"{name}.{part}") for part in parts}
            self._checked[name] = npy.cells_of(arrays, self.length)
        return self._checked[name]

    def _array(self, field: str) -> Array | None:
        if self._is_model:
            return super()._array(field)
        array = self._loaded(field) if field in self.schema and self.schema[field].cell is not None else None
        return MemoryArray(self.path, field, array) if isinstance(array, np.ndarray) else None

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if self._is_model:
            return super()._spans(field, indices)
        noted = SCHEMA in self._members and self.schema[field].cell is None
        member = f"{field}.data.npy" if noted else f"{field}.npy"
        if member not in self._members or not self._members.stored(member):
            return None
        start, size = self._members.start(member), self._members.size(member)
        if noted:
            cells = self._ragged(field)
            sizes = column_runs(cells)[2][indices]
            shape = None if cells.shape is None else cells.shape[indices]
            inside = self._header(f"{field}.data").start
            return Spans([self._source], start + inside + cells.starts[indices], sizes, shape=shape)
        array, cell = self._loaded(field), self.schema[field].cell
        ordered = isinstance(array, npy.StoredRows) or array.flags.c_contiguous
        if cell is None or not ordered or not array.dtype.isnative:
            return None
        width = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        starts = start + size - array.nbytes + indices * width
        return Spans([self._source], starts, np.full(len(indices), width, dtype=np.int64))

    def _layout(self) -> Layout:
        return super()._layout() if self._is_model else Layout()

    def where(self, sample: int) -> str:
        return self.path

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return super().__iter__() if self._is_model else Reader.__iter__(self)

    def facts(self) -> dict[str, object]:
        packed = any(not self._members.stored(name) for name in self._members)
        facts = super().facts() if self._is_model else {}
        return facts | {"compressed": packed, "arrays": len(self._members)}

    def own_checks(self) -> tuple[str, ...]:
        return (CHECKED,)

    def _verify(self) -> Iterator[Problem]:
        """ZIP keeps a CRC-32 of every member."""
        return self._members.problems(self.path)

    def close(self) -> None:
        self._arrays.clear()
        self._checked.clear()
        self._source.close()


class NpzWriter(TensorWriter):
    """Writes .npz files. ``compress``: deflate the members (smaller, but no longer usable in place)."""

    dtypes = tuple(sorted(NUMPY))

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, compress: bool = False) -> None:
        self._compress = compress
        self._arrays: dict[str, tuple[AnyDType, tuple[int, ...]]] = {}
        self._is_model = is_tensors(schema)
        for name, field in () if self._is_model else schema.items():
            for member, dtype, shape in self._members_of(name, field):
                if member in self._arrays or "/" in member or "\\" in member:
                    raise OptionError(f"the name {member!r} cannot be a member's; rename the field")
                self._arrays[member] = (dtype, shape)
        super().__init__(path, schema, options)

    @staticmethod
    def _members_of(name: str, field: Field) -> Iterator[tuple[str, AnyDType, tuple[int, ...]]]:
        if field.cell is not None:
            yield name, *field.cell
            return
        yield f"{name}.data", np.dtype(np.uint8), ()
        yield f"{name}.offsets", np.dtype(np.int64), ()
        if isinstance(field, Image):
            yield f"{name}.shape", np.dtype(np.int32), (3,)
        if field.optional:
            yield f"{name}.valid", np.dtype(np.bool_), ()

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        return ImageTarget(ANY_ENCODED | {"raw"})

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return super()._unfit(columns) if self._is_model else {}

    def _check(self, name: str, dtype: str, shape: tuple[int, ...]) -> None:
        if "\0" in name or len(name.encode()) > 60_000:
            raise SchemaError(f"the name {name[:80]!r} cannot be a member's")

    def _put(self, name: str, dtype: str, shape: tuple[int, ...], data: U8) -> int:
        head = npy.header_bytes(np.dtype(dtype), shape)
        return self._zip.add(f"{name}.npy", head, data.data, align=ALIGN, compress=self._compress)

    def _begin(self, state: dict[str, Any] | None) -> None:
        if self._is_model:
            super()._begin(state)
            self._zip = ZipSpool(self._data, self.partial.spool("directory"))
            return
        self._spools = {name: self.partial.spool(f"{n}.array") for n, name in enumerate(self._arrays)}
        for name, spool in self._spools.items():
            if name.endswith(".offsets") and not spool.size and name not in self.schema:
                spool.write(np.zeros(1, dtype=np.int64))

    def _write(self, columns: Columns) -> None:
        if self._is_model:
            return super()._write(columns)
        for name, column in columns.items():
            if not isinstance(column, Ragged):
                self._spools[name].write(column)
                continue
            packed = column.take(slice(None))
            self._spools[f"{name}.offsets"].write(packed.offsets[1:] + self._spools[f"{name}.data"].size)
            self._spools[f"{name}.data"].write(packed.data)
            if f"{name}.shape" in self._spools:
                none = np.zeros((len(column), 3), dtype=np.int32)
                self._spools[f"{name}.shape"].write(none if column.shape is None else column.shape)
            if f"{name}.valid" in self._spools:
                every = np.ones(len(column), dtype=np.bool_)
                self._spools[f"{name}.valid"].write(every if column.valid is None else column.valid)

    def _finish(self) -> str:
        if self._is_model:
            self._zip.finish(MODEL)
            return "data"
        kind = zipfile.ZIP_DEFLATED if self._compress else zipfile.ZIP_STORED
        with zipfile.ZipFile(self.partial.folder / "archive", "w", kind) as archive:
            archive.writestr(_member(SCHEMA, kind), json.dumps(self.schema.to_json()))
            for name, (dtype, shape) in self._arrays.items():
                spool = self._spools[name]
                width = dtype.itemsize * int(np.prod(shape))
                count = spool.size // width if width else self.written
                with archive.open(_member(f"{name}.npy", kind), "w", force_zip64=True) as out:
                    out.write(npy.header_bytes(dtype, (count, *shape)))
                    for done in range(0, spool.size, 1 << 24):
                        out.write(spool.read_at(1 << 24, done))
        return "archive"


def _dtype(dtype: AnyDType) -> str | None:
    """Name of a tensor's dtype; None if it is not numeric."""
    name = dtype.newbyteorder("=").name
    return name if name in BITS and dtype.names is None else None


def _member(name: str, kind: int) -> zipfile.ZipInfo:
    """With a fixed date, so that equal data gives equal files."""
    member = zipfile.ZipInfo(name)
    member.compress_type = kind
    return member


def sniff(probe: Probe) -> bool:
    """A ZIP whose first member is an array or our schema."""
    head = probe.head
    if head[:4] != b"PK\3\4" or len(head) < 30:
        return False
    name = head[30 : 30 + int.from_bytes(head[26:28], "little")]
    return name.endswith(b".npy") or name == SCHEMA.encode()


CAN = Capabilities(
    random_access=True, memory_map=True, column_pruning=True, remote_ranges=True, keeps_schema=True,
    streaming_write=True, splittable=True, checksums="column", compression=("deflate",), compressed="column",
    ecosystem=("NumPy",),
)  # fmt: skip
FORMAT = Format(
    name="npz",
    title="NumPy archive",
    suffixes=(".npz",),
    spec="https://numpy.org/doc/stable/reference/generated/numpy.savez.html",
    reader=NpzReader,
    writer=NpzWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="stored members are used in place; object arrays only with allow_pickle",
    can=CAN,
)
