"""DiskCache: blocks of remote objects in a folder, shared by all processes of a machine.

A block is one file, ``FOLDER/ab/KEY-START-SIZE``: its bytes, a JSON note on what the key stands for, and a
footer with a checksum of both and of its name. It is written under a hidden name and renamed, so that there
is no partial block. Readers map it, so that an evicted block stays readable for them.

:class:`CacheFolder` accounts for the space. It is reserved in the folder's total before a block is written,
so that a killed process leaves the total too high, never too low. When no space is left, the folder itself
is counted, drafts of killed writers are removed, and blocks are evicted.

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
import fnmatch
import functools
import json
import os
import re
import secrets
import stat
import struct
import threading
import time
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...errors import AccessError, BusyError, OptionError, shown
from ...schema.columns import U8
from ..notes import NOTE_ERRORS, parse_object
from ..platform import boot_id, try_lock, unlock

FOOTER = struct.Struct("<8sQII")
MAGIC = b"BPBLOCK1"
KEY = re.compile(r"[0-9a-f]{8,128}")
# A longer note is left out.
MAX_NOTE_BYTES = 4000
# Numbers of keys whose notes are kept in memory, and of blocks known to be intact.
MAX_NOTES = 1 << 17
MAX_INTACT = 1 << 16
# Bytes read at a time to check a block.
CHECK_BYTES = 1 << 18
# A block that was used less than this many nanoseconds ago counts as just used.
TOUCH_NANOSECONDS = 5 * 10**9
# Seconds to wait for another process that counts the folder: a process that hangs must not block others.
LOCK_WAIT_SECONDS = 5.0
# Seconds after a failure before the next try.
FAILURE_PAUSE_SECONDS = 10.0
# A later due date counts as this one (ten years): it fits every file system.
MAX_DUE_SECONDS = 10 * 365 * 86400.0
# The lowest bits of a due date, some milliseconds, identify the process that planned it.
PROCESS_BITS = (1 << 22) - 1


@dataclasses.dataclass(frozen=True)
class CachedObject:
    """An object with blocks in a cache; ``url``, ``tag``, ``size``: None if no note says them."""

    key: str
    url: str | None
    tag: str | None
    size: int | None
    bytes: int
    blocks: int


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """Contents of a cache. ``bytes``: disk space of its folder; ``limit``: that of its last writer."""

    folder: str
    bytes: int
    limit: int | None
    blocks: int
    objects: tuple[CachedObject, ...]


class DiskCache:
    """Blocks of remote objects in a folder, shared by all processes of a machine, never over its limit.

    The cache never makes a read fail: if the disk is full or fails, or a process hangs and holds the lock,
    blocks are not cached, with one warning.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int) -> None:
        self.folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        self.limit = int(limit)
        try:
            self.space = CacheFolder(self.folder, self.limit)
        except (FileExistsError, NotADirectoryError):
            raise OptionError("the cache has to be a folder, and this is none", path=self.folder) from None
        except OSError as error:
            raise AccessError(
                f"the cache cannot be used: {error.strerror or error}", path=self.folder
            ) from None
        # Numbers of blocks that were there, were not, were added, found no room, failed, were damaged.
        self.hits = self.misses = self.added = self.refused = self.failed = self.damaged = 0
        self._notes: dict[str, bytes] = {}
        # Inode and size of the file that was found intact under a name. Races are harmless: no lock.
        self._intact: dict[str, tuple[int, int]] = {}
        self.wait = LOCK_WAIT_SECONDS
        self._warned = self._was_busy = False
        self._pause_until = 0.0

    # --- reading ------------------------------------------------------------------------------------

    def get(self, key: str, start: int, size: int) -> U8 | None:
        """Return a block, read-only; None if it is missing, or damaged (then it is removed)."""
        name = _name(key, start, size)
        data = None
        # Any block that cannot be read can be fetched instead.
        with contextlib.suppress(OSError):
            data = self._read(key, name, size)
        if data is None:
            self.misses += 1
        else:
            self.hits += 1
        return data

    def _read(self, key: str, name: str, size: int) -> U8 | None:
        fd = self.space.open_block(key, name)
        try:
            facts = os.fstat(fd)
            # In a folder that others may write to, another user could have put other bytes there.
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in self.space.owners:
                return None
            if self._intact.get(name) != (facts.st_ino, facts.st_size):
                if not _is_intact(fd, name, size, facts.st_size):
                    self.damaged += 1
                    self._intact.pop(name, None)
                    self.space.remove(key, name)
                    return None
                self._remember_intact(name, facts)
            data: U8 = _native.map_file(fd)[:size]
            now = time.time_ns()
            if facts.st_mtime_ns < now - TOUCH_NANOSECONDS:
                with contextlib.suppress(OSError):
                    os.utime(fd, ns=(now, now))
            return data
        finally:
            os.close(fd)

    def _remember_intact(self, name: str, facts: os.stat_result) -> None:
        if len(self._intact) >= MAX_INTACT:
            self._intact.clear()
        self._intact[name] = facts.st_ino, facts.st_size

    # --- writing ------------------------------------------------------------------------------------

    def put(self, key: str, start: int, data: U8, due: float | None = None) -> None:
        """Store a block; ``due``: when (``time.time()``) this process will need it next, if that is known.

        If that is impossible the block is not stored, and nothing is raised.
        """
        data = np.ascontiguousarray(data)
        name = _name(key, start, len(data))
        if due is not None:
            self.expect(key, [(start, len(data), due)])
        if time.monotonic() < self._pause_until or os.path.lexists(os.path.join(self.folder, key[:2], name)):
            return
        foot = _footer(name, data, self._notes.get(key, b""))
        cost = self.space.cost(len(data) + len(foot))
        if cost > self.limit:
            self.refused += 1
            return
        try:
            # After one wait in vain, do not wait again.
            draft = self.space.reserve(key, cost, 0 if self._was_busy else self.wait)
            self._was_busy = False
            if draft is None:
                self.refused += 1
            else:
                self._fill(draft, name, (data, foot), due)
        except (OSError, BusyError) as error:
            self._note_failure(error)

    def _fill(self, draft: Draft, name: str, parts: tuple[Any, ...], due: float | None) -> None:
        try:
            for part in parts:
                view = memoryview(part).cast("B")
                while view:
                    view = view[os.write(draft.fd, view) :]
            when = time.time_ns() if due is None else _stamp(due)
            os.utime(draft.fd, ns=(when, when))
            facts = os.fstat(draft.fd)
            self.space.keep(draft, name, self.wait)
            self._remember_intact(name, facts)
            self.added += 1
        except BaseException:
            self.space.drop(draft)
            raise
        finally:
            os.close(draft.fd)

    def _note_failure(self, error: OSError | BusyError) -> None:
        self.failed += 1
        self._was_busy = isinstance(error, BusyError)
        self._pause_until = time.monotonic() + FAILURE_PAUSE_SECONDS
        if not self._warned:
            self._warned = True
            reason = error.message if isinstance(error, BusyError) else error.strerror or error
            warnings.warn(
                f"{self.folder}: blocks cannot be cached: {reason}; reading goes on without",
                RuntimeWarning,
                stacklevel=3,
            )

    def expect(self, key: str, blocks: Iterable[tuple[int, int, float]]) -> None:
        """Plan when (``time.time()``) this process will need blocks next: (start, size, due)."""
        with contextlib.suppress(OSError), self.space.shelf(_checked(key)) as shelf:
            for start, size, due in blocks:
                with contextlib.suppress(OSError):
                    _plan(_name(key, start, size), shelf, _stamp(due))

    # --- contents -----------------------------------------------------------------------------------

    def describe(self, key: str, url: str, tag: str, size: int) -> None:
        """Note what a key stands for, for blocks that are stored from now on."""
        note = json.dumps({"url": shown(url), "tag": tag, "size": int(size)}).encode()
        if len(self._notes) >= MAX_NOTES:
            self._notes.clear()
        self._notes[_checked(key)] = note if len(note) <= MAX_NOTE_BYTES else b""

    def info(self) -> CacheInfo:
        """Return the contents of the cache."""
        total, blocks = self.space.count()
        by_key: dict[str, list[Block]] = {}
        for block in blocks:
            by_key.setdefault(block.key, []).append(block)
        objects = [self._object(key, key_blocks) for key, key_blocks in by_key.items()]
        objects.sort(key=lambda entry: (entry.url is None, entry.url, entry.key))
        return CacheInfo(self.folder, total, self.space.last_limit(), len(blocks), tuple(objects))

    def _object(self, key: str, blocks: list[Block]) -> CachedObject:
        # Take the first note: all blocks of a key have the same one.
        note = next(filter(None, (self._note(block) for block in blocks)), {})
        url, tag, size = note.get("url"), note.get("tag"), note.get("size")
        return CachedObject(
            key,
            url if isinstance(url, str) else None,
            tag if isinstance(tag, str) else None,
            size if isinstance(size, int) else None,
            sum(block.size for block in blocks),
            len(blocks),
        )

    def _note(self, block: Block) -> dict[str, Any]:
        """Return the note of a block about its key; empty if it cannot be read."""
        try:
            fd = self.space.open_block(block.key, block.name)
            try:
                return parse_object(os.pread(fd, MAX_NOTE_BYTES + FOOTER.size, block.size)[: -FOOTER.size])
            finally:
                os.close(fd)
        except (OSError, *NOTE_ERRORS):
            return {}

    def clear(self, urls: str | Iterable[str] | None = None) -> int:
        """Remove all blocks, or those of objects, folders or globs; return the bytes they took.

        BusyError where another process holds the lock for too long.
        """
        if urls is None:
            return self.space.clear(self.wait)
        patterns = [shown(url).rstrip("/") for url in ([urls] if isinstance(urls, str) else urls)]

        def matches(url: str) -> bool:
            return any(
                url == pattern or url.startswith(f"{pattern}/") or fnmatch.fnmatchcase(url, pattern)
                for pattern in patterns
            )

        objects = self.info().objects
        keys = {item.key for item in objects if item.url is not None and matches(item.url.rstrip("/"))}
        return self.space.clear(self.wait, keys)


