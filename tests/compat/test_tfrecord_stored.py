"""batchplant.tfrecord: datasets that are kept in files, sounds, sparse features, groups."""

from __future__ import annotations

import collections
import shutil
from pathlib import Path
from typing import Any

import batchplant.tfrecord as tf
import numpy as np
import pytest
from batchplant.tfrecord import wire

import batchplant as bp
import repository

GOLDEN = repository.GOLDEN / "tfrecord_mirror"
D = tf.data.Dataset
Pair = collections.namedtuple("Pair", ["left", "right"])


def ints(dataset: Any) -> list[int]:
    return [int(one) for one in dataset]


def files(folder: Path) -> list[Path]:
    return sorted(one for one in folder.rglob("*") if one.is_file())


# --- saved ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "compression"), [("saved", None), ("packed", "GZIP")])
def test_what_tensorflow_saved(name: str, compression: Any) -> None:
    found = D.load(GOLDEN / name, compression=compression)
    assert len(found) == 23
    for number, one in enumerate(found):
        assert (int(one["x"]), one["s"], bool(one["t"][1])) == (number, str(number), number > 2)
        assert one["t"][0].dtype == np.float32
        assert (one["t"][0] == number).all()


def test_every_kind_of_value_comes_back(tmp_path: Path) -> None:
    sparse = tf.SparseTensor([[0, 1], [2, 0]], np.array([1.5, 2.5]), [3, 2])
    ragged = tf.RaggedTensor([b"a", b"", b"\xff"], [0, 2, 2, 3])
    element = {
        "numbers": tuple(
            np.array([[1, 0]]).astype(kind) for kind in ("int8", "uint64", "float16", "complex64", "bool")
        ),
        "sparse": sparse,
        "named": Pair(tf.constant("ü"), np.zeros((0, 3), dtype=np.float32)),
        "ragged": (ragged,),
    }
    D.from_tensors(element).concatenate(D.from_tensors(element)).save(tmp_path / "a")
    for one in D.load(tmp_path / "a"):
        for got, put in zip(one["numbers"], element["numbers"], strict=True):
            assert got.dtype == put.dtype
            assert np.array_equal(got, put)
        assert np.array_equal(tf.sparse.to_dense(one["sparse"]), tf.sparse.to_dense(sparse))
        assert one["ragged"][0].to_list() == ragged.to_list()
        assert type(one["named"])._fields == ("left", "right")
        assert (one["named"].left, one["named"].right.shape) == ("ü".encode(), (0, 3))
    with pytest.raises(bp.SchemaError, match="datasets inside of elements"):
        D.range(4).window(2).save(tmp_path / "b")
    assert not (tmp_path / "b").exists()
    D.range(0).save(tmp_path / "empty")
    assert list(D.load(tmp_path / "empty")) == []


def test_shapes_that_differ_and_types_that_must_not(tmp_path: Path) -> None:
    D.range(3).map(lambda x: np.zeros((2, int(x)))).save(tmp_path / "a")
    assert [one.shape for one in D.load(tmp_path / "a")] == [(2, 0), (2, 1), (2, 2)]
    mixed = D.range(2).map(lambda x: np.float32(x) if x else np.int64(x))
    with pytest.raises(bp.SchemaError, match="differing types"):
        mixed.save(tmp_path / "b")


def test_a_folder_is_replaced_when_all_is_written(tmp_path: Path) -> None:
    place = tmp_path / "deep" / "a"
    D.range(5).save(place)

    def fail(x: Any) -> Any:
        if x == 3:
            raise bp.DecodeError("no")
        return x * 2

    with pytest.raises(bp.DecodeError):
        D.load(place).map(fail).save(place)
    assert ints(D.load(place)) == [0, 1, 2, 3, 4]
    # From itself into itself.
    D.load(place).map(lambda x: x * 2).save(place)
    assert ints(D.load(place)) == [0, 2, 4, 6, 8]
    assert [one.name for one in place.parent.iterdir()] == ["a"]
    # What is no saved dataset is not replaced.
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "letter.txt").write_text("dear")
    for path in (tmp_path / "home", tmp_path / "home" / "letter.txt"):
        with pytest.raises(bp.ExistsError, match="not a saved dataset"):
            D.range(1).save(path)
    assert (tmp_path / "home" / "letter.txt").read_text() == "dear"


def test_shards_and_who_reads_them(tmp_path: Path) -> None:
    D.range(10).save(tmp_path / "a", shard_func=lambda x: x % 3)
    assert len(list(tmp_path.glob("a/*/*.shard"))) == 3
    in_a_row = D.load(tmp_path / "a", reader_func=lambda parts: parts.flat_map(lambda part: part))
    assert ints(in_a_row) == [0, 3, 6, 9, 1, 4, 7, 2, 5, 8]
    assert sorted(ints(D.load(tmp_path / "a"))) == list(range(10))
    with pytest.raises(bp.OptionError, match="from 0 on"):
        D.range(2).save(tmp_path / "b", shard_func=lambda x: -1)


