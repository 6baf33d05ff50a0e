"""Layout of .rec files, and the scan for their records."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import DamagedError
from ...schema import Field, Float, Image, Int, Schema, Tensor
from ...schema.columns import I64
from ...storage import RANGE_MOST, MappedSource, Source, index

MAGIC = 0xCED7230A
# What stands before the data of a record.
FRAME = 8
MOST_BYTES = (1 << 29) - 1
KEYS = "{stem}.idx"
# What stands before the image of an image record.
HEADER = np.dtype([("flag", "<u4"), ("label", "<f4"), ("id", "<u8"), ("id2", "<u8")])
LABEL_AT = 4
NUMBERS = ("id", "id2")
STEP = 64 << 20


def image_field(schema: Schema) -> str | None:
    """The image of a schema that image records can hold; None where they cannot."""
    images = [name for name, field in schema.items() if isinstance(field, Image) and not field.optional]
    rest = [name for name in schema if name not in images and not _is_number(name, schema[name])]
    if len(images) != 1 or len(rest) > 1 or (rest and not is_label(rest[0], schema[rest[0]])):
        return None
    return images[0]


def _is_number(name: str, field: Field) -> bool:
    return name in NUMBERS and field == Int("uint64")


def is_label(name: str, field: Field) -> bool:
    if field.optional or (name != "label" and not (isinstance(field, Int) and field.names)):
        return False
    if isinstance(field, Tensor):
        return field.dtype == "float32" and len(field.shape) == 1 and field.shape[0] != 0
    return isinstance(field, Int) or (isinstance(field, Float) and field.dtype in ("float16", "float32"))


def scan(
    source: Source, report: index.Report, known: index.Index | None = None, at: int = 0
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Locate all records; ``known``: those up to ``at``, from an earlier scan."""
    found: list[tuple[I64, I64, I64]] = []
    step = STEP if isinstance(source, MappedSource) else RANGE_MOST
    count, least, limit = 0, 2**32 - 1, 0
    if known is not None:
        found = [(known.arrays["starts"], known.arrays["sizes"], known.arrays["split"])]
        count, least, limit = len(found[0][0]), int(known.facts["least"]), int(known.facts["most"])
    while at < source.size:
        window = source.view(at, min(step, source.size - at))
        starts, sizes, split, low, high, end, failure = _native.recordio_scan(window, 0, len(window))
        if failure is not None:
            message, offset, cut = failure
            if not cut or at + len(window) == source.size:
                raise DamagedError(
                    f"{message}; the {count + len(starts)} records before it are whole",
                    path=source.path,
                    offset=at + offset,
                )
            # One record that is longer than the window.
            step = 2 * step if end == 0 else step
        found.append((starts + at, sizes, split + count))
        count, at = count + len(starts), at + end
        least, limit = min(least, low), max(limit, high)
        report(at)
    columns = zip(*found, strict=True) if found else ([np.empty(0, np.int64)],) * 3
    starts, sizes, split = (np.concatenate(list(parts)) for parts in columns)
    return {"starts": starts, "sizes": sizes, "split": split}, {"least": least, "most": limit}


def _makes_sense(found: index.Index) -> bool:
    arrays = found.arrays
    plain = {"starts", "sizes", "split"} <= set(arrays) and all(
        array.dtype == np.int64 and array.ndim == 1 for array in arrays.values()
    )
    return plain and len(arrays["starts"]) == len(arrays["sizes"]) and {"least", "most"} <= set(found.facts)


def load_index(source: Source, mode: str) -> index.Index:
    return index.load(source, "recordio", scan, mode=mode, check=_makes_sense, grow=scan)
