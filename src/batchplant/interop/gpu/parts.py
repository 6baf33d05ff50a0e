"""Parts of a batch, which come to the device by different routes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ... import _native
from ...loading.images import Request
from ...ops.base import F64, Tensor
from ...schema.columns import I64, U8, AnyArray, Flags
from .resample import SUPPORT, Sources


class Part(NamedTuple):
    """Some images of a batch on the device, before the kernel crops and resizes them."""

    rows: I64
    sources: Sources
    boxes: F64
    flip: Flags | None


class RawWindows:
    """The parts of raw images that their boxes need, and their places in one buffer.

    ``room``: bytes of that buffer.
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
        _, _, self.high, self.wide, self.start, self.line, self.width, self.offset = plan

    def gather(self, engine: _native.Engine, memory: U8) -> None:
        """Copy the windows into ``memory``."""
        cells = self.request.cells
        engine.gather(
            cells.bases,
            cells.base[self.rows],
            self.start,
            self.line,
            self.high,
            self.width,
            memory,
            self.offset,
        )

    def part(self, memory: Tensor) -> Part:
        """Return the windows as a part; ``memory`` on the device holds what ``gather`` copied."""
        request, rows = self.request, self.rows
        window = np.concatenate([self.corner, np.stack([self.high, self.wide], axis=1)], axis=1)
        sources = cut(memory, self.offset, request.sizes[rows].astype(np.int64), window, self.channels)
        return Part(rows, sources, self.boxes, None if request.flips is None else request.flips[rows])


def cut(memory: Tensor, offset: I64, sizes: I64, window: I64, channels: int) -> Sources:
    """Windows (top, left, rows, columns) of images of these sizes, at these offsets of one tensor."""
    strides = np.empty((len(offset), 3), np.int64)
    strides[:, 0], strides[:, 1:] = window[:, 3] * channels, (channels, 1)
    views = _Views(memory, offset, window[:, 2:], channels)
    return Sources(offset + memory.data_ptr(), strides, sizes, window[:, :2], views, memory)


class _Views:
    """Images in one tensor, as tensors (height, width, channels)."""

    def __init__(self, memory: Tensor, offset: I64, sizes: I64, channels: int) -> None:
        self._memory, self._offset, self._sizes, self._channels = memory, offset, sizes, channels

    def __getitem__(self, row: int) -> Tensor:
        shape = (*self._sizes[row].tolist(), self._channels)
        start = int(self._offset[row])
        return self._memory[start : start + int(np.prod(shape))].view(shape)


def finished_part(pixels: Tensor, rows: I64) -> Part:
    """Images (number, height, width, channels) that have their final size already."""
    count, height, width, channels = pixels.shape
    start = pixels.data_ptr() + np.arange(count, dtype=np.int64) * (height * width * channels)
    strides = np.tile(np.array([width * channels, channels, 1], np.int64), (count, 1))
    sizes = np.tile(np.array([height, width], np.int64), (count, 1))
    boxes = np.tile(np.array([0.0, 0.0, width, height]), (count, 1))
    return Part(rows, Sources(start, strides, sizes, np.zeros_like(sizes), pixels, pixels), boxes, None)


class _JoinedViews:
    """Views of several parts, in the order of the batch."""

    def __init__(self, parts: list[Part], part: I64, row: I64) -> None:
        self._parts, self._part, self._row = parts, part, row

    def __getitem__(self, row: int) -> Tensor:
        return self._parts[self._part[row]].sources.views[int(self._row[row])]


def join_parts(parts: list[Part], count: int) -> Part:
    """Join parts to one that has all rows of the batch, in order."""
    rows = np.concatenate([part.rows for part in parts])
    if len(parts) == 1 and (np.diff(rows) > 0).all():
        return parts[0]
    order = np.argsort(rows)

    def join(values: list[AnyArray]) -> AnyArray:
        return np.ascontiguousarray(np.concatenate(values)[order])

    sources = [part.sources for part in parts]
    flips = [
        np.zeros(len(part.rows), np.bool_) if part.flip is None else np.asarray(part.flip, np.bool_)
        for part in parts
    ]
    part_of_row = join([np.full(len(part.rows), number) for number, part in enumerate(parts)])
    row_in_part = join([np.arange(len(part.rows)) for part in parts])
    return Part(
        np.arange(count),
        Sources(
            join([source.start for source in sources]),
            join([source.strides for source in sources]),
            join([source.sizes for source in sources]),
            join([source.corner for source in sources]),
            _JoinedViews(parts, part_of_row, row_in_part),
            [source.memory for source in sources],
        ),
        join([part.boxes for part in parts]),
        join(flips),
    )
