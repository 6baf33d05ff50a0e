"""Images made by the engine, in memory: decoded, cropped, resized, flipped and normalised in one pass."""

from __future__ import annotations

import dataclasses
import math
import threading
import time
from collections.abc import Callable

import numpy as np

from .. import _native
from ..errors import DecodeError
from ..ops.base import CellErrors
from ..ops.cutting import Cuts
from ..ops.parallel import Threads
from ..schema.columns import I32, U8, AnyArray, AnyDType
from ..storage import limits
from ..storage.spans import Located
from .images import Failures, Request, Result, as_raw, misfit
from .stage import Target


class BufferPool:
    """Memory for batches, reused once no reference to a batch, or a view of one, is left.

    There is no lock: memory may come back in any thread at any moment, also while that thread is in here.
    """

    def __init__(self, max_free: int, allocate: Callable[[int], U8] | None = None) -> None:
        # Per size.
        self._max_free = max_free
        self._allocate = allocate or (lambda size: np.empty(size, dtype=np.uint8))
        self._free: dict[int, list[U8]] = {}

    def take(self, shape: tuple[int, ...], dtype: AnyDType) -> AnyArray:
        size = math.prod(shape) * dtype.itemsize
        free = self._free.setdefault(size, [])
        try:
            memory = free.pop()
        except IndexError:
            memory = self._allocate(size)
        # Every view of it, however far derived, keeps it from coming back.
        return _native.lend(memory, free, self._max_free).view(dtype).reshape(shape)

    def keep(self, count: int) -> None:
        """Keep memory for so many batches of a size, at least."""
        self._max_free = max(self._max_free, count)

    def take_bytes(self, size: int) -> U8:
        """Return at least ``size`` bytes: twice as many if only such memory is free."""
        if not self._free.get(size) and self._free.get(2 * size):
            size *= 2
        return self.take((size,), np.dtype(np.uint8))


# The status of an image that the engine cannot decode.
NOT_NATIVE = 2


class OnCpu:
    """The engine as a :class:`~batchplant.loading.images.Backend`. ``warnings``: number of libjpeg's."""

    def __init__(
        self, engine: _native.Engine, buffers: BufferPool, *, dct: str = "accurate", fast_scale: bool = False
    ) -> None:
        self.engine, self.buffers = engine, buffers
        self._dct, self._fast_scale = dct, fast_scale
        # For images that the engine cannot decode.
        self._threads = Threads(engine.threads)
        self.warnings = 0
        # Seconds spent on them.
        self._other_seconds = 0.0
        self._lock = threading.Lock()

    @property
    def exact(self) -> bool:
        """True if JPEGs are decoded to the same pixels as by libjpeg's defaults."""
        return self._dct == "accurate" and not self._fast_scale

    def stats(self) -> dict[str, float]:
        """Return the seconds that all decoding threads spent on pixels, and the number of threads."""
        decode, resize = self.engine.seconds
        return {"threads": self.engine.threads, "decode": decode + self._other_seconds, "resize": resize}

    def close(self) -> None:
        self.engine.close()
        self._threads.close()

    def begin(self, request: Request) -> Callable[[], Result]:
        # Memory is taken when the turn of the batch has come: one that waits for the engine needs none. Raw
        # pixels are copied so fast that waiting would cost more than it saves.
        if request.cells.shape is None:
            self.engine.wait_turn()
        target = request.target
        if target.as_list:
            return lambda: self._one_by_one(request)
        out = self.buffers.take((len(request), *target.shape), target.dtype)
        sizes = None if target.collate is None else request.canvases
        return lambda: Result(out, self.decode(request, out), sizes)

    def _one_by_one(self, request: Request) -> Result:
        """Make images of unequal sizes, each an array."""
        arrays: list[AnyArray] = []
        parts: list[Request] = []
        for row, (height, width) in enumerate(request.canvases.tolist()):
            target = dataclasses.replace(request.target, height=height, width=width)
            parts.append(request.part(np.array([row]), target))
            arrays.append(self.buffers.take((1, *target.shape), target.dtype))
        errors = self._threads.each(len(parts), lambda row: self.decode(parts[row], arrays[row]))
        failures: Failures = {row: error[0] for row, error in enumerate(errors) if error}
        return Result([array[0] for array in arrays], failures)

    def decode(self, request: Request, out: AnyArray) -> Failures:
        """Decode the images into ``out``."""
        if not len(request):
            return {}
        cuts = Cuts(request.boxes, request.flips, request.downs, request.places, request.canvases)
        status, errors, warned = self._run(request.cells, cuts, request.turns, request.target, out)
        self.warnings += warned
        failures: Failures = {row: DecodeError(message) for row, message in errors}
        rows = np.flatnonzero(status == NOT_NATIVE).tolist()
        try:
            self._threads.each(len(rows), lambda n: self._decode_other(request, rows[n], out))
        except CellErrors as failed:
            failures.update({rows[n]: error for n, error in failed.errors.items()})
        return failures

    def _run(
        self, cells: Located, cuts: Cuts, turns: U8 | None, target: Target, out: AnyArray
    ) -> tuple[I32, list[tuple[int, str]], int]:
        scale = offset = None
        fill = np.array(target.fill, dtype=np.uint8) if target.fill else None
        if target.normalize is not None:
            scale = (1 / target.normalize.std).astype(np.float32)
            offset = (-target.normalize.mean / target.normalize.std).astype(np.float32)
        return self.engine.decode(
            cells.bases, cells.base, cells.start, cells.size, cells.shape, cuts.boxes, cuts.flips, out,
            layout="nchw" if target.channels_first else "nhwc", filter=target.filter, strict=True,
            scale=scale, offset=offset, orient=turns, mode=target.mode, most_pixels=limits.max_pixels(),
            dct=self._dct, fast_scale=self._fast_scale, down=cuts.downs, place=cuts.places, fill=fill,
        )  # fmt: skip

    def _decode_other(self, request: Request, row: int, out: AnyArray) -> None:
        """Make an image that the engine cannot decode: decode it to pixels, then resize these."""
        began = time.perf_counter()
        pixels = request.pixels(row)
        with self._lock:
            self._other_seconds += time.perf_counter() - began
        size, target = pixels.shape[:2], request.target
        if size != tuple(request.sizes[row]):
            # The header told no size, or another one.
            cuts = request.redraw(row, size)
            error = misfit(tuple(cuts.sizes[0].tolist()), target) if target.as_stored else None
            if error is not None:
                raise error
        else:
            alone = request.part(np.array([row]), target)
            cuts = Cuts(alone.boxes, alone.flips, alone.downs, alone.places, alone.canvases)
        status, errors, _ = self._run(as_raw(pixels), cuts, None, target, out[row : row + 1])
        if status[0]:
            why = errors[0][1] if errors else f"an image of {pixels.shape[2]} channels does not fit"
            raise DecodeError(why)
