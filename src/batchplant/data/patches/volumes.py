"""Patches of volumes that differ in shape: each sample of a dataset is a volume."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...codecs.cells import decode_cell
from ...errors import BatchplantError, DecodeError, OptionError, SchemaError, located
from ...order.keyed import derive, key_of, uniform, whole
from ...schema import Field, Int, Schema, Tensor
from ...schema.columns import I64, AnyArray, Columns, starts_of, take_cells
from ...storage import index
from ...storage.cache import ChunkCache
from ...storage.spans import Spans, concat_known
from ..arrays import Array, each
from ..layout import Layout
from ..reader import DerivedReader, Reader, open_reader
from .reader import Around

if TYPE_CHECKING:
    from ..expressions import Condition

# Bytes of the corners of patches that are kept.
CORNERS_BYTES = 64 << 20
POSITION, VOLUME = "position", "volume"
VERSION = 1


class VolumePatches(DerivedReader):
    """Boxes of ``size`` cut out of the volumes of a dataset, whose samples are volumes of differing shapes.

    source: a reader, or the path of one. fields: those that are cut, of one shape within each sample, such as
    a scan and its labels (default: all arrays of varying shape). size: along the first axes; the others have
    one size and are taken whole.

    stride: a patch every so many steps, along all axes or along each (default: the size). random: instead, so
    many patches of every volume, at places drawn with ``seed``. positions: or exactly these patches, each the
    number of a volume and where it begins there. pad: a number that stands for what lies
    outside. With it, a stride covers everything, and a volume that is smaller than a patch gives one that is
    padded at its end; without it, such a volume is an error.

    around: a condition on a field of the shape of those that are cut, as ``"label > 0"``: in the middle of
    the ``share`` of the random patches is a value of which it is true, as far as the edge allows. They are
    exactly that many; those of a volume without such values lie anywhere.

    A sample has the patch, ``position`` (where it begins), ``volume`` (the number of the sample that it is
    cut from) and the other fields of that sample. The patches of a volume are a block: with
    ``order="quasi_random"`` a volume is decoded about once.

    Raises: OptionError for fields that are no volumes of that many axes, and, without ``pad``, for a volume
    that is smaller than a patch; FieldNameError where there is no such field.
    """

    format = "patches"

    def __init__(
        self,
        source: Reader | str | os.PathLike[str],
        fields: str | Sequence[str] | None = None,
        *,
        size: Sequence[int],
        stride: int | Sequence[int] | None = None,
        random: int | None = None,
        seed: int = 0,
        positions: npt.ArrayLike | None = None,
        around: str | Condition | None = None,
        share: float = 1 / 3,
        pad: float | None = None,
    ) -> None:
        self.base = base = open_reader(source)
        self.path = base.path
        with located(path=self.path):
            if isinstance(size, int) or not len(size):
                raise OptionError(
                    f"size is a size for each of the first axes, as in (64, 64, 64), not {size}"
                )
            self._size = np.array([whole("size", side, 1) for side in size], dtype=np.int64)
            self._cut = self._fields([fields] if isinstance(fields, str) else fields)
            self.schema, self._pad = self._schema(), pad
            if sum(value is not None for value in (stride, random, positions)) > 1:
                raise OptionError("patches have a stride, or are random, or have positions")
            steps = (
                list(size) if stride is None else [stride] * len(size) if isinstance(stride, int) else stride
            )
            if len(steps) != len(size):
                raise OptionError(f"stride has {len(steps)} axes, and size has {len(size)}")
            self._step = np.array([whole("stride", side, 1) for side in steps], dtype=np.int64)
            self._random = None if random is None else whole("random", random, 1)
            self._key = key_of(seed, 0, 11)
            self._around = None if around is None else self._around_of(around, share, seed)
            self._shapes = self._shapes_of_all()
            self._counts = self._count_positions()
        patches_per_volume = self._counts.prod(axis=1)
        self._positions = None if positions is None else self._checked(positions)
        self._firsts = starts_of(
            patches_per_volume if self._random is None else np.where(patches_per_volume > 0, self._random, 0)
        )
        self.length = int(self._firsts[-1]) if self._positions is None else len(self._positions)

    def _checked(self, positions: npt.ArrayLike) -> I64:
        table = np.asarray(positions, dtype=np.int64)
        if table.ndim != 2 or table.shape[1] != 1 + len(self._size):
            raise OptionError(
                f"positions have {1 + len(self._size)} columns, and not the shape {table.shape}"
            )
        if (table[:, 0] < 0).any() or (table[:, 0] >= len(self.base)).any():
            raise OptionError(f"positions name volumes from 0 to {len(self.base) - 1}")
        starts = table[:, 1:]
        over = (starts < 0) | (starts + self._size > self._shapes[table[:, 0]])
        if over.any() and (self._pad is None or (starts < 0).any()):
            row = int(np.argmax(over.any(axis=1)))
            raise OptionError(f"the patch at {starts[row].tolist()} reaches over the edge of its volume")
        return table

    def _fields(self, names: Sequence[str] | None) -> tuple[str, ...]:
        axes = len(self._size)
        if names is None:
            kinds = self.base.schema.items()
            names = [
                name
                for name, kind in kinds
                if isinstance(kind, Tensor) and (None in kind.shape[:axes] or self._is_sliced(name))
            ]
        if not names:
            raise OptionError("there are no arrays of varying shape; of arrays of one shape cut Patches")
        for name in self.base._names(names):
            field = self.base.schema[name]
            if not isinstance(field, Tensor) or len(field.shape) < axes or None in field.shape[axes:]:
                raise OptionError(f"patches of {axes} axes cannot be cut out of {field}", field=name)
            if field.optional:
                raise OptionError("volumes must not be missing", field=name)
        return self.base._names(names)

    def _is_sliced(self, name: str) -> bool:
        return len(self.base) > 0 and self.base._cell_array(name, 0) is not None

    def _around_of(self, around: str | Condition, share: float, seed: int) -> Around:
        axes = len(self._size)
        tensors = [(name, field) for name, field in self.base.schema.items() if isinstance(field, Tensor)]
        fields = {name: field.dtype for name, field in tensors if len(field.shape) == axes}
        # Corners of the patches around values of interest, by volume.
        self._corners = ChunkCache(CORNERS_BYTES)
        return Around(around, share, seed, self._random, fields)

    def _schema(self) -> Schema:
        fields: dict[str, Field] = {}
        for name, field in self.base.schema.items():
            if name in (POSITION, VOLUME):
                raise SchemaError(f"a field cannot be called {name!r}: patches have one of their own")
            fields[name] = field
            if name in self._cut:
                assert isinstance(field, Tensor)
                inner = field.shape[len(self._size) :]
                fields[name] = dataclasses.replace(field, shape=(*self._size.tolist(), *inner))
        fields[POSITION], fields[VOLUME] = Tensor("int64", (len(self._size),)), Int()
        return Schema(fields)

    def _shapes_of_all(self) -> I64:
        """Return the shapes of all volumes; an index stores them."""
        name, axes = self._cut[0], len(self._size)

        def build(reader: Reader) -> tuple[index.Arrays, index.Facts]:
            shapes = [self._values(reader, number, name).shape[:axes] for number in range(len(reader))]
            return {"shapes": np.array(shapes, dtype=np.int64).reshape(-1, axes)}, {}

        def check(content: index.Index) -> bool:
            shapes = content.arrays["shapes"]
            return shapes.dtype == np.int64 and shapes.shape == (len(self.base), axes)

        volume_shapes: list[tuple[int, ...]] = []
        while len(volume_shapes) < len(self.base):
            array = self.base._cell_array(name, len(volume_shapes))
            if array is None:
                break
            volume_shapes.append(array.shape[:axes])
        else:
            return np.array(volume_shapes, dtype=np.int64).reshape(-1, axes)
        stored = self.base._indexed((name,), "volume-shapes", str(axes), build, version=VERSION, check=check)
        return build(self.base)[0]["shapes"] if stored is None else stored.arrays["shapes"]

    def _count_positions(self) -> I64:
        """Count the positions of patches along each axis of each volume."""
        over = self._shapes - self._size
        small = np.flatnonzero((over < 0).any(axis=1))
        if len(small) and self._pad is None:
            shape = tuple(self._shapes[small[0]].tolist())
            raise OptionError(
                f"a volume of shape {shape} is smaller than a patch of {tuple(self._size.tolist())}; pad=0 "
                "fills such patches up",
                sample=int(small[0]),
            )
        over = np.maximum(over, 0)
        # Nothing is cut out of a volume without values.
        filled = self._shapes.min(axis=1, keepdims=True, initial=1) > 0
        if self._random is not None:
            return np.where(filled, over + 1, 0)
        steps = over // self._step if self._pad is None else -(-over // self._step)
        return np.where(filled, steps + 1, 0)

    def _starts(self, indices: I64) -> tuple[I64, I64]:
        """Return the volume of each patch, and its first corner there."""
        if self._positions is not None:
            table = self._positions[indices]
            return table[:, 0], table[:, 1:]
        volume = np.searchsorted(self._firsts, indices, side="right") - 1
        number, counts = indices - self._firsts[volume], self._counts[volume]
        starts = np.empty((len(indices), len(self._size)), dtype=np.int64)
        for axis in reversed(range(len(self._size))):
            if self._random is None:
                number, step_number = np.divmod(number, counts[:, axis])
                starts[:, axis] = step_number * self._step[axis]
            else:
                drawn = uniform(derive(self._key, np.full(len(indices), axis)), indices)
                starts[:, axis] = np.minimum((drawn * counts[:, axis]).astype(np.int64), counts[:, axis] - 1)
        if self._around is not None:
            rows = np.flatnonzero(self._around.chosen(indices))
            for number in np.unique(volume[rows]).tolist():
                corners = self._corners_around(self._around, number)
                if corners is not None:
                    rows_of_volume = rows[volume[rows] == number]
                    ids = self._chosen(self._around, number)
                    starts[rows_of_volume] = corners[np.searchsorted(ids, indices[rows_of_volume])]
        return volume, starts

    def _chosen(self, around: Around, volume: int) -> I64:
        """Return the patches of a volume that are cut around a value of interest."""
        patches = np.arange(self._firsts[volume], self._firsts[volume + 1])
        return patches[around.chosen(patches)]

    def _corners_around(self, around: Around, volume: int) -> I64 | None:
        def draw() -> I64 | None:
            try:
                values = self._values(self.base, volume, around.field)
                self._check_shape(values, volume)
                # Planes of consecutive bytes.
                axis = len(self._size) - 1 if isinstance(values, Array) else 0
                places = around.places(values, axis, self._chosen(around, volume))
            except BatchplantError as error:
                error.sample = int(self._firsts[volume])
                raise error.at(path=self.path, field=around.field) from None
            if places is None:
                return None
            largest = np.maximum(self._shapes[volume] - self._size, 0)
            return np.asarray(np.clip(places - self._size // 2, 0, largest), dtype=np.int64)

        return self._corners.get(volume, draw, lambda corners: 0 if corners is None else corners.nbytes)

    def _check_shape(self, values: Array | AnyArray, volume: int) -> None:
        shape = tuple(self._shapes[volume].tolist())
        if values.shape[: len(self._size)] != shape:
            raise DecodeError(f"its shape is {values.shape}, and {self._cut[0]!r} is {shape}")

    @staticmethod
    def _values(reader: Reader, number: int, name: str) -> Array | AnyArray:
        """Return a volume: an array that is read when it is sliced, if the format can, else its values."""
        array = reader._cell_array(name, number)
        if array is not None:
            return array
        column = reader._read(np.array([number]), (name,))[name]
        with located(field=name):
            return np.asarray(decode_cell(reader.schema[name], column, 0))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        volumes, starts = self._starts(indices)
        used, back = np.unique(volumes, return_inverse=True)
        uncut = tuple(name for name in fields if name in self.base.schema and name not in self._cut)
        uncut_columns = self.base._read(used, uncut)
        columns = Columns()
        for name in fields:
            if name == POSITION:
                columns[name] = starts
            elif name == VOLUME:
                columns[name] = volumes
            elif name in uncut:
                columns[name] = take_cells(uncut_columns[name], back)
            else:
                columns[name] = self._patches(name, indices, used, back, starts)
        return columns

    def _patches(self, name: str, indices: I64, used: I64, back: I64, starts: I64) -> AnyArray:
        field = self.schema[name]
        assert field.cell is not None
        dtype, shape = field.cell
        out = self._buffers.take((len(indices), *shape), dtype)
        out[:] = 0 if self._pad is None else self._pad

        def cut(number: int) -> None:
            rows, volume = np.flatnonzero(back == number), int(used[number])
            try:
                values = self._values(self.base, volume, name)
                self._check_shape(values, volume)
                if isinstance(values, Array):
                    values.read_boxes(starts[rows], self._size.tolist(), out, rows)
                    return
            except BatchplantError as error:
                error.sample = int(indices[rows[0] if error.sample is None else error.sample])
                raise error.at(path=self.path, field=name) from None
            for row in rows.tolist():
                ends = starts[row] + self._size
                box = values[tuple(slice(a, b) for a, b in zip(starts[row], ends, strict=True))]
                out[row][tuple(slice(0, length) for length in box.shape)] = box

        # Whole volumes are decoded one by one: several at once may not fit into memory.
        each(cut, range(len(used)), out.nbytes if self._is_sliced(name) else 0)
        return out

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        volumes, starts = self._starts(indices)
        used = np.unique(volumes)
        parts = [self.base._ranges([n for n in fields if n in self.base.schema and n not in self._cut], used)]
        for name in (name for name in fields if name in self._cut):
            for volume in used.tolist():
                array = self.base._cell_array(name, volume)
                ranges = (
                    None if array is None else array.ranges(starts[volumes == volume], self._size.tolist())
                )
                parts.append(ranges or self.base._ranges([name], np.array([volume])))
        return concat_known(parts)

    def _layout(self) -> Layout:
        """Return the volumes as blocks of patches."""
        return Layout(block_sizes=np.diff(self._firsts) if self._positions is None else None)

    def _base_rows(self, rows: I64) -> I64:
        if self._positions is not None:
            return self._positions[rows, 0]
        return np.searchsorted(self._firsts, rows, side="right") - 1

    def facts(self) -> dict[str, object]:
        return {"volumes": len(self.base), "size": tuple(self._size.tolist())}
