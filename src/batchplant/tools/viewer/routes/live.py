"""The loaders of this process, as they run."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from ....errors import NotFoundError
from ..session import Session, whole


def live(session: Session, request: Request) -> dict[str, Any]:
    """A loader from row ``since`` on, and which others there are."""
    if session.live is None:
        raise NotFoundError("no loader runs here; start one with Loader(…, dashboard=True)")
    params = request.query_params
    found = session.live.find(whole(params, "loader", 0, 0, 1 << 20))
    if found is None:
        raise NotFoundError(f"there is no loader {params['loader'][:20]}")
    others = [
        {"loader": one.number, "path": one.about["path"], "ended": one.ended} for one in session.live.watches
    ]
    return {**found.told(whole(params, "since", 0, 0, 1 << 60)), "loaders": others}


ROUTES = {"live": live}
