"""ChunkCache: unpacked chunks, row groups and the like, kept while there is room for them."""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar, cast

from ..errors import DataError, OptionError

T = TypeVar("T")

# For each reader; a quasi-random epoch wants as many chunks as its window has.
MOST_BYTES = 256 << 20
VARIABLE = "BATCHPLANT_CHUNK_CACHE"
# Chunks whose damage is remembered.
MOST_DAMAGED = 10_000


class ChunkCache:
    """Values by key, at most ``most`` bytes of them; those that were not asked for longest go first.

    Safe from many threads, and empty again after a fork. Several threads that ask for one key at a time make
    it once: the first makes it, the others wait. Who waits gets the exception too. That the bytes are damaged
    is remembered, so that many samples of one chunk do not unpack it once each to hear the same; after any
    other exception the next try is anew.
    ``most`` None: what the variable BATCHPLANT_CHUNK_CACHE says, else 256 MiB.
    """

    def __init__(self, most: int | None = None) -> None:
        self.most = _default() if most is None else most
        self._reset()

    def _reset(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._under_way: dict[Hashable, Future[Any]] = {}
        self._damaged: dict[Hashable, DataError] = {}
        self.bytes = 0
        # How often a value was there, and how often it had to be made.
        self.found = self.made = 0

    def all_of(self, keys: Collection[Hashable]) -> list[Any] | None:
        """The values of these keys where all are there, else None."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            values = self._values
            try:
                found = [values[key][0] for key in keys]
            except KeyError:
                return None
            for key in keys:
                values.move_to_end(key)
            self.found += len(found)
            return found

    def get(self, key: Hashable, make: Callable[[], T], size: Callable[[T], int]) -> T:
        """The value of this key; ``make`` makes it where it is not there, ``size`` says its bytes."""
        # Another thread may have held the lock when the process was forked.
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
                self.found += 1
                return cast(T, self._values[key][0])
            if key in self._damaged:
                # Whoever catches it may write a place into it.
                raise copy.copy(self._damaged[key]).with_traceback(None)
            waited = self._under_way.get(key)
            if waited is None:
                mine: Future[T] = Future()
                self._under_way[key] = mine
        if waited is not None:
            return cast(T, waited.result())
        try:
            value = make()
            taken = int(size(value))
        except BaseException as error:
            with self._lock:
                same = self._is_awaited(key, mine)
                if same and isinstance(error, DataError) and len(self._damaged) < MOST_DAMAGED:
                    self._damaged[key] = copy.copy(error).with_traceback(None)
            mine.set_exception(error)
            # Else the exception would hold itself, and through its frames whatever make needed.
            del mine
            raise
        with self._lock:
            self.made += 1
            if self._is_awaited(key, mine):
                self._keep(key, value, taken)
        mine.set_result(value)
        return value

    def _is_awaited(self, key: Hashable, mine: Future[Any]) -> bool:
        """Whether this is still what is made for the key: the cache may have been cleared meanwhile."""
        same = self._under_way.get(key) is mine
        if same:
            del self._under_way[key]
        return same

    def _keep(self, key: Hashable, value: Any, taken: int) -> None:
        # One that fills the cache alone would only push out all others.
        if taken > self.most:
            return
        self._values[key] = value, taken
        self.bytes += taken
        while self.bytes > self.most:
            self.bytes -= self._values.popitem(last=False)[1][1]

    def values(self) -> list[Any]:
        """Those that are there."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            return [value for value, _ in self._values.values()]

    def clear(self) -> None:
        """Let go of everything."""
        if self._process != os.getpid():
            self._reset()
        with self._lock:
            self._values.clear()
            self._under_way.clear()
            self._damaged.clear()
            self.bytes = 0

    def __len__(self) -> int:
        return len(self._values)


def _default() -> int:
    given = os.environ.get(VARIABLE)
    if not given:
        return MOST_BYTES
    try:
        most = int(given)
    except ValueError:
        most = -1
    if most < 0:
        raise OptionError(f"{VARIABLE} is a number of bytes, not {given!r}")
    return most
