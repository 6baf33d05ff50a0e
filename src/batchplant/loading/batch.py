"""Make one batch: read, decode in the engine, run the ops. Any thread may do so at any time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from .. import _native, limits
from ..codecs.cells import decode_cell
from ..columns import I32, I64, U8, Column, Masked, Ragged
from ..errors import BatchplantError, DataError, DecodeError, Problem
from ..ops.base import CellErrors, CellOp, Draws, Op
from ..ops.each import Threads
from ..ops.values import ragged_values
from ..reader import Reader
from ..schema import Field
from ..storage import MappedSource, is_remote, mapped
from .buffers import Buffers
from .pictures import Located, Pictures, check_claims, check_size, known, pixels_of, raw_cell, turns_of
from .plan import ImageStage, Output, Plan, Step, spec_of

# Beyond this many files per batch that no reader has mapped, mapping each costs more than reading it.
MAPPED_FILES = 64
NOT_NATIVE = 2


class Timer:
    """Seconds by what they were spent on, added up from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, what: str, began: float) -> float:
        """Count the time since ``began``; returns the time now."""
        now = time.perf_counter()
        with self._lock:
            self.seconds[what] += now - began
        return now


class Batch(NamedTuple):
    """What came of a batch: the values by output, the samples in it, and those that were left out."""

    values: dict[str, Any]
    ids: I64
    skipped: list[Problem]


class Device(Protocol):
    """What makes pictures on a device; see interop."""

    def takes(self, output: Output) -> bool: ...
    def run(self, op: Op, batch: Any, ids: I64, draws: Draws) -> Any: ...
    def make(
        self, executor: Executor, batch: Pictures, ids: I64, epoch: int, failed: dict[int, DataError],
        prepared: Callable[[], None],
    ) -> Any: ...  # fmt: skip
    def producers(self, executor: Executor) -> int: ...
    def stats(self) -> dict[str, Any]: ...
    def close(self) -> None: ...


