"""What is open: its fields, its size, what is known of it without looking far."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request

from ..session import Session


def dataset(session: Session, request: Request) -> dict[str, Any]:
    side = session.side(request.query_params)
    return {
        "title": side.title,
        "samples": len(side.reader),
        "sides": list(session.sides),
        "fields": [{"name": name, "kind": type(kind).__name__} for name, kind in side.reader.schema.items()],
    }


ROUTES = {"dataset": dataset}
