"""Samples: which there are, some of them in short, one of them in full, the bytes of a cell."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from ..cells import full, short
from ..cells.cell import Cell, cells_of
from ..jobs import Job
from ..rows import keys_of, ready_rows
from ..rows import rows as rows_of
from ..session import Session, whole

# Samples in one answer.
MOST = 500


def rows(session: Session, request: Request) -> Job:
    return rows_of(session, session.side(request.query_params), request.query_params)


def samples(session: Session, request: Request) -> dict[str, Any]:
    params = request.query_params
    side = session.side(params)
    found = ready_rows(session, side, params)
    start = whole(params, "start", 0, 0, found.count)
    numbers = found.take(start, whole(params, "count", 100, 0, MOST))
    fields = [session.field(side, name) for name in params.getlist("field")] or list(side.reader.schema)
    cells = cells_of(side, numbers.tolist(), fields)
    keys = keys_of(side, numbers)
    return {
        "start": start,
        "count": found.count,
        "samples": [
            {
                "row": start + at, "sample": sample, **({} if keys is None else {"key": keys[at]}),
                "cells": {name: short(cell) for name, cell in cells[at].items()},
            }
            for at, sample in enumerate(numbers.tolist())
        ],
    }  # fmt: skip


def sample(session: Session, request: Request) -> dict[str, Any]:
    side = session.side(request.query_params)
    number = session.sample(side, request.path_params["n"])
    keys = keys_of(side, _one(number))
    return {
        "sample": number,
        "of": len(side.reader),
        "file": side.reader.where(number),
        **({} if keys is None else {"key": keys[0]}),
        "cells": [full(Cell(side, number, name, how)) for name, how in side.shows.items()],
    }


def _one(number: int) -> Any:
    import numpy as np

    return np.array([number], dtype=np.int64)


def download(session: Session, request: Request) -> Response:
    """The bytes of a cell as they are stored, to be kept as a file, never to be shown."""
    side = session.side(request.query_params)
    number = session.sample(side, request.path_params["n"])
    name = session.field(side, request.path_params["field"])
    data = Cell(side, number, name, side.shows[name]).data
    file = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{number}-{name}")[:80]
    return Response(
        data.tobytes(),
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{file}.bin"'},
    )


ROUTES = {"rows": rows, "samples": samples, "sample/{n}": sample, "bytes/{n}/{field:path}": download}
