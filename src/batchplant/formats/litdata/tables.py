"""Chunks that are Arrow tables: so LitData keeps samples that are dicts of texts, numbers, bytes and lists.

Such a chunk has the usual table, in which all samples are empty, and behind it an Arrow IPC file, its size as
u32, and ``LDARW01`` and a zero. It is read as if its rows were the usual samples.
"""

from __future__ import annotations

import numpy as np

from ...codecs.arrow import column_of
from ...errors import BatchplantError, DamagedError, SchemaError
from ...schema import Bool, Bytes, Field, Float, Int, Json, Text
from ...schema.columns import Columns, Flags, Ragged, as_bytes, concat_columns
from ...storage import Source
from ...storage.compressed import UnpackedSource
from ..base.ipc import Part
from ..base.shards import Opened, records_of
from . import cells
from .encodings import Encoding

MAGIC = b"LDARW01\0"
TAIL = 4 + len(MAGIC)

Tables = dict[str, tuple[Encoding, bool]]


def field_of(encoding: Encoding, *, optional: bool) -> Field:
    """The field of a column of these tables."""
    kinds: dict[str, type[Field]] = {
        "int": Int, "float": Float, "bool": Bool, "str": Text, "bytes": Bytes, "json": Json,
    }  # fmt: skip
    return kinds[encoding.text](optional=optional)


def has_table(source: Source) -> bool:
    """True if a chunk ends with one."""
    return source.size > TAIL and source.view(source.size - len(MAGIC), len(MAGIC)).tobytes() == MAGIC


def opened(source: Source, samples: int, tables: Tables) -> Opened:
    """The rows of a chunk's table as samples."""
    size = int(source.array("<u4", source.size - TAIL, 1)[0])
    start = source.size - TAIL - size
    if start < 0:
        raise DamagedError(f"a table of {size} bytes does not lie in it", offset=source.size - TAIL)
    try:
        part = Part(UnpackedSource(source.path, source.view(start, size)))
    except SchemaError as error:
        raise DamagedError(f"its table is not one of LitData: {error.message}", offset=start) from None
    if sum(part.rows) != samples:
        raise DamagedError(f"its table has {sum(part.rows)} rows, and the index says {samples} samples")
    columns = Columns.read(tables, lambda name: _column(part, name, tables[name], samples))
    absent: dict[str, Flags] = {}
    for name, column in columns.items():
        if isinstance(column, Ragged) and column.valid is not None:
            absent[name] = ~column.valid
    made = [
        cells.packed(table, field_of(table, optional=optional), columns[name])
        for name, (table, optional) in tables.items()
    ]
    records = records_of(made, [True] * len(made))
    table = (4 * (samples + 2) + records.offsets).astype("<u4")
    head = np.array([samples], "<u4")
    whole = np.concatenate([as_bytes(head), as_bytes(table), records.data])
    return Opened(UnpackedSource(source.path, whole), table, absent)


def _column(part: Part, name: str, told: tuple[Encoding, bool], samples: int) -> Ragged | np.ndarray:
    encoding, optional = told
    field = field_of(encoding, optional=optional)
    if name not in part.schema.names:
        if not optional:
            raise DamagedError("its table has no such column")
        # No sample of this chunk had the key.
        return Ragged.from_cells([None] * samples)
    found, first = [], 0
    for number, rows in enumerate(part.rows):
        try:
            found.append(column_of(field, part.load(number, [name]).column(name)))
        except BatchplantError as error:
            error.sample = None if error.sample is None else first + error.sample
            raise
        # The library raises what it likes on nonsense.
        except Exception as error:
            message = str(error).strip().split("\n")[0]
            raise DamagedError(f"its table cannot be read: {message}") from None
        first += rows
    return concat_columns(found)
