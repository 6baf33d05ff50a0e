"""The work folder: staging directories of writes to URLs, and what killed writers left in it.

``BATCHPLANT_WORK`` names it, else it is ``~/.cache/batchplant/writes``. ``BATCHPLANT_WORK_BYTES`` bounds it;
without, a tenth of the disk stays free.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import itertools
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
from .platform import try_lock
from .settings import StorageOptions, bytes_of, options_of, settings_for
from .urls import Url, is_remote, like, options_at

WORK = "BATCHPLANT_WORK"
WORK_BYTES = "BATCHPLANT_WORK_BYTES"
# In a staging directory: a note on its target.
NOTE = "target.json"
STATE = "state.json"
LOCK = "lock"
# The lock of the process that looks whether it is the last one in the folder.
TURN = "turn"
STAGING_NAME = re.compile(r"\..+\.partial", re.DOTALL)
# Options to reach a bucket; the other options are about caches. None of them is a secret.
REACH_OPTIONS = ("endpoint", "region", "anonymous", "profile")


def work_root() -> Path:
    path = os.environ.get(WORK)
    if path:
        return Path(path)
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(cache, "batchplant", "writes")


def partial_folder(target: str, *, sharded: bool = False) -> Path:
    """Return the staging directory of a target: beside it, or for a URL in the work folder."""
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
    """Write the target into a staging directory. A URL or endpoint with a password is not written."""
    settings = dataclasses.asdict(settings_for(str(url), options_at(url)))
    reach_options = {
        name: value for name, value in settings.items() if name in REACH_OPTIONS and value is not None
    }
    complete = shown(url) == url and "@" not in str(reach_options.get("endpoint", ""))
    put_file(
        folder / NOTE,
        json.dumps(
            {"url": shown(url), "whole": complete, "options": reach_options if complete else {}}
        ).encode(),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkTuning:
    """Numbers of a :class:`WorkSpace`."""

    min_free_share: float = 0.1
    # A writer may take this much, however full the disk is.
    unchecked_bytes: int = 256 << 20
    # The disk is checked after so many bytes, and no more often than costs a twentieth of the time.
    check_interval_bytes: int = 16 << 20
    min_check_interval_factor: float = 20


class WorkSpace:
    """The disk space that a work folder may take."""

    def __init__(self, folder: Path, tuning: WorkTuning | None = None) -> None:
        self._folder, self._tuning = folder, tuning or WorkTuning()
        self._grown, self._next = self._tuning.check_interval_bytes, 0.0
        self._total = 0

    def check(self, grown: int, url: str) -> None:
        """Check, after ``grown`` more bytes, that there is space for others; else AccessError."""
        tuning = self._tuning
        self._grown += grown
        self._total += grown
        began = time.monotonic()
        if self._grown < tuning.check_interval_bytes or began < self._next:
            return
        self._grown = 0
        setting = os.environ.get(WORK_BYTES)
        if setting:
            limit, used = bytes_of(WORK_BYTES, setting), _size(self._folder)
            full = f"{used:,} of {limit:,} bytes ({WORK_BYTES}) are used" if used > limit else None
        else:
            disk = os.statvfs(self._folder)
            free = disk.f_bavail / max(disk.f_blocks, 1)
            low = free < tuning.min_free_share and self._total > tuning.unchecked_bytes
            full = (
                f"{free:.0%} of its disk are free, and {tuning.min_free_share:.0%} stay so" if low else None
            )
        if full:
            raise AccessError(
                f"{self._folder.parent}, where it lies until it is sent, has no room: {full}; write shards "
                f"(shard_size, --shard-size), which are sent one by one, or name another folder ({WORK})",
                path=url,
            )
        self._next = time.monotonic() + tuning.min_check_interval_factor * (time.monotonic() - began)


def _size(folder: Path) -> int:
    """Return the bytes of all files below."""
    total = 0
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            # Another process may remove files meanwhile.
            with contextlib.suppress(OSError):
                inside = entry.is_dir(follow_symlinks=False)
                total += _size(Path(entry.path)) if inside else entry.stat(follow_symlinks=False).st_size
    return total


@dataclasses.dataclass(frozen=True)
class Leftover:
    """A staging directory of a writer to a URL that has ended, or that runs (``busy``)."""

    url: str
    folder: Path
    size: int
    busy: bool
    resumable: bool
    options: StorageOptions | None

    @property
    def target(self) -> str | None:
        """The URL as it can be reached; None if that takes a password, which is not stored."""
        return None if self.options is None else Url(self.url, self.options)


def leftovers() -> list[Leftover]:
    """Return the staging directories in the work folder."""
    folders: list[Path] = []
    with contextlib.suppress(OSError):
        folders = sorted(entry for entry in work_root().iterdir() if ".partial" in entry.name)
    results: list[Leftover] = []
    for folder in folders:
        try:
            facts = os.lstat(folder)
        except OSError:
            continue
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != os.geteuid():
            continue
        note: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError, RecursionError):
            content = json.loads((folder / NOTE).read_bytes())
            note = content if isinstance(content, dict) else {}
        options = None
        # A folder that another user may have written to is cleared, and nothing of it is sent anywhere.
        trusted = not facts.st_mode & WRITABLE_BY_OTHERS
        if trusted and note.get("whole") is True and isinstance(note.get("options"), dict):
            with contextlib.suppress(BatchplantError):
                options = options_of(note["options"])
        url = note.get("url")
        results.append(
            Leftover(
                str(url) if isinstance(url, str) else "?",
                folder,
                _size(folder),
                is_busy(folder),
                (folder / STATE).is_file(),
                options if isinstance(url, str) and is_remote(url) else None,
            )
        )
    return results


def is_busy(folder: Path) -> bool:
    """Return whether a process works in a staging directory."""
    with locked(folder) as ours:
        return not ours


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[bool]:
    """Give whether no process works in a staging directory; none does within it then."""
    try:
        fd = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    except OSError:
        yield False
        return
    try:
        yield try_lock(fd)
    finally:
        os.close(fd)


def left_beside(paths: Iterable[str]) -> list[Path]:
    """Return abandoned staging directories of writers of these local files, or of their shards."""
    files: dict[Path, list[str]] = {}
    for path in itertools.filterfalse(is_remote, paths):
        files.setdefault(Path(path).absolute().parent, []).append(Path(path).name)
    abandoned: list[Path] = []
    for folder, names in files.items():
        with contextlib.suppress(OSError), os.scandir(folder) as entries:
            staging_names = [
                entry.name for entry in entries if STAGING_NAME.fullmatch(entry.name) and entry.is_dir()
            ]
            exact = {f".{name}.partial" for name in names} if staging_names else set()
            for name in sorted(staging_names):
                stem = stem_of(name[1:].removesuffix(".partial"))
                shards = name.endswith(".shards.partial") and any(
                    file_name.startswith(stem) for file_name in names
                )
                if (name in exact or shards) and not _is_locked(folder / name):
                    abandoned.append(folder / name)
    return abandoned


def _is_locked(folder: Path) -> bool:
    """Return whether a process works in a staging directory, without changing anything."""
    try:
        fd = os.open(folder / LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return not try_lock(fd, shared=True)
    except OSError:
        return True
    finally:
        os.close(fd)


def drop(folder: Path) -> None:
    """Remove a staging directory and all that is in it."""
    with contextlib.suppress(OSError):
        # A partly removed folder must not be resumed from.
        (folder / STATE).unlink(missing_ok=True)
        shutil.rmtree(folder)


def empty(folder: Path) -> None:
    """Remove the content of a staging directory, but for the lock and the note of its target."""
    # Without the state no writer resumes from the rest, however little of it this leaves.
    (folder / STATE).unlink(missing_ok=True)
    for entry in folder.iterdir():
        if entry.name not in (LOCK, NOTE):
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def stem_of(target: str) -> str:
    """Return the common prefix of the names of a target, of its shards (``NAME.shards``) and side-cars."""
    # A suffix may have several dots, and a hidden name begins with one.
    return target[:1] + target[1:].partition(".")[0].partition("%")[0] if target[:1] != "%" else ""
