"""The upkeep of tables with versions (Delta Lake, Iceberg, Lance): history, vacuum, rollback, compact.

Each takes a path, a URL, or the name of a table in a catalog, and the options that open the table
(``catalog``, ``storage``, those of a URL). Every change is one transaction.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from ..errors import OptionError
from ..formats.base.lake import FILE_BYTES, Compacted, Progress, State, Upkeep, Vacuumed
from ..formats.base.options import accept
from ..formats.registry import all_formats, find_format, get_format
from ..formats.registry.find import by_scheme
from ..storage import reached, split_options

__all__ = ["Compacted", "State", "Vacuumed", "compact", "history", "rollback", "vacuum"]

# A reader that opened the table this long ago still finds its files.
RETENTION = datetime.timedelta(days=7)


def history(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> list[State]:
    """Every version of a Delta or Lance table, every snapshot of an Iceberg table; the latest first."""
    return _upkeep(path, format, options).history()


def vacuum(
    path: str | os.PathLike[str],
    *,
    older_than: datetime.timedelta = RETENTION,
    dry_run: bool = False,
    format: str | None = None,
    **options: Any,
) -> Vacuumed:
    """Remove files that no state of the last ``older_than`` needs.

    Older states can not be read afterwards; Iceberg's are removed from the table. Files that a killed writer
    left go too, once they are as old. A reader or writer that runs longer than that may lose files.
    """
    if older_than < datetime.timedelta(0):
        raise OptionError("older_than is a time that has passed, and not negative", path=os.fspath(path))
    return _upkeep(path, format, options).vacuum(older_than, dry_run=dry_run)


def rollback(
    path: str | os.PathLike[str],
    to: int | None = None,
    *,
    at: str | datetime.datetime | None = None,
    dry_run: bool = False,
    format: str | None = None,
    **options: Any,
) -> State:
    """Make an older state the current one: a version or snapshot, or the one that was current ``at`` a time.

    The states in between stay, and can be gone back to. Returns the state whose rows the table has now.
    """
    upkeep = _upkeep(path, format, options)
    state = upkeep.find(to, at)
    if not dry_run:
        upkeep.restore(state)
    return state


def compact(
    path: str | os.PathLike[str],
    *,
    file_size: int = FILE_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
    format: str | None = None,
    **options: Any,
) -> Compacted:
    """Merge files of less than ``file_size`` bytes, by partition. The samples may change their order.

    The older states keep their files, until ``vacuum`` removes them.
    """
    if file_size < 1:
        raise OptionError("file_size is at least 1 byte", path=os.fspath(path))
    return _upkeep(path, format, options).compact(file_size, dry_run=dry_run, progress=progress)


def _upkeep(path: str | os.PathLike[str], format: str | None, options: dict[str, Any]) -> Upkeep:
    text = os.fspath(path)
    storage, options = split_options(options)
    text = reached(text, storage)
    lake = get_format(format) if format is not None else by_scheme(text) or find_format(text)
    if lake is None or lake.upkeep is None:
        names = sorted(name for name, entry in all_formats().items() if entry.upkeep is not None)
        kind = f"it is {lake.name}" if lake else "it is a folder of files"
        lakes = f"{', '.join(names[:-1])} and {names[-1]}"
        raise OptionError(f"{kind}, and only {lakes} tables have versions", path=text)
    return lake.upkeep(text, **accept(lake.name, lake.upkeep, options))
