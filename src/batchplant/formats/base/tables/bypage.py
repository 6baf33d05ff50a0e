"""A Parquet file by its statistics and pages: what can be where, and some rows without the rest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ....codecs.arrow import numbers, pyarrow
from ....codecs.arrow.types import is_binary, is_file_struct
from ....data.expressions import Bound, Bounds, Lookup, can_match
from ....schema import Field
from ....schema.columns import I64, U8
from ....storage import MappedSource, Source
from .bloom import bloom_filter
from .excerpt import Excerpts, Plan, is_run
from .footer import Chunk, Footer, Group, Leaf
from .heads import first_cells
from .held import Held
from .pagemap import HEADER_BYTES, PageMap, first_pages, page_bounds, page_map
from .stats import Meaning, bounds_of, chunk_bounds, meaning_of

# Of a column of which more than this is needed, all pages are read: one piece is quicker than many.
MOST = 0.7
# A smaller column on a server costs one request, as its index would.
SMALL = 64 << 10
# Less than this is decoded before a second thread has begun.
SIDE_BY_SIDE = 256 << 10

Runs = list[tuple[int, int]]


class ByPage:
    """What a file knows of its row groups and pages. ``leaves``: the columns of each column of the table."""

    def __init__(
        self, source: Source, footer: Footer, schema: Any, leaves: Mapping[str, Sequence[int]], arrow: bool
    ) -> None:
        self._source, self._footer, self._schema, self._leaves = source, footer, schema, leaves
        self._mapped = isinstance(source, MappedSource)
        self._maps: dict[tuple[int, int], PageMap | None] = {}
        self._excerpts = Excerpts(footer, schema, arrow)

    # -- statistics ------------------------------------------------------------------------------------

    def can_match(self, bound: Bound, fields: Mapping[str, tuple[str, Field]], fixed: Lookup) -> list[Runs]:
        """For every row group the runs of rows in which a condition can be true.

        ``fields``: those of the condition that are in the file, each with its column and kind; of the others
        ``fixed`` tells.
        """
        meanings = {name: self._meaning(column, field) for name, (column, field) in fields.items()}
        found: list[Runs] = [[] for _ in self._footer.groups]
        left = []
        for number, group in enumerate(self._footer.groups):
            if group.rows and can_match(bound, self._of_group(number, fields, fixed, meanings, False)):
                left.append(number)
        self.expect(left, [column for column, _ in fields.values()], bounds=True)
        for number in left:
            whole = self._of_group(number, fields, fixed, meanings, True)
            if can_match(bound, whole):
                found[number] = self._page_runs(number, bound, fields, whole, meanings)
        return found

    def _meaning(self, column: str, field: Field) -> Meaning | None:
        leaves = self._leaves[column]
        if len(leaves) != 1:
            return None
        return meaning_of(field, self._footer.leaves[leaves[0]], self._schema.field(column).type)

    def _of_group(
        self,
        number: int,
        fields: Mapping[str, tuple[str, Field]],
        fixed: Lookup,
        meanings: Mapping[str, Meaning | None],
        deep: bool,
    ) -> Lookup:
        """What is known of a row group; ``deep``: also by bloom filters."""
        rows = self._footer.groups[number].rows
        known: dict[str, Bounds] = {}

        def of(name: str) -> Bounds:
            if name not in fields:
                return fixed(name)
            if name not in known:
                column, field = fields[name]
                chunk, leaf = self._only(number, column)
                if chunk is None:
                    return Bounds()
                meaning = meanings[name]
                found = chunk_bounds(rows, chunk, leaf, self._footer.ordered, meaning)
                # Times that are none count as missing, and nobody counted those.
                found = found._replace(missing=found.missing or None) if _may_be_nat(field) else found
                if deep and meaning is not None and not hasattr(field, "unit"):
                    with contextlib.suppress(ValueError):
                        found = found._replace(holds=bloom_filter(self._source, chunk, leaf))
                known[name] = found
            return known[name]

        return of

    def _only(self, number: int, column: str) -> tuple[Chunk | None, Any]:
        """The one column of the file that a column of the table is, in a row group."""
        leaves = self._leaves[column]
        if len(leaves) != 1:
            return None, None
        return self._footer.groups[number].chunks[leaves[0]], self._footer.leaves[leaves[0]]

    def _page_runs(
        self,
        number: int,
        bound: Bound,
        fields: Mapping[str, tuple[str, Field]],
        whole: Lookup,
        meanings: Mapping[str, Meaning | None],
    ) -> Runs:
        """The runs of a row group that pages leave."""
        group = self._footer.groups[number]
        pages: dict[str, tuple[I64, list[Bounds]]] = {}
        for name, (column, field) in fields.items():
            chunk, leaf = self._only(number, column)
            meaning = meanings[name]
            if chunk is None or meaning is None or (not self._mapped and chunk.size < SMALL):
                continue
            found = self._map(number, column)
            bounds = None if found is None else page_bounds(self._source, chunk, found, leaf)
            if found is None or bounds is None or len(found.starts) < 2:
                continue
            sizes = np.diff(found.rows).tolist()
            each = [bounds_of(rows, *one, meaning) for rows, one in zip(sizes, bounds, strict=True)]
            if _may_be_nat(field):
                each = [one._replace(missing=one.missing or None) for one in each]
            pages[name] = found.rows, each
        if not pages:
            return [(0, group.rows)]
        edges = np.unique(np.concatenate([rows for rows, _ in pages.values()]))
        at = {
            name: (np.searchsorted(rows, edges[:-1], side="right") - 1).tolist()
            for name, (rows, _) in pages.items()
        }
        runs: Runs = []
        for piece, (start, end) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):

            def of(name: str, piece: int = piece) -> Bounds:
                return pages[name][1][at[name][piece]] if name in pages else whole(name)

            if can_match(bound, of):
                if runs and runs[-1][1] == start:
                    runs[-1] = (runs[-1][0], end)
                else:
                    runs.append((start, end))
        return runs

    def expect(self, groups: Sequence[int], columns: Sequence[str], *, bounds: bool = False) -> None:
        """Ask for the indexes of pages that are needed next, all together; ``bounds``: of values too."""
        if self._mapped:
            return
        runs = []
        for number in groups:
            for column in columns:
                chunk, _ = self._only(number, column)
                if chunk is None or chunk.size < SMALL:
                    continue
                known = (number, self._leaves[column][0]) in self._maps
                wanted = None if known else chunk.pages, chunk.page_bounds if bounds else None
                runs += [run for run in wanted if run is not None and run[1] > 0]
        if runs:
            both = np.array(runs, dtype=np.int64)
            self._source.will_need(both[:, 0], both[:, 1])

    # -- rows ------------------------------------------------------------------------------------------

    def _map(self, number: int, column: str) -> PageMap | None:
        leaf = self._leaves[column][0]
        if (number, leaf) not in self._maps:
            group = self._footer.groups[number]
            chunk = group.chunks[leaf]
            found = None
            if chunk is not None:
                found = page_map(self._source, group, chunk, self._footer.leaves[leaf], self._mapped)
            self._maps[number, leaf] = found
        return self._maps[number, leaf]

    def plan(self, number: int, column: str, rows: I64) -> Plan | None:
        """The pages of a column that these rows, in ascending order, are in; None: all, or nobody knows."""
        chunk, leaf = self._only(number, column)
        if chunk is None or not len(rows) or (not self._mapped and chunk.size < SMALL):
            return None
        pages = self._map(number, column)
        if pages is None:
            return None
        plan = Plan(chunk, leaf, pages, pages.holding(rows))
        return plan if plan.size <= MOST * chunk.size else None

    def read(self, plans: Mapping[str, Plan], rows: I64) -> dict[str, Any]:
        """These rows of columns, as Arrow columns; those whose pages are not what was said are left out."""
        view: Callable[[int, int], U8] = self._source.view
        if not self._mapped:
            runs = np.array([run for plan in plans.values() for run in plan.runs], np.int64).reshape(-1, 2)
            held = Held(self._source)
            held.fetch(runs[:, 0], runs[:, 1], ahead=False)
            view = held.view

        def read(name: str) -> Any:
            # The library raises what it likes on nonsense; whoever reads the whole column says what it is.
            with contextlib.suppress(Exception):
                return self._excerpts.read(name, plans[name], rows, view)
            return None

        threads = min(len(plans), len(os.sched_getaffinity(0)))
        if threads < 2 or sum(plan.size for plan in plans.values()) < SIDE_BY_SIDE:
            columns = list(map(read, plans))
        else:
            with ThreadPoolExecutor(threads, thread_name_prefix="batchplant-pages") as pool:
                columns = list(pool.map(read, plans))
        return {name: column for name, column in zip(plans, columns, strict=True) if column is not None}

    def first(self, number: int, columns: Sequence[str], rows: int) -> dict[str, Any]:
        """Some of the first cells of columns of bytes or files, as Arrow arrays; little else is read.

        Left out are small columns, those with lists in them, and those whose pages are damaged.
        """
        group, chunks = self._footer.groups[number], {}
        for column in columns:
            found = [(group.chunks[leaf], self._footer.leaves[leaf]) for leaf in self._leaves[column]]
            known = [(chunk, leaf) for chunk, leaf in found if chunk is not None and not leaf.lists]
            if len(known) == len(found) and max(chunk.size for chunk, _ in known) > HEADER_BYTES:
                chunks[column] = known
        if not chunks:
            return {}
        starts = np.array([chunk.start for some in chunks.values() for chunk, _ in some], np.int64)
        sizes = np.array([chunk.size for some in chunks.values() for chunk, _ in some], np.int64)
        self._source.will_need(starts, np.minimum(sizes, HEADER_BYTES))
        read: dict[str, Any] = {}
        for column, some in chunks.items():
            # The library raises what it likes on nonsense; whoever reads the whole column says what it is.
            with contextlib.suppress(Exception):
                made = self._first_cells(column, some, rows)
                read[column] = self._first_rows(group, column, some, rows) if made is None else made
        return {column: made for column, made in read.items() if made is not None}

    def _first_cells(self, column: str, chunks: Sequence[tuple[Chunk, Leaf]], rows: int) -> Any:
        """Cells out of the first bytes of a page; files without their paths. None: they do not tell."""
        kind = self._schema.field(column).type
        is_file = is_file_struct(kind)
        place = [one.name for one in kind].index("bytes") if is_file else 0
        chunk, leaf = chunks[place]
        # A file that has no bytes may have a path.
        if not (is_file or is_binary(kind)) or (is_file and chunk.nulls != 0):
            return None
        cells = first_cells(self._source, chunk, leaf, rows)
        if not cells:
            return None
        return pyarrow().array([{"bytes": one, "path": None} for one in cells] if is_file else cells, kind)

    def _first_rows(self, group: Group, column: str, chunks: Sequence[tuple[Chunk, Leaf]], rows: int) -> Any:
        """The first rows, out of whole pages."""
        plans = []
        for chunk, leaf in chunks:
            pages = first_pages(self._source, group, chunk, rows)
            if pages is None:
                return None
            plans.append(Plan(chunk, leaf, pages, np.arange(len(pages.starts))))
        held = Held(self._source)
        held.fetch(*np.array([run for plan in plans for run in plan.runs], np.int64).T, ahead=False)
        return self._excerpts.first(column, plans, rows, held.view)


def rows_of(table: Any, rows: I64) -> Any:
    """Some rows of an Arrow table; a run of them is not copied."""
    return table.slice(int(rows[0]), len(rows)) if is_run(rows) else table.take(numbers(rows))


def _may_be_nat(field: Field) -> bool:
    dtype = getattr(field, "dtype", None)
    return dtype is not None and np.dtype(dtype).kind in "mM"
