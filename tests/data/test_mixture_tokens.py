"""Mixtures whose weights count tokens, and states of mixtures that have changed."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.errors import OptionError

SHARES = {"a": 5.0, "b": 3.0, "c": 2.0}


def corpus(folder: Path, suffix: str = ".idx") -> dict[str, tuple[Path, float]]:
    """Three sources whose documents are about 10, 60 and 300 tokens long; tokens tell the source."""
    result = {}
    for number, (name, weight) in enumerate(SHARES.items()):
        rng = np.random.default_rng(number)
        sizes = rng.lognormal([2.3, 4.0, 5.6][number], 0.6, [900, 300, 80][number]).astype(int).clip(1, 900)
        path = folder / f"{name}{suffix}"
        bp.convert(bp.open({"tokens": [np.full(size, number, np.int32) for size in sizes]}), path)
        result[name] = (path, weight)
    return result


def lengths_of(mix: bp.Mix, samples: Any) -> Any:
    return np.array([len(mix[int(sample)]["tokens"]) for sample in samples])


def test_shares_are_of_tokens_at_every_position(tmp_path: Path) -> None:
    mix = bp.Mix(corpus(tmp_path), by="tokens", stop="all")
    order = mix.epoch_order("random", seed=3, epoch=1)
    samples = order[:]
    source, lengths = mix.origin(samples)[0], lengths_of(mix, samples)
    given = np.zeros((3, len(samples)))
    given[source, np.arange(len(samples))] = lengths
    given = np.cumsum(given, axis=1)
    share = np.array([0.5, 0.3, 0.2])[:, None] * given.sum(axis=0)
    longest = [lengths[source == number].max() for number in range(3)]
    assert np.abs(given - share).max() <= sum(longest) / 2
    # Every document of every source comes, and none twice in a pass.
    assert len(np.unique(samples)) == len(samples)
    assert set(zip(*mix.origin(samples)[:2], strict=True)) == {
        (number, row) for number, size in enumerate([900, 300, 80]) for row in range(size)
    }
    end = len(samples)
    assert order.blend.counts(end).tolist() == np.bincount(source).tolist()
    assert order.blend.tokens(end).tolist() == given[:, -1].tolist()
    assert order.blend.counts(777).tolist() == np.bincount(source[:777], minlength=3).tolist()
    first, last = order.blend.span(777)
    assert first.tolist() == [int(np.argmax(source == number)) for number in range(3)]
    assert last.tolist() == [int(np.flatnonzero(source[:777] == number)[-1]) for number in range(3)]


@pytest.mark.parametrize("suffix", [".idx", ".parquet", ".jsonl"])
def test_lengths_come_from_any_format(tmp_path: Path, suffix: str) -> None:
    mix = bp.Mix(corpus(tmp_path, suffix), by="tokens", stop=600)
    seen = mix.seen()
    total = sum(item.tokens for item in seen)
    assert [round(item.tokens / total, 1) for item in seen] == [0.5, 0.3, 0.2]
    assert sum(item.samples for item in seen) == 600


def test_an_epoch_by_tokens_ends_as_one_by_samples_does(tmp_path: Path) -> None:
    sources = corpus(tmp_path)
    sizes = {"a": 900, "b": 300, "c": 80}
    first = {item.name: item for item in bp.Mix(sources, by="tokens").seen()}
    assert sum(value.samples == sizes[name] for name, value in first.items()) == 1
    assert all(value.samples <= sizes[name] for name, value in first.items())
    every = {item.name: item for item in bp.Mix(sources, by="tokens", stop="all").seen()}
    assert all(value.samples >= sizes[name] for name, value in every.items())
    twice = bp.Mix(sources, by="tokens", stop="all", max_repeats=1)
    assert {item.name: item.samples for item in twice.seen()} == sizes
    assert len(bp.Loader(twice, 1)) == 1280
    # Without weights, sources are through together.
    plain = bp.Mix([path for path, _ in sources.values()], by="tokens", stop="all")
    assert sum(item.samples for item in plain.seen()) <= 1280 + 3
    endless = bp.Mix(sources, by="tokens", stop="never")
    assert endless.seen(5000)[0].passes > 1


def test_other_weights_hold_from_a_position_on(tmp_path: Path) -> None:
    mix = bp.Mix(corpus(tmp_path), by="tokens", schedule=[(400, [0, 1, 1])], stop=800)
    before, after = mix.blend.tokens(400), mix.blend.tokens(800)
    np.testing.assert_allclose(before / before.sum(), [0.5, 0.3, 0.2], atol=0.05)
    rest = after - before
    np.testing.assert_allclose(rest / rest.sum(), [0, 0.5, 0.5], atol=0.05)
    assert mix.weights(399).tolist() == [0.5, 0.3, 0.2]
    assert mix.weights(400).tolist() == [0, 0.5, 0.5]


@pytest.mark.parametrize("pack", [None, bp.Pack(512, eos=7, window=64)])
@pytest.mark.parametrize("order", ["random", "sequential"])
def test_a_run_by_tokens_is_resumed_on_other_ranks(tmp_path: Path, pack: Any, order: str) -> None:
    sources = corpus(tmp_path)

    def loader(rank: int = 0, world_size: int = 1, size: int = 8) -> bp.Loader:
        mix = bp.Mix(sources, by="tokens")
        return bp.Loader(
            mix, size, order=order, seed=5, pack=pack, rank=rank, world_size=world_size, ids=True
        )

    def rows(batches: Any) -> list[Any]:
        return [row.tolist() for batch in batches for row in batch["tokens" if pack else "ids"]]

    whole = rows(loader())
    begun = loader()
    batches = iter(begun)
    taken = rows([next(batches) for _ in range(3)])
    state = json.loads(json.dumps(begun.state_dict()))
    batches.close()
    parts = [loader(rank, 2, 4) for rank in range(2)]
    for part in parts:
        part.load_state_dict(state)
    result = [list(part) for part in parts]
    for step in range(max(map(len, result))):
        for item in result:
            taken += rows(item[step : step + 1])
    assert taken == whole


def test_what_cannot_be_counted_is_refused(tmp_path: Path) -> None:
    data = bp.open(
        {"text": ["a", "b"], "n": [1, 2], "tokens": [np.zeros(0, np.int64), np.zeros(0, np.int64)]}
    )
    for by, text in (("text", "is Text"), ("token", "did you mean"), ("tokens", "but no tokens")):
        with pytest.raises(OptionError, match=text):
            bp.Mix({"one": (data, 1.0)}, by=by)
    assert bp.Mix({"one": (data, 1.0)}, by="n").seen()[0].tokens == 3


def test_a_state_of_another_mixture_names_what_changed(tmp_path: Path) -> None:
    sources = corpus(tmp_path)

    def loader(weights: Sequence[float], **options: Any) -> bp.Loader:
        paths = [path for path, _ in sources.values()][: len(weights)]
        named = {path.stem: (path, weight) for path, weight in zip(paths, weights, strict=True)}
        return bp.Loader(bp.Mix(named, stop=500, **options), 8, order="random")

    first = loader([5, 3, 2])
    next(batches := iter(first))
    state = json.loads(json.dumps(first.state_dict()))
    batches.close()
    loader([5, 3, 2]).load_state_dict(state)
    for weights, options, text in (
        ([5, 4, 2], {}, "the weight of b was 3 and is 4"),
        ([5, 3], {}, "it was made with c"),
        ([5, 3, 2], {"by": "tokens"}, "weights counted samples, and now tokens"),
        ([5, 3, 2], {"seed": 4}, "the seed of the mixture was 0, and now 4"),
    ):
        with pytest.raises(OptionError, match=f"mixture is not the one.*{text}"):
            loader(weights, **options).load_state_dict(state)
