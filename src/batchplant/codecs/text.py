"""Cells as text and back, for CSV and JSON.

============================== =================================================================
kind                           text
============================== =================================================================
Int                            decimal digits
Float                          the shortest digits that give the same number; always with a point or
                               an exponent
Bool                           true or false
Time, Duration                 ISO 8601: 2024-05-31, 2024-05-31T12:00:00.000Z, 12:00:00, PT1.5S; read also
                               from a bare whole number, which counts the units
Text, Json, Decimal, Uuid      the text, the JSON text, the digits, the UUID's 36 letters
List, Struct                   JSON; codecs/nested.py says how the values in it look
Bytes, Image, Audio, Video     base64
Tensor                         nested JSON lists; an empty one whose lists would not tell its shape is
                               ``{"shape": [0, 4]}``
============================== =================================================================
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from .. import _native
from ..errors import BatchplantError, DamagedError, DecodeError, EncodeError, OptionError
from ..schema import Bool, Bytes, Duration, Field, Float, Int, Json, List, Schema, Tensor, Text, Time
from ..schema.columns import I64, U8, Column, Columns, Flags, Ragged, as_bytes, column_runs, starts_of
from ..storage import limits
from . import nested, scalars
from .cells import decode_bytes
from .npy import array_of, lists_of, pack_tensor

# Classes of text, as in native/text/text.hpp.
WHOLE, NATURAL, LARGE, NEGATIVE, REAL, WORD, BOOLEAN, OTHER, MISSING, ARRAY, OBJECT, QUOTED = (
    1 << bit for bit in range(12)
)
NUMBER, TEXT, JSON, BASE64, NESTED = range(5)
MAX_TIME_LENGTH = 64
# Digits of a number in a message that it is too large.
MAX_DIGITS = 100


class Texts(NamedTuple):
    """The text of some cells; a missing one has the size -1."""

    data: U8
    starts: I64
    sizes: I64


# -- which kind it is --------------------------------------------------------------------------------------


def field_of(classes: int) -> Field | None:
    """Return the kind of cells of these classes; None if they are neither numbers nor booleans."""
    present = classes & ~MISSING
    if present == BOOLEAN:
        return Bool()
    if present & (OTHER | BOOLEAN | ARRAY | OBJECT | QUOTED) or not present & (WHOLE | NATURAL | REAL):
        return None
    if present & (REAL | WORD):
        return None if present & LARGE else Float()
    if present & NATURAL:
        return None if present & NEGATIVE else Int("uint64")
    return Int()


# -- reading -----------------------------------------------------------------------------------------------


def column(field: Field, cells: Texts) -> Column:
    """Parse the cells of a field from their text; an error's ``sample`` is the row."""
    data, starts, sizes = cells
    starts, sizes = np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
    present = sizes >= 0
    valid = None if present.all() else present
    if valid is not None and not field.optional:
        raise DecodeError("the value is missing, and the field is not optional", sample=int(np.argmin(valid)))
    if isinstance(field, Time | Duration):
        return _times(field, cells, valid)
    if isinstance(field, Int | Float | Bool) or (isinstance(field, Tensor) and not field.shape):
        return _numbers(field, data, starts, sizes, valid)
    if isinstance(field, Tensor):
        return _tensors(field, data, starts, sizes, valid)
    if isinstance(field, Text | Json):
        offsets = starts_of(sizes.clip(0))
        out = np.empty(offsets[-1], dtype=np.uint8)
        _native.copy_runs(data, starts, sizes.clip(0), out, offsets[:-1])
        return Ragged(out, offsets, valid=valid)
    decoded, offsets, failure = _native.text_base64(data, starts, sizes)
    _raise(failure, cells, "base64, as which bytes are written, nor the path of a file with a suffix")
    return Ragged(decoded, offsets, valid=valid)


def _raise(failure: tuple[int, int, str] | None, cells: Texts, expected: object) -> None:
    if failure is not None:
        raise DecodeError(f"{shown(cells, failure[0])} is not {expected}", sample=failure[0])


def shown(cells: Texts, row: int) -> str:
    start, size = int(cells.starts[row]), int(cells.sizes[row])
    text = cells.data[start : start + min(size, 41)].tobytes().decode(errors="replace")
    return repr(text if size <= 40 else text[:40] + "…")


