"""HDF5, datasets in groups in one file.

Datasets of equal first dimension are fields, with samples along that dimension. Groups become dotted names:
``train/image`` is ``train.image``. A member of a compound type is a field of its own. Links that lead out of
the file, virtual datasets and references are never followed. NetCDF 4 (``.nc``) and MATLAB 7.3 (``.mat``) are
HDF5: axes (dimension scales) are fields only where they are as long as the variables.

What we write, all of which h5py reads:

- numbers and tensors of one size as datasets; times as int64,
- bytes, images and tensors of varying size as variable-length ``uint8`` (tensors: of their dtype), text and
  JSON as variable-length strings; with ``layout="packed"`` as ``NAME/data`` and ``NAME/offsets`` instead,
- ``batchplant/valid/NAME`` where cells may be missing, ``batchplant/shape/NAME`` for raw images,
- the attribute ``batchplant`` of the file: the schema as JSON.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.format import Capabilities, Format, Probe
from .reader import Hdf5Reader
from .writer import Hdf5Writer

SIGNATURE = b"\x89HDF\r\n\x1a\n"


def sniff(probe: Probe) -> bool:
    """The signature, at the start or behind a block of the user's: at 512 bytes, 1024, 2048 …"""
    head = probe.head
    offsets = [0, *(512 << step for step in range(6))]
    return any(head[offset : offset + 8] == SIGNATURE for offset in offsets)


FORMAT = Format(
    name="hdf5",
    title="HDF5",
    suffixes=(".h5", ".hdf5", ".he5", ".nc", ".nc4", ".mat"),
    spec="https://support.hdfgroup.org/documentation/hdf5/latest/_f_m_t3.html",
    reader=Hdf5Reader,
    writer=Hdf5Writer,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    extra="hdf5",
    notes="contiguous datasets and variable-length cells are used in place; chunks are unpacked once",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("gzip", "lzf", "zstd", "blosc", "blosc2", "lz4", "bitshuffle"),
        compressed="chunk",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        splittable=True,
        metadata=True,
        ecosystem=("h5py", "PyTables", "MATLAB", "netCDF4", "Julia"),
    ),
)
