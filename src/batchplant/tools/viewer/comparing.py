"""Comparison of two datasets: matching samples, and the cells that differ."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ...codecs import image
from ...codecs.cells import decode_cell
from ...data.reader import Reader
from ...errors import BatchplantError, OptionError, Problem
from ...jobs.scans import batch_rows
from ...jobs.verification import Comparison
from ...schema import Bytes, Field, Image, Int, Text, Uuid
from ...schema.columns import I64, end_within
from .. import Array, Document

Progress = Callable[[int, int], None]

CHUNK_ROWS, CHUNK_BYTES = 256, 32 << 20
# Cells that differ; the comparison stops there.
MAX_DIFFERENCES = 1000
# Samples without a match that are listed.
MAX_LISTED = 20
PROGRESS_KEYS = 1 << 14
# Longer side of an image of differences.
MAX_SIDE_PIXELS = 1024
# Letters up to which a message contains both values.
SHORT_LETTERS = 40


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Samples of dataset ``a`` with the matching samples of ``b``, and those without a match."""

    a: I64
    b: I64
    unmatched_a: I64
    unmatched_b: I64
    # Keys that occur more than once; the first one counts.
    repeated_keys: int = 0


def match_keys(a: Reader, b: Reader) -> list[dict[str, str]]:
    """Return the ways to match samples: by position, key or a field."""
    choices = [{"by": "position", "title": "position"}]
    if a._keys() is not None and b._keys() is not None:
        choices.append({"by": "key", "title": "key"})
    for name, field in a.schema.items():
        if _can_be_key(field) and name in b.schema and _can_be_key(b.schema[name]):
            choices.append({"by": f"field:{name}", "title": f"the field {name}"})
    return choices


def _can_be_key(field: Field) -> bool:
    return (type(field) is Int and not field.names) or type(field) in (Text, Bytes, Uuid)


def match_samples(a: Reader, b: Reader, rows: I64 | None, by: str, progress: Progress) -> Pairs:
    """Match the samples of ``a`` in ``rows`` (None: all) with those of ``b``."""
    if by not in {way["by"] for way in match_keys(a, b)}:
        raise OptionError(f"samples cannot be matched by {by[:100]!r} here")
    samples_a = np.arange(len(a)) if rows is None else rows
    if by == "position":
        matched = samples_a < len(b)
        unmatched_b = np.arange(len(a), max(len(a), len(b))) if rows is None else np.empty(0, np.int64)
        return Pairs(samples_a[matched], samples_a[matched], samples_a[~matched], unmatched_b)
    field = by.partition(":")[2] or None
    total = len(a) + len(b)
    hashes_b = _hashes(b, field, lambda done: progress(done, total))
    hashes_a = _hashes(a, field, lambda done: progress(len(b) + done, total))[samples_a]
    order = np.argsort(hashes_b, kind="stable")
    ordered = hashes_b[order]
    positions = np.searchsorted(ordered, hashes_a)
    matched = (
        ordered[np.minimum(positions, max(len(b) - 1, 0))] == hashes_a
        if len(b)
        else np.zeros(len(samples_a), np.bool_)
    )
    samples_b = order[positions[matched]]
    unmatched_b = np.empty(0, np.int64)
    if rows is None:
        unmatched_b = np.setdiff1d(np.flatnonzero(~np.isin(hashes_b, hashes_a)), samples_b)
    repeated_keys = len(b) - len(np.unique(hashes_b))
    return Pairs(samples_a[matched], samples_b, samples_a[~matched], unmatched_b, repeated_keys)


def _hashes(reader: Reader, field: str | None, progress: Callable[[int], None]) -> I64:
    """Return a 64-bit hash of every key: 10⁷ keys fit in memory, and false matches are very rare."""
    hashes = np.empty(len(reader), dtype=np.int64)
    count = 0
    for key in _keys(reader, field):
        hashes[count] = hash(key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key))
        count += 1
        if count % PROGRESS_KEYS == 0:
            progress(count)
    return hashes[:count]


def _keys(reader: Reader, field: str | None) -> Iterator[Any]:
    if field is None:
        yield from reader.keys()
        return
    # Not Keys, which leave out missing values and thereby shift all that follow.
    for columns in reader.scan(4096, [field]):
        for row in range(columns.rows):
            yield decode_cell(reader.schema[field], columns[field], row)


