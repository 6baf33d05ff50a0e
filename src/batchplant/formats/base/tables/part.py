"""ParquetPart: one Parquet file, read row group by row group, or by pages where few rows are wanted."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ....codecs.arrow import pyarrow
from ....codecs.arrow.files import is_missing
from ....codecs.arrow.infer import check_names, has_gaps, is_whole_list
from ....codecs.arrow.sizes import plain_size
from ....codecs.arrow.types import is_file_struct
from ....errors import BatchplantError, DamagedError, SchemaError
from ....schema.columns import I64, U8
from ....storage import MappedSource, RemoteSource, limits, open_source
from .bypage import ByPage, rows_of
from .excerpt import ARROW_SCHEMA
from .footer import MAGIC, Footer
from .held import Held
from .inplace import Cells, cells_of, recalled, remember
from .lists import decode_lists
from .pages import Claim, claim_of


class ParquetPart:
    """One Parquet file. ``values``: of the columns that are not in it, such as those of its partition."""

    def __init__(self, path: str, values: Mapping[str, Any] | None = None) -> None:
        self.path = path
        self.values = dict(values or {})
        self._source = open_source(path)
        self._idle: list[Any] = []
        self._claims: dict[tuple[int, int], Claim] = {}
        try:
            # Before the library: it may end the process at a damaged one.
            self.footer = Footer(self._source)
            file = self._open(self._parsed())
            self._metadata = file.metadata
            self.schema = file.schema_arrow
            # Names are decoded only when they are asked for.
            check_names(self.schema)
            self._leaves = _leaves_of(self.schema)
            if sum(map(len, self._leaves.values())) != len(self.footer.leaves):
                raise DamagedError("the schema in its metadata has other columns than the file")
            self.rows = np.array([group.rows for group in self.footer.groups], dtype=np.int64)
            described = ARROW_SCHEMA in (file.metadata.metadata or {})
            self.by_page = ByPage(self._source, self.footer, self.schema, self._leaves, described)
            self._idle.append(file)
        except BatchplantError as error:
            raise error.at(path=path) from None
        # The library raises what it likes on nonsense.
        except Exception as error:
            raise DamagedError(f"the footer cannot be read: {first_line(error)}", path=path) from None

    def _open(self, metadata: Any, held: Held | None = None, dictionaries: Sequence[str] = ()) -> Any:
        pa = pyarrow()
        import pyarrow.parquet as pq

        source = self._source
        if isinstance(source, MappedSource):
            stream = pa.BufferReader(pa.py_buffer(source.view(0, source.size)))
        else:
            stream = pa.PythonFile(held or source.file(), mode="r")
        return pq.ParquetFile(
            stream,
            metadata=metadata,
            read_dictionary=dictionaries or None,
            page_checksum_verification=True,
        )

    def _parsed(self) -> Any:
        """The footer as the library knows it: it would fetch it once more, and much around it."""
        import pyarrow.parquet as pq

        raw, self.footer.raw = self.footer.raw or b"", None
        if isinstance(self._source, MappedSource):
            return None
        return pq.read_metadata(pyarrow().BufferReader(MAGIC + raw))

    def load(self, group: int, names: Sequence[str], *, ahead: bool = True) -> Any:
        """These columns of a row group, as a table; no other is read. ``ahead``: others may follow."""
        leaves = {leaf: name for name in names for leaf in self._leaves[name]}
        held = None if isinstance(self._source, MappedSource) else self._fetched(group, list(leaves), ahead)
        claims = {leaf: self._claim(group, leaf, name, held) for leaf, name in leaves.items()}
        ours = {name: found for name in names if (found := self._lists(group, name, held)) is not None}
        rest = [leaf for leaf, name in leaves.items() if name not in ours]
        table: Any = None
        if rest or not ours:
            table = self._by_library(group, {leaf: leaves[leaf] for leaf in rest}, claims, held)
        if not ours:
            return table
        return self._table({name: ours[name] if name in ours else table.column(name) for name in names})

    def _by_library(
        self, group: int, leaves: Mapping[int, str], claims: Mapping[int, Claim], held: Held | None
    ) -> Any:
        """The columns that these leaves are, as a table."""
        repeated = {name: leaf for leaf, name in leaves.items() if claims[leaf].by_dictionary}
        if repeated or held is not None:
            paths = [".".join(self.footer.leaves[leaf].path) for leaf in leaves if claims[leaf].by_dictionary]
            file = self._open(self._metadata, held, paths)
            table = file.reader.read_row_group(group, column_indices=list(leaves), use_threads=True)
            return self._plain(group, table, repeated)
        # A ParquetFile is not for several threads at once.
        try:
            file = self._idle.pop()
        except IndexError:
            file = self._open(self._metadata)
        table = file.reader.read_row_group(group, column_indices=list(leaves), use_threads=True)
        self._idle.append(file)
        return table

    def _lists(self, group: int, name: str, held: Held | None) -> Any:
        """A column of lists of numbers; None where it is something else."""
        leaves = self._leaves[name]
        if len(leaves) != 1 or not self.footer.leaves[leaves[0]].lists:
            return None
        chunk, about = self.footer.groups[group].chunks[leaves[0]], self.footer.leaves[leaves[0]]
        if chunk is None:
            return None
        view = (held or self._source).view(chunk.start, chunk.size)
        found = decode_lists(view, chunk, about, self.schema.field(name).type)
        return found if found is not None and len(found) == self.footer.groups[group].rows else None

    def _table(self, columns: Mapping[str, Any]) -> Any:
        pa = pyarrow()
        schema = pa.schema([self.schema.field(name) for name in columns], metadata=self.schema.metadata)
        return pa.table(list(columns.values()), schema=schema)

    def load_rows(self, group: int, names: Sequence[str], rows: I64) -> Any:
        """These rows of a row group, in ascending order; only the pages that they are in, where that pays."""
        plans = {name: self.by_page.plan(group, name, rows) for name in names}
        found = self.by_page.read({name: plan for name, plan in plans.items() if plan is not None}, rows)
        whole = [name for name in names if name not in found]
        if whole:
            table = rows_of(self.load(group, whole, ahead=False), rows)
            found |= {name: table.column(name) for name in whole}
        return self._table({name: found[name] for name in names})

    def first_cells(self, names: Sequence[str], rows: int) -> Any:
        """Some of the first cells of columns; of large ones, no more is read than the beginning."""
        found = self.by_page.first(0, names, rows)
        rest = [name for name in names if name not in found]
        if rest:
            table = self.load(0, rest, ahead=False).slice(0, rows)
            found |= {name: table.column(name) for name in rest}
        count = min(len(column) for column in found.values())
        return self._table({name: found[name].slice(0, count) for name in names})

    def row_runs(self, group: int, names: Sequence[str], rows: I64) -> list[tuple[int, int]]:
        """Start and size of what reading these rows takes."""
        self.by_page.expect([group], names)
        plans = {name: self.by_page.plan(group, name, rows) for name in names}
        whole = self.runs(group, [name for name in names if plans[name] is None])
        return [*whole, *(run for plan in plans.values() if plan is not None for run in plan.runs)]

    def cells(self, groups: Sequence[int], name: str, whole: bool) -> list[Cells | None]:
        """Starts and sizes of the cells of a column of bytes, or of files, in row groups; None where they do
        not lie in the file as they are, or it is not mapped. ``whole``: most of the cells are read next."""
        leaf = self._leaf_in_place(name)
        if leaf is None or not isinstance(self._source, MappedSource):
            return [None] * len(groups)
        return cells_of(self._source, self.footer, groups, leaf, whole)

    def recalled(self, name: str) -> Cells | None:
        """The same of all row groups, where somebody has found them before."""
        leaf = self._leaf_in_place(name)
        if leaf is None or not isinstance(self._source, MappedSource):
            return None
        return recalled(self._source, int(self.rows.sum()), leaf)

    def remember(self, name: str, cells: Cells) -> None:
        """Keep what was found of all row groups."""
        leaf = self._leaf_in_place(name)
        if leaf is not None and isinstance(self._source, MappedSource):
            remember(self._source, leaf, cells)

    def _leaf_in_place(self, name: str) -> int | None:
        """The column of the file whose cells may be those of a column, as they are; None: they are packed."""
        leaves = self._byte_leaves(name)
        chunks = [group.chunks[leaves[0]] for group in self.footer.groups]
        packed = all(one is None or one.codec for one in chunks)
        return None if packed or len(leaves) > 1 else leaves[0]

    def copied(self, starts: I64, sizes: I64, out: U8, places: I64) -> None:
        """Runs of the file, each to its place."""
        self._source.gather_into(starts, sizes, out, places)

    def _fetched(self, group: int, leaves: Sequence[int], ahead: bool) -> Held:
        """The bytes of these columns, which the headers of pages and the library are then read from."""
        runs = np.array(self._runs(group, leaves), np.int64).reshape(-1, 2)
        held = Held(self._source)
        held.fetch(runs[:, 0], runs[:, 1], ahead=ahead)
        return held

    def _runs(self, group: int, leaves: Sequence[int]) -> list[tuple[int, int]]:
        chunks = [self.footer.groups[group].chunks[leaf] for leaf in leaves]
        return [(one.start, one.size) for one in chunks if one is not None]

    def runs(self, group: int, names: Sequence[str]) -> list[tuple[int, int]]:
        """Start and size of what reading these columns of a row group takes."""
        return self._runs(group, [leaf for name in names for leaf in self._leaves[name]])

    def _claim(self, group: int, leaf: int, name: str, held: Held | None) -> Claim:
        """What a column unpacks to; DamagedError where that is too much."""
        known = self._claims.get((group, leaf))
        if known is not None and held is None:
            return known
        chunk = self.footer.groups[group].chunks[leaf]
        if chunk is None:
            raise SchemaError("this column is encrypted", field=name)
        view = (held or self._source).view(chunk.start, chunk.size)
        try:
            found = claim_of(view, chunk, self.footer.leaves[leaf])
            limits.check("its column", found.size, chunk.size)
        except DamagedError as error:
            said = f"row group {group} cannot be read: {error.message}"
            offset = chunk.start if error.offset is None else error.offset
            raise DamagedError(said, field=name, offset=offset) from None
        self._claims[group, leaf] = found
        return found

    def _plain(self, group: int, table: Any, repeated: Mapping[str, int]) -> Any:
        """The table with its own types, where columns were read as numbers and a dictionary."""
        for name, leaf in repeated.items():
            column, chunk = table.column(name), self.footer.groups[group].chunks[leaf]
            assert chunk is not None
            try:
                limits.check(f"column {name} of row group {group}", plain_size(column), chunk.size)
            except DamagedError as error:
                raise error.at(field=name, offset=chunk.start) from None
            number = table.schema.get_field_index(name)
            field = self.schema.field(name)
            table = table.set_column(number, field, column.cast(field.type))
        return table

    def nulls(self, names: Sequence[str]) -> set[str]:
        """The columns among these that may have missing values, by the file's own statistics."""
        return {name for name in names if self._may_miss(name)}

    def _may_miss(self, name: str) -> bool:
        if not self.schema.field(name).nullable:
            return False
        leaves, kind = self._byte_leaves(name), self.schema.field(name).type
        chunks = [group.chunks[leaf] for group in self.footer.groups for leaf in leaves]
        # Nobody counted them where the number is None.
        some = any(chunk is None or chunk.nulls != 0 for chunk in chunks)
        return some and not (is_file_struct(kind) and self._has_paths(name, leaves[0]))

    def _byte_leaves(self, name: str) -> list[int]:
        """The columns of the file that have what is in a column; of files, their bytes."""
        leaves, kind = self._leaves[name], self.schema.field(name).type
        return leaves[[one.name for one in kind].index("bytes") :][:1] if is_file_struct(kind) else leaves

    def _has_paths(self, name: str, leaf: int) -> bool:
        """Whether files that lack their bytes, which are in this leaf, have a path."""
        try:
            for number, group in enumerate(self.footer.groups):
                chunk = group.chunks[leaf]
                lack = chunk is None or chunk.nulls != 0
                if lack and is_missing(self.load(number, [name]).column(name)):
                    return False
        # Whoever reads it will meet the same damage, and say where.
        except Exception:
            return False
        return True

    def gaps(self, names: Sequence[str]) -> set[str]:
        """The lists of whole numbers inside of which some are missing, as the first row group shows in which
        there may be any."""
        found = set()
        for name in names:
            [leaf, *_] = self._leaves[name]
            chunks = [group.chunks[leaf] for group in self.footer.groups]
            first = next(
                (n for n, chunk in enumerate(chunks) if chunk is not None and chunk.nulls != 0), None
            )
            if first is None or not is_whole_list(self.schema.field(name).type):
                continue
            # Whoever reads it will meet the same damage, and say where.
            with contextlib.suppress(Exception):
                if has_gaps(self.load(first, [name]).column(name)):
                    found.add(name)
        return found

    def encrypted(self) -> list[str]:
        """The columns that nobody can read without a key."""
        locked = set(self.footer.encrypted)
        return [name for name, leaves in self._leaves.items() if locked.intersection(leaves)]

    @property
    def is_planned(self) -> bool:
        """Whether a loader asks for the bytes of a file on a server ahead."""
        return isinstance(self._source, RemoteSource) and self._source.planned

    @property
    def size(self) -> int:
        return self._source.size

    @property
    def tag(self) -> str:
        """What changes when the file does; empty where nothing tells."""
        return self._source.tag

    def close(self) -> None:
        self._idle.clear()
        self._source.close()


def first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__


def _leaves_of(schema: Any) -> dict[str, list[int]]:
    """The columns of the file that each column of the table is made of."""
    found: dict[str, list[int]] = {}
    first = 0
    for field in schema:
        count = _leaf_count(field.type)
        found[field.name] = list(range(first, first + count))
        first += count
    return found


def _leaf_count(kind: Any) -> int:
    pa = pyarrow()
    if isinstance(kind, pa.BaseExtensionType):
        return _leaf_count(kind.storage_type)
    if pa.types.is_dictionary(kind):
        return 1
    return sum(_leaf_count(kind.field(n).type) for n in range(kind.num_fields)) if kind.num_fields else 1
