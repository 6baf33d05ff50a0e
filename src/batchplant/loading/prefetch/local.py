"""Prefetching from local files that are not in memory.

If a dataset fits into memory, the kernel is asked to read ahead, and the pages stay for the next epoch. If it
does not, pages would be evicted before they are used again: then cells are read past the page cache, into
buffers that are used again and again, which takes a fraction of the CPU time. Bytes that samples share go
through the page cache all the same.
"""

from __future__ import annotations

import contextlib
import enum
import math
import os
import threading
import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ... import order as orders
from ...data.buffers import BufferPool
from ...errors import BatchplantError
from ...schema.columns import I64, U8
from ...storage import MappedSource
from ...storage.platform import available_memory
from ...storage.spans import Attached, ReadSpans, Spans, aligned_memory, concat_spans, read_spans
from .. import threads
from ..executor import Executor
from .base import Prefetcher, PrefetchTuning

# Smallest distance of cells that are read by themselves; cells that lie closer are a table.
MIN_CELL_DISTANCE_BYTES = 512
# Largest fraction of a sample's bytes that may be shared with its neighbour, such as a dictionary.
MAX_SHARED_FRACTION = 0.1
# Samples that an estimate looks at: so many in a row, at so many positions, since a format may have to look
# at everything around a sample to find it.
PROBE_SAMPLES, PROBES = 16, 16
# So long after an epoch whose bytes were in memory, those of the next one are taken to be.
RESIDENT_SECONDS = 5.0


class ReadMode(enum.Enum):
    """How bytes are prefetched."""

    ADVISE = "ask the kernel to read them into the page cache"
    READ = "read them now, into buffers of this batch"
    SHARE = "read them now, into buffers that later batches may use too"


class PlannedRead(NamedTuple):
    """Bytes that a batch needs, and how to prefetch them."""

    spans: Spans
    mode: ReadMode


class SharedReads:
    """Buffers that cells of several batches lie in. It has no lock."""

    def __init__(self) -> None:
        self._reads: list[tuple[set[int], Attached]] = []

    def add(self, number: int, attached: Attached) -> None:
        """Hold bytes for this batch and those that will use them."""
        self._reads.append(({number}, attached))

    def use(self, number: int, spans: Spans) -> I64:
        """Return the rows of the cells that are not here; the others stay here until this batch is done."""
        present = np.zeros(len(spans), np.bool_)
        for users, attached in self._reads:
            flags = attached.find(spans)
            present |= flags
            if flags.any():
                users.add(number)
        return np.flatnonzero(~present)

    def done(self, number: int) -> None:
        """Drop the buffers that only this batch used."""
        for users, _ in self._reads:
            users.discard(number)
        self._drop([(users, attached) for users, attached in self._reads if not users])

    def clear(self) -> None:
        self._drop(self._reads)

    def _drop(self, reads: list[tuple[set[int], Attached]]) -> None:
        self._reads = [read for read in self._reads if all(read is not dropped for dropped in reads)]
        for _, attached in reads:
            attached.detach()


