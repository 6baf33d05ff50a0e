"""Positions of an order by file: :class:`Plan`, computed from sizes alone.

The same samples and options give the same plan on every machine, so processes need not exchange it. It is
made before anything is written, and without reading large cells.
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

# Samples that are read to estimate sizes; of smaller datasets all are.
PROBED_SAMPLES = 4096
# Sizes looked up at a time. Longer arrays would be freed and mapped again every time, which costs more than
# the arithmetic.
LOOKUP_SAMPLES = 1 << 16


@dataclasses.dataclass(frozen=True, eq=False)
class Plan:
    """Positions of each file: ``bounds[n]`` up to the next bound, or ``file_samples`` each."""

    samples: int
    file_samples: int
    bounds: I64 | None = None

    def __len__(self) -> int:
        if self.bounds is not None:
            return len(self.bounds) - 1
        # An empty dataset is a file, too.
        return max(1, -(-self.samples // self.file_samples))

    def span(self, number: int) -> range:
        if self.bounds is not None:
            return range(int(self.bounds[number]), int(self.bounds[number + 1]))
        return range(number * self.file_samples, min((number + 1) * self.file_samples, self.samples))

    @property
    def digest(self) -> str:
        digest = hashlib.blake2b(f"{self.samples} {self.file_samples}".encode(), digest_size=16)
        digest.update(b"" if self.bounds is None else self.bounds.astype("<i8").tobytes())
        return digest.hexdigest()


def plan(
    reader: Reader,
    fields: Sequence[str],
    order: Order,
    *,
    size: int | None = None,
    samples: int | None = None,
    shuffled: bool = False,
    lookup_samples: int = LOOKUP_SAMPLES,
) -> Plan:
    """Plan files of at most ``samples`` samples and about ``size`` bytes of cells; without both, one file.

    Sizes are exact where they are known without reading, or where the dataset is small. Looking up those of
    shuffled samples would take memory for all of them, so a file gets as many as have that size on average.
    """
    if size is not None and size < 1:
        raise OptionError(f"shard_size must be at least 1 byte, not {size}")
    if samples is not None and samples < 1:
        raise OptionError(f"shard_samples must be at least 1, not {samples}")
    count = len(order)
    max_samples = max(1, count) if samples is None else samples
    if size is None:
        return Plan(count, max_samples)
    constant_size = same_size(reader, fields)
    if constant_size is not None:
        return Plan(count, min(max_samples, max(1, size // max(1, constant_size))))
    if count <= PROBED_SAMPLES:
        return Plan(count, max_samples, fill_files([sizes_of(reader, fields, order[:])], size, max_samples))
    if not shuffled and are_known(reader, fields):
        starts = range(0, count, lookup_samples)
        sizes = (sizes_of(reader, fields, order[i : min(i + lookup_samples, count)]) for i in starts)
        return Plan(count, max_samples, fill_files(sizes, size, max_samples))
    return Plan(count, min(max_samples, max(1, size // mean_size(reader, fields))))


def mean_size(reader: Reader, fields: Sequence[str]) -> int:
    """Bytes of a sample on average, estimated from some samples of a large dataset."""
    indices = np.linspace(0, len(reader) - 1, min(len(reader), PROBED_SAMPLES)).astype(np.int64)
    sizes = sizes_of(reader, fields, indices)
    return max(1, round(float(sizes.mean()))) if len(sizes) else 1


def fill_files(size_chunks: Iterable[I64], size: int, max_samples: int) -> I64:
    """Bounds of files that are filled one after another; a file holds at least one sample."""
    bounds, file_bytes, file_samples, first = [np.zeros(1, dtype=np.int64)], 0, 0, 0
    for sizes in size_chunks:
        starts, file_bytes, file_samples = _native.fill(
            sizes, min(size, MOST_BYTES), min(max_samples, MOST_BYTES), file_bytes, file_samples
        )
        bounds.append(starts + first)
        first += len(sizes)
    return np.append(np.concatenate(bounds), first)
