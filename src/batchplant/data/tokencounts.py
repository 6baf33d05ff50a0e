"""How many tokens the samples of a reader have, without decoding them: what a mixture by tokens goes by."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..codecs.cells import decode_cell
from ..errors import OptionError, no_such
from ..order.mixture import ENDLESS, numbered
from ..schema import Int, Tensor
from ..schema.columns import I64, Column, Masked, Ragged, dense_of
from ..storage import index
from .reader import Reader
from .sizes import are_known, sizes_of

VERSION = 1
# Samples whose lengths are found together.
ROWS = 1 << 16


class Meter:
    """Counts the tokens of documents of several readers; ``totals``: of each of them."""

    def __init__(self, readers: Sequence[Reader], field: str, names: Sequence[str]) -> None:
        self.field = field
        try:
            counts = [token_counts(reader, field) for reader in readers]
        except OptionError as error:
            raise OptionError(f"by={field!r}: {error.message}", path=error.path) from None
        self._counts = [count for count, _ in counts]
        self.totals: I64 = np.array([total for _, total in counts], dtype=np.int64)

    def __call__(self, source: I64, sample: I64) -> I64:
        """The tokens of documents by their sources and their numbers there."""
        found = np.empty(len(source), dtype=np.int64)
        for one in np.unique(source).tolist():
            own = source == one
            found[own] = self._counts[one](sample[own])
        return found

    def numbers(
        self,
        sizes: I64,
        weights: Sequence[float],
        *,
        schedule: Sequence[tuple[int, Sequence[float]]],
        stop: str | int,
        max_repeats: int | None,
    ) -> int:
        """A bound of the numbers that samples have in any epoch; see ``mixture.numbered``."""
        used = (np.asarray(weights) > 0) & (self.totals > 0)
        laps = self.totals[used] / np.asarray(weights)[used]
        passes = ENDLESS
        if max_repeats is not None:
            passes = max_repeats
        elif isinstance(stop, int):
            passes = stop // max(int(sizes[used].min(initial=1)), 1) + 1
        elif not schedule and stop != "never" and len(laps):
            end = laps.min() if stop == "first" else laps.max()
            passes = int(end / laps.min()) + 2
        return numbered(passes, int(sizes.sum()))


def token_counts(reader: Reader, field: str) -> tuple[Callable[[I64], I64], int]:
    """A function from sample numbers to token counts, and the tokens of all samples.

    field: rows of whole numbers, whose lengths count, or a field of whole numbers, which are the counts.
    Where a format does not know how long cells are, the field is read once, and the lengths are remembered.
    """
    if field not in reader.schema:
        raise OptionError(
            f"weights count samples or the tokens of a field: {no_such('field', field, reader.schema)}"
        )
    kind = reader.schema[field]
    dense = dense_of(kind)
    tokens = isinstance(kind, Tensor) and len(kind.shape) == 1 and np.dtype(kind.dtype).kind in "iu"
    if tokens and dense is not None and not kind.optional:
        row = dense[1][0]
        return (lambda samples: np.full(len(samples), row, dtype=np.int64)), row * len(reader)
    if tokens and not kind.optional and are_known(reader, [field]):
        assert isinstance(kind, Tensor)
        width = np.dtype(kind.dtype).itemsize
        total = 0
        for start in range(0, len(reader), ROWS):
            numbers = np.arange(start, min(start + ROWS, len(reader)))
            total += int(sizes_of(reader, [field], numbers).sum()) // width
        return (lambda samples: sizes_of(reader, [field], samples) // width), total
    if not tokens and type(kind) is not Int:
        raise OptionError(
            f"weights count samples, the tokens of a field, or a field of counts, and {field!r} is {kind}",
            path=reader.path,
        )
    counts = _read_once(reader, field)
    if (counts < 0).any():
        sample = int(np.argmax(counts < 0))
        raise OptionError("a count of tokens is not below 0", path=reader.path, sample=sample, field=field)
    return (lambda samples: counts[samples]), int(counts.sum())


def _read_once(reader: Reader, field: str) -> I64:
    """The counts of all samples, remembered where they would have to be read again."""

    def make(looks: Reader) -> tuple[index.Arrays, index.Facts]:
        parts = [_counts(looks, field, one[field]) for one in looks._consecutive(ROWS, (field,))]
        counts = np.concatenate([np.zeros(0, dtype=np.int64), *parts])
        return {"counts": counts}, {"samples": len(counts)}

    def check(found: index.Index) -> bool:
        counts = found.arrays["counts"]
        return counts.dtype == np.int64 and counts.shape == (len(reader),)

    kept = reader._indexed((field,), "token-counts", "", make, version=VERSION, check=check)
    return make(reader)[0]["counts"] if kept is None else kept.arrays["counts"]


def _counts(reader: Reader, field: str, column: Column) -> I64:
    kind = reader.schema[field]
    if isinstance(kind, Tensor):
        if not kind.optional and isinstance(column, Ragged):
            return column.sizes // np.dtype(kind.dtype).itemsize
        cells = (decode_cell(kind, column, row) for row in range(len(column)))
        return np.array([0 if one is None else len(one) for one in cells], dtype=np.int64)
    if isinstance(column, Masked | Ragged):
        cells = (decode_cell(kind, column, row) for row in range(len(column)))
        return np.array([0 if one is None else one for one in cells], dtype=np.int64)
    return column.astype(np.int64)
