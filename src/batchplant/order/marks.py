"""Fingerprints of an order in a loader's state, so that it is not resumed with another order."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from .orders import NAMED, BlockIndex, Order

# Positions whose samples tell epochs apart; a computed order gives them without all others.
PROBED_SAMPLES = 64


def marks(
    order: object, options: Mapping[str, object], indices: npt.ArrayLike | None, bucketed: object = None
) -> dict[str, Any]:
    """Return everything besides the seed that fixes the sequence of samples, as JSON values.

    order, options: as a Loader got them. indices: of the samples that it was given, or None. bucketed: how
    its batches are bucketed, or None.
    """
    parameters = (
        inspect.signature(NAMED[order]).parameters if isinstance(order, str) and order in NAMED else {}
    )
    option_marks = {name: _as_json(value) for name, value in options.items()}
    # An option that names its default makes no other order.
    chosen = {
        name: option_mark
        for name, option_mark in option_marks.items()
        if name not in parameters or option_mark != parameters[name].default
    }
    return {
        "order": _as_json(order), "order_options": chosen, "indices": _as_json(indices),
        "bucket_by_length": _as_json(bucketed),
    }  # fmt: skip


def mark(value: object) -> object:
    """Return a JSON value that tells a value from others."""
    return _as_json(value)


def difference(state: Mapping[str, object], loader_marks: Mapping[str, object]) -> str | None:
    """Return the first difference of a state and ``loader_marks``; keys missing in an older state pass."""
    for name, mine in loader_marks.items():
        if name in state and state[name] != mine:
            theirs = state[name]
            if isinstance(theirs, Mapping) and isinstance(mine, Mapping):
                name = next(key for key in (*theirs, *mine) if theirs.get(key) != mine.get(key))
                theirs, mine = theirs.get(name, "its default"), mine.get(name, "its default")
            return f"the state was made with {name} {theirs}, and this loader has {mine}"
    return None


def drawn(order: Order) -> int:
    """Return a checksum of the samples at some positions all over the epoch of ``order``."""
    while order._base is not None:
        order = order._base
    positions = np.linspace(0, order.length - 1, min(order.length, PROBED_SAMPLES)).astype(np.int64)
    return zlib.crc32(order.take(positions).astype("<i8").tobytes())


def _as_json(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Order | BlockIndex):
        return "an order" if isinstance(value, Order) else "blocks"
    if callable(value):
        return "a function"
    array = np.asarray(value)
    if array.dtype.kind in "iub":
        array = array.astype("<i8")
    data = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return f"of {len(array) if array.ndim else 1} values with checksum {zlib.crc32(data):08x}"
