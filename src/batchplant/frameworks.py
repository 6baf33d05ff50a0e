"""The one way from the core to a framework: the core imports none, and ``interop`` knows the core.

Only this module and the registry import modules of the package by name; ``tools/check_layers.py`` checks it.
"""

from __future__ import annotations

import importlib
from typing import Any


def torch_part() -> Any:
    """:mod:`batchplant.interop.torch`, imported when somebody asks for PyTorch's tensors or datasets."""
    return importlib.import_module("batchplant.interop.torch")
