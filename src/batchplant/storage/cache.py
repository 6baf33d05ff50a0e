"""ChunkCache: an LRU cache of decoded chunks, row groups and the like, within a byte budget."""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

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
        self.bytes = 0
        # Numbers of hits and misses.
        self.hits = self.misses = 0

    def all_of(self, keys: Collection[Hashable]) -> list[Any] | None:
        """Return the values of these keys if all are cached, else None."""
        if self._process != os.getpid():
            self._reset()
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
        # Another thread may have held the lock when the process was forked.
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                self.hits += 1
                return cast(T, self._values[key][0])
            if key in self._damaged:
                # A copy, because the catcher may add a location to it.
                raise copy.copy(self._damaged[key]).with_traceback(None)
            other_call = self._in_flight.get(key)
            if other_call is None:
                call: Future[T] = Future()
                self._in_flight[key] = call
        if other_call is not None:
            return cast(T, other_call.result())
        try:
            value = make()
            size_bytes = int(size(value))
        except BaseException as error:
            with self._lock:
                same = self._finish_call(key, call)
                if same and isinstance(error, DataError) and len(self._damaged) < MAX_DAMAGED_CHUNKS:
                    self._damaged[key] = copy.copy(error).with_traceback(None)
            call.set_exception(error)
            # Otherwise the exception would reference itself, and through its frames whatever make needed.
            del call
            raise
        with self._lock:
            self.misses += 1
            if self._finish_call(key, call):
                self._keep(key, value, size_bytes)
        call.set_result(value)
        return value

    def _finish_call(self, key: Hashable, call: Future[Any]) -> bool:
        """Remove a call that makes a value; return False if the cache was cleared in the meantime."""
        same = self._in_flight.get(key) is call
        if same:
            del self._in_flight[key]
        return same

    def _keep(self, key: Hashable, value: Any, size_bytes: int) -> None:
        # A value that fills the cache alone would only evict all others.
        if size_bytes > self.max_bytes:
            return
        self._values[key] = value, size_bytes
        self.bytes += size_bytes
        while self.bytes > self.max_bytes:
            self.bytes -= self._values.popitem(last=False)[1][1]

    def values(self) -> list[Any]:
        """Return all cached values."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            return [value for value, _ in self._values.values()]

    def clear(self) -> None:
        """Drop all values."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            self._values.clear()
            self._in_flight.clear()
            self._damaged.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)
