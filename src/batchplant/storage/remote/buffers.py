"""Reused memory for bytes that come over the network.

Pages that are new to a process cost more time than filling them does, and memory that many threads free is
not returned to the system for long.
"""

from __future__ import annotations

import mmap
import weakref
from collections import deque
from collections.abc import Iterable

import numpy as np

from ...errors import AccessError, located
from ...schema.columns import U8
from ..platform import use_huge_pages
from .client import TransientError

# Smaller arrays are allocated normally.
MIN_REUSED_BYTES = 1 << 20
# Number of free buffers to keep, and the largest that is kept.
MAX_FREE_BUFFERS, MAX_FREE_BYTES = 4, 16 << 20
# Bytes taken out of an answer at a time. Each time takes the GIL.
READ_BYTES = 1 << 20

_FREE: deque[mmap.mmap] = deque()


def take(size: int) -> U8:
    """Return an uninitialised array; its memory is reused when the array and all its views are gone."""
    if size < MIN_REUSED_BYTES:
        return np.empty(size, dtype=np.uint8)
    try:
        memory = _reuse(size) or _allocate(size)
    except (OSError, OverflowError, ValueError):
        raise AccessError(f"{size:,} bytes do not fit into memory") from None
    lent: U8 = np.frombuffer(memory, dtype=np.uint8, count=size)
    # Views keep the array alive: this runs when the last of them is gone, in any thread, and takes no lock.
    weakref.finalize(lent, _give_back, memory).atexit = False
    return lent


def fill(size: int, chunks: Iterable[bytes | bytearray | memoryview], path: str, offset: int) -> U8:
    """Return the bytes of an answer that comes in chunks; it must have ``size`` bytes."""
    with located(path=path, offset=offset):
        data, done = take(size), 0
    for chunk in chunks:
        part = np.frombuffer(chunk, dtype=np.uint8)
        if done + len(part) > size:
            raise TransientError(f"more than {size} bytes came", path=path, offset=offset)
        data[done : done + len(part)] = part
        done += len(part)
    if done < size:
        raise TransientError(f"{done} of {size} bytes came", path=path, offset=offset)
    return data


def _reuse(size: int) -> mmap.mmap | None:
    for _ in range(len(_FREE)):
        try:
            memory = _FREE.popleft()
        except IndexError:
            break
        if size <= len(memory) <= size + size // 4:
            return memory
        _FREE.append(memory)
    return None


def _allocate(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_huge_pages(memory)
    return memory


def _give_back(memory: mmap.mmap) -> None:
    if len(memory) <= MAX_FREE_BYTES and len(_FREE) < MAX_FREE_BUFFERS:
        _FREE.append(memory)
