"""Loaders in a mesh: who gets the same samples, who others, and what happens where nobody said so."""

from __future__ import annotations

import functools
import itertools
import json
import math
import pickle
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import mesh_script
import processes
from batchplant.errors import OptionError
from batchplant.order.mesh import MeshRank
from loaders import ids_of, numbers

SAMPLES = 61
AXES = ("pp", "dp", "cp", "tp")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return numbers(tmp_path_factory.mktemp("mesh") / "plain.npz", SAMPLES)


def meshes(most: int = 16) -> st.SearchStrategy[dict[str, int]]:
    """Sizes of axes in any order, of ``most`` ranks in all."""
    sizes = st.lists(st.sampled_from([1, 2, 3, 4, 8]), min_size=4, max_size=4)
    return st.permutations(AXES).flatmap(
        lambda names: sizes.map(lambda drawn: dict(zip(names, drawn, strict=True))).filter(
            lambda axes: math.prod(axes.values()) <= most
        )
    )


def coordinates(axes: dict[str, int]) -> list[dict[str, int]]:
    """Of every rank."""
    places = itertools.product(*map(range, axes.values()))
    return [dict(zip(axes, place, strict=True)) for place in places]


# -- ranks -------------------------------------------------------------------------------------------------


@given(meshes())
def test_ranks_of_batch_axes_get_different_samples_and_others_the_same(axes):
    found = [bp.Mesh(axes, rank).resolve() for rank in range(math.prod(axes.values()))]
    assert found == [MeshRank(place["dp"], axes["dp"]) for place in coordinates(axes)]


@given(meshes(), st.permutations(["pp", "dp"]), st.booleans())
def test_several_axes_of_the_batch_count_in_the_order_that_is_given(axes, batch_axes, balanced):
    mesh = bp.Mesh(axes, None, batch_axes, "cp", balanced)
    for rank, place in enumerate(coordinates(axes)):
        found = bp.Mesh(axes, rank, batch_axes, "cp", balanced).resolve()
        outer, inner = batch_axes
        assert found[:2] == (place[outer] * axes[inner] + place[inner], axes["dp"] * axes["pp"])
        slices, number = axes["cp"], place["cp"]
        expected = (
            ((number, 2 * slices - 1 - number), 2 * slices)
            if balanced and slices > 1
            else ((number,), slices)
        )
        assert found[2:] == expected
    assert (mesh.rank, mesh.size) == (None, math.prod(axes.values()))


def are_equal_parts(parts: list[frozenset[int]]) -> bool:
    """Whether sets are of one size, and two of them the same or without a common number."""
    return len({len(one) for one in parts}) == 1 and all(a == b or not a & b for a in parts for b in parts)


