"""The footer of a Parquet file, parsed and checked by us before pyarrow sees it.

Some damaged footers make pyarrow abort the process when it is asked about a column of a row group. So we
never ask it: this module parses everything that we need. The footer and the headers of pages are in Thrift's
compact protocol: a structure is a dict: id → (type, value); a list is (type of its items, items). Lengths
beyond the data and nesting deeper than Parquet's are a ValueError.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, NamedTuple

from ....errors import DamagedError, SchemaError
from ....storage import Source, limits

TRUE, FALSE, BYTE, INTS, DOUBLE, BINARY, LISTS, STRUCT = 1, 2, 3, (4, 5, 6), 7, 8, (9, 10), 12
MAX_DEPTH = 24

Struct = dict[int, tuple[int, Any]]


def read_struct(
    data: bytes, offset: int = 0, on_struct: tuple[int, Callable[[Struct], object]] | None = None
) -> tuple[Struct, int]:
    """Return the structure that begins at an offset, and its end.

    ``on_struct``: number of a field that is a list of structures, and a function that gets each of them as it
    is read, so that they need not be in memory at once; the list itself stays empty.
    """
    try:
        return _struct(data, offset, 0, on_struct)
    except IndexError:
        raise ValueError("it ends too early") from None


def varint(data: bytes, offset: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[offset]
        offset += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, offset
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _struct(
    data: bytes, offset: int, depth: int, on_struct: tuple[int, Callable[[Struct], object]] | None = None
) -> tuple[Struct, int]:
    if depth > MAX_DEPTH:
        raise ValueError("its structures are nested too deep")
    struct: Struct = {}
    field = 0
    # Footers have very many values: small and common ones are read inline.
    while head := data[offset]:
        offset += 1
        kind = head & 15
        if head >> 4:
            field += head >> 4
        else:
            number, offset = varint(data, offset)
            field = (number >> 1) ^ -(number & 1)
        if 4 <= kind <= 6:
            number = data[offset]
            offset += 1
            if number > 127:
                number, offset = varint(data, offset - 1)
            struct[field] = kind, (number >> 1) ^ -(number & 1)
        elif kind == BINARY:
            size = data[offset]
            offset += 1
            if size > 127:
                size, offset = varint(data, offset - 1)
            if size > len(data) - offset:
                raise ValueError(f"{size} bytes are said to follow, and {len(data) - offset} are left")
            struct[field] = kind, data[offset : offset + size]
            offset += size
        elif on_struct is not None and field == on_struct[0] and kind in LISTS:
            struct[field] = kind, (STRUCT, [])
            _, offset = _list(data, offset, depth + 1, on_struct[1])
        else:
            value, offset = _value(data, offset, kind, depth)
            struct[field] = kind, value
    return struct, offset + 1


def _value(data: bytes, offset: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind == STRUCT:
        return _struct(data, offset, depth + 1)
    if kind in LISTS:
        return _list(data, offset, depth + 1)
    if kind in (TRUE, FALSE):
        return kind == TRUE, offset
    if kind in INTS:
        number, offset = varint(data, offset)
        return (number >> 1) ^ -(number & 1), offset
    if kind == BINARY:
        size, offset = varint(data, offset)
    elif kind in (BYTE, DOUBLE):
        size = 1 if kind == BYTE else 8
    else:
        raise ValueError(f"values of type {kind} are unknown")
    if size > len(data) - offset:
        raise ValueError(f"{size} bytes are said to follow, and {len(data) - offset} are left")
    return data[offset : offset + size], offset + size


def _list(
    data: bytes, offset: int, depth: int, take: Callable[[Struct], object] | None = None
) -> tuple[tuple[int, list[Any]], int]:
    if depth > MAX_DEPTH:
        raise ValueError("its lists are nested too deep")
    head = data[offset]
    offset += 1
    kind, count = head & 15, head >> 4
    if count == 15:
        count, offset = varint(data, offset)
    # Every item takes a byte at least.
    if count > len(data) - offset:
        raise ValueError(f"a list of {count} items in {len(data) - offset} bytes")
    # In a list a boolean is a byte of its own.
    inner = BYTE if kind in (TRUE, FALSE) else kind
    items: list[Any] = []
    if take is not None and kind != STRUCT:
        raise ValueError("a list of something else than structures")
    add = take or items.append
    for _ in range(count):
        value, offset = _value(data, offset, inner, depth)
        add(value)
    return (kind, items), offset


# -- writing ------------------------------------------------------------------------------------------------


def struct_bytes(struct: Struct) -> bytes:
    """A structure as bytes."""
    out = io.BytesIO()
    _write_struct(out, struct)
    return out.getvalue()


def _varint_bytes(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _zigzag(value: int) -> bytes:
    return _varint_bytes((value << 1) ^ (value >> 63))


def _write_struct(out: io.BytesIO, struct: Struct) -> None:
    last = 0
    for field in sorted(struct):
        kind, value = struct[field]
        if kind in (TRUE, FALSE):
            kind = TRUE if value else FALSE
        near = 0 < field - last <= 15
        out.write(bytes([(field - last) << 4 | kind]) if near else bytes([kind]) + _zigzag(field))
        _write_value(out, kind, value)
        last = field
    out.write(b"\0")


def _write_value(out: io.BytesIO, kind: int, value: Any) -> None:
    if kind in (BYTE, DOUBLE):
        out.write(value)
    elif kind in INTS:
        out.write(_zigzag(value))
    elif kind == BINARY:
        out.write(_varint_bytes(len(value)) + value)
    elif kind in LISTS:
        inner, items = value
        small = len(items) < 15
        out.write(
            bytes([len(items) << 4 | inner]) if small else bytes([0xF0 | inner]) + _varint_bytes(len(items))
        )
        for item in items:
            out.write(item) if inner in (TRUE, FALSE) else _write_value(out, inner, item)
    elif kind == STRUCT:
        _write_struct(out, value)


MAGIC, ENCRYPTED = b"PAR1", b"PARE"
BYTE_ARRAY, FIXED = 6, 7
# Bytes of a value in memory; of a text or bytes those of its offset.
WIDTHS = {0: 1, 1: 4, 2: 8, 3: 8, 4: 4, 5: 8, BYTE_ARRAY: 8}
CODECS = ("none", "snappy", "gzip", "lzo", "brotli", "lz4", "zstd", "lz4")
OPTIONAL, REPEATED = 1, 2
# A schema is a tree.
MAX_SCHEMA_DEPTH = 100
# Longer bounds are of texts that no filter compares with.
MAX_BOUND_BYTES = 4096
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
    """A column chunk: its contents and position. ``nulls`` is None if the writer did not count them.

    ``low``, ``high``: the least and the greatest value as they are stored; ``old``: as old files say them,
    which compare all as signed. ``data``: the first page of values. ``pages``, ``page_bounds``: start and
    size of the indexes of pages and of their bounds; -1 is an unknown size. None: absent, or cannot be true.
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


