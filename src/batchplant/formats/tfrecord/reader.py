"""TfRecordReader."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...codecs import example
from ...codecs.example import BYTES, Feature, RecordError
from ...codecs.msgpack import Runs, gathered
from ...data.reader import Reader
from ...errors import DamagedError, OptionError, Problem, SchemaError, located
from ...schema import Json, Schema, Tensor
from ...schema.columns import I64, U8, Columns, Ragged
from ...storage import MappedSource, index, open_source
from ...storage.compressed import open_gzip
from ...storage.spans import Spans
from ..base.records import RAW, GivenSchema, Note, RecordReader, given_schema
from .scan import FAULTS, HEAD, TAIL, Findings, build, build_rest, compression_of, makes_sense

RECORDS = ("auto", "example", "sequence", "raw")
COMPRESSIONS = ("auto", "none", "gzip", "zlib")


class TfRecordReader(RecordReader):
    """Reads TFRecord files.

    ``records``: what they are, "example", "sequence" or "raw" (default: found by looking). ``features``:
    which features to read, and as what: ``{"image": FixedLen(bytes), "ids": VarLen("int64")}``; ``schema``:
    the same as field kinds; a Tensor of a feature of bytes is the numbers that these are, as in memory.
    ``compression``: "none", "gzip" or "zlib" (default: found by looking).
    ``check``: whether reading checks the checksum of each record. ``index``: "auto", "memory" or "rebuild",
    how the side-car index is used.
    """

    def __init__(
        self,
        path: str,
        *,
        records: str = "auto",
        features: Mapping[str, Any] | None = None,
        schema: GivenSchema | str | None = None,
        compression: str = "auto",
        check: bool = True,
        index: str = "auto",
    ) -> None:
        self.path = path
        self._checks = check
        if records not in RECORDS:
            raise OptionError(f"records is one of {', '.join(RECORDS)}, not {records!r}", path=path)
        if compression not in COMPRESSIONS:
            raise OptionError(
                f"compression is one of {', '.join(COMPRESSIONS)}, not {compression!r}", path=path
            )
        self.source = self._packed = open_source(path)
        self.compression = compression_of(self._packed) if compression == "auto" else compression
        with located(path=path):
            self._findings = self._scan(index)
            if self.compression != "none":
                findings = self._findings
                self.source = open_gzip(
                    self._packed, self.compression, size=findings.size, points=findings.points
                )
            self._starts, self._sizes = self._findings.starts, self._findings.sizes
            self.length = len(self._starts)
            self.features: dict[str, Feature] | None = None
            # True if the fields were inferred from the records, not declared.
            self._inferred = False
            self._choose(records, features, schema)

    def _scan(self, mode: str) -> Findings:
        loaded = index.load(
            self._packed,
            "tfrecord",
            lambda source, report: build(source, self.compression, report),
            mode=mode,
            version=2,
            check=functools.partial(makes_sense, compression=self.compression),
            grow=build_rest,
        )
        return Findings(loaded)

    # -- fields ----------------------------------------------------------------------------------------

    def _choose(
        self, records: str, features: Mapping[str, Any] | None, schema: GivenSchema | str | None
    ) -> None:
        """Kind of the records, and the fields that follow from it."""
        seen, noted = self._findings.seen, None
        if features is not None and schema is not None:
            raise OptionError("give features or schema, not both")
        note = Note.beside(self.path)
        self.noted = None if note is None else note.samples
        if features is None and schema is None:
            noted = None if note is None else note.schema
        keys = {seen_feature.key for seen_feature in seen or ()}
        if noted == RAW and not keys <= set(RAW):
            # The bytes are serialized Examples.
            noted = None
        if records == "auto":
            if noted is not None:
                looks = self.length > 0 and seen is not None and keys <= set(noted)
            else:
                looks = bool(seen) or features is not None
            records = "example" if looks else "raw"
        if records == "raw":
            if features is not None:
                raise OptionError("raw records have no features")
            self._set_schema(self.path, given=schema)
            return
        if features is not None:
            self.features = example.parse_features(features)
        elif schema is not None:
            self.features = {
                name: self._adapt(parsed)
                for name, parsed in example.parse_features(given_schema(schema)).items()
            }
        elif noted is not None:
            self.features = example.features_of(noted)
        elif seen:
            self._inferred = True
            self.features = example.infer(seen, self._findings.examples, self._findings.images)
        else:
            raise SchemaError(
                "no features of Examples are found; name them with features={…}, or read records='raw'"
            )
        self.schema = Schema({name: feature.field for name, feature in self.features.items()})
        self.raw = False
        if not self.schema:
            raise SchemaError("there are no features to read")

    def _adapt(self, feature: Feature) -> Feature:
        """A field that the user named, as the file has it: feature list, list of bytes, bytes of numbers."""
        for seen_feature in self._findings.seen or ():
            if seen_feature.key == feature.key:
                if (
                    seen_feature.kind == BYTES
                    and not seen_feature.sequence
                    and isinstance(feature.field, Tensor)
                ):
                    feature = dataclasses.replace(feature, kind=BYTES)
                listed = isinstance(feature.field, Json) and (seen_feature.sequence or seen_feature.most != 1)
                kind = seen_feature.kind if listed else feature.kind
                return Feature(feature.field, feature.key, kind, seen_feature.sequence, listed)
        return feature

    def with_schema(self, schema: Schema) -> Reader | None:
        if not self._inferred or self.features is None:
            return None
        features = self.features
        # copy.copy would open the file again.
        reader = type(self).__new__(type(self))
        reader.__dict__.update(self.__dict__)
        args, options = self._init_args
        reader._init_args = (args, {**options, "schema": schema})
        reader.features = {
            name: dataclasses.replace(features.get(name, example.feature_of(name, field)), field=field)
            for name, field in schema.items()
        }
        reader.schema = schema
        return reader

    # -- reading ---------------------------------------------------------------------------------------

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        starts, sizes = self._starts[indices], self._sizes[indices]
        return self._inside(indices, starts, sizes, FAULTS[3], head=HEAD, tail=TAIL)

    def _found(self, indices: I64, *, check: bool) -> tuple[U8, I64, I64, I64]:
        starts, sizes = self._runs(indices)
        # With the frame, for that is where the checksum is.
        frames = starts - HEAD, sizes + HEAD + TAIL
        if isinstance(self.source, MappedSource):
            data, positions = self.source.placed(*frames)
            if len(indices) > 1 and data is self.source.data:
                self.source.request(*frames)
        else:
            read = self.source.gather(*frames)
            data, positions = read.data, read.starts
        positions = positions + HEAD
        self._raise_fault(*_native.tfrecord_check(data, positions, sizes, check), indices, starts)
        return data, positions, sizes, starts

    def _raise_fault(self, row: int, fault: int, indices: I64, starts: I64) -> None:
        if row >= 0:
            raise DamagedError(FAULTS[fault], path=self.path, sample=indices[row], offset=int(starts[row]))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if self.raw:
            return self._read_raw(indices, fields)
        return super()._read(indices, fields)

    def _unpack(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        if self.features is None:
            return super()._unpack(fields, data, starts, sizes)
        try:
            return example.read({name: self.features[name] for name in fields}, data, starts, sizes)
        except RecordError as error:
            raise DamagedError(str(error), sample=error.row, offset=error.offset) from None

    def _find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        if self.features is None:
            return super()._find(field, data, starts, sizes)
        try:
            return *example.runs(self.features[field], data, starts, sizes), None
        except RecordError as error:
            raise DamagedError(str(error), sample=error.row, offset=error.offset) from None

    def _read_raw(self, indices: I64, fields: Sequence[str]) -> Columns:
        """The records themselves, checked and copied in one pass."""
        if not self._checks:
            cells = self.source.gather(*self._runs(indices))
            return Columns((name, cells) for name in fields)
        if isinstance(self.source, MappedSource):
            starts, sizes = self._runs(indices)
            done = self.source.can_check_residency(starts) and _native.tfrecord_gather(
                self.source.data, starts, sizes, True
            )
            if done:
                self._raise_fault(done[2], done[3], indices, starts)
                return Columns((name, Ragged(done[0], done[1])) for name in fields)
        data, positions, sizes, _ = self._found(indices, check=True)
        return Columns((name, gathered(data, positions, sizes)) for name in fields)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """The frames around the records too."""
        ranges = super()._ranges(fields, indices)
        return ranges and Spans(ranges.sources, ranges.start - HEAD, ranges.size + HEAD + TAIL)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if not isinstance(self.source, MappedSource):
            return None
        if self.features is not None and not example.in_place(self.features[field]):
            return None
        return super()._spans(field, indices)

    # -- checking --------------------------------------------------------------------------------------

    def facts(self) -> dict[str, object]:
        kind = "raw"
        if self.features is not None:
            lists = any(feature.sequence for feature in self._findings.seen or ())
            kind = "SequenceExample" if lists else "Example"
        return {"records": kind, "compression": self.compression}

    def _verify(self) -> Iterator[Problem]:
        """The places of the records, found anew; and the checksums, where reading leaves them alone."""
        yield from super()._verify()
        arrays, _ = build(self._packed, self.compression, lambda done: None)
        findings = self._findings
        yield from self._other_index(arrays, {"starts": findings.starts, "sizes": findings.sizes})
        step = 256
        for first in range(0, 0 if self._checks else len(self), step):
            yield from self._wrong_sums(np.arange(first, min(first + step, len(self))))

    def _stored(self) -> int:
        return len(self._findings.starts)

    def _wrong_sums(self, rows: I64) -> Iterator[Problem]:
        for row in rows:
            try:
                self._found(np.array([row]), check=True)
            except DamagedError as error:
                yield Problem.of(error)

    def own_checks(self) -> tuple[str, ...]:
        return (
            "CRC of every record",
            *([] if self.compression == "none" else [f"checksum of {self.compression}"]),
        )

    def close(self) -> None:
        self._packed.close()
        super().close()
