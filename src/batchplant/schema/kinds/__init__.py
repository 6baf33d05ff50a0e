"""The kinds of fields, each a frozen dataclass. Everybody may import them, from ``schema``.

A kind may be a narrower form of another: a Time is an Int, a Decimal a Text, a List a Json, Boxes a Tensor.
Its cells are those of the wider kind, so what is done with the cells of that is right for it, too; the values
differ.
"""

from __future__ import annotations

import dataclasses
import datetime
import re
import zoneinfo
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NoReturn

from ...errors import OptionError, SchemaError, brief
from .base import (
    KINDS,
    MOST_BYTES,
    Audio,
    Bool,
    Bytes,
    Decimal,
    Field,
    Float,
    Image,
    Int,
    Json,
    List,
    Sparse,
    Struct,
    Tensor,
    Text,
    Uuid,
    Video,
    _check_dtype,
    check_optional,
    checked_fields,
    is_text,
)

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


# Units in a second. A day is D.
UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
DAY = 86_400

_COUNT = re.compile(r"[+-]?\d{1,20}")
_CLOCK = r"(\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?"
_DATE = re.compile(
    rf"([+-]?\d{{3,19}})-(\d\d)-(\d\d)(?:[T ]{_CLOCK}(?: ?(Z|[+-]\d\d(?::?\d\d)?))?)?", re.ASCII
)
_DAYTIME = re.compile(_CLOCK, re.ASCII)
_SPAN = re.compile(
    r"([+-]?)P(?:(\d+)W)?(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+)(?:[.,](\d+))?S)?)?", re.ASCII
)
_OFFSET = re.compile(r"([+-])(\d\d):?(\d\d)?", re.ASCII)


@dataclasses.dataclass(frozen=True)
class _Count(Int):
    """Whole numbers that count units of time."""

    unit: str
    dtype: str = dataclasses.field(default="int64", init=False, repr=False)
    names: tuple[str, ...] | None = dataclasses.field(default=None, init=False, repr=False)

    def _exact(self, seconds: int, fraction: str | None, text: str) -> int:
        """Seconds and the digits behind their point as a number of units."""
        digits = (fraction or "").rstrip("0")
        if self.unit == "D":
            if digits or seconds % DAY:
                raise SchemaError(f"{text!r} is finer than a day")
            return seconds // DAY
        places = len(str(UNITS[self.unit])) - 1
        if len(digits) > places:
            raise SchemaError(f"{text!r} is finer than {self.unit}")
        return seconds * UNITS[self.unit] + int(digits.ljust(places, "0") or 0)

    @property
    def counts(self) -> range:
        """The counts that there are. Days are those that tables have 32 bits for."""
        limit = 2**31 if self.unit == "D" else 2**63
        return range(-limit, limit)

    def _within(self, count: int, text: str) -> int:
        if count not in self.counts:
            raise SchemaError(f"{text!r} is out of range for {self}")
        return count

    def _no(self, text: str, example: str) -> NoReturn:
        raise SchemaError(f"{text!r} is not {self}; write it as {example}")


@dataclasses.dataclass(frozen=True)
class Time(_Count):
    """A point in time, a date (unit D) or a time of day (``clock``), as a whole number of units.

    ``unit``: s, ms, us, ns or D. A point in time or a date is counted from 1970 on, a time of day from
    midnight. ``tz``: the name of a time zone, or an offset such as +02:00; the count is that of UTC then, and
    the zone says how it is shown. Without one it is what a clock on the wall shows, wherever that hangs.

    optional: whether values may be missing (None).
    """

    tz: str | None = None
    clock: bool = dataclasses.field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        if self.unit not in (*UNITS, "D"):
            raise OptionError(f"the unit of a Time is D, {', '.join(UNITS)}, not {self.unit!r}")
        if self.tz is not None and not (isinstance(self.tz, str) and self.tz and is_text(self.tz)):
            raise OptionError(f"tz is the name of a time zone, not {self.tz!r}")
        if not isinstance(self.clock, bool):
            raise OptionError(f"clock is True or False, not {self.clock!r}")
        if (self.tz is not None or self.clock) and (self.unit == "D" or (self.tz is not None and self.clock)):
            raise OptionError("a date and a time of day have no time zone, and a date has no clock")

    @property
    def counts(self) -> range:
        return range(DAY * UNITS[self.unit]) if self.clock else super().counts

    @property
    def zone(self) -> datetime.tzinfo | None:
        """The time zone; UTC, which is the same points in time, where this machine does not know it."""
        return None if self.tz is None else zone_of(self.tz) or datetime.UTC

    def parse(self, text: str) -> int:
        """The number of units that ISO 8601 text means: ``2024-05-31``, ``2024-05-31T12:00:00.5+02:00``.

        Without an offset it is a time in the field's own zone. A bare whole number is the count itself. Text
        that is no time, or finer than the unit, is a SchemaError.
        """
        text = text.strip()
        if _COUNT.fullmatch(text):
            return self._within(int(text), text)
        if self.clock:
            match = _DAYTIME.fullmatch(text) or self._no(text, "12:30:00")
            return self._exact(_seconds(text, *match.group(1, 2, 3)), match[4], text)
        match = _DATE.fullmatch(text) or self._no(text, "2024-05-31" + "T12:30:00" * (self.unit != "D"))
        year, month, day = (int(part) for part in match.group(1, 2, 3))
        seconds = _days(text, year, month, day) * DAY
        if match[4] is not None:
            seconds += _seconds(text, *match.group(4, 5, 6))
        if match[8] is not None:
            if self.tz is None:
                raise SchemaError(f"{text!r} has a time zone, and the field has none")
            seconds -= 0 if match[8] == "Z" else _offset(text, match[8])
        elif self.tz is not None:
            seconds -= self._shift(text, seconds)
        return self._within(self._exact(seconds, match[7], text), text)

    def _shift(self, text: str, seconds: int) -> int:
        """The seconds by which the field's zone is ahead of UTC at this time of its own clocks."""
        zone = zone_of(self.tz or "")
        if zone is None:
            raise SchemaError(f"{text!r} needs an offset such as Z: the zone {self.tz} is unknown here")
        try:
            local = datetime.datetime(1970, 1, 1, tzinfo=zone) + datetime.timedelta(seconds=seconds)
            return int((zone.utcoffset(local) or datetime.timedelta(0)).total_seconds())
        except OverflowError:
            raise SchemaError(f"{text!r} needs an offset such as Z: no zone reaches that far") from None


