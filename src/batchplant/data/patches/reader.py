"""Patches: boxes cut out of big arrays, as a dataset. Each patch is a sample, with its position."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...errors import BatchplantError, OptionError, SchemaError, located
from ...order.keyed import key_of, uniform, whole
from ...schema import Schema, Tensor
from ...schema.columns import I64, AnyArray, Columns, Flags
from ...storage.cache import ChunkKeys
from ...storage.spans import Spans, concat_spans
from ..arrays import Array, ChunkedArray, MemoryArray, each
from ..filters import parse_condition
from ..layout import Layout
from ..reader import Reader, open_reader

if TYPE_CHECKING:
    from ..expressions import Condition


# Bytes of values that are compared at a time.
SLAB_BYTES = 32 << 20


class Around:
    """The option ``around`` of patches: a condition on the values of one field, and the share of patches."""

    def __init__(
        self, around: str | Condition, share: float, seed: int, random: int | None, fields: Mapping[str, str]
    ) -> None:
        """Bind the condition; ``fields``: dtypes of the arrays that it may ask about, by name."""
        from ..expressions import bind, fields_of

        if random is None:
            raise OptionError("around chooses among random patches: say with random= how many there are")
        if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share <= 1:
            raise OptionError(f"share is a number from 0 to 1, not {share!r}")
        self.share, self._key = share, key_of(seed, 1, 11)
        self._schema = Schema({name: Tensor(dtype) for name, dtype in fields.items()})
        self._bound = bind(parse_condition(around), self._schema)
        self.field, *more_fields = fields_of(self._bound)
        if more_fields:
            raise OptionError(f"around is a condition on one field, as 'label > 0', not {around}")

    def chosen(self, numbers: I64) -> Flags:
        """Return flags of those of these patches that are cut around a value."""
        return np.floor((numbers + 1) * self.share) > np.floor(numbers * self.share)

    def places(self, values: Array | AnyArray, axis: int, numbers: I64) -> I64 | None:
        """Draw a value of interest for each of these patches: (patches, axes); None if there is none.

        ``axis``: the one along which values are counted, outermost.
        """
        interest = Places(values, axis, self._matches)
        if not interest.count:
            return None
        drawn = (uniform(self._key, numbers) * interest.count).astype(np.int64)
        return interest.take(np.minimum(drawn, interest.count - 1))

    def _matches(self, values: AnyArray) -> Flags:
        from ..expressions import matching

        return matching(self._bound, self._schema, Columns({self.field: values}))


class Places:
    """Values that a condition is true of, numbered plane by plane along an axis.

    Their numbers do not depend on how many planes are read at a time.
    """

    def __init__(self, values: Array | AnyArray, axis: int, matches: Callable[[AnyArray], Flags]) -> None:
        self._values, self._axis, self._matches = values, axis, matches
        planes = values.shape[axis]
        plane_bytes = max(1, values.dtype.itemsize * values.size // max(1, planes))
        step = max(1, SLAB_BYTES // plane_bytes)
        if isinstance(values, Array):
            step = max(step - step % values.chunks[axis], values.chunks[axis])
        self._slabs = [(start, min(start + step, planes)) for start in range(0, planes, step)]
        counts = [self._flags(*slab).sum(axis=1) for slab in self._slabs]
        self._ends = np.cumsum(np.concatenate([np.zeros(0, dtype=np.int64), *counts]))
        self.count = int(self._ends[-1]) if planes else 0

    def _flags(self, start: int, end: int) -> AnyArray:
        """Return which values of some planes the condition is true of: (planes, values)."""
        slab = np.asarray(self._values[(*(slice(None),) * self._axis, slice(start, end))])
        flat = np.ascontiguousarray(np.moveaxis(slab, self._axis, 0)).reshape(-1)
        return self._matches(flat).reshape(end - start, -1)

    def take(self, numbers: I64) -> I64:
        """Return the places of these values: (values, axes)."""
        shape = self._values.shape
        inner = [size for axis, size in enumerate(shape) if axis != self._axis]
        planes = np.searchsorted(self._ends, numbers, side="right")
        out = np.empty((len(numbers), len(shape)), dtype=np.int64)
        for start, end in self._slabs:
            rows = np.flatnonzero((planes >= start) & (planes < end))
            flags = self._flags(start, end) if len(rows) else None
            for plane in np.unique(planes[rows]).tolist():
                assert flags is not None
                rows_of_plane = rows[planes[rows] == plane]
                first = int(self._ends[plane - 1]) if plane else 0
                flat = np.flatnonzero(flags[plane - start])[numbers[rows_of_plane] - first]
                places = (
                    np.stack(np.unravel_index(flat, inner), axis=1) if inner else np.empty((len(flat), 0))
                )
                out[rows_of_plane] = np.insert(places, self._axis, plane, axis=1)
        return out


POSITION = "position"
MODES = ("edge", "reflect")
# Each patch has a number in memory.
MAX_PATCHES = 1 << 28
# Patches that are drawn and compared with a mask together.
DRAWN_PATCHES = 1 << 14
# Draws for each patch before a mask counts as empty.
MAX_DRAWS_PER_PATCH = 1000
# Bytes of patches of a mask that are read together.
MASK_BYTES = 32 << 20

Bools = npt.NDArray[np.bool_]
Where = str | Array | Callable[[I64], npt.ArrayLike]


class Patches(Reader):
    """Boxes of ``size`` cut out of arrays, each a sample: its values, and where it begins as ``position``.

    source: a path, a reader, or arrays by name. fields: those whose arrays are cut, all alike; by default all
    arrays. size: along the first axes; the others are taken whole, and so is one whose size is None.

    stride: a patch every so many steps, along all axes or along each (default: the size). random: instead, so
    many patches at places drawn with ``seed``.

    pad: patches may reach over the edge, and what lies outside is this number, or ``edge`` or ``reflect`` (as
    in numpy.pad); a dict gives each field its own. With it, a stride covers everything, and the middle of a
    random patch lies anywhere in the array. Without it, all patches lie inside.

    around: a condition on one of the arrays, as ``"label > 0"``: in the middle of the ``share`` of the random
    patches is a value of which it is true, as far as the edge allows.

    where: only patches in which this mask, an array of the source, is somewhere not zero; or a function that
    takes positions (patches, axes) and says which to keep.

    Samples are ordered by chunk, and ``blocks()`` are groups of chunks: ``order="quasi_random"`` unpacks a
    chunk about once. Chunks are kept by the source's reader, in its cache.

    Raises: OptionError where a patch is larger than the array and there is no ``pad``, and for fields of
    other shapes; FieldNameError where there is no such field.
    """

    format = "patches"
    # Decoded bytes of the chunks that the patches of a block share, and of the blocks of a window.
    block_bytes: ClassVar[int] = 32 << 20
    window_bytes: ClassVar[int] = 128 << 20

    def __init__(
        self,
        source: str | os.PathLike[str] | Reader | Mapping[str, Any],
        fields: str | Sequence[str] | None = None,
        *,
        size: Sequence[int | None],
        stride: int | Sequence[int] | None = None,
        random: int | None = None,
        seed: int = 0,
        pad: Any = None,
        where: Where | None = None,
        around: str | Condition | None = None,
        share: float = 1 / 3,
    ) -> None:
        self._reader: Reader | None = None
        self._arrays = self._open(source, fields)
        first = next(iter(self._arrays.values()))
        self.path = first.path
        with located(path=self.path):
            self._size, self._whole = self._sizes(size)
            self._check_alike()
            self._pad = self._pads(pad)
            self.schema = self._schema()
            self._set_positions(stride, random)
            self._set_blocks()
            self.seed = seed
            is_kept = None if where is None else self._filter_of(where)
            if where is not None and around is not None:
                raise OptionError("patches are chosen by where, or drawn around values of interest")
            if around is None:
                self.ids = self._ids(random, seed, is_kept)
            else:
                self.ids = self._in_order(self._draw_around(around, share, random, seed))
        self.length = len(self.ids)
        self._sampling = {"stride": self._step} if random is None else {"random": random, "seed": seed}

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        """Pickle the choice of patches too: a function may not be picklable, and a mask is slow to read."""
        args, options = self._init_args
        picklable = {name: value for name, value in options.items() if name not in ("where", "around")}
        return _rebuild, (args, picklable, None if picklable == options else self.ids)

    def _open(
        self, source: str | os.PathLike[str] | Reader | Mapping[str, Any], fields: str | Sequence[str] | None
    ) -> dict[str, Array]:
        names = [fields] if isinstance(fields, str) else None if fields is None else list(fields)
        if isinstance(source, Mapping):
            for name in names or ():
                if name not in source:
                    raise OptionError(f"there is no array {name!r}; there are {', '.join(source)}")
            values = {name: source[name] for name in names or source}
            arrays = {
                name: value if isinstance(value, Array) else MemoryArray("", name, np.asarray(value))
                for name, value in values.items()
            }
        else:
            self._reader = source if isinstance(source, Reader) else open_reader(os.fspath(source))
            if names is None:
                kinds = self._reader.schema.items()
                names = [
                    name for name, field in kinds if isinstance(field, Tensor) and field.cell is not None
                ]
            arrays = {name: self._reader.array(name) for name in names}
        if not arrays:
            raise OptionError(
                "there is no array to cut patches from; name one with fields. If every sample is a volume of "
                "its own shape, use VolumePatches"
            )
        return arrays

    def _sizes(self, size: Sequence[int | None]) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """Return the sizes of a patch, and flags of the axes that it takes whole."""
        if isinstance(size, int) or not isinstance(size, Sequence) or not len(size):
            raise OptionError(f"size is a size for each of the first axes, as in (64, 64, 64), not {size!r}")
        for name, array in self._arrays.items():
            if array.ndim < len(size):
                raise OptionError(f"size has {len(size)} axes, and {name!r} has the shape {array.shape}")
        shape = next(iter(self._arrays.values())).shape
        sizes = tuple(
            length if side is None else whole("size", side, 1)
            for side, length in zip(size, shape, strict=False)
        )
        return sizes, tuple(side is None for side in size)

    def _check_alike(self) -> None:
        axes = len(self._size)
        first, *following = self._arrays.items()
        self._shape = first[1].shape[:axes]
        for name, array in following:
            if array.shape[:axes] != self._shape:
                raise OptionError(
                    f"fields are cut alike, and differ in shape: {first[0]!r} {first[1].shape}, "
                    f"{name!r} {array.shape}"
                )

    def _pads(self, pad: Any) -> dict[str, Any] | None:
        """Return the padding of each array; None: no patch reaches over the edge."""
        if pad is None:
            return None
        by_field = dict(pad) if isinstance(pad, Mapping) else dict.fromkeys(self._arrays, pad)
        for name in {*by_field, *self._arrays}:
            if name not in by_field or name not in self._arrays:
                raise OptionError(f"pad has a value for each field, and {name!r} is only on one side")
            value, dtype = by_field[name], self._arrays[name].dtype
            if isinstance(value, str):
                if value not in MODES:
                    raise OptionError(f"pad is a number or one of {', '.join(MODES)}, not {value!r}")
                continue
            try:
                same = np.array(value, dtype=dtype)
                bad = same.ndim or not (same == value or value != value)
            except (TypeError, ValueError, OverflowError):
                bad = True
            if bad:
                raise OptionError(f"pad={value!r} is no value of {name!r}, which holds {dtype}")
        return by_field

    def _schema(self) -> Schema:
        if POSITION in self._arrays:
            raise SchemaError(f"a field cannot be called {POSITION!r}: it is where a patch begins")
        axes = len(self._size)
        fields: dict[str, Any] = {
            name: Tensor(array.dtype.name, (*self._size, *array.shape[axes:]))
            for name, array in self._arrays.items()
        }
        return Schema({**fields, POSITION: Tensor("int64", (axes,))})

    def _set_positions(self, stride: int | Sequence[int] | None, random: int | None) -> None:
        """Set the positions of patches: the first along each axis, the step, and the count."""
        if stride is not None and random is not None:
            raise OptionError("patches have a stride, or are random")
        axes = range(len(self._size))
        steps = [stride] * len(self._size) if stride is None or isinstance(stride, int) else list(stride)
        if len(steps) != len(self._size):
            raise OptionError(f"stride has {len(steps)} axes, and size has {len(self._size)}")
        self._step = tuple(
            1 if random is not None else self._size[n] if steps[n] is None else whole("stride", steps[n], 1)
            for n in axes
        )
        self._origin, self._count = np.zeros(len(axes), dtype=np.int64), [0] * len(axes)
        for n, (size, length, step) in enumerate(zip(self._size, self._shape, self._step, strict=True)):
            over = length - size
            if self._whole[n]:
                self._count[n] = 1
            elif self._pad is None:
                if over < 0:
                    raise OptionError(
                        f"size is {size} along axis {n}, and the arrays have {length}; pad= lets patches "
                        "reach over the edge"
                    )
                self._count[n] = over // step + 1
            elif random is None:
                self._count[n] = -(-max(over, 0) // step) + 1 if length else 0
            else:
                self._origin[n], self._count[n] = -(size // 2), length
        if math.prod(self._count) > 2**62:
            raise OptionError(f"there are {math.prod(self._count)} places for a patch, which are too many")

    def _starts(self, ids: I64) -> I64:
        """Return the first corner of the patches of these numbers: (patches, axes)."""
        places = np.stack(np.unravel_index(ids, self._count), axis=1).astype(np.int64)
        return np.asarray(places * np.array(self._step) + self._origin, dtype=np.int64)

    def _ids(self, random: int | None, seed: int, is_kept: Callable[[I64], Bools] | None) -> I64:
        """Return the numbers of the patches, ordered by block."""
        every = math.prod(self._count)
        if random is not None:
            return self._in_order(self._draw(whole("random", random, 0, MAX_PATCHES), seed, is_kept))
        if every > MAX_PATCHES:
            raise OptionError(f"there would be {every:,} patches; take a larger stride, or random=")
        ids = self._in_order(np.arange(every, dtype=np.int64))
        if is_kept is None:
            return ids
        parts = [np.empty(0, dtype=np.int64)]
        for start in range(0, len(ids), DRAWN_PATCHES):
            part = ids[start : start + DRAWN_PATCHES]
            parts.append(part[is_kept(part)])
        return np.concatenate(parts)

    def _draw_around(self, around: str | Condition, share: float, random: int | None, seed: int) -> I64:
        """Draw random patches, and a share of them around values of interest."""
        reader = self._reader
        fields = {name: array.dtype.name for name, array in self._arrays.items()}
        if reader is not None:
            tensors = ((name, field) for name, field in reader.schema.items() if isinstance(field, Tensor))
            fields |= {name: field.dtype for name, field in tensors if field.cell is not None}
        chooser = Around(around, share, seed, random, fields)
        name = chooser.field
        array = self._arrays[name] if name in self._arrays or reader is None else reader.array(name)
        if array.shape != self._shape:
            raise OptionError(
                f"{name!r} has the shape {array.shape}, and what is cut has {self._shape}", field=name
            )
        ids = self._draw(whole("random", random, 0, MAX_PATCHES), seed, None)
        rows = np.flatnonzero(chooser.chosen(np.arange(len(ids))))
        places = chooser.places(array, 0, rows)
        if places is None:
            raise OptionError(f"{around} is true of no value", field=name)
        starts = np.clip(places - np.array(self._size) // 2 - self._origin, 0, np.array(self._count) - 1)
        ids[rows] = np.ravel_multi_index(tuple(starts.T), self._count)
        return ids

    def _draw(self, count: int, seed: int, is_kept: Callable[[I64], Bools] | None) -> I64:
        """Draw random patches. The n-th draw depends on seed and n alone."""
        if not all(self._count):
            raise OptionError(f"arrays of shape {self._shape} have no patches")
        keys = [key_of(seed, axis, 11) for axis in range(len(self._count))]
        parts, kept_count, drawn_count = [np.empty(0, dtype=np.int64)], 0, 0
        while kept_count < count:
            if drawn_count > MAX_DRAWS_PER_PATCH * count + DRAWN_PATCHES:
                raise OptionError(
                    f"where leaves {kept_count} of {drawn_count:,} random patches, and {count} are wanted"
                )
            many = count if is_kept is None else min(DRAWN_PATCHES, 2 * count + 64)
            numbers = np.arange(drawn_count, drawn_count + many, dtype=np.int64)
            # A draw close to 1 may round up.
            drawn = [
                np.minimum((uniform(key, numbers) * count_of_axis).astype(np.int64), count_of_axis - 1)
                for key, count_of_axis in zip(keys, self._count, strict=True)
            ]
            ids = np.ravel_multi_index(tuple(drawn), self._count).astype(np.int64)
            parts.append(ids if is_kept is None else ids[is_kept(ids)])
            kept_count, drawn_count = kept_count + len(parts[-1]), drawn_count + len(numbers)
        return np.concatenate(parts)[:count]

    def _set_blocks(self) -> None:
        """Group chunks so that two groups share few of them, and some groups fit into the cache."""
        heavy = max(self._arrays.values(), key=lambda one: one.nbytes)
        axes = len(self._size)
        chunk = heavy.chunks[:axes] if isinstance(heavy, ChunkedArray) else self._size
        many = [1] * axes
        # Further chunks that a patch reaches into, along each axis.
        overlap = [-(-(size - 1) // side) for size, side in zip(self._size, chunk, strict=True)]
        grid = [-(-size // side) for size, side in zip(self._shape, chunk, strict=True)]
        item = sum(
            array.dtype.itemsize * math.prod(array.shape[axes:]) for array in self._arrays.values()
        ) * math.prod(chunk)

        def cost(many: Sequence[int]) -> int:
            return item * math.prod(min(n + m, g) for n, m, g in zip(many, overlap, grid, strict=True))

        grown = True
        while grown:
            grown = False
            for axis in sorted(range(axes), key=lambda axis: many[axis] * chunk[axis]):
                larger = [*many[:axis], many[axis] + 1, *many[axis + 1 :]]
                if many[axis] < grid[axis] and cost(larger) <= self.block_bytes:
                    many, grown = larger, True
                    break
        self._block = tuple(n * side for n, side in zip(many, chunk, strict=True))
        self._blocks = tuple(
            -(-size // side) or 1 for size, side in zip(self._shape, self._block, strict=True)
        )
        self.window = max(1, self.window_bytes // max(1, cost(many)))

    def _block_of(self, ids: I64) -> I64:
        # With padding a patch may begin before the array.
        places = np.maximum(self._starts(ids), 0) // np.array(self._block)
        places = np.minimum(places, np.array(self._blocks) - 1)
        return np.ravel_multi_index(tuple(places.T), self._blocks).astype(np.int64)

    def _in_order(self, ids: I64) -> I64:
        order: I64 = np.argsort(self._block_of(ids), kind="stable")
        return ids[order]

    def _layout(self) -> Layout:
        # Blocks are groups of chunks.
        return Layout(blocks=lambda: self._block_of(self.ids), chunk_keys=self._chunk_keys)

    def _filter_of(self, where: Where) -> Callable[[I64], Bools]:
        """Return a function that flags the patches to keep."""
        if callable(where):
            return lambda ids: _checked_flags(where(self._starts(ids)), len(ids))
        if isinstance(where, str):
            if self._reader is None and where not in self._arrays:
                raise OptionError(f"there is no array {where!r} for a mask")
            mask = self._arrays[where] if self._reader is None else self._reader.array(where)
        else:
            mask = where
        if not isinstance(mask, Array) or mask.shape != self._shape:
            description = f"the shape {mask.shape}" if isinstance(mask, Array) else repr(mask)
            raise OptionError(
                f"a mask has the shape of what is cut, {self._shape}, and this one has {description}"
            )
        return Mask(mask, self._size, self._starts)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        starts = self._starts(self.ids[indices])
        return Columns.read(fields, lambda name: self._column(name, indices, starts), self.path)

    def _column(self, name: str, indices: I64, starts: I64) -> AnyArray:
        if name == POSITION:
            return starts
        array = self._arrays[name]
        shape = (len(starts), *self._size, *array.shape[len(self._size) :])
        out = self._buffers.take(shape, array.dtype)
        over = ((starts < 0) | (starts + np.array(self._size) > np.array(self._shape))).any(axis=1)
        pad = None if self._pad is None else self._pad[name]
        if over.any() and not isinstance(pad, str):
            out[over] = pad
        inner = np.flatnonzero(~over) if isinstance(pad, str) else np.arange(len(starts))
        try:
            array.read_boxes(starts[inner], self._size, out, inner)
        except BatchplantError as error:
            row, error.sample = error.sample, None
            raise error.at(sample=None if row is None else int(indices[row])) from None
        for row in np.flatnonzero(over).tolist() if isinstance(pad, str) else ():
            with located(sample=int(indices[row])):
                out[row] = self._mirrored(array, starts[row], str(pad))
        return out

    def _mirrored(self, array: Array, start: I64, mode: str) -> AnyArray:
        """Read a patch that reaches over the edge, filled with values of the array."""
        places, box = [], []
        for first, size, length in zip(start.tolist(), self._size, self._shape, strict=True):
            rows = np.arange(first, first + size)
            if mode == "edge" or length == 1:
                rows = np.clip(rows, 0, length - 1)
            else:
                # Reflect without repeating the edge.
                rows = np.abs((rows + length - 1) % (2 * length - 2) - length + 1)
            box.append(slice(int(rows.min()), int(rows.max()) + 1))
            places.append(rows - rows.min())
        return array[tuple(box)][np.ix_(*places)]

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        starts = self._starts(self.ids[indices])
        ranges = [self._arrays[name].ranges(starts, self._size) for name in fields if name != POSITION]
        return concat_spans([spans for spans in ranges if spans is not None]) if None not in ranges else None

    def _chunk_keys(self, fields: Sequence[str], indices: I64) -> list[ChunkKeys]:
        starts = self._starts(self.ids[indices])
        keys = (self._arrays[name].chunk_keys(starts, self._size) for name in fields if name != POSITION)
        return [keys_of_array for keys_of_array in keys if keys_of_array is not None]

    def facts(self) -> dict[str, object]:
        arrays = {
            f"array {name}": f"{array.dtype} {array.shape}, chunks {array.chunks}"
            for name, array in self._arrays.items()
        }
        return {"size": self._size, **self._sampling, "blocks of": self._block, **arrays}

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _rebuild(args: tuple[Any, ...], options: dict[str, Any], ids: I64 | None) -> Patches:
    patches = Patches(*args, **options)
    if ids is not None:
        patches.ids, patches.length = ids, len(ids)
    return patches


def _checked_flags(flags: npt.ArrayLike, count: int) -> Bools:
    array: AnyArray = np.asarray(flags)
    if array.shape != (count,) or array.dtype != np.bool_:
        raise OptionError(
            f"where gives True or False for each of {count} positions, not {array.dtype} {array.shape}"
        )
    return array


class Mask:
    """Tells which boxes of a mask are not all zero. Reads the mask once, then only undecided boxes again."""

    def __init__(self, mask: Array, size: tuple[int, ...], starts: Callable[[I64], I64]) -> None:
        self._mask, self._size, self._starts = mask, size, starts
        self._chunk = np.array(mask.chunks)
        grid = [-(-size // side) for size, side in zip(mask.shape, mask.chunks, strict=True)]
        occupied = np.zeros(grid, dtype=np.int64)

        def look(index: tuple[int, ...]) -> None:
            box = tuple(slice(n * side, (n + 1) * side) for n, side in zip(index, mask.chunks, strict=True))
            occupied[index] = np.asarray(mask[box]).any()

        each(look, list(itertools.product(*map(range, grid))), mask.nbytes)
        # Prefix sums of the chunks that are not all zero.
        self._sums = np.pad(occupied, [(1, 0)] * occupied.ndim)
        for axis in range(occupied.ndim):
            self._sums = self._sums.cumsum(axis=axis)

    def __call__(self, ids: I64) -> Bools:
        starts = self._starts(ids)
        low = np.maximum(starts, 0) // self._chunk
        high = -(-np.minimum(starts + np.array(self._size), np.array(self._mask.shape)) // self._chunk)
        counts = np.zeros(len(ids), dtype=np.int64)
        for corner in itertools.product((0, 1), repeat=starts.shape[1]):
            edges = np.where(np.array(corner) == 1, high, low)
            counts += (-1) ** (len(corner) - sum(corner)) * self._sums[tuple(edges.T)]
        flags = counts > 0
        # By chunk, so that each is decoded about once.
        undecided = np.lexsort(low.T[::-1])
        undecided = undecided[flags[undecided]]
        step = max(1, MASK_BYTES // max(1, self._mask.dtype.itemsize * math.prod(self._size)))
        for rows in (undecided[start : start + step] for start in range(0, len(undecided), step)):
            boxes: AnyArray = np.zeros((len(rows), *self._size), dtype=self._mask.dtype)
            self._mask.read_boxes(starts[rows], self._size, boxes)
            flags[rows] = boxes.reshape(len(rows), -1).any(axis=1)
        return flags
