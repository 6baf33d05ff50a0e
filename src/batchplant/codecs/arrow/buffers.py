"""Numbers and flags as Arrow arrays and back, by their buffers.

``pyarrow.array`` and ``to_numpy`` import pandas where it is installed: half a second before a first batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DecodeError, EncodeError
from ...schema.columns import I64, U8, AnyArray, AnyDType, Flags, Ragged, starts_of
from .types import is_binary, is_text, pyarrow

if TYPE_CHECKING:
    import pyarrow as pa


# Where the two letters of each byte stand, and the dashes.
_PLACES = np.array([n for n in range(36) if n not in (8, 13, 18, 23)])
_LETTERS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_NUMBERS = np.full(256, 255, dtype=np.uint8)
_NUMBERS[_LETTERS] = range(16)
_NUMBERS[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = range(10, 16)


def numbers(values: AnyArray) -> pa.Array:
    """Numbers, or flags, as an array."""
    pa = pyarrow()
    data = _bits(values) if values.dtype == np.bool_ else np.ascontiguousarray(values)
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(data)])


def bitmap(valid: Flags | None) -> pa.Buffer | None:
    """The buffer that tells which values are there; None where all are."""
    return None if valid is None or valid.all() else pyarrow().py_buffer(_bits(valid))


def _bits(flags: Flags) -> U8:
    return np.packbits(flags, bitorder="little")


def view_of(array: pa.Array, dtype: AnyDType) -> AnyArray:
    """The values of an array of numbers where they lie."""
    data = array.buffers()[1]
    if not len(array):
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def flags_of(array: pa.Array) -> Flags:
    """Booleans, of which those that are missing may be either."""
    if not len(array):
        return np.zeros(0, np.bool_)
    first, skipped = divmod(array.offset, 8)
    count = skipped + len(array)
    bits = np.frombuffer(array.buffers()[1], np.uint8, -(-count // 8), first)
    return np.unpackbits(bits, count=count, bitorder="little")[skipped:].view(np.bool_)


def valid_of(array: pa.Array) -> Flags:
    """Flags of the values that are not missing."""
    return flags_of(array.is_valid())


def hexed(cells: Ragged) -> Ragged:
    """The text of UUIDs of 16 bytes."""
    present = cells.sizes > 0
    if (cells.sizes[present] != 16).any():
        raise DecodeError("a UUID has 16 bytes", sample=int(np.argmax(present & (cells.sizes != 16))))
    packed = cells.data[cells.offsets[0] : cells.offsets[-1]].reshape(-1, 16)
    text = np.full((len(packed), 36), ord("-"), dtype=np.uint8)
    text[:, _PLACES[::2]] = _LETTERS[packed >> 4]
    text[:, _PLACES[1::2]] = _LETTERS[packed & 15]
    return Ragged(text.reshape(-1), starts_of(present * np.int64(36)), valid=cells.valid)


def unhex(cells: Ragged) -> Ragged:
    """The 16 bytes of UUIDs by their text; a missing one takes its room, as in Arrow."""
    present = np.ones(len(cells), dtype=np.bool_) if cells.valid is None else cells.valid
    wrong = cells.sizes != np.where(present, 36, 0)
    if wrong.any():
        raise EncodeError("a UUID has 36 letters", sample=int(np.argmax(wrong)))
    text = cells.data[cells.offsets[0] : cells.offsets[-1]].reshape(-1, 36)
    digits = _NUMBERS[text[:, _PLACES]]
    if (digits > 15).any():
        row = int(np.flatnonzero(present)[np.argmax((digits > 15).any(axis=1))])
        raise EncodeError("a UUID consists of the digits 0 to f", sample=row)
    uuids: U8 = np.zeros((len(cells), 16), dtype=np.uint8)
    uuids[present] = digits[:, ::2] << 4 | digits[:, 1::2]
    return Ragged(uuids.reshape(-1), np.arange(len(cells) + 1, dtype=np.int64) * 16, valid=cells.valid)


def plain_size(array: pa.Array) -> int:
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
        elements = int(np.where(valid_of(array), lengths, 0).astype(np.int64).sum())
        return elements * int(_sizes(array.values).max(initial=0)) + 8 * len(array)
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

        lengths: I64 = pc.binary_length(values).fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        return lengths + 8
    try:
        return np.full(len(values), (kind.bit_width + 7) // 8, dtype=np.int64)
    # Nested types have no width.
    except ValueError:
        return np.full(len(values), plain_size(values), dtype=np.int64)


def _run_lengths(array: pa.Array) -> I64:
    ends = np.clip(array.run_ends.to_numpy().astype(np.int64) - array.offset, 0, len(array))
    return np.diff(ends, prepend=0)
