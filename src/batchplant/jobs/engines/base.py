"""The interface of engines, :func:`run`, and the engines that work in this process: threads and ranks."""

from __future__ import annotations

import contextlib
import os
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ...data.reader import Reader
from ...errors import BatchplantError, DataError, MissingLibraryError, OptionError, SchemaError
from ...order.ranks import rank_and_world_size
from ...storage import is_remote

# Attempts at one task, on any worker.
MAX_ATTEMPTS = 4
POLL_SECONDS = 0.25
# Errors that every worker would meet.
FINAL_ERRORS = (DataError, OptionError, SchemaError, MissingLibraryError)
# LitData's launchers number the machines of a conversion in these variables.
NODE_RANK_VARIABLE, NODE_COUNT_VARIABLE = "DATA_OPTIMIZER_NODE_RANK", "DATA_OPTIMIZER_NUM_NODES"


class TaskFunction(Protocol):
    """The function that workers call with the number of a task. It travels to them by pickle."""

    def __call__(self, number: int) -> Any: ...


class Engine(ABC):
    """Runs tasks. One thread uses it: start, then submit and next as often as needed, close."""

    # Tasks that it should have in flight.
    width: int = 1
    # True where all workers are on this machine.
    local: bool = True
    # Threads of a task; by default all cores.
    threads: int | None = None

    def share(self, count: int) -> range:
        """Numbers of the tasks, out of ``count``, that this process has to run."""
        return range(count)

    @abstractmethod
    def start(self, function: TaskFunction) -> None: ...

    @abstractmethod
    def submit(self, number: int) -> None: ...

    @abstractmethod
    def next(self, seconds: float) -> tuple[int, Any] | None:
        """A finished task and its value or exception; None where none finishes within ``seconds``."""

    @abstractmethod
    def close(self) -> None:
        """Stop the tasks in flight, and end the workers."""


class Inline(Engine):
    """The engine ``threads``: runs tasks one after another in this process.

    The tasks have threads of their own. Errors are raised at once: no other worker could do better.
    """

    # Processes that share the tasks.
    world_size: int = 1

    def __init__(self) -> None:
        self._waiting: deque[int] = deque()

    def start(self, function: TaskFunction) -> None:
        self._function = function

    def submit(self, number: int) -> None:
        self._waiting.append(number)

    def next(self, seconds: float) -> tuple[int, Any] | None:
        number = self._waiting.popleft()
        return number, self._function(number)

    def close(self) -> None:
        self._waiting.clear()


class Ranks(Inline):
    """The engine ``ranks``: this process is one of several that a launcher starts, and runs its share.

    The processes need not know each other: they see the same folder, or the same bucket. By default ``rank``
    and ``world_size`` come from the environment that Slurm, torchrun, MPI or others set.
    """

    local = False

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        super().__init__()
        if rank is None and world_size is None and NODE_COUNT_VARIABLE in os.environ:
            rank = int(os.environ.get(NODE_RANK_VARIABLE, "0"))
            world_size = int(os.environ[NODE_COUNT_VARIABLE])
        self.rank, self.world_size = rank_and_world_size(rank, world_size)

    def share(self, count: int) -> range:
        return range(self.rank, count, self.world_size)


def run(
    engine: Engine,
    function: TaskFunction,
    numbers: Iterable[int],
    finish: Callable[[int, Any], None],
    *,
    tick: Callable[[], None] = lambda: None,
    name: Callable[[int], str] = str,
) -> None:
    """Run all tasks; call ``finish(number, value)`` as each ends, and ``tick`` now and then.

    A task that fails is tried on another worker, unless the data or the options are at fault.
    """
    waiting = deque(numbers)
    if not waiting:
        return
    attempts: Counter[int] = Counter()
    in_flight = 0
    with contextlib.closing(engine):
        engine.start(function)
        while waiting or in_flight:
            while waiting and in_flight < engine.width:
                engine.submit(waiting.popleft())
                in_flight += 1
            ended = engine.next(POLL_SECONDS)
            tick()
            if ended is None:
                continue
            in_flight -= 1
            number, value = ended
            if not isinstance(value, BaseException):
                finish(number, value)
                continue
            attempts[number] += 1
            if isinstance(value, FINAL_ERRORS) or not isinstance(value, Exception):
                raise value
            if attempts[number] == MAX_ATTEMPTS:
                raise _with_name(value, name(number))
            waiting.append(number)


def _with_name(error: Exception, name: str) -> Exception:
    """The error of a task that failed on every worker, with the task's name."""
    prefix = f"{name} failed {MAX_ATTEMPTS} times"
    if isinstance(error, BatchplantError):
        error.message = f"{prefix}: {error.message}"
    else:
        error.add_note(prefix)
    return error


def portable_source(source: Any) -> Any:
    """A source that processes on this and other machines can open."""
    # Imported late: it needs the table formats, and ``import batchplant`` must stay quick.
    from ...formats.base.memory import MemoryReader

    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        return path if is_remote(path) else os.path.abspath(path)
    if isinstance(source, list | tuple) and all(isinstance(path, str | os.PathLike) for path in source):
        return [portable_source(path) for path in source]
    if isinstance(source, Reader) and not isinstance(source, MemoryReader):
        return source
    raise OptionError(
        "other processes cannot see what is in the memory of this one: write it to a file first, or use the "
        'engine "threads"'
    )
