"""ChunkCache: a cache of decoded chunks, row groups and the like, within a byte budget."""

from __future__ import annotations

import copy
import heapq
import math
import os
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from ..errors import DataError
from .limits import from_environment

T = TypeVar("T")

# Per reader; a quasi-random epoch needs as many chunks as its window has.
DEFAULT_MAX_BYTES = 256 << 20
MAX_BYTES_VARIABLE = "BATCHPLANT_CHUNK_CACHE"
# Number of chunks whose damage is remembered.
MAX_DAMAGED_CHUNKS = 10_000


class ChunkCache:
    """Values by key, at most ``max_bytes`` of them; the least recently used are evicted first.

    Where :meth:`expect` has announced uses, the value is evicted that is needed last, or not at all.
    Thread-safe, and empty again after a fork. If several threads ask for a key at a time, the first makes
    the value and the others wait; they get its exception, too. A DataError is remembered, so that the samples
    of a damaged chunk do not unpack it once each; after any other exception the next call tries again.
    ``max_bytes`` None: the environment variable BATCHPLANT_CHUNK_CACHE, else 256 MiB.
    """

    def __init__(self, max_bytes: int | None = None) -> None:
        if max_bytes is None:
            max_bytes = from_environment(MAX_BYTES_VARIABLE, DEFAULT_MAX_BYTES, "bytes")
        self.max_bytes = max_bytes
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._in_flight: dict[Hashable, Future[Any]] = {}
        self._damaged: dict[Hashable, DataError] = {}
        # By key, the batches to come that need it; and cached keys, those first that were needed last.
        self._uses: dict[Hashable, deque[int]] = {}
        self._latest: list[tuple[float, int, Hashable]] = []
        self._batch = self._pushed = 0
        self.bytes = 0
        # Numbers of hits and misses.
        self.hits = self.misses = 0

    def _check_process(self) -> None:
        # Another thread may have held the lock when the process was forked.
        if self._process != os.getpid():
            self._reset()

    def all_of(self, keys: Collection[Hashable]) -> list[Any] | None:
        """Return the values of these keys if all are cached, else None."""
        self._check_process()
        with self._lock:
            values = self._values
            try:
                cached = [values[key][0] for key in keys]
            except KeyError:
                return None
            for key in keys:
                values.move_to_end(key)
            self.hits += len(cached)
            return cached

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the value of a key; if it is not cached, make it. ``size`` returns the bytes of a value."""
        value = self.get_all([key], lambda _: [make()], size)[0]
        if isinstance(value, DataError):
            raise copy.copy(value)
        return value

    def get_all(
        self,
        keys: Sequence[Hashable],
        make: Callable[[list[int]], Sequence[T | DataError]],
        size: Callable[[T], int],
    ) -> list[T | DataError]:
        """Return the values of keys, which all differ. ``make`` makes those at some places of ``keys``.

        A DataError may stand in place of a value, made or cached.
        """
        self._check_process()
        results: list[Any] = [None] * len(keys)
        calls: dict[int, Future[Any]] = {}
        other_calls: list[tuple[int, Future[Any]]] = []
        with self._lock:
            for number, key in enumerate(keys):
                entry = self._values.get(key)
                if entry is not None:
                    self._values.move_to_end(key)
                    self._push(key)
                    self.hits += 1
                    results[number] = entry[0]
                elif key in self._damaged:
                    # A copy, because the catcher may add a location to it.
                    results[number] = copy.copy(self._damaged[key]).with_traceback(None)
                elif key in self._in_flight:
                    other_calls.append((number, self._in_flight[key]))
                else:
                    calls[number] = self._in_flight[key] = Future()
        if calls:
            try:
                values = make(list(calls))
                sizes = [0 if isinstance(value, DataError) else int(size(value)) for value in values]
            except BaseException as error:
                with self._lock:
                    for number, call in calls.items():
                        self._finish_call(keys[number], call, error)
                for call in calls.values():
                    call.set_exception(error)
                # Otherwise the exception would reference itself, and through its frames whatever make needed.
                del calls, call
                raise
            with self._lock:
                for (number, call), value, size_bytes in zip(calls.items(), values, sizes, strict=True):
                    results[number] = value
                    if isinstance(value, DataError):
                        self._finish_call(keys[number], call, value)
                        continue
                    self.misses += 1
                    if self._finish_call(keys[number], call):
                        self._keep(keys[number], value, size_bytes)
            for call, value in zip(calls.values(), values, strict=True):
                call.set_result(value)
        for number, call in other_calls:
            try:
                results[number] = call.result()
            except DataError as error:
                results[number] = copy.copy(error).with_traceback(None)
        return results

    def _finish_call(self, key: Hashable, call: Future[Any], error: BaseException | None = None) -> bool:
        """Remove a call that makes a value; return False if the cache was cleared in the meantime."""
        same = self._in_flight.get(key) is call
        if same:
            del self._in_flight[key]
            if isinstance(error, DataError) and len(self._damaged) < MAX_DAMAGED_CHUNKS:
                self._damaged[key] = copy.copy(error).with_traceback(None)
        return same

    def _keep(self, key: Hashable, value: Any, size_bytes: int) -> None:
        # A value that fills the cache alone would only evict all others.
        if size_bytes > self.max_bytes:
            return
        self._values[key] = value, size_bytes
        self.bytes += size_bytes
        self._push(key)
        while self.bytes > self.max_bytes:
            self.bytes -= self._values.pop(self._evictable())[1]

    # -- known order -----------------------------------------------------------------------------------

    def expect(self, batch: int, keys: Iterable[Hashable]) -> None:
        """Announce the keys that a batch will need; batches come in ascending order."""
        self._check_process()
        with self._lock:
            for key in keys:
                self._uses.setdefault(key, deque()).append(batch)

    def reach(self, batch: int | None) -> None:
        """Note that this batch is read now; None: forget what was announced."""
        self._check_process()
        with self._lock:
            if batch is None:
                self._uses.clear()
                self._latest.clear()
            self._batch = batch or 0

    def _next_use(self, key: Hashable) -> float:
        uses = self._uses.get(key)
        while uses and uses[0] <= self._batch:
            uses.popleft()
        if not uses:
            self._uses.pop(key, None)
            return math.inf
        return uses[0]

    def _push(self, key: Hashable) -> None:
        if self._uses:
            self._pushed += 1
            heapq.heappush(self._latest, (-self._next_use(key), self._pushed, key))
            if len(self._latest) > 4 * len(self._values) + 64:
                self._latest = [(-self._next_use(key), n, key) for n, key in enumerate(self._values)]
                heapq.heapify(self._latest)

    def _evictable(self) -> Any:
        while self._uses and self._latest:
            use, number, key = heapq.heappop(self._latest)
            if key in self._values:
                next_use = -self._next_use(key)
                if next_use == use:
                    return key
                heapq.heappush(self._latest, (next_use, number, key))
        return next(iter(self._values))

    def values(self) -> list[Any]:
        """Return all cached values."""
        self._check_process()
        with self._lock:
            return [value for value, _ in self._values.values()]

    def clear(self) -> None:
        """Drop all values."""
        self._check_process()
        with self._lock:
            self._values.clear()
            self._in_flight.clear()
            self._damaged.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)


# A cache, and keys of it.
ChunkKeys = tuple[ChunkCache, list[Hashable]]
