"""Locations of the entries of an environment, found without liblmdb, which trusts the pages that it maps.

A tree is walked level by level, the pages of a level side by side, so that of a file on a server only the
pages of its trees are fetched. Every number is checked before it is followed.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...codecs.msgpack import gathered
from ...errors import BusyError, DamagedError, OptionError, SchemaError, no_such
from ...schema.columns import I64, U8, AnyArray, Flags, Ragged, starts_of
from ...storage import MappedSource, Source, index, join, open_source, tree

DATA = "data.mdb"
# The key of the schema; it comes behind all digits.
NOTE = b"__batchplant__"
MAGIC = (0xBEEFC0DE).to_bytes(4, "little")
# Flags of a tree whose keys are compared in another way than byte by byte: MDB_REVERSEKEY, MDB_INTEGERKEY.
OTHER_ORDER = 0x02 | 0x08
# A transaction that ends while we walk may have taken pages away under us.
ATTEMPTS = 5
# Sizes of the headers of pages and nodes; flags of pages and of nodes.
HEAD_BYTES, NODE_BYTES = 16, 8
BRANCH, LEAF, OVERFLOW, META, KINDS = 1, 2, 4, 8, 0x6F
BIG, NAMED, SEVERAL = 1, 2, 4
NO_PAGE, MAX_DEPTH = 2**64 - 1, 32
# Pages that are in memory at a time.
WINDOW_BYTES = 8 << 20
ARRAYS = {"key_starts": "i8", "key_sizes": "u2", "starts": "i8", "sizes": "i8"}
# The record of a tree, and a meta page up to the number of its transaction.
TREE = np.dtype(
    [
        ("pad", "<u4"),
        ("flags", "<u2"),
        ("depth", "<u2"),
        ("pages", "V24"),
        ("entries", "<u8"),
        ("root", "<u8"),
    ]
)
META_PAGE = np.dtype(
    [
        ("number", "V10"), ("kind", "<u2"), ("bounds", "V4"), ("magic", "S4"), ("version", "<u4"),
        ("map", "V16"), ("free", TREE), ("main", TREE), ("last_page", "<u8"), ("transaction", "<u8"),
    ]
)  # fmt: skip
TRANSACTION = struct.Struct(f"<{META_PAGE.itemsize - 8}xQ")


class Tree(NamedTuple):
    """The record of a tree of pages; ``root`` is NO_PAGE where it is empty."""

    root: int
    entries: int
    depth: int
    flags: int

    @classmethod
    def parse(cls, record: Any) -> Tree:
        return cls(*(int(record[name]) for name in cls._fields))


class Meta(NamedTuple):
    """The newer meta page."""

    page_size: int
    transaction: int
    free: Tree
    main: Tree


class Nodes(NamedTuple):
    """The nodes of some pages: the row of the page, and the offset in it, of each."""

    row: I64
    offset: I64
    low: I64
    flags: I64
    key_size: I64


def is_meta(head: bytes) -> bool:
    return len(head) >= META_PAGE.itemsize and bool(head[10] & META) and head[16:20] == MAGIC


def data_file(path: str) -> str:
    """The file of an environment, which is that itself or a folder."""
    return join(path, DATA) if tree.is_folder(path) else path


def read_meta(source: Source) -> Meta:
    first = _meta_page(source, 0)
    page_size = int(first["free"]["pad"])
    if not 256 <= page_size <= 65536 or page_size & (page_size - 1):
        raise DamagedError("the page size is damaged", path=source.path, offset=HEAD_BYTES + 24)
    second = _meta_page(source, page_size)
    if second["free"]["pad"] != page_size:
        message = "the two meta pages differ in their page size"
        raise DamagedError(message, path=source.path, offset=page_size)
    newer = second if second["transaction"] > first["transaction"] else first
    return Meta(page_size, int(newer["transaction"]), Tree.parse(newer["free"]), Tree.parse(newer["main"]))


def _meta_page(source: Source, offset: int) -> Any:
    if source.size < offset + META_PAGE.itemsize:
        raise DamagedError("the file ends within its first pages", path=source.path, offset=source.size)
    page = source.array(META_PAGE, offset, 1)[0]
    if not page["kind"] & META or page["magic"] != MAGIC:
        raise DamagedError("this is not a meta page of LMDB", path=source.path, offset=offset)
    if page["version"] != 1:
        message = "this version of LMDB's format is not known, only 1 is"
        raise DamagedError(message, path=source.path, offset=offset)
    return page


def transaction_of(data: U8, page_size: int) -> int:
    """The last transaction of an environment that is open, whose meta pages were checked."""
    return max(TRANSACTION.unpack_from(data.data, offset)[0] for offset in (0, page_size))


# -- index --------------------------------------------------------------------------------------------


def open_environment(path: str, db: str | None, mode: str) -> tuple[Source, index.Index]:
    """The file of an environment, mapped, and its index."""
    for attempt in range(ATTEMPTS):
        source = open_source(data_file(path))
        try:
            return source, load(source, db, mode)
        except (DamagedError, BusyError):
            # A file that grew meanwhile has pages that are not in the mapping.
            grown = isinstance(source, MappedSource) and os.path.getsize(source.path) > source.size
            source.close()
            if not grown or attempt == ATTEMPTS - 1:
                raise
    raise AssertionError


def load(source: Source, db: str | None, mode: str) -> index.Index:
    """The index of an environment; one of another transaction or database is made anew."""
    meta = read_meta(source)
    expected = {"transaction": meta.transaction, "page_size": meta.page_size, "db": db}

    def fits(loaded: index.Index) -> bool:
        arrays = loaded.arrays
        same_length = len({len(array) for array in arrays.values()}) == 1
        return (
            set(arrays) == set(ARRAYS)
            and loaded.has(**ARRAYS)
            and same_length
            and {**loaded.facts, **expected} == loaded.facts
        )

    return index.load(source, "lmdb", functools.partial(scan, db=db), mode=mode, check=fits)


def scan(
    source: Source, report: index.Report, *, db: str | None = None
) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    """Locations of the keys and values of a database."""
    for _ in range(ATTEMPTS):
        meta = read_meta(source)
        try:
            result = _scan(source, meta, db)
        except DamagedError:
            if read_meta(source).transaction == meta.transaction:
                raise
            continue
        if read_meta(source).transaction == meta.transaction:
            report(source.size)
            return result
    raise BusyError("another process keeps changing it; open it when that has ended", path=source.path)


def _scan(source: Source, meta: Meta, db: str | None) -> tuple[dict[str, AnyArray], dict[str, Any]]:
    # Nothing else reads the tree of free pages; but a file that is cut there is damaged.
    walk(source, meta.page_size, meta.free)
    chosen = meta.main
    arrays, keys, named = walk(source, meta.page_size, chosen)
    names = [key.tobytes().decode(errors="replace") for key in keys.take(named) if key is not None]
    if db is not None:
        if db not in names:
            raise OptionError(no_such("database", db, names), path=source.path)
        record = source.array(TREE, int(arrays["starts"][named[names.index(db)]]), 1)[0]
        chosen = Tree.parse(record)
        arrays, keys, named = walk(source, meta.page_size, chosen)
    elif names and len(names) == len(keys):
        message = f"it holds databases; choose one with db (--option db=NAME): {', '.join(names)}"
        raise OptionError(message, path=source.path)
    facts = {
        "db": db,
        "transaction": meta.transaction,
        "page_size": meta.page_size,
        "ordered": not chosen.flags & OTHER_ORDER,
        "printable": bool(((keys.data >= 0x20) & (keys.data < 0x7F)).all()),
    }
    return {name: np.delete(array, named) for name, array in arrays.items()}, facts


# -- trees --------------------------------------------------------------------------------------------


def walk(source: Source, page_size: int, tree: Tree) -> tuple[dict[str, AnyArray], Ragged, I64]:
    """All entries of a tree in order, their keys, and the numbers of those that are databases."""
    parts: list[dict[str, I64]] = []
    keys: list[Ragged] = []
    if tree.root == NO_PAGE:
        if tree.entries:
            raise DamagedError("an empty tree says that it has entries", path=source.path)
    elif not 0 < tree.depth <= MAX_DEPTH:
        raise DamagedError("the depth of the tree is damaged", path=source.path)
    else:
        total = source.size // page_size
        # No tree may use the two meta pages.
        used = np.arange(2)
        level = np.array([tree.root], dtype=np.uint64)
        for _ in range(tree.depth - 1):
            used = _with_pages(used, level, total, source)
            batches = _pages(source, page_size, level.astype(np.int64), BRANCH)
            # In a branch the size and the flags of a node are the number of the page below.
            children = [(nodes.low | nodes.flags << 32).astype(np.uint64) for _, _, nodes in batches]
            level = np.concatenate([level[:0], *children])
        used = _with_pages(used, level, total, source)
        runs = [(used, np.ones_like(used))]
        for pages, data, nodes in _pages(source, page_size, level.astype(np.int64), LEAF):
            part, large_pages = _entries(source, page_size, total, pages, data, nodes)
            parts.append(part)
            places = nodes.row * page_size + nodes.offset + NODE_BYTES
            keys.append(gathered(data.reshape(-1), places, nodes.key_size))
            runs.append(large_pages)
        _check_apart(source, page_size, runs)
    names = [*ARRAYS, "named"]
    none = np.empty(0, dtype=np.int64)
    arrays = {name: np.concatenate([none, *(part[name] for part in parts)]) for name in names}
    if len(arrays["starts"]) != tree.entries:
        raise DamagedError("the tree has another number of entries than it says", path=source.path)
    named = np.flatnonzero(arrays.pop("named"))
    arrays = {name: array.astype(ARRAYS[name]) for name, array in arrays.items()}
    return arrays, Ragged.concat(keys) if keys else Ragged.from_cells([]), named


def _with_pages(used: I64, pages: AnyArray, total: int, source: Source) -> I64:
    """Add the pages of a level, which the file has and none of which was used before: there are no cycles."""
    if (pages >= total).any():
        raise DamagedError("a page lies behind the end of the file", path=source.path)
    used = np.concatenate([used, pages.astype(np.int64)])
    if len(np.unique(used)) != len(used):
        raise DamagedError("a page is used twice", path=source.path)
    return used


def _pages(source: Source, size: int, pages: I64, kind: int) -> Iterator[tuple[I64, U8, Nodes]]:
    """Pages of one kind, some at a time, and the nodes in them."""
    step = max(1, WINDOW_BYTES // size)
    for first in range(0, len(pages), step):
        batch = pages[first : first + step]
        data = source.gather_rows(0, size, size, batch)
        number, flags, lower, upper = _heads(data)
        _refuse(source, number != batch.astype(np.uint64), batch * size, "a page has the wrong number")
        _refuse(source, flags & KINDS != kind, batch * size, "a page is of the wrong kind")
        bad = (lower < HEAD_BYTES) | (lower % 2 != 0) | (upper < lower) | (upper > size)
        _refuse(source, bad, batch * size, "the bounds of a page are damaged")
        counts = (lower - HEAD_BYTES) // 2
        row = np.repeat(np.arange(len(batch)), counts)
        slot = np.arange(len(row)) - np.repeat(starts_of(counts)[:-1], counts)
        offset = _numbers(data, row, HEAD_BYTES + 2 * slot, 2)
        bad = (offset < upper[row]) | (offset + NODE_BYTES > size)
        _refuse(source, bad, batch[row] * size, "a node leaves its page")
        members = (_numbers(data, row, offset + member, width) for member, width in ((0, 4), (4, 2), (6, 2)))
        nodes = Nodes(row, offset, *members)
        bad = offset + NODE_BYTES + nodes.key_size > size
        _refuse(source, bad, batch[row] * size + offset, "a key leaves its page")
        yield batch, data, nodes


def _heads(pages: U8) -> tuple[AnyArray, I64, I64, I64]:
    """The numbers of pages, their flags, and where the room between pointers and nodes begins and ends."""
    flags, lower, upper = np.ascontiguousarray(pages[:, 10:16]).view("<u2").astype(np.int64).T
    return np.ascontiguousarray(pages[:, :8]).view("<u8")[:, 0], flags, lower, upper


def _numbers(data: U8, row: I64, offset: I64, width: int) -> I64:
    number = np.zeros(len(row), dtype=np.int64)
    for byte in range(width):
        number |= data[row, offset + byte].astype(np.int64) << (8 * byte)
    return number


def _refuse(source: Source, bad: Any, offsets: I64, message: str) -> None:
    if bad.any():
        raise DamagedError(message, path=source.path, offset=int(offsets[int(np.argmax(bad))]))


def _entries(
    source: Source, size: int, total: int, pages: I64, data: U8, nodes: Nodes
) -> tuple[dict[str, I64], tuple[I64, I64]]:
    """The entries of leaves, and the pages of large values: first, and how many."""
    row, offset, low, flags, key_size = nodes
    key_at = offset + NODE_BYTES
    value_at, big, node_at = key_at + key_size, flags & BIG != 0, pages[row] * size + offset
    inside = np.where(big, 8, low)
    _refuse(source, value_at + inside > size, node_at, "a value leaves its page")
    # Nodes that shared their bytes would make a small file hold many large values.
    room = size - HEAD_BYTES - 2 * np.bincount(row, minlength=len(pages))
    taken = np.bincount(row, weights=NODE_BYTES + key_size + inside, minlength=len(pages))
    _refuse(source, taken > room, pages * size, "nodes of a page overlap")
    if (flags & SEVERAL).any():
        message = "a key has several values (MDB_DUPSORT), which batchplant cannot read as samples"
        raise SchemaError(message, path=source.path)
    named = flags & NAMED != 0
    _refuse(source, named & (low != TREE.itemsize), node_at, "a named database is damaged")
    starts = pages[row] * size + value_at
    large = np.flatnonzero(big)
    words = [_numbers(data, row[large], value_at[large] + half, 4) for half in (0, 4)]
    first, count = words[0] | np.minimum(words[1], 2**30) << 32, -(-(HEAD_BYTES + low[large]) // size)
    bad = (first >= total) | (count > total - first)
    _refuse(source, bad, starts[large], "a large value lies behind the end of the file")
    # On a server, these pages are not fetched before somebody reads them.
    if isinstance(source, MappedSource) and len(large):
        heads = source.gather_rows(0, size, HEAD_BYTES, first)
        number, kinds, *_ = _heads(heads)
        bad = (number != first.astype(np.uint64)) | (kinds & KINDS != OVERFLOW)
        _refuse(source, bad, first * size, "a page of a large value is damaged")
        stated = np.ascontiguousarray(heads[:, 12:16]).view("<u4")[:, 0].astype(np.int64)
        bad = (stated < count) | (stated > total - first)
        _refuse(source, bad, first * size, "a large value is longer than its pages")
    starts[large] = first * size + HEAD_BYTES
    part = {
        "key_starts": pages[row] * size + key_at, "key_sizes": key_size, "starts": starts, "sizes": low,
        "named": named,
    }  # fmt: skip
    return part, (first, count)


def _check_apart(source: Source, size: int, runs: list[tuple[I64, I64]]) -> None:
    """Every page belongs to one place only."""
    first, count = (np.concatenate(columns) for columns in zip(*runs, strict=True))
    order = np.argsort(first, kind="stable")
    bad = first[order][1:] < (first + count)[order][:-1]
    _refuse(source, bad, first[order][1:] * size, "a page is used twice")


def before(keys: Ragged, bounds: Ragged) -> Flags:
    """Compare keys bytewise; of equal prefixes, the shorter comes first."""
    width = max(1, int(keys.sizes.max(initial=0)), int(bounds.sizes.max(initial=0)))
    padded = [np.zeros((len(keys), width), dtype=np.uint8) for _ in range(2)]
    for grid, cells in zip(padded, (keys, bounds), strict=True):
        places = np.arange(len(cells), dtype=np.int64) * width
        _native.copy_runs(cells.data, cells.starts.copy(), cells.sizes, grid.reshape(-1), places)
    left_keys, right_keys = (grid.view(f"S{width}")[:, 0] for grid in padded)
    return (left_keys < right_keys) | ((left_keys == right_keys) & (keys.sizes < bounds.sizes))
