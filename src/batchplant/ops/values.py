"""Changes to labels, numbers, ragged values and anything else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import _native
from ..errors import OptionError, listed, near
from ..schema import Field
from ..schema.columns import I64, Column, Ragged, as_bytes
from .augment import check_alpha, mixup_parts
from .base import CellOp, Draws, Op, Spec, Tensors, per_sample
from .dtypes import is_torch_dtype, numpy_dtype, torch_dtype


class ReplaceLabel(Op):
    """Give some samples another label: a number, or the name of a class."""

    def __init__(self, indices: Sequence[int], new_label: int | str) -> None:
        self.indices = np.unique(np.asarray(indices, dtype=np.int64))
        self.new_label = new_label

    def suited(self, spec: Spec) -> Op:
        if not isinstance(self.new_label, str):
            return self
        if spec.names is None:
            raise OptionError(f"ReplaceLabel needs a number, not {self.new_label!r}: classes have no names")
        if spec.names.count(self.new_label) != 1:
            hint = f"{near(self.new_label, spec.names)}; the classes are: {listed(spec.names)}"
            raise OptionError(f"ReplaceLabel: not one class is called {self.new_label!r}{hint}")
        return ReplaceLabel(self.indices.tolist(), spec.names.index(self.new_label))

    def infer(self, spec: Spec) -> Spec:
        return spec.numbers(self)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        batch[np.isin(ids, self.indices)] = self.new_label
        return batch


class LabelMixup(Op):
    """Labels for ImageMixup: (own label, the other's, how much of its own) for every sample."""

    mixes = True

    def __init__(self, alpha: float, same_lambda: bool = True) -> None:
        self.alpha, self.same_lambda = check_alpha(alpha), bool(same_lambda)
        self.share = f"mixup {self.alpha} {self.same_lambda}"

    def infer(self, spec: Spec) -> Spec:
        if spec.numbers(self).shape not in ((), (1,)):
            raise OptionError(f"LabelMixup needs one label for each sample, not {spec}")
        return Spec(np.dtype(np.float32), (3,))

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        labels = np.asarray(batch, dtype=np.float32).reshape(len(batch))
        part = mixup_parts(self.alpha, self.same_lambda, len(batch), draws)
        return np.stack([labels, np.roll(labels, 1), part], axis=1).astype(np.float32)


class MixupToOneHot(Op):
    """What LabelMixup gave, as one row of class weights for every sample."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = int(num_classes)

    def infer(self, spec: Spec) -> Spec:
        if spec.shape != (3,):
            raise OptionError(f"MixupToOneHot follows LabelMixup, and this is {spec}")
        return Spec(np.dtype(np.float32), (self.num_classes,))

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        out = np.zeros((len(batch), self.num_classes), dtype=np.float32)
        rows = np.arange(len(batch))
        wrong = (batch[:, :2] < 0) | (batch[:, :2] >= self.num_classes)
        if wrong.any():
            label = int(batch[:, :2][wrong][0])
            raise OptionError(f"there is a label {label}, and MixupToOneHot has {self.num_classes} classes")
        np.add.at(out, (rows, batch[:, 0].astype(np.int64)), batch[:, 2])
        np.add.at(out, (rows, batch[:, 1].astype(np.int64)), 1 - batch[:, 2])
        return out


class Present(CellOp):
    """Whether the value is there: what ``NAME_mask`` of an optional field of numbers begins with."""

    def infer_field(self, field: Field) -> Spec:
        return Spec(np.dtype(np.bool_))

    def run(self, batch: Column, ids: I64, draws: Draws) -> Any:
        valid = batch.valid if isinstance(batch, Ragged) else None
        return np.ones(len(batch), dtype=np.bool_) if valid is None else valid.copy()


class Convert(Op):
    """Another dtype, of NumPy or of torch, by value; for arrays and for tensors."""

    def __init__(self, target_dtype: Any) -> None:
        self.target_dtype = target_dtype if is_torch_dtype(target_dtype) else np.dtype(target_dtype)

    def infer(self, spec: Spec) -> Spec:
        return spec.but(dtype=_numpy(spec, self))

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        if isinstance(batch, tuple):
            return self.run(batch[0], ids, draws), batch[1]
        if isinstance(batch, np.ndarray):
            return batch.astype(numpy_dtype(self.target_dtype))
        return batch.to(torch_dtype(self.target_dtype))

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return self.run(batch, ids, draws)


class View(Op):
    """The same bytes as another dtype, of NumPy or of torch; for arrays and for tensors."""

    def __init__(self, target_dtype: Any) -> None:
        self.target_dtype = target_dtype if is_torch_dtype(target_dtype) else np.dtype(target_dtype)

    def infer(self, spec: Spec) -> Spec:
        dtype = _numpy(spec.numbers(self), self)
        return spec.but(dtype=dtype, shape=viewed(spec, dtype) if dtype else spec.shape)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        if isinstance(batch, np.ndarray):
            return np.ascontiguousarray(batch).view(numpy_dtype(self.target_dtype))
        # One of no samples that came from NumPy has strides that torch refuses here.
        whole = batch if batch.numel() else batch.new_empty(batch.shape)
        return whole.view(torch_dtype(self.target_dtype))

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return self.run(batch, ids, draws)


def _numpy(spec: Spec, op: Convert | View) -> np.dtype[Any] | None:
    """The dtype that comes out, as NumPy calls it; None for a tensor's that NumPy has no name for."""
    if spec.dtype is None:
        raise OptionError(f"{type(op).__name__} needs numbers, not {spec}")
    dtype = numpy_dtype(op.target_dtype)
    if dtype is None and not spec.torch:
        raise OptionError(f"NumPy has no {op.target_dtype}: put ToTensor() before {type(op).__name__}")
    return dtype or spec.dtype


def viewed(spec: Spec, dtype: np.dtype[Any]) -> tuple[int | None, ...]:
    """The shape of the same bytes as another dtype: the last size changes with the size of a number."""
    if spec.dtype is None or spec.dtype.itemsize == dtype.itemsize:
        return spec.shape
    last = (spec.shape[-1] or 0) * spec.dtype.itemsize if spec.shape else 0
    if not last or last % dtype.itemsize:
        raise OptionError(f"{spec} cannot be seen as {dtype}: the bytes of a row do not divide into it")
    return (*spec.shape[:-1], last // dtype.itemsize)


class Squeeze(Op):
    """Without the axes of size 1 (or those named; the batch is axis 0)."""

    def __init__(self, *dims: int) -> None:
        self.dims = dims

    def _axes(self, shape: Sequence[int | None]) -> tuple[int, ...]:
        """Those that go; ``shape`` is without the batch."""
        rank = len(shape) + 1
        asked = [axis + rank if axis < 0 else axis for axis in self.dims] or range(1, rank)
        return tuple(axis for axis in asked if 0 < axis < rank and shape[axis - 1] == 1)

    def infer(self, spec: Spec) -> Spec:
        gone = self._axes(spec.numbers(self).shape)
        shape = tuple(size for axis, size in enumerate(spec.shape, 1) if axis not in gone)
        return spec.but(shape=shape) if gone else spec

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        return batch.squeeze(self._axes(batch.shape[1:]))


class Pad(Op):
    """Ragged values as one array: cut or filled to ``length`` (default: the longest of the batch).

    side: where it is filled. truncate: the end that is cut off. multiple_of: the longest of the batch,
    rounded up, as tensor cores like it; max_length: but no longer. mask: with an output that says where
    values are, True (bool): ``NAME_mask``, or what it is called, as in ``mask="attention_mask"``.
    """

    def __init__(
        self,
        length: int | None = None,
        value: Any = 0,
        *,
        side: str = "right",
        truncate: str = "right",
        multiple_of: int | None = None,
        max_length: int | None = None,
        mask: bool | str = False,
    ) -> None:
        for name, end in (("side", side), ("truncate", truncate)):
            if end not in ("left", "right"):
                raise OptionError(f"{name} is left or right, not {end!r}")
        if length is not None and length < 0:
            raise OptionError(f"length must not be negative, as {length} is")
        if length is not None and (multiple_of is not None or max_length is not None):
            raise OptionError("multiple_of and max_length are for the longest of a batch: leave length out")
        if multiple_of is not None and (multiple_of < 1 or (max_length or 0) % multiple_of):
            raise OptionError(f"multiple_of is at least 1 and divides max_length, unlike {multiple_of}")
        if max_length is not None and max_length < 1:
            raise OptionError(f"max_length is at least 1, not {max_length}")
        self.length, self.value, self.side, self.truncate = length, value, side, truncate
        self.multiple_of, self.max_length, self.mask = multiple_of, max_length, mask

    def infer(self, spec: Spec) -> Spec:
        if spec.dtype is None or spec.torch or not spec.ragged:
            hint = ": put Tokenize or Function(…, shape=(None,)) before it" if spec.dtype is None else ""
            raise OptionError(f"Pad needs values whose first size varies, not {spec}{hint}")
        return Spec(spec.dtype, (self.length, *spec.shape[1:]))

    def _sizes(self, offsets: I64) -> tuple[int, I64]:
        """How long rows become, and how many values each keeps."""
        lengths = np.diff(offsets)
        length = self.length
        if length is None:
            unit = self.multiple_of or 1
            length = -(-int(lengths.max(initial=0)) // unit) * unit
            length = length if self.max_length is None else min(length, self.max_length)
        return length, np.minimum(lengths, length)

    def mask_of(self, batch: Any) -> Any:
        """Where values are, once the batch is padded."""
        length, kept = self._sizes(batch[1])
        places = np.arange(length)
        return places < kept[:, None] if self.side == "right" else places >= length - kept[:, None]

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        values, offsets = np.ascontiguousarray(batch[0]), np.asarray(batch[1])
        length, kept = self._sizes(offsets)
        out = np.full((len(kept), length, *values.shape[1:]), self.value, dtype=values.dtype)
        width = values.itemsize * int(np.prod(values.shape[1:]))
        if out.size:
            starts = offsets[:-1] if self.truncate == "right" else offsets[1:] - kept
            places = np.arange(len(kept)) * length
            places = places if self.side == "right" else places + length - kept
            sizes = kept * width
            _native.copy_runs(as_bytes(values), starts * width, sizes, as_bytes(out), places * width)
        return out


def ragged_values(cells: Ragged, dtype: Any, rest: tuple[int, ...]) -> tuple[Any, Any]:
    """(values, offsets) of ragged numbers, offsets counting rows."""
    width = np.dtype(dtype).itemsize * int(np.prod(rest))
    packed = cells.take(slice(None))
    values = as_bytes(packed.data).view(dtype).reshape(-1, *rest)
    return values, packed.offsets // max(width, 1)


__all__ = [
    "Convert", "LabelMixup", "MixupToOneHot", "Pad", "ReplaceLabel", "Squeeze", "View",
    "per_sample", "ragged_values",
]  # fmt: skip