def compare_datasets(a: Reader, b: Reader, pairs: Pairs, progress: Progress) -> Document:
    """Return the cells that differ, the most different first, and the other differences."""
    fields = [name for name in a.schema if name in b.schema]
    cells: list[Document] = []
    damaged: list[Document] = []
    compared = 0
    if fields:
        for reached, problem, differs in _scan(a, b, pairs, progress):
            compared = reached
            if problem is None:
                continue
            row = problem.sample or 0
            entry: Document = {"sample": int(pairs.a[row]), "other": int(pairs.b[row])}
            entry["field"] = problem.field
            if not differs or problem.field is None:
                damaged.append({**entry, "message": problem.message})
            else:
                cells.append({**entry, **compare_cells(a, b, entry["sample"], entry["other"], problem.field)})
    cells.sort(key=lambda cell: -cell["distance"])
    return {
        "pairs": len(pairs.a), "compared": compared, "cells": cells, "damaged": damaged[:MAX_DIFFERENCES],
        "stopped": len(cells) >= MAX_DIFFERENCES and compared < len(pairs.a),
        "fields": fields,
        "only_here": [name for name in a.schema if name not in b.schema],
        "only_there": [name for name in b.schema if name not in a.schema],
        "alone": {"count": len(pairs.unmatched_a), "samples": pairs.unmatched_a[:MAX_LISTED]},
        "others_alone": {"count": len(pairs.unmatched_b), "samples": pairs.unmatched_b[:MAX_LISTED]},
        "again": pairs.repeated_keys,
    }  # fmt: skip


def _scan(
    a: Reader, b: Reader, pairs: Pairs, progress: Progress
) -> Iterator[tuple[int, Problem | None, bool]]:
    """Yield the number of compared pairs, a problem of a pair, and whether it is a difference."""
    reader_a, reader_b = a.subset(pairs.a), b.subset(pairs.b)
    comparison = Comparison(reader_a, reader_b, MAX_DIFFERENCES)
    sizes, max_rows = reader_a.sizes(), batch_rows(reader_a, CHUNK_ROWS, CHUNK_BYTES)
    end, count, seen = 0, len(reader_a), 0
    while end < count and seen < MAX_DIFFERENCES:
        start, end = end, end_within(sizes, end, min(max_rows, count - end), CHUNK_BYTES)
        progress(start, count)
        problems: list[Problem] = []
        rows, columns = reader_a.read_undamaged(np.arange(start, end), problems, sys.maxsize)
        for problem in problems:
            yield end, problem, False
        if columns is not None:
            for problem, differs in comparison.differences(columns, rows, sys.maxsize):
                seen += differs
                yield comparison.compared if seen >= MAX_DIFFERENCES else end, problem, differs
        yield comparison.compared if seen >= MAX_DIFFERENCES else end, None, False


def compare_cells(a: Reader, b: Reader, sample_a: int, sample_b: int, name: str) -> Document:
    """Compare two cells: ``distance`` from 0 (the same) to 1, and a message."""
    try:
        value_a, value_b = (_value(reader, number, name) for reader, number in ((a, sample_a), (b, sample_b)))
    except (BatchplantError, OSError, MemoryError) as error:
        return {"field": name, "same": False, "distance": 1.0, "said": str(error)}
    return {
        "field": name,
        **_compare_values(_named(a.schema[name], value_a), _named(b.schema[name], value_b)),
    }


def _named(field: Field, value: Any) -> Any:
    """Return a class by its name: the datasets may number classes differently."""
    names = field.names if isinstance(field, Int) else None
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value


def _value(reader: Reader, sample: int, name: str) -> Any:
    columns = reader.read([sample], [name])
    return decode_cell(reader.schema[name], columns[name], 0)


def _compare_values(value_a: Any, value_b: Any) -> Document:
    if value_a is None or value_b is None:
        if value_a is value_b:
            return {"same": True, "distance": 0.0, "said": "missing in both"}
        return {"same": False, "distance": 1.0, "said": f"missing {'here' if value_a is None else 'there'}"}
    if isinstance(value_a, np.ndarray) and isinstance(value_b, np.ndarray):
        return _compare_arrays(value_a, value_b)
    if isinstance(value_a, bytes | bytearray) and isinstance(value_b, bytes | bytearray):
        return _compare_texts(bytes(value_a), bytes(value_b), "byte")
    if (
        isinstance(value_a, str)
        and isinstance(value_b, str)
        and max(len(value_a), len(value_b)) > SHORT_LETTERS
    ):
        return _compare_texts(value_a, value_b, "letter")
    if bool(value_a == value_b) or (value_a != value_a and value_b != value_b):
        return {"same": True, "distance": 0.0, "said": "the same"}
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in (value_a, value_b)):
        far = abs(value_a - value_b)
        share = far / max(abs(value_a), abs(value_b), 1e-300)
        return {"same": False, "distance": float(min(share, 1.0)), "said": f"{far:.6g} apart"}
    texts = [str(value) for value in (value_a, value_b)]
    message = " and ".join(texts) if max(map(len, texts)) <= SHORT_LETTERS else "they differ"
    return {"same": False, "distance": 1.0, "said": message}


