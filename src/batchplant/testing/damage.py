"""Where to damage a file, and how much memory reading it may take."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

# With this variable, which `make test-all` sets, small files are cut at every byte; otherwise at some places.
EXHAUSTIVE = os.environ.get("BATCHPLANT_EXHAUSTIVE", "0") not in ("", "0")
# Of a dataset: its files share them.
CUTS, FLIPS = (8 << 10, 400) if EXHAUSTIVE else (96, 48)
FEWEST = 12
MEMORY_ALWAYS, MEMORY_PER_BYTE = 64 << 20, 8


def cut_points(size: int, most: int = CUTS) -> list[int]:
    """Where to cut a file, longest first: everywhere, or half of the places near the ends."""
    if size <= most:
        return list(range(size - 1, -1, -1))
    ends = max(most // 4, 1)
    between = np.random.default_rng(size).integers(ends, size - ends, most - 2 * ends).tolist()
    return sorted({*range(ends), *between, *range(size - ends, size)}, reverse=True)


def flip_points(size: int, most: int = FLIPS) -> list[tuple[int, int]]:
    """(byte, bit) to flip: half of them near the ends, where structure is."""
    rng = np.random.default_rng(size)
    places = rng.integers(0, size, most)
    ends = rng.integers(0, min(4 << 10, size), most)
    places[::4], places[2::4] = ends[::4], size - 1 - ends[2::4]
    return list(zip(places.tolist(), rng.integers(0, 8, most).tolist(), strict=True))


def _share(places: int, files: int) -> int:
    return max(places // files, FEWEST)


def flip(file: Path, place: int, bit: int) -> None:
    with open(file, "r+b") as stream:
        stream.seek(place)
        [byte] = stream.read(1)
        stream.seek(place)
        stream.write(bytes([byte ^ 1 << bit]))


def cuts(file: Path, files: int = 1) -> Iterator[str]:
    """Truncate one of so many files at one place after another, saying where; whole again in the end."""
    whole = file.read_bytes()
    for size in cut_points(len(whole), _share(CUTS, files)):
        os.truncate(file, size)
        yield f"{file.name} cut to {size} of {len(whole)} bytes"
    file.write_bytes(whole)


def flips(file: Path, files: int = 1) -> Iterator[str]:
    """Flip one bit after another in one of so many files, saying which; each is flipped back."""
    for place, bit in flip_points(os.path.getsize(file), _share(FLIPS, files)):
        flip(file, place, bit)
        yield f"{file.name} with bit {bit} of byte {place} flipped"
        flip(file, place, bit)


def survive(what: Iterator[str], read: Callable[[], bool]) -> Iterator[tuple[str, bool]]:
    """(damage, whether ``read`` found nothing wrong); an exception says which damage it was."""
    for damage in what:
        try:
            yield damage, read()
        except Exception as error:
            error.add_note(damage)
            raise


@contextlib.contextmanager
def memory_bounded(size: int) -> Iterator[None]:
    """The peak of resident memory grows by no more than a small multiple of ``size``."""
    reset = Path("/proc/self/clear_refs")
    # The address sanitizer keeps freed memory for a while.
    if not reset.exists() or "libasan" in os.environ.get("LD_PRELOAD", ""):
        yield
        return
    reset.write_text("5")
    before = resident("VmRSS")
    yield
    grown = resident("VmHWM") - before
    assert grown <= MEMORY_ALWAYS + MEMORY_PER_BYTE * size, f"{grown >> 20} MiB for a file of {size} bytes"


def resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(name)).split()[1]) << 10
