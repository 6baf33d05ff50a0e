"""A format of length-prefixed records that has to be scanned, for tests of indexes and their processes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

from batchplant.storage import Source, index, open_source

Size = struct.Struct("<I")


def write_records(path: Path, records: list[bytes]) -> Path:
    path.write_bytes(b"".join(Size.pack(len(record)) + record for record in records))
    return path


class Toy:
    """A scanner that counts how often it ran."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self, source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
        self.runs += 1
        starts, sizes, at = [], [], 0
        while at < source.size:
            (size,) = Size.unpack(source.view(at, 4).tobytes())
            source.view(at + 4, size)
            starts.append(at + 4)
            sizes.append(size)
            at += 4 + size
            report(at)
        return {"starts": np.array(starts, np.int64), "sizes": np.array(sizes, np.int64)}, {"bytes": at}


def load(path: Path, build: index.Build, mode: str = "write", **options: Any) -> index.Index:
    return index.load(open_source(str(path)), "toy", build, mode=mode, **options)
