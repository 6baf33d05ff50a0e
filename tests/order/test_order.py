"""Orders and ranks: exact for every size, evenly random, and the same for ever."""

from __future__ import annotations

import functools
import math
import pickle
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchplant import _native
from batchplant import order as orders
from batchplant.errors import OptionError, SampleIndexError
from batchplant.order import BlockIndex, Order, Shard, keyed, make, shard

seeds = st.integers(0, 2**64 - 1)
sizes = st.one_of(st.integers(0, 40), st.integers(0, 3000))
E0: dict[str, Any] = {"seed": 0, "epoch": 0}


def splitmix(x: int) -> int:
    """Its finaliser, in whole numbers."""
    x &= 2**64 - 1
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


@given(seeds, st.lists(seeds, min_size=1, max_size=5), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=5))
def test_keys_are_hashes(seed: int, keys: list[int], numbers: list[int]) -> None:
    golden = 0x9E3779B97F4A7C15
    expected = functools.reduce(lambda key, part: splitmix(key + part + golden), (seed, 3, 1), 0)
    assert keyed.key_of(seed, 3, 1).tolist() == [expected]
    one, many = np.array(keys[:1], np.uint64), np.array(keys, np.uint64)
    result = keyed.derive(one, np.array(numbers, np.int64))
    assert result.tolist() == [splitmix(keys[0] + (number + 1) * golden) for number in numbers]
    assert keyed.derive(many, np.array([7])).tolist() == [splitmix(key + 8 * golden) for key in keys]
    if len(keys) != len(numbers) != 1 and len(keys) > 1:
        with pytest.raises(ValueError, match="entries"):
            keyed.derive(many, np.array(numbers, np.int64))


def test_a_key_is_the_same_for_all_and_nobody_changes_it() -> None:
    key = keyed.key_of(5, 6, 7)
    with pytest.raises(ValueError, match="read-only"):
        key += 1
    with pytest.raises(OptionError, match="seed must be a whole number"):
        keyed.key_of(5.0, 6, 7)  # type: ignore[arg-type]


