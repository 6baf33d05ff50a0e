"""The decoder of videos: the same number of frames of each, read from a keyframe on."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..codecs.media.video import index_of
from ..codecs.media.video.frames import read_frames
from ..columns import I64, U8, Column, Ragged
from ..errors import DataError, DecodeError, OptionError
from ..order import default_threads
from ..schema import Bytes, Field, Video
from .base import CellErrors, CellOp, Draws, Spec
from .decode import pair_of

PLACES = ("random", "centre", "start")
SHORT = ("loop", "last", "error")


class DecodeVideo(CellOp):
    """Clips of ``frames`` frames, ``stride`` apart, uint8 (frames, height, width, 3).

    at: where a clip starts: random, centre or start. size: (height, width), or one number for both; without
    it all videos must have one size. short: what becomes of a video with too few frames: loop (begin again),
    last (repeat the last frame) or error. upright: turned as a player does. channels_first: (frames, 3,
    height, width).
    """

    def __init__(
        self,
        frames: int = 16,
        *,
        stride: int = 1,
        at: str = "random",
        size: int | Sequence[int] | None = None,
        short: str = "loop",
        upright: bool = False,
        channels_first: bool = False,
        share: str | None = None,
    ) -> None:
        self.frames, self.stride = int(frames), int(stride)
        self.at, self.short = at, short
        self.size = None if size is None else pair_of(size)
        self.upright, self.channels_first = bool(upright), bool(channels_first)
        self.share = share
        if self.frames < 1 or self.stride < 1:
            raise OptionError(f"frames and stride are from 1 on, not {frames} and {stride}")
        if at not in PLACES:
            raise OptionError(f"at is one of {', '.join(PLACES)}, not {at!r}")
        if short not in SHORT:
            raise OptionError(f"short is one of {', '.join(SHORT)}, not {short!r}")

    def infer_field(self, field: Field) -> Spec:
        if not isinstance(field, Video | Bytes) or field.optional:
            raise OptionError(f"DecodeVideo needs videos that are never missing, and this is {field}")
        height, width = self.size or (getattr(field, "height", None), getattr(field, "width", None))
        if self.size is None and self.upright:
            height = width = None
        picture = (3, height, width) if self.channels_first else (height, width, 3)
        return Spec(np.dtype(np.uint8), (self.frames, *picture))

    def run(self, batch: Column, ids: I64, draws: Draws) -> Any:
        assert isinstance(batch, Ragged)
        places = draws.uniform() if self.at == "random" else np.full(len(ids), 0.5)
        failed: dict[int, DataError] = {}

        def one(row: int) -> U8 | None:
            try:
                return self._clip(batch[row], float(places[row]))
            except DataError as error:
                failed[row] = error
                return None

        # FFmpeg runs without the interpreter's lock. The threads live as long as the batch: none is left
        # behind by a fork, and the op can be pickled.
        with ThreadPoolExecutor(min(len(ids), default_threads()) or 1) as pool:
            clips = list(pool.map(one, range(len(ids))))
        good = [clip for clip in clips if clip is not None]
        for row, clip in enumerate(clips):
            if clip is not None and clip.shape != good[0].shape:
                sizes = [f"{wide}×{high}" for high, wide in (clip.shape[1:3], good[0].shape[1:3])]
                failed[row] = DecodeError(
                    f"the video is {sizes[0]}, another of the batch {sizes[1]}; DecodeVideo needs a size"
                )
        if failed:
            raise CellErrors(failed)
        if not good:
            return np.empty((0, self.frames, *(self.size or (0, 0)), 3), dtype=np.uint8)
        found = np.stack(good)
        return np.ascontiguousarray(np.moveaxis(found, -1, 2)) if self.channels_first else found

    def _clip(self, cell: U8 | None, place: float) -> U8:
        if cell is None:
            raise DecodeError("the video is missing")
        data = np.ascontiguousarray(cell).data
        index = index_of(data)
        numbers = self._numbers(len(index.times), place)
        return read_frames(data, index, numbers, size=self.size, upright=self.upright)

    def _numbers(self, total: int, place: float) -> I64:
        """Which frames of a video of this many; ``place`` from 0 up to, not including, 1."""
        steps = np.arange(self.frames) * self.stride
        free = total - int(steps[-1])
        if free > 0:
            start = {"random": int(place * free), "centre": (free - 1) // 2, "start": 0}[self.at]
            return steps + start
        if self.short == "error":
            raise DecodeError(f"the video has {total} frames, and {steps[-1] + 1} are needed")
        return steps % total if self.short == "loop" else np.minimum(steps, total - 1)
