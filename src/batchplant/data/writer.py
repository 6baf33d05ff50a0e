"""Writer: a dataset to write to. A format implements ``_begin``, ``_write`` and ``_finish``.

The base owns everything that all formats share: values become cells on all cores, images are bounded
and encoded, checksums are taken, the target appears by one rename, and a conversion that was stopped
goes on from its last checkpoint. A format only ever sees finished cells, in order, in one thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Self

import numpy as np

from ..codecs.cells import encode_samples, own_value
from ..codecs.media.image_rules import ImageTarget, conform, stored_field
from ..errors import BatchplantError, DamagedError, OptionError, Problem
from ..schema import Audio, Field, Image, Schema, Video
from ..schema.columns import Columns, Ragged, column_runs
from ..storage import Partial, Patch, checksums, index, side_car, write_errors
from .appending import check_fields, grown_checksums, has_checksums
from .reader import Reader
from .write_options import WriteOptions

__all__ = ["WriteOptions", "Writer"]

# A task for a worker: few enough samples that all cores have some, enough to be worth handing over.
TASK_ROWS = 16
TASK_BYTES = 2 << 20


@dataclasses.dataclass
class _Encoded:
    """What a worker made of a task."""

    columns: Columns
    failed: list[tuple[int, BatchplantError]]
    sums: checksums.Sums | None
    # By image field: the bytes of the cells as they came, and as they are stored.
    image_bytes: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


class Writer:
    """Takes samples, leaves a complete file or nothing."""

    format: ClassVar[str] = ""
    # Templates of the files that the format may leave beside its own: "{name}.schema.json", "{stem}.idx".
    side_cars: ClassVar[tuple[str, ...]] = ()
    # Whether it can add to what is there: then ``base`` may be a reader of that, and ``_finish`` makes only
    # what is new.
    appends: ClassVar[bool] = False
    # Those of the side-cars that grow with the file; the others are written anew.
    growing: ClassVar[tuple[str, ...]] = ()
    # Those of its options that reading what is appended to needs, too.
    reading: ClassVar[tuple[str, ...]] = ()

    def __init__(self, path: str, schema: Schema, options: WriteOptions) -> None:
        self.path = os.fspath(path)
        self.files = [self.path]
        self.schema = schema
        self.options = options
        self.skipped: list[Problem] = []
        with write_errors(self.path):
            self.partial = self._open_partial()
        state = self.partial.state or {"received": 0, "written": 0, "skipped": [], "own": None}
        # The dataset that is appended to, its samples, and the byte of its file from which on; else nothing.
        self.base: Reader | None = None
        self.before = self.end = 0
        self._summing = options.checksums
        self.received: int = state["received"]
        self.written: int = state["written"]
        self.skipped = [Problem(**one) for one in state["skipped"]]
        # By image field: the bytes of all cells as they came, and as they are stored.
        self.image_bytes: dict[str, tuple[int, int]] = {
            name: (before, after) for name, (before, after) in state.get("image_bytes", {}).items()
        }
        self._handed = self.received
        # What the checkpoint that is resumed was given; None where nothing is resumed.
        self.resumed: dict[str, Any] | None = state.get("extra")
        self._waiting: list[Mapping[str, Any]] = []
        self._tasks: deque[tuple[int, Future[_Encoded]]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._workers = options.workers or len(os.sched_getaffinity(0))
        heavy = any(isinstance(field, Image | Audio | Video) for field in schema.values())
        self._task_rows = 1 if heavy else TASK_ROWS
        self._closed = False
        self._broken = False
        try:
            with write_errors(self.path, self.partial):
                if options.base is not None:
                    self._begin_append(options.base, state)
                elif options.checksums and not self.partial.spool("checksums").size:
                    self.partial.spool("checksums").write(checksums.header(list(schema), self.kept_schema()))
                with self._blaming_the_checkpoint():
                    self._begin(state["own"])
        except BaseException:
            self.give_up()
            raise

    # -- what a format implements ----------------------------------------------------------------------

    def _begin(self, state: dict[str, Any] | None) -> None:
        """Open spools; ``state`` is what ``_state`` gave at the checkpoint that is resumed, else None."""
        raise NotImplementedError

    def _write(self, columns: Columns) -> None:
        """Take finished cells, in order."""
        raise NotImplementedError

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        """Row → why the format cannot hold it, for what the schema alone does not tell. In a worker."""
        return {}

    def _finish(self) -> str | None:
        """Complete the file; return its name inside ``self.partial.folder``.

        None: the format has put it in place by itself, in a transaction of its own.
        """
        raise NotImplementedError

    def _open_partial(self) -> Partial:
        """The hidden folder to work in."""
        overwrite = self.options.overwrite or self.options.base is not None
        return Partial(self.path, overwrite=overwrite, resume=self.options.resume)

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        """How ``name``, as ``_finish`` returned it, is appended: what is written into which file, and what
        moves, (path inside, name beside the target), in this order."""
        patches, moves = [Patch(name, self.partial.name, self.end)], []
        for made, template in self._beside():
            there = side_car(self.path, template)
            if template in self.growing and there.exists():
                patches.append(Patch(made, there.name, there.stat().st_size))
            # What a dataset of others never had, it does not get.
            elif there.exists():
                moves.append((made, there.name))
        return patches, moves

    def cannot_append(self, reason: str) -> OptionError:
        return OptionError(f"it cannot be appended to: {reason}", path=self.path)

    def _beside(self) -> list[tuple[str, str]]:
        """After ``_finish``: (name inside ``self.partial.folder``, template) of each side-car that it has."""
        return []

    def _state(self) -> dict[str, Any]:
        """What ``_begin`` needs to go on, as JSON; spools remember their own length."""
        return {}

    def kept_schema(self) -> Schema | None:
        """The schema that the file will be opened with; None where readers find another, or infer it."""
        return self.schema

    @classmethod
    def piece_samples(cls, schema: Schema, samples: int, options: Mapping[str, Any]) -> int | None:
        """Samples that the length of a piece should be a multiple of, where several processes write the
        dataset, each a piece; None where they cannot. See ``WriteOptions.piece``.
        """
        return None

    def add_pieces(self, paths: Sequence[str]) -> None:
        """Take what other writers wrote as pieces, in order."""
        raise NotImplementedError

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        """Why a field of a kind that the format holds is refused all the same; None where it is not."""
        return None

    def remarks(self) -> list[str]:
        """What a user may not expect about how fields are stored; one sentence each."""
        return []

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        """What the format can hold in an image field."""
        return ImageTarget()

    @classmethod
    def as_stored(cls, schema: Schema, options: WriteOptions) -> Schema:
        """The schema with the encodings and modes that images will have."""
        fields = dict(schema)
        for name, field in schema.items():
            if isinstance(field, Image):
                fields[name] = stored_field(field, options.images_of(name), cls.image_target(field))
        return Schema(fields)

    @classmethod
    def all_side_cars(cls) -> tuple[str, ...]:
        """Templates of everything that may lie beside a finished file and belong to it."""
        return (checksums.SIDE_CAR, index.SIDE_CAR, *cls.side_cars)

    # -- what everybody uses ---------------------------------------------------------------------------

    def _begin_append(self, base: Reader, state: dict[str, Any]) -> None:
        # Another process may have added to it before this one had the lock.
        self.base = base.refresh()
        check_fields(self.base.schema, self.schema, self.path)
        self.before = len(self.base)
        if state.get("before", self.before) != self.before:
            raise OptionError("it has changed since; start over, without resume", path=self.path)
        self.end = os.path.getsize(self.path) if os.path.isfile(self.path) else 0
        self._summing = has_checksums(self.base, self.options.checksums)

    def _extend(self, name: str) -> None:
        """Add what was made to the dataset that is there."""
        if not self.written:
            self.partial.discard()
            return
        patches, moves = self._changes(name)
        if self._summing:
            patches.append(grown_checksums(self.path, self.partial.spool("checksums"), self.written))
        kept = {one.name for one in patches} | {there for _, there in moves}
        sides = {side_car(self.path, template).name for template in self.side_cars}
        self.partial.extend(patches, moves, sides - kept)

    def append(self, samples: Mapping[str, Any]) -> None:
        """Write one sample (a dict of values), or many at once (Columns of encoded cells).

        Values are copied. Columns are not: leave their arrays alone until the writer is closed.
        """
        self._check_open()
        if isinstance(samples, Columns):
            self._flush_samples()
            samples.check(self.schema)
            size = sum(_size(column) for column in samples.values())
            rows = max(TASK_ROWS, TASK_BYTES * samples.rows // max(size, 1))
            for start in range(0, samples.rows, rows):
                part = samples.take(slice(start, start + rows))
                self._submit(part.rows, functools.partial(self._encode, columns=part))
        else:
            # Arrays may be refilled by the caller while a worker still reads them.
            self._waiting.append({name: own_value(value) for name, value in samples.items()})
            if len(self._waiting) >= self._task_rows:
                self._flush_samples()
        self._drain(2 * self._workers)

    def checkpoint(self, extra: dict[str, Any] | None = None) -> None:
        """Write out all that was taken, so that a resumed writer goes on from here."""
        self._check_open()
        self._flush_samples()
        self._drain(0)
        with write_errors(self.path, self.partial):
            self.partial.checkpoint(
                {
                    "received": self.received,
                    "written": self.written,
                    "before": self.before,
                    "skipped": [dataclasses.asdict(one) for one in self.skipped],
                    "image_bytes": self.image_bytes,
                    "own": self._state(),
                    "extra": extra,
                }
            )

    def close(self) -> None:
        """Complete the file and give it its name."""
        if self._closed:
            return
        try:
            self._check_open()
            self._flush_samples()
            self._drain(0)
            with write_errors(self.path, self.partial):
                self._complete()
        except BaseException:
            self.give_up()
            raise
        self._stop()

    def _complete(self) -> None:
        with self._blaming_the_checkpoint():
            name = self._finish()
        if self.base is not None and name is not None:
            self._extend(name)
            return
        beside = []
        if self.options.checksums:
            checksums.finish(self.partial.spool("checksums"), self.written)
            beside = [("checksums", checksums.SIDE_CAR)]
        if name is None:
            self.partial.settle(self.all_side_cars())
        else:
            self.partial.commit(name, [*beside, *self._beside()], self.all_side_cars())

    def abort(self) -> None:
        """Stop and leave nothing."""
        if not self._closed:
            self._stop()
            self.partial.discard()

    def suspend(self) -> None:
        """Stop at the last checkpoint and keep what is there for a resume."""
        if not self._closed:
            self._stop()
            self.partial.suspend()

    def give_up(self) -> None:
        """Stop after an error: what a checkpoint saved stays for a resume, else nothing does."""
        self.suspend() if self.partial.saved else self.abort()

    @contextlib.contextmanager
    def _blaming_the_checkpoint(self) -> Iterator[None]:
        """Report files of an earlier writer that make no sense as damage, where this one resumes."""
        try:
            yield
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, MemoryError) as error:
            if self.partial.state is None or isinstance(error, BatchplantError):
                raise
            raise DamagedError(
                f"what an earlier writer left to resume from is damaged ({error}); "
                "write it anew without resume",
                path=self.path,
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close() if kind is None else self.give_up()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.give_up()

    # -- the pipeline ----------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._closed or self._broken:
            raise OptionError("the writer is closed, or an error stopped it", path=self.path)

    def _stop(self) -> None:
        self._closed = True
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._tasks.clear()

    def _flush_samples(self) -> None:
        if self._waiting:
            samples, self._waiting = self._waiting, []
            self._submit(len(samples), functools.partial(self._encode_values, samples=samples))

    def _submit(self, rows: int, work: Callable[[int], _Encoded]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="batchplant-encode")
        self._tasks.append((self._handed, self._pool.submit(work, self._handed)))
        self._handed += rows

    def _encode_values(self, first: int, samples: list[Mapping[str, Any]]) -> _Encoded:
        """In a worker: values to cells, one by one so that a bad sample spoils only itself."""
        parts: list[Columns] = []
        failed: list[tuple[int, BatchplantError]] = []
        good: list[int] = []
        for row, sample in enumerate(samples):
            try:
                parts.append(encode_samples(self.schema, [sample]))
                good.append(row)
            except BatchplantError as error:
                error.sample = None
                failed.append((first + row, error))
        if not parts:
            return _Encoded(encode_samples(self.schema, []), failed, None)
        made = self._encode(first, Columns.concat(parts), np.array(good))
        made.failed = sorted(failed + made.failed, key=lambda one: one[0])
        return made

    def _encode(self, first: int, columns: Columns, rows: Any = None) -> _Encoded:
        """In a worker: images as the target stores them, then checksums."""
        numbers = first + (np.arange(columns.rows) if rows is None else rows)
        failed: dict[int, BatchplantError] = {}
        done = Columns(columns)
        for name, field in self.schema.items():
            column = columns[name]
            if isinstance(field, Image) and isinstance(column, Ragged):
                options = self.options.images_of(name)
                target = self.image_target(field)
                draws = numbers + self.options.first
                done[name], errors = conform(column, options, target, draws, mask=field.mask)
                for row, error in errors:
                    failed.setdefault(row, error.at(field=name))
        for row, error in self._unfit(done).items():
            failed.setdefault(row, error)
        if failed:
            good = np.setdiff1d(np.arange(columns.rows), list(failed))
            columns, done = columns.take(good), done.take(good)
        sums = checksums.of_columns(self.schema, done) if self._summing else None
        image_bytes = {
            name: (_size(columns[name]), _size(done[name]))
            for name, field in self.schema.items()
            if isinstance(field, Image)
        }
        skipped = [(int(numbers[row]), error) for row, error in failed.items()]
        return _Encoded(done, skipped, sums, image_bytes)

    def _drain(self, most: int) -> None:
        """Write what is encoded, in order, until at most ``most`` tasks are under way."""
        try:
            for _, task in self._tasks:
                if task.done() and self.options.on_error == "raise":
                    self._raise_first(task.result())
            while self._tasks and (len(self._tasks) > most or self._tasks[0][1].done()):
                first, task = self._tasks.popleft()
                made = task.result()
                with write_errors(self.path, self.partial):
                    self._take(first, made)
        except BaseException:
            self._broken = True
            raise

    def _raise_first(self, made: _Encoded) -> None:
        for number, error in made.failed:
            raise error.at(path=self.path, sample=number)

    def _take(self, first: int, made: _Encoded) -> None:
        if self.options.on_error == "raise":
            self._raise_first(made)
        for number, error in made.failed:
            self.skipped.append(Problem.of(error.at(sample=number)))
        if made.columns.rows:
            self._write(made.columns)
            self.partial.check_room(sum(_size(column) for column in made.columns.values()))
            if made.sums is not None:
                self.partial.spool("checksums").write(made.sums)
        for name, (before, after) in made.image_bytes.items():
            sums = self.image_bytes.get(name, (0, 0))
            self.image_bytes[name] = sums[0] + before, sums[1] + after
        self.written += made.columns.rows
        self.received += made.columns.rows + len(made.failed)


def _size(column: Any) -> int:
    """The bytes of all cells."""
    return int(column_runs(column)[2].clip(0).sum())
