"""Ops on volumes, against plain NumPy; labels go along; the device form gives the same."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.errors import OptionError
from batchplant.ops import Draws, Spec


def draws(ids: Any, **how: Any) -> Draws:
    return Draws(how.get("seed", 1), how.get("epoch", 0), np.asarray(ids, dtype=np.int64), "op")


def volumes(count: int, dtype: Any, *shape: int) -> Any:
    rng = np.random.default_rng(7)
    return (rng.random((count, *shape)) * 250).astype(dtype)


def run(op: ops.Op, batch: Any, ids: Any = None, **how: Any) -> Any:
    ids = np.arange(len(batch)) if ids is None else np.asarray(ids)
    return op.run(batch.copy(), ids, draws(ids, **how))


OPS: dict[str, ops.Op] = {
    "crop": ops.RandomCrop3d((4, 5, 6)),
    "middle": ops.CenterCrop3d(5),
    "flip": ops.RandomFlip3d(),
    "flip one": ops.RandomFlip3d(1, p=0.7),
    "turn": ops.RandomRotate90(p=0.9),
    "turn otherwise": ops.RandomRotate90((0, 2)),
    "intensity": ops.RandomIntensity(0.5, 20.0, (0.5, 2.0), 10.0, p=0.8),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize(
    ("dtype", "shape"), [("float32", (8, 8, 8)), ("uint8", (8, 8, 8, 2)), ("int16", (8, 8, 8))]
)
def test_a_volume_comes_out_the_same_in_any_batch_and_on_a_device(name, dtype, shape):
    op, ids = OPS[name], np.array([5, 2, 9, 2, 30, 1])
    batch = volumes(len(ids), dtype, *shape)
    spec = op.infer(Spec(np.dtype(dtype), shape))
    together = run(op, batch, ids)
    assert together.shape == (len(ids), *spec.shape)
    assert together.dtype == spec.dtype
    for row, sample in enumerate(ids):
        assert np.array_equal(run(op, batch[row : row + 1], [sample])[0], together[row])
    assert run(op, batch[:0]).shape == (0, *spec.shape)
    torch = pytest.importorskip("torch")
    from batchplant.interop.gpu.on_device import DeviceTensors

    tensors = DeviceTensors(torch.device("cpu"))
    assert op.device_form is not None
    there = op.device_form(torch.from_numpy(batch.copy()), ids, draws(ids), tensors).numpy()
    assert there.dtype == together.dtype
    # Rounding may differ.
    assert np.abs(there.astype(float) - together).max() <= (1e-3 if dtype == "float32" else 1)


@pytest.mark.parametrize("name", [name for name in OPS if name != "middle"])
def test_draws_are_anew_by_sample_and_epoch(name):
    batch = np.repeat(volumes(1, "float32", 8, 8, 8), 40, axis=0)
    done = run(OPS[name], batch)
    assert len(np.unique(done.reshape(40, -1), axis=0)) > 1
    assert not np.array_equal(done, run(OPS[name], batch, epoch=1))


def test_what_they_do():
    batch = volumes(60, "float32", 6, 6, 6)
    middle = run(ops.CenterCrop3d((2, 4, 6)), batch)
    assert np.array_equal(middle, batch[:, 2:4, 1:5])
    turned = run(ops.RandomRotate90((1, 2), p=1.0), batch)
    kinds = [
        next(k for k in (0, 1, 2, 3) if np.array_equal(np.rot90(item, k, (1, 2)), other))
        for item, other in zip(batch, turned, strict=True)
    ]
    assert set(kinds) == {1, 2, 3}
    flipped = run(ops.RandomFlip3d((0, 2), p=0.5), batch)
    ways = [
        next(way for way in ((), (0,), (2,), (0, 2)) if np.array_equal(np.flip(item, way), other))
        for item, other in zip(batch, flipped, strict=True)
    ]
    assert len(set(ways)) == 4
    drawn = draws(range(60))
    drawn.chance(1.0)
    gamma, factor, offset = drawn.uniform(0.5, 2), drawn.uniform(0.9, 1.1), drawn.uniform(-5, 5)
    done = run(ops.RandomIntensity(0.1, 5.0, (0.5, 2)), batch)
    for row, item in enumerate(batch.astype(np.float64)):
        width = item.max() - item.min()
        want = ((item - item.min()) / width) ** gamma[row] * width + item.min()
        assert np.abs(done[row] - (want * factor[row] + offset[row])).max() < 1e-3
    still = np.full((2, 3, 3, 3), 7.0, dtype=np.float32)
    assert np.array_equal(run(ops.RandomIntensity(0, 0, (0.5, 2)), still), still)
    noisy = run(ops.RandomIntensity(0, 0, noise=3.0), np.zeros((200, 6, 6, 6), np.float32))
    assert 1.3 < noisy.std(axis=(1, 2, 3)).mean() < 1.7


def test_errors():
    volume = Spec(np.dtype(np.float32), (4, 6, 8))
    with pytest.raises(OptionError, match=r"does not fit into volumes of \(4, 6, 8\)"):
        ops.RandomCrop3d(5).infer(volume)
    with pytest.raises(OptionError, match="height and width of one size"):
        ops.RandomRotate90().infer(volume)
    with pytest.raises(OptionError, match="needs volumes"):
        ops.RandomFlip3d().infer(Spec(np.dtype(np.float32), (4, 6)))
    for wrong in (
        lambda: ops.RandomFlip3d(3),
        lambda: ops.RandomRotate90(1),
        lambda: ops.CenterCrop3d((1, 2)),
        lambda: ops.RandomIntensity(-1),
        lambda: ops.RandomIntensity(gamma=0),
    ):
        with pytest.raises(OptionError):
            wrong()


def test_labels_go_along(tmp_path):
    fields = {"scan": bp.Tensor("float32", (10, 12, 12)), "labels": bp.Tensor("uint8", (10, 12, 12))}
    with bp.create(tmp_path / "scans.beton", fields) as out:
        for number in range(5):
            labels = volumes(5, "uint8", 10, 12, 12)[number]
            out.append({"scan": labels.astype(np.float32), "labels": labels})

    def pipeline() -> list[ops.Op]:
        return [
            ops.RandomCrop3d((6, 8, 8), share="crop"), ops.RandomFlip3d(share="flip"),
            ops.RandomRotate90(share="turn"),
        ]  # fmt: skip

    pipelines = {"scan": pipeline(), "labels": pipeline()}
    with closing(bp.Loader(tmp_path / "scans.beton", 5, pipelines=pipelines, seed=2)) as loader:
        batch = next(iter(loader))
    assert batch["scan"].shape == (5, 6, 8, 8)
    assert np.array_equal(batch["scan"], batch["labels"])


@pytest.mark.parametrize("rest", [(None, None), (None, None, 2), (9, 11)])
def test_volumes_of_differing_sizes_are_cropped_to_one(rest):
    rng = np.random.default_rng(5)
    shapes = [
        tuple(int(rng.integers(8, 14)) if item is None else item for item in (None, *rest)) for _ in range(6)
    ]
    scans = [rng.integers(0, 60000, shape).astype(np.uint16) for shape in shapes]
    kind = bp.Tensor("uint16", (None, *rest))
    samples = [{"scan": scan, "labels": scan} for scan in scans]
    reader = bp.open(samples, schema={"scan": kind, "labels": kind})

    def pipelines() -> dict[str, Any]:
        steps = [ops.RandomCrop3d((4, 5, 6), share="crop"), ops.RandomFlip3d(p=0.0)]
        return {"scan": steps, "labels": steps}

    (batch,) = bp.Loader(reader, 6, pipelines=pipelines(), seed=4)
    assert batch["scan"].shape == (6, 4, 5, 6, *rest[2:])
    assert batch["scan"].dtype == np.uint16
    assert np.array_equal(batch["scan"], batch["labels"])
    for scan, crop in zip(scans, batch["scan"], strict=True):
        corner = np.argwhere(scan == crop[(0,) * crop.ndim])
        boxes = [
            scan[tuple(slice(a, a + n) for a, n in zip(at[:3], (4, 5, 6), strict=True))] for at in corner
        ]
        assert any(box.shape == crop.shape and np.array_equal(box, crop) for box in boxes)
    (other,) = bp.Loader(reader, 6, pipelines=pipelines(), seed=5)
    assert not np.array_equal(batch["scan"], other["scan"])
    (middle,) = bp.Loader(reader, 6, pipelines={"scan": [ops.CenterCrop3d(8)]})
    z, y, x = ((size - 8) // 2 for size in shapes[0][:3])
    assert np.array_equal(middle["scan"][0], scans[0][z : z + 8, y : y + 8, x : x + 8])


def test_volumes_too_small_for_the_crop():
    kind = {"scan": bp.Tensor("float32", (None, None, None))}
    shapes = [(5, 6, 7), (5, 3, 7), (6, 6, 6)]
    reader = bp.open([{"scan": np.zeros(shape, np.float32)} for shape in shapes], schema=kind)
    pipelines = {"scan": [ops.RandomCrop3d(4)]}
    with pytest.raises(bp.DecodeError, match=r"sample 1, field 'scan'.*\(5, 3, 7\); bp\.VolumePatches"):
        list(bp.Loader(reader, 3, pipelines=pipelines))
    (batch,) = bp.Loader(reader, 3, pipelines=pipelines, on_error="skip", ids=True)
    assert batch["ids"].tolist() == [0, 2]
    with pytest.raises(
        OptionError, match=r"put RandomCrop3d before it, or cut patches with bp\.VolumePatches"
    ):
        bp.Loader(reader, 3, pipelines={"scan": [ops.RandomFlip3d()]})
