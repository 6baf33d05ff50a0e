"""One epoch: producer threads make batches ahead of the training loop that takes them.

``Epoch`` is the iterator that the training loop holds. ``_Queue`` is what it shares with its threads, which
run ``_produce``. ``BatchCoalescer`` decides how many small batches for a device are made together.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import threading
import time
from collections.abc import Callable, Sized
from typing import Any, Protocol

from .. import order as orders
from ..errors import OptionError, Problem
from ..schema.columns import I64
from ..storage.remote import waiting_until
from . import threads
from .executor import Batch, Executor, SampleBatches
from .images import Device, OnCpu
from .packing import PackedBatches, Packing
from .prefetch import Prefetcher, make_prefetcher
from .sequence import SequenceCutter

# A training step needs the GIL most where it begins, to start kernels. While so many batches are ready, no
# producer begins another batch in this fraction of a step, but it waits for at most so many seconds.
QUIET_READY_BATCHES, QUIET_STEP_FRACTION, MAX_QUIET_SECONDS = 2, 0.25, 0.02

# A batch with the ticket of its delivery, or the exception that is raised in its place.
Delivered = tuple[Batch, Any] | BaseException


class Delivery(Protocol):
    """Hands batches to a framework; see interop."""

    # True if batches go to memory that is not the CPU's.
    elsewhere: bool

    def allocate(self, size: int) -> Any: ...
    def images(self, on_cpu: OnCpu, decode: str, share: float | None, prefetch_batches: int) -> Device: ...
    def send(self, values: dict[str, Any]) -> tuple[dict[str, Any], Any]: ...
    def receive(self, values: dict[str, Any], ticket: Any) -> dict[str, Any]: ...


def check_process(made_in: int) -> None:
    """Raise OptionError in a process other than ``made_in``."""
    if os.getpid() != made_in:
        raise OptionError(
            "the loader was made before this process was forked, and threads do not come along; "
            "make the loader in the process that uses it"
        )


class EpochTotals:
    """Counts and seconds of all epochs of a loader."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waited, self.stepped, self.batches, self.samples, self.bytes = 0.0, 0.0, 0, 0, 0
        self.skipped: list[Problem] = []


@dataclasses.dataclass
class Progress:
    """Position in an epoch; it outlives the epoch, so that a state can be taken after a break."""

    epoch: int
    shard: orders.Batches
    # Returns the shard of the following epoch.
    next_shard: Callable[[], orders.Batches | None] | None = None
    delivered: int = 0

    @property
    def position(self) -> int:
        """Number of samples of the order that all ranks together have delivered."""
        return self.shard.position_after(self.delivered)

    @property
    def finished(self) -> bool:
        return not self.shard.has(self.delivered)


@dataclasses.dataclass(frozen=True)
class CoalescingTuning:
    """Limits of coalesced batches.

    seconds: how much of the training loop's consumption is made together. max_samples: of all coalesced
    batches. epoch_parts: the least number of such groups in an epoch, since several are made side by side.
    decay: weight of older measurements. overprovision: factor by which in-flight batches exceed the average
    need, since some take longer than others.
    """

    seconds: float = 0.03
    max_samples: int = 2048
    epoch_parts: int = 8
    decay: float = 0.8
    overprovision: float = 2


