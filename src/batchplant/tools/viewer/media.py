"""Answers about media: sounds, videos, episodes, arrays, slides, masks, trees, and overlays of images."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import numpy as np
from starlette.responses import Response, StreamingResponse

from ...codecs.media.video import encoding_of
from ...data.tensors import is_tensors
from ...errors import MissingLibraryError, OptionError
from ...schema.columns import U8
from .. import Document
from . import arrays, overlays, pixels, recordings
from .cells import Cell, Dataset, cells_of
from .render import tree_node, value_at
from .session import CACHED, Job, PageRequest, Routes, cached_response

# Samples whose overlays one request may ask for.
MAX_OVERLAID_SAMPLES = 500
# Bytes of one answer to a range request; players ask on from where it ends.
MAX_RANGE_BYTES = 4 << 20


def _ranged(request: PageRequest, data: U8 | memoryview, media_type: str) -> Response:
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


# -- sounds and videos ---------------------------------------------------------------------------------


def _window(request: PageRequest) -> recordings.Window:
    cell, start = request.cell, request.integer("start", 0, 0, 1 << 31)
    key = "sound", cell.sample, cell.name, start
    return request.session.cache.get(key, lambda: recordings.window(cell.data, start))


def _movie(request: PageRequest) -> recordings.Movie:
    """Return the video of a request; cached for requests for its next range or frame."""
    cell = request.cell
    return request.session.cache.get(("video", cell.sample, cell.name), lambda: recordings.Movie(cell.data))


def play_sound(request: PageRequest) -> Response:
    return _ranged(request, memoryview(recordings.wav(_window(request))), "audio/wav")


def wave(request: PageRequest) -> Response:
    return cached_response(recordings.wave(_window(request), *_size(request, 96)), "image/png")


def spectrogram(request: PageRequest) -> Response:
    return cached_response(recordings.spectrogram(_window(request), *_size(request, 160)), "image/png")


def _size(request: PageRequest, height: int) -> tuple[int, int]:
    return request.integer("width", 800, 16, 2048), request.integer("height", height, 16, 512)


def play_video(request: PageRequest) -> Response:
    data = _movie(request).data
    played = recordings.MEDIA_TYPES.get(encoding_of(data) or "")
    if played is None:
        raise OptionError("browsers have no player for this encoding")
    return _ranged(request, data, played)


def frame(request: PageRequest) -> Response:
    number, longest = request.integer("at", 0, 0, 1 << 40), _longest(request)
    return cached_response(recordings.frame(_movie(request), number, longest), "image/jpeg")


def strip(request: PageRequest) -> Response:
    count, height = request.integer("count", 12, 1, 40), request.integer("height", 72, 16, 200)
    return cached_response(recordings.strip(_movie(request), count, height), "image/jpeg")


def _longest(request: PageRequest) -> int:
    return request.integer("max", 640, 16, recordings.MAX_FRAME_PIXELS)


def episode(request: PageRequest) -> Job:
    """Return the cameras and the curves of an episode."""
    number = request.in_path("n")
    return request.job(("episode", number), lambda progress: recordings.episode_of(request.dataset, number))


def camera(request: PageRequest) -> Response:
    return cached_response(*recordings.camera_image(request.cell, _longest(request)))


# -- arrays and slides ---------------------------------------------------------------------------------


def array_slice(request: PageRequest) -> Response:
    source = arrays.lazy_array(request.cell, every=bool(request.text("every")))
    axes = request.integers("axes", arrays.default_axes(source.shape))
    middle = tuple(size // 2 if axis not in axes else 0 for axis, size in enumerate(source.shape))
    position = request.integers("at", middle)
    facts, values = arrays.slice_of(source, axes, position)
    header = {**facts, "axes": axes, "at": position, "whole": source.shape, "names": source.axes}
    # NaN and infinity are only counted: JSON has no name for them.
    headers = {"X-Slice": json.dumps(header, allow_nan=False)}
    return cached_response(values, "application/octet-stream", **headers)


def heat_map(request: PageRequest) -> Response:
    """Return the middle slice of an array as an image, for the grid."""
    source = arrays.lazy_array(request.cell)
    axes = arrays.default_axes(source.shape)
    facts, values = arrays.slice_of(source, axes, [size // 2 for size in source.shape])
    if len(facts["shape"]) != 2 or not facts["values"]:
        return Response(status_code=204)
    across = np.frombuffer(values, dtype=f"<{facts['type']}").reshape(facts["shape"]).astype(np.float64)
    colours = pixels.colours_of_values(across, facts["low"] or 0, facts["high"] or 0)
    return cached_response(pixels.encode_png(colours), "image/png")


def array_statistics(request: PageRequest) -> Job:
    cell = request.cell
    return request.job(
        ("statistics", cell.sample, cell.name),
        lambda progress: arrays.statistics(arrays.lazy_array(cell), progress),
    )


def tensors(request: PageRequest) -> Job:
    """List a page of the tensors of a model, searched and sorted."""
    reader = request.reader
    if not is_tensors(reader.schema):
        raise OptionError("this is no model", path=reader.path)
    job = request.job(("tensors",), lambda progress: arrays.list_tensors(reader, progress))
    if job.pending:
        return job
    start, count = request.integer("start", 0, 0, 1 << 40), request.integer("count", 200, 1, 1000)
    selection = request.text("search"), request.text("sort"), bool(request.text("down"))
    return Job.ready(arrays.select_tensors(job.value, *selection, start, count))


def _slide(request: PageRequest) -> arrays.Slide:
    number = request.in_path("n")
    return request.session.cache.get(("slide", number), lambda: arrays.slide_of(request.reader, number))


def slide(request: PageRequest) -> Document:
    """Describe a large image: its levels, and its planes."""
    return _slide(request).describe()


def slide_tile(request: PageRequest) -> Response:
    level, row, column = (request.in_path(name) for name in ("level", "row", "column"))
    tile = _slide(request).tile(level, row, column, request.integers("at", ()))
    return cached_response(tile, "image/jpeg")


# -- masks, trees, overlays ----------------------------------------------------------------------------


def mask(request: PageRequest) -> Response:
    longest = request.integer("max", 1024, 16, pixels.MAX_MASK_PIXELS)
    value = request.cell.value()
    if value is None:
        return Response(status_code=204)
    colours = pixels.colour_classes(pixels.classes(value), longest, over=bool(request.text("over")))
    return cached_response(pixels.encode_png(colours), "image/png")


def branch(request: PageRequest) -> Document:
    try:
        path = json.loads(request.params.get("path", "[]"))
    except (ValueError, RecursionError):
        path = None
    if not isinstance(path, list) or not all(isinstance(step, str | int) for step in path):
        raise OptionError("path has to be a list of names and numbers")
    return tree_node(value_at(request.cell.value(), path), request.integer("start", 0, 0, 1 << 40))


def _overlays_job(request: PageRequest) -> Job:
    return request.job(("overlays",), lambda progress: overlays.find_overlays(request.dataset))


def overlay_fields(request: PageRequest) -> Job:
    """List the fields that can be drawn over the images."""
    job = _overlays_job(request)
    return job if job.pending else Job.ready([vars(overlay) for overlay in job.value])


def overlay_shapes(request: PageRequest) -> Document:
    """Return the shapes to draw over these samples, in the order of the overlays."""
    job = _overlays_job(request)
    texts = request.text("samples").split(",")[:MAX_OVERLAID_SAMPLES]
    numbers = [request.existing_sample(text) for text in texts if text]
    if job.pending or not numbers:
        return {}
    fields: list[overlays.Overlay] = job.value
    cells = cells_of(request.dataset, numbers, overlays.fields_of(fields))
    return {
        str(number): [_shapes(request.dataset, overlay, cells[row]) for overlay in fields]
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


ROUTES: Routes = {
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
