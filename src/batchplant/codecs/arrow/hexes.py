"""UUIDs: 16 bytes in tables, 36 letters in our cells."""

from __future__ import annotations

import numpy as np

from ...errors import DecodeError, EncodeError
from ...schema.columns import U8, Ragged, starts_of

# Where the two letters of each byte stand, and the dashes.
_PLACES = np.array([n for n in range(36) if n not in (8, 13, 18, 23)])
_LETTERS = np.frombuffer(b"0123456789abcdef", dtype=np.uint8)
_NUMBERS = np.full(256, 255, dtype=np.uint8)
_NUMBERS[_LETTERS] = range(16)
_NUMBERS[np.frombuffer(b"ABCDEF", dtype=np.uint8)] = range(10, 16)


def hexed(cells: Ragged) -> Ragged:
    """The text of UUIDs of 16 bytes."""
    there = cells.sizes > 0
    if (cells.sizes[there] != 16).any():
        raise DecodeError("a UUID has 16 bytes", sample=int(np.argmax(there & (cells.sizes != 16))))
    packed = cells.data[cells.offsets[0] : cells.offsets[-1]].reshape(-1, 16)
    text = np.full((len(packed), 36), ord("-"), dtype=np.uint8)
    text[:, _PLACES[::2]] = _LETTERS[packed >> 4]
    text[:, _PLACES[1::2]] = _LETTERS[packed & 15]
    return Ragged(text.reshape(-1), starts_of(there * np.int64(36)), valid=cells.valid)


def unhex(cells: Ragged) -> Ragged:
    """The 16 bytes of UUIDs by their text; a missing one takes its room, as in Arrow."""
    there = np.ones(len(cells), dtype=np.bool_) if cells.valid is None else cells.valid
    wrong = cells.sizes != np.where(there, 36, 0)
    if wrong.any():
        raise EncodeError("a UUID has 36 letters", sample=int(np.argmax(wrong)))
    text = cells.data[cells.offsets[0] : cells.offsets[-1]].reshape(-1, 36)
    digits = _NUMBERS[text[:, _PLACES]]
    if (digits > 15).any():
        row = int(np.flatnonzero(there)[np.argmax((digits > 15).any(axis=1))])
        raise EncodeError("a UUID consists of the digits 0 to f", sample=row)
    found: U8 = np.zeros((len(cells), 16), dtype=np.uint8)
    found[there] = digits[:, ::2] << 4 | digits[:, 1::2]
    return Ragged(found.reshape(-1), np.arange(len(cells) + 1, dtype=np.int64) * 16, valid=cells.valid)
