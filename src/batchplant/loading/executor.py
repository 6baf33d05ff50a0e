"""The executor makes one batch: it reads columns, queues images, and runs the ops of the plan.

Any thread may call it at any time. ``SampleBatches`` are the batches of one epoch by number; the threads of
the epoch make them through it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .. import order as orders
from ..codecs.cells import decode_cell, decode_texts
from ..codecs.sparse import unpack_rows
from ..codecs.text import numbers_of
from ..data.reader import Reader
from ..data.sparse import SparseRows
from ..errors import AccessError, BatchplantError, DataError, DecodeError, Problem, with_place
from ..ops.annotations import MoveBoxes, MovePolygons, MoveRle, move_points, take_label_rows
from ..ops.base import Batch as Values
from ..ops.base import CellErrors, CellOp, Draws, RowError
from ..ops.cutting import sizes_of as image_sizes
from ..ops.function import Function
from ..ops.geometry import Motion, still
from ..ops.joint import Map
from ..ops.values import Pad, ragged_values
from ..ops.warping import Warp
from ..schema import Field, List, Text
from ..schema.columns import I32, I64, U8, AnyArray, Column, Flags, Masked, Ragged
from ..storage.remote.blocks import CHUNK_BYTES
from ..storage.remote.fetch import Answer
from ..storage.spans import Located, Spans, concat_spans
from .decoded import DecodedImages
from .images import (
    Backend,
    Device,
    Failures,
    OnCpu,
    Request,
    Result,
    header_sizes,
    locate,
    make_request,
    turns_of,
)
from .plan import SIZES, Output, Plan, padding_name, spec_of
from .stage import Step


class GeometricTransforms(NamedTuple):
    """Transforms of the images of a batch, step by step, from their stored ``sizes`` (height, width) on."""

    sizes: I32
    steps: tuple[Motion, ...]

    @property
    def composed(self) -> Motion:
        """All steps as one."""
        return functools.reduce(Motion.then, self.steps)

    def drawn(self, name: str) -> AnyArray:
        """Return a parameter of the transform, as an array with a row for each image.

        matrix: from positions in the stored image to those in the batch. size: the stored height and width.
        box: the visible part of the stored image (left, top, right, bottom). flip: whether it is mirrored.
        angle: its rotation in degrees, clockwise.
        """
        composed = self.composed
        if name == "matrix":
            return composed.matrix
        if name == "size":
            return self.sizes
        mirrored: Flags = np.linalg.det(composed.matrix) < 0
        if name == "flip":
            return mirrored
        if name == "angle":
            # For a mirrored image, the rotation after mirroring.
            side = composed.matrix[:, :2, 0] * np.where(mirrored, -1, 1)[:, None]
            return np.degrees(np.arctan2(side[:, 1], side[:, 0])) + 0.0
        height, width = composed.sizes[:, 0], composed.sizes[:, 1]
        zero = np.zeros(len(composed))
        corners = np.stack([zero, zero, width, zero, width, height, zero, height], axis=1).reshape(-1, 4, 2)
        stored = move_points(corners, np.linalg.inv(composed.matrix).astype(np.float64))
        return np.concatenate([stored.min(axis=1), stored.max(axis=1)], axis=1)


def geometric_transforms(
    output: Output, sizes: I32, ids: I64, *, seed: int, epoch: int
) -> GeometricTransforms:
    """Return the transforms from stored images of these sizes (after EXIF rotation) to those of the batch."""
    current = sizes
    motions: list[Motion] = []
    stage = output.image
    first = () if stage is None else stage.steps
    for number, step in enumerate((*first, *output.steps)):
        draws = Draws(seed, epoch, ids, step.key)
        # Warps that run as one op still count one by one: each cuts off what it moves out of the image.
        chain = step.op.chain(current, draws) if isinstance(step.op, Warp) else [step.op.move(current, draws)]
        moved = [motion for motion in chain if motion is not None]
        # Pixels are sampled once for all steps of the decoder, and once for warps that run as one op.
        inner = len(moved) if number < len(first) - 1 else max(len(moved) - 1, 0)
        motions += [dataclasses.replace(motion, samples=False) for motion in moved[:inner]] + moved[inner:]
        current = motions[-1].sizes if motions else current
    return GeometricTransforms(sizes, tuple(motions) or (still(sizes),))


class AnnotationTransforms:
    """Moves the annotations of images, batch by batch."""

    def __init__(self, plan: Plan) -> None:
        self._movers = [(output, output.mover) for output in plan.outputs if output.mover is not None]
        self._rows = [(output, output.rows_of) for output in plan.outputs if output.rows_of is not None]
        # The image outputs whose transforms are needed.
        self.images = {mover.of for _, mover in self._movers}
        self.images |= {output.of for output in plan.outputs if output.drawn}
        self._stored_sizes: dict[Hashable, I32] = {}

    def sizes(
        self, request: Request, read_sizes: Callable[[I64], I32] | None, key: Hashable, samples: int
    ) -> I32:
        """Return heights and widths of stored images.

        ``read_sizes`` reads them where the images of the request are cached in other sizes; they are then
        remembered under ``key``.
        """
        if read_sizes is None:
            sizes = request.sizes.copy()
        else:
            stored = self._stored_sizes.setdefault(key, np.zeros((samples, 2), dtype=np.int32))
            new = request.ids[~stored[request.ids].all(axis=1)]
            if len(new):
                stored[new] = read_sizes(new)
            sizes = stored[request.ids]
        for row in np.flatnonzero(~sizes.all(axis=1)).tolist():
            # The header does not tell the size.
            try:
                sizes[row] = request.pixels(row).shape[:2]
            except DataError:
                # The error is reported when the image is decoded.
                sizes[row] = 1
        return sizes

    def values(
        self,
        read: Callable[[Output], tuple[Values, Failures]],
        transforms: Mapping[str, GeometricTransforms],
    ) -> tuple[dict[str, Values], Failures]:
        """Return the transformed values of all annotations, as the steps of their outputs take them."""
        values: dict[str, Values] = {}
        stored: dict[str, Values] = {}
        rows_left: dict[str, tuple[Values, I64]] = {}
        for output in dict.fromkeys([output for output, _ in (*self._movers, *self._rows)]):
            values[output.name], failures = read(output)
            if failures:
                return {}, {row: error.at(field=output.field) for row, error in failures.items()}
        field = ""
        try:
            for output, mover in self._movers:
                field = output.field
                transform = transforms[mover.of or ""]
                stored[output.name] = values[output.name]
                values[output.name], rows_left[output.name] = mover.move_with(
                    values[output.name], transform.steps, transform.sizes
                )
            for output, mover in self._movers:
                if isinstance(mover, MoveBoxes) and mover._areas is not None:
                    transform = transforms[mover.of or ""]
                    outlines = [
                        (outline, stored[label.name], values[label.name])
                        for label, outline in self._movers
                        if label.name in (mover.labels or ()) and isinstance(outline, MoveRle | MovePolygons)
                    ]
                    values[mover._areas] = mover.scale_areas(
                        values[mover._areas],
                        stored[output.name],
                        outlines,
                        (transform.steps, transform.sizes),
                    )
            for output, boxes in self._rows:
                field = output.field
                rows, offsets = rows_left[boxes]
                values[output.name] = take_label_rows(values[output.name], rows, offsets, output.name, boxes)
        except CellErrors as failed:
            return {}, {row: error.at(field=field) for row, error in failed.errors.items()}
        return values, {}


# Threads that make batches: while the engine decodes one, the Python part of the next runs.
PRODUCERS = 2
# Batches in flight in another process, besides those that the loader is asked to make in advance.
EXTRA_BATCHES = 1


class Batch(NamedTuple):
    """The values of a batch by output, its samples, and the samples that were left out."""

    values: dict[str, Any]
    ids: I64
    skipped: list[Problem]


class Prepared(NamedTuple):
    """A batch that was read and whose images are queued; with ``columns`` None, it is still to be read."""

    ids: I64
    epoch: int
    columns: dict[str, Column] | None
    images: dict[str, Callable[[], Result]]
    failures: Failures
    # Of the images that annotations belong to, by output.
    transforms: dict[str, GeometricTransforms]
    # Returns the values that another process makes of the batch; None where it does not. See loading.node.
    answer: Callable[[], dict[str, Any] | None] | None = None


class Timer:
    """Seconds by activity, summed over all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, activity: str, began: float) -> float:
        """Count the time since ``began``; returns the time now."""
        now = time.perf_counter()
        with self._lock:
            self.seconds[activity] += now - began
        return now


