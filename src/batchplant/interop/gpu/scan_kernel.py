"""The Triton kernels that read the scans of JPEGs; see :mod:`batchplant.interop.gpu.jpeg`.

A scan has to be read from its first bit to its last, because each symbol begins where the previous one ends.
But a batch has many scans, and a device reads them in parallel.
"""

# mypy: disable-error-code="no-untyped-def,untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

# Entries of a Huffman code's table: by 11 bits, by 16 where a code is longer, and one for invalid codes.
TABLE_ENTRIES = 2048 + 4096 + 1
# Images that one program reads: more of them use less of the device, but wait longer for each other.
LANES = 8


@triton.jit
def _tables(codes, entries, ends, stride: tl.constexpr, lanes: tl.constexpr):
    """Build a lookup table of the next 16 bits for each Huffman code; _read shows how to find an entry.

    An entry: bits of the code; bits of the value behind it << 5; how many coefficients to advance << 9 (64 at
    the end of a block); bits of code and value << 16. Zero where no code begins like that.
    """
    number = tl.program_id(0)
    code = tl.load(codes + number).to(tl.pointer_type(tl.uint8))
    entry_index = tl.program_id(1) * lanes + tl.arange(0, lanes)
    next = 0
    for length in tl.static_range(1, 12):
        next = (next + tl.load(code + length).to(tl.int32)) * 2
    end = next << 4
    ahead = tl.where(entry_index < 2048, entry_index << 5, end + entry_index - 2048)
    next = 0
    index = 0
    bits = tl.zeros((lanes,), dtype=tl.int32)
    symbol_index = tl.zeros((lanes,), dtype=tl.int32)
    for length in tl.static_range(1, 17):
        count = tl.load(code + length).to(tl.int32)
        inside = (bits == 0) & (ahead < ((next + count) << (16 - length)))
        bits = tl.where(inside, length, bits)
        symbol_index = tl.where(inside, (ahead >> (16 - length)) - next + index, symbol_index)
        next = (next + count) * 2
        index += count
    symbol = tl.load(code + 17 + symbol_index, mask=(bits > 0) & (symbol_index < 256), other=0).to(tl.int32)
    first = number % 2 == 0
    size = tl.where(first, symbol, symbol & 15)
    run = tl.where(first, 0, symbol >> 4)
    advance = tl.where((size > 0) | (run == 15) | first, run + 1, 64)
    entry = bits | (size << 5) | (advance << 9) | ((bits + size) << 16)
    tl.store(entries + number * stride + entry_index, tl.where(bits > 0, entry, 0), mask=entry_index < stride)
    tl.store(ends + number + 0 * entry_index, end + 0 * entry_index, mask=entry_index == 0)


