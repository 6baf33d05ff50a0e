"""Loading from a server: exact batches, few requests, bounded memory, nothing fetched twice without need."""

from __future__ import annotations

import os
import pickle
import re
import shutil
import threading
import time
import warnings

import numpy as np
import pytest

pytest.importorskip("obstore")

import batchplant as bp
from batchplant.cli import main
from batchplant.formats.base import records
from batchplant.loading import images
from batchplant.loading.prefetch.remote import RemotePrefetcher
from chunks import shrink_chunks
from processes import PATIENCE
from proxy import answers, reset, truncated

SAMPLES, BATCH = 2000, 64
# Smaller than in earnest, so that a small file has many.
CELL = 1 << 20
# What two windows of one block take.
ROOM = 3 * CELL
QUASI_RANDOM = bp.order.QuasiRandom(window=1)
ORDERS = ["sequential", "shards", QUASI_RANDOM, bp.order.Windowed(window=300)]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A file of some 5 MB, five blocks, which needs no scan."""
    path = tmp_path_factory.mktemp("data") / "train.ffr"
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, 60_000, dtype=np.uint8).tobytes()
    with bp.create(path, {"label": bp.Int(), "data": bp.Bytes()}) as out:
        for number, size in enumerate(rng.integers(100, 5_000, SAMPLES).tolist()):
            out.append({"label": number, "data": noise[number : number + size]})
    return str(path)


def place(bucket, made):
    for name in (made, f"{made}.schema.json"):
        os.link(name, os.path.join(bucket.root, os.path.basename(name)))


@pytest.fixture
def at(bucket, made, monkeypatch):
    """Opens the file in the bucket, with options."""
    place(bucket, made)
    monkeypatch.setattr(records, "BLOCK_BYTES", CELL)
    shrink_chunks(monkeypatch, CELL)

    def opens(endpoint=bucket.endpoint, **options):
        return bp.open(f"{bucket.url}/train.ffr", endpoint=endpoint, **options)

    return opens


def same(one, other):
    assert one.keys() == other.keys()
    assert np.array_equal(one["label"], other["label"])
    assert all(bytes(a) == bytes(b) for a, b in zip(one["data"], other["data"], strict=True))


def fetched(loader, size, epochs=1):
    """How many times its bytes a file was fetched for an epoch."""
    before = loader.stats()["bytes fetched"]
    labels = [np.concatenate([batch["label"] for batch in loader]) for _ in range(epochs)]
    for label in labels:
        assert sorted(label.tolist()) == list(range(SAMPLES))
    return (loader.stats()["bytes fetched"] - before) / size


@pytest.mark.parametrize("order", ORDERS)
def test_batches_are_those_of_the_file_and_bytes_come_once(at, made, order):
    options = {"order": order, "seed": 5}
    with at(fetch_bytes=ROOM) as remote, bp.open(made) as local:
        ours, theirs = bp.Loader(remote, BATCH, **options), bp.Loader(local, BATCH, **options)
        before = ours.stats()
        for our, other in zip(ours, theirs, strict=True):
            same(our, other)
        stats = ours.stats()
        size = os.path.getsize(made)
        assert (stats["bytes fetched"] - before["bytes fetched"]) / size <= 1.05
        # Of 8 MiB each, and a little for samples that lie across two blocks.
        assert stats["requests"] - before["requests"] <= 4 * size / CELL
        ours.close()
        theirs.close()


def test_what_fits_into_memory_is_fetched_once_whatever_the_order(at, made):
    with at() as remote:
        loader = bp.Loader(remote, BATCH, order="random")
        size = os.path.getsize(made)
        assert fetched(loader, size) == pytest.approx(1, abs=0.01)
        assert fetched(loader, size, epochs=2) == 0
        loader.close()


def test_memory_is_bounded(at):
    with at(fetch_bytes=ROOM) as remote:
        loader = bp.Loader(remote, BATCH, order=QUASI_RANDOM)
        pool = remote.ranges(None, [0]).sources[0].blocks[0]
        for _ in range(2):
            for batch in loader:
                most = max(len(cell) for cell in batch["data"]) * BATCH
        # And what the batches take that are being read.
        assert pool.peak <= ROOM + 4 * most
        loader.close()


@pytest.mark.parametrize("order", ["random", "quasi_random", "sequential"])
def test_a_second_epoch_from_a_cache_makes_no_request(at, made, tmp_path, order):
    where = {"cache": str(tmp_path / "cache"), "cache_bytes": "10MB", "fetch_bytes": ROOM}
    size = os.path.getsize(made)
    with at(**where) as remote:
        loader = bp.Loader(remote, BATCH, order=order)
        assert fetched(loader, size) <= 1.1
        before = loader.stats()["requests"]
        assert fetched(loader, size) == 0
        assert loader.stats()["requests"] == before
        loader.close()
    # Nor does another loader, of another order.
    with at(**where) as remote:
        loader = bp.Loader(remote, BATCH, order="random", seed=1)
        assert fetched(loader, size) == 0
        loader.close()


@pytest.mark.parametrize("order", ["quasi_random", "sequential"])
def test_a_batch_waits_for_room_that_blocks_give_on_their_way_to_disk(at, made, tmp_path, monkeypatch, order):
    advance = RemotePrefetcher.advance

    def advance_late(self):
        result = advance(self)
        until = time.monotonic() + PATIENCE
        while self.is_blocked and source.has_prefetches_in_flight() and time.monotonic() < until:
            time.sleep(0.001)
        return result

    monkeypatch.setattr(RemotePrefetcher, "advance", advance_late)
    with at(cache=str(tmp_path / "cache"), cache_bytes="10MB", fetch_bytes=ROOM) as remote:
        source = remote.ranges(None, [0]).sources[0]
        loader = bp.Loader(remote, BATCH, order=order)
        assert fetched(loader, os.path.getsize(made)) <= 1.1
        loader.close()


def test_a_cache_that_is_too_small_keeps_what_is_needed_first(at, made, tmp_path):
    size = os.path.getsize(made)
    with at(cache=str(tmp_path / "cache"), cache_bytes=int(0.7 * size), fetch_bytes=ROOM) as remote:
        loader = bp.Loader(remote, BATCH, order=QUASI_RANDOM)
        assert fetched(loader, size) <= 1.05
        # One that lets go of what was used longest ago would have nothing of it.
        assert fetched(loader, size, epochs=4) / 4 <= 0.8
        loader.close()


def test_resuming_fetches_what_is_left(at, made):
    size = os.path.getsize(made)
    with at(fetch_bytes=ROOM) as remote:
        first = bp.Loader(remote, BATCH, order=QUASI_RANDOM)
        whole = [batch["label"] for batch in first]
        part = iter(first)
        for _ in range(len(whole) * 3 // 4):
            next(part)
        state = first.state_dict()
        rest = [batch["label"] for batch in part]
        first.close()
    with at(fetch_bytes=ROOM) as remote:
        second = bp.Loader(remote, BATCH, order=QUASI_RANDOM)
        second.load_state_dict(state)
        before = second.stats()["bytes fetched"]
        assert [item.tolist() for item in rest] == [batch["label"].tolist() for batch in second]
        assert (second.stats()["bytes fetched"] - before) / size <= 0.5
        second.close()


def test_lanes_give_every_rank_blocks_of_its_own(at, made):
    size, world_size = os.path.getsize(made), 2
    total, labels = 0.0, []
    for rank in range(world_size):
        with at(fetch_bytes=ROOM) as remote:
            loader = bp.Loader(
                remote, BATCH, order=bp.order.QuasiRandom(window=1, lanes=world_size),
                rank=rank, world_size=world_size,
            )  # fmt: skip
            before = loader.stats()["bytes fetched"]
            labels += [batch["label"] for batch in loader]
            total += loader.stats()["bytes fetched"] - before
            loader.close()
    assert sorted(np.concatenate(labels).tolist()) == list(range(SAMPLES))
    # Lanes meet within a block.
    assert total / size <= 1.5


def test_ranks_without_lanes_hear_of_them(at):
    with at() as remote:
        loader = bp.Loader(remote, BATCH, order="quasi_random", rank=0, world_size=4)
        with pytest.warns(UserWarning, match=r"QuasiRandom\(lanes=4\)"):
            next(iter(loader))
        loader.close()


def test_a_random_order_says_once_what_it_costs(at):
    with at(fetch_bytes=ROOM) as remote:
        loader = bp.Loader(remote, BATCH, order="random")
        before, epoch = loader.stats()["requests"], iter(loader)
        with pytest.warns(UserWarning, match=r"about ([\d,]+) requests.*quasi_random.*cache=") as output:
            next(epoch)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in epoch:
                pass
            result = loader.stats()["requests"] - before
            next(iter(loader))
        loader.close()
    told = int(re.search(r"about ([\d,]+) requests", str(output[0].message))[1].replace(",", ""))
    assert told / 1.5 < result < told * 1.5
    # Where it all fits, there is nothing to say.
    with at() as remote, warnings.catch_warnings():
        warnings.simplefilter("error")
        loader = bp.Loader(remote, BATCH, order="random")
        next(iter(loader))
        loader.close()


def test_faults_on_the_way_change_no_batch(at, made, proxy):
    faults = [answers(503), truncated(1000), reset(), answers(429, retry_after=0)]
    count = iter(range(10**6))
    proxy.fail(
        lambda request: None if (turn := next(count)) % 3 else faults[turn // 3 % 4], method="GET", times=None
    )
    with at(proxy.endpoint, fetch_bytes=ROOM) as remote, bp.open(made) as local:
        ours, theirs = bp.Loader(remote, BATCH), bp.Loader(local, BATCH)
        for our, other in zip(ours, theirs, strict=True):
            same(our, other)
        assert ours.stats()["retries"]
        ours.close()
        theirs.close()


def test_a_server_that_dies_is_told_with_url_bytes_and_sample(at, proxy):
    with at(proxy.endpoint, fetch_bytes=CELL) as remote:
        loader = bp.Loader(remote, BATCH)
        batches = iter(loader)
        next(batches)
        proxy.fail(answers(503), times=None)
        with pytest.raises(bp.errors.AccessError) as caught:
            list(batches)
        error = caught.value
        assert error.path == remote.path
        assert error.offset is not None
        assert error.sample is not None
        assert "answered 503" in str(error)
        assert "bytes " in str(error)
        loader.close()


def test_an_epoch_that_is_left_leaves_no_thread(at):
    with at(fetch_bytes=ROOM) as remote:
        loader = bp.Loader(remote, BATCH, order="quasi_random")
        next(iter(loader))
        loader.close()
        for thread in threading.enumerate():
            if thread.name == "batchplant-prefetch":
                thread.join(PATIENCE)
                assert not thread.is_alive()


def test_a_loader_that_was_pickled_goes_on(at, made):
    with at(fetch_bytes=ROOM) as remote:
        loader = bp.Loader(remote, BATCH, order="shards")
        copy = pickle.loads(pickle.dumps(loader))
        # Both share the pool, so that it may be short of room.
        assert fetched(copy, os.path.getsize(made)) <= 2
        copy.close()
        loader.close()


def test_options_of_the_source(bucket, made, tmp_path):
    place(bucket, made)
    options = {"endpoint": bucket.endpoint, "cache": str(tmp_path / "cache")}
    loader = bp.Loader(bp.open(f"{bucket.url}/train.ffr", **options), BATCH)
    assert len(next(iter(loader))["label"]) == BATCH
    loader.close()
    assert os.listdir(tmp_path / "cache")


def test_the_bench_tells_what_came_over_the_network(bucket, made, capsys):
    place(bucket, made)
    url, where = f"{bucket.url}/train.ffr", f"endpoint={bucket.endpoint}"
    assert (
        main(["bench", "loader", url, "--pipeline", "raw", "--epochs", "1", "--quiet", "--option", where])
        == 0
    )
    output = re.search(r"^network +([\d,]+) requests?, ([\d.]+) MB", capsys.readouterr().out, re.MULTILINE)
    # Ahead, in few requests, and not sample by sample.
    assert int(output[1].replace(",", "")) < SAMPLES // 100
    assert float(output[2]) < 1.1 * os.path.getsize(made) / 1e6


def test_a_beton_needs_three_round_trips_and_one_for_each_sample(bucket, proxy, tmp_path):
    """Its head, both of its tables side by side, then samples."""
    path = tmp_path / "x.beton"
    with bp.create(path, {"data": bp.Bytes(), "label": bp.Int()}) as out:
        for number in range(6000):
            out.append({"data": bytes([number % 251]) * 100, "label": number})
    os.link(path, os.path.join(bucket.root, "x.beton"))
    proxy.mend = True
    data = bp.open(f"{bucket.url}/x.beton", endpoint=proxy.endpoint)

    def asked() -> list[tuple[int, int]]:
        return [request.range for request in proxy.requests if request.kind == "GET"]

    # Opening may return before the second table has come.
    proxy.wait_for(lambda: max(end for _, end in asked()) == data._source.size)
    # Requests of both tables that come at once are one.
    assert len(asked()) in (2, 3)
    assert asked()[0] == (0, 64 << 10)
    proxy.reset()
    assert [data.ranges(["data"], [number]).size.tolist() for number in (10, 5999)] == [[100], [100]]
    # The label stands in a table that is here.
    assert data.ranges(["label"], [10]) is None
    assert proxy.requests == []
    for number in (2000, 5000):
        assert data[number] == {"data": bytes([number % 251]) * 100, "label": number}
    assert len(proxy.requests) == 2


def test_images_of_several_shards_are_decoded_where_they_lie(bucket, tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    with bp.create(tmp_path / "a.beton", {"image": bp.Image(), "label": bp.Int()}) as out:
        for number in range(60):
            # The last shard is smaller than the others: places in them lie outside of it.
            pixels = rng.integers(0, 256, (40, 40 if number < 40 else 8, 3), dtype=np.uint8)
            out.append({"image": pixels, "label": number})
    bp.convert(tmp_path / "a.beton", tmp_path / "t.tar", shard_samples=20)
    for path in tmp_path.glob("t-*"):
        os.link(path, os.path.join(bucket.root, path.name))
    steps = {"image": [bp.ops.RandomResizedCrop(16)]}
    options = {"order": "random", "seed": 3, "pipelines": steps}
    with (
        bp.open(f"{bucket.url}/t-*.tar", endpoint=bucket.endpoint) as remote,
        bp.open(str(tmp_path / "t-*.tar")) as local,
    ):
        ours, theirs = bp.Loader(remote, 16, **options), bp.Loader(local, 16, **options)
        monkeypatch.setattr(images.Reader, "read", _only_labels(images.Reader.read))
        for our, other in zip(ours, theirs, strict=True):
            assert np.array_equal(our["image"], other["image"])
            assert np.array_equal(our["label"], other["label"])
        ours.close()
        theirs.close()


def _only_labels(read):
    def reads(self, indices, fields=None):
        assert "image" not in (fields or ()), "an image was copied"
        return read(self, indices, fields)

    return reads


@pytest.mark.parametrize("suffix", ["parquet", "zarr"])
def test_no_warning_where_chunks_that_samples_share_are_fetched_once(bucket, tmp_path, suffix):
    """A chunk counts once, however many samples lie in it: warnings are errors here."""
    pytest.importorskip("pyarrow" if suffix == "parquet" else "zarr")
    rng = np.random.default_rng(0)
    with bp.create(tmp_path / f"a.{suffix}", {"data": bp.Bytes()}) as out:
        for _ in range(400):
            out.append({"data": rng.bytes(5_000)})
    place = os.path.join(bucket.root, f"a.{suffix}")
    (shutil.copytree if (tmp_path / f"a.{suffix}").is_dir() else shutil.copy)(tmp_path / f"a.{suffix}", place)
    options = {"endpoint": bucket.endpoint, "fetch_bytes": "4MiB"}
    loader = bp.Loader(bp.open(f"{bucket.url}/a.{suffix}", **options), 32, order="random")
    before = loader.stats()["bytes fetched"]
    for _ in loader:
        pass
    assert loader.stats()["bytes fetched"] - before < 1.5 * 400 * 5_000
    loader.close()
