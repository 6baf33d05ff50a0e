"""The work folder: where what is written to URLs lies until it is there, and what killed writers left in it.

``BATCHPLANT_WORK`` names it, else it is ``~/.cache/batchplant/writes``. ``BATCHPLANT_WORK_BYTES`` bounds it;
without, a tenth of the disk stays free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import AccessError, BatchplantError, shown
from .commit import WRITABLE_BY_OTHERS, put_file
from .plans import stem_of
from .settings import StorageOptions, bytes_of, options_of, settings_for
from .urls import Url, is_remote, like, options_at

WORK = "BATCHPLANT_WORK"
WORK_BYTES = "BATCHPLANT_WORK_BYTES"
# In a hidden folder: what it is for.
NOTE = "target.json"
STATE = "state.json"
LOCK = "lock"
HIDDEN = re.compile(r"\..+\.partial", re.DOTALL)
FREE = 0.1
# However full the disk is, a writer may take so much.
UNCHECKED = 256 << 20
# The disk is looked at after so many bytes, and no more often than costs a twentieth of the time.
LOOK = 16 << 20
RARELY = 20
# How to reach a bucket; the other options are about caches. None of them is a secret.
WAYS = ("endpoint", "region", "anonymous", "profile")


def work_root() -> Path:
    given = os.environ.get(WORK)
    if given:
        return Path(given)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "batchplant", "writes")


def partial_folder(target: str, *, sharded: bool = False) -> Path:
    """Where a target is made until it is complete: beside it, or that of a URL in the work folder."""
    named = f"{target.rstrip('/') if is_remote(target) else target}{'.shards' if sharded else ''}"
    target = like(target, named)
    if not is_remote(target):
        path = Path(target)
        return path.with_name(f".{path.name}.partial")
    return _folder_for(Url(target, options_at(target)))


def _folder_for(url: Url) -> Path:
    where = settings_for(str(url), url.options).endpoint or ""
    name = hashlib.blake2b(f"{where}\0{url.rstrip('/')}".encode(), digest_size=16).hexdigest()
    return work_root() / f"{name}.partial"


def write_note(folder: Path, url: str) -> None:
    """Say in a hidden folder what it is for. A URL with a password, or an endpoint, is not kept whole."""
    ways = dataclasses.asdict(settings_for(str(url), options_at(url)))
    kept = {name: value for name, value in ways.items() if name in WAYS and value is not None}
    whole = shown(url) == url and "@" not in str(kept.get("endpoint", ""))
    put_file(
        folder / NOTE,
        json.dumps({"url": shown(url), "whole": whole, "options": kept if whole else {}}).encode(),
    )


class Room:
    """The disk that a work folder may take."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._grown, self._next = LOOK, 0.0
        self._total = 0

    def check(self, grown: int, url: str) -> None:
        """Called after ``grown`` bytes more; AccessError where there is no room for others."""
        self._grown += grown
        self._total += grown
        began = time.monotonic()
        if self._grown < LOOK or began < self._next:
            return
        self._grown = 0
        given = os.environ.get(WORK_BYTES)
        if given:
            most, used = bytes_of(WORK_BYTES, given), _size(self._folder)
            full = f"{used:,} of {most:,} bytes ({WORK_BYTES}) are used" if used > most else None
        else:
            disk = os.statvfs(self._folder)
            free = disk.f_bavail / max(disk.f_blocks, 1)
            low = free < FREE and self._total > UNCHECKED
            full = f"{free:.0%} of its disk are free, and {FREE:.0%} stay so" if low else None
        if full:
            raise AccessError(
                f"{self._folder.parent}, where it lies until it is sent, has no room: {full}; write shards "
                f"(shard_size, --shard-size), which are sent one by one, or name another folder ({WORK})",
                path=url,
            )
        self._next = time.monotonic() + RARELY * (time.monotonic() - began)


def _size(folder: Path) -> int:
    """The bytes of all files below."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # Others may be at it.
            with contextlib.suppress(OSError):
                inside = entry.is_dir(follow_symlinks=False)
                total += _size(Path(entry.path)) if inside else entry.stat(follow_symlinks=False).st_size
    return total


@dataclasses.dataclass(frozen=True)
class Leftover:
    """What a writer to a URL that is no more left behind; or one that runs (``busy``)."""

    url: str
    folder: Path
    size: int
    busy: bool
    resumable: bool
    options: StorageOptions | None

    @property
    def target(self) -> str | None:
        """The URL as it can be reached; None where that takes a password, which nobody noted down."""
        return None if self.options is None else Url(self.url, self.options)


def leftovers() -> list[Leftover]:
    """What lies in the work folder."""
    return list(_found())


def _found() -> Iterator[Leftover]:
    try:
        folders = sorted(one for one in work_root().iterdir() if ".partial" in one.name)
    except OSError:
        return
    for folder in folders:
        try:
            facts = os.lstat(folder)
        except OSError:
            continue
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            continue
        said: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads((folder / NOTE).read_bytes())
            said = found if isinstance(found, dict) else {}
        options = None
        # What another user may have put there is cleared away, and nothing of it is sent anywhere.
        trusted = not facts.st_mode & WRITABLE_BY_OTHERS
        if trusted and said.get("whole") is True and isinstance(said.get("options"), dict):
            with contextlib.suppress(BatchplantError):
                options = options_of(said["options"])
        url = said.get("url")
        yield Leftover(
            str(url) if isinstance(url, str) else "?",
            folder,
            _size(folder),
            is_busy(folder),
            (folder / STATE).is_file(),
            options if isinstance(url, str) and is_remote(url) else None,
        )


def is_busy(folder: Path) -> bool:
    """Whether a process works in a hidden folder."""
    with locked(folder) as ours:
        return not ours


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Whether nobody works in a hidden folder; nobody does within it then."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        ours = True
    except BlockingIOError:
        ours = False
    try:
        yield ours
    finally:
        os.close(fd)


def left_beside(paths: Iterable[str]) -> list[Path]:
    """Hidden folders of writers of these local files, or of their shards, in which nobody works any more."""
    files: dict[Path, list[str]] = {}
    for path in filter(lambda one: not is_remote(one), paths):
        files.setdefault(Path(path).absolute().parent, []).append(Path(path).name)
    found: list[Path] = []
    for folder, names in files.items():
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            hidden = [one.name for one in entries if HIDDEN.fullmatch(one.name) and one.is_dir()]
            exact = {f".{name}.partial" for name in names} if hidden else set()
            for one in sorted(hidden):
                stem = stem_of(one[1:].removesuffix(".partial"))
                shards = one.endswith(".shards.partial") and any(name.startswith(stem) for name in names)
                if (one in exact or shards) and not _is_locked(folder / one):
                    found.append(folder / one)
    return found


def _is_locked(folder: Path) -> bool:
    """Whether a process works in a hidden folder; looks only."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except OSError:
        return True
    finally:
        os.close(fd)


def drop(folder: Path) -> None:
    """Remove a hidden folder and all that is in it."""
    with contextlib.suppress(OSError):
        # A folder of which some is gone must not be gone on from.
        (folder / STATE).unlink(missing_ok=True)
        shutil.rmtree(folder)


def empty(folder: Path) -> None:
    """Remove all that is in a hidden folder, but for the lock and the note that says what it is for."""
    # Without it nobody goes on from what is left, however little of it this leaves.
    (folder / STATE).unlink(missing_ok=True)
    for entry in folder.iterdir():
        if entry.name not in (LOCK, NOTE):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
