"""Layout: how the samples of a reader lie in storage."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ..schema.columns import I64
from ..storage.cache import ChunkKeys
from ..storage.spans import Spans

# An array that is at hand, or a function that computes it; None if it is not known.
Numbers = I64 | Callable[[], I64 | None] | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """How samples lie in storage, as a Reader's ``_layout()`` describes it. Entries cost no reading of cells.

    A layout is made whenever one of its entries is needed, so an array that has to be computed is given as a
    function without arguments. An entry that is not known is left out.

    blocks: for each sample the number of its storage unit (page, row group, shard). block_sizes: instead, the
    number of samples in each unit, where units lie in order. boundaries: the samples that begin a sequence of
    their own, ascending, without 0. A sequence is a file among several that do not belong together, or an
    episode of a file; shards of one dataset are none. ``Windows`` crosses no boundary unless it is asked to.
    sizes: the bytes of each sample, where one may be as large as all others; callers then read few at a time.

    stored_bytes(fields): the bytes of all cells of these fields. cell_sizes(field, indices): the bytes of
    these cells, 0 for a missing one, where spans do not tell them. unread(fields, indices): the ranges of
    ``_ranges`` without the bytes that the reader holds in memory until these cells are read.
    chunk_keys(fields, indices): the caches of decoded chunks that reading these samples looks into, and for
    which chunks.
    """

    blocks: Numbers = None
    block_sizes: Numbers = None
    boundaries: Numbers = None
    sizes: Numbers = None
    stored_bytes: Callable[[Sequence[str]], int | None] = lambda fields: None
    cell_sizes: Callable[[str, I64], I64 | None] | None = None
    unread: Callable[[Sequence[str], I64], Spans | None] | None = None
    chunk_keys: Callable[[Sequence[str], I64], list[ChunkKeys]] = lambda fields, indices: []

    def numbers(self, name: str) -> I64 | None:
        """Return one of the arrays, computed if need be."""
        numbers: Numbers = getattr(self, name)
        return numbers() if callable(numbers) else numbers

    def all_blocks(self) -> I64 | None:
        """Return the number of each sample's storage unit."""
        sizes = self.numbers("block_sizes")
        return self.numbers("blocks") if sizes is None else np.repeat(np.arange(len(sizes)), sizes)

    def take(self, rows: I64 | None) -> Layout:
        """Return the arrays of these samples in their order; None: of all samples."""
        if rows is None:
            names = ("blocks", "block_sizes", "boundaries", "sizes")
            return Layout(**{name: getattr(self, name) for name in names})

        def of_rows(numbers: I64 | None) -> I64 | None:
            return None if numbers is None else numbers[rows]

        def boundaries_of_rows() -> I64 | None:
            firsts = self.numbers("boundaries")
            if firsts is None or not len(firsts):
                return firsts
            sequences = np.searchsorted(firsts, rows, side="right")
            return np.flatnonzero(sequences[1:] != sequences[:-1]) + 1

        return Layout(
            blocks=lambda: of_rows(self.all_blocks()),
            boundaries=boundaries_of_rows,
            sizes=lambda: of_rows(self.numbers("sizes")),
        )


def inner_starts(starts: I64, length: int) -> I64:
    """Return those of these first samples that begin a sequence of their own: boundaries."""
    firsts = np.unique(starts)
    return firsts[(firsts > 0) & (firsts < length)]
