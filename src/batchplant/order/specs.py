"""The orders that a Loader takes, with their options: ``Loader(…, order=order.QuasiRandom(window=64))``.

A name stands for the order with its default options: ``"quasi_random"`` for ``QuasiRandom()``. ``marks`` are
fingerprints of an order in a loader's state, so that it is not resumed with another order.
"""

from __future__ import annotations

import dataclasses
import inspect
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..errors import OptionError, exceptions_as, no_such
from ..schema.columns import I64, AnyArray
from .orders import NAMED, BlockIndex, Order

# Positions whose samples tell epochs apart; a computed order gives them without all others.
PROBED_SAMPLES = 64


def marks(
    order: object, options: Mapping[str, object], indices: npt.ArrayLike | None, bucketed: object = None
) -> dict[str, Any]:
    """Return everything besides the seed that fixes the sequence of samples, as JSON values.

    order, options: as a Loader got them. indices: of the samples that it was given, or None. bucketed: how
    its batches are bucketed, or None.
    """
    parameters = (
        inspect.signature(NAMED[order]).parameters if isinstance(order, str) and order in NAMED else {}
    )
    option_marks = {name: _as_json(value) for name, value in options.items()}
    # An option that names its default makes no other order.
    chosen = {
        name: option_mark
        for name, option_mark in option_marks.items()
        if name not in parameters or option_mark != parameters[name].default
    }
    return {
        "order": _as_json(order), "order_options": chosen, "indices": _as_json(indices),
        "bucket_by_length": _as_json(bucketed),
    }  # fmt: skip


def mark(value: object) -> object:
    """Return a JSON value that tells a value from others."""
    return _as_json(value)


def difference(state: Mapping[str, object], loader_marks: Mapping[str, object]) -> str | None:
    """Return the first difference of a state and ``loader_marks``; keys missing in an older state pass."""
    for name, mine in loader_marks.items():
        if name in state and state[name] != mine:
            theirs = state[name]
            if isinstance(theirs, Mapping) and isinstance(mine, Mapping):
                name = next(key for key in (*theirs, *mine) if theirs.get(key) != mine.get(key))
                theirs, mine = theirs.get(name, "its default"), mine.get(name, "its default")
            return f"the state was made with {name} {theirs}, and this loader has {mine}"
    return None


def drawn(order: Order) -> int:
    """Return a checksum of the samples at some positions all over the epoch of ``order``."""
    while order._base is not None:
        order = order._base
    positions = np.linspace(0, order.length - 1, min(order.length, PROBED_SAMPLES)).astype(np.int64)
    return zlib.crc32(order.take(positions).astype("<i8").tobytes())


def _as_json(value: object) -> object:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Order | BlockIndex):
        return "an order" if isinstance(value, Order) else "blocks"
    if callable(value):
        return "a function"
    array = np.asarray(value)
    if array.dtype.kind in "iub":
        array = array.astype("<i8")
    data = repr(array.tolist()).encode() if array.dtype.hasobject else array.tobytes()
    return f"of {len(array) if array.ndim else 1} values with checksum {zlib.crc32(data):08x}"


# A field, a number for every sample, or a function that returns a number for each of these sample numbers.
SampleSizes = str | Sequence[float] | AnyArray | Callable[[I64], object]


