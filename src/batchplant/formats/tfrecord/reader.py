"""TfRecordReader."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ... import _native
from ...codecs import example, sample
from ...codecs.example import BYTES, Feature, RecordError
from ...codecs.msgpack import gathered
from ...data.reader import Reader
from ...errors import BatchplantError, DamagedError, OptionError, Problem, SchemaError
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
    how the side-car index is used. ``dali_index``: a file with DALI's index, which says where the records
    are.
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
        dali_index: str | os.PathLike[str] | None = None,
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
        try:
            self._found_out = self._scan(index)
            if self.compression != "none":
                found = self._found_out
                self.source = open_gzip(self._packed, self.compression, size=found.size, points=found.points)
            self._starts, self._sizes = self._found_out.starts, self._found_out.sizes
            if dali_index is not None:
                self._starts, self._sizes = read_dali_index(os.fspath(dali_index), self.source.size)
            self.length = len(self._starts)
            self.features: dict[str, Feature] | None = None
            # Whether the fields were found by looking at the records, and nobody said what they are.
            self._inferred = False
            self._choose(records, features, schema)
        except BatchplantError as error:
            raise error.at(path=path) from None

    def _scan(self, mode: str) -> Findings:
        found = index.load(
            self._packed,
            "tfrecord",
            lambda source, report: build(source, self.compression, report),
            mode=mode,
            version=2,
            check=functools.partial(makes_sense, compression=self.compression),
            grow=build_rest,
        )
        return Findings(found)

    # -- fields ----------------------------------------------------------------------------------------

    def _choose(
        self, records: str, features: Mapping[str, Any] | None, schema: GivenSchema | str | None
    ) -> None:
        """Kind of the records, and the fields that follow from it."""
        seen, noted = self._found_out.seen, None
        if features is not None and schema is not None:
            raise OptionError("give features or schema, not both")
        note = Note.beside(self.path)
        self.noted = None if note is None else note.samples
        if features is None and schema is None:
            noted = None if note is None else note.schema
        keys = {one.key for one in seen or ()}
        if noted == RAW and not keys <= set(RAW):
            # Somebody wrote finished Examples as bytes.
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
                name: self._adapt(one) for name, one in example.parse_features(given_schema(schema)).items()
            }
        elif noted is not None:
            self.features = example.features_of(noted)
        elif seen:
            self._inferred = True
            self.features = example.infer(seen, self._found_out.examples, self._found_out.images)
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
        for one in self._found_out.seen or ():
            if one.key == feature.key:
                if one.kind == BYTES and not one.sequence and isinstance(feature.field, Tensor):
                    feature = dataclasses.replace(feature, kind=BYTES)
                listed = isinstance(feature.field, Json) and (one.sequence or one.most != 1)
                kind = one.kind if listed else feature.kind
                return Feature(feature.field, feature.key, kind, one.sequence, listed)
        return feature

    def with_schema(self, schema: Schema) -> Reader | None:
        if not self._inferred or self.features is None:
            return None
        known = self.features
        # copy.copy would open the file again.
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        args, options = self._init_args
        made._init_args = (args, {**options, "schema": schema})
        made.features = {
            name: dataclasses.replace(known.get(name, example.feature_of(name, field)), field=field)
            for name, field in schema.items()
        }
        made.schema = schema
        return made

    # -- reading ---------------------------------------------------------------------------------------

    def _runs(self, indices: I64) -> tuple[I64, I64]:
        starts, sizes = self._starts[indices], self._sizes[indices]
        row = self.source.outside(starts, sizes, head=HEAD, tail=TAIL)
        if row is not None:
            raise DamagedError(FAULTS[3], path=self.path, sample=indices[row], offset=int(starts[row]))
        return starts, sizes

    def _found(self, indices: I64, *, check: bool) -> tuple[U8, I64, I64, I64]:
        starts, sizes = self._runs(indices)
        # With the frame, for that is where the checksum is.
        frames = starts - HEAD, sizes + HEAD + TAIL
        if isinstance(self.source, MappedSource):
            data, at = self.source.placed(*frames)
            if len(indices) > 1 and data is self.source.data:
                self.source.request(*frames)
        else:
            read = self.source.gather(*frames)
            data, at = read.data, read.starts
        at = at + HEAD
        self._raise_fault(*_native.tfrecord_check(data, at, sizes, check), indices, starts)
        return data, at, sizes, starts

    def _raise_fault(self, row: int, fault: int, indices: I64, starts: I64) -> None:
        if row >= 0:
            raise DamagedError(FAULTS[fault], path=self.path, sample=indices[row], offset=int(starts[row]))

    def _read(self, indices: I64, fields: Sequence[str]) -> Columns:
        if self.raw:
            return self._read_raw(indices, fields)
        data, at, sizes, starts = self._found(indices, check=self._checks)
        try:
            if self.features is not None:
                return example.read({name: self.features[name] for name in fields}, data, at, sizes)
            return sample.unpack(self.schema, fields, data, at, sizes)
        except RecordError as error:
            raise self._no_example(error, indices, at, starts) from None
        except BatchplantError as error:
            raise self._placed(error, indices, at, starts) from None

    def _read_raw(self, indices: I64, fields: Sequence[str]) -> Columns:
        """The records themselves, checked and copied in one pass."""
        if not self._checks:
            cells = self.source.gather(*self._runs(indices))
            return Columns((name, cells) for name in fields)
        if isinstance(self.source, MappedSource):
            starts, sizes = self._runs(indices)
            found = self.source.can_check_residency(starts) and _native.tfrecord_gather(
                self.source.data, starts, sizes, True
            )
            if found:
                self._raise_fault(found[2], found[3], indices, starts)
                return Columns((name, Ragged(found[0], found[1])) for name in fields)
        data, at, sizes, _ = self._found(indices, check=True)
        return Columns((name, gathered(data, at, sizes)) for name in fields)

    def _no_example(self, error: RecordError, indices: I64, at: I64, starts: I64) -> DamagedError:
        row = error.row
        place = int(error.offset - at[row] + starts[row])
        return DamagedError(str(error), path=self.path, sample=indices[row], offset=place)

    def _ranges(self, fields: Sequence[str], indices: I64) -> Spans | None:
        """The frames around the records too."""
        ranges = super()._ranges(fields, indices)
        return ranges and Spans(ranges.sources, ranges.start - HEAD, ranges.size + HEAD + TAIL)

    def _spans(self, field: str, indices: I64) -> Spans | None:
        if not isinstance(self.source, MappedSource):
            return None
        if self.features is None:
            return super()._spans(field, indices)
        feature = self.features[field]
        if not example.in_place(feature):
            return None
        data, at, sizes, starts = self._found(indices, check=False)
        try:
            return self._as_spans((*example.runs(feature, data, at, sizes), None), at, starts)
        except RecordError as error:
            raise self._no_example(error, indices, at, starts) from None
        except BatchplantError as error:
            raise self._placed(error, indices, at, starts) from None

    # -- checking --------------------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        kind = "raw"
        if self.features is not None:
            lists = any(one.sequence for one in self._found_out.seen or ())
            kind = "SequenceExample" if lists else "Example"
        return {"records": kind, "compression": self.compression}

    def _verify(self) -> Iterator[Problem]:
        """The places of the records, found anew; and the checksums, where reading leaves them alone."""
        yield from super()._verify()
        arrays, _ = build(self._packed, self.compression, lambda done: None)
        found = self._found_out
        same = np.array_equal(arrays["starts"], found.starts) and np.array_equal(arrays["sizes"], found.sizes)
        if not same:
            yield Problem("the index is not that of this file", self.path)
        step = 256
        for first in range(0, 0 if self._checks else len(self), step):
            yield from self._wrong_sums(np.arange(first, min(first + step, len(self))))

    def _stored(self) -> int:
        return len(self._found_out.starts)

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


def read_dali_index(path: str, size: int) -> tuple[I64, I64]:
    """Starts and sizes of the data of records, from DALI's index of a file of this size."""
    source = open_source(path)
    try:
        numbers = np.array(source.view(0, source.size).tobytes().split(), dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError) as error:
        raise DamagedError(f"not DALI's index: {error}", path=path) from None
    finally:
        source.close()
    starts, sizes = numbers[:, 0] + HEAD, numbers[:, 1] - HEAD - TAIL
    bad = (numbers[:, 0] < 0) | (numbers[:, 0] > size) | (sizes < 0) | (numbers[:, 1] > size - numbers[:, 0])
    if bad.any():
        row = int(np.argmax(bad))
        raise DamagedError("the index lists a record that is not in the file", path=path, sample=row)
    return np.ascontiguousarray(starts), np.ascontiguousarray(sizes)
