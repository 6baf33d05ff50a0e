"""Several renames as one: a dataset with its side-cars, or all of its shards, appears at once or not at all.

The renames out of a staging directory, and the removals, are written into the file ``.batchplant.commit`` of
the target's folder. Once that note is complete on the disk, the change is decided: if the process is killed
after that, the next process of the same user that opens or writes anything in the folder completes the change
(:func:`recover`). Before that, nothing has changed.

A note is an order to replace and remove files, so only the user who wrote it carries it out: the note, the
staging directory and all files in it that the note names must belong to the effective user, and no other user
may write to them. Any other note is ignored, with one warning. The note also has the inode of everything that
it names: a file that has taken the place of one of these since stays untouched.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
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
from typing import Any, NamedTuple

from ..errors import BatchplantError, BusyError, DamagedError, ExistsError
from .platform import descriptor_path, exchange, try_lock

NOTE_NAME = ".batchplant.commit"
MAX_NOTE_BYTES = 256 << 20
# Seconds to wait for a process that carries out its note; it only renames.
WAIT_SECONDS = 60.0
# Seconds to wait for a process of another user, which may hold its note for ever on purpose.
FOREIGN_WAIT_SECONDS = 1.0
POLL_SECONDS = 0.01
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
# More files than this are synced by one sync of everything.
MAX_SINGLE_SYNCS = 16


def commit(
    staging: Path,
    moves: Iterable[tuple[str, str]],
    removes: Iterable[str] = (),
    patches: Iterable[Patch] = (),
) -> None:
    """Move files out of the staging directory, ``moves`` (path inside, name), and remove ``removes``.

    They move to the parent folder. A file or folder of the same name is replaced. Before anything moves,
    ``patches`` are written into existing files. A name may be a path below the folder. All of it happens, or
    nothing, even if the process is killed. Folders that were replaced or removed lie in the staging directory
    afterwards.
    """
    folder = staging.parent
    moves = list(moves)
    removed = [name for name in removes if os.path.lexists(folder / name)]
    planned_patches = _plan_patches(staging, patches)
    for inside, name in moves:
        _check(staging / inside, folder / name)
    alone = len(moves) == 1 and not removed and not planned_patches and "/" not in moves[0][1]
    if alone and not _both_folders(staging / moves[0][0], folder / moves[0][1]):
        # A single rename is atomic by itself.
        os.replace(staging / moves[0][0], folder / moves[0][1])
        sync(folder)
        return
    plan = {
        "hidden": staging.name,
        "inode": os.lstat(staging).st_ino,
        "folder": os.stat(folder).st_ino,
        "moves": [[inside, name, os.lstat(staging / inside).st_ino] for inside, name in moves],
        "removes": removed,
        "patches": planned_patches,
        "old": {name: _inode(folder / name) for name in [*(name for _, name in moves), *removed]},
    }
    fd = _begin(folder)
    try:
        try:
            with _reserving(folder, planned_patches):
                _write(fd, json.dumps(plan).encode() + b"\n")
                sync(folder)
        except BaseException:
            # Not decided: the old state stays.
            try:
                os.ftruncate(fd, 0)
            finally:
                (folder / NOTE_NAME).unlink(missing_ok=True)
            raise
        try:
            _carry_out(folder, plan, staging)
        except BaseException as error:
            # The change is decided. Try once more; if that fails too, the next process completes it.
            _carry_out(folder, plan, staging)
            if not isinstance(error, OSError):
                raise
    finally:
        os.close(fd)


def is_decided(staging: Path) -> bool:
    """Return whether a decided change that takes files from this staging directory is unfinished."""
    fd = _open(os.fspath(staging.parent / NOTE_NAME))
    if fd is None:
        return False
    try:
        # The owner does not matter: keeping a staging directory needlessly does no harm.
        data = _read(fd)
        return data.endswith(b"\n") and bool(json.loads(data)["hidden"] == staging.name)
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return False
    finally:
        os.close(fd)


def recover(folder: str | Path, wait: float = WAIT_SECONDS) -> None:
    """Finish a change that a process of this user, which has ended, decided to make in this folder.

    Usually there is nothing to do. A note that another user wrote, or could have written, is ignored.
    ``wait``: seconds for a process that is about to do it; it only renames.
    """
    _recover(folder, wait)


def _recover(folder: str | Path, wait: float = WAIT_SECONDS) -> str | None:
    """Recover, and return why the note of this folder is ignored; None if there is no note any more."""
    path = os.path.join(os.fspath(folder) or ".", NOTE_NAME)
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
                with _pinned(folder) as pinned:
                    return _finish(pinned, fd, path)
            if give_up is None:
                give_up = time.monotonic() + wait + _patience(fd)
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
        time.sleep(POLL_SECONDS)


def _distrust(facts: os.stat_result, subject: str = "it") -> str | None:
    """Return why a note or staging directory may be another user's; None if it is certainly ours."""
    if facts.st_uid != os.geteuid():
        return f"{subject} belongs to the user {facts.st_uid}"
    if facts.st_mode & WRITABLE_BY_OTHERS:
        return f"other users may write to {subject}"
    # Another user can give a file of ours a second name.
    if stat.S_ISREG(facts.st_mode) and facts.st_nlink != 1:
        return f"{subject} is a hard link"
    return None


