"""Datasets of several files, about which something is remembered as about one: :class:`Whole`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..remote import Entry
from ..source import Source
from .container import Facts


class Whole(Source):
    """A dataset of several files; nobody reads its bytes here.

    ``state`` tells whether it is still the same: a version of a table, what a listing said about its files.
    ``options``: what the reader was asked for. ``fresh`` gives a reader that has read nothing yet, where one
    may hold cells of before the listing.
    """

    def __init__(
        self,
        path: str,
        files: Iterable[Entry],
        *,
        state: Mapping[str, Any],
        options: Mapping[str, Any],
        fresh: Callable[[], Any] | None = None,
    ) -> None:
        found = sorted(files)
        super().__init__(path, sum(one.size for one in found))
        hashed = hashlib.blake2b(digest_size=16)
        for one in found:
            hashed.update(f"{one.name}\0{one.size}\0{one.tag}\0".encode(errors="surrogateescape"))
        self.state: Facts = {**state, "files": len(found), "size": self.size, "hash": hashed.hexdigest()}
        self.options, self.fresh = options, fresh
