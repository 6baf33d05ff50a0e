"""DiskCache: blocks of remote objects in a folder, shared by all processes of a machine.

A block is one file, ``FOLDER/ab/KEY-START-SIZE``: its bytes, a JSON note on what the key stands for, and a
footer with a checksum of both and of its name. It is written under a hidden name and renamed, so that there
is no partial block. Readers map it, so that an evicted block stays readable for them. :mod:`.cache_folder`
accounts for the space.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fnmatch
import json
import os
import re
import stat
import struct
import time
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from ... import _native
from ...errors import AccessError, BusyError, OptionError, shown
from ...schema.columns import U8
from ..notes import NOTE_ERRORS, parse_object
from .cache_folder import Block, CacheFolder, Draft, block_name

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
                    self._remove_damaged(key, name)
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

    def _remove_damaged(self, key: str, name: str) -> None:
        self.damaged += 1
        self._intact.pop(name, None)
        self.space.remove(key, name)

    # --- writing ------------------------------------------------------------------------------------

    def put(self, key: str, start: int, data: U8, due: float | None = None) -> None:
        """Store a block; ``due``: when (``time.time()``) this process will need it next, if that is known.

        If that is impossible the block is not stored, and nothing is raised.
        """
        data = np.ascontiguousarray(data)
        name = _name(key, start, len(data))
        if due is not None:
            self.expect(key, [(start, len(data), due)])
        if time.monotonic() < self._pause_until or self._is_there(key, name):
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

    def _is_there(self, key: str, name: str) -> bool:
        return os.path.lexists(os.path.join(self.folder, key[:2], name))

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
        keys = {
            entry.key
            for entry in self.info().objects
            if entry.url is not None and _is_of(entry.url.rstrip("/"), patterns)
        }
        return self.space.clear(self.wait, keys)


# By folder and limit; they remain usable after a fork.
_CACHES: dict[tuple[str, int], DiskCache] = {}


def open_cache(folder: str | os.PathLike[str], limit: int) -> DiskCache:
    """Return the cache in a folder; the same object for every call in a process."""
    key = os.path.abspath(os.path.expanduser(os.fspath(folder))), int(limit)
    return _CACHES.get(key) or _CACHES.setdefault(key, DiskCache(*key))


def _is_of(url: str, patterns: list[str]) -> bool:
    return any(
        url == pattern or url.startswith(f"{pattern}/") or fnmatch.fnmatchcase(url, pattern)
        for pattern in patterns
    )


def _checked(key: str) -> str:
    if KEY.fullmatch(key) is None:
        raise OptionError(f"a key is 8 to 128 hexadecimal digits, not {key!r}")
    return key


def _name(key: str, start: int, size: int) -> str:
    return block_name(_checked(key), int(start), int(size))


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
