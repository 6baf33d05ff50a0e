"""Prefetch: the bytes of batches to come, asked for ahead of the threads that make them.

An order is a pure function, so it is known which samples the next thousand batches need, and readers know
where their bytes lie. An object is divided into cells of 8 MiB. Where most of a cell is needed soon, it is
fetched in one request; where only a few samples of it are, as in a random order over more data than there is
room for, each is fetched by itself. With a cache on disk that has room for everything, it
is always whole cells, cut alike in all processes."""

from __future__ import annotations

import functools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import order as orders
from ..data.reader import Reader
from ..errors import BatchplantError, DataError
from ..schema.columns import I64, Spans
from ..storage import RemoteSource, is_remote, plan_ranges
from ..storage.remote import NEVER, Pool, fetcher, opened
from ..storage.remote.blocks import CHUNK_BYTES
from ..storage.remote.fetch import Fetcher

# A cell of which this share is needed is fetched whole.
WORTH = 0.5


class Use(NamedTuple):
    """What a batch needs of a cell: from ``low`` to ``high``, ``bytes`` in between."""

    batch: int
    low: int
    high: int
    bytes: int
    starts: I64
    sizes: I64

    def within(self, start: int, end: int) -> int:
        """The bytes that it needs from ``start`` to ``end``."""
        if self.high <= start or self.low >= end:
            return 0
        if start <= self.low and self.high <= end:
            return self.bytes
        if len(self.starts) == 1:
            return min(self.high, end) - max(self.low, start)
        parts = np.minimum(self.starts + self.sizes, end) - np.maximum(self.starts, start)
        return int(parts[parts > 0].sum())

    def runs(self) -> list[tuple[int, int]]:
        """Its samples, from where to where."""
        return list(zip(self.starts.tolist(), (self.starts + self.sizes).tolist(), strict=True))


def uses_of(batch: int, spans: Spans) -> list[tuple[int, int, Use]]:
    """What a batch needs: (file, cell, use). Beside threads that make batches, Python is dear."""
    order = np.lexsort((spans.start, spans.file))
    order = order[spans.size[order] > 0]
    if not len(order):
        return []
    start, size, file = spans.start[order], spans.size[order], spans.file[order]
    places = start // CHUNK_BYTES
    edges = np.flatnonzero((np.diff(places) != 0) | (np.diff(file) != 0)) + 1
    first = np.append(0, edges)
    high, total = np.maximum.reduceat(start + size, first), np.add.reduceat(size, first)
    each = zip(
        *(one.tolist() for one in (file[first], places[first], start[first], high, total)),
        np.split(start, edges), np.split(size, edges), strict=True,
    )  # fmt: skip
    return [(number, place, Use(batch, *found)) for number, place, *found in each]


class Cell:
    """A part of an object, and the batches that need it, as far as they are foreseen."""

    def __init__(self, source: RemoteSource, number: int) -> None:
        self.source, self.number = source, number
        self.uses: deque[Use] = deque()
        # From where to where it was asked for, in one piece.
        self.asked = 0, 0

    def has_all(self) -> bool:
        """Whether all that is needed of it was asked for."""
        low, high = self.asked
        return all(low <= one.low and one.high <= high for one in self.uses)

    @property
    def bounds(self) -> tuple[int, int]:
        """From where to where it goes in the object."""
        return self.source.blocks[1].chunk(self.number)

    def ranges(self, batch: int, *, whole: bool) -> tuple[list[tuple[int, int]], bool]:
        """What to ask for a batch now, and whether it is cut as in all processes; ``whole``: all of it."""
        if whole:
            return [self.bounds], True
        low, high = min(one.low for one in self.uses), max(one.high for one in self.uses)
        if sum(one.bytes for one in self.uses) >= WORTH * (high - low):
            disk = self.source.blocks[1].disk
            return ([(low, high)], False) if disk is None else ([self.bounds], True)
        # Batches before it may not be made yet, and theirs was asked for.
        own = next((one for one in self.uses if one.batch == batch), self.uses[0])
        return plan_ranges(own.starts, own.sizes)[0], False


# Batches whose bytes are known in advance, at most.
FORESEEN = 1000
# A block of which less than this share is still needed, and not within so many batches, is not kept for that.
KEPT, SHORTLY = 0.1, 8
# The samples of a first batch are not fetched by themselves where their cells have less than this.
SOON = 32 << 20
# Nor where they are more than this share of all.
TWICE = 0.03
FIRST = -0.5
# What is asked for before it is used, at least, and for how many batches; more where many requests are out.
AHEAD, AHEAD_BATCHES = 128 << 20, 4
# Samples of which the next epoch is looked at too.
MOST_BEYOND = 5_000_000
# Stretches of samples that tell how much an epoch needs, and how long each is.
PROBES, PROBED_LENGTH = 8, 1024


