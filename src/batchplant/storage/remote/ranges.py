"""Ranges over HTTP/1.1, received straight into the memory where blocks stay.

A body comes by few system calls, without the GIL and without a copy, which takes a third of the CPU time
that obstore takes. It serves endpoints without TLS; and servers that answer a range with the status 200 and
the right bytes, which obstore refuses. What is more than one range of one object is left to obstore.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import socket
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import NoReturn
from urllib.parse import urlsplit

import numpy as np

from ...errors import AccessError, BatchplantError, located
from ...schema.columns import U8
from ..platform import use_huge_pages
from . import client
from .client import REFUSED, Got, TransientError, checked_size, failure_of
from .fetch import fetcher

# Connections that are kept open for the next request.
MAX_IDLE_CONNECTIONS = 64
MAX_HEAD_BYTES = 64 << 10
# Interim answers (1xx) before the answer, and bytes of a line that begins a chunk of a body.
MAX_INTERIM_ANSWERS, MAX_CHUNK_LINE_BYTES = 8, 256
# Bytes to receive in one system call, when more are to come.
RECEIVE_BYTES = 8 << 20
HEAD_RECEIVE_BYTES = 16 << 10
CONNECT_SECONDS = 10.0
NO_RANGES = "the server gives no ranges; copy it to a disk"
BROKEN = "the connection broke before all bytes came"
STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([0-9]{3})(?: ([^\r\n]*))?")
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20})/([0-9]{1,20})")
CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,15})[ \t]*(?:;.*)?")
RETRY_AFTER = re.compile(r"[0-9]{1,6}")
# Characters of a server's status text in a message.
MAX_REASON_LENGTH = 100
REDIRECTS = (301, 302, 303, 307, 308)
PROXY_VARIABLES = ("http_proxy", "all_proxy")


class RedirectedError(AccessError):
    """The server names another place, to which these requests do not go."""


def is_proxied() -> bool:
    """Return whether the environment sends plain HTTP through a proxy, which only obstore talks to."""
    return any(os.environ.get(name) or os.environ.get(name.upper()) for name in PROXY_VARIABLES)


class RangeRequests:
    """GETs of ranges on one host, over connections that are reused. Thread-safe."""

    def __init__(self) -> None:
        self._idle: list[Connection] = []
        # Also at exit: unclosed sockets would cause warnings.
        weakref.finalize(self, _close, self._idle)
        self._lock = threading.Lock()

    def get(self, url: str, path: str, start: int, end: int) -> Got:
        """Return the bytes [start, end) of a URL; ``path``: its name in error messages."""
        scheme, netloc, target, query, _ = urlsplit(url)
        host = netloc.rpartition("@")[2]
        request = (
            f"GET {target or '/'}{'?' if query else ''}{query} HTTP/1.1\r\nHost: {host}\r\n"
            f"Range: bytes={start}-{end - 1}\r\nAccept-Encoding: identity\r\n\r\n"
        )
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        fresh = connection is None
        keep = False
        try:
            connection = connection or Connection(scheme, host)
            connection.send(request.encode("ascii"))
            answer = _Answer(connection, path, start)
            got = answer.range(start, end)
            keep = connection.reusable and len(self._idle) < MAX_IDLE_CONNECTIONS
        # Listed first: some of our errors are OSErrors, too.
        except BatchplantError:
            raise
        except (OSError, ValueError) as error:
            if fresh or isinstance(error, TimeoutError):
                raise TransientError(_why(error), path=path, offset=start) from None
            # The server may have closed the idle connection.
            return self.get(url, path, start, end)
        finally:
            if connection is not None and not keep:
                connection.close()
        with self._lock:
            self._idle.append(connection)
        return got


class Connection:
    """A connection whose reads wait for all bytes, in one system call where the system can."""

    def __init__(self, scheme: str, host: str) -> None:
        parts = urlsplit(f"//{host}")
        secure = scheme == "https"
        port = parts.port or (443 if secure else 80)
        seconds = fetcher().tuning.max_silent_seconds
        self._socket = socket.create_connection((parts.hostname or "", port), timeout=CONNECT_SECONDS)
        self._flags = 0
        # Whether another request may follow: the body is at its end, and the server keeps the connection.
        self.reusable = False
        self._unread = bytearray()
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._socket.settimeout(seconds)
            if secure:
                import ssl

                self._socket = ssl.create_default_context().wrap_socket(
                    self._socket, server_hostname=parts.hostname
                )
            else:
                self._wait_in_kernel(seconds)
        except BaseException:
            self._socket.close()
            raise

    def _wait_in_kernel(self, seconds: float) -> None:
        """Let the system wait for all bytes of a read, and end it after silence."""
        timeout = struct.pack("@ll", int(seconds), int(seconds % 1 * 1e6))
        with contextlib.suppress(OSError):
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                self._socket.setsockopt(socket.SOL_SOCKET, option, timeout)
            self._socket.settimeout(None)
            self._flags = socket.MSG_WAITALL

    def send(self, data: bytes) -> None:
        self.reusable = False
        self._socket.sendall(data)

    def read_until(self, end: bytes, max_bytes: int) -> bytes:
        """Return the bytes before ``end``, which is dropped."""
        while (position := self._unread.find(end)) < 0:
            if len(self._unread) > max_bytes:
                raise ValueError("no end of a header")
            data = self._receive(HEAD_RECEIVE_BYTES)
            if not data:
                raise ConnectionResetError(BROKEN)
            self._unread += data
        head = bytes(self._unread[:position])
        del self._unread[: position + len(end)]
        return head

    def _receive(self, size: int) -> bytes:
        try:
            return self._socket.recv(size)
        except BlockingIOError:
            raise TimeoutError from None

    def read_into(self, view: memoryview) -> int:
        """Fill memory with what comes next; return how many bytes came, less than all if no more will."""
        done = min(len(view), len(self._unread))
        view[:done] = self._unread[:done]
        del self._unread[:done]
        give_up = time.monotonic() + client.MAX_REQUEST_SECONDS
        while done < len(view):
            part = view[done : done + RECEIVE_BYTES]
            try:
                count = self._socket.recv_into(part, len(part), self._flags)
            except BlockingIOError:
                raise TimeoutError from None
            done += count
            if not count or time.monotonic() > give_up:
                break
        return done

    def close(self) -> None:
        self._socket.close()


def _close(connections: list[Connection]) -> None:
    while connections:
        connections.pop().close()


class _Answer:
    """The head of an answer, and its body as one range."""

    def __init__(self, connection: Connection, path: str, offset: int) -> None:
        self._connection, self._path, self._offset = connection, path, offset
        lines, status = self._read_head()
        for _ in range(MAX_INTERIM_ANSWERS):
            if not status[2].startswith(b"1"):
                break
            lines, status = self._read_head()
        self.code = int(status[2])
        self.reason = (status[3] or b"").decode("latin-1")[:MAX_REASON_LENGTH].strip()
        self.headers: dict[str, str] = {}
        for line in lines[1:]:
            name, _, value = line.decode("latin-1").partition(":")
            name, value = name.lower(), value.strip()
            if self.headers.setdefault(name, value) != value and name in ("content-length", "content-range"):
                raise ValueError("an answer contradicts itself")
        self._chunked = self.headers.get("transfer-encoding", "").lower() == "chunked"
        self._keeps = status[1] == b"1" and self.headers.get("connection", "").lower() != "close"

    def _read_head(self) -> tuple[list[bytes], re.Match[bytes]]:
        lines = self._connection.read_until(b"\r\n\r\n", MAX_HEAD_BYTES).split(b"\r\n")
        status = STATUS_LINE.fullmatch(lines[0])
        if status is None:
            raise ValueError("no answer of HTTP/1.1")
        return lines, status

    def range(self, start: int, end: int) -> Got:
        """Return the bytes [start, end), checked to be those of the range."""
        self._check_status()
        content_range = self.headers.get("content-range", "")
        match = CONTENT_RANGE.fullmatch(content_range)
        if match is None:
            # A header that is there but states no range is invalid, such as "bytes 0-9/*".
            self._refuse(f"its Content-Range is {content_range[:40]!r}" if content_range else NO_RANGES)
        first, last, size = int(match[1]), int(match[2]), checked_size(match[3], self._path)
        if first != start or last != min(end, size) - 1:
            self._try_again(f"bytes {first} to {last} came, not {start} to {end - 1}")
        length = self.headers.get("content-length")
        # Without a length, the end of the connection or an empty chunk ends the body.
        if not self._chunked and length is not None and length != str(last + 1 - first):
            self._try_again(f"{length[:20]} bytes are announced, and not {last + 1 - first}")
        with located(path=self._path, offset=start):
            data = take(last + 1 - first)
        done = self._read_chunks(data) if self._chunked else self._connection.read_into(data.data)
        if done < len(data):
            self._try_again(f"{done} of {len(data)} bytes came")
        # What follows is not read, as it may have no end; then the connection is not used again.
        self._connection.reusable = self._keeps and not self._chunked and length is not None
        tag = self.headers.get("etag") or self.headers.get("last-modified") or ""
        return Got(data, size, tag.removeprefix("W/").strip('"'))

    def _read_chunks(self, data: U8) -> int:
        done = 0
        while done < len(data):
            line = CHUNK_LINE.fullmatch(self._connection.read_until(b"\r\n", MAX_CHUNK_LINE_BYTES))
            if line is None:
                raise ValueError("no size of a chunk")
            size = min(int(line[1], 16), len(data) - done)
            done += self._connection.read_into(data.data[done : done + size])
            if not size or (done < len(data) and self._connection.read_until(b"\r\n", 2)):
                break
        return done

    def _check_status(self) -> None:
        code = self.code
        reason = self.reason if self.reason.isprintable() else repr(self.reason)
        message = f"the server answered {code} {reason}"
        if code in REDIRECTS:
            raise RedirectedError(message, path=self._path, offset=self._offset)
        if code not in (200, 206):
            wait = RETRY_AFTER.fullmatch(self.headers.get("retry-after", ""))
            message = f"the server answered {code} ({reason})" if code in REFUSED else message
            raise failure_of(code, message, self._path, self._offset, after=float(wait[0]) if wait else 0.0)

    def _refuse(self, message: str) -> NoReturn:
        raise AccessError(message, path=self._path, offset=self._offset)

    def _try_again(self, message: str) -> NoReturn:
        raise TransientError(message, path=self._path, offset=self._offset)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the server did not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "the server cannot be reached"
    return BROKEN


# Smaller arrays are allocated normally.
MIN_REUSED_BYTES = 1 << 20
# Number of free buffers to keep, and the largest that is kept.
MAX_FREE_BUFFERS, MAX_FREE_BYTES = 4, 16 << 20
# Bytes taken out of an answer at a time. Each time takes the GIL.
READ_BYTES = 1 << 20

_FREE: deque[mmap.mmap] = deque()


def take(size: int) -> U8:
    """Return an uninitialised array; its memory is reused when the array and all its views are gone."""
    if size < MIN_REUSED_BYTES:
        return np.empty(size, dtype=np.uint8)
    try:
        memory = _reuse(size) or _allocate(size)
    except (OSError, OverflowError, ValueError):
        raise AccessError(f"{size:,} bytes do not fit into memory") from None
    lent: U8 = np.frombuffer(memory, dtype=np.uint8, count=size)
    # Views keep the array alive: this runs when the last of them is gone, in any thread, and takes no lock.
    weakref.finalize(lent, _give_back, memory).atexit = False
    return lent


def fill(size: int, chunks: Iterable[bytes | bytearray | memoryview], path: str, offset: int) -> U8:
    """Return the bytes of an answer that comes in chunks; it must have ``size`` bytes."""
    with located(path=path, offset=offset):
        data, done = take(size), 0
    for chunk in chunks:
        part = np.frombuffer(chunk, dtype=np.uint8)
        if done + len(part) > size:
            raise TransientError(f"more than {size} bytes came", path=path, offset=offset)
        data[done : done + len(part)] = part
        done += len(part)
    if done < size:
        raise TransientError(f"{done} of {size} bytes came", path=path, offset=offset)
    return data


def _reuse(size: int) -> mmap.mmap | None:
    for _ in range(len(_FREE)):
        try:
            memory = _FREE.popleft()
        except IndexError:
            break
        if size <= len(memory) <= size + size // 4:
            return memory
        _FREE.append(memory)
    return None


def _allocate(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    use_huge_pages(memory)
    return memory


def _give_back(memory: mmap.mmap) -> None:
    if len(memory) <= MAX_FREE_BYTES and len(_FREE) < MAX_FREE_BUFFERS:
        _FREE.append(memory)
