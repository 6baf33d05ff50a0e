"""Bytes of files, local or remote: read by range, and written so that nothing is ever half there."""

from __future__ import annotations

from .partial import Partial, Spool, partial_folder, side_car, sync
from .source import (
    RANGE_GAP,
    RANGE_MOST,
    MappedSource,
    RemoteSource,
    Source,
    is_remote,
    mapped,
    open_source,
    plan_ranges,
)

__all__ = [
    "RANGE_GAP",
    "RANGE_MOST",
    "MappedSource",
    "Partial",
    "RemoteSource",
    "Source",
    "Spool",
    "is_remote",
    "mapped",
    "open_source",
    "partial_folder",
    "plan_ranges",
    "side_car",
    "sync",
]
