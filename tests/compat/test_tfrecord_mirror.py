"""batchplant.tfrecord beside TensorFlow: the same scripts, the same results; and what must never happen."""

from __future__ import annotations

import contextlib
import gc
import io
import json
import lzma
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import batchplant.tfrecord as tf
import numpy as np
import pytest
from batchplant.tfrecord import parsing
from batchplant.tfrecord.data import threads
from batchplant.tfrecord.values import String
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import batchplant as bp
import processes
import repository
from batchplant import _native
from batchplant.codecs import protobuf
from batchplant.testing.cases import EXHAUSTIVE

SCRIPT = repository.SUPPORT / "tfrecord_script.py"
GOLDEN = repository.GOLDEN / "tfrecord_mirror"
D = tf.data.Dataset


def expected() -> dict[str, Any]:
    with lzma.open(GOLDEN / "results.json.xz") as file:
        results: dict[str, Any] = json.load(file)
        return results


def compare(results: dict[str, Any], near: Any, other: dict[str, Any], other_near: Any) -> None:
    assert results.keys() == other.keys()
    for name in other:
        assert results[name] == other[name], name
    for name in other_near:
        ours, theirs = near[name], other_near[name]
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype), name
        # A crop of TensorFlow's differs at its edges.
        tolerance = 8 if name == "crop" else 0.001
        assert np.abs(ours.astype(np.float64) - theirs).max() <= tolerance, name


def run_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Any]:
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), "batchplant", str(GOLDEN / "inputs.npz"), str(folder)])
    exec(compile(SCRIPT.read_text("utf-8"), str(SCRIPT), "exec"), {"__name__": "script"})
    return json.loads((folder / "batchplant.json").read_text()), np.load(folder / "batchplant.npz")


def test_the_same_script_gives_what_tensorflow_gave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Some orders depend on the number of cores; TensorFlow ran on two.
    monkeypatch.setattr(threads, "cpu_count", lambda: 2)
    compare(*run_here(tmp_path, monkeypatch), expected(), np.load(GOLDEN / "near.npz"))


@pytest.mark.reference
def test_the_same_script_gives_what_tensorflow_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    python = os.environ.get("BATCHPLANT_TF_PYTHON")
    if not python:
        pytest.skip("BATCHPLANT_TF_PYTHON does not name a Python with TensorFlow")
    done = processes.run(
        [python, SCRIPT, "tensorflow", GOLDEN / "inputs.npz", tmp_path], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    theirs = json.loads((tmp_path / "tensorflow.json").read_text())
    compare(*run_here(tmp_path, monkeypatch), theirs, np.load(tmp_path / "tensorflow.npz"))
    # Each reads the files that the other wrote, to the byte where nothing is compressed.
    assert (tmp_path / "tensorflow.tfrecord").read_bytes() == (tmp_path / "batchplant.tfrecord").read_bytes()
    for kind in ("GZIP", "ZLIB"):
        read = tf.data.TFRecordDataset(tmp_path / f"tensorflow{kind}.tfrecord", kind)
        assert list(read) == list(tf.data.TFRecordDataset(tmp_path / "batchplant.tfrecord"))
    code = (
        "import sys, tensorflow as tf\n"
        "for kind in ('', 'GZIP', 'ZLIB'):\n"
        "    ours = tf.data.TFRecordDataset(f'{sys.argv[1]}/batchplant{kind}.tfrecord', kind)\n"
        "    theirs = tf.data.TFRecordDataset(f'{sys.argv[1]}/tensorflow.tfrecord')\n"
        "    assert [x.numpy() for x in ours] == [x.numpy() for x in theirs], kind\n"
    )
    done = processes.run([python, "-c", code, tmp_path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]


# Scripts as people have them.


def test_the_tfrecord_tutorial(tmp_path: Path) -> None:
    def _bytes_feature(value: Any) -> Any:
        if isinstance(value, type(tf.constant(0))):
            value = value.numpy()
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))

    def _float_feature(value: Any) -> Any:
        return tf.train.Feature(float_list=tf.train.FloatList(value=[value]))

    def _int64_feature(value: Any) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    n_observations = 100
    feature0 = np.random.default_rng(0).choice([False, True], n_observations)
    feature1 = np.random.default_rng(1).integers(0, 5, n_observations)
    feature2 = np.array([b"cat", b"dog", b"chicken", b"horse", b"goat"])[feature1]
    feature3 = np.random.default_rng(2).normal(0, 1, n_observations)

    def serialize_example(feature0: Any, feature1: Any, feature2: Any, feature3: Any) -> Any:
        feature = {
            "feature0": _int64_feature(feature0),
            "feature1": _int64_feature(feature1),
            "feature2": _bytes_feature(feature2),
            "feature3": _float_feature(feature3),
        }
        return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()

    def tf_serialize_example(f0: Any, f1: Any, f2: Any, f3: Any) -> Any:
        tf_string = tf.py_function(serialize_example, (f0, f1, f2, f3), tf.string)
        return tf.reshape(tf_string, ())

    features_dataset = tf.data.Dataset.from_tensor_slices((feature0, feature1, feature2, feature3))
    serialized = features_dataset.map(tf_serialize_example)

    def generator() -> Any:
        for features in features_dataset:
            yield serialize_example(*features)

    again = tf.data.Dataset.from_generator(generator, output_types=tf.string, output_shapes=())
    assert list(again) == list(serialized)
    filename = str(tmp_path / "test.tfrecord")
    with tf.io.TFRecordWriter(filename) as writer:
        for record in serialized:
            writer.write(record)

    raw_dataset = tf.data.TFRecordDataset([filename])
    feature_description = {
        "feature0": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "feature1": tf.io.FixedLenFeature([], tf.int64, default_value=0),
        "feature2": tf.io.FixedLenFeature([], tf.string, default_value=""),
        "feature3": tf.io.FixedLenFeature([], tf.float32, default_value=0.0),
    }

    def _parse_function(example_proto: Any) -> Any:
        return tf.io.parse_single_example(example_proto, feature_description)

    for number, parsed in enumerate(raw_dataset.map(_parse_function)):
        assert parsed["feature0"].numpy() == feature0[number]
        assert parsed["feature2"].numpy() == feature2[number]
        assert parsed["feature3"].numpy() == np.float32(feature3[number])
    for raw_record in raw_dataset.take(1):
        example = tf.train.Example()
        example.ParseFromString(raw_record.numpy())
    result = {}
    for key, feature in example.features.feature.items():
        kind = feature.WhichOneof("kind")
        result[key] = np.array(getattr(feature, kind).value)
    assert result["feature1"].tolist() == [feature1[0]]
    assert str(example).startswith('features {\n  feature {\n    key: "feature0"\n')