class Executor:
    """Turns sample numbers into batches as a plan says."""

    def __init__(
        self,
        reader: Reader,
        plan: Plan,
        engine: Any,
        buffers: Buffers,
        *,
        seed: int,
        skip: bool = False,
        dct: str = "accurate",
        fast_scale: bool = False,
        device: Device | None = None,
    ) -> None:
        self.device = device
        self.reader, self.plan, self.engine, self.buffers = reader, plan, engine, buffers
        self.seed, self.skip, self.dct, self.fast_scale = seed, skip, dct, fast_scale
        self._last_of = {one.field: one.name for one in plan.outputs if not one.is_mask}
        self.timer = Timer()
        self.warnings = 0
        # For pictures that the engine cannot decode.
        self._threads = Threads(engine.threads)
        self._maps: OrderedDict[str, U8] = OrderedDict()
        self._maps_lock = threading.Lock()

    def run(self, ids: I64, epoch: int, prepared: Callable[[], None] = lambda: None) -> Batch:
        """The batch of these samples. ``prepared`` is called once the rest can be done beside others."""
        skipped: list[Problem] = []
        while True:
            failed: dict[int, DataError] = {}
            values = self._values(ids, epoch, failed, prepared)
            if not failed:
                return Batch(values, ids, skipped)
            rows = sorted(failed)
            problems = [self._placed(failed[row], int(ids[row])) for row in rows]
            # An exception whose own traceback leads to it would outlive its handling, and so would we.
            failed.clear()
            if not self.skip:
                raise problems.pop(0)
            skipped += [Problem.of(one) for one in problems]
            ids = np.delete(ids, rows)

    def _placed(self, error: DataError, sample: int) -> DataError:
        """The error with its place: a reader of many files names the file and counts within it."""
        return error.at(path=self.reader.where(sample), sample=sample)

    def _values(
        self, ids: I64, epoch: int, failed: dict[int, DataError], prepared: Callable[[], None]
    ) -> dict[str, Any]:
        if not any(output.image for output in self.plan.outputs):
            prepared()
        began = time.perf_counter()
        columns = self._read(ids, failed)
        self.timer.add("storage", began)
        values: dict[str, Any] = {}
        for output in self.plan.outputs:
            if failed:
                break
            run = self._run_op(output)
            if output.image is not None:
                value = self._pictures(output, output.image, ids, epoch, failed, prepared)
            else:
                field = self.reader.schema[output.field]
                # Not the last output of the field: the others must not see what the ops do to this one.
                last = self._last_of[output.field] == output.name
                value = columns[output.field]
                if not output.steps or not isinstance(output.steps[0].op, CellOp):
                    value = _as_values(field, output.field, value, failed, copy=not last)
            if failed:
                break
            began = time.perf_counter()
            for step in output.steps:
                try:
                    value = run(step.op, value, ids, Draws(self.seed, epoch, ids, step.key))
                except CellErrors as found:
                    failed.update({row: one.at(field=output.field) for row, one in found.errors.items()})
                    break
                except Exception as error:
                    if isinstance(error, BatchplantError):
                        error.at(path=self.reader.path, field=output.name)
                    error.add_note(_where(output, step, ids))
                    raise
            self.timer.add("transforms", began)
            values[output.name] = value
        return values

    def _run_op(self, output: Output) -> Callable[..., Any]:
        """How the steps behind the decoder run: here, or on the device."""
        there = self.device is not None and self.device.takes(output)
        return self.device.run if there else _run_here  # type: ignore[union-attr]

    def _read(self, ids: I64, failed: dict[int, DataError]) -> dict[str, Column]:
        fields = self.plan.columns
        if not fields:
            return {}
        try:
            return dict(self.reader.read(ids, fields))
        except DataError:
            for field in fields:
                self._find_failed(self.reader.read, field, ids, failed)
            if not failed:
                raise
            return {}

    def _find_failed(
        self, read: Callable[[I64, list[str]], Any], field: str, ids: I64, failed: dict[int, DataError]
    ) -> None:
        """The samples whose cell cannot be read, found by reading each alone."""
        for row in range(len(ids)):
            try:
                read(ids[row : row + 1], [field])
            except DataError as error:
                failed.setdefault(row, error.at(field=field))

    def _pictures(
        self, output: Output, stage: ImageStage, ids: I64, epoch: int, failed: dict[int, DataError],
        prepared: Callable[[], None],
    ) -> Any:  # fmt: skip
        began = time.perf_counter()
        try:
            cells = self._locate(output.field, ids)
        except DataError as error:
            self._find_failed(lambda one, _: self._locate(output.field, one), output.field, ids, failed)
            if not failed:
                error.at(path=self.reader.path, field=output.field)
                raise
            return None
        sizes, turns = self._sizes(cells), None
        if stage.decoder.op.orient:  # type: ignore[attr-defined]
            turns = turns_of(cells)
            sizes[turns >= 5] = sizes[turns >= 5, ::-1]
        began = self.timer.add("storage", began)
        batch = Pictures(output, stage, cells, sizes, turns, None, None, None)
        check_claims(batch, failed)
        check_size(batch, failed)
        if failed:
            # They go before memory is taken for any; the others are looked at without them.
            rest = np.delete(np.arange(len(ids)), list(failed))
            found: dict[int, DataError] = {}
            if len(rest):
                self._pictures(output, stage, ids[rest], epoch, found, prepared)
            failed.update({int(rest[row]): one for row, one in found.items()})
            return None
        boxes = self._boxes(stage, sizes, ids, epoch)
        flip = None
        if stage.flip is not None:
            flip = stage.flip.op.flips(Draws(self.seed, epoch, ids, stage.flip.key))  # type: ignore[attr-defined]
        if self.device is not None and self.device.takes(output):
            batch = batch._replace(boxes=boxes, flip=flip)
            value = self.device.make(self, batch, ids, epoch, failed, prepared)
            self.timer.add("decode", began)
            return value
        # Memory only when its turn has come: a batch that waits for the engine needs none. Raw pixels are
        # copied in a moment, and waiting would cost more than it saves.
        if cells.shape is None:
            self.engine.wait_turn()
        out = self.buffers.take((len(ids), *known(stage.spec.shape)), stage.spec.dtype or np.dtype(np.uint8))
        prepared()
        if len(ids):
            self.decode(batch._replace(boxes=boxes, flip=flip, out=out), ids, epoch, failed)
        self.timer.add("decode", began)
        return out

    def _boxes(self, stage: ImageStage, sizes: I32, ids: I64, epoch: int) -> Any:
        # A picture of no known size is refused by whoever decodes it; until then it has one.
        draws = Draws(self.seed, epoch, ids, stage.decoder.key)
        return stage.decoder.op.boxes(np.maximum(sizes, 1), draws)  # type: ignore[attr-defined]

    def decode(self, batch: Pictures, ids: I64, epoch: int, failed: dict[int, DataError]) -> None:
        """Fill ``batch.out``; what cannot be decoded is left in ``failed`` by row."""
        status, errors, warned = self._run_engine(batch, batch.cells, slice(None), batch.turns)
        self.warnings += warned
        for row, message in errors:
            failed[row] = DecodeError(message, field=batch.output.field)
        others = np.flatnonzero(status == NOT_NATIVE).tolist()
        try:
            self._threads.each(len(others), lambda n: self._decode_other(batch, others[n], ids, epoch))
        except CellErrors as found:
            failed.update({others[n]: one.at(field=batch.output.field) for n, one in found.errors.items()})

    def _run_engine(
        self, batch: Pictures, cells: Located, rows: slice, turns: U8 | None
    ) -> tuple[Any, list[tuple[int, str]], int]:
        stage, scale, offset = batch.stage, None, None
        if stage.normalize is not None:
            scale = (1 / stage.normalize.std).astype(np.float32)
            offset = (-stage.normalize.mean / stage.normalize.std).astype(np.float32)
        status, errors, warned = self.engine.decode(
            cells.bases, cells.base, cells.start, cells.size, cells.shape, batch.boxes[rows],
            None if batch.flip is None else batch.flip[rows], batch.out[rows],
            layout="nchw" if stage.channels_first else "nhwc",
            filter=stage.filter, dct=self.dct, fast_scale=self.fast_scale, strict=True,
            scale=scale, offset=offset, orient=turns, mode=stage.mode, most_pixels=limits.max_pixels(),
        )  # fmt: skip
        return status, errors, warned

    def _decode_other(self, batch: Pictures, row: int, ids: I64, epoch: int) -> None:
        """A picture that the engine cannot decode: to pixels first, then as raw."""
        pixels = pixels_of(batch, row)
        if pixels.shape[:2] != tuple(batch.sizes[row]):
            # The header did not tell.
            wrong: dict[int, DataError] = {}
            one = slice(row, row + 1)
            batch.sizes[row] = pixels.shape[:2]
            batch.boxes[row] = self._boxes(batch.stage, batch.sizes[one], ids[one], epoch)[0]
            check_size(batch._replace(sizes=batch.sizes[one]), wrong)
            if wrong:
                raise wrong[0]
        done, errors, _ = self._run_engine(batch, raw_cell(pixels), slice(row, row + 1), None)
        if done[0]:
            why = errors[0][1] if errors else f"a picture of {pixels.shape[2]} channels does not fit"
            raise DecodeError(why)

    def _locate(self, field: str, ids: I64) -> Located:
        """Where the cells are: in mapped files where they can be, else read."""
        spans = self.reader.spans(field, ids)
        bases = None if spans is None else self._bases(spans.files)
        if spans is not None and bases is not None:
            return Located(bases, spans.file, spans.start, spans.size, spans.shape)
        column = self.reader.read(ids, [field])[field]
        assert isinstance(column, Ragged)
        start = np.ascontiguousarray(column.starts)
        return Located([column.data], np.zeros(len(ids), dtype=np.int32), start, column.sizes, column.shape)

    def _bases(self, files: Sequence[str]) -> list[U8] | None:
        """These files, mapped; None where reading the cells is better."""
        found = [mapped(path) for path in files]
        missing = sum(base is None for base in found)
        if missing > MAPPED_FILES or any(map(is_remote, files)):
            return None
        try:
            return [
                self._map(path) if base is None else base for path, base in zip(files, found, strict=True)
            ]
        except OSError:
            # A file that went away: the reader knows how to say so.
            return None

    def _map(self, path: str) -> U8:
        with self._maps_lock:
            found = self._maps.pop(path, None)
            self._maps[path] = found = MappedSource(path).data if found is None else found
            # Those used last stay; in a folder of a million pictures, each is a file.
            while len(self._maps) > 2 * MAPPED_FILES:
                self._maps.popitem(last=False)
            return found

    def _sizes(self, cells: Located) -> I32:
        """(height, width) of every picture; zeros where the header tells none."""
        raw = np.zeros(len(cells.start), dtype=np.bool_) if cells.shape is None else cells.shape.any(axis=1)
        all_raw = bool(raw.all())
        sizes = _native.look(cells.bases, cells.base, cells.start, cells.size, headers=not all_raw)
        if cells.shape is not None:
            if all_raw:
                return cells.shape[:, :2].copy()
            sizes[raw] = cells.shape[raw, :2]
        return sizes


