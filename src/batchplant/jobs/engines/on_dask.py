"""The engine ``dask``: tasks on the workers of a Dask scheduler, or of a cluster of local processes."""

from __future__ import annotations

import contextlib
import logging
import queue
from typing import Any

from ...errors import AccessError, WorkerError, exceptions_as, needs
from ...storage.platform import cpu_count
from .base import Engine, TaskFunction

CONNECT_TIMEOUT = "30s"
LOST_SCHEDULER = (
    "the Dask scheduler is gone; what is done is kept, and the same with resume (--resume) goes on"
)
# Tasks in flight for each thread of a worker, so that none waits for the next.
TASKS_PER_THREAD = 2


class Dask(Engine):
    """``scheduler``: its address, such as tcp://10.0.0.1:8786; without, a cluster of local processes."""

    threads = 1

    def __init__(self, scheduler: str | None = None, workers: int | None = None) -> None:
        with needs("the engine dask needs", "dask"):
            import distributed
        self._library: Any = distributed
        self._scheduler, self._workers = scheduler, workers
        self.local = scheduler is None
        self._cluster: Any = None
        self._client: Any = None
        self._levels: dict[logging.Logger, int] = {}

    def start(self, function: TaskFunction) -> None:
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._in_flight: dict[int, Any] = {}
        self._quiet()
        if self._scheduler is None:
            self._cluster = self._library.LocalCluster(
                n_workers=self._workers or cpu_count(),
                threads_per_worker=1,
                processes=True,
                dashboard_address=None,
                host="127.0.0.1",
                silence_logs=logging.ERROR,
            )
        with exceptions_as(AccessError, "the Dask scheduler cannot be reached", OSError, TimeoutError):
            self._client = self._library.Client(self._cluster or self._scheduler, timeout=CONNECT_TIMEOUT)
            workers = self._client.scheduler_info(n_workers=-1)["workers"].values()
        self.width = max(1, TASKS_PER_THREAD * sum(int(worker["nthreads"]) for worker in workers))
        # A task and no scattered data: Dask computes it again when its worker dies.
        self._function = self._client.submit(_identity, function, pure=False)

    def _quiet(self) -> None:
        """Silence the tracebacks that Dask logs for a lost scheduler; our error says it in one line."""
        names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "distributed"]
        self._levels = {logger: logger.level for logger in map(logging.getLogger, names)}
        for logger in self._levels:
            logger.setLevel(logging.CRITICAL + 1)

    def submit(self, number: int) -> None:
        # Dask replaces workers that die; errors of the task come back to us.
        try:
            future = self._client.submit(_call, self._function, number, pure=False)
        except Exception as error:
            raise AccessError(f"{LOST_SCHEDULER} ({error})") from None
        self._in_flight[number] = future
        done = self._done
        future.add_done_callback(lambda _: done.put((number, future)))

    def next(self, seconds: float) -> tuple[int, Any] | None:
        with contextlib.suppress(queue.Empty):
            number, future = self._done.get(timeout=seconds)
            del self._in_flight[number]
            try:
                return number, future.result()
            except self._library.KilledWorker as error:
                return number, WorkerError(f"Dask workers died while they did it: {error}")
            except Exception as error:
                return number, error
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # A CancelledError. A client that loses its scheduler cancels all tasks in flight.
                if self._client.status != "running":
                    raise AccessError(LOST_SCHEDULER) from None
                return number, WorkerError(f"Dask gave it up: {error!r}")
        if self._client.status != "running":
            raise AccessError(LOST_SCHEDULER)
        return None

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._in_flight:
                self._client.cancel(list(self._in_flight.values()), force=True)
        for resource in (self._client, self._cluster):
            with contextlib.suppress(Exception):
                if resource is not None:
                    resource.close()
        for logger, level in self._levels.items():
            logger.setLevel(level)


def _identity(function: TaskFunction) -> TaskFunction:
    return function


def _call(function: TaskFunction, number: int) -> Any:
    return function(number)
