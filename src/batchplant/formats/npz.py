"""NPZ, several NumPy arrays in one ZIP file.

Every ``name.npy`` member is an array; arrays of equal length are fields, with samples along the first
axis. Members that are stored (not deflated) are used in the mapping; deflated ones are unpacked when they
are first read. Kinds that are no array of numbers are kept as several members, and the schema beside them:

- ``name.data.npy`` the bytes of all cells, ``name.offsets.npy`` where they end,
- ``name.shape.npy`` for raw pictures, ``name.valid.npy`` where cells may be missing,
- ``batchplant.json`` the schema. `numpy.load` reads all of it.
"""

from __future__ import annotations

import json
import struct
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs import npy
from ..codecs.cells import encode_samples
from ..codecs.image_rules import ANY_ENCODED, ImageTarget
from ..codecs.infer import infer_field
from ..columns import I64, U8, Column, Columns, Ragged, Spans, column_runs
from ..errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, UnsafeError
from ..format import Format, Probe
from ..reader import Reader
from ..schema import Audio, Bool, Bytes, Field, Float, Image, Int, Json, Schema, Tensor, Text, Video
from ..storage import open_source
from ..writer import WriteOptions, Writer

SCHEMA = "batchplant.json"
# Deflate cannot shrink more than this; a member that claims so is lying.
DEFLATE_MOST = 1100
ZIP_ERRORS = (
    zipfile.BadZipFile, NotImplementedError, struct.error, zlib.error, ValueError, EOFError, OverflowError,
    RuntimeError, OSError, IndexError,
)  # fmt: skip


