"""Ops: each against a plain NumPy or Pillow reference, and random only by seed, epoch, sample and name."""

from __future__ import annotations

import colorsys
import random
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from batchplant import ops
from batchplant.errors import OptionError
from batchplant.ops import Draws, Spec
from batchplant.ops.base import check_probability
from batchplant.ops.changes import luma
from batchplant.ops.crops import random_boxes
from batchplant.ops.values import ragged_values
from batchplant.schema.columns import Ragged
from loaders import pixels

IMAGES = Spec(np.dtype(np.uint8), (12, 16, 3))


def draws(ids: Any, *, seed: int = 1, epoch: int = 0, name: str = "op") -> Draws:
    return Draws(seed, epoch, np.asarray(ids, dtype=np.int64), name)


def images(ids: Any) -> Any:
    return np.stack([pixels(int(n)) for n in ids])


def run(op: ops.Op, batch: Any, ids: Any = None, **how: Any) -> Any:
    """What the op makes of a copy of the batch."""
    ids = np.arange(len(batch)) if ids is None else np.asarray(ids)
    return op.run(batch.copy(), ids, draws(ids, **how))


# -- draws --------------------------------------------------------------------------------------------------


def chi_square(values: Any, bins: int) -> float:
    """Standard deviations above what even draws give."""
    result = np.bincount(values, minlength=bins)
    assert len(result) == bins
    expected = len(values) / bins
    return float((((result - expected) ** 2 / expected).sum() - (bins - 1)) / np.sqrt(2 * (bins - 1)))


@pytest.mark.parametrize(
    "ids", [np.arange(1 << 16), np.arange(1 << 16) * 4096, np.arange(1 << 16) + (1 << 40)]
)
def test_draws_are_even_over_samples(ids):
    drawn = draws(ids).uniform(0, 1, 2)
    assert drawn.min() >= 0
    assert drawn.max() < 1
    for column in drawn.T:
        assert abs(chi_square((column * 256).astype(int), 256)) < 4
    together = (drawn * 16).astype(int) @ [16, 1]
    assert abs(chi_square(together, 256)) < 4
    neighbours = (drawn[:-1, 0] * 16).astype(int) * 16 + (drawn[1:, 0] * 16).astype(int)
    assert abs(chi_square(neighbours, 256)) < 4


@pytest.mark.parametrize("changed", [{"seed": 2}, {"epoch": 1}, {"name": "other"}])
def test_draws_of_another_seed_epoch_or_op_are_unrelated(changed):
    ids = np.arange(1 << 14)
    one, other = draws(ids).uniform(), draws(ids, **changed).uniform()
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03
    assert not (one == other).any()


def test_draws_belong_to_the_sample():
    ids = np.array([7, 3, 3, 1_000_000, 0])
    alone = [draws([number]) for number in ids]
    together = draws(ids)
    for take in (
        lambda d: d.uniform(),
        lambda d: d.uniform(-3, 9, 5),
        lambda d: d.integers(17),
        lambda d: d.chance(0.4),
        lambda d: d.bits(3),
    ):
        assert np.array_equal(take(together), np.concatenate([take(item) for item in alone]))


def test_every_call_gives_new_draws_in_the_order_of_calls():
    ids = np.arange(100)
    at_once, one_by_one = draws(ids), draws(ids)
    assert np.array_equal(
        at_once.uniform(0, 1, 3), np.stack([one_by_one.uniform() for _ in range(3)], axis=1)
    )
    assert not (one_by_one.uniform() == one_by_one.uniform()).any()


def test_draws_in_ranges():
    ids = np.arange(20_000)
    drawn = draws(ids).uniform(-2, 3)
    assert drawn.min() >= -2
    assert drawn.max() < 3
    assert abs(drawn.mean() - 0.5) < 0.05
    assert abs(chi_square(draws(ids).integers(10), 10)) < 4
    high = np.arange(1, 20_001)
    result = draws(ids).integers(high)
    assert (result >= 0).all()
    assert (result < high).all()
    assert result.dtype == np.int64
    assert draws(ids).uniform(0, 1, 0).shape == (20_000, 0)
    assert len(draws([])) == len(draws([]).uniform()) == 0


@pytest.mark.parametrize("probability", [0.0, 0.1, 0.5, 0.9, 1.0])
def test_chance(probability):
    count = 10_000
    result = draws(np.arange(count)).chance(probability).mean()
    assert abs(result - probability) <= 4 * np.sqrt(probability * (1 - probability) / count)


