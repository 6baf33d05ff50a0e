"""Which fields the features of Examples are: found by looking, or named by the user.

===================================== ======================================================================
feature                               field
===================================== ======================================================================
one bytes value                       Bytes; Image where the first of them are images
one int64, one float                  Int("int64"), Float("float32")
k int64s or floats                    Tensor(dtype, (k,)); (None,) where their number varies
several bytes values                  Json, a list: text, or {"base64": …} for what is not UTF-8
feature list, k numbers in each step  Tensor(dtype, (None, k)); (None,) where k is 1
any other feature list                Json, a list of the steps
missing in some records               the same, optional
===================================== ======================================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import _native
from ..errors import OptionError, SchemaError
from ..schema import Bytes, Field, Float, Image, Int, Json, Tensor
from ..schema.columns import I64, U8, Ragged
from .example import (
    BYTES,
    FLOAT,
    INT64,
    KIND_NAMES,
    WIRE_DTYPES,
    Feature,
    bytes_column,
    feature_of,
    values_of,
)
from .infer import infer_image


@dataclasses.dataclass(frozen=True)
class Seen:
    """What :class:`batchplant._native.ExampleSurvey` found out about one feature; kinds: a bit for each."""

    key: str
    sequence: bool
    kinds: int
    present: int
    fewest: int
    most: int
    step_fewest: int
    step_most: int
    other: int

    @property
    def kind(self) -> int:
        return next((kind for kind in (BYTES, FLOAT, INT64) if self.kinds >> kind & 1), BYTES)


def seen_by(survey: _native.ExampleSurvey) -> list[Seen] | None:
    """The features; None where the records are hardly Examples: only unknown parts in one, or odd names."""
    try:
        found = [Seen(one[0].decode(), *one[1:]) for one in survey.features()]
    except UnicodeDecodeError:
        return None
    good = all(one.key and "\0" not in one.key for one in found) and not survey.foreign
    return found if good else None


def images(found: Iterable[Seen], data: U8, starts: I64, sizes: I64) -> dict[str, Image]:
    """The features that hold an image in each of these records, by name."""
    images = {}
    for one in found:
        if one.kinds == 1 << BYTES and not one.sequence and one.fewest == one.most == 1:
            feature = Feature(Bytes(optional=True), one.key, BYTES)
            cells = bytes_column(feature, values_of(data, starts, sizes, [feature.request])[0], data)
            assert isinstance(cells, Ragged)
            image = infer_image(cells if cells.valid is None else cells.take(cells.valid))
            if image is not None:
                images[one.key] = image
    return images


def infer(found: Sequence[Seen], records: int, images: Mapping[str, Image]) -> dict[str, Feature]:
    """The fields of a file with these features in so many records; ``images``: those that are images."""
    keys = {one.key for one in found if not one.sequence}
    features = {}
    for one in found:
        name = f"{one.key}[]" if one.sequence and one.key in keys else one.key
        if one.other >= 0:
            raise SchemaError(
                f"the feature is {KIND_NAMES[one.kind]} in some records and not in others; "
                "name the features to read with features={…}",
                sample=one.other,
                field=name,
            )
        field, listed = _field_of(one)
        if isinstance(field, Bytes):
            field = images.get(one.key, field)
        field = dataclasses.replace(field, optional=one.present < records)
        features[name] = Feature(field, one.key, one.kind, one.sequence, listed)
    return features


def _field_of(one: Seen) -> tuple[Field, bool]:
    varies = one.fewest != one.most
    if one.kind == BYTES or (one.sequence and one.step_fewest != one.step_most):
        if one.sequence or varies or one.most != 1:
            return Json(), True
        return Bytes(), False
    dtype = str(WIRE_DTYPES[one.kind])
    first = None if varies else one.most
    if one.sequence:
        # How many steps there are is a matter of the record, even where all have the same number.
        return Tensor(dtype, (None,) if one.step_most == 1 else (None, max(one.step_most, 0))), False
    if varies or one.most != 1:
        return Tensor(dtype, (first,)), False
    return (Int() if one.kind == INT64 else Float("float32")), False


@dataclasses.dataclass(frozen=True)
class FixedLen:
    """A feature of a fixed shape: ``FixedLen(bytes)``, ``FixedLen("int64", (2, 3))``.

    dtype: bytes, int64, float32, or a name of theirs. A record that lacks it is an error, unless there is a
    ``default``, or ``optional``: then the value is None.
    """

    dtype: Any
    shape: tuple[int, ...] = ()
    default: Any = None
    optional: bool = False


@dataclasses.dataclass(frozen=True)
class VarLen:
    """A feature of any number of values; a record that lacks it has none of them."""

    dtype: Any


@dataclasses.dataclass(frozen=True)
class FixedLenSequence:
    """A feature list of a SequenceExample, each step of a fixed shape."""

    dtype: Any
    shape: tuple[int, ...] = ()


def given(features: Mapping[str, Any]) -> dict[str, Feature]:
    """The fields that a user named: FixedLen, VarLen, FixedLenSequence, or a field kind."""
    found = {}
    for name, one in features.items():
        if isinstance(one, Field):
            found[name] = feature_of(name, one)
            continue
        if not isinstance(one, FixedLen | VarLen | FixedLenSequence):
            raise OptionError(f"a feature is FixedLen, VarLen or a field kind, not {one!r}", field=name)
        kind, field = _kind_of(one.dtype, name)
        sequence, fixed = isinstance(one, FixedLenSequence), isinstance(one, FixedLen)
        default = one.default if isinstance(one, FixedLen) else []
        shape: tuple[int | None, ...] = tuple(getattr(one, "shape", ()))
        shape = shape if fixed else (None, *shape)
        if shape:
            field = Json() if kind == BYTES else Tensor(str(WIRE_DTYPES[kind]), shape)
        field = dataclasses.replace(field, optional=isinstance(one, FixedLen) and one.optional)
        found[name] = Feature(field, name, kind, sequence, kind == BYTES and bool(shape), default)
    return found


def _kind_of(dtype: Any, name: str) -> tuple[int, Field]:
    # tf.string and np.int64 alike say what they are by their name.
    said = dtype if isinstance(dtype, str) else getattr(dtype, "name", None) or getattr(dtype, "__name__", "")
    if said in ("bytes", "string", "str"):
        return BYTES, Bytes()
    if said in ("int64", "int"):
        return INT64, Int()
    if said in ("float32", "float"):
        return FLOAT, Float("float32")
    raise OptionError(f"the values of a feature are bytes, int64 or float32, not {dtype!r}", field=name)
