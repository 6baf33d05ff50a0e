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
from ...loading.images import Request
from ...schema.columns import I32, I64, U8
from .colour import Planes, kernels, rgb_facts, shared_by, to_rgb
from .parts import Part, cut
from .resample import SUPPORT

# Bytes of an image before its blocks, of a block before its entries, and of a Huffman code.
STEPS, BLOCK, CODE = 192, 8, 288
# Bytes of what the kernels are told of an image, and of the flag that they answer with.
TOLD = 8 * (12 + 15 + 20 + 4) + 4
# Entries that the engine may need for a byte of a JPEG.
ENTRIES = 1.5
# As whole numbers of 1/8192: what libjpeg's transform multiplies with.
PASS_BITS, CONST_BITS = 2, 13


class Jpegs:
    """Rows of a request that a device makes pixels of. ``sampling`` as device_decodable tells it.

    ``scans``: the device also reads them.
    """

    scans: bool

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
        self.table: I64 = np.empty((0, 15), np.int64)
        # Bytes that the engine filled.
        self.used = 0
        # Whose scan was out of the ordinary, once the device has read them.
        self.flags: I32 | None = None
        # Where the pixels lie, once they are made.
        self.place: I64 = np.zeros(len(rows), np.int64)
        self.pixels: Any = None

    @property
    def room(self) -> int:
        """Bytes that are enough for what the engine makes; who has no room is decoded otherwise."""
        raise NotImplementedError

    def read(self, engine: Any, memory: U8) -> None:
        """Have the engine fill ``memory``; ``missing`` are then those that it left to others."""
        cells, (top, left, high, wide) = self.request.cells, self.window.T
        part = np.stack([left, top, left + wide, top + high], axis=1)
        self.table, used = engine.code(
            cells.bases, cells.base[self.rows], cells.start[self.rows], cells.size[self.rows], part,
            memory[: max(0, memory.size - TOLD * len(self.rows) - 8)], scans=self.scans,
        )  # fmt: skip
        good = self.table[:, 0] >= 0
        self.missing = self.rows[~good]
        self.keep(np.flatnonzero(good))
        self.used = -(-int(used) // 8) * 8

    @property
    def most(self) -> int:
        """Bytes of the memory that will be used."""
        return self.used + TOLD * len(self.rows)

    def keep(self, some: I64) -> None:
        """Only these of the rows, in this order."""
        for name in ("rows", "shared", "boxes", "shape", "window", "table", "place"):
            setattr(self, name, getattr(self, name)[some])

    def begin(self, memory: U8, whole: Any, copy: Callable[[int], None]) -> None:
        """Make pixels of what the engine made in ``memory``, on the current stream.

        ``whole``: as many bytes on the device; ``copy``: copies the first of them there.
        """
        # First column, columns, first row, rows: of the brightness, and of either colour.
        light, colour = self.table[:, 3:7], self.table[:, 7:11]
        size = 64 * self.table[:, 1]
        samples = torch.empty(int(size.sum()), dtype=torch.uint8, device=whole.device)
        first = np.cumsum(size) - size
        blue = first + 64 * light[:, 1] * light[:, 3]
        places = np.stack([first, blue, blue + 64 * colour[:, 1] * colour[:, 3]], axis=1)
        corner = 8 * np.stack([light[:, [2, 0]], colour[:, [2, 0]]], axis=1)
        lines = 8 * np.stack([light[:, 1], colour[:, 1]], axis=1)
        planes = Planes(samples, places, lines, corner, self.shape, self.shared)
        room = self.window[:, 2:].prod(axis=1) * 3
        ends = np.cumsum(room)
        self.pixels = torch.empty(int(ends[-1]), dtype=torch.uint8, device=whole.device)
        self.place = ends - room
        made = kernels(whole)
        if made is None:
            for row in range(len(self.rows)):
                self._transformed(whole, samples, row, places[row].tolist())
            to_rgb(planes, self.window, self.pixels, self.place)
            return
        facts = self._facts(whole, planes), rgb_facts(planes, self.window, self.pixels, self.place)
        tables, end = self._told(memory, whole, [*facts, *self._scans(whole)])
        flags = None
        if self.scans:
            self.flags = memory[end : end + 4 * len(self.rows)].view(np.int32)
            self.flags[:] = 0
            flags = torch.from_numpy(self.flags)
        copy(end)
        most = int(self.table[:, 1].max())
        made.decode(*tables, int(size.sum()), most, self.window, flags)

    def part(self) -> Part:
        """The pixels, for the kernel that crops and resizes."""
        flips = None if self.request.flips is None else self.request.flips[self.rows]
        made = cut(self.pixels, self.place, self.shape, self.window, 3)
        return Part(self.rows, made, self.boxes, flips)

    def _told(self, memory: U8, whole: Any, tables: list[I64 | None]) -> tuple[list[Any], int]:
        """Tables behind what the engine made, so that one copy takes all; what they are on the device, and
        where they end."""
        there: list[Any] = []
        at = self.used
        for table in tables:
            if table is None:
                there.append(None)
                continue
            end = at + table.nbytes
            memory[at:end].view(np.int64).reshape(table.shape)[:] = table
            there.append(whole[at:end].view(torch.int64).view(table.shape))
            at = end
        return there, at

    def _facts(self, whole: Any, planes: Planes) -> I64:
        """What the kernels of the transform are told of each image."""
        place, blocks, light, colour = (
            self.table[:, 0],
            self.table[:, 1],
            self.table[:, 3:7],
            self.table[:, 7:11],
        )
        facts = np.empty((len(place), 12), np.int64)
        facts[:, 0] = whole.data_ptr() + place
        facts[:, 1] = facts[:, 0] + STEPS
        facts[:, 2] = facts[:, 1] + BLOCK * blocks
        facts[:, 3], facts[:, 4] = planes.place[:, 0] // 64, blocks
        facts[:, 5], facts[:, 6] = light[:, 1] * light[:, 3], colour[:, 1] * colour[:, 3]
        facts[:, 7], facts[:, 8] = light[:, 1], colour[:, 1]
        facts[:, 9:] = planes.memory.data_ptr() + planes.place
        return facts

    def _transformed(self, whole: Any, samples: Any, row: int, places: list[int]) -> None:
        """The planes of one image, by torch."""
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

    def _scans(self, whole: Any) -> tuple[I64 | None, I64 | None]:
        """What the kernel that reads scans is told of each image, and where their Huffman codes lie."""
        return None, None


class Coded(Jpegs):
    """JPEGs whose scans the engine reads."""

    scans = False

    @property
    def room(self) -> int:
        high, wide = ((self.window[:, 2:] + 32) // 8).T
        blocks = high * wide * (1 + 2 / self.shared.prod(axis=1))
        # A window may hold more of the detail than of the area; and one image most of it.
        share = np.sqrt(np.minimum(1, 64 * high * wide / self.shape.prod(axis=1)))
        entries = 2 * ENTRIES * self.request.cells.size[self.rows]
        each = STEPS + 16 + BLOCK * blocks + share * entries + TOLD
        return int(each.sum() + entries.max(initial=0))


class Scans(Jpegs):
    """JPEGs whose scans a CUDA device reads: one image a lane, a thousand images side by side."""

    scans = True

    @property
    def room(self) -> int:
        return int((STEPS + 4 * CODE + 32 + TOLD + self.request.cells.size[self.rows]).sum())

    def read(self, engine: Any, memory: U8) -> None:
        super().read(engine, memory)
        # Those that take about as long lie side by side.
        work = self.table[:, 2] * self.table[:, 12] / -(-self.shape[:, 0] // (8 * self.shared[:, 0]))
        self.keep(np.argsort(-work, kind="stable"))

    def _scans(self, whole: Any) -> tuple[I64 | None, I64 | None]:
        place = self.table[:, 0]
        _, which, codes = np.unique(self.table[:, 14], return_index=True, return_inverse=True)
        facts = np.zeros((len(place), 20), np.int64)
        facts[:, 1] = whole.data_ptr() + place + STEPS + 4 * CODE
        facts[:, 2], facts[:, 3] = self.table[:, 2], codes
        facts[:, 4] = np.cumsum(self.table[:, 1]) - self.table[:, 1]
        facts[:, 5:8], facts[:, 8:10] = self.table[:, 11:14], self.shared[:, ::-1]
        facts[:, 10:18] = self.table[:, 3:11]
        lie = whole.data_ptr() + STEPS + (place[which][:, None] + CODE * np.arange(4)).reshape(-1)
        return facts, lie


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
