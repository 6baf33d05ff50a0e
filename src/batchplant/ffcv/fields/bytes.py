"""Bytes of any length."""

from __future__ import annotations

from typing import Any

import numpy as np

from ... import ops
from ...ops.base import Op
from ..pipeline.allocation_query import AllocationQuery
from ..pipeline.operation import Operation
from ..pipeline.state import State
from .base import ARG_TYPE, Field
from .basics import Decoder


class BytesDecoder(Decoder):
    """Bytes as an array of shape (batch, longest in the file), filled up with zeros."""

    def _longest(self) -> int:
        return int(self.metadata["size"].max(initial=0))

    def as_op(self, tensors: bool) -> Op:
        return ops.Pad(self._longest())

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        shape, dtype = (self._longest(),), np.dtype("<u1")
        return State(True, previous_state.device, shape, dtype), AllocationQuery(shape, dtype)


class BytesField(Field):
    """Bytes: samples give one-dimensional uint8 arrays."""

    def __init__(self) -> None:
        pass

    @property
    def metadata_type(self) -> np.dtype[Any]:
        return np.dtype([("ptr", "<u8"), ("size", "<u8")])

    @staticmethod
    def from_binary(binary: Any) -> Field:
        return BytesField()

    def to_binary(self) -> Any:
        return np.zeros(1, dtype=ARG_TYPE)[0]

    def encode(self, destination: Any, field: Any, malloc: Any) -> None:
        data = np.frombuffer(field, np.uint8) if isinstance(field, bytes) else np.asarray(field).reshape(-1)
        destination["ptr"], memory = malloc(data.size)
        memory[:] = data
        destination["size"] = data.size

    def get_decoder_class(self) -> type[Operation]:
        return BytesDecoder