# By folder and limit; they remain usable after a fork.
_CACHES: dict[tuple[str, int], DiskCache] = {}


def open_cache(folder: str | os.PathLike[str], limit: int) -> DiskCache:
    """Return the cache in a folder; the same object for every call in a process."""
    key = os.path.abspath(os.path.expanduser(os.fspath(folder))), int(limit)
    return _CACHES.get(key) or _CACHES.setdefault(key, DiskCache(*key))


def _checked(key: str) -> str:
    if KEY.fullmatch(key) is None:
        raise OptionError(f"a key is 8 to 128 hexadecimal digits, not {key!r}")
    return key


def _name(key: str, start: int, size: int) -> str:
    return f"{_checked(key)}-{int(start)}-{int(size)}"


def _footer(name: str, data: U8, note: bytes) -> bytes:
    check = _native.crc32c(name.encode(), _native.crc32c(note, _native.crc32c(data)))
    return note + FOOTER.pack(MAGIC, len(data), len(note), check)


def _is_intact(fd: int, name: str, size: int, file_size: int) -> bool:
    """Return whether a file is what was stored under this name.

    Read, not mapped: a disk failure is an error here; in a mapping it would kill the process.
    """
    try:
        magic, stated_size, note_size, check = FOOTER.unpack(
            os.pread(fd, FOOTER.size, max(0, file_size - FOOTER.size))
        )
        if magic != MAGIC or stated_size != size or size + note_size + FOOTER.size != file_size:
            return False
        buffer = np.empty(min(CHECK_BYTES, size + note_size), dtype=np.uint8)
        crc = offset = 0
        while offset < size + note_size:
            count = os.preadv(fd, [buffer[: size + note_size - offset].data], offset)
            if count == 0:
                return False
            crc = _native.crc32c(buffer[:count], crc)
            offset += count
    except (OSError, struct.error) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        return False
    return bool(_native.crc32c(name.encode(), crc) == check)