# Notes that were warned about: path, inode, and time of the last change.
_IGNORED: set[tuple[str, int, int]] = set()


def _ignore(fd: int, path: str, facts: os.stat_result, reason: str) -> str | None:
    """Skip a note that is not this user's: warn once, and give its writer a moment to finish."""
    note_id = os.path.abspath(path), facts.st_ino, facts.st_mtime_ns
    if note_id in _IGNORED:
        return reason
    give_up = time.monotonic() + FOREIGN_WAIT_SECONDS
    while time.monotonic() < give_up:
        try:
            if try_lock(fd, shared=True):
                break
        except OSError:
            break
        time.sleep(POLL_SECONDS)
    if not os.path.lexists(path):
        return None
    _IGNORED.add(note_id)
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
    """Give a path to this very folder until the end, even if another folder gets its name meanwhile."""
    fd = os.open(os.fspath(folder) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor_path(fd) or Path(folder)
    finally:
        os.close(fd)


def _patience(fd: int) -> float:
    """Return the seconds that the note's change may take beyond some renames."""
    try:
        return sum(int(patch["size"]) for patch in json.loads(_read(fd))["patches"]) / MIN_DISK_SPEED
    except (OSError, ValueError, LookupError, TypeError, RecursionError):
        return 0


def _read(fd: int) -> bytes:
    return os.pread(fd, min(os.fstat(fd).st_size, MAX_NOTE_BYTES), 0)


def _open(path: str) -> int | None:
    flags = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    for mode in (os.O_RDWR, os.O_RDONLY):
        try:
            return os.open(path, mode | flags)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EROFS, errno.EPERM) or mode == os.O_RDONLY:
                # Neither an unreadable folder nor a link is a note of ours.
                return None
    return None


def _locked(fd: int, path: str) -> bool:
    """Lock the note; return False if another process has the lock, or the note is gone."""
    try:
        return try_lock(fd) and os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def _begin(folder: Path) -> int:
    """Create the folder's note, empty, and locked by us; return its descriptor."""
    path = folder / NOTE_NAME
    while True:
        obstacle = _recover(folder)
        try:
            # Only its owner may write to it, regardless of the umask.
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            obstacle = obstacle or _obstacle(path)
            if obstacle is not None:
                message = (
                    f"it stands in the way of this write, for {obstacle}; remove it, or have its owner do so"
                )
                raise ExistsError(message, path=path) from None
            continue
        if _locked(fd, os.fspath(path)):
            return fd
        os.close(fd)


