"""Writing: :class:`Partial` is a hidden folder in which a writer works, beside the target or, where that is a
URL, in the work folder (:mod:`.work`).

The target appears with all that belongs to it when it is complete, see :mod:`.commit` and :mod:`.targets`; a
writer that is killed leaves only the hidden folder, which a resumed writer continues from its last checkpoint
and any other writer clears away.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .. import _native
from ..errors import BatchplantError, BusyError, ExistsError, WriteError
from ..schema.columns import as_bytes
from .commit import WRITABLE_BY_OTHERS, put_file
from .patches import Patch
from .targets import LocalTarget, target_of
from .work import LOCK, STATE, drop, empty

# However short a file is, a read may take so much memory.
MIN_READ_BYTES = 16 << 20
# That append to one target at a time.
MOST_WRITERS = 256


# What the system says where a disk does not take what is written, and what to do about it.
FAILURES = {
    errno.ENOSPC: "the disk is full; make room",
    errno.EDQUOT: "the quota is used up; make room",
    errno.EFBIG: "a file cannot be that large here; write shards",
    errno.EROFS: "it lies on a file system that is read-only",
    errno.EACCES: "this user may not write there",
    errno.EPERM: "this user may not write there",
    errno.EIO: "the disk fails",
}


@contextlib.contextmanager
def write_errors(path: str, partial: Partial | None = None) -> Iterator[None]:
    """Within it, what a disk does not take is a WriteError that says what became of the target.

    This is where an OSError of a writer, or of a library that it writes with, becomes one of our own. It may
    be nested: the innermost speaks.
    """
    try:
        yield
    except BatchplantError:
        raise
    except OSError as error:
        reason = FAILURES.get(error.errno or 0)
        if reason is None:
            raise
        where = error.filename if isinstance(error.filename, str) and error.filename != path else None
        said = [f"{reason} ({error.strerror or error}{f': {where}' if where else ''})"]
        if partial is not None and partial.is_decided():
            said.append("the new dataset is complete, and gets its name when the folder is next opened")
        elif partial is not None and partial.exists():
            said.append("the old dataset is untouched")
        if partial is not None and partial.saved and not partial.is_decided():
            said.append("what was done is kept: resume=True (--resume) goes on from there")
        raise WriteError("; ".join(said), errno=error.errno, path=path) from error


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
        """Return up to ``size`` bytes; a size that is not true takes no more memory than the file has."""
        if offset < 0:
            raise ValueError(f"{self.path.name} has no byte {offset}")
        return os.pread(self._fd, min(size, max(self.size - offset, MIN_READ_BYTES)), offset)

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


class Partial:
    """The hidden folder in which ``target`` is made, locked against a second writer.

    ``shared``: several processes may work at a time, each in a folder of its own; the target itself says
    whose work counts, and ``commit`` is not used. ``crew``: several processes work in this one folder, on
    files that they do not share, until one of them takes the :meth:`lead` and commits. ``check``: raises an
    error where the target must not be written (default: where it exists, unless ``overwrite``).
    """

    def __init__(
        self,
        target: str,
        *,
        overwrite: bool = False,
        resume: bool = False,
        shared: bool = False,
        crew: bool = False,
        check: Callable[[], None] | None = None,
    ) -> None:
        self._target = target_of(target)
        self.path = self._target.path
        self.overwrite = overwrite
        self._resume = resume
        self._check = check or self.check_target
        self.state: dict[str, Any] | None = None
        # Whether there is a checkpoint to go on from.
        self.saved = False
        self._spools: dict[str, Spool] = {}
        self._lock = -1
        self.folder = self._target.folder
        self._target.begin(self._check)
        if shared:
            self._take_any(resume)
        else:
            self._take_lock(fcntl.LOCK_SH if crew else fcntl.LOCK_EX)
        try:
            self._refuse_foreign(crew)
            self._target.taken(self.folder)
            self._check()
            self.state = self._load() if resume else None
            self.saved = self.state is not None
            if self.state is None and not crew:
                empty(self.folder)
                self._target.discard()
        except BaseException:
            # What a resumed writer could go on from stays, and what is to be finished.
            kept = (self.folder / STATE).is_file() or self._target.is_decided(self.folder)
            self.suspend() if kept else self.discard()
            raise

    def check_target(self) -> None:
        if not self.overwrite and self._target.exists():
            complete = " and is complete, there is nothing to resume" if self._resume else ""
            raise ExistsError(
                f"it exists{complete}; replace it with overwrite=True (--overwrite)", path=self.path
            )

    def exists(self) -> bool:
        """Whether the target is there, as far as that can be found out."""
        with contextlib.suppress(OSError, BatchplantError):
            return self._target.exists()
        return False

    def is_decided(self) -> bool:
        """Whether a commit was begun that the next process finishes."""
        return self._target.is_decided(self.folder)

    def lead(self) -> bool:
        """Whether all others of the crew are gone: then nobody but this process works in the folder."""
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        # Another may have led, and finished, before.
        lock = self.folder / LOCK
        return lock.exists() and os.path.samestat(os.fstat(self._lock), lock.stat())

    def _take_lock(self, how: int = fcntl.LOCK_EX) -> None:
        lock = self.folder / LOCK
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        while self._lock < 0:
            self._make_folder()
            try:
                fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            # Another writer may have finished, and removed the folder.
            except FileNotFoundError:
                continue
            try:
                fcntl.flock(fd, how | fcntl.LOCK_NB)
                # Or between open and flock.
                if lock.exists() and os.path.samestat(os.fstat(fd), lock.stat()):
                    self._lock = fd
            except BlockingIOError:
                raise BusyError("another process is writing it", path=self.path) from None
            finally:
                if self._lock < 0:
                    os.close(fd)

    def _make_folder(self) -> None:
        """The folder, made by us; one that is there may have come along in an archive."""
        try:
            # Whatever the umask allows: a commit is finished only from a folder that others cannot write to.
            os.mkdir(self.folder, 0o755)
        except FileExistsError:
            found = os.lstat(self.folder)
            owners = {os.geteuid()}
            if isinstance(self._target, LocalTarget):
                # Whoever owns the folder around it can replace all that is in it anyway.
                owners.add(os.stat(self.folder.parent).st_uid)
            if not stat.S_ISDIR(found.st_mode) or found.st_uid not in owners:
                where = "beside it" if isinstance(self._target, LocalTarget) else f"in {self.folder.parent}"
                raise ExistsError(
                    f"{self.folder.name} {where} is no folder of yours; remove it first", path=self.path
                ) from None
            if found.st_uid == os.geteuid() and found.st_mode & WRITABLE_BY_OTHERS:
                with contextlib.suppress(OSError):
                    os.chmod(self.folder, stat.S_IMODE(found.st_mode) & ~WRITABLE_BY_OTHERS)

    def _refuse_foreign(self, crew: bool) -> None:
        """Clear a folder that holds links or files of another user: nothing in it is trusted."""
        if not _is_foreign(self.folder, os.lstat(self.folder).st_uid):
            return
        if crew:
            message = f"{self.folder.name} holds links, or files of another user; remove it first"
            raise ExistsError(message, path=self.path)
        empty(self.folder)

    def _take_any(self, resume: bool) -> None:
        """Lock the first folder that nobody works in; to resume, one that has a checkpoint goes first."""
        first = self.folder
        folders = [
            first,
            *(first.with_name(f"{first.name}-{number}") for number in range(2, MOST_WRITERS + 1)),
        ]
        if resume:
            folders.sort(key=lambda folder: not (folder / STATE).exists())
        for self.folder in folders:
            try:
                return self._take_lock()
            except BusyError:
                if self.folder == folders[-1]:
                    raise

    def _load(self) -> dict[str, Any] | None:
        saved = self.folder / STATE
        try:
            # Another machine may have begun what goes to a URL.
            text = saved.read_bytes() if saved.exists() else self._target.load()
            state = _unsealed(text or b"")
            whole = all(
                0 <= size <= (self.folder / name).stat().st_size for name, size in state["spools"].items()
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None
        return state if whole else None

    def spool(self, name: str) -> Spool:
        """Open a file in the folder; on a resume it is as long as at the last checkpoint."""
        if name not in self._spools:
            self._spools[name] = spool = Spool(self.folder / name)
            spool.resize(self.state["spools"].get(name, 0) if self.state else 0)
        return self._spools[name]

    def checkpoint(self, state: dict[str, Any], *, publish: bool = False) -> None:
        """Remember that everything up to here is written. ``publish``: other machines shall know it now."""
        state = {**state, "spools": {name: spool.size for name, spool in self._spools.items()}}
        put_file(self.folder / STATE, _sealed(state))
        self.saved = True
        self._target.save(self.folder / STATE, publish=publish)

    def check_room(self, grown: int) -> None:
        """Called after the folder grew by about so many bytes; AccessError where it must not grow further."""
        self._target.check_room(grown)

    def stage(self, names: Sequence[str]) -> None:
        """These files and folders in the folder are complete: what goes to a URL may go there already."""
        self._target.stage(self.folder, names)

    def has(self, name: str) -> bool:
        """Whether there is such a file or folder, staged or not."""
        return (self.folder / name).exists() or self._target.staged(name)

    def read(self, name: str) -> bytes | None:
        """A small file of the folder, staged or not; None where there is none."""
        with contextlib.suppress(OSError):
            return (self.folder / name).read_bytes()
        return self._target.read(name) if self._target.staged(name) else None

    @property
    def staging(self) -> str | None:
        """Where other machines can put what belongs to it, if that is not the folder."""
        return self._target.staging

    def refresh(self) -> None:
        """See what others have staged."""
        self._target.refresh()

    def settled(self) -> None:
        """Wait until all that was staged is there."""
        self._target.settled()

    def put(self, name: str, where: Path) -> None:
        """Give a spool a second name inside of the folder; a checkpoint goes on knowing the first."""
        self._spools[name].sync()
        where.unlink(missing_ok=True)
        try:
            os.link(self.folder / name, where)
        except OSError:
            shutil.copyfile(self.folder / name, where)

    def adopt(self, files: Iterable[tuple[str, str, int]]) -> None:
        """Take files that others made for the same target: (path or URL, path inside, size of a URL's).

        They stay where they are: until the commit, nothing is lost.
        """
        self._target.adopt(self.folder, files)

    def commit(
        self, name: str, beside: Iterable[tuple[str, str]] = (), side_cars: Iterable[str] = ()
    ) -> None:
        """Move the finished ``name`` to the target, and ``beside`` (name, template) next to it.

        ``side_cars``: templates of what belonged to an older target, and goes with it; see :func:`side_car`.
        """
        self.check_target()
        beside = [(spooled, self._beside(template)) for spooled, template in beside]
        new = {there for _, there in beside}
        gone = self._target.files({self._beside(template) for template in side_cars} - new)
        self.commit_all([*beside, (name, self._target.name)], gone, new)

    @property
    def name(self) -> str:
        """That of the target in its folder."""
        return self._target.name

    def _beside(self, template: str) -> str:
        return template.format(name=self._target.name, stem=Path(self._target.name).stem)

    def extend(
        self, patches: Iterable[Patch], moves: Iterable[tuple[str, str]], removes: Iterable[str] = ()
    ) -> None:
        """Write into files of a target that is there, move others (path inside, name) into it, remove some.

        Names are those beside the target; what lies in it is below its own.
        """
        self._close_spools()
        assert isinstance(self._target, LocalTarget)
        with self._leaving():
            self._target.extend(self.folder, list(patches), list(moves), list(removes))
        self.discard()

    def commit_all(
        self, moves: Iterable[tuple[str, str]], removes: Iterable[str], side_cars: Iterable[str] = ()
    ) -> None:
        """Move files and folders, (path inside, name), next to the target, and remove others, at once.

        ``side_cars``: the names that say something about others.
        """
        self._close_spools()
        with self._leaving():
            self._target.commit(self.folder, list(moves), list(removes), set(side_cars))
        self.discard()

    def _close_spools(self) -> None:
        for spool in self._spools.values():
            spool.sync()
            spool.close()

    @contextlib.contextmanager
    def _leaving(self) -> Iterator[None]:
        """A change that is decided and fails is not ours any more: it belongs to whoever finishes it."""
        try:
            yield
        except BaseException:
            if self._target.is_decided(self.folder):
                self.suspend()
            raise

    def settle(self, side_cars: Iterable[str] = ()) -> None:
        """The target is in place already: remove what belonged to its older state, and the folder."""
        self._target.remove([self._beside(template) for template in side_cars])
        self.discard()

    def suspend(self) -> None:
        """Stop here and keep the folder for a later resume."""
        self._target.stop()
        for spool in self._spools.values():
            spool.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def discard(self) -> None:
        """Remove the folder and all that is in it, and what was staged."""
        if self._lock >= 0:
            try:
                self._target.discard()
            except BatchplantError:
                # What is left on the server stays known by the folder.
                with contextlib.suppress(OSError):
                    empty(self.folder)
            else:
                drop(self.folder)
        self.suspend()


def _sealed(state: dict[str, Any]) -> bytes:
    """Encode a checkpoint: a line of JSON, and a line with its checksum."""
    text = json.dumps(state).encode()
    return b"%b\n%08x\n" % (text, _native.crc32c(text))


def _unsealed(data: bytes) -> dict[str, Any]:
    """Decode a checkpoint; ValueError where it is damaged."""
    text, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
    if int(checksum, 16) != _native.crc32c(text):
        raise ValueError("the checkpoint does not match its checksum")
    state: dict[str, Any] = json.loads(text)
    return state


def _is_foreign(folder: Path, owner: int) -> bool:
    """Whether anything below is a symbolic link, or belongs to anybody but the owner.

    We make no links, and what one leads to is not ours to write; nor is a hard link to a file of others.
    """
    try:
        with os.scandir(folder) as entries:
            return any(
                entry.is_symlink()
                or entry.stat(follow_symlinks=False).st_uid != owner
                or (entry.is_dir() and _is_foreign(Path(entry.path), owner))
                for entry in entries
            )
    # Others of a crew rename what they have finished.
    except FileNotFoundError:
        return False
