r"""Megatron's token datasets: ``NAME.idx`` says where sequences are in ``NAME.bin``. Little-endian.

The index: ``MMIDIDX\0\0``, u64 version (1), u8 code of the dtype, u64 S sequences, u64 D entries of
documents; from byte 34 on i32 lengths[S] in tokens, i64 offsets[S] in bytes of the .bin, i64 documents[D]:
with which sequence each document begins, and last S; then, where sequences have modes, i8 modes[S]. Nothing
is aligned. The .bin is tokens and nothing else.

A sample is a sequence. Where documents are not one sequence each, ``document`` says of which one it is a
part.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from ..data.layout import Layout
from ..data.reader import Reader
from ..data.writer import WriteOptions
from ..errors import (
    BatchplantError,
    DamagedError,
    EncodeError,
    ExistsError,
    NotFoundError,
    OptionError,
    Problem,
)
from ..schema import Field, Int, Schema, Tensor
from ..schema.columns import I64, U8, AnyDType, Columns, as_bytes
from ..storage import MappedSource, Partial, Patch, Source, Spool, beside, open_source, tree
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe
from .base.records import BLOCK_BYTES
from .base.tokens import TOKENS, TokenWriter, check_runs, checked_dtype

# -- layout -------------------------------------------------------------------------------------------
# Layout of .idx files, read entry by entry: an index of a billion sequences is never copied.

MAGIC = b"MMIDIDX\0\0"
VERSION = 1
# Magic, version, code of the dtype, sequences, entries of documents; then the arrays begin.
HEADER = struct.Struct("<9sQBQQ")
ARRAYS = HEADER.size
# Offset and length of a sequence.
LAST = struct.Struct("<qi")
IDX, BIN = "{stem}.idx", "{stem}.bin"
DOCUMENT, MODE = "document", "mode"
CODES = {
    "uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8
}  # fmt: skip
DTYPES = {code: np.dtype(name).newbyteorder("<") for name, code in CODES.items()}
# Entries of the documents that are looked at when it is opened, at either end.
CHECKED_ENTRIES = 1 << 9
COUNT = np.arange(CHECKED_ENTRIES, dtype="<i8")
# Entries that are taken one by one out of a mapped index.
FEW_ENTRIES = 64


class Index:
    """The arrays of an .idx file; the header is checked, what the arrays say is not."""

    # An index on a server that is no longer than this is fetched as a whole.
    max_fetched_bytes: ClassVar[int] = 64 << 20
    sequences: int
    entries: int

    def __init__(self, source: Source) -> None:
        self.source = source
        head = source.peek([(0, min(ARRAYS, source.size))])
        if not head.startswith(MAGIC):
            raise DamagedError("it does not begin with MMIDIDX: it is no index of Megatron's", offset=0)
        if len(head) < ARRAYS:
            raise DamagedError("it ends inside of its header", offset=len(head))
        _, version, code, self.sequences, self.entries = HEADER.unpack(head)
        if version != VERSION:
            raise DamagedError(f"it has version {version}, and only {VERSION} is known", offset=9)
        if code not in DTYPES:
            raise DamagedError(f"{code} is no code of a dtype", offset=17)
        self.dtype = DTYPES[code]
        self._offsets = ARRAYS + 4 * self.sequences
        self._documents = self._offsets + 8 * self.sequences
        self._modes = self._documents + 8 * self.entries
        if source.size not in (self._modes, self._modes + self.sequences):
            content = f"{self.sequences} sequences and {self.entries} entries of documents"
            raise DamagedError(f"{content} do not take {source.size} bytes", offset=18)
        self.has_modes = source.size > self._modes

    def lengths(self, rows: I64) -> I64:
        """In tokens."""
        return self._entries_at("<i4", ARRAYS, rows)

    def offsets(self, rows: I64) -> I64:
        """In bytes of the .bin."""
        return self._entries_at("<i8", self._offsets, rows)

    def documents(self, rows: I64) -> I64:
        """With which sequence documents begin."""
        return self._entries_at("<i8", self._documents, rows)

    def documents_at(self, entry: int) -> int:
        """Offset of an entry of the documents."""
        return self._documents + 8 * entry

    def modes(self, rows: I64) -> I64:
        return self._entries_at("i1", self._modes, rows)

    def ends(self) -> tuple[bool, int, int]:
        """True if documents are one sequence each, as far as number and ends of their list tell; offset and
        length of the last sequence, 0 where there is none. All that opening needs, in one read."""
        few, sequences = min(CHECKED_ENTRIES, self.entries), min(self.sequences, 1)
        behind, last = self.entries - few, self.sequences - sequences
        runs = [
            (self._documents, 8 * few), (self._documents + 8 * behind, 8 * few),
            (self._offsets + 8 * last, 8 * sequences), (ARRAYS + 4 * last, 4 * sequences),
        ]  # fmt: skip
        if self._is_gathered:
            data = self.source.peek(runs)
        else:
            data = b"".join(self._fetched_index[start : start + size].tobytes() for start, size in runs)
        listed = COUNT[:few].tobytes() + (COUNT[:few] + behind).tobytes()
        one_each = self.entries == self.sequences + 1 and data[: len(listed)] == listed
        return one_each, *(LAST.unpack_from(data, len(listed)) if sequences else (0, 0))

    def document_of(self, rows: I64) -> I64:
        """The last document that begins at or before each sequence; damaged lists give anything."""
        low, high = np.zeros(len(rows), dtype=np.int64), np.full(len(rows), self.entries, dtype=np.int64)
        # A search of our own: NumPy's would copy the whole array, as it is not aligned.
        for _ in range(self.entries.bit_length() + 1):
            middle = (low + high) // 2
            before = self.documents(np.minimum(middle, self.entries - 1)) <= rows
            low, high = np.where(before & (low < high), middle + 1, low), np.where(before, high, middle)
        return low - 1

    @property
    def _is_gathered(self) -> bool:
        """True if what is asked for is read; else all of it is fetched once."""
        return isinstance(self.source, MappedSource) or self.source.size > self.max_fetched_bytes

    @functools.cached_property
    def _fetched_index(self) -> U8:
        return self.source.view(0, self.source.size)

    def _entries_at(self, dtype: str, start: int, rows: I64) -> I64:
        kind = np.dtype(dtype)
        count = self.entries if start == self._documents else self.sequences
        if not self._is_gathered:
            entries = self._fetched_index[start : start + kind.itemsize * count].view(kind)
        elif len(rows) < FEW_ENTRIES and isinstance(self.source, MappedSource):
            # Of a mixture of thousands of files, each is asked for a few.
            entries = self.source.array(kind, start, count)
        else:
            values = self.source.gather_rows(start, kind.itemsize, kind.itemsize, rows).reshape(-1).view(kind)
            return values.astype(np.int64)
        return entries[rows].astype(np.int64)


# -- reader -------------------------------------------------------------------------------------------
# Reading Megatron's token datasets.

# Entries that are verified or written at a time.
ENTRIES_PER_STEP = 1 << 20


@functools.cache
def _schema(dtype: AnyDType, documents: bool, modes: bool) -> Schema:
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
        bin_path = beside(self.path, BIN)
        try:
            self._bin = open_source(bin_path)
        except NotFoundError:
            message = f"its tokens are missing: {bin_path} has to lie beside it"
            raise NotFoundError(message, path=self.path) from None
        self.paths = [self.path, bin_path]
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
        valid = np.clip(document, 0, max(count - 2, 0))
        if not wrong.any() and len(indices):
            wrong = (self._index.documents(valid) > indices) | (self._index.documents(valid + 1) <= indices)
        if wrong.any():
            message, offset = (
                "the list of documents does not have the one of this sequence",
                self._index.documents_at(0),
            )
            sample = int(indices[int(np.argmax(wrong))])
            raise DamagedError(message, path=self.path, sample=sample, field=DOCUMENT, offset=offset)
        return document

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return Spans([self._bin], *self._runs(indices)) if field == TOKENS else None

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        # The other fields are small, and lie in the index.
        return self._spans(TOKENS, indices) if TOKENS in fields else None

    def _layout(self) -> Layout:
        return Layout(blocks=lambda: self._index.offsets(np.arange(self.length)) // BLOCK_BYTES)

    def _verify(self) -> Iterator[Problem]:
        """The list of documents; sequences are checked when they are read."""
        count, before = self._index.entries, 0
        for start in range(0, count, ENTRIES_PER_STEP):
            entries = self._index.documents(np.arange(start, min(start + ENTRIES_PER_STEP, count)))
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

    def facts(self) -> dict[str, object]:
        return {
            "dtype": self.dtype.name,
            "tokens": self._bin.size // self.dtype.itemsize,
            "documents": max(self._index.entries - 1, 0),
        }

    def close(self) -> None:
        self._index.source.close()
        self._bin.close()


# -- writer -------------------------------------------------------------------------------------------
# Writing Megatron's token datasets.

# What has no code of its own, and where its tokens go: no vocabulary is larger.
SIGNED_DTYPES = {"uint32": "int32", "uint64": "int64"}
# Numbers of documents may leave out so many: each takes an entry.
MAX_DOCUMENT_GAP = 1 << 24


class MegatronWriter(TokenWriter):
    """Writes NAME.idx and NAME.bin. Each sequence is a document, unless the field ``document`` numbers them
    from 0 on. ``dtype``: as what tokens are stored, such as ``uint16``; every one of them has to fit."""

    side_cars: ClassVar[tuple[str, ...]] = (BIN,)
    appends: ClassVar[bool] = True
    # Lengths of documents are 32 bits.
    max_tokens: ClassVar[int] = 2**31 - 1

    def __init__(self, path: str, schema: Schema, options: WriteOptions, *, dtype: str | None = None) -> None:
        if not path.endswith(".idx"):
            raise OptionError(
                "a dataset of Megatron's is written as NAME.idx, and NAME.bin comes beside it", path=path
            )
        field = schema[TOKENS]
        assert isinstance(field, Tensor)
        name = dtype or SIGNED_DTYPES.get(field.dtype, field.dtype)
        super().__init__(path, schema, options, checked_dtype(name, tuple(CODES), path))

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Tensor) and field.dtype not in CODES and field.dtype not in SIGNED_DTYPES:
            return f"megatron has no tokens of {field.dtype}"
        return super().refuses(field)

    def _open_partial(self) -> Partial:
        bin_path = beside(self.path, BIN)
        if not self.options.overwrite and self.options.base is None and tree.is_file(bin_path):
            raise ExistsError("it exists; replace it with overwrite=True (--overwrite)", path=bin_path)
        return super()._open_partial()

    def kept_schema(self) -> Schema:
        kinds = {DOCUMENT: Int(), MODE: Int("int8")}
        return Schema((name, kinds.get(name, field)) for name, field in super().kept_schema().items())

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._tokens, self._lengths = self.partial.spool("tokens"), self.partial.spool("lengths")
        self._documents, self._modes = self.partial.spool("documents"), self.partial.spool("modes")
        self._old = None if self.base is None else self._check_base(self.base)
        # The documents that are there already, without those at the end that have no sequences.
        self._first_document = 0
        if self._old is not None and self.before:
            numbered = DOCUMENT in self.schema
            last = self._old._documents(np.array([self.before - 1]))[0] if numbered else self.before - 1
            self._first_document = int(last) + 1
        # The number of the last document.
        self._last_document = state["document"] if state else self._first_document - 1

    def _check_base(self, base: Any) -> MegatronReader:
        assert isinstance(base, MegatronReader)
        if base.dtype.name != self._stored.name:
            raise self.cannot_append(f"its tokens are {base.dtype.name}, not {self._stored.name}")
        if base._index.entries < 1:
            raise self.cannot_append("it has no list of documents")
        return base

    def _state(self) -> dict[str, Any]:
        return {"document": self._last_document}

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems = super()._unfit(columns)
        lengths = np.diff(self._values(columns)[1])
        for row in np.flatnonzero(lengths > self.max_tokens).tolist():
            problems[row] = EncodeError(f"a sequence has at most {self.max_tokens} tokens", field=TOKENS)
        for name, low, high in ((DOCUMENT, 0, 2**63 - 1), (MODE, -128, 127)):
            if name in columns:
                numbers, rows = self._numbers(columns, name)
                for token in np.flatnonzero((numbers < low) | (numbers > high)).tolist():
                    message = f"{numbers[token]} is no number from {low} to {high}"
                    problems.setdefault(int(rows[token]), EncodeError(message, field=name))
        return problems

    def _as_stored(self, columns: Columns) -> Columns:
        stored = super()._as_stored(columns)
        for name, dtype in ((DOCUMENT, np.int64), (MODE, np.int8)):
            if name in columns:
                stored[name] = self._numbers(columns, name)[0].astype(dtype)
        return stored

    def _write(self, columns: Columns) -> None:
        tokens = columns.ragged(TOKENS)
        if DOCUMENT in columns:
            self._number(np.asarray(columns[DOCUMENT]))
        if MODE in columns:
            self._modes.write(as_bytes(np.asarray(columns[MODE])))
        self._lengths.write(as_bytes((tokens.sizes // self._stored.itemsize).astype("<i4")))
        self._tokens.write(tokens.data)

    def _number(self, numbers: I64) -> None:
        """Note with which sequence each document begins; one that has none begins with the next."""
        steps = np.diff(numbers, prepend=self._last_document)
        wrong = (steps < 0) | (steps > MAX_DOCUMENT_GAP)
        if wrong.any():
            row = int(np.argmax(wrong))
            before = self._last_document if row == 0 else int(numbers[row - 1])
            message = (
                f"document {numbers[row]} comes after {before}: sequences of a document follow each other, "
                "and documents are numbered from 0 on; leave 'document' out (--fields tokens) where they are "
                "mixed"
            )
            raise EncodeError(message, path=self.path, sample=self.written + row, field=DOCUMENT)
        rows = self.before + self.written + np.arange(len(numbers))
        self._documents.write(as_bytes(np.repeat(rows, steps).astype("<i8")))
        self._last_document = int(numbers[-1]) if len(numbers) else self._last_document

    # -- the index -------------------------------------------------------------------------------------

    def _finish(self) -> str:
        samples, numbered = self.before + self.written, DOCUMENT in self.schema
        entries = self._first_document + (self._documents.size // 8 if numbered else self.written)
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
            _copy(out, "<i8", old.documents, self._first_document)
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
        for done in range(0, self._lengths.size, 4 * ENTRIES_PER_STEP):
            sizes = np.frombuffer(self._lengths.read_at(4 * ENTRIES_PER_STEP, done), "<i4").astype(np.int64)
            ends = offset + np.cumsum(sizes * self._stored.itemsize)
            out.write(as_bytes(np.concatenate([[offset], ends[:-1]]).astype("<i8")))
            offset = int(ends[-1])

    def _beside(self) -> list[tuple[str, str]]:
        return [("tokens", BIN)]

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        assert self._old is not None
        bin_name = BIN.format(stem=self.partial.name.removesuffix(".idx"))
        return [Patch("tokens", bin_name, self._old._bin.size)], [(name, self.partial.name)]


def _copy(out: Spool, dtype: str, entries: Callable[[I64], I64], count: int) -> None:
    for start in range(0, count, ENTRIES_PER_STEP):
        out.write(as_bytes(entries(np.arange(start, min(start + ENTRIES_PER_STEP, count))).astype(dtype)))


def _append(out: Spool, spool: Spool) -> None:
    for done in range(0, spool.size, 8 * ENTRIES_PER_STEP):
        out.write(spool.read_at(8 * ENTRIES_PER_STEP, done))


# -- format -------------------------------------------------------------------------------------------


def sniff(probe: Probe) -> bool:
    """The magic, or that of the index beside a .bin."""
    if probe.head.startswith(MAGIC):
        return True
    if not probe.path.endswith(BIN.removeprefix("{stem}")) or not tree.is_file(beside(probe.path, IDX)):
        return False
    try:
        source = open_source(beside(probe.path, IDX))
        return source.size >= len(MAGIC) and source.view(0, len(MAGIC)).tobytes() == MAGIC
    except BatchplantError:
        return False


FORMAT = Format(
    name="megatron",
    title="Megatron (.bin/.idx)",
    suffixes=(".idx",),
    spec="https://github.com/NVIDIA/Megatron-LM/blob/main/megatron/core/datasets/indexed_dataset.py",
    reader=MegatronReader,
    writer=MegatronWriter,
    sniff=sniff,
    kinds=(Tensor, Int),
    fields={TOKENS: Tensor("int32", (None,)), DOCUMENT: Int(), MODE: Int("int8")},
    notes="sequences of tokens, read in place; documents and modes as fields where there are such",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        streaming_write=True,
        splittable=True,
        max_size="2³¹ tokens in a sequence",
        ecosystem=("Megatron-LM", "NeMo", "GPT-NeoX", "OLMo"),
    ),
)
