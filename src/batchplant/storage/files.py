"""Local files: opened only where they are files, and named by data only below a folder.

Whatever opens a file to read it comes through here: a named pipe of the right name would let a plain ``open``
wait for ever, and archives can hold one.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from .. import _native
from ..errors import DamagedError
from ..schema import is_text
from ..schema.columns import I64

OTHERS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor to read a file by; an OSError, without waiting, where there is none or it is no file."""
    return open_known(path)[0]


def open_known(path: str | os.PathLike[str], flags: int = 0) -> tuple[int, os.stat_result]:
    """The same, and what the system tells of the file; ``flags`` as in os.O_DIRECT."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    # A NUL, or half a surrogate: what no file can be called.
    except ValueError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        # What cannot be opened at all, for nobody is at its other end.
        raise _no_file(path, stat.S_IFSOCK) from None
    facts = os.fstat(fd)
    if stat.S_ISREG(facts.st_mode):
        return fd, facts
    os.close(fd)
    raise _no_file(path, facts.st_mode)


def _no_file(path: str | os.PathLike[str], mode: int) -> OSError:
    if stat.S_ISDIR(mode):
        return IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
    return OSError(
        errno.EINVAL, f"this is {OTHERS.get(stat.S_IFMT(mode), 'no file')}, a file is needed", path
    )


def open_local(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
    """A file object to read a local file by; as :func:`open_regular`."""
    # The descriptor is the object's, and goes with it.
    return open(open_regular(path), "rb", buffering=buffering)


def tag_of(facts: os.stat_result) -> str:
    """What changes when a local file does, or another takes its place."""
    return f"{facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"


def check_regular(path: str | os.PathLike[str]) -> None:
    """DamagedError where what lies at a path is neither file nor folder: before a library opens it."""
    try:
        mode = os.stat(path).st_mode
    # Whoever opens it says it better.
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DamagedError(str(_no_file(path, mode).strerror), path=os.fspath(path))


def stat_files(folder: str, names: Sequence[str]) -> tuple[I64, I64]:
    """Sizes and times of the last change (ns) of many files below a folder; -1 of what is no file."""
    text = os.fsencode("\0".join(names)) + b"\0" if names else b""
    return _native.stat_files(os.fsencode(folder or "."), text)


# What makes a path a URL, or a chain of file systems (fsspec).
URL_MARKS = ("://", "::")


def is_below(name: object, *, is_listed: bool = False) -> bool:
    """Whether a name that data gave is a path below a folder: relative, without ``..``, one a file can have.

    A name that would be taken for a URL is none. ``is_listed``: the name is of a class, or of a file that
    is there, and may hold such marks. Links are followed, as all programs do: people make them (a cache of
    models is nothing else).
    """
    if not isinstance(name, str) or name in ("", ".") or name[0] == "/" or "\0" in name:
        return False
    if not is_listed and any(mark in name for mark in URL_MARKS):
        return False
    return is_text(name) and ".." not in name.split("/")


def files_below(folder: Path) -> list[str]:
    """The paths of all files below, in order."""
    found = (Path(above, name) for above, _, names in os.walk(folder) for name in names)
    return sorted(one.relative_to(folder).as_posix() for one in found)


def is_plain(name: object, *, is_listed: bool = False) -> bool:
    """Whether a name that data gave is one of a file right in a folder; see :func:`is_below`."""
    return is_below(name, is_listed=is_listed) and "/" not in str(name)
