"""Writing: :class:`Partial` is a hidden folder beside the target in which a writer works.

The target appears with all that belongs to it when it is complete, see :mod:`.commit`; a writer that is
killed leaves only the hidden folder, which a resumed writer continues from its last checkpoint and any other
writer clears away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..columns import as_bytes
from ..errors import BusyError, ExistsError, OptionError
from .commit import commit, is_decided, put_file, recover, sync
from .urls import is_remote

STATE = "state.json"
# That append to one target at a time.
MOST_WRITERS = 256


class Spool:
    """A file inside a Partial: grows at its end, or is written at an offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        # A link would lead out of the folder.
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        self.size = os.fstat(self._fd).st_size

    def write(self, data: Any) -> None:
        self.write_at(data, self.size)

    def write_at(self, data: Any, offset: int) -> None:
        view = as_bytes(data).data
        while view:
            done = os.pwrite(self._fd, view, offset)
            view, offset = view[done:], offset + done
            self.size = max(self.size, offset)

    def read_at(self, size: int, offset: int) -> bytes:
        return os.pread(self._fd, size, offset)

    def resize(self, size: int) -> None:
        os.ftruncate(self._fd, size)
        self.size = size

    def sync(self) -> None:
        os.fsync(self._fd)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def side_car(path: str | Path, template: str) -> Path:
    """The file beside another: the template ``{name}.crc`` or ``{stem}.idx`` filled in."""
    path = Path(path)
    return path.with_name(template.format(name=path.name, stem=path.stem))


def partial_folder(target: str, *, sharded: bool = False) -> Path:
    """Where a target is made until it is complete."""
    path = Path(f"{target}.shards" if sharded else target)
    return path.with_name(f".{path.name}.partial")


