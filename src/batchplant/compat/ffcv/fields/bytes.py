"""Field and decoder of bytes of any length."""

from __future__ import annotations

from typing import Any

import numpy as np

from .... import ops
from ....errors import EncodeError
from ....ops.base import Op
from ..pipeline.allocation_query import AllocationQuery
from ..pipeline.operation import Operation
from ..pipeline.state import State
from .base import ARG_TYPE, Array, DType, Field, Malloc, Read
from .basics import Decoder


class BytesDecoder(Decoder):
    """Bytes as an array of shape (batch, longest in the file), padded with zeros."""

    def _longest(self) -> int:
        return int(self.metadata["size"].max(initial=0))

    def as_op(self, tensors: bool) -> Op:
        return ops.Pad(self._longest())

    def fill(self, destination: Array, rows: Array, indices: Array, read: Read) -> None:
        destination[:] = 0
        for cell, row in zip(destination, rows, strict=True):
            if row["size"]:
                cell[: int(row["size"])] = read(row["ptr"])

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        shape, dtype = (self._longest(),), np.dtype("<u1")
        return State(True, previous_state.device, shape, dtype), AllocationQuery(shape, dtype)


def as_uint8(value: Array) -> Array:
    """Return an array of numbers from 0 to 255 as bytes; EncodeError for others, which FFCV truncates."""
    if value.dtype == np.uint8:
        return value
    with np.errstate(invalid="ignore"):
        data = value.astype(np.uint8)
    if not np.array_equal(data, value):
        raise EncodeError(
            f"a BytesField takes whole numbers from 0 to 255, and this {value.dtype} array has others"
        )
    return data


class BytesField(Field):
    """Bytes: samples give one-dimensional arrays of whole numbers from 0 to 255."""

    def __init__(self) -> None:
        pass

    @property
    def metadata_type(self) -> DType:
        return np.dtype([("ptr", "<u8"), ("size", "<u8")])

    @staticmethod
    def from_binary(binary: Array) -> Field:
        return BytesField()

    def to_binary(self) -> Any:
        return np.zeros(1, dtype=ARG_TYPE)[0]

    def encode(self, destination: Array, field: Any, malloc: Malloc) -> None:
        value = np.frombuffer(field, np.uint8) if isinstance(field, bytes) else np.asarray(field)
        data = as_uint8(value).reshape(-1)
        destination["ptr"], memory = malloc(data.size)
        memory[:] = data
        destination["size"] = data.size

    def get_decoder_class(self) -> type[Operation]:
        return BytesDecoder
