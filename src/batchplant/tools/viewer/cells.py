"""The datasets that the viewer has open, and single cells of them, read on demand."""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ...codecs.cells import decode_cell
from ...codecs.tokens import load as load_tokenizer
from ...data.reader import Reader
from ...data.tensors import is_tensors
from ...errors import BatchplantError, located
from ...loading.images import locate
from ...schema import kinds
from ...schema.columns import I64, U8, Column, Ragged, as_bytes, dense_of

# Called with how much is done, and of how much.
Progress = Callable[[int, int], None]
# A summary does not read a cell of fixed size with more bytes than this.
LARGE_CELL_BYTES = 1 << 16
# Numbers in a row of a cell with a varying number of rows, up to which it is read with the other cells.
MAX_ROW_NUMBERS = 256

_DISPLAYS: dict[type[kinds.Field], str] = {
    kinds.Audio: "sound",
    kinds.Video: "video",
    kinds.Uuid: "text",
    kinds.Decimal: "number",
    kinds.Text: "text",
    kinds.Json: "tree",
    kinds.Time: "time",
    kinds.Duration: "time",
    kinds.Bool: "bool",
    kinds.Sparse: "array",
    kinds.Bytes: "bytes",
}


def display_of(name: str, kind: kinds.Field) -> str:
    """Return how the page shows cells of a field: "image", "sound", "number", …"""
    if isinstance(kind, kinds.Image):
        return "mask" if kind.mask else "image"
    for field_type, display in _DISPLAYS.items():
        if isinstance(kind, field_type):
            return display
    if isinstance(kind, kinds.Int) and kind.names:
        return "class"
    if isinstance(kind, kinds.Tensor):
        return _display_of_tensor(name.lower(), kind)
    return "number"


def _display_of_tensor(name: str, kind: kinds.Tensor) -> str:
    dtype = np.dtype(kind.dtype)
    if kind.shape == ():
        return "time" if dtype.kind in "mM" else "number"
    if isinstance(kind, kinds.Labels) and kind.names:
        return "labels"
    if isinstance(kind, kinds.Boxes):
        return "boxes"
    if len(kind.shape) == 2 and kind.shape[1] == 4 and ("box" in name or "bbox" in name):
        return "boxes"
    is_integer = dtype.kind in "iu" and dtype.itemsize > 1
    if len(kind.shape) == 1 and is_integer and ("token" in name or name.endswith("ids")):
        return "tokens"
    return "array"


