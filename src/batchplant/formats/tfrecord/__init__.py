"""TFRecord, TensorFlow's records. Little-endian.

Every record is u64 length, u32 masked CRC-32C of those 8 bytes, the data, u32 masked CRC-32C of the data;
masked is ((crc >> 15) | (crc << 17)) + 0xa282ead8. The file as a whole may be packed with GZIP or ZLIB.
A record is

- an Example or SequenceExample, protobuf messages with named features: lists of bytes, floats or int64s.
  Each feature is a field; codecs/example.py has the table. What we write is an Example, with the schema
  beside it in ``NAME.schema.json``; without that the fields are found by looking.
- any other bytes. With the side-car a packed sample (codecs/sample.py), without it one field, ``data``.

The file is scanned once for the places of the records and the kinds of all features, and the findings are
kept in the side-car index.
"""

from __future__ import annotations

import zlib

from ...codecs.example import FixedLen, FixedLenSequence, VarLen
from ...schema import EVERY_KIND
from ...storage.compressed import WBITS, kind_of
from ..base.capabilities import Capabilities
from ..base.format import Format, Probe
from .reader import TfRecordReader
from .scan import is_head
from .writer import TfRecordWriter

__all__ = ["FORMAT", "FixedLen", "FixedLenSequence", "TfRecordReader", "TfRecordWriter", "VarLen"]


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
