"""Sounds: what they say about themselves, decoding whole or a window of them, encoding.

Plain WAV needs no library; FLAC, Ogg (Vorbis, Opus) and MP3 go through libsndfile, resampling through soxr
(extra ``audio``). Samples are arrays (frames, channels); a frame is one sample of every channel.

Of an MP3 without a header that says so (Xing, Info), libsndfile guesses the length from the first frame's
bitrate, and reads no further. So :func:`with_length` counts the frames and puts such a header in front. The
decoder then leaves out the 529 frames of its own delay, as it does wherever there is such a header.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import struct
import sys
import threading
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from ...errors import DecodeError, EncodeError, OptionError, exceptions_as, needs
from ...schema.columns import AnyArray, AnyDType
from ...storage.limits import from_environment
from .memory import Memory

SUFFIXES = {
    ".wav": "wav",
    ".wave": "wav",
    ".flac": "flac",
    ".ogg": "ogg",
    ".oga": "ogg",
    ".opus": "opus",
    ".mp3": "mp3",
}
DTYPES = ("float32", "float64", "int16", "int32")
# How many samples one call decodes at most, all channels together; the variable overrules it.
MOST_SAMPLES = 1 << 28
VARIABLE = "BATCHPLANT_MAX_SAMPLES"


class Header(NamedTuple):
    """Header of an encoded sound. ``subtype`` as libsndfile names it: PCM_24, FLOAT, VORBIS …"""

    encoding: str
    rate: int
    channels: int
    frames: int
    subtype: str


class Sound(bytes):
    """An encoded sound: the bytes of its file, which know what they are and can be decoded.

    Facts are looked up when they are asked for. They raise a DecodeError where the bytes are no sound.
    """

    @functools.cached_property
    def header(self) -> Header:
        return header(self)

    @functools.cached_property
    def encoding(self) -> str:
        """wav, flac, ogg, opus or mp3; empty where it is none of them."""
        return encoding_of(self)

    @property
    def rate(self) -> int:
        """Frames a second."""
        return self.header.rate

    @property
    def channels(self) -> int:
        return self.header.channels

    @property
    def frames(self) -> int:
        return self.header.frames

    @property
    def subtype(self) -> str:
        return self.header.subtype

    @property
    def seconds(self) -> float:
        return self.header.frames / self.header.rate

    def read(
        self,
        start: int = 0,
        frames: int | None = None,
        *,
        rate: int | None = None,
        mono: bool = False,
        dtype: Any = "float32",
    ) -> Samples:
        """The samples from frame ``start`` on, (frames, channels); see :func:`decode`."""
        return decode(self, start, frames, rate=rate, mono=mono, dtype=dtype, header_of_sound=self.header)

    def check(self) -> None:
        """Decode all of it; DecodeError where that fails."""
        self.read()

    def __repr__(self) -> str:
        return f"<Sound: {self.encoding or 'unknown'}, {len(self)} bytes>"

    __str__ = __repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return Sound, (bytes(self),)


def limit() -> int:
    """Largest number of samples that one call may decode."""
    return from_environment(VARIABLE, MOST_SAMPLES, "samples")


def encoding_of(data: Any) -> str:
    """wav, flac, ogg (Vorbis …), opus or mp3, told by the first bytes; empty for anything else."""
    view = memoryview(data).cast("B")
    first = bytes(view[:40])
    if first[:4] in (b"RIFF", b"RF64") and first[8:12] == b"WAVE":
        return "wav"
    if first[:4] == b"OggS":
        return "opus" if first[28:36] == b"OpusHead" else "ogg"
    start = after_id3(view)
    if bytes(view[start : start + 4]) == b"fLaC":
        return "flac"
    return "mp3" if is_mp3(view) else ""


def header(data: Any) -> Header:
    """Read the header of a sound; decode it only if the header does not give its length."""
    view = memoryview(data).cast("B")
    encoding = encoding_of(view)
    if encoding == "wav":
        wav_header = parse_wav(view)
        if wav_header is not None:
            return Header("wav", wav_header.rate, wav_header.channels, wav_header.frames, wav_header.subtype)
    if encoding == "flac":
        exact = _flac_header(view)
        if exact is not None:
            return exact
    with opened(view, encoding) as file:
        frames, channels = int(file.frames), int(file.channels)
        if frames >= UNKNOWN:
            # Written into a pipe: who wants to know its length has to decode it.
            max_frames = min(limit() // max(1, channels), len(view) * MOST_FRAMES_PER_BYTE)
            frames = len(_read(file, max_frames, channels, np.dtype(np.int16)))
        return Header(encoding, int(file.samplerate), channels, frames, str(file.subtype))


def decode(
    data: Any,
    start: int = 0,
    frames: int | None = None,
    *,
    rate: int | None = None,
    mono: bool = False,
    dtype: Any = "float32",
    header_of_sound: Header | None = None,
) -> Samples:
    """The samples of a sound as an array (frames, channels).

    start, frames: a window, counted in the sound's own frames; only it is decoded. What lies behind the
    end is not there: the array is shorter. rate: resampled to it. mono: the mean of the channels.
    dtype: float32, float64 (full scale is -1 … 1), int16 or int32 (full scale is that of the dtype: 24 bits
    are the upper ones of 32). known: the header, where it is known already.
    """
    view = memoryview(data).cast("B")
    kind = np.dtype(dtype)
    if kind.name not in DTYPES:
        raise OptionError(f"sounds are decoded to {', '.join(DTYPES)}, not {kind}")
    if start < 0 or (frames is not None and frames < 0):
        raise OptionError(f"start and frames must not be negative: {start}, {frames}")
    if rate is not None and not 0 < rate < 1 << 31:
        raise OptionError(f"rate is a number above 0, not {rate}")
    head = header(view) if header_of_sound is None else header_of_sound
    count = max(0, head.frames - start)
    count = count if frames is None else min(count, frames)
    _check_size(count * head.channels)
    if rate is not None:
        _check_size(math.ceil(count * rate / head.rate) * (1 if mono else head.channels))
    samples = _samples(view, head, min(start, head.frames), count, kind)
    if mono and head.channels > 1:
        samples = _mean(samples)
    if rate is not None and rate != head.rate:
        samples = _resample(samples, head.rate, rate)
    return samples


def encode(samples: Any, rate: int, encoding: str = "flac", subtype: str | None = None) -> bytes:
    """An encoded sound of samples, (frames, channels) or (frames,). WAV and FLAC are lossless.

    subtype: how samples are stored, such as PCM_24; by default what holds the array exactly: FLAC takes
    int16, and int32 or float32 as 24 bits where those are enough.
    """
    array = np.asarray(samples)
    array = array[:, None] if array.ndim == 1 else array
    if array.ndim != 2 or not array.shape[1] or array.dtype.name not in DTYPES:
        raise EncodeError(
            f"a sound is an array (frames, channels) of {', '.join(DTYPES)}, not {array.dtype} {array.shape}"
        )
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not 0 < rate < 1 << 31:
        raise EncodeError(f"rate is a whole number above 0, not {rate!r}")
    if encoding not in set(SUFFIXES.values()):
        encodings = ", ".join(sorted(set(SUFFIXES.values())))
        raise EncodeError(f"sounds are encoded as {encodings}, not {encoding!r}")
    if encoding == "wav":
        subtypes = {"int16": "PCM_16", "int32": "PCM_32", "float32": "FLOAT", "float64": "DOUBLE"}
        chosen = subtype or subtypes[array.dtype.name]
        if chosen not in WIDTHS:
            raise EncodeError(f"WAV is written as {', '.join(WIDTHS)}, not {chosen!r}")
        return write_wav(array, int(rate), chosen)
    if encoding == "flac" and subtype is None:
        array, subtype = _as_flac(array)
    return _encode_with_library(array, int(rate), encoding, subtype)


# -- reading -------------------------------------------------------------------------------------------------


def cut(data: Any, first: float, seconds: float | None = None, channel: int | None = None) -> bytes:
    """Return a part of a sound, or of one channel, as a WAV file, from a second on.

    It has 16 bits where the sound has as many.
    """
    head = header(data)
    # A product beyond the largest real cannot be rounded.
    start = round(min(first * head.rate, head.frames))
    remaining = head.frames - start
    count = remaining if seconds is None else round(min(seconds * head.rate, remaining))
    dtype, subtype = ("int16", "PCM_16") if head.subtype == "PCM_16" else ("float32", "FLOAT")
    if channel is not None and channel >= head.channels:
        raise DecodeError(f"it has {head.channels} channels, none of number {channel}")
    samples = decode(data, start, count, dtype=dtype)
    return write_wav(samples if channel is None else samples[:, [channel]], head.rate, subtype)


def _check_size(samples: int) -> None:
    if samples > limit():
        raise DecodeError(
            f"it would be {samples:,} samples, and the limit is {limit():,}; read a window of it, or set the "
            f"environment variable {VARIABLE}"
        )


def _samples(view: memoryview, head: Header, start: int, count: int, dtype: AnyDType) -> Samples:
    plain = parse_wav(view) if head.encoding == "wav" else None
    if plain is not None:
        return read_wav(view, plain, start, count, dtype)
    if not count:
        return np.empty((0, head.channels), dtype=dtype)
    # libsndfile does not scale where it makes integers of floats.
    direct = dtype.kind == "f" or head.subtype.startswith("PCM")
    with opened(view, head.encoding) as file:
        before = _before(view, head.encoding, start) if file.frames < UNKNOWN else start
        if before < start:
            file.seek(start - before)
        decoded = _read(file, before + count, head.channels, dtype if direct else np.dtype(np.float32))
    if len(decoded) < before + count:
        end = start + len(decoded) - before
        raise DecodeError(
            f"the header says {head.frames} frames, but the data end or are damaged at frame {max(0, end)}"
        )
    return decoded[before:] if direct else convert(decoded[before:], dtype)


def _before(view: memoryview, encoding: str, start: int) -> int:
    """Number of frames to decode and discard before the requested ones."""
    if encoding == "mp3":
        return min(start, PREROLL)
    if encoding == "ogg":
        # libsndfile seeks to a wrong place inside of the last page of Vorbis, which may be cut short.
        last = last_page(view)
        return start - max(0, last - 1) if start >= last else 0
    return 0


def _read(file: Any, frames: int, channels: int, dtype: AnyDType) -> Samples:
    return file.read(out=np.empty((frames, channels), dtype=dtype))


def _flac_header(view: memoryview) -> Header | None:
    """The facts of a FLAC file; None where its length is not among them."""
    start = after_id3(view)
    block = bytes(view[start + 4 : start + 42])
    if len(block) < 38 or block[0] & 0x7F or int.from_bytes(block[1:4], "big") < 34:
        raise DecodeError("a FLAC file without its first block")
    packed = int.from_bytes(block[14:22], "big")
    rate, channels = packed >> 44, (packed >> 41 & 7) + 1
    bits, frames = (packed >> 36 & 31) + 1, packed & (1 << 36) - 1
    if not rate:
        raise DecodeError("a FLAC file without a rate")
    if frames > len(view) * MOST_FRAMES_PER_BYTE:
        raise DecodeError(f"the header says {frames} frames, which {len(view)} bytes cannot hold")
    name = {8: "PCM_S8", 16: "PCM_16", 24: "PCM_24"}.get(bits)
    return Header("flac", rate, channels, frames, name) if frames and name else None


# -- changing ------------------------------------------------------------------------------------------------


def _mean(samples: Samples) -> Samples:
    if samples.dtype.kind == "f":
        return np.asarray(samples.mean(axis=1, keepdims=True, dtype=samples.dtype))
    return np.asarray(np.rint(samples.mean(axis=1, keepdims=True)).astype(samples.dtype))


def _resample(samples: Samples, old: int, new: int) -> Samples:
    if not len(samples):
        return samples
    with needs("resampling needs soxr", "audio"):
        import soxr
    # It raises what it likes, also on rates it cannot do.
    with exceptions_as(DecodeError, f"from {old} Hz to {new} Hz", Exception):
        resampled: Samples = soxr.resample(np.ascontiguousarray(samples), old, new)
    return resampled


# -- writing -------------------------------------------------------------------------------------------------


def _as_flac(samples: Samples) -> tuple[Samples, str]:
    """As what FLAC can hold, exactly; EncodeError where it cannot."""
    if samples.dtype == np.int16:
        return samples, "PCM_16"
    wide = samples if samples.dtype == np.int32 else convert(samples, np.int32)
    exact = not (wide & 0xFF).any()
    if samples.dtype.kind == "f":
        exact = exact and bool(np.array_equal(convert(wide, samples.dtype), samples))
    if not exact:
        raise EncodeError(
            f"FLAC holds 24 bits, and these {samples.dtype} samples need more; use encoding='wav', or name a "
            "subtype (PCM_24, PCM_16) to round them"
        )
    return wide, "PCM_24"


# No encoding gets more frames into a byte. So a header that lies takes little memory.
MOST_FRAMES_PER_BYTE = 1 << 13
# What libsndfile says where a FLAC file does not tell its length.
UNKNOWN = 1 << 62
# Its Vorbis encoder overruns the stack where it gets much more at once.
ENCODED_AT_ONCE = 4096
# The last page of an Ogg file, and whatever another program may have put behind it.
OGG_TAIL = 1 << 17


@contextlib.contextmanager
def opened(view: memoryview, encoding: str) -> Iterator[Any]:
    """libsndfile's view of a sound; whatever it raises becomes a DecodeError."""
    if not encoding:
        raise DecodeError("these bytes are not a sound that batchplant knows")
    if encoding in ("ogg", "opus"):
        _check_ogg(view)
    if encoding == "mp3":
        view = with_length(view)
    opener = _opener(library())
    try:
        with opener(Memory(view)) as file:
            frames = int(file.frames)
            if len(view) * MOST_FRAMES_PER_BYTE < frames < UNKNOWN:
                raise DecodeError(f"the header says {frames} frames, which {len(view)} bytes cannot hold")
            yield file
    except DecodeError:
        raise
    except MemoryError:
        raise DecodeError("there is not enough memory for its samples") from None
    # The library has its own exceptions, and cffi others.
    except Exception as error:
        message = str(error).partition(">: ")[2] or str(getattr(error, "error_string", "") or error)
        raise DecodeError(f"this {encoding} sound cannot be decoded: {message.strip()}") from None


