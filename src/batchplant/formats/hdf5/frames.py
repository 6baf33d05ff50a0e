"""Tables that pandas wrote: columns of one dtype lie in a block, and attributes say what they are called.

The names are pickled. Only pickles that are a list of names are understood, and none is loaded.
"""

from __future__ import annotations

import dataclasses
import pickletools
import re
from typing import Any

import numpy as np

from .types import Part

# What the pickle of a list of names is made of.
NAMES = {
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "STRING", "SHORT_BINSTRING", "INT", "BININT",
    "BININT1", "BININT2", "LONG1",
}  # fmt: skip
AROUND = {
    "MARK", "LIST", "EMPTY_LIST", "APPEND", "APPENDS", "PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "PROTO",
    "FRAME", "STOP",
}  # fmt: skip
TIME = re.compile(r"(datetime64|timedelta64)(\[(s|ms|us|ns)\])?")


def is_frame(dataset: Any) -> bool:
    """True if it holds the rows of a data frame or a series."""
    return dataset.name.endswith("/table") and _text(dataset.parent, "pandas_type") in (
        "frame_table",
        "series_table",
    )


def columns_of(dataset: Any, parts: list[Part]) -> list[Part]:
    """The columns of the frame, each by its own name."""
    found: list[Part] = []
    for part in parts:
        kind, meaning = _text(dataset, f"{part.name}_kind"), _text(dataset, f"{part.name}_dtype")
        # Of the index, the kind itself is told.
        meaning = meaning if meaning is not None else kind
        names = _names(dataset, f"{part.name}_kind") or [part.name]
        count = part.shape[0] if len(part.shape) == 1 else 1
        if len(names) != count or len(part.shape) > 1:
            found.append(part)
            continue
        width = part.width // count
        for number, name in enumerate(names):
            offset = part.offset + number * width
            one = dataclasses.replace(part, name=name, shape=(), offset=offset, width=width)
            found.append(dataclasses.replace(one, means=_meaning(meaning, part.dtype)))
    # Two columns, or one and the index, may have one name.
    known = [part.name for part in found]
    return found if len(set(known)) == len(known) else parts


def _meaning(said: str | None, dtype: np.dtype[Any]) -> str | None:
    if said == "bool" and dtype.itemsize == 1:
        return "bool"
    found = TIME.fullmatch(said or "")
    if found is None or dtype.newbyteorder("=") != np.int64:
        return None
    return f"{found[1]}[{found[3] or 'ns'}]"


def _names(dataset: Any, attribute: str) -> list[str] | None:
    """The names in a pickled list; None where it is something else."""
    try:
        names = []
        for code, value, _ in pickletools.genops(bytes(dataset.attrs[attribute])):
            if code.name in NAMES:
                names.append(str(value))
            elif code.name not in AROUND:
                return None
        return names
    # Anything may stand in an attribute.
    except Exception:
        return None


def _text(thing: Any, attribute: str) -> str | None:
    try:
        found = thing.attrs.get(attribute)
        return found.decode() if isinstance(found, bytes) else None
    except Exception:
        return None
