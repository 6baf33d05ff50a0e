"""The server: a socket on this machine, the guard before it, the page, and the answers to its requests."""

from __future__ import annotations

import contextlib
import hmac
import json
import math
import os
import re
import secrets
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import (
    AccessError,
    BatchplantError,
    MissingLibraryError,
    NotFoundError,
    OptionError,
    SampleIndexError,
)

try:
    import anyio.to_thread
    import uvicorn
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders
    from starlette.requests import Request
    from starlette.responses import FileResponse, PlainTextResponse, Response
    from starlette.routing import Mount, Route, Router
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise MissingLibraryError("batchplant view needs: pip install 'batchplant[view]'") from error

from .. import Document
from . import browse
from .rows import NotReady, Rows
from .session import Job, PageRequest, Routes, Session

PAGE = Path(__file__).parent / "page"
# Requests that are answered at a time.
MAX_THREADS = 8
# Open connections.
MAX_CONNECTIONS = 256
# Letters of a query; no filter is longer.
MAX_QUERY_LETTERS = 16_384
# A Host header: a name or an address, IPv6 in brackets, and maybe a port.
HOST = re.compile(r"(?:\[(?P<bracketed>[0-9a-f:.]+)\]|(?P<name>[a-z0-9.-]+))(?::(?P<port>[0-9]{1,5}))?")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; "
    "media-src 'self' blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors {frames}"
)
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Server:
    """Listens from its creation on, answers once :meth:`run` or :meth:`start` is called."""

    def __init__(
        self, session: Session, *, host: str = "127.0.0.1", port: int = 0, frames: bool = False
    ) -> None:
        self.session = session
        self.token = new_token()
        self._socket = _listen(host, port)
        self.host, self.port = host, self._socket.getsockname()[1]
        names = {"127.0.0.1", "localhost", "::1", host}
        app = Guard(application(session), token=self.token, hosts=names, frames=frames)
        config = uvicorn.Config(
            app, loop="asyncio", log_level="error", log_config=None, access_log=False, lifespan="on",
            server_header=False,
            limit_concurrency=MAX_CONNECTIONS, timeout_keep_alive=30, timeout_graceful_shutdown=1, ws="none",
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}/{self.token}/"

    def run(self) -> None:
        """Answer until interrupted."""
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.session.close()

    def start(self) -> None:
        """Answer in a thread."""
        # The caller handles signals.
        self._server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self.run, name="view-server", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join()
        self._socket.close()


@contextlib.contextmanager
def serving(session: Session, *, host: str = "127.0.0.1", frames: bool = False) -> Iterator[Server]:
    """Run a server in a thread."""
    server = Server(session, host=host, frames=frames)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(128)
    except OSError as error:
        listener.close()
        raise AccessError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


