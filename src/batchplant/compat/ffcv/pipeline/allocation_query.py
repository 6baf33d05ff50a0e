"""Requests of operations for memory, once for every batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


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
