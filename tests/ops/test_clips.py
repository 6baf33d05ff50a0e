"""Clips: image ops on every frame by one draw, frames by segments and jitter, decoded to the crop."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.errors import OptionError
from batchplant.ops import Draws, Spec
from batchplant.ops.cutting import cuts_of, resample
from batchplant.ops.video import DecodeVideo, EachFrame, adapt_op

CLIP = Spec(np.dtype(np.uint8), (5, 12, 16, 3))


def draws(ids: Any) -> Draws:
    return Draws(1, 0, np.asarray(ids, dtype=np.int64), "op")


def clips(count: int) -> Any:
    return np.random.default_rng(3).integers(0, 256, (count, 5, 12, 16, 3), dtype=np.uint8)


# -- ops of images -----------------------------------------------------------------------------------------

OPS: dict[str, ops.Op] = {
    "flip": ops.RandomHorizontalFlip(0.5),
    "jitter": ops.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.7),
    "blur": ops.GaussianBlur(3, p=0.7),
    "gray": ops.RandomGrayscale(0.5),
    "crop": ops.RandomCrop((8, 9), padding=2),
    "resized crop": ops.RandomResizedCrop(8),
    "normal": ops.Normalize((1, 2, 3), (4, 5, 6)),
    "channels first": ops.ChannelsFirst(),
}


@pytest.mark.parametrize("name", OPS)
def test_an_op_of_images_does_to_every_frame_what_it_does_to_a_image(name):
    ids = np.array([4, 1, 9])
    batch = clips(3)
    op, spec = adapt_op(OPS[name], CLIP)
    # Normalize takes any array.
    assert isinstance(op, EachFrame) == (name != "normal")
    assert repr(op) == repr(OPS[name])
    done = op.run(batch.copy(), ids, draws(ids))
    assert done.shape == (3, *spec.shape)
    assert done.dtype == spec.dtype
    for frame in range(5):
        alone = OPS[name].run(batch[:, frame].copy(), ids, draws(ids))
        assert np.array_equal(done[:, frame], alone)
    torch = pytest.importorskip("torch")
    from batchplant.interop.gpu.on_device import DeviceTensors

    form = op.device_form
    assert form is not None
    there = form(torch.from_numpy(batch.copy()), ids, draws(ids), DeviceTensors(torch.device("cpu"))).numpy()
    assert np.abs(there.astype(float) - done).max() <= 2


def test_what_takes_anything_sees_whole_clips():
    assert adapt_op(ops.Convert("float32"), CLIP)[1].shape == CLIP.shape
    for spec in (Spec(np.dtype(np.uint8), (5, 3, 12, 16), channels_first=True), Spec(None)):
        with pytest.raises(OptionError, match=r"needs images \(height, width, channels\)"):
            adapt_op(ops.RandomGrayscale(), spec)
    with pytest.raises(OptionError, match="three channels"):
        adapt_op(ops.RandomGrayscale(), Spec(np.dtype(np.uint8), (5, 12, 16, 1)))


# -- which frames --------------------------------------------------------------------------------------------


def numbers(op: DecodeVideo, total: int, sample: int = 0) -> Any:
    drawn = draws([sample])
    places = drawn.uniform(0, 1, op.segments)
    jitter = np.rint(drawn.uniform(-op.jitter - 0.5, op.jitter + 0.5, op.frames)).astype(np.int64)
    return op._numbers(total, places[0], jitter[0])


def test_segments():
    assert numbers(DecodeVideo(4, segments=4, at="start"), 100).tolist() == [0, 25, 50, 75]
    assert numbers(DecodeVideo(4, segments=4, at="center"), 100).tolist() == [12, 37, 62, 87]
    assert numbers(DecodeVideo(4, segments=2, stride=3, at="start"), 100).tolist() == [0, 3, 50, 53]
    seen = np.array([numbers(DecodeVideo(8, segments=4, stride=2), 103, sample) for sample in range(300)])
    first = seen[:, ::2]
    assert np.array_equal(seen[:, 1::2], first + 2)
    for segment in range(4):
        begin, end = segment * 103 / 4, (segment + 1) * 103 / 4
        assert first[:, segment].min() == int(begin)
        assert end - 4 <= first[:, segment].max() < end - 2
    # Each has its own place.
    assert abs(np.corrcoef(first[:, 0], first[:, 1])[0, 1]) < 0.2
    assert numbers(DecodeVideo(8, segments=8, at="start"), 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    for wrong in ({"segments": 3}, {"segments": 0}, {"jitter": -1}):
        with pytest.raises(OptionError):
            DecodeVideo(4, **wrong)


def test_jitter():
    op, still = DecodeVideo(6, stride=10, jitter=3), DecodeVideo(6, stride=10)
    apart = np.array([numbers(op, 200, sample) - numbers(still, 200, sample) for sample in range(200)])
    assert set(apart.ravel().tolist()) == set(range(-3, 4))
    close = np.array([numbers(DecodeVideo(8, jitter=4), 9, sample) for sample in range(50)])
    assert close.min() == 0
    assert close.max() == 8
    assert (np.diff(close, axis=1) >= 0).all()


# -- decoded to the crop -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def films(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("av")
    path = tmp_path_factory.mktemp("clips") / "films.tar"
    rng = np.random.default_rng(0)
    with bp.create(path, {"video": bp.Video("mkv"), "label": bp.Int()}) as out:
        for number, (height, width) in enumerate([(48, 64), (60, 40), (36, 80)]):
            coarse = rng.integers(0, 256, (6, height // 4, width // 4, 3), dtype=np.uint8)
            frames = coarse.repeat(4, axis=1).repeat(4, axis=2)
            data = bp.codecs.video.encode(frames, 10, "mkv", lossless=True)
            out.append({"video": data, "label": number})
    return path


def one_batch(films: Path, pipeline: Any, **options: Any) -> Any:
    with closing(bp.Loader(films, 3, pipelines={"video": pipeline}, **options)) as loader:
        return next(iter(loader))["video"], str(loader.plan)


def test_videos_of_any_size_are_decoded_to_the_crop(films):
    crop = ops.RandomResizedCrop(16, share="crop")
    pipeline = [DecodeVideo(4, at="start"), crop, ops.RandomHorizontalFlip(share="flip")]
    result, plan = one_batch(films, pipeline, seed=5)
    assert result.shape == (3, 4, 16, 16, 3)
    assert "RandomResizedCrop" in plan
    reader = bp.open(films)
    for sample in range(3):
        frames = reader[sample]["video"].read(0, 4)
        sizes = np.array([frames.shape[1:3]], dtype=np.int32)
        ids = np.array([sample])
        drawn = [Draws(5, 0, ids, name) for name in ("crop", "flip")]
        cuts = cuts_of(sizes, [crop.move(sizes, drawn[0])])
        flip = ops.RandomHorizontalFlip().flips(drawn[1])[0]
        for number, frame in enumerate(frames):
            want = np.empty((1, 16, 16, 3), np.uint8)
            resample([frame], cuts, want, "area", 0)
            assert np.array_equal(result[sample, number], want[0, :, ::-1] if flip else want[0])


def test_memory_of_clips_is_reused_when_nobody_holds_them(films):
    pipelines = {"video": [DecodeVideo(4, at="start"), ops.Resize((16, 24))]}
    with closing(bp.Loader(films, 1, pipelines=pipelines, indices=[0, 1, 2] * 10)) as loader:
        batches = [batch["video"] for batch in loader]
        held = {sample: batches[sample].copy() for sample in range(3)}
        frame = batches[3][0, 1]
        del batches[3:]
        addresses = []
        for number, batch in enumerate(loader):
            assert np.array_equal(batch["video"], held[number % 3])
            addresses.append(batch["video"].__array_interface__["data"][0])
    # Views keep the memory of their batch, too.
    assert np.array_equal(frame, held[0][0, 1])
    assert all(np.array_equal(batch, held[sample]) for sample, batch in enumerate(batches))
    assert len(set(addresses)) < len(addresses)


def test_what_follows_the_crop_runs_on_clips(films):
    pipeline = [
        DecodeVideo(4, stride=2), ops.Resize(shorter=24), ops.CenterCrop(20), ops.ColorJitter(0.4),
        ops.Normalize((120, 120, 120), (60, 60, 60)), ops.ChannelsFirst(),
    ]  # fmt: skip
    result, _ = one_batch(films, pipeline)
    assert result.shape == (3, 4, 3, 20, 20)
    assert result.dtype == np.float32
    square, _ = one_batch(films, [DecodeVideo(2, at="start"), ops.CenterCrop(10, 0.5)])
    first = bp.open(films)[0]["video"].read(0, 1)[0]
    middle = first[12:36, 20:44]
    cuts = cuts_of(
        np.array([[24, 24]], np.int32), [ops.Resize(10).move(np.array([[24, 24]], np.int32), draws([0]))]
    )
    want = np.empty((1, 10, 10, 3), np.uint8)
    resample([np.ascontiguousarray(middle)], cuts, want, "area", 0)
    assert np.array_equal(square[0, 0], want[0])


def test_errors_of_crops(films):
    with pytest.raises(bp.DecodeError, match="too small for RandomCrop"):
        one_batch(films, [DecodeVideo(2), ops.RandomCrop(50)])
    with pytest.raises(bp.DecodeError, match=r"such as RandomResizedCrop\(224\)"):
        one_batch(films, [DecodeVideo(2), ops.Resize(shorter=20)])
    with pytest.raises(OptionError, match="with channels first"):
        one_batch(films, [DecodeVideo(2, size=16, channels_first=True), ops.RandomHorizontalFlip()])
