"""LMDB: the suite, environments of the lmdb package, values of every codec, and damage."""

import hashlib
import json
import lzma
import multiprocessing
import os
import pickle
import struct
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import processes
from batchplant import _native, ops
from batchplant.formats.lmdb import LmdbWriter, pages
from batchplant.storage import MappedSource, Source
from batchplant.testing import FormatSuite
from batchplant.testing.cases import EXHAUSTIVE, cells, flips, jpeg, memory_bounded, pixels, survive
from repository import GOLDEN

lmdb = pytest.importorskip("lmdb")
msgpack = pytest.importorskip("msgpack")


class TestSuite(FormatSuite):
    format = "lmdb"
    suffix = ".lmdb"
    golden = GOLDEN


# TestSuite tries the same bytes in a folder.
@pytest.mark.exhaustive
class TestSingleFile(FormatSuite):
    wraps = True
    format = "lmdb"
    suffix = ".mdb"
    options: ClassVar = {"subdir": False}

    # The same bytes as in a folder, which are damaged there.
    test_damage_gives_errors_or_values = None


def environment(path, **how):
    return lmdb.open(str(path), map_size=1 << 28, lock=False, sync=False, **how)


def fill(path, entries, **how):
    with environment(path, **how) as env, env.begin(write=True) as txn:
        for key, value in entries.items():
            txn.put(key, value)
    return path


def entries_of(path, **options):
    with bp.open(path, codec="bytes", **options) as reader:
        result = cells(reader)
        return dict(zip(result["key"], result["value"], strict=True))


# --- environments of others ---------------------------------------------------------------------------


def test_golden(tmp_path):
    expected = json.loads((GOLDEN / "lmdb/plain.json").read_text())
    data = lzma.decompress((GOLDEN / "lmdb/plain.lmdb.xz").read_bytes())
    (tmp_path / "plain.lmdb").write_bytes(data)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/data.mdb").write_bytes(data)
    for name in ("plain.lmdb", "folder"):
        with bp.open(tmp_path / name) as reader:
            assert reader.format == "lmdb"
            assert dict(reader.schema) == {"key": bp.Text(), "value": bp.Bytes()}
            actual = {sample["key"]: hashlib.sha256(sample["value"]).hexdigest() for sample in reader}
            assert actual == expected
        assert bp.verify(tmp_path / name).problems == []


keys = st.binary(min_size=1, max_size=6) | st.sampled_from([b"k" * 511, b"x" * 200])
sizes = st.sampled_from([0, 1, 100, 1000, 2000, 2040, 4080, 4096, 5000, 20000])
changes = st.lists(st.tuples(keys, sizes | st.none(), st.integers(0, 255)), max_size=25)


@given(st.lists(changes, max_size=4), st.booleans())
def test_whatever_the_library_wrote(tmp_path_factory, transactions, named):
    """Empty values, overflow pages, deep trees, deletions, several transactions."""
    path = tmp_path_factory.mktemp("env") / "a.lmdb"
    expected = {}
    with environment(path, subdir=False, max_dbs=1) as env:
        db = env.open_db(b"name") if named else None
        for changed in transactions:
            with env.begin(write=True, db=db) as txn:
                for key, size, byte in changed:
                    if size is None:
                        txn.delete(key)
                        expected.pop(key, None)
                    else:
                        expected[key] = bytes([byte]) * size
                        txn.put(key, expected[key])
    actual = entries_of(path, db="name" if named else None)
    assert actual == expected
    assert list(actual) == sorted(expected)


def test_a_deep_tree(tmp_path):
    expected = {b"%06d" % n + b"x" * 400: b"%d" % n for n in range(3000)}
    fill(tmp_path / "a.lmdb", expected)
    with environment(tmp_path / "a.lmdb", readonly=True) as env:
        assert env.stat()["depth"] >= 4
    assert entries_of(tmp_path / "a.lmdb") == expected


def test_large_pages_of_deleted_values_are_left_alone(tmp_path):
    path = tmp_path / "a.lmdb"
    for turn in range(6):
        with environment(path) as env, env.begin(write=True) as txn:
            for n in range(40):
                txn.delete(b"%d" % (n * 3 % 40))
            for n in range(turn, 40, 2):
                txn.put(b"%d" % n, bytes([turn]) * (n * 500))
    assert entries_of(path) == {b"%d" % n: bytes([5]) * (n * 500) for n in range(5, 40, 2)}
    assert bp.verify(path).problems == []


