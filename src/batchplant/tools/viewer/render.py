"""JSON of cells for the page: a summary for grids and tables, a description for the view of one sample.

Each way of showing a field (:func:`~.cells.display_of`) has two functions in ``_RENDERERS``: the first is
cheap and small, the second is complete but bounded. :func:`summarize` and :func:`describe` call them and add
what all cells have: ``field``, ``shows``, ``missing`` and ``error``, and in full the kind, size, location and
first bytes.
"""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codecs import image as image_codec
from ...codecs import video as video_codec
from ...errors import BatchplantError, DecodeError, NotFoundError, shortened, shown
from ...schema.columns import AnyArray
from ...schema.kinds import Boxes, Field, Float, Int, Json, Labels, Sparse, Tensor
from .. import Document
from . import arrays, pixels, recordings
from .cells import Cell

# First bytes of a cell that its description has.
MAX_HEX_BYTES = 256
# Letters of a text in a summary and in a description.
SUMMARY_LETTERS, MAX_LETTERS = 200, 100_000
# Letters of a class name in a description, and of each name in a list of class names.
CLASS_NAME_LETTERS, LISTED_NAME_LETTERS = 2000, 200
# Integers up to this are exact in JavaScript.
MAX_EXACT_INTEGER = 2**53
# Numbers of an array that a description lists.
MAX_LISTED_NUMBERS = 1024
# Length of at least two axes of an array that the grid shows as a heat map.
MIN_HEAT_MAP_SIDE = 8
# Objects whose classes a summary and a description name.
SUMMARY_OBJECTS, MAX_OBJECTS = 24, 1000
# Tokens in a summary and in a description.
SUMMARY_TOKENS, MAX_TOKENS = 48, 8192
# Limits of one answer about a tree: nodes, entries of one container, letters of one text, and depth.
MAX_NODES, MAX_ENTRIES, MAX_NODE_LETTERS, MAX_DEPTH = 1000, 100, 2000, 24
# Numbers of an embedding, and texts in the name of one that has more than three.
MAX_MAP_NUMBERS = 4096
MAP_NAMES = ("obsm.", "umap", "tsne", "pca", "embed", "latent")


def summarize(cell: Cell) -> Document:
    """Return the JSON of a cell in a grid or a table."""
    return _render(cell, 0)


def describe(cell: Cell) -> Document:
    """Return the JSON of a cell in the view of its sample, with its kind, size, location and first bytes."""
    kind = cell.kind
    description: Document = {"kind": str(kind), "optional": kind.optional}
    description |= {
        name: value
        for name in ("dtype", "shape", "encoding", "mode")
        if (value := getattr(kind, name, None)) is not None
    }
    description |= _render(cell, 1)
    if "missing" in description:
        return description
    try:
        description["place"] = _location(cell)
        if cell.loaded or not cell.large:
            data = cell.data
            description["size"] = len(data)
            description["hex"] = data[:MAX_HEX_BYTES].tobytes().hex()
    except (BatchplantError, OSError, MemoryError) as error:
        description.setdefault("error", _message(error))
    return description


def is_heat_map(kind: Field) -> bool:
    """Return whether the grid shows cells as heat maps: matrices and volumes of one size."""
    if not isinstance(kind, Tensor) or kind.cell is None or np.dtype(kind.dtype).kind not in "biuf":
        return False
    return sum(size is not None and size >= MIN_HEAT_MAP_SIDE for size in kind.shape) >= 2


def is_map(name: str, kind: Field) -> bool:
    """Return whether a field is an embedding, which has a map of points."""
    if not isinstance(kind, Tensor) or kind.optional or np.dtype(kind.dtype).kind != "f":
        return False
    if len(kind.shape) != 1 or not 2 <= (kind.shape[0] or 0) <= MAX_MAP_NUMBERS:
        return False
    return kind.shape[0] in (2, 3) or any(text in name.lower() for text in MAP_NAMES)


def image_size(cell: Cell) -> Document:
    """Return height and width of an image as it is shown, with its EXIF orientation applied."""
    raw = cell.pixels_shape
    if raw is not None:
        return {"height": raw[0], "width": raw[1]}
    data = cell.data
    header = image_codec.header(data)
    if not header.encoding:
        raise DecodeError("these bytes are no image that batchplant knows" if len(data) else "it is empty")
    # EXIF orientations 5 to 8 swap the axes.
    if image_codec.orientation(data) > 4:
        return {"height": header.width, "width": header.height}
    return {"height": header.height, "width": header.width}


