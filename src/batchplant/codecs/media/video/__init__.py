"""Video: facts about a clip, its frames and its sound, from the bytes of a file in memory.

MP4, MOV, MKV, WebM and AVI, decoded by PyAV (extra ``video``); nothing is imported until a fact is asked for.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ....errors import BatchplantError, DecodeError, EncodeError, OptionError
from ....schema.columns import I64, U8
from ....storage.platform import thread_ids
from .. import audio
from .container import (
    ENCODINGS,
    SUFFIXES,
    Header,
    encoding_of,
    guarded,
    header,
    one_thread,
    opened,
    pyav,
    sound_of,
    video_of,
)
from .frames import Index, VideoSpan, check_frames, index_of, read_frames, rotation_of

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
        if rate is None or rate == stored_rate:
            return samples
        return _at_rate(samples, stored_rate, int(rate))

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


MUXERS = {"mp4": "mp4", "mov": "mov", "mkv": "matroska", "webm": "webm", "avi": "avi"}
CODECS = {"mp4": "libx264", "mov": "libx264", "mkv": "libx264", "webm": "libvpx-vp9", "avi": "mpeg4"}
# Lossless, in RGB: nothing is rounded on the way to other colours.
LOSSLESS = {
    "libx264rgb": ("rgb24", {"crf": "0"}),
    "libvpx-vp9": ("gbrp", {"lossless": "1"}),
    "ffv1": ("bgr0", {}),
}
# How the worst quality is called, and what the codec takes when none is asked for.
WORST = {"libx264": 51, "libx265": 51, "libvpx-vp9": 63, "libvpx": 63, "libsvtav1": 63}
USUAL = {"libx264": 23, "libx265": 28, "libvpx-vp9": 32, "libvpx": 32, "libsvtav1": 35}


def encode(
    frames: Any,
    fps: float,
    encoding: str = "mp4",
    *,
    codec: str | None = None,
    quality: int | None = None,
    lossless: bool = False,
    gop: int | None = None,
) -> bytes:
    """Images (n, height, width, 3), uint8, as a video.

    quality: 1 to 100, the codec's own usual one by default. lossless: every pixel comes back as it is. gop:
    frames from one keyframe to the next, at most; fewer make random clips quicker and files larger.
    """
    images = np.asarray(frames)
    if images.ndim != 4 or images.shape[3] != 3 or images.dtype != np.uint8 or 0 in images.shape:
        first = images.ndim == 4 and images.shape[1] == 3 and images.shape[3] != 3
        hint = ": give np.moveaxis(frames, 1, -1)" if first else ""
        raise EncodeError(
            f"a video is uint8 of shape (frames, height, width, 3), not {images.dtype} {images.shape}{hint}"
        )
    if encoding not in MUXERS:
        raise OptionError(f"encoding is one of {', '.join(MUXERS)}, not {encoding!r}")
    if not 0 < fps < math.inf:
        raise OptionError(f"fps is a number above 0, not {fps!r}")
    if quality is not None and not 1 <= quality <= 100:
        raise OptionError(f"quality is from 1 to 100, not {quality!r}")
    if gop is not None and gop < 1:
        raise OptionError(f"gop is from 1 on, not {gop!r}")
    if lossless:
        name = codec or {"webm": "libvpx-vp9", "avi": "ffv1"}.get(encoding, "libx264rgb")
        if name not in LOSSLESS:
            raise OptionError(f"lossless video is written by {', '.join(LOSSLESS)}, not {name}")
        pixels, options = LOSSLESS[name]
    else:
        name = codec or CODECS[encoding]
        # Half as many colours as pixels need sides of an even number.
        odd = images.shape[1] % 2 or images.shape[2] % 2
        pixels = "yuv444p" if odd and name.startswith(("libx26", "libvpx-vp9")) else "yuv420p"
        options = _quality(name, quality)
    try:
        return _write(images, fps, MUXERS[encoding], name, pixels, options, gop)
    except BatchplantError:
        raise
    # Encoders raise many kinds on what they cannot do.
    except Exception as error:
        raise EncodeError(f"{name} in {encoding}: {getattr(error, 'strerror', None) or error}") from None


def _quality(codec: str, quality: int | None) -> dict[str, str]:
    if codec in WORST:
        factor = USUAL[codec] if quality is None else round((100 - quality) / 100 * WORST[codec])
        # VP9 and VP8 also obey a bit rate, unless it is none.
        return {"crf": str(factor), **({"b": "0"} if codec.startswith("libvpx") else {})}
    # Those of old take a step of the quantiser, 1 to 31.
    step = 4 if quality is None else 1 + round((100 - quality) / 100 * 30)
    return {"qmin": str(step), "qmax": str(step)}


def _write(
    images: Any, fps: float, muxer: str, codec: str, pixels: str, options: dict[str, str], gop: int | None
) -> bytes:
    av = pyav()
    rate = Fraction(fps).limit_denominator(1001)
    out = io.BytesIO()
    quiet = {"libx265": {"x265-params": "log-level=none"}}.get(codec, {})
    with keep_scheduling() as restore, av.open(out, "w", format=muxer) as container:
        stream = container.add_stream(codec, rate=rate, options={**options, **quiet})
        stream.height, stream.width = images.shape[1:3]
        stream.pix_fmt = pixels
        one_thread(stream.codec_context)
        if gop is not None:
            stream.codec_context.gop_size = gop
        # Here threads are started.
        container.start_encoding()
        restore()
        for number, image in enumerate(images):
            frame = av.VideoFrame.from_ndarray(np.ascontiguousarray(image), format="rgb24")
            frame.pts, frame.time_base = number, 1 / rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return out.getvalue()


def concatenate(parts: Iterable[bytes], path: str | os.PathLike[str], fps: float) -> None:
    """Write MP4 videos of one encoder as one file, as they are: frames 1 / ``fps`` seconds apart."""
    av = pyav()
    rate = Fraction(fps).limit_denominator(1001)
    with av.open(os.fspath(path), "w", format="mp4", options={"movflags": "faststart"}) as target:
        stream, done = None, 0
        for part in parts:
            with opened(memoryview(part)) as container:
                source = video_of(container)
                stream = stream or target.add_stream_from_template(source)
                shift = round(done / rate / source.time_base)
                for packet in container.demux(source):
                    if packet.dts is None:
                        continue
                    packet.pts, packet.dts = packet.pts + shift, packet.dts + shift
                    packet.stream = stream
                    target.mux(packet)
                    done += 1


@contextlib.contextmanager
def keep_scheduling() -> Iterator[Callable[[], None]]:
    """Restore the scheduling class of this thread, and of those started since, at the end.

    Yields a function that does so earlier. As root, SVT-AV1 makes the thread that calls it, and all threads
    that it starts, real-time threads, which preempt all others of the machine.
    """
    if not hasattr(os, "sched_setscheduler"):
        yield lambda: None
        return
    before, threads = _class(0), set(thread_ids())

    def restore() -> None:
        for thread in (0, *(set(thread_ids()) - threads)):
            # It may be gone already.
            with contextlib.suppress(OSError):
                if _class(thread) != before:
                    os.sched_setscheduler(thread, *before)

    try:
        yield restore
    finally:
        restore()


def _class(thread: int) -> tuple[int, os.sched_param]:
    return os.sched_getscheduler(thread), os.sched_getparam(thread)
