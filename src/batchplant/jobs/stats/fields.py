"""What the cells of one field hold: :class:`FieldScan`. Images, sounds and videos are not decoded."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs import times
from ...codecs.arrays import unpack_tensor
from ...codecs.media import audio, image
from ...codecs.media.video import header as video
from ...errors import BatchplantError, DataError, MissingLibraryError
from ...schema import (
    Audio,
    Bool,
    Boxes,
    Bytes,
    Duration,
    Field,
    Image,
    Int,
    Keypoints,
    Labels,
    List,
    Tensor,
    Text,
    Time,
    Video,
)
from ...schema.columns import Column, Masked, Ragged, column_runs
from .numbers import Numbers, Sums
from .values import Copies, Hashes, Tally, Values

# Longer texts are told apart by their hashes alone.
LONGEST = 64

Cells = Iterator[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class FieldStats:
    """What a field holds in ``count`` cells, without those that are missing.

    ``numbers``: by what they measure, such as values, length (characters of text, bytes, items of a list),
    bytes (of a cell), width, height, seconds; of boxes left, top, width and height, of keypoints x and y.
    ``values``: values, resolutions, modes, encodings, …, by how often they are there. ``times``: of a Time or
    Duration the numbers as text: min, median, max. ``unknown``: cells that do not say what they are, though
    they should.
    """

    kind: str
    type: str
    count: int
    missing: int
    unknown: int
    bytes: int
    numbers: dict[str, Numbers]
    values: dict[str, Values]
    times: dict[str, str]
    copies: Copies | None


class FieldScan:
    """Collects; two of them that saw parts of a dataset become that of both."""

    def __init__(self, field: Field, one_in: int) -> None:
        self._field = field
        self._count = self._missing = self._unknown = self.size = 0
        self._numbers: dict[str, Sums] = {}
        self._tallies: dict[str, Tally] = {}
        self.remarks: dict[str, None] = {}
        self.hashes = Hashes(one_in) if is_hashed(field) else None

    def look(self, column: Column) -> None:
        sizes = column_runs(column)[2]
        there = sizes >= 0
        self._count += int(there.sum())
        self._missing += int((~there).sum())
        self.size += int(sizes[there].sum())
        if isinstance(column, Ragged) and not isinstance(column, Masked):
            self._look_ragged(column if there.all() else column.take(there))
            return
        values = column.values[there] if isinstance(column, Masked) else column
        self._look_numbers(values)

    def merge(self, later: FieldScan) -> None:
        for name in ("_count", "_missing", "_unknown", "size"):
            setattr(self, name, getattr(self, name) + getattr(later, name))
        for name, sums in later._numbers.items():
            self._sums(name).merge(sums)
        for name, tally in later._tallies.items():
            self._tally(name).merge(tally)
        self.remarks |= later.remarks
        if self.hashes is not None and later.hashes is not None:
            self.hashes.merge(later.hashes)

    def found(self) -> FieldStats:
        field = self._field
        names: dict[Hashable, str] = {}
        if isinstance(field, Int | Labels) and field.names and len(set(field.names)) == len(field.names):
            names.update(enumerate(field.names))
        numbers = {name: one.numbers() for name, one in self._numbers.items()}
        return FieldStats(
            field.kind, str(field), self._count, self._missing, self._unknown, self.size,
            numbers, {name: one.values(names) for name, one in self._tallies.items()},
            _times(field, numbers["values"]) if isinstance(field, Time | Duration) and self._count else {},
            None if self.hashes is None else self.hashes.copies(),
        )  # fmt: skip

    def _sums(self, name: str) -> Sums:
        return self._numbers.setdefault(name, Sums())

    def _tally(self, name: str) -> Tally:
        return self._tallies.setdefault(name, Tally())

    def _look_numbers(self, values: npt.NDArray[Any]) -> None:
        field = self._field
        if values.dtype.kind not in "biuf":
            return
        if not isinstance(field, Bool):
            self._sums("values").add(values)
        counted = isinstance(field, Int | Bool) and not isinstance(field, Time | Duration)
        if counted or isinstance(field, Labels):
            found, counts = np.unique(values, return_counts=True)
            self._tally("values").add_counts(dict(zip(found.tolist(), counts.tolist(), strict=True)))

    def _look_ragged(self, column: Ragged) -> None:
        field = self._field
        if isinstance(field, Image):
            self._images(column)
        elif isinstance(field, Audio):
            self._each(column, self._sound)
        elif isinstance(field, Video):
            self._each(column, self._video)
        elif isinstance(field, Tensor):
            self._arrays(column, field)
        elif isinstance(field, Text):
            self._sums("length").add(_characters(column))
            short = [row for row, size in enumerate(column.sizes.tolist()) if size <= LONGEST]
            cells = (column.data[column.offsets[row] : column.offsets[row + 1]].tobytes() for row in short)
            self._tally("values").add(one.decode("utf-8", "replace") for one in cells)
        elif isinstance(field, List):
            self._each(column, lambda cell: iter([("length", len(json.loads(cell.tobytes())))]))
        elif isinstance(field, Bytes):
            self._sums("length").add(column.sizes)
        if isinstance(field, Image | Audio | Video) or field.kind in ("json", "struct"):
            self._sums("bytes").add(column.sizes)

    def _images(self, column: Ragged) -> None:
        headers, raw = image.probe(column), column.raw
        known = headers[:, 1] > 0
        self._unknown += int((~known).sum())
        if not known.any():
            return
        rows = np.flatnonzero(known)
        width, height = headers[rows, 1], headers[rows, 2]
        self._sums("width").add(width)
        self._sums("height").add(height)
        sides = zip(width.tolist(), height.tolist(), strict=True)
        self._tally("resolutions").add(f"{one}×{other}" for one, other in sides)
        modes = image.modes(column)
        self._tally("modes").add(modes[row] or "?" for row in rows.tolist())
        self._tally("encodings").add(
            "raw" if raw[row] else image.ENCODINGS[headers[row, 0]] or "?" for row in rows.tolist()
        )

    def _each(self, column: Ragged, facts: Callable[[Any], Cells]) -> None:
        """What cells say about themselves, one by one: numbers and texts, by name."""
        numbers: dict[str, list[float]] = {}
        texts: dict[str, list[str]] = {}
        for cell in column:
            try:
                found = list(facts(cell))
            except MissingLibraryError as error:
                self.remarks[error.message] = None
                self._unknown += 1
                continue
            except (BatchplantError, ValueError, TypeError, RecursionError):
                self._unknown += 1
                continue
            for name, value in found:
                if isinstance(value, str):
                    texts.setdefault(name, []).append(value)
                else:
                    numbers.setdefault(name, []).append(value)
        for name, some in numbers.items():
            self._sums(name).add(np.array(some))
        for name, said in texts.items():
            self._tally(name).add(said)

    @staticmethod
    def _sound(cell: Any) -> Cells:
        found = audio.header(cell)
        yield "seconds", found.frames / found.rate
        yield "rates", str(found.rate)
        yield "channels", str(found.channels)
        yield "encodings", found.encoding

    @staticmethod
    def _video(cell: Any) -> Cells:
        found = video.header(cell)
        if found.seconds is not None:
            yield "seconds", found.seconds
        yield "resolutions", f"{found.width}×{found.height}"
        yield "frame rates", "?" if found.fps is None else f"{found.fps:.6g}"
        yield "encodings", found.encoding or "?"

    def _arrays(self, column: Ragged, field: Tensor) -> None:
        """Arrays whose sizes vary."""
        made, shapes = [], []
        for cell in column:
            try:
                array = unpack_tensor(field, cell)  # type: ignore[arg-type]
            except (DataError, ValueError):
                self._unknown += 1
                continue
            made.append(array.reshape(-1))
            shapes.append(array.shape)
        if len(field.shape) == 1:
            self._sums("length").add(np.array([shape[0] for shape in shapes], dtype=np.int64))
        else:
            self._tally("shapes").add("×".join(map(str, shape)) for shape in shapes)
        if not made:
            return
        values = np.concatenate(made)
        if isinstance(field, Boxes):
            self._boxes(values.reshape(-1, 4), field.format)
        elif isinstance(field, Keypoints):
            self._points(values.reshape(-1, field.shape[-1] or 2))
        else:
            self._look_numbers(values)

    def _boxes(self, boxes: npt.NDArray[Any], format: str) -> None:
        """Where boxes begin and how large they are, whatever their format."""
        boxes = boxes.astype(np.float64)
        start, size = boxes[:, :2], boxes[:, 2:]
        if format == "xyxy":
            size = size - start
        elif format == "cxcywh":
            start = start - size / 2
        for name, values in zip(("left", "top", "width", "height"), (*start.T, *size.T), strict=True):
            self._sums(name).add(values)

    def _points(self, points: npt.NDArray[Any]) -> None:
        """Where the points lie that are there."""
        there = points if points.shape[1] < 3 else points[points[:, 2] > 0]
        for name, values in zip("xy", there.T, strict=False):
            self._sums(name).add(values)


def is_hashed(field: Field) -> bool:
    """Whether equal cells are more than chance: those of numbers are not."""
    return not isinstance(field, Int | Bool) and field.kind != "float"


def _characters(column: Ragged) -> npt.NDArray[np.int64]:
    """How many characters each text has: the bytes in it that begin one."""
    begins = np.append(0, np.cumsum((column.data & 0xC0) != 0x80))
    return np.asarray(begins[column.offsets[1:]] - begins[column.offsets[:-1]], dtype=np.int64)


def _times(field: Time | Duration, found: Numbers) -> dict[str, str]:
    """The first, the middle and the last as text."""
    counts = {"min": found.min, "median": found.median, "max": found.max}
    texts = times.texts_of(field, np.array([round(one or 0) for one in counts.values()], dtype=np.int64))
    return {name: text.decode() for name, text in zip(counts, texts.tolist(), strict=True)}
