"""Indexes of objects in a bucket: beside them, for sets of them, in the cache; and what opening costs."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import tarfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant
from batchplant.cli import main
from batchplant.errors import AccessError, DamagedError
from batchplant.formats.webdataset import WebDatasetReader
from batchplant.storage import Url, index
from batchplant.storage.index import sets
from processes import PATIENCE
from proxy import Proxy, Request, answers, stalled
from servers import Bucket


def archive(first: int, samples: int, size: int = 100) -> bytes:
    """A tar of samples with a ``bin`` of random bytes and a ``cls``, the sample's number."""
    rng = np.random.default_rng(first)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as result:
        for number in range(first, first + samples):
            for extension, data in (("bin", rng.bytes(size)), ("cls", str(number).encode())):
                member = tarfile.TarInfo(f"{number:06d}.{extension}")
                member.size = len(data)
                result.addfile(member, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of this user."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder


@pytest.fixture
def options(bucket: Bucket, proxy: Proxy, home: Path) -> dict[str, Any]:
    """How to reach the bucket through the proxy, which mends rclone's answers."""
    proxy.mend = True
    return {"endpoint": proxy.endpoint}


def indexed(capsys: pytest.CaptureFixture[str], proxy: Proxy, *argv: str) -> list[dict[str, Any]]:
    assert main(["index", *argv, "--option", f"endpoint={proxy.endpoint}", "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def kinds(proxy: Proxy) -> dict[str, int]:
    return dict(Counter(request.kind for request in list(proxy.requests)))


def labels(reader: batchplant.Reader) -> list[int]:
    return [int(item) for item in np.concatenate([columns["cls"] for columns in reader.scan(fields=["cls"])])]


# -- one object ----------------------------------------------------------------------------------------


def test_the_command_writes_the_index_beside_the_object(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = bucket.put("a.tar", archive(0, 100, 2000))
    assert indexed(capsys, proxy, url, "--where") == [{"file": url, "state": "not built"}]
    (row,) = indexed(capsys, proxy, url)
    assert (row["state"], row["samples"], row["place"]) == ("built", 100, f"{url}.bpindex")
    assert row["index"] == os.path.getsize(f"{bucket.root}/a.tar.bpindex")
    assert indexed(capsys, proxy, url)[0]["state"] == "fresh"
    assert indexed(capsys, proxy, url, "--force")[0]["state"] == "rebuilt"
    assert indexed(capsys, proxy, url, "--where")[0]["place"] == f"{url}.bpindex"
    # Another user, who has nothing in a cache, scans nothing.
    shutil.rmtree(home)
    proxy.reset()
    with batchplant.open(url, **options) as reader:
        assert proxy.bytes_sent < 100_000
        assert labels(reader) == list(range(100))
    assert not home.exists()
    assert main(["index", url, "--option", f"endpoint={proxy.endpoint}"]) == 0
    assert "beside it" in capsys.readouterr().out
    assert indexed(capsys, proxy, url, "--remove")[0]["state"] == "removed"
    assert os.listdir(bucket.root) == ["a.tar"]
    assert indexed(capsys, proxy, url, "--remove")[0]["state"] == "there was none"


def test_a_changed_object_is_scanned_anew(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], capsys: pytest.CaptureFixture[str], home: Path
) -> None:
    url = bucket.put("a.tar", archive(0, 100, 2000))
    indexed(capsys, proxy, url)
    bucket.put("a.tar", archive(100, 100, 2000))
    with batchplant.open(url, **options) as reader:
        assert reader[0]["__key__"] == "000100"
    # Opening it scanned it, and the cache knows.
    assert indexed(capsys, proxy, url)[0]["state"] == "written"
    shutil.rmtree(home)
    bucket.put("a.tar", archive(200, 100, 2000))
    assert indexed(capsys, proxy, url)[0]["state"] == "rebuilt"
    assert indexed(capsys, proxy, url)[0]["state"] == "fresh"


def test_opening_remembers_a_scan_in_the_cache(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], home: Path
) -> None:
    url = bucket.put("a.tar", archive(0, 100, 2000))
    for scanned in (True, False):
        proxy.reset()
        with batchplant.open(url, **options) as reader:
            assert len(reader) == 100
        assert (proxy.bytes_sent > 200_000) == scanned
    assert os.listdir(bucket.root) == ["a.tar"]
    assert len(list(home.rglob("*.bpindex"))) == 1


def test_a_bucket_that_takes_nothing_leads_to_the_cache(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [bucket.put(f"{name}.tar", archive(0, 100, 2000)) for name in "abc"]
    proxy.fail(answers(403), method="PUT", times=None)
    for given in ([urls[0]], urls):
        rows = indexed(capsys, proxy, *given)
        assert all(row["place"].startswith(str(home)) for row in rows)
        assert all("403" in row["remark"] for row in rows)
    assert main(["index", urls[0], "--option", f"endpoint={proxy.endpoint}"]) == 0
    assert "  note: s3://" in capsys.readouterr().out
    assert sorted(os.listdir(bucket.root)) == ["a.tar", "b.tar", "c.tar"]


def test_an_index_that_was_uploaded_with_its_file_is_used(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], home: Path, tmp_path: Path
) -> None:
    content = archive(0, 280, 20_000)
    (tmp_path / "a.tar").write_bytes(content)
    batchplant.open(tmp_path / "a.tar", index="write").close()
    url = bucket.put("a.tar", content)
    shutil.copyfile(tmp_path / "a.tar.bpindex", f"{bucket.root}/a.tar.bpindex")
    sent = []
    for _ in range(2):
        proxy.reset()
        with batchplant.open(url, **options) as reader:
            assert len(reader) == 280
        sent.append(proxy.bytes_sent)
    # The pieces that tell whether it belongs to the object are read once.
    assert sent[1] < sent[0] < len(content) // 2
    assert labels(batchplant.open(url, **options)) == list(range(280))
    # One of those pieces is another: it does not belong.
    shutil.rmtree(home)
    bucket.put("a.tar", archive(280, 280, 20_000))
    assert labels(batchplant.open(url, **options)) == list(range(280, 560))


def test_an_indexed_object_opens_in_two_round_trips_and_gives_a_sample_in_the_third(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], home: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    url = bucket.put("a.tar", archive(0, 200, 2000))
    indexed(capsys, proxy, url)
    shutil.rmtree(home)
    proxy.reset()
    # Neither the listing nor the first bytes are given before both were asked for; and nobody asks twice.
    proxy.fail(stalled(), method="LIST")
    proxy.fail(stalled(), method="GET")
    opened = ThreadPoolExecutor(1).submit(batchplant.open, url, **options)
    try:
        proxy.wait_for(lambda: kinds(proxy) == {"LIST": 1, "GET": 1})
    finally:
        proxy.release()
    with opened.result(PATIENCE) as reader:
        assert kinds(proxy) == {"LIST": 1, "GET": 2}
        assert proxy.requests[2].path.startswith(f"/{bucket.name}/a.tar.bpindex")
        proxy.reset()
        assert reader[120]["cls"] == 120
        assert kinds(proxy) == {"GET": 1}
        proxy.reset()
        assert reader[180]["cls"] == 180
        assert kinds(proxy) == {"GET": 1}


def test_a_web_server_has_indexes_too(web: Any, home: Path, tmp_path: Path) -> None:
    content = archive(0, 100, 2000)
    url = web.put("a.tar", content)
    assert labels(batchplant.open(url)) == list(range(100))
    shutil.rmtree(home)
    (tmp_path / "a.tar").write_bytes(content)
    batchplant.open(tmp_path / "a.tar", index="write").close()
    web.put("a.tar.bpindex", (tmp_path / "a.tar.bpindex").read_bytes())
    web.put("a.tar", content)
    web.proxy.reset()
    assert labels(batchplant.open(url)) == list(range(100))
    assert web.proxy.count("GET", "a.tar.bpindex") == 1
    # A server that takes nothing: the cache it is.
    assert main(["index", url]) == 0
    assert len(list(home.rglob("*.bpindex"))) == 1


# -- scanning ------------------------------------------------------------------------------------------


def whole(proxy: Proxy, name: str) -> list[tuple[int, int]]:
    """The ranges of an object that were asked for, in order."""
    return sorted(request.range for request in list(proxy.requests) if name in request.path and request.range)


@pytest.mark.parametrize("memory", [None, "16MiB"])
def test_a_scan_fetches_every_byte_once_and_several_ranges_at_a_time(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], memory: str | None
) -> None:
    content = archive(0, 200, 100_000)
    url = bucket.put("a.tar", content)
    with batchplant.open(url, **options, fetch_bytes=memory) as reader:
        assert len(reader) == 200
        # That the numbers are numbers is known, though not all of the archive fits into memory.
        assert isinstance(reader.schema["cls"], batchplant.Int)
    ranges = [(first, min(end, len(content))) for first, end in whole(proxy, "a.tar")]
    assert len(ranges) > 4
    assert proxy.most_in_flight > 1
    fetched = sum(end - first for first, end in ranges)
    assert len(content) * 0.99 < fetched < len(content) * 1.01


def test_large_members_are_jumped_over(bucket: Bucket, proxy: Proxy, options: dict[str, Any]) -> None:
    content = archive(0, 8, 3 << 20)
    url = bucket.put("a.tar", content)
    with batchplant.open(url, **options) as reader:
        assert proxy.bytes_sent < len(content) // 10
        assert labels(reader) == list(range(8))
        assert len(reader[3]["bin"]) == 3 << 20


@pytest.mark.parametrize("suffix", [".tfrecord", ".rec", ".jsonl", ".csv", ".msgpack"])
def test_formats_that_are_scanned(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], tmp_path: Path, suffix: str,
    capsys: pytest.CaptureFixture[str], home: Path,
) -> None:  # fmt: skip
    path = tmp_path / f"a{suffix}"
    with batchplant.create(path, {"text": batchplant.Text(), "label": batchplant.Int()}) as out:
        for number in range(3000):
            out.append({"text": "word " * 60, "label": number})
    for item in tmp_path.glob("a*"):
        bucket.put(item.name, item.read_bytes())
    url = f"{bucket.url}/{path.name}"
    with batchplant.open(url, **options) as reader:
        assert [int(item) for item in reader.read(range(3000), ["label"])["label"]] == list(range(3000))
    (row,) = indexed(capsys, proxy, url)
    assert row["samples"] == 3000
    if row["state"] == "none is needed":
        return
    assert row["place"] == f"{url}.bpindex"
    shutil.rmtree(home, ignore_errors=True)
    proxy.reset()
    with batchplant.open(url, **options) as reader:
        # RecordIO looks into some records to tell what they are, which brings most of so small a file.
        assert suffix == ".rec" or proxy.bytes_sent < path.stat().st_size / 2
        proxy.reset()
        assert reader[2000]["label"] == 2000
        assert kinds(proxy) == ({} if suffix == ".rec" else {"GET": 1})


