"""Memory that an operation asks for, once for every batch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch


@dataclasses.dataclass(frozen=True)
class AllocationQuery:
    """Room for one sample: shape and dtype, and a device where the dtype is torch's."""

    shape: Any
    dtype: Any
    device: Any = None


Allocation = AllocationQuery | Sequence[AllocationQuery]


def allocate_query(memory_allocation: AllocationQuery, batch_size: int, batches_ahead: int) -> Any:
    """Memory for ``batches_ahead`` batches: one array, or a list of tensors."""
    if isinstance(memory_allocation.dtype, torch.dtype):
        return [allocate(memory_allocation, batch_size) for _ in range(batches_ahead)]
    return allocate(memory_allocation, batches_ahead, batch_size)


def allocate(asked: Any, *counts: int) -> Any:
    """Memory for what an operation asked for: nothing, an array or tensor, or a tuple of them."""
    if asked is None:
        return None
    if not isinstance(asked, AllocationQuery):
        return tuple(allocate(one, *counts) for one in asked)
    shape = (*counts, *(int(size) for size in asked.shape))
    if isinstance(asked.dtype, torch.dtype):
        return torch.empty(shape, dtype=asked.dtype, device=asked.device)
    return np.empty(shape, dtype=asked.dtype)
