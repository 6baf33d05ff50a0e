"""The rows of a batch, made of its documents."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import AccessError, DataError
from ..schema.columns import I32, I64, U8, Spans, as_bytes, starts_of
from ..storage import mapped, mapped_source
from .batch import Batch, Executor
from .buffers import Buffers
from .endings import Flags
from .made import Made, ragged
from .packing import OUTPUTS, Pack, Pieces

# Every so many batches it is looked whether files still are in memory.
CHECK_EVERY = 16
# What the engine takes as tokens.
KINDS = ("uint8", "uint16", "int32", "uint32", "int64")
# What takes to know where pieces come to stand.
LAID_OUT = {"cu_seqlens", "max_seqlen", "pieces"}


class Tokens:
    """Documents in memory: i is ``size[i]`` bytes at ``begin[i]`` of ``bases[base[i]]``."""

    def __init__(self, bases: list[U8], base: I32, begin: I64, size: I64, dtype: str) -> None:
        self.bases, self.base, self.begin, self.size, self.dtype = bases, base, begin, size, dtype

    @classmethod
    def of(cls, value: Any, field: str) -> Tokens:
        """Documents that were read or made."""
        tokens, offsets = _ragged(value, field)
        places = offsets * tokens.itemsize
        base = np.zeros(len(offsets) - 1, dtype=np.int32)
        return cls([as_bytes(tokens)], base, places[:-1], np.diff(places), tokens.dtype.name)

    def without(self, token: int, chosen: Flags) -> Tokens:
        """These documents, the chosen ones without a last token that is this one."""
        dtype, size = np.dtype(self.dtype), self.size.copy()
        for number, data in enumerate(self.bases):
            own = np.flatnonzero(chosen & (self.base == number) & (size >= dtype.itemsize))
            last = (self.begin + size)[own, None] - dtype.itemsize + np.arange(dtype.itemsize)
            size[own[data[last].view(dtype)[:, 0] == token]] -= dtype.itemsize
        return Tokens(self.bases, self.base, self.begin, size, self.dtype)


class Filling:
    """Makes rows, and counts what they came to: documents by the rows in which they begin.

    ``rest``: makes what a batch has besides tokens. Where these can be taken from where they lie, their dtype
    is ``dtype``, else nothing. ``images``: how many places the images of documents take before their
    tokens. ``indices``: the samples that documents are, where they are not all. ``own_ends``: which samples
    get no end token if they have one; None where all get one.
    """

    def __init__(
        self,
        pack: Pack,
        buffers: Buffers,
        rest: Executor,
        dtype: str,
        images: Callable[[I64], I64] | None = None,
        indices: I64 | None = None,
        own_ends: Callable[[I64], Flags | None] = lambda samples: None,
    ) -> None:
        self.pack, self._buffers, self._rest, self._dtype = pack, buffers, rest, dtype
        self._images, self._indices, self._own_ends = images, indices, own_ends
        self._lock = threading.Lock()
        self._rows, self._documents, self._tokens, self._overlong = 0, 0, 0, 0
        # Batches that were asked for.
        self._turn = 0

    def executor(self, pieces: Pieces, usual: Executor, made: Made | None) -> Executor:
        """Who makes the rest of a batch; ``usual`` makes its tokens too."""
        if made is not None:
            return self._rest if made.has(self._numbers(pieces)) else usual
        if not self._dtype or pieces.where is None:
            return usual
        places = int(np.bitwise_or.reduce(pieces.where.start | pieces.where.size))
        whole = places % np.dtype(self._dtype).itemsize == 0
        return self._rest if whole and self._in_memory(pieces.where) else usual

    def _in_memory(self, where: Spans) -> bool:
        """Whether no disk is waited for; what was in memory is asked for only every so often."""
        self._turn += 1
        for number, path in enumerate(where.files):
            source = mapped_source(path)
            if source is None:
                return False
            if not source.was_warm or self._turn % CHECK_EVERY == 0:
                own = np.flatnonzero(where.file == number)
                if len(own) and not source.check_warm(where.start[own], where.size[own]):
                    return False
        return True

    def _numbers(self, pieces: Pieces) -> I64:
        """The samples that the documents are."""
        return pieces.samples if self._indices is None else self._indices[pieces.samples]

    def finish(self, pieces: Pieces, batch: Batch, documents: Made | None) -> Batch:
        """The documents as rows."""
        kept, values = _without_missing(pieces, self._numbers(pieces), batch), dict(batch.values)
        if documents is not None and self.pack.field not in values:
            values[self.pack.field] = documents.of(batch.ids)
        images = None if self._images is None else self._images(batch.ids)
        if images is not None:
            texts = _ragged(values.pop(self.pack.field), self.pack.field)
            tokens = Tokens.of(_behind(images, self.pack.image_token_id, *texts), self.pack.field)
        elif self.pack.field in values:
            tokens = Tokens.of(values.pop(self.pack.field), self.pack.field)
        else:
            tokens = self._in_place(kept)
        own_ends = self._own_ends(batch.ids)
        if own_ends is not None and self.pack.eos is not None:
            tokens = tokens.without(self.pack.eos, own_ends)
        made = fill(self.pack, kept, tokens, values, self._buffers, images)
        with self._lock:
            self._rows += len(pieces.rows) - 1
            # A document that is cut is in several rows, and maybe in several batches.
            self._documents += int((kept.start == 0).sum())
            self._tokens += int(kept.size.sum())
            self._overlong += pieces.overlong
        return Batch(made, batch.ids, batch.skipped)

    def _in_place(self, pieces: Pieces) -> Tokens:
        where = pieces.where
        assert where is not None
        bases = [mapped(path) for path in where.files]
        found = [base for base in bases if base is not None]
        if len(found) < len(bases):
            raise AccessError("it was closed while a batch was made of it", path=where.files[0])
        return Tokens(found, where.file, where.start, where.size, self._dtype)

    def stats(self) -> dict[str, Any]:
        cells = self._rows * self.pack.length
        return {
            "packing": {
                "rows": self._rows, "documents": self._documents, "tokens": self._tokens,
                "fill": self._tokens / cells if cells else None,
                "overlong": self._overlong,
            }
        }  # fmt: skip


def fill(
    pack: Pack,
    pieces: Pieces,
    tokens: Tokens,
    values: dict[str, Any],
    buffers: Buffers,
    images: I64 | None = None,
) -> dict[str, Any]:
    """A batch of rows; ``values``: what else it has. ``images``: tokens of images before each document."""
    prompt = images
    if pack.prompt is not None:
        said = np.ascontiguousarray(values.pop(pack.prompt), dtype=np.int64)
        prompt = said if images is None else said + images
    shape = (len(pieces.rows) - 1, pack.length)

    def room(name: str, dtype: Any) -> Any:
        return buffers.take(shape, np.dtype(dtype)) if name in pack.outputs else None

    rows = buffers.take(shape, np.dtype(pack.dtype))
    labels = None if pack.labels is None else room("labels", pack.dtype)
    position, document = room("position_ids", pack.dtype), room("document_ids", np.int32)
    learned = room("loss_mask", np.uint8)
    try:
        _native.fill_rows(
            tokens.bases, tokens.base, tokens.begin, tokens.size, tokens.dtype, prompt,
            pieces.rows, pieces.document, pieces.start, pieces.size,
            rows, labels, position, document, learned,
            pad=pack.pad, ignore=pack.ignore, end=pack.eos, shifted=pack.labels == "shifted",
        )  # fmt: skip
    except ValueError as error:
        raise DataError(
            f"documents are not as long as was said when rows were planned ({error}): give sizes=",
            field=pack.field,
        ) from None
    if pack.across and position is not None:
        position[:] = np.arange(pack.length)
    if pack.across and document is not None:
        np.copyto(document, 0, where=document >= 0)
    made = {
        "labels": labels, "loss_mask": None if learned is None else learned.view(np.bool_),
        "position_ids": position, "document_ids": document,
    }  # fmt: skip
    if LAID_OUT & set(pack.outputs):
        table, cuts = lay_out(pieces, pack)
        made |= {"cu_seqlens": cuts, "max_seqlen": int(np.diff(cuts).max(initial=0)), "pieces": table}
    wanted = {name: made[name] for name in OUTPUTS if name in pack.outputs and made[name] is not None}
    return {pack.field: rows, **wanted, **values}


def lay_out(pieces: Pieces, pack: Pack) -> tuple[I64, I32]:
    """(row, place, size, start, document) of every piece, and where sequences begin in the rows as one."""
    table, cuts = _native.lay_out(
        pieces.rows, pieces.document, pieces.start, pieces.size, pack.length, pack.across
    )
    return table.reshape(-1, 5), cuts


def _ragged(value: Any, field: str) -> tuple[npt.NDArray[Any], I64]:
    """The tokens of documents, one after another."""
    tokens, offsets = ragged(value, field)
    tokens = np.ascontiguousarray(tokens)
    if tokens.dtype.name not in KINDS:
        tokens = tokens.astype(np.int64)
    return tokens, np.ascontiguousarray(offsets, dtype=np.int64)


def _behind(images: I64, image_token: int, tokens: npt.NDArray[Any], offsets: I64) -> tuple[Any, I64]:
    """The tokens of documents, each behind the places of its images."""
    lengths = np.diff(offsets)
    where = starts_of(lengths + images)
    dtype = np.result_type(tokens.dtype, np.min_scalar_type(image_token))
    found = np.full(int(where[-1]), image_token, dtype=dtype if dtype.name in KINDS else np.int64)
    texts = np.ascontiguousarray(tokens, dtype=found.dtype)
    width = found.itemsize
    _native.copy_runs(
        as_bytes(texts), offsets[:-1] * width, lengths * width, as_bytes(found), (where[:-1] + images) * width
    )
    return found, where


def _without_missing(pieces: Pieces, numbers: I64, batch: Batch) -> Pieces:
    """Without the documents that were left out because they cannot be read: there, rows have padding."""
    if len(batch.ids) == len(pieces.samples):
        return pieces
    renamed = np.full(len(pieces.samples), -1, dtype=np.int64)
    place = 0
    for number, sample in enumerate(numbers.tolist()):
        if place < len(batch.ids) and batch.ids[place] == sample:
            renamed[number] = place
            place += 1
    kept = renamed[pieces.document] >= 0
    before = np.concatenate([[0], np.cumsum(kept)])
    where = None if pieces.where is None else pieces.where.take(renamed >= 0)
    document, start, size = renamed[pieces.document[kept]], pieces.start[kept], pieces.size[kept]
    return Pieces(batch.ids, before[pieces.rows], document, start, size, where)