class Partial:
    """The hidden folder in which ``target`` is made, locked against a second writer.

    ``shared``: several processes may work at a time, each in a folder of its own; the target itself says
    whose work counts, and ``commit`` is not used.
    """

    def __init__(
        self, target: str, *, overwrite: bool = False, resume: bool = False, shared: bool = False
    ) -> None:
        if is_remote(target):
            raise OptionError("writing goes to local paths; copy the finished file there", path=target)
        self.target = Path(target)
        self.overwrite = overwrite
        self._resume = resume
        if not self.target.name:
            raise OptionError("the target needs a name", path=target)
        recover(self.target.parent)
        self.check_target()
        self.folder = partial_folder(target)
        self._spools: dict[str, Spool] = {}
        self._lock = -1
        if shared:
            self._take_any(resume)
        else:
            self._take_lock()
        self.state: dict[str, Any] | None = self._load() if resume else None
        # Whether there is a checkpoint to go on from.
        self.saved = self.state is not None
        if self.state is None:
            self._clear()

    def check_target(self) -> None:
        if os.path.lexists(self.target) and not self.overwrite:
            complete = " and is complete, there is nothing to resume" if self._resume else ""
            raise ExistsError(
                f"it exists{complete}; replace it with overwrite=True (--overwrite)", path=self.target
            )

    def _take_lock(self) -> None:
        lock = self.folder / "lock"
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        while self._lock < 0:
            self._make_folder()
            try:
                fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            # Another writer may have finished, and removed the folder.
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Or between open and flock.
                if lock.exists() and os.path.samestat(os.fstat(fd), lock.stat()):
                    self._lock = fd
            except BlockingIOError:
                raise BusyError("another process is writing it", path=self.target) from None
            finally:
                if self._lock < 0:
                    os.close(fd)

    def _make_folder(self) -> None:
        """The folder, made by us; one that is there may have come along in an archive."""
        try:
            os.mkdir(self.folder)
        except FileExistsError:
            found = os.lstat(self.folder)
            # Whoever owns the folder around it may do there what he likes.
            owners = os.geteuid(), os.stat(self.folder.parent).st_uid
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
                raise ExistsError(
                    f"{self.folder.name} beside it is no folder of yours; remove it first", path=self.target
                ) from None

    def _take_any(self, resume: bool) -> None:
        """Lock the first folder that nobody works in; to resume, one that has a checkpoint goes first."""
        first = self.folder
        folders = [
            first,
            *(first.with_name(f"{first.name}-{number}") for number in range(2, MOST_WRITERS + 1)),
        ]
        if resume:
            folders.sort(key=lambda folder: not (folder / "state.json").exists())
        for self.folder in folders:
            try:
                return self._take_lock()
            except BusyError:
                if self.folder == folders[-1]:
                    raise

    def _load(self) -> dict[str, Any] | None:
        try:
            state: dict[str, Any] = json.loads((self.folder / STATE).read_text())
            whole = all((self.folder / name).stat().st_size >= size for name, size in state["spools"].items())
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        # We make no links; what one leads to is not ours to write.
        return state if whole and not _has_links(self.folder) else None

    def _clear(self) -> None:
        # Without it nobody goes on from what is left, however little of it this leaves.
        (self.folder / STATE).unlink(missing_ok=True)
        for entry in self.folder.iterdir():
            if entry.name != "lock":
                shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()

    def spool(self, name: str) -> Spool:
        """Open a file in the folder; on a resume it is as long as at the last checkpoint."""
        if name not in self._spools:
            self._spools[name] = spool = Spool(self.folder / name)
            spool.resize(self.state["spools"].get(name, 0) if self.state else 0)
        return self._spools[name]

    def checkpoint(self, state: dict[str, Any]) -> None:
        """Remember that everything up to here is written."""
        state = {**state, "spools": {name: spool.size for name, spool in self._spools.items()}}
        put_file(self.folder / STATE, json.dumps(state).encode())
        self.saved = True

    def put(self, name: str, where: Path) -> None:
        """Give a spool a second name inside of the folder; a checkpoint goes on knowing the first."""
        self._spools[name].sync()
        where.unlink(missing_ok=True)
        try:
            os.link(self.folder / name, where)
        except OSError:
            shutil.copyfile(self.folder / name, where)

    def commit(
        self, name: str, beside: Iterable[tuple[str, str]] = (), side_cars: Iterable[str] = ()
    ) -> None:
        """Move the finished ``name`` to the target, and ``beside`` (name, template) next to it.

        ``side_cars``: templates of what belonged to an older target, and goes with it; see :func:`side_car`.
        """
        self.check_target()
        beside = [(spooled, side_car(self.target, template).name) for spooled, template in beside]
        new = {there for _, there in beside}
        old = [side_car(self.target, template) for template in side_cars]
        # A folder is nobody's side-car.
        gone = [one.name for one in old if one.name not in new and (one.is_symlink() or not one.is_dir())]
        self.commit_all([*beside, (name, self.target.name)], gone)

    def commit_all(self, moves: Iterable[tuple[str, str]], removes: Iterable[str]) -> None:
        """Move files and folders, (path inside, name), next to the folder, and remove others, at once."""
        moves = list(moves)
        for spool in self._spools.values():
            spool.sync()
            spool.close()
        made = [self.folder / inside for inside, _ in moves]
        if any(one.is_dir() for one in made):
            os.sync()
        else:
            for one in made:
                sync(one)
        try:
            commit(self.folder, moves, removes)
        except BaseException:
            if is_decided(self.folder):
                # Not ours any more: it belongs to whoever finishes it.
                self.suspend()
            raise
        self.discard()

    def settle(self, side_cars: Iterable[str] = ()) -> None:
        """The target is in place already: remove what belonged to its older state, and the folder."""
        for template in side_cars:
            side_car(self.target, template).unlink(missing_ok=True)
        self.discard()

    def suspend(self) -> None:
        """Stop here and keep the folder for a later resume."""
        for spool in self._spools.values():
            spool.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Remove the folder and all that is in it."""
        if self._lock >= 0:
            # A folder of which some is gone must not be gone on from.
            with contextlib.suppress(OSError):
                (self.folder / STATE).unlink(missing_ok=True)
                shutil.rmtree(self.folder)
        self.suspend()


def _has_links(folder: Path) -> bool:
    """Whether anything below is a symbolic link."""
    with os.scandir(folder) as entries:
        return any(
            entry.is_symlink() or (entry.is_dir() and _has_links(Path(entry.path))) for entry in entries
        )
