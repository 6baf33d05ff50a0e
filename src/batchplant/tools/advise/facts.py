"""Facts of a dataset, from some samples spread over it: the input of every rule."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import math
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...codecs.media import image
from ...data.reader import Reader, View
from ...errors import BatchplantError, DataError
from ...schema import Field, Float, Image, Int, Schema, Tensor, Text
from ...schema.columns import I64, AnyArray, Column, Columns, Masked, Ragged, column_runs
from ...storage import is_remote, tree
from .. import Document

# Limits of the samples that are examined.
MAX_SAMPLES = 2000
MAX_SAMPLE_BYTES = 48 << 20
MAX_SECONDS = 2.0
# Samples that are read first, to learn their size.
PROBED_SAMPLES = 8
# Files whose sizes are looked up; with more, the size is estimated from the sample.
MAX_FILES = 5000
COMPRESSED_SUFFIXES = (".gz", ".tgz", ".bz2", ".xz", ".zst")
# Side of the crop that most image models take.
DEFAULT_CROP_PIXELS = 224
# Smaller cells are equal by chance.
MIN_DUPLICATE_BYTES = 64
# A field with more distinct values is no label.
MAX_CLASSES = 10_000
MIN_LABELS = 16


@dataclasses.dataclass(frozen=True, kw_only=True)
class FieldFacts:
    """Facts of the cells of a field.

    bytes: mean of a cell; missing: how many have none. Images: encodings by count, width and height
    (median), pixel_bytes: encoded bytes a pixel. labels: few values that many samples share, as numbers or
    text; classes: how many; sorted: equal ones stand together. padding: the part of all values that fills up.
    """

    name: str
    kind: str
    field: Field
    bytes: float = 0.0
    missing: int = 0
    encodings: Mapping[str, int] = dataclasses.field(default_factory=dict)
    width: float = 0.0
    height: float = 0.0
    pixel_bytes: float = 0.0
    labels: str = ""
    classes: int = 0
    sorted: bool = False
    padding: float = 0.0
    wide: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Facts:
    """Facts of a dataset.

    looked_at: samples that were read; bytes: of all files, an estimate where ``estimated``; sample_bytes:
    mean bytes of a sample's cells. files: how many, about. block_rows, block_bytes: samples and cell bytes in
    a storage unit (row group, chunk, page), where there are such; amplification: bytes unpacked to read one
    sample, divided by the sample's. packed: the whole file is compressed in one piece.
    """

    path: str
    format: str
    schema: Schema
    samples: int
    looked_at: int
    unreadable: int = 0
    bytes: int | None = None
    estimated: bool = False
    sample_bytes: float = 0.0
    files: int = 1
    remote: bool = False
    block_rows: float | None = None
    block_bytes: float | None = None
    amplification: float = 1.0
    packed: bool = False
    duplicates: int = 0
    fields: Mapping[str, FieldFacts] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0

    @property
    def file_per_sample(self) -> bool:
        return self.samples > 1 and self.files >= self.samples

    def having(self, **attributes: Any) -> list[FieldFacts]:
        """Return the fields with these facts, as in ``having(kind="image")``."""
        return [
            field
            for field in self.fields.values()
            if all(getattr(field, name) == value for name, value in attributes.items())
        ]


def fitting_size(facts: Facts) -> int:
    """Return the side of a crop that enlarges no image: 224, or less where images are smaller."""
    sides = [
        min(field.width, field.height) for field in facts.having(kind="image") if field.width and field.height
    ]
    side = int(min([DEFAULT_CROP_PIXELS, *sides]))
    # Models halve the side several times.
    return side - side % 8 if side > 16 else max(side, 1)


def look(reader: Reader, samples: int = MAX_SAMPLES) -> Facts:
    """Collect the facts of a dataset; reads some samples, spread over it, for at most two seconds."""
    began = time.perf_counter()
    rows, columns, bad = _sample(reader, min(samples, len(reader)))
    sizes = _sizes(columns)
    sample_bytes = float(sizes.mean()) if len(sizes) else 0.0
    fields = {name: describe(name, reader.schema[name], column) for name, column in columns.items()}
    files = _files(reader, rows)
    size = _disk_bytes(reader, files)
    block_rows = _block_rows(reader)
    return Facts(
        path=str(reader.path), format=_format(reader), schema=reader.schema, samples=len(reader),
        looked_at=len(rows), unreadable=bad, remote=is_remote(reader.path),
        bytes=round(sample_bytes * len(reader)) if size is None else size, estimated=size is None,
        sample_bytes=sample_bytes, files=files, block_rows=block_rows,
        block_bytes=None if block_rows is None else block_rows * sample_bytes,
        amplification=_amplification(reader), packed=_packed(reader), fields=fields,
        duplicates=_duplicates(columns), seconds=time.perf_counter() - began,
    )  # fmt: skip


def _sample(reader: Reader, count: int) -> tuple[I64, Columns, int]:
    """Return some samples in ascending order, their cells, and the number of unreadable ones."""
    deadline = time.monotonic() + MAX_SECONDS
    spread = np.unique(np.linspace(0, max(len(reader) - 1, 0), count).round().astype(np.int64))[:count]
    # The first ones are spread over the dataset, too.
    first = spread[:: max(1, len(spread) // PROBED_SAMPLES)][:PROBED_SAMPLES]
    rows, parts = _read(reader, first)
    size = _sizes(parts).mean() if len(rows) else 0.0
    max_samples = int(max(PROBED_SAMPLES, MAX_SAMPLE_BYTES / max(size, 1)))
    remaining = np.setdiff1d(spread[:: -(-len(spread) // max_samples)] if len(spread) else spread, first)
    # In random order: when the time is up, the samples that were read are still spread.
    remaining = np.random.default_rng(0).permutation(remaining)
    tried, batches = len(first), [(rows, parts)]
    for start in range(0, len(remaining), 64):
        if time.monotonic() > deadline:
            break
        batches.append(_read(reader, np.sort(remaining[start : start + 64])))
        tried += len(remaining[start : start + 64])
    rows = np.concatenate([batch_rows for batch_rows, _ in batches])
    ascending = np.argsort(rows)
    return (
        rows[ascending],
        Columns.concat([columns for _, columns in batches]).take(ascending),
        tried - len(rows),
    )


def _read(reader: Reader, rows: I64) -> tuple[I64, Columns]:
    """Return the readable ones of these samples, and their cells."""
    with contextlib.suppress(DataError):
        return rows, reader.read(rows)
    readable, columns = [], [reader.read([])]
    for row in rows.tolist():
        with contextlib.suppress(DataError):
            columns.append(reader.read([row]))
            readable.append(row)
    return np.array(readable, dtype=np.int64), Columns.concat(columns)


def _sizes(columns: Columns) -> I64:
    """Return the bytes of the cells of each sample."""
    parts = [column_runs(column)[2].clip(0) for column in columns.values()]
    return np.sum(parts, axis=0, dtype=np.int64) if parts else np.zeros(0, dtype=np.int64)


def _parts(reader: Reader) -> list[Reader]:
    """Return the readers of a dataset's files; the reader itself if there is one file."""
    while isinstance(reader, View):
        reader = reader.base
    return list(getattr(reader, "readers", (reader,)))


