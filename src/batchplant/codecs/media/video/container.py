"""A video in memory, opened by PyAV (FFmpeg) in a way that data cannot abuse.

The demuxer is the one that the first bytes name, never one that FFmpeg guesses: a playlist stays closed.
Nothing besides these bytes is ever opened. Only common codecs run, each in one thread.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....errors import BatchplantError, DecodeError, needs
from ....schema.columns import I64, U8
from ....storage.limits import from_environment
from ..memory import Memory

ENCODINGS = ("mp4", "mov", "mkv", "webm", "avi")
SUFFIXES = {
    ".mp4": "mp4",
    ".m4v": "mp4",
    ".mov": "mov",
    ".mkv": "mkv",
    ".webm": "webm",
    ".avi": "avi",
}
DEMUXERS = {"mp4": "mp4", "mov": "mov", "mkv": "matroska", "webm": "matroska", "avi": "avi"}
# Sound and still images that come in the boxes of MP4.
NO_VIDEO = (b"M4A ", b"M4B ", b"heic", b"heix", b"hevc", b"mif1", b"msf1", b"avif")
VIDEO_CODECS = frozenset((
    "h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "libaom-av1", "mpeg4", "mpeg2video", "mpeg1video",
    "mjpeg", "h263", "msmpeg4", "msmpeg4v2", "msmpeg4v1", "wmv1", "wmv2", "vc1", "wmv3", "theora", "prores",
    "ffv1", "huffyuv", "ffvhuff", "utvideo", "rawvideo", "png", "dvvideo", "dnxhd", "cinepak", "qtrle",
))  # fmt: skip
SOUND_CODECS = frozenset((
    "aac", "mp3float", "mp3", "mp2float", "mp2", "opus", "libopus", "vorbis", "flac", "alac", "ac3", "eac3",
    "pcm_s16le", "pcm_s16be", "pcm_s24le", "pcm_s24be", "pcm_s32le", "pcm_s32be", "pcm_f32le", "pcm_f32be",
    "pcm_f64le", "pcm_f64be", "pcm_u8", "pcm_s8", "pcm_alaw", "pcm_mulaw", "adpcm_ms", "adpcm_ima_wav",
))  # fmt: skip
# 8K is 33 million; a clip has three bytes for each. The variables overrule them.
MOST_FRAME_PIXELS = 1 << 26
FRAME_VARIABLE = "BATCHPLANT_MAX_FRAME_PIXELS"
MOST_CLIP_PIXELS = 1 << 30
CLIP_VARIABLE = "BATCHPLANT_MAX_CLIP_PIXELS"
OPTIONS = {
    "protocol_whitelist": "none",
    "codec_whitelist": ",".join(sorted(VIDEO_CODECS | SOUND_CODECS)),
}


def frame_limit() -> int:
    """The most pixels that one frame may have."""
    return from_environment(FRAME_VARIABLE, MOST_FRAME_PIXELS, "pixels")


def clip_limit() -> int:
    """The most pixels that one call returns, those of all frames together."""
    return from_environment(CLIP_VARIABLE, MOST_CLIP_PIXELS, "pixels")


def encoding_of(data: Any) -> str | None:
    """The encoding that the first bytes tell; None where they are no video."""
    head = bytes(memoryview(data)[:64])
    if head[:4] == b"\x1a\x45\xdf\xa3":
        return "webm" if b"webm" in head else "mkv"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    if head[4:8] == b"ftyp":
        if head[8:12] in NO_VIDEO:
            return None
        return "mov" if head[8:12] == b"qt  " else "mp4"
    # QuickTime files from before there were types.
    return "mov" if head[4:8] in (b"moov", b"mdat", b"wide", b"pnot") else None


def pyav() -> Any:
    with needs("video needs PyAV", "video"):
        import av
        import av.video.reformatter
    return av


@contextlib.contextmanager
def guarded(doing: str) -> Iterator[None]:
    """Turn whatever the library raises into a DecodeError that says what was being done."""
    try:
        yield
    except BatchplantError:
        raise
    except Exception as error:
        message = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise DecodeError(f"{doing}: {message}") from None


def _nothing(*_: object) -> None:
    raise DecodeError("the video refers to another file")


@contextlib.contextmanager
def opened(data: memoryview, *, checked: bool = False) -> Iterator[Any]:
    """The video in these bytes as a container of PyAV; ``known``: only its frames are wanted."""
    av = pyav()
    encoding = encoding_of(data)
    if encoding is None:
        raise DecodeError("these bytes are not a video that batchplant knows")
    _check_claims(data, encoding)
    with guarded("the video cannot be opened"):
        container = av.open(
            Memory(data),
            "r",
            format=DEMUXERS[encoding],
            # Only options that the demuxer has; FFmpeg refuses to open references unless it is told to.
            container_options=OPTIONS,
            # FFmpeg decodes a little when it opens a file, to find facts.
            options={"max_pixels": str(frame_limit()), **({"skip_frame": "all"} if checked else {})},
            metadata_errors="replace",
            io_open=_nothing,
        )
    try:
        yield container
    finally:
        container.close()


def video_of(container: Any, codecs: frozenset[str] = VIDEO_CODECS) -> Any:
    """The video among the streams, ready to be decoded; images of a cover are none."""
    av = pyav()
    cover = av.stream.Disposition.attached_pic
    streams = [stream for stream in container.streams.video if not stream.disposition & cover]
    if not streams:
        raise DecodeError("there is no video in the file")
    with guarded("the streams cannot be read"):
        best = container.streams.best("video")
    stream = (
        best
        if best is not None and any(best.index == candidate.index for candidate in streams)
        else streams[0]
    )
    codec = stream.codec_context
    if codec is None or codec.name not in codecs:
        raise DecodeError(f"no decoder for this video ({'unknown' if codec is None else codec.name})")
    check_frame(codec.width, codec.height)
    one_thread(codec)
    # A size that stands further on in the stream is held to the same.
    codec.options = {**codec.options, "max_pixels": str(frame_limit())}
    return stream


def check_frame(width: int, height: int) -> None:
    """Raise a DecodeError where frames have no size, or more pixels than are allowed."""
    if width < 1 or height < 1:
        raise DecodeError("the video does not give its size")
    if width * height > frame_limit():
        raise DecodeError(
            f"frames of {width}×{height} are more than {frame_limit():,} pixels;"
            f" the environment variable {FRAME_VARIABLE} allows more"
        )


def sound_of(container: Any) -> Any:
    """The sound among the streams, ready to be decoded, or None."""
    if not container.streams.audio:
        return None
    with guarded("the streams cannot be read"):
        stream = container.streams.best("audio") or container.streams.audio[0]
    codec = stream.codec_context
    if codec is None or codec.name not in SOUND_CODECS:
        raise DecodeError(f"no decoder for this sound ({'unknown' if codec is None else codec.name})")
    one_thread(codec)
    return stream


def one_thread(codec: Any) -> None:
    """Many cells are decoded beside each other; threads inside each would only be in the way."""
    codec.thread_count = 1
    codec.thread_type = "NONE"


class Header(NamedTuple):
    """``fps`` and ``seconds`` are what the file claims, None where it claims nothing; a clip looks closer."""

    encoding: str
    fps: float | None
    width: int
    height: int
    seconds: float | None = None


def header(data: Any) -> Header:
    """The header of one video; DecodeError where it is none."""
    view = memoryview(data)
    with opened(view) as container:
        stream = video_of(container)
        rate = float(stream.average_rate or 0)
        size = stream.codec_context
        # In microseconds.
        seconds = container.duration / 1e6 if (container.duration or 0) > 0 else None
        return Header(encoding_of(view) or "", rate if rate > 0 else None, size.width, size.height, seconds)


# Boxes that hold boxes, on the way to the tables.
PARENTS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf"))
# Boxes of the file that are needed whole.
CONTENT = frozenset((b"moov", b"moof", b"mdat"))
# Claims that cost nothing worth asking about.
FREE = 1 << 20


def _check_claims(data: memoryview, encoding: str) -> None:
    """DecodeError where a video is cut, or claims what cannot be."""
    if encoding in ("mp4", "mov"):
        _check_mp4(data)
    elif encoding == "avi":
        _check_size(8 + int.from_bytes(data[4:8], "little"), len(data))
    else:
        _check_matroska(data)


def _check_size(claimed: int, size: int) -> None:
    if claimed > size:
        raise DecodeError(f"the video is cut: {claimed:,} bytes were written, and {size:,} are here")


def _check_matroska(data: memoryview) -> None:
    """An element is an identity, a length and content; the first two are the header and all the rest."""
    position = 0
    for _ in range(2):
        position += max(1, 9 - data[position].bit_length()) if position < len(data) else 1
        if position >= len(data) or not data[position]:
            raise DecodeError("the header of the video is cut or damaged")
        width = 9 - data[position].bit_length()
        mask = (1 << 7 * width) - 1
        size = int.from_bytes(data[position : position + width], "big") & mask
        position += width
        # A stream that was written without going back says no length.
        if size != mask:
            _check_size(position + size, len(data))
            position += size


def _check_mp4(data: memoryview) -> None:
    max_entries = max(FREE, len(data))
    samples = edits = fragments = 0
    for kind, body in _boxes(data, 0):
        if kind == b"trak":
            samples = edits = 0
        elif kind == b"cmov":
            raise DecodeError("its header is compressed, which is not read")
        elif kind in (b"stsz", b"stz2"):
            size, samples = _number(body, 4), _number(body, 8)
            # QuickTime counts sound in units of one byte.
            _claim(samples * max(size if kind == b"stsz" else 0, 1), max_entries)
        elif kind in (b"stts", b"ctts"):
            _claim(_runs(body), max_entries)
        elif kind == b"elst":
            edits = min(_number(body, 4), len(body) // 12)
        elif kind == b"trun":
            fragments += _number(body, 4)
            _claim(fragments, max_entries)
        # Every edit lists its samples anew.
        _claim(samples * edits, max_entries)


def _claim(count: int, limit: int) -> None:
    if count > limit:
        raise DecodeError(f"its header claims {count:,} samples, more than fit in it")


def _boxes(data: memoryview, depth: int) -> Iterator[tuple[bytes, memoryview]]:
    """Every box inside, parents before their children."""
    start = 0
    while start + 8 <= len(data):
        size, kind, head = _number(data, start), bytes(data[start + 4 : start + 8]), 8
        if size == 1:
            size, head = int.from_bytes(data[start + 8 : start + 16], "big"), 16
        elif size == 0:
            size = len(data) - start
        if size < head:
            return
        body = data[start + head : start + size]
        if not depth and kind in CONTENT:
            _check_size(start + size, len(data))
        yield kind, body
        if kind in PARENTS and depth < len(PARENTS):
            yield from _boxes(body, depth + 1)
        start += size


def _number(data: memoryview, offset: int) -> int:
    return int.from_bytes(data[offset : offset + 4], "big")


def _runs(body: memoryview) -> int:
    """The sum of the counts in a table of (count, value)."""
    rows = body[8 : 8 + 8 * min(_number(body, 4), len(body) // 8)]
    table = np.frombuffer(rows[: len(rows) // 8 * 8], dtype=">u4").reshape(-1, 2)
    return int(table[:, 0].sum(dtype=np.uint64))


# Packets may share bytes of the file, but not more often than this.
OVERLAP = 4

View = Callable[[int, int], U8]
Bools = npt.NDArray[np.bool_]


class Packets(NamedTuple):
    """The packets of a video, in the order of decoding; times are in units of ``base`` seconds.

    ``rotation``: degrees, against the clock. ``colour``: primaries, transfer, matrix (as ISO 23091-2 numbers
    them) and 1 for full range, where the file tells. ``last``: how long the last one is shown. ``shown``:
    flags of those that the edit list does not cut off. ``rate``: frames a second, if the file tells.
    """

    codec: str
    extradata: bytes
    width: int
    height: int
    rotation: int
    colour: tuple[int, int, int, int] | None
    base: Fraction
    last: int
    starts: I64
    sizes: I64
    dts: I64
    pts: I64
    keys: Bools
    shown: Bools
    rate: float | None = None


class UnknownError(Exception):
    """The file is damaged, or of a form that is not read here."""


def check(fits: object) -> None:
    """Raise UnknownError unless a condition holds."""
    if not fits:
        raise UnknownError
