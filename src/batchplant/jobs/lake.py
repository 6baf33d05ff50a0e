"""The upkeep of tables with versions (Delta Lake, Iceberg): history, vacuum, rollback, compact.

Each takes a path, a URL, or the name of a table in a catalog, and the options that open the table
(``catalog``, ``storage``, those of a URL). Every change is one transaction: it happens whole, or not at all.
"""

from __future__ import annotations

import datetime
import os
from typing import Any

from ..errors import OptionError
from ..formats.base.lake.upkeep import FILE_BYTES, Compacted, Progress, State, Upkeep, Vacuumed
from ..formats.base.options import accept
from ..formats.registry import all_formats, find_format, get_format
from ..formats.registry.known import by_scheme
from ..storage import reached, split_options

__all__ = ["Compacted", "State", "Vacuumed", "compact", "history", "rollback", "vacuum"]

# A reader that opened the table this long ago still finds its files.
KEPT = datetime.timedelta(days=7)


def history(path: str | os.PathLike[str], *, format: str | None = None, **options: Any) -> list[State]:
    """Every version of a Delta table, every snapshot of an Iceberg table; the latest first."""
    return _upkeep(path, format, options).history()


def vacuum(
    path: str | os.PathLike[str],
    *,
    older_than: datetime.timedelta = KEPT,
    dry_run: bool = False,
    format: str | None = None,
    **options: Any,
) -> Vacuumed:
    """Remove files that no state needs which was the latest one within ``older_than``.

    Older states can not be read afterwards; Iceberg's are removed from the table. Files that a killed writer
    left go too, once they are as old. Whoever reads or writes the table longer than that may lose files.
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
    """Make an older state the current one: a version or snapshot, or what was current ``at`` a time.

    The states in between stay, and can be gone back to. Returns the state whose rows the table has now.
    """
    upkeep = _upkeep(path, format, options)
    found = upkeep.find(to, at)
    if not dry_run:
        upkeep.restore(found)
    return found


def compact(
    path: str | os.PathLike[str],
    *,
    file_size: int = FILE_BYTES,
    dry_run: bool = False,
    progress: Progress | None = None,
    format: str | None = None,
    **options: Any,
) -> Compacted:
    """Put files of less than ``file_size`` bytes together, by partition. The samples may change their order.

    The older states keep their files, until ``vacuum`` removes them.
    """
    if file_size < 1:
        raise OptionError("file_size is at least 1 byte", path=os.fspath(path))
    return _upkeep(path, format, options).compact(file_size, dry_run=dry_run, progress=progress)


def _upkeep(path: str | os.PathLike[str], format: str | None, options: dict[str, Any]) -> Upkeep:
    text = os.fspath(path)
    storage, options = split_options(options)
    text = reached(text, storage)
    found = get_format(format) if format is not None else by_scheme(text) or find_format(text)
    if found is None or found.upkeep is None:
        known = sorted(name for name, one in all_formats().items() if one.upkeep is not None)
        said = f"it is {found.name}" if found else "it is a folder of files"
        raise OptionError(f"{said}, and only {' and '.join(known)} tables have versions", path=text)
    made: Upkeep = found.upkeep(text, **accept(found.name, found.upkeep, options))
    return made
