"""Batches that processes share on one CUDA device: a server exports memory, and readers copy out of it.

The memory is the driver's own, and a handle of 64 bytes opens it elsewhere. (PyTorch shares tensors with a
counter in /dev/shm, which stays behind when a process is killed.) Readers copy a batch within the device and
release it at once: a device has no copy-on-write, and kernels still read a batch that their loop has dropped.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import DamagedError, OptionError
from ...schema.columns import AnyArray

HANDLE_BYTES, ALIGNMENT = 64, 256
# The driver allocates memory in such steps; segments between one size and twice that are reused for it.
STEP_BYTES = 2 << 20
# Part of a device's memory that a server takes for the batches of a dataset.
MEMORY_SHARE = 1 / 8
# A reader does not use a batch that took longer to copy: the server may have given the reader up, and it
# reuses such memory after the second time.
MAX_COPY_SECONDS, RETIRE_SECONDS = 10.0, 60.0
OUT_OF_MEMORY = 2
# Opening memory of another device lets this one read it.
LAZY_PEER_ACCESS = 1


def name_of(device: torch.device) -> str:
    """Return the name of a device that every process of the machine has for it."""
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        raise OptionError(f'share="node" with decode= needs a CUDA device, not {device}')
    return str(torch.cuda.get_device_properties(device).uuid)


def device_named(name: str) -> torch.device:
    """Return the device of that name; raise OptionError where this process does not see it."""
    if name == "cpu":
        return torch.device("cpu")
    for index in range(torch.cuda.device_count()):
        if str(torch.cuda.get_device_properties(index).uuid) == name:
            return torch.device("cuda", index)
    raise OptionError(
        f"the server of the node does not see GPU {name}: start `batchplant serve-node` where it is visible"
    )


class _Handle(ctypes.Structure):
    _fields_ = (("data", ctypes.c_ubyte * HANDLE_BYTES),)


class _Driver:
    """Calls of CUDA's driver in the context that torch uses."""

    def __init__(self, device: torch.device) -> None:
        torch.cuda.init()
        index = torch.cuda.current_device() if device.index is None else device.index
        self._library = ctypes.CDLL("libcuda.so.1")
        self._context, number = ctypes.c_void_p(), ctypes.c_int()
        self._check("cuDeviceGet", ctypes.byref(number), index)
        self._check("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), number)

    def call(self, name: str, *arguments: Any) -> None:
        # The context is one of the calling thread.
        self._check("cuCtxSetCurrent", self._context)
        self._check(name, *arguments)

    def _check(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status == OUT_OF_MEMORY:
            raise MemoryError(f"{name}: the device has no memory left")
        if status:
            text = ctypes.c_char_p()
            self._library.cuGetErrorString(status, ctypes.byref(text))
            raise OSError(f"{name}: {(text.value or b'unknown error').decode()}")

    def allocate(self, size: int) -> int:
        pointer = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        return pointer.value

    def free(self, pointer: int) -> None:
        self.call("cuMemFree_v2", ctypes.c_uint64(pointer))

    def handle(self, pointer: int) -> bytes:
        handle = _Handle()
        self.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(pointer))
        return bytes(handle)

    def open(self, handle: bytes) -> tuple[int, int]:
        """Open memory of another process; return its address and size."""
        pointer, base, size = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_size_t()
        opened = _Handle.from_buffer_copy(handle)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(pointer), opened, LAZY_PEER_ACCESS)
        self.call("cuMemGetAddressRange_v2", ctypes.byref(base), ctypes.byref(size), pointer)
        return pointer.value, base.value + size.value - pointer.value

    def close(self, pointer: int) -> None:
        self.call("cuIpcCloseMemHandle", ctypes.c_uint64(pointer))

    def copy(self, target: int, source: int, size: int, stream: torch.cuda.Stream) -> None:
        addresses = ctypes.c_uint64(target), ctypes.c_uint64(source), ctypes.c_size_t(size)
        self.call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_void_p(stream.cuda_stream))


def _finish(stream: torch.cuda.Stream) -> None:
    """Wait for a stream without keeping a core busy."""
    event = torch.cuda.Event(blocking=True)
    event.record(stream)
    event.synchronize()


class _Segment:
    """Memory that other processes open. ``free_at``: when it may be used again."""

    def __init__(self, driver: _Driver, size: int) -> None:
        self.size, self.free_at = size, 0.0
        self.pointer = driver.allocate(size)
        weakref.finalize(self, driver.free, self.pointer).atexit = False
        self.handle = driver.handle(self.pointer)


