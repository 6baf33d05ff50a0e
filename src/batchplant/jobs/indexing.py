"""Indexes of many files, built by an engine: one task for each file, which leaves the index beside it."""

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
    """A worker's result for a file. ``place``: path of the index; ``old``: there was one before."""

    built: bool
    place: str | None
    old: bool
    seconds: float


def needs_index(format: Format) -> bool:
    return "index" in own_options(format.reader)


def indexed_files(path: str, format: Format) -> list[str]:
    """Files that an index may belong to: those inside a dataset that is a folder."""
    is_folder = format.folder is not False and tree.is_folder(path)
    return [join(path, name) for name in tree.names(path)] if is_folder else [path]


def build(
    engine: Engine,
    files: Sequence[Candidate],
    options: Mapping[str, Any],
    *,
    rebuild: bool,
    progress: Progress | None = None,
) -> dict[str, Built]:
    """Build the indexes of files that need one; return the results by path."""
    scans.engine_of(engine)
    formats = [(file.path, file.format()) for file in files]
    tasks = [(path, format.name) for path, format in formats if needs_index(format)]
    results: dict[str, Built] = {}

    def finish(number: int, result: Built) -> None:
        results[tasks[number][0]] = result
        if progress is not None:
            progress(len(results), len(tasks))

    paths = tuple((absolute(path), name) for path, name in tasks)
    task = IndexTask(paths, dict(options), "rebuild" if rebuild else "write")
    run(engine, task, range(len(tasks)), finish, name=lambda number: f"indexing {tasks[number][0]}")
    return results


@dataclasses.dataclass(frozen=True)
class IndexTask:
    """Function of a worker: opens one file, which builds its index."""

    files: tuple[tuple[str, str], ...]
    options: dict[str, Any]
    mode: str

    def __call__(self, number: int) -> Built:
        path, name = self.files[number]
        format = get_format(name)
        old = any(index.existing(file) is not None for file in indexed_files(path, format))
        start = time.monotonic()
        options = {**accept(format.name, format.reader, self.options), "index": self.mode}
        with index.watching() as seen, format.reader(path, **options):
            seconds = time.monotonic() - start
        if not seen:
            return Built(False, None, old, seconds)
        return Built(seen[-1].index.built, seen[-1].index.place, old, seconds)
