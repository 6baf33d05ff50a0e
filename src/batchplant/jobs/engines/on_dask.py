"""The engine ``dask``: tasks on the workers of a Dask scheduler, or of a cluster of local processes."""

from __future__ import annotations

import contextlib
import logging
import os
import queue
from typing import Any

from ...errors import AccessError, MissingLibraryError, WorkerError
from .base import Engine, Work

CONNECT = "30s"
GONE = "the Dask scheduler is gone; what is done is kept, and the same with resume (--resume) goes on"
# Tasks for each thread of a worker, so that none waits for the next.
AHEAD = 2


class Dask(Engine):
    """``scheduler``: its address, such as tcp://10.0.0.1:8786; without, a cluster of local processes."""

    threads = 1

    def __init__(self, scheduler: str | None = None, workers: int | None = None) -> None:
        try:
            import distributed
        except ImportError:
            raise MissingLibraryError('the engine dask needs: pip install "batchplant[dask]"') from None
        self._library: Any = distributed
        self._scheduler, self._workers = scheduler, workers
        self.here = scheduler is None
        self._cluster: Any = None
        self._client: Any = None
        self._levels: dict[logging.Logger, int] = {}

    def start(self, work: Work) -> None:
        self._done: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._flying: dict[int, Any] = {}
        self._quiet()
        if self._scheduler is None:
            self._cluster = self._library.LocalCluster(
                n_workers=self._workers or len(os.sched_getaffinity(0)), threads_per_worker=1,
                processes=True, dashboard_address=None, host="127.0.0.1", silence_logs=logging.ERROR,
            )  # fmt: skip
        try:
            self._client = self._library.Client(self._cluster or self._scheduler, timeout=CONNECT)
            found = self._client.scheduler_info(n_workers=-1)["workers"].values()
        except (OSError, TimeoutError) as error:
            raise AccessError(f"the Dask scheduler cannot be reached: {error}") from None
        self.width = max(1, AHEAD * sum(int(one["nthreads"]) for one in found))
        # A task, and no scattered data: what dies with a worker is made again.
        self._work = self._client.submit(_same, work, pure=False)

    def _quiet(self) -> None:
        """Of a scheduler that is gone, Dask logs tracebacks; the error says it in one line."""
        known = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == "distributed"]
        self._levels = {one: one.level for one in map(logging.getLogger, known)}
        for logger in self._levels:
            logger.setLevel(logging.CRITICAL + 1)

    def submit(self, number: int) -> None:
        # A worker that dies is Dask's business; an error of the task is ours.
        try:
            future = self._client.submit(_do, self._work, number, pure=False)
        except Exception as error:
            raise AccessError(f"{GONE} ({error})") from None
        self._flying[number] = future
        done = self._done
        future.add_done_callback(lambda _: done.put((number, future)))

    def next(self, seconds: float) -> tuple[int, Any] | None:
        with contextlib.suppress(queue.Empty):
            number, future = self._done.get(timeout=seconds)
            del self._flying[number]
            try:
                return number, future.result()
            except self._library.KilledWorker as error:
                return number, WorkerError(f"Dask workers died while they did it: {error}")
            except Exception as error:
                return number, error
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # A CancelledError. A client that loses its scheduler gives up all that was under way.
                if self._client.status != "running":
                    raise AccessError(GONE) from None
                return number, WorkerError(f"Dask gave it up: {error!r}")
        if self._client.status != "running":
            raise AccessError(GONE)
        return None

    def close(self) -> None:
        with contextlib.suppress(Exception):
            if self._flying:
                self._client.cancel(list(self._flying.values()), force=True)
        for one in (self._client, self._cluster):
            with contextlib.suppress(Exception):
                if one is not None:
                    one.close()
        for logger, level in self._levels.items():
            logger.setLevel(level)


def _same(work: Work) -> Work:
    return work


def _do(work: Work, number: int) -> Any:
    return work(number)
