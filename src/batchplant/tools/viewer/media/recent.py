"""What was made lately and is asked for again soon: by several requests at once, or by the next."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Generic, TypeVar

Made = TypeVar("Made")


class Recent(Generic[Made]):
    """At most so many bytes of them. Who asks for what is being made waits for it."""

    def __init__(self, most: int, size: Callable[[Made], int]) -> None:
        self._most, self._size = most, size
        self._kept: OrderedDict[Hashable, Future[Made]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, make: Callable[[], Made]) -> Made:
        with self._lock:
            found = self._kept.get(key)
            mine = found is None
            if found is None:
                found = self._kept[key] = Future()
            self._kept.move_to_end(key)
        if mine:
            try:
                found.set_result(make())
            except BaseException as error:
                found.set_exception(error)
                with self._lock:
                    self._kept.pop(key, None)
            self._drop()
        return found.result()

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()

    def _drop(self) -> None:
        with self._lock:
            total = 0
            for key in list(reversed(self._kept)):
                one = self._kept[key]
                if not one.done() or one.exception() is not None:
                    continue
                first, total = not total, total + self._size(one.result())
                # The last is kept however large it is: a player asks for it part by part.
                if total > self._most and not first:
                    del self._kept[key]
