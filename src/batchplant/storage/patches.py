"""Bytes that are written into a file that is there: how a change of :mod:`.commit` appends to it.

The bytes lie in the hidden folder. The plan of the change says where they go, so that whoever finishes it
writes the same bytes at the same place, however much of that was done before.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BatchplantError, BusyError

PIECE = 8 << 20
FALLOC_FL_KEEP_SIZE = 1
# The slowest disk that a reader waits for, bytes a second.
SLOWEST = 8 << 20


class Patch(NamedTuple):
    """A file of the hidden folder whose bytes go into a file beside it, from byte ``at`` on."""

    inside: str
    name: str
    at: int


def planned(hidden: Path, patches: Iterable[Patch]) -> list[dict[str, Any]]:
    """The patches as they stand in a plan: with the file that they are for, and its size."""
    found: list[dict[str, Any]] = []
    for inside, name, at in patches:
        there = os.lstat(hidden.parent / name)
        size = os.lstat(hidden / inside).st_size
        if not stat.S_ISREG(there.st_mode) or at > there.st_size:
            raise BusyError("it has changed meanwhile; try again", path=hidden.parent / name)
        found.append(
            {"inside": inside, "name": name, "at": at, "size": size, "inode": there.st_ino,
             "before": there.st_size}
        )  # fmt: skip
    # A file may get several; what the last one leaves is as long as the longest.
    ends: dict[str, int] = {}
    for one in found:
        ends[one["name"]] = max(ends.get(one["name"], one["before"]), one["at"] + one["size"])
    return [{**one, "after": ends[one["name"]]} for one in found]


def are_sound(patches: Any) -> bool:
    """Whether what a plan says of patches has the right types."""
    numbers = ("at", "size", "inode", "before", "after")
    return all(all(type(one[key]) is int and one[key] >= 0 for key in numbers) for one in patches)


def patience(patches: Iterable[dict[str, Any]]) -> float:
    """Seconds that carrying out patches may take."""
    return sum(int(one["size"]) for one in patches) / SLOWEST


@functools.cache
def _fallocate() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)


@contextlib.contextmanager
def reserving(folder: Path, patches: list[dict[str, Any]]) -> Any:
    """Takes the room on the disk before the change is decided; gives it back where that fails."""
    reserve = _fallocate()
    grown = {one["name"]: one for one in patches if one["after"] > one["before"]}
    try:
        for name, one in grown.items():
            with _opened(folder / name) as fd:
                start, size = one["before"], one["after"] - one["before"]
                args = (ctypes.c_long(start), ctypes.c_long(size))
                if reserve is not None and reserve(fd, FALLOC_FL_KEEP_SIZE, *args) != 0:
                    code = ctypes.get_errno()
                    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                        raise OSError(code, os.strerror(code), str(folder / name))
        yield
    except BaseException:
        for name, one in grown.items():
            with contextlib.suppress(OSError), _opened(folder / name) as fd:
                os.ftruncate(fd, one["before"])
        raise


@contextlib.contextmanager
def _opened(path: Path) -> Any:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def carry_out(folder: Path, hidden: Path, patch: dict[str, Any]) -> None:
    """Write the bytes, unless another file stands there by now."""
    with contextlib.suppress(FileNotFoundError), _opened(folder / patch["name"]) as out:
        found = os.fstat(out)
        if found.st_ino != patch["inode"] or not patch["before"] <= found.st_size <= patch["after"]:
            return
        with _opened(hidden / patch["inside"]) as data:
            _copy(data, out, patch["size"], patch["at"])
        os.fsync(out)


def _copy(source: int, target: int, size: int, at: int) -> None:
    done = 0
    while done < size:
        view = memoryview(os.pread(source, min(PIECE, size - done), done))
        if not view:
            raise BatchplantError("the bytes to append are gone")
        while view:
            written = os.pwrite(target, view, at + done)
            view, done = view[written:], done + written


def check_way(folder: Path, name: str) -> None:
    """Make the folders of a name below; no link leads out of ours."""
    way = folder
    for part in name.split("/")[:-1]:
        way = way / part
        with contextlib.suppress(FileExistsError):
            os.mkdir(way)
        if not stat.S_ISDIR(os.lstat(way).st_mode):
            raise BatchplantError("it is no folder, so nothing can be written below it", path=way)
