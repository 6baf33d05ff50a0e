"""Writing to URLs, against a real server: what is there is whole, whoever is killed or fails when."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import forks
import processes
from batchplant.cli import main
from batchplant.formats import registry
from batchplant.formats.base.tensors import TENSORS
from batchplant.jobs import engines
from batchplant.storage import Url, targets, uploads, work
from batchplant.storage.work import WorkSpace, WorkTuning
from batchplant.testing.cases import EXAMPLE_FIELDS, EXHAUSTIVE, check_samples, example_fields
from batchplant.testing.suite import SHAPES, tensor
from proxy import Proxy, answers, reset, stalled

pytest.importorskip("obstore", reason="pip install 'batchplant[remote]'")

ROWS = 12
WRITERS = sorted(name for name, spec in registry.all_formats().items() if spec.writer is not None)
OPEN = {"pickle": {"allow_pickle": True}, "joblib": {"allow_pickle": True}}
# Formats whose targets are replaced in ways that differ: files, side-cars, folders, tables, a database.
REPLACED = ("beton", "tfrecord", "json", "zarr", "imagefolder", "parquet", "delta", "lmdb", "safetensors")
# A folder has one image, sound or video for each sample, and none of the other two.
MEDIA = {"imagefolder": "image", "audiofolder": "audio", "videofolder": "video"}


@dataclasses.dataclass(frozen=True)
class Shelf:
    """A folder of a bucket that nobody else writes to."""

    url: str
    root: str
    endpoint: str
    work: Path

    def options(self) -> dict[str, Any]:
        return {"endpoint": self.endpoint}

    def at(self, name: str) -> str:
        return f"{self.url}/{name}"

    def names(self) -> list[str]:
        """All objects."""
        return sorted(_files(self.root))

    def hidden(self) -> list[str]:
        """What should not be left, in the bucket and in the work folder."""
        return [name for name in self.names() if name.startswith(".")] + _files(str(self.work))

    def write(self, name: str, source: Any, **how: Any) -> bp.Conversion:
        target_options = {**how.pop("target_options", {}), **self.options()}
        options = how.pop("options", bp.ConvertOptions(checksums=how.pop("checksums", False)))
        options = dataclasses.replace(options, workers=1)
        return bp.convert(source, self.at(name), target_options=target_options, options=options, **how)

    def open(self, name: str, **how: Any) -> bp.Reader:
        return bp.open(self.at(name), endpoint=self.endpoint, **how)


def _files(folder: str) -> list[str]:
    return [
        os.path.relpath(os.path.join(top, name), folder)
        for top, _, names in os.walk(folder)
        for name in names
        # What rclone leaves where several make one folder at the same time; it shows it to nobody.
        if not name.startswith(".rclone_temp_put_")
    ]


@pytest.fixture(scope="module")
def _server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    from servers import s3_server

    root = tmp_path_factory.mktemp("writable")
    name = f"writes-{uuid.uuid4().hex[:12]}"
    (root / name).mkdir()
    with s3_server(str(root), writable=True) as endpoint:
        yield name, str(root / name), endpoint


@pytest.fixture
def shelf(
    _server: tuple[str, str, str], _no_settings: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Shelf:
    from servers import KEY, SECRET

    name, root, endpoint = _server
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("BATCHPLANT_WORK", str(tmp_path / "work"))
    folder = uuid.uuid4().hex[:12]
    return Shelf(f"s3://{name}/{folder}", os.path.join(root, folder), endpoint, tmp_path / "work")


@pytest.fixture
def behind(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Shelf, Proxy]]:
    """The same, with a proxy before it; failures are tried again without pauses."""
    with Proxy(shelf.endpoint) as proxy:
        yield dataclasses.replace(shelf, endpoint=proxy.endpoint), proxy


def numbers(count: int, first: int = 0) -> dict[str, Any]:
    return {"n": [first + n for n in range(count)], "text": [f"sample {first + n}" for n in range(count)]}


def held(reader: bp.Reader) -> list[int]:
    with reader:
        return [int(sample["n"]) for sample in reader]


# -- every format ------------------------------------------------------------------------------------------


def dataset(name: str, count: int) -> tuple[dict[str, bp.Field], list[dict[str, Any]]]:
    """What a format can hold of one field of every kind."""
    result = registry.get_format(name)
    if result.tensors:
        written = [
            tensor(f"layer.{n}", ("float32", "uint8")[n % 2], SHAPES[n % len(SHAPES)]) for n in range(count)
        ]
        return dict(TENSORS), written
    if result.fields:
        given = example_fields(result.fields)
        schema = {key: field for key, (field, _) in given.items()}
        return schema, [{key: given[key][1](n) for key in given} for n in range(count)]
    fields = {key: field for key, (field, _) in EXAMPLE_FIELDS.items() if result.refuses(field) is None}
    if name in MEDIA:
        fields = {key: field for key, field in fields.items() if key not in MEDIA.values()}
        fields = {MEDIA[name]: EXAMPLE_FIELDS[MEDIA[name]][0], **fields}
    return fields, [{key: EXAMPLE_FIELDS[key][1](n) for key in fields} for n in range(count)]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format(name: str, shelf: Shelf, tmp_path: Path) -> None:
    suffix = next(iter(registry.get_format(name).suffixes), "")
    target = f"data{suffix}"
    for count in (ROWS, ROWS - 5) if EXHAUSTIVE or name in REPLACED else (ROWS,):
        fields, samples = dataset(name, count)
        try:
            with bp.create(
                shelf.at(target),
                fields,
                format=name,
                checksums=True,
                overwrite=count < ROWS,
                **({"eos": 0} if name == "tokens" else {}),
                **shelf.options(),
            ) as out:
                for sample in samples:
                    out.append(sample)
        except bp.MissingLibraryError as error:
            pytest.skip(str(error))
        assert shelf.hidden() == []
        assert all(name.startswith(("data.", "data/", target)) for name in shelf.names())
    with shelf.open(target, format=name, **OPEN.get(name, {})) as result:
        check_samples(result, fields, samples)
    # What lies in the bucket is what would lie on a disk.
    with bp.open(os.path.join(shelf.root, target), format=name, **OPEN.get(name, {})) as result:
        report = bp.verify(result, decode=True)
        assert report.problems == []
        assert "checksums" in " ".join(report.checks)


def test_other_stores_by_fsspec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec")
    monkeypatch.setenv("BATCHPLANT_WORK", str(tmp_path / "work"))
    folder = f"memory://{uuid.uuid4().hex}"
    for target, how in (("a.tfrecord", {}), ("b.zarr", {}), ("c.jsonl", {"shard_samples": 3})):
        for first in (0, 100):
            bp.convert(numbers(7, first), f"{folder}/{target}", overwrite=first > 0, **how)
            result = f"{folder}/c-*.jsonl" if how else f"{folder}/{target}"
            assert held(bp.open(result)) == list(range(first, first + 7))
    assert _files(str(tmp_path / "work")) == []


def test_rows_are_added_to_a_delta_table(shelf: Shelf) -> None:
    pytest.importorskip("deltalake")
    for first, mode in ((0, "append"), (10, "append"), (100, "overwrite"), (110, "append")):
        shelf.write("a.delta", numbers(10, first), target_options={"mode": mode})
        assert shelf.hidden() == []
    assert sorted(held(shelf.open("a.delta"))) == list(range(100, 120))
    assert sorted(held(shelf.open("a.delta", version=2))) == list(range(20))
    shelf.write("b.delta", numbers(3))
    shelf.write("b.delta", numbers(3, 3), target_options={"mode": "append"})
    assert sorted(held(shelf.open("b.delta"))) == list(range(6))
    with pytest.raises(bp.SchemaError):
        shelf.write("b.delta", {"n": ["text"]}, target_options={"mode": "append"})
    assert shelf.hidden() == []


def test_an_iceberg_table_of_a_bucket_knows_where_it_is(shelf: Shelf) -> None:
    pytest.importorskip("pyiceberg")
    shelf.write("a.iceberg", numbers(3))
    (file,) = Path(shelf.root, "a.iceberg/metadata").glob("*.metadata.json")
    assert json.loads(file.read_text())["location"] == shelf.at("a.iceberg")
    with pytest.raises(bp.OptionError, match="catalog"):
        shelf.write("a.iceberg", numbers(3), target_options={"mode": "append"})
    assert held(shelf.open("a.iceberg")) == [0, 1, 2]


# -- shards ------------------------------------------------------------------------------------------------


def test_a_terminal_shows_how_far_a_large_file_is(shelf: Shelf, tmp_path: Path) -> None:
    data = tmp_path / "large.npy"
    np.save(data, np.zeros((20, 1 << 20), dtype=np.uint8))
    command = [sys.executable, "-m", "batchplant", "convert", str(data), shelf.at("large.npy")]
    shown = processes.run_in_terminal(command, 100, AWS_ENDPOINT_URL=shelf.endpoint, NO_COLOR="1")
    assert re.search(r"sending \(MB\).*20/20", shown)
    assert shelf.names() == ["large.npy"]


def test_shards_replace_a_larger_set(shelf: Shelf) -> None:
    shelf.write("a.tfrecord", numbers(20), shard_samples=2, checksums=True)
    with pytest.raises(bp.ExistsError, match=r"a-00000\.tfrecord"):
        shelf.write("a.tfrecord", numbers(3), shard_samples=2)
    done = shelf.write("a.tfrecord", numbers(9, 100), shard_samples=3, overwrite=True)
    assert done.files == [shelf.at(f"a-{n:05d}.tfrecord") for n in range(3)]
    shards = [f"a-{n:05d}.tfrecord" for n in range(3)]
    assert shelf.names() == sorted(shards + [f"{shard}.schema.json" for shard in shards])
    assert held(shelf.open("a-*.tfrecord")) == list(range(100, 109))
    assert shelf.hidden() == []


def test_shards_that_are_folders(shelf: Shelf) -> None:
    shelf.write("a.zarr", numbers(20), shard_samples=5)
    shelf.write("a.zarr", numbers(6, 100), shard_samples=5, overwrite=True)
    assert {name.partition("/")[0] for name in shelf.names()} == {"a-00000.zarr", "a-00001.zarr"}
    assert held(shelf.open("a-*.zarr")) == list(range(100, 106))


def test_bucket_to_bucket_holds_little_on_the_disk(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    cell = 50_000
    shelf.write("a.tfrecord", {"n": list(range(60)), "data": [os.urandom(cell) for _ in range(60)]})
    seen: list[int] = []
    real = uploads.send

    def send(*given: Any, **how: Any) -> None:
        seen.append(work._size(shelf.work))
        real(*given, **how)
        seen.append(work._size(shelf.work))

    monkeypatch.setattr(uploads, "send", send)
    shelf.write("b.tfrecord", shelf.open("a.tfrecord"), shard_size=5 * cell)
    assert held(shelf.open("b-*.tfrecord")) == list(range(60))
    # One shard at work, one on its way, and their notes; the whole is six times as much.
    assert len(seen) >= 24
    assert max(seen) <= 2 * 5 * cell + 20_000


def test_ranks_of_a_bucket(shelf: Shelf, tmp_path: Path) -> None:
    """They send their shards by themselves, from work folders of their own; the first one waits for all."""
    options = bp.ConvertOptions(checksums=True, tuning=bp.ConvertTuning(poll_seconds=0.05))
    shelf.write("source.tfrecord", numbers(24))
    source = f"{shelf.root}/source.tfrecord"

    def rank(number: int) -> int:
        by = engines.make("ranks", rank=number, world_size=3)
        return len(shelf.write("a.tfrecord", source, shard_samples=5, options=options, engine=by).files)

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(rank, range(3))) == [5, 0, 0]
    assert held(shelf.open("a-*.tfrecord")) == list(range(24))
    assert shelf.hidden() == []
    shelf.write("b.tfrecord", source, shard_samples=5, options=options)
    for name in shelf.names():
        if name.startswith("b-"):
            twin = Path(shelf.root, f"a{name[1:]}")
            assert twin.read_bytes() == Path(shelf.root, name).read_bytes()


@pytest.mark.parametrize("here", [False, True])
def test_pieces_in_a_bucket(
    here: bool, shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chunks that workers have sent are copied by the server; the dataset is the one that threads make."""
    pytest.importorskip("numcodecs")
    source = tmp_path / "source.tfrecord"
    bp.convert(numbers(8), source)
    copied: list[str] = []
    copy_all = uploads.copy_all

    def spy(pairs: Any) -> None:
        pairs = list(pairs)
        copied.extend(pair[0] for pair in pairs if "/a-0000" in pair[0] and "/c/" in pair[0])
        copy_all(pairs)

    monkeypatch.setattr(uploads, "copy_all", spy)
    (tmp_path / "one").mkdir()
    tuning = bp.ConvertTuning(poll_seconds=0.05, min_parts=2)
    how: dict[str, Any] = {
        "target_options": {"chunk_samples": 1},
        "options": bp.ConvertOptions(checksums=True, tuning=tuning),
    }

    def rank(number: int) -> int:
        by = engines.make("ranks", rank=number, world_size=2)
        return len(shelf.write("a.zarr", source, engine=by, **how).files)

    if here:
        # As worker processes of this machine do it.
        by = engines.make("threads")
        by.world_size = 2
        shelf.write("a.zarr", source, engine=by, **how)
    else:
        with ThreadPoolExecutor(2) as pool:
            assert list(pool.map(rank, range(2))) == [1, 0]
    assert copied
    assert shelf.hidden() == []
    bp.convert(source, tmp_path / "one" / "a.zarr", **how)
    names = _files(str(tmp_path / "one"))
    assert shelf.names() == sorted(names)
    for name in names:
        assert Path(shelf.root, name).read_bytes() == (tmp_path / "one" / name).read_bytes()


