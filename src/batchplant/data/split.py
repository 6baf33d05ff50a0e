"""Parts of a dataset: by fraction, stratified by class, or with all samples of a key in one part."""

from __future__ import annotations

import hashlib
import itertools
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.scalars import texts_of
from ..errors import OptionError
from ..order.keyed import derive, key_of
from ..schema import Bool, Bytes, Duration, Int, Schema, Tensor, Text, Time
from ..schema.columns import I64, Column, Ragged
from .reader import Reader, open_reader

SCAN_ROWS = 4096
MAX_PARTS = 1000
# Tells these draws from those of the orders.
PURPOSE = 0x5917
# Tolerance of sums of fractions.
ROUNDING = 1e-9
# The part of samples whose value is missing.
MISSING = "missing"

F64 = npt.NDArray[np.float64]


def split(
    source: Reader | str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    parts: Mapping[str, float] | None = None,
    *,
    stratify: str | None = None,
    by_key: str | None = None,
    by: str | None = None,
    seed: int = 0,
    format: str | None = None,
    **options: Any,
) -> dict[str, Reader]:
    """The parts of a dataset by name: ``split(source, {"train": 0.8, "val": 0.1, "test": 0.1})``.

    parts: the fraction that each has; what they leave of the whole is in none. Which sample goes where is
    drawn, and depends on the seed and the dataset alone; inside a part the samples keep their order.
    stratify: a field of classes; each part gets of each class the same fraction. by_key: a field of keys;
    samples of one key are all in one part (samples without a key each count as one of their own), so the
    fractions are met as closely as the keys allow. by: in place of fractions, a part for each value of it.
    ``format`` and further options are those of :func:`batchplant.open`.

    Raises: OptionError for fractions that are not above 0, or add up to more than 1.
    """
    reader = source if isinstance(source, Reader) else open_reader(source, format=format, **options)
    if sum(option is not None for option in (stratify, by_key, by)) > 1:
        raise OptionError("stratify, by_key and by exclude each other; give one of them")
    if by is not None:
        if parts:
            raise OptionError("by makes a part of each value; it takes no fractions")
        return _by_value(reader, by)
    if not isinstance(parts or {}, Mapping):
        raise OptionError(f"parts are fractions by name, as {{'train': 0.9, 'val': 0.1}}, not {parts!r}")
    shares = _fractions(parts or {})
    if stratify is not None:
        chosen = _stratified(_codes(reader, stratify, alone=False)[0], shares, seed)
    elif by_key is not None:
        chosen = _grouped(*_codes(reader, by_key), shares, seed)
    else:
        chosen = _cut(_drawn(len(reader), seed), _counts(len(reader) * shares))
    readers = {name: reader.subset(np.sort(rows)) for name, rows in zip(parts or {}, chosen, strict=False)}
    for name, part in readers.items():
        if not len(part):
            hint = f"; {by_key!r} has too few keys, or one has too many samples" if by_key else ""
            raise OptionError(
                f"the part {name!r} would be empty, with {len(reader)} samples{hint}", path=reader.path
            )
    return readers


def check_name(name: str) -> None:
    """Raise OptionError unless the name of a part can be that of a file."""
    if not name or name in (".", "..") or "/" in name or not name.isprintable():
        raise OptionError(f"{name!r} cannot be the name of a part")


