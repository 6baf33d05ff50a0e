"""Sounds, videos, arrays, masks, trees, and what is drawn over images."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from ....data.tensors import is_tensors
from ....errors import MissingLibraryError, OptionError
from ..cells.cell import Cell, cells_of
from ..jobs import Job, Progress
from ..media import colours, masks, model, overlays, png, slices, sound, statistics, tree, video
from ..ranged import ranged
from ..session import Session, Side, digits, whole

KEPT = {"Cache-Control": "private, max-age=600"}
# Samples whose overlays one request may ask for.
MOST = 500
# Axes of an array: NumPy has no more.
MAX_AXES = 64


def _cell(session: Session, request: Request) -> Cell:
    """The cell of a request, in place where it lies in a mapped file."""
    side = session.side(request.query_params)
    number = session.sample(side, request.path_params["n"])
    name = session.field(side, request.path_params["field"])
    return cells_of(side, [number], [name])[0][name]


def _key(cell: Cell, *rest: Any) -> tuple[Any, ...]:
    return cell.side.name, cell.sample, cell.name, *rest


def _png(data: bytes) -> Response:
    return Response(data, media_type="image/png", headers=KEPT)


def _jpeg(data: bytes) -> Response:
    return Response(data, media_type="image/jpeg", headers=KEPT)


# -- sound ---------------------------------------------------------------------------------------------------


def _window(session: Session, request: Request) -> sound.Window:
    cell = _cell(session, request)
    start = whole(request.query_params, "start", 0, 0, 1 << 31)
    return session.windows.get(_key(cell, start), lambda: sound.window(cell.data, start))


def play(session: Session, request: Request) -> Response:
    return ranged(request, memoryview(sound.wav(_window(session, request))), "audio/wav")


def wave(session: Session, request: Request) -> Response:
    width, height = _size(request, 800, 96)
    return _png(sound.wave(_window(session, request), width, height))


def spectrogram(session: Session, request: Request) -> Response:
    width, height = _size(request, 800, 160)
    return _png(sound.spectrogram(_window(session, request), width, height))


def _size(request: Request, width: int, height: int) -> tuple[int, int]:
    params = request.query_params
    return whole(params, "width", width, 16, 2048), whole(params, "height", height, 16, 512)


# -- video ---------------------------------------------------------------------------------------------------


def _movie(session: Session, request: Request) -> video.Movie:
    """Kept, so that the next part or frame of it is not read or looked for again."""
    cell = _cell(session, request)
    return session.clips.get(_key(cell), lambda: video.Movie(cell.data))


def movie(session: Session, request: Request) -> Response:
    data = _movie(session, request).data
    played = video.PLAYED.get(video.encoding_of(data) or "")
    if played is None:
        raise OptionError("browsers have no player for this encoding")
    return ranged(request, data, played)


def frame(session: Session, request: Request) -> Response:
    params = request.query_params
    shown = _movie(session, request)
    return _jpeg(
        video.frame(shown, whole(params, "at", 0, 0, 1 << 40), whole(params, "max", 640, 16, video.LARGEST))
    )


def strip(session: Session, request: Request) -> Response:
    params = request.query_params
    shown = _movie(session, request)
    return _jpeg(video.strip(shown, whole(params, "count", 12, 1, 40), whole(params, "height", 72, 16, 200)))


# -- arrays --------------------------------------------------------------------------------------------------


def array_slice(session: Session, request: Request) -> Response:
    params = request.query_params
    source = slices.source(_cell(session, request), every=bool(params.get("every")))
    axes = _numbers(params, "axes", slices.drawn_axes(source.shape))
    at = _numbers(
        params, "at", tuple(size // 2 if axis not in axes else 0 for axis, size in enumerate(source.shape))
    )
    facts, values = slices.take(source, axes, at)
    told = {**facts, "axes": axes, "at": at, "whole": source.shape, "names": source.axes}
    # What is not a number is counted, and JSON has no name for it.
    headers = {**KEPT, "X-Slice": json.dumps(told, allow_nan=False)}
    return Response(values, media_type="application/octet-stream", headers=headers)


def heat(session: Session, request: Request) -> Response:
    """The slice in the middle of an array as an image, for the grid."""
    source = slices.source(_cell(session, request))
    axes = slices.drawn_axes(source.shape)
    facts, values = slices.take(source, axes, [size // 2 for size in source.shape])
    if len(facts["shape"]) != 2 or not facts["values"]:
        return Response(status_code=204)
    across = np.frombuffer(values, dtype=f"<{facts['type']}").reshape(facts["shape"]).astype(np.float64)
    return _png(png.encode(colours.of_values(across, facts["low"] or 0, facts["high"] or 0)))


def _numbers(params: Any, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    text = params.get(name)
    if text is None:
        return default
    found = [digits(one) for one in text.split(",")[:MAX_AXES]] if text else []
    if None in found or text.count(",") >= MAX_AXES:
        raise OptionError(f"{name} has to be whole numbers with commas between them")
    return tuple(one for one in found if one is not None)


def array_statistics(session: Session, request: Request) -> Job:
    cell = _cell(session, request)

    def work(told: Progress) -> dict[str, Any]:
        return statistics.of_source(slices.source(cell), told)

    return session.jobs.get(("statistics", *_key(cell)), work, wait=0.2)


def tensors(session: Session, request: Request) -> Job:
    """The tensors of a model: those that a search leaves, in order, some at a time."""
    params = request.query_params
    side = session.side(params)
    if not is_tensors(side.reader.schema):
        raise OptionError("this is no model", path=side.reader.path)

    def work(told: Progress) -> list[dict[str, Any]]:
        return model.tensors(side.reader, np.arange(len(side.reader)), told)

    job = session.jobs.get(("tensors", side.name), work, wait=0.2)
    if not job.finished.is_set() or job.error is not None:
        return job
    start, count = whole(params, "start", 0, 0, 1 << 40), whole(params, "count", 200, 1, 1000)
    wanted = params.get("search", ""), params.get("sort", ""), bool(params.get("down"))
    return Job.ready(model.chosen(job.value, *wanted, start, count))


# -- masks, trees, overlays ----------------------------------------------------------------------------------


def mask(session: Session, request: Request) -> Response:
    cell = _cell(session, request)
    largest = whole(request.query_params, "max", 1024, 16, masks.LARGEST)
    over = bool(request.query_params.get("over"))
    value = cell.value()
    if value is None:
        return Response(status_code=204)
    return _png(png.encode(masks.coloured(masks.classes(value), largest, over=over)))


def branch(session: Session, request: Request) -> dict[str, Any]:
    try:
        path = json.loads(request.query_params.get("path", "[]"))
    except (ValueError, RecursionError):
        path = None
    if not isinstance(path, list) or not all(isinstance(one, str | int) for one in path):
        raise OptionError("path has to be a list of names and numbers")
    value = tree.at(_cell(session, request).value(), path)
    return tree.node(value, whole(request.query_params, "start", 0, 0, 1 << 40))


def _overlays(session: Session, side: Side) -> Job:
    return session.jobs.get(("overlays", side.name), lambda told: overlays.found(side), wait=0.2)


def overlaid(session: Session, request: Request) -> Job:
    """Which fields belong onto the images."""
    job = _overlays(session, session.side(request.query_params))
    return (
        job
        if not job.finished.is_set() or job.error is not None
        else Job.ready([vars(one) for one in job.value])
    )


def drawn(session: Session, request: Request) -> dict[str, Any]:
    """What there is to draw over these samples, in the order of the overlays."""
    params = request.query_params
    side = session.side(params)
    job = _overlays(session, side)
    numbers = [session.sample(side, text) for text in params.get("samples", "").split(",")[:MOST] if text]
    if not job.finished.is_set() or job.error is not None or not numbers:
        return {}
    found: list[overlays.Overlay] = job.value
    cells = cells_of(side, numbers, overlays.fields_of(found))
    return {
        str(number): [_drawn(side, one, cells[row]) for one in found]
        for row, number in enumerate(numbers)
    }  # fmt: skip


def _drawn(side: Side, overlay: overlays.Overlay, cells: dict[str, Cell]) -> dict[str, Any]:
    try:
        return {} if overlay.draws == "mask" else dict(overlays.drawn(side, overlay, cells))
    # The view of the sample says what is wrong; a missing library is wrong with all.
    except MissingLibraryError:
        raise
    except Exception as error:
        return {"error": str(error)}


ROUTES = {
    "sound/{n}/{field:path}": play, "wave/{n}/{field:path}": wave,
    "spectrogram/{n}/{field:path}": spectrogram,
    "video/{n}/{field:path}": movie, "frame/{n}/{field:path}": frame, "strip/{n}/{field:path}": strip,
    "slice/{n}/{field:path}": array_slice, "heat/{n}/{field:path}": heat,
    "statistics/{n}/{field:path}": array_statistics,
    "tensors": tensors, "mask/{n}/{field:path}": mask, "tree/{n}/{field:path}": branch, "overlays": overlaid,
    "drawn": drawn,
}  # fmt: skip