def test_named_databases(tmp_path):
    path = tmp_path / "a.lmdb"
    with environment(path, max_dbs=3) as env:
        for name in (b"train", b"test"):
            with env.begin(write=True, db=env.open_db(name)) as txn:
                txn.put(b"k", name)
    with pytest.raises(bp.OptionError, match=r"choose one with db .*: test, train"):
        bp.open(path)
    with pytest.raises(bp.OptionError, match=r"no database 'val'; the databases are: test, train"):
        bp.open(path, db="val")
    assert entries_of(path, db="train") == {b"k": b"train"}
    with environment(path) as env, env.begin(write=True) as txn:
        txn.put(b"plain", b"value")
    assert entries_of(path) == {b"plain": b"value"}


def test_several_values_of_a_key_are_refused(tmp_path):
    for name, how in (("a", {}), ("b", {"dupfixed": True})):
        with environment(tmp_path / name, max_dbs=1) as env:
            db = env.open_db(b"d", dupsort=True, **how)
            with env.begin(write=True, db=db) as txn:
                txn.put(b"k", b"1")
                if name == "a":
                    txn.put(b"other", b"2")
        assert set(entries_of(tmp_path / name, db="d").values()) <= {b"1", b"2"}
        with environment(tmp_path / name, max_dbs=1) as env:
            db = env.open_db(b"d", dupsort=True, **how)
            with env.begin(write=True, db=db) as txn:
                txn.put(b"k", b"2")
        with pytest.raises(bp.SchemaError, match="a key has several values"):
            bp.open(tmp_path / name, db="d")


def test_keys_that_are_no_text(tmp_path):
    fill(tmp_path / "a.lmdb", {b"\0\1": b"a", b"plain": b"b"})
    with bp.open(tmp_path / "a.lmdb") as reader:
        assert reader.schema["key"] == bp.Bytes()
        assert reader[0] == {"key": b"\0\1", "value": b"a"}
        [spans] = [reader.spans("key", [0])]
        assert (tmp_path / "a.lmdb/data.mdb").read_bytes()[spans.start[0] :][:2] == b"\0\1"


def test_an_empty_environment(tmp_path):
    environment(tmp_path / "a.lmdb").close()
    with bp.open(tmp_path / "a.lmdb") as reader:
        assert len(reader) == 0
        assert list(reader.schema) == ["key", "value"]


# --- values -------------------------------------------------------------------------------------------


def test_images_are_recognised(tmp_path):
    fill(tmp_path / "a.lmdb", {b"%d" % n: jpeg(8 + n, 9) for n in range(3)})
    with bp.open(tmp_path / "a.lmdb") as reader:
        assert reader.schema["image"] == bp.Image("jpeg")
        assert reader[2]["image"].shape == (10, 9, 3)
        assert reader.spans("image").size.tolist() == [len(jpeg(8 + n, 9)) for n in range(3)]
    with bp.open(tmp_path / "a.lmdb", codec="bytes") as reader:
        assert reader[0]["value"] == jpeg(8, 9)
    fill(tmp_path / "a.lmdb", {b"1": b"no image"})
    assert list(bp.open(tmp_path / "a.lmdb").schema) == ["key", "value"]
    with bp.open(tmp_path / "a.lmdb", codec="image") as reader, pytest.raises(bp.DecodeError) as caught:
        reader[1]
    assert (caught.value.sample, caught.value.field) == (1, "image")


def test_json_and_text(tmp_path):
    fill(tmp_path / "a.lmdb", {b"a": b'{"x": [1, null]}', b"b": "größe".encode()})
    with bp.open(tmp_path / "a.lmdb", codec="json") as reader:
        assert reader[0] == {"key": "a", "value": {"x": [1, None]}}
        with pytest.raises(bp.DecodeError, match="Json"):
            reader[1]
    with bp.open(tmp_path / "a.lmdb", codec="text") as reader:
        assert reader[1]["value"] == "größe"


