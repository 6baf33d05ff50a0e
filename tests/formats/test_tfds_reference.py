"""TensorFlow Datasets itself, where it is installed: both read the other, without TensorFlow."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media import image

pytestmark = pytest.mark.reference

tfds = pytest.importorskip("tensorflow_datasets")

LENGTHS = (4, 2, 5)
IMAGES = np.random.default_rng(0).integers(0, 256, (sum(LENGTHS), 6, 8, 3), dtype=np.uint8)


def samples() -> list[dict[str, Any]]:
    """The steps of three episodes."""
    return [
        {
            "observation.image": IMAGES[number],
            "observation.state": np.arange(3, dtype=np.float32) + number,
            "action": np.array([number, -number], np.float64),
            "reward": np.float32(number / 2),
            "is_last": number in np.cumsum(LENGTHS) - 1,
            "task": f"task {number // 4}",
            "episode_index": int(np.searchsorted(np.cumsum(LENGTHS), number, side="right")),
        }
        for number in range(sum(LENGTHS))
    ]


def test_it_reads_the_episodes_that_we_write(tmp_path: Path) -> None:
    kinds: dict[str, Any] = {
        "observation.image": bp.Image("png"), "observation.state": bp.Tensor("float32", (3,)),
        "action": bp.Tensor("float64", (2,)), "reward": bp.Float("float32"), "is_last": bp.Bool(),
        "task": bp.Text(), "episode_index": bp.Int(),
    }  # fmt: skip
    with bp.create(tmp_path / "made.rlds", kinds) as out:
        for sample in samples():
            out.append({**sample, "observation.image": image.encode(sample["observation.image"], "png")})
    info = tfds.builder_from_directory(tmp_path / "made.rlds").info
    split = info.splits["train"]
    assert split.num_examples == 3
    files = [str(tmp_path / "made.rlds" / name) for name in split.filenames]
    records = bp.open(sorted(files), format="tfrecord", records="raw", schema={"data": bp.Bytes()})
    steps = [
        step
        for number in range(3)
        for step in info.features.deserialize_example_np(records[number]["data"])["steps"]
    ]
    assert len(steps) == sum(LENGTHS)
    for step, sample in zip(steps, samples(), strict=True):
        for name in sample.keys() - {"episode_index"}:
            value: Any = step
            for part in name.split("."):
                value = value[part]
            expected = sample[name].encode() if name == "task" else sample[name]
            assert np.array_equal(value, expected), name


@pytest.mark.parametrize("steps", ["flat", "episodes"])
def test_we_read_the_records_that_it_serialises(steps: str, tmp_path: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    kinds = tfds.features
    step = {
        "observation": {
            "image": kinds.Image(shape=(6, 8, 3), encoding_format="png"),
            "state": kinds.Tensor(shape=(3,), dtype=np.float32),
        },
        "action": kinds.Tensor(shape=(2,), dtype=np.float64),
        "reward": kinds.Scalar(np.float32),
        "is_last": kinds.Scalar(np.bool_),
        "task": kinds.Text(),
    }
    features = kinds.FeaturesDict({"steps": kinds.Dataset(step), "about": {"file": kinds.Text()}})
    folder = tmp_path / "made"
    folder.mkdir()
    features.save_config(folder)
    writer = ArrayRecordWriter(str(folder / "made-train.array_record-00000-of-00001"), "group_size:1")
    for episode in range(3):
        rows = [
            {
                "observation": {
                    "image": io.BytesIO(image.encode(sample["observation.image"], "png")),
                    "state": sample["observation.state"],
                },
                **{name: sample[name] for name in ("action", "reward", "is_last", "task")},
            }
            for sample in samples()
            if sample["episode_index"] == episode
        ]
        writer.write(features.serialize_example({"steps": rows, "about": {"file": f"{episode}.h5"}}))
    writer.close()
    split = {"name": "train", "shardLengths": ["3"]}
    info = {"name": "made", "fileFormat": "array_record", "splits": [split]}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    with bp.open(folder, steps=steps) as reader:
        if steps == "episodes":
            assert [len(reader[n]["reward"]) for n in range(3)] == list(LENGTHS)
            return
        assert reader.boundaries().tolist() == [4, 6]
        for number, sample in enumerate(samples()):
            row = reader[number]
            assert all(np.array_equal(row[name], value) for name, value in sample.items())
            assert row["about.file"] == f"{sample['episode_index']}.h5"
