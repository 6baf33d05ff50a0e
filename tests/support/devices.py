"""Devices for tests: those that there are, and one that only watches.

Where there is no GPU, a tensor that was left on the CPU is added to one "on the device" without a word, since
both lie in memory. On torch's ``meta`` device, tensors have a shape and a dtype and no numbers, so nothing
can be read from them; :class:`OneDevice` also refuses to mix them with tensors of the CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

HAS_CUDA = torch.cuda.is_available()
GPU = [pytest.mark.gpu, pytest.mark.skipif(not HAS_CUDA, reason="there is no CUDA device")]
DEVICES = ["cpu", pytest.param("cuda", marks=GPU)]
WATCHED = torch.device("meta")
# What may take from one device and give to another.
COPIES = ("aten::_to_copy", "aten::copy_", "aten::to")
# What CUDA does with wide numbers that have no sign: it moves them as a whole, and converts them.
WIDE = (torch.uint16, torch.uint32, torch.uint64)
MOVES = (
    "alias", "as_strided", "clone", "detach", "empty", "expand", "new_empty", "permute", "select", "slice",
    "split", "squeeze", "transpose", "unbind", "unsqueeze", "view",
)  # fmt: skip


def needs_gpu(test: Any) -> Any:
    return functools.reduce(lambda marked, mark: mark(marked), GPU, test)


class OneDevice(TorchDispatchMode):
    """In its block, no operation of torch takes tensors of two devices, unless one is a single number.

    A GPU would take indices of the CPU too, and stop for them: here they are refused. So is what CUDA cannot
    do with numbers of 16 bits and more that have no sign, and the CPU can.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tensors, name = list(_tensors((args, kwargs))), func.name()
        kinds = {tensor.device.type for tensor in tensors if tensor.dim()}
        if not name.startswith(COPIES):
            if len(kinds) > 1:
                raise AssertionError(f"{name} takes tensors on {' and '.join(sorted(kinds))}")
            wide = [tensor.dtype for tensor in tensors if tensor.dtype in WIDE and tensor.device == WATCHED]
            if wide and not name.removeprefix("aten::").lstrip("_").startswith(MOVES):
                raise AssertionError(f"{name} takes {wide[0]}, and not on CUDA")
        return func(*args, **(kwargs or {}))


def _tensors(values: Any) -> Iterator[Any]:
    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, dict):
        yield from _tensors(list(values.values()))
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)


def watch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let loaders with the device ``meta`` run its steps watched; what comes back from it is all zeros."""
    from batchplant.interop.gpu.on_device import OnDevice

    run = OnDevice.run

    def watched(self: OnDevice, *arguments: Any) -> Any:
        with OneDevice():
            return run(self, *arguments)

    def fetch(self: OnDevice, batch: Any, *, tensor: bool) -> Any:
        assert batch.device == WATCHED
        zeros = torch.zeros(batch.shape, dtype=batch.dtype)
        return zeros if tensor else zeros.numpy()

    monkeypatch.setattr(OnDevice, "run", watched)
    monkeypatch.setattr(OnDevice, "fetch", fetch)


def here(value: Any) -> Any:
    """Copy tensors of any device to NumPy arrays."""
    if isinstance(value, torch.Tensor):
        return value.cpu().numpy()
    if isinstance(value, tuple | list):
        return type(value)(here(part) for part in value)
    return value


def same(one: Any, other: Any, close: Callable[[Any, Any], None]) -> None:
    """Assert that two values are alike: arrays by ``close``, everything else by equality."""
    assert isinstance(other, np.ndarray | np.generic) or type(one) is type(other)
    if isinstance(one, np.ndarray):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        close(one, other)
    elif isinstance(one, tuple | list):
        assert len(one) == len(other)
        for part, counterpart in zip(one, other, strict=True):
            same(part, counterpart, close)
    else:
        assert one == other
