"""Levels, policies and erasing: within a level what Pillow gives, which torchvision calls."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageEnhance, ImageOps

import batchplant as bp
from batchplant import ops
from batchplant.errors import OptionError
from batchplant.ops import Draws, Spec
from batchplant.ops.changes import Change, Changes, change
from batchplant.ops.colour import quantiles
from loaders import pixels, smooth, write, write_raw

SIZES = np.array([[12, 16]], np.int32)


def draws(ids: Any, *, seed: int = 1, epoch: int = 0, name: str = "op") -> Draws:
    return Draws(seed, epoch, np.asarray(ids, dtype=np.int64), name)


def jpeg(image: Any, quality: int) -> Any:
    data = io.BytesIO()
    image.save(data, "JPEG", quality=quality)
    return Image.open(data)


def moved(image: Any, matrix: Any, filter: Any, fill: Any) -> Any:
    return image.transform(image.size, Image.Transform.AFFINE, list(matrix), filter, fillcolor=fill)


PILLOW = {
    Change.BRIGHTNESS: lambda image, amount: ImageEnhance.Brightness(image).enhance(amount),
    Change.CONTRAST: lambda image, amount: ImageEnhance.Contrast(image).enhance(amount),
    Change.SATURATION: lambda image, amount: ImageEnhance.Color(image).enhance(amount),
    Change.SHARPNESS: lambda image, amount: ImageEnhance.Sharpness(image).enhance(amount),
    Change.POSTERIZE: lambda image, amount: ImageOps.posterize(image, int(amount)),
    Change.SOLARIZE: ImageOps.solarize,
    Change.INVERT: lambda image, amount: ImageOps.invert(image),
    Change.AUTOCONTRAST: lambda image, amount: ImageOps.autocontrast(image),
    Change.EQUALIZE: lambda image, amount: ImageOps.equalize(image),
    Change.JPEG: lambda image, amount: jpeg(image, int(amount)),
}


def by_pillow(image: Any, codes: Any, amounts: Any, fill: Any = 0, bilinear: bool = False) -> Any:
    """One image (height, width, channels) after some changes."""
    shown = Image.fromarray(image[..., 0] if image.shape[2] == 1 else image)
    filter = Image.Resampling.BILINEAR if bilinear else Image.Resampling.NEAREST
    colour = fill if image.shape[2] == 1 else tuple(np.broadcast_to(fill, 3).tolist())
    for code, amount in zip(codes, amounts, strict=True):
        if code == Change.AFFINE:
            shown = moved(shown, amount, filter, colour)
        elif code != Change.NONE:
            shown = PILLOW[Change(code)](shown, amount[0])
    return np.asarray(shown).reshape(image.shape)


def any_image(seed: int, height: int, width: int, channels: int, spread: int) -> Any:
    """Noise about some level; little spread leaves levels that no pixel has."""
    rng = np.random.default_rng(seed)
    return rng.integers(128 - spread, 128 + spread, (height, width, channels)).astype(np.uint8)


sides = st.integers(1, 40)
images = st.builds(any_image, st.integers(0, 9), sides, sides, st.sampled_from([1, 3]), st.integers(1, 128))
AMOUNTS = {
    Change.POSTERIZE: st.integers(1, 8),
    Change.SOLARIZE: st.floats(0, 256),
    Change.JPEG: st.integers(1, 100),
}


@pytest.mark.parametrize("code", PILLOW, ids=lambda code: code.name)
def test_every_change_is_pillows(code):
    @given(images, AMOUNTS.get(code, st.floats(0, 3)))
    def check(image, amount):
        result = Changes.none(1, 1)
        result.codes[:], result.amounts[0, 0, 0] = code, amount
        want = by_pillow(image, result.codes[0], result.amounts[0])
        got = change(image[None].copy(), result)[0]
        # Its libjpeg may be another, and some builds of it multiply and add in one go.
        assert np.abs(got.astype(int) - want).max() <= (2 if code == Change.JPEG else 1)

    check()


@pytest.mark.parametrize("bilinear", [False, True])
def test_images_are_moved_as_by_pillow(bilinear):
    @given(
        images, st.lists(st.floats(-1, 1), min_size=4, max_size=4), st.integers(-9, 9), st.integers(0, 255)
    )
    def check(image, parts, shift, fill):
        result = Changes.none(1, 1)
        result.codes[:] = Change.AFFINE
        result.amounts[0, 0] = [1 + parts[0], parts[1], shift, parts[2], 1 + parts[3], -shift / 3]
        want = by_pillow(image, result.codes[0], result.amounts[0], fill, bilinear)
        got = change(image[None].copy(), result, fill, bilinear)[0]
        away = np.abs(got.astype(int) - want)
        assert (away > 2).mean() <= (0.0 if image.size < 100 else 0.002)

    check()


def test_ops_are_those_changes():
    ids = np.arange(40)
    batch = np.stack([pixels(n, 20, 30) for n in ids])
    cases: list[tuple[ops.Op, Any]] = [
        (ops.Invert(1.0), PILLOW[Change.INVERT]),
        (ops.AutoContrast(1.0), PILLOW[Change.AUTOCONTRAST]),
        (ops.Equalize(1.0), PILLOW[Change.EQUALIZE]),
        (ops.Posterize(3, 1.0), PILLOW[Change.POSTERIZE]),
        (ops.Sharpness(1.7, 1.0), PILLOW[Change.SHARPNESS]),
        (ops.JpegArtifacts(30, 1.0), PILLOW[Change.JPEG]),
    ]
    amounts = {"Posterize": 3, "Sharpness": 1.7, "JpegArtifacts": 30}
    for op, pillow in cases:
        got = op.run(batch.copy(), ids, draws(ids))
        for row in range(0, 40, 8):
            want = np.asarray(pillow(Image.fromarray(batch[row]), amounts.get(type(op).__name__, 0)))
            assert np.abs(got[row].astype(int) - want).max() <= 2, op


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_channels_are_changed_each_by_itself(channels):
    ids = np.arange(5)
    batch = np.stack([pixels(n, 30, 41, channels) // 2 for n in ids])
    for op in (ops.AutoContrast(1.0), ops.Equalize(1.0), ops.Sharpness(2.0, 1.0), ops.Posterize(3, 1.0)):
        got = op.run(batch.copy(), ids, draws(ids))
        assert (got != batch).any()
        for channel in range(channels):
            alone = op.run(batch[..., channel : channel + 1].copy(), ids, draws(ids))
            assert np.array_equal(got[..., channel], alone[..., 0])


def test_amounts_are_drawn_from_their_whole_range():
    ids = np.arange(4000)
    bits = ops.Posterize((3, 6), 1.0)._changes(draws(ids))
    assert sorted(np.unique(bits.amounts[:, 0, 0])) == [3, 4, 5, 6]
    quality = ops.JpegArtifacts((40, 90), 0.25)._changes(draws(ids))
    assert (quality.amounts[:, 0, 0].min(), quality.amounts[:, 0, 0].max()) == (40, 90)
    assert abs((quality.codes == Change.JPEG).mean() - 0.25) < 0.03
    factor = ops.Sharpness((0.5, 1.5))._changes(draws(ids)).amounts[:, 0, 0]
    assert 0.5 <= factor.min() < 0.51
    assert 1.49 < factor.max() < 1.5


# -- noise --------------------------------------------------------------------------------------------------


def test_noise_is_normal_and_each_level_has_its_own():
    batch = np.full((6, 50, 61, 3), 128, np.uint8)
    ids = np.arange(6)
    got = ops.GaussianNoise(10, 1.0).run(batch.copy(), ids, draws(ids)).astype(float) - 128
    assert abs(got.mean()) < 0.2
    assert abs(got.std() - 10) < 0.2
    inside = (np.abs(got) < 10.5).mean()
    assert abs(inside - 0.706) < 0.01
    flat = got.reshape(6, -1)
    for item, other in ((flat[:, :-1], flat[:, 1:]), (flat[:-1], flat[1:]), (flat[:, :-5], flat[:, 5:])):
        assert abs(np.corrcoef(item.ravel(), other.ravel())[0, 1]) < 0.02
    assert np.isclose(quantiles().astype(float).var(), 1)
    assert np.array_equal(quantiles(), -quantiles()[::-1])


def test_noise_stops_at_black_and_white_and_differs_between_frames():
    ids = np.arange(2)
    for level in (0, 255):
        got = ops.GaussianNoise(255, 1.0).run(np.full((2, 9, 9, 3), level, np.uint8), ids, draws(ids))
        assert (got.min(), got.max()) == (0, 255)
    clips = Spec(np.dtype(np.uint8), (4, 9, 9, 3))
    op = ops.GaussianNoise(20, 1.0)
    assert op.infer(clips) == clips
    got = op.run(np.full((2, 4, 9, 9, 3), 100, np.uint8), ids, draws(ids))
    assert not np.array_equal(got[:, 0], got[:, 1])


# -- policies -----------------------------------------------------------------------------------------------


def facts(op: Any, rows: int = 20_000, size: tuple[int, int] = (100, 200)) -> Any:
    """What a policy drew first for many samples: codes and amounts."""
    sizes = np.tile(np.array([size], np.int32), (rows, 1))
    if isinstance(op, ops.AugMix):
        chains, _ = op.chains(sizes, draws(np.arange(rows)))
        return chains[0].codes[:, 0], chains[0].amounts[:, 0]
    result = op.changes(sizes, draws(np.arange(rows)))
    return result.codes[:, 0], result.amounts[:, 0]


# By hand, from the papers' and torchvision's tables, for images of 200 x 100.
def expected(shear, across, down, angle, enhance, bits, solarize):  # fmt: skip
    matrices = [(1, s, 0, 0, 1, 0) for s in (shear, -shear)] + [(1, 0, 0, s, 1, 0) for s in (shear, -shear)]
    matrices += [(1, 0, s, 0, 1, 0) for s in (across, -across)]
    matrices += [(1, 0, 0, 0, 1, s) for s in (down, -down)]
    for turn in (angle, -angle):
        cos, sin = np.cos(np.radians(turn)), np.sin(np.radians(turn))
        matrices.append((cos, -sin, 100 - 100 * cos + 50 * sin, sin, cos, 50 - 100 * sin - 50 * cos))
    result = {(int(Change.AFFINE), *np.round(matrix, 6)) for matrix in matrices}
    for code in (Change.BRIGHTNESS, Change.CONTRAST, Change.SATURATION, Change.SHARPNESS):
        result |= {(int(code), round(1 + s, 6), 0, 0, 0, 0, 0) for s in (enhance, -enhance)}
    result |= {(int(Change.POSTERIZE), bits, 0, 0, 0, 0, 0), (int(Change.SOLARIZE), solarize, 0, 0, 0, 0, 0)}
    return result | {(int(item), 0, 0, 0, 0, 0, 0) for item in (Change.AUTOCONTRAST, Change.EQUALIZE)}


def test_magnitudes_of_rand_augment():
    codes, amounts = facts(ops.RandAugment(2, 9))
    actual = {(int(code), *np.round(amount, 6)) for code, amount in zip(codes, amounts, strict=True)}
    # 150 / 331 of the side, times 9 / 30, without its fraction.
    want = expected(0.09, 27, 13, 9.0, 0.27, 7, 178.5) | {(0, 0, 0, 0, 0, 0, 0)}
    assert actual == want
    # Fourteen changes, equally likely; five of them move.
    share = np.bincount(codes, minlength=12) / len(codes)
    assert np.allclose(share[[0, *range(1, 7), 8, 9]], 1 / 14, atol=0.008)
    assert abs(share[Change.AFFINE] - 5 / 14) < 0.015
    assert share[Change.INVERT] == share[Change.JPEG] == 0


def test_the_strongest_and_weakest_of_the_policies():
    actual = {(int(c), *np.round(a, 6)) for c, a in zip(*facts(ops.RandAugment(1, 30)), strict=True)}
    assert actual == expected(0.3, 90, 45, 30.0, 0.9, 4, 0) | {(0, 0, 0, 0, 0, 0, 0)}
    codes, amounts = facts(ops.TrivialAugment(), 200_000)
    assert sorted(np.unique(amounts[codes == Change.POSTERIZE, 0])) == [2, 3, 4, 5, 6, 7, 8]
    moves = amounts[codes == Change.AFFINE]
    assert np.abs(moves[:, 1]).max() == pytest.approx(0.99, abs=0.02)
    straight = moves[(moves[:, 1] == 0) & (moves[:, 3] == 0)]
    assert np.abs(straight[:, [2, 5]]).max() == 32
    assert moves[:, 0].min() == pytest.approx(np.cos(np.radians(135)))
    assert amounts[codes == Change.SHARPNESS, 0].min() == pytest.approx(0.01)
    assert amounts[codes == Change.SHARPNESS, 0].max() == pytest.approx(1.99)
    codes, amounts = facts(ops.AugMix(severity=10))
    assert sorted(np.unique(amounts[codes == Change.POSTERIZE, 0])) == [0, 1, 2, 3, 4]
    assert not (codes == Change.NONE).any()
    codes, _ = facts(ops.AugMix(all_ops=False))
    assert set(codes) == {
        Change.AFFINE,
        Change.POSTERIZE,
        Change.SOLARIZE,
        Change.AUTOCONTRAST,
        Change.EQUALIZE,
    }


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("filter", ["nearest", "bilinear"])
def test_policies_do_what_pillow_does_with_their_draws(channels, filter):
    ids = np.arange(120)
    batch = np.stack([smooth(n, 37, 50)[..., :channels] for n in ids])
    fill = 77 if channels == 1 else (10, 20, 30)
    for op in (
        ops.RandAugment(2, 12, fill=fill, filter=filter),
        ops.TrivialAugment(fill=fill, filter=filter),
    ):
        result = op.changes(np.tile(np.array([[37, 50]], np.int32), (120, 1)), draws(ids))
        now = batch.copy()
        for step in range(result.codes.shape[1]):
            only = Changes(result.codes[:, [step]].copy("C"), result.amounts[:, [step]].copy("C"))
            after = change(now.copy(), only, fill, filter == "bilinear")
            for row in range(120):
                want = by_pillow(now[row], only.codes[row], only.amounts[row], fill, filter == "bilinear")
                # Some builds of Pillow multiply and add in one go, and round once less.
                assert np.abs(after[row].astype(int) - want).max() <= 1, (op, row)
            now = after
        assert np.array_equal(op.run(batch.copy(), ids, draws(ids)), now)


def test_rotation_is_pillows():
    image = smooth(3, 60, 45)
    [rotate] = [item for item in ops.TrivialAugment()._list if item.magnitudes[-1] == 135]
    for angle in (-135.0, -30.0, 7.5, 90.0, 131.0):
        result = Changes.none(1, 1)
        result.codes[:] = Change.AFFINE
        result.amounts[0] = rotate.amounts(np.array([angle]), np.array([[60, 45]], np.int32))
        want = np.asarray(Image.fromarray(image).rotate(angle, Image.Resampling.NEAREST))
        assert np.array_equal(change(image[None].copy(), result)[0], want)


def test_augmix_mixes_the_image_with_its_chains():
    ids = np.arange(30)
    batch = np.stack([smooth(n, 24, 32) for n in ids])
    op = ops.AugMix(5, 2, alpha=0.7, fill=9)
    chains, weights = op.chains(np.tile(np.array([[24, 32]], np.int32), (30, 1)), draws(ids))
    assert weights.shape == (30, 3)
    assert np.allclose(weights.sum(axis=1), 1)
    got = op.run(batch.copy(), ids, draws(ids))
    for row in range(30):
        want = weights[row, 0] * batch[row]
        for chain, weight in zip(chains, weights[row, 1:], strict=True):
            only = Changes(chain.codes[row : row + 1], chain.amounts[row : row + 1])
            want = want + weight * change(batch[row : row + 1].copy(), only, 9, smooth=True)[0]
        assert np.abs(got[row] - np.floor(want)).max() <= 1
    depths = np.concatenate([(chain.codes != Change.NONE).sum(axis=1) for chain in chains])
    assert set(depths) == {1, 2, 3}
    assert (
        ops.AugMix(chain_depth=2).chains(np.tile(SIZES, (9, 1)), draws(np.arange(9)))[0][0].codes > 0
    ).all()


@pytest.mark.parametrize("alpha", [0.2, 1.0, 3.0])
def test_weights_of_augmix_are_dirichlets(alpha):
    rows = 20_000
    _, weights = ops.AugMix(alpha=alpha).chains(np.tile(SIZES, (rows, 1)), draws(np.arange(rows)))
    # Of two parts the first is a beta variable: mean 1/2, variance 1 / (4 (2 alpha + 1)).
    assert weights[:, 0].mean() == pytest.approx(0.5, abs=0.015)
    assert weights[:, 0].var() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.05)
    parts = weights[:, 1:] / weights[:, 1:].sum(axis=1, keepdims=True)
    assert np.allclose(parts.mean(axis=0), 1 / 3, atol=0.02)
    assert parts[:, 1].var() == pytest.approx((1 / 3) * (2 / 3) / (3 * alpha + 1), rel=0.08)


def test_what_a_policy_moves_is_told():
    """A spot goes where the motion says."""
    ids, height, width = np.arange(300), 60, 80
    sizes = np.tile(np.array([[height, width]], np.int32), (300, 1))
    batch = np.zeros((300, height, width, 3), np.uint8)
    batch[:, 27:34, 37:44] = 255
    op = ops.RandAugment(3, 10)
    result, motion = op.changes(sizes, draws(ids)), op.move(sizes, draws(ids))
    # Changes of colours must not light the background.
    only = Changes(np.where(result.codes == Change.AFFINE, result.codes, 0).astype(np.uint8), result.amounts)
    got = change(batch, only)
    assert motion is not None
    for row in range(300):
        there = motion.points(row, (40.5, 30.5))
        y, x = np.nonzero(got[row, ..., 0])
        if len(x) >= 49 - 14:
            assert np.abs(there - (x.mean() + 0.5, y.mean() + 0.5)).max() < 1.2
    assert ops.AugMix().move(sizes, draws(ids)) is None
    assert ops.Invert().move(sizes, draws(ids)) is None


# -- erasing ------------------------------------------------------------------------------------------------


def erased(op: Any, batch: Any, ids: Any = None) -> Any:
    ids = np.arange(len(batch)) if ids is None else ids
    return op.run(batch.copy(), ids, draws(ids))


def test_erasing_covers_rectangles_of_the_scale_and_ratio():
    count, height, width = 2000, 40, 60
    batch = np.full((count, height, width, 3), 200, np.uint8)
    hit = erased(ops.RandomErasing(0.7, (0.05, 0.2), (0.5, 2.0), (1, 2, 3)), batch)[..., 0] == 1
    rows, columns = hit.any(axis=2), hit.any(axis=1)
    high, wide = rows.sum(axis=1), columns.sum(axis=1)
    assert np.array_equal(hit.sum(axis=(1, 2)), high * wide)
    chosen = high > 0
    assert abs(chosen.mean() - 0.7) < 0.04
    share = (high * wide)[chosen] / (height * width)
    assert share.min() > 0.04
    assert share.max() < 0.22
    assert np.percentile(high[chosen] / wide[chosen], 1) > 0.42
    assert np.percentile(high[chosen] / wide[chosen], 99) < 2.3
    # Every corner is reached.
    assert hit[:, 0].any()
    assert hit[:, -1].any()
    assert hit[:, :, 0].any()
    assert hit[:, :, -1].any()


def test_random_values_and_layouts():
    ids = np.arange(50)
    levels = erased(ops.RandomErasing(1.0, (0.3, 0.3), value="random"), np.zeros((50, 30, 30, 3), np.uint8))
    seen = levels[levels > 0]
    assert abs(seen.mean() - 128) < 2
    floats = np.full((50, 30, 20, 3), 9.0, np.float32)
    op = ops.RandomErasing(1.0, (0.3, 0.3), value="random")
    last = erased(op, floats, ids)
    values = last[last != 9]
    assert abs(values.mean()) < 0.03
    assert abs(values.std() - 1) < 0.03
    first = op.for_spec(Spec(np.dtype(np.float32), (3, 30, 20), channels_first=True))
    got = first.run(np.ascontiguousarray(np.moveaxis(floats, -1, 1)), ids, draws(ids))
    assert np.array_equal(np.moveaxis(got, 1, -1), last)


def test_nothing_is_erased_of_what_no_rectangle_fits():
    batch = np.full((20, 1, 1, 3), 5, np.uint8)
    assert (erased(ops.RandomErasing(1.0, (0.9, 1.0), value=1), batch) == 5).all()


# -- on a device --------------------------------------------------------------------------------------------

OPS = {
    "posterize": ops.Posterize((2, 6), 0.7), "equalize": ops.Equalize(0.7), "invert": ops.Invert(0.7),
    "autocontrast": ops.AutoContrast(0.7), "sharpness": ops.Sharpness((0.0, 3.0), 0.7),
    "jpeg": ops.JpegArtifacts((10, 95), 0.7), "noise": ops.GaussianNoise((0, 40), 0.7),
    "randaugment": ops.RandAugment(3, 15, fill=(7, 8, 9)), "trivial": ops.TrivialAugment(fill=99),
    "smooth": ops.TrivialAugment(filter="bilinear"), "augmix": ops.AugMix(8, fill=3),
    "erasing": ops.RandomErasing(0.7, value=(1, 2, 3)), "erased": ops.RandomErasing(0.7, value="random"),
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("shape", [(31, 45, 3), (1, 1, 3), (16, 5, 1)], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_a_device_makes_the_same(name, shape, device):
    torch = pytest.importorskip("torch")
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    from batchplant.interop.gpu.on_device import DeviceTensors

    if shape[2] == 1 and name in ("randaugment", "erasing"):
        pytest.skip("its colour has three channels")
    op, ids = OPS[name], np.arange(24)
    batch = np.stack([smooth(n, *shape[:2])[..., : shape[2]] for n in ids])
    want = op.run(batch.copy(), ids, draws(ids))
    assert want.dtype == np.uint8
    assert op.device_form is not None
    sent = torch.from_numpy(batch.copy()).to(device)
    got = op.device_form(sent, ids, draws(ids), DeviceTensors(torch.device(device)))
    assert got.dtype == torch.uint8
    away = np.abs(got.cpu().numpy().astype(int) - want)
    # In single precision, a place at the very edge of an image may be outside of it.
    assert (away > 2).mean() <= (0.001 if name in ("smooth", "augmix") else 0)
    assert (away > 0).mean() < 0.05


def test_erasing_on_a_device_with_channels_first():
    torch = pytest.importorskip("torch")
    from batchplant.interop.gpu.on_device import DeviceTensors

    ids = np.arange(20)
    batch = np.random.default_rng(0).random((20, 3, 30, 20)).astype(np.float32)
    for value in ("random", 0.5, (1.0, 2.0, 3.0)):
        op = ops.RandomErasing(0.8, value=value).for_spec(
            Spec(np.dtype(np.float32), (3, 30, 20), channels_first=True)
        )
        want = op.run(batch.copy(), ids, draws(ids))
        assert (want != batch).any()
        got = op.device_form(torch.from_numpy(batch), ids, draws(ids), DeviceTensors(torch.device("cpu")))
        assert np.array_equal(got.numpy(), want)


# -- in a loader --------------------------------------------------------------------------------------------


def test_in_a_loader(tmp_path):
    """Whatever the batch, a sample comes out the same; normalised images are erased with channels first."""
    path = write_raw(tmp_path / "raw.beton", 12)
    pipeline = [
        ops.RandAugment(), ops.JpegArtifacts(), ops.GaussianNoise(), ops.Normalize((0, 0, 0), (1, 1, 1)),
        ops.ChannelsFirst(), ops.RandomErasing(1.0, value=-1.0),
    ]  # fmt: skip
    result = []
    for size in (12, 5):
        loader = bp.Loader(path, size, pipelines={"image": pipeline}, seed=4)
        result.append(np.concatenate([batch["image"] for batch in loader]))
        loader.close()
    assert result[0].shape == (12, 3, 12, 16)
    assert np.array_equal(*result)
    assert ((result[0] == -1).sum(axis=(1, 2, 3)) > 0).all()


def test_boxes_go_along(tmp_path):
    fields = {"image": bp.Image(), "boxes": bp.Boxes(of="image")}
    image = np.zeros((60, 60, 3), np.uint8)
    image[20:40, 15:35] = 255
    samples = [{"image": image, "boxes": np.array([[15, 20, 35, 40]], np.float32)}] * 16
    path = write(tmp_path / "boxes.beton", fields, samples)
    policy = ops.RandAugment(2, 12)
    policy._list = [item for item in policy._list if item.change in (Change.NONE, Change.AFFINE)]
    loader = bp.Loader(path, 16, pipelines={"image": [policy]}, seed=1)
    [batch] = loader
    loader.close()
    values, offsets = batch["boxes"]
    compared = 0
    for row in range(16):
        y, x = np.nonzero(batch["image"][row, ..., 0])
        if offsets[row + 1] > offsets[row]:
            seen = (x.min(), y.min(), x.max() + 1, y.max() + 1)
            assert np.abs(values[offsets[row]] - seen).max() < 2.5
            compared += not np.array_equal(seen, (15, 20, 35, 40))
    assert compared > 8


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("channels", [1, 3])
def test_normalised_planes_are_those_of_the_two_steps(dtype, channels):
    from batchplant.ops.normalize import NormalizedPlanes

    ids = np.arange(4)
    batch = np.stack([pixels(n, 7, 9)[..., :channels] for n in ids])
    normalize = ops.Normalize((120, 110, 100)[:channels], (60, 50, 40)[:channels], dtype)
    both = NormalizedPlanes(normalize)
    want = np.moveaxis((batch - normalize.mean) / normalize.std, -1, 1).astype(dtype)
    for some, wanted in ((batch, want), (batch[:0], want[:0])):
        got = both.run(some, ids, draws(ids))
        assert got.dtype == dtype
        assert np.array_equal(got, wanted)
    assert np.array_equal(normalize.run(batch, ids, draws(ids)), np.moveaxis(want, 1, -1))
    assert both.infer(Spec(np.dtype(np.uint8), (7, 9, channels))).shape == (channels, 7, 9)


def test_masks_go_along_by_share(tmp_path):
    fields = {"image": bp.Image(), "mask": bp.Image(mask=True)}
    mask = np.zeros((60, 60), np.uint8)
    mask[20:40, 15:35] = 7
    image = np.repeat(np.where(mask, 255, 0).astype(np.uint8)[..., None], 3, axis=2)
    path = write(tmp_path / "masks.beton", fields, [{"image": image, "mask": mask}] * 16)
    policy = ops.RandAugment(2, 12, share="both")
    policy._list = [item for item in policy._list if item.change not in (Change.SOLARIZE, Change.EQUALIZE)]
    own = ops.RandAugment(2, 12, fill=9, filter="bilinear", share="both")
    own._list = policy._list
    loader = bp.Loader(path, 16, pipelines={"image": [policy], "mask": [own]}, seed=1)
    [batch] = loader
    loader.close()
    assert set(np.unique(batch["mask"])) == {0, 7, 9}
    assert np.array_equal(batch["mask"][..., 0] == 7, batch["image"].max(axis=3) > 64)
    loader = bp.Loader(path, 16, pipelines={"image": [ops.AugMix()], "mask": [ops.AugMix()]})
    assert (next(iter(loader))["mask"][..., 0] == mask).all()
    loader.close()


# -- errors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: ops.Posterize(9), "bits is a number or"),
        (lambda: ops.Posterize((5, 3)), "bits is a number or"),
        (lambda: ops.Sharpness(-1), "factor is a number or"),
        (lambda: ops.JpegArtifacts((0, 50)), "from 1 to 100"),
        (lambda: ops.GaussianNoise(float("nan")), "sigma is a number or"),
        (lambda: ops.Invert(2), "p must be from 0 to 1"),
        (lambda: ops.RandAugment(magnitude=31), "magnitude must be from 0 to 30"),
        (lambda: ops.RandAugment(num_ops=0), "num_ops must be from 1"),
        (lambda: ops.RandAugment(filter="bicubic"), "nearest, bilinear"),
        (lambda: ops.AugMix(severity=11), "severity must be from 1 to 10"),
        (lambda: ops.AugMix(alpha=0), "alpha must be above 0"),
        (lambda: ops.RandomErasing(scale=(0.5, 0.1)), "scale is"),
        (lambda: ops.RandomErasing(value="noise"), '"random"'),
    ],
)
def test_wrong_arguments(make, says):
    with pytest.raises(OptionError, match=says):
        make()


def test_what_they_take():
    bytes_ = np.dtype(np.uint8)
    for op in OPS.values():
        assert op.infer(Spec(bytes_, (9, 9, 3))).shape == (9, 9, 3)
    for op in (ops.RandAugment(), ops.Equalize(), ops.GaussianNoise()):
        with pytest.raises(OptionError, match="uint8"):
            op.infer(Spec(np.dtype(np.float32), (9, 9, 3)))
    for op in (ops.RandAugment(), ops.JpegArtifacts()):
        with pytest.raises(OptionError, match="one or three channels"):
            op.infer(Spec(bytes_, (9, 9, 4)))
    with pytest.raises(OptionError, match="fill"):
        ops.RandAugment(fill=(1, 2)).infer(Spec(bytes_, (9, 9, 3)))
    with pytest.raises(OptionError, match="out of range"):
        ops.RandomErasing(value=300).infer(Spec(bytes_, (9, 9, 3)))
    assert ops.RandomErasing().infer(Spec(np.dtype(np.float32), (9, 9, 3))).dtype == np.float32
    assert repr(ops.JpegArtifacts((10, 20))) == "JpegArtifacts(quality=(10, 20))"
    assert repr(ops.AugMix(fill=(1, 2, 3))) == "AugMix(fill=[1, 2, 3])"
