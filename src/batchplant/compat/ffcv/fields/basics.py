"""Fields and decoders of numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ....ops.base import Batch, Draws, Op, Spec
from ....schema.columns import I64
from ..builtin import Builtin, interpreted
from ..pipeline.allocation_query import AllocationQuery
from ..pipeline.operation import Operation
from ..pipeline.state import State
from .base import ARG_TYPE, Array, DType, Field, Malloc, Read


class Decoder(Builtin):
    """A Builtin at the start of a pipeline."""

    def fill(self, destination: Array, rows: Array, indices: Array, read: Read) -> None:
        """Decode samples from their rows of the table; ``read`` returns the bytes at a pointer."""
        raise NotImplementedError

    def generate_code(self) -> Callable[..., Any]:
        """Return a function of (sample numbers, memory, the field's table, the memory manager's state)."""
        memory_read = self.memory_read

        def decode(indices: Any, destination: Any, metadata: Any, storage_state: Any) -> Any:
            batch = destination[: len(indices)]
            self.fill(batch, metadata[indices], indices, lambda ptr: memory_read(ptr, storage_state))
            return batch

        return interpreted(decode)


class BasicDecoder(Decoder):
    """Numbers as an array of shape (batch, 1)."""

    dtype: ClassVar[Any] = None

    def as_op(self, tensors: bool) -> Op:
        return _Numbers(self.dtype)

    def fill(self, destination: Array, rows: Array, indices: Array, read: Read) -> None:
        destination[:] = rows.reshape(-1, 1)

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        return State(True, previous_state.device, (1,), self.dtype), AllocationQuery((1,), self.dtype)


class _Numbers(Op):
    def __init__(self, dtype: Any) -> None:
        self.dtype = np.dtype(dtype)

    def infer(self, spec: Spec) -> Spec:
        return Spec(self.dtype, (1,))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return np.asarray(batch).astype(self.dtype, copy=False).reshape(-1, 1)


class IntDecoder(BasicDecoder):
    """Whole numbers, int64."""

    dtype = np.dtype("<i8")


class FloatDecoder(BasicDecoder):
    """Real numbers, float64."""

    dtype = np.dtype("<f8")


class FloatField(Field):
    """A real number, float64."""

    def __init__(self) -> None:
        pass

    @property
    def metadata_type(self) -> DType:
        return np.dtype("<f8")

    @staticmethod
    def from_binary(binary: Array) -> Field:
        return FloatField()

    def to_binary(self) -> Any:
        return np.zeros(1, dtype=ARG_TYPE)[0]

    def encode(self, destination: Array, field: Any, malloc: Malloc) -> None:
        destination[0] = field

    def get_decoder_class(self) -> type[Operation]:
        return FloatDecoder


class IntField(Field):
    """A whole number, int64."""

    @property
    def metadata_type(self) -> DType:
        return np.dtype("<i8")

    @staticmethod
    def from_binary(binary: Array) -> Field:
        return IntField()

    def to_binary(self) -> Any:
        return np.zeros(1, dtype=ARG_TYPE)[0]

    def encode(self, destination: Array, field: Any, malloc: Malloc) -> None:
        destination[0] = field

    def get_decoder_class(self) -> type[Operation]:
        return IntDecoder
