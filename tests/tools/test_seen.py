"""Run records: `why` agrees with what a training loop received, whatever happened to the run."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import batchplant as bp
from batchplant import cli
from batchplant.errors import BusyError, DamagedError, NotFoundError, OptionError, SampleIndexError
from batchplant.tools.seen import Run
from loaders import numbers, write_jpeg


@pytest.fixture(scope="module")
def data(tmp_path_factory: Any) -> str:
    folder = tmp_path_factory.mktemp("seen")
    numbers(folder / "shard.npz", 19)
    return numbers(folder / "n.npz", 57)


def play(loaders: list[bp.Loader], steps: int, log: dict[int, list[list[int]]], weights: Any = None) -> None:
    """Take steps on all ranks, epoch after epoch, and log the samples by step; change weights meanwhile."""
    epochs = [iter(loader) for loader in loaders]
    for number in range(steps):
        if weights is not None and number == 2:
            for loader in loaders:
                loader.set_weights(weights)
        batches = [next(epoch, None) for epoch in epochs]
        if batches[0] is None:
            epochs = [iter(loader) for loader in loaders]
            batches = [next(epoch, None) for epoch in epochs]
        if batches[0] is None:
            return
        step = loaders[0].steps - 1
        assert {loader.steps - 1 for loader in loaders} == {step}
        log[step] = [batch["ids"].tolist() for batch in batches]
        for loader, batch in zip(loaders, batches, strict=True):
            loader.note(loss=float(step), losses=batch["ids"])


def source(kind: str, path: str) -> Any:
    if kind == "mix":
        return bp.Mix([(bp.open(path), 0.7), (bp.open(path), 0.3)], stop=80)
    # Several files have blocks, which some orders need.
    return path if kind == "pack" else bp.concat([os.path.join(os.path.dirname(path), "shard.npz")] * 3)


# The run goes from 4 ranks to 3 and to 5.
RANKS = [(5, 1, 4, 2), (3, 0, 3, 4), (6, 0, 5, 2)]


@settings(
    # An example is a run of several ranks, and three of them stand below.
    max_examples=settings.default.max_examples // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    st.sampled_from(["plain", "mix", "pack"]),
    st.sampled_from(["sequential", "random", "shards", "quasi_random", "windowed"]),
    # Steps of a part, steps that are lost before the next resumes, ranks, batch size.
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 3), st.integers(1, 5), st.integers(2, 5)),
        min_size=1,
        max_size=3,
    ),
    st.lists(st.integers(0, 56), max_size=5),
    st.sampled_from(["drop", "next"]),
    st.booleans(),
    st.none() | st.sampled_from([(0.1, 0.9), (1, 1), (1, 0)]),
)
@example("plain", "quasi_random", RANKS, [3], "next", True, None)
@example("mix", "random", RANKS, [3, 9], "drop", True, (0.1, 0.9))
@example("pack", "random", RANKS, [3], "drop", True, None)
def test_why_agrees_with_a_logging_loop(
    tmp_path, data, kind, order, parts, skipped, replace, steps_too, weights
):
    path = str(tmp_path / "run.bprun")
    for file in tmp_path.iterdir():
        file.unlink()
    order = order if kind == "plain" or order == "sequential" else "random"
    options: dict[str, Any] = {"order": order, "ids": True, "workers": 1}
    if kind == "pack":
        data = str(tmp_path / "t.npz")
        with bp.create(data, {"tokens": bp.Tensor("int32", (None,))}) as out:
            for number in range(57):
                out.append({"tokens": np.arange(1 + number % 7, dtype=np.int32)})
        options["pack"] = bp.Pack(8, eos=None)
    replace = "drop" if kind == "pack" else replace
    skip = bp.Skip(samples=skipped, steps=[(2, 4)] if steps_too else [], replace=replace)
    log: dict[int, list[list[int]]] = {}
    state = None
    for number, (steps, lost, world, size) in enumerate(parts):
        ranks = [
            bp.Loader(source(kind, data), size, rank=rank, world_size=world, record=path,
                      skip=None if number else skip, **options)
            for rank in range(world)
        ]  # fmt: skip
        for loader in ranks:
            if state is not None:
                loader.load_state_dict(state)
        play(ranks, steps, log, weights if kind == "mix" else None)
        state = json.loads(json.dumps(ranks[0].state_dict()))
        play(ranks, lost, dict(log))
        for loader in ranks:
            loader.close()
    with Run(path) as run:
        # Steps behind the last state were taken, too.
        for step, batches in log.items():
            assert [run.ids(step, rank).tolist() for rank in range(len(batches))] == batches
            seen = list(run.samples(step, draws=False))
            assert [item.loss for item in seen] == [float(np.float16(i)) for batch in batches for i in batch]
            assert run.notes().values(step) == {"loss": float(step)}
        if log:
            step = max(log)
            rank = len(log[step]) - 1
            for row, sample in enumerate(log[step][rank][:2]):
                assert (step, rank, row) in run.appearances(sample)
                for at, other, place in run.appearances(sample):
                    base = run.ids(at, other)[place]
                    assert base % 114 == sample % 114 if kind == "mix" else base == sample
        with pytest.raises(SampleIndexError):
            run.ids(run.steps)


def test_positions_worst_and_spikes(data, tmp_path, capsys):
    path = str(tmp_path / "run.bprun")
    rng = np.random.default_rng(0)
    loaders = [
        bp.Loader(data, 4, order="random", rank=rank, world_size=2, record=path, ids=True)
        for rank in range(2)
    ]
    for _ in range(6):
        for batches in zip(*loaders, strict=True):
            ids = np.concatenate([batch["ids"] for batch in batches])
            for loader, batch in zip(loaders, batches, strict=True):
                # Sample 5 spoils every step that it is in.
                loss = rng.normal(1, 0.01) + 5 * (5 in ids)
                loader.note(loss=loss, losses=1 + 5 * (batch["ids"] == 5))
    run = Run(path)
    seen = run.appearances(5)
    assert len(seen) == 6
    for step, rank, row in seen:
        stretch = run.stretch(step)
        position = loaders[0]._make_order(stretch.epoch).find(np.array([5]))[0]
        assert run.step_at(stretch.epoch, int(position)) == (step, rank)
        assert run.ids(step, rank)[row] == 5
    assert [item.sample for item in run.worst(6)] == [5] * 6
    spikes = run.spikes()
    # What is usual is not known at once.
    assert {step.step for step in spikes.steps} == {step for step, _, _ in seen if step >= 10}
    assert spikes.samples[0] == (5, len(spikes.steps))
    with pytest.raises(OptionError, match="no values of accuracy"):
        run.spikes("accuracy")
    step = seen[0][0]
    assert cli.main(["why", path, "--step", str(step), "--json", "-n", "0"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["count"] == 8
    assert 5 in {row["sample"] for row in told["samples"]}
    for arguments, text in (
        ([], "48 steps"), (["--step", str(step)], "n.npz"), (["--sample", "5"], f"{step}"),
        (["--worst", "3"], "6"),
        (["--spikes"], "loss jumps in"), (["--position", "0", "--epoch", "1"], "sample"),
        (["--step", str(step), "--export", str(tmp_path / "step.csv")], "wrote"),
    ):  # fmt: skip
        assert cli.main(["why", path, *arguments]) == 0
        assert text in capsys.readouterr().out
    assert len(bp.open(tmp_path / "step.csv")) == 8
    assert cli.main(["why", path, "--step", "48"]) in (1, 2)
    assert cli.main(["why", path, "--step", "1", "--worst", "3"]) == 2


def test_draws_and_augmented_samples_are_those_of_the_run(tmp_path):
    photos = write_jpeg(tmp_path / "photos.beton", 12, damaged=[4])
    steps = {"image": [bp.ops.RandomResizedCrop(8), bp.ops.RandomHorizontalFlip()]}
    path = str(tmp_path / "run.bprun")
    loader = bp.Loader(
        photos, 4, order="random", seed=3, pipelines=steps, ids=True, on_error="skip", record=path
    )
    batches = [batch for _ in range(2) for batch in loader]
    with Run(path) as run:
        for step, batch in enumerate(batches):
            assert run.ids(step).tolist() == batch["ids"].tolist()
            seen = list(run.samples(step))
            assert all(item.draws["image"].box for item in seen)
            shown, images = run.augmented(seen)
            assert set(images) == {"image"}
            assert np.array_equal(np.stack(shown["image"]), batch["image"])
            assert shown["sample"] == batch["ids"].tolist()


def test_a_record_survives_whatever_kills_the_run(data, tmp_path):
    path = tmp_path / "run.bprun"
    loader = bp.Loader(data, 4, record=path, ids=True)
    first = iter(loader)
    seen = [next(first)["ids"].tolist() for _ in range(3)]
    state = loader.state_dict()
    with pytest.raises(BusyError):
        next(iter(bp.Loader(data, 4, record=path)))
    assert Run(path).steps == 3
    loader.close()
    whole = path.read_bytes()
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        try:
            steps = Run(path).steps
        except DamagedError:
            assert b'"process"' not in whole[:cut] or whole[:cut].count(b"\n") == 0
        else:
            assert steps in (0, 3)
    # A line is torn, and the next process goes on behind it.
    path.write_bytes(whole + b'{"stretch":{"step":3,')
    again = bp.Loader(data, 4, record=path, ids=True)
    again.load_state_dict(state)
    seen += [batch["ids"].tolist() for batch in again]
    with Run(path) as run:
        assert [run.ids(step).tolist() for step in range(run.steps)] == seen
    for damage in (
        b"no record",
        b'{"process":9}\n',
        b'{"stretch":{}}\n',
        whole.replace(b'"epoch":0', b'"epoch":-1'),
    ):
        path.write_bytes(damage)
        with pytest.raises(bp.DataError):
            Run(path)
    with pytest.raises(NotFoundError):
        Run(tmp_path / "none")


def test_a_record_is_small_and_notes_take_few_bytes(data, tmp_path):
    path = tmp_path / "run.bprun"
    loader = bp.Loader(data, 57, record=path)
    for _ in range(300):
        for batch in loader:
            loader.note(losses=batch["value"])
    lines = path.read_bytes().split(b"\n")
    # A million steps of a thousand epochs take a thousand such lines.
    assert max(len(line) for line in lines[2:]) < 120
    assert len(lines[0]) + len(lines[1]) < 4096
    notes = sum(os.path.getsize(file) for file in tmp_path.glob("run.bprun.*"))
    assert notes <= 3 * 300 * 57
    with pytest.raises(OptionError, match="record="):
        bp.Loader(data, 4).note(loss=1.0)


def test_code_and_data_in_memory_are_given_again(data, tmp_path):
    path = tmp_path / "run.bprun"
    columns = {"x": np.zeros((40, 1000))}

    def order(n: int, rng: Any) -> Any:
        return rng.permutation(n)

    with contextlib.closing(bp.Loader(columns, 4, order=order, record=path, ids=True)) as loader:
        seen = [batch["ids"].tolist() for batch in loader]
    with pytest.raises(OptionError, match="give it"):
        Run(path).ids(0)
    with pytest.raises(OptionError, match="order of the run are code"):
        Run(path, source=columns).ids(0)
    with Run(path, loader=bp.Loader(columns, 7, order=order)) as run:
        assert [run.ids(step).tolist() for step in range(run.steps)] == seen
    with pytest.raises(bp.DataError, match="40 samples"):
        Run(path, source=data).ids(0)
