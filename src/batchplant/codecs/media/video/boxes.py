"""Checks of the claims of a file before a library relies on them.

A file that was cut ends before its header says so; FFmpeg would play what is there.

The tables of an MP4 say how many samples there are, and some do so in a few bytes: a count, a size that all
share, a run of equal durations, an edit that plays everything again. FFmpeg takes memory for every sample
that is claimed. So no claim may be larger than the file could hold.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ....errors import DecodeError

# Boxes that hold boxes, on the way to the tables.
PARENTS = frozenset((b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf"))
# Boxes of the file that are needed whole.
CONTENT = frozenset((b"moov", b"moof", b"mdat"))
# Claims that cost nothing worth asking about.
FREE = 1 << 20


def check(data: memoryview, encoding: str) -> None:
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
