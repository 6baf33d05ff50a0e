"""Simulation: nothing lost, bounds, what more bandwidth must do, and the same requests as a real Loader."""

from __future__ import annotations

import contextlib
import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchplant as bp
from batchplant import order as orders
from batchplant.cli import main
from batchplant.data.config import parse_yaml
from batchplant.errors import BatchplantError
from batchplant.loading.prefetch.remote import Use
from batchplant.tools.simulation import Plan, example, read_plan, simulate
from batchplant.tools.simulation.model import Clock, Link, Loops, Rank, Way, hit_rates
from batchplant.tools.simulation.running import Dataset, Orders
from chunks import shrink_chunks
from variants import exhaustive

# Two whole epochs of it are simulated in a moment.
SMALL = Plan().but(
    data={"samples": 3000, "sample_bytes": 20_000, "files": 7, "block_bytes": "1MiB", "index_bytes": 0},
    loader={"batch_size": 64, "drop_last": False, "fetch_bytes": "100MB"},
    cluster={"ranks": 2, "ranks_per_node": 2, "start": 0},
    node={"cache": 0},
    store={"bandwidth": "200MB/s", "connection": "100MB/s"},
)
MANY = {"samples": "1e10", "files": "1e6"}


def small(**sections: dict[str, Any]) -> Plan:
    return SMALL.but(**sections)


# -- plans -------------------------------------------------------------------------------------------------


def test_the_example_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").write_text(example())
    assert read_plan(tmp_path / "plan.yaml") == Plan()


def test_yaml_toml_and_json_say_the_same(tmp_path: Path) -> None:
    texts = {
        "yaml": "# a plan\ndata: {samples: 1e6, files: 10}\ncluster:\n  ranks: '16' # of them\nnode:\n",
        "toml": "[data]\nsamples = 1e6\nfiles = 10\n[cluster]\nranks = 16\n",
        "json": '{"data": {"samples": 1000000, "files": 10}, "cluster": {"ranks": 16}}',
    }
    result = []
    for suffix, text in texts.items():
        (tmp_path / f"plan.{suffix}").write_text(text)
        result.append(read_plan(tmp_path / f"plan.{suffix}"))
    assert result[0] == result[1] == result[2]
    assert (result[0].data.samples, result[0].cluster.ranks) == (10**6, 16)


@pytest.mark.parametrize("given", ["289kB", "289 kB", "289000", 289000, 289e3])
def test_every_number_of_bytes_takes_a_unit(tmp_path: Path, given: Any) -> None:
    names = ("data.sample_bytes", "data.block_bytes", "data.index_bytes", "loader.fetch_bytes", "node.cache")
    text = ["data: {samples: 1e6, files: 10}", "loader: {order: random}"]
    (tmp_path / "plan.yaml").write_text("\n".join(text))
    plan = read_plan(tmp_path / "plan.yaml").set(dict.fromkeys(names, given))
    result = plan.as_dict()
    assert [result[part][name] for part, name in (name.split(".") for name in names)] == [289_000] * 5
    assert plan.set({"index_bytes": "0.5"}).data.index_bytes == 0.5
    (tmp_path / "plan.yaml").write_text("data:\n  index_bytes: 289kB\n")
    assert read_plan(tmp_path / "plan.yaml").data.index_bytes == 289_000
    with pytest.raises(BatchplantError, match="index_bytes is a number of bytes"):
        plan.set({"index_bytes": "9" * 5000})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data:\n  sample: 5\n", "did you mean samples"),
        ("cluster:\n  ranks: many\n", "ranks is a number"),
        ("store:\n  latency: 3 parsecs\n", "such as 30ms"),
        ("store:\n\tlatency: 3ms\n", "line 2: while scanning"),
        ("ranks: 5\n", "line 1"),
        ("cluster:\n  ranks: 5\n  ranks: 6\n", "there twice"),
        ("cluster:\n  ranks: 0\n", "at least 1"),
        ("loader:\n  order: shuffled\n", "none of sequential"),
        ("data:\n  samples: 100\n  files: 10\n", "fewer samples than the ranks take"),
        ("data:\n  block_bytes: 10kB\n  samples: 1e10\n", "blocks"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "plan.yaml").write_text(text)
    with pytest.raises(BatchplantError, match=message) as raised:
        read_plan(tmp_path / "plan.yaml")
    assert "plan.yaml" in str(raised.value)


