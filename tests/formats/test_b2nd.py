"""Arrays of Blosc2: values, folders that nnU-Net preprocessed, patches; damage is one error of ours."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.errors import BatchplantError, DamagedError, SchemaError
from batchplant.testing.cases import cuts, flips, memory_bounded, survive
from variants import in_one_test

blosc2 = pytest.importorskip("blosc2", reason="pip install 'batchplant[blosc2]'")

RNG = np.random.default_rng(4)


def put(path: Path, values: np.ndarray, **options) -> None:
    path.unlink(missing_ok=True)
    blosc2.asarray(values, urlpath=str(path), **options)


def preprocessed(root: Path, channels: int = 1, cases: int = 3) -> Path:
    """A folder of nnU-Net, with plans above it and a pickle that must not be loaded."""
    folder = root / "Dataset001_Hip" / "nnUNetPlans_3d_fullres"
    folder.mkdir(parents=True)
    plans = {"configurations": {"3d_fullres": {"spacing": [3.0, 0.5, 0.75]}}}
    (folder.parent / "nnUNetPlans.json").write_text(json.dumps(plans))
    for case in range(cases):
        shape = (10 + case, 14, 12)
        chunks = {"chunks": (channels, 8, 8, 8), "blocks": (1, 4, 4, 4)}
        put(folder / f"hip_{case}.b2nd", RNG.normal(size=(channels, *shape)).astype(np.float32), **chunks)
        label = (RNG.random((1, *shape)) < 0.02).astype(np.int8)
        put(folder / f"hip_{case}_seg.b2nd", label, chunks=(1, 8, 8, 8))
        (folder / f"hip_{case}.pkl").write_bytes(b"cos\nabort\n(tR.")
    return folder


@in_one_test("dtype", ["<i2", ">i2", "u1", "<f4", ">f8", "c8", "?", "u8"])
@in_one_test("shape", [(7,), (5, 6), (9, 7, 5), (2, 9, 7, 5), (1, 4, 4, 4), (2, 3, 2, 3, 2)])
def test_values_are_those_of_the_library(tmp_path, dtype, shape):
    values = (RNG.random(shape) * 9).astype(dtype)
    put(tmp_path / "a.b2nd", values)
    with bp.open(tmp_path / "a.b2nd") as data:
        assert (data.format, data[0]["name"]) == ("b2nd", "a")
        expected = np.asarray(blosc2.open(str(tmp_path / "a.b2nd"))[...])
        if len(shape) == 4:
            expected = np.moveaxis(expected, 0, -1) if shape[0] > 1 else expected[0]
        assert data[0]["image"].dtype == np.dtype(dtype).newbyteorder("=")
        assert np.array_equal(data[0]["image"], expected)


@pytest.mark.parametrize("channels", [1, 2])
def test_a_folder_of_nnunet(tmp_path, channels):
    folder = preprocessed(tmp_path, channels)
    with bp.open(folder) as data:
        assert [sample["name"] for sample in data] == ["hip_0", "hip_1", "hip_2"]
        assert data[1]["spacing"].tolist() == [3.0, 0.5, 0.75]
        stored = [np.asarray(blosc2.open(str(folder / f"hip_{case}.b2nd"))[...]) for case in range(3)]
        volumes = [np.moveaxis(values, 0, -1) if channels > 1 else values[0] for values in stored]
        patches = bp.VolumePatches(data, size=(4, 6, 5), random=20, around="label > 0", share=0.5)
        for patch in pickle.loads(pickle.dumps(patches)):
            box = tuple(slice(a, a + b) for a, b in zip(patch["position"], (4, 6, 5), strict=True))
            assert np.array_equal(patch["image"], volumes[patch["volume"]][box])
        assert sum(bool(patch["label"].any()) for patch in patches) >= 30
    with bp.open(folder, spacing=(3, 1, 1)) as data:
        assert data[0]["label"].shape == (10, 7, 9)
    assert bp.verify(folder).ok
    (folder / "hip_1_seg.b2nd").unlink()
    with pytest.raises(DamagedError, match="no label of hip_1"):
        bp.open(folder)


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damage_is_one_error(tmp_path, damage):
    values = RNG.normal(size=(1, 9, 8, 7)).astype(np.float32)
    path = tmp_path / "a.b2nd"
    put(path, values, chunks=(1, 4, 8, 7))

    def sound() -> bool:
        try:
            with bp.open(path, format="b2nd") as data:
                return np.array_equal(data[0]["image"], values[0])
        except BatchplantError:
            return False

    with memory_bounded(64 << 20):
        for what, good in survive(damage(path), sound):
            assert not good or damage is flips, f"unnoticed: {what}"


def test_what_is_no_array_of_numbers_is_refused(tmp_path):
    put(tmp_path / "a.b2nd", np.array(["ab", "c"]))
    with pytest.raises(SchemaError, match="are not read"):
        bp.open(tmp_path / "a.b2nd")
    blosc2.SChunk(chunksize=100, data=bytes(100), urlpath=str(tmp_path / "b.b2nd"))
    with pytest.raises(DamagedError, match="not an array"):
        bp.open(tmp_path / "b.b2nd")
    (tmp_path / "nnUNetPlans.json").write_text("[")
    preprocessed(tmp_path)
    (tmp_path / "Dataset001_Hip" / "nnUNetPlans.json").write_text("[")
    with pytest.raises(BatchplantError, match="not JSON"):
        bp.open(tmp_path / "Dataset001_Hip" / "nnUNetPlans_3d_fullres")
