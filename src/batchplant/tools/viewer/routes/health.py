"""What verify and doctor find."""

from __future__ import annotations

from starlette.requests import Request

from ..health import examined, verified
from ..jobs import Job
from ..rows import chosen
from ..session import Session, whole


def verify(session: Session, request: Request) -> Job:
    """``decode``: every cell is decoded, too. ``sample``: only of so many samples."""
    params = request.query_params
    side, decode = session.side(params), bool(params.get("decode"))
    sample = whole(params, "sample", 0, 0, 1 << 48) or None
    query, rows = chosen(session, side, params)
    return session.jobs.get(
        ("verify", side.name, query, decode, sample),
        lambda told: verified(side.reader, rows, decode=decode, sample=sample, told=told),
        wait=0.2,
    )


def doctor(session: Session, request: Request) -> Job:
    """``all``: of every sample. ``world_size``: for so many ranks."""
    params = request.query_params
    side, everything = session.side(params), bool(params.get("all"))
    world_size = whole(params, "world_size", 0, 0, 1 << 16) or None
    query, rows = chosen(session, side, params)
    return session.jobs.get(
        ("doctor", side.name, query, everything, world_size),
        lambda told: examined(side.reader, rows, everything=everything, world_size=world_size, told=told),
        wait=0.2,
    )


ROUTES = {"verify": verify, "doctor": doctor}
