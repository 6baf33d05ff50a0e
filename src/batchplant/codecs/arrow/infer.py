"""The fields that Arrow types mean.

Our own description of a field travels in the metadata of its Arrow field, as JSON under the key
``batchplant``; it goes with a column wherever other programs move it. Where it is missing, or the type does
not hold what it says, the field follows from the type:

=================================== ==============================================================
Arrow type                          field
=================================== ==============================================================
integers, floats, bool              Int, Float, Bool
string                              Text
binary                              Image where the first values are images, else Bytes
struct {bytes, path}                the same, of ``bytes``; Audio, Video where Hugging Face's metadata says so
lists of numbers                    Tensor, its first size varying; List where whole numbers are missing
fixed-size lists of numbers         Tensor, all of its shape known
other lists, structs, maps          List, Struct, a List of structs of ``key`` and ``value``
timestamp, date, time, duration     Time, Duration
dictionary                          that of its values
decimal, UUID                       Decimal, Uuid
anything else                       Json
=================================== ==============================================================
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import schema as kinds
from ...errors import SchemaError
from ...schema import Field, Schema, field_from_json
from ...schema.columns import Ragged
from ...storage import NOTE_ERRORS, parse
from ..infer import infer_image
from .cells import column_of
from .hugging_face import HUGGING_FACE
from .types import KEY, is_any_list, is_binary, is_file_struct, is_text, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa


# Deeper lists than any array has axes.
DEEPEST = 32


def schema_of(
    arrow_schema: pa.Schema,
    sample: pa.Table | None = None,
    *,
    nulls: Collection[str] | None = None,
    gaps: Collection[str] = (),
) -> Schema:
    """The fields of an Arrow schema. ``sample``: a few rows, to see what bytes are.

    ``nulls``: the columns in which values are missing; None: any that may have some counts as one. ``gaps``:
    the lists inside of which whole numbers are missing; no tensor holds those.
    """
    check_names(arrow_schema)
    features = _features(arrow_schema.metadata)
    fields: dict[str, Field] = {}
    for arrow_field in arrow_schema:
        described = _described(arrow_field)
        # Another program may have changed the type, and copied the metadata.
        if described is not None and _holds(arrow_field.type, described):
            fields[arrow_field.name] = described
            continue
        cells: pa.Array | None = None
        if sample is not None and arrow_field.name in sample.schema.names:
            cells = sample.column(arrow_field.name)
        hint = features.get(arrow_field.name)
        field = _hinted(hint, arrow_field.type, cells) or _field_of(arrow_field.type, cells)
        if isinstance(field, kinds.List | kinds.Struct):
            field = _hinted_inside(hint, arrow_field.type, field)
        if arrow_field.name in gaps and isinstance(field, kinds.Tensor):
            field = _nested(arrow_field.type)
        missing = arrow_field.nullable if nulls is None else arrow_field.name in nulls
        fields[arrow_field.name] = dataclasses.replace(field, optional=bool(missing)) if missing else field
    return Schema(fields)


def check_names(arrow_schema: pa.Schema) -> None:
    """SchemaError where two columns have one name."""
    names = list(arrow_schema.names)
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise SchemaError(f"two columns are called {twice!r}")


def _described(arrow_field: pa.Field) -> Field | None:
    """The field that its metadata describes."""
    try:
        return field_from_json(parse((arrow_field.metadata or {})[KEY]))
    except (*NOTE_ERRORS, SchemaError):
        return None


def _holds(kind: pa.DataType, field: Field) -> bool:
    try:
        column_of(field, pyarrow().nulls(0, kind))
        return True
    # Whatever a library says about a conversion that it does not know.
    except Exception:
        return False


def _features(metadata: Mapping[bytes, bytes] | None) -> dict[str, Any]:
    """Metadata of Hugging Face's datasets about columns."""
    try:
        features = parse((metadata or {})[HUGGING_FACE])["info"]["features"]
        return features if isinstance(features, dict) else {}
    except NOTE_ERRORS:
        return {}


def _hinted(hint: Any, kind: pa.DataType, cells: pa.Array | None) -> Field | None:
    if not isinstance(hint, dict):
        return None
    types = pyarrow().types
    feature = str(hint.get("_type"))
    try:
        if feature == "ClassLabel" and types.is_integer(kind):
            return kinds.Int(str(kind), names=tuple(hint["names"]))
        if feature == "Image" and is_file_struct(kind):
            return _image(cells) or kinds.Image(mode=None)
        if feature == "Audio" and is_file_struct(kind):
            return kinds.Audio()
        if feature == "Video" and is_file_struct(kind):
            return kinds.Video()
        inner = hint.get("feature")
        classes = isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and is_any_list(kind)
        if feature in ("Sequence", "List") and classes and types.is_integer(kind.value_type):
            return kinds.Labels(tuple(hint["feature"]["names"]), dtype=str(kind.value_type))
        if feature in ("Array2D", "Array3D", "Array4D", "Array5D"):
            return kinds.Tensor(str(hint["dtype"]), tuple(hint["shape"]))
    except (KeyError, TypeError, ValueError):
        pass
    return None