After = Callable[[], Any]
Ranges = Callable[[I64], Spans | None]


class Prefetch:
    """Asks for the bytes of the batches of a shard, in order, as far ahead as there is room.

    ``done(number)`` says that a batch was made; ``close`` ends it.
    """

    def __init__(
        self, reader: Reader, fields: Sequence[str], indices: I64 | None, shard: Any, after: After | None,
        ranges: Ranges, fetcher: Callable[[], Fetcher] = fetcher, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._reader, self._fields, self._indices, self._shard = reader, tuple(fields), indices, shard
        self._ranges, self._fetcher, self._clock = ranges, fetcher, clock
        self._changed = threading.Condition()
        self._stopped = False
        # The pool that has no room just now.
        self._blocked: Pool | None = None
        # The next batch to look at, the next to ask for, and those that were made.
        self._seen, self._asked = 0, 0
        self._made: set[int] = set()
        self._cells: dict[tuple[RemoteSource, int], Cell] = {}
        self._of_batch: dict[int, list[Cell]] = {}
        self._bytes_seen: dict[int, int] = {}
        # Bytes that were asked for, by the batch that needs them first, and the latest batch somebody makes.
        self._unused: dict[int, int] = {}
        self._wanted = 0
        self._foreseen = 0
        self._whole: dict[RemoteSource, bool] = {}
        # Sources that were asked for the samples of the first batch by themselves.
        self._early: set[RemoteSource] = set()
        # The next epoch, and by cell the first batch of it that needs the cell.
        self._after = after
        self._needs: dict[tuple[str, int], int] = {}
        self._began = clock()
        self._thread = threading.Thread(target=self._run, name="batchplant-prefetch", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait(self, number: int) -> None:
        """Until a batch is asked for: whoever reads it before that would ask sample by sample."""
        with self._changed:
            self._wanted = max(self._wanted, number)
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or self._asked > number or self._is_stuck(number))

    def _is_stuck(self, number: int) -> bool:
        """Whether a batch will not be asked for: no earlier one gives room, and nothing moves to the disk."""
        return self._blocked is not None and len(self._made) >= number and not self._blocked.is_busy()

    def done(self, number: int) -> None:
        """A batch was made: what only it needed may go."""
        with self._changed:
            self._made.add(number)
            self._unused.pop(number, None)
            cells = self._of_batch.pop(number, ())
            if number == 0:
                self._forget_early()
            for cell in cells:
                self._leave(cell, number)
            self._changed.notify_all()

    def _forget_early(self) -> None:
        for source in self._early:
            source.forget_early()
        self._early.clear()

    def _leave(self, cell: Cell, number: int) -> None:
        gone = [one for one in cell.uses if one.batch == number]
        cell.uses = deque(one for one in cell.uses if one.batch != number)
        if cell.source.closed:
            return
        pool, object = cell.source.blocks
        # Blocks in between are none of its business.
        runs = [run for one in gone for run in one.runs()]
        pool.settle(object, runs, functools.partial(self._due, cell.source, number))
        if not cell.uses:
            self._cells.pop((cell.source, cell.number), None)
            self._expect(cell)

    def _due(self, source: RemoteSource, number: int, start: int, end: int) -> float:
        """The batch after this one that needs a block; never where little of it is needed, and late."""
        cell = self._cells.get((source, start // CHUNK_BYTES))
        first, needed = NEVER, 0
        for one in () if cell is None else cell.uses:
            size = one.within(start, end)
            first, needed = min(first, one.batch if size else NEVER), needed + size
            if first <= number + SHORTLY or needed >= KEPT * (end - start):
                return float(first)
        # What lies between samples is not asked for again.
        if cell is not None and needed:
            cell.asked = 0, 0
        return NEVER

    def _expect(self, cell: Cell) -> None:
        """Tell the cache on disk when the next epoch needs a cell: for want of room, the latest goes."""
        need = self._needs.get((str(cell.source.path), cell.number))
        object = cell.source.blocks[1]
        if need is None or object.disk is None:
            return
        now = self._clock()
        each = (now - self._began) / max(1, len(self._made))
        start, end = cell.bounds
        due = now + (len(self._shard) - len(self._made) + need) * each
        object.disk.expect(object.key, [(start, end - start, due)])

    def close(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    # -- the thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        # Whoever makes the batch meets the same error, and says where.
        except BatchplantError:
            pass
        finally:
            self._give_up()

    def _give_up(self) -> None:
        """Nothing that was asked for is needed by this epoch any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            self._forget_early()
            for cell in self._cells.values():
                if cell.uses and not cell.source.closed:
                    pool, object = cell.source.blocks
                    high = max(one.high for one in cell.uses)
                    pool.settle(
                        object, [(cell.bounds[0], max(high, cell.bounds[1]))], lambda start, end: NEVER
                    )
            self._cells.clear()
            self._of_batch.clear()

    def _step(self) -> bool:
        """Look further, ask for one more batch; False when there is nothing more to do."""
        with self._changed:
            if self._stopped:
                return False
        self._look_ahead()
        if not self._shard.has(self._asked):
            with self._changed:
                self._changed.wait_for(lambda: self._stopped or not self._shard.has(len(self._made)))
            return False
        self._pause()
        self._ask(self._asked)
        self._was_asked()
        if self._after is not None:
            self._look_beyond()
        return True

    def _look_ahead(self) -> None:
        while self._shard.has(self._seen) and self._looks_further():
            self._foresee(self._seen)
            self._seen += 1

    def _was_asked(self) -> None:
        with self._changed:
            self._foreseen -= self._bytes_seen.pop(self._asked, 0)
            self._asked += 1
            self._changed.notify_all()

    def _pause(self) -> None:
        """Wait while enough is asked for: what comes long before its time takes memory and CPU time."""
        with self._changed:
            while not self._stopped and self._has_enough():
                self._changed.wait(0.05)

    def _has_enough(self) -> bool:
        if self._asked <= self._wanted + AHEAD_BATCHES:
            return False
        return sum(self._unused.values()) >= max(AHEAD, 2 * self._fetcher().in_flight * CHUNK_BYTES)

    def _look_beyond(self) -> None:
        """Find out when the next epoch needs each cell, where a cache on disk has no room for all."""
        after, self._after = self._after, None
        source = next((cell.source for cell in self._any_cell()), None)
        if after is None or source is None or source.blocks[1].disk is None or self._keeps_all(source):
            return
        shard = after()
        if shard is None or len(self._reader) > MOST_BEYOND:
            return
        for number in range(len(shard)):
            spans = self._spans(shard.batch(number))
            if self._stopped or spans is None:
                return
            for file, cell in {*zip(spans.file.tolist(), (spans.start // CHUNK_BYTES).tolist(), strict=True)}:
                self._needs.setdefault((str(spans.files[file]), cell), number)

    def _looks_further(self) -> bool:
        """Whether more is to be foreseen: beyond what was asked for, as much as there is room for."""
        with self._changed:
            if self._seen <= self._asked:
                return True
            room = max((cell.source.blocks[0].max_bytes for cell in self._any_cell()), default=0)
            return self._seen - self._asked < FORESEEN and self._foreseen < room

    def _any_cell(self) -> list[Cell]:
        for cell in self._cells.values():
            return [cell]
        return []

    def _foresee(self, number: int) -> None:
        """Find out what a batch needs."""
        spans = self._spans(self._shard.batch(number))
        if spans is None or not len(spans):
            return
        with self._changed:
            if number in self._made:
                return
            total = 0
            for cell, use in self._uses(number, spans):
                cell.uses.append(use)
                self._of_batch.setdefault(number, []).append(cell)
                total += use.bytes
            self._bytes_seen[number] = total
            self._foreseen += total

    def _spans(self, positions: I64) -> Spans | None:
        ids = positions if self._indices is None else self._indices[positions]
        try:
            return self._ranges(ids)
        # Whoever makes the batch meets the same error, and says where.
        except DataError:
            return None

    def _uses(self, number: int, spans: Spans) -> list[tuple[Cell, Use]]:
        """What a batch needs of each cell."""
        found, uses = [], uses_of(number, spans)
        sources = {one: self._source(spans.files[one]) for one in {file for file, _, _ in uses}}
        for file, place, use in uses:
            source = sources[file]
            if source is None:
                continue
            key = (source, place)
            if key not in self._cells:
                self._cells[key] = Cell(source, place)
            found.append((self._cells[key], use))
        return found

    def _source(self, path: str) -> RemoteSource | None:
        found = opened(path) if is_remote(path) else None
        if found is not None:
            # What comes next in the file is not what comes next in the order.
            found.planned = True
        return found

    def _ask(self, number: int) -> None:
        for pool in self._asking(number):
            with self._changed:
                # Batches that are made give room; those who wait for this one had better read it.
                self._blocked = pool
                self._changed.notify_all()
                self._changed.wait(0.05)
                self._blocked = None

    def _asking(self, number: int) -> Iterator[Pool]:
        """Ask for a batch; gives the pool that has no room, each time before it is tried again."""
        with self._changed:
            cells = list(self._of_batch.get(number, ()))
        if number == 0 and not self._made:
            self._ask_first(cells)
        for cell in cells:
            while not self._ask_for(cell, number):
                yield cell.source.blocks[0]
                with self._changed:
                    if self._stopped or number in self._made:
                        return

    def _ask_first(self, cells: list[Cell]) -> None:
        """The first batch is waited for: its own samples come before all, and again with what is around them.

        Unless that is little, or the samples are a notable part of all.
        """
        with self._changed:
            uses = [(cell, cell.uses[0]) for cell in cells if cell.uses]
            around = sum(cell.uses[-1].high - cell.uses[0].low for cell, _ in uses)
        need = sum(use.bytes for _, use in uses)
        if around < SOON or need > TWICE * epoch_bytes(self._reader, self._fields):
            return
        for source in {cell.source for cell, _ in uses}:
            mine = [use for cell, use in uses if cell.source is source]
            starts, sizes = (np.concatenate([use[n] for use in mine]) for n in (4, 5))
            source.ask_early(plan_ranges(starts, sizes)[0], FIRST)
            self._early.add(source)

    def _ask_for(self, cell: Cell, number: int) -> bool:
        with self._changed:
            if self._stopped or not cell.uses or cell.source.closed or cell.has_all():
                return True
            whole = self._keeps_all(cell.source)
            ranges, keep = cell.ranges(number, whole=whole)
            (start, end), high = ranges[-1], max(one.high for one in cell.uses)
        pool, object = cell.source.blocks
        # Where not all fits, the end of a sample in the next cell is not worth all of that cell.
        for some in (ranges, [(end, high)] if keep and high > end else []):
            asked = pool.ask(object, some, float(number), keep=keep and whole)
            if asked is None:
                return False
            with self._changed:
                if number not in self._made:
                    self._unused[number] = self._unused.get(number, 0) + asked
        if len(ranges) == 1:
            cell.asked = start, max(end, high) if keep else end
        return True

    def _keeps_all(self, source: RemoteSource) -> bool:
        """Whether the cache on disk has room for all that the epoch needs."""
        if source not in self._whole:
            disk = source.blocks[1].disk
            self._whole[source] = disk is not None and epoch_bytes(self._reader, self._fields) <= disk.limit
        return self._whole[source]


def epoch_bytes(reader: Reader, fields: Sequence[str]) -> int:
    """About how many bytes an epoch needs."""
    told = reader._bytes_of(fields)
    if told is not None:
        return told
    return distinct_runs(reader, fields)[1]


def distinct_runs(reader: Reader, fields: Sequence[str]) -> tuple[int, int]:
    """About how many runs and bytes an epoch needs; a chunk that many samples share counts once."""
    length = min(len(reader), PROBED_LENGTH)
    if not length:
        return 0, 0
    starts = np.unique(np.linspace(0, len(reader) - length, PROBES).astype(np.int64))
    if len(starts) * length >= len(reader):
        starts, length = np.zeros(1, dtype=np.int64), len(reader)
    count = total = 0
    for start in starts.tolist():
        spans = reader.ranges(fields, np.arange(start, start + length))
        if spans is None:
            return 0, 0
        runs = np.unique(np.stack([spans.file.astype(np.int64), spans.start, spans.size.clip(0)]), axis=1)
        count, total = count + runs.shape[1], total + int(runs[2].sum())
    share = len(reader) / (len(starts) * length)
    return round(count * share), round(total * share)


def make_prefetch(
    reader: Reader,
    fields: Sequence[str],
    indices: I64 | None,
    shard: orders.Batches,
    after: After | None = None,
    *,
    ranges: Ranges,
) -> Prefetch | None:
    """A prefetch for an epoch; None where everything is local, or a format cannot tell where bytes lie.

    ``after``: gives the shard of the epoch after this one. ``ranges``: the bytes that samples take.
    """
    if not shard.has(0) or not fields or not is_remote(reader.path):
        return None
    try:
        first = shard.batch(0)[:1]
        spans = reader.ranges(fields, first if indices is None else indices[first])
    # It is said of the batch that has it.
    except BatchplantError:
        return None
    if spans is None or not any(is_remote(path) for path in spans.files):
        return None
    return Prefetch(reader, fields, indices, shard, after, ranges)
