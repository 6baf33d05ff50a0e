"""The engine ``threads``: tasks one after another in this process; what they do has threads of its own."""

from __future__ import annotations

from collections import deque
from typing import Any

from .base import Engine, Work


class Inline(Engine):
    """Errors are raised where they happen: nobody else could do better."""

    # Processes that share the work.
    world_size: int = 1

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()

    def start(self, work: Work) -> None:
        self._work = work

    def submit(self, number: int) -> None:
        self._waiting.append(number)

    def next(self, seconds: float) -> tuple[int, Any] | None:
        number = self._waiting.popleft()
        return number, self._work(number)

    def close(self) -> None:
        self._waiting.clear()
