"""Patches of volumes that differ in shape: each sample of a dataset is a volume of its own."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...codecs.cells import decode_cell
from ...errors import BatchplantError, DecodeError, OptionError, SchemaError
from ...order.keyed import derive, key_of, uniform, whole
from ...schema import Field, Int, Schema, Tensor
from ...schema.columns import I64, Columns, Ragged, starts_of
from ...storage import index
from ...storage.spans import Spans
from ..reader import Reader, open_reader

POSITION, VOLUME = "position", "volume"
VERSION = 1


class VolumePatches(Reader):
    """Boxes of ``size`` cut out of the volumes of a dataset, whose samples are volumes of differing shapes.

    source: a reader, or the path of one. fields: those that are cut, of one shape within each sample, such as
    a scan and its labels (default: all arrays of varying shape). size: along the first axes; the others have
    one size and are taken whole.

    stride: a patch every so many steps, along all axes or along each (default: the size). random: instead, so
    many patches of every volume, at places drawn with ``seed``. pad: a number that stands for what lies
    outside. With it, a stride covers everything, and a volume that is smaller than a patch gives one that is
    padded at its end; without it, such a volume is an error.

    A sample has the patch, ``position`` (where it begins), ``volume`` (the number of the sample that it is
    cut from) and the other fields of that sample. The patches of a volume are a block: with
    ``order="quasi_random"`` a volume is decoded about once.
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
        pad: float | None = None,
    ) -> None:
        self.base = base = source if isinstance(source, Reader) else open_reader(source)
        self.path = base.path
        try:
            if isinstance(size, int) or not len(size):
                raise OptionError(
                    f"size is a size for each of the first axes, as in (64, 64, 64), not {size}"
                )
            self._size = np.array([whole("size", one, 1) for one in size], dtype=np.int64)
            self._cut = self._fields([fields] if isinstance(fields, str) else fields)
            self.schema, self._pad = self._schema(), pad
            if stride is not None and random is not None:
                raise OptionError("patches have a stride, or are random")
            steps = (
                list(size) if stride is None else [stride] * len(size) if isinstance(stride, int) else stride
            )
            if len(steps) != len(size):
                raise OptionError(f"stride has {len(steps)} axes, and size has {len(size)}")
            self._step = np.array([whole("stride", one, 1) for one in steps], dtype=np.int64)
            self._random = None if random is None else whole("random", random, 1)
            self._key = key_of(seed, 0, 11)
            self._shapes = self._shapes_of_all()
            self._counts = self._places()
        except BatchplantError as error:
            raise error.at(path=self.path) from None
        each = self._counts.prod(axis=1)
        self._firsts = starts_of(each if self._random is None else np.where(each > 0, self._random, 0))
        self.length = int(self._firsts[-1])

    def _fields(self, given: Sequence[str] | None) -> tuple[str, ...]:
        axes = len(self._size)
        if given is None:
            kinds = self.base.schema.items()
            given = [name for name, one in kinds if isinstance(one, Tensor) and None in one.shape[:axes]]
        if not given:
            raise OptionError("there are no arrays of varying shape; of arrays of one shape cut Patches")
        for name in self.base._names(given):
            field = self.base.schema[name]
            if not isinstance(field, Tensor) or len(field.shape) < axes or None in field.shape[axes:]:
                raise OptionError(f"patches of {axes} axes cannot be cut out of {field}", field=name)
            if field.optional:
                raise OptionError("volumes must not be missing", field=name)
        return self.base._names(given)

    def _schema(self) -> Schema:
        found: dict[str, Field] = {}
        for name, field in self.base.schema.items():
            if name in (POSITION, VOLUME):
                raise SchemaError(f"a field cannot be called {name!r}: patches have one of their own")
            found[name] = field
            if name in self._cut:
                assert isinstance(field, Tensor)
                rest = field.shape[len(self._size) :]
                found[name] = dataclasses.replace(field, shape=(*self._size.tolist(), *rest))
        found[POSITION], found[VOLUME] = Tensor("int64", (len(self._size),)), Int()
        return Schema(found)

    # -- where patches are -----------------------------------------------------------------------------

    def _shapes_of_all(self) -> I64:
        """The shapes of all volumes: they are read once, and remembered."""
        name, axes = self._cut[0], len(self._size)

        def make(looks: Reader) -> tuple[index.Arrays, index.Facts]:
            found = [self._volume(looks, number, name).shape[:axes] for number in range(len(looks))]
            return {"shapes": np.array(found, dtype=np.int64).reshape(-1, axes)}, {}

        def check(found: index.Index) -> bool:
            shapes = found.arrays["shapes"]
            return shapes.dtype == np.int64 and shapes.shape == (len(self.base), axes)

        kept = self.base._indexed((name,), "volume-shapes", str(axes), make, version=VERSION, check=check)
        return make(self.base)[0]["shapes"] if kept is None else kept.arrays["shapes"]

    def _places(self) -> I64:
        """How many places a patch has along each axis of each volume."""
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
        """The volume of each patch, and where it begins there."""
        volume = np.searchsorted(self._firsts, indices, side="right") - 1
        number, counts = indices - self._firsts[volume], self._counts[volume]
        starts = np.empty((len(indices), len(self._size)), dtype=np.int64)
        for axis in reversed(range(len(self._size))):
            if self._random is None:
                number, place = np.divmod(number, counts[:, axis])
                starts[:, axis] = place * self._step[axis]
            else:
                drawn = uniform(derive(self._key, np.full(len(indices), axis)), indices)
                starts[:, axis] = np.minimum((drawn * counts[:, axis]).astype(np.int64), counts[:, axis] - 1)
        return volume, starts

    # -- reading ---------------------------------------------------------------------------------------

    @staticmethod
    def _volume(reader: Reader, number: int, name: str) -> npt.NDArray[Any]:
        column = reader._read(np.array([number]), (name,))[name]
        try:
            return np.asarray(decode_cell(reader.schema[name], column, 0))
        except BatchplantError as error:
            raise error.at(field=name) from None

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        volumes, starts = self._starts(indices)
        used, back = np.unique(volumes, return_inverse=True)
        others = tuple(name for name in fields if name in self.base.schema and name not in self._cut)
        columns = self.base._read(used, others)
        found = Columns()
        for name in fields:
            if name == POSITION:
                found[name] = starts
            elif name == VOLUME:
                found[name] = volumes
            elif name in others:
                column = columns[name]
                found[name] = column.take(back) if isinstance(column, Ragged) else column[back]
            else:
                found[name] = self._patches(name, indices, used, back, starts)
        return found

    def _patches(self, name: str, indices: I64, used: I64, back: I64, starts: I64) -> npt.NDArray[Any]:
        field = self.schema[name]
        assert field.cell is not None
        dtype, shape = field.cell
        out = np.full((len(indices), *shape), 0 if self._pad is None else self._pad, dtype=dtype)
        for number, volume in enumerate(used.tolist()):
            rows = np.flatnonzero(back == number)
            try:
                values = self._volume(self.base, volume, name)
                if values.shape[: len(self._size)] != tuple(self._shapes[volume].tolist()):
                    raise DecodeError(
                        f"its shape is {values.shape}, and {self._cut[0]!r} is "
                        f"{tuple(self._shapes[volume].tolist())}"
                    )
            except BatchplantError as error:
                error.sample = int(indices[rows[0]])
                raise error.at(path=self.path, field=name) from None
            for row in rows.tolist():
                ends = starts[row] + self._size
                box = values[tuple(slice(a, b) for a, b in zip(starts[row], ends, strict=True))]
                out[row][tuple(slice(0, one) for one in box.shape)] = box
        return out

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        own = [name for name in fields if name in self.base.schema]
        return self.base._ranges(own, np.unique(self._starts(indices)[0]))

    def blocks(self) -> I64 | None:
        """The volume of each patch."""
        return np.repeat(np.arange(len(self._firsts) - 1), np.diff(self._firsts))

    def where(self, sample: int) -> str:
        return self.base.where(int(self._starts(np.array([sample]))[0][0]))

    def facts(self) -> dict[str, Any]:
        return {"volumes": len(self.base), "size": tuple(self._size.tolist())}

    def close(self) -> None:
        self.base.close()
