"""One Parquet file, and rows of Parquet files: row group by row group, or by pages if few rows are needed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .... import _native
from ....codecs.arrow import pyarrow
from ....codecs.arrow.hugging_face import is_missing
from ....codecs.arrow.infer import check_names, has_gaps, is_whole_list
from ....codecs.arrow.types import is_file_struct, plain_size
from ....data.expressions import Bound, Bounds, can_match, comparison_of, fields_of
from ....data.expressions.evaluate import BYTES, NUMBER
from ....data.filters import Pruned, numbers_in, ranges_of
from ....data.layout import Layout
from ....errors import BatchplantError, DamagedError, SchemaError, located
from ....schema import Field
from ....schema.columns import I64, U8, Column, Columns, Masked, Ragged, concat_columns, dense_of
from ....storage import MappedSource, RemoteSource, index, is_remote, limits, open_source
from ....storage.spans import SourceRun, Spans
from .footer import BYTE_ARRAY, MAGIC, Footer
from .page_reader import ARROW_SCHEMA, FetchedFile, PageReader, rows_of
from .pages import DATA, PLAIN, Claim, claim_of, decode_lists, page_header, page_map
from .reader import TableReader

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

PREFIX = 4
# Kind of the entry in the user's cache.
KIND = "parquet-cells"
# Bytes of a page that hold its header, which may contain two bounds of 4 KiB each.
PAGE_HEAD_BYTES = 12 << 10

# Starts and sizes; both are -1 of a cell that does not lie in the file as it is.
Cells = tuple[I64, I64]


class ParquetFile:
    """One Parquet file. ``values``: of columns that it does not contain, such as those of its partition."""

    def __init__(self, path: str, values: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.values = dict(values or {})
        self.source = open_source(path)
        self._idle: list[pq.ParquetFile] = []
        self._claims: dict[tuple[int, int], Claim] = {}
        try:
            # Before pyarrow, which may abort the process at a damaged footer.
            self.footer = Footer(self.source)
            file = self._open(self._parsed())
            self._metadata = file.metadata
            self.schema = file.schema_arrow
            # pyarrow decodes names lazily.
            check_names(self.schema)
            self._leaves = _leaves_of(self.schema)
            if sum(map(len, self._leaves.values())) != len(self.footer.leaves):
                raise DamagedError("the schema in its metadata has other columns than the file")
            self.rows = np.array([group.rows for group in self.footer.groups], dtype=np.int64)
            described = ARROW_SCHEMA in (file.metadata.metadata or {})
            self.page_reader = PageReader(self.source, self.footer, self.schema, self._leaves, described)
            self._idle.append(file)
        except BatchplantError as error:
            raise error.at(path=path) from None
        # pyarrow raises anything on nonsense.
        except Exception as error:
            raise DamagedError(f"the footer cannot be read: {first_line(error)}", path=path) from None

    def _open(
        self,
        metadata: pq.FileMetaData | None,
        fetched: FetchedFile | None = None,
        dictionaries: Sequence[str] = (),
    ) -> pq.ParquetFile:
        pa = pyarrow()
        import pyarrow.parquet as pq

        source = self.source
        if isinstance(source, MappedSource):
            stream = pa.BufferReader(pa.py_buffer(source.view(0, source.size)))
        else:
            stream = pa.PythonFile(fetched or source.file(), mode="r")
        return pq.ParquetFile(
            stream,
            metadata=metadata,
            read_dictionary=dictionaries or None,
            page_checksum_verification=True,
        )

    def _parsed(self) -> pq.FileMetaData | None:
        """Parse the footer with pyarrow, which would otherwise fetch it again, and much around it."""
        import pyarrow.parquet as pq

        raw, self.footer.raw = self.footer.raw or b"", None
        if isinstance(self.source, MappedSource):
            return None
        return pq.read_metadata(pyarrow().BufferReader(MAGIC + raw))

    def load(self, group: int, names: Sequence[str], *, ahead: bool = True) -> pa.Table:
        """Read columns of a row group as a table. ``ahead``: bytes behind them may be needed next."""
        leaves = {leaf: name for name in names for leaf in self._leaves[name]}
        fetched = None if isinstance(self.source, MappedSource) else self._fetched(group, list(leaves), ahead)
        claims = {leaf: self._claim(group, leaf, name, fetched) for leaf, name in leaves.items()}
        lists = {name: column for name in names if (column := self._lists(group, name, fetched)) is not None}
        flat = [leaf for leaf, name in leaves.items() if name not in lists]
        table: Any = None
        if flat or not lists:
            table = self._by_library(group, {leaf: leaves[leaf] for leaf in flat}, claims, fetched)
        if not lists:
            return table
        return self._table({name: lists[name] if name in lists else table.column(name) for name in names})

    def _by_library(
        self, group: int, leaves: Mapping[int, str], claims: Mapping[int, Claim], fetched: FetchedFile | None
    ) -> pa.Table:
        """Read the columns of these leaves with pyarrow, as a table."""
        repeated = {name: leaf for leaf, name in leaves.items() if claims[leaf].by_dictionary}
        if repeated or fetched is not None:
            paths = [".".join(self.footer.leaves[leaf].path) for leaf in leaves if claims[leaf].by_dictionary]
            file = self._open(self._metadata, fetched, paths)
            table = file.reader.read_row_group(group, column_indices=list(leaves), use_threads=True)
            return self._plain(group, table, repeated)
        # pyarrow's ParquetFile is not thread-safe.
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._open(self._metadata)
        table = file.reader.read_row_group(group, column_indices=list(leaves), use_threads=True)
        self._idle.append(file)
        return table

    def _lists(self, group: int, name: str, fetched: FetchedFile | None) -> pa.ChunkedArray | None:
        """Decode a column of lists of numbers; None for other columns."""
        leaves = self._leaves[name]
        if len(leaves) != 1 or not self.footer.leaves[leaves[0]].lists:
            return None
        chunk, about = self.footer.groups[group].chunks[leaves[0]], self.footer.leaves[leaves[0]]
        if chunk is None:
            return None
        view = (fetched or self.source).view(chunk.start, chunk.size)
        column = decode_lists(view, chunk, about, self.schema.field(name).type)
        return column if column is not None and len(column) == self.footer.groups[group].rows else None

    def _table(self, columns: Mapping[str, pa.ChunkedArray]) -> pa.Table:
        pa = pyarrow()
        schema = pa.schema([self.schema.field(name) for name in columns], metadata=self.schema.metadata)
        return pa.table(list(columns.values()), schema=schema)

    def load_rows(self, group: int, names: Sequence[str], rows: I64) -> pa.Table:
        """Read ascending rows of a row group; only their pages, if that pays."""
        plans = {name: self.page_reader.plan(group, name, rows) for name in names}
        columns = self.page_reader.read(
            {name: plan for name, plan in plans.items() if plan is not None}, rows
        )
        missing = [name for name in names if name not in columns]
        if missing:
            table = rows_of(self.load(group, missing, ahead=False), rows)
            columns |= {name: table.column(name) for name in missing}
        return self._table({name: columns[name] for name in names})

    def first_cells(self, names: Sequence[str], rows: int) -> pa.Table:
        """Return some of the first cells of columns; of large columns, only the beginning is read."""
        columns = self.page_reader.first(0, names, rows)
        missing = [name for name in names if name not in columns]
        if missing:
            table = self.load(0, missing, ahead=False).slice(0, rows)
            columns |= {name: table.column(name) for name in missing}
        count = min(len(column) for column in columns.values())
        return self._table({name: columns[name].slice(0, count) for name in names})

    def row_runs(self, group: int, names: Sequence[str], rows: I64) -> list[tuple[int, int]]:
        """Byte ranges (start, size) that reading these rows takes."""
        self.page_reader.expect([group], names)
        plans = {name: self.page_reader.plan(group, name, rows) for name in names}
        whole_runs = self.runs(group, [name for name in names if plans[name] is None])
        return [*whole_runs, *(run for plan in plans.values() if plan is not None for run in plan.runs)]

    def cells(self, groups: Sequence[int], name: str, sequential: bool) -> list[Cells | None]:
        """Return starts and sizes of the cells of a column of bytes or files in row groups; None if they are
        not stored plainly or the file is not mapped. ``sequential``: most of the cells are read next."""
        leaf, source = self._leaf_in_place(name), self.source
        if leaf is None or not isinstance(source, MappedSource):
            return [None] * len(groups)
        return cells_of(source, self.footer, groups, leaf, sequential)

    def recalled(self, name: str) -> Cells | None:
        """Return the cells of all row groups as they are remembered in the user's cache, or None."""
        leaf, size = self._leaf_in_place(name), self.source.size
        if leaf is None:
            return None

        def fits(cached: index.Index) -> bool:
            start, sizes = cached.arrays["starts"], cached.arrays["sizes"]
            if not start.dtype == sizes.dtype == np.int64 or not start.shape == sizes.shape == (
                sum(self.rows),
            ):
                return False
            apart = (start == -1) & (sizes == -1)
            # Compare without adding start and size: the sum may overflow.
            return bool((apart | ((start > 0) & (sizes >= 0) & (start <= size - sizes))).all())

        remembered = index.recall(self.source, KIND, str(leaf), check=fits)
        return None if remembered is None else (remembered.arrays["starts"], remembered.arrays["sizes"])

    def remember(self, name: str, cells: Cells) -> None:
        """Save the cells of all row groups in the user's cache."""
        leaf = self._leaf_in_place(name)
        if leaf is not None:
            arrays = {"starts": cells[0], "sizes": cells[1]}
            index.remember(self.source, KIND, str(leaf), lambda source, report: (arrays, {}))

    def _leaf_in_place(self, name: str) -> int | None:
        """Return the leaf whose plainly stored cells may be those of a column.

        None: it is compressed, or the file is not mapped.
        """
        leaves = self._byte_leaves(name)
        chunks = [group.chunks[leaves[0]] for group in self.footer.groups]
        packed = all(chunk is None or chunk.codec for chunk in chunks)
        mapped = isinstance(self.source, MappedSource)
        return leaves[0] if mapped and not packed and len(leaves) == 1 else None

    def _fetched(self, group: int, leaves: Sequence[int], ahead: bool) -> FetchedFile:
        """Fetch the bytes of these leaves, from which page headers and pyarrow are then served."""
        runs = np.array(self._runs(group, leaves), np.int64).reshape(-1, 2)
        fetched = FetchedFile(self.source)
        fetched.fetch(runs[:, 0], runs[:, 1], ahead=ahead)
        return fetched

    def _runs(self, group: int, leaves: Sequence[int]) -> list[tuple[int, int]]:
        chunks = [self.footer.groups[group].chunks[leaf] for leaf in leaves]
        return [(chunk.start, chunk.size) for chunk in chunks if chunk is not None]

    def runs(self, group: int, names: Sequence[str]) -> list[tuple[int, int]]:
        """Byte ranges (start, size) of columns of a row group."""
        return self._runs(group, [leaf for name in names for leaf in self._leaves[name]])

    def _claim(self, group: int, leaf: int, name: str, fetched: FetchedFile | None) -> Claim:
        """Return a column's claimed size in memory; DamagedError if that is too much."""
        cached = self._claims.get((group, leaf))
        if cached is not None and fetched is None:
            return cached
        chunk = self.footer.groups[group].chunks[leaf]
        if chunk is None:
            raise SchemaError("this column is encrypted", field=name)
        view = (fetched or self.source).view(chunk.start, chunk.size)
        try:
            claim = claim_of(view, chunk, self.footer.leaves[leaf])
            limits.check("its column", claim.size, chunk.size)
        except DamagedError as error:
            message = f"row group {group} cannot be read: {error.message}"
            offset = chunk.start if error.offset is None else error.offset
            raise DamagedError(message, field=name, offset=offset) from None
        self._claims[group, leaf] = claim
        return claim

    def _plain(self, group: int, table: pa.Table, repeated: Mapping[str, int]) -> pa.Table:
        """Cast columns that were read as dictionaries back to their types."""
        for name, leaf in repeated.items():
            column, chunk = table.column(name), self.footer.groups[group].chunks[leaf]
            assert chunk is not None
            with located(field=name, offset=chunk.start):
                limits.check(f"column {name} of row group {group}", plain_size(column), chunk.size)
            number = table.schema.get_field_index(name)
            field = self.schema.field(name)
            table = table.set_column(number, field, column.cast(field.type))
        return table

    def nulls(self, names: Sequence[str]) -> set[str]:
        """Return the columns that may have missing values, by the file's statistics."""
        return {name for name in names if self._may_miss(name)}

    def _may_miss(self, name: str) -> bool:
        if not self.schema.field(name).nullable:
            return False
        leaves, kind = self._byte_leaves(name), self.schema.field(name).type
        chunks = [group.chunks[leaf] for group in self.footer.groups for leaf in leaves]
        # None: the writer did not count them.
        may_lack = any(chunk is None or chunk.nulls != 0 for chunk in chunks)
        return may_lack and not (is_file_struct(kind) and self._has_paths(name, leaves[0]))

    def _byte_leaves(self, name: str) -> list[int]:
        """Return the leaves of a column; of a column of files, that of their bytes."""
        leaves, kind = self._leaves[name], self.schema.field(name).type
        return leaves[[field.name for field in kind].index("bytes") :][:1] if is_file_struct(kind) else leaves

    def _has_paths(self, name: str, leaf: int) -> bool:
        """True if files that lack their bytes, which are in this leaf, have a path."""
        try:
            for number, group in enumerate(self.footer.groups):
                chunk = group.chunks[leaf]
                lack = chunk is None or chunk.nulls != 0
                if lack and is_missing(self.load(number, [name]).column(name)):
                    return False
        # Reading the column meets the same damage, and reports its location.
        except Exception:
            return False
        return True

    def gaps(self, names: Sequence[str]) -> set[str]:
        """Return the columns of lists of whole numbers with missing elements.

        The first row group that may have any decides.
        """
        names_with_gaps = set()
        for name in names:
            [leaf, *_] = self._leaves[name]
            chunks = [group.chunks[leaf] for group in self.footer.groups]
            first = next(
                (n for n, chunk in enumerate(chunks) if chunk is not None and chunk.nulls != 0), None
            )
            if first is None or not is_whole_list(self.schema.field(name).type):
                continue
            # Reading the column meets the same damage, and reports its location.
            with contextlib.suppress(Exception):
                if has_gaps(self.load(first, [name]).column(name)):
                    names_with_gaps.add(name)
        return names_with_gaps

    def encrypted(self) -> list[str]:
        """Return the encrypted columns."""
        locked = set(self.footer.encrypted)
        return [name for name, leaves in self._leaves.items() if locked.intersection(leaves)]

    @property
    def is_planned(self) -> bool:
        """True if a loader prefetches the bytes of this remote file."""
        return isinstance(self.source, RemoteSource) and self.source.is_prefetched

    @property
    def size(self) -> int:
        return self.source.size

    @property
    def tag(self) -> str:
        """Version tag of the file; empty if its storage has none."""
        return self.source.tag

    def close(self) -> None:
        self._idle.clear()
        self.source.close()


