"""Folders of TensorFlow Datasets: splits and slices, nested features, steps of RLDS, and damage."""

from __future__ import annotations

import json
import pickle
import struct
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchplant as bp
from batchplant._native import crc32c
from batchplant.codecs.media import image
from batchplant.data.keys import same_cells
from batchplant.testing import FormatSuite
from variants import in_one_test

CLASS = "tensorflow_datasets.core.features."


def varint(number: int) -> bytes:
    out = b""
    number &= (1 << 64) - 1
    while number > 127:
        out, number = out + bytes([number & 127 | 128]), number >> 7
    return out + bytes([number])


def message(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example_of(features: Mapping[str, Any]) -> bytes:
    """A tf.train.Example: lists of bytes, of float32 or of int64."""
    entries = b""
    for name, values in features.items():
        array = np.asarray(values) if not isinstance(values, list) else None
        if array is None:
            value = message(1, b"".join(message(1, cell) for cell in values))
        elif array.dtype.kind == "f":
            value = message(2, message(1, array.astype("<f4").tobytes()))
        else:
            value = message(3, message(1, b"".join(varint(int(number)) for number in array.reshape(-1))))
        entries += message(1, message(1, name.encode()) + message(2, value))
    return message(1, entries)


def framed(record: bytes) -> bytes:
    """A record as it lies in a TFRecord file."""
    size = struct.pack("<Q", len(record))
    sums = [crc32c(data) for data in (size, record)]
    masked = [struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF) for crc in sums]
    return size + masked[0] + record + masked[1]


def tensor(dtype: str, *sizes: int) -> dict[str, Any]:
    shape = {"dimensions": [str(size) for size in sizes]} if sizes else {}
    return {
        "pythonClassName": f"{CLASS}tensor_feature.Tensor",
        "tensor": {"shape": shape, "dtype": dtype, "encoding": "none"},
    }


def nested(**features: Any) -> dict[str, Any]:
    return {"pythonClassName": f"{CLASS}features_dict.FeaturesDict", "featuresDict": {"features": features}}


def sequence(feature: Any, kind: str = "sequence_feature.Sequence") -> dict[str, Any]:
    return {"pythonClassName": CLASS + kind, "sequence": {"feature": feature, "length": "-1"}}


PIXELS = {
    "pythonClassName": f"{CLASS}image_feature.Image",
    "image": {"shape": {"dimensions": ["8", "6", "3"]}, "dtype": "uint8", "encodingFormat": "png"},
}
TEXT = {"pythonClassName": f"{CLASS}text_feature.Text", "text": {}}


def pixels(number: int) -> np.ndarray[Any, Any]:
    return np.full((8, 6, 3), number % 256, np.uint8)


def write(
    folder: Path,
    features: Mapping[str, Any],
    shards_of: Mapping[str, Sequence[Sequence[bytes]]],
    kind: str = "tfrecord",
    **info: Any,
) -> Path:
    folder.mkdir()
    entries = []
    for split, shards in shards_of.items():
        for number, records in enumerate(shards):
            path = folder / f"tiny-{split}.{kind}-{number:05d}-of-{len(shards):05d}"
            if kind == "tfrecord":
                path.write_bytes(b"".join(map(framed, records)))
                continue
            with bp.create(path, {"data": bp.Bytes()}, format="arrayrecord") as out:
                for record in records:
                    out.append({"data": record})
        entries.append({"name": split, "shardLengths": [str(len(records)) for records in shards]})
    for file in folder.glob("*.schema.json"):
        file.unlink()
    content = {"name": "tiny", "version": "1.0.0", "fileFormat": kind, "splits": entries, **info}
    (folder / "dataset_info.json").write_text(json.dumps(content))
    (folder / "features.json").write_text(json.dumps(features))
    return folder


