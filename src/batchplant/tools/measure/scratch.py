"""A scratch folder where there is room; files in and out of the page cache."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ...errors import NotFoundError, OptionError
from ...storage.platform import filesystem, forget_pages, resident_pages

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
    return sorted(dict.fromkeys(folders), key=lambda candidate: filesystem(candidate) in IN_MEMORY)


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


def files_in(folder: Path) -> list[Path]:
    return [Path(top, name) for top, _, names in os.walk(folder) for name in names]


def cool(folder: Path) -> bool:
    """Let the system forget the files of a folder; whether it did. Nobody may have them mapped."""
    pages = resident = 0
    for path in files_in(folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            # Pages that wait to be written are not forgotten.
            getattr(os, "fdatasync", os.fsync)(file.fileno())
            forget_pages(file.fileno())
            # The first files of a large folder tell enough.
            if pages < ASKED:
                states = resident_pages(file.fileno())
                pages += len(states)
                resident += states.count(1)
    return resident <= pages // 10


def warm(folder: Path) -> None:
    """Read every file once."""
    piece = bytearray(PIECE)
    for path in files_in(folder):
        with contextlib.suppress(FileNotFoundError), open(path, "rb", buffering=0) as file:
            while file.readinto(piece):
                pass
