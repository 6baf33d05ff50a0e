"""Memory for bytes that come over the network, used again and again.

Pages that are new to a process cost more time than the bytes that are put into them, and what is freed in
many threads does not go back to the system for long.
"""

from __future__ import annotations

import contextlib
import mmap
import weakref
from collections import deque
from collections.abc import Iterable

import numpy as np

from ...errors import AccessError
from ...schema.columns import U8
from .client import TransientError

# Less than this is no trouble.
LEAST = 1 << 20
# How many wait for their next use, and how large they may be.
KEPT, LARGEST = 4, 16 << 20
# Bytes that are taken out of an answer at a time. Each time takes the interpreter's lock.
CHUNK = 1 << 20

_FREE: deque[mmap.mmap] = deque()


def take(size: int) -> U8:
    """An array of so many bytes, as they happen to be. Its memory is used again when nobody holds it."""
    if size < LEAST:
        return np.empty(size, dtype=np.uint8)
    try:
        memory = _found(size) or _made(size)
    except (OSError, OverflowError, ValueError):
        raise AccessError(f"{size:,} bytes do not fit into memory") from None
    lent: U8 = np.frombuffer(memory, dtype=np.uint8, count=size)
    # Parts of the array hold it: this is when the last of them is gone, in any thread, and takes no lock.
    weakref.finalize(lent, _give_back, memory).atexit = False
    return lent


def fill(size: int, chunks: Iterable[bytes | bytearray | memoryview], path: str, offset: int) -> U8:
    """The bytes of an answer in chunks, all ``size`` of them."""
    try:
        data, done = take(size), 0
    except AccessError as error:
        raise error.at(path=path, offset=offset) from None
    for chunk in chunks:
        part = np.frombuffer(chunk, dtype=np.uint8)
        if done + len(part) > size:
            raise TransientError(f"more than {size} bytes came", path=path, offset=offset)
        data[done : done + len(part)] = part
        done += len(part)
    if done < size:
        raise TransientError(f"{done} of {size} bytes came", path=path, offset=offset)
    return data


def _found(size: int) -> mmap.mmap | None:
    for _ in range(len(_FREE)):
        try:
            memory = _FREE.popleft()
        except IndexError:
            break
        if size <= len(memory) <= size + size // 4:
            return memory
        _FREE.append(memory)
    return None


def _made(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    # Where the system has none, small pages do.
    with contextlib.suppress(OSError, AttributeError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _give_back(memory: mmap.mmap) -> None:
    if len(memory) <= LARGEST and len(_FREE) < KEPT:
        _FREE.append(memory)
