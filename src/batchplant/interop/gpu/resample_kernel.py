"""The Triton kernels of :mod:`batchplant.interop.gpu.resample`."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import threading

import torch
import triton
import triton.language as tl
from torch import Tensor

FILTERS = {"area": 0, "bilinear": 1, "bicubic": 2, "nearest": 3}
# Result pixels of one program.
TILE_ROWS, TILE_COLUMNS = 4, 32
TAPS_PER_PROGRAM = 256
# Triton compiles a kernel at its first launch, and not safely in several threads.
LAUNCH_LOCK = threading.Lock()


@triton.jit
def _curve(x, filter: tl.constexpr):
    """Weight of a source pixel at this distance, as in Pillow."""
    if filter == 1:
        part = tl.maximum(1.0 - x, 0.0)
    else:
        far = tl.where(x < 2.0, (((x - 5.0) * x + 8.0) * x - 4.0) * -0.5, 0.0)
        part = tl.where(x < 1.0, (1.5 * x - 2.5) * x * x + 1.0, far)
    return part


@triton.jit(do_not_specialize=["images", "high", "wide", "height", "width"])
def _taps(
    table, row_first, row_weight, column_first, column_weight, images, high, wide, height, width,
    filter: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """Source pixels of a result pixel and their weights; see resample.taps for the rules.

    The second index of a program is the side: 0 for rows, 1 for columns.
    """
    side = tl.program_id(1)
    result = tl.where(side == 0, height, width)
    count = tl.where(side == 0, high, wide)
    first = row_first if side == 0 else column_first
    weight = row_weight if side == 0 else column_weight
    total = images * result
    index = tl.program_id(0) * block + tl.arange(0, block)
    inside = index < total
    n = index // result
    i = (index % result).to(tl.float64)
    parameters = table + n.to(tl.int64) * 11
    low = tl.load(parameters + 1 - side, mask=inside, other=0).to(tl.float64, bitcast=True)
    end_of = tl.load(parameters + 3 - side, mask=inside, other=0).to(tl.float64, bitcast=True)
    source = tl.load(parameters + 4 + side, mask=inside, other=1).to(tl.float64)
    broad = tl.load(parameters + 2, mask=inside, other=0).to(tl.float64, bitcast=True)
    broad = broad - tl.load(parameters, mask=inside, other=0).to(tl.float64, bitcast=True)
    tall = tl.load(parameters + 3, mask=inside, other=0).to(tl.float64, bitcast=True)
    tall = tall - tl.load(parameters + 1, mask=inside, other=0).to(tl.float64, bitcast=True)
    length = tl.where(inside, end_of - low, 1.0)
    weights = weight + index.to(tl.int64) * count
    if filter == 0:
        linear = (broad < width) | (tall < height)
        inverse = result.to(tl.float64) / length
        scale = 1.0 / inverse
        begin = low + i * scale
        end = tl.minimum(begin + scale, end_of)
        start = tl.floor(begin)
        start += ((start + 1.0 - begin <= 1e-3) & (start + 1.0 < tl.ceil(end_of))).to(tl.float64)
        # Two neighbours, where a side grows.
        origin = tl.floor(low)
        shift = low - origin
        among = tl.ceil(end_of) - origin
        near = tl.floor(shift + i * scale)
        share = ((i + 1.0) - (near + 1.0 - shift) * inverse).to(tl.float32)
        share = tl.where(share <= 0.0, 0.0, share - tl.floor(share))
        # Rounded as finely as the engine does, halves to even.
        share = (share * 2048.0 + 12582912.0 - 12582912.0) / 2048.0
        over = near + 1.0 >= among
        near = origin + tl.where(over, among - 1.0, near)
        share = tl.where(over, 0.0, share)
        tl.store(first + index, tl.where(linear, near, start).to(tl.int32), mask=inside)
        total_weight = tl.zeros((block,), dtype=tl.float64)
        for k in range(count):
            pixel = start + k
            part = tl.maximum(tl.minimum(pixel + 1.0, end) - tl.maximum(pixel, begin), 0.0)
            total_weight += tl.where((k > 0) & (end - pixel <= 1e-3), 0.0, part)
        for k in range(count):
            pixel = start + k
            part = tl.maximum(tl.minimum(pixel + 1.0, end) - tl.maximum(pixel, begin), 0.0)
            part = tl.where((k > 0) & (end - pixel <= 1e-3), 0.0, part) / total_weight
            pair = tl.where(k == 0, 1.0 - share, tl.where(k == 1, share, 0.0))
            tl.store(weights + k, tl.where(linear, pair, part.to(tl.float32)), mask=inside)
    else:
        scale = length / result.to(tl.float64)
        stretched = tl.maximum(scale, 1.0)
        support = stretched if filter == 1 else 2.0 * stretched
        center = low + (i + 0.5) * scale
        start = tl.minimum(tl.floor(tl.maximum(center - support + 0.5, 0.0)), source - 1.0)
        last = tl.minimum(tl.floor(tl.maximum(center + support + 0.5, 0.0)), source)
        last = tl.maximum(last, start + 1.0)
        tl.store(first + index, start.to(tl.int32), mask=inside)
        total_weight = tl.zeros((block,), dtype=tl.float64)
        for k in range(count):
            part = _curve(tl.abs((start + k - center + 0.5) / stretched), filter)
            total_weight += tl.where(start + k < last, part, 0.0)
        for k in range(count):
            part = _curve(tl.abs((start + k - center + 0.5) / stretched), filter)
            part = tl.where(start + k < last, part, 0.0) / total_weight
            tl.store(weights + k, part.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["high", "wide", "height", "width"])
def _resample(
    table, row_first, row_weight, column_first, column_weight, out, scale, offset,
    high, wide, height, width, out_n, out_y, out_x, out_c,
    channels: tl.constexpr, normal: tl.constexpr, filter: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr,
):  # fmt: skip
    n = tl.program_id(0)
    parameters = table + n * 11
    source = tl.load(parameters + 6).to(tl.pointer_type(tl.uint8))
    row_stride = tl.load(parameters + 7).to(tl.int32)
    pixel_stride = tl.load(parameters + 8).to(tl.int32)
    channel_stride = tl.load(parameters + 9).to(tl.int32)
    flip = tl.load(parameters + 10)
    y = tl.program_id(1) * rows + tl.arange(0, rows)[:, None]
    x = tl.program_id(2) * columns + tl.arange(0, columns)[None, :]
    inside_y = y < height
    inside_x = x < width
    inside = inside_y & inside_x
    from_x = tl.where(flip != 0, width - 1 - x, x)
    row_at = n * height + y
    column_at = n * width + from_x
    first_y = tl.load(row_first + row_at, mask=inside_y, other=0)
    first_x = tl.load(column_first + column_at, mask=inside_x, other=0)
    taps_y = high
    taps_x = wide
    if filter == 0:
        box_x = tl.load(parameters + 2).to(tl.float64, bitcast=True) - tl.load(parameters).to(
            tl.float64, bitcast=True
        )
        box_y = tl.load(parameters + 3).to(tl.float64, bitcast=True) - tl.load(parameters + 1).to(
            tl.float64, bitcast=True
        )
        if (box_x < width) | (box_y < height):
            taps_y = 2
            taps_x = 2
    red = tl.zeros((rows, columns), dtype=tl.float32)
    green = tl.zeros((rows, columns), dtype=tl.float32)
    blue = tl.zeros((rows, columns), dtype=tl.float32)
    for i in range(taps_y):
        weight_y = tl.load(row_weight + row_at * high + i, mask=inside_y, other=0.0)
        line = (first_y + i) * row_stride
        for j in range(taps_x):
            weight_x = tl.load(column_weight + column_at * wide + j, mask=inside_x, other=0.0)
            weight = weight_y * weight_x
            # Taps of weight zero may lie outside of the image.
            counts = inside & (weight != 0.0)
            pixel = line + (first_x + j) * pixel_stride
            red += weight * tl.load(source + pixel, mask=counts, other=0).to(tl.float32)
            if channels > 1:
                green += weight * tl.load(source + pixel + channel_stride, mask=counts, other=0).to(
                    tl.float32
                )
                blue += weight * tl.load(source + pixel + 2 * channel_stride, mask=counts, other=0).to(
                    tl.float32
                )
    out_pixel = out + n.to(tl.int64) * out_n + y * out_y + x * out_x
    for c in tl.static_range(channels):
        level = red if c == 0 else (green if c == 1 else blue)
        level = tl.minimum(tl.maximum(tl.floor(level + 0.5), 0.0), 255.0)
        if normal:
            level = level * tl.load(scale + c) + tl.load(offset + c)
        tl.store(out_pixel + c * out_c, level.to(out.dtype.element_ty), mask=inside)


def taps(
    table: Tensor, size: tuple[int, int], counts: tuple[int, int], filter: str
) -> list[tuple[Tensor, Tensor]]:
    """Return resample.taps for rows and for columns, from the table that resample.resample makes."""
    tables = []
    for result, count in zip(size, counts, strict=True):
        tables.append(torch.empty((len(table), result), dtype=torch.int32, device=table.device))
        tables.append(torch.empty((len(table), result, count), dtype=torch.float32, device=table.device))
    with LAUNCH_LOCK, torch.cuda.device(table.device):
        # Fused multiplications would round in other places than the engine does.
        _taps[(triton.cdiv(len(table) * max(size), TAPS_PER_PROGRAM), 2)](
            table, *tables, len(table), *counts, *size,
            filter=FILTERS[filter], block=TAPS_PER_PROGRAM, enable_fp_fusion=False,
        )  # fmt: skip
    return [(tables[0], tables[1]), (tables[2], tables[3])]


def resample(
    table: Tensor, rows: tuple[Tensor, Tensor], columns: tuple[Tensor, Tensor], out: Tensor,
    strides: tuple[int, ...], size: tuple[int, int], filter: str, scale: Tensor | None, offset: Tensor | None,
) -> None:  # fmt: skip
    """Resample a batch. resample.resample makes ``table``; ``strides`` of (n, y, x, channel) in ``out``."""
    height, width = size
    channels = out.numel() // max(1, len(table) * height * width)
    grid = (len(table), triton.cdiv(height, TILE_ROWS), triton.cdiv(width, TILE_COLUMNS))
    scale_or_table = table if scale is None else scale
    with LAUNCH_LOCK, torch.cuda.device(out.device):
        _resample[grid](
            table, rows[0], rows[1], columns[0], columns[1], out, scale_or_table,
            scale_or_table if scale is None else offset,
            rows[1].shape[-1], columns[1].shape[-1], height, width, *strides,
            channels=channels, normal=scale is not None, filter=FILTERS[filter],
            rows=TILE_ROWS, columns=TILE_COLUMNS, num_warps=1,
        )  # fmt: skip
