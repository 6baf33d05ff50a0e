"""The order of samples in an epoch, and the sizes, lengths and aspect ratios that it can depend on."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import order as orders
from ..data.mix import Change, Mix
from ..data.reader import Reader
from ..data.sizes import are_known, sizes_of
from ..errors import DataError, OptionError, exceptions_as
from ..schema import Bytes, Image, List, Tensor, Text
from ..schema.columns import I64, AnyArray, Column, Masked, Ragged, dense_of
from ..storage import NOTE_ERRORS
from .images import header_sizes, locate, turns_of
from .plan import Plan

F32 = npt.NDArray[np.float32]
Numbers = AnyArray
# Returns a number for each of these samples.
SampleNumbers = Callable[[I64], Numbers]


class Ordering:
    """Makes the order of every epoch out of the parts that the user gave."""

    def __init__(
        self, reader: Reader, plan: Plan, parts: orders.OrderParts, indices: I64 | None, seed: int
    ) -> None:
        self.reader, self.parts, self.indices, self.seed = reader, parts, indices, seed
        self.samples = len(reader) if indices is None else len(indices)
        # Sizes by which samples are dealt out to ranks; None for equal numbers of samples.
        self.sizes: SampleNumbers | None = None
        if parts.balance is not None:
            self.sizes = _at_positions(find_sizes(reader, plan.fields, parts.balance.sizes), indices)
        # Of the weights of a mixture.
        self.changes: tuple[Change, ...] = ()
        self._lengths: SampleNumbers | None = None
        self._buckets: object = None
        if parts.buckets is not None:
            lengths, self._buckets = _bucket_lengths(reader, plan, parts.buckets)
            self._lengths = _at_positions(lengths, indices)
        self._blocks: orders.BlockIndex | None = None
        self._marks: dict[str, Any] | None = None

    def make(self, epoch: int) -> orders.Order:
        """Return the order of an epoch."""
        order = self._make(epoch)
        if self._lengths is None:
            return order
        # Batches are shuffled where samples are.
        shuffle = self.parts.name != "sequential"
        return orders.bucketed(
            order, self._lengths, shuffle=shuffle, seed=self.seed, epoch=epoch, **self.parts.bucket_options
        )

    def _make(self, epoch: int) -> orders.Order:
        base, name, options = self.parts.base, self.parts.name, dict(self.parts.options)
        if self.indices is None and isinstance(self.reader, Mix):
            return self.reader.epoch_order(base, seed=self.seed, epoch=epoch, changes=self.changes, **options)
        if name in orders.BY_BLOCKS:
            options["blocks"] = self._block_index(name)
        return orders.make(base, self.samples, seed=self.seed, epoch=epoch, **options)

    def _block_index(self, order: str) -> orders.BlockIndex:
        """Return the grouping of samples by storage block, made once."""
        if self._blocks is None:
            sizes = self.reader._layout().numbers("block_sizes") if self.indices is None else None
            if sizes is not None:
                self._blocks = orders.BlockIndex.of_sizes(sizes[sizes > 0], self.reader.window)
                return self._blocks
            blocks = self.reader.blocks()
            if blocks is None:
                raise OptionError(f"this format has no blocks, so {order} has nothing to go by; use random")
            self._blocks = orders.BlockIndex(blocks, self.reader.window, self.indices)
        return self._blocks

    def change(self, entries: Any) -> None:
        """Take over the changes of weights of a state."""
        with exceptions_as(OptionError, "this is no state of a loader", *NOTE_ERRORS):
            changes = tuple(
                (int(epoch), int(position), list(map(float, weights))) for epoch, position, weights in entries
            )
        if changes and not isinstance(self.reader, Mix):
            raise OptionError("the state is of a mixture whose weights were changed, and this is none")
        if isinstance(self.reader, Mix):
            for *_, weights in changes:
                self.reader.weights_of(weights)
        self.changes = changes

    def marks(self) -> dict[str, Any]:
        """Return what the sequence of samples depends on, besides the seed."""
        if self._marks is None:
            is_all = self.indices is None or np.array_equal(self.indices, np.arange(len(self.reader)))
            indices = None if is_all else self.indices
            options = {**self.parts.options, **self.parts.bucket_options}
            self._marks = orders.marks(self.parts.base, options, indices, self._buckets)
        return self._marks


# -- buckets -----------------------------------------------------------------------------------------------


def _bucket_lengths(
    reader: Reader, plan: Plan, spec: orders.ByLength | orders.ByAspect
) -> tuple[SampleNumbers, object]:
    """Return the lengths or aspect ratios of samples, and the option that names them."""
    if isinstance(spec, orders.ByAspect):
        return find_aspects(reader, plan), "aspect"
    lengths = spec.lengths
    if lengths is None:
        varying = [
            name
            for name in plan.fields
            if isinstance(field := reader.schema[name], Text | Bytes | List)
            or (isinstance(field, Tensor) and None in field.shape)
        ]
        if len(varying) != 1:
            hint = f"of {', '.join(varying)}" if varying else "and none of these has values of varying length"
            raise OptionError(f"ByLength needs the field whose length counts, {hint}")
        lengths = varying[0]
    return find_sizes(reader, plan.fields, lengths), lengths


def _at_positions(numbers: SampleNumbers, indices: I64 | None) -> SampleNumbers:
    """Return ``numbers`` as a function of positions in ``indices``."""
    return numbers if indices is None else lambda positions: numbers(indices[positions])


def find_aspects(reader: Reader, plan: Plan) -> SampleNumbers:
    """Return a function that gives width / height of the images of samples."""
    for output in plan.images:
        field = reader.schema[output.field]
        if output.image is not None and not (isinstance(field, Image) and field.mask):
            orient = output.image.decoder.op.orient
            if isinstance(reader, Mix):
                # Sample numbers of a mixture go on from pass to pass.
                base_aspects = _AspectRatios(reader.base, output.field, orient)
                return lambda samples: base_aspects(reader._base_rows(samples))
            return _AspectRatios(reader, output.field, orient)
    raise OptionError("ByAspect is for images, and the batches have none")


class _AspectRatios:
    """Aspect ratios from image headers, each read once."""

    def __init__(self, reader: Reader, field: str, orient: bool) -> None:
        self._reader, self._field, self._orient = reader, field, orient
        self._lock = threading.Lock()
        # 0: not read yet.
        self._ratios: F32 = np.zeros(len(reader), dtype=np.float32)

    def __call__(self, samples: I64) -> F32:
        with self._lock:
            new = np.unique(samples[self._ratios[samples] == 0])
            if len(new):
                try:
                    self._ratios[new] = self._read(new)
                except DataError:
                    for sample in new:
                        self._ratios[sample] = self._read_alone(sample)
            return self._ratios[samples]

    def _read_alone(self, sample: int) -> float:
        try:
            return float(self._read(np.array([sample]))[0])
        except DataError:
            # The error is reported when the sample is read.
            return 1.0

    def _read(self, samples: I64) -> Numbers:
        cells = locate(self._reader, self._field, samples)
        sizes = header_sizes(cells)
        if self._orient:
            turned = turns_of(cells) >= 5
            sizes[turned] = sizes[turned, ::-1]
        # An image without a size in its header counts as a square.
        sizes[~sizes.all(axis=1)] = 1
        return sizes[:, 1] / sizes[:, 0]


# -- sizes -------------------------------------------------------------------------------------------------


def find_sizes(reader: Reader, fields: Sequence[str], sizes: orders.SampleSizes | None) -> SampleNumbers:
    """Return a function that gives the sizes of samples.

    ``sizes``: None for the bytes of ``fields``; a field, whose numbers or bytes count; a number for every
    sample of the reader; or a function that takes sample numbers.
    """
    if callable(sizes):
        return lambda samples: _check_sizes(sizes(samples), len(samples), "the function sizes")
    if isinstance(reader, Mix):
        # Sample numbers of a mixture go on from pass to pass.
        base_sizes = find_sizes(reader.base, fields, sizes)
        return lambda samples: base_sizes(reader._base_rows(samples))
    if isinstance(sizes, str):
        if dense_of(reader.schema.select([sizes])[sizes]) is not None or not are_known(reader, [sizes]):
            return _ColumnSizes(reader, sizes)
        fields = [sizes]
    elif sizes is not None:
        numbers = _check_sizes(sizes, len(reader), "sizes")
        return lambda samples: numbers[samples]
    dense = {name: dense_of(reader.schema[name]) for name in fields}
    varying = [name for name in fields if dense[name] is None]
    fixed_bytes = sum(kind[0].itemsize * math.prod(kind[1]) for kind in dense.values() if kind is not None)
    if are_known(reader, varying):
        return lambda samples: fixed_bytes + sizes_of(reader, varying, samples)
    stored = reader.sizes()
    if stored is None:
        raise OptionError(
            "Balanced cannot tell how large samples are without reading them all: give sizes=, a field "
            "(it is read once), a number for every sample, or a function"
        )
    return lambda samples: stored[samples]


def _check_sizes(sizes: object, count: int, description: str) -> Numbers:
    """Return one number for each sample; OptionError unless all are finite and none is below zero."""
    numbers = np.asarray(sizes)
    if numbers.shape != (count,) or numbers.dtype.kind not in "iufb":
        shape = f"{numbers.dtype} of shape {numbers.shape}"
        raise OptionError(f"{description} must be {count} numbers, not {shape}")
    if not (np.isfinite(numbers) & (numbers >= 0)).all():
        raise OptionError(f"{description} must be finite and none below 0")
    return numbers


class _ColumnSizes:
    """The sizes in a field, read once by the thread that needs them first."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader, self._name = reader, name
        self._lock = threading.Lock()
        self._sizes: Numbers | None = None

    def __call__(self, samples: I64) -> Numbers:
        with self._lock:
            if self._sizes is None:
                chunks = self._reader.scan(fields=[self._name])
                parts = [_column_sizes(columns[self._name]) for columns in chunks]
                sizes = np.concatenate(parts) if parts else np.zeros(0)
                self._sizes = _check_sizes(sizes, len(self._reader), f"the field {self._name}, as sizes,")
            return self._sizes[samples]


def _column_sizes(column: Column) -> Numbers:
    if isinstance(column, Masked):
        return np.where(column.mask, column.values, 0)
    return column.sizes if isinstance(column, Ragged) else np.asarray(column)