def _check_ogg(view: memoryview) -> None:
    """To libsndfile a file that was cut is just shorter. But its last page is not marked as the last."""
    tail = bytes(view[-OGG_TAIL:])
    page = tail.rfind(b"OggS")
    sizes = tail[page + 27 : page + 27 + tail[page + 26]] if 0 <= page < len(tail) - 27 else b""
    complete = bool(sizes) and page + 27 + tail[page + 26] + sum(sizes) <= len(tail)
    if not complete or not tail[page + 5] & 4:
        raise DecodeError("an Ogg file that ends before its last page")


def last_page(view: memoryview) -> int:
    """The frame at which the last page of an Ogg file begins; 0 where that is not told."""
    tail = bytes(view[-OGG_TAIL:])
    page = tail.rfind(b"OggS")
    while (page := tail.rfind(b"OggS", 0, max(0, page))) >= 0:
        end = int.from_bytes(tail[page + 6 : page + 14], "little", signed=True)
        # -1: no packet ends on it.
        if end >= 0:
            return end
    return 0


def library() -> ModuleType:
    # OSError: the package is there, and the library it wraps is not.
    with needs("this sound needs soundfile", "audio"):
        import soundfile
    return soundfile


@functools.cache
def _opener(module: ModuleType) -> Any:
    """Class that opens files for sequential reads: soundfile itself seeks after every read."""

    class Straight(module.SoundFile):  # type: ignore[name-defined,misc]
        def seekable(self) -> bool:
            return False

    return Straight


