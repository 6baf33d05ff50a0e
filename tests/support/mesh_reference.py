"""Reference for the ranks of a mesh: packed rows, their slices, and the groups of ranks, in plain Python."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

IGNORED_LABEL = -100


class Token(NamedTuple):
    """A place of a packed row; ``sequence`` is a number for each run that attention does not look beyond."""

    token: int
    label: int
    position: int
    document: int
    sequence: int


def packed_rows(documents: Iterable[Sequence[int]], length: int, *, across: bool) -> list[list[Token]]:
    """Rows of documents one after another, cut where a row ends; labels are the next tokens."""
    rows: list[list[Token]] = [[]]
    for document in documents:
        for number, token in enumerate(document):
            if len(rows[-1]) == length:
                rows.append([])
            row = rows[-1]
            last = row[-1] if row else Token(0, 0, -1, -1, -1)
            begins = not number or not row
            place = last.document + begins
            label = document[number + 1] if number + 1 < len(document) else IGNORED_LABEL
            position = len(row) if across else 0 if begins else last.position + 1
            row.append(Token(token, label, position, 0 if across else place, 0 if across else place))
    for padding in range(length - len(rows[-1])):
        position = len(rows[-1]) if across else padding
        rows[-1].append(Token(0, IGNORED_LABEL, position, -1, -1))
    return rows


def places(length: int, number: int, slices: int, *, balanced: bool) -> list[int]:
    """Places of a sequence that are in one of its slices."""
    chunks = [number]
    if balanced and slices > 1:
        chunks, slices = [number, 2 * slices - 1 - number], 2 * slices
    return [chunk * length // slices + place for chunk in chunks for place in range(length // slices)]


def places_by_document(offsets: Sequence[int], number: int, slices: int) -> list[list[int]]:
    """Places of a slice in rows as one, by run: of every document, a chunk from its head and its tail."""
    runs: list[list[int]] = []
    for begin, end in itertools.pairwise(offsets):
        size = (end - begin) // (2 * slices)
        head, tail = begin + number * size, end - (number + 1) * size
        if head + size == tail:
            runs.append(list(range(head, tail + size)))
        else:
            runs += [list(range(head, head + size)), list(range(tail, tail + size))]
    return runs


def batch_of(rows: Sequence[Sequence[Token]], slice_places: Sequence[int]) -> dict[str, Any]:
    """A batch of slices, as a loader gives it."""
    fields = {"tokens": "token", "labels": "label", "position_ids": "position", "document_ids": "document"}
    values = {
        name: np.array([[getattr(row[place], field) for place in slice_places] for row in rows])
        for name, field in fields.items()
    }
    values["cu_seqlens"] = offsets(rows, slice_places)
    values["row_cu_seqlens"] = offsets(rows, range(len(rows[0])))
    for name in ("", "row_"):
        values[f"{name}max_seqlen"] = np.diff(values[f"{name}cu_seqlens"]).max()
    return values


def offsets(rows: Sequence[Sequence[Token]], slice_places: Sequence[int]) -> np.ndarray[Any, Any]:
    """Where runs begin in slices that stand one after another, and their end."""
    flat = [(row, place) for row in range(len(rows)) for place in slice_places]
    begins = [0]
    for (before, last), (row, place) in itertools.pairwise(flat):
        follows = before == row and last + 1 == place
        if not follows or rows[row][last].sequence != rows[row][place].sequence:
            begins.append(flat.index((row, place)))
    return np.array([*begins, len(flat)])


def coordinates(axes: dict[str, int]) -> list[dict[str, int]]:
    """Coordinates of every rank, the outermost axis first."""
    numbers = itertools.product(*map(range, axes.values()))
    return [dict(zip(axes, number, strict=True)) for number in numbers]


def group_of(axes: dict[str, int], rank: int, batch_axes: Sequence[str]) -> int:
    """Number of the group of ranks with the same samples."""
    everywhere = [tuple(place[axis] for axis in batch_axes) for place in coordinates(axes)]
    return sorted(set(everywhere)).index(everywhere[rank])
