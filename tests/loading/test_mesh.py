"""Loaders in a mesh: which ranks get the same samples, slices of sequences, other meshes after a resume."""

from __future__ import annotations

import functools
import itertools
import json
import math
import pickle
import sys
import types
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import mesh_reference as reference
import mesh_script
import processes
from batchplant.data.mix import Mix
from batchplant.errors import OptionError
from batchplant.order.mesh import MeshRank
from loaders import Memory, ids_of, numbers

SAMPLES = 61
AXES = ("pp", "dp", "cp", "tp")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("mesh") / "plain.npz", SAMPLES)


def meshes() -> st.SearchStrategy[dict[str, int]]:
    """Sizes of axes in any order, of 16 ranks at most."""
    sizes = [drawn for drawn in itertools.product([1, 2, 3, 4, 8], repeat=4) if math.prod(drawn) <= 16]
    return st.builds(
        lambda names, drawn: dict(zip(names, drawn, strict=True)),
        st.permutations(AXES), st.sampled_from(sizes),
    )  # fmt: skip


# -- ranks -------------------------------------------------------------------------------------------------


@given(meshes())
def test_ranks_of_batch_axes_get_different_samples_and_others_the_same(axes):
    actual = [bp.Mesh(axes, rank).resolve() for rank in range(math.prod(axes.values()))]
    assert actual == [MeshRank(place["dp"], axes["dp"]) for place in reference.coordinates(axes)]


@given(meshes(), st.permutations(["pp", "dp"]), st.booleans())
def test_several_axes_of_the_batch_count_in_the_order_that_is_given(axes, batch_axes, balanced):
    mesh = bp.Mesh(axes, None, batch_axes, "cp", balanced)
    for rank, place in enumerate(reference.coordinates(axes)):
        result = bp.Mesh(axes, rank, batch_axes, "cp", balanced).resolve()
        outer, inner = batch_axes
        assert result[:2] == (place[outer] * axes[inner] + place[inner], axes["dp"] * axes["pp"])
        slices, number = axes["cp"], place["cp"]
        expected = (
            ((number, 2 * slices - 1 - number), 2 * slices)
            if balanced and slices > 1
            else ((number,), slices)
        )
        assert result[2:] == expected
    assert (mesh.rank, mesh.size) == (None, math.prod(axes.values()))


def are_equal_parts(parts: list[frozenset[int]]) -> bool:
    """Whether sets are of one size, and two of them the same or without a common number."""
    return len({len(part) for part in parts}) == 1 and all(a == b or not a & b for a in parts for b in parts)