def _compare_texts(text_a: Any, text_b: Any, unit: str) -> Document:
    if text_a == text_b:
        return {"same": True, "distance": 0.0, "said": "the same"}
    shared = min(len(text_a), len(text_b))
    if isinstance(text_a, bytes):
        unlike = np.frombuffer(text_a, np.uint8, shared) != np.frombuffer(text_b, np.uint8, shared)
        first = int(unlike.argmax()) if unlike.any() else shared
    else:
        first = next((position for position in range(shared) if text_a[position] != text_b[position]), shared)
    lengths = "" if len(text_a) == len(text_b) else f"; {len(text_a):,} and {len(text_b):,} {unit}s"
    return {"same": False, "distance": 1.0, "said": f"differ from {unit} {first + 1:,} on{lengths}"}


def _compare_arrays(array_a: Array, array_b: Array) -> Document:
    if array_a.shape != array_b.shape:
        shapes = ("×".join(map(str, array.shape)) for array in (array_a, array_b))
        return {"same": False, "distance": 1.0, "said": " and ".join(shapes)}
    if array_a.dtype.kind not in "biuf" or array_b.dtype.kind not in "biuf":
        same = bool(np.array_equal(array_a, array_b))
        return {"same": same, "distance": 0.0 if same else 1.0, "said": "the same" if same else "they differ"}
    if not array_a.size:
        return {"same": True, "distance": 0.0, "said": "both empty"}
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(array_a.astype(np.float64) - array_b.astype(np.float64))
        # NaN equals NaN, infinity equals infinity.
        apart[(array_a == array_b) | ((array_a != array_a) & (array_b != array_b))] = 0
    if not apart.any():
        return {"same": True, "distance": 0.0, "said": "the same"}
    mean, largest = float(np.nanmean(apart)), float(np.nanmax(apart))
    scale = _scale(array_a, array_b)
    message = f"mean difference {mean:.3g}, largest {largest:.4g}, {(apart != 0).mean():.1%} of the values"
    if array_a.dtype == np.uint8 and array_a.ndim >= 2 and array_b.dtype == np.uint8:
        message += f"; PSNR {10 * np.log10(255**2 / float((apart**2).mean())):.1f} dB"
    distance = float(np.clip(mean / scale, 0, 1)) if np.isfinite(mean) else 1.0
    return {"same": False, "distance": distance, "said": message}


def _scale(array_a: Array, array_b: Array) -> float:
    if array_a.dtype.kind in "iu" and array_a.dtype.itemsize <= 2:
        return float(np.iinfo(array_a.dtype).max)
    with np.errstate(invalid="ignore"):
        finite = [array[np.isfinite(array)] for array in (array_a, array_b)]
    return (
        max([float(np.abs(array.astype(np.float64)).max()) for array in finite if array.size] or [1.0]) or 1.0
    )


def difference_image(a: Reader, b: Reader, sample_a: int, sample_b: int, name: str, gain: float) -> bytes:
    """Return the pixel-wise difference of two images times ``gain`` as PNG: black where they are equal."""
    for reader in (a, b):
        if not isinstance(reader.schema[name], Image):
            raise OptionError(f"{name!r} is not a field of images")
    image_a, image_b = (
        image.expand(_value(reader, number, name)) for reader, number in ((a, sample_a), (b, sample_b))
    )
    if image_a.shape[:2] != image_b.shape[:2]:
        raise OptionError(
            f"the images have {image_a.shape[1]}×{image_a.shape[0]} and "
            f"{image_b.shape[1]}×{image_b.shape[0]} pixels"
        )
    channels = max(image_a.shape[2], image_b.shape[2])
    if image_a.shape[2] != image_b.shape[2]:
        channels = min(image_a.shape[2], image_b.shape[2])
    apart = np.abs(image_a[:, :, :channels].astype(np.float32) - image_b[:, :, :channels].astype(np.float32))
    apart = apart[:, :, :3] if channels >= 3 else apart.max(axis=2, keepdims=True)
    kind = image_a.dtype
    if kind != np.uint8:
        apart *= 255.0 / (np.iinfo(kind).max if kind.kind in "iu" else max(float(np.nanmax(apart)), 1e-12))
    shown = np.clip(np.nan_to_num(apart) * gain, 0, 255).astype(np.uint8)
    return image.encode(image.squeeze(image.fit(shown, MAX_SIDE_PIXELS)), "png")