# -- many objects --------------------------------------------------------------------------------------


@pytest.fixture
def shards(bucket: Bucket, proxy: Proxy, options: dict[str, Any], home: Path) -> list[str]:
    """Twelve shards of three samples, indexed; the cache is empty."""
    urls = [bucket.put(f"train/s-{number:05d}.tar", archive(3 * number, 3)) for number in range(12)]
    assert main(["index", f"{bucket.url}/train/", "--option", f"endpoint={proxy.endpoint}"]) == 0
    shutil.rmtree(home, ignore_errors=True)
    assert os.path.exists(f"{bucket.root}/train/_index.bpindex")
    proxy.reset()
    return urls


@pytest.mark.parametrize("how", ["glob", "folder", "braces", "list", "slashless"])
def test_indexed_shards_are_opened_by_one_listing_and_one_get(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], shards: list[str], how: str
) -> None:
    base = f"{bucket.url}/train"
    given: dict[str, Any] = {
        "glob": f"{base}/s-*.tar", "folder": f"{base}/", "braces": f"{base}/s-{{00000..00011}}.tar",
        "list": shards, "slashless": base,
    }  # fmt: skip
    with batchplant.open(given[how], **options) as reader:
        # A URL without a slash could be an object: it is asked for first.
        extra = {"slashless": {"LIST": 2, "GET": 2}}.get(how, {"LIST": 1, "GET": 1})
        assert kinds(proxy) == extra
        assert len(reader) == 36
        proxy.reset()
        assert reader[20]["cls"] == 20
        assert kinds(proxy) == {"GET": 1}
        assert labels(reader) == list(range(36))


