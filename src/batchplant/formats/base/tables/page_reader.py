"""Reading of single pages of Parquet files: row ranges that can match a filter, and rows without the rest.

``PageReader`` skips row groups and pages by their statistics, and reads single rows through ``Excerpts``. An
excerpt is a small Parquet file in memory: the dictionary, the needed pages and a footer that knows only this
column. Pages are copied as they are, so that their checksums still hold.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import itertools
import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....codecs.arrow import numbers, pyarrow
from ....codecs.arrow.types import is_binary, is_file_struct, is_text, plain_size
from ....data.expressions import Bound, Bounds, Lookup, can_match, comparison_of
from ....data.expressions.evaluate import BYTES, NUMBER, TIME
from ....errors import DamagedError, exceptions_as
from ....schema import Bool, Bytes, Field, Float, Int, Tensor, Text
from ....schema.columns import I64, U8
from ....storage import MappedSource, Source, limits, plan_ranges
from ....storage.platform import cpu_count
from .footer import (
    BINARY,
    BY_BYTES,
    BYTE_ARRAY,
    MAGIC,
    REAL,
    SIGNED,
    STRUCT,
    UNSIGNED,
    Chunk,
    Footer,
    Leaf,
    Struct,
    footer_bytes,
    varint,
)
from .pages import (
    DATA,
    DICTIONARY,
    PLAIN,
    PROBED_HEADER_BYTES,
    UNPACK,
    PageMap,
    claim_of,
    decode_lists,
    page_bounds,
    page_header,
    page_map,
)

if TYPE_CHECKING:
    import pyarrow as pa

_I32, _I64 = 5, 6
# All encodings: readers look into the pages for the real ones.
_ENCODINGS = (0, 2, 3, 4, 5, 6, 7, 8, 9)
ARROW_SCHEMA = b"ARROW:schema"
# Parquet type → struct format of its values.
_PACKED = {0: "<?", 1: "<i", 2: "<q", 4: "<f", 5: "<d"}
_UNSIGNED = {1: "<I", 2: "<Q"}
# Units in a day.
_IN_A_DAY = {"D": 1, "s": 86_400, "ms": 86_400 * 10**3, "us": 86_400 * 10**6, "ns": 86_400 * 10**9}

Meaning = Callable[[bytes, bool], Any]
Runs = list[tuple[int, int]]


def meaning_of(field: Field, leaf: Leaf, kind: pa.DataType) -> Meaning | None:
    """Return a function from a stored bound to one of cells; None if the two are not comparable.

    Its flag marks an upper bound: if units differ, bounds are rounded away from the cells.
    """
    kind_of_value = comparison_of(field)
    if leaf.lists or len(leaf.path) != 1 or leaf.order is None:
        return None
    pa = pyarrow()
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if kind_of_value == BYTES:
        same = is_text(kind) if isinstance(field, Text) else isinstance(field, Bytes) and is_binary(kind)
        # A UUID has other bytes in the file than in its cells.
        same = same and leaf.order == BY_BYTES and field.kind != "uuid"
        return (lambda data, _: data) if same else None
    if kind_of_value == TIME or (kind_of_value == NUMBER and hasattr(field, "unit")):
        return _times(field, leaf, kind)
    if kind_of_value != NUMBER or leaf.unit is not None:
        return None
    real = isinstance(field, Float) or (isinstance(field, Tensor) and np.dtype(field.dtype).kind == "f")
    if real:
        # A cell with fewer digits than the file is rounded.
        wide = np.dtype(getattr(field, "dtype", "f8")).itemsize >= (4 if leaf.kind == 4 else 8)
        return _plain(leaf) if leaf.order == REAL and wide and pa.types.is_floating(kind) else None
    if isinstance(field, Bool):
        return _plain(leaf) if leaf.kind == 0 else None
    is_integer = isinstance(field, Int | Tensor) and pa.types.is_integer(kind)
    return _plain(leaf) if is_integer and leaf.order in (SIGNED, UNSIGNED) and leaf.kind in (1, 2) else None


def _plain(leaf: Leaf) -> Meaning:
    unsigned = leaf.order == UNSIGNED and leaf.kind in _UNSIGNED
    packed = struct.Struct(_UNSIGNED[leaf.kind] if unsigned else _PACKED[leaf.kind])

    def value(data: bytes, _: bool) -> Any:
        return packed.unpack(data)[0] if len(data) == packed.size else None

    return value


def _times(field: Field, leaf: Leaf, kind: pa.DataType) -> Meaning | None:
    if leaf.kind not in (1, 2) or leaf.order != SIGNED:
        return None
    dtype: Any = getattr(field, "dtype", None)
    unit = str(getattr(field, "unit", "") or np.datetime_data(np.dtype(dtype))[0])
    stored = leaf.unit
    if stored is None:
        # A number that counts what the Arrow type says, or what the field does.
        stored = str(kind.unit) if hasattr(kind, "unit") else unit
    if unit not in _IN_A_DAY or stored not in _IN_A_DAY:
        return None
    read, up, down = _plain(leaf), _IN_A_DAY[unit], _IN_A_DAY[stored]

    def value(data: bytes, upper: bool) -> int | None:
        bound: int | None = read(data, upper)
        if bound is None:
            return None
        return -(-bound * up // down) if upper else bound * up // down

    return value


def bounds_of(
    rows: int, low: bytes | None, high: bytes | None, nulls: int | None, meaning: Meaning | None
) -> Bounds:
    """Return bounds of cells; those that cannot be true are dropped."""
    missing = nulls if nulls is not None and 0 <= nulls <= rows else None
    if meaning is None:
        return Bounds(rows, missing)
    lowest = None if low is None else meaning(low, False)
    highest = None if high is None else meaning(high, True)
    for bound in (lowest, highest):
        if isinstance(bound, float) and math.isnan(bound):
            return Bounds(rows, missing)
    if lowest is not None and highest is not None and lowest > highest:
        return Bounds(rows, missing)
    return Bounds(rows, missing, lowest, highest)


def chunk_bounds(rows: int, chunk: Chunk, leaf: Leaf, ordered: bool, meaning: Meaning | None) -> Bounds:
    """Return the bounds of a column chunk."""
    # Old files compare everything as signed; newer ones say how they compare, or say nothing.
    sound = leaf.order in (SIGNED, REAL) if chunk.old else ordered
    return bounds_of(rows, chunk.low, chunk.high, chunk.nulls, meaning if sound else None)


def merge_runs(runs: Iterable[tuple[int, int]]) -> Runs:
    """Join neighbours of ascending runs (first, end)."""
    merged: Runs = []
    for first, end in runs:
        if merged and merged[-1][1] == first:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((first, end))
    return merged


class FetchedFile(io.RawIOBase):
    """Serves reads from fetched ranges, and from the source outside of them."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._runs: list[tuple[int, U8]] = []
        self._position = 0

    def fetch(self, starts: I64, sizes: I64, *, ahead: bool = True) -> None:
        """Fetch ranges, neighbours together; ``ahead``: bytes behind them may be needed next."""
        self._source.request(starts, sizes)
        for first, end in plan_ranges(starts, sizes)[0]:
            get = self._source.view if ahead else self._source.only
            self._runs.append((first, get(first, end - first)))

    def view(self, start: int, size: int) -> U8:
        """Return bytes, fetched if necessary."""
        for first, data in self._runs:
            if first <= start and start + size <= first + len(data):
                return data[start - first :][:size]
        return self._source.view(start, size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = (
            offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._source.size}[whence]
        )
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._source.size - self._position))
        if not size:
            return 0
        buffer[:size] = self.view(self._position, size).data
        self._position += size
        return size