@dataclasses.dataclass(frozen=True)
class Duration(_Count):
    """A span of time, as a whole number of units.

    unit: s, ms, us or ns. optional: whether values may be missing (None).
    """

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise OptionError(f"the unit of a Duration is {', '.join(UNITS)}, not {self.unit!r}")

    def parse(self, text: str) -> int:
        """The number of units that ISO 8601 text means: ``PT1.5S``, ``-P1DT2H``. A number is the count."""
        text = text.strip()
        if _COUNT.fullmatch(text):
            return self._within(int(text), text)
        match = _SPAN.fullmatch(text)
        parts = match.groups() if match else ()
        if match is None or not any(parts[1:]) or text.endswith("T"):
            self._no(text, "PT1.5S")
        weeks, days, hours, minutes, seconds = (int(part or 0) for part in parts[1:6])
        whole_seconds = (weeks * 7 + days) * DAY + hours * 3600 + minutes * 60 + seconds
        count = self._exact(whole_seconds, parts[6], text)
        return self._within(-count if parts[0] == "-" else count, text)


def zone_of(name: str) -> datetime.tzinfo | None:
    """The time zone of a name or an offset; None where nobody here knows it."""
    match = _OFFSET.fullmatch(name)
    if match:
        minutes = int(match[2]) * 60 + int(match[3] or 0)
        if minutes >= 24 * 60:
            return None
        return datetime.timezone(datetime.timedelta(minutes=-minutes if match[1] == "-" else minutes))
    if name.upper() in ("UTC", "Z"):
        return datetime.UTC
    try:
        return zoneinfo.ZoneInfo(name)
    # Names come from files: they may be anything, also that of a folder.
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


def _days(text: str, year: int, month: int, day: int) -> int:
    """Days from 1970 on, by the calendar of today for all times."""
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    lengths = (31, 29 if leap else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    if not 1 <= month <= 12 or not 1 <= day <= lengths[month - 1]:
        raise SchemaError(f"{text!r}: there is no such day")
    before = year - 1
    return (
        before * 365 + before // 4 - before // 100 + before // 400 + sum(lengths[: month - 1]) + day - 719163
    )


def _seconds(text: str, hours: str, minutes: str, seconds: str | None) -> int:
    parts = int(hours), int(minutes), int(seconds or 0)
    if parts[0] > 23 or max(parts[1:]) > 59:
        raise SchemaError(f"{text!r}: there is no such time of day")
    return parts[0] * 3600 + parts[1] * 60 + parts[2]


def _offset(text: str, offset: str) -> int:
    zone = zone_of(offset)
    if zone is None:
        raise SchemaError(f"{text!r}: there is no such offset")
    return int((zone.utcoffset(None) or datetime.timedelta(0)).total_seconds())


for _helper in [name for name in KINDS if name.startswith("_")]:
    del KINDS[_helper]

# What a format that leaves nothing out says it holds.
EVERY_KIND: tuple[type[Field], ...] = tuple(KINDS.values())

__all__ = [
    "BOX_FORMATS", "EVERY_KIND", "KINDS", "MOST_BYTES", "Audio", "Bool", "Boxes", "Bytes", "Decimal",
    "Duration", "Field", "Float", "Image", "Int", "Json", "Keypoints", "Labels", "List", "Polygons", "Sparse",
    "Struct", "Tensor", "Text", "Time", "Uuid", "Video", "check_optional", "checked_fields", "is_text",
]  # fmt: skip