def photo(seed: int, size: tuple[int, int] = (64, 48)) -> bytes:
    rng = np.random.default_rng(seed)
    out = io.BytesIO()
    small = Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8))
    small.resize(size, Image.Resampling.BICUBIC).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four files of ImageNet's layout, 12 images each."""
    folder = tmp_path_factory.mktemp("imagenet")
    for shard in range(4):
        with tf.io.TFRecordWriter(str(folder / f"train-{shard:05d}-of-00004")) as writer:
            for number in range(12):
                feature = {
                    "image/encoded": tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[photo(12 * shard + number)])
                    ),
                    "image/class/label": tf.train.Feature(
                        int64_list=tf.train.Int64List(value=[12 * shard + number])
                    ),
                    "image/object/bbox/xmin": tf.train.Feature(
                        float_list=tf.train.FloatList(value=[0.25] * (number % 3))
                    ),
                    "image/object/bbox/xmax": tf.train.Feature(
                        float_list=tf.train.FloatList(value=[0.75] * (number % 3))
                    ),
                }
                writer.write(
                    tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()
                )
    return folder


def test_an_imagenet_input_pipeline(shards: Path) -> None:
    def parse_example_proto(example_serialized: Any) -> Any:
        feature_map = {
            "image/encoded": tf.io.FixedLenFeature([], dtype=tf.string, default_value=""),
            "image/class/label": tf.io.FixedLenFeature([], dtype=tf.int64, default_value=-1),
        }
        sparse_float32 = tf.io.VarLenFeature(dtype=tf.float32)
        feature_map.update(
            {f"image/object/bbox/{k}": sparse_float32 for k in ("xmin", "ymin", "xmax", "ymax")}
        )
        features = tf.io.parse_single_example(serialized=example_serialized, features=feature_map)
        label = tf.cast(features["image/class/label"], dtype=tf.int32)
        assert len(features["image/object/bbox/xmin"].values) in (0, 1, 2)
        assert len(features["image/object/bbox/ymin"].values) == 0
        return features["image/encoded"], label

    def preprocess(image_buffer: Any, is_training: bool) -> Any:
        if is_training:
            height, width, _ = tf.image.extract_jpeg_shape(image_buffer)
            top, left = np.random.randint(height - 39), np.random.randint(width - 39)
            image = tf.image.decode_and_crop_jpeg(image_buffer, [top, left, 40, 40], channels=3)
            image = tf.image.resize(image, [32, 32], method=tf.image.ResizeMethod.BILINEAR)
            image = image[:, ::-1] if np.random.rand() < 0.5 else image
        else:
            image = tf.image.decode_jpeg(image_buffer, channels=3)
            shape = tf.cast(tf.shape(input=image)[:2], tf.float32)
            image = tf.image.resize(image, tf.cast(shape * 40 / shape.min(), tf.int32))
            top, left = (tf.shape(image)[:2] - 32) // 2
            image = image[top : top + 32, left : left + 32]
        image.set_shape([32, 32, 3])
        return image - tf.constant([123.68, 116.78, 103.94])

    def input_fn(is_training: bool) -> Any:
        files = tf.data.Dataset.list_files(str(shards / "train-*-of-00004"), shuffle=is_training)
        dataset = files.interleave(
            tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE
        )
        options = tf.data.Options()
        options.experimental_deterministic = False
        options.threading.private_threadpool_size = 4
        dataset = dataset.with_options(options).prefetch(buffer_size=16)
        if is_training:
            dataset = dataset.shuffle(buffer_size=24).repeat(2)

        def parse_record(raw: Any) -> Any:
            image_buffer, label = parse_example_proto(raw)
            return preprocess(image_buffer, is_training), label

        dataset = dataset.map(parse_record, num_parallel_calls=tf.data.AUTOTUNE)
        return dataset.batch(16, drop_remainder=is_training).prefetch(tf.data.AUTOTUNE)

    batches = list(input_fn(False))
    assert [image.shape for image, _ in batches] == [(16, 32, 32, 3)] * 3
    labels = np.concatenate([label for _, label in batches])
    assert labels.dtype == np.int32
    # Four files in turn.
    assert labels.tolist() == [12 * shard + number for number in range(12) for shard in range(4)]
    pixels = np.asarray(Image.open(io.BytesIO(photo(0))))
    # The middle 32 of 40 rows, so the middle 38 of 48.
    middle = pixels[5:43, 13:51].mean(axis=(0, 1)) - [123.68, 116.78, 103.94]
    assert np.abs(batches[0][0][0].mean(axis=(0, 1)) - middle).max() < 2
    training = list(input_fn(True))
    assert len(training) == 6
    seen = np.concatenate([label for _, label in training])
    assert sorted(seen) == sorted([*range(48), *range(48)])
    assert sorted(seen[:48]) == list(range(48))
    assert seen[:48].tolist() != seen[48:].tolist()


