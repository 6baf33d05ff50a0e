"""Changes to labels, numbers, ragged values and anything else."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import _native
from ..errors import OptionError
from ..schema import Field
from ..schema.columns import I64, Column, Ragged, as_bytes
from .base import CellOp, Draws, Op, Spec, Tensors
from .dtypes import is_torch_dtype, numpy_dtype, torch_dtype


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
        return spec.but(dtype=converted_dtype(spec, self.target_dtype, self))

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        if isinstance(batch, tuple):
            return self.run(batch[0], ids, draws), batch[1]
        if isinstance(batch, np.ndarray):
            return batch.astype(numpy_dtype(self.target_dtype))
        return batch.to(torch_dtype(self.target_dtype))

    def on_device(self, batch: Any, ids: I64, draws: Draws, tensors: Tensors) -> Any:
        return self.run(batch, ids, draws)


def converted_dtype(spec: Spec, target: Any, op: Op) -> np.dtype[Any] | None:
    """Return the target dtype as NumPy's; None for a tensor's that NumPy has no name for."""
    if spec.dtype is None:
        raise OptionError(f"{type(op).__name__} needs numbers, not {spec}")
    dtype = numpy_dtype(target)
    if dtype is None and not spec.torch:
        raise OptionError(f"NumPy has no {target}: put ToTensor() before {type(op).__name__}")
    return dtype or spec.dtype


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


__all__ = ["Convert", "Pad", "Present", "converted_dtype", "ragged_values"]