def _format(reader: Reader) -> str:
    return reader.format or next((part.format for part in _parts(reader) if part.format), "")


def _files(reader: Reader, rows: I64) -> int:
    """Estimate the number of files from the examined samples."""
    probed = rows[:256]
    names = {reader.where(int(row)) for row in probed}
    with contextlib.suppress(BatchplantError):
        spans = reader.ranges(indices=probed) if len(probed) else None
        if spans is not None and len(spans.files) <= len(reader):
            names |= {spans.files[number] for number in np.unique(spans.file)}
    # A file for each sample.
    if len(names) >= len(probed) > 1:
        return len(reader)
    return max(len(_parts(reader)), len(names), 1)


def _disk_bytes(reader: Reader, files: int) -> int | None:
    """Return the bytes of all files; None if that would take long, or a server does not say."""
    if files > MAX_FILES:
        return None
    with contextlib.suppress(BatchplantError, OSError):
        paths = {path for part in _parts(reader) for path in getattr(part, "paths", [part.path])}
        return sum(tree.size_below(path) for path in paths if tree.exists(path)) or None
    return None


def _block_rows(reader: Reader) -> float | None:
    with contextlib.suppress(BatchplantError):
        blocks = reader.blocks()
        if blocks is not None and len(blocks):
            return len(blocks) / (1 + np.count_nonzero(np.diff(blocks)))
    return None


