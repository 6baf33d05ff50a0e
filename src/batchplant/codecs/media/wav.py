"""WAV files of plain samples, without a library: where the samples lie, reading, writing.

Other compressions inside of WAV (ADPCM, µ-law, …) are left to libsndfile.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import numpy as np

from ...errors import DecodeError, EncodeError
from ...schema.columns import AnyArray

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


def parse(data: memoryview) -> Wav | None:
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


def read(data: memoryview, wav: Wav, start: int, frames: int, dtype: Any) -> Samples:
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


def write(samples: Samples, rate: int, subtype: str) -> bytes:
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
