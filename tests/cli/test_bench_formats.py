"""`batchplant bench formats`: what it prints, draws and writes, and that it cleans up."""

from __future__ import annotations

import json
import os
import platform
import re
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import batchplant as bp
import processes
from batchplant.cli import main, terminal
from batchplant.cli.bench import formats
from batchplant.jobs.engines.base import Inline
from batchplant.tools import measure
from batchplant.tools.measure import Candidate, Measurement, comparison, figures
from batchplant.tools.measure.comparison import caveats
from batchplant.tools.measure.timing import PIPELINES
from variants import exhaustive

N = 40
TINY = ["--seconds", "0.1", "--rounds", "1", "--sample", str(N), "--quiet"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bench") / "table.jsonl"
    with bp.create(path, {"id": bp.Int(), "text": bp.Text()}) as out:
        for number in range(N):
            out.append({"id": number, "text": "word " * number})
    return str(path)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def made(label: str, size: int, speed: float | None, **more: Any) -> Measurement:
    rates = dict.fromkeys(("epoch_warm", "epoch_cold", "random_rate", "sequential_mb_s"), speed)
    known: dict[str, Any] = {
        "samples": 10, "bytes": size, "files": 1, "write_seconds": 1.0, "write_rate": 10.0, "memory": 1,
        "open_seconds": 0.1, "rounds": 1, "best": {name: value for name, value in rates.items() if value},
        **rates, **more,
    }  # fmt: skip
    return Measurement(label.partition(":")[0], label=label, **known)


def about(**changes: Any) -> formats.About:
    given: dict[str, Any] = {
        "path": "photos", "format": "beton", "total": 1000, "samples": 10, "unit": "images", "how": "how",
        "machine": "a machine", "seconds": 1.0, **changes,
    }  # fmt: skip
    return formats.About(**given)


def test_all_that_is_asked_for_is_made(table: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    figure = place.parent / "f.svg"
    command = ["bench", "formats", table, "--formats", "msgpack,npy,webdataset", "--scratch", str(place)]
    assert main([*command, *TINY, "--figure", str(figure), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["samples"] == answer["sample"] == N
    assert answer["machine"]
    assert answer["by"] == "warm"
    rows = {row["label"]: row for row in answer["formats"]}
    assert list(rows)[-1] == "npy"
    assert rows["npy"]["error"] == "npy cannot hold text fields"
    assert not rows["npy"]["front"]
    for name in ("msgpack", "webdataset"):
        assert rows[name]["error"] is None
        assert rows[name]["whole"] == rows[name]["bytes"] > 0
        assert min(rows[name][rate] for rate in ("epoch_cold", "epoch_warm", "random_rate")) > 0
    assert any(row["front"] for row in rows.values())
    assert os.listdir(place) == []
    assert figure.read_text().startswith("<?xml")


def test_workers_of_an_engine_measure(table: str, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    how = [*TINY, "--scratch", str(place), "--json", "--engine", "processes"]
    assert main(["bench", "formats", table, "--formats", "csv", *how]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {row["machine"] for row in answer["formats"]} == {answer["machine"]}
    assert answer["machine"].startswith(f"{platform.node()}: ")
    assert [(row["label"], row["samples"]) for row in answer["formats"]] == [("csv", N)]
    # One at a time, unless more workers are asked for.
    assert not any(comparison.NOT_ALONE in row["remarks"] for row in answer["formats"])
    assert os.listdir(place) == []
    assert main(["bench", "formats", table, *TINY, "--processes", "0"]) == 2


def test_what_is_measured_side_by_side_says_so() -> None:
    def measure(reader: Any, names: list[Candidate], **how: Any) -> list[Measurement]:
        return [made(names[0].label, 1, 1.0)]

    some = [Candidate(name) for name in ("csv", "parquet", "tfrecord")]
    engine = Inline()
    for width in (1, 2):
        engine.width = width
        rows = comparison.measured_by(engine, measure, bp.open({"n": [1]}).subset([0]), some, None)
        assert [comparison.NOT_ALONE in row.remarks for row in rows] == [width > 1] * 3


def test_tables_fit_in_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """The widest numbers that are likely, and a format with options."""
    rows = [
        made("webdataset", 123_456_789, 123_456.0, files=123_456, open_seconds=12.3),
        made("zarr:chunks=[red]", 999, 99_999.0, remarks=("a remark",)),
        made("npy", 0, None, samples=0, error="cannot hold it"),
    ]
    formats._print(rows, about(total=1_281_167, refused={"csv": "text"}))
    output = capsys.readouterr().out
    tables = output.partition("\n\n")[2].partition("* no other")[0]
    assert max(map(len, tables.splitlines())) <= 80
    assert "zarr:chunks=[red] *" in output
    assert "webdataset *" in output
    assert "note: a remark (zarr:chunks=[red])" in output
    assert "left out: npy: cannot hold it" in output
    assert "not tried: csv" in output
    assert "size: of all 1,281,167 samples, estimated from 10" in output
    assert "photos: 10 of 1,281,167 samples" in output


@pytest.mark.parametrize("width", [80, 50])
def test_a_narrow_terminal_cuts_no_number(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(terminal, "console", lambda: Console(width=width, highlight=False))
    rows = [made("beton:max_resolution=256:write_mode=raw", 123_456_789, 12_345.0), made("npy", 9, 98_765.0)]
    formats._print(rows, about())
    output = capsys.readouterr().out
    tables = output.partition("\n\n")[2].partition("* no other")[0]
    assert max(map(len, tables.splitlines())) <= width
    assert "…" not in tables
    assert "98,765" in tables
    assert ("(best)" in tables) == (width == 80)


@pytest.mark.parametrize(
    ("by", "count"), [("warm", 0), ("warm", 6), *exhaustive(*((by, 2) for by in formats.SPEEDS))]
)
def test_a_figure_of_any_number_of_formats(by: str, count: int, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [made(f"format{number}", 100 + number**4, 10.0 * number + 1) for number in range(count)]
    rows = [*rows, made("none", 5, None), made("bad", 0, None, samples=0, error="no")]
    figures.save(formats.draw(rows, about(by=by)), str(tmp_path / "f.svg"))
    assert (tmp_path / "f.svg").stat().st_size > 1000


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--figure", "x.gif"], ".png, .svg, .pdf"),
        (["--figure", "nowhere/x.svg"], "folder of the figure"),
        (["--formats", "parkett"], "did you mean parquet"),
        (["--formats", "npy"], "npy cannot hold text fields"),
        (["--scratch", "nowhere"], "scratch"),
        (["--batch-size", "0"], "at least 1"),
        (["--seconds", "0"], "more than 0"),
        (["--sample", "0"], "at least 1"),
        (["--remote", "/tmp"], "URL"),
        (["--fields", "id,colour"], "colour"),
        (["--pipeline", "best"], "train, val, none, raw"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    table: str,
    given: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    try:
        code = main(["bench", "formats", table, *given])
    except SystemExit as error:
        code = int(str(error.code))
    assert code == 2
    out = capsys.readouterr().err
    assert message in out
    assert out.count("\n") == 1


def test_the_help_tells_the_pipelines() -> None:
    told = re.findall(r"^  (\w+)  ", (formats.__doc__ or "").partition("pipelines,")[2], re.MULTILINE)
    assert tuple(told) == PIPELINES


def test_ctrl_c_leaves_nothing(table: str, place: Path) -> None:
    command = [
        sys.executable, "-m", "batchplant", "bench", "formats", table, "--formats", "msgpack",
        "--scratch", str(place), "--seconds", str(processes.PATIENCE),
    ]  # fmt: skip
    with processes.start(command, stderr=-1) as run:
        end = time.monotonic() + processes.PATIENCE
        # Its first target is there: now it reads, and would for as long as we wait.
        while not list(place.glob("*/*/data*")):
            assert run.poll() is None, run.stderr.read()
            assert time.monotonic() < end
            time.sleep(0.02)
        run.send_signal(signal.SIGINT)
        assert run.wait(processes.PATIENCE) in processes.STOPPED
        assert run.stderr.read() == b"batchplant: stopped\n"
    assert os.listdir(place) == []


def test_caveats_say_when_the_order_may_be_chance() -> None:
    text = " ".join(caveats([made("a", 100, 1000.0, samples=60), made("b", 90, 900.0, samples=60)]))
    assert "Only one round was measured" in text
    assert "60 samples takes 60 ms" in text
    more = {"samples": 100_000, "rounds": 3}
    near = [
        made(name, 100, speed, best={"epoch_warm": 1.1 * speed}, **more)
        for name, speed in (("a", 1000.0), ("b", 950.0), ("c", 500.0))
    ]
    assert caveats(near) == [
        "b is within 10% of a, and rounds of one format differ as much: take them as equally fast."
    ]
    assert caveats([near[0], near[2]]) == []


def test_what_is_left_out_is_said_without_names_of_modules() -> None:
    result = measure.refusals(bp.Schema({"image": bp.Image(), "score": bp.Float()}))
    assert result["coco"] == "coco has no place for score"
    assert result["safetensors"] == "safetensors holds named tensors only"
    assert "batchplant." not in " ".join(result.values())
