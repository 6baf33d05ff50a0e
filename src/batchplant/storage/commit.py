"""Several renames as one: a dataset with its side-cars, or all of its shards, appears at once or not at all.

What is to move out of a hidden folder, and what has to go, is written into the file ``.batchplant.commit`` of
the target's folder. When it is complete on the disk, the change is decided: whoever is killed after that
leaves the rest of it to the next one who opens or writes anything in the folder (:func:`recover`). Before
that, nothing has changed.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import json
import os
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from ..errors import BatchplantError, BusyError, DamagedError, ExistsError
from . import patches as patching
from .patches import Patch

NAME = ".batchplant.commit"
MOST_BYTES = 256 << 20
# Seconds to wait for a process that is at it; it only renames.
WAIT = 60.0
POLL = 0.01
# More than so many files are synced together with all others.
MANY = 16

RENAME_EXCHANGE = 2
AT_FDCWD = -100


def commit(
    hidden: Path,
    moves: Iterable[tuple[str, str]],
    removes: Iterable[str] = (),
    patches: Iterable[Patch] = (),
) -> None:
    """Move what lies in the hidden folder beside it, ``moves`` (path inside, name), and remove ``removes``.

    A file or folder of the same name is replaced. Before anything moves, ``patches`` are written into files
    that are there. A name may be a path below the folder. All of it happens, or nothing, whoever is killed
    when. What has been replaced or removed and is a folder lies in the hidden folder afterwards.
    """
    folder = hidden.parent
    moves = list(moves)
    gone = [name for name in removes if os.path.lexists(folder / name)]
    grown = patching.planned(hidden, patches)
    for inside, name in moves:
        _check(hidden / inside, folder / name)
    alone = len(moves) == 1 and not gone and not grown and "/" not in moves[0][1]
    if alone and not _both_folders(hidden / moves[0][0], folder / moves[0][1]):
        # One rename is a change of its own.
        os.replace(hidden / moves[0][0], folder / moves[0][1])
        sync(folder)
        return
    plan = {
        "hidden": hidden.name,
        "inode": os.lstat(hidden).st_ino,
        "moves": [[inside, name, os.lstat(hidden / inside).st_ino] for inside, name in moves],
        "removes": gone,
        "patches": grown,
    }
    fd = _begin(folder)
    try:
        try:
            with patching.reserving(folder, grown):
                _write(fd, json.dumps(plan).encode() + b"\n")
                sync(folder)
        except BaseException:
            # Not decided: the old stays.
            try:
                os.ftruncate(fd, 0)
            finally:
                (folder / NAME).unlink(missing_ok=True)
            raise
        try:
            _carry_out(folder, plan)
        except BaseException as error:
            # It is decided. Once more, and if that fails too, the next one who comes by will do it.
            _carry_out(folder, plan)
            if not isinstance(error, OSError):
                raise
    finally:
        os.close(fd)


def is_decided(hidden: Path) -> bool:
    """Whether a change that takes from this hidden folder is to be finished by whoever comes by."""
    try:
        data = (hidden.parent / NAME).read_bytes()
        return data.endswith(b"\n") and bool(json.loads(data)["hidden"] == hidden.name)
    except (OSError, ValueError, LookupError, TypeError):
        return False


def recover(folder: str | Path) -> None:
    """Finish what a process that is no more has decided to do in this folder; mostly there is nothing."""
    path = os.path.join(os.fspath(folder) or ".", NAME)
    give_up = None
    while True:
        fd = _open(path)
        if fd is None:
            return
        try:
            if _locked(fd, path):
                _finish(Path(path).parent, fd)
                return
        except OSError as error:
            raise BatchplantError(
                f"a write into this folder was interrupted, and cannot be finished now: {error}", path=folder
            ) from None
        finally:
            os.close(fd)
        give_up = give_up or time.monotonic() + WAIT + _patience(path)
        if time.monotonic() > give_up:
            raise BusyError("another process is about to finish a write into this folder", path=folder)
        time.sleep(POLL)


def _patience(path: str) -> float:
    """Seconds that what the file says may take beyond some renames."""
    try:
        return patching.patience(json.loads(Path(path).read_bytes())["patches"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def _open(path: str) -> int | None:
    for mode in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, mode | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM) or mode == os.O_RDONLY:
                # Neither a folder that may not be looked into nor a link is a change of ours.
                return None
    return None


def _locked(fd: int, path: str) -> bool:
    """Whether nobody else is at it, and it is still there."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except (BlockingIOError, FileNotFoundError):
        return False


