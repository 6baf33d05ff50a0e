"""How many requests are made at a time: as many as pay, and no more."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from batchplant.storage.remote.fetch import ConcurrencyController, patience
from batchplant.storage.settings import FetchTuning

TUNING = FetchTuning()


def numbers(looks: int, rate: Callable[[int], float], *, full: bool = True) -> list[int]:
    """The numbers in flight that are found, one after another, where so many bring so many bytes a second."""
    controller, result = ConcurrencyController(0.0), []
    for number in range(1, looks + 1):
        controller.full, controller.moved = full, int(rate(controller.limit) * TUNING.window_seconds)
        controller.adapt(number * TUNING.window_seconds, True)
        result.append(controller.limit)
    return result


def test_where_each_brings_more_there_are_many() -> None:
    """A store that gives every connection 50 MB/s."""
    assert TUNING.max_in_flight in numbers(8, lambda number: number * 50e6)


@pytest.mark.parametrize("seed", range(5))
def test_where_more_bring_nothing_there_are_few(seed: int) -> None:
    """A link that is full, and wavers by a tenth."""
    draw = random.Random(seed)
    result = numbers(400, lambda number: 1e9 * draw.uniform(0.9, 1.1))
    assert sorted(result)[len(result) // 2] <= TUNING.initial_in_flight
    assert sorted(result)[-len(result) // 20] <= 3 * TUNING.initial_in_flight
    assert min(result) >= TUNING.min_in_flight


def test_latency_is_hidden() -> None:
    """8 MB each, 30 ms away, over 1 GB/s: five in flight fill it, four do not."""
    result = numbers(400, lambda number: min(1e9, number * 8e6 / 0.038))
    assert min(result[10:]) * 8e6 / 0.038 > 0.8e9


def test_it_follows_the_network() -> None:
    room = iter([1e9] * 100 + [10e9] * 300)
    result = numbers(400, lambda number: min(next(room), number * 100e6))
    assert max(result[:100]) <= 27
    assert max(result[100:]) == TUNING.max_in_flight


def test_nothing_is_learnt_where_there_is_little_to_do() -> None:
    assert set(numbers(100, lambda number: number * 50e6, full=False)) == {TUNING.initial_in_flight}


def test_a_request_stalls_by_what_others_of_its_size_took() -> None:
    """Small ones that were quick are no reason to ask for large ones twice."""
    quick = [(1000, 0.01)] * 60
    assert patience(1000, quick) == TUNING.min_stall_seconds
    assert patience(8 << 20, quick) == TUNING.stall_factor * TUNING.min_stall_seconds
    assert patience(8 << 20, [*quick, (8 << 20, 2.0), (5 << 20, 3.0)]) == TUNING.stall_factor * 2.5
    assert patience(1000, []) == TUNING.stall_factor * TUNING.min_stall_seconds