def _amplification(reader: Reader) -> float:
    """Return how many times the bytes of a sample are decompressed to read it from chunks."""
    worst = 1.0
    for name, field in reader.schema.items():
        # Only arrays in compressed chunks; others are read in place.
        if not isinstance(field, Tensor) or not len(reader) or reader.spans(name, [0]) is not None:
            continue
        with contextlib.suppress(BatchplantError):
            array = reader.array(name)
            if array.ndim < 2:
                continue
            # One sample touches every chunk along the other axes.
            touched = [
                -(-size // chunk) * chunk
                for size, chunk in zip(array.shape[1:], array.chunks[1:], strict=True)
            ]
            worst = max(worst, array.chunks[0] * math.prod(touched) / max(math.prod(array.shape[1:]), 1))
    return worst


def _packed(reader: Reader) -> bool:
    """Return whether files are compressed as a whole, by their names."""
    return any(str(part.path).lower().endswith(COMPRESSED_SUFFIXES) for part in _parts(reader)[:1])


def _duplicates(columns: Columns) -> int:
    """Count the examined samples that equal another one in the field with the most bytes."""
    seen: Counter[bytes] = Counter()
    if not columns:
        return 0
    name = max(columns, key=lambda column: int(column_runs(columns[column])[2].clip(0).sum()))
    data, starts, sizes = column_runs(columns[name])
    for start, size in zip(starts.tolist(), sizes.tolist(), strict=True):
        if size >= MIN_DUPLICATE_BYTES:
            seen[hashlib.blake2b(data[start : start + size].tobytes(), digest_size=8).digest()] += 1
    return sum(count - 1 for count in seen.values())


def describe(name: str, field: Field, column: Column) -> FieldFacts:
    sizes = column_runs(column)[2]
    present = sizes[sizes >= 0]
    facts: Document = {
        "bytes": float(present.mean()) if len(present) else 0.0,
        "missing": int((sizes < 0).sum()),
    }
    if isinstance(field, Image) and isinstance(column, Ragged):
        facts |= _images(column)
    values = _values(field, column)
    if values is not None and values.ndim == 1:
        facts |= _labels(field, values)
    if values is not None and values.ndim == 2 and values.dtype.kind in "iu":
        facts["padding"] = _padding(values)
    facts["wide"] = isinstance(field, Float | Tensor) and field.dtype == "float64"
    return FieldFacts(name=name, kind=field.kind, field=field, **facts)


def _values(field: Field, column: Column) -> AnyArray | None:
    """Return numbers or texts, one row per cell; None for other fields."""
    if type(field) is Text and isinstance(column, Ragged):
        return np.array([b"" if cell is None else cell.tobytes() for cell in column], dtype=object)
    if isinstance(column, Masked):
        return column.values
    return None if isinstance(column, Ragged) else column


def _images(column: Ragged) -> Document:
    headers, raw = image.probe(column), column.raw
    encodings = Counter(
        "raw" if raw[row] else image.ENCODINGS[code] or "?" for row, code in enumerate(headers[:, 0])
    )
    readable = headers[:, 1] > 0
    if not readable.any():
        return {"encodings": dict(encodings)}
    sizes = headers[readable, 1:3].astype(np.float64)
    width, height = np.median(sizes, axis=0)
    pixels = sizes.prod(axis=1).sum()
    return {
        "encodings": dict(encodings.most_common()), "width": float(width), "height": float(height),
        "pixel_bytes": float(column.sizes[readable].sum() / pixels),
    }  # fmt: skip


def _labels(field: Field, values: AnyArray) -> Document:
    """Return whether a field holds labels, its number of classes, and whether they are sorted."""
    if len(values) < MIN_LABELS or type(field) not in (Int, Text):
        return {}
    distinct = len(set(values.tolist()))
    named = isinstance(field, Int) and field.names is not None
    few = 1 < distinct <= min(MAX_CLASSES, max(2, len(values) // 4))
    if not (few or (named and distinct > 1)):
        return {}
    changes = int(np.count_nonzero(values[1:] != values[:-1]))
    # In random order nearly all neighbours differ; in sorted order one pair per class.
    together = changes <= 1.5 * distinct and changes < 0.5 * len(values) * (1 - 1 / distinct)
    return {
        "labels": "text" if type(field) is Text else "number",
        "classes": distinct,
        "sorted": bool(together),
    }


def _padding(values: AnyArray) -> float:
    """Return the share of trailing fillers, the most common last value, among all values."""
    if values.shape[1] < 8:
        return 0.0
    last = Counter(values[:, -1].tolist()).most_common(1)[0]
    if last[1] < 0.3 * len(values):
        return 0.0
    is_data = values != last[0]
    tails = np.where(is_data.any(axis=1), is_data[:, ::-1].argmax(axis=1), values.shape[1])
    return float(tails.sum() / values.size)
