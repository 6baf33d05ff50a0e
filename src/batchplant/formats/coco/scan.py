"""Scan of a COCO file: positions of images, categories and objects, in order of their images.

The file may be half a gigabyte: numbers are parsed natively, some objects at a time, and outlines and
captions stay where they are until somebody reads them.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import _native
from ...codecs import text
from ...errors import BatchplantError, DamagedError
from ...schema import Bool, Field, Float, Int, Tensor
from ...schema.columns import I64, U8, AnyArray, starts_of
from ...storage import Source, index, parse
from ..base.detection import narrowed

# Objects that are looked at at once.
ROWS_PER_CALL = 1 << 16
# What the native parser calls kinds of values.
ABSENT, NULL, TRUE, FALSE, NUMBER, STRING, ESCAPED, LIST, OBJECT = range(9)
TOP = ["info", "licenses", "images", "annotations", "categories"]
ARRAYS = {
    "image_id": "i8", "width": "i8", "height": "i8", "names": "u1", "name_offsets": "i8", "counts": "i8",
    "id": "i8", "category": "i8", "crowd": "u1", "text": "i8", "text_size": "i8", "text_kind": "u1",
    "panoptic": "u1", "panoptic_offsets": "i8", "image_extra": "i8", "image_extra_size": "i8",
    "object_extra": "i8", "object_extra_size": "i8",
}  # fmt: skip
# Real numbers: float32 where that keeps all of their digits, else float64.
REALS = ("boxes", "area", "keypoints")
IMAGE_KEYS = ("id", "file_name", "width", "height")
OBJECT_KEYS = (
    "id", "image_id", "category_id", "bbox", "area", "iscrowd", "segmentation", "keypoints", "num_keypoints",
    "caption",
)  # fmt: skip
# Rows and bytes whose quotes are counted at once.
QUOTED_ROWS, QUOTED_BYTES = 1 << 12, 1 << 26
# Of a file's other keys together; a file with more keeps them to itself.
MAX_TOP_BYTES = 1 << 26
QUOTE = ord('"')

# Kind, start and size of a value in each row.
Location = tuple[U8, I64, I64]


def scan(source: Source, report: index.Report) -> tuple[index.Arrays, index.Facts]:
    """All of it but the outlines and captions themselves."""
    data = source.view(0, source.size)
    head = data[:4096].tobytes()
    begin = np.array([len(head) - len(head.removeprefix(b"\xef\xbb\xbf").lstrip())], dtype=np.int64)
    kind, start, size, failure = _native.json_find(
        data, begin, len(data) - begin, [key.encode() for key in TOP]
    )
    if failure is not None:
        raise DamagedError("this is no JSON object of images and annotations", offset=failure[1])
    top = {key: (int(kind[n][0]), int(start[n][0]), int(size[n][0])) for n, key in enumerate(TOP)}
    if top["images"][0] != LIST:
        raise DamagedError("it has no list of images")
    images = _Rows(data, *_elements(data, top["images"]), "image")
    arrays = _images(images)
    report(source.size // 4)
    categories = _small_value(data, top["categories"], [])
    facts: dict[str, Any] = {
        "categories": _categories(categories),
        "info": _small_value(data, top["info"], {}),
        "licenses": _small_value(data, top["licenses"], []),
        "others": _unknown_keys(data, top),
    }
    names = [
        category["keypoints"]
        for category in facts["categories"]
        if isinstance(category.get("keypoints"), list)
    ]
    names = [name for name in names if name]
    points = len(names[0]) if names else 0
    objects = _Rows(data, *_elements(data, top["annotations"]), "annotation")
    object_arrays, facts["has"], facts["points"] = _objects(objects, arrays["image_id"], points)
    report(source.size)
    lost = object_arrays.pop("lost")
    facts["orphans"] = [int(lost.size), *lost[:8].tolist()]
    return {**arrays, **object_arrays}, facts


class _Rows:
    """JSON objects at known places, whose values are asked for by key."""

    def __init__(self, data: U8, starts: I64, sizes: I64, title: str) -> None:
        self.data, self.starts, self.sizes, self.title = data, starts, sizes, title

    def __len__(self) -> int:
        return len(self.starts)

    def find(self, keys: list[str]) -> dict[str, Location]:
        """Kind, start and size of the value of each key in each row."""
        parts = []
        for first in range(0, max(len(self), 1), ROWS_PER_CALL):
            chunk = slice(first, first + ROWS_PER_CALL)
            *matches, failure = _native.json_find(
                self.data, self.starts[chunk], self.sizes[chunk], [key.encode() for key in keys]
            )
            if failure is not None:
                raise DamagedError(f"{self.title} {first + failure[0]}: {failure[2]}", offset=failure[1])
            parts.append(matches)
        joined = [np.concatenate(columns, axis=1) for columns in zip(*parts, strict=True)]
        return {key: (joined[0][n], joined[1][n], joined[2][n]) for n, key in enumerate(keys)}

    def with_unknown_keys(self, places: dict[str, Location]) -> tuple[I64, I64]:
        """Start and size of the rows that have keys besides these; the size of others is 0.

        A key is quoted: it is there where quotes are left outside of the keys and values that are known.
        """
        has_unknown = np.zeros(len(self), dtype=np.bool_)
        for first in range(0, len(self), QUOTED_ROWS):
            chunk = slice(first, first + QUOTED_ROWS)
            starts, ends = self.starts[chunk], self.starts[chunk] + self.sizes[chunk]
            count = _quotes(self.data, int(starts.min()), int(ends.max()))
            accounted = np.zeros(len(starts), dtype=np.int64)
            for kind, start, size in ((column[chunk] for column in location) for location in places.values()):
                present, quoted = kind > NULL, (kind == STRING) | (kind == ESCAPED)
                inside = count(np.where(present, start, starts), np.where(present, start + size, starts))
                accounted += inside + 2 * quoted + 2 * (kind != ABSENT)
            has_unknown[chunk] = count(starts, ends) > accounted
        return np.where(has_unknown, self.starts, 0), np.where(has_unknown, self.sizes, 0)

    def numbers(self, key: str, location: Location, field: Field, default: Any) -> AnyArray:
        """The values of a key as numbers, or lists of them; ``default`` where there is none."""
        kind, start, size = location
        rows = np.flatnonzero((kind != ABSENT) & (kind != NULL))
        assert field.cell is not None
        dtype, shape = field.cell
        out = np.full((len(self), *shape), default, dtype=dtype)
        if len(rows):
            cells = text.Texts(self.data, np.ascontiguousarray(start[rows]), np.ascontiguousarray(size[rows]))
            try:
                out[rows] = text.column(field, cells)
            except BatchplantError as error:
                row = int(rows[error.sample or 0])
                raise DamagedError(
                    f"{self.title} {row}: {key}: {error.message}", offset=int(start[row])
                ) from None
        return out


def _quotes(data: U8, low: int, high: int) -> Callable[[I64, I64], I64]:
    """A function that counts the quotes from starts to ends, all of them from ``low`` to ``high``."""
    if high - low > QUOTED_BYTES:
        return lambda starts, ends: np.array(
            [
                np.count_nonzero(data[start:end] == QUOTE)
                for start, end in np.stack([starts, ends], axis=1).tolist()
            ],
            dtype=np.int64,
        )
    before = np.zeros(high - low + 1, dtype=np.int32)
    np.cumsum(data[low:high] == QUOTE, out=before[1:])
    return lambda starts, ends: (before[ends - low] - before[starts - low]).astype(np.int64)


def _unknown_keys(data: U8, top: dict[str, tuple[int, int, int]]) -> dict[str, Any]:
    parts, end = [], 0
    spans = sorted((start, size) for kind, start, size in top.values() if kind in (LIST, OBJECT))
    for start, size in spans:
        parts += [data[end:start], np.frombuffer(b"null", dtype=np.uint8)]
        end = start + size
    parts.append(data[end:])
    if sum(map(len, parts)) > MAX_TOP_BYTES:
        return {}
    with contextlib.suppress(ValueError, RecursionError, BatchplantError):
        document = parse(b"".join(part.tobytes() for part in parts).removeprefix(b"\xef\xbb\xbf"))
        return {key: value for key, value in document.items() if key not in TOP}
    return {}


def _elements(data: U8, location: tuple[int, int, int]) -> tuple[I64, I64]:
    kind, start, size = location
    if kind != LIST:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    starts, sizes, failure = _native.json_elements(data[start : start + size])
    if failure is not None:
        raise DamagedError(failure[2], offset=start + failure[1])
    return starts + start, sizes


def _small_value(data: U8, location: tuple[int, int, int], default: Any) -> Any:
    kind, start, size = location
    if kind not in (LIST, OBJECT):
        return default
    try:
        value = parse(data[start : start + size].tobytes())
    except (ValueError, RecursionError, BatchplantError):
        return default
    return value if isinstance(value, type(default)) else default


def _categories(entries: list[Any]) -> list[dict[str, Any]]:
    categories, seen = [], set()
    for entry in entries:
        number = entry.get("id") if isinstance(entry, dict) else None
        if (
            not isinstance(number, int)
            or isinstance(number, bool)
            or abs(number) >= 1 << 62
            or number in seen
        ):
            raise DamagedError(f"a category has no id of its own: {json.dumps(entry)[:80]}")
        seen.add(number)
        categories.append(entry)
    return categories


def _images(rows: _Rows) -> index.Arrays:
    places = rows.find(["id", "file_name", "width", "height", "coco_url"])
    names, offsets = _names(rows, places)
    ids = rows.numbers("id", places["id"], Int(), np.iinfo(np.int64).min)
    if len(np.unique(ids)) < len(ids):
        order = np.argsort(ids, kind="stable")
        twice = int(order[1:][np.diff(ids[order]) == 0][0])
        raise DamagedError(
            f"image {twice} has the id {ids[twice]}, as another has", offset=int(rows.starts[twice])
        )
    sizes = {key: rows.numbers(key, places[key], Int(), 0) for key in ("width", "height")}
    start, size = rows.with_unknown_keys({key: places[key] for key in IMAGE_KEYS})
    extra = {"image_extra": start, "image_extra_size": size}
    return {"image_id": ids, "names": names, "name_offsets": offsets, **sizes, **extra}


def _names(rows: _Rows, places: dict[str, Location]) -> tuple[U8, I64]:
    """The file of each image. LVIS has only addresses, whose ends are folder and file."""
    kind, start, size = places["file_name"]
    kind, start, size = kind.copy(), start.copy(), size.copy()
    addressed = np.flatnonzero((kind == ABSENT) & (places["coco_url"][0] == STRING))
    for row in addressed.tolist():
        url_start, long = int(places["coco_url"][1][row]), int(places["coco_url"][2][row])
        address = rows.data[url_start : url_start + long].tobytes()
        end = b"/".join(address.split(b"/")[-2:])
        kind[row], start[row], size[row] = STRING, url_start + long - len(end), len(end)
    bad = np.flatnonzero((kind != STRING) & (kind != ESCAPED))
    if len(bad):
        raise DamagedError(f"image {bad[0]} has no file_name", offset=int(rows.starts[bad[0]]))
    return _native.json_unescape(rows.data, start, size, (kind == ESCAPED).view(np.uint8))


def _objects(rows: _Rows, images: I64, points: int) -> tuple[index.Arrays, list[str], int]:
    """The objects, in order of the images; which keys they have; how many keypoints."""
    keys = list(OBJECT_KEYS)
    places = rows.find(["segments_info", "file_name", *keys])
    owners = rows.numbers("image_id", places["image_id"], Int(), np.iinfo(np.int64).min)
    kind, start, size = places["segments_info"]
    has: list[str] = []
    panoptic = np.empty(0, dtype=np.uint8), np.zeros(1, dtype=np.int64)
    if (kind == LIST).any():
        has.append("panoptic")
        panoptic = _files(rows, places["file_name"], _rank(owners, images), len(images))
        parts = [
            _elements(rows.data, (LIST, int(start[n]), int(size[n]))) for n in np.flatnonzero(kind == LIST)
        ]
        owners = np.repeat(owners[kind == LIST], [len(part[0]) for part in parts])
        starts, sizes = (np.concatenate([part[side] for part in parts]) for side in (0, 1))
        rows = _Rows(rows.data, starts, sizes, "segment")
        places = rows.find(keys)
    has += [key for key in keys if (places[key][0] > NULL).any()]
    boxes = narrowed(rows.numbers("bbox", places["bbox"], Tensor("float64", (4,)), 0))
    area = narrowed(rows.numbers("area", places["area"], Float("float64"), np.nan))
    with np.errstate(over="ignore", invalid="ignore"):
        area = np.where(np.isnan(area), (boxes[:, 2] * boxes[:, 3]).astype(area.dtype), area)
    keypoints, points = _keypoints(rows, places["keypoints"], points)
    extra, extra_size = rows.with_unknown_keys({key: places[key] for key in keys})
    extras = places["caption"] if "caption" in has else places["segmentation"]
    quoted = ((extras[0] == STRING) | (extras[0] == ESCAPED)).astype(np.int64)
    unordered = {
        "id": rows.numbers("id", places["id"], Int(), -1),
        "category": rows.numbers("category_id", places["category_id"], Int(), np.iinfo(np.int64).min),
        "boxes": boxes, "area": area,
        "crowd": rows.numbers("iscrowd", places["iscrowd"], Bool(), False).view(np.uint8),
        "keypoints": keypoints, "object_extra": extra, "object_extra_size": extra_size,
        "text": extras[1] - quoted, "text_size": extras[2] + 2 * quoted,
        "text_kind": extras[0],
    }  # fmt: skip
    rank = _rank(owners, images)
    # Stable: the objects of an image stay in the order of the file.
    order = np.argsort(np.where(rank < 0, len(images), rank), kind="stable")[: int((rank >= 0).sum())]
    result = {name: np.ascontiguousarray(column[order]).reshape(-1) for name, column in unordered.items()}
    result["counts"] = np.bincount(rank[rank >= 0], minlength=len(images)).astype(np.int64)
    result["lost"] = rows.starts[rank < 0]
    return {**result, "panoptic": panoptic[0], "panoptic_offsets": panoptic[1]}, has, points


def _rank(owners: I64, images: I64) -> I64:
    """The place among the images of each that is named; -1 where there is none."""
    order = np.argsort(images, kind="stable")
    position = np.searchsorted(images[order], owners)
    inside = position < len(images)
    rank = np.where(inside, order[np.minimum(position, max(len(images) - 1, 0))] if len(images) else -1, -1)
    matches = images[rank] == owners if len(images) else np.zeros(len(owners), dtype=np.bool_)
    return np.where(inside & matches, rank, -1).astype(np.int64)


def _keypoints(rows: _Rows, location: Location, points: int) -> tuple[AnyArray, int]:
    kind, start, size = location
    present = np.flatnonzero(kind == LIST)
    if not len(present):
        return np.zeros((len(rows), 0), dtype=np.float32), 0
    if not points:
        first = int(present[0])
        points = len(_elements(rows.data, (LIST, int(start[first]), int(size[first])))[0]) // 3
    if not points:
        raise DamagedError("keypoints are x, y and visibility of each", offset=int(start[present[0]]))
    return narrowed(rows.numbers("keypoints", location, Tensor("float64", (3 * points,)), 0)), points


def _files(rows: _Rows, location: Location, rank: I64, count: int) -> tuple[U8, I64]:
    """The names of the panoptic images, image by image; empty where one has none."""
    kind, start, size = location
    names: list[bytes] = [b""] * count
    for row in np.flatnonzero((kind == STRING) & (rank >= 0)).tolist():
        names[int(rank[row])] = rows.data[start[row] : start[row] + size[row]].tobytes()
    lengths = np.array([len(name) for name in names], dtype=np.int64)
    return np.frombuffer(b"".join(names), dtype=np.uint8), starts_of(lengths)


def fits(loaded: index.Index) -> bool:
    """True if an index is one that this module made."""
    arrays, facts = loaded.arrays, loaded.facts
    images, objects = len(arrays["image_id"]), len(arrays["id"])
    counts, points = arrays["counts"], int(facts["points"])
    flat = all(
        len(arrays[name]) == objects
        for name in (
            "category", "area", "crowd", "text", "text_size", "text_kind", "object_extra",
            "object_extra_size",
        )
    ) and all(
        arrays[name].ndim == 1 and arrays[name].dtype in (np.float32, np.float64) for name in REALS
    )  # fmt: skip
    names = arrays["name_offsets"]
    ends = len(names) == images + 1 and int(names[0]) == 0 and int(names[-1]) == len(arrays["names"])
    return (
        loaded.has(**ARRAYS) and flat and ends and bool((np.diff(names) >= 0).all())
        and len(arrays["width"]) == len(arrays["height"]) == len(counts) == images
        and len(arrays["image_extra"]) == len(arrays["image_extra_size"]) == images
        and len(arrays["boxes"]) == 4 * objects and len(arrays["keypoints"]) == 3 * points * objects
        and bool((counts >= 0).all()) and int(counts.sum()) == objects
        and isinstance(facts["categories"], list) and isinstance(facts["has"], list)
        and isinstance(facts["others"], dict)
    )  # fmt: skip
