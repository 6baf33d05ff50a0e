"""Weights of a mixture that change while it is loaded: exact, resumed, on any number of ranks."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
from batchplant.errors import OptionError

A, B = {"x": np.arange(40)}, {"x": np.arange(100, 140)}


def loaders(world: int, size: int, by: str = "samples", **options: Any) -> list[bp.Loader]:
    options = {"order": "random", "workers": 1, "seed": 2, **options}
    return [
        bp.Loader(
            bp.Mix({"a": (A, 0.5), "b": (B, 0.5)}, stop=96, schedule=[(60, (0.9, 0.1))], by=by),
            size, rank=rank, world_size=world, **options,
        )
        for rank in range(world)
    ]  # fmt: skip


def take(epochs: list[Any], steps: int) -> list[int]:
    return [int(x) for _ in range(steps) for epoch in epochs for x in next(epoch)["x"]]


def rest(epochs: list[Any]) -> list[int]:
    return [int(x) for batches in zip(*epochs, strict=True) for batch in batches for x in batch["x"]]


@given(st.integers(0, 5), st.integers(0, 3), st.integers(1, 3), st.integers(1, 4), st.booleans())
def test_a_change_holds_from_its_step_on_for_any_world(before, ahead, world, other_world, by_name):
    plain = rest([iter(loader) for loader in loaders(1, 96)])
    weights: Any = {"b": 1} if by_name else (0, 1)
    ranks = loaders(world, 4)
    epochs = [iter(loader) for loader in ranks]
    values = take(epochs, before)
    for loader in ranks:
        # The mixture passes it on.
        loader.reader.set_weights(weights, at_step=before + ahead)
    values += take(epochs, ahead + 1)
    state = json.loads(json.dumps(ranks[0].state_dict()))
    again = loaders(other_world, 3)
    for loader in again:
        loader.load_state_dict(state)
        # A program that begins anew says it again.
        loader.set_weights(weights, at_step=before + ahead)
    values_again = values + rest([iter(loader) for loader in again])
    values += rest(epochs)
    assert values == values_again
    change = (before + ahead) * 4 * world
    assert values[:change] == plain[:change]
    assert min(values[change:]) >= 100
    # The epochs that follow have the same weights, and no schedule.
    following = [rest([iter(loader) for loader in group]) for group in (ranks, again)]
    assert following[0] == following[1]
    assert min(following[0]) >= 100


def test_packed_rows_and_copies_go_on_with_a_change():
    rng = np.random.default_rng(0)
    sources = {
        name: ({"tokens": [np.full(size, number, np.int32) for size in rng.integers(1, 9, 60)]}, 0.5)
        for number, name in ((1, "a"), (2, "b"))
    }

    def make(**options: Any) -> bp.Loader:
        pack = bp.Pack(16, eos=None, window=10)
        return bp.Loader(bp.Mix(sources, stop=100), 2, pack=pack, order="random", **options)

    loader = make()
    epoch = iter(loader)
    first = [next(epoch)["tokens"] for _ in range(2)]
    loader.set_weights([1, 0])
    plain = [batch["tokens"] for batch in make()]
    assert np.array_equal(first, plain[:2])
    copy, again = pickle.loads(pickle.dumps(loader)), make()
    again.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    changed = [batch["tokens"] for batch in epoch]
    for other in (copy, again):
        assert np.array_equal(np.concatenate([batch["tokens"] for batch in other]), np.concatenate(changed))
    # The window that was begun goes on as it was.
    assert not (np.concatenate(changed)[-4:] == 2).any()


def test_what_cannot_change_is_an_error():
    (loader,) = loaders(1, 4)
    epoch = iter(loader)
    take([epoch], 3)
    for weights, step, message in (
        ({"c": 1}, None, "no source 'c'"), ([1], None, "2 sources"), ([0, 0], None, "not all of them 0"),
        ([-1, 1], None, "not below 0"), ([1, 1], 2, "past"), ([1, 1], 25, "behind the end"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            loader.set_weights(weights, at_step=step)
    with pytest.raises(OptionError, match="of a Mix"):
        bp.Loader(A, 4).set_weights([1])
    with pytest.raises(OptionError, match="no Loader reads"):
        bp.Mix([A, B]).set_weights([1, 1])
    mix = bp.Mix([A, B])
    pair = [bp.Loader(mix, 4), bp.Loader(mix, 4)]
    with pytest.raises(OptionError, match="2 Loaders read"):
        mix.set_weights([1, 1])
    assert len(pair) == 2
    state = loader.state_dict()
    # A mixture whose weights were changed serves other loaders as before.
    loader.set_weights([0, 1])
    assert bp.Loader(loader.reader, 4, order="random", seed=2).state_dict()["samples"] == state["samples"]
    with pytest.raises(OptionError, match="this is none"):
        bp.Loader({"x": np.zeros(state["samples"])}, 4).load_state_dict(
            {**state, "weights": [[0, 4, [1, 1]]]}
        )
