"""Counts of values in bounded memory, and cells that occur more than once."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping

import numpy as np
import numpy.typing as npt

from ...schema.columns import I64, U8, Column, Masked, Ragged, as_bytes, column_runs

U64 = npt.NDArray[np.uint64]

# Distinct values that are counted.
MAX_COUNTED_VALUES = 1 << 15
# Groups of equal cells that are listed, and the samples listed of each.
LISTED_GROUPS, LISTED_SAMPLES = 10, 10


@dataclasses.dataclass(frozen=True)
class Values:
    """Values and their counts, the most frequent first.

    ``exact``: the counts are right and complete; else there are more than 32,768 different values, rare ones
    are left out, and a count may be up to ``slack`` too low.
    """

    counts: dict[Hashable, int]
    exact: bool
    slack: int = 0


class Tally:
    """Counts values; of too many distinct ones, the frequent (Misra and Gries)."""

    def __init__(self, max_values: int = MAX_COUNTED_VALUES) -> None:
        self._max_values = max_values
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
        if len(self._counts) <= self._max_values:
            return
        cut = sorted(self._counts.values(), reverse=True)[self._max_values]
        self._slack += cut
        self._counts = Counter({value: count - cut for value, count in self._counts.items() if count > cut})

    def values(self, names: Mapping[Hashable, str]) -> Values:
        ordered = sorted(self._counts.items(), key=lambda entry: (-entry[1], entry[0]))
        counts = {names.get(value, value): count for value, count in ordered}
        return Values(counts, self._slack == 0, self._slack)


@dataclasses.dataclass(frozen=True)
class Copies:
    """Cells, or whole samples, with the same bytes as an earlier one.

    ``count``: those that equal an earlier one; ``different``: those that do not. ``groups``: the first sets
    of equal samples, each in order. ``one_in``: above 1, only one in so many was examined, chosen by its
    content so that equal ones stay together, and ``count`` and ``different`` are estimates.
    """

    count: int
    different: int
    groups: list[list[int]]
    one_in: int = 1


class Hashes:
    """Hashes of 128 bits with their sample numbers; keeps one in ``one_in``, a power of two."""

    def __init__(self, one_in: int = 1) -> None:
        self._one_in = one_in
        self._parts: list[tuple[U64, I64]] = []

    def add(self, digests: U8, numbers: I64) -> None:
        """Add digests, rows of 16 bytes."""
        hashes = np.ascontiguousarray(digests).view(np.uint64).reshape(-1, 2)
        chosen = (hashes[:, 0] & np.uint64(self._one_in - 1)) == 0
        self._parts.append((hashes[chosen], numbers[chosen]))

    def merge(self, later: Hashes) -> None:
        self._parts += later._parts

    def __reduce__(self) -> tuple[object, ...]:
        return _restore_hashes, (self._one_in, *self._join())

    def _join(self) -> tuple[U64, I64]:
        return (
            np.concatenate([np.empty((0, 2), np.uint64), *(hashes for hashes, _ in self._parts)]),
            np.concatenate([np.empty(0, np.int64), *(numbers for _, numbers in self._parts)]),
        )

    def copies(self) -> Copies:
        hashes, numbers = self._join()
        order = np.lexsort((numbers, hashes[:, 1], hashes[:, 0]))
        hashes, numbers = hashes[order], numbers[order]
        same = np.append(False, (hashes[1:] == hashes[:-1]).all(axis=1))[: len(hashes)]
        firsts = np.flatnonzero(~same)
        sizes = np.diff(np.append(firsts, len(hashes)))
        many = firsts[sizes > 1]
        many = many[np.argsort(numbers[many], kind="stable")[:LISTED_GROUPS]]
        ends = {int(first): int(first + size) for first, size in zip(firsts, sizes, strict=True) if size > 1}
        groups = [numbers[i : min(ends[i], i + LISTED_SAMPLES)].tolist() for i in many.tolist()]
        return Copies(int(same.sum()) * self._one_in, len(firsts) * self._one_in, groups, self._one_in)


def _restore_hashes(one_in: int, hashes: U64, numbers: I64) -> Hashes:
    restored = Hashes(one_in)
    restored._parts = [(hashes, numbers)]
    return restored


def digests(column: Ragged, rows: range) -> U8:
    """Hashes of the cells in these rows, 16 bytes each; that of a missing cell is zero."""
    data, starts, sizes = column_runs(column)
    hashes = np.zeros((len(rows), 16), dtype=np.uint8)
    shapes, raw = column.shape, column.raw
    for i, row in enumerate(rows):
        if sizes[row] >= 0:
            digest = hashlib.blake2b(data[starts[row] : starts[row] + sizes[row]].data, digest_size=16)
            if shapes is not None and raw[row]:
                digest.update(shapes[row].tobytes())
            hashes[i] = np.frombuffer(digest.digest(), dtype=np.uint8)
    return hashes


def as_rows(column: Column) -> U8 | None:
    """Bytes of the cells as rows, for numbers and arrays of one shape; None for other columns."""
    if isinstance(column, Masked):
        values = column.values
        return np.concatenate([_bytes_of(values), column.mask[:, None].view(np.uint8)], axis=1)
    return None if isinstance(column, Ragged) else _bytes_of(column)


def _bytes_of(values: npt.NDArray[np.generic]) -> U8:
    return as_bytes(values).reshape(len(values), -1) if values.size else np.empty((len(values), 0), np.uint8)


def row_digests(parts: list[U8]) -> U8:
    """Hashes of the rows of several parts side by side."""
    rows = np.ascontiguousarray(np.concatenate(parts, axis=1))
    hashes = np.empty((len(rows), 16), dtype=np.uint8)
    for i, row in enumerate(rows):
        hashes[i] = np.frombuffer(hashlib.blake2b(row.data, digest_size=16).digest(), dtype=np.uint8)
    return hashes
