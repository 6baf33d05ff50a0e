"""Many files as one dataset: ``concat`` to read, :class:`ShardWriter` to write files of limited size."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from .codecs.cells import encode_samples
from .columns import I64, Columns, Spans, column_runs, concat_columns, concat_spans, starts_of
from .errors import BatchplantError, DataError, ExistsError, OptionError, Problem, SchemaError
from .reader import Reader
from .schema import Field, Float, Image, Int, Schema, Tensor
from .storage import Partial, checksums, join, like, parent, side_car, tree
from .writer import WriteOptions, Writer


class Concat(Reader):
    """Readers with the same fields, one after another."""

    def __init__(self, readers: Sequence[Reader]) -> None:
        if not readers:
            raise OptionError("there is nothing to join")
        self.readers = _alike(tuple(readers))
        self.schema = _common_schema(self.readers)
        self._ends = starts_of(np.array([len(reader) for reader in readers], dtype=np.int64))
        self.length = int(self._ends[-1])
        first, last = self.readers[0].path, self.readers[-1].path
        self.path = first if len(readers) == 1 else f"{first} … {os.path.basename(last)}"

    def _parts(self, indices: I64) -> tuple[I64, I64]:
        """Which reader each sample is in, and its number there."""
        which = np.searchsorted(self._ends, indices, side="right") - 1
        return which, indices - self._ends[which]

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        which, rows = self._parts(indices)
        used = np.unique(which)
        if len(used) <= 1:
            return self.readers[int(used[0]) if len(used) else 0]._read(rows, fields)
        parts = [self.readers[one]._read(rows[which == one], fields) for one in used]
        # The parts stand in order of reader; put the rows back in the order that was asked for.
        back = np.argsort(np.argsort(which, kind="stable"), kind="stable")
        return Columns((name, concat_columns([part[name] for part in parts])) for name in fields).take(back)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        which, rows = self._parts(indices)
        files: list[str] = []
        start = np.zeros(len(indices), dtype=np.int64)
        size, file = np.zeros_like(start), np.zeros(len(indices), dtype=np.int32)
        shape = np.zeros((len(indices), 3), dtype=np.int32)
        for one in np.unique(which):
            at = which == one
            spans = self.readers[one]._spans(field, rows[at])
            if spans is None:
                return None
            start[at], size[at], file[at] = spans.start, spans.size, spans.file + len(files)
            if spans.shape is not None:
                shape[at] = spans.shape
            files.extend(spans.files)
        return Spans(files, start, size, file, shape if shape.any() else None)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        which, rows = self._parts(indices)
        found = [self.readers[one]._ranges(fields, rows[which == one]) for one in np.unique(which)]
        return concat_spans([one for one in found if one is not None]) if None not in found else None

    def blocks(self) -> I64 | None:
        """The blocks of the parts; a part that has none is one block."""
        found, first = [], 0
        for reader in self.readers:
            own = reader.blocks()
            own = (
                np.zeros(len(reader), dtype=np.int64)
                if own is None
                else np.unique(own, return_inverse=True)[1]
            )
            found.append(own + first)
            first += int(own.max()) + 1 if len(own) else 0
        return np.concatenate(found).astype(np.int64)

    def sizes(self) -> I64 | None:
        found = [one for one in (reader.sizes() for reader in self.readers) if one is not None]
        return np.concatenate(found) if len(found) == len(self.readers) else None

    def locate(self, sample: int) -> tuple[Reader, int]:
        """The reader that a sample is in, and its number there."""
        which, rows = self._parts(np.array([sample]))
        return self.readers[int(which[0])], int(rows[0])

    def where(self, sample: int) -> str:
        part, row = self.locate(sample)
        return part.where(row)

    def facts(self) -> dict[str, Any]:
        return {"shards": len(self.readers)}

    def _verify(self) -> Iterator[Problem]:
        for reader, first in zip(self.readers, self._ends.tolist(), strict=False):
            try:
                yield from (_shift(problem, first) for problem in reader._verify())
            except DataError as error:
                yield _shift(Problem.of(error.at(path=reader.path)), first)

    def own_checks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one for reader in self.readers for one in reader.own_checks()))

    def close(self) -> None:
        for reader in self.readers:
            reader.close()


def _alike(readers: tuple[Reader, ...]) -> tuple[Reader, ...]:
    """All with the fields that any has, where fields are inferred: one shard may lack what others have."""
    schemas = list(dict.fromkeys(reader.schema for reader in readers if len(reader)))
    if len(schemas) == 1 and all(reader.schema == schemas[0] for reader in readers):
        return readers
    wide: dict[str, Field] = {}
    for schema in schemas:
        for name, field in schema.items():
            joined = _joined(wide.get(name, field), field)
            if joined is None:
                return readers
            wide[name] = joined
    for name, field in wide.items():
        if not all(name in schema for schema in schemas):
            wide[name] = dataclasses.replace(field, optional=True)
    made = [one if one.schema == Schema(wide) else one.with_schema(Schema(wide)) for one in readers]
    return tuple(one for one in made if one is not None) if wide and None not in made else readers


def _joined(one: Field, other: Field) -> Field | None:
    """The field that holds the cells of both; None where their kinds differ."""
    optional = one.optional or other.optional
    one, other = dataclasses.replace(one, optional=optional), dataclasses.replace(other, optional=optional)
    if isinstance(one, Image) and isinstance(other, Image):
        encoding = one.encoding if one.encoding == other.encoding else None
        return Image(encoding, one.mode if one.mode == other.mode else None, optional=optional)
    one, other = _as_row(one, other), _as_row(other, one)
    if isinstance(one, Tensor) and isinstance(other, Tensor) and len(one.shape) == len(other.shape):
        pairs = zip(one.shape, other.shape, strict=True)
        shape = tuple(size if size == there else None for size, there in pairs)
        return dataclasses.replace(one, shape=shape) if one.dtype == other.dtype else None
    return one if one == other else None


def _as_row(field: Field, beside: Field) -> Field:
    """A number as a row of one, where other shards have rows."""
    if isinstance(field, Int | Float) and isinstance(beside, Tensor):
        return Tensor(field.dtype, (1,), optional=field.optional)
    return field


def _common_schema(readers: Sequence[Reader]) -> Schema:
    """The first schema; where only encoding or mode of pictures differ, both become unknown."""
    fields = dict(readers[0].schema)
    for reader in readers[1:]:
        if list(reader.schema) != list(fields):
            raise SchemaError(
                f"its fields are {', '.join(reader.schema)}, "
                f"and those of {readers[0].path} are {', '.join(fields)}",
                path=reader.path,
            )
        for name, field in reader.schema.items():
            known = fields[name]
            if isinstance(known, Image) and isinstance(field, Image):
                encoding = known.encoding if known.encoding == field.encoding else None
                mode = known.mode if known.mode == field.mode else None
                fields[name] = Image(encoding, mode, optional=known.optional or field.optional)
            elif known != field:
                raise SchemaError(
                    f"it is {field}, and in {readers[0].path} {known}", path=reader.path, field=name
                )
    return Schema(fields)


def concat(readers: Iterable[Reader]) -> Reader:
    """Readers with the same fields as one, one after another."""
    return Concat(tuple(readers))


class ShardWriter:
    """Writes ``NAME-00000.SUFFIX``, ``NAME-00001.SUFFIX`` … of about ``size`` bytes of cells each.

    A name with ``%06d`` in it has the number there, with that many digits.
    ``samples``: the most samples of a shard. All shards get their names at the end, after the last is
    complete. ``make(path, options)`` gives the writer of one shard; ``suffix`` and ``side_cars`` are what
    its format calls its files, where that is more than the last suffix of the path.
    """

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        make: Callable[[str, WriteOptions], Writer],
        *,
        size: int | None = None,
        samples: int | None = None,
        suffix: str | None = None,
        side_cars: Iterable[str] = (),
    ) -> None:
        if size is not None and size < 1:
            raise OptionError(f"shard_size must be at least 1 byte, not {size}")
        if samples is not None and samples < 1:
            raise OptionError(f"shard_samples must be at least 1, not {samples}")
        self.path = os.fspath(path)
        self.schema = schema
        self.options = options
        self._size, self._samples, self._make = size, samples, make
        name = Path(self.path).name
        self._suffix = Path(name).suffix if suffix is None else suffix
        self._stem = name[: len(name) - len(self._suffix)]
        given = re.search(r"%0(\d)d", self._stem)
        self._before, self._after = f"{self._stem}-", ""
        if given:
            self._before, self._after = self._stem[: given.start()], self._stem[given.end() :]
        self._digits = int(given[1]) if given else 5
        shard = rf"{re.escape(self._before)}\d{{{self._digits},}}{re.escape(self._after)}"
        stem = shard + re.escape(Path(self._suffix).stem if Path(self._suffix).suffix else "")
        self._shard = re.compile(shard + re.escape(self._suffix))
        self._side_cars = tuple(dict.fromkeys((checksums.SIDE_CAR, *side_cars)))
        beside = [
            one.replace(".", r"\.").format(name=self._shard.pattern, stem=stem) for one in self._side_cars
        ]
        self._pattern = re.compile("|".join([self._shard.pattern, *beside]))
        self._folder = parent(like(self.path, self.path.rstrip("/")))
        hidden = like(self.path, self.path.rstrip("/") + ".shards")
        self.partial = Partial(hidden, overwrite=True, resume=options.resume, check=self.check_target)
        state = self.partial.state or {}
        self._done: list[dict[str, Any]] = state.get("own") or []
        self._finished = False
        self.files: list[str] = []
        for number in range(len(self._done)):
            self._stage(number)
        self._current = self._open(resume=self.partial.state is not None)
        # The shard may have been saved after the last time that all were, or been finished and begun anew.
        saved = self._current.resumed or {"bytes": 0, "extra": state.get("extra")}
        self._bytes: int = saved["bytes"]
        self._count_now = self._current.received
        self.resumed: dict[str, Any] | None = saved["extra"]

    def _existing(self) -> list[str]:
        """The names of the shards that are there, and of what lies beside them."""
        return [name for name in tree.names(self._folder or ".") if self._pattern.fullmatch(name)]

    def check_target(self) -> None:
        found = self._existing()
        if found and not self.options.overwrite:
            message = "it exists; replace the shards with overwrite=True (--overwrite)"
            raise ExistsError(message, path=join(self._folder, found[0]))

    def _stage(self, number: int) -> None:
        """A shard is complete; one that a resumed writer had completed has to be there."""
        if not self.partial.has(self._name(number)):
            self.partial.suspend()
            raise OptionError(f"{self._name(number)} is gone; start over, without resume", path=self.path)
        self.partial.stage(self._names(number))

    def _open(self, *, resume: bool = False) -> Writer:
        name = self._name(len(self._done))
        options = dataclasses.replace(self.options, resume=resume, overwrite=True, length=None)
        return self._make(str(self.partial.folder / name), options)

    def _name(self, number: int) -> str:
        return f"{self._before}{number:0{self._digits}d}{self._after}{self._suffix}"

    def _names(self, number: int) -> list[str]:
        """What a finished shard consists of."""
        shard = self._name(number)
        beside = [side_car(shard, template).name for template in self._side_cars]
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
            found += [_shift(Problem(**problem), first) for problem in one["skipped"]]
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
        self._stage(len(self._done) - 1)

    def checkpoint(self, extra: dict[str, Any] | None = None) -> None:
        with self._counting_from_the_start():
            self._current.checkpoint({"bytes": self._bytes, "extra": extra})
        self.partial.checkpoint({"received": self.received, "own": self._done, "extra": extra})

    def close(self) -> None:
        """Give all shards their names, at once."""
        if self.files:
            return
        try:
            self.check_target()
            if not self._finished:
                self._finish_current()
            made = [name for number in range(len(self._done)) for name in self._names(number)]
            gone = set(self._existing()).difference(made)
            shards = [self._name(number) for number in range(len(self._done))]
            self.partial.commit_all([(name, name) for name in made], sorted(gone), set(made) - set(shards))
            self.files = [join(self._folder, name) for name in shards]
        except BaseException:
            self.give_up()
            raise

    def abort(self) -> None:
        self._current.abort()
        self.partial.discard()

    def give_up(self) -> None:
        """As :meth:`Writer.give_up`."""
        self.suspend() if self.partial.saved else self.abort()

    def suspend(self) -> None:
        self._current.suspend()
        self.partial.suspend()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.give_up()


def _shift(problem: Problem, by: int) -> Problem:
    return dataclasses.replace(problem, sample=None if problem.sample is None else problem.sample + by)
