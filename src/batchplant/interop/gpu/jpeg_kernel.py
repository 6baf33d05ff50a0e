"""The Triton kernels of :mod:`batchplant.interop.gpu.coded` and :mod:`batchplant.interop.gpu.colour`."""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

from ...schema.columns import I64
from . import scan_kernel
from .kernel import LAUNCHING

# Pixels of a row that one program makes, and rows or columns of blocks that one transforms.
LINE, LANES = 256, 128
# As colour.py has it.
LEAST_BLENDED = 3
# Beyond this libjpeg's transform leaves 16 bits.
MOST = 8191


@triton.jit
def _colour_at(plane, line, near_y, near_x, other_y, other_x, second, down, inside):
    """A colour for each pixel, blended as libjpeg does; see colour._blended."""
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
def _rgb(table, columns: tl.constexpr, least: tl.constexpr):
    facts = table + tl.program_id(0) * 15
    luma = tl.load(facts).to(tl.pointer_type(tl.uint8))
    blues = tl.load(facts + 1).to(tl.pointer_type(tl.uint8))
    reds = tl.load(facts + 2).to(tl.pointer_type(tl.uint8))
    out = tl.load(facts + 3).to(tl.pointer_type(tl.uint8))
    luma_line = tl.load(facts + 4).to(tl.int32)
    line = tl.load(facts + 5).to(tl.int32)
    out_line = tl.load(facts + 6).to(tl.int32)
    height = tl.load(facts + 7).to(tl.int32)
    width = tl.load(facts + 8).to(tl.int32)
    down = tl.load(facts + 9).to(tl.int32)
    across = tl.load(facts + 10).to(tl.int32)
    x = tl.program_id(2) * columns + tl.arange(0, columns)
    y = tl.program_id(1) + tl.zeros((columns,), dtype=tl.int32)
    inside = (x < tl.load(facts + 14).to(tl.int32)) & (y < tl.load(facts + 13).to(tl.int32))
    y = y + tl.load(facts + 11).to(tl.int32)
    x = x + tl.load(facts + 12).to(tl.int32)
    high = (height + down - 1) // down
    wide = (width + across - 1) // across
    near_y = y // down
    near_x = x // across
    blend = (wide >= least).to(tl.int32)
    other_y = near_y + (2 * (y % 2) - 1) * (down - 1) * blend
    other_x = near_x + (2 * (x % 2) - 1) * (across - 1) * blend
    other_y = tl.minimum(tl.maximum(other_y, 0), high - 1)
    other_x = tl.minimum(tl.maximum(other_x, 0), wide - 1)
    second = x % 2
    level = tl.load(luma + y * luma_line + x, mask=inside, other=0).to(tl.int32)
    blue = _colour_at(blues, line, near_y, near_x, other_y, other_x, second, down, inside)
    red = _colour_at(reds, line, near_y, near_x, other_y, other_x, second, down, inside)
    place = out + y * out_line + x * 3
    for c in tl.static_range(3):
        if c == 0:
            value = level + ((91881 * red + 32768) >> 16)
        elif c == 1:
            value = level + ((-22554 * blue - 46802 * red + 32768) >> 16)
        else:
            value = level + ((116130 * blue + 32768) >> 16)
        tl.store(place + c, tl.minimum(tl.maximum(value, 0), 255).to(tl.uint8), mask=inside)


@triton.jit
def _unpacked(table, values, blocks: tl.constexpr, lanes: tl.constexpr):
    """Entries to where they belong; see Engine.code for what is where."""
    facts = table + tl.program_id(0) * 12
    records = tl.load(facts + 1).to(tl.pointer_type(tl.int64))
    entries = tl.load(facts + 2).to(tl.pointer_type(tl.int16))
    block = tl.program_id(1) * blocks + tl.arange(0, blocks)[:, None]
    there = block < tl.load(facts + 4).to(tl.int32)
    lane = tl.arange(0, lanes)[None, :]
    record = tl.load(records + block, mask=there, other=0)
    count = ((record >> 32) & 0xFFFF).to(tl.int32)
    place = entries + (record & 0xFFFFFFFF)
    first = values + (tl.load(facts + 3) + block) * 64
    tl.store(
        first + 0 * lane, (record >> 48).to(tl.int16) + (0 * lane).to(tl.int16), mask=there & (lane == 0)
    )
    # Most blocks have few.
    for done in range(0, tl.max(tl.max(count, axis=1), axis=0), lanes):
        at = done + lane
        entry = tl.load(place + at, mask=at < count, other=0).to(tl.int32)
        behind = tl.load(place + at + 1, mask=at + 1 < count, other=1).to(tl.int32)
        spot = entry & 63
        value = (entry >> 6) + tl.where((behind & 63) == 0, (behind >> 6) * 512, 0)
        tl.store(first + spot, value.to(tl.int16), mask=(at < count) & (spot > 0))