def test_the_generator_of_a_batch_depends_on_its_samples_alone():
    first = draws([4, 8, 15]).generator().random(4)
    assert np.array_equal(first, draws([15, 4, 8]).generator().random(4))
    others = [
        draws([4, 8, 16]).generator(),
        draws([4, 8]).generator(),
        draws([4, 8, 15], epoch=1).generator(),
        draws([]).generator(),
    ]
    again = draws([4, 8, 15])
    again.generator()
    for other in [*others, again.generator()]:
        assert not (other.random(4) == first).any()


# -- what holds for all ops on images ---------------------------------------------------------------------

RANDOM_OPS: dict[str, ops.Op] = {
    "flip": ops.RandomHorizontalFlip(0.5),
    "brightness": ops.RandomBrightness(0.5, 0.7),
    "contrast": ops.RandomContrast(0.5, 0.7),
    "saturation": ops.RandomSaturation(0.5, 0.7),
    "hue": ops.RandomHue(0.4, 0.7),
    "jitter": ops.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.7),
    "gray": ops.RandomGrayscale(0.5),
    "solarize": ops.RandomSolarization(100, 0.5),
    "blur": ops.GaussianBlur(5, (0.5, 2.0), 0.7),
    "translate": ops.RandomTranslate(4),
    "crop": ops.RandomCrop((8, 9)),
    "padded crop": ops.RandomCrop(12, padding=3, fill=(9, 8, 7)),
    "posterize": ops.Posterize((1, 6), 0.7),
    "autocontrast": ops.AutoContrast(),
    "invert": ops.Invert(),
    "sharpness": ops.Sharpness(p=0.7),
    "jpeg": ops.JpegArtifacts(p=0.7),
    "noise": ops.GaussianNoise(p=0.7),
    "erasing": ops.RandomErasing(0.7, value="random"),
    "RandAugment": ops.RandAugment(),
    "TrivialAugment": ops.TrivialAugment(),
    "AugMix": ops.AugMix(),
}


@pytest.mark.parametrize("name", RANDOM_OPS)
def test_a_sample_comes_out_the_same_in_any_batch(name):
    op, ids = RANDOM_OPS[name], np.array([5, 2, 9, 2, 30, 1])
    batch = images(ids)
    spec = op.infer(IMAGES)
    together = run(op, batch, ids)
    assert together.shape == (len(ids), *spec.shape)
    assert together.dtype == spec.dtype
    for row, sample in enumerate(ids):
        assert np.array_equal(run(op, batch[row : row + 1], [sample])[0], together[row])
    assert np.array_equal(run(op, batch[::-1], ids[::-1]), together[::-1])


@pytest.mark.parametrize("name", RANDOM_OPS)
def test_other_samples_epochs_seeds_and_names_draw_anew(name):
    op, ids = RANDOM_OPS[name], np.arange(64)
    batch = np.repeat(images([3]), 64, axis=0)
    first = run(op, batch, ids)
    assert len(np.unique(first.reshape(64, -1), axis=0)) > 1
    for how in ({"epoch": 1}, {"seed": 5}, {"name": "other"}):
        assert not np.array_equal(first, run(op, batch, ids, **how))
    assert not np.array_equal(first, run(op, batch, ids + 64))


@pytest.mark.parametrize("name", RANDOM_OPS)
def test_no_samples(name):
    op = RANDOM_OPS[name]
    assert run(op, np.empty((0, 12, 16, 3), np.uint8)).shape == (0, *op.infer(IMAGES).shape)


WITH_P = {
    "flip": ops.RandomHorizontalFlip,
    "brightness": lambda p: ops.RandomBrightness(0.9, p),
    "contrast": lambda p: ops.RandomContrast(0.9, p),
    "saturation": lambda p: ops.RandomSaturation(0.9, p),
    "hue": lambda p: ops.RandomHue(0.5, p),
    "jitter": lambda p: ops.ColorJitter(0.9, 0.9, 0.9, 0.5, p),
    "gray": ops.RandomGrayscale,
    "solarize": lambda p: ops.RandomSolarization(64, p),
    "blur": lambda p: ops.GaussianBlur(3, (1.0, 2.0), p),
    "posterize": lambda p: ops.Posterize(2, p),
    "invert": ops.Invert,
    "sharpness": lambda p: ops.Sharpness(2.0, p),
    "jpeg": lambda p: ops.JpegArtifacts(10, p),
    "noise": lambda p: ops.GaussianNoise(20, p),
    "erasing": lambda p: ops.RandomErasing(p, (0.2, 0.3)),
}


