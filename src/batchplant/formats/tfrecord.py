"""TFRecord, TensorFlow's records. Little-endian.

Every record is u64 length, u32 masked CRC-32C of those 8 bytes, the data, u32 masked CRC-32C of the data;
masked is ((crc >> 15) | (crc << 17)) + 0xa282ead8. The file as a whole may be packed with GZIP or ZLIB.
A record is

- an Example or SequenceExample, protobuf messages with named features: lists of bytes, floats or int64s.
  Each feature is a field; codecs/example.py has the table. What we write is an Example, with the schema
  beside it in ``NAME.schema.json``; without that the fields are found by looking.
- any other bytes. With the side-car a packed sample (codecs/msgpack.py), without it one field, ``data``.

The file is scanned once for the places of the records and the kinds of all features, and the findings are
kept in the side-car index.
"""

from __future__ import annotations

import dataclasses
import functools
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from .. import _native
from ..codecs import example
from ..codecs.example import (
    BYTES,
    Feature,
    FeatureStatistics,
    FixedLen,
    FixedLenSequence,
    RecordError,
    VarLen,
)
from ..codecs.media.image_rules import ImageTarget
from ..codecs.msgpack import Runs, gathered
from ..data.reader import Reader
from ..data.writer import WriteOptions
from ..errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError, check_choice, located
from ..schema import EVERY_KIND, Field, Float, Image, Json, Schema, Tensor, field_from_json
from ..schema.columns import I64, U8, Columns, Ragged
from ..storage import RANGE_MOST, MappedSource, Source, index, limits, open_source
from ..storage.compressed import WBITS, GzipSource, inflate, kind_of, open_gzip
from ..storage.index import Index
from ..storage.index.progress import Report
from ..storage.spans import Spans
from .base.format import Capabilities, Format, Probe
from .base.records import RAW, SCHEMA_SIDE_CAR, GivenSchema, Note, RecordReader, RecordWriter, given_schema

__all__ = ["FORMAT", "FixedLen", "FixedLenSequence", "TfRecordReader", "TfRecordWriter", "VarLen"]

# -- scan ---------------------------------------------------------------------------------------------
# One pass over a TFRecord file: where the records are, and which features they have.

HEAD, TAIL = 12, 4
FAULTS = {
    1: "the file ends inside of a record's length",
    2: "the checksum of a record's length is wrong",
    3: "the file ends inside of a record",
    4: "the checksum of the record is wrong",
    5: "here is no record of this length",
}
SHORT = (1, 3)
CHUNK = 32 << 20
# A record larger than this in a packed file is not looked into, for all of it would have to be kept.
MAX_RECORD_BYTES = 64 << 20
# How many records are looked at to find out which features are images.
PROBED_RECORDS = 64


def is_head(head: bytes) -> bool:
    """True if these bytes begin with a length and its checksum."""
    if len(head) < HEAD:
        return False
    crc = _native.crc32c(head[:8])
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    return masked == int.from_bytes(head[8:HEAD], "little")


def compression_of(source: Source) -> str:
    """Return the compression of a file: gzip, zlib, or none."""
    head = source.view(0, min(HEAD, source.size)).tobytes()
    if is_head(head):
        return "none"
    # A file that was cut to almost nothing is still what its name says.
    return kind_of(head) or ("gzip" if source.path.lower().endswith(".gz") else "none")


