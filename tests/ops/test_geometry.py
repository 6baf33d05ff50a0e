"""Where ops take pixels: against Pillow; by the engine, by ops and on devices; one pass for many steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image

import batchplant as bp
from batchplant import _native, ops
from batchplant.errors import DecodeError, OptionError
from batchplant.loading.executor import geometric_transforms
from batchplant.loading.plan import make_plan
from batchplant.ops import Draws, Spec
from batchplant.ops.cutting import cuts_of, engine
from loaders import smooth, write

LEVELS = 2
SIZES = [(40, 56), (61, 33), (48, 48), (30, 70)]


def draws(count: int, name: str = "op", epoch: int = 0) -> Draws:
    return Draws(7, epoch, np.arange(count), name)


def off(one: Any, other: Any) -> int:
    """By how many levels they differ at most."""
    assert one.shape == other.shape
    return int(np.abs(np.asarray(one, np.int64) - np.asarray(other, np.int64)).max(initial=0))


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Smooth images of four sizes, without loss; and masks of their brightest parts."""
    fields = {"image": bp.Image(), "mask": bp.Image(mask=True), "label": bp.Int()}
    samples = (
        {"image": item, "mask": (item[..., 0] > 128).astype(np.uint8), "label": n}
        for n, item in enumerate(map(image, range(12)))
    )
    return write(tmp_path_factory.mktemp("images") / "data.tar", fields, samples, image_format="png")


def image(n: int) -> Any:
    return smooth(n, *SIZES[n % len(SIZES)])


def load(path: str, steps: Any, batch: int = 12, **options: Any) -> Any:
    pipelines = {"image": steps, "mask": None, "label": None, **options.pop("others", {})}
    with_ids = {"ids": True, "workers": 2, "seed": 7, **options}
    loader = bp.Loader(path, batch, pipelines=pipelines, **with_ids)
    try:
        return list(loader)
    finally:
        loader.close()


# -- the engine ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32"])
@pytest.mark.parametrize("filter", ["area", "bilinear", "nearest"])
def test_places_and_fill(layout, dtype, filter):
    images = [smooth(n, 20 + n, 31 - n) for n in range(3)]
    places = np.array([[2, 3, 10, 9], [0, 0, 16, 14], [5, 0, 0, 7]], dtype=np.int32)
    boxes = np.array([[1.5, 2, 20, 18], [0, 0, 0, 0], [0, 0, 5, 5]])
    down = np.array([True, False, True])
    scaled = {} if dtype == "uint8" else {"scale": np.float32([0.5, 2, 1]), "offset": np.float32([1, 2, 3])}
    cells = [item.reshape(-1) for item in images]
    where = np.arange(3, dtype=np.int32), np.zeros(3, np.int64), np.array([cell.size for cell in cells])
    shapes = np.array([item.shape for item in images], dtype=np.int32)
    shape = (3, 16, 14, 3) if layout == "nhwc" else (3, 3, 16, 14)
    out = np.full(shape, 77, dtype)
    how = {"layout": layout, "filter": filter, **scaled}
    flip = np.array([False, True, True])
    status, errors, _ = engine().decode(
        cells, *where, shapes, boxes, flip, out, place=places, down=down,
        fill=np.array([9, 8, 7], np.uint8), **how,
    )  # fmt: skip
    assert not status.any(), errors
    fill = np.array([9, 8, 7], np.float32)
    fill = fill * how["scale"] + how["offset"] if scaled else fill
    for n in range(3):
        seen = out[n] if layout == "nhwc" else np.moveaxis(out[n], 0, -1)
        want = np.empty_like(seen)
        want[:] = fill
        top, left, high, wide = places[n]
        if high and wide:
            alone = np.empty((1, high, wide, 3), dtype)
            one = slice(n, n + 1)
            engine().decode(
                [cells[n]], np.zeros(1, np.int32), where[1][one], where[2][one], shapes[one], boxes[one],
                flip[one], alone, layout="nhwc", filter=filter, **scaled,
            )  # fmt: skip
            want[top : top + high, left : left + wide] = alone[0][::-1] if down[n] else alone[0]
        assert np.array_equal(seen, want)