def _after_fork() -> None:
    """soundfile opens files under a lock, which a thread of the parent may have held at the fork."""
    opener = getattr(sys.modules.get("soundfile"), "SoundFile", None)
    if opener is not None and hasattr(opener, "_sf_error_lock"):
        opener._sf_error_lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _encode_with_library(samples: Samples, rate: int, encoding: str, subtype: str | None) -> bytes:
    module = library()
    out = io.BytesIO()
    if not len(samples):
        raise EncodeError(f"{encoding} cannot hold a sound without frames; use wav")
    container = {"opus": "OGG"}.get(encoding, encoding.upper())
    kind = subtype or {"ogg": "VORBIS", "opus": "OPUS"}.get(encoding)
    try:
        with module.SoundFile(out, "w", rate, samples.shape[1], subtype=kind, format=container) as file:
            for start in range(0, len(samples), ENCODED_AT_ONCE):
                file.write(np.ascontiguousarray(samples[start : start + ENCODED_AT_ONCE]))
    # As above.
    except Exception as error:
        raise EncodeError(f"{encoding}: {error}") from None
    return out.getvalue()


# kbit/s by index, for MPEG-1 and for MPEG-2 and 2.5.
BITRATES = (
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),
)
RATES = (44100, 48000, 32000)
# What is decoded before a window and thrown away: a frame leans on the bytes of those before it, in the worst
# case on those of 24 (8 kbit/s). It is 16 frames of MPEG-1, 32 of the others.
PREROLL = 16 * 1152
# What may come behind the last frame.
TRAILERS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3", b"\0\0\0")


