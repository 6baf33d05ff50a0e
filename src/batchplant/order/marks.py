"""What a state remembers of an order, so that it is not taken up with another."""

from __future__ import annotations

import inspect
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np

from .orders import NAMED, BlockIndex, Order

# Places of an epoch that tell whether it is the same; a computed order gives them without the rest.
PROBED_SAMPLES = 64


def marks(order: Any, options: Mapping[str, Any], indices: Any, bucketed: Any = None) -> dict[str, Any]:
    """What fixes the row of samples besides the seed, each as something that JSON can hold."""
    known = inspect.signature(NAMED[order]).parameters if isinstance(order, str) and order in NAMED else {}
    said = {name: _as_json(value) for name, value in options.items()}
    # To name what is the default anyway makes no other order.
    chosen = {name: one for name, one in said.items() if name not in known or one != known[name].default}
    return {
        "order": _as_json(order), "order_options": chosen, "indices": _as_json(indices),
        "bucket_by_length": _as_json(bucketed),
    }  # fmt: skip


def mark(value: Any) -> Any:
    """What tells a value from others, as something that JSON can hold."""
    return _as_json(value)


def difference(state: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """The first thing in which a state is not of this loader; what an older state does not tell passes."""
    for name, mine in own.items():
        if name in state and state[name] != mine:
            theirs = state[name]
            if isinstance(theirs, Mapping) and isinstance(mine, Mapping):
                name = next(one for one in (*theirs, *mine) if theirs.get(one) != mine.get(one))
                theirs, mine = theirs.get(name, "its default"), mine.get(name, "its default")
            return f"the state was made with {name} {theirs}, and this loader has {mine}"
    return None


def drawn(order: Order) -> int:
    """A checksum of some places of an epoch, all over it."""
    while order._base is not None:
        order = order._base
    at = np.linspace(0, order.length - 1, min(order.length, PROBED_SAMPLES)).astype(np.int64)
    return zlib.crc32(order.take(at).astype("<i8").tobytes())


def _as_json(value: Any) -> Any:
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
