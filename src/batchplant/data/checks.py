"""Which samples of a reader are damaged, and what is wrong with them."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from ..errors import DataError, Problem
from ..schema.columns import I64, Columns, end_within

if TYPE_CHECKING:
    from .reader import Reader

# Read at once to be verified, of samples whose sizes are known.
VERIFY_BYTES = 64 << 20


def verify(reader: Reader) -> Iterator[Problem]:
    """Everything that is wrong with structure and bounds, every damaged sample by name."""
    try:
        yield from reader._verify()
    except DataError as error:
        yield Problem.of(error.at(path=reader.path))
    sizes, end = reader.sizes(), 0
    while end < len(reader):
        start, end = end, end_within(sizes, end, min(256, len(reader) - end), VERIFY_BYTES)
        problems: list[Problem] = []
        read_sound(reader, np.arange(start, end), problems, sys.maxsize)
        yield from problems


def read_sound(reader: Reader, rows: I64, problems: list[Problem], most: int) -> tuple[I64, Columns | None]:
    """Those of these samples that can be read, and their cells.

    What is wrong with the others goes to ``problems``; when those are ``most``, the rest is left unread.
    """
    parts: list[Columns] = []
    good: list[I64] = []
    at, step = 0, len(rows)
    while at < len(rows) and len(problems) < most:
        some = rows[at : at + step]
        try:
            parts.append(reader.read(some))
            good.append(some)
        except DataError as error:
            if len(some) > 1:
                # One by one; as long as they are sound, more and more of them.
                step = 1
                continue
            here = dataclasses.replace(Problem.of(error.at(path=reader.path)), sample=int(some[0]))
            problems += list(_each(reader, some)) or [here]
        else:
            step *= 2
        at += len(some)
    if not parts:
        return np.empty(0, dtype=np.int64), None
    return np.concatenate(good), Columns.concat(parts)


def _each(reader: Reader, rows: Iterable[int]) -> Iterator[Problem]:
    """The damaged cells among these samples, read one by one."""
    for row in rows:
        # Asked for no field first: a record may be damaged as a whole.
        for fields in ([], *([name] for name in reader.schema)):
            try:
                reader.read([row], fields)
            except DataError as error:
                error.at(path=reader.path, field=fields[0] if fields else None)
                yield dataclasses.replace(Problem.of(error), sample=int(row))
                if not fields:
                    break