def test_damaged_and_hostile_folders(tmp_path: Path) -> None:
    with pytest.raises(tf.errors.NotFoundError, match="no saved dataset"):
        D.load(tmp_path / "none")
    D.range(50).map(lambda x: (x, str(x))).save(tmp_path / "good")

    def copy() -> Path:
        shutil.rmtree(tmp_path / "a", ignore_errors=True)
        shutil.copytree(tmp_path / "good", tmp_path / "a")
        return tmp_path / "a"

    [record] = copy().glob("*/*/*.snapshot")
    data = record.read_bytes()
    record.write_bytes(data[:100] + bytes([data[100] ^ 1]) + data[101:])
    with pytest.raises(bp.DamagedError, match="checksum"):
        list(D.load(tmp_path / "a"))
    # Cut between two elements, and inside of one.
    one = tf.data.TFRecordDataset(tmp_path / "good" / record.relative_to(tmp_path / "a"))
    with tf.io.TFRecordWriter(record) as writer:
        for kept in one.take(99):
            writer.write(kept)
    with pytest.raises(bp.DamagedError, match="ends inside of an element"):
        list(D.load(tmp_path / "a"))
    with tf.io.TFRecordWriter(record) as writer:
        for kept in one.take(98):
            writer.write(kept)
    with pytest.raises(bp.DamagedError, match="there are 49 elements, and 50 were saved"):
        list(D.load(tmp_path / "a"))
    meta = wire.block(2, b"../good") + b"\x20\x02\x30\x01" + wire.varint(8000) + b"\x01"
    for content, message in (
        (meta, "no name of a run"),
        (wire.block(2, b"1") + b"\x20\x02", "not saved to the end"),
        (wire.block(2, b"1") + b"\x20\x09", "version 9"),
        (b"\xff\xff", "not the metadata"),
    ):
        (copy() / "snapshot.metadata").write_bytes(content)
        with pytest.raises(bp.BatchplantError, match=message):
            D.load(tmp_path / "a")
    nested = b""
    for _ in range(200):
        nested = wire.block(52, wire.block(1, nested))
    for content in (
        nested,
        b"\x00",
        b"",
        wire.block(33, b"\x18\x15"),
        wire.block(54, wire.block(1, b"import os")),
    ):
        (copy() / "dataset_spec.pb").write_bytes(content)
        with pytest.raises(bp.BatchplantError):
            list(D.load(tmp_path / "a"))


# --- cached and kept --------------------------------------------------------------------------------------


def counted(made: Any) -> Any:
    def note(x: Any) -> Any:
        made.append(int(x))
        return x * 10

    return note


def test_a_cache_in_a_file_is_filled_by_a_whole_pass(tmp_path: Path) -> None:
    made: list[int] = []
    dataset = D.range(4).map(counted(made)).cache(str(tmp_path / "cache"))
    assert ints(dataset.take(2)) == [0, 10]
    assert dataset.element_spec.dtype == tf.int64
    assert files(tmp_path) == []
    made.clear()
    for _ in range(3):
        assert ints(dataset) == [0, 10, 20, 30]
    assert made == [0, 1, 2, 3]
    # Another dataset, in another run, finds it; whatever it would have given itself.
    assert ints(D.range(2).cache(tmp_path / "cache")) == [0, 10, 20, 30]
    assert made == [0, 1, 2, 3]
    shutil.rmtree(tmp_path / "cache")
    assert ints(dataset) == [0, 10, 20, 30]
    assert len(made) == 8
    (tmp_path / "file").write_text("mine")
    with pytest.raises(bp.ExistsError):
        list(D.range(2).cache(tmp_path / "file"))


def test_two_passes_at_a_time_over_a_cache(tmp_path: Path) -> None:
    dataset = D.range(5).cache(tmp_path / "cache")
    one, two = iter(dataset), iter(dataset)
    assert [(int(next(one)), int(next(two))) for _ in range(5)] == [(n, n) for n in range(5)]
    for iterator in (two, one):
        with pytest.raises(StopIteration):
            next(iterator)
    assert ints(D.load(tmp_path / "cache")) == [0, 1, 2, 3, 4]
    assert [entry.name for entry in tmp_path.iterdir()] == ["cache"]


SCALE = 2


def times(x: Any) -> Any:
    return x * SCALE


