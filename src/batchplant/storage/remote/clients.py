"""Who talks to a server: one client for each bucket or host, made when it is first needed.

Clients belong to a process: obstore's threads do not survive a fork, so a child makes its own.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from ..settings import StorageOptions, settings_for
from ..urls import Place, options_at, place_of
from .client import Client
from .obstores import ObstoreClient
from .others import FsspecClient

OWN = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "http", "https")

# By root, options and, where a URL has a query, all of it.
_CLIENTS: dict[tuple[Any, ...], Client] = {}
_LOCK = threading.Lock()
_PROCESS = os.getpid()
# What belongs to the threads of a parent.
_ORPHANS: list[Any] = []


def client_of(url: str) -> tuple[Client, str]:
    """The client for a URL, and what it calls the object."""
    global _PROCESS, _LOCK
    if os.getpid() != _PROCESS:
        # Another thread may have held the lock when the process was forked. What the parent made is left
        # alone, not even destroyed: its threads are not here.
        _ORPHANS.append(dict(_CLIENTS))
        _LOCK, _PROCESS = threading.Lock(), os.getpid()
        _CLIENTS.clear()
    place = place_of(url)
    options = settings_for(str(url), options_at(url))
    key = (place.root, place.name if place.query else "", place.query, options)
    with _LOCK:
        if key not in _CLIENTS:
            _CLIENTS[key] = _make(str(url), place, options)
        made = _CLIENTS[key]
    return made, "" if place.query else place.name


def _make(url: str, place: Place, options: StorageOptions) -> Client:
    if place.scheme in OWN:
        return ObstoreClient(url, place, options)
    return FsspecClient(url, place, options)


def totals() -> tuple[int, int]:
    """How many requests this process made so far, and how many bytes came."""
    made = list(_CLIENTS.values()) if os.getpid() == _PROCESS else []
    return sum(one.requests for one in made), sum(one.bytes for one in made)
