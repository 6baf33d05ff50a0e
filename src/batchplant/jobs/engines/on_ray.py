"""The engine ``ray``: tasks on a Ray cluster, or on one of local processes.

Ray ends the process that uses it when it loses its cluster. So that is a process of its own, the driver, and
here its end becomes an error.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import subprocess
import sys
import threading
from multiprocessing.connection import Connection, Pipe
from typing import Any

from ...errors import AccessError, MissingLibraryError, WorkerError
from .base import Engine, Work
from .processes import sendable, watch

GONE = "the Ray cluster is gone; what is done is kept, and the same with resume (--resume) goes on"
# Tasks for each core, so that none waits for the next.
AHEAD = 2
# Of a task whose worker dies; errors of the task itself come back to us.
RETRIES = 3
# Seconds: between two looks of the driver for new tasks, and for it to end by itself.
LOOK = 0.05
PATIENCE = 10.0
# A cluster that we start has no second head to wait for: seconds until one that does not answer is gone.
OURS = {"RAY_gcs_rpc_server_reconnect_timeout_s": "15"}


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
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self, work: Work) -> None:
        ray, address = self._ray, self._address
        if address is None and ray.is_initialized():
            address = ray.get_runtime_context().gcs_address
        self._connection, theirs = Pipe()
        command = [sys.executable, "-c", f"from {__name__} import drive; drive({theirs.fileno()})"]
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Ctrl-C is for this process, which ends the driver. What Ray says of a lost cluster is long.
        self._driver = subprocess.Popen(
            command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, process_group=0,
            env={**({} if address else OURS), **os.environ, **paths},
        )  # fmt: skip
        theirs.close()
        self._send(ray.cloudpickle.dumps((address, self._workers, work)))
        width = self._received()
        if isinstance(width, Exception):
            raise width
        self.width = width

    def submit(self, number: int) -> None:
        self._send(pickle.dumps(number))

    def next(self, seconds: float) -> tuple[int, Any] | None:
        found: tuple[int, Any] | None = self._received() if self._connection.poll(seconds) else None
        return found

    def _send(self, data: bytes) -> None:
        # One that is dead says so when something is expected of it.
        with contextlib.suppress(OSError):
            self._connection.send_bytes(data)

    def _received(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise AccessError(GONE) from None

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        self._send(pickle.dumps(None))
        try:
            driver.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
        finally:
            self._connection.close()


# -- in the driver ------------------------------------------------------------------------------------------


def drive(handle: int) -> None:
    """The life of a driver: what to do comes, then numbers, then None; results go back."""
    import ray

    connection = Connection(handle)
    threading.Thread(target=watch, args=(handle,), daemon=True).start()
    address, workers, work = pickle.loads(connection.recv_bytes())
    local = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address, logging_level="CRITICAL", log_to_driver=False, **local)
        width = max(1, AHEAD * int(ray.cluster_resources().get("CPU", 1)))
    except Exception as error:
        connection.send(AccessError(f"Ray cannot be reached or started: {error}"))
        return
    connection.send(width)
    work, do = ray.put(work), ray.remote(num_cpus=1, max_retries=RETRIES)(_do)
    flying: dict[Any, int] = {}
    while True:
        while connection.poll(0 if flying else None):
            number = connection.recv()
            if number is None:
                ray.shutdown()
                return
            flying[do.remote(work, number)] = number
        for one in ray.wait(list(flying), timeout=LOOK)[0]:
            connection.send((flying.pop(one), _result(ray, one)))


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        return sendable(cause if isinstance(cause, Exception) else error)
    except ray.exceptions.RayError as error:
        return WorkerError(f"Ray workers died while they did it: {str(error).splitlines()[0]}")


def _do(work: Work, number: int) -> Any:
    return work(number)
