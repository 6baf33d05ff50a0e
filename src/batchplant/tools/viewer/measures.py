"""Samples by what no filter can name: the width of an image, the length of a text, the seconds of a sound.

A measure is text, as the page has it in its address: ``image|width|61|70`` for 61 ≤ width < 70, with ``=`` at
the end for width ≤ 70; ``image|resolutions|640×480`` for what is no number. What they mean is what ``stats``
counts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs import image
from ...data.reader import Reader
from ...errors import OptionError
from ...schema import Field, Image
from ...schema.columns import Column, Ragged

Flags = npt.NDArray[np.bool_]


@dataclasses.dataclass(frozen=True)
class Measure:
    """``low`` and ``high`` of a number, or the ``text`` that it is."""

    field: str
    what: str
    low: float = -math.inf
    high: float = math.inf
    last: bool = False
    text: str | None = None

    @classmethod
    def of(cls, said: str, reader: Reader) -> Measure:
        found = cls._of(said)
        if found is None or found.field not in reader.schema:
            raise OptionError(f"{said[:100]!r} is no measure of a field, such as image|width|61|70")
        return found

    @classmethod
    def _of(cls, said: str) -> Measure | None:
        # A field's name can hold any letter.
        parts = said.removesuffix("=").rsplit("|", 3)
        if len(parts) == 4:
            try:
                return cls(parts[0], parts[1], float(parts[2]), float(parts[3]), said.endswith("="))
            except ValueError:
                pass
        parts = said.rsplit("|", 2)
        return cls(parts[0], parts[1], text=parts[2]) if len(parts) == 3 else None

    def holds(self, field: Field, column: Column) -> Flags:
        """Which cells have it."""
        values = _values(field, self.what, column)
        if self.text is not None:
            return np.array(
                [value is not None and str(value) == self.text for value in values], dtype=np.bool_
            )
        numbers = np.array([math.nan if value is None else value for value in values], dtype=np.float64)
        below = numbers <= self.high if self.last else numbers < self.high
        return (numbers >= self.low) & below


def _values(field: Field, what: str, column: Column) -> Sequence[Any]:
    """One value for each cell, None where there is none."""
    if isinstance(column, Ragged) and what == "bytes":
        return [
            int(size) if there else None for size, there in zip(column.sizes, _there(column), strict=True)
        ]
    if isinstance(column, Ragged) and isinstance(field, Image) and what in ("width", "height", "resolutions"):
        headers = image.probe(column)
        at = {"width": 1, "height": 2}.get(what)
        return [
            None if row[1] <= 0 else f"{row[1]}×{row[2]}" if at is None else int(row[at])
            for row in headers.tolist()
        ]
    return [_one(field, what, column, row) for row in range(len(column))]


def _there(column: Ragged) -> Flags:
    return np.ones(len(column), dtype=np.bool_) if column.valid is None else column.valid


def _one(field: Field, what: str, column: Column, row: int) -> Any:
    """What the statistics of a dataset of this one cell say."""
    # A grid needs none of it.
    from ...jobs.stats.fields import FieldScan

    scan = FieldScan(field, 1)
    scan.look(column.take([row]) if isinstance(column, Ragged) else column[row : row + 1])
    found = scan.found()
    if what in found.numbers:
        return found.numbers[what].min
    return next(iter(found.values[what].counts), None) if what in found.values else None
