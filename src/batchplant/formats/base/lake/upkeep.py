"""The upkeep of a table: its states, what of them is not needed any more, the way back, fewer files."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable
from typing import Any, ClassVar

from ....errors import BatchplantError, OptionError
from ....storage import tree
from .reader import as_time

# Files of this many bytes are worth opening; smaller ones are put together.
FILE_BYTES = 512 << 20

Progress = Callable[[int, int], None]


@dataclasses.dataclass(frozen=True)
class State:
    """A version of a Delta table, a snapshot of an Iceberg table.

    rows: how many the transaction added, where it says so. refs: branches and tags that name it.
    """

    id: int
    at: datetime.datetime
    operation: str
    rows: int | None = None
    current: bool = False
    refs: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class Vacuumed:
    """Files that no state needs which is kept, and states that are not kept; ``done``: they are gone."""

    files: list[str]
    bytes: int
    states: list[int]
    done: bool


@dataclasses.dataclass(frozen=True)
class Compacted:
    """Files that were put together, and those that came of it; ``left``: small ones that had to stay."""

    removed: int
    added: int
    bytes: int
    left: int
    done: bool


class Upkeep:
    """Maintenance of a table: history, compaction, clean-up."""

    # What a state is called.
    state: ClassVar[str] = "version"

    def __init__(self, path: str) -> None:
        self.path = path

    def history(self) -> list[State]:
        """Every state, the latest first."""
        raise NotImplementedError

    def vacuum(self, older_than: datetime.timedelta, *, dry_run: bool) -> Vacuumed:
        """Remove files that nobody needs who opened the table no longer ago than ``older_than``."""
        raise NotImplementedError

    def restore(self, state: State) -> None:
        """Make an older state the current one, in one transaction."""
        raise NotImplementedError

    def compact(self, file_size: int, *, dry_run: bool, progress: Progress | None) -> Compacted:
        """Put small files together, in one transaction; older states stay as they are."""
        raise NotImplementedError

    def find(self, state: int | None, at: str | datetime.datetime | None) -> State:
        """The state with a number, or that was current at a time."""
        history = self.history()
        if (state is None) == (at is None):
            raise OptionError(f"say which {self.state} to go back to, or a time", path=self.path)
        if at is not None:
            when = as_time(at)
            match = next((entry for entry in history if entry.at <= when), None)
            if match is None:
                raise OptionError(f"at {when.isoformat()} there was no {self.state} yet", path=self.path)
            return match
        match = next((entry for entry in history if entry.id == state), None)
        if match is None:
            ids = ", ".join(str(entry.id) for entry in history[:5])
            raise OptionError(f"there is no {self.state} {state}; the latest are {ids}", path=self.path)
        return match


def stored_size(path: str) -> int:
    """Bytes of a file; 0 if it is gone."""
    try:
        return tree.size_below(path)
    except (BatchplantError, OSError):
        return 0


def utc(milliseconds: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, datetime.UTC)


def count(value: Any) -> int | None:
    """A number out of a log, which may have it as text."""
    try:
        return None if value is None else int(value)
    except (TypeError, ValueError):
        return None