@pytest.mark.parametrize("name", WITH_P)
def test_probability(name):
    count = 400
    batch = np.repeat(images([3]), count, axis=0)
    assert np.array_equal(run(WITH_P[name](0.0), batch), batch)
    for p in (0.2, 0.8, 1.0):
        changed = (run(WITH_P[name](p), batch) != batch).any(axis=(1, 2, 3)).mean()
        # A strength may come so near to none that no level changes.
        assert abs(changed - p) <= 4 * np.sqrt(p * (1 - p) / count) + 0.01
    for wrong in (-0.1, 1.1, float("nan")):
        with pytest.raises(OptionError, match="from 0 to 1"):
            WITH_P[name](wrong)


def test_ops_with_one_share_draw_alike_and_others_do_not():
    ids = np.arange(100)
    crop = ops.RandomResizedCrop(8, share="place")
    mask = ops.RandomResizedCrop((4, 4), filter="nearest", share="place")
    sizes = np.tile(np.array([[30, 40]], np.int32), (100, 1))
    assert np.array_equal(
        crop.boxes(sizes, draws(ids, name=crop.share)), mask.boxes(sizes, draws(ids, name=mask.share))
    )
    assert not np.array_equal(
        crop.boxes(sizes, draws(ids, name="image/0")), mask.boxes(sizes, draws(ids, name="mask/0"))
    )


# -- changes to images, one by one ------------------------------------------------------------------------


def test_flip():
    ids = np.arange(50)
    batch = images(ids)
    chosen = draws(ids).chance(0.3)
    assert 0 < chosen.sum() < 50
    want = np.where(chosen[:, None, None, None], batch[:, :, ::-1], batch)
    assert np.array_equal(run(ops.RandomHorizontalFlip(0.3), batch), want)


def test_luma_is_pillows():
    levels = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 256, 3)
    for image in (pixels(1, 64, 64), levels):
        want = np.asarray(Image.fromarray(image).convert("L"))
        assert np.array_equal(luma(image.astype(np.float32)), want)


ENHANCERS = {
    "brightness": (ops.RandomBrightness, ImageEnhance.Brightness),
    "saturation": (ops.RandomSaturation, ImageEnhance.Color),
    "contrast": (ops.RandomContrast, ImageEnhance.Contrast),
}


@pytest.mark.parametrize("name", ENHANCERS)
@pytest.mark.parametrize("magnitude", [0.0, 0.5, 2.0])
def test_colours_against_pillow(name, magnitude):
    op, enhancer = ENHANCERS[name]
    ids = np.arange(20)
    batch = images(ids)
    drawn = draws(ids)
    drawn.chance(1.0)
    factors = drawn.uniform(max(0.0, 1 - magnitude), 1 + magnitude)
    result = run(op(magnitude, 1.0), batch).astype(int)
    for row, factor in enumerate(factors):
        want = np.asarray(enhancer(Image.fromarray(batch[row])).enhance(factor)).astype(int)
        # Pillow rounds the mean gray that contrast goes by; we do not.
        slack = 1 + (abs(1 - factor) * 0.5 if name == "contrast" else 0)
        assert np.abs(result[row] - want).max() <= slack
    if magnitude == 0:
        assert np.array_equal(result, batch)


def test_contrast_goes_by_the_exact_mean_gray():
    batch = images([1, 2, 3])
    drawn = draws(range(3))
    drawn.chance(1.0)
    factor = drawn.uniform(0.5, 1.5)[:, None, None, None]
    gray = np.stack([np.asarray(Image.fromarray(item).convert("L")) for item in batch])
    mean = gray.mean(axis=(1, 2))[:, None, None, None]
    want = np.clip(factor * batch + (1 - factor) * mean, 0, 255)
    assert np.abs(run(ops.RandomContrast(0.5, 1.0), batch) - np.floor(want)).max() <= 1


def test_hue():
    batch = pixels(4, 4, 64)[None]
    drawn = draws([0])
    drawn.chance(1.0)
    turn = drawn.uniform(-0.5, 0.5)[0]
    want = []
    for red, green, blue in batch.reshape(-1, 3) / 255:
        hue, saturation, value = colorsys.rgb_to_hsv(red, green, blue)
        want.append(colorsys.hsv_to_rgb((hue + turn) % 1, saturation, value))
    done = run(ops.RandomHue(0.5, 1.0), batch)
    assert np.abs(done.reshape(-1, 3) - np.array(want) * 255).max() <= 0.55


