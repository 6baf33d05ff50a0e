"""Several renames as one: a dataset with its side-cars, or all of its shards, appears at once or not at all.

What is to move out of a hidden folder, and what has to go, is written into the file ``.batchplant.commit`` of
the target's folder. When it is complete on the disk, the change is decided: whoever is killed after that
leaves the rest of it to the next process of the same user that opens or writes anything in the folder
(:func:`recover`). Before that, nothing has changed.

A note is an order to replace and remove files, so only the user who wrote it carries it out: the note, the
hidden folder and all files in it that it names belong to the effective user, and nobody else may write to
them. Any other note is ignored, with one warning. The note also has the inode of everything that it names:
what has taken the place of one of these files since stays untouched.
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
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import BatchplantError, BusyError, DamagedError, ExistsError
from . import patches as patching
from .patches import Patch

NAME = ".batchplant.commit"
MOST_BYTES = 256 << 20
# Seconds to wait for a process that is at it; it only renames.
WAIT = 60.0
# Seconds to wait for a process of another user, which may hold its note for ever on purpose.
FOREIGN_WAIT = 1.0
POLL = 0.01
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
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
        "folder": os.stat(folder).st_ino,
        "moves": [[inside, name, os.lstat(hidden / inside).st_ino] for inside, name in moves],
        "removes": gone,
        "patches": grown,
        "old": {name: _inode(folder / name) for name in [*(name for _, name in moves), *gone]},
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
            _carry_out(folder, plan, hidden)
        except BaseException as error:
            # It is decided. Once more, and if that fails too, the next one who comes by will do it.
            _carry_out(folder, plan, hidden)
            if not isinstance(error, OSError):
                raise
    finally:
        os.close(fd)


def is_decided(hidden: Path) -> bool:
    """Whether a change that takes from this hidden folder is to be finished by whoever comes by."""
    fd = _open(os.fspath(hidden.parent / NAME))
    if fd is None:
        return False
    try:
        # Whoever owns it: what is kept in vain does no harm.
        data = _read(fd)
        return data.endswith(b"\n") and bool(json.loads(data)["hidden"] == hidden.name)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
    finally:
        os.close(fd)


def recover(folder: str | Path) -> None:
    """Finish what a process of this user that is no more has decided to do in this folder.

    Mostly there is nothing to do. A note that another user wrote, or could have written, is ignored.
    """
    _recover(folder)


def _recover(folder: str | Path) -> str | None:
    """Why the note of this folder is ignored; None where none is there any more."""
    path = os.path.join(os.fspath(folder) or ".", NAME)
    give_up = None
    while True:
        fd = _open(path)
        if fd is None:
            return None
        try:
            facts = os.fstat(fd)
            reason = _distrust(facts)
            if reason is not None:
                return _ignore(fd, path, facts, reason)
            if _locked(fd, path):
                with _pinned(folder) as here:
                    return _finish(here, fd, path)
            if give_up is None:
                give_up = time.monotonic() + WAIT + _patience(fd)
        except OSError as error:
            raise BatchplantError(
                "a write into this folder was interrupted, and cannot be finished now: "
                f"{error.strerror or error}",
                path=folder,
            ) from None
        finally:
            os.close(fd)
        if time.monotonic() > give_up:
            raise BusyError("another process is about to finish a write into this folder", path=folder)
        time.sleep(POLL)


def _distrust(facts: os.stat_result, what: str = "it") -> str | None:
    """Why another user may have made a note, or a hidden folder; None where only this user can have."""
    if facts.st_uid != os.geteuid():
        return f"{what} belongs to the user {facts.st_uid}"
    if facts.st_mode & WRITABLE_BY_OTHERS:
        return f"other users may write to {what}"
    # A name that another user gave to a file of ours.
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink != 1:
        return f"{what} is a hard link"
    return None


# Notes that a warning was given about: path, inode, and time of the last change.
_IGNORED: set[tuple[str, int, int]] = set()


def _ignore(fd: int, path: str, facts: os.stat_result, reason: str) -> str | None:
    """Pass over a note that is not this user's: warn once, and give its writer a moment to finish."""
    known = os.path.abspath(path), facts.st_ino, facts.st_mtime_ns
    if known in _IGNORED:
        return reason
    give_up = time.monotonic() + FOREIGN_WAIT
    while time.monotonic() < give_up:
        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            time.sleep(POLL)
        except OSError:
            break
    if not os.path.lexists(path):
        return None
    _IGNORED.add(known)
    ours = facts.st_uid == os.geteuid()
    advice = (
        "write them anew and remove it" if ours else "its owner finishes that write by opening one of them"
    )
    warnings.warn(
        f"{path} is ignored, for {reason}: a write was interrupted, so that files beside it may be "
        f"old and new mixed; {advice}",
        RuntimeWarning,
        stacklevel=5,
    )
    return reason


@contextlib.contextmanager
def _pinned(folder: str | Path) -> Iterator[Path]:
    """A path that leads to this very folder until the end, even if another is given its name meanwhile."""
    fd = os.open(os.fspath(folder) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        way = Path(f"/proc/self/fd/{fd}")
        yield way if way.exists() else Path(folder)
    finally:
        os.close(fd)


def _patience(fd: int) -> float:
    """Seconds that what the note says may take beyond some renames."""
    try:
        return patching.patience(json.loads(_read(fd))["patches"])
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def _read(fd: int) -> bytes:
    return os.pread(fd, min(os.fstat(fd).st_size, MOST_BYTES), 0)


def _open(path: str) -> int | None:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    for mode in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, mode | flags)
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
        reason = _recover(folder)
        try:
            # Only its owner may write to it, whatever the umask says.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            reason = reason or _obstacle(path)
            if reason is not None:
                message = (
                    f"it stands in the way of this write, for {reason}; remove it, or have its owner do so"
                )
                raise ExistsError(message, path=path) from None
            continue
        if _locked(fd, os.fspath(path)):
            return fd
        os.close(fd)


