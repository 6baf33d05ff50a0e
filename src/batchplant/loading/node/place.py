"""Socket of the node's server, in a folder that only its user can use, and its start."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from ...errors import AccessError, BusyError, OptionError, WorkerError
from ...storage import platform

FOLDER, SOCKET, LOCK = "batchplant", "node", "node.lock"
# How long to wait for a server that another process starts, and for one of ours.
START_SECONDS, POLL_SECONDS = 60.0, 0.02
MAX_WAITING_READERS = 128


def check_platform() -> None:
    """Raise OptionError where processes cannot share batches."""
    if not platform.LINUX:
        raise OptionError('share="node" needs memory files and sockets of Linux, which this system lacks')


def dial() -> socket.socket | None:
    """Connect to the server of this user; None if there is none."""
    folder = platform.runtime_folder(FOLDER)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _address(folder) as address:
            connection.connect(address)
        if platform.peer_of(connection)[1] != os.getuid():
            raise AccessError("the server is of another user", path=str(folder / SOCKET))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Give the address of the socket, however long the path of its folder is."""
    fd = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """Listen as the server of this user; raise BusyError if there is one. At the end, nothing is left."""
    folder = platform.runtime_folder(FOLDER)
    lock = _lock(folder / LOCK)
    try:
        # Of a server that was killed.
        (folder / SOCKET).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            with _address(folder) as address:
                listener.bind(address)
            listener.listen(MAX_WAITING_READERS)
            try:
                yield listener
            finally:
                (folder / SOCKET).unlink(missing_ok=True)
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(lock)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _lock(path: Path) -> int:
    """Lock a file that is still at its path; raise BusyError if another process has it locked."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not platform.try_lock(fd):
            os.close(fd)
            raise BusyError("a server runs already", path=str(path.with_name(SOCKET)))
        # The server before may have removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)


def start() -> None:
    """Start a server that ends when no reader was there for a while; another process may be first."""
    command = [sys.executable, "-m", "batchplant", "serve-node", "--detach"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # Ctrl-C is for the training run.
        start_new_session=True,
        timeout=START_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if done.returncode:
        raise WorkerError(f"the server of the node did not start: {done.stderr.decode(errors='replace')}")


def wait() -> bool:
    """Wait a moment for the server that has the lock; return True if it accepts readers."""
    connection = dial()
    if connection is None:
        # It begins, or it was killed and the system has yet to release its lock.
        time.sleep(POLL_SECONDS)
        return False
    connection.close()
    return True
