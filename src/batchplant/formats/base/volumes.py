"""Readers whose samples are volumes: medical images, with their labels and their position in space.

``affine`` maps the numbers of a voxel along the axes to millimetres: to the right, the front and the top of
the patient. ``orientation`` permutes and mirrors axes, ``spacing`` resamples. Both are done when a volume is
sliced, so a patch reads only what it needs.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ...codecs.cells import encode_samples
from ...codecs.npy import pack_tensor
from ...data.arrays import Array, ChunkedArray, Index, Picks
from ...data.keys import FormatKeys
from ...data.layout import Layout
from ...data.reader import Reader
from ...errors import BatchplantError, DamagedError, DataError, OptionError, SchemaError, located
from ...schema import Field, Schema, Tensor, Text
from ...schema.columns import I64, U8, AnyArray, AnyDType, Columns, Ragged, take_cells
from ...storage import MappedSource, Source
from ...storage.cache import ChunkCache
from ...storage.compressed import UnpackedSource
from ...storage.local import PathSource
from ...storage.spans import SourceRun, Spans

IMAGE, LABEL, AFFINE, SPACING, NAME = "image", "label", "affine", "spacing", "name"
# Directions of an axis: towards the first letter of a pair the coordinate falls, towards the second it rises.
SIDES = ("LR", "PA", "IS")
# Bytes that are unpacked at a time, and that are copied at a time where all are in memory.
SLAB_BYTES, COPIED_BYTES = 4 << 20, 1 << 20


@dataclasses.dataclass(frozen=True)
class Volume:
    """Values, read when they are sliced, and the affine of their first three axes.

    ``runs``: path, start and size of the bytes in files that all values take.
    """

    array: Array
    affine: AnyArray
    runs: tuple[tuple[str, int, int], ...]

    @property
    def spacing(self) -> AnyArray:
        """Return the distances of neighbouring voxels in millimetres."""
        return lengths_of(self.affine)


class Slabs(ChunkedArray):
    """A volume in one run of bytes, first axis fastest, read in slabs of consecutive bytes.

    ``open_source`` returns the source of the bytes. ``packed``: size of the file if it is compressed, else 0.
    ``scale``: slope and intercept of the values; None: they are as they are stored. ``slab_bytes``: size of a
    slab. Slabs are small even where all bytes are in memory: values change order when they are copied.
    """

    def __init__(
        self, path: str, field: str, shape: Sequence[int], stored_dtype: AnyDType, dtype: AnyDType,
        start: int, open_source: Callable[[], Source], cache: ChunkCache,
        *, packed: int = 0, scale: tuple[float, float] | None = None, slab_bytes: int = SLAB_BYTES,
    ) -> None:  # fmt: skip
        chunks = list(shape)
        strides = [stored_dtype.itemsize * math.prod(shape[:axis]) for axis in range(len(shape) + 1)]
        for axis in reversed(range(len(shape))):
            chunks[axis] = min(shape[axis], max(1, slab_bytes // max(1, strides[axis])))
            if chunks[axis] > 1:
                break
        super().__init__(path, field, shape, dtype, [max(1, side) for side in chunks])
        self._run_dtype, self._start, self._strides, self._scale = stored_dtype, start, strides, scale
        self._open, self._cache, self._packed = open_source, cache, packed

    def _stored(self) -> int | None:
        return self._packed or None

    def _run(self, index: Index) -> tuple[int, tuple[int, ...]]:
        """Return the start of a slab, and its shape."""
        corner = [number * side for number, side in zip(index, self.chunks, strict=True)]
        start = sum(first * stride for first, stride in zip(corner, self._strides, strict=False))
        shape = zip(self.chunks, self.shape, corner, strict=True)
        return self._start + start, tuple(min(side, size - first) for side, size, first in shape)

    def _chunk(self, index: Index) -> AnyArray:
        unchanged = self._scale is None and self._run_dtype == self.dtype
        if unchanged and isinstance(self._open(), MappedSource | UnpackedSource):
            return self._values(index)
        return self._cache.get(
            (self.path, *index), lambda: self._values(index), lambda array: int(array.nbytes)
        )

    def _load_chunks(self, indices: Sequence[Index]) -> Sequence[AnyArray | DataError]:
        if not self._packed or isinstance(source := self._open(), UnpackedSource):
            return super()._load_chunks(indices)

        def unpack(numbers: list[int]) -> list[AnyArray]:
            """Unpack slabs that follow one another together: each would begin before its start."""
            runs = {number: self._run(indices[number]) for number in numbers}
            starts = {start for start, _ in runs.values()}
            slabs: dict[int, AnyArray] = {}
            following: list[int] = []
            for number in sorted(numbers, key=lambda number: runs[number][0]):
                following.append(number)
                start, end = runs[following[0]][0], runs[number][0] + self._bytes_of(runs[number][1])
                if end in starts:
                    continue
                with located(path=self.path):
                    data = source.view(start, end - start)
                for row in following:
                    first, shape = runs[row]
                    part = data[first - start : first - start + self._bytes_of(shape)]
                    slabs[row] = self._converted(part.copy(), shape)
                following = []
            return [slabs[number] for number in numbers]

        keys = [(self.path, *index) for index in indices]
        return self._cache.get_all(keys, unpack, lambda array: int(array.nbytes))

    def _bytes_of(self, shape: tuple[int, ...]) -> int:
        return math.prod(shape) * self._run_dtype.itemsize

    def _values(self, index: Index) -> AnyArray:
        start, shape = self._run(index)
        with located(path=self.path):
            return self._converted(self._open().view(start, self._bytes_of(shape)), shape)

    def _converted(self, data: U8, shape: tuple[int, ...]) -> AnyArray:
        values: AnyArray = np.ascontiguousarray(data).view(self._run_dtype).reshape(shape, order="F")
        if self._scale is not None:
            slope, intercept = self._scale
            with np.errstate(over="ignore", invalid="ignore"):
                values = values * np.float64(slope) + np.float64(intercept)
        with np.errstate(over="ignore", invalid="ignore"):
            return values.astype(self.dtype, copy=False)

    def _ahead(self, chunks: Sequence[Index]) -> None:
        if not self._packed and (source := self._open()).remote:
            runs = [(start, math.prod(shape)) for start, shape in map(self._run, chunks)]
            starts, sizes = np.array(runs, dtype=np.int64).reshape(-1, 2).T
            source.request(starts, sizes * self._run_dtype.itemsize)

    def _places(self, chunks: Sequence[Index]) -> list[SourceRun] | None:
        if self._packed:
            return [(PathSource(self.path), 0, self._packed)]
        source, itemsize = self._open(), self._run_dtype.itemsize
        return [(source, start, itemsize * math.prod(shape)) for start, shape in map(self._run, chunks)]


class Stacked(Array):
    """Arrays of one shape and dtype as one, along a new last axis."""

    def __init__(self, arrays: Sequence[Array]) -> None:
        first = arrays[0]
        dtype = np.result_type(*(array.dtype for array in arrays))
        super().__init__(first.path, first.field, (*first.shape, len(arrays)), dtype, (*first.chunks, 1))
        self._arrays = arrays
        for array in arrays:
            if array.shape != first.shape:
                raise SchemaError(
                    f"its shape is {array.shape}, and that of {first.path} is {first.shape}", path=array.path
                )

    def _take(self, picks: Picks) -> AnyArray:
        parts = [self._arrays[number]._take(picks[:-1]) for number in picks[-1]]
        return np.stack(parts, axis=-1).astype(self.dtype, copy=False)

    def _stored(self) -> int | None:
        return sum(array._stored() or array.nbytes for array in self._arrays)


class Turned(Array):
    """An array with its axes in another order, some of them backwards.

    ``axes[i]`` is the axis of the other array that becomes axis i, ``flips[i]`` whether it is mirrored.
    """

    def __init__(self, array: Array, axes: Sequence[int], flips: Sequence[bool]) -> None:
        shape, chunks = ([sizes[axis] for axis in axes] for sizes in (array.shape, array.chunks))
        super().__init__(array.path, array.field, shape, array.dtype, chunks)
        self._array, self._axes, self._flips = array, tuple(axes), tuple(flips)

    def _take(self, picks: Picks) -> AnyArray:
        below: list[range] = [range(0)] * self.ndim
        for pick, axis, flip, size in zip(picks, self._axes, self._flips, self.shape, strict=True):
            below[axis] = range(size - 1 - pick[-1], size - pick[0], pick.step) if flip and pick else pick
        steps = tuple(slice(None, None, -1 if flip else 1) for flip in self._flips)
        return self._array._take(tuple(below)).transpose(self._axes)[steps]

    def _stored(self) -> int | None:
        return self._array._stored()


class Resampled(Array):
    """An array on a grid of other spacing along its first three axes; both grids cover the same space.

    A value is interpolated between its neighbours along each axis, or that of the nearest voxel.
    """

    def __init__(self, array: Array, shape: Sequence[int], *, nearest: bool) -> None:
        dtype = array.dtype if nearest or array.dtype.kind in "fc" else np.dtype(np.float32)
        super().__init__(array.path, array.field, (*shape, *array.shape[len(shape) :]), dtype, array.chunks)
        self._array, self._nearest = array, nearest

    def _take(self, picks: Picks) -> AnyArray:
        below, places = [], []
        for pick, size, length in zip(picks, self.shape, self._array.shape, strict=True):
            # Middles of the new voxels among those of the old ones.
            place = np.clip((np.array(pick) + 0.5) * (length / max(1, size)) - 0.5, 0, max(0, length - 1))
            if self._nearest:
                place = np.floor(place + 0.5).clip(max=max(0, length - 1))
            first = int(place[0]) if len(pick) else 0
            below.append(range(first, min(length, math.ceil(place[-1]) + 1) if len(pick) else first))
            places.append(place - first)
        values = self._array._take(tuple(below))
        for axis, place in enumerate(places):
            low = place.astype(np.int64)
            share = (place - low).reshape(-1, *(1,) * (values.ndim - axis - 1)).astype(self.dtype)
            if self._nearest or not share.any():
                unchanged = len(low) == values.shape[axis] and (low == np.arange(len(low))).all()
                values = values if unchanged else values.take(low, axis=axis)
                continue
            high = np.minimum(low + 1, values.shape[axis] - 1)
            values = values.take(low, axis=axis) * (1 - share) + values.take(high, axis=axis) * share
        return values.astype(self.dtype, copy=False)

    def _stored(self) -> int | None:
        return max(self._array._stored() or 0, self._array.nbytes)


def orientation_of(affine: AnyArray) -> str:
    """Return the letters of the sides to which the axes lead, such as ``RAS``."""
    return "".join(SIDES[side][int(rises)] for side, rises in _directions(affine))


def _directions(affine: AnyArray) -> list[tuple[int, bool]]:
    """Return for each axis of the voxels the axis of space that is nearest, and whether it rises along it."""
    lengths = lengths_of(affine)
    if not np.isfinite(affine).all() or not np.isfinite(lengths).all():
        raise DamagedError("its affine is not finite, so its axes have no direction")
    left, sizes, right = np.linalg.svd(affine[:3, :3] / np.where(lengths == 0, 1, lengths))
    # Nearest rotation, so that shears do not count.
    kept = sizes > sizes.max() * 3 * np.finfo(np.float64).eps
    rotation = left[:, kept] @ right[kept]
    free, sides = [0, 1, 2], [(0, True)] * 3
    # The axis that is nearest to one of space chooses first.
    for axis in np.argsort(-np.abs(rotation).max(axis=0), kind="stable").tolist():
        side = max(free, key=lambda side: abs(rotation[side, axis]))
        free.remove(side)
        sides[axis] = (side, bool(rotation[side, axis] >= 0))
    return sides


def lengths_of(affine: AnyArray) -> AnyArray:
    """Return the distances of neighbouring voxels."""
    with np.errstate(over="ignore", invalid="ignore"):
        return np.sqrt((affine[:3, :3] ** 2).sum(axis=0))


def turned(volume: Volume, orientation: str) -> Volume:
    """Return a volume whose axes lead to these sides, as near as its own axes do."""
    targets = [next((n for n, pair in enumerate(SIDES) if letter in pair), -1) for letter in orientation]
    if sorted(targets) != [0, 1, 2]:
        raise OptionError(f"orientation names three sides of {', '.join(SIDES)}, as RAS, not {orientation!r}")
    if volume.array.ndim < 3:
        raise SchemaError(f"an array of {volume.array.ndim} axes has no orientation", path=volume.array.path)
    sides = _directions(volume.affine)
    places = {side: axis for axis, (side, _) in enumerate(sides)}
    axes = [places[target] for target in targets]
    flips = [
        sides[axis][1] != (letter == SIDES[target][1])
        for axis, target, letter in zip(axes, targets, orientation, strict=True)
    ]
    affine = volume.affine.copy()
    for number, (axis, flip) in enumerate(zip(axes, flips, strict=True)):
        affine[:, number] = volume.affine[:, axis] * (-1 if flip else 1)
        if flip:
            affine[:, 3] += volume.affine[:, axis] * (volume.array.shape[axis] - 1)
    inner = range(3, volume.array.ndim)
    if axes == [0, 1, 2] and not any(flips):
        return volume
    array = Turned(volume.array, [*axes, *inner], [*flips, *(False for _ in inner)])
    return Volume(array, affine, volume.runs)


def resampled(volume: Volume, spacing: Sequence[float], *, nearest: bool) -> Volume:
    """Return a volume whose voxels have these distances, as near as a whole number of them allows."""
    shape = volume.array.shape
    if len(shape) < 3 or not all(side > 0 and math.isfinite(side) for side in volume.spacing):
        raise SchemaError("it has no spacing in three dimensions", path=volume.array.path)
    sizes = [
        max(1, round(min(size * have / want, 2.0**40))) if size else 0
        for size, have, want in zip(shape[:3], volume.spacing, spacing, strict=True)
    ]
    if sizes == list(shape[:3]):
        return volume
    affine = volume.affine.copy()
    factors = np.array(shape[:3]) / np.maximum(1, sizes)
    affine[:, :3] *= factors
    affine[:, 3] += volume.affine[:, :3] @ ((factors - 1) / 2)
    return Volume(Resampled(volume.array, sizes, nearest=nearest), affine, volume.runs)


def spacing_of(spacing: float | Sequence[float]) -> tuple[float, ...]:
    """Return the option ``spacing`` as three numbers."""
    sides = [spacing] * 3 if isinstance(spacing, int | float) else list(spacing)
    if len(sides) != 3 or not all(isinstance(side, int | float) and 0 < side < math.inf for side in sides):
        raise OptionError(f"spacing is one or three distances in millimetres above 0, not {spacing!r}")
    return tuple(map(float, sides))


class VolumeReader(Reader):
    """Samples that are volumes. A format's reader calls ``_set_volumes`` in its ``__init__``."""

    names: list[str]
    volumes: dict[str, list[Volume]]

    def _set_volumes(
        self,
        names: list[str],
        volumes: Mapping[str, Sequence[Volume]],
        *,
        orientation: str | None = None,
        spacing: float | Sequence[float] | None = None,
        about: Mapping[str, tuple[Field, Sequence[Any]]] | None = None,
    ) -> None:
        """Set the samples; volumes of one field may differ in shape, but not in the number of axes.

        about: further fields, and their values.
        """
        sides = None if spacing is None else spacing_of(spacing)
        self.names, self.length, self.volumes = names, len(names), {}
        fields: dict[str, Field] = {}
        for field, stored in volumes.items():
            result: list[Volume] = []
            for number, volume in enumerate(stored):
                with located(sample=number, field=field):
                    volume = volume if orientation is None else turned(volume, orientation.upper())
                    result.append(
                        volume if sides is None else resampled(volume, sides, nearest=field == LABEL)
                    )
            self.volumes[field] = result
            arrays = [volume.array for volume in result]
            for number, array in enumerate(arrays):
                if array.ndim != arrays[0].ndim:
                    message = f"it has {array.ndim} axes, and {arrays[0].path} has {arrays[0].ndim}"
                    raise SchemaError(message, path=array.path, sample=number, field=field)
            axes = zip(*(array.shape for array in arrays), strict=True)
            shape = tuple(sizes[0] if len(set(sizes)) == 1 else None for sizes in axes)
            dtype = np.result_type(*(array.dtype for array in arrays)) if arrays else np.dtype(np.float32)
            fields[field] = Tensor(dtype.name, shape if arrays else (None, None, None))
        fields |= {AFFINE: Tensor("float64", (4, 4)), SPACING: Tensor("float32", (3,)), NAME: Text()}
        about = {name: column for name, column in (about or {}).items() if name not in fields}
        more = Schema({name: field for name, (field, _) in about.items()})
        rows = [{name: values[row] for name, (_, values) in about.items()} for row in range(self.length)]
        self._columns = encode_samples(more, rows)
        self.schema = Schema({**fields, **more})

    def _cell_array(self, field: str, sample: int) -> Array | None:
        volumes = self.volumes.get(field)
        return None if volumes is None else volumes[sample].array

    def with_schema(self, schema: Schema) -> Reader | None:
        """Return the same volumes, of which others may differ in shape."""
        if list(schema) != list(self.schema):
            return None
        for name, field in schema.items():
            own, volumes = self.schema[name], self.volumes.get(name)
            if field == own:
                continue
            if not (isinstance(field, Tensor) and isinstance(own, Tensor) and field.dtype == own.dtype):
                return None
            if volumes is None or not all(field.fits(volume.array.shape) for volume in volumes):
                return None
        reader = copy.copy(self)
        reader.schema = schema
        return reader

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        return Columns.read(fields, lambda name: self._column(name, indices), self.path)

    def _column(self, name: str, indices: I64) -> AnyArray | Ragged:
        if name in self._columns:
            return take_cells(self._columns[name], indices)
        if name == NAME:
            return Ragged.from_cells([self.names[row].encode() for row in indices.tolist()])
        volumes = [
            self.volumes[IMAGE if name in (AFFINE, SPACING) else name][row] for row in indices.tolist()
        ]
        field = self.schema[name]
        assert isinstance(field, Tensor)
        dtype = np.dtype(field.dtype)
        if name in (AFFINE, SPACING):
            values = [volume.affine if name == AFFINE else volume.spacing for volume in volumes]
            with np.errstate(over="ignore"):
                return np.array(values, dtype=dtype).reshape(-1, *(size or 0 for size in field.shape))
        cells: Iterator[AnyArray] = (
            self._values(volume.array, row, dtype)
            for volume, row in zip(volumes, indices.tolist(), strict=True)
        )
        if field.cell is None:
            return Ragged.from_cells([pack_tensor(field, cell) for cell in cells])
        out: AnyArray | None = None
        for number, cell in enumerate(cells):
            out = np.empty((len(volumes), *cell.shape), dtype=dtype) if out is None else out
            out[number] = cell
        return np.empty((0, *field.cell[1]), dtype=dtype) if out is None else out

    @staticmethod
    def _values(array: Array, row: int, dtype: AnyDType) -> AnyArray:
        try:
            values: AnyArray = np.asarray(array[...])
            return values.astype(dtype, copy=False)
        except BatchplantError as error:
            error.sample = row
            raise

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        rows, names = indices.tolist(), [name for name in fields if name in self.volumes]
        runs = [run for name in names for row in rows for run in self.volumes[name][row].runs]
        numbers = {path: number for number, path in enumerate(dict.fromkeys(path for path, _, _ in runs))}
        starts, sizes = np.array([run[1:] for run in runs], dtype=np.int64).reshape(-1, 2).T
        files = np.array([numbers[path] for path, _, _ in runs], dtype=np.int32)
        return Spans(list(numbers), starts.copy(), sizes.copy(), files)

    def _layout(self) -> Layout:
        return Layout(sizes=self._volume_bytes)

    def _volume_bytes(self) -> I64:
        sizes = [
            sum(volumes[row].array.nbytes for volumes in self.volumes.values()) for row in range(self.length)
        ]
        return np.array(sizes, dtype=np.int64)

    def where(self, sample: int) -> str:
        return self.volumes[IMAGE][sample].array.path

    def _keys(self) -> FormatKeys:
        return FormatKeys(Text(), lambda indices: self._column(NAME, indices))

    def facts(self) -> dict[str, object]:
        turns: set[str] = set()
        for volume in self.volumes[IMAGE][:1000]:
            with contextlib.suppress(DamagedError):
                turns.add(orientation_of(volume.affine))
        return {"orientation": ", ".join(sorted(turns))} if turns else {}
