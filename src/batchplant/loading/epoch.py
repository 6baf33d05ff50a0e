"""One epoch: threads that make batches ahead of the loop that takes them."""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np

from .. import order as orders
from ..errors import OptionError, Problem
from ..schema.columns import I64
from ..storage.remote import waiting_until
from . import threads
from .batch import Batch, Executor, Prepared
from .convoy import Pace, cut
from .images import Device
from .on_cpu import OnCpu
from .prefetch import Prefetch, make_prefetch
from .readahead import Readahead, make_readahead

# A step needs Python's lock most where it begins, to start kernels. While so many batches are ready, no
# thread begins another in this part of a step, but not for more seconds.
READY, LULL, LONGEST = 2, 0.25, 0.02


class Delivery(Protocol):
    """What hands batches to a framework; see interop."""

    # Whether batches go to memory that is not the CPU's.
    elsewhere: bool

    def allocate(self, size: int) -> Any: ...
    def images(self, on_cpu: OnCpu, decode: str, share: float | None, ahead: int) -> Device: ...
    def send(self, values: dict[str, Any]) -> tuple[dict[str, Any], Any]: ...
    def receive(self, values: dict[str, Any], ticket: Any) -> dict[str, Any]: ...


def check_process(made_in: int) -> None:
    if os.getpid() != made_in:
        raise OptionError(
            "the loader was made before this process was forked, and threads do not come along; "
            "make the loader in the process that uses it"
        )