@pytest.mark.parametrize("place", [[-1, 0, 4, 4], [0, 0, 9, 4], [0, 6, 4, 4], [0, 0, 4, -1]])
def test_places_outside_are_refused(place):
    one = smooth(0, 8, 8)
    with pytest.raises(ValueError, match="place 0 is not in images of 8 x 8 pixels"):
        engine().decode(
            [one.reshape(-1)], np.zeros(1, np.int32), np.zeros(1, np.int64), np.array([one.size]),
            np.array([one.shape], np.int32), None, None, np.empty((1, 8, 8, 3), np.uint8), layout="nhwc",
            filter="area", place=np.array([place], np.int32),
        )  # fmt: skip


def test_what_a_warp_cannot_be():
    batch, eye = np.zeros((1, 4, 4, 3), np.uint8), np.eye(3)[None, None]
    black = np.zeros(3, np.uint8)
    with pytest.raises(ValueError, match="no larger than the image"):
        engine().warp(batch, eye, np.array([[[5, 4]]], np.int32), batch.copy(), "nearest", black)
    with pytest.raises(ValueError, match="filter must be one of"):
        engine().warp(batch, eye, np.array([[[4, 4]]], np.int32), batch.copy(), "area", black)
    # Nothing of it is anywhere: all is filled.
    out = np.ones_like(batch)
    engine().warp(batch, eye * np.nan, np.array([[[4, 4]]], np.int32), out, "bilinear", black)
    assert not out.any()


# -- against Pillow -----------------------------------------------------------------------------------------

PILLOW = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}


@pytest.mark.parametrize("filter", PILLOW)
def test_resize_then_crop_is_one_resample(path, filter):
    steps = [ops.Resize(36, filter=filter), ops.CenterCrop(30)]
    plan = make_plan(bp.open(path), {"image": steps})
    assert len(plan.outputs[0].image.steps) == 2
    assert not plan.outputs[0].steps
    [batch] = load(path, steps)
    for n, item in zip(batch["ids"], batch["image"], strict=True):
        whole = Image.fromarray(image(int(n))).resize((36, 36), PILLOW[filter])
        assert off(item, np.asarray(whole.crop((3, 3, 33, 33)))) <= LEVELS


def test_the_usual_evaluation_pipeline(path):
    """As torchvision: the shorter side to 32, then the middle."""
    [batch] = load(path, [ops.Resize(shorter=32, filter="bilinear"), ops.CenterCrop(28)])
    for n, item in zip(batch["ids"], batch["image"], strict=True):
        one = image(int(n))
        height, width = one.shape[:2]
        short = min(height, width)
        size = int(32 * height / short), int(32 * width / short)
        whole = Image.fromarray(one).resize(size[::-1], PILLOW["bilinear"])
        top, left = (round((side - 28) / 2) for side in size)
        assert off(item, np.asarray(whole.crop((left, top, left + 28, top + 28)))) <= LEVELS


def test_center_crop_pads_what_is_smaller():
    images = np.stack([smooth(0, 9, 20)])
    done = ops.CenterCrop((12, 12), ratio=None).run(images, np.arange(1), draws(1))
    # torchvision pads (12 - 9) // 2 above, the rest below, and cuts from round(4).
    want = np.zeros((1, 12, 12, 3), np.uint8)
    want[0, 1:10] = images[0, :, 4:16]
    assert np.array_equal(done, want)


@pytest.mark.parametrize(
    ("op", "size", "want"),
    [
        (ops.Resize(shorter=32), (40, 57), (32, 45)),
        (ops.Resize(longer=32), (40, 57), (22, 32)),
        (ops.Resize(fit=(20, 100)), (40, 57), (20, 28)),
        (ops.Resize(fit=(100, 20)), (40, 57), (14, 20)),
        (ops.Resize(longer=8), (1, 1000), (1, 8)),
        (ops.ImagePad((1, 2, 3, 4)), (10, 10), (16, 14)),
    ],
)
def test_sizes(op, size, want):
    assert op.after(np.array([size], np.int32))[0].tolist() == list(want)
    assert op.infer(Spec(np.dtype(np.uint8), (*size, 3))).shape == (*want, 3)


