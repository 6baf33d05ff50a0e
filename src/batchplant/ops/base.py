"""Base classes of ops: an op infers the spec of its output, then runs on batches.

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
from types import ModuleType
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import DataError, OptionError
from ..order.keyed import U64, derive, key_of
from ..schema import Field, Sparse
from ..schema.columns import I64, AnyArray, AnyDType, Column
from .geometry import I32, Motion

F64 = npt.NDArray[np.float64]
# An array or tensor, (values, offsets), a list of arrays of unequal shapes, or a dict of these by output.
Batch = Any
# A tensor of torch, which ops do not import; a dtype of torch or NumPy, or its name.
Tensor = Any
DType = Any


class Draws:
    """Random numbers of the samples of one batch, for one op. Every call gives new ones.

    They are a function of ``seed``, ``epoch``, the sample's number in ``ids``, the op's ``name``, and how
    many calls came before.
    """

    def __init__(self, seed: int, epoch: int, ids: I64, name: str) -> None:
        self._seed, self._epoch = seed, epoch
        # Above 32 bits, apart from the purposes of orders.
        self._key = key_of(seed, epoch, (1 << 32) + zlib.crc32(name.encode()))
        self._ids = ids
        self.keys = derive(self._key, ids)
        self._calls = 0

    def __len__(self) -> int:
        return len(self._ids)

    def named(self, name: str) -> Draws:
        """Return the draws of the same samples for an op of this name."""
        return Draws(self._seed, self._epoch, self._ids, name)

    def part(self, rows: slice) -> Draws:
        """Return the draws of some of the samples: the same numbers."""
        subset = copy.copy(self)
        subset._ids, subset.keys = self._ids[rows], self.keys[rows]
        return subset

    def repeat(self, times: int) -> Draws:
        """Return the draws of each sample repeated, as for the frames of a clip."""
        repeated = copy.copy(self)
        repeated._ids, repeated.keys = np.repeat(self._ids, times), np.repeat(self.keys, times)
        return repeated

    def bits(self, count: int) -> U64:
        """Return ``count`` numbers of 64 bits for each sample."""
        numbers = np.empty((len(self.keys), count), dtype=np.uint64)
        for column in range(count):
            numbers[:, column] = derive(self.keys, np.array([self._calls + column]))
        self._calls += count
        return numbers

    def reserve(self, count: int) -> int:
        """Reserve the next ``count`` numbers of each sample and return the number of the first.

        The caller draws them itself, by ``keys``.
        """
        self._calls += count
        return self._calls - count

    def uniform(self, low: float = 0.0, high: float = 1.0, count: int | None = None) -> F64:
        """Return numbers from ``low`` up to ``high``: one for each sample, or ``count`` in a row."""
        unit = (self.bits(1 if count is None else count) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        values = low + (high - low) * unit
        return values if count is not None else values[:, 0]

    def integers(self, high: int | I64) -> I64:
        """Return integers from 0 up to, not including, ``high`` (a number, or one for each sample)."""
        return np.minimum(np.floor(self.uniform() * high), np.asarray(high) - 1).astype(np.int64)

    def chance(self, probability: float) -> npt.NDArray[np.bool_]:
        """True with this probability."""
        return self.uniform() < probability

    def noise(self, row: int, shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
        """Return normally distributed draws for one sample; ``reserve`` a number before each round."""
        generator = np.random.Generator(np.random.Philox(key=[int(self.keys[row]), self._calls]))
        return generator.standard_normal(shape, dtype=np.float32)

    def generator(self) -> np.random.Generator:
        """Return a generator for draws of the batch as a whole (mixup), seeded by its samples."""
        key = int(np.bitwise_xor.reduce(self.keys)) if len(self._ids) else 0
        self._calls += 1
        return np.random.Generator(np.random.Philox(key=[key, self._calls]))


@dataclasses.dataclass(frozen=True)
class Spec:
    """Layout of one output between two ops: dtype and shape of one sample.

    ``dtype`` None: encoded cells or Python objects, no array. ``torch``: a tensor, no NumPy array.
    ``device``: where it lies, such as ``"cuda:0"``.
    ``channels_first``: the shape is (channels, height, width). ``ragged``: (values, offsets), no array.
    ``unequal``: a list of images, each of its own size. ``names``: of the classes that numbers stand for.
    ``sparse``: the kind of rows of a sparse matrix, :class:`~batchplant.data.sparse.SparseRows`.
    """

    dtype: AnyDType | None
    shape: tuple[int | None, ...] = ()
    torch: bool = False
    device: str = "cpu"
    channels_first: bool = False
    ragged: bool = False
    unequal: bool = False
    names: tuple[str, ...] | None = None
    sparse: Sparse | None = None

    def __str__(self) -> str:
        text = str(self.sparse or "cells") if self.dtype is None else f"{self.dtype} {self.shape}"
        if self.unequal:
            text += " of unequal sizes"
        if self.channels_first:
            text += " with channels first"
        return f"{text} on {self.device}" if self.torch else text

    def image(self, op: object) -> tuple[int, int, int]:
        """Return height, width, channels; an OptionError where this is no batch of images of one size."""
        self.channels(op)
        height, width, channels = self.shape
        if height is None or width is None or channels is None:
            raise OptionError(f"{type(op).__name__} needs images of a size that is known, not {self}")
        return height, width, channels

    def channels(self, op: object, *, unequal: bool = False) -> int:
        """Number of channels of images; with ``unequal`` also of images of unequal sizes."""
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

    def replace(self, **changes: object) -> Spec:
        """Return a copy with some attributes changed; a plain Spec, also of a subclass."""
        return Spec(**{part.name: getattr(self, part.name) for part in dataclasses.fields(Spec)} | changes)

    def numbers(self, op: object) -> Spec:
        """Return self if this is one array or tensor; else raise an OptionError."""
        if self.dtype is None:
            raise OptionError(f"{type(op).__name__} needs numbers, not {self}")
        if self.ragged:
            raise OptionError(f"{type(op).__name__} needs values of one size, not {self}: put Pad before it")
        return self


class Tensors(Protocol):
    """Torch and one device, for the device forms of ops."""

    torch: ModuleType

    def send(self, values: npt.ArrayLike) -> Tensor:
        """Copy an array to the device; float64 becomes float32."""


DeviceForm = Callable[[Batch, I64, Draws, Tensors], Batch]


class Op:
    """One step of a pipeline. Subclasses keep their arguments as attributes and never change them.

    ``share``: ops with the same name draw the same numbers for a sample, in whatever fields they run.
    ``on_device(batch, ids, draws, tensors)``: ``run`` for a tensor on a device, with the same draws; an op
    without it (None) runs on the CPU. ``batches``: how many batches should be in flight in it at a time.
    ``mixes``: the result for a sample depends on the other samples of its batch. ``composes``: ``move``
    describes ``run`` completely. A subclass that overrides ``run`` has to override ``on_device`` and ``move``
    too, or it loses both.
    """

    share: str | None = None
    batches: int = 1
    mixes: bool = False
    composes: ClassVar[bool] = False
    on_device: DeviceForm | None = None

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        overridden = vars(cls).keys()
        if "run" in overridden:
            cls.composes = False
            if "on_device" not in overridden:
                cls.on_device = None
        if not overridden.isdisjoint(("move", "boxes")):
            cls.composes = True

    def infer(self, spec: Spec) -> Spec:
        """Return the spec of the output for this input; raise OptionError if the op cannot take it."""
        return spec

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        """Return the batch after this step. It may be changed in place: it belongs to the pipeline."""
        raise NotImplementedError

    def for_spec(self, spec: Spec) -> Op:
        """Return the op for batches of this spec: a copy if the layout matters to ``run``."""
        return self

    def move(self, sizes: I32, draws: Draws) -> Motion | None:
        """Return the motion of the pixels of images of these sizes, by the draws of ``run``; None: none.

        Boxes and keypoints of the images move with them.
        """
        return None

    def for_loader(self) -> Op:
        """Return the op for one loader: a copy if it has state while it runs."""
        return self

    def close(self) -> None:
        """Release that state; the loader is closed."""

    @property
    def device_form(self) -> DeviceForm | None:
        """``on_device``, or None if this op cannot run on a device with its arguments."""
        return self.on_device

    def __repr__(self) -> str:
        """Return the call that makes this op: the arguments that are not the defaults."""
        parameters = (
            {} if type(self).__init__ is object.__init__ else inspect.signature(type(self)).parameters
        )
        arguments = []
        for name, value in vars(self).items():
            default: Any = parameters[name].default if name in parameters else None
            if not name.startswith("_") and not np.array_equal(value, default):
                shown = value.tolist() if isinstance(value, np.ndarray) else value
                arguments.append(
                    f"{name}={shown.name!r}" if isinstance(shown, np.dtype) else f"{name}={shown!r}"
                )
        return f"{type(self).__name__}({', '.join(arguments)})"


class CellErrors(Exception):  # noqa: N818
    """Raised by a CellOp for cells that cannot be decoded: the errors by row of the batch.

    The loader leaves those samples out, or raises the first error with the sample's location.
    """

    def __init__(self, errors: Mapping[int, DataError]) -> None:
        super().__init__(f"{len(errors)} cells")
        self.errors = dict(errors)

    def __reduce__(self) -> tuple[Any, ...]:
        return CellErrors, (self.errors,)


class RowError(Exception):
    """Raised by an op if one sample is to blame: its row in the batch, and the error itself.

    The loader raises that error with the sample's location.
    """

    def __init__(self, row: int, error: Exception) -> None:
        super().__init__(row, error)
        self.row, self.error = row, error


class CellOp(Op):
    """A first step that takes the cells of a field as they were read, undecoded.

    ``keeps_mask``: the mask of optional values still applies to its output.
    """

    keeps_mask: bool = False

    def infer_field(self, field: Field) -> Spec:
        """Return the spec of the output for a field; raise OptionError if the op cannot take it."""
        raise NotImplementedError

    def infer(self, spec: Spec) -> Spec:
        raise OptionError(
            f"{type(self).__name__} takes a field as it is stored: it can only be the first step"
        )

    def run(self, batch: Column, ids: I64, draws: Draws) -> Batch:
        raise NotImplementedError


def per_sample(values: npt.ArrayLike, rank: int) -> AnyArray:
    """Values of shape (n,) ready to multiply a batch of this rank."""
    return np.asarray(values).reshape(-1, *([1] * (rank - 1)))


def check_probability(value: float, name: str) -> float:
    if not 0 <= value <= 1 or math.isnan(value):
        raise OptionError(f"{name} must be from 0 to 1, not {value}")
    return float(value)