def some_blocks(n: int, seed: int) -> np.ndarray:
    """Blocks of unequal size, scattered, with gaps between their numbers."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 1 + n // 7, n) * 3 + 5


def permutations(n: int, seed: int, epoch: int) -> dict[str, Order]:
    when = {"seed": seed, "epoch": epoch}
    return {
        "sequential": orders.sequential(n),
        "random": orders.random(n, **when),
        "scattered": orders.quasi_random(n, blocks=some_blocks(n, seed % 97), window=3, **when),
        "contiguous": orders.quasi_random(n, blocks=np.arange(n) // 5, window=4, **when),
        "shards": orders.shards(n, blocks=some_blocks(n, seed % 97), **when),
        "windowed": orders.windowed(n, window=1 + n // 9, **when),
        "shuffled": orders.windowed(n, window=n + 1, **when),
        "weighted": orders.weighted(np.arange(n) + 1, replace=False, **when),
        "class_balanced": orders.class_balanced(np.zeros(n, int), **when),
        "array": orders.from_array(np.arange(n)[::-1], samples=n),
        "function": orders.from_function(lambda n, rng: rng.permutation(n), n, **when),
        "subset": orders.subset(orders.random(n, **when), np.arange(n)[::-1]),
    }


# -- exactness ----------------------------------------------------------------------------------------------


@given(sizes, seeds, st.integers(0, 1000))
def test_every_sample_comes_once(n, seed, epoch):
    for name, order in permutations(n, seed, epoch).items():
        assert len(order) == order.samples == n
        assert np.array_equal(np.sort(order[:]), np.arange(n)), name


@pytest.mark.parametrize(
    "n", [*range(20), 63, 64, 65, 255, 256, 257, 1023, 1024, 1025, 2**14, 2**14 + 1, 10**5]
)
def test_random_is_a_permutation_of_every_size(n):
    for seed in range(3):
        assert np.array_equal(np.sort(orders.random(n, seed=seed, epoch=9)[:]), np.arange(n))


@given(st.integers(1, 200), st.integers(0, 50), st.data())
def test_every_way_to_ask_gives_the_same(n, seed, data):
    positions = data.draw(st.lists(st.integers(-n, n - 1), max_size=30))
    start, stop = data.draw(st.integers(-n - 3, n + 3)), data.draw(st.integers(-n - 3, n + 3))
    step = data.draw(st.sampled_from([1, 2, 5, -1, -3]))
    others = {
        "drawn": orders.weighted(np.arange(n) + 1, seed=seed, epoch=1, count=n),
        "balanced": orders.class_balanced(np.arange(n) % 7, seed=seed, epoch=1),
    }
    for order in (permutations(n, seed, 1) | others).values():
        whole = order[:].tolist()
        assert order.take(np.array(positions, np.int64)).tolist() == [whole[k] for k in positions]
        assert [order[k] for k in positions[:3]] == [whole[k] for k in positions[:3]]
        assert order[start:stop:step].tolist() == whole[start:stop:step]
        assert order[:].dtype == np.int64


def test_iteration_pickling_shape_and_purity():
    for name, order in permutations(20_000, 3, 1).items():
        whole = order[:]
        assert list(order) == whole.tolist(), name
        assert np.array_equal(order[:], whole)
        assert np.array_equal(pickle.loads(pickle.dumps(order))[:], whole)
        square = np.arange(12, dtype=np.uint8).reshape(3, 4)
        assert np.array_equal(order.take(square), whole[:12].reshape(3, 4))
    assert orders.sequential(3).take([]).tolist() == []


def test_an_order_does_not_follow_the_array_it_was_made_from():
    array = np.arange(5)
    order = orders.from_array(array)
    order[:][0] = 4
    array[:] = 0
    assert order[:].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(AttributeError):
        order.length = 3


@given(st.integers(1, 2**48), seeds, st.data())
def test_random_of_any_size_has_no_collisions(n, seed, data):
    start = data.draw(st.integers(0, n - 1))
    result = orders.random(n, seed=seed, epoch=0)[start : start + 500]
    assert len(np.unique(result)) == len(result) == min(500, n - start)
    assert result.min() >= 0
    assert result.max() < n


def test_random_needs_no_memory():
    order = orders.random(10**12, **E0)
    positions = np.arange(10**12 - 1000, 10**12)
    order.take(positions)
    tracemalloc.start()
    order = orders.random(10**12, seed=1, epoch=1)
    result = order.take(positions)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 500_000
    assert len(np.unique(result)) == 1000
    assert result.max() > 9 * 10**11


# -- quasi_random -------------------------------------------------------------------------------------------


@given(st.integers(1, 400), st.integers(1, 12), st.integers(0, 50))
def test_quasi_random_holds_at_most_window_blocks(n, window, seed):
    blocks = some_blocks(n, seed)
    order = orders.quasi_random(n, seed=seed, epoch=2, blocks=blocks, window=window)
    seen = blocks[order[:]]
    names = np.unique(blocks)
    first = np.array([np.flatnonzero(seen == name)[0] for name in names])
    last = np.array([np.flatnonzero(seen == name)[-1] for name in names])
    # A block is open from its first to its last position.
    assert max(np.sum((first <= k) & (k <= last)) for k in range(n)) <= window
    start, stop = sorted((seed * 7 % n, n - seed % 3))
    assert order.touched(start, stop).tolist() == list(dict.fromkeys(seen[start:stop].tolist()))


@given(st.integers(0, 400), st.integers(0, 50))
def test_shards_takes_blocks_whole_and_in_their_order(n, seed):
    blocks = some_blocks(n, seed)
    taken = orders.shards(n, seed=seed, epoch=2, blocks=blocks)[:]
    turns = list(dict.fromkeys(blocks[taken].tolist()))
    assert taken.tolist() == [row for block in turns for row in np.flatnonzero(blocks == block)]


def test_shards_shuffles_blocks_anew_every_epoch():
    blocks = np.arange(2000) // 10
    one, two = (blocks[orders.shards(2000, seed=1, epoch=e, blocks=blocks)[::10]] for e in (0, 1))
    assert np.mean(one == two) < 0.05
    assert np.mean(np.abs(np.diff(one)) == 1) < 0.05


def test_quasi_random_mixes_blocks_and_epochs():
    blocks = BlockIndex(np.arange(2000) // 10)
    one, two = (orders.quasi_random(2000, seed=1, epoch=e, blocks=blocks, window=20)[:] for e in (0, 1))
    windows = [set((part // 10).tolist()) for part in one.reshape(10, 200)]
    assert all(len(window) == 20 for window in windows)
    # Neither neighbours in the file nor the windows of another epoch stay together.
    assert not any(max(window) - min(window) < 40 for window in windows)
    again = [set((part // 10).tolist()) for part in two.reshape(10, 200)]
    assert max(len(a & b) for a in windows for b in again) < 10
    assert abs(np.corrcoef(np.arange(200), one[:200] % 10)[0, 1]) < 0.3


def test_a_block_index_serves_every_epoch_and_needs_no_rows_where_blocks_are_in_order():
    assert BlockIndex([4, 4, 9, 9, 9]).rows is None
    index = BlockIndex([9, 4, 9, 4, 9])
    assert index.names.tolist() == [4, 9]
    assert index.sizes.tolist() == [2, 3]
    assert index.sample(np.array([0, 1]), np.array([1, 2])).tolist() == [3, 4]
    direct = orders.quasi_random(5, seed=1, epoch=7, blocks=[9, 4, 9, 4, 9], window=1)
    assert np.array_equal(orders.quasi_random(5, seed=1, epoch=7, blocks=index, window=1)[:], direct[:])
    assert len(BlockIndex([])) == 0


# -- the other orders ---------------------------------------------------------------------------------------


@given(st.integers(0, 500), st.integers(1, 600), seeds)
def test_windowed_keeps_samples_near_their_place(n, window, seed):
    result = orders.windowed(n, seed=seed, epoch=0, window=window)[:]
    assert np.abs(result - np.arange(n)).max(initial=0) <= window


@given(sizes, st.integers(1, 5), st.integers(1, 9), seeds)
def test_lanes_hold_every_sample_once(n, lanes, size, seed):
    order = make("shards", n, seed=seed, epoch=0, blocks=some_blocks(n, seed), lanes=lanes, lane_size=size)
    assert sorted(order) == list(range(n))
    plain = make("shards", n, seed=seed, epoch=0, blocks=some_blocks(n, seed))
    each = n // (lanes * size) * size
    # Each lane is a part of the plain order, taken in its order.
    for lane in range(lanes):
        steps = range(0, each // size)
        taken = [order[(step * lanes + lane) * size + place] for step in steps for place in range(size)]
        assert taken == plain[lane * each : (lane + 1) * each].tolist()
    assert order[lanes * each :].tolist() == plain[lanes * each :].tolist()


def test_ranks_on_lanes_of_their_own_share_no_block():
    n, world_size, batch = 4096, 4, 16
    blocks = np.arange(n) // 64
    order = make("quasi_random", n, **E0, blocks=blocks, window=2, lanes=world_size, lane_size=batch)
    read = [
        {int(block) for number in range(len(part)) for block in blocks[part.batch(number)]}
        for part in (
            shard(order, rank=rank, world_size=world_size, batch_size=batch) for rank in range(world_size)
        )
    ]
    assert sum(map(len, read)) == len(set().union(*read)) == 64
    # Half as many ranks have two lanes each, and share none either.
    half = [shard(order, rank=rank, world_size=2, batch_size=2 * batch) for rank in range(2)]
    read = [
        {int(block) for number in range(len(part)) for block in blocks[part.batch(number)]} for part in half
    ]
    assert not read[0] & read[1]


def test_windowed_has_no_borders():
    n, window, trials = 200, 20, 300
    crossed = np.zeros(n - 1, int)
    for epoch in range(trials):
        result = orders.windowed(n, seed=5, epoch=epoch, window=window)[:]
        # A border between k-1 and k that nothing crosses: the first k positions hold the first k samples.
        crossed += np.maximum.accumulate(result)[:-1] != np.arange(n - 1)
    assert crossed[window:-window].min() > 0.95 * trials
    moved = [orders.windowed(n, seed=s, epoch=0, window=window)[:] - np.arange(n) for s in range(50)]
    assert np.std(moved) > window / 4


def test_weighted_draws_in_proportion():
    weights = np.array([0, 1, 0, 2, 5, 0, 12, 0])
    order = orders.weighted(weights, seed=4, epoch=0, count=200_000)
    counts = np.bincount(order[:], minlength=8)
    assert (counts[weights == 0] == 0).all()
    want = weights[weights > 0] * 10_000
    assert chi_square(counts[weights > 0], want) < 4
    first, then = order[::2], order[1::2]
    pairs = np.zeros((8, 8))
    np.add.at(pairs, (first, then), 1)
    expected = np.outer(weights, weights) * (100_000 / 400)
    assert chi_square(pairs[expected > 0], expected[expected > 0]) < 4


def test_weighted_without_replacement():
    weights = np.array([1.0, 0.0, 3.0])
    rounds = [orders.weighted(weights, seed=s, epoch=0, replace=False)[:].tolist() for s in range(4000)]
    assert all(sorted(item) == [0, 2] for item in rounds)
    assert sum(item[0] == 2 for item in rounds) == pytest.approx(3000, abs=120)
    few = orders.weighted([1e-320, 1e300, 5e-324], replace=False, count=1, **E0)
    assert few[:].tolist() == [1]


@pytest.mark.parametrize(
    "weights", [[5e-324] * 3, [1e308] * 3, [0.0, 1e-310], np.arange(1, 4), [True, False]]
)
def test_extreme_weights_stay_in_range(weights):
    result = orders.weighted(weights, count=20_000, **E0)[:]
    assert set(result.tolist()) == set(np.flatnonzero(weights).tolist())


@given(st.lists(st.integers(-2, 4), max_size=60), st.integers(0, 150), st.integers(0, 20))
def test_class_balanced_is_exact(labels, count, seed):
    known = np.array(labels, np.int64)
    classes = len(set(labels))
    order = orders.class_balanced(known, seed=seed, epoch=1, count=count if labels else None)
    result = order[:]
    shares = Counter(known[result].tolist())
    assert sum(shares.values()) == len(order) == (count if labels else 0)
    for start in range(0, len(order) - classes + 1, max(classes, 1)):
        assert len(set(known[result[start : start + classes]].tolist())) == classes
    for label in set(labels):
        mine = result[known[result] == label].tolist()
        size = labels.count(label)
        assert all(len(set(mine[k : k + size])) == len(mine[k : k + size]) for k in range(0, len(mine), size))


def test_class_balanced_takes_names():
    order = orders.class_balanced(["cat", "dog", "cat", "cat"], **E0)
    assert order[:].tolist().count(1) == 2


# -- statistics ---------------------------------------------------------------------------------------------


def chi_square(counts: Any, expected: Any) -> float:
    """How many standard deviations too uneven the counts are (Wilson and Hilferty)."""
    counts, expected = np.broadcast_arrays(np.asarray(counts, float), np.asarray(expected, float))
    free = counts.size - 1
    ratio = ((counts - expected) ** 2 / expected).sum() / free
    return float((ratio ** (1 / 3) - (1 - 2 / (9 * free))) / math.sqrt(2 / (9 * free)))


def many(n: int, trials: int, *, epochs: bool = False) -> np.ndarray:
    """One permutation in each row, of many seeds or of many epochs, made at once from their keys."""
    at = np.tile(np.arange(n), trials)
    return keyed.permute(at, np.array([n]), np.repeat(keys(epochs)[:trials], n)).reshape(trials, n)


@functools.cache
def keys(epochs: bool) -> np.ndarray:
    return np.concatenate([keyed.key_of(7, k, 1) if epochs else keyed.key_of(k, 3, 1) for k in range(6_000)])


def test_many_gives_what_random_gives():
    assert np.array_equal(many(100, 3)[2], orders.random(100, seed=2, epoch=3)[:])
    assert np.array_equal(many(2000, 3, epochs=True)[1], orders.random(2000, seed=7, epoch=1)[:])


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_permutation_is_equally_likely(n, epochs):
    trials = 6_000
    codes = many(n, trials, epochs=epochs) @ n ** np.arange(n)
    result, counts = np.unique(codes, return_counts=True)
    assert len(result) == math.factorial(n)
    assert chi_square(counts, trials / len(result)) < 4


@pytest.mark.parametrize("epochs", [False, True])
@pytest.mark.parametrize(("n", "trials"), [(10, 6_000), (100, 3_000), (1100, 300)])
def test_random_is_even(n, trials, epochs):
    rows = many(n, trials, epochs=epochs)
    # Where each element lands, the first position among them.
    landed = np.stack([np.bincount(column, minlength=n) for column in rows.T])
    assert chi_square(landed, trials / n) < 4
    if trials > 5 * n:
        assert max(chi_square(line, trials / n) for line in landed) < 5
    # Neighbours: their distance is as likely as any other.
    apart = np.bincount(((rows[:, 1:] - rows[:, :-1]) % n).ravel(), minlength=n)
    assert apart[0] == 0
    assert chi_square(apart[1:], trials) < 4
    middle = (n - 1) / 2
    lag = ((rows[:, 1:] - middle) * (rows[:, :-1] - middle)).mean() / rows.var()
    assert abs(lag + 1 / n) < 5 / math.sqrt(rows.size)
    # Fixed points: one on average, with variance one.
    fixed = (rows == np.arange(n)).sum(axis=1)
    assert abs(fixed.mean() - 1) < 5 / math.sqrt(trials)
    # Rows of different seeds or epochs agree as rarely as chance has it.
    same = (rows[1:] == rows[:-1]).sum(axis=1)
    assert abs(same.mean() - 1) < 5 / math.sqrt(trials)


def test_long_random_has_no_trend():
    n = 3 * 10**5
    one, two = orders.random(n, seed=0, epoch=0)[:], orders.random(n, seed=0, epoch=1)[:]
    limit = 5 / math.sqrt(n)
    assert abs(np.corrcoef(one, np.arange(n))[0, 1]) < limit
    assert abs(np.corrcoef(one, two)[0, 1]) < limit
    assert abs(np.corrcoef(one, orders.random(n, seed=1, epoch=0)[:])[0, 1]) < limit
    for lag in (1, 2, 3, 64, 1000, 1024):
        assert abs(np.corrcoef(one[lag:], one[:-lag])[0, 1]) < limit
    # The first samples of the file, all over the epoch; low digits no less than high ones.
    grid = np.histogram2d(np.arange(n), one, bins=32)[0]
    assert chi_square(grid, n / 1024) < 4
    low = np.histogram2d(np.arange(n) % 32, one % 32, bins=32)[0]
    assert chi_square(low, n / 1024) < 4


def test_seed_and_epoch_are_not_interchangeable():
    result = {tuple(orders.random(50, seed=s, epoch=e)[:].tolist()) for s in range(20) for e in range(20)}
    assert len(result) == 400


# -- ranks --------------------------------------------------------------------------------------------------

worlds = st.integers(1, 9)
batch_sizes = st.integers(1, 12)


def shards(order: Order, world_size: int, **options: Any) -> list[Shard]:
    return [shard(order, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def joined(ranks: list[Shard]) -> list[int]:
    return [k for step in range(len(ranks[0])) for rank in ranks for k in rank.batch(step).tolist()]


@given(st.integers(0, 300), worlds, batch_sizes, st.booleans(), st.data())
def test_ranks_share_exactly(n, world_size, batch_size, drop_last, data):
    order = orders.from_array(orders.random(n, seed=n, epoch=0)[:])
    start = data.draw(st.integers(0, n))
    options = {"batch_size": batch_size, "drop_last": drop_last, "start": start}
    ranks = shards(order, world_size, **options)
    left, step = n - start, world_size * batch_size
    count = left // step if drop_last else -(-left // step)
    assert {len(rank) for rank in ranks} == {count}
    whole = order[start:].tolist()
    assert joined(ranks) == (whole[: count * step] if drop_last else whole)
    for number in range(count):
        lengths = [len(rank.positions(number)) for rank in ranks]
        assert max(lengths) <= batch_size
        assert max(lengths) - min(lengths) <= 1
        assert len({rank.position_after(number + 1) for rank in ranks}) == 1
        if drop_last or number < count - 2:
            assert set(lengths) == {batch_size}
        possible = left >= world_size and (batch_size > 1 or left % world_size == 0)
        assert min(lengths) > 0 or (not possible and number == count - 1)
        if number == count - 1:
            assert ranks[0].idle == lengths.count(0)
    assert ranks[0].position_after(0) == start
    assert ranks[0].position_after(count) == (start + count * step if drop_last else n)


@given(st.integers(0, 120), worlds, batch_sizes, worlds, batch_sizes)
def test_a_run_goes_on_exactly_with_another_world(n, world_size, batch_size, world_then, batch_size_then):
    # Stored, for a hundred thousand batches are asked for.
    order = orders.from_array(orders.quasi_random(n, seed=2, epoch=n, blocks=np.arange(n) // 6, window=2)[:])
    before = shards(order, world_size, batch_size=batch_size)
    for done in range(len(before[0]) + 1):
        position = before[0].position_after(done)
        after = shards(order, world_then, batch_size=batch_size_then, start=position)
        assert joined(before)[:position] + joined(after) == order[:].tolist()
        # With the same world size the very same batches come.
        same = shards(order, world_size, batch_size=batch_size, start=position)
        for rank, old in zip(same, before, strict=True):
            assert len(rank) == len(old) - done
            assert [rank.positions(k) for k in range(len(rank))] == [
                old.positions(k) for k in range(done, len(old))
            ]


@pytest.mark.parametrize("drop_last", [False, True])
def test_the_epoch_is_the_same_in_every_world(drop_last):
    order = orders.random(720, **E0)
    epochs = [
        joined(shards(order, world_size, batch_size=8, drop_last=drop_last)) for world_size in (1, 2, 3, 5, 9)
    ]
    assert all(epoch == order[:].tolist() for epoch in epochs)


@given(st.integers(1, 100), worlds, batch_sizes)
def test_padding_repeats_only_where_a_rank_would_have_nothing(n, world_size, batch_size):
    order = orders.sequential(n)
    plain = shards(order, world_size, batch_size=batch_size)
    padded = shards(order, world_size, batch_size=batch_size, pad="repeat")
    assert len(joined(padded)) == n + plain[0].idle
    assert set(joined(padded)) == set(range(n))
    assert padded[0].idle == 0
    for item, other in zip(plain, padded, strict=True):
        for number in range(len(item)):
            assert len(other.batch(number)) == max(len(item.batch(number)), 1)


def test_a_short_last_step_shares_with_the_one_before():
    ranks = shards(orders.sequential(18), 4, batch_size=4)
    assert [[rank.batch(k).tolist() for rank in ranks] for k in range(2)] == [
        [[0, 1, 2], [3, 4], [5, 6], [7, 8]],
        [[9, 10, 11], [12, 13], [14, 15], [16, 17]],
    ]
    assert [len(batch) for batch in ranks[0]] == [3, 3]


def test_ranks_of_a_huge_order_cost_nothing():
    ranks = shards(orders.random(10**12, **E0), 1024, batch_size=256)
    assert len(ranks[5]) == -(-(10**12) // 2**18)
    assert len(ranks[5].batch(3_000_000)) == 256
    assert ranks[5].positions(1).start == 2**18 + 5 * 256


# -- make, and what is refused ------------------------------------------------------------------------------


def test_make_resolves_names_arrays_functions_and_orders():
    when = {"seed": 3, "epoch": 4}
    labels, blocks = np.arange(50) % 3, np.arange(50) // 4
    pairs = [
        (make("sequential", 50, **when), orders.sequential(50)),
        (make("random", 50, blocks=blocks, **when), orders.random(50, **when)),
        (
            make("quasi_random", 50, blocks=blocks, window=2, **when),
            orders.quasi_random(50, blocks=blocks, window=2, **when),
        ),
        (make("windowed", 50, window=9, **when), orders.windowed(50, window=9, **when)),
        (make("weighted", 50, weights=labels, **when), orders.weighted(labels, **when)),
        (
            make("class_balanced", 50, labels=labels, count=9, **when),
            orders.class_balanced(labels, count=9, **when),
        ),
        (make([3, 1, 1], 50, **when), orders.from_array([3, 1, 1])),
        (make(range(7), 50, **when), orders.sequential(7)),
        (make(lambda n, rng: [n - 1, 0], 50, **when), orders.from_array([49, 0])),
        (make(orders.random(50, **when), 50, seed=0, epoch=0), orders.random(50, **when)),
    ]
    for pair, wanted in pairs:
        assert pair[:].tolist() == wanted[:].tolist()
        assert pair.samples == 50


def test_a_function_gets_its_own_generator_each_epoch():
    def shuffle(n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.permutation(n)

    epochs = [make(shuffle, 100, seed=1, epoch=epoch)[:].tolist() for epoch in (0, 0, 1)]
    assert epochs[0] == epochs[1] != epochs[2]


def test_subset_composes():
    order = orders.subset(orders.random(4, **E0), [10, 30, 20, 40])
    assert sorted(order[:].tolist()) == [10, 20, 30, 40]
    assert order.samples == 41
    assert orders.subset(3, [7, 5, 6])[:].tolist() == [7, 5, 6]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: make("rnadom", 5, **E0), r"no order 'rnadom' \(did you mean random\?\); the orders are"),
        (lambda: make("random", 5, window=3, **E0), "the order random takes no option window"),
        (lambda: make([1], 5, window=3, **E0), "the order given takes no option window"),
        (lambda: make("quasi_random", 5, **E0), "quasi_random needs blocks"),
        (lambda: make("shards", 5, **E0), "shards needs blocks, and there are none: use random or windowed"),
        (lambda: make("quasi_random", 5, blocks=[1, 2], **E0), "there are 5 samples, but blocks of 2"),
        (lambda: make("class_balanced", 5, **E0), "class_balanced needs labels"),
        (
            lambda: make("class_balanced", 5, labels=[1, 2], **E0),
            "the order is of 2 samples, but there are 5",
        ),
        (lambda: make("weighted", 5, **E0), "weighted needs weights"),
        (lambda: make(orders.sequential(4), 5, **E0), "the order is of 4 samples, but there are 5"),
        (lambda: make([1, 5], 5, **E0), "the order has sample 5, but there are 5"),
        (lambda: make([1, -1], 5, **E0), "the order has sample -1"),
        (lambda: make([0.5], 5, **E0), "sample numbers must be whole numbers, not float64"),
        (lambda: make([[1], [2]], 5, **E0), r"one row, not of shape \(2, 1\)"),
        (lambda: make([[1], [2, 3]], 5, **E0), "not an array"),
        (lambda: make(None, 5, **E0), "sample numbers must be whole numbers"),
        (lambda: make(lambda n, rng: [n], 5, **E0), "the order has sample 5"),
        (lambda: orders.from_array(np.array([2**63 + 1], np.uint64), samples=5), "the order has sample"),
        (lambda: orders.random(-1, **E0), "n must be at least 0, not -1"),
        (lambda: orders.random(2**48 + 1, **E0), "n must be from 0 to"),
        (lambda: orders.random(5.0, **E0), "n must be a whole number, not 5.0"),
        (lambda: orders.random(5, seed=-1, epoch=0), "seed must be from 0"),
        (lambda: orders.random(5, seed=0, epoch="1"), "epoch must be a whole number"),
        (lambda: orders.windowed(5, window=0, **E0), "window must be at least 1"),
        (lambda: orders.quasi_random(5, blocks=[0.5] * 5, **E0), "one number per sample"),
        (lambda: orders.weighted([1, -1], **E0), "none below 0"),
        (lambda: orders.weighted([1, np.nan], **E0), "must be finite"),
        (lambda: orders.weighted([0, 0], **E0), "not all 0"),
        (lambda: orders.weighted([1, 0], count=2, replace=False, **E0), "count must be from 0 to 1"),
        (lambda: orders.weighted([[1]], **E0), "one number per sample"),
        (lambda: orders.class_balanced([], count=1, **E0), "count must be from 0 to 0"),
        (lambda: orders.subset(orders.sequential(3), [1, 2]), "of 3 samples, but there are 2 indices"),
        (lambda: orders.sequential(5).take([0.5]), "positions must be whole numbers"),
        (lambda: orders.sequential(5)["a"], "position must be a whole number"),
        (lambda: shard(orders.sequential(5), rank=2, world_size=2, batch_size=1), "rank must be from 0 to 1"),
        (
            lambda: shard(orders.sequential(5), rank=0, world_size=0, batch_size=1),
            "world_size must be at least 1",
        ),
        (
            lambda: shard(orders.sequential(5), rank=0, world_size=1, batch_size=0),
            "batch_size must be at least 1",
        ),
        (
            lambda: shard(orders.sequential(5), rank=0, world_size=1, batch_size=1, start=6),
            "start must be from 0",
        ),
        (lambda: shard(orders.sequential(5), rank=0, world_size=1, batch_size=1, pad="x"), "pad must be"),
    ],
)
def test_what_cannot_be_is_refused(call, message):
    with pytest.raises(OptionError, match=message):
        call()


@pytest.mark.parametrize("position", [5, -6, 2**40])
def test_there_is_no_such_position(position):
    order = orders.random(5, **E0)
    with pytest.raises(SampleIndexError, match="no position"):
        order[position]
    with pytest.raises(SampleIndexError, match="no position"):
        order.take([0, position])
    with pytest.raises(SampleIndexError, match="no batch"):
        shard(order, rank=0, world_size=1, batch_size=2).batch(position)


# -- stability ----------------------------------------------------------------------------------------------

WHEN = {"seed": 20240229, "epoch": 3}
GOLDEN: dict[str, tuple[Order, list[int]]] = {
    "random 10": (orders.random(10, **WHEN), [4, 8, 5, 2, 3, 1, 9, 7, 0, 6]),
    "random 500": (orders.random(500, **WHEN), [70, 201, 218, 273, 353, 211, 281, 319, 386, 157]),
    "random 10**6": (
        orders.random(10**6, **WHEN),
        [645594, 827016, 202714, 102073, 711573, 686836, 592499, 565051, 233494, 579467],
    ),
    "random 10**12": (
        orders.random(10**12, **WHEN),
        [
            680177601796,
            563417875608,
            450631826473,
            803589265625,
            494712900270,
            538500545191,
            290573615473,
            278793757213,
            925697010280,
            184995028113,
        ],
    ),
    "quasi_random": (
        orders.quasi_random(1000, blocks=np.arange(1000) // 30, window=8, **WHEN),
        [213, 599, 770, 756, 440, 430, 586, 570, 593, 434],
    ),
    "shards": (
        orders.shards(1000, blocks=np.arange(1000) // 4, **WHEN),
        [72, 73, 74, 75, 520, 521, 522, 523, 512, 513],
    ),
    "windowed": (orders.windowed(1000, window=50, **WHEN), [10, 12, 8, 7, 9, 0, 15, 27, 34, 2]),
    "weighted": (orders.weighted(np.arange(100), **WHEN), [88, 95, 73, 45, 89, 41, 59, 66, 98, 68]),
    "weighted once": (
        orders.weighted(np.arange(100), replace=False, **WHEN),
        [87, 97, 27, 59, 89, 73, 40, 75, 25, 43],
    ),
    "class_balanced": (
        orders.class_balanced(np.arange(100) % 7, **WHEN),
        [46, 40, 6, 80, 56, 36, 37, 7, 66, 92],
    ),
    "function": (
        orders.from_function(lambda n, rng: rng.bit_generator.random_raw(10) % n, 100, **WHEN),
        [77, 21, 78, 28, 0, 99, 14, 25, 42, 53],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_orders_never_change(name):
    """Whoever resumes a run with a newer version must find the same epoch: these values are for ever."""
    order, wanted = GOLDEN[name]
    assert order[:10].tolist() == wanted


def test_blocks_by_their_sizes() -> None:
    """The same order as from a number for every sample, with memory for the blocks alone."""
    sizes = [3, 1, 2, 5]
    long, short = orders.BlockIndex(np.repeat(np.arange(4), sizes)), orders.BlockIndex.of_sizes(sizes)
    result = [orders.quasi_random(11, seed=1, epoch=2, blocks=item, window=2)[:] for item in (long, short)]
    assert result[0].tolist() == result[1].tolist()
    with pytest.raises(OptionError, match="at least 1"):
        orders.BlockIndex.of_sizes([3, 0])


def test_single_positions_are_those_of_the_row() -> None:
    order = orders.random(100, seed=1, epoch=0)
    assert [order[at] for at in range(-100, 100)] == [*order[:].tolist(), *order[:].tolist()]
    for at in (100, -101):
        with pytest.raises(SampleIndexError):
            order[at]


def large(n: int, seed: int, epoch: int, each: int, lanes: int, size: int) -> dict[str, Order]:
    """Orders of many samples that take no memory for them; blocks have from 1 to 2 * each samples."""
    count = max(1, min(n, n // each))
    counts = np.full(count, n // count)
    counts[: n % count] += 1
    move = np.minimum(counts[::2][: count // 2] - 1, counts[1::2])
    counts[: 2 * (count // 2) : 2] -= move
    counts[1::2] += move
    when = {"seed": seed, "epoch": epoch}
    by = {"blocks": BlockIndex.of_sizes(counts), "lanes": lanes, "lane_size": size, **when}
    return {
        "random": orders.random(n, **when),
        "windowed": orders.windowed(n, window=each, **when),
        "all windowed": orders.windowed(n, window=n, **when),
        "shards": orders.shards(n, **by),
        "quasi_random": orders.quasi_random(n, window=1 + each % 5, **by),
    }


@given(st.integers(1, 2**48), seeds, st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 300), st.data())
def test_one_position_alone_is_that_of_many(n, seed, epoch, lanes, size, data):
    each = data.draw(st.integers(-(-n // 1000), max(n, 1)))
    places = st.lists(st.integers(0, n - 1), min_size=1, max_size=10)
    at = [near % n for item in data.draw(places) for near in (item, item + 1, item - 1)]
    world_size = data.draw(st.integers(1, 10**4))
    rank = data.draw(st.integers(0, world_size - 1))
    for name, order in large(n, seed, epoch, each, lanes, size).items():
        many = order.take(at).tolist()
        assert [order[item] for item in at] == many, name
        assert all(type(order[item]) is int for item in at[:1])
        ours = shard(order, rank=rank, world_size=world_size, batch_size=size)
        step = data.draw(st.integers(0, ours.steps - 1))
        if len(ours.positions(step)) <= 300:
            assert [order[position] for position in ours.positions(step)] == ours.batch(step).tolist(), name


def test_the_native_arithmetic_refuses_what_would_lead_out_of_its_arrays() -> None:
    turns, starts, firsts, rows = map(np.array, ([1, 0], [0, 3, 5], [0, 2, 5], [4, 3, 2, 1, 0]))
    assert _native.walk(turns, starts, firsts, rows, 0) == 2
    for at in (-1, 5, np.array([0, 5])):
        with pytest.raises(ValueError, match="borders"):
            _native.walk(turns, starts, firsts, rows, at)
        with pytest.raises(ValueError, match="borders"):
            _native.shuffle_windows(starts, 1, at)
        with pytest.raises(ValueError, match="not below"):
            _native.shuffle(5, 1, at)
        with pytest.raises(ValueError, match="not below"):
            _native.shuffle_runs(5, 2, [1], 1, at)
    with pytest.raises(ValueError, match="no such block"):
        _native.walk(turns + 1, starts, firsts, rows, 0)
    with pytest.raises(ValueError, match="no such row"):
        _native.walk(turns, starts, firsts, rows[:2], 0)
    with pytest.raises(ValueError, match="entries"):
        _native.walk(turns[:1], starts, firsts, rows, 0)
    with pytest.raises(ValueError, match="run"):
        _native.shuffle_runs(5, 0, [0], 1, 0)
    with pytest.raises(ValueError, match="run"):
        _native.shuffle_runs(5, 2, [2], 1, 0)
    with pytest.raises(ValueError, match="lanes"):
        _native.in_lanes(0, 1, 1, 0)
    with pytest.raises(ValueError, match="lanes"):
        _native.in_lanes(2**40, 2**40, 1, 0)


@given(st.integers(1, 10**10), st.integers(0, 2**32), st.data())
def test_a_random_order_tells_where_a_sample_stands(n, seed, data):
    result = orders.random(n, seed=seed, epoch=1)
    at = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), dtype=np.int64)
    assert result.find(result.take(at)).tolist() == at.tolist()
    assert orders.sequential(n).find(at).tolist() == at.tolist()


def test_orders_that_repeat_samples_cannot_tell():
    with pytest.raises(OptionError, match="cannot tell"):
        orders.weighted([1, 2, 3, 4], seed=0, epoch=0).find(np.arange(4))


# -- orders as objects --------------------------------------------------------------------------------------


def test_orders_by_name() -> None:
    assert orders.by_name("quasi_random", window=64).options() == {"window": 64}
    assert isinstance(orders.by_name("random"), orders.Random)
    for name, options, message in (
        ("rnadom", {}, "there is no order 'rnadom'"),
        ("random", {"window": 3}, "window"),
        ("weighted", {}, "weights"),
    ):
        with pytest.raises(OptionError, match=message):
            orders.by_name(name, **options)


def test_orders_are_described() -> None:
    described = [orders.describe(order) for order in ("shards", orders.Random(), orders.Windowed(5), [1, 0])]
    assert described == ["shards", "random", "Windowed(window=5)", "custom"]