def test_hue_of_no_turn_and_hue_of_gray_change_nothing():
    batch = pixels(4, 64, 64)[None]
    assert np.array_equal(run(ops.RandomHue(0.0, 1.0), batch), batch)
    gray = np.repeat(np.arange(256, dtype=np.uint8), 3).reshape(1, 16, 16, 3)
    assert np.array_equal(run(ops.RandomHue(0.5, 1.0), gray), gray)


@pytest.mark.parametrize("magnitude", [0.0, 0.3, 3.0, 40.0, 5000.0])
def test_saturation_by_any_amount(magnitude):
    """The engine's, against the formula."""
    op, batch = ops.RandomSaturation(magnitude, 1.0), images(np.arange(9))
    drawn = draws(np.arange(9))
    drawn.chance(1.0)
    want = np.clip(op.change(batch.astype(np.float32), op.strength(drawn), np), 0, 255).astype(np.uint8)
    assert np.abs(run(op, batch).astype(int) - want).max() <= 1


def test_jitter_is_its_parts_one_after_another():
    ids = np.arange(30)
    batch = images(ids)
    parts = [
        ops.RandomBrightness(0.4),
        ops.RandomContrast(0.3),
        ops.RandomSaturation(0.2),
        ops.RandomHue(0.1),
    ]
    drawn = draws(ids)
    chosen = drawn.chance(0.5)
    want = batch.copy()
    for part in parts:
        strength = part.strength(drawn)
        changed = np.clip(part.change(want.astype(np.float32), strength, np), 0, 255).astype(np.uint8)
        want = np.where(chosen[:, None, None, None], changed, want)
    # The engine computes with fewer bits: what ends just below a level may be one more or less.
    done = run(ops.ColorJitter(0.4, 0.3, 0.2, 0.1, p=0.5), batch)
    assert np.abs(done.astype(int) - want).max() <= 2
    assert (done == want).mean() > 0.99
    assert np.array_equal(run(ops.ColorJitter(), batch), batch)


def test_grayscale_and_solarization_are_pillows():
    batch = images(range(8))
    for op, reference in (
        (ops.RandomGrayscale(1.0), lambda item: item.convert("L").convert("RGB")),
        (ops.RandomSolarization(77, 1.0), lambda item: ImageOps.solarize(item, 77)),
        (ops.RandomSolarization(256, 1.0), lambda item: item),
    ):
        want = [np.asarray(reference(Image.fromarray(item))) for item in batch]
        assert np.array_equal(run(op, batch), want)


@pytest.mark.parametrize(("kernel", "size"), [(1, (12, 16)), (3, (12, 16)), (7, (12, 16)), (9, (3, 5))])
def test_blur(kernel, size):
    batch = np.stack([pixels(n, *size) for n in range(6)])
    drawn = draws(range(6))
    drawn.chance(1.0)
    sigmas = drawn.uniform(0.3, 3.0)
    done = run(ops.GaussianBlur(kernel, (0.3, 3.0), 1.0), batch)
    half = kernel // 2
    for row, sigma in enumerate(sigmas):
        line = np.exp(-0.5 * (np.arange(-half, half + 1) / sigma) ** 2)
        weights = np.outer(line, line) / line.sum() ** 2
        want = np.zeros(batch[row].shape)
        modes = ["reflect" if side > half else "edge" for side in size]
        around = np.pad(batch[row].astype(float), ((half, half), (0, 0), (0, 0)), mode=modes[0])
        around = np.pad(around, ((0, 0), (half, half), (0, 0)), mode=modes[1])
        for y in range(kernel):
            for x in range(kernel):
                want += weights[y, x] * around[y : y + size[0], x : x + size[1]]
        assert np.abs(done[row] - want).max() <= 0.51
    flat = np.full((2, 9, 9, 3), 200, np.uint8)
    assert np.array_equal(run(ops.GaussianBlur(kernel, (0.3, 3.0), 1.0), flat), flat)


