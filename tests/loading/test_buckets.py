"""ByLength: batches of samples that are about as long, exact on any number of ranks."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant
from batchplant import Mix, Pack, order
from batchplant.errors import OptionError
from batchplant.ops import Pad

COUNT = 103
LENGTHS = np.random.default_rng(2).lognormal(3, 1, COUNT).astype(np.int64).clip(1, 400)


def documents(first: int = 0) -> batchplant.Reader:
    tokens = [np.full(length, first + number) for number, length in enumerate(LENGTHS)]
    return batchplant.open({"tokens": tokens, "number": np.arange(first, first + COUNT)})


def loaded(
    size: int = 8,
    source: batchplant.Reader | None = None,
    *,
    lengths: Any = "tokens",
    base: str = "random",
    window: int = 5,
    run: int = 1,
    first_size: int | None = None,
    **options: Any,
) -> batchplant.Loader:
    by_length = order.ByLength(lengths, base, window=window, run=run, batch_size=first_size)
    options = {"order": by_length, "pipelines": {"tokens": [Pad(mask=True)]}, "seed": 5, **options}
    return batchplant.Loader(documents() if source is None else source, size, **options)


def numbers(loader: batchplant.Loader) -> list[list[int]]:
    return [batch["number"].tolist() for batch in loader]


def joined(parts: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(parts))


def filled(loader: batchplant.Loader) -> float:
    masks = [batch["tokens_mask"] for batch in loader]
    return sum(int(mask.sum()) for mask in masks) / sum(mask.size for mask in masks)


def test_batches_are_alike_and_have_every_sample_once() -> None:
    actual = numbers(loaded())
    assert sorted(joined(actual)) == list(range(COUNT))
    assert actual == numbers(loaded())
    assert actual != numbers(loaded(seed=6))
    again = loaded()
    assert numbers(again) == actual
    assert numbers(again) != actual
    plain = batchplant.Loader(documents(), 8, order="random", pipelines={"tokens": [Pad(mask=True)]})
    assert filled(loaded(window=100)) > 0.75 > 0.4 > filled(plain)
    # Batches do not come by length: one epoch begins with no longer ones than another ends.
    means = [LENGTHS[number].mean() for number in numbers(loaded(window=100))]
    assert means != sorted(means)


@given(st.integers(0, 90), st.integers(1, 9), st.integers(1, 7), st.integers(1, 5), st.booleans())
def test_every_sample_has_one_place_which_is_computed(
    n: int, size: int, window: int, run: int, shuffle: bool
) -> None:
    lengths = np.arange(n) * 7919 % 31
    options: dict[str, Any] = {
        "bucket_size": size,
        "bucket_window": window,
        "bucket_run": run,
        "shuffle": shuffle,
    }

    def made() -> order.Order:
        return order.bucketed(
            order.random(n, seed=3, epoch=1), lambda at: lengths[at], seed=3, epoch=1, **options
        )

    whole = made()[:]
    assert sorted(whole.tolist()) == list(range(n))
    for position in range(0, n, 7):
        assert made()[position] == whole[position]
    # Those of a batch were neighbours when they were sorted.
    for start in range(0, n - size + 1, size):
        assert (np.diff(lengths[whole[start : start + size]]) >= 0).all()


def test_each_window_has_the_samples_of_the_order() -> None:
    plain = order.random(COUNT, seed=5, epoch=0)[:]
    result = np.array(joined(numbers(loaded())))
    for start in range(0, COUNT, 40):
        np.testing.assert_array_equal(np.sort(result[start : start + 40]), np.sort(plain[start : start + 40]))


def test_a_run_goes_on_at_every_batch_on_other_worlds() -> None:
    whole = joined(numbers(loaded()))
    steps = -(-COUNT // (8 * 2))
    for step in range(steps):
        for then, size in ((1, 8), (3, 8), (2, 3)):
            two = [loaded(rank=rank, world_size=2) for rank in range(2)]
            epochs = [iter(item) for item in two]
            given = [next(epoch)["number"].tolist() for _ in range(step) for epoch in epochs]
            state = json.loads(json.dumps(two[0].state_dict()))
            assert state == two[1].state_dict()
            rest = [loaded(size, rank=rank, world_size=then, first_size=8) for rank in range(then)]
            for item in rest:
                item.load_state_dict(state)
            for turn in zip(*map(numbers, rest), strict=True):
                given += list(turn)
            assert joined(given) == whole
            for value in (*two, *rest):
                value.close()


def test_a_state_of_other_buckets_is_refused() -> None:
    loader = loaded()
    next(iter(loader))
    state = loader.state_dict()
    for other, text in (
        ({"size": 4}, "bucket_size 8, and this loader has 4"),
        ({"window": 7}, "bucket_window 5, and this loader has 7"),
        ({"lengths": LENGTHS}, "bucket_by_length tokens, and this loader has of 103 values"),
    ):
        with pytest.raises(OptionError, match=text):
            loaded(**other).load_state_dict(state)
    plain = batchplant.Loader(documents(), 8, order="random", seed=5)
    with pytest.raises(OptionError, match="bucket_by_length tokens, and this loader has None"):
        plain.load_state_dict({**state, "order_options": {}})


def test_lengths_are_a_field_numbers_or_a_function() -> None:
    actual = numbers(loaded())
    assert numbers(loaded(lengths=None)) == actual
    assert numbers(loaded(lengths=LENGTHS)) == actual
    assert numbers(loaded(lengths=lambda samples: LENGTHS[samples])) == actual
    some = np.flatnonzero(LENGTHS > 15)
    assert filled(loaded(indices=some, window=100)) > 0.7
    assert sorted(joined(numbers(loaded(indices=some)))) == some.tolist()


def test_alike_batches_follow_each_other_for_as_many_ranks() -> None:
    ranks = [numbers(loaded(rank=rank, world_size=4, window=100, run=4)) for rank in range(4)]
    apart = [numbers(loaded(rank=rank, world_size=4, window=100)) for rank in range(4)]

    def spread(parts: list[list[list[int]]]) -> float:
        longest = [[LENGTHS[item].max() for item in step] for step in zip(*parts, strict=True)]
        return sum(max(step) - min(step) for step in longest[:-1])

    assert spread(ranks) < spread(apart)


def test_an_order_that_is_not_shuffled_stays_so() -> None:
    means = [LENGTHS[number].mean() for number in numbers(loaded(base="sequential"))]
    assert means[:5] == sorted(means[:5])


def test_mixtures_have_buckets_too() -> None:
    mix = Mix({"a": (documents(), 1), "b": (documents(1000), 1)}, stop="never")
    loader = loaded(source=mix)
    epoch = iter(loader)
    for _ in range(40):
        batch = next(epoch)
        lengths = LENGTHS[batch["number"] % 1000]
        np.testing.assert_array_equal(batch["tokens_mask"].sum(axis=1), lengths)
    loader.close()


def test_what_makes_no_sense_is_said() -> None:
    for how, text in (
        ({"pack": Pack(8)}, "by length or by pack"),
        ({"order": order.Balanced(order.ByLength("tokens"))}, "by length or balanced"),
        ({"base": order.ByLength("tokens")}, "cannot be the order inside of another"),
        ({"order": order.ByLength}, r"write ByLength\(\)"),
        ({"window": 0}, "bucket_window"),
        ({"lengths": LENGTHS[:3]}, "103 numbers"),
    ):
        with pytest.raises(OptionError, match=text):
            next(iter(loaded(**how)))
    with pytest.raises(OptionError, match="the field whose length counts, of a, b"):
        batchplant.Loader({"a": ["x", "yy"], "b": ["x", "yy"]}, 1, order=order.ByLength())
    with pytest.raises(OptionError, match="none of these has values of varying length"):
        batchplant.Loader({"a": [1, 2]}, 1, order=order.ByLength())
