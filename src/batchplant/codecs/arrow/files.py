"""Images and sounds of which a table has only the path: read from the folder that the table lies in.

Hugging Face's datasets keep a file as its bytes, its path, or both. A path is followed only below the folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ...errors import BatchplantError, DecodeError
from ...schema import Audio, Image, Schema, Video
from ...storage import absolute, is_below, join, parent, read_whole, tree
from .buffers import numbers, valid_of
from .types import is_file_struct, is_text, pyarrow


def _folders_of(paths: Sequence[str]) -> list[str]:
    """Folders in which files of these may lie: the folders themselves, and those of the files."""
    full = [absolute(path) for path in paths]
    return list(dict.fromkeys(path if tree.is_folder(path) else parent(path) for path in full))


def with_files(table: Any, *paths: str) -> Any:
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


def path_structs(schema: Schema, table: Any) -> Any:
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


def is_missing(array: Any) -> bool:
    """True if a value has neither bytes nor a path."""
    return any(bool((~data & ~path).any()) for data, path in map(_present, _chunks(array)))


def _chunks(array: Any) -> Iterable[Any]:
    return array.chunks if isinstance(array, pyarrow().ChunkedArray) else [array]


def _present(array: Any) -> tuple[Any, Any]:
    """Flags of the values that have bytes, and of those that have a path."""
    array.validate()
    parts = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
    return valid_of(parts["bytes"]), valid_of(parts["path"])


def _filled(column: Any, paths: Sequence[str], field: str) -> Any:
    pa = pyarrow()
    pieces, first, changed = [], 0, False
    for array in _chunks(column):
        has_bytes, named = _present(array)
        lost = np.flatnonzero(~has_bytes & named)
        if len(lost):
            changed = True
            folders = _folders_of(paths)
            array.validate(full=True)
            parts = dict(zip([field.name for field in array.type], array.flatten(), strict=True))
            cells = parts["bytes"].to_pylist()
            for row in lost.tolist():
                try:
                    cells[row] = _read(parts["path"][row].as_py(), folders)
                except DecodeError as error:
                    raise error.at(sample=first + row, field=field) from None
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
