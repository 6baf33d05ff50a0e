"""Frames of a video by number: from the keyframe before, and only those that are wanted become images.

A frame is known by the time at which it is shown, for the order of decoding is another. Decoding starts at
the last keyframe that is shown at or before it: what follows a keyframe in the file and is shown after it
needs nothing from before. Where a file marks keyframes that are none, the frame does not come out with its
time, and decoding starts at the beginning of the file.
"""

from __future__ import annotations

import collections
import functools
import itertools
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from ....errors import DecodeError, OptionError, located
from ....order import default_threads
from ....schema.columns import I64, U8, Ragged
from .container import (
    CLIP_VARIABLE,
    check_frame,
    clip_limit,
    frame_limit,
    guarded,
    one_thread,
    opened,
    pyav,
    video_of,
)
from .index import UNKNOWN, Bytes, Index, VideoSpan, groups_of, index_of, whole_of

# Decoders of FFmpeg that can be told with every packet to leave out what is no reference for others.
SKIPPING = ("h264", "hevc")
# Decoders that wait for the next video with the same configuration.
MAX_IDLE = 16

_idle: collections.deque[tuple[Hashable, object]] = collections.deque(maxlen=MAX_IDLE)
os.register_at_fork(after_in_child=_idle.clear)


class _LostError(Exception):
    """The frame did not come out of the decoder; says why."""


def sized(size: int | Sequence[int] | None, index: Index) -> tuple[int, int]:
    """Height and width of the images that are asked for."""
    return (index.height, index.width) if size is None else size_pair(size)


def size_pair(size: int | Sequence[int]) -> tuple[int, int]:
    """Return height and width, from a pair or one number for both.

    Raises: OptionError for what is no size, or more pixels than are allowed.
    """
    pair = (size, size) if isinstance(size, int | np.integer) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int | np.integer) and side > 0 for side in pair):
        raise OptionError(f"size is one or two numbers from 1 on, not {size!r}")
    if pair[0] * pair[1] > frame_limit():
        raise OptionError(f"size is at most {frame_limit():,} pixels, not {pair[0]}×{pair[1]}")
    return int(pair[0]), int(pair[1])


def read_frames(
    data: Bytes,
    index: Index,
    numbers: I64,
    *,
    size: int | Sequence[int] | None = None,
    upright: bool = False,
    allocate: Callable[[tuple[int, ...]], U8] | None = None,
) -> U8:
    """Return the frames of these numbers (checked), as (n, height, width, 3).

    ``allocate`` returns memory of a shape, once it is known.
    """
    height, width = sized(size, index)
    check_clip(len(numbers), height, width)
    out: U8 | None = None
    for places, image in each_frame(data, index, numbers, size=size, upright=upright):
        if out is None:
            shape = len(numbers), *image.shape
            out = np.empty(shape, dtype=np.uint8) if allocate is None else allocate(shape)
        out[places] = image
    return np.empty((0, height, width, 3), dtype=np.uint8) if out is None else out


class Frames(NamedTuple):
    """Frames of one video: their numbers, the rows of an array that they go to, the sample of each row."""

    data: Bytes
    path: str
    numbers: I64
    rows: I64
    samples: I64


def fill_frames(
    out: U8,
    requests: Sequence[Frames],
    *,
    size: int | Sequence[int] | None = None,
    upright: bool = False,
    field: str | None = None,
) -> None:
    """Decode frames of videos into ``out``, an array (rows, height, width, 3).

    A frame is decoded once, however often it is asked for. What follows one keyframe is decoded on a thread
    of its own: FFmpeg runs without the GIL. No thread outlives the call, so that none is lost by a fork.

    Raises: DecodeError, with path, sample and field, for what cannot be decoded, and for another size.
    """

    def divide(request: Frames) -> list[tuple[Frames, Index]]:
        with located(path=request.path, sample=int(request.samples[0]), field=field):
            index = index_of(request.data)
            distinct, back = np.unique(request.numbers, return_inverse=True)
            if len(distinct) and not 0 <= distinct[0] <= distinct[-1] < len(index.times):
                raise DecodeError(
                    f"the video has {len(index.times)} frames, and frame {distinct[-1]} is needed"
                )
            if index.stored is None:
                return [(request, index)]
            ends = np.cumsum([len(part) for _, part, _, _ in groups_of(index, distinct)])
            group = np.searchsorted(ends, back, side="right")
            chosen = [np.flatnonzero(group == number) for number in range(len(ends))]
            return [
                (
                    request._replace(
                        numbers=request.numbers[which],
                        rows=request.rows[which],
                        samples=request.samples[which],
                    ),
                    index,
                )
                for which in chosen
            ]

    def decode(task: tuple[Frames, Index]) -> None:
        request, index = task
        with located(path=request.path, sample=int(request.samples[0]), field=field):
            for places, image in each_frame(request.data, index, request.numbers, size=size, upright=upright):
                if image.shape != out.shape[1:]:
                    sides = [f"{shape[1]}×{shape[0]}" for shape in (image.shape, out.shape[1:])]
                    raise DecodeError(f"its frames are {sides[0]}, not {sides[1]}")
                out[request.rows[places]] = image

    requests = [request for request in requests if len(request.numbers)]
    with ThreadPoolExecutor(min(len(requests), default_threads()) or 1) as pool:
        tasks = [task for tasks in pool.map(divide, requests) for task in tasks]
    with ThreadPoolExecutor(min(len(tasks), default_threads()) or 1) as pool:
        list(pool.map(decode, tasks))


