"""Columns as Hugging Face's datasets writes them, so that it reads our files with their features.

datasets takes a feature from the metadata of a file only where the column has exactly the type of the
feature, nullable: an image is ``struct<bytes: binary, path: string>``, a class an int64. Our own description
of each field stays in the metadata of its column and says whether a value may really be missing.

datasets keeps a file as its bytes, its path, or both. Where there is only a path, the bytes are read from the
folder that the table lies in; a path is followed only below that folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import BatchplantError, DecodeError, located
from ...schema import Audio, Field, Image, Int, Labels, List, Schema, Tensor, Video
from ...storage import absolute, is_below, join, parent, read_whole, tree
from .types import (
    KEY,
    arrow_schema,
    is_any_list,
    is_file_struct,
    is_list,
    is_text,
    numbers,
    pyarrow,
    valid_of,
)

if TYPE_CHECKING:
    import pyarrow as pa


HUGGING_FACE = b"huggingface"
# Names of the types of arrays, which datasets registers when it is imported.
EXTENSION = {
    f"Array{axes}D": f"datasets.features.features.Array{axes}DExtensionType".encode() for axes in range(2, 6)
}


def featured_schema(schema: Schema, *, arrays: bool = True) -> pa.Schema:
    """The Arrow schema of these fields with the features of datasets in its metadata.

    ``arrays``: with Array2D to Array5D, which are lists in lists of any size, and not used in place.
    """
    pa = pyarrow()
    fields, features = [], {}
    for name, arrow_field in zip(schema, arrow_schema(schema), strict=True):
        hint = _hint(schema[name])
        if hint is not None and (arrays or hint["_type"] not in EXTENSION):
            arrow_field = arrow_field.with_type(_featured(hint, arrow_field.type)).with_nullable(True)
            if (extension := EXTENSION.get(hint["_type"])) is not None:
                described = json.dumps([hint["shape"], hint["dtype"]]).encode()
                added = {b"ARROW:extension:name": extension, b"ARROW:extension:metadata": described}
                arrow_field = arrow_field.with_metadata({**arrow_field.metadata, **added})
        else:
            arrow_field = arrow_field.with_type(_narrow(arrow_field.type))
            hint = _feature(arrow_field.type)
        fields.append(arrow_field)
        if hint is not None:
            features[name] = hint
    note = json.dumps({"info": {"features": features}}, ensure_ascii=False).encode()
    return pa.schema(fields, metadata={HUGGING_FACE: note})


def plain_batch(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return a record batch that lay in a stream with the types that it was written with.

    Once datasets is imported, pyarrow reads arrays as the extension types that their metadata name.
    """
    pa = pyarrow()
    arrays = [
        array.storage if isinstance(array, pa.ExtensionArray) and array.type != field.type else array
        for array, field in zip(batch.columns, schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _featured(hint: dict[str, Any], kind: pa.DataType) -> pa.DataType:
    """Return the type that a feature of datasets has exactly, from that of ours."""
    if hint["_type"] in EXTENSION:
        return _nested_lists(kind)
    if hint["_type"] == "Sequence":
        return _narrow(kind)
    return kind if hint["_type"] == "ClassLabel" else file_struct()


def _nested_lists(kind: pa.DataType) -> pa.DataType:
    """Return the type with lists of any size for those of one size."""
    return pyarrow().list_(_nested_lists(kind.value_type)) if is_any_list(kind) else kind


def file_struct() -> pa.DataType:
    """The type of images, sounds and videos: the bytes of a file, and its name."""
    pa = pyarrow()
    return pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def plain_files(described: pa.Schema) -> pa.Schema:
    """The schema of a file, in which images that we wrote are columns of bytes."""
    pa = pyarrow()
    for number, field in enumerate(described):
        if field.type == file_struct() and KEY in (field.metadata or {}):
            described = described.set(number, field.with_type(pa.large_binary()))
    return described


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
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
    if type(field) is Int and field.dtype == "int64":
        return _classes(field.names)
    if isinstance(field, List) and type(field.of) is Int and (classes := _hint(field.of)) is not None:
        return {"feature": classes, "length": -1, "_type": "Sequence"}
    if isinstance(field, Labels) and (classes := _classes(field.names)) is not None:
        return {"feature": classes, "length": -1, "_type": "Sequence"}
    if isinstance(field, Tensor) and is_list(field) and f"Array{len(field.shape)}D" in EXTENSION:
        return {"shape": list(field.shape), "dtype": field.dtype, "_type": f"Array{len(field.shape)}D"}
    return None


def _classes(names: Sequence[str] | None) -> dict[str, Any] | None:
    """Return the feature of classes; datasets has no two of one name."""
    unique = names and len(set(names)) == len(names)
    return {"names": list(names), "_type": "ClassLabel"} if names and unique else None


def _narrow(kind: pa.DataType) -> pa.DataType:
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


def _feature(kind: pa.DataType) -> Any:
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


# -- files of which a table has only the path ----------------------------------------------------------------


def with_files(table: pa.Table, *paths: str) -> pa.Table:
    """The table or record batch, the bytes filled in where there is only a path; DecodeError with the row.

    ``paths``: of the table; in the folders of these the files may lie.
    """
    for number, field in enumerate(table.schema):
        if is_file_struct(field.type):
            column = table.column(number)
            filled = _filled(column, paths, field.name)
            if filled is not column:
                table = table.set_column(number, field.name, filled)
    return table


def path_structs(schema: Schema, table: pa.Table) -> pa.Table:
    """The table or record batch; text that is to be images, sounds or videos becomes paths of files."""
    pa = pyarrow()
    for number, field in enumerate(table.schema):
        if not isinstance(schema.get(field.name), Image | Audio | Video) or not is_text(field.type):
            continue
        paths = table.column(number)
        chunks = [
            pa.StructArray.from_arrays([pa.nulls(len(chunk), pa.large_binary()), chunk], ["bytes", "path"])
            for chunk in _chunks(paths)
        ]
        kind = pa.struct([("bytes", pa.large_binary()), ("path", field.type)])
        structs = pa.chunked_array(chunks, kind)
        structs = structs if isinstance(paths, pa.ChunkedArray) else structs.combine_chunks()
        table = table.set_column(number, pa.field(field.name, structs.type), structs)
    return table


def is_missing(array: pa.Array) -> bool:
    """True if a value has neither bytes nor a path."""
    return any(bool((~data & ~path).any()) for data, path in map(_present, _chunks(array)))


def _chunks(array: pa.Array) -> Iterable[Any]:
    return array.chunks if isinstance(array, pyarrow().ChunkedArray) else [array]


def _present(array: pa.Array) -> tuple[Any, Any]:
    """Flags of the values that have bytes, and of those that have a path."""
    array.validate()
    parts = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    return valid_of(parts["bytes"]), valid_of(parts["path"])


def _filled(column: pa.ChunkedArray, paths: Sequence[str], field: str) -> pa.ChunkedArray:
    pa = pyarrow()
    pieces, first, changed = [], 0, False
    for array in _chunks(column):
        has_bytes, named = _present(array)
        lost = np.flatnonzero(~has_bytes & named)
        if len(lost):
            changed = True
            full = [absolute(path) for path in paths]
            folders = list(dict.fromkeys(path if tree.is_folder(path) else parent(path) for path in full))
            array.validate(full=True)
            parts = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
            cells = parts["bytes"].to_pylist()
            for row in lost.tolist():
                with located(sample=first + row, field=field):
                    cells[row] = _read(parts["path"][row].as_py(), folders)
            values = [pa.array(cells, pa.large_binary()), parts["path"]]
            array = pa.StructArray.from_arrays(values, ["bytes", "path"], mask=numbers(~has_bytes & ~named))
        pieces.append(array)
        first += len(array)
    if not changed:
        return column
    same = pa.large_binary()
    kind = pa.struct([("bytes", same), ("path", next(p for p in pieces).type.field("path").type)])
    filled = pa.chunked_array([piece.cast(kind) for piece in pieces])
    return filled if isinstance(column, pa.ChunkedArray) else filled.combine_chunks()


def _read(path: Any, folders: Sequence[str]) -> bytes:
    message = f"its bytes are not in the table, and its file {str(path)[:200]!r}"
    reason = "cannot be looked for: the table lies in no folder"
    for folder in folders:
        # An absolute path may lead into the folder, too, and so may a URL.
        inside = os.path.relpath(path, folder) if isinstance(path, str) and path.startswith("/") else path
        if isinstance(path, str) and path.startswith(f"{folder.rstrip('/')}/"):
            inside = path[len(folder.rstrip("/")) + 1 :]
        if not is_below(inside) or "://" in inside or "::" in inside:
            reason = f"does not lie in {folder}"
            continue
        try:
            return read_whole(join(folder, inside))
        except BatchplantError as error:
            reason = f"cannot be read in {folder}: {error.message}"
    raise DecodeError(f"{message} {reason}")
