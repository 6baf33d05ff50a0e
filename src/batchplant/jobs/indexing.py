"""Indexes of many files, built by an engine: one task for each file, whose index it leaves beside the file.

Who asked for them finds them there, and may put them together.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..formats.base.format import Format
from ..formats.base.options import accept, own_options
from ..formats.registry import Candidate, get_format
from ..storage import absolute, index, join, tree
from . import scans
from .engines import Engine, run

Progress = Callable[[int, int], None]


class Built(NamedTuple):
    """What a worker did about a file. ``place``: where it put the index; ``old``: there was one before."""

    built: bool
    place: str | None
    old: bool
    seconds: float


def needs_index(known: Format) -> bool:
    return "index" in own_options(known.reader)


def owners_of(path: str, known: Format) -> list[str]:
    """The files that are indexed: of a dataset that is a folder, one in it."""
    folder = known.folder is not False and tree.is_folder(path)
    return [join(path, name) for name in tree.names(path)] if folder else [path]


def build(
    engine: Engine,
    files: Sequence[Candidate],
    options: Mapping[str, Any],
    *,
    rebuild: bool,
    progress: Progress | None = None,
) -> dict[str, Built]:
    """Have the indexes of these files built, where they need one; by path, what was done."""
    scans.engine_of(engine)
    known = [(one.path, one.format()) for one in files]
    tasks = [(path, format.name) for path, format in known if needs_index(format)]
    found: dict[str, Built] = {}

    def done(number: int, one: Built) -> None:
        found[tasks[number][0]] = one
        if progress is not None:
            progress(len(found), len(tasks))

    there = tuple((absolute(path), name) for path, name in tasks)
    work = Work(there, dict(options), "rebuild" if rebuild else "write")
    run(engine, work, range(len(tasks)), done, name=lambda number: f"indexing {tasks[number][0]}")
    return found


@dataclasses.dataclass(frozen=True)
class Work:
    """What a worker does for a number: it opens one file, which builds its index."""

    files: tuple[tuple[str, str], ...]
    options: dict[str, Any]
    mode: str

    def __call__(self, number: int) -> Built:
        path, name = self.files[number]
        known = get_format(name)
        old = any(index.existing(owner) is not None for owner in owners_of(path, known))
        start = time.monotonic()
        given = {**accept(known.name, known.reader, self.options), "index": self.mode}
        with index.watching() as seen, known.reader(path, **given):
            seconds = time.monotonic() - start
        if not seen:
            return Built(False, None, old, seconds)
        return Built(seen[-1].index.built, seen[-1].index.place, old, seconds)