def test_letterbox(path):
    [batch] = load(path, [ops.Letterbox((32, 40), filter="bilinear")])
    for n, item in zip(batch["ids"], batch["image"], strict=True):
        one = image(int(n))
        scale = min(32 / one.shape[0], 40 / one.shape[1])
        size = round(one.shape[1] * scale), round(one.shape[0] * scale)
        want = np.full((32, 40, 3), 114, np.uint8)
        left, top = (40 - size[0]) // 2, (32 - size[1]) // 2
        want[top : top + size[1], left : left + size[0]] = Image.fromarray(one).resize(
            size, PILLOW["bilinear"]
        )
        assert off(item, want) <= 1


FILTERS = {"bilinear": Image.Resampling.BILINEAR, "nearest": Image.Resampling.NEAREST}


def edges_apart(one: Any, other: Any, filter: str) -> bool:
    """Alike but for few pixels on the border between image and fill, or where nearest is a tie."""
    differ = (np.abs(one.astype(int) - other.astype(int)) > LEVELS).any(axis=-1)
    return one.shape == other.shape and differ.mean() < (0.03 if filter == "nearest" else 0.004)


@pytest.mark.parametrize("expand", [False, True])
@pytest.mark.parametrize("filter", FILTERS)
@pytest.mark.parametrize("angle", [0, 17, -33.3, 90, 180, 270, 341])
def test_rotation(angle, filter, expand):
    one = smooth(1, 40, 56)
    op = ops.RandomRotation((angle, angle), expand=expand, filter=filter, fill=(9, 80, 7))
    [result] = op.run([one], np.arange(1), draws(1))
    turned = Image.fromarray(one).rotate(angle, FILTERS[filter], expand=expand, fillcolor=(9, 80, 7))
    assert edges_apart(result, np.asarray(turned), filter)
    if not expand:
        assert np.array_equal(op.run(one[None], np.arange(1), draws(1))[0], result)


def torchvision_affine(size: Any, angle: float, shift: Any, scale: float, shear: Any) -> list[float]:
    """From results to images, by the formula that torchvision documents: T * C * RSS * C^-1, inverted."""
    cx, cy = size[1] / 2, size[0] / 2
    rot, sx, sy = (math.radians(item) for item in (angle, *shear))
    turn = np.array([[math.cos(rot), -math.sin(rot)], [math.sin(rot), math.cos(rot)]])
    shear_y = np.array([[1, 0], [-math.tan(sy), 1]])
    shear_x = np.array([[1, -math.tan(sx)], [0, 1]])
    whole = np.eye(3)
    whole[:2, :2] = scale * turn @ shear_y @ shear_x
    at, back = np.eye(3), np.eye(3)
    at[:2, 2], back[:2, 2] = (cx + shift[0], cy + shift[1]), (-cx, -cy)
    return list(np.linalg.inv(at @ whole @ back)[:2].reshape(-1))


@pytest.mark.parametrize("filter", FILTERS)
def test_affine(filter):
    images = np.stack([smooth(n, 40, 56) for n in range(8)])
    op = ops.RandomAffine(30, (0.2, 0.1), (0.7, 1.3), (-10, 10, -5, 15), filter=filter, fill=50)
    done = op.run(images, np.arange(8), draws(8))
    drawn = draws(8)
    angle, shift = drawn.uniform(-30, 30), drawn.uniform(-1, 1, 2) * (0.2 * 56, 0.1 * 40)
    scale, x, y = drawn.uniform(0.7, 1.3), drawn.uniform(-10, 10), drawn.uniform(-5, 15)
    for n in range(8):
        matrix = torchvision_affine((40, 56), angle[n], np.round(shift[n]), scale[n], (x[n], y[n]))
        want = Image.fromarray(images[n]).transform(
            (56, 40), Image.Transform.AFFINE, matrix, FILTERS[filter], fillcolor=(50, 50, 50)
        )
        assert edges_apart(done[n], np.asarray(want), filter)


