"""Several processes write one dataset: each a range of samples of its own, by whole files of chunks.

Only fields whose cells all have one size can be written so: elsewhere the place of a cell depends on those
before.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ....data.writer import WriteOptions
from ....errors import OptionError, SchemaError
from ....schema import Field, Schema
from ....schema.columns import Column, Columns, Ragged
from .grid import Grid
from .layout import VALID, fixed
from .parts import OutputArray, Style, chunk_rows, write_chunks
from .reader import GridReader
from .store import FolderStore
from .writer import GridWriter, masked_rows


def allocate(
    writer_class: type[GridWriter], path: str, schema: Schema | Mapping[str, Field], samples: int, *,
    chunk_samples: int | None = None, overwrite: bool = False, **options: Any,
) -> None:  # fmt: skip
    """An empty dataset of so many samples. Until a range is written, reading it says that it is missing."""
    widths = []
    for name, field in Schema(schema).items():
        cell = fixed(field)
        if cell is None:
            raise SchemaError(
                "cells of differing length lie one after another, and cannot be written range by range",
                field=name,
            )
        widths.append(cell[0].itemsize * math.prod(cell[1]))
    if type(samples) is not int or samples < 0 or not widths:
        raise OptionError(
            f"a number of samples and at least one field are needed, not {samples!r}", path=path
        )
    # The same for all fields, so that one number tells where ranges may begin.
    rows = chunk_samples or chunk_rows(max(widths), options.get("compression", "auto"), None)
    write: Any = writer_class
    with write(path, Schema(schema), WriteOptions(overwrite=overwrite), chunk_samples=rows, **options) as out:
        out.reserve(samples)


def unit_of(reader: GridReader) -> int:
    """Ranges begin and end at multiples of this."""
    units = {grid.chunks[0] * grid.per_file for grid in reader.parts.values()}
    if reader.own_metadata is None or not isinstance(reader.store, FolderStore) or len(units) != 1:
        raise OptionError("ranges are written into folders that allocate() has made", path=reader.path)
    return units.pop()


def write_range(reader: GridReader, style: Style, start: int, columns: Mapping[str, Column]) -> None:
    """Write these samples from ``start`` on, where they replace what is there."""
    unit, values = unit_of(reader), Columns(columns)
    values.check(reader.schema)
    end = start + values.rows
    if not 0 <= start <= end <= len(reader) or start % unit or (end % unit and end != len(reader)):
        raise OptionError(
            f"a range begins and ends at multiples of {unit} samples, or at the end, {len(reader)}; "
            f"{start} to {end} does not",
            path=reader.path,
        )
    for (name, below), grid in reader.parts.items():
        part, column = _part(reader, grid), values[name]
        if isinstance(column, Ragged):
            packed = column.take(slice(None))
            valid = np.ones(len(packed), dtype=np.bool_) if packed.valid is None else packed.valid
            rows: Any = valid if below == VALID else masked_rows(packed, valid, part)
        else:
            rows = np.ascontiguousarray(column)
        for first in range(0, len(rows) if part.width else 0, unit):
            number = (start + first) // unit
            write_chunks(Path(reader.path), style, part, number, rows[first : first + unit])


def _part(reader: GridReader, grid: Grid) -> OutputArray:
    assert reader.own_metadata is not None
    kind, level = reader.own_metadata.packing
    packing = "none" if grid.packing.startswith(("none", "raw")) else kind
    cut = None if grid.whole_rows else grid.chunks[1:]
    return OutputArray(
        grid.name, grid.dtype, grid.row, grid.chunks[0], packing, level, grid.per_file, cut=cut
    )
