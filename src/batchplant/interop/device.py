"""Pictures made on a device: decoded there, or here, or both; cropped, resized and normalised there.

The box and the flip of every sample are drawn as on the CPU. Then, on the threads of the loader:

- raw pixels: the rows that are needed are gathered into pinned memory, one copy for the batch;
- JPEGs that the GPU decodes: their bytes are gathered into pinned memory, and nvJPEG makes pixels of them;
- all others: the engine decodes, crops and resizes into pinned memory, one copy for the batch;

and one kernel makes the batch of all of them. Copies run on one stream, kernels on another; what they read is
held until they have read it. Without a GPU the same plan runs in memory, for tests.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from .. import _native
from ..codecs import image as pictures
from ..columns import I32, I64, Flags
from ..errors import DataError, OptionError
from ..execute import Executor
from ..located import Located, Pictures
from ..ops.base import Draws
from ..plan import ImageStage, Output
from .device_ops import on_device
from .parts import Part, PlanarViews, RawViews, decoder_on, joined
from .resample import Sources, margin, resample
from .split import Split
from .torch import torch_dtype

# Memory is taken in steps, so that batches of about one size use the same again.
STEP = 8 << 20
# A picture that shrinks by more than this has too many pixels under one of the result.
MOST_SHRINK = 32
# nvJPEG's state is one for the process.
DECODING = threading.Lock()
JPEG = pictures.ENCODINGS.index("jpeg")


class Timed(NamedTuple):
    """Work on a stream: what it was, its events, and what must live until it is done."""

    events: dict[str, tuple[Any, Any]]
    last: Any
    held: Any


class DevicePictures:
    """Makes the pictures of a plan on ``delivery``'s device; see the module."""

    def __init__(self, delivery: Any, engine: Any, split: Split, ahead: int) -> None:
        self.device, self.stream, self.engine, self.split = delivery.device, delivery.stream, engine, split
        self.cuda = self.device.type == "cuda"
        self.decoder = decoder_on(self.device)
        if self.decoder is None:
            if split.mode in ("gpu", "hybrid"):
                raise OptionError(f'decode="{split.mode}" needs torchvision, whose nvJPEG decodes on the GPU')
            split.mode, split.share = "cpu", 0.0
        # Memory that was freed on a stream goes to the next who asks on that stream, since what is done
        # there is done in order. nvJPEG writes on a stream of its own, so what it fills must never have been
        # anybody else's: copies and decoded pictures come from streams that nothing else takes memory on, and
        # are held until the kernel has read them.
        self.copies, self.decoding = (torch.cuda.Stream(self.device) if self.cuda else None for _ in range(2))
        self._feeding = ThreadPoolExecutor(2, thread_name_prefix="batchplant-gpu")
        self._last_decoded = 0.0
        self._under_way: deque[Timed] = deque()
        self._lock = threading.Lock()
        self._most = ahead + 4
        self._tables: dict[Any, Any] = {}
        self.seconds = {"decode cpu": 0.0, "decode gpu": 0.0, "copy": 0.0, "augment": 0.0}
        self.decoded = {"cpu": 0, "gpu": 0, "raw": 0}

    # -- planning --------------------------------------------------------------------------------------

    def takes(self, output: Output) -> bool:
        """Whether all that is done to this output can be done on the device."""
        stage = output.image
        if stage is None or stage.mode not in ("RGB", "L"):
            return False
        return all(on_device(step.op) is not None for step in output.steps)

    def run(self, op: Any, batch: Any, ids: I64, draws: Draws) -> Any:
        """One step behind the decoder."""
        with self._on(self.stream):
            return on_device(op)(batch, ids, draws)  # type: ignore[misc]

    # -- a batch ---------------------------------------------------------------------------------------

    def make(
        self, executor: Executor, batch: Pictures, ids: I64, epoch: int, failed: dict[int, DataError],
        prepared: Callable[[], None],
    ) -> Any:  # fmt: skip
        """The batch on the device; None where some of it failed. ``batch.out`` is not there yet."""
        raw, gpu = self._sort(batch)
        cpu = np.flatnonzero(~raw & ~gpu)
        events: dict[str, tuple[Any, Any]] = {}
        held: list[Any] = []
        parts = []
        later: Future[Any] | None = None
        if gpu.any():
            encoded = self._gathered(executor, batch.cells, np.flatnonzero(gpu))
            later = self._feeding.submit(self._decode, encoded)
        spent = 0.0
        if len(cpu):
            self.engine.wait_turn()
            began = time.perf_counter()
            part = self._on_cpu(executor, batch, cpu, ids, epoch, failed, prepared)
            spent = time.perf_counter() - began
        prepared()
        done = None if later is None else later.result()
        if failed:
            return None
        if len(cpu):
            parts.append(self._sent(part, cpu, events, held))
        if done is not None:
            rows = np.flatnonzero(gpu)
            found = None if done[0] is None else self._from_gpu(done[0], batch, rows)
            if found is None:
                # One of them is damaged, and nvJPEG does not say which: the engine does.
                part = self._on_cpu(executor, batch, rows, ids, epoch, failed, prepared)
                if failed:
                    return None
                found = self._sent(part, rows, events, held)
            else:
                self.split.learn((len(cpu), spent), (len(rows), done[1]))
                self._count("decode gpu", done[1])
                self.decoded["gpu"] += len(rows)
            parts.append(found)
        elif len(cpu):
            self.split.learn((len(cpu), spent), (0, 0.0))
        if raw.any():
            parts.append(self._raw(executor, batch, np.flatnonzero(raw), events, held))
        self._count("decode cpu", spent)
        self.decoded["cpu"] += len(cpu)
        self.decoded["raw"] += int(raw.sum())
        return self._finish(batch, parts, events, held)

    def _sort(self, batch: Pictures) -> tuple[Flags, Flags]:
        """Which pictures go up as raw pixels, and which the GPU decodes."""
        cells, count = batch.cells, len(batch.sizes)
        raw, gpu = np.zeros(count, np.bool_), np.zeros(count, np.bool_)
        plain = np.ones(count, np.bool_) if batch.turns is None else batch.turns <= 1
        height, width = self._size(batch.stage)
        boxes = batch.boxes
        plain &= (
            np.maximum((boxes[:, 2] - boxes[:, 0]) / width, (boxes[:, 3] - boxes[:, 1]) / height)
            <= MOST_SHRINK
        )
        channels = 1 if batch.stage.mode == "L" else 3
        if cells.shape is not None:
            raw = (cells.shape[:, 2] == channels) & plain
        if self.split.share > 0 and channels == 3:
            good = ~raw & plain & (self._encodings(cells) == JPEG) & (batch.sizes > 0).all(axis=1)
            rows = np.flatnonzero(good)
            gpu[rows[: self.split.count(len(rows))]] = True
        return raw, gpu

    def _encodings(self, cells: Located) -> I32:
        """What every cell is, by its first bytes; 0 also for JPEGs that nvJPEG would not take for RGB."""
        found = np.zeros(len(cells.start), np.int32)
        for number, base in enumerate(cells.bases):
            rows = np.flatnonzero(cells.base == number)
            if len(rows):
                said = _native.probe(
                    base, np.ascontiguousarray(cells.start[rows]), np.ascontiguousarray(cells.size[rows])
                )
                rgb = (said[:, 3] == pictures.MODES.index("RGB")) & (said[:, 4] == 8)
                # nvJPEG does not mind a picture that was cut short; the engine does.
                last = np.maximum(cells.start[rows] + cells.size[rows], 2)
                whole = (base[last - 2] == 0xFF) & (base[last - 1] == 0xD9)
                found[rows] = np.where(rgb & whole, said[:, 0], 0)
        if cells.shape is not None:
            found[cells.shape.any(axis=1)] = 0
        return found

    def _size(self, stage: ImageStage) -> tuple[int, int]:
        known = [size for size in stage.spec.shape if size is not None]
        return (known[1], known[2]) if stage.channels_first else (known[0], known[1])

    def _memory(self, executor: Executor, size: int) -> Any:
        """Pinned memory, a little more than is asked for, which comes back by itself."""
        room = max(1, -(-size // STEP)) * STEP
        return executor.buffers.take((room,), np.dtype(np.uint8))

    def _gathered(self, executor: Executor, cells: Located, rows: I64) -> list[Any]:
        """The bytes of these cells in pinned memory, one tensor each."""
        sizes = np.ascontiguousarray(cells.size[rows])
        starts = np.concatenate([[0], np.cumsum(sizes)])
        memory = self._memory(executor, int(starts[-1]))
        # Not by the engine, where this would wait for the pictures before it: the GPU must not.
        for number, base in enumerate(cells.bases):
            here = np.flatnonzero(cells.base[rows] == number)
            from_ = np.ascontiguousarray(cells.start[rows[here]])
            _native.copy_runs(base, from_, sizes[here], memory, starts[here])
        whole = torch.from_numpy(memory)[: int(starts[-1])]
        return list(torch.split(whole, sizes.tolist()))

    def _decode(self, encoded: list[Any]) -> tuple[list[Any] | None, float]:
        """On a thread that feeds nvJPEG: pixels, and how long it took; None where it does not like one."""
        assert self.decoder is not None
        try:
            # One at a time: two would not be quicker. But the next begins while the GPU is still at this one.
            with DECODING:
                began = time.perf_counter()
                with self._on(self.decoding):
                    decoded = self.decoder(encoded)
                    done = self._event(self.decoding)
            if done is not None:
                done.synchronize()
        # nvJPEG raises RuntimeError on whatever it does not like.
        except RuntimeError:
            return None, 0.0
        with self._lock:
            now = time.perf_counter()
            seconds, self._last_decoded = now - max(began, self._last_decoded), now
        return decoded, seconds

    def _from_gpu(self, decoded: list[Any], batch: Pictures, rows: I64) -> Part | None:
        """What nvJPEG made, (channels, height, width) each; None where it sees other sizes than we do."""
        sizes = batch.sizes[rows].astype(np.int64)
        if [tuple(one.shape[1:]) for one in decoded] != [tuple(one) for one in sizes.tolist()]:
            return None
        start = np.array([one.data_ptr() for one in decoded], dtype=np.int64)
        strides = np.stack([sizes[:, 1], np.ones(len(rows), np.int64), sizes.prod(axis=1)], axis=1)
        flip = None if batch.flip is None else batch.flip[rows]
        sources = Sources(start, strides, sizes, np.zeros(len(rows), np.int64), PlanarViews(decoded), decoded)
        return Part(rows, sources, batch.boxes[rows], flip)

    def _on_cpu(
        self, executor: Executor, batch: Pictures, rows: I64, ids: I64, epoch: int,
        failed: dict[int, DataError], prepared: Callable[[], None],
    ) -> Any:  # fmt: skip
        """These pictures decoded, cropped, flipped and resized by the engine, in pinned memory."""
        height, width = self._size(batch.stage)
        channels = 1 if batch.stage.mode == "L" else 3
        memory = self._memory(executor, len(rows) * height * width * channels)
        out = memory[: len(rows) * height * width * channels].reshape(len(rows), height, width, channels)
        prepared()
        wrong: dict[int, DataError] = {}
        executor.decode(batch.part(rows, out), ids[rows], epoch, wrong)
        failed.update({int(rows[row]): error for row, error in wrong.items()})
        return out

    def _sent(self, out: Any, rows: I64, events: dict[str, Any], held: list[Any]) -> Part:
        """What the engine made, on the device: pictures of the right size already."""
        count, height, width, channels = out.shape
        whole = self._copied(torch.from_numpy(out), events, held)
        start = whole.data_ptr() + np.arange(count, dtype=np.int64) * (height * width * channels)
        strides = np.tile(np.array([width * channels, channels, 1], np.int64), (count, 1))
        sizes = np.tile(np.array([height, width], np.int64), (count, 1))
        boxes = np.tile(np.array([0.0, 0.0, width, height]), (count, 1))
        return Part(
            rows, Sources(start, strides, sizes, np.zeros(count, np.int64), whole, whole), boxes, None
        )

    def _raw(
        self, executor: Executor, batch: Pictures, rows: I64, events: dict[str, Any], held: list[Any]
    ) -> Part:
        """Raw pixels: the rows that the box needs, gathered and copied at once."""
        cells, boxes = batch.cells, batch.boxes[rows]
        assert cells.shape is not None
        shape = cells.shape[rows].astype(np.int64)
        beyond = margin(batch.stage.filter, boxes, self._size(batch.stage)[0])
        top = np.maximum(np.floor(boxes[:, 1]).astype(np.int64) - beyond, 0)
        bottom = np.minimum(np.ceil(boxes[:, 3]).astype(np.int64) + beyond, shape[:, 0])
        line = shape[:, 1] * shape[:, 2]
        sizes = (bottom - top) * line
        # Begun at places that suit the kernel's loads.
        places = np.concatenate([[0], np.cumsum(-(-sizes // 16) * 16)])
        memory = self._memory(executor, int(places[-1]))
        self.engine.gather(
            cells.bases, np.ascontiguousarray(cells.base[rows]),
            np.ascontiguousarray(cells.start[rows]) + top * line, sizes, memory, places[:-1].copy(),
        )  # fmt: skip
        whole = self._copied(torch.from_numpy(memory)[: int(places[-1])], events, held)
        high = bottom - top
        views = RawViews(whole, places, high, shape)
        strides = np.stack([line, shape[:, 2], np.ones_like(line)], axis=1)
        start = whole.data_ptr() + places[:-1]
        source = Sources(start, strides, shape[:, :2].copy(), top, views, whole)
        return Part(rows, source, boxes, None if batch.flip is None else batch.flip[rows])

    def _copied(self, memory: Any, events: dict[str, Any], held: list[Any]) -> Any:
        """On the device; the stream of the kernels waits for the copy."""
        if not self.cuda:
            return memory
        held.append(memory)
        with torch.cuda.stream(self.copies):
            target = torch.empty(memory.shape, dtype=memory.dtype, device=self.device)
            began = self._event(self.copies)
            target.copy_(memory, non_blocking=True)
            ended = self._event(self.copies)
        self.stream.wait_event(ended)
        events[f"copy {len(events)}"] = (began, ended)
        return target

    def _upload(self, held: list[Any]) -> Callable[[Any], Any]:
        def upload(array: Any) -> Any:
            if not self.cuda:
                return torch.from_numpy(array)
            pinned = torch.from_numpy(array).pin_memory()
            held.append(pinned)
            return pinned.to(self.device, non_blocking=True)

        return upload

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

    def _finish(self, batch: Pictures, parts: list[Part], events: dict[str, Any], held: list[Any]) -> Any:
        """The kernel over all parts, in the order of the batch."""
        stage = batch.stage
        count = len(batch.sizes)
        known = [size for size in stage.spec.shape if size is not None]
        scale, offset = self._levels(stage)
        with self._on(self.stream):
            dtype = torch_dtype(stage.spec.dtype)
            out = torch.empty((count, *known), dtype=dtype, device=self.device)
            began = self._event(self.stream)
            everything = joined(parts, count)
            resample(
                everything.sources, everything.boxes, everything.flip, out, filter=stage.filter,
                channels_first=stage.channels_first, scale=scale, offset=offset, upload=self._upload(held),
            )  # fmt: skip
            ended = self._event(self.stream)
        held.append(everything.sources.kept)
        if self.cuda:
            self._hold(Timed({**events, "augment": (began, ended)}, ended, held))
        return out

    def _event(self, stream: Any) -> Any:
        if not self.cuda:
            return None
        # Who waits for it sleeps: the engine's threads need the processors.
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record(stream)
        return event

    # -- what is under way -----------------------------------------------------------------------------

    def _on(self, stream: Any) -> Any:
        return torch.cuda.stream(stream) if self.cuda else contextlib.nullcontext()

    def _count(self, what: str, seconds: float) -> None:
        with self._lock:
            self.seconds[what] += seconds

    def _hold(self, work: Timed) -> None:
        """Keep what a kernel reads until it is done; if too much is, this thread waits for the oldest."""
        with self._lock:
            self._under_way.append(work)
            oldest = self._under_way[0] if len(self._under_way) > self._most else None
        if oldest is not None:
            oldest.last.synchronize()
        self._let_go()

    def _let_go(self) -> None:
        with self._lock:
            while self._under_way and self._under_way[0].last.query():
                work = self._under_way.popleft()
                for name, (began, ended) in work.events.items():
                    kind = "augment" if name == "augment" else "copy"
                    self.seconds[kind] += began.elapsed_time(ended) / 1000

    def stats(self) -> dict[str, Any]:
        """Seconds by what they were spent on, and which side decoded how many."""
        self._let_go()
        rates = [None if one is None else round(one) for one in self.split.rates]
        return {
            **self.seconds, "decoded": dict(self.decoded), "decode mode": self.split.mode,
            "gpu share": round(self.split.share, 3), "pictures/s": {"cpu": rates[0], "gpu": rates[1]},
        }  # fmt: skip

    def close(self) -> None:
        self._feeding.shutdown(wait=True, cancel_futures=True)
        with self._lock:
            under_way = list(self._under_way)
        for work in under_way:
            work.last.synchronize()
        self._let_go()
