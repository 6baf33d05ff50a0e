"""Writing Megatron's token datasets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from ...data.writer import WriteOptions
from ...errors import BatchplantError, EncodeError, ExistsError, OptionError
from ...schema import Field, Int, Schema, Tensor
from ...schema.columns import I64, Columns, Ragged, as_bytes
from ...storage import Partial, Patch, Spool, beside, tree
from ..base.tokens import TOKENS, TokenWriter, checked_dtype
from .layout import BIN, CODES, DOCUMENT, MAGIC, MODE, VERSION
from .reader import MegatronReader

# What has no code of its own, and where its tokens go: no vocabulary is larger.
OTHERS = {"uint32": "int32", "uint64": "int64"}
MOST_TOKENS = 2**31 - 1
# Numbers of documents may leave out so many: each takes an entry.
MOST_GAP = 1 << 24
# Entries that are written at a time.
STEP = 1 << 20


class MegatronWriter(TokenWriter):
    """Writes NAME.idx and NAME.bin. Each sequence is a document, unless the field ``document`` numbers them
    from 0 on. ``dtype``: as what tokens are stored, such as ``uint16``; every one of them has to fit."""

    side_cars: ClassVar[tuple[str, ...]] = (BIN,)
    appends: ClassVar[bool] = True

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, dtype: str | None = None) -> None:
        if not path.endswith(".idx"):
            raise OptionError(
                "a dataset of Megatron's is written as NAME.idx, and NAME.bin comes beside it", path=path
            )
        field = schema[TOKENS]
        assert isinstance(field, Tensor)
        name = dtype or OTHERS.get(field.dtype, field.dtype)
        super().__init__(path, schema, options, checked_dtype(name, tuple(CODES), path))

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Tensor) and field.dtype not in CODES and field.dtype not in OTHERS:
            return f"megatron has no tokens of {field.dtype}"
        return super().refuses(field)

    def _open_partial(self) -> Partial:
        place = beside(self.path, BIN)
        if not self.options.overwrite and self.options.base is None and tree.is_file(place):
            raise ExistsError("it exists; replace it with overwrite=True (--overwrite)", path=place)
        return super()._open_partial()

    def kept_schema(self) -> Schema:
        kinds = {DOCUMENT: Int(), MODE: Int("int8")}
        return Schema((name, kinds.get(name, field)) for name, field in super().kept_schema().items())

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._tokens, self._lengths = self.partial.spool("tokens"), self.partial.spool("lengths")
        self._documents, self._modes = self.partial.spool("documents"), self.partial.spool("modes")
        self._old = None if self.base is None else self._check_base(self.base)
        # The documents that are there already, without those at the end that have no sequences.
        self._known = 0
        if self._old is not None and self.before:
            numbered = DOCUMENT in self.schema
            last = self._old._documents(np.array([self.before - 1]))[0] if numbered else self.before - 1
            self._known = int(last) + 1
        # The number of the last document.
        self._last = state["document"] if state else self._known - 1

    def _check_base(self, base: Any) -> MegatronReader:
        assert isinstance(base, MegatronReader)
        if base.dtype.name != self._stored.name:
            raise self.cannot_append(f"its tokens are {base.dtype.name}, not {self._stored.name}")
        if base._index.entries < 1:
            raise self.cannot_append("it has no list of documents")
        return base

    def _state(self) -> dict[str, Any]:
        return {"document": self._last}

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems = super()._unfit(columns)
        lengths = np.diff(self._values(columns)[1])
        for row in np.flatnonzero(lengths > MOST_TOKENS).tolist():
            problems[row] = EncodeError(f"a sequence has at most {MOST_TOKENS} tokens", field=TOKENS)
        for name, low, high in ((DOCUMENT, 0, 2**63 - 1), (MODE, -128, 127)):
            if name in columns:
                numbers, rows = self._numbers(columns, name)
                for one in np.flatnonzero((numbers < low) | (numbers > high)).tolist():
                    message = f"{numbers[one]} is no number from {low} to {high}"
                    problems.setdefault(int(rows[one]), EncodeError(message, field=name))
        return problems

    def _as_stored(self, columns: Columns) -> Columns:
        found = super()._as_stored(columns)
        for name, dtype in ((DOCUMENT, np.int64), (MODE, np.int8)):
            if name in columns:
                found[name] = self._numbers(columns, name)[0].astype(dtype)
        return found

    def _write(self, columns: Columns) -> None:
        tokens = columns[TOKENS]
        assert isinstance(tokens, Ragged)
        if DOCUMENT in columns:
            self._number(np.asarray(columns[DOCUMENT]))
        if MODE in columns:
            self._modes.write(as_bytes(np.asarray(columns[MODE])))
        self._lengths.write(as_bytes((tokens.sizes // self._stored.itemsize).astype("<i4")))
        self._tokens.write(tokens.data)

    def _number(self, numbers: I64) -> None:
        """Note with which sequence each document begins; one that has none begins with the next."""
        steps = np.diff(numbers, prepend=self._last)
        wrong = (steps < 0) | (steps > MOST_GAP)
        if wrong.any():
            row = int(np.argmax(wrong))
            before = self._last if row == 0 else int(numbers[row - 1])
            raise EncodeError(
                f"document {numbers[row]} comes after {before}: sequences of a document follow each other, "
                "and documents are numbered from 0 on; leave 'document' out (--fields tokens) where they are "
                "mixed",
                path=self.path,
                sample=self.written + row,
                field=DOCUMENT,
            )
        rows = self.before + self.written + np.arange(len(numbers))
        self._documents.write(as_bytes(np.repeat(rows, steps).astype("<i8")))
        self._last = int(numbers[-1]) if len(numbers) else self._last

    # -- the index -------------------------------------------------------------------------------------

    def _finish(self) -> str:
        samples, numbered = self.before + self.written, DOCUMENT in self.schema
        entries = self._known + (self._documents.size // 8 if numbered else self.written)
        # As many as sequences look like one each; one more, without sequences, says that they are numbered.
        ends = 2 if numbered and entries == samples else 1
        out = self.partial.spool("index")
        out.resize(0)
        head = np.array([VERSION], "<u8").tobytes() + bytes([CODES[self._stored.name]])
        out.write(MAGIC + head + np.array([samples, entries + ends], "<u8").tobytes())
        old = None if self._old is None else self._old._index
        if old is not None:
            _copy(out, "<i4", old.lengths, self.before)
        _append(out, self._lengths)
        if old is not None:
            _copy(out, "<i8", old.offsets, self.before)
        self._write_offsets(out)
        if old is not None:
            _copy(out, "<i8", old.documents, self._known)
        if numbered:
            _append(out, self._documents)
        else:
            _copy(out, "<i8", lambda rows: rows + self.before, self.written)
        out.write(np.full(ends, samples, "<i8"))
        if old is not None and MODE in self.schema:
            _copy(out, "i1", old.modes, self.before)
        _append(out, self._modes)
        return "index"

    def _write_offsets(self, out: Spool) -> None:
        offset = 0 if self._old is None else self._old._bin.size
        for done in range(0, self._lengths.size, 4 * STEP):
            sizes = np.frombuffer(self._lengths.read_at(4 * STEP, done), "<i4").astype(np.int64)
            ends = offset + np.cumsum(sizes * self._stored.itemsize)
            out.write(as_bytes(np.concatenate([[offset], ends[:-1]]).astype("<i8")))
            offset = int(ends[-1])

    def _beside(self) -> list[tuple[str, str]]:
        return [("tokens", BIN)]

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        assert self._old is not None
        place = BIN.format(stem=self.partial.name.removesuffix(".idx"))
        return [Patch("tokens", place, self._old._bin.size)], [(name, self.partial.name)]


def _copy(out: Spool, dtype: str, entries: Callable[[I64], I64], count: int) -> None:
    for start in range(0, count, STEP):
        out.write(as_bytes(entries(np.arange(start, min(start + STEP, count))).astype(dtype)))


def _append(out: Spool, spool: Spool) -> None:
    for done in range(0, spool.size, 8 * STEP):
        out.write(spool.read_at(8 * STEP, done))
