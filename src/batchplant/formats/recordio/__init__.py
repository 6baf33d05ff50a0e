"""RecordIO, the records of MXNet and dmlc-core. Little-endian.

One record after another: u32 magic ``0xced7230a``, u32 ``part << 29 | length``, the data, zeros up to a
multiple of four bytes. A record that has the magic in its data at a multiple of four is split there into
parts (1 first, 2 middle, 3 last; 0 is a whole record), and the magic is left out. There are no checksums.
``NAME.idx`` beside ``NAME.rec`` has a line ``key TAB offset`` for each record.

An image record, as MXNet and DALI read it, begins with a header of 24 bytes: u32 count of labels, float32
label, u64 id, u64 id2. Where the count is not 0, that many float32 labels follow. The rest is the image.

What we write: an image with at most a label, ``id`` and ``id2`` as an image record; a single field ``data``
of bytes as it is; every other sample as a MessagePack map. ``NAME.rec.schema.json`` keeps the schema.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.capabilities import Capabilities
from ..base.format import Format, Probe
from .layout import FRAME, MAGIC
from .reader import RecordIOReader
from .writer import RecordIOWriter


def sniff(probe: Probe) -> bool:
    """The magic, and a part that a file can begin with."""
    head = probe.head[:FRAME]
    return head[:4] == MAGIC.to_bytes(4, "little") and len(head) == FRAME and head[7] >> 5 <= 1


FORMAT = Format(
    name="recordio",
    title="RecordIO (MXNet)",
    suffixes=(".rec",),
    spec="https://mxnet.apache.org/versions/1.9.1/api/faq/recordio.html",
    reader=RecordIOReader,
    writer=RecordIOWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="read in place; image records for MXNet and DALI, other samples as MessagePack; .idx beside",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        max_size="512 MiB in a record",
        ecosystem=("MXNet", "DALI"),
    ),
)