def pictures(folder: Path, kind: str = "tfrecord", **info: Any) -> Path:
    features = nested(
        image=PIXELS,
        label={
            "pythonClassName": f"{CLASS}class_label_feature.ClassLabel",
            "classLabel": {"numClasses": "3"},
        },
        about=nested(size=tensor("float64", 2), name=TEXT, good=tensor("bool")),
        boxes=sequence({"pythonClassName": f"{CLASS}bounding_boxes.BBoxFeature"}),
        unknown={"pythonClassName": "somebody.Else"},
    )
    records = [
        example_of(
            {
                "image": [image.encode(pixels(n), "png")], "label": np.array([n % 3]),
                "about/size": np.array([n, 0.5]), "about/name": [f"n{n}".encode()],
                "about/good": np.array([n % 2]), "boxes": np.arange(4 * (n % 3)) / 8,
            }
        )
        for n in range(20)
    ]  # fmt: skip
    path = write(
        folder, features, {"train": [records[:7], records[7:16]], "test": [records[16:]]}, kind, **info
    )
    (path / "label.labels.txt").write_text("cat\ndog\nfish\n")
    return path


LENGTHS = (4, 2, 5)


def episodes(folder: Path, kind: str = "tfrecord") -> Path:
    steps = nested(
        observation=nested(image=PIXELS, state=tensor("float32", 3)),
        action=tensor("float32", 2),
        reward=tensor("float32"),
        is_last=tensor("bool"),
        task=TEXT,
    )
    records, number = [], 0
    for episode, length in enumerate(LENGTHS):
        rows = np.arange(number, number + length)
        number += length
        state, action = np.stack([rows, rows, rows], axis=1), np.stack([rows, -rows], axis=1)
        record = {
            "steps/observation/image": [image.encode(pixels(n), "png") for n in rows],
            "steps/observation/state": state.astype(np.float32),
            "steps/action": action.astype(np.float32),
            "steps/reward": rows / 4,
            "steps/is_last": (rows == rows[-1]).astype(int),
            "steps/task": [b"push"] * length,
            "about/file": [f"{episode}.h5".encode()],
        }
        records.append(example_of(record))
    features = nested(steps=sequence(steps, "dataset_feature.Dataset"), about=nested(file=TEXT))
    return write(folder, features, {"train": [records[:2], records[2:]]}, kind)


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_splits_and_nested_features(kind: str, tmp_path: Path) -> None:
    path = pictures(tmp_path / "tiny", kind)
    with bp.open(path, split="train") as reader:
        assert (reader.format, len(reader)) == ("tfds", 16)
        assert list(reader.schema) == ["image", "label", "about.size", "about.name", "about.good", "boxes"]
        assert reader.schema["label"] == bp.Int(names=("cat", "dog", "fish"))
        sample = reader[11]
        assert (sample["image"] == 11).all()
        assert (sample["label"], sample["about.name"], sample["about.good"]) == (2, "n11", True)
        assert sample["about.size"].tolist() == [11, 0.5]
        assert sample["boxes"].shape == (2, 4)
        spans = reader.spans("image")
        assert (spans is not None) == (kind == "tfrecord")
        if spans is not None:
            cells = [spans.sources[spans.file[n]].view(spans.start[n], spans.size[n]) for n in range(16)]
            assert [int(image.decode(cell)[0, 0, 0]) for cell in cells] == list(range(16))
        assert not list(reader.verify())
        assert pickle.loads(pickle.dumps(reader))[3]["about.name"] == "n3"
        batch = next(iter(bp.Loader(reader.select(["image", "label"]), 4, order="random", seed=1)))
        assert batch["image"].shape == (4, 8, 6, 3)
    for split, rows in {
        "test": range(16, 20),
        "all": range(20),
        "train[:25%]": range(4),
        "train[-3:]": range(13, 16),
        "train[5:7]+test[:50%]": [5, 6, 16, 17],
        "test+train[:1]": [16, 17, 18, 19, 0],
        "train[90%:]": range(14, 16),
        "train[8:8]": [],
    }.items():
        with bp.open(path, split=split) as reader:
            labels = reader.read(range(len(reader)), ["about.size"])["about.size"]
            assert [int(size[0]) for size in labels] == list(rows), split
    for split in ("validation", "train[", "train[1:2:3]", "train[a:]", None):
        with pytest.raises(bp.OptionError):
            bp.open(path, split=split)


