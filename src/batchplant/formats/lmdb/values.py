"""Kinds of values in environments that our writer did not make."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _native
from ...codecs import msgpack
from ...codecs.cells import encode_samples
from ...codecs.infer import infer_field, infer_image
from ...codecs.msgpack import Runs, gathered
from ...codecs.npy import pack_tensor
from ...errors import BatchplantError, DecodeError, OptionError, UnsafeError
from ...schema import Bytes, Field, Image, Int, Json, Schema, Tensor, Text
from ...schema.columns import I64, U8, AnyArray, Column, Columns, Ragged

# -- codec --------------------------------------------------------------------------------------------
# Base class of codecs of values.


class Codec:
    """Turns values, which lie at ``starts`` of ``data``, into cells. Errors have the row as ``sample``."""

    name: str = ""
    fields: Mapping[str, Field]

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        raise NotImplementedError

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        """Locate the cells in ``data``; None if they are not contiguous."""
        return None


# -- datum --------------------------------------------------------------------------------------------
# Caffe's Datum: an image, encoded or as raw channels, or an array, and a label.

# The columns of what _native.datum_scan gives.
CHANNELS, HEIGHT, WIDTH, LABEL, ENCODED, START, SIZE, _, FLOATS = range(9)
# Longer sides make no image; the product of three stays far from overflowing.
MAX_TEXT_BYTES = 1 << 20


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
            field = infer_image(gathered(data, rows[encoded, START], rows[encoded, SIZE])) or Image()
            return field if encoded.all() else Image(mode=field.mode)
        gray = len(rows) > 0 and bool((rows[:, CHANNELS] == 1).all())
        return Image(mode="L" if gray else "RGB")

    def _tensor(self, rows: I64) -> Tensor:
        dtype = "float32" if (rows[:, FLOATS] > 0).any() else "uint8"
        shapes = np.unique(rows[:, [CHANNELS, HEIGHT, WIDTH]], axis=0)
        same = len(shapes) == 1 and bool(((shapes > 0) & (shapes <= MAX_TEXT_BYTES)).all())
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
                array: AnyArray = np.empty(int(rows[row, FLOATS]), dtype=np.float32)
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
    if min(shape) < 0 or max(shape) > MAX_TEXT_BYTES:
        raise DecodeError(f"no image has the shape {shape}", sample=row)
    return shape


# -- values -------------------------------------------------------------------------------------------

# As many values are looked at to tell what they are.
PROBED_SAMPLES = 64
VALUE, IMAGE = "value", "image"


class WholeCodec(Codec):
    """A value is a cell."""

    def __init__(self, name: str, field: str, kind: Field) -> None:
        self.name = name
        self.fields = {field: kind}

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        return Columns((name, gathered(data, starts, sizes)) for name in fields)

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        return starts, sizes, None


class MsgpackCodec(Codec):
    """Maps of other writers, of which a schema says what they hold."""

    name = "msgpack"

    def __init__(self, schema: Schema | None) -> None:
        if schema is None:
            raise OptionError(
                "name the fields of the maps and their kinds: schema={…} (--option schema=NAME=KIND,…)"
            )
        self.fields = self._schema = schema

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        return msgpack.unpack(self._schema, fields, data, starts, sizes, foreign=True)

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        return msgpack.find(self._schema, field, data, starts, sizes, foreign=True)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(name, str) for name in value)


class PickleCodec(Codec):
    """Pickled values: dicts, or one value of any kind."""

    name = "pickle"

    def __init__(self, allowed: bool, data: U8, starts: I64, sizes: I64) -> None:
        if not allowed:
            raise UnsafeError(
                "the values are pickles, and loading a pickle can run any code; open it with "
                "allow_pickle=True (--option allow_pickle=true) only if you trust its source"
            )
        values = self._load(data, starts, sizes)
        self._whole = not all(_is_map(value) for value in values) or not values
        if self._whole:
            values = [{VALUE: value} for value in values]
        names = dict.fromkeys([name for value in values for name in value] or [VALUE])
        fields = ((name, infer_field([value.get(name) for value in values])) for name in names)
        self._schema = Schema(fields)
        self.fields = self._schema

    def _load(self, data: U8, starts: I64, sizes: I64) -> list[Any]:
        result = []
        for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            try:
                result.append(pickle.loads(data[start : start + size].tobytes()))
            # A pickle runs code, which raises what it likes.
            except Exception as error:
                reason = f"the pickle does not load: {type(error).__name__}: {error}"
                raise DecodeError(reason, sample=row) from None
        return result

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        schema = self._schema.select(fields)
        samples = []
        for row, value in enumerate(self._load(data, starts, sizes)):
            value = {VALUE: value} if self._whole else value
            if not isinstance(value, dict):
                raise DecodeError(f"the pickle is a {type(value).__name__}, not a dict", sample=row)
            samples.append({name: value.get(name) for name in schema})
        try:
            return encode_samples(schema, samples)
        except BatchplantError as error:
            raise DecodeError(error.message, sample=error.sample, field=error.field) from None


def _guess(data: U8, starts: I64, sizes: I64) -> Codec:
    image = infer_image(gathered(data, starts, sizes))
    if image is not None:
        return WholeCodec("image", IMAGE, image)
    return WholeCodec("bytes", VALUE, Bytes())


def codec_of(
    name: str, data: U8, starts: I64, sizes: I64, schema: Schema | None, *, allow_pickle: bool, bgr: bool
) -> Codec:
    """The codec of this name; the values are some of those that it will read."""
    makers: dict[str, Callable[[], Codec]] = {
        "auto": lambda: _guess(data, starts, sizes),
        "bytes": lambda: WholeCodec("bytes", VALUE, Bytes()),
        "image": lambda: WholeCodec("image", IMAGE, infer_image(gathered(data, starts, sizes)) or Image()),
        "json": lambda: WholeCodec("json", VALUE, Json()),
        "text": lambda: WholeCodec("text", VALUE, Text()),
        "msgpack": lambda: MsgpackCodec(schema),
        "datum": lambda: DatumCodec(data, starts, sizes, bgr=bgr),
        "pickle": lambda: PickleCodec(allow_pickle, data, starts, sizes),
    }
    if name not in makers:
        raise OptionError(f"codec is one of {', '.join(makers)}, not {name!r}")
    if schema is not None and name != "msgpack":
        raise OptionError("a schema can be given for values of the codec msgpack only")
    return makers[name]()
