"""What a dataset holds, in numbers: the facts that `batchplant info` prints."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from .codecs import image
from .columns import Column, Columns, Ragged, column_runs, concat_columns
from .errors import DataError
from .reader import Reader
from .schema import Bool, Field, Float, Image, Int
from .storage import is_remote
from .tensors import is_tensors
from .tensors import summary as tensor_facts
from .tensors.kinds import shape_of, text_of

# Enough for a good picture of the spread; a dataset of millions is not read for it.
LOOK_AT = 2000


def summarize(reader: Reader, samples: int = LOOK_AT) -> dict[str, Any]:
    """Format, size, and per field its kind and the spread of its cells over up to ``samples`` samples."""
    model = is_tensors(reader.schema)
    count = 0 if model else min(samples, len(reader))
    rows = (
        np.unique(np.linspace(0, len(reader) - 1, count).round().astype(np.int64))
        if count
        else np.empty(0, int)
    )
    columns, unreadable = _read(reader, rows)
    fields = {
        name: {"kind": field.kind, "type": str(field), **_describe(field, columns.get(name))}
        for name, field in reader.schema.items()
    }
    return {
        "path": reader.path,
        "format": reader.format or _formats(reader),
        "samples": len(reader),
        "bytes": _size(reader),
        "looked at": len(reader) if model else len(rows),
        "unreadable": unreadable,
        "fields": fields,
        "facts": (_model(reader) if model else {}) | reader.facts(),
    }


def _model(reader: Reader) -> dict[str, Any]:
    """What the tensors of a model are, in whatever format; their values are not read."""

    def tensors() -> Iterator[tuple[str, str, tuple[int, ...]]]:
        for columns in reader.scan(4096, ["name", "dtype", "shape"]):
            for row in range(columns.rows):
                yield (
                    text_of(columns["name"], row),
                    text_of(columns["dtype"], row),
                    shape_of(columns["shape"], row),
                )

    return tensor_facts(tensors())


def _read(reader: Reader, rows: Any) -> tuple[Columns, int]:
    """The cells of these samples, and how many could not be read."""
    try:
        # In parts: a few thousand large pictures at once would be too much memory.
        parts = [reader.read(rows[start : start + 64]) for start in range(0, len(rows), 64)]
    except DataError:
        parts, bad = [], 0
        for row in rows:
            try:
                parts.append(reader.read([row]))
            except DataError:
                bad += 1
        return _join(parts), bad
    return _join(parts), 0


def _join(parts: list[Columns]) -> Columns:
    if not parts:
        return Columns()
    return Columns((name, concat_columns([part[name] for part in parts])) for name in parts[0])


def _formats(reader: Reader) -> str:
    inner = getattr(reader, "readers", None) or [getattr(reader, "base", reader)]
    return ", ".join(sorted({one.format for one in inner if one.format}))


def _size(reader: Reader) -> int | None:
    """Bytes on disk, of all files."""
    total = 0
    for one in getattr(reader, "readers", (reader,)):
        if is_remote(one.path):
            return None
        # A model may lie in several files.
        paths = getattr(one, "paths", [one.path])
        if len(paths) > 1:
            total += sum(os.path.getsize(path) for path in paths if os.path.isfile(path))
        elif os.path.isdir(one.path):
            total += sum(
                os.path.getsize(os.path.join(folder, name))
                for folder, _, names in os.walk(one.path)
                for name in names
                if os.path.exists(os.path.join(folder, name))
            )
        else:
            total += os.path.getsize(one.path)
    return total


def _describe(field: Field, column: Column | None) -> dict[str, Any]:
    if column is None or len(column) == 0:
        return {}
    found: dict[str, Any] = {}
    sizes = column_runs(column)[2]
    if (sizes < 0).any():
        found["missing"] = int((sizes < 0).sum())
        sizes = sizes[sizes >= 0]
    if isinstance(column, Ragged) and len(sizes):
        found["bytes"] = _spread(sizes)
    if isinstance(field, Image) and isinstance(column, Ragged):
        found.update(_pictures(column))
    elif isinstance(field, Int | Float | Bool) and not isinstance(column, Ragged):
        found["values"] = _spread(column.astype(np.float64)) if not isinstance(field, Bool) else None
        if isinstance(field, Int) and field.names:
            found["classes"] = len(field.names)
        if isinstance(field, Bool):
            found["values"] = {"true": int(column.sum()), "false": int((~column).sum())}
    return found


def _pictures(column: Ragged) -> dict[str, Any]:
    headers = image.probe(column)
    raw = column.raw
    encodings = Counter(
        "raw" if raw[row] else image.ENCODINGS[code] or "?" for row, code in enumerate(headers[:, 0])
    )
    modes = Counter(name or "?" for name in image.modes(column))
    known = headers[headers[:, 1] > 0]
    sizes = Counter((int(width), int(height)) for width, height in known[:, 1:3])
    found: dict[str, Any] = {"encodings": dict(encodings.most_common()), "modes": dict(modes.most_common())}
    if len(known):
        found["width"] = _spread(known[:, 1])
        found["height"] = _spread(known[:, 2])
        found["resolutions"] = [
            {"width": width, "height": height, "count": count}
            for (width, height), count in sizes.most_common(5)
        ]
        found["distinct resolutions"] = len(sizes)
    return found


def _spread(values: npt.NDArray[Any]) -> dict[str, float]:
    """Smallest, median, mean and largest."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {}
    low, mid, high = float(finite.min()), float(np.median(finite)), float(finite.max())
    return {"min": low, "median": mid, "mean": float(finite.mean()), "max": high}
