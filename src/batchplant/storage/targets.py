"""Targets of writers: :class:`LocalTarget`, a path on a disk, and :class:`RemoteTarget`, a URL.

A server renames nothing, and changes one object at a time. So:

- One file is uploaded in parts, and the server makes an object of them when the side-cars are settled. Those
  of an older file are removed before, those of the new one come after it, or before it if there was none: no
  reader sees a file with the side-cars of another.
- Folders and shards are uploaded to a hidden folder of the bucket, the staging folder ``.NAME.partial/``.
When
  it is complete, a plan is put beside it (``.batchplant.commit``), and the change is decided. The server then
  copies everything to its name, metadata last, and removes what is old and the staging folder.

A writer that is killed before has changed nothing; a change that it decided is finished by the next writer of
the same target.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from ..errors import AccessError, BatchplantError, BusyError, ExistsError, NotFoundError, OptionError
from . import uploads
from .commit import NOTE_NAME, Patch, commit, is_decided, put_file, recover, sync_all
from .files import is_below
from .remote import Entry, RefusedError
from .urls import Url, is_remote, join, like, parent, place_of
from .work import (
    STATE,
    Leftover,
    WorkSpace,
    drop,
    empty,
    leftovers,
    locked,
    partial_folder,
    stem_of,
    write_note,
)

__all__ = ["Leftover", "LocalTarget", "RemoteTarget", "Target", "clear", "leftovers", "target_of"]

# In the staging directory: how a file and its side-cars are sent. Files that are made in there have commits,
# too.
SENDING = ".batchplant.send"
# In the staging folder: the side-cars of a file that is being replaced.
REPLACED = "replaced"

# Folders in which tables keep the metadata that says which of their files count.
METADATA_FOLDERS = ("_delta_log/", "metadata/")

# (mark, copy or remove, names beside the target)
Steps = Sequence[tuple[str, list[str]]]
# (path in the staging directory, name beside the target)
Moves = Sequence[tuple[str, str]]


class Target(ABC):
    """The target of a staging directory."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = Path(path).name
        if not self.name:
            raise OptionError("the target needs a name", path=path)
        # The staging directory.
        self.folder = partial_folder(path)

    @abstractmethod
    def begin(self, check: Callable[[], None]) -> None:
        """Check, before anything is done, whether the target can be written."""

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def files(self, names: Collection[str]) -> list[str]:
        """Return those of the names beside it that are files."""

    @abstractmethod
    def commit(
        self, folder: Path, moves: Moves, removes: Collection[str], side_cars: Collection[str]
    ) -> None:
        """Give files of the staging directory their names, ``moves`` (path inside, name), and remove others.

        ``side_cars``: the names that are side-cars of others.
        """

    @abstractmethod
    def remove(self, names: Collection[str]) -> None:
        """Remove files beside it."""

    @abstractmethod
    def is_decided(self, folder: Path) -> bool:
        """Return whether a commit from this folder is for others to finish."""

    def taken(self, folder: Path) -> None:  # noqa: B027 -- nothing is to be done beside a file
        """Finish what a killed writer had decided: the staging directory is locked by us now."""

    def load(self) -> bytes | None:
        """Return the state that another machine saved."""
        return None

    def save(self, state: Path, *, publish: bool = False) -> None:  # noqa: B027
        """Save a checkpoint that was written, for other machines."""

    def stage(self, folder: Path, names: Sequence[str]) -> None:  # noqa: B027
        """Upload files that are complete, and need not stay in the staging directory."""

    def staged(self, name: str) -> bool:
        """Return whether a file was staged."""
        return False

    @property
    def staging(self) -> str | None:
        return None

    def adopt(self, folder: Path, files: Iterable[tuple[str, str, int]]) -> None:
        """Add files that others wrote, (path, path in the staging directory, size), to the folder."""
        for path, inside, _ in files:
            copy = folder / inside
            copy.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, copy, follow_symlinks=False)
            except FileNotFoundError:
                raise NotFoundError("it was there, and is gone", path=path) from None
            except OSError:
                shutil.copyfile(path, copy, follow_symlinks=False)

    def settled(self) -> None:  # noqa: B027
        """Wait until all uploads are complete."""

    def refresh(self) -> None:  # noqa: B027
        """Update what other machines have staged."""

    def read(self, name: str) -> bytes | None:
        """Return a small file that was staged."""
        return None

    def check_room(self, grown: int) -> None:  # noqa: B027
        """Check that the staging directory may grow further."""

    def discard(self) -> None:  # noqa: B027
        """Remove what was staged, if anything was."""

    def stop(self) -> None:  # noqa: B027
        """Stop uploads that are in flight."""