def _fractions(parts: Mapping[str, float]) -> F64:
    """Return the fractions, and after them the remainder."""
    if not parts:
        raise OptionError("name the parts and their fractions, such as train=0.8 and val=0.2")
    for name, value in parts.items():
        check_name(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 1:
            raise OptionError(f"the fraction of {name!r} is a number above 0 and up to 1, not {value!r}")
    total = math.fsum(parts.values())
    if total > 1 + ROUNDING:
        raise OptionError(f"the fractions add up to {total:.6g}, and the whole is 1")
    return np.array([*parts.values(), max(0.0, 1 - total) if total < 1 - ROUNDING else 0.0])


def _drawn(count: int, seed: int) -> I64:
    """Return all numbers below ``count`` in an order that the seed draws."""
    return np.argsort(derive(key_of(seed, 0, PURPOSE), np.arange(count)), kind="stable")


def _counts(targets: F64) -> I64:
    """Round to whole numbers with the same sum, by largest remainder."""
    counts = np.floor(targets + ROUNDING).astype(np.int64)
    missing = round(float(targets.sum())) - int(counts.sum())
    counts[np.argsort(counts - targets, kind="stable")[:missing]] += 1
    return counts


def _cut(rows: I64, counts: I64) -> list[I64]:
    return np.split(rows, np.cumsum(counts)[:-1])


def _stratified(codes: I64, shares: F64, seed: int) -> list[I64]:
    """Split each class by itself; the next classes make up for what a part lost by rounding."""
    order = _drawn(len(codes), seed)
    order = order[np.argsort(codes[order], kind="stable")]
    bounds = np.searchsorted(codes[order], np.arange(int(codes.max(initial=-1)) + 2))
    parts: list[list[I64]] = [[] for _ in shares]
    owed = np.zeros(len(shares))
    for start, end in itertools.pairwise(bounds.tolist()):
        targets = (end - start) * shares
        # Never more than a class has, never less than nothing, whatever is owed.
        counts = _counts(_clipped(targets + owed, float(end - start)))
        owed += targets - counts
        for part, rows in zip(parts, _cut(order[start:end], counts), strict=True):
            part.append(rows)
    return [np.concatenate([np.empty(0, np.int64), *part]) for part in parts]


def _clipped(targets: F64, total: float) -> F64:
    """Clip negative targets to 0 and keep the sum."""
    clipped = np.clip(targets, 0, None)
    return clipped * (total / clipped.sum()) if clipped.sum() > 0 else clipped


def _grouped(codes: I64, keys: list[bytes | None], shares: F64, seed: int) -> list[I64]:
    """Assign whole groups, in an order that the seed draws, each to the part that lacks most."""
    sizes = np.bincount(codes, minlength=len(keys))
    salt = key_of(seed, 0, PURPOSE).tobytes()
    # By the key itself: the same keys are drawn alike in whatever order they come.
    drawn = [
        hashlib.blake2b(str(number).encode() if key is None else key, digest_size=8, key=salt).digest()
        for number, key in enumerate(keys)
    ]
    targets = len(codes) * shares
    lacking = targets.copy()
    part_of = np.empty(len(keys), np.int64)
    for group in sorted(range(len(keys)), key=drawn.__getitem__):
        room = lacking >= sizes[group] - ROUNDING
        # The first of those that lack most; where a group has room nowhere, the one with most room.
        share = np.where(room, lacking / np.maximum(targets, ROUNDING), -1.0) if room.any() else lacking
        part_of[group] = int(np.argmax(share))
        lacking[part_of[group]] -= sizes[group]
    return [np.flatnonzero(part_of[codes] == part) for part in range(len(shares))]


def _by_value(reader: Reader, field: str) -> dict[str, Reader]:
    groups = rows_by_value(reader, field)
    if len(groups) > MAX_PARTS:
        raise OptionError(
            f"{field!r} has {len(groups):,} values; that many parts are too many", path=reader.path
        )
    for name in groups:
        check_name(name)
    return {name: reader.subset(rows) for name, rows in groups.items()}


def rows_by_value(reader: Reader, field: str) -> dict[str, I64]:
    """Return the samples of every value of a field, by the name of the value."""
    codes, keys = _codes(reader, field, alone=False)
    names = [_name(reader.schema, field, key) for key in keys]
    if len(set(names)) < len(names):
        raise OptionError(f"two values of {field!r} would give parts of one name", path=reader.path)
    order = np.argsort(codes, kind="stable")
    cuts = np.searchsorted(codes[order], np.arange(1, len(keys)))
    return dict(zip(names, np.split(order, cuts), strict=True)) if names else {}


def _name(schema: Schema, field: str, key: bytes | None) -> str:
    kind = schema[field]
    if key is None:
        return MISSING
    if isinstance(kind, Text | Bytes):
        return key.decode("utf-8", "backslashreplace")
    value = np.frombuffer(key, getattr(kind, "dtype", "bool"))[0]
    if isinstance(kind, Time | Duration):
        return str(texts_of(kind, np.frombuffer(key, np.int64))[0].decode())
    names = getattr(kind, "names", None)
    if names and 0 <= int(value) < len(names):
        return str(names[int(value)])
    return str(value).lower() if isinstance(kind, Bool) else str(value)


def _codes(reader: Reader, field: str, *, alone: bool = True) -> tuple[I64, list[bytes | None]]:
    """Return the number of each sample's value, and the values as bytes, in the order of their first samples.

    A missing value is None: with ``alone`` each one is a value by itself, else all are one.
    """
    kind = reader.schema[field]
    date = isinstance(kind, Tensor) and kind.shape == ()
    if not (isinstance(kind, Int | Bool | Text | Bytes) or date):
        raise OptionError(
            f"split by a field of whole numbers, booleans, text or dates; {field!r} is {kind}",
            path=reader.path,
        )
    codes_by_value: dict[bytes | None, int] = {}
    keys: list[bytes | None] = []
    codes = np.empty(len(reader), np.int64)
    row = 0
    for columns in reader.scan(SCAN_ROWS, [field]):
        for cell in _cells(columns[field]):
            number = codes_by_value.get(cell)
            if number is None or (cell is None and alone):
                number = codes_by_value[cell] = len(keys)
                keys.append(cell)
            codes[row] = number
            row += 1
    return codes, keys


def _cells(column: Column) -> Iterable[bytes | None]:
    if isinstance(column, Ragged):
        cells = (column[row] for row in range(len(column)))
        return (None if cell is None else cell.tobytes() for cell in cells)
    return (column[row].tobytes() for row in range(len(column)))