@pytest.mark.parametrize("filter", FILTERS)
def test_perspective(filter):
    images = np.stack([smooth(n, 40, 56) for n in range(8)])
    op = ops.RandomPerspective(0.6, 0.7, filter=filter, fill=50)
    done = op.run(images, np.arange(8), draws(8))
    drawn = draws(8)
    chosen, inwards = drawn.chance(0.7), drawn.uniform(0, 1, 8).reshape(8, 4, 2)
    assert 0 < chosen.sum() < 8
    start = [(0, 0), (55, 0), (55, 39), (0, 39)]
    for n in range(8):
        if not chosen[n]:
            assert np.array_equal(done[n], images[n])
            continue
        steps = np.floor(inwards[n] * (int(0.6 * 28) + 1, int(0.6 * 20) + 1))
        end = np.array(start) + steps * [[1, 1], [-1, 1], [-1, -1], [1, -1]]
        rows, right = [], []
        for (x, y), (u, v) in zip(end, start, strict=True):
            rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
            right += [u, v]
        want = Image.fromarray(images[n]).transform(
            (56, 40), Image.Transform.PERSPECTIVE, list(np.linalg.solve(rows, right)), FILTERS[filter],
            fillcolor=(50, 50, 50),
        )  # fmt: skip
        assert edges_apart(done[n], np.asarray(want), filter)


# -- one pass is many steps ---------------------------------------------------------------------------------

CUTTING = st.one_of(
    st.builds(ops.RandomCrop, st.integers(4, 40), padding=st.integers(0, 5), pad_if_needed=st.just(True)),
    st.builds(ops.CenterCrop, st.tuples(st.integers(4, 50), st.integers(4, 50)), st.none()),
    st.builds(ops.ImagePad, st.tuples(*[st.integers(0, 9)] * 4)),
    st.builds(ops.RandomTranslate, st.integers(0, 12)),
    st.just(ops.RandomHorizontalFlip()),
    st.just(ops.RandomVerticalFlip()),
    st.just(ops.VerticalFlip()),
)
# Area where images shrink: where they grow, OpenCV's takes a pixel or the next by the last bit of a double.
RESAMPLING = st.one_of(
    st.builds(ops.Resize, st.integers(8, 28), filter=st.just("area")),
    st.builds(ops.Resize, st.integers(8, 60), filter=st.just("bilinear")),
    st.builds(lambda side: ops.Resize(shorter=side, filter="bilinear"), st.integers(8, 60)),
    st.builds(lambda side: ops.Resize(longer=side, filter="bicubic"), st.integers(8, 60)),
    st.builds(ops.RandomResizedCrop, st.integers(8, 40), filter=st.just("bicubic")),
    st.builds(lambda side: ops.Letterbox(side, fill=0, filter="bilinear"), st.integers(8, 60)),
)
PLAIN = st.one_of(
    st.just(ops.RandomHorizontalFlip()),
    st.just(ops.RandomVerticalFlip()),
    st.just(ops.RandomCrop(30)),
)


@given(st.lists(PLAIN, max_size=2), RESAMPLING, st.lists(CUTTING, max_size=4), st.integers(0, 9))
@settings(max_examples=25)
def test_composed_is_sequential(before, resampling, after, epoch):
    """All in one pass of the engine, against one step after another."""
    # What these filters see beyond a crop is why the plan does not put them behind one.
    assume(resampling.filter == "area" or not any(isinstance(op, ops.RandomCrop) for op in before))
    images = [smooth(n, *SIZES[n]) for n in range(4)]
    steps = [*before, resampling, *after]
    sizes = np.array([item.shape[:2] for item in images], np.int32)
    at, motions, want = sizes, [], images
    for number, op in enumerate(steps):
        motions.append(op.move(at, draws(4, str(number), epoch)))
        at = motions[-1].sizes
        want = list(op.run(want, np.arange(4), draws(4, str(number), epoch)))
    cuts = cuts_of(sizes, motions)
    for n in range(4):
        result = np.empty((1, *cuts.sizes[n], 3), np.uint8)
        one = slice(n, n + 1)
        status, errors, _ = engine().decode(
            [images[n].reshape(-1)], np.zeros(1, np.int32), np.zeros(1, np.int64),
            np.array([images[n].size]), np.array([images[n].shape], np.int32), cuts.boxes[one],
            None if cuts.flips is None else cuts.flips[one], result, layout="nhwc",
            filter=resampling.filter or "area", down=None if cuts.downs is None else cuts.downs[one],
            place=None if cuts.places is None else cuts.places[one],
        )  # fmt: skip
        assert not status.any(), errors
        assert off(result[0], want[n]) <= LEVELS


