"""Values for people and for machines: one line about a value, a cell of a table, JSON."""

from __future__ import annotations

import base64
import datetime
import json
from typing import Any

import numpy as np
from rich.cells import cell_len, set_cell_size

from ..codecs.media.audio import Sound
from ..codecs.media.image import mode_of
from ..codecs.media.video import Clip
from ..errors import BatchplantError, brief
from ..schema import Bool, Boxes, Duration, Field, Float, Image, Int, Json, Labels, Schema, Tensor, Text, Time
from ..schema.columns import AnyArray
from ..tools import Document
from .terminal import human_size, printable

TEXT_SHOWN = 300
VALUES_SHOWN = 8
# Boxes and classes of one sample.
OBJECTS_SHOWN = 5
CLASSES_SHOWN = 6
# In JSON, arrays up to this size stand there whole.
VALUES_WHOLE = 64
MISSING = "–"
# A column of a table is not cut below this.
NARROWEST = 8


def as_text(value: Any, field: Field) -> str:
    """One line about a value."""
    if isinstance(value, np.ndarray):
        if isinstance(field, Boxes | Labels):
            return _objects(value, field)
        return _image(value, field) if isinstance(field, Image) else _array(value)
    if isinstance(value, Clip):
        return f"{human_size(len(value))} {printable(value.described())}"
    if isinstance(value, Sound):
        return f"{human_size(len(value))} {_sound(value)}"
    if isinstance(value, bytes):
        return f"{human_size(len(value))} {value[:16].hex(' ')}{' …' if len(value) > 16 else ''}"
    if isinstance(value, str):
        return repr(value) if len(value) <= TEXT_SHOWN else repr(value[:TEXT_SHOWN]) + " …"
    text = as_cell(value, field) if value is not None else "None"
    return text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + " …"


def as_cell(value: Any, field: Field) -> str:
    """A number, a date or a text as it stands in a table."""
    names = getattr(field, "names", None)
    if value is None:
        return MISSING
    if isinstance(value, np.datetime64 | np.timedelta64):
        return moment(value)
    if isinstance(value, datetime.datetime):
        return moment(value.isoformat())
    if names and isinstance(value, int) and 0 <= value < len(names):
        return f"{value} ({brief(names[value])})"
    if isinstance(field, Float) and isinstance(value, float):
        # As many digits as the number has, not those of a wider one.
        return str(np.dtype(field.dtype).type(value))
    if isinstance(value, str) and not isinstance(field, Json):
        return printable(value if len(value) <= TEXT_SHOWN else value[:TEXT_SHOWN] + " …")
    if isinstance(field, Json):
        text = json.dumps(value, ensure_ascii=False, default=str)
        return printable(text if len(text) <= TEXT_SHOWN else text[:TEXT_SHOWN] + " …")
    return str(value)


def as_json(value: Any) -> Any:
    """Whole values where they are small, a description where they are arrays, sounds or videos."""
    if isinstance(value, np.ndarray):
        described: Document = {"dtype": str(value.dtype), "shape": list(value.shape)}
        if value.size <= VALUES_WHOLE and value.dtype.kind in "biuf":
            described["values"] = value.tolist()
        elif value.size <= VALUES_WHOLE and value.dtype.kind in "mM":
            described["values"] = value.astype(str).tolist()
        return described | statistics(value)
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, np.datetime64 | np.timedelta64):
        return str(value)
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, dict):
        return {name: as_json(item) for name, item in value.items()}
    if isinstance(value, bytes):
        document: Document = {"bytes": len(value), "base64": base64.b64encode(value[:64]).decode()}
        try:
            if isinstance(value, Sound):
                keys: tuple[str, ...] = ("encoding", "rate", "channels", "frames", "seconds")
            else:
                keys = ("encoding", "codec", "width", "height", "frames", "fps", "duration")
            return document | {key: getattr(value, key) for key in keys if isinstance(value, Sound | Clip)}
        except BatchplantError as error:
            return document | {"error": str(error)}
    return value


def moment(value: object) -> str:
    """A date with its time where it has one; a length of time with its unit."""
    day, _, time = str(value).partition("T")
    # Of a fraction only what is there; midnight is not said.
    time = time.rstrip("0").rstrip(".") if "." in time else time
    return f"{day} {time}" if time.strip("0:") else day


def statistics(values: AnyArray) -> Document:
    """Least, mean and largest of the values that are numbers, and how many are not; of dates no mean."""
    if values.dtype.kind in "mM":
        good = values[~np.isnat(values)]
        ends: Document = {"min": str(good.min()), "max": str(good.max())} if good.size else {}
        return ends | ({"missing": int(values.size - good.size)} if good.size < values.size else {})
    if values.dtype.kind not in "iuf" or not values.size:
        return {}
    wrong = int(np.isnan(values).sum()) if values.dtype.kind == "f" else 0
    good = values[~np.isnan(values)] if wrong else values
    if not good.size:
        return {"nan": wrong}
    with np.errstate(all="ignore"):
        mean = float(good.mean(dtype=np.float64))
    summary = {"min": good.min().item(), "mean": mean, "max": good.max().item()}
    return summary | ({"nan": wrong} if wrong else {})


