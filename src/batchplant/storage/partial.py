"""Writing: :class:`Partial` is a hidden folder beside the target in which a writer works.

The target appears by one rename when it is complete; a writer that is killed leaves only the hidden folder,
which a resumed writer continues from its last checkpoint and any other writer clears away.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..columns import as_bytes
from ..errors import BusyError, ExistsError, OptionError
from .source import is_remote

# That append to one target at a time.
MOST_WRITERS = 256


class Spool:
    """A file inside a Partial: grows at its end, or is written at an offset."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
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
        if not self.target.name:
            raise OptionError("the target needs a name", path=target)
        self.check_target()
        self.folder = partial_folder(target)
        self._spools: dict[str, Spool] = {}
        self._lock = -1
        if shared:
            self._take_any(resume)
        else:
            self._take_lock()
        self.state: dict[str, Any] | None = self._load() if resume else None
        if self.state is None:
            self._clear()

    def check_target(self) -> None:
        if os.path.lexists(self.target) and not self.overwrite:
            raise ExistsError("it exists; replace it with overwrite=True (--overwrite)", path=self.target)

    def _take_lock(self) -> None:
        lock = self.folder / "lock"
        while self._lock < 0:
            self.folder.mkdir(parents=True, exist_ok=True)
            fd = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Another writer may have finished, and removed the folder, between open and flock.
                if lock.exists() and os.path.samestat(os.fstat(fd), lock.stat()):
                    self._lock = fd
            except BlockingIOError:
                raise BusyError("another process is writing it", path=self.target) from None
            finally:
                if self._lock < 0:
                    os.close(fd)

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
            state: dict[str, Any] = json.loads((self.folder / "state.json").read_text())
            whole = all((self.folder / name).stat().st_size >= size for name, size in state["spools"].items())
        # A writer that was killed while it finished may have moved a spool away.
        except (OSError, ValueError, LookupError, TypeError, AttributeError):
            return None
        return state if whole else None

    def _clear(self) -> None:
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
        draft = self.folder / "state.json.draft"
        draft.write_text(json.dumps(state))
        os.replace(draft, self.folder / "state.json")

    def commit(
        self, name: str, beside: Iterable[tuple[str, str]] = (), side_cars: Iterable[str] = ()
    ) -> None:
        """Move the finished ``name`` to the target, and ``beside`` (name, template) next to it.

        ``side_cars``: templates of what belonged to an older target, and goes with it; see :func:`side_car`.
        """
        self.check_target()
        for spool in self._spools.values():
            spool.sync()
            spool.close()
        made = self.folder / name
        if made.is_dir():
            os.sync()
            if self.target.is_dir() and not self.target.is_symlink():
                os.replace(self.target, self.folder / "replaced")
            elif os.path.lexists(self.target):
                raise ExistsError("it is no folder; remove it first", path=self.target)
        elif self.target.is_dir():
            raise ExistsError("it is a folder; remove it first", path=self.target)
        else:
            sync(made)
        # Never an old side-car beside a new target, whenever the power goes.
        for template in side_cars:
            side_car(self.target, template).unlink(missing_ok=True)
        os.replace(made, self.target)
        for spooled, template in beside:
            os.replace(self.folder / spooled, side_car(self.target, template))
        sync(self.target.parent)
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
            shutil.rmtree(self.folder, ignore_errors=True)
        self.suspend()


def sync(path: Path) -> None:
    """Make a file, or the renames in a folder, last through a power cut."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
