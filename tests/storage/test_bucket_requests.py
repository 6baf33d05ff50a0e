"""Formats in a bucket: how many requests and bytes opening, single samples and epochs cost."""

from __future__ import annotations

import os
import shutil
import warnings

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
    """Requests and bytes that were answered so far; on a busy machine, a few are made twice."""
    return lambda: np.array([proxy.count(), proxy.bytes_sent])


def stored(folder):
    return sum(
        os.path.getsize(os.path.join(top, name)) for top, _, names in os.walk(folder) for name in names
    )


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


def epochs():
    """Every layout with one order, and every order with one layout; ``make test-all`` tries all."""
    for number, name in enumerate(SHARDS):
        for order in ORDERS:
            some = order == ORDERS[number % 3] or name == "many.mds"
            yield pytest.param(name, order, marks=() if some else pytest.mark.exhaustive)


@pytest.mark.parametrize(("name", "order"), list(epochs()))
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
    assert fetched <= 1.5 * size + files * (64 << 10)


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """32 MB as a tar file, and as shards of MDS and of LitData, each in a folder."""
    folder = tmp_path_factory.mktemp("large")
    rng = np.random.default_rng(5)
    noise = rng.bytes(1 << 20)
    for name in ("train.tar", "train.mds", "train.litdata"):
        (folder / name[6:]).mkdir()
        with bp.create(str(folder / name[6:] / name), {"data": bp.Bytes(), "label": bp.Int()}) as out:
            for number in range(800):
                out.append({"data": noise[number : number + 30_000 + 25 * number], "label": number})
    return folder


@pytest.mark.parametrize(
    "name", ["train.tar", "train.mds", pytest.param("train.litdata", marks=pytest.mark.exhaustive)]
)
@pytest.mark.parametrize(
    ("order", "most"),
    [
        # Many requests take the server more than a minute.
        pytest.param("random", 800, marks=pytest.mark.exhaustive),
        (bp.order.QuasiRandom(window=1), 150),
    ],
    ids=["random", "quasi_random"],
)
def test_an_epoch_that_does_not_fit_in_memory_takes_a_request_for_a_sample_at_most(
    large, bucket, opens, traffic, name, order, most
):
    shutil.copytree(large / name[6:], bucket.root, copy_function=os.link, dirs_exist_ok=True)
    size = stored(large / name[6:])
    with opens(f"{bucket.url}/{name}", fetch_bytes="20MB") as data, warnings.catch_warnings():
        # A random order is not what one would choose here.
        warnings.simplefilter("ignore", UserWarning)
        data[0]
        loader = bp.Loader(data, 32, order=order)
        before = traffic()
        labels = [batch["label"] for batch in loader]
        requests, fetched = traffic() - before
        assert sorted(np.concatenate(labels).tolist()) == list(range(800))
        assert requests <= most
        assert fetched <= 1.05 * size
        loader.close()


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


# -- Parquet -----------------------------------------------------------------------------------------------


def test_opening_a_foreign_parquet_file_reads_the_first_pages_only(place, opens, traffic):
    """What a column of bytes holds is seen in its first rows."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rng = np.random.default_rng(1)
    path, url = place("foreign.parquet")
    cells = [rng.bytes(3_000) for _ in range(1_000)]
    files = [{"bytes": cell, "path": f"{number}.bin"} for number, cell in enumerate(cells)]
    table = pa.table({"number": range(1_000), "plain": cells, "file": files})
    pq.write_table(table, path)
    before = traffic()
    with opens(url) as data, bp.open(path) as local:
        requests, fetched = traffic() - before
        assert data.schema == local.schema
    assert requests <= 14
    assert fetched <= 0.1 * os.path.getsize(path)


def test_a_single_sample_of_parquet_costs_its_pages(place, opens, traffic):
    pytest.importorskip("pyarrow")
    path, url = place("train.parquet")
    write_shards(path, samples=1_000)
    with opens(url) as data, bp.open(path) as local:
        before = traffic()
        for number in range(10, 1_000, 250):
            assert data[number] == local[number]
        fetched = (traffic() - before)[1]
        # All of a row group is read when its samples are wanted one after another.
        before = traffic()
        for number in range(150):
            assert data[number] == local[number]
        requests, followed = traffic() - before
    assert fetched <= 0.35 * os.path.getsize(path)
    assert requests <= 20
    assert followed <= 0.4 * os.path.getsize(path)


# -- Zarr --------------------------------------------------------------------------------------------------


def write_arrays(path, samples=600, **options):
    rng = np.random.default_rng(2)
    noise = rng.integers(0, 4, (64, 64, 3), dtype=np.uint8)
    with bp.create(path, {"value": bp.Tensor("uint8", (64, 64, 3)), "label": bp.Int()}, **options) as out:
        for number in range(samples):
            out.append({"value": np.roll(noise, number) + np.uint8(number % 200), "label": number})


def test_chunks_of_a_shard_are_one_request(place, opens, traffic):
    path, url = place("volume.zarr")
    values = np.random.default_rng(0).integers(0, 2**16, (64, 64, 64), dtype=np.uint16)
    options = {"chunks": (8, 16, 16), "chunks_per_shard": 4}
    with bp.create(path, {"x": bp.Tensor("uint16", (64, 64))}, **options) as out:
        for row in values:
            out.append({"x": row})
    with opens(url, fields=["x"]) as data:
        array = data.array("x")
        array[:1, :1, :1]
        before = traffic()
        assert np.array_equal(array[30:34], values[30:34])
        # Of two shards 16 chunks each: the table and the chunks of each, which are one range.
        assert (traffic() - before)[0] <= 2 * 3


@pytest.mark.parametrize("name", ["plain.zarr", "plain.zarr.zip"])
def test_a_single_row_of_a_large_plain_chunk_costs_little_more_than_itself(name, place, opens, traffic):
    path, url = place(name)
    write_arrays(path, compression="none", chunk_samples=400)
    with opens(url) as data, bp.open(path) as local:
        before = traffic()
        for number in range(10, 600, 100):
            assert np.array_equal(data[number]["value"], local[number]["value"])
        fetched = (traffic() - before)[1]
    assert fetched <= 600_000


@pytest.mark.parametrize("order", ORDERS)
def test_an_epoch_of_zarr_fetches_each_packed_chunk_once_in_little_memory(order, place, opens, traffic):
    path, url = place("train.zarr")
    write_arrays(path, compression="zstd", chunk_samples=20)
    with opens(url, fetch_bytes=MIB) as data, warnings.catch_warnings():
        # That a random order is dear where it does not fit into memory.
        warnings.simplefilter("ignore")
        before = traffic()
        labels = [batch["label"] for batch in bp.Loader(data, 32, order=order)]
        fetched = (traffic() - before)[1]
    assert sorted(np.concatenate(labels).tolist()) == list(range(600))
    assert fetched <= 2 * stored(path)


@pytest.mark.parametrize("order", ORDERS)
def test_padding_behind_the_last_row_of_a_chunk_is_not_fetched(order, place, opens, proxy):
    """A chunk of plain values has its full size, however few rows are left for it."""
    path, url = place("padded.zarr")
    write_arrays(path, compression="none", chunk_samples=500)
    assert stored(path) > 1.6 * 600 * 64 * 64 * 3
    with opens(url) as data:
        assert sum(len(batch["label"]) for batch in bp.Loader(data, 32, order=order)) == 600
    asked = [request.range for request in proxy.requests if "/value/c/1/" in request.path]
    assert asked
    assert all(end <= 100 * 64 * 64 * 3 for _, end in asked)
