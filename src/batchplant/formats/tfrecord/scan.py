"""One pass over a TFRecord file: where the records are, and which features they have."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ... import _native
from ...codecs import example
from ...codecs.example import FeatureStatistics, RecordError
from ...errors import DamagedError
from ...schema import Field, Image, field_from_json
from ...schema.columns import I64, U8
from ...storage import RANGE_MOST, MappedSource, Source, limits
from ...storage.compressed import GzipSource, inflate, kind_of
from ...storage.index import Index
from ...storage.index.progress import Report

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

    def add_large(self, start: int, size: int) -> None:
        self.starts.append(np.array([start], dtype=np.int64))
        self.sizes.append(np.array([size], dtype=np.int64))
        self.count += 1
        self.pass_over()

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
            scan.add_large(base + HEAD, length)
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
