"""What a dataset holds, in numbers: the facts that `batchplant info` prints."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.media import audio, image
from ..codecs.media.video import header as video
from ..codecs.times import dtype_of
from ..data.reader import Reader
from ..data.tensors import is_tensors, shape_of, text_of
from ..data.tensors import summary as tensor_facts
from ..errors import AccessError, BatchplantError, DataError, UnsafeError
from ..schema import Audio, Bool, Duration, Field, Float, Image, Int, Tensor, Time, Video
from ..schema.columns import Column, Columns, Ragged, column_runs, concat_columns
from ..storage import tree

# Enough for a good image of the spread; a dataset of millions is not read for it.
LOOK_AT = 2000
# Sounds and videos that are asked what they are.
RECORDINGS = 500
NUMBERS = (Int, Float, Bool, Tensor)


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


def _read(reader: Reader, rows: Any, fields: Sequence[str] | None = None) -> tuple[Columns, int]:
    """The cells of these samples, and how many could not be read."""
    fields = list(reader.schema) if fields is None else fields
    try:
        # In parts: a few thousand large images at once would be too much memory.
        parts = [reader.read(rows[start : start + 64], fields) for start in range(0, len(rows), 64)]
    except UnsafeError as error:
        if error.field not in fields:
            raise
        # The other fields can be told all the same.
        return _read(reader, rows, [name for name in fields if name != error.field])
    except DataError:
        parts, bad = [], 0
        for row in rows:
            try:
                parts.append(reader.read([row], fields))
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
        # A model may lie in several files.
        paths = getattr(one, "paths", [one.path])
        # A server may refuse to say.
        with contextlib.suppress(AccessError):
            total += sum(tree.size_below(path) for path in paths if len(paths) == 1 or tree.is_file(path))
    return total


def _describe(field: Field, column: Column | None) -> dict[str, Any]:
    if column is None or len(column) == 0:
        return {}
    found: dict[str, Any] = {}
    sizes = column_runs(column)[2]
    if (sizes < 0).any():
        found["missing"] = int((sizes < 0).sum())
        sizes = sizes[sizes >= 0]
    values = _values(field, column)
    if isinstance(column, Ragged) and len(sizes) and values is None:
        found["bytes"] = _spread(sizes)
    if isinstance(field, Int) and field.names:
        found["classes"] = len(field.names)
    if isinstance(column, Ragged) and isinstance(field, Image | Audio | Video):
        found.update(_images(column) if isinstance(field, Image) else _recordings(field, column))
    elif values is not None and values.size:
        if isinstance(field, Time | Duration):
            values = values.view(dtype_of(field))
        found["values"] = _numbers(values)
    return found


def _values(field: Field, column: Column) -> npt.NDArray[Any] | None:
    """The numbers of a field that all have one shape, those that are there; None for other fields."""
    if not isinstance(column, Ragged):
        return column
    cell = dataclasses.replace(field, optional=False).cell if isinstance(field, NUMBERS) else None
    if cell is None:
        return None
    packed = column.data[int(column.offsets[0]) : int(column.offsets[-1])]
    return np.ascontiguousarray(packed).view(cell[0]) if len(packed) % cell[0].itemsize == 0 else None


def _numbers(values: npt.NDArray[Any]) -> dict[str, Any]:
    """Least, median, mean and largest; of dates the first and the last; how often true."""
    if values.dtype.kind == "b":
        return {"true": int(values.sum()), "false": int((~values).sum())}
    if values.dtype.kind in "mM":
        there = values[~np.isnat(values)]
        ends = {"first": str(there.min()), "last": str(there.max())} if there.size else {}
        return ends | ({"missing": int(values.size - there.size)} if there.size < values.size else {})
    if values.dtype.kind == "c":
        return {}
    found: dict[str, Any] = _spread(values.reshape(-1).astype(np.float64))
    wrong = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
    return found | ({"nan": wrong} if wrong else {})


def _recordings(field: Audio | Video, column: Ragged) -> dict[str, Any]:
    """What sounds or videos say about themselves: encodings, rates, channels, sizes, how long they are."""
    counts: dict[str, Counter[Any]] = {}
    seconds, unknown = [], 0
    for row in range(min(len(column), RECORDINGS)):
        cell = column[row]
        if cell is None:
            continue
        try:
            if isinstance(field, Audio):
                sound = audio.header(cell)
                facts = {"encodings": sound.encoding, "rates": sound.rate, "channels": sound.channels}
                seconds.append(sound.frames / sound.rate)
            else:
                clip = video.header(cell)
                size = f"{clip.width}×{clip.height}"
                facts = {"encodings": clip.encoding, "sizes": size, "frame rates": clip.fps}
        except BatchplantError:
            unknown += 1
            continue
        for name, value in facts.items():
            counts.setdefault(name, Counter())[value] += 1
    found: dict[str, Any] = {
        name: {str(value): count for value, count in counter.most_common(5)}
        for name, counter in counts.items()
    }
    if seconds:
        found["seconds"] = _spread(np.array(seconds))
    return found | ({"unknown": unknown} if unknown else {})


def _images(column: Ragged) -> dict[str, Any]:
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
