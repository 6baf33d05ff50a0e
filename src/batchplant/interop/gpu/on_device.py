"""Images made on a device: decoded there, or here, or both; cropped, resized and normalised there.

A request holds the box and the flip of every sample. Then, on the threads of the loader:

- raw pixels: those that the box needs are gathered into pinned memory, one copy for the batch;
- JPEGs that the device decodes (:mod:`.coded`): the engine puts their scans into pinned memory, one copy for
  the batch, and the device reads them;
- JPEGs that both decode: the engine reads the scans, and puts their coefficients into pinned memory;
- all others: the engine decodes, crops and resizes into pinned memory, one copy for the batch;

and one kernel makes the batch of all of them. Without a GPU the same plan runs in memory, for tests.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

from ... import _native
from ...errors import OptionError
from ...loading.images import Failures, Request, Result
from ...loading.on_cpu import OnCpu
from ...loading.stage import Target
from ...ops.base import Draws, Op
from ...ops.dtypes import torch_dtype
from ...schema.columns import I64, U8
from ...storage import limits
from .coded import Coded, Jpegs, Scans
from .colour import has_kernels
from .ops import DeviceTensors, sent
from .parts import Part, Windows, finished, joined
from .resample import resample
from .split import Split
from .streams import Streams, Transfer, rounded

# An image that shrinks by more than this has too many pixels under one of the result.
MOST_SHRINK = 32
# Pixels: as far as the kernels count.
LONGEST_SIDE = 16384
# Threads that make batches: a device reads the scans of several at once, since each waits for its largest.
PRODUCERS = 5
# Of raw pixels, which take so little time that more threads would only fight for Python's lock.
RAW_PRODUCERS = 2
# Bytes of a scan that a device reads: of a larger one all others of the batch would wait too long.
LARGEST_SCAN = 512 << 10
# Bytes on the device for all that comes between the scans of a batch and its pixels, and for a pixel of that.
MOST_MEMORY, EACH = 2 << 30, 12
NO_TRITON = "kernels need Triton, which comes with PyTorch for CUDA: pip install triton"


class _Rows(NamedTuple):
    """Rows of a batch by their way: up as raw pixels, decoded by the GPU, by both, or by the CPU.

    ``mode``: which of :class:`Split` divided them so.
    """

    raw: I64
    gpu: Jpegs | None
    both: Coded | None
    cpu: I64
    mode: str


class _Reading(NamedTuple):
    """JPEGs that are being made on the device, and flags for scans that are wrong."""

    jpegs: Jpegs
    flags: Any = None
    done: Any = None
    stream: Any = None


class OnDevice:
    """A :class:`~batchplant.loading.images.Device`; see the module."""

    def __init__(self, device: Any, on_cpu: OnCpu, split: Split, ahead: int) -> None:
        self.device, self.on_cpu, self.split = device, on_cpu, split
        self.streams = Streams(device, ahead + PRODUCERS)
        self._tensors = DeviceTensors(device)
        if device.type == "cuda" and not has_kernels():
            if split.mode in ("gpu", "hybrid", "split"):
                raise OptionError(f'decode="{split.mode}" is not possible here: {NO_TRITON}')
            split.only_cpu()
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
            return sent(batch, self.device)

    def fetch(self, batch: Any, *, tensor: bool) -> Any:
        with self.streams.on(self.streams.kernels):
            here = batch.cpu()
        return here if tensor else here.numpy()

    # -- a batch ---------------------------------------------------------------------------------------

    def begin(self, request: Request) -> Callable[[], Result]:
        rows = self._sort(request)
        pixels = self._pixels(request.target, len(rows.cpu))
        rooms = [None if one is None else self._memory(one.room) for one in (rows.gpu, rows.both)]
        return lambda: self._make(request, rows, pixels, *rooms)

    def _make(self, request: Request, rows: _Rows, pixels: Any, scans: Any, coefficients: Any) -> Result:
        transfer = Transfer()
        try:
            made = self._made(request, rows, pixels, scans, coefficients, transfer)
        except BaseException:
            self.streams.wait()
            raise
        if made.failures:
            # What kernels work on must not go before they are done.
            self.streams.wait()
        return made

    def _made(
        self, request: Request, rows: _Rows, pixels: Any, scans: Any, coefficients: Any, transfer: Transfer
    ) -> Result:
        raw, gpu, both, cpu, mode = rows
        began = time.perf_counter()
        reading = None if gpu is None else self._begin(gpu, scans, transfer)
        missing: list[I64] = [] if gpu is None else [gpu.missing]
        spent = taken = 0.0
        coded = None
        here = time.perf_counter()
        if both is not None:
            coded = self._begin(both, coefficients, transfer)
            missing.append(both.missing)
        more = np.concatenate(missing) if missing else cpu[:0]
        if len(more):
            # What is out of the ordinary is the engine's, which says what is wrong.
            cpu = np.concatenate([cpu, more])
            pixels = self._pixels(request.target, len(cpu))
        parts: list[Callable[[Transfer], Part]] = []
        failures: Failures = {}
        if len(cpu):
            part, failures = self._on_cpu(request, cpu, pixels)
            parts.append(part)
        split = 0 if coded is None else len(coded.jpegs.rows)
        if split + len(cpu):
            spent = self._since("cpu", here)
        if len(raw):
            parts.append(self._raw(request, raw))
        if reading is not None:
            wrong = self._wait(reading)
            taken = self._since("gpu", began)
            if len(wrong):
                part, others = self._on_cpu(request, wrong, self._pixels(request.target, len(wrong)))
                parts.append(part)
                failures.update(others)
                cpu = np.concatenate([cpu, wrong])
        if failures:
            return Result(None, failures)
        made = [one.jpegs.part() for one in (reading, coded) if one is not None and len(one.jpegs.rows)]
        parts += [functools.partial(_as_it_is, one) for one in made]
        read = 0 if reading is None else len(reading.jpegs.rows)
        self.split.learn(mode, (split + len(cpu), spent), (read, taken))
        self._count(cpu=(len(cpu), spent), gpu=(read, taken), split=(split, 0.0), raw=(len(raw), 0.0))
        sizes = None if request.target.collate is None else request.canvases
        return Result(self._finish(request, parts, transfer), {}, sizes)

    def _sort(self, request: Request) -> _Rows:
        cells, boxes, target = request.cells, request.boxes, request.target
        channels = target.channels
        wide, high = (boxes[:, 2] - boxes[:, 0]) / target.width, (boxes[:, 3] - boxes[:, 1]) / target.height
        plain = (wide <= MOST_SHRINK) & (high <= MOST_SHRINK)
        plain &= ~request.framed
        if request.turns is not None:
            plain &= request.turns <= 1
        raw, mode = np.zeros(len(plain), np.bool_), self.split.mode
        if cells.shape is not None:
            # What does not have the bytes of its shape is the engine's to refuse.
            whole = cells.shape.prod(axis=1, dtype=np.float64) == cells.size
            raw = (cells.shape[:, 2] == channels) & plain & whole
            if raw.all():
                return _Rows(np.arange(len(raw)), None, None, np.empty(0, np.int64), mode)
        cpu = ~raw
        gpu, both = None, None
        if self.split.codes and self.on_cpu.exact and channels == 3:
            rows, sampling = self._possible(request, np.flatnonzero(~raw & plain))
            # The largest scans are the engine's, where it has a share.
            order = np.argsort(cells.size[rows], kind="stable")
            rows, sampling = rows[order], sampling[order]
            count = self.split.count(len(rows))
            count = min(count, int(np.searchsorted(cells.size[rows], LARGEST_SCAN, side="right")))
            reads = self.device.type == "cuda"
            if count:
                gpu = (Scans if reads else Coded)(request, rows[:count], sampling[:count])
            if count < len(rows):
                both = Coded(request, rows[count:], sampling[count:])
            cpu[rows] = False
        return _Rows(np.flatnonzero(raw), gpu, both, np.flatnonzero(cpu), mode)

    def _possible(self, request: Request, rows: I64) -> tuple[I64, U8]:
        """Those of these rows that the device can make, and how they store colours.

        All others are the engine's, damaged ones too.
        """
        cells, sizes = request.cells, request.sizes[rows].astype(np.int64)
        # So are those that have too many pixels, each or together.
        good = ((sizes > 0) & (sizes <= LONGEST_SIDE)).all(axis=1)
        good &= sizes.prod(axis=1) <= limits.max_pixels()
        x0, y0, x1, y1 = request.boxes[rows].T
        good &= np.cumsum((x1 - x0 + 32) * (y1 - y0 + 32)) * EACH <= MOST_MEMORY
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

    def _begin(self, jpegs: Jpegs, memory: Any, transfer: Transfer) -> _Reading:
        """What the engine finds of JPEGs goes to the device, which makes pixels of it."""
        jpegs.read(self.on_cpu.engine, memory)
        if not len(jpegs.rows):
            return _Reading(jpegs)
        with self._launching:
            stream = self.streams.reading() if jpegs.scans else None
            here = torch.from_numpy(memory)[: jpegs.most]
            there = self.streams.room(here)
            with self.streams.on(stream or self.streams.kernels):
                jpegs.begin(
                    memory, there,
                    lambda size: self.streams.copy(here[:size], there[:size], transfer, stream),
                )  # fmt: skip
                transfer.held.append(there)
                done = None if stream is None else self.streams.event(stream)
        return _Reading(jpegs, jpegs.flags, done, stream)

    def _wait(self, reading: _Reading) -> I64:
        """Until the scans are read. Rows of those that are out of the ordinary, which are left out."""
        jpegs, flags, done, stream = reading
        if flags is None:
            return jpegs.rows[:0]
        done.synchronize()
        with self._launching:
            self.streams.read(stream, done)
        wrong = flags != 0
        rows: I64 = jpegs.rows[wrong]
        jpegs.keep(np.flatnonzero(~wrong))
        return rows

    def _memory(self, size: int) -> Any:
        """Pinned memory, at least so much, which comes back by itself."""
        return self.on_cpu.buffers.take_bytes(rounded(size))

    def _pixels(self, target: Target, count: int) -> Any:
        """Pinned memory for images that the engine makes; the kernel does the rest."""
        shape = (count, *target.pixels.shape)
        return self._memory(int(np.prod(shape)))[: int(np.prod(shape))].reshape(shape) if count else None

    def _since(self, side: str, began: float) -> float:
        """How long a side was at a batch that it was given at ``began``, and that it has done now."""
        with self._lock:
            now = time.perf_counter()
            # Before, it was at the one before.
            seconds, self._last[side] = now - max(began, self._last[side]), now
        return seconds

    def _on_cpu(self, request: Request, rows: I64, out: Any) -> tuple[Callable[[Transfer], Part], Failures]:
        """These images decoded, cropped, flipped and resized by the engine, in pinned memory."""
        wrong = self.on_cpu.decode(request.part(rows, request.target.pixels), out)
        failures = {int(rows[row]): error for row, error in wrong.items()}
        return lambda transfer: finished(self.streams.copied(torch.from_numpy(out), transfer), rows), failures

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

    def _finish(self, request: Request, parts: list[Callable[[Transfer], Part]], transfer: Transfer) -> Any:
        """What is still here is copied, and the kernel run over all parts, in the order of the batch."""
        target, streams = request.target, self.streams
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
            for side, (images, seconds) in sides.items():
                self.decoded[side] += images
                if side in ("cpu", "gpu"):
                    self.seconds[f"decode {side}"] += seconds

    def stats(self) -> dict[str, Any]:
        """Seconds by what they were spent on, and which side decoded how many."""
        self.streams.let_go()
        rates = {mode: round(rate) for mode, rate in self.split.rates.items()}
        return {
            **self.seconds, **self.streams.seconds, "decoded": dict(self.decoded),
            "decode mode": self.split.mode, "why": self.split.why, "gpu share": round(self.split.share, 3),
            "images/s": rates,
        }  # fmt: skip

    def close(self) -> None:
        self.streams.close()


def _as_it_is(part: Part, transfer: Transfer) -> Part:
    return part
