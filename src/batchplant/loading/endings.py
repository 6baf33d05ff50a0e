"""Documents that already end with the token that packing would put after them."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ..codecs.cells import decode_cell
from ..data.mix import Mix
from ..data.reader import Reader
from ..errors import DataError
from ..schema import Tensor
from ..schema.columns import I64, AnyDType, Columns, Flags, Ragged

# Documents of a source whose last tokens stand for all of it.
PROBED_DOCUMENTS = 64


class Endings:
    """Tells which documents of a reader end with a token.

    Some documents of each source, evenly spread, stand for all of it: either all of them end with the token
    or none does. Only where some do and some do not is every document looked at.
    """

    def __init__(self, reader: Reader, last_tokens: Callable[[I64], list[int | None]], token: int) -> None:
        self._last_tokens, self._token = last_tokens, token
        self._mix = reader if isinstance(reader, Mix) else None
        self._sizes = np.array([len(reader)]) if self._mix is None else self._mix.sizes_of_sources

    @functools.cached_property
    def shares(self) -> npt.NDArray[np.float64]:
        """The share of documents that end with the token, by source."""
        shares, first = [], 0
        for size in self._sizes.tolist():
            probed = first + np.linspace(0, size - 1, min(size, PROBED_DOCUMENTS)).astype(np.int64)
            ends = [token == self._token for token in self._last_tokens(probed) if token is not None]
            shares.append(float(np.mean(ends)) if ends else 0.0)
            first += size
        return np.array(shares)

    @property
    def all(self) -> bool:
        return bool((self.shares == 1).all())

    @property
    def none(self) -> bool:
        return not self.shares.any()

    def shares_at(self, samples: I64) -> npt.NDArray[np.float64]:
        """Return the share of the source of each sample."""
        if self._mix is None:
            return np.broadcast_to(self.shares[0], len(samples))
        return self.shares[self._mix.origin(samples)[0]]

    def __call__(self, samples: I64) -> Flags:
        shares = self.shares_at(samples)
        ends: Flags = shares == 1
        mixed = np.flatnonzero((shares > 0) & ~ends)
        ends[mixed] = [token == self._token for token in self._last_tokens(samples[mixed])]
        return ends


def stored_ends(reader: Reader, field: str, token: int) -> Endings:
    """Return the endings of documents as they are stored."""
    return Endings(reader, functools.partial(_last_stored, reader, field), token)


def _last_stored(reader: Reader, field: str, samples: I64) -> list[int | None]:
    """Return the last tokens of documents; None for those that are empty, missing or damaged."""
    try:
        columns = reader.read(samples, [field])
    except DataError:
        if len(samples) == 1:
            return [None]
        return [token for sample in samples for token in _last_stored(reader, field, np.array([sample]))]
    kind, column = reader.schema[field], columns[field]
    assert isinstance(kind, Tensor)
    if isinstance(column, np.ndarray):
        return list(column[:, -1].tolist()) if column.shape[1] else [None] * len(column)
    if isinstance(column, Ragged) and not kind.optional:
        return _last_of(column, np.dtype(kind.dtype))
    return [_last_decoded(reader, field, columns, row) for row in range(len(samples))]


def _last_of(column: Ragged, dtype: AnyDType) -> list[int | None]:
    ends = column.starts + column.sizes
    filled = np.flatnonzero(column.sizes >= dtype.itemsize)
    cells = column.data[ends[filled, None] - dtype.itemsize + np.arange(dtype.itemsize)]
    tokens: list[int | None] = [None] * len(column)
    for row, token in zip(filled.tolist(), cells.view(dtype)[:, 0].tolist(), strict=True):
        tokens[row] = token
    return tokens


def _last_decoded(reader: Reader, field: str, columns: Columns, row: int) -> int | None:
    try:
        tokens = decode_cell(reader.schema[field], columns[field], row)
    except DataError:
        return None
    return int(tokens[-1]) if tokens is not None and len(tokens) else None
