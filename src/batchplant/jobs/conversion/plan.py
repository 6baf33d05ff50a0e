"""Which positions of an order go into which file: :class:`Plan`, made from sizes alone.

The same samples and options give the same plan on every machine, whatever else is known: nobody has to be
told it. It is made before anything is written, and without reading what is large.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

from ... import _native
from ...data.reader import Reader
from ...data.sizes import are_known, same_size, sizes_of
from ...errors import OptionError
from ...order import Order
from ...schema import MOST_BYTES
from ...schema.columns import I64

# So many are read to see how large samples are, where nothing else tells; those of smaller datasets all are.
LOOK_AT = 4096
# Samples whose sizes are looked up at a time. Longer arrays would be given back to the system and taken again
# each time, which takes longer than all of the arithmetic.
CHUNK = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """File ``n`` holds the positions from ``bounds[n]`` up to the next bound, or ``each`` of them."""

    samples: int
    each: int
    bounds: I64 | None = None

    def __len__(self) -> int:
        if self.bounds is not None:
            return len(self.bounds) - 1
        # An empty dataset is a file, too.
        return max(1, -(-self.samples // self.each))

    def span(self, number: int) -> range:
        if self.bounds is not None:
            return range(int(self.bounds[number]), int(self.bounds[number + 1]))
        return range(number * self.each, min((number + 1) * self.each, self.samples))

    @property
    def digest(self) -> str:
        """What tells it from other plans."""
        said = hashlib.blake2b(f"{self.samples} {self.each}".encode(), digest_size=16)
        said.update(b"" if self.bounds is None else self.bounds.astype("<i8").tobytes())
        return said.hexdigest()


def plan(
    reader: Reader,
    fields: Sequence[str],
    order: Order,
    *,
    size: int | None = None,
    samples: int | None = None,
    shuffled: bool = False,
) -> Plan:
    """Files of at most ``samples`` samples, and of about ``size`` bytes of cells; without both, one file.

    Sizes are exact where they are known without reading, or the dataset is small. Those of shuffled samples
    would take memory for all of them: a file gets as many as are so large on the average.
    """
    if size is not None and size < 1:
        raise OptionError(f"shard_size must be at least 1 byte, not {size}")
    if samples is not None and samples < 1:
        raise OptionError(f"shard_samples must be at least 1, not {samples}")
    count = len(order)
    most = max(1, count) if samples is None else samples
    if size is None:
        return Plan(count, most)
    each = same_size(reader, fields)
    if each is not None:
        return Plan(count, min(most, max(1, size // max(1, each))))
    if count <= LOOK_AT:
        return Plan(count, most, _filled([sizes_of(reader, fields, order[:])], size, most))
    if not shuffled and are_known(reader, fields):
        parts = (order[at : min(at + CHUNK, count)] for at in range(0, count, CHUNK))
        return Plan(count, most, _filled((sizes_of(reader, fields, part) for part in parts), size, most))
    return Plan(count, min(most, max(1, size // mean_size(reader, fields))))


def mean_size(reader: Reader, fields: Sequence[str]) -> int:
    """About how many bytes a sample has; that of a large dataset is found by looking at some."""
    looked_at = np.linspace(0, len(reader) - 1, min(len(reader), LOOK_AT)).astype(np.int64)
    sizes = sizes_of(reader, fields, looked_at)
    return max(1, round(float(sizes.mean()))) if len(sizes) else 1


def _filled(parts: Iterable[I64], size: int, most: int) -> I64:
    """The bounds of files that are filled one after another; one sample fits into every file."""
    bounds, held, taken, first = [np.zeros(1, dtype=np.int64)], 0, 0, 0
    for sizes in parts:
        begin, held, taken = _native.fill(sizes, min(size, MOST_BYTES), min(most, MOST_BYTES), held, taken)
        bounds.append(begin + first)
        first += len(sizes)
    return np.append(np.concatenate(bounds), first)
