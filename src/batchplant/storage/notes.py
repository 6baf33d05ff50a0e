"""JSON in files: our own side-cars, and the metadata of other formats."""

from __future__ import annotations

import contextlib
import gc
import json
import math
import re
from collections.abc import Iterator
from typing import Any

from ..schema import is_text
from . import limits

# Exceptions that come of using a document that does not have the expected structure.
NOTE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
# Parsed, a document can take some thirty times its size in memory.
MEMORY_FACTOR = 8

_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@contextlib.contextmanager
def without_gc() -> Iterator[None]:
    """Within it, the garbage collector is off: many objects are created, and all of them stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def parse(data: bytes | str | memoryview, *, finite: bool = True) -> Any:
    """Parse a JSON document; ValueError if it is no JSON, or holds lone surrogates.

    ``finite``: nor may it hold NaN or Infinity, which are no JSON, but which some programs write.
    """
    limits.check("a JSON document", MEMORY_FACTOR * len(data))
    text = data if isinstance(data, str) else bytes(data).decode("utf-8-sig")
    try:
        strict: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if finite else {}
        document = json.loads(text, **strict)
        if (
            "\\u" in text
            and _SURROGATE.search(text)
            and not is_text(json.dumps(document, ensure_ascii=False))
        ):
            raise ValueError("it holds half a surrogate")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return document


def parse_object(data: bytes | str | memoryview, *, finite: bool = True) -> dict[str, Any]:
    """Parse a JSON document that has to be an object."""
    document = parse(data, finite=finite)
    if not isinstance(document, dict):
        raise ValueError("it is no JSON object")
    return document


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is no number")
    return number