@triton.jit
def _read(table, entries, ends, values, flags, count, stride: tl.constexpr, lanes: tl.constexpr):
    """Read scans: a lane for each image, one symbol at a time.

    Coefficients of needed blocks are stored in the scan's order. An image with anything out of the ordinary
    is flagged, and its reading ends.
    """
    lane = tl.program_id(0) * lanes + tl.arange(0, lanes)
    valid = lane < count
    parameters = table + lane * 20
    words = tl.load(parameters + 1, mask=valid, other=0).to(tl.pointer_type(tl.uint32))
    total = tl.load(parameters + 2, mask=valid, other=0).to(tl.int32)
    codes = tl.load(parameters + 3, mask=valid, other=0) * 4
    values = values + tl.load(parameters + 4, mask=valid, other=0) * 64
    mcus = tl.load(parameters + 5, mask=valid, other=1).to(tl.int32)
    rows = tl.load(parameters + 6, mask=valid, other=0).to(tl.int32)
    reads_all_rows = tl.load(parameters + 7, mask=valid, other=0).to(tl.int32)
    across = tl.load(parameters + 8, mask=valid, other=1).to(tl.int32)
    down = tl.load(parameters + 9, mask=valid, other=1).to(tl.int32)
    light_left = tl.load(parameters + 10, mask=valid, other=0).to(tl.int32)
    light_wide = tl.load(parameters + 11, mask=valid, other=0).to(tl.int32)
    light_top = tl.load(parameters + 12, mask=valid, other=0).to(tl.int32)
    light_high = tl.load(parameters + 13, mask=valid, other=0).to(tl.int32)
    colour_left = tl.load(parameters + 14, mask=valid, other=0).to(tl.int32)
    colour_wide = tl.load(parameters + 15, mask=valid, other=0).to(tl.int32)
    colour_top = tl.load(parameters + 16, mask=valid, other=0).to(tl.int32)
    colour_high = tl.load(parameters + 17, mask=valid, other=0).to(tl.int32)
    ends = ends + codes
    entries = entries + codes * stride
    light_first = tl.load(ends, mask=valid, other=0)
    light_other = tl.load(ends + 1, mask=valid, other=0)
    colour_first = tl.load(ends + 2, mask=valid, other=0)
    colour_other = tl.load(ends + 3, mask=valid, other=0)
    lights = across * down
    coloured = light_wide * light_high
    # The current word and the next two: loaded ahead, so that no lane waits for memory.
    high = tl.load(words, mask=valid, other=0)
    low = tl.load(words + 1, mask=valid, other=0)
    later = tl.load(words + 2, mask=valid & (total > 0), other=0)
    zero = tl.zeros((lanes,), dtype=tl.int32)
    # Current bit; block of the MCU, coefficient of the block, column and row of the MCU; DC predictors.
    bit, block, coefficient, column, row = zero, zero, zero, zero, zero
    light, blue, red = zero, zero, zero
    bad = zero
    active = (valid & (rows > 0)).to(tl.int32)
    while tl.max(active, axis=0) > 0:
        for _ in range(8):
            on = active > 0
            is_light = block < lights
            is_first = coefficient == 0
            end = tl.where(
                is_light,
                tl.where(is_first, light_first, light_other),
                tl.where(is_first, colour_first, colour_other),
            )
            from_ = tl.where(is_light, 0, 2 * stride) + tl.where(is_first, 0, stride)
            shift = (bit & 31).to(tl.uint32)
            window = (high << shift) | ((low >> 1) >> (31 - shift))
            ahead = (window >> 16).to(tl.int32)
            index = tl.where(ahead < end, ahead >> 5, tl.minimum(2048 + ahead - end, stride - 1))
            entry = tl.load(entries + (from_ + index), mask=on, other=0)
            # Position of the block; computed while the entry is loaded.
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
            # Fields of the entry.
            size = (entry >> 5) & 15
            advance = (entry >> 9) & 127
            value_bits = window << (entry & 31).to(tl.uint32)
            value = ((value_bits >> 1) >> (31 - size).to(tl.uint32)).to(tl.int32)
            value = tl.where(value_bits >> 31 == 0, value - (1 << size) + 1, value)
            word = bit >> 5
            bit += entry >> 16
            moved = (bit >> 5) != word
            high = tl.where(moved, low, high)
            low = tl.where(moved, later, low)
            later = tl.load(words + (bit >> 5) + 2, mask=on & (bit <= total), other=0)
            light += tl.where(is_first & is_light, value, 0)
            blue += tl.where(is_first & (block == lights), value, 0)
            red += tl.where(is_first & is_red, value, 0)
            level = tl.where(is_light, light, tl.where(is_red, red, blue))
            value = tl.where(is_first, level, value)
            coefficient += advance
            stored = needed & (is_first | (size > 0)) & (coefficient <= 64)
            tl.store(values + (number * 64 + coefficient - 1), value.to(tl.int16), mask=stored)
            wrong = (entry == 0) | (bit > total) | ((coefficient > 64) & (advance < 64))
            wrong = wrong | (tl.maximum(level, -level) > 32767)
            bad = tl.where(on & wrong, 1, bad)
            # The next block.
            ended = on & (coefficient >= 64)
            coefficient = tl.where(ended, 0, coefficient)
            block += ended.to(tl.int32)
            ended = block >= lights + 2
            block = tl.where(ended, 0, block)
            column += ended.to(tl.int32)
            ended = column >= mcus
            column = tl.where(ended, 0, column)
            row += ended.to(tl.int32)
            active = (on & (row < rows) & (bad == 0)).to(tl.int32)
    bad = tl.where((reads_all_rows > 0) & (total - bit >= 8), 1, bad)
    tl.store(flags + lane, bad, mask=valid)


def read(table: Tensor, codes: Tensor, values: Tensor, flags: Tensor) -> None:
    """Read scans into ``values``, which must be zeros. jpeg.py makes ``table`` and ``codes``, the addresses
    of Huffman codes. ``flags``: pinned memory, where images whose scan is out of the ordinary get a 1."""
    entries = torch.empty(len(codes) * TABLE_ENTRIES, dtype=torch.int32, device=table.device)
    ends = torch.empty(len(codes), dtype=torch.int32, device=table.device)
    _tables[(len(codes), triton.cdiv(TABLE_ENTRIES, 1024))](
        codes, entries, ends, stride=TABLE_ENTRIES, lanes=1024
    )
    _read[(triton.cdiv(len(table), LANES),)](
        table, entries, ends, values, flags, len(table), stride=TABLE_ENTRIES, lanes=LANES, num_warps=1
    )