def test_translate_is_a_crop_of_the_padded_image():
    batch = np.repeat(images([3]), 500, axis=0)
    done = run(ops.RandomTranslate(2, fill=(9, 8, 7)), batch)
    room = np.full((16, 20, 3), (9, 8, 7), np.uint8)
    room[2:14, 2:18] = batch[0]
    shifts = {(top, left): room[top : top + 12, left : left + 16] for top in range(5) for left in range(5)}
    seen = [[place for place, want in shifts.items() if np.array_equal(item, want)] for item in done]
    assert all(len(places) == 1 for places in seen)
    assert abs(chi_square(np.array([place[0] * 5 + place[1] for [place] in seen]), 25)) < 4


@pytest.mark.parametrize(("size", "padding"), [((5, 6), 0), (12, 4), ((12, 16), 0), ((20, 24), 4)])
def test_crop(size, padding):
    batch = np.repeat(images([3]), 300, axis=0)
    done = run(ops.RandomCrop(size, padding, fill=77), batch)
    high, wide = np.broadcast_to(size, 2)
    room = np.pad(batch[0], ((padding, padding), (padding, padding), (0, 0)), constant_values=77)
    places = set()
    for item in done:
        fits = [
            (top, left)
            for top in range(room.shape[0] - high + 1)
            for left in range(room.shape[1] - wide + 1)
            if np.array_equal(item, room[top : top + high, left : left + wide])
        ]
        assert len(fits) == 1
        places.add(fits[0])
    room_for = (room.shape[0] - high + 1) * (room.shape[1] - wide + 1)
    assert len(places) > 0.8 * min(room_for, 100)


def test_fill_of_one_channel_and_of_other_dtypes():
    labels = np.random.default_rng(1).integers(0, 9, (30, 6, 6, 1))
    spec = Spec(np.dtype(np.int64), (6, 6, 1))
    for op in (ops.RandomTranslate(2, fill=-1), ops.RandomCrop(6, 2, fill=-1)):
        assert op.infer(spec) == spec
        done = run(op, labels)
        assert (done == -1).any()
        assert np.isin(done, [-1, *range(9)]).all()


def test_normalize_and_channels_first():
    batch = images(range(4))
    mean, std = [120.0, 110.5, 100.0], [60.0, 50.0, 0.5]
    want = (batch - np.array(mean)) / np.array(std)
    for dtype, close in (("float16", 1e-3), ("float32", 1e-6), ("float64", 1e-12)):
        op = ops.Normalize(mean, std, dtype)
        assert op.infer(IMAGES) == Spec(np.dtype(dtype), (12, 16, 3))
        done = run(op, batch)
        assert done.dtype == dtype
        np.testing.assert_allclose(done, want, rtol=close, atol=close)
    first = ops.ChannelsFirst()
    assert first.infer(IMAGES).shape == (3, 12, 16)
    done = run(first, batch)
    assert np.array_equal(done, batch.transpose(0, 3, 1, 2))
    assert done.flags.c_contiguous


# -- values -------------------------------------------------------------------------------------------------


def test_convert():
    batch = np.array([[1.7, -2.2], [3.0, 250.9]])
    op = ops.Convert("int32")
    assert op.infer(Spec(batch.dtype, (2,))) == Spec(np.dtype(np.int32), (2,))
    assert run(op, batch).tolist() == [[1, -2], [3, 250]]
    offsets = np.array([0, 1, 2])
    values, kept = op.run((batch, offsets), np.arange(2), draws(range(2)))
    assert values.dtype == np.int32
    assert kept is offsets


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({}, [[1, 2, 3], [0, 0, 0], [4, 0, 0]]),
        ({"length": 2}, [[1, 2], [0, 0], [4, 0]]),
        ({"length": 4, "value": -1}, [[1, 2, 3, -1], [-1] * 4, [4, -1, -1, -1]]),
        ({"length": 4, "value": 9, "side": "left"}, [[9, 1, 2, 3], [9] * 4, [9, 9, 9, 4]]),
        ({"length": 0}, [[], [], []]),
    ],
)
def test_pad(options, want):
    op = ops.Pad(**options)
    ragged = np.array([1, 2, 3, 4], np.int16), np.array([0, 3, 3, 4])
    done = op.run(ragged, np.arange(3), draws(range(3)))
    assert done.tolist() == want
    assert done.dtype == np.int16
    assert op.infer(Spec(np.dtype(np.int16), (None,), ragged=True)).shape == (options.get("length"),)
    pairs = np.arange(8).reshape(4, 2), np.array([0, 3, 3, 4])
    assert op.run(pairs, np.arange(3), draws(range(3))).shape == (3, done.shape[1], 2)
    nothing = op.run((np.empty(0, np.int16), np.zeros(1, np.int64)), np.empty(0), draws([]))
    assert nothing.shape == (0, options.get("length") or 0)


