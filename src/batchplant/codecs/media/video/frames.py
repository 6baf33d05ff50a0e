"""Frames of a video by number: from the keyframe before, and only those that are wanted become images.

The index of a video tells when each frame is shown, and from where it can be decoded; nothing is decoded for
it.

A frame is known by the time at which it is shown, for the order of decoding is another. Decoding starts at
the last keyframe that is shown at or before it: what follows a keyframe in the file and is shown after it
needs nothing from before. Where a file marks keyframes that are none, the frame does not come out with its
time, and decoding starts at the beginning of the file.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import itertools
import math
import os
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .... import _native
from ....errors import DecodeError, OptionError, located
from ....order import default_threads
from ....schema.columns import I64, U8, Ragged
from ....storage import Source
from ....storage.cache import ChunkCache
from . import matroska, mp4
from .container import (
    CLIP_VARIABLE,
    OVERLAP,
    Packets,
    View,
    check_frame,
    clip_limit,
    encoding_of,
    frame_limit,
    guarded,
    one_thread,
    opened,
    pyav,
    video_of,
)

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


INDEX_CACHE_BYTES = 64 << 20
UNKNOWN = np.iinfo(np.int64).min
# Average rates that are further from the times of the frames than this are not believed.
RATE_ERROR = 0.02

# Those of the clips that were looked into last: an epoch later, they are still known.
_cache = ChunkCache(INDEX_CACHE_BYTES)


@dataclasses.dataclass
class Index:
    """Index of a video, from one pass over its packets. Times are in units of ``base`` seconds."""

    encoding: str
    codec: str
    width: int
    height: int
    fps: float
    duration: float
    base: Fraction
    # Of every frame that is shown, ascending.
    times: I64
    # Of every packet, in the order of decoding; and their numbers by ascending time.
    packets: I64
    order: I64
    # Numbers of the packets from which decoding can start, and the decoding times of these (or UNKNOWN).
    keys: I64
    key_dts: I64
    # Whether frames can be told by their times. Else they are counted, from the first.
    timed: bool
    # Whether decoding may start at a keyframe.
    seekable: bool
    # Where the packets lie, if the tables of the file tell; else FFmpeg's demuxer finds them.
    stored: Packets | None = None

    @property
    def nbytes(self) -> int:
        arrays = [self.times, self.packets, self.order, self.keys, self.key_dts]
        if self.stored is not None:
            arrays += [self.stored.starts, self.stored.sizes]
        return 512 + sum(array.nbytes for array in arrays)

    @property
    def key_times(self) -> I64:
        return self.packets[self.keys]

    @property
    def rotation(self) -> int | None:
        """Degrees, against the clock, by which a player turns frames; None where only frames tell."""
        return None if self.stored is None else self.stored.rotation

    @property
    def seconds(self) -> npt.NDArray[np.float64]:
        """The second at which each frame is shown; the first at 0."""
        if not self.timed:
            return np.arange(len(self.times)) / self.fps
        return (self.times - self.times[0]) * float(self.base)

    def places(self, numbers: I64) -> I64:
        """Return the numbers of the packets that these frames lie in; of a video with times."""
        positions = np.searchsorted(self.packets, self.times[numbers], sorter=self.order)
        return self.order[positions]

    def place(self, time: int | None) -> int | None:
        """The number of the packet with this time."""
        if time is None:
            return None
        position = int(np.searchsorted(self.packets, time, sorter=self.order))
        if position == len(self.order) or self.packets[self.order[position]] != time:
            return None
        return int(self.order[position])


class VideoSpan:
    """The bytes of a video: a span of a source, of which only what is needed is read."""

    def __init__(self, source: Source, start: int = 0, size: int | None = None) -> None:
        self._source, self._start = source, int(start)
        self.size = source.size - self._start if size is None else int(size)
        source.check_bounds(self._start, self.size)

    def __len__(self) -> int:
        return self.size

    @property
    def key(self) -> Hashable:
        """A key that another video, or this one once it was replaced, does not have."""
        return self._source.path, self._source.tag or id(self._source), self._start, self.size

    def view(self, start: int, size: int) -> U8:
        """Return bytes of the video; those that lie outside of it are a DecodeError."""
        if start < 0 or size < 0 or start + size > self.size:
            raise DecodeError("its header names bytes behind its end")
        return self._source.view(self._start + start, size)

    def gather(self, starts: I64, sizes: I64) -> Ragged:
        """Return runs of bytes, which the caller has checked."""
        return self._source.gather(self._start + starts, sizes)

    def runs(self, numbers: npt.ArrayLike) -> tuple[I64, I64]:
        """Return start and size of the runs of the source's bytes that decoding these frames takes."""
        index = index_of(self)
        if index.stored is None:
            return np.array([self._start]), np.array([self.size])
        flags = np.zeros(len(index.packets) + 1, dtype=np.int64)
        for _, _, first, stop in groups_of(index, np.unique(numbers)):
            flags[first] += 1
            flags[stop] -= 1
        rows = np.flatnonzero(np.cumsum(flags[:-1]))
        rows = rows[np.argsort(index.stored.starts[rows], kind="stable")]
        starts, sizes = index.stored.starts[rows], index.stored.sizes[rows]
        heads = np.flatnonzero(np.diff(starts, prepend=-1) != np.append(-1, sizes[:-1]))
        return self._start + starts[heads], np.add.reduceat(sizes, heads) if len(heads) else sizes


