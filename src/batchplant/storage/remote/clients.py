"""The clients of this process: one for each bucket or host, created when it is first needed.

A child process creates its own: obstore's threads do not survive a fork.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from ...errors import AccessError
from ..settings import StorageOptions, settings_for
from ..urls import Place, options_at, place_of
from .client import Client
from .fsspec_client import FsspecClient
from .obstore_client import ObstoreClient

OBSTORE_SCHEMES = ("s3", "s3a", "gs", "gcs", "az", "azure", "abfs", "abfss", "adl", "http", "https")

# By root, options and, if a URL has a query, its name and query.
_CLIENTS: dict[tuple[Any, ...], Client] = {}
_LOCK = threading.Lock()
# Clients of a parent process, which are not even destroyed: their threads do not exist here.
_ORPHANS: list[Any] = []


def _after_fork() -> None:
    """Forget the clients of the parent, one of whose threads may have held the lock."""
    global _LOCK
    _LOCK = threading.Lock()
    if _CLIENTS:
        _ORPHANS.append(dict(_CLIENTS))
        _CLIENTS.clear()


os.register_at_fork(after_in_child=_after_fork)


def client_of(url: str) -> tuple[Client, str]:
    """Return the client for a URL, and the client's name of the object."""
    place = place_of(url)
    options = settings_for(str(url), options_at(url))
    if place.scheme == "hf":
        endpoint = options.endpoint or os.environ.get("HF_ENDPOINT")
        options = StorageOptions(endpoint=endpoint).over(options)
    key = (place.root, place.name if place.query else "", place.query, options)
    with _LOCK:
        if key not in _CLIENTS:
            _CLIENTS[key] = _create(str(url), place, options)
        client = _CLIENTS[key]
    return client, "" if place.query else place.name


def _create(url: str, place: Place, options: StorageOptions) -> Client:
    if place.scheme in OBSTORE_SCHEMES:
        return ObstoreClient(url, place, options)
    if place.scheme == "hf":
        # It needs http.client, which most programs do not.
        from .hub_client import HubClient

        return HubClient(url, place, options)
    if place.scheme == "batchplant":
        raise AccessError("servers have no files, but samples", path=url)
    return FsspecClient(url, place, options)


def totals() -> tuple[int, int]:
    """Return the number of requests this process has made, and of bytes received."""
    with _LOCK:
        clients = list(_CLIENTS.values())
    return sum(client.requests for client in clients), sum(client.bytes for client in clients)
