"""Writing a dataset as many files of limited size: :class:`ShardWriter`. ``joined`` reads them as one."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np

from ..codecs.cells import encode_samples
from ..errors import BatchplantError, ExistsError, OptionError, Problem, WriteError
from ..schema import Schema
from ..schema.columns import Columns, column_runs
from ..storage import Partial, checksums, join, like, parent, side_car, tree, write_errors
from .concat import shifted
from .writer import WriteOptions, Writer


class ShardNames:
    """What the shards of a dataset are called: ``NAME-00000.SUFFIX``, ``NAME-00001.SUFFIX`` …

    A name with ``%06d`` in it has the number there, with that many digits. ``suffix`` and ``side_cars`` are
    what a format calls its files, where that is more than the last suffix of the path.
    """

    def __init__(self, path: str, *, suffix: str | None = None, side_cars: Iterable[str] = ()) -> None:
        name = Path(path).name
        self._suffix = Path(name).suffix if suffix is None else suffix
        stem = name[: len(name) - len(self._suffix)]
        given = re.search(r"%0(\d)d", stem)
        self._before, self._after = f"{stem}-", ""
        if given:
            self._before, self._after = stem[: given.start()], stem[given.end() :]
        self._digits = int(given[1]) if given else 5
        shard = rf"{re.escape(self._before)}\d{{{self._digits},}}{re.escape(self._after)}"
        stem = shard + re.escape(Path(self._suffix).stem if Path(self._suffix).suffix else "")
        self._shard = re.compile(shard + re.escape(self._suffix))
        self.side_cars = tuple(dict.fromkeys((checksums.SIDE_CAR, *side_cars)))
        beside = [
            one.replace(".", r"\.").format(name=self._shard.pattern, stem=stem) for one in self.side_cars
        ]
        self._pattern = re.compile("|".join([self._shard.pattern, *beside]))
        self.folder = parent(like(path, path.rstrip("/")))

    def name(self, number: int) -> str:
        return f"{self._before}{number:0{self._digits}d}{self._after}{self._suffix}"

    def existing(self) -> list[str]:
        """The names of the shards that are there, and of what lies beside them."""
        return [name for name in tree.names(self.folder or ".") if self._pattern.fullmatch(name)]

    def shards(self) -> list[str]:
        """The paths of the shards that are there, in order."""
        found = [name for name in self.existing() if self._shard.fullmatch(name)]
        return [join(self.folder, name) for name in sorted(found, key=self._number)]

    def next(self) -> int:
        """The number behind the last shard that is there."""
        return max((self._number(os.path.basename(one)) + 1 for one in self.shards()), default=0)

    def say_untouched(self, error: WriteError) -> None:
        """Say in an error of one shard that those that are there stay as they are."""
        if self.existing() and "untouched" not in error.message:
            error.message += "; the old dataset is untouched"

    def _number(self, name: str) -> int:
        end = len(name) - len(self._after) - len(self._suffix)
        return int(name[len(self._before) : end])


class ShardWriter:
    """Writes shards (:class:`ShardNames`) of about ``size`` bytes of cells each.

    ``samples``: the most samples of a shard. All shards get their names at the end, after the last is
    complete. ``make(path, options)`` gives the writer of one shard. What is appended becomes new shards
    behind those that are there.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        make: Callable[[str, WriteOptions], Writer],
        names: ShardNames,
        *,
        size: int | None = None,
        samples: int | None = None,
    ) -> None:
        if size is not None and size < 1:
            raise OptionError(f"shard_size must be at least 1 byte, not {size}")
        if samples is not None and samples < 1:
            raise OptionError(f"shard_samples must be at least 1, not {samples}")
        self.path = os.fspath(path)
        self.schema = schema
        self.options = options
        self._size, self._samples, self._make = size, samples, make
        self._names_of, self._folder = names, names.folder
        self._first = 0
        hidden = like(self.path, self.path.rstrip("/") + ".shards")
        with write_errors(self.path):
            self.partial = Partial(hidden, overwrite=True, check=self.check_target)
        self._first = self._names_of.next() if options.base is not None else 0
        self._done: list[dict[str, Any]] = []
        self._finished = False
        self.files: list[str] = []
        self._bytes = self._count_now = 0
        self._current = self._open()

    def check_target(self) -> None:
        found = self._names_of.existing()
        if found and not self.options.overwrite and self.options.base is None:
            message = "it exists; replace the shards with overwrite=True (--overwrite)"
            raise ExistsError(message, path=join(self._folder, found[0]))

    def _open(self) -> Writer:
        options = dataclasses.replace(self.options, overwrite=True, length=None, base=None)
        return self._make(str(self.partial.folder / self._name(len(self._done))), options)

    def _name(self, number: int) -> str:
        return self._names_of.name(self._first + number)

    def _names(self, number: int) -> list[str]:
        """What a finished shard consists of."""
        shard = self._name(number)
        beside = [side_car(shard, template).name for template in self._names_of.side_cars]
        return [shard, *(one for one in beside if self.partial.has(one))]

    def _counted(self) -> list[dict[str, Any]]:
        """What the finished shards and the one at work took, wrote and skipped."""
        return self._done if self._finished else [*self._done, self._count()]

    def _count(self) -> dict[str, Any]:
        current = self._current
        problems = [dataclasses.asdict(one) for one in current.skipped]
        return {"received": current.received, "written": current.written, "skipped": problems}

    @property
    def received(self) -> int:
        return sum(int(one["received"]) for one in self._counted())

    @property
    def written(self) -> int:
        return sum(int(one["written"]) for one in self._counted())

    @property
    def skipped(self) -> list[Problem]:
        found, first = [], 0
        for one in self._counted():
            found += [shifted(Problem(**problem), first) for problem in one["skipped"]]
            first += one["received"]
        return found

    def remarks(self) -> list[str]:
        return self._current.remarks()

    def append(self, samples: Mapping[str, Any]) -> None:
        """As :meth:`Writer.append`; Columns are split where a shard is full."""
        with self._counting_from_the_start():
            self._append(samples if isinstance(samples, Columns) else encode_samples(self.schema, [samples]))

    def _append(self, samples: Columns) -> None:
        sizes = sum(np.maximum(column_runs(column)[2], 0) for column in samples.values())
        start = 0
        for row, size in enumerate(np.broadcast_to(sizes, samples.rows).tolist()):
            if self._full(size):
                self._current.append(samples.take(slice(start, row)))
                self._next()
                start = row
            self._bytes += size
            self._count_now += 1
        self._current.append(samples.take(slice(start, None)))
        self.partial.check_room(int(np.sum(sizes)))

    def _full(self, size: int) -> bool:
        """Whether a sample of this size belongs into the next shard."""
        if self._samples is not None and self._count_now >= self._samples:
            return True
        return self._size is not None and self._bytes > 0 and self._bytes + size > self._size

    def _next(self) -> None:
        self._finish_current()
        self._bytes, self._count_now, self._finished = 0, 0, False
        self._current = self._open()

    @contextlib.contextmanager
    def _counting_from_the_start(self) -> Iterator[None]:
        """Errors of a shard's writer count its own samples, and name a file that is to have another name."""
        try:
            yield
        except BatchplantError as error:
            if isinstance(error, WriteError):
                self._names_of.say_untouched(error)
            if error.path in (None, self._current.path):
                error.path = self.path
                if error.sample is not None:
                    error.sample += sum(int(one["received"]) for one in self._done)
            raise

    def _finish_current(self) -> None:
        with self._counting_from_the_start():
            self._current.close()
        self._done.append(self._count())
        self._finished = True
        self.partial.stage(self._names(len(self._done) - 1))

    def close(self) -> None:
        """Give all shards their names, at once."""
        if self.files:
            return
        try:
            self.check_target()
            if not self._finished:
                self._finish_current()
            made = [name for number in range(len(self._done)) for name in self._names(number)]
            gone = set(self._names_of.existing()).difference(made) if self.options.base is None else ()
            shards = [self._name(number) for number in range(len(self._done))]
            with write_errors(self.path, self.partial):
                moves = [(name, name) for name in made]
                self.partial.commit_all(moves, sorted(gone), set(made) - set(shards))
            self.files = [join(self._folder, name) for name in shards]
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Stop and leave nothing."""
        self._current.abort()
        self.partial.discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.abort()