class LocalPrefetcher(Prefetcher):
    """Reads for the batches of a shard, in order, some ahead of those that are made.

    ``locates_images``: images can be located without reading, so they are read here. ``direct``: past the
    page cache. ``direct_fields``: other fields that are read so, for readers that then find their bytes.
    """

    def __init__(
        self,
        executor: Executor,
        indices: I64 | None,
        shard: orders.Batches,
        *,
        direct: bool,
        locates_images: bool = True,
        direct_fields: Sequence[str] = (),
        tuning: PrefetchTuning | None = None,
    ) -> None:
        self._executor, self._indices, self._shard, self.direct = executor, indices, shard, direct
        self._locates_images, self.direct_fields = locates_images, direct_fields
        self._tuning = tuning or PrefetchTuning()
        self.process = os.getpid()
        self._changed = threading.Condition()
        self._stopped = False
        # The next batch to read for, the latest that is being made, and those that are being read.
        self._next, self._wanted = 0, 0
        self._busy: set[int] = set()
        # By batch: bytes that were requested, and the buffers that its readers find bytes in.
        self._requested: dict[int, int] = {}
        self._attached: dict[int, Attached] = {}
        # Runs that cells of several batches lie in are read by one thread at a time.
        self._shared, self._sharing = SharedReads(), threading.Lock()
        # Whether samples of a batch share runs of bytes, and their images can be located in those.
        self._shares_runs, self._finds_in_runs = False, True
        # Fields whose cells are files: nothing is shared, and to look up a file takes time.
        self._file_fields: set[str] = set()
        # Consecutive batches that were resident, and their bytes.
        self._resident_batches = self._resident_bytes = 0
        # Whether the bytes of any batch were looked for.
        self._looked_at = False
        if not direct and _was_resident(executor):
            # As within an epoch, only some batches are looked at, and the first is not waited for.
            self._resident_batches, self._next = self._tuning.resident_batches, 1
        # As many as there can be at once, those of batches that are being made included: new ones cost time.
        buffers = 2 * (self._tuning.local_threads + self._tuning.local_batches)
        self._buffers = BufferPool(buffers, aligned_memory)

    def start(self) -> None:
        # Keep no reference: threads -> self -> threads would be a reference cycle.
        readers = [
            threading.Thread(target=self._run, name=f"batchplant-readahead-{n}", daemon=True)
            for n in range(self._tuning.local_threads)
        ]
        threads.start(readers, self)

    def wait(self, number: int) -> None:
        """Block until the batch was read or the kernel was asked to; else the decoder faults page by page."""
        with self._changed:
            self._wanted = max(self._wanted, number)
            self._wake()
            self._changed.wait_for(
                lambda: self._stopped or (self._next > number and number not in self._busy)
            )

    def done(self, number: int) -> None:
        with self._changed:
            self._release(number)
            self._wake()

    def _wake(self) -> None:
        """Wake the readers if there is room; while everything is resident, there seldom is."""
        if self._has_room():
            self._changed.notify_all()

    def _release(self, number: int) -> None:
        self._requested.pop(number, None)
        attached = self._attached.pop(number, None)
        if attached is not None:
            attached.detach()
            if not attached.used:
                # The format reads its files by itself and does not find the buffers.
                self.direct_fields = ()
        self._shared.done(number)

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            for number in list(self._attached):
                self._release(number)
            self._shared.clear()
            self._changed.notify_all()
            if self._looked_at and not self.direct:
                resident = self._resident_batches >= self._tuning.resident_batches
                self._executor.resident_at = time.monotonic() if resident else -math.inf

    close = stop

    # -- the threads -----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while (number := self._claim()) is not None:
                over = False
                # The thread that makes the batch meets the same error and reports it.
                with contextlib.suppress(BatchplantError, OSError):
                    # It may take long if rows are packed of what comes next: do not hold the lock.
                    over = not self._shard.has(number)
                    if not over:
                        self._prefetch(number)
                with self._changed:
                    self._busy.discard(number)
                    self._changed.notify_all()
                if over:
                    return
        # Without this thread, others would wait for ever.
        except BaseException:
            self.stop()
            raise

    def _claim(self) -> int | None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopped or self._has_room())
            if self._stopped:
                return None
            tuning = self._tuning
            # If batches share runs, a few may be resident because a run was just read for the first of them.
            enough = (
                not self._shares_runs
                or self._resident_bytes >= tuning.max_local_read_bytes
                or self._resident_batches >= tuning.max_local_batches
            )
            number = self._next
            if enough and self._resident_batches >= tuning.resident_batches:
                number += -number % tuning.resident_check_interval
            self._next = number + 1
            self._busy.add(number)
            return number

    def _has_room(self) -> bool:
        ahead = self._next - self._wanted
        if ahead <= self._tuning.local_batches:
            return True
        requested = sum(self._requested.values())
        return ahead < self._tuning.max_local_batches and requested < self._tuning.local_bytes

    def _prefetch(self, number: int) -> None:
        self._looked_at = True
        positions = self._shard.batch(number)
        ids = positions if self._indices is None else self._indices[positions]
        resident, size = True, 0
        for read in self._plan_reads(number, ids):
            size += 0 if read.mode is ReadMode.SHARE else read.spans.bytes
            resident = self._issue(number, read) and resident
        self._resident_batches = self._resident_batches + 1 if resident else 0
        self._resident_bytes = self._resident_bytes + size if resident else 0

    def _plan_reads(self, number: int, ids: I64) -> Iterator[PlannedRead]:
        """Yield the reads of a batch.

        Each is issued before the next is planned: readers locate images in the runs that were read first.
        """
        plan, reader = self._executor.plan, self._executor.reader
        direct_fields = self.direct_fields
        fields = plan.columns if self._locates_images else plan.fields
        advised = [name for name in fields if name not in direct_fields]
        # Read in one call, however many files there are.
        direct: list[Spans] = []
        for field in dict.fromkeys(output.field for output in plan.images if self._locates_images):
            runs = None if field in self._file_fields else reader.ranges([field], ids)
            shared = runs is not None and len(ids) > self._tuning.min_cells_per_run * len(runs)
            self._shares_runs = self._shares_runs or shared
            if runs is not None and shared and self._finds_in_runs:
                yield PlannedRead(runs, ReadMode.SHARE)
            spans = reader.spans(field, ids)
            if spans is None or any(source.remote for source in spans.sources):
                advised.append(field)
                self._finds_in_runs = self._finds_in_runs and not shared
                continue
            spans = spans.compact()
            self._file_fields.discard(field)
            if not _are_mapped(spans):
                if not shared:
                    self._file_fields.add(field)
                # Files that no reader has open are read here and now, past the page cache or not.
                direct.append(spans)
            elif not self.direct:
                advised.append(field)
            else:
                spans = self._not_shared(number, spans)
                if not _are_resident(spans):
                    direct.append(spans)
        runs = reader.ranges(direct_fields, ids) if direct_fields else None
        if runs is not None and not _are_mapped(runs):
            advised += direct_fields
        elif runs is not None and runs.bytes <= self._tuning.max_local_read_bytes and not _are_resident(runs):
            direct.append(runs)
        if direct:
            yield PlannedRead(concat_spans(direct), ReadMode.READ)
        if not self._locates_images and not direct_fields:
            runs = self._executor.ranges(ids)
        else:
            runs = reader.ranges(advised, ids) if advised else None
        if runs is not None:
            self._shares_runs = self._shares_runs or len(ids) > self._tuning.min_cells_per_run * len(runs)
            yield PlannedRead(runs, ReadMode.ADVISE)

    def _issue(self, number: int, read: PlannedRead) -> bool:
        """Carry out a read; return True if all of it was resident."""
        if read.mode is ReadMode.ADVISE or (read.mode is ReadMode.SHARE and not self.direct):
            return self._advise(number, read.spans)
        if read.mode is ReadMode.SHARE:
            return self._share(number, read.spans)
        result = self._read(read.spans)
        if result is not None:
            with self._changed:
                if not self._stopped:
                    self._requested[number] = self._requested.get(number, 0) + len(result.memory)
                    self._attached[number] = result.attach(read.spans)
        return False

    def _share(self, number: int, spans: Spans) -> bool:
        """Read runs that cells of this batch and others lie in; return True if they were resident."""
        if not _are_mapped(spans) or _are_resident(spans):
            return True
        limit = min(
            self._tuning.max_local_read_bytes, int(available_memory() * self._tuning.max_shared_fraction)
        )
        with self._sharing:
            missing = self._not_shared(number, spans)
            result = self._read(missing) if missing.bytes <= limit else None
            if result is not None:
                with self._changed:
                    if not self._stopped:
                        self._requested[number] = self._requested.get(number, 0) + len(result.memory)
                        self._shared.add(number, result.attach(missing))
        return False

    def _not_shared(self, number: int, spans: Spans) -> Spans:
        """Return the cells that do not lie in shared buffers; those of the others are kept for this batch."""
        with self._changed:
            missing = self._shared.use(number, spans)
        return spans if len(missing) == len(spans) else spans.take(missing)

    def _read(self, spans: Spans) -> ReadSpans | None:
        if not len(spans):
            return None
        result = read_spans(spans, self._allocate, direct=self.direct)
        if result is None and self.direct:
            # Some file systems only read through the page cache.
            result = read_spans(spans, self._allocate, direct=False)
        return result

    def _allocate(self, size: int) -> U8:
        # Few sizes, so that memory is used again.
        step = 1 << max(20, size.bit_length() - 2)
        return self._buffers.take((-(-size // step) * step,), np.dtype(np.uint8))

    def _advise(self, number: int, spans: Spans) -> bool:
        """Have the kernel read; return True if all was resident."""
        if spans.bytes > self._tuning.max_local_read_bytes:
            return True
        missing = sum(
            source.request(starts, sizes, thorough=True)
            for source, _, starts, sizes in spans.by_source()
            if not source.remote
        )
        with self._changed:
            self._requested[number] = self._requested.get(number, 0) + missing
        return not missing


def _was_resident(executor: Executor) -> bool:
    """Return True if the epoch before this one ended just now with all of its bytes in memory."""
    return time.monotonic() - executor.resident_at < RESIDENT_SECONDS


def _are_mapped(spans: Spans) -> bool:
    return all(isinstance(source, MappedSource) and not source.closed for source in spans.sources)


def _are_resident(spans: Spans) -> bool:
    return all(source.resident(starts, sizes) for source, _, starts, sizes in spans.by_source())


def make_local_prefetcher(
    executor: Executor,
    indices: I64 | None,
    shard: orders.Batches,
    batch: I64,
    page_cache: bool | None,
    tuning: PrefetchTuning,
) -> LocalPrefetcher:
    """Make the prefetcher of local files; ``batch``: the samples of the first batch.

    ``page_cache``: False to read past it, None to do so if the dataset is larger than memory.
    """
    locates_images = _locates_images(executor, batch[:1])
    larger = page_cache is False
    if page_cache is None and not _was_resident(executor):
        larger = (
            _needed_bytes(executor, indices, locates_images) > tuning.max_cached_fraction * available_memory()
        )
    # Of images that are cached decoded, most are not read.
    fields = executor.plan.columns if locates_images else executor.plan.fields
    direct_fields = [
        name for name in fields if larger and executor.decoded is None and _lie_apart(executor, name, batch)
    ]
    direct = larger and (locates_images or bool(direct_fields))
    return LocalPrefetcher(
        executor,
        indices,
        shard,
        direct=direct,
        locates_images=locates_images,
        direct_fields=direct_fields,
        tuning=tuning,
    )


def _locates_images(executor: Executor, sample: I64) -> bool:
    """Return True if images are located without reading; within a record, they have to be searched for."""
    # Of images that are cached decoded, most are not read.
    if executor.decoded is not None or not executor.plan.images:
        return False
    reader = executor.reader
    for field in {output.field for output in executor.plan.images}:
        cell, read = reader.spans(field, sample), reader.ranges([field], sample)
        if cell is None or read is None or not np.array_equal(cell.start, read.start):
            return False
    return True


def _needed_bytes(executor: Executor, indices: I64 | None, images_only: bool) -> float:
    """Estimate how many bytes an epoch reads."""
    reader, plan = executor.reader, executor.plan
    count = len(reader) if indices is None else len(indices)
    stored_bytes = reader._layout().stored_bytes(plan.fields)
    if stored_bytes is not None:
        return stored_bytes * count / max(1, len(reader))
    firsts = np.linspace(0, max(0, count - PROBE_SAMPLES), PROBES).astype(np.int64)
    probed: I64 = np.unique(np.minimum(firsts[:, None] + np.arange(PROBE_SAMPLES), count - 1))
    probed = probed if indices is None else indices[probed]
    if images_only:
        parts = [reader.spans(output.field, probed) for output in plan.images]
    else:
        parts = [reader.ranges(plan.fields, probed)]
    return sum(spans.bytes * count / len(probed) for spans in parts if spans is not None)


def _lie_apart(executor: Executor, field: str, batch: I64) -> bool:
    """Return True if the bytes that samples of a batch read are not needed by their neighbours."""
    reader = executor.reader
    if len(reader) < 2:
        return False
    even = np.unique(np.minimum(batch & ~1, len(reader) - 2))
    spans, neighbours = reader.ranges([field], even), reader.ranges([field], even + 1)
    if spans is None or neighbours is None:
        return False
    shared = 0
    for source in dict.fromkeys((*spans.sources, *neighbours.sources)):
        starts, ends = _runs_in(spans, source)
        begins, stops = _runs_in(neighbours, source)
        # A neighbour overlaps if more runs begin before its end than end before its start.
        overlaps = np.searchsorted(np.sort(starts), stops) > np.searchsorted(np.sort(ends), begins, "right")
        shared += int((stops - begins)[overlaps].sum())
        distances = np.diff(np.sort(np.concatenate([starts, begins])))
        if len(distances) and np.percentile(distances, 25) < MIN_CELL_DISTANCE_BYTES:
            return False
    return shared <= MAX_SHARED_FRACTION * neighbours.bytes


def _runs_in(spans: Spans, source: object) -> tuple[I64, I64]:
    in_source = np.array([candidate == source for candidate in spans.sources])
    rows = np.flatnonzero((spans.size > 0) & in_source[spans.file])
    return spans.start[rows], spans.start[rows] + spans.size[rows]
