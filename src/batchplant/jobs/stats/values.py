"""Which values there are and how often, in bounded memory; and cells that are there more than once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from ...schema.columns import I64, U8, Column, Masked, Ragged, as_bytes, column_runs

U64 = npt.NDArray[np.uint64]

# Different values that are counted.
HELD = 1 << 15
# Groups of equal cells that are listed, and the members of one.
GROUPS, MEMBERS = 10, 10


@dataclasses.dataclass(frozen=True)
class Values:
    """Values and how often they are there, the most frequent first.

    ``exact``: there are no others and the counts are right; else there are more than 32,768 different
    values, rare ones are left out, and a count may be up to ``slack`` too low.
    """

    counts: dict[Hashable, int]
    exact: bool
    slack: int = 0


class Tally:
    """Counts values; of too many different ones, the frequent (by Misra and Gries)."""

    def __init__(self, held: int = HELD) -> None:
        self._held = held
        self._counts: Counter[Hashable] = Counter()
        self._slack = 0

    def add(self, values: Iterable[Hashable]) -> None:
        self._counts.update(values)
        self._shrink()

    def add_counts(self, counts: Mapping[Hashable, int]) -> None:
        self._counts.update(counts)
        self._shrink()

    def merge(self, later: Tally) -> None:
        self._slack += later._slack
        self.add_counts(later._counts)

    def _shrink(self) -> None:
        if len(self._counts) <= self._held:
            return
        cut = sorted(self._counts.values(), reverse=True)[self._held]
        self._slack += cut
        self._counts = Counter({value: count - cut for value, count in self._counts.items() if count > cut})

    def values(self, names: Mapping[Hashable, str]) -> Values:
        ordered = sorted(self._counts.items(), key=lambda one: (-one[1], one[0]))
        return Values(
            {names.get(value, value): count for value, count in ordered},
            self._slack == 0,
            self._slack,
        )


@dataclasses.dataclass(frozen=True)
class Copies:
    """Cells, or whole samples, with the same bytes as an earlier one.

    ``count``: how many are like an earlier one; ``different``: how many are not. ``groups``: the first sets
    of samples that are alike, each in order. ``one_in``: above 1, only one in so many was looked at, chosen
    by its content so that equal ones stay together, and ``count`` and ``different`` are estimates.
    """

    count: int
    different: int
    groups: list[list[int]]
    one_in: int = 1


class Hashes:
    """Hashes of 128 bits with their sample numbers; ``one_in``, a power of two, says how many are kept."""

    def __init__(self, one_in: int = 1) -> None:
        self._one_in = one_in
        self._parts: list[tuple[U64, I64]] = []

    def add(self, digests: U8, numbers: I64) -> None:
        """Rows of 16 bytes."""
        hashes = np.ascontiguousarray(digests).view(np.uint64).reshape(-1, 2)
        kept = (hashes[:, 0] & np.uint64(self._one_in - 1)) == 0
        self._parts.append((hashes[kept], numbers[kept]))

    def merge(self, later: Hashes) -> None:
        self._parts += later._parts

    def __reduce__(self) -> tuple[object, ...]:
        # In one piece.
        return _joined, (self._one_in, *self._whole())

    def _whole(self) -> tuple[U64, I64]:
        return (
            np.concatenate([np.empty((0, 2), np.uint64), *(one for one, _ in self._parts)]),
            np.concatenate([np.empty(0, np.int64), *(one for _, one in self._parts)]),
        )

    def copies(self) -> Copies:
        hashes, numbers = self._whole()
        order = np.lexsort((numbers, hashes[:, 1], hashes[:, 0]))
        hashes, numbers = hashes[order], numbers[order]
        same = np.append(False, (hashes[1:] == hashes[:-1]).all(axis=1))[: len(hashes)]
        firsts = np.flatnonzero(~same)
        sizes = np.diff(np.append(firsts, len(hashes)))
        many = firsts[sizes > 1]
        many = many[np.argsort(numbers[many], kind="stable")[:GROUPS]]
        ends = {int(first): int(first + size) for first, size in zip(firsts, sizes, strict=True) if size > 1}
        groups = [numbers[at : min(ends[at], at + MEMBERS)].tolist() for at in many.tolist()]
        return Copies(int(same.sum()) * self._one_in, len(firsts) * self._one_in, groups, self._one_in)


def _joined(one_in: int, hashes: U64, numbers: I64) -> Hashes:
    found = Hashes(one_in)
    found._parts = [(hashes, numbers)]
    return found


def digests(column: Ragged, rows: range) -> U8:
    """The hash of each cell in these rows, 16 bytes; that of a missing one is zero."""
    data, starts, sizes = column_runs(column)
    found = np.zeros((len(rows), 16), dtype=np.uint8)
    shapes, raw = column.shape, column.raw
    for at, row in enumerate(rows):
        if sizes[row] >= 0:
            made = hashlib.blake2b(data[starts[row] : starts[row] + sizes[row]].data, digest_size=16)
            if shapes is not None and raw[row]:
                made.update(shapes[row].tobytes())
            found[at] = np.frombuffer(made.digest(), dtype=np.uint8)
    return found


def as_rows(column: Column) -> U8 | None:
    """What stands for the cells of numbers and arrays of one shape: their bytes; None: their digests do."""
    if isinstance(column, Masked):
        values = column.values
        return np.concatenate([_bytes_of(values), column.mask[:, None].view(np.uint8)], axis=1)
    return None if isinstance(column, Ragged) else _bytes_of(column)


def _bytes_of(values: npt.NDArray[np.generic]) -> U8:
    return as_bytes(values).reshape(len(values), -1) if values.size else np.empty((len(values), 0), np.uint8)


def row_digests(parts: list[U8]) -> U8:
    """The hash of each row of several parts."""
    rows = np.ascontiguousarray(np.concatenate(parts, axis=1))
    found = np.empty((len(rows), 16), dtype=np.uint8)
    for at, row in enumerate(rows):
        found[at] = np.frombuffer(hashlib.blake2b(row.data, digest_size=16).digest(), dtype=np.uint8)
    return found
