"""Buckets whose names lead out of the folder: nothing outside is read, copied, written or removed."""

from __future__ import annotations

import http.server
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import pytest

import batchplant as bp
from processes import PATIENCE

fsspec = pytest.importorskip("fsspec")
memory = pytest.importorskip("fsspec.implementations.memory")

# Names below a folder; {} is the suffix of its files.
HOSTILE = [
    "../precious{}",
    "../../../../precious{}",
    "a/../../precious{}",
    "..",
    "../..",
    "a/..",
    "/etc/precious{}",
    "a//b{}",
    "./a{}",
    "a/./b{}",
    "a\0b{}",
    "\ud800{}",
    "simplecache::http://127.0.0.1:9/x{}",
    "http://127.0.0.1:9/x{}",
]
IGNORED = "names that the server lists are ignored"


class MemoryBucket:
    """A bucket of fsspec's memory://, with whatever names."""

    def __init__(self) -> None:
        self.name = uuid.uuid4().hex
        self.url = f"memory://{self.name}"
        self._store: dict[str, Any] = fsspec.filesystem("memory").store

    def put(self, name: str, data: bytes) -> None:
        file = memory.MemoryFile(fsspec.filesystem("memory"), f"/{self.name}/{name}")
        file.write(data)
        self._store[f"/{self.name}/{name}"] = file

    def put_folder(self, name: str, folder: Path) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{name}/{path.relative_to(folder).as_posix()}", path.read_bytes())

    def objects(self) -> dict[str, bytes]:
        begin = f"/{self.name}/"
        return {
            path.removeprefix(begin): file.getvalue()
            for path, file in self._store.items()
            if path.startswith(begin)
        }


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryBucket:
    monkeypatch.setenv("BATCHPLANT_WORK", str(tmp_path / "work"))
    return MemoryBucket()


def write_folder(path: Path, kind: str) -> Path:
    """Two samples in a folder: of images, of tar shards, or an array."""
    schema: dict[str, Any] = (
        {"n": bp.Int()} if kind != "imagefolder" else {"image": bp.Image(), "label": bp.Int()}
    )
    if kind == "tar":
        path.mkdir()
        for number in range(2):
            with bp.create(path / f"part-{number}.tar", schema) as out:
                out.append({"n": number})
        return path
    with bp.create(path, schema, format=kind) as out:
        for number in range(2):
            image = np.full((4, 4, 3), number, dtype=np.uint8)
            out.append({"n": number} if kind != "imagefolder" else {"image": image, "label": number})
    return path


@pytest.mark.parametrize(
    ("kind", "suffix"), [("imagefolder", ".png"), ("tar", ".tar"), ("zarr", "/zarr.json")]
)
def test_a_folder_is_read_without_what_leads_out_of_it(bucket, tmp_path, kind, suffix):
    folder = write_folder(tmp_path / "data", kind)
    bucket.put_folder("a/data", folder)
    some = next(path.read_bytes() for path in sorted(folder.rglob(f"*{suffix.lstrip('/')}")))
    for name in HOSTILE:
        bucket.put(f"a/data/{name.format(suffix)}", some)
    before = bucket.objects()
    url = f"{bucket.url}/a/data/" + ("*.tar" if kind == "tar" else "")
    target = tmp_path / "target"
    with pytest.warns(RuntimeWarning, match=IGNORED):
        bp.convert(url, target, target_options={"format": "webdataset" if kind == "tar" else kind})
    assert len(bp.open(target)) == 2
    assert {path.name for path in tmp_path.iterdir()} <= {"data", "target", "work"}
    assert bucket.objects() == before


def test_a_pattern_names_nothing_outside_of_its_folder(bucket, tmp_path):
    bucket.put_folder("a/data", write_folder(tmp_path / "data", "tar"))
    for name in ("../part-8.tar", "b/../../part-9.tar", "/part-7.tar"):
        bucket.put(f"a/data/{name}", b"")
    with pytest.warns(RuntimeWarning, match=IGNORED):
        assert [sample["n"] for sample in bp.open(f"{bucket.url}/a/data/**/part-*.tar")] == [0, 1]


@pytest.mark.parametrize("place", [".a.zarr.partial", "a.zarr"])
def test_writing_removes_nothing_outside_of_the_target(bucket, place):
    precious = {name: name.encode() for name in ("a/precious", "precious", "a/b.zarr/zarr.json")}
    with bp.create(f"{bucket.url}/a/a.zarr", {"n": bp.Int()}) as out:
        out.append({"n": 1})
    for name, data in precious.items():
        bucket.put(name, data)
    for name in ("../precious", "../../precious", "x/../../b.zarr/zarr.json"):
        bucket.put(f"a/{place}/{name}", b"")
    with (
        pytest.warns(RuntimeWarning, match=IGNORED),
        bp.create(f"{bucket.url}/a/a.zarr", {"n": bp.Int()}, overwrite=True) as out,
    ):
        out.append({"n": 2})
    result = bucket.objects()
    assert {name: result.get(name) for name in precious} == precious


class ListingServer(http.server.ThreadingHTTPServer):
    """An S3 server that lists what a test wants, and notes what it is asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), ListingHandler)
        self.keys: list[str] = []
        self.prefixes: list[str] = []
        self.asked: list[str] = []

    @property
    def options(self) -> dict[str, Any]:
        return {"endpoint": f"http://127.0.0.1:{self.server_port}", "anonymous": True}


class ListingHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: ListingServer

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nobody reads it."""

    def do_GET(self) -> None:
        about = "<Size>1</Size><LastModified>2024-01-01T00:00:00Z</LastModified>"
        body = b""
        if "list-type=2" in self.path:
            objects = [f"<Contents><Key>{escape(key)}</Key>{about}</Contents>" for key in self.server.keys]
            folders = [
                f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
                for name in self.server.prefixes
            ]
            body = f"<ListBucketResult>{''.join(objects + folders)}</ListBucketResult>".encode()
        else:
            self.server.asked.append(self.path)
        self.send_response(200 if body else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()


@pytest.fixture
def server(_no_settings: None) -> Iterator[ListingServer]:
    pytest.importorskip("obstore")
    with ListingServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(PATIENCE)


@pytest.mark.parametrize("key", ["b/d/c/x.png", "/etc/x.png", "dd/c/x.png"])
def test_names_of_another_folder_are_ignored(server, key):
    server.keys, server.prefixes = [key], [f"{key}/"]
    with pytest.warns(RuntimeWarning, match=IGNORED):
        assert len(bp.open("s3://b/d/", format="imagefolder", **server.options)) == 0


@pytest.mark.parametrize(
    "key", ["d/../x.png", "d/c//x.png", "d/\x7f\x9b[31m.png", "d/..", "d/http://e/x.png"]
)
def test_names_that_no_object_can_have_are_one_error(server, key):
    server.keys, server.prefixes = ["d/c/y.png", key], [f"{key}/"]
    with pytest.raises(bp.BatchplantError) as caught:
        bp.open("s3://b/d/", format="imagefolder", **server.options)
    assert str(caught.value).isprintable()
    assert all(path.startswith("/b/d") and ".." not in path for path in server.asked)