class LocalTarget(Target):
    """A path on a disk."""

    def begin(self, check: Callable[[], None]) -> None:
        recover(self.folder.parent)
        check()

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def files(self, names: Collection[str]) -> list[str]:
        # A folder is never a side-car.
        paths = {name: self.folder.with_name(name) for name in names}
        return [
            name for name, path in paths.items() if path.is_symlink() or (path.exists() and not path.is_dir())
        ]

    def commit(
        self, folder: Path, moves: Moves, removes: Collection[str], side_cars: Collection[str]
    ) -> None:
        self._sync(folder, moves)
        commit(folder, moves, removes)

    def extend(self, folder: Path, patches: Sequence[Patch], moves: Moves, removes: Collection[str]) -> None:
        """Write into existing files, and give new ones their names; all of it or nothing."""
        self._sync(folder, [*moves, *((patch.inside, patch.name) for patch in patches)])
        commit(folder, moves, removes, patches)

    def _sync(self, folder: Path, moves: Moves) -> None:
        staged = [folder / inside for inside, _ in moves]
        os.sync() if any(path.is_dir() for path in staged) else sync_all(staged)

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.folder.with_name(name).unlink(missing_ok=True)

    def is_decided(self, folder: Path) -> bool:
        return is_decided(folder)


def target_of(path: str) -> Target:
    return RemoteTarget(path) if is_remote(path) else LocalTarget(path)


