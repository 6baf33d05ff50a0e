"""Pictures of a batch: where their bytes are, and what is to become of them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np

from .. import limits
from ..codecs.media import image
from ..columns import I32, I64, U8, as_bytes
from ..errors import DataError, DecodeError
from .plan import LONGEST_SIDE, LOOKED_AT, ImageStage, Output

# Hardly any picture becomes so many times its size; of one that says so, the header is looked at.
DOUBTFUL = 1000


class Located(NamedTuple):
    """Encoded cells in memory: cell i is ``size[i]`` bytes at ``start[i]`` of ``bases[base[i]]``."""

    bases: list[U8]
    base: I32
    start: I64
    size: I64
    shape: I32 | None


class Pictures(NamedTuple):
    """The cells of a batch of pictures, and what is to become of them. A row for each."""

    output: Output
    stage: ImageStage
    cells: Located
    sizes: I32
    turns: U8 | None
    boxes: Any
    flip: Any
    out: Any

    def part(self, rows: I64, out: Any) -> Pictures:
        """Some of them, to be made as levels, (height, width, channels), in ``out``."""
        stage = dataclasses.replace(self.stage, normalize=None, channels_first=False)
        cells = self.cells
        some = Located(
            cells.bases, np.ascontiguousarray(cells.base[rows]), np.ascontiguousarray(cells.start[rows]),
            np.ascontiguousarray(cells.size[rows]), None if cells.shape is None else cells.shape[rows],
        )  # fmt: skip
        return Pictures(
            self.output, stage, some, self.sizes[rows], None if self.turns is None else self.turns[rows],
            self.boxes[rows], None if self.flip is None else self.flip[rows], out,
        )  # fmt: skip


def known(shape: tuple[int | None, ...]) -> tuple[int, ...]:
    return tuple(size for size in shape if size is not None)


def cell_of(cells: Located, row: int) -> U8:
    base: U8 = cells.bases[cells.base[row]]
    return base[cells.start[row] : cells.start[row] + cells.size[row]]


def turns_of(cells: Located) -> U8:
    """EXIF's orientation of every picture; 1 for raw pixels."""
    found = np.ones(len(cells.start), dtype=np.uint8)
    for row in range(len(found)):
        if cells.shape is None or not cells.shape[row].any():
            found[row] = image.orientation(cell_of(cells, row))
    return found


def pixels_of(batch: Pictures, row: int) -> Any:
    """One picture in the mode that the batch has."""
    data, mode, shape = cell_of(batch.cells, row), batch.stage.mode, batch.cells.shape
    if shape is None or not shape[row].any():
        pixels = image.expand(image.decode(data, mode))
        return pixels if batch.turns is None else image.orient(pixels, int(batch.turns[row]))
    sizes = tuple(shape[row].tolist())
    if min(sizes) < 0 or math.prod(sizes) != data.size:
        raise DecodeError(f"{data.size} bytes cannot be raw pixels of shape {sizes}")
    pixels = data.reshape(sizes)
    # Gray as RGB loses nothing; every other change of channels would.
    return np.repeat(pixels, 3, axis=2) if mode == "RGB" and pixels.shape[2] == 1 else pixels


def raw_cell(pixels: Any) -> Located:
    raw = as_bytes(pixels)
    zero = np.zeros(1, dtype=np.int64)
    shape = np.array([pixels.shape], dtype=np.int32)
    return Located([raw], zero.astype(np.int32), zero, np.array([raw.size], dtype=np.int64), shape)


def check_claims(batch: Pictures, failed: dict[int, DataError]) -> None:
    """Before memory is taken: pictures that claim more than they may are left in ``failed`` by row."""
    cells, sizes = batch.cells, batch.sizes.astype(np.float64)
    pixels = sizes.prod(axis=1)
    values = pixels * channels_of(batch.stage)
    allowed = np.maximum(limits.max_bytes(), limits.PLAUSIBLE * cells.size)
    doubtful = (values > np.minimum(allowed, DOUBTFUL * cells.size)) | (pixels > limits.max_pixels())
    if cells.shape is not None:
        doubtful &= ~cells.shape.any(axis=1)
    for row in np.flatnonzero(doubtful).tolist():
        cell = cell_of(cells, row)
        try:
            image.check(image.header(cell), cell, indices=batch.stage.mode == "P")
        except DataError as error:
            failed[row] = error.at(field=batch.output.field)


def check_size(batch: Pictures, failed: dict[int, DataError]) -> None:
    """Where the size of the first picture is that of all: those of another are left in ``failed`` by row."""
    if batch.stage.decoder.op.size is not None:  # type: ignore[attr-defined]
        return
    shape = known(batch.stage.spec.shape)
    want = shape[1:] if batch.stage.channels_first else shape[:2]
    hint = "give the pipeline a decoder with a size, such as RandomResizedCrop(224) or CenterCrop(224)"
    for row in np.flatnonzero((batch.sizes > LONGEST_SIDE).any(axis=1)).tolist():
        said = (
            f"a side of {batch.sizes[row].max()} pixels is more than a batch can have, {LONGEST_SIDE}; {hint}"
        )
        failed.setdefault(row, DecodeError(said, field=batch.output.field))
    if 0 in want:
        for row in range(len(batch.sizes)):
            error: DataError = DecodeError(f"none of the first {LOOKED_AT} pictures can be decoded; {hint}")
            try:
                pixels_of(batch, row)
            except DataError as why:
                error = why
            failed.setdefault(row, error.at(field=batch.output.field))
        return
    sizes = batch.sizes
    for row in np.flatnonzero((sizes != np.array(want)).any(axis=1) & (sizes > 0).all(axis=1)).tolist():
        height, width = sizes[row]
        said = f"the picture is {width}×{height} and the first is {want[1]}×{want[0]}; {hint}"
        failed.setdefault(row, DecodeError(said, field=batch.output.field))


def channels_of(stage: ImageStage) -> int:
    return known(stage.spec.shape)[0 if stage.channels_first else 2]
