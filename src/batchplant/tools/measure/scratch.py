"""A scratch folder where there is room; files in and out of the page cache."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import io
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import NotFoundError, OptionError

PREFIX = "batchplant-formats-"
# Left free for everybody else.
SPARE = 256 << 20
# File systems in memory, whose files are never cold.
IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
# Pages that are asked for, to see whether files are in memory.
ASKED = 1 << 16
PIECE = 1 << 20
LARGER = "--scratch with a larger disk"


@contextlib.contextmanager
def scratch_folder(
    where: str | None,
    beside: str,
    needed: int,
    *,
    what: str = "the candidates take",
    less: str = "fewer samples (--sample), fewer --formats",
) -> Iterator[Path]:
    """A new folder with room for so many bytes; it is gone at the end of the block, whatever ends it.

    ``what`` takes that room, and what makes it ``less``, is for the error where there is none.
    """
    places = [where] if where is not None else _places(beside)
    parent = _with_room(places, needed, what, f"{less}, or {'another --scratch' if where else LARGER}")
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder: Path) -> None:
    """Once more after a Ctrl-C that comes amid it: impatient people press it twice."""
    try:
        shutil.rmtree(folder, ignore_errors=True)
    except KeyboardInterrupt:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _places(beside: str) -> list[str]:
    """Folders that may do, best first; those in memory last, for there is no cold cache in them."""
    near = os.path.dirname(os.path.abspath(beside)) if "://" not in beside else ""
    folders = [
        folder
        for folder in (tempfile.gettempdir(), near, os.getcwd())
        if folder and os.access(folder, os.W_OK)
    ]
    return sorted(dict.fromkeys(folders), key=lambda one: filesystem(one) in IN_MEMORY)


def _with_room(places: list[str], needed: int, what: str, less: str) -> str:
    reasons = []
    for folder in places:
        if not os.path.isdir(folder):
            raise NotFoundError("there is no such folder for scratch files", path=folder)
        free = shutil.disk_usage(folder).free
        if free >= needed + SPARE:
            return folder
        reasons.append(f"{folder} has {free / 1e9:,.1f} GB free")
    raise OptionError(
        f"{what} up to {needed / 1e9:,.1f} GB of scratch space, and {', '.join(reasons)}: use {less}"
    )


def filesystem(path: str | Path, mounts: str | Path = "/proc/self/mounts") -> str:
    """Return the kind of the file system of a path; empty where unknown."""
    real = os.path.realpath(path)
    best, kind_found = "", ""
    with contextlib.suppress(OSError):
        for line in Path(mounts).read_text("utf-8", "replace").splitlines():
            _, mount, kind, *_ = line.split()
            # As the kernel writes spaces in names.
            mount = mount.replace("\\040", " ")
            inside = mount == "/" or real == mount or real.startswith(mount + "/")
            if inside and len(mount) >= len(best):
                best, kind_found = mount, kind
    return kind_found


def files_in(folder: Path) -> list[Path]:
    return [Path(top, name) for top, _, names in os.walk(folder) for name in names]


def cool(folder: Path) -> bool:
    """Let the system forget the files of a folder; whether it did. Nobody may have them mapped."""
    pages = resident = 0
    for path in files_in(folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            # Pages that wait to be written are not forgotten.
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            # The first files of a large folder tell enough.
            if pages < ASKED:
                states = in_memory(file)
                pages += len(states)
                resident += states.count(1)
    return resident <= pages // 10


def in_memory(file: io.FileIO) -> bytes:
    """For every page of a file 1 where it is in memory, else 0. Reading to find out would bring it there."""
    size = os.fstat(file.fileno()).st_size
    if not size:
        return b""
    states = (ctypes.c_ubyte * -(-size // mmap.PAGESIZE))()
    with mmap.mmap(
        file.fileno(), size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE
    ) as view:
        first = ctypes.c_char.from_buffer(view)
        answer = _mincore()(ctypes.byref(first), ctypes.c_size_t(size), states)
        # The view cannot be closed while something points into it.
        del first
    return bytes(state & 1 for state in states) if answer == 0 else b""


@functools.cache
def _mincore() -> Any:
    return ctypes.CDLL(None).mincore


def warm(folder: Path) -> None:
    """Read every file once."""
    piece = bytearray(PIECE)
    for path in files_in(folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            while file.readinto(piece):
                pass
