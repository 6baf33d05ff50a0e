"""JSON out of files: our own notes and side-cars, and what other formats say about themselves."""

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

# What comes of following a document that is not what it should be.
NOTE_ERRORS = (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)
# Parsed, a document can take some thirty times its size.
SHARE = 8

_HALVES = re.compile(r"\\u[dD][89a-fA-F]")


@contextlib.contextmanager
def all_stay() -> Iterator[None]:
    """Within it, many objects are made that all stay: to look for garbage among them takes as long again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


def parse(data: bytes | str | memoryview, *, finite: bool = True) -> Any:
    """What a document says; ValueError where it is no JSON, or holds halves of letters.

    ``finite``: nor may it hold NaN or Infinity, which are no JSON, but which some write into attributes.
    """
    limits.check("a JSON document", SHARE * len(data))
    text = data if isinstance(data, str) else bytes(data).decode("utf-8-sig")
    try:
        strict: dict[str, Any] = {"parse_constant": _refuse, "parse_float": _finite} if finite else {}
        found = json.loads(text, **strict)
        if "\\u" in text and _HALVES.search(text) and not is_text(json.dumps(found, ensure_ascii=False)):
            raise ValueError("it holds half a surrogate")
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return found


def parse_object(data: bytes | str | memoryview, *, finite: bool = True) -> dict[str, Any]:
    """The same of what has to be an object."""
    found = parse(data, finite=finite)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text[:40]} is no number")
    return number
