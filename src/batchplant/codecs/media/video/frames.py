"""Frames of a video by number: from the keyframe before, and only those that are wanted become images.

A frame is known by the time at which it is shown, for the order of decoding is another. Decoding starts at
the last keyframe that is shown at or before it: what follows a keyframe in the file and is shown after it
needs nothing from before. Where a file marks keyframes that are none, the frame does not come out with its
time, and decoding starts at the beginning of the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ....errors import DecodeError, OptionError
from ....schema.columns import I64, U8
from .container import CLIP_VARIABLE, clip_limit, frame_limit, guarded, opened, pyav, video_of
from .index import UNKNOWN, Index

# A keyframe so few frames ahead is reached sooner by going on: the decoder has them already.
NEAR = 4
# Decoders of FFmpeg that can be told with every packet to leave out what is no reference for others.
SKIPPING = ("h264", "hevc")


class _LostError(Exception):
    """The frame did not come out of the decoder; says why."""


def sized(size: int | Sequence[int] | None, index: Index) -> tuple[int, int]:
    """Height and width of the images that are asked for."""
    if size is None:
        return index.height, index.width
    pair = (size, size) if isinstance(size, int | np.integer) else tuple(size)
    if len(pair) != 2 or not all(isinstance(side, int | np.integer) and side > 0 for side in pair):
        raise OptionError(f"size is one or two numbers from 1 on, not {size!r}")
    if pair[0] * pair[1] > frame_limit():
        raise OptionError(f"size is at most {frame_limit():,} pixels, not {pair[0]}×{pair[1]}")
    return int(pair[0]), int(pair[1])


def read_frames(
    data: memoryview,
    index: Index,
    numbers: I64,
    *,
    size: int | Sequence[int] | None = None,
    upright: bool = False,
) -> U8:
    """The frames of these numbers (checked), as (n, height, width, 3)."""
    height, width = sized(size, index)
    check_clip(len(numbers), height, width)
    out: U8 = np.empty((0, height, width, 3), dtype=np.uint8)
    for places, image in each_frame(data, index, numbers, size=size, upright=upright):
        if not len(out):
            out = np.empty((len(numbers), *image.shape), dtype=np.uint8)
        out[places] = image
    return out


def check_clip(frames: int, height: int, width: int) -> None:
    if frames * height * width > clip_limit():
        raise DecodeError(
            f"{frames} frames of {width}×{height} are more than {clip_limit():,} pixels; read fewer, or"
            f" smaller ones; the environment variable {CLIP_VARIABLE} allows more"
        )


def each_frame(
    data: memoryview,
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
        turns = round(frame.rotation / 90) % 4 if upright else 0
        # The size is that of the image as it is returned.
        high, wide = (width, height) if turns % 2 and size is not None else (height, width)
        image = np.rot90(_image(reformatter, frame, high, wide), turns)
        if image.shape != (shape or image.shape):
            raise DecodeError("its frames have different rotations; read them with upright=False")
        shape = image.shape
        yield np.flatnonzero(back == position), image


def check_frames(data: memoryview, index: Index) -> None:
    """DecodeError where one of the frames cannot be decoded."""
    for _ in _decoded(data, index, np.arange(len(index.times)), seek=False):
        pass


def rotation_of(data: memoryview, index: Index) -> int:
    """Degrees, against the clock, that the first frame has to be turned by."""
    for frame in _decoded(data, index, np.zeros(1, dtype=np.int64)):
        return int(frame.rotation)
    raise AssertionError


def _image(reformatter: Any, frame: Any, height: int, width: int) -> U8:
    """One frame as RGB at a size; lies in memory of FFmpeg's."""
    # What has the right size already is not filtered, and then this is what PyAV gives by itself.
    same = (frame.height, frame.width) == (height, width)
    with guarded("a frame cannot become an image"):
        image = reformatter.reformat(
            frame, width, height, "rgb24", interpolation="BILINEAR" if same else "AREA", threads=1
        )
        plane = image.planes[0]
        rows = np.frombuffer(plane, dtype=np.uint8).reshape(-1, plane.line_size)
        return rows[:height, : 3 * width].reshape(height, width, 3)


def _decoded(data: memoryview, index: Index, numbers: I64, *, seek: bool = True) -> Iterator[Any]:
    """The wanted frames (ascending numbers), each decoded once."""
    done, lost = 0, False
    if seek and index.seekable:
        try:
            with opened(data, checked=True) as container:
                for frame in _Track(container, index).frames(numbers, seek=True):
                    yield frame
                    done += 1
            return
        except _LostError:
            lost = True
    try:
        with opened(data, checked=True) as container:
            for frame in _Track(container, index).frames(numbers[done:], seek=False):
                yield frame
                done += 1
    except _LostError as error:
        raise DecodeError(f"frame {numbers[done]} of {len(index.times)}: {error}") from None
    if lost:
        # What is marked as keyframes are none.
        index.seekable = False


class _Track:
    """The video of an opened file."""

    def __init__(self, container: Any, index: Index) -> None:
        self._container, self._index = container, index
        self._stream = video_of(container)
        self._times: set[int] | None = None

    def frames(self, numbers: I64, *, seek: bool) -> Iterator[Any]:
        """The frames of these ascending numbers."""
        index = self._index
        if index.timed and self._stream.codec_context.codec.name in SKIPPING:
            self._times = set(index.times[numbers].tolist())
        keys = np.zeros(len(numbers), dtype=np.int64)
        if seek:
            after = np.searchsorted(index.key_times, index.times[numbers], side="right")
            keys = np.maximum(after - 1, 0)
        # The first frame that comes from each keyframe.
        firsts = np.searchsorted(index.times, index.key_times[keys]) if seek else keys
        flow: Iterator[tuple[int, Any]] = iter(())
        last: int | None = None
        for number, key, first in zip(numbers.tolist(), keys.tolist(), firsts.tolist(), strict=True):
            if last is None or first > last + NEAR:
                flow = self._flow(key)
            last = number
            for frame_number, frame in flow:
                if frame_number == number:
                    yield frame
                    break
                if frame_number > number:
                    raise _LostError("the decoder does not give this frame")
            else:
                raise _LostError("the decoder does not give this frame")

    def _flow(self, key: int) -> Iterator[tuple[int, Any]]:
        """(number, frame) from a keyframe on, all of them."""
        index = self._index
        floor = int(index.packets[index.keys[key]])
        count, started = 0, key == 0
        for packet in self._packets(key):
            if self._times is not None:
                # A frame that no other one needs is only decoded if it is wanted itself.
                needed = packet.pts is None or packet.pts in self._times
                self._stream.codec_context.skip_frame = "DEFAULT" if needed else "NONREF"
            try:
                frames = packet.decode()
            # Decoders raise many kinds on damaged bytes.
            except Exception as error:
                # Frames that are shown before the keyframe may need what lies before it.
                if index.timed and packet.pts is not None and packet.pts < floor:
                    continue
                message = getattr(error, "strerror", None) or type(error).__name__
                raise _LostError(f"{message} (byte {packet.pos} of the video)") from None
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

    def _packets(self, key: int) -> Iterator[Any]:
        """Packets from a keyframe on."""
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
