"""The engine ``processes``: workers on this machine, each of which does one task at a time.

They are started by themselves and not forked: threads of this process would not come along, but their locks
would. Nor do they import the script that runs here. A worker ends with its parent, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from ...errors import OptionError, WorkerError
from .base import Engine, Work

PATIENCE = 5.0


class Processes(Engine):
    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"processes must be at least 1, not {workers}")
        cores = len(os.sched_getaffinity(0))
        self.width = workers or cores
        self.threads = max(1, cores // self.width)
        self._idle: list[_Worker] = []
        self._busy: dict[Connection, _Worker] = {}

    def start(self, work: Work) -> None:
        self._work = pickle.dumps(work)

    def submit(self, number: int) -> None:
        worker = self._idle.pop() if self._idle else _Worker(self._work)
        self._busy[worker.connection] = worker
        worker.submit(number)

    def next(self, seconds: float) -> tuple[int, Any] | None:
        for ready in wait(list(self._busy), seconds):
            assert isinstance(ready, Connection)
            worker = self._busy.pop(ready)
            value = worker.result()
            if worker.alive:
                self._idle.append(worker)
            return worker.number, value
        return None

    def close(self) -> None:
        for worker in (*self._busy.values(), *self._idle):
            worker.end()
        self._busy, self._idle = {}, []


class _Worker:
    """One process, as its parent sees it."""

    def __init__(self, work: bytes) -> None:
        self.alive, self.number = True, -1
        ours, theirs = Pipe()
        self.connection = ours
        command = [sys.executable, "-c", f"from {__name__} import work; work({theirs.fileno()})"]
        # Ctrl-C is for the parent, which ends its workers.
        self._process = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, process_group=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )  # fmt: skip
        theirs.close()
        with contextlib.suppress(OSError):
            self.connection.send_bytes(work)

    def submit(self, number: int) -> None:
        self.number = number
        # One that is dead says so when its result is asked for.
        with contextlib.suppress(OSError):
            self.connection.send(number)

    def result(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self._process.kill()
            return WorkerError(f"a worker process died: {self._why()}")

    def _why(self) -> str:
        code = self._process.wait(PATIENCE)
        if code >= 0:
            return f"it ended with exit code {code}"
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return f"signal {-code} ({signal.Signals(-code).name}) ended it{hint}"

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self.connection.close()


# -- in the worker ------------------------------------------------------------------------------------------


def work(handle: int) -> None:
    """The life of a worker: what to do comes, then numbers, until the parent is gone."""
    connection = Connection(handle)
    threading.Thread(target=watch, args=(handle,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        do: Work | None = None
        problem: Exception | None = None
        encoded = connection.recv_bytes()
        try:
            do = pickle.loads(encoded)
        except Exception as error:
            problem = error
        while True:
            number = connection.recv()
            try:
                if do is None:
                    raise WorkerError(f"a worker process cannot load the job: {problem!r}")
                value: Any = do(number)
            except Exception as error:
                value = sendable(error)
            connection.send(value)


def watch(handle: int) -> None:
    """End with the parent, also amid a task."""
    ends = select.poll()
    ends.register(handle, getattr(select, "POLLRDHUP", 0))
    ends.poll()
    os._exit(0)


def sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"{type(error).__name__}: {error}")
    return error