def open_browser(url: str) -> None:
    """Open the page in a browser if there is a screen; a text browser would take over the terminal."""
    if sys.platform.startswith("linux") and not ({"DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()):
        print("no screen here: open the link in a browser", file=sys.stderr)
        return
    import webbrowser

    threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


def new_token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """Passes requests whose path begins with the token and whose Host header is this server's.

    The token is part of the path, not a cookie: relative links carry it, two servers on one machine do not
    mix, and a page in a notebook's frame works where browsers withhold cookies. DNS rebinding, a name that
    points to 127.0.0.1, cannot fake the Host header.
    """

    def __init__(self, app: ASGIApp, *, token: str, hosts: Iterable[str], frames: bool = False) -> None:
        self.app, self.token = app, token
        self.hosts = frozenset(hosts)
        self.policy = POLICY.format(frames="http: https:" if frames else "'none'")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        refused = self._refused(scope)
        if refused is not None:
            await PlainTextResponse(refused[1], status_code=refused[0], headers=HEADERS)(scope, receive, send)
            return
        path = scope["path"].lstrip("/").partition("/")[2]

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["Content-Security-Policy"] = self.policy
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self.app({**scope, "path": "/" + path, "raw_path": None, "root_path": ""}, receive, guarded)

    def _refused(self, scope: Scope) -> tuple[int, str] | None:
        headers = Headers(scope=scope)
        host = self._own_host(headers)
        if host is None:
            return (
                421,
                "this server answers only under its own name; open the link that `batchplant view` printed",
            )
        if any(
            origin.lower() not in (f"http://{host}", f"https://{host}")
            for origin in headers.getlist("origin")
        ):
            return 403, "another page may not ask; open the link that `batchplant view` printed"
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "only GET"
        if len(scope["query_string"]) > MAX_QUERY_LETTERS:
            return 414, "the request is too long"
        token = scope["path"].lstrip("/").partition("/")[0]
        if not hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode()):
            return 403, "the token is missing or of another run; open the link that `batchplant view` printed"
        return None

    def _own_host(self, headers: Headers) -> str | None:
        """Return the Host header if it names this server; any port, for it may be forwarded."""
        hosts = headers.getlist("host")
        match = HOST.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        if match is None or (match["bracketed"] or match["name"]) not in self.hosts:
            return None
        if bool(match["bracketed"]) != (":" in (match["bracketed"] or match["name"])):
            return None
        return hosts[0].lower() if int(match["port"] or 1) in range(1, 65536) else None


# -- answers -------------------------------------------------------------------------------------------


def application(session: Session) -> Starlette:
    """Return the application behind the :class:`~.security.Guard`."""
    routes = [
        Route("/", lambda request: FileResponse(str(PAGE / "index.html"))),
        *_routes(session, browse.ROUTES, "/api/"),
        Mount("/api", _lazy_routes(session)),
        Mount("/page", StaticFiles(directory=str(PAGE))),
    ]
    return Starlette(routes=routes, lifespan=_limit_threads)


def _routes(session: Session, answers: Routes, prefix: str) -> list[Route]:
    return [Route(f"{prefix}{path}", _endpoint(session, answer)) for path, answer in answers.items()]


def _lazy_routes(session: Session) -> ASGIApp:
    """Routes whose modules import much: imported with the first request for one of them."""
    router: Router | None = None

    def load() -> Router:
        from . import media, panels

        return Router([*_routes(session, panels.ROUTES, "/"), *_routes(session, media.ROUTES, "/")])

    async def respond(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal router
        if router is None:
            router = await anyio.to_thread.run_sync(load)
        await router(scope, receive, send)

    return respond


@contextlib.asynccontextmanager
async def _limit_threads(app: Starlette) -> AsyncIterator[None]:
    """Limit the threads, so that many tabs do not take the whole machine."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = MAX_THREADS
    yield


def _endpoint(session: Session, answer: Callable[[PageRequest], Any]) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        try:
            value = answer(PageRequest(session, request))
        except NotReady as error:
            return _json(_job_state(error.job), 409)
        except BatchplantError as error:
            return _json(_error(error), _status(error))
        except (OSError, MemoryError) as error:
            return _json(_error(error), 500)
        if isinstance(value, Response):
            return value
        if isinstance(value, Job) and "stop" in request.query_params:
            # The page does not want it any more; otherwise the job would notice only after a while.
            value.stopped = True
        return _json(_job_state(value) if isinstance(value, Job) else value)

    return respond


def _job_state(job: Job) -> Document:
    if not job.finished.is_set():
        return {"state": "working", "done": job.done, "of": job.of}
    if job.error is not None:
        return {"state": "failed", **_error(job.error)}
    value = job.value.to_json() if isinstance(job.value, Rows) else job.value
    return {"state": "ready", "value": value}


def _error(error: Exception) -> Document:
    location = {
        name: value
        for name in ("path", "sample", "field", "offset")
        if (value := getattr(error, name, None)) is not None and not callable(value)
    }
    return {
        "error": {"message": str(error) or type(error).__name__, "type": type(error).__name__, **location}
    }


def _status(error: BatchplantError) -> int:
    if isinstance(error, NotFoundError | SampleIndexError):
        return 404
    return 400 if isinstance(error, OptionError) else 501 if isinstance(error, MissingLibraryError) else 422


def _json(value: Any, status: int = 200) -> Response:
    body = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(body.encode("utf-8", "replace"), status, media_type="application/json")


def _plain(value: Any) -> Any:
    """Return a value as JSON can hold it: NumPy numbers as numbers, numbers that are not finite as text."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
