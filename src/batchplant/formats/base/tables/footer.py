"""What a Parquet file says of itself, read and checked by us before pyarrow sees it.

pyarrow ends the process at some damaged footers, when it is asked about a column of a row group. So it never
is: all that we want to know of a footer stands here.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ....errors import DamagedError, SchemaError
from ....storage import Source, limits
from .thrift import LISTS, STRUCT, Struct, read_struct, struct_bytes

MAGIC, ENCRYPTED = b"PAR1", b"PARE"
BYTE_ARRAY, FIXED = 6, 7
# Bytes of a value in memory; of a text or bytes those of its offset.
WIDTHS = {0: 1, 1: 4, 2: 8, 3: 8, 4: 4, 5: 8, BYTE_ARRAY: 8}
CODECS = ("none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4")
OPTIONAL, REPEATED = 1, 2
# Parquet's own word for a schema is a tree; nobody's is deeper.
DEEPEST = 100
# Longer bounds are of texts that nobody compares with.
LONGEST_BOUND = 4096
# How the values of a column are ordered in its statistics; None: in a way that is not used here.
SIGNED, UNSIGNED, REAL, BY_BYTES = "signed", "unsigned", "real", "bytes"
_ORDERS = {0: UNSIGNED, 1: SIGNED, 2: SIGNED, 4: REAL, 5: REAL, BYTE_ARRAY: BY_BYTES, FIXED: BY_BYTES}
# The older and the newer way to say what values mean: which are unsigned, which no plain bytes, which times.
_OLD_UNSIGNED, _OLD_OTHER, _OLD_UNITS = range(11, 15), (5, 21), {6: "D", 7: "ms", 8: "us", 9: "ms", 10: "us"}
_DATE, _TIMES, _INTEGER, _OTHER, _UNITS = 6, (7, 8), 10, (5, 9, 15), {1: "ms", 2: "us", 3: "ns"}


class Leaf(NamedTuple):
    """A column of the file: its names, type and width; in how many lists and optional things it lies.

    ``order``: of its values; ``unit``: of times, as they are stored.
    """

    path: tuple[str, ...]
    kind: int
    width: int
    lists: int
    levels: int
    order: str | None = None
    unit: str | None = None


Run = tuple[int, int]


class Chunk(NamedTuple):
    """A column of a row group: what it holds, and where. ``nulls`` is None where nobody counted them.

    ``low``, ``high``: the least and the greatest value as they are stored; ``old``: as old files say them,
    which compare all as signed. ``data``: the first page of values. ``pages``, ``page_bounds``, ``bloom``:
    start and size of what says where pages are, what is in each, and of a bloom filter; -1 is a size that
    nobody told. None stands for what is not there, or cannot be true.
    """

    kind: int
    codec: int
    values: int
    start: int
    size: int
    nulls: int | None
    low: bytes | None = None
    high: bytes | None = None
    old: bool = False
    data: int = 0
    pages: Run | None = None
    page_bounds: Run | None = None
    bloom: Run | None = None


class Group(NamedTuple):
    """A row group, and its bytes unpacked, as it says; None stands for a column that is encrypted."""

    rows: int
    chunks: list[Chunk | None]
    size: int


class Footer:
    """The footer of a file; what contradicts itself or leads out of the file is damage."""

    def __init__(self, source: Source) -> None:
        self._size = source.size
        self.groups: list[Group] = []
        data, at = _footer_bytes(source)
        # The end of the file as it is, for the library; whoever gave it that lets it go.
        self.raw: bytes | None = data + len(data).to_bytes(4, "little") + MAGIC
        try:
            found, _ = read_struct(data, each=(4, self._add))
            self.elements = _structs(found[2])
            self.leaves = _leaves(self.elements)
            self.rows = _number(found[3])
            self._check()
        # A missing field is a KeyError; one of another type may be anything.
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            said = f"field {error} is missing" if isinstance(error, KeyError) else error
            said = said if isinstance(error, ValueError | KeyError) else "a field has another type"
            raise DamagedError(f"the footer is damaged: {said}", offset=at) from None
        written = found.get(6, (0, b""))[1]
        self.created_by = written.decode(errors="replace") if isinstance(written, bytes) else ""
        # Bounds say nothing where the file does not say how values are ordered.
        self.ordered = 7 in found

    def _add(self, group: Struct) -> None:
        chunks = [self._chunk(one) for one in _structs(group[1])]
        self.groups.append(Group(_number(group[3]), chunks, _number(group[2])))

    def _chunk(self, chunk: Struct) -> Chunk | None:
        if 8 in chunk:
            return None
        if 1 in chunk:
            raise ValueError("its data lies in other files")
        data: Struct = chunk[3][1]
        start = _number(data[9])
        # Some writers say 0 for none.
        if 11 in data and 0 < _number(data[11]) < start:
            start = _number(data[11])
        size, values, codec = _number(data[7]), _number(data[5]), _number(data[4])
        if not 0 <= start <= self._size or not 0 <= size <= self._size - start:
            raise ValueError(f"a column of {size} bytes at byte {start}")
        if not 0 <= codec < len(CODECS):
            raise ValueError(f"codec {codec} is unknown")
        said: Struct = data[12][1] if 12 in data else {}
        nulls = None if 3 not in said else _number(said[3])
        old = 5 not in said and 6 not in said
        low, high = (said.get(2), said.get(1)) if old else (said.get(6), said.get(5))
        return Chunk(
            _number(data[1]), codec, values, start, size, nulls, _bound(low), _bound(high), old,
            _number(data[9]), self._run(chunk, 4, 5), self._run(chunk, 6, 7), self._run(data, 14, 15),
        )  # fmt: skip

    def _run(self, found: Struct, start: int, size: int) -> Run | None:
        """Bytes that something beside the data takes; None where there is none, or not in the file."""
        first, length = (found.get(one, (0, -1))[1] for one in (start, size))
        whole = type(first) is int and type(length) is int
        return (first, length) if whole and 0 < first <= self._size - max(0, length) else None

    def _check(self) -> None:
        if sum(group.rows for group in self.groups) != self.rows or any(g.rows < 0 for g in self.groups):
            raise ValueError(f"the row groups do not add up to {self.rows} rows")
        # Whatever a row is made of, it takes a byte.
        limits.check(f"a table of {self.rows:,} rows", self.rows, self._size)
        for number, (rows, chunks, _) in enumerate(self.groups):
            if len(chunks) != len(self.leaves):
                raise ValueError(f"row group {number} has {len(chunks)} of {len(self.leaves)} columns")
            for leaf, chunk in zip(self.leaves, chunks, strict=True):
                if chunk is None:
                    continue
                name = ".".join(leaf.path)
                if chunk.kind != leaf.kind:
                    raise ValueError(f"row group {number} gives column {name} another type than the schema")
                # A list has at least one value, or a place where it would be.
                if chunk.values < rows:
                    raise ValueError(
                        f"column {name} of row group {number} has {chunk.values} values in {rows} rows"
                    )
                limits.check(f"column {name} of row group {number}", chunk.values * leaf.width, chunk.size)

    @property
    def encrypted(self) -> list[int]:
        """The columns that are encrypted in some row group."""
        return sorted({n for group in self.groups for n, one in enumerate(group.chunks) if one is None})

    @property
    def codecs(self) -> list[str]:
        """What the columns of the first row group are packed with."""
        return sorted({CODECS[one.codec] for group in self.groups[:1] for one in group.chunks if one})


def _footer_bytes(source: Source) -> tuple[bytes, int]:
    """The footer, and where it begins."""
    tail = source.view(max(0, source.size - 8), min(8, source.size)).tobytes()
    if tail[-4:] == ENCRYPTED:
        raise SchemaError("its footer is encrypted; encrypted Parquet files are not read")
    if source.size < 12 or tail[-4:] != MAGIC:
        raise DamagedError("a Parquet file ends with PAR1; this is none, or it was cut short")
    size = int.from_bytes(tail[:4], "little")
    if size > source.size - 12:
        raise DamagedError(f"it promises a footer of {size} bytes, and has {source.size}")
    at = source.size - 8 - size
    return source.view(at, size).tobytes(), at


def footer_bytes(footer: Struct) -> bytes:
    """The end of a file: its footer, how long that is, and the magic bytes."""
    data = struct_bytes(footer)
    return data + len(data).to_bytes(4, "little") + MAGIC


def _leaves(elements: list[Struct]) -> list[Leaf]:
    """The columns of a schema, which is a tree, written down parents first."""
    found: list[Leaf] = []
    rest = iter(elements)

    def take(path: tuple[str, ...], lists: int, levels: int) -> None:
        element = next(rest, None)
        if element is None or len(path) > DEEPEST:
            raise ValueError("its schema is no tree")
        name = element[4][1].decode(errors="replace")
        path = (*path, name)
        repetition = _number(element[3]) if 3 in element else 0
        # The top itself neither repeats nor is missing.
        if len(path) > 1:
            lists, levels = lists + (repetition == REPEATED), levels + (repetition in (OPTIONAL, REPEATED))
        children = _number(element[5]) if 5 in element else 0
        if children < 0 or children > len(elements):
            raise ValueError("its schema is no tree")
        if 1 in element and not children:
            kind = _number(element[1])
            width = _number(element[2]) if kind == FIXED else WIDTHS.get(kind, 0)
            if width < 0 or (kind != FIXED and kind not in WIDTHS):
                raise ValueError(f"column {name} has an unknown type")
            found.append(Leaf(path[1:], kind, width, lists, levels, *_meaning(element, kind)))
        for _ in range(children):
            take(path, lists, levels)

    take((), 0, 0)
    if next(rest, None) is not None:
        raise ValueError("its schema is no tree")
    return found


def _meaning(element: Struct, kind: int) -> tuple[str | None, str | None]:
    """How values are ordered, and the unit of times."""
    old = element.get(6, (0, None))[1]
    said = element.get(10, (0, {}))[1]
    logical: dict[int, Any] = (
        {number: one[1] for number, one in said.items()} if isinstance(said, dict) else {}
    )
    unit = _OLD_UNITS.get(old) if isinstance(old, int) else None
    if _DATE in logical:
        unit = "D"
    for number in _TIMES:
        if isinstance(logical.get(number), dict):
            units = logical[number].get(2, (0, {}))[1]
            unit = next((_UNITS.get(one) for one in units), None) if isinstance(units, dict) else None
    order = _ORDERS.get(kind)
    if old in _OLD_OTHER or any(one in logical for one in _OTHER):
        order = None
    whole = logical.get(_INTEGER)
    unsigned = whole.get(2, (0, True))[1] is False if isinstance(whole, dict) else old in _OLD_UNSIGNED
    return UNSIGNED if unsigned and order == SIGNED else order, unit


def _bound(value: tuple[int, Any] | None) -> bytes | None:
    found = None if value is None else value[1]
    return found if isinstance(found, bytes) and len(found) <= LONGEST_BOUND else None


def _structs(value: tuple[int, Any]) -> list[Struct]:
    kind, (inner, items) = value[0], value[1]
    if kind not in LISTS or (inner != STRUCT and items):
        raise ValueError("a list of something else than structures")
    found: list[Struct] = items
    return found


def _number(value: tuple[int, Any]) -> int:
    if not isinstance(value[1], int) or isinstance(value[1], bool):
        raise ValueError("a number is something else")
    return value[1]
