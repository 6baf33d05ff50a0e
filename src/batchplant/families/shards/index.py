"""The index of a folder of shards: what it is recognised by."""

from __future__ import annotations

from ...errors import BatchplantError
from ...format import Probe
from ...storage import is_remote, join, open_source

INDEX = "index.json"
# So much of it tells what it is of.
HEAD = 64 << 10


def index_head(probe: Probe) -> bytes:
    """How the index of a folder begins; nothing where there is none."""
    # Behind a URL, a listing tells what a request would.
    if not probe.folder or (is_remote(probe.path) and INDEX not in probe.names):
        return b""
    try:
        source = open_source(join(probe.path, INDEX))
        return source.view(0, min(source.size, HEAD)).tobytes()
    except BatchplantError:
        return b""
