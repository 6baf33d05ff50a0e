"""The names that fields have in formats of detection, and their kinds."""

from __future__ import annotations

from collections.abc import Iterable

from ....schema import Boxes, Field, Image, Int, Json, Keypoints, Labels, List, Polygons, Tensor, Text

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
