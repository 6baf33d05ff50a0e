"""A folder by HTTP, slowly: every answer comes late, and all answers together share a bandwidth.

usage: _throttled.py FOLDER          (a process of its own: see `serving`)

It says its URL, and for every line with latency, bandwidth and bandwidth of one answer what was asked for
since the last one.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

PIECE = 1 << 14


class Throttled(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.folder = folder
        self.latency, self.bandwidth, self.each = 0.0, 1e12, 1e12
        self.lock = threading.Lock()
        self.free = 0.0
        self.requests = self.bytes = 0

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away as they like."""

    def turn(self, size: int) -> float:
        """When these bytes have gone over the link that all share."""
        with self.lock:
            self.bytes += size
            self.free = max(self.free, time.perf_counter()) + size / self.bandwidth
            return self.free


class Handler(http.server.BaseHTTPRequestHandler):
    server: Throttled
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads it."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        server = self.server
        with server.lock:
            server.requests += 1
        time.sleep(server.latency)
        path = server.folder / unquote(self.path).lstrip("/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
            first = int(asked[1]) if asked else 0
            end = min(about.st_size, int(asked[2]) + 1 if asked and asked[2] else about.st_size)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(end - first))
            self.send_header("ETag", f'"{about.st_size:x}-{about.st_mtime_ns:x}"')
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{end - 1}/{about.st_size}")
            self.end_headers()
            if body:
                self._send(file, first, end)

    def _send(self, file: Any, first: int, end: int) -> None:
        began, sent = time.perf_counter(), 0
        file.seek(first)
        while first + sent < end:
            part = file.read(min(PIECE, end - first - sent))
            sent += len(part)
            wait = max(self.server.turn(len(part)), began + sent / self.server.each) - time.perf_counter()
            # Short waits are longer than they should be; what is early by less evens out.
            if wait > 0.001:
                time.sleep(wait)
            self.wfile.write(part)


class Served:
    """The server, from outside."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        assert process.stdout is not None
        self.url: str = json.loads(process.stdout.readline())

    def begin(self, latency: float, bandwidth: float, each: float) -> dict[str, int]:
        """Answer like this from now on; what was asked for so far."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{latency} {bandwidth} {each}\n")
        self._process.stdin.flush()
        answer: dict[str, int] = json.loads(self._process.stdout.readline())
        return answer


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Served]:
    process = subprocess.Popen(
        [sys.executable, __file__, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Served(process)
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):
                pipe.close()


def main(folder: str) -> None:
    server = Throttled(Path(folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(json.dumps(f"http://127.0.0.1:{server.server_port}"), flush=True)
    for line in sys.stdin:
        server.latency, server.bandwidth, server.each = map(float, line.split())
        with server.lock:
            result = {"requests": server.requests, "bytes": server.bytes}
            server.requests = server.bytes = 0
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
