"""Operation: what users subclass for steps of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from .allocation_query import AllocationQuery
from .state import State


class Operation(ABC):
    """A step of a pipeline: it says what it makes of a State, and gives the function that does it.

    The function takes (batch, memory), then the sample numbers if it has ``with_indices = True``, then the
    shared memory if there is any. A decoder's takes (sample numbers, memory, metadata, storage state).
    """

    field: Any = None

    def __init__(self) -> None:
        self.metadata: Any = None
        self.memory_read: Any = None

    def accept_field(self, field: Any) -> None:
        """Be told the field at the start of the pipeline."""
        self.field = field

    def accept_globals(self, metadata: Any, memory_read: Any) -> None:
        """Be told the field's table, and the function that reads what a pointer in it leads to."""
        self.metadata, self.memory_read = metadata, memory_read

    @abstractmethod
    def generate_code(self) -> Callable[..., Any]:
        """The function that does it."""

    def declare_shared_memory(self, previous_state: State) -> AllocationQuery | None:
        """Memory that all places share at which this very operation stands."""
        return None

    def generate_code_for_shared_state(self) -> Callable[..., Any] | None:
        """A function that fills the shared memory, once for every batch."""
        return None

    @abstractmethod
    def declare_state_and_memory(self, previous_state: State) -> tuple[State, Any]:
        """What comes out, and the memory that the function needs: None, an AllocationQuery, or several."""