def test_messagepack_of_others(tmp_path):
    samples = [{"image": jpeg(), "n": n, "tags": ["a", n], "key": f"own {n}"} for n in range(3)]
    fill(tmp_path / "a.lmdb", {b"%d" % n: msgpack.packb(sample) for n, sample in enumerate(samples)})
    schema = {"image": bp.Image("jpeg"), "n": "int", "tags": "json", "key": "text"}
    with bp.open(tmp_path / "a.lmdb", codec="msgpack", schema=schema) as reader:
        assert cells(reader)["image"] == [jpeg()] * 3
        assert reader[2]["tags"] == ["a", 2]
        assert reader[2]["key"] == "own 2"
        assert reader.spans("image") is not None
    with bp.open(tmp_path / "a.lmdb", codec="msgpack", schema={"n": "int"}) as reader:
        assert reader[1] == {"key": "1", "n": 1}
    with pytest.raises(bp.OptionError, match="name the fields of the maps"):
        bp.open(tmp_path / "a.lmdb", codec="msgpack")
    fill(tmp_path / "a.lmdb", {b"2": b"\xc1"})
    reader = bp.open(tmp_path / "a.lmdb", codec="msgpack", schema={"n": "int"})
    with pytest.raises(bp.DataError):
        reader[2]


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


