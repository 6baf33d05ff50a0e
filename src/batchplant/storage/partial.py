"""Writing: :class:`Partial` is the staging directory in which a writer works, beside the target or, for a
URL, in the work folder (:mod:`.work`).

The target appears with all that belongs to it when it is complete, see :mod:`.commit` and :mod:`.targets`. A
writer that is killed leaves only the staging directory, which a resumed writer continues from its last
checkpoint and any other writer clears.
"""

from __future__ import annotations

import contextlib
import errno
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
from .commit import WRITABLE_BY_OTHERS, Patch, put_file
from .platform import lock, try_lock
from .targets import LocalTarget, target_of
from .work import LOCK, STATE, TURN, drop, empty

# A read may allocate this much memory, however short the file is.
MIN_READ_BYTES = 16 << 20
# Number of writers that may append to one target at a time.
MAX_WRITERS = 256


# Error codes of a disk that does not take what is written, and what to do about them.
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
    """Within it, an OSError of the disk becomes a WriteError that says what became of the target.

    This is where an OSError of a writer, or of a library that it writes with, becomes one of our own. It may
    be nested: the innermost one gives the message.
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
        sentences = [f"{reason} ({error.strerror or error}{f': {where}' if where else ''})"]
        if partial is not None and partial.is_decided():
            sentences.append("the new dataset is complete, and gets its name when the folder is next opened")
        elif partial is not None and partial.exists():
            sentences.append("the old dataset is untouched")
        if partial is not None and partial.saved and not partial.is_decided():
            sentences.append("what was done is kept: resume=True (--resume) goes on from there")
        raise WriteError("; ".join(sentences), errno=error.errno, path=path) from error


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
        """Return up to ``size`` bytes; a false size allocates no more memory than the file has bytes."""
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
    """Return the path of a side-car: the template ``{name}.crc`` or ``{stem}.idx`` filled in."""
    path = Path(path)
    return path.with_name(template.format(name=path.name, stem=path.stem))


class Partial:
    """The staging directory in which ``target`` is written, locked against a second writer.

    ``shared``: several processes may work at a time, each in a folder of its own; the target itself says
    whose work counts, and ``commit`` is not used. ``crew``: several processes work in this one folder, on
    files that they do not share, until one of them takes the :meth:`lead` and commits. ``check``: raises an
    error if the target must not be written (default: if it exists, unless ``overwrite``).
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
        # Whether there is a checkpoint to resume from.
        self.saved = False
        self._spools: dict[str, Spool] = {}
        self._lock = -1
        self.folder = self._target.folder
        self._target.begin(self._check)
        if shared:
            self._take_any(resume)
        else:
            self._take_lock(shared=crew)
        try:
            # Nothing is trusted in a folder that holds links or files of another user.
            if _is_foreign(self.folder, os.lstat(self.folder).st_uid):
                if crew:
                    message = f"{self.folder.name} holds links, or files of another user; remove it first"
                    raise ExistsError(message, path=self.path)
                empty(self.folder)
            self._target.taken(self.folder)
            self._check()
            self.state = self._load() if resume else None
            self.saved = self.state is not None
            if self.state is None and not crew:
                empty(self.folder)
                self._target.discard()
        except BaseException:
            # Keep a folder that can be resumed from, or whose commit is to be finished.
            resumable = (self.folder / STATE).is_file() or self._target.is_decided(self.folder)
            self.suspend() if resumable else self.discard()
            raise

    def check_target(self) -> None:
        if not self.overwrite and self._target.exists():
            complete = " and is complete, there is nothing to resume" if self._resume else ""
            raise ExistsError(
                f"it exists{complete}; replace it with overwrite=True (--overwrite)", path=self.path
            )

    def exists(self) -> bool:
        """Return whether the target exists, as far as that can be found out."""
        with contextlib.suppress(OSError, BatchplantError):
            return self._target.exists()
        return False

    def is_decided(self) -> bool:
        """Return whether a commit was begun that the next process finishes."""
        return self._target.is_decided(self.folder)

    def lead(self) -> bool:
        """Return whether all other processes of the crew are gone: this one works alone in the folder."""
        if not try_lock(self._lock):
            return False
        # Another process may have led, and finished, before.
        path = self.folder / LOCK
        return path.exists() and os.path.samestat(os.fstat(self._lock), path.stat())

    def lead_or_leave(self) -> bool:
        """Return whether this process leads; otherwise leave the folder to those that still work in it.

        One process at a time asks: of two that finish together, each would find the other there, and neither
        would lead.
        """
        try:
            turn = os.open(self.folder / TURN, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        # Another process led, and finished.
        except FileNotFoundError:
            self.suspend()
            return False
        try:
            lock(turn)
            leads = self.lead()
            if not leads:
                self.suspend()
            return leads
        finally:
            os.close(turn)

    def _take_lock(self, *, shared: bool = False) -> None:
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
                if not try_lock(fd, shared=shared):
                    raise BusyError("another process is writing it", path=self.path)
                # Or between open and flock.
                if lock.exists() and os.path.samestat(os.fstat(fd), lock.stat()):
                    self._lock = fd
            finally:
                if self._lock < 0:
                    os.close(fd)

    def _make_folder(self) -> None:
        """Create the folder; an existing one may have come from an archive."""
        try:
            # Regardless of the umask: a commit is finished only from a folder that others cannot write to.
            os.mkdir(self.folder, 0o755)
        except FileExistsError:
            status = os.lstat(self.folder)
            owners = {os.geteuid()}
            if isinstance(self._target, LocalTarget):
                # The owner of the parent folder can replace all that is in it anyway.
                owners.add(os.stat(self.folder.parent).st_uid)
            if not stat.S_ISDIR(status.st_mode) or status.st_uid not in owners:
                where = "beside it" if isinstance(self._target, LocalTarget) else f"in {self.folder.parent}"
                raise ExistsError(
                    f"{self.folder.name} {where} is no folder of yours; remove it first", path=self.path
                ) from None
            if status.st_uid == os.geteuid() and status.st_mode & WRITABLE_BY_OTHERS:
                with contextlib.suppress(OSError):
                    os.chmod(self.folder, stat.S_IMODE(status.st_mode) & ~WRITABLE_BY_OTHERS)

    def _take_any(self, resume: bool) -> None:
        """Lock the first folder that no process works in; to resume, one with a checkpoint goes first."""
        first = self.folder
        folders = [
            first,
            *(first.with_name(f"{first.name}-{number}") for number in range(2, MAX_WRITERS + 1)),
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
            # Another machine may have begun to write to a URL.
            text = saved.read_bytes() if saved.exists() else self._target.load()
            state = _unsealed(text or b"")
            complete = all(
                0 <= size <= (self.folder / name).stat().st_size for name, size in state["spools"].items()
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
            return None
        return state if complete else None

    def spool(self, name: str) -> Spool:
        """Open a file in the folder; on a resume it is as long as at the last checkpoint."""
        if name not in self._spools:
            self._spools[name] = spool = Spool(self.folder / name)
            spool.resize(self.state["spools"].get(name, 0) if self.state else 0)
        return self._spools[name]

    def checkpoint(self, state: dict[str, Any], *, publish: bool = False) -> None:
        """Save that everything up to here is written. ``publish``: make it visible to other machines now."""
        state = {**state, "spools": {name: spool.size for name, spool in self._spools.items()}}
        text = json.dumps(state).encode()
        # A line of JSON, and a line with its checksum.
        put_file(self.folder / STATE, b"%b\n%08x\n" % (text, _native.crc32c(text)))
        self.saved = True
        self._target.save(self.folder / STATE, publish=publish)

    def check_room(self, grown: int) -> None:
        """Check, after the folder grew by about so many bytes, that it may grow further; else AccessError."""
        self._target.check_room(grown)

    def stage(self, names: Sequence[str]) -> None:
        """Declare these files and folders complete: for a URL they may be uploaded already."""
        self._target.stage(self.folder, names)

    def has(self, name: str) -> bool:
        """Return whether there is such a file or folder, staged or not."""
        return (self.folder / name).exists() or self._target.staged(name)

    def read(self, name: str) -> bytes | None:
        """Return a small file of the folder, staged or not; None if there is none."""
        with contextlib.suppress(OSError):
            return (self.folder / name).read_bytes()
        return self._target.read(name) if self._target.staged(name) else None

    @property
    def staging(self) -> str | None:
        """URL where other machines can put files that belong to it, if that is not the folder."""
        return self._target.staging

    def refresh(self) -> None:
        """Update what other machines have staged."""
        self._target.refresh()

    def settled(self) -> None:
        """Wait until all uploads are complete."""
        self._target.settled()

    def put(self, name: str, where: Path) -> None:
        """Give a spool a second name inside of the folder; a checkpoint still refers to the first."""
        self._spools[name].sync()
        where.unlink(missing_ok=True)
        try:
            os.link(self.folder / name, where)
        except OSError:
            shutil.copyfile(self.folder / name, where)

    def adopt(self, files: Iterable[tuple[str, str, int]]) -> None:
        """Take files that others wrote for the same target: (path or URL, path inside, size of a URL's).

        They stay where they are: until the commit, nothing is lost.
        """
        self._target.adopt(self.folder, files)

    def commit(
        self, name: str, beside: Iterable[tuple[str, str]] = (), side_cars: Iterable[str] = ()
    ) -> None:
        """Move the finished ``name`` to the target, and ``beside`` (name, template) next to it.

        ``side_cars``: templates of side-cars of an older target, which are removed; see :func:`side_car`.
        """
        self.check_target()
        beside = [(spooled, self._beside(template)) for spooled, template in beside]
        names = {target_name for _, target_name in beside}
        old_side_cars = self._target.files({self._beside(template) for template in side_cars} - names)
        self.commit_all([*beside, (name, self._target.name)], old_side_cars, names)

    @property
    def name(self) -> str:
        """Name of the target in its folder."""
        return self._target.name

    def _beside(self, template: str) -> str:
        return template.format(name=self._target.name, stem=Path(self._target.name).stem)

    def extend(
        self, file_patches: Iterable[Patch], moves: Iterable[tuple[str, str]], removes: Iterable[str] = ()
    ) -> None:
        """Write into files of an existing target, move others (path inside, name) into it, remove some.

        Names are relative to the folder of the target; files of a target folder are below its name.
        """
        self._close_spools()
        assert isinstance(self._target, LocalTarget)
        with self._leaving():
            self._target.extend(self.folder, list(file_patches), list(moves), list(removes))
        self.discard()

    def commit_all(
        self, moves: Iterable[tuple[str, str]], removes: Iterable[str], side_cars: Iterable[str] = ()
    ) -> None:
        """Move files and folders, (path inside, name), next to the target, and remove others, atomically.

        ``side_cars``: the names that are side-cars of others.
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
        """Keep the folder if a decided change fails: the process that finishes it needs it."""
        try:
            yield
        except BaseException:
            if self._target.is_decided(self.folder):
                self.suspend()
            raise

    def settle(self, side_cars: Iterable[str] = ()) -> None:
        """Clean up if the target is in place already: remove side-cars of its older state, and the folder."""
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
                # The folder keeps the note of what is left on the server.
                with contextlib.suppress(OSError):
                    empty(self.folder)
            else:
                drop(self.folder)
        self.suspend()


def _unsealed(data: bytes) -> dict[str, Any]:
    """Decode a checkpoint; ValueError where it is damaged."""
    text, _, checksum = data.removesuffix(b"\n").rpartition(b"\n")
    if int(checksum, 16) != _native.crc32c(text):
        raise ValueError("the checkpoint does not match its checksum")
    return json.loads(text)


def _is_foreign(folder: Path, owner: int) -> bool:
    """Return whether anything below is a symbolic link, or does not belong to the owner.

    We create no links, and the target of a link is not ours to write; nor is a hard link to a file of others.
    """
    try:
        with os.scandir(folder) as entries:
            return any(
                entry.is_symlink()
                or entry.stat(follow_symlinks=False).st_uid != owner
                or (entry.is_dir() and _is_foreign(Path(entry.path), owner))
                for entry in entries
            )
    # Other processes of a crew rename what they have finished.
    except FileNotFoundError:
        return False
