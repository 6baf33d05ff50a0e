"""Patterns of file names: braces, and the natural order of numbered files."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import OptionError
from ..schema.columns import I64

# Names that only shards have: NAME-00000-of-00003.SUFFIX, and part-00000-UUID.SUFFIX as Spark writes it.
_SHARD = re.compile(
    r"(.*[-_.])(\d{1,18})(-of-\d+|-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b.*", re.DOTALL
)
# Names of shards (batchplant: NAME-00000.SUFFIX, Arrow: part-0.parquet) that users give to episodes, too.
_NUMBERED = re.compile(r"(.*-)((?<=part-)\d{1,18}|\d{5,18})((?:\.[^/]*)?)", re.DOTALL)


def braces(path: str) -> Iterator[str]:
    """Expand ``{a,b}`` and ``{000..123}`` to paths; ``_OP_`` and ``_CL_`` are braces, as NeMo writes them."""
    match = re.search(r"(?:\{|_OP_)((?:(?!_OP_|_CL_)[^{}])*)(?:\}|_CL_)", path)
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
    """Return a sort key: part-2 before part-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


_DIGITS = str.maketrans("123456789", "0" * 9)


def naturally(names: Iterable[str]) -> list[str]:
    """Sort names, part-2 before part-10."""
    ordered = sorted(names)
    # If all have the same number of digits at the same positions, text order is number order.
    text = "\n".join(ordered)
    if text.isascii() and len(set(text.translate(_DIGITS).split("\n"))) == 1:
        return ordered
    return sorted(ordered, key=natural)


def independent(paths: Sequence[str], starts: I64) -> I64:
    """Return the starts of files that are not the next shard of the dataset of the file before."""
    new = [
        not before or not _follows(_SHARD, before, path)
        for before, path in zip(("", *paths), paths, strict=False)
    ]
    return starts[np.array(new, dtype=np.bool_)]


def may_be_shards(path: str, next_path: str) -> bool:
    """Return whether a file may be the shard after another one, by names that episodes may have, too."""
    return _follows(_NUMBERED, path, next_path)


def _follows(pattern: re.Pattern[str], path: str, next_path: str) -> bool:
    first, second = pattern.fullmatch(path), pattern.fullmatch(next_path)
    if first is None or second is None:
        return False
    return first[1] == second[1] and first[3] == second[3] and int(second[2]) == int(first[2]) + 1