class Executor:
    """Turns sample numbers into batches as a plan says, in two steps.

    ``prepare`` is called for one batch at a time, in order; ``finish`` for many in parallel. ``reads``: this
    process reads the bytes of batches, which may be prefetched.
    """

    reads = True

    def __init__(
        self, reader: Reader, plan: Plan, on_cpu: OnCpu, on_device: Device | None = None, *,
        seed: int, skip: bool = False, decoded: DecodedImages | None = None,
    ) -> None:  # fmt: skip
        self.reader, self.plan, self.on_cpu, self.on_device = reader, plan, on_cpu, on_device
        self.seed, self.skip = seed, skip
        self._last_of = {output.field: output.name for output in plan.outputs if not output.is_mask}
        self.decoded = decoded
        self._annotations = AnnotationTransforms(plan)
        # `functions` times each function of the user by itself.
        self.timer, self.functions = Timer(), Timer()
        # When an epoch ended with all of its bytes in memory.
        self.resident_at = -math.inf

    def ranges(self, ids: I64) -> Spans | None:
        """Return the bytes that these samples need; images that are cached decoded need none."""
        unread = self.reader._layout().unread or self.reader._ranges
        fields, cached = self.plan.fields, None if self.decoded is None else self.decoded.holds(ids)
        if cached is None or not cached.any():
            return unread(fields, ids)
        parts = [(fields, ids[~cached]), (self.plan.columns, ids[cached])]
        spans = [unread(names, samples) for names, samples in parts if names and len(samples)]
        return concat_spans([part for part in spans if part is not None])

    def run(self, ids: I64, epoch: int) -> Batch:
        """Make the batch of these samples."""
        return self.finish(self.prepare(ids, epoch))

    def prepare(self, ids: I64, epoch: int) -> Prepared:
        """Read the batch, draw boxes and flips, and queue its images."""
        try:
            return self._prepare(ids, epoch)
        except AccessError as error:
            raise error.at(sample=self._sample_at(error, ids)) from None

    def _sample_at(self, error: AccessError, ids: I64) -> int | None:
        """Return the first sample whose bytes a server did not give."""
        if error.offset is None:
            return None
        for sample in ids:
            spans = self.reader.ranges(self.plan.fields, [sample])
            if spans is not None:
                near = (spans.start < error.offset + CHUNK_BYTES) & (spans.start + spans.size > error.offset)
                if any(spans.files[file] == error.path for file in spans.file[near]):
                    return int(sample)
        return None

    def _prepare(self, ids: I64, epoch: int) -> Prepared:
        images: dict[str, Callable[[], Result]] = {}
        if not self.plan.images:
            # Nothing to queue, and reading need not be in order.
            return Prepared(ids, epoch, None, images, {}, {})
        columns, failures = self._read(ids)
        transforms: dict[str, GeometricTransforms] = {}
        for output in self.plan.images:
            if failures:
                break
            request, failures = self.request(output, ids, epoch)
            if request is not None and output.name in self._annotations.images:
                transforms[output.name] = self._transforms(output, request, epoch)
            if request is not None:
                began = time.perf_counter()
                images[output.name] = self._begin(output, request, list(failures))
                self.timer.add("decode", began)
        return Prepared(ids, epoch, columns, images, failures, transforms)

    def _transforms(self, output: Output, request: Request, epoch: int) -> GeometricTransforms:
        """Return how the pipeline of an image output moves its pixels."""
        assert output.image is not None
        orient = output.image.decoder.op.orient

        def stored_sizes(ids: I64) -> I32:
            return _oriented_sizes(locate(self.reader, output.field, ids), orient)[0]

        # A cached image may have another size than the stored one.
        read_sizes = stored_sizes if self.decoded is not None else None
        sizes = self._annotations.sizes(request, read_sizes, (output.field, orient), len(self.reader))
        return geometric_transforms(output, sizes, request.ids, seed=self.seed, epoch=epoch)

    def _begin(self, output: Output, request: Request, refused: list[int]) -> Callable[[], Result]:
        """Queue the images that are not refused."""
        rows = np.arange(len(request))
        if refused:
            rows = np.delete(rows, refused)
            request = request.part(rows, request.target)
        finish = self._backend(output).begin(request)

        def result() -> Result:
            array, failures, sizes = finish()
            located = {int(rows[row]): error.at(field=output.field) for row, error in failures.items()}
            return Result(array, located, sizes)

        return result

    def finish(self, prepared: Prepared) -> Batch:
        """Complete the batch; with ``skip``, without the samples that fail."""
        skipped: list[Problem] = []
        while True:
            ids, epoch, failures = prepared.ids, prepared.epoch, prepared.failures
            values: dict[str, Any] = {}
            if not failures:
                values, failures = self._values(prepared)
            if not failures:
                return Batch(values, ids, skipped)
            # Errors are reported in the order of samples, so those of the other images are needed too.
            for result in prepared.images.values():
                failures = {**result().failures, **failures}
            rows = sorted(failures)
            problems = [self._located(failures[row], int(ids[row])) for row in rows]
            # Break the cycle exception -> traceback -> frame -> exception.
            failures.clear()
            prepared.failures.clear()
            if not self.skip:
                raise problems.pop(0)
            skipped += [Problem.of(error) for error in problems]
            prepared = self.prepare(np.delete(ids, rows), epoch)

    @property
    def can_coalesce(self) -> bool:
        """True if several batches can be made together: no value depends on the composition of its batch."""
        if self.on_device is None or self.decoded is not None or self.plan.joint:
            return False
        collates = any(output.image and output.image.target.collate for output in self.plan.outputs)
        return not collates and not any(op.mixes or isinstance(op, Pad) for op in self.plan.ops)

    def room(self) -> int:
        """Return the least number of batches that should be in flight, as far as that matters here."""
        return 0

    def producers(self) -> int:
        """Return the number of threads that should make batches."""
        if self.on_device is None:
            return max(PRODUCERS, *(op.batches for op in self.plan.ops), 1)
        first = np.zeros(1, np.int64)
        try:
            spans = [self.reader.spans(output.field, first) for output in self.plan.on_device]
        # The batch that has this sample, if there is one, reports the error.
        except (DataError, IndexError):
            return self.on_device.producers(raw=False, size=0)
        raw = all(span is not None and span.shape is not None and bool(span.shape.any()) for span in spans)
        size = max((float(span.size.max()) for span in spans if span is not None), default=0)
        return self.on_device.producers(raw=raw, size=size)

    def _located(self, error: DataError, sample: int) -> DataError:
        """Add file and sample to an error: a reader of many files names the file and counts within it."""
        # The frames of its traceback refer to the error, too.
        error.__traceback__ = None
        return error.at(path=self.reader.where(sample), sample=sample)

    def _backend(self, output: Output) -> Backend:
        if self.decoded is not None:
            return self.decoded.by_output[output.name][1]
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
        """Return the samples whose cell cannot be read, by reading each by itself."""
        failures: Failures = {}
        for row in range(len(ids)):
            try:
                read(ids[row : row + 1], [field])
            except DataError as error:
                failures[row] = error.at(field=field)
        return failures

    def request(self, output: Output, ids: I64, epoch: int) -> tuple[Request | None, Failures]:
        """Return the request for the back end, and the errors of images that must not be decoded."""
        stage = output.image
        assert stage is not None
        field = output.field
        began = time.perf_counter()
        try:
            cells, ready = self._find(output, ids)
        except DataError as error:
            failures = self._find_failed(lambda rows, _: locate(self.reader, field, rows), field, ids)
            if not failures:
                raise error.at(path=self.reader.path, field=field) from None
            return None, failures
        sizes, turns = _oriented_sizes(cells, stage.decoder.op.orient)
        self.timer.add("storage", began)
        request, failures = make_request(stage, cells, sizes, turns, ready, ids, seed=self.seed, epoch=epoch)
        return request, {row: error.at(field=field) for row, error in failures.items()}

    def _find(self, output: Output, ids: I64) -> tuple[Located, npt.NDArray[np.bool_] | None]:
        """Return the images in memory, and which of them need no crop and resize any more."""
        if self.decoded is None:
            return locate(self.reader, output.field, ids), None
        images, _ = self.decoded.by_output[output.name]
        return images.find(ids, functools.partial(locate, self.reader, output.field))

    # -- values ----------------------------------------------------------------------------------------

    def _values(self, prepared: Prepared) -> tuple[dict[str, Any], Failures]:
        if not self.plan.outputs:
            # Packing makes the rows of tokens, and often there is nothing else.
            return {}, {}
        ids, epoch, columns, images, transforms = *prepared[:4], prepared.transforms
        if columns is None:
            try:
                columns, failures = self._read(ids)
            except AccessError as error:
                raise error.at(sample=self._sample_at(error, ids)) from None
            if failures:
                return {}, failures
        values: dict[str, Any] = {}
        # Masks and sizes of padded outputs, by the names of their own outputs.
        padding: dict[str, Any] = {}
        annotations, failures = self._annotations.values(
            lambda output: self._column(output, columns[output.field]), transforms
        )
        if failures:
            return {}, failures
        for output in self.plan.outputs:
            if output.drawn is not None:
                value, failures = transforms[output.of or ""].drawn(output.drawn), {}
            elif output.name in annotations:
                value, failures = annotations.pop(output.name), {}
            elif output.beside is not None:
                value, failures = padding.pop(output.name), {}
            elif output.image is not None:
                began = time.perf_counter()
                # Popped, so that the request is released as soon as its images are decoded.
                value, failures, padding[output.name + SIZES] = images.pop(output.name)()
                self.timer.add("decode", began)
            else:
                value, failures = self._column(output, columns[output.field])
            if output.steps and not failures:
                value, failures = self._run_steps(output, value, ids, epoch, padding)
            if failures:
                return {}, {row: error.at(field=output.field) for row, error in failures.items()}
            values[output.name] = value
        return self._run_joint(values, ids, epoch)

    def _column(self, output: Output, column: Column) -> tuple[Any, Failures]:
        if output.steps and isinstance(output.steps[0].op, CellOp):
            return column, {}
        # Ops may write to the array: all outputs of the field but the last get a copy.
        last = self._last_of[output.field] == output.name
        return as_values(self.reader.schema[output.field], column, copy=not last)

    # -- steps -----------------------------------------------------------------------------------------

    def _run_steps(
        self, output: Output, value: Any, ids: I64, epoch: int, padding: dict[str, Any]
    ) -> tuple[Any, Failures]:
        began = time.perf_counter()
        for number, step in enumerate(output.steps):
            is_device_step = output.on_device and output.device_from <= number < output.device_steps
            device = self.on_device if is_device_step else None
            if device is not None and output.image is None and number == output.device_from:
                value = device.send(value)
            if output.on_device and number == output.device_steps:
                value = self._fetch(output, value)
            if (name := padding_name(step.op, output.name)) is not None:
                padding[name] = step.op.mask_of(value) if isinstance(step.op, Pad) else image_sizes(value)
            try:
                value = self._run_step(output.name, step, value, ids, epoch, device)
            except CellErrors as failed:
                return None, failed.errors
        self.timer.add("transforms", began)
        return value, {}

    def complete(self, values: dict[str, Any], ids: I64, epoch: int) -> tuple[dict[str, Any], Failures]:
        """Run the steps of the plan on values that were made elsewhere; its images are made."""
        padding: dict[str, Any] = {}
        for output in self.plan.outputs:
            value = padding.pop(output.name) if output.beside is not None else values[output.name]
            value, failures = self._run_steps(output, value, ids, epoch, padding)
            if failures:
                return {}, failures
            values[output.name] = value
        return self._run_joint(values, ids, epoch)

    def _fetch(self, output: Output, value: Any) -> Any:
        """Fetch a value from the device, for the steps that run on the CPU."""
        assert self.on_device is not None
        before = output.steps[output.device_steps - 1].spec if output.device_steps else None
        return self.on_device.fetch(value, tensor=before is not None and before.torch)

    def _run_joint(self, values: dict[str, Any], ids: I64, epoch: int) -> tuple[dict[str, Any], Failures]:
        """Run the steps that see several outputs."""
        began = time.perf_counter()
        on_device = {
            output.name for output in self.plan.on_device if output.device_steps == len(output.steps)
        }
        for step in self.plan.joint:
            op, name = step.op, ", ".join(step.op.inputs)
            device = self.on_device if op.device_form is not None and op.inputs[0] in on_device else None
            if self.on_device is not None:
                fetched = on_device.intersection(op.inputs).difference(
                    () if device is None else op.device_inputs
                )
                values |= {key: self.on_device.fetch(values[key], tensor=False) for key in fetched}
                on_device -= fetched
            inputs = {key: values[key] for key in op.inputs}
            try:
                results = self._run_step(name, step, inputs, ids, epoch, device)
            except CellErrors as failed:
                return {}, {row: error.at(field=name) for row, error in failed.errors.items()}
            values = {key: value for key, value in values.items() if key not in op.drops} | results
            on_cpu = {key for key, value in results.items() if isinstance(value, np.ndarray | tuple | list)}
            on_device = (on_device | set(results)) - on_cpu if device else on_device - set(results)
        if self.plan.joint:
            self.timer.add("transforms", began)
        return values, {}

    def _run_step(
        self, name: str, step: Step[Any], value: Any, ids: I64, epoch: int, device: Device | None
    ) -> Any:
        """Return what a step makes of a value; errors say where they happened."""
        began = time.perf_counter()
        failed: list[Any] = []
        try:
            run = step.op.run if device is None else functools.partial(device.run, step.op)
            value = run(value, ids, Draws(self.seed, epoch, ids, step.key))
        except CellErrors:
            raise
        except RowError as row_error:
            failed = [row_error.row, row_error.error]
        except Exception as error:
            self._annotate(error, name, step, ids, self.reader.path)
            raise
        if failed:
            # Raised outside of the handler: as its context, the RowError would be part of a reference cycle.
            self._raise(failed, name, step, ids)
        if isinstance(step.op, Function | Map):
            self.functions.add(f"{name}: {step.op.name}", began)
        return value

    def _raise(self, failed: list[Any], name: str, step: Step[Any], ids: I64) -> None:
        """Raise the error of one sample, [row, error], with its place."""
        error, row = failed.pop(), failed.pop()
        self._annotate(error, name, step, ids[row : row + 1], self.reader.where(int(ids[row])))
        try:
            raise error
        finally:
            # Break the cycle exception -> traceback -> frame -> exception.
            del error

    def _annotate(self, error: Exception, name: str, step: Step[Any], ids: I64, path: str | None) -> None:
        """Note on an error where a user's function raised it."""
        if isinstance(error, BatchplantError):
            error.at(path=path, field=name, sample=int(ids[0]) if len(ids) == 1 else None)
        samples = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "")
        text = f"step {step.op!r}, sample{'' if len(ids) == 1 else 's'} {samples}"
        error.add_note("batchplant: " + with_place(text, path, None, name, None))


