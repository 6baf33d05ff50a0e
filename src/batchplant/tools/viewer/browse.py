"""Answers to the first requests of a page: the dataset, its samples, their cells and thumbnails.

``ROUTES`` of this module, ``panels`` and ``media`` maps a path below ``api/`` to a function of a
:class:`~.session.PageRequest`. It runs in a thread, and returns a job, a response, or a value that becomes
JSON. ``panels`` and ``media`` import much and are imported on the first request for them.
"""

from __future__ import annotations

import json
import re

import numpy as np
from starlette.responses import Response

from ..._version import __version__
from ...data.tensors import is_tensors
from ...errors import BatchplantError, OptionError, shortened, shown
from ...jobs.verify import verify
from ...schema.kinds import Field
from .. import Document
from .cells import Cell, Dataset, Progress, cells_of
from .pixels import for_browser
from .recordings import begins_of
from .render import describe, is_heat_map, is_map, summarize
from .rows import NotReady, Query, Rows, keys_of, ready_rows, row_of, rows_job
from .session import Job, PageRequest, Routes, cached_response, parse_integer

# Class names that the page gets, and letters of each; other names come with the samples.
MAX_CLASS_NAMES, CLASS_NAME_LETTERS = 2000, 200
# Displays that fill a card of the grid; a dataset without them is shown as a table.
CARD_DISPLAYS = ("image", "mask", "video", "sound")
LABEL_FIELDS = ("label", "labels", "class", "target", "category", "caption", "text", "y", "cls", "fine_label")
# Samples in one answer.
MAX_SAMPLES = 500
# Tiles of one sheet, and pixels of all of them.
MAX_SHEET_TILES, MAX_SHEET_PIXELS = 200, 1 << 24


def dataset(request: PageRequest) -> Document:
    """Describe the dataset without reading samples: fields, size, layout of the page."""
    dataset, reader, session = request.dataset, request.reader, request.session
    title = shown(dataset.title)
    try:
        facts = reader.facts()
    except (BatchplantError, OSError) as error:
        facts = {"error": str(error)}
    return {
        # The last part of a path, without the signature of a URL.
        "title": title.rstrip("/").rpartition("/")[2] or title,
        "path": shown(str(reader.path)),
        "format": reader.format,
        "samples": len(reader),
        "facts": facts,
        "fields": [_field(name, kind, dataset.shows[name]) for name, kind in reader.schema.items()],
        "layout": _layout(dataset),
        "image": dataset.image,
        "label": _label(dataset),
        "pipeline": session.pipeline is not None,
        "live": session.live is not None,
        "episodes": len(begins_of(reader)),
        "slides": reader._pyramids,
        "maps": [name for name, kind in reader.schema.items() if is_map(name, kind)],
        "keys": reader._keys() is not None,
        "version": __version__,
    }


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
    has_cards = any(display in CARD_DISPLAYS for display in dataset.shows.values())
    return "grid" if has_cards or any(map(is_heat_map, dataset.reader.schema.values())) else "table"


def _label(dataset: Dataset) -> str | None:
    """Return the field that labels an image in the grid: its class, or a field with such a name."""
    named = [name for name in dataset.shows if name.lower() in LABEL_FIELDS]
    likely = [name for name in named if dataset.shows[name] in ("number", "text", "bool")]
    return dataset.first("class") or next(iter(likely), None)


def samples(request: PageRequest) -> Document:
    dataset = request.dataset
    matches = ready_rows(request)
    start = request.integer("start", 0, 0, matches.count)
    numbers = matches.take(start, request.integer("count", 100, 0, MAX_SAMPLES))
    fields = [request.existing_field(name) for name in request.params.getlist("field")]
    cells = cells_of(dataset, numbers.tolist(), fields or list(dataset.reader.schema))
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


def sample(request: PageRequest) -> Document:
    dataset, number = request.dataset, request.sample
    keys = keys_of(dataset, np.array([number], dtype=np.int64))
    return {
        "sample": number,
        "of": len(dataset.reader),
        "file": shown(dataset.reader.where(number)),
        **({} if keys is None else {"key": keys[0]}),
        **_neighbours(request, number),
        "cells": [describe(Cell(dataset, number, name)) for name in dataset.shows],
    }


def _neighbours(request: PageRequest, number: int) -> Document:
    """Return the samples before and after it in the list that it was opened from."""
    try:
        matches = ready_rows(request)
    except (NotReady, BatchplantError):
        # A sample is shown at once, however long a filter takes.
        matches = Rows(len(request.reader))
    # A sample may be in several rows; the request names the one that the user opened.
    position: int | None = request.integer("row", -1, -1, matches.count)
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


def find(request: PageRequest) -> Job:
    """Find a sample by number or key, and its row."""
    matches, text = ready_rows(request), request.text("sample")

    def work(progress: Progress) -> Document:
        if parse_integer(text) is not None:
            number = request.existing_sample(text)
        elif request.reader._keys() is None:
            raise OptionError(f"{text[:40]!r} is no number of a sample")
        else:
            number = request.reader.keys().index(text)
        return {"sample": number, "row": row_of(matches, number)}

    return request.job(("find", Query.of(request), text), work, wait=1.0)


def check(request: PageRequest) -> Job:
    """Verify one sample: decode it and compare all checksums."""
    number = request.sample

    def work(progress: Progress) -> Document:
        report = verify(request.reader.subset([number]), decode=True, progress=progress)
        problems = [
            {name: getattr(problem, name) for name in ("message", "field", "offset")}
            for problem in report.problems
        ]
        return {"ok": report.ok, "checks": list(report.checks), "problems": problems}

    return request.job(("check", number), work)


def download(request: PageRequest) -> Response:
    """Return the stored bytes of a cell as a download, never to be shown by the browser."""
    cell = request.cell
    file = re.sub(r"[^A-Za-z0-9_.-]", "_", f"{cell.sample}-{cell.name}")[:80]
    headers = {"Content-Disposition": f'attachment; filename="{file}.bin"'}
    return Response(cell.data.tobytes(), media_type="application/octet-stream", headers=headers)


def sheet(request: PageRequest) -> Response:
    """Return the thumbnails of many samples as one JPEG."""
    matches = ready_rows(request)
    field = request.existing_field(request.text("field"))
    size = request.integer("size", 160, 16, 512)
    start = request.integer("start", 0, 0, matches.count)
    count = min(request.integer("count", 100, 1, MAX_SHEET_TILES), max(1, MAX_SHEET_PIXELS // size**2))
    samples = matches.take(start, count)
    if not len(samples):
        return Response(status_code=204)
    jpeg, errors = request.session.images.sheet(request.dataset, field, samples, size)
    # Positions of the tiles without an image; the view of the sample shows their errors.
    return cached_response(jpeg, "image/jpeg", **{"X-Broken": json.dumps(sorted(errors))})


def image(request: PageRequest) -> Response:
    """Return one image as browsers can show it."""
    return cached_response(*for_browser(request.cell, request.integer("max", 2048, 16, 8192)))


ROUTES: Routes = {
    "dataset": dataset,
    "rows": rows_job,
    "samples": samples,
    "sample/{n}": sample,
    "find": find,
    "check/{n}": check,
    "bytes/{n}/{field:path}": download,
    "sheet": sheet,
    "image/{n}/{field:path}": image,
}