def _stamp(due: float) -> int:
    """Return a due date in nanoseconds, marked as this process's."""
    latest = time.time() + MAX_DUE_SECONDS
    # In this order, because NaN compares false.
    due = max(0.0, due) if due < latest else latest
    return int(due * 1e9) & ~PROCESS_BITS | os.getpid() & PROCESS_BITS


def _plan(name: str, shelf: int, due: int) -> None:
    """Record when a block is needed next; an earlier need of another process stays."""
    previous = os.stat(name, dir_fd=shelf, follow_symlinks=False).st_mtime_ns
    if time.time_ns() < previous < due and (previous ^ due) & PROCESS_BITS:
        return
    os.utime(name, ns=(due, due), dir_fd=shelf, follow_symlinks=False)


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
TOTAL_MAGIC = b"BPTOTAL1"
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
        return f"{self.key}-{self.start}-{self.size}"


@dataclasses.dataclass
class Draft:
    """A hidden file that a block is written to, and the space reserved for it."""

    fd: int
    key: str
    name: str
    cost: int


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
            return (
                (total, limit) if intact and magic == TOTAL_MAGIC and boot_id == current_boot_id() else None
            )
        return None

    def write(self, total: int, limit: int | None = None) -> None:
        data = RECORD.pack(TOTAL_MAGIC, total, self.limit if limit is None else limit, current_boot_id())
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
