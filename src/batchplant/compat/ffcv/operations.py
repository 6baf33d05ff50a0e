"""Operations, the pipelines they form and the compiler of those that users write."""

from __future__ import annotations

import dataclasses
import importlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeGuard

import numpy as np
import torch

from ...interop.torch import numpy_dtype, torch_dtype
from ...ops.base import Batch, Draws, Op, Spec
from ...storage.platform import cpu_count


@dataclasses.dataclass
class State:
    """``jit_mode``: the operation's code takes NumPy arrays and may be compiled; else it takes tensors."""

    jit_mode: bool
    device: Any
    shape: Any
    dtype: Any

    def __post_init__(self) -> None:
        if self.jit_mode and torch.device(self.device) != torch.device("cpu"):
            raise AssertionError(f"compiled code runs on the CPU, not on {self.device}")
        if self.jit_mode and isinstance(self.dtype, torch.dtype):
            raise AssertionError(f"compiled code works on NumPy arrays, and {self.dtype} is torch's")


@dataclasses.dataclass(frozen=True)
class AllocationQuery:
    """Memory for one sample: shape and dtype, and a device where the dtype is torch's."""

    shape: Any
    dtype: Any
    device: Any = None


Allocation = AllocationQuery | Sequence[AllocationQuery]


def allocate_query(memory_allocation: AllocationQuery, batch_size: int, batches_ahead: int) -> Any:
    """Return memory for ``batches_ahead`` batches: one array, or a list of tensors."""
    if isinstance(memory_allocation.dtype, torch.dtype):
        return [allocate(memory_allocation, batch_size) for _ in range(batches_ahead)]
    return allocate(memory_allocation, batches_ahead, batch_size)


def allocate(query: Allocation | None, *counts: int) -> Any:
    """Return memory for an operation's request: None, an array or tensor, or a tuple of them."""
    if query is None:
        return None
    if not isinstance(query, AllocationQuery):
        return tuple(allocate(part, *counts) for part in query)
    shape = (*counts, *(int(size) for size in query.shape))
    if isinstance(query.dtype, torch.dtype):
        return torch.empty(shape, dtype=query.dtype, device=query.device)
    return np.empty(shape, dtype=query.dtype)


def numba() -> Any:
    """Return the numba module, or None."""
    try:
        return importlib.import_module("numba")
    except ImportError:
        return None


class Compiler:
    """Settings of the compiler; batchplant's own operations need none."""

    is_enabled: bool = True
    num_threads: int = 1

    @classmethod
    def set_enabled(cls, b: bool) -> None:
        cls.is_enabled = b

    @classmethod
    def set_num_threads(cls, n: int) -> None:
        cls.num_threads = n if n >= 1 else cpu_count()
        module = numba() if cls.is_enabled else None
        if module is not None:
            module.set_num_threads(min(cls.num_threads, module.config.NUMBA_NUM_THREADS))

    @classmethod
    def compile(cls, code: Callable[..., Any], signature: Any = None) -> Callable[..., Any]:
        """Return the compiled function, or the function itself without numba or if it is one of ours."""
        module = numba() if cls.is_enabled and not getattr(code, "interpreted", False) else None
        if module is None or hasattr(code, "py_func"):
            return code
        parallel = bool(getattr(code, "is_parallel", False)) and cls.num_threads > 1
        return module.njit(signature, fastmath=True, nogil=True, error_model="numpy", parallel=parallel)(code)

    @classmethod
    def get_iterator(cls) -> Any:
        """Return the replacement of ``range`` for loops over the samples of a batch."""
        module = numba() if cls.is_enabled and cls.num_threads > 1 else None
        return range if module is None else module.prange


class Operation(ABC):
    """A step of a pipeline: declares the State of its output and generates the function that computes it.

    The function takes (batch, memory), then the sample numbers if it has ``with_indices = True``, then the
    shared memory if there is any. A decoder's takes (sample numbers, memory, metadata, storage state).
    """

    field: Any = None
    metadata: Any = None
    memory_read: Any = None

    def accept_field(self, field: Any) -> None:
        """Set the field at the start of the pipeline."""
        self.field = field

    def accept_globals(self, metadata: Any, memory_read: Any) -> None:
        """Set the field's table and the function that reads the bytes at a pointer in it."""
        self.metadata, self.memory_read = metadata, memory_read

    @abstractmethod
    def generate_code(self) -> Callable[..., Any]:
        """Return the function that computes the output."""

    def declare_shared_memory(self, previous_state: State) -> AllocationQuery | None:
        """Return a request for memory that all uses of this operation object share."""
        return None

    def generate_code_for_shared_state(self) -> Callable[..., Any] | None:
        """Return a function that fills the shared memory, once for every batch."""
        return None

    @abstractmethod
    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Allocation | None]:
        """Return the State of the output and the memory needed: None, an AllocationQuery, or several."""


