"""Ranges over plain HTTP, for servers whose answers obstore refuses.

Some servers that speak S3 answer a range request with the status 200 and the right bytes. For those the
client uses a signed URL and checks the answer itself.
"""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
import time
import weakref
from urllib.parse import urlsplit

from ...errors import AccessError, BatchplantError, NotFoundError
from . import buffers, client
from .client import BUSY, GONE, REFUSED, BeyondError, Got, RefusedError, TransientError, checked_size
from .fetch import fetcher

# Connections that are kept open for the next request.
MAX_IDLE_CONNECTIONS = 64
NO_RANGES = "the server gives no ranges; copy it to a disk"
CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,20})-([0-9]{1,20})/([0-9]{1,20})")
RETRY_AFTER = re.compile(r"[0-9]{1,6}")
# Characters of a server's status text in a message.
MAX_REASON_LENGTH = 100


class RangeRequests:
    """GETs of ranges on one host, over connections that are reused."""

    def __init__(self, root: str) -> None:
        self._root = root
        self._idle: list[http.client.HTTPConnection] = []
        # Also at exit: unclosed sockets would cause warnings.
        weakref.finalize(self, _close, self._idle)
        self._lock = threading.Lock()

    def get(self, url: str, path: str, start: int, end: int) -> Got:
        """Return the bytes [start, end) of a URL; ``path``: its name in error messages."""
        parts = urlsplit(url)
        with self._lock:
            connection = self._idle.pop() if self._idle else None
        fresh = connection is None
        connection = connection or self._connect(parts.scheme, parts.netloc)
        answered, keep = None, False
        try:
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
            connection.request("GET", target, headers={"Range": f"bytes={start}-{end - 1}"})
            with connection.getresponse() as answer:
                answered = _read(answer, path, start, end)
                keep = answer.isclosed() and not answer.will_close and len(self._idle) < MAX_IDLE_CONNECTIONS
        # Listed first: some of our errors are OSErrors, too.
        except BatchplantError:
            raise
        except (OSError, http.client.HTTPException) as error:
            if fresh or isinstance(error, TimeoutError):
                raise TransientError(_why(error), path=path, offset=start) from None
        finally:
            if not keep:
                connection.close()
        if answered is None:
            # The server may have closed the idle connection: retry on a new one.
            return self.get(url, path, start, end)
        if keep:
            with self._lock:
                self._idle.append(connection)
        return answered

    def _connect(self, scheme: str, host: str) -> http.client.HTTPConnection:
        host = host.rpartition("@")[2]
        timeout = fetcher().tuning.max_silent_seconds
        if scheme == "https":
            return http.client.HTTPSConnection(host, timeout=timeout, context=ssl.create_default_context())
        return http.client.HTTPConnection(host, timeout=timeout)


def _close(connections: list[http.client.HTTPConnection]) -> None:
    while connections:
        connections.pop().close()


def _read(answer: http.client.HTTPResponse, path: str, start: int, end: int) -> Got:
    code, reason = answer.status, _reason(answer)
    if code in GONE:
        raise NotFoundError("no such file", path=path)
    if code in REFUSED:
        raise RefusedError(f"the server answered {code} ({reason})", path=path, offset=start)
    if code in BUSY:
        error = TransientError(f"the server answered {code} {reason}", path=path, offset=start)
        wait = RETRY_AFTER.fullmatch(answer.headers.get("Retry-After", ""))
        error.after, error.answered = float(wait[0]) if wait else 0.0, True
        raise error
    if code == 416:
        raise BeyondError("the range lies behind the end", path=path, offset=start)
    if code not in (200, 206):
        raise AccessError(f"the server answered {code} {reason}", path=path, offset=start)
    content_range = answer.headers.get("Content-Range", "")
    match = CONTENT_RANGE.fullmatch(content_range)
    if match is None:
        # A header that is there but states no range is invalid, such as "bytes 0-9/*".
        why = f"its Content-Range is {content_range[:40]!r}" if content_range else NO_RANGES
        raise AccessError(why, path=path, offset=start)
    first, last, size = (
        int(match[1]),
        int(match[2]),
        checked_size(match[3], path),
    )
    if first != start or last != min(end, size) - 1:
        raise TransientError(
            f"bytes {first} to {last} came, not {start} to {end - 1}", path=path, offset=start
        )
    # None if the end of the connection or an empty chunk ends the body.
    if answer.length not in (None, last + 1 - first):
        message = f"{answer.length} bytes are announced, and not {last + 1 - first}"
        raise TransientError(message, path=path, offset=start)
    data = buffers.take(last + 1 - first)
    view, done = data.data, 0
    give_up = time.monotonic() + client.MAX_REQUEST_SECONDS
    while done < len(data):
        if time.monotonic() > give_up:
            raise TransientError(f"only {done} of {len(data)} bytes came", path=path, offset=start)
        count = answer.readinto(view[done:])
        if not count:
            message = f"{done} of {len(data)} bytes came"
            raise TransientError(message, path=path, offset=start)
        done += count
    # Do not read what follows: it may have no end. The connection is reused only if the announced length
    # was reached.
    tag = answer.headers.get("ETag") or answer.headers.get("Last-Modified") or ""
    return Got(data, size, tag.removeprefix("W/").strip('"'))


def _reason(answer: http.client.HTTPResponse) -> str:
    """Return the server's status text, fit for one line of a message."""
    reason = answer.reason[:MAX_REASON_LENGTH].strip()
    return reason if reason.isprintable() else repr(reason)


def _why(error: Exception) -> str:
    if isinstance(error, TimeoutError | socket.timeout):
        return "the server did not answer in time"
    if isinstance(error, ConnectionRefusedError):
        return "the server cannot be reached"
    return "the connection broke before all bytes came"
