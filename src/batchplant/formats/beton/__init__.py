""".beton, the format of FFCV 1.0 (version 2). Little-endian.

====================  =======================================================================
header, 24 bytes      version u16 = 2, fields u16, page size u32, samples u64, allocations at u64
descriptors           per field 1041 bytes: type u8, name 16 bytes (NUL padded), arguments 1024 bytes
table                 per sample one aligned NumPy struct with a member for each field:
                      Int i8, Float f8, image (mode u1, width u2, height u2, ptr u8),
                      Bytes and JSON (ptr u8, size u8), arrays ptr u8
pages                 from the next multiple of the page size on; all cells of a sample lie in one page
allocations           to the end of the file: (sample u8, ptr u8, size u8), in no order; the only
                      place that knows the size of a JPEG
====================  =======================================================================

What FFCV has no type for (text, missing values, sizes that vary, images that are not RGB) lives in its
Bytes type. Between table and pages, where FFCV never looks, we write our schema, so that kinds, dtypes,
class names and long field names come back: ``bpschema``, u32 length, u32 CRC32C, JSON. A cell of size 0
still takes a byte, since FFCV finds cells by their ptr alone; that byte is 0xFF where the cell is missing.
A uint64 is stored as the int64 of the same bits: FFCV sees those from 2**63 on as negative numbers.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.capabilities import Capabilities
from ..base.format import Format
from .layout import sniff
from .reader import BetonReader
from .writer import BetonWriter

FORMAT = Format(
    name="beton",
    title=".beton (FFCV)",
    suffixes=(".beton",),
    spec="https://github.com/libffcv/ffcv",
    reader=BetonReader,
    writer=BetonWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="all seven field types; JPEG and raw images; pages grow with the data",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        max_size="65,535 pixels a side",
        ecosystem=("FFCV",),
    ),
)