def check_clip(frames: int, height: int, width: int) -> None:
    if frames * height * width > clip_limit():
        raise DecodeError(
            f"{frames} frames of {width}×{height} are more than {clip_limit():,} pixels; read fewer, or"
            f" smaller ones; the environment variable {CLIP_VARIABLE} allows more"
        )


def each_frame(
    data: Bytes,
    index: Index,
    numbers: I64,
    *,
    size: int | Sequence[int] | None = None,
    upright: bool = False,
) -> Iterator[tuple[I64, U8]]:
    """The frames of these numbers, each once: at which places it is asked for, and its image.

    An image is only good until the next one comes.
    """
    height, width = sized(size, index)
    distinct, back = np.unique(numbers, return_inverse=True)
    reformatter = pyav().video.reformatter.VideoReformatter()
    shape: tuple[int, ...] | None = None
    for position, frame in enumerate(_decoded(data, index, distinct)):
        rotation = frame.rotation if index.rotation is None else index.rotation
        turns = round(rotation / 90) % 4 if upright else 0
        # The size is that of the image as it is returned.
        high, wide = (width, height) if turns % 2 and size is not None else (height, width)
        image = np.rot90(_image(reformatter, frame, high, wide), turns)
        if image.shape != (shape or image.shape):
            raise DecodeError("its frames have different rotations; read them with upright=False")
        shape = image.shape
        yield np.flatnonzero(back == position), image


def check_frames(data: Bytes, index: Index) -> None:
    """DecodeError where one of the frames cannot be decoded."""
    for _ in _decoded(data, index, np.arange(len(index.times)), seek=False):
        pass


def rotation_of(data: Bytes, index: Index) -> int:
    """Degrees, against the clock, that the first frame has to be turned by."""
    if index.rotation is not None:
        return index.rotation
    for frame in _decoded(data, index, np.zeros(1, dtype=np.int64)):
        return int(frame.rotation)
    raise AssertionError


def _image(reformatter: Any, frame: Any, height: int, width: int) -> U8:
    """One frame as RGB at a size; lies in memory of FFmpeg's."""
    # What has the right size already is not filtered, and then this is what PyAV gives by itself.
    same = (frame.height, frame.width) == (height, width)
    with guarded("a frame cannot become an image"):
        image = reformatter.reformat(
            frame, width, height, "rgb24", interpolation="BILINEAR" if same else "AREA", **_one_thread()
        )
        plane = image.planes[0]
        rows = np.frombuffer(plane, dtype=np.uint8).reshape(-1, plane.line_size)
        return rows[:height, : 3 * width].reshape(height, width, 3)


@functools.cache
def _one_thread() -> dict[str, int]:
    """Return the option of `reformat` for one thread; PyAV before 17 has none, and uses one."""
    return {"threads": 1} if int(pyav().__version__.split(".")[0]) >= 17 else {}


def _decoded(data: Bytes, index: Index, numbers: I64, *, seek: bool = True) -> Iterator[Any]:
    """The wanted frames (ascending numbers), each decoded once."""
    done, lost = 0, False
    if seek and index.seekable:
        try:
            for frame in _frames(data, index, numbers, seek=True):
                yield frame
                done += 1
            return
        except _LostError:
            lost = True
    try:
        for frame in _frames(data, index, numbers[done:], seek=False):
            yield frame
            done += 1
    except _LostError as error:
        raise DecodeError(f"frame {numbers[done]} of {len(index.times)}: {error}") from None
    if lost:
        # What is marked as keyframes are none.
        index.seekable = False


def _frames(data: Bytes, index: Index, numbers: I64, *, seek: bool) -> Iterator[Any]:
    if index.stored is None:
        with opened(whole_of(data), checked=True) as container:
            yield from _Track(container, index).frames(numbers, seek=seek)
        return
    check_frame(index.width, index.height)
    key = index.codec, index.stored.extradata, index.stored.colour, frame_limit()
    decoder = _idle_decoder(key) or _decoder_of(index)
    yield from _FedTrack(data, index, decoder).frames(numbers, seek=seek)
    # After an error it is not used again.
    decoder.flush_buffers()
    _idle.append((key, decoder))


def _idle_decoder(key: Hashable) -> Any:
    """Return a decoder with this configuration that nobody uses; None if there is none."""
    for _ in range(MAX_IDLE):
        try:
            configuration, decoder = _idle.pop()
        except IndexError:
            return None
        if configuration == key:
            return decoder
        _idle.appendleft((configuration, decoder))
    return None