class PagePlan(NamedTuple):
    """Pages of a column chunk that have to be read for some rows."""

    chunk: Chunk
    leaf: Leaf
    pages: PageMap
    numbers: I64

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Byte ranges to read; adjacent pages are one range."""
        ranges = [] if self.head is None else [(self.head[0], sum(self.head))]
        starts = self.pages.starts[self.numbers]
        ends = starts + self.pages.sizes[self.numbers]
        merged = merge_runs([*ranges, *zip(starts.tolist(), ends.tolist(), strict=True)])
        return [(start, end - start) for start, end in merged]

    @property
    def head(self) -> tuple[int, int] | None:
        """Start and size of the dictionary; None if no page needs one."""
        coded = self.pages.coded is None or bool(self.pages.coded[self.numbers].any())
        return self.pages.head if coded else None

    @property
    def row_counts(self) -> I64:
        return self.pages.rows[self.numbers + 1] - self.pages.rows[self.numbers]

    @property
    def size(self) -> int:
        return sum(size for _, size in self.runs)

    def select(self, column: pa.ChunkedArray, rows: I64) -> pa.ChunkedArray:
        """Pick rows of the row group, in ascending order, out of an Arrow column of the pages."""
        firsts, sizes = self.pages.rows[self.numbers], self.row_counts
        before: I64 = np.cumsum(sizes) - sizes
        # In a run of rows, no page between the first and the last is omitted.
        sought = rows[:1] if is_run(rows) else rows
        page = np.searchsorted(firsts, sought, side="right") - 1
        places = sought - firsts[page] + before[page]
        if is_run(rows):
            return column.slice(int(places[0]), len(rows))
        return column.take(numbers(places))


class Excerpts:
    """Decodes some pages of a column through a small Parquet file in memory."""

    def __init__(self, footer: Footer, schema: pa.Schema, arrow: bool) -> None:
        self._footer, self._schema, self._arrow = footer, schema, arrow
        self._heads: dict[str, Struct] = {}

    def read(self, name: str, plan: PagePlan, rows: I64, view: Callable[[int, int], U8]) -> pa.ChunkedArray:
        """Return rows of a column as an Arrow column; DamagedError if its pages decompress to too much."""
        parts = [view(start, size) for start, size in plan.runs]
        data = np.concatenate([np.frombuffer(MAGIC, np.uint8), *parts])
        row_count, head_size = int(plan.row_counts.sum()), plan.head[1] if plan.head else 0
        size, values = len(data) - len(MAGIC), self._value_count(plan, data, len(MAGIC) + head_size)
        chunk = plan.chunk._replace(start=len(MAGIC), size=size, values=values)
        claim = claim_of(data[len(MAGIC) :], chunk, plan.leaf)
        limits.check("its pages", claim.size, size)
        column = decode_lists(data[len(MAGIC) :], chunk, plan.leaf, self._schema.field(name).type)
        if column is not None and len(column) == row_count:
            return plan.select(column, rows)
        import pyarrow.parquet as pq

        # The footer of a file with only this column.
        group: Struct = {
            1: (9, (STRUCT, [_column(plan, chunk, head_size)])), 2: (_I64, size), 3: (_I64, row_count)
        }  # fmt: skip
        footer = {**self._head(name), 3: (_I64, row_count), 4: (9, (STRUCT, [group]))}
        excerpt = pyarrow().py_buffer(data.tobytes() + footer_bytes(footer))
        numbered = [".".join(plan.leaf.path)] if claim.by_dictionary else None
        file = pq.ParquetFile(
            pyarrow().BufferReader(excerpt), read_dictionary=numbered, page_checksum_verification=True
        )
        column = file.reader.read_row_group(0, column_indices=[0], use_threads=False).column(0)
        if len(column) != row_count:
            raise DamagedError(f"its pages have {len(column)} rows, and {row_count} were promised")
        column = plan.select(column, rows)
        if claim.by_dictionary:
            limits.check("its pages", plain_size(column), size)
        return column.cast(self._schema.field(name).type) if claim.by_dictionary else column

    def _value_count(self, plan: PagePlan, data: U8, offset: int) -> int:
        """Number of values in the pages, by their own headers: an index may be wrong."""
        counts = []
        with exceptions_as(DamagedError, "a page is damaged", ValueError):
            while offset < len(data):
                header = page_header(data, offset)
                if not header.has_values:
                    raise ValueError(f"a page of kind {header.kind}")
                counts.append(header.value_count)
                offset = header.end
        rows = plan.row_counts.tolist()
        if len(counts) != len(rows) or (not plan.leaf.lists and counts != rows):
            raise DamagedError("the index of its pages is wrong")
        return sum(counts)

    def _head(self, name: str) -> Struct:
        """Build a footer without row groups, of a file with only this column."""
        if name not in self._heads:
            elements = self._footer.elements
            index = 1
            while elements[index][4][1].decode(errors="replace") != name:
                index = _end(elements, index)
            top: Struct = {**elements[0], 5: (_I32, 1)}
            head: Struct = {1: (_I32, 2), 2: (9, (STRUCT, [top, *elements[index : _end(elements, index)]]))}
            if self._arrow:
                schema = pyarrow().schema([self._schema.field(name)]).serialize().to_pybytes()
                pair: Struct = {1: (BINARY, ARROW_SCHEMA), 2: (BINARY, base64.b64encode(schema))}
                head[5] = (9, (STRUCT, [pair]))
            self._heads[name] = head
        return self._heads[name]


def is_run(rows: I64) -> bool:
    """True if rows in ascending order are consecutive."""
    return bool(len(rows)) and int(rows[-1]) - int(rows[0]) == len(rows) - 1


def _end(elements: Sequence[Struct], index: int) -> int:
    """Return the index after an element of a schema and all its descendants."""
    remaining = 1
    while remaining:
        remaining += elements[index].get(5, (0, 0))[1] - 1
        index += 1
    return index


def _column(plan: PagePlan, chunk: Chunk, head_size: int) -> Struct:
    """Build the metadata of a column chunk; a dictionary of ``head_size`` bytes comes before its pages."""
    path = [name.encode(errors="surrogateescape") for name in plan.leaf.path]
    data: Struct = {
        1: (_I32, chunk.kind), 2: (9, (_I32, list(_ENCODINGS))), 3: (9, (BINARY, path)),
        4: (_I32, chunk.codec), 5: (_I64, chunk.values), 6: (_I64, chunk.size), 7: (_I64, chunk.size),
        9: (_I64, chunk.start + head_size),
    }  # fmt: skip
    if head_size:
        data[11] = (_I64, chunk.start)
    return {2: (_I64, 0), 3: (STRUCT, data)}


# Bytes of a column that are read to see its first cells; the next number if no cell ends within them.
# A page may be as large as its row group (pyarrow ends a page after 1,024 values at the earliest), so it is
# neither read nor decompressed to its end.
FIRST_BYTES = (64 << 10, 1 << 20, 8 << 20)
# Largest ratio of decompressed to compressed size.
MAX_EXPANSION = 4
# Bytes that are decompressed at a time: the library fails behind the last complete block.
INFLATE_BLOCK_BYTES = 16 << 10


def first_cells(source: Source, chunk: Chunk, leaf: Leaf, count: int) -> list[bytes]:
    """Return some of the first cells of a column outside of lists; [] if its encoding does not show them.

    Cells come from the dictionary, each once, if there is one.
    """
    if leaf.kind != BYTE_ARRAY or leaf.lists:
        return []
    for size in FIRST_BYTES:
        data = source.only(chunk.start, min(size, chunk.size))
        # Damage is reported by the reader that needs the pages.
        with contextlib.suppress(ValueError, KeyError, TypeError, IndexError, AttributeError, OSError):
            cells = _cells(_values(data, chunk.codec, leaf), count)
            if cells:
                return cells
        if size >= chunk.size:
            break
    return []


def _values(data: U8, codec: int, leaf: Leaf) -> bytes:
    """Return the values of the first page, as far as ``data`` reaches."""
    header = page_header(data, 0)
    page, max_bytes = data[header.body : header.end], MAX_EXPANSION * len(data)
    if header.kind == DICTIONARY:
        return unpack_head(page, codec, max_bytes)
    if not header.has_values or header.encoding != PLAIN:
        return b""
    if header.kind == DATA:
        values = unpack_head(page, codec, max_bytes)
        return values[4 + int.from_bytes(values[:4], "little") :] if leaf.levels else values
    return unpack_head(page[sum(header.levels) :], codec if header.is_packed else 0, max_bytes)


def _cells(values: bytes, count: int) -> list[bytes]:
    cells: list[bytes] = []
    offset = 0
    while len(cells) < count and offset + 4 <= len(values):
        end = offset + 4 + int.from_bytes(values[offset : offset + 4], "little")
        if end > len(values):
            break
        cells.append(values[offset + 4 : end])
        offset = end
    return cells


def unpack_head(data: U8, codec: int, max_bytes: int) -> bytes:
    """Decompress the beginning of a page, up to ``max_bytes``; KeyError for unsupported codecs."""
    name = UNPACK[codec] if codec else ""
    if not codec:
        return data[:max_bytes].tobytes()
    if name == "snappy":
        return _snappy_head(data.tobytes(), max_bytes)
    if name == "gzip":
        return zlib.decompressobj(47).decompress(data.tobytes(), max_bytes)
    if name != "zstd":
        raise KeyError(name)
    pa = pyarrow()
    stream, result = pa.CompressedInputStream(pa.BufferReader(pa.py_buffer(data)), name), b""
    with contextlib.suppress(OSError):
        while len(result) < max_bytes and (piece := stream.read(INFLATE_BLOCK_BYTES)):
            result += piece
    return result


def _snappy_head(data: bytes, max_bytes: int) -> bytes:
    """Decompress the beginning of Snappy data, whose libraries need all of it."""
    _, offset = varint(data, 0)
    result = bytearray()
    while offset < len(data) and len(result) < max_bytes:
        tag = data[offset]
        size, offset = tag >> 2, offset + 1
        if not tag & 3:
            # A literal, whose size may take up to four more bytes.
            extra = max(0, size - 59)
            size = (int.from_bytes(data[offset : offset + extra], "little") if extra else size) + 1
            result += data[offset + extra : offset + extra + size]
            offset += extra + size
            continue
        width = (1, 2, 4)[(tag & 3) - 1]
        if offset + width > len(data):
            break
        back = int.from_bytes(data[offset : offset + width], "little")
        if width == 1:
            size, back = (size & 7) + 4, (tag >> 5 << 8) + back
        else:
            size += 1
        offset += width
        if not 0 < back <= len(result):
            raise ValueError("a copy of what is not there")
        start = len(result) - back
        # A copy may overlap its own output.
        pattern = bytes(result[start : start + size])
        result += (pattern * (size // len(pattern) + 1))[:size]
    return bytes(result)


# Above this fraction of a column chunk, the whole chunk is read.
MAX_PAGE_FRACTION = 0.7
# A smaller remote column chunk costs one request, as its index would.
SMALL_CHUNK_BYTES = 64 << 10
# Less than this is decoded before a second thread has started.
MIN_PARALLEL_BYTES = 256 << 10


class PageReader:
    """Statistics and single pages of a file. ``leaves``: leaf columns of each column of the table."""

    def __init__(
        self,
        source: Source,
        footer: Footer,
        schema: pa.Schema,
        leaves: Mapping[str, Sequence[int]],
        arrow: bool,
    ) -> None:
        self._source, self._footer, self._schema, self._leaves = source, footer, schema, leaves
        self._mapped = isinstance(source, MappedSource)
        self._maps: dict[tuple[int, int], PageMap | None] = {}
        self._excerpts = Excerpts(footer, schema, arrow)

    # -- statistics ------------------------------------------------------------------------------------

    def can_match(self, bound: Bound, fields: Mapping[str, tuple[str, Field]], fixed: Lookup) -> list[Runs]:
        """Return, for every row group, the runs of rows in which a condition can be true.

        ``fields``: fields of the condition that are in the file, each with its column and kind; ``fixed``
        knows the bounds of the others.
        """
        meanings: dict[str, Meaning | None] = {}
        for name, (column, field) in fields.items():
            leaf, *more_leaves = (self._footer.leaves[leaf] for leaf in self._leaves[column])
            kind = self._schema.field(column).type
            meanings[name] = None if more_leaves else meaning_of(field, leaf, kind)
        lookups: dict[int, Lookup] = {}
        for number, group in enumerate(self._footer.groups):
            bounds = {
                name: self._group_bounds(number, column, field, meanings[name])
                for name, (column, field) in fields.items()
            }
            lookup = functools.partial(_bounds_in, bounds, fixed)
            if group.rows and can_match(bound, lookup):
                lookups[number] = lookup
        self.expect(list(lookups), [column for column, _ in fields.values()], bounds=True)
        return [
            self._page_runs(number, bound, fields, lookups[number], meanings) if number in lookups else []
            for number in range(len(self._footer.groups))
        ]

    def _group_bounds(self, number: int, column: str, field: Field, meaning: Meaning | None) -> Bounds:
        """Return the bounds of a column in a row group."""
        single = self._single_leaf(number, column)
        if single is None:
            return Bounds()
        bounds = chunk_bounds(self._footer.groups[number].rows, *single, self._footer.ordered, meaning)
        return _without_nat(field, bounds)

    def _single_leaf(self, number: int, column: str) -> tuple[Chunk, Leaf] | None:
        """Return the chunk and leaf of a column in a row group; None if it has several, or is encrypted."""
        [leaf, *more_leaves] = self._leaves[column]
        chunk = self._footer.groups[number].chunks[leaf]
        return None if more_leaves or chunk is None else (chunk, self._footer.leaves[leaf])

    def _is_small(self, chunk: Chunk) -> bool:
        """True if an index of the pages would cost as much as the column chunk."""
        return not self._mapped and chunk.size < SMALL_CHUNK_BYTES

    def _page_runs(
        self,
        number: int,
        bound: Bound,
        fields: Mapping[str, tuple[str, Field]],
        group_bounds: Lookup,
        meanings: Mapping[str, Meaning | None],
    ) -> Runs:
        """Return the runs of rows of a row group whose pages can match."""
        group = self._footer.groups[number]
        pages: dict[str, tuple[I64, list[Bounds]]] = {}
        for name, (column, field) in fields.items():
            single, meaning = self._single_leaf(number, column), meanings[name]
            if single is None or meaning is None or self._is_small(single[0]):
                continue
            chunk, leaf = single
            page_index = self._map(number, column)
            bounds = None if page_index is None else page_bounds(self._source, chunk, page_index, leaf)
            if page_index is None or bounds is None or len(page_index.starts) < 2:
                continue
            sizes = np.diff(page_index.rows).tolist()
            pages[name] = (
                page_index.rows,
                [
                    _without_nat(field, bounds_of(rows, *stored, meaning))
                    for rows, stored in zip(sizes, bounds, strict=True)
                ],
            )
        if not pages:
            return [(0, group.rows)]
        edges = np.unique(np.concatenate([rows for rows, _ in pages.values()]))
        page_numbers = {
            name: (np.searchsorted(rows, edges[:-1], side="right") - 1).tolist()
            for name, (rows, _) in pages.items()
        }
        runs: Runs = []
        for piece, (start, end) in enumerate(itertools.pairwise(edges.tolist())):
            piece_bounds = {name: parsed[page_numbers[name][piece]] for name, (_, parsed) in pages.items()}
            if can_match(bound, functools.partial(_bounds_in, piece_bounds, group_bounds)):
                runs.append((start, end))
        return merge_runs(runs)

    def expect(self, groups: Sequence[int], columns: Sequence[str], *, bounds: bool = False) -> None:
        """Prefetch page indexes, all in one go; ``bounds``: indexes of values too."""
        if self._mapped:
            return
        runs = []
        for number in groups:
            for column in columns:
                single = self._single_leaf(number, column)
                if single is None or self._is_small(single[0]):
                    continue
                chunk = single[0]
                is_cached = (number, self._leaves[column][0]) in self._maps
                indexes = None if is_cached else chunk.pages, chunk.page_bounds if bounds else None
                runs += [run for run in indexes if run is not None and run[1] > 0]
        if runs:
            starts_and_sizes = np.array(runs, dtype=np.int64)
            self._source.request(starts_and_sizes[:, 0], starts_and_sizes[:, 1])

    # -- rows ------------------------------------------------------------------------------------------

    def _map(self, number: int, column: str) -> PageMap | None:
        leaf = self._leaves[column][0]
        if (number, leaf) not in self._maps:
            group, about = self._footer.groups[number], self._footer.leaves[leaf]
            chunk = group.chunks[leaf]
            self._maps[number, leaf] = (
                None if chunk is None else page_map(self._source, group, chunk, about, self._mapped)
            )
        return self._maps[number, leaf]

    def plan(self, number: int, column: str, rows: I64) -> PagePlan | None:
        """Plan the pages that hold these ascending rows; None: read the whole column chunk."""
        single = self._single_leaf(number, column)
        if single is None or not len(rows) or self._is_small(single[0]):
            return None
        pages = self._map(number, column)
        if pages is None:
            return None
        plan = PagePlan(*single, pages, np.flatnonzero(np.diff(np.searchsorted(rows, pages.rows))))
        return plan if plan.size <= MAX_PAGE_FRACTION * plan.chunk.size else None

    def read(self, plans: Mapping[str, PagePlan], rows: I64) -> dict[str, pa.ChunkedArray]:
        """Read rows of columns as Arrow columns; columns whose pages contradict their index are left out."""
        view: Callable[[int, int], U8] = self._source.view
        if not self._mapped:
            runs = np.array([run for plan in plans.values() for run in plan.runs], np.int64).reshape(-1, 2)
            fetched = FetchedFile(self._source)
            fetched.fetch(runs[:, 0], runs[:, 1], ahead=False)
            view = fetched.view

        def read(name: str) -> pa.ChunkedArray | None:
            # pyarrow raises anything on nonsense; reading the whole column reports the problem.
            with contextlib.suppress(Exception):
                return self._excerpts.read(name, plans[name], rows, view)
            return None

        threads = min(len(plans), cpu_count())
        if threads < 2 or sum(plan.size for plan in plans.values()) < MIN_PARALLEL_BYTES:
            columns = list(map(read, plans))
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="batchplant-pages") as pool:
                columns = list(pool.map(read, plans))
        return {name: column for name, column in zip(plans, columns, strict=True) if column is not None}

    def first(self, number: int, columns: Sequence[str], rows: int) -> dict[str, pa.Array]:
        """Return some of the first cells of columns of bytes or files, as Arrow arrays; little else is read.

        Small columns, those with lists and those whose first page does not show its cells are left out.
        """
        group, chunks = self._footer.groups[number], {}
        for column in columns:
            leaves = [(group.chunks[leaf], self._footer.leaves[leaf]) for leaf in self._leaves[column]]
            readable = [(chunk, leaf) for chunk, leaf in leaves if chunk is not None and not leaf.lists]
            if (
                len(readable) == len(leaves)
                and max(chunk.size for chunk, _ in readable) > PROBED_HEADER_BYTES
            ):
                chunks[column] = readable
        if not chunks:
            return {}
        starts = np.array([chunk.start for parts in chunks.values() for chunk, _ in parts], np.int64)
        sizes = np.array([chunk.size for parts in chunks.values() for chunk, _ in parts], np.int64)
        self._source.request(starts, np.minimum(sizes, PROBED_HEADER_BYTES))
        read: dict[str, Any] = {}
        for column, parts in chunks.items():
            # pyarrow raises anything on nonsense; reading the whole column reports the problem.
            with contextlib.suppress(Exception):
                read[column] = self._first_cells(column, parts, rows)
        return {column: cells for column, cells in read.items() if cells is not None}

    def _first_cells(self, column: str, chunks: Sequence[tuple[Chunk, Leaf]], rows: int) -> pa.Array | None:
        """Decode cells from the first bytes of a page; files without their paths. None: not possible."""
        kind = self._schema.field(column).type
        is_file = is_file_struct(kind)
        number = [field.name for field in kind].index("bytes") if is_file else 0
        chunk, leaf = chunks[number]
        # A file that has no bytes may have a path.
        if not (is_file or is_binary(kind)) or (is_file and chunk.nulls != 0):
            return None
        cells = first_cells(self._source, chunk, leaf, rows)
        if not cells:
            return None
        return pyarrow().array([{"bytes": cell, "path": None} for cell in cells] if is_file else cells, kind)


def rows_of(table: pa.Table, rows: I64) -> pa.Table:
    """Return rows of an Arrow table; a run of rows is not copied."""
    return table.slice(int(rows[0]), len(rows)) if is_run(rows) else table.take(numbers(rows))


def _bounds_in(bounds: Mapping[str, Bounds], fallback: Lookup, name: str) -> Bounds:
    return bounds[name] if name in bounds else fallback(name)


def _without_nat(field: Field, bounds: Bounds) -> Bounds:
    """Forget that no cell is missing where NaT counts as missing, which writers do not count."""
    dtype = getattr(field, "dtype", None)
    may_be_nat = dtype is not None and np.dtype(dtype).kind in "mM"
    return bounds._replace(missing=bounds.missing or None) if may_be_nat else bounds
