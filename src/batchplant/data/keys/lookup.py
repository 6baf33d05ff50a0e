"""The keys of a dataset, looked up."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codecs.cells import decode_cell, encode_samples
from ...errors import BatchplantError, OptionError, SampleKeyError, near
from ...schema import Bytes, Field, Int, Schema, Tensor, Text
from ...schema.columns import I64, Column, Ragged, column_runs, starts_of
from .slips import forms, slips
from .table import ROWS, Table, hash_cells, key_columns, same_cells

if TYPE_CHECKING:
    from ..reader import Reader

# Keys that are looked through for one like a key that is not there, and keys that a message shows.
LOOKED_AT, SHOWN = 10_000, 5


class Keys:
    """The keys of a dataset: ``key in keys``, ``len(keys)``, ``keys.index(key)``, ``keys.indices(many)``.

    Iterating gives the keys in the order of the samples.
    """

    def __init__(self, reader: Reader, field: str | None = None) -> None:
        self.reader, self._field = reader, field
        kind = reader._key_kind() if field is None else reader.schema[field]
        if kind is None:
            raise OptionError(
                f"{reader.format or 'this dataset'} has no keys of its own; name the field that holds them, "
                f"as by_key(…, field={next(iter(reader.schema))!r})",
                path=reader.path,
            )
        self._kind = dataclasses.replace(kind, optional=False)
        if not _tells_apart(self._kind):
            message = f"keys are whole numbers, text, bytes, dates or UUIDs, and this is {kind}"
            raise OptionError(message, path=reader.path, field=field)
        # How many samples there were when the table was made; a dataset can grow.
        self.samples = len(reader)
        self._tables: dict[bool, Table | None] = {}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Keys, (self.reader, self._field)

    def _table(self, short: bool = False) -> Table | None:
        """The table; that of short keys only where the format has such."""
        if short not in self._tables:
            reader, field = self.reader, self._field
            has = not short or (field is None and reader._keys(np.empty(0, np.int64), True) is not None)
            self._tables[short] = reader._key_table(field, short) if has else None
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

    def index(self, key: Any) -> int:
        """The number of the sample that has this key."""
        return int(self.indices([key])[0])

    def indices(self, keys: Iterable[Any]) -> I64:
        """The numbers of the samples that have these keys, in the order of the keys."""
        wanted = keys if isinstance(keys, np.ndarray) else list(keys)
        try:
            cells = self._cells(wanted)
        except BatchplantError as error:
            key = wanted[error.sample or 0]
            said = f"no sample has the key {key!r}: {error.message}"
            raise SampleKeyError(said, path=self.reader.path, field=self._field) from None
        asked, rows = self._matches(cells)
        counts = np.bincount(asked, minlength=len(wanted))
        if not (counts == 1).all():
            raise self._error(wanted, asked, rows, counts)
        found = np.empty(len(wanted), dtype=np.int64)
        found[asked] = rows
        return found

    # -- looking up ------------------------------------------------------------------------------------

    def _cells(self, keys: Any) -> Column:
        """Keys as cells of their kind."""
        kind = self._kind
        if type(kind) in (Text, Bytes):
            return _texts(keys)
        whole = isinstance(kind, Int) and isinstance(keys, np.ndarray) and keys.dtype.kind in "iu"
        if whole and isinstance(kind, Int) and np.can_cast(keys.dtype, kind.dtype, "safe"):
            return np.ascontiguousarray(keys, dtype=kind.dtype)
        return encode_samples(Schema(key=kind), [{"key": key} for key in keys])["key"]

    def _matches(self, cells: Column) -> tuple[I64, I64]:
        """The samples that have these keys: pairs of a key's number and a sample's, in the order of keys."""
        own = self._field is None
        rows = self.reader._find_keys(cells) if own and isinstance(cells, Ragged) else None
        if rows is not None:
            there = np.flatnonzero(rows >= 0)
            return there, rows[there]
        asked, found = self._hashed(cells, short=False)
        if len(np.unique(asked)) < len(cells):
            # A key as it is goes before a short one.
            left = np.setdiff1d(np.arange(len(cells)), asked)
            more, rows = self._hashed(_taken(cells, left), short=True)
            asked, found = np.concatenate([asked, left[more]]), np.concatenate([found, rows])
            order = np.argsort(asked, kind="stable")
            asked, found = asked[order], found[order]
        return asked, found

    def _hashed(self, cells: Column, short: bool) -> tuple[I64, I64]:
        table = self._table(short)
        none = np.empty(0, dtype=np.int64)
        if table is None:
            return none, none
        data, starts, sizes = column_runs(cells)
        wanted = hash_cells(data, starts, sizes)
        low = np.searchsorted(table.hashes, wanted, "left")
        counts = np.searchsorted(table.hashes, wanted, "right") - low
        asked = np.repeat(np.arange(len(wanted)), counts)
        if not len(asked):
            return none, none
        places = np.arange(len(asked)) - np.repeat(starts_of(counts)[:-1], counts) + np.repeat(low, counts)
        rows = table.rows[places].astype(np.int64)
        same = np.zeros(len(rows), dtype=np.bool_)
        for start in range(0, len(rows), ROWS):
            some = slice(start, start + ROWS)
            same[some] = same_cells(self._read(rows[some], short), _taken(cells, asked[some]))
        return asked[same], rows[same]

    def _read(self, rows: I64, short: bool = False) -> Column:
        if self._field is not None:
            return self.reader._read(rows, (self._field,))[self._field]
        found = self.reader._keys(rows, short)
        assert found is not None
        return found

    def _value(self, column: Column, row: int) -> Any:
        """A key as the user writes it; None where it is missing."""
        if self._field is None and isinstance(self._kind, Text) and isinstance(column, Ragged):
            # Names of files can be anything.
            cell = column[row]
            return None if cell is None else cell.tobytes().decode("utf-8", "surrogateescape")
        found = decode_cell(self._kind, column, row)
        return found[()] if isinstance(found, np.ndarray) else found

    # -- messages --------------------------------------------------------------------------------------

    def _error(self, keys: Any, asked: I64, rows: I64, counts: I64) -> SampleKeyError:
        """What to say where a key is not that of one sample."""
        wrong = int(np.argmax(counts != 1))
        key = keys[wrong]
        if counts[wrong] > 1:
            have = rows[asked == wrong]
            more = f" and {len(have) - 2:,} more" if len(have) > 2 else ""
            said = f"samples {have[0]} and {have[1]}{more} have the key {key!r}; it tells none of them"
        else:
            many = int((counts == 0).sum()) - 1
            also = f", nor {many:,} others of those asked for" if many else ""
            first = [repr(one) for one in itertools.islice(self, SHOWN)]
            shown = ", ".join(first) + (", …" if len(self) > SHOWN else "")
            said = f"no sample has the key {key!r}{also}{self._like(key)}; there are {len(self):,}: {shown}"
        return SampleKeyError(said, path=self.reader.path, field=self._field)

    def _like(self, key: Any) -> str:
        """`` (did you mean x?)``, where a key is like this one."""
        if not isinstance(key, str | bytes):
            return ""
        text = key if isinstance(key, str) else key.decode("utf-8", "replace")
        for variants in (forms(text), slips(text)):
            asked, _ = self._matches(Ragged.from_cells([_encoded(one) for one in variants]))
            if len(asked):
                found = dict.fromkeys(variants[one] for one in asked.tolist())
                return f" (did you mean {' or '.join(list(found)[:3])}?)"
        some = itertools.islice(self, LOOKED_AT)
        return near(text, [one if isinstance(one, str) else one.decode("utf-8", "replace") for one in some])


def _texts(keys: Iterable[Any]) -> Ragged:
    cells = []
    for row, key in enumerate(keys):
        try:
            cells.append(_encoded(key))
        except BatchplantError as error:
            raise error.at(sample=row) from None
    return Ragged.from_cells(cells)


def _encoded(key: Any) -> bytes:
    if isinstance(key, str):
        return key.encode("utf-8", "surrogateescape")
    if isinstance(key, bytes | bytearray | memoryview):
        return bytes(key)
    raise OptionError("keys are text or bytes here")


def _tells_apart(kind: Field) -> bool:
    """Whether values of this kind can be keys."""
    if isinstance(kind, Tensor):
        return kind.shape == () and np.dtype(kind.dtype).kind in "iumM"
    return isinstance(kind, Int | Text | Bytes)


def _taken(column: Column, rows: I64) -> Column:
    return column.take(rows) if isinstance(column, Ragged) else column[rows]