class Tally:
    """What the epochs of a loader came to, all together."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.waited, self.stepped, self.batches, self.samples = 0.0, 0.0, 0, 0
        self.skipped: list[Problem] = []


@dataclasses.dataclass
class Progress:
    """How far an epoch has come; it outlives the epoch, so that a state can be taken after a break."""

    epoch: int
    shard: orders.Batches
    given: int = 0
    # The shard of the epoch after this one.
    after: Callable[[], orders.Batches | None] | None = None

    @property
    def position(self) -> int:
        """How many samples of the whole order, over all ranks, were given out."""
        return self.shard.position_after(self.given)

    @property
    def finished(self) -> bool:
        return not self.shard.has(self.given)


def after(loader: Any, epoch: int) -> Callable[[], orders.Batches | None]:
    """Gives the shard of the next epoch, as long as somebody holds the loader."""
    held = weakref.ref(loader)

    def shard() -> orders.Batches | None:
        found = held()
        return None if found is None else found._shard(epoch + 1, 0)

    return shard


class _Shared:
    """What an epoch and its threads share; the threads never hold the epoch, so that it can be let go."""

    shard: orders.Batches
    epoch: int

    def __init__(
        self, executor: Executor, delivery: Delivery | None, indices: I64 | None, pace: Pace
    ) -> None:
        self.executor, self.delivery, self.indices, self.pace = executor, delivery, indices, pace
        self.process = os.getpid()
        self.changed = threading.Condition()
        self.made: dict[int, Any] = {}
        # Batches that threads began to make, that were asked for, and that were taken.
        self.next, self.asked, self.taken, self.stopped = 0, 0, 0, False
        # Held by the thread that prepares a batch: so they come to the engine in order.
        self.in_order = threading.Lock()
        self.prefetch: Prefetch | Readahead | None = None
        # How long a step takes, and until when it is left alone.
        self.step, self.quiet = 0.0, 0.0

    def ids_of(self, number: int) -> I64:
        """The samples of a batch."""
        positions = self.shard.batch(number)
        return positions if self.indices is None else self.indices[positions]

    def claim(self) -> range:
        """The next batches to make, once there is room for them; none when there is nothing left to do."""
        with self.changed:
            self.changed.wait_for(lambda: self.stopped or self.next < self.taken + self.pace.room)
            while not self.stopped and len(self.made) >= READY:
                if (left := self.quiet - time.perf_counter()) <= 0:
                    break
                self.changed.wait(left)
            first = self.next
            while not self.stopped and self.next < first + self.pace.together and self.shard.has(self.next):
                self.next += 1
            return range(first, self.next)

    def put(self, numbers: range, made: list[Any]) -> None:
        with self.changed:
            if not self.stopped:
                self.made.update(zip(numbers, made, strict=True))
            self.changed.notify_all()

    def take(self) -> Any:
        """The next batch or the exception in its place; None when there is none to come."""
        with self.changed:
            if self.stopped or not self.shard.has(self.asked):
                return None
            number, self.asked = self.asked, self.asked + 1
            self.changed.wait_for(lambda: self.stopped or number in self.made)
            self.taken += 1
            self.quiet = time.perf_counter() + min(LULL * self.step, LONGEST)
            self.changed.notify_all()
            return self.made.pop(number, None)

    @property
    def over(self) -> bool:
        return self.stopped or not self.shard.has(self.taken)

    def stop(self) -> None:
        # In a child of a fork, threads that are not there may hold the lock.
        if os.getpid() != self.process:
            return
        with self.changed:
            self.stopped = True
            self.made.clear()
            self.changed.notify_all()
        if self.prefetch is not None:
            self.prefetch.close()


def _produce(shared: _Shared) -> None:
    with waiting_until(lambda: shared.stopped):
        _produce_batches(shared)


def _produce_batches(shared: _Shared) -> None:
    while True:
        prepared: Any = None
        with shared.in_order:
            numbers = shared.claim()
            if not numbers:
                return
            began = time.perf_counter()
            try:
                if shared.prefetch is not None:
                    for number in numbers:
                        shared.prefetch.wait(number)
                executor = shared.shard.executor(numbers[0], shared.executor)
                ids = [shared.ids_of(number) for number in numbers]
                prepared = executor.prepare(ids[0] if len(ids) == 1 else np.concatenate(ids), shared.epoch)
            # It is raised again in the thread that asks for this batch.
            except BaseException as error:
                made: list[Any] = [error]
        if prepared is not None:
            made = _made(shared, executor, prepared, ids, numbers, began)
        if len(made) < len(numbers):
            # Something in one of them is wrong: each by itself tells in which.
            made = [_alone(shared, number) for number in numbers]
        for number in numbers:
            if shared.prefetch is not None:
                shared.prefetch.done(number)
        shared.put(numbers, made)
        del made, prepared


def _made(
    shared: _Shared, executor: Executor, prepared: Prepared, ids: list[I64], numbers: range, began: float
) -> list[Any]:
    """Batches that were prepared together, or an exception in place of the first; none where one is wrong."""
    try:
        batch = executor.finish(prepared)
        if len(numbers) == 1:
            batch = shared.shard.finish(numbers[0], batch)
        elif batch.skipped:
            return []
        batch, ticket = _deliver(shared, batch)
        shared.pace.made(batch, len(numbers), began)
        return [(one, ticket) for one in ([batch] if len(numbers) == 1 else cut(batch, ids))]
    except BaseException as error:
        return [error]


def _alone(shared: _Shared, number: int) -> Any:
    try:
        return _deliver(shared, shared.executor.run(shared.ids_of(number), shared.epoch))
    except BaseException as error:
        return error


def _deliver(shared: _Shared, batch: Batch) -> tuple[Batch, Any]:
    if shared.delivery is None:
        return batch, None
    began = time.perf_counter()
    values, ticket = shared.delivery.send(batch.values)
    shared.executor.timer.add("device", began)
    return Batch(values, batch.ids, batch.skipped), ticket


class Epoch:
    """One pass over the samples, begun with the first batch. Letting it go, or ``close``, ends its threads.

    ``begin()`` says which epoch it is; ``begin(False)`` which it would be.
    """

    def __init__(
        self,
        executor: Executor,
        delivery: Delivery | None,
        begin: Callable[..., Progress],
        tally: Tally,
        *,
        indices: I64 | None,
        pace: Pace,
        ids: bool,
        page_cache: bool | None = None,
    ) -> None:
        self._delivery, self._tally, self._ids, self._page_cache = delivery, tally, ids, page_cache
        self._shared = _Shared(executor, delivery, indices, pace)
        self._begin: Callable[..., Progress] | None = begin
        self.progress: Progress | None = None
        self._left = 0.0
        self._threads: list[threading.Thread] = []

    def _start(self) -> None:
        """Unless that was done, begin to make batches; several threads may ask for the first."""
        with self._shared.changed:
            if self._begin is None or self._shared.stopped:
                return
            self.progress = self._begin()
            self._shared.shard, self._shared.epoch = self.progress.shard, self.progress.epoch
            shared = self._shared
            shared.prefetch = make_prefetch(
                shared.executor.reader,
                shared.executor.plan.fields,
                shared.indices,
                shared.shard,
                self.progress.after,
                ranges=shared.executor.ranges,
            ) or make_readahead(shared.executor, shared.indices, shared.shard, self._page_cache)
            if shared.prefetch is not None:
                shared.prefetch.start()
            # It holds the loader, which we need no longer.
            self._begin = None
            count = self._shared.executor.producers()
            shared.pace.start(count)
            self._threads = [
                threading.Thread(
                    target=_produce, args=(self._shared,), name=f"batchplant-{part}", daemon=True
                )
                for part in range(count)
            ]
        threads.start(self._threads, self._shared)

    def __iter__(self) -> Epoch:
        return self

    @property
    def over(self) -> bool:
        """Whether there is nothing more to come."""
        return self._shared.stopped

    @property
    def queue(self) -> tuple[int, int]:
        """How many batches are ready, and how many are being made."""
        shared = self._shared
        ready = len(shared.made)
        return ready, max(0, shared.next - shared.taken - ready)

    def __len__(self) -> int:
        """Batches that are left."""
        progress = self.progress or (self._begin(False) if self._begin else None)
        return len(progress.shard) - progress.given if progress else 0

    def __next__(self) -> Any:
        check_process(self._shared.process)
        try:
            self._start()
            return self._next()
        except StopIteration:
            raise
        except BaseException:
            # Ctrl-C, or an error in a batch; its traceback may hold us for long, but no thread.
            self._shared.stop()
            raise

    def _next(self) -> Any:
        began = time.perf_counter()
        made = self._shared.take()
        ended = time.perf_counter()
        with self._tally.lock:
            step = began - self._left if self._left else 0.0
            self._tally.stepped += step
            self._shared.step = (self._shared.step + step) / 2
            self._tally.waited += ended - began
            self._left = ended
        if made is None:
            # Another thread may still wait for the batch it asked for.
            if self._shared.over:
                self.close()
            raise StopIteration
        if isinstance(made, BaseException):
            self.close()
            try:
                raise made
            finally:
                # Else its traceback would hold it, and so us.
                del made
        batch, ticket = made
        with self._tally.lock:
            self._tally.batches += 1
            self._tally.samples += len(batch.ids)
            self._tally.skipped += batch.skipped
            if self.progress is not None:
                self.progress.given += 1
        values = dict(batch.values)
        if self._ids:
            values["ids"] = batch.ids
        return values if self._delivery is None else self._delivery.receive(values, ticket)

    def stop(self) -> None:
        """Begin no batch any more."""
        self._shared.stop()

    def close(self, patience: float | None = None) -> None:
        """Stop the threads; ``patience``: how long to wait for what they are doing."""
        self._shared.stop()
        if os.getpid() != self._shared.process:
            return
        for thread in self._threads:
            if thread is not threading.current_thread():
                threads.join(thread, patience)

    def __del__(self) -> None:
        if hasattr(self, "_shared"):
            self._shared.stop()
