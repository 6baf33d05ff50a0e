"""Writing a dataset as many files of limited size: :class:`ShardWriter`. ``concat`` reads them as one."""

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
    """Names of the shards of a dataset: ``NAME-00000.SUFFIX``, ``NAME-00001.SUFFIX`` …

    A name with ``%06d`` in it has the number there, with that many digits. ``suffix`` and ``side_cars`` are
    those of the format, if its suffix is more than the last one of the path.
    """

    def __init__(self, path: str, *, suffix: str | None = None, side_cars: Iterable[str] = ()) -> None:
        name = Path(path).name
        self._suffix = Path(name).suffix if suffix is None else suffix
        stem = name[: len(name) - len(self._suffix)]
        placeholder = re.search(r"%0(\d)d", stem)
        self._before, self._after = f"{stem}-", ""
        if placeholder:
            self._before, self._after = stem[: placeholder.start()], stem[placeholder.end() :]
        self._digits = int(placeholder[1]) if placeholder else 5
        shard = rf"{re.escape(self._before)}\d{{{self._digits},}}{re.escape(self._after)}"
        stem = shard + re.escape(Path(self._suffix).stem if Path(self._suffix).suffix else "")
        self._shard = re.compile(shard + re.escape(self._suffix))
        self.side_cars = tuple(dict.fromkeys((checksums.SIDE_CAR, *side_cars)))
        beside = [
            template.replace(".", r"\.").format(name=self._shard.pattern, stem=stem)
            for template in self.side_cars
        ]
        self._pattern = re.compile("|".join([self._shard.pattern, *beside]))
        self.folder = parent(like(path, path.rstrip("/")))

    def name(self, number: int) -> str:
        return f"{self._before}{number:0{self._digits}d}{self._after}{self._suffix}"

    def existing(self) -> list[str]:
        """Return the names of existing shards and of their side-cars."""
        return [name for name in tree.names(self.folder or ".") if self._pattern.fullmatch(name)]

    def shards(self) -> list[str]:
        """Return the paths of existing shards, in order."""
        names = [name for name in self.existing() if self._shard.fullmatch(name)]
        return [join(self.folder, name) for name in sorted(names, key=self._number)]

    def next(self) -> int:
        """Return the number after that of the last existing shard."""
        return max((self._number(os.path.basename(path)) + 1 for path in self.shards()), default=0)

    def say_untouched(self, error: WriteError) -> None:
        """Add to the error of one shard that the existing shards stay as they are."""
        if self.existing() and "untouched" not in error.message:
            error.message += "; the old dataset is untouched"

    def _number(self, name: str) -> int:
        end = len(name) - len(self._after) - len(self._suffix)
        return int(name[len(self._before) : end])


