"""Where a writer's work goes when it goes to a URL: :class:`RemoteTarget`.

A server renames nothing, and changes one object at a time. So:

- One file is sent in parts, and the server makes an object of them when the side-cars are settled. Those of
  an older file go before, those of the new one come after it, or before it where there was none: nobody sees
  a file with the side-cars of another.
- Folders and shards are sent to a hidden folder of the bucket, the staging, ``.NAME.partial/``. When all of
  it is there, a plan is put beside it (``.batchplant.commit``), and the change is decided. The server then
  copies everything to its name, what describes the rest last, and removes what is old and the staging.

Whoever is killed before has changed nothing; what he decided, the next writer of the same target finishes.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from ..errors import AccessError, BatchplantError, BusyError, ExistsError, NotFoundError, OptionError
from . import plans, uploads
from .commit import NAME, put_file
from .remote import Entry, RefusedError
from .target import LocalTarget, Moves, Target
from .urls import Url, is_remote, join, like, parent, place_of
from .work import STATE, Leftover, Room, drop, empty, leftovers, locked, write_note

__all__ = ["Leftover", "LocalTarget", "RemoteTarget", "Target", "clear", "leftovers", "target_of"]

# In the hidden folder: how a file and its side-cars are sent. Files that are made in there have commits, too.
SENDING = ".batchplant.send"
# In the staging: the side-cars of a file that is being replaced.
REPLACED = "replaced"


def target_of(path: str) -> Target:
    return RemoteTarget(path) if is_remote(path) else LocalTarget(path)


class RemoteTarget(Target):
    """A URL."""

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
        # What is in the staging: how large, and the names at its top.
        self._sizes: dict[str, int] = {}
        self._names: set[str] = set()
        self._job: uploads.Background | None = None
        self._room = Room(self.folder)
        # The last checkpoint, until it is staged too, and what was when one was.
        self._state: bytes | None = None
        self._saved: frozenset[str] = frozenset()
        self._saving = threading.Lock()
        # Objects of others that are files of the hidden folder: path in there → URL and size.
        self._adopted: dict[str, tuple[str, int]] = {}
        self._decided = False

    def begin(self, check: Callable[[], None]) -> None:
        self.folder.parent.mkdir(parents=True, exist_ok=True)

    def exists(self) -> bool:
        return uploads.is_file(self.path) or uploads.is_folder(self.path)

    def _beside(self, name: str) -> str:
        return join(self._above, name)

    def files(self, names: Collection[str]) -> list[str]:
        found: list[str] = []

        def look(name: str) -> None:
            if uploads.is_file(self._beside(name)):
                found.append(name)

        uploads.side_by_side(look, names)
        return sorted(found)

    def remove(self, names: Collection[str]) -> None:
        uploads.remove_all(map(self._beside, names))

    def check_room(self, grown: int) -> None:
        self._room.check(grown, self.path)

    # -- what killed writers left ----------------------------------------------------------------------

    def taken(self, folder: Path) -> None:
        write_note(folder, self.path)
        self._probe()
        self._finish(folder)

    def _probe(self) -> None:
        """A bucket that cannot be written to is told before any work is done."""
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
        """Do what a killed writer had decided, and see what else he left."""
        sending = (folder / SENDING).read_bytes() if (folder / SENDING).is_file() else None
        plan = plans.parse(sending, self.name)
        if plan is not None:
            moves = [(str(inside), str(name)) for inside, name in plan["moves"]]
            if all((folder / inside).is_file() for inside, _ in moves):
                self._commit_files(folder, moves, plan["removes"], plan["side_cars"], again=True)
            (folder / STATE).unlink(missing_ok=True)
            (folder / SENDING).unlink(missing_ok=True)
        with contextlib.suppress(RefusedError):
            found = uploads.below(self._staging)
            staged = uploads.get_bytes(join(self._staging, NAME)) if NAME in found else None
            plan = plans.parse(staged, self.name)
            # Without what it is about, somebody was clearing it away.
            if plan is not None and plans.copied(plan["steps"]) <= found.keys():
                self._carry_out(plan["steps"])
                (folder / STATE).unlink(missing_ok=True)
                found = {}
            self._take(found)

    def _take(self, found: dict[str, Entry]) -> None:
        self._sizes = {name: one.size for name, one in found.items()}
        self._names = set(map(plans.top, found))

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
        """For whoever goes on from it on another machine; there, what is under way would be missed."""
        with self._saving:
            staged = frozenset(self._sizes)
            if staged and staged != self._saved and self._state is not None:
                uploads.put_bytes(join(self._staging, STATE), self._state)
                self._saved, self._state = staged, None

    def clear(self) -> None:
        self.stop()
        with contextlib.suppress(RefusedError):
            found = uploads.below(self._staging)
            # First what others would go on from.
            leading = {NAME, STATE}.intersection(found)
            uploads.remove_all(join(self._staging, name) for name in leading)
            uploads.remove_all(join(self._staging, name) for name in found if name not in leading)
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
        """A file replaces a file, and a folder a folder; a server would keep both."""
        if len(moves) - len(side_cars) > 1:
            return
        (name,) = (name for _, name in moves if name not in side_cars)
        there = self._beside(name)
        if name in folders or any(key.startswith(f"{name}/") for key in self._sizes):
            if uploads.is_file(there):
                raise ExistsError("it is no folder; remove it first", path=there)
        elif uploads.is_folder(there):
            raise ExistsError("it is a folder; remove it first", path=there)

    def _commit_files(
        self,
        folder: Path,
        moves: Moves,
        removes: Collection[str],
        side_cars: Collection[str],
        *,
        again: bool = False,
    ) -> None:
        """A file and its side-cars; ``again``: others have begun with it."""
        ((inside, name),) = (one for one in moves if one[1] not in side_cars)
        beside = [(folder / one, there) for one, there in moves if there in side_cars]
        sending = uploads.Held(self._beside(name), folder / inside)
        try:
            sending.start()
            old = self.files({*removes, *side_cars})
            if not beside and not old:
                sending.complete()
                return
            before = uploads.look(self._beside(name))
            kept = [(self._beside(one), join(self._staging, REPLACED, one)) for one in old]
            uploads.copy_all(kept)
            plan = {"moves": list(moves), "removes": sorted(removes), "side_cars": sorted(side_cars)}
            put_file(folder / SENDING, json.dumps(plan).encode())
            try:
                self.remove(old)
                if before is None:
                    self._send_beside(beside)
                sending.complete()
            except BaseException:
                sending.stop()
                # As it was. Where the server does not let us, the next writer finishes what is decided.
                with contextlib.suppress(BatchplantError):
                    if uploads.look(self._beside(name)) == before and not again:
                        self.remove([there for _, there in beside] if before is None else [])
                        uploads.copy_all((there, here) for here, there in kept)
                        (folder / SENDING).unlink(missing_ok=True)
                        self.clear()
                raise
            if before is not None:
                self._send_beside(beside)
        except BaseException:
            sending.stop()
            raise
        (folder / SENDING).unlink(missing_ok=True)
        if kept:
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
            self._send(folder, [(one, one) for one in names], stopped)
            for one in names:
                made = folder / one
                shutil.rmtree(made) if made.is_dir() else made.unlink()
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
        """The server copies them when the folder is sent."""
        self._adopted |= {inside: (url, size) for url, inside, size in files}

    def read(self, name: str) -> bytes | None:
        return uploads.get_bytes(join(self._staging, name))

    def settled(self) -> None:
        if self._job is not None:
            self._job.wait()
        self._job = None

    def _send(self, folder: Path, moves: Moves, stopped: threading.Event | None = None) -> None:
        """Send files and folders to the staging."""
        for inside, name in moves:
            files = dict(plans.files_of(folder / inside, name))
            uploads.send_all(((path, join(self._staging, key)) for key, path in files.items()), stopped)
            sizes = {key: path.stat().st_size for key, path in files.items()}
            begin = f"{inside}/"
            adopted = {
                f"{name}/{path.removeprefix(begin)}": one
                for path, one in self._adopted.items()
                if path.startswith(begin)
            }
            uploads.copy_all((url, join(self._staging, key)) for key, (url, _) in adopted.items())
            sizes |= {key: size for key, (_, size) in adopted.items()}
            # What a writer that was killed had sent under the same name is not part of it.
            known = self._sizes if name in self._names else {}
            other = [key for key in known if plans.top(key) == name and key not in sizes]
            uploads.remove_all(join(self._staging, key) for key in other)
            for key in other:
                del self._sizes[key]
            self._sizes |= sizes
            self._names.add(name)

    def _commit_staged(
        self, folder: Path, moves: Moves, removes: Collection[str], side_cars: Collection[str]
    ) -> None:
        here = [one for one in moves if (folder / one[0]).exists()]
        self._job = uploads.Background(lambda stopped: self._send(folder, here, stopped))
        self._job.start()
        self.settled()
        names = {name for _, name in moves}
        new = {key for key in self._sizes if plans.top(key) in names}
        sent = uploads.below(self._staging)
        if any(key not in sent or sent[key].size != self._sizes[key] for key in new):
            message = "another machine writes it too, and has cleared away what this one had sent; try again"
            raise BusyError(message, path=self.path)
        there, folders = uploads.level(self._above)
        replaced = folders.intersection(names.union(removes))
        old = {f"{name}/{key}" for name in replaced for key in uploads.below(self._beside(name))}
        steps = plans.steps(new, names, side_cars, old | there.intersection(names.union(removes)))
        uploads.put_bytes(join(self._staging, NAME), json.dumps({"steps": steps}).encode())
        self._decided = True
        # Once more where it fails, and if that fails too, the next writer will do it.
        try:
            self._carry_out(steps)
        except AccessError:
            self._carry_out(steps)
        self._decided = False

    def _carry_out(self, steps: plans.Steps) -> None:
        for what, keys in steps:
            if what == "copy":
                uploads.copy_all((join(self._staging, key), self._beside(key)) for key in keys)
            elif what == "mark":
                for key in keys:
                    uploads.put_bytes(self._beside(key), b"")
            else:
                self.remove(keys)
        uploads.remove_all([join(self._staging, NAME)])
        self.clear()


def clear() -> list[Leftover]:
    """Remove what killed writers left, here and in their buckets; what they had decided is finished first.

    Returns what was removed. Of one whose bucket cannot be reached the note stays that says so.
    """
    gone = []
    for one in leftovers():
        with locked(one.folder) as ours:
            if not ours:
                continue
            if one.target is not None:
                made = RemoteTarget(one.target)
                try:
                    made._finish(one.folder)
                    made.clear()
                except BatchplantError:
                    empty(one.folder)
                    continue
            drop(one.folder)
            gone.append(one)
    return gone
