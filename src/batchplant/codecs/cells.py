"""A sample's values to cells and back, for every field kind."""

from __future__ import annotations

import copy
import functools
import json
import math
import operator
import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .. import _native
from .. import schema as kinds
from ..errors import BatchplantError, DamagedError, DecodeError, EncodeError, SchemaError, near
from ..schema import Field, Schema
from ..schema.columns import U8, Column, Columns, Ragged, as_bytes
from ..storage import open_local
from . import nested, scalars
from .media import audio, image, video
from .nested import json_text
from .npy import pack_tensor, unpack_tensor
from .sparse import pack_row, unpack_row

Shape = tuple[int, ...] | None


def own_value(value: Any) -> Any:
    """Return the value, copied if the caller could change it later."""
    if value is None or type(value) in (int, float, str, bytes, bool):
        return value
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    try:
        if isinstance(value, list | tuple | dict) or hasattr(value, "getbands"):
            return copy.deepcopy(value)
        # Tensors of other libraries.
        return np.array(value) if hasattr(value, "__array__") and not isinstance(value, np.generic) else value
    # The worker that encodes it will get the same error, and say which sample it was.
    except Exception:
        return value


def value_bytes(value: Any, depth: int = 4) -> int:
    """Estimate the memory of a value: a list by its first item, objects and deep nesting not at all."""
    if isinstance(value, str | bytes | bytearray):
        return len(value)
    if isinstance(value, dict) and depth:
        return sum(value_bytes(item, depth - 1) for item in value.values())
    if isinstance(value, list | tuple) and depth:
        return len(value) * value_bytes(value[0], depth - 1) if value else 0
    size = getattr(value, "nbytes", 8)
    return size if isinstance(size, int) else 8


def encode_samples(schema: Schema, samples: Sequence[Mapping[str, Any]]) -> Columns:
    """Return columns of these samples; a value that does not fit raises with its row as ``sample``."""
    encoded: dict[str, list[Any]] = {name: [] for name in schema}
    shapes: dict[str, list[Shape]] = {name: [] for name in schema}
    for row, sample in enumerate(samples):
        if set(sample) != set(schema):
            raise _wrong_names(schema, sample).at(sample=row)
        for name, field in schema.items():
            try:
                cell, shape = encode_value(field, sample[name])
            except BatchplantError as error:
                raise error.at(sample=row, field=name) from None
            # Values may be objects of any library, which raise any exception.
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"
                raise EncodeError(reason, sample=row, field=name) from error
            encoded[name].append(cell)
            shapes[name].append(shape)
    return Columns((name, _column(field, encoded[name], shapes[name])) for name, field in schema.items())


def _wrong_names(schema: Schema, sample: Mapping[str, Any]) -> SchemaError:
    missing = [name for name in schema if name not in sample]
    unknown = [str(name) for name in sample if name not in schema]
    problem = f"it lacks {', '.join(missing)}" if missing else ""
    if unknown:
        hint = near(unknown[0], missing) if len(unknown) == 1 else ""
        problem += f"{' and' if problem else 'it'} has {', '.join(unknown)} besides{hint}"
    return SchemaError(f"a sample needs exactly the fields {', '.join(schema)}; {problem}")


def _column(field: Field, cells: list[Any], shapes: list[Shape]) -> Column:
    if field.cell is None:
        return Ragged.from_cells(cells, shapes)
    dtype, shape = field.cell
    return np.array(cells, dtype=dtype).reshape(len(cells), *shape)


def encode_value(field: Field, value: Any) -> tuple[Any, Shape]:
    """Return the cell of a value, and its shape if it is raw pixels. Arrays are copied."""
    if value is None:
        if not field.optional:
            raise SchemaError("the value is None, and the field is not optional")
        return None, None
    try:
        if isinstance(field, kinds.Image):
            cell, shape = _encode_image(field, value)
        else:
            cell, shape = _ENCODERS[field.kind](field, value), None
    except (TypeError, ValueError, OverflowError) as error:
        if isinstance(error, BatchplantError):
            raise
        raise SchemaError(f"{type(value).__name__} does not fit {field}: {error}") from None
    if field.optional and isinstance(cell, np.ndarray):
        cell = cell.tobytes()
    return cell, shape


