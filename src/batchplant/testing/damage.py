"""Damage of files by truncation and flipped bits, and a bound on the memory for reading them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from ..storage.platform import resident_memory

# `make test-all` sets this variable: small files are cut at every byte, otherwise at some offsets.
EXHAUSTIVE = os.environ.get("BATCHPLANT_EXHAUSTIVE", "0") not in ("", "0")
# Of a dataset: its files share them.
MAX_CUTS, MAX_FLIPS = (8 << 10, 400) if EXHAUSTIVE else (32, 24)
MIN_POINTS_PER_FILE = 8
# Memory that reading may take: a constant, and a multiple of the size of the file.
BASE_MEMORY_BYTES, MEMORY_PER_FILE_BYTE = 64 << 20, 8


def cut_points(size: int, count: int = MAX_CUTS) -> list[int]:
    """Return sizes to cut a file to, longest first: all, or ``count`` of them, half near the ends."""
    if size <= count:
        return list(range(size - 1, -1, -1))
    ends = max(count // 4, 1)
    between = np.random.default_rng(size).integers(ends, size - ends, count - 2 * ends).tolist()
    return sorted({*range(ends), *between, *range(size - ends, size)}, reverse=True)


def flip_points(size: int, count: int = MAX_FLIPS) -> list[tuple[int, int]]:
    """Return (byte, bit) to flip: half of them near the ends, where the structure is."""
    rng = np.random.default_rng(size)
    offsets = rng.integers(0, size, count)
    ends = rng.integers(0, min(4 << 10, size), count)
    offsets[::4], offsets[2::4] = ends[::4], size - 1 - ends[2::4]
    return list(zip(offsets.tolist(), rng.integers(0, 8, count).tolist(), strict=True))


def _points_per_file(points: int, files: int) -> int:
    return max(points // files, MIN_POINTS_PER_FILE)


def flip(file: Path, offset: int, bit: int) -> None:
    with open(file, "r+b") as stream:
        stream.seek(offset)
        [byte] = stream.read(1)
        stream.seek(offset)
        stream.write(bytes([byte ^ 1 << bit]))


def cuts(file: Path, files: int = 1) -> Iterator[str]:
    """Truncate a file at one offset after another and describe each; restore the file at the end.

    ``files``: the number of files that share the cuts.
    """
    original = file.read_bytes()
    for size in cut_points(len(original), _points_per_file(MAX_CUTS, files)):
        os.truncate(file, size)
        yield f"{file.name} cut to {size} of {len(original)} bytes"
    file.write_bytes(original)


def flips(file: Path, files: int = 1) -> Iterator[str]:
    """Flip one bit of a file after another and describe each; flip each back.

    ``files``: the number of files that share the flips.
    """
    for offset, bit in flip_points(os.path.getsize(file), _points_per_file(MAX_FLIPS, files)):
        flip(file, offset, bit)
        yield f"{file.name} with bit {bit} of byte {offset} flipped"
        flip(file, offset, bit)


def survive(damage: Iterator[str], read: Callable[[], bool]) -> Iterator[tuple[str, bool]]:
    """Yield (description of the damage, result of ``read``); an exception names the damage."""
    for description in damage:
        try:
            yield description, read()
        except Exception as error:
            error.add_note(description)
            raise


@contextlib.contextmanager
def memory_bounded(size: int) -> Iterator[None]:
    """Check that the peak of resident memory grows by no more than a small multiple of ``size``."""
    reset = Path("/proc/self/clear_refs")
    # The address sanitizer keeps freed memory for a while.
    if not reset.exists() or "libasan" in os.environ.get("LD_PRELOAD", ""):
        yield
        return
    reset.write_text("5")
    before = resident_memory()
    yield
    grown = resident_memory("VmHWM") - before
    assert grown <= BASE_MEMORY_BYTES + MEMORY_PER_FILE_BYTE * size, (
        f"{grown >> 20} MiB for a file of {size} bytes"
    )
