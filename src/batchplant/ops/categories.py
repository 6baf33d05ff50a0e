"""Text and numbers that stand for categories, as codes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .. import _native
from ..data.reader import Reader
from ..errors import DamagedError, DecodeError, OptionError
from ..schema import Field, Int, Text
from ..schema.columns import I64, Column, Ragged
from ..storage import NOTE_ERRORS, parse_object, put_file, read_whole
from .base import CellOp, Draws, Spec

# What is longer is no category, and more of them are none either.
LONGEST = 4096
MOST = 1_000_000
SCAN_ROWS = 4096
# Behind every word in a table: its length, and a byte that is not 0, which NumPy would cut off.
TAIL = 5

Words = npt.NDArray[np.bytes_]


class Categories(CellOp):
    """Text or whole numbers as codes (int64): the place of each value in the vocabulary.

    vocabulary: the values, all text or all whole numbers, or the path of a file that ``save`` wrote.
    unknown: the code of what is not in it, and of missing values; None: an error that names the sample.
    """

    def __init__(
        self, vocabulary: Sequence[str] | Sequence[int] | str | os.PathLike[str], *, unknown: int | None = -1
    ) -> None:
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = _load(os.fspath(vocabulary))
        self.vocabulary: list[Any] = list(vocabulary)
        self.unknown = unknown
        if not self.vocabulary:
            raise OptionError("a vocabulary needs at least one value")
        self._text = all(isinstance(value, str) for value in self.vocabulary)
        if not self._text and not all(type(value) is int for value in self.vocabulary):
            raise OptionError("a vocabulary is all text or all whole numbers")
        if len(set(self.vocabulary)) < len(self.vocabulary):
            raise OptionError("a value is in the vocabulary twice")
        self._width = 0
        self._table: npt.NDArray[Any]
        try:
            if self._text:
                words = Ragged.from_cells([value.encode() for value in self.vocabulary])
                self._width = int(words.sizes.max(initial=0))
                self._table = _words(words, self._width)
            else:
                wide = max(self.vocabulary) >= 2**63
                self._table = np.array(self.vocabulary, dtype=np.uint64 if wide else np.int64)
        except (UnicodeEncodeError, OverflowError) as error:
            raise OptionError(f"the vocabulary cannot be used: {error}") from None
        self._order = np.argsort(self._table, kind="stable")
        self._table = self._table[self._order]

    def __repr__(self) -> str:
        return f"Categories({len(self.vocabulary)} values, unknown={self.unknown!r})"

    def __len__(self) -> int:
        return len(self.vocabulary)

    @classmethod
    def fit(cls, reader: Reader, field: str, *, unknown: int | None = -1) -> Self:
        """With the values that a field has, sorted; the whole field is read once."""
        kind = reader.schema[field]
        _check(kind, field)
        found: set[Any] = set()
        for columns in reader.scan(SCAN_ROWS, [field]):
            found.update(_distinct(columns[field], field))
            if len(found) > MOST:
                raise OptionError(f"it has more than {MOST:,} values; these are no categories", field=field)
        return cls(sorted(found), unknown=unknown)

    def save(self, path: str | os.PathLike[str]) -> None:
        """As a JSON file, which appears when it is complete."""
        text = json.dumps({"batchplant": 1, "vocabulary": self.vocabulary}, ensure_ascii=False)
        put_file(os.fspath(path), text.encode())

    def infer_field(self, field: Field) -> Spec:
        _check(field, None)
        if isinstance(field, Text) != self._text:
            held = "text" if self._text else "numbers"
            raise OptionError(f"the vocabulary is of {held}, and the field is {field}")
        return Spec(np.dtype(np.int64))

    def run(self, batch: Column, ids: I64, draws: Draws) -> Any:
        keys: npt.NDArray[Any]
        if isinstance(batch, Ragged):
            valid = np.ones(len(batch), dtype=np.bool_) if batch.valid is None else batch.valid
            # What is longer than every word is none of them: it is cut, but its length stays in the key.
            keys = _words(batch, self._width)
        else:
            keys = batch.astype(self._table.dtype)
            # A number that the other dtype cannot hold has changed its sign.
            valid = (keys < 0) == (batch < 0)
        return self._codes(keys, valid, batch, ids)

    def _codes(self, keys: npt.NDArray[Any], valid: Any, batch: Column, ids: I64) -> I64:
        codes = np.full(len(keys), -1 if self.unknown is None else self.unknown, dtype=np.int64)
        places = np.searchsorted(self._table, keys).clip(max=len(self._table) - 1)
        known = valid & (self._table[places] == keys)
        codes[known] = self._order[places[known]]
        if self.unknown is None and not known.all():
            row = int(np.argmin(known))
            raise DecodeError(
                f"{_said(batch, row)} is not among the {len(self.vocabulary)} values of the vocabulary",
                sample=int(ids[row]),
            )
        return codes


def _check(field: Field, name: str | None) -> None:
    if not isinstance(field, Text | Int) or (isinstance(field, Int) and field.optional):
        raise OptionError(
            f"categories are text, or whole numbers that are never missing, and this is {field}", field=name
        )


def _load(path: str) -> list[Any]:
    try:
        return list(parse_object(read_whole(path))["vocabulary"])
    except NOTE_ERRORS as error:
        raise DamagedError(f"not a vocabulary: {error}", path=path) from None


def _said(batch: Column, row: int) -> str:
    """A value in words, short."""
    if not isinstance(batch, Ragged):
        return str(batch[row])
    cell = batch[row]
    return "a missing value" if cell is None else repr(cell[:60].tobytes().decode(errors="replace"))


def _words(cells: Ragged, width: int) -> Words:
    """The cells as one array of equally long keys that are equal exactly where the cells are."""
    sizes = cells.sizes
    table = np.zeros((len(cells), width + TAIL), dtype=np.uint8)
    starts = np.arange(len(cells), dtype=np.int64) * (width + TAIL)
    some = np.minimum(sizes, width)
    _native.copy_runs(cells.data, np.ascontiguousarray(cells.starts), some, table.reshape(-1), starts)
    table[:, width:-1] = sizes.clip(max=2**32 - 1).astype(">u4").view(np.uint8).reshape(-1, 4)
    table[:, -1] = 1
    return table.reshape(-1).view(f"S{width + TAIL}")


def _distinct(column: Column, name: str) -> Iterator[Any]:
    """The values that are there, each once."""
    if not isinstance(column, Ragged):
        yield from np.unique(column).tolist()
        return
    if column.valid is not None:
        column = column.take(column.valid)
    width = int(column.sizes.max(initial=0))
    if width > LONGEST:
        raise OptionError(f"a text of {width:,} bytes is no category", field=name)
    for word in np.unique(_words(column, width)).tolist():
        try:
            yield word[: int.from_bytes(word[-TAIL:-1], "big")].decode()
        except UnicodeDecodeError as error:
            raise DecodeError(f"not text: {error}", field=name) from None
