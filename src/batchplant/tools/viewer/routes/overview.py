"""Statistics of the samples that a filter leaves."""

from __future__ import annotations

from starlette.requests import Request

from .. import overview as made
from ..jobs import Job
from ..rows import chosen
from ..session import Session


def overview(session: Session, request: Request) -> Job:
    """Of some samples, or with ``exact`` of all."""
    params = request.query_params
    side, exact = session.side(params), bool(params.get("exact"))
    query, rows = chosen(session, side, params)
    return session.jobs.get(
        ("overview", side.name, query, exact),
        lambda told: made.overview(side.reader, rows, exact=exact, told=told),
        wait=0.2,
    )


ROUTES = {"overview": overview}
