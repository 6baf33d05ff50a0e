"""Caffe's Datum: an image, encoded or as raw channels, or an array, and a label."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs.arrays import pack_tensor
from ...codecs.infer import infer_image
from ...codecs.msgpack import Runs, gathered
from ...errors import DecodeError
from ...schema import Field, Image, Int, Tensor
from ...schema.columns import I64, U8, Column, Columns, Ragged
from .codec import Codec

# The columns of what _native.datum_scan gives.
CHANNELS, HEIGHT, WIDTH, LABEL, ENCODED, START, SIZE, _, FLOATS = range(9)
# Longer sides make no image; the product of three stays far from overflowing.
LONGEST = 1 << 20


class DatumCodec(Codec):
    """Fields ``image`` and ``label``; ``data`` (channels, height, width) where it is no image."""

    name = "datum"

    def __init__(self, data: U8, starts: I64, sizes: I64, *, bgr: bool) -> None:
        self._bgr = bgr
        rows = _scan(data, starts, sizes)
        self._data: Field = self._image(rows, data) or self._tensor(rows)
        self._named = "image" if isinstance(self._data, Image) else "data"
        self.fields = {self._named: self._data, "label": Int("int32")}

    def _image(self, rows: I64, data: U8) -> Image | None:
        encoded = _is_encoded(rows)
        if (rows[:, FLOATS] > 0).any() or not np.isin(rows[~encoded, CHANNELS], (1, 3)).all():
            return None
        if encoded.any():
            found = infer_image(gathered(data, rows[encoded, START], rows[encoded, SIZE])) or Image()
            return found if encoded.all() else Image(mode=found.mode)
        gray = len(rows) > 0 and bool((rows[:, CHANNELS] == 1).all())
        return Image(mode="L" if gray else "RGB")

    def _tensor(self, rows: I64) -> Tensor:
        dtype = "float32" if (rows[:, FLOATS] > 0).any() else "uint8"
        shapes = np.unique(rows[:, [CHANNELS, HEIGHT, WIDTH]], axis=0)
        same = len(shapes) == 1 and bool(((shapes > 0) & (shapes <= LONGEST)).all())
        return Tensor(dtype, tuple(shapes[0].tolist()) if same else (None, None, None))

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        rows = _scan(data, starts, sizes)
        columns = Columns()
        for name in fields:
            if name == "label":
                columns[name] = rows[:, LABEL].astype(np.int32)
            elif isinstance(self._data, Image):
                columns[name] = self._read_images(rows, data)
            else:
                columns[name] = self._read_arrays(rows, data, starts, sizes)
        return columns

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        if field != "image":
            return None
        rows = _scan(data, starts, sizes)
        # Raw channels lie one after another, and pixels are wanted.
        if not _is_encoded(rows).all():
            return None
        return rows[:, START].copy(), rows[:, SIZE].copy(), None

    def _read_images(self, rows: I64, data: U8) -> Ragged:
        encoded = _is_encoded(rows)
        for row in np.flatnonzero(~encoded).tolist():
            shape = _shape(rows, row)
            if shape[0] not in (1, 3) or math.prod(shape) != rows[row, SIZE]:
                raise DecodeError(f"{rows[row, SIZE]} bytes are not an image of shape {shape}", sample=row)
        cells = gathered(data, rows[:, START], rows[:, SIZE])
        if encoded.all():
            return cells
        cells.shape = np.zeros((len(rows), 3), dtype=np.int32)
        for row in np.flatnonzero(~encoded).tolist():
            channels, height, width = _shape(rows, row)
            cell = cells.data[cells.offsets[row] : cells.offsets[row + 1]]
            planes = cell.reshape(channels, height, width).transpose(1, 2, 0)
            pixels = planes[:, :, ::-1] if self._bgr and channels == 3 else planes
            cell[:] = np.ascontiguousarray(pixels).reshape(-1)
            cells.shape[row] = height, width, channels
        return cells

    def _read_arrays(self, rows: I64, data: U8, starts: I64, sizes: I64) -> Column:
        assert isinstance(self._data, Tensor)
        arrays = []
        for row in range(len(rows)):
            shape = _shape(rows, row)
            if self._data.dtype == "float32":
                array: npt.NDArray[Any] = np.empty(int(rows[row, FLOATS]), dtype=np.float32)
                _native.datum_floats(data[starts[row] : starts[row] + sizes[row]], array)
            else:
                array = data[rows[row, START] : rows[row, START] + max(0, int(rows[row, SIZE]))]
            if array.size != math.prod(shape) or not self._data.fits(shape):
                raise DecodeError(f"{array.size} values of shape {shape} are not {self._data}", sample=row)
            arrays.append(array.reshape(shape))
        if self._data.cell is None:
            return Ragged.from_cells([pack_tensor(self._data, array) for array in arrays])
        dtype, shape = self._data.cell
        return np.array(arrays, dtype=dtype).reshape(len(arrays), *shape)


def _scan(data: U8, starts: I64, sizes: I64) -> I64:
    rows, failure = _native.datum_scan(data, np.ascontiguousarray(starts), np.ascontiguousarray(sizes))
    if failure is not None:
        raise DecodeError(failure[1], sample=failure[0])
    return rows


def _is_encoded(rows: I64) -> npt.NDArray[np.bool_]:
    """An encoded image says so; some tools leave that out, and the shape too."""
    return np.asarray((rows[:, SIZE] >= 0) & ((rows[:, ENCODED] != 0) | (rows[:, CHANNELS] == 0)))


def _shape(rows: I64, row: int) -> tuple[int, ...]:
    shape = tuple(rows[row, [CHANNELS, HEIGHT, WIDTH]].tolist())
    if min(shape) < 0 or max(shape) > LONGEST:
        raise DecodeError(f"no image has the shape {shape}", sample=row)
    return shape
