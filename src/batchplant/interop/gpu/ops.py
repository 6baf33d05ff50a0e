"""What the device forms of ops work with; see :class:`batchplant.ops.base.Tensors`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


class DeviceTensors:
    """Torch, and arrays on one device."""

    torch = torch

    def __init__(self, device: Any) -> None:
        self._device = device

    def send(self, values: Any) -> Any:
        array = np.asarray(values)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        # Torch cannot share memory that must not be written to.
        found = torch.from_numpy(array.copy() if not array.flags.writeable else array)
        if self._device.type == "cuda":
            found = found.pin_memory()
        return found.to(self._device, non_blocking=True)