@settings(max_examples=60)
@given(st.text(alphabet="ab: #\n{},'\"\t-1[", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_yaml(text), dict)


def test_one_value_by_its_name() -> None:
    result = Plan().set({"ranks": "10_000", "store.bandwidth": "25Gbit/s"})
    assert (result.cluster.ranks, result.store.bandwidth) == (10_000, 3.125e9)
    with pytest.raises(BatchplantError, match=r"node\.bandwidth or store\.bandwidth"):
        Plan().set({"bandwidth": "1GB/s"})


# -- data and time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("aligned", [False, True])
def test_samples_lie_one_after_another_and_none_is_lost(aligned: bool) -> None:
    plan = small(data={"aligned": aligned})
    data = Dataset(plan)
    spans = data.ranges(None, np.arange(len(data)))
    assert int(spans.size.sum()) == plan.bytes
    assert spans.size.min() > 0
    assert spans.size.std() > 0
    place = np.arange(1, len(data)) % plan.samples_per_file
    same = place % plan.samples_per_block > 0
    assert (spans.start[1:] == spans.start[:-1] + spans.size[:-1])[same].all()
    ends = [data.file_size(number) for number in range(7)]
    assert [int((spans.start + spans.size)[spans.file == number].max()) for number in range(7)] == ends
    # Any of them can be asked for without the others.
    picked = np.array([2999, 5, 1234])
    assert data.ranges(None, picked).start.tolist() == spans.start[picked].tolist()


def test_what_shares_a_link_is_slower() -> None:
    clock, done = Clock(), dict[str, float]()
    link = Link(clock, 100.0, 80.0)
    link.send(100, lambda: done.setdefault("first", clock.now))
    clock.at(0.5, lambda: link.send(100, lambda: done.setdefault("second", clock.now)))
    while clock.tick():
        pass
    # 40 bytes alone at 80 a second, 60 at 50, and then the rest of the other alone again.
    assert done["first"] == pytest.approx(0.5 + 60 / 50)
    assert done["second"] == pytest.approx(0.5 + 60 / 50 + 40 / 80)


# -- what comes out ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def found() -> Any:
    return simulate(SMALL)


def test_every_byte_comes_once_where_there_is_room(found: Any) -> None:
    """One rank fetches all; of two, each fetches cells of which it needs half."""
    assert "nothing" in found.sampled
    assert SMALL.bytes <= sum(found.first.bytes_by_rank) <= 2.1 * SMALL.bytes
    alone = simulate(small(cluster={"ranks": 1}))
    assert alone.first.bytes == SMALL.bytes
    assert alone.later.bytes == 0
    assert alone.samples_per_rank == (3000, 3000)
    assert sum(found.samples_per_rank) == 3000


def test_a_node_finds_in_its_cache_what_it_has_fetched(found: Any) -> None:
    cached = simulate(small(node={"cache": "1GB"}, loader={"fetch_bytes": "20MB"}))
    assert found.first.hit_rate == found.later.hit_rate == 0
    assert 0 <= cached.first.hit_rate < 0.6
    assert cached.later.hit_rate == 1
    assert cached.later.bytes == 0
    assert cached.later.samples_per_second > cached.first.samples_per_second


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"store": {"latency": "5ms"}}, {"store": {"latency": "200ms"}}),
        ({"store": {"bandwidth": "400MB/s"}}, {"store": {"bandwidth": "20MB/s"}}),
        ({"store": {"requests": 1000}}, {"store": {"requests": 20}}),
        ({"cluster": {"decode": 5000}}, {"cluster": {"decode": 200}}),
        *exhaustive(
            ({"store": {"connection": "400MB/s"}}, {"store": {"connection": "2MB/s"}}),
            ({"cluster": {"step": 0}}, {"cluster": {"step": "1s"}}),
        ),
    ],
    ids=lambda item: "-".join(next(iter(item.values()))),
)
def test_what_is_better_is_not_slower(better: dict[str, Any], worse: dict[str, Any]) -> None:
    fast, slow = simulate(small(**better)), simulate(small(**worse))
    assert fast.first.seconds < slow.first.seconds