def _render(cell: Cell, detail: int) -> Document:
    rendered: Document = {"field": cell.name, "shows": cell.shows}
    try:
        if cell.missing:
            return {**rendered, "missing": True}
        return {**rendered, **_RENDERERS.get(cell.shows, _PLAIN)[detail](cell)}
    except (BatchplantError, OSError, MemoryError) as error:
        return {**rendered, "error": _message(error)}


def _message(error: Exception) -> str:
    if isinstance(error, BatchplantError):
        # Without the location: the page shows the message there.
        return error.message
    return "it does not fit into memory" if isinstance(error, MemoryError) else str(error)


def _location(cell: Cell) -> Document:
    """Return the file and byte range of a cell, or the ranges to read for it where the format knows them."""
    reader, sample = cell.dataset.reader, cell.sample
    spans = reader.spans(cell.name, [sample])
    if spans is not None and len(spans) and spans.size[0] >= 0:
        return {
            "file": shown(spans.files[spans.file[0]]),
            "start": int(spans.start[0]),
            "size": int(spans.size[0]),
            "exact": True,
        }
    ranges = reader.ranges([cell.name], [sample])
    if ranges is None or not len(ranges):
        return {"file": shown(reader.where(sample))}
    return {
        "file": shown(ranges.files[ranges.file[0]]),
        "start": int(ranges.start.min()),
        "size": int(ranges.size.clip(0).sum()),
        "runs": len(ranges),
        "exact": False,
    }


# -- numbers, classes, texts, bytes --------------------------------------------------------------------


def _summarize_plain(cell: Cell) -> Document:
    return _render_plain(cell, SUMMARY_LETTERS)


def _describe_plain(cell: Cell) -> Document:
    return _render_plain(cell, MAX_LETTERS)


def _render_plain(cell: Cell, max_letters: int) -> Document:
    kind = cell.kind
    if cell.shows == "bytes":
        data = cell.data
        return {"size": len(data), "hex": data[:16].tobytes().hex(), "text": f"{len(data):,} bytes"}
    value = cell.value()
    if isinstance(kind, Int) and kind.names:
        number = int(value)
        if not 0 <= number < len(kind.names):
            return {"value": number, "text": f"{number} (no class)"}
        return {"value": number, **_cut(kind.names[number], min(max_letters, CLASS_NAME_LETTERS))}
    if isinstance(value, bool | np.bool_):
        return {"value": bool(value), "text": "true" if value else "false"}
    if isinstance(kind, Float) and isinstance(value, float):
        # Only the digits that this dtype holds, not those of float64.
        return {"value": value, "text": str(np.dtype(kind.dtype).type(value))}
    if isinstance(value, int):
        return {"value": value if abs(value) < MAX_EXACT_INTEGER else str(value), "text": str(value)}
    if isinstance(value, str) and not isinstance(kind, Json):
        return _cut(value, max_letters)
    return _cut(_as_text(value), max_letters)


def _cut(text: str, max_letters: int) -> Document:
    """Return a text, or its beginning and its length."""
    if len(text) <= max_letters:
        return {"text": text}
    return {"text": text[:max_letters], "letters": len(text), "cut": True}


def _as_text(value: Any) -> str:
    """Return a value of any kind as one line."""
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value).replace("T", " ")
    if isinstance(value, datetime.datetime):
        return value.isoformat(" ")
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, np.ndarray):
        head = np.array2string(value.reshape(-1)[:8], separator=", ", max_line_width=1000)[1:-1]
        return f"{value.dtype} {value.shape} [{head}{', …' if value.size > 8 else ''}]"
    return str(value)


# -- images and masks ----------------------------------------------------------------------------------


def _describe_image(cell: Cell) -> Document:
    size = image_size(cell)
    raw = cell.pixels_shape
    if raw is not None:
        return {**size, "encoding": "raw", "channels": raw[2]}
    header = image_codec.header(cell.data)
    return {**size, "encoding": header.encoding, "mode": header.mode, "bits": header.bits}


def _describe_mask(cell: Cell) -> Document:
    return {**_describe_image(cell), "legend": pixels.legend(pixels.classes(cell.value()))}


# -- sounds and videos ---------------------------------------------------------------------------------


def _summarize_sound(cell: Cell) -> Document:
    seconds = recordings.sound_facts(cell.data)["seconds"]
    return {"seconds": seconds, "size": len(cell.data), "text": f"{seconds:.1f} s"}


