"""Figures as Prometheus reads them: as text, and from a server of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from .service.channel import bind

REQUEST_SECONDS = 10


class Figure(NamedTuple):
    """A number with its name, kind (counter or gauge) and meaning."""

    name: str
    kind: str
    text: str
    value: float


def exposition(prefix: str, figures: Iterable[Figure], labels: Mapping[str, object] | None = None) -> str:
    """Return figures in the text format of Prometheus, with the same labels for all."""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in (labels or {}).items())
    labelled = f"{{{pairs}}}" if pairs else ""
    return "".join(
        f"# HELP {prefix}_{name} {text}\n# TYPE {prefix}_{name} {kind}\n{prefix}_{name}{labelled} {value}\n"
        for name, kind, text, value in figures
    )


def _escaped(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class _Handler(BaseHTTPRequestHandler):
    timeout = REQUEST_SECONDS
    server: Any

    def do_GET(self) -> None:
        is_known = self.path.partition("?")[0] == "/metrics"
        body = self.server.metrics().encode() if is_known else b"/metrics\n"
        self.send_response(200 if is_known else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: str, metrics: Callable[[], str]) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = bind(address)
        self.server_name, self.server_port = self.server_address = self.socket.getsockname()[:2]
        self.metrics = metrics

    def shutdown(self) -> None:
        """End the thread, and close the socket."""
        super().shutdown()
        self.server_close()


def serve_metrics(address: str, metrics: Callable[[], str]) -> ThreadingHTTPServer:
    """Serve figures at ``http://ADDRESS/metrics`` from a thread; ``shutdown`` ends it."""
    server = _Server(address, metrics)
    threading.Thread(target=server.serve_forever, name="batchplant-metrics", daemon=True).start()
    return server
