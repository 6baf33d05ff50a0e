"""The Triton kernels of :mod:`batchplant.interop.gpu.jpeg` and :mod:`batchplant.interop.gpu.colour`."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import functools

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...schema.columns import I64
from . import scan_kernel
from .resample_kernel import LAUNCH_LOCK

# Pixels of a row that one program makes, and rows or columns of blocks that one program transforms.
PIXELS_PER_PROGRAM, LANES = 256, 128
# The same as in colour.py.
MIN_BLENDED_COLUMNS = 3
# Larger coefficients make libjpeg's transform overflow 16 bits.
MAX_COEFFICIENT = 8191


@triton.jit
def _colour_at(plane, line, near_y, near_x, other_y, other_x, second, down, inside):
    """Blend a colour for each pixel as libjpeg does; see colour._blend_colour."""
    above = tl.load(plane + near_y * line + near_x, mask=inside, other=0).to(tl.int32)
    beside = tl.load(plane + near_y * line + other_x, mask=inside, other=0).to(tl.int32)
    if down == 2:
        above = 3 * above + tl.load(plane + other_y * line + near_x, mask=inside, other=0).to(tl.int32)
        beside = 3 * beside + tl.load(plane + other_y * line + other_x, mask=inside, other=0).to(tl.int32)
        blended = (3 * above + beside + 8 - second) >> 4
    else:
        blended = (3 * above + beside + 1 + second) >> 2
    return blended - 128


@triton.jit
def _rgb(table, columns: tl.constexpr, min_columns: tl.constexpr):
    """Convert planes to RGB: a program for each image, row and run of columns."""
    parameters = table + tl.program_id(0) * 15
    luma = tl.load(parameters).to(tl.pointer_type(tl.uint8))
    blues = tl.load(parameters + 1).to(tl.pointer_type(tl.uint8))
    reds = tl.load(parameters + 2).to(tl.pointer_type(tl.uint8))
    out = tl.load(parameters + 3).to(tl.pointer_type(tl.uint8))
    luma_line = tl.load(parameters + 4).to(tl.int32)
    line = tl.load(parameters + 5).to(tl.int32)
    out_line = tl.load(parameters + 6).to(tl.int32)
    height = tl.load(parameters + 7).to(tl.int32)
    width = tl.load(parameters + 8).to(tl.int32)
    down = tl.load(parameters + 9).to(tl.int32)
    across = tl.load(parameters + 10).to(tl.int32)
    x = tl.program_id(2) * columns + tl.arange(0, columns)
    y = tl.program_id(1) + tl.zeros((columns,), dtype=tl.int32)
    inside = (x < tl.load(parameters + 14).to(tl.int32)) & (y < tl.load(parameters + 13).to(tl.int32))
    y = y + tl.load(parameters + 11).to(tl.int32)
    x = x + tl.load(parameters + 12).to(tl.int32)
    high = (height + down - 1) // down
    wide = (width + across - 1) // across
    near_y = y // down
    near_x = x // across
    blend = (wide >= min_columns).to(tl.int32)
    other_y = near_y + (2 * (y % 2) - 1) * (down - 1) * blend
    other_x = near_x + (2 * (x % 2) - 1) * (across - 1) * blend
    other_y = tl.minimum(tl.maximum(other_y, 0), high - 1)
    other_x = tl.minimum(tl.maximum(other_x, 0), wide - 1)
    second = x % 2
    level = tl.load(luma + y * luma_line + x, mask=inside, other=0).to(tl.int32)
    blue = _colour_at(blues, line, near_y, near_x, other_y, other_x, second, down, inside)
    red = _colour_at(reds, line, near_y, near_x, other_y, other_x, second, down, inside)
    pixel = out + y * out_line + x * 3
    for c in tl.static_range(3):
        if c == 0:
            value = level + ((91881 * red + 32768) >> 16)
        elif c == 1:
            value = level + ((-22554 * blue - 46802 * red + 32768) >> 16)
        else:
            value = level + ((116130 * blue + 32768) >> 16)
        tl.store(pixel + c, tl.minimum(tl.maximum(value, 0), 255).to(tl.uint8), mask=inside)


@triton.jit
def _scatter(table, values, blocks: tl.constexpr, lanes: tl.constexpr):
    """Scatter entries to the coefficients of their blocks; Engine.code documents their layout."""
    parameters = table + tl.program_id(0) * 12
    records = tl.load(parameters + 1).to(tl.pointer_type(tl.int64))
    entries = tl.load(parameters + 2).to(tl.pointer_type(tl.int16))
    block = tl.program_id(1) * blocks + tl.arange(0, blocks)[:, None]
    inside = block < tl.load(parameters + 4).to(tl.int32)
    lane = tl.arange(0, lanes)[None, :]
    record = tl.load(records + block, mask=inside, other=0)
    count = ((record >> 32) & 0xFFFF).to(tl.int32)
    block_entries = entries + (record & 0xFFFFFFFF)
    first = values + (tl.load(parameters + 3) + block) * 64
    tl.store(
        first + 0 * lane, (record >> 48).to(tl.int16) + (0 * lane).to(tl.int16), mask=inside & (lane == 0)
    )
    # Most blocks have few entries.
    for done in range(0, tl.max(tl.max(count, axis=1), axis=0), lanes):
        index = done + lane
        entry = tl.load(block_entries + index, mask=index < count, other=0).to(tl.int32)
        # An entry at position 0 holds the upper bits of the previous one.
        following = tl.load(block_entries + index + 1, mask=index + 1 < count, other=1).to(tl.int32)
        position = entry & 63
        value = (entry >> 6) + tl.where((following & 63) == 0, (following >> 6) * 512, 0)
        tl.store(first + position, value.to(tl.int16), mask=(index < count) & (position > 0))


@triton.jit
def _odd_even(c0, c1, c2, c3, c4, c5, c6, c7):
    """Sums and differences of jpeg._pass, before they are rounded."""
    z1 = (c2 + c6) * 4433
    t2 = z1 - c6 * 15137
    t3 = z1 + c2 * 6270
    t0 = (c0 + c4) << 13
    t1 = (c0 - c4) << 13
    z3 = c7 + c3
    z4 = c5 + c1
    z5 = (z3 + z4) * 9633
    z1 = (c7 + c1) * -7373
    z2 = (c5 + c3) * -20995
    z3 = z3 * -16069 + z5
    z4 = z4 * -3196 + z5
    o0 = c1 * 12299 + z1 + z4
    o1 = c3 * 25172 + z2 + z3
    o2 = c5 * 16819 + z2 + z4
    o3 = c7 * 2446 + z1 + z3
    return t0 + t3, t1 + t2, t1 - t2, t0 - t3, o0, o1, o2, o3


@triton.jit
def _product(block, order, steps, position, inside):
    """Multiply a coefficient by its step."""
    value = tl.load(block + tl.load(order + position).to(tl.int32), mask=inside, other=0).to(tl.int32)
    return value * tl.load(steps + position, mask=inside, other=0).to(tl.int32)


@triton.jit
def _largest(a, b, c, d, e, f, g, h):
    low = tl.minimum(
        tl.minimum(tl.minimum(a, b), tl.minimum(c, d)), tl.minimum(tl.minimum(e, f), tl.minimum(g, h))
    )
    high = tl.maximum(
        tl.maximum(tl.maximum(a, b), tl.maximum(c, d)), tl.maximum(tl.maximum(e, f), tl.maximum(g, h))
    )
    return tl.maximum(high, -low)


@triton.jit
def _columns(
    table, values, order, between, flags, max_value: tl.constexpr, lanes: tl.constexpr, flagged: tl.constexpr
):
    """Transform columns, a lane for each. Flag images whose values libjpeg cannot represent."""
    parameters = table + tl.program_id(0) * 12
    light = tl.load(parameters + 5).to(tl.int32)
    colour = tl.load(parameters + 6).to(tl.int32)
    index = tl.program_id(1) * lanes + tl.arange(0, lanes)
    block = index // 8
    inside = block < tl.load(parameters + 4).to(tl.int32)
    first = (tl.load(parameters + 3) + block) * 64
    coefficients = values + first
    steps = tl.load(parameters).to(tl.pointer_type(tl.uint8))
    steps = steps + 64 * ((block >= light).to(tl.int32) + (block >= light + colour).to(tl.int32))
    c0 = _product(coefficients, order, steps, 0 + index % 8, inside)
    c1 = _product(coefficients, order, steps, 8 + index % 8, inside)
    c2 = _product(coefficients, order, steps, 16 + index % 8, inside)
    c3 = _product(coefficients, order, steps, 24 + index % 8, inside)
    c4 = _product(coefficients, order, steps, 32 + index % 8, inside)
    c5 = _product(coefficients, order, steps, 40 + index % 8, inside)
    c6 = _product(coefficients, order, steps, 48 + index % 8, inside)
    c7 = _product(coefficients, order, steps, 56 + index % 8, inside)
    e0, e1, e2, e3, o0, o1, o2, o3 = _odd_even(c0, c1, c2, c3, c4, c5, c6, c7)
    r0 = (e0 + o0 + 1024) >> 11
    r1 = (e1 + o1 + 1024) >> 11
    r2 = (e2 + o2 + 1024) >> 11
    r3 = (e3 + o3 + 1024) >> 11
    r4 = (e3 - o3 + 1024) >> 11
    r5 = (e2 - o2 + 1024) >> 11
    r6 = (e1 - o1 + 1024) >> 11
    r7 = (e0 - o0 + 1024) >> 11
    out = between + first + index % 8
    tl.store(out, r0.to(tl.int16), mask=inside)
    tl.store(out + 8, r1.to(tl.int16), mask=inside)
    tl.store(out + 16, r2.to(tl.int16), mask=inside)
    tl.store(out + 24, r3.to(tl.int16), mask=inside)
    tl.store(out + 32, r4.to(tl.int16), mask=inside)
    tl.store(out + 40, r5.to(tl.int16), mask=inside)
    tl.store(out + 48, r6.to(tl.int16), mask=inside)
    tl.store(out + 56, r7.to(tl.int16), mask=inside)
    if flagged:
        largest = _largest(c0, c1, c2, c3, c4, c5, c6, c7)
        largest = tl.maximum(largest, _largest(r0, r1, r2, r3, r4, r5, r6, r7))
        tl.store(flags + tl.program_id(0) + 0 * index, 1 + 0 * index, mask=inside & (largest > max_value))


@triton.jit
def _level(sum):
    return tl.minimum(tl.maximum(((sum + 131072) >> 18) + 128, 0), 255).to(tl.uint8)


@triton.jit
def _rows(table, between, lanes: tl.constexpr):
    """Transform rows, a lane for each, into the planes of the images."""
    parameters = table + tl.program_id(0) * 12
    light = tl.load(parameters + 5).to(tl.int32)
    colour = tl.load(parameters + 6).to(tl.int32)
    index = tl.program_id(1) * lanes + tl.arange(0, lanes)
    block = index // 8
    row = index % 8
    inside = block < tl.load(parameters + 4).to(tl.int32)
    values = between + (tl.load(parameters + 3) + block) * 64 + row * 8
    c0 = tl.load(values, mask=inside, other=0).to(tl.int32)
    c1 = tl.load(values + 1, mask=inside, other=0).to(tl.int32)
    c2 = tl.load(values + 2, mask=inside, other=0).to(tl.int32)
    c3 = tl.load(values + 3, mask=inside, other=0).to(tl.int32)
    c4 = tl.load(values + 4, mask=inside, other=0).to(tl.int32)
    c5 = tl.load(values + 5, mask=inside, other=0).to(tl.int32)
    c6 = tl.load(values + 6, mask=inside, other=0).to(tl.int32)
    c7 = tl.load(values + 7, mask=inside, other=0).to(tl.int32)
    e0, e1, e2, e3, o0, o1, o2, o3 = _odd_even(c0, c1, c2, c3, c4, c5, c6, c7)
    in_light = block < light
    in_blue = block < light + colour
    across = tl.where(in_light, tl.load(parameters + 7), tl.load(parameters + 8)).to(tl.int32)
    number = tl.where(in_light, block, tl.where(in_blue, block - light, block - light - colour))
    plane = tl.where(
        in_light,
        tl.load(parameters + 9),
        tl.where(in_blue, tl.load(parameters + 10), tl.load(parameters + 11)),
    )
    line = across * 8
    out = plane + ((number // across) * 8 + row) * line + (number % across) * 8
    out = out.to(tl.pointer_type(tl.uint8))
    tl.store(out, _level(e0 + o0), mask=inside)
    tl.store(out + 1, _level(e1 + o1), mask=inside)
    tl.store(out + 2, _level(e2 + o2), mask=inside)
    tl.store(out + 3, _level(e3 + o3), mask=inside)
    tl.store(out + 4, _level(e3 - o3), mask=inside)
    tl.store(out + 5, _level(e2 - o2), mask=inside)
    tl.store(out + 6, _level(e1 - o1), mask=inside)
    tl.store(out + 7, _level(e0 - o0), mask=inside)


def decode(
    table: Tensor,
    colours: Tensor | None,
    scans: Tensor | None,
    codes: Tensor,
    total: int,
    max_blocks: int,
    window: I64,
    flags: Tensor,
) -> None:
    """Make pixels of JPEGs on the current stream. jpeg.py makes the tables.

    ``scans``: None if the engine has read the scans. ``total``: bytes of the planes; ``max_blocks``: blocks
    of the largest image. ``flags``: pinned memory, where images whose scan is out of the ordinary get a 1.
    """
    values = torch.zeros(total, dtype=torch.int16, device=table.device)
    between = torch.empty(total, dtype=torch.int16, device=table.device)
    images, lines = len(table), (len(table), triton.cdiv(max_blocks * 8, LANES))
    order = _order(table.device, scans is not None)
    with LAUNCH_LOCK, torch.cuda.device(table.device):
        if scans is None:
            _scatter[(images, triton.cdiv(max_blocks, 8))](table, values, blocks=8, lanes=16, num_warps=1)
        else:
            scan_kernel.read(scans, codes, values, flags)
        _columns[lines](
            table, values, order, between, table if flags is None else flags,
            max_value=MAX_COEFFICIENT, lanes=LANES, flagged=flags is not None,
        )  # fmt: skip
        _rows[lines](table, between, lanes=LANES)
        grid = (images, int(window[:, 2].max()), triton.cdiv(int(window[:, 3].max()), PIXELS_PER_PROGRAM))
        _rgb[grid](colours, columns=PIXELS_PER_PROGRAM, min_columns=MIN_BLENDED_COLUMNS, num_warps=2)


@functools.cache
def _order(device: torch.device, scanned: bool) -> Tensor:
    """Index of every coefficient of a block: row by row, or in the zigzag order of a scan."""
    order = list(range(64))
    if scanned:
        diagonal = [i // 8 + i % 8 for i in order]
        zigzag = sorted(order, key=lambda i: (diagonal[i], i // 8 if diagonal[i] % 2 else i % 8))
        order = [zigzag.index(i) for i in order]
    return torch.tensor(order, dtype=torch.uint8, device=device)
