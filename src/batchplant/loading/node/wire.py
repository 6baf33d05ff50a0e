"""Messages between the server of a node and its readers: values as JSON, and bytes behind it.

A message is one packet of a local socket. A long one lies in a file without a name, whose descriptor the
packet has. Nothing in a message is code, and every size in it is checked.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import socket
import stat
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...data.sparse import SparseRows
from ...errors import DamagedError, exceptions_as
from ...schema.columns import AnyArray, AnyDType, as_bytes
from ...storage import platform

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
