"""Objects on servers: who talks to them, how requests are made, and what is kept of them.

clients.py has the one request, fetch.py many of them at a time, blocks.py the bytes in memory, cells.py those
of one object on disk, disk.py the cache there, with room.py and total.py, which keep it within its limit, and
source.py the :class:`~batchplant.storage.source.Source` that formats read from.
"""

from __future__ import annotations

from .blocks import NEVER, Pool, RemoteObject
from .client import Entry, Got, RefusedError
from .clients import client_of, totals
from .fetch import fetcher, trying, waiting_until
from .objects import Objects, fetch_many
from .source import RANGE_GAP, RANGE_MOST, RemoteSource, fetch_whole, opened, plan_ranges

__all__ = [
    "NEVER",
    "RANGE_GAP",
    "RANGE_MOST",
    "Entry",
    "Got",
    "Objects",
    "Pool",
    "RefusedError",
    "RemoteObject",
    "RemoteSource",
    "client_of",
    "fetch_many",
    "fetch_whole",
    "fetcher",
    "opened",
    "plan_ranges",
    "totals",
    "trying",
    "waiting_until",
]
