"""Skipping: samples and steps are left out, and all others keep their positions, draws and ranks."""

from __future__ import annotations

import itertools
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
from batchplant.errors import DamagedError, OptionError

# -- the reference: a list, loops, no arithmetic ------------------------------------------------------------


def steps_of(length: int, start: int, world: int, size: int, drop_last: bool) -> list[list[list[int]]]:
    """The positions of every step, by rank, of a run without skips."""
    whole, steps = world * size, []
    bounds = list(range(start, length, whole))
    bounds = [*bounds, length] if not drop_last else [bound for bound in bounds if bound + whole <= length]
    if drop_last:
        bounds = [*bounds, bounds[-1] + whole] if bounds else []
    elif len(bounds) > 2 and size > 1 and bounds[-1] - bounds[-2] < world:
        # Too few for every rank: the last two steps share what remains.
        bounds[-2] = bounds[-3] + (length - bounds[-3]) // 2
    for first, last in itertools.pairwise(bounds):
        least, more = divmod(last - first, world)
        ranks, at = [], first
        for rank in range(world):
            count = least + (rank < more)
            ranks.append(list(range(at, at + count)))
            at += count
        steps.append(ranks)
    return steps


class Reference:
    """A run that skips, from the order of an epoch alone."""

    def __init__(self, order: list[int], samples: set[int], ranges: list[tuple[int, int]], replace: str):
        self.order, self.samples, self.replace = order, samples, replace
        self.gone = {place for first, stop in ranges for place in range(first, stop)}

    def batch(self, positions: list[int]) -> list[int]:
        batch = []
        for position in positions:
            if position in self.gone:
                continue
            if self.order[position] not in self.samples:
                batch.append(self.order[position])
            elif self.replace == "next":
                place = position
                while self.order[place] in self.samples or place in self.gone:
                    place = (place + 1) % len(self.order)
                batch.append(self.order[place])
        return batch

    def run(self, start: int, world: int, size: int, drop_last: bool) -> list[tuple[list[list[int]], int]]:
        """The batches of all ranks at every step, and the position after it."""
        steps = steps_of(len(self.order), start, world, size, drop_last)
        return [
            ([self.batch(positions) for positions in ranks], max(map(max, filter(None, ranks))) + 1)
            for ranks in steps
            if any(place not in self.gone for positions in ranks for place in positions)
        ]


# -- properties ---------------------------------------------------------------------------------------------


def loaders(data: Any, world: int, size: int, **options: Any) -> list[bp.Loader]:
    options = {"ids": True, "workers": 1, "seed": 5, **options}
    return [bp.Loader(data, size, rank=rank, world_size=world, **options) for rank in range(world)]


@given(
    st.integers(1, 45),
    st.sampled_from(["sequential", "random", "windowed"]),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(0, 4)), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from(["drop", "next"]),
    st.data(),
)
def test_a_run_with_any_skips_and_worlds_is_that_of_the_reference(n, order, parts, drop_last, replace, data):
    samples = data.draw(st.sets(st.integers(0, n - 1), max_size=n - 1))
    pairs = st.tuples(st.integers(0, n), st.integers(0, 12)).map(lambda pair: (pair[0], sum(pair)))
    positions = data.draw(st.lists(pairs, max_size=2))
    steps = data.draw(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=1))
    steps = [(first, first + count) for first, count in steps]
    source = {"x": np.arange(n)}
    options = {"order": order, "drop_last": drop_last}
    sequence = [int(i) for batch in loaders(source, 1, n, order=order)[0] for i in batch["ids"]]
    # Steps count as the first world takes them.
    world, size, _ = parts[0]
    taken = [[place for ranks in plan for place in ranks] for plan in steps_of(n, 0, world, size, drop_last)]
    ranges = list(positions)
    for first, stop in steps:
        places = [place for plan in taken[first:stop] for place in plan]
        ranges = [*ranges, (min(places), max(places) + 1)] if places else ranges
    reference = Reference(sequence, samples, ranges, replace)
    if replace == "next" and all(place in reference.gone or sequence[place] in samples for place in range(n)):
        return
    skip = bp.Skip(samples=sorted(samples), steps=steps, positions=positions, replace=replace)
    start, state = 0, None
    for number, (world, size, count) in enumerate(parts):
        # A state brings what is skipped, so later parts need not be told.
        ranks = loaders(source, world, size, **options, skip=None if number else skip)
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(json.loads(json.dumps(state)))
        expected = reference.run(start, world, size, drop_last)
        assert [len(loader) for loader in ranks] == [len(reference.run(0, world, size, drop_last))] * world
        epochs = [iter(loader) for loader in ranks]
        last = number == len(parts) - 1
        for batches, position in expected if last else expected[:count]:
            assert [next(epoch)["ids"].tolist() for epoch in epochs] == batches
            start = position
        if last:
            assert [next(epoch, None) for epoch in epochs] == [None] * world
        states = [loader.state_dict() for loader in ranks]
        if not last and (count == 0 or len(expected) <= count):
            # Nothing was taken, or the epoch is over: a state is of the next one.
            for loader in ranks:
                loader.close()
            return
        assert all(state == states[0] for state in states)
        state = states[0]
        for loader in ranks:
            loader.close()