class Exported:
    """A batch in exported memory, which is reused when this object is gone."""

    def __init__(self, segment: _Segment, size: int, free: list[_Segment]) -> None:
        self._segment, self.handle, self.size = segment, segment.handle, size
        weakref.finalize(self, free.append, segment).atexit = False

    def retire(self) -> None:
        """Keep the memory from being reused for a while: a reader was given up, and may still copy."""
        self._segment.free_at = time.monotonic() + RETIRE_SECONDS


class Exports:
    """Memory of a device for the batches of one dataset; on the CPU, batches are arrays and need none."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = device, stream
        self._free: list[_Segment] = []
        self._lock = threading.Lock()
        self.bytes, self._max_bytes = 0, 0
        if device.type == "cuda":
            self._driver = _Driver(device)
            self._max_bytes = int(torch.cuda.get_device_properties(device).total_memory * MEMORY_SHARE)

    def array(self, value: object) -> AnyArray | None:
        """Return a tensor of the CPU as an array; None for anything else."""
        return value.numpy() if isinstance(value, Tensor) and value.device.type == "cpu" else None

    def describe(self, value: object, start: int) -> tuple[list[Any], int] | None:
        """Return the type and shape of a tensor that begins at ``start``, and its end; None for all else."""
        if not isinstance(value, Tensor) or value.device.type != self._device.type:
            return None
        size = -(-value.numel() * value.element_size() // ALIGNMENT) * ALIGNMENT
        return [start, str(value.dtype).removeprefix("torch."), list(value.shape)], start + size

    def export(self, tensors: list[tuple[Tensor, int]], size: int) -> Exported:
        """Copy tensors to their starts in exported memory; raise MemoryError where that is used up."""
        segment = self._take(size)
        exported = Exported(segment, size, self._free)
        with torch.cuda.stream(self._stream):
            for tensor, start in tensors:
                tensor = tensor.contiguous()
                nbytes = tensor.numel() * tensor.element_size()
                if nbytes:
                    self._driver.copy(segment.pointer + start, tensor.data_ptr(), nbytes, self._stream)
        _finish(self._stream)
        return exported

    def _take(self, size: int) -> _Segment:
        with self._lock:
            now = time.monotonic()
            # Others only add to it, also while this thread is in here.
            for segment in list(self._free):
                if size <= segment.size <= max(2 * size, STEP_BYTES) and segment.free_at <= now:
                    self._free.remove(segment)
                    return segment
            size = max(1, -(-size // STEP_BYTES)) * STEP_BYTES
            if self.bytes + size > self._max_bytes:
                raise MemoryError(f"shared batches take {self.bytes:,} bytes of the device already")
            segment = _Segment(self._driver, size)
            self.bytes += size
        return segment


class Imports:
    """Memory of a server, opened here; ``copy`` may be called by one thread at a time."""

    def __init__(self, device: torch.device, stream: torch.cuda.Stream) -> None:
        self._device, self._stream = device, stream
        self._driver = _Driver(device) if device.type == "cuda" else None
        # Address and size by handle.
        self._opened: dict[bytes, tuple[int, int]] = {}

    def copy(self, handle: bytes, size: int) -> Callable[[int, str, list[int]], Tensor]:
        """Copy a batch; return a function that gives its tensors by start, dtype and shape."""
        if self._driver is None or len(handle) != HANDLE_BYTES or size < 0:
            raise DamagedError("no batch of a device")
        began = time.monotonic()
        if handle not in self._opened:
            self._opened[handle] = self._driver.open(handle)
        pointer, room = self._opened[handle]
        if size > room:
            raise DamagedError("a batch ends outside of its memory")
        with torch.cuda.stream(self._stream):
            memory = torch.empty(size, dtype=torch.uint8, device=self._device)
            self._driver.copy(memory.data_ptr(), pointer, size, self._stream)
        _finish(self._stream)
        if time.monotonic() - began > MAX_COPY_SECONDS:
            raise TimeoutError("copying a batch took too long")

        def tensor(start: int, dtype: str, shape: list[int]) -> Tensor:
            kind = getattr(torch, dtype)
            if not isinstance(kind, torch.dtype) or start < 0 or min(shape, default=0) < 0:
                raise ValueError("no tensor")
            # torch checks that it lies inside.
            nbytes = int(np.prod(shape, dtype=object)) * kind.itemsize
            if start + nbytes > size:
                raise ValueError("a tensor lies outside")
            return memory[start : start + nbytes].view(kind).view(shape)

        return tensor

    def close(self) -> None:
        """Close the memory of a server that is gone, or needed no longer."""
        opened, self._opened = self._opened, {}
        for pointer, _ in opened.values():
            # The server may be gone, and the device with it.
            with contextlib.suppress(OSError):
                if self._driver is not None:
                    self._driver.close(pointer)