def _describe_sound(cell: Cell) -> Document:
    return {**_summarize_sound(cell), **recordings.sound_facts(cell.data)}


def _summarize_video(cell: Cell) -> Document:
    data = cell.data
    encoding = video_codec.encoding_of(data)
    if encoding is None:
        raise DecodeError("these bytes are no video that batchplant knows" if len(data) else "it is empty")
    return {"size": len(data), "encoding": encoding, "text": f"{encoding}, {len(data):,} bytes"}


def _describe_video(cell: Cell) -> Document:
    return {**_summarize_video(cell), **recordings.video_facts(recordings.Movie(cell.data))}


# -- arrays, boxes, labels -----------------------------------------------------------------------------


def _summarize_array(cell: Cell) -> Document:
    heat_map = {"map": True} if is_heat_map(cell.kind) else {}
    if not cell.loaded or getattr(cell.kind, "dtype", None) is None:
        sizes = "×".join("?" if size is None else str(size) for size in getattr(cell.kind, "shape", ()))
        return {"text": f"{getattr(cell.kind, 'dtype', 'array')} {sizes}".strip(), **heat_map}
    if isinstance(cell.kind, Sparse):
        return {"text": f"{len(cell.value().values):,} values in {cell.kind.shape[0]:,} columns"}
    array = np.asarray(cell.value())
    return {**_cut(_as_text(array), SUMMARY_LETTERS), "shape": array.shape, **heat_map}


def _describe_array(cell: Cell) -> Document:
    array = arrays.lazy_array(cell)
    description: Document = {
        "dtype": str(array.dtype),
        "shape": array.shape,
        "axes": arrays.default_axes(array.shape),
        # Whether the cells of all samples form one array, too.
        "every": cell.kind.cell is not None and len(cell.dataset.reader) > 1,
    }
    if math.prod(array.shape) <= MAX_LISTED_NUMBERS:
        description["values"] = _listed(np.asarray(array.take((slice(None),) * len(array.shape))))
    return description


def _listed(values: AnyArray) -> list[Any]:
    flat = values.reshape(-1)
    if flat.dtype.kind in "cmMV":
        return [str(value) for value in flat]
    if flat.dtype.kind == "f":
        # Only the digits that this dtype holds.
        return [float(str(value)) for value in flat]
    return [value if abs(int(value)) < MAX_EXACT_INTEGER else str(value) for value in flat.tolist()]


def _summarize_boxes(cell: Cell) -> Document:
    count = int(cell.value().reshape(-1, 4).shape[0])
    return {"count": count, "text": f"{count} box{'' if count == 1 else 'es'}"}


def _describe_boxes(cell: Cell) -> Document:
    kind = cell.kind
    description = _describe_array(cell)
    if not isinstance(kind, Boxes):
        return description
    schema = cell.dataset.reader.schema
    for name in kind.labels:
        labels = schema.get(name)
        if isinstance(labels, Labels) and labels.names and "values" in description:
            classes = cell.sibling(name).value().reshape(-1).tolist()
            description["names"] = _class_names(labels, classes)
            break
    return {**description, "format": kind.format}


def _summarize_labels(cell: Cell) -> Document:
    classes = cell.value().reshape(-1)
    text = ", ".join(_class_names(cell.kind, classes[:SUMMARY_OBJECTS].tolist())) or "none"
    cut = {"cut": True} if classes.size > SUMMARY_OBJECTS else {}
    return {**_cut(text, SUMMARY_LETTERS), **cut, "of": classes.size}


def _describe_labels(cell: Cell) -> Document:
    classes = cell.value().reshape(-1)
    first = classes[:MAX_OBJECTS].tolist()
    names = _class_names(cell.kind, first)
    return {**_describe_array(cell), "names": names, "classes": first, "of": classes.size}


def _class_names(kind: Field, classes: list[int]) -> list[str]:
    names = (kind.names if isinstance(kind, Labels) else None) or ()
    return [
        shortened(names[number], LISTED_NAME_LETTERS) if 0 <= number < len(names) else f"{number} (no class)"
        for number in classes
    ]


# -- tokens and trees ----------------------------------------------------------------------------------


def _summarize_tokens(cell: Cell) -> Document:
    tokens = cell.value().reshape(-1)
    first = tokens[:SUMMARY_TOKENS].tolist()
    tokenizer = cell.dataset.tokenizer
    text = " ".join(map(str, first)) if tokenizer is None else tokenizer.text(first)
    cut = {"cut": True} if tokens.size > SUMMARY_TOKENS else {}
    return {**_cut(text, SUMMARY_LETTERS), **cut, "of": tokens.size}


