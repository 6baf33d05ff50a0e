"""Statistics of the cells of one field: :class:`FieldScan`. It decodes no images, sounds or videos."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import schema as kinds
from ...codecs import scalars
from ...codecs.media import audio, image, video
from ...codecs.npy import unpack_tensor
from ...errors import BatchplantError, DataError, MissingLibraryError
from ...schema import Field
from ...schema.columns import AnyArray, Column, Masked, Ragged, column_runs
from .numbers import Numbers, Sums
from .values import Copies, Hashes, Tally, Values

# Longer texts are not counted as values.
MAX_COUNTED_BYTES = 64

CellFacts = Iterator[tuple[str, Any]]


@dataclasses.dataclass(frozen=True)
class FieldStats:
    """Statistics of a field over ``count`` cells, without those that are missing.

    ``numbers``: by quantity, such as values, length (characters of text, bytes, items of a list),
    bytes (of a cell), width, height, seconds; of boxes left, top, width and height, of keypoints x and y.
    ``values``: values, resolutions, modes, encodings, …, with their counts. ``times``: of a Time or Duration
    the numbers as text: min, median, max. ``unknown``: cells whose headers cannot be read.
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
    """Accumulates the statistics of a field; two accumulators can be merged."""

    def __init__(self, field: Field, one_in: int) -> None:
        self._field = field
        self._count = self._missing = self._unknown = self.size = 0
        self._numbers: dict[str, Sums] = {}
        self._tallies: dict[str, Tally] = {}
        self.remarks: dict[str, None] = {}
        self.hashes = Hashes(one_in) if is_hashed(field) else None

    def add(self, column: Column) -> None:
        sizes = column_runs(column)[2]
        valid = sizes >= 0
        self._count += int(valid.sum())
        self._missing += int((~valid).sum())
        self.size += int(sizes[valid].sum())
        if isinstance(column, Ragged) and not isinstance(column, Masked):
            self._add_ragged(column if valid.all() else column.take(valid))
            return
        values = column.values[valid] if isinstance(column, Masked) else column
        self._add_numbers(values)

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

    def stats(self) -> FieldStats:
        field = self._field
        names: dict[Hashable, str] = {}
        if (
            isinstance(field, kinds.Int | kinds.Labels)
            and field.names
            and len(set(field.names)) == len(field.names)
        ):
            names.update(enumerate(field.names))
        numbers = {name: sums.numbers() for name, sums in self._numbers.items()}
        return FieldStats(
            field.kind,
            str(field),
            self._count,
            self._missing,
            self._unknown,
            self.size,
            numbers,
            {name: tally.values(names) for name, tally in self._tallies.items()},
            _times(field, numbers["values"])
            if isinstance(field, kinds.Time | kinds.Duration) and self._count
            else {},
            None if self.hashes is None else self.hashes.copies(),
        )

    def _sums(self, name: str) -> Sums:
        return self._numbers.setdefault(name, Sums())

    def _tally(self, name: str) -> Tally:
        return self._tallies.setdefault(name, Tally())

    def _add_numbers(self, values: AnyArray) -> None:
        field = self._field
        if values.dtype.kind not in "biuf":
            return
        if not isinstance(field, kinds.Bool):
            self._sums("values").add(values)
        counted = isinstance(field, kinds.Int | kinds.Bool) and not isinstance(
            field, kinds.Time | kinds.Duration
        )
        if counted or isinstance(field, kinds.Labels):
            distinct, counts = np.unique(values, return_counts=True)
            self._tally("values").add_counts(dict(zip(distinct.tolist(), counts.tolist(), strict=True)))

    def _add_ragged(self, column: Ragged) -> None:
        field = self._field
        if isinstance(field, kinds.Image):
            self._add_images(column)
        elif isinstance(field, kinds.Audio):
            self._add_facts(column, self._audio_facts)
        elif isinstance(field, kinds.Video):
            self._add_facts(column, self._video_facts)
        elif isinstance(field, kinds.Tensor):
            self._add_arrays(column, field)
        elif isinstance(field, kinds.Text):
            self._sums("length").add(_characters(column))
            short = [row for row, size in enumerate(column.sizes.tolist()) if size <= MAX_COUNTED_BYTES]
            cells = (column.data[column.offsets[row] : column.offsets[row + 1]].tobytes() for row in short)
            self._tally("values").add(cell.decode("utf-8", "replace") for cell in cells)
        elif isinstance(field, kinds.List):
            self._add_facts(column, lambda cell: iter([("length", len(json.loads(cell.tobytes())))]))
        elif isinstance(field, kinds.Bytes):
            self._sums("length").add(column.sizes)
        if isinstance(field, kinds.Image | kinds.Audio | kinds.Video) or field.kind in ("json", "struct"):
            self._sums("bytes").add(column.sizes)

    def _add_images(self, column: Ragged) -> None:
        headers, raw = image.probe(column), column.raw
        has_size = headers[:, 1] > 0
        self._unknown += int((~has_size).sum())
        if not has_size.any():
            return
        rows = np.flatnonzero(has_size)
        width, height = headers[rows, 1], headers[rows, 2]
        self._sums("width").add(width)
        self._sums("height").add(height)
        sides = zip(width.tolist(), height.tolist(), strict=True)
        self._tally("resolutions").add(f"{w}×{h}" for w, h in sides)
        modes = image.modes(column)
        self._tally("modes").add(modes[row] or "?" for row in rows.tolist())
        self._tally("encodings").add(
            "raw" if raw[row] else image.ENCODINGS[headers[row, 0]] or "?" for row in rows.tolist()
        )

    def _add_facts(self, column: Ragged, facts: Callable[[Any], CellFacts]) -> None:
        """Add the facts of every cell, which are numbers or texts by name."""
        numbers: dict[str, list[float]] = {}
        texts: dict[str, list[str]] = {}
        for cell in column:
            try:
                cell_facts = list(facts(cell))
            except MissingLibraryError as error:
                self.remarks[error.message] = None
                self._unknown += 1
                continue
            except (BatchplantError, ValueError, TypeError, RecursionError):
                self._unknown += 1
                continue
            for name, value in cell_facts:
                if isinstance(value, str):
                    texts.setdefault(name, []).append(value)
                else:
                    numbers.setdefault(name, []).append(value)
        for name, values in numbers.items():
            self._sums(name).add(np.array(values))
        for name, values_as_text in texts.items():
            self._tally(name).add(values_as_text)

    @staticmethod
    def _audio_facts(cell: Any) -> CellFacts:
        header = audio.header(cell)
        yield "seconds", header.frames / header.rate
        yield "rates", str(header.rate)
        yield "channels", str(header.channels)
        yield "encodings", header.encoding

    @staticmethod
    def _video_facts(cell: Any) -> CellFacts:
        header = video.header(cell)
        if header.seconds is not None:
            yield "seconds", header.seconds
        yield "resolutions", f"{header.width}×{header.height}"
        yield "frame rates", "?" if header.fps is None else f"{header.fps:.6g}"
        yield "encodings", header.encoding or "?"

    def _add_arrays(self, column: Ragged, field: kinds.Tensor) -> None:
        """Add arrays whose sizes vary."""
        arrays, shapes = [], []
        for cell in (cell for cell in column if cell is not None):
            try:
                array = unpack_tensor(field, cell)
            except (DataError, ValueError):
                self._unknown += 1
                continue
            arrays.append(array.reshape(-1))
            shapes.append(array.shape)
        if len(field.shape) == 1:
            self._sums("length").add(np.array([shape[0] for shape in shapes], dtype=np.int64))
        else:
            self._tally("shapes").add("×".join(map(str, shape)) for shape in shapes)
        if not arrays:
            return
        values = np.concatenate(arrays)
        if isinstance(field, kinds.Boxes):
            self._add_boxes(values.reshape(-1, 4), field.format)
        elif isinstance(field, kinds.Keypoints):
            self._add_points(values.reshape(-1, field.shape[-1] or 2))
        else:
            self._add_numbers(values)

    def _add_boxes(self, boxes: AnyArray, format: str) -> None:
        """Add corners and sizes of boxes in any format."""
        boxes = boxes.astype(np.float64)
        start, size = boxes[:, :2], boxes[:, 2:]
        if format == "xyxy":
            size = size - start
        elif format == "cxcywh":
            start = start - size / 2
        for name, values in zip(("left", "top", "width", "height"), (*start.T, *size.T), strict=True):
            self._sums(name).add(values)

    def _add_points(self, points: AnyArray) -> None:
        """Add the coordinates of visible points."""
        visible = points if points.shape[1] < 3 else points[points[:, 2] > 0]
        for name, values in zip("xy", visible.T, strict=False):
            self._sums(name).add(values)


def is_hashed(field: Field) -> bool:
    """True where equal cells are no coincidence, as they are among numbers."""
    return not isinstance(field, kinds.Int | kinds.Bool) and field.kind != "float"


def _characters(column: Ragged) -> npt.NDArray[np.int64]:
    """Characters of each text: its bytes that begin one."""
    begins = np.append(0, np.cumsum((column.data & 0xC0) != 0x80))
    return np.asarray(begins[column.offsets[1:]] - begins[column.offsets[:-1]], dtype=np.int64)


def _times(field: kinds.Time | kinds.Duration, numbers: Numbers) -> dict[str, str]:
    """First, median and last time as text."""
    counts = {"min": numbers.min, "median": numbers.median, "max": numbers.max}
    texts = scalars.texts_of(field, np.array([round(n or 0) for n in counts.values()], dtype=np.int64))
    return {name: text.decode() for name, text in zip(counts, texts.tolist(), strict=True)}
