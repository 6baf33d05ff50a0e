"""Description of the input and output of an operation."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch


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
