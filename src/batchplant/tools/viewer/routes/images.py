"""Images: many small ones as one, or one."""

from __future__ import annotations

import json

from starlette.requests import Request
from starlette.responses import Response

from ..cells.cell import Cell
from ..pixels import for_browser
from ..rows import ready_rows
from ..session import Session, whole

# Tiles in one sheet, and pixels of all of them.
MOST, MOST_PIXELS = 200, 1 << 24
KEPT = {"Cache-Control": "private, max-age=600"}


def sheet(session: Session, request: Request) -> Response:
    params = request.query_params
    side = session.side(params)
    found = ready_rows(session, side, params)
    field = session.field(side, params.get("field", ""))
    size = whole(params, "size", 160, 16, 512)
    start = whole(params, "start", 0, 0, found.count)
    count = min(whole(params, "count", 100, 1, MOST), max(1, MOST_PIXELS // size**2))
    samples = found.take(start, count)
    if not len(samples):
        return Response(status_code=204)
    made, wrong = session.images.sheet(side, field, samples, size)
    # Which tiles are no images; what is wrong with them says the view of the sample.
    headers = {"X-Broken": json.dumps(sorted(wrong))}
    return Response(made, media_type="image/jpeg", headers={**KEPT, **headers})


def image(session: Session, request: Request) -> Response:
    side = session.side(request.query_params)
    number = session.sample(side, request.path_params["n"])
    name = session.field(side, request.path_params["field"])
    longest = whole(request.query_params, "max", 2048, 16, 8192)
    data, kind = for_browser(Cell(side, number, name, side.shows[name]), longest)
    return Response(data, media_type=kind, headers=KEPT)


ROUTES = {"sheet": sheet, "image/{n}/{field:path}": image}
