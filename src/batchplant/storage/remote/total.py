"""One number for all processes that share a folder: how many bytes of it are taken, changed under a lock.

The lock is ``flock``, which goes with its process, however that ends. Nobody waits for ever for one that
hangs: who holds it for long shows that it lives by touching the file.
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

NAME = "total"
POLL = 0.002
# Nobody waits longer than this many times as long as it would for one that hangs.
LONGEST = 12
RECORD = struct.Struct("<8sqq16s")
CHECK = struct.Struct("<I")
MAGIC = b"BPTOTAL1"
OPEN = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@functools.cache
def boot() -> bytes:
    """Which start of the machine this is: a power cut can leave an old number."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return bytes.fromhex(file.read().strip().replace("-", ""))[:16].ljust(16, b"\0")
    except (OSError, ValueError):
        return bytes(16)


class Total:
    """The number of one folder; safe from many threads, and anew after a fork.

    ``limit`` is noted with every change. OSError where the folder cannot be used, or its file system has no
    locks.
    """

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.path = os.path.join(folder, NAME)
        self._threads = threading.Lock()
        self._fd = -1
        _TOTALS.add(self)
        with contextlib.suppress(BusyError), self.locked(0):
            pass

    @contextlib.contextmanager
    def locked(self, wait: float) -> Iterator[None]:
        """No other thread or process is here meanwhile.

        BusyError where one does not leave for ``wait`` seconds, nor shows that it lives.
        """
        if not self._threads.acquire(timeout=LONGEST * wait):
            raise BusyError("another thread holds its lock for too long", path=self.folder)
        try:
            self._lock(wait)
            yield
        finally:
            # A fork may hold a copy of the descriptor, which closing ours would not let go of.
            if self._fd >= 0:
                with contextlib.suppress(OSError):
                    fcntl.flock(self._fd, fcntl.LOCK_UN)
            self._threads.release()

    def _lock(self, wait: float) -> None:
        pause, touched = POLL / 16, 0
        began = since = time.monotonic()
        while True:
            if self._fd < 0:
                self._fd = self._open()
            try:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(self._fd), os.lstat(self.path)):
                    return
                # Somebody removed the folder.
                self._close()
            except FileNotFoundError:
                self._close()
            except BlockingIOError:
                now, last = time.monotonic(), os.fstat(self._fd).st_mtime_ns
                if last != touched:
                    touched, since = last, now
                if now - since >= wait or now - began >= LONGEST * wait:
                    raise BusyError("another process holds its lock for too long", path=self.folder) from None
                time.sleep(pause)
                pause = min(2 * pause, POLL)

    def touch(self) -> None:
        """Show those who wait for the lock that its holder lives."""
        with contextlib.suppress(OSError):
            os.utime(self._fd)

    def _open(self) -> int:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        fd = os.open(self.path, OPEN, 0o600)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise OSError(errno.EINVAL, "no file", self.path)
        return fd

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1

    def after_fork(self) -> None:
        """A lock goes with the last copy of its descriptor: the child's must go."""
        self._threads = threading.Lock()
        self._close()

    def read(self) -> tuple[int, int] | None:
        """The number, and the limit of whoever wrote it; None where that is not known."""
        with contextlib.suppress(OSError, struct.error):
            data = os.pread(self._fd, RECORD.size + CHECK.size, 0)
            magic, total, limit, when = RECORD.unpack(data[: RECORD.size])
            same = CHECK.pack(_native.crc32c(data[: RECORD.size])) == data[RECORD.size :]
            return (total, limit) if same and magic == MAGIC and when == boot() else None
        return None

    def write(self, total: int, limit: int | None = None) -> None:
        data = RECORD.pack(MAGIC, total, self.limit if limit is None else limit, boot())
        data += CHECK.pack(_native.crc32c(data))
        if os.pwrite(self._fd, data, 0) != len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)

    def subtract(self, cost: int) -> None:
        known = self.read()
        if known is not None:
            self.write(known[0] - cost)


_TOTALS: weakref.WeakSet[Total] = weakref.WeakSet()


def _after_fork() -> None:
    for one in list(_TOTALS):
        one.after_fork()


os.register_at_fork(after_in_child=_after_fork)
