"""The number of bytes in use of a folder that processes share, changed under a lock.

The lock is ``flock``, which ends with its process, however that ends. No process waits for ever for one that
hangs: a process that holds the lock for long touches the file to show that it is alive.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import os
import stat
import struct
import threading
import time
import weakref
from collections.abc import Iterator

from ... import _native
from ...errors import BusyError

FILE_NAME = "total"
POLL_SECONDS = 0.002
# A process waits at most this many times as long as it would for one that hangs.
MAX_WAIT_FACTOR = 12
RECORD = struct.Struct("<8sqq16s")
CHECKSUM = struct.Struct("<I")
MAGIC = b"BPTOTAL1"
OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@functools.cache
def current_boot_id() -> bytes:
    """Return an id of this start of the machine: after a power cut the file may have an old number."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


class SharedTotal:
    """The total of one folder; safe in many threads, and reset after a fork.

    ``limit`` is written with every change. OSError if the folder cannot be used, or its file system has no
    locks.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.path = os.path.join(folder, FILE_NAME)
        self._threads = threading.Lock()
        self._fd = -1
        _TOTALS.add(self)
        with contextlib.suppress(BusyError), self.locked(0):
            pass

    @contextlib.contextmanager
    def locked(self, wait: float) -> Iterator[None]:
        """Hold the lock against other threads and processes.

        BusyError if a holder does not release it for ``wait`` seconds, nor shows that it is alive.
        """
        if not self._threads.acquire(timeout=MAX_WAIT_FACTOR * wait):
            raise BusyError("another thread holds its lock for too long", path=self.folder)
        try:
            self._lock(wait)
            yield
        finally:
            # A forked child may have a copy of the descriptor, which closing ours would not release.
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._threads.release()

    def _lock(self, wait: float) -> None:
        pause, touched = POLL_SECONDS / 16, 0
        began = since = time.monotonic()
        while True:
            if self._fd < 0:
                self._fd = self._open()
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(self._fd), os.lstat(self.path)):
                    return
                # The folder was removed.
                self._close()
            except FileNotFoundError:
                self._close()
            except BlockingIOError:
                now, modified = time.monotonic(), os.fstat(self._fd).st_mtime_ns
                if modified != touched:
                    touched, since = modified, now
                if now - since >= wait or now - began >= MAX_WAIT_FACTOR * wait:
                    raise BusyError("another process holds its lock for too long", path=self.folder) from None
                time.sleep(pause)
                pause = min(2 * pause, POLL_SECONDS)

    def touch(self) -> None:
        """Show processes that wait for the lock that its holder is alive."""
        with contextlib.suppress(OSError):
            os.utime(self._fd)

    def _open(self) -> int:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        fd = os.open(self.path, OPEN_FLAGS, 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "no file", self.path)
        return fd

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def after_fork(self) -> None:
        """Close the child's copy: a lock ends with the last copy of its descriptor."""
        self._threads = threading.Lock()
        self._close()

    def read(self) -> tuple[int, int] | None:
        """Return the total, and the limit of its writer; None if they are not known."""
        with contextlib.suppress(OSError, struct.error):
            data = os.pread(self._fd, RECORD.size + CHECKSUM.size, 0)
            magic, total, limit, boot_id = RECORD.unpack(data[: RECORD.size])
            intact = CHECKSUM.pack(_native.crc32c(data[: RECORD.size])) == data[RECORD.size :]
            return (total, limit) if intact and magic == MAGIC and boot_id == current_boot_id() else None
        return None

    def write(self, total: int, limit: int | None = None) -> None:
        data = RECORD.pack(MAGIC, total, self.limit if limit is None else limit, current_boot_id())
        data += CHECKSUM.pack(_native.crc32c(data))
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def subtract(self, cost: int) -> None:
        record = self.read()
        if record is not None:
            self.write(record[0] - cost)


_TOTALS: weakref.WeakSet[SharedTotal] = weakref.WeakSet()


def _after_fork() -> None:
    for total in list(_TOTALS):
        total.after_fork()


os.register_at_fork(after_in_child=_after_fork)