class Scan:
    """Statistics of the records so far."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.starts: list[I64] = []
        self.sizes: list[I64] = []
        self.count = 0
        self.survey: _native.ExampleSurvey | None = _native.ExampleSurvey()
        self.images: dict[str, Image] | None = None
        self.passed = 0

    def add(self, data: U8, starts: I64, sizes: I64, base: int = 0) -> None:
        """Take in records in ``data``, which lies at ``base`` of the file."""
        if not len(starts):
            return
        self.starts.append(starts + base)
        self.sizes.append(sizes)
        self.count += len(starts)
        self._survey_examples(data, starts, sizes)

    def _survey_examples(self, data: U8, starts: I64, sizes: I64) -> None:
        done = 0
        while self.survey is not None and done < len(starts):
            bad = self.survey.add(data, starts[done:], sizes[done:])
            if bad < 0:
                break
            if _is_whole(data, starts, sizes, done + bad):
                # It is whole, and no Example: they are records of another kind.
                self.survey = None
            else:
                self.pass_over()
            done += bad + 1
        seen = None if self.survey is None else example.statistics_of(self.survey)
        if seen is None:
            self.survey = None
        elif self.images is None:
            complete = [
                row for row in range(min(PROBED_RECORDS, len(starts))) if _is_whole(data, starts, sizes, row)
            ]
            try:
                self.images = example.images(seen, data, starts[complete], sizes[complete])
            except RecordError:
                self.images = {}

    def pass_over(self) -> None:
        """Count a record that cannot be looked into."""
        self.passed += 1
        if self.survey is not None:
            self.survey.skip()

    def fail(self, fault: int, offset: int) -> DamagedError:
        return DamagedError(FAULTS[fault], path=self.path, sample=self.count, offset=offset)

    def result(self) -> tuple[dict[str, Any], dict[str, Any]]:
        none = np.empty(0, dtype=np.int64)
        seen = None if self.survey is None else example.statistics_of(self.survey)
        facts = {
            "features": None if seen is None else [dataclasses.astuple(feature) for feature in seen],
            "images": {name: image.to_json() for name, image in (self.images or {}).items()},
            "examples": self.count - self.passed,
        }
        return {
            "starts": np.concatenate([none, *self.starts]),
            "sizes": np.concatenate([none, *self.sizes]),
        }, facts


def _is_whole(data: U8, starts: I64, sizes: I64, row: int) -> bool:
    return _native.tfrecord_check(data, starts[row : row + 1], sizes[row : row + 1])[0] < 0


def build(source: Source, compression: str, report: Report) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and facts of the index; ``points`` and ``size`` where the file is packed with GZIP."""
    scan = Scan(source.path)
    if compression != "none":
        size = scan_stream(scan, inflate(source, compression, report), source.size)
    elif isinstance(source, MappedSource):
        size = scan_mapped(scan, source.view(0, source.size), report)
    else:
        size = scan_stream(scan, _ranges(source, report))
    arrays, facts = scan.result()
    if compression == "gzip":
        arrays["points"] = GzipSource(source, size).points()
    return arrays, {**facts, "compression": compression, "size": size}


