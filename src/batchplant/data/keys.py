"""Samples by key: ``reader.keys()`` and ``reader.by_key(key)``.

A key is what a format itself calls a sample (the key of an LMDB entry, the name of a file), or the value of a
field that tells samples apart. A table of n keys takes 8 bytes of hash for each, sorted, and the number of
its sample: no Python object for any of them. A hash only leads to a sample; its key is read and compared.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .. import _native
from ..codecs.cells import decode_cell, encode_samples
from ..errors import BatchplantError, OptionError, SampleKeyError, near
from ..order.keyed import mix
from ..schema import Bytes, Field, Int, Schema, Tensor, Text
from ..schema.columns import (
    I64,
    AnyArray,
    Column,
    Columns,
    Flags,
    Ragged,
    as_bytes,
    column_runs,
    starts_of,
    take_cells,
)
from ..storage import index

U64 = npt.NDArray[np.uint64]

# Keys that are read or compared at once.
BATCH_ROWS = 1 << 14
# Longer keys are hashed one by one.
MAX_SHORT_KEY_BYTES = 256
# Of the hash and of the table in an index file.
VERSION = 1
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
# Keys that are searched for one similar to a missing key, and keys that a message shows.
MAX_SEARCHED_KEYS, KEYS_SHOWN = 10_000, 5
# Digits that a number in a key may be padded to.
PADDED_DIGITS = range(1, 13)


@dataclasses.dataclass(frozen=True)
class FormatKeys:
    """The keys that a format itself gives its samples.

    ``read`` returns the keys of samples, ``read_short`` the keys without the part that users may leave out
    (a suffix). ``find`` returns the samples of keys, -1 for none; without it, keys are found by their hashes.
    """

    kind: Field
    read: Callable[[I64], Column]
    read_short: Callable[[I64], Column] | None = None
    find: Callable[[Ragged], I64] | None = None

    def mapped(self, base_rows: Callable[[I64], I64]) -> FormatKeys:
        """Return the keys of a wrapper's samples, whose numbers in its base ``base_rows`` tells."""
        read, read_short = self.read, self.read_short
        return FormatKeys(
            self.kind,
            lambda indices: read(base_rows(indices)),
            None if read_short is None else lambda indices: read_short(base_rows(indices)),
        )

    def reader_of(self, short: bool) -> Callable[[I64], Column] | None:
        return self.read_short if short else self.read


class KeyedSamples(Protocol):
    """The part of a reader that looking up keys uses."""

    path: str
    format: str
    schema: Schema

    def __len__(self) -> int: ...
    def _read(self, indices: I64, fields: Sequence[str]) -> Columns: ...
    def _consecutive(self, size: int, fields: tuple[str, ...]) -> Iterator[Columns]: ...
    def _keys(self) -> FormatKeys | None: ...
    def _key_table(self, field: str | None, short: bool) -> KeyTable: ...


class KeyTable(NamedTuple):
    """Hashes of keys, sorted, and the number of each one's sample; only samples that have a key."""

    hashes: U64
    rows: AnyArray

    @classmethod
    def of(cls, hashes: U64, rows: AnyArray) -> KeyTable:
        # Stable: of equal keys the first comes first; and runs that are sorted already are only merged.
        order = np.argsort(hashes, kind="stable")
        small = not len(rows) or int(rows.max()) < 2**32
        return cls(hashes[order], rows[order].astype(np.uint32 if small else np.int64, copy=False))

    @classmethod
    def joined(cls, parts: Iterable[KeyTable], firsts: Iterable[int]) -> KeyTable:
        """Concatenate the tables of parts; ``firsts``: the number of each part's first sample."""
        moved = [
            (part.hashes, part.rows + np.int64(first)) for part, first in zip(parts, firsts, strict=True)
        ]
        return cls.of(*(np.concatenate(list(arrays)) for arrays in zip(*moved, strict=True)))

    def take(self, chosen: I64, count: int) -> KeyTable:
        """Return the table of some samples out of ``count``."""
        entry_of_row = np.full(count, -1, dtype=np.int64)
        entry_of_row[self.rows] = np.arange(len(self.rows))
        entries = entry_of_row[chosen]
        rows = np.flatnonzero(entries >= 0)
        return KeyTable.of(self.hashes[entries[rows]], rows)


