"""The room that a folder of blocks takes, counted for all processes that share it, and never over its limit.

Room is reserved in the folder's total before a block is written, so that whoever is killed leaves the total
too high, never too low. Where no room is left, the folder itself is counted, what killed writers left goes,
and blocks are evicted.

A block's modification time says when it is needed next (in the future) or when it was used last (in the
past). One that was used last some time ago is expected to be needed after as long again. What is needed
latest is evicted first: Belady's rule where the order is known, the least recently used where it is not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import os
import re
import secrets
import stat
import time
from collections.abc import Collection, Iterator
from typing import NamedTuple

from ...errors import BusyError
from .total import Total

# Evicted in one go, as a share of the limit: counting the folder takes time.
SHARE = 20
# A full disk stops more than us: this much of it stays free, or as large a share of a small one.
SPARE = 1 << 30
# Of disk space, what a file or a folder takes at least; a file's name in its folder; and, as a share of a
# file, the list of the places that it lies at.
UNIT = 4096
ENTRY = 256
PLACES = 1024

SHELF = re.compile(r"[0-9a-f]{2}")
BLOCK = re.compile(r"([0-9a-f]{8,128})-(0|[1-9]\d{0,17})-(0|[1-9]\d{0,17})")
DRAFT = re.compile(r"\.new-(\d{1,18})-[0-9a-f]{16}")

FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class Block(NamedTuple):
    """One file of the folder.

    ``due``: its modification time in nanoseconds. ``cost``: what it takes of the disk.
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
    """A hidden file that a block is written to, and the room reserved for it."""

    fd: int
    key: str
    name: str
    cost: int


def block_name(key: str, start: int, size: int) -> str:
    return f"{key}-{start}-{size}"


def needed(due: int, now: int) -> int:
    """When a block is expected to be needed next."""
    return due if due > now else 2 * now - due