def build_rest(
    source: Source, report: Report, index: Index, offset: int
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The same for a file that goes on at ``at``."""
    before = Findings(index)
    if before.compression != "none" or not isinstance(source, MappedSource):
        return build(source, compression_of(source), report)
    scan = Scan(source.path)
    scan.count = len(before.starts)
    size = scan_mapped(scan, source.view(0, source.size), report, offset)
    arrays, facts = scan.result()
    after = [_seen(*feature) for feature in facts["features"]] if facts["features"] is not None else None
    if before.seen is not None and after is not None and _differ(before.seen, after):
        return build(source, "none", report)
    merged = None if before.seen is None or after is None else joined(before.seen, after)
    images = {name: image.to_json() for name, image in before.images.items()}
    return {name: np.concatenate([index.arrays[name], array]) for name, array in arrays.items()}, {
        "features": None if merged is None else [dataclasses.astuple(feature) for feature in merged],
        "images": images if len(before.starts) else facts["images"],
        "examples": before.examples + facts["examples"] - len(before.starts),
        "compression": "none",
        "size": size,
    }


def joined(before: list[FeatureStatistics], after: list[FeatureStatistics]) -> list[FeatureStatistics]:
    """Merge the statistics of features in the first record with those of the others."""
    by_key = {(feature.key, feature.sequence): feature for feature in before}
    for feature in after:
        old = by_key.get((feature.key, feature.sequence))
        steps = [version for version in (old, feature) if version is not None and version.step_fewest >= 0]
        by_key[feature.key, feature.sequence] = feature if old is None else dataclasses.replace(
            old, present=old.present + feature.present, fewest=min(old.fewest, feature.fewest),
            most=max(old.most, feature.most),
            step_fewest=min((version.step_fewest for version in steps), default=-1),
            step_most=max(old.step_most, feature.step_most),
        )  # fmt: skip
    return list(by_key.values())


def _differ(before: list[FeatureStatistics], after: list[FeatureStatistics]) -> bool:
    """True if a feature has values of several kinds, or is a list in some records only: a rare thing."""
    kinds = {feature.key: (feature.kinds, feature.sequence) for feature in before}
    changed = any(
        kinds.get(feature.key, (feature.kinds, feature.sequence)) != (feature.kinds, feature.sequence)
        for feature in after
    )
    return changed or any(feature.kinds & (feature.kinds - 1) for feature in (*before, *after))


def scan_mapped(scan: Scan, data: U8, report: Report, offset: int = 0) -> int:
    while offset < len(data):
        starts, sizes, offset, fault = _native.tfrecord_scan(data, offset, offset + CHUNK)
        scan.add(data, starts, sizes)
        if fault:
            raise scan.fail(fault, offset)
        report(offset)
    return offset


def scan_stream(scan: Scan, pieces: Iterable[U8], stored: int | None = None) -> int:
    """The same for a file that comes in pieces, unpacked from ``stored`` bytes; its size."""
    pending = np.empty(0, dtype=np.uint8)
    base = fault = skip = large = 0
    for piece in pieces:
        if skip:
            passed = min(skip, len(piece))
            skip, base, piece = skip - passed, base + passed, piece[passed:]
        data = np.concatenate([pending, piece]) if len(pending) else piece
        starts, sizes, done, fault = _native.tfrecord_scan(data, 0, len(data))
        scan.add(data, starts, sizes, base)
        if stored is not None:
            limits.check_rows(2 * scan.count, stored)
        base, pending = base + done, data[done:]
        if fault and fault not in SHORT:
            raise scan.fail(fault, base)
        length = int.from_bytes(pending[:8].tobytes(), "little") if fault == 3 else 0
        if length > MAX_RECORD_BYTES:
            skip = length + HEAD + TAIL - len(pending)
            # A length near 2**64 would be no number of the index.
            if length >= 2**62:
                raise scan.fail(3, base)
            large = base
            scan.starts.append(np.array([base + HEAD]))
            scan.sizes.append(np.array([length]))
            scan.count += 1
            scan.pass_over()
            base, pending = base + len(pending), pending[:0]
    if skip:
        scan.count -= 1
        raise scan.fail(3, large)
    if len(pending):
        raise scan.fail(fault, base)
    return base


def _ranges(source: Source, report: Report) -> Iterator[U8]:
    for offset in range(0, source.size, RANGE_MOST):
        yield source.view(offset, min(RANGE_MOST, source.size - offset))
        report(offset)


class Findings:
    """Parse and check an index: a side-car is no more trustworthy than any file."""

    def __init__(self, index: Index) -> None:
        arrays, facts = index.arrays, index.facts
        self.starts, self.sizes = arrays["starts"], arrays["sizes"]
        self.points = arrays.get("points")
        self.compression, self.size = str(facts["compression"]), index.size
        self.examples = int(facts["examples"])
        features = facts["features"]
        self.seen = None if features is None else [_seen(*feature) for feature in features]
        self.images: dict[str, Image] = {}
        for name, feature in facts["images"].items():
            field: Field = field_from_json(feature)
            if isinstance(field, Image):
                self.images[str(name)] = field
        good = self.starts.dtype == self.sizes.dtype == np.int64 and self.starts.shape == self.sizes.shape
        if not good or self.starts.ndim != 1:
            raise ValueError("the arrays do not fit together")


def _seen(key: str, sequence: bool, *numbers: int) -> FeatureStatistics:
    return FeatureStatistics(str(key), bool(sequence), *(int(number) for number in numbers))


def makes_sense(index: Index, compression: str) -> bool:
    try:
        return Findings(index).compression == compression
    # Anything may stand in a file.
    except Exception:
        return False


# -- reader -------------------------------------------------------------------------------------------

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
        check_choice("records", records, RECORDS, path=path)
        check_choice("compression", compression, COMPRESSIONS, path=path)
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

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if not self.raw:
            return super()._read(indices, fields)
        # The records themselves, checked and copied in one pass.
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
        for row in range(0 if self._checks else len(self)):
            try:
                self._found(np.array([row]), check=True)
            except DamagedError as error:
                yield Problem.of(error)

    def _stored(self) -> int:
        return len(self._findings.starts)

    def own_checks(self) -> tuple[str, ...]:
        return (
            "CRC of every record",
            *([] if self.compression == "none" else [f"checksum of {self.compression}"]),
        )

    def close(self) -> None:
        self._packed.close()
        super().close()


# -- writer -------------------------------------------------------------------------------------------

# Of NVIDIA DALI, beside files that it reads: it is of no use once they are written anew.
DALI_INDEX = "{name}.idx"
PACKED_BYTES = 4 << 20


class TfRecordWriter(RecordWriter):
    """Writes TFRecord files.

    ``records``: "example", or "raw": the bytes of the only field ``data``, or else packed samples.
    ``compression``: "none", "gzip" or "zlib" (default: gzip where the name ends with .gz).
    """

    side_cars: ClassVar[tuple[str, ...]] = (SCHEMA_SIDE_CAR, DALI_INDEX)
    appends: ClassVar[bool] = True

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        records: str = "example",
        compression: str = "auto",
    ) -> None:
        check_choice("records", records, ("example", "raw"), path=path)
        check_choice("compression", compression, COMPRESSIONS, path=path)
        packed = "gzip" if str(path).lower().endswith(".gz") else "none"
        self._compression = packed if compression == "auto" else compression
        self._examples = records == "example"
        self._features = example.features_of(schema)
        super().__init__(path, schema, options)

    @property
    def raw(self) -> bool:
        return not self._examples and self.schema == RAW

    @classmethod
    def image_target(cls, field: Image) -> ImageTarget:
        # No other reader would know raw pixels in an Example.
        return ImageTarget()

    def remarks(self) -> list[str]:
        if not self._examples:
            return []
        names = [
            name
            for name, feature in self._features.items()
            if isinstance(feature.field, Float | Tensor) and feature.kind == BYTES
        ]
        message = (
            "TFRecord has no type for these values, so they are stored as their bytes (tf.io.decode_raw)"
        )
        return [f"{', '.join(names)}: {message}"] if names else []

    def _begin(self, state: dict[str, Any] | None) -> None:
        if self.base is not None:
            assert isinstance(self.base, TfRecordReader)
            self._check_base(self.base)
        self._file = self.partial.spool("records")

    def _check_base(self, base: TfRecordReader) -> None:
        """The file says how its records are written."""
        if base.compression == "zlib":
            raise self.cannot_append("it is packed with zlib, which ends once; gzip can go on")
        self._compression = base.compression
        if base.features is not None:
            self._features = base.features
        self._examples = base.features is not None

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        return {} if self._examples else super()._unfit(columns)

    def _write(self, columns: Columns) -> None:
        if not self._examples:
            super()._write(columns)
            return
        self._write_records(example.write(self._features, columns))

    def _write_records(self, records: Ragged) -> None:
        starts = np.ascontiguousarray(records.starts)
        self._file.write(_native.tfrecord_frame(records.data, starts, records.sizes))

    def _finish(self) -> str:
        if self._compression == "none":
            return "records"
        # Packed at the end, and not as it comes, so that a resumed writer need not pick up inside of it.
        pack = zlib.compressobj(6, zlib.DEFLATED, WBITS[self._compression])
        with open(self.partial.folder / "packed", "wb") as out:
            for offset in range(0, self._file.size, PACKED_BYTES):
                out.write(pack.compress(self._file.read_at(PACKED_BYTES, offset)))
            out.write(pack.flush())
        return "packed"


def sniff(probe: Probe) -> bool:
    """The checksum of the first length is right, maybe behind a little unpacking."""
    head = probe.head
    if is_head(head):
        return int.from_bytes(head[:8], "little") <= probe.size - 16
    kind = kind_of(head)
    if kind is None:
        return False
    try:
        return is_head(zlib.decompressobj(WBITS[kind]).decompress(head, 12))
    except zlib.error:
        return False


FORMAT = Format(
    name="tfrecord",
    title="TFRecord",
    suffixes=(".tfrecord", ".tfrecords", ".tfrec", ".tfrecord.gz", ".tfrecords.gz", ".tfrec.gz"),
    spec="https://www.tensorflow.org/tutorials/load_data/tfrecord",
    reader=TfRecordReader,
    writer=TfRecordWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="Examples without TensorFlow; plain, GZIP or ZLIB; checksums are checked",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        checksums="record",
        compression=("gzip", "zlib"),
        compressed="file",
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        ecosystem=("TensorFlow", "DALI", "Spark"),
    ),
)