def test_ranks_of_a_bucket_do_not_spill(
    shelf: Shelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shelf.write("source.tfrecord", numbers(24))
    two_passes = bp.ConvertOptions(two_passes=True)
    for target, how in (
        ("a.tfrecord", {"engine": engines.make("ranks", rank=0, world_size=1)}),
        ("b.tfrecord", {}),
    ):
        source = f"{shelf.root}/source.tfrecord"
        shelf.write(target, source, shard_samples=5, shuffle=True, options=two_passes, **how)
    assert held(shelf.open("a-*.tfrecord")) == held(shelf.open("b-*.tfrecord"))
    assert shelf.hidden() == []
    assert "s3:" not in os.listdir(tmp_path)


# -- killed ------------------------------------------------------------------------------------------------

KILLED = """
import importlib, json, os, sys, threading
import batchplant as bp
from batchplant.storage.remote.obstore_client import ObstoreClient
tuning = bp.ConvertTuning(checkpoint_seconds=0, batch_bytes=100)
target, point, after, given = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "after", json.loads(sys.argv[4])
change, calls, under_way = threading.Condition(), 0, 0

def killing(real):
    def call(*given, **how):
        global calls, under_way
        with change:
            calls += 1
            ours = calls == point
            # A server goes on with what it has of a request whose sender is dead: none is under way then.
            change.wait_for(lambda: under_way == 0 if ours else point == 0 or calls < point)
            under_way += 1
        if ours and not after:
            os.kill(os.getpid(), 9)
        try:
            return real(*given, **how)
        finally:
            if ours:
                os.kill(os.getpid(), 9)
            with change:
                under_way -= 1
                change.notify_all()
    return call

for name in ("put", "copy", "delete"):
    setattr(ObstoreClient, name, killing(getattr(ObstoreClient, name)))
first, count = given.pop("first"), given.pop("count")
data = {"n": [first + n for n in range(count)], "text": [f"sample {first + n}" for n in range(count)]}
options = bp.ConvertOptions(workers=1, checksums=given.pop("checksums", False), tuning=tuning)
done = bp.convert(data, target, **given, options=options)
print(json.dumps({"calls": calls, "resumed": done.resumed_at}))
"""


@pytest.fixture(scope="module")
def _forks() -> Iterator[forks.Forks]:
    with forks.forks("batchplant", "batchplant.storage.remote.obstore_client") as running:
        yield running


@pytest.fixture
def killed(_forks: forks.Forks) -> Callable[..., dict[str, Any] | None]:
    """Converts in a process that is killed at its n-th change of the bucket; None where it was."""

    def convert(shelf: Shelf, name: str, point: int, when: str = "before", **how: Any) -> Any:
        how = {"target_options": shelf.options(), **how}
        done = _forks.run(KILLED, shelf.at(name), str(point), when, json.dumps(how))
        if done.returncode == -signal.SIGKILL:
            return None
        assert done.returncode == 0, done.stderr
        return dict(json.loads(done.stdout))

    return convert


Killed = Callable[..., dict[str, Any] | None]

# What is overwritten: (target, how it is written, what opens it)
SETS = {
    "file": ("a.tfrecord", {"checksums": True}, "a.tfrecord"),
    "shards": ("a.tfrecord", {"shard_samples": 4}, "a-*.tfrecord"),
    "folder": ("a.zarr", {}, "a.zarr"),
}


def points(calls: int) -> list[tuple[int, str]]:
    """When to kill: at every change, or at some that are spread over all."""
    every = [(point, when) for point in range(1, calls + 1) for when in ("before", "after")]
    return every if EXHAUSTIVE else [every[(2 * n + 1) * len(every) // 4] for n in range(2)]


@pytest.mark.timeout(7200 if EXHAUSTIVE else 600)
@pytest.mark.parametrize("kind", SETS)
def test_killed_while_it_replaces(killed: Killed, kind: str, shelf: Shelf) -> None:
    """The old is there or the new, and where the change was decided, the next writer finishes it."""
    name, how, opens = SETS[kind]
    old, new = list(range(24)), list(range(100, 110))
    shelf.write(name, numbers(24), **how)
    given = {**how, "first": 100, "count": 10, "overwrite": True}
    done = killed(shelf, name, 0, **given)
    assert done is not None
    assert done["calls"] > 5
    decided = kills = 0
    for point, when in points(done["calls"]):
        shelf.write(name, numbers(24), overwrite=True, **how)
        assert shelf.hidden() == []
        if killed(shelf, name, point, when, **given) is not None:
            # When changes were counted, the server was busy, and one was tried twice.
            continue
        kills += 1
        staging = [name for name in shelf.names() if name.endswith(".partial/.batchplant.commit")]
        half = staging or [file for file in _files(str(shelf.work)) if file.endswith(".batchplant.send")]
        # A reader sees the old, the new, or that it is neither.
        decided += bool(half)
        try:
            assert held(shelf.open(opens)) in (old, new), (point, when)
            # Only what stands in the bucket tells other machines.
            assert kind != "shards" or not staging
        except bp.BusyError:
            assert half
        if point % 2:
            # Whoever comes next finishes it, or clears it away.
            with pytest.raises(bp.ExistsError):
                shelf.write(name, numbers(3), **how)
            assert held(shelf.open(opens)) in ((new,) if half else (old, new)), (point, when)
        else:
            assert [leftover.busy for leftover in targets.leftovers()] in ([False], [])
            targets.clear()
            assert targets.leftovers() == []
            assert held(shelf.open(opens)) in ((new,) if half else (old, new)), (point, when)
            assert shelf.hidden() == []
    assert kills
    assert decided or not EXHAUSTIVE


@pytest.mark.parametrize("kind", SETS)
def test_killed_before_it_is_decided_leaves_nothing_under_a_name(
    killed: Killed, kind: str, shelf: Shelf
) -> None:
    name, how, _ = SETS[kind]
    # The probe, its removal, what is sent first: of a file nothing is there before all of it is.
    assert killed(shelf, name, 2 if kind == "file" else 4, "after", first=0, count=10, **how) is None
    assert [name for name in shelf.names() if not name.startswith(".")] == []
    assert shelf.hidden() != []
    (left,) = targets.leftovers()
    assert left.url.startswith(shelf.at(name))
    assert left.size > 0
    targets.clear()
    assert shelf.hidden() == []


@pytest.mark.parametrize("kind", ["shards", "folder"])
def test_what_a_server_finished_too_late_goes_with_the_next_writer(kind: str, shelf: Shelf) -> None:
    """A request of a writer that was killed, and what it left was cleared away before."""
    name, how, opens = SETS[kind]
    late = Path(shelf.root, f".{name}.{'shards.' if kind == 'shards' else ''}partial", "late", "0")
    late.parent.mkdir(parents=True)
    late.write_bytes(b"data")
    assert shelf.hidden() != []
    shelf.write(name, numbers(10), **how)
    assert held(shelf.open(opens)) == list(range(10))
    assert shelf.hidden() == []


def test_resumed_after_a_kill_sends_no_shard_again(killed: Killed, behind: tuple[Shelf, Proxy]) -> None:
    shelf, proxy = behind
    given = {"first": 0, "count": 40, "shard_samples": 4}
    # The probe, its removal, and then shards and states.
    assert killed(shelf, "a.tfrecord", 15, **given) is None
    assert sum(name.endswith(".tfrecord") for name in shelf.names()) >= 4
    assert not any(name for name in shelf.names() if not name.startswith("."))
    proxy.reset()
    done = killed(shelf, "a.tfrecord", 0, resume=True, **given)
    assert done is not None
    assert done["resumed"] > 0
    again = [
        request.path
        for request in proxy.requests
        if request.method == "PUT" and "x-amz-copy-source" not in request.headers
    ]
    # Sixteen samples are read at a time, and a checkpoint follows: three shards were complete, one was full.
    assert not any(path.endswith(f"/a-{n:05d}.tfrecord") for n in range(3) for path in again)
    assert any(path.endswith("/a-00009.tfrecord") for path in again)
    assert held(shelf.open("a-*.tfrecord")) == list(range(40))
    assert shelf.hidden() == []


def test_resumed_on_another_machine(
    killed: Killed, shelf: Shelf, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    given = {"first": 0, "count": 40, "shard_samples": 4}
    assert killed(shelf, "a.tfrecord", 22, **given) is None
    monkeypatch.setenv("BATCHPLANT_WORK", str(tmp_path / "elsewhere"))
    done = killed(shelf, "a.tfrecord", 0, resume=True, **given)
    assert done is not None
    assert done["resumed"] >= 4
    assert held(shelf.open("a-*.tfrecord")) == list(range(40))


def test_a_machine_whose_staging_was_cleared_says_so(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    out = bp.create(shelf.at("a.jsonl"), {"n": bp.Int()}, shard_samples=2, **shelf.options())
    for n in range(6):
        out.append({"n": n})
    monkeypatch.setenv("BATCHPLANT_WORK", str(shelf.work / "other"))
    shelf.write("a.jsonl", numbers(2), shard_samples=2)
    with pytest.raises(bp.BatchplantError):
        out.close()
    assert held(shelf.open("a-*.jsonl")) == [0, 1]


def test_ctrl_c_breaks_an_upload_off(behind: tuple[Shelf, Proxy], tmp_path: Path) -> None:
    shelf, proxy = behind
    script = (
        "import os, signal, sys, batchplant as bp\n"
        "from batchplant.storage import uploads\n"
        # Whoever runs the tests in the background has it ignored, and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        # Before the last bytes are given away: from then on the upload may end well at any time.
        "uploads.HeldUpload.complete = lambda self: signal.raise_signal(signal.SIGINT)\n"
        "try:\n"
        "    bp.convert({'data': [os.urandom(1 << 20) for _ in range(34)]}, sys.argv[1],\n"
        "               target_options={'endpoint': sys.argv[2]})\n"
        "except KeyboardInterrupt:\n"
        "    print('stopped')\n"
    )
    proxy.fail(stalled(-1), method="PUT", path="partNumber=2")
    command = [sys.executable, "-c", script, shelf.at("a.tfrecord"), shelf.endpoint]
    with processes.start(command, stdout=subprocess.PIPE) as child:
        proxy.wait_for(lambda: proxy.count("DELETE", "uploadId") > 0)
        proxy.release()
        assert child.communicate(timeout=processes.PATIENCE)[0] == b"stopped\n"
    assert shelf.names() == []
    assert shelf.hidden() == []


@pytest.mark.parametrize("shards", [False, True])
def test_interrupted_while_a_thread_starts(
    shards: bool, behind: tuple[Shelf, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, proxy = behind
    real = uploads.Background.start

    def start(self: uploads.Background) -> None:
        real(self)
        proxy.wait_for(lambda: proxy.count("PUT", "partNumber=1") > 0)
        raise KeyboardInterrupt

    monkeypatch.setattr(uploads.Background, "start", start)
    with pytest.raises(KeyboardInterrupt):
        shelf.write(
            "a.tfrecord",
            {"data": [os.urandom(1 << 20) for _ in range(20)]},
            **({"shard_samples": 18} if shards else {}),
        )
    # What was all sent by then is removed; else its upload is broken off.
    assert shards or proxy.count("DELETE", "uploadId") == 1
    assert shelf.names() == []
    assert shelf.hidden() == []


# -- failing servers ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "fault"), [("file", answers(503)), ("shards", reset()), ("folder", answers(500))]
)
def test_what_fails_once_is_tried_again(kind: str, fault: Any, behind: tuple[Shelf, Proxy]) -> None:
    shelf, proxy = behind
    name, how, opens = SETS[kind]
    for method in ("PUT", "POST", "LIST", "HEAD"):
        for skip in (0, 2):
            proxy.fail(fault, method=method, skip=skip)
    shelf.write(name, numbers(10), **how)
    assert sum(request.status in (0, 503, 500) for request in proxy.requests) > 3
    proxy.reset()
    assert held(shelf.open(opens)) == list(range(10))
    assert shelf.hidden() == []


def test_a_part_that_fails_is_sent_again(
    behind: tuple[Shelf, Proxy], monkeypatch: pytest.MonkeyPatch
) -> None:
    shelf, proxy = behind
    # Tests that wait for failures have a short window, in which a busy machine tries nothing again.
    monkeypatch.setenv("BATCHPLANT_RETRY_SECONDS", "60")
    proxy.fail(answers(503), method="PUT", path="partNumber=2")
    proxy.fail(reset(), method="PUT", path="partNumber=1")
    proxy.fail(answers(503), method="POST", path="uploadId")
    data = [os.urandom(1 << 20) for _ in range(34)]
    shelf.write("a.tfrecord", {"data": data})
    assert proxy.count("POST", "uploads") == 1
    assert proxy.count("PUT", "partNumber=3") == 1
    with shelf.open("a.tfrecord") as file:
        assert [row["data"] for row in file] == data


@pytest.mark.parametrize("kind", SETS)
def test_a_server_that_fails_for_good_leaves_the_old(kind: str, behind: tuple[Shelf, Proxy]) -> None:
    shelf, proxy = behind
    name, how, opens = SETS[kind]
    shelf.write(name, numbers(10), **how)
    before = shelf.names()
    # The probe passes, what comes then does not.
    proxy.fail(answers(503), method="PUT", skip=1, times=None)
    with pytest.raises(bp.AccessError, match="503"):
        shelf.write(name, numbers(5, 100), overwrite=True, **how)
    proxy.reset()
    assert shelf.names() == before
    assert held(shelf.open(opens)) == list(range(10))
    assert shelf.hidden() == []


@pytest.mark.parametrize("mended", [True, False])
def test_side_cars_come_back_where_the_file_does_not_arrive(
    mended: bool, behind: tuple[Shelf, Proxy]
) -> None:
    shelf, proxy = behind
    shelf.write("a.tfrecord", numbers(10), checksums=True)
    before = {name: Path(shelf.root, name).read_bytes() for name in shelf.names()}

    proxy.fail(
        (lambda item: answers(503) if item.path.endswith("/a.tfrecord") else None)
        if mended
        else (
            lambda item: answers(503) if "/a.tfrecord" in item.path and "replaced" not in item.path else None
        ),
        method="PUT",
        times=None,
    )
    with pytest.raises(bp.AccessError, match="503"):
        shelf.write("a.tfrecord", numbers(5, 100), overwrite=True, checksums=True)
    proxy.reset()
    if mended:
        assert {name: Path(shelf.root, name).read_bytes() for name in shelf.names()} == before
        assert shelf.hidden() == []
    else:
        # It was decided: whoever comes next finishes it.
        assert Path(shelf.root, "a.tfrecord").read_bytes() == before["a.tfrecord"]
        targets.clear()
        assert held(shelf.open("a.tfrecord")) == list(range(100, 105))
    assert shelf.hidden() == []
    with shelf.open("a.tfrecord") as file:
        assert bp.verify(file).problems == []


def test_an_unreachable_or_closed_bucket_is_told_before_any_work(behind: tuple[Shelf, Proxy]) -> None:
    shelf, proxy = behind
    for fault, text in ((answers(403), "may write there"), (answers(404), "no such bucket")):
        proxy.fail(fault, method="PUT", times=None)
        with pytest.raises(bp.BatchplantError, match=text) as caught:
            bp.create(shelf.at("a.tfrecord"), {"n": bp.Int()}, **shelf.options())
        assert caught.value.path == shelf.at("a.tfrecord")
        assert [request.method for request in proxy.requests] == ["PUT"]
        proxy.reset()
    with proxy.down(), pytest.raises(bp.AccessError, match="cannot be reached"):
        bp.create(shelf.at("a.tfrecord"), {"n": bp.Int()}, **shelf.options())
    assert shelf.hidden() == []


# -- what is refused, and what is kept ---------------------------------------------------------------------


def test_what_cannot_be_a_target(shelf: Shelf) -> None:
    for url, text in (
        ("https://example.org/a.tfrecord", "web servers cannot be written to"),
        (f"{shelf.url.rpartition('/')[0]}", "needs a name"),
    ):
        with pytest.raises(bp.OptionError, match=text):
            bp.create(url, {"n": bp.Int()}, format="tfrecord")
    with pytest.raises(bp.OptionError, match="options for URLs"):
        bp.create("a.tfrecord", {"n": bp.Int()}, endpoint="http://127.0.0.1:1")
    with pytest.raises(bp.OptionError, match="no option"):
        bp.create(shelf.at("a.tfrecord"), {"n": bp.Int()}, endpont="http://127.0.0.1:1")


def test_an_existing_target_is_kept(shelf: Shelf) -> None:
    shelf.write("a.tfrecord", numbers(3))
    shelf.write("b.zarr", numbers(3))
    for name in ("a.tfrecord", "b.zarr"):
        with pytest.raises(bp.ExistsError, match="overwrite"):
            shelf.write(name, numbers(5))
        assert held(shelf.open(name)) == [0, 1, 2]
    # A file does not replace a folder, and a folder no file.
    with pytest.raises(bp.ExistsError, match="it is a folder"):
        shelf.write("b.zarr", numbers(5), target_options={"format": "tfrecord"}, overwrite=True)
    with pytest.raises(bp.ExistsError, match="it is no folder"):
        shelf.write("a.tfrecord", numbers(5), target_options={"format": "zarr"}, overwrite=True)
    assert held(shelf.open("a.tfrecord")) == held(shelf.open("b.zarr")) == [0, 1, 2]
    assert shelf.hidden() == []


def test_a_second_writer_of_this_machine_is_refused(shelf: Shelf) -> None:
    with bp.create(shelf.at("a.tfrecord"), {"n": bp.Int()}, **shelf.options()) as out:
        out.append({"n": 1})
        with pytest.raises(bp.BusyError):
            bp.create(shelf.at("a.tfrecord"), {"n": bp.Int()}, **shelf.options())
        assert [leftover.busy for leftover in targets.leftovers()] == [True]
        assert targets.clear() == []
    assert held(shelf.open("a.tfrecord")) == [1]
    assert targets.leftovers() == []


def _write_and_fail(shelf: Shelf, how: dict[str, Any]) -> None:
    with bp.create(shelf.at("a.tfrecord"), {"n": bp.Int()}, **how, **shelf.options()) as out:
        for n in range(9):
            out.append({"n": n})
        raise ZeroDivisionError


def test_an_error_inside_leaves_nothing(shelf: Shelf) -> None:
    for how in ({}, {"shard_samples": 2}):
        with pytest.raises(ZeroDivisionError):
            _write_and_fail(shelf, how)
        assert shelf.names() == []
        assert shelf.hidden() == []


def test_the_work_folder_is_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHPLANT_WORK_BYTES", "6 MB")
    # Enough for a second look at the folder.
    data = {"data": [os.urandom(1 << 20) for _ in range(20)]}
    with pytest.raises(bp.AccessError, match="shard_size") as caught:
        shelf.write("a.tfrecord", data)
    assert "BATCHPLANT_WORK_BYTES" in str(caught.value)
    assert shelf.hidden() == []
    shelf.write("a.tfrecord", data, shard_size=2 << 20)
    with shelf.open("a-*.tfrecord") as file:
        assert [row["data"] for row in file] == data["data"]


def test_a_tenth_of_the_disk_stays_free(tmp_path: Path) -> None:
    full = WorkTuning(min_free_share=1.1, unchecked_bytes=300_000, check_interval_bytes=1)
    space = WorkSpace(tmp_path, full)
    space.check(200_000, "s3://a/b")
    with pytest.raises(bp.AccessError, match="of its disk are free") as caught:
        WorkSpace(tmp_path, full).check(400_000, "s3://a/b")
    assert caught.value.path == "s3://a/b"
    WorkSpace(tmp_path).check(400_000, "s3://a/b")


def test_secrets_are_written_nowhere(shelf: Shelf) -> None:
    from servers import SECRET

    target = Url(f"s3://user:hidden-word@{shelf.url.partition('//')[2]}/a.tfrecord")
    source = bp.open(numbers(100))
    source.path = "https://example.org/a.tfrecord?X-Amz-Signature=hidden-word"
    stop = threading.Event()

    def progress(done: int, _: int) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    options = bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0, batch_bytes=20))
    with pytest.raises(KeyboardInterrupt):
        shelf.write("a.tfrecord", source, progress=progress, options=options)
    work.write_note(shelf.work, target)
    result = {name: (shelf.work / name).read_bytes() for name in _files(str(shelf.work))}
    assert any(name.endswith("state.json") for name in result)
    for name, data in result.items():
        assert b"hidden-word" not in data, name
        assert SECRET.encode() not in data, name
    assert [leftover.resumable for leftover in targets.leftovers()] == [True]
    targets.clear()
    assert shelf.names() == []


def test_the_command_reaches_both_ends(shelf: Shelf, capsys: pytest.CaptureFixture[str]) -> None:
    shelf.write("a.tfrecord", numbers(10))
    command = ["convert", shelf.at("a.tfrecord"), shelf.at("b.jsonl"), "--checksums"]
    options = ["--option", f"endpoint={shelf.endpoint}", "--to-option", f"endpoint={shelf.endpoint}"]
    assert main([*command, *options]) == 0
    assert re.search(r"10 samples, \d+ B", capsys.readouterr().out)
    assert held(shelf.open("b.jsonl")) == list(range(10))
    assert "b.jsonl.crc" in shelf.names()
