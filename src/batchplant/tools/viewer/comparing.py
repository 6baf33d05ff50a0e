"""Two datasets side by side: which samples belong together, which cells differ, and how much."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs import image
from ...codecs.cells import decode_cell
from ...data.checks import read_sound
from ...data.reader import Reader
from ...errors import BatchplantError, OptionError, Problem
from ...jobs.scans import step as step_of
from ...jobs.verification.comparison import Comparison
from ...schema import Bytes, Field, Image, Int, Text, Uuid
from ...schema.columns import I64, end_within

Progress = Callable[[int, int], None]
Pixels = npt.NDArray[Any]

STEP, STEP_BYTES = 256, 32 << 20
# Cells that differ: no more are looked for.
MOST = 1000
# Samples without a partner that are listed.
LISTED = 20
KEYS_TOLD = 1 << 14
# The longer side of an image of differences.
LONGEST = 1024
# Letters of values that are told as they are.
SHORT = 40


@dataclasses.dataclass(frozen=True)
class Pairs:
    """Which sample of the one belongs to which of the other. ``alone``: those that have no partner."""

    mine: I64
    theirs: I64
    alone: I64
    others_alone: I64
    # Keys that are there more than once; the first counts.
    again: int = 0


def ways(a: Reader, b: Reader) -> list[dict[str, str]]:
    """What samples can be matched by."""
    found = [{"by": "position", "title": "position"}]
    if a._key_kind() is not None and b._key_kind() is not None:
        found.append({"by": "key", "title": "key"})
    for name, field in a.schema.items():
        if _can_be_key(field) and name in b.schema and _can_be_key(b.schema[name]):
            found.append({"by": f"field:{name}", "title": f"the field {name}"})
    return found


def _can_be_key(field: Field) -> bool:
    return (type(field) is Int and not field.names) or type(field) in (Text, Bytes, Uuid)


def pairs(a: Reader, b: Reader, rows: I64 | None, by: str, told: Progress) -> Pairs:
    """The samples of ``a`` that a filter left (``rows``; None: all) with those of ``b``."""
    if by not in {way["by"] for way in ways(a, b)}:
        raise OptionError(f"samples cannot be matched by {by[:100]!r} here")
    mine = np.arange(len(a)) if rows is None else rows
    if by == "position":
        there = mine < len(b)
        others = np.arange(len(a), max(len(a), len(b))) if rows is None else np.empty(0, np.int64)
        return Pairs(mine[there], mine[there], mine[~there], others)
    field = by.partition(":")[2] or None
    total = len(a) + len(b)
    of_b = _hashes(b, field, lambda done: told(done, total))
    of_a = _hashes(a, field, lambda done: told(len(b) + done, total))[mine]
    order = np.argsort(of_b, kind="stable")
    ordered = of_b[order]
    at = np.searchsorted(ordered, of_a)
    there = ordered[np.minimum(at, max(len(b) - 1, 0))] == of_a if len(b) else np.zeros(len(mine), np.bool_)
    theirs = order[at[there]]
    others = np.empty(0, np.int64)
    if rows is None:
        others = np.setdiff1d(np.flatnonzero(~np.isin(of_b, of_a)), theirs)
    again = len(b) - len(np.unique(of_b))
    return Pairs(mine[there], theirs, mine[~there], others, again)


def _hashes(reader: Reader, field: str | None, told: Callable[[int], None]) -> I64:
    """A hash of every key: 64 bits, so that 10⁷ keys fit and a false match is one in a million datasets."""
    found = np.empty(len(reader), dtype=np.int64)
    at = 0
    for key in _keys(reader, field):
        found[at] = hash(key.decode("utf-8", "replace") if isinstance(key, bytes) else str(key))
        at += 1
        if at % KEYS_TOLD == 0:
            told(at)
    return found[:at]


def _keys(reader: Reader, field: str | None) -> Iterator[Any]:
    if field is None:
        yield from reader.keys()
        return
    # Not Keys, which leave out what is missing, and with it the place of all that follow.
    for columns in reader.scan(4096, [field]):
        for row in range(columns.rows):
            yield decode_cell(reader.schema[field], columns[field], row)


def differing(a: Reader, b: Reader, found: Pairs, told: Progress) -> dict[str, Any]:
    """The cells that differ, the most different first, and what else is not the same."""
    fields = [name for name in a.schema if name in b.schema]
    cells: list[dict[str, Any]] = []
    damaged: list[dict[str, Any]] = []
    compared = 0
    if fields:
        for reached, problem, differs in _scan(a, b, found, told):
            compared = reached
            if problem is None:
                continue
            row = problem.sample or 0
            one: dict[str, Any] = {"sample": int(found.mine[row]), "other": int(found.theirs[row])}
            one["field"] = problem.field
            if not differs or problem.field is None:
                damaged.append({**one, "message": problem.message})
            else:
                cells.append({**one, **difference(a, b, one["sample"], one["other"], problem.field)})
    cells.sort(key=lambda cell: -cell["distance"])
    return {
        "pairs": len(found.mine), "compared": compared, "cells": cells, "damaged": damaged[:MOST],
        "stopped": len(cells) >= MOST and compared < len(found.mine),
        "fields": fields,
        "only_here": [name for name in a.schema if name not in b.schema],
        "only_there": [name for name in b.schema if name not in a.schema],
        "alone": {"count": len(found.alone), "samples": found.alone[:LISTED]},
        "others_alone": {"count": len(found.others_alone), "samples": found.others_alone[:LISTED]},
        "again": found.again,
    }  # fmt: skip


def _scan(a: Reader, b: Reader, found: Pairs, told: Progress) -> Iterator[tuple[int, Problem | None, bool]]:
    """Range by range: how far it is, and each problem; sample numbers count pairs."""
    mine, theirs = a.subset(found.mine), b.subset(found.theirs)
    comparison = Comparison(mine, theirs, MOST)
    sizes, each = mine.sizes(), step_of(mine, STEP, STEP_BYTES)
    end, count, seen = 0, len(mine), 0
    while end < count and seen < MOST:
        start, end = end, end_within(sizes, end, min(each, count - end), STEP_BYTES)
        told(start, count)
        problems: list[Problem] = []
        rows, columns = read_sound(mine, np.arange(start, end), problems, sys.maxsize)
        for problem in problems:
            yield end, problem, False
        if columns is not None:
            for problem, differs in comparison.differences(columns, rows, sys.maxsize):
                seen += differs
                yield comparison.compared if seen >= MOST else end, problem, differs
        yield comparison.compared if seen >= MOST else end, None, False


def difference(a: Reader, b: Reader, sample: int, other: int, name: str) -> dict[str, Any]:
    """How two cells differ: ``distance`` from 0 (not at all) to 1, and in words."""
    try:
        one, two = (_value(reader, at, name) for reader, at in ((a, sample), (b, other)))
    except (BatchplantError, OSError, MemoryError) as error:
        return {"field": name, "same": False, "distance": 1.0, "said": str(error)}
    return {"field": name, **_told(_named(a.schema[name], one), _named(b.schema[name], two))}


def _named(field: Field, value: Any) -> Any:
    """A class by its name, which the two may count differently."""
    names = field.names if isinstance(field, Int) else None
    return names[value] if names and isinstance(value, int) and 0 <= value < len(names) else value


def _value(reader: Reader, sample: int, name: str) -> Any:
    columns = reader.read([sample], [name])
    return decode_cell(reader.schema[name], columns[name], 0)


def _told(one: Any, two: Any) -> dict[str, Any]:
    if one is None or two is None:
        if one is two:
            return {"same": True, "distance": 0.0, "said": "missing in both"}
        return {"same": False, "distance": 1.0, "said": f"missing {'here' if one is None else 'there'}"}
    if isinstance(one, np.ndarray) and isinstance(two, np.ndarray):
        return _arrays(one, two)
    if isinstance(one, bytes | bytearray) and isinstance(two, bytes | bytearray):
        return _texts(bytes(one), bytes(two), "byte")
    if isinstance(one, str) and isinstance(two, str) and max(len(one), len(two)) > SHORT:
        return _texts(one, two, "letter")
    if bool(one == two) or (one != one and two != two):
        return {"same": True, "distance": 0.0, "said": "the same"}
    if all(isinstance(each, int | float) and not isinstance(each, bool) for each in (one, two)):
        far = abs(one - two)
        share = far / max(abs(one), abs(two), 1e-300)
        return {"same": False, "distance": float(min(share, 1.0)), "said": f"{far:.6g} apart"}
    texts = [str(each) for each in (one, two)]
    said = " and ".join(texts) if max(map(len, texts)) <= SHORT else "they differ"
    return {"same": False, "distance": 1.0, "said": said}


def _texts(one: Any, two: Any, unit: str) -> dict[str, Any]:
    if one == two:
        return {"same": True, "distance": 0.0, "said": "the same"}
    most = min(len(one), len(two))
    if isinstance(one, bytes):
        unlike = np.frombuffer(one, np.uint8, most) != np.frombuffer(two, np.uint8, most)
        first = int(unlike.argmax()) if unlike.any() else most
    else:
        first = next((at for at in range(most) if one[at] != two[at]), most)
    lengths = "" if len(one) == len(two) else f"; {len(one):,} and {len(two):,} {unit}s"
    return {"same": False, "distance": 1.0, "said": f"differ from {unit} {first + 1:,} on{lengths}"}


def _arrays(one: Pixels, two: Pixels) -> dict[str, Any]:
    if one.shape != two.shape:
        shapes = ("×".join(map(str, each.shape)) for each in (one, two))
        return {"same": False, "distance": 1.0, "said": " and ".join(shapes)}
    if one.dtype.kind not in "biuf" or two.dtype.kind not in "biuf":
        same = bool(np.array_equal(one, two))
        return {"same": same, "distance": 0.0 if same else 1.0, "said": "the same" if same else "they differ"}
    if not one.size:
        return {"same": True, "distance": 0.0, "said": "both empty"}
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(one.astype(np.float64) - two.astype(np.float64))
        # What is no number in both, or infinite in both, is the same.
        apart[(one == two) | ((one != one) & (two != two))] = 0
    if not apart.any():
        return {"same": True, "distance": 0.0, "said": "the same"}
    mean, most = float(np.nanmean(apart)), float(np.nanmax(apart))
    scale = _scale(one, two)
    said = f"mean difference {mean:.3g}, largest {most:.4g}, {(apart != 0).mean():.1%} of the values"
    if one.dtype == np.uint8 and one.ndim >= 2 and two.dtype == np.uint8:
        said += f"; PSNR {10 * np.log10(255**2 / float((apart**2).mean())):.1f} dB"
    distance = float(np.clip(mean / scale, 0, 1)) if np.isfinite(mean) else 1.0
    return {"same": False, "distance": distance, "said": said}


def _scale(one: Pixels, two: Pixels) -> float:
    if one.dtype.kind in "iu" and one.dtype.itemsize <= 2:
        return float(np.iinfo(one.dtype).max)
    with np.errstate(invalid="ignore"):
        finite = [each[np.isfinite(each)] for each in (one, two)]
    return max([float(np.abs(each.astype(np.float64)).max()) for each in finite if each.size] or [1.0]) or 1.0


def difference_image(a: Reader, b: Reader, sample: int, other: int, name: str, gain: float) -> bytes:
    """How far two images are apart, pixel by pixel, times ``gain``: black where they are the same."""
    for reader in (a, b):
        if not isinstance(reader.schema[name], Image):
            raise OptionError(f"{name!r} is not a field of images")
    one, two = (image.expand(_value(reader, at, name)) for reader, at in ((a, sample), (b, other)))
    if one.shape[:2] != two.shape[:2]:
        raise OptionError(
            f"the images have {one.shape[1]}×{one.shape[0]} and {two.shape[1]}×{two.shape[0]} pixels"
        )
    channels = max(one.shape[2], two.shape[2])
    if one.shape[2] != two.shape[2]:
        channels = min(one.shape[2], two.shape[2])
    apart = np.abs(one[:, :, :channels].astype(np.float32) - two[:, :, :channels].astype(np.float32))
    apart = apart[:, :, :3] if channels >= 3 else apart.max(axis=2, keepdims=True)
    kind = one.dtype
    if kind != np.uint8:
        apart *= 255.0 / (np.iinfo(kind).max if kind.kind in "iu" else max(float(np.nanmax(apart)), 1e-12))
    shown = np.clip(np.nan_to_num(apart) * gain, 0, 255).astype(np.uint8)
    return image.encode(image.squeeze(image.fit(shown, LONGEST)), "png")
