"""Space accounting of a cache folder for all processes that share it; it never exceeds its limit.

Space is reserved in the folder's total before a block is written, so that a killed process leaves the total
too high, never too low. When no space is left, the folder itself is counted, drafts of killed writers are
removed, and blocks are evicted.

A block's modification time says when it is needed next (in the future) or when it was used last (in the
past). A block that was used some time ago is expected to be needed after as long again. The block that is
needed latest is evicted first: Belady's rule if the order is known, least recently used if it is not.

The total is changed under a lock, ``flock``, which ends with its process, however that ends. No process waits
for ever for one that hangs: a process that holds the lock for long touches the file to show that it is alive.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import functools
import os
import re
import secrets
import stat
import struct
import threading
import time
import weakref
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ... import _native
from ...errors import BusyError
from ..platform import boot_id, try_lock, unlock

# Fraction of the limit (1 / n) that is evicted at once, because counting the folder takes time.
EVICTED_SHARE = 20
# Bytes of the disk that stay free, or 1 / EVICTED_SHARE of a small disk: a full disk stops more than us.
MIN_FREE_BYTES = 1 << 30
# Bytes of disk space: the least that a file or folder takes; a file's name in its folder; and the fraction
# of a file (1 / n) that its extent list takes.
MIN_FILE_BYTES = 4096
NAME_BYTES = 256
EXTENT_SHARE = 1024

SHELF_NAME = re.compile(r"[0-9a-f]{2}")
BLOCK_NAME = re.compile(r"([0-9a-f]{8,128})-(0|[1-9]\d{0,17})-(0|[1-9]\d{0,17})")
DRAFT_NAME = re.compile(r"\.new-(\d{1,18})-[0-9a-f]{16}")

FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

FILE_NAME = "total"
POLL_SECONDS = 0.002
# A process waits at most this many times as long as it would for one that hangs.
MAX_WAIT_FACTOR = 12
RECORD = struct.Struct("<8sqq16s")
CHECKSUM = struct.Struct("<I")
MAGIC = b"BPTOTAL1"
OPEN_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Block(NamedTuple):
    """A file of the folder.

    ``due``: its modification time in nanoseconds. ``cost``: the disk space it takes.
    """

    key: str
    start: int
    size: int
    due: int
    cost: int

    @property
    def name(self) -> str:
        return block_name(self.key, self.start, self.size)


@dataclasses.dataclass
class Draft:
    """A hidden file that a block is written to, and the space reserved for it."""

    fd: int
    key: str
    name: str
    cost: int


def block_name(key: str, start: int, size: int) -> str:
    return f"{key}-{start}-{size}"


def needed(due: int, now: int) -> int:
    """Return when a block is expected to be needed next."""
    return due if due > now else 2 * now - due


class CacheFolder:
    """The blocks of a folder and their disk space; safe in many threads, and after a fork."""

    def __init__(self, folder: str, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self.evicted = 0
        self._total = SharedTotal(folder, limit)
        # Users whose blocks are trusted.
        self.owners = {os.geteuid(), os.stat(folder).st_uid}
        self._unit = max(MIN_FILE_BYTES, min(os.statvfs(folder).f_frsize, 1 << 20))

    def cost(self, size: int) -> int:
        """Return the disk space that a file of this size takes at most."""
        return self._rounded(size) + size // EXTENT_SHARE + NAME_BYTES

    def _rounded(self, size: int) -> int:
        return -(-size // self._unit) * self._unit

    def last_limit(self) -> int:
        """Return the limit of the last process that changed the folder."""
        record = self._total.read()
        return self.limit if record is None else record[1]

    @contextlib.contextmanager
    def shelf(self, key: str) -> Iterator[int]:
        """Open the subfolder that holds the blocks of a key, and give its descriptor."""
        fd = os.open(os.path.join(self.folder, key[:2]), FOLDER_FLAGS)
        try:
            yield fd
        finally:
            os.close(fd)

    def open_block(self, key: str, name: str) -> int:
        """Return a descriptor to read a block from."""
        with self.shelf(key) as shelf:
            return os.open(name, os.O_RDONLY | FILE_FLAGS, dir_fd=shelf)

    # --- adding -------------------------------------------------------------------------------------

    def reserve(self, key: str, cost: int, wait: float) -> Draft | None:
        """Return a hidden file with space reserved to write to; None if no space can be made."""
        with self._total.locked(wait):
            path = os.path.join(self.folder, key[:2])
            is_new = not os.path.lexists(path)
            need = cost + (self._unit if is_new else 0)
            record = self._total.read()
            total = (
                self._make_room(need) if record is None or need > self._available(record[0]) else record[0]
            )
            if need > self._available(total):
                return None
            # From here on it counts, even if the rest fails or is interrupted.
            self._total.write(total + need)
            if is_new:
                os.mkdir(path, 0o700)
            with self.shelf(key) as shelf:
                return _draft(key, cost, shelf)

    def keep(self, draft: Draft, name: str, wait: float) -> None:
        """Give a complete draft its name; a block of another process that was faster stays."""
        # Under the lock, because a process that counts while a file is renamed may miss it.
        with self.shelf(draft.key) as shelf, self._total.locked(wait):
            if _exists(name, shelf):
                os.unlink(draft.name, dir_fd=shelf)
                self._total.subtract(draft.cost)
            else:
                os.rename(draft.name, name, src_dir_fd=shelf, dst_dir_fd=shelf)

    def drop(self, draft: Draft) -> None:
        """Remove a draft that is not needed any more, if that is possible."""
        with contextlib.suppress(OSError), self.shelf(draft.key) as shelf:
            try:
                with self._total.locked(0):
                    os.unlink(draft.name, dir_fd=shelf)
                    self._total.subtract(draft.cost)
            except BusyError:
                os.unlink(draft.name, dir_fd=shelf)

    # --- removing -----------------------------------------------------------------------------------

    def remove(self, key: str, name: str) -> bool:
        """Remove a block; return whether it was there. The total stays: the next count corrects it."""
        try:
            with self.shelf(key) as shelf:
                os.unlink(name, dir_fd=shelf)
        except OSError:
            return False
        return True

    def clear(self, wait: float, keys: Collection[str] | None = None) -> int:
        """Remove the blocks of these keys, or all; return the bytes they took."""
        with self._total.locked(wait):
            total, blocks = self.count(clean=True)
            removed = 0
            for block in blocks:
                if (keys is None or block.key in keys) and self.remove(block.key, block.name):
                    removed += block.cost
            # Keep the limit of the processes that add blocks: the caller need not know it.
            self._total.write(total - removed, self.last_limit())
        return removed

    def _available(self, total: int) -> int:
        """Return the bytes that may be added to this total."""
        disk = os.statvfs(self.folder)
        spare = min(MIN_FREE_BYTES, disk.f_blocks * disk.f_frsize // EVICTED_SHARE)
        return min(self.limit - total, disk.f_bavail * disk.f_frsize - spare)

    def _make_room(self, need: int) -> int:
        """Count the folder, and evict blocks if that is needed; return the total."""
        total, blocks = self.count(clean=True)
        available = self._available(total)
        if need > available:
            # More than is needed, so that counting stays rare.
            required = need + (total + available) // EVICTED_SHARE
            now = time.time_ns()
            blocks.sort(key=lambda block: (needed(block.due, now), block.name))
            while blocks and required > available:
                victim = blocks.pop()
                if self.evicted % 1000 == 0:
                    self._total.touch()
                if self.remove(victim.key, victim.name):
                    total, available = total - victim.cost, available + victim.cost
                    self.evicted += 1
        self._total.write(total)
        return total

    # --- counting -----------------------------------------------------------------------------------

    def count(self, *, clean: bool = False) -> tuple[int, list[Block]]:
        """Return the disk space of the folder, and its blocks.

        ``clean``: remove drafts of killed writers; the caller holds the lock of the total.
        """
        # The folder itself, and the file of the total.
        total = 2 * self._unit
        blocks: list[Block] = []
        with os.scandir(self.folder) as entries:
            shelves = [entry.name for entry in entries if SHELF_NAME.fullmatch(entry.name)]
        for shelf in shelves:
            if clean:
                self._total.touch()
            try:
                with self.shelf(shelf) as fd:
                    total += self._disk_bytes(os.fstat(fd)) + self._count_shelf(shelf, fd, blocks, clean)
            except OSError as error:
                # A file or link is no shelf. Any other error must not make the total too low.
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
        return total, blocks

    def _count_shelf(self, shelf: str, fd: int, blocks: list[Block], clean: bool) -> int:
        total = 0
        with os.scandir(fd) as entries:
            names = [entry.name for entry in entries]
        for name in names:
            block, draft = BLOCK_NAME.fullmatch(name), DRAFT_NAME.fullmatch(name)
            if draft is None and (block is None or not name.startswith(shelf)):
                continue
            try:
                facts = os.stat(name, dir_fd=fd, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(facts.st_mode):
                continue
            disk_bytes = self._disk_bytes(facts)
            if block is not None:
                blocks.append(
                    Block(block[1], int(block[2]), int(block[3]), facts.st_mtime_ns, disk_bytes + NAME_BYTES)
                )
                total += disk_bytes + NAME_BYTES
            elif draft is not None and not (clean and _remove_if_abandoned(name, fd)):
                # Its writer goes on to write all that it reserved.
                total += max(int(draft[1]), disk_bytes)
        return total

    def _disk_bytes(self, facts: os.stat_result) -> int:
        # Some file systems report the blocks of a file only once they are on the disk.
        return max(self._rounded(facts.st_size), facts.st_blocks * 512)


def _draft(key: str, cost: int, shelf: int) -> Draft:
    name = f".new-{cost}-{secrets.token_hex(8)}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | FILE_FLAGS, 0o600, dir_fd=shelf)
    try:
        # Locked: its writer is alive. No process counts before the lock of the total is released.
        try_lock(fd)
    except BaseException:
        os.close(fd)
        os.unlink(name, dir_fd=shelf)
        raise
    return Draft(fd, key, name, cost)


def _exists(name: str, shelf: int) -> bool:
    try:
        os.stat(name, dir_fd=shelf, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _remove_if_abandoned(name: str, shelf: int) -> bool:
    """Remove a draft whose writer has ended; return whether it did."""
    try:
        fd = os.open(name, os.O_RDWR | FILE_FLAGS, dir_fd=shelf)
        try:
            abandoned = try_lock(fd)
            if abandoned:
                os.unlink(name, dir_fd=shelf)
            return abandoned
        finally:
            os.close(fd)
    except OSError:
        return False


# --- the total --------------------------------------------------------------------------------------


@functools.cache
def current_boot_id() -> bytes:
    """Return an id of this start of the machine: after a power cut the file may have an old number."""
    try:
        return bytes.fromhex(boot_id().replace("-", ""))[:16].ljust(16, b"\0")
    except ValueError:
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
                    unlock(self._fd)
            self._threads.release()

    def _lock(self, wait: float) -> None:
        pause, touched = POLL_SECONDS / 16, 0
        began = since = time.monotonic()
        while True:
            if self._fd < 0:
                self._fd = self._open()
            if try_lock(self._fd):
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(self._fd), os.lstat(self.path)):
                        return
                # The folder was removed.
                self._close()
                continue
            now, modified = time.monotonic(), os.fstat(self._fd).st_mtime_ns
            if modified != touched:
                touched, since = modified, now
            if now - since >= wait or now - began >= MAX_WAIT_FACTOR * wait:
                raise BusyError("another process holds its lock for too long", path=self.folder)
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
