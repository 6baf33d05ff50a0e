"""The Triton kernels that read the scans of JPEGs; see :mod:`batchplant.interop.gpu.coded`.

A scan is read from its first bit to its last, since each symbol begins where the one before ends. But the
scans of a batch are many, and a device reads them side by side.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

# Entries for a Huffman code: by 11 bits, by 16 where a code is longer, and one for what is no code.
TABLE = 2048 + 4096 + 1
# Images that one program reads: more of them take less of the device, and wait longer for each other.
LANES = 8


@triton.jit
def _tables(codes, entries, ends, stride: tl.constexpr, lanes: tl.constexpr):
    """What the next 16 bits mean, for each Huffman code: see _read for how an entry is found.

    An entry: bits of the code; bits of the value behind it << 5; how many coefficients further it leads << 9
    (64 at the end of a block); bits of both << 16. Zero where no code begins like that.
    """
    number = tl.program_id(0)
    code = tl.load(codes + number).to(tl.pointer_type(tl.uint8))
    at = tl.program_id(1) * lanes + tl.arange(0, lanes)
    next = 0
    for length in tl.static_range(1, 12):
        next = (next + tl.load(code + length).to(tl.int32)) * 2
    end = next << 4
    ahead = tl.where(at < 2048, at << 5, end + at - 2048)
    next = 0
    index = 0
    bits = tl.zeros((lanes,), dtype=tl.int32)
    place = tl.zeros((lanes,), dtype=tl.int32)
    for length in tl.static_range(1, 17):
        count = tl.load(code + length).to(tl.int32)
        inside = (bits == 0) & (ahead < ((next + count) << (16 - length)))
        bits = tl.where(inside, length, bits)
        place = tl.where(inside, (ahead >> (16 - length)) - next + index, place)
        next = (next + count) * 2
        index += count
    symbol = tl.load(code + 17 + place, mask=(bits > 0) & (place < 256), other=0).to(tl.int32)
    first = number % 2 == 0
    size = tl.where(first, symbol, symbol & 15)
    run = tl.where(first, 0, symbol >> 4)
    advance = tl.where((size > 0) | (run == 15) | first, run + 1, 64)
    entry = bits | (size << 5) | (advance << 9) | ((bits + size) << 16)
    tl.store(entries + number * stride + at, tl.where(bits > 0, entry, 0), mask=at < stride)
    tl.store(ends + number + 0 * at, end + 0 * at, mask=at == 0)


@triton.jit
def _read(table, entries, ends, values, flags, count, stride: tl.constexpr, lanes: tl.constexpr):
    """Scans: a lane for each image, a symbol at a time. What is needed is stored, in the scan's order; an
    image where anything is out of the ordinary is flagged, and left."""
    lane = tl.program_id(0) * lanes + tl.arange(0, lanes)
    there = lane < count
    facts = table + lane * 20
    words = tl.load(facts + 1, mask=there, other=0).to(tl.pointer_type(tl.uint32))
    total = tl.load(facts + 2, mask=there, other=0).to(tl.int32)
    codes = tl.load(facts + 3, mask=there, other=0) * 4
    values = values + tl.load(facts + 4, mask=there, other=0) * 64
    mcus = tl.load(facts + 5, mask=there, other=1).to(tl.int32)
    rows = tl.load(facts + 6, mask=there, other=0).to(tl.int32)
    all_of_it = tl.load(facts + 7, mask=there, other=0).to(tl.int32)
    across = tl.load(facts + 8, mask=there, other=1).to(tl.int32)
    down = tl.load(facts + 9, mask=there, other=1).to(tl.int32)
    light_left = tl.load(facts + 10, mask=there, other=0).to(tl.int32)
    light_wide = tl.load(facts + 11, mask=there, other=0).to(tl.int32)
    light_top = tl.load(facts + 12, mask=there, other=0).to(tl.int32)
    light_high = tl.load(facts + 13, mask=there, other=0).to(tl.int32)
    colour_left = tl.load(facts + 14, mask=there, other=0).to(tl.int32)
    colour_wide = tl.load(facts + 15, mask=there, other=0).to(tl.int32)
    colour_top = tl.load(facts + 16, mask=there, other=0).to(tl.int32)
    colour_high = tl.load(facts + 17, mask=there, other=0).to(tl.int32)
    ends = ends + codes
    entries = entries + codes * stride
    light_first = tl.load(ends, mask=there, other=0)
    light_other = tl.load(ends + 1, mask=there, other=0)
    colour_first = tl.load(ends + 2, mask=there, other=0)
    colour_other = tl.load(ends + 3, mask=there, other=0)
    lights = across * down
    coloured = light_wide * light_high
    # The word at hand and the two behind it: what is loaded is not needed at once.
    high = tl.load(words, mask=there, other=0)
    low = tl.load(words + 1, mask=there, other=0)
    later = tl.load(words + 2, mask=there & (total > 0), other=0)
    zero = tl.zeros((lanes,), dtype=tl.int32)
    # The bit at hand; block of the MCU, place in the block, the MCU; what the first of a block adds to.
    at, block, place, column, row = zero, zero, zero, zero, zero
    light, blue, red = zero, zero, zero
    bad = zero
    active = (there & (rows > 0)).to(tl.int32)
    while tl.max(active, axis=0) > 0:
        for _ in range(8):
            on = active > 0
            is_light = block < lights
            is_first = place == 0
            end = tl.where(
                is_light,
                tl.where(is_first, light_first, light_other),
                tl.where(is_first, colour_first, colour_other),
            )
            from_ = tl.where(is_light, 0, 2 * stride) + tl.where(is_first, 0, stride)
            shift = (at & 31).to(tl.uint32)
            window = (high << shift) | ((low >> 1) >> (31 - shift))
            ahead = (window >> 16).to(tl.int32)
            index = tl.where(ahead < end, ahead >> 5, tl.minimum(2048 + ahead - end, stride - 1))
            entry = tl.load(entries + (from_ + index), mask=on, other=0)
            # Meanwhile, where the block lies.
            x = tl.where(
                is_light, column * across + (block & (across - 1)) - light_left, column - colour_left
            )
            y = tl.where(is_light, row * down + (block >> (across - 1)) - light_top, row - colour_top)
            wide = tl.where(is_light, light_wide, colour_wide)
            tall = tl.where(is_light, light_high, colour_high)
            needed = on & (x >= 0) & (x < wide) & (y >= 0) & (y < tall)
            number = y * wide + x + tl.where(is_light, 0, coloured)
            is_red = block > lights
            number += tl.where(is_red, colour_wide * colour_high, 0)
            # What the entry says.
            size = (entry >> 5) & 15
            advance = (entry >> 9) & 127
            rest = window << (entry & 31).to(tl.uint32)
            value = ((rest >> 1) >> (31 - size).to(tl.uint32)).to(tl.int32)
            value = tl.where(rest >> 31 == 0, value - (1 << size) + 1, value)
            before = at >> 5
            at += entry >> 16
            moved = (at >> 5) != before
            high = tl.where(moved, low, high)
            low = tl.where(moved, later, low)
            later = tl.load(words + (at >> 5) + 2, mask=on & (at <= total), other=0)
            light += tl.where(is_first & is_light, value, 0)
            blue += tl.where(is_first & (block == lights), value, 0)
            red += tl.where(is_first & is_red, value, 0)
            level = tl.where(is_light, light, tl.where(is_red, red, blue))
            value = tl.where(is_first, level, value)
            place += advance
            here = needed & (is_first | (size > 0)) & (place <= 64)
            tl.store(values + (number * 64 + place - 1), value.to(tl.int16), mask=here)
            wrong = (entry == 0) | (at > total) | ((place > 64) & (advance < 64))
            wrong = wrong | (tl.maximum(level, -level) > 32767)
            bad = tl.where(on & wrong, 1, bad)
            # The next block.
            ended = on & (place >= 64)
            place = tl.where(ended, 0, place)
            block += ended.to(tl.int32)
            ended = block >= lights + 2
            block = tl.where(ended, 0, block)
            column += ended.to(tl.int32)
            ended = column >= mcus
            column = tl.where(ended, 0, column)
            row += ended.to(tl.int32)
            active = (on & (row < rows) & (bad == 0)).to(tl.int32)
    bad = tl.where((all_of_it > 0) & (total - at >= 8), 1, bad)
    tl.store(flags + lane, bad, mask=there)


def read(table: Any, codes: Any, values: Any, flags: Any) -> None:
    """Read scans into ``values``, which are zeros: ``table`` as coded.py makes it, ``codes`` where in memory
    the Huffman codes lie. ``flags``: pinned memory, which tells then what is out of the ordinary."""
    entries = torch.empty(len(codes) * TABLE, dtype=torch.int32, device=table.device)
    ends = torch.empty(len(codes), dtype=torch.int32, device=table.device)
    _tables[(len(codes), triton.cdiv(TABLE, 1024))](codes, entries, ends, stride=TABLE, lanes=1024)
    _read[(triton.cdiv(len(table), LANES),)](
        table, entries, ends, values, flags, len(table), stride=TABLE, lanes=LANES, num_warps=1
    )
