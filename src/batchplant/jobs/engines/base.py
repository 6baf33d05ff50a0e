"""What an engine is, and :func:`run`: every task once, again where that fails, and none twice at a time."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ...errors import BatchplantError, DataError, MissingLibraryError, OptionError, SchemaError

# Of one task, on whatever worker.
TRIES = 4
# Seconds between two looks at how far all are.
TICK = 0.25
# What another worker would find as well.
FINAL = (DataError, OptionError, SchemaError, MissingLibraryError)


class Work(Protocol):
    """What is done for a task. It travels to workers by pickle."""

    def __call__(self, number: int) -> Any: ...


class Engine(ABC):
    """Does tasks. One thread uses it: start, then submit and next as often as needed, close."""

    # Tasks that it should have at a time.
    width: int = 1
    # Whether its workers see the files of this machine, and no other machine's do.
    here: bool = True
    # For a task, by default: all cores.
    threads: int | None = None

    def share(self, count: int) -> range:
        """The tasks of so many that this process has done."""
        return range(count)

    @abstractmethod
    def start(self, work: Work) -> None: ...

    @abstractmethod
    def submit(self, number: int) -> None: ...

    @abstractmethod
    def next(self, seconds: float) -> tuple[int, Any] | None:
        """A task that has ended, and what came of it: a value, or the exception. None: none has so far."""

    @abstractmethod
    def close(self) -> None:
        """Stop what is under way, and end the workers."""


def run(
    engine: Engine,
    work: Work,
    numbers: Iterable[int],
    done: Callable[[int, Any], None],
    *,
    tick: Callable[[], None] = lambda: None,
    name: Callable[[int], str] = str,
) -> None:
    """Have all tasks done; ``done(number, value)`` is called as they end, ``tick`` now and then.

    A task that fails is tried on another worker, unless the data or the options are at fault.
    """
    waiting = deque(numbers)
    if not waiting:
        return
    tries: Counter[int] = Counter()
    flying = 0
    with contextlib.closing(engine):
        engine.start(work)
        while waiting or flying:
            while waiting and flying < engine.width:
                engine.submit(waiting.popleft())
                flying += 1
            found = engine.next(TICK)
            tick()
            if found is None:
                continue
            flying -= 1
            number, value = found
            if not isinstance(value, BaseException):
                done(number, value)
                continue
            tries[number] += 1
            if isinstance(value, FINAL) or not isinstance(value, Exception):
                raise value
            if tries[number] == TRIES:
                raise _named(value, name(number))
            waiting.append(number)


def _named(error: Exception, name: str) -> Exception:
    """The error of a task that failed on every worker, with its name."""
    said = f"{name} failed {TRIES} times: "
    if isinstance(error, BatchplantError):
        error.message = said + error.message
    else:
        error.add_note(said.rstrip(": "))
    return error
