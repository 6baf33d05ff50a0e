"""Slices of sequences, for the ranks of a mesh's sequence axis: a step behind collation and packing."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..data.buffers import BufferPool
from ..errors import OptionError, listed, near
from ..order.mesh import Mesh, MeshRank
from ..schema.columns import I32, I64
from .executor import Batch
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
        self._by_document = mesh.balanced == "documents" and mesh.chunk_count > 1
        if pack is not None and self._by_document:
            _check_by_document(pack, mesh.chunk_count)
        self._mesh, self._pack, self._buffers = mesh, pack, buffers
        self._fields = mesh.sequence_fields if pack is None else (pack.field, *TOKEN_OUTPUTS)

    def __call__(self, batch: Batch) -> Batch:
        rank, values = self._mesh.resolve(), dict(batch.values)
        chunks = document_chunks(values["cu_seqlens"], rank) if self._by_document else None
        for name in self._fields:
            if name in values:
                places = None if chunks is None else chunks[0]
                values[name] = self._cut(name, values[name], rank, places)
            elif self._pack is None:
                raise OptionError(
                    f"sequence_fields: the batch has no {name!r}{near(name, values)}; it has {listed(values)}"
                )
        if self._pack is not None and "cu_seqlens" in values:
            whole = values["cu_seqlens"]
            offsets = cut_offsets(whole, self._pack.length, rank) if chunks is None else chunks[1]
            values |= {"cu_seqlens": offsets, "row_cu_seqlens": whole}
            if "max_seqlen" in values:
                longest = int(np.diff(offsets).max(initial=0))
                values |= {"max_seqlen": longest, "row_max_seqlen": values["max_seqlen"]}
        return batch._replace(values=values)

    def _cut(self, name: str, value: Any, rank: MeshRank, places: I64 | None) -> Any:
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
        if places is not None:
            # Packed rows, which are arrays.
            out = self._buffers.take(cut, value.dtype)
            value.reshape(-1).take(places, out=out.reshape(-1), mode="clip")
            return out
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


def _check_by_document(pack: Pack, chunk_count: int) -> None:
    if pack.multiple_of % chunk_count:
        raise OptionError(
            f"documents of any length cannot be cut into {chunk_count} chunks: give Pack(multiple_of="
            f"{math.lcm(pack.multiple_of, chunk_count)}), which pads each"
        )
    if "cu_seqlens" not in pack.outputs:
        raise OptionError("balanced='documents' cuts at the cu_seqlens: add cu_seqlens to outputs of pack")


def document_chunks(offsets: I32, rank: MeshRank) -> tuple[I64, I32]:
    """Return the places of this rank's chunks of every sequence, and where runs begin in them, and their end.

    offsets: where sequences begin in whole rows; their lengths are multiples of the number of chunks.
    """
    sizes = np.diff(offsets).astype(np.int64) // rank.chunk_count
    begins = (offsets[:-1, None] + np.array(rank.chunks) * sizes[:, None]).ravel()
    counts = np.repeat(sizes, len(rank.chunks))
    ends = np.cumsum(counts)
    places = np.repeat(begins - (ends - counts), counts) + np.arange(counts.sum())
    # Chunks that follow each other in a sequence are one run.
    follows = np.append(False, np.diff(rank.chunks) == 1)
    starts = (ends - counts).reshape(len(sizes), -1)[:, ~follows].ravel()
    return places, np.append(starts, counts.sum()).astype(np.int32)
