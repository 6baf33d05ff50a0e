"""The engine ``ray``: tasks on a Ray cluster, or on one of local processes."""

from __future__ import annotations

import contextlib
from typing import Any

from ..errors import AccessError, MissingLibraryError, WorkerError
from .base import Engine, Work

# Tasks for each core, so that none waits for the next.
AHEAD = 2
# Of a task whose worker dies; errors of the task itself come back to us.
RETRIES = 3


class Ray(Engine):
    """``address``: of a cluster, ``auto`` for the one that this machine belongs to; without, a local one."""

    threads = 1

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise MissingLibraryError('the engine ray needs: pip install "batchplant[ray]"') from None
        self._ray: Any = ray
        self._address, self._workers = address, workers
        self.here = address is None
        self._ours = False

    def start(self, work: Work) -> None:
        ray = self._ray
        self._flying: dict[Any, int] = {}
        if not ray.is_initialized():
            local = {"num_cpus": self._workers, "include_dashboard": False} if self._address is None else {}
            try:
                ray.init(self._address, logging_level="ERROR", log_to_driver=False, **local)
            except (ConnectionError, RuntimeError, ValueError) as error:
                raise AccessError(f"Ray cannot be reached or started: {error}") from None
            self._ours = True
        self.width = max(1, AHEAD * int(ray.cluster_resources().get("CPU", 1)))
        self._work = ray.put(work)
        self._do = ray.remote(num_cpus=1, max_retries=RETRIES)(_do)

    def submit(self, number: int) -> None:
        self._flying[self._do.remote(self._work, number)] = number

    def next(self, seconds: float) -> tuple[int, Any] | None:
        ray = self._ray
        ready, _ = ray.wait(list(self._flying), timeout=seconds)
        if not ready:
            return None
        number = self._flying.pop(ready[0])
        try:
            return number, ray.get(ready[0])
        except ray.exceptions.RayTaskError as error:
            cause = error.cause if isinstance(getattr(error, "cause", None), Exception) else error
            return number, cause
        except ray.exceptions.RayError as error:
            return number, WorkerError(f"Ray workers died while they did it: {str(error).splitlines()[0]}")

    def close(self) -> None:
        with contextlib.suppress(Exception):
            for one in self._flying:
                self._ray.cancel(one, force=True)
            self._flying = {}
            if self._ours:
                self._ray.shutdown()


def _do(work: Work, number: int) -> Any:
    return work(number)