@given(meshes(), st.sampled_from([1, 2, 3, 4]))
def test_processes_with_several_devices_share_what_their_devices_get(axes, devices):
    alone = [bp.Mesh(axes, rank, None, "cp").resolve() for rank in range(math.prod(axes.values()))]
    owners = [rank // devices for rank in range(len(alone))]
    parts = [alone[first : first + devices] for first in range(0, len(alone), devices)]
    batches = [frozenset(item.rank for item in part) for part in parts]
    slices = [frozenset(item.chunks[0] for item in part) for part in parts]
    pairs = [{(item.rank, item.chunks) for item in part} for part in parts]
    is_even = all(map(are_equal_parts, (batches, slices))) and all(
        len(pair) == len(batch) * len(cut) for pair, batch, cut in zip(pairs, batches, slices, strict=True)
    )
    groups = sorted(set(batches), key=min)
    for owner, (batch, cut) in enumerate(zip(batches, slices, strict=True)):
        mesh = {"axes": axes, "rank": owner, "sequence_axis": "cp", "processes": owners}
        if is_even:
            expected = MeshRank(groups.index(batch), len(groups), tuple(sorted(cut)), axes["cp"])
            assert bp.Mesh(**mesh).resolve() == expected
    if not is_even:
        with pytest.raises(OptionError, match="the same number of devices along every axis"):
            list(map(functools.partial(bp.Mesh, axes, sequence_axis="cp", processes=owners), set(owners)))


def test_a_device_for_each_process_is_as_no_processes():
    axes = {"data": 3, "model": 2, "sequence": 2}
    for rank in range(12):
        plain_mesh = bp.Mesh(axes, rank, sequence_axis="sequence", balanced=True)
        assert (
            bp.Mesh(axes, rank, ("data",), "sequence", True, (), range(12)).resolve() == plain_mesh.resolve()
        )


def test_a_loader_gives_groups_of_ranks_their_samples(plain):
    axes = {"dp": 3, "tp": 2}
    result = [
        ids_of(bp.Loader(plain, 4, order="random", mesh=axes, rank=rank, ids=True)) for rank in range(6)
    ]
    assert result[::2] == result[1::2]
    assert sorted(itertools.chain(*result[::2])) == list(range(SAMPLES))
    alone = [
        ids_of(bp.Loader(plain, 4, order="random", rank=rank, world_size=3, ids=True)) for rank in range(3)
    ]
    assert result[::2] == alone


def test_loader_says_where_in_the_mesh_it_is(plain):
    loader = bp.Loader(plain, 4, mesh=bp.Mesh({"dp": 3, "tp": 2}, 3))
    assert (loader.rank, loader.world_size) == (1, 3)
    assert "rank 1 of 3, mesh dp 3 × tp 2" in repr(loader)
    assert loader.stats()["mesh"] == {"axes": {"dp": 3, "tp": 2}, "rank": 1, "world_size": 3}
    copy = pickle.loads(pickle.dumps(loader))
    assert (copy.rank, copy.world_size) == (1, 3)
    assert "mesh" not in bp.Loader(plain, 4).stats()


def test_ranks_of_a_dict_come_from_the_launcher(plain, monkeypatch):
    loader = bp.Loader(plain, 4, mesh={"dp": 3, "tp": 2})
    with pytest.raises(OptionError, match="mesh dp 3 × tp 2 has 6 ranks, and there are 1 processes"):
        next(iter(loader))
    monkeypatch.setenv("WORLD_SIZE", "6")
    monkeypatch.setenv("RANK", "5")
    assert (loader.rank, loader.world_size) == (2, 3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_axes": ("dp",)}, "give mesh="),
        ({"sequence_axis": "cp"}, "give mesh="),
        ({"mesh": {"dp": 2}, "rank": 0, "world_size": 2}, "leave out world_size"),
        ({"mesh": {"dp": 2}, "rank": 2}, "rank must be from 0 to 1, not 2"),
        ({"mesh": {"dp": 0}, "rank": 0}, "the mesh axis dp must be at least 1"),
        ({"mesh": {"dp": 2, "ep": 2}}, r"give batch_axes=\('dp',\) or batch_axes=\('dp', 'ep'\)"),
        ({"mesh": {"dp": 2, "tp": 2}, "batch_axes": ("dp", "fsdp")}, "no axis 'fsdp'.*it has dp, tp"),
        ({"mesh": {"dp": 2, "tp": 2}, "batch_axes": "dp"}, "takes several names"),
        ({"mesh": {"dp": 2, "tp": 2}, "batch_axes": ("dp", "dp")}, "a name twice: dp, dp"),
        ({"mesh": {"dp": 2, "context": 2}, "sequence_axis": "contxt"}, "did you mean context"),
        ({"mesh": {"dp": 2}, "batch_axes": ("dp",), "sequence_axis": "dp"}, "slices of a sequence, or"),
        ({"mesh": bp.Mesh({"dp": 2}, 0), "batch_axes": ("dp",)}, "a Mesh has its axes itself"),
        ({"mesh": 3}, "mesh takes a torch DeviceMesh, .* not int"),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(plain, options, message):
    with pytest.raises(OptionError, match=message):
        bp.Loader(plain, 4, **options)


def test_arguments_that_are_nearly_right_have_a_hint(plain):
    with pytest.raises(TypeError, match=r"'batch_axis' .did you mean batch_axes"):
        bp.Loader(plain, 4, mesh={"dp": 2}, rank=0, batch_axis=("dp",))


def test_a_mesh_checks_its_arguments():
    with pytest.raises(OptionError, match="need sequence_axis"):
        bp.Mesh({"dp": 2}, balanced=True)
    with pytest.raises(OptionError, match="a number for each of 4 ranks"):
        bp.Mesh({"dp": 4}, 0, processes=[0, 1])
    with pytest.raises(OptionError, match="no device of the mesh belongs to the process 2"):
        bp.Mesh({"dp": 4}, 2, processes=[0, 0, 1, 1])
    with pytest.raises(OptionError, match="the same number of devices along every axis"):
        bp.Mesh({"dp": 4}, 0, processes=[0, 0, 0, 1])
    with pytest.raises(OptionError, match="needs rank"):
        bp.Mesh({"dp": 4}, processes=[0, 0, 1, 1]).resolve()


# -- meshes of frameworks ----------------------------------------------------------------------------------


def jax_mesh(shape: dict[str, int], process: int, devices_each: int) -> Any:
    """What a jax.sharding.Mesh says of itself in a process."""
    devices = np.array(
        [
            types.SimpleNamespace(id=n, process_index=n // devices_each)
            for n in range(math.prod(shape.values()))
        ]
    )
    return types.SimpleNamespace(
        axis_names=tuple(shape),
        devices=devices.reshape(tuple(shape.values())),
        local_devices=[device for device in devices if device.process_index == process],
    )


def megatron(order: dict[str, int], rank: int, *, initialized: bool = True) -> Any:
    """What megatron.core.parallel_state says of itself on a rank."""
    place = reference.coordinates(order)[rank]
    words = {"dp": "data", "tp": "tensor_model", "pp": "pipeline_model", "cp": "context"}
    state = types.ModuleType("megatron.core.parallel_state")
    state.model_parallel_is_initialized = lambda: initialized
    for axis, word in words.items():
        setattr(state, f"get_{word}_parallel_rank", lambda axis=axis: place[axis])
        setattr(state, f"get_{word}_parallel_world_size", lambda axis=axis: order[axis])
    return state


def test_meshes_of_jax(plain):
    shape = {"data": 4, "model": 4}
    # Hosts of eight devices, which are two rows of the mesh.
    result = [bp.Loader(plain, 4, mesh=jax_mesh(shape, process, 8)) for process in range(2)]
    assert [(loader.rank, loader.world_size) for loader in result] == [(0, 2), (1, 2)]
    # Hosts of two devices: two hosts are one row.
    result = [bp.Loader(plain, 4, mesh=jax_mesh(shape, process, 2)) for process in range(8)]
    assert [(loader.rank, loader.world_size) for loader in result] == [(n // 2, 4) for n in range(8)]
    with pytest.raises(OptionError, match="no device of the mesh belongs to this process"):
        bp.Loader(plain, 4, mesh=jax_mesh(shape, 2, 8))


def test_parallel_state_of_megatron(plain):
    order = {"pp": 2, "dp": 3, "cp": 1, "tp": 2}
    result = [bp.Loader(plain, 4, mesh=megatron(order, rank)) for rank in range(12)]
    assert [(loader.rank, loader.world_size) for loader in result] == [
        (place["dp"], 3) for place in reference.coordinates(order)
    ]
    with pytest.raises(OptionError, match=r"call parallel_state\.initialize_model_parallel before"):
        bp.Loader(plain, 4, mesh=megatron(order, 0, initialized=False))


# -- meshes that were not given ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "message"),
    [
        ({"pp": 1, "dp": 4, "cp": 1, "tp": 1}, None),
        ({"pp": 1, "dp": 2, "cp": 1, "tp": 2}, "has pp 1 × dp 2 × cp 1 × tp 2, .*mesh=…., or the rank"),
        ({"pp": 2, "dp": 2, "cp": 1, "tp": 1}, "has pp 2 × dp 2"),
        ({"pp": 1, "dp": 2, "cp": 2, "tp": 1}, "cp 2"),
    ],
)  # fmt: skip
def test_groups_of_megatron_that_nobody_mentioned_are_refused(plain, monkeypatch, order, message):
    loader = bp.Loader(plain, 4)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", megatron(order, 0, initialized=False))
    bp.Loader(plain, 4)
    state = megatron(order, 0)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    if message is None:
        assert ids_of(loader, "value") == list(range(SAMPLES))
        return
    for refused in (lambda: bp.Loader(plain, 4), lambda: next(iter(loader))):
        with pytest.raises(OptionError, match=message):
            refused()
    assert bp.Loader(plain, 4, mesh=state).world_size == 2
    assert bp.Loader(plain, 4, rank=0, world_size=1).world_size == 1


def joined(parts: list[list[int]]) -> list[int]:
    return sorted(itertools.chain(*parts))


def test_processes_of_a_group_get_what_their_place_in_its_mesh_says(plain, tmp_path, monkeypatch):
    """All that needs four real processes, which take seconds to start."""
    pytest.importorskip("torch")
    command = [sys.executable, mesh_script.__file__, "4", str(tmp_path / "store"), plain]
    done = processes.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)

    everything = list(range(SAMPLES))
    assert joined([report["no mesh"] for report in reports]) == everything
    assert joined([report["all differ"] for report in reports]) == everything
    for report in reports:
        assert report["mesh"] == report["part"] == report["sizes"]
        assert sorted(report["explicit"]) == everything
        assert report["turned"][0] == report["turned"][1]
        assert report["workers"] == report["workers alone"]
    for name, groups in (("mesh", [[0, 1], [2, 3]]), ("other order", [[0, 2], [1, 3]])):
        assert all(reports[first][name] == reports[second][name] for first, second in groups)
        assert joined([reports[first][name] for first, _ in groups]) == everything

    # A DeviceMesh that the loader was not told of is refused.
    for report in reports:
        assert (report["only dp"], report["unnamed"], report["explained"]) == (None, None, None)
        assert "DeviceMesh of experts 2 × others 2" in report["not explained"]
        assert "DeviceMesh of batch 2 × cp 2" in report["folded"]
        for when in ("refused", "refused later", "refused in workers"):
            assert "there is a DeviceMesh of dp 2 × tp 2, and not all of its ranks" in report[when]
            assert "give Loader(…, mesh=…), or the rank and world_size" in report[when]

    # Slices of rows, and the rows that follow on another mesh.
    rows = [
        [*reports[first]["slices"][step][0], *reports[first + 1]["slices"][step][0]]
        for step in range(3) for first in (0, 2)
    ]  # fmt: skip
    for step in range(len(reports[0]["rows after"])):
        rows += [row for report in reports for row in report["rows after"][step]]
    assert rows == [row for batch in reports[0]["all rows"] for row in batch]

    # Training and evaluation; three processes go on, of which only the environment says which they are.
    trained = [report["trained"] for report in reports]
    before, after = mesh_script.check_training(trained, SAMPLES), []
    order = bp.order.Balanced("random", sizes=mesh_script.sizes_of(SAMPLES))
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        loader = bp.Loader(plain, 4, ids=True, workers=1, order=order)
        loader.load_state_dict(trained[0]["state"])
        after.append([batch["ids"].tolist() for batch in loader])
    assert len({len(batches) for batches in after}) == 1
    assert joined([before, *itertools.chain(*after)]) == everything


# -- epochs on one mesh after another, slices of sequences --------------------------------------------------


def same_batches(batches: list[dict[str, Any]]) -> bool:
    return all(
        batch.keys() == batches[0].keys()
        and all(np.array_equal(batch[name], batches[0][name]) for name in batch)
        for batch in batches[1:]
    )


class Stage(NamedTuple):
    """A part of a run: its mesh, and how many steps it trains before it is stopped; None: to the end."""

    axes: dict[str, int]
    batch_axes: tuple[str, ...]
    balanced: bool
    batch_size: int
    steps: int | None


def stages() -> st.SearchStrategy[list[Stage]]:
    kind = st.builds(
        Stage, meshes(), st.sampled_from([("dp",), ("dp", "pp"), ("pp", "dp")]), st.booleans(),
        st.integers(1, 5), st.integers(0, 3),
    )  # fmt: skip
    return st.lists(kind, min_size=1, max_size=3).map(lambda run: [*run[:-1], run[-1]._replace(steps=None)])


def run(stage: Stage, state: Any, **options: Any) -> tuple[list[list[list[dict[str, Any]]]], Any]:
    """The batches of all groups at every step, the slices of each one after another, and the state then.

    Ranks of a group that have the same slice have the same batches.
    """
    ranks = []
    for rank in range(math.prod(stage.axes.values())):
        mesh = bp.Mesh(stage.axes, rank, stage.batch_axes, "cp", stage.balanced, options.get("fields", ()))
        others = {name: value for name, value in options.items() if name not in ("fields", "source")}
        loader = bp.Loader(options["source"], stage.batch_size, mesh=mesh, workers=1, **others)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        ranks.append((loader, list(itertools.islice(loader, stage.steps))))
    places = reference.coordinates(stage.axes)
    groups: dict[int, dict[int, list[Any]]] = {}
    for rank, (_, batches) in enumerate(ranks):
        group = groups.setdefault(reference.group_of(stage.axes, rank, stage.batch_axes), {})
        group.setdefault(places[rank]["cp"], []).append(batches)
    steps = []
    for number in range(len(ranks[0][1])):
        assert all(
            same_batches([peer[number] for peer in peers])
            for group in groups.values()
            for peers in group.values()
        )
        steps.append(
            [[group[part][0][number] for part in sorted(group)] for _, group in sorted(groups.items())]
        )
    # Ranks of a group are at the same place, too.
    states = [loader.state_dict() for loader, _ in ranks]
    assert all(other == states[0] for other in states)
    return steps, states[0]


@given(
    stages(),
    st.lists(st.integers(0, 11), min_size=1, max_size=40),
    st.booleans(),
    st.integers(1, 3),
    st.data(),
)
def test_slices_of_packed_rows_on_one_mesh_after_another(run_stages, sizes, across, per_chunk, data):
    documents = [[100 * number + place for place in range(size)] for number, size in enumerate(sizes)]
    length = per_chunk * math.lcm(*(2 * stage.axes["cp"] for stage in run_stages))
    order = data.draw(st.permutations(range(len(documents))))
    source = Memory(
        {"tokens": bp.Tensor("int64", (None,))},
        ({"tokens": np.array(document, np.int64)} for document in documents),
    )
    pack = bp.Pack(length, strategy="concat_split", labels="shifted", across=across)
    rows = reference.packed_rows([documents[number] for number in order], length, across=across)
    if not sum(sizes):
        rows = []
    state, row = None, 0
    for stage in run_stages:
        steps, state = run(stage, state, source=source, order=np.array(order), pack=pack)
        slices = stage.axes["cp"]
        for group in itertools.chain(*steps):
            count = len(group[0]["tokens"])
            for number, batch in enumerate(group):
                if not count:
                    continue
                places = reference.places(length, number, slices, balanced=stage.balanced)
                expected = reference.batch_of(rows[row : row + count], places)
                for name, value in expected.items():
                    assert np.array_equal(batch[name], value), name
                assert np.array_equal(batch["loss_mask"], expected["labels"] != reference.IGNORED_LABEL)
            row += count
        if stage.steps is not None and row == len(rows):
            return
    assert row == len(rows)


@given(
    stages(),
    st.integers(1, 70),
    st.sampled_from(["random", "mixture", "windowed", "by length"]),
    st.integers(0, 9),
)
def test_samples_come_once_on_one_mesh_after_another(run_stages, count, kind, seed):
    length = 2 * math.lcm(*(2 * stage.axes["cp"] for stage in run_stages))
    schema = {"frames": bp.Tensor("int64", (length, 2)), "size": bp.Int()}
    source: Any = Memory(
        schema,
        (
            {"frames": np.arange(2 * length).reshape(length, 2) + 1000 * n, "size": n % 7}
            for n in range(count)
        ),
    )
    order: Any = {"windowed": "windowed", "by length": bp.order.ByLength("size", "random")}.get(
        kind, "random"
    )
    if kind == "mixture":
        source = Mix(
            [(source, 2), (Memory(schema, [{"frames": np.zeros((length, 2), np.int64), "size": 1}] * 3), 1)]
        )
    options = {"source": source, "order": order, "seed": seed, "ids": True, "fields": ("frames",)}
    if kind == "by length":
        # Batches by length are of one size.
        run_stages = [stage._replace(batch_size=run_stages[0].batch_size) for stage in run_stages]
    batch_size = run_stages[0].batch_size
    alone = list(bp.Loader(source, batch_size, order=order, seed=seed, ids=True, workers=1))
    ids = np.concatenate([batch["ids"] for batch in alone])
    frames = np.concatenate([batch["frames"] for batch in alone])
    state, position = None, 0
    for stage in run_stages:
        steps, state = run(stage, state, **options)
        for group in itertools.chain(*steps):
            end = position + len(group[0]["ids"])
            for number, batch in enumerate(group):
                assert np.array_equal(batch["ids"], ids[position:end])
                places = reference.places(length, number, stage.axes["cp"], balanced=stage.balanced)
                assert np.array_equal(batch["frames"], frames[position:end][:, places])
                assert np.array_equal(
                    batch["size"], np.concatenate([row["size"] for row in alone])[position:end]
                )
            position = end
        if stage.steps is not None and position == len(ids):
            return
    assert position == len(ids)


@given(
    stages(), st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.sampled_from(["best_fit", "first_fit"]), st.sampled_from(["random", "sequential", "mixture"]),
    st.integers(0, 9),
)  # fmt: skip
def test_rows_come_once_on_one_mesh_after_another(run_stages, sizes, strategy, kind, seed):
    length = math.lcm(*(2 * stage.axes["cp"] for stage in run_stages))
    schema = {"tokens": bp.Tensor("int64", (None,))}
    source: Any = Memory(schema, ({"tokens": np.full(size, number)} for number, size in enumerate(sizes)))
    if kind == "mixture":
        source = Mix([(source, 3), (Memory(schema, [{"tokens": np.full(4, -1)}] * 3), 1)])
    options = {"order": "random" if kind == "mixture" else kind, "seed": seed}
    # Several windows, so that states name one.
    options["pack"] = bp.Pack(length, strategy=strategy, window=8, labels="shifted")
    alone = list(bp.Loader(source, 3, workers=1, **options))
    rows = {
        name: np.concatenate([np.zeros((0, length)), *(batch[name] for batch in alone)])
        for name in ("tokens", "labels", "position_ids", "document_ids", "loss_mask")
    }
    state, row = None, 0
    for stage in run_stages:
        steps, state = run(stage, state, source=source, **options)
        for group in itertools.chain(*steps):
            end = row + len(group[0]["tokens"])
            for number, batch in enumerate(group):
                places = reference.places(length, number, stage.axes["cp"], balanced=stage.balanced)
                for name, values in rows.items():
                    assert np.array_equal(batch[name], values[row:end][:, places]), name
            row = end
        if stage.steps is not None and row == len(rows["tokens"]):
            return
    assert row == len(rows["tokens"])


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=20), st.sampled_from([1, 2, 4]), st.integers(1, 2),
    st.integers(1, 3), st.sampled_from(["best_fit", "concat_split", "none"]),
)  # fmt: skip
def test_slices_of_documents_are_a_chunk_of_the_head_and_of_the_tail_of_each(
    sizes, slices, times, blocks, strategy
):
    multiple = 2 * slices * times
    source = Memory(
        {"tokens": bp.Tensor("int64", (None,))}, ({"tokens": np.arange(size) + 1} for size in sizes)
    )
    pack = bp.Pack(multiple * blocks, strategy=strategy, labels="shifted", multiple_of=multiple)
    whole = list(bp.Loader(source, 3, pack=pack, workers=1))
    for rank in range(slices):
        mesh = bp.Mesh({"dp": 1, "cp": slices}, rank, sequence_axis="cp", balanced="documents")
        for batch, row in zip(bp.Loader(source, 3, pack=pack, mesh=mesh, workers=1), whole, strict=True):
            offsets = row["cu_seqlens"].tolist()
            runs = reference.places_by_document(offsets, rank, slices) if slices > 1 else None
            places = list(itertools.chain(*runs)) if runs else list(range(offsets[-1]))
            for name in ("tokens", "labels", "position_ids", "document_ids", "loss_mask"):
                assert batch[name].shape == (len(row[name]), pack.length // slices)
                assert batch[name].reshape(-1).tolist() == row[name].reshape(-1)[places].tolist()
            if runs:
                assert batch["cu_seqlens"].tolist() == [0, *itertools.accumulate(map(len, runs))]
                assert batch["max_seqlen"] == max(map(len, runs))
            assert batch["row_cu_seqlens"].tolist() == offsets


@pytest.mark.parametrize(
    ("pack", "options", "reason"),
    [
        (bp.Pack(16, labels="shifted"), {}, r"give Pack\(multiple_of=4\)"),
        (bp.Pack(24, labels="shifted", multiple_of=6), {}, r"give Pack\(multiple_of=12\)"),
        (bp.Pack(16, multiple_of=4, labels=None, outputs=["position_ids"]), {}, "add cu_seqlens to outputs"),
        (None, {"sequence_fields": ("tokens",)}, "cuts packed rows"),
        (None, {"balanced": "rows"}, "True, False or 'documents', not 'rows'"),
    ],
)
def test_documents_that_cannot_be_cut_are_refused(pack, options, reason):
    source = Memory({"tokens": bp.Tensor("int64", (None,))}, [{"tokens": np.arange(8)}])
    make = functools.partial(
        bp.Mesh, {"cp": 2}, 0, sequence_axis="cp", **{"balanced": "documents", **options}
    )
    with pytest.raises(OptionError, match=reason):
        bp.Loader(source, 1, pack=pack, mesh=make())


def test_slices_have_the_outputs_that_were_asked_for():
    source = Memory({"tokens": bp.Tensor("int64", (None,))}, [{"tokens": np.arange(8)}])
    pack = bp.Pack(8, labels=None, outputs=["cu_seqlens", "position_ids"])
    (batch,) = bp.Loader(source, 1, pack=pack, mesh={"cp": 2}, rank=1, sequence_axis="cp")
    assert {name: np.array(value).tolist() for name, value in batch.items()} == {
        "tokens": [[4, 5, 6, 7]], "position_ids": [[4, 5, 6, 7]],
        "cu_seqlens": [0, 4], "row_cu_seqlens": [0, 8],
    }  # fmt: skip


def test_slices_on_a_device():
    torch = pytest.importorskip("torch")
    source = Memory({"tokens": bp.Tensor("int64", (None,))}, [{"tokens": np.arange(8)}] * 3)
    pack = bp.Pack(8, labels="shifted")
    mesh = bp.Mesh({"cp": 2}, 0, sequence_axis="cp", balanced=True)
    (batch,) = bp.Loader(source, 4, pack=pack, mesh=mesh, device="cpu")
    assert torch.equal(batch["tokens"], torch.tensor([[0, 1, 6, 7]] * 3))
    assert torch.equal(batch["labels"], torch.tensor([[1, 2, 7, -100]] * 3))
    assert batch["cu_seqlens"].tolist() == [0, 2, 4, 6, 8, 10, 12]


def test_padded_sequences_are_cut():
    source = Memory({"tokens": bp.Tensor("int64", (None,))}, [{"tokens": np.arange(n)} for n in (3, 5)])
    mesh = bp.Mesh({"cp": 2}, 1, sequence_axis="cp", sequence_fields=("tokens", "tokens_mask"))
    steps = {"tokens": [bp.ops.Pad(multiple_of=2, mask=True)]}
    (batch,) = bp.Loader(source, 2, pipelines=steps, mesh=mesh)
    assert batch["tokens"].tolist() == [[0, 0, 0], [3, 4, 0]]
    assert batch["tokens_mask"].tolist() == [[False] * 3, [True, True, False]]
    with pytest.raises(
        OptionError, match=r"sequences of 5 cannot be cut into 2 chunks: Pad\(multiple_of=2\)"
    ):
        list(bp.Loader(source, 2, pipelines={"tokens": [bp.ops.Pad(mask=True)]}, mesh=mesh))
    with pytest.raises(OptionError, match="as Pad makes it"):
        list(bp.Loader(source, 2, mesh=mesh))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "sequence_axis cuts packed rows: give pack="),
        ({"pack": bp.Pack(8)}, "give Pack.labels='shifted'"),
        ({"pack": bp.Pack(9, labels="shifted")}, "rows of 9 tokens cannot be cut into 4 chunks, 12 can"),
        ({"pack": bp.Pack(8, labels=None), "fields": ("tokens",)}, "for loaders that do not pack"),
        ({"pack": bp.Pack(8, labels=None, outputs=["max_seqlen"])}, "add cu_seqlens to outputs"),
        ({"fields": ("token",)}, "the batch has no 'token' .did you mean tokens.*it has tokens"),
    ],
)
def test_sequences_that_cannot_be_cut_are_refused(options, message):
    source = Memory({"tokens": bp.Tensor("int64", (None,))}, [{"tokens": np.arange(8)}])
    fields = options.pop("fields", ())
    mesh = bp.Mesh({"cp": 2}, 0, sequence_axis="cp", balanced=True, sequence_fields=fields)
    with pytest.raises(OptionError, match=message):
        list(bp.Loader(source, 2, mesh=mesh, **options))


def test_place_in_the_sequence_is_in_the_statistics():
    source = Memory({"tokens": bp.Tensor("int64", (None,))}, [{"tokens": np.arange(8)}])
    mesh = bp.Mesh({"dp": 2, "cp": 2}, 1, sequence_axis="cp", balanced=True)
    loader = bp.Loader(source, 2, pack=bp.Pack(8, labels=None), mesh=mesh)
    assert loader.stats()["mesh"] == {
        "axes": {"dp": 2, "cp": 2}, "rank": 0, "world_size": 2, "chunks": [1, 2], "of": 4,
    }  # fmt: skip
    assert "chunks 1 and 2 of 4 of each sequence" in repr(loader)
