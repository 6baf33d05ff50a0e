"""Servers that lie about sizes and bytes: only our errors, and no more memory than was asked for."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("obstore")

import batchplant as bp
from http_messages import byte_range
from processes import PATIENCE

SAMPLES = 50
# Two sockets' buffers, and what is written at once.
MAX_SENT_BYTES = 64 << 20
ENTRY = "<Contents><Key>a{}</Key><Size>1</Size><LastModified>2024-01-01T00:00:00Z</LastModified></Contents>"
# Always the same page, and always one more.
ENDLESS_LISTING = (
    "<ListBucketResult><Name>b</Name><IsTruncated>true</IsTruncated>"
    "<NextContinuationToken>more</NextContinuationToken>"
    + "".join(ENTRY.format(number) for number in range(1000))
    + "</ListBucketResult>"
).encode()


class LyingServer(http.server.ThreadingHTTPServer):
    """Serves one file at every path. Tests change the status and the headers of answers to ranges."""

    daemon_threads = True

    def __init__(self, data: bytes) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.data = data
        self.status = 200
        self.reason = "OK"
        self.headers: dict[str, str | None] = {}
        self.total = str(len(data))
        self.endless = False
        self.busy_answers = 0
        self.sent = self.listings = 0
        # Set when a client has ended the connection of an endless answer.
        self.hung_up = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/a.beton"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away as they like."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: LyingServer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads it."""

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        server = self.server
        if "list-type=2" in self.path:
            server.listings += 1
            return self.answer(200, {"Content-Length": str(len(ENDLESS_LISTING))}, ENDLESS_LISTING)
        if not self.path.endswith(".beton"):
            return self.answer(404, {"Content-Length": "0"}, b"")
        wanted = byte_range(self.headers.get("Range"))
        first, end = wanted or (0, len(server.data))
        part = server.data[first:end]
        headers = {"Content-Length": str(len(part)), "ETag": '"a"'}
        if wanted is None:
            return self.answer(200, headers, part)
        if server.busy_answers:
            server.busy_answers -= 1
            return self.answer(503, {"Content-Length": "0", "Retry-After": "\xb2"}, b"")
        headers["Content-Range"] = f"bytes {first}-{first + len(part) - 1}/{server.total}"
        self.answer(server.status, headers | server.headers, part)
        if server.endless and self.command == "GET":
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 20))
                    server.sent += 1 << 20
            server.hung_up.set()

    def answer(self, status: int, headers: dict[str, str | None], body: bytes) -> None:
        self.send_response(status, self.server.reason if "Content-Range" in headers else "")
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


@pytest.fixture
def server(tmp_path, _no_settings) -> Iterator[LyingServer]:
    with bp.create(tmp_path / "a.beton", {"x": bp.Int()}) as out:
        for number in range(SAMPLES):
            out.append({"x": number})
    with LyingServer((tmp_path / "a.beton").read_bytes()) as lying_server:
        thread = threading.Thread(
            target=lying_server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        thread.start()
        yield lying_server
        lying_server.shutdown()
        thread.join(PATIENCE)


@pytest.mark.parametrize("status", [200, 206])
@pytest.mark.parametrize("total", ["1" * 5000, str(2**63), str(2**64 - 1), str(2**61), "*", "\xb2", "-1"])
def test_impossible_sizes_are_our_errors(server, status, total):
    server.status, server.total = status, total
    with pytest.raises(bp.AccessError, match=r"impossible size|Content-Range|CONTENT_RANGE"):
        bp.open(server.url)


def test_an_endless_body_is_read_as_far_as_was_asked_for(server):
    server.headers, server.endless = {"Content-Length": None, "Connection": "close"}, True
    assert bp.open(server.url)[7] == {"x": 7}
    assert server.hung_up.wait(PATIENCE)
    assert server.sent < MAX_SENT_BYTES


@pytest.mark.parametrize("status", [200, 206])
def test_more_bytes_are_announced_than_were_asked_for(server, status):
    server.status, server.headers, server.endless = status, {"Content-Length": str(10**12)}, True
    with pytest.raises(bp.AccessError, match=r"1000000000000 bytes are announced|more than"):
        bp.open(server.url)
    assert server.hung_up.wait(PATIENCE)
    assert server.sent < MAX_SENT_BYTES


def test_a_retry_after_of_odd_digits_is_passed_over(server):
    data = bp.open(server.url)
    server.busy_answers = 1
    assert bp.open(server.url)[7] == data[7] == {"x": 7}
    assert not server.busy_answers


def test_the_reason_of_a_status_is_one_line_of_text(server):
    bp.open(server.url).close()
    server.status, server.reason = 409, "\x1b[31m\x9b" + "x" * 10_000
    with pytest.raises(bp.AccessError, match="409") as caught:
        bp.open(server.url)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 300


def test_a_listing_without_an_end_is_given_up(server):
    endpoint = server.url.removesuffix("/a.beton")
    # What lies beside the file is listed; a file whose folder cannot be listed can still be read.
    assert bp.open("s3://bucket/z.beton", endpoint=endpoint, anonymous=True)[7] == {"x": 7}
    assert server.listings < 10