def test_a_snapshot_belongs_to_how_a_dataset_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A list would count by what is in it.
    made: Any = collections.deque()

    def pipeline(count: int = 6, factor: int = 1, add: Any = lambda x: x) -> Any:
        tried = D.range(count).shuffle(10).map(lambda x: add(x) * factor).map(times)
        return tried.map(counted(made)).snapshot(tmp_path / "snap")

    first = ints(pipeline())
    assert sorted(first) == [0, 20, 40, 60, 80, 100]
    for _ in range(2):
        # Not shuffled anew: these are the elements that were kept.
        assert ints(pipeline()) == first
    assert len(made) == 6
    made.clear()
    for changed in ({"count": 5}, {"factor": 3}, {"add": lambda x: x + 1}):
        assert sorted(ints(pipeline(**changed))) != sorted(first)
        assert len(made) > 0
        made.clear()
        pipeline(**changed)
    monkeypatch.setitem(globals(), "SCALE", 7)
    assert sorted(ints(pipeline())) == [0, 70, 140, 210, 280, 350]
    assert len(list((tmp_path / "snap").iterdir())) == 5
    made.clear()
    with pytest.raises(bp.OptionError, match="compression_type"):
        D.range(1).snapshot(tmp_path / "x", compression="SNAPPY")


def test_a_snapshot_of_files(tmp_path: Path) -> None:
    for name in "ab":
        with tf.io.TFRecordWriter(tmp_path / f"{name}.tfrecord") as writer:
            writer.write(name.encode())

    def kept(name: str) -> list[Any]:
        source = tf.data.TFRecordDataset(tmp_path / f"{name}.tfrecord")
        return list(source.snapshot(tmp_path / "snap", compression="GZIP", shard_func=lambda x: 0))

    assert [kept("a"), kept("b"), kept("a")] == [[b"a"], [b"b"], [b"a"]]
    assert len(list((tmp_path / "snap").iterdir())) == 2


# --- groups, sparse features, sounds ----------------------------------------------------------------------


def test_groups_that_are_none() -> None:
    numbers = D.range(4)
    with pytest.raises(bp.OptionError, match="window_size or window_size_func"):
        numbers.group_by_window(lambda x: x, lambda key, part: part)
    with pytest.raises(bp.OptionError, match="must be at least 1"):
        list(numbers.group_by_window(lambda x: x, lambda key, part: part, window_size=0))
    with pytest.raises(bp.OptionError, match="must return a dataset"):
        list(numbers.group_by_window(lambda x: x, lambda key, part: 5, window_size=1))


def test_sparse_features_that_do_not_fit() -> None:
    def made(**features: list[int]) -> bytes:
        feature = {
            name: tf.train.Feature(int64_list=tf.train.Int64List(value=value))
            for name, value in features.items()
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    wanted = {"place": tf.io.SparseFeature("i", "v", tf.int64, 4)}
    with pytest.raises(bp.SchemaError, match="1 indices in 'i' for 2 values") as caught:
        tf.io.parse_example([made(i=[0], v=[1]), made(i=[3], v=[1, 2])], wanted)
    assert (caught.value.field, caught.value.sample) == ("place", 1)
    outside = tf.io.parse_example([made(i=[9], v=[1])], wanted)["place"]
    with pytest.raises(bp.SchemaError, match="outside of the shape"):
        tf.sparse.to_dense(outside)
    with pytest.raises(bp.OptionError, match="2 keys of indices, and 1 sizes"):
        tf.io.SparseFeature(["a", "b"], "v", tf.int64, 4)


def test_sounds() -> None:
    samples = np.array([[0.0, 0.5], [-1.0, 2.0], [np.nan, -0.25]], dtype=np.float32)
    encoded = tf.audio.encode_wav(samples, tf.constant(8000))
    audio, rate = tf.audio.decode_wav(encoded)
    assert (int(rate), rate.dtype, audio.dtype) == (8000, np.int32, np.float32)
    assert audio.tolist() == [[0.0, 0.5], [-1.0, 32767 / 32768], [0.0, -0.25]]
    assert bp.codecs.audio.header(encoded).subtype == "PCM_16"
    for wrong, message in ((samples[0], "shape"), (samples.astype(np.float64), "float32")):
        with pytest.raises(bp.SchemaError, match=message):
            tf.audio.encode_wav(wrong, 8000)
    for content in (b"", encoded[:20], encoded[:-2], b"RIFF" + bytes(40)):
        with pytest.raises(tf.errors.InvalidArgumentError):
            tf.audio.decode_wav(content)
    with pytest.raises(bp.OptionError, match="more than may be decoded"):
        tf.audio.decode_wav(encoded, 1 << 20, 1 << 20)
