"""Reading a user's dataset in worker processes, in order, and never waiting for one that is gone.

Workers end with their parent, however it ends. The system kills them (Linux), and each watches its socket,
which is closed then: a worker that was forked closes its copies of the parent's ends first.
"""

from __future__ import annotations

import ctypes
import functools
import multiprocessing
import os
import pickle
import select
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from multiprocessing.connection import wait
from typing import Any

from ...errors import BatchplantError, EncodeError, OptionError

PR_SET_PDEATHSIG = 1
# Samples of one task that may wait for those before them.
BUFFERED = 64

# What a job makes of a task: where each sample is from, and a function that gets it. The function of a
# stream may say that there are no more.
Job = Callable[[Any], Iterator[tuple[Any, Callable[[], Any]]]]
Samples = Generator[tuple[Any, Any], None, None]
END = object()


class Indexed:
    """Tasks are lists of indices into a dataset."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def _get(self, index: Any) -> Any:
        return self.dataset[index]

    def __call__(self, task: Any) -> Iterator[tuple[Any, Callable[[], Any]]]:
        for index in task:
            yield index, functools.partial(self._get, index)


class Streamed:
    """Tasks are what ``opener`` makes an iterable of: shards."""

    def __init__(self, opener: Callable[[Any], Any]) -> None:
        self.opener = opener

    def __call__(self, task: Any) -> Iterator[tuple[Any, Callable[[], Any]]]:
        found: list[Any] = []

        def advance() -> Any:
            if not found:
                found.append(iter(self.opener(task)))
            return next(found[0], END)

        number = 0
        while True:
            yield f"{number} of {task}", advance
            number += 1


def read_here(job: Job, tasks: Sequence[Any]) -> Samples:
    """(where it is from, sample), one after another, in this process."""
    for task in tasks:
        for where, get in job(task):
            try:
                sample = get()
            except Exception as error:
                raise _failed(where, f"{type(error).__name__}: {error}") from error
            if sample is END:
                break
            yield where, sample


def read_in_processes(job: Job, tasks: Sequence[Any], workers: int) -> Samples:
    """The same, with the tasks dealt out to processes; the order stays."""
    team = _Team(job, tasks, min(workers, len(tasks)))
    try:
        yield from team.samples()
    finally:
        team.stop()


def _failed(where: Any, reason: str, trace: str = "") -> BatchplantError:
    number = where if isinstance(where, int) else None
    place = "" if number is not None else f"sample {where}: "
    error = EncodeError(f"{place}the dataset failed with {reason}", sample=number)
    if trace:
        error.add_note(f"In the worker process:\n{trace}")
    return error


class _Team:
    def __init__(self, job: Job, tasks: Sequence[Any], workers: int) -> None:
        self._tasks = tasks
        self._workers: list[_Worker] = []
        self._ready: dict[int, deque[tuple[Any, Any]]] = {}
        self._done: set[int] = set()
        self._dealt = self._turn = 0
        methods = multiprocessing.get_all_start_methods()
        # With fork the dataset need not be picklable; FFCV does the same.
        context = multiprocessing.get_context("fork" if "fork" in methods else None)
        try:
            for _ in range(workers):
                ours = [one.connection for one in self._workers]
                self._workers.append(_Worker(context, job, ours))
        except BaseException:
            self.stop()
            raise

    def samples(self) -> Iterator[tuple[Any, Any]]:
        while self._turn < len(self._tasks):
            ready = self._ready.get(self._turn)
            while ready:
                yield ready.popleft()
            if self._turn in self._done:
                self._ready.pop(self._turn, None)
                self._turn += 1
                continue
            self._deal()
            self._receive()

    def _deal(self) -> None:
        for worker in self._workers:
            ahead = self._dealt - self._turn
            if worker.task is None and self._dealt < len(self._tasks) and ahead < 4 * len(self._workers):
                self._ready[self._dealt] = deque()
                worker.begin(self._dealt, self._tasks[self._dealt])
                self._dealt += 1

    def _receive(self) -> None:
        busy = [
            one for one in self._workers
            if one.task is not None and (one.task == self._turn or len(self._ready[one.task]) < BUFFERED)
        ]  # fmt: skip
        found = wait([one.connection for one in busy] + [one.process.sentinel for one in busy])
        for worker in busy:
            if worker.connection in found or worker.process.sentinel in found:
                kind, where, value = worker.receive()
                assert worker.task is not None
                if kind == "sample":
                    self._ready[worker.task].append((where, value))
                elif kind == "end":
                    self._done.add(worker.task)
                    worker.task = None
                else:
                    raise _failed(where, *value)

    def stop(self) -> None:
        for worker in self._workers:
            worker.stop()


class _Worker:
    def __init__(self, context: Any, job: Job, others: list[Any]) -> None:
        self.task: int | None = None
        self._where: Any = None
        self.connection, theirs = context.Pipe()
        forks = context.get_start_method() == "fork"
        inherited = [*others, self.connection] if forks else []
        # The signal comes when the thread that forked ends: the main thread lives as long as the process.
        parent = os.getpid() if forks and threading.current_thread() is threading.main_thread() else None
        work = (theirs, job, inherited, parent)
        self.process = context.Process(target=_work, args=work, name="batchplant-read")
        with warnings.catch_warnings():
            # Python warns of threads beside a fork; the child runs the dataset alone.
            warnings.simplefilter("ignore", DeprecationWarning)
            try:
                self.process.start()
            except (TypeError, AttributeError, pickle.PicklingError) as error:
                raise OptionError(f"the dataset cannot be sent to worker processes: {error}") from error
        theirs.close()

    def begin(self, number: int, task: Any) -> None:
        self.task = number
        try:
            self.connection.send_bytes(pickle.dumps(task, protocol=5))
        except OSError:
            raise self._died() from None

    def receive(self) -> tuple[str, Any, Any]:
        """The next message; an error when the worker is gone."""
        while True:
            try:
                # A process that is gone may have left messages behind.
                if not self.connection.poll(0 if self.process.exitcode is not None else None):
                    raise self._died()
                message: tuple[str, Any, Any] = pickle.loads(self.connection.recv_bytes())
            except (EOFError, OSError):
                raise self._died() from None
            if message[0] != "begin":
                return message
            self._where = message[1]

    def _died(self) -> BatchplantError:
        self.process.join(5)
        code = self.process.exitcode
        reason = f"exit code {code}"
        if code is not None and code < 0:
            reason = f"signal {signal.Signals(-code).name}"
            if code == -signal.SIGKILL:
                reason += ", as the system does when memory runs out"
        number = self._where if isinstance(self._where, int) else None
        place = "" if number is not None or self._where is None else f"sample {self._where}: "
        return EncodeError(f"{place}the process that read it died ({reason})", sample=number)

    def stop(self) -> None:
        self.connection.close()
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
        self.process.join()
        self.process.close()


def _work(connection: Any, job: Job, inherited: list[Any], parent: int | None) -> None:
    """In a worker: samples of one task after another, until the other side hangs up."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for one in inherited:
        one.close()
    if parent is not None:
        _die_with(parent)
    threading.Thread(target=_watch, args=(connection.fileno(),), daemon=True).start()
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    try:
        while True:
            for message in _messages(job, pickle.loads(connection.recv_bytes())):
                connection.send_bytes(message)
    except (EOFError, OSError):
        pass


def _die_with(parent: int) -> None:
    """Have the system kill this process when its parent is gone, where it can."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # It may have gone before.
    if os.getppid() != parent:
        os._exit(0)


def _watch(handle: int) -> None:
    """End with the parent, also amid a sample."""
    ends = select.poll()
    ends.register(handle, getattr(select, "POLLRDHUP", 0))
    ends.poll()
    os._exit(0)


def _messages(job: Job, task: Any) -> Iterator[bytes]:
    for where, get in job(task):
        # Told beforehand, so that it is known what was read when the process dies.
        yield pickle.dumps(("begin", where, None), protocol=5)
        try:
            sample = get()
            if sample is END:
                break
            message = pickle.dumps(("sample", where, sample), protocol=5)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            message = pickle.dumps(("error", where, (reason, traceback.format_exc())), protocol=5)
        yield message
    yield pickle.dumps(("end", None, None), protocol=5)