class Pipeline:
    """Operations one after another, grouped into runs of the same mode (compiled or on tensors)."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.original_state = State(
            jit_mode=True, device=torch.device("cpu"), dtype=np.dtype("u1"), shape=None
        )
        self.operations = operations
        self.operation_blocks = self.parse_pipeline()

    def parse_pipeline(self) -> list[tuple[bool, list[int]]]:
        """Return (mode, numbers of the operations) of every run."""
        state = self.original_state
        blocks: list[tuple[bool, list[int]]] = []
        for number, operation in enumerate(self.operations):
            state, _ = operation.declare_state_and_memory(state)
            if not blocks or blocks[-1][0] != state.jit_mode:
                blocks.append((state.jit_mode, []))
            blocks[-1][1].append(number)
        return blocks


# FFCV runs the code of users in one thread, so it may not be safe in two.
USER_CODE_LOCK = threading.RLock()


def interpreted(code: Callable[..., Any], **attributes: object) -> Callable[..., Any]:
    """Mark a function that numba does not compile, because the native core does the work."""
    code.__dict__.update(attributes, interpreted=True)
    return code


@dataclasses.dataclass(eq=False, repr=False)
class Builtin(Operation):
    """An operation that batchplant carries out. Its attributes are read again for every epoch."""

    # Makes the op from the fields of a dataclass.
    op_type: ClassVar[Callable[..., Op]]

    def as_op(self, tensors: bool) -> Op:
        """Return the op for it, on tensors or on arrays."""
        return type(self).op_type(*(getattr(self, field.name) for field in dataclasses.fields(self)))

    def declare_state_and_memory(self, previous_state: State) -> tuple[State, AllocationQuery]:
        state = state_of(self.as_op(not previous_state.jit_mode).infer(spec_of(previous_state)))
        return state, AllocationQuery(state.shape, state.dtype, None if state.jit_mode else state.device)

    def generate_code(self) -> Callable[..., Any]:
        # For users who call it themselves; the Loader runs the op.
        def run(batch: Batch, memory: Any, indices: Any) -> Any:
            op = self.as_op(isinstance(batch, torch.Tensor))
            ids = np.asarray(indices, dtype=np.int64)
            return op.run(batch, ids, Draws(int(np.random.randint(2**31)), 0, ids, type(self).__name__))

        return interpreted(run, with_indices=True)


def is_ours(operation: object) -> TypeGuard[Builtin]:
    """Return True for a Builtin whose behaviour no subclass has replaced."""
    package = __name__.rpartition(".")[0]
    return isinstance(operation, Builtin) and all(
        getattr(type(operation), name).__module__.startswith(package)
        for name in ("generate_code", "declare_state_and_memory")
    )


class StateSpec(Spec):
    """A Spec that keeps the State it was derived from."""

    state: State


def spec_of(state: State) -> Spec:
    """Convert FFCV's State to batchplant's Spec."""
    tensors = isinstance(state.dtype, torch.dtype) or torch.device(state.device).type != "cpu"
    shape = () if state.shape is None else tuple(int(size) for size in state.shape)
    spec = StateSpec(numpy_dtype(state.dtype), shape, tensors, str(torch.device(state.device)))
    object.__setattr__(spec, "state", state)
    return spec


def state_of(spec: Spec) -> State:
    """Convert batchplant's Spec to FFCV's State."""
    if isinstance(spec, StateSpec):
        return spec.state
    dtype: Any = spec.dtype if spec.dtype is not None else np.dtype(np.uint8)
    return State(
        jit_mode=not spec.torch,
        device=torch.device(spec.device),
        shape=spec.shape,
        dtype=torch_dtype(dtype) if spec.torch else dtype,
    )
