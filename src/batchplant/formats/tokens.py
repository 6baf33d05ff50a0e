"""Flat files of tokens, as nanoGPT trains on: tokens one after another, and nothing else. Little-endian.

Nothing in the file says what a token is, nor where a sample ends: whoever opens it does. It is cut into rows
of ``length`` tokens, or into documents, each of which ends with the token ``eos``. Where documents end is
found by one scan, which is remembered. A NumPy file with one axis (.npy) is such a file behind a header.

``NAME.tokens.json`` beside a file that we wrote says it: dtype, eos or length, and how many tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from ..codecs import npy
from ..data.reader import Reader
from ..data.writer import WriteOptions
from ..errors import BatchplantError, DamagedError, EncodeError, OptionError, Problem, exceptions_as, on_error
from ..schema import Field, Schema, Tensor
from ..schema.columns import I64, AnyArray, Columns, as_bytes
from ..storage import (
    NOTE_ERRORS,
    RANGE_MOST,
    MappedSource,
    Patch,
    Source,
    beside,
    open_source,
    parse_object,
    read_beside,
    tree,
)
from ..storage import index as indexes
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe
from .base.tokens import TOKENS, TokenWriter, check_runs, checked_dtype

NOTE_NAME = "{name}.tokens.json"
DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64")
SCANNED_BYTES = 64 << 20


class TokensReader(Reader):
    """Reads flat files of tokens, .bin or .npy.

    ``dtype``: of a token, such as ``uint16``. ``length``: rows of so many tokens; the last one may be
    shorter, unless ``drop_last``. ``eos``: documents, each up to this token, which is left out unless
    ``keep_eos``. What is not said is what stands beside a file that batchplant wrote. ``index``: of the
    documents: auto, memory, write or rebuild.
    """

    def __init__(
        self,
        path: str,
        *,
        dtype: str | None = None,
        length: int | None = None,
        eos: int | None = None,
        drop_last: bool = False,
        keep_eos: bool = False,
        index: str = "auto",
    ) -> None:
        self.path = path
        self._source = open_source(path)
        # How many tokens there should be, where that is known.
        self.noted: int | None = None
        with on_error(self._source.close, path=path):
            self._start = self._open_header(dtype)
            if length is None and eos is None:
                note = _note_beside(path)
                length, eos, self.noted = note.get("length"), note.get("eos"), note.get("tokens")
            if (length is None) == (eos is None):
                raise OptionError(
                    "say where a sample ends: length=1024 (--option length=1024) for rows of so many tokens, "
                    "or eos=50256 for documents that end with this token"
                )
            if length is not None and length < 1:
                raise OptionError(f"length is at least 1, not {length}")
            size = self._source.size - self._start
            self.tokens, over = divmod(size, self.dtype.itemsize)
            if over:
                raise DamagedError(f"{size} bytes are no whole number of tokens of {self.dtype.name}")
            self.eos, self._keep, self._row = eos, int(keep_eos), length
            self._ends: I64 = np.empty(0, dtype=np.int64)
            if length is not None:
                self.length = self.tokens // length if drop_last else -(-self.tokens // length)
            else:
                self._find_documents(index)
        even = length is not None and self.length * length <= self.tokens
        self.schema = Schema({TOKENS: Tensor(self.dtype.name, (length if even else None,))})

    def _open_header(self, dtype: str | None) -> int:
        """The dtype; returns where tokens begin."""
        head = self._source.view(0, min(self._source.size, npy.MAX_HEADER_BYTES + 12)).tobytes()
        if not head.startswith(npy.MAGIC):
            dtype = dtype or _note_beside(self.path).get("dtype")
            if dtype is None:
                raise OptionError("say what a token is: dtype='uint16' (--option dtype=uint16), for example")
            self.dtype = checked_dtype(dtype, DTYPES, self.path)
            return 0
        header = npy.parse_header(head)
        if len(header.shape) != 1 or header.dtype.name not in DTYPES or header.dtype.byteorder == ">":
            raise DamagedError(
                f"tokens are a little-endian array of one axis, not {header.dtype.str} of {header.shape}"
            )
        if dtype not in (None, header.dtype.name):
            raise OptionError(f"its tokens are {header.dtype.name}, not {dtype}")
        if header.size != self._source.size - header.start:
            raise DamagedError(f"its header promises {header.size} bytes, and {self._source.size} are there")
        self.dtype = header.dtype
        return header.start

    def _find_documents(self, mode: str) -> None:
        assert self.eos is not None
        limits = np.iinfo(self.dtype)
        if not limits.min <= self.eos <= limits.max:
            raise OptionError(f"eos is a token, and {self.eos} is no {self.dtype.name}")
        loaded = indexes.load(
            self._source, "tokens", self._scan, mode=mode, check=self._fits, grow=self._scan
        )
        self._ends = loaded.arrays["ends"]
        last = int(self._ends[-1]) + 1 if len(self._ends) else 0
        self.length = len(self._ends) + (last < self.tokens)

    def _scan(
        self, source: Source, report: indexes.Report, before: indexes.Index | None = None, offset: int = 0
    ) -> tuple[dict[str, AnyArray], dict[str, Any]]:
        """Locate the ends of all documents; ``known``: those up to byte ``at``, from an earlier scan."""
        ends = [np.empty(0, dtype=np.int64) if before is None else before.arrays["ends"]]
        width = self.dtype.itemsize
        step = (SCANNED_BYTES if isinstance(source, MappedSource) else RANGE_MOST) // width
        first = len(range(self._start, offset, width)) if before is not None else 0
        while first < self.tokens:
            count = min(step, self.tokens - first)
            tokens = source.array(self.dtype, self._start + first * width, count)
            ends.append(np.flatnonzero(tokens == self.eos) + first)
            first += count
            report(self._start + first * width)
        facts = {"eos": self.eos, "dtype": self.dtype.name, "start": self._start}
        return {"ends": np.concatenate(ends)}, facts

    def _fits(self, loaded: indexes.Index) -> bool:
        facts = (loaded.facts.get(name) for name in ("eos", "dtype", "start"))
        return tuple(facts) == (self.eos, self.dtype.name, self._start) and loaded.has(ends="i8")

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        width = self.dtype.itemsize
        if self._row is not None:
            starts = indices * self._row
            counts = np.minimum(self.tokens - starts, self._row)
        else:
            documents = len(self._ends)
            starts, ends = np.zeros(len(indices), dtype=np.int64), np.full(len(indices), self.tokens)
            later, ended = indices > 0, indices < documents
            starts[later] = self._ends[indices[later] - 1] + 1
            ends[ended] = self._ends[indices[ended]] + self._keep
            counts = ends - starts
        starts, sizes = self._start + starts * width, counts * width
        check_runs(self, self._source, indices, starts, sizes)
        return starts, sizes

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if not fields:
            return Columns()
        tokens: Any = self._source.gather(*self._runs(indices))
        cell = self.schema[TOKENS].cell
        if cell is not None:
            tokens = tokens.data.view(self.dtype).reshape(-1, *cell[1])
        return Columns({TOKENS: tokens})

    def _spans(self, field: str, indices: I64) -> Spans | None:
        return Spans([self._source], *self._runs(indices))

    def _verify(self) -> Iterator[Problem]:
        """A cut between two tokens leaves a sound file; only the note knows."""
        if self.noted not in (None, self.tokens):
            yield Problem(f"it has {self.tokens} tokens, and {self.noted} were written", self.path)

    def facts(self) -> dict[str, object]:
        grouping = {"length": self._row} if self._row is not None else {"eos": self.eos}
        return {"dtype": self.dtype.name, "tokens": self.tokens, **grouping}

    def close(self) -> None:
        self._source.close()


def _note_beside(path: str) -> dict[str, Any]:
    """Read our metadata beside a file; empty if there are none."""
    note_path = beside(path, NOTE_NAME)
    data = read_beside(note_path)
    if data is None:
        return {}
    with exceptions_as(DamagedError, "the note about the tokens is damaged", *NOTE_ERRORS, path=note_path):
        note = parse_object(data)
        numbers = {name: note[name] for name in ("length", "eos", "tokens") if note.get(name) is not None}
        if not all(type(number) is int for number in numbers.values()) or type(note["dtype"]) is not str:
            raise ValueError("dtype is a name, the others are numbers")
        return {"dtype": note["dtype"], **numbers}


class TokensWriter(TokenWriter):
    """Writes flat files of tokens, .npy by that suffix. ``eos``: the token that ends each document, which no
    document may have inside; rows of one length need none. ``dtype``: as what tokens are stored."""

    side_cars: ClassVar[tuple[str, ...]] = (NOTE_NAME,)
    appends: ClassVar[bool] = True
    reading: ClassVar[tuple[str, ...]] = ("dtype", "eos")

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        eos: int | None = None,
        dtype: str | None = None,
    ) -> None:
        field, base = schema[TOKENS], options.base
        assert isinstance(field, Tensor)
        if isinstance(base, TokensReader):
            eos = base.eos
        self._eos, self._row = eos, field.shape[0]
        if eos is None and self._row is None:
            raise OptionError(
                "say which token ends a document: eos=50256 (--to-option eos=50256), for example", path=path
            )
        self._array = path.lower().endswith(".npy")
        stored = checked_dtype(dtype or field.dtype, DTYPES, path)
        if eos is not None and not np.iinfo(stored).min <= eos <= np.iinfo(stored).max:
            raise OptionError(f"eos is a token, and {eos} is no {stored.name}", path=path)
        super().__init__(path, schema, options, stored)

    @classmethod
    def refuses(cls, field: Field) -> str | None:
        if isinstance(field, Tensor) and (field.dtype not in DTYPES or field.shape == (0,)):
            return "tokens are whole numbers, in rows of at least one"
        return super().refuses(field)

    def kept_schema(self) -> Schema:
        return Schema({TOKENS: Tensor(self._stored.name, (self._row if self._eos is None else None,))})

    def _begin(self, state: dict[str, Any] | None) -> None:
        self._file = self.partial.spool("tokens")
        if self.base is not None:
            self._check_base()
        elif self._array and not self._file.size:
            self._file.write(self._header(0))

    def _check_base(self) -> None:
        assert isinstance(self.base, TokensReader)
        base, width = self.base, self._stored.itemsize
        if base.dtype.name != self._stored.name or base._row != (self._row if self._eos is None else None):
            raise self.cannot_append(f"its tokens are {base.dtype.name}, and other rows")
        if self._eos is not None and base.tokens:
            last = base._source.array(base.dtype, base._source.size - width, 1)[0]
            if last != self._eos:
                raise self.cannot_append(f"its last document does not end with {self._eos}, but with {last}")
        if self._array and len(self._header(0)) != base._start:
            raise self.cannot_append("its header is not what NumPy writes for rows that go on")

    def _header(self, tokens: int) -> bytes:
        return npy.header_bytes(self._stored, (tokens,)) if self._array else b""

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems = super()._unfit(columns)
        if self._eos is not None:
            values, offsets = self._values(columns)
            rows = np.searchsorted(offsets, np.flatnonzero(values == self._eos), side="right") - 1
            for row in np.unique(rows).tolist():
                message = f"it has the token {self._eos} inside, which ends documents (eos)"
                problems.setdefault(row, EncodeError(message, field=TOKENS))
        return problems

    def _write(self, columns: Columns) -> None:
        tokens = columns.ragged(TOKENS)
        values = tokens.data.view(self._stored)
        if self._eos is not None:
            values = np.insert(values, tokens.offsets[1:] // self._stored.itemsize, self._eos)
        self._file.write(as_bytes(values))

    def _finish(self) -> str:
        old, start = (
            (self.base.tokens, 0) if isinstance(self.base, TokensReader) else (0, len(self._header(0)))
        )
        tokens = old + (self._file.size - start) // self._stored.itemsize
        grouping = {"length": self._row} if self._eos is None else {"eos": self._eos}
        message = {"dtype": self._stored.name, **grouping, "tokens": tokens}
        note = self.partial.spool("note")
        note.resize(0)
        note.write(json.dumps(message).encode())
        if self._array:
            header = self.partial.spool("header")
            header.resize(0)
            header.write(self._header(tokens))
            if self.base is None:
                self._file.write_at(header.read_at(header.size, 0), 0)
        return "tokens"

    def _beside(self) -> list[tuple[str, str]]:
        return [("note", NOTE_NAME)]

    def _changes(self, name: str) -> tuple[list[Patch], list[tuple[str, str]]]:
        patches, moves = super()._changes(name)
        return [*patches, *([Patch("header", self.partial.name, 0)] if self._array else [])], moves


def sniff(probe: Probe) -> bool:
    """Nothing in a file tells; what we wrote beside a .bin does."""
    return not probe.folder and probe.path.endswith(".bin") and tree.is_file(beside(probe.path, NOTE_NAME))


FORMAT = Format(
    name="tokens",
    title="Flat tokens (nanoGPT)",
    suffixes=(),
    spec="https://github.com/karpathy/nanoGPT#quick-start",
    reader=TokensReader,
    writer=TokensWriter,
    sniff=sniff,
    kinds=(Tensor,),
    fields={TOKENS: Tensor("uint16", (None,))},
    notes=".bin or .npy of tokens without a header, named by format='tokens'; rows of a length, or documents",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        streaming_write=True,
        ecosystem=("nanoGPT", "NumPy"),
    ),
)
