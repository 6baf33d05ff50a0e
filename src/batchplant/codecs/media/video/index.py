"""The index of a video: when each frame is shown, and from where it can be decoded. Nothing is decoded."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np

from .... import _native
from ....errors import DecodeError
from ....schema.columns import I64
from ....storage.cache import ChunkCache
from .container import encoding_of, guarded, opened, video_of

# Packets may share bytes of the file, but not more often than this.
OVERLAP = 4
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
    # Rate and channels of the sound, or None.
    sound: tuple[int, int] | None

    @property
    def nbytes(self) -> int:
        arrays = (self.times, self.packets, self.order, self.keys, self.key_dts)
        return 512 + sum(array.nbytes for array in arrays)

    @property
    def key_times(self) -> I64:
        return self.packets[self.keys]

    def place(self, time: int | None) -> int | None:
        """The number of the packet with this time."""
        if time is None:
            return None
        position = int(np.searchsorted(self.packets, time, sorter=self.order))
        if position == len(self.order) or self.packets[self.order[position]] != time:
            return None
        return int(self.order[position])


def index_of(data: memoryview) -> Index:
    """The index of a video, made or remembered."""
    key = (len(data), _native.crc32c(data))
    return _cache.get(key, lambda: make_index(data), lambda index: index.nbytes)


def make_index(data: memoryview) -> Index:
    with opened(data) as container:
        stream = video_of(container)
        codec = stream.codec_context
        encoding = str(encoding_of(data))
        sound = None
        # Sound that cannot be decoded is a matter of who asks for it.
        if container.streams.audio and (decoder := container.streams.audio[0].codec_context) is not None:
            sound = (int(decoder.rate), int(decoder.channels)) if decoder.rate and decoder.channels else None
        packets = _Packets(codec.name)
        with guarded("the packets cannot be read"):
            budget = OVERLAP * len(data) + (1 << 20)
            for packet in container.demux(stream):
                if packet.size:
                    packets.add(packet)
                    budget -= packet.size
                    if budget < 0:
                        raise DecodeError("its packets are larger than the file")
        base = Fraction(stream.time_base or Fraction(1, 1000))
        return packets.index(encoding, codec, base, stream.average_rate, sound)


class _Packets:
    """Collects what packets say."""

    def __init__(self, codec: str) -> None:
        self._codec = codec
        self._times: list[int] = []
        self._dts: list[int] = []
        self._keys: list[bool] = []
        self._shown: list[bool] = []
        self._timed = True
        self._last = 0

    def add(self, packet: Any) -> None:
        if packet.pts is None:
            self._timed = False
        self._times.append(len(self._times) if packet.pts is None else packet.pts)
        self._dts.append(UNKNOWN if packet.dts is None else packet.dts)
        self._keys.append(packet.is_keyframe)
        self._shown.append(not packet.is_discard and not self._hidden(packet))
        self._last = packet.duration or 0

    def _hidden(self, packet: Any) -> bool:
        """True for an image that only others refer to; VP8 stores those as packets of their own."""
        return self._codec == "vp8" and not memoryview(packet)[0] & 0x10

    def index(self, encoding: str, codec: Any, base: Fraction, rate: Any, sound: Any) -> Index:
        packets = np.array(self._times, dtype=np.int64)
        shown = np.array(self._shown, dtype=np.bool_)
        keys = np.flatnonzero(np.array(self._keys, dtype=np.bool_))
        if not len(packets):
            raise DecodeError("the video has no frames")
        if not len(keys):
            raise DecodeError("the video has no keyframe: decoding cannot start anywhere")
        # AVI knows no times, only the order of decoding: FFmpeg's guess is wrong where frames change places.
        timed = self._timed and encoding != "avi" and len(np.unique(packets)) == len(packets)
        if timed:
            # A keyframe that is shown before an earlier one starts nothing.
            keys = keys[packets[keys] >= np.maximum.accumulate(packets[keys])]
        # What comes before the first keyframe, in the file or on the screen, needs frames that are not here.
        shown[: keys[0]] = False
        if timed:
            shown &= packets >= packets[keys[0]]
            times = np.sort(packets[shown])
        else:
            times = packets[shown]
        if not len(times):
            raise DecodeError("the video has no frames that are shown")
        fps = _rate(times, base, rate, timed)
        span = int(times[-1] - times[0]) + self._last if timed else 0
        seconds = float(span * base) if span else len(times) / fps
        return Index(
            encoding, codec.name, codec.width, codec.height, fps, seconds, base, times, packets,
            np.argsort(packets, kind="stable"), keys, np.array(self._dts, dtype=np.int64)[keys],
            timed, timed, sound,
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
