"""Fields and decoder of arrays and tensors of one shape."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ....errors import OptionError
from ....interop.torch import numpy_dtype
from ....ops.base import Batch, Draws, Op
from ....schema.columns import I64
from ..pipeline.allocation_query import AllocationQuery
from ..pipeline.operation import Operation
from ..pipeline.state import State
from .base import ARG_TYPE, Array, DType, Field, Malloc, Read
from .basics import Decoder

NDArrayArgsType = np.dtype([("shape", "<u8", 32), ("type_length", "<u8")])


class NDArrayDecoder(Decoder):
    """Stacks arrays."""

    def as_op(self, tensors: bool) -> Op:
        return _Identity()

    def fill(self, destination: Array, rows: Array, indices: Array, read: Read) -> None:
        for cell, ptr in zip(destination, rows, strict=True):
            cell[...] = read(ptr).view(self.field.dtype).reshape(self.field.shape)

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        shape, dtype = self.field.shape, self.field.dtype
        return State(True, previous_state.device, shape, dtype), AllocationQuery(shape, dtype)


class _Identity(Op):
    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return batch


class NDArrayField(Field):
    """Arrays of one dtype and shape."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        self.dtype = np.dtype(dtype)
        self.shape = tuple(int(size) for size in shape)
        self.element_size = self.dtype.itemsize * int(np.prod(self.shape))

    @property
    def metadata_type(self) -> DType:
        return np.dtype("<u8")

    @staticmethod
    def from_binary(binary: Array) -> Field:
        head = binary[: NDArrayArgsType.itemsize].view(NDArrayArgsType)[0]
        text = binary[NDArrayArgsType.itemsize :][: int(head["type_length"])].tobytes()
        [(_, dtype)] = json.loads(text)
        return NDArrayField(np.dtype(dtype), tuple(np.trim_zeros(head["shape"], "b").tolist()))

    def to_binary(self) -> Any:
        text = json.dumps(self.dtype.descr).encode()
        head = np.zeros(1, dtype=NDArrayArgsType)
        head["shape"][0, : len(self.shape)], head["type_length"] = self.shape, len(text)
        arguments = np.zeros(1, dtype=ARG_TYPE)[0]
        arguments[0][: head.nbytes + len(text)] = np.frombuffer(head.tobytes() + text, dtype=np.uint8)
        return arguments

    def fit(self, value: object) -> Array:
        """Return the value as an array of this field; FFCV checks the number of bytes only."""
        array = np.asarray(value)
        if array.dtype != self.dtype or array.size != np.prod(self.shape):
            raise OptionError(
                f"the field holds {self.dtype} {self.shape}, and this is {array.dtype} {array.shape}"
            )
        return array.reshape(self.shape)

    def encode(self, destination: Array, field: Any, malloc: Malloc) -> None:
        destination[0], memory = malloc(self.element_size)
        memory[:] = np.ascontiguousarray(self.fit(field)).reshape(-1).view(np.uint8)

    def get_decoder_class(self) -> type[Operation]:
        return NDArrayDecoder


class TorchTensorField(NDArrayField):
    """Tensors of one dtype and shape."""

    def __init__(self, dtype: Any, shape: tuple[int, ...]) -> None:
        stored = numpy_dtype(dtype)
        if stored is None:
            raise OptionError(f"NumPy has no {dtype}, so the file cannot hold it; view it as another dtype")
        super().__init__(stored, shape)
