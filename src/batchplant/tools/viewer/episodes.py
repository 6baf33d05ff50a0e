"""Episodes of robots for the page: where they begin, the curves of an episode, the images of a frame."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from ...codecs import image
from ...data.reader import Reader
from ...errors import DecodeError, NotFoundError, shortened
from ...schema.columns import I64
from ...schema.kinds import Bool, Field, Float, Image, Int, Tensor, Text
from .. import Document
from .cells import Cell, Dataset
from .pixels import for_browser

EPISODE, ACTION = "episode_index", "action"
# Fields that count frames; their curves are straight lines.
COUNTERS = frozenset(("episode_index", "frame_index", "index", "task_index", "timestamp"))
# Lines of one chart, points of each, and letters of their names and of texts.
MAX_LINES, MAX_POINTS, MAX_LETTERS = 64, 2000, 400
JPEG_QUALITY = 85


def begins_of(reader: Reader) -> I64:
    """Return the first frames of episodes; empty for a dataset that has none."""
    begins = reader.boundaries()
    if not len(reader) or (EPISODE not in reader.schema and not (len(begins) and ACTION in reader.schema)):
        return np.empty(0, np.int64)
    return np.append(0, begins)


def episode_of(dataset: Dataset, number: int) -> Document:
    """Return an episode: its frames, cameras, texts and curves."""
    reader = dataset.reader
    begins = begins_of(reader)
    if not 0 <= number < len(begins):
        raise NotFoundError(f"there is no episode {number}; there are {len(begins):,}")
    first, end = np.append(begins, len(reader))[number : number + 2].tolist()
    frames = np.arange(0, end - first, max(1, -(-(end - first) // MAX_POINTS)))
    schema = reader.schema
    names = [name for name, kind in schema.items() if 0 < _lines(kind) <= MAX_LINES and name not in COUNTERS]
    # State and action lead.
    names.sort(key=lambda name: ("state" not in name, ACTION not in name))
    columns = reader.read(first + frames, names) if names else {}
    texts = [name for name, kind in schema.items() if isinstance(kind, Text)]
    sample = {name: Cell(dataset, first, name).value() for name in texts}
    return {
        "episode": number,
        "of": len(begins),
        "first": first,
        "frames": end - first,
        "fps": _fps(reader.metadata),
        "cameras": [name for name, kind in schema.items() if is_camera(kind)],
        "texts": {name: shortened(text, MAX_LETTERS) for name, text in sample.items() if text},
        "at": frames,
        "curves": [
            {
                "field": name,
                "names": _names(reader.attributes.get(name, {}).get("names"), _lines(schema[name])),
                "values": np.asarray(columns[name], np.float64).reshape(len(frames), -1).T,
            }
            for name in names
        ],
    }


def is_camera(kind: Field) -> bool:
    """Return whether the cells of a field are images of a camera."""
    if isinstance(kind, Image):
        return not kind.mask
    shape = kind.shape if isinstance(kind, Tensor) and kind.dtype == "uint8" else ()
    return len(shape) == 3 and shape[2] in (1, 3)


def camera_image(cell: Cell, longest: int) -> tuple[bytes, str]:
    """Return the image of a camera, at most ``longest`` pixels high and wide, and its media type."""
    if not is_camera(cell.kind):
        raise DecodeError("the field is no camera", field=cell.name)
    if isinstance(cell.kind, Image):
        return for_browser(cell, longest)
    pixels = image.fit(np.asarray(cell.value()), longest)
    return image.encode(image.squeeze(pixels), "jpeg", quality=JPEG_QUALITY), "image/jpeg"


def _lines(kind: Field) -> int:
    """Return how many numbers a cell has; 0 if they are not numbers, or not always as many."""
    if kind.optional or isinstance(kind, Text):
        return 0
    if isinstance(kind, Bool | Int | Float):
        return 1
    shape = kind.shape if isinstance(kind, Tensor) and np.dtype(kind.dtype).kind in "biuf" else (None,)
    return 0 if None in shape else math.prod(size or 0 for size in shape)


def _names(names: object, count: int) -> list[str]:
    """Return a name for each number: those of the dataset if they fit, else their positions."""
    while isinstance(names, Mapping) and len(names) == 1:
        (names,) = names.values()
    if isinstance(names, list | tuple) and len(names) == count:
        return [shortened(str(name), MAX_LETTERS) for name in names]
    return [str(number) for number in range(count)]


def _fps(metadata: Mapping[str, str]) -> float | None:
    try:
        fps = float(metadata.get("fps", ""))
    except ValueError:
        return None
    return fps if 0 < fps < math.inf else None