@functools.cache
def _limits(dtype: str) -> tuple[float, float]:
    """Return the lowest and the highest number of a type."""
    if np.dtype(dtype).kind == "f":
        return float(np.finfo(dtype).min), float(np.finfo(dtype).max)
    return np.iinfo(dtype).min, np.iinfo(dtype).max


def _encode_number(field: Field, value: Any) -> Any:
    if isinstance(field, kinds.Int):
        plain = value.item() if isinstance(value, np.ndarray) else value
        number: int | float | bool = field.number(plain) if isinstance(plain, str) else operator.index(plain)
        lowest, highest = _limits(field.dtype)
        if not lowest <= number <= highest:
            raise SchemaError(f"{number} is out of range for {field.dtype}")
        return np.array(number, dtype=field.dtype)
    if isinstance(field, kinds.Float):
        if isinstance(value, str | bytes | bytearray):
            raise SchemaError(f"a Float field needs a number, not {value!r}")
        value = float(value.item() if isinstance(value, np.ndarray) else value)
        if abs(value) <= _limits(field.dtype)[1]:
            return np.array(value, dtype=field.dtype)
        with np.errstate(over="ignore"):
            real = np.array(value, dtype=field.dtype)
        if np.isinf(real) and not math.isinf(value):
            raise SchemaError(f"{value} is out of range for {field.dtype}")
        return real
    if not isinstance(value, bool | np.bool_):
        raise SchemaError(f"a Bool field needs True or False, not {value!r}")
    return np.array(value, dtype=np.bool_)


def _encode_tensor(field: Field, value: Any) -> Any:
    assert isinstance(field, kinds.Tensor)
    dtype = np.dtype(field.dtype)
    if isinstance(value, list | tuple | int | float | bool | complex):
        array = np.array(value, dtype=dtype)
    else:
        array = np.asarray(value)
        if not np.can_cast(array.dtype, dtype, "safe"):
            raise SchemaError(f"{array.dtype} values do not fit {dtype} exactly; convert them first")
        array = np.array(array, dtype=dtype, order="C")
    if not field.fits(array.shape):
        raise SchemaError(f"an array of shape {array.shape} does not fit {field}")
    return array if field.cell is not None else pack_tensor(field, array)


def _encode_bytes(field: Field, value: Any) -> Any:
    if isinstance(value, str):
        raise SchemaError("a Bytes field needs bytes, not text; encode it, or use a Text field")
    return bytes(memoryview(value))


def _encode_text(field: Field, value: Any) -> Any:
    if not isinstance(value, str):
        raise SchemaError(f"a Text field needs text, not {type(value).__name__}")
    return value.encode()


def _encode_time(field: Field, value: Any) -> Any:
    assert isinstance(field, kinds.Time | kinds.Duration)
    count = scalars.count_of(field, value)
    if count is None:
        # NaT is NumPy's and pandas' missing time.
        return encode_value(field, None)[0]
    return np.array(count, dtype=np.int64)


def _checked_polygons(value: Any) -> list[list[list[float]]]:
    """Return objects, each a list of rings ``[x, y, x, y, …]``; rings may be given as pairs, too."""
    if not isinstance(value, list | tuple):
        raise SchemaError(f"Polygons need a list of objects, not {type(value).__name__}")
    for instance in value:
        if not isinstance(instance, list | tuple):
            raise SchemaError(f"an object of Polygons needs a list of rings, not {type(instance).__name__}")
    return [[_ring(ring) for ring in instance] for instance in value]


