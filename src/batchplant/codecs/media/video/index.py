"""The index of a video: when each frame is shown, and from where it can be decoded. Nothing is decoded."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Hashable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from .... import _native
from ....errors import DecodeError
from ....schema.columns import I64, U8, Ragged
from ....storage import Source
from ....storage.cache import ChunkCache
from . import matroska, mp4
from .container import OVERLAP, Packets, View, encoding_of, guarded, opened, video_of

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
