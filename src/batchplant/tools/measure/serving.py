"""A small HTTP server on this machine, in a process of its own: files of a folder as a bucket gives them."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import pickle
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from ...jobs.engines.processes import Worker

HERE = "127.0.0.1"
ANSWER_BYTES = 1 << 18
# Reads are not for a proxy, which would not find us anyway.
NO_PROXY = ("no_proxy", "NO_PROXY")


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Callable[[str | Path], str]]:
    """Serve a folder for this user alone, as the URL has a secret in it; yield what gives the URL of a file.

    The process takes no time from this one, which reads.
    """
    worker = Worker(pickle.dumps(_serve))
    worker.submit(folder)
    # It starts while nobody needs it.
    url = functools.cache(worker.result)
    before = {name: os.environ.get(name) for name in NO_PROXY}
    try:
        for name, value in before.items():
            os.environ[name] = f"{value},{HERE}" if value else HERE
        yield lambda path: f"{url()}/{Path(path).relative_to(folder).as_posix()}"
    finally:
        worker.end()
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _serve(folder: Path) -> str:
    """Serve from a thread of this process; return the URL."""
    secret = secrets.token_hex(16)

    class Handler(_Handler):
        root, prefix = folder.resolve(), f"/{secret}/"

    server = _Server((HERE, 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://{HERE}:{server.server_port}/{secret}"


class _Server(http.server.ThreadingHTTPServer):
    # Connections that clients keep open would hold up the end.
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Let clients go away as they like."""


class _Handler(http.server.BaseHTTPRequestHandler):
    root: Path
    prefix: str
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self._path()
        if path is None:
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            first, end, status = _range(self.headers.get("Range"), about.st_size)
            self.send_response(status)
            self.send_header("Content-Length", str(end - first))
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("ETag", f'"{about.st_size:x}-{about.st_mtime_ns:x}"')
            self.send_header("Last-Modified", self.date_time_string(int(about.st_mtime)))
            if status == 206:
                self.send_header("Content-Range", f"bytes {first}-{end - 1}/{about.st_size}")
            self.end_headers()
            file.seek(first)
            remaining = end - first if body else 0
            while remaining and (chunk := file.read(min(ANSWER_BYTES, remaining))):
                self.wfile.write(chunk)
                remaining -= len(chunk)

    def _path(self) -> Path | None:
        """Return the requested file, if it lies in the folder."""
        name = unquote(self.path.partition("?")[0])
        if not name.startswith(self.prefix):
            return None
        path = (self.root / name.removeprefix(self.prefix)).resolve()
        return path if path.is_relative_to(self.root) and path.is_file() else None


def _range(text: str | None, size: int) -> tuple[int, int, int]:
    """Return (first, end, status) of what a Range header asks for."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if match is None or not any(match.groups()):
        return 0, size, 200
    if not match[1]:
        first, end = max(0, size - int(match[2])), size
    else:
        first, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    return (first, end, 206) if first < end else (0, 0, 416)
