"""Exchange between a server of a node and its readers: messages on a socket, and memory of batches.

The socket lies in a folder that only its user can use. A message is one packet of it: values as JSON, and
bytes behind it. A long message lies in a file without a name, whose descriptor the packet has. Nothing in a
message is code, and every size in it is checked. A batch lies in shared memory, and its message says where in
it values lie.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ... import _native
from ...data.buffers import BufferPool
from ...data.sparse import SparseRows
from ...errors import AccessError, BusyError, DamagedError, OptionError, WorkerError, exceptions_as
from ...schema.columns import U8, AnyArray, AnyDType, as_bytes
from ...storage import platform
from ..images import Exported, Exports

# Of a message in a packet, of one in a file, and descriptors in a packet.
MAX_PACKET_BYTES, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS = 48 << 10, 256 << 20, 32
INLINE, IN_FILE = b"i", b"f"
NUMERIC_KINDS = "biufcSUVMm"
ALIGNMENT = 64
Buffer = bytes | memoryview
# Exceptions that a message of another process may lead to while it becomes values.
WRONG = (ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError, struct.error)


class NotPlainError(ValueError):
    """Raised for a value that no message can hold, such as a function."""


class Encoder:
    """Turns values into what JSON can hold, and the bytes behind it."""

    def __init__(self) -> None:
        self._parts: list[Buffer] = []
        self._size = 0

    def dump(self, value: object) -> bytes:
        """Return a value as bytes, which ``Decoder.load`` reads."""
        text, parts = self.parts(value)
        return b"".join([struct.pack("<I", len(text)), text, *parts])

    def parts(self, value: object) -> tuple[bytes, list[Buffer]]:
        """Return a value as JSON, and the bytes behind it; those of arrays are not copied."""
        tree = self.tree(value)
        self.finish()
        return json.dumps(tree, separators=(",", ":")).encode(), self._parts

    def finish(self) -> None:
        """Complete the entries of values, before they become text."""

    def tree(self, value: Any) -> Any:
        """Return a value as JSON: a list is one of (kind, …)."""
        kind = type(value)
        if value is None or kind in (bool, int, float, str):
            return value
        if kind is SparseRows:
            return ["sparse", [self.tree(item) for item in value]]
        if kind in (list, tuple):
            return [kind.__name__, [self.tree(item) for item in value]]
        if kind is dict:
            return ["dict", [[self.tree(key), self.tree(item)] for key, item in value.items()]]
        if kind in (set, frozenset):
            return [kind.__name__, [self.tree(item) for item in sorted(value, key=repr)]]
        if kind is bytes:
            return ["bytes", *self._append(value)]
        if isinstance(value, np.dtype):
            return ["dtype", numeric(value).str]
        if isinstance(value, np.generic):
            return ["scalar", self.array(np.asarray(value))]
        if kind is np.ndarray:
            return self.array(value)
        return self.custom(value)

    def array(self, array: AnyArray) -> Any:
        dtype = numeric(array.dtype)
        return ["array", *self._append(as_bytes(array).data), dtype.str, list(array.shape)]

    def custom(self, value: Any) -> Any:
        """Return any other value as JSON; raise NotPlainError if it is none."""
        raise NotPlainError(f"{type(value).__name__} is not plain data")

    def _append(self, data: Buffer) -> tuple[int, int]:
        start = self._size
        self._parts.append(data)
        self._size += len(data)
        return start, len(data)


class Decoder:
    """Turns messages into values; ``make_KIND`` makes those of a kind that JSON has no word for."""

    def __init__(self) -> None:
        self._data = memoryview(b"")

    def load(self, data: bytes) -> Any:
        """Return the value of a message; raise DamagedError if it is none."""
        with exceptions_as(DamagedError, "not a message of batchplant", *WRONG):
            (size,) = struct.unpack_from("<I", data)
            if 4 + size > len(data):
                raise ValueError("it is cut short")
            self._data = memoryview(data)[4 + size :]
            return self.value(json.loads(data[4 : 4 + size]))

    def value(self, tree: Any) -> Any:
        if not isinstance(tree, list):
            return tree
        return getattr(self, f"make_{tree[0]}")(*tree[1:])

    def make_list(self, items: list[Any]) -> list[Any]:
        return [self.value(item) for item in items]

    def make_tuple(self, items: list[Any]) -> tuple[Any, ...]:
        return tuple(self.make_list(items))

    def make_sparse(self, items: list[Any]) -> SparseRows:
        return SparseRows(self.make_list(items))

    def make_set(self, items: list[Any]) -> set[Any]:
        return set(self.make_list(items))

    def make_frozenset(self, items: list[Any]) -> frozenset[Any]:
        return frozenset(self.make_list(items))

    def make_dict(self, items: list[Any]) -> dict[Any, Any]:
        return {self.value(key): self.value(item) for key, item in items}

    def make_bytes(self, start: int, size: int) -> bytes:
        return bytes(self._part(start, size))

    def make_dtype(self, text: str) -> AnyDType:
        return numeric(np.dtype(text))

    def make_scalar(self, array: Any) -> Any:
        return self.value(array)[()]

    def _part(self, start: int, size: int) -> memoryview:
        if not 0 <= start <= start + size <= len(self._data):
            raise ValueError("a part lies outside")
        return self._data[start : start + size]

    def make_array(self, start: int, size: int, text: str, shape: list[int]) -> AnyArray:
        dtype = checked_dtype(text, shape, size)
        # A copy, which belongs to the reader and can be written to.
        return np.frombuffer(bytearray(self._part(start, size)), dtype).reshape(shape)


def checked_dtype(text: str, shape: list[int], size: int) -> AnyDType:
    """Return the dtype of an array; raise ValueError unless an array of that shape has that size."""
    dtype = numeric(np.dtype(text))
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != size:
        raise ValueError("an array has another size")
    return dtype


def numeric(dtype: AnyDType) -> AnyDType:
    """Return a dtype whose values are plain bytes; raise NotPlainError for another."""
    if dtype.kind not in NUMERIC_KINDS or dtype.hasobject or dtype.fields is not None:
        raise NotPlainError(f"arrays of {dtype} are not plain data")
    return dtype


def send(connection: socket.socket, message: bytes, descriptors: Sequence[int] = (), flags: int = 0) -> None:
    """Send a message with descriptors of files."""
    if len(message) <= MAX_PACKET_BYTES:
        socket.send_fds(connection, [INLINE, message], list(descriptors), flags)
        return
    fd = platform.anonymous_file("batchplant-message")
    try:
        with open(fd, "wb", closefd=False) as file:
            file.write(message)
        socket.send_fds(connection, [IN_FILE], [fd, *descriptors], flags)
    finally:
        os.close(fd)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptors; nothing at the end. Raise DamagedError if it is none."""
    data, descriptors, flags, _ = socket.recv_fds(
        connection, MAX_PACKET_BYTES + 1, MAX_DESCRIPTORS + 1, socket.MSG_CMSG_CLOEXEC
    )
    try:
        # Descriptors are lost where the process has as many as it may have.
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise DamagedError("a message is too long, or has too many descriptors")
        if data[:1] == IN_FILE and descriptors:
            fd = descriptors.pop(0)
            try:
                return _read(fd), descriptors
            finally:
                os.close(fd)
        return data[1:], descriptors
    except BaseException:
        close(descriptors)
        raise