def test_hundreds_of_indexed_shards(bucket: Bucket, proxy: Proxy, options: dict[str, Any]) -> None:
    # To index them through the server takes too long here. It calls the MD5 of an object its ETag.
    members = []
    for number in range(300):
        content = archive(number, 1)
        bucket.put(f"train-{number:05d}.tar", content)
        with index.watching(combined=True) as seen:
            WebDatasetReader(f"{bucket.root}/train-{number:05d}.tar").close()
        tag = hashlib.md5(content).hexdigest()
        seen[0].car._stamp = {"size": len(content), "tag": tag, "sample": ""}
        members.append((seen[0], "webdataset", {}))
    assert index.combine(members) is None
    proxy.reset()
    with batchplant.open(f"{bucket.url}/train-*.tar", **options) as reader:
        result = kinds(proxy)
        # As many listings as the server has pages.
        assert result["GET"] == 1
        assert result["LIST"] <= 2
        assert len(reader) == 300
        proxy.reset()
        assert reader[277]["cls"] == 277
        assert kinds(proxy) == {"GET": 1}


def test_a_shard_that_changed_is_scanned_alone(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], shards: list[str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    bucket.put("train/s-00004.tar", archive(100, 3))
    with batchplant.open(f"{bucket.url}/train/", **options) as reader:
        asked = {request.path.partition("?")[0] for request in proxy.requests if request.kind == "GET"}
        assert asked == {f"/{bucket.name}/train/{name}" for name in ("s-00004.tar", "_index.bpindex")}
        assert labels(reader) == [*range(12), 100, 101, 102, *range(15, 36)]
    rows = indexed(capsys, proxy, f"{bucket.url}/train/")
    assert [row["state"] for row in rows] == ["fresh"] * 4 + ["rebuilt"] + ["fresh"] * 7
    proxy.reset()
    batchplant.open(f"{bucket.url}/train/", **options).close()
    assert kinds(proxy) == {"LIST": 1, "GET": 1}
    # Nothing to do, nothing written.
    proxy.reset()
    indexed(capsys, proxy, f"{bucket.url}/train/")
    assert "PUT" not in kinds(proxy)


def test_a_set_grows_and_shrinks(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], shards: list[str],
    capsys: pytest.CaptureFixture[str], home: Path,
) -> None:  # fmt: skip
    for number in range(3):
        bucket.put(f"train/v-{number}.tar", archive(50 + number, 1))
    os.unlink(f"{bucket.root}/train/s-00011.tar")
    indexed(capsys, proxy, f"{bucket.url}/train/v-*.tar")
    content = sets.IndexSet("", sets.sidecar.read(Path(bucket.root, "train", "_index.bpindex")))
    assert list(content) == [f"s-{number:05d}.tar" for number in range(11)] + [
        "v-0.tar",
        "v-1.tar",
        "v-2.tar",
    ]
    shutil.rmtree(home, ignore_errors=True)
    proxy.reset()
    assert len(batchplant.open(f"{bucket.url}/train/", **options)) == 36
    assert kinds(proxy) == {"LIST": 1, "GET": 1}
    rows = indexed(capsys, proxy, f"{bucket.url}/train/v-*.tar", "--where")
    assert {row["place"] for row in rows} == {f"{bucket.url}/train/_index.bpindex"}
    rows = indexed(capsys, proxy, f"{bucket.url}/train/v-*.tar", "--remove")
    assert {row["state"] for row in rows} == {"removed"}
    assert indexed(capsys, proxy, f"{bucket.url}/train/v-*.tar", "--where")[0]["state"] == "not built"
    assert indexed(capsys, proxy, f"{bucket.url}/train/s-*.tar", "--where")[0]["state"] == "there"
    indexed(capsys, proxy, f"{bucket.url}/train/s-*.tar", "--remove")
    assert not os.path.exists(f"{bucket.root}/train/_index.bpindex")


