"""How many requests are made at a time: as many as pay, and no more."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from batchplant.storage.remote.fetch import (
    FIRST,
    LEAST,
    MOST,
    STALLED,
    STALLED_LEAST,
    WINDOW,
    Pace,
    patience,
)


def numbers(looks: int, rate: Callable[[int], float], *, full: bool = True) -> list[int]:
    """The numbers in flight that are found, one after another, where so many bring so many bytes a second."""
    pace, found = Pace(0.0), []
    for number in range(1, looks + 1):
        pace.full, pace.moved = full, int(rate(pace.number) * WINDOW)
        pace.look(number * WINDOW, True)
        found.append(pace.number)
    return found


def test_where_each_brings_more_there_are_many() -> None:
    """A store that gives every connection 50 MB/s."""
    assert MOST in numbers(8, lambda number: number * 50e6)


@pytest.mark.parametrize("seed", range(5))
def test_where_more_bring_nothing_there_are_few(seed: int) -> None:
    """A link that is full, and wavers by a tenth."""
    draw = random.Random(seed)
    found = numbers(400, lambda number: 1e9 * draw.uniform(0.9, 1.1))
    assert sorted(found)[len(found) // 2] <= FIRST
    assert sorted(found)[-len(found) // 20] <= 3 * FIRST
    assert min(found) >= LEAST


def test_latency_is_hidden() -> None:
    """8 MB each, 30 ms away, over 1 GB/s: five in flight fill it, four do not."""
    found = numbers(400, lambda number: min(1e9, number * 8e6 / 0.038))
    assert min(found[10:]) * 8e6 / 0.038 > 0.8e9


def test_it_follows_the_network() -> None:
    room = iter([1e9] * 100 + [10e9] * 300)
    found = numbers(400, lambda number: min(next(room), number * 100e6))
    assert max(found[:100]) <= 27
    assert max(found[100:]) == MOST


def test_nothing_is_learnt_where_there_is_little_to_do() -> None:
    assert set(numbers(100, lambda number: number * 50e6, full=False)) == {FIRST}


def test_a_request_stalls_by_what_others_of_its_size_took() -> None:
    """Small ones that were quick are no reason to ask for large ones twice."""
    quick = [(1000, 0.01)] * 60
    assert patience(1000, quick) == STALLED_LEAST
    assert patience(8 << 20, quick) == STALLED * STALLED_LEAST
    assert patience(8 << 20, [*quick, (8 << 20, 2.0), (5 << 20, 3.0)]) == STALLED * 2.5
    assert patience(1000, []) == STALLED * STALLED_LEAST