def _read(fd: int) -> bytes:
    # Read and not mapped: its owner can make it shorter at any time.
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_MESSAGE_BYTES:
        raise DamagedError("a message is too long")
    with open(fd, "rb", closefd=False) as file:
        file.seek(0)
        return file.read(status.st_size)


def close(descriptors: Sequence[int]) -> None:
    """Close descriptors that nobody needs."""
    for fd in descriptors:
        with contextlib.suppress(OSError):
            os.close(fd)


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


FOLDER, SOCKET, LOCK = "batchplant", "node", "node.lock"
# How long to wait for a server that another process starts, and for one of ours.
START_SECONDS, POLL_SECONDS = 60.0, 0.02
MAX_WAITING_READERS = 128


def check_platform() -> None:
    """Raise OptionError where processes cannot share batches."""
    if not platform.LINUX:
        raise OptionError('share="node" needs memory files and sockets of Linux, which this system lacks')


def dial() -> socket.socket | None:
    """Connect to the server of this user; None if there is none."""
    folder = platform.runtime_folder(FOLDER)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with _address(folder) as address:
            connection.connect(address)
        if platform.peer_of(connection)[1] != os.getuid():
            raise AccessError("the server is of another user", path=str(folder / SOCKET))
    except (FileNotFoundError, ConnectionRefusedError):
        connection.close()
        return None
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def _address(folder: Path) -> Iterator[str]:
    """Give the address of the socket, however long the path of its folder is."""
    fd = os.open(folder, os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{SOCKET}"
    finally:
        os.close(fd)


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    """Listen as the server of this user; raise BusyError if there is one. At the end, nothing is left."""
    folder = platform.runtime_folder(FOLDER)
    lock = _lock(folder / LOCK)
    try:
        # Of a server that was killed.
        (folder / SOCKET).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            with _address(folder) as address:
                listener.bind(address)
            listener.listen(MAX_WAITING_READERS)
            try:
                yield listener
            finally:
                (folder / SOCKET).unlink(missing_ok=True)
    finally:
        (folder / LOCK).unlink(missing_ok=True)
        os.close(lock)
        with contextlib.suppress(OSError):
            folder.rmdir()


def _lock(path: Path) -> int:
    """Lock a file that is still at its path; raise BusyError if another process has it locked."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not platform.try_lock(fd):
            os.close(fd)
            raise BusyError("a server runs already", path=str(path.with_name(SOCKET)))
        # The server before may have removed it meanwhile.
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)


def start_server() -> None:
    """Start a server that ends when no reader was there for a while; another process may be first."""
    command = [sys.executable, "-m", "batchplant", "serve-node", "--detach"]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # Ctrl-C is for the training run.
        start_new_session=True,
        timeout=START_SECONDS,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        check=False,
    )
    if done.returncode:
        raise WorkerError(f"the server of the node did not start: {done.stderr.decode(errors='replace')}")


def wait_for_server() -> bool:
    """Wait a moment for the server that has the lock; return True if it accepts readers."""
    connection = dial()
    if connection is None:
        # It begins, or it was killed and the system has yet to release its lock.
        time.sleep(POLL_SECONDS)
        return False
    connection.close()
    return True