def test_the_notes_beside_shards_come_with_the_set(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], tmp_path: Path,
    capsys: pytest.CaptureFixture[str], home: Path,
) -> None:  # fmt: skip
    fields = {"text": batchplant.Text(), "label": batchplant.Int()}
    with batchplant.create(tmp_path / "a.msgpack", fields, shard_samples=10) as out:
        for number in range(100):
            out.append({"text": "word", "label": number})
    for path in tmp_path.glob("a*"):
        bucket.put(path.name, path.read_bytes())
    indexed(capsys, proxy, f"{bucket.url}/a-*.msgpack")
    shutil.rmtree(home, ignore_errors=True)
    proxy.reset()
    with batchplant.open(f"{bucket.url}/a-*.msgpack", **options) as reader:
        assert kinds(proxy) == {"LIST": 1, "GET": 1}
        assert dict(reader.schema) == fields
        assert reader[55] == {"text": "word", "label": 55}
    # A note that changed is read anew.
    note = Path(bucket.root, "a-00003.msgpack.schema.json")
    note.write_text(note.read_text().replace('"text"}', '"text", "optional": true}'))
    proxy.reset()
    with pytest.raises(batchplant.SchemaError, match="a-00003"):
        batchplant.open(f"{bucket.url}/a-*.msgpack", **options)


