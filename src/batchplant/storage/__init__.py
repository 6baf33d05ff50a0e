"""Bytes of files, local or remote: read by range, and written so that nothing is ever half there.

Here live the sources (mapped files, URLs, members of ZIP files, compressed files), the staging directory and
the commit of a target, the side-cars (checksums, ``index/``) and the cache of decoded blocks. Formats, their
base classes and the loader call it. It knows bytes and names; it knows no schema and no format.
"""

from __future__ import annotations

from . import tree
from .commit import Patch, put_file, recover, sync
from .files import check_regular, files_below, is_below, is_plain, open_local, open_regular, tag_of
from .local import MappedSource, PathSource, PathSources
from .notes import NOTE_ERRORS, parse, parse_object
from .opening import handing, noting, open_source, read_beside, read_text, read_whole
from .partial import Partial, Spool, side_car, write_errors
from .remote import RANGE_GAP, RANGE_MOST, Entry, Objects, RemoteSource, fetch_whole, plan_ranges
from .settings import StorageOptions, split_options
from .source import Source
from .urls import Url, absolute, beside, is_remote, join, like, parent, reached
from .work import partial_folder

__all__ = [
    "NOTE_ERRORS",
    "RANGE_GAP",
    "RANGE_MOST",
    "Entry",
    "MappedSource",
    "Objects",
    "Partial",
    "Patch",
    "PathSource",
    "PathSources",
    "RemoteSource",
    "Source",
    "Spool",
    "StorageOptions",
    "Url",
    "absolute",
    "beside",
    "check_regular",
    "fetch_whole",
    "files_below",
    "handing",
    "is_below",
    "is_plain",
    "is_remote",
    "join",
    "like",
    "noting",
    "open_local",
    "open_regular",
    "open_source",
    "parent",
    "parse",
    "parse_object",
    "partial_folder",
    "plan_ranges",
    "put_file",
    "reached",
    "read_beside",
    "read_text",
    "read_whole",
    "recover",
    "side_car",
    "split_options",
    "sync",
    "tag_of",
    "tree",
    "write_errors",
]