# Order.


def test_shuffle_is_a_permutation_anew_for_every_pass() -> None:
    dataset = D.range(100).shuffle(100)
    first, second = ([int(x) for x in dataset] for _ in range(2))
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert first != list(range(100))
    fixed = D.range(100).shuffle(100, reshuffle_each_iteration=False)
    assert list(fixed) == list(fixed)
    repeated = [int(x) for x in dataset.repeat(2)]
    assert sorted(repeated[:100]) == list(range(100))
    assert repeated[:100] != repeated[100:]


def test_a_seed_makes_the_passes_reproducible() -> None:
    def passes(seed: Any) -> list[Any]:
        dataset = D.range(50).shuffle(20, seed=seed)
        return [[int(x) for x in dataset] for _ in range(2)]

    assert passes(5) == passes(5) != passes(6)
    tf.random.set_seed(3)
    first = passes(None)
    tf.random.set_seed(3)
    assert passes(None) == first
    tf.random.set_seed(4)
    assert passes(None) != first


def test_a_small_buffer_moves_elements_only_so_far_ahead() -> None:
    order = [int(x) for x in D.range(200).shuffle(10, seed=1)]
    assert all(value < place + 10 for place, value in enumerate(order))
    assert order != list(range(200))


def test_list_files_is_shuffled_unless_told_otherwise(tmp_path: Path) -> None:
    for number in range(20):
        (tmp_path / f"{number:02d}.x").touch()
    pattern = str(tmp_path / "*.x")
    names = sorted(str(path).encode() for path in tmp_path.iterdir())
    assert list(D.list_files(pattern, shuffle=False)) == names
    shuffled = [list(D.list_files(pattern, seed=1)) for _ in range(2)]
    assert shuffled[0] == shuffled[1] != names
    assert sorted(shuffled[0]) == names


def test_parallel_maps_keep_the_order() -> None:
    def slow(x: Any) -> Any:
        time.sleep(0.002 * (int(x) % 3))
        return x * 10

    result = [int(x) for x in D.range(60).map(slow, num_parallel_calls=4).prefetch(3)]
    assert result == [10 * x for x in range(60)]


def test_parallel_calls_do_run_at_the_same_time() -> None:
    meet = threading.Barrier(3, timeout=processes.PATIENCE)
    result = [int(x) for x in D.range(9).map(lambda x: (meet.wait(), x)[1], num_parallel_calls=3)]
    assert result == list(range(9))


def test_interleave_with_parallel_calls_reads_ahead_in_order() -> None:
    lengths = D.from_tensor_slices([4, 2, 5]).interleave(
        lambda n: D.range(int(n)).map(lambda x: x + 100 * int(n)), cycle_length=2, num_parallel_calls=2
    )
    assert [int(x) for x in lengths] == [400, 200, 401, 201, 402, 403, 500, 501, 502, 503, 504]


# Threads.


def workers() -> list[str]:
    return [item.name for item in threading.enumerate() if item.name.startswith("batchplant-tfrecord")]


def settle() -> list[str]:
    """The threads that are left, once those that were told to stop have had time to."""
    gc.collect()
    deadline = time.monotonic() + processes.PATIENCE
    while workers() and time.monotonic() < deadline:
        time.sleep(0.01)
    return workers()