def _obstacle(path: Path) -> str | None:
    """Return why a file with the note's name is no note; None if another process of ours begins to commit."""
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
    """Carry out a note, or return the reason to ignore it; an incomplete note decides nothing."""
    facts = os.fstat(fd)
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MAX_NOTE_BYTES:
        raise DamagedError("it is no file of ours; remove it", path=path)
    data = _read(fd)
    try:
        plan = json.loads(data) if data.endswith(b"\n") else None
    except (ValueError, RecursionError):
        plan = None
    if plan is None:
        # Nothing was decided, so the note may stay if it cannot be removed.
        with contextlib.suppress(OSError):
            (folder / NOTE_NAME).unlink(missing_ok=True)
        return None
    if not _is_ours(folder, plan):
        raise DamagedError(
            "it is of an interrupted write that happened elsewhere: what lies here may be old and new mixed; "
            "write it anew and remove this file",
            path=path,
        )
    with _pinned(folder / plan["hidden"]) as staging:
        reason = _distrust_any(staging, plan)
        if reason is not None:
            return _ignore(fd, path, facts, reason)
        try:
            complete = _carry_out(folder, plan, staging, only_old=True)
        except BatchplantError as error:
            error.path = path
            raise
        with contextlib.suppress(OSError):
            for name in os.listdir(staging) if complete else ():
                is_folder = stat.S_ISDIR(os.lstat(staging / name).st_mode)
                shutil.rmtree(staging / name) if is_folder else os.unlink(staging / name)
            os.rmdir(folder / plan["hidden"])
    return None


def _is_ours(folder: Path, plan: Any) -> bool:
    """Return whether this machine wrote the note, here: an archive cannot know a folder's future inode."""
    try:
        patches = plan["patches"]
        paths = [
            path_or_name for inside_path, name, _ in plan["moves"] for path_or_name in (inside_path, name)
        ]
        paths += [patch[key] for patch in patches for key in ("inside", "name")]
        names = [plan["hidden"], *plan["removes"]]
        components = [component for path in paths for component in path.split("/")]
        plain = all(
            isinstance(part, str)
            and part not in ("", ".", "..", NOTE_NAME)
            and "/" not in part
            and "\0" not in part
            for part in [*names, *components]
        )
        for name in [*names, *components]:
            # Raises ValueError for a name that no file can have.
            os.fsencode(name)
        if not plain or not all(isinstance(number, int) for _, _, number in plan["moves"]):
            return False
        if not _are_sound(patches) or not isinstance(plan["old"], dict):
            return False
        if plan["folder"] != os.stat(folder).st_ino:
            return False
        staging = os.lstat(folder / plan["hidden"])
        return stat.S_ISDIR(staging.st_mode) and bool(staging.st_ino == plan["inode"])
    except (LookupError, TypeError, ValueError, AttributeError, OSError):
        return False


def _distrust_any(staging: Path, plan: dict[str, Any]) -> str | None:
    """Return why another user may have made the staging directory, or a file in it that the note names."""
    reason = _distrust(os.stat(staging), plan["hidden"])
    named: list[tuple[str, int | None]] = [(inside, inode) for inside, _, inode in plan["moves"]]
    named += [(patch["inside"], None) for patch in plan["patches"]]
    for inside, inode in named if reason is None else ():
        for path in [*reversed(Path(inside).parents[:-1]), Path(inside)]:
            with contextlib.suppress(FileNotFoundError, NotADirectoryError):
                facts = os.lstat(staging / path)
                # After the move, the file that it replaced may have its place.
                if path == Path(inside) and inode not in (None, facts.st_ino):
                    continue
                if stat.S_ISLNK(facts.st_mode) or facts.st_uid != os.geteuid():
                    return f"{plan['hidden']}/{path} is a link, or belongs to another user"
    return reason


