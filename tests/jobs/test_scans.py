"""Scans on engines: whoever works, the result is that of threads."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.jobs import engines, scans
from batchplant.testing.cases import flip
from variants import exhaustive

SCHEMA = {"n": bp.Int(), "text": bp.Text(), "blob": bp.Bytes()}


def sample(n: int) -> dict[str, Any]:
    return {"n": n, "text": f"text {n % 100}", "blob": bytes([n % 256]) * (n % 7)}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """1,200 samples in 4 files, of which one has a side-car, and some cells are damaged."""
    folder = tmp_path_factory.mktemp("scans")
    for shard in range(4):
        path = folder / f"train-{shard}.tfrecord"
        with bp.create(path, SCHEMA, checksums=True) as out:
            for n in range(300 * shard, 300 * (shard + 1)):
                out.append(sample(n))
    for shard, row in ((0, 7), (1, 20), (1, 250), (3, 299)):
        path = folder / f"train-{shard}.tfrecord"
        with bp.open(path) as reader:
            spans = reader.spans("text", [row])
            flip(path, int(spans.start[0]), 7)
    return folder


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same samples, but for every hundredth."""
    path = tmp_path_factory.mktemp("other") / "other.npz"
    with bp.create(path, SCHEMA) as out:
        for n in range(1200):
            out.append(sample(n) | ({"n": -1, "blob": b"other"} if n % 100 == 99 else {}))
    return path


@pytest.mark.parametrize("engine", ["processes", *exhaustive("dask")])
def test_verify_finds_the_same_on_every_engine(engine: str, shards: Path, other: Path) -> None:
    if engine == "dask":
        pytest.importorskip("distributed")
    how: dict[str, Any] = {"decode": True, "against": str(other)}
    source = str(shards / "train-*.tfrecord")
    wanted = bp.verify(source, **how)
    assert {problem.sample for problem in wanted.problems} >= {7, 320, 550, 1199, 99, 1099}
    seen: list[tuple[int, int]] = []
    by = engines.make(engine, workers=1)
    assert bp.verify(source, engine=by, progress=lambda *now: seen.append(now), **how) == wanted
    assert seen[-1] == (1200, 1200)
    assert seen == sorted(seen)


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "how",
    [
        {"max_problems": 3},
        *exhaustive({"sample": 700, "seed": 3}, {"max_differences": 4}, {"where": "n >= 500"}),
    ],
)
def test_verify_stops_where_threads_do(how: dict[str, Any], shards: Path, other: Path) -> None:
    how = how if "where" in how else {"against": str(other), **how}
    source = str(shards / "train-*.tfrecord")
    wanted = bp.verify(source, **how)
    assert not wanted.ok
    assert wanted.remarks or "where" in how
    assert bp.verify(source, engine=engines.make("processes", workers=2), **how) == wanted


def test_paths_are_as_they_were_given(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards)
    wanted = bp.verify("train-1.tfrecord")
    assert {problem.path for problem in wanted.problems} == {"train-1.tfrecord"}
    assert bp.verify("train-1.tfrecord", engine=engines.make("processes", workers=1)) == wanted


def test_a_worker_in_another_folder_opens_the_same(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(shards)
    result, arguments = scans.Dataset(["train-1.tfrecord"]).__reduce__()
    monkeypatch.chdir(os.sep)
    assert len(result(*arguments).reader) == 300


def test_what_is_in_memory_stays_here() -> None:
    data = bp.open([{"n": n} for n in range(3)])
    assert bp.verify(data).ok
    with pytest.raises(bp.OptionError, match="memory of this one"):
        bp.verify(data, engine="processes")


def test_ranks_are_refused(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(bp.OptionError, match="ranks is for convert"):
        bp.verify(shards / "train-0.tfrecord", engine="ranks")
    with pytest.raises(SystemExit):
        main(["verify", str(shards / "train-2.tfrecord"), "--engine", "ranks"])


def test_verify_by_processes_from_the_command_line(shards: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(shards / "train-2.tfrecord"), "--decode", "--processes", "1"]) == 0
    assert "ok (300 samples" in capsys.readouterr().out
    assert main(["verify", str(shards / "train-2.tfrecord"), "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "a scheduler is for the engines dask and ray" in capsys.readouterr().err


def indexed(capsys: pytest.CaptureFixture[str], folder: Path, *more: str) -> list[dict[str, Any]]:
    assert main(["index", str(folder / "train-*.tfrecord"), "--json", *more]) == 0
    answer: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return answer


def test_index_by_processes_is_that_of_threads(
    tmp_path: Path, shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One index for all files, and nothing beside it."""
    for place in ("one", "two"):
        (tmp_path / place).mkdir()
        for path in shards.glob("train-*.tfrecord"):
            shutil.copy2(path, tmp_path / place)
    wanted = indexed(capsys, tmp_path / "one")
    result = indexed(capsys, tmp_path / "two", "--processes", "1")
    assert [row["state"] for row in result] == [value["state"] for value in wanted] == ["built"] * 4
    assert {row["place"] for row in result} == {str(tmp_path / "two" / "_index.bpindex")}
    assert [row["samples"] for row in result] == [300] * 4
    assert sorted(os.listdir(tmp_path / "two")) == sorted(os.listdir(tmp_path / "one"))
    again = indexed(capsys, tmp_path / "two")
    assert [row["state"] for row in again] == ["fresh"] * 4
    forced = indexed(capsys, tmp_path / "two", "--force")
    assert [row["state"] for row in forced] == ["rebuilt"] * 4
    assert sorted(os.listdir(tmp_path / "two")) == sorted(os.listdir(tmp_path / "one"))
    [alone] = [name for name in os.listdir(tmp_path / "two") if name.endswith("-2.tfrecord")]
    (tmp_path / "two" / "_index.bpindex").unlink()
    assert main(["index", str(tmp_path / "two" / alone), "--processes", "1"]) == 0
    assert (tmp_path / "two" / f"{alone}.bpindex").is_file()


def test_a_damaged_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for n in range(3):
        (tmp_path / f"{n}.tfrecord").write_bytes(bytes(range(1, 200)) if n == 1 else b"")
    assert main(["index", *(str(tmp_path / f"{n}.tfrecord") for n in range(3)), "--processes", "1"]) == 1
    assert "1.tfrecord" in capsys.readouterr().err