class Group(NamedTuple):
    """A row group and its uncompressed size, as it says; None stands for an encrypted column."""

    rows: int
    chunks: list[Chunk | None]
    size: int


class Footer:
    """The footer of a file. Contradictions and ranges outside of the file are damage."""

    def __init__(self, source: Source) -> None:
        self._size = source.size
        self.groups: list[Group] = []
        data, offset = _footer_bytes(source)
        # The end of the file as it is, for pyarrow; dropped once pyarrow has parsed it.
        self.raw: bytes | None = data + len(data).to_bytes(4, "little") + MAGIC
        try:
            footer, _ = read_struct(data, on_struct=(4, self._add))
            self.elements = _structs(footer[2])
            self.leaves = _leaves(self.elements)
            self.rows = _number(footer[3])
            self._check()
        # A missing field is a KeyError; one of another type may be anything.
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            problem = f"field {error} is missing" if isinstance(error, KeyError) else error
            problem = problem if isinstance(error, ValueError | KeyError) else "a field has another type"
            raise DamagedError(f"the footer is damaged: {problem}", offset=offset) from None
        written = footer.get(6, (0, b""))[1]
        self.created_by = written.decode(errors="replace") if isinstance(written, bytes) else ""
        # Bounds say nothing where the file does not say how values are ordered.
        self.ordered = 7 in footer

    def _add(self, group: Struct) -> None:
        chunks = [self._chunk(chunk) for chunk in _structs(group[1])]
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
        statistics: Struct = data[12][1] if 12 in data else {}
        nulls = None if 3 not in statistics else _number(statistics[3])
        old = 5 not in statistics and 6 not in statistics
        low, high = (statistics.get(2), statistics.get(1)) if old else (statistics.get(6), statistics.get(5))
        return Chunk(
            _number(data[1]), codec, values, start, size, nulls, _bound(low), _bound(high), old,
            _number(data[9]), self._run(chunk, 4, 5), self._run(chunk, 6, 7),
        )  # fmt: skip

    def _run(self, struct: Struct, start: int, size: int) -> Run | None:
        """Start and size of an index; None if there is none, or it lies outside of the file."""
        first, length = (struct.get(field_id, (0, -1))[1] for field_id in (start, size))
        are_numbers = type(first) is int and type(length) is int
        return (first, length) if are_numbers and 0 < first <= self._size - max(0, length) else None

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
                # An empty list counts as a value, too.
                if chunk.values < rows:
                    raise ValueError(
                        f"column {name} of row group {number} has {chunk.values} values in {rows} rows"
                    )
                limits.check(f"column {name} of row group {number}", chunk.values * leaf.width, chunk.size)

    @property
    def encrypted(self) -> list[int]:
        """Columns that are encrypted in some row group."""
        return sorted({n for group in self.groups for n, chunk in enumerate(group.chunks) if chunk is None})

    @property
    def codecs(self) -> list[str]:
        """Compressions of the columns of the first row group."""
        return sorted({CODECS[chunk.codec] for group in self.groups[:1] for chunk in group.chunks if chunk})