class RemoteTarget(Target):
    """A URL as the target of a writer."""

    def __init__(self, path: str) -> None:
        super().__init__(like(path, path.rstrip("/")) if isinstance(path, Url) else Url(path.rstrip("/")))
        if place_of(path).scheme in ("http", "https"):
            raise OptionError(
                "web servers cannot be written to: name a bucket (s3://, gs://, az://) or a path", path=path
            )
        if not place_of(path).name:
            raise OptionError("the target needs a name in the bucket", path=path)
        self._above = parent(self.path)
        self._staging = join(self._above, f".{self.name}.partial")
        # Contents of the staging folder: sizes, and the names at its top.
        self._sizes: dict[str, int] = {}
        self._names: set[str] = set()
        self._job: uploads.Background | None = None
        self._room = WorkSpace(self.folder)
        # The last checkpoint until it is staged, and the staged names when one was.
        self._state: bytes | None = None
        self._saved: frozenset[str] = frozenset()
        self._saving = threading.Lock()
        # Objects of other writers that count as files of the staging directory: path in there → URL and size.
        self._adopted: dict[str, tuple[str, int]] = {}
        self._decided = False

    def begin(self, check: Callable[[], None]) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)

    def exists(self) -> bool:
        return uploads.is_file(self.path) or uploads.is_folder(self.path)

    def _beside(self, name: str) -> str:
        return join(self._above, name)

    def files(self, names: Collection[str]) -> list[str]:
        existing: list[str] = []

        def look(name: str) -> None:
            if uploads.is_file(self._beside(name)):
                existing.append(name)

        uploads.in_parallel(look, names)
        return sorted(existing)

    def remove(self, names: Collection[str]) -> None:
        uploads.remove_all(map(self._beside, names))

    def check_room(self, grown: int) -> None:
        self._room.check(grown, self.path)

    # -- leftovers of killed writers --------------------------------------------------------------------

    def taken(self, folder: Path) -> None:
        write_note(folder, self.path)
        self._probe()
        self._finish(folder)

    def _probe(self) -> None:
        """Fail before any work is done if the bucket cannot be written to."""
        probe = join(self._staging, f"probe-{secrets.token_hex(4)}")
        try:
            uploads.put_bytes(probe, b"")
            uploads.remove_all([probe])
        except NotFoundError:
            raise NotFoundError("there is no such bucket", path=self.path) from None
        except BatchplantError as error:
            error.path = str(self.path)
            raise

    def _finish(self, folder: Path) -> None:
        """Carry out what a killed writer had decided, and find what else it left."""
        sending = (folder / SENDING).read_bytes() if (folder / SENDING).is_file() else None
        plan = _parse_plan(sending, self.name)
        if plan is not None:
            moves = [(str(inside), str(name)) for inside, name in plan["moves"]]
            if all((folder / inside).is_file() for inside, _ in moves):
                self._commit_files(folder, moves, plan["removes"], plan["side_cars"], again=True)
            (folder / STATE).unlink(missing_ok=True)
            (folder / SENDING).unlink(missing_ok=True)
        with contextlib.suppress(RefusedError):
            staged_entries = uploads.below(self._staging)
            plan_bytes = (
                uploads.get_bytes(join(self._staging, NOTE_NAME)) if NOTE_NAME in staged_entries else None
            )
            plan = _parse_plan(plan_bytes, self.name)
            # If files of the plan are missing, another process was clearing it.
            steps = [] if plan is None else plan["steps"]
            copied = {key for operation, keys in steps if operation == "copy" for key in keys}
            if plan is not None and copied <= staged_entries.keys():
                self._carry_out(steps)
                (folder / STATE).unlink(missing_ok=True)
                staged_entries = {}
            self._take(staged_entries)

    def _take(self, entries: dict[str, Entry]) -> None:
        self._sizes = {name: entry.size for name, entry in entries.items()}
        self._names = set(map(_top, entries))

    def load(self) -> bytes | None:
        return uploads.get_bytes(join(self._staging, STATE))

    def save(self, state: Path, *, publish: bool = False) -> None:
        with self._saving:
            self._state = state.read_bytes()
            if publish:
                uploads.put_bytes(join(self._staging, STATE), self._state)
        if self._job is None or self._job.ended.is_set():
            self._save()

    def _save(self) -> None:
        """Publish the checkpoint for other machines, once the files that it refers to are uploaded."""
        with self._saving:
            staged = frozenset(self._sizes)
            if staged and staged != self._saved and self._state is not None:
                uploads.put_bytes(join(self._staging, STATE), self._state)
                self._saved, self._state = staged, None

    def clear(self) -> None:
        self.stop()
        with contextlib.suppress(RefusedError):
            entries = uploads.below(self._staging)
            # First the files that others would resume from.
            leading = {NOTE_NAME, STATE}.intersection(entries)
            uploads.remove_all(join(self._staging, name) for name in leading)
            uploads.remove_all(join(self._staging, name) for name in entries if name not in leading)
        self._sizes, self._names = {}, set()

    def discard(self) -> None:
        if self._job is not None or self._sizes:
            self.clear()

    def stop(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            job.stop()

    # -- one file --------------------------------------------------------------------------------------

    def is_decided(self, folder: Path) -> bool:
        return self._decided or (folder / SENDING).is_file()

    def commit(
        self, folder: Path, moves: Moves, removes: Collection[str], side_cars: Collection[str]
    ) -> None:
        self.settled()
        folders = {name for inside, name in moves if (folder / inside).is_dir()}
        self._check_kinds(moves, folders, side_cars)
        if self._sizes or folders:
            self._commit_staged(folder, moves, removes, side_cars)
        else:
            self._commit_files(folder, moves, removes, side_cars)

    def _check_kinds(self, moves: Moves, folders: Collection[str], side_cars: Collection[str]) -> None:
        """Check that a file replaces a file, and a folder a folder; a server would keep both."""
        if len(moves) - len(side_cars) > 1:
            return
        (name,) = (name for _, name in moves if name not in side_cars)
        url = self._beside(name)
        if name in folders or any(key.startswith(f"{name}/") for key in self._sizes):
            if uploads.is_file(url):
                raise ExistsError("it is no folder; remove it first", path=url)
        elif uploads.is_folder(url):
            raise ExistsError("it is a folder; remove it first", path=url)

    def _commit_files(
        self,
        folder: Path,
        moves: Moves,
        removes: Collection[str],
        side_cars: Collection[str],
        *,
        again: bool = False,
    ) -> None:
        """Commit a file and its side-cars; ``again``: another writer has begun with it."""
        ((inside, name),) = (move for move in moves if move[1] not in side_cars)
        beside = [
            (folder / inside_path, target_name)
            for inside_path, target_name in moves
            if target_name in side_cars
        ]
        sending = uploads.HeldUpload(self._beside(name), folder / inside)
        try:
            sending.start()
            old = self.files({*removes, *side_cars})
            if not beside and not old:
                sending.complete()
                return
            before = uploads.look(self._beside(name))
            backups = [(self._beside(side_car), join(self._staging, REPLACED, side_car)) for side_car in old]
            uploads.copy_all(backups)
            plan = {"moves": list(moves), "removes": sorted(removes), "side_cars": sorted(side_cars)}
            put_file(folder / SENDING, json.dumps(plan).encode())
            try:
                self.remove(old)
                if before is None:
                    self._send_beside(beside)
                sending.complete()
            except BaseException:
                sending.stop()
                # Roll back. If the server does not let us, the next writer finishes what is decided.
                with contextlib.suppress(BatchplantError):
                    if uploads.look(self._beside(name)) == before and not again:
                        self.remove([target_name for _, target_name in beside] if before is None else [])
                        uploads.copy_all((backup, original) for original, backup in backups)
                        (folder / SENDING).unlink(missing_ok=True)
                        self.clear()
                raise
            if before is not None:
                self._send_beside(beside)
        except BaseException:
            sending.stop()
            raise
        (folder / SENDING).unlink(missing_ok=True)
        if backups:
            self.clear()

    def _send_beside(self, files: Sequence[tuple[Path, str]]) -> None:
        uploads.send_all((path, self._beside(name)) for path, name in files)

    # -- folders and shards ----------------------------------------------------------------------------

    def stage(self, folder: Path, names: Sequence[str]) -> None:
        names = [name for name in names if (folder / name).exists()]
        if not names:
            return
        self.settled()

        def work(stopped: threading.Event) -> None:
            self._send(folder, [(name, name) for name in names], stopped)
            for name in names:
                staged = folder / name
                shutil.rmtree(staged) if staged.is_dir() else staged.unlink()
            self._save()

        self._job = uploads.Background(work)
        self._job.start()

    def staged(self, name: str) -> bool:
        return name in self._names

    @property
    def staging(self) -> str | None:
        return self._staging

    def refresh(self) -> None:
        self._take(uploads.below(self._staging))

    def adopt(self, folder: Path, files: Iterable[tuple[str, str, int]]) -> None:
        """Note objects that the server copies when the folder is sent."""
        self._adopted |= {inside: (url, size) for url, inside, size in files}

    def read(self, name: str) -> bytes | None:
        return uploads.get_bytes(join(self._staging, name))

    def settled(self) -> None:
        if self._job is not None:
            self._job.wait()
        self._job = None

    def _send(self, folder: Path, moves: Moves, stopped: threading.Event | None = None) -> None:
        """Upload files and folders to the staging folder."""
        for inside, name in moves:
            files = dict(_files_of(folder / inside, name))
            uploads.send_all(((path, join(self._staging, key)) for key, path in files.items()), stopped)
            sizes = {key: path.stat().st_size for key, path in files.items()}
            begin = f"{inside}/"
            adopted = {
                f"{name}/{path.removeprefix(begin)}": source
                for path, source in self._adopted.items()
                if path.startswith(begin)
            }
            uploads.copy_all((url, join(self._staging, key)) for key, (url, _) in adopted.items())
            sizes |= {key: size for key, (_, size) in adopted.items()}
            # Files that a killed writer had sent under the same name do not belong to it.
            earlier = self._sizes if name in self._names else {}
            stale = [key for key in earlier if _top(key) == name and key not in sizes]
            uploads.remove_all(join(self._staging, key) for key in stale)
            for key in stale:
                del self._sizes[key]
            self._sizes |= sizes
            self._names.add(name)

    def _commit_staged(
        self, folder: Path, moves: Moves, removes: Collection[str], side_cars: Collection[str]
    ) -> None:
        present = [move for move in moves if (folder / move[0]).exists()]
        self._job = uploads.Background(lambda stopped: self._send(folder, present, stopped))
        self._job.start()
        self.settled()
        names = {name for _, name in moves}
        new = {key for key in self._sizes if _top(key) in names}
        sent = uploads.below(self._staging)
        if any(key not in sent or sent[key].size != self._sizes[key] for key in new):
            message = "another machine writes it too, and has cleared away what this one had sent; try again"
            raise BusyError(message, path=self.path)
        files, folders = uploads.level(self._above)
        replaced = folders.intersection(names.union(removes))
        old = {f"{name}/{key}" for name in replaced for key in uploads.below(self._beside(name))}
        steps = _steps_to(new, names, side_cars, old | files.intersection(names.union(removes)))
        uploads.put_bytes(join(self._staging, NOTE_NAME), json.dumps({"steps": steps}).encode())
        self._decided = True
        # Try once more if it fails; if that fails too, the next writer does it.
        try:
            self._carry_out(steps)
        except AccessError:
            self._carry_out(steps)
        self._decided = False

    def _carry_out(self, steps: Steps) -> None:
        for operation, keys in steps:
            if operation == "copy":
                uploads.copy_all((join(self._staging, key), self._beside(key)) for key in keys)
            elif operation == "mark":
                for key in keys:
                    uploads.put_bytes(self._beside(key), b"")
            else:
                self.remove(keys)
        uploads.remove_all([join(self._staging, NOTE_NAME)])
        self.clear()


def clear() -> list[Leftover]:
    """Remove leftovers of killed writers, here and in their buckets; finish first what they had decided.

    Returns what was removed. If a bucket cannot be reached, its note stays.
    """
    removed = []
    for leftover in leftovers():
        with locked(leftover.folder) as ours:
            if not ours:
                continue
            if leftover.target is not None:
                target = RemoteTarget(leftover.target)
                try:
                    target._finish(leftover.folder)
                    target.clear()
                except BatchplantError:
                    empty(leftover.folder)
                    continue
            drop(leftover.folder)
            removed.append(leftover)
    return removed


# -- the steps by which staged objects replace others, in a safe order --------------------------------


def _steps_to(new: set[str], names: set[str], side_cars: Collection[str], old: set[str]) -> Steps:
    """Return the steps that make new, staged files the files and folders ``names``, in place of the old."""
    folders = names - new
    describing = {key for key in new | old if key in side_cars or _describes(key, folders)}
    data, notes = sorted(new - describing), sorted(new & describing)
    if not old and not folders:
        # If nothing is replaced, side-cars come before their file.
        data, notes = notes, data
    # For readers that list the folder itself; readers of shards see the staging folder.
    marks = [f"{name}/{NOTE_NAME}" for name in folders] if len(names) == 1 else []
    return [
        ("mark", marks),
        ("remove", sorted(describing & old)),
        ("copy", data),
        ("copy", notes),
        ("remove", [*sorted(old - new), *marks]),
    ]


def _files_of(staged: Path, name: str) -> Iterator[tuple[str, Path]]:
    """Yield the file, or all files below a folder, by their future names."""
    if not staged.is_dir():
        yield name, staged
        return
    for folder, _, files in os.walk(staged):
        for file in files:
            path = Path(folder, file)
            yield f"{name}/{path.relative_to(staged).as_posix()}", path


def _top(key: str) -> str:
    """Return the file or folder at the top of a key."""
    return key.partition("/")[0]


def _describes(key: str, folders: Collection[str]) -> bool:
    """Return whether a file of a folder is metadata of the others."""
    name, _, inside = key.partition("/")
    return name in folders and ("/" not in inside or inside.startswith(METADATA_FOLDERS))


def _parse_plan(data: bytes | None, target: str) -> Any:
    """Parse a plan of ours; None if there is none, or it is incomplete.

    It may only have names that begin like those of the target, so that an uploader who can put a plan into
    the staging folder reaches nothing but files of this target.
    """
    stem = stem_of(target)
    try:
        plan = json.loads(data or b"")
        names = [key for _, keys in plan.get("steps", ()) for key in keys]
        names += [name for _, name in plan.get("moves", ())]
        names += [*plan.get("removes", ()), *plan.get("side_cars", ())]
        keys = [*names, *(inside for inside, _ in plan.get("moves", ()))]
        if not all(isinstance(name, str) and name.startswith(stem) for name in names):
            return None
        return plan if all(is_below(key, is_listed=True) for key in keys) else None
    except (ValueError, TypeError, AttributeError, RecursionError):
        return None
