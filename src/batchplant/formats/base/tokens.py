"""Sequences of tokens: what the formats that hold nothing else share.

A sample is a sequence, or a document, and its tokens are the field ``tokens``, which is what packing takes by
default. A writer may store them in fewer bytes than they come in: every token is checked, none is cut.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...data.reader import Reader
from ...data.writer import WriteOptions, Writer, _Encoded
from ...errors import BatchplantError, DamagedError, EncodeError, OptionError
from ...schema import Field, Int, Schema, Tensor
from ...schema.columns import I64, U8, AnyArray, AnyDType, Column, Columns, Ragged, column_runs, starts_of
from ...storage import Source, checksums

TOKENS = "tokens"


def checked_dtype(name: str, dtypes: tuple[str, ...], path: str) -> AnyDType:
    """The dtype of this name; OptionError where it is none of these."""
    if name not in dtypes:
        raise OptionError(f"dtype is one of {', '.join(dtypes)}, not {name!r}", path=path)
    return np.dtype(name).newbyteorder("<")


def check_runs(reader: Reader, source: Source, indices: I64, starts: I64, sizes: I64) -> None:
    """DamagedError where a sequence does not lie in the file, or many lie upon each other."""
    bad = source.outside(starts, sizes)
    if bad is not None:
        start, end = int(starts[bad]), int(starts[bad]) + int(sizes[bad])
        raise DamagedError(
            f"its tokens would lie at {start} to {end} of {source.path}, which has {source.size} bytes",
            path=reader.path,
            sample=int(indices[bad]),
            offset=start,
        )
    # More than the file has would be more memory than it explains.
    if len(indices) > 1 and int(sizes.sum()) > source.size and len(np.unique(indices)) == len(indices):
        raise DamagedError("sequences lie upon each other", path=reader.path, sample=int(indices[0]))


class TokenWriter(Writer):
    """Writes the field ``tokens`` in the dtype ``stored``; a format may write others, too."""

    def __init__(self, path: str, schema: Schema, options: WriteOptions, stored: AnyDType) -> None:
        field = schema[TOKENS]
        assert isinstance(field, Tensor)
        self._given, self._stored = np.dtype(field.dtype), stored.newbyteorder("=")
        if self._given != self._stored and "f" in (self._given.kind, self._stored.kind):
            raise OptionError(f"tokens of {self._given} are not stored as {self._stored}", path=path)
        super().__init__(path, schema, options)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Tensor) and (len(field.shape) != 1 or np.dtype(field.dtype).kind not in "iuf"):
            return "tokens are a tensor of one axis, of numbers"
        return None

    def remarks(self) -> list[str]:
        same = self._given == self._stored
        return [] if same else [f"tokens are stored as {self._stored}, not as {self._given}"]

    def kept_schema(self) -> Schema:
        return Schema({**self.schema, TOKENS: Tensor(self._stored.name, (None,))})

    # -- in a worker -----------------------------------------------------------------------------------

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems: dict[int, BatchplantError] = {}
        for name, column in columns.items():
            if isinstance(column, Ragged) and column.valid is not None:
                for row in np.flatnonzero(~column.valid).tolist():
                    problems[row] = EncodeError(f"it is missing, which {self.format} cannot hold", field=name)
        values, offsets = self._values(columns)
        if self._given == self._stored or not len(values):
            return problems
        low, high = np.iinfo(self._stored).min, np.iinfo(self._stored).max
        if values.min() >= low and values.max() <= high:
            return problems
        bad = np.flatnonzero((values < low) | (values > high))
        rows = np.searchsorted(offsets, bad, side="right") - 1
        _, first = np.unique(rows, return_index=True)
        for cell in first.tolist():
            message = f"the token {values[bad[cell]]} is no {self._stored}"
            problems.setdefault(int(rows[cell]), EncodeError(message, field=TOKENS))
        return problems

    def _encode(self, first: int, columns: Columns, rows: Any = None) -> _Encoded:
        """The cells as the file will have them, so that checksums are of those."""
        encoded = super()._encode(first, columns, rows)
        encoded.columns = self._as_stored(encoded.columns)
        if encoded.sums is not None:
            encoded.sums = checksums.of_columns(self.schema, encoded.columns)
        return encoded

    def _as_stored(self, columns: Columns) -> Columns:
        values, offsets = self._values(columns)
        stored = np.ascontiguousarray(values, dtype=self._stored).view(np.uint8)
        return Columns({**columns, TOKENS: Ragged(stored, offsets * self._stored.itemsize)})

    def _values(self, columns: Columns) -> tuple[AnyArray, I64]:
        """All tokens, and where each sequence begins among them."""
        data, sizes = _packed(columns[TOKENS])
        return data.view(self._given), starts_of(sizes) // self._given.itemsize

    def _numbers(self, columns: Columns, name: str) -> tuple[AnyArray, I64]:
        """The numbers of a field, and the rows that have one."""
        data, sizes = _packed(columns[name])
        field = self.schema[name]
        assert isinstance(field, Int)
        return data.view(field.dtype), np.flatnonzero(sizes)


def _packed(column: Column) -> tuple[U8, I64]:
    """The bytes of all cells, one after another, and how many each has; a missing one has none."""
    if isinstance(column, Ragged):
        return column.take(slice(None)).data, column.sizes
    data, _, sizes = column_runs(column)
    return data, sizes
