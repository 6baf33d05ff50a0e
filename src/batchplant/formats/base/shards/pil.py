"""Raw pixels as Pillow's own: u32 width, height and length of the mode's name; the mode; the pixels."""

from __future__ import annotations

import numpy as np

from ....errors import DecodeError
from ....schema import Field, Image
from ....schema.columns import I64, U8, Ragged
from .reader import Inner
from .runs import numbers_at, wrong

# Pillow's modes that are pixels of so many bytes.
CHANNELS = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4}
MODES = {count: mode for mode, count in CHANNELS.items()}


def inner(data: U8, starts: I64, sizes: I64) -> Inner:
    """Locate the pixels in the cells; return their shapes, too."""
    wrong(sizes < 12, "it is too short for an image of Pillow")
    width, height, length = numbers_at(data, starts, 3, "<u4").astype(np.int64).T
    wrong(length > np.minimum(sizes - 12, 16), "it is too short for an image of Pillow")
    channels = np.zeros(len(starts), dtype=np.int64)
    for row, (start, count) in enumerate(zip((starts + 12).tolist(), length.tolist(), strict=True)):
        mode = data[start : start + count].tobytes().decode("latin1")
        if mode not in CHANNELS:
            raise DecodeError(f"pixels of Pillow's mode {mode!r} are not read here", sample=row)
        channels[row] = CHANNELS[mode]
    head = 12 + length
    remaining = sizes - head
    # Two numbers of 32 bits; with the channels, the product stays below 2**63 only as a real.
    wrong(
        width.astype(np.float64) * height * channels != remaining, "its pixels are more or fewer than it says"
    )
    shape = np.stack([height, width, channels], axis=1)
    wrong(np.maximum(height, width) > 0x7FFFFFFF, "it is too large for an image")
    return Inner(starts + head, remaining, shape.astype(np.int32))


def packed(column: Ragged) -> Ragged:
    """The cells of pixels."""
    cells = []
    for row, cell in enumerate(column):
        assert cell is not None
        assert column.shape is not None
        height, width, channels = column.shape[row].tolist()
        mode = MODES[channels].encode()
        cells.append(np.array([width, height, len(mode)], "<u4").tobytes() + mode + cell.tobytes())
    return Ragged.from_cells(cells)


def field_of(cells: Ragged) -> Field:
    """The field that the first cells tell."""
    modes = set()
    for cell in cells:
        assert cell is not None
        modes.add(cell[12:][: int.from_bytes(cell[8:12].tobytes(), "little")].tobytes().decode("latin1"))
    mode = modes.pop() if len(modes) == 1 else None
    return Image("raw", mode if mode in CHANNELS or mode is None else "RGB")
