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
        return sent(array.astype(np.float32) if array.dtype == np.float64 else array, self._device)


def sent(array: Any, device: Any) -> Any:
    """An array on a device, by pinned memory."""
    # What torch cannot share: memory that must not be written to, and an axis that runs backwards.
    if not array.flags.writeable or any(stride < 0 for stride in array.strides):
        array = array.copy()
    found = torch.from_numpy(array)
    return (found.pin_memory() if device.type == "cuda" else found).to(device, non_blocking=True)
