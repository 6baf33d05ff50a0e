"""Patches around values of interest: random patches, some of which have such a value in their middle."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...errors import OptionError
from ...order.keyed import key_of, uniform
from ...schema import Schema, Tensor
from ...schema.columns import I64, AnyArray, Columns, Flags
from ..arrays import Array
from ..filters import parse_condition

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
