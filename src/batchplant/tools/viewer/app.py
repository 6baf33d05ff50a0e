"""The routes of the server: the page, and what each part of it asks for."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio.to_thread
import numpy as np
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from ...errors import BatchplantError, MissingLibraryError, NotFoundError, OptionError, SampleIndexError
from .jobs import Job
from .routes import FIRST, Routes, others
from .rows import NotReady, Rows
from .session import Session

PAGE = Path(__file__).parent / "page"
Answer = Callable[[Session, Request], Any]
# Requests that are answered at a time.
THREADS = 8


def application(session: Session) -> Starlette:
    """Everything behind the guard."""
    routes = [
        Route("/", lambda request: FileResponse(str(PAGE / "index.html"))),
        *_routes(session, FIRST, "/api/"),
        Mount("/api", _Later(session)),
        Mount("/page", StaticFiles(directory=str(PAGE))),
    ]
    return Starlette(routes=routes, lifespan=_few_threads)


def _routes(session: Session, answers: Routes, prefix: str) -> list[Route]:
    return [Route(f"{prefix}{path}", _answering(session, answer)) for path, answer in answers.items()]


class _Later:
    """The other routes, made when one of them is first asked for."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._router: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            found = await anyio.to_thread.run_sync(others)
            self._router = Router(_routes(self._session, found, "/"))
        await self._router(scope, receive, send)


@contextlib.asynccontextmanager
async def _few_threads(app: Starlette) -> AsyncIterator[None]:
    """Many tabs wait for each other; they do not take the machine."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield


def _answering(session: Session, answer: Answer) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        try:
            value = answer(session, request)
        except NotReady as error:
            return _json(_told(error.job), 409)
        except BatchplantError as error:
            return _json(_error(error), _status(error))
        except (OSError, MemoryError) as error:
            return _json(_error(error), 500)
        if isinstance(value, Response):
            return value
        if isinstance(value, Job) and "stop" in request.query_params:
            # Nobody wants it any more; without this it would be found out after a while.
            value.stopped = True
        return _json(_told(value) if isinstance(value, Job) else value)

    return respond


def _told(job: Job) -> dict[str, Any]:
    if not job.finished.is_set():
        return {"state": "working", "done": job.done, "of": job.of}
    if job.error is not None:
        return {"state": "failed", **_error(job.error)}
    value = job.value.to_json() if isinstance(job.value, Rows) else job.value
    return {"state": "ready", "value": value}


def _error(error: Exception) -> dict[str, Any]:
    place = {
        name: value
        for name in ("path", "sample", "field", "offset")
        if (value := getattr(error, name, None)) is not None and not callable(value)
    }
    return {"error": {"message": str(error) or type(error).__name__, "type": type(error).__name__, **place}}


def _status(error: BatchplantError) -> int:
    if isinstance(error, NotFoundError | SampleIndexError):
        return 404
    return 400 if isinstance(error, OptionError) else 501 if isinstance(error, MissingLibraryError) else 422


def _json(value: Any, status: int = 200) -> Response:
    body = json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Response(body.encode("utf-8", "replace"), status, media_type="application/json")


def _plain(value: Any) -> Any:
    """What JSON can say: NumPy's numbers as numbers, what is not finite as text."""
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "∞" if value > 0 else "-∞"
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return str(value)
