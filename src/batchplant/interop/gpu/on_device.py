"""Pictures made on a device: decoded there, or here, or both; cropped, resized and normalised there.

The box and the flip of every sample are drawn as on the CPU. Then, on the threads of the loader:

- raw pixels: those that the box needs are gathered into pinned memory, one copy for the batch;
- JPEGs that the GPU decodes: their bytes are gathered into pinned memory, and nvJPEG makes pixels of them;
- all others: the engine decodes, crops and resizes into pinned memory, one copy for the batch;

and one kernel makes the batch of all of them. Without a GPU the same plan runs in memory, for tests.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import torch

from ... import _native, limits
from ...columns import I64, starts_of
from ...errors import DataError, OptionError
from ...loading.batch import Executor
from ...loading.pictures import Pictures
from ...loading.plan import ImageStage, Output
from ...ops.base import F64, Draws
from ..torch import torch_dtype
from .nvjpeg import LONGEST_SIDE, Decoder, decoder_on
from .ops import on_device
from .parts import Part, Windows, decoded, finished, joined
from .resample import resample
from .split import Split
from .streams import Streams, Way, rounded

# A picture that shrinks by more than this has too many pixels under one of the result.
MOST_SHRINK = 32
# Threads that make batches: while two are decoded here and there, one is prepared and one finished.
PRODUCERS = 4
# Of raw pixels, which take so little time that more threads would only fight for Python's lock.
RAW_PRODUCERS = 2
# Threads that feed nvJPEG: while the device is at the pictures of one, the other looks at the next.
FEEDERS = 2


class DevicePictures:
    """Makes the pictures of a plan on ``delivery``'s device; see the module."""

    def __init__(self, delivery: Any, engine: Any, split: Split, ahead: int) -> None:
        self.device, self.engine, self.split = delivery.device, engine, split
        self.streams = Streams(delivery.device, delivery.stream, ahead + PRODUCERS)
        self.decoder: Decoder | None = None
        if split.share > 0:
            try:
                self.decoder = decoder_on(self.device)
            except OptionError as error:
                if split.mode in ("gpu", "hybrid"):
                    raise OptionError(f'decode="{split.mode}" is not possible here. {error}') from None
                split.only_cpu()
        self._feeding = ThreadPoolExecutor(FEEDERS, thread_name_prefix="batchplant-gpu")
        self._last = {"cpu": 0.0, "gpu": 0.0}
        self._lock, self._launching = threading.Lock(), threading.Lock()
        self._tables: dict[Any, Any] = {}
        self.seconds = {"decode cpu": 0.0, "decode gpu": 0.0}
        self.decoded = {"cpu": 0, "gpu": 0, "raw": 0}

    # -- planning --------------------------------------------------------------------------------------

    def takes(self, output: Output) -> bool:
        """Whether all that is done to this output can be done on the device."""
        stage = output.image
        if stage is None or stage.mode not in ("RGB", "L"):
            return False
        return all(on_device(step.op) is not None for step in output.steps)

    def producers(self, executor: Executor) -> int:
        """How many threads should call this at a time."""
        fields = [output.field for output in executor.plan.outputs if self.takes(output)]
        try:
            first = [executor.reader.spans(field, np.zeros(1, np.int64)) for field in fields]
        # It is said of the batch that has it, if there is one.
        except (DataError, IndexError):
            return PRODUCERS
        raw = [spans is not None and spans.shape is not None and bool(spans.shape.any()) for spans in first]
        return RAW_PRODUCERS if all(raw) else PRODUCERS

    def run(self, op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
        """One step behind the decoder."""
        with self.streams.on(self.streams.kernels):
            return on_device(op)(batch, ids, draws)  # type: ignore[misc]

    # -- a batch ---------------------------------------------------------------------------------------

    def make(
        self, executor: Executor, batch: Pictures, ids: I64, epoch: int, failed: dict[int, DataError],
        prepared: Callable[[], None],
    ) -> Any:  # fmt: skip
        """The batch on the device; None where some of it failed. ``batch.out`` is not there yet."""
        raw, gpu, cpu = self._sort(batch)
        parts: list[Callable[[Way], Part]] = []
        later: Future[Any] | None = None
        if len(gpu):
            later = self._feeding.submit(self._decode, *self._gathered(executor, batch, gpu))
        spent = 0.0
        if len(cpu):
            began = time.perf_counter()
            parts.append(self._on_cpu(executor, batch, cpu, ids, epoch, failed, prepared))
            spent = self._since("cpu", began)
        prepared()
        if len(raw):
            parts.append(self._raw(executor, batch, raw))
        taken = 0.0
        if later is not None:
            pixels, taken = later.result()
            if pixels is None:
                # If one of them is damaged, the engine says which.
                parts.append(self._on_cpu(executor, batch, gpu, ids, epoch, failed, prepared))
                cpu, gpu = np.concatenate([cpu, gpu]), gpu[:0]
            else:
                whole, place = pixels
                found = decoded(whole, place, batch, gpu)
                parts.append(lambda _: found)
        if failed:
            return None
        if later is None or len(gpu):
            self.split.learn((len(cpu), spent), (len(gpu), taken))
        self._count(cpu=(len(cpu), spent), gpu=(len(gpu), taken), raw=(len(raw), 0.0))
        return self._finish(batch, parts)

    def _sort(self, batch: Pictures) -> tuple[I64, I64, I64]:
        """Which pictures go up as raw pixels, which the GPU decodes, and which the CPU."""
        cells, boxes = batch.cells, batch.boxes
        height, width = self._size(batch.stage)
        wide, high = (boxes[:, 2] - boxes[:, 0]) / width, (boxes[:, 3] - boxes[:, 1]) / height
        plain = (wide <= MOST_SHRINK) & (high <= MOST_SHRINK)
        if batch.turns is not None:
            plain &= batch.turns <= 1
        channels = 1 if batch.stage.mode == "L" else 3
        raw = np.zeros(len(plain), np.bool_)
        if cells.shape is not None:
            # What does not have the bytes of its shape is the engine's to refuse.
            whole = cells.shape.prod(axis=1, dtype=np.float64) == cells.size
            raw = (cells.shape[:, 2] == channels) & plain & whole
            if raw.all():
                return np.arange(len(raw)), np.empty(0, np.int64), np.empty(0, np.int64)
        gpu = np.zeros(len(plain), np.bool_)
        if self.split.share > 0 and channels == 3:
            rows = self._possible(batch, np.flatnonzero(~raw & plain))
            count = self.split.count(len(rows))
            if count < len(rows):
                rows = rows[np.argsort(-_toil(batch, rows), kind="stable")]
            gpu[rows[:count]] = True
        return np.flatnonzero(raw), np.flatnonzero(gpu), np.flatnonzero(~raw & ~gpu)

    def _possible(self, batch: Pictures, rows: I64) -> I64:
        """Those of these rows that the device can decode; all others are the engine's, damaged ones too."""
        cells, sizes = batch.cells, batch.sizes[rows].astype(np.int64)
        # So are those that have too many pixels.
        good = ((sizes > 0) & (sizes <= LONGEST_SIDE)).all(axis=1)
        good &= sizes.prod(axis=1) <= limits.max_pixels()
        if cells.shape is not None:
            good &= ~cells.shape[rows].any(axis=1)
        rows, sizes = rows[good], sizes[good]
        takes = np.zeros(len(rows), np.bool_)
        for number, base in enumerate(cells.bases):
            here = np.flatnonzero(cells.base[rows] == number)
            if len(here):
                start, size = cells.start[rows[here]], cells.size[rows[here]]
                takes[here] = _native.photos(base, start, size, sizes[here])
        return rows[takes]

    def _size(self, stage: ImageStage) -> tuple[int, int]:
        known = [size for size in stage.spec.shape if size is not None]
        return (known[1], known[2]) if stage.channels_first else (known[0], known[1])

    def _memory(self, executor: Executor, size: int) -> Any:
        """Pinned memory, at least so much, which comes back by itself."""
        return executor.buffers.take((rounded(size),), np.dtype(np.uint8))

    def _gathered(self, executor: Executor, batch: Pictures, rows: I64) -> tuple[Any, I64, I64, I64]:
        """The bytes of these cells in pinned memory, where each begins, its length, its height and width."""
        cells = batch.cells
        sizes = np.ascontiguousarray(cells.size[rows])
        starts = starts_of(sizes)[:-1]
        memory = self._memory(executor, int(sizes.sum()))
        # Not by the engine, where this would wait for the pictures before it: the GPU must not.
        for number, base in enumerate(cells.bases):
            here = np.flatnonzero(cells.base[rows] == number)
            from_ = np.ascontiguousarray(cells.start[rows[here]])
            _native.copy_runs(base, from_, sizes[here], memory, starts[here])
        return memory, starts, sizes, batch.sizes[rows].astype(np.int64)

    def _decode(self, *encoded: Any) -> tuple[tuple[Any, I64] | None, float]:
        """On a thread that feeds the decoder: pixels, and how long it took; None where it refuses one."""
        assert self.decoder is not None
        began = time.perf_counter()
        try:
            pixels = self.decoder.decode(*encoded)
        except ValueError:
            return None, 0.0
        # That is not the pictures' fault, and to go on would only be slow.
        except torch.cuda.OutOfMemoryError:
            raise
        except RuntimeError as error:
            warnings.warn(f"{error}: the CPU decodes this batch", RuntimeWarning, stacklevel=1)
            return None, 0.0
        return pixels, self._since("gpu", began)

    def _since(self, side: str, began: float) -> float:
        """How long a side was at a batch that it was given at ``began``, and that it has done now."""
        with self._lock:
            now = time.perf_counter()
            # Before, it was at the one before.
            seconds, self._last[side] = now - max(began, self._last[side]), now
        return seconds

    def _on_cpu(
        self, executor: Executor, batch: Pictures, rows: I64, ids: I64, epoch: int,
        failed: dict[int, DataError], prepared: Callable[[], None],
    ) -> Callable[[Way], Part]:  # fmt: skip
        """These pictures decoded, cropped, flipped and resized by the engine, in pinned memory."""
        height, width = self._size(batch.stage)
        channels = 1 if batch.stage.mode == "L" else 3
        memory = self._memory(executor, len(rows) * height * width * channels)
        out = memory[: len(rows) * height * width * channels].reshape(len(rows), height, width, channels)
        prepared()
        wrong: dict[int, DataError] = {}
        executor.decode(batch.part(rows, out), ids[rows], epoch, wrong)
        failed.update({int(rows[row]): error for row, error in wrong.items()})
        return lambda way: finished(self.streams.copied(torch.from_numpy(out), way), rows)

    def _raw(self, executor: Executor, batch: Pictures, rows: I64) -> Callable[[Way], Part]:
        """Raw pixels: those that the box needs, in pinned memory."""
        windows = Windows(batch, rows, self._size(batch.stage))
        memory = self._memory(executor, windows.room)
        windows.gather(self.engine, memory)
        pixels = torch.from_numpy(memory)[: windows.room]
        return lambda way: windows.part(self.streams.copied(pixels, way))

    def _levels(self, stage: ImageStage) -> tuple[Any, Any]:
        """What a normalisation multiplies with, and adds, on the device."""
        if stage.normalize is None:
            return None, None
        key = id(stage)
        if key not in self._tables:
            std, mean = stage.normalize.std, stage.normalize.mean
            both = torch.tensor(np.stack([1 / std, -mean / std]).tolist(), dtype=torch.float32)
            self._tables[key] = both.to(self.device)
        scale, offset = self._tables[key]
        return scale, offset

    def _finish(self, batch: Pictures, parts: list[Callable[[Way], Part]]) -> Any:
        """What is still here is copied, and the kernel run over all parts, in the order of the batch."""
        stage, streams, way = batch.stage, self.streams, Way()
        count = len(batch.sizes)
        known = [size for size in stage.spec.shape if size is not None]
        # One thread at a time: each of these calls lets go of Python's lock, and several threads that pass it
        # around among them take longer than one after the other.
        with self._launching:
            scale, offset = self._levels(stage)
            everything = joined([part(way) for part in parts], count)
            with streams.on(streams.kernels):
                out = torch.empty((count, *known), dtype=torch_dtype(stage.spec.dtype), device=self.device)
                began = streams.event(streams.kernels)
                resample(
                    everything.sources, everything.boxes, everything.flip, out, filter=stage.filter,
                    channels_first=stage.channels_first, scale=scale, offset=offset,
                    upload=lambda array: streams.upload(array, way),
                )  # fmt: skip
                ended = streams.event(streams.kernels)
        way.held.append(everything.sources.kept)
        streams.hold(way, began, ended)
        return out

    def _count(self, **sides: tuple[int, float]) -> None:
        with self._lock:
            for side, (pictures, seconds) in sides.items():
                self.decoded[side] += pictures
                if side != "raw":
                    self.seconds[f"decode {side}"] += seconds

    def stats(self) -> dict[str, Any]:
        """Seconds by what they were spent on, and which side decoded how many."""
        self.streams.let_go()
        rates = [None if one is None else round(one) for one in self.split.rates]
        return {
            **self.seconds, **self.streams.seconds, "decoded": dict(self.decoded),
            "decode mode": self.split.mode, "gpu share": round(self.split.share, 3),
            "pictures/s": {"cpu": rates[0], "gpu": rates[1]},
        }  # fmt: skip

    def close(self) -> None:
        self._feeding.shutdown(wait=True, cancel_futures=True)
        self.streams.close()


def _toil(batch: Pictures, rows: I64) -> F64:
    """What the engine would have to do for each: read down to the end of the box, and make the pixels in it.

    nvJPEG always makes the whole picture, so it is given those that would cost the engine most.
    """
    x0, y0, x1, y1 = batch.boxes[rows].T
    toil: F64 = batch.sizes[rows, 1] * y1 + (x1 - x0) * (y1 - y0)
    return toil
