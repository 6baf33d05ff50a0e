"""``batchplant cache``: what it shows, removes and fetches."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant
from batchplant.cli import main
from batchplant.storage.remote import RemoteSource
from batchplant.storage.remote.disk import DiskCache
from batchplant.storage.work import partial_folder, write_note
from chunks import shrink_chunks
from proxy import Proxy, Request
from servers import Bucket
from variants import exhaustive

pytestmark = pytest.mark.usefixtures("_no_settings")


def run_json(capsys: pytest.CaptureFixture[str], *argv: object) -> Any:
    assert main([*map(str, argv), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def said(capsys: pytest.CaptureFixture[str], *argv: object) -> str:
    assert main([*map(str, argv)]) == 0
    return capsys.readouterr().out


def filled(folder: Path) -> DiskCache:
    """Three objects: one whole, one half, one that nobody described."""
    cache = DiskCache(folder, 5_000_000)
    for number, url in enumerate(("s3://b/train-0.tar", "s3://b/train-1.tar", "")):
        key = hashlib.sha256(url.encode()).hexdigest()
        if url:
            cache.describe(key, url, "tag", 20_000 * (number + 1))
        for start in (0, 10_000):
            cache.put(key, start, np.full(10_000, number, dtype=np.uint8))
    return cache


def test_info_shows_objects_and_limit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = filled(tmp_path / "cache")
    text = said(capsys, "cache", "info", "--cache", tmp_path / "cache")
    first, header, *rows = text.splitlines()
    assert first.startswith(f"{tmp_path}/cache: ")
    assert first.endswith("of 5.0 MB, 6 blocks of 3 objects")
    assert header.split() == ["object", "size", "cached", "blocks"]
    assert rows[0].split() == ["s3://b/train-0.tar", "20.0", "kB", "20.0", "kB", "(100%)", "2"]
    assert rows[1].split() == ["s3://b/train-1.tar", "40.0", "kB", "20.0", "kB", "(50%)", "2"]
    assert rows[2].startswith("unknown (")
    result = run_json(capsys, "cache", "info", "--cache", tmp_path / "cache")
    assert result["bytes"] == cache.info().bytes
    assert (result["folder"], result["limit"], result["blocks"]) == (str(tmp_path / "cache"), 5_000_000, 6)
    assert [row["url"] for row in result["objects"]] == ["s3://b/train-0.tar", "s3://b/train-1.tar", None]
    assert result["objects"][1]["bytes"] == 20_000
    assert "… and 2 smaller ones" in said(capsys, "cache", "info", "-n", 1, "--cache", tmp_path / "cache")


@pytest.mark.parametrize("command", ["info", "clear"])
def test_looking_makes_no_cache(tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str) -> None:
    for folder in (tmp_path / "none", tmp_path):
        assert "nothing" in said(capsys, "cache", command, "--cache", folder)
        result = run_json(capsys, "cache", command, "--cache", folder)
        assert result["folder"] == str(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("urls", "left"),
    [
        ((), []),
        (("s3://b/",), [None]),
        (("s3://b/train-0.tar",), ["s3://b/train-1.tar", None]),
        (("s3://b/train-{0..1}.tar",), [None]),
        (("s3://b/*-1.tar", "s3://other/x"), ["s3://b/train-0.tar", None]),
        (("s3://b/train",), ["s3://b/train-0.tar", "s3://b/train-1.tar", None]),
    ],
)
def test_clear(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], urls: tuple[str, ...], left: list[str | None]
) -> None:
    cache = filled(tmp_path)
    text = said(capsys, "cache", "clear", *urls, "--cache", tmp_path)
    assert [item.url for item in cache.info().objects] == left
    assert ("removed" in text) == (len(left) < 3)
    # Its own limit is none of those who add.
    assert cache.info().limit == 5_000_000
    assert run_json(capsys, "cache", "clear", *urls, "--cache", tmp_path)["removed"] == 0


def test_where_the_cache_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def where() -> str:
        return run_json(capsys, "cache", "info")["folder"]

    assert where() == str(tmp_path / "home/.cache/batchplant/blocks")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert where() == str(tmp_path / "xdg/batchplant/blocks")
    monkeypatch.setenv("BATCHPLANT_CONFIG", str(tmp_path / "config.toml"))
    (tmp_path / "config.toml").write_text('[storage]\ncache = "~/mine"\n')
    assert where() == str(tmp_path / "home/mine")
    monkeypatch.setenv("BATCHPLANT_CACHE", str(tmp_path / "variable"))
    assert where() == str(tmp_path / "variable")


def test_a_cache_that_cannot_be_used_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "total").mkdir()
    assert main(["cache", "info", "--cache", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"batchplant: {tmp_path}: the cache cannot be used: Is a directory\n"


# --- writes that were not finished ------------------------------------------------------------------


def left(url: str, *, state: bool) -> Path:
    """What a writer to a URL leaves that is killed."""
    folder = partial_folder(url)
    folder.mkdir(parents=True)
    write_note(folder, url)
    (folder / "data").write_bytes(bytes(5000))
    if state:
        (folder / "state.json").write_text("{}")
    return folder


def test_writes_that_were_not_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cache = tmp_path / "cache"
    assert "not finished" not in said(capsys, "cache", "info", "--cache", cache)
    assert said(capsys, "cache", "clear", "--writes") == "there are no writes that were not finished\n"
    # Nothing is reached for what was written with a password.
    folders = [left(f"https://user:secret@127.0.0.1:1/{item}.beton", state=item == "a") for item in "ab"]
    text = said(capsys, "cache", "info", "--cache", cache)
    assert "secret" not in text
    rows = [line for line in text.splitlines() if line.startswith("https://127.0.0.1:1/")]
    assert sorted(row.split("kB")[1].strip() for row in rows) == ["can be resumed", "cannot be resumed"]
    result = run_json(capsys, "cache", "info", "--cache", cache)["writes"]
    assert {row["folder"] for row in result} == set(map(str, folders))
    assert all(row["bytes"] >= 5000 and not row["busy"] for row in result)
    assert main(["cache", "clear", "--writes", "s3://b/a"]) == 2
    assert "takes no URL" in capsys.readouterr().err
    assert said(capsys, "cache", "clear", "--writes").count("removed") == 2
    assert not any(folder.exists() for folder in folders)
    assert run_json(capsys, "cache", "clear", "--writes") == {"removed": 0, "writes": []}


# --- warm -------------------------------------------------------------------------------------------

SAMPLES, EACH = 25, 20_000


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> int:
    """Small blocks, so that small datasets have many."""
    shrink_chunks(monkeypatch, 100_000)
    return 100_000


def stored(bucket: Bucket, folder: Path, name: str) -> str:
    with batchplant.create(folder / name, {"x": batchplant.Bytes(), "n": batchplant.Int()}) as out:
        for number in range(SAMPLES):
            out.append({"x": np.random.default_rng(number).bytes(EACH), "n": number})
    return bucket.put(name, (folder / name).read_bytes())


def warm(
    capsys: pytest.CaptureFixture[str], proxy: Proxy, cache: Path, url: str, *more: object
) -> dict[str, Any]:
    endpoint = f"endpoint={proxy.endpoint}"
    return run_json(capsys, "cache", "warm", url, "--cache", cache, "--option", endpoint, *more)


def test_warm_fetches_every_block_once(
    tmp_path: Path, bucket: Bucket, proxy: Proxy, parts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = stored(bucket, tmp_path, "a.tfrecord")
    size = (tmp_path / "a.tfrecord").stat().st_size
    count = -(-size // parts)
    actual = warm(capsys, proxy, tmp_path / "cache", url)
    # Opening it for the first time reads it whole, and so some of it is there already.
    assert actual.pop("fetched") <= size
    assert actual == {"folder": str(tmp_path / "cache"), "objects": 1, "blocks": count, "bytes": size}
    (held,) = run_json(capsys, "cache", "info", "--cache", tmp_path / "cache")["objects"]
    assert (held["url"], held["size"], held["bytes"], held["blocks"]) == (url, size, size, count)
    # What is there is not fetched again; what is not is.
    before = proxy.bytes_sent
    again = warm(capsys, proxy, tmp_path / "cache", url)
    assert (again["blocks"], again["bytes"], again["fetched"]) == (count, size, 0)
    assert proxy.bytes_sent - before < parts
    next((tmp_path / "cache").glob("??/*-0-*")).unlink()
    assert warm(capsys, proxy, tmp_path / "cache", url)["fetched"] == parts
    text = said(
        capsys, "cache", "warm", url, "--cache", tmp_path / "cache", "--option", f"endpoint={proxy.endpoint}"
    )
    first, *rest = text.splitlines()
    assert first == f"{tmp_path}/cache: 501 kB of 1 object in {count} blocks, 0 B of it fetched now"
    # It says how a Loader comes to use it.
    assert f"BATCHPLANT_CACHE={tmp_path}/cache" in "".join(rest)


def epoch(url: str, proxy: Proxy, cache: Path, order: str) -> list[Request]:
    """Read everything once, in a reader of its own; return the requests that it made."""
    with batchplant.open(url, endpoint=proxy.endpoint, cache=str(cache)) as reader:
        # Tables that opening asked for are no part of the epoch.
        spans = reader.ranges(None, [0])
        assert spans is not None
        source = spans.sources[0]
        assert isinstance(source, RemoteSource)
        for block in list(source.blocks[1].blocks.values()):
            block.future.result()
        before = len(proxy.requests)
        seen = []
        for batch in batchplant.Loader(reader, 4, order=order):
            data, _ = batch["x"]
            seen += batch["n"].tolist()
            assert data.tobytes() == b"".join(np.random.default_rng(item).bytes(EACH) for item in batch["n"])
        assert sorted(seen) == list(range(SAMPLES))
        # Opening may still ask which other objects there are.
        return [request for request in proxy.requests[before:] if "list-type" not in request.path]


# Records, an index of the format's own, and row groups; every other combination in the thorough run.
ORDERS = [(".tfrecord", "sequential"), (".beton", "random"), (".parquet", "random")]
OTHER_ORDERS = [
    (suffix, order)
    for suffix in (".tfrecord", ".msgpack", ".beton", ".parquet")
    for order in ("sequential", "random")
    if (suffix, order) not in ORDERS
]


@pytest.mark.parametrize(("suffix", "order"), [*ORDERS, *exhaustive(*OTHER_ORDERS)])
def test_an_epoch_from_a_warm_cache_makes_no_request(
    tmp_path: Path,
    bucket: Bucket,
    proxy: Proxy,
    parts: int,
    capsys: pytest.CaptureFixture[str],
    suffix: str,
    order: str,
) -> None:
    proxy.mend = True
    url = stored(bucket, tmp_path, f"a{suffix}")
    warm(capsys, proxy, tmp_path / "cache", url)
    assert epoch(url, proxy, tmp_path / "cache", order) == []


@pytest.mark.parametrize(
    ("suffix", "order"), [(".msgpack", "sequential"), *exhaustive(*ORDERS, *OTHER_ORDERS)]
)
def test_a_second_epoch_from_the_cache_makes_no_request(
    tmp_path: Path, bucket: Bucket, proxy: Proxy, parts: int, suffix: str, order: str
) -> None:
    proxy.mend = True
    url = stored(bucket, tmp_path, f"a{suffix}")
    epoch(url, proxy, tmp_path / "cache", order)
    # Not much twice, with all that opening takes.
    assert SAMPLES * EACH <= proxy.bytes_sent < 2 * SAMPLES * EACH
    # A listing that the first opening began and did not need may come late.
    again = [request.path for request in epoch(url, proxy, tmp_path / "cache", order)]
    assert [path for path in again if "list-type" not in path] == []


def test_warm_refuses_what_does_not_fit(
    tmp_path: Path, bucket: Bucket, proxy: Proxy, parts: int, capsys: pytest.CaptureFixture[str]
) -> None:
    url = stored(bucket, tmp_path, "a.tfrecord")
    options = ["--cache", str(tmp_path / "cache"), "--option", f"endpoint={proxy.endpoint}"]
    assert main(["cache", "warm", url, *options, "--cache-bytes", "400kB"]) == 2
    assert "which may hold 400,000; raise its limit" in capsys.readouterr().err


def test_warm_of_what_is_not_remote(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with batchplant.create(tmp_path / "a.tfrecord", {"n": batchplant.Int()}) as out:
        out.append({"n": 1})
    assert main(["cache", "warm", str(tmp_path / "a.tfrecord"), "--cache", str(tmp_path / "cache")]) == 2
    assert "local path" in capsys.readouterr().err
    assert not (tmp_path / "cache").exists()
