"""The engine ``ray``: tasks on a Ray cluster, or on one of local processes.

Ray ends the process that uses it when it loses its cluster. So it runs in a process of its own, the driver,
whose end becomes an error here.
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

from ...errors import AccessError, WorkerError, needs
from .base import Engine, TaskFunction
from .processes import sendable, watch

LOST_CLUSTER = "the Ray cluster is gone; what is done is kept, and the same with resume (--resume) goes on"
# Tasks in flight for each core, so that none waits for the next.
TASKS_PER_CORE = 2
# Of a task whose worker dies; errors of the task itself come back to us.
MAX_RETRIES = 3
DRIVER_POLL_SECONDS = 0.05
EXIT_TIMEOUT_SECONDS = 10.0
# A cluster that we start has no second head to wait for: it is lost when it does not answer for so long.
LOCAL_CLUSTER_ENVIRONMENT = {"RAY_gcs_rpc_server_reconnect_timeout_s": "15"}


class Ray(Engine):
    """``address``: of a cluster, ``auto`` for the one that this machine belongs to; without, a local one."""

    threads = 1

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        with needs("the engine ray needs", "ray"):
            import ray
        self._ray: Any = ray
        self._address, self._workers = address, workers
        self.local = address is None
        self._driver: subprocess.Popen[bytes] | None = None

    def start(self, function: TaskFunction) -> None:
        ray, address = self._ray, self._address
        if address is None and ray.is_initialized():
            address = ray.get_runtime_context().gcs_address
        self._connection, theirs = Pipe()
        command = [sys.executable, "-c", f"from {__name__} import drive; drive({theirs.fileno()})"]
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        # Ctrl-C is for this process, which ends the driver. Ray's messages about a lost cluster are long.
        self._driver = subprocess.Popen(
            command,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
            env={**({} if address else LOCAL_CLUSTER_ENVIRONMENT), **os.environ, **paths},
        )
        theirs.close()
        self._send(ray.cloudpickle.dumps((address, self._workers, function)))
        width = self._receive()
        if isinstance(width, Exception):
            raise width
        self.width = width

    def submit(self, number: int) -> None:
        self._send(pickle.dumps(number))

    def next(self, seconds: float) -> tuple[int, Any] | None:
        return self._receive() if self._connection.poll(seconds) else None

    def _send(self, data: bytes) -> None:
        # `_receive` reports a dead driver.
        with contextlib.suppress(OSError):
            self._connection.send_bytes(data)

    def _receive(self) -> Any:
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            raise AccessError(LOST_CLUSTER) from None

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is None:
            return
        self._send(pickle.dumps(None))
        try:
            driver.wait(EXIT_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            driver.kill()
            driver.wait()
        finally:
            self._connection.close()


# -- in the driver ------------------------------------------------------------------------------------------


def drive(handle: int) -> None:
    """Receive a function, then numbers, then None; send back the results."""
    import ray

    connection = Connection(handle)
    threading.Thread(target=watch, args=(handle,), daemon=True).start()
    address, workers, function = pickle.loads(connection.recv_bytes())
    local = {"num_cpus": workers, "include_dashboard": False} if address is None else {}
    try:
        ray.init(address, logging_level="CRITICAL", log_to_driver=False, **local)
        width = max(1, TASKS_PER_CORE * int(ray.cluster_resources().get("CPU", 1)))
    except Exception as error:
        connection.send(AccessError(f"Ray cannot be reached or started: {error}"))
        return
    connection.send(width)
    function, call = ray.put(function), ray.remote(num_cpus=1, max_retries=MAX_RETRIES)(_call)
    in_flight: dict[Any, int] = {}
    while True:
        while connection.poll(0 if in_flight else None):
            number = connection.recv()
            if number is None:
                ray.shutdown()
                return
            in_flight[call.remote(function, number)] = number
        for reference in ray.wait(list(in_flight), timeout=DRIVER_POLL_SECONDS)[0]:
            connection.send((in_flight.pop(reference), _result(ray, reference)))


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        cause = getattr(error, "cause", None)
        return sendable(cause if isinstance(cause, Exception) else error)
    except ray.exceptions.RayError as error:
        return WorkerError(f"Ray workers died while they did it: {str(error).splitlines()[0]}")


def _call(function: TaskFunction, number: int) -> Any:
    return function(number)
