"""Detection of MP3 files, and the length of those whose header does not give it.

Without a header that says so (Xing, Info), libsndfile guesses the length from the first frame's bitrate,
and reads no further. So :func:`with_length` counts the frames and puts such a header in front. The decoder
then leaves out the 529 frames of its own delay, as it does wherever there is such a header.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from ...errors import DecodeError

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
