"""Patches: boxes cut out of big arrays, as a dataset. Each patch is a sample, with its place."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import BatchplantError, OptionError, SchemaError
from ...order.keyed import key_of, uniform, whole
from ...schema import Schema, Tensor
from ...schema.columns import I64, Columns
from ...storage.spans import Spans, concat_spans
from ..arrays import Array, ChunkedArray, MemoryArray, each
from ..reader import Reader, open_reader

POSITION = "position"
MODES = ("edge", "reflect")
# Chunks that the patches of a block share, unpacked; and how much of the cache the blocks of a window take.
BLOCK_BYTES, WINDOW_BYTES = 32 << 20, 128 << 20
# Each has a number in memory.
MOST = 1 << 28
# Patches that are drawn together, to be looked at.
ROUND = 1 << 14
# So many draws for each patch that is wanted; then a mask is as good as empty.
DRAWS_EACH = 1000
# Bytes of patches of a mask that are read together.
MASK_BYTES = 32 << 20

Bools = npt.NDArray[np.bool_]
Where = str | Array | Callable[[I64], Any]


class Patches(Reader):
    """Boxes of ``size`` cut out of arrays, each a sample: its values, and where it begins as ``position``.

    source: a path, a reader, or arrays by name. fields: those whose arrays are cut, all alike; by default all
    arrays. size: along the first axes; the others are taken whole, and so is one whose size is None.

    stride: a patch every so many steps, along all axes or along each (default: the size). random: instead, so
    many patches at places drawn with ``seed``.

    pad: patches may reach over the edge, and what lies outside is this number, or ``edge`` or ``reflect`` (as
    in numpy.pad); a dict gives each field its own. With it, a stride covers everything, and the middle of a
    random patch lies anywhere in the array. Without it, all patches lie inside.

    where: only patches in which this mask, an array of the source, is somewhere not zero; or a function that
    takes positions (patches, axes) and says which to keep.

    Samples are ordered by chunk, and ``blocks()`` are groups of chunks: ``order="quasi_random"`` unpacks a
    chunk about once. Chunks are kept by the source's reader, in its cache.
    """

    format = "patches"

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
    ) -> None:
        self._reader: Reader | None = None
        self._arrays = self._open(source, fields)
        first = next(iter(self._arrays.values()))
        self.path = first.path
        try:
            self._size, self._whole = self._sizes(size)
            self._check_alike()
            self._pad = self._pads(pad)
            self.schema = self._schema()
            self._place(stride, random)
            self._by_block()
            self.seed = seed
            self.ids = self._ids(random, seed, None if where is None else self._kept(where))
        except BatchplantError as error:
            raise error.at(path=self.path) from None
        self.length = len(self.ids)
        self._said = {"stride": self._step} if random is None else {"random": random, "seed": seed}

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What ``where`` has chosen travels along: a function might not, and a mask takes long to read."""
        args, options = self._init_args
        kept = {name: value for name, value in options.items() if name != "where"}
        return _remake, (args, kept, self.ids if options.get("where") is not None else None)

    # -- what is cut -----------------------------------------------------------------------------------

    def _open(self, source: Any, fields: str | Sequence[str] | None) -> dict[str, Array]:
        wanted = [fields] if isinstance(fields, str) else None if fields is None else list(fields)
        if isinstance(source, Mapping):
            for name in wanted or ():
                if name not in source:
                    raise OptionError(f"there is no array {name!r}; there are {', '.join(source)}")
            given = {name: source[name] for name in wanted or source}
            found = {
                name: one if isinstance(one, Array) else MemoryArray("", name, np.asarray(one))
                for name, one in given.items()
            }
        else:
            self._reader = source if isinstance(source, Reader) else open_reader(os.fspath(source))
            if wanted is None:
                kinds = self._reader.schema.items()
                wanted = [name for name, one in kinds if isinstance(one, Tensor) and one.cell is not None]
            found = {name: self._reader.array(name) for name in wanted}
        if not found:
            raise OptionError(
                "there is no array to cut patches from; name one with fields. If every sample is a volume of "
                "its own shape, use VolumePatches"
            )
        return found

    def _sizes(self, given: Any) -> tuple[tuple[int, ...], tuple[bool, ...]]:
        """The sizes of a patch, and along which axes it is the whole."""
        if isinstance(given, int) or not isinstance(given, Sequence) or not len(given):
            raise OptionError(f"size is a size for each of the first axes, as in (64, 64, 64), not {given!r}")
        for name, array in self._arrays.items():
            if array.ndim < len(given):
                raise OptionError(f"size has {len(given)} axes, and {name!r} has the shape {array.shape}")
        shape = next(iter(self._arrays.values())).shape
        sizes = tuple(
            most if one is None else whole("size", one, 1) for one, most in zip(given, shape, strict=False)
        )
        return sizes, tuple(one is None for one in given)

    def _check_alike(self) -> None:
        axes = len(self._size)
        first, *others = self._arrays.items()
        self._shape = first[1].shape[:axes]
        for name, array in others:
            if array.shape[:axes] != self._shape:
                raise OptionError(
                    f"fields are cut alike, and differ in shape: {first[0]!r} {first[1].shape}, "
                    f"{name!r} {array.shape}"
                )

    def _pads(self, given: Any) -> dict[str, Any] | None:
        """What stands outside of each array; None: no patch reaches there."""
        if given is None:
            return None
        each_one = dict(given) if isinstance(given, Mapping) else dict.fromkeys(self._arrays, given)
        for name in {*each_one, *self._arrays}:
            if name not in each_one or name not in self._arrays:
                raise OptionError(f"pad has a value for each field, and {name!r} is only on one side")
            value, dtype = each_one[name], self._arrays[name].dtype
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
        return each_one

    def _schema(self) -> Schema:
        if POSITION in self._arrays:
            raise SchemaError(f"a field cannot be called {POSITION!r}: it is where a patch begins")
        axes = len(self._size)
        fields: dict[str, Any] = {
            name: Tensor(array.dtype.name, (*self._size, *array.shape[axes:]))
            for name, array in self._arrays.items()
        }
        return Schema({**fields, POSITION: Tensor("int64", (axes,))})

    # -- where patches are -----------------------------------------------------------------------------

    def _place(self, stride: Any, random: int | None) -> None:
        """Where patches may begin: the first place of each axis, the step, and how many there are."""
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
        for n, (size, most, step) in enumerate(zip(self._size, self._shape, self._step, strict=True)):
            over = most - size
            if self._whole[n]:
                self._count[n] = 1
            elif self._pad is None:
                if over < 0:
                    raise OptionError(
                        f"size is {size} along axis {n}, and the arrays have {most}; pad= lets patches reach "
                        "over the edge"
                    )
                self._count[n] = over // step + 1
            elif random is None:
                self._count[n] = -(-max(over, 0) // step) + 1 if most else 0
            else:
                self._origin[n], self._count[n] = -(size // 2), most
        if math.prod(self._count) > 2**62:
            raise OptionError(f"there are {math.prod(self._count)} places for a patch, which are too many")

    def _starts(self, ids: I64) -> I64:
        """Where the patches of these numbers begin: (patches, axes)."""
        places = np.stack(np.unravel_index(ids, self._count), axis=1).astype(np.int64)
        return np.asarray(places * np.array(self._step) + self._origin, dtype=np.int64)

    def _ids(self, random: int | None, seed: int, kept: Callable[[I64], Bools] | None) -> I64:
        """The patches, by the number of their place, ordered by block."""
        every = math.prod(self._count)
        if random is not None:
            return self._in_order(self._draw(whole("random", random, 0, MOST), seed, kept))
        if every > MOST:
            raise OptionError(f"there would be {every:,} patches; take a larger stride, or random=")
        ids = self._in_order(np.arange(every, dtype=np.int64))
        if kept is None:
            return ids
        parts = [np.empty(0, dtype=np.int64)]
        for at in range(0, len(ids), ROUND):
            some = ids[at : at + ROUND]
            parts.append(some[kept(some)])
        return np.concatenate(parts)

    def _draw(self, count: int, seed: int, kept: Callable[[I64], Bools] | None) -> I64:
        """Random places. The n-th draw depends on seed and n alone."""
        if not all(self._count):
            raise OptionError(f"arrays of shape {self._shape} have no patches")
        keys = [key_of(seed, axis, 11) for axis in range(len(self._count))]
        parts, found, at = [np.empty(0, dtype=np.int64)], 0, 0
        while found < count:
            if at > DRAWS_EACH * count + ROUND:
                raise OptionError(f"where leaves {found} of {at:,} random patches, and {count} are wanted")
            many = count if kept is None else min(ROUND, 2 * count + 64)
            numbers = np.arange(at, at + many, dtype=np.int64)
            # A draw close to 1 may round up.
            drawn = [
                np.minimum((uniform(key, numbers) * most).astype(np.int64), most - 1)
                for key, most in zip(keys, self._count, strict=True)
            ]
            ids = np.ravel_multi_index(tuple(drawn), self._count).astype(np.int64)
            parts.append(ids if kept is None else ids[kept(ids)])
            found, at = found + len(parts[-1]), at + len(numbers)
        return np.concatenate(parts)[:count]

    # -- blocks ----------------------------------------------------------------------------------------

    def _by_block(self) -> None:
        """Group chunks, so that few of them are shared by two groups, and some groups fit into the cache."""
        heavy = max(self._arrays.values(), key=lambda one: one.nbytes)
        axes = len(self._size)
        chunk = heavy.chunks[:axes] if isinstance(heavy, ChunkedArray) else self._size
        many = [1] * axes
        # A patch reaches into so many more chunks.
        more = [-(-(size - 1) // one) for size, one in zip(self._size, chunk, strict=True)]
        grid = [-(-size // one) for size, one in zip(self._shape, chunk, strict=True)]
        item = sum(
            array.dtype.itemsize * math.prod(array.shape[axes:]) for array in self._arrays.values()
        ) * math.prod(chunk)

        def cost(many: Sequence[int]) -> int:
            return item * math.prod(min(n + m, g) for n, m, g in zip(many, more, grid, strict=True))

        grown = True
        while grown:
            grown = False
            for axis in sorted(range(axes), key=lambda axis: many[axis] * chunk[axis]):
                larger = [*many[:axis], many[axis] + 1, *many[axis + 1 :]]
                if many[axis] < grid[axis] and cost(larger) <= BLOCK_BYTES:
                    many, grown = larger, True
                    break
        self._block = tuple(n * one for n, one in zip(many, chunk, strict=True))
        self._blocks = tuple(-(-size // one) or 1 for size, one in zip(self._shape, self._block, strict=True))
        self.window = max(1, WINDOW_BYTES // max(1, cost(many)))

    def _block_of(self, ids: I64) -> I64:
        # By where a patch begins in the array: with pad it may begin before it.
        places = np.maximum(self._starts(ids), 0) // np.array(self._block)
        places = np.minimum(places, np.array(self._blocks) - 1)
        found: I64 = np.ravel_multi_index(tuple(places.T), self._blocks).astype(np.int64)
        return found

    def _in_order(self, ids: I64) -> I64:
        order: I64 = np.argsort(self._block_of(ids), kind="stable")
        return ids[order]

    def blocks(self) -> I64 | None:
        """The group of chunks in which each patch begins."""
        return self._block_of(self.ids)

    # -- masks -----------------------------------------------------------------------------------------

    def _kept(self, where: Where) -> Callable[[I64], Bools]:
        """What says which of some patches are kept."""
        if callable(where):
            return lambda ids: _truth(where(self._starts(ids)), len(ids))
        if isinstance(where, str):
            if self._reader is None and where not in self._arrays:
                raise OptionError(f"there is no array {where!r} for a mask")
            mask = self._arrays[where] if self._reader is None else self._reader.array(where)
        else:
            mask = where
        if not isinstance(mask, Array) or mask.shape != self._shape:
            said = f"the shape {mask.shape}" if isinstance(mask, Array) else repr(mask)
            raise OptionError(f"a mask has the shape of what is cut, {self._shape}, and this one has {said}")
        return Mask(mask, self._size, self._starts)

    # -- reading ---------------------------------------------------------------------------------------

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        starts = self._starts(self.ids[indices])
        return Columns.read(fields, lambda name: self._column(name, indices, starts), self.path)

    def _column(self, name: str, indices: I64, starts: I64) -> npt.NDArray[Any]:
        if name == POSITION:
            return starts
        array = self._arrays[name]
        out: npt.NDArray[Any] = np.empty((len(starts), *self.schema[name].shape), dtype=array.dtype)  # type: ignore[attr-defined]
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
            try:
                out[row] = self._mirrored(array, starts[row], str(pad))
            except BatchplantError as error:
                raise error.at(sample=int(indices[row])) from None
        return out

    def _mirrored(self, array: Array, start: I64, mode: str) -> npt.NDArray[Any]:
        """A patch that reaches over the edge, where values of the array stand for those outside."""
        places, box = [], []
        for at, size, most in zip(start.tolist(), self._size, self._shape, strict=True):
            place = np.arange(at, at + size)
            if mode == "edge" or most == 1:
                place = np.clip(place, 0, most - 1)
            else:
                # There and back again, without the ends twice.
                place = np.abs((place + most - 1) % (2 * most - 2) - most + 1)
            box.append(slice(int(place.min()), int(place.max()) + 1))
            places.append(place - place.min())
        found: npt.NDArray[Any] = array[tuple(box)][np.ix_(*places)]
        return found

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        starts = self._starts(self.ids[indices])
        found = [self._arrays[name].ranges(starts, self._size) for name in fields if name != POSITION]
        return concat_spans([one for one in found if one is not None]) if None not in found else None

    def facts(self) -> dict[str, Any]:
        arrays = {
            f"array {name}": f"{one.dtype} {one.shape}, chunks {one.chunks}"
            for name, one in self._arrays.items()
        }
        return {"size": self._size, **self._said, "blocks of": self._block, **arrays}

    def close(self) -> None:
        if self._reader is not None:
            self._reader.close()


def _remake(args: tuple[Any, ...], options: dict[str, Any], ids: I64 | None) -> Patches:
    found = Patches(*args, **options)
    if ids is not None:
        found.ids, found.length = ids, len(ids)
    return found


def _truth(found: Any, count: int) -> Bools:
    kept: npt.NDArray[Any] = np.asarray(found)
    if kept.shape != (count,) or kept.dtype != np.bool_:
        raise OptionError(
            f"where gives True or False for each of {count} positions, not {kept.dtype} {kept.shape}"
        )
    return kept


class Mask:
    """Which boxes of a mask hold something. It is read once; then only what is undecided is read again."""

    def __init__(self, mask: Array, size: tuple[int, ...], starts: Callable[[I64], I64]) -> None:
        self._mask, self._size, self._starts = mask, size, starts
        self._chunk = np.array(mask.chunks)
        grid = [-(-size // one) for size, one in zip(mask.shape, mask.chunks, strict=True)]
        held = np.zeros(grid, dtype=np.int64)

        def look(at: tuple[int, ...]) -> None:
            box = tuple(slice(n * one, (n + 1) * one) for n, one in zip(at, mask.chunks, strict=True))
            held[at] = np.asarray(mask[box]).any()

        each(look, list(itertools.product(*map(range, grid))), mask.nbytes)
        # How many chunks hold something in all boxes of chunks that begin at the first.
        self._sums = np.pad(held, [(1, 0)] * held.ndim)
        for axis in range(held.ndim):
            self._sums = self._sums.cumsum(axis=axis)

    def __call__(self, ids: I64) -> Bools:
        starts = self._starts(ids)
        low = np.maximum(starts, 0) // self._chunk
        high = -(-np.minimum(starts + np.array(self._size), np.array(self._mask.shape)) // self._chunk)
        counts = np.zeros(len(ids), dtype=np.int64)
        for corner in itertools.product((0, 1), repeat=starts.shape[1]):
            at = np.where(np.array(corner) == 1, high, low)
            counts += (-1) ** (len(corner) - sum(corner)) * self._sums[tuple(at.T)]
        found = counts > 0
        # By chunk, so that each is unpacked about once.
        undecided = np.lexsort(low.T[::-1])
        undecided = undecided[found[undecided]]
        step = max(1, MASK_BYTES // max(1, self._mask.dtype.itemsize * math.prod(self._size)))
        for rows in self._some(undecided, step):
            boxes: npt.NDArray[Any] = np.zeros((len(rows), *self._size), dtype=self._mask.dtype)
            self._mask.read_boxes(starts[rows], self._size, boxes)
            found[rows] = boxes.reshape(len(rows), -1).any(axis=1)
        return found

    @staticmethod
    def _some(rows: I64, step: int) -> Iterator[I64]:
        return (rows[at : at + step] for at in range(0, len(rows), step))
