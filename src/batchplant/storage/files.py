"""Local files: opened only where they are files, and named by data only below a folder.

All code that opens a file for reading comes through here: a named pipe of the right name would block a plain
``open`` for ever, and archives can hold one.
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

SPECIAL_FILES = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str]) -> int:
    """Return a descriptor for reading a file; OSError, without blocking, if there is no such file."""
    return open_with_status(path)[0]


def open_with_status(path: str | os.PathLike[str], flags: int = 0) -> tuple[int, os.stat_result]:
    """Return the same, and the file's status; ``flags`` such as O_DIRECT."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC | flags)
    # A NUL or a lone surrogate: no file can have such a name.
    except ValueError:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise FileNotFoundError(errno.ENOENT, os.strerror(error.errno), path) from None
        if error.errno != errno.ENXIO:
            raise
        # A socket cannot be opened.
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
        errno.EINVAL, f"this is {SPECIAL_FILES.get(stat.S_IFMT(mode), 'no file')}, a file is needed", path
    )


def open_local(path: str | os.PathLike[str], *, buffering: int = -1) -> BinaryIO:
    """Return a file object for reading a local file; see :func:`open_regular`."""
    # The file object owns the descriptor, and closes it.
    return open(open_regular(path), "rb", buffering=buffering)


def tag_of(facts: os.stat_result) -> str:
    """Return a tag that changes when a local file changes or is replaced."""
    return f"{facts.st_mtime_ns} {facts.st_ctime_ns} {facts.st_ino}"


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise a DamagedError if a path is neither file nor folder, before a library opens it."""
    try:
        mode = os.stat(path).st_mode
    # Opening it gives the better error.
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DamagedError(str(_no_file(path, mode).strerror), path=os.fspath(path))


def stat_files(folder: str, names: Sequence[str]) -> tuple[I64, I64]:
    """Return sizes and modification times (ns) of many files below a folder; -1 for what is no file."""
    text = os.fsencode("\0".join(names)) + b"\0" if names else b""
    return _native.stat_files(os.fsencode(folder or "."), text)


# Marks of a URL, or of a chain of file systems (fsspec).
URL_MARKS = ("://", "::")


def is_below(name: object, *, is_listed: bool = False) -> bool:
    """Return whether a name found in data is a valid path below a folder: relative, without ``..``.

    A name that would be taken for a URL is not. ``is_listed``: the name is of a class, or of an existing
    file, and may hold such marks. Links are followed, as all programs do: people make them (a cache of models
    consists of them).
    """
    if not isinstance(name, str) or name in ("", ".") or name[0] == "/" or "\0" in name:
        return False
    if not is_listed and ":" in name and any(mark in name for mark in URL_MARKS):
        return False
    return is_text(name) and ".." not in name.split("/")


def files_below(folder: Path) -> list[str]:
    """Return the paths of all files below a folder, sorted."""
    paths = (Path(above, name) for above, _, names in os.walk(folder) for name in names)
    return sorted(path.relative_to(folder).as_posix() for path in paths)


def is_plain(name: object, *, is_listed: bool = False) -> bool:
    """Return whether a name found in data is a valid name directly in a folder; see :func:`is_below`."""
    return is_below(name, is_listed=is_listed) and "/" not in str(name)
