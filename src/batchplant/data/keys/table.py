"""Where keys are: a hash of each, sorted, and the number of its sample."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _native
from ...order.keyed import mix
from ...schema.columns import I64, Column, Flags, Ragged, as_bytes, column_runs, starts_of
from ...storage import index
from ..origin import remembered

if TYPE_CHECKING:
    from ..reader import Reader

U64 = npt.NDArray[np.uint64]

# Keys read at a time.
ROWS = 1 << 14
# Longer keys are hashed one by one.
SHORT = 256
# That of the hash and of what is remembered.
VERSION = 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


class Table(NamedTuple):
    """The hashes of keys, sorted, and the number of the sample of each; only samples that have a key."""

    hashes: U64
    rows: npt.NDArray[Any]

    @classmethod
    def of(cls, hashes: U64, rows: npt.NDArray[Any]) -> Table:
        # Stable: of equal keys the first comes first; and runs that are sorted already are only merged.
        order = np.argsort(hashes, kind="stable")
        small = not len(rows) or int(rows.max()) < 2**32
        return cls(hashes[order], rows[order].astype(np.uint32 if small else np.int64, copy=False))

    @classmethod
    def joined(cls, parts: Iterable[Table], firsts: Iterable[int]) -> Table:
        """Those of parts, the first sample of each of which has this number in the whole."""
        moved = [(one.hashes, one.rows + np.int64(first)) for one, first in zip(parts, firsts, strict=True)]
        return cls.of(*(np.concatenate(list(found)) for found in zip(*moved, strict=True)))

    def take(self, chosen: I64, count: int) -> Table:
        """That of some samples out of ``count``."""
        place = np.full(count, -1, dtype=np.int64)
        place[self.rows] = np.arange(len(self.rows))
        at = place[chosen]
        rows = np.flatnonzero(at >= 0)
        return Table.of(self.hashes[at[rows]], rows)


def hash_cells(data: npt.NDArray[np.uint8], starts: I64, sizes: I64) -> U64:
    """A hash of each run of bytes; the same bytes have the same hash in every version of the index."""
    found = np.empty(len(sizes), dtype=np.uint64)
    short = sizes <= SHORT
    for row in np.flatnonzero(~short).tolist():
        cell = data[starts[row] : starts[row] + sizes[row]]
        digest = hashlib.blake2b(np.ascontiguousarray(cell).data, digest_size=8).digest()
        found[row] = int.from_bytes(digest, "little")
    rows = np.flatnonzero(short)
    for some in np.array_split(rows, max(1, len(rows) // ROWS)):
        found[some] = _hash_short(data, starts[some], sizes[some])
    return found


def _hash_short(data: npt.NDArray[np.uint8], starts: I64, sizes: I64) -> U64:
    width = max(1, -(-int(sizes.max(initial=0)) // 8))
    words = np.zeros((len(sizes), width), dtype=np.uint64)
    places = np.arange(len(sizes), dtype=np.int64) * (8 * width)
    _native.copy_runs(data, np.ascontiguousarray(starts), sizes, words.view(np.uint8).reshape(-1), places)
    found = sizes.astype(np.uint64) * _GOLDEN
    shortest = int(sizes.min(initial=0))
    for number in range(width):
        mixed = mix((found ^ words[:, number]) + _GOLDEN)
        # How wide the others are must not matter.
        found = mixed if shortest > 8 * number else np.where(sizes > 8 * number, mixed, found)
    return found


def same_cells(one: Column, other: Column) -> Flags:
    """Which cells of two columns have the same bytes; a missing cell is like another missing one."""
    if not isinstance(one, Ragged) and not isinstance(other, Ragged):
        width = one.dtype.itemsize * math.prod(one.shape[1:])
        left, right = (as_bytes(each).reshape(len(each), width) for each in (one, other))
        alike: Flags = (left == right).all(axis=1)
        return alike
    (data, starts, sizes), (data_2, starts_2, sizes_2) = column_runs(one), column_runs(other)
    same = sizes == sizes_2
    rows = np.flatnonzero(same & (sizes > 0))
    lengths = np.ascontiguousarray(sizes[rows])
    ends = starts_of(lengths)
    copies = [np.empty(ends[-1], dtype=np.uint8) for _ in range(2)]
    for copy, (base, at) in zip(copies, ((data, starts), (data_2, starts_2)), strict=True):
        _native.copy_runs(base, np.ascontiguousarray(at[rows]), lengths, copy, ends[:-1].copy())
    wrong = np.flatnonzero(copies[0] != copies[1])
    same[rows[np.searchsorted(ends, wrong, side="right") - 1]] = False
    flags: Flags = same
    return flags


def key_table(reader: Reader, field: str | None, short: bool) -> Table:
    """The table of a reader that is no view of others: remembered, where it would have to be read again."""
    if field is None:
        return _scanned(reader, field, short)

    def make(looks: Reader) -> tuple[index.Arrays, index.Facts]:
        made = _scanned(looks, field, short)
        return {"hashes": made.hashes, "rows": made.rows}, {"samples": len(reader)}

    def check(found: index.Index) -> bool:
        hashes, rows = found.arrays["hashes"], found.arrays["rows"]
        fits = hashes.dtype == np.uint64 and rows.dtype in (np.uint32, np.int64) and rows.ndim == 1
        inside = not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < len(reader)
        return fits and hashes.shape == rows.shape and inside and found.facts["samples"] == len(reader)

    found = remembered(reader, (field,), "keys", "", make, version=VERSION, check=check)
    if found is None:
        return _scanned(reader, field, short)
    return Table(found.arrays["hashes"], found.arrays["rows"])


def _scanned(reader: Reader, field: str | None, short: bool) -> Table:
    parts: list[U64] = [np.empty(0, np.uint64)]
    there: list[I64] = [np.empty(0, np.int64)]
    first = 0
    for column in key_columns(reader, field, short):
        data, starts, sizes = column_runs(column)
        rows = np.flatnonzero(sizes >= 0)
        parts.append(hash_cells(data, starts[rows], sizes[rows]))
        there.append(rows + first)
        first += len(column)
    return Table.of(np.concatenate(parts), np.concatenate(there))


def key_columns(reader: Reader, field: str | None, short: bool = False) -> Iterator[Column]:
    """All keys, some at a time."""
    if field is not None:
        yield from (columns[field] for columns in reader._consecutive(ROWS, (field,)))
        return
    for start in range(0, len(reader), ROWS):
        found = reader._keys(np.arange(start, min(start + ROWS, len(reader))), short)
        assert found is not None
        yield found
