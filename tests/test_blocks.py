"""Blocks of remote objects in memory: what is let go is gone."""

from __future__ import annotations

import gc
import time
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np

from batchplant.storage.remote.blocks import Pool, RemoteObject
from batchplant.storage.remote.cells import PART
from batchplant.storage.remote.client import Got
from processes import PATIENCE

SIZE = 4 * PART


def test_bytes_go_with_their_block() -> None:
    """Not when Python looks for cycles next: memory would be bounded by that, and not by the pool."""
    client: Any = SimpleNamespace(
        get=lambda name, start, end: Got(np.zeros(end - start, dtype=np.uint8), SIZE, "")
    )
    pool, object = Pool(2 * PART), RemoteObject(client, "x", "s3://bucket/x", SIZE, "", None, "")
    gc.disable()
    try:
        for start in range(0, SIZE, PART):
            assert len(pool.read(object, start, start + PART)) == PART
            if start == 0:
                first = weakref.ref(object.blocks[0])
        assert list(object.blocks) == [2 * PART, 3 * PART]
        end = time.monotonic() + PATIENCE
        # The thread that fetched it may hold it for a moment.
        while first() is not None and time.monotonic() < end:
            time.sleep(0.001)
        assert first() is None
    finally:
        gc.enable()
