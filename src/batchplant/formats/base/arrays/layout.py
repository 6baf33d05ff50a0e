"""Layout of a dataset in arrays: the arrays of each field, and the metadata in the attributes that says so.

A field is one of

- *rows*: one array, a row for each sample (numbers, tensors of one shape);
- *masked*: the same with missing cells: ``values``, and ``valid``, which is false where a cell is missing;
- *ragged*: ``values``, the cells of all samples one after another, and ``offsets``, where they begin (one
  more than there are samples, in rows of ``values``); ``shape`` (height, width, channels) for raw images,
  zeros for encoded ones; ``valid`` where cells may be missing.

The metadata lies in the attributes of the top, under ``batchplant``::

    {"version": 1, "samples": 1000, "schema": [{"name": "image", "kind": "image"}, …], "paths": ["image", …],
     "packing": {"kind": "zstd", "level": 3}}
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ....data.arrays import Index
from ....errors import DamagedError, OptionError, SchemaError, exceptions_as
from ....schema import Field, Image, Schema, Tensor
from ....schema.columns import U8, AnyArray, AnyDType, as_bytes
from ....storage import NOTE_ERRORS, put_file
from .store import good_name

METADATA_KEY = "batchplant"
VALUES, OFFSETS, SHAPE, VALID = "values", "offsets", "shape", "valid"

# Names that metadata has in a store.
RESERVED = ("zarr.json", "attributes.json")

RowType = tuple[AnyDType, tuple[int, ...]]
_UNSAFE = re.compile(r"[\x00-\x1f/\\:*?\"<>|]|^[._]|^\d+$|\.$|^$")


def fixed(field: Field) -> RowType | None:
    """Dtype and shape of a cell where all that are there have the same, and are the bare values."""
    if field.optional and isinstance(field, Tensor) and not field.flat:
        return None
    return dataclasses.replace(field, optional=False).cell if field.optional else field.cell


def parts_of(field: Field) -> dict[str, RowType]:
    """The arrays of a field by their name below it (empty: the field is an array itself), each with its
    row."""
    cell = fixed(field)
    valid = {VALID: (np.dtype(np.bool_), ())} if field.optional else {}
    if cell is not None:
        return {VALUES: cell, **valid} if valid else {"": cell}
    unit: RowType = np.dtype(np.uint8), ()
    if isinstance(field, Tensor) and field.flat:
        unit = np.dtype(field.dtype), tuple(size for size in field.shape[1:] if size is not None)
    shape = {SHAPE: (np.dtype(np.int32), (3,))} if isinstance(field, Image) else {}
    return {VALUES: unit, OFFSETS: (np.dtype(np.int64), ()), **shape, **valid}


def paths_of(schema: Schema) -> dict[str, str]:
    """The path of each field: its name, where that can be one."""
    paths = {}
    for number, name in enumerate(schema):
        safe = not _UNSAFE.search(name) and len(name.encode()) <= 200 and name not in RESERVED
        paths[name] = name if safe else f"field-{number}"
    if len(set(paths.values())) < len(paths):
        paths = {name: f"field-{number}" for number, name in enumerate(schema)}
    return paths


class DatasetMetadata(NamedTuple):
    """Metadata that we write into the attributes of a dataset."""

    schema: Schema
    paths: dict[str, str]
    samples: int
    # Compression and level, for those who write into the arrays later.
    packing: tuple[str, int] = ("none", 0)

    def to_json(self) -> dict[str, Any]:
        return {
            "version": 1,
            "samples": self.samples,
            "schema": self.schema.to_json(),
            "paths": list(self.paths.values()),
            "packing": {"kind": self.packing[0], "level": self.packing[1]},
        }

    @classmethod
    def from_json(cls, attributes: Any) -> DatasetMetadata:
        with exceptions_as(DamagedError, "the note of the schema is damaged", *NOTE_ERRORS, SchemaError):
            schema = Schema.from_json(attributes["schema"])
            paths = [str(path) for path in attributes["paths"]]
            if len(paths) != len(schema) or not all(map(good_name, paths)):
                raise ValueError("its paths are not those of its fields")
            samples = attributes["samples"]
            if type(samples) is not int or samples < 0:
                raise ValueError(f"{samples} samples")
            packing = attributes["packing"]
            packing_pair = str(packing["kind"]), int(packing["level"])
            return cls(schema, dict(zip(schema, paths, strict=True)), samples, packing_pair)


# A chunk is unpacked as a whole: large enough to pack well and to be few, small enough to read for one
# sample.
PACKED_CHUNK_BYTES = 1 << 20
# Nothing has to be unpacked: few files.
PLAIN_CHUNK_BYTES = 64 << 20

# Chunks as the user wants them: samples in each, or the size along every axis, samples first (-1: all).
Sizes = Sequence[int] | int
Chunks = Sizes | Mapping[str, Sizes]


@dataclasses.dataclass
class OutputArray:
    """One array that is being written: its rows so far, and those that wait for a full chunk."""

    path: str
    dtype: AnyDType
    row: tuple[int, ...]
    # Rows of a chunk, and how many chunks one file has.
    chunk: int
    packing: str
    level: int
    chunks_per_file: int = 1
    rows: int = 0
    files: int = 0
    waiting: list[U8] = dataclasses.field(default_factory=list)
    waiting_bytes: int = 0
    # Bytes that the next file has already: it is appended to.
    lead: int = 0
    # What else is to be said about it.
    attributes: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    # The size of a chunk along the axes of a row; None: whole rows.
    cut: tuple[int, ...] | None = None

    @property
    def cell(self) -> tuple[int, ...]:
        """The shape of a chunk without its first axis; none of its sizes is 0, whatever a row's are."""
        return tuple(max(1, size) for size in (self.row if self.cut is None else self.cut))

    @property
    def across(self) -> tuple[int, ...]:
        """Number of chunks a row lies in, along each of its axes."""
        return tuple(max(1, -(-size // cell)) for size, cell in zip(self.row, self.cell, strict=True))

    def tiles(self, rows: AnyArray) -> Iterator[tuple[Index, AnyArray]]:
        """These rows cut into chunks beside each other: (number along each axis of a row, values)."""
        for index in itertools.product(*map(range, self.across)):
            cuts = (
                slice(index * size, (index + 1) * size) for index, size in zip(index, self.cell, strict=True)
            )
            yield index, rows[(slice(None), *cuts)]

    @property
    def width(self) -> int:
        return self.dtype.itemsize * math.prod(self.row)

    @property
    def file_rows(self) -> int:
        return self.chunk * self.chunks_per_file

    def add(self, data: AnyArray, rows: int) -> None:
        self.rows += rows
        if data.nbytes:
            self.waiting.append(as_bytes(data))
            self.waiting_bytes += data.nbytes

    def take(self) -> U8 | None:
        """The bytes of a full file; None where there are not enough yet."""
        size = self.file_rows * self.width - self.lead
        if size <= 0 or self.waiting_bytes < size:
            return None
        rows = self.rest()
        # The caller's columns are not held longer than needed.
        self.waiting, self.waiting_bytes = [rows[size:].copy()], len(rows) - size
        self.files += 1
        self.lead = 0
        return rows[:size]

    def take_all(self) -> U8:
        """All bytes that wait."""
        rows = self.rest()
        self.waiting, self.waiting_bytes = [], 0
        return rows

    def rest(self) -> U8:
        if len(self.waiting) > 1:
            self.waiting = [np.concatenate(self.waiting)]
        return self.waiting[0] if self.waiting else np.empty(0, dtype=np.uint8)

    @property
    def counted(self) -> tuple[int, ...]:
        return (self.rows, *self.row)

    def values(self, data: U8) -> AnyArray:
        return data.view(self.dtype).reshape(-1, *self.row)


class Style:
    """Writes the parts of a format."""

    packings: tuple[str, ...] = ()
    # What a user installs for the compressions that need a library.
    extra = "zarr"
    # Of the top.
    attributes: Mapping[str, Any] = types.MappingProxyType({})

    def pack(self, part: OutputArray, values: AnyArray) -> Any:
        """The bytes of a file for these values, no more than it has room for.

        They are a tile of rows, or where a file has several chunks whole rows.
        """
        raise NotImplementedError

    def file(self, part: OutputArray, number: int, tile: Index) -> str:
        """The name of a file below the top."""
        raise NotImplementedError

    def full_size(self, part: OutputArray) -> int | None:
        """Length to which a file of plain values is extended with zeros; None: not extended."""
        return None

    def describe(self, parts: Sequence[OutputArray], metadata: DatasetMetadata) -> dict[str, bytes]:
        """Every metadata document by its name below the top."""
        raise NotImplementedError


def chunk_rows(width: int, packing: str, requested: int | None) -> int:
    """Number of rows a chunk gets: by bytes, unless a number is wanted."""
    if requested is not None:
        return requested
    return max(1, (PLAIN_CHUNK_BYTES if packing == "none" else PACKED_CHUNK_BYTES) // max(1, width))


def files_at(style: Style, part: OutputArray, number: int) -> list[str]:
    """The files of so many rows: one, or one for each tile of them."""
    single_file = part.chunks_per_file > 1 or part.cut is None
    across = (range(1) for _ in part.row) if single_file else map(range, part.across)
    return [style.file(part, number, tile) for tile in itertools.product(*across)]


def write_chunks(top: Path, style: Style, part: OutputArray, number: int, values: AnyArray) -> None:
    """Files of chunks. Another process sees an old one or the new one, never a part."""
    tiles = part.tiles(values) if part.cut is not None and part.chunks_per_file == 1 else [(None, values)]
    for name, (_, tile) in zip(files_at(style, part, number), tiles, strict=True):
        file = top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        put_file(file, style.pack(part, tile), style.full_size(part))


def chunk_shapes(
    chunks: Chunks | None, schema: Schema, cell_of: Callable[[Field], Any] = fixed
) -> dict[str, tuple[int, tuple[int, ...] | None]]:
    """Field → samples in a chunk, and the sizes along the axes of a sample where those are wanted.

    One shape for all goes to the fields that have as many axes. ``cell_of``: dtype and shape of a field's
    cells, where all have one.
    """
    if chunks is None:
        return {}
    rows = {name: cell[1] for name, field in schema.items() if (cell := cell_of(field)) is not None}
    if isinstance(chunks, Mapping):
        for name in chunks:
            schema.select([name])
            if name not in rows:
                raise OptionError("chunks have a shape only where all cells have one", field=name)
        return {name: _shape(sizes, rows[name], name) for name, sizes in chunks.items()}
    if isinstance(chunks, int):
        return {name: _shape(chunks, row, name) for name, row in rows.items()}
    fitting = [name for name, row in rows.items() if len(row) + 1 == len(chunks)]
    if not fitting:
        raise OptionError(f"no field has {len(chunks)} axes, samples first, as chunks={tuple(chunks)} has")
    return {name: _shape(chunks, rows[name], name) for name in fitting}


def _shape(sizes: Sizes, row: tuple[int, ...], name: str) -> tuple[int, tuple[int, ...] | None]:
    axis_sizes = [sizes] if isinstance(sizes, int) else list(sizes)
    good = all(type(size) is int and (size >= 1 or size == -1) for size in axis_sizes)
    if not good or not axis_sizes or axis_sizes[0] < 1 or len(axis_sizes) not in (1, len(row) + 1):
        axes = ", ".join(["samples", *map(str, row)])
        raise OptionError(f"chunks are sizes from 1 on along ({axes}), not {sizes!r}", field=name)
    if len(axis_sizes) == 1:
        return axis_sizes[0], None
    cell = tuple(
        have if size == -1 else min(size, have) for size, have in zip(axis_sizes[1:], row, strict=True)
    )
    return axis_sizes[0], None if cell == row else cell
