"""The web application: the page, and the answers to its requests."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import AsyncIterator, Callable, Mapping
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
from .. import Document
from .jobs import Job
from .routes import browse
from .rows import NotReady, Rows
from .session import Session

PAGE = Path(__file__).parent / "page"
Answer = Callable[[Session, Request], Any]
Routes = Mapping[str, Answer]
# Requests that are answered at a time.
MAX_THREADS = 8


def application(session: Session) -> Starlette:
    """Return the application behind the :class:`~.security.Guard`."""
    routes = [
        Route("/", lambda request: FileResponse(str(PAGE / "index.html"))),
        *_routes(session, browse.ROUTES, "/api/"),
        Mount("/api", _LazyRoutes(session)),
        Mount("/page", StaticFiles(directory=str(PAGE))),
    ]
    return Starlette(routes=routes, lifespan=_limit_threads)


def _routes(session: Session, answers: Routes, prefix: str) -> list[Route]:
    return [Route(f"{prefix}{path}", _endpoint(session, answer)) for path, answer in answers.items()]


class _LazyRoutes:
    """Routes whose modules import much: imported with the first request for one of them."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._router: Router | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._router is None:
            routes = await anyio.to_thread.run_sync(_lazy_routes)
            self._router = Router(_routes(self._session, routes, "/"))
        await self._router(scope, receive, send)


def _lazy_routes() -> Routes:
    from .routes import media, panels

    return {**panels.ROUTES, **media.ROUTES}


@contextlib.asynccontextmanager
async def _limit_threads(app: Starlette) -> AsyncIterator[None]:
    """Limit the threads, so that many tabs do not take the whole machine."""
    anyio.to_thread.current_default_thread_limiter().total_tokens = MAX_THREADS
    yield


def _endpoint(session: Session, answer: Answer) -> Callable[[Request], Response]:
    def respond(request: Request) -> Response:
        try:
            value = answer(session, request)
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
