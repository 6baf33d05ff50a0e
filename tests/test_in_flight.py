"""How many requests are made at a time: as many as pay, and no more."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from batchplant.storage.remote import fetch
from batchplant.storage.remote.fetch import FIRST, LEAST, MOST, WINDOW, Fetcher


class Clock:
    now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(fetch, "time", made)
    return made


def numbers(clock: Clock, looks: int, rate: Callable[[int], float], *, full: bool = True) -> list[int]:
    """The numbers in flight that are found, one after another, where so many bring so many bytes a second."""
    fetcher, found = Fetcher(), []
    for _ in range(looks):
        clock.now += WINDOW
        fetcher._full = full
        fetcher._moved = int(rate(fetcher.in_flight) * WINDOW)
        with fetcher._changed:
            fetcher._adapt()
        found.append(fetcher.in_flight)
    return found


def test_where_each_brings_more_there_are_many(clock: Clock) -> None:
    """A store that gives every connection 50 MB/s."""
    assert MOST in numbers(clock, 8, lambda number: number * 50e6)


@pytest.mark.parametrize("seed", range(5))
def test_where_more_bring_nothing_there_are_few(seed: int, clock: Clock) -> None:
    """A link that is full, and wavers by a tenth."""
    draw = random.Random(seed)
    found = numbers(clock, 400, lambda number: 1e9 * draw.uniform(0.9, 1.1))
    assert sorted(found)[len(found) // 2] <= FIRST
    assert sorted(found)[-len(found) // 20] <= 3 * FIRST
    assert min(found) >= LEAST


def test_latency_is_hidden(clock: Clock) -> None:
    """8 MB each, 30 ms away, over 1 GB/s: five in flight fill it, four do not."""
    found = numbers(clock, 400, lambda number: min(1e9, number * 8e6 / 0.038))
    assert min(found[10:]) * 8e6 / 0.038 > 0.8e9


def test_it_follows_the_network(clock: Clock) -> None:
    room = iter([1e9] * 100 + [10e9] * 300)
    found = numbers(clock, 400, lambda number: min(next(room), number * 100e6))
    assert max(found[:100]) <= 27
    assert max(found[100:]) == MOST


def test_nothing_is_learnt_where_there_is_little_to_do(clock: Clock) -> None:
    assert set(numbers(clock, 100, lambda number: number * 50e6, full=False)) == {FIRST}
