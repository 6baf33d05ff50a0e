"""Pipeline: operations checked against each other. The Loader does not need it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from .allocation_query import Allocation, AllocationQuery, allocate_query
from .operation import Operation
from .state import State


class Pipeline:
    """Operations one after another, grouped into runs of the same mode (compiled or on tensors)."""

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.original_state = State(
            jit_mode=True, device=torch.device("cpu"), dtype=np.dtype("u1"), shape=None
        )
        self.operations = operations
        self.operation_blocks, _ = self.parse_pipeline()
        self.compiled_ops = self.compile_ops()
        self.compiled_code = None

    def parse_pipeline(
        self, batch_size: int = 16
    ) -> tuple[list[tuple[bool, list[int]]], dict[int, Allocation | None]]:
        """Return (mode, numbers of the operations) of every run, and the memory request of each operation."""
        state = self.original_state
        blocks: list[tuple[bool, list[int]]] = []
        queries: dict[int, Allocation | None] = {}
        for number, operation in enumerate(self.operations):
            state, queries[number] = operation.declare_state_and_memory(state)
            if not blocks or blocks[-1][0] != state.jit_mode:
                blocks.append((state.jit_mode, []))
            blocks[-1][1].append(number)
        return blocks, queries

    def compile_ops(self) -> dict[int, Any]:
        return {number: operation.generate_code() for number, operation in enumerate(self.operations)}

    def allocate_query(self, memory_allocation: AllocationQuery, batch_size: int, batches_ahead: int) -> Any:
        return allocate_query(memory_allocation, batch_size, batches_ahead)

    def allocate_memory(self, batch_size: int, batches_ahead: int) -> dict[int, Any]:
        """Return the memory of every operation; None for operations that need none."""
        memory: dict[int, Any] = {}
        for number, query in self.parse_pipeline()[1].items():
            if query is None or isinstance(query, AllocationQuery):
                memory[number] = query and allocate_query(query, batch_size, batches_ahead)
            else:
                memory[number] = tuple(allocate_query(part, batch_size, batches_ahead) for part in query)
        return memory
