"""What an op is: it says what shape it makes of a shape, then runs on a batch.

Randomness belongs to the sample: :class:`Draws` gives numbers that are a function of (seed, epoch, sample,
op) alone, so that the same sample looks the same with any number of workers and ranks, and after a resume.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import math
import zlib
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DataError, OptionError
from ..order.keyed import U64, derive, key_of
from ..schema import Field
from ..schema.columns import I64, Column
from .geometry import I32, Motion

F64 = npt.NDArray[np.float64]


class Draws:
    """Random numbers of the samples of one batch, for one op. Every call gives new ones."""

    def __init__(self, seed: int, epoch: int, ids: I64, name: str) -> None:
        self._seed, self._epoch = seed, epoch
        # Above 32 bits, apart from the purposes of orders.
        self._key = key_of(seed, epoch, (1 << 32) + zlib.crc32(name.encode()))
        self._ids = ids
        # One for each sample.
        self.keys = derive(self._key, ids)
        self._calls = 0

    def __len__(self) -> int:
        return len(self._ids)

    def named(self, name: str) -> Draws:
        """Those of the same samples for an op of this name."""
        return Draws(self._seed, self._epoch, self._ids, name)

    def part(self, rows: slice) -> Draws:
        """Those of some of the samples: the same numbers."""
        made = copy.copy(self)
        made._ids, made.keys = self._ids[rows], self.keys[rows]
        return made

    def repeat(self, times: int) -> Draws:
        """Each of these for so many images in a row, as the frames of a clip are."""
        made = copy.copy(self)
        made._ids, made.keys = np.repeat(self._ids, times), np.repeat(self.keys, times)
        return made

    def bits(self, count: int) -> U64:
        """``count`` numbers of 64 bits for each sample."""
        found = np.empty((len(self.keys), count), dtype=np.uint64)
        for column in range(count):
            found[:, column] = derive(self.keys, np.array([self._calls + column]))
        self._calls += count
        return found

    def reserve(self, count: int) -> int:
        """The first of the next ``count`` numbers of each sample, for who draws them by its key."""
        self._calls += count
        return self._calls - count

    def uniform(self, low: float = 0.0, high: float = 1.0, count: int | None = None) -> F64:
        """From ``low`` up to ``high``: one number for each sample, or ``count`` in a row."""
        unit = (self.bits(1 if count is None else count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        values = low + (high - low) * unit
        return values if count is not None else values[:, 0]

    def integers(self, high: Any) -> I64:
        """From 0 up to, not including, ``high`` (a number, or one for each sample)."""
        found: I64 = np.minimum(np.floor(self.uniform() * high), np.asarray(high) - 1).astype(np.int64)
        return found

    def chance(self, probability: float) -> npt.NDArray[np.bool_]:
        """True with this probability."""
        return self.uniform() < probability

    def noise(self, row: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Of the normal distribution, for one sample; ``reserve`` a number before each round of them."""
        generator = np.random.Generator(np.random.Philox(key=[int(self.keys[row]), self._calls]))
        return generator.standard_normal(shape, dtype=np.float32)

    def generator(self) -> np.random.Generator:
        """For draws that belong to the whole batch (mixup): seeded by the samples in it."""
        own = int(np.bitwise_xor.reduce(self.keys)) if len(self._ids) else 0
        self._calls += 1
        return np.random.Generator(np.random.Philox(key=[own, self._calls]))


@dataclasses.dataclass(frozen=True)
class Spec:
    """What the values of one output look like between two ops: dtype and shape of one sample.

    ``dtype`` None: encoded cells or Python objects, no array. ``torch``: a tensor, no NumPy array.
    ``channels_first``: the shape is (channels, height, width). ``ragged``: (values, offsets), no array.
    ``unequal``: a list of images, each of its own size. ``names``: of the classes that numbers stand for.
    """

    dtype: np.dtype[Any] | None
    shape: tuple[int | None, ...] = ()
    torch: bool = False
    device: str = "cpu"
    channels_first: bool = False
    ragged: bool = False
    unequal: bool = False
    names: tuple[str, ...] | None = None

    def __str__(self) -> str:
        what = "cells" if self.dtype is None else f"{self.dtype} {self.shape}"
        if self.unequal:
            what += " of unequal sizes"
        if self.channels_first:
            what += " with channels first"
        return f"{what} on {self.device}" if self.torch else what

    def image(self, op: object) -> tuple[int, int, int]:
        """Height, width, channels; an OptionError where this is no batch of images of one size."""
        self.channels(op)
        height, width, channels = self.shape
        if height is None or width is None or channels is None:
            raise OptionError(f"{type(op).__name__} needs images of a size that is known, not {self}")
        return height, width, channels

    def channels(self, op: object, *, unequal: bool = False) -> int:
        """Of images of one size, even if each batch has its own; with ``unequal`` also of others."""
        wrong = self.dtype is None or self.torch or self.ragged or self.channels_first
        first, last = (self.shape[0], self.shape[2]) if len(self.shape) == 3 else (None, None)
        if not wrong and first in (1, 3, 4) and last is not None and last > 4:
            raise OptionError(
                f"{type(op).__name__} needs images (height, width, channels), and {self} looks like "
                "(channels, height, width): store them with channels last, or put before it "
                f"Function(lambda batch: np.moveaxis(batch, 1, -1), shape={(*self.shape[1:], first)})"
            )
        if wrong or len(self.shape) != 3 or self.shape[2] is None:
            raise OptionError(f"{type(op).__name__} needs images (height, width, channels), not {self}")
        if self.unequal and not unequal:
            raise OptionError(
                f"{type(op).__name__} needs images of one size: resize or crop them before it, or put "
                'Collate("pad") there'
            )
        return self.shape[2]

    def but(self, **changes: Any) -> Spec:
        """The same with some of it changed; a plain Spec also where this is of a subclass."""
        return Spec(**{part.name: getattr(self, part.name) for part in dataclasses.fields(Spec)} | changes)

    def numbers(self, op: object) -> Spec:
        """This, where it is one array or tensor; else an OptionError."""
        if self.dtype is None:
            raise OptionError(f"{type(op).__name__} needs numbers, not {self}")
        if self.ragged:
            raise OptionError(f"{type(op).__name__} needs values of one size, not {self}: put Pad before it")
        return self


