"""Batches that are made several together, and given out one by one."""

from __future__ import annotations

import io
import json
import math
import threading
import time

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.errors import DecodeError
from batchplant.loading import epoch
from batchplant.loading.epoch import BatchCoalescer, CoalescingTuning, _Queue
from batchplant.loading.executor import Batch, Executor, SampleBatches
from batchplant.testing.cases import EXHAUSTIVE
from loaders import MixedWithPrevious, all_cold
from processes import PATIENCE

torch = pytest.importorskip("torch")
pillow = pytest.importorskip("PIL.Image")

cold = pytest.fixture(all_cold)
STEPS = [ops.RandomResizedCrop(16), ops.RandomHorizontalFlip(), ops.ColorJitter(0.4, 0.4, 0.4)]


def jpeg(rng):
    width, height = (int(integer) for integer in rng.integers(20, 60, 2))
    out = io.BytesIO()
    small = pillow.fromarray(rng.integers(0, 256, (5, 5, 3), np.uint8))
    small.resize((width, height)).save(out, "JPEG", quality=90)
    return out.getvalue()


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return written(tmp_path_factory.mktemp("coalescing") / "a.beton", damaged=())


def written(path, damaged):
    rng = np.random.default_rng(0)
    with bp.create(path, {"image": bp.Image(), "label": bp.Int()}) as out:
        for number in range(50):
            data = jpeg(rng)
            out.append({"image": data[: len(data) // 2] if number in damaged else data, "label": number})
    return path


@pytest.fixture
def together(monkeypatch):
    """As many batches as there may be are made together, from the second on. How many each time."""
    monkeypatch.setattr(
        BatchCoalescer, "tuning", CoalescingTuning(seconds=1e9, max_samples=13, epoch_parts=1)
    )
    result = []
    prepare = Executor.prepare

    def counted(self, ids, epoch):
        result.append(len(ids))
        return prepare(self, ids, epoch)

    monkeypatch.setattr(Executor, "prepare", counted)
    return result


def loader_of(path, steps=STEPS, **more):
    more = {"device": "cpu", "decode": "split", **more}
    if more["device"] is None:
        del more["device"], more["decode"]
    return bp.Loader(path, 3, order="random", seed=4, ids=True, pipelines={"image": steps}, **more)


def taken(loader):
    with_arrays = [{name: np.asarray(value) for name, value in batch.items()} for batch in loader]
    loader.close()
    return with_arrays


def assert_same(some, others):
    assert len(some) == len(others)
    for row, other in zip(some, others, strict=True):
        assert row["ids"].tolist() == other["ids"].tolist()
        assert row["label"].tolist() == other["label"].tolist() == row["ids"].tolist()
        # Another back end may round otherwise, which the jitter makes larger.
        assert np.abs(row["image"].astype(int) - other["image"]).max() <= 6


def test_batches_are_the_same(path, together):
    want = taken(loader_of(path, device=None))
    together.clear()
    loader = loader_of(path)
    first = taken(loader)
    assert_same(first, want)
    # All samples once; four batches of three were made together, but the last.
    assert sum(together) == 50
    assert max(together) == 12
    assert len(together) < 17


@pytest.mark.parametrize("kind", ["beton", "tar", "lmdb", "folder"])
def test_batches_that_were_read_past_the_page_cache(kind, path, together, tmp_path, cold):
    """Coalesced batches find their images, though each batch was read by itself."""
    if kind == "lmdb":
        pytest.importorskip("lmdb")
    data = path
    if kind == "folder":
        data = tmp_path / "folder"
        data.mkdir()
        for number, cell in enumerate(bp.open(path).read(range(50), ["image"])["image"]):
            (data / f"{number:02}.jpg").write_bytes(bytes(cell))
    elif kind != "beton":
        data = tmp_path / f"a.{kind}"
        bp.convert(path, data)
    want, result = (taken(loader_of(data, device=item, cache=False)) for item in (None, "cpu"))
    for row, other in zip(want, result, strict=True):
        assert row["ids"].tolist() == other["ids"].tolist()
        assert np.abs(row["image"].astype(int) - other["image"]).max() <= 6
    # Small files: a batch may be found in what was read for another, and then the rest is left to the kernel.
    assert 0 < len(cold) <= 2 * 17
    assert max(together) == 12


def test_a_state_at_every_batch(path, together):
    want = taken(loader_of(path, decode="cpu"))
    for stop in range(0, len(want), 1 if EXHAUSTIVE else 4):
        one = loader_of(path, decode="cpu")
        epoch = iter(one)
        for _ in range(stop):
            next(epoch)
        state = json.loads(json.dumps(one.state_dict()))
        one.close()
        other = loader_of(path, decode="cpu")
        other.load_state_dict(state)
        rest = taken(other)
        assert [batch["ids"].tolist() for batch in rest] == [batch["ids"].tolist() for batch in want[stop:]]
        for ours, theirs in zip(rest, want[stop:], strict=True):
            assert np.array_equal(ours["image"], theirs["image"])


def test_damaged_samples(tmp_path, together):
    """What is wrong with one sample is told where it is, and no other batch has to do with it."""
    bad = written(tmp_path / "bad.beton", damaged=(7, 31))
    order = [item for batch in taken(loader_of(bad, device=None, on_error="skip")) for item in batch["ids"]]
    assert len(order) == 48
    plain, ours = (loader_of(bad, device=device, on_error="skip") for device in (None, "cpu"))
    assert_same(taken(ours), taken(plain))
    assert sorted(item.sample for item in ours.skipped) == [7, 31]
    given = {}
    for device in (None, "cpu"):
        loader, ids = loader_of(bad, device=device), []
        with pytest.raises(DecodeError) as error:
            ids.extend(batch["ids"].tolist() for batch in loader)
        assert error.value.sample in (7, 31)
        loader.close()
        given[device] = loader.state_dict()["position"]
    assert given["cpu"] == given[None] > 0


@pytest.mark.filterwarnings("ignore:decode=")
def test_what_depends_on_the_batch_is_made_batch_by_batch(path, together):
    for steps in (
        [*STEPS, MixedWithPrevious()],
        [ops.Resize(shorter=16), ops.Collate("pad")],
        [*STEPS, ops.Function(lambda batch: batch)],
    ):
        together.clear()
        taken(loader_of(path, steps))
        assert max(together) == 3


def batch_of(samples, size=100):
    return Batch({"image": np.zeros((samples, size), np.uint8)}, np.arange(samples), [])


def test_the_number_of_coalesced_batches_depends_on_the_rate(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(epoch.time, "perf_counter", lambda: now[0])

    def coalescer_at(rate, size=100, samples=64, limit=math.inf, batches=1000):
        coalescer = BatchCoalescer(3, lambda sample_bytes: limit / sample_bytes)
        coalescer.start(range(batches), 4)
        for _ in range(40):
            count = samples * coalescer.size
            began, now[0] = now[0], now[0] + count / rate
            coalescer.record(batch_of(count, size), coalescer.size, began)
        return coalescer

    slow = coalescer_at(500)
    assert (slow.size, slow.room) == (1, 3)
    fast, tuning = coalescer_at(10_000), CoalescingTuning()
    assert fast.size == round(tuning.seconds * 10_000 / 64)
    assert 3 < fast.room <= 5 * fast.size
    # Samples are limited, as are their bytes, and how much of an epoch is made together.
    assert coalescer_at(10**7).size == tuning.max_samples // 64
    assert coalescer_at(10**7, limit=64 * 100 * 2).size == 2
    assert coalescer_at(10**7, batches=3 * tuning.epoch_parts).size == 3
    never = BatchCoalescer(3, None)
    never.start(range(1000), 4)
    never.record(batch_of(64), 1, 0.0)
    assert never.size == 1
    uneven = BatchCoalescer(3, lambda sample_bytes: math.inf)
    uneven.start(range(1000), 4)
    uneven.record(Batch({"text": ["a", "b"]}, np.arange(2), []), 1, 0.0)
    assert uneven.size == 1


class TestTheBeginningOfAStep:
    """Where enough batches are ready, nobody begins another."""

    class Shard:
        def has(self, number):
            return number < 10

    def queue(self, ready, quiet):
        queue = _Queue(None, None, BatchCoalescer(4, None))
        queue.batches = SampleBatches(None, self.Shard(), None, 0)
        queue.quiet_until = time.perf_counter() + quiet
        queue.ready = dict.fromkeys(range(ready), "a batch")
        queue.next = ready
        return queue

    def test_is_left_alone(self):
        queue = self.queue(2, 0.05)
        assert list(queue.claim()) == [2]
        assert time.perf_counter() >= queue.quiet_until

    def test_is_not_where_batches_are_waited_for(self):
        assert list(self.queue(1, 10_000).claim()) == [1]

    def test_ends_with_the_epoch(self):
        queue = self.queue(2, 10_000)
        waiting = threading.Thread(target=queue.claim)
        waiting.start()
        queue.stop()
        waiting.join(PATIENCE)
        assert not waiting.is_alive()

    def test_is_a_part_of_the_steps_before(self):
        queue = self.queue(3, 0)
        queue.step_seconds = 0.01
        before = time.perf_counter()
        queue.take()
        assert queue.quiet_until - time.perf_counter() <= 0.0025
        assert queue.quiet_until - before >= 0.0025
        queue.step_seconds = 100.0
        queue.take()
        assert queue.quiet_until - time.perf_counter() <= 0.02