Bytes = memoryview | VideoSpan
# A keyframe so few frames ahead is reached sooner by going on: the decoder has them already.
NEAR = 4


def groups_of(index: Index, numbers: I64, *, seek: bool = True) -> list[tuple[int, I64, int, int]]:
    """Divide frames into groups that are decoded from a keyframe each.

    Args:
        index: that of the video.
        numbers: of the frames, ascending.
        seek: False: all are decoded from the first keyframe on.

    Returns: the keyframe, the frames, the first packet that decoding them takes, and the one after the last.
    """
    if not len(numbers):
        return []
    keys = np.zeros(len(numbers), dtype=np.int64)
    if seek and index.seekable:
        keys = np.maximum(np.searchsorted(index.key_times, index.times[numbers], side="right") - 1, 0)
    # The first frame that comes from each keyframe.
    firsts = np.searchsorted(index.times, index.key_times[keys]) if seek and index.seekable else keys
    begins = np.append(0, np.flatnonzero(firsts[1:] > numbers[:-1] + NEAR) + 1)
    parts = np.split(numbers, begins[1:])
    last = index.places(numbers) if index.timed else np.full(len(numbers), len(index.packets) - 1)
    stops = np.maximum.reduceat(last, begins) + 1
    packets = index.keys[keys[begins]]
    return list(zip(keys[begins].tolist(), parts, packets.tolist(), stops.tolist(), strict=True))


def whole_of(data: Bytes) -> memoryview:
    """Return all bytes of a video."""
    return data if isinstance(data, memoryview) else np.ascontiguousarray(data.view(0, data.size)).data


def index_of(data: Bytes) -> Index:
    """The index of a video, made or remembered."""
    key = (len(data), _native.crc32c(data)) if isinstance(data, memoryview) else data.key
    return _cache.get(key, lambda: make_index(data), lambda index: index.nbytes)


def make_index(data: Bytes) -> Index:
    if isinstance(data, memoryview):
        array = np.frombuffer(data, np.uint8)
        view: View = lambda start, size: array[start : start + size]  # noqa: E731
    else:
        view = data.view
    encoding = str(encoding_of(view(0, min(64, len(data)))))
    parsers = {"mp4": mp4, "mov": mp4, "mkv": matroska, "webm": matroska}
    stored = parsers[encoding].packets_of(view, len(data)) if encoding in parsers else None
    if stored is not None:
        with contextlib.suppress(DecodeError):
            return _index(encoding, stored)
    return _demuxed_index(whole_of(data))


