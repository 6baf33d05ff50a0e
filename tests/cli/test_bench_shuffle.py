"""`batchplant bench shuffle`, and the measures of randomness and cost behind it."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import repository
from batchplant import order as orders
from batchplant.cli import build_parser, main
from batchplant.cli.bench import shuffle
from batchplant.order import quality

N, CLASSES, BLOCK = 2000, 8, 50
QUICK = ["--seconds", "0.01", "--rounds", "1", "--quiet"]


# -- the measures -------------------------------------------------------------------------------------------


def test_a_uniform_shuffle_measures_one() -> None:
    result = [np.random.default_rng(seed).permutation(N) for seed in range(50)]
    assert np.mean([quality.displacement(item) for item in result]) == pytest.approx(1, abs=0.01)
    assert np.mean([quality.spread(item) for item in result]) == pytest.approx(1, abs=0.01)
    assert np.mean([quality.kept_neighbours(item) for item in result]) == pytest.approx(2 / N, rel=0.3)


def test_what_stands_still_measures_nothing() -> None:
    still = np.arange(N)
    assert quality.displacement(still) == 0
    assert quality.spread(still) == pytest.approx(3 / (N + 1))
    assert quality.kept_neighbours(still) == 1
    # Turned round, every sample moves and no neighbour leaves another.
    assert quality.displacement(still[::-1]) == pytest.approx(1.5, rel=0.01)
    assert quality.kept_neighbours(still[::-1]) == 1


@given(st.integers(2, 60), st.integers(0, 1000))
def test_measures_agree_with_their_definition(n: int, seed: int) -> None:
    taken = np.random.default_rng(seed).permutation(n)
    place = {int(sample): at for at, sample in enumerate(taken)}
    moved = sum(abs(place[sample] - sample) for sample in range(n)) / n
    assert quality.displacement(taken) == pytest.approx(moved / ((n * n - 1) / (3 * n)))
    apart = sum(abs(place[sample] - place[sample + 1]) for sample in range(n - 1)) / (n - 1)
    assert quality.spread(taken) == pytest.approx(apart / ((n + 1) / 3))


def test_entropy_of_labels_and_batches() -> None:
    codes = np.repeat(np.arange(4), 25)
    assert quality.entropy(codes) == pytest.approx(2)
    assert quality.batch_entropy(codes, 25) == 0
    assert quality.batch_entropy(codes, 50) == pytest.approx(1)
    assert quality.batch_entropy(codes, 1000) == pytest.approx(2)
    assert quality.batch_entropy(np.tile([0, 1, 2, 3], 25), 4) == pytest.approx(2)
    # A last batch that is not full does not count.
    assert quality.batch_entropy(np.array([0, 1, 0, 1, 0]), 4) == pytest.approx(1)
    assert str(quality.entropy(np.zeros(9, np.int64))) == "0.0"


@given(st.lists(st.integers(0, 5), min_size=1, max_size=80), st.integers(1, 20))
def test_batch_entropy_is_the_mean_of_each(codes: list[int], size: int) -> None:
    values = np.array(codes, np.int64)
    size = min(size, len(values))
    each = [quality.entropy(values[at : at + size]) for at in range(0, len(values) - size + 1, size)]
    assert quality.batch_entropy(values, size) == pytest.approx(np.mean(each), abs=1e-9)


def test_autocorrelation_finds_a_period_and_noise() -> None:
    wave = np.tile([0, 1, 0, -1], 500)
    assert quality.autocorrelation(wave, 4) == pytest.approx([0, -1, 0, 1], abs=0.01)
    noise = np.random.default_rng(0).random(N)
    assert np.abs(quality.autocorrelation(noise, 8)).max() < 0.1
    assert quality.autocorrelation(np.ones(9), 3).tolist() == [0, 0, 0]
    assert quality.autocorrelation(np.arange(2), 5)[1:].tolist() == [0, 0, 0, 0]
    labels = np.repeat(np.arange(4), 500)
    assert quality.label_autocorrelation(labels, 2) == pytest.approx([1, 1], abs=0.01)
    assert quality.label_autocorrelation(np.tile(np.arange(4), 500), 4) == pytest.approx(
        [-1 / 3, -1 / 3, -1 / 3, 1], abs=0.01
    )
    assert quality.label_autocorrelation(np.zeros(5, np.int64), 2).tolist() == [0, 0]


@pytest.mark.parametrize("n", [0, 1])
def test_measures_of_next_to_nothing(n: int) -> None:
    tiny = np.zeros(n, np.int64)
    assert quality.displacement(tiny) == quality.spread(tiny) == quality.kept_neighbours(tiny) == 0
    assert quality.entropy(tiny) == quality.batch_entropy(tiny, 4) == 0
    assert quality.autocorrelation(tiny, 2).tolist() == [0, 0]
    assert quality.label_autocorrelation(tiny, 2).tolist() == [0, 0]
    assert quality.blocks_per_batch(tiny, 4) == n
    assert quality.block_loads(tiny, 4, 1).sum() == n


def test_blocks_touched_and_loaded() -> None:
    blocks = np.arange(100) // 10
    assert quality.blocks_per_batch(blocks, 10) == 1
    assert quality.blocks_per_batch(blocks, 5) == 1
    assert quality.blocks_per_batch(blocks, 20) == 2
    assert quality.blocks_per_batch(blocks, 30) == pytest.approx((3 + 3 + 3 + 1) / 4)
    assert quality.block_loads(blocks, 20, 1).tolist() == [1] * 10
    back_and_forth = np.array([0, 1, 0, 1, 0, 1])
    assert quality.block_loads(back_and_forth, 1, 1).tolist() == [3, 3]
    assert quality.block_loads(back_and_forth, 1, 2).tolist() == [1, 1]
    # A batch that holds both reads each once.
    assert quality.block_loads(back_and_forth, 6, 1).tolist() == [1, 1]
    # What was used last stays: 0 comes again before 1 is pushed out by 2.
    assert quality.block_loads(np.array([0, 1, 0, 2, 0, 1]), 1, 2).tolist() == [1, 2, 1]


def test_quasi_random_reads_every_block_once() -> None:
    blocks = np.arange(N) // 20
    taken = orders.quasi_random(N, seed=3, epoch=1, blocks=blocks, window=8)[:]
    assert quality.block_loads(blocks[taken], 64, 8).tolist() == [1] * 100
    random = orders.random(N, seed=3, epoch=1)[:]
    assert quality.block_loads(blocks[random], 64, 8).mean() > 10


# -- the command --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sorted_by_label(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shuffle") / "t.parquet"
    schema = {"x": bp.Tensor("int32", (4,)), "label": bp.Int(names=tuple("abcdefgh"))}
    with bp.create(path, schema, row_group_size=BLOCK * 24) as out:
        for row in range(0, N, BLOCK):
            rows = np.arange(row, row + BLOCK)
            out.append(
                bp.Columns(x=np.repeat(rows, 4).astype(np.int32).reshape(-1, 4), label=rows * CLASSES // N)
            )
    return path


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert main(["bench", "shuffle", *map(str, argv), *QUICK, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


def test_help_shows_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "shuffle", "--help"])
    assert stopped.value.code == 0
    assert "batchplant bench shuffle" in capsys.readouterr().out.partition("examples:")[2]
    lines = re.findall(r"^  batchplant (.*?)(?:\s{2,}\(.*\))?$", shuffle.__doc__ or "", re.MULTILINE)
    assert len(lines) > 3
    for line in lines:
        build_parser().parse_args(line.split())
    told = re.findall(r"^  (\w+) {2,}", (shuffle.__doc__ or "").partition("orders:")[2], re.MULTILINE)
    assert tuple(told) == shuffle.ORDERS


def test_json_tells_the_orders_apart(sorted_by_label: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = run_json(capsys, sorted_by_label, "--batch-size", 64, "--window", 40, "--cache", 16)
    assert (result["samples"], result["blocks"], result["label"], result["classes"]) == (N, 40, "label", 8)
    assert result["label entropy"] == pytest.approx(3)
    each = result["orders"]
    assert tuple(each) == shuffle.ORDERS
    assert each["sequential"]["moved"] == 0
    assert each["sequential"]["neighbours"] == 1
    assert each["shards"]["neighbours"] > 0.95
    assert each["shards"]["moved"] > 0.6
    assert each["windowed"]["apart"] < each["quasi_random"]["apart"] < each["random"]["apart"]
    entropy = {name: value["label entropy"] for name, value in each.items()}
    assert (
        entropy["sequential"]
        < entropy["windowed"]
        < 1
        < 2
        < entropy["quasi_random"]
        <= entropy["random"] + 0.1
    )
    again = {name: value["autocorrelation"]["labels"][0] for name, value in each.items()}
    assert again["shards"] > 0.9
    assert abs(again["random"]) < 0.1
    for name in ("sequential", "shards", "windowed", "quasi_random"):
        assert each[name]["block loads"] == 40, name
        assert each[name]["read"] == pytest.approx(1)
    assert each["random"]["read"] > 10
    assert each["random"]["bytes read"] == pytest.approx(each["random"]["read"] * result["bytes"], rel=1e-6)
    assert each["shards"]["blocks per batch"] < 3 < each["quasi_random"]["blocks per batch"] <= 24
    for value in each.values():
        assert value["samples/s"]["best"] >= value["samples/s"]["median"] > 0
        assert len(value["autocorrelation"]["samples"]) == 8


def test_advice_follows_the_numbers(sorted_by_label: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wide = run_json(capsys, sorted_by_label, "--batch-size", 64, "--cache", 30)
    assert wide["advice"].startswith(
        "quasi_random: it mixes the labels about as well as random and reads 1.0"
    )
    narrow = run_json(capsys, sorted_by_label, "--batch-size", 64, "--cache", 2)
    assert narrow["advice"].startswith("random: it reads")
    assert "convert --shuffle" in narrow["advice"]
    # All blocks fit: nothing is cheaper than random.
    assert run_json(capsys, sorted_by_label, "--cache", 40)["advice"].startswith("random: it reads 1.0 times")


def test_without_labels_the_places_are_judged(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bp.create(tmp_path / "t.parquet", {"x": bp.Float()}, row_group_size=160) as out:
        for row in range(0, N, 20):
            out.append(bp.Columns(x=np.arange(row, row + 20, dtype=np.float64)))
    result = run_json(capsys, tmp_path / "t.parquet", "--cache", 40)
    assert result["label"] is None
    assert result["orders"]["random"]["label entropy"] is None
    assert result["orders"]["random"]["autocorrelation"]["labels"] is None
    assert result["orders"]["shards"]["autocorrelation"]["samples"][0] > 0.9
    assert result["advice"].startswith("quasi_random: it mixes the samples")


def test_a_format_without_blocks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((300, 4), np.float32))
    result = run_json(capsys, tmp_path / "x.npy")
    assert list(result["orders"]) == ["sequential", "windowed", "random"]
    assert result["blocks"] is None
    assert result["bytes"] == 300 * 16
    assert all(value["read"] == 1 and value["block loads"] is None for value in result["orders"].values())
    assert "names no blocks" in result["advice"]
    assert main(["bench", "shuffle", str(tmp_path / "x.npy"), *QUICK]) == 0
    assert "no blocks are named" in capsys.readouterr().out
    result = run_json(capsys, tmp_path / "x.npy", "--block", 30)
    assert tuple(result["orders"]) == shuffle.ORDERS
    assert result["blocks"] == 10


def test_which_field_has_the_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "t.beton"
    fields = {"cls": bp.Int(), "kind": bp.Text(), "weight": bp.Float()}
    with bp.create(path, fields) as out:
        for number in range(64):
            out.append({"cls": number // 16, "kind": "ab"[number % 2], "weight": 1.0})
    assert (run_json(capsys, path)["label"], run_json(capsys, path)["classes"]) == ("cls", 4)
    result = run_json(capsys, path, "--label", "kind")
    assert (result["classes"], result["label entropy"]) == (2, 1)
    assert result["orders"]["sequential"]["autocorrelation"]["labels"][:2] == pytest.approx([-1, 1], abs=0.05)
    assert main(["bench", "shuffle", str(path), "--label", "weight"]) == 2
    assert "field 'weight'" in capsys.readouterr().err
    named = {"other": bp.Int(), "label": bp.Int(), "species": bp.Int(names=("a", "b"))}
    with bp.create(tmp_path / "n.parquet", named) as out:
        out.append({"other": 1, "label": 0, "species": 1})
    assert run_json(capsys, tmp_path / "n.parquet")["label"] == "species"


def test_text_limit_and_fields(sorted_by_label: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", "shuffle", str(sorted_by_label), "--limit", "1000", "--fields", "label", *QUICK]
    assert main(argv) == 0
    text = capsys.readouterr().out
    assert "1,000 samples of 2,000, 8.0 kB, 20 blocks, batches of 256, cache of 32 blocks" in text
    assert "label: 4 classes, 2.00 bits" in text
    for name in shuffle.ORDERS:
        assert len(re.findall(rf"^{name} ", text, re.MULTILINE)) == 2
    assert "warm" in text
    assert "advice: " in text
    assert max(map(len, text.splitlines()[3:-2])) <= 80


LONGER = [pytest.param(text, marks=pytest.mark.exhaustive) for text in ("svg", "pdf")]


@pytest.mark.parametrize("suffix", ["png", *LONGER])
def test_figure(
    suffix: str, sorted_by_label: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / f"s.{suffix}"
    assert main(["bench", "shuffle", str(sorted_by_label), "--figure", str(target), *QUICK]) == 0
    assert f"wrote {target}" in capsys.readouterr().out
    content = target.read_bytes()
    assert content.startswith({"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[suffix])
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--batch-size 0", "--batch-size is at least 1"),
        ("--window 0", "--window"),
        ("--cache 0", "--cache"),
        ("--lags 0", "--lags"),
        ("--limit 0", "--limit"),
        ("--rounds 0", "--rounds"),
        ("--block 0", "--block"),
        ("--seconds 0", "--seconds"),
        ("--seconds nan", "--seconds"),
        ("--seed -1", "seed"),
        ("--label nosuch", "nosuch"),
        ("--fields nosuch", "nosuch"),
        ("--figure x.bmp", ".png, .svg"),
        ("--figure nosuch/x.png", "folder"),
    ],
)
def test_wrong_use(
    options: str, message: str, sorted_by_label: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "shuffle", str(sorted_by_label), *QUICK, *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_no_matplotlib_is_said_before_the_work(
    sorted_by_label: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    monkeypatch.setattr(shuffle, "measure", None)
    assert main(["bench", "shuffle", str(sorted_by_label), "--figure", str(tmp_path / "x.png")]) == 2
    assert 'pip install "batchplant[figures]"' in capsys.readouterr().err


def test_an_empty_dataset_and_one_sample(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros((0, 4), np.float32))
    assert main(["bench", "shuffle", str(tmp_path / "x.npy")]) == 2
    assert "no samples" in capsys.readouterr().err
    np.save(tmp_path / "y.npy", np.zeros((1, 4), np.float32))
    assert run_json(capsys, tmp_path / "y.npy", "--block", 1)["samples"] == 1


def test_a_damaged_file_is_named(
    sorted_by_label: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(sorted_by_label.read_bytes()[:-20])
    assert main(["bench", "shuffle", str(path), *QUICK]) == 1
    assert "t.parquet" in capsys.readouterr().err


def test_the_guide_is_true() -> None:
    text = (repository.ROOT / "docs" / "guides" / "shuffling.md").read_text("utf-8")
    for line in re.findall(r"^\$ batchplant (.*)$", text, re.MULTILINE):
        build_parser().parse_args(line.split())
    *_, example = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    exec(example, {})
    told = set(re.findall(r"^\| `(--[\w-]+)", text.partition("## Options")[2], re.MULTILINE)) | {"--seconds"}
    parser = argparse.ArgumentParser()
    shuffle.add_args(parser)
    have = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    assert told - {"--json"} == have - {"--help", "--format", "--option", "--quiet", "--skip", "--where"}


# -- mixtures -----------------------------------------------------------------------------------------------


def test_deviation_and_runs_of_a_source() -> None:
    here = np.array([True, False, True, True, True, False])
    np.testing.assert_allclose(quality.share_deviation(here, 0.5), [0.5, 0, 0.5, 1, 1.5, 1])
    np.testing.assert_allclose(quality.share_deviation(here, np.array([1.0, 0, 1, 1, 1, 0])), 0)
    assert [quality.longest_run(item) for item in (here, ~here, here & False)] == [3, 1, 0]