def test_ragged_values_count_rows():
    cells = [np.arange(6, dtype=np.float32), np.empty(0, np.float32), np.arange(2, dtype=np.float32)]
    ragged = Ragged.from_cells([b"....", *(cell.tobytes() for cell in cells)]).take(slice(1, None))
    values, offsets = ragged_values(ragged, "float32", (2,))
    assert offsets.tolist() == [0, 3, 3, 4]
    assert np.array_equal(values, np.concatenate(cells).reshape(-1, 2))


def _one(batch):
    return batch + 1


def _second(batch, given):
    return batch + given.integers(10)


def _named(batch, scale=1, *, rng=None):
    return batch + rng.integers(10)


def _defaults(batch, axis=0, keep=True):
    return batch + axis + keep


class _Callable:
    def __call__(self, batch, rng):
        return batch + rng.integers(10)


@pytest.mark.parametrize(
    ("function", "is_random"),
    [
        (_one, False),
        (_second, True),
        (_named, True),
        (_defaults, False),
        (_Callable(), True),
        (np.negative, False),
        (np.flip, False),
        (lambda *batch: batch[0], False),
        (np.ndarray.copy, False),
    ],
)
def test_functions_get_draws_only_if_they_take_them(function, is_random):
    batch = np.arange(50)
    done = run(ops.Function(function), batch)
    extra = draws(np.arange(50)).integers(10)
    if is_random:
        assert np.array_equal(done, batch + extra)
    else:
        assert np.array_equal(done, function(batch))


def test_a_function_can_say_what_it_makes():
    spec = Spec(np.dtype(np.uint8), (None,), ragged=True)
    assert ops.Function(_one).infer(spec) == spec
    assert ops.Function(_one, dtype="int32", shape=[4]).infer(spec) == Spec(np.dtype(np.int32), (4,))


# -- boxes --------------------------------------------------------------------------------------------------


def tile(height: int, width: int, count: int = 1) -> Any:
    return np.tile(np.array([[height, width]], np.int32), (count, 1))


def torchvision_box(rng: random.Random, height: int, width: int, scale: Any, ratio: Any) -> tuple[int, ...]:
    """RandomResizedCrop.get_params of torchvision, line by line; (left, top, right, bottom)."""
    area = height * width
    log_ratio = np.log(np.array(ratio))
    for _ in range(10):
        target_area = area * rng.uniform(scale[0], scale[1])
        aspect_ratio = np.exp(rng.uniform(log_ratio[0], log_ratio[1]))
        w, h = round(np.sqrt(target_area * aspect_ratio)), round(np.sqrt(target_area / aspect_ratio))
        if 0 < w <= width and 0 < h <= height:
            i, j = rng.randint(0, height - h), rng.randint(0, width - w)
            return j, i, j + w, i + h
    in_ratio = width / height
    if in_ratio < min(ratio):
        w = width
        h = round(w / min(ratio))
    elif in_ratio > max(ratio):
        h = height
        w = round(h * max(ratio))
    else:
        w, h = width, height
    i, j = (height - h) // 2, (width - w) // 2
    return j, i, j + w, i + h


def distance(one: Any, other: Any) -> float:
    """Kolmogorov and Smirnov's: how far two samples' distributions are apart."""
    at = np.sort(np.concatenate([one, other]))
    return float(
        np.abs(
            np.searchsorted(np.sort(one), at, side="right") / len(one)
            - np.searchsorted(np.sort(other), at, side="right") / len(other)
        ).max()
    )


