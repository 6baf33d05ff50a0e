"""Writer: a dataset to write to. A format implements ``_begin``, ``_write`` and ``_finish``.

The base class owns everything that all formats share: it encodes values and images on all cores, computes
checksums, makes the target appear by one rename, and resumes from the last checkpoint. A format only ever
sees finished cells, in order, in one thread.

A writer that appends (``Writer.appends``) works in a staging directory like any other, and writes only the
new samples there. At the end one commit (storage/commit.py) writes them behind the old bytes, or moves them
beside the old files, and replaces the small files that count the samples. Old bytes are not written again.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, Literal, Self

import numpy as np

from ..codecs.cells import encode_samples, own_value, value_bytes
from ..codecs.media.image_rules import ImageOptions, Images, ImageTarget, conform, stored_field
from ..errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, exceptions_as
from ..schema import Audio, Bytes, Field, Image, Schema, Video
from ..schema.columns import I64, Column, Columns, Ragged, column_runs
from ..storage import Partial, Patch, Spool, checksums, index, side_car, write_errors
from ..storage.platform import cpu_count
from .reader import Reader

# Size of a worker's task: small enough that all cores have some, large enough to be worth handing over.
TASK_ROWS = 16
TASK_BYTES = 2 << 20
# The same of samples that come as values.
TASK_SAMPLES = 512
TASK_VALUE_BYTES = 256 << 10
# Attributes that a field of the dataset may leave open and a field of appended samples may have.
OPEN_ATTRIBUTES = ("encoding", "mode", "names", "rate", "channels", "fps", "width", "height")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options of every writer, whatever its format.

    overwrite: replace a dataset at the target. length: number of samples to come, if known. workers: threads
    that encode (default: all cores). on_error: ``raise``, or ``skip`` to leave out samples that cannot be
    encoded and list them in ``skipped``. images: ImageOptions for all fields, or by field; fields that are
    not named get the usual ones, or those of ``other_images``. checksums: also write a side-car with the CRC
    of every cell. resume: go on from the checkpoint of a writer that was suspended. append: more is to be
    appended, now or later. base: the dataset at the target, if samples are added to it. first: if other
    writers write other samples of the dataset, the number of the first one of this writer. piece: this writer
    writes a piece, for ``Writer.add_pieces``; aligned, if its rows begin at ``first``, or loose, if samples
    before it may be missing.
    """

    overwrite: bool = False
    length: int | None = None
    workers: int | None = None
    on_error: str = "raise"
    images: Images = dataclasses.field(default_factory=ImageOptions)
    other_images: ImageOptions = dataclasses.field(default_factory=ImageOptions)
    checksums: bool = False
    resume: bool = False
    append: bool = False
    base: Reader | None = None
    first: int = 0
    piece: Literal["aligned", "loose"] | None = None

    def __post_init__(self) -> None:
        if self.on_error not in ("raise", "skip"):
            raise OptionError(f"on_error is raise or skip, not {self.on_error!r}")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers must be at least 1, not {self.workers}")
        image_options = self.images.values() if isinstance(self.images, Mapping) else [self.images]
        if not all(isinstance(options, ImageOptions) for options in image_options):
            raise OptionError("images is an ImageOptions, or maps fields to ImageOptions")

    def images_of(self, field: str) -> ImageOptions:
        """Return the options of a field's images."""
        return self.images.get(field, self.other_images) if isinstance(self.images, Mapping) else self.images

    def check_images(self, schema: Schema) -> None:
        """Raise OptionError for image options of a field that holds no images."""
        for name, field in schema.select(self.images if isinstance(self.images, Mapping) else ()).items():
            if not isinstance(field, Image):
                raise OptionError(f"images has options for {name!r}, which is {field} and no image")


@dataclasses.dataclass
class _Encoded:
    """Result of a worker's task."""

    columns: Columns
    failed: list[tuple[int, BatchplantError]]
    sums: checksums.Sums | None
    # By image field: the bytes of the cells as they came, and as they are stored.
    image_bytes: dict[str, tuple[int, int]] = dataclasses.field(default_factory=dict)