def _index(encoding: str, stored: Packets) -> Index:
    """Return the index of a video whose tables tell all packets."""
    seconds = (int(stored.dts[-1] - stored.dts[0]) + stored.last) * stored.base
    size, rate = (stored.width, stored.height), stored.rate or len(stored.pts) / (seconds or 1)
    times, flags = (stored.pts, stored.dts), (stored.keys, stored.shown)
    # The index has these itself.
    empty, none = stored.pts[:0], stored.keys[:0]
    stored_without = stored._replace(dts=empty, pts=empty, keys=none, shown=none)
    return build_index(
        encoding, stored.codec, size, stored.base, rate, stored.last, *times, *flags, stored=stored_without
    )


def _demuxed_index(data: memoryview) -> Index:
    """Return the index of a video from one pass over its packets."""
    with opened(data) as container:
        stream = video_of(container)
        codec = stream.codec_context
        encoding = str(encoding_of(data))
        times: list[int] = []
        dts: list[int] = []
        keys: list[bool] = []
        shown: list[bool] = []
        timed, last = encoding != "avi", 0
        with guarded("the packets cannot be read"):
            budget = OVERLAP * len(data) + (1 << 20)
            for packet in container.demux(stream):
                if not packet.size:
                    continue
                timed = timed and packet.pts is not None
                times.append(len(times) if packet.pts is None else packet.pts)
                dts.append(UNKNOWN if packet.dts is None else packet.dts)
                keys.append(packet.is_keyframe)
                # VP8 stores images that only others refer to as packets of their own.
                hidden = codec.name == "vp8" and not memoryview(packet)[0] & 0x10
                shown.append(not packet.is_discard and not hidden)
                last = packet.duration or 0
                budget -= packet.size
                if budget < 0:
                    raise DecodeError("its packets are larger than the file")
        base = Fraction(stream.time_base or Fraction(1, 1000))
        arrays = (
            np.array(times, np.int64),
            np.array(dts, np.int64),
            np.array(keys, bool),
            np.array(shown, bool),
        )
        size, rate = (codec.width, codec.height), stream.average_rate
        return build_index(encoding, codec.name, size, base, rate, last, *arrays, timed=timed)


def build_index(
    encoding: str,
    codec: str,
    size: tuple[int, int],
    base: Fraction,
    rate: Any,
    last: int,
    packets: I64,
    dts: I64,
    is_key: npt.NDArray[np.bool_],
    shown: npt.NDArray[np.bool_],
    *,
    timed: bool = True,
    stored: Packets | None = None,
) -> Index:
    """Return the index of packets in the order of decoding; ``timed``: their times are to be believed.

    Raises: DecodeError where no frame can be shown.
    """
    keys = np.flatnonzero(is_key)
    if not len(packets):
        raise DecodeError("the video has no frames")
    if not len(keys):
        raise DecodeError("the video has no keyframe: decoding cannot start anywhere")
    # AVI knows no times, only the order of decoding: FFmpeg's guess is wrong where frames change places.
    order = np.argsort(packets, kind="stable")
    ordered = packets[order]
    timed = timed and bool((ordered[1:] != ordered[:-1]).all())
    if timed:
        # A keyframe that is shown before an earlier one starts nothing.
        keys = keys[packets[keys] >= np.maximum.accumulate(packets[keys])]
    # What comes before the first keyframe, in the file or on the screen, needs frames that are not here.
    shown[: keys[0]] = False
    if timed:
        shown &= packets >= packets[keys[0]]
        times = ordered[shown[order]]
    else:
        times = packets[shown]
    if not len(times):
        raise DecodeError("the video has no frames that are shown")
    fps = _rate(times, base, rate, timed)
    span = int(times[-1] - times[0]) + last if timed else 0
    seconds = float(span * base) if span else len(times) / fps
    return Index(
        encoding, codec, *size, fps, seconds, base, times, packets,
        order, keys, dts[keys], timed, timed, stored,
    )  # fmt: skip


def _rate(times: I64, base: Fraction, claimed: Any, timed: bool) -> float:
    """Frames a second: what the file says, unless the times of its frames say otherwise."""
    rate = float(claimed) if claimed else 0.0
    rate = rate if 0 < rate < math.inf else 0.0
    span = float(int(times[-1] - times[0]) * base)
    if timed and span > 0:
        seen = (len(times) - 1) / span
        return rate if rate and abs(rate - seen) <= RATE_ERROR * seen else seen
    return rate or 1.0
