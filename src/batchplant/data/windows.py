"""Windows: consecutive rows of a dataset as one sample, for time series and episodes."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ..codecs.cells import cell_bytes, decode_cell
from ..errors import BatchplantError, DecodeError, OptionError, SchemaError, located
from ..order.keyed import whole
from ..schema import Field, Image, Schema, Tensor
from ..schema.columns import (
    I64,
    AnyArray,
    Column,
    Columns,
    Masked,
    Ragged,
    dense_of,
    masked,
    starts_of,
    take_cells,
)
from ..storage.patterns import may_be_shards
from ..storage.spans import Spans, concat_known
from .keys import same_cells
from .layout import Layout
from .reader import DerivedReader, Reader, open_reader

PADS = ("zero", "repeat")
VALID = "valid"


class Windows(DerivedReader):
    """``length`` consecutive rows of a dataset as one sample, a window, at every ``stride``-th row.

    source: a reader, or the path of one. group: the field, or fields, that tell episodes apart: no window
    crosses from one into the next. A group is a run of rows with the same value; with ``order_by``, the rows
    are sorted by that field first, and a group is all rows of one value, wherever they are.

    across: whether a window may begin in one file and end in the next. By default it may only where the names
    show that the files are shards of one dataset (``NAME-00000-of-00004.SUFFIX``). Any other file is an
    episode of its own, as is each part that a reader tells apart (:meth:`Reader.boundaries`). Only a group
    with ``order_by`` gathers its rows from all files.

    fields: those that a window has (default: all). Numbers become a Tensor of shape (length,), arrays of one
    shape (length, *shape), and images, which are decoded and all have one size, (length, height, width,
    channels). The fields of ``group`` keep their kind: there is one value for the window.

    pad: without it, windows lie inside of their group, and the rows at its end that fill none are left out.
    With ``"zero"`` or ``"repeat"`` (the last row of the group again) they are in a window, too, and the field
    ``valid``, a Tensor("bool", (length,)), says which rows are real.

    Raises: SchemaError for fields whose rows cannot be stacked; FieldNameError where there is no such field;
    OptionError for a length or a stride below 1.
    """

    format = "windows"
    # Rows of the source that are read together to find groups.
    group_rows: ClassVar[int] = 1 << 16

    def __init__(
        self,
        source: Reader | str | os.PathLike[str],
        length: int,
        stride: int = 1,
        *,
        group: str | Sequence[str] | None = None,
        order_by: str | None = None,
        fields: Sequence[str] | None = None,
        pad: str | None = None,
        across: bool | None = None,
    ) -> None:
        self.base = base = open_reader(source)
        self.path = base.path
        with located(path=self.path):
            self._length = whole("length", length, 1)
            self._stride = whole("stride", stride, 1)
            if pad is not None and pad not in PADS:
                raise OptionError(f"pad is {' or '.join(PADS)}, not {pad!r}")
            self._pad = pad
            self._groups = base._names([group] if isinstance(group, str) else list(group or ()))
            self.schema = self._schema(base._names(fields))
            joined = across if across is not None else order_by is not None and bool(self._groups)
            self._boundaries = base.boundaries()[: 0 if joined else None]
            # Rows in the order of the windows; None if that is their own order.
            self._order, self._starts = self._runs_of(order_by, across is None)
        sizes = np.diff(self._starts)
        if pad is None:
            steps = (sizes - self._length) // self._stride
        else:
            # No window begins behind the last row.
            missed = -(-np.maximum(sizes - self._length, 0) // self._stride)
            steps = np.minimum(missed, (sizes - 1) // self._stride)
        # The number of the first window of every group.
        self._firsts = starts_of(np.maximum(steps + 1, 0))
        self.length = int(self._firsts[-1])

    def _schema(self, fields: Sequence[str]) -> Schema:
        fields_of_window: dict[str, Field] = {}
        for name in fields:
            field = self.base.schema[name]
            if name in self._groups:
                fields_of_window[name] = field
                continue
            shape, dtype = self._shape_of(name, field)
            fields_of_window[name] = Tensor(dtype, (self._length, *shape))
        if self._pad is not None:
            if VALID in fields_of_window:
                raise OptionError(f"there is a field {VALID!r} already; leave it out with fields=[…]")
            fields_of_window[VALID] = Tensor("bool", (self._length,))
        return Schema(fields_of_window)

    def _shape_of(self, name: str, field: Field) -> tuple[tuple[int, ...], str]:
        """Return the shape and dtype of one row."""
        if isinstance(field, Image) and not field.optional:
            return self._pixels_of(name)
        dense = dense_of(field)
        # A missing real number is NaN; there is no such whole number.
        if dense is None or (field.optional and dense[0].kind not in "fmM"):
            why = "its cells have no one shape" if dense is None else "some of its cells may be missing"
            message = f"rows of {field} cannot be stacked: {why}"
            raise SchemaError(
                f"{message}; name the other fields with fields=[…], or make it a group", field=name
            )
        return dense[1], dense[0].name

    def _pixels_of(self, name: str) -> tuple[tuple[int, ...], str]:
        """Return the shape and dtype of the first image, which is that of all."""
        if not len(self.base):
            raise SchemaError("there is no image to tell the size by", field=name)
        pixels = decode_cell(self.base.schema[name], self.base._read(np.zeros(1, np.int64), (name,))[name], 0)
        return pixels.shape, pixels.dtype.name

    def _runs_of(self, order_by: str | None, warned: bool) -> tuple[I64 | None, I64]:
        """Return the rows group by group (None: their own order), and the bounds of the groups."""
        changed = self._changes()
        if warned:
            self._warn_of_shards(self._boundaries[~changed[self._boundaries]])
        changed[self._boundaries] = True
        bounds = np.append(np.flatnonzero(changed), len(self.base)).astype(np.int64)
        if order_by is None:
            return None, bounds
        field = self.base.schema[order_by]
        cell = field.cell
        if cell is None or cell[1] or cell[0].kind not in "biufmM":
            raise OptionError(f"rows are sorted by a number or a time, and {order_by!r} is {field}")
        values = np.concatenate(
            [
                np.empty(0, cell[0]),
                *(part[order_by] for part in self.base._consecutive(self.group_rows, (order_by,))),
            ]
        )
        codes = np.repeat(self._codes(bounds[:-1]), np.diff(bounds))
        parts = np.searchsorted(self._boundaries, np.arange(len(codes)), side="right")
        codes += parts * (int(codes.max(initial=0)) + 1)
        order = np.lexsort((values, codes)).astype(np.int64)
        firsts = np.flatnonzero(np.diff(codes[order], prepend=-1))
        return order, np.append(firsts, len(order)).astype(np.int64)

    def _warn_of_shards(self, cuts: I64) -> None:
        """Warn where windows end at files that may be shards of one dataset: names alone do not tell."""
        if not len(cuts):
            return
        before, after = (self.base.where(int(cuts[0]) + step) for step in (-1, 0))
        if may_be_shards(before, after):
            warnings.warn(
                f"no window goes on from {before} into {os.path.basename(after)}: if these files are shards "
                f"of one dataset, say across=True, and if each is an episode, across=False",
                stacklevel=4,
            )

    def _changes(self) -> npt.NDArray[np.bool_]:
        """Return flags of the rows that begin another group than the row before them has."""
        changed = np.zeros(len(self.base), dtype=np.bool_)
        changed[:1] = True
        if not self._groups:
            return changed
        start, before = 0, None
        for columns in self.base._consecutive(self.group_rows, self._groups):
            rows = columns.rows
            for name, column in columns.items():
                same = same_cells(take_cells(column, slice(0, rows - 1)), take_cells(column, slice(1, rows)))
                changed[start + 1 : start + rows] |= ~same
                if before is not None:
                    changed[start] |= not same_cells(before[name], take_cells(column, slice(0, 1)))[0]
            before, start = columns.take(slice(rows - 1, rows)), start + rows
        return changed

    def _codes(self, firsts: I64) -> I64:
        """Return a number for the group of every run of rows; ``firsts``: the first row of each run."""
        codes_by_value: dict[tuple[bytes | None, ...], int] = {}
        codes = np.zeros(len(firsts), dtype=np.int64)
        for start in range(0, len(firsts) if self._groups else 0, self.group_rows):
            columns = self.base._read(firsts[start : start + self.group_rows], self._groups)
            for row in range(columns.rows):
                value = tuple(cell_bytes(columns[name], row) for name in self._groups)
                codes[start + row] = codes_by_value.setdefault(value, len(codes_by_value))
        return codes

    def _rows_of(self, indices: I64) -> tuple[I64, npt.NDArray[np.bool_]]:
        """Return the rows of windows, and flags of those that are not padding."""
        groups = np.searchsorted(self._firsts, indices, side="right") - 1
        begins = self._starts[groups] + (indices - self._firsts[groups]) * self._stride
        rows, ends = begins[:, None] + np.arange(self._length), self._starts[groups + 1][:, None]
        real = rows < ends
        rows = np.minimum(rows, ends - 1)
        return (rows if self._order is None else self._order[rows]), real

    def _base_rows(self, rows: I64) -> I64:
        return self._rows_of(rows)[0][:, 0]

    def _base_fields(self, fields: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in fields if name != VALID or self._pad is None)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        rows, real = self._rows_of(indices)
        # Windows overlap; a row is read once.
        used, back = np.unique(rows, return_inverse=True)
        back = back.reshape(rows.shape)
        names = self._base_fields(fields)
        windows = Columns()
        try:
            columns = masked(self.base.schema, self.base._read(used, names))
            for name in fields:
                if name not in names:
                    windows[name] = real
                elif name in self._groups:
                    windows[name] = take_cells(columns[name], back[:, 0])
                else:
                    windows[name] = self._window(name, columns[name], used, back, real)
        except BatchplantError as error:
            if error.sample is not None:
                within = np.flatnonzero((rows == error.sample).any(axis=1))
                error.message = f"row {error.sample}: {error.message}"
                error.sample = int(indices[within[0]]) if len(within) else None
            raise error.at(path=self.path) from None
        return windows

    def _window(self, name: str, column: Column, used: I64, back: I64, real: npt.NDArray[np.bool_]) -> Column:
        values: Column = column.values if isinstance(column, Masked) else column
        if isinstance(self.base.schema[name], Image):
            values = self._pixels(name, column, used)
        assert not isinstance(values, Ragged)
        windows = values[back]
        if self._pad == "zero":
            windows[~real] = np.zeros((), windows.dtype)
        return windows

    def _pixels(self, name: str, column: Column, used: I64) -> AnyArray:
        field = self.schema[name]
        assert isinstance(field, Tensor)
        shape = tuple(size or 0 for size in field.shape[1:])
        stacked = np.empty((len(used), *shape), dtype=field.dtype)
        for row, number in enumerate(used.tolist()):
            with located(sample=number, field=name):
                pixels = decode_cell(self.base.schema[name], column, row)
                if pixels.shape != shape or pixels.dtype != stacked.dtype:
                    have, want = f"{pixels.dtype} {pixels.shape}", f"{field.dtype} {shape}"
                    raise DecodeError(f"the image is {have}, and the first one is {want}")
            stacked[row] = pixels
        return stacked

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        return self.base._ranges(self._base_fields(fields), np.unique(self._rows_of(indices)[0]))

    def _first_rows(self) -> I64:
        """Return the first row of every window."""
        counts = np.diff(self._firsts)
        inside = np.arange(self.length) - np.repeat(self._firsts[:-1], counts)
        rows = np.repeat(self._starts[:-1], counts) + inside * self._stride
        return rows if self._order is None else self._order[rows]

    def _layout(self) -> Layout:
        cells = [field.cell for field in self.schema.values() if field.cell is not None]
        size = sum(dtype.itemsize * math.prod(shape) for dtype, shape in cells)

        def blocks() -> I64 | None:
            blocks = self.base.blocks()
            return None if blocks is None else blocks[self._first_rows()]

        return Layout(blocks=blocks, sizes=np.broadcast_to(np.int64(size), (self.length,)))

    def facts(self) -> dict[str, object]:
        groups = len(self._starts) - 1
        return {"rows": len(self.base), "length": self._length, "stride": self._stride, "groups": groups}


class DeltaWindows(Windows):
    """Each row of a dataset with rows around it: ``deltas={"action": [0, 1, 2], "state": [-1, 0]}``.

    source: a reader, or the path of one. deltas: for each field that becomes a Tensor, which rows of it a
    sample has, counted from its own; the other fields keep their kind. fps: deltas are seconds, and rows are
    so many a second. group: the fields that tell episodes apart, where the source does not by itself
    (:meth:`Reader.boundaries`).

    A sample has the rows of its own episode only. Where the episode has none, its first or last row stands,
    and the field ``NAME_is_pad``, a Tensor("bool"), says so. Only the rows of a field that its deltas name
    are read, each once in a batch.

    Raises: OptionError for a delta that is no whole number of rows; SchemaError for fields whose rows cannot
    be stacked; FieldNameError where there is no such field.
    """

    format = "delta-windows"
    # Part of a row that a delta in seconds may be off.
    tolerance: ClassVar[float] = 0.01

    def __init__(
        self,
        source: Reader | str | os.PathLike[str],
        deltas: Mapping[str, Sequence[float]],
        *,
        fps: float | None = None,
        group: str | Sequence[str] | None = None,
    ) -> None:
        self.base = base = open_reader(source)
        self.path, self._pad, self.length = base.path, "repeat", len(base)
        with located(path=self.path):
            self._groups = base._names([group] if isinstance(group, str) else list(group or ()))
            names = base._names(list(deltas))
            self._deltas = {name: self._rows_apart(name, deltas[name], fps or 1) for name in names}
            self.schema = self._schema(tuple(base.schema))
            self._boundaries = base.boundaries()
            self._order, self._starts = self._runs_of(None, False)

    def _rows_apart(self, name: str, deltas: Sequence[float], fps: float) -> I64:
        values = np.asarray(deltas, dtype=np.float64).reshape(-1) * fps
        rows = np.rint(values).astype(np.int64)
        off = np.abs(values - rows) > self.tolerance
        if off.any() or not len(rows):
            why = (
                f"{np.asarray(deltas)[off][0]} is no whole number of rows" if len(rows) else "there are none"
            )
            raise OptionError(f"deltas of {name!r}: {why}", field=name)
        return rows

    def _schema(self, fields: Sequence[str]) -> Schema:
        schema: dict[str, Field] = {}
        for name in fields:
            schema[name] = self.base.schema[name]
            if name in self._deltas:
                shape, dtype = self._shape_of(name, schema[name])
                schema[name] = Tensor(dtype, (len(self._deltas[name]), *shape))
        for name, rows in self._deltas.items():
            if f"{name}_is_pad" in schema:
                raise SchemaError(f"there is a field {name}_is_pad already; rename() it first")
            schema[f"{name}_is_pad"] = Tensor("bool", (len(rows),))
        return Schema(schema)

    def _base_rows(self, rows: I64) -> I64:
        return rows

    def _around(self, indices: I64, deltas: I64) -> tuple[I64, npt.NDArray[np.bool_]]:
        """Return the rows at deltas from others, and flags of those that are real."""
        groups = np.searchsorted(self._starts, indices, side="right") - 1
        rows = indices[:, None] + deltas
        inside = np.clip(rows, self._starts[groups][:, None], self._starts[groups + 1][:, None] - 1)
        return inside, inside == rows

    def _parts(self, fields: Sequence[str]) -> dict[tuple[int, ...] | None, list[str]]:
        """Return the fields of the base that have the same deltas; None: no deltas."""
        parts: dict[tuple[int, ...] | None, list[str]] = {}
        for name in fields:
            if name in self.base.schema:
                deltas = tuple(self._deltas[name].tolist()) if name in self._deltas else None
                parts.setdefault(deltas, []).append(name)
        return parts

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns = Columns()
        for deltas, names in self._parts(fields).items():
            if deltas is None:
                columns.update(self.base._read(indices, names))
                continue
            rows, real = self._around(indices, np.array(deltas))
            columns.update(self._filled(names, rows))
            missing = [name for name in names if name not in columns]
            if not missing:
                continue
            used, back = np.unique(rows, return_inverse=True)
            part = masked(self.base.schema, self.base._read(used, missing))
            for name in missing:
                columns[name] = self._window(name, part[name], used, back.reshape(rows.shape), real)
        for name in fields:
            if name not in columns:
                deltas_of_field = self._deltas[name.removesuffix("_is_pad")]
                columns[name] = ~self._around(indices, deltas_of_field)[1]
        return Columns((name, columns[name]) for name in fields)

    def _filled(self, names: Sequence[str], rows: I64) -> Columns:
        """Return the windows of fields that the base decodes where they belong."""
        columns, places = Columns(), np.arange(rows.size)
        for name in names:
            field = self.base.schema[name]
            if isinstance(field, Tensor) and field.cell is not None:
                dtype, shape = field.cell
                windows = self._buffers.take((*rows.shape, *shape), dtype)
                if self.base._fill(name, rows.ravel(), windows.reshape(-1, *shape), places):
                    columns[name] = windows
        return columns

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        ranges = []
        for deltas, names in self._parts(fields).items():
            rows = indices if deltas is None else np.unique(self._around(indices, np.array(deltas))[0])
            ranges.append(self.base._ranges(names, rows))
        return concat_known(ranges)

    def _layout(self) -> Layout:
        layout = self.base._layout()
        return Layout(
            blocks=layout.all_blocks,
            boundaries=self._starts[1:-1],
            sizes=lambda: layout.numbers("sizes"),
        )

    def facts(self) -> dict[str, object]:
        deltas = {name: rows.tolist() for name, rows in self._deltas.items()}
        return {**self.base.facts(), "episodes": len(self._starts) - 1, "deltas": deltas}