class Writer:
    """Takes samples, leaves a complete file or nothing.

    path: the target, which appears when the writer is closed. schema: fields of the samples. options: those
    of every writer; the parameters of a subclass are options of its format.
    """

    format: ClassVar[str] = ""
    # Templates of the files that the format may leave beside its own: "{name}.schema.json", "{stem}.idx".
    side_cars: ClassVar[tuple[str, ...]] = ()
    # True if it can append: then ``base`` may be a reader of the target, and ``_finish`` writes new samples.
    appends: ClassVar[bool] = False
    # Side-cars that grow with the file; the others are written anew.
    growing: ClassVar[tuple[str, ...]] = ()
    # Options of the writer that reading the dataset to append to needs, too.
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
        # The dataset that is appended to, its number of samples, and the size of its file.
        self.base: Reader | None = None
        self.before = self.end = 0
        self._has_checksums = options.checksums
        self.received: int = state["received"]
        self.written: int = state["written"]
        self.skipped = [Problem(**problem) for problem in state["skipped"]]
        # By image field: the bytes of all cells as they came, and as they are stored.
        self.image_bytes: dict[str, tuple[int, int]] = {
            name: (before, after) for name, (before, after) in state.get("image_bytes", {}).items()
        }
        self._submitted = self.received
        # ``extra`` of the checkpoint that is resumed; None if nothing is resumed.
        self.resumed: dict[str, Any] | None = state.get("extra")
        self._waiting: list[Mapping[str, Any]] = []
        self._sample_bytes = 0
        self._tasks: deque[Future[_Encoded]] = deque()
        self._pool: ThreadPoolExecutor | None = None
        self._workers = options.workers or cpu_count()
        heavy = any(isinstance(field, Image | Audio | Video) for field in schema.values())
        self._task_samples = 1 if heavy else TASK_SAMPLES
        self._closed = False
        self._broken = False
        try:
            with write_errors(self.path, self.partial):
                if options.base is not None:
                    self._begin_append(options.base, state)
                elif options.checksums and not self.partial.spool("checksums").size:
                    self.partial.spool("checksums").write(checksums.header(list(schema), self.kept_schema()))
                with self._resume_errors():
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
        """Return an error for each row that the format cannot hold though its kind fits. Runs in a worker."""
        return {}

    def _finish(self) -> str | None:
        """Complete the file; return its name inside ``self.partial.folder``.

        None: the format has committed it by itself, in a transaction of its own.
        """
        raise NotImplementedError

    def _open_partial(self) -> Partial:
        """Open the staging directory."""
        overwrite = self.options.overwrite or self.options.base is not None
        return Partial(self.path, overwrite=overwrite, resume=self.options.resume)

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        """Return the patches that append ``name``, the result of ``_finish``, and the files to move.

        A move is (path in the staging directory, name beside the target); moves come after patches.
        """
        patches, moves = [Patch(name, self.partial.name, self.end)], []
        for staged, template in self._beside():
            target = side_car(self.path, template)
            if template in self.growing and target.exists():
                patches.append(Patch(staged, target.name, target.stat().st_size))
            # A dataset of another program gets no side-car that it did not have.
            elif target.exists():
                moves.append((staged, target.name))
        return patches, moves

    def cannot_append(self, reason: str) -> OptionError:
        """Return the error that says why this format cannot be appended to."""
        return OptionError(f"it cannot be appended to: {reason}", path=self.path)

    def _beside(self) -> list[tuple[str, str]]:
        """Return (name inside ``self.partial.folder``, template) of each side-car that ``_finish`` wrote."""
        return []

    def _state(self) -> dict[str, Any]:
        """Return JSON that ``_begin`` needs to resume; spools remember their own length."""
        return {}

    def kept_schema(self) -> Schema | None:
        """Return the schema that the file will be opened with; None if readers find another, or infer it."""
        return self.schema

    @classmethod
    def piece_samples(cls, schema: Schema, samples: int, options: Mapping[str, Any]) -> int | None:
        """Return the samples that a piece's length should be a multiple of; None: pieces are not possible.

        Several processes then write a dataset, each a piece: see ``WriteOptions.piece``.
        """
        return None

    def add_pieces(self, paths: Sequence[str]) -> None:
        """Append pieces that other writers wrote, in order."""
        raise NotImplementedError

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        """Return the reason why the format cannot hold a field though its kind fits; None if it can."""
        return None

    def remarks(self) -> list[str]:
        """Return sentences about the way fields are stored that users may not expect."""
        return []

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        """Return the images that the format can hold in a field."""
        return ImageTarget()

    @classmethod
    def as_stored(cls, schema: Schema, options: WriteOptions) -> Schema:
        """Return the schema with the encodings and modes that images will have."""
        fields = dict(schema)
        for name, field in schema.items():
            if isinstance(field, Image):
                fields[name] = stored_field(field, options.images_of(name), cls.image_target(field))
        return Schema(fields)

    @classmethod
    def all_side_cars(cls) -> tuple[str, ...]:
        """Return templates of everything that may lie beside a finished file and belong to it."""
        return (checksums.SIDE_CAR, index.SIDE_CAR, *cls.side_cars)

    # -- what users call -------------------------------------------------------------------------------

    def _begin_append(self, base: Reader, state: dict[str, Any]) -> None:
        # Another process may have added to it before this one had the lock.
        self.base = base.refresh()
        check_fields(self.base.schema, self.schema, self.path)
        self.before = len(self.base)
        if state.get("before", self.before) != self.before:
            raise OptionError("it has changed since; start over, without resume", path=self.path)
        self.end = os.path.getsize(self.path) if os.path.isfile(self.path) else 0
        self._has_checksums = _has_checksums(self.base, self.options.checksums)

    def _extend(self, name: str) -> None:
        """Append the new samples to the dataset."""
        if not self.written:
            self.partial.discard()
            return
        patches, moves = self._changes(name)
        if self._has_checksums:
            patches.append(_grow_checksums(self.path, self.partial.spool("checksums"), self.written))
        current = {patch.name for patch in patches} | {name for _, name in moves}
        side_cars = {side_car(self.path, template).name for template in self.side_cars}
        self.partial.extend(patches, moves, side_cars - current)

    def append(self, samples: Mapping[str, Any]) -> None:
        """Write one sample (a dict of values), or many at once (Columns of encoded cells).

        Values are copied. Columns are not: leave their arrays alone until the writer is closed.

        Raises: SchemaError where a value does not fit its field; EncodeError where it cannot be encoded;
        WriteError where the disk is full.
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
            if len(self._waiting) % TASK_ROWS == 0:
                self._sample_bytes += TASK_ROWS * value_bytes(samples)
            self._waiting.append({name: own_value(value) for name, value in samples.items()})
            if len(self._waiting) < self._task_samples and self._sample_bytes < TASK_VALUE_BYTES:
                return
            self._flush_samples()
        self._drain(2 * self._workers)

    def checkpoint(self, extra: dict[str, Any] | None = None) -> None:
        """Write out all samples so far, so that a resumed writer goes on from here."""
        self._check_open()
        self._flush_samples()
        self._drain(0)
        with write_errors(self.path, self.partial):
            self.partial.checkpoint(
                {
                    "received": self.received,
                    "written": self.written,
                    "before": self.before,
                    "skipped": [dataclasses.asdict(problem) for problem in self.skipped],
                    "image_bytes": self.image_bytes,
                    "own": self._state(),
                    "extra": extra,
                }
            )

    def close(self) -> None:
        """Complete the file and give it its name.

        Raises: WriteError where the disk or the server does not take it; the file that was there before
        stays.
        """
        if self._closed:
            return
        try:
            self._check_open()
            self._flush_samples(last=True)
            self._drain(0)
            with write_errors(self.path, self.partial):
                self._complete()
        except BaseException:
            self.give_up()
            raise
        self._stop()

    def _complete(self) -> None:
        with self._resume_errors():
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
        """Stop at the last checkpoint and keep the staging directory for a resume."""
        if not self._closed:
            self._stop()
            self.partial.suspend()

    def give_up(self) -> None:
        """Stop after an error; keep the last checkpoint for a resume, if there is one."""
        self.suspend() if self.partial.saved else self.abort()

    @contextlib.contextmanager
    def _resume_errors(self) -> Iterator[None]:
        """Report errors of a resumed writer as damage of the files that the earlier writer left."""
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

    def _flush_samples(self, *, last: bool = False) -> None:
        if not self._waiting:
            return
        samples, self._waiting, self._sample_bytes = self._waiting, [], 0
        if last and self._pool is None:
            # Nothing else is in flight: a thread would only be started and waited for.
            task: Future[_Encoded] = Future()
            try:
                task.set_result(self._encode_values(self._submitted, samples=samples))
            except BaseException as error:
                task.set_exception(error)
            self._tasks.append(task)
            self._submitted += len(samples)
        else:
            self._submit(len(samples), functools.partial(self._encode_values, samples=samples))

    def _submit(self, rows: int, encode: Callable[[int], _Encoded]) -> None:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._workers, thread_name_prefix="batchplant-encode")
        self._tasks.append(self._pool.submit(encode, self._submitted))
        self._submitted += rows

    def _encode_values(self, first: int, samples: list[Mapping[str, Any]]) -> _Encoded:
        """Encode values in a worker; sample by sample where one is bad, so that it spoils only itself."""
        with contextlib.suppress(BatchplantError):
            return self._encode(first, encode_samples(self.schema, samples))
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
        encoded = self._encode(first, Columns.concat(parts), np.array(good))
        encoded.failed = sorted(failed + encoded.failed, key=lambda failure: failure[0])
        return encoded

    def _encode(self, first: int, columns: Columns, rows: I64 | None = None) -> _Encoded:
        """Encode images as the target stores them, in a worker; then compute checksums."""
        numbers = first + (np.arange(columns.rows) if rows is None else rows)
        failed: dict[int, BatchplantError] = {}
        stored = Columns(columns)
        for name, field in self.schema.items():
            column = columns[name]
            if isinstance(field, Image) and isinstance(column, Ragged):
                options = self.options.images_of(name)
                target = self.image_target(field)
                draws = numbers + self.options.first
                stored[name], errors = conform(column, options, target, draws, mask=field.mask)
                for row, error in errors:
                    failed.setdefault(row, error.at(field=name))
        for row, error in self._unfit(stored).items():
            failed.setdefault(row, error)
        if failed:
            good = np.setdiff1d(np.arange(columns.rows), list(failed))
            columns, stored = columns.take(good), stored.take(good)
        sums = checksums.of_columns(self.schema, stored) if self._has_checksums else None
        image_bytes = {
            name: (_size(columns[name]), _size(stored[name]))
            for name, field in self.schema.items()
            if isinstance(field, Image)
        }
        skipped = [(int(numbers[row]), error) for row, error in failed.items()]
        return _Encoded(stored, skipped, sums, image_bytes)

    def _drain(self, max_tasks: int) -> None:
        """Write encoded samples, in order, until at most ``max_tasks`` tasks are in flight."""
        try:
            for task in self._tasks:
                if task.done() and self.options.on_error == "raise":
                    self._raise_first(task.result())
            while self._tasks and (len(self._tasks) > max_tasks or self._tasks[0].done()):
                encoded = self._tasks.popleft().result()
                with write_errors(self.path, self.partial):
                    self._write_encoded(encoded)
        except BaseException:
            self._broken = True
            raise

    def _raise_first(self, encoded: _Encoded) -> None:
        for number, error in encoded.failed:
            raise error.at(path=self.path, sample=number)

    def _write_encoded(self, encoded: _Encoded) -> None:
        if self.options.on_error == "raise":
            self._raise_first(encoded)
        for number, error in encoded.failed:
            self.skipped.append(Problem.of(error.at(sample=number)))
        if encoded.columns.rows:
            self._write(encoded.columns)
            self.partial.check_room(sum(_size(column) for column in encoded.columns.values()))
            if encoded.sums is not None:
                self.partial.spool("checksums").write(encoded.sums)
        for name, (before, after) in encoded.image_bytes.items():
            sums = self.image_bytes.get(name, (0, 0))
            self.image_bytes[name] = sums[0] + before, sums[1] + after
        self.written += encoded.columns.rows
        self.received += encoded.columns.rows + len(encoded.failed)


def _size(column: Column) -> int:
    """Bytes of all cells."""
    return int(column_runs(column)[2].clip(0).sum())


# -- appending ---------------------------------------------------------------------------------------------


def check_fields(dataset: Schema, samples: Schema, path: str) -> None:
    """Raise SchemaError if samples with these fields cannot be appended to a dataset."""
    missing = [name for name in dataset if name not in samples]
    unknown = [name for name in samples if name not in dataset]
    if missing or unknown:
        reasons = [f"the samples lack {', '.join(missing)}"] if missing else []
        reasons += [f"the dataset has no {', '.join(unknown)}"] if unknown else []
        raise SchemaError(
            f"{' and '.join(reasons)}; its fields are {', '.join(dataset)}",
            path=path,
            field=(missing or unknown)[0],
        )
    for name, field in dataset.items():
        if samples[name].optional and not field.optional:
            message = "it may be missing in the new samples, and is never missing in the dataset"
            raise SchemaError(message, path=path, field=name)
        if not _fits(field, dataclasses.replace(samples[name], optional=field.optional)):
            raise SchemaError(f"it is {samples[name]}, and in the dataset {field}", path=path, field=name)


def _fits(field: Field, appended: Field) -> bool:
    if isinstance(field, Bytes):
        return isinstance(appended, Bytes)
    if type(field) is not type(appended):
        return False
    for attribute in dataclasses.fields(field):
        old, new = getattr(field, attribute.name), getattr(appended, attribute.name)
        if attribute.name == "shape":
            if len(old) != len(new) or not all(n in (None, m) for n, m in zip(old, new, strict=True)):
                return False
            continue
        is_open = attribute.name in OPEN_ATTRIBUTES and old is None
        # Numbers without names are what they are; other names would be other classes.
        if old != new and not is_open and not (attribute.name == "names" and not new):
            return False
    return True


def _has_checksums(base: Reader, required: bool) -> bool:
    """Return True if the dataset has a side-car of checksums, which has to grow then."""
    exists = os.path.exists(side_car(base.path, checksums.SIDE_CAR))
    if required and not exists:
        raise OptionError(
            "there are no checksums of the samples that are there, so those of new ones have no place; "
            "append without, or write all of it anew with checksums",
            path=base.path,
        )
    return exists


def _grow_checksums(path: str, spool: Spool, added: int) -> Patch:
    """Complete the checksums of new samples, which go behind the old ones."""
    target = side_car(path, checksums.SIDE_CAR)
    with exceptions_as(DamagedError, "the checksums cannot be appended to", ValueError, path=target):
        offset = checksums.grow(target, spool, added)
    return Patch(spool.path.name, target.name, offset)
