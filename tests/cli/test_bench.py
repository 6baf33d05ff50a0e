"""`batchplant bench` as a user types it: numbers that add up, JSON, exit codes, Ctrl-C."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant
import processes
from batchplant.cli import bench, build_parser, main
from batchplant.cli.bench import loader as bench_loader
from batchplant.cli.bench import loader as loader_bench
from batchplant.schema import Bytes
from batchplant.storage.platform import LINUX
from variants import exhaustive

COUNT = 50


def write(path: Path, count: int = COUNT, *, side: int = 40, **options: Any) -> Path:
    """Images of 48 by ``side`` pixels, and labels."""
    rng = np.random.default_rng(0)
    schema = {"image": batchplant.Image(), "label": batchplant.Int()}
    with batchplant.create(path, schema, **options) as out:
        for number in range(count):
            pixels = rng.integers(0, 256, (side, 48, 3), dtype=np.uint8)
            out.append({"image": pixels, "label": number % 3})
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("bench") / "data.beton", write_mode="jpg")


@pytest.fixture
def damaged(dataset: Path, tmp_path: Path) -> Path:
    """The same with one image that is none any more."""
    spans = batchplant.open(dataset).spans("image", [7])
    assert spans is not None
    content = bytearray(dataset.read_bytes())
    start = int(spans.start[0])
    content[start : start + int(spans.size[0])] = bytes(int(spans.size[0]))
    path = tmp_path / "damaged.beton"
    path.write_bytes(content)
    return path


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> tuple[int, dict[str, Any]]:
    code = main([*map(str, argv), "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return code, answer


def test_help_shows_examples_that_parse(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, module in ((["bench"], bench), (["bench", "loader"], loader_bench)):
        with pytest.raises(SystemExit) as stopped:
            main([*argv, "--help"])
        assert stopped.value.code == 0
        assert f"batchplant {' '.join(argv)}" in capsys.readouterr().out.partition("examples:")[2]
        lines = re.findall(r"^  batchplant (.*?)(?:\s{2,}\(.*\))?$", module.__doc__ or "", re.MULTILINE)
        assert lines
        for line in lines:
            if "--help" not in line:
                build_parser().parse_args(line.split())


def test_the_names_in_the_help_are_all(capsys: pytest.CaptureFixture[str]) -> None:
    told = re.findall(r"^  (\w+)  ", (loader_bench.__doc__ or "").partition("pipelines,")[2], re.MULTILINE)
    assert tuple(told) == loader_bench.PIPELINES


def test_bench_without_a_name_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 2
    assert "COMMAND" in capsys.readouterr().out


def test_loader_prints_what_was_measured(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--batch-size 16 --epochs 2 --size 24 --workers 1"
    assert main(["bench", "loader", str(dataset), *options.split()]) == 0
    text = capsys.readouterr().out
    for item in (
        "50 samples, batches of 16, 1 worker, order random, pipeline train 24",
        "images/s", "MB/s", "best", "median", "first batch", "memory", "a batch on its way to the loop",
        "· open", "░ read", "█ decode", "on 1 thread at once", "▓ resize", "waiting", "its step",
        "bottleneck",
    ):  # fmt: skip
        assert item in text
    assert re.search(r"^2 +[\d,]+ +[\d,]+$", text, re.MULTILINE)
    assert not re.search(r"^3 ", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("pipeline", "order"),
    [
        *zip(loader_bench.PIPELINES, loader_bench.ORDERS, strict=False),
        *exhaustive(*itertools.product(loader_bench.PIPELINES, loader_bench.ORDERS)),
    ],
)
def test_loader_json_adds_up(
    pipeline: str, order: str, dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = f"--batch-size 16 --epochs 3 --size 24 --pipeline {pipeline} --order {order} --workers 2"
    code, result = run_json(capsys, "bench", "loader", dataset, *options.split())
    assert code == 0
    assert [row["samples"] for row in result["epochs"]] == [COUNT] * 3
    for row in result["epochs"]:
        assert row["rate"] == pytest.approx(COUNT / row["seconds"])
    rates = [row["rate"] for row in result["epochs"]]
    assert result["rate"] == {"first": rates[0], "best": max(rates), "median": sorted(rates)[1]}
    spans = batchplant.open(dataset).spans("image")
    assert spans is not None
    stored = float(spans.size.mean()) + 8
    assert result["MB/s"]["best"] == pytest.approx(result["rate"]["best"] * stored / 1e6)
    assert result["memory"]["peak"] >= result["memory"]["own"] > (0 if LINUX else -1)
    assert 0 < result["first batch"] < 60
    assert result["stats"]["batches"] == 3 * 4
    assert (result["workers"], result["unit"], result["skipped"]) == (2, "images", [])
    decoded = result["stats"]["decode"] > 0
    assert decoded == (pipeline != "raw")
    each = result["batch"]["seconds"]
    assert list(each) == list(bench_loader.PARTS)
    assert (each["decode"] > 0) == (each["resize"] > 0) == decoded
    spent = sum(result["stats"][name] for name in ("storage", "decode", "transforms", "device"))
    assert sum(each.values()) - each["open"] == pytest.approx(spent / result["stats"]["batches"])
    assert set(result["batch"]["notes"]) == {name for name in each if each[name]}


STATS = {
    "storage": 1.0, "decode": 10.0, "transforms": 2.0, "device": 0.0, "batches": 10,
    "workers": {"threads": 2, "decode": 8.0, "resize": 4.0},
}  # fmt: skip


def test_what_the_time_of_a_batch_goes_into() -> None:
    way = bench_loader.split_batch(STATS, 1.0)
    want = {"open": 0.1, "read": 0.1, "decode": 0.4, "resize": 0.2, "transform": 0.2, "copy": 0, "wait": 0.4}
    assert way["seconds"] == pytest.approx(want)
    assert "copy" not in way["notes"]
    bar = bench_loader.bar(way["seconds"], 14)
    assert bar == "·░████▓▓▒▒----"
    assert [len(bench_loader.bar(way["seconds"], width)) for width in range(20)] == list(range(20))
    assert bench_loader.bar(dict.fromkeys(bench_loader.PARTS, 0.0)) == ""
    assert max(map(len, bench_loader.batch_lines(way))) <= 80


def test_a_device_does_not_tell_decoding_from_resizing() -> None:
    way = bench_loader.split_batch({**STATS, "augment": 3.0}, 0.0)
    assert (way["seconds"]["decode"], way["seconds"]["resize"], way["seconds"]["wait"]) == (1.0, 0, 0)
    assert "resizing" in way["notes"]["decode"]


def test_figure_of_a_batch(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    target = tmp_path / "way.svg"
    argv = ["bench", "loader", str(dataset), "--epochs", "1", "--size", "24", "--figure", str(target)]
    assert main(argv) == 0
    assert f"wrote {target}" in capsys.readouterr().out
    assert target.read_bytes().startswith(b"<?xml")


def test_json_may_stand_before_the_bench_too(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--json", "loader", str(dataset), "--epochs", "1", "--limit", "5"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 5


def test_limit_and_fields(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = "--limit 20 --fields label --epochs 1 --batch-size 8"
    code, result = run_json(capsys, "bench", "loader", dataset, *options.split())
    assert code == 0
    assert result["samples"] == 20
    assert result["epochs"][0]["samples"] == 20
    assert result["stats"]["decode"] == 0
    assert result["MB/s"]["first"] == pytest.approx(result["rate"]["first"] * 8 / 1e6)


def test_a_dataset_without_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((100, 4), np.float32))
    assert main(["bench", "loader", str(path), "--epochs", "1"]) == 0
    assert "samples/s" in capsys.readouterr().out


def test_ragged_values_and_lists_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for kind, value in ((batchplant.Tensor("int32", (None,)), [1, 2, 3]), (batchplant.Text(), "three")):
        path = tmp_path / f"{kind.kind}.beton"
        with batchplant.create(path, {"ids": kind}) as out:
            for number in range(10):
                out.append({"ids": value[: number % 3]})
        code, result = run_json(capsys, "bench", "loader", path, "--epochs", "1", "--batch-size", "3")
        assert code == 0
        assert result["epochs"][0]["samples"] == 10


def test_a_image_and_its_mask_get_the_same_boxes() -> None:
    schema = batchplant.Schema({"image": batchplant.Image(), "mask": batchplant.Image(mode="L")})
    result = loader_bench.pipelines(schema, "train", 32)
    assert list(result) == ["image", "mask"]
    assert [op.share for op in result["image"]] == [op.share for op in result["mask"]] == ["box", "flip"]


def test_undecoded_images_are_the_stored_bytes(dataset: Path) -> None:
    reader = batchplant.open(dataset)
    plain = loader_bench.Undecoded(reader)
    assert plain.schema["image"] == Bytes()
    assert plain.schema["label"] == reader.schema["label"]
    assert plain[3]["image"] == bytes(reader.read([3])["image"][0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--epochs 0", "--epochs"),
        ("--limit 0", "--limit"),
        ("--batch-size 0", "batch_size"),
        ("--size 0", "size"),
        ("--fields label,nosuch", "nosuch"),
        ("--figure x.jpg", ".png, .svg"),
        # It imports PyTorch.
        *exhaustive(("--device nosuch", "")),
    ],
)
def test_wrong_use(options: str, message: str, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "--device" in options:
        pytest.importorskip("torch")
    assert main(["bench", "loader", str(dataset), *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_no_torch_is_said_in_one_line(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if "torch" in sys.modules:
        pytest.skip("torch is imported already")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", None)
        patch.delitem(sys.modules, "batchplant.interop.torch", raising=False)
        assert main(["bench", "loader", str(dataset), "--device", "cpu"]) == 2
    assert "pip install torch" in capsys.readouterr().err


def test_device(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    code, result = run_json(capsys, "bench", "loader", dataset, "--device", "cpu", "--epochs", "1")
    assert code == 0
    assert result["device"] == "cpu"
    assert result["epochs"][0]["samples"] == COUNT


def test_an_empty_dataset_is_said_to_be_empty(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.zeros((0, 4), np.float32))
    assert main(["bench", "loader", str(path)]) == 2
    assert "no samples" in capsys.readouterr().err


def test_damage_is_named_and_can_be_skipped(damaged: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "loader", str(damaged), "--epochs", "1"]) == 1
    assert "sample 7" in capsys.readouterr().err
    assert main(["bench", "loader", str(damaged), "--epochs", "3", "--on-error", "skip"]) == 1
    text = capsys.readouterr().out
    assert text.count("skipped:") == 1
    assert "sample 7" in text
    code, result = run_json(capsys, "bench", "loader", damaged, "--epochs", "2", "--on-error", "skip")
    assert code == 1
    assert [row["samples"] for row in result["epochs"]] == [COUNT - 1] * 2
    assert [row["sample"] for row in result["skipped"]] == [7]


def test_images_of_differing_sizes_need_a_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "a.beton", 3)
    write(tmp_path / "b.beton", 3, side=44)
    assert main(["bench", "loader", str(tmp_path / "*.beton"), "--pipeline", "none"]) == 1
    assert "CenterCrop" in capsys.readouterr().err
    assert main(["bench", "loader", str(tmp_path / "*.beton"), "--pipeline", "val", "--epochs", "1"]) == 0


def test_its_threads_end_with_it(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = set(threading.enumerate())
    for _ in range(3):
        assert main(["bench", "loader", str(dataset), "--epochs", "1", "--size", "24"]) == 0
    assert set(threading.enumerate()) <= before


def test_ctrl_c_stops_it(dataset: Path) -> None:
    command = [sys.executable, "-m", "batchplant", "bench", "loader", str(dataset), "--epochs", "1000000"]
    # So that NumPy has no threads: then there are others only once batches are made.
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    with processes.start(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        while len(os.listdir(f"/proc/{process.pid}/task")) < 3:
            assert process.poll() is None
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, output = process.communicate(timeout=processes.PATIENCE)
    assert process.returncode in processes.STOPPED
    assert output.startswith("batchplant: stopped\n")
