"""Images made on a device: decoded there, on the CPU, or on both; cropped, resized and normalised there.

A request holds the box and the flip of every sample. On the threads of the loader:

- raw pixels: the engine gathers those that the box needs into pinned memory, one copy for the batch;
- JPEGs that the device decodes (:mod:`.jpeg`): the engine puts their scans into pinned memory, one copy for
  the batch, and the device reads them;
- JPEGs that CPU and device decode together: the engine reads the scans and puts their coefficients into
  pinned memory;
- all others: the engine decodes, crops and resizes into pinned memory, one copy for the batch.

One kernel then makes the batch from all of them. Without a GPU the same plan runs in memory, for tests.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ... import _native
from ...errors import OptionError
from ...loading.images import Failures, OnCpu, Request, Result
from ...loading.stage import Target
from ...ops.base import Batch, Draws, Op
from ...ops.dtypes import torch_dtype
from ...schema.columns import I64, U8, AnyArray
from ...storage import limits
from . import ipc
from .colour import has_kernels
from .jpeg import CoefficientJpegs, Jpegs, ScanJpegs
from .parts import Part, RawWindows, finished_part, join_parts
from .resample import parameters_of, resample
from .split import Split
from .streams import Streams, Transfer, round_up

# An image that shrinks by more than this has too many source pixels under a result pixel.
MAX_SHRINK_FACTOR = 32
# Largest side in pixels that the kernels count to.
MAX_SIDE_PIXELS = 16384
# Threads that make batches: a device reads the scans of several batches at once, since each batch waits for
# its largest scan.
PRODUCERS = 5
# Of larger JPEGs, more batches are read at once, if they fit in this fraction of the device's memory.
LARGE_JPEG_BYTES, LARGE_JPEG_PRODUCERS, MEMORY_FRACTION = 48 << 10, 8, 0.25
# Raw pixels take so little time that more threads would only fight for the GIL.
RAW_PRODUCERS = 2
# Largest scan that a device reads; all others of the batch would wait too long for a larger one.
MAX_SCAN_BYTES = 512 << 10
# Device memory for everything between the scans of a batch and its pixels, and how much a pixel takes of it.
MAX_BATCH_BYTES, BYTES_PER_PIXEL = 2 << 30, 12
# Memory for the values of batches that are made together: bounds, and the fraction of the device's memory.
COALESCED_BYTES, COALESCED_FRACTION = (320 << 20, 640 << 20), 1 / 192
NO_TRITON = "kernels need Triton, which comes with PyTorch for CUDA: pip install triton"

# Copies images to the device where that is still to do, and returns them.
PartMaker = Callable[[Transfer], Part]


class DeviceTensors:
    """Torch and arrays on one device, for device forms of ops; see :class:`batchplant.ops.base.Tensors`."""

    def __init__(self, device: torch.device) -> None:
        self.torch, self._device = torch, device

    def send(self, values: npt.ArrayLike) -> Tensor:
        array = np.asarray(values)
        return send_array(array.astype(np.float32) if array.dtype == np.float64 else array, self._device)


def send_array(array: AnyArray, device: torch.device) -> Tensor:
    """Copy an array to a device, through pinned memory."""
    # torch cannot share memory that is read-only, nor an axis that runs backwards.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    tensor = torch.from_numpy(array)
    return (tensor.pin_memory() if device.type == "cuda" else tensor).to(device, non_blocking=True)


class Routes(NamedTuple):
    """Rows of a batch by their route to the device.

    raw: uploaded as raw pixels. scans: JPEGs that the device decodes. coefficients: JPEGs whose scans the CPU
    reads. cpu: decoded by the engine. mode: that of :class:`Split` when it divided them.
    """

    raw: I64
    scans: Jpegs | None
    coefficients: CoefficientJpegs | None
    cpu: I64
    mode: str


class _Batch:
    """A batch in the making: its memory, the parts that are ready, and its failures."""

    def __init__(self, request: Request, routes: Routes) -> None:
        self.request, self.routes = request, routes
        self.transfer = Transfer()
        self.parts: list[PartMaker] = []
        self.failures: Failures = {}
        # Images that the engine decoded.
        self.cpu_images = 0


class _Launched(NamedTuple):
    """JPEGs that are being decoded on the device. With scans: the event and the stream of their reading."""

    jpegs: Jpegs
    done: torch.cuda.Event = None
    stream: torch.cuda.Stream | None = None


class OnDevice:
    """A :class:`~batchplant.loading.images.Device`; see the module."""

    def __init__(self, device: torch.device, on_cpu: OnCpu, split: Split, prefetch_batches: int) -> None:
        self.device, self.on_cpu, self.split = device, on_cpu, split
        self.streams = Streams(device, prefetch_batches + PRODUCERS)
        self._tensors = DeviceTensors(device)
        if device.type == "cuda" and not has_kernels():
            if split.mode in ("gpu", "hybrid", "split"):
                raise OptionError(f'decode="{split.mode}" is not possible here: {NO_TRITON}')
            split.only_cpu()
        # When either side finished its last batch.
        self._finished_at = {"cpu": 0.0, "gpu": 0.0}
        self._lock, self._launch_lock = threading.Lock(), threading.Lock()
        self._normalizations: dict[int, tuple[Tensor, Tensor]] = {}
        self.seconds = {"decode cpu": 0.0, "decode gpu": 0.0}
        # Bytes of a JPEG, and of memory to decode it, on average over the last batch.
        self._jpeg_bytes, self._decode_bytes = 0.0, 1.0
        cuda = device.type == "cuda"
        self._memory_bytes = torch.cuda.get_device_properties(device).total_memory if cuda else 0
        self.decoded = {"cpu": 0, "gpu": 0, "split": 0, "raw": 0}

    # -- batches of other processes --------------------------------------------------------------------

    @property
    def name(self) -> str:
        return ipc.name_of(self.device)

    def exports(self) -> ipc.Exports:
        return ipc.Exports(self.device, self.streams.kernels)

    def imports(self) -> ipc.Imports:
        return ipc.Imports(self.device, self.streams.kernels)

    def producers(self, raw: bool, size: float) -> int:
        if raw:
            return RAW_PRODUCERS
        if self.device.type != "cuda" or (self._jpeg_bytes or size) < LARGE_JPEG_BYTES:
            return PRODUCERS
        room = self._memory_bytes * MEMORY_FRACTION
        return int(np.clip(room // MAX_BATCH_BYTES, PRODUCERS, LARGE_JPEG_PRODUCERS))

    def max_samples(self, sample_bytes: float) -> float:
        coalesced_bytes = np.clip(self._memory_bytes * COALESCED_FRACTION, *COALESCED_BYTES)
        return float(min(coalesced_bytes / sample_bytes, MAX_BATCH_BYTES / self._decode_bytes))

    # -- steps behind the decoder ----------------------------------------------------------------------

    def run(self, op: Op, batch: Batch, ids: I64, draws: Draws) -> Batch:
        form = op.device_form
        assert form is not None
        with self.streams.on(self.streams.kernels):
            return form(batch, ids, draws, self._tensors)

    def send(self, batch: Batch) -> Batch:
        if isinstance(batch, Tensor):
            # It came from a server that shares the device.
            return batch
        with self.streams.on(self.streams.kernels):
            return send_array(batch, self.device)

    def fetch(self, batch: Batch, *, tensor: bool) -> Batch:
        with self.streams.on(self.streams.kernels):
            # Of a server that makes images on the CPU, it is an array already.
            on_host = torch.as_tensor(batch).cpu()
        return on_host if tensor else on_host.numpy()

    # -- a batch ---------------------------------------------------------------------------------------

    def begin(self, request: Request) -> Callable[[], Result]:
        # All of it on the thread that finishes the batch: threads take turns to begin batches, in order.
        return lambda: self._run(request)

    def _run(self, request: Request) -> Result:
        try:
            result = self._make(_Batch(request, self._route(request)))
        except BaseException:
            self.streams.wait()
            raise
        if result.failures:
            # The memory that kernels work on must outlive them.
            self.streams.wait()
        return result

    def _make(self, batch: _Batch) -> Result:
        request, routes = batch.request, batch.routes
        gpu_seconds = cpu_seconds = 0.0
        # First of all, so that the device reads scans while the CPU works.
        gpu_began = time.perf_counter()
        scans = self._launch(routes.scans, batch.transfer)
        cpu_began = time.perf_counter()
        coefficients = self._launch(routes.coefficients, batch.transfer)
        # The engine decodes JPEGs that are out of the ordinary too, and reports what is wrong with them.
        rejected = [jpegs.missing for jpegs in (routes.scans, routes.coefficients) if jpegs is not None]
        self._decode_on_cpu(batch, np.concatenate([routes.cpu, *rejected]))
        if batch.cpu_images or _count(coefficients):
            cpu_seconds = self._elapsed("cpu", cpu_began)
        if len(routes.raw):
            batch.parts.append(self._gather_raw(request, routes.raw))
        if scans is not None:
            flagged = self._wait(scans)
            gpu_seconds = self._elapsed("gpu", gpu_began)
            self._decode_on_cpu(batch, flagged)
        if batch.failures:
            return Result(None, batch.failures)
        for launched in (scans, coefficients):
            if launched is not None and _count(launched):
                batch.parts.append(_ready(launched.jpegs.part()))
        self._record(batch, _count(scans), gpu_seconds, _count(coefficients), cpu_seconds)
        sizes = None if request.target.collate is None else request.canvases
        return Result(self._finish(batch), {}, sizes)

    def _route(self, request: Request) -> Routes:
        """Decide how every row of a batch gets to the device."""
        cells, boxes, target = request.cells, request.boxes, request.target
        channels = target.channels
        wide, high = (boxes[:, 2] - boxes[:, 0]) / target.width, (boxes[:, 3] - boxes[:, 1]) / target.height
        plain = (wide <= MAX_SHRINK_FACTOR) & (high <= MAX_SHRINK_FACTOR)
        plain &= ~request.framed
        if request.turns is not None:
            plain &= request.turns <= 1
        raw, mode = np.zeros(len(plain), np.bool_), self.split.mode
        if cells.shape is not None:
            # The engine refuses cells that do not have the bytes of their shape.
            complete = cells.shape.prod(axis=1, dtype=np.float64) == cells.size
            raw = (cells.shape[:, 2] == channels) & plain & complete
            if raw.all():
                return Routes(np.arange(len(raw)), None, None, np.empty(0, np.int64), mode)
        cpu = ~raw
        scans: Jpegs | None = None
        coefficients: CoefficientJpegs | None = None
        if self.split.uses_device and self.on_cpu.exact and channels == 3:
            rows, sampling = self._device_decodable(request, np.flatnonzero(~raw & plain))
            # Shortest scans first: the engine reads the largest ones, where it has a share.
            order = np.argsort(cells.size[rows], kind="stable")
            rows, sampling = rows[order], sampling[order]
            count = self.split.count(len(rows))
            count = min(count, int(np.searchsorted(cells.size[rows], MAX_SCAN_BYTES, side="right")))
            if count:
                scans_kind = ScanJpegs if self.device.type == "cuda" else CoefficientJpegs
                scans = scans_kind(request, rows[:count], sampling[:count])
            if count < len(rows):
                coefficients = CoefficientJpegs(request, rows[count:], sampling[count:])
            cpu[rows] = False
            if len(rows):
                self._jpeg_bytes = float(cells.size[rows].mean())
        return Routes(np.flatnonzero(raw), scans, coefficients, np.flatnonzero(cpu), mode)

    def _device_decodable(self, request: Request, rows: I64) -> tuple[I64, U8]:
        """Return the rows that the device can decode, and their chroma subsampling.

        The engine decodes all others: damaged ones, and those with too many pixels, alone or together.
        """
        cells, sizes = request.cells, request.sizes[rows].astype(np.int64)
        fits = ((sizes > 0) & (sizes <= MAX_SIDE_PIXELS)).all(axis=1)
        fits &= sizes.prod(axis=1) <= limits.max_pixels()
        x0, y0, x1, y1 = request.boxes[rows].T
        decode_bytes = np.cumsum((x1 - x0 + 32) * (y1 - y0 + 32)) * BYTES_PER_PIXEL
        fits &= decode_bytes <= MAX_BATCH_BYTES
        if len(rows):
            self._decode_bytes = float(decode_bytes[-1]) / len(rows)
        if cells.shape is not None:
            fits &= ~cells.shape[rows].any(axis=1)
        rows, sizes = rows[fits], sizes[fits]
        sampling = np.zeros(len(rows), np.uint8)
        for number, base in enumerate(cells.bases):
            in_base = np.flatnonzero(cells.base[rows] == number)
            if len(in_base):
                start, size = cells.start[rows[in_base]], cells.size[rows[in_base]]
                sampling[in_base] = _native.device_decodable(base, start, size, sizes[in_base])
        return rows[sampling > 0], sampling[sampling > 0]

    def _launch(self, jpegs: Jpegs | None, transfer: Transfer) -> _Launched | None:
        """Have the engine read JPEGs into pinned memory, and the device decode them from there."""
        if jpegs is None:
            return None
        memory = self._pinned(jpegs.room)
        jpegs.read(self.on_cpu.engine, memory)
        if not len(jpegs.rows):
            return _Launched(jpegs)
        pinned = torch.from_numpy(memory)[: jpegs.needed_bytes]
        on_device = self.streams.allocate(pinned)
        stream = self.streams.take_scan_stream() if jpegs.reads_scans else None
        with self.streams.on(stream or self.streams.kernels):
            size = jpegs.prepare(memory, on_device)
            with self._launch_lock:
                self.streams.copy(pinned[:size], on_device[:size], transfer, stream)
                jpegs.decode(on_device)
                done = None if stream is None else self.streams.event(stream)
        transfer.keep_alive.append(on_device)
        return _Launched(jpegs, done, stream)

    def _wait(self, launched: _Launched) -> I64:
        """Block until the scans are read. Remove images that the device flagged, and return their rows."""
        jpegs, done, stream = launched
        if jpegs.flags is None:
            return jpegs.rows[:0]
        done.synchronize()
        self.streams.return_scan_stream(stream, done)
        flagged = jpegs.flags != 0
        rows: I64 = jpegs.rows[flagged]
        if len(rows):
            jpegs.select(np.flatnonzero(~flagged))
        return rows

    def _pinned(self, size: int) -> U8:
        """Pinned memory of at least ``size`` bytes, which returns to its pool when it is released."""
        return self.on_cpu.buffers.take_bytes(round_up(size))

    def _elapsed(self, side: str, began: float) -> float:
        """Seconds that a side ("cpu" or "gpu") spent on a batch that it began then and finished now."""
        with self._lock:
            now = time.perf_counter()
            # Until it finished the previous batch, it did not work on this one.
            seconds, self._finished_at[side] = now - max(began, self._finished_at[side]), now
        return seconds

    def _decode_on_cpu(self, batch: _Batch, rows: I64) -> None:
        """Decode, crop, flip and resize images with the engine, into pinned memory."""
        if not len(rows):
            return
        shape = (len(rows), *batch.request.target.pixels.shape)
        size = int(np.prod(shape))
        out = self._pinned(size)[:size].reshape(shape)
        errors = self.on_cpu.decode(batch.request.part(rows, batch.request.target.pixels), out)
        batch.failures.update({int(rows[row]): error for row, error in errors.items()})
        batch.cpu_images += len(rows)
        pixels = torch.from_numpy(out)
        batch.parts.append(lambda transfer: finished_part(self.streams.upload(pixels, transfer), rows))

    def _gather_raw(self, request: Request, rows: I64) -> PartMaker:
        """Gather the raw pixels that the boxes need, in pinned memory."""
        windows = RawWindows(request, rows)
        memory = self._pinned(windows.room)
        windows.gather(self.on_cpu.engine, memory)
        pixels = torch.from_numpy(memory)[: windows.room]
        return lambda transfer: windows.part(self.streams.upload(pixels, transfer))

    def _normalization(self, target: Target) -> tuple[Tensor, Tensor]:
        """Scale and offset of a normalisation, on the device; None without one."""
        if target.normalize is None:
            return None, None
        key = id(target.normalize)
        if key not in self._normalizations:
            std, mean = target.normalize.std, target.normalize.mean
            table = torch.tensor(np.stack([1 / std, -mean / std]).tolist(), dtype=torch.float32)
            scale, offset = table.to(self.device)
            self._normalizations[key] = scale, offset
        return self._normalizations[key]

    def _finish(self, batch: _Batch) -> Tensor:
        """Copy what is still on the host, and run the kernel over all parts in the order of the batch."""
        target, streams, transfer = batch.request.target, self.streams, batch.transfer
        shape = (len(batch.request), *target.shape)
        if not batch.parts:
            return torch.empty(shape, dtype=torch_dtype(target.dtype), device=self.device)
        # One thread at a time: each of these calls releases the GIL, and several threads that pass it around
        # among them take longer than one after the other.
        with self._launch_lock:
            parts = [make(transfer) for make in batch.parts]
        images = join_parts(parts, len(batch.request))
        parameters = parameters_of(images.sources, images.boxes, images.flip)
        with self._launch_lock, streams.on(streams.kernels):
            scale, offset = self._normalization(target)
            out = torch.empty(shape, dtype=torch_dtype(target.dtype), device=self.device)
            began = streams.event(streams.kernels)
            resample(
                images.sources, parameters, out, filter=target.filter, channels_first=target.channels_first,
                scale=scale, offset=offset, upload=lambda array: streams.upload_small(array, transfer),
            )  # fmt: skip
            ended = streams.event(streams.kernels)
        transfer.keep_alive.append(images.sources.memory)
        streams.hold(transfer, began, ended)
        return out

    def _record(
        self, batch: _Batch, scans: int, gpu_seconds: float, coefficients: int, cpu_seconds: float
    ) -> None:
        """Count the images of a batch by their route, and let the split learn from the time they took."""
        cpu, raw = batch.cpu_images, len(batch.routes.raw)
        self.split.learn(batch.routes.mode, (coefficients + cpu, cpu_seconds), (scans, gpu_seconds))
        with self._lock:
            for side, images in (("cpu", cpu), ("gpu", scans), ("split", coefficients), ("raw", raw)):
                self.decoded[side] += images
            self.seconds["decode cpu"] += cpu_seconds
            self.seconds["decode gpu"] += gpu_seconds

    def stats(self) -> dict[str, Any]:
        """Seconds by activity, and how many images either side decoded."""
        self.streams.release_finished()
        rates = {mode: round(rate) for mode, rate in self.split.rates.items()}
        return {
            **self.seconds, **self.streams.seconds, "decoded": dict(self.decoded),
            "decode mode": self.split.mode, "why": self.split.why, "gpu share": round(self.split.share, 3),
            "images/s": rates,
        }  # fmt: skip

    def close(self) -> None:
        self.streams.close()


def _count(launched: _Launched | None) -> int:
    return 0 if launched is None else len(launched.jpegs.rows)


def _ready(part: Part) -> PartMaker:
    """Wrap a part that is on the device already."""
    return lambda transfer: part
