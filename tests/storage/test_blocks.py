"""Blocks of remote objects in memory: what is let go is gone."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from batchplant.storage.platform import available_memory
from batchplant.storage.remote.blocks import CHUNK_BYTES, Pool, RemoteObject
from batchplant.storage.remote.client import Got
from processes import PATIENCE

SIZE = 4 * CHUNK_BYTES


def test_bytes_go_with_their_block() -> None:
    """Not when Python looks for cycles next: memory would be bounded by that, and not by the pool."""
    client: Any = SimpleNamespace(
        get=lambda name, start, end: Got(np.zeros(end - start, dtype=np.uint8), SIZE, "")
    )
    pool, object = Pool(2 * CHUNK_BYTES), RemoteObject(client, "x", "s3://bucket/x", SIZE, "", None, "")
    gc.disable()
    try:
        for start in range(0, SIZE, CHUNK_BYTES):
            assert len(pool.read(object, start, start + CHUNK_BYTES)) == CHUNK_BYTES
            if start == 0:
                first = weakref.ref(object.blocks[0])
        assert list(object.blocks) == [2 * CHUNK_BYTES, 3 * CHUNK_BYTES]
        end = time.monotonic() + PATIENCE
        # The thread that fetched it may hold it for a moment.
        while first() is not None and time.monotonic() < end:
            time.sleep(0.001)
        assert first() is None
    finally:
        gc.enable()


def test_a_finalizer_waits_for_no_lock() -> None:
    """A reader that is collected by a thread of the fetcher, while another asks the pool for bytes."""
    client: Any = SimpleNamespace(
        get=lambda name, start, end: Got(np.zeros(end - start, dtype=np.uint8), SIZE, "")
    )
    pool = Pool(2 * CHUNK_BYTES)
    collected, asked = (
        RemoteObject(client, name, f"s3://bucket/{name}", SIZE, "", None, "") for name in "xy"
    )
    pool.read(collected, 0, CHUNK_BYTES)
    with pool._lock:
        finalizer = threading.Thread(target=lambda: pool.forget(collected, wait=False))
        finalizer.start()
        finalizer.join(PATIENCE)
        assert not finalizer.is_alive()
    assert pool.bytes == CHUNK_BYTES
    # Its bytes make room for others.
    assert pool.ask(asked, [(0, 2 * CHUNK_BYTES)], 0.0, keep=True) == 2 * CHUNK_BYTES
    assert pool.bytes == 2 * CHUNK_BYTES
    assert collected.blocks == {}
    pool.forget(asked)
    assert pool.bytes == 0


def test_a_pool_grows_to_a_dataset_as_far_as_the_machine_has_memory(monkeypatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    limit = 10 * CHUNK_BYTES
    chosen, alone = Pool(limit), Pool(limit, can_grow=True)
    for pool in (chosen, alone):
        pool.reserve(1)
        assert pool.max_bytes == limit
        pool.reserve(2 * limit)
    assert chosen.max_bytes == limit
    assert 2 * limit < alone.max_bytes < 5 * limit
    # Never more than a share of the memory, which the ranks of a machine divide.
    alone.reserve(1 << 60)
    assert alone.max_bytes <= available_memory() // 4
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1000000")
    shared = Pool(limit, can_grow=True)
    shared.reserve(1 << 60)
    assert shared.max_bytes == limit


def runs(*spans: tuple[int, int]) -> tuple[Any, Any]:
    result = np.array(spans, dtype=np.int64)
    return result[:, 0], result[:, 1] - result[:, 0]


def test_the_blocks_that_runs_lie_in() -> None:
    client: Any = SimpleNamespace(
        get=lambda name, start, end: Got(np.zeros(end - start, dtype=np.uint8), SIZE, "")
    )
    pool, object = Pool(SIZE), RemoteObject(client, "x", "s3://bucket/x", SIZE, "", None, "")
    assert pool.covering(object, *runs((0, 1))) is None
    # A gap before 400 and before 900.
    for start, end in ((100, 200), (200, 300), (400, 500), (500, 600), (600, 700), (900, 1000)):
        pool.read(object, start, end)
    for span, ranges in (
        ((100, 101), [(100, 200)]),
        ((100, 200), [(100, 200)]),
        ((199, 200), [(100, 200)]),
        ((199, 201), [(100, 300)]),
        ((450, 650), [(400, 700)]),
        ((999, 1000), [(900, 1000)]),
    ):
        result = pool.covering(object, *runs(span))
        assert result is not None
        assert (result[0], result[1].tolist()) == (ranges, [0])
    for missing in (
        (99, 101),
        (0, 50),
        (250, 301),
        (300, 301),
        (299, 401),
        (650, 950),
        (1000, 1001),
        (350, 360),
    ):
        assert pool.covering(object, *runs(missing)) is None
        assert pool.covering(object, *runs((100, 101), missing)) is None
    result = pool.covering(
        object, *runs((950, 951), (590, 610), (120, 130), (210, 220), (120, 120 + 1), (410, 420))
    )
    assert result is not None
    assert result[0] == [(100, 200), (200, 300), (400, 500), (500, 700), (900, 1000)]
    assert result[1].tolist() == [4, 3, 0, 1, 0, 2]


@pytest.mark.parametrize("seed", range(20))
def test_covering_agrees_with_looking_at_each(seed: int) -> None:
    rng = np.random.default_rng(seed)
    client: Any = SimpleNamespace(
        get=lambda name, start, end: Got(np.zeros(end - start, dtype=np.uint8), SIZE, "")
    )
    pool, object = Pool(SIZE), RemoteObject(client, "x", "s3://bucket/x", SIZE, "", None, "")
    edges = np.sort(rng.choice(200, 20, replace=False)).tolist()
    for start, end in itertools.pairwise(edges):
        if rng.random() < 0.9:
            pool.read(object, start, end)
    for _ in range(200):
        starts = rng.integers(0, 190, rng.integers(1, 4))
        sizes = rng.integers(1, 10, len(starts))
        result = pool.covering(object, starts, sizes)
        expected = all(
            pool.has(object, a, a + n) for a, n in zip(starts.tolist(), sizes.tolist(), strict=True)
        )
        assert (result is not None) == expected
        if result is not None:
            ranges, where = result
            assert ranges == sorted(ranges)
            for start, size, number in zip(starts.tolist(), sizes.tolist(), where.tolist(), strict=True):
                assert ranges[number][0] <= start < start + size <= ranges[number][1]
