"""Parts of a batch that came to the device in different ways."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...loading.images import Request
from ...schema.columns import I64, U8
from .resample import SUPPORT, Sources


class Part(NamedTuple):
    """Some images of a batch on the device, before the kernel."""

    rows: I64
    sources: Sources
    boxes: Any
    flip: Any


class Windows:
    """The parts of raw images that their boxes need, and where they are to lie, one behind the other.

    ``room``: the bytes that all take together.
    """

    def __init__(self, request: Request, rows: I64) -> None:
        assert request.cells.shape is not None
        shape, target = request.cells.shape[rows], request.target
        self.request, self.rows, self.channels = request, rows, int(shape[0, 2])
        self.boxes = request.boxes[rows]
        support = SUPPORT.get(target.filter, 0.0)
        start = request.cells.start[rows]
        plan, self.room = _native.plan_windows(start, shape, self.boxes, support, target.height, target.width)
        self.corner = plan[:2].T
        _, _, self.high, self.wide, self.start, self.line, self.width, self.place = plan

    def gather(self, engine: Any, memory: U8) -> None:
        """Copy them into ``memory``."""
        cells = self.request.cells
        engine.gather(
            cells.bases,
            cells.base[self.rows],
            self.start,
            self.line,
            self.high,
            self.width,
            memory,
            self.place,
        )

    def part(self, whole: Any) -> Part:
        """What they are on the device, where ``whole`` is the memory that they lie in."""
        request, rows = self.request, self.rows
        window = np.concatenate([self.corner, np.stack([self.high, self.wide], axis=1)], axis=1)
        sources = cut(whole, self.place, request.sizes[rows].astype(np.int64), window, self.channels)
        return Part(rows, sources, self.boxes, None if request.flips is None else request.flips[rows])


def cut(whole: Any, place: I64, sizes: I64, window: I64, channels: int) -> Sources:
    """Windows (top, left, rows, columns) of images of these sizes, which lie at places of one tensor."""
    strides = np.empty((len(place), 3), np.int64)
    strides[:, 0], strides[:, 1:] = window[:, 3] * channels, (channels, 1)
    views = _Views(whole, place, window[:, 2:], channels)
    return Sources(place + whole.data_ptr(), strides, sizes, window[:, :2], views, whole)


class _Views:
    """Images that lie in one tensor, as tensors (height, width, channels)."""

    def __init__(self, whole: Any, place: I64, sizes: I64, channels: int) -> None:
        self._whole, self._place, self._sizes, self._channels = whole, place, sizes, channels

    def __getitem__(self, row: int) -> Any:
        shape = (*self._sizes[row].tolist(), self._channels)
        start = int(self._place[row])
        return self._whole[start : start + int(np.prod(shape))].view(shape)


def finished(whole: Any, rows: I64) -> Part:
    """Images (number, height, width, channels) of the right size already."""
    count, height, width, channels = whole.shape
    start = whole.data_ptr() + np.arange(count, dtype=np.int64) * (height * width * channels)
    strides = np.tile(np.array([width * channels, channels, 1], np.int64), (count, 1))
    sizes = np.tile(np.array([height, width], np.int64), (count, 1))
    boxes = np.tile(np.array([0.0, 0.0, width, height]), (count, 1))
    return Part(rows, Sources(start, strides, sizes, np.zeros_like(sizes), whole, whole), boxes, None)


class _Chosen:
    """The views of several parts, in the order of the batch."""

    def __init__(self, parts: list[Part], part: I64, row: I64) -> None:
        self._parts, self._part, self._row = parts, part, row

    def __getitem__(self, at: int) -> Any:
        return self._parts[self._part[at]].sources.views[int(self._row[at])]


def joined(parts: list[Part], count: int) -> Part:
    """Several parts as one that has all rows of the batch, in order."""
    rows = np.concatenate([part.rows for part in parts])
    if len(parts) == 1 and (np.diff(rows) > 0).all():
        return parts[0]
    back = np.argsort(rows)

    def put(values: list[Any]) -> Any:
        return np.ascontiguousarray(np.concatenate(values)[back])

    sources = [part.sources for part in parts]
    flips = [
        np.zeros(len(part.rows), np.bool_) if part.flip is None else np.asarray(part.flip, np.bool_)
        for part in parts
    ]
    which = put([np.full(len(part.rows), number) for number, part in enumerate(parts)])
    inside = put([np.arange(len(part.rows)) for part in parts])
    return Part(
        np.arange(count),
        Sources(
            put([one.start for one in sources]), put([one.strides for one in sources]),
            put([one.sizes for one in sources]), put([one.corner for one in sources]),
            _Chosen(parts, which, inside), [one.kept for one in sources],
        ),
        put([part.boxes for part in parts]),
        put(flips),
    )  # fmt: skip