class Frame(NamedTuple):
    """The header of one frame. ``low``: MPEG-2 or 2.5, frames of half the length. ``size`` 0: not told."""

    size: int
    low: bool
    mono: bool


def frame_at(data: memoryview, position: int) -> Frame | None:
    """The header at this byte; None where there is none."""
    if position + 4 > len(data):
        return None
    first, second, third, fourth = data[position : position + 4]
    # Layer III only. Version 1 is reserved.
    if first != 0xFF or second & 0xE6 != 0xE2 or second >> 3 & 3 == 1:
        return None
    bitrate, rate = third >> 4, third >> 2 & 3
    if bitrate == 15 or rate == 3:
        return None
    version = second >> 3 & 3
    low = version != 3
    hertz = RATES[rate] >> (0 if version == 3 else 1 if version == 2 else 2)
    size = 0
    if bitrate:
        size = (72 if low else 144) * BITRATES[low][bitrate] * 1000 // hertz + (third >> 1 & 1)
    return Frame(size, low, fourth >> 6 == 3)


def after_id3(data: memoryview) -> int:
    """The byte behind an ID3 tag in front, 0 where there is none."""
    if bytes(data[:3]) != b"ID3" or len(data) < 10:
        return 0
    size = 0
    for part in data[6:10]:
        size = size << 7 | part & 0x7F
    return 10 + size + (10 if data[5] & 0x10 else 0)