@dataclasses.dataclass(frozen=True, eq=False)
class NamedOrder:
    """Base class of the orders that have a name; the fields of each are the options of its function."""

    name: ClassVar[str]

    def options(self) -> dict[str, Any]:
        """Return the options, without those that are left to their defaults by None."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value is not None}


class Sequential(NamedOrder):
    """Samples as they are stored."""

    name = "sequential"


class Random(NamedOrder):
    """All samples, shuffled anew in every epoch."""

    name = "random"


@dataclasses.dataclass(frozen=True, eq=False)
class QuasiRandom(NamedOrder):
    """Blocks in random order, samples shuffled within every ``window`` blocks of that order.

    window: default as the format says, or 32. lanes: number of ranks, for each to read blocks of its own.
    lane_size: the batch size of the first run, where a run is resumed with another one.
    """

    name = "quasi_random"
    window: int | None = None
    lanes: int | None = None
    lane_size: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Shards(NamedOrder):
    """Blocks (shards, row groups) in random order, the samples of each as they are stored.

    lanes, lane_size: as in :class:`QuasiRandom`.
    """

    name = "shards"
    lanes: int | None = None
    lane_size: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Windowed(NamedOrder):
    """Shuffled as by a buffer: no sample moves farther than ``window``."""

    name = "windowed"
    window: int = 1000


@dataclasses.dataclass(frozen=True, eq=False)
class Weighted(NamedOrder):
    """Samples drawn in proportion to ``weights``, one for each sample.

    count: number of draws (default: as many as there are samples). replace: whether a sample can be drawn
    again.
    """

    name = "weighted"
    weights: Sequence[float] | AnyArray = dataclasses.field(repr=False)
    count: int | None = None
    replace: bool = True


@dataclasses.dataclass(frozen=True, eq=False)
class ClassBalanced(NamedOrder):
    """Every class equally often; ``labels``: the class of each sample. count: as in :class:`Weighted`."""

    name = "class_balanced"
    labels: Sequence[object] | AnyArray = dataclasses.field(repr=False)
    count: int | None = None


def by_name(name: str, **options: Any) -> NamedOrder:
    """Return the order called ``name`` in a config: ``by_name("quasi_random", window=64)``."""
    classes = {order.name: order for order in NamedOrder.__subclasses__()}
    if name not in classes:
        raise OptionError(no_such("order", name, classes))
    with exceptions_as(OptionError, f"the order {name} cannot have these options", TypeError):
        return classes[name](**options)


@dataclasses.dataclass(frozen=True, eq=False)
class ByLength:
    """Batches of samples of similar length, so that little of a padded batch is padding.

    lengths: a field, a number for every sample, or a function of sample numbers (default: the only field
    whose values vary in length). order: the order that is bucketed. window: batches that are sorted together.
    run: similar batches that follow each other, one for each rank. batch_size: that of the first run, where a
    run is resumed with another one.
    """

    lengths: SampleSizes | None = None
    order: OrderLike = "random"
    window: int = 100
    run: int = 1
    batch_size: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class ByAspect:
    """Batches of images of similar aspect ratio, as their headers say.

    order, window, run, batch_size: as of :class:`ByLength`.
    """

    order: OrderLike = "random"
    window: int = 100
    run: int = 1
    batch_size: int | None = None


@dataclasses.dataclass(frozen=True, eq=False)
class Balanced:
    """Ranks get samples of equal size at every step, not equal numbers of samples.

    order: the order whose batches are dealt out. sizes: a field, a number for every sample, or a function of
    sample numbers (default: the stored bytes).
    """

    order: OrderLike = "random"
    sizes: SampleSizes | None = None


# What a Loader takes. A function returns sample numbers: ``fn(n, rng)``.
OrderLike = (
    str | NamedOrder | ByLength | ByAspect | Balanced
    | Order | Sequence[int] | AnyArray | Callable[[int, np.random.Generator], object]
)  # fmt: skip
SPECS = (NamedOrder, ByLength, ByAspect, Balanced)


@dataclasses.dataclass(frozen=True, eq=False)
class OrderParts:
    """An order as a Loader applies it: ``base`` with its ``options``, then buckets, then balance.

    base: a name, an array of sample numbers, a function or an :class:`~batchplant.order.Order`.
    bucket_options: those of :func:`~batchplant.order.bucketed`.
    """

    base: OrderLike
    options: dict[str, Any]
    buckets: ByLength | ByAspect | None
    bucket_options: dict[str, int]
    balance: Balanced | None

    @property
    def name(self) -> str | None:
        """Name of ``base``; None for an order of the user."""
        return self.base if isinstance(self.base, str) else None


def order_parts(order: OrderLike, batch_size: int) -> OrderParts:
    """Return the parts of the ``order`` of a Loader; OptionError if there is no such order."""
    balance = order if isinstance(order, Balanced) else None
    if balance is not None:
        order = balance.order
    buckets = order if isinstance(order, ByLength | ByAspect) else None
    bucket_options: dict[str, int] = {}
    if buckets is not None:
        if balance is not None:
            raise OptionError("batches are made by length or balanced by size: give one of them")
        bucket_options = {
            "bucket_size": buckets.batch_size or batch_size,
            "bucket_window": buckets.window,
            "bucket_run": buckets.run,
        }
        order = buckets.order
    options: dict[str, Any] = {}
    if isinstance(order, NamedOrder):
        options = order.options()
        if "lanes" in options:
            options = {"lane_size": batch_size, **options}
        order = order.name
    if isinstance(order, ByLength | ByAspect | Balanced):
        raise OptionError(f"{order} cannot be the order inside of another")
    if isinstance(order, type) and issubclass(order, SPECS):
        raise OptionError(f"order is an object, not a class: write {order.__name__}()")
    if isinstance(order, str) and order not in NAMED:
        raise OptionError(no_such("order", order, NAMED))
    return OrderParts(order, options, buckets, bucket_options, balance)


def describe(order: OrderLike) -> str:
    """Return the name of an order, its options, or "custom" for an array or a function."""
    if isinstance(order, str):
        return order
    if isinstance(order, NamedOrder) and not order.options():
        return order.name
    return repr(order) if isinstance(order, SPECS) else "custom"
