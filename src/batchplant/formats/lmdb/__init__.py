"""LMDB, a memory-mapped tree of keys and values: a folder with data.mdb, or that file alone.

Reading goes without liblmdb, which trusts the pages that it maps: our own walker checks every number, finds
once where each value lies, and from then on values are used in the mapping. What a value is, ``codec`` says:
bytes, images, JSON, text, MessagePack, Caffe's Datum, pickles. The key is the field ``key``.

What we write: the samples in order under the keys ``0000000000``, ``0000000001``, …, each as a MessagePack
map (a single field ``data`` of bytes as it is), and the schema as JSON under the key ``__batchplant__``,
which is the last. Writing needs the package lmdb.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.format import Capabilities, Format, Probe
from .pages import DATA, is_meta
from .reader import LmdbReader
from .writer import LmdbWriter


def sniff(probe: Probe) -> bool:
    """A folder with data.mdb, or a file that begins with a meta page."""
    return DATA in probe.names if probe.folder else is_meta(probe.head)


FORMAT = Format(
    name="lmdb",
    title="LMDB",
    suffixes=(".lmdb", ".mdb"),
    spec="http://www.lmdb.tech/doc/",
    reader=LmdbReader,
    writer=LmdbWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    folder=None,
    extra="lmdb",
    notes="read in place and without the library, which only writing needs; pickles only with allow_pickle",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("lmdb", "Caffe"),
    ),
)