def _hinted_inside(hint: Any, kind: pa.DataType, field: Field) -> Field:
    """A list or struct with what Hugging Face's metadata say about the values in it."""
    if isinstance(field, kinds.List) and is_any_list(kind):
        if isinstance(hint, list) and len(hint) == 1:
            inner = hint[0]
        else:
            inner = hint.get("feature") if isinstance(hint, dict) else None
        return dataclasses.replace(field, of=_hinted_inside(inner, kind.value_type, field.of))
    hinted = _hinted(hint, kind, None)
    if hinted is not None:
        return dataclasses.replace(hinted, optional=field.optional)
    if isinstance(field, kinds.Struct) and isinstance(hint, dict) and pyarrow().types.is_struct(kind):
        parts = [
            (name, _hinted_inside(hint.get(name), kind.field(name).type, part)) for name, part in field.fields
        ]
        return dataclasses.replace(field, fields=tuple(parts))
    return field


def _field_of(kind: pa.DataType, cells: pa.Array | None) -> Field:
    """The field that a type means by itself."""
    types = pyarrow().types
    if isinstance(kind, pyarrow().BaseExtensionType):
        return _extension(kind)
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _field_of(kind.value_type, cells)
    if types.is_boolean(kind):
        return kinds.Bool()
    if types.is_integer(kind):
        return kinds.Int(str(kind))
    if types.is_floating(kind):
        return kinds.Float(np.dtype(kind.to_pandas_dtype()).name)
    if is_text(kind):
        return kinds.Text()
    if is_binary(kind) or is_file_struct(kind):
        return _image(cells) or kinds.Bytes()
    if types.is_decimal(kind):
        return kinds.Decimal(kind.precision, kind.scale)
    if types.is_temporal(kind) and not types.is_interval(kind):
        return _time(kind)
    return _array(kind) or _nested(kind)


def _time(kind: pa.DataType) -> Field:
    types = pyarrow().types
    if types.is_date(kind):
        return kinds.Time("D")
    if types.is_duration(kind):
        return kinds.Duration(kind.unit)
    if types.is_timestamp(kind):
        # No zone is called by no name.
        return kinds.Time(kind.unit, kind.tz or None)
    return kinds.Time(kind.unit, clock=True)


def _nested(kind: pa.DataType, depth: int = 0) -> Field:
    """Lists and structs; what no field can name, or nobody nests so deep, is Json."""
    types = pyarrow().types
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return _nested(kind.value_type, depth)
    try:
        if depth < DEEPEST and types.is_map(kind):
            pairs = kinds.Struct(
                {"key": _inner(kind.key_field, depth), "value": _inner(kind.item_field, depth)}
            )
            return kinds.List(pairs)
        if depth < DEEPEST and is_any_list(kind):
            return kinds.List(_inner(kind.value_field, depth))
        if depth < DEEPEST and types.is_struct(kind) and kind.num_fields:
            return kinds.Struct([(arrow_field.name, _inner(arrow_field, depth)) for arrow_field in kind])
    except SchemaError:
        pass
    return kinds.Json() if depth == 0 or types.is_nested(kind) else _field_of(kind, None)


def _inner(arrow_field: pa.Field, depth: int) -> Field:
    """The field of a value inside of others; a number among them may be missing, so no lists are arrays."""
    kind = arrow_field.type
    plain = not isinstance(kind, pyarrow().BaseExtensionType)
    field = _nested(kind, depth + 1) if plain else _field_of(kind, None)
    if isinstance(field, kinds.Tensor):
        field = _nested(kind.storage_type, depth + 1)
    return dataclasses.replace(field, optional=True) if arrow_field.nullable else field


def _extension(kind: pa.DataType) -> Field:
    name = kind.extension_name
    if name == "arrow.json":
        return kinds.Json()
    if name == "arrow.uuid":
        return kinds.Uuid()
    if name == "arrow.fixed_shape_tensor":
        # One whose axes were permuted does not lie as its shape says.
        plain = kind.permutation in (None, list(range(len(kind.shape))))
        array = _array(kind.storage_type)
        return (
            dataclasses.replace(array, shape=tuple(kind.shape)) if array and plain else array or kinds.Json()
        )
    return _field_of(kind.storage_type, None)


def _array(kind: pa.DataType) -> kinds.Tensor | None:
    """The tensor that lists of numbers are, where only the first size varies."""
    types = pyarrow().types
    shape: list[int | None] = []
    while is_any_list(kind) and len(shape) < DEEPEST:
        shape.append(kind.list_size if types.is_fixed_size_list(kind) else None)
        kind = kind.value_type
    number = types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
    if not shape or not number or None in shape[1:] or 0 in shape:
        return None
    return kinds.Tensor(np.dtype(kind.to_pandas_dtype()).name, tuple(shape))


def is_whole_list(kind: pa.DataType) -> bool:
    """True for lists of whole numbers or truth values, in which none can be missing."""
    array = _array(kind)
    return array is not None and np.dtype(array.dtype).kind in "biu"


def has_gaps(array: pa.Array) -> bool:
    """True if a number is missing inside of a list, not the list itself."""
    if isinstance(array, pyarrow().ChunkedArray):
        return any(map(has_gaps, array.chunks))
    array.validate()
    while is_any_list(array.type):
        array = array.flatten()
        if array.null_count:
            return True
    return False


def _image(cells: pa.Array | None) -> kinds.Image | None:
    """Infer an image field from the first bytes that are not missing."""
    if cells is None:
        return None
    try:
        first = column_of(kinds.Bytes(optional=True), cells.drop_null()[:8])
        return infer_image(first.take(first.sizes > 0)) if isinstance(first, Ragged) else None
    # Bytes that no prober understands are bytes.
    except Exception:
        return None