class RemoteExecutor(Executor):
    """An Executor whose batches another process makes, as far as they are made of data.

    ``alone`` makes a batch here: where a step failed, and where no process makes it. Its errors are those of
    a Loader that makes all batches itself. tail: what follows here behind the steps of the other process.
    """

    reads = False
    # Of its figures in the statistics of a Loader, and of the seconds that it waits for batches.
    name, waits_for = "", "decode"

    def __init__(self, alone: Executor, tail: Plan | None, prefetch_batches: int) -> None:
        super().__init__(alone.reader, alone.plan, alone.on_cpu, seed=alone.seed, skip=alone.skip)
        self._alone, self._prefetch_batches = alone, prefetch_batches
        self.timer, self.functions = alone.timer, alone.functions
        self._tail: Executor | None = None
        if tail is not None:
            self._tail = Executor(alone.reader, tail, alone.on_cpu, alone.on_device, seed=alone.seed)
            self._tail.timer, self._tail.functions = alone.timer, alone.functions
        self._counting = threading.Lock()
        self._from_server, self._from_here = 0, 0

    def ask(self, ids: I64, epoch: int) -> Answer[dict[str, Any] | None] | None:
        """Ask for a batch; the answer is None where no process makes it, as is the result where it fails."""
        raise NotImplementedError

    def producers(self) -> int:
        """Return the number of threads that wait for batches."""
        return max(super().producers(), self._prefetch_batches + EXTRA_BATCHES)

    def prepare(self, ids: I64, epoch: int) -> Prepared:
        """Ask for the batch."""
        answer = self.ask(ids, epoch)
        if answer is None:
            return self._alone.prepare(ids, epoch)
        return Prepared(ids, epoch, None, {}, {}, {}, answer.result)

    def finish(self, prepared: Prepared) -> Batch:
        """Wait for the batch; make it here if the other process does not."""
        batch = None if prepared.answer is None else self.complete_answer(prepared)
        with self._counting:
            self._from_server += batch is not None
            self._from_here += batch is None
        if batch is not None:
            return batch
        if prepared.answer is not None:
            prepared = self._alone.prepare(prepared.ids, prepared.epoch)
        return self._alone.finish(prepared)

    def complete_answer(self, prepared: Prepared) -> Batch | None:
        """Return the batch that an answer leads to; None if there is none, or a step here fails."""
        assert prepared.answer is not None
        began = time.perf_counter()
        values = prepared.answer()
        self.timer.add(self.waits_for, began)
        if values is not None and self._tail is not None:
            values, failures = self._tail.complete(values, prepared.ids, prepared.epoch)
            values = None if failures else values
        if values is None:
            return None
        return Batch({name: values[name] for name in self.plan.names}, prepared.ids, [])

    def servers(self) -> int | None:
        """Return how many servers would make batches as fast as the loop uses them; None without servers."""
        return None

    def stats(self) -> dict[str, Any]:
        """Return figures for the statistics of the Loader."""
        raise NotImplementedError

    def close(self) -> None:
        """End connections."""