def test_the_plan_composes(path):
    """What a loader makes of a long pipeline, against its steps one by one, with the loader's draws."""
    steps = [
        ops.RandomCrop(28, padding=2, pad_if_needed=True), ops.RandomVerticalFlip(),
        ops.Resize(40, filter="bilinear"), ops.RandomCrop(32),
        ops.RandomHorizontalFlip(), ops.ImagePad(3, fill=0),
    ]  # fmt: skip
    plan = make_plan(bp.open(path), {"image": steps})
    # The border of the first crop must not be resampled with the image: two passes.
    assert [type(step.op).__name__ for step in plan.outputs[0].image.steps] == [
        "Decode", "RandomCrop", "RandomVerticalFlip",
    ]  # fmt: skip
    steps = steps[1:]
    plan = make_plan(bp.open(path), {"image": steps})
    assert not plan.outputs[0].steps
    [batch] = load(path, steps)
    ids = batch["ids"]
    want: Any = [image(int(n)) for n in ids]
    for number, op in enumerate(steps):
        want = op.run(want, ids, Draws(7, 0, ids, f"image/{number}"))
    assert off(batch["image"], np.asarray(want)) <= LEVELS


def test_joined_warps_are_sequential_ones(path):
    steps = [ops.Resize((40, 44)), ops.RandomRotation(20), ops.RandomAffine(5, scale=(0.8, 1.1))]
    plan = make_plan(bp.open(path), {"image": steps})
    assert "RandomRotation(degrees=(-20.0, 20.0)) + RandomAffine" in str(plan)
    [batch] = load(path, steps)
    ids = batch["ids"]
    want: Any = [image(int(n)) for n in ids]
    for number, op in enumerate(steps):
        want = op.run(want, ids, Draws(7, 0, ids, f"image/{number}"))
    differ = np.abs(batch["image"].astype(int) - want) > LEVELS
    # Where an image ends, a pixel is of the image or of the fill.
    assert differ.any(axis=-1).mean() < 0.05
    assert (batch["image"] == 0).all(axis=-1).mean() > 0.05


# -- what moves goes where the motion says ------------------------------------------------------------------

MOVING = [
    ops.Resize((64, 48)), ops.Resize(shorter=50), ops.CenterCrop(40), ops.CenterCrop(60, None),
    ops.RandomResizedCrop(50, scale=(0.6, 1)), ops.RandomCrop(56, padding=4, pad_if_needed=True),
    ops.RandomTranslate(6), ops.ImagePad((3, 1, 4, 1)), ops.Letterbox((60, 90)), ops.RandomHorizontalFlip(),
    ops.RandomVerticalFlip(), ops.RandomRotation(40), ops.RandomRotation(40, expand=True),
    ops.RandomAffine(20, (0.1, 0.1), (0.8, 1.2), 10), ops.RandomPerspective(0.4, 1.0),
]  # fmt: skip


@pytest.mark.parametrize("op", MOVING, ids=lambda op: repr(op)[:40])
def test_motion_agrees_with_pixels(op):
    """A blob is where the motion takes it."""
    sizes = np.array([(64, 80), (71, 65), (60, 60)], np.int32)
    images = []
    middle = [(41.5, 30.0), (30.0, 38.0), (29.5, 30.5)]
    for (height, width), (x, y) in zip(sizes, middle, strict=True):
        rows, columns = np.mgrid[0:height, 0:width] + 0.5
        blob = 255 * np.exp(-((columns - x) ** 2 + (rows - y) ** 2) / 18)
        images.append(np.repeat(blob[..., None], 3, axis=2).astype(np.uint8))
    op.fill = np.array(0)
    moved = op.move(sizes, draws(3))
    done = op.run(images, np.arange(3), draws(3))
    for n in range(3):
        assert done[n].shape[:2] == tuple(moved.sizes[n])
        weight = done[n][..., 0].astype(float)
        rows, columns = np.mgrid[0 : weight.shape[0], 0 : weight.shape[1]] + 0.5
        path = np.array([(weight * columns).sum(), (weight * rows).sum()]) / weight.sum()
        assert np.abs(path - moved.points(n, middle[n])).max() < 0.5