@pytest.mark.parametrize(
    ("height", "width", "scale", "ratio"),
    [
        (375, 500, (0.08, 1.0), (3 / 4, 4 / 3)),
        (40, 300, (0.5, 1.0), (3 / 4, 4 / 3)),
        (64, 64, (0.2, 0.4), (1.0, 1.0)),
        (7, 5, (0.08, 1.0), (0.5, 2.0)),
    ],
)
def test_random_boxes_are_distributed_as_torchvisions(height, width, scale, ratio):
    count = 6000
    boxes = random_boxes(tile(height, width, count), scale, ratio, draws(np.arange(count)))
    assert np.array_equal(boxes, np.rint(boxes))
    left, top, right, bottom = boxes.T
    assert ((left >= 0) & (top >= 0) & (right <= width) & (bottom <= height)).all()
    assert ((right > left) & (bottom > top)).all()
    rng = random.Random(5)
    wanted = np.array([torchvision_box(rng, height, width, scale, ratio) for _ in range(count)])
    # 1.95: two samples of one distribution are further apart once in a thousand times.
    most = 1.95 * np.sqrt(2 / count)
    for measure in (
        lambda b: (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1]),
        lambda b: (b[:, 2] - b[:, 0]) / (b[:, 3] - b[:, 1]),
        lambda b: b[:, 0],
        lambda b: b[:, 1],
        lambda b: b[:, 0] + b[:, 1] * 1.3 + b[:, 2] * 1.7 + b[:, 3] * 2.1,
    ):
        assert distance(measure(boxes), measure(wanted)) < most


def test_random_boxes_keep_to_scale_and_ratio():
    count, (height, width) = 5000, (600, 800)
    boxes = ops.RandomResizedCrop(8, (0.3, 0.5), (0.8, 1.5)).boxes(
        tile(height, width, count), draws(range(count))
    )
    wide, high = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area, aspect = wide * high / (height * width), wide / high
    # Sides are rounded to whole pixels.
    assert 0.297 <= area.min() <= 0.303
    assert 0.497 <= area.max() <= 0.503
    assert 0.79 <= aspect.min() <= 0.81
    assert 1.47 <= aspect.max() <= 1.51


@pytest.mark.parametrize(
    ("size", "want"),
    [
        ((10, 1000), (493, 0, 506, 10)),
        ((1000, 10), (0, 493, 10, 506)),
        ((1, 1), (0, 0, 1, 1)),
        ((1, 50), (24, 0, 25, 1)),
    ],
)
def test_where_no_box_fits_the_largest_in_the_middle_is_taken(size, want):
    boxes = ops.RandomResizedCrop(8, (0.9, 1.0)).boxes(tile(*size, 20), draws(range(20)))
    assert (boxes == want).all()
    rng = random.Random(1)
    assert torchvision_box(rng, *size, (0.9, 1.0), (3 / 4, 4 / 3)) == want


def test_boxes_belong_to_the_sample():
    ids, sizes = np.array([9, 4, 7]), np.array([[30, 40], [500, 20], [64, 64]], np.int32)
    op = ops.RandomResizedCrop(8)
    together = op.boxes(sizes, draws(ids))
    for row in range(3):
        assert np.array_equal(op.boxes(sizes[row : row + 1], draws(ids[row : row + 1]))[0], together[row])


@pytest.mark.parametrize(
    ("op", "size", "want"),
    [
        (ops.Decode(), (30, 40), (0, 0, 40, 30)),
        (ops.Resize(5), (30, 40), (0, 0, 40, 30)),
        (ops.CenterCrop(224, 1.0), (30, 40), (5, 0, 35, 30)),
        (ops.CenterCrop(224, 0.5), (30, 41), (13, 7, 28, 22)),
        (ops.CenterCrop(224), (256, 512), (144, 16, 368, 240)),
        (ops.CenterCrop(224, 0.0), (30, 40), (19, 14, 20, 15)),
        (ops.CenterCrop((2, 3)), (1, 1), (0, 0, 1, 1)),
    ],
)
def test_fixed_boxes(op, size, want):
    result = op.boxes(tile(*size), draws([3]))
    assert result.dtype == np.float64
    assert result[0].tolist() == list(want)


@pytest.mark.parametrize(
    ("size", "want"), [(8, (8, 8)), ((3, 4), (3, 4)), ([5, 6], (5, 6)), (np.int64(7), (7, 7))]
)
def test_sizes(size, want):
    for op in (ops.Resize(size), ops.CenterCrop(size), ops.RandomResizedCrop(size), ops.RandomCrop(size)):
        assert op.size == want