def _ring(ring: Any) -> list[float]:
    try:
        points = np.asarray(ring, dtype=np.float64)
    except (TypeError, ValueError):
        points = np.empty(0)
    if points.ndim == 2 and points.shape[1] == 2:
        points = points.reshape(-1)
    if points.ndim != 1 or points.size < 6 or points.size % 2 or not np.isfinite(points).all():
        raise SchemaError("a ring is x and y of three points or more, [x, y, x, y, x, y, …]")
    return points.tolist()


def _encode_media(field: Field, value: Any) -> Any:
    """Return the bytes of an encoded file, given as bytes or by its path."""
    if isinstance(value, str | os.PathLike):
        try:
            with open_local(value) as file:
                return file.read()
        except OSError as error:
            raise EncodeError(f"{os.fspath(value)}: {error.strerror}") from None
    return bytes(memoryview(value))


def _encode_audio(field: Field, value: Any) -> Any:
    """Accept a file, or a pair (samples, rate): encoded as the field says, else as WAV, which is exact."""
    assert isinstance(field, kinds.Audio)
    if not isinstance(value, tuple):
        return _encode_media(field, value)
    samples, rate = value
    cell = audio.encode(samples, rate, field.encoding or "wav")
    header = audio.header(cell)
    for name, want, have in (("rate", field.rate, rate), ("channels", field.channels, header.channels)):
        if want not in (None, have):
            raise SchemaError(f"the sound has {name} {have}, and the field says {want}")
    return cell


def _encode_video(field: Field, value: Any) -> Any:
    """Accept besides files a pair (frames, fps); it is encoded as the field says, else as MP4."""
    assert isinstance(field, kinds.Video)
    if not isinstance(value, tuple):
        return _encode_media(field, value)
    frames, fps = value
    height, width = np.shape(frames)[1:3]
    for name, have in (("fps", fps), ("width", width), ("height", height)):
        want = getattr(field, name)
        if want not in (None, have):
            raise SchemaError(f"the video has {name} {have}, and the field says {want}")
    return video.encode(frames, fps, field.encoding or "mp4")


def _encode_image(field: Field, value: Any) -> tuple[Any, Shape]:
    """Store arrays and PIL images as raw pixels, or PNG or TIFF if they have more than 8 bits or 4 channels.

    The writer chooses how they are stored in the end.
    """
    assert isinstance(field, kinds.Image)
    if isinstance(value, str | os.PathLike | bytes | bytearray | memoryview):
        return _encode_media(field, value), None
    if hasattr(value, "getbands") and hasattr(value, "info"):
        if field.mask and value.mode == "P":
            return image.encode(np.asarray(value), "png", palette=image.palette_of(value)), None
        value = image.from_pillow(value)
    pixels = image.squeeze(np.asarray(value))
    mode = image.mode_of(pixels)
    if field.mode not in (None, mode) and (field.mode, mode) != ("P", "L"):
        hint = f"use Image(mode={mode!r})"
        if pixels.ndim == 3 and pixels.shape[0] in (1, 3, 4) and pixels.shape[2] > 4:
            hint = (
                f"an array {pixels.shape} looks like (channels, height, width), and images are (height, "
                "width, channels): give np.moveaxis(array, 0, -1)"
            )
        raise SchemaError(f"the image is {mode}, and the field says {field.mode}; {hint}")
    if not image.holds("raw", mode):
        return image.encode(pixels, "png" if image.holds("png", mode) else "tiff"), None
    return pixels.tobytes(), image.expand(pixels).shape