def test_motion_of_a_whole_pipeline(path):
    steps = [ops.Letterbox(64), ops.RandomVerticalFlip(), ops.RandomRotation(15), ops.RandomCrop(48)]
    output = make_plan(bp.open(path), {"image": steps}).outputs[0]
    assert [len(output.image.steps), len(output.steps)] == [3, 2]
    sizes = np.array([(50, 100)], np.int32)
    moved = geometric_transforms(output, sizes, np.array([3]), seed=7, epoch=2).composed
    assert moved.sizes.tolist() == [[48, 48]]
    want = np.array([20.0, 30.0])
    at: Any = sizes
    for number, op in enumerate(steps):
        one = op.move(at, Draws(7, 2, np.array([3]), f"image/{number}"))
        want, at = one.points(0, want), one.sizes
    assert np.allclose(moved.points(0, [20.0, 30.0]), want)


# -- devices ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "op",
    [
        *(item for item in MOVING if not getattr(item, "expand", False)),
        ops.Resize((30, 20), filter="bilinear"), ops.Resize((90, 20), filter="area"),
        ops.Resize((90, 100), filter="area"), ops.Resize((31, 100), filter="bicubic"),
        ops.Resize((20, 30), filter="nearest"), ops.Letterbox(30, fill=(1, 2, 3), filter="bilinear"),
        ops.RandomRotation(30, filter="nearest", fill=9), ops.VerticalFlip(), ops.HorizontalFlip(),
    ],
    ids=lambda op: repr(op)[:50],
)  # fmt: skip
def test_device_forms(op):
    torch = pytest.importorskip("torch")
    from batchplant.interop.gpu.on_device import DeviceTensors

    images = np.stack([smooth(n, 64, 80) for n in range(5)])
    want = op.run(images.copy(), np.arange(5), draws(5))
    form = op.device_form
    result = form(torch.from_numpy(images), np.arange(5), draws(5), DeviceTensors(torch.device("cpu")))
    result = result.numpy()
    assert result.shape == np.shape(want)
    assert result.dtype == np.uint8
    assert (np.abs(result.astype(int) - want) > LEVELS).any(axis=-1).mean() < 0.003


def test_images_on_a_device(path):
    """Letterboxes and crops that pad are made by the engine there, the rest by the kernel: the same."""
    pytest.importorskip("torch")
    for steps in (
        [ops.Letterbox((32, 40)), ops.RandomVerticalFlip(), ops.Normalize([1, 2, 3], [4, 5, 6])],
        [ops.RandomCrop(44, pad_if_needed=True), ops.RandomHorizontalFlip()],
        [ops.Resize(40), ops.RandomCrop(36, padding=3), ops.RandomRotation(9), ops.ChannelsFirst()],
        [ops.Resize(shorter=20), ops.Collate("pad", multiple_of=8)],
    ):
        [want] = load(path, steps)
        [result] = load(path, steps, device="cpu", decode="cpu")
        assert (
            off(result["image"].numpy().astype(float) * 20, want["image"].astype(float) * 20) <= 20 * LEVELS
        )


# -- unequal images ---------------------------------------------------------------------------------------


def test_padded_batches(path):
    steps = [
        ops.Resize(shorter=20),
        ops.Collate("pad", multiple_of=16, fill=5),
        ops.Normalize([0] * 3, [2] * 3),
    ]
    plan = make_plan(bp.open(path), {"image": steps})
    assert not plan.outputs[0].steps
    assert "image_sizes: sizes of image → int32 (2,)" in str(plan)
    batches = load(path, steps, 4)
    alone = [row["image"] for row in load(path, [ops.Resize(shorter=20), ops.Collate("list")], 4)]
    for batch, images in zip(batches, alone, strict=True):
        assert batch["image"].shape == (4, 48, 48, 3)
        assert batch["image_sizes"].tolist() == [list(item.shape[:2]) for item in images]
        for item, image in zip(batch["image"], images, strict=True):
            height, width = image.shape[:2]
            assert np.array_equal(item[:height, :width], image / np.float32(2))
            item[:height, :width] = 2.5
            assert (item == 2.5).all()