# -- what ops refuse ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ops.Resize(0), "one or two numbers from 1 on, not 0"),
        (lambda: ops.Resize((1, 2, 3)), "one or two numbers"),
        (lambda: ops.RandomCrop(-3), "one or two numbers"),
        (lambda: ops.RandomCrop(3, padding=-1), "padding must not be negative"),
        (lambda: ops.RandomTranslate(-1), "padding must not be negative"),
        (
            lambda: ops.Resize(4, filter="lanczos"),
            "filter is one of area, bilinear, bicubic, nearest, not 'lanczos'",
        ),
        (lambda: ops.CenterCrop(4, ratio=1.5), "ratio must be from 0 to 1, not 1.5"),
        (lambda: ops.RandomResizedCrop(4, scale=(0.5, 0.1)), "scale and ratio are"),
        (lambda: ops.RandomResizedCrop(4, scale=(0, 1)), "scale and ratio are"),
        (lambda: ops.RandomResizedCrop(4, ratio=(2, 1)), "scale and ratio are"),
        (lambda: ops.Normalize([1, 2], [1, 2, 3]), "one number for each channel"),
        (lambda: ops.Normalize([1], [0]), "std no zero"),
        (lambda: ops.Normalize([1], [1], "int32"), "float16, float32 or float64, not int32"),
        (lambda: ops.RandomBrightness(-1), "magnitude must not be negative"),
        (lambda: ops.RandomHue(0.6), "at most 0.5"),
        (lambda: ops.ColorJitter(hue=0.7), "at most 0.5"),
        (lambda: ops.GaussianBlur(4), "kernel_size is odd"),
        (lambda: ops.GaussianBlur(3, (0, 1)), "sigma is"),
        (lambda: ops.Pad(side="middle"), "side is left or right"),
        (lambda: ops.Pad(-1), "length must not be negative"),
        (lambda: check_probability(2, "p"), "p must be from 0 to 1, not 2"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        make()


CHANNELS_FIRST = ops.ChannelsFirst().infer(IMAGES)
GRAY = Spec(np.dtype(np.uint8), (12, 16, 1))
FLOATS = Spec(np.dtype(np.float32), (12, 16, 3))
TENSORS = Spec(np.dtype(np.uint8), (12, 16, 3), torch=True)
LABELS = Spec(np.dtype(np.int64))
RAGGED = Spec(np.dtype(np.uint8), (None,), ragged=True)
CELLS = Spec(None)
ON_IMAGES = [
    # It takes them with channels first, too.
    *(op for op in RANDOM_OPS.values() if not isinstance(op, ops.RandomErasing)),
    ops.ChannelsFirst(),
]


@pytest.mark.parametrize("op", ON_IMAGES, ids=lambda op: type(op).__name__)
@pytest.mark.parametrize("spec", [CHANNELS_FIRST, TENSORS, LABELS, RAGGED, CELLS], ids=str)
def test_images_are_needed(op, spec):
    with pytest.raises(OptionError, match=r"needs images \(height, width, channels\), not "):
        op.infer(spec)


@pytest.mark.parametrize(
    ("op", "spec", "message"),
    [
        (ops.RandomBrightness(0.1), GRAY, "RandomBrightness needs three channels, not uint8 (12, 16, 1)"),
        (ops.RandomBrightness(0.1), FLOATS, "RandomBrightness needs uint8 images, not float32 (12, 16, 3)"),
        (ops.Normalize([1, 2], [1, 2]), IMAGES, "uint8 images of 2 channels, not uint8 (12, 16, 3)"),
        (ops.Normalize([1] * 2, [1] * 2), FLOATS, "Normalize has 2 means, and they do not fit float32"),
        (ops.RandomTranslate(3, (0, 0, -1)), IMAGES, "is out of range for uint8"),
        (ops.RandomCrop(3, fill=(1, 2, 3)), GRAY, "the fill has 3 numbers"),
        (ops.RandomCrop(20, padding=3), IMAGES, "RandomCrop of (20, 20) does not fit images of 16×12"),
        (ops.Pad(), IMAGES, "Pad needs values whose first size varies"),
        (ops.Pad(), CELLS, "Pad needs values whose first size varies"),
        (ops.Convert("int8"), CELLS, "Convert needs numbers, not cells"),
        (ops.Decode(), CELLS, "Decode needs images (height, width, channels), not cells"),
    ],
)
def test_wrong_input(op, spec, message):
    with pytest.raises(OptionError, match=re.escape(message)):
        op.infer(spec)


def test_an_op_says_its_arguments():
    """As it would be written; what is as always is left out."""
    assert repr(ops.Resize(4)) == "Resize(size=(4, 4))"
    assert repr(ops.Resize(4, orient=True)) == "Resize(size=(4, 4), orient=True)"
    assert repr(ops.Normalize([1], [2], "float16")) == "Normalize(mean=[1.0], std=[2.0], dtype='float16')"
    assert repr(ops.Function(pixels)).startswith("Function(pixels, loaders.py:")
