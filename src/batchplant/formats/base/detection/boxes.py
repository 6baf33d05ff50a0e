"""Boxes from one form into another."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....errors import BatchplantError
from ....schema import Boxes, Field, Image, Int, Json, Keypoints, Labels, List, Polygons, Tensor, Text
from ....schema.columns import AnyArray, Flags
from ....storage import NOTE_ERRORS, join, parse_object, read_beside

F64 = npt.NDArray[np.float64]
METADATA_NAME = ".batchplant.json"
# Every field that one of the formats has. Those of a row for each object begin with ``boxes``.
FIELDS: dict[str, Field] = {
    "image": Image(),
    "file_name": Text(),
    "image_id": Int(),
    "split": Int(),
    "sets": List(Text()),
    "boxes": Boxes(),
    "labels": Labels(),
    "area": Tensor("float32", (None,)),
    "iscrowd": Tensor("bool", (None,)),
    "ids": Tensor("int64", (None,)),
    "difficult": Tensor("bool", (None,)),
    "truncated": Tensor("bool", (None,)),
    "occluded": Tensor("bool", (None,)),
    "pose": List(Text()),
    "polygons": Polygons(),
    "rle": List(Text()),
    "keypoints": Keypoints(1),
    "captions": List(Text()),
    "image_extra": Json(),
    "object_extra": Json(),
    "mask": Image(mask=True),
    "panoptic": Image(mode=None, mask=True),
    "instances": Image(mask=True),
}
# What has a row for each box: where one is dropped, so is that.
_BESIDE_BOXES = (
    "labels", "area", "iscrowd", "ids", "difficult", "truncated", "occluded", "pose", "polygons", "rle",
    "keypoints", "object_extra",
)  # fmt: skip


def boxes_as(boxes: AnyArray, have: Boxes, want: Boxes, sizes: AnyArray) -> F64:
    """Boxes in another form. ``sizes``: width and height of the image of each, where one is normalized."""
    result = np.asarray(boxes, dtype=np.float64).reshape(-1, 4)
    if have.format != want.format:
        result = _of_corners(_corners(result, have.format), want.format)
    if have.normalized != want.normalized:
        scale = np.tile(np.asarray(sizes, dtype=np.float64).reshape(-1, 2), 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            result = result / scale if want.normalized else result * scale
    return result


def narrowed(values: AnyArray) -> AnyArray:
    """Real numbers as float32 where its shortest digits are those of every value, else as they are.

    473.07 has no exact float32, and its nearest float32 is written as 473.07 again: nothing is lost. Of
    473.07000732421875, which has one, that would be another number.
    """
    with np.errstate(all="ignore"):
        small = values.astype(np.float32)
        fractional = np.unique(values[~_survives(values)])
        lost = any(float(str(np.float32(value))) != value for value in fractional.tolist())
    return values if lost else small


def _survives(values: F64) -> Flags:
    """Flag values with up to seven digits that no neighbour of as many digits shares as float32."""
    exponent = np.floor(np.log10(np.abs(values)))
    up, down = 10.0 ** np.maximum(6 - exponent, 0), 10.0 ** np.maximum(exponent - 6, 0)
    seven_digits = np.rint(values * up / down) / up * down == values
    apart = np.abs(np.spacing(values.astype(np.float32))) < down / up
    usual = (np.abs(values) > 1e-15) & (np.abs(values) < 1e15)
    return (seven_digits & apart & usual) | (values == 0) | np.isnan(values)


def outside(boxes: AnyArray, kind: Boxes, sizes: AnyArray, slack: float = 1.0) -> Any:
    """Flag invalid boxes: not finite, without size, or more than ``slack`` pixels outside of the image."""
    corners = _corners(np.asarray(boxes, dtype=np.float64).reshape(-1, 4), kind.format)
    sizes = np.asarray(sizes, dtype=np.float64).reshape(-1, 2)
    if kind.normalized:
        corners = corners * np.tile(sizes, 2)
    good = np.isfinite(corners).all(axis=1)
    with np.errstate(invalid="ignore"):
        good &= (corners[:, :2] >= -slack).all(axis=1) & (corners[:, 2:] <= sizes + slack).all(axis=1)
        good &= (corners[:, 2:] > corners[:, :2]).all(axis=1)
    return ~good


def _corners(boxes: F64, format: str) -> F64:
    first, second = boxes[:, :2], boxes[:, 2:]
    if format == "xyxy":
        return boxes
    start = first if format == "xywh" else first - second / 2
    return np.concatenate([start, start + second], axis=1)


def _of_corners(corners: F64, format: str) -> F64:
    start, end = corners[:, :2], corners[:, 2:]
    if format == "xyxy":
        return corners
    first = start if format == "xywh" else (start + end) / 2
    return np.concatenate([first, end - start], axis=1)


class DetectionMetadata(NamedTuple):
    """Names that our writer leaves in the folder; none where others made it."""

    # The fields, and those of them that are float64 (others are float32); the classes, in order.
    detection: Sequence[str] = ()
    classes: Sequence[str] = ()
    float64: Sequence[str] = ()

    def write(self, folder: Path) -> None:
        (folder / METADATA_NAME).write_text(json.dumps(self._asdict()))

    @classmethod
    def read(cls, folder: str) -> DetectionMetadata:
        try:
            document = parse_object(read_beside(join(folder, METADATA_NAME)) or b"{}")
        except (*NOTE_ERRORS, BatchplantError):
            return cls()
        detection, classes, float64 = (_names(document.get(key)) for key in cls._fields)
        return cls(detection if "image" in detection else (), classes, float64)


def _names(value: object) -> Sequence[str]:
    return value if isinstance(value, list) and all(isinstance(name, str) for name in value) else ()


def boxes_field(
    format: str, fields: Iterable[str], *, normalized: bool = False, dtype: str = "float32"
) -> Boxes:
    """Boxes, with those of these fields that have a row for each."""
    beside = tuple(name for name in _BESIDE_BOXES if name in set(fields))
    return Boxes(format, normalized=normalized, labels=beside, dtype=dtype)


def left_out(names: Iterable[str]) -> tuple[str, ...]:
    """The fields of other formats of detection that one with these has no place for."""
    supported = set(names)
    return tuple(name for name in FIELDS if name not in supported)