@pytest.mark.parametrize("kind", ["tfrecord", "array_record"])
def test_steps_of_episodes(kind: str, tmp_path: Path) -> None:
    path = episodes(tmp_path / "tiny", kind)
    with bp.open(path) as reader:
        assert len(reader) == 11
        assert reader.boundaries().tolist() == [4, 6]
        names = [
            "observation.image",
            "observation.state",
            "action",
            "reward",
            "is_last",
            "task",
            "about.file",
        ]
        assert list(reader.schema) == [*names, "episode_index", "frame_index"]
        rows = np.random.default_rng(2).permutation(11)
        columns = reader.read(rows)
        assert (columns["observation.state"] == rows[:, None]).all()
        assert (columns["action"] == np.stack([rows, -rows], axis=1)).all()
        assert np.flatnonzero(reader.read(range(11))["is_last"]).tolist() == [3, 5, 10]
        assert columns["episode_index"].tolist() == np.repeat([0, 1, 2], LENGTHS)[rows].tolist()
        sample = reader[7]
        assert (sample["observation.image"] == 7).all()
        assert (sample["about.file"], sample["frame_index"], sample["reward"]) == ("2.h5", 1, 1.75)
        spans = reader.spans("observation.image", [9, 0])
        if kind == "tfrecord":
            cells = [spans.sources[spans.file[n]].view(spans.start[n], spans.size[n]) for n in range(2)]
            assert [int(image.decode(cell)[0, 0, 0]) for cell in cells] == [9, 0]
        windows = bp.DeltaWindows(reader, {"action": [0, 1]})
        assert windows[5]["action_is_pad"].tolist() == [False, True]
    with bp.open(path, steps="episodes", split="train[1:]") as reader:
        assert len(reader) == 2
        assert reader[0]["action"].tolist() == [[4, -4], [5, -5]]
        assert reader[1]["observation.state"].shape == (5, 3)
        assert reader[1]["about.file"] == "2.h5"
    assert len(bp.open(path, split="train[1:2]")) == 2


