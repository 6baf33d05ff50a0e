"""The sound of a video: decoded from a little before the start, laid out by its times."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import DecodeError, OptionError
from .. import audio
from .container import guarded, opened, pyav, sound_of
from .index import Index

# Seconds that decoders of sound need to settle: MP3 and AAC refer back, Opus asks for 80 ms.
PREROLL = 0.3

F32 = npt.NDArray[np.float32]


def read_sound(data: memoryview, index: Index, start: float, seconds: float | None) -> tuple[F32, int]:
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
    _check(0 if frames is None else frames, channels)
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
                _check(end, channels)
                parts.append((position, part))
    return _joined(parts, end if frames is None else min(frames, end), channels, near), rate


def resampled(values: F32, stored_rate: int, rate: int) -> F32:
    """The same sound at another rate, by FFmpeg: who has it needs no other library for this."""
    if rate < 1:
        raise OptionError(f"rate is from 1 on, not {rate}")
    length, channels = round(len(values) * rate / stored_rate), values.shape[1]
    _check(length, channels)
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


def _check(frames: int, channels: int) -> None:
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
