"""WebDataset: tar archives in which neighbouring members are the fields of one sample.

``sub/07.jpg`` and ``sub/07.cls`` are the fields ``jpg`` and ``cls`` of the sample with the key ``sub/07``.

- The key is the path up to the first dot of its last part, the extension all after it, in small letters.
- Members that follow each other and have one key are a sample. The same extension twice in one is an error.
- Passed over: folders and links, names without an extension, dot files at the top, names like ``__x__``.

Every member is a run of bytes behind a header, so the archive is scanned once, and every sample is found at
once from then on. Numbers are decimal text, arrays are NPY files, images and sound are as they are. A field
that a sample does not have is missing. Names are data: nothing is ever unpacked to a path.
"""

from __future__ import annotations

from ...schema import EVERY_KIND
from ..base.format import Capabilities, Format
from .reader import WebDatasetReader, sniff
from .writer import WebDatasetWriter

FORMAT = Format(
    name="webdataset",
    title="WebDataset (tar)",
    suffixes=(".tar", ".tar.gz", ".tgz"),
    spec="https://github.com/webdataset/webdataset",
    reader=WebDatasetReader,
    writer=WebDatasetWriter,
    sniff=sniff,
    kinds=EVERY_KIND,
    optional=True,
    notes="plain archives are used in place, with random access; .tar.gz too, more slowly",
    can=Capabilities(
        random_access=True,
        memory_map=True,
        compression=("gzip",),
        compressed="file",
        column_pruning=True,
        remote_ranges=True,
        keeps_schema=True,
        streaming_write=True,
        ecosystem=("WebDataset", "tar", "DALI", "Hugging Face"),
    ),
)