def test_draws_of_all_other_samples_stay(tmp_path):
    with bp.create(str(tmp_path / "x.beton"), {"image": bp.Image()}) as out:
        rng = np.random.default_rng(0)
        for _ in range(12):
            out.append({"image": rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)})
    steps = {"image": [bp.ops.RandomResizedCrop(5), bp.ops.RandomHorizontalFlip()]}

    def by_sample(**options: Any) -> dict[int, bytes]:
        loader = bp.Loader(tmp_path / "x.beton", 4, order="random", pipelines=steps, ids=True, **options)
        return {
            int(i): image.tobytes()
            for batch in loader
            for i, image in zip(batch["ids"], batch["image"], strict=True)
        }

    every, fewer = by_sample(), by_sample(skip=bp.Skip(samples=[2, 7]))
    assert fewer == {sample: image for sample, image in every.items() if sample not in (2, 7)}


# -- packed rows, mixtures, lists ---------------------------------------------------------------------------


def test_documents_that_are_skipped_become_padding():
    rng = np.random.default_rng(3)
    texts = [rng.integers(1, 99, size).astype(np.int32) for size in rng.integers(1, 20, 40)]
    pack = bp.Pack(16, eos=None, pad=0, outputs=("pieces",))

    def rows(**options: Any) -> list[Any]:
        loader = bp.Loader({"tokens": texts}, 2, order="random", pack=pack, ids=True, **options)
        return [(batch["tokens"], batch["pieces"], batch["ids"]) for batch in loader]

    plain, skipped = rows(), rows(skip=bp.Skip(samples=[4, 9, 17]))
    assert len(plain) == len(skipped)
    for (tokens, pieces, ids), (left, left_pieces, left_ids) in zip(plain, skipped, strict=True):
        assert left_ids.tolist() == [i for i in ids.tolist() if i not in (4, 9, 17)]
        expected = tokens.copy()
        for row, place, size, _, document in pieces.tolist():
            if ids[document] in (4, 9, 17):
                expected[row, place : place + size] = 0
        # Pieces move to the front of their rows: the same tokens, in the same rows.
        assert [sorted(row[row > 0]) for row in left] == [sorted(row[row > 0]) for row in expected]
        assert sum(left_pieces[:, 2]) == sum(
            size for _, _, size, _, document in pieces.tolist() if ids[document] not in (4, 9, 17)
        )
    without = rows(skip=bp.Skip(steps=(1, 3)))
    assert [item[0].tolist() for item in without] == [item[0].tolist() for item in plain[:1] + plain[3:]]
    loader = bp.Loader({"tokens": texts}, 2, order="random", pack=pack, skip=bp.Skip(samples=[4]))
    assert 4 not in {sample for step in range(len(loader)) for sample in loader.replay(step).samples.tolist()}


def test_a_sample_of_a_mixture_is_skipped_in_every_pass():
    sources = [({"x": np.arange(5)}, 0.7), ({"x": np.arange(100, 130)}, 0.3)]

    def values(**options: Any) -> list[int]:
        mix = bp.Mix(sources, stop=60)
        return [int(x) for batch in bp.Loader(mix, 6, order="random", **options) for x in batch["x"]]

    every = values()
    assert every.count(3) > 1
    assert values(skip=bp.Skip(samples=[3])) == [x for x in every if x != 3]


def test_a_list_of_bad_samples_is_skipped(tmp_path: Path):
    files = []
    for number in range(2):
        files.append(str(tmp_path / f"{number}.npz"))
        with bp.create(files[-1], {"x": bp.Int()}) as out:
            for sample in range(6):
                out.append({"x": 10 * number + sample})
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"path": files[1], "sample": 2}) + "\n")
    for replace, expected in (("drop", [8, 9, 10, 11]), ("next", [9, 9, 10, 11])):
        loader = bp.Loader(files, 4, ids=True, skip=bp.Skip(file=bad, replace=replace))
        assert [batch["ids"].tolist() for batch in loader][2] == [i for i in expected if i != 8]  # 8 is bad
    assert [len(batch["x"]) for batch in bp.Loader(files, 4, skip=bad)] == [4, 4, 3]
    again = pickle.loads(pickle.dumps(bp.Loader(files, 4, skip=bad)))
    assert [len(batch["x"]) for batch in again] == [4, 4, 3]
    # The list is in the state, so the file is not needed to go on.
    state = bp.Loader(files, 4, skip=bad).state_dict()
    bad.write_text("{")
    loader = bp.Loader(files, 4)
    loader.load_state_dict(state)
    assert [len(batch["x"]) for batch in loader] == [4, 4, 3]
    with pytest.raises(DamagedError, match="no list of bad samples"):
        bp.Loader(files, 4, skip=bad)


def test_what_cannot_be_skipped_is_an_error():
    data = {"x": np.arange(8)}
    for skip, message in (
        (3, "skip is a Skip"),
        (bp.Skip(samples=[8]), "there are 8"),
    ):
        with pytest.raises((OptionError, IndexError), match=message):
            bp.Loader(data, 2, skip=skip)
    for options, message in (
        ({"replace": "zero"}, "replace is drop or next"),
        ({"steps": (3, 1)}, "the end of steps"),
        ({"steps": [(1, 2, 3, 4)]}, "are .first, end."),
        ({"samples": [0.5]}, "whole numbers"),
    ):
        with pytest.raises(OptionError, match=message):
            bp.Skip(**options)
    with pytest.raises(OptionError, match="gives a sample twice"):
        bp.Loader(data, 2, evaluate=True, skip=bp.Skip(samples=[1], replace="next"))
    with pytest.raises(OptionError, match="every sample"):
        next(iter(bp.Loader(data, 2, skip=bp.Skip(samples=range(8), replace="next"))))
    loader = bp.Loader(data, 2)
    state = loader.state_dict()
    with pytest.raises(OptionError, match="no state of a loader"):
        loader.load_state_dict({**state, "skip": {"samples": "all"}})
