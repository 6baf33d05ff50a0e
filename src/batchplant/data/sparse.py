"""Batches of rows of sparse matrices."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..errors import needs
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
        places = np.full(self.shape[1], -1, indices.dtype)
        places[np.asarray(columns, np.int64)] = np.arange(len(columns))
        places = places[indices]
        chosen = places >= 0
        # How many are chosen before each value, and so before each row.
        indptr = starts_of(chosen.astype(np.int64))[indptr]
        return SparseRows((indptr, places[chosen], values[chosen], len(columns)))

    def to_dense(self, columns: Sequence[int] | None = None) -> AnyArray:
        """Return an array of all columns, or of these in this order; a column given twice adds up."""
        if columns is not None:
            return self.select(columns).to_dense()
        indptr, indices, values = self.arrays()
        dense = np.zeros(self.shape, values.dtype)
        places = np.repeat(np.arange(self.shape[0]) * self.shape[1], np.diff(indptr)) + indices
        if (np.diff(places) > 0).all():
            dense.reshape(-1)[places] = values
        else:
            np.add.at(dense.reshape(-1), places, values)
        return dense
