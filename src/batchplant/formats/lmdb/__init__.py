"""LMDB, a memory-mapped tree of keys and values: a folder with data.mdb, or that file alone.

Reading goes without liblmdb, which trusts the pages that it maps: our own walker checks every number, finds
once where each value lies, and from then on values are used in the mapping. What a value is, ``codec`` says:
bytes, images, JSON, text, MessagePack, Caffe's Datum, pickles. The key is the field ``key``.

What we write: the samples in order under the keys ``0000000000``, ``0000000001``, …, each as a MessagePack
map (a single field ``data`` of bytes as it is), and the schema as JSON under the key ``__batchplant__``,
which is the last. Writing needs the package lmdb.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs import msgpack
from ...codecs.cells import encode_samples
from ...codecs.infer import infer_field, infer_image
from ...codecs.msgpack import Runs, gathered
from ...codecs.npy import pack_tensor
from ...data.keys import FormatKeys, same_cells
from ...data.writer import WriteOptions
from ...errors import (
    BatchplantError,
    BusyError,
    DamagedError,
    DecodeError,
    OptionError,
    Problem,
    UnsafeError,
    check_choice,
    needs,
)
from ...schema import EVERY_KIND, Bytes, Field, Image, Int, Json, Schema, Tensor, Text
from ...schema.columns import I64, U8, AnyArray, Column, Columns, Ragged, starts_of
from ...storage import Entry, MappedSource, checksums, open_source, side_car
from ...storage.index import FileGroup
from ...storage.spans import Spans
from ..base.format import Capabilities, Format, Probe
from ..base.records import GivenSchema, Note, RecordReader, RecordWriter, given_schema, note_of
from . import pages
from .pages import DATA, NOTE, is_meta

# -- values -------------------------------------------------------------------------------------------
# Kinds of values in environments that our writer did not make.


class Codec:
    """Turns values, which lie at ``starts`` of ``data``, into cells. Errors have the row as ``sample``."""

    name: str = ""
    fields: Mapping[str, Field]

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        raise NotImplementedError

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        """Locate the cells in ``data``; None if they are not contiguous."""
        return None


# -- datum --------------------------------------------------------------------------------------------
# Caffe's Datum: an image, encoded or as raw channels, or an array, and a label.

# The columns of what _native.datum_scan gives.
CHANNELS, HEIGHT, WIDTH, LABEL, ENCODED, START, SIZE, _, FLOATS = range(9)
# Longer sides make no image; the product of three stays far from overflowing.
MAX_TEXT_BYTES = 1 << 20


class DatumCodec(Codec):
    """Fields ``image`` and ``label``; ``data`` (channels, height, width) where it is no image."""

    name = "datum"

    def __init__(self, data: U8, starts: I64, sizes: I64, *, bgr: bool) -> None:
        self._bgr = bgr
        rows = _scan(data, starts, sizes)
        self._data: Field = self._image(rows, data) or self._tensor(rows)
        self._named = "image" if isinstance(self._data, Image) else "data"
        self.fields = {self._named: self._data, "label": Int("int32")}

    def _image(self, rows: I64, data: U8) -> Image | None:
        encoded = _is_encoded(rows)
        if (rows[:, FLOATS] > 0).any() or not np.isin(rows[~encoded, CHANNELS], (1, 3)).all():
            return None
        if encoded.any():
            field = infer_image(gathered(data, rows[encoded, START], rows[encoded, SIZE])) or Image()
            return field if encoded.all() else Image(mode=field.mode)
        gray = len(rows) > 0 and bool((rows[:, CHANNELS] == 1).all())
        return Image(mode="L" if gray else "RGB")

    def _tensor(self, rows: I64) -> Tensor:
        dtype = "float32" if (rows[:, FLOATS] > 0).any() else "uint8"
        shapes = np.unique(rows[:, [CHANNELS, HEIGHT, WIDTH]], axis=0)
        same = len(shapes) == 1 and bool(((shapes > 0) & (shapes <= MAX_TEXT_BYTES)).all())
        return Tensor(dtype, tuple(shapes[0].tolist()) if same else (None, None, None))

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        rows = _scan(data, starts, sizes)
        columns = Columns()
        for name in fields:
            if name == "label":
                columns[name] = rows[:, LABEL].astype(np.int32)
            elif isinstance(self._data, Image):
                columns[name] = self._read_images(rows, data)
            else:
                columns[name] = self._read_arrays(rows, data, starts, sizes)
        return columns

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        if field != "image":
            return None
        rows = _scan(data, starts, sizes)
        # Raw channels lie one after another, and pixels are wanted.
        if not _is_encoded(rows).all():
            return None
        return rows[:, START].copy(), rows[:, SIZE].copy(), None

    def _read_images(self, rows: I64, data: U8) -> Ragged:
        encoded = _is_encoded(rows)
        for row in np.flatnonzero(~encoded).tolist():
            shape = _shape(rows, row)
            if shape[0] not in (1, 3) or math.prod(shape) != rows[row, SIZE]:
                raise DecodeError(f"{rows[row, SIZE]} bytes are not an image of shape {shape}", sample=row)
        cells = gathered(data, rows[:, START], rows[:, SIZE])
        if encoded.all():
            return cells
        cells.shape = np.zeros((len(rows), 3), dtype=np.int32)
        for row in np.flatnonzero(~encoded).tolist():
            channels, height, width = _shape(rows, row)
            cell = cells.data[cells.offsets[row] : cells.offsets[row + 1]]
            planes = cell.reshape(channels, height, width).transpose(1, 2, 0)
            pixels = planes[:, :, ::-1] if self._bgr and channels == 3 else planes
            cell[:] = np.ascontiguousarray(pixels).reshape(-1)
            cells.shape[row] = height, width, channels
        return cells

    def _read_arrays(self, rows: I64, data: U8, starts: I64, sizes: I64) -> Column:
        assert isinstance(self._data, Tensor)
        arrays = []
        for row in range(len(rows)):
            shape = _shape(rows, row)
            if self._data.dtype == "float32":
                array: AnyArray = np.empty(int(rows[row, FLOATS]), dtype=np.float32)
                _native.datum_floats(data[starts[row] : starts[row] + sizes[row]], array)
            else:
                array = data[rows[row, START] : rows[row, START] + max(0, int(rows[row, SIZE]))]
            if array.size != math.prod(shape) or not self._data.fits(shape):
                raise DecodeError(f"{array.size} values of shape {shape} are not {self._data}", sample=row)
            arrays.append(array.reshape(shape))
        if self._data.cell is None:
            return Ragged.from_cells([pack_tensor(self._data, array) for array in arrays])
        dtype, shape = self._data.cell
        return np.array(arrays, dtype=dtype).reshape(len(arrays), *shape)


def _scan(data: U8, starts: I64, sizes: I64) -> I64:
    rows, failure = _native.datum_scan(data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes))
    if failure is not None:
        raise DecodeError(failure[1], sample=failure[0])
    return rows


def _is_encoded(rows: I64) -> npt.NDArray[np.bool_]:
    """An encoded image says so; some tools leave that out, and the shape too."""
    return np.asarray((rows[:, SIZE] >= 0) & ((rows[:, ENCODED] != 0) | (rows[:, CHANNELS] == 0)))


def _shape(rows: I64, row: int) -> tuple[int, ...]:
    shape = tuple(rows[row, [CHANNELS, HEIGHT, WIDTH]].tolist())
    if min(shape) < 0 or max(shape) > MAX_TEXT_BYTES:
        raise DecodeError(f"no image has the shape {shape}", sample=row)
    return shape


# -- values -------------------------------------------------------------------------------------------

# As many values are looked at to tell what they are.
PROBED_SAMPLES = 64
VALUE, IMAGE = "value", "image"


class WholeCodec(Codec):
    """A value is a cell."""

    def __init__(self, name: str, field: str, kind: Field) -> None:
        self.name = name
        self.fields = {field: kind}

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        return Columns((name, gathered(data, starts, sizes)) for name in fields)

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        return starts, sizes, None


class MsgpackCodec(Codec):
    """Maps of other writers, of which a schema says what they hold."""

    name = "msgpack"

    def __init__(self, schema: Schema | None) -> None:
        if schema is None:
            raise OptionError(
                "name the fields of the maps and their kinds: schema={…} (--option schema=NAME=KIND,…)"
            )
        self.fields = self._schema = schema

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        return msgpack.unpack(self._schema, fields, data, starts, sizes, foreign=True)

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        return msgpack.find(self._schema, field, data, starts, sizes, foreign=True)


class PickleCodec(Codec):
    """Pickled values: dicts, or one value of any kind."""

    name = "pickle"

    def __init__(self, allowed: bool, data: U8, starts: I64, sizes: I64) -> None:
        if not allowed:
            raise UnsafeError(
                "the values are pickles, and loading a pickle can run any code; open it with "
                "allow_pickle=True (--option allow_pickle=true) only if you trust its source"
            )
        values = self._load(data, starts, sizes)
        self._whole = not values or not all(
            isinstance(value, dict) and value and all(isinstance(name, str) for name in value)
            for value in values
        )
        if self._whole:
            values = [{VALUE: value} for value in values]
        names = dict.fromkeys([name for value in values for name in value] or [VALUE])
        fields = ((name, infer_field([value.get(name) for value in values])) for name in names)
        self._schema = Schema(fields)
        self.fields = self._schema

    def _load(self, data: U8, starts: I64, sizes: I64) -> list[Any]:
        result = []
        for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            try:
                result.append(pickle.loads(data[start : start + size].tobytes()))
            # A pickle runs code, which raises what it likes.
            except Exception as error:
                reason = f"the pickle does not load: {type(error).__name__}: {error}"
                raise DecodeError(reason, sample=row) from None
        return result

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        schema = self._schema.select(fields)
        samples = []
        for row, value in enumerate(self._load(data, starts, sizes)):
            value = {VALUE: value} if self._whole else value
            if not isinstance(value, dict):
                raise DecodeError(f"the pickle is a {type(value).__name__}, not a dict", sample=row)
            samples.append({name: value.get(name) for name in schema})
        try:
            return encode_samples(schema, samples)
        except BatchplantError as error:
            raise DecodeError(error.message, sample=error.sample, field=error.field) from None


def codec_of(
    name: str, data: U8, starts: I64, sizes: I64, schema: Schema | None, *, allow_pickle: bool, bgr: bool
) -> Codec:
    """The codec of this name; the values are some of those that it will read."""
    image = infer_image(gathered(data, starts, sizes)) if name in ("auto", "image") else None
    makers: dict[str, Callable[[], Codec]] = {
        "auto": lambda: makers["bytes" if image is None else "image"](),
        "bytes": lambda: WholeCodec("bytes", VALUE, Bytes()),
        "image": lambda: WholeCodec("image", IMAGE, image or Image()),
        "json": lambda: WholeCodec("json", VALUE, Json()),
        "text": lambda: WholeCodec("text", VALUE, Text()),
        "msgpack": lambda: MsgpackCodec(schema),
        "datum": lambda: DatumCodec(data, starts, sizes, bgr=bgr),
        "pickle": lambda: PickleCodec(allow_pickle, data, starts, sizes),
    }
    check_choice("codec", name, makers)
    if schema is not None and name != "msgpack":
        raise OptionError("a schema can be given for values of the codec msgpack only")
    return makers[name]()


# -- reader -------------------------------------------------------------------------------------------

KEY = "key"
# So many transactions leave the pages alone that were in use before them.
INTACT = 2


class LmdbReader(RecordReader):
    """Reads LMDB environments. ``codec``: what values are: ``bytes``, ``image``, ``json``, ``text``,
    ``msgpack``, ``datum`` (Caffe), ``pickle`` (only with ``allow_pickle``, for it can run code), or ``auto``:
    our own samples, images or bytes; ``db``: a named database; ``schema``: the fields of msgpack values;
    ``bgr``: whether raw pixels of a Datum have blue first, as Caffe's tools write them; ``index``: auto,
    memory, write or rebuild."""

    def __init__(
        self,
        path: str,
        *,
        codec: str = "auto",
        db: str | None = None,
        schema: GivenSchema | str | None = None,
        allow_pickle: bool = False,
        bgr: bool = True,
        index: str = "auto",
    ) -> None:
        self.path = path
        self.source, loaded = pages.open_environment(path, db, index)
        self._facts = loaded.facts
        self._db = db
        self._starts, self._sizes = loaded.arrays["starts"], loaded.arrays["sizes"]
        self._key_starts, self._key_sizes = loaded.arrays["key_starts"], loaded.arrays["key_sizes"]
        self.length = len(self._starts)
        self._codec: Codec | None = None
        try:
            note = self._note() if codec == "auto" else None
            if note is not None:
                self.length -= 1
                self._set_schema(path, given=schema, stored=note.schema)
                self.noted = note.samples
                return
            data, positions, sizes, _ = self._found(self._probed_rows(PROBED_SAMPLES), check=False)
            declared = None if schema is None else given_schema(schema)
            self._codec = codec_of(
                codec, data, positions, sizes, declared, allow_pickle=allow_pickle, bgr=bgr
            )
        except BatchplantError as error:
            # A row of those that were looked at is no sample's number.
            error.sample = None
            raise error.at(path=path) from None
        self.raw = False
        # A field of that name in the values themselves wins.
        self.schema = Schema({KEY: self._keys().kind, **self._codec.fields})

    def _fingerprint_source(self, fields: Sequence[str]) -> FileGroup | None:
        """The transaction: the cells of one stay what they are."""
        if not self.source.tag:
            return None
        file = Entry(self.source.path, self.source.size, self.source.tag)
        state = {"transaction": self._facts["transaction"]}
        return FileGroup(self.path, [file], state=state, options=self._init_args[1])

    def _note(self) -> Note | None:
        if not self.length:
            return None
        last = self._key_cells(np.array([self.length - 1]))[0]
        if last is None or last.tobytes() != pages.NOTE:
            return None
        starts, sizes = self._runs(np.array([self.length - 1]))
        return Note.from_bytes(self.source.view(int(starts[0]), int(sizes[0])).tobytes())

    @property
    def is_ours(self) -> bool:
        """True if our writer made it: keys are the numbers of the samples."""
        return self._codec is None and self._db is None

    def _checked(self, indices: I64, starts: I64, sizes: I64) -> tuple[I64, I64]:
        if isinstance(self.source, MappedSource):
            data = self.source.view(0, self.source.size)
            if pages.transaction_of(data, self._facts["page_size"]) > self._facts["transaction"] + INTACT:
                message = "it has been written to several times since it was opened; use refresh()"
                raise BusyError(message, path=self.path)
        return self._inside(indices, starts, sizes, "the entry lies outside of the file")

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        return self._checked(indices, self._starts[indices], self._sizes[indices])

    def _key_runs(self, indices: I64) -> tuple[I64, I64]:
        return self._checked(indices, self._key_starts[indices], self._key_sizes[indices].astype(np.int64))

    def _key_cells(self, indices: I64) -> Ragged:
        return self.source.gather(*self._key_runs(indices))

    def _keys(self) -> FormatKeys:
        kind = Text() if self._facts.get("printable") else Bytes()
        # An index of earlier does not say whether they are ordered.
        return FormatKeys(kind, self._key_cells, find=self._find_keys if self._facts.get("ordered") else None)

    def _find_keys(self, keys: Ragged) -> I64:
        """Search as LMDB itself does: the entries stand in the order of their keys."""
        low, high = np.zeros(len(keys), dtype=np.int64), np.full(len(keys), self.length, dtype=np.int64)
        while len(open_rows := np.flatnonzero(low < high)):
            middle = (low[open_rows] + high[open_rows]) // 2
            before = pages.before(self._key_cells(middle), keys.take(open_rows))
            low[open_rows[before]], high[open_rows[~before]] = middle[before] + 1, middle[~before]
        matches = np.flatnonzero(low < self.length)
        matches = matches[same_cells(self._key_cells(low[matches]), keys.take(matches))]
        result = np.full(len(keys), -1, dtype=np.int64)
        result[matches] = low[matches]
        return result

    def _is_key(self, field: str) -> bool:
        return self._codec is not None and field == KEY and KEY not in self._codec.fields

    def _unpack(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        if self._codec is None:
            return super()._unpack(fields, data, starts, sizes)
        return self._codec.read(fields, data, starts, sizes)

    def _find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        if self._codec is None:
            return super()._find(field, data, starts, sizes)
        return self._codec.find(field, data, starts, sizes)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        values = [name for name in fields if not self._is_key(name)]
        columns = super()._read(indices, values) if values else Columns()
        return Columns(
            (name, self._key_cells(indices) if self._is_key(name) else columns[name]) for name in fields
        )

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if self._is_key(field):
            return Spans([self.source], *self._key_runs(indices))
        return super()._spans(field, indices)

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        if pages.read_meta(self.source).transaction != self._facts["transaction"]:
            yield Problem("it has been written to since it was opened; open it again", self.path)
            return
        arrays, _ = pages.scan(self.source, lambda done: None, db=self._db)
        stored = {"starts": self._starts, "sizes": self._sizes, "key_starts": self._key_starts}
        if problems := self._other_index(arrays, stored):
            yield from problems
        elif self._codec is None:
            yield from self._check_numbers()

    def _check_numbers(self) -> Iterator[Problem]:
        """Our own keys count the samples."""
        step = 1 << 16
        for first in range(0, self.length, step):
            numbers = np.arange(first, min(first + step, self.length))
            keys = self._key_cells(numbers)
            for number, key in zip(numbers.tolist(), keys, strict=True):
                assert key is not None
                if key.tobytes() != b"%010d" % number:
                    yield Problem(f"its key is {key.tobytes()!r}", self.path, sample=number)
                    return

    def facts(self) -> dict[str, object]:
        kind = "samples" if self._codec is None else self._codec.name
        facts = {"values": kind, "page size": self._facts.get("page_size"), "db": self._db}
        return {name: value for name, value in facts.items() if value is not None}


# -- writer -------------------------------------------------------------------------------------------

FOLDER = "environment"
MAP_BYTES = 64 << 20
PAGE = 4096


def _library() -> ModuleType:
    with needs("writing LMDB needs the package lmdb", "lmdb"):
        import lmdb
    return lmdb


class LmdbWriter(RecordWriter):
    """Writes LMDB environments. ``subdir``: a folder with data.mdb in it; if not, that file alone;
    ``map_size``: how large the map is in the beginning, in bytes; it grows by itself."""

    side_cars: ClassVar[tuple[str, ...]] = ()
    schema_inside: ClassVar[bool] = True
    appends: ClassVar[bool] = True
    # One transaction holds so much in memory.
    transaction_bytes: ClassVar[int] = 16 << 20

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        subdir: bool = True,
        map_size: int = MAP_BYTES,
    ) -> None:
        # More than that no machine maps.
        if not 1 <= map_size < 1 << 47:
            raise OptionError(f"map_size is a number of bytes, not {map_size}", path=path)
        self._lmdb = _library()
        self._subdir = subdir
        self._map_size = max(map_size, 1 << 20)
        self._env: Any = None
        super().__init__(path, schema, options)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._records: list[tuple[int, Ragged]] = []
        self._held = 0
        if self.base is not None:
            assert isinstance(self.base, LmdbReader)
            self._begin_behind(self.base)
            return
        folder = self.partial.folder / FOLDER
        if state is not None and not (folder / DATA).is_file():
            raise DamagedError(
                "the part that was written earlier is gone; start over, without resume", path=self.path
            )
        folder.mkdir(exist_ok=True)
        size = (folder / DATA).stat().st_size if state is not None else 0
        self._map_size = max(self._map_size, 2 * size)
        # The hidden folder is locked, and synced before it gets its name.
        with self._disk():
            self._env = self._lmdb.open(
                str(folder), map_size=self._map_size, lock=False, sync=False, metasync=False, max_dbs=0
            )
        if state is not None:
            self._cut()

    def _begin_behind(self, base: LmdbReader) -> None:
        """New records wait in the hidden folder, to be put in with one transaction."""
        if not base.is_ours:
            raise self.cannot_append(
                "only an environment that batchplant has written can be: keys are numbers"
            )
        if self._has_checksums:
            name = side_car(self.path, checksums.SIDE_CAR).name
            raise self.cannot_append(f"LMDB commits by itself, and {name} would not fit any more; remove it")
        self._waiting_data, self._waiting_sizes = self.partial.spool("data"), self.partial.spool("sizes")

    def _append_all(self) -> None:
        """All new records in one transaction, which LMDB makes whole: a kill leaves the old state."""
        source = open_source(str(self._waiting_data.path)) if self._waiting_data.size else None
        data = memoryview(b"") if source is None else source.view(0, source.size).data
        sizes = np.frombuffer(self._waiting_sizes.read_at(self._waiting_sizes.size, 0), dtype=np.int64)
        ends = starts_of(sizes).tolist()
        subdir = os.path.isdir(self.path)
        file = os.path.join(self.path, DATA) if subdir else self.path
        # Every record may take a page of its own beside its bytes.
        grown = 2 * len(data) + PAGE * len(sizes)
        self._map_size = max(self._map_size, os.path.getsize(file) + grown + MAP_BYTES)
        with self._disk():
            self._env = self._lmdb.open(self.path, map_size=self._map_size, subdir=subdir, max_dbs=0)
        items: Any = [
            (_key(self.before + row), data[ends[row] : ends[row + 1]]) for row in range(len(ends) - 1)
        ]
        note = note_of(self.schema, self.before + self.written)
        # The note is behind all others, and has to go for them to be put there.
        self._put([*items, (NOTE, note)], without=NOTE)
        self._close()

    def _cut(self) -> None:
        with self._disk(), self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
            while cursor.set_range(_key(self.written)):
                cursor.delete()

    def _write_records(self, records: Ragged) -> None:
        if self.base is not None:
            packed = records.take(slice(None))
            self._waiting_data.write(packed.data)
            self._waiting_sizes.write(packed.sizes.astype(np.int64))
            return
        self._records.append((self.written, records))
        self._held += int(records.offsets[-1] - records.offsets[0])
        if self._held >= self.transaction_bytes:
            self._flush()

    def _flush(self) -> None:
        items = []
        for first, records in self._records:
            data, offsets = records.data.data, records.offsets.tolist()
            items += [
                (_key(first + row), data[offsets[row] : offsets[row + 1]]) for row in range(len(records))
            ]
        self._put(items)
        self._records, self._held = [], 0

    def _put(self, items: list[tuple[bytes, Any]], without: bytes | None = None) -> None:
        """All of them in one transaction, and one away; the map is doubled until they fit."""
        while items:
            try:
                with self._disk(), self._env.begin(write=True) as transaction, transaction.cursor() as cursor:
                    if without is not None:
                        transaction.delete(without)
                    cursor.putmulti(items, append=True)
                return
            except self._lmdb.MapFullError:
                self._map_size *= 2
                self._env.set_mapsize(self._map_size)

    @contextlib.contextmanager
    def _disk(self) -> Iterator[None]:
        """Errors of the library as those of a disk, which they are; but not that its map is full."""
        try:
            yield
        except self._lmdb.MapFullError:
            raise
        except self._lmdb.Error as error:
            raise OSError(errno.EIO, str(error), self.path) from None

    def _state(self) -> dict[str, Any]:
        self._flush()
        return {}

    def _finish(self) -> str | None:
        if self.base is not None:
            if self.written:
                self._append_all()
            return None
        self._flush()
        self._put([(NOTE, note_of(self.schema, self.written))])
        with self._disk():
            self._env.sync(True)
        self._close()
        return FOLDER if self._subdir else f"{FOLDER}/{DATA}"

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def _stop(self) -> None:
        super()._stop()
        self._close()


def _key(number: int) -> bytes:
    return b"%010d" % number


# -- format -------------------------------------------------------------------------------------------


def sniff(probe: Probe) -> bool:
    """A folder with data.mdb, or a file that begins with a meta page."""
    return DATA in probe.names if probe.folder else is_meta(probe.head)


FORMAT = Format(
    name="lmdb",
    title="LMDB",
    suffixes=(".lmdb", ".mdb"),
    spec="http://www.lmdb.tech/doc/",
    reader=LmdbReader,
    writer=LmdbWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="lmdb",
    notes="read in place and without the library, which only writing needs; pickles only with allow_pickle",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("lmdb", "Caffe"),
    ),
)