def _array(value: AnyArray) -> str:
    head = value.reshape(-1)[:VALUES_SHOWN]
    if value.dtype.kind in "mM":
        inside = ", ".join(map(moment, head))
    else:
        inside = np.array2string(head, separator=", ", threshold=VALUES_SHOWN, max_line_width=1000)[1:-1]
    ellipsis = ", …" if value.size > VALUES_SHOWN else ""
    summary = statistics(value) if value.size > 1 and value.dtype.kind not in "mM" else {}
    parts = [f"{key} {summary[key]:.4g}" for key in ("min", "mean", "max") if key in summary]
    parts += [f"{summary['nan']:,} NaN"] if "nan" in summary else []
    return (
        f"{value.dtype} {value.shape} [{inside.strip()}{ellipsis}]{'  ' if parts else ''}{', '.join(parts)}"
    )


def _objects(value: AnyArray, field: Boxes | Labels) -> str:
    """The boxes of a sample, or the classes of its objects, one by one."""
    shown = value[:OBJECTS_SHOWN]
    ellipsis = ", …" if len(value) > OBJECTS_SHOWN else ""
    if isinstance(field, Boxes):
        parts = [" ".join(f"{number:.4g}" for number in box) for box in shown.tolist()]
        many = f"{len(value)} box{'' if len(value) == 1 else 'es'} ({field.format})"
        return f"{many}: {', '.join(parts)}{ellipsis}" if parts else many
    names = field.names or ()
    named = [
        f"{number} ({brief(names[number])})" if 0 <= number < len(names) else str(number)
        for number in shown.tolist()
    ]
    return ", ".join(named) + ellipsis if named else "none"


def _image(value: AnyArray, field: Image) -> str:
    height, width = value.shape[:2]
    details = f"mean {value.mean():.4g}" if value.size else "empty"
    if field.mask and value.size:
        details = f"mask {_classes(value)}"
    return f"{width}×{height} {field.mode or mode_of(value)} {details}"


def _classes(mask: AnyArray) -> str:
    """Number of classes and their shares of the pixels; for classes that are colours only the number."""
    if mask.ndim > 2 and mask.shape[2] > 1:
        return f"{len(np.unique(mask.reshape(-1, mask.shape[2]), axis=0))} classes"
    numbers, counts = np.unique(mask, return_counts=True)
    order = np.argsort(-counts, kind="stable")[:CLASSES_SHOWN]
    shares = ", ".join(f"{numbers[number]} {counts[number] / mask.size:.0%}" for number in order)
    return f"{len(numbers)} class{'es' if len(numbers) > 1 else ''}: {shares}" + (
        ", …" if len(numbers) > CLASSES_SHOWN else ""
    )


def _sound(value: Sound) -> str:
    try:
        channels = f"{value.channels} channel{'s' if value.channels > 1 else ''}"
        return f"{value.encoding}, {value.rate:,} Hz, {channels}, {duration(value.seconds)}"
    except BatchplantError as error:
        return f"{value.encoding or 'unknown'}: {printable(str(error))}"


def duration(seconds: float) -> str:
    """Seconds, or minutes and hours where there are many."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    minutes, remainder = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}:{remainder:02d} min"
    return f"{minutes // 60}:{minutes % 60:02d}:{remainder:02d} h"


# -- tables ----------------------------------------------------------------------------------------------


def is_tabular(schema: Schema) -> bool:
    """Return whether a cell of a table can show every field."""
    return len(schema) > 0 and all(
        isinstance(field, Int | Float | Bool | Text | Json)
        or (isinstance(field, Tensor) and field.shape == ())
        for field in schema.values()
    )


def is_number(field: Field) -> bool:
    """Return whether a column of the field is right-aligned."""
    counted = isinstance(field, Time | Duration)
    return isinstance(field, Int | Float) and not counted and not getattr(field, "names", None)


def fit_widths(widths: list[int], room: int) -> list[int] | None:
    """The widths, the widest narrowed until all have room with two spaces between; None: they cannot."""
    fitted = list(widths)
    excess = sum(fitted) + 2 * (len(fitted) - 1) - room
    while excess > 0:
        widest = max(range(len(fitted)), key=fitted.__getitem__)
        if fitted[widest] <= NARROWEST:
            return None
        fitted[widest] -= 1
        excess -= 1
    return fitted


def row_text(cells: list[str], widths: list[int], right: list[bool]) -> str:
    """One line of a table; what is too wide ends in an ellipsis."""
    parts = []
    for cell, width, at_end in zip(cells, widths, right, strict=True):
        have = cell_len(cell)
        if have > width:
            parts.append(set_cell_size(cell, width - 1) + "…")
        else:
            parts.append(" " * (width - have) + cell if at_end else cell + " " * (width - have))
    return "  ".join(parts).rstrip()
