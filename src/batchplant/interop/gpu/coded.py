"""JPEGs decoded by both: the CPU reads what their scans say, the device does all arithmetic.

What a device cannot do well is to read a Huffman code, where each symbol begins where the one before ends.
The engine does that, for the blocks that a crop needs, and leaves out all zeros. The device multiplies
coefficients by their steps, transforms the blocks, and makes pixels of the planes (:mod:`.colour`): to the
last bit what libjpeg makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ... import _native
from ...columns import I64, U8
from ...loading.pictures import Request
from .colour import Planes, kernels, shared_by, to_rgb
from .parts import Part, cut
from .resample import SUPPORT

# Bytes of a picture before its blocks, and of a block before its entries.
STEPS, BLOCK = 192, 8
# Entries that the engine may need for a byte of a JPEG; most need two thirds of one.
ENTRIES = 1.5
# As whole numbers of 1/8192: what libjpeg's transform multiplies with.
PASS_BITS, CONST_BITS = 2, 13


class Coded:
    """Rows of a request that are decoded like this. ``sampling`` as device_decodable tells it."""

    def __init__(self, request: Request, rows: I64, sampling: U8) -> None:
        self.request, self.rows, self.shared = request, rows, shared_by(sampling)
        self.boxes, self.shape = request.boxes[rows], request.sizes[rows].astype(np.int64)
        target = request.target
        full = np.concatenate([self.shape, np.full((len(rows), 1), 3)], axis=1).astype(np.int32)
        support = SUPPORT.get(target.filter, 0.0)
        start = np.zeros(len(rows), np.int64)
        plan, _ = _native.plan_windows(start, full, self.boxes, support, target.height, target.width)
        # Top, left, rows, columns.
        self.window = np.ascontiguousarray(plan[:4].T)
        self.table: I64 = np.empty((0, 11), np.int64)

    @property
    def room(self) -> int:
        """Bytes that are enough for what the engine reads; who has no room is decoded otherwise."""
        blocks = ((self.window[:, 2:] + 32) // 8).prod(axis=1) * 3
        sizes = self.request.cells.size[self.rows]
        return int((STEPS + 16 + BLOCK * blocks + 2 * ENTRIES * sizes).sum())

    def read(self, engine: Any, memory: U8) -> int:
        """Have the engine read the scans into ``memory``; how many bytes of it are used.

        ``missing`` are then those that it left to others.
        """
        cells, (top, left, high, wide) = self.request.cells, self.window.T
        part = np.stack([left, top, left + wide, top + high], axis=1)
        self.table, used = engine.code(
            cells.bases, cells.base[self.rows], cells.start[self.rows], cells.size[self.rows], part, memory
        )
        good = self.table[:, 0] >= 0
        self.missing = self.rows[~good]
        for name in ("rows", "shared", "boxes", "shape", "window", "table"):
            setattr(self, name, getattr(self, name)[good])
        return int(used)

    def part(self, whole: Any, upload: Callable[[Any], Any]) -> Part:
        """Pixels on the device, where ``whole`` is what was read. On the current stream."""
        planes, held = self._planes(whole, upload)
        room = self.window[:, 2:].prod(axis=1) * 3
        ends = np.cumsum(room)
        out = torch.empty(int(ends[-1]), dtype=torch.uint8, device=whole.device)
        place = ends - room
        to_rgb(planes, self.window, out, place, upload)
        flips = None if self.request.flips is None else self.request.flips[self.rows]
        made = cut(out, place, self.shape, self.window, 3)
        return Part(self.rows, made._replace(kept=[out, whole, held]), self.boxes, flips)

    def _planes(self, whole: Any, upload: Callable[[Any], Any]) -> tuple[Planes, Any]:
        place, blocks = self.table[:, 0], self.table[:, 1]
        # First column, columns, first row, rows: of the brightness, and of either colour.
        light, colour = self.table[:, 3:7], self.table[:, 7:11]
        size = blocks * 64
        ends = np.cumsum(size)
        samples = torch.empty(int(ends[-1]), dtype=torch.uint8, device=whole.device)
        first = ends - size
        blue = first + 64 * light[:, 1] * light[:, 3]
        places = np.stack([first, blue, blue + 64 * colour[:, 1] * colour[:, 3]], axis=1)
        corner = 8 * np.stack([light[:, [2, 0]], colour[:, [2, 0]]], axis=1)
        lines = 8 * np.stack([light[:, 1], colour[:, 1]], axis=1)
        planes = Planes(samples, places, lines, corner, self.shape, self.shared)
        made = kernels(whole)
        if made is None:
            for row in range(len(place)):
                self._transformed(whole, samples, row, places[row].tolist())
            return planes, None
        counts = np.stack([light[:, 1] * light[:, 3], colour[:, 1] * colour[:, 3]], axis=1)
        facts = np.empty((len(place), 12), np.int64)
        facts[:, 0] = whole.data_ptr() + place
        facts[:, 1] = facts[:, 0] + STEPS
        facts[:, 2] = facts[:, 1] + BLOCK * blocks
        facts[:, 3], facts[:, 4], facts[:, 5:7] = (ends - size) // 64, blocks, counts
        facts[:, 7:9] = lines // 8
        facts[:, 9:] = samples.data_ptr() + places
        held = made.transform(upload(facts), int(ends[-1]) // 64, int(blocks.max()))
        return planes, held

    def _transformed(self, whole: Any, samples: Any, row: int, places: list[int]) -> None:
        """The planes of one picture, by torch."""
        place, blocks, entries = self.table[row, :3].tolist()
        steps = whole[place : place + STEPS].view(3, 64).to(torch.int32)
        at = place + STEPS
        records = whole[at : at + BLOCK * blocks].clone().view(torch.int16).view(blocks, 4).to(torch.int64)
        start, count = (records[:, 0] & 0xFFFF) | (records[:, 1] & 0xFFFF) << 16, records[:, 2] & 0xFFFF
        at += BLOCK * blocks
        listed = whole[at : at + 2 * entries].clone().view(torch.int16).to(torch.int64)
        block = torch.empty(entries, dtype=torch.int64, device=whole.device)
        order = torch.argsort(start, stable=True)
        # Blocks without entries begin where others do; they have nothing to say.
        order = order[count[order] > 0]
        block[:] = torch.repeat_interleave(order, count[order])
        spot, value = listed & 63, listed >> 6
        behind = torch.nonzero(spot == 0)[:, 0]
        value[behind - 1] += value[behind] * 512
        there = spot > 0
        values = torch.zeros((blocks, 64), dtype=torch.int32, device=whole.device)
        values[block[there], spot[there]] = value[there].to(torch.int32)
        values[:, 0] = records[:, 3].to(torch.int32)
        done = 0
        for which, extent in enumerate((self.table[row, 3:7], *[self.table[row, 7:11]] * 2)):
            columns, rows = int(extent[1]), int(extent[3])
            some = values[done : done + rows * columns] * steps[which]
            levels = inverse_dct(some.view(-1, 8, 8)).view(rows, columns, 8, 8).permute(0, 2, 1, 3)
            samples[places[which] : places[which] + levels.numel()] = levels.reshape(-1)
            done += rows * columns


def inverse_dct(blocks: Any) -> Any:
    """Blocks (n, 8, 8) of int32 as levels: libjpeg's accurate transform in whole numbers."""
    down = torch.stack(_pass(blocks.unbind(1), CONST_BITS - PASS_BITS), dim=1)
    across = torch.stack(_pass(down.unbind(2), CONST_BITS + PASS_BITS + 3), dim=2)
    return (across + 128).clamp(0, 255).to(torch.uint8)


def _pass(c: Any, bits: int) -> list[Any]:
    """Eight values of eight, along one side; the same as in jpeg_kernel.py."""
    z1 = (c[2] + c[6]) * 4433
    t2, t3 = z1 - c[6] * 15137, z1 + c[2] * 6270
    t0, t1 = (c[0] + c[4]) << CONST_BITS, (c[0] - c[4]) << CONST_BITS
    even = t0 + t3, t1 + t2, t1 - t2, t0 - t3
    z3, z4 = c[7] + c[3], c[5] + c[1]
    z5 = (z3 + z4) * 9633
    z1, z2 = (c[7] + c[1]) * -7373, (c[5] + c[3]) * -20995
    z3, z4 = z3 * -16069 + z5, z4 * -3196 + z5
    odd = c[1] * 12299 + z1 + z4, c[3] * 25172 + z2 + z3, c[5] * 16819 + z2 + z4, c[7] * 2446 + z1 + z3
    half = 1 << (bits - 1)
    first = [(e + o + half) >> bits for e, o in zip(even, odd, strict=True)]
    return [*first, *reversed([(e - o + half) >> bits for e, o in zip(even, odd, strict=True)])]
