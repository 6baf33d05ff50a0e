"""Sequence packing: documents of any length become rows of one length.

Rows are planned like any order, from the lengths of documents alone. The documents of an epoch are packed in
windows, each by itself: a row is a pure function of (seed, epoch, row), whatever the number of ranks, and a
run can resume at any row. Only the first row of a window depends on the windows before it; a loader state
stores one.

documents.py has ``Pack``, and the lengths and tokens of documents. rows.py: ``Rows`` plans the rows of an
epoch, ``PackedShard`` deals them to a rank, ``RowFiller`` copies tokens into rows, and ``PackedBatches``
wraps the Executor that makes the documents. ``Packing`` is what a loader holds of all this.
"""

from __future__ import annotations

from .documents import Pack, pack_of
from .rows import PackedBatches, PackedShard, Packing, SkippedRows, lay_out

__all__ = ["Pack", "PackedBatches", "PackedShard", "Packing", "SkippedRows", "lay_out", "pack_of"]