def test_a_break_ends_the_threads() -> None:
    assert settle() == []
    endless = D.range(10).repeat().map(lambda x: x + 1, num_parallel_calls=3).batch(2).prefetch(2)
    for number, _ in enumerate(endless):
        if number == 5:
            assert len(workers()) == 4
            break
    assert settle() == []


def test_an_error_comes_through_and_ends_the_threads() -> None:
    def bad(x: Any) -> Any:
        if int(x) == 7:
            raise KeyError("seven")
        return x

    for dataset in (
        D.range(20).map(bad),
        D.range(20).map(bad, num_parallel_calls=4),
        D.range(20).map(bad, num_parallel_calls=4).prefetch(2),
    ):
        seen: list[int] = []
        with pytest.raises(KeyError, match="seven"):
            seen.extend(int(item) for item in dataset)
        assert seen == list(range(7))
    del dataset
    assert settle() == []


def test_what_comes_behind_an_error_can_be_had() -> None:
    def bad(x: Any) -> Any:
        if int(x) % 3 == 1:
            raise bp.DecodeError("no")
        return x

    for dataset in (
        D.range(8).map(bad),
        D.range(8).map(bad, num_parallel_calls=4),
        D.range(8).map(bad, num_parallel_calls=2).prefetch(2),
    ):
        assert [int(x) for x in dataset.ignore_errors()] == [0, 2, 3, 5, 6]
    with pytest.warns(UserWarning, match="left out: no"):
        list(D.range(2).map(bad).ignore_errors(log_warning=True))


def test_prefetch_runs_no_further_ahead_than_it_should() -> None:
    result: list[int] = []

    def note(x: Any) -> Any:
        result.append(int(x))
        return x

    iterator = iter(D.range(100).map(note).prefetch(3))
    next(iterator)
    time.sleep(0.2)
    # One was taken, three wait, and one may be on its way.
    assert len(result) <= 5


@pytest.mark.parametrize(
    "end",
    [
        "hold",
        "interrupt",
        pytest.param("break", marks=pytest.mark.exhaustive),
        pytest.param("error", marks=pytest.mark.exhaustive),
    ],
)
def test_a_process_ends_whatever_its_iterators_do(end: str, tmp_path: Path) -> None:
    code = f"""
import sys, time
import batchplant.tfrecord as tf
data = open(sys.argv[1], "rb").read()
ds = tf.data.Dataset.range(10).repeat().map(lambda x: tf.io.decode_jpeg(data), num_parallel_calls=3)
ds = ds.batch(4).prefetch(2)
it = iter(ds)
next(it)
print("ready", flush=True)
if {end!r} == "break":
    del it
elif {end!r} == "error":
    raise RuntimeError("mine")
elif {end!r} == "interrupt":
    for _ in it:
        pass
"""
    (tmp_path / "x.jpg").write_bytes(photo(0, (400, 300)))
    command = [sys.executable, "-c", code, tmp_path / "x.jpg"]
    with processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if end == "interrupt":
            process.send_signal(signal.SIGINT)
        _, output = process.communicate(timeout=processes.PATIENCE)
    if end == "interrupt":
        assert "KeyboardInterrupt" in output
        assert process.returncode in (1, -signal.SIGINT, 130)
    else:
        assert process.returncode == (1 if end == "error" else 0), output


