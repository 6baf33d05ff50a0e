"""Small chunks of remote objects, so that small datasets have many."""

from __future__ import annotations

import sys

import pytest

from batchplant.storage.remote.blocks import CHUNK_BYTES


def shrink_chunks(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Set the size of chunks in every module that imported it."""
    for name, module in list(sys.modules.items()):
        if name.startswith("batchplant.") and getattr(module, "CHUNK_BYTES", None) == CHUNK_BYTES:
            monkeypatch.setattr(module, "CHUNK_BYTES", size)
