"""Columns as Hugging Face's datasets writes them, so that it reads our files with their features.

datasets takes a feature from the metadata of a file only where the column has exactly the type of the
feature, nullable: an image is ``struct<bytes: binary, path: string>``, a class an int64. Our own description
of each field stays in the metadata of its column and says whether a value may really be missing.
"""

from __future__ import annotations

import json
from typing import Any

from ...schema import Audio, Field, Image, Int, Schema, Video
from .types import KEY, arrow_schema, is_any_list, pyarrow

HUGGING_FACE = b"huggingface"


def featured_schema(schema: Schema) -> Any:
    """The Arrow schema of these fields with the features of datasets in its metadata."""
    pa = pyarrow()
    fields, features = [], {}
    for name, arrow_field in zip(schema, arrow_schema(schema), strict=True):
        hint = _hint(schema[name])
        if hint is not None:
            kind = arrow_field.type if hint["_type"] == "ClassLabel" else file_struct()
            arrow_field = arrow_field.with_type(kind).with_nullable(True)
        else:
            arrow_field = arrow_field.with_type(_narrow(arrow_field.type))
            hint = _feature(arrow_field.type)
        fields.append(arrow_field)
        if hint is not None:
            features[name] = hint
    note = json.dumps({"info": {"features": features}}, ensure_ascii=False).encode()
    return pa.schema(fields, metadata={HUGGING_FACE: note})


def file_struct() -> Any:
    """The type of images, sounds and videos: the bytes of a file, and its name."""
    pa = pyarrow()
    return pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def plain_files(described: Any) -> Any:
    """The schema of a file, in which images that we wrote are columns of bytes."""
    pa = pyarrow()
    for number, field in enumerate(described):
        if field.type == file_struct() and KEY in (field.metadata or {}):
            described = described.set(number, field.with_type(pa.large_binary()))
    return described


def as_type(array: Any, kind: Any) -> Any:
    """An array as the type that the schema names; bytes become those of files without a name."""
    pa = pyarrow()
    if array.type == kind:
        return array
    if not pa.types.is_large_binary(array.type) or not pa.types.is_struct(kind):
        return array.cast(kind)
    missing = array.is_null() if array.null_count else None
    parts = [array.cast(pa.binary()), pa.nulls(len(array), pa.string())]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=missing)


def _hint(field: Field) -> dict[str, Any] | None:
    """The feature of a field that its Arrow type does not tell."""
    if isinstance(field, Image):
        return {"_type": "Image"}
    if isinstance(field, Audio):
        return {"_type": "Audio"} if field.rate is None else {"sampling_rate": field.rate, "_type": "Audio"}
    if isinstance(field, Video):
        return {"_type": "Video"}
    if (
        type(field) is Int
        and field.dtype == "int64"
        and field.names
        and len(set(field.names)) == len(field.names)
    ):
        return {"names": list(field.names), "_type": "ClassLabel"}
    return None


def _narrow(kind: Any) -> Any:
    """The type with offsets of 32 bits, which is what datasets calls string, binary and List."""
    pa = pyarrow()
    types = pa.types
    if types.is_large_string(kind):
        return pa.string()
    if types.is_large_binary(kind):
        return pa.binary()
    if types.is_large_list(kind):
        return pa.list_(kind.value_field.with_type(_narrow(kind.value_type)))
    if types.is_struct(kind):
        return pa.struct([field.with_type(_narrow(field.type)) for field in kind])
    return kind


def _feature(kind: Any) -> Any:
    """The feature that a type is; None where datasets has none."""
    types = pyarrow().types
    if is_any_list(kind):
        inner = _feature(kind.value_type)
        length = kind.list_size if types.is_fixed_size_list(kind) else -1
        # Older versions know Sequence only, and newer ones still do. One of a struct means something else.
        plain = inner is not None and not (isinstance(inner, dict) and "_type" not in inner)
        return {"feature": inner, "length": length, "_type": "Sequence"} if plain else None
    if types.is_struct(kind):
        parts = {field.name: _feature(field.type) for field in kind}
        return None if None in parts.values() or "_type" in parts else parts
    if isinstance(kind, pyarrow().BaseExtensionType) or types.is_nested(kind):
        return None
    names = {"halffloat": "float16", "float": "float32", "double": "float64", "date32[day]": "date32"}
    text = str(kind)
    return {"dtype": names.get(text, text), "_type": "Value"}