def test_what_limits_is_named() -> None:
    assert simulate(small(cluster={"decode": 200})).first.limit == "decoding"
    slow = simulate(small(store={"bandwidth": "20MB/s"}))
    assert slow.first.limit == "the bandwidth of the store"
    assert simulate(small(cluster={"step": "1s"})).first.limit == "the training step"


def test_what_the_steps_need_is_named(found: Any) -> None:
    assert found.demand is None
    plan = small(cluster={"step": "1s"})
    demand = simulate(plan).demand
    assert demand is not None
    assert demand.samples_per_second == plan.cluster.ranks * plan.loader.batch_size
    assert demand.store_bytes_per_second == demand.samples_per_second * plan.data.sample_bytes
    assert demand.decoders == plan.loader.batch_size / plan.cluster.decode
    assert demand.input_bound < 0.05
    slow = simulate(small(cluster={"step": "1s", "decode": plan.loader.batch_size / 2})).demand
    assert slow is not None
    assert slow.input_bound == pytest.approx(0.5, abs=0.1)


@settings(max_examples=8, deadline=None)
@given(st.floats(0.001, 2), st.sampled_from(["quasi_random", "random", "sequential"]), st.integers(1, 64))
def test_hit_rates_stay_within_bounds_and_grow_with_the_cache(share: float, order: str, nodes: int) -> None:
    def rates(cache: float) -> tuple[float, float]:
        plan = Plan().but(
            data={"samples": 10**8},
            cluster={"ranks": 8 * nodes},
            loader={"order": order},
            node={"cache": int(cache * 10**13)},
        )
        return hit_rates(plan, 1.0)

    second, late = rates(share)
    assert 0 <= second <= 1
    assert 0 <= late <= 1
    # A small cache of cells is a model: a hundredth to either side is its noise.
    assert rates(2 * share)[1] >= late - 0.01


def most_memory() -> int:
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024


def test_of_ten_billion_samples_nothing_is_kept() -> None:
    plan = Plan().but(
        data=MANY, loader={"order": "random", "batch_size": 32, "fetch_bytes": "16MB"},
        cluster={"ranks": 10**4}, node={"cache": 0},
        look={"sampled_batches": 3, "sampled_ranks": 1},
    )  # fmt: skip
    # Let the system count the most memory anew.
    Path("/proc/self/clear_refs").write_text("5")
    before = most_memory()
    result = simulate(plan)
    assert most_memory() - before < 100e6
    assert result.samples_per_rank == (10**6, 10**6)
    assert result.later.requests == pytest.approx(10**6, rel=0.2)
    assert "1 of 10,000 ranks" in result.sampled


# -- the same as a real loader -----------------------------------------------------------------------------

