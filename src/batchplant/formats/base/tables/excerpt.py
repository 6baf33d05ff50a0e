"""Some pages of a column of a row group, decoded without the others.

They are put together to a Parquet file of their own in memory: the dictionary, the pages, and a footer that
knows of no other column. Pages are copied as they are, so their checksums still hold.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ....codecs.arrow import numbers, pyarrow
from ....codecs.arrow.sizes import plain_size
from ....errors import DamagedError
from ....schema.columns import I64, U8
from ....storage import limits
from .footer import MAGIC, Chunk, Footer, Leaf, footer_bytes
from .lists import decode_lists
from .pagemap import PageMap
from .pages import DATA, DATA_2, claim_of, page_header
from .thrift import BINARY, STRUCT, Struct

_I32, _I64 = 5, 6
# All that values can be packed with; a reader looks at the pages for what they are.
_ENCODINGS = (0, 2, 3, 4, 5, 6, 7, 8, 9)
ARROW_SCHEMA = b"ARROW:schema"


class Plan(NamedTuple):
    """Pages to read, and where wanted rows will be among theirs."""

    chunk: Chunk
    leaf: Leaf
    pages: PageMap
    numbers: I64

    @property
    def runs(self) -> list[tuple[int, int]]:
        """Start and size of what has to be read: pages that lie side by side together."""
        found = [] if self.pages.head is None or not self._coded else [self.pages.head]
        starts, sizes = self.pages.starts[self.numbers], self.pages.sizes[self.numbers]
        for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
            if found and sum(found[-1]) == start:
                found[-1] = (found[-1][0], found[-1][1] + size)
            else:
                found.append((start, size))
        return found

    @property
    def _coded(self) -> bool:
        """Whether some of them may need the dictionary."""
        return self.pages.coded is None or bool(self.pages.coded[self.numbers].any())

    @property
    def rows(self) -> int:
        return int((self.pages.rows[self.numbers + 1] - self.pages.rows[self.numbers]).sum())

    @property
    def size(self) -> int:
        return sum(size for _, size in self.runs)

    def taken(self, column: Any, rows: I64) -> Any:
        """These rows of the row group, in ascending order, out of an Arrow column of the pages."""
        firsts = self.pages.rows[self.numbers]
        sizes = self.pages.rows[self.numbers + 1] - firsts
        before: I64 = np.cumsum(sizes) - sizes
        # In a run of rows, no page between the first and the last is left out.
        some = rows[:1] if is_run(rows) else rows
        page = np.searchsorted(firsts, some, side="right") - 1
        places = some - firsts[page] + before[page]
        if is_run(rows):
            return column.slice(int(places[0]), len(rows))
        return column.take(numbers(places))


class Excerpts:
    """Makes files of single columns of a Parquet file, each of some pages."""

    def __init__(self, footer: Footer, schema: Any, arrow: bool) -> None:
        self._footer, self._schema, self._arrow = footer, schema, arrow
        self._heads: dict[str, Struct] = {}

    def read(self, name: str, plan: Plan, rows: I64, view: Callable[[int, int], U8]) -> Any:
        """These rows of a column as an Arrow column; DamagedError where its pages unpack to too much."""
        parts = [view(start, size) for start, size in plan.runs]
        data = np.concatenate([np.frombuffer(MAGIC, np.uint8), *parts])
        dictionary = plan.pages.head is not None and plan._coded
        size, values = len(data) - len(MAGIC), self._values(plan, data, dictionary)
        chunk = plan.chunk._replace(start=len(MAGIC), size=size, values=values)
        claim = claim_of(data[len(MAGIC) :], chunk, plan.leaf)
        limits.check("its pages", claim.size, size)
        column = decode_lists(data[len(MAGIC) :], chunk, plan.leaf, self._schema.field(name).type)
        if column is not None and len(column) == plan.rows:
            return plan.taken(column, rows)
        end = self._footer_of(name, plan.rows, [_column(plan, chunk, dictionary)])
        numbered = [".".join(plan.leaf.path)] if claim.by_dictionary else None
        file = _opened(np.concatenate([data, end]), numbered)
        column = file.reader.read_row_group(0, column_indices=[0], use_threads=False).column(0)
        if len(column) != plan.rows:
            raise DamagedError(f"its pages have {len(column)} rows, and {plan.rows} were promised")
        column = plan.taken(column, rows)
        if claim.by_dictionary:
            limits.check("its pages", plain_size(column), size)
        return column.cast(self._schema.field(name).type) if claim.by_dictionary else column

    def first(self, name: str, plans: Sequence[Plan], rows: int, view: Callable[[int, int], U8]) -> Any:
        """The first rows of a column of several leaves, of each of which the first pages are at hand.

        DamagedError where they unpack to too much. Pages of leaves may have differing numbers of rows.
        """
        pieces: list[U8] = [np.frombuffer(MAGIC, np.uint8)]
        columns, at = [], len(MAGIC)
        for plan in plans:
            data = np.concatenate([view(start, size) for start, size in plan.runs])
            dictionary = plan.pages.head is not None
            chunk = plan.chunk._replace(start=at, size=len(data), values=plan.rows)
            claim = claim_of(data, chunk, plan.leaf)
            if claim.by_dictionary:
                raise DamagedError("its dictionary repeats too much")
            limits.check("its pages", claim.size, len(data))
            columns.append(_column(plan, chunk, dictionary))
            pieces.append(data)
            at += len(data)
        count = min(rows, *(plan.rows for plan in plans))
        end = self._footer_of(name, count, columns)
        file = _opened(np.concatenate([*pieces, end]), None)
        return next(file.iter_batches(batch_size=count, use_threads=False)).column(0)

    def _footer_of(self, name: str, rows: int, columns: list[Struct]) -> U8:
        """The footer of a file with this column alone."""
        size = sum(column[3][1][6][1] for column in columns)
        group: Struct = {1: (9, (STRUCT, columns)), 2: (_I64, size), 3: (_I64, rows)}
        whole = {**self._head(name), 3: (_I64, rows), 4: (9, (STRUCT, [group]))}
        return np.frombuffer(footer_bytes(whole), np.uint8)

    def _values(self, plan: Plan, data: U8, dictionary: bool) -> int:
        """How many values the pages have, by their own headers; an index may say what is not true."""
        at = len(MAGIC) + (plan.pages.head[1] if dictionary and plan.pages.head else 0)
        found = []
        try:
            while at < len(data):
                header, body = page_header(data, at)
                about: Struct = header[{DATA: 5, DATA_2: 8}[header[1][1]]][1]
                found.append(int(about[1][1]))
                at = body + header[3][1]
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedError(f"a page is damaged: {error}") from None
        rows = plan.pages.rows[plan.numbers + 1] - plan.pages.rows[plan.numbers]
        if len(found) != len(rows) or (not plan.leaf.lists and found != rows.tolist()):
            raise DamagedError("the index of its pages is wrong")
        return sum(found)

    def _head(self, name: str) -> Struct:
        """What a footer says besides its row groups, of a file with this column alone."""
        if name not in self._heads:
            elements = self._footer.elements
            at = 1
            while elements[at][4][1].decode(errors="replace") != name:
                at = _end(elements, at)
            top: Struct = {**elements[0], 5: (_I32, 1)}
            found: Struct = {1: (_I32, 2), 2: (9, (STRUCT, [top, *elements[at : _end(elements, at)]]))}
            if self._arrow:
                one = pyarrow().schema([self._schema.field(name)]).serialize().to_pybytes()
                pair: Struct = {1: (BINARY, ARROW_SCHEMA), 2: (BINARY, base64.b64encode(one))}
                found[5] = (9, (STRUCT, [pair]))
            self._heads[name] = found
        return self._heads[name]


def _opened(data: U8, dictionaries: Sequence[str] | None) -> Any:
    """A file in memory, as the library has it."""
    pa = pyarrow()
    import pyarrow.parquet as pq

    return pq.ParquetFile(
        pa.BufferReader(pa.py_buffer(data)), read_dictionary=dictionaries, page_checksum_verification=True
    )


def is_run(rows: I64) -> bool:
    """Whether rows in ascending order follow one another."""
    return bool(len(rows)) and int(rows[-1]) - int(rows[0]) == len(rows) - 1


def _end(elements: Sequence[Struct], at: int) -> int:
    """Behind an element of a schema and all that is in it."""
    left = 1
    while left:
        left += elements[at].get(5, (0, 0))[1] - 1
        at += 1
    return at


def _column(plan: Plan, chunk: Chunk, dictionary: bool) -> Struct:
    """What a footer says of a column whose pages lie together, behind the dictionary where there is one."""
    path = [one.encode(errors="surrogateescape") for one in plan.leaf.path]
    before = plan.pages.head[1] if dictionary and plan.pages.head else 0
    data: Struct = {
        1: (_I32, chunk.kind), 2: (9, (_I32, list(_ENCODINGS))), 3: (9, (BINARY, path)),
        4: (_I32, chunk.codec), 5: (_I64, chunk.values), 6: (_I64, chunk.size), 7: (_I64, chunk.size),
        9: (_I64, chunk.start + before),
    }  # fmt: skip
    if dictionary:
        data[11] = (_I64, chunk.start)
    return {2: (_I64, 0), 3: (STRUCT, data)}
