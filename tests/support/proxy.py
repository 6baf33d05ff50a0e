"""A proxy of our own between a client and a server: late, slow, or with the faults that networks have."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Self
from urllib.parse import parse_qs, unquote, urlsplit

from batchplant.storage.remote.fetch import fetcher
from http_messages import CHUNK_BYTES, Head, address, body, byte_range
from processes import PATIENCE

# How long a reset waits for requests; some stall on purpose.
SETTLE_SECONDS = 1.0


@dataclasses.dataclass
class Request:
    """One request that a Proxy passed on or answered; status 0: no answer was sent."""

    method: str
    path: str
    headers: dict[str, str]
    status: int = 0
    sent: int = 0
    received: int = 0
    done: bool = False

    @property
    def range(self) -> tuple[int, int] | None:
        """The first byte that it asked for, and the end."""
        return byte_range(self.headers.get("range"))

    @property
    def kind(self) -> str:
        """The method; LIST for a GET that lists a bucket."""
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return "LIST" if self.method == "GET" and ("list-type" in query or "prefix" in query) else self.method


@dataclasses.dataclass(frozen=True)
class Fault:
    """Fault that the proxy makes of a request."""

    # The server never sees the request: this status comes in its place.
    status: int = 0
    # Headers of the answer replaced, or left out where None.
    headers: dict[str, str | None] = dataclasses.field(default_factory=dict)
    # "close" ends the connection, "reset" too but as an error, "stall" sends nothing more until released.
    then: str = ""
    # Bytes of the body that are sent before; below zero, no answer is begun.
    after: int = 0
    ignore_range: bool = False


def answers(status: int, *, retry_after: float | None = None) -> Fault:
    return Fault(status, {} if retry_after is None else {"Retry-After": f"{retry_after:g}"})


def truncated(after: int = 0) -> Fault:
    return Fault(then="close", after=after)


def stalled(after: int = 0) -> Fault:
    return Fault(then="stall", after=after)


def reset(after: int = -1) -> Fault:
    return Fault(then="reset", after=after)


def ignored_range() -> Fault:
    return Fault(ignore_range=True)


def changed_etag(etag: str = '"0123456789abcdef0123456789abcdef"') -> Fault:
    return Fault(headers={"ETag": etag})


def wrong_content_range(text: str = "bytes 7-8/9") -> Fault:
    return Fault(headers={"Content-Range": text})


class Proxy:
    """Passes requests on to a server, late, slowly or with faults, and remembers every one of them.

    Headers pass unchanged, Host too: S3 clients sign it. All attributes can be set at any time.
    """

    def __init__(
        self, upstream: str, *, root: str = "", mend: bool = False, delay: float = 0, bandwidth: float = 0
    ) -> None:
        # Where the files lie that the server gives. S3 clients sign the range that they ask for, so that an
        # answer that ignores it is made of the file.
        self.root = root
        # Seconds before an answer; bytes per second of one connection.
        self.delay = delay
        self.bandwidth = bandwidth
        # As S3 answers and rclone does not: 206 where a range comes, 412 where If-Match does not.
        self.mend = mend
        # What poor servers lack.
        self.has_head = self.has_etag = self.has_ranges = self.has_206 = True
        self.requests: list[Request] = []
        self.most_in_flight = 0
        self._in_flight = 0
        self._rules: list[Callable[[Request], Fault | None]] = []
        self._changed = threading.Condition()
        self._released = threading.Event()
        self._closed = threading.Event()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._upstream = address(upstream)
        # Keeps the port while nobody listens, so that no other process gets it.
        self._holder = self._bound(0)
        self.port = int(self._holder.getsockname()[1])
        self.endpoint = f"http://127.0.0.1:{self.port}"
        self._listen()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._released.set()
        self._hang_up()
        self._holder.close()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    # The plan.

    def fail(
        self,
        fault: Fault | Callable[[Request], Fault | None],
        *,
        method: str = "",
        path: str = "",
        skip: int = 0,
        times: int | None = 1,
    ) -> None:
        """Requests of this kind (GET, LIST …) with ``path`` in their path get the fault: all but the first
        ``skip``, at most ``times``. A later rule counts only what no earlier one took.
        """
        seen = 0

        def rule(request: Request) -> Fault | None:
            nonlocal seen
            if (method and request.kind != method) or path not in request.path:
                return None
            planned = fault(request) if callable(fault) else fault
            if planned is None:
                return None
            seen += 1
            return planned if skip < seen and (times is None or seen <= skip + times) else None

        self._rules.append(rule)

    def release(self) -> None:
        """Let stalled requests go on; nothing stalls any more until ``reset``."""
        self._released.set()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        """Connections end, and new ones are refused."""
        self._hang_up()
        try:
            yield
        finally:
            self._listen()

    # What came.

    def reset(self) -> None:
        """No requests yet, no rules. Readers that are closed may have asked for more: those come first."""
        end = time.monotonic() + SETTLE_SECONDS
        while fetcher().pending and time.monotonic() < end:
            time.sleep(0.001)
        with self._changed:
            self.requests, self._rules, self.most_in_flight = [], [], self._in_flight
        self._released.clear()

    @property
    def bytes_sent(self) -> int:
        return sum(request.sent for request in self.requests)

    def count(self, kind: str = "", path: str = "") -> int:
        return sum(kind in ("", request.kind) and path in request.path for request in list(self.requests))

    def wait_for(self, true: Callable[[], bool]) -> None:
        """Until requests came, or bytes of answers were sent, that make it true."""
        with self._changed:
            assert self._changed.wait_for(true, PATIENCE), self.requests

    # Connections.

    def _bound(self, port: int) -> socket.socket:
        bound = socket.socket()
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        bound.bind(("127.0.0.1", port))
        return bound

    def _listen(self) -> None:
        self._listener = self._bound(self.port)
        self._listener.listen(512)
        self._start(self._accept, self._listener)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        with self._changed:
            self._threads = [running for running in self._threads if running.is_alive()]
            thread.start()
            self._threads.append(thread)

    def _hang_up(self) -> None:
        # shutdown, because a forked child may hold the same sockets: close alone would not end them.
        with self._changed:
            for connection in [self._listener, *self._sockets]:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client = listener.accept()[0]
                self._start(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        # Whichever side goes away, both connections end.
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stack.enter_context(self._known(client))
            lines = stack.enter_context(client.makefile("rb", buffering=CHUNK_BYTES))
            server = None
            while not self._closed.is_set() and (head := Head.read(lines)):
                method, path, _ = head.first.split(" ", 2)
                request = Request(method, path, {name.lower(): value for name, value in head.fields})
                with self._counted(request):
                    fault = self._fault(request)
                    if fault.then and fault.after < 0 and not self._break(client, fault):
                        return
                    if self._closed.wait(self.delay):
                        return
                    if fault.status or (method == "HEAD" and not self.has_head):
                        for _ in body(head, lines):
                            pass
                        status = fault.status or 405
                        self._answer(client, request, status, fault.headers)
                        continue
                    if server is None:
                        server = socket.create_connection(self._upstream)
                        stack.enter_context(self._known(server))
                        answers = stack.enter_context(server.makefile("rb", buffering=CHUNK_BYTES))
                    if not self._forward(client, lines, head, request, fault, server, answers):
                        return

    def _fault(self, request: Request) -> Fault:
        with self._changed:
            return next((fault for rule in self._rules if (fault := rule(request))), Fault())

    @contextlib.contextmanager
    def _known(self, connection: socket.socket) -> Iterator[None]:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._changed:
            self._sockets.add(connection)
        try:
            yield
        finally:
            with self._changed:
                self._sockets.discard(connection)
            connection.close()

    @contextlib.contextmanager
    def _counted(self, request: Request) -> Iterator[None]:
        with self._changed:
            self.requests.append(request)
            self._in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self._in_flight)
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._in_flight -= 1
                request.done = True
                self._changed.notify_all()

    # One request.

    def _answer(
        self, client: socket.socket, request: Request, status: int, headers: dict[str, str | None]
    ) -> None:
        text = f"<Error><Code>Fault{status}</Code></Error>".encode()
        head = Head(f"HTTP/1.1 {status} Fault", [("Content-Length", str(len(text)))])
        head.replace(headers)
        request.status = status
        client.sendall(head.bytes() + (b"" if request.method == "HEAD" else text))

    def _forward(
        self,
        client: socket.socket,
        lines: BinaryIO,
        head: Head,
        request: Request,
        fault: Fault,
        server: socket.socket,
        answers: BinaryIO,
    ) -> bool:
        """Return True if the connections can be used for the next request."""
        without_range = fault.ignore_range or not self.has_ranges
        if without_range and not self.root:
            head.replace({"Range": None})
        if (head.get("expect") or "").lower() == "100-continue":
            client.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
            head.replace({"Expect": None})
        server.sendall(head.bytes())
        for part in body(head, lines):
            server.sendall(part)
            request.received += len(part)
        answer = Head.read(answers)
        if answer is None:
            return False
        coming = body(dataclasses.replace(answer), answers, ends=True)
        if without_range and self.root and answer.status == 200 and request.method == "GET":
            for _ in coming:
                pass
            with open(self.root + unquote(urlsplit(request.path).path), "rb") as file:
                coming = iter([file.read()])
                answer.replace({"Content-Range": None, "Content-Length": str(file.tell())})
        if self.mend and answer.status == 200:
            condition, etag = request.headers.get("if-match", "*"), answer.get("etag") or ""
            if request.method == "GET" and condition.strip('"') not in ("*", etag.strip('"')):
                self._answer(client, request, 412, {"Connection": "close"})
                return False
            if answer.get("content-range"):
                answer.first = "HTTP/1.1 206 Partial Content"
        if not self.has_206 and answer.status == 206:
            answer.first = "HTTP/1.1 200 OK"
        if not self.has_etag:
            answer.replace({"ETag": None})
        if not self.has_ranges:
            answer.replace({"Accept-Ranges": None})
        answer.replace(fault.headers)
        request.status = answer.status
        bodiless = request.method == "HEAD" or answer.status in (204, 304)
        client.sendall(answer.bytes())
        begun = time.monotonic()
        for part in () if bodiless else coming:
            for piece in _cut(part, fault.after - request.sent) if fault.then else (part,):
                if fault.then and request.sent == fault.after and not self._break(client, fault):
                    return False
                # Counted first: who has received it may look at once.
                self._sent(request, len(piece))
                client.sendall(piece)
                if self.bandwidth:
                    self._closed.wait(max(0.0, begun + request.sent / self.bandwidth - time.monotonic()))
        closes = "close" in ((answer.get("connection") or "") + (head.get("connection") or "")).lower()
        return bodiless or (answer.has_end and not closes)

    def _sent(self, request: Request, size: int) -> None:
        with self._changed:
            request.sent += size
            self._changed.notify_all()

    def _break(self, client: socket.socket, fault: Fault) -> bool:
        if fault.then == "stall":
            self._released.wait()
            return not self._closed.is_set()
        if fault.then == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            client.shutdown(socket.SHUT_RDWR)
        return False


def _cut(part: Any, place: int) -> Iterator[Any]:
    """The part, cut where a fault comes; a fault at its beginning counts as well."""
    if 0 < place < len(part):
        yield part[:place]
        yield part[place:]
    else:
        yield part
