"""A small HTTP server on this machine that counts what is asked of it: how much a way of reading fetches."""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

HERE = "127.0.0.1"
PIECE = 1 << 18
# Who reads what is not for a proxy to know, which would not find us anyway.
NO_PROXY = ("no_proxy", "NO_PROXY")


class Served:
    """A folder behind a URL, and what was asked for since the last ``begin``."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self._lock = threading.Lock()
        self.requests = self.bytes = 0

    def begin(self) -> None:
        with self._lock:
            self.requests = self.bytes = 0

    def count(self, size: int) -> None:
        with self._lock:
            self.requests += 1
            self.bytes += size

    def at(self, path: str | Path) -> str:
        """The URL of a file in the folder."""
        return f"{self.url}/{Path(path).relative_to(self.folder).as_posix()}"


@contextlib.contextmanager
def serving(folder: Path) -> Iterator[Served]:
    """The files of a folder by HTTP, for this user alone: the URL has a secret in it."""
    secret = secrets.token_hex(16)
    served = Served(folder, "")

    class Handler(_Handler):
        root, prefix, counts = folder.resolve(), f"/{secret}/", served

    with _Server((HERE, 0), Handler) as server, _no_proxy():
        served.url = f"http://{HERE}:{server.server_port}/{secret}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def serving_apart(folder: Path) -> Iterator[Callable[[str], str]]:
    """The same from a process of its own, which takes nothing from who reads; gives the URL of a file."""
    command = [sys.executable, "-P", "-c", f"from {__name__} import main; main()", str(folder)]
    path = os.pathsep.join(filter(None, sys.path))
    with (
        _no_proxy(),
        # Where its input ends, so does it, whatever became of us.
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        ) as process,
    ):  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        out = process.stdout
        # Asked for when it is needed: it starts meanwhile.
        url = functools.cache(lambda: out.readline().decode().strip())
        try:
            yield lambda path: f"{url()}/{Path(path).relative_to(folder).as_posix()}"
        finally:
            process.stdin.close()
            process.wait()


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with serving(Path(sys.argv[1])) as served:
        print(served.url, flush=True)
        sys.stdin.read()
    # Connections may be open still.
    os._exit(0)


@contextlib.contextmanager
def _no_proxy() -> Iterator[None]:
    before = {name: os.environ.get(name) for name in NO_PROXY}
    try:
        for name, value in before.items():
            os.environ[name] = f"{value},{HERE}" if value else HERE
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


class _Server(http.server.ThreadingHTTPServer):
    # Connections that clients keep open would hold up the end.
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away as they like."""


class _Handler(http.server.BaseHTTPRequestHandler):
    root: Path
    prefix: str
    counts: Served
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads it."""

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self._path()
        if path is None:
            self.counts.count(0)
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            first, end, status = _range(self.headers.get("Range"), about.st_size)
            # Before it is sent: whoever has the answer may look.
            self.counts.count(end - first if body else 0)
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
            while remaining and (part := file.read(min(PIECE, remaining))):
                self.wfile.write(part)
                remaining -= len(part)

    def _path(self) -> Path | None:
        """The file that is asked for, if it lies in the folder."""
        name = unquote(self.path.partition("?")[0])
        if not name.startswith(self.prefix):
            return None
        path = (self.root / name.removeprefix(self.prefix)).resolve()
        return path if path.is_relative_to(self.root) and path.is_file() else None


def _range(text: str | None, size: int) -> tuple[int, int, int]:
    """(first, end, status) of what a Range header asks for."""
    match = re.fullmatch(r"bytes=(\d*)-(\d*)", text or "")
    if match is None or not any(match.groups()):
        return 0, size, 200
    if not match[1]:
        first, end = max(0, size - int(match[2])), size
    else:
        first, end = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    return (first, end, 206) if first < end else (0, 0, 416)
