"""Pictures made on a device: decoded there, or here, or both; cropped, resized and normalised there.

A request holds the box and the flip of every sample. Then, on the threads of the loader:

- raw pixels: those that the box needs are gathered into pinned memory, one copy for the batch;
- JPEGs that the GPU decodes: their bytes are gathered into pinned memory, and nvJPEG makes pixels of them;
- JPEGs that both decode (:mod:`.coded`): the engine reads their coefficients into pinned memory, one copy for
  the batch, and the device makes pixels of those;
- all others: the engine decodes, crops and resizes into pinned memory, one copy for the batch;

and one kernel makes the batch of all of them. Without a GPU the same plan runs in memory, for tests.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import torch

from ... import _native, limits
from ...columns import I64, U8, starts_of
from ...errors import OptionError
from ...loading.on_cpu import OnCpu
from ...loading.pictures import Failures, Request, Result
from ...loading.stage import Target
from ...ops.base import F64, Draws, Op
from ...ops.dtypes import torch_dtype
from .coded import Coded
from .nvjpeg import LONGEST_SIDE, Decoder, decoder_on
from .ops import DeviceTensors
from .parts import Part, Windows, decoded, finished, joined
from .resample import resample
from .split import Split
from .streams import Streams, Transfer, rounded

# A picture that shrinks by more than this has too many pixels under one of the result.
MOST_SHRINK = 32
# Threads that make batches: while two are decoded here and there, one is prepared and one finished.
PRODUCERS = 4
# Of raw pixels, which take so little time that more threads would only fight for Python's lock.
RAW_PRODUCERS = 2
# Threads that feed nvJPEG: while the device is at the pictures of one, the other looks at the next.
FEEDERS = 2


class _Rows(NamedTuple):
    """Rows of a batch by their way: up as raw pixels, decoded by the GPU, by the CPU, or by both."""

    raw: I64
    gpu: I64
    cpu: I64
    both: Coded | None


class OnDevice:
    """A :class:`~batchplant.loading.pictures.Device`; see the module."""

    def __init__(self, device: Any, kernels: Any, on_cpu: OnCpu, split: Split, ahead: int) -> None:
        self.device, self.on_cpu, self.split = device, on_cpu, split
        self.streams = Streams(device, kernels, ahead + PRODUCERS)
        self._tensors = DeviceTensors(device)
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
        self.decoded = {"cpu": 0, "gpu": 0, "split": 0, "raw": 0}

    def producers(self, raw: bool) -> int:
        return RAW_PRODUCERS if raw else PRODUCERS

    # -- steps behind the decoder ----------------------------------------------------------------------

    def run(self, op: Op, batch: Any, ids: I64, draws: Draws) -> Any:
        form = op.device_form
        assert form is not None
        with self.streams.on(self.streams.kernels):
            return form(batch, ids, draws, self._tensors)

    def send(self, batch: Any) -> Any:
        with self.streams.on(self.streams.kernels):
            here = torch.from_numpy(batch if batch.flags.writeable else batch.copy())
            here = here.pin_memory() if self.device.type == "cuda" else here
            return here.to(self.device, non_blocking=True)

    def fetch(self, batch: Any, *, tensor: bool) -> Any:
        with self.streams.on(self.streams.kernels):
            here = batch.cpu()
        return here if tensor else here.numpy()

    # -- a batch ---------------------------------------------------------------------------------------

    def begin(self, request: Request) -> Callable[[], Result]:
        rows = self._sort(request)
        later: Future[Any] | None = None
        if len(rows.gpu):
            later = self._feeding.submit(self._decode, *self._gathered(request, rows.gpu))
        pixels = self._pixels(request.target, len(rows.cpu))
        coefficients = None if rows.both is None else self._memory(rows.both.room)
        return lambda: self._make(request, rows, later, pixels, coefficients)

    def _make(
        self, request: Request, rows: _Rows, later: Future[Any] | None, pixels: Any, coefficients: Any
    ) -> Result:
        raw, gpu, cpu, both = rows
        parts: list[Callable[[Transfer], Part]] = []
        failures: Failures = {}
        spent = taken = 0.0
        began = time.perf_counter()
        if both is not None:
            used = both.read(self.on_cpu.engine, coefficients)
            if len(both.rows):
                parts.append(self._on_both(both, torch.from_numpy(coefficients)[:used]))
            if len(both.missing):
                # What is out of the ordinary is the engine's, which says what is wrong.
                cpu = np.concatenate([cpu, both.missing])
                pixels = self._pixels(request.target, len(cpu))
        if len(cpu):
            part, failures = self._on_cpu(request, cpu, pixels)
            parts.append(part)
        split = 0 if both is None else len(both.rows)
        if split + len(cpu):
            spent = self._since("cpu", began)
        if len(raw):
            parts.append(self._raw(request, raw))
        if later is not None:
            made, taken = later.result()
            if made is None:
                # If one of them is damaged, the engine says which.
                part, more = self._on_cpu(request, gpu, self._pixels(request.target, len(gpu)))
                parts.append(part)
                failures.update(more)
                cpu, gpu = np.concatenate([cpu, gpu]), gpu[:0]
            else:
                whole, place = made
                found = decoded(whole, place, request, gpu)
                parts.append(lambda _: found)
        if failures:
            return Result(None, failures)
        if later is None or len(gpu):
            self.split.learn((split + len(cpu), spent), (len(gpu), taken))
        self._count(cpu=(len(cpu), spent), gpu=(len(gpu), taken), split=(split, 0.0), raw=(len(raw), 0.0))
        sizes = None if request.target.collate is None else request.canvases
        return Result(self._finish(request, parts), {}, sizes)

    def _sort(self, request: Request) -> _Rows:
        cells, boxes, target = request.cells, request.boxes, request.target
        channels = target.channels
        wide, high = (boxes[:, 2] - boxes[:, 0]) / target.width, (boxes[:, 3] - boxes[:, 1]) / target.height
        plain = (wide <= MOST_SHRINK) & (high <= MOST_SHRINK)
        plain &= ~request.framed
        if request.turns is not None:
            plain &= request.turns <= 1
        raw = np.zeros(len(plain), np.bool_)
        if cells.shape is not None:
            # What does not have the bytes of its shape is the engine's to refuse.
            whole = cells.shape.prod(axis=1, dtype=np.float64) == cells.size
            raw = (cells.shape[:, 2] == channels) & plain & whole
            if raw.all():
                return _Rows(np.arange(len(raw)), np.empty(0, np.int64), np.empty(0, np.int64), None)
        gpu = np.zeros(len(plain), np.bool_)
        codes = self.split.codes and self.on_cpu.exact
        both = None
        if (self.split.share > 0 or codes) and channels == 3:
            rows, sampling = self._possible(request, np.flatnonzero(~raw & plain))
            count = self.split.count(len(rows))
            order = np.arange(len(rows))
            if 0 < count < len(rows):
                order = np.argsort(-_engine_cost(request, rows), kind="stable")
            gpu[rows[order[:count]]] = True
            rest = np.sort(order[count:])
            if codes and len(rest):
                both = Coded(request, rows[rest], sampling[rest])
        cpu = ~raw & ~gpu
        if both is not None:
            cpu[both.rows] = False
        return _Rows(np.flatnonzero(raw), np.flatnonzero(gpu), np.flatnonzero(cpu), both)

    def _possible(self, request: Request, rows: I64) -> tuple[I64, U8]:
        """Those of these rows that the device can decode, and how they store colours.

        All others are the engine's, damaged ones too.
        """
        cells, sizes = request.cells, request.sizes[rows].astype(np.int64)
        # So are those that have too many pixels.
        good = ((sizes > 0) & (sizes <= LONGEST_SIDE)).all(axis=1)
        good &= sizes.prod(axis=1) <= limits.max_pixels()
        if cells.shape is not None:
            good &= ~cells.shape[rows].any(axis=1)
        rows, sizes = rows[good], sizes[good]
        takes = np.zeros(len(rows), np.uint8)
        for number, base in enumerate(cells.bases):
            here = np.flatnonzero(cells.base[rows] == number)
            if len(here):
                start, size = cells.start[rows[here]], cells.size[rows[here]]
                takes[here] = _native.device_decodable(base, start, size, sizes[here])
        return rows[takes > 0], takes[takes > 0]

    def _memory(self, size: int) -> Any:
        """Pinned memory, at least so much, which comes back by itself."""
        return self.on_cpu.buffers.take((rounded(size),), np.dtype(np.uint8))

    def _pixels(self, target: Target, count: int) -> Any:
        """Pinned memory for pictures that the engine makes; the kernel does the rest."""
        shape = (count, *target.pixels.shape)
        return self._memory(int(np.prod(shape)))[: int(np.prod(shape))].reshape(shape) if count else None

    def _gathered(self, request: Request, rows: I64) -> tuple[Any, I64, I64, I64]:
        """The bytes of these cells in pinned memory, where each begins, its length, its height and width."""
        cells = request.cells
        sizes = np.ascontiguousarray(cells.size[rows])
        starts = starts_of(sizes)[:-1]
        memory = self._memory(int(sizes.sum()))
        # Not by the engine, where this would wait for the pictures before it: the GPU must not.
        for number, base in enumerate(cells.bases):
            here = np.flatnonzero(cells.base[rows] == number)
            from_ = np.ascontiguousarray(cells.start[rows[here]])
            _native.copy_runs(base, from_, sizes[here], memory, starts[here])
        return memory, starts, sizes, request.sizes[rows].astype(np.int64)

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

    def _on_cpu(self, request: Request, rows: I64, out: Any) -> tuple[Callable[[Transfer], Part], Failures]:
        """These pictures decoded, cropped, flipped and resized by the engine, in pinned memory."""
        wrong = self.on_cpu.decode(request.part(rows, request.target.pixels), out)
        failures = {int(rows[row]): error for row, error in wrong.items()}
        return lambda transfer: finished(self.streams.copied(torch.from_numpy(out), transfer), rows), failures

    def _on_both(self, both: Coded, read: Any) -> Callable[[Transfer], Part]:
        """What the engine read of JPEGs goes to the device, which makes pixels of it."""

        def part(transfer: Transfer) -> Part:
            whole = self.streams.copied(read, transfer)
            with self.streams.on(self.streams.kernels):
                return both.part(whole, lambda array: self.streams.upload(array, transfer))

        return part

    def _raw(self, request: Request, rows: I64) -> Callable[[Transfer], Part]:
        """Raw pixels: those that the box needs, in pinned memory."""
        windows = Windows(request, rows)
        memory = self._memory(windows.room)
        windows.gather(self.on_cpu.engine, memory)
        pixels = torch.from_numpy(memory)[: windows.room]
        return lambda transfer: windows.part(self.streams.copied(pixels, transfer))

    def _levels(self, target: Target) -> tuple[Any, Any]:
        """What a normalisation multiplies with, and adds, on the device."""
        if target.normalize is None:
            return None, None
        key = id(target.normalize)
        if key not in self._tables:
            std, mean = target.normalize.std, target.normalize.mean
            both = torch.tensor(np.stack([1 / std, -mean / std]).tolist(), dtype=torch.float32)
            self._tables[key] = both.to(self.device)
        scale, offset = self._tables[key]
        return scale, offset

    def _finish(self, request: Request, parts: list[Callable[[Transfer], Part]]) -> Any:
        """What is still here is copied, and the kernel run over all parts, in the order of the batch."""
        target, streams, transfer = request.target, self.streams, Transfer()
        # One thread at a time: each of these calls lets go of Python's lock, and several threads that pass it
        # around among them take longer than one after the other.
        with self._launching:
            shape = (len(request), *target.shape)
            if not parts:
                return torch.empty(shape, dtype=torch_dtype(target.dtype), device=self.device)
            scale, offset = self._levels(target)
            everything = joined([part(transfer) for part in parts], len(request))
            with streams.on(streams.kernels):
                out = torch.empty(shape, dtype=torch_dtype(target.dtype), device=self.device)
                began = streams.event(streams.kernels)
                resample(
                    everything.sources, everything.boxes, everything.flip, out, filter=target.filter,
                    channels_first=target.channels_first, scale=scale, offset=offset,
                    upload=lambda array: streams.upload(array, transfer),
                )  # fmt: skip
                ended = streams.event(streams.kernels)
        transfer.held.append(everything.sources.kept)
        streams.hold(transfer, began, ended)
        return out

    def _count(self, **sides: tuple[int, float]) -> None:
        with self._lock:
            for side, (pictures, seconds) in sides.items():
                self.decoded[side] += pictures
                if side in ("cpu", "gpu"):
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


def _engine_cost(request: Request, rows: I64) -> F64:
    """What the engine would have to do for each: read down to the end of the box, and make the pixels in it.

    nvJPEG always makes the whole picture, so it is given those that would cost the engine most.
    """
    x0, y0, x1, y1 = request.boxes[rows].T
    cost: F64 = request.sizes[rows, 1] * y1 + (x1 - x0) * (y1 - y0)
    return cost
