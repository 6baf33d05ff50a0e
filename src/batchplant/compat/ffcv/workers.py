"""Worker processes that read a user's dataset in order; the parent never waits for a dead worker.

Workers end with their parent, however it ends: each watches its socket, which closes when the parent ends. A
forked worker closes its copies of the parent's ends first.
"""

from __future__ import annotations

import functools
import multiprocessing
import operator
import os
import pickle
import select
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from ...errors import BatchplantError, EncodeError, OptionError

# Samples of one task that may wait for earlier tasks.
MAX_BUFFERED_SAMPLES = 64

# Splits a task into samples: the origin of each, and a function that reads it. The function of a stream may
# return END.
# The origin of a sample is its index in the dataset, or a text.
Origin = int | str
Job = Callable[[Any], Iterator[tuple[Origin, Callable[[], object]]]]
Samples = Generator[tuple[Origin, Any], None, None]
END = object()


class Indexed:
    """Job whose tasks are lists of indices into a dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __call__(self, task: Sequence[int]) -> Iterator[tuple[Origin, Callable[[], object]]]:
        for index in task:
            yield index, functools.partial(operator.getitem, self.dataset, index)


class Streamed:
    """Job whose tasks are shards, which ``opener`` turns into iterables."""

    def __init__(self, opener: Callable[[str], Iterable[object]]) -> None:
        self.opener = opener

    def __call__(self, task: str) -> Iterator[tuple[Origin, Callable[[], object]]]:
        samples: Iterator[object] | None = None

        def advance() -> object:
            nonlocal samples
            if samples is None:
                samples = iter(self.opener(task))
            return next(samples, END)

        number = 0
        while True:
            yield f"{number} of {task}", advance
            number += 1


def read_here(job: Job, tasks: Sequence[object]) -> Samples:
    """Yield (origin, sample), one after another, in this process."""
    for task in tasks:
        for origin, get in job(task):
            try:
                sample = get()
            except Exception as error:
                raise _failure(origin, f"{type(error).__name__}: {error}") from error
            if sample is END:
                break
            yield origin, sample


def read_in_processes(job: Job, tasks: Sequence[object], workers: int) -> Samples:
    """Yield the same from worker processes, in the same order."""
    pool = _Pool(job, tasks, min(workers, len(tasks)))
    try:
        yield from pool.samples()
    finally:
        pool.stop()


def _failure(origin: Origin, reason: str, trace: str = "") -> BatchplantError:
    number = origin if isinstance(origin, int) else None
    prefix = "" if number is not None else f"sample {origin}: "
    error = EncodeError(f"{prefix}the dataset failed with {reason}", sample=number)
    if trace:
        error.add_note(f"In the worker process:\n{trace}")
    return error


class _Pool:
    """Deals tasks out to workers and yields their samples in the order of the tasks."""

    def __init__(self, job: Job, tasks: Sequence[object], workers: int) -> None:
        self._tasks = tasks
        self._workers: list[_Worker] = []
        self._ready: dict[int, deque[tuple[Origin, object]]] = {}
        self._done: set[int] = set()
        self._next_task = self._current_task = 0
        methods = multiprocessing.get_all_start_methods()
        # With fork the dataset need not be picklable; FFCV does the same.
        context = multiprocessing.get_context("fork" if "fork" in methods else None)
        try:
            for _ in range(workers):
                self._workers.append(_Worker(context, job, [worker.connection for worker in self._workers]))
        except BaseException:
            self.stop()
            raise

    def samples(self) -> Iterator[tuple[Origin, object]]:
        while self._current_task < len(self._tasks):
            ready = self._ready.get(self._current_task)
            while ready:
                yield ready.popleft()
            if self._current_task in self._done:
                self._ready.pop(self._current_task, None)
                self._current_task += 1
                continue
            self._deal()
            self._receive()

    def _deal(self) -> None:
        for worker in self._workers:
            ahead = self._next_task - self._current_task
            if worker.task is None and self._next_task < len(self._tasks) and ahead < 4 * len(self._workers):
                self._ready[self._next_task] = deque()
                worker.begin(self._next_task, self._tasks[self._next_task])
                self._next_task += 1

    def _receive(self) -> None:
        busy = [
            worker
            for worker in self._workers
            if worker.task is not None
            and (worker.task == self._current_task or len(self._ready[worker.task]) < MAX_BUFFERED_SAMPLES)
        ]
        ready = wait([worker.connection for worker in busy] + [worker.process.sentinel for worker in busy])
        for worker in busy:
            if worker.connection in ready or worker.process.sentinel in ready:
                kind, origin, value = worker.receive()
                assert worker.task is not None
                if kind == "sample":
                    self._ready[worker.task].append((origin, value))
                elif kind == "end":
                    self._done.add(worker.task)
                    worker.task = None
                else:
                    raise _failure(origin, *value)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()


class _Worker:
    """One process and the parent's end of its pipe; ``task`` is the number of its current task."""

    def __init__(self, context: Any, job: Job, parent_ends: list[Connection]) -> None:
        self.task: int | None = None
        self._origin: Origin | None = None
        self.connection, worker_end = context.Pipe()
        inherited = [*parent_ends, self.connection] if context.get_start_method() == "fork" else []
        arguments = (worker_end, job, inherited)
        self.process = context.Process(target=_work, args=arguments, name="batchplant-read")
        with warnings.catch_warnings():
            # Python warns of threads during a fork; the child runs only the dataset.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.process.start()
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                raise OptionError(f"the dataset cannot be sent to worker processes: {error}") from error
        worker_end.close()

    def begin(self, number: int, task: object) -> None:
        self.task = number
        try:
            self.connection.send_bytes(pickle.dumps(task, protocol=5))
        except OSError:
            raise self._death() from None

    def receive(self) -> tuple[str, Any, Any]:
        """Return the next message; raise an error when the worker is dead."""
        while True:
            try:
                # A dead process may have left messages in the pipe.
                if not self.connection.poll(0 if self.process.exitcode is not None else None):
                    raise self._death()
                message: tuple[str, Any, Any] = pickle.loads(self.connection.recv_bytes())
            except (EOFError, OSError):
                raise self._death() from None
            if message[0] != "begin":
                return message
            self._origin = message[1]

    def _death(self) -> BatchplantError:
        self.process.join(5)
        code = self.process.exitcode
        reason = f"exit code {code}"
        if code is not None and code < 0:
            reason = f"signal {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                reason += ", as the system does when memory runs out"
        number = self._origin if isinstance(self._origin, int) else None
        prefix = "" if number is not None or self._origin is None else f"sample {self._origin}: "
        return EncodeError(f"{prefix}the process that read it died ({reason})", sample=number)

    def stop(self) -> None:
        self.connection.close()
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()


def _work(connection: Connection, job: Job, inherited: list[Connection]) -> None:
    """Run a worker: send the samples of one task after another until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for end in inherited:
        end.close()
    threading.Thread(target=_watch, args=(connection.fileno(),), daemon=True).start()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    try:
        while True:
            for message in _messages(job, pickle.loads(connection.recv_bytes())):
                connection.send_bytes(message)
    except (EOFError, OSError):
        pass


def _watch(handle: int) -> None:
    """End the process when the parent closes the pipe, even while reading a sample."""
    poll = select.poll()
    poll.register(handle, getattr(select, "POLLRDHUP", 0))
    poll.poll()
    os._exit(0)


def _messages(job: Job, task: object) -> Iterator[bytes]:
    for origin, get in job(task):
        # Sent first, so that the parent can name the sample if the process dies.
        yield pickle.dumps(("begin", origin, None), protocol=5)
        try:
            sample = get()
            if sample is END:
                break
            message = pickle.dumps(("sample", origin, sample), protocol=5)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            message = pickle.dumps(("error", origin, (reason, traceback.format_exc())), protocol=5)
        yield message
    yield pickle.dumps(("end", None, None), protocol=5)
