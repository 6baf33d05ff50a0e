"""True if the bytes of a record batch are enough for the rows that its header claims.

pyarrow believes the header. So the length of every column and of what it is made of is held against its
buffers when a file is opened, and what packed buffers say that they unpack to against the limit.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....codecs.arrow import pyarrow
from ....errors import DamagedError
from ....schema.columns import I64
from ....storage import Source, limits
from .layout import Batch

# Packed buffers begin with their unpacked size; -1: this one is not packed after all.
PREFIX, AS_IT_IS = 8, -1


class Needs:
    """Buffers that a schema needs of a record batch: the node of each, and its bits per value."""

    def __init__(self, schema: Any, views: I64) -> None:
        self._views = iter(views.tolist())
        self.nodes = 0
        # Of each buffer: the node whose length it follows, bits for each value, and further values.
        self._buffers: list[tuple[int, int, int]] = []
        # (node, node in it, how many values of that for each of this)
        self._inside: list[tuple[int, int, int]] = []
        self._columns = [self._add(field.type) for field in schema]
        self.buffers = np.array(self._buffers, dtype=np.int64).reshape(-1, 3)
        self.inside = np.array(self._inside, dtype=np.int64).reshape(-1, 3)
        self.columns = np.array(self._columns, dtype=np.int64)

    def _add(self, kind: Any) -> int:
        pa = pyarrow()
        types = pa.types
        if isinstance(kind, pa.BaseExtensionType):
            return self._add(kind.storage_type)
        node, self.nodes = self.nodes, self.nodes + 1
        if types.is_dictionary(kind):
            self._own(node, 0, kind.index_type.bit_width)
            return node
        if types.is_null(kind):
            return node
        if types.is_run_end_encoded(kind):
            self._add(kind.run_end_type)
            self._add(kind.value_type)
            return node
        if types.is_union(kind):
            self._own(node, 8, *([] if kind.mode == "sparse" else [32]))
        elif types.is_string_view(kind) or types.is_binary_view(kind):
            self._own(node, 0, 128, *[0] * next(self._views, 0))
        elif types.is_list_view(kind) or types.is_large_list_view(kind):
            self._own(node, 0, *[32 if types.is_list_view(kind) else 64] * 2)
        elif types.is_struct(kind) or types.is_fixed_size_list(kind):
            self._own(node, 0)
        elif types.is_list(kind) or types.is_large_list(kind) or types.is_map(kind):
            self._own(node, 0)
            self._buffers.append((node, 64 if types.is_large_list(kind) else 32, 1))
        elif types.is_string(kind) or types.is_binary(kind):
            self._own(node, 0)
            self._buffers += [(node, 32, 1), (node, 0, 0)]
        elif types.is_large_string(kind) or types.is_large_binary(kind):
            self._own(node, 0)
            self._buffers += [(node, 64, 1), (node, 0, 0)]
        else:
            self._own(node, 0, kind.bit_width)
        factor = kind.list_size if types.is_fixed_size_list(kind) else 1
        same = types.is_struct(kind) or types.is_fixed_size_list(kind)
        for number in range(kind.num_fields):
            child = self._add(kind.field(number).type)
            if same:
                self._inside.append((node, child, factor))
        return node

    def _own(self, node: int, *bits: int) -> None:
        # The first says which values are there, and may be left out.
        self._buffers += [(node, width, 0) for width in bits]


def check_rows(source: Source, schema: Any, batches: list[Batch]) -> None:
    """DamagedError where the batches claim more than they have."""
    rows = sum(batch.rows for batch in batches)
    # Whatever a row is made of, it takes a byte.
    limits.check(f"a table of {rows:,} rows", rows, source.size)
    needs: Needs | None = None
    for batch in batches:
        if needs is None or len(batch.views):
            needs = Needs(schema, batch.views)
        try:
            _check(source, batch, needs)
        except (ValueError, IndexError, OverflowError) as error:
            raise DamagedError(
                f"its record batch of {batch.rows} rows is damaged: {error}", offset=batch.message.offset
            ) from None


def check_dictionaries(source: Source, dictionaries: list[Batch]) -> None:
    """The same for the values that dictionaries hold, whose types are not known here."""
    for dictionary in dictionaries:
        limits.check(f"a dictionary of {dictionary.rows:,} values", dictionary.rows, dictionary.message.size)
        try:
            _unpacked(source, dictionary)
        except ValueError as error:
            raise DamagedError(
                f"a dictionary is damaged: {error}", offset=dictionary.message.offset
            ) from None


def _check(source: Source, batch: Batch, needs: Needs) -> None:
    lengths, sizes = batch.lengths, _unpacked(source, batch)
    if needs.nodes != len(lengths) or len(needs.buffers) > len(sizes):
        raise ValueError(f"{len(lengths)} columns and {len(sizes)} buffers do not fit its schema")
    if (lengths[needs.columns] != batch.rows).any() or (lengths < 0).any():
        raise ValueError("its columns differ in length")
    # Python's numbers: sizes that are lies may be of any size.
    if any(lengths[inner] < int(lengths[outer]) * factor for outer, inner, factor in needs.inside.tolist()):
        raise ValueError("a column is longer than what it is made of")
    nodes, bits, extra = needs.buffers.T
    if len(lengths) and int(lengths.max()) > 2**56 // max(1, int(bits.max(initial=0))):
        raise ValueError(f"a column of {lengths.max()} values")
    of = lengths[nodes]
    needed = np.where(of > 0, ((of + extra) * bits + 7) // 8, 0)
    short = np.flatnonzero(needed > sizes[: len(needed)])
    if len(short):
        raise ValueError(f"a column needs {needed[short[0]]} bytes, and {sizes[short[0]]} are there")


def _unpacked(source: Source, batch: Batch) -> I64:
    """The bytes of each buffer, unpacked; more than is allowed is a DamagedError."""
    sizes: I64 = batch.buffers["size"].astype(np.int64)
    if not batch.packed:
        return sizes
    prefixed = np.flatnonzero(sizes >= PREFIX)
    starts = batch.message.body + batch.buffers["offset"][prefixed].astype(np.int64)
    stated = (
        source.gather(starts, np.full(len(prefixed), PREFIX, dtype=np.int64))
        .data.view("<i8")
        .astype(np.int64)
    )
    unpacked = np.zeros(len(sizes), dtype=np.int64)
    unpacked[prefixed] = np.where(stated == AS_IT_IS, sizes[prefixed] - PREFIX, stated)
    if (unpacked < 0).any():
        raise ValueError(f"a buffer of {unpacked.min()} bytes")
    for number in np.flatnonzero(unpacked > limits.max_bytes()).tolist():
        limits.check("a buffer", int(unpacked[number]), int(sizes[number]))
    return unpacked
