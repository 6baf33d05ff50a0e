"""A short summary of a dataset: the facts that `batchplant info` prints."""

from __future__ import annotations

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..codecs.media import audio, image, video
from ..codecs.scalars import dtype_of
from ..data.reader import Reader
from ..data.tensors import is_tensors, shape_of, text_of
from ..data.tensors import summary as tensor_facts
from ..errors import AccessError, BatchplantError, DataError, UnsafeError
from ..schema import Audio, Bool, Duration, Field, Float, Image, Int, Tensor, Time, Video
from ..schema.columns import I64, AnyArray, Column, Columns, Ragged, column_runs, concat_columns
from ..storage import tree

# Samples that are read: enough to show how values are distributed.
SUMMARY_SAMPLES = 2000
# Sounds and videos whose headers are read.
MAX_RECORDINGS = 500
# Samples read at a time: a few thousand large images at once would take too much memory.
BATCH_ROWS = 64
NUMBER_FIELDS = (Int, Float, Bool, Tensor)


def summarize(reader: Reader, samples: int = SUMMARY_SAMPLES) -> dict[str, Any]:
    """Format and size; by field its kind and the distribution of its cells over up to ``samples`` samples."""
    model = is_tensors(reader.schema)
    count = 0 if model else min(samples, len(reader))
    rows = np.unique(np.linspace(0, max(0, len(reader) - 1), count).round().astype(np.int64))
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
        "facts": (_model_facts(reader) if model else {}) | reader.facts(),
    }


def _model_facts(reader: Reader) -> dict[str, Any]:
    """Facts of the tensors of a model in any format; their values are not read."""

    def tensors() -> Iterator[tuple[str, str, tuple[int, ...]]]:
        for columns in reader.scan(4096, ["name", "dtype", "shape"]):
            for row in range(columns.rows):
                yield (
                    text_of(columns["name"], row),
                    text_of(columns["dtype"], row),
                    shape_of(columns["shape"], row),
                )

    return tensor_facts(tensors())


def _read(reader: Reader, rows: I64, fields: Sequence[str] | None = None) -> tuple[Columns, int]:
    """Cells of these samples, and the number of samples that could not be read."""
    fields = list(reader.schema) if fields is None else fields
    try:
        starts = range(0, len(rows), BATCH_ROWS)
        parts = [reader.read(rows[start : start + BATCH_ROWS], fields) for start in starts]
    except UnsafeError as error:
        if error.field not in fields:
            raise
        # The other fields can be read.
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
    return ", ".join(sorted({base.format for base in inner if base.format}))


def _size(reader: Reader) -> int | None:
    """Bytes of all files."""
    total = 0
    for base in getattr(reader, "readers", (reader,)):
        # A model may have several files.
        paths = getattr(base, "paths", [base.path])
        # A server may refuse to say.
        with contextlib.suppress(AccessError):
            total += sum(tree.size_below(path) for path in paths if len(paths) == 1 or tree.is_file(path))
    return total


def _describe(field: Field, column: Column | None) -> dict[str, Any]:
    if column is None or len(column) == 0:
        return {}
    facts: dict[str, Any] = {}
    sizes = column_runs(column)[2]
    if (sizes < 0).any():
        facts["missing"] = int((sizes < 0).sum())
        sizes = sizes[sizes >= 0]
    values = _values(field, column)
    if isinstance(column, Ragged) and len(sizes) and values is None:
        facts["bytes"] = _spread(sizes)
    if isinstance(field, Int) and field.names:
        facts["classes"] = len(field.names)
    if isinstance(column, Ragged) and isinstance(field, Image | Audio | Video):
        facts.update(_images(column) if isinstance(field, Image) else _recordings(field, column))
    elif values is not None and values.size:
        if isinstance(field, Time | Duration):
            values = values.view(dtype_of(field))
        facts["values"] = _numbers(values)
    return facts


def _values(field: Field, column: Column) -> AnyArray | None:
    """Numbers of a field whose cells have one shape, without missing ones; None for other fields."""
    if not isinstance(column, Ragged):
        return column
    cell = dataclasses.replace(field, optional=False).cell if isinstance(field, NUMBER_FIELDS) else None
    if cell is None:
        return None
    packed = column.data[int(column.offsets[0]) : int(column.offsets[-1])]
    return np.ascontiguousarray(packed).view(cell[0]) if len(packed) % cell[0].itemsize == 0 else None


def _numbers(values: AnyArray) -> dict[str, Any]:
    """Minimum, median, mean and maximum; of dates the first and the last; counts of booleans."""
    if values.dtype.kind == "b":
        return {"true": int(values.sum()), "false": int((~values).sum())}
    if values.dtype.kind in "mM":
        valid = values[~np.isnat(values)]
        ends = {"first": str(valid.min()), "last": str(valid.max())} if valid.size else {}
        return ends | ({"missing": int(values.size - valid.size)} if valid.size < values.size else {})
    if values.dtype.kind == "c":
        return {}
    facts: dict[str, Any] = _spread(values.reshape(-1).astype(np.float64))
    nan = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
    return facts | ({"nan": nan} if nan else {})


def _recordings(field: Audio | Video, column: Ragged) -> dict[str, Any]:
    """Encodings, rates, channels, sizes and durations in the headers of sounds or videos."""
    counts: dict[str, Counter[Any]] = {}
    seconds, unknown = [], 0
    for row in range(min(len(column), MAX_RECORDINGS)):
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
    summary: dict[str, Any] = {
        name: {str(value): count for value, count in counter.most_common(5)}
        for name, counter in counts.items()
    }
    if seconds:
        summary["seconds"] = _spread(np.array(seconds))
    return summary | ({"unknown": unknown} if unknown else {})


def _images(column: Ragged) -> dict[str, Any]:
    headers = image.probe(column)
    raw = column.raw
    encodings = Counter(
        "raw" if raw[row] else image.ENCODINGS[code] or "?" for row, code in enumerate(headers[:, 0])
    )
    modes = Counter(name or "?" for name in image.modes(column))
    readable = headers[headers[:, 1] > 0]
    sizes = Counter((int(width), int(height)) for width, height in readable[:, 1:3])
    facts: dict[str, Any] = {"encodings": dict(encodings.most_common()), "modes": dict(modes.most_common())}
    if len(readable):
        facts["width"] = _spread(readable[:, 1])
        facts["height"] = _spread(readable[:, 2])
        facts["resolutions"] = [
            {"width": width, "height": height, "count": count}
            for (width, height), count in sizes.most_common(5)
        ]
        facts["distinct resolutions"] = len(sizes)
    return facts


def _spread(values: AnyArray) -> dict[str, float]:
    """Minimum, median, mean and maximum."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {}
    low, mid, high = float(finite.min()), float(np.median(finite)), float(finite.max())
    return {"min": low, "median": mid, "mean": float(finite.mean()), "max": high}