def _decoder_of(index: Index) -> Any:
    stored = index.stored
    assert stored is not None
    with guarded("no decoder for this video"):
        decoder = pyav().CodecContext.create(index.codec, "r")
        decoder.extradata = stored.extradata or None
        decoder.options = {"max_pixels": str(frame_limit())}
        if stored.colour is not None:
            *names, full = stored.colour
            decoder.color_primaries, decoder.color_trc, decoder.colorspace = names
            decoder.color_range = 1 + full
        one_thread(decoder)
    return decoder


class _Track:
    """The video of an opened file."""

    def __init__(self, container: Any, index: Index) -> None:
        self._container, self._index = container, index
        self._stream = video_of(container)
        self._decoder = self._stream.codec_context
        self._times: set[int] | None = None

    def frames(self, numbers: I64, *, seek: bool) -> Iterator[Any]:
        """The frames of these ascending numbers."""
        index = self._index
        if index.timed and index.codec in SKIPPING:
            self._times = set(index.times[numbers].tolist())
        for key, part, _, stop in groups_of(index, numbers, seek=seek):
            flow = self._flow(key, stop)
            for number in part.tolist():
                for frame_number, frame in flow:
                    if frame_number == number:
                        yield frame
                        break
                    if frame_number > number:
                        raise _LostError("the decoder does not give this frame")
                else:
                    raise _LostError("the decoder does not give this frame")

    def _flow(self, key: int, stop: int) -> Iterator[tuple[int, Any]]:
        """(number, frame) from a keyframe on, all of them up to packet ``stop`` at least."""
        index = self._index
        floor = int(index.packets[index.keys[key]])
        count, started = 0, key == 0
        for packet in self._packets(key, stop):
            if self._times is not None:
                # A frame that no other one needs is only decoded if it is wanted itself.
                needed = packet.pts is None or packet.pts in self._times
                self._decoder.skip_frame = "DEFAULT" if needed else "NONREF"
            try:
                frames = self._decoder.decode(packet)
            # Decoders raise many kinds on damaged bytes.
            except Exception as error:
                # Frames that are shown before the keyframe may need what lies before it.
                if index.timed and packet.pts is not None and packet.pts < floor:
                    continue
                message = getattr(error, "strerror", None) or type(error).__name__
                position = (
                    packet.pos if index.stored is None else index.stored.starts[index.place(packet.pts)]
                )
                raise _LostError(f"{message} (byte {position} of the video)") from None
            for frame in frames:
                if not index.timed:
                    number, count = count, count + 1
                elif frame.pts is None or frame.pts < floor:
                    continue
                else:
                    number = int(np.searchsorted(index.times, frame.pts))
                if frame.is_corrupt:
                    raise _LostError("it is damaged")
                if not started and not frame.key_frame:
                    raise _LostError("its keyframe does not decode on its own")
                started = True
                if not index.timed or (number < len(index.times) and index.times[number] == frame.pts):
                    yield number, frame

    def _packets(self, key: int, stop: int) -> Iterator[Any]:
        """Packets from a keyframe on; the last is empty, and drains the decoder."""
        index = self._index
        start = int(index.keys[key])
        try:
            if key == 0:
                yield from itertools.islice(self._container.demux(self._stream), start, None)
                return
            # MP4 looks for decoding times, Matroska for those of showing; the first packet is always found.
            for target in (int(index.packets[start]), int(index.key_dts[key]), int(index.packets.min())):
                if target == UNKNOWN:
                    continue
                self._container.seek(target, stream=self._stream)
                flow = self._container.demux(self._stream)
                for packet in flow:
                    position = index.place(packet.pts)
                    if position is None or position > start:
                        break
                    if position == start:
                        yield packet
                        yield from flow
                        return
        except _LostError:
            raise
        except Exception as error:
            message = getattr(error, "strerror", None) or type(error).__name__
            raise _LostError(f"{message} (on the way to a keyframe)") from None
        raise _LostError("its keyframe cannot be reached")


class _FedTrack(_Track):
    """A video whose packets are read from where its tables say that they lie."""

    def __init__(self, data: Bytes, index: Index, decoder: Any) -> None:
        self._data, self._index, self._decoder = data, index, decoder
        self._times = None

    def _packets(self, key: int, stop: int) -> Iterator[Any]:
        index, stored = self._index, self._index.stored
        assert stored is not None
        first = int(index.keys[key])
        # It may have been drained before.
        self._decoder.flush_buffers()
        starts, sizes = stored.starts[first:stop], stored.sizes[first:stop]
        cells: Ragged | list[memoryview]
        if isinstance(self._data, VideoSpan):
            cells = self._data.gather(starts, sizes)
        else:
            ends = (starts + sizes).tolist()
            cells = [self._data[start:end] for start, end in zip(starts.tolist(), ends, strict=True)]
        packet_of = pyav().Packet
        for number, time in enumerate(index.packets[first:stop].tolist()):
            packet = packet_of(cells[number])
            packet.pts, packet.time_base = time, index.base
            packet.is_keyframe = not number
            yield packet
        yield packet_of()
