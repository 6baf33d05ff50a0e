"""Images to an encoded video."""

from __future__ import annotations

import contextlib
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from ....errors import BatchplantError, EncodeError, OptionError
from ....storage.platform import thread_ids
from .container import one_thread, opened, pyav, video_of

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
            f"a video is uint8 of shape (frames, height, width, 3), not {_described(images)}{hint}"
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


def _described(array: Any) -> str:
    return f"{array.dtype} {array.shape}"


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