def test_lists(path):
    [batch] = load(path, [ops.RandomHorizontalFlip(), ops.Collate("list"), ops.ChannelsFirst()])
    assert [item.shape for item in batch["image"]] == [(3, *image(int(n)).shape[:2]) for n in batch["ids"]]
    assert "image_sizes" not in batch
    one = np.moveaxis(batch["image"][0], 0, -1)
    want = image(int(batch["ids"][0]))
    assert np.array_equal(one, want) or np.array_equal(one, want[:, ::-1])


def test_steps_of_unequal_images(path):
    """Steps that take images one by one go on behind the engine's."""
    steps = [
        ops.Resize(longer=40), ops.RandomRotation(30, expand=True), ops.Resize(shorter=24), ops.ImagePad(1),
        ops.Collate("pad"),
    ]  # fmt: skip
    [batch] = load(path, steps)
    assert batch["image"].shape[1:3] == tuple(batch["image_sizes"].max(axis=0))
    assert (batch["image_sizes"].min(axis=1) == 26).all()
    assert len(np.unique(batch["image_sizes"], axis=0)) > 3
    [fixed] = load(path, [*steps[:-1], ops.RandomResizedCrop(16)])
    assert fixed["image"].shape == (12, 16, 16, 3)


def test_images_that_do_not_fit(path):
    with pytest.raises(DecodeError, match=r"the image is 33×61 and the first is 56×40.*Collate\(.pad.\)"):
        load(path, [ops.RandomHorizontalFlip()])
    with pytest.raises(DecodeError, match=r"too small for RandomCrop\(size=\(35, 35\)\); pad_if_needed=True"):
        load(path, [ops.RandomCrop(35)])
    [batch] = load(path, [ops.RandomCrop(32)], on_error="skip")
    assert sorted(batch["ids"] % 4) == [0] * 3 + [1] * 3 + [2] * 3
    with pytest.raises(OptionError, match="another output"):
        load(path, [ops.Collate()], others={"image_sizes": bp.Pipe("label")})
    with pytest.raises(OptionError, match="one of: size, shorter, longer, fit"):
        ops.Resize(8, shorter=8)
    with pytest.raises(OptionError, match="needs images of one size"):
        load(path, [ops.Collate("list"), ops.ColorJitter(0.1, 0.1, 0.1, 0.1)])


def test_images_that_would_be_too_long(tmp_path):
    fields = {"image": bp.Image(), "mask": bp.Int(), "label": bp.Int()}
    thin = write(tmp_path / "thin.tar", fields, [{"image": smooth(0, 1, 300), "mask": 0, "label": 0}])
    for how in ("list", "pad"):
        with pytest.raises(DecodeError, match="a side of 75000 pixels is more than a batch can have"):
            load(thin, [ops.Resize(shorter=250), ops.Collate(how)])


def test_padding_does_not_take_more_memory_than_data_may(path, monkeypatch):
    monkeypatch.setattr("batchplant.storage.limits._most", 1 << 16)
    monkeypatch.setattr("batchplant.storage.limits.PLAUSIBLE", 1)
    with pytest.raises(DecodeError, match=r"to pad the others of its batch to that would take .* GiB"):
        load(path, [ops.Collate("pad", multiple_of=64)])


