"""Datasets that are Python objects: what pickle and joblib share.

Loading such a file can run any code, so nothing is loaded before the caller has allowed it. What is a
dataset: a dict of columns (arrays, lists), a list of dicts, tuples or values, a DataFrame, an array, and, in
a file with several pickles, one sample or one list of samples after another.

We write a dict of columns: arrays of numbers for cells of one fixed size, lists of plain values for all
others (images as their encoded files, or as arrays of pixels). Before it stands our schema, as a text that
the pickle drops at once: everybody else loads the dict and nothing besides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pickle import PickleBuffer
from typing import Any, BinaryIO

import numpy as np

from ...codecs.cells import decode_cell
from ...codecs.media.image_rules import ANY_ENCODED, ImageTarget
from ...data.writer import Writer
from ...errors import BatchplantError, DamagedError, DataError, UnsafeError, located
from ...schema import Audio, Bytes, Field, Image, Schema, Text, Video
from ...schema.columns import AnyArray, Columns, Ragged, as_bytes
from ...storage import Spool, open_source
from .memory import ValuesReader
from .records import Note, note_of

__all__ = ["ObjectReader", "ObjectWriter"]

# PROTO 4, then a text with four bytes of length; behind the text POP.
NOTE_START, NOTE_END = b"\x80\x04X", b"0"
MAX_NOTE_BYTES = 64 << 20
# Rows, and bytes of their cells, in memory while a list is written.
BLOCK_ROWS, BLOCK_BYTES = 1024, 4 << 20


def pack_note(schema: Schema, samples: int) -> bytes:
    """The schema as the beginning of a pickle that has no other effect."""
    data = note_of(schema, samples)
    return NOTE_START + len(data).to_bytes(4, "little") + data + NOTE_END


def read_note(file: Any) -> Note | None:
    """The schema that a file of ours begins with, read without unpickling."""
    head = file.read(len(NOTE_START) + 4)
    size = int.from_bytes(head[len(NOTE_START) :], "little")
    if not head.startswith(NOTE_START) or size > MAX_NOTE_BYTES:
        return None
    data = file.read(size)
    return Note.from_bytes(data) if data.startswith(b'{"batchplant"') else None


class ObjectReader(ValuesReader):
    """A subclass calls ``_open`` in its ``__init__``, and implements ``_note`` and ``_load``."""

    def _note(self) -> Note | None:
        raise NotImplementedError

    def _load(self) -> list[Any]:
        """All objects in the file. Whatever this raises means that the file is damaged."""
        raise NotImplementedError

    def _open(self, path: str, allowed: bool, fields: Iterable[str] | None) -> None:
        self.path = path
        self._source = open_source(path)
        if allowed is not True:
            raise UnsafeError(
                f"loading a {self.format} file can run any code that somebody put into it; "
                "open it with allow_pickle=True (--option allow_pickle=true) only if you trust its source",
                path=path,
            )
        with located(path=path):
            note, objects = self._loaded()
            self._accept(objects, note) if note is not None else self._infer(objects, fields, {})
            if note is not None and fields is not None:
                self.schema = self.schema.select(fields)

    def _loaded(self) -> tuple[Note | None, list[Any]]:
        try:
            return self._note(), self._load()
        except BatchplantError:
            raise
        except UnicodeDecodeError as error:
            raise DamagedError(
                f"the pickle does not load: {error}; one of Python 2 may need encoding='latin1' or 'bytes'"
            ) from None
        # Loading runs code, which raises what it likes.
        except Exception as error:
            raise DamagedError(f"it does not load: {type(error).__name__}: {error}") from None

    def _accept(self, objects: list[Any], note: Note) -> None:
        """A file of ours: the columns have to be what its schema says."""
        self.kind, self.schema, self.beside = "a dict of columns", note.schema, []
        if len(objects) != 1 or not isinstance(objects[0], dict) or list(objects[0]) != list(note.schema):
            raise DamagedError("the fields are not those of its schema")
        self._values = objects[0]
        self.length = len(next(iter(self._values.values()), ())) if note.samples is None else note.samples
        for name, field in self.schema.items():
            values = self._values[name]
            if field.cell is None:
                good = type(values) is list
            else:
                dtype, shape = field.cell
                good = isinstance(values, np.ndarray) and (values.dtype, values.shape[1:]) == (dtype, shape)
            if not good or np.ndim(values[:0]) == 0 or len(values) != self.length:
                raise DamagedError(f"the column is not {self.length} × {field}", field=name)

    def close(self) -> None:
        super().close()
        self._source.close()


# -- writing -----------------------------------------------------------------------------------------------


class ObjectWriter(Writer):
    """Cells go into spools; a subclass implements ``_dump``, which pickles the whole once at the end."""

    def _dump(self, table: dict[str, Any], note: bytes, file: BinaryIO) -> None:
        """Write the note, then the pickle of the table."""
        raise NotImplementedError

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        return ImageTarget(ANY_ENCODED | {"raw"})

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        """Lists hold values, not cells: a cell that is none is found here, not at the end."""
        problems: dict[int, BatchplantError] = {}
        for name, field in self.schema.items():
            column = columns[name]
            if isinstance(column, Ragged) and not isinstance(field, Image | Bytes | Audio | Video):
                if isinstance(field, Text) and _is_text(column):
                    continue
                for row in range(len(column)):
                    try:
                        decode_cell(field, column, row)
                    except DataError as error:
                        problems.setdefault(row, error.at(field=name))
        return problems

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._data = {name: self.partial.spool(f"{offset}.data") for offset, name in enumerate(self.schema)}
        self._places = {
            name: self.partial.spool(f"{offset}.places")
            for offset, (name, field) in enumerate(self.schema.items())
            if field.cell is None
        }

    def _write(self, columns: Columns) -> None:
        for name, column in columns.items():
            data = self._data[name]
            if not isinstance(column, Ragged):
                data.write(column)
                continue
            # Of each cell: start, size (-1: missing), and the shape where it is raw pixels.
            places = np.zeros((len(column), 5), dtype=np.int64)
            packed = column.take(slice(None))
            places[:, 0] = data.size + packed.starts
            places[:, 1] = packed.sizes if packed.valid is None else np.where(packed.valid, packed.sizes, -1)
            if packed.shape is not None:
                places[:, 2:] = packed.shape
            data.write(packed.data)
            self._places[name].write(places)

    def _finish(self) -> str:
        table = {name: self._pickled(name, field) for name, field in self.schema.items()}
        with open(self.partial.folder / "object", "wb") as file:
            self._dump(table, pack_note(self.schema, self.written), file)
        return "object"

    def _pickled(self, name: str, field: Field) -> Any:
        if field.cell is None:
            return _Rows(field, self._data[name], self._places[name])
        dtype, shape = field.cell
        if not self._data[name].size:
            return np.empty((self.written, *shape), dtype)
        mapped = np.memmap(self._data[name].path, dtype, "r+", shape=(self.written, *shape))
        return mapped.view(np.ndarray)


class Inline:
    """An array that is pickled where it stands, by names that every NumPy has."""

    def __init__(self, array: AnyArray) -> None:
        self._array = array

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        # Dates have no buffer, bytes have.
        data = as_bytes(self._array)
        # A copy where the array could not be written to, for then the loaded one could not either.
        buffer = PickleBuffer(data.data) if protocol >= 5 and data.flags.writeable else bytearray(data)
        return np.ndarray, (self._array.shape, self._array.dtype.str, buffer)


class _Rows:
    """Pickles as a list, without ever being in memory whole."""

    def __init__(self, field: Field, data: Spool, places: Spool) -> None:
        self._field, self._data, self._places = field, data, places

    def __reduce__(self) -> tuple[Any, ...]:
        return list, (), None, iter(self)

    def __iter__(self) -> Iterator[Any]:
        offset = 0
        while offset < self._places.size:
            places = np.frombuffer(self._places.read_at(BLOCK_ROWS * 40, offset), dtype=np.int64).reshape(
                -1, 5
            )
            start = int(places[0, 0])
            ends = places[:, 0] + places[:, 1].clip(0)
            count = max(1, int(np.searchsorted(ends, start + BLOCK_BYTES, "right")))
            places, ends = places[:count], ends[:count]
            data = np.frombuffer(self._data.read_at(int(ends[-1]) - start, start), dtype=np.uint8)
            offsets = np.append(places[:, 0], ends[-1]) - start
            cells = Ragged(data, offsets, places[:, 2:].astype(np.int32), places[:, 1] >= 0)
            yield from self._values(cells)
            offset += count * 40

    def _values(self, cells: Ragged) -> Iterator[Any]:
        assert cells.valid is not None
        if not isinstance(self._field, Text | Bytes | Image | Audio | Video):
            yield from (self._decoded(cells, row) for row in range(len(cells)))
            return
        all_bytes, raw = cells.data.tobytes(), cells.raw.tolist()
        bounds = cells.offsets.tolist()
        for row, valid in enumerate(cells.valid.tolist()):
            data = all_bytes[bounds[row] : bounds[row + 1]]
            if not valid:
                yield None
            elif raw[row]:
                yield self._decoded(cells, row)
            else:
                yield data.decode() if isinstance(self._field, Text) else data

    def _decoded(self, cells: Ragged, row: int) -> Any:
        value = decode_cell(self._field, cells, row)
        return Inline(value) if isinstance(value, np.ndarray) else value


def _is_text(cells: Ragged) -> bool:
    """True if all cells are UTF-8, looked at together: none begins inside of a letter."""
    packed = cells.take(slice(None))
    first = packed.data[packed.starts[packed.sizes > 0]]
    try:
        packed.data.tobytes().decode()
    except UnicodeDecodeError:
        return False
    return not bool((first & 0xC0 == 0x80).any())