def _describe_tokens(cell: Cell) -> Document:
    tokens = cell.value().reshape(-1)
    first = tokens[:MAX_TOKENS].tolist()
    description: Document = {"tokens": first, "of": tokens.size}
    tokenizer = cell.dataset.tokenizer
    if tokenizer is not None:
        description |= {"pieces": tokenizer.pieces(first), "decoded": tokenizer.text(first)}
    return description


def _describe_tree(cell: Cell) -> Document:
    return {"tree": tree_node(cell.value())}


_Renderer = Callable[[Cell], Document]
_PLAIN: tuple[_Renderer, _Renderer] = (_summarize_plain, _describe_plain)
# Display type to the functions that summarize and describe a cell.
_RENDERERS: dict[str, tuple[_Renderer, _Renderer]] = {
    "image": (image_size, _describe_image),
    "mask": (image_size, _describe_mask),
    "sound": (_summarize_sound, _describe_sound),
    "video": (_summarize_video, _describe_video),
    "tree": (_summarize_plain, _describe_tree),
    "tokens": (_summarize_tokens, _describe_tokens),
    "array": (_summarize_array, _describe_array),
    "boxes": (_summarize_boxes, _describe_boxes),
    "labels": (_summarize_labels, _describe_labels),
}


# -- nested values: a tree that the page fetches in parts, as branches are opened ----------------------


def tree_node(value: Any, start: int = 0) -> Document:
    """Return a value: ``{"is": "text" | "number" | …, "text"}``, or a container with its first entries.

    A container has ``of``, how many entries there are, ``start`` and ``entries``: pairs of key and node.
    The page asks for further entries by their path and ``start``.
    """
    return _TreeBuilder(MAX_NODES).node(value, start, 0)


def value_at(value: Any, path: Sequence[str | int]) -> Any:
    """Return the part of a value at a path; raise NotFoundError where there is none."""
    for step in path:
        if isinstance(value, dict) and isinstance(step, str) and step in value:
            value = value[step]
        elif isinstance(value, list | tuple) and step in range(len(value)):
            value = value[int(step)]
        else:
            raise NotFoundError("there is nothing at this place of the value")
    return value


class _TreeBuilder:
    def __init__(self, max_nodes: int) -> None:
        self.nodes_left = max_nodes

    def node(self, value: Any, start: int, depth: int) -> Document:
        self.nodes_left -= 1
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if isinstance(value, dict):
            return self._container(
                "object", [(str(key), child) for key, child in value.items()], start, depth
            )
        if isinstance(value, list | tuple):
            return self._container("list", list(enumerate(value)), start, depth)
        return leaf(value)

    def _container(self, name: str, items: list[tuple[str | int, Any]], start: int, depth: int) -> Document:
        entries = []
        for key, child in items[start : start + MAX_ENTRIES]:
            # The container that was asked for always comes with its entries.
            if self.nodes_left <= 0 and depth:
                break
            expand = depth + 1 < MAX_DEPTH and self.nodes_left > 0
            entries.append([key, self.node(child, 0, depth + 1) if expand else _collapsed(child)])
        return {"is": name, "of": len(items), "start": start, "entries": entries}


def _collapsed(value: Any) -> Document:
    if isinstance(value, dict | list | tuple):
        return {
            "is": "object" if isinstance(value, dict) else "list",
            "of": len(value),
            "start": 0,
            "entries": [],
        }
    return leaf(value)


def leaf(value: Any) -> Document:
    if value is None:
        return {"is": "null", "text": "null"}
    if isinstance(value, bool):
        return {"is": "bool", "text": "true" if value else "false"}
    if isinstance(value, int | float):
        odd = isinstance(value, float) and not math.isfinite(value)
        return {"is": "number", "text": str(value) if not odd else "NaN" if math.isnan(value) else f"{value}"}
    if isinstance(value, str):
        return {
            "is": "text",
            "text": value[:MAX_NODE_LETTERS],
            **({"letters": len(value)} if len(value) > MAX_NODE_LETTERS else {}),
        }
    if isinstance(value, bytes):
        return {"is": "bytes", "text": f"{len(value):,} bytes"}
    return {"is": type(value).__name__.lower(), "text": str(value)[:MAX_NODE_LETTERS]}