def test_buckets_of_aspects(path):
    """Batches of about one aspect, the same on any number of ranks and after a resume."""
    how: dict[str, Any] = {"order": bp.order.ByAspect(window=4)}
    steps = [ops.Resize(shorter=20), ops.Collate("pad")]
    batches = load(path, steps, 3, **how)
    # Four aspects, three images each.
    assert [len(np.unique(batch["image_sizes"], axis=0)) for batch in batches] == [1] * 4
    seen = [batch["ids"].tolist() for batch in batches]
    assert sorted(n for item in seen for n in item) == list(range(12))
    pipelines = {"image": steps, "mask": None, "label": None}
    loader = bp.Loader(path, 3, pipelines=pipelines, ids=True, seed=7, **how)
    whole = iter(loader)
    next(whole)
    state = loader.state_dict()
    other = bp.Loader(path, 3, pipelines=pipelines, ids=True, seed=7, **how)
    other.load_state_dict(state)
    assert [row["ids"].tolist() for row in other] == seen[1:]
    loader.close()
    other.close()
    ranks = [load(path, steps, 3, rank=rank, world_size=2, **how) for rank in range(2)]
    assert sorted(row["ids"].tolist() for rank in ranks for row in rank) == sorted(seen)
    with pytest.raises(OptionError, match="the batches have none"):
        bp.Loader(path, 3, pipelines={"image": None, "mask": None}, order=bp.order.ByAspect())


# -- the same everywhere ------------------------------------------------------------------------------------

EVERYWHERE = [
    ops.RandomCrop(44, padding=(2, 3), pad_if_needed=True, fill=7), ops.RandomVerticalFlip(),
    ops.RandomAffine(10, scale=(0.9, 1.1)),
]  # fmt: skip


def test_the_same_with_any_workers_ranks_and_batches(path):
    [whole] = load(path, EVERYWHERE)
    by_id = dict(zip(whole["ids"].tolist(), whole["image"], strict=True))
    others = [
        *load(path, EVERYWHERE, 5, workers=1), *load(path, EVERYWHERE, 3, rank=0, world_size=2),
        *load(path, EVERYWHERE, 3, rank=1, world_size=2, order="random"),
        *load(path, EVERYWHERE, 4, cache="decoded"),
    ]  # fmt: skip
    seen = 0
    for batch in others:
        for n, item in zip(batch["ids"].tolist(), batch["image"], strict=True):
            seen += 1
            assert np.array_equal(item, by_id[n])
    assert seen >= 36


def test_kept_images_are_cut_anew(path):
    steps = [ops.Resize(shorter=30), ops.RandomCrop(26), ops.VerticalFlip()]
    loader = bp.Loader(path, 12, pipelines={"image": steps, "mask": None}, cache="decoded", seed=7)
    fresh = bp.Loader(path, 12, pipelines={"image": steps, "mask": None}, seed=7)
    for _ in range(2):
        [result], [want] = list(loader), list(fresh)
        assert np.array_equal(result["image"], want["image"])
    assert loader.stats()["cache hits"] == 12
    loader.close()
    fresh.close()


def test_masks_go_along(path):
    """By the same draw, and never blended."""
    steps = [
        ops.RandomCrop(28, share="crop"), ops.RandomVerticalFlip(share="flip"), ops.Resize(40),
        ops.RandomRotation(30, share="turn"),
    ]  # fmt: skip
    [batch] = load(
        path, [steps[0], ops.Resize(28), *steps[1:2], *steps[3:]], others={"mask": steps}, on_error="skip"
    )
    assert set(np.unique(batch["mask"])) == {0, 1}
    smaller = np.stack([np.asarray(Image.fromarray(item).resize((40, 40))) for item in batch["image"]])
    agree = (smaller[..., 0] > 128) == (batch["mask"][..., 0] == 1)
    assert agree.mean() > 0.97
    with pytest.raises(OptionError, match="bilinear would blend the values of a mask"):
        load(path, [], others={"image": None, "mask": [ops.RandomRotation(3, filter="bilinear")]})


def test_kernels_of_every_processor_fill_alike():
    one = smooth(3, 30, 40)
    result = []
    for name in _native.kernel_sets():
        own = _native.Engine(1, _kernels=name)
        out = np.empty((1, 3, 20, 20), np.float16)
        own.decode(
            [one.reshape(-1)], np.zeros(1, np.int32), np.zeros(1, np.int64), np.array([one.size]),
            np.array([one.shape], np.int32), None, None, out, layout="nchw", filter="area",
            scale=np.float32([0.1, 0.2, 0.3]), place=np.array([[3, 2, 11, 13]], np.int32),
        )  # fmt: skip
        own.close()
        result.append(out)
    assert all(np.array_equal(result[0], item) for item in result)