def test_one_shard_of_a_set_uses_its_index(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    urls = [bucket.put(f"{name}.tar", archive(0, 100, 2000)) for name in "ab"]
    indexed(capsys, proxy, *urls)
    assert sorted(os.listdir(bucket.root)) == ["_index.bpindex", "a.tar", "b.tar"]
    shutil.rmtree(home)
    proxy.reset()
    with batchplant.open(urls[0], **options) as reader:
        assert proxy.bytes_sent < 100_000
        assert labels(reader) == list(range(100))


def test_a_set_that_is_damaged_does_no_harm(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(2):
        bucket.put(f"{number}.tar", archive(number, 1))
    indexed(capsys, proxy, f"{bucket.url}/*.tar")
    place = Path(bucket.root, "_index.bpindex")
    content = place.read_bytes()
    bit = bytearray(content)
    bit[300] ^= 1
    for bad in (b"", b"BPIDX1\n\0", content[:-70], bytes(bit)):
        place.write_bytes(bad)
        with batchplant.open(f"{bucket.url}/*.tar", **options) as reader:
            assert labels(reader) == [0, 1]


def test_entries_that_lie_do_no_harm(bucket: Bucket, options: dict[str, Any]) -> None:
    """Whoever can write a set can write checksums that fit."""
    urls = [bucket.put(f"{number}.tar", archive(number, 1)) for number in range(2)]
    with index.watching(combined=True) as seen:
        batchplant.open(urls[0], **options).close()
    (one,) = seen
    entries, parts, end = sets.sidecar.lay_out(one.index.arrays)
    entry = {**one.car.header(one.index, entries), **sets._besides(sets.Member(one, "webdataset", {}))}
    hostile = [None, "zarr", {"0.tar": {"size": -1}, "starts": {"start": -64}}]
    for key, value in [("", 0), *((key, value) for key in entry for value in hostile)]:
        text = json.dumps({**entry, key: value}).encode()
        own = {
            "names": np.frombuffer(b"0.tar", np.uint8), "entries": np.frombuffer(text, np.uint8),
            "entry_offsets": np.array([0, len(text)]),
        }  # fmt: skip
        own_entries, more, _ = sets.sidecar.lay_out(own, end)
        header = {"kind": "set", "version": 1, "stamp": None, "facts": {}, "arrays": own_entries}
        packed = sets.sidecar.packed(header, [*parts, *more])
        bucket.put("_index.bpindex", sets.sidecar.joined(packed).tobytes())
        with batchplant.open(f"{bucket.url}/*.tar", **options) as reader:
            assert labels(reader) == [0, 1], (key, value)


def test_names_that_do_not_fit_are_no_set() -> None:
    for offsets in ([0], [0, 9], [0, 5, 2], [1, 2], [0, 2, 1, 2]):
        own = {
            "names": np.frombuffer(b"a/b", np.uint8), "entries": np.frombuffer(b"{}", np.uint8),
            "entry_offsets": np.array(offsets),
        }  # fmt: skip
        entries, parts, _ = sets.sidecar.lay_out(own)
        header = {"kind": "set", "version": 1, "stamp": None, "facts": {}, "arrays": entries}
        content = sets.sidecar.parse(sets.sidecar.joined(sets.sidecar.packed(header, parts)))
        with pytest.raises(ValueError, match="do not fit"):
            sets.IndexSet("", content)


# -- failures ------------------------------------------------------------------------------------------


def test_damage_is_named_by_url_and_byte(bucket: Bucket, options: dict[str, Any]) -> None:
    content = bytearray(archive(0, 100, 2000))
    content[77 * 512] ^= 1
    urls = [bucket.put("a.tar", archive(0, 2)), bucket.put("b.tar", bytes(content))]
    with pytest.raises(DamagedError, match=r"s3://.*/b\.tar, byte 39424: ") as caught:
        batchplant.open(urls, **options)
    assert (caught.value.path, caught.value.offset) == (urls[1], 39424)


def test_a_server_that_fails_is_named_by_url_byte_and_sample(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = bucket.put("a.tar", archive(0, 100, 2000))

    def late(request: Request) -> Any:
        return answers(500) if request.range and request.range[0] > 0 else None

    proxy.fail(late, times=None)
    with pytest.raises(AccessError, match=r"500") as caught:
        batchplant.open(url, **options)
    assert caught.value.path == url
    assert caught.value.offset is not None
    proxy.reset()
    # With the index of the first, the second has fetched nothing of the samples.
    batchplant.open(url, **options).close()
    with batchplant.open(url, **options) as reader:
        proxy.fail(late, times=None)
        with pytest.raises(AccessError, match=r"500") as caught:
            reader[70]
        assert (caught.value.path, caught.value.sample) == (url, 70)
        assert caught.value.offset == int(reader.spans("bin", [70]).start[0])


# -- verify and quarantine -----------------------------------------------------------------------------


def test_verify_names_shard_sample_and_byte_and_its_list_is_left_out(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], tmp_path: Path
) -> None:
    for number in range(3):
        path = tmp_path / f"s-{number}.tfrecord"
        with batchplant.create(path, {"data": batchplant.Bytes()}) as out:
            for row in range(10):
                out.append({"data": bytes([number, row]) * 50})
        content = bytearray(path.read_bytes())
        if number == 1:
            size = len(content) // 10
            content[4 * size + 80] ^= 1
        for item in tmp_path.glob(f"{path.name}*"):
            bucket.put(item.name, bytes(content) if item == path else item.read_bytes())
    bad = tmp_path / "bad.jsonl"
    report = batchplant.verify(f"{bucket.url}/s-*.tfrecord", quarantine=bad, **options)
    (problem,) = report.problems
    assert problem.path == f"{bucket.url}/s-1.tfrecord"
    assert (problem.sample, problem.offset) == (14, 4 * size + 12)
    (line,) = map(json.loads, bad.read_text().splitlines())
    assert line == {
        "path": f"{bucket.url}/s-1.tfrecord", "sample": 4, "in_set": 14, "field": None,
        "offset": 4 * size + 12, "problem": problem.message,
    }  # fmt: skip
    # The same files in a bucket and in a folder, opened with the list and by a Loader.
    with batchplant.open(f"{bucket.url}/s-*.tfrecord", skip=bad, **options) as reader:
        assert [sample["data"][:2] for sample in reader] == [
            bytes([n // 10, n % 10]) for n in range(30) if n != 14
        ]
    assert len(batchplant.open(str(tmp_path / "s-*.tfrecord"), skip=bad)) == 29
    # The list may lie in the bucket too.
    where = Url(f"{bucket.url}/bad.jsonl", batchplant.storage.StorageOptions(**options))
    batchplant.verify(f"{bucket.url}/s-*.tfrecord", quarantine=where, **options)
    assert Path(bucket.root, "bad.jsonl").read_bytes() == bad.read_bytes()
    assert len(batchplant.open(f"{bucket.url}/s-*.tfrecord", skip=where, **options)) == 29


def test_verify_of_a_few_samples_fetches_a_few_ranges(
    bucket: Bucket, proxy: Proxy, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    content = archive(0, 200, 150_000)
    url = bucket.put("a.tar", content)
    indexed(capsys, proxy, url)
    proxy.reset()
    report = batchplant.verify(url, sample=5, **options)
    assert (report.ok, report.samples) == (True, 5)
    assert proxy.bytes_sent < len(content) // 10
