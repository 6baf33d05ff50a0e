"""Ranks in training: epochs dealt out to processes, evaluation, other worlds after a resume, equal work."""

from __future__ import annotations

import itertools
import json
import os
import random
import socket
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import mesh_script
import processes
import repository
from batchplant import order as orders
from batchplant.errors import OptionError
from batchplant.loading.loader import Loader
from batchplant.order import Shard, deal, ranks, shard
from loaders import Memory, ids_of, numbers, write

SAMPLES = 103
worlds = st.integers(1, 9)
batch_sizes = st.integers(1, 12)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("ranks") / "plain.npz", SAMPLES)


def some_sizes(n: int, seed: int = 0) -> Any:
    """A few are large; some are nothing."""
    drawn = np.random.default_rng(seed).lognormal(3, 1.5, n).astype(np.int64)
    return np.where(np.arange(n) % 11 == 3, 0, drawn)


def shards(order: orders.Order, world_size: int, **options: Any) -> list[Shard]:
    return [shard(order, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def steps_of(parts: Sequence[Shard]) -> list[list[int]]:
    """The samples of every step on all ranks, in ascending order."""
    return [
        sorted(np.concatenate([part.batch(number) for part in parts]).tolist())
        for number in range(parts[0].steps)
    ]


# -- who gets how much --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 10**12) | st.sampled_from([0, 1]), max_size=60), st.integers(1, 9))
def test_parts_are_about_equally_large(sizes, parts):
    sizes = np.array(sizes, dtype=np.int64)
    result = deal(sizes, parts)
    assert np.array_equal(result, deal(sizes.astype(np.uint64), parts))
    sums = np.bincount(result, sizes, parts)
    # What is more than the smallest part has is one sample, for no part grows while another is smaller.
    assert sums.max() - sums.min() <= sizes.max(initial=0)
    assert len(set(result)) == min(parts, len(sizes))


@given(st.integers(0, 200), worlds, batch_sizes, st.booleans(), st.data())
def test_a_step_has_the_same_samples_however_they_are_dealt(n, world_size, batch_size, drop_last, data):
    start = data.draw(st.integers(0, n))
    order, sizes = orders.random(n, seed=n, epoch=0), some_sizes(n)
    options = {"batch_size": batch_size, "drop_last": drop_last, "start": start}
    plain, balanced = (
        shards(order, world_size, **options),
        shards(order, world_size, sizes=sizes.take, **options),
    )
    assert {len(part) for part in balanced} == {len(part) for part in plain}
    assert steps_of(balanced) == steps_of(plain)
    for number in range(len(plain[0])):
        batches = [part.batch(number) for part in balanced]
        assert [list(order.take(part.positions(number))) for part in balanced] == [
            list(batch) for batch in batches
        ]
        lengths = [len(part.batch(number)) for part in plain]
        assert [len(batch) == 0 for batch in batches].count(True) == lengths.count(0)
        sums = [int(sizes[batch].sum()) for batch in batches]
        if min(lengths) > 0:
            assert max(sums) - min(sums) <= sizes[np.concatenate(batches)].max()
        # Batches are in the order of the epoch.
        assert all((np.diff(part.positions(number)) > 0).all() for part in balanced)


@given(st.integers(2, 30), st.integers(1, 12), st.integers(1, 60))
def test_in_a_large_world_groups_of_ranks_share(world_size, batch_size, dealt):
    order, sizes = (
        orders.sequential(world_size * batch_size * 2 + 5),
        some_sizes(world_size * batch_size * 2 + 5),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ranks, "MAX_DEALT_SAMPLES", dealt)
        balanced = shards(order, world_size, batch_size=batch_size, sizes=sizes.take)
        looked_at: list[int] = []
        shard(
            order, rank=world_size - 1, world_size=world_size, batch_size=batch_size,
            sizes=lambda samples: looked_at.append(len(samples)) or sizes[samples],
        ).batch(0)  # fmt: skip
        assert steps_of(balanced) == steps_of(shards(order, world_size, batch_size=batch_size))
    # Two ranks are the smallest group, so three may be in one.
    assert max(looked_at, default=0) <= max(dealt + batch_size, 3 * batch_size)


def test_no_rank_gets_the_largest_every_time():
    sizes = some_sizes(400, seed=2)
    parts = shards(orders.sequential(400), 4, batch_size=10, sizes=sizes.take)
    largest = [max(range(4), key=lambda rank: sizes[parts[rank].batch(step)].max()) for step in range(10)]
    assert set(largest) == {0, 1, 2, 3}


def test_balance_makes_ranks_alike():
    sizes = np.random.default_rng(0).lognormal(9, 1, 8 * 32 * 20).astype(np.int64)
    order = orders.random(len(sizes), seed=0, epoch=0)

    def imbalance(**options: Any) -> float:
        parts = shards(order, 8, batch_size=32, **options)
        sums = np.array([[sizes[part.batch(step)].sum() for part in parts] for step in range(20)])
        return float((sums.max(axis=1) / sums.mean(axis=1)).mean())

    assert imbalance() > 1.2
    assert imbalance(sizes=sizes.take) < 1.01


def test_the_guide_shows_what_the_benchmark_found():
    root = repository.ROOT
    answer = json.loads((root / "benchmarks" / "results" / "balance.json").read_text())
    rows = {
        f"| {case['sigma']} | {case['world_size']} × {case['batch']} | "
        f"{case['plain']['slowest to mean']:.2f} | {case['balanced']['slowest to mean']:.2f} | "
        f"{case['balanced']['fewest samples']}–"
        f"{case['balanced']['most samples']} |"
        for case in answer["cases"]
    }
    guide = (root / "docs" / "guides" / "distributed.md").read_text("utf-8").splitlines()
    shown = {line for line in guide if line.startswith(("| 0.", "| 1."))}
    assert len(shown) > 5
    assert shown <= rows


# -- evaluation ---------------------------------------------------------------------------------------------


@given(st.integers(0, 60), worlds, batch_sizes, st.booleans())
def test_evaluation_has_every_sample_once_and_no_empty_batch(n, world_size, batch_size, balanced):
    sizes = some_sizes(n).take if balanced else None
    parts = shards(orders.sequential(n), world_size, batch_size=batch_size, pad="skip", sizes=sizes)
    batches = [[batch.tolist() for batch in part] for part in parts]
    assert sorted(itertools.chain(*itertools.chain(*batches))) == list(range(n))
    assert all(batch for part in batches for batch in part)
    counts = [len(part) for part in parts]
    assert counts == sorted(counts, reverse=True)
    # Rank 0 has most, so what it saves is where everybody is.
    assert counts[0] == parts[0].steps
    assert counts[0] - counts[-1] <= 1
    assert counts.count(counts[0] - 1) == parts[0].idle


def test_a_loader_that_evaluates(plain):
    def batches(**options: Any) -> list[list[list[int]]]:
        ranks = [Loader(plain, 1, indices=range(6), rank=rank, world_size=4, **options) for rank in range(4)]
        result = [[batch["value"].tolist() for batch in rank] for rank in ranks]
        assert [len(rank) for rank in ranks] == [len(item) for item in result]
        return result

    assert batches() == [[[0], [4]], [[1], [5]], [[2], []], [[3], []]]
    assert batches(evaluate=True) == [[[0], [4]], [[1], [5]], [[2]], [[3]]]
    with pytest.raises(OptionError, match="give one of them"):
        Loader(plain, 1, evaluate=True, drop_last=True)


# -- another world size after a resume ----------------------------------------------------------------------


@given(st.integers(1, 200), worlds, batch_sizes, worlds, batch_sizes, st.booleans(), st.booleans(), st.data())
def test_the_union_is_exact_in_any_other_world(
    n, world_size, batch_size, world_then, batch_size_then, drop_last, balanced, data
):
    order, sizes = orders.random(n, seed=1, epoch=n), some_sizes(n).take if balanced else None
    options = {"drop_last": drop_last, "sizes": sizes}
    before = shards(order, world_size, batch_size=batch_size, **options)
    done = data.draw(st.integers(0, before[0].steps))
    [position] = {part.position_after(done) for part in before}
    after = shards(order, world_then, batch_size=batch_size_then, start=position, **options)
    seen = [*itertools.chain(*steps_of(before)[:done]), *itertools.chain(*steps_of(after))]
    assert len(seen) == len(set(seen))
    left_out = (n - position) % (world_then * batch_size_then) if drop_last else 0
    assert len(seen) == n - left_out


@pytest.mark.parametrize("balance", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
def test_loaders_of_other_worlds_go_on_from_a_random_step(plain, balance, drop_last):
    rng = random.Random(18)
    order = orders.Balanced("random", sizes=some_sizes(SAMPLES)) if balance else "random"
    options = {"order": order, "seed": 5, "ids": True, "workers": 1, "drop_last": drop_last}
    ranks = [Loader(plain, 4, rank=rank, world_size=4, **options) for rank in range(4)]
    for _ in range(2):
        live, steps = [iter(rank) for rank in ranks], rng.randrange(1, len(ranks[0]))
        before = [int(k) for _ in range(steps) for item in live for k in next(item)["ids"]]
        [state] = {json.dumps(rank.state_dict()) for rank in ranks}
        for world_size, batch_size in ((3, 4), (5, 4), (5, 7)):
            others = [
                Loader(plain, batch_size, rank=rank, world_size=world_size, **options)
                for rank in range(world_size)
            ]
            for item in others:
                item.load_state_dict(json.loads(state))
            rest = [ids_of(item) for item in others]
            seen = [*before, *itertools.chain(*rest)]
            assert len(seen) == len(set(seen))
            lost = (SAMPLES - len(before)) % (world_size * batch_size) if drop_last else 0
            assert len(seen) == SAMPLES - lost


# -- what counts as size ------------------------------------------------------------------------------------


def texts(path: Path) -> tuple[str, Any]:
    """Text of many lengths, its tokens, and how many these are: not always."""
    lengths = some_sizes(40, seed=3) % 300
    samples = (
        {
            "text": "x" * int(size), "label": n, "tokens": int(size) // 3,
            "some": None if n % 5 == 0 else int(size), "pair": [n, n],
        }
        for n, size in enumerate(lengths)
    )  # fmt: skip
    schema = {
        "text": bp.Text(), "label": bp.Int(), "tokens": bp.Int(), "some": bp.Int(optional=True),
        "pair": bp.Tensor("int64", (2,)),
    }  # fmt: skip
    return write(path, schema, samples), lengths


@pytest.mark.parametrize("name", ["data.tfrecord", "data.npz", "data.jsonl"])
def test_what_counts_as_size(tmp_path, name):
    path, lengths = texts(tmp_path / name)
    reader = bp.open(path)
    there = np.arange(40) % 5 != 0
    wanted: dict[Any, Any] = {
        "tokens": lengths // 3,
        "some": np.where(there, lengths, 0),
        "text": lengths,
        tuple((lengths * 2).tolist()): lengths * 2,
        lambda samples: np.sqrt(samples): np.sqrt(np.arange(40)),
    }
    indices = np.random.default_rng(1).permutation(40)[:31]
    for sizes, want in wanted.items():
        actual = [
            [batch["ids"].tolist() for batch in Loader(
                reader, 4, rank=rank, world_size=3, order=orders.Balanced("random", sizes=sizes),
                indices=indices, ids=True, workers=1,
            )]
            for rank in range(3)
        ]  # fmt: skip
        order = orders.random(31, seed=0, epoch=0)
        plan = shards(order, 3, batch_size=4, sizes=lambda at, want=want: want[indices[at]])
        assert actual == [[indices[part.batch(k)].tolist() for k in range(len(part))] for part in plan]


def test_the_bytes_of_the_fields_that_are_loaded(tmp_path):
    path, lengths = texts(tmp_path / "data.tfrecord")
    options: dict[str, Any] = {"world_size": 2, "rank": 0, "ids": True, "workers": 1}
    by_bytes = ids_of(Loader(path, 8, order=orders.Balanced("sequential"), **options))
    # Three numbers and two more are in every sample.
    assert by_bytes == ids_of(
        Loader(path, 8, order=orders.Balanced("sequential", sizes=lengths + 40), **options)
    )
    # Numbers are all of one size, so nothing is left to balance but their count.
    pipelines = dict.fromkeys(("text", "tokens", "some", "pair"))
    labels = Loader(path, 8, pipelines=pipelines, order=orders.Balanced("sequential"), **options)
    assert {len(batch["label"]) for batch in labels} == {8, 4}


def test_sizes_that_only_reading_would_tell():
    reader = Memory({"text": bp.Text()}, [{"text": "x" * n} for n in range(20)])
    with pytest.raises(OptionError, match="give sizes=, a field"):
        Loader(reader, 4, order=orders.Balanced())
    balanced = orders.Balanced("sequential", sizes="text")
    result = [ids_of(Loader(reader, 2, order=balanced, rank=r, world_size=2, ids=True)) for r in (0, 1)]
    assert sorted(result[0] + result[1]) == list(range(20))
    assert abs(sum(result[0]) - sum(result[1])) < 10


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ("tokens", "tokens"),
        ([1, 2], f"sizes must be {SAMPLES} numbers, not int64 of shape \\(2,\\)"),
        ([-1] * SAMPLES, "none below 0"),
        ([float("nan")] * SAMPLES, "must be finite"),
        (["a"] * SAMPLES, "must be 103 numbers"),
    ],
)
def test_wrong_sizes(plain, sizes, message):
    with pytest.raises(bp.BatchplantError, match=message):
        Loader(plain, 4, order=orders.Balanced(sizes=sizes))


def test_wrong_sizes_of_a_function_and_a_field(plain, tmp_path):
    options: dict[str, Any] = {"rank": 0, "world_size": 2}
    with pytest.raises(OptionError, match="the function sizes must be 8 numbers"):
        list(Loader(plain, 4, order=orders.Balanced(sizes=lambda samples: [1]), **options))
    path = texts(tmp_path / "data.npz")[0]
    with pytest.raises(OptionError, match="the field pair, as sizes, must be 40 numbers"):
        list(Loader(path, 4, order=orders.Balanced(sizes="pair"), **options))


def test_an_epoch_does_not_hold_a_balanced_loader(plain):
    order = orders.Balanced("sequential", sizes="value")
    loader = Loader(plain, 4, order=order, indices=range(50), rank=0, world_size=2)
    epoch, held = iter(loader), weakref.ref(loader)
    next(epoch)
    del loader
    assert held() is None
    assert len(list(epoch)) == 6


# -- torchrun -----------------------------------------------------------------------------------------------

# A worker of torchrun is in a session of its own: it has to see itself that torchrun is gone.
PROCESS = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
import json, os, sys

data, out, options = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
sys.path.append(options["support"])
import mesh_script
if "state" in options:
    # Nothing but the launcher's environment says which rank this is.
    import batchplant as bp
    order = bp.order.Balanced("random", sizes=mesh_script.sizes_of(len(bp.open(data))))
    loader = bp.Loader(data, options["batch"], ids=True, workers=1, order=order)
    loader.load_state_dict(options["state"])
    result = [batch["ids"].tolist() for batch in loader]
    assert "torch" not in sys.modules
else:
    import torch.distributed as dist
    dist.init_process_group("gloo")
    result = mesh_script.train(data)
    dist.destroy_process_group()
with open(f"{out}/{os.environ['RANK']}", "w") as file:
    json.dump(result, file)
"""


def launch(folder: Path, world_size: int, data: str, **options: Any) -> list[Any]:
    """What each of ``world_size`` processes of torchrun wrote. Nothing but the loopback is used."""
    folder.mkdir()
    out, path = folder / "out", folder / "script.py"
    out.mkdir()
    path.write_text(PROCESS)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    options["support"] = str(Path(mesh_script.__file__).parent)
    command = [
        *(sys.executable, "-W", "ignore", "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"),
        *("--nproc-per-node", str(world_size), "--master-port", port),
        *(str(path), data, str(out), json.dumps(options)),
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = processes.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [json.loads((out / str(rank)).read_text()) for rank in range(world_size)]


@pytest.mark.exhaustive
def test_torchrun_trains_evaluates_and_goes_on_with_other_worlds(tmp_path, plain):
    """As one group of processes in test_mesh does without torchrun."""
    pytest.importorskip("torch")
    trained = launch(tmp_path / "train", 4, plain)
    before = mesh_script.check_training(trained, SAMPLES)
    for world_size, batch in ((3, 4), (5, 3)):
        state = trained[0]["state"]
        after = launch(tmp_path / f"resume {world_size}", world_size, plain, state=state, batch=batch)
        assert len({len(batches) for batches in after}) == 1
        assert sorted([*before, *itertools.chain(*itertools.chain(*after))]) == list(range(SAMPLES))
