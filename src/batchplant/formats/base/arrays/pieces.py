"""One dataset in pieces: several processes write a range of samples each, and one puts the pieces together.

A file of chunks whose rows all lie in a range is written by whoever has the range, under the name that it
keeps. The rest of a range goes into ``.rest`` as it is: rows at its ends, which share a file with those of
another range, and all rows whose place depends on the cells before, those of cells of differing length.
``.piece.json`` says in which order. Whoever puts the pieces together takes the files and packs the rest.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ....data.writer import WriteOptions
from ....errors import DamagedError
from ....schema.columns import U8
from ....storage import NOTE_ERRORS, is_remote, join, open_source, parse_object, put_file, read_beside
from ....storage.checksums import load
from ....storage.uploads import below
from .layout import OFFSETS, VALUES
from .parts import Part, files_at

if TYPE_CHECKING:
    from .writer import GridWriter

# No field lies under a name with a dot before it.
NOTE, REST = ".piece.json", ".rest"
# At least so many pieces, if the chunks of the largest array allow it, and of the others.
LARGEST, OTHERS = 8, 64
# Bytes of a rest that are read at a time.
BLOCK = 16 << 20

# (field, name below it)
Key = tuple[str, str]


def is_placed(key: Key, parts: Mapping[Key, Part]) -> bool:
    """True if the number of a sample alone says where its rows are."""
    return (key[0], OFFSETS) not in parts or key[1] not in (VALUES, OFFSETS)


def unit(parts: Mapping[Key, Part], samples: int) -> int:
    """So many samples fill whole files of the arrays that are worth it: those with wide rows first."""
    placed = [part for key, part in parts.items() if part.width and is_placed(key, parts)]
    samples_per_unit, divisor = 1, LARGEST if all(is_placed(key, parts) for key in parts) else OTHERS
    for part in sorted(placed, key=lambda part: -part.width):
        multiple = math.lcm(samples_per_unit, part.file_rows)
        samples_per_unit = multiple if multiple <= samples // divisor else samples_per_unit
        divisor = OTHERS
    return samples_per_unit


class Entry(NamedTuple):
    """Log entry of an array: its next rows in the spool, or its next files."""

    part: int
    rows: int
    files: int


class Piece:
    """Rows of a range that do not fill files of chunks."""

    def __init__(self, writer: GridWriter, options: WriteOptions, log: Sequence[Sequence[int]]) -> None:
        self._parts = list(writer.parts.values())
        loose = options.piece == "loose" or writer.path.lower().endswith(".zip")
        self._placed = [not loose and is_placed(key, writer.parts) for key in writer.parts]
        self._first = options.first
        self._rest = writer.partial.spool(REST)
        self.log = [Entry(*entry) for entry in log]

    def begin(self) -> None:
        for part, placed in zip(self._parts, self._placed, strict=True):
            if placed and part.width:
                part.files, rows = divmod(self._first, part.file_rows)
                part.lead = rows * part.width

    def is_kept(self, number: int) -> bool:
        """True if the rows that an array has now are not those of a file of chunks, or only of its end."""
        return not self._placed[number] or self._parts[number].lead > 0

    def keep(self, number: int, data: U8) -> None:
        part = self._parts[number]
        if len(data):
            self._rest.write(data)
            self.log.append(Entry(number, len(data) // part.width, 0))

    def finish(self, writer: GridWriter) -> None:
        for number, part in enumerate(self._parts):
            if not part.width:
                self.log.append(Entry(number, part.rows, 0))
                continue
            files = part.files - -(-self._first // part.file_rows)
            if self._placed[number] and files > 0:
                self.log.append(Entry(number, 0, files))
            self.keep(number, part.rest())
        writer.partial.put(REST, writer.top / REST)
        summary = {"samples": writer.written, "log": self.log}
        put_file(writer.top / NOTE, json.dumps(summary).encode())


def add(writer: GridWriter, paths: Sequence[str]) -> Iterator[int]:
    """Put pieces together, one after another; how many samples each has."""
    keys, parts = list(writer.parts), list(writer.parts.values())
    for path in paths:
        samples, log = _note(path, len(parts))
        sizes = {name: item.size for name, item in below(path).items()} if is_remote(path) else {}
        spool, offset = open_source(join(path, REST)), 0
        before = {name: part.rows for (name, kind), part in writer.parts.items() if kind == VALUES}
        for number, rows, files in log:
            part = parts[number]
            if files:
                _take_files(writer, part, files, path, sizes)
            step = max(1, BLOCK // max(1, part.width))
            for first in range(0, rows, step):
                count = min(step, rows - first)
                data: Any = np.array(spool.only(offset, count * part.width))
                offset += len(data)
                if keys[number][1] == OFFSETS:
                    data = data.view(np.int64) + before[keys[number][0]]
                part.add(data, count)
                writer.write_full(number, part)
        if writer.options.checksums:
            sums = load(path)
            if sums is None:
                raise DamagedError("its checksums are not there", path=path)
            writer.partial.spool("checksums").write(sums.sums)
        yield samples


def _take_files(writer: GridWriter, part: Part, files: int, path: str, sizes: Mapping[str, int]) -> None:
    if part.waiting_bytes or part.rows != part.files * part.file_rows:
        raise DamagedError(f"{part.path} does not begin where the piece before it ends", path=path)
    numbers = range(part.files, part.files + files)
    names = [name for number in numbers for name in files_at(writer.style, part, number)]
    top = writer.top.name
    writer.partial.adopt([(join(path, name), f"{top}/{name}", sizes.get(name, 0)) for name in names])
    part.files += files
    part.rows += files * part.file_rows


def _note(path: str, parts: int) -> tuple[int, list[Entry]]:
    try:
        summary = parse_object(read_beside(join(path, NOTE)) or b"")
        log = [Entry(*entry) for entry in summary["log"]]
        samples = summary["samples"]
        counts = [samples, *(count for entry in log for count in entry)]
        if not all(type(number) is int and number >= 0 for number in counts) or any(
            number.part >= parts for number in log
        ):
            raise ValueError("its numbers cannot be")
        return samples, log
    except NOTE_ERRORS as error:
        raise DamagedError(f"the note of a piece cannot be read: {error}", path=join(path, NOTE)) from None
