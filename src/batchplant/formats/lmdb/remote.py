"""Locate the entries of a remote environment: only the pages of its trees are fetched.

That is level by level, the pages of a level side by side. Large values have pages of their own, which are not
looked at before somebody reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...codecs.msgpack import gathered
from ...errors import DamagedError, SchemaError
from ...schema.columns import I64, U8, AnyArray, Ragged
from ...storage import Source

HEAD, NODE, TREE = 16, 8, 48
BRANCH, LEAF, KINDS = 1, 2, 0x6F
BIG, NAMED, SEVERAL = 1, 2, 4
NO_PAGE, DEEPEST = 2**64 - 1, 32
# Pages that are in memory at a time.
WINDOW = 8 << 20

Tree = tuple[int, int, int, int]


class Entries(NamedTuple):
    """Entries of a tree, in order; ``named``: the numbers of those that are databases."""

    arrays: dict[str, AnyArray]
    keys: Ragged
    named: I64


class Nodes(NamedTuple):
    """The nodes of some pages: the row of the page, and the offset in it, of each."""

    row: I64
    offset: I64
    low: I64
    flags: I64
    key_size: I64


def walk(source: Source, page_size: int, tree: Tree) -> Entries:
    """All entries of a tree."""
    root, count, depth, _ = tree
    if root == NO_PAGE or not 0 < depth <= DEEPEST:
        if root != NO_PAGE or count:
            raise DamagedError("the tree is damaged", path=source.path)
        empty = np.empty(0, dtype=np.int64)
        return _joined([], [], empty)
    total = source.size // page_size
    level, used = np.array([root], dtype=np.uint64), []
    for _ in range(depth - 1):
        used.append(_checked(level, total, source))
        level = np.concatenate(
            [_children(*page_batch) for page_batch in _fetched(source, page_size, used[-1], BRANCH)]
        )
    used.append(_checked(level, total, source))
    parts, keys = [], []
    runs = [(pages, np.ones_like(pages)) for pages in used]
    for pages, data, nodes in _fetched(source, page_size, used[-1], LEAF):
        part, inside, large = _entries(source, page_size, total, pages, data, nodes)
        parts.append(part)
        keys.append(inside)
        runs.append(large)
    _check_apart(source, page_size, runs)
    result = _joined(parts, keys, np.concatenate([part["named"] for part in parts]))
    if len(result.arrays["starts"]) != count:
        raise DamagedError("the tree has another number of entries than it says", path=source.path)
    return result


def _joined(parts: list[dict[str, Any]], keys: list[Ragged], flags: Any) -> Entries:
    kinds = {"key_starts": np.int64, "key_sizes": np.uint16, "starts": np.int64, "sizes": np.int64}
    arrays = {
        name: np.concatenate([np.empty(0, kind), *(part[name] for part in parts)]).astype(kind)
        for name, kind in kinds.items()
    }
    return Entries(arrays, Ragged.concat(keys) if keys else Ragged.from_cells([]), np.flatnonzero(flags))


def _checked(pages: npt.NDArray[np.uint64], total: int, source: Source) -> I64:
    if (pages >= total).any():
        raise DamagedError("a page lies behind the end of the file", path=source.path)
    if len(np.unique(pages)) != len(pages):
        raise DamagedError("a page is used twice", path=source.path)
    return pages.astype(np.int64)


def _fetched(source: Source, size: int, pages: I64, kind: int) -> Iterator[tuple[I64, U8, Nodes]]:
    """Pages of one kind, some at a time, and what is in them."""
    step = max(1, WINDOW // size)
    for first in range(0, len(pages), step):
        batch = pages[first : first + step]
        data = source.gather_rows(0, size, size, batch)
        number = np.ascontiguousarray(data[:, :8]).view("<u8")[:, 0]
        _, flags, lower, upper = np.ascontiguousarray(data[:, 8:16]).view("<u2").astype(np.int64).T
        _refuse(source, number != batch.astype(np.uint64), batch * size, "a page has the wrong number")
        _refuse(source, flags & KINDS != kind, batch * size, "a page is of the wrong kind")
        bad = (lower < HEAD) | (lower % 2 != 0) | (upper < lower) | (upper > size)
        _refuse(source, bad, batch * size, "the bounds of a page are damaged")
        counts = (lower - HEAD) // 2
        row = np.repeat(np.arange(len(batch)), counts)
        slot = np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)
        offset = _number(data, row, HEAD + 2 * slot, 2)
        bad = (offset < upper[row]) | (offset + NODE > size)
        _refuse(source, bad, batch[row] * size, "a node leaves its page")
        low, node_flags, key = (
            _number(data, row, offset + field, n) for field, n in ((0, 4), (4, 2), (6, 2))
        )
        _refuse(source, offset + NODE + key > size, batch[row] * size + offset, "a key leaves its page")
        yield batch, data, Nodes(row, offset, low, node_flags, key)


def _number(data: U8, row: I64, offset: I64, width: int) -> I64:
    number = np.zeros(len(row), dtype=np.int64)
    for byte in range(width):
        number |= data[row, offset + byte].astype(np.int64) << (8 * byte)
    return number


def _refuse(source: Source, bad: Any, offsets: I64, message: str) -> None:
    if bad.any():
        raise DamagedError(message, path=source.path, offset=int(offsets[int(np.argmax(bad))]))


def _children(pages: I64, data: U8, nodes: Nodes) -> npt.NDArray[np.uint64]:
    # In a branch the size and the flags are the number of the page below.
    return (nodes.low | nodes.flags << 32).astype(np.uint64)


def _entries(
    source: Source, size: int, total: int, pages: I64, data: U8, nodes: Nodes
) -> tuple[dict[str, Any], Ragged, tuple[I64, I64]]:
    """The entries of leaves, their keys, and the pages of large values: first, and how many."""
    row, offset, low, flags, key = nodes
    value_start, big = offset + NODE + key, flags & BIG != 0
    inside = np.where(big, 8, low)
    _refuse(source, value_start + inside > size, pages[row] * size + offset, "a value leaves its page")
    room = size - HEAD - 2 * np.bincount(row, minlength=len(pages))
    used = np.bincount(row, weights=NODE + key + inside, minlength=len(pages))
    _refuse(source, used > room, pages * size, "nodes of a page overlap")
    if (flags & SEVERAL).any():
        message = "a key has several values (MDB_DUPSORT), which batchplant cannot read as samples"
        raise SchemaError(message, path=source.path)
    named = flags & NAMED != 0
    _refuse(source, named & (low != TREE), pages[row] * size + offset, "a named database is damaged")
    starts = pages[row] * size + value_start
    large = np.flatnonzero(big)
    words = np.stack([_number(data, row[large], value_start[large] + half, 4) for half in (0, 4)])
    first = words[0] | np.minimum(words[1], 2**30) << 32
    count = -(-(HEAD + low[large]) // size)
    bad = (first >= total) | (count > total - first)
    _refuse(source, bad, starts[large], "a large value lies behind the end of the file")
    starts[large] = first * size + HEAD
    keys = gathered(data.reshape(-1), row * size + offset + NODE, key)
    part = {
        "key_starts": pages[row] * size + offset + NODE, "key_sizes": key, "starts": starts, "sizes": low,
        "named": named,
    }  # fmt: skip
    return part, keys, (first, count)


def _check_apart(source: Source, size: int, runs: list[tuple[I64, I64]]) -> None:
    """Every page belongs to one place only."""
    first = np.concatenate([np.arange(2), *(run[0] for run in runs)])
    count = np.concatenate([np.ones(2, np.int64), *(run[1] for run in runs)])
    order = np.argsort(first, kind="stable")
    bad = first[order][1:] < (first + count)[order][:-1]
    _refuse(source, bad, first[order][1:] * size, "a page is used twice")
