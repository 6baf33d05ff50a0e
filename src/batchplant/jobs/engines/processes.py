"""The engine ``processes``: workers on this machine, each of which runs one task at a time.

Workers are spawned and not forked: a fork would copy the locks of this process without the threads that hold
them. They do not import the main script either. A worker ends with its parent, however that ends.
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
from typing import IO, Any

from ...errors import OptionError, WorkerError
from ...storage.platform import cpu_count
from .base import Engine, TaskFunction

EXIT_TIMEOUT_SECONDS = 5.0


class Processes(Engine):
    def __init__(self, workers: int | None = None) -> None:
        if workers is not None and workers < 1:
            raise OptionError(f"processes must be at least 1, not {workers}")
        cores = cpu_count()
        self.width = workers or cores
        self.threads = max(1, cores // self.width)
        self._idle: list[Worker] = []
        self._busy: dict[Connection, Worker] = {}

    def start(self, function: TaskFunction) -> None:
        self._function = pickle.dumps(function)

    def submit(self, number: int) -> None:
        worker = self._idle.pop() if self._idle else Worker(self._function)
        self._busy[worker.connection] = worker
        worker.number = number
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


class Worker:
    """The parent's handle of a worker process, which calls a pickled function with what is submitted.

    output: takes what the process prints.
    """

    def __init__(self, function: bytes, output: IO[bytes] | None = None, **environment: str) -> None:
        self.alive, self.number = True, -1
        ours, theirs = Pipe()
        self.connection = ours
        command = [sys.executable, "-c", f"from {__name__} import run_worker; run_worker({theirs.fileno()})"]
        # Ctrl-C is for the parent, which ends its workers.
        self._process = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            process_group=0,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment},
        )
        theirs.close()
        with contextlib.suppress(OSError):
            self.connection.send_bytes(function)

    def submit(self, argument: Any) -> None:
        # `result` reports a dead worker.
        with contextlib.suppress(OSError):
            self.connection.send(argument)

    def result(self) -> Any:
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.alive = False
            self._process.kill()
            return WorkerError(f"a worker process died: {self._exit_reason()}")

    def _exit_reason(self) -> str:
        code = self._process.wait(EXIT_TIMEOUT_SECONDS)
        if code >= 0:
            return f"it ended with exit code {code}"
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return f"signal {-code} ({signal.Signals(-code).name}) ended it{hint}"

    def end(self, patience: float = 0.0) -> None:
        """End it and what it started; with patience, it may take back first what it sent to a server."""
        if patience and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(patience)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self.connection.close()


# -- in the worker ------------------------------------------------------------------------------------------


def run_worker(handle: int) -> None:
    """Receive a function, then call it with numbers until the parent is gone."""
    connection = Connection(handle)
    threading.Thread(target=watch, args=(handle,), daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        function: TaskFunction | None = None
        problem: Exception | None = None
        encoded = connection.recv_bytes()
        try:
            function = pickle.loads(encoded)
        except Exception as error:
            problem = error
        while True:
            number = connection.recv()
            try:
                if function is None:
                    raise WorkerError(f"a worker process cannot load the job: {problem!r}")
                value: Any = function(number)
            except Exception as error:
                value = sendable(error)
            connection.send(value)


def watch(handle: int) -> None:
    """Exit as soon as the parent is gone, even during a task."""
    poll = select.poll()
    poll.register(handle, getattr(select, "POLLRDHUP", 0))
    poll.poll()
    os._exit(0)


def sendable(error: Exception) -> Exception:
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return WorkerError(f"{type(error).__name__}: {error}")
    return error
