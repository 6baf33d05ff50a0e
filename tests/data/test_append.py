"""Samples added to a dataset that is there: all of them or none, at the cost of what is new."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.cli import main
from batchplant.data.tensors import TENSORS
from batchplant.formats.registry import all_formats
from batchplant.storage import checksums, commit, index
from batchplant.storage.index import sidecar
from batchplant.storage.partial import Spool
from batchplant.testing.cases import EXAMPLE_FIELDS, check_samples, jpeg, pixels
from processes import PATIENCE
from variants import exhaustive, is_alias

# Formats of tokens have tests of their own, too.
WRITERS = {name: item for name, item in all_formats().items() if item.writer is not None and not item.fields}
# Those have transactions of their own; tests/formats/test_lake.py has their tests.
LAKES = ("delta", "iceberg", "lance")
APPENDING = sorted(name for name, writer in WRITERS.items() if writer.writer.appends and name not in LAKES)
OTHERS = sorted(name for name, writer in WRITERS.items() if not writer.writer.appends and name not in LAKES)
MEDIA = {"imagefolder": "image", "audiofolder": "audio", "videofolder": "video"}
# One name for every way to write a format.
PLACES = [
    pytest.param(name, suffix, marks=[pytest.mark.exhaustive] if is_alias(suffix) else [])
    for name in APPENDING
    for suffix in (all_formats()[name].suffixes or ("",))
    if not suffix.endswith((".zip", ".tar.gz", ".tgz", ".json.gz", ".json.zst"))
]
PACKED = [("webdataset", ".tar.gz"), ("json", ".json.gz"), ("zarr", ".zarr.zip"), ("n5", ".n5.zip")]


def dataset(name: str, count: int, *fields: str) -> tuple[dict[str, bp.schema.Field], list[dict[str, Any]]]:
    result = all_formats()[name]
    media = MEDIA.get(name)
    chosen = {
        key: field for key, field in EXAMPLE_FIELDS.items()
        if result.refuses(field[0]) is None
        and (media is None or key == media or key not in MEDIA.values())
        and (not fields or key in fields)
    }  # fmt: skip
    schema = {key: field for key, (field, _) in chosen.items()}
    return schema, [{key: value(n) for key, (_, value) in chosen.items()} for n in range(count)]


def write(path: Any, schema: Any, samples: Any, **options: Any) -> str:
    with bp.create(path, schema, **options) as out:
        for sample in samples:
            out.append(sample)
    return str(path)


def named(tmp_path: Path, name: str, suffix: str | None = None) -> dict[str, Any]:
    suffix = (all_formats()[name].suffixes or ("",))[0] if suffix is None else suffix
    return {"path": str(tmp_path / f"data{suffix}"), "format": name}


def hidden(folder: Path) -> list[str]:
    return [name for name in os.listdir(folder) if name.startswith(".")]


# --- what every format does ---------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "suffix"), PLACES)
def test_the_new_follows_the_old(tmp_path, name, suffix):
    where, (schema, samples) = named(tmp_path, name, suffix), dataset(name, 11)
    write(**where, schema=schema, samples=samples[:4], mode="append", checksums=name != "lmdb")
    before = bp.open(**where)
    write(**where, schema=schema, samples=samples[4:9], mode="append")
    write(**where, schema=None, samples=samples[9:], mode="append")
    with bp.open(**where) as reader:
        check_samples(reader, schema, samples)
    done = bp.verify(where["path"], format=name, decode=True)
    assert done.ok, done.problems
    assert ("checksums" in done.checks) == (name != "lmdb")
    # Who had it open sees what was there, until he looks again.
    check_samples(before, schema, samples[:4])
    after = before.refresh()
    check_samples(after, schema, samples)
    check_samples(
        before.select(list(schema)[:1]).refresh(), {k: schema[k] for k in list(schema)[:1]}, samples
    )
    check_samples(before[1:3].refresh(), schema, samples[1:3])
    assert not hidden(tmp_path)


@pytest.mark.parametrize("name", APPENDING)
def test_what_was_written_as_a_whole_goes_on(tmp_path, name):
    where, (schema, samples) = named(tmp_path, name), dataset(name, 9)
    options = {"resizable": True} if name == "hdf5" else {}
    write(**where, schema=schema, samples=samples[:5], **options)
    write(**where, schema=schema, samples=samples[5:], mode="append")
    check_samples(bp.open(**where), schema, samples)


@pytest.mark.parametrize("name", APPENDING)
def test_nothing_added_changes_nothing(tmp_path, name):
    where, (schema, samples) = named(tmp_path, name), dataset(name, 4)
    write(**where, schema=schema, samples=samples, mode="append")
    files = [item for item in [Path(where["path"]), *Path(where["path"]).rglob("*")] if item.is_file()]
    before = [file.read_bytes() for file in files]
    write(**where, schema=schema, samples=[], mode="append")
    assert [file.read_bytes() for file in files] == before
    assert not hidden(tmp_path)


@pytest.mark.parametrize("name", APPENDING)
def test_an_append_that_is_given_up_leaves_the_old(tmp_path, name):
    where, (schema, samples) = named(tmp_path, name), dataset(name, 8)
    write(**where, schema=schema, samples=samples[:4], mode="append")
    out = bp.create(**where, schema=schema, mode="append")
    out.append(samples[4])
    out.abort()
    check_samples(bp.open(**where), schema, samples[:4])
    assert not hidden(tmp_path)


@pytest.mark.parametrize("name", APPENDING)
def test_one_at_a_time(tmp_path, name):
    where, (schema, samples) = named(tmp_path, name), dataset(name, 8)
    write(**where, schema=schema, samples=samples[:4], mode="append")
    with bp.create(**where, schema=schema, mode="append") as out:
        with pytest.raises(bp.BusyError):
            bp.create(**where, schema=schema, mode="append")
        for sample in samples[4:]:
            out.append(sample)
    check_samples(bp.open(**where), schema, samples)


def written_bytes() -> int:
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file.read().splitlines())["wchar"])


BIG = {
    "npy": (bp.Tensor("uint8", (4000,)), lambda n: np.full(4000, n % 256, np.uint8)),
    "imagefolder": (bp.Image(), lambda n: pixels(40, 40 + n % 3, 3)),
    "audiofolder": None,
    "videofolder": None,
}


@pytest.mark.skipif(not os.path.exists("/proc/self/io"), reason="the system does not count bytes")
@pytest.mark.parametrize("name", APPENDING)
def test_the_cost_is_that_of_what_is_new(tmp_path, name):
    big = BIG.get(name, (bp.Bytes(), lambda n: np.random.default_rng(n).bytes(4000)))
    if big is None:
        pytest.skip("the same as with images")
    field, value = big
    cost = []
    for count in (10, 300):
        (tmp_path / str(count)).mkdir()
        where = named(tmp_path / str(count), name)
        options = {"compression": "none"} if name == "zarr" else {}
        write(**where, schema={"data": field}, samples=({"data": value(n)} for n in range(count)),
              mode="append", checksums=name != "lmdb", **options)  # fmt: skip
        began = written_bytes()
        write(**where, schema=None, samples=({"data": value(n)} for n in range(12)), mode="append")
        cost.append(written_bytes() - began)
    # The larger one has a megabyte more.
    # A chunk that is not full is written anew where it is packed.
    chunk = (1 << 20) if name in ("n5", "hdf5") else 0
    assert cost[1] < cost[0] + 100_000 + chunk, cost
    assert cost[1] < 500_000 + 2 * chunk, cost


# --- what cannot be appended to -----------------------------------------------------------------------


@pytest.mark.parametrize("name", [item for item in OTHERS if not all_formats()[item].tensors])
def test_formats_that_cannot_say_so(tmp_path, name):
    where, (schema, samples) = named(tmp_path, name), dataset(name, 3)
    # A first one is made as ever.
    write(**where, schema=schema, samples=samples, mode="append")
    with pytest.raises(bp.OptionError, match=f"^{where['path']}: {name} files cannot be appended to") as told:
        bp.create(**where, schema=schema, mode="append")
    assert "shard_samples" in str(told.value)
    assert all(item in str(told.value) for item in APPENDING)
    assert not hidden(tmp_path)


@pytest.mark.parametrize("name", [item for item in OTHERS if all_formats()[item].tensors])
def test_models_cannot(tmp_path, name):
    path = tmp_path / f"a{all_formats()[name].suffixes[0]}"
    path.write_bytes(b"x")
    with pytest.raises(bp.OptionError, match="cannot be appended to"):
        bp.create(path, TENSORS, format=name, mode="append")


@pytest.mark.parametrize(("name", "suffix"), PACKED)
def test_what_is_packed_as_a_whole(tmp_path, name, suffix):
    where, (schema, samples) = named(tmp_path, name, suffix), dataset(name, 3)
    write(**where, schema=schema, samples=samples, mode="append")
    with pytest.raises(bp.OptionError, match="cannot be appended to"):
        bp.create(**where, schema=schema, mode="append")
    check_samples(bp.open(**where), schema, samples)
    assert not hidden(tmp_path)


def test_fields_that_do_not_fit(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, {"n": bp.Int(), "t": bp.Text()}, [{"n": 1, "t": "a"}])
    for schema, text in (
        ({"n": bp.Int()}, "the samples lack t"),
        ({"n": bp.Int(), "t": bp.Text(), "u": bp.Bool()}, "the dataset has no u; its fields are n, t"),
        ({"n": bp.Float(), "t": bp.Text()}, "field 'n': it is Float.*, and in the dataset Int"),
        ({"n": bp.Int("int8"), "t": bp.Text()}, "field 'n'"),
        ({"n": bp.Int(optional=True), "t": bp.Text()}, "never missing in the dataset"),
    ):
        with pytest.raises(bp.SchemaError, match=text):
            bp.create(path, schema, mode="append")
    # The order of the dataset stays.
    write(path, {"t": bp.Text(), "n": bp.Int()}, [{"n": 2, "t": "b"}], mode="append")
    assert path.read_text().splitlines()[1].startswith('{"n"')


def test_class_names_have_to_agree(tmp_path):
    path = tmp_path / "a.msgpack"
    write(path, {"y": bp.Int(names=("cat", "dog"))}, [{"y": 1}])
    with pytest.raises(bp.SchemaError, match="field 'y'"):
        bp.create(path, {"y": bp.Int(names=("dog", "cat"))}, mode="append")
    write(path, {"y": bp.Int()}, [{"y": 0}], mode="append")
    assert [sample["y"] for sample in bp.open(path)] == [1, 0]


def test_options_that_do_not_fit(tmp_path):
    path = tmp_path / "a.csv"
    with pytest.raises(bp.OptionError, match="at least one field"):
        bp.create(path, mode="append")
    with pytest.raises(bp.OptionError, match="mode is create or append"):
        bp.create(path, {"n": bp.Int()}, mode="insert")
    write(path, {"n": bp.Int()}, [{"n": 1}])
    with pytest.raises(bp.OptionError, match="either appended to or overwritten"):
        bp.create(path, mode="append", overwrite=True)
    with pytest.raises(bp.OptionError, match="no checksums of the samples that are there"):
        bp.create(path, mode="append", checksums=True)
    with pytest.raises(bp.ExistsError):
        bp.create(path, {"n": bp.Int()})
    os.replace(path, tmp_path / "a.tfrecord")
    with pytest.raises(bp.BatchplantError):
        bp.create(tmp_path / "a.tfrecord", mode="append")
    assert not hidden(tmp_path)


# --- files of others ----------------------------------------------------------------------------------


def test_text_of_others(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n;t\r\n1;a\r\n2;b")
    write(path, None, [{"n": 3, "t": "c;d"}], mode="append")
    assert list(csv.reader(io.StringIO(path.read_text()), delimiter=";"))[1:] == [
        ["1", "a"], ["2", "b"], ["3", "c;d"],
    ]  # fmt: skip
    assert os.listdir(tmp_path) == ["a.csv"]
    path.write_bytes("n,t\n1,ä\n".encode("utf-16"))
    with pytest.raises(bp.OptionError, match="utf-16"):
        bp.create(path, mode="append")


@pytest.mark.parametrize("indent", [None, 2])
def test_an_array_of_json_goes_on(tmp_path, indent):
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"n": 1}, {"n": 2}], indent=indent))
    write(path, None, [{"n": 3}, {"n": 4}], mode="append")
    assert json.loads(path.read_text()) == [{"n": n} for n in range(1, 5)]


def test_an_array_of_numpy_goes_on(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(6, dtype=np.int32).reshape(3, 2))
    write(path, None, [{"data": np.array([6, 7], np.int32)}], mode="append")
    assert np.load(path).tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]]
    np.save(path, np.asfortranarray(np.arange(6).reshape(3, 2)))
    with pytest.raises(bp.OptionError, match="header"):
        bp.create(path, mode="append")


def test_an_archive_of_others_goes_on(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name, data in (
            ("a.txt", b"one"),
            ("folder", None),
            ("b.txt", b"two"),
            ("__x__/note", b"x" * 700),
        ):
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if data is None else tarfile.REGTYPE
            member.size = len(data or b"")
            archive.addfile(member, None if data is None else io.BytesIO(data))
    write(path, None, [{"__key__": "c", "txt": "three"}], mode="append")
    with tarfile.open(path) as archive:
        assert archive.getnames() == ["a.txt", "folder", "b.txt", "__x__/note", "c.txt"]
    assert [sample["txt"] for sample in bp.open(path)] == ["one", "two", "three"]
    with pytest.raises(bp.EncodeError, match="the key 'c' too"):
        write(path, None, [{"__key__": "c", "txt": "four"}], mode="append")


@pytest.mark.parametrize(
    ("suffix", "compression", "chunks"),
    [
        *((suffix, "gzip", (4, 2, 3)) for suffix in (".zarr", ".n5", ".h5")),
        *((suffix, "none", (4, 4, 3)) for suffix in (".zarr", ".n5", ".h5")),
        *exhaustive(*((suffix, "gzip", (4, 4, 3)) for suffix in (".zarr", ".n5", ".h5"))),
        *exhaustive(*((suffix, "none", (4, 2, 3)) for suffix in (".zarr", ".n5", ".h5"))),
    ],
)
def test_chunks_that_are_not_full_go_on(tmp_path, suffix, compression, chunks):
    pytest.importorskip("h5py")
    path, values = tmp_path / f"a{suffix}", np.arange(23 * 12, dtype=np.int16).reshape(23, 4, 3)
    options: dict[str, Any] = {"compression": compression, "chunks": chunks}
    for first, last in ((0, 6), (6, 7), (7, 20), (20, 23)):
        samples = [{"x": value} for value in values[first:last]]
        write(path, {"x": bp.Tensor("int16", (4, 3))}, samples, mode="append", **options)
        options = {}
        assert np.array_equal(bp.open(path).read(range(last))["x"], values[:last])


def test_datasets_of_others_in_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(5.0), maxshape=(None,), chunks=(4,), compression="gzip")
        file.create_dataset("t", data=["a"] * 5, maxshape=(None,), chunks=(4,), dtype=h5py.string_dtype())
        file.attrs["who"] = "me"
    old = bp.open(path)
    write(path, None, [{"x": 5.0, "t": "new"}], mode="append")
    with h5py.File(path) as file:
        assert file["x"][:].tolist() == [0, 1, 2, 3, 4, 5]
        assert [item.decode() for item in file["t"][:]] == ["a"] * 5 + ["new"]
        assert dict(file.attrs) == {"who": "me"}
    assert old.read(range(5))["x"].tolist() == [0, 1, 2, 3, 4]
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(5.0)
    with pytest.raises(bp.OptionError, match="dataset x has a fixed size; make it with resizable=True"):
        bp.create(path, mode="append")


def test_what_others_made_otherwise_is_refused(tmp_path):
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "tom.jpg").write_bytes(jpeg())
    with pytest.raises(bp.OptionError, match="names of their own"):
        bp.create(tmp_path / "photos", mode="append")
    (tmp_path / "a.msgpack").write_bytes(b"\x92\x81\xa1n\x01\x81\xa1n\x02")
    with pytest.raises(bp.OptionError, match="one array"):
        bp.create(tmp_path / "a.msgpack", mode="append")
    assert not hidden(tmp_path)


def test_an_environment_of_others_is_refused(tmp_path):
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "a.lmdb")) as env, env.begin(write=True) as transaction:
        transaction.put(b"key", b"value")
    with pytest.raises(bp.OptionError, match="only an environment that batchplant has written"):
        bp.create(tmp_path / "a.lmdb", mode="append")


def test_a_reader_of_lmdb_notices_that_its_pages_may_be_gone(tmp_path):
    pytest.importorskip("lmdb")
    path = tmp_path / "a.lmdb"
    write(path, {"n": bp.Int()}, [{"n": 0}])
    old = bp.open(path)
    for number in range(1, 3):
        write(path, None, [{"n": number}], mode="append")
        assert old.read([0])["n"].tolist() == [0]
    write(path, None, [{"n": 3}], mode="append")
    with pytest.raises(bp.BusyError, match="refresh"):
        old.read([0])
    assert [row["n"] for row in old.refresh()] == [0, 1, 2, 3]


# --- one change ---------------------------------------------------------------------------------------


def test_who_opens_it_while_it_is_written_waits(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write(path, {"n": bp.Int()}, [{"n": 0}])
    half, go = threading.Event(), threading.Event()
    copy = commit._copy

    def slowly(source, target, size, at):
        os.pwrite(target, b'{"n":', at)
        half.set()
        assert go.wait(PATIENCE)
        copy(source, target, size, at)

    monkeypatch.setattr(commit, "_copy", slowly)
    waits = threading.Event()
    monkeypatch.setattr(commit.time, "sleep", lambda seconds: waits.set())
    writer = threading.Thread(target=write, args=(path, None, [{"n": 1}]), kwargs={"mode": "append"})
    actual: list[int] = []
    reader = threading.Thread(target=lambda: actual.append(len(bp.open(path))))
    writer.start()
    try:
        assert half.wait(PATIENCE)
        reader.start()
        assert waits.wait(PATIENCE)
        assert not actual
    finally:
        go.set()
        writer.join()
    reader.join()
    assert actual == [2]


def test_a_full_disk_is_told_before_anything_changes(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    write(path, {"n": bp.Int()}, [{"n": 0}])
    before = path.read_bytes()
    monkeypatch.setattr(commit, "_fallocate", lambda: lambda *args: -1)
    monkeypatch.setattr(commit.ctypes, "get_errno", lambda: 28)
    with pytest.raises(OSError, match="No space left"):
        write(path, None, [{"n": 1}], mode="append")
    assert path.read_bytes() == before
    assert not hidden(tmp_path)


def test_a_link_is_followed(tmp_path):
    (tmp_path / "there").mkdir()
    path = write(tmp_path / "there" / "a.jsonl", {"n": bp.Int()}, [{"n": 0}])
    (tmp_path / "here.jsonl").symlink_to(path)
    write(tmp_path / "here.jsonl", None, [{"n": 1}], mode="append")
    assert len(bp.open(path)) == 2
    assert (tmp_path / "here.jsonl").is_symlink()


def test_a_checksum_is_that_of_all_bytes(tmp_path):
    rng = np.random.default_rng(1)
    for size in (0, 1, 9, 300):
        data, last = rng.bytes(size), rng.bytes(8)
        assert checksums._shortened(checksums._native.crc32c(data + last), last) == checksums._native.crc32c(
            data
        )
    spool = Spool(tmp_path / "a.crc")
    spool.write(checksums.header(["n"]))
    spool.write(np.arange(3, dtype=np.uint32))
    checksums.finish(spool, 3)
    tail = Spool(tmp_path / "tail")
    tail.write(np.arange(3, 5, dtype=np.uint32))
    at = checksums.grow(tmp_path / "a.crc", tail, 2)
    spool.write_at(tail.read_at(tail.size, 0), at)
    loaded = checksums.load(str(tmp_path / "a"))
    assert loaded is not None
    assert loaded.sums[:, 0].tolist() == [0, 1, 2, 3, 4]


# --- shards, conversions, the command line ------------------------------------------------------------


@pytest.mark.parametrize("name", ["parquet", "beton", "webdataset"])
def test_shards_are_added(tmp_path, name):
    suffix, (schema, samples) = all_formats()[name].suffixes[0], dataset(name, 9, "number", "text")
    path, shards = tmp_path / f"a{suffix}", str(tmp_path / f"a-*{suffix}")
    write(path, schema, samples[:4], shard_samples=2, mode="append", checksums=True)
    reader = bp.open(shards)
    before = {name: os.stat(tmp_path / name) for name in os.listdir(tmp_path)}
    with pytest.raises(bp.SchemaError):
        bp.create(path, {"other": bp.Int()}, shard_samples=3, mode="append")
    write(path, None, samples[4:], shard_samples=3, mode="append", checksums=True)
    assert [os.stat(tmp_path / item) for item in before] == list(before.values())
    assert sorted(name for name in os.listdir(tmp_path) if name not in before and name.endswith(suffix)) == [
        f"a-00002{suffix}", f"a-00003{suffix}",
    ]  # fmt: skip
    check_samples(bp.open(shards), schema, samples)
    check_samples(reader, schema, samples[:4])
    check_samples(reader.refresh(), schema, samples)
    assert bp.verify(shards).ok
    assert not hidden(tmp_path)


def test_a_joined_dataset_looks_again(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", {"n": bp.Int()}, [{"n": 1}])
    both = bp.concat([bp.open(tmp_path / "a.jsonl"), bp.open(tmp_path / "b.jsonl")])
    write(tmp_path / "a.jsonl", None, [{"n": 2}], mode="append")
    assert [row["n"] for row in both] == [1, 1]
    assert [row["n"] for row in both.refresh()] == [1, 2, 1]


def test_a_conversion_appends(tmp_path, capsys):
    write(tmp_path / "a.csv", {"n": bp.Int(), "t": bp.Text()}, [{"n": n, "t": "x"} for n in range(3)])
    write(tmp_path / "b.jsonl", {"n": bp.Int(), "t": bp.Text()}, [{"n": n, "t": "y"} for n in range(3, 5)])
    done = bp.convert(tmp_path / "b.jsonl", tmp_path / "a.csv", append=True)
    assert done.samples == 2
    assert (
        main(["convert", str(tmp_path / "b.jsonl"), str(tmp_path / "a.csv"), "--append", "--limit", "1"]) == 0
    )
    assert "1 sample" in capsys.readouterr().out
    assert [sample["n"] for sample in bp.open(tmp_path / "a.csv")] == [0, 1, 2, 3, 4, 3]
    assert main(["convert", str(tmp_path / "b.jsonl"), str(tmp_path / "new.tfrecord"), "--append"]) == 0
    assert len(bp.open(tmp_path / "new.tfrecord")) == 2
    write(tmp_path / "c.parquet", {"n": bp.Int()}, [{"n": 1}])
    assert main(["convert", str(tmp_path / "b.jsonl"), str(tmp_path / "c.parquet"), "--append"]) == 2
    assert "cannot be appended to" in capsys.readouterr().err


def test_a_stopped_append_is_resumed(tmp_path):
    options = bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0, batch_bytes=64))
    schema = {"n": bp.Int(), "t": bp.Text()}
    source = write(tmp_path / "b.jsonl", schema, [{"n": n, "t": "y" * 40} for n in range(60)])
    for name in ("a.zarr", "a.tar", "a.tfrecord", "a.json"):
        path = write(tmp_path / name, schema, [{"n": n, "t": "x"} for n in range(5)], mode="append")

        def stop(done, total):
            if done > 30:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            bp.convert(source, path, append=True, progress=stop, options=options)
        assert len(bp.open(path)) == 5
        done = bp.convert(source, path, append=True, resume=True)
        assert done.resumed_at > 0
        assert [sample["n"] for sample in bp.open(path)] == [*range(5), *range(60)]
        with pytest.raises(KeyboardInterrupt):
            bp.convert(source, path, append=True, progress=stop, options=options)
        os.rename(tmp_path / f".{name}.partial", tmp_path / "away")
        write(path, None, [{"n": 9, "t": ""}], mode="append")
        os.rename(tmp_path / "away", tmp_path / f".{name}.partial")
        with pytest.raises(bp.OptionError, match="changed since; start over"):
            bp.convert(source, path, append=True, resume=True)


def test_objects_are_not_appended_to_but_shards_are_added(bucket):
    pytest.importorskip("obstore")
    url = f"{bucket.url}/a.tar"
    schema, options = {"n": bp.Int()}, {"endpoint": bucket.endpoint}
    with pytest.raises(bp.OptionError, match="object in a bucket cannot be appended to; add shards"):
        bp.create(url, schema, mode="append", **options)
    for part in range(2):
        samples = [{"n": 4 * part + n} for n in range(4)]
        write(url, schema, samples, mode="append", shard_samples=2, **options)
    assert sorted(os.listdir(bucket.root)) == [f"a-{n:05d}.tar" for n in range(4)]
    assert [sample["n"] for sample in bp.open(f"{bucket.url}/a-*.tar", **options)] == list(range(8))


def test_the_guide_lists_what_can():
    guide = (repository.ROOT / "docs" / "guides" / "convert-and-verify.md").read_text()
    table = guide.partition("| Format | How |")[2].partition("\n\n")[0]
    rows = [line.split("|")[1] for line in table.splitlines()[2:]]
    listed = [name.strip() for row in rows for name in row.split(",")]
    assert sorted(listed) == sorted([*APPENDING, *LAKES])


# --- the index ----------------------------------------------------------------------------------------


def record(n: int) -> dict[str, Any]:
    return {"n": n, "x": n / 4, "t": f"text {n}", "row": np.arange(2 + n % 2, dtype=np.float32)}


INDEXED = {"n": bp.Int(), "x": bp.Float(), "t": bp.Text(), "row": bp.Tensor("float32", (None,))}


@pytest.mark.parametrize(
    ("suffix", "ours"),
    [
        *((suffix, True) for suffix in (".tfrecord", ".rec", ".msgpack", ".jsonl", ".csv")),
        *((suffix, False) for suffix in (".tfrecord", ".jsonl")),
        *exhaustive(*((suffix, False) for suffix in (".rec", ".msgpack", ".csv"))),
    ],
)
def test_an_index_grows_with_its_file(tmp_path, monkeypatch, suffix, ours):
    path, place = tmp_path / f"a{suffix}", tmp_path / f"a{suffix}.bpindex"
    write(path, INDEXED, map(record, range(40)))
    if not ours:
        os.unlink(tmp_path / f"a{suffix}.schema.json")
    bp.open(path, index="write")
    longer, grew = index._scan_appended, []

    def growing(car, build, grow, source, report):
        def no(source, report):
            raise AssertionError("all of it is scanned again")

        grew.append(place.exists())
        return longer(car, no if place.exists() else build, grow, source, report)

    monkeypatch.setattr(index, "_scan_appended", growing)
    if ours:
        write(path, None, map(record, range(40, 50)), mode="append")
    else:
        # By another program, whatever the fields are taken for.
        other = write(tmp_path / f"b{suffix}", INDEXED, map(record, range(40, 50)))
        rows = Path(other).read_bytes()
        with path.open("ab") as file:
            file.write(rows.partition(b"\n")[2] if suffix == ".csv" else rows)
    grown = bp.open(path, index="write")
    assert grew[-1]
    kept = sidecar.read(place)
    whole = bp.open(path, index="rebuild")
    result = sidecar.read(place)
    assert grown.schema == whole.schema
    assert len(grown) == len(whole) == 50
    assert kept.header["facts"] == result.header["facts"]
    arrays = [item.arrays(item.header["arrays"]) for item in (kept, result)]
    assert {name: array.tolist() for name, array in arrays[0].items()} == {
        name: array.tolist() for name, array in arrays[1].items()
    }


def test_an_index_of_a_file_that_changed_in_the_middle_is_made_anew(tmp_path):
    path = tmp_path / "a.jsonl"
    write(path, {"t": bp.Text()}, [{"t": "x" * 100} for _ in range(500)])
    os.unlink(tmp_path / "a.jsonl.schema.json")
    bp.open(path, index="write")
    lines = path.read_text().splitlines()
    # As long as before, up to where the older index knows it.
    lines[250], lines[251] = json.dumps({"t": "x" * 50}), json.dumps({"t": "y" * 150})
    path.write_text("\n".join([*lines, *lines]).replace(": ", ":") + "\n")
    reader = bp.open(path, index="write")
    assert len(reader) == 1000
    assert reader[251]["t"] == reader[751]["t"] == "y" * 150
