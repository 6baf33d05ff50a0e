"""The index of a folder of shards: what it is recognised by, and what it says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from ....errors import BatchplantError, DamagedError, NotFoundError
from ....storage import NOTE_ERRORS, is_remote, join, open_source, parse_object, read_beside
from ....storage.notes import without_gc
from ..format import Probe

INDEX = "index.json"
# So much of it tells what it is of.
HEAD = 64 << 10

T = TypeVar("T")


def index_head(probe: Probe) -> bytes:
    """Return the first bytes of a folder's index; empty if there is none."""
    # Behind a URL, a listing tells what a request would.
    if not probe.folder or (is_remote(probe.path) and INDEX not in probe.names):
        return b""
    try:
        source = open_source(join(probe.path, INDEX))
        return source.view(0, min(source.size, HEAD)).tobytes()
    except BatchplantError:
        return b""


def read_index(folder: str, title: str, parse: Callable[[dict[str, Any]], T]) -> T:
    """Parse the index of a folder; ``title``: name of the format in messages."""
    path = join(folder, INDEX)
    data = read_beside(path)
    if data is None:
        raise NotFoundError(f"no such file; a folder of {title} has one", path=path)
    try:
        with without_gc():
            return parse(parse_object(data))
    except BatchplantError as error:
        raise error.at(path=path) from None
    except NOTE_ERRORS as error:
        raise DamagedError(f"not an index of {title}: {error}", path=path) from None
