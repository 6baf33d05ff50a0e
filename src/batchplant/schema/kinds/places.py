"""What lies in an image: boxes, labels, keypoints, polygons. Where it is cut or turned, they go along.

Positions are in pixels of the stored image, x to the right and y down, counted from its upper left corner.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

from ...errors import OptionError, brief
from .base import Field, Json, Tensor, _check_dtype, is_text

BOX_FORMATS = ("xyxy", "xywh", "cxcywh")
# What other libraries call them.
_ELSEWHERE = {
    "coco": "xywh", "pascal_voc": "xyxy", "voc": "xyxy", "yolo": "cxcywh with normalized=True",
    "albumentations": "xyxy with normalized=True", "cxcywhn": "cxcywh with normalized=True",
}  # fmt: skip
# How the names of keypoints tell a pair that a mirror exchanges.
_SIDES = ("left", "right"), ("Left", "Right"), ("LEFT", "RIGHT")


def _name(value: Any, description: str) -> str:
    if not isinstance(value, str) or not value or not is_text(value):
        raise OptionError(f"{description} is the name of a field, not {value!r}")
    return value


def check_box_format(format: str) -> str:
    if format not in BOX_FORMATS:
        equivalent = _ELSEWHERE.get(str(format).lower())
        hint = f"; what others call {format} is {equivalent}" if equivalent else ""
        raise OptionError(f"the format of boxes is {', '.join(BOX_FORMATS)}, not {format!r}{hint}")
    return format


@dataclasses.dataclass(frozen=True)
class Boxes(Tensor):
    """Boxes of objects in the image field ``of``: four numbers for each.

    format: ``xyxy`` (left, top, right, bottom), ``xywh`` (left, top, width, height) or ``cxcywh`` (middle,
    width, height). normalized: in parts of the image's width and height, not in pixels. labels: the fields
    that have a row for each box, such as their classes: where a box is dropped, so are theirs. dtype:
    floating-point type of the numbers. optional: whether values may be missing (None).
    """

    wide: ClassVar[type[Field] | None] = Tensor
    format: str = "xyxy"
    normalized: bool = dataclasses.field(default=False, kw_only=True)
    of: str = dataclasses.field(default="image", kw_only=True)
    labels: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)
    dtype: str = dataclasses.field(default="float32", kw_only=True)
    shape: tuple[int | None, ...] = dataclasses.field(default=(None, 4), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "f", "Boxes"))
        check_box_format(self.format)
        if not isinstance(self.normalized, bool):
            raise OptionError(f"normalized is True or False, not {self.normalized!r}")
        _name(self.of, "of")
        labels = (self.labels,) if isinstance(self.labels, str) else tuple(self.labels)
        object.__setattr__(self, "labels", tuple(_name(label, "each of the labels") for label in labels))

    def renamed(self, names: Mapping[str, str]) -> Field:
        labels = tuple(names.get(label, label) for label in self.labels)
        return dataclasses.replace(self, of=names.get(self.of, self.of), labels=labels)


@dataclasses.dataclass(frozen=True)
class Labels(Tensor):
    """The classes of the objects in a sample: a whole number for each, an index into ``names``.

    ids: the numbers that a COCO file gives these classes (its category ids), one for each name. Values are
    indices all the same, so two fields that differ in ``ids`` alone are equal. dtype: integer type of the
    indices. optional: whether values may be missing (None).
    """

    wide: ClassVar[type[Field] | None] = Tensor
    names: tuple[str, ...] | None = None
    dtype: str = dataclasses.field(default="int64", kw_only=True)
    ids: tuple[int, ...] | None = dataclasses.field(default=None, kw_only=True, compare=False, repr=False)
    shape: tuple[int | None, ...] = dataclasses.field(default=(None,), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "iu", "Labels"))
        if self.names is not None:
            object.__setattr__(self, "names", tuple(str(name) for name in self.names))
            if not all(map(is_text, self.names)):
                raise OptionError("a class has a name that is no text")
        if self.ids is not None:
            ids = tuple(self.ids)
            are_integers = all(
                isinstance(class_id, int) and not isinstance(class_id, bool) for class_id in ids
            )
            if not are_integers or len(set(ids)) < len(ids) or len(ids) != len(self.names or ()):
                raise OptionError("ids are whole numbers, another one for each of the names")
            object.__setattr__(self, "ids", ids)

    def __str__(self) -> str:
        if self.names is None or len(self.names) <= 4:
            return str(dataclasses.replace(self, ids=None)) if self.ids else super().__str__()
        return f"Labels({len(self.names)} classes: {', '.join(map(brief, self.names[:3]))}, …)"


@dataclasses.dataclass(frozen=True)
class Keypoints(Tensor):
    """Keypoints of objects in the image field ``of``: ``points`` for each object, as (x, y, visibility).

    visibility: 0 where a point is not there; False: points are (x, y). names: what the points are. swap: the
    pairs that a mirror exchanges, by number or name; default: those whose names differ in left and right.
    normalized: in parts of the image's width and height, not in pixels. dtype: floating-point type of the
    numbers. optional: whether values may be missing (None).
    """

    wide: ClassVar[type[Field] | None] = Tensor
    points: int | None = None
    names: tuple[str, ...] = ()
    swap: tuple[tuple[int, int], ...] | None = dataclasses.field(default=None, kw_only=True)
    visibility: bool = dataclasses.field(default=True, kw_only=True)
    normalized: bool = dataclasses.field(default=False, kw_only=True)
    of: str = dataclasses.field(default="image", kw_only=True)
    dtype: str = dataclasses.field(default="float32", kw_only=True)
    shape: tuple[int | None, ...] = dataclasses.field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "dtype", _check_dtype(self.dtype, "f", "Keypoints"))
        _name(self.of, "of")
        names = tuple(self.names)
        if not all(isinstance(name, str) and is_text(name) for name in names) or len(set(names)) < len(names):
            raise OptionError(f"names of keypoints are texts, none of them twice, not {names!r}")
        points = len(names) if self.points is None else self.points
        if not isinstance(points, int) or isinstance(points, bool) or not 0 < points < 1 << 20:
            raise OptionError(f"an object has how many keypoints? Keypoints(17), not {self.points!r}")
        if names and len(names) != points:
            raise OptionError(f"{points} keypoints have {len(names)} names")
        for option in ("visibility", "normalized"):
            if not isinstance(getattr(self, option), bool):
                raise OptionError(f"{option} is True or False, not {getattr(self, option)!r}")
        object.__setattr__(self, "points", points)
        object.__setattr__(self, "names", names)
        object.__setattr__(self, "swap", swap_pairs(self.swap, points, names))
        object.__setattr__(self, "shape", (None, points, 3 if self.visibility else 2))

    def renamed(self, names: Mapping[str, str]) -> Field:
        return dataclasses.replace(self, of=names.get(self.of, self.of))


def swap_pairs(
    flip: Iterable[Any] | None, points: int, names: tuple[str, ...]
) -> tuple[tuple[int, int], ...]:
    """The numbers of the keypoints that a mirror exchanges."""
    if flip is None:
        places = {name: number for number, name in enumerate(names)}
        return tuple(
            (number, places[mirrored])
            for name, number in places.items()
            for left, right in _SIDES
            if left in name and (mirrored := name.replace(left, right)) in places
        )
    pairs = []
    try:
        for pair in flip:
            first, second = (names.index(end) if isinstance(end, str) else int(end) for end in pair)
            pairs.append((first, second))
    except (TypeError, ValueError):
        raise OptionError(f"swap is pairs of keypoints, by number or name, not {flip!r}") from None
    ends = [end for pair in pairs for end in pair]
    if len(set(ends)) < len(ends) or (ends and not 0 <= min(ends) <= max(ends) < points):
        raise OptionError(f"swap names keypoints from 0 to {points - 1}, each at most once, not {pairs}")
    return tuple(pairs)


@dataclasses.dataclass(frozen=True)
class Polygons(Json):
    """Outlines of objects in the image field ``of``: for each object a list of rings, as COCO has them.

    A ring is ``[x, y, x, y, …]``; an array of shape (points, 2) is taken too. normalized: in parts of the
    image's width and height, not in pixels. An object may have no ring. optional: whether values may be
    missing (None).
    """

    wide: ClassVar[type[Field] | None] = Json
    of: str = dataclasses.field(default="image", kw_only=True)
    normalized: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        _name(self.of, "of")
        if not isinstance(self.normalized, bool):
            raise OptionError(f"normalized is True or False, not {self.normalized!r}")

    def renamed(self, names: Mapping[str, str]) -> Field:
        return dataclasses.replace(self, of=names.get(self.of, self.of))