def _as_values(field: Field, name: str, column: Column, failed: dict[int, DataError], *, copy: bool) -> Any:
    """A column as a batch: an array, (values, offsets), or a list where cells are no numbers.

    Arrays belong to the batch and can be written to.
    """
    if isinstance(column, Masked):
        try:
            column = column.values
        except DecodeError as error:
            failed[error.sample or 0] = error.at(field=name)
            return None
    if not isinstance(column, Ragged):
        return column.copy() if copy or not column.flags.writeable else column
    spec = spec_of(field)
    if spec.dtype is None:
        cells = []
        for row in range(len(column)):
            try:
                value = decode_cell(field, column, row)
                cells.append(value.copy() if isinstance(value, np.ndarray) else value)
            except DataError as error:
                failed[row] = error.at(field=name)
        return cells
    rest = known(spec.shape[1:])
    width = spec.dtype.itemsize * int(np.prod(rest))
    for row in np.flatnonzero(column.sizes % width).tolist():
        failed[row] = DecodeError(f"{column.sizes[row]} bytes are not {field}", field=name)
    if failed:
        return None
    values, offsets = ragged_values(column, spec.dtype, rest)
    return values.copy() if copy or not values.flags.writeable else values, offsets


def _run_here(op: Op, batch: Any, ids: I64, draws: Draws) -> Any:
    return op.run(batch, ids, draws)


def _where(output: Output, step: Step, ids: I64) -> str:
    """What a note on an exception says, beside the stack trace of whoever wrote the function."""
    some = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "")
    return f"batchplant: field {output.name!r}, step {step.op!r}, samples {some}"
