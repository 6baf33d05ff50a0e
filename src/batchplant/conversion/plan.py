"""Which positions of an order go into which file: :class:`Plan`, made from sizes alone.

The same samples and options give the same plan on every machine, whatever else is known: nobody has to be
told it. It is made before anything is written, and without reading what is large.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import hashlib
from collections.abc import Generator, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from ..columns import I64
from ..errors import OptionError
from ..order import Order, default_threads
from ..reader import Reader
from .sizes import are_known, same_size, sizes_of

# So many are read to see how large samples are, where nothing else tells; those of smaller datasets all are.
LOOK_AT = 4096
# Samples whose sizes are added up at a time.
CHUNK = 1 << 17


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
        return Plan(count, most, _filled([np.cumsum(sizes_of(reader, fields, order[:]))], size, most))
    if not shuffled and are_known(reader, fields):
        with contextlib.closing(_ends(reader, fields, order)) as ends:
            return Plan(count, most, _filled(ends, size, most))
    return Plan(count, min(most, max(1, size // mean_size(reader, fields))))


def _ends(reader: Reader, fields: Sequence[str], order: Order) -> Generator[I64, None, None]:
    """Where each sample ends if a part of the order lies in one row, part by part: on threads, some ahead."""

    def of(at: int) -> I64:
        return np.cumsum(sizes_of(reader, fields, order[at : at + CHUNK]))

    threads = default_threads()
    pool = ThreadPoolExecutor(threads, "batchplant-plan")
    try:
        ahead: collections.deque[Future[I64]] = collections.deque()
        for at in range(0, len(order), CHUNK):
            ahead.append(pool.submit(of, at))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def mean_size(reader: Reader, fields: Sequence[str]) -> int:
    """About how many bytes a sample has; that of a large dataset is found by looking at some."""
    looked_at = np.linspace(0, len(reader) - 1, min(len(reader), LOOK_AT)).astype(np.int64)
    sizes = sizes_of(reader, fields, looked_at)
    return max(1, round(float(sizes.mean()))) if len(sizes) else 1


def _filled(parts: Iterable[I64], size: int, most: int) -> I64:
    """The bounds of files that are filled one after another; one sample fits into every file.

    ``parts``: where each sample ends, counted from the first of its part.
    """
    bounds, left, held, first = [0], 0, 0, 0
    for ends in parts:
        at = before = 0
        while at < len(ends):
            end = int(ends.searchsorted(before + size - left, side="right"))
            if end == at and not held:
                end = at + 1
            end = min(end, at + most - held, len(ends))
            after = int(ends[end - 1]) if end else 0
            held += end - at
            left += after - before
            at, before = end, after
            if at < len(ends):
                bounds.append(first + at)
                left = held = 0
        first += len(ends)
    return np.array([*bounds, first] if first else [0, 0], dtype=np.int64)
