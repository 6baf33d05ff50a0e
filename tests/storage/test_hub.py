"""hf:// through our own client, against a server that speaks the API of the Hub."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.loading.recording import fingerprint
from batchplant.storage import open_source, tree
from batchplant.storage.remote.clients import client_of
from hub import REPOSITORY, Hub, hub_server

URL = f"hf://datasets/{REPOSITORY}"


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, _no_settings: None) -> Iterator[Hub]:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "home"))
    (tmp_path / "repository").mkdir()
    with hub_server(tmp_path / "repository") as server:
        yield server


def put(hub: Hub, name: str, data: bytes) -> str:
    path = hub.root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return f"{URL}/{name}"


def read(hub: Hub, url: str, start: int = 0, size: int | None = None) -> bytes:
    source = open_source(bp.storage.Url(url, bp.storage.StorageOptions(endpoint=hub.endpoint)))
    try:
        return bytes(source.view(start, source.size - start if size is None else size))
    finally:
        source.close()


def test_small_and_large_files(hub: Hub) -> None:
    large = np.random.default_rng(0).bytes(300_000)
    url = put(hub, "data/ä b.bin", large)
    assert read(hub, url) == large
    assert read(hub, put(hub, "small.txt", b"text")) == b"text"
    assert read(hub, put(hub, "empty", b"")) == b""
    # One resolve of a file, whatever is read of it.
    assert read(hub, url, 200_000, 10) == large[200_000:200_010]
    assert hub.count("/resolve/") == hub.count("resolve/" + "a" * 40) <= 5
    assert hub.count("b.bin") == 1
    with pytest.raises(bp.NotFoundError):
        read(hub, f"{URL}/missing.bin")
    with pytest.raises(bp.NotFoundError):
        read(hub, f"{URL}@nowhere/small.txt")


def test_a_signed_url_that_expired_is_asked_for_anew(hub: Hub) -> None:
    data = np.random.default_rng(0).bytes(50_000)
    url = put(hub, "large.bin", data)
    client, name = client_of(bp.storage.Url(url, bp.storage.StorageOptions(endpoint=hub.endpoint)))
    hub.uses = 2
    for start in range(0, 50_000, 10_000):
        assert bytes(client.get(name, start, start + 10_000).data) == data[start : start + 10_000]
    assert hub.count("large.bin") == 3
    # It is refused for good.
    hub.uses = 0
    hub.signatures.clear()
    with pytest.raises(bp.AccessError, match="403"):
        client.get(name, 0, 10)


def test_rate_limits_are_waited_for(hub: Hub) -> None:
    url = put(hub, "large.bin", b"x" * 5000)
    hub.busy = 2
    assert read(hub, url) == b"x" * 5000


def test_the_token_goes_to_the_hub_alone(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = put(hub, "large.bin", b"x" * 5000)
    hub.token = "hf_secret"
    with pytest.raises(bp.AccessError, match=r"Access is restricted; .*HF_TOKEN") as failure:
        read(hub, url)
    assert "hf_secret" not in str(failure.value)
    (tmp_path / "home").mkdir()
    (tmp_path / "home/token").write_text("hf_secret\n")
    assert read(hub, url) == b"x" * 5000
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert read(hub, url) == b"x" * 5000
    assert {token for _, token in hub.fetched} == {None}


def test_listings_come_in_pages(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    for number in range(25):
        put(hub, f"data/{number:02}.txt", b"x" * (50 * number))
    hub.page = 7
    entries = tree.entries(f"{URL}/data")
    assert [entry.name for entry in entries] == [f"{number:02}.txt" for number in range(25)]
    assert hub.count("/tree/") == 4
    assert dict(tree.walk(URL))["data/24.txt"] == 1200
    assert sorted(tree.glob(f"{URL}@main/data/1*.txt"))[0] == f"{URL}@main/data/10.txt"
    assert not tree.is_folder(f"{URL}/nothing")


def test_a_branch_that_moves_changes_nothing_for_this_process(hub: Hub) -> None:
    url = put(hub, "large.bin", b"x" * 5000)
    assert read(hub, url) == b"x" * 5000
    hub.commits["main"] = "b" * 40
    assert read(hub, url) == b"x" * 5000
    assert hub.count("/revision/main") == 1
    assert read(hub, f"{URL}@{'b' * 40}/large.bin", 4990) == b"x" * 10
    # A commit needs no request to be resolved.
    assert hub.count("/revision/") == 1


def test_the_record_of_a_run_has_the_commit(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    put(hub, "a.csv", b"n\n1\n2\n")
    before = fingerprint(bp.open(f"{URL}/a.csv"))
    assert before["commits"] == {URL: "a" * 40}
    hub.commits |= {"main": "b" * 40, "before": "a" * 40}
    # Of another process, as it were: this one stays at the commit that it has seen.
    assert fingerprint(bp.open(f"{URL}/a.csv")) == before
    after = fingerprint(bp.open(f"{URL}@main/a.csv"))
    assert list(after["commits"].values()) == ["b" * 40]
    assert after["digest"] != before["digest"]


def test_datasets_are_opened_in_place(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pyarrow")
    pytest.importorskip("av")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    shutil.rmtree(hub.root)
    shutil.copytree(repository.GOLDEN / "lerobot/v3", hub.root)
    local = bp.open(repository.GOLDEN / "lerobot/v3")
    with bp.open(f"{URL}/") as reader:
        assert reader.format == "lerobot"
        name = "observation.images.top"
        assert (reader.read([3, 8], [name])[name] == local.read([3, 8], [name])[name]).all()
        assert reader[8]["task"] == "pull"
    with bp.open(f"{URL}@main/data/chunk-*/*.parquet") as reader:
        assert (reader.format, len(reader)) == ("parquet", 20)
        assert len(next(iter(bp.Loader(reader.select(["action"]), 8)))["action"]) == 8


def test_a_bucket_has_no_revisions(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    put(hub, "a b/large.bin", b"x" * 5000)
    bucket = URL.replace("datasets", "buckets")
    assert read(hub, f"{bucket}/a b/large.bin") == b"x" * 5000
    assert [entry.size for entry in tree.entries(f"{bucket}/a b")] == [5000]
    assert hub.count("/revision/") == 0
    with pytest.raises(bp.AccessError, match="read only"):
        bp.convert({"n": np.arange(3)}, f"{bucket}/new.npy")


@pytest.mark.parametrize(
    "url", ["hf://datasets/name", "hf://name", "hf://datasets/../name/x", "hf://datasets/a@b", "hf://"]
)
def test_urls_that_name_no_repository(url: str) -> None:
    with pytest.raises(bp.BatchplantError):
        bp.open(url)


def test_answers_that_make_no_sense(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    put(hub, "a/b.txt", b"x")
    hub.commits["main"] = "../../evil"
    with pytest.raises(bp.AccessError, match="no commit"):
        tree.entries(URL)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("BATCHPLANT_RETRY_SECONDS", "0")
    with pytest.raises(bp.AccessError, match="cannot be reached"):
        tree.entries(URL)