# Encoders of all kinds but images, whose cells may be raw pixels.
_ENCODERS: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("int", "float", "bool"), _encode_number),
    **dict.fromkeys(("tensor", "boxes", "keypoints", "labels"), _encode_tensor),
    **dict.fromkeys(("time", "duration"), _encode_time),
    **dict.fromkeys(
        ("list", "struct"), lambda field, value: json_text(nested.plain_of(field, value, encode_value))
    ),
    "bytes": _encode_bytes,
    "sparse": pack_row,
    "text": _encode_text,
    "json": lambda field, value: json_text(value),
    "polygons": lambda field, value: json_text(_checked_polygons(value)),
    "decimal": lambda field, value: scalars.decimal_text(field, value).encode(),
    "uuid": lambda field, value: scalars.uuid_text(value).encode(),
    "audio": _encode_audio,
    "video": _encode_video,
}


def decode_cell(field: Field, column: Column, row: int) -> Any:
    """Return the value of a cell: Python numbers, NumPy arrays, text, bytes, JSON values; None if missing."""
    if not isinstance(column, Ragged):
        cell = column[row]
        return cell if isinstance(field, kinds.Tensor) else _number(field, cell.item())
    data = column[row]
    if data is None:
        return None
    if column.shape is not None and column.shape[row].any():
        shape = tuple(int(size) for size in column.shape[row])
        if min(shape) < 0 or data.size != math.prod(shape):
            raise DecodeError(f"{data.size} bytes cannot be raw pixels of shape {shape}")
        return image.squeeze(data.reshape(shape))
    return decode_bytes(field, data)


def decode_texts(column: Ragged) -> Sequence[str | None] | None:
    """Return all cells of a Text field at once; None if one is not UTF-8."""
    texts = _native.texts(column.data, column.offsets)
    if texts is None or column.valid is None:
        return texts
    return [text if valid else None for text, valid in zip(texts, column.valid.tolist(), strict=True)]


def _number(field: Field, number: Any) -> Any:
    return scalars.value_of(field, number) if isinstance(field, kinds.Time | kinds.Duration) else number


def decode_bytes(field: Field, data: U8) -> Any:
    """Return the value of a ragged cell's bytes."""
    try:
        if isinstance(field, kinds.Image):
            return image.decode(data, field.mode, mask=field.mask)
        if isinstance(field, kinds.Audio):
            return audio.Sound(data.tobytes())
        if isinstance(field, kinds.Video):
            return video.Clip(data.tobytes())
        if isinstance(field, kinds.Text):
            text = data.tobytes().decode()
            if isinstance(field, kinds.Decimal):
                return scalars.decimal_value(field, text)
            return uuid.UUID(text) if isinstance(field, kinds.Uuid) else text
        if isinstance(field, kinds.Sparse):
            return unpack_row(field, data)
        if isinstance(field, kinds.Json):
            document = json.loads(data.tobytes())
            if isinstance(field, kinds.Polygons):
                return _checked_polygons(document)
            inner = isinstance(field, kinds.List | kinds.Struct)
            return nested.value_of(field, document, decode_bytes) if inner else document
        if isinstance(field, kinds.Tensor):
            return unpack_tensor(field, data)
        if isinstance(field, kinds.Int | kinds.Float | kinds.Bool):
            return _number(field, data.view(getattr(field, "dtype", "bool"))[0].item())
    except (DamagedError, SchemaError) as error:
        raise DecodeError(error.message) from None
    # RecursionError: JSON nested a hundred thousand deep.
    except (ValueError, IndexError, RecursionError) as error:
        raise DecodeError(f"not {field}: {error}") from None
    return data.tobytes()


def decode_sample(schema: Schema, columns: Columns, row: int) -> dict[str, Any]:
    """Return a sample as a dict; a cell that cannot be decoded raises with its field."""
    sample = {}
    for name, field in schema.items():
        try:
            sample[name] = decode_cell(field, columns[name], row)
        except BatchplantError as error:
            raise error.at(field=name) from None
    return sample


def cell_bytes(column: Column, row: int) -> bytes | None:
    """Return the bytes of a cell, in any kind of column."""
    if isinstance(column, Ragged):
        data = column[row]
        return None if data is None else data.tobytes()
    return as_bytes(column[row : row + 1]).tobytes()
