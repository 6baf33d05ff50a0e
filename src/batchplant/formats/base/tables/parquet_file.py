"""ParquetFile: one Parquet file, read row group by row group, or by pages if few rows are needed."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ....codecs.arrow import pyarrow
from ....codecs.arrow.buffers import plain_size
from ....codecs.arrow.hugging_face import is_missing
from ....codecs.arrow.infer import check_names, has_gaps, is_whole_list
from ....codecs.arrow.types import is_file_struct
from ....errors import BatchplantError, DamagedError, SchemaError, located
from ....schema.columns import I64, U8
from ....storage import MappedSource, RemoteSource, index, limits, open_source
from .footer import BYTE_ARRAY, MAGIC, Footer
from .lists import decode_lists
from .page_reader import ARROW_SCHEMA, FetchedFile, PageReader, rows_of
from .pages import DATA, PLAIN, Claim, claim_of, page_header, page_map

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
        leaf = self._leaf_in_place(name)
        if leaf is None or not isinstance(self.source, MappedSource):
            return [None] * len(groups)
        return cells_of(self.source, self.footer, groups, leaf, sequential)

    def recalled(self, name: str) -> Cells | None:
        """Return the remembered cells of all row groups, or None."""
        leaf = self._leaf_in_place(name)
        if leaf is None or not isinstance(self.source, MappedSource):
            return None
        return recalled(self.source, int(self.rows.sum()), leaf)

    def remember(self, name: str, cells: Cells) -> None:
        """Remember the cells of all row groups."""
        leaf = self._leaf_in_place(name)
        if leaf is not None and isinstance(self.source, MappedSource):
            remember(self.source, leaf, cells)

    def _leaf_in_place(self, name: str) -> int | None:
        """Return the leaf whose plainly stored cells may be those of a column; None: it is compressed."""
        leaves = self._byte_leaves(name)
        chunks = [group.chunks[leaves[0]] for group in self.footer.groups]
        packed = all(chunk is None or chunk.codec for chunk in chunks)
        return None if packed or len(leaves) > 1 else leaves[0]

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


def recalled(source: MappedSource, rows: int, leaf: int) -> Cells | None:
    """Return the remembered locations of all cells of a column, or None."""

    def fits(cached: index.Index) -> bool:
        start, size = cached.arrays["starts"], cached.arrays["sizes"]
        if not start.dtype == size.dtype == np.int64 or not start.shape == size.shape == (rows,):
            return False
        apart = (start == -1) & (size == -1)
        # Compare without adding start and size: the sum may overflow.
        return bool((apart | ((start > 0) & (size >= 0) & (start <= source.size - size))).all())

    remembered = index.recall(source, KIND, str(leaf), check=fits)
    return None if remembered is None else (remembered.arrays["starts"], remembered.arrays["sizes"])


def remember(source: MappedSource, leaf: int, cells: Cells) -> None:
    """Save the locations of a column's cells in the user's cache."""

    def build(_: object, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        return {"starts": cells[0], "sizes": cells[1]}, {}

    index.remember(source, KIND, str(leaf), build)


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
