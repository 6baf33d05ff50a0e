"""Video: facts about a clip, its frames and its sound, from the bytes of a file in memory.

MP4, MOV, MKV, WebM and AVI, decoded by PyAV (extra ``video``); nothing is imported until a fact is asked for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import BatchplantError, DecodeError, OptionError
from ....schema.columns import I64, U8
from .. import audio
from .container import ENCODINGS, SUFFIXES, Header, encoding_of, guarded, header, opened, pyav, sound_of
from .encode import concatenate, encode
from .frames import check_frames, read_frames, rotation_of
from .index import Index, VideoSpan, index_of

__all__ = [
    "ENCODINGS",
    "SUFFIXES",
    "Clip",
    "Header",
    "Index",
    "VideoSpan",
    "concatenate",
    "encode",
    "encoding_of",
    "header",
    "index_of",
    "sound_format",
]


# Seconds that decoders of sound need to settle: MP3 and AAC refer back, Opus asks for 80 ms.
PREROLL = 0.3

F32 = npt.NDArray[np.float32]


class Clip(bytes):
    """The bytes of a video, and what is in them.

    A fact that is asked for reads the packets once, without decoding them; a DecodeError where they are no
    video.
    """

    @functools.cached_property
    def _index(self) -> Index:
        """When each frame is shown, and where decoding can start."""
        return index_of(memoryview(self))

    @property
    def encoding(self) -> str | None:
        """mp4, mov, mkv, webm or avi, by the first bytes; None where they tell none."""
        return encoding_of(self)

    @property
    def codec(self) -> str:
        return self._index.codec

    @property
    def fps(self) -> float:
        """Frames a second, on average."""
        return self._index.fps

    @property
    def frames(self) -> int:
        return len(self._index.times)

    @property
    def width(self) -> int:
        return self._index.width

    @property
    def height(self) -> int:
        return self._index.height

    @property
    def duration(self) -> float:
        """Seconds."""
        return self._index.duration

    @property
    def times(self) -> npt.NDArray[np.float64]:
        """The second at which each frame is shown; the first at 0."""
        return self._index.seconds

    @functools.cached_property
    def rotation(self) -> int:
        """Degrees, against the clock, by which a player turns the images. Decodes one frame."""
        return rotation_of(memoryview(self), self._index)

    @property
    def audio_rate(self) -> int | None:
        """Samples a second of the sound; None where there is none."""
        return None if self._sound is None else self._sound[0]

    @property
    def audio_channels(self) -> int | None:
        return None if self._sound is None else self._sound[1]

    @functools.cached_property
    def _sound(self) -> tuple[int, int] | None:
        return sound_format(memoryview(self))

    def read(
        self,
        start: int = 0,
        frames: int | None = None,
        *,
        stride: int = 1,
        size: int | Sequence[int] | None = None,
        upright: bool = False,
    ) -> U8:
        """Frames ``start``, ``start + stride``, … as uint8 (n, height, width, 3).

        frames: how many; None: to the end, and where there are fewer an OptionError. size: (height, width),
        or one number for both; FFmpeg's area filter. upright: turned as a player does.
        """
        numbers = wanted(len(self._index.times), start, frames, stride)
        return read_frames(memoryview(self), self._index, numbers, size=size, upright=upright)

    def audio(
        self, start: float = 0.0, seconds: float | None = None, *, rate: int | None = None, mono: bool = False
    ) -> npt.NDArray[np.float32]:
        """The sound from a second on, as float32 (frames, channels); 0 is the first image.

        seconds: None: to the end. rate: resampled to it. mono: the mean of all channels.
        """
        samples, stored_rate = _read_sound(memoryview(self), self._index, start, seconds)
        if mono:
            samples = samples.mean(axis=1, keepdims=True, dtype=np.float32)
        return (
            samples
            if rate in (None, stored_rate)
            else _at_rate(samples, stored_rate, int(rate or stored_rate))
        )

    def described(self) -> str:
        """One line for people; what is wrong where it is no video."""
        try:
            return (
                f"{self.encoding} ({self.codec}), {self.width}×{self.height}, {self.frames} frames,"
                f" {self.fps:.4g} frames a second"
            )
        except BatchplantError as error:
            return f"{self.encoding or 'unknown'}: {error}"

    def check(self) -> None:
        """Decode every frame; DecodeError where one cannot be."""
        check_frames(memoryview(self), self._index)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Clip, (bytes(self),)

    def __repr__(self) -> str:
        return f"<Clip: {self.encoding or 'unknown'}, {len(self)} bytes>"

    __str__ = __repr__


def sound_format(data: memoryview) -> tuple[int, int] | None:
    """Return rate and channels of the sound; None where there is none, or the file does not tell."""
    with opened(data) as container:
        decoder = container.streams.audio[0].codec_context if container.streams.audio else None
        # Sound that cannot be decoded is a matter of who asks for it.
        if decoder is None or not decoder.rate or not decoder.channels:
            return None
        return int(decoder.rate), int(decoder.channels)


def wanted(total: int, start: int, frames: int | None, stride: int) -> I64:
    """The numbers of these frames."""
    if stride < 1:
        raise OptionError(f"stride is from 1 on, not {stride}")
    first = start + total if start < 0 else start
    numbers = np.arange(first, total, stride)
    if not 0 <= first <= total or (frames is not None and not 0 <= frames <= len(numbers)):
        requested = "all" if frames is None else frames
        raise OptionError(f"{requested} frames from {start} on, each {stride} after the last, of {total}")
    return numbers if frames is None else numbers[:frames]


# -- sound: decoded from a little before the start, laid out by its times -----------------------------------


def _read_sound(data: memoryview, index: Index, start: float, seconds: float | None) -> tuple[F32, int]:
    """(frames, channels) from ``start`` seconds after the first frame of the video, and the rate."""
    if not start >= 0 or (seconds is not None and not seconds >= 0):
        raise OptionError(f"start and seconds are from 0 on, not {start} and {seconds}")
    with opened(data) as container:
        stream = sound_of(container)
        if stream is None:
            raise DecodeError("the video has no sound")
        with guarded("the sound cannot be decoded"):
            return _collect(container, stream, float(index.times[0] * index.base) + start, seconds)


def _collect(container: Any, stream: Any, start: float, seconds: float | None) -> tuple[F32, int]:
    rate, channels = int(stream.codec_context.rate), int(stream.codec_context.channels)
    if rate < 1 or channels < 1:
        raise DecodeError("its sound track does not give its rate")
    frames = None if seconds is None else round(seconds * rate)
    _check_samples(0 if frames is None else frames, channels)
    before = start - PREROLL
    if before > 0:
        container.seek(int(before / stream.time_base), stream=stream)
    # Times are rounded, in Matroska to milliseconds: what follows so soon follows at once.
    near = 2 + int(stream.time_base * rate)
    resampler = pyav().AudioResampler(format="fltp")
    parts: list[tuple[int, F32]] = []
    end = 0
    for frame in container.decode(stream):
        for resampled in resampler.resample(frame):
            if resampled.pts is None:
                raise DecodeError("its sound has no times")
            position = round((float(resampled.pts * resampled.time_base) - start) * rate)
            part = resampled.to_ndarray().T
            if frames is not None and position >= frames:
                return _joined(parts, frames, channels, near), rate
            if position + len(part) > 0:
                end = max(end, position + len(part))
                _check_samples(end, channels)
                parts.append((position, part))
    return _joined(parts, end if frames is None else min(frames, end), channels, near), rate


def _at_rate(values: F32, stored_rate: int, rate: int) -> F32:
    """The same sound at another rate, by FFmpeg: who has it needs no other library for this."""
    if rate < 1:
        raise OptionError(f"rate is from 1 on, not {rate}")
    length, channels = round(len(values) * rate / stored_rate), values.shape[1]
    _check_samples(length, channels)
    out = np.zeros((length, channels), dtype=np.float32)
    # One channel after another: FFmpeg need not know which speaker each is for.
    for channel in range(channels if len(values) else 0):
        with guarded("the sound cannot be resampled"):
            out[:, channel] = _resampled(values[:, channel], stored_rate, rate, length)
    return out


def _resampled(values: Any, stored_rate: int, rate: int, length: int) -> F32:
    av = pyav()
    resampler = av.AudioResampler(format="fltp", layout="mono", rate=rate)
    frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(values[None]), format="fltp", layout="mono")
    frame.sample_rate, frame.pts = stored_rate, 0
    frames = [*resampler.resample(frame), *resampler.resample(None)]
    joined = np.concatenate([part.to_ndarray()[0] for part in frames])[:length]
    return np.pad(joined, (0, length - len(joined)))


def _check_samples(frames: int, channels: int) -> None:
    if frames * channels > audio.limit():
        raise DecodeError(
            f"its sound is more than {audio.limit():,} samples; read a part of it, or set the environment"
            f" variable {audio.VARIABLE}"
        )


def _joined(parts: list[tuple[int, F32]], frames: int, channels: int, near: int) -> F32:
    """Every part at its place; silence between them."""
    out = np.zeros((frames, channels), dtype=np.float32)
    end = None
    for start, part in parts:
        position = start if end is None or abs(start - end) > near else end
        end = position + len(part)
        low, high = max(position, 0), min(end, frames)
        if low < high:
            out[low:high] = part[low - position : high - position]
    return out
