"""Objects on servers: clients, requests in flight, and caches in memory and on disk.

clients.py makes single requests, fetch.py runs many of them at a time, blocks.py holds bytes in memory,
disk.py caches chunks in a folder, and source.py has the :class:`~batchplant.storage.source.Source` that
formats read from.
"""

from __future__ import annotations

from .blocks import NEVER, Pool, RemoteObject
from .client import Entry, Got, RefusedError
from .clients import client_of, totals
from .fetch import fetcher, trying, waiting_until
from .source import RANGE_GAP, RANGE_MOST, Objects, PooledSource, RemoteSource, fetch_whole, plan_ranges

__all__ = [
    "NEVER",
    "RANGE_GAP",
    "RANGE_MOST",
    "Entry",
    "Got",
    "Objects",
    "Pool",
    "PooledSource",
    "RefusedError",
    "RemoteObject",
    "RemoteSource",
    "client_of",
    "fetch_whole",
    "fetcher",
    "plan_ranges",
    "totals",
    "trying",
    "waiting_until",
]
