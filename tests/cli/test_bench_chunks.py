"""`batchplant bench chunks`: what is fetched is counted, units are as large as asked for, nothing is left."""

from __future__ import annotations

import argparse
import http.client
import importlib.util
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.cli import build_parser, main
from batchplant.cli.bench import chunks
from batchplant.tools.measure import chunks as measuring
from batchplant.tools.measure.serving import serving
from processes import PATIENCE
from variants import exhaustive

COUNT, WIDTH = 512, 256
QUICK = ["--seconds", "0.001", "--rounds", "1", "--quiet"]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Half a megabyte that cannot be packed."""
    path = tmp_path_factory.mktemp("chunks") / "data.beton"
    rng = np.random.default_rng(0)
    with bp.create(path, {"x": bp.Tensor("uint8", (4, WIDTH))}) as out:
        for _ in range(COUNT):
            out.append({"x": rng.integers(0, 256, (4, WIDTH), dtype=np.uint8)})
    return path


def ask(url: str, path: str = "", method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=PATIENCE)
    try:
        connection.request(method, path or parts.path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.headers)
    finally:
        connection.close()


def test_the_server_gives_parts_of_files_and_nothing_else(tmp_path: Path) -> None:
    inside = tmp_path / "in"
    inside.mkdir()
    (inside / "a b.bin").write_bytes(bytes(range(100)))
    (tmp_path / "secret").write_bytes(b"not for you")
    (inside / "link").symlink_to(tmp_path / "secret")
    with serving(inside) as url_of:
        url = url_of(inside / "a b.bin").replace(" ", "%20")
        prefix = urlsplit(url_of(inside)).path.rstrip("./")
        assert ask(url)[:2] == (200, bytes(range(100)))
        status, result, headers = ask(url, Range="bytes=10-19")
        assert (status, result, headers["Content-Range"]) == (206, bytes(range(10, 20)), "bytes 10-19/100")
        assert ask(url, Range="bytes=-5")[1] == bytes(range(95, 100))
        assert ask(url, Range="bytes=90-")[1] == bytes(range(90, 100))
        assert ask(url, Range="bytes=200-300")[0] == 416
        assert ask(url, method="HEAD")[:2] == (200, b"")
        # Nothing outside, no folder, and nothing without the secret in the URL.
        for path in (f"{prefix}/../secret", f"{prefix}/link", f"{prefix}/", "/a%20b.bin", f"{prefix}/none"):
            assert ask(url, path)[0] == 404


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> dict[str, Any]:
    assert main(["bench", "chunks", *map(str, argv), *QUICK, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(
    "name",
    ["zarr", *exhaustive("hdf5", "parquet", "webdataset")],
)
def test_what_is_fetched_is_counted(
    name: str, dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("obstore")
    library = {"parquet": "pyarrow", "hdf5": "h5py", "zarr": "numcodecs"}.get(name)
    if library is not None:
        pytest.importorskip(library)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    options = ["--formats", name, "--sizes", "20kB,160kB", "--memory", "64kB", "--scratch", scratch]
    if importlib.util.find_spec("matplotlib"):
        options += ["--figure", tmp_path / "chunks.svg"]
    result = run_json(capsys, dataset, *options)
    one = result["formats"][name]
    small, large = one["sizes"]
    assert (small["size"], large["size"]) == (20_000, 160_000)
    assert small["unit_samples"] == pytest.approx(20, rel=0.15)
    assert large["unit_samples"] == pytest.approx(160, rel=0.25)
    assert small["units"] > 4 * large["units"]
    for row in (small, large):
        assert list(row["orders"]) == ["sequential", "quasi_random", "random"]
        for read in row["orders"].values():
            assert 0 < read["samples"] <= COUNT
            assert read["requests"] > 0
            assert read["best"] >= read["rate"] > 0
            # Bytes of cells are what is needed; headers and what lies between come on top.
            assert read["fetched"] > 0.5 * read["samples"] * 4 * WIDTH
    if name != "webdataset":
        # A sample costs its unit, which does not fit into memory.
        assert large["orders"]["random"]["amplification"] > 4
        assert (
            large["orders"]["random"]["amplification"] > 2 * small["orders"]["quasi_random"]["amplification"]
        )
    assert one["recommended"] in (20_000, 160_000)
    assert one["option"] in (small["flags"], large["flags"])
    assert list(scratch.iterdir()) == []


def test_text(dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("obstore")
    argv = [
        "bench",
        "chunks",
        str(dataset),
        *QUICK,
        "--formats",
        "webdataset",
        "--limit",
        "64",
        "--sizes",
        "20kB,40kB",
    ]
    assert main([*argv, "--scratch", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "64 samples of 512" in text
    assert re.search(r"^take shards of .* \(--shard-size \d+\): sequential fetches", text, re.MULTILINE)
    assert "may well be kept in memory" in text
    assert max(len(line) for line in text.splitlines()[1:] if not line.startswith("take")) <= 80
    assert list(tmp_path.iterdir()) == []


def test_fields_of_varying_size_are_left_out_of_chunks(dataset: Path) -> None:
    layouts, left = measuring.layouts_for(None, bp.Schema({"x": bp.Bytes(), "n": bp.Int()}))
    assert [layout.format for layout in layouts][-1] == "webdataset"
    assert "cells of x vary in size" in left["hdf5"]
    assert "cells of x vary in size" in left["zarr"]
    with pytest.raises(bp.BatchplantError, match="vary in size"):
        measuring.layouts_for(["zarr"], bp.Schema({"x": bp.Bytes()}))


def row(size: int, mixes: int, fetched: int, requests: int, rate: float) -> measuring.SizeResult:
    read = measuring.Reading(fetched / 1000, fetched, requests, 100, mixes, rate, rate)
    return measuring.SizeResult(
        "parquet", "row group", size, f"x={size}", 4, size, 10, 100, 3, {"quasi_random": read}
    )


def test_the_recommendation_follows_the_numbers() -> None:
    few = row(10, 64, 1000, 100, 50)
    good = row(100, 16, 1100, 20, 90)
    unmixed = row(1000, 2, 1100, 2, 99)
    best, why = measuring.recommend([few, good, unmixed], "quasi_random", 100)
    assert best is good
    assert why == (
        "quasi_random fetches 1.1× what it needs, 200 requests for 1,000 samples, and mixes 16 row groups at "
        "a time; smaller ones: 1,000 requests for 1,000 samples, 1.0×; larger ones: 1.1×, 20 requests for "
        "1,000 samples, mixing 2"
    )
    # Where requests cost nothing, bytes decide; where two cost the same, speed does.
    assert measuring.recommend([few, row(100, 16, 2000, 20, 90)], "quasi_random", 0)[0] is few
    assert measuring.recommend([few, good], "quasi_random", 0)[0] is good
    # Where none mixes enough, the one that mixes most.
    assert measuring.recommend([row(10, 3, 5000, 9, 1), unmixed], "quasi_random", 0)[0].size == 10


def test_sizes_by_the_data() -> None:
    assert measuring.sizes_for(64 << 20) == [130_000, 520_000, 2_100_000, 8_400_000, 34_000_000]
    assert measuring.sizes_for(1000) == [measuring.MIN_SIZE_BYTES]


def test_ctrl_c_leaves_nothing_behind(
    dataset: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("obstore")

    def interrupted(*_: Any, **__: Any) -> Any:
        assert list(tmp_path.rglob("*.tar"))
        raise KeyboardInterrupt

    monkeypatch.setattr("batchplant.tools.measure.timing.order_rates", interrupted)
    argv = ["bench", "chunks", str(dataset), *QUICK, "--formats", "webdataset", "--scratch", str(tmp_path)]
    assert main(argv) == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--limit 0", "--limit"),
        ("--batch-size 0", "--batch-size"),
        ("--rounds 0", "--rounds"),
        ("--seconds 0", "--seconds"),
        ("--sizes big", "--sizes"),
        ("--sizes ,", "--sizes"),
        ("--formats beton", "not of 'beton'"),
        ("--fields nosuch", "nosuch"),
        ("--figure x.jpg", ".png, .svg"),
    ],
)
def test_wrong_use(options: str, message: str, dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "chunks", str(dataset), *QUICK, *options.split()]) == 2
    assert message in capsys.readouterr().err


def test_the_help_and_the_guide_are_true(capsys: pytest.CaptureFixture[str]) -> None:
    lines = re.findall(r"^  batchplant (.*)$", chunks.__doc__ or "", re.MULTILINE)
    text = (repository.ROOT / "docs" / "guides" / "chunk-sizes.md").read_text("utf-8")
    lines += re.findall(r"^\$ batchplant (.*)$", text, re.MULTILINE)
    assert len(lines) > 5
    for line in lines:
        build_parser().parse_args(line.split())
    told = set(re.findall(r"^\| `(--[\w-]+)", text.partition("## Options")[2], re.MULTILINE))
    parser = argparse.ArgumentParser()
    chunks.add_args(parser)
    have = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    assert told - {"--json"} == have - {"--help", "--format", "--option", "--quiet", "--skip", "--where"}
