"""Names of many files in one: braces, and the order in which numbered files stand."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import OptionError


def braces(path: str) -> Iterator[str]:
    """``{a,b}`` and ``{000..123}`` to paths."""
    match = re.search(r"\{([^{}]*)\}", path)
    if match is None:
        yield path
        return
    numbers = re.fullmatch(r"(\d+)\.\.(\d+)", match[1])
    if numbers:
        first, last, width = int(numbers[1]), int(numbers[2]), len(numbers[1])
        if not 0 <= last - first < 1_000_000:
            raise OptionError(f"{{{match[1]}}} is no range of shards", path=path)
        parts: Iterable[str] = (f"{number:0{width}d}" for number in range(first, last + 1))
    elif "," in match[1]:
        parts = match[1].split(",")
    else:
        yield path
        return
    for part in parts:
        yield from braces(path[: match.start()] + part + path[match.end() :])


def natural(name: str) -> list[Any]:
    """Sort key: part-2 before part-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


_DIGITS = str.maketrans("123456789", "0" * 9)


def naturally(names: Iterable[str]) -> list[str]:
    """These names, part-2 before part-10."""
    found = sorted(names)
    # With as many digits at the same places, as the files of one writer have, text stands as numbers do.
    text = "\n".join(found)
    if text.isascii() and len(set(text.translate(_DIGITS).split("\n"))) == 1:
        return found
    return sorted(found, key=natural)
