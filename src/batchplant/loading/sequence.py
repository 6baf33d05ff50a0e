"""Slices of sequences, for the ranks of a mesh's sequence axis: a step behind collation and packing."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import OptionError, listed, near
from ..order.mesh import Mesh, MeshRank
from ..schema.columns import I32
from .executor import Batch
from .on_cpu import BufferPool
from .packing import Pack

# Outputs of packing with a value for every token.
TOKEN_OUTPUTS = ("labels", "loss_mask", "position_ids", "document_ids")


class SequenceCutter:
    """Cuts this rank's chunks out of every sequence of a batch.

    The sequences are packed rows, or the fields that the mesh names. ``buffers``: memory for slices.
    """

    def __init__(self, mesh: Mesh, pack: Pack | None, buffers: BufferPool) -> None:
        if pack is None and not mesh.sequence_fields:
            raise OptionError(
                "sequence_axis cuts packed rows: give pack=, as in Pack(8192, strategy='none'), or name the "
                "fields to cut: mesh=Mesh(…, sequence_fields=('tokens',))"
            )
        if pack is not None and mesh.sequence_fields:
            raise OptionError("sequence_fields are for loaders that do not pack: the outputs of pack are cut")
        if pack is not None and pack.labels == "same":
            raise OptionError(
                "labels are shifted before rows are cut, since the label of the last token of a slice is in "
                "the next slice: give Pack(labels='shifted'), or labels=None for none"
            )
        if pack is not None and pack.length % mesh.chunk_count:
            rounded = -(-pack.length // mesh.chunk_count) * mesh.chunk_count
            raise OptionError(
                f"rows of {pack.length} tokens cannot be cut into {mesh.chunk_count} chunks, {rounded} can"
            )
        if pack is not None and "max_seqlen" in pack.outputs and "cu_seqlens" not in pack.outputs:
            raise OptionError("max_seqlen of a slice is that of its cu_seqlens: add cu_seqlens to outputs")
        self._mesh, self._pack, self._buffers = mesh, pack, buffers
        self._fields = mesh.sequence_fields if pack is None else (pack.field, *TOKEN_OUTPUTS)

    def __call__(self, batch: Batch) -> Batch:
        rank, values = self._mesh.resolve(), dict(batch.values)
        for name in self._fields:
            if name in values:
                values[name] = self._cut(name, values[name], rank)
            elif self._pack is None:
                raise OptionError(
                    f"sequence_fields: the batch has no {name!r}{near(name, values)}; it has {listed(values)}"
                )
        if self._pack is not None and "cu_seqlens" in values:
            offsets = cut_offsets(values["cu_seqlens"], self._pack.length, rank)
            values |= {"cu_seqlens": offsets, "row_cu_seqlens": values["cu_seqlens"]}
            if "max_seqlen" in values:
                longest = int(np.diff(offsets).max(initial=0))
                values |= {"max_seqlen": longest, "row_max_seqlen": values["max_seqlen"]}
        return batch._replace(values=values)

    def _cut(self, name: str, value: Any, rank: MeshRank) -> Any:
        shape = tuple(getattr(value, "shape", ()))
        if len(shape) < 2:
            raise OptionError(
                "sequence_fields need an array of sequences of one length, as Pad makes it", field=name
            )
        if shape[1] % rank.chunk_count:
            raise OptionError(
                f"sequences of {shape[1]} cannot be cut into {rank.chunk_count} chunks: "
                f"Pad(multiple_of={rank.chunk_count}) makes them longer",
                field=name,
            )
        if rank.chunk_count == 1:
            return value
        size = shape[1] // rank.chunk_count
        chunks = value.reshape(shape[0], rank.chunk_count, size, *shape[2:])
        cut = (shape[0], len(rank.chunks) * size, *shape[2:])
        if not isinstance(value, np.ndarray):
            return chunks[:, list(rank.chunks)].reshape(cut)
        out = self._buffers.take(cut, value.dtype)
        # Anything but `clip` would make a copy first; the numbers are valid.
        chunks.take(
            rank.chunks, axis=1, out=out.reshape(shape[0], len(rank.chunks), size, *shape[2:]), mode="clip"
        )
        return out


def cut_offsets(offsets: I32, length: int, rank: MeshRank) -> I32:
    """Return where runs of tokens begin in the slices of rows of ``length``, as one row, and their end.

    A run is tokens of one sequence that follow each other; ``offsets``: where sequences begin in whole rows.
    """
    size, rows = length // rank.chunk_count, int(offsets[-1]) // length
    starts = (np.arange(rows)[:, None] * length + np.array(rank.chunks) * size).ravel()
    # Where the chunks begin in the slices.
    positions = np.arange(len(starts)) * size
    first, last = np.searchsorted(offsets, starts), np.searchsorted(offsets, starts + size)
    counts = last - first
    chunk = np.repeat(np.arange(len(starts)), counts)
    inner = offsets[np.arange(len(chunk)) + (first - np.cumsum(counts) + counts)[chunk]]
    follows = np.append(False, starts[1:] == starts[:-1] + size)[: len(starts)]
    begins = [positions[~follows], inner + (positions - starts)[chunk], [len(starts) * size]]
    return np.unique(np.concatenate(begins)).astype(np.int32)