def first_line(error: BaseException) -> str:
    """Return a library's message without its stack trace."""
    text = str(error).strip().splitlines()
    return text[0] if text else type(error).__name__


def _leaves_of(schema: pa.Schema) -> dict[str, list[int]]:
    """Map each column of the table to its leaf columns."""
    leaves: dict[str, list[int]] = {}
    first = 0
    for field in schema:
        count = _leaf_count(field.type)
        leaves[field.name] = list(range(first, first + count))
        first += count
    return leaves


def _leaf_count(kind: pa.DataType) -> int:
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return 1
    return sum(_leaf_count(kind.field(n).type) for n in range(kind.num_fields)) if kind.num_fields else 1


def cells_of(
    source: MappedSource, footer: Footer, groups: Sequence[int], leaf: int, sequential: bool
) -> list[Cells | None]:
    """Return starts and sizes of the cells of a column in row groups; None if they are not stored plainly.

    ``sequential``: most of the cells are read next, so the kernel may read the column ahead.
    """
    about = footer.leaves[leaf]
    results: list[Cells | None] = [None] * len(groups)
    chunks = [(number, footer.groups[group].chunks[leaf]) for number, group in enumerate(groups)]
    plain = [(number, chunk) for number, chunk in chunks if chunk is not None and not chunk.codec]
    if not plain or about.kind != BYTE_ARRAY or about.lists:
        return results
    if sequential:
        source.request(*np.array([(chunk.start, chunk.size) for _, chunk in plain], np.int64).T)
    pages = []
    for number, chunk in plain:
        group = groups[number]
        page_index = page_map(source, footer.groups[group], chunk, about, mapped=True)
        if page_index is not None:
            page_columns = [
                np.full(len(page_index.starts), number),
                page_index.starts,
                page_index.sizes,
                np.diff(page_index.rows),
            ]
            pages.append(np.stack(page_columns, axis=1))
    if not pages:
        return results
    numbers, start, size, rows = (np.ascontiguousarray(column) for column in np.concatenate(pages).T)
    heads = source.gather(start, np.minimum(size, PAGE_HEAD_BYTES))
    before = np.array(
        [_before_cells(heads[row], int(size[row]), about.levels) for row in range(len(start))], np.int64
    )
    good = (before >= 0) & (rows <= (size - before) // PREFIX)
    start, size, rows = start + before, np.where(good, size - before, 0), np.where(good, rows, 0)
    # As many cells as rows: none is missing.
    sizes, filled = source.prefixed_sizes(start, size, rows, past=not sequential)
    good &= filled != 0
    ends = np.cumsum(sizes + PREFIX)
    first = np.cumsum(rows) - rows
    starts = ends - sizes + np.repeat(start - np.append(0, ends)[first], rows)
    for number in np.unique(numbers).tolist():
        matches = np.flatnonzero(numbers == number)
        if good[matches].all():
            cells = slice(int(first[matches[0]]), int(first[matches[-1]] + rows[matches[-1]]))
            results[number] = starts[cells], sizes[cells]
    return results


def _before_cells(head: U8 | None, size: int, levels: int) -> int:
    """Return the bytes before the first cell of a page; -1 if its cells are not stored plainly."""
    try:
        assert head is not None
        header = page_header(head, 0)
    except ValueError:
        return -1
    # A checksum is checked by the library.
    is_plain = header.has_values and header.encoding == PLAIN and header.checksum is None
    if not is_plain or header.end != size:
        return -1
    # Definition levels mark missing cells.
    offset = header.body + sum(header.levels)
    if header.kind == DATA and levels:
        offset += PREFIX + int.from_bytes(head[offset : offset + PREFIX].tobytes(), "little")
    return offset if offset <= size else -1


# Name of the checksums of Parquet's pages in `verify`.
CHECKED = "CRC of every page that has one"
# Remote rows are read by pages only in such small requests: batches soon need the rest of a row group.
MAX_SINGLE_ROWS = 4
# More row groups than these fit in a window of any size.
MAX_WINDOW_GROUPS = 32


class ParquetRows(TableReader):
    """Base class of readers of Parquet files: prunes row groups and pages, and reads single rows by pages."""

    # The files; in place of one that no ParquetFile reads, its error, or None if a library reads it.
    _files: Sequence[ParquetFile | BatchplantError | None]
    # Number of the first row group of each file among those of all files, and the number of all.
    _firsts: I64

    def _set_window(self) -> None:
        """Shrink the window if row groups are large; only the files decide, so all ranks agree."""
        files = [file for file in self._files if isinstance(file, ParquetFile)]
        sizes = [group.size for file in files for group in file.footer.groups if group.size > 0]
        fit = self.tuning.window_bytes * len(sizes) // max(1, sum(sizes))
        self.window = max(1, fit) if sizes and fit < MAX_WINDOW_GROUPS else None

    # -- what a format implements ----------------------------------------------------------------------

    def _columns_in(self, number: int, fields: Sequence[str]) -> dict[str, str]:
        """Map fields to columns of a file; those that it lacks are left out."""
        raise NotImplementedError

    def _fixed_bounds(self, number: int, fields: Sequence[str]) -> Mapping[str, Bounds]:
        """Return the bounds of those fields that are no columns of a file."""
        raise NotImplementedError

    def _live_rows(self, number: int, group: int) -> I64 | None:
        """Return the rows of a row group that are not deleted; None: all."""
        return None

    def _load_rows(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> Columns:
        """Return the cells of ascending rows of a unit; None: of all rows."""
        raise NotImplementedError

    # -- files -----------------------------------------------------------------------------------------

    def _file_of(self, unit: int) -> tuple[int, int]:
        """Return the number of the file that has a unit, and that of the row group in it."""
        number = int(np.searchsorted(self._firsts, unit, side="right")) - 1
        return number, unit - int(self._firsts[number])

    def _parquet(self, number: int) -> ParquetFile | None:
        """Return a file; None if it cannot be read, or a library reads it."""
        file = self._files[number]
        return file if isinstance(file, ParquetFile) else None

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        return self._load_rows(unit, None, fields)

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[SourceRun] | None:
        return self._row_runs(unit, None, fields)

    def _row_runs(self, unit: int, rows: I64 | None, fields: Sequence[str]) -> list[SourceRun] | None:
        """Byte ranges (file, start, size) of these rows of a unit, or of all; None: unknown."""
        number, group = self._file_of(unit)
        file = self._parquet(number)
        if file is None:
            return None
        columns = list(dict.fromkeys(self._columns_in(number, fields).values()))
        runs = (
            file.runs(group, columns)
            if rows is None
            else file.row_runs(group, columns, self._rows_in_file(number, group, rows))
        )
        return [(file.source, *run) for run in runs]

    def _rows_in_file(self, number: int, group: int, rows: I64) -> I64:
        """Return the numbers that rows of a unit have in their row group, deleted ones counted."""
        live_rows = self._live_rows(number, group)
        return rows if live_rows is None else live_rows[rows]

    def own_checks(self) -> tuple[str, ...]:
        return (CHECKED,)

    def close(self) -> None:
        super().close()
        for file in self._files:
            if isinstance(file, ParquetFile):
                file.close()

    # -- single rows -----------------------------------------------------------------------------------

    def _row_reader(self, rows: I64) -> SelectedRows:
        return SelectedRows(self, rows)

    @functools.cached_property
    def _page_policy(self) -> PageReadPolicy:
        return PageReadPolicy(self)

    def _decoded_size(self, unit: int, fields: Sequence[str]) -> int:
        """Estimate the bytes of a decoded unit."""
        rows = int(self._starts[unit + 1] - self._starts[unit])
        cells = {name: self.schema[name].cell for name in fields}
        fixed = sum(dtype.itemsize * math.prod(shape) for dtype, shape in filter(None, cells.values()))
        packed = self._unit_runs(unit, [name for name, cell in cells.items() if cell is None])
        return rows * fixed + sum(size for _, _, size in packed or ())

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        units, rows = self._units_of(indices)
        names = tuple(fields)
        if self._is_local:
            scattered = self._page_policy.wants(units, rows, names)
        else:
            scattered = self._are_single(units, names) and self._page_policy.saves(units, rows, names)
        self._page_policy.note(units)
        if scattered:
            # Reading the whole unit reports the problem and its location.
            with contextlib.suppress(Exception):
                return self._read_pages(by_unit(units, rows), fields)
        return super()._read(indices, fields)

    def _are_single(self, units: I64, names: tuple[str, ...]) -> bool:
        """True for a few remote rows whose row groups are neither cached nor prefetched by a loader."""
        used = np.unique(units).tolist()
        cached = (self._cache.all_of([(unit, names)]) is not None for unit in used)
        return len(units) <= MAX_SINGLE_ROWS and not self._are_planned(used) and not any(cached)

    def _are_planned(self, units: Sequence[int]) -> bool:
        """True if a loader prefetches the bytes of these units, or if that is unknown."""
        files = [self._parquet(self._file_of(unit)[0]) for unit in units]
        return any(file is None or file.is_planned for file in files)

    def _read_pages(self, requests: Sequence[tuple[int, I64, I64]], fields: Sequence[str]) -> Columns:
        """Read rows by pages, unit by unit, into arrays of the whole batch."""
        order = np.concatenate([places for _, _, places in requests])
        dense: dict[str, Any] = {}
        ragged: dict[str, list[Column]] = {}
        for unit, rows, places in requests:
            once, inverse = np.unique(rows, return_inverse=True)
            columns = self._load_rows(unit, once, fields)
            if columns.rows != len(once):
                raise DamagedError(f"{columns.rows} rows where {len(once)} were promised")
            for name, column in (columns if len(once) == len(rows) else columns.take(inverse)).items():
                if isinstance(column, Ragged):
                    ragged.setdefault(name, []).append(column)
                    continue
                if name not in dense:
                    dense[name] = np.empty((len(order), *column.shape[1:]), column.dtype)
                dense[name][places] = column
        for name, parts in ragged.items():
            dense[name] = Columns({name: concat_columns(parts)}).take(np.argsort(order))[name]
        return Columns((name, dense[name]) for name in fields)

    def _batch_runs(self, indices: I64, fields: Sequence[str]) -> list[SourceRun] | None:
        units, rows = self._units_of(indices)
        if not self._is_local or not self._page_policy.wants(units, rows, tuple(fields)):
            return super()._batch_runs(indices, fields)
        runs_of_units = [
            self._row_runs(unit, np.unique(unit_rows), fields) for unit, unit_rows, _ in by_unit(units, rows)
        ]
        return None if None in runs_of_units else [run for runs in runs_of_units for run in runs or ()]

    def _layout(self) -> Layout:
        return dataclasses.replace(super()._layout(), unread=self._unread)

    def _unread(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """Return byte ranges; remote units that stay in the cache are left out."""
        names = tuple(fields)
        if self._is_local or not names or not self._page_policy.all_fit(names):
            return self._ranges(fields, indices)
        units, _ = self._units_of(indices)
        cached = [
            unit for unit in np.unique(units).tolist() if self._cache.all_of([(unit, names)]) is not None
        ]
        return self._ranges(fields, indices[~np.isin(units, cached)])

    @property
    def _is_local(self) -> bool:
        """True for local files. A remote request costs more than the rest of a row group."""
        return not is_remote(self.path)

    def _prune(self, bound: Bound) -> Pruned | None:
        names = fields_of(bound)
        runs: list[tuple[int, int]] = []
        skipped = total = to_read = looked = 0
        for number, first in enumerate(self._firsts[:-1].tolist()):
            columns = self._columns_in(number, list(self.schema))
            for group, matches in enumerate(self._groups(number, bound, columns)):
                size, read, look = self._sizes(number, group, matches, columns, names)
                total, to_read, looked = total + size, to_read + read, looked + look
                skipped += not matches
                start, live_rows = int(self._starts[first + group]), self._live_rows(number, group)
                edges = np.array(matches, dtype=np.int64).reshape(-1, 2)
                edges = start + (edges if live_rows is None else np.searchsorted(live_rows, edges))
                runs += [(first_row, end) for first_row, end in edges.tolist() if first_row < end]
        ranges = ranges_of(runs)
        return Pruned(ranges, self.unit_names, len(self._starts) - 1, skipped, total, total - to_read, looked)

    def _groups(self, number: int, bound: Bound, columns: Mapping[str, str]) -> list[list[tuple[int, int]]]:
        """Return, for each row group, the runs of rows in which the condition can be true."""
        names = fields_of(bound)
        fixed_bounds, file = self._fixed_bounds(number, list(names)), self._parquet(number)

        def fixed(name: str) -> Bounds:
            return fixed_bounds.get(name, Bounds())

        if file is None:
            sizes = np.diff(self._starts[self._firsts[number] : self._firsts[number + 1] + 1]).tolist()
            return [[(0, rows)] if can_match(bound, fixed) else [] for rows in sizes]
        fields = {name: (columns[name], self.schema[name]) for name in names if name in columns}
        return file.page_reader.can_match(bound, fields, fixed)

    def _sizes(
        self,
        number: int,
        group: int,
        matches: Sequence[tuple[int, int]],
        columns: Mapping[str, str],
        names: Iterable[str],
    ) -> tuple[int, int, int]:
        """Return the bytes of a row group, those to read, and those that the condition needs."""
        file = self._parquet(number)
        if file is None:
            return 0, 0, 0
        size = sum(length for _, length in file.runs(group, list(columns.values())))
        if not matches:
            return size, 0, 0
        needed = [columns[name] for name in names if name in columns]
        condition_bytes = sum(length for _, length in file.runs(group, needed))
        if list(matches) == [(0, int(file.rows[group]))]:
            return size, size, condition_bytes
        rows = numbers_in(np.array(matches, dtype=np.int64))
        plans = [file.page_reader.plan(group, column, rows) for column in needed]
        saved = sum(plan.chunk.size - plan.size for plan in plans if plan is not None)
        return size, size - saved, condition_bytes - saved


class SelectedRows(TableReader):
    """View of ascending rows of another reader; each unit holds the selected rows of one of its units."""

    def __init__(self, base: ParquetRows, rows: I64) -> None:
        self.base, self._rows = base, rows
        self.path, self.format, self.schema, self.window = base.path, base.format, base.schema, base.window
        units, inside = base._units_of(rows)
        edges = np.flatnonzero(np.diff(units, prepend=-1))
        self._units = units[edges]
        self._inside = np.split(inside, edges[1:])
        self._set_units(
            [len(rows_of_unit) for rows_of_unit in self._inside] if len(rows) else [], base._cache.max_bytes
        )

    def _load(self, unit: int, fields: Sequence[str]) -> Columns:
        return self.base._load_rows(int(self._units[unit]), self._inside[unit], fields)

    def _path_of(self, unit: int) -> str:
        return self.base._path_of(int(self._units[unit]))

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return self.base._spans(field, self._rows[indices])

    def _known(self, field: str, indices: I64) -> Spans | None:
        return self.base._known(field, self._rows[indices])

    def _unit_runs(self, unit: int, fields: Sequence[str]) -> list[SourceRun] | None:
        return self.base._row_runs(int(self._units[unit]), self._inside[unit], fields)


def cell_bounds(field: Field, column: Column) -> Bounds:
    """Return the bounds of rows that all have this cell."""
    if isinstance(column, Ragged) and column.valid is not None and not column.valid[0]:
        return Bounds(1, 1)
    kind_of_value = comparison_of(field)
    value: Any = None
    if kind_of_value == BYTES and isinstance(column, Ragged):
        cell = column[0]
        value = None if cell is None else cell.tobytes()
    elif kind_of_value == NUMBER:
        dense = dense_of(field)
        values = Masked(column, *dense).values if isinstance(column, Ragged) and dense else column
        first = np.asarray(values)[:1]
        value = first[0].item()
    # NaN lies between no bounds.
    if value is None or value != value:
        return Bounds()
    return Bounds(1, 0, value, value)


# If a batch needs more rows of a row group on average, it is decoded as a whole.
MAX_ROWS_BY_PAGE = 2
# Pages are read if they are less than this fraction of the row group.
MAX_PAGE_FRACTION = 0.5
# Row groups that are sampled to estimate the decoded size of all.
SAMPLED_GROUPS = 64

Runs = list[SourceRun]


class PageReadPolicy:
    """Decides whether rows are read by pages instead of by row groups.

    Random orders need single rows of more row groups than the cache holds: then a row costs its pages only. A
    row group that is needed again soon, as in quasi-random orders, is decoded as a whole and cached.
    """

    def __init__(self, reader: ParquetRows) -> None:
        self._reader, self._cache_bytes = reader, reader._cache.max_bytes
        units = len(reader._starts) - 1
        # Clock (requested row groups so far) of the last request of each row group.
        self._last_request = np.full(units, -(1 << 62), np.int64)
        self._clock = 0
        # Bytes of each row group that were read for single rows.
        self._spent = np.zeros(units, np.int64)
        self._sizes: dict[tuple[str, ...], float] = {}

    def wants(self, units: I64, rows: I64, names: tuple[str, ...]) -> bool:
        """True if these local rows, each of its unit, should be read by pages."""
        used, _ = _native.distinct(units)
        if not names or not len(used) or len(units) > MAX_ROWS_BY_PAGE * len(used):
            return False
        size = self._size(names)
        if self.all_fit(names):
            return False
        lately = self._last_request[used] > self._clock - self._cache_bytes / size
        if lately.mean() > 0.5:
            return False
        first = used[0]
        runs = self._reader._row_runs(first, np.unique(rows[units == first]), names)
        return runs is not None and _bytes(runs) < MAX_PAGE_FRACTION * _bytes(
            self._reader._unit_runs(first, names)
        )

    def saves(self, units: I64, rows: I64, names: tuple[str, ...]) -> bool:
        """True if the pages of these rows and of earlier ones are smaller than their row groups."""
        used = np.unique(units).tolist()
        for unit in used:
            page_bytes = _bytes(self._reader._row_runs(unit, np.unique(rows[units == unit]), names))
            if not names or self._spent[unit] + page_bytes >= _bytes(self._reader._unit_runs(unit, names)):
                return False
            self._spent[unit] += page_bytes
        return bool(used)

    def all_fit(self, names: tuple[str, ...]) -> bool:
        """True if these fields of all row groups fit in the cache."""
        return self._size(names) * len(self._last_request) <= self._cache_bytes

    def note(self, units: I64) -> None:
        """Record a request of these units. Races between threads only blur the clock."""
        used, _ = _native.distinct(units)
        self._last_request[used] = self._clock
        self._clock += len(used)

    def _size(self, names: tuple[str, ...]) -> float:
        if names not in self._sizes:
            looked = np.unique(
                np.linspace(0, len(self._last_request) - 1, SAMPLED_GROUPS).astype(np.int64)
            ).tolist()
            self._sizes[names] = max(
                1.0, sum(self._reader._decoded_size(unit, names) for unit in looked) / len(looked)
            )
        return self._sizes[names]


def _bytes(runs: Runs | None) -> int:
    return sum(size for _, _, size in runs or ())


def by_unit(units: I64, rows: I64) -> list[tuple[int, I64, I64]]:
    """Group rows by unit: (unit, its rows, their positions in the batch)."""
    order = np.lexsort((rows, units))
    edges = np.flatnonzero(np.diff(units[order], prepend=-1))
    groups = itertools.pairwise([*edges.tolist(), len(order)])
    return [(int(units[order[a]]), rows[order[a:b]], order[a:b]) for a, b in groups]