def test_a_forked_process_is_told_to_iterate_anew() -> None:
    code = """
import os, sys
import batchplant.tfrecord as tf
ds = tf.data.Dataset.range(10).prefetch(2)
it = iter(ds)
next(it)
if os.fork() == 0:
    try:
        next(it)
    except Exception as error:
        good = "forked" in str(error) and len(list(ds)) == 10
        os._exit(0 if good else 3)
    os._exit(4)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = processes.run([sys.executable, "-W", "ignore", "-c", code])
    assert done.returncode == 0


# Datasets.


def test_values_are_numpy() -> None:
    [element] = D.from_tensors({"a": [1, 2], "s": "text", "x": 1.5})
    assert isinstance(element["a"], np.ndarray)
    assert isinstance(element["s"], bytes)
    assert element["s"] == "text" == element["s"].decode()
    assert element["a"].dtype == tf.int32
    assert element["x"].dtype == np.float32
    [plain] = D.from_tensors({"a": [1, 2], "s": "text", "x": 1.5}).as_numpy_iterator()
    assert type(plain["a"]) is np.ndarray
    assert type(plain["s"]) is bytes
    assert type(plain["x"]) is np.float32
    # Results of arithmetic are tensors too, down to single numbers.
    total = (tf.constant([1, 2]) * 2).sum()
    assert total.numpy() == 6
    assert np.dtype(tf.float32) == np.float32
    assert np.zeros(2, tf.int64).dtype == tf.int64
    assert tf.float32.max == np.finfo(np.float32).max
    assert tf.string != tf.int64
    assert tf.bool == np.bool_


def test_strings_keep_every_byte() -> None:
    values = [b"a\0b\0", b"", b"\0", bytes(range(256))]
    assert list(D.from_tensor_slices(values)) == values
    [batch] = D.from_tensor_slices(values).batch(4)
    assert batch.tolist() == values
    assert tf.io.parse_tensor(tf.io.serialize_tensor(values), tf.string).tolist() == values


def test_sparse_values_batch_and_unbatch() -> None:
    sparse = [tf.SparseTensor([[number]], [number * 10], [number + 1]) for number in range(3)]
    [batch] = D.from_generator(lambda: iter(sparse)).batch(3)
    assert tf.sparse.to_dense(batch).tolist() == [[0, 0, 0], [0, 10, 0], [0, 0, 20]]
    rows = list(D.from_tensors(batch).unbatch())
    assert [tf.sparse.to_dense(row).tolist() for row in rows] == [[0, 0, 0], [0, 10, 0], [0, 0, 20]]


def test_a_cache_is_filled_once_and_only_by_a_whole_pass() -> None:
    result: list[int] = []

    def note(x: Any) -> Any:
        result.append(int(x))
        return x

    dataset = D.range(4).map(note).cache()
    assert [int(x) for x in dataset.take(2)] == [0, 1]
    for _ in range(3):
        assert [int(x) for x in dataset] == [0, 1, 2, 3]
    assert len(result) <= 2 + 4


def test_iterators() -> None:
    iterator = iter(D.range(2))
    assert [int(iterator.get_next()), int(next(iterator))] == [0, 1]
    with pytest.raises(tf.errors.OutOfRangeError):
        iterator.get_next()
    assert D.range(1).get_single_element() == 0
    assert len(D.range(10).batch(3)) == 4
    with pytest.raises(TypeError):
        len(D.range(3).repeat())
    spec = D.from_tensors({"a": np.zeros((2, 3))}).element_spec
    assert spec == {"a": tf.TensorSpec([2, 3], tf.float64)}


def test_what_is_not_mirrored_says_so(tmp_path: Path) -> None:
    with pytest.raises(AttributeError, match=r"batchplant\.tfrecord has no 'keras'"):
        _ = tf.keras
    with pytest.raises(AttributeError, match=r"batchplant\.tfrecord\.image has no 'random_crop'"):
        _ = tf.image.random_crop
    with pytest.raises(AttributeError, match="does not mirror the dataset method 'rejection_resample'"):
        D.range(1).rejection_resample("x")
    with pytest.raises(bp.OptionError, match="not mirrored"):
        tf.io.decode_jpeg(photo(0), ratio=2)
    with pytest.raises(bp.OptionError, match="compression_type"):
        tf.data.TFRecordDataset("x", compression_type="LZ4")
    with pytest.raises(bp.OptionError, match=r"cache\(filename\) is not mirrored"):
        D.range(1).cache("elements")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.range(3).batch(0), "batch_size must be at least 1"),
        (lambda: D.range(3).shuffle(0), "buffer_size must be at least 1"),
        (lambda: D.range(3).shard(2, 2), "index must be from 0 to 1"),
        (lambda: list(D.range(3).flat_map(lambda x: x)), "must return a dataset"),
        (lambda: D.zip((1, 2)), "zip needs datasets"),
        (lambda: D.from_generator([1, 2]), "a function that makes an iterator"),
        (lambda: tf.io.FixedLenFeature([], tf.int32), "holds string, int64 and float32"),
        (lambda: tf.io.FixedLenFeature([None], tf.int64), "must be known"),
        (lambda: tf.io.parse_single_example(b"", {}), "must be a dict"),
        (lambda: tf.image.resize(np.zeros((4, 4, 3)), (2, 2), "cubist"), "not mirrored"),
        (lambda: tf.image.resize(np.zeros((4, 4, 3)), (2, 2), antialias=True), "not mirrored"),
    ],
)
def test_wrong_arguments(make: Any, message: str) -> None:
    with pytest.raises(bp.OptionError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: list(D.from_generator(lambda: iter([[1], [1, 2]])).batch(2)), "one shape and type"),
        (lambda: list(D.from_generator(lambda: iter([1, 2.0])).batch(2)), "one shape and type"),
        (lambda: D.from_tensor_slices(([1, 2], [3])), "differ in their first dimension"),
        (lambda: D.from_tensor_slices(3), "no rows"),
        (lambda: list(D.from_generator(lambda: iter([{"a": 1}, {"b": 1}])).batch(2)), "structures differ"),
        (lambda: list(D.from_generator(lambda: iter(["x"]), output_types=tf.int64)), "no int64"),
        (
            lambda: list(
                D.from_generator(lambda: iter([[1]]), output_signature=tf.TensorSpec([2], tf.int64))
            ),
            "shape",
        ),
        (lambda: tf.constant(2**40), "does not fit int32"),
        (lambda: tf.constant(None), "None is no value"),
        (lambda: tf.constant(300, tf.uint8), "does not fit uint8"),
        (lambda: tf.reshape([1, 2, 3], [2, 2]), "do not make the shape"),
        (lambda: tf.constant([1, 2]).set_shape([3]), "shape"),
        (lambda: tf.sparse.to_dense(tf.SparseTensor([[5]], [1], [2])), "outside"),
        (lambda: tf.sparse.to_dense(tf.SparseTensor([[5]], [1], [2**40])), "do not fit an array"),
        (lambda: tf.train.BytesList(value=["text"]), "holds bytes, not str"),
        (lambda: tf.train.Int64List(value=[1.5]), "holds integers"),
        (lambda: tf.train.Int64List(value=np.array([1.5, 2.0])), "holds integers"),
        (lambda: tf.train.Int64List(value=np.array([1, 2**63], np.uint64)), "does not fit"),
        (lambda: tf.train.FloatList(value=[1.0, "x"]), "holds numbers"),
        (lambda: tf.train.Int64List(value=[2**63]), "does not fit"),
        (lambda: tf.train.Features(feature={"a": 1}), "Feature is needed"),
    ],
)
def test_values_that_do_not_fit(make: Any, message: str) -> None:
    with pytest.raises(bp.SchemaError, match=message):
        make()


# Messages.


def test_messages_behave_like_protobuf() -> None:
    example = tf.train.Example()
    feature = example.features.feature["a"]
    assert feature.WhichOneof("kind") is None
    feature.int64_list.value.append(np.int32(4))
    feature.int64_list.value += [5]
    assert example.features.feature["a"].int64_list.value == [4, 5]
    assert feature.HasField("int64_list")
    # Setting another list drops the first.
    feature.float_list.value.extend([0.1])
    assert feature.WhichOneof("kind") == "float_list"
    assert feature.int64_list.value == []
    assert feature.float_list.value == [float(np.float32(0.1))]
    for floats in ([0.1, 2.5, 1e40], np.array([0.1, 2.5, 1e40]), iter([0.1, 2.5, 1e40]), [0.1, 2.5, np.inf]):
        assert tf.train.FloatList(value=floats).value == [float(np.float32(0.1)), 2.5, np.inf]
    for ints in ([1, True, np.int8(-3)], np.array([1, 1, -3]), np.array([1, 1, -3], np.int8), (1, 1, -3)):
        assert tf.train.Int64List(value=ints).value == [1, 1, -3]
    other = tf.train.Example()
    other.CopyFrom(example)
    assert other == example
    other.features.feature["b"].bytes_list.value[:] = [b"x", b"y"]
    assert other != example
    assert pickle.loads(pickle.dumps(other)) == other
    example.MergeFrom(other)
    assert set(example.features.feature) == {"a", "b"}
    assert "c" not in example.features.feature
    with pytest.raises(bp.SchemaError, match="CopyFrom"):
        example.features.feature["a"] = feature
    with pytest.raises(bp.SchemaError, match="cannot be assigned"):
        feature.float_list.value = [1]
    example.Clear()
    assert example.SerializeToString() == b""
    sequence = tf.train.SequenceExample()
    sequence.context.feature["id"].bytes_list.value.append(b"1")
    sequence.feature_lists.feature_list["t"].feature.add().int64_list.value.append(3)
    again = tf.train.SequenceExample.FromString(sequence.SerializeToString())
    assert again == sequence
    assert again.feature_lists.feature_list["t"].feature[0].int64_list.value == [3]
    assert 'key: "t"' in str(again)


values = st.one_of(
    st.tuples(st.just("bytes_list"), st.lists(st.binary(max_size=20), max_size=4)),
    st.tuples(st.just("float_list"), st.lists(st.floats(width=32, allow_nan=False), max_size=4)),
    st.tuples(st.just("int64_list"), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)),
)
LISTS = {
    "bytes_list": tf.train.BytesList,
    "float_list": tf.train.FloatList,
    "int64_list": tf.train.Int64List,
}


def message(content: dict[str, tuple[str, list[Any]]]) -> Any:
    features = {name: tf.train.Feature(**{kind: LISTS[kind](value=v)}) for name, (kind, v) in content.items()}
    return tf.train.Example(features=tf.train.Features(feature=features))


@given(st.dictionaries(st.text(max_size=6), values, max_size=5))
def test_any_example_survives(content: dict[str, tuple[str, list[Any]]]) -> None:
    data = message(content).SerializeToString()
    again = tf.train.Example.FromString(data)
    assert {
        name: (value.WhichOneof("kind"), list(getattr(value, value.WhichOneof("kind")).value))
        for name, value in again.features.feature.items()
    } == content
    assert again.SerializeToString() == data
    for name, (kind, items) in content.items():
        dtype = {"bytes_list": tf.string, "float_list": tf.float32, "int64_list": tf.int64}[kind]
        parsed = tf.io.parse_single_example(data, {name: tf.io.VarLenFeature(dtype)})[name]
        assert parsed.values.tolist() == items
        fixed = tf.io.parse_example([data, data], {name: tf.io.FixedLenFeature([len(items)], dtype)})[name]
        assert fixed.tolist() == [items, items]


@given(st.dictionaries(st.text(max_size=6), values, max_size=4), st.data())
def test_damaged_messages_are_refused_or_read(content: dict[str, Any], data: st.DataObject) -> None:
    good = bytearray(message(content).SerializeToString())
    for _ in range(data.draw(st.integers(0, 3))):
        if good:
            good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    bad = bytes(good[: data.draw(st.integers(0, len(good)))])
    features = {"a": tf.io.VarLenFeature(tf.int64), "": tf.io.FixedLenFeature([1], tf.float32, [0.0])}
    for parse in (
        tf.train.Example.FromString,
        tf.train.SequenceExample.FromString,
        lambda item: tf.io.parse_single_example(item, features),
        lambda item: tf.io.parse_single_sequence_example(item, None, {"a": tf.io.VarLenFeature(tf.int64)}),
        lambda item: tf.io.parse_tensor(item, tf.float32),
    ):
        try:
            parse(bad)
        except bp.BatchplantError:
            continue


def test_the_native_writer_writes_the_same_bytes() -> None:
    serialize_to_string = message(
        {"b": ("int64_list", [1, -1, 2**40]), "a": ("float_list", [0.5, 2.0])}
    ).SerializeToString()
    ints, floats = np.array([1, -1, 2**40]), np.array([0.5, 2.0], dtype=np.float32)
    zero = np.zeros(1, dtype=np.int64)
    sources = [
        (b"b", 3, ints.view(np.uint8), zero, np.array([24]), None),
        (b"a", 2, floats.view(np.uint8), zero, np.array([8]), None),
    ]
    assert bytes(_native.example_write(1, sources)[0]) == serialize_to_string


@given(st.binary(max_size=60))
def test_damaged_tensors_are_refused_or_read(data: bytes) -> None:
    for kind in (tf.string, tf.float16, tf.int64):
        head = b"\x08" + protobuf.varint({"string": 7, "float16": 19, "int64": 9}[kind.name])
        for tail in (data, protobuf.block(2, protobuf.block(2, b"\x08\x03")) + data, protobuf.block(4, data)):
            try:
                tf.io.parse_tensor(head + tail, kind)
            except bp.BatchplantError:
                continue


def test_a_tensor_that_claims_too_much_takes_no_memory() -> None:
    huge = protobuf.block(2, protobuf.block(2, b"\x08" + protobuf.varint(2**40)))
    for tail in (b"", protobuf.block(4, b"1234"), protobuf.block(10, b"\x01"), protobuf.block(8, b"x")):
        for code in (9, 7):
            with pytest.raises(bp.DecodeError):
                tf.io.parse_tensor(
                    b"\x08" + bytes([code]) + huge + tail, tf.int64 if code == 9 else tf.string
                )


def test_errors_of_parsing_name_their_place() -> None:
    good = message({"a": ("int64_list", [1])}).SerializeToString()
    other = message({"a": ("float_list", [1.0])}).SerializeToString()
    wanted = {"a": tf.io.FixedLenFeature([], tf.int64)}
    with pytest.raises(bp.SchemaError, match="float32, not int64") as caught:
        tf.io.parse_example([good, other], wanted)
    assert (caught.value.sample, caught.value.field) == (1, "a")
    with pytest.raises(bp.FieldNameError) as caught:
        tf.io.parse_example([good, good, b""], wanted)
    assert (caught.value.sample, caught.value.field) == (2, "a")
    with pytest.raises(bp.DecodeError) as caught:
        tf.io.parse_example([good, b"\x0a\xff"], wanted)
    assert caught.value.sample == 1
    with pytest.raises(tf.errors.InvalidArgumentError):
        tf.io.parse_single_example(other, wanted)
    assert parsing.parse_example([], {"a": tf.io.VarLenFeature(tf.int64)})["a"].shape == (0, 0)


# Files.


def write(path: Path, records: list[bytes], compression: str = "") -> Path:
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_files_of_every_size(tmp_path: Path, compression: str) -> None:
    rng = random.Random(0)
    for number, sizes in enumerate(([], [0], [0, 0, 1], [3_000_000, 5, 0], [700] * 4000)):
        records = [rng.randbytes(size) for size in sizes]
        path = write(tmp_path / str(number), records, compression)
        assert list(tf.data.TFRecordDataset(path, compression)) == records
    # As after `cat a.gz b.gz`.
    joined = tmp_path / "joined"
    joined.write_bytes(b"".join(write(tmp_path / n, [b"x", b"yy"], compression).read_bytes() for n in "ab"))
    assert list(tf.data.TFRecordDataset(joined, compression)) == [b"x", b"yy", b"x", b"yy"]


@pytest.mark.parametrize("compression", ["", "GZIP", "ZLIB"])
def test_damaged_files_are_told_of(tmp_path: Path, compression: str) -> None:
    rng = random.Random(1)
    records = [rng.randbytes(size) for size in (10, 60, 5)]
    good = write(tmp_path / "good", records, compression).read_bytes()
    bad = tmp_path / "bad"

    def outcome(content: bytes) -> list[bytes] | str | None:
        bad.write_bytes(content)
        try:
            return list(tf.data.TFRecordDataset(bad, compression))
        except tf.errors.DataLossError as error:
            return error.path

    # A plain file that is cut between two records looks whole.
    whole = {} if compression else {16 + 10: records[:1], 16 + 10 + 16 + 60: records[:2]}
    step = 1 if EXHAUSTIVE else 3
    for cut in sorted({*range(1, len(good), step), *whole}):
        assert outcome(good[:cut]) == whole.get(cut, str(bad))
    for place in range(0, len(good), step):
        flipped = bytearray(good)
        flipped[place] ^= 1 << rng.randrange(8)
        # Some bits of a GZIP or ZLIB header mean nothing.
        assert outcome(bytes(flipped)) in ([str(bad), records] if compression else [str(bad)])


def test_a_wrong_compression_is_named(tmp_path: Path) -> None:
    for kind in ("GZIP", "ZLIB"):
        path = write(tmp_path / kind, [b"x" * 100], kind)
        with pytest.raises(bp.DamagedError, match=f"compression_type='{kind}'"):
            list(tf.data.TFRecordDataset(path))
    with pytest.raises(bp.DamagedError, match="gzip"):
        list(tf.data.TFRecordDataset(write(tmp_path / "plain", [b"x" * 100]), "GZIP"))


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.tfrecord"
    writer = tf.io.TFRecordWriter(str(path))
    writer.write(b"one")
    writer.flush()
    assert not path.exists()
    writer.close()
    writer.close()
    assert list(tf.data.TFRecordDataset(path)) == [b"one"]
    with pytest.raises(bp.OptionError, match="closed"):
        writer.write(b"two")

    def fail() -> None:
        with tf.io.TFRecordWriter(str(path)) as writer:
            writer.write(b"two")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert list(tf.data.TFRecordDataset(path)) == [b"one"]
    # A script that forgets to close it.
    writer = tf.io.TFRecordWriter(str(path))
    writer.write(b"three")
    del writer
    gc.collect()
    assert list(tf.data.TFRecordDataset(path)) == [b"three"]
    assert os.listdir(tmp_path) == ["x.tfrecord"]


def test_the_core_reads_what_the_mirror_writes(shards: Path) -> None:
    reader = bp.open(str(shards / "train-00001-of-00004"), format="tfrecord")
    assert len(reader) == 12
    assert int(reader[3]["image/class/label"]) == 15


def test_files_of_the_system(tmp_path: Path) -> None:
    name = str(tmp_path / "a" / "b.txt")
    tf.io.write_file(name, "text")
    assert tf.io.read_file(name) == b"text"
    assert tf.io.gfile.exists(name)
    assert tf.io.gfile.glob(str(tmp_path / "*" / "*.txt")) == [name]
    assert tf.io.matching_files(str(tmp_path / "*" / "*")).tolist() == [name.encode()]
    tf.io.gfile.remove(name)
    with pytest.raises(tf.errors.NotFoundError):
        tf.io.read_file(name)
    with pytest.raises(tf.errors.NotFoundError, match="no file matches"):
        D.list_files(str(tmp_path / "*.nothing"))


# Images.


def test_bytes_that_are_no_image() -> None:
    for data in (b"", b"hello", photo(0)[:200], photo(0)[:-400]):
        for decode in (tf.io.decode_jpeg, tf.io.decode_image, tf.io.decode_png):
            with pytest.raises(bp.DecodeError):
                decode(data)


def test_strings_compare_and_hash_like_bytes() -> None:
    string = String(b"abc")
    assert string == "abc"
    assert string != "abd"
    assert {string: 1}[b"abc"] == 1
    assert (string + "d") == b"abcd"


def test_values_can_be_pickled() -> None:
    for value in (tf.constant([1, 2]), tf.constant(3), tf.constant(b"a\0"), tf.SparseTensor([[1]], [2], [3])):
        again = pickle.loads(pickle.dumps(value))
        assert type(again) is type(value)
        assert repr(again) == repr(value)


def test_the_guide_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = (repository.ROOT / "docs" / "guides" / "from-tfdata.md").read_text("utf-8")
    names: dict[str, object] = {"__name__": "example"}
    printed = ""
    for kind, text in re.findall(r"^```(\w+)\n(.*?)^```$", page, re.MULTILINE | re.DOTALL):
        if kind == "text":
            assert printed == text
            continue
        with contextlib.redirect_stdout(io.StringIO()) as shown:
            exec(compile(text, "from-tfdata.md", "exec"), names)
        printed = shown.getvalue()
    assert printed
    # Every name that the guide promises is there.
    listed = page.partition("## What is supported")[2].partition("\n\nAnything else")[0]
    parts = {"tf.io": tf.io, "tf.train": tf.train, "tf.data": tf.data, "tf.image": tf.image, "tf": tf}
    for part, module in parts.items():
        text = listed.partition(f"**{part}**")[2].partition("- **")[0]
        for name in re.findall(r"`(\w+)`", text):
            assert hasattr(module, name) or hasattr(D, name) or hasattr(tf.train.Feature, name), (part, name)
