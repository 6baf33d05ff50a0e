"""Answers to the first requests of a page: the dataset, its samples, their cells and thumbnails."""

from __future__ import annotations

import json
import re

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ...._version import __version__
from ....data.tensors import is_tensors
from ....errors import BatchplantError, OptionError, shortened, shown
from ....jobs.verify import verify
from ....schema.kinds import Field
from ... import Document
from ..cells import Cell, Dataset, cells_of
from ..episodes import begins_of
from ..jobs import Job, Progress
from ..maps import maps_of
from ..pixels import for_browser
from ..render import describe, is_heat_map, summarize
from ..rows import NotReady, Query, Rows, keys_of, ready_rows, row_of, rows_job
from ..session import Session, integer_param, parse_integer
from . import cached

# Class names that the page gets, and letters of each; other names come with the samples.
MAX_CLASS_NAMES, CLASS_NAME_LETTERS = 2000, 200
# Displays that fill a card of the grid; a dataset without them is shown as a table.
CARD_DISPLAYS = ("image", "mask", "video", "sound")
LABEL_FIELDS = ("label", "labels", "class", "target", "category", "caption", "text", "y", "cls", "fine_label")
# Samples in one answer.
MAX_SAMPLES = 500
# Tiles of one sheet, and pixels of all of them.
MAX_SHEET_TILES, MAX_SHEET_PIXELS = 200, 1 << 24


def dataset(session: Session, request: Request) -> Document:
    """Describe the dataset without reading samples: fields, size, layout of the page."""
    dataset = session.dataset
    reader = dataset.reader
    return {
        "title": _title(dataset.title),
        "path": shown(str(reader.path)),
        "format": reader.format,
        "samples": len(reader),
        "facts": _facts(dataset),
        "fields": [_field(name, kind, dataset.shows[name]) for name, kind in reader.schema.items()],
        "layout": _layout(dataset),
        "image": dataset.image,
        "label": _label(dataset),
        "pipeline": session.pipeline is not None,
        "live": session.live is not None,
        "episodes": len(begins_of(reader)),
        "slides": reader._pyramids,
        "maps": maps_of(reader),
        "keys": reader._keys() is not None,
        "version": __version__,
    }


def _title(name: str) -> str:
    """Return the last part of a path, without the signature of a URL."""
    name_shown = shown(name)
    return name_shown.rstrip("/").rpartition("/")[2] or name_shown


def _facts(dataset: Dataset) -> Document:
    try:
        return dataset.reader.facts()
    except (BatchplantError, OSError) as error:
        return {"error": str(error)}


def _field(name: str, kind: Field, display: str) -> Document:
    description: Document = {"name": name, "kind": str(kind), "shows": display, "optional": kind.optional}
    for part in ("dtype", "shape", "encoding", "mode", "mask"):
        value = getattr(kind, part, None)
        if value is not None:
            description[part] = value
    names = getattr(kind, "names", None)
    if names:
        description |= {
            "names": [shortened(class_name, CLASS_NAME_LETTERS) for class_name in names[:MAX_CLASS_NAMES]],
            "classes": len(names),
        }
    return description


def _layout(dataset: Dataset) -> str:
    if is_tensors(dataset.reader.schema):
        return "model"
    has_cards = any(display in CARD_DISPLAYS for display in dataset.shows.values()) or any(
        map(is_heat_map, dataset.reader.schema.values())
    )
    return "grid" if has_cards else "table"


def _label(dataset: Dataset) -> str | None:
    """Return the field that labels an image in the grid: its class, or a field with such a name."""
    named = [name for name in dataset.shows if name.lower() in LABEL_FIELDS]
    likely = [name for name in named if dataset.shows[name] in ("number", "text", "bool")]
    return dataset.first("class") or next(iter(likely), None)


def rows(session: Session, request: Request) -> Job:
    return rows_job(session, session.dataset, request.query_params)


def samples(session: Session, request: Request) -> Document:
    params = request.query_params
    dataset = session.dataset
    matches = ready_rows(session, dataset, params)
    start = integer_param(params, "start", 0, 0, matches.count)
    numbers = matches.take(start, integer_param(params, "count", 100, 0, MAX_SAMPLES))
    fields = [session.field(dataset, name) for name in params.getlist("field")] or list(dataset.reader.schema)
    cells = cells_of(dataset, numbers.tolist(), fields)
    keys = keys_of(dataset, numbers)
    return {
        "start": start,
        "count": matches.count,
        "samples": [
            {
                "row": start + position,
                "sample": sample,
                **({} if keys is None else {"key": keys[position]}),
                "cells": {name: summarize(cell) for name, cell in cells[position].items()},
            }
            for position, sample in enumerate(numbers.tolist())
        ],
    }


