"""Reading environments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...codecs.msgpack import Runs
from ...data.keys import FormatKeys, same_cells
from ...errors import BatchplantError, BusyError, Problem
from ...schema import Bytes, Schema, Text
from ...schema.columns import I64, U8, Columns, Ragged
from ...storage import Entry, MappedSource
from ...storage.index import FileGroup
from ...storage.spans import Spans
from ..base.records import GivenSchema, Note, RecordReader, given_schema
from . import pages
from .values import PROBED_SAMPLES, Codec, codec_of

KEY = "key"
# So many transactions leave the pages alone that were in use before them.
INTACT = 2


class LmdbReader(RecordReader):
    """Reads LMDB environments. ``codec``: what values are: ``bytes``, ``image``, ``json``, ``text``,
    ``msgpack``, ``datum`` (Caffe), ``pickle`` (only with ``allow_pickle``, for it can run code), or ``auto``:
    our own samples, images or bytes; ``db``: a named database; ``schema``: the fields of msgpack values;
    ``bgr``: whether raw pixels of a Datum have blue first, as Caffe's tools write them; ``index``: auto,
    memory, write or rebuild."""

    def __init__(
        self,
        path: str,
        *,
        codec: str = "auto",
        db: str | None = None,
        schema: GivenSchema | str | None = None,
        allow_pickle: bool = False,
        bgr: bool = True,
        index: str = "auto",
    ) -> None:
        self.path = path
        self.source, loaded = pages.open_environment(path, db, index)
        self._facts = loaded.facts
        self._db = db
        self._starts, self._sizes = loaded.arrays["starts"], loaded.arrays["sizes"]
        self._key_starts, self._key_sizes = loaded.arrays["key_starts"], loaded.arrays["key_sizes"]
        self.length = len(self._starts)
        self._codec: Codec | None = None
        try:
            note = self._note() if codec == "auto" else None
            if note is not None:
                self.length -= 1
                self._set_schema(path, given=schema, stored=note.schema)
                self.noted = note.samples
                return
            data, positions, sizes, _ = self._found(self._probed_rows(PROBED_SAMPLES), check=False)
            declared = None if schema is None else given_schema(schema)
            self._codec = codec_of(
                codec, data, positions, sizes, declared, allow_pickle=allow_pickle, bgr=bgr
            )
        except BatchplantError as error:
            # A row of those that were looked at is no sample's number.
            error.sample = None
            raise error.at(path=path) from None
        self.raw = False
        # A field of that name in the values themselves wins.
        self.schema = Schema({KEY: self._keys().kind, **self._codec.fields})

    def _fingerprint_source(self, fields: Sequence[str]) -> FileGroup | None:
        """The transaction: the cells of one stay what they are."""
        if not self.source.tag:
            return None
        file = Entry(self.source.path, self.source.size, self.source.tag)
        state = {"transaction": self._facts["transaction"]}
        return FileGroup(self.path, [file], state=state, options=self._init_args[1])

    def _note(self) -> Note | None:
        if not self.length:
            return None
        last = self._key_cells(np.array([self.length - 1]))[0]
        if last is None or last.tobytes() != pages.NOTE:
            return None
        starts, sizes = self._runs(np.array([self.length - 1]))
        return Note.from_bytes(self.source.view(int(starts[0]), int(sizes[0])).tobytes())

    @property
    def is_ours(self) -> bool:
        """True if our writer made it: keys are the numbers of the samples."""
        return self._codec is None and self._db is None

    def _checked(self, indices: I64, starts: I64, sizes: I64) -> tuple[I64, I64]:
        if isinstance(self.source, MappedSource):
            now = pages.read_meta(self.source.view(0, self.source.size), self.path).transaction
            if now > self._facts["transaction"] + INTACT:
                message = "it has been written to several times since it was opened; use refresh()"
                raise BusyError(message, path=self.path)
        return self._inside(indices, starts, sizes, "the entry lies outside of the file")

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        return self._checked(indices, self._starts[indices], self._sizes[indices])

    def _key_runs(self, indices: I64) -> tuple[I64, I64]:
        return self._checked(indices, self._key_starts[indices], self._key_sizes[indices].astype(np.int64))

    def _key_cells(self, indices: I64) -> Ragged:
        return self.source.gather(*self._key_runs(indices))

    def _keys(self) -> FormatKeys:
        kind = Text() if self._facts.get("printable") else Bytes()
        # An index of earlier does not say whether they are ordered.
        return FormatKeys(kind, self._key_cells, find=self._find_keys if self._facts.get("ordered") else None)

    def _find_keys(self, keys: Ragged) -> I64:
        """Search as LMDB itself does: the entries stand in the order of their keys."""
        low, high = np.zeros(len(keys), dtype=np.int64), np.full(len(keys), self.length, dtype=np.int64)
        while len(open_rows := np.flatnonzero(low < high)):
            middle = (low[open_rows] + high[open_rows]) // 2
            before = pages.before(self._key_cells(middle), keys.take(open_rows))
            low[open_rows[before]], high[open_rows[~before]] = middle[before] + 1, middle[~before]
        matches = np.flatnonzero(low < self.length)
        matches = matches[same_cells(self._key_cells(low[matches]), keys.take(matches))]
        result = np.full(len(keys), -1, dtype=np.int64)
        result[matches] = low[matches]
        return result

    def _is_key(self, field: str) -> bool:
        return self._codec is not None and field == KEY and KEY not in self._codec.fields

    def _unpack(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        if self._codec is None:
            return super()._unpack(fields, data, starts, sizes)
        return self._codec.read(fields, data, starts, sizes)

    def _find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        if self._codec is None:
            return super()._find(field, data, starts, sizes)
        return self._codec.find(field, data, starts, sizes)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        values = [name for name in fields if not self._is_key(name)]
        columns = super()._read(indices, values) if values else Columns()
        return Columns(
            (name, self._key_cells(indices) if self._is_key(name) else columns[name]) for name in fields
        )

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if self._is_key(field):
            return Spans([self.source], *self._key_runs(indices))
        return super()._spans(field, indices)

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        meta = pages.read_meta(self.source.view(0, self.source.size), self.path)
        if meta.transaction != self._facts["transaction"]:
            yield Problem("it has been written to since it was opened; open it again", self.path)
            return
        arrays, _ = pages.scan(self.source, lambda done: None, db=self._db)
        stored = {"starts": self._starts, "sizes": self._sizes, "key_starts": self._key_starts}
        if problems := self._other_index(arrays, stored):
            yield from problems
        elif self._codec is None:
            yield from self._check_numbers()

    def _check_numbers(self) -> Iterator[Problem]:
        """Our own keys count the samples."""
        step = 1 << 16
        for first in range(0, self.length, step):
            numbers = np.arange(first, min(first + step, self.length))
            keys = self._key_cells(numbers)
            for number, key in zip(numbers.tolist(), keys, strict=True):
                assert key is not None
                if key.tobytes() != b"%010d" % number:
                    yield Problem(f"its key is {key.tobytes()!r}", self.path, sample=number)
                    return

    def facts(self) -> dict[str, object]:
        kind = "samples" if self._codec is None else self._codec.name
        facts = {"values": kind, "page size": self._facts.get("page_size"), "db": self._db}
        return {name: value for name, value in facts.items() if value is not None}
