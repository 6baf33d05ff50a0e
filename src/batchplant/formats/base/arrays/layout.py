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
import re
from typing import Any, NamedTuple

import numpy as np

from ....errors import DamagedError, SchemaError, exceptions_as
from ....schema import Field, Image, Schema, Tensor
from ....schema.columns import AnyDType
from ....storage import NOTE_ERRORS
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
