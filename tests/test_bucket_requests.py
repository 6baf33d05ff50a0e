"""Formats in a bucket: how many requests and bytes opening, single samples and epochs cost."""

from __future__ import annotations

import os

import numpy as np
import pytest

pytest.importorskip("obstore")

import batchplant as bp

ORDERS = ("sequential", "quasi_random", "random")
MIB = 1 << 20


@pytest.fixture
def place(bucket):
    """Gives a path in the bucket and the URL that it has there."""
    return lambda name: (os.path.join(bucket.root, name), f"{bucket.url}/{name}")


@pytest.fixture
def opens(proxy):
    """Opens a URL through a proxy that counts."""
    return lambda url, **options: bp.open(url, endpoint=proxy.endpoint, **options)


@pytest.fixture
def traffic(proxy):
    """Requests and bytes that were answered so far."""
    return lambda: np.array([proxy.count(), proxy.bytes_sent])


def stored(folder):
    return sum(os.path.getsize(os.path.join(top, one)) for top, _, names in os.walk(folder) for one in names)


# -- MDS and LitData ---------------------------------------------------------------------------------------


def write_shards(path, samples=300, size=20_000, **options):
    rng = np.random.default_rng(5)
    with bp.create(path, {"data": bp.Bytes(), "label": bp.Int()}, **options) as out:
        for number in range(samples):
            out.append({"data": rng.bytes(size), "label": number})


SHARDS = {
    "one.mds": {},
    "many.mds": {"size_limit": MIB},
    "zstd.mds": {"size_limit": MIB, "compression": "zstd"},
    "one.litdata": {},
    "many.litdata": {"chunk_bytes": MIB},
    "zstd.litdata": {"chunk_bytes": MIB, "compression": "zstd"},
    "samples.litdata": {"chunk_bytes": MIB, "compression": "zstd", "compression_level": "sample"},
}


@pytest.mark.parametrize("name", SHARDS)
@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_of_shards_takes_a_request_for_each_cell_and_shard(name, order, place, opens, traffic):
    path, url = place(name)
    write_shards(path, **SHARDS[name])
    files, size = len(os.listdir(path)) - 1, stored(path)
    with opens(url) as data:
        before = traffic()
        labels = [batch["label"] for batch in bp.Loader(data, 32, order=order)]
        requests, fetched = traffic() - before
    assert sorted(np.concatenate(labels).tolist()) == list(range(300))
    # For each shard one that opens it, and one for each 8 MiB of it; some may be fetched in two.
    assert requests <= 3 * files + size / (8 * MIB) + 4
    assert fetched <= 1.2 * size + files * (64 << 10)


@pytest.mark.parametrize("suffix", ["mds", "litdata"])
def test_a_single_sample_of_a_shard_costs_little_more_than_itself(suffix, place, opens, traffic):
    path, url = place(f"train.{suffix}")
    write_shards(path)
    with opens(url) as data, bp.open(path) as local:
        data[0]
        before = traffic()
        for number in range(7, 300, 30):
            assert data[number] == local[number]
        requests, fetched = traffic() - before
    assert requests <= 12
    assert fetched <= 10 * (64 << 10) + 2 * (64 << 10)
