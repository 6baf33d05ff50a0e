"""Apache Arrow IPC and Feather, columns as they lie in memory.

A file holds record batches of some thousand samples. In one that is not compressed, numbers, tensors, text,
bytes and images are used where they lie, without decoding anything; of compressed batches the columns that
are asked for are unpacked. Feather (version 2) is the same format under another name. A stream has no footer,
and its messages are walked through once. The folders that `save_to_disk` of Hugging Face's datasets leaves
hold streams, and are opened as they are.

What a field is stands in the metadata of its column, as in Parquet.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import _native
from ..codecs.arrow import (
    KEY,
    arrow_schema,
    featured_schema,
    from_arrow,
    pyarrow,
    refuses,
    schema_of,
    storage,
    to_arrow,
    unfit,
)
from ..codecs.arrow.hugging_face import path_structs, with_files
from ..codecs.arrow.types import is_file_struct, is_list
from ..data.writer import WriteOptions, Writer
from ..errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, exceptions_as
from ..schema import (
    EVERY_KIND,
    Audio,
    Bool,
    Bytes,
    Field,
    Float,
    Image,
    Int,
    Json,
    Schema,
    Tensor,
    Text,
    Video,
)
from ..schema.columns import I64, Column, Columns, starts_of
from ..storage import MappedSource, is_plain, join, parse_object, read_whole, tree
from ..storage.spans import Spans, concat_spans, spans_of
from .base.format import Capabilities, Format, Probe
from .base.ipc import BLOCK, END, FEATHER_1, MAGIC, SCHEMA, Batch, Part, make_footer, read_message, tree_size
from .base.records import GivenSchema, given_schema
from .base.tables import TableReader
from .base.tables.buffered import RowBuffer, SavedRows, row_sizes

if TYPE_CHECKING:
    import pyarrow as pa

# -- reading ------------------------------------------------------------------------------------------
# Reading Arrow: IPC files and streams, Feather, and the folders that Hugging Face's datasets save.

# What lies in a folder, and in that of several splits.
STATE, SPLITS = "state.json", "dataset_dict.json"


class ArrowReader(TableReader):
    """Reads .arrow, .feather and .ipc files, streams, and folders of datasets.save_to_disk.

    ``schema``: the kinds of some fields, in place of those that the types mean. ``split``: which part of a
    folder that holds several. ``cache``: bytes of decoded record batches to keep (default 256 MiB).
    """

    unit_name, unit_names = "record batch", "record batches"

    def __init__(
        self,
        path: str,
        *,
        schema: GivenSchema | str | None = None,
        split: str | None = None,
        cache: int | None = None,
    ) -> None:
        self.path = path
        overrides = given_schema(schema) if schema is not None else {}
        self._parts = [Part(file) for file in saved_files(path, split)]
        # The library raises what it likes on nonsense, and names are looked at only when they are asked for.
        with exceptions_as(DamagedError, "the schema is damaged", Exception, path=path):
            self.schema = self._joined(overrides)
            rows = [count for part in self._parts for count in part.rows]
            self._set_units(rows, cache)
        self._firsts = np.cumsum([0, *(len(part.rows) for part in self._parts)])
        self._part_of_unit = np.repeat(np.arange(len(self._parts)), np.diff(self._firsts))
        self._found_places: dict[str, list[Places] | None] = {}
        self._found_values: dict[str, _native.Pieces] = {}

    def _joined(self, overrides: Mapping[str, Field]) -> Schema:
        first = self._parts[0]
        for part in self._parts[1:]:
            if not part.schema.equals(first.schema):
                raise SchemaError(f"its columns differ from those of {first.path}", path=part.path)
        nulls = set().union(*(part.nulls() for part in self._parts))
        gaps = set().union(*(part.gaps() for part in self._parts))
        # What is described needs no look at it.
        rows = first.first_rows([field.name for field in first.schema if not (field.metadata or {}).get(KEY)])
        fields: dict[str, Field] = dict(schema_of(first.schema, rows, nulls=nulls, gaps=gaps))
        for name, field in overrides.items():
            Schema(fields).select([name])
            fields[name] = field
        if not fields:
            raise SchemaError("there is no column in it")
        return Schema(fields)

    def _path_of(self, unit: int) -> str:
        return self._parts[int(self._part_of_unit[unit])].path

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        number = int(self._part_of_unit[unit])
        part = self._parts[number]
        table = part.load(unit - int(self._firsts[number]), list(fields))
        table = path_structs(self.schema, table)
        return from_arrow(self.schema, fields, with_files(table, part.path, self.path))

    # -- cells where they lie --------------------------------------------------------------------------

    def _in_place(self, name: str) -> list[Places] | None:
        """Locations of a field's cells in each file; None if they have to be decoded."""
        if name not in self._found_places:
            self._found_places[name] = self._find_places(name)
        return self._found_places[name]

    def _find_places(self, name: str) -> list[Places] | None:
        result = []
        for part in self._parts:
            first = part.starts().get(name)
            if first is None or first[1] is None:
                return None
            shape = shape_of(self.schema[name], part.schema.field(name).type, (first[0], first[1]))
            places = None if shape is None else places_of(shape, part.batches)
            if places is None:
                return None
            result.append(places)
        return result

    def _runs(self, part: int, places: Places, units: I64, rows: I64, indices: I64) -> tuple[I64, I64]:
        """Starts and sizes in a file of the cells at these rows of these batches."""
        shape, batch = places.shape, units - self._firsts[part]
        if places.offsets is None:
            return places.values[batch] + rows * shape.width, np.full(len(rows), shape.width, dtype=np.int64)
        source, kind = self._parts[part].source, np.int64 if shape.offset == 8 else np.int32
        offset_numbers = places.offsets[batch] // shape.offset + rows
        if isinstance(source, MappedSource):
            data = source.view(0, source.size // shape.offset * shape.offset)
            numbers, positions = data.view(kind), offset_numbers
        else:
            numbers, positions = self._offsets(part, places, kind, batch, rows)
        first, last = numbers[positions].astype(np.int64), numbers[positions + 1].astype(np.int64)
        bad = (first < 0) | (last < first) | (last > places.sizes[batch] // shape.width)
        if bad.any():
            row = int(np.argmax(bad))
            raise DamagedError(
                "the cell lies outside of its column",
                path=source.path, sample=int(indices[row]), offset=int(offset_numbers[row] * shape.offset),
            )  # fmt: skip
        return places.values[batch] + first * shape.width, (last - first) * shape.width

    def _offsets(self, part: int, places: Places, kind: Any, batch: I64, rows: I64) -> tuple[Any, I64]:
        """The offsets of all cells of these batches, fetched once, and where those of the rows are."""
        assert places.offsets is not None
        source, used = self._parts[part].source, np.unique(batch)
        starts, counts = (
            places.offsets[used],
            np.array([self._parts[part].rows[number] + 1 for number in used]),
        )
        keys = [(part, int(start)) for start in starts]
        if self._cache.all_of(keys) is None:
            source.request(starts, counts * places.shape.offset)
        offsets = [
            self._cache.get(
                key, functools.partial(source.array, kind, key[1], int(count)), lambda array: array.nbytes
            )
            for key, count in zip(keys, counts, strict=True)
        ]
        begins = starts_of(counts)[np.searchsorted(used, batch)]
        return np.concatenate(offsets) if offsets else np.empty(0, kind), begins + rows

    def _located(self, places: list[Places], units: I64, rows: I64, indices: I64) -> tuple[I64, I64]:
        """Starts and sizes of these cells, each in the file that it lies in."""
        if len(self._parts) == 1:
            return self._runs(0, places[0], units, rows, indices)
        start, size = np.zeros(len(indices), np.int64), np.zeros(len(indices), np.int64)
        for part, members in self._each_part(units):
            start[members], size[members] = self._runs(
                part, places[part], units[members], rows[members], indices[members]
            )
        return start, size

    def _each_part(self, units: I64) -> Iterator[tuple[int, Any]]:
        """The files that these batches lie in, and which of the samples are in each."""
        if len(self._parts) == 1:
            yield 0, slice(None)
            return
        parts = self._part_of_unit[units]
        for part in np.unique(parts):
            yield int(part), np.flatnonzero(parts == part)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        places = self._in_place(field)
        if places is None:
            return None
        units, rows = self._units_of(indices)
        start, size = self._located(places, units, rows, indices)
        return Spans(
            [part.source for part in self._parts], start, size, self._part_of_unit[units].astype(np.int32)
        )

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """The cells where they lie as they are; else the record batches."""
        cell_spans = [spans for name in fields if (spans := self._spans(name, indices)) is not None]
        if len(cell_spans) < len(fields):
            runs = []
            for unit in np.unique(self._units_of(indices)[0]).tolist():
                number = int(self._part_of_unit[unit])
                part = self._parts[number]
                message = part.batches[unit - int(self._firsts[number])].message
                runs.append((part.source, message.offset, message.end - message.offset))
            cell_spans = [spans_of(runs)]
        return concat_spans(cell_spans)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        places = {name: self._in_place(name) for name in fields} if len(indices) else {}
        decoded = [name for name in fields if places.get(name) is None]
        columns = super()._read(indices, decoded) if decoded or not places else Columns()
        units, rows = self._units_of(indices)
        for name, field_places in places.items():
            if field_places is not None:
                columns[name] = self._gather(name, field_places, units, rows, indices)
        return Columns((name, columns[name]) for name in fields)

    def _gather(self, name: str, places: list[Places], units: I64, rows: I64, indices: I64) -> Column:
        cell = self.schema[name].cell
        source = self._parts[0].source
        plain = len(self._parts) == 1 and cell is not None and places[0].offsets is None
        if plain and isinstance(source, MappedSource) and source.is_warm():
            values = self._values(name, places[0]).rows(places[0].shape.width, units, rows)
            return values.view(cell[0]).reshape(len(units), *cell[1])  # type: ignore[index]
        start, size = self._located(places, units, rows, indices)
        if len(self._parts) == 1:
            cells = source.gather(start, size)
        else:
            parts = self._part_of_unit[units].astype(np.int32)
            cells = Spans([part.source for part in self._parts], start, size, parts).gather()
        return cells if cell is None else cells.data.view(cell[0]).reshape(len(units), *cell[1])

    def _values(self, name: str, places: Places) -> _native.Pieces:
        """The values of a field whose cells have one width, a piece for each batch."""
        if name not in self._found_values:
            pieces, source = _native.Pieces(len(places.values)), self._parts[0].source
            for number, (start, size) in enumerate(zip(places.values, places.sizes, strict=True)):
                pieces.put(number, source.view(int(start), int(size)))
            self._found_values[name] = pieces
        return self._found_values[name]

    def facts(self) -> dict[str, object]:
        first = self._parts[0]
        packed = any(batch.packed for part in self._parts for batch in part.batches)
        counts = {"files": len(self._parts)} if len(self._parts) > 1 else {}
        in_place = [name for name in self.schema if self._in_place(name) is not None]
        return {
            **counts,
            "layout": "file" if first.file else "stream",
            **super().facts(),
            "compressed": packed,
            "used in place": ", ".join(in_place) or "none",
        }

    def _verify(self) -> Iterator[Problem]:
        for part in self._parts:
            if not part.ended:
                yield Problem("the stream has no end; it may have been cut short", part.path)

    def close(self) -> None:
        super().close()
        self._found_values.clear()
        for part in self._parts:
            part.close()


def sniff(probe: Probe) -> bool:
    """Files begin with ARROW1 or FEA1, streams with a message of a schema; folders list their files."""
    if probe.folder:
        return SPLITS in probe.names or (STATE in probe.names and "dataset_info.json" in probe.names)
    if probe.head.startswith((MAGIC + b"\0\0", FEATHER_1)):
        return True
    if not probe.head.startswith(b"\xff\xff\xff\xff"):
        return False
    try:
        first = read_message(probe.source, 0)
    except DamagedError:
        return False
    return first is not None and first.kind == SCHEMA


def saved_files(path: str, split: str | None) -> list[str]:
    """The files of a dataset: the path itself, or those that a saved folder lists."""
    if not tree.is_folder(path):
        return [path]
    if SPLITS in tree.names(path):
        splits = _json(join(path, SPLITS)).get("splits")
        names = [str(split) for split in splits] if isinstance(splits, list) else []
        chosen = names[0] if split is None and len(names) == 1 else split
        if chosen is None or chosen not in names:
            raise OptionError(f"choose one of its splits with split=…: {', '.join(names)}", path=path)
        return saved_files(join(path, _name(chosen, path)), None)
    state = _json(join(path, STATE))
    listed = state.get("_data_files")
    if not isinstance(listed, list) or not all(isinstance(entry, dict) for entry in listed) or not listed:
        raise DamagedError("it lists no data files", path=join(path, STATE))
    if state.get("_indices_data_files"):
        raise SchemaError(
            "it is saved with a list of indices; save it again with flatten_indices()", path=path
        )
    return [join(path, _name(str(entry.get("filename")), path)) for entry in listed]


def _json(path: str) -> dict[str, Any]:
    with exceptions_as(DamagedError, "it cannot be read", ValueError, path=path):
        return parse_object(read_whole(path), finite=False)


def _name(name: str, path: str) -> str:
    """A name that came out of a file is no path."""
    if not is_plain(name):
        raise DamagedError(f"{name!r} is no file in this folder", path=path)
    return name


@dataclasses.dataclass(frozen=True)
class Shape:
    """Layout of a column: cells of ``width`` bytes each, or runs with offsets of ``offset`` bytes that count
    units of ``width``. ``nodes``: what may have missing values; ``values`` and ``offsets`` are buffers."""

    nodes: tuple[int, ...]
    values: int
    width: int
    offsets: int | None = None
    offset: int = 0


@dataclasses.dataclass(frozen=True)
class Places:
    """Locations of a column's cells in the file, batch by batch."""

    shape: Shape
    values: I64
    sizes: I64
    offsets: I64 | None


def shape_of(field: Field, kind: pa.DataType, first: tuple[int, int]) -> Shape | None:
    """Return the layout of a field's cells in a column of this type; None if they have to be decoded.

    ``first``: the numbers of the column's first node and buffer.
    """
    node, buffer = first
    nodes = tuple(range(node, node + tree_size(kind)[0]))
    if isinstance(field, Bytes | Text | Json | Image | Audio | Video):
        return _bytes_shape(field, kind, nodes, buffer)
    if isinstance(field, Bool) or (isinstance(field, Int | Float) and field.optional):
        return None
    if isinstance(field, Int | Float):
        # Dates and times of day have 32 bits in Arrow, times of another unit other counts.
        same = kind == storage(field) and kind.bit_width == 8 * np.dtype(field.dtype).itemsize
        return Shape(nodes, buffer + 1, np.dtype(field.dtype).itemsize) if same else None
    return _tensor_shape(field, kind, nodes, buffer) if isinstance(field, Tensor) else None


def _bytes_shape(field: Field, kind: pa.DataType, nodes: tuple[int, ...], buffer: int) -> Shape | None:
    types = pyarrow().types
    if is_file_struct(kind):
        number = [field.name for field in kind].index("bytes")
        before = tree_size(kind.field(0).type) if number else (0, 0)
        if before[1] is None:
            return None
        inside = (nodes[0], nodes[1 + before[0]])
        return _bytes_shape(field, kind.field("bytes").type, inside, buffer + 1 + before[1])
    text = isinstance(field, Text | Json)
    if types.is_large_string(kind) if text else types.is_large_binary(kind):
        return Shape(nodes, buffer + 2, 1, buffer + 1, 8)
    if types.is_string(kind) if text else types.is_binary(kind):
        return Shape(nodes, buffer + 2, 1, buffer + 1, 4)
    return None


def _tensor_shape(field: Tensor, kind: pa.DataType, nodes: tuple[int, ...], buffer: int) -> Shape | None:
    pa = pyarrow()
    dtype = np.dtype(field.dtype)
    if dtype.kind not in "iuf" or dtype.itemsize > 8 or field.optional:
        return None
    if field.shape and not is_list(field):
        return None
    offsets, wide = None, 0
    for size in field.shape:
        if size is None and (pa.types.is_list(kind) or pa.types.is_large_list(kind)):
            offsets, wide = buffer + 1, 8 if pa.types.is_large_list(kind) else 4
            buffer += 2
        elif size is not None and pa.types.is_fixed_size_list(kind) and kind.list_size == size:
            buffer += 1
        else:
            return None
        kind = kind.value_type
    if kind != pa.from_numpy_dtype(dtype):
        return None
    width = dtype.itemsize * math.prod(size for size in field.shape if size is not None)
    return Shape(nodes, buffer + 1, width, offsets, wide)


def places_of(shape: Shape, batches: Sequence[Batch]) -> Places | None:
    """Locate the cells in these batches; None if some are missing, compressed or incomplete."""
    values, sizes, offsets = (np.zeros(len(batches), dtype=np.int64) for _ in range(3))
    for number, batch in enumerate(batches):
        if batch.packed or shape.values >= len(batch.buffers) or max(shape.nodes) >= len(batch.nulls):
            return None
        if batch.nulls[list(shape.nodes)].any():
            return None
        body = batch.message.body
        start, size = (int(part) for part in batch.buffers[shape.values])
        values[number], sizes[number] = body + start, size
        if shape.offsets is None:
            if size < batch.rows * shape.width:
                return None
            continue
        start, size = (int(part) for part in batch.buffers[shape.offsets])
        offsets[number] = body + start
        if batch.rows and size < (batch.rows + 1) * shape.offset:
            return None
    if shape.offsets is None:
        return Places(shape, values, sizes, None)
    # Offsets are looked up in the mapping as numbers.
    return None if (offsets % shape.offset).any() else Places(shape, values, sizes, offsets)


# -- writing ------------------------------------------------------------------------------------------

BATCH_BYTES = 4 << 20
STREAM_SUFFIX = ".arrows"


class ArrowWriter(Writer):
    """Writes .arrow and .feather files (usable in place), and .arrows streams.

    ``compression``: none (used where it lies), lz4 or zstd. ``batch_size``: bytes of cells in a record batch.
    ``hugging_face``: with the features of Hugging Face's datasets, for which an image is a struct of its
    bytes and a path; False: a column of bytes.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        compression: str = "none",
        batch_size: int = BATCH_BYTES,
        hugging_face: bool = True,
    ) -> None:
        if compression not in ("none", "lz4", "zstd"):
            raise OptionError(f"compression is none, lz4 or zstd, not {compression!r}")
        if batch_size < 1:
            raise OptionError(f"batch_size must be at least 1 byte, not {batch_size}")
        pa = pyarrow()
        self._arrow = featured_schema(schema, arrays=False) if hugging_face else arrow_schema(schema)
        packed = None if compression == "none" else compression
        self._options = pa.ipc.IpcWriteOptions(compression=packed)
        self._stream = path.lower().endswith(STREAM_SUFFIX)
        self._batch_size = batch_size
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        return refuses(field)

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._file = self.partial.spool("messages")
        self._blocks = self.partial.spool("blocks")
        self._schema = self._arrow.serialize().to_pybytes()
        self._buffer = RowBuffer(self._arrow)
        self._saved = SavedRows(self.partial.folder, self._arrow)
        if state is not None:
            self._saved.restore(state["rows"], [self._buffer])
        if not self._file.size:
            self._file.write((b"" if self._stream else MAGIC + b"\0\0") + self._schema)

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return unfit(self.schema, columns)

    def _write(self, columns: Columns) -> None:
        batch = to_arrow(self.schema, columns, self._arrow)
        for table in self._buffer.fill(batch, row_sizes(columns), self._batch_size):
            self._write_table(table)

    def _write_table(self, table: pa.Table) -> None:
        """Write a record batch: the message as a stream of its own would have it."""
        pa = pyarrow()
        for batch in table.to_batches():
            out = pa.BufferOutputStream()
            with pa.ipc.new_stream(out, self._arrow, options=self._options) as stream:
                stream.write_batch(batch)
            stream_bytes = np.frombuffer(out.getvalue(), np.uint8)
            message = stream_bytes[len(self._schema) : -len(END)]
            metadata = 8 + int(message[4:8].view("<u4")[0])
            block = (self._file.size, metadata, 0, len(message) - metadata)
            self._blocks.write(np.array([block], dtype=BLOCK))
            self._file.write(message)

    def _state(self) -> dict[str, Any]:
        return {"rows": self._saved.save([self._buffer])}

    def _finish(self) -> str:
        if self._buffer.batches:
            self._write_table(self._buffer.take())
        if self._stream:
            self._file.write(END)
            return "messages"
        blocks = np.frombuffer(self._blocks.read_at(self._blocks.size, 0), BLOCK)
        self._file.write(make_footer(self._schema[8:], blocks))
        return "messages"


FORMAT = Format(
    name="arrow",
    title="Apache Arrow IPC, Feather",
    suffixes=(".arrow", ".feather", ".ipc", ".arrows"),
    spec="https://arrow.apache.org/docs/format/Columnar.html",
    reader=ArrowReader,
    writer=ArrowWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="arrow",
    notes="uncompressed files are used in place; streams; folders of Hugging Face's save_to_disk",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("lz4", "zstd"),
        compressed="column",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("pyarrow", "pandas", "Polars", "DuckDB", "Hugging Face"),
    ),
)
