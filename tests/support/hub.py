"""A server that speaks the API of the Hugging Face Hub, and another one that its signed URLs lead to."""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from http_messages import byte_range

REPOSITORY = "someone/tiny"
# Files of more bytes lie in the large-file storage, to which the Hub redirects.
MAX_SMALL_BYTES = 1000


class Hub:
    """A repository whose files are those of a folder. Change its attributes between requests."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.endpoint = self.storage = ""
        self.commits = {"main": "a" * 40}
        self.token: str | None = None
        # Answers 429 that are still to come, and the uses after which a signed URL expires.
        self.busy, self.uses = 0, 1 << 30
        self.page = 1000
        # (method, path, Authorization) of requests to the Hub; paths of those to the storage.
        self.asked: list[tuple[str, str, str | None]] = []
        self.fetched: list[tuple[str, str | None]] = []
        self.signatures: dict[str, int] = {}

    def count(self, part: str) -> int:
        return sum(part in path for _, path, _ in self.asked)

    def tag(self, file: Path) -> str:
        return hashlib.sha256(file.read_bytes()).hexdigest()


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def give(self, file: Path, **headers: str) -> None:
        data = file.read_bytes()
        wanted = byte_range(self.headers.get("Range"))
        if wanted is None:
            self.answer(200, data if self.command == "GET" else b"", Content_Length=str(len(data)), **headers)
            return
        start, end = wanted[0], min(wanted[1], len(data))
        if start >= len(data):
            self.answer(416)
            return
        span = f"bytes {start}-{end - 1}/{len(data)}"
        self.answer(206, data[start:end], Content_Range=span, **headers)

    def do_HEAD(self) -> None:
        self.do_GET()


class _HubHandler(_Handler):
    def do_GET(self) -> None:
        hub, path = self.hub, urlsplit(self.path).path
        hub.asked.append((self.command, self.path, self.headers.get("Authorization")))
        if hub.busy:
            hub.busy -= 1
            self.answer(429, Retry_After="0")
        elif hub.token is not None and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401, X_Error_Message="Access is restricted")
        elif match := re.fullmatch(rf"/api/datasets/{REPOSITORY}/revision/(.+)", path):
            commit = hub.commits.get(unquote(match[1]))
            self.answer(*((200, json.dumps({"sha": commit}).encode()) if commit else (404, b"")))
        elif match := re.fullmatch(rf"/api/datasets/{REPOSITORY}/tree/([^/]+)(?:/(.*))?", path):
            self.list(match[1], unquote(match[2] or ""))
        elif match := re.fullmatch(rf"/datasets/{REPOSITORY}/resolve/([^/]+)/(.+)", path):
            self.resolve(match[1], unquote(match[2]))
        elif match := re.fullmatch(rf"/api/buckets/{REPOSITORY}/tree(?:/([^/]+))?", path):
            self.list(hub.commits["main"], unquote(match[1] or ""))
        elif match := re.fullmatch(rf"/buckets/{REPOSITORY}/resolve/([^/]+)", path):
            self.resolve(hub.commits["main"], unquote(match[1]))
        else:
            self.answer(404)

    def list(self, commit: str, folder: str) -> None:
        top = self.hub.root / folder
        query = parse_qs(urlsplit(self.path).query)
        if commit not in self.hub.commits.values() or not top.is_dir():
            self.answer(404)
            return
        paths = sorted(top.rglob("*") if query["recursive"] == ["True"] else top.iterdir())
        first = int(query.get("cursor", ["0"])[0])
        page = paths[first : first + self.hub.page]
        headers = {}
        if first + len(page) < len(paths):
            link = f"{self.hub.endpoint}{urlsplit(self.path).path}"
            link += f"?recursive={query['recursive'][0]}&cursor={first + len(page)}"
            headers["Link"] = f'<{link}>; rel="next"'
        self.answer(200, json.dumps([self.entry(path) for path in page]).encode(), **headers)

    def entry(self, path: Path) -> dict[str, Any]:
        entry = {"path": path.relative_to(self.hub.root).as_posix(), "oid": "0" * 40, "size": 0}
        if path.is_dir():
            return {**entry, "type": "directory"}
        size = path.stat().st_size
        entry |= {"type": "file", "size": size, "oid": self.hub.tag(path)}
        if size > MAX_SMALL_BYTES:
            if "/buckets/" in self.path:
                return {**entry, "xetHash": entry.pop("oid")}
            entry |= {"oid": "1" * 40, "lfs": {"oid": self.hub.tag(path), "size": size, "pointerSize": 130}}
        return entry

    def resolve(self, commit: str, name: str) -> None:
        hub, file = self.hub, self.hub.root / name
        if commit not in hub.commits.values() or not file.is_file():
            self.answer(404)
            return
        tag = f'"{hub.tag(file)}"'
        if file.stat().st_size <= MAX_SMALL_BYTES:
            self.give(file, ETag=tag)
            return
        signature = str(len(hub.signatures))
        hub.signatures[signature] = hub.uses
        url = f"{hub.storage}/{quote(name)}?signature={signature}"
        size = str(file.stat().st_size)
        self.answer(302, Location=url, X_Linked_Size=size, X_Linked_ETag=tag, ETag='"other"')


class _StorageHandler(_Handler):
    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        signature = parse_qs(parts.query).get("signature", [""])[0]
        self.hub.fetched.append((self.path, self.headers.get("Authorization")))
        self.hub.signatures[signature] = self.hub.signatures.get(signature, 0) - 1
        if self.hub.signatures[signature] < 0:
            self.answer(403)
            return
        self.give(self.hub.root / unquote(parts.path).lstrip("/"), ETag='"of the storage"')


@contextlib.contextmanager
def hub_server(root: Path) -> Iterator[Hub]:
    """A repository of the files in a folder, as the Hub gives it."""
    hub = Hub(root)
    servers = []
    for handler in (_HubHandler, _StorageHandler):
        bound = type("Handler", (handler,), {"hub": hub})
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), bound)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        servers.append(server)
    hub.endpoint, hub.storage = (f"http://127.0.0.1:{server.server_address[1]}" for server in servers)
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