def equal_to(cells: Texts, words: Sequence[str]) -> Flags:
    """Return which cells are one of these words."""
    matches = np.zeros(len(cells.starts), dtype=np.bool_)
    by_size: dict[int, list[bytes]] = {}
    for word in map(str.encode, words):
        by_size.setdefault(len(word), []).append(word)
    rows = np.flatnonzero((cells.sizes > 0) & (cells.sizes <= max(by_size, default=0)))
    # Most cells are numbers, which begin otherwise: they are rejected by their first letter.
    begins = np.zeros(256, dtype=np.bool_)
    begins[[word[0] for words_of_size in by_size.values() for word in words_of_size]] = True
    rows = rows[begins[cells.data[cells.starts[rows]]]]
    if not len(rows):
        return matches
    for size, words_of_size in by_size.items():
        alike = rows[cells.sizes[rows] == size]
        letters = np.ascontiguousarray(cells.data[cells.starts[alike][:, None] + np.arange(size)])
        matches[alike] = np.isin(letters.view(f"S{size}").reshape(-1), np.array(words_of_size))
    return matches


def _ragged(values: Any, valid: Any) -> Ragged:
    """Return numbers of one size as the cells of an optional field."""
    present = values if valid is None else values[valid]
    width = np.full(len(values), values.dtype.itemsize, dtype=np.int64)
    return Ragged(as_bytes(present), starts_of(width if valid is None else width * valid), valid=valid)


def _numbers(field: Field, data: U8, starts: I64, sizes: I64, valid: Any) -> Column:
    dtype = np.dtype(getattr(field, "dtype", "bool"))
    values = np.empty(len(starts), dtype=dtype)
    failure = _native.text_numbers(data, starts, sizes, dtype.kind, dtype.itemsize, as_bytes(values))
    cells = Texts(data, starts, sizes)
    if failure is not None and isinstance(field, Int):
        _raise_beyond(failure[0], cells, field)
    _raise(failure, cells, field)
    return _ragged(values, valid) if field.optional else values


def _raise_beyond(row: int, cells: Texts, field: Int) -> None:
    """Raise if the cell is a whole number, only too large."""
    start, size = int(cells.starts[row]), int(cells.sizes[row])
    digits = cells.data[start : start + min(size, MAX_DIGITS)].tobytes().strip()
    if size <= MAX_DIGITS and digits.removeprefix(b"-").isdigit():
        wide = "; uint64, a Decimal or a Float may hold it" if field.dtype == "int64" else ""
        raise DecodeError(f"{shown(cells, row)} is out of range for {field.dtype}{wide}", sample=row)


def _times(field: Time | Duration, cells: Texts, valid: Any) -> Column:
    counts = np.zeros(len(cells.starts), dtype=np.int64)
    rows = np.arange(len(counts)) if valid is None else np.flatnonzero(valid)
    sizes = cells.sizes[rows]
    # The longest text that can be valid, with many needless zeros.
    for row in rows[sizes > MAX_TIME_LENGTH][:1].tolist():
        raise DecodeError(f"{shown(cells, row)} is not {field}", sample=row)
    width = max(1, int(sizes.max(initial=0)))
    letters = np.zeros((len(rows), width), dtype=np.uint8)
    inside = np.arange(width) < sizes[:, None]
    letters[inside] = cells.data[(cells.starts[rows][:, None] + np.arange(width))[inside]]
    try:
        counts[rows] = scalars.counts_of(field, letters.view(f"S{width}").reshape(-1))
    except DecodeError as error:
        raise DecodeError(error.message, sample=int(rows[error.sample or 0])) from None
    return _ragged(counts, valid) if field.optional else counts


def _tensors(field: Tensor, data: U8, starts: I64, sizes: I64, valid: Any) -> Column:
    dtype = np.dtype(field.dtype)
    if field.cell is not None and 0 in field.shape:
        return np.zeros((len(starts), *field.cell[1]), dtype=dtype)
    if field.cell is None and not field.flat:
        return _free_tensors(field, Texts(data, starts, sizes))
    dims = [-1 if size is None else size for size in field.shape]
    decoded, offsets, failure = _native.json_arrays(data, starts, sizes, dtype.kind, dtype.itemsize, dims)
    _raise(failure, Texts(data, starts, sizes), field)
    if field.cell is not None:
        return decoded.view(dtype).reshape(len(starts), *field.cell[1])
    return Ragged(decoded, offsets, valid=valid)


def _free_tensors(field: Tensor, texts: Texts) -> Ragged:
    cells: list[bytes | None] = []
    for row, (start, size) in enumerate(zip(texts.starts.tolist(), texts.sizes.tolist(), strict=True)):
        if size < 0:
            cells.append(None)
            continue
        try:
            array = array_of(field, json.loads(texts.data[start : start + size].tobytes()))
        # Exceptions of NumPy for lists that are no array.
        except (ValueError, TypeError, OverflowError, KeyError, RecursionError):
            raise DecodeError(f"{shown(texts, row)} is not {field}", sample=row) from None
        cells.append(pack_tensor(field, array))
    return Ragged.from_cells(cells)


