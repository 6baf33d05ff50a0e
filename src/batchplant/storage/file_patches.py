"""Bytes that are written into an existing file: how a change of :mod:`.commit` appends to it.

The bytes lie in the staging directory. The plan of the change has their offset, so that a process that
finishes it writes the same bytes at the same place, however much of that was done before.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import BatchplantError, BusyError

COPY_BYTES = 8 << 20
FALLOC_FL_KEEP_SIZE = 1
# Bytes per second of the slowest disk that a reader waits for.
MIN_DISK_SPEED = 8 << 20


class Patch(NamedTuple):
    """A file of the staging directory whose bytes go into a file beside it, from byte ``at`` on."""

    inside: str
    name: str
    at: int


def planned(staging: Path, patches: Iterable[Patch]) -> list[dict[str, Any]]:
    """Return the patches as written in a plan: with inode and size of the file that they are for."""
    entries: list[dict[str, Any]] = []
    for inside, name, offset in patches:
        status = os.lstat(staging.parent / name)
        size = os.lstat(staging / inside).st_size
        if not stat.S_ISREG(status.st_mode) or offset > status.st_size:
            raise BusyError("it has changed meanwhile; try again", path=staging.parent / name)
        entries.append(
            {"inside": inside, "name": name, "at": offset, "size": size, "inode": status.st_ino,
             "before": status.st_size}
        )  # fmt: skip
    # A file may get several; its final size is the largest end.
    ends: dict[str, int] = {}
    for entry in entries:
        ends[entry["name"]] = max(ends.get(entry["name"], entry["before"]), entry["at"] + entry["size"])
    return [{**entry, "after": ends[entry["name"]]} for entry in entries]


def are_sound(patches: Any) -> bool:
    """Return whether patches of a plan have the right types."""
    numbers = ("at", "size", "inode", "before", "after")
    return all(all(type(patch[key]) is int and patch[key] >= 0 for key in numbers) for patch in patches)


def patience(patches: Iterable[dict[str, Any]]) -> float:
    """Return the seconds that carrying out patches may take."""
    return sum(int(patch["size"]) for patch in patches) / MIN_DISK_SPEED


@functools.cache
def _fallocate() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)


@contextlib.contextmanager
def reserving(folder: Path, patches: list[dict[str, Any]]) -> Iterator[None]:
    """Reserve disk space before the change is decided; release it if that fails."""
    reserve = _fallocate()
    grown = {patch["name"]: patch for patch in patches if patch["after"] > patch["before"]}
    try:
        for name, patch in grown.items():
            with _opened(folder / name) as fd:
                start, size = patch["before"], patch["after"] - patch["before"]
                args = (ctypes.c_long(start), ctypes.c_long(size))
                if reserve is not None and reserve(fd, FALLOC_FL_KEEP_SIZE, *args) != 0:
                    code = ctypes.get_errno()
                    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
                        raise OSError(code, os.strerror(code), str(folder / name))
        yield
    except BaseException:
        for name, patch in grown.items():
            with contextlib.suppress(OSError), _opened(folder / name) as fd:
                os.ftruncate(fd, patch["before"])
        raise


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield fd
    finally:
        os.close(fd)


def carry_out(folder: Path, staging: Path, patch: dict[str, Any]) -> None:
    """Write the bytes, unless another file has the name by now."""
    with contextlib.suppress(FileNotFoundError), _opened(folder / patch["name"]) as out:
        status = os.fstat(out)
        if status.st_ino != patch["inode"] or not patch["before"] <= status.st_size <= patch["after"]:
            return
        with _opened(staging / patch["inside"]) as data:
            _copy(data, out, patch["size"], patch["at"])
        os.fsync(out)


def _copy(source: int, target: int, size: int, offset: int) -> None:
    done = 0
    while done < size:
        view = memoryview(os.pread(source, min(COPY_BYTES, size - done), done))
        if not view:
            raise BatchplantError("the bytes to append are gone")
        while view:
            written = os.pwrite(target, view, offset + done)
            view, done = view[written:], done + written


def make_parents(folder: Path, name: str) -> None:
    """Create the parent folders of a name; no link may lead out of ours."""
    path = folder
    for part in name.split("/")[:-1]:
        path = path / part
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise BatchplantError("it is no folder, so nothing can be written below it", path=path)