class Tensors(Protocol):
    """What the device form of an op works with."""

    # The module.
    torch: Any

    def send(self, values: Any) -> Any:
        """An array as a tensor on the device; float64 becomes float32."""


class Op:
    """One step of a pipeline. Subclasses keep their arguments as attributes and never change them.

    ``share``: ops with the same name draw the same numbers for a sample, in whatever fields they run.
    ``on_device(batch, ids, draws, tensors)``: ``run`` for a tensor on a device, with the same draws; an op
    without it (None) runs on the CPU. ``batches``: how many of them it is good to run it on at a time.
    ``mixes``: what a sample becomes depends on the others of its batch.
    """

    share: str | None = None
    batches: int = 1
    mixes: bool = False
    on_device: Callable[[Any, I64, Draws, Tensors], Any] | None = None

    def infer(self, spec: Spec) -> Spec:
        """What comes out when ``spec`` goes in; OptionError where the op cannot take it."""
        return spec

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        """The batch after this step. It may be changed in place: it belongs to the pipeline."""
        raise NotImplementedError

    def suited(self, spec: Spec) -> Op:
        """This, for batches like that: a copy, where the layout matters to ``run``."""
        return self

    def move(self, sizes: I32, draws: Draws) -> Motion | None:
        """Where it takes the pixels of images of these sizes, by the draws of ``run``; None: nowhere.

        Boxes and keypoints of the images go along.
        """
        return None

    def own(self) -> Op:
        """This, for one loader: a copy, where it holds something while it runs."""
        return self

    def close(self) -> None:
        """Let go of that; its loader is closed."""

    @property
    def device_form(self) -> Callable[[Any, I64, Draws, Tensors], Any] | None:
        """``on_device``; None also where a subclass changed ``run`` and left ``on_device`` as it was."""
        for kind in type(self).__mro__:
            if "on_device" in vars(kind):
                return self.on_device
            if "run" in vars(kind):
                return None
        return None

    def __repr__(self) -> str:
        """As it could be written: the arguments that are not the defaults."""
        parameters = (
            {} if type(self).__init__ is object.__init__ else inspect.signature(type(self)).parameters
        )
        said = []
        for name, value in vars(self).items():
            default: Any = parameters[name].default if name in parameters else None
            if not name.startswith("_") and not np.array_equal(value, default):
                shown = value.tolist() if isinstance(value, np.ndarray) else value
                said.append(f"{name}={shown.name!r}" if isinstance(shown, np.dtype) else f"{name}={shown!r}")
        return f"{type(self).__name__}({', '.join(said)})"


class CellErrors(Exception):  # noqa: N818
    """What a CellOp raises where cells cannot be decoded: by row of the batch, what is wrong with each.

    The loader leaves those samples out, or raises the first error with its place.
    """

    def __init__(self, errors: Mapping[int, DataError]) -> None:
        super().__init__(f"{len(errors)} cells")
        self.errors = dict(errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return CellErrors, (self.errors,)


class RowError(Exception):
    """What an op raises where a sample is to blame: its row in the batch, and the error itself.

    The loader raises that one, with the place of the sample.
    """

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(row, error)
        self.row, self.error = row, error


class CellOp(Op):
    """A first step that takes the cells of a field as they were read, before anything is made of them.

    ``keeps_mask``: the mask of values that may be missing still stands beside what it gives.
    """

    keeps_mask: bool = False

    def infer_field(self, field: Field) -> Spec:
        """What comes out of the cells of a field; OptionError where the op cannot take them."""
        raise NotImplementedError

    def infer(self, spec: Spec) -> Spec:
        # The plan asks infer_field of a first step.
        raise OptionError(
            f"{type(self).__name__} takes a field as it is stored: it can only be the first step"
        )

    def run(self, batch: Column, ids: I64, draws: Draws) -> Any:
        raise NotImplementedError


def per_sample(values: Any, rank: int) -> Any:
    """Values of shape (n,) ready to multiply a batch of this rank."""
    return np.asarray(values).reshape(-1, *([1] * (rank - 1)))


def check_probability(value: float, name: str) -> float:
    if not 0 <= value <= 1 or math.isnan(value):
        raise OptionError(f"{name} must be from 0 to 1, not {value}")
    return float(value)