def numbers_of(field: List, cells: Ragged) -> Ragged:
    """Return the values of lists of numbers, as those of a one-dimensional Tensor of variable size."""
    element = field.of
    if isinstance(element, Time | Duration):
        cells_of_counts: list[bytes] = []
        for row, value in enumerate(map(_loads, cells)):
            try:
                cells_of_counts.append(np.asarray(nested.column_of(element, value), np.int64).tobytes())
            except BatchplantError as error:
                raise DecodeError(error.message, sample=row) from None
        return Ragged.from_cells(cells_of_counts)
    same = Tensor(getattr(element, "dtype", "bool"), (None,))
    values = column(same, Texts(cells.data, cells.starts, cells.sizes))
    assert isinstance(values, Ragged)
    return values


def _loads(cell: U8 | None) -> list[Any]:
    try:
        value = json.loads(b"" if cell is None else cell.tobytes())
    except (ValueError, RecursionError):
        value = None
    # The caller checks its elements.
    return value if isinstance(value, list) else [value]


# -- writing -----------------------------------------------------------------------------------------------


def refuses(field: Field, name: str) -> str | None:
    """Return why text cannot hold a field exactly."""
    dtype = np.dtype(getattr(field, "dtype", "int8"))
    if dtype.kind not in "biuf":
        return f"{name} has no text for {dtype} values; write npz, msgpack or parquet instead"
    return f"{name} holds at most float64 exactly, not {dtype}" if dtype.itemsize > 8 else None