class Room:
    """The room of one folder as one process sees it; safe from many threads, and after a fork."""

    def __init__(self, folder: str, most: int) -> None:
        self.folder = folder
        self.most = most
        self.evicted = 0
        self._total = Total(folder, most)
        # Whose blocks are used.
        self.owners = {os.geteuid(), os.stat(folder).st_uid}
        self._unit = max(UNIT, min(os.statvfs(folder).f_frsize, 1 << 20))

    def cost(self, size: int) -> int:
        """What a file of this size takes of the disk, at most."""
        return self._rounded(size) + size // PLACES + ENTRY

    def _rounded(self, size: int) -> int:
        return -(-size // self._unit) * self._unit

    def limit(self) -> int:
        """The limit of whoever changed the folder last."""
        known = self._total.read()
        return self.most if known is None else known[1]

    @contextlib.contextmanager
    def shelf(self, key: str) -> Iterator[int]:
        """A descriptor of the folder that the blocks of a key lie in."""
        at = os.open(os.path.join(self.folder, key[:2]), FOLDER)
        try:
            yield at
        finally:
            os.close(at)

    def open_block(self, key: str, name: str) -> int:
        """A descriptor to read a block by."""
        with self.shelf(key) as at:
            return os.open(name, os.O_RDONLY | FILE, dir_fd=at)

    # --- adding -------------------------------------------------------------------------------------

    def reserve(self, key: str, cost: int, wait: float) -> Draft | None:
        """A hidden file with room to write to; None where no room can be made."""
        with self._total.locked(wait):
            path = os.path.join(self.folder, key[:2])
            is_new = not os.path.lexists(path)
            need = cost + (self._unit if is_new else 0)
            known = self._total.read()
            total = self._make_room(need) if known is None or need > self._left(known[0]) else known[0]
            if need > self._left(total):
                return None
            # From here on it counts, also where what follows fails, or is interrupted.
            self._total.write(total + need)
            if is_new:
                os.mkdir(path, 0o700)
            with self.shelf(key) as at:
                return _draft(key, cost, at)

    def keep(self, draft: Draft, name: str, wait: float) -> None:
        """Give a draft that is complete its name; one of another process that was quicker stays."""
        # Under the lock, for whoever counts while a file is renamed may miss it.
        with self.shelf(draft.key) as at, self._total.locked(wait):
            if _exists(name, at):
                os.unlink(draft.name, dir_fd=at)
                self._total.subtract(draft.cost)
            else:
                os.rename(draft.name, name, src_dir_fd=at, dst_dir_fd=at)

    def drop(self, draft: Draft) -> None:
        """Remove a draft that is not needed any more, as far as that is possible."""
        with contextlib.suppress(OSError), self.shelf(draft.key) as at:
            try:
                with self._total.locked(0):
                    os.unlink(draft.name, dir_fd=at)
                    self._total.subtract(draft.cost)
            except BusyError:
                os.unlink(draft.name, dir_fd=at)

    # --- removing -----------------------------------------------------------------------------------

    def remove(self, key: str, name: str) -> bool:
        """Whether a block was there, and is no more. The total stays: the next who counts corrects it."""
        try:
            with self.shelf(key) as at:
                os.unlink(name, dir_fd=at)
        except OSError:
            return False
        return True

    def clear(self, wait: float, keys: Collection[str] | None = None) -> int:
        """Remove the blocks of these keys, or all; gives the bytes they took."""
        with self._total.locked(wait):
            total, blocks = self.count(clean=True)
            removed = 0
            for one in blocks:
                if (keys is None or one.key in keys) and self.remove(one.key, one.name):
                    removed += one.cost
            # Who clears up need not know the limit of those who add.
            self._total.write(total - removed, self.limit())
        return removed

    def _left(self, total: int) -> int:
        """Bytes that may be added to this total."""
        disk = os.statvfs(self.folder)
        spare = min(SPARE, disk.f_blocks * disk.f_frsize // SHARE)
        return min(self.most - total, disk.f_bavail * disk.f_frsize - spare)

    def _make_room(self, need: int) -> int:
        """Count the folder, and evict where that is needed; gives the total."""
        total, blocks = self.count(clean=True)
        left = self._left(total)
        if need > left:
            # More than is needed, so that counting is rare.
            wanted = need + (total + left) // SHARE
            now = time.time_ns()
            blocks.sort(key=lambda one: (needed(one.due, now), one.name))
            while blocks and wanted > left:
                one = blocks.pop()
                if self.evicted % 1000 == 0:
                    self._total.touch()
                if self.remove(one.key, one.name):
                    total, left = total - one.cost, left + one.cost
                    self.evicted += 1
        self._total.write(total)
        return total

    # --- counting -----------------------------------------------------------------------------------

    def count(self, *, clean: bool = False) -> tuple[int, list[Block]]:
        """What the folder takes of the disk, and its blocks. ``clean``: drafts of killed writers go.

        The total is locked where it is cleaned up.
        """
        # The folder itself, and the file of the total.
        total = 2 * self._unit
        blocks: list[Block] = []
        with os.scandir(self.folder) as entries:
            shelves = [one.name for one in entries if SHELF.fullmatch(one.name)]
        for shelf in shelves:
            if clean:
                self._total.touch()
            try:
                with self.shelf(shelf) as at:
                    total += self._taken(os.fstat(at)) + self._count_shelf(shelf, at, blocks, clean)
            except OSError as error:
                # Neither a file nor a link is a shelf. Any other error must not make the total too low.
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    raise
        return total, blocks

    def _count_shelf(self, shelf: str, at: int, blocks: list[Block], clean: bool) -> int:
        total = 0
        with os.scandir(at) as entries:
            names = [one.name for one in entries]
        for name in names:
            block, draft = BLOCK.fullmatch(name), DRAFT.fullmatch(name)
            if draft is None and (block is None or not name.startswith(shelf)):
                continue
            try:
                facts = os.stat(name, dir_fd=at, follow_symlinks=False)
            except FileNotFoundError:
                continue
            if not stat.S_ISREG(facts.st_mode):
                continue
            taken = self._taken(facts)
            if block is not None:
                blocks.append(Block(block[1], int(block[2]), int(block[3]), facts.st_mtime_ns, taken + ENTRY))
                total += taken + ENTRY
            elif draft is not None and not (clean and _is_left(name, at)):
                # Its writer goes on to write all that it reserved.
                total += max(int(draft[1]), taken)
        return total

    def _taken(self, facts: os.stat_result) -> int:
        # Some file systems say how many blocks a file has only when it is on the disk.
        return max(self._rounded(facts.st_size), facts.st_blocks * 512)


def _draft(key: str, cost: int, at: int) -> Draft:
    name = f".new-{cost}-{secrets.token_hex(8)}"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | FILE, 0o600, dir_fd=at)
    try:
        # Says that its writer is there; nobody counts before the lock of the total is free again.
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        os.unlink(name, dir_fd=at)
        raise
    return Draft(fd, key, name, cost)


def _exists(name: str, at: int) -> bool:
    try:
        os.stat(name, dir_fd=at, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _is_left(name: str, at: int) -> bool:
    """Whether the writer of a draft is no more; then it goes."""
    try:
        fd = os.open(name, os.O_RDWR | FILE, dir_fd=at)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(name, dir_fd=at)
        finally:
            os.close(fd)
    except OSError:
        return False
    return True
