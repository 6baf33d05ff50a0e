"""Ops behind FFCV's transforms: each against a plain NumPy reference."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from batchplant import ops
from batchplant.errors import OptionError
from batchplant.ops import Draws, Spec
from batchplant.ops.video import adapt_op
from loaders import pixels

torch = pytest.importorskip("torch")
from batchplant.compat.ffcv.ops import (  # noqa: E402
    Cutout,
    ImageMixup,
    LabelMixup,
    MixupToOneHot,
    Poison,
    ReplaceLabel,
    Squeeze,
    View,
)

IMAGES = Spec(np.dtype(np.uint8), (12, 16, 3))
FLOATS = Spec(np.dtype(np.float32), (12, 16, 3))
LABELS = Spec(np.dtype(np.int64))
RAGGED = Spec(np.dtype(np.uint8), (None,), ragged=True)
CELLS = Spec(None)


def draws(ids: Any, *, seed: int = 1, epoch: int = 0, name: str = "op") -> Draws:
    return Draws(seed, epoch, np.asarray(ids, dtype=np.int64), name)


def chi_square(values: Any, bins: int) -> float:
    """Standard deviations above what even draws give."""
    result = np.bincount(values, minlength=bins)
    assert len(result) == bins
    expected = len(values) / bins
    return float((((result - expected) ** 2 / expected).sum() - (bins - 1)) / np.sqrt(2 * (bins - 1)))


def images(ids: Any) -> Any:
    return np.stack([pixels(int(n)) for n in ids])


def run(op: ops.Op, batch: Any, ids: Any = None, **options: Any) -> Any:
    """Run the op on a copy of the batch."""
    ids = np.arange(len(batch)) if ids is None else np.asarray(ids)
    return op.run(batch.copy(), ids, draws(ids, **options))


def test_cutout_fills_one_square_anywhere():
    done = run(Cutout(5, (1, 2, 3)), np.full((2000, 8, 7, 3), 200, np.uint8))
    cut = (done == (1, 2, 3)).all(axis=-1)
    assert ((done == 200).all(axis=-1) ^ cut).all()
    assert (cut.sum(axis=(1, 2)) == 25).all()
    tops, lefts = cut.any(axis=2).argmax(axis=1), cut.any(axis=1).argmax(axis=1)
    assert (cut.any(axis=2).sum(axis=1) == 5).all()
    assert (cut.any(axis=1).sum(axis=1) == 5).all()
    assert abs(chi_square(tops * 3 + lefts, 12)) < 4


def test_poison():
    batch = images(range(6))
    mask, alpha = pixels(99), np.linspace(0, 1, 12 * 16).reshape(12, 16)
    op = Poison(mask, alpha, indices=[4, 1, 77], clamp=(10, 240))
    assert op.infer(IMAGES) == IMAGES
    done = run(op, batch)
    want = np.clip(batch * (1 - alpha[..., None]) + mask * alpha[..., None], 10, 240)
    for sample in range(6):
        if sample in (1, 4):
            assert np.abs(done[sample] - want[sample]).max() <= 1.01
        else:
            assert np.array_equal(done[sample], batch[sample])
    assert np.array_equal(run(op, batch[:1], ids=[77])[0], run(op, batch[:1], ids=[4])[0])


@pytest.mark.parametrize("same", [True, False])
def test_mixup_mixes_images_and_labels_alike(same):
    ids = np.array([8, 3, 5, 1])
    batch, labels = images(ids), np.array([0, 1, 2, 1])
    image, label = ImageMixup(0.7, same), LabelMixup(0.7, same)
    assert image.share == label.share
    mixed = label.run(labels, ids, draws(ids, name=label.share))
    assert mixed.shape == (4, *label.infer(Spec(np.dtype(np.int64))).shape)
    part = mixed[:, 2]
    assert ((part >= 0) & (part <= 1)).all()
    assert (len(np.unique(part)) == 1) == same
    assert np.array_equal(mixed[:, 0], labels)
    assert np.array_equal(mixed[:, 1], np.roll(labels, 1))
    done = image.run(batch.copy(), ids, draws(ids, name=image.share))
    weight = part[:, None, None, None]
    want = weight * batch + (1 - weight) * np.roll(batch, 1, axis=0)
    assert np.abs(done - want).max() <= 1.01
    assert done.dtype == np.uint8
    one_hot = MixupToOneHot(3)
    assert one_hot.infer(label.infer(Spec(np.dtype(np.int64)))).shape == (3,)
    rows = one_hot.run(mixed, ids, draws(ids))
    for row in range(4):
        expected = np.zeros(3)
        expected[labels[row]] += part[row]
        expected[labels[row - 1]] += 1 - part[row]
        np.testing.assert_allclose(rows[row], expected, atol=1e-6)


def test_mixup_is_beta_distributed():
    op = LabelMixup(0.4, same_lambda=False)
    part = op.run(np.zeros(4000), np.arange(4000), draws(range(4000)))[:, 2]
    assert abs(part.mean() - 0.5) < 0.03
    # The variance of Beta(a, a) is 1 / (4 (2 a + 1)).
    assert abs(part.var() - 1 / (4 * 1.8)) < 0.01


@pytest.mark.parametrize("label", [-1, 3])
def test_one_hot_refuses_labels_it_has_no_place_for(label):
    mixed = np.array([[0, label, 0.5]], np.float32)
    with pytest.raises(OptionError, match=f"label {label}, and MixupToOneHot has 3 classes"):
        MixupToOneHot(3).run(mixed, np.arange(1), draws([0]))


def test_replace_label():
    op = ReplaceLabel([3, 9, 9], 77)
    assert run(op, np.arange(5), ids=[1, 3, 5, 9, 3]).tolist() == [0, 77, 2, 77, 77]


@pytest.mark.parametrize(
    ("dtype", "shape", "to", "want"),
    [
        ("uint8", (6,), "int8", (6,)),
        ("uint8", (2, 8), "float32", (2, 2)),
        ("float64", (3,), "uint8", (24,)),
        ("int64", (), "float64", ()),
    ],
)
def test_view_is_the_same_bytes(dtype, shape, to, want):
    batch = np.arange(4 * int(np.prod(shape, dtype=int))).astype(dtype).reshape(4, *shape)
    op = View(to)
    done = run(op, batch)
    assert op.infer(Spec(np.dtype(dtype), shape)) == Spec(np.dtype(to), want)
    assert done.shape == (4, *want)
    assert done.dtype == to
    assert done.tobytes() == batch.tobytes()


@pytest.mark.parametrize(
    ("dims", "shape", "want"),
    [
        ((), (1,), ()),
        ((), (1, 3, 1), (3,)),
        ((1,), (1, 1), (1,)),
        ((-1,), (1, 2, 1), (1, 2)),
        ((0,), (1,), (1,)),
        ((1,), (2,), (2,)),
        ((5,), (1,), (1,)),
    ],
)
def test_squeeze(dims, shape, want):
    op = Squeeze(*dims)
    assert op.infer(Spec(np.dtype(np.int64), shape)).shape == want
    assert run(op, np.zeros((4, *shape))).shape == (4, *want)
    # The batch stays an axis, also of one sample.
    assert run(op, np.zeros((1, *shape))).shape == (1, *want)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ImageMixup(0), "alpha must be above 0"),
        (lambda: LabelMixup(float("inf")), "alpha must be above 0"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("op", "spec", "message"),
    [
        (ImageMixup(1.0), FLOATS, "ImageMixup needs uint8 images"),
        (Cutout(13), IMAGES, "Cutout of 13 does not fit images of 16×12"),
        (Cutout(0), IMAGES, "Cutout of 0 does not fit"),
        (Cutout(3, (1, 2)), IMAGES, "the fill has 2 numbers"),
        (Cutout(3, 256), IMAGES, "the fill 256 is out of range for uint8"),
        (Poison(pixels(0, 5, 5), 0.5, [1]), IMAGES, "do not fit uint8 (12, 16, 3)"),
        (LabelMixup(1.0), IMAGES, "one label for each sample"),
        (MixupToOneHot(3), LABELS, "MixupToOneHot follows LabelMixup, and this is int64 ()"),
        (View("int64"), IMAGES, "the bytes of a row do not divide into it"),
        (View("int32"), LABELS, "cannot be seen as int32"),
        (View("int8"), RAGGED, "put Pad before it"),
        (Squeeze(), RAGGED, "put Pad before it"),
        (Squeeze(), CELLS, "Squeeze needs numbers, not cells"),
        (ReplaceLabel([1], 1), CELLS, "ReplaceLabel needs numbers, not cells"),
    ],
)
def test_wrong_input(op, spec, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        op.infer(spec)


@pytest.mark.parametrize("op", [Cutout(5), ImageMixup(1.0)], ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("spec", [LABELS, RAGGED, CELLS, ops.ChannelsFirst().infer(IMAGES)], ids=str)
def test_images_are_needed(op, spec):
    with pytest.raises(OptionError, match=r"needs images \(height, width, channels\), not "):
        op.infer(spec)


@pytest.mark.parametrize("op", [Cutout(5), ImageMixup(0.5)], ids=lambda op: type(op).__name__)
def test_all_frames_of_a_clip_are_treated_alike(op):
    ids = np.arange(4)
    batch = np.random.default_rng(3).integers(0, 256, (4, 5, 12, 16, 3), dtype=np.uint8)
    clip_op, _ = adapt_op(op, Spec(np.dtype(np.uint8), (5, 12, 16, 3)))
    result = clip_op.run(batch.copy(), ids, draws(ids))
    for frame in range(5):
        assert np.array_equal(result[:, frame], op.run(batch[:, frame].copy(), ids, draws(ids)))


@pytest.mark.parametrize("to", ["float16", torch.float16, np.float16])
def test_view_takes_the_names_of_both_libraries(to):
    array = np.array([[1, 2], [3, 400]], np.int16)
    for batch in (array, torch.from_numpy(array)):
        result = View(to).run(batch, np.arange(2), draws(range(2)))
        assert type(result) is type(batch)
        assert np.array_equal(result, array.view(np.float16))
    expected = Spec(np.dtype(np.float16), (2,), torch=True)
    assert View(to).infer(Spec(np.dtype(np.int16), (2,), torch=True)) == expected