class BatchCoalescer:
    """Decides how many batches are made together (``size``), and how many may be in flight (``room``).

    Small batches for a device are read, copied and computed several at a time, since the fixed cost of each
    exceeds that of its samples, and given out one by one. The number depends on how fast batches are taken;
    their contents do not depend on it. ``prefetch_batches``: the least number of batches in flight.
    ``limit``: returns how many samples of so many bytes a device may make together; None where batches are
    not coalesced. The first batch shows whether it can be sliced.
    """

    tuning = CoalescingTuning()

    def __init__(
        self,
        prefetch_batches: int,
        limit: Callable[[float], float] | None,
        tuning: CoalescingTuning | None = None,
    ) -> None:
        self._prefetch_batches, self._limit = prefetch_batches, limit
        self.tuning = tuning or self.tuning
        self._lock = threading.Lock()
        self._producers, self._max_size = 1, 1
        self._last = 0.0
        # Decaying sums over the latest batches: samples, seconds between them, and seconds that each took.
        self._samples, self._seconds, self._latency = 0.0, 0.0, 0.0
        self.size, self.room = 1, prefetch_batches

    def start(self, batches: Sized, producers: int, room: int = 0) -> None:
        """Begin an epoch of ``batches``, which ``producers`` threads make, ``room`` at a time at least."""
        with self._lock:
            self._producers, self._last = producers, time.perf_counter()
            if self._limit is not None:
                # Packed rows, which are not coalesced, would all be planned to be counted.
                self._max_size = max(1, len(batches) // self.tuning.epoch_parts)
            self.size = min(self.size, self._max_size)
            self._prefetch_batches = max(self._prefetch_batches, room)
            self.room = max(self.room, room)

    def record(self, batch: Batch, batches: int, began: float) -> None:
        """Learn from ``batch``, which holds several batches and was begun at ``began``."""
        if self._limit is None:
            return
        samples, now, tuning = len(batch.ids), time.perf_counter(), self.tuning
        if not samples or any(not _has_rows(value, samples) for value in batch.values.values()):
            self._limit, self.size, self.room = None, 1, self._prefetch_batches
            return
        with self._lock:
            since, self._last = now - self._last, now
            self._samples = tuning.decay * self._samples + samples
            self._seconds = tuning.decay * self._seconds + since
            latency = now - began
            if self._latency:
                latency = tuning.decay * self._latency + (1 - tuning.decay) * latency
            self._latency = latency
            rate, batch_size = self._samples / max(self._seconds, 1e-9), samples / batches
            sample_bytes = sum(value.nbytes for value in batch.values.values()) / samples
            limit = int(min(tuning.max_samples, self._limit(max(sample_bytes, 1))) / batch_size)
            self.size = max(1, min(round(tuning.seconds * rate / batch_size), limit, self._max_size))
            in_flight = math.ceil(tuning.overprovision * rate * self._latency / batch_size)
            self.room = max(self._prefetch_batches, min(in_flight, (self._producers + 1) * self.size))


def _has_rows(value: object, count: int) -> bool:
    shape: Any = getattr(value, "shape", None)
    return bool(shape) and shape[0] == count and hasattr(value, "nbytes")


def split(coalesced: Batch, ids: list[I64]) -> list[Batch]:
    """Return the batches that were made together."""
    batches, start = [], 0
    for batch_ids in ids:
        rows = slice(start, start + len(batch_ids))
        values = {name: value[rows] for name, value in coalesced.values.items()}
        batches.append(Batch(values, batch_ids, []))
        start = rows.stop
    return batches


class _Queue:
    """State that an epoch and its threads share; threads never refer to the epoch, so it can be collected."""

    batches: SampleBatches

    def __init__(
        self,
        executor: Executor,
        delivery: Delivery | None,
        coalescer: BatchCoalescer,
        cutter: SequenceCutter | None = None,
        stall_after: float | None = None,
    ) -> None:
        self.stall_after = stall_after
        self.executor, self.delivery, self.coalescer, self.cutter = executor, delivery, coalescer, cutter
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.ready: dict[int, Delivered] = {}
        # The next batch to make, the next to hand out, and the number handed out.
        self.next, self.requested, self.taken, self.stopped = 0, 0, 0, False
        # Held by the thread that prepares a batch, so that requests reach the engine in order.
        self.in_order = threading.Lock()
        self.prefetch: Prefetcher | None = None
        # Seconds of a training step, and the time until which its beginning is left alone.
        self.step_seconds, self.quiet_until = 0.0, 0.0

    def claim(self) -> range:
        """Return the next batches to make once there is room for them; empty when none is left."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or self.next < self.taken + self.coalescer.room)
            while not self.stopped and len(self.ready) >= QUIET_READY_BATCHES:
                if (seconds := self.quiet_until - time.perf_counter()) <= 0:
                    break
                self.changed.wait(seconds)
            first, shard = self.next, self.batches.shard
            while not self.stopped and self.next < first + self.coalescer.size and shard.has(self.next):
                self.next += 1
            return range(first, self.next)

    def put(self, numbers: range, delivered: list[Delivered]) -> None:
        with self.changed:
            if not self.stopped:
                self.ready.update(zip(numbers, delivered, strict=True))
            self.changed.notify_all()

    def take(self) -> Delivered | None:
        """Return the next batch or the exception in its place; None at the end."""
        with self.changed:
            if self.stopped or not self.batches.shard.has(self.requested):
                return None
            number, self.requested = self.requested, self.requested + 1
            began = time.perf_counter()
            while not self.changed.wait_for(lambda: self.stopped or number in self.ready, self.stall_after):
                threads.log_stall(number, time.perf_counter() - began)
            self.taken += 1
            quiet = min(QUIET_STEP_FRACTION * self.step_seconds, MAX_QUIET_SECONDS)
            self.quiet_until = time.perf_counter() + quiet
            self.changed.notify_all()
            return self.ready.pop(number, None)

    @property
    def over(self) -> bool:
        return self.stopped or not self.batches.shard.has(self.taken)

    def stop(self) -> None:
        # In a forked child, the lock may be held by a thread that does not exist there.
        if os.getpid() != self.process:
            return
        with self.changed:
            self.stopped = True
            self.ready.clear()
            self.changed.notify_all()
        if self.prefetch is not None:
            self.prefetch.close()


def _produce(queue: _Queue) -> None:
    """Make batches until the epoch ends: the body of a producer thread."""
    with waiting_until(lambda: queue.stopped):
        _produce_batches(queue)


def _produce_batches(queue: _Queue) -> None:
    while True:
        prepared: Any = None
        with queue.in_order:
            numbers = queue.claim()
            if not numbers:
                return
            began = time.perf_counter()
            try:
                if queue.prefetch is not None:
                    for number in numbers:
                        queue.prefetch.wait(number)
                prepared = queue.batches.prepare(numbers)
            # It is raised again in the thread that takes this batch.
            except BaseException as error:
                delivered: list[Delivered] = [error]
        if prepared is not None:
            delivered = _finish(queue, prepared, numbers, began)
        if len(delivered) < len(numbers):
            # One of the coalesced batches has an error: make each by itself to find out which.
            delivered = [_make_alone(queue, number) for number in numbers]
        for number in numbers:
            if queue.prefetch is not None:
                queue.prefetch.done(number)
        queue.put(numbers, delivered)
        del delivered, prepared


def _finish(queue: _Queue, prepared: Any, numbers: range, began: float) -> list[Delivered]:
    """Finish batches that were prepared together.

    Returns one exception if making them failed, and nothing if samples of coalesced batches were skipped.
    """
    try:
        batch = queue.batches.finish(prepared)
        if len(numbers) > 1 and batch.skipped:
            return []
        batch, ticket = _deliver(queue, batch)
        queue.coalescer.record(batch, len(numbers), began)
        if len(numbers) == 1:
            return [(batch, ticket)]
        return [(part, ticket) for part in split(batch, prepared.ids)]
    except BaseException as error:
        return [error]


def _make_alone(queue: _Queue, number: int) -> Delivered:
    try:
        return _deliver(queue, queue.batches.finish(queue.batches.prepare(range(number, number + 1))))
    except BaseException as error:
        return error


def _deliver(queue: _Queue, batch: Batch) -> tuple[Batch, Any]:
    if queue.cutter is not None:
        batch = queue.cutter(batch)
    if queue.delivery is None:
        return batch, None
    began = time.perf_counter()
    values, ticket = queue.delivery.send(batch.values)
    queue.executor.timer.add("device", began)
    return Batch(values, batch.ids, batch.skipped), ticket


class Epoch:
    """One pass over the samples, begun with the first batch. Dropping it, or ``close``, ends its threads.

    ``begin()`` returns the epoch that starts now; ``begin(False)`` the one that would. ``on_step`` is called
    with the number of batches that were taken, and the samples that the last one lacks.
    """

    def __init__(
        self,
        executor: Executor,
        delivery: Delivery | None,
        begin: Callable[..., Progress],
        totals: EpochTotals,
        *,
        indices: I64 | None,
        coalescer: BatchCoalescer,
        packing: Packing | None,
        ids: bool,
        page_cache: bool | None = None,
        cutter: SequenceCutter | None = None,
        on_step: Callable[[int, list[Problem]], None] | None = None,
        stall_after: float | None = None,
    ) -> None:
        self._delivery, self._totals, self._ids = delivery, totals, ids
        self._on_step = on_step
        self._page_cache = page_cache
        self._indices, self._packing = indices, packing
        self._make_queue = functools.partial(_Queue, executor, delivery, coalescer, cutter, stall_after)
        self._queue = self._make_queue()
        self._begin: Callable[..., Progress] | None = begin
        self.progress: Progress | None = None
        # When the training loop received its last batch.
        self._delivered_at = 0.0
        self._threads: list[threading.Thread] = []

    def _start(self) -> None:
        """Start the producers unless they run; several threads may ask for the first batch."""
        queue = self._queue
        with queue.changed:
            if self._begin is None or queue.stopped:
                return
            self.progress = progress = self._begin()
            # `_begin` refers to the loader, which is needed no longer.
            self._begin = None
            executor, shard = queue.executor, progress.shard
            if self._packing is None:
                queue.batches = SampleBatches(executor, shard, self._indices, progress.epoch)
            else:
                queue.batches = PackedBatches(self._packing, executor, shard, self._indices, progress.epoch)
            if executor.reads:
                queue.prefetch = make_prefetcher(
                    executor,
                    self._indices,
                    shard,
                    page_cache=self._page_cache,
                    next_shard=progress.next_shard,
                )
            producers = executor.producers()
            queue.coalescer.start(shard, producers, executor.room())
            self._threads = [
                threading.Thread(target=_produce, args=(queue,), name=f"batchplant-{number}", daemon=True)
                for number in range(producers)
            ]
        threads.start(self._threads, queue)
        if queue.prefetch is not None:
            # Last: where the bytes are in memory already, the first batch waits for no other thread.
            queue.prefetch.start()

    def __iter__(self) -> Epoch:
        return self

    @property
    def over(self) -> bool:
        """True if no batch will follow."""
        return self._queue.stopped

    @property
    def queue(self) -> tuple[int, int]:
        """Number of batches that are ready, and number being made."""
        ready = len(self._queue.ready)
        return ready, max(0, self._queue.next - self._queue.taken - ready)

    def __len__(self) -> int:
        """Batches that are still to come."""
        progress = self.progress or (self._begin(False) if self._begin else None)
        return len(progress.shard) - progress.delivered if progress else 0

    def __next__(self) -> Any:
        check_process(self._queue.process)
        try:
            self._start()
            return self._next()
        except StopIteration:
            raise
        except BaseException:
            # Ctrl-C, or an error in a batch: its traceback may refer to the epoch for long, but to no thread.
            self._queue.stop()
            raise

    def _next(self) -> Any:
        began = time.perf_counter()
        delivered = self._queue.take()
        ended = time.perf_counter()
        with self._totals.lock:
            step = began - self._delivered_at if self._delivered_at else 0.0
            self._totals.stepped += step
            self._queue.step_seconds = (self._queue.step_seconds + step) / 2
            self._totals.waited += ended - began
            self._delivered_at = ended
        if delivered is None:
            # Another thread may still wait for the batch it asked for.
            if self._queue.over:
                self.close()
            raise StopIteration
        if isinstance(delivered, BaseException):
            self.close()
            try:
                raise delivered
            finally:
                # Break the cycle exception -> traceback -> frame -> exception.
                del delivered
        batch, ticket = delivered
        with self._totals.lock:
            self._totals.batches += 1
            self._totals.samples += len(batch.ids)
            self._totals.bytes += sum(getattr(value, "nbytes", 0) for value in batch.values.values())
            self._totals.skipped += batch.skipped
            if self.progress is not None:
                self.progress.delivered += 1
                if self._on_step is not None:
                    self._on_step(self.progress.delivered, batch.skipped)
        values = dict(batch.values)
        if self._ids:
            values["ids"] = batch.ids
        return values if self._delivery is None else self._delivery.receive(values, ticket)

    def restart(self, progress: Progress) -> None:
        """Go on with the batches of ``progress``; those that were made in advance are dropped."""
        self.close()
        self._queue, self.progress = self._make_queue(), None
        self._begin = lambda count=True: progress

    def stop(self) -> None:
        """Begin no further batch."""
        self._queue.stop()

    def close(self, patience: float | None = None) -> None:
        """Stop the threads; ``patience``: seconds to wait for what they are doing."""
        self._queue.stop()
        if os.getpid() != self._queue.process:
            return
        for thread in self._threads:
            if thread is not threading.current_thread():
                threads.join(thread, patience)

    def __del__(self) -> None:
        if hasattr(self, "_queue"):
            self._queue.stop()
