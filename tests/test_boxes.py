"""Boxes, keypoints and polygons: kept by formats, and moved with their picture."""

import json

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.cells import decode_bytes, encode_value
from batchplant.errors import DecodeError, SchemaError

POSE = bp.Keypoints(names=("nose", "left_eye", "right_eye"))
SCHEMA = bp.Schema(
    image=bp.Image("png"),
    boxes=bp.Boxes("xywh", labels=("label", "pose")),
    label=bp.Tensor("int64", (None,)),
    pose=POSE,
    outline=bp.Polygons(),
)


def sample(n):
    rng = np.random.default_rng(n)
    return {
        "image": rng.integers(0, 255, (12, 16, 3), dtype=np.uint8),
        "boxes": rng.uniform(0, 8, (n, 4)).astype(np.float32),
        "label": np.arange(n),
        "pose": rng.uniform(0, 8, (n, 3, 3)).astype(np.float32),
        "outline": [[rng.uniform(0, 8, (4, 2)).reshape(-1).tolist()] for _ in range(n)],
    }


@pytest.mark.parametrize(
    "name", ["a.beton", "a.parquet", "a.npz", "a.tar", "a.tfrecord", "a.h5", "a.mds", "a.jsonl", "a.lmdb"]
)
def test_formats_keep_them(tmp_path, name):
    samples = [sample(n) for n in (2, 0, 1)]
    with bp.create(tmp_path / name, SCHEMA) as out:
        for one in samples:
            out.append(one)
    with bp.open(tmp_path / name) as reader:
        assert list(reader.schema.items())[1:] == list(SCHEMA.items())[1:]
        for found, one in zip(reader, samples, strict=True):
            for field in ("boxes", "pose"):
                np.testing.assert_array_equal(found[field], one[field])
            assert found["outline"] == one["outline"]
    bp.convert(tmp_path / name, tmp_path / "b.beton", rename={"image": "photo", "label": "class"})
    with bp.open(tmp_path / "b.beton") as reader:
        assert reader.schema["boxes"] == bp.Boxes("xywh", of="photo", labels=("class", "pose"))
        assert (reader.schema["pose"].of, reader.schema["outline"].of) == ("photo", "photo")


def test_pairs_that_a_mirror_exchanges():
    assert POSE.swap == ((1, 2),)
    assert bp.Keypoints(3, ("a", "b", "c"), swap=[("c", "a")]).swap == ((2, 0),)
    assert bp.Keypoints(3).swap == ()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("text", "a list of objects"),
        ([[1.0, 2.0]], "a ring is"),
        ([[[0, 0, 1, 1]]], "a ring is"),
        ([[[0, 0, 1, 1, 2, float("nan")]]], "a ring is"),
        ([3], "a list of rings"),
    ],
)
def test_what_is_no_polygon(value, reason):
    with pytest.raises(SchemaError, match=reason):
        encode_value(bp.Polygons(), value)
    with pytest.raises(DecodeError, match=reason):
        decode_bytes(bp.Polygons(), np.frombuffer(json.dumps(value).encode(), np.uint8))
    assert encode_value(bp.Polygons(), [[np.zeros((3, 2))], []])[0] == b"[[[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]], []]"
