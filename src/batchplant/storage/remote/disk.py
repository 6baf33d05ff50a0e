"""DiskCache: blocks of remote objects in a folder, shared by all processes of a machine.

A block is one file, ``FOLDER/ab/KEY-START-SIZE``: its bytes, a note on what the key stands for, and a foot
with a checksum of both and of its name. It is written under a hidden name and renamed, so that there is no
half block; readers map it, so that an evicted one stays readable for who has it. :mod:`.room` counts.
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
from .room import Block, Draft, Room, block_name

FOOT = struct.Struct("<8sQII")
MAGIC = b"BPBLOCK1"
KEY = re.compile(r"[0-9a-f]{8,128}")
# A note that is longer is left out.
NOTE_MOST = 4000
# Keys whose notes are held, and blocks known to be whole.
MOST_NOTES = 1 << 17
MOST_WHOLE = 1 << 16
# Read at a time to check a block.
PIECE = 1 << 18
# A block that was used less long ago (nanoseconds) counts as used now.
TOUCH = 5 * 10**9
# Seconds to wait for another process that counts the folder: one that hangs shall not stop anybody.
WAIT = 5.0
# Seconds after which what failed is tried again.
PAUSE = 10.0
# A need later than this is as late as any (ten years), and fits every file system.
LATEST = 10 * 365 * 86400.0
# The last bits of a planned time, some milliseconds, say whose plan it is.
WHOSE = (1 << 22) - 1


@dataclasses.dataclass(frozen=True)
class CachedObject:
    """An object that a cache holds blocks of; ``url``, ``tag``, ``size``: None where nobody noted them."""

    key: str
    url: str | None
    tag: str | None
    size: int | None
    bytes: int
    blocks: int


@dataclasses.dataclass(frozen=True)
class CacheInfo:
    """What a cache holds. ``bytes``: what its folder takes of the disk; ``limit``: of its last writer."""

    folder: str
    bytes: int
    limit: int | None
    blocks: int
    objects: tuple[CachedObject, ...]


class DiskCache:
    """Blocks of remote objects in a folder, shared by all processes of a machine, never over its limit.

    A cache never stands in the way: a disk that is full or fails, or a process that hangs and holds the lock,
    means that blocks are not kept, with one warning.
    """

    def __init__(self, folder: str | os.PathLike[str], most: int) -> None:
        self.folder = os.path.abspath(os.path.expanduser(os.fspath(folder)))
        self.most = int(most)
        try:
            self.room = Room(self.folder, self.most)
        except (FileExistsError, NotADirectoryError):
            raise OptionError("the cache has to be a folder, and this is none", path=self.folder) from None
        except OSError as error:
            raise AccessError(
                f"the cache cannot be used: {error.strerror or error}", path=self.folder
            ) from None
        # Blocks that were there, and not; that were added, found no room, failed, were damaged.
        self.hits = self.misses = self.added = self.refused = self.failed = self.damaged = 0
        self._notes: dict[str, bytes] = {}
        # The file that was found whole under a name: a guess is good enough, so that threads need no lock.
        self._whole: dict[str, tuple[int, int]] = {}
        self.wait = WAIT
        self._warned = self._was_busy = False
        self._pause_until = 0.0

    # --- reading ------------------------------------------------------------------------------------

    def get(self, key: str, start: int, size: int) -> U8 | None:
        """A block, read-only; None where it is not there, or damaged, and then it is removed."""
        name = _name(key, start, size)
        data = None
        # Whatever keeps a block from being read, it can be fetched.
        with contextlib.suppress(OSError):
            data = self._read(key, name, size)
        if data is None:
            self.misses += 1
        else:
            self.hits += 1
        return data

    def _read(self, key: str, name: str, size: int) -> U8 | None:
        fd = self.room.open_block(key, name)
        try:
            facts = os.fstat(fd)
            # In a folder that others may write to, somebody could have put other bytes there.
            if not stat.S_ISREG(facts.st_mode) or facts.st_uid not in self.room.owners:
                return None
            if self._whole.get(name) != (facts.st_ino, facts.st_size):
                if not _is_whole(fd, name, size, facts.st_size):
                    self._remove_damaged(key, name)
                    return None
                self._note_whole(name, facts)
            data: U8 = _native.map_file(fd)[:size]
            now = time.time_ns()
            if facts.st_mtime_ns < now - TOUCH:
                with contextlib.suppress(OSError):
                    os.utime(fd, ns=(now, now))
            return data
        finally:
            os.close(fd)

    def _note_whole(self, name: str, facts: os.stat_result) -> None:
        if len(self._whole) >= MOST_WHOLE:
            self._whole.clear()
        self._whole[name] = facts.st_ino, facts.st_size

    def _remove_damaged(self, key: str, name: str) -> None:
        self.damaged += 1
        self._whole.pop(name, None)
        self.room.remove(key, name)

    # --- writing ------------------------------------------------------------------------------------

    def put(self, key: str, start: int, data: U8, due: float | None = None) -> None:
        """Keep a block; ``due``: when (``time.time()``) this process will need it next, where that is known.

        Where that is impossible it is not kept, and nothing is raised.
        """
        data = np.ascontiguousarray(data)
        name = _name(key, start, len(data))
        if due is not None:
            self.expect(key, [(start, len(data), due)])
        if time.monotonic() < self._pause_until or self._is_there(key, name):
            return
        foot = _foot(name, data, self._notes.get(key, b""))
        cost = self.room.cost(len(data) + len(foot))
        if cost > self.most:
            self.refused += 1
            return
        try:
            # Who waited in vain once does not wait again.
            draft = self.room.reserve(key, cost, 0 if self._was_busy else self.wait)
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
            self.room.keep(draft, name, self.wait)
            self._note_whole(name, facts)
            self.added += 1
        except BaseException:
            self.room.drop(draft)
            raise
        finally:
            os.close(draft.fd)

    def _is_there(self, key: str, name: str) -> bool:
        return os.path.lexists(os.path.join(self.folder, key[:2], name))

    def _note_failure(self, error: OSError | BusyError) -> None:
        self.failed += 1
        self._was_busy = isinstance(error, BusyError)
        self._pause_until = time.monotonic() + PAUSE
        if not self._warned:
            self._warned = True
            said = error.message if isinstance(error, BusyError) else error.strerror or error
            warnings.warn(
                f"{self.folder}: blocks cannot be cached: {said}; reading goes on without",
                RuntimeWarning,
                stacklevel=3,
            )

    def expect(self, key: str, blocks: Iterable[tuple[int, int, float]]) -> None:
        """Say when (``time.time()``) this process will need blocks next: (start, size, due)."""
        with contextlib.suppress(OSError), self.room.shelf(_checked(key)) as at:
            for start, size, due in blocks:
                with contextlib.suppress(OSError):
                    _plan(_name(key, start, size), at, _stamp(due))

    # --- what is there ------------------------------------------------------------------------------

    def describe(self, key: str, url: str, tag: str, size: int) -> None:
        """What a key stands for; goes along with blocks that are put from now on."""
        note = json.dumps({"url": shown(url), "tag": tag, "size": int(size)}).encode()
        if len(self._notes) >= MOST_NOTES:
            self._notes.clear()
        self._notes[_checked(key)] = note if len(note) <= NOTE_MOST else b""

    def info(self) -> CacheInfo:
        """What the cache holds now."""
        total, blocks = self.room.count()
        by_key: dict[str, list[Block]] = {}
        for one in blocks:
            by_key.setdefault(one.key, []).append(one)
        objects = [self._object(key, found) for key, found in by_key.items()]
        objects.sort(key=lambda one: (one.url is None, one.url, one.key))
        return CacheInfo(self.folder, total, self.room.limit(), len(blocks), tuple(objects))

    def _object(self, key: str, blocks: list[Block]) -> CachedObject:
        # The first that has one: they are all the same.
        note = next(filter(None, (self._note(one) for one in blocks)), {})
        url, tag, size = note.get("url"), note.get("tag"), note.get("size")
        return CachedObject(
            key,
            url if isinstance(url, str) else None,
            tag if isinstance(tag, str) else None,
            size if isinstance(size, int) else None,
            sum(one.size for one in blocks),
            len(blocks),
        )

    def _note(self, block: Block) -> dict[str, Any]:
        """What a block says about its key; nothing where it cannot be read."""
        try:
            fd = self.room.open_block(block.key, block.name)
            try:
                return parse_object(os.pread(fd, NOTE_MOST + FOOT.size, block.size)[: -FOOT.size])
            finally:
                os.close(fd)
        except (OSError, *NOTE_ERRORS):
            return {}

    def clear(self, urls: str | Iterable[str] | None = None) -> int:
        """Remove all blocks, or those of objects, folders or globs; gives the bytes they took.

        BusyError where another process holds the lock for too long.
        """
        if urls is None:
            return self.room.clear(self.wait)
        asked = [shown(one).rstrip("/") for one in ([urls] if isinstance(urls, str) else urls)]
        objects = self.info().objects
        keys = {one.key for one in objects if one.url is not None and _is_of(one.url.rstrip("/"), asked)}
        return self.room.clear(self.wait, keys)


# One for each folder and limit; a fork goes on with them.
_CACHES: dict[tuple[str, int], DiskCache] = {}


def open_cache(folder: str | os.PathLike[str], most: int) -> DiskCache:
    """The cache in a folder; the same one, however often a process asks for it."""
    place = os.path.abspath(os.path.expanduser(os.fspath(folder))), int(most)
    return _CACHES.get(place) or _CACHES.setdefault(place, DiskCache(*place))


def _is_of(url: str, asked: list[str]) -> bool:
    return any(url == one or url.startswith(f"{one}/") or fnmatch.fnmatchcase(url, one) for one in asked)


def _checked(key: str) -> str:
    if KEY.fullmatch(key) is None:
        raise OptionError(f"a key is 8 to 128 hexadecimal digits, not {key!r}")
    return key


def _name(key: str, start: int, size: int) -> str:
    return block_name(_checked(key), int(start), int(size))


def _foot(name: str, data: U8, note: bytes) -> bytes:
    check = _native.crc32c(name.encode(), _native.crc32c(note, _native.crc32c(data)))
    return note + FOOT.pack(MAGIC, len(data), len(note), check)


def _is_whole(fd: int, name: str, size: int, total: int) -> bool:
    """Whether a file is what was put under this name.

    Read, not mapped: a disk that fails is an error here, and would end the process there.
    """
    try:
        magic, said, noted, check = FOOT.unpack(os.pread(fd, FOOT.size, max(0, total - FOOT.size)))
        if magic != MAGIC or said != size or size + noted + FOOT.size != total:
            return False
        piece = np.empty(min(PIECE, size + noted), dtype=np.uint8)
        found = at = 0
        while at < size + noted:
            got = os.preadv(fd, [piece[: size + noted - at].data], at)
            if got == 0:
                return False
            found = _native.crc32c(piece[:got], found)
            at += got
    except (OSError, struct.error) as error:
        if isinstance(error, OSError) and error.errno != errno.EIO:
            raise
        return False
    return bool(_native.crc32c(name.encode(), found) == check)


def _stamp(due: float) -> int:
    """A planned time in nanoseconds, marked as this process's."""
    latest = time.time() + LATEST
    # Not the other way around: NaN is no time at all.
    due = max(0.0, due) if due < latest else latest
    return int(due * 1e9) & ~WHOSE | os.getpid() & WHOSE


def _plan(name: str, at: int, due: int) -> None:
    """Note when a block is needed next; where another process needs it earlier, that stays."""
    known = os.stat(name, dir_fd=at, follow_symlinks=False).st_mtime_ns
    if time.time_ns() < known < due and (known ^ due) & WHOSE:
        return
    os.utime(name, ns=(due, due), dir_fd=at, follow_symlinks=False)
