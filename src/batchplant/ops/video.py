"""The decoder of videos: the same number of frames of each, read from a keyframe on, cut as they are read."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..codecs.media.video import index_of
from ..codecs.media.video.frames import check_clip, each_frame, read_frames
from ..data.buffers import BufferPool
from ..errors import DataError, DecodeError, OptionError
from ..order import default_threads
from ..schema import Bytes, Field, Video
from ..schema.columns import I32, I64, U8, AnyArray, Column, Ragged
from .base import Batch, CellErrors, CellOp, DeviceForm, Draws, Op, Spec, Tensors
from .crops import CenterCrop, pair_of
from .cutting import Cuts, Cutting, cuts_of, part, resample
from .geometry import Motion

# Returns memory for an array of bytes of this shape.
Allocate = Callable[[tuple[int, ...]], U8]

PLACES = ("random", "centre", "start")
SHORT = ("loop", "last", "error")
# Frames of a clip that are resampled at a time: large, because every call synchronizes threads.
MAX_RESAMPLED_BYTES = 1 << 25


class _BatchMemory:
    """Memory for the clips of a batch, from the time when the size of one is known."""

    def __init__(self, count: int, buffers: BufferPool) -> None:
        self._count, self._buffers = count, buffers
        self._lock = threading.Lock()
        self.clips: U8 | None = None

    def take(self, row: int, shape: tuple[int, ...]) -> U8:
        """Return the memory of a clip; one whose shape differs from the first gets its own."""
        with self._lock:
            if self.clips is None:
                self.clips = self._buffers.take((self._count, *shape), np.dtype(np.uint8))
        return self.clips[row] if shape == self.clips.shape[1:] else np.empty(shape, dtype=np.uint8)


class DecodeVideo(CellOp):
    """Clips of ``frames`` frames, ``stride`` apart, uint8 (frames, height, width, 3).

    at: where a clip starts: random, centre or start. segments: the video is divided into so many equal parts,
    and each gives as many of the frames, from a place of its own. jitter: each frame is one of up to so many
    before or after its own. size: (height, width), or one number for both; without it all videos must have
    one size, or steps that cut and resize follow: what is cut off is never made. short: what becomes of a
    video with too few frames: loop (begin again), last (repeat the last frame) or error. upright: turned as a
    player does. channels_first: (frames, 3, height, width).
    """

    def __init__(
        self,
        frames: int = 16,
        *,
        stride: int = 1,
        at: str = "random",
        segments: int = 1,
        jitter: int = 0,
        size: int | Sequence[int] | None = None,
        short: str = "loop",
        upright: bool = False,
        channels_first: bool = False,
        share: str | None = None,
    ) -> None:
        at = "centre" if at == "center" else at
        self.frames, self.stride = int(frames), int(stride)
        self.at, self.short = at, short
        self.segments, self.jitter = int(segments), int(jitter)
        self.size = None if size is None else pair_of(size)
        self.upright, self.channels_first = bool(upright), bool(channels_first)
        self.share = share
        # What cuts the frames, in order, and the names of their draws.
        self._cuts: tuple[tuple[Cutting, str], ...] = ()
        self._buffers = BufferPool(max_sizes=1)
        if self.frames < 1 or self.stride < 1:
            raise OptionError(f"frames and stride are from 1 on, not {frames} and {stride}")
        if self.segments < 1 or self.frames % self.segments:
            raise OptionError(f"frames are a multiple of segments, not {frames} and {segments}")
        if self.jitter < 0:
            raise OptionError(f"jitter is from 0 on, not {jitter}")
        if at not in PLACES:
            raise OptionError(f"at is one of {', '.join(PLACES)}, not {at!r}")
        if short not in SHORT:
            raise OptionError(f"short is one of {', '.join(SHORT)}, not {short!r}")

    def __repr__(self) -> str:
        return ", ".join([super().__repr__(), *(repr(op) for op, _ in self._cuts)])

    def close(self) -> None:
        self._buffers.clear()

    def then(self, op: Op, key: str) -> DecodeVideo | None:
        """Return this decoder with the op applied to frames as they are read; None if it cannot be."""
        if not isinstance(op, Cutting) or not op.composes or self.channels_first:
            return None
        if isinstance(op, CenterCrop) and self._cuts:
            op = op.after_decoding()
        before = [cutting for cutting, _ in self._cuts if cutting.fills((None, None))]
        if before and op.fills((None, None)) and not np.array_equal(before[-1].fill, op.fill):
            return None
        extended = copy.copy(self)
        extended._cuts = (*self._cuts, (op, key))
        return extended

    def infer_field(self, field: Field) -> Spec:
        if not isinstance(field, Video | Bytes) or field.optional:
            raise OptionError(f"DecodeVideo needs videos that are never missing, and this is {field}")
        height, width = self.size or (getattr(field, "height", None), getattr(field, "width", None))
        if self.size is None and self.upright:
            height = width = None
        image = Spec(np.dtype(np.uint8), (height, width, 3))
        for op, _ in self._cuts:
            image = op.infer(image)
        height, width, _ = image.shape
        shape = (3, height, width) if self.channels_first else (height, width, 3)
        return Spec(np.dtype(np.uint8), (self.frames, *shape), channels_first=self.channels_first)

    def run(self, batch: Column, ids: I64, draws: Draws) -> Batch:
        assert isinstance(batch, Ragged)
        places = draws.uniform(0, 1, self.segments)
        jitter = np.rint(draws.uniform(-self.jitter - 0.5, self.jitter + 0.5, self.frames)).astype(np.int64)
        failed: dict[int, DataError] = {}
        memory = _BatchMemory(len(ids), self._buffers)

        def decode_clip(row: int) -> U8 | None:
            allocate = functools.partial(memory.take, row)
            drawn = draws.part(slice(row, row + 1))
            try:
                return self._clip(batch[row], places[row], jitter[row], drawn, allocate)
            except DataError as error:
                failed[row] = error
                return None

        # FFmpeg runs without the interpreter's lock. The threads live as long as the batch: none is left
        # behind by a fork, and the op can be pickled.
        with ThreadPoolExecutor(min(len(ids), default_threads()) or 1) as pool:
            clips = list(pool.map(decode_clip, range(len(ids))))
        good = [clip for clip in clips if clip is not None]
        for row, clip in enumerate(clips):
            if clip is not None and clip.shape != good[0].shape:
                sizes = [f"{wide}×{high}" for high, wide in (clip.shape[1:3], good[0].shape[1:3])]
                failed[row] = DecodeError(
                    f"the video is {sizes[0]}, another of the batch {sizes[1]}; DecodeVideo needs a size, or "
                    "a crop of one size behind it, such as RandomResizedCrop(224)"
                )
        if failed:
            raise CellErrors(failed)
        if not good:
            sizes_made = [op.size for op, _ in self._cuts if op.size is not None]
            height, width = sizes_made[-1] if sizes_made else self.size or (0, 0)
            shape = (3, height, width) if self.channels_first else (height, width, 3)
            return np.empty((0, self.frames, *shape), dtype=np.uint8)
        stacked = memory.clips
        assert stacked is not None
        return np.ascontiguousarray(np.moveaxis(stacked, -1, 2)) if self.channels_first else stacked

    def _clip(self, cell: U8 | None, places: AnyArray, jitter: I64, draws: Draws, allocate: Allocate) -> U8:
        if cell is None:
            raise DecodeError("the video is missing")
        data = np.ascontiguousarray(cell).data
        index = index_of(data)
        numbers = self._numbers(len(index.times), places, jitter)
        if not self._cuts:
            return read_frames(data, index, numbers, size=self.size, upright=self.upright, allocate=allocate)
        out: U8 = np.empty((0, 0, 0, 3), dtype=np.uint8)
        cuts: Cuts | None = None
        waiting: list[tuple[I64, U8]] = []
        for frame_numbers, image in each_frame(data, index, numbers, size=self.size, upright=self.upright):
            if cuts is None:
                cuts = self._cut(image, draws)
                size = cuts.sizes[0].tolist()
                check_clip(len(numbers), *size)
                out = allocate((len(numbers), *size, 3))
            waiting.append((frame_numbers, np.array(image)))
            if len(waiting) * image.nbytes > MAX_RESAMPLED_BYTES:
                self._resample(waiting, cuts, out)
                waiting = []
        if cuts is not None:
            self._resample(waiting, cuts, out)
        return out

    def _resample(self, waiting: list[tuple[I64, U8]], cuts: Cuts, out: U8) -> None:
        """Put frames to their places, cut."""
        resampled = np.empty((len(waiting), *out.shape[1:]), dtype=np.uint8)
        rows = np.zeros(len(waiting), dtype=np.int64)
        resample([image for _, image in waiting], part(cuts, rows), resampled, self._filter, self._fill)
        for (places, _), image in zip(waiting, resampled, strict=True):
            out[places] = image

    @property
    def _filter(self) -> str:
        named = [op.filter for op, _ in self._cuts if op.filter is not None]
        return named[-1] if named else "area"

    @property
    def _fill(self) -> AnyArray:
        filling = [op.fill for op, _ in self._cuts if op.fills((None, None))]
        return filling[-1] if filling else np.array(0)

    def _cut(self, image: U8, draws: Draws) -> Cuts:
        """One for all frames of a clip."""
        first = sizes = np.array([image.shape[:2]], dtype=np.int32)
        motions = []
        for op, key in self._cuts:
            small = op.too_small(sizes)
            if small is not None and small.any():
                height, width = sizes[0].tolist()
                raise DecodeError(f"its frames are {width}×{height}, too small for {op!r}")
            motions.append(op.move(sizes, draws.named(key)))
            sizes = motions[-1].sizes
        return cuts_of(first, motions)

    def _numbers(self, total: int, places: AnyArray, jitter: I64) -> I64:
        """Numbers of the frames to read; ``places``: from 0 up to 1, in each segment."""
        steps = np.arange(self.frames // self.segments) * self.stride
        part = total / self.segments
        # Where a run of frames can start, from the beginning of its segment.
        free = max(part - int(steps[-1]), 0.0)
        if self.short == "error" and free <= 0:
            needed = self.segments * (int(steps[-1]) + 1)
            raise DecodeError(f"the video has {total} frames, and {needed} are needed")
        within: dict[str, AnyArray | float] = {
            "random": places * free,
            "centre": max(free - 1, 0.0) / 2,
            "start": 0.0,
        }
        starts = np.minimum(np.floor(np.arange(self.segments) * part + within[self.at]), total - 1).astype(
            np.int64
        )
        numbers = (starts[:, None] + steps).reshape(-1)
        if self.jitter:
            numbers = np.sort(np.maximum(numbers + jitter, 0))
            if free > 0:
                numbers = np.minimum(numbers, total - 1)
        return numbers % total if self.short == "loop" else np.minimum(numbers, total - 1)


def merge_cuts(ops: list[tuple[Op, str]]) -> list[tuple[Op, str]]:
    """Merge ops that cut clips into the decoder before them; ops come with the names of their draws."""
    while len(ops) > 1 and isinstance(ops[0][0], DecodeVideo):
        extended = ops[0][0].then(*ops[1])
        if extended is None:
            break
        ops = [(extended, ops[0][1]), *ops[2:]]
    return ops


def adapt_op(op: Op, spec: Spec) -> tuple[Op, Spec]:
    """Return the op for this spec, and its output spec; ops of images run on each frame of clips."""
    try:
        return op.for_spec(spec), op.infer(spec)
    except OptionError:
        if len(spec.shape) != 4 or spec.dtype is None or spec.torch or spec.ragged or spec.unequal:
            raise
        framed = EachFrame(op.for_spec(spec.replace(shape=spec.shape[1:])))
        return framed, framed.infer(spec)


class EachFrame(Op):
    """An op of images on clips (frames, height, width, channels); the frames of a clip have its draws."""

    def __init__(self, op: Op) -> None:
        self.op = op
        self.share, self.batches, self.mixes = op.share, op.batches, op.mixes

    def __repr__(self) -> str:
        return repr(self.op)

    def infer(self, spec: Spec) -> Spec:
        out = self.op.infer(spec.replace(shape=spec.shape[1:]))
        return out.replace(shape=(spec.shape[0], *out.shape))

    def move(self, sizes: I32, draws: Draws) -> Motion | None:
        return self.op.move(sizes, draws)

    def close(self) -> None:
        self.op.close()

    @property
    def device_form(self) -> DeviceForm | None:
        return None if self.op.device_form is None else self._run_on_device

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if self.mixes:
            return self._mixed(batch, lambda images: self.op.run(images, ids, draws))
        count, frames = batch.shape[:2]
        images = batch.reshape(count * frames, *batch.shape[2:])
        result = self.op.run(images, np.repeat(ids, frames), draws.repeat(frames))
        return result.reshape(count, frames, *result.shape[1:])

    def _run_on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        form = self.op.device_form
        assert form is not None
        if self.mixes:
            return self._mixed(batch, lambda images: form(images, ids, draws, tensors))
        count, frames = batch.shape[:2]
        images = batch.reshape(count * frames, *batch.shape[2:])
        result = form(images, np.repeat(ids, frames), draws.repeat(frames), tensors)
        return result.reshape(count, frames, *result.shape[1:])

    def _mixed(self, batch: Batch, run: Callable[[Batch], Batch]) -> Batch:
        """Clips are mixed with clips: their frames lie side by side, as channels of one image."""
        count, frames, height, width, channels = batch.shape
        mixed = run(batch.swapaxes(1, 2).swapaxes(2, 3).reshape(count, height, width, frames * channels))
        mixed = mixed.reshape(count, height, width, frames, channels).swapaxes(2, 3).swapaxes(1, 2)
        return np.ascontiguousarray(mixed) if isinstance(mixed, np.ndarray) else mixed.contiguous()