CELL = 1 << 18
ORDERS = {
    "sequential": {},
    "random": {},
    "windowed": {"window": 50},
    "shards": {"lanes": 2},
    "quasi_random": {"window": 2, "lanes": 2},
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "blobs.beton"
    rng = np.random.default_rng(0)
    with bp.create(path, {"blob": bp.Bytes()}) as out:
        for size in rng.integers(5_000, 15_000, 500).tolist():
            out.append({"blob": rng.bytes(size)})
    return path


def virtual(reader: bp.Reader, path: Path, order: str, fetch_bytes: int, world_size: int = 2) -> list[Rank]:
    """The ranks of a loader in virtual time, after an epoch."""
    plan = Plan().but(
        data={"samples": len(reader), "files": 1}, loader={"batch_size": 32, "fetch_bytes": fetch_bytes},
        cluster={"ranks": world_size, "ranks_per_node": world_size, "synchronous": False}, node={"cache": 0},
    )  # fmt: skip
    options: dict[str, Any] = dict(ORDERS[order])
    if order in orders.BY_BLOCKS:
        options |= {"blocks": reader.blocks(), "lane_size": 32}
    clock = Clock()
    loops, way = Loops(clock, 0.0, synchronous=False), Way(clock, plan, world_size)
    epoch = orders.make(order, len(reader), seed=3, epoch=0, **options)
    for rank in range(world_size):
        one = Rank(clock, way, None, plan, reader, lambda _: path.stat().st_size, loops.look)
        one.begin(orders.shard(epoch, rank=rank, world_size=world_size, batch_size=32), None, 10**9)
        loops.ranks.append(one)
    loops.run(lambda taken: None)
    return loops.ranks


@pytest.fixture
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a small file has many."""
    shrink_chunks(monkeypatch, CELL)


@pytest.mark.parametrize("order", ["sequential", "random", "quasi_random", *exhaustive("windowed", "shards")])
def test_a_real_loader_makes_the_same_requests(order: str, web: Any, made: Path, small_cells: None) -> None:
    pytest.importorskip("obstore")
    url = web.put("blobs.beton", made.read_bytes())
    with bp.open(made) as local:
        spans = local.ranges(None, np.arange(500))
        told = virtual(local, made, order, 64 << 20)
    for rank, item in enumerate(told):
        web.proxy.reset()
        with bp.open(url, fetch_bytes=64 << 20) as remote:
            loader = bp.Loader(
                remote, 32, order=orders.by_name(order, **ORDERS[order]), seed=3, rank=rank, world_size=2
            )
            assert sum(1 for _ in loader) == 8
            loader.close()
        asked = [request.headers["range"].removeprefix("bytes=").split("-") for request in web.proxy.requests]
        sizes = [int(end) + 1 - int(start) for start, end in asked if int(start) in range(*_data(spans))]
        assert (item.fetching.requests, item.fetching.bytes) == (len(sizes), sum(sizes))


def _data(spans: Any) -> tuple[int, int]:
    """Where the samples lie, between what opening reads."""
    return int(spans.start.min()), int(spans.start.max()) + 1


@pytest.mark.parametrize("order", ["random", *exhaustive("quasi_random")])
def test_a_plan_of_a_tar_file_tells_bytes_and_requests_of_two_ranks(
    order: str, web: Any, tmp_path: Path
) -> None:
    """In random order each of two ranks needs just half of everything: the headers of members decide."""
    pytest.importorskip("obstore")
    count, size = 600, 20_000
    rng = np.random.default_rng(0)
    with bp.create(tmp_path / "a.tar", {"data": bp.Bytes()}) as out:
        for _ in range(count):
            out.append({"data": rng.bytes(size)})
    plan = Plan().but(
        data={
            "samples": count, "sample_bytes": size, "files": 1, "varies": 0, "block_bytes": "8MiB",
            "gap_bytes": (tmp_path / "a.tar").stat().st_size // count - size,
        },
        loader={"order": order, "window": 2, "lanes": True, "batch_size": 32, "drop_last": False},
        cluster={"ranks": 2, "ranks_per_node": 2}, node={"cache": 0},
    )  # fmt: skip
    told = simulate(plan).first
    url = web.put("a.tar", (tmp_path / "a.tar").read_bytes())
    # Where its samples lie is found out once.
    bp.open(url).close()
    requests, fetched = [], []
    for rank in range(2):
        with bp.open(url) as data:
            options = {"window": 2, "lanes": 2} if order == "quasi_random" else {}
            loader = bp.Loader(
                data, 32, order=orders.by_name(order, **options), seed=0, rank=rank, world_size=2
            )
            before = loader.stats()
            for _ in loader:
                pass
            after = loader.stats()
            loader.close()
        requests.append(after["requests"] - before["requests"])
        fetched.append(after["bytes fetched"] - before["bytes fetched"])
    assert np.mean(requests) == pytest.approx(told.requests, rel=0.2)
    assert np.mean(fetched) == pytest.approx(told.bytes, rel=0.2)


SPARSE = Plan().but(
    data={"samples": 2000, "files": 1}, loader={"order": "random", "batch_size": 16, "drop_last": False},
    cluster={"ranks": 1}, node={"cache": 0},
)  # fmt: skip


def test_batches_that_share_cells_are_all_asked_for_ahead() -> None:
    """Of cells of which each batch needs little; what was asked for is there, or on its way."""
    plan = SPARSE.but(loader={"fetch_bytes": "30MB"})
    clock, data = Clock(), Dataset(plan)
    rank = Rank(clock, Way(clock, plan, 1), None, plan, data, lambda _: data.file_size(0), lambda: None)
    shard = Orders(plan).shard(0, 0)
    rank.begin(shard, None, 10**9)
    assert clock.tick()
    assert rank.prefetcher is not None
    asked = sum(map(rank.prefetcher.is_ready, range(len(shard))))
    assert 10 < asked < len(shard)
    source = rank._source("0")
    for number in range(asked):
        spans = data.ranges(None, shard.batch(number))
        assert rank._pool.covering(source.blocks[1], spans.start, spans.size) is not None, number


def test_blocks_between_the_samples_of_a_batch_are_not_needed_by_it() -> None:
    use = Use(4, 100, 1000, 150, np.array([100, 900]), np.array([50, 100]))
    assert use.within(0, 2000) == use.within(100, 1000) == 150
    assert use.within(150, 900) == use.within(0, 100) == use.within(1000, 2000) == 0
    assert use.within(140, 910) == 20


@pytest.mark.exhaustive
def test_memory_that_is_too_small_costs_requests_not_bytes() -> None:
    """A tenth of the data fits, and samples are fetched by themselves: each once, or a little more."""
    result = [simulate(SPARSE.but(loader={"fetch_bytes": room})) for room in ("300MB", "20MB", "3MB")]
    assert SPARSE.bytes <= result[0].first.bytes < 1.02 * SPARSE.bytes
    assert [item.first.bytes / SPARSE.bytes < 1.1 for item in result] == [True] * 3
    assert result[1].first.requests > 1500
    assert result[0].first.requests < 100
    assert result[1].first.seconds <= result[2].first.seconds


def test_orders_are_those_of_a_loader() -> None:
    plan = small(cluster={"ranks": 3})
    result = Orders(plan)
    samples = np.concatenate([np.concatenate(list(result.shard(1, rank))) for rank in range(3)])
    assert sorted(samples.tolist()) == list(range(3000))


# -- the command -------------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--example"]) == 0
    (tmp_path / "plan.yaml").write_text(capsys.readouterr().out)
    changes = ("samples=4000", "files=4", "cluster.ranks=2", "sample_bytes=10kB", "cache=0")
    options = [part for change in changes for part in ("--set", change)]
    figure = ["--figure", str(tmp_path / "run.png")] if importlib.util.find_spec("matplotlib") else []
    assert main(["simulate", str(tmp_path / "plan.yaml"), *options, *figure, "--json"]) == 0
    assert not figure or (tmp_path / "run.png").stat().st_size > 10_000
    answer = json.loads(capsys.readouterr().out)
    assert answer["plan"]["data"]["samples"] == 4000
    assert answer["first"]["samples_per_second"] > 0
    assert main(["simulate", str(tmp_path / "plan.yaml"), *options]) == 0
    out = capsys.readouterr().out
    assert "limited by" in out
    assert "sampled: nothing" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "which plan"),
        (["none.yaml"], "no such plan"),
        (["plan.txt"], "a plan ends in"),
        (["--set", "ranks"], "not NAME=VALUE"),
        (["--set", "rnks=5"], "did you mean ranks"),
        (["--set", "bandwidth=5"], "which bandwidth"),
    ],
)
def test_wrong_use_is_said(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", *arguments]) == 2
    assert message in capsys.readouterr().err
