"""Images made by the engine, in memory: decoded, cropped, resized, flipped and normalised in one pass."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import _native
from ..errors import DecodeError
from ..ops.base import CellErrors
from ..ops.cutting import Cuts
from ..ops.each import Threads
from ..schema.columns import I32
from ..storage import limits
from .buffers import Buffers
from .images import Failures, Request, Result, as_raw, misfit
from .locate import Located
from .stage import Target

# The status of an image that the engine cannot decode.
NOT_NATIVE = 2


class OnCpu:
    """A :class:`~batchplant.loading.images.Backend`. ``warnings``: how often libjpeg complained."""

    def __init__(
        self, engine: _native.Engine, buffers: Buffers, *, dct: str = "accurate", fast_scale: bool = False
    ) -> None:
        self.engine, self.buffers = engine, buffers
        self._dct, self._fast_scale = dct, fast_scale
        # For images that the engine cannot decode.
        self._threads = Threads(engine.threads)
        self.warnings = 0
        # Seconds that these took to decode.
        self._others = 0.0
        self._lock = threading.Lock()

    @property
    def exact(self) -> bool:
        """Whether JPEGs are decoded to the pixels that everybody has."""
        return self._dct == "accurate" and not self._fast_scale

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
        target = request.target
        if target.as_list:
            return lambda: self._one_by_one(request)
        out = self.buffers.take((len(request), *target.shape), target.dtype)
        sizes = None if target.collate is None else request.canvases
        return lambda: Result(out, self.decode(request, out), sizes)

    def _one_by_one(self, request: Request) -> Result:
        """Images of unequal sizes, each an array."""
        made: list[Any] = []
        parts: list[Request] = []
        for row, (height, width) in enumerate(request.canvases.tolist()):
            target = dataclasses.replace(request.target, height=height, width=width)
            parts.append(request.part(np.array([row]), target))
            made.append(self.buffers.take((1, *target.shape), target.dtype))
        found = self._threads.each(len(parts), lambda row: self.decode(parts[row], made[row]))
        failures: Failures = {row: wrong[0] for row, wrong in enumerate(found) if wrong}
        return Result([one[0] for one in made], failures)

    def decode(self, request: Request, out: Any) -> Failures:
        """Fill ``out``."""
        if not len(request):
            return {}
        cuts = Cuts(request.boxes, request.flips, request.downs, request.places, request.canvases)
        status, errors, warned = self._run(request.cells, cuts, request.turns, request.target, out)
        self.warnings += warned
        failures: Failures = {row: DecodeError(message) for row, message in errors}
        others = np.flatnonzero(status == NOT_NATIVE).tolist()
        try:
            self._threads.each(len(others), lambda n: self._decode_other(request, others[n], out))
        except CellErrors as found:
            failures.update({others[n]: error for n, error in found.errors.items()})
        return failures

    def _run(
        self, cells: Located, cuts: Cuts, turns: Any, target: Target, out: Any
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

    def _decode_other(self, request: Request, row: int, out: Any) -> None:
        """An image that the engine cannot decode: to pixels first, then as raw."""
        began = time.perf_counter()
        pixels, one = request.pixels(row), slice(row, row + 1)
        with self._lock:
            self._others += time.perf_counter() - began
        size, target = pixels.shape[:2], request.target
        if size != tuple(request.sizes[row]):
            # The header did not tell.
            cuts = request.redraw(row, size)
            wrong = misfit(tuple(cuts.sizes[0].tolist()), target) if target.as_stored else None
            if wrong is not None:
                raise wrong
        else:
            alone = request.part(np.array([row]), target)
            cuts = Cuts(alone.boxes, alone.flips, alone.downs, alone.places, alone.canvases)
        status, errors, _ = self._run(as_raw(pixels), cuts, None, target, out[one])
        if status[0]:
            why = errors[0][1] if errors else f"an image of {pixels.shape[2]} channels does not fit"
            raise DecodeError(why)