def is_mp3(data: memoryview) -> bool:
    """True for data that begin with a tag, or with two frames."""
    start = after_id3(data)
    first_frame = frame_at(data, start)
    if first_frame is None:
        return False
    following = start + first_frame.size
    return first_frame.size == 0 or following + 4 > len(data) or frame_at(data, following) is not None


def with_length(data: memoryview) -> memoryview:
    """The same, or with a header in front that says how many frames there are."""
    start = after_id3(data)
    first = frame_at(data, start)
    if first is None or not first.size:
        return data
    side = (9 if first.mono else 17) if first.low else (17 if first.mono else 32)
    if bytes(data[start + 4 + side : start + 8 + side]) in (b"Xing", b"Info"):
        return data
    count, position = 0, start
    while (frame := frame_at(data, position)) is not None and frame.size:
        position += frame.size
        count += 1
    if position > len(data):
        raise DecodeError("its last frame is cut off")
    if not bytes(data[position : position + 11]).startswith(TRAILERS) and position < len(data):
        raise DecodeError(f"no frame begins at its byte {position}")
    head = bytearray(data[start : start + 4])
    # No checksum, and a bitrate at which the frame has room.
    head[1] |= 1
    head[2] = head[2] & 0x0C | 0x90
    head += bytes(side) + struct.pack(">4sII", b"Xing", 1, count)
    header_frame = frame_at(memoryview(head), 0)
    assert header_frame is not None
    return memoryview(bytes(head.ljust(header_frame.size, b"\0")) + data[start:])


Samples = AnyArray

