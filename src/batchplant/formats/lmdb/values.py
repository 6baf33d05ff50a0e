"""Kinds of values in environments that our writer did not make."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

from ... import _native
from ...codecs import sample
from ...codecs.cells import encode_samples
from ...codecs.infer import infer_field, infer_image
from ...codecs.msgpack import Runs, as_array, extension_of, gathered
from ...errors import BatchplantError, DecodeError, OptionError, SchemaError, UnsafeError
from ...schema import Bytes, Field, Image, Json, Schema, Text
from ...schema.columns import I64, U8, Columns, Ragged
from .codec import Codec
from .datum import DatumCodec

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
    """Maps of somebody else; or values that are no maps, as JSON."""

    name = "msgpack"

    def __init__(self, schema: Schema | None, data: U8, starts: I64, sizes: I64) -> None:
        values = []
        for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
            try:
                values.append(_native.msgpack_load(data, start, size, extension_of))
            except (ValueError, OverflowError, RecursionError) as error:
                raise DecodeError(f"not MessagePack: {error}", sample=row) from None
        self._bare = not all(_is_map(value) for value in values) or not values
        if schema is not None:
            self._bare = self._bare and len(schema) == 1 and bool(values)
            self._schema = schema
        elif self._bare:
            self._schema = Schema({VALUE: Json()})
        else:
            names = dict.fromkeys(name for value in values for name in value)
            columns = {name: [_plain(value.get(name)) for value in values] for name in names}
            self._schema = Schema((name, _field_of(column)) for name, column in columns.items())
        self.fields = self._schema

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        return sample.unpack(self._schema, fields, data, starts, sizes, bare=self._bare, foreign=True)

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        return sample.find(self._schema, field, data, starts, sizes, bare=self._bare, foreign=True)


def _is_map(value: Any) -> bool:
    return isinstance(value, dict) and bool(value) and all(isinstance(name, str) for name in value)


def _plain(value: Any) -> Any:
    found = as_array(value)
    return value if found is None else found


def _field_of(values: list[Any]) -> Field:
    present = [value for value in values if value is not None]
    if present and all(isinstance(value, bytes) for value in present):
        cells = Ragged.from_cells(present)
        image = infer_image(cells)
        if image is not None and len(present) == len(values):
            return image
    try:
        return infer_field(values)
    except SchemaError:
        return Json(optional=len(present) < len(values))


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
        wanted = self._schema.select(fields)
        samples = []
        for row, value in enumerate(self._load(data, starts, sizes)):
            value = {VALUE: value} if self._whole else value
            if not isinstance(value, dict):
                raise DecodeError(f"the pickle is a {type(value).__name__}, not a dict", sample=row)
            samples.append({name: value.get(name) for name in wanted})
        try:
            return encode_samples(wanted, samples)
        except BatchplantError as error:
            place = {"sample": error.sample, "field": error.field}
            raise DecodeError(error.message, **place) from None  # type: ignore[arg-type]


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
        "msgpack": lambda: MsgpackCodec(schema, data, starts, sizes),
        "datum": lambda: DatumCodec(data, starts, sizes, bgr=bgr),
        "pickle": lambda: PickleCodec(allow_pickle, data, starts, sizes),
    }
    if name not in makers:
        raise OptionError(f"codec is one of {', '.join(makers)}, not {name!r}")
    if schema is not None and name != "msgpack":
        raise OptionError("a schema can be given for values of the codec msgpack only")
    return makers[name]()
