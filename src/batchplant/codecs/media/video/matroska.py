"""The blocks of Matroska and WebM files: where every packet of the video lies, and when it is shown.

The headers of all elements are read once, not what lies between them: cues name keyframes only. A file that
is damaged, or rarer than what stands here (laced, compressed or encrypted video, several tracks, rotation),
has no table; FFmpeg's demuxer then reads the whole of it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from .container import Packets, UnknownError, View, check

EBML, SEGMENT, INFO, TRACKS, CLUSTER = 0x1A45DFA3, 0x18538067, 0x1549A966, 0x1654AE6B, 0x1F43B675
# Elements of a cluster.
TIMESTAMP, SIMPLE_BLOCK, BLOCK_GROUP, ENCRYPTED_BLOCK = 0xE7, 0xA3, 0xA0, 0xAF
# Elements of a block group.
BLOCK, DURATION, REFERENCE = 0xA1, 0x9B, 0xFB
# Elements of headers.
SCALE, TRACK, NUMBER, KIND, CODEC_ID, CONFIG = 0x2AD7B1, 0xAE, 0xD7, 0x83, 0x86, 0x63A2
FRAME_NANOSECONDS, TRACK_SCALE, ENCODINGS, DELAY = 0x23E383, 0x23314F, 0x6D80, 0x56AA
VIDEO, WIDTH, HEIGHT, COLOUR, PROJECTION = 0xE0, 0xB0, 0xBA, 0x55B0, 0x7670
CROPS = (0x54AA, 0x54BB, 0x54CC, 0x54DD)
PRIMARIES, TRANSFER, MATRIX, RANGE = 0x55BB, 0x55BA, 0x55B1, 0x55B9
# Decoders, and whether they need the private data of the codec.
CODECS = {
    b"V_MPEG4/ISO/AVC": ("h264", True),
    b"V_MPEGH/ISO/HEVC": ("hevc", True),
    b"V_AV1": ("libdav1d", True),
    b"V_VP8": ("vp8", False),
    b"V_VP9": ("vp9", False),
}
# Bytes of the longest header of an element with that of a block, and of what is read ahead at a time.
HEADER_BYTES, WINDOW_BYTES = 24, 8 << 20
MAX_ELEMENTS = 1 << 22
MAX_HEADERS_BYTES = 64 << 20
KEYFRAME, LACING = 0x80, 0x06
# Flag of the first byte of a VP8 frame that is shown.
VP8_SHOWN = 0x10
MAX_TIME = 1 << 53

Elements = dict[int, list[bytes]]


def packets_of(view: View, size: int) -> Packets | None:
    """Return the packets of the only video; None where the file does not tell them in a common way.

    Args:
        view: returns bytes of the file by start and size.
        size: that of the file.
    """
    try:
        return _File(view, size).packets()
    except (UnknownError, struct.error, ValueError, IndexError, KeyError, OverflowError, ZeroDivisionError):
        return None


class _Track:
    """The header of a track of video."""

    def __init__(self, entry: Elements) -> None:
        check(not entry.keys() & {ENCODINGS, TRACK_SCALE, DELAY})
        self.number = _number(entry, NUMBER)
        self.codec, needs_config = CODECS[entry[CODEC_ID][0].rstrip(b"\0")]
        self.config = entry[CONFIG][0] if needs_config else b""
        self.frame_nanoseconds = _number(entry, FRAME_NANOSECONDS, 0)
        video = _elements(entry[VIDEO][0])
        check(not video.keys() & {PROJECTION, *CROPS})
        self.width, self.height = _number(video, WIDTH), _number(video, HEIGHT)
        self.colour = None
        if COLOUR in video:
            colour = _elements(video[COLOUR][0])
            primaries, transfer, matrix = (_number(colour, kind, 2) for kind in (PRIMARIES, TRANSFER, MATRIX))
            check(max(primaries, transfer, matrix) < 256)
            self.colour = primaries, transfer, matrix, int(_number(colour, RANGE, 0) == 2)


class _File:
    """A file whose elements are looked at one after the other."""

    def __init__(self, view: View, size: int) -> None:
        self._view, self._size = view, size
        self._window, self._window_start = memoryview(b""), 0
        self._scale = 1_000_000
        self._track: _Track | None = None
        # Of each packet: start, size, time, whether it is a keyframe, whether it is shown.
        self._rows: list[tuple[int, int, int, bool, bool]] = []
        self._last = 0

    def packets(self) -> Packets:
        self._scan()
        track = self._track
        check(track is not None and self._rows)
        assert track is not None
        starts, sizes, pts, keys, shown = zip(*self._rows, strict=True)
        times = np.array(pts, dtype=np.int64)
        check(np.abs(times).max() < MAX_TIME)
        base = Fraction(self._scale, 1_000_000_000)
        last = self._last or track.frame_nanoseconds // self._scale
        return Packets(
            codec=track.codec,
            extradata=track.config,
            width=track.width,
            height=track.height,
            rotation=0,
            colour=track.colour,
            base=base,
            last=last,
            starts=np.array(starts, dtype=np.int64),
            sizes=np.array(sizes, dtype=np.int64),
            # A file has no decoding times: what is shown first is decoded first.
            dts=np.sort(times),
            pts=times,
            keys=np.array(keys, dtype=np.bool_),
            shown=np.array(shown, dtype=np.bool_),
            rate=1e9 / track.frame_nanoseconds if track.frame_nanoseconds else None,
        )

    def _scan(self) -> None:
        position, end, cluster_end, time = 0, self._size, 0, None
        for _ in range(MAX_ELEMENTS):
            if position == cluster_end:
                cluster_end, time = 0, None
            if position == end:
                # What follows the segment is for the demuxer.
                check(end == self._size)
                return
            kind, start, size = self._element(position)
            if kind in (SEGMENT, CLUSTER):
                # These may be of unknown size; what cannot be inside of them ends them.
                stop = end if size is None else start + size
                check(stop <= end and (kind != SEGMENT or not self._rows))
                position, cluster_end, time = start, stop if kind == CLUSTER else 0, None
                end = stop if kind == SEGMENT else end
                continue
            check(size is not None)
            position = start + int(size or 0)
            check(position <= (cluster_end or end))
            if kind in (INFO, TRACKS):
                check(not cluster_end)
                self._read_header(kind, start, position)
            elif kind == TIMESTAMP:
                time = int.from_bytes(self._at(start, position - start), "big")
            elif kind in (SIMPLE_BLOCK, BLOCK_GROUP, ENCRYPTED_BLOCK):
                check(time is not None and kind != ENCRYPTED_BLOCK)
                self._read_blocks(kind, start, position, time or 0)
        raise UnknownError

    def _at(self, start: int, size: int) -> memoryview:
        """Return bytes of the file."""
        check(start >= 0 and start + size <= self._size)
        offset = start - self._window_start
        if offset < 0 or offset + size > len(self._window):
            length = min(max(size, WINDOW_BYTES), self._size - start)
            self._window, self._window_start, offset = self._view(start, length).data, start, 0
        return self._window[offset : offset + size]

    def _element(self, position: int) -> tuple[int, int, int | None]:
        """Return identity, start and size of the content of an element; None for an unknown size."""
        return _element(self._at(position, min(HEADER_BYTES, self._size - position)), 0, position)

    def _read_header(self, kind: int, start: int, end: int) -> None:
        check(end - start <= MAX_HEADERS_BYTES)
        elements = _elements(bytes(self._at(start, end - start)))
        if kind == INFO:
            self._scale = _number(elements, SCALE, self._scale)
            check(0 < self._scale <= 1_000_000_000)
            return
        check(self._track is None)
        entries = [_elements(data) for data in elements.get(TRACK, [])]
        [entry] = [entry for entry in entries if _number(entry, KIND) == 1]
        self._track = _Track(entry)

    def _read_blocks(self, kind: int, start: int, end: int, time: int) -> None:
        if kind == SIMPLE_BLOCK:
            self._add(start, end, time, None)
            return
        block, is_key, duration = None, True, 0
        while start < end:
            inner, begin, size = self._element(start)
            check(size is not None)
            start = begin + int(size or 0)
            check(start <= end)
            if inner == BLOCK:
                check(block is None)
                block = begin, start
            elif inner == REFERENCE:
                is_key = False
            elif inner == DURATION:
                duration = int.from_bytes(self._at(begin, start - begin), "big")
        check(block is not None and duration < MAX_TIME)
        if block is not None and self._add(*block, time, is_key):
            self._last = duration or self._last

    def _add(self, start: int, end: int, time: int, is_key: bool | None) -> bool:
        """Add a block if it is one of the video; ``is_key``: None where its flags tell."""
        header = self._at(start, min(HEADER_BYTES, end - start))
        number, width = _size(header, 0)
        track = self._track
        check(track is not None)
        if track is None or number != track.number:
            return False
        shift, flags = struct.unpack_from(">hB", header, width)
        check(not flags & LACING and end - start > width + 3)
        hidden = track.codec == "vp8" and not header[width + 3] & VP8_SHOWN
        if is_key is None:
            is_key = bool(flags & KEYFRAME)
        self._rows.append((start + width + 3, end - start - width - 3, time + shift, is_key, not hidden))
        return True


def _size(data: memoryview, offset: int) -> tuple[int | None, int]:
    """Return a number of variable length, None if all of its bits are set, and the bytes that it takes."""
    width = 9 - data[offset].bit_length()
    check(width <= 8 and offset + width <= len(data))
    mask = (1 << 7 * width) - 1
    number = int.from_bytes(data[offset : offset + width], "big") & mask
    return None if number == mask else number, width


def _element(data: memoryview, offset: int, base: int = 0) -> tuple[int, int, int | None]:
    """Return identity, start and size of the content of an element; ``base`` is added to the start."""
    width = 9 - data[offset].bit_length()
    check(width <= 4)
    kind = int.from_bytes(data[offset : offset + width], "big")
    size, size_width = _size(data, offset + width)
    return kind, base + offset + width + size_width, size


def _elements(data: bytes) -> Elements:
    """Return the contents of the elements inside of another one, by identity."""
    elements: Elements = {}
    for kind, start, size in _walk(memoryview(data)):
        elements.setdefault(kind, []).append(data[start : start + size])
    return elements


def _walk(data: memoryview) -> Iterator[tuple[int, int, int]]:
    position = 0
    while position < len(data):
        kind, start, size = _element(data, position)
        check(size is not None and start + size <= len(data))
        yield kind, start, int(size or 0)
        position = start + int(size or 0)


def _number(elements: Elements, kind: int, default: int | None = None) -> int:
    """Return the last whole number of this identity."""
    if kind not in elements and default is not None:
        return default
    data = elements[kind][-1]
    check(len(data) <= 8)
    return int.from_bytes(data, "big")