def test_steps_become_a_dataset_of_lerobot(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    reader = bp.open(episodes(tmp_path / "tiny"))
    bp.convert(reader, tmp_path / "robot.lerobot", target_options={"fps": 5})
    robot = bp.open(tmp_path / "robot.lerobot")
    assert robot.boundaries().tolist() == [4, 6]
    for name in ("observation.image", "observation.state", "action", "task", "episode_index", "frame_index"):
        ours, theirs = robot.read(range(11), [name])[name], reader.read(range(11), [name])[name]
        pairs = [(ours[n].tobytes(), theirs[n].tobytes()) for n in range(11)]
        assert all(left == right for left, right in pairs), name


@in_one_test(
    "change",
    [
        {"splits": [{"name": "train", "shardLengths": ["7", "10"]}]},
        {"splits": [{"name": "train", "shardLengths": ["7", "-9"]}]},
        {"splits": [{"name": "train", "shardLengths": []}]},
        {"splits": [{"name": "train", "shardLengths": ["7", str(2**62)]}]},
        {"splits": [{"name": "train", "shardLengths": ["x"]}]},
        {"splits": [{"name": "train", "shardLengths": ["1"], "filepathTemplate": "../{DATASET}"}]},
        {"splits": [{"name": "train", "shardLengths": ["1"], "filepathTemplate": "{OTHER}"}]},
        {"splits": {"train": 3}},
        {"splits": []},
        {"name": "../tiny"},
        {"fileFormat": "riegeli"},
    ],
)
def test_hostile_metadata(change: dict[str, Any], tmp_path: Path) -> None:
    path = pictures(tmp_path / "tiny", **change)
    with pytest.raises(bp.BatchplantError):
        bp.open(path, split="train")


def test_features_that_lie(tmp_path: Path) -> None:
    path = pictures(tmp_path / "tiny")
    for features in (
        nested(image=tensor("float32")),
        nested(label=tensor("float32", 3)),
        nested(label=tensor("int64", 7)),
        nested(
            steps=sequence(nested(label=tensor("int64"), image=PIXELS), "dataset_feature.Dataset"),
            label=PIXELS,
        ),
        nested(missing=tensor("int64")),
    ):
        (path / "features.json").write_text(json.dumps(features))
        with pytest.raises(bp.DataError) as failure:
            bp.open(path, split="train").read(range(16))
        assert failure.value.path is not None
    deep: Any = PIXELS
    for _ in range(100):
        deep = nested(a=deep)
    for features in (
        [],
        {},
        {"featuresDict": 3},
        deep,
        nested(a=tensor("no-such-dtype")),
        nested(a=tensor("9" * 5000 + "i4,")),
    ):
        (path / "features.json").write_text(json.dumps(features))
        with pytest.raises(bp.BatchplantError):
            bp.open(path, split="train")


def test_a_record_that_is_damaged(tmp_path: Path) -> None:
    path = episodes(tmp_path / "tiny")
    file = path / "tiny-train.tfrecord-00001-of-00002"
    data = bytearray(file.read_bytes())
    size = struct.unpack("<Q", data[:8])[0]
    data[12 + size // 2] ^= 1
    reader = bp.open(path)
    file.write_bytes(data)
    with pytest.raises(bp.DamagedError, match="tfrecord-00001"):
        bp.open(path).read([8])
    assert reader.length == 11


class TestSuite(FormatSuite):
    format = "tfds"
    suffix = ".tfds"

    def files(self, path: str) -> list[Path]:
        # The names of classes are in the schema, too.
        return [file for file in super().files(path) if file.suffix != ".txt"]


def test_robots_become_rlds_and_come_back(tmp_path: Path) -> None:
    """LeRobot → RLDS → LeRobot → RLDS: equal tables, images byte for byte, and equal files."""
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(5)
    kinds: dict[str, Any] = {
        "observation.images.top": bp.Image("png"), "observation.raw": bp.Tensor("uint8", (6, 8, 3)),
        "observation.state": bp.Tensor("float32", (3,)), "action": bp.Tensor("float64", (2,)),
        "timestamp": bp.Float("float32"), "next.done": bp.Bool(), "task": bp.Text(),
        "episode_index": bp.Int(),
    }  # fmt: skip
    with bp.create(tmp_path / "a.lerobot", kinds, fps=5) as out:
        for episode, length in enumerate(LENGTHS):
            for frame in range(length):
                raw = rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)
                numbers = {"observation.state": rng.random(3, np.float32), "action": rng.random(2)}
                images = {"observation.raw": raw, "observation.images.top": image.encode(raw, "png")}
                done = {"next.done": frame == length - 1, "timestamp": np.float32(frame / 5)}
                out.append({**numbers, **images, **done, "task": f"t{episode}", "episode_index": episode})
    bp.convert(tmp_path / "a.lerobot", tmp_path / "b.rlds", target_options={"shard_size": 3000})
    bp.convert(tmp_path / "b.rlds", tmp_path / "c.lerobot", target_options={"fps": 5})
    bp.convert(tmp_path / "c.lerobot", tmp_path / "d.rlds", target_options={"shard_size": 3000, "name": "b"})
    readers = [bp.open(tmp_path / name) for name in ("a.lerobot", "b.rlds", "c.lerobot", "d.rlds")]
    first = readers[0].read(range(11))
    for reader in readers[1:]:
        assert reader.boundaries().tolist() == [4, 6]
        assert dict(reader.schema) == kinds
        assert all(same_cells(first[name], reader.read(range(11))[name]).all() for name in kinds)
        assert bp.verify(reader, against=readers[0]).ok
    shards = sorted(file.name for file in (tmp_path / "b.rlds").glob("*tfrecord*"))
    assert len(shards) > 1
    for file in (tmp_path / "b.rlds").iterdir():
        assert file.read_bytes() == (tmp_path / "d.rlds" / file.name).read_bytes()
    # Episodes are records of their own, with nested features as TensorFlow Datasets lays them out.
    assert len(bp.open(tmp_path / "b.rlds", steps="episodes")) == 3
    features = json.loads((tmp_path / "b.rlds/features.json").read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    assert set(steps) == {"observation", "action", "timestamp", "next", "task"}
    top = steps["observation"]["featuresDict"]["features"]["images"]["featuresDict"]["features"]["top"]
    assert top["image"]["encodingFormat"] == "png"


FIELDS: dict[str, Any] = {
    "observation.image": bp.Image("png"), "pixels": bp.Tensor("uint8", (4, 5, 3)),
    "depth": bp.Tensor("uint16", (3, 4)), "state": bp.Tensor("float32", (2,)),
    "grid": bp.Tensor("int64", (2, 2)), "reward": bp.Float("float64"), "step": bp.Int("int32"),
    "done": bp.Bool(), "task": bp.Text(),
}  # fmt: skip


@pytest.mark.exhaustive
@settings(max_examples=100, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    names=st.sets(st.sampled_from(sorted(FIELDS)), min_size=1),
    seed=st.integers(0, 2**32 - 1),
    shard_size=st.sampled_from([1, 500, 1 << 20]),
)
def test_rlds_returns_from_lerobot_as_it_was(
    lengths: list[int], names: set[str], seed: int, shard_size: int
) -> None:
    pytest.importorskip("pyarrow")
    rng = np.random.default_rng(seed)
    kinds = {name: kind for name, kind in FIELDS.items() if name in names} | {"episode_index": bp.Int()}

    def cell(kind: Any) -> Any:
        if isinstance(kind, bp.Image):
            return image.encode(rng.integers(0, 256, (4, 5, 3), dtype=np.uint8), "png")
        if isinstance(kind, bp.Text):
            return "é" * int(rng.integers(0, 4))
        if isinstance(kind, bp.Bool):
            return bool(rng.integers(2))
        shape = kind.shape if isinstance(kind, bp.Tensor) else ()
        return rng.integers(0, 100, shape).astype(kind.dtype)[()]

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with bp.create(folder / "a.lerobot", kinds, fps=5) as out:
            for episode, length in enumerate(lengths):
                for _ in range(length):
                    sample = {name: cell(kind) for name, kind in kinds.items()}
                    out.append({**sample, "episode_index": episode})
        options = {"shard_size": shard_size, "name": "a"}
        bp.convert(folder / "a.lerobot", folder / "a.rlds", target_options=options)
        bp.convert(folder / "a.rlds", folder / "b.lerobot", target_options={"fps": 5})
        bp.convert(folder / "b.lerobot", folder / "b.rlds", target_options=options)
        for file in (folder / "a.rlds").iterdir():
            assert file.read_bytes() == (folder / "b.rlds" / file.name).read_bytes(), file.name
        first, last = bp.open(folder / "a.lerobot"), bp.open(folder / "b.rlds")
        assert bp.verify(last, against=first).ok
        assert first.boundaries().tolist() == last.boundaries().tolist() == np.cumsum(lengths)[:-1].tolist()


def test_a_conversion_resumes_in_the_middle_of_an_episode(tmp_path: Path) -> None:
    count = 50
    numbers = {"action": np.arange(count, dtype=np.float32), "episode_index": np.arange(count) // 20}
    source = bp.open({**numbers, "text": ["x" * n for n in range(count)]})
    every: dict[str, Any] = {"options": bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0))}

    def interrupt(now: int, _: int) -> None:
        if now > 20:
            raise KeyboardInterrupt

    whole, stopped = tmp_path / "whole" / "a.rlds", tmp_path / "stopped" / "a.rlds"
    bp.convert(source, whole)
    with pytest.raises(KeyboardInterrupt):
        bp.convert(source, stopped, progress=interrupt, **every)
    result = bp.convert(source, stopped, resume=True)
    assert result.resumed_at % 20
    assert len(bp.open(stopped)) == count
    for file in whole.iterdir():
        assert file.read_bytes() == (stopped / file.name).read_bytes()


@in_one_test(
    ("kinds", "options"),
    [
        ({"a": bp.Int(), "a.b": bp.Int()}, {}),
        ({"a/b": bp.Int()}, {}),
        ({"a..b": bp.Int()}, {}),
        ({"episode_index": bp.Int()}, {}),
        ({"episode_index": bp.Int("int8"), "a": bp.Int()}, {}),
        ({"a": bp.Tensor("float32", (None,))}, {}),
        ({"a": bp.Int(optional=True)}, {}),
        ({"a": bp.Int()}, {"episode": "b"}),
        ({"a": bp.Int()}, {"name": "../a"}),
        ({"a": bp.Int()}, {"split": "a/b"}),
        ({"a": bp.Int()}, {"version": "x"}),
        ({"a": bp.Int()}, {"shard_size": 0}),
    ],
)
def test_what_is_not_written(kinds: dict[str, Any], options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises((bp.SchemaError, bp.OptionError)):
        bp.create(tmp_path / "a.rlds", kinds, **options)
    assert not list(tmp_path.iterdir())
