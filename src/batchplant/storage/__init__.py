"""Bytes of files, local or remote: read by range, and written so that nothing is ever half there.

Here live the sources (mapped files, URLs, members of ZIP files, compressed files), the hidden folder and the
commit of a target, the side-cars (checksums, ``index/``) and the cache of decoded blocks. Formats, families
and the loader call it. It knows bytes and names; it knows no schema and no format.
"""

from __future__ import annotations

from .commit import put_file, recover, sync
from .files import check_regular, is_below, is_plain, is_remote, open_local, open_regular
from .notes import NOTE_ERRORS, parse, parse_object
from .opening import open_source, read_beside, read_whole
from .partial import Partial, Spool, partial_folder, side_car
from .remote import RANGE_GAP, RANGE_MOST, RemoteSource, asking, file_system, plan_ranges
from .source import MappedSource, Source, mapped

__all__ = [
    "NOTE_ERRORS",
    "RANGE_GAP",
    "RANGE_MOST",
    "MappedSource",
    "Partial",
    "RemoteSource",
    "Source",
    "Spool",
    "asking",
    "check_regular",
    "file_system",
    "is_below",
    "is_plain",
    "is_remote",
    "mapped",
    "open_local",
    "open_regular",
    "open_source",
    "parse",
    "parse_object",
    "partial_folder",
    "plan_ranges",
    "put_file",
    "read_beside",
    "read_whole",
    "recover",
    "side_car",
    "sync",
]