class NpzReader(Reader):
    """Reads .npz files. ``fields``: only these arrays; ``allow_pickle``: object arrays too (can run code)."""

    def __init__(self, path: str, *, fields: Iterable[str] | None = None, allow_pickle: bool = False) -> None:
        self.path = path
        self._source = open_source(path)
        self._allow_pickle = allow_pickle
        self._arrays: dict[str, npt.NDArray[Any]] = {}
        self._checked: dict[str, Ragged] = {}
        try:
            with zipfile.ZipFile(self._source.file()) as archive:
                self._members = {one.filename: one for one in archive.infolist()}
        except BatchplantError:
            raise
        except ZIP_ERRORS as error:
            raise DamagedError(f"not a ZIP file: {error}", path=path) from None
        wanted = None if fields is None else tuple(fields)
        try:
            self._open_noted(wanted) if SCHEMA in self._members else self._open_plain(wanted)
        except BatchplantError as error:
            raise error.at(path=path) from None

    def _open_noted(self, wanted: Sequence[str] | None) -> None:
        try:
            self.schema = Schema.from_json(json.loads(self._member(SCHEMA).tobytes()))
        except (ValueError, RecursionError) as error:
            raise DamagedError(f"the schema is damaged: {error}") from None
        if wanted is not None:
            self.schema = self.schema.select(wanted)
        lengths = {
            self._count(name, field.cell[1]) if field.cell is not None else self._count(f"{name}.offsets") - 1
            for name, field in self.schema.items()
        }
        if len(lengths) != 1 or min(lengths) < 0:
            raise DamagedError(f"the fields differ in length: {sorted(lengths)}")
        self.length = lengths.pop()

    def _open_plain(self, wanted: Sequence[str] | None) -> None:
        names = [name.removesuffix(".npy") for name in self._members if name.endswith(".npy")]
        names = names if wanted is None else list(wanted)
        fields, lengths = {}, {}
        for name in names:
            try:
                array = self._array(name)
                if array.ndim == 0:
                    raise SchemaError("a single value has no samples")
                objects = array.dtype.hasobject
                fields[name] = infer_field(array) if objects else npy.field_of(array.dtype, array.shape[1:])
            except BatchplantError as error:
                raise error.at(field=name) from None
            lengths[name] = len(array)
        if not fields:
            raise DamagedError("there are no arrays in it")
        if len(set(lengths.values())) > 1:
            said = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise SchemaError(f"the arrays differ in length ({said}); choose equal ones with fields=[…]")
        self.schema = Schema(fields)
        self.length = next(iter(lengths.values()))

    def _count(self, name: str, shape: tuple[int, ...] = ()) -> int:
        array = self._array(name)
        if array.ndim == 0 or array.shape[1:] != shape:
            raise DamagedError(f"{name} has the shape {array.shape}")
        return len(array)

    def _start(self, member: zipfile.ZipInfo) -> int:
        """Where the bytes of a member begin, behind its local header."""
        head = self._source.view(member.header_offset, 30).tobytes()
        if head[:4] != b"PK\3\4" or member.flag_bits & 1:
            raise DamagedError(
                f"member {member.filename} is damaged or encrypted", offset=member.header_offset
            )
        return int(member.header_offset + 30 + sum(struct.unpack("<HH", head[26:30])))

    def _member(self, name: str) -> U8:
        """The bytes of a member, mapped where it is stored."""
        if name not in self._members:
            raise DamagedError(f"there is no member {name}")
        member = self._members[name]
        start = self._start(member)
        data = self._source.view(start, member.compress_size)
        if member.compress_type == zipfile.ZIP_STORED:
            return data
        if member.compress_type != zipfile.ZIP_DEFLATED:
            raise DamagedError(f"member {name} is compressed in an unknown way", offset=start)
        if member.file_size > DEFLATE_MOST * member.compress_size + 1024:
            raise DamagedError(f"member {name} claims {member.file_size} bytes", offset=start)
        try:
            # A bound of 0 would be none.
            unpacked = zlib.decompressobj(-15).decompress(data.data, max(1, member.file_size))
        except zlib.error as error:
            raise DamagedError(f"member {name}: {error}", offset=start) from None
        if len(unpacked) != member.file_size:
            raise DamagedError(f"member {name} is cut short", offset=start)
        return np.frombuffer(unpacked, dtype=np.uint8)

    def _array(self, name: str) -> npt.NDArray[Any]:
        if name not in self._arrays:
            data = self._member(f"{name}.npy")
            header = npy.parse_header(data[:16384].tobytes())
            if header.dtype.hasobject:
                self._arrays[name] = self._unpickle(name)
            else:
                self._arrays[name] = npy.view(header, data[header.start :])
        return self._arrays[name]

    def _unpickle(self, name: str) -> npt.NDArray[Any]:
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
        found = Columns()
        for name in fields:
            try:
                found[name] = self._read_field(name, indices)
            except BatchplantError as error:
                raise error.at(path=self.path, field=name) from None
        return found

    def _read_field(self, name: str, indices: I64) -> Column:
        field = self.schema[name]
        if SCHEMA in self._members and field.cell is None:
            return self._ragged(name).take(indices)
        array = self._array(name)
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
            self._checked[name] = self._check_ragged(name)
        return self._checked[name]

    def _check_ragged(self, name: str) -> Ragged:
        data, offsets = self._array(f"{name}.data"), self._array(f"{name}.offsets")
        shape = self._array(f"{name}.shape") if f"{name}.shape.npy" in self._members else None
        valid = self._array(f"{name}.valid") if f"{name}.valid.npy" in self._members else None
        good = data.dtype == np.uint8 and data.ndim == 1 and offsets.dtype == np.int64 and offsets.ndim == 1
        good = good and len(offsets) == self.length + 1 and offsets[0] == 0 and offsets[-1] == len(data)
        good = good and bool((np.diff(offsets) >= 0).all())
        good = good and (shape is None or (shape.dtype == np.int32 and shape.shape == (self.length, 3)))
        good = good and (shape is None or bool(((shape >= 0) & (shape[:, 2:] <= 4)).all()))
        good = good and (valid is None or (valid.dtype == np.bool_ and valid.shape == (self.length,)))
        if not good:
            raise DamagedError("its data, offsets, shape and valid members do not fit together")
        return Ragged(data, offsets, shape, valid)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        noted = SCHEMA in self._members and self.schema[field].cell is None
        member = self._members.get(f"{field}.data.npy" if noted else f"{field}.npy")
        if member is None or member.compress_type != zipfile.ZIP_STORED:
            return None
        start = self._start(member)
        if noted:
            cells = self._ragged(field)
            sizes = column_runs(cells)[2][indices]
            shape = None if cells.shape is None else cells.shape[indices]
            inside = npy.parse_header(
                self._source.view(start, min(member.compress_size, 16384)).tobytes()
            ).start
            return Spans([self.path], start + inside + cells.starts[indices], sizes, shape=shape)
        array, cell = self._array(field), self.schema[field].cell
        if cell is None or not array.flags.c_contiguous or not array.dtype.isnative:
            return None
        size = array.dtype.itemsize * int(np.prod(array.shape[1:]))
        inside = member.compress_size - array.nbytes
        return Spans(
            [self.path], start + inside + indices * size, np.full(len(indices), size, dtype=np.int64)
        )

    def facts(self) -> dict[str, Any]:
        kinds = {one.compress_type for one in self._members.values()}
        return {"compressed": zipfile.ZIP_DEFLATED in kinds, "arrays": len(self._members)}

    def _verify(self) -> Iterator[Problem]:
        """ZIP keeps a CRC-32 of every member."""
        for name, member in self._members.items():
            try:
                if zlib.crc32(self._member(name).data) != member.CRC:
                    yield Problem(f"the checksum of {name} is wrong", self.path, offset=member.header_offset)
            except DamagedError as error:
                yield Problem.of(error.at(path=self.path))

    def close(self) -> None:
        self._arrays.clear()
        self._checked.clear()
        self._source.close()


class NpzWriter(Writer):
    """Writes .npz files. ``compress``: deflate the members (smaller, but no longer usable in place)."""

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, compress: bool = False) -> None:
        self._compress = compress
        self._arrays: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}
        for name, field in schema.items():
            for member, dtype, shape in self._members_of(name, field):
                if member in self._arrays or "/" in member or "\\" in member:
                    raise OptionError(f"the name {member!r} cannot be a member's; rename the field")
                self._arrays[member] = (dtype, shape)
        super().__init__(path, schema, options)

    @staticmethod
    def _members_of(name: str, field: Field) -> Iterator[tuple[str, np.dtype[Any], tuple[int, ...]]]:
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

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._spools = {name: self.partial.spool(f"{n}.array") for n, name in enumerate(self._arrays)}
        for name, spool in self._spools.items():
            if name.endswith(".offsets") and not spool.size and name not in self.schema:
                spool.write(np.zeros(1, dtype=np.int64))

    def _write(self, columns: Columns) -> None:
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


FORMAT = Format(
    name="npz",
    title="NumPy archive",
    suffixes=(".npz",),
    spec="https://numpy.org/doc/stable/reference/generated/numpy.savez.html",
    reader=NpzReader,
    writer=NpzWriter,
    sniff=sniff,
    kinds=(Int, Float, Bool, Bytes, Text, Json, Tensor, Image, Audio, Video),
    optional=True,
    notes="stored members are used in place; object arrays only with allow_pickle",
)