def sample(session: Session, request: Request) -> Document:
    dataset = session.dataset
    number = session.sample(dataset, request.path_params["n"])
    keys = keys_of(dataset, np.array([number], dtype=np.int64))
    return {
        "sample": number,
        "of": len(dataset.reader),
        "file": shown(dataset.reader.where(number)),
        **({} if keys is None else {"key": keys[0]}),
        **_neighbours(session, dataset, request, number),
        "cells": [describe(Cell(dataset, number, name)) for name in dataset.shows],
    }


def _neighbours(session: Session, dataset: Dataset, request: Request, number: int) -> Document:
    """Return the samples before and after it in the list that it was opened from."""
    try:
        matches = ready_rows(session, dataset, request.query_params)
    except (NotReady, BatchplantError):
        # A sample is shown at once, however long a filter takes.
        matches = Rows(len(dataset.reader))
    # A sample may be in several rows; the request names the one that the user opened.
    position: int | None = integer_param(request.query_params, "row", -1, -1, matches.count)
    if position is None or matches.take(position, 1).tolist() != [number] or position < 0:
        position = row_of(matches, number)
    if position is None:
        return {"row": None}
    around = {"previous": position - 1, "next": position + 1}
    return {
        "row": position,
        **{
            name: {"row": row, "sample": int(matches.take(row, 1)[0])}
            for name, row in around.items()
            if 0 <= row < matches.count
        },
    }


def find(session: Session, request: Request) -> Job:
    """Find a sample by number or key, and its row."""
    params = request.query_params
    dataset = session.dataset
    matches = ready_rows(session, dataset, params)
    text = params.get("sample", "")

    def work(progress: Progress) -> Document:
        number = session.sample(dataset, text) if parse_integer(text) is not None else _by_key(dataset, text)
        return {"sample": number, "row": row_of(matches, number)}

    return session.jobs.get(("find", Query.from_params(params), text), work, wait=1.0)


def _by_key(dataset: Dataset, text: str) -> int:
    if dataset.reader._keys() is None:
        raise OptionError(f"{text[:40]!r} is no number of a sample")
    return dataset.reader.keys().index(text)


def check(session: Session, request: Request) -> Job:
    """Verify one sample: decode it and compare all checksums."""
    dataset = session.dataset
    number = session.sample(dataset, request.path_params["n"])

    def work(progress: Progress) -> Document:
        report = verify(dataset.reader.subset([number]), decode=True, progress=progress)
        return {
            "ok": report.ok,
            "checks": list(report.checks),
            "problems": [
                {"message": problem.message, "field": problem.field, "offset": problem.offset}
                for problem in report.problems
            ],
        }

    return session.jobs.get(("check", number), work)


def download(session: Session, request: Request) -> Response:
    """Return the stored bytes of a cell as a download, never to be shown by the browser."""
    dataset = session.dataset
    number = session.sample(dataset, request.path_params["n"])
    name = session.field(dataset, request.path_params["field"])
    data = Cell(dataset, number, name).data
    file = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{number}-{name}")[:80]
    return Response(
        data.tobytes(),
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{file}.bin"'},
    )


def sheet(session: Session, request: Request) -> Response:
    """Return the thumbnails of many samples as one JPEG."""
    params = request.query_params
    dataset = session.dataset
    matches = ready_rows(session, dataset, params)
    field = session.field(dataset, params.get("field", ""))
    size = integer_param(params, "size", 160, 16, 512)
    start = integer_param(params, "start", 0, 0, matches.count)
    count = min(integer_param(params, "count", 100, 1, MAX_SHEET_TILES), max(1, MAX_SHEET_PIXELS // size**2))
    samples = matches.take(start, count)
    if not len(samples):
        return Response(status_code=204)
    jpeg, errors = session.images.sheet(dataset, field, samples, size)
    # Positions of the tiles without an image; the view of the sample shows their errors.
    return cached(jpeg, "image/jpeg", **{"X-Broken": json.dumps(sorted(errors))})


def image(session: Session, request: Request) -> Response:
    """Return one image as browsers can show it."""
    dataset = session.dataset
    number = session.sample(dataset, request.path_params["n"])
    name = session.field(dataset, request.path_params["field"])
    longest = integer_param(request.query_params, "max", 2048, 16, 8192)
    return cached(*for_browser(Cell(dataset, number, name), longest))


ROUTES = {
    "dataset": dataset,
    "rows": rows,
    "samples": samples,
    "sample/{n}": sample,
    "find": find,
    "check/{n}": check,
    "bytes/{n}/{field:path}": download,
    "sheet": sheet,
    "image/{n}/{field:path}": image,
}
