"""Virtual Zarr: documents of kerchunk over HDF5 and raw files; what they must not name."""

import base64
import json
import pickle

import numpy as np
import pytest

import batchplant as bp
from variants import in_one_test

VALUES = np.arange(6 * 4 * 5, dtype="<i4").reshape(6, 4, 5)


def array(shape, chunks, dtype="<i4"):
    document = {
        "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": dtype, "compressor": None,
        "fill_value": -1, "order": "C", "filters": None,
    }  # fmt: skip
    return json.dumps(document)


def references(path, target="data/raw.bin", **more):
    """Two chunks of three rows in a file, behind a header; one of labels as text, and one missing."""
    (path.parent / "data").mkdir(exist_ok=True)
    (path.parent / "data/raw.bin").write_bytes(b"header" + VALUES.tobytes())
    labels = base64.b64encode(np.arange(3, dtype="<i4").tobytes()).decode()
    refs = {
        ".zgroup": '{"zarr_format": 2}',
        "x/.zarray": array([6, 4, 5], [3, 4, 5]), "x/0.0.0": [target, 6, 240], "x/1.0.0": [target, 246, 240],
        "y/.zarray": array([6], [3]), "y/0": f"base64:{labels}", **more,
    }  # fmt: skip
    path.write_text(json.dumps({"version": 1, "templates": {"u": "data"}, "refs": refs}))
    return path


@pytest.mark.parametrize("target", ["data/raw.bin", "{{u}}/raw.bin"])
def test_chunks_lie_in_other_files(target, tmp_path):
    with bp.open(references(tmp_path / "a.json", target), format="zarr") as data:
        assert np.array_equal(data.read(range(6))["x"], VALUES)
        assert data.read(range(6))["y"].tolist() == [0, 1, 2, -1, -1, -1]
        assert np.array_equal(data.array("x")[2:5, 1:3, ::2], VALUES[2:5, 1:3, ::2])
        assert np.array_equal(pickle.loads(pickle.dumps(data))[4]["x"], VALUES[4])
        assert data.ranges(["x"], [1, 4]) is None or len(data.ranges(["x"], [1, 4]))
    assert bp.verify(tmp_path / "a.json", format="zarr").ok


OUTSIDE = ["../raw.bin", "/etc/passwd", "s3://bucket/raw.bin", "file:///etc/passwd", "http://127.0.0.1:1/x"]


@in_one_test("target", OUTSIDE)
def test_nothing_outside_is_read(target, tmp_path):
    with (
        bp.open(references(tmp_path / "a.json", target), format="zarr") as data,
        pytest.raises(bp.UnsafeError),
    ):
        data.read([0])


def test_what_is_allowed(tmp_path):
    references(tmp_path / "b.json")
    (tmp_path / "inner").mkdir()
    path = references(tmp_path / "inner/a.json", str(tmp_path / "data/raw.bin"))
    with bp.open(path, format="zarr", outside=[str(tmp_path / "data")]) as data:
        assert np.array_equal(data[5]["x"], VALUES[5])
    for wrong in (tmp_path / "dat", tmp_path / "other"):
        with bp.open(path, format="zarr", outside=[str(wrong)]) as data, pytest.raises(bp.UnsafeError):
            data.read([0])
    for outside in (str(tmp_path / "data"), True):
        with bp.open(path, format="zarr", outside=outside) as data:
            assert np.array_equal(data[5]["x"], VALUES[5])
    path = references(tmp_path / "inner/a.json", f"{tmp_path}/data/../data/raw.bin")
    with (
        bp.open(path, format="zarr", outside=[str(tmp_path / "data")]) as data,
        pytest.raises(bp.UnsafeError),
    ):
        data.read([0])


LIES = [
    ["data/raw.bin", 6, 10**12],
    ["data/raw.bin", -1, 240],
    ["data/raw.bin", "6", 240],
    [7],
    [],
    {},
    7,
    None,
    "base64:?",
]


@in_one_test("lie", LIES)
def test_damaged_references(lie, tmp_path):
    path = references(tmp_path / "a.json", **{"x/0.0.0": lie})
    with (
        pytest.raises((bp.DamagedError, bp.SchemaError)),
        bp.open(path, format="zarr", missing="error") as data,
    ):
        data.read(range(6))
    for text in (
        '{"version": 1}',
        '{"version": 1, "refs": 3}',
        "[]",
        '{"version": 1, "gen": [1], "refs": {}}',
        "{",
    ):
        path.write_text(text)
        with pytest.raises(bp.BatchplantError):
            bp.open(path, format="zarr")