def unfit(schema: Schema, columns: Columns) -> dict[int, BatchplantError]:
    """Return row → error for invalid text, and rows that would be too long."""
    errors: dict[int, BatchplantError] = {}
    total = np.zeros(columns.rows, dtype=np.int64)
    for name, field in schema.items():
        data, starts, sizes = column_runs(columns[name])
        total += sizes.clip(0)
        for far in scalars.unfit_rows(field, columns[name]):
            errors.setdefault(far, EncodeError(f"the count is out of range for {field}", field=name))
        if not isinstance(field, Text | Json):
            continue
        check = _native.json_check if isinstance(field, Json) else _native.utf8_check
        for row in np.flatnonzero(check(data, starts, np.ascontiguousarray(sizes))):
            encoding = "JSON" if isinstance(field, Json) else "UTF-8"
            errors.setdefault(int(row), EncodeError(f"the cell is no {encoding}", field=name))
    # Text may become longer than its value, by base64 and escapes.
    for row in np.flatnonzero(total > limits.max_bytes() // 4):
        errors.setdefault(int(row), EncodeError("the sample is too long for a row of text"))
    return errors


def with_usual_nans(schema: Schema, columns: Columns) -> Columns:
    """Replace NaNs of other bits (a sign, a payload), which text cannot hold, before checksums are taken."""
    changed = Columns(columns)
    for name, field in schema.items():
        cells = columns[name]
        dtype = np.dtype(getattr(field, "dtype", "bool"))
        if dtype.kind != "f":
            continue
        if not isinstance(cells, Ragged):
            changed[name] = (
                np.where(np.isnan(cells), dtype.type(np.nan), cells) if np.isnan(cells).any() else cells
            )
        elif isinstance(field, Float) or (isinstance(field, Tensor) and field.flat):
            part = cells.data[cells.offsets[0] : cells.offsets[-1]]
            if not part.size % dtype.itemsize and np.isnan(values := part.view(dtype)).any():
                usual = as_bytes(np.where(np.isnan(values), dtype.type(np.nan), values))
                changed[name] = Ragged(usual, cells.offsets - cells.offsets[0], valid=cells.valid)
        elif isinstance(field, Tensor):
            changed[name] = Ragged.from_cells([_usual_npy(field, cell) for cell in cells])
    return changed


def _usual_npy(field: Tensor, cell: U8 | None) -> Any:
    if cell is None:
        return None
    try:
        array: Any = decode_bytes(field, cell)
    # Writing it gives the error.
    except BatchplantError:
        return cell
    nans = np.isnan(array)
    return pack_tensor(field, np.where(nans, array.dtype.type(np.nan), array)) if nans.any() else cell


def pack(
    schema: Schema, columns: Columns, *, delimiter: str | None, before: bytes = b"", after: bytes = b"\n"
) -> U8:
    """Return rows of CSV, or of JSON if there is no delimiter."""
    parts = [_part(name, field, columns[name], delimiter is None) for name, field in schema.items()]
    return _native.text_pack(columns.rows, parts, delimiter is None, delimiter or "", before, after)[0]


def _part(name: str, field: Field, cells: Column, as_json: bool) -> tuple[Any, ...]:
    key = json.dumps(name, ensure_ascii=False).encode() + b":" if as_json else b""
    mode, inner = BASE64, []
    if isinstance(field, Time | Duration):
        mode, cells = TEXT, _time_texts(name, field, cells)
    elif isinstance(field, Text | Json):
        mode = TEXT if isinstance(field, Text) else JSON
    elif isinstance(field, Int | Float | Bool) or (isinstance(field, Tensor) and not field.shape):
        mode = NUMBER
    elif isinstance(field, Tensor):
        if field.cell is None and not field.flat:
            assert isinstance(cells, Ragged)
            mode, cells = JSON, _listed(name, field, cells)
        else:
            mode, inner = NESTED, [int(size or 0) for size in field.shape[1:]]
    data, starts, sizes = column_runs(cells)
    dtype = np.dtype(getattr(field, "dtype", "bool"))
    # Only a Json field distinguishes null from a missing value.
    omit = as_json and isinstance(field, Json)
    return key, mode, dtype.kind, dtype.itemsize, data, starts, np.ascontiguousarray(sizes), inner, omit


def _time_texts(name: str, field: Time | Duration, cells: Column) -> Ragged:
    """Return the ISO text of scalars."""
    valid = cells.valid if isinstance(cells, Ragged) else None
    counts = cells.data[cells.offsets[0] : cells.offsets[-1]] if isinstance(cells, Ragged) else cells
    try:
        texts = scalars.texts_of(field, counts.view(np.int64))
    except DecodeError as error:
        raise EncodeError(error.message, sample=error.sample, field=name) from None
    sizes = np.char.str_len(texts).astype(np.int64)
    letters = texts.view(np.uint8).reshape(len(texts), texts.dtype.itemsize)
    used = letters[np.arange(texts.dtype.itemsize) < sizes[:, None]]
    if valid is not None:
        all_sizes = np.zeros(len(valid), dtype=np.int64)
        all_sizes[valid] = sizes
        sizes = all_sizes
    return Ragged(used, starts_of(sizes), valid=valid)


def _listed(name: str, field: Tensor, cells: Ragged) -> Ragged:
    """Return the JSON of arrays of any shape."""
    texts: list[bytes | None] = []
    for row, cell in enumerate(cells):
        if cell is None:
            texts.append(None)
            continue
        try:
            array = decode_bytes(field, cell)
        except (DecodeError, DamagedError) as error:
            raise EncodeError(error.message, sample=row, field=name) from None
        texts.append(json.dumps(lists_of(array), separators=(",", ":")).encode())
    return Ragged.from_cells(texts)


def remarks(schema: Schema, name: str) -> list[str]:
    """Return remarks on how these fields are written that a user may not expect."""
    coded = [key for key, field in schema.items() if hasattr(field, "encoding") or isinstance(field, Bytes)]
    notes = []
    if coded:
        notes.append(
            f"{name} has no bytes: {', '.join(coded)} are base64 text, a third longer;"
            f" NAME.schema.json beside the file remembers what they are"
        )
    return notes


# The longer ones first: that of UTF-32 begins like that of UTF-16.
MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Python's own, which are no encodings of text files.
NO_FILES = ("idna", "punycode", "unicode-escape", "raw-unicode-escape")
# What an error says to whoever has such a file.
ENCODING_HINT = "where it is text of another encoding, name it: encoding='cp1252', 'utf-16' …"


def normalize_encoding(encoding: str | None) -> str | None:
    """The usual name of an encoding; None for UTF-8, and if none is given."""
    if encoding is None:
        return None
    try:
        # What Python calls codecs are also rot13, zip and base64; these are refused here.
        "a".encode(encoding)
        name = codecs.lookup(encoding).name
    except (LookupError, TypeError, ValueError):
        name = NO_FILES[0]
    if name in NO_FILES:
        raise OptionError(f"encoding is one such as 'cp1252', 'shift_jis' or 'utf-16', not {encoding!r}")
    return None if name in ("utf-8", "utf-8-sig", "ascii") else name


def marked(head: bytes) -> str | None:
    """The encoding that the byte order mark at the beginning of a file tells; None: UTF-8, or no mark."""
    return next((name for mark, name in MARKS if head.startswith(mark)), None)


def to_utf8(pieces: Iterable[U8], encoding: str) -> Iterator[U8]:
    """The same text as UTF-8; DamagedError with the byte where it is not in that encoding."""
    decoder = codecs.getincrementaldecoder(encoding)("strict")
    done = 0
    try:
        for piece in pieces:
            done += len(piece)
            yield np.frombuffer(decoder.decode(piece.tobytes()).encode(), dtype=np.uint8)
        yield np.frombuffer(decoder.decode(b"", True).encode(), dtype=np.uint8)
    except UnicodeDecodeError as error:
        # It is about what was left over from before, and the piece.
        position = max(0, done - len(error.object) + error.start)
        raise DamagedError(
            f"the bytes are not {encoding}; choose another with encoding=", offset=position
        ) from None
    except UnicodeError:
        raise DamagedError(f"the text does not fit {encoding}; choose another with encoding=") from None