def test_pickles_are_opened_only_by_leave(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    values = [{"n": n, "array": np.arange(n + 1)} for n in range(3)]
    fill("a.lmdb", {b"%d" % n: pickle.dumps(value) for n, value in enumerate(values)})
    fill("b.lmdb", {b"0": pickle.dumps(Bomb())})
    for path in ("a.lmdb", "b.lmdb"):
        with pytest.raises(bp.UnsafeError, match=r"can run any code.*allow_pickle=True"):
            bp.open(path, codec="pickle")
        for codec in ("auto", "bytes", "image", "json", "text", "datum", "msgpack"):
            if codec not in ("datum", "msgpack"):
                bp.open(path, codec=codec)
    assert not os.path.exists("exploded")
    with bp.open("a.lmdb", codec="pickle", allow_pickle=True) as reader:
        assert reader.schema["array"] == bp.Tensor("int64", (None,))
        assert reader[2]["array"].tolist() == [0, 1, 2]
    fill("a.lmdb", {b"3": pickle.dumps([1])})
    with bp.open("a.lmdb", codec="pickle", allow_pickle=True) as reader:
        assert reader[3]["value"] == [1]
        with pytest.raises(bp.DecodeError, match="not JSON") as caught:
            reader[0]
        assert (caught.value.sample, caught.value.field) == (0, "value")
    fill("c.lmdb", {b"0": b"no pickle"})
    with pytest.raises(bp.DecodeError, match="the pickle does not load"):
        bp.open("c.lmdb", codec="pickle", allow_pickle=True)


def varint(number):
    number %= 1 << 64
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def datum(shape=(0, 0, 0), data=None, label=None, floats=None, encoded=None, packed=False):
    """A message as protobuf writes it."""
    out = b"".join(bytes([8 * n + 8]) + varint(size) for n, size in enumerate(shape) if size)
    if data is not None:
        out += b"\x22" + varint(len(data)) + data
    if label is not None:
        out += b"\x28" + varint(label)
    if floats is not None and packed:
        out += b"\x32" + varint(4 * len(floats)) + struct.pack(f"<{len(floats)}f", *floats)
    elif floats is not None:
        out += b"".join(b"\x35" + struct.pack("<f", number) for number in floats)
    return out if encoded is None else out + b"\x38" + varint(encoded)


def test_datum_with_encoded_images(tmp_path):
    fill(tmp_path / "a.lmdb", {b"%d" % n: datum(data=jpeg(), label=n - 1, encoded=1) for n in range(3)})
    with bp.open(tmp_path / "a.lmdb", codec="datum") as reader:
        kinds = {"key": bp.Text(), "image": bp.Image("jpeg"), "label": bp.Int("int32")}
        assert dict(reader.schema) == kinds
        assert [sample["label"] for sample in reader] == [-1, 0, 1]
        assert cells(reader)["image"] == [jpeg()] * 3
        spans = reader.spans("image", [2, 0])
        whole = (tmp_path / "a.lmdb/data.mdb").read_bytes()
        assert [whole[at : at + len(jpeg())] for at in spans.start] == [jpeg()] * 2
        assert reader.spans("label") is None


def test_datum_with_raw_channels(tmp_path):
    image = pixels(4, 5, 3)
    planes = image[:, :, ::-1].transpose(2, 0, 1)
    fill(tmp_path / "a.lmdb", {b"0": datum((3, 4, 5), planes.tobytes(), 7)})
    with bp.open(tmp_path / "a.lmdb", codec="datum") as reader:
        assert np.array_equal(reader[0]["image"], image)
        assert reader.schema["image"] == bp.Image(mode="RGB")
        assert reader.spans("image") is None
    with bp.open(tmp_path / "a.lmdb", codec="datum", bgr=False) as reader:
        assert np.array_equal(reader[0]["image"], image[:, :, ::-1])
    gray = pixels(4, 5)
    fill(tmp_path / "b.lmdb", {b"0": datum((1, 4, 5), gray.tobytes(), 7)})
    with bp.open(tmp_path / "b.lmdb", codec="datum") as reader:
        assert np.array_equal(reader[0]["image"], gray)
    fill(tmp_path / "a.lmdb", {b"1": datum(data=jpeg(), encoded=1), b"2": datum((1, 4, 5), gray.tobytes())})
    with bp.open(tmp_path / "a.lmdb", codec="datum") as reader:
        assert [sample["image"].shape for sample in reader] == [(4, 5, 3), (8, 8, 3), (4, 5)]


@pytest.mark.parametrize("packed", [False, True])
def test_datum_with_floats(packed, tmp_path):
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    values = array.reshape(-1).tolist()
    fill(tmp_path / "a.lmdb", {b"0": datum((2, 3, 4), label=1, floats=values, packed=packed)})
    with bp.open(tmp_path / "a.lmdb", codec="datum") as reader:
        assert reader.schema["data"] == bp.Tensor("float32", (2, 3, 4))
        assert np.array_equal(reader[0]["data"], array)
    fill(tmp_path / "a.lmdb", {b"1": datum((2, 1, 1), floats=[1.0, 2.0], packed=packed)})
    with bp.open(tmp_path / "a.lmdb", codec="datum") as reader:
        assert reader.schema["data"] == bp.Tensor("float32", (None, None, None))
        assert np.array_equal(reader[0]["data"], array)
        assert reader[1]["data"].shape == (2, 1, 1)


def test_datum_with_many_channels(tmp_path):
    array = pixels(5, 2, 3)
    fill(tmp_path / "a.lmdb", {b"0": datum((5, 2, 3), array.tobytes(), 7)})
    with bp.open(tmp_path / "a.lmdb", codec="datum") as reader:
        assert reader.schema["data"] == bp.Tensor("uint8", (5, 2, 3))
        assert np.array_equal(reader[0]["data"], array)


GOOD = datum((3, 2, 2), bytes(12), 1)


@pytest.mark.parametrize(
    "bad",
    [
        b"\xff", b"\0", b"\x22\x05ab", b"\x0b", b"\x08" + b"\xff" * 10, b"\x22", b"\x0d\0\0\0\0", b"\x20\1",
        datum((3, 2, 2), bytes(11)), datum((3, 2, 2)), datum((-3, -2, 2), bytes(12)),
        datum((2, 2, 3), bytes(12)),
        datum((3, 2, 2), floats=[1.0]), datum((3, 2**31 - 1, 2**31 - 1), bytes(12)),
        b"\x32\x03abc",
    ],
)  # fmt: skip
def test_damaged_datums(bad, tmp_path):
    some = {b"%05d" % n: GOOD for n in range(200)}
    # Not among those that are looked at.
    fill(tmp_path / "a.lmdb", {**some, b"00199": bad})
    with bp.open(tmp_path / "a.lmdb", codec="datum") as reader:
        assert reader[198]["image"].shape == (2, 2, 3)
        with pytest.raises(bp.DecodeError) as caught:
            reader.read([0, 199], ["image"])
        assert (caught.value.sample, caught.value.path) == (199, str(tmp_path / "a.lmdb"))


def test_options_that_make_no_sense(tmp_path):
    fill(tmp_path / "a.lmdb", {b"0": b"x"})
    with pytest.raises(bp.OptionError, match="codec is one of auto, bytes, image"):
        bp.open(tmp_path / "a.lmdb", codec="nonsense")
    with pytest.raises(bp.OptionError, match="msgpack only"):
        bp.open(tmp_path / "a.lmdb", codec="json", schema={"a": "int"})
    with pytest.raises(bp.OptionError, match="map_size"):
        bp.create(tmp_path / "b.lmdb", {"n": bp.Int()}, map_size=0)


# --- what we write ------------------------------------------------------------------------------------


def test_the_library_reads_what_we_write(tmp_path):
    with bp.create(tmp_path / "a.lmdb", {"n": bp.Int(), "t": bp.Text()}) as out:
        for n in range(20):
            out.append({"n": n, "t": f"no {n}"})
    assert os.listdir(tmp_path / "a.lmdb") == ["data.mdb"]
    with environment(tmp_path / "a.lmdb", readonly=True) as env, env.begin() as txn:
        result = list(txn.cursor())
    assert [key for key, _ in result] == [b"%010d" % n for n in range(20)] + [b"__batchplant__"]
    assert msgpack.unpackb(result[7][1]) == {"n": 7, "t": "no 7"}
    assert json.loads(result[-1][1])["samples"] == 20


def test_the_map_grows_by_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(LmdbWriter, "transaction_bytes", 1 << 20)
    big = np.random.default_rng(0).integers(0, 256, 3 << 20, dtype=np.uint8).tobytes()
    with bp.create(tmp_path / "a.lmdb", {"data": bp.Bytes()}, map_size=1) as out:
        for n in range(6):
            out.append({"data": big[n:]})
        out.append({"data": b"small"})
    with bp.open(tmp_path / "a.lmdb") as reader:
        assert [sample["data"] for sample in reader] == [*(big[n:] for n in range(6)), b"small"]
        assert len(set(reader.blocks().tolist())) > 1


def test_a_resumed_writer_forgets_what_came_after_the_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(LmdbWriter, "transaction_bytes", 1)
    from batchplant.data.writer import WriteOptions
    from batchplant.formats.registry import create_with

    schema = bp.Schema({"data": bp.Bytes()})
    out = create_with(str(tmp_path / "a.lmdb"), schema, WriteOptions())
    for n in range(5):
        out.append({"data": b"%d" % n})
    out.checkpoint()
    for _ in range(40):
        out.append({"data": b"lost"})
    out._flush_samples()
    out._drain(0)
    out.suspend()
    out = create_with(str(tmp_path / "a.lmdb"), schema, WriteOptions(resume=True))
    assert out.written == 5
    out.append({"data": b"last"})
    out.close()
    with bp.open(tmp_path / "a.lmdb") as reader:
        assert [sample["data"] for sample in reader] == [b"0", b"1", b"2", b"3", b"4", b"last"]
    assert bp.verify(tmp_path / "a.lmdb").problems == []


def test_a_foreign_environment_converts_and_comes_back(tmp_path):
    entries = {b"%d" % n: bytes([n]) * n for n in range(30)}
    fill(tmp_path / "a.lmdb", entries)
    bp.convert(tmp_path / "a.lmdb", tmp_path / "b.lmdb")
    with bp.open(tmp_path / "a.lmdb") as theirs, bp.open(tmp_path / "b.lmdb") as ours:
        assert ours.facts()["values"] == "samples"
        assert cells(theirs) == cells(ours)


def test_our_keys_are_verified(tmp_path):
    with bp.create(tmp_path / "a.lmdb", {"data": bp.Bytes()}) as out:
        for _ in range(5):
            out.append({"data": b"x"})
    with environment(tmp_path / "a.lmdb") as env, env.begin(write=True) as txn:
        txn.delete(b"%010d" % 3)
        txn.put(b"%010d" % 9, b"y")
    [problem] = bp.verify(tmp_path / "a.lmdb").problems
    assert (problem.sample, problem.message) == (3, "its key is b'0000000004'")


def test_without_the_library_reading_works_and_writing_says_what_to_install(tmp_path, monkeypatch):
    fill(tmp_path / "a.lmdb", {b"0": b"x"})
    monkeypatch.setitem(__import__("sys").modules, "lmdb", None)
    assert list(bp.open(tmp_path / "a.lmdb")) == [{"key": "0", "value": b"x"}]
    with pytest.raises(bp.MissingLibraryError, match=r"pip install \"batchplant\[lmdb\]\""):
        bp.create(tmp_path / "b.lmdb", {"n": bp.Int()})
    assert os.listdir(tmp_path) == ["a.lmdb"]


# --- the index, writers beside us, processes ----------------------------------------------------------


def test_a_later_transaction_makes_the_index_anew(tmp_path):
    path = fill(tmp_path / "a.lmdb", {b"%d" % n: b"old" for n in range(5)})
    with bp.open(path, index="write") as reader:
        before = (path / "data.mdb").stat()
        assert len(reader) == 5
    assert (path / "data.mdb.bpindex").exists()
    fill(path, {b"0": b"newer", b"9": b"more"})
    # Even where the file system's clock did not move on.
    os.utime(path / "data.mdb", ns=(before.st_atime_ns, before.st_mtime_ns))
    with bp.open(path, index="write") as reader:
        assert len(reader) == 6
        assert reader[0]["value"] == b"newer"


def test_an_index_of_another_database_is_not_used(tmp_path):
    path = tmp_path / "a.lmdb"
    with environment(path, max_dbs=2) as env:
        for name, count in ((b"a", 3), (b"b", 4)):
            with env.begin(write=True, db=env.open_db(name)) as txn:
                for n in range(count):
                    txn.put(b"%d" % n, name)
    for _ in range(2):
        assert len(bp.open(path, db="a", index="write")) == 3
        assert len(bp.open(path, db="b", index="write")) == 4


def test_it_is_noticed_when_another_writes(tmp_path):
    path = fill(tmp_path / "a.lmdb", {b"0": b"x"})
    with bp.open(path) as reader:
        fill(path, {b"0": b"y"})
        assert "written to since it was opened" in next(reader.verify()).message


def test_the_walk_begins_anew_when_a_transaction_ended_meanwhile(tmp_path, monkeypatch):
    path = fill(tmp_path / "a.lmdb", {b"0": b"x"})
    walk, turns = pages.walk, iter(range(100))

    def disturbed(*args):
        turn = next(turns)
        if turn < 6:
            fill(path, {b"%d" % turn: b"x"})
        if turn == 0:
            raise bp.DamagedError("a page was taken away")
        return walk(*args)

    monkeypatch.setattr(pages, "walk", disturbed)
    with bp.open(path, index="memory") as reader:
        assert len(reader) == 6
    monkeypatch.setattr(pages, "walk", lambda *args: (fill(path, {b"0": b"z"}), walk(*args))[1])
    with pytest.raises(bp.BusyError, match="keeps changing"):
        bp.open(path, index="memory")


def _read_all(reader, queue):
    queue.put(cells(reader)["data"])


@pytest.mark.parametrize("way", ["fork", pytest.param("spawn", marks=pytest.mark.exhaustive)])
def test_processes_read_the_same(way, tmp_path):
    with bp.create(tmp_path / "a.lmdb", {"data": bp.Bytes()}) as out:
        for n in range(50):
            out.append({"data": b"%d" % n * n})
    context = multiprocessing.get_context(way)
    with bp.open(tmp_path / "a.lmdb") as reader:
        queue = context.Queue()
        workers = [context.Process(target=_read_all, args=(reader, queue)) for _ in range(2)]
        with processes.started(*workers):
            actual = processes.answers(queue, *workers, count=2)
        assert actual == [cells(reader)["data"]] * 2


def test_the_loader_sees_the_same_pixels_as_from_beton(tmp_path):
    images = {b"%03d" % n: jpeg(40 + n, 50 - n) for n in range(16)}
    fill(tmp_path / "plain.lmdb", images)
    for name in ("a.beton", "a.lmdb"):
        with bp.create(tmp_path / name, {"image": bp.Image()}) as out:
            for image in images.values():
                out.append({"image": image})
    pipelines = {"image": [ops.RandomResizedCrop(24), ops.RandomHorizontalFlip()]}
    how = {"order": "random", "seed": 3, "pipelines": pipelines, "indices": range(16)}
    loaders = [
        bp.Loader(bp.open(tmp_path / name).select(["image"]), 8, **how)
        for name in ("a.beton", "a.lmdb", "plain.lmdb")
    ]
    for first, *others in zip(*loaders, strict=True):
        for other in others:
            assert np.array_equal(first["image"], other["image"])
    for loader in loaders:
        loader.close()


# --- damage -------------------------------------------------------------------------------------------

PAGE = 4096
ROOT = PAGE + 16 + 24 + 48 + 40


def patched(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.fixture
def plain(tmp_path):
    """A file with a branch, leaves and a value of several pages."""
    path = tmp_path / "a.lmdb"
    entries = {b"%04d" % n: bytes([n]) * 100 for n in range(60)}
    fill(path, {**entries, b"large": b"L" * 10000}, subdir=False)
    return path


def root_of(path):
    return struct.unpack_from("<Q", path.read_bytes(), ROOT)[0]


@pytest.mark.parametrize(
    ("offset", "data", "reason"),
    [
        (16, b"\0", "not a meta page"),
        (PAGE + 16, b"\0", "not a meta page"),
        (20, b"\2", "this version of LMDB's format is not known"),
        (40, b"\1\0\0\0", "page size is damaged"),
        (PAGE + 40, b"\0\x20\0\0", "differ in their page size"),
        (ROOT - 8, b"\7", "another number of entries"),
        (ROOT - 34, b"\0\0", "depth of the tree is damaged"),
        (ROOT - 34, b"\1\0", "of the wrong kind"),
        (ROOT, b"\xff" * 7, "behind the end"),
        (ROOT, b"\xff" * 8, "empty tree"),
        (ROOT, b"\0" * 8, "used twice"),
    ],
)
def test_damaged_meta_pages(plain, offset, data, reason):
    patched(plain, offset, data)
    with pytest.raises(bp.DamagedError, match=reason) as caught:
        bp.open(plain, format="lmdb")
    assert caught.value.path == str(plain)


@pytest.mark.parametrize(
    ("offset", "data", "reason"),
    [
        (0, b"\xff", "wrong number"),
        (10, b"\4", "wrong kind"),
        (10, b"\x22", "wrong kind"),
        (12, b"\1\0", "bounds of a page"),
        (12, b"\xff\xff", "bounds of a page"),
        (14, b"\xff\xff", "bounds of a page"),
        (16, b"\0\0", "a node leaves its page"),
        (16, b"\xff\x0f", "a node leaves its page"),
    ],
)
def test_damaged_branches(plain, offset, data, reason):
    patched(plain, PAGE * root_of(plain) + offset, data)
    with pytest.raises(bp.DamagedError, match=reason):
        bp.open(plain)


def test_a_tree_that_bites_its_tail(plain):
    """All branches lead to one leaf: no cycle, no page twice."""
    data = plain.read_bytes()
    root = PAGE * root_of(plain)
    first, second = struct.unpack_from("<HH", data, root + 16)
    patched(plain, root + second, data[root + first : root + first + 4])
    with pytest.raises(bp.DamagedError, match="a page is used twice"):
        bp.open(plain)
    patched(plain, root + second, struct.pack("<I", root_of(plain)))
    with pytest.raises(bp.DamagedError, match="a page is used twice"):
        bp.open(plain)


def test_damaged_nodes_of_leaves(plain):
    data = plain.read_bytes()
    arrays, _ = pages.scan(bp.storage.open_source(str(plain)), lambda done: None)
    node = int(arrays["key_starts"][0]) - 8
    for offset, bad, reason in (
        (0, b"\xff\xff", "a value leaves its page"),
        (6, b"\xff\xff", "a key leaves its page"),
        (4, b"\1", "large value"),
        (4, b"\4", "several values"),
        (4, b"\2", "a named database is damaged"),
    ):
        patched(plain, node + offset, bad)
        with pytest.raises(bp.BatchplantError, match=reason):
            bp.open(plain)
        patched(plain, node, data[node : node + 8])
    assert len(bp.open(plain)) == 61
    large = int(arrays["starts"][-1]) - 16
    for offset, bad, reason in (
        (0, b"\xff", "a page of a large value is damaged"),
        (10, b"\2", "a page of a large value is damaged"),
        (12, b"\1", "longer than its pages"),
        (12, b"\0\0\0\x7f", "longer than its pages"),
    ):
        patched(plain, large + offset, bad)
        with pytest.raises(bp.DamagedError, match=reason):
            bp.open(plain)
        patched(plain, large, data[large : large + 16])


def test_nodes_that_share_their_bytes(tmp_path):
    """Else a small file could hold very much."""
    path = fill(tmp_path / "a.lmdb", {**{b"%d" % n: b"" for n in range(9)}, b"x": bytes(1500)}, subdir=False)
    leaf = PAGE * root_of(path)
    pointer = path.read_bytes()[leaf + 16 + 18 : leaf + 16 + 20]
    patched(path, leaf + 16, pointer * 10)
    with pytest.raises(bp.DamagedError, match="nodes of a page overlap"):
        bp.open(path)


def test_flips_in_a_foreign_file(plain):
    def is_sound():
        with memory_bounded(plain.stat().st_size):
            return TestSuite().is_sound(str(plain))

    assert is_sound()
    for _ in survive(flips(plain), is_sound):
        pass


def test_a_lying_index_is_not_followed(plain):
    with bp.open(plain) as reader:
        reader._starts = reader._starts + (1 << 40)
        with pytest.raises(bp.DamagedError, match="outside of the file"):
            reader[0]
        reader._key_starts = -reader._key_starts
        with pytest.raises(bp.DamagedError, match="outside of the file"):
            reader.read([0], ["key"])
        assert "the index is not that" in next(reader.verify()).message


def test_native_arguments():
    with pytest.raises(ValueError, match="another number"):
        _native.datum_floats(np.zeros(0, np.uint8), np.zeros(2, np.float32))
    with pytest.raises(IndexError):
        _native.datum_scan(np.zeros(4, np.uint8), np.array([2]), np.array([3]))


# -- trees with several levels, in files and on servers ----------------------------------------------------


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    """One with several levels, large values, empty ones, and databases in it; and what is in its trees."""
    path = tmp_path_factory.mktemp("lmdb") / "a.mdb"
    with lmdb.open(str(path), subdir=False, map_size=1 << 26, max_dbs=4) as env:
        one, two = env.open_db(b"one"), env.open_db(b"two")
        with env.begin(write=True) as out:
            for n in range(4000):
                out.put(f"{n * 7919 % 4000:06}".encode() * (1 + n % 9), b"x" * (n % 40))
            for n in range(60):
                out.put(f"large {n}".encode(), bytes([n]) * (3000 + 997 * n), db=one)
            out.put(b"only", b"value", db=two)
        with env.begin(write=True) as out:
            for n in range(0, 4000, 5):
                out.delete(f"{n * 7919 % 4000:06}".encode() * (1 + n % 9))
        with env.begin() as entries:
            expected = {name: list(entries.cursor(db)) for name, db in (("one", one), ("two", two))}
            expected[None] = [entry for entry in entries.cursor() if entry[0] not in (b"one", b"two")]
    return path, expected


class Served(Source):
    """A file that is read in ranges, as that of a server."""

    def __init__(self, path):
        self._file = MappedSource(path)
        super().__init__(path, self._file.size)

    def _view(self, start, size):
        return self._file.view(start, size)

    def _gather(self, starts, sizes, out, out_starts):
        self._file.gather_into(starts, sizes, out, out_starts)


def scanned(source, db):
    arrays, _ = pages.scan(source, lambda done: None, db=db)
    keys = source.gather(arrays["key_starts"], arrays["key_sizes"].astype(np.int64))
    return [
        (bytes(key), bytes(value))
        for key, value in zip(keys, source.gather(arrays["starts"], arrays["sizes"]), strict=True)
    ]


@pytest.mark.parametrize("kind", [MappedSource, Served])
def test_trees_have_the_entries_that_the_library_has(kind, deep):
    path, expected = deep
    for db, entries in expected.items():
        assert scanned(kind(str(path)), db) == entries
    meta = pages.read_meta(kind(str(path)))
    assert meta.main.depth > 1
    assert meta.main.entries > 3000


def test_damaged_trees(deep, tmp_path):
    """An error in our terms, or entries that lie in the file and do not share their bytes."""
    path, expected = deep
    data = path.read_bytes()
    meta = pages.read_meta(MappedSource(str(path)))
    random = np.random.default_rng(0)
    refused = 0
    turns = 300 if EXHAUSTIVE else 30
    for turn in range(turns):
        broken = bytearray(data)
        # Where the trees are: most of the rest are values.
        page = meta.main.root if turn % 2 else int(random.integers(2, len(data) // meta.page_size))
        at = page * meta.page_size + int(random.integers(0, 64 if turn % 3 else meta.page_size))
        broken[at] ^= 1 << int(random.integers(0, 8))
        file = tmp_path / "broken.mdb"
        file.write_bytes(broken)
        for kind in (MappedSource, Served):
            source = kind(str(file))
            for db in expected:
                try:
                    arrays, _ = pages.scan(source, lambda done: None, db=db)
                except bp.BatchplantError:
                    refused += 1
                    continue
                assert source.outside(arrays["starts"], arrays["sizes"]) is None
                assert int(arrays["sizes"].sum()) <= len(data)
            source.close()
    assert refused > turns // 6
