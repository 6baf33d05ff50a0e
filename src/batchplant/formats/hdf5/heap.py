"""Cells of varying length. They lie in heaps, which never are compressed: runs of bytes in the file.

A heap is ``GCOL``, a version, its size, and objects: number, references, size, bytes up to a multiple of 8.
An object of number 0 is the free space at the end. We read them here and not through the library, which
copies cell by cell under one lock, and which a damaged heap can hold up for ever. So images are decoded
where they lie.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DamagedError
from ...schema.columns import I64
from ...storage import Source
from ...storage.cache import ChunkCache

# What stands in place of a cell of varying length: how many values, in which heap, under which number.
DESCRIPTOR = np.dtype([("count", "<u4"), ("heap", "<u8"), ("number", "<u4")])
HEAD = 16
# The library lets cells share a heap as long as it is no larger than this.
SHARED = 65536
OBJECT = struct.Struct("<H6xQ")
# Numbers of objects have 16 bits.
MOST_OBJECTS = 65536


def find(
    source: Source, cache: ChunkCache, base: int, descriptors: npt.NDArray[Any], width: int
) -> tuple[I64, I64]:
    """Starts and sizes of cells in the file; an error has the row as ``sample``.

    ``base`` is where the addresses of the file begin, ``width`` the bytes of one value.
    """
    sizes = descriptors["count"].astype(np.int64) * width
    starts = np.zeros(len(sizes), dtype=np.int64)
    rows = np.flatnonzero(sizes)
    if not len(rows):
        return starts, sizes
    bad = descriptors["heap"][rows] > np.uint64(max(0, source.size - base - 2 * HEAD))
    if bad.any():
        raise DamagedError("it lies in a heap outside of the file", sample=int(rows[np.argmax(bad)]))
    heaps = descriptors["heap"].astype(np.int64) + base
    numbers = descriptors["number"].astype(np.int64)
    rows = _alone(source, heaps, numbers, sizes, starts, rows)
    rows = rows[np.argsort(heaps[rows], kind="stable")]
    first = 0
    for end in (np.flatnonzero(np.diff(heaps[rows], append=-1)) + 1).tolist():
        here = rows[first:end]
        first = end
        row = here.item(0)
        heap = heaps.item(row)
        try:
            places, room = cache.get(("heap", heap), functools.partial(_objects, source, heap), _size_of)
        except DamagedError as error:
            raise DamagedError(error.message, offset=heap, sample=row) from None
        if len(here) == 1:
            # The usual case in a random batch, and much quicker than arrays of one number.
            number = numbers.item(row)
            bad_row = None if number < len(room) and room.item(number) >= sizes.item(row) else row
            starts[row] = places.item(number) if bad_row is None else 0
        else:
            offset = np.minimum(numbers[here], len(places) - 1)
            bad = (offset != numbers[here]) | (room[offset] < sizes[here])
            bad_row = int(here[np.argmax(bad)]) if bad.any() else None
            starts[here] = places[offset]
        if bad_row is not None:
            raise DamagedError("it is not in its heap", sample=bad_row, offset=heap)
    return starts, sizes


def around(source: Source, base: int, descriptors: npt.NDArray[Any], width: int) -> tuple[I64, I64]:
    """Locate cells in a heap collection that holds small cells, or one large one; others stay unknown."""
    starts = np.minimum(descriptors["heap"], np.uint64(source.size)).astype(np.int64) + base
    sizes = descriptors["count"].astype(np.int64) * width
    return starts, np.where(
        sizes > 0, np.clip(source.size - starts, 0, np.maximum(SHARED, sizes + 2 * HEAD)), 0
    )


def _alone(source: Source, heaps: I64, numbers: I64, sizes: I64, starts: I64, rows: I64) -> I64:
    """Fill in the cells that come first in their heap, as large ones do; return the other rows."""
    heads = source.gather(heaps[rows], np.full(len(rows), 2 * HEAD)).data.reshape(-1, 2 * HEAD)
    length = heads[:, 8:16].copy().view("<u8")[:, 0]
    good = (heads[:, :4] == np.frombuffer(b"GCOL", np.uint8)).all(axis=1) & (heads[:, 4] == 1)
    good &= (length >= 2 * HEAD) & (length <= (source.size - heaps[rows]).astype(np.uint64))
    if not good.all():
        row = int(rows[np.argmin(good)])
        raise DamagedError("it lies in no heap", sample=row, offset=int(heaps[row]))
    number = heads[:, 16:18].copy().view("<u2")[:, 0]
    size = heads[:, 24:32].copy().view("<u8")[:, 0]
    here = (number == numbers[rows]) & (size >= sizes[rows].astype(np.uint64))
    here &= size <= length - np.uint64(2 * HEAD)
    starts[rows[here]] = heaps[rows[here]] + 2 * HEAD
    rest: I64 = rows[~here]
    return rest


def _objects(source: Source, heap: int) -> tuple[I64, I64]:
    """Start and size of every object of a heap, by number; a size of -1 where there is none."""
    length = int.from_bytes(source.view(heap + 8, 8).tobytes(), "little")
    data = source.view(heap, length).data
    found: list[tuple[int, int, int]] = []
    offset = HEAD
    while offset + HEAD <= length and len(found) < MOST_OBJECTS:
        number, size = OBJECT.unpack_from(data, offset)
        offset += HEAD
        if number == 0 or size > length - offset:
            break
        found.append((number, heap + offset, size))
        offset += (size + 7) // 8 * 8
    table = np.array(found, dtype=np.int64).reshape(-1, 3)
    places = np.zeros(int(table[:, 0].max(initial=0)) + 1, dtype=np.int64)
    room = np.full(len(places), -1, dtype=np.int64)
    places[table[:, 0]], room[table[:, 0]] = table[:, 1], table[:, 2]
    return places, room


def _size_of(table: tuple[I64, I64]) -> int:
    return 2 * table[0].nbytes + 256
