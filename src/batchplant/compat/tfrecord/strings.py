"""tf.strings: the few functions on strings that pipelines use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import SchemaError
from .values import String, Tensor, as_bytes, as_dtype, float32, strings, tensor

__all__ = ["as_string", "join", "length", "lower", "split", "strip", "to_number", "upper"]


def _each(value: Any, function: Callable[[bytes], Any]) -> list[Any] | Any:
    given = tensor(value)
    if isinstance(given, String):
        return function(bytes(given))
    return [function(as_bytes(one)) for one in given.reshape(-1).tolist()]


def _strings(value: Any, function: Callable[[bytes], bytes]) -> Any:
    made = _each(value, lambda one: String(function(one)))
    return strings(made, tensor(value).shape) if isinstance(made, list) else made


def lower(input: Any, encoding: str = "", name: Any = None) -> Any:
    return _strings(input, bytes.lower)


def upper(input: Any, encoding: str = "", name: Any = None) -> Any:
    return _strings(input, bytes.upper)


def strip(input: Any, name: Any = None) -> Any:
    return _strings(input, bytes.strip)


def length(input: Any, unit: str = "BYTE", name: Any = None) -> Any:
    count = len if unit == "BYTE" else lambda one: len(one.decode(errors="replace"))
    return np.array(_each(input, count), dtype=np.int32).reshape(tensor(input).shape).view(Tensor)


def split(input: Any, sep: Any = None, maxsplit: int = -1, name: Any = None) -> Any:
    """The parts of one string."""
    given = tensor(input)
    if not isinstance(given, String):
        raise SchemaError("strings.split takes one string here")
    return strings([String(part) for part in bytes(given).split(as_bytes(sep) if sep else None, maxsplit)])


def join(inputs: Any, separator: Any = "", name: Any = None) -> Any:
    """One string of several."""
    return String(as_bytes(separator).join(as_bytes(one) for one in inputs))


def to_number(input: Any, out_type: Any = float32, name: Any = None) -> Any:
    kind = as_dtype(out_type)

    def number(text: bytes) -> Any:
        try:
            return int(text) if kind.is_integer else float(text)
        except ValueError:
            raise SchemaError(f"the string {text!r:.80} is no {kind.name}") from None

    return np.array(_each(input, number), dtype=kind.dtype).reshape(tensor(input).shape).view(Tensor)


def as_string(input: Any, name: Any = None) -> Any:
    given = tensor(input)
    made = [
        String(
            str(one).lower().encode() if one in (True, False) and given.dtype == bool else str(one).encode()
        )
        for one in np.asarray(given).reshape(-1).tolist()
    ]
    return strings(made, given.shape) if given.ndim else made[0]
