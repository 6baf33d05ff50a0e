"""Cells of varying length. They lie in heaps, which never are compressed: runs of bytes in the file.

A heap is ``GCOL``, a version, its size, and objects: number, references, size, bytes up to a multiple of 8.
An object of number 0 is the free space at the end. We read them here and not through the library, which
copies cell by cell under one lock; so pictures are decoded where they lie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...columns import I64, U8
from ...errors import DamagedError
from ...storage import MappedSource, Source

# What stands in place of a cell of varying length: how many values, in which heap, under which number.
DESCRIPTOR = np.dtype([("count", "<u4"), ("heap", "<u8"), ("number", "<u4")])
HEAD = 16
# Numbers of objects have 16 bits.
MOST_OBJECTS = 65536


def find(source: Source, base: int, descriptors: npt.NDArray[Any], width: int) -> tuple[I64, I64]:
    """Starts and sizes of cells in the file; an error has the row as ``sample``.

    ``base`` is where the addresses of the file begin, ``width`` the bytes of one value.
    """
    sizes = descriptors["count"].astype(np.int64) * width
    starts = np.zeros(len(sizes), dtype=np.int64)
    rows = np.flatnonzero(sizes)
    if not len(rows):
        return starts, sizes
    heaps, which = np.unique(descriptors["heap"][rows], return_inverse=True)
    bad = heaps > np.uint64(max(0, source.size - base - HEAD))
    if bad.any():
        row = int(rows[np.argmax(bad[which])])
        raise DamagedError("it lies in a heap outside of the file", sample=row)
    at = heaps.astype(np.int64) + base
    keys, places, room = _objects(source, at, rows, which)
    wanted = which * MOST_OBJECTS + np.minimum(descriptors["number"][rows], MOST_OBJECTS - 1)
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1) if len(keys) else np.zeros(0, np.int64)
    if not len(keys):
        raise DamagedError("its heap is empty", sample=int(rows[0]), offset=int(at[which[0]]))
    bad = (keys[found] != wanted) | (room[found] < sizes[rows])
    if bad.any():
        first = int(np.argmax(bad))
        heap = int(at[which[first]])
        raise DamagedError("it is not in its heap", sample=int(rows[first]), offset=heap)
    starts[rows] = places[found]
    return starts, sizes


def _objects(source: Source, at: I64, rows: I64, which: I64) -> tuple[I64, I64, I64]:
    """Of all objects in these heaps: heap and number as one key (sorted), start in the file, size."""
    heads = source.gather(at, np.full(len(at), HEAD, dtype=np.int64)).data.reshape(-1, HEAD)
    length = heads[:, 8:].copy().view("<u8")[:, 0]
    good = (heads[:, :4] == np.frombuffer(b"GCOL", np.uint8)).all(axis=1) & (heads[:, 4] == 1)
    good &= (length >= HEAD) & (length <= (source.size - at).astype(np.uint64))
    if not good.all():
        wrong = int(np.argmin(good))
        row = int(rows[np.argmax(which == wrong)])
        raise DamagedError("it lies in no heap", sample=row, offset=int(at[wrong]))
    sizes = length.astype(np.int64)
    if isinstance(source, MappedSource):
        data, starts = source.view(0, source.size), at
    else:
        fetched = source.gather(at, sizes)
        data, starts = fetched.data, fetched.starts
    keys, places, room = [], [], []
    heap, position = np.arange(len(at)), np.full(len(at), HEAD, dtype=np.int64)
    # All heaps at a time, object after object.
    for _ in range(MOST_OBJECTS):
        inside = position + HEAD <= sizes[heap]
        heap, position = heap[inside], position[inside]
        if not len(heap):
            break
        number, size = _read_heads(data, starts[heap] + position)
        some = (number > 0) & (size <= (sizes[heap] - position - HEAD).astype(np.uint64))
        heap, position, number, size = heap[some], position[some] + HEAD, number[some], size[some]
        keys.append(heap * MOST_OBJECTS + number)
        places.append(at[heap] + position)
        room.append(size.astype(np.int64))
        position = position + (room[-1] + 7) // 8 * 8
    if not keys:
        nothing = np.empty(0, dtype=np.int64)
        return nothing, nothing, nothing
    every = np.concatenate(keys)
    order = np.argsort(every, kind="stable")
    return every[order], np.concatenate(places)[order], np.concatenate(room)[order]


def _read_heads(data: U8, at: I64) -> tuple[I64, npt.NDArray[np.uint64]]:
    heads = data[at[:, None] + np.arange(HEAD)]
    return heads[:, :2].copy().view("<u2")[:, 0].astype(np.int64), heads[:, 8:].copy().view("<u8")[:, 0]