class Tokenizer:
    """A ``tokenizer.json`` of the tokenizers library."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._tokenizer = load_tokenizer(path)

    def pieces(self, tokens: list[int]) -> list[str | None]:
        """Return the text of each token; None where the tokenizer does not have it."""
        pieces: list[str | None] = []
        for token in tokens:
            name = self._tokenizer.id_to_token(token) if 0 <= token < 1 << 32 else None
            if name is not None:
                # A single token may be a part of a letter, which decodes to a replacement character.
                text = self._tokenizer.decode([token], skip_special_tokens=False)
                name = text if text and "\N{REPLACEMENT CHARACTER}" not in text else name
            pieces.append(name)
        return pieces

    def text(self, tokens: list[int]) -> str:
        """Return the text of these tokens together."""
        valid = [
            token
            for token in tokens
            if 0 <= token < 1 << 32 and self._tokenizer.id_to_token(token) is not None
        ]
        return str(self._tokenizer.decode(valid, skip_special_tokens=False))


@dataclasses.dataclass(frozen=True)
class Dataset:
    """The dataset that the viewer has open."""

    reader: Reader
    title: str
    # Decodes tokens, where the user named one.
    tokenizer: Tokenizer | None = None

    @functools.cached_property
    def shows(self) -> dict[str, str]:
        """Description of each field for the page."""
        displays = {name: display_of(name, kind) for name, kind in self.reader.schema.items()}
        # The bytes of a model's tensor are an array.
        return displays | ({"data": "array"} if is_tensors(self.reader.schema) else {})

    @property
    def image(self) -> str | None:
        """The field whose images the grid shows."""
        return self.first("image") or self.first("mask")

    def first(self, display: str) -> str | None:
        """Return the first field that is shown like this."""
        return next((name for name, shown in self.shows.items() if shown == display), None)


class Cell:
    """A field of a sample. ``value()`` and ``data`` raise errors that name the sample and field."""

    __slots__ = ("_column", "_row", "dataset", "kind", "name", "sample", "shows")

    def __init__(
        self, dataset: Dataset, sample: int, name: str, column: Column | None = None, row: int = 0
    ) -> None:
        self.dataset, self.sample, self.name, self.shows = dataset, sample, name, dataset.shows[name]
        self.kind: kinds.Field = dataset.reader.schema[name]
        self._column, self._row = column, row

    @property
    def loaded(self) -> bool:
        """True if its bytes are in memory."""
        return self._column is not None

    @property
    def large(self) -> bool:
        """True for an array of fixed size that has many bytes."""
        return _fixed_bytes(self.kind) > LARGE_CELL_BYTES

    @property
    def column(self) -> Column:
        """The column that holds the cell; read on first use."""
        if self._column is None:
            reader = self.dataset.reader
            with located(path=reader.path, sample=self.sample, field=self.name):
                self._column, self._row = reader.read([self.sample], [self.name])[self.name], 0
        return self._column

    @property
    def missing(self) -> bool:
        if not self.kind.optional or (self.large and not self.loaded):
            return False
        column = self.column
        return isinstance(column, Ragged) and column.valid is not None and not column.valid[self._row]

    @property
    def data(self) -> U8:
        """Its stored bytes; empty where the cell is missing."""
        column = self.column
        if not isinstance(column, Ragged):
            return as_bytes(column[self._row : self._row + 1])
        data = column[self._row]
        return np.empty(0, np.uint8) if data is None else data

    @property
    def pixels_shape(self) -> tuple[int, int, int] | None:
        """Height, width and channels, where the bytes are raw pixels."""
        column = self.column
        if not isinstance(column, Ragged) or column.shape is None or not column.shape[self._row].any():
            return None
        height, width, channels = (int(size) for size in column.shape[self._row])
        return height, width, channels

    def sibling(self, name: str) -> Cell:
        """Return another field of the same sample."""
        return Cell(self.dataset, self.sample, name)

    def value(self) -> Any:
        """Return its decoded value; None where the cell is missing."""
        column = self.column
        with located(path=self.dataset.reader.path, sample=self.sample, field=self.name):
            return decode_cell(self.kind, column, self._row)


def _fixed_bytes(kind: kinds.Field) -> int:
    """Bytes of every cell of a field; 0 where they differ."""
    dense = dense_of(kind)
    return 0 if dense is None else dense[0].itemsize * math.prod(dense[1])


def cells_of(dataset: Dataset, samples: list[int], fields: Iterable[str]) -> list[dict[str, Cell]]:
    """Return the cells of each sample by field, with those in memory that one cheap pass can read.

    Cells that cannot be read together (one sample is damaged) are read one by one on demand.
    """
    cells: list[dict[str, Cell]] = [{} for _ in samples]
    ids = np.array(samples, dtype=np.int64)
    read_together: list[str] = []
    for name in fields:
        kind = dataset.reader.schema[name]
        columns: list[Column] | None = None
        if (
            isinstance(kind, kinds.Image | kinds.Audio | kinds.Video | kinds.Bytes | kinds.Tensor)
            and dense_of(kind) is None
        ):
            columns = _mapped_columns(dataset, name, ids)
            if columns is None and _has_short_rows(kind):
                read_together.append(name)
        elif _fixed_bytes(kind) <= LARGE_CELL_BYTES:
            read_together.append(name)
        for row, sample in enumerate(samples):
            cells[row][name] = Cell(dataset, sample, name, None if columns is None else columns[row])
    try:
        batch = dataset.reader.read(ids, read_together) if read_together else {}
    except (BatchplantError, OSError, MemoryError):
        return cells
    for name, column in batch.items():
        for row, sample in enumerate(samples):
            cells[row][name] = Cell(dataset, sample, name, column, row)
    return cells


def _has_short_rows(kind: kinds.Field) -> bool:
    """Return whether cells have a short row for each object of a sample: boxes, labels, keypoints."""
    if not isinstance(kind, kinds.Tensor) or kind.shape[:1] != (None,) or None in kind.shape[1:]:
        return False
    return math.prod(size or 0 for size in kind.shape[1:]) <= MAX_ROW_NUMBERS


def _mapped_columns(dataset: Dataset, name: str, ids: I64) -> list[Column] | None:
    """Return a column of mapped bytes for each cell; None where cells have to be read."""
    try:
        if dataset.reader.spans(name, ids) is None:
            return None
        located = locate(dataset.reader, name, ids)
    except (BatchplantError, OSError, MemoryError):
        return None
    columns: list[Column] = []
    for row, size in enumerate(located.size.tolist()):
        present = size >= 0
        data = located.cell(row) if present else np.empty(0, np.uint8)
        shape = None if located.shape is None else located.shape[row : row + 1]
        valid = None if present else np.zeros(1, np.bool_)
        columns.append(Ragged(data, np.array([0, max(size, 0)]), shape, valid))
    return columns