def _footer_bytes(source: Source) -> tuple[bytes, int]:
    """Return the footer and its start."""
    tail = source.view(max(0, source.size - 8), min(8, source.size)).tobytes()
    if tail[-4:] == ENCRYPTED:
        raise SchemaError("its footer is encrypted; encrypted Parquet files are not read")
    if source.size < 12 or tail[-4:] != MAGIC:
        raise DamagedError("a Parquet file ends with PAR1; this is none, or it was cut short")
    size = int.from_bytes(tail[:4], "little")
    if size > source.size - 12:
        raise DamagedError(f"it promises a footer of {size} bytes, and has {source.size}")
    start = source.size - 8 - size
    return source.view(start, size).tobytes(), start


def footer_bytes(footer: Struct) -> bytes:
    """Return the end of a file: its footer, the footer's length and the magic bytes."""
    data = struct_bytes(footer)
    return data + len(data).to_bytes(4, "little") + MAGIC


def _leaves(elements: list[Struct]) -> list[Leaf]:
    """Return the columns of a schema, which is a tree in pre-order."""
    leaves: list[Leaf] = []
    remaining = iter(elements)

    def take(path: tuple[str, ...], lists: int, levels: int) -> None:
        element = next(remaining, None)
        if element is None or len(path) > MAX_SCHEMA_DEPTH:
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
            leaves.append(Leaf(path[1:], kind, width, lists, levels, *_meaning(element, kind)))
        for _ in range(children):
            take(path, lists, levels)

    take((), 0, 0)
    if next(remaining, None) is not None:
        raise ValueError("its schema is no tree")
    return leaves


def _meaning(element: Struct, kind: int) -> tuple[str | None, str | None]:
    """Return the order of values and the unit of times."""
    old = element.get(6, (0, None))[1]
    logical_type = element.get(10, (0, {}))[1]
    logical: dict[int, Any] = (
        {number: value[1] for number, value in logical_type.items()} if isinstance(logical_type, dict) else {}
    )
    unit = _OLD_UNITS.get(old) if isinstance(old, int) else None
    if _DATE in logical:
        unit = "D"
    for number in _TIMES:
        if isinstance(logical.get(number), dict):
            units = logical[number].get(2, (0, {}))[1]
            unit = next((_UNITS.get(unit_id) for unit_id in units), None) if isinstance(units, dict) else None
    order = _ORDERS.get(kind)
    if old in _OLD_OTHER or any(type_id in logical for type_id in _OTHER):
        order = None
    integer = logical.get(_INTEGER)
    unsigned = integer.get(2, (0, True))[1] is False if isinstance(integer, dict) else old in _OLD_UNSIGNED
    return UNSIGNED if unsigned and order == SIGNED else order, unit


def _bound(value: tuple[int, Any] | None) -> bytes | None:
    bound = None if value is None else value[1]
    return bound if isinstance(bound, bytes) and len(bound) <= MAX_BOUND_BYTES else None


def _structs(value: tuple[int, Any]) -> list[Struct]:
    kind, (inner, items) = value[0], value[1]
    if kind not in LISTS or (inner != STRUCT and items):
        raise ValueError("a list of something else than structures")
    return items


def _number(value: tuple[int, Any]) -> int:
    if not isinstance(value[1], int) or isinstance(value[1], bool):
        raise ValueError("a number is something else")
    return value[1]
