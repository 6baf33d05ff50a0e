"""Formats that keep one run of bytes, a record, for each sample: what all of them share.

A record is either the cell of a single field, or a whole sample packed as a MessagePack map
(codecs/msgpack.py). Which of the two, and which fields there are, the schema says. It stands inside of the
file where the format has a place for it, else in the side-car ``NAME.schema.json``::

    {"batchplant": 1, "schema": [{"name": "image", "kind": "image"}, …], "samples": 1000}

Without either, the dataset has one field, ``data``, which holds the bytes of the records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ...codecs import msgpack
from ...codecs.media.image_rules import ANY_ENCODED, ImageTarget
from ...codecs.msgpack import Runs
from ...data.layout import Layout
from ...data.reader import Reader
from ...data.writer import Writer
from ...errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, exceptions_as, located
from ...schema import Audio, Bytes, Field, Image, Json, Schema, Text, Video, as_field, field_from_json
from ...schema.columns import I64, U8, AnyArray, Columns, Ragged
from ...storage import NOTE_ERRORS, MappedSource, RemoteSource, Source, parse_object, read_beside
from ...storage import beside as place_beside
from ...storage.spans import Spans

__all__ = [
    "RAW",
    "GivenSchema",
    "Note",
    "RecordReader",
    "RecordWriter",
    "given_schema",
    "note_of",
    "schema_of",
]

SCHEMA_SIDE_CAR = "{name}.schema.json"
RAW = Schema({"data": Bytes()})
# A single field of one of these kinds, called "data", can be the record itself.
WHOLE = (Bytes, Text, Json, Image, Audio, Video)
BLOCK_BYTES = 8 << 20

GivenSchema = Schema | Mapping[str, Field | str | dict[str, Any]]


class Note(NamedTuple):
    """Metadata that we write beside or inside a file: the schema and, if known, the number of samples."""

    schema: Schema
    samples: int | None = None

    def to_bytes(self) -> bytes:
        document = {"batchplant": 1, "schema": self.schema.to_json()}
        if self.samples is not None:
            document["samples"] = self.samples
        return json.dumps(document, ensure_ascii=False).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Note:
        with exceptions_as(DamagedError, "the schema is damaged", *NOTE_ERRORS, SchemaError):
            document = parse_object(data)
            samples = document.get("samples")
            return cls(Schema.from_json(document["schema"]), None if samples is None else int(samples))

    @classmethod
    def beside(cls, path: str) -> Note | None:
        """That in the side-car of a file, where there is one."""
        name = place_beside(path, SCHEMA_SIDE_CAR)
        data = read_beside(name)
        with located(path=name):
            return None if data is None else cls.from_bytes(data)


def note_of(schema: Schema, samples: int | None = None) -> bytes:
    """The schema as it is written beside or inside a file."""
    return Note(schema, samples).to_bytes()


def schema_of(note: bytes) -> Schema:
    """The schema that such a note holds."""
    return Note.from_bytes(note).schema


def given_schema(parsed_schema: GivenSchema | str) -> Schema:
    """A schema as users give it: fields or the names of kinds, the JSON of a schema, or name=kind,…"""
    if isinstance(parsed_schema, str):
        parsed_schema = _parsed_schema(parsed_schema)
    if isinstance(parsed_schema, list):
        return Schema.from_json(parsed_schema)
    if not isinstance(parsed_schema, Mapping):
        raise OptionError(f"a schema maps names to fields; this is {parsed_schema!r}")
    return Schema(
        (name, field_from_json(field) if isinstance(field, dict) else as_field(field))
        for name, field in parsed_schema.items()
    )


def _parsed_schema(text: str) -> Any:
    if text.lstrip()[:1] not in ("{", "[", '"') and "=" in text:
        pairs = [part.rpartition("=") for part in text.split(",")]
        return {name.strip(): kind.strip() for name, _, kind in pairs}
    with exceptions_as(OptionError, "the schema is no JSON, and not name=kind", ValueError, RecursionError):
        return json.loads(text)


class RecordReader(Reader):
    """One record for each sample in one file.

    A subclass opens ``source``, sets ``length``, calls :meth:`_set_schema` and implements :meth:`_runs`.
    """

    source: Source
    # Whether a record is the cell of the only field, and not a packed sample.
    raw: bool
    # See codecs.msgpack.unpack.
    bare: bool = False
    foreign: bool = False
    # How many samples there should be, where the side-car says so.
    noted: int | None = None
    # Whether reading checks the records.
    _checks: bool = True

    # -- what a format implements ----------------------------------------------------------------------

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        """Starts and sizes of these records in ``source``, bounds checked."""
        raise NotImplementedError

    def _check_records(self, indices: I64, data: U8, starts: I64, sizes: I64) -> None:
        """Raise DamagedError for a record that fails its checksum; they lie at ``starts`` of ``data``."""

    def _unpack(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        """The fields of the records at ``starts`` of ``data``. Errors have the row as ``sample``."""
        return msgpack.unpack(self.schema, fields, data, starts, sizes, bare=self.bare, foreign=self.foreign)

    def _find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        """Locate the cells of a field in ``data``; None if they do not lie there as they are."""
        return msgpack.find(self.schema, field, data, starts, sizes, bare=self.bare, foreign=self.foreign)

    # -- what it gets ----------------------------------------------------------------------------------

    def _set_schema(
        self, path: str, *, given: GivenSchema | str | None = None, stored: Schema | None = None
    ) -> None:
        """The schema: given by the user, or stored in the file, or beside it, or just the bytes."""
        note = Note(stored) if stored is not None else Note.beside(path)
        noted, self.noted = (None, None) if note is None else note
        self.schema = given_schema(given) if given is not None else RAW if noted is None else noted
        self.raw = self.schema == RAW or (
            noted in (None, RAW) and list(self.schema) == ["data"] and isinstance(self.schema["data"], WHOLE)
        )
        if not self.schema:
            raise SchemaError("the schema has no field", path=path)

    def _inside(
        self,
        indices: I64,
        starts: I64,
        sizes: I64,
        message: str = "the record lies outside of the file",
        *,
        head: int = 0,
        tail: int = 0,
    ) -> tuple[I64, I64]:
        """Return these runs of ``source``; DamagedError where one, with head and tail, leaves it."""
        bad = self.source.outside(starts, sizes, head=head, tail=tail)
        if bad is not None:
            raise DamagedError(message, path=self.path, sample=int(indices[bad]), offset=int(starts[bad]))
        return starts, sizes

    def _probed_rows(self, count: int) -> I64:
        """``count`` of the records, from begin to end, to tell by them what all are."""
        return np.arange(0, self.length, max(1, self.length // count))[:count]

    def _other_index(self, scanned: Mapping[str, AnyArray], loaded: Mapping[str, AnyArray]) -> list[Problem]:
        """A problem where a new scan gives other arrays than the index has."""
        if all(np.array_equal(scanned[name], array) for name, array in loaded.items()):
            return []
        return [Problem("the index is not that of this file; open it with index=rebuild", self.path)]

    def _found(self, indices: I64, *, check: bool) -> tuple[U8, I64, I64, I64]:
        """The records: data, starts and sizes inside it, and starts in the file."""
        starts, sizes = self._runs(indices)
        numbers = starts
        if isinstance(self.source, MappedSource):
            data, numbers = self.source.placed(starts, sizes)
            if data is self.source.data:
                self.source.request(starts, sizes)
        else:
            records = self.source.gather(starts, sizes)
            data, numbers = records.data, records.starts
        if check:
            self._check_records(indices, data, numbers, sizes)
        return data, numbers, sizes, starts

    def _placed(self, error: BatchplantError, indices: I64, numbers: I64, starts: I64) -> BatchplantError:
        """An error in a row of ``data`` as one in a sample of the file."""
        row, error.sample = error.sample, None
        if row is not None and 0 <= row < len(indices):
            error.sample = int(indices[row])
            error.offset = int(
                starts[row] if error.offset is None else error.offset - numbers[row] + starts[row]
            )
        return error.at(path=self.path)

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if self.raw:
            records = self._gather(indices)
            return Columns(data=records) if fields else Columns()
        data, numbers, sizes, starts = self._found(indices, check=self._checks)
        try:
            return self._unpack(fields, data, numbers, sizes)
        except BatchplantError as error:
            raise self._placed(error, indices, numbers, starts) from None

    def _gather(self, indices: I64) -> Ragged:
        """A checked copy of the records; those that are not in memory are read together."""
        starts, sizes = self._runs(indices)
        records = self.source.gather(starts, sizes)
        self._check_records(indices, records.data, records.starts, sizes)
        return records

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if self.raw and isinstance(self.source, MappedSource | RemoteSource):
            starts, sizes = self._runs(indices)
            return Spans([self.source], starts, sizes)
        # Of a file that is not mapped, the records would have to be fetched to be looked into.
        if not isinstance(self.source, MappedSource):
            return None
        data, numbers, sizes, starts = self._found(indices, check=False)
        try:
            runs = self._find(field, data, numbers, sizes)
        except BatchplantError as error:
            raise self._placed(error, indices, numbers, starts) from None
        return (
            None if runs is None else Spans([self.source], runs[0] - numbers + starts, runs[1], shape=runs[2])
        )

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        if not isinstance(self.source, MappedSource | RemoteSource):
            return None
        starts, sizes = self._runs(indices)
        return Spans([self.source], starts, sizes)

    def _layout(self) -> Layout:
        return Layout(blocks=lambda: self._runs(np.arange(len(self)))[0] // BLOCK_BYTES)

    def _verify(self) -> Iterator[Problem]:
        """A cut between two records leaves a sound file; only the side-car knows."""
        if self.noted not in (None, self._stored()):
            yield Problem(f"there are {self._stored()} samples, and {self.noted} were written", self.path)

    def _stored(self) -> int:
        """Number of records the file has; a reader may show others."""
        return len(self)

    def close(self) -> None:
        self.source.close()


class RecordWriter(Writer):
    """Packs samples into records. A subclass implements ``_begin``, ``_write_records`` and ``_finish``."""

    side_cars: ClassVar[tuple[str, ...]] = (SCHEMA_SIDE_CAR,)
    # Whether the subclass keeps the schema in the file itself, and none is needed beside it.
    schema_inside: ClassVar[bool] = False
    # Whether the file itself tells how many samples there should be; else the note beside it does.
    count_inside: ClassVar[bool] = False

    def _write_records(self, records: Ragged) -> None:
        """Take finished records, in order."""
        raise NotImplementedError

    @property
    def raw(self) -> bool:
        """True if a record is the cell of the only field, and not a packed sample."""
        return self.schema == RAW

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return {} if self.raw else msgpack.unfit(columns)

    def _write(self, columns: Columns) -> None:
        self._write_records(self._pack(columns))

    def _pack(self, columns: Columns) -> Ragged:
        cells = columns["data"] if self.raw else msgpack.pack(self.schema, columns)
        assert isinstance(cells, Ragged)
        return cells

    def _beside(self) -> list[tuple[str, str]]:
        if self.schema_inside or (self.raw and self.count_inside):
            return []
        (self.partial.folder / "schema.json").write_bytes(note_of(self.schema, self.before + self.written))
        return [("schema.json", SCHEMA_SIDE_CAR)]

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        return ImageTarget(ANY_ENCODED | {"raw"})
