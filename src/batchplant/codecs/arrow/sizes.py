"""How many bytes an Arrow array has once nothing in it is said by number, run or view."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...schema.columns import I64
from .buffers import valid_of
from .types import is_binary, is_text, pyarrow


def plain_size(array: Any) -> int:
    """The bytes of an array, or of a chunked one, as plain values. Its indices were checked."""
    pa = pyarrow()
    types = pa.types
    if isinstance(array, pa.ChunkedArray):
        return sum(plain_size(chunk) for chunk in array.chunks)
    if isinstance(array, pa.ExtensionArray):
        return plain_size(array.storage)
    kind = array.type
    if types.is_dictionary(kind):
        indices = array.indices.drop_null().to_numpy(zero_copy_only=False).astype(np.int64)
        return _taken(array.dictionary, np.bincount(indices, minlength=len(array.dictionary)))
    if types.is_run_end_encoded(kind):
        return _taken(array.values, _run_lengths(array))
    if types.is_list_view(kind) or types.is_large_list_view(kind):
        wide = np.int32 if types.is_list_view(kind) else np.int64
        lengths = np.frombuffer(array.buffers()[2] or b"", wide)[array.offset :][: len(array)]
        taken = int(np.where(valid_of(array), lengths, 0).astype(np.int64).sum())
        return taken * int(_sizes(array.values).max(initial=0)) + 8 * len(array)
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return int(_sizes(array).sum())
    if types.is_map(kind):
        return plain_size(array.keys) + plain_size(array.items) + 8 * len(array)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return plain_size(array.flatten()) + 8 * len(array)
    if types.is_struct(kind) or types.is_union(kind):
        return len(array) + sum(plain_size(array.field(number)) for number in range(kind.num_fields))
    return max(int(array.nbytes), len(array))


def _taken(values: Any, counts: I64) -> int:
    """The bytes of values that are taken so many times each."""
    if not len(values):
        return 0
    sizes = _sizes(values)
    # Python's numbers do not overflow, and are slow.
    wide = int(sizes.max()) * int(counts.sum()) >= 2**62
    return int((sizes.astype(object) * counts).sum() if wide else (sizes * counts).sum())


def _sizes(values: Any) -> I64:
    """The bytes of each value; of a nested one at most so many."""
    kind, types = values.type, pyarrow().types
    if types.is_string_view(kind) or types.is_binary_view(kind):
        # Sixteen bytes each, the length first.
        views = np.frombuffer(values.buffers()[1] or b"", np.int32)[4 * values.offset :][
            : 4 * len(values) : 4
        ]
        return np.where(valid_of(values), views, 0).astype(np.int64) + 8
    if is_text(kind) or (is_binary(kind) and not types.is_fixed_size_binary(kind)):
        import pyarrow.compute as pc

        found: I64 = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return found + 8
    try:
        return np.full(len(values), (kind.bit_width + 7) // 8, dtype=np.int64)
    # Nested types have no width.
    except ValueError:
        return np.full(len(values), plain_size(values), dtype=np.int64)


def _run_lengths(array: Any) -> I64:
    ends = np.clip(array.run_ends.to_numpy().astype(np.int64) - array.offset, 0, len(array))
    found: I64 = np.diff(ends, prepend=0)
    return found
