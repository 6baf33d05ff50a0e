"""Memory of batches that other processes map, and batches as messages that say where in it values lie."""

from __future__ import annotations

import math
import mmap
import os
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...schema.columns import U8, AnyArray, AnyDType
from ...storage import platform
from ..images import Exported, Exports
from ..on_cpu import BufferPool
from .wire import ALIGNMENT, Decoder, Encoder, numeric

# Smaller arrays are copied into one segment for all of them, or into the message if they are smaller still.
MIN_SEGMENT_BYTES, MAX_INLINE_BYTES = 256 << 10, 8 << 10
# Segments of a batch; segments of one size, and sizes, that are kept for the next batches.
MAX_SEGMENTS, MAX_FREE_SEGMENTS, MAX_FREE_SIZES = 16, 6, 8
# Segments have one of so many sizes between two powers of two, so that batches of unequal sizes reuse them.
SIZE_STEPS = 8


class Segment:
    """Memory that other processes can map. ``retired``: a reader may still see it, so it is not reused."""

    def __init__(self, fd: int, start: int, size: int) -> None:
        self.fd, self.start, self.size, self.retired = fd, start, size, False


class SharedBuffers(BufferPool):
    """Memory for batches that other processes map, reused once no reference to it is left here.

    A process that has a batch is represented by a reference to its array. Small arrays are not shared.
    """

    def __init__(self) -> None:
        super().__init__(MAX_FREE_SEGMENTS)
        self._segments: dict[int, Segment] = {}
        self._lock = threading.Lock()
        self._max_bytes = platform.memory_limit() // 2

    def take(self, shape: tuple[int, ...], dtype: AnyDType) -> AnyArray:
        size = math.prod(shape) * dtype.itemsize
        if size < MIN_SEGMENT_BYTES:
            return np.empty(shape, dtype)
        return self.take_segment(size)[:size].view(dtype).reshape(shape)

    def take_segment(self, size: int) -> U8:
        """Return memory of at least ``size`` bytes that is a segment."""
        step = max(mmap.PAGESIZE, (1 << size.bit_length() - 1) // SIZE_STEPS)
        size = -(-size // step) * step
        with self._lock:
            free = self._free.setdefault(size, [])
            while len(self._free) > MAX_FREE_SIZES:
                # The list of the size that was needed first; the sizes of batches may change.
                self._free.pop(next(iter(self._free)))
        memory: U8 | None = None
        while memory is None and free:
            # Several threads may take the last.
            try:
                memory = free.pop()
            except IndexError:
                break
            if self._segments[memory.ctypes.data].retired:
                memory = None
        if memory is None:
            memory = self._new(size)
        return _native.lend(memory, free, MAX_FREE_SEGMENTS)

    def _new(self, size: int) -> U8:
        if size > self._max_bytes:
            raise MemoryError(f"a batch of {size:,} bytes")
        fd, mapped = platform.shared_memory("batchplant-batch", size)
        memory = np.frombuffer(mapped, dtype=np.uint8)
        start = memory.ctypes.data
        self._segments[start] = Segment(fd, start, size)
        # Python's descriptor of a mapping is another one.
        weakref.finalize(memory, self._forget, start, fd)
        return memory

    def _forget(self, start: int, fd: int) -> None:
        self._segments.pop(start, None)
        os.close(fd)

    def find(self, array: AnyArray) -> tuple[Segment, int] | None:
        """Return the segment that an array lies in, and where; None if it lies in none."""
        start, low, high = array.ctypes.data, 0, array.itemsize
        for length, stride in zip(array.shape, array.strides, strict=True):
            reach = (length - 1) * stride
            low, high = low + min(reach, 0), high + max(reach, 0)
        for segment in list(self._segments.values()):
            if segment.start <= start + low and start + high <= segment.start + segment.size:
                return segment, start - segment.start
        return None

    @property
    def bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in list(self._segments.values()))


class SharedBatch(NamedTuple):
    """A batch in shared memory: its message, its segments, and arrays that keep these from being reused.

    exported: its tensors, where a device made them.
    """

    message: bytes
    segments: list[Segment]
    arrays: list[AnyArray]
    exported: Exported | None

    @property
    def bytes(self) -> int:
        on_device = self.exported.size if self.exported else 0
        return len(self.message) + sum(segment.size for segment in self.segments) + on_device

    @property
    def needs_lease(self) -> bool:
        """True if it lies in memory that must not be reused while a reader has it."""
        return bool(self.segments) or self.exported is not None

    def retire(self) -> None:
        """Keep its memory from being reused: a reader that is gone may still see it."""
        for segment in self.segments:
            segment.retired = True
        if self.exported is not None:
            self.exported.retire()


class BatchEncoder(Encoder):
    """Encodes the values of a batch; large arrays stay where they lie."""

    def __init__(self, buffers: SharedBuffers, exports: Exports | None = None) -> None:
        super().__init__()
        self._buffers, self._exports = buffers, exports
        # Tensors of a device with their starts in one exported segment, and its size.
        self._tensors: list[tuple[Any, int]] = []
        self._tensor_bytes = 0
        self._segments: list[Segment] = []
        self._arrays: list[AnyArray] = []
        # Arrays for one common segment, their entries in the message, and its size.
        self._small: list[tuple[AnyArray, list[Any]]] = []
        self._small_bytes = 0

    def share(self, values: dict[str, Any]) -> SharedBatch:
        """Return a batch for other processes; raise NotPlainError if it holds objects that no message can."""
        message, exported = self.dump(values), None
        if self._tensors:
            assert self._exports is not None
            exported = self._exports.export(self._tensors, self._tensor_bytes)
        return SharedBatch(message, self._segments, self._arrays, exported)

    def custom(self, value: Any) -> Any:
        if self._exports is None:
            return super().custom(value)
        if (array := self._exports.array(value)) is not None:
            return self.array(array)
        described = self._exports.describe(value, self._tensor_bytes)
        if described is None:
            return super().custom(value)
        self._tensors.append((value, self._tensor_bytes))
        entry, self._tensor_bytes = described
        return ["tensor", *entry]

    def array(self, array: AnyArray) -> Any:
        numeric(array.dtype)
        entry = ["shared", 0, 0, array.dtype.str, list(array.shape), list(array.strides)]
        location = self._buffers.find(array) if array.nbytes >= MIN_SEGMENT_BYTES else None
        # One more may hold what is left.
        if location is not None and (location[0] in self._segments or len(self._segments) < MAX_SEGMENTS - 1):
            if location[0] not in self._segments:
                self._segments.append(location[0])
                self._arrays.append(array)
            entry[1:3] = self._segments.index(location[0]), location[1]
            return entry
        if self._size + array.nbytes <= MAX_INLINE_BYTES:
            return super().array(array)
        array = np.ascontiguousarray(array)
        entry[2], entry[5] = self._small_bytes, list(array.strides)
        self._small.append((array, entry))
        self._small_bytes += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return entry

    def finish(self) -> None:
        """Copy the arrays that lie in no segment into one."""
        if not self._small_bytes:
            return
        memory = self._buffers.take_segment(self._small_bytes)
        location = self._buffers.find(memory)
        assert location is not None
        for array, entry in self._small:
            start, entry[1] = entry[2], len(self._segments)
            memory[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        self._segments.append(location[0])
        self._arrays.append(memory)


class BatchDecoder(Decoder):
    """Decodes a batch whose segments are mapped here."""

    def __init__(
        self, mapped: Sequence[mmap.mmap], tensor: Callable[[int, str, list[int]], Any] | None = None
    ) -> None:
        super().__init__()
        self._mapped, self._tensor = mapped, tensor

    def make_tensor(self, start: int, dtype: str, shape: list[int]) -> Any:
        if self._tensor is None:
            raise ValueError("a tensor without its memory")
        return self._tensor(start, dtype, shape)

    def make_shared(
        self, number: int, start: int, text: str, shape: list[int], strides: list[int]
    ) -> AnyArray:
        # NumPy checks that it lies inside.
        return np.ndarray(shape, numeric(np.dtype(text)), self._mapped[number], start, strides)
