"""What a writer's hidden folder is for: :class:`Target`, and :class:`LocalTarget`, a path on a disk."""

from __future__ import annotations

import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from ..errors import NotFoundError, OptionError
from .commit import commit, is_decided, recover, sync_all
from .patches import Patch
from .work import partial_folder

# (path in the hidden folder, name beside the target)
Moves = Sequence[tuple[str, str]]


class Target(ABC):
    """What a hidden folder is for."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.name = Path(path).name
        if not self.name:
            raise OptionError("the target needs a name", path=path)
        # Where the writer works.
        self.folder = partial_folder(path)

    @abstractmethod
    def begin(self, check: Callable[[], None]) -> None:
        """Before anything is done: whether the target can be written."""

    @abstractmethod
    def exists(self) -> bool: ...

    @abstractmethod
    def files(self, names: Collection[str]) -> list[str]:
        """Those of the names beside it that are files."""

    @abstractmethod
    def commit(
        self, folder: Path, moves: Moves, removes: Collection[str], side_cars: Collection[str]
    ) -> None:
        """Give what lies in the hidden folder its names, ``moves`` (path inside, name), and remove others.

        ``side_cars``: the names that say something about others.
        """

    @abstractmethod
    def remove(self, names: Collection[str]) -> None:
        """Remove files beside it."""

    @abstractmethod
    def is_decided(self, folder: Path) -> bool:
        """Whether a commit from this folder is for others to finish."""

    def taken(self, folder: Path) -> None:  # noqa: B027 -- nothing is to be done beside a file
        """The hidden folder is ours now: finish what a killed writer had decided."""

    def load(self) -> bytes | None:
        """The state that another machine left."""
        return None

    def save(self, state: Path, *, publish: bool = False) -> None:  # noqa: B027
        """A checkpoint was written."""

    def stage(self, folder: Path, names: Sequence[str]) -> None:  # noqa: B027
        """These are complete, and need not stay in the hidden folder."""

    def staged(self, name: str) -> bool:
        """Whether it was staged."""
        return False

    @property
    def staging(self) -> str | None:
        return None

    def adopt(self, folder: Path, files: Iterable[tuple[str, str, int]]) -> None:
        """Files that others made, (path, path in the hidden folder, size), are in the folder as well."""
        for path, inside, _ in files:
            there = folder / inside
            there.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(path, there, follow_symlinks=False)
            except FileNotFoundError:
                raise NotFoundError("it was there, and is gone", path=path) from None
            except OSError:
                shutil.copyfile(path, there, follow_symlinks=False)

    def settled(self) -> None:  # noqa: B027
        """Wait until all that was staged is there."""

    def refresh(self) -> None:  # noqa: B027
        """See what others have staged."""

    def read(self, name: str) -> bytes | None:
        """A small file that was staged."""
        return None

    def check_room(self, grown: int) -> None:  # noqa: B027
        """Whether the hidden folder may grow further."""

    def discard(self) -> None:  # noqa: B027
        """Forget what was staged, if anything was."""

    def stop(self) -> None:  # noqa: B027
        """Break off what is under way."""


class LocalTarget(Target):
    """A path on a disk."""

    def begin(self, check: Callable[[], None]) -> None:
        recover(self.folder.parent)
        check()

    def exists(self) -> bool:
        return os.path.lexists(self.path)

    def files(self, names: Collection[str]) -> list[str]:
        # A folder is nobody's side-car.
        found = {name: self.folder.with_name(name) for name in names}
        return [
            name for name, one in found.items() if one.is_symlink() or (one.exists() and not one.is_dir())
        ]

    def commit(
        self, folder: Path, moves: Moves, removes: Collection[str], side_cars: Collection[str]
    ) -> None:
        self._sync(folder, moves)
        commit(folder, moves, removes)

    def extend(self, folder: Path, patches: Sequence[Patch], moves: Moves, removes: Collection[str]) -> None:
        """Write into files that are there, and give new ones their names; all of it or nothing."""
        self._sync(folder, [*moves, *((one.inside, one.name) for one in patches)])
        commit(folder, moves, removes, patches)

    def _sync(self, folder: Path, moves: Moves) -> None:
        made = [folder / inside for inside, _ in moves]
        os.sync() if any(one.is_dir() for one in made) else sync_all(made)

    def remove(self, names: Collection[str]) -> None:
        for name in names:
            self.folder.with_name(name).unlink(missing_ok=True)

    def is_decided(self, folder: Path) -> bool:
        return is_decided(folder)