PCM, FLOAT, EXTENSIBLE = 1, 3, 0xFFFE
SUBTYPES = {
    (PCM, 8): "PCM_U8",
    (PCM, 16): "PCM_16",
    (PCM, 24): "PCM_24",
    (PCM, 32): "PCM_32",
    (FLOAT, 32): "FLOAT",
    (FLOAT, 64): "DOUBLE",
}
WIDTHS = {name: bits // 8 for (_, bits), name in SUBTYPES.items()}
# What comes behind the code in the identifier of an extensible format.
GUID = bytes.fromhex("000000001000800000aa00389b71")
# A hostile file could have a chunk for every eight bytes.
MOST_CHUNKS = 1000
# Sizes from here on are what writers put in who could not go back and fill in the true one.
STREAMED = 0x7FFF_F000


class Wav(NamedTuple):
    """Header of a WAV file, and the byte at which the samples begin."""

    rate: int
    channels: int
    frames: int
    subtype: str
    start: int


def parse_wav(data: memoryview) -> Wav | None:
    """The header; None where the samples are not plain ones. DecodeError where it is damaged."""
    form, large = None, None
    position, size = 12, len(data)
    for _ in range(MOST_CHUNKS):
        if position + 8 > size:
            break
        name, length = struct.unpack_from("<4sI", data, position)
        position += 8
        if name == b"data":
            if form is None:
                raise DecodeError("a WAV file without a format before its samples")
            return _wav(data, form, position, large if large is not None and length == 0xFFFFFFFF else length)
        if position + length > size:
            break
        if name == b"fmt ":
            form = bytes(data[position : position + length])
        elif name == b"ds64" and length >= 16:
            large = int(struct.unpack_from("<Q", data, position + 8)[0])
        position += length + length % 2
    raise DecodeError("a WAV file that ends before its samples")


def _wav(data: memoryview, form: bytes, start: int, length: int) -> Wav | None:
    if len(form) < 16:
        raise DecodeError(f"a WAV file whose format has {len(form)} bytes, and 16 are needed")
    code, channels, rate, _, block, bits = struct.unpack_from("<HHIIHH", form)
    if code == EXTENSIBLE and form[26:40] == GUID:
        code = int.from_bytes(form[24:26], "little")
    available = len(data) - start
    if length >= STREAMED or (length == 0 and not any(data[4:8])):
        length = min(length or available, available)
    if length > available:
        raise DecodeError(f"its samples take {length} bytes, and {available} are there")
    if not channels or not 0 < rate < 1 << 31:
        raise DecodeError(f"a WAV file of {channels} channels at {rate} Hz")
    subtype = SUBTYPES.get((code, bits))
    if subtype is None or block != channels * bits // 8:
        return None
    return Wav(rate, channels, length // block, subtype, start)


def read_wav(data: memoryview, wav: Wav, start: int, frames: int, dtype: Any) -> Samples:
    """(frames, channels) from ``start`` on; the window lies inside."""
    width = WIDTHS[wav.subtype]
    count = frames * wav.channels
    first = wav.start + start * wav.channels * width
    if wav.subtype == "PCM_24":
        # Each with the byte before it (of the header, at least), then cleared: 24 bits as the upper of 32.
        values = (
            np.ndarray((count,), "<i4", data, first - 1, (3,)) & ~0xFF if count else np.empty(0, np.int32)
        )
    elif wav.subtype == "PCM_U8":
        values = (np.frombuffer(data, np.uint8, count, first).astype(np.int16) - 128) << 8
    else:
        kind = "f" if wav.subtype in ("FLOAT", "DOUBLE") else "i"
        values = np.frombuffer(data, f"<{kind}{width}", count, first)
    return convert(values, dtype).reshape(frames, wav.channels)


def convert(samples: Samples, dtype: Any) -> Samples:
    """Samples as another of int16, int32, float32, float64: -1 … 1 is the full scale of the integers."""
    dtype = np.dtype(dtype)
    if samples.dtype.kind == "f" and dtype.kind == "f":
        return samples.astype(dtype)
    if samples.dtype.kind == "f":
        scale = 2.0 ** (8 * dtype.itemsize - 1)
        wide = np.rint(samples.astype(np.float64) * scale)
        return np.asarray(np.nan_to_num(np.clip(wide, -scale, scale - 1)).astype(dtype))
    if dtype.kind == "f":
        converted = samples.astype(dtype)
        converted *= dtype.type(2.0 ** -(8 * samples.dtype.itemsize - 1))
        return converted
    if dtype == np.int32 and samples.dtype.itemsize == 2:
        return np.left_shift(samples.astype(np.int32), 16)
    if dtype == np.int16 and samples.dtype.itemsize == 4:
        return np.right_shift(samples, 16).astype(np.int16)
    return samples.astype(dtype)


def write_wav(samples: Samples, rate: int, subtype: str) -> bytes:
    """A WAV file of samples (frames, channels)."""
    code, bits = next(key for key, name in SUBTYPES.items() if name == subtype)
    if code == FLOAT:
        body = convert(samples, f"f{bits // 8}").astype(f"<f{bits // 8}").tobytes()
    elif bits == 16:
        body = convert(samples, np.int16).astype("<i2").tobytes()
    else:
        wide = convert(samples, np.int32).astype("<i4")
        if bits == 24:
            body = wide.reshape(-1).view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()
        else:
            body = wide.tobytes() if bits == 32 else ((wide >> 24) + 128).astype(np.uint8).tobytes()
    channels = samples.shape[1]
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", code, channels, rate, rate * block & 0xFFFFFFFF, block, bits)
    if len(body) + 64 >= STREAMED:
        raise EncodeError("a WAV file holds at most 2 GiB; use flac")
    padding = bytes(len(body) % 2)
    chunks = struct.pack("<4s4sI", b"WAVE", b"fmt ", len(form)) + form
    if code == FLOAT:
        # Wanted of everything that is not PCM.
        chunks += struct.pack("<4sII", b"fact", 4, len(samples))
    chunks += struct.pack("<4sI", b"data", len(body)) + body + padding
    return struct.pack("<4sI", b"RIFF", len(chunks)) + chunks