@given(meshes(), st.sampled_from([1, 2, 3, 4]))
def test_processes_with_several_devices_share_what_their_devices_get(axes, devices):
    alone = [bp.Mesh(axes, rank, None, "cp").resolve() for rank in range(math.prod(axes.values()))]
    owners = [rank // devices for rank in range(len(alone))]
    parts = [alone[first : first + devices] for first in range(0, len(alone), devices)]
    batches = [frozenset(one.rank for one in part) for part in parts]
    slices = [frozenset(one.chunks[0] for one in part) for part in parts]
    pairs = [{(one.rank, one.chunks) for one in part} for part in parts]
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
    found = [ids_of(bp.Loader(plain, 4, order="random", mesh=axes, rank=rank, ids=True)) for rank in range(6)]
    assert found[::2] == found[1::2]
    assert sorted(itertools.chain(*found[::2])) == list(range(SAMPLES))
    alone = [
        ids_of(bp.Loader(plain, 4, order="random", rank=rank, world_size=3, ids=True)) for rank in range(3)
    ]
    assert found[::2] == alone


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
    ("options", "said"),
    [
        ({"batch_axes": ("dp",)}, "give mesh="),
        ({"sequence_axis": "cp"}, "give mesh="),
        ({"mesh": {"dp": 2}, "rank": 0, "world_size": 2}, "leave out world_size"),
        ({"mesh": {"dp": 2}, "rank": 2}, "rank must be from 0 to 1, not 2"),
        ({"mesh": {"dp": 0}, "rank": 0}, "the mesh axis dp must be from 1"),
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
def test_what_makes_no_sense_is_refused(plain, options, said):
    with pytest.raises(OptionError, match=said):
        bp.Loader(plain, 4, **options)


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
    place = coordinates(order)[rank]
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
    found = [bp.Loader(plain, 4, mesh=jax_mesh(shape, process, 8)) for process in range(2)]
    assert [(loader.rank, loader.world_size) for loader in found] == [(0, 2), (1, 2)]
    # Hosts of two devices: two hosts are one row.
    found = [bp.Loader(plain, 4, mesh=jax_mesh(shape, process, 2)) for process in range(8)]
    assert [(loader.rank, loader.world_size) for loader in found] == [(n // 2, 4) for n in range(8)]
    with pytest.raises(OptionError, match="no device of the mesh belongs to this process"):
        bp.Loader(plain, 4, mesh=jax_mesh(shape, 2, 8))


def test_parallel_state_of_megatron(plain):
    order = {"pp": 2, "dp": 3, "cp": 1, "tp": 2}
    found = [bp.Loader(plain, 4, mesh=megatron(order, rank)) for rank in range(12)]
    assert [(loader.rank, loader.world_size) for loader in found] == [
        (place["dp"], 3) for place in coordinates(order)
    ]
    with pytest.raises(OptionError, match=r"call parallel_state\.initialize_model_parallel before"):
        bp.Loader(plain, 4, mesh=megatron(order, 0, initialized=False))


# -- meshes that were not given ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "said"),
    [
        ({"pp": 1, "dp": 4, "cp": 1, "tp": 1}, None),
        ({"pp": 1, "dp": 2, "cp": 1, "tp": 2}, "has pp 1 × dp 2 × cp 1 × tp 2, .*mesh=…., or the rank"),
        ({"pp": 2, "dp": 2, "cp": 1, "tp": 1}, "has pp 2 × dp 2"),
        ({"pp": 1, "dp": 2, "cp": 2, "tp": 1}, "cp 2"),
    ],
)  # fmt: skip
def test_groups_of_megatron_that_nobody_mentioned_are_refused(plain, monkeypatch, order, said):
    loader = bp.Loader(plain, 4)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", megatron(order, 0, initialized=False))
    bp.Loader(plain, 4)
    state = megatron(order, 0)
    monkeypatch.setitem(sys.modules, "megatron.core.parallel_state", state)
    if said is None:
        assert ids_of(loader, "value") == list(range(SAMPLES))
        return
    for refused in (lambda: bp.Loader(plain, 4), lambda: next(iter(loader))):
        with pytest.raises(OptionError, match=said):
            refused()
    assert bp.Loader(plain, 4, mesh=state).world_size == 2
    assert bp.Loader(plain, 4, rank=0, world_size=1).world_size == 1


@pytest.fixture(scope="module")
def gloo(plain, tmp_path_factory):
    """What four real processes report of their loaders."""
    pytest.importorskip("torch")
    folder: Path = tmp_path_factory.mktemp("gloo")
    commands = [
        [sys.executable, mesh_script.__file__, str(rank), "4", str(folder / "store"), plain]
        for rank in range(4)
    ]
    done = processes.run_together(*commands, stdout=-1, stderr=-1, text=True)
    for one in done:
        assert one.returncode == 0, one.stderr
    return [json.loads(one.stdout) for one in done]


def joined(parts: list[list[int]]) -> list[int]:
    return sorted(itertools.chain(*parts))


def test_device_meshes_say_which_processes_get_the_same_samples(gloo):
    everything = list(range(SAMPLES))
    assert joined([report["no mesh"] for report in gloo]) == everything
    assert joined([report["all differ"] for report in gloo]) == everything
    for report in gloo:
        assert report["mesh"] == report["part"] == report["sizes"]
        assert sorted(report["explicit"]) == everything
        assert report["turned"][0] == report["turned"][1]
        assert report["workers"] == report["workers alone"]
    for name, groups in (("mesh", [[0, 1], [2, 3]]), ("other order", [[0, 2], [1, 3]])):
        assert all(gloo[first][name] == gloo[second][name] for first, second in groups)
        assert joined([gloo[first][name] for first, _ in groups]) == everything


def test_a_device_mesh_that_nobody_mentioned_is_refused(gloo):
    for report in gloo:
        assert (report["only dp"], report["unnamed"]) == (None, None)
        for when in ("refused", "refused later", "refused in workers"):
            assert "there is a DeviceMesh of dp 2 × tp 2, and not all of its ranks" in report[when]
            assert "give Loader(…, mesh=…), or the rank and world_size" in report[when]
