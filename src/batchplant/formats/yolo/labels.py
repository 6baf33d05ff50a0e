"""Lines of labels: a class, then a box, an outline, or a box and keypoints."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ... import _native
from ...errors import DamagedError
from ...schema.columns import I64, Ragged, as_bytes

F64 = npt.NDArray[np.float64]
# A class and a box.
BOX = 5


class Lines(NamedTuple):
    """The objects of all files: how many each file has, and the numbers of each line."""

    counts: I64
    values: F64
    ends: I64

    @property
    def sizes(self) -> I64:
        return np.diff(self.ends)


def parse(cells: Ragged) -> Lines:
    """The numbers of lines; what is none is a DamagedError with the file's row for sample."""
    data = cells.data[cells.offsets[0] : cells.offsets[-1]]
    edges = cells.offsets - cells.offsets[0]
    blank = (data == 32) | ((data >= 9) & (data <= 13))
    begins = ~blank
    begins[1:] &= blank[:-1]
    # A file may end without a new line.
    inside = edges[:-1][edges[:-1] < len(data)]
    begins[inside] = ~blank[inside]
    starts = np.flatnonzero(begins)
    stops = np.append(np.flatnonzero(blank), len(data))
    ends = np.minimum(stops[np.searchsorted(stops, starts)], edges[np.searchsorted(edges, starts, "right")])
    values = np.empty(len(starts), dtype=np.float64)
    file = np.searchsorted(edges, starts, side="right") - 1
    failure = _native.text_numbers(
        np.ascontiguousarray(data), starts, ends - starts, "f", 8, as_bytes(values)
    )
    if failure is not None:
        word = data[starts[failure[0]] : ends[failure[0]]][:40].tobytes().decode(errors="replace")
        raise DamagedError(f"{word!r} is no number", sample=int(file[failure[0]]))
    # Lines of one file differ in how many ends of lines are before them, and those of two in the file.
    line = np.searchsorted(np.flatnonzero((data == 10) | (data == 13)), starts) + file
    firsts = np.flatnonzero(np.append(True, line[1:] != line[:-1])) if len(line) else np.empty(0, np.int64)
    counts = np.bincount(file[firsts], minlength=len(cells)).astype(np.int64)
    return Lines(counts, values, np.append(firsts, len(values)).astype(np.int64))


class Objects(NamedTuple):
    """Parsed lines. ``rings``: start and end of each outline among ``values``."""

    labels: I64
    boxes: npt.NDArray[np.float32]
    rings: tuple[F64, I64, I64] | None
    keypoints: npt.NDArray[np.float32] | None


def objects_of(lines: Lines, points: tuple[int, int] | None) -> Objects:
    """``points``: how many keypoints an object has, and how many numbers each."""
    sizes, firsts, values = lines.sizes, lines.ends[:-1], lines.values
    owner = np.repeat(np.arange(len(lines.counts)), lines.counts)
    pose = BOX + points[0] * points[1] if points else -1
    outline = np.zeros(len(sizes), np.bool_) if points else (sizes >= 7) & (sizes % 2 == 1)
    wrong = np.flatnonzero((sizes != BOX) & (sizes != pose) & ~outline)
    if len(wrong):
        row = int(wrong[0])
        number = row - int(np.searchsorted(owner, owner[row]))
        wanted = f"{BOX} or {pose}" if points else f"{BOX}, or 7 and more (a class and an outline)"
        raise DamagedError(f"object {number} has {sizes[row]} numbers, not {wanted}", sample=int(owner[row]))
    classes = values[firsts] if len(firsts) else np.empty(0)
    odd = np.flatnonzero((classes != np.floor(classes)) | (classes < 0) | (classes > 2**31))
    if len(odd):
        raise DamagedError(f"{classes[odd[0]]:g} is no class", sample=int(owner[odd[0]]))
    boxes = np.zeros((len(sizes), 4), dtype=np.float64)
    plain = np.flatnonzero(~outline)
    boxes[plain] = values[firsts[plain][:, None] + np.arange(1, BOX)]
    for row in np.flatnonzero(outline).tolist():
        boxes[row] = bounds(values[firsts[row] + 1 : firsts[row] + sizes[row]])
    rings = (values, firsts + 1, firsts + np.where(outline, sizes, 1)) if outline.any() else None
    keypoints = None
    if points:
        keypoints = np.zeros((len(sizes), *points), dtype=np.float32)
        there = np.flatnonzero(sizes == pose)
        found = values[firsts[there][:, None] + np.arange(BOX, pose)]
        keypoints[there] = found.reshape(-1, *points).astype(np.float32)
    return Objects(classes.astype(np.int64), boxes.astype(np.float32), rings, keypoints)


def bounds(ring: Any) -> F64:
    """The box around a ring x, y, x, y, … as middle and size."""
    corners = np.asarray(ring, dtype=np.float64).reshape(-1, 2)
    low, high = corners.min(axis=0), corners.max(axis=0)
    return np.concatenate([(low + high) / 2, high - low])


def joined(rings: list[list[float]]) -> list[float]:
    """Rings as one, each hung onto those before it by a line there and back where both are nearest."""
    whole = np.asarray(rings[0], dtype=np.float64).reshape(-1, 2)
    for ring in rings[1:]:
        other = np.asarray(ring, dtype=np.float64).reshape(-1, 2)
        apart = np.square(whole[:, None] - other[None]).sum(axis=2)
        offset, to = (int(one) for one in np.unravel_index(int(np.argmin(apart)), apart.shape))
        turned = np.roll(other, -to, axis=0)
        whole = np.concatenate([whole[: offset + 1], turned, turned[:1], whole[offset:]])
    result: list[float] = whole.reshape(-1).tolist()
    return result
