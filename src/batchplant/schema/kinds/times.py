"""Points in time and spans of it. A cell is a whole number of units; ISO 8601 is its text."""

from __future__ import annotations

import dataclasses
import datetime
import re
import zoneinfo
from typing import NoReturn

from ...errors import OptionError, SchemaError
from .base import Int, is_text

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
