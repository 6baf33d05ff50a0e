"""Mixtures: who comes when, how often, and which sample it gives."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchplant import _native
from batchplant.errors import OptionError
from batchplant.order import orders
from batchplant.order.mixture import ENDLESS, blend, mixed, shares_of

WEIGHTS = st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any)


@given(WEIGHTS)
def test_every_source_is_within_one_of_its_share_at_every_place(weights: list[int]) -> None:
    shares = np.array(weights, dtype=np.int64)
    source, turn = _native.interleave(shares)
    period = int(shares.sum())
    places = np.arange(1, period + 1)
    for number, share in enumerate(weights):
        came = np.cumsum(source == number)
        # share / period * place, without rounding.
        assert (np.abs(came * period - share * places) < period).all() or len(weights) == 1
        assert came[-1] == share
        np.testing.assert_array_equal(turn[source == number], np.arange(share))


@given(WEIGHTS, st.integers(0, 10**12))
def test_counts_are_those_of_the_positions_before(weights: list[int], start: int) -> None:
    plan = blend([7] * len(weights), weights, stop="never")
    source, turn = plan.at(np.arange(start, start + 50))
    before = plan.counts(start)
    for number in range(len(weights)):
        own = turn[source == number]
        np.testing.assert_array_equal(own, before[number] + np.arange(len(own)))
    assert plan.counts(start + 50).sum() == start + 50
    ideal = np.array(weights) / sum(weights) * start
    assert (np.abs(before - ideal) <= 1 + 1e-9 * start).all()


@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 5)), min_size=1, max_size=5).filter(
        lambda item: any(weight for _, weight in item)
    ),
    st.integers(0, 2**63),
)
def test_every_pass_has_every_sample_once_in_an_order_of_its_own(
    sources: list[tuple[int, int]], seed: int
) -> None:
    sizes, weights = zip(*sources, strict=True)
    plan = blend(sizes, weights, stop="all")
    order = mixed(plan, seed=seed, epoch=3)
    samples, total = order[:], sum(sizes)
    assert len(samples) == plan.length
    firsts = np.concatenate([[0], np.cumsum(sizes)])
    counts = plan.counts(plan.length)
    assert counts.sum() == plan.length
    for number, (size, weight) in enumerate(sources):
        own = samples[(samples % total >= firsts[number]) & (samples % total < firsts[number + 1])]
        assert len(own) == counts[number]
        assert len(own) >= size if weight else not len(own)
        # Numbered by pass: none comes twice, and no pass begins before the one before it is through.
        assert len(np.unique(own)) == len(own)
        np.testing.assert_array_equal(own // total, np.arange(len(own)) // size)
    np.testing.assert_array_equal(order.take([0, plan.length - 1]), samples[[0, -1]])


def test_an_epoch_ends_with_the_first_or_the_last_source() -> None:
    first, last = blend([100, 50, 10], [5, 3, 2]), blend([100, 50, 10], [5, 3, 2], stop="all")
    assert first.counts(first.length)[2] == 10
    assert first.counts(first.length - 1)[2] == 9
    assert last.counts(last.length)[0] == 100
    assert last.counts(last.length - 1)[0] == 99
    np.testing.assert_allclose(last.passes(last.length)[2], 4.0)
    assert blend([3], [1], stop="never").length == ENDLESS


def test_without_weights_sources_come_by_their_sizes() -> None:
    plan = blend([100, 50, 10])
    assert 156 <= plan.length <= 160
    np.testing.assert_array_equal(plan.counts(160), [100, 50, 10])


def test_weights_change_where_the_schedule_says() -> None:
    plan = blend([100, 50, 10], [1, 1, 0], schedule=[(30, [0, 1, 1]), (50, [1, 0, 0])], stop="never")
    np.testing.assert_array_equal(plan.counts(30), [15, 15, 0])
    np.testing.assert_array_equal(plan.counts(50), [15, 25, 10])
    np.testing.assert_array_equal(plan.counts(57), [22, 25, 10])
    source, turn = plan.at(np.array([49, 50, 10**9, 3]))
    assert source.tolist()[1:3] == [0, 0]
    assert turn.tolist()[1:3] == [15, 15 + 10**9 - 50]


def test_a_source_leaves_after_its_repeats_and_the_others_go_on() -> None:
    plan = blend([100, 50, 10], [1, 1, 1], stop="all", max_repeats=1)
    assert (plan.length, len(plan.segments)) == (160, 3)
    np.testing.assert_array_equal(plan.counts(160), [100, 50, 10])
    assert sorted(mixed(plan, seed=1, epoch=0)[:].tolist()) == list(range(160))
    twice = blend([10, 3], [1, 1], stop="never", max_repeats=2)
    np.testing.assert_array_equal(twice.counts(twice.length), [20, 6])


def test_a_source_may_have_an_order_of_its_own() -> None:
    plan = blend([4, 3], [1, 1], stop="all")
    order = mixed(plan, seed=0, epoch=0, order=lambda source, lap: orders.sequential([4, 3][source]))
    samples = order[:]
    assert samples[samples % 7 < 4].tolist() == [0, 1, 2, 3]
    assert samples[samples % 7 >= 4].tolist()[:3] == [4, 5, 6]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([1, 1], [0, 0]), "not all 0"),
        (([1, 1], [1, -1]), "none below 0"),
        (([1, 1], [1, float("nan")]), "finite"),
        (([1, 1], [1]), "2 sources, but 1 weights"),
        (([1, 0], [1, 1]), "source 1 has a weight, but no samples"),
    ],
)
def test_what_makes_no_sense_is_said(arguments: tuple[list[int], list[float]], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        blend(*arguments)


def test_weights_that_are_not_round_lose_little() -> None:
    rng = np.random.default_rng(0)
    weights = rng.lognormal(0, 2, 300)
    shares = shares_of(weights.tolist())
    assert (shares > 0).all()
    np.testing.assert_allclose(shares / shares.sum(), weights / weights.sum(), atol=1e-6)
    assert shares_of([0.1, 0.3, 0.6]).tolist() == [1, 3, 6]