def _oriented_sizes(cells: Located, orient: bool) -> tuple[I32, U8 | None]:
    """Return heights and widths of images, with ``orient`` after the EXIF rotation, and these rotations."""
    sizes, turns = header_sizes(cells), None
    if orient:
        turns = turns_of(cells)
        sizes[turns >= 5] = sizes[turns >= 5, ::-1]
    return sizes, turns


def as_values(field: Field, column: Column, *, copy: bool) -> tuple[Any, Failures]:
    """Return a column as a batch: an array, (values, offsets), or a list where cells are no numbers.

    Arrays belong to the batch and can be written to.
    """
    if isinstance(column, Masked):
        try:
            column = column.values
        except DecodeError as error:
            return None, {error.sample or 0: error}
    if not isinstance(column, Ragged):
        return column.copy() if copy or not column.flags.writeable else column, {}
    spec = spec_of(field)
    failures: Failures = {}
    if spec.sparse is not None:
        parts, problems = unpack_rows(spec.sparse, column, copy=copy)
        failures = {row: DecodeError(problem) for row, problem in problems.items()}
        return SparseRows((*parts, *spec.sparse.shape)), failures
    if spec.dtype is None:
        texts = decode_texts(column) if type(field) is Text else None
        if texts is not None:
            return texts, failures
        cells = []
        for row in range(len(column)):
            try:
                value = decode_cell(field, column, row)
                cells.append(value.copy() if isinstance(value, np.ndarray) else value)
            except DataError as error:
                failures[row] = error
        return cells, failures
    if isinstance(field, List):
        try:
            column = numbers_of(field, column)
        except DecodeError as error:
            return None, {error.sample or 0: error}
    inner_shape = tuple(size for size in spec.shape[1:] if size is not None)
    width = spec.dtype.itemsize * int(np.prod(inner_shape))
    for row in np.flatnonzero(column.sizes % width).tolist():
        failures[row] = DecodeError(f"{column.sizes[row]} bytes are not {field}")
    if failures:
        return None, failures
    values, offsets = ragged_values(column, spec.dtype, inner_shape)
    return (values.copy() if copy or not values.flags.writeable else values, offsets), {}


class PreparedBatches(NamedTuple):
    """Batches that are made together, and the samples of each."""

    prepared: Prepared
    ids: list[I64]


class SampleBatches:
    """The batches of one epoch on this rank, by number; ``indices``: samples by position of the order."""

    def __init__(self, executor: Executor, shard: orders.Batches, indices: I64 | None, epoch: int) -> None:
        self.executor, self.shard, self.indices, self.epoch = executor, shard, indices, epoch

    def ids(self, number: int) -> I64:
        """Return the samples of a batch."""
        positions = self.shard.batch(number)
        return positions if self.indices is None else self.indices[positions]

    def prepare(self, numbers: range) -> Any:
        """Read batches that are made together, and queue their images."""
        ids = [self.ids(number) for number in numbers]
        samples = ids[0] if len(ids) == 1 else np.concatenate(ids)
        return PreparedBatches(self.executor.prepare(samples, self.epoch), ids)

    def finish(self, prepared: Any) -> Batch:
        """Complete what ``prepare`` returned: one batch that holds them all."""
        return self.executor.finish(prepared.prepared)