class ShardWriter:
    """Writes shards (:class:`ShardNames`) of about ``size`` bytes of cells each.

    ``samples``: the most samples of a shard. All shards get their names at the end, after the last is
    complete. ``make(path, options)`` returns the writer of one shard. Appended samples become new shards
    after the existing ones.
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
        self._shard_names, self._folder = names, names.folder
        self._first = 0
        staging = like(self.path, self.path.rstrip("/") + ".shards")
        with write_errors(self.path):
            self.partial = Partial(staging, overwrite=True, check=self.check_target)
        self._first = self._shard_names.next() if options.base is not None else 0
        self._finished_shards: list[dict[str, Any]] = []
        self._finished = False
        self.files: list[str] = []
        self._current_bytes = self._current_samples = 0
        self._current = self._open()

    def check_target(self) -> None:
        names = self._shard_names.existing()
        if names and not self.options.overwrite and self.options.base is None:
            message = "it exists; replace the shards with overwrite=True (--overwrite)"
            raise ExistsError(message, path=join(self._folder, names[0]))

    def _open(self) -> Writer:
        options = dataclasses.replace(self.options, overwrite=True, length=None, base=None)
        return self._make(str(self.partial.folder / self._name(len(self._finished_shards))), options)

    def _name(self, number: int) -> str:
        return self._shard_names.name(self._first + number)

    def _names(self, number: int) -> list[str]:
        """Return the names of a finished shard and its side-cars."""
        shard = self._name(number)
        beside = [side_car(shard, template).name for template in self._shard_names.side_cars]
        return [shard, *(name for name in beside if self.partial.has(name))]

    def _shard_counts(self) -> list[dict[str, Any]]:
        """Return samples received, written and skipped, of each finished shard and of the current one."""
        return self._finished_shards if self._finished else [*self._finished_shards, self._count()]

    def _count(self) -> dict[str, Any]:
        current = self._current
        problems = [dataclasses.asdict(problem) for problem in current.skipped]
        return {"received": current.received, "written": current.written, "skipped": problems}

    @property
    def received(self) -> int:
        return sum(int(counts["received"]) for counts in self._shard_counts())

    @property
    def written(self) -> int:
        return sum(int(counts["written"]) for counts in self._shard_counts())

    @property
    def skipped(self) -> list[Problem]:
        problems, first = [], 0
        for counts in self._shard_counts():
            problems += [shifted(Problem(**problem), first) for problem in counts["skipped"]]
            first += counts["received"]
        return problems

    def remarks(self) -> list[str]:
        return self._current.remarks()

    def append(self, samples: Mapping[str, Any]) -> None:
        """As :meth:`Writer.append`; Columns are split where a shard is full."""
        with self._dataset_errors():
            self._append(samples if isinstance(samples, Columns) else encode_samples(self.schema, [samples]))

    def _append(self, samples: Columns) -> None:
        sizes = sum(np.maximum(column_runs(column)[2], 0) for column in samples.values())
        start = 0
        for row, size in enumerate(np.broadcast_to(sizes, samples.rows).tolist()):
            if self._is_full(size):
                self._current.append(samples.take(slice(start, row)))
                self._next()
                start = row
            self._current_bytes += size
            self._current_samples += 1
        self._current.append(samples.take(slice(start, None)))
        self.partial.check_room(int(np.sum(sizes)))

    def _is_full(self, size: int) -> bool:
        """Return True if a sample of this size belongs into the next shard."""
        if self._samples is not None and self._current_samples >= self._samples:
            return True
        return self._size is not None and self._current_bytes > 0 and self._current_bytes + size > self._size

    def _next(self) -> None:
        self._finish_current()
        self._current_bytes, self._current_samples, self._finished = 0, 0, False
        self._current = self._open()

    @contextlib.contextmanager
    def _dataset_errors(self) -> Iterator[None]:
        """Turn the sample numbers and paths in errors of a shard's writer into those of the dataset."""
        try:
            yield
        except BatchplantError as error:
            if isinstance(error, WriteError):
                self._shard_names.say_untouched(error)
            if error.path in (None, self._current.path):
                error.path = self.path
                if error.sample is not None:
                    error.sample += sum(int(counts["received"]) for counts in self._finished_shards)
            raise

    def _finish_current(self) -> None:
        with self._dataset_errors():
            self._current.close()
        self._finished_shards.append(self._count())
        self._finished = True
        self.partial.stage(self._names(len(self._finished_shards) - 1))

    def close(self) -> None:
        """Give all shards their names, at once."""
        if self.files:
            return
        try:
            self.check_target()
            if not self._finished:
                self._finish_current()
            names = [name for number in range(len(self._finished_shards)) for name in self._names(number)]
            old_names = self._shard_names.existing() if self.options.base is None else []
            shards = [self._name(number) for number in range(len(self._finished_shards))]
            with write_errors(self.path, self.partial):
                moves = [(name, name) for name in names]
                self.partial.commit_all(
                    moves, sorted(set(old_names).difference(names)), set(names) - set(shards)
                )
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
