"""Batches of rows of sparse matrices."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from .. import _native
from ..errors import OptionError, needs
from ..schema.columns import AnyArray, starts_of
from . import hooks


class SparseRows(tuple[Any, ...]):
    """Rows of a sparse matrix in CSR form: (indptr, indices, values, columns), arrays or tensors of torch.

    Row i has ``values[indptr[i]:indptr[i + 1]]`` in the columns ``indices[indptr[i]:indptr[i + 1]]``;
    ``columns`` is their number.
    """

    __slots__ = ()

    def __new__(cls, parts: Iterable[Any]) -> SparseRows:
        """Make rows of the four parts."""
        indptr, indices, values, columns = parts
        return super().__new__(cls, (indptr, indices, values, columns))

    @property
    def indptr(self) -> Any:
        """Where each row begins and, last, where the last one ends."""
        return self[0]

    @property
    def indices(self) -> Any:
        """Columns of the values."""
        return self[1]

    @property
    def values(self) -> Any:
        """Values of all rows."""
        return self[2]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of rows and of columns."""
        return len(self.indptr) - 1, int(self[3])

    def __repr__(self) -> str:
        return f"<SparseRows: {self.shape[0]}×{self.shape[1]}, {len(self.values)} values>"

    def arrays(self) -> tuple[AnyArray, AnyArray, AnyArray]:
        """Return indptr, indices and values as arrays in the memory of the CPU."""
        indptr, indices, values = (part.cpu().numpy() if hasattr(part, "cpu") else part for part in self[:3])
        return indptr, indices, values

    def rows(self, rows: int | slice) -> SparseRows:
        """Return a row, or several that follow each other."""
        rows = slice(rows, rows + 1) if isinstance(rows, int) else rows
        indptr = self.indptr[rows.start : rows.stop + 1]
        values = slice(int(indptr[0]), int(indptr[-1]))
        return SparseRows((indptr - indptr[0], self.indices[values], self.values[values], self[3]))

    def to_scipy(self) -> Any:
        """Return a ``scipy.sparse.csr_array``, of the same memory where it is the CPU's."""
        with needs("a matrix of scipy needs scipy", "anndata"):
            from scipy.sparse import csr_array
        indptr, indices, values = self.arrays()
        return csr_array((values, indices, indptr), shape=self.shape)

    def to_torch(self) -> Any:
        """Return a tensor of torch of the layout ``sparse_csr``, where the values are."""
        module = hooks.part("torch")
        indptr, indices, values = map(module.as_tensor, self[:3])
        with warnings.catch_warnings():
            # That it is in beta.
            warnings.simplefilter("ignore", UserWarning)
            return module.torch.sparse_csr_tensor(indptr.to(indices.dtype), indices, values, self.shape)

    def select(self, columns: Sequence[int]) -> SparseRows:
        """Return the rows with only these columns, in this order: column ``columns[i]`` becomes column i."""
        indptr, indices, values = self.arrays()
        places = self._places(columns)[indices]
        chosen = places >= 0
        # How many are chosen before each value, and so before each row.
        indptr = starts_of(chosen.astype(np.int64))[indptr]
        return SparseRows((indptr, places[chosen].astype(indices.dtype), values[chosen], len(columns)))

    def to_dense(self, columns: Sequence[int] | None = None) -> Any:
        """Return an array of all columns, or of these in this order; values of one column add up.

        Of tensors it is a tensor on their device.
        """
        places = np.arange(self.shape[1]) if columns is None else self._places(columns)
        shape = self.shape[0], self.shape[1] if columns is None else len(columns)
        if hasattr(self.values, "device") and hasattr(self.values, "new_zeros"):
            return self._dense_tensor(places, shape)
        indptr, indices, values = map(np.ascontiguousarray, self.arrays())
        # Half floats are added as floats.
        dtype = np.dtype(np.float32 if values.dtype == np.float16 else values.dtype)
        kind: Any = f"u{dtype.itemsize}" if dtype.kind == "i" else dtype
        dense = np.zeros(shape, dtype)
        numbers = values.astype(dtype, copy=False).view(kind)
        _native.fill_rows(indptr.astype(np.int64, copy=False), indices, numbers, places, dense.view(kind))
        return dense.astype(values.dtype, copy=False)

    def _dense_tensor(self, places: AnyArray, shape: tuple[int, int]) -> Any:
        torch = hooks.part("torch").torch
        indptr, indices, values = self[:3]
        rows = torch.repeat_interleave(torch.arange(shape[0], device=values.device), indptr.diff())
        chosen = torch.as_tensor(places, device=values.device)[indices.long()]
        is_chosen = chosen >= 0
        dense = values.new_zeros(shape)
        return dense.index_put_((rows[is_chosen], chosen[is_chosen]), values[is_chosen], accumulate=True)

    def _places(self, columns: Sequence[int]) -> AnyArray:
        """Return for each column its place among these, or -1."""
        numbers = np.asarray(columns, np.int64).reshape(-1)
        places = np.full(self.shape[1], -1)
        inside = ((numbers >= 0) & (numbers < self.shape[1])).all()
        if not inside or len(np.unique(numbers)) < len(numbers):
            raise OptionError(f"columns are numbers below {self.shape[1]}, each once, not {columns}")
        places[numbers] = np.arange(len(numbers))
        return places
