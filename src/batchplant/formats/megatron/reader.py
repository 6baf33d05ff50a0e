"""Reading Megatron's token datasets."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...data.reader import Reader
from ...errors import BatchplantError, DamagedError, NotFoundError, Problem
from ...schema import Field, Int, Schema, Tensor
from ...schema.columns import I64, Columns, Spans
from ...storage import beside, open_source, tree
from ..base.records import BLOCK_BYTES
from ..base.tokens import TOKENS, check_runs
from .layout import BIN, DOCUMENT, IDX, MODE, Index

# Entries that are verified at a time.
STEP = 1 << 20


@functools.cache
def _schema(dtype: np.dtype[Any], documents: bool, modes: bool) -> Schema:
    fields: dict[str, Field] = {TOKENS: Tensor(dtype.name, (None,))}
    if documents:
        fields[DOCUMENT] = Int()
    if modes:
        fields[MODE] = Int("int8")
    return Schema(fields)


class MegatronReader(Reader):
    """Reads Megatron's .bin and .idx, opened by either or by the name that they share.

    ``documents``: with a field ``document``, which one each sequence is a part of; by default where documents
    are not one sequence each.
    """

    def __init__(self, path: str, *, documents: bool | None = None) -> None:
        self.path = path
        if path.endswith(".bin"):
            self.path = beside(path, IDX)
        elif not path.endswith(".idx") and not tree.is_file(path):
            self.path = beside(path, "{name}.idx")
        try:
            self._index = Index(open_source(self.path))
        except NotFoundError:
            message = "there is no such index; a file of tokens without one opens with format='tokens'"
            raise NotFoundError(message, path=self.path) from None
        except BatchplantError as error:
            raise error.at(path=self.path) from None
        place = beside(self.path, BIN)
        try:
            self._bin = open_source(place)
        except NotFoundError:
            message = f"its tokens are missing: {place} has to lie beside it"
            raise NotFoundError(message, path=self.path) from None
        self.paths = [self.path, place]
        self.dtype = self._index.dtype
        self.length = self._index.sequences
        one_each, start, tokens = self._index.ends()
        numbered = self._index.entries > 0 and not one_each if documents is None else documents
        self.schema = _schema(self.dtype, numbered, self._index.has_modes)
        # A copy that was not finished is noticed now, and not in the middle of an epoch.
        if start < 0 or not 0 <= tokens * self.dtype.itemsize <= self._bin.size - start:
            self._runs(np.arange(self.length - 1, self.length))

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        starts, sizes = self._index.offsets(indices), self._index.lengths(indices) * self.dtype.itemsize
        check_runs(self, self._bin, indices, starts, sizes)
        return starts, sizes

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        columns = Columns()
        for name in fields:
            if name == TOKENS:
                columns[name] = self._bin.gather(*self._runs(indices))
            elif name == DOCUMENT:
                columns[name] = self._documents(indices)
            else:
                columns[name] = self._index.modes(indices).astype(np.int8)
        return columns

    def _documents(self, indices: I64) -> I64:
        count = self._index.entries
        document = self._index.document_of(indices) if count > 1 else np.full(len(indices), -1)
        wrong = (document < 0) | (document + 1 >= count)
        known = np.clip(document, 0, max(count - 2, 0))
        if not wrong.any() and len(indices):
            wrong = (self._index.documents(known) > indices) | (self._index.documents(known + 1) <= indices)
        if wrong.any():
            raise DamagedError(
                "the list of documents does not have the one of this sequence",
                path=self.path,
                sample=int(indices[int(np.argmax(wrong))]),
                field=DOCUMENT,
                offset=self._index.documents_at(0),
            )
        return document

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return Spans([self._bin.path], *self._runs(indices)) if field == TOKENS else None

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        # The other fields are small, and lie in the index.
        return self._spans(TOKENS, indices) if TOKENS in fields else None

    def blocks(self) -> I64 | None:
        return self._index.offsets(np.arange(self.length)) // BLOCK_BYTES

    def _verify(self) -> Iterator[Problem]:
        """The list of documents; sequences are checked when they are read."""
        count, before = self._index.entries, 0
        for start in range(0, count, STEP):
            entries = self._index.documents(np.arange(start, min(start + STEP, count)))
            earlier = np.concatenate([[before], entries[:-1]])
            # Compared, not subtracted: the difference of wild numbers can look right.
            wrong = entries < earlier
            wrong[0] |= start == 0 and entries[0] != 0
            if wrong.any():
                row = int(np.argmax(wrong))
                message = f"the list of documents goes wrong: {entries[row]} comes after {earlier[row]}"
                yield Problem(message, self.path, offset=self._index.documents_at(start + row))
                return
            before = int(entries[-1])
        if count and before != self.length:
            message = f"the documents have {before} sequences, and there are {self.length}"
            yield Problem(message, self.path, offset=self._index.documents_at(count - 1))

    def facts(self) -> dict[str, Any]:
        return {
            "dtype": self.dtype.name,
            "tokens": self._bin.size // self.dtype.itemsize,
            "documents": max(self._index.entries - 1, 0),
        }

    def close(self) -> None:
        self._index.source.close()
        self._bin.close()
