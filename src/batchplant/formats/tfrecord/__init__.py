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

import zlib
from typing import Any, ClassVar

import numpy as np

from ... import _native
from ...codecs import example
from ...codecs.example import BYTES, FixedLen, FixedLenSequence, VarLen
from ...codecs.media.image_rules import ImageTarget
from ...data.writer import WriteOptions
from ...errors import BatchplantError, OptionError
from ...schema import EVERY_KIND, Float, Image, Schema, Tensor
from ...schema.columns import Columns, Ragged
from ...storage.compressed import WBITS, kind_of
from ..base.format import Capabilities, Format, Probe
from ..base.records import RAW, SCHEMA_SIDE_CAR, RecordWriter
from .reader import TfRecordReader
from .scan import is_head

__all__ = ["FORMAT", "FixedLen", "FixedLenSequence", "TfRecordReader", "TfRecordWriter", "VarLen"]

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
        if records not in ("example", "raw"):
            raise OptionError(f"records is example or raw, not {records!r}", path=path)
        if compression not in ("auto", "none", *WBITS):
            raise OptionError(f"compression is none, gzip or zlib, not {compression!r}", path=path)
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