@triton.jit
def _odd_even(c0, c1, c2, c3, c4, c5, c6, c7):
    """The sums and the differences of coded._pass, before they are rounded."""
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
def _product(one, order, steps, spot, inside):
    """A coefficient times its step."""
    value = tl.load(one + tl.load(order + spot).to(tl.int32), mask=inside, other=0).to(tl.int32)
    return value * tl.load(steps + spot, mask=inside, other=0).to(tl.int32)


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
    table, values, order, between, flags, most: tl.constexpr, lanes: tl.constexpr, flagged: tl.constexpr
):
    """The transform along columns: a lane for each. Flags images whose values leave what libjpeg can do."""
    facts = table + tl.program_id(0) * 12
    light = tl.load(facts + 5).to(tl.int32)
    colour = tl.load(facts + 6).to(tl.int32)
    at = tl.program_id(1) * lanes + tl.arange(0, lanes)
    block = at // 8
    inside = block < tl.load(facts + 4).to(tl.int32)
    first = (tl.load(facts + 3) + block) * 64
    one = values + first
    steps = tl.load(facts).to(tl.pointer_type(tl.uint8))
    steps = steps + 64 * ((block >= light).to(tl.int32) + (block >= light + colour).to(tl.int32))
    c0 = _product(one, order, steps, 0 + at % 8, inside)
    c1 = _product(one, order, steps, 8 + at % 8, inside)
    c2 = _product(one, order, steps, 16 + at % 8, inside)
    c3 = _product(one, order, steps, 24 + at % 8, inside)
    c4 = _product(one, order, steps, 32 + at % 8, inside)
    c5 = _product(one, order, steps, 40 + at % 8, inside)
    c6 = _product(one, order, steps, 48 + at % 8, inside)
    c7 = _product(one, order, steps, 56 + at % 8, inside)
    e0, e1, e2, e3, o0, o1, o2, o3 = _odd_even(c0, c1, c2, c3, c4, c5, c6, c7)
    r0 = (e0 + o0 + 1024) >> 11
    r1 = (e1 + o1 + 1024) >> 11
    r2 = (e2 + o2 + 1024) >> 11
    r3 = (e3 + o3 + 1024) >> 11
    r4 = (e3 - o3 + 1024) >> 11
    r5 = (e2 - o2 + 1024) >> 11
    r6 = (e1 - o1 + 1024) >> 11
    r7 = (e0 - o0 + 1024) >> 11
    out = between + first + at % 8
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
        tl.store(flags + tl.program_id(0) + 0 * at, 1 + 0 * at, mask=inside & (largest > most))


@triton.jit
def _level(sum):
    return tl.minimum(tl.maximum(((sum + 131072) >> 18) + 128, 0), 255).to(tl.uint8)


@triton.jit
def _rows(table, between, lanes: tl.constexpr):
    """Along rows, to the planes of the images: a lane for each."""
    facts = table + tl.program_id(0) * 12
    light = tl.load(facts + 5).to(tl.int32)
    colour = tl.load(facts + 6).to(tl.int32)
    at = tl.program_id(1) * lanes + tl.arange(0, lanes)
    block = at // 8
    row = at % 8
    inside = block < tl.load(facts + 4).to(tl.int32)
    one = between + (tl.load(facts + 3) + block) * 64 + row * 8
    c0 = tl.load(one, mask=inside, other=0).to(tl.int32)
    c1 = tl.load(one + 1, mask=inside, other=0).to(tl.int32)
    c2 = tl.load(one + 2, mask=inside, other=0).to(tl.int32)
    c3 = tl.load(one + 3, mask=inside, other=0).to(tl.int32)
    c4 = tl.load(one + 4, mask=inside, other=0).to(tl.int32)
    c5 = tl.load(one + 5, mask=inside, other=0).to(tl.int32)
    c6 = tl.load(one + 6, mask=inside, other=0).to(tl.int32)
    c7 = tl.load(one + 7, mask=inside, other=0).to(tl.int32)
    e0, e1, e2, e3, o0, o1, o2, o3 = _odd_even(c0, c1, c2, c3, c4, c5, c6, c7)
    in_light = block < light
    in_blue = block < light + colour
    across = tl.where(in_light, tl.load(facts + 7), tl.load(facts + 8)).to(tl.int32)
    number = tl.where(in_light, block, tl.where(in_blue, block - light, block - light - colour))
    plane = tl.where(
        in_light, tl.load(facts + 9), tl.where(in_blue, tl.load(facts + 10), tl.load(facts + 11))
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
    table: Any, colours: Any, scans: Any, codes: Any, total: int, most: int, window: I64, flags: Any
) -> None:
    """Make pixels of JPEGs, all on the current stream: tables as coded.py makes them; ``scans`` None where
    the engine has read the scans. ``total``: bytes of the planes; ``most``: blocks of one image.

    ``flags``: pinned memory, which tells then whose scan is out of the ordinary.
    """
    values = torch.zeros(total, dtype=torch.int16, device=table.device)
    between = torch.empty(total, dtype=torch.int16, device=table.device)
    images, lines = len(table), (len(table), triton.cdiv(most * 8, LANES))
    order = _order(table.device, scans is not None)
    with LAUNCHING, torch.cuda.device(table.device):
        if scans is None:
            _unpacked[(images, triton.cdiv(most, 8))](table, values, blocks=8, lanes=16, num_warps=1)
        else:
            scan_kernel.read(scans, codes, values, flags)
        _columns[lines](
            table, values, order, between, table if flags is None else flags, most=MOST, lanes=LANES,
            flagged=flags is not None,
        )  # fmt: skip
        _rows[lines](table, between, lanes=LANES)
        grid = (images, int(window[:, 2].max()), triton.cdiv(int(window[:, 3].max()), LINE))
        _rgb[grid](colours, columns=LINE, least=LEAST_BLENDED, num_warps=2)


@functools.cache
def _order(device: Any, scanned: bool) -> Any:
    """By place in the rows of a block: where its coefficients lie, in rows or as a scan has them, to and fro
    over the diagonals."""
    places = list(range(64))
    if scanned:
        diagonal = [at // 8 + at % 8 for at in places]
        to_and_fro = sorted(places, key=lambda at: (diagonal[at], at // 8 if diagonal[at] % 2 else at % 8))
        places = [to_and_fro.index(at) for at in places]
    return torch.tensor(places, dtype=torch.uint8, device=device)
