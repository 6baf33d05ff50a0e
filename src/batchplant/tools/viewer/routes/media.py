"""Answers about media cells: sounds, videos, episodes, arrays, masks, trees, and overlays of images."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping

import numpy as np
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ....codecs.media.video import encoding_of
from ....data.tensors import is_tensors
from ....errors import MissingLibraryError, OptionError
from ....schema.columns import U8
from ... import Document
from ..cells import Cell, Dataset, cells_of
from ..episodes import camera_image, episode_of
from ..jobs import Job, Progress
from ..media import arrays, colours, overlays, recordings, tree
from ..session import Session, integer_param, parse_integer
from ..slides import Slide, slide_of
from . import CACHED, cached

# Samples whose overlays one request may ask for.
MAX_OVERLAID_SAMPLES = 500
# Axes of an array: NumPy has no more.
MAX_AXES = 64
# Bytes of one answer to a range request; players ask on from where it ends.
MAX_RANGE_BYTES = 4 << 20


def _cell(session: Session, request: Request) -> Cell:
    """Return the cell of a request, without a copy where its file is mapped."""
    dataset = session.dataset
    number = session.sample(dataset, request.path_params["n"])
    name = session.field(dataset, request.path_params["field"])
    return cells_of(dataset, [number], [name])[0][name]


def _key(cell: Cell, *extra: Hashable) -> tuple[Hashable, ...]:
    return cell.sample, cell.name, *extra


def _ranged(request: Request, data: U8 | memoryview, media_type: str) -> Response:
    """Answer with the range of bytes that a player asks for (HTTP Range), else with all."""
    size = len(data)
    headers = {**CACHED, "Accept-Ranges": "bytes"}
    match = re.fullmatch(r"bytes=(\d{0,18})-(\d{0,18})", request.headers.get("range", "").strip())
    if match is None or not any(match.groups()):
        headers["Content-Length"] = str(size)
        return StreamingResponse(_pieces(data), media_type=media_type, headers=headers)
    first, last = match.groups()
    start = int(first) if first else max(0, size - int(last))
    stop = min(size, int(last) + 1 if first and last else size)
    if start >= stop:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    stop = min(stop, start + MAX_RANGE_BYTES)
    headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return Response(bytes(data[start:stop]), 206, media_type=media_type, headers=headers)


def _pieces(data: U8 | memoryview) -> Iterator[bytes]:
    return (bytes(data[start : start + MAX_RANGE_BYTES]) for start in range(0, len(data), MAX_RANGE_BYTES))


# -- sound ---------------------------------------------------------------------------------------------------


def _window(session: Session, request: Request) -> recordings.Window:
    cell = _cell(session, request)
    start = integer_param(request.query_params, "start", 0, 0, 1 << 31)
    return session.sounds.get(_key(cell, start), lambda: recordings.window(cell.data, start))


def play_sound(session: Session, request: Request) -> Response:
    return _ranged(request, memoryview(recordings.wav(_window(session, request))), "audio/wav")


def wave(session: Session, request: Request) -> Response:
    width, height = _size(request, 800, 96)
    return cached(recordings.wave(_window(session, request), width, height), "image/png")


def spectrogram(session: Session, request: Request) -> Response:
    width, height = _size(request, 800, 160)
    return cached(recordings.spectrogram(_window(session, request), width, height), "image/png")


def _size(request: Request, width: int, height: int) -> tuple[int, int]:
    params = request.query_params
    return integer_param(params, "width", width, 16, 2048), integer_param(params, "height", height, 16, 512)


# -- video ---------------------------------------------------------------------------------------------------


def _movie(session: Session, request: Request) -> recordings.Movie:
    """Return the video of a request; cached for requests for its next range or frame."""
    cell = _cell(session, request)
    return session.videos.get(_key(cell), lambda: recordings.Movie(cell.data))


def play_video(session: Session, request: Request) -> Response:
    data = _movie(session, request).data
    played = recordings.MEDIA_TYPES.get(encoding_of(data) or "")
    if played is None:
        raise OptionError("browsers have no player for this encoding")
    return _ranged(request, data, played)


def frame(session: Session, request: Request) -> Response:
    params = request.query_params
    shown = _movie(session, request)
    data = recordings.frame(
        shown,
        integer_param(params, "at", 0, 0, 1 << 40),
        integer_param(params, "max", 640, 16, recordings.MAX_SIDE_PIXELS),
    )
    return cached(data, "image/jpeg")


def strip(session: Session, request: Request) -> Response:
    params = request.query_params
    shown = _movie(session, request)
    data = recordings.strip(
        shown, integer_param(params, "count", 12, 1, 40), integer_param(params, "height", 72, 16, 200)
    )
    return cached(data, "image/jpeg")


# -- episodes ------------------------------------------------------------------------------------------------


def episode(session: Session, request: Request) -> Job:
    """Return the cameras and the curves of an episode."""
    number = parse_integer(request.path_params["n"])
    return session.jobs.get(
        ("episode", number), lambda progress: episode_of(session.dataset, -1 if number is None else number)
    )


def camera(session: Session, request: Request) -> Response:
    longest = integer_param(request.query_params, "max", 640, 16, recordings.MAX_SIDE_PIXELS)
    return cached(*camera_image(_cell(session, request), longest))


# -- arrays --------------------------------------------------------------------------------------------------


def array_slice(session: Session, request: Request) -> Response:
    params = request.query_params
    source = arrays.lazy_array(_cell(session, request), every=bool(params.get("every")))
    axes = _integers(params, "axes", arrays.default_axes(source.shape))
    position = _integers(
        params, "at", tuple(size // 2 if axis not in axes else 0 for axis, size in enumerate(source.shape))
    )
    facts, values = arrays.slice_of(source, axes, position)
    header = {**facts, "axes": axes, "at": position, "whole": source.shape, "names": source.axes}
    # NaN and infinity are only counted: JSON has no name for them.
    return cached(values, "application/octet-stream", **{"X-Slice": json.dumps(header, allow_nan=False)})


def heat_map(session: Session, request: Request) -> Response:
    """Return the middle slice of an array as an image, for the grid."""
    source = arrays.lazy_array(_cell(session, request))
    axes = arrays.default_axes(source.shape)
    facts, values = arrays.slice_of(source, axes, [size // 2 for size in source.shape])
    if len(facts["shape"]) != 2 or not facts["values"]:
        return Response(status_code=204)
    across = np.frombuffer(values, dtype=f"<{facts['type']}").reshape(facts["shape"]).astype(np.float64)
    return cached(
        colours.encode_png(colours.of_values(across, facts["low"] or 0, facts["high"] or 0)), "image/png"
    )


def _integers(params: Mapping[str, str], name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    text = params.get(name)
    if text is None:
        return default
    numbers = [parse_integer(part) for part in text.split(",")[:MAX_AXES]] if text else []
    if None in numbers or text.count(",") >= MAX_AXES:
        raise OptionError(f"{name} has to be whole numbers with commas between them")
    return tuple(number for number in numbers if number is not None)


def array_statistics(session: Session, request: Request) -> Job:
    cell = _cell(session, request)

    def work(progress: Progress) -> Document:
        return arrays.statistics(arrays.lazy_array(cell), progress)

    return session.jobs.get(("statistics", *_key(cell)), work)


def tensors(session: Session, request: Request) -> Job:
    """List a page of the tensors of a model, searched and sorted."""
    params = request.query_params
    dataset = session.dataset
    if not is_tensors(dataset.reader.schema):
        raise OptionError("this is no model", path=dataset.reader.path)

    def work(progress: Progress) -> list[Document]:
        return arrays.list_tensors(dataset.reader, np.arange(len(dataset.reader)), progress)

    job = session.jobs.get(("tensors",), work)
    if not job.finished.is_set() or job.error is not None:
        return job
    start, count = integer_param(params, "start", 0, 0, 1 << 40), integer_param(params, "count", 200, 1, 1000)
    selection = params.get("search", ""), params.get("sort", ""), bool(params.get("down"))
    return Job.ready(arrays.select_tensors(job.value, *selection, start, count))


# -- slides --------------------------------------------------------------------------------------------------


def _slide(session: Session, request: Request) -> Slide:
    number = _number(request, "n")
    return session.slides.get(number, lambda: slide_of(session.dataset.reader, number))


def _number(request: Request, name: str) -> int:
    number = parse_integer(request.path_params[name])
    return -1 if number is None else number


def slide(session: Session, request: Request) -> Document:
    """Describe a large image: its levels, and its planes."""
    return _slide(session, request).describe()


def slide_tile(session: Session, request: Request) -> Response:
    level, row, column = (_number(request, name) for name in ("level", "row", "column"))
    at = _integers(request.query_params, "at", ())
    return cached(_slide(session, request).tile(level, row, column, at), "image/jpeg")


# -- masks, trees, overlays ----------------------------------------------------------------------------------


def mask(session: Session, request: Request) -> Response:
    cell = _cell(session, request)
    longest = integer_param(request.query_params, "max", 1024, 16, colours.MAX_SIDE_PIXELS)
    over = bool(request.query_params.get("over"))
    value = cell.value()
    if value is None:
        return Response(status_code=204)
    return cached(
        colours.encode_png(colours.colour_classes(colours.classes(value), longest, over=over)), "image/png"
    )


def branch(session: Session, request: Request) -> Document:
    try:
        path = json.loads(request.query_params.get("path", "[]"))
    except (ValueError, RecursionError):
        path = None
    if not isinstance(path, list) or not all(isinstance(step, str | int) for step in path):
        raise OptionError("path has to be a list of names and numbers")
    value = tree.value_at(_cell(session, request).value(), path)
    return tree.node(value, integer_param(request.query_params, "start", 0, 0, 1 << 40))


def _overlays_job(session: Session, dataset: Dataset) -> Job:
    return session.jobs.get(("overlays",), lambda progress: overlays.find_overlays(dataset))


def overlay_fields(session: Session, request: Request) -> Job:
    """List the fields that can be drawn over the images."""
    job = _overlays_job(session, session.dataset)
    return (
        job
        if not job.finished.is_set() or job.error is not None
        else Job.ready([vars(overlay) for overlay in job.value])
    )


def overlay_shapes(session: Session, request: Request) -> Document:
    """Return the shapes to draw over these samples, in the order of the overlays."""
    params = request.query_params
    dataset = session.dataset
    job = _overlays_job(session, dataset)
    numbers = [
        session.sample(dataset, text)
        for text in params.get("samples", "").split(",")[:MAX_OVERLAID_SAMPLES]
        if text
    ]
    if not job.finished.is_set() or job.error is not None or not numbers:
        return {}
    fields: list[overlays.Overlay] = job.value
    cells = cells_of(dataset, numbers, overlays.fields_of(fields))
    return {
        str(number): [_shapes(dataset, overlay, cells[row]) for overlay in fields]
        for row, number in enumerate(numbers)
    }


def _shapes(dataset: Dataset, overlay: overlays.Overlay, cells: dict[str, Cell]) -> Document:
    try:
        return {} if overlay.draws == "mask" else dict(overlays.shapes_of(dataset, overlay, cells))
    # The view of the sample shows the error. A missing library concerns all samples.
    except MissingLibraryError:
        raise
    except Exception as error:
        return {"error": str(error)}


ROUTES = {
    "sound/{n}/{field:path}": play_sound,
    "wave/{n}/{field:path}": wave,
    "spectrogram/{n}/{field:path}": spectrogram,
    "video/{n}/{field:path}": play_video,
    "frame/{n}/{field:path}": frame,
    "strip/{n}/{field:path}": strip,
    "episode/{n}": episode,
    "camera/{n}/{field:path}": camera,
    "slide/{n}": slide,
    "slide/{n}/{level}/{row}/{column}": slide_tile,
    "slice/{n}/{field:path}": array_slice,
    "heat/{n}/{field:path}": heat_map,
    "statistics/{n}/{field:path}": array_statistics,
    "tensors": tensors,
    "mask/{n}/{field:path}": mask,
    "tree/{n}/{field:path}": branch,
    "overlays": overlay_fields,
    "drawn": overlay_shapes,
}