def _carry_out(folder: Path, plan: dict[str, Any], staging: Path, *, only_old: bool = False) -> bool:
    """Do all that is still to do, however much was done before.

    ``only_old``: a file that has taken the place of an old one since stays. Return whether there was none.
    """
    old, complete = plan["old"], True

    def replaces(name: str) -> bool:
        nonlocal complete
        fits = not only_old or _inode(folder / name) in (None, old.get(name))
        complete = complete and fits
        return fits

    for patch in plan["patches"]:
        _write_patch(folder, staging, patch)
    for number, (inside, name, inode) in enumerate(plan["moves"]):
        staged = staging / inside
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(staged).st_ino == inode and replaces(name):
                _make_parents(folder, name)
                _replace(staged, folder / name, staging / f"replaced-{number}")
    below = {(folder / name).parent for _, name, _ in plan["moves"] if "/" in name}
    sync_all(below)
    for number, name in enumerate(plan["removes"]):
        target = folder / name
        with contextlib.suppress(FileNotFoundError):
            if not replaces(name):
                continue
            if stat.S_ISDIR(os.lstat(target).st_mode):
                os.rename(target, staging / f"removed-{number}")
            else:
                os.unlink(target)
    sync(folder)
    (folder / NOTE_NAME).unlink(missing_ok=True)
    return complete


def _inode(path: Path) -> int | None:
    """Return the inode of a name, be it a link; None if there is none."""
    try:
        return os.lstat(path).st_ino
    except (FileNotFoundError, NotADirectoryError):
        return None


def _replace(staged: Path, target: Path, aside: Path) -> None:
    if not _both_folders(staged, target):
        os.replace(staged, target)
    elif not exchange(staged, target):
        os.rename(target, aside)
        os.rename(staged, target)


def _both_folders(staged: Path, target: Path) -> bool:
    return staged.is_dir() and target.is_dir() and not target.is_symlink()


def _check(staged: Path, target: Path) -> None:
    """Check that a file replaces a file, and a folder a folder."""
    if not os.path.lexists(target):
        return
    if staged.is_dir() and not _both_folders(staged, target):
        raise ExistsError("it is no folder; remove it first", path=target)
    if not staged.is_dir() and target.is_dir() and not target.is_symlink():
        raise ExistsError("it is a folder; remove it first", path=target)


def put_file(path: str | Path, data: Any, size: int | None = None) -> None:
    """Write a file atomically. ``size``: zeros follow up to it."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    # Another user who may write to the folder could put a link there, but cannot guess this name.
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
    """:func:`sync` each path, or everything if there are many."""
    if len(paths) > MAX_SINGLE_SYNCS:
        os.sync()
        return
    for path in paths:
        sync(path)


def sync(path: Path) -> None:
    """Make a file, or the renames in a folder, durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


# -- bytes that are written into existing files ----------------------------------------------------------

COPY_BYTES = 8 << 20
FALLOC_FL_KEEP_SIZE = 1
# Bytes per second of the slowest disk that a reader waits for.
MIN_DISK_SPEED = 8 << 20


class Patch(NamedTuple):
    """A file of the staging directory whose bytes go into a file beside it, from byte ``at`` on.

    The plan of the change has the offset, so that a process that finishes it writes the same bytes at the
    same place, however much of that was done before.
    """

    inside: str
    name: str
    at: int


def _plan_patches(staging: Path, patches: Iterable[Patch]) -> list[dict[str, Any]]:
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


def _are_sound(patches: Any) -> bool:
    """Return whether patches of a plan have the right types."""
    numbers = ("at", "size", "inode", "before", "after")
    return all(all(type(patch[key]) is int and patch[key] >= 0 for key in numbers) for patch in patches)


@functools.cache
def _fallocate() -> Callable[..., int] | None:
    return getattr(ctypes.CDLL(None, use_errno=True), "fallocate64", None)


@contextlib.contextmanager
def _reserving(folder: Path, patches: list[dict[str, Any]]) -> Iterator[None]:
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


def _write_patch(folder: Path, staging: Path, patch: dict[str, Any]) -> None:
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


def _make_parents(folder: Path, name: str) -> None:
    """Create the parent folders of a name; no link may lead out of ours."""
    path = folder
    for part in name.split("/")[:-1]:
        path = path / part
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise BatchplantError("it is no folder, so nothing can be written below it", path=path)
