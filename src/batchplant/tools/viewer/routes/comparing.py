"""Two datasets side by side."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ....errors import NotFoundError, OptionError
from ..comparing import difference, difference_image, differing, pairs, ways
from ..jobs import Job, Progress
from ..rows import chosen
from ..session import Session, Side

KEPT = {"Cache-Control": "private, max-age=600"}
GAINS = (1.0, 1000.0)


def compare(session: Session, request: Request) -> Job:
    """The cells that differ, of samples matched ``by`` position, key or a field."""
    a, b = _sides(session)
    params = request.query_params
    by = params.get("by", "position")
    query, rows = chosen(session, a, params)

    def work(told: Progress) -> dict[str, Any]:
        found = pairs(a.reader, b.reader, rows, by, told)
        return {**differing(a.reader, b.reader, found, told), "ways": ways(a.reader, b.reader)}

    return session.jobs.get(("compare", query, by), work, wait=0.2)


def pair(session: Session, request: Request) -> dict[str, Any]:
    """How sample ``n`` differs from sample ``m`` of the other, field by field."""
    a, b, mine, other = _pair(session, request)
    fields = [name for name in a.reader.schema if name in b.reader.schema]
    return {"fields": [difference(a.reader, b.reader, mine, other, name) for name in fields]}


def apart(session: Session, request: Request) -> Response:
    """The image of what differs."""
    a, b, mine, other = _pair(session, request)
    name = session.field(a, request.path_params["field"])
    session.field(b, name)
    try:
        gain = float(request.query_params.get("gain", "4"))
    except ValueError:
        raise OptionError("gain has to be a number") from None
    if not GAINS[0] <= gain <= GAINS[1]:
        raise OptionError(f"gain is from {GAINS[0]:g} to {GAINS[1]:g}")
    data = difference_image(a.reader, b.reader, mine, other, name, gain)
    return Response(data, media_type="image/png", headers=KEPT)


def _sides(session: Session) -> tuple[Side, Side]:
    if "b" not in session.sides:
        raise NotFoundError("there is nothing to compare with; open two: batchplant view PATH OTHER")
    return session.sides["a"], session.sides["b"]


def _pair(session: Session, request: Request) -> tuple[Side, Side, int, int]:
    a, b = _sides(session)
    mine, other = session.sample(a, request.path_params["n"]), session.sample(b, request.path_params["m"])
    return a, b, mine, other


ROUTES = {"compare": compare, "pair/{n}/{m}": pair, "apart/{n}/{m}/{field:path}": apart}