def _begin(folder: Path) -> int:
    """The file of the folder's change, empty, and locked by us."""
    path = folder / NAME
    while True:
        recover(folder)
        with contextlib.suppress(FileExistsError):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            if _locked(fd, os.fspath(path)):
                return fd
            os.close(fd)


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.fsync(fd)


def _finish(folder: Path, fd: int) -> None:
    """Do what the file says; one that was not complete says nothing."""
    found = os.fstat(fd)
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        raise DamagedError("it is no file of ours; remove it", path=folder / NAME)
    data = os.pread(fd, found.st_size, 0)
    try:
        plan = json.loads(data) if data.endswith(b"\n") else None
    except (ValueError, RecursionError):
        plan = None
    if plan is None:
        (folder / NAME).unlink(missing_ok=True)
        return
    if not _is_ours(folder, plan):
        raise DamagedError(
            "it is of an interrupted write that happened elsewhere: what lies here may be old and new mixed; "
            "write it anew and remove this file",
            path=folder / NAME,
        )
    _carry_out(folder, plan)
    with contextlib.suppress(OSError):
        shutil.rmtree(folder / plan["hidden"])


def _is_ours(folder: Path, plan: Any) -> bool:
    """Whether this machine wrote it, here: an archive cannot know the number that a folder will get."""
    try:
        patches = plan.get("patches", [])
        ways = [way for path, name, _ in plan["moves"] for way in (path, name)]
        ways += [one[key] for one in patches for key in ("inside", "name")]
        names = [plan["hidden"], *plan["removes"]]
        inside = [part for way in ways for part in way.split("/")]
        plain = all(
            isinstance(one, str) and one not in ("", ".", "..", NAME) and "/" not in one and "\0" not in one
            for one in [*names, *inside]
        )
        if not plain or not all(isinstance(number, int) for _, _, number in plan["moves"]):
            return False
        if not patching.are_sound(patches):
            return False
        found = os.lstat(folder / plan["hidden"])
    except (LookupError, TypeError, ValueError, AttributeError, OSError):
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_ino == plan["inode"]


def _carry_out(folder: Path, plan: dict[str, Any]) -> None:
    """All that is still to do, however much was done before."""
    hidden = folder / plan["hidden"]
    for one in plan.get("patches", ()):
        patching.carry_out(folder, hidden, one)
    for number, (inside, name, inode) in enumerate(plan["moves"]):
        made = hidden / inside
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(made).st_ino == inode:
                patching.check_way(folder, name)
                _replace(made, folder / name, hidden / f"replaced-{number}")
    below = {(folder / name).parent for _, name, _ in plan["moves"] if "/" in name}
    sync_all(below)
    for number, name in enumerate(plan["removes"]):
        old = folder / name
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISDIR(os.lstat(old).st_mode):
                os.rename(old, hidden / f"removed-{number}")
            else:
                os.unlink(old)
    sync(folder)
    (folder / NAME).unlink(missing_ok=True)


def _replace(made: Path, there: Path, aside: Path) -> None:
    if not _both_folders(made, there):
        os.replace(made, there)
    elif not _exchange(made, there):
        os.rename(there, aside)
        os.rename(made, there)


def _both_folders(made: Path, there: Path) -> bool:
    return made.is_dir() and there.is_dir() and not there.is_symlink()


def _check(made: Path, there: Path) -> None:
    """A file replaces a file, and a folder a folder."""
    if not os.path.lexists(there):
        return
    if made.is_dir() and not _both_folders(made, there):
        raise ExistsError("it is no folder; remove it first", path=there)
    if not made.is_dir() and there.is_dir() and not there.is_symlink():
        raise ExistsError("it is a folder; remove it first", path=there)


@functools.cache
def _renameat2() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two folders in one step; False where the system cannot."""
    rename = _renameat2()
    if rename is None:
        return False
    paths = os.fsencode(one), os.fsencode(other)
    if rename(AT_FDCWD, paths[0], AT_FDCWD, paths[1], RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), str(other))


def put_file(path: str | Path, data: Any, size: int | None = None) -> None:
    """Write a file: the old one is there or the new one, never a part. ``size``: zeros follow up to it."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # Whoever may write to the folder could have put a link there, but does not know this name.
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            view = memoryview(data).cast("B")
            while view:
                view = view[os.write(fd, view) :]
            if size is not None and size > os.fstat(fd).st_size:
                os.ftruncate(fd, size)
        finally:
            os.close(fd)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise


def sync_all(paths: Collection[Path]) -> None:
    """:func:`sync` of each, or of everything where they are many."""
    if len(paths) > MANY:
        os.sync()
        return
    for path in paths:
        sync(path)


def sync(path: Path) -> None:
    """Make a file, or the renames in a folder, last through a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