def _obstacle(path: Path) -> str | None:
    """Why something of a note's name is none; None where another process of ours is about to commit."""
    with contextlib.suppress(FileNotFoundError):
        facts = os.lstat(path)
        if not stat.S_ISREG(facts.st_mode):
            return "it is no file"
        return _distrust(facts) or (None if os.access(path, os.R_OK) else "it cannot be read")
    return None


def _write(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]
    os.fsync(fd)


def _finish(folder: Path, fd: int, path: str) -> str | None:
    """Do what the note says, or give the reason to ignore it; one that was not complete says nothing."""
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_BYTES:
        raise DamagedError("it is no file of ours; remove it", path=path)
    data = _read(fd)
    try:
        plan = json.loads(data) if data.endswith(b"\n") else None
    except (ValueError, RecursionError):
        plan = None
    if plan is None:
        # Nothing was decided, so that it may as well stay where it cannot be removed.
        with contextlib.suppress(OSError):
            (folder / NAME).unlink(missing_ok=True)
        return None
    if not _is_ours(folder, plan):
        raise DamagedError(
            "it is of an interrupted write that happened elsewhere: what lies here may be old and new mixed; "
            "write it anew and remove this file",
            path=path,
        )
    with _pinned(folder / plan["hidden"]) as hidden:
        reason = _distrust_any(hidden, plan)
        if reason is not None:
            return _ignore(fd, path, facts, reason)
        try:
            complete = _carry_out(folder, plan, hidden, only_old=True)
        except BatchplantError as error:
            error.path = path
            raise
        with contextlib.suppress(OSError):
            for name in os.listdir(hidden) if complete else ():
                _remove_all(hidden / name)
            os.rmdir(folder / plan["hidden"])
    return None


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
        for name in [*names, *inside]:
            # Raises ValueError for a name that no file can have.
            os.fsencode(name)
        if not plain or not all(isinstance(number, int) for _, _, number in plan["moves"]):
            return False
        if not patching.are_sound(patches) or not isinstance(plan.get("old", {}), dict):
            return False
        if plan.get("folder") not in (None, os.stat(folder).st_ino):
            return False
        hidden = os.lstat(folder / plan["hidden"])
        return stat.S_ISDIR(hidden.st_mode) and bool(hidden.st_ino == plan["inode"])
    except (LookupError, TypeError, ValueError, AttributeError, OSError):
        return False


def _distrust_any(hidden: Path, plan: dict[str, Any]) -> str | None:
    """Why another user may have made the hidden folder, or something in it that the note names."""
    reason = _distrust(os.stat(hidden), plan["hidden"])
    named: list[tuple[str, int | None]] = [(inside, inode) for inside, _, inode in plan["moves"]]
    named += [(one["inside"], None) for one in plan.get("patches", ())]
    for inside, inode in named if reason is None else ():
        for way in [*reversed(Path(inside).parents[:-1]), Path(inside)]:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                facts = os.lstat(hidden / way)
                # After it was moved, what it has replaced may have its place.
                if way == Path(inside) and inode not in (None, facts.st_ino):
                    continue
                if stat.S_ISLNK(facts.st_mode) or facts.st_uid != os.geteuid():
                    return f"{plan['hidden']}/{way} is a link, or belongs to another user"
    return reason


def _carry_out(folder: Path, plan: dict[str, Any], hidden: Path, *, only_old: bool = False) -> bool:
    """All that is still to do, however much was done before.

    ``only_old``: what has taken the place of an old file since stays. Whether nothing had.
    """
    # Older versions noted no inodes of what they replaced.
    old, complete = plan.get("old"), True

    def replaces(name: str) -> bool:
        nonlocal complete
        fits = not only_old or old is None or _inode(folder / name) in (None, old.get(name))
        complete = complete and fits
        return fits

    for one in plan.get("patches", ()):
        patching.carry_out(folder, hidden, one)
    for number, (inside, name, inode) in enumerate(plan["moves"]):
        made = hidden / inside
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(made).st_ino == inode and replaces(name):
                patching.check_way(folder, name)
                _replace(made, folder / name, hidden / f"replaced-{number}")
    below = {(folder / name).parent for _, name, _ in plan["moves"] if "/" in name}
    sync_all(below)
    for number, name in enumerate(plan["removes"]):
        there = folder / name
        with contextlib.suppress(FileNotFoundError):
            if not replaces(name):
                continue
            if stat.S_ISDIR(os.lstat(there).st_mode):
                os.rename(there, hidden / f"removed-{number}")
            else:
                os.unlink(there)
    sync(folder)
    (folder / NAME).unlink(missing_ok=True)
    return complete


def _inode(path: Path) -> int | None:
    """The inode of what has this name, be it a link; None where nothing has."""
    try:
        return os.lstat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def _remove_all(path: Path) -> None:
    """Remove a file, or a folder and all that is in it."""
    if stat.S_ISDIR(os.lstat(path).st_mode):
        shutil.rmtree(path)
    else:
        os.unlink(path)


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
