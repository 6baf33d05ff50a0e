"""Samples: which there are, some of them in short, one of them in full, the bytes of a cell."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ....errors import BatchplantError, OptionError, shown
from ....jobs.verify import verify
from ..cells import full, short
from ..cells.cell import Cell, cells_of
from ..jobs import Job, Progress
from ..rows import NotReady, Query, Rows, keys_of, ready_rows, row_of
from ..rows import rows as rows_of
from ..session import Session, Side, digits, whole

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
    keys = keys_of(side, np.array([number], dtype=np.int64))
    return {
        "sample": number,
        "of": len(side.reader),
        "file": shown(side.reader.where(number)),
        **({} if keys is None else {"key": keys[0]}),
        **_neighbours(session, side, request, number),
        "cells": [full(Cell(side, number, name, how)) for name, how in side.shows.items()],
    }


def _neighbours(session: Session, side: Side, request: Request, number: int) -> dict[str, Any]:
    """The samples before and after it in the list that it was opened from."""
    try:
        found = ready_rows(session, side, request.query_params)
    except (NotReady, BatchplantError):
        # A sample is shown at once, however long a filter takes.
        found = Rows(len(side.reader))
    # Of several rows that a sample is in, the one that was meant.
    at: int | None = whole(request.query_params, "row", -1, -1, found.count)
    if at is None or found.take(at, 1).tolist() != [number] or at < 0:
        at = row_of(found, number)
    if at is None:
        return {"row": None}
    around = {"previous": at - 1, "next": at + 1}
    return {
        "row": at,
        **{
            name: {"row": row, "sample": int(found.take(row, 1)[0])}
            for name, row in around.items()
            if 0 <= row < found.count
        },
    }


def find(session: Session, request: Request) -> Job:
    """A sample by number or by key, and the row that it is in."""
    params = request.query_params
    side = session.side(params)
    found = ready_rows(session, side, params)
    text = params.get("sample", "")

    def work(told: Progress) -> dict[str, Any]:
        number = session.sample(side, text) if digits(text) is not None else _by_key(side, text)
        return {"sample": number, "row": row_of(found, number)}

    return session.jobs.get(("find", side.name, Query.of(params), text), work, wait=1.0)


def _by_key(side: Side, text: str) -> int:
    if side.reader._key_kind() is None:
        raise OptionError(f"{text[:40]!r} is no number of a sample")
    return side.reader.keys().index(text)


def check(session: Session, request: Request) -> Job:
    """Whether one sample is sound, by everything that there is to compare it with."""
    side = session.side(request.query_params)
    number = session.sample(side, request.path_params["n"])

    def work(told: Progress) -> dict[str, Any]:
        found = verify(side.reader.subset([number]), decode=True, progress=told)
        return {
            "ok": found.ok,
            "checks": list(found.checks),
            "problems": [
                {"message": one.message, "field": one.field, "offset": one.offset} for one in found.problems
            ],
        }

    return session.jobs.get(("check", side.name, number), work, wait=0.2)


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


ROUTES = {
    "rows": rows, "samples": samples, "sample/{n}": sample, "find": find, "check/{n}": check,
    "bytes/{n}/{field:path}": download,
}  # fmt: skip