def hash_cells(data: npt.NDArray[np.uint8], starts: I64, sizes: I64) -> U64:
    """Hash each run of bytes; the same bytes have the same hash in every version of the index."""
    hashes = np.empty(len(sizes), dtype=np.uint64)
    short = sizes <= MAX_SHORT_KEY_BYTES
    for row in np.flatnonzero(~short).tolist():
        cell = data[starts[row] : starts[row] + sizes[row]]
        digest = hashlib.blake2b(np.ascontiguousarray(cell).data, digest_size=8).digest()
        hashes[row] = int.from_bytes(digest, "little")
    rows = np.flatnonzero(short)
    for batch in np.array_split(rows, max(1, len(rows) // BATCH_ROWS)):
        hashes[batch] = _hash_short(data, starts[batch], sizes[batch])
    return hashes


def _hash_short(data: npt.NDArray[np.uint8], starts: I64, sizes: I64) -> U64:
    width = max(1, -(-int(sizes.max(initial=0)) // 8))
    words = np.zeros((len(sizes), width), dtype=np.uint64)
    places = np.arange(len(sizes), dtype=np.int64) * (8 * width)
    _native.copy_runs(data, np.ascontiguousarray(starts), sizes, words.view(np.uint8).reshape(-1), places)
    hashes = sizes.astype(np.uint64) * _GOLDEN
    shortest = int(sizes.min(initial=0))
    for number in range(width):
        mixed = mix((hashes ^ words[:, number]) + _GOLDEN)
        # The width of the longest key must not change the hash of a shorter one.
        hashes = mixed if shortest > 8 * number else np.where(sizes > 8 * number, mixed, hashes)
    return hashes


def same_cells(left: Column, right: Column) -> Flags:
    """Compare the cells of two columns byte by byte; a missing cell equals another missing one."""
    if not isinstance(left, Ragged) and not isinstance(right, Ragged):
        width = left.dtype.itemsize * math.prod(left.shape[1:])
        left_bytes, right_bytes = (as_bytes(column).reshape(len(column), width) for column in (left, right))
        return (left_bytes == right_bytes).all(axis=1)
    (left_data, left_starts, sizes), (right_data, right_starts, right_sizes) = map(column_runs, (left, right))
    same = sizes == right_sizes
    rows = np.flatnonzero(same & (sizes > 0))
    lengths = np.ascontiguousarray(sizes[rows])
    ends = starts_of(lengths)
    copies = [np.empty(ends[-1], dtype=np.uint8) for _ in range(2)]
    runs = ((left_data, left_starts), (right_data, right_starts))
    for copy, (data, starts) in zip(copies, runs, strict=True):
        _native.copy_runs(data, np.ascontiguousarray(starts[rows]), lengths, copy, ends[:-1].copy())
    different = np.flatnonzero(copies[0] != copies[1])
    same[rows[np.searchsorted(ends, different, side="right") - 1]] = False
    return same


def is_table(arrays: index.Arrays, samples: int) -> bool:
    """Check the arrays of a KeyTable that an index file stores."""
    hashes, rows = arrays["hashes"], arrays["rows"]
    typed = hashes.dtype == np.uint64 and rows.dtype in (np.uint32, np.int64) and rows.ndim == 1
    in_range = not len(rows) or 0 <= int(rows.min()) <= int(rows.max()) < samples
    return typed and hashes.shape == rows.shape and in_range


def scan_keys(reader: KeyedSamples, field: str | None, short: bool) -> KeyTable:
    """Read all keys, the format's own or those in a field, into a table."""
    hashes: list[U64] = [np.empty(0, np.uint64)]
    row_numbers: list[I64] = [np.empty(0, np.int64)]
    first = 0
    for column in key_columns(reader, field, short):
        data, starts, sizes = column_runs(column)
        rows = np.flatnonzero(sizes >= 0)
        hashes.append(hash_cells(data, starts[rows], sizes[rows]))
        row_numbers.append(rows + first)
        first += len(column)
    return KeyTable.of(np.concatenate(hashes), np.concatenate(row_numbers))


def key_columns(
    reader: KeyedSamples, field: str | None, short: bool = False, rows: int = BATCH_ROWS
) -> Iterator[Column]:
    """Yield all keys, ``rows`` at a time."""
    if field is not None:
        yield from (columns[field] for columns in reader._consecutive(rows, (field,)))
        return
    format_keys = reader._keys()
    read = None if format_keys is None else format_keys.reader_of(short)
    assert read is not None
    for start in range(0, len(reader), rows):
        yield read(np.arange(start, min(start + rows, len(reader))))


class Keys:
    """The keys of a dataset: ``key in keys``, ``len(keys)``, ``keys.index(key)``, ``keys.indices(many)``.

    Iterating gives the keys in the order of the samples.
    """

    def __init__(self, reader: KeyedSamples, field: str | None = None) -> None:
        self.reader, self._field = reader, field
        self._format_keys = reader._keys() if field is None else None
        kind = None if self._format_keys is None else self._format_keys.kind
        kind = kind if field is None else reader.schema[field]
        if kind is None:
            raise OptionError(
                f"{reader.format or 'this dataset'} has no keys of its own; name the field that holds them, "
                f"as by_key(…, field={next(iter(reader.schema))!r})",
                path=reader.path,
            )
        self._kind = dataclasses.replace(kind, optional=False)
        if not _can_be_key(self._kind):
            message = f"keys are whole numbers, text, bytes, dates or UUIDs, and this is {kind}"
            raise OptionError(message, path=reader.path, field=field)
        # When the table was made; a dataset can grow.
        self.samples = len(reader)
        self._tables: dict[bool, KeyTable | None] = {}

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Keys, (self.reader, self._field)

    def _table(self, short: bool = False) -> KeyTable | None:
        """Return the table; None for short keys, if the format has none."""
        if short not in self._tables:
            exists = not short or (self._format_keys is not None and self._format_keys.read_short is not None)
            self._tables[short] = self.reader._key_table(self._field, short) if exists else None
        return self._tables[short]

    def __len__(self) -> int:
        if self._field is None or not self.reader.schema[self._field].optional:
            return len(self.reader)
        table = self._table()
        assert table is not None
        return len(table.rows)

    def __iter__(self) -> Iterator[Any]:
        for column in key_columns(self.reader, self._field):
            for row in range(len(column)):
                value = self._value(column, row)
                if value is not None:
                    yield value

    def __contains__(self, key: object) -> bool:
        try:
            cells = self._cells([key])
        except BatchplantError:
            return False
        return bool(len(self._matches(cells)[0]))

    def __repr__(self) -> str:
        of = "" if self._field is None else f" of {self._field!r}"
        return f"<Keys{of}: {len(self):,} keys of {len(self.reader):,} samples>"

    def index(self, key: object) -> int:
        """Return the number of the sample that has this key."""
        return int(self.indices([key])[0])

    def indices(self, keys: Iterable[object]) -> I64:
        """Return the numbers of the samples that have these keys, in the order of the keys."""
        wanted_keys = keys if isinstance(keys, np.ndarray) else list(keys)
        try:
            cells = self._cells(wanted_keys)
        except BatchplantError as error:
            key = wanted_keys[error.sample or 0]
            message = f"no sample has the key {key!r}: {error.message}"
            raise SampleKeyError(message, path=self.reader.path, field=self._field) from None
        key_numbers, rows = self._matches(cells)
        counts = np.bincount(key_numbers, minlength=len(wanted_keys))
        if not (counts == 1).all():
            raise self._error(wanted_keys, key_numbers, rows, counts)
        sample_numbers = np.empty(len(wanted_keys), dtype=np.int64)
        sample_numbers[key_numbers] = rows
        return sample_numbers

    # -- looking up ------------------------------------------------------------------------------------

    def _cells(self, keys: Any) -> Column:
        """Encode keys as cells of their kind."""
        kind = self._kind
        if type(kind) in (Text, Bytes):
            return _encode_texts(keys)
        integers = isinstance(kind, Int) and isinstance(keys, np.ndarray) and keys.dtype.kind in "iu"
        if integers and isinstance(kind, Int) and np.can_cast(keys.dtype, kind.dtype, "safe"):
            return np.ascontiguousarray(keys, dtype=kind.dtype)
        return encode_samples(Schema(key=kind), [{"key": key} for key in keys])["key"]

    def _matches(self, cells: Column) -> tuple[I64, I64]:
        """Find the samples of these keys: pairs of a key's number and a sample's, in the order of keys."""
        if self._format_keys is not None and self._format_keys.find is not None and isinstance(cells, Ragged):
            rows = self._format_keys.find(cells)
            present = np.flatnonzero(rows >= 0)
            return present, rows[present]
        key_numbers, rows = self._hash_matches(cells, short=False)
        if len(np.unique(key_numbers)) < len(cells):
            # A full key goes before a short one.
            missing = np.setdiff1d(np.arange(len(cells)), key_numbers)
            short_numbers, short_rows = self._hash_matches(take_cells(cells, missing), short=True)
            key_numbers = np.concatenate([key_numbers, missing[short_numbers]])
            rows = np.concatenate([rows, short_rows])
            order = np.argsort(key_numbers, kind="stable")
            key_numbers, rows = key_numbers[order], rows[order]
        return key_numbers, rows

    def _hash_matches(self, cells: Column, short: bool) -> tuple[I64, I64]:
        """Find samples by the hashes of keys, and compare the keys themselves."""
        table = self._table(short)
        none = np.empty(0, dtype=np.int64)
        if table is None:
            return none, none
        data, starts, sizes = column_runs(cells)
        hashes = hash_cells(data, starts, sizes)
        low = np.searchsorted(table.hashes, hashes, "left")
        counts = np.searchsorted(table.hashes, hashes, "right") - low
        key_numbers = np.repeat(np.arange(len(hashes)), counts)
        if not len(key_numbers):
            return none, none
        first_match = np.repeat(starts_of(counts)[:-1], counts)
        entries = np.arange(len(key_numbers)) - first_match + np.repeat(low, counts)
        rows = table.rows[entries].astype(np.int64)
        same = np.zeros(len(rows), dtype=np.bool_)
        for start in range(0, len(rows), BATCH_ROWS):
            batch = slice(start, start + BATCH_ROWS)
            same[batch] = same_cells(self._read(rows[batch], short), take_cells(cells, key_numbers[batch]))
        return key_numbers[same], rows[same]

    def _read(self, rows: I64, short: bool = False) -> Column:
        if self._field is not None:
            return self.reader._read(rows, (self._field,))[self._field]
        read = None if self._format_keys is None else self._format_keys.reader_of(short)
        assert read is not None
        return read(rows)

    def _value(self, column: Column, row: int) -> Any:
        """Decode a key as the user writes it; None if it is missing."""
        if self._field is None and isinstance(self._kind, Text) and isinstance(column, Ragged):
            # Names of files can be anything.
            cell = column[row]
            return None if cell is None else cell.tobytes().decode("utf-8", "surrogateescape")
        value = decode_cell(self._kind, column, row)
        return value[()] if isinstance(value, np.ndarray) else value

    # -- messages --------------------------------------------------------------------------------------

    def _error(self, keys: Any, key_numbers: I64, rows: I64, counts: I64) -> SampleKeyError:
        """Return the error for the first key that is not the key of exactly one sample."""
        wrong = int(np.argmax(counts != 1))
        key = keys[wrong]
        if counts[wrong] > 1:
            duplicates = rows[key_numbers == wrong]
            more = f" and {len(duplicates) - 2:,} more" if len(duplicates) > 2 else ""
            samples = f"samples {duplicates[0]} and {duplicates[1]}{more}"
            message = f"{samples} have the key {key!r}; it tells none of them"
        else:
            missing = int((counts == 0).sum()) - 1
            also = f", nor {missing:,} others of those asked for" if missing else ""
            shown = ", ".join(map(repr, itertools.islice(self, KEYS_SHOWN)))
            shown += ", …" if len(self) > KEYS_SHOWN else ""
            hint = self._did_you_mean(key)
            message = f"no sample has the key {key!r}{also}{hint}; there are {len(self):,}: {shown}"
        return SampleKeyError(message, path=self.reader.path, field=self._field)

    def _did_you_mean(self, key: object) -> str:
        """Return `` (did you mean x?)`` if there is a similar key; else nothing."""
        if not isinstance(key, str | bytes):
            return ""
        text = key if isinstance(key, str) else key.decode("utf-8", "replace")
        variants = forms(text)
        numbers, _ = self._matches(Ragged.from_cells([_encode(variant) for variant in variants]))
        if len(numbers):
            similar = dict.fromkeys(variants[number] for number in numbers.tolist())
            return f" (did you mean {' or '.join(list(similar)[:3])}?)"
        searched = itertools.islice(self, MAX_SEARCHED_KEYS)
        return near(
            text, [key if isinstance(key, str) else key.decode("utf-8", "replace") for key in searched]
        )


def _encode_texts(keys: Iterable[object]) -> Ragged:
    cells = []
    for row, key in enumerate(keys):
        try:
            cells.append(_encode(key))
        except BatchplantError as error:
            raise error.at(sample=row) from None
    return Ragged.from_cells(cells)


def _encode(key: object) -> bytes:
    if isinstance(key, str):
        return key.encode("utf-8", "surrogateescape")
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise OptionError("keys are text or bytes here")


def _can_be_key(kind: Field) -> bool:
    if isinstance(kind, Tensor):
        return kind.shape == () and np.dtype(kind.dtype).kind in "iumM"
    return isinstance(kind, Int | Text | Bytes)


# -- variants of a key, so that a similar one is found without reading millions of keys ----------------------


def forms(key: str) -> list[str]:
    """Return the key in other forms: letter case, folders, suffix, digits."""
    variants = [key.strip(), key.lower(), key.upper(), key.replace("\\", "/").removeprefix("./").lstrip("/")]
    variants += [key.rpartition("/")[2], key.rpartition(".")[0]]
    parts = re.split(r"(\d+)", key)
    for width in PADDED_DIGITS:
        # Every second part is a number.
        variants.append(
            "".join(part.lstrip("0").zfill(width) if n % 2 else part for n, part in enumerate(parts))
        )
    return [variant for variant in dict.fromkeys(variants) if variant and variant != key]
