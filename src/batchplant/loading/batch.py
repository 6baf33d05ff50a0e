"""Make one batch: read, make images, run the ops. Any thread may do so at any time."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..data.reader import Reader
from ..errors import AccessError, DataError, Problem
from ..ops.base import CellErrors, CellOp
from ..ops.cutting import sizes_of as image_sizes
from ..ops.values import Pad
from ..schema.columns import I64, Column, Spans, concat_spans
from ..storage.remote.cells import PART
from .decoded import Decoded
from .following import Following
from .geometry import Moves, moves
from .images import Backend, Device, Failures, Request, Result, make_request
from .locate import Located, Locator, sizes_of, turns_of
from .on_cpu import OnCpu
from .pipes import SIZES, padding_name
from .plan import Output, Plan
from .running import Running, Timer
from .values import as_values

# Threads that make batches: while the engine decodes one, the Python part of the next runs.
PRODUCERS = 2


class Batch(NamedTuple):
    """What came of a batch: the values by output, the samples in it, and those that were left out."""

    values: dict[str, Any]
    ids: I64
    skipped: list[Problem]


class Prepared(NamedTuple):
    """A batch that was read and whose images were begun; ``columns`` None: it is still to be read."""

    ids: I64
    epoch: int
    columns: dict[str, Column] | None
    images: dict[str, Callable[[], Result]]
    failures: Failures
    # Of the images that others go along with.
    moves: dict[str, Moves]


class Executor(Running):
    """Turns sample numbers into batches as a plan says, in two steps.

    ``prepare`` is called for one batch at a time, in order; ``finish`` for many side by side.
    """

    def __init__(
        self, reader: Reader, plan: Plan, on_cpu: OnCpu, on_device: Device | None = None, *,
        seed: int, skip: bool = False, decoded: Decoded | None = None,
    ) -> None:  # fmt: skip
        self.reader, self.plan, self.on_cpu, self.on_device = reader, plan, on_cpu, on_device
        self.seed, self.skip = seed, skip
        self._last_of = {one.field: one.name for one in plan.outputs if not one.is_mask}
        self.locator, self.decoded = Locator(reader), decoded
        self._following = Following(plan)
        # Of functions of users, each is told by itself too.
        self.timer, self.functions = Timer(), Timer()

    def ranges(self, ids: I64) -> Spans | None:
        """Which bytes these samples take; of what is in memory decoded, none."""
        fields, held = self.plan.fields, None if self.decoded is None else self.decoded.holds(ids)
        if held is None or not held.any():
            return self.reader._unread(fields, ids)
        parts = [(fields, ids[~held]), (self.plan.columns, ids[held])]
        found = [self.reader._unread(names, some) for names, some in parts if names and len(some)]
        return concat_spans([one for one in found if one is not None])

    def run(self, ids: I64, epoch: int) -> Batch:
        """The batch of these samples."""
        return self.finish(self.prepare(ids, epoch))

    def prepare(self, ids: I64, epoch: int) -> Prepared:
        """Read the batch, draw boxes and flips, and queue its images."""
        try:
            return self._prepare(ids, epoch)
        except AccessError as error:
            raise error.at(sample=self._needed_by(error, ids)) from None

    def _needed_by(self, error: AccessError, ids: I64) -> int | None:
        """The first sample whose bytes a server did not give."""
        if error.offset is None:
            return None
        for one in ids:
            spans = self.reader.ranges(self.plan.fields, [one])
            if spans is not None:
                near = (spans.start < error.offset + PART) & (spans.start + spans.size > error.offset)
                if any(spans.files[file] == error.path for file in spans.file[near]):
                    return int(one)
        return None

    def _prepare(self, ids: I64, epoch: int) -> Prepared:
        images: dict[str, Callable[[], Result]] = {}
        if not self.plan.images:
            # Nothing to queue, and reading need not be in order.
            return Prepared(ids, epoch, None, images, {}, {})
        columns, failures = self._read(ids)
        moved: dict[str, Moves] = {}
        for output in self.plan.images:
            if failures:
                break
            request, failures = self.request(output, ids, epoch)
            if request is not None and output.name in self._following.of:
                moved[output.name] = self._moves(output, request, epoch)
            if request is not None:
                began = time.perf_counter()
                images[output.name] = self._begin(output, request, list(failures))
                self.timer.add("decode", began)
        return Prepared(ids, epoch, columns, images, failures, moved)

    def _moves(self, output: Output, request: Request, epoch: int) -> Moves:
        """Where the images are taken by their pipeline."""
        assert output.image is not None
        orient = output.image.decoder.op.orient

        def stored(ids: I64) -> Any:
            return _sized(self.locator.find(output.field, ids), orient)[0]

        # What is kept decoded may have another size.
        kept = stored if self.decoded is not None else None
        sizes = self._following.sizes(request, kept, (output.field, orient), len(self.reader))
        return moves(output, sizes, request.ids, seed=self.seed, epoch=epoch)

    def _begin(self, output: Output, request: Request, refused: list[int]) -> Callable[[], Result]:
        """Queue the images that are not refused."""
        rows = np.arange(len(request))
        if refused:
            rows = np.delete(rows, refused)
            request = request.part(rows, request.target)
        made = self._backend(output).begin(request)

        def result() -> Result:
            array, failures, sizes = made()
            return Result(
                array, {int(rows[row]): one.at(field=output.field) for row, one in failures.items()}, sizes
            )

        return result

    def finish(self, prepared: Prepared) -> Batch:
        """The batch, made; without the samples that fail, where those are to be skipped."""
        skipped: list[Problem] = []
        while True:
            ids, epoch, failures = prepared.ids, prepared.epoch, prepared.failures
            values: dict[str, Any] = {}
            if not failures:
                values, failures = self._values(prepared)
            if not failures:
                return Batch(values, ids, skipped)
            # Errors come in the order of samples: so those of the other images are needed too.
            for made in prepared.images.values():
                failures = {**made().failures, **failures}
            rows = sorted(failures)
            problems = [self._located(failures[row], int(ids[row])) for row in rows]
            # What is raised must not be held by frames in its own traceback: it would outlive its handling.
            failures.clear()
            prepared.failures.clear()
            if not self.skip:
                raise problems.pop(0)
            skipped += [Problem.of(one) for one in problems]
            prepared = self.prepare(np.delete(ids, rows), epoch)

    @property
    def joins(self) -> bool:
        """Whether batches may be made several together: none depends on how its samples were put together."""
        if self.on_device is None or self.decoded is not None or self.plan.joint:
            return False
        collates = any(one.image is not None and one.image.target.collate for one in self.plan.outputs)
        return not collates and not any(op.mixes or isinstance(op, Pad) for op in self.plan.ops)

    def producers(self) -> int:
        """How many threads should make batches."""
        if self.on_device is None:
            return max(PRODUCERS, *(op.batches for op in self.plan.ops), 1)
        try:
            first = [self.reader.spans(one.field, np.zeros(1, np.int64)) for one in self.plan.on_device]
        # It is said of the batch that has it, if there is one.
        except (DataError, IndexError):
            return self.on_device.producers(raw=False)
        return self.on_device.producers(
            raw=all(one is not None and one.shape is not None and bool(one.shape.any()) for one in first)
        )

    def _located(self, error: DataError, sample: int) -> DataError:
        """The error with its place: a reader of many files names the file and counts within it."""
        # Frames of whoever collected it hold it too.
        error.__traceback__ = None
        return error.at(path=self.reader.where(sample), sample=sample)

    def _backend(self, output: Output) -> Backend:
        if self.decoded is not None:
            return self.decoded.of[output.name][1]
        return self.on_device if output.on_device and self.on_device is not None else self.on_cpu

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, ids: I64) -> tuple[dict[str, Column], Failures]:
        fields = self.plan.columns
        if not fields:
            return {}, {}
        began = time.perf_counter()
        try:
            return dict(self.reader.read(ids, fields)), {}
        except DataError:
            failures: Failures = {}
            for field in fields:
                failures = {**self._find_failed(self.reader.read, field, ids), **failures}
            if not failures:
                raise
            return {}, failures
        finally:
            self.timer.add("storage", began)

    def _find_failed(self, read: Callable[[I64, list[str]], Any], field: str, ids: I64) -> Failures:
        """The samples whose cell cannot be read, found by reading each alone."""
        failures: Failures = {}
        for row in range(len(ids)):
            try:
                read(ids[row : row + 1], [field])
            except DataError as error:
                failures[row] = error.at(field=field)
        return failures

    def request(self, output: Output, ids: I64, epoch: int) -> tuple[Request | None, Failures]:
        """What is asked of the back end, and what is wrong with images that must not be decoded."""
        stage = output.image
        assert stage is not None
        field = output.field
        began = time.perf_counter()
        try:
            cells, ready = self._find(output, ids)
        except DataError as error:
            failures = self._find_failed(lambda one, _: self.locator.find(field, one), field, ids)
            if not failures:
                raise error.at(path=self.reader.path, field=field) from None
            return None, failures
        sizes, turns = _sized(cells, stage.decoder.op.orient)
        self.timer.add("storage", began)
        request, failures = make_request(stage, cells, sizes, turns, ready, ids, seed=self.seed, epoch=epoch)
        return request, {row: error.at(field=field) for row, error in failures.items()}

    def _find(self, output: Output, ids: I64) -> tuple[Located, Any]:
        """Where the images lie, and which of them need no cutting and resizing any more."""
        if self.decoded is None:
            return self.locator.find(output.field, ids), None
        shelf, _ = self.decoded.of[output.name]
        return shelf.find(ids, functools.partial(self.locator.find, output.field))

    # -- values ----------------------------------------------------------------------------------------

    def _values(self, prepared: Prepared) -> tuple[dict[str, Any], Failures]:
        if not self.plan.outputs:
            # Rows of tokens are made elsewhere, and mostly there is nothing else.
            return {}, {}
        ids, epoch, columns, images, _, moved = prepared
        if columns is None:
            try:
                columns, failures = self._read(ids)
            except AccessError as error:
                raise error.at(sample=self._needed_by(error, ids)) from None
            if failures:
                return {}, failures
        values: dict[str, Any] = {}
        # Masks and sizes of what is padded, by the names of their outputs.
        beside: dict[str, Any] = {}
        along, failures = self._following.values(lambda one: self._column(one, columns[one.field]), moved)
        if failures:
            return {}, failures
        for output in self.plan.outputs:
            if output.drawn is not None:
                value, failures = moved[output.of or ""].kept(output.drawn), {}
            elif output.name in along:
                value, failures = along.pop(output.name), {}
            elif output.beside is not None:
                value, failures = beside.pop(output.name), {}
            elif output.image is not None:
                began = time.perf_counter()
                # Let go of what it holds as soon as it is made.
                value, failures, beside[output.name + SIZES] = images.pop(output.name)()
                self.timer.add("decode", began)
            else:
                value, failures = self._column(output, columns[output.field])
            if not failures:
                value, failures = self._steps(output, value, ids, epoch, beside)
            if failures:
                return {}, {row: error.at(field=output.field) for row, error in failures.items()}
            values[output.name] = value
        return self._together(values, ids, epoch)

    def _column(self, output: Output, column: Column) -> tuple[Any, Failures]:
        if output.steps and isinstance(output.steps[0].op, CellOp):
            return column, {}
        # Not the last output of the field: the others must not see what the ops do to this one.
        last = self._last_of[output.field] == output.name
        return as_values(self.reader.schema[output.field], column, copy=not last)

    def _steps(
        self, output: Output, value: Any, ids: I64, epoch: int, beside: dict[str, Any]
    ) -> tuple[Any, Failures]:
        began = time.perf_counter()
        for number, step in enumerate(output.steps):
            away = output.on_device and output.device_from <= number < output.device_steps
            there = self.on_device if away else None
            if there is not None and output.image is None and number == output.device_from:
                value = there.send(value)
            if output.on_device and number == output.device_steps:
                value = self._fetch(output, value)
            if (name := padding_name(step.op, output.name)) is not None:
                beside[name] = step.op.mask_of(value) if isinstance(step.op, Pad) else image_sizes(value)
            try:
                value = self._run(output.name, step, value, ids, epoch, there)
            except CellErrors as found:
                return None, found.errors
        self.timer.add("transforms", began)
        return value, {}

    def _fetch(self, output: Output, value: Any) -> Any:
        """What the device made, for the steps that run here."""
        assert self.on_device is not None
        before = output.steps[output.device_steps - 1].spec if output.device_steps else None
        return self.on_device.fetch(value, tensor=before is not None and before.torch)


def _sized(cells: Located, orient: bool) -> tuple[Any, Any]:
    """Heights and widths of images, turned as their EXIF data say if they are to be; and these turns."""
    sizes, turns = sizes_of(cells), None
    if orient:
        turns = turns_of(cells)
        sizes[turns >= 5] = sizes[turns >= 5, ::-1]
    return sizes, turns
