"""Ops on rows of sparse matrices: normalise, logarithm, presence, choice of columns, dense arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from ..data.sparse import SparseRows
from ..errors import OptionError
from ..schema import Sparse
from ..schema.columns import I64, AnyArray
from .base import Batch, Draws, Op, Spec


class _SparseOp(Op):
    """Takes rows of a sparse matrix; ``_kind`` returns the kind that they have afterwards."""

    def infer(self, spec: Spec) -> Spec:
        if spec.sparse is None or spec.torch:
            raise OptionError(f"{type(self).__name__} needs rows of a sparse matrix, not {spec}")
        return spec.replace(sparse=self._kind(spec.sparse))

    def _kind(self, field: Sparse) -> Sparse:
        raise NotImplementedError


class _ValueOp(_SparseOp):
    """Changes values, and makes floating-point numbers of whole ones."""

    def _kind(self, field: Sparse) -> Sparse:
        dtype = np.dtype(field.dtype)
        return field if dtype.kind == "f" else dataclasses.replace(field, dtype="float32")

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        indptr, indices, values, columns = batch
        values = values if values.dtype.kind == "f" else values.astype(np.float32)
        return SparseRows((indptr, indices, self._change(values, indptr), columns))

    def _change(self, values: AnyArray, indptr: I64) -> AnyArray:
        raise NotImplementedError


class NormalizeTotal(_ValueOp):
    """Values of a row divided by their sum and multiplied by ``target``, as scanpy's ``normalize_total``.

    target: the sum of each row afterwards. A row without values, or whose sum is 0, stays as it is.
    """

    def __init__(self, target: float = 1e4) -> None:
        if not 0 < target < np.inf:
            raise OptionError(f"target is a number above 0, not {target!r}")
        self.target = float(target)

    def _change(self, values: AnyArray, indptr: I64) -> AnyArray:
        rows = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
        totals = np.bincount(rows, values, len(indptr) - 1)
        totals[totals == 0] = self.target
        return values * (self.target / totals)[rows].astype(values.dtype)


class Log1p(_ValueOp):
    """The natural logarithm of 1 + the value; zeros, which are not stored, stay zeros."""

    def _change(self, values: AnyArray, indptr: I64) -> AnyArray:
        return np.log1p(values)


class Binarize(_SparseOp):
    """1 where a value is above ``threshold``, which is at least 0; other columns have none."""

    def __init__(self, threshold: float = 0) -> None:
        if not threshold >= 0:
            raise OptionError(
                f"threshold is at least 0, so that columns without a value stay so, not {threshold}"
            )
        self.threshold = threshold

    def _kind(self, field: Sparse) -> Sparse:
        return field

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        indptr, indices, values, columns = batch
        above = values > self.threshold
        indptr = np.concatenate([[0], np.cumsum(above)])[indptr]
        return SparseRows((indptr, indices[above], np.ones(int(indptr[-1]), values.dtype), columns))


def _checked(columns: Iterable[int | str]) -> list[int | str]:
    chosen = list(columns)
    if isinstance(columns, str) or len(set(chosen)) < len(chosen):
        raise OptionError(f"columns is a list of numbers or names, none of them twice, not {columns!r}")
    return chosen


class SelectColumns(_SparseOp):
    """Only some columns of a sparse matrix, in this order, each once.

    columns: their numbers, or their names where the field has them.
    """

    def __init__(self, columns: Iterable[int | str]) -> None:
        self.columns = _checked(columns)
        self._numbers: list[int] = []

    def _kind(self, field: Sparse) -> Sparse:
        numbers = field.numbers(self.columns)
        names = None if field.names is None else tuple(field.names[number] for number in numbers)
        return Sparse(len(numbers), field.dtype, names)

    def for_spec(self, spec: Spec) -> Op:
        assert spec.sparse is not None
        op = type(self)(self.columns)
        op._numbers = spec.sparse.numbers(self.columns)
        return op

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return batch.select(self._numbers)


class ToDense(Op):
    """Rows of a sparse matrix as an array of all columns, or of some of them in this order.

    columns: their numbers, or their names where the field has them, each once; None: all.
    """

    def __init__(self, columns: Iterable[int | str] | None = None) -> None:
        self.columns = None if columns is None else _checked(columns)
        self._numbers: list[int] | None = None

    def infer(self, spec: Spec) -> Spec:
        if spec.sparse is None or spec.torch:
            raise OptionError(f"ToDense needs rows of a sparse matrix, not {spec}")
        (count,) = spec.sparse.shape
        count = count if self.columns is None else len(spec.sparse.numbers(self.columns))
        return Spec(np.dtype(spec.sparse.dtype), (count,))

    def for_spec(self, spec: Spec) -> Op:
        op = type(self)(self.columns)
        if self.columns is not None and spec.sparse is not None:
            op._numbers = spec.sparse.numbers(self.columns)
        return op

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return batch.to_dense(self._numbers)
