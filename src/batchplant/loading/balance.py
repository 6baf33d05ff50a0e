"""What ``Loader(balance="size")`` goes by: the bytes of samples, or what the user says of them."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..data.mix import Mix
from ..data.reader import Reader
from ..data.sizes import are_known, sizes_of
from ..errors import OptionError
from ..schema.columns import I64, Masked, Ragged, dense_of

Numbers = npt.NDArray[Any]


def make_sizes(
    reader: Reader, fields: Sequence[str], indices: I64 | None, balance: str | None, sizes: Any
) -> Callable[[I64], Numbers] | None:
    """The sizes of samples by their places in ``indices``; None for ranks with equal numbers of samples.

    ``sizes``: None for the bytes of ``fields``; a field, whose numbers or bytes count; a number for every
    sample of the reader; or a function that takes sample numbers.
    """
    if balance not in (None, "size"):
        raise OptionError(f'balance is None or "size", not {balance!r}')
    if balance is None:
        if sizes is not None:
            raise OptionError('sizes are what balance="size" goes by: give both')
        return None
    found = find_sizes(reader, fields, sizes)
    return found if indices is None else lambda places: found(indices[places])


def find_sizes(reader: Reader, fields: Sequence[str], sizes: Any) -> Callable[[I64], Numbers]:
    """The sizes of samples by their numbers."""
    if callable(sizes):
        return lambda samples: checked(sizes(samples), len(samples), "the function sizes")
    if isinstance(reader, Mix):
        # Its numbers go on from pass to pass.
        of_source = find_sizes(reader.base, fields, sizes)
        return lambda samples: of_source(reader._rows(samples))
    if isinstance(sizes, str):
        if dense_of(reader.schema.select([sizes])[sizes]) is not None or not are_known(reader, [sizes]):
            return _Column(reader, sizes)
        fields = [sizes]
    elif sizes is not None:
        given = checked(sizes, len(reader), "sizes")
        return lambda samples: given[samples]
    dense = [dense_of(reader.schema[name]) for name in fields]
    vary = [name for name, one in zip(fields, dense, strict=True) if one is None]
    always = sum(one[0].itemsize * math.prod(one[1]) for one in dense if one is not None)
    if are_known(reader, vary):
        return lambda samples: always + sizes_of(reader, vary, samples)
    held = reader.sizes()
    if held is None:
        raise OptionError(
            'balance="size" cannot tell how large samples are without reading them all: give sizes=, a field '
            "(it is read once), a number for every sample, or a function"
        )
    return lambda samples: held[samples]


def checked(sizes: Any, count: int, what: str) -> Numbers:
    """One number for each sample, none below zero."""
    found = np.asarray(sizes)
    if found.shape != (count,) or found.dtype.kind not in "iufb":
        raise OptionError(f"{what} must be {count} numbers, not {found.dtype} of shape {found.shape}")
    if not (np.isfinite(found) & (found >= 0)).all():
        raise OptionError(f"{what} must be finite and none below 0")
    return found


class _Column:
    """A field, read once, by the thread that needs it first."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._reader, self._name = reader, name
        self._lock = threading.Lock()
        self._values: Numbers | None = None

    def __call__(self, samples: I64) -> Numbers:
        with self._lock:
            if self._values is None:
                parts = [_sizes_in(one[self._name]) for one in self._reader.scan(fields=[self._name])]
                found = np.concatenate(parts) if parts else np.zeros(0)
                self._values = checked(found, len(self._reader), f"the field {self._name}, as sizes,")
            return self._values[samples]


def _sizes_in(column: Any) -> Numbers:
    if isinstance(column, Masked):
        return np.where(column.mask, column.values, 0)
    return column.sizes if isinstance(column, Ragged) else np.asarray(column)
