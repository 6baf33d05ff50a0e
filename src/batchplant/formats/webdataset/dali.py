"""DALI's index of an archive: the line ``v1.2 SAMPLES``, then for each sample ``ext offset size name …``."""

from __future__ import annotations

import numpy as np

from ... import _native
from ...errors import DamagedError
from ...storage import MappedSource, Source, read_text
from .scan import Arrays, Facts, describe

VERSIONS = {"v1.1": 3, "v1.2": 4}


def line_of(members: list[tuple[str, int, int, str]]) -> str:
    """The line of one sample: (extension, offset, size, name) of each member."""
    return " ".join(f"{extension} {start} {size} {name}" for extension, start, size, name in members) + "\n"


def header_of(samples: int) -> str:
    return f"v1.2 {samples}\n"


def read(path: str, source: Source) -> tuple[Arrays, Facts]:
    """Convert DALI's index of an archive to the result of a scan."""
    lines = read_text(path).splitlines()
    try:
        return _parse(lines, source)
    except (ValueError, OverflowError) as error:
        raise DamagedError(f"not an index of DALI: {error}", path=path) from None


def _parse(lines: list[str], source: Source) -> tuple[Arrays, Facts]:
    version, _, count = lines[0].partition(" ") if lines else ("", "", "")
    if version not in VERSIONS:
        raise ValueError(f"it begins with {lines[:1]}")
    if int(count) != len(lines) - 1:
        raise ValueError(f"it promises {int(count)} samples and has {len(lines) - 1}")
    width = VERSIONS[version]
    keys: list[bytes] = []
    found: dict[str, tuple[list[int], list[int], list[int]]] = {}
    firsts = []
    for row, line in enumerate(lines[1:]):
        words = line.split(" ")
        if len(words) % width or not all(words):
            raise ValueError(f"line {row + 2} has {len(words)} words")
        for offset in range(0, len(words), width):
            rows, starts, sizes = found.setdefault(words[offset].lower(), ([], [], []))
            if rows and rows[-1] == row:
                raise ValueError(f"line {row + 2} has {words[offset]} twice")
            rows.append(row)
            starts.append(int(words[offset + 1]))
            sizes.append(int(words[offset + 2]))
        # Version 1.1 has no names: a number stands for the key.
        key = words[3].removesuffix("." + words[0]) if width == 4 else f"{row:08d}"
        keys.append(key.encode())
        firsts.append(int(words[1]) - 512)
    counts = [len(rows) for rows, _, _ in found.values()]

    def joined(part: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.array([column for columns in found.values() for column in columns[part]], dtype=np.int64)

    arrays: Arrays = {
        "keys": np.frombuffer(b"".join(keys), np.uint8),
        "key_offsets": np.cumsum([0, *map(len, keys)], dtype=np.int64),
        "firsts": np.array(firsts, dtype=np.int64),
        "extension_offsets": np.cumsum([0, *counts], dtype=np.int64),
        "rows": joined(0), "starts": joined(1), "sizes": joined(2),
    }  # fmt: skip
    _check(source, arrays)
    return arrays, describe(source, arrays, [one.encode() for one in found], 0, b"")


def _check(source: Source, arrays: Arrays) -> None:
    """Every run has to lie behind a header of that size; of a file that is not mapped, only inside of it."""
    starts, sizes = arrays["starts"], arrays["sizes"]
    bad = source.outside(starts, sizes)
    if bad is None and isinstance(source, MappedSource):
        bad = _native.tar_without_header(source.view(0, source.size), starts, sizes)
        bad = None if bad < 0 else bad
    if bad is not None:
        raise DamagedError(
            f"DALI's index has {sizes[bad]} bytes here, and the archive does not", path=source.path,
            offset=int(starts[bad]),
        )  # fmt: skip
