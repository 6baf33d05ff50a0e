"""Base class of operations, also of those that users write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from .allocation_query import Allocation, AllocationQuery
from .state import State


class Operation(ABC):
    """A step of a pipeline: declares the State of its output and generates the function that computes it.

    The function takes (batch, memory), then the sample numbers if it has ``with_indices = True``, then the
    shared memory if there is any. A decoder's takes (sample numbers, memory, metadata, storage state).
    """

    field: Any = None

    def __init__(self) -> None:
        self.metadata: Any = None
        self.memory_read: Any = None

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
