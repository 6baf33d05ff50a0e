"""JPEGs whose pixels a device makes, from their scans or from coefficients that the CPU read.

A device reads a Huffman code slowly, because each symbol begins where the previous one ends: either it reads
the scans of many images in parallel, or the engine reads the blocks that a crop needs and leaves out all
zeros. The device then multiplies coefficients by their quantization steps, transforms the blocks, and
converts the planes to RGB (:mod:`.colour`), bit for bit as libjpeg does.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ... import _native
from ...loading.images import Request
from ...schema.columns import I32, I64, U8
from .colour import Planes, kernels, rgb_parameters, subsampling_factors, to_rgb
from .parts import Part, cut
from .resample import SUPPORT

# Bytes of an image's quantization steps, of a block's record, and of a Huffman code.
STEPS_BYTES, RECORD_BYTES, CODE_BYTES = 192, 8, 288
# Bytes of the kernels' parameters of an image, and of the flag that they answer with.
PARAMETER_BYTES = 8 * (12 + 15 + 20 + 4) + 4
# Entries that the engine may need for a byte of a JPEG.
ENTRIES_PER_BYTE = 1.5
# Fixed-point precision of libjpeg's transform: constants are multiples of 1/8192.
PASS_BITS, CONST_BITS = 2, 13


class Jpegs:
    """JPEGs of a request that a device decodes. ``sampling`` as device_decodable returns it.

    ``reads_scans``: the device also reads their scans.
    """

    reads_scans: bool

    def __init__(self, request: Request, rows: I64, sampling: U8) -> None:
        self.request, self.rows, self.subsampling = request, rows, subsampling_factors(sampling)
        self.boxes, self.shape = request.boxes[rows], request.sizes[rows].astype(np.int64)
        target = request.target
        full = np.concatenate([self.shape, np.full((len(rows), 1), 3)], axis=1).astype(np.int32)
        support = SUPPORT.get(target.filter, 0.0)
        start = np.zeros(len(rows), np.int64)
        plan, _ = _native.plan_windows(start, full, self.boxes, support, target.height, target.width)
        # Top, left, rows, columns.
        self.window = np.ascontiguousarray(plan[:4].T)
        self.table: I64 = np.empty((0, 15), np.int64)
        # Rows that the engine would not read.
        self.missing: I64 = rows[:0]
        # Bytes that the engine filled.
        self.used = 0
        # Nonzero for images whose scan is out of the ordinary, once the device has read them.
        self.flags: I32 | None = None
        # Planes and parameters of kernels, from ``prepare`` to ``decode``.
        self.planes: Planes | None = None
        self.tables: list[Tensor] = []
        # Pixels, once they are made, and the offset of every image in them.
        self.pixels: Tensor | None = None
        self.pixel_offset: I64 = np.zeros(len(rows), np.int64)

    @property
    def room(self) -> int:
        """Bytes that the engine probably needs; it decodes images that find no room itself."""
        raise NotImplementedError

    def read(self, engine: _native.Engine, memory: U8) -> None:
        """Have the engine fill ``memory``; ``missing`` are the rows that it would not read."""
        cells, (top, left, high, wide) = self.request.cells, self.window.T
        box = np.stack([left, top, left + wide, top + high], axis=1)
        self.table, used = engine.code(
            cells.bases, cells.base[self.rows], cells.start[self.rows], cells.size[self.rows], box,
            memory[: max(0, memory.size - PARAMETER_BYTES * len(self.rows) - 8)], scans=self.reads_scans,
        )  # fmt: skip
        was_read = self.table[:, 0] >= 0
        self.missing = self.rows[~was_read]
        if len(self.missing):
            self.select(np.flatnonzero(was_read))
        self.used = -(-int(used) // 8) * 8

    @property
    def needed_bytes(self) -> int:
        """Bytes of the memory that ``decode`` copies."""
        return self.used + PARAMETER_BYTES * len(self.rows)

    def select(self, indices: I64) -> None:
        """Reduce the images to these, in this order."""
        for name in ("rows", "subsampling", "boxes", "shape", "window", "table", "pixel_offset"):
            setattr(self, name, getattr(self, name)[indices])

    def prepare(self, pinned: U8, memory: Tensor) -> int:
        """Allocate planes and pixels, and put parameters of kernels behind the engine's bytes in ``pinned``.

        Return the number of bytes to copy to ``memory``, which is on the device, before ``decode``.
        """
        # First column, columns, first row, rows: of the brightness, and of either colour.
        light, colour = self.table[:, 3:7], self.table[:, 7:11]
        size = 64 * self.table[:, 1]
        samples = torch.empty(int(size.sum()), dtype=torch.uint8, device=memory.device)
        first = np.cumsum(size) - size
        blue = first + 64 * light[:, 1] * light[:, 3]
        offsets = np.stack([first, blue, blue + 64 * colour[:, 1] * colour[:, 3]], axis=1)
        corner = 8 * np.stack([light[:, [2, 0]], colour[:, [2, 0]]], axis=1)
        lines = 8 * np.stack([light[:, 1], colour[:, 1]], axis=1)
        planes = self.planes = Planes(samples, offsets, lines, corner, self.shape, self.subsampling)
        room = self.window[:, 2:].prod(axis=1) * 3
        ends = np.cumsum(room)
        self.pixels = torch.empty(int(ends[-1]), dtype=torch.uint8, device=memory.device)
        self.pixel_offset = ends - room
        if kernels(memory) is None:
            return self.used
        rgb_table = rgb_parameters(planes, self.window, self.pixels, self.pixel_offset)
        parameters = [self._transform_parameters(memory, planes), rgb_table, *self._scan_parameters(memory)]
        self.tables, end = self._append_tables(pinned, memory, parameters)
        if self.reads_scans:
            self.flags = pinned[end : end + 4 * len(self.rows)].view(np.int32)
            self.flags[:] = 0
        return end

    def decode(self, memory: Tensor) -> None:
        """Make pixels, on the current stream, from ``memory``; see ``prepare``."""
        planes, self.planes = self.planes, None
        assert planes is not None
        jpeg_kernel = kernels(memory)
        if jpeg_kernel is None:
            for row in range(len(self.rows)):
                self._transform(memory, planes.memory, row, planes.offset[row].tolist())
            to_rgb(planes, self.window, self.pixels, self.pixel_offset)
            return
        flags = None if self.flags is None else torch.from_numpy(self.flags)
        max_blocks = int(self.table[:, 1].max())
        jpeg_kernel.decode(*self.tables, len(planes.memory), max_blocks, self.window, flags)

    def part(self) -> Part:
        """Return the pixels, for the kernel that crops and resizes."""
        flips = None if self.request.flips is None else self.request.flips[self.rows]
        sources = cut(self.pixels, self.pixel_offset, self.shape, self.window, 3)
        return Part(self.rows, sources, self.boxes, flips)

    def _append_tables(
        self, pinned: U8, memory: Tensor, tables: list[I64 | None]
    ) -> tuple[list[Tensor], int]:
        """Put tables behind the engine's bytes, so that one copy takes all.

        Return them as tensors on the device, and the offset where they end.
        """
        tensors: list[Tensor] = []
        start = self.used
        for table in tables:
            if table is None:
                tensors.append(None)
                continue
            end = start + table.nbytes
            pinned[start:end].view(np.int64).reshape(table.shape)[:] = table
            tensors.append(memory[start:end].view(torch.int64).view(table.shape))
            start = end
        return tensors, start

    def _transform_parameters(self, memory: Tensor, planes: Planes) -> I64:
        """Parameters of the kernels of the transform, a row for each image."""
        offset, blocks = self.table[:, 0], self.table[:, 1]
        light, colour = self.table[:, 3:7], self.table[:, 7:11]
        parameters = np.empty((len(offset), 12), np.int64)
        parameters[:, 0] = memory.data_ptr() + offset
        parameters[:, 1] = parameters[:, 0] + STEPS_BYTES
        parameters[:, 2] = parameters[:, 1] + RECORD_BYTES * blocks
        parameters[:, 3], parameters[:, 4] = planes.offset[:, 0] // 64, blocks
        parameters[:, 5], parameters[:, 6] = light[:, 1] * light[:, 3], colour[:, 1] * colour[:, 3]
        parameters[:, 7], parameters[:, 8] = light[:, 1], colour[:, 1]
        parameters[:, 9:] = planes.memory.data_ptr() + planes.offset
        return parameters

    def _transform(self, memory: Tensor, samples: Tensor, row: int, offsets: list[int]) -> None:
        """Fill the planes of one image in ``samples``, with torch."""
        start, blocks, entry_count = self.table[row, :3].tolist()
        steps = memory[start : start + STEPS_BYTES].view(3, 64).to(torch.int32)
        start += STEPS_BYTES
        end = start + RECORD_BYTES * blocks
        records = memory[start:end].clone().view(torch.int16).view(blocks, 4).to(torch.int64)
        first, count = (records[:, 0] & 0xFFFF) | (records[:, 1] & 0xFFFF) << 16, records[:, 2] & 0xFFFF
        entries = memory[end : end + 2 * entry_count].clone().view(torch.int16).to(torch.int64)
        block = torch.empty(entry_count, dtype=torch.int64, device=memory.device)
        order = torch.argsort(first, stable=True)
        # Blocks without entries begin where others do.
        order = order[count[order] > 0]
        block[:] = torch.repeat_interleave(order, count[order])
        position, value = entries & 63, entries >> 6
        # An entry at position 0 holds the upper bits of the previous one.
        upper = torch.nonzero(position == 0)[:, 0]
        value[upper - 1] += value[upper] * 512
        is_value = position > 0
        values = torch.zeros((blocks, 64), dtype=torch.int32, device=memory.device)
        values[block[is_value], position[is_value]] = value[is_value].to(torch.int32)
        values[:, 0] = records[:, 3].to(torch.int32)
        done = 0
        for plane, extent in enumerate((self.table[row, 3:7], *[self.table[row, 7:11]] * 2)):
            columns, rows = int(extent[1]), int(extent[3])
            products = values[done : done + rows * columns] * steps[plane]
            levels = inverse_dct(products.view(-1, 8, 8)).view(rows, columns, 8, 8).permute(0, 2, 1, 3)
            samples[offsets[plane] : offsets[plane] + levels.numel()] = levels.reshape(-1)
            done += rows * columns

    def _scan_parameters(self, memory: Tensor) -> tuple[I64 | None, I64 | None]:
        """Parameters of the kernel that reads scans, a row for each image, and addresses of Huffman codes."""
        return None, None


class CoefficientJpegs(Jpegs):
    """JPEGs whose scans the engine reads; the device gets their coefficients."""

    reads_scans = False

    @property
    def room(self) -> int:
        high, wide = ((self.window[:, 2:] + 32) // 8).T
        blocks = high * wide * (1 + 2 / self.subsampling.prod(axis=1))
        # A window may hold a larger share of the detail than of the area; and one image most of all entries.
        share = np.sqrt(np.minimum(1, 64 * high * wide / self.shape.prod(axis=1)))
        entries = 2 * ENTRIES_PER_BYTE * self.request.cells.size[self.rows]
        image_bytes = STEPS_BYTES + 16 + RECORD_BYTES * blocks + share * entries + PARAMETER_BYTES
        return int(image_bytes.sum() + entries.max(initial=0))


class ScanJpegs(Jpegs):
    """JPEGs whose scans a CUDA device reads: one image per lane, a thousand images in parallel."""

    reads_scans = True

    @property
    def room(self) -> int:
        overhead = STEPS_BYTES + 4 * CODE_BYTES + 32 + PARAMETER_BYTES
        return int((overhead + self.request.cells.size[self.rows]).sum())

    def read(self, engine: _native.Engine, memory: U8) -> None:
        super().read(engine, memory)
        # Images that take about as long share a program, whose lanes wait for each other.
        work = self.table[:, 2] * self.table[:, 12] / -(-self.shape[:, 0] // (8 * self.subsampling[:, 0]))
        self.select(np.argsort(-work, kind="stable"))

    def _scan_parameters(self, memory: Tensor) -> tuple[I64 | None, I64 | None]:
        offset = self.table[:, 0]
        _, first_images, codes = np.unique(self.table[:, 14], return_index=True, return_inverse=True)
        parameters = np.zeros((len(offset), 20), np.int64)
        parameters[:, 1] = memory.data_ptr() + offset + STEPS_BYTES + 4 * CODE_BYTES
        parameters[:, 2], parameters[:, 3] = self.table[:, 2], codes
        parameters[:, 4] = np.cumsum(self.table[:, 1]) - self.table[:, 1]
        parameters[:, 5:8], parameters[:, 8:10] = self.table[:, 11:14], self.subsampling[:, ::-1]
        parameters[:, 10:18] = self.table[:, 3:11]
        code_offsets = (offset[first_images][:, None] + CODE_BYTES * np.arange(4)).reshape(-1)
        return parameters, memory.data_ptr() + STEPS_BYTES + code_offsets


def inverse_dct(blocks: Tensor) -> Tensor:
    """Transform blocks (n, 8, 8) of int32 to levels: libjpeg's accurate transform in integers."""
    down = torch.stack(_pass(blocks.unbind(1), CONST_BITS - PASS_BITS), dim=1)
    across = torch.stack(_pass(down.unbind(2), CONST_BITS + PASS_BITS + 3), dim=2)
    return (across + 128).clamp(0, 255).to(torch.uint8)


def _pass(c: Tensor, bits: int) -> list[Tensor]:
    """Transform eight values along one axis; the same as in jpeg_kernel.py."""
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
