"""Pictures made by the engine, in memory: decoded, cropped, resized, flipped and normalised in one pass."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _native, limits
from ..columns import I32
from ..errors import DecodeError
from ..ops.base import CellErrors
from ..ops.each import Threads
from .buffers import Buffers
from .locate import Located
from .pictures import Failures, Request, Result, as_raw, misfit
from .plan import Target

# The status of a picture that the engine cannot decode.
NOT_NATIVE = 2


class OnCpu:
    """A :class:`~batchplant.loading.pictures.Backend`. ``warnings``: how often libjpeg complained."""

    def __init__(
        self, engine: _native.Engine, buffers: Buffers, *, dct: str = "accurate", fast_scale: bool = False
    ) -> None:
        self.engine, self.buffers = engine, buffers
        self._dct, self._fast_scale = dct, fast_scale
        # For pictures that the engine cannot decode.
        self._threads = Threads(engine.threads)
        self.warnings = 0
        # Seconds that these took to decode.
        self._others = 0.0
        self._lock = threading.Lock()

    def stats(self) -> dict[str, float]:
        """Seconds that the decoding threads spent on pixels, added up, and how many threads there are."""
        decode, resize = self.engine.seconds
        return {"threads": self.engine.threads, "decode": decode + self._others, "resize": resize}

    def close(self) -> None:
        self.engine.close()
        self._threads.close()

    def begin(self, request: Request) -> Callable[[], Result]:
        # Memory only when its turn has come: a batch that waits for the engine needs none. Raw pixels are
        # copied in a moment, and waiting would cost more than it saves.
        if request.cells.shape is None:
            self.engine.wait_turn()
        out = self.buffers.take((len(request), *request.target.shape), request.target.dtype)
        return lambda: Result(out, self.decode(request, out))

    def decode(self, request: Request, out: Any) -> Failures:
        """Fill ``out``."""
        if not len(request):
            return {}
        boxes, flips, turns, target = request.boxes, request.flips, request.turns, request.target
        status, errors, warned = self._run(request.cells, boxes, flips, turns, target, out)
        self.warnings += warned
        failures: Failures = {row: DecodeError(message) for row, message in errors}
        others = np.flatnonzero(status == NOT_NATIVE).tolist()
        try:
            self._threads.each(len(others), lambda n: self._decode_other(request, others[n], out))
        except CellErrors as found:
            failures.update({others[n]: error for n, error in found.errors.items()})
        return failures

    def _run(
        self, cells: Located, boxes: Any, flips: Any, turns: Any, target: Target, out: Any
    ) -> tuple[I32, list[tuple[int, str]], int]:
        scale = offset = None
        if target.normalize is not None:
            scale = (1 / target.normalize.std).astype(np.float32)
            offset = (-target.normalize.mean / target.normalize.std).astype(np.float32)
        return self.engine.decode(
            cells.bases, cells.base, cells.start, cells.size, cells.shape, boxes, flips, out,
            layout="nchw" if target.channels_first else "nhwc", filter=target.filter, strict=True,
            scale=scale, offset=offset, orient=turns, mode=target.mode, most_pixels=limits.max_pixels(),
            dct=self._dct, fast_scale=self._fast_scale,
        )  # fmt: skip

    def _decode_other(self, request: Request, row: int, out: Any) -> None:
        """A picture that the engine cannot decode: to pixels first, then as raw."""
        began = time.perf_counter()
        pixels, one = request.pixels(row), slice(row, row + 1)
        with self._lock:
            self._others += time.perf_counter() - began
        size, box = pixels.shape[:2], request.boxes[one]
        if size != tuple(request.sizes[row]):
            # The header did not tell.
            box = request.redraw(row, size)[None]
            wrong = misfit(size, request.target) if request.target.as_stored else None
            if wrong is not None:
                raise wrong
        flips = None if request.flips is None else request.flips[one]
        status, errors, _ = self._run(as_raw(pixels), box, flips, None, request.target, out[one])
        if status[0]:
            why = errors[0][1] if errors else f"a picture of {pixels.shape[2]} channels does not fit"
            raise DecodeError(why)
