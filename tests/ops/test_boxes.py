"""Boxes, keypoints and polygons: kept by formats, and moved with their image."""

import dataclasses
import json
from contextlib import closing

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant import ops
from batchplant.codecs import rle
from batchplant.codecs.cells import decode_bytes, encode_value
from batchplant.errors import DecodeError, OptionError, SchemaError
from batchplant.ops import (
    CenterCrop,
    Normalize,
    Pad,
    RandomHorizontalFlip,
    RandomResizedCrop,
    RandomTranslate,
    RandomVerticalFlip,
    Resize,
)
from batchplant.ops.annotations import clip_rings
from batchplant.ops.geometry import Motion, mirrored, shifted, stretched

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
        for item in samples:
            out.append(item)
    with bp.open(tmp_path / name) as reader:
        assert list(reader.schema.items())[1:] == list(SCHEMA.items())[1:]
        for row, record in zip(reader, samples, strict=True):
            for field in ("boxes", "pose"):
                np.testing.assert_array_equal(row[field], record[field])
            assert row["outline"] == record["outline"]
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
    assert (
        encode_value(bp.Polygons(), [[np.zeros((3, 2))], []])[0] == b"[[[0.0, 0.0, 0.0, 0.0, 0.0, 0.0]], []]"
    )


# -- goldens of albumentations ------------------------------------------------------------------------------

GOLDEN = dict(np.load(repository.GOLDEN / "boxes.npz"))
SIZES = GOLDEN["size"][None].astype(np.int32)


def turned(degrees, scale=1.0, shift=(0, 0)):
    """About the middle, as albumentations turns."""
    height, width = SIZES[0]
    to, back = np.eye(3), np.eye(3)
    to[:2, 2], back[:2, 2] = (-width / 2, -height / 2), (width / 2 + shift[0], height / 2 + shift[1])
    cos, sin = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    spin = np.array([[cos, sin, 0], [-sin, cos, 0], [0, 0, 1]]) @ np.diag([scale, scale, 1])
    return Motion((back @ spin @ to)[None], SIZES)


CROP = stretched([[10, 5, 50, 45]], (40, 40))


def padded(sizes):
    return shifted(sizes, 7, 3, after=sizes + np.array([3 + 5, 7 + 9]))


MOTIONS = {
    "crop": [CROP],
    "flip": [mirrored(SIZES, across=[True])],
    "down": [mirrored(SIZES, down=[True])],
    "resize": [stretched([[0, 0, 80, 60]], (30, 100))],
    "crop_resize_flip": [
        CROP, stretched([[0, 0, 40, 40]], (64, 32)), mirrored(np.array([[64, 32]], np.int32), across=[True])
    ],
    "pad": [padded(SIZES)],
    "crop_pad": [CROP, padded(CROP.sizes)],
    "rotate": [turned(25)],
    "affine": [turned(-15, 0.8, (6, -4))],
}  # fmt: skip


@pytest.mark.parametrize("least", [0.0, 0.5])
@pytest.mark.parametrize("name", MOTIONS)
def test_boxes_as_albumentations_moves_them(name, least):
    case, motions = name + ("_half" if least else ""), MOTIONS[name]
    area = 4 if len(motions) == 1 else 0.01
    op = ops.MoveBoxes(min_area=area, min_visibility=least).bind(bp.Boxes(dtype="float64"))
    batch = GOLDEN["boxes"], np.array([0, len(GOLDEN["boxes"])])
    (result, offsets), (kept, _) = op.move_with(batch, motions, SIZES)
    assert np.flatnonzero(kept).tolist() == GOLDEN[f"{case}.labels"].tolist()
    assert offsets.tolist() == [0, kept.sum()]
    assert motions[-1].sizes[0].tolist() == GOLDEN[f"{case}.size"].tolist()
    np.testing.assert_allclose(result, GOLDEN[f"{case}.boxes"], atol=1e-3)


@pytest.mark.parametrize("name", MOTIONS)
def test_keypoints_as_albumentations_moves_them(name):
    op = ops.MoveKeypoints(of="image").bind(bp.Tensor("float64", (None, 2)))
    points = GOLDEN["points"]
    (result, _), _ = op.move_with((points, np.array([0, len(points)])), MOTIONS[name], SIZES)
    # Whole numbers are the middles of pixels, also to a Resize: albumentations forgets half a pixel there.
    scale = {"resize": (100 / 80, 30 / 60), "crop_resize_flip": (-32 / 40, 64 / 40)}.get(name, (1, 1))
    slip = (np.abs(scale) - 1) / 2 * np.sign(scale)
    np.testing.assert_allclose(result, GOLDEN[f"{name}.points"] + slip, atol=1e-3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("format", ["xyxy", "xywh", "cxcywh"])
def test_any_numbers_may_stand_for_boxes(format):
    wild = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 0, 5, 20], np.float32)
    boxes = np.random.default_rng(0).choice(wild, (400, 4))
    for motions in MOTIONS.values():
        op = ops.MoveBoxes().bind(bp.Boxes(format))
        (result, offsets), (kept, _) = op.move_with((boxes, np.array([0, 400])), motions, SIZES)
        assert 0 < len(result) == kept.sum() == offsets[1] < 400
        assert np.isfinite(result).all()
        points = ops.MoveKeypoints().bind(bp.Keypoints(2)), boxes[:, :3].reshape(-1, 2, 3)
        points[0].move_with((points[1], np.array([0, 200])), motions, SIZES)


# -- in a loader --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Images of a bright block in the dark, and all that says where it is."""
    path = tmp_path_factory.mktemp("boxes") / "a.beton"
    rng = np.random.default_rng(1)
    schema = {
        **SCHEMA, "boxes": bp.Boxes(labels=("label", "outline", "pose")), "plain": bp.Tensor("int32", (1, 4)),
        "word": bp.List(bp.Text()),
    }  # fmt: skip
    with bp.create(path, schema) as out:
        for n in range(16):
            height, width = 60 + n, 90 - n
            x, y = rng.integers(0, 50, 2).tolist()
            box = [x, y, min(x + 30, width), min(y + 20, height)]
            pixels = np.zeros((height, width, 3), np.uint8)
            pixels[box[1] : box[3], box[0] : box[2]] = 255
            left, top, right, bottom = box
            corners = [[left, top], [right, top], [right, bottom], [left, bottom]]
            out.append(
                {
                    "image": pixels,
                    "boxes": np.array([box, [0, 0, 1, 1]], np.float32),
                    "label": np.array([n, -1]),
                    "plain": np.array([box], np.int32),
                    "word": ["it", "corner"],
                    "outline": [[np.array(corners)], []],
                    "pose": np.array(
                        [[[x + 1, y + 1, 2], [x + 2, y + 1, 1], [0, 0, 0]], np.zeros((3, 3))], np.float32
                    ),
                }
            )
    return path


MOVES = [RandomResizedCrop(64, scale=(0.3, 1.0)), RandomHorizontalFlip(), RandomTranslate(9)]


def of_first(batch, row):
    """The boxes of a row, and which of its two objects they are."""
    values, offsets = batch["boxes"]
    labels = batch["label"][0][batch["label"][1][row] : batch["label"][1][row + 1]]
    assert batch["label"][1].tolist() == offsets.tolist()
    return values[offsets[row] : offsets[row + 1]], labels


PIPELINES = {
    "crop": MOVES,
    "letterbox": [ops.Letterbox(64), RandomHorizontalFlip(), RandomVerticalFlip()],
    "native": [ops.RandomCrop(60, pad_if_needed=True), ops.ImagePad(5), Resize(50)],
    "rotation": [Resize(64), ops.RandomRotation(30)],
    "affine": [Resize(64), ops.RandomAffine(20, translate=(0.1, 0.1), scale=(0.7, 1.1), shear=5)],
    "perspective": [Resize(64), ops.RandomPerspective(0.4, 1.0)],
    "two": [Resize(64), ops.RandomRotation(20), ops.RandomAffine(0, translate=(0.2, 0.2))],
}


@pytest.mark.parametrize("name", PIPELINES)
def test_boxes_go_with_their_image_by_the_same_draws(dataset, name):
    pipelines = {"image": PIPELINES[name]}
    with closing(bp.Loader(dataset, 8, pipelines=pipelines, workers=1, ids=True)) as loader:
        batches = [*loader, *loader]
    seen = gone = 0
    for batch in batches:
        for row, sample in enumerate(batch["ids"]):
            boxes, labels = of_first(batch, row)
            bright = np.argwhere(batch["image"][row, :, :, 0] > 127)
            own = boxes[labels == sample]
            if len(bright) < 4:
                gone += not len(own)
                continue
            seen += 1
            around = np.array([*bright.min(axis=0)[::-1], *(bright.max(axis=0)[::-1] + 1)])
            # The box around what is turned, once it is cut, may be larger than what is left of it.
            cut = min(own[0, :2]) <= 0.5 or max(own[0, 2:]) >= batch["image"].shape[1] - 0.5
            straight = name in ("crop", "letterbox", "native")
            assert (own[0, :2] <= around[:2] + 1.3).all()
            assert (own[0, 2:] >= around[2:] - 1.3).all()
            if straight or not cut:
                np.testing.assert_allclose(own[0], around, atol=1.3)
            # The outline is that of the box, and the points of the pose lie in its corner.
            rings = batch["outline"][row][labels.tolist().index(sample)]
            points = np.array(rings[0]).reshape(-1, 2)
            if straight:
                np.testing.assert_allclose([*points.min(axis=0), *points.max(axis=0)], own[0], atol=1e-3)
            middle = points.mean(axis=0).astype(int).clip(0, batch["image"].shape[1] - 1)
            assert batch["image"][row, middle[1], middle[0], 0] > 127
    assert seen > 20
    assert len(batches) == 4


def test_what_lies_outside_is_dropped_with_its_labels(dataset):
    cut = {"image": [CenterCrop(32, ratio=0.5)], "word": [], "label": [Pad(2, value=-9)]}
    mover = ops.MoveBoxes(min_visibility=0.3, format="cxcywh", normalized=True, labels=["label", "word"])
    with closing(
        bp.Loader(dataset, 16, pipelines={**cut, "boxes": [mover, Pad(3)], "outline": None})
    ) as loader:
        assert str(loader.plan.outputs[1].spec) == "float32 (3, 4)"
        batch = next(iter(loader))
    kept = (batch["label"] >= 0).sum(axis=1)
    assert 0 < kept.sum() < 16
    assert batch["word"] == [["it"] * item for item in kept]
    assert batch["boxes"].shape == (16, 3, 4)
    assert 0 < batch["boxes"].max() <= 1
    # The corner is outside of all of them; poses and plain boxes were not asked to lose rows.
    assert not (batch["label"] == -1).any()
    assert batch["pose"][1].tolist() == list(range(0, 34, 2))


def test_a_mirror_exchanges_left_and_right(dataset):
    with closing(
        bp.Loader(dataset, 4, pipelines={"image": [RandomHorizontalFlip(1.0)]}, indices=[0] * 4)
    ) as loader:
        batch = next(iter(loader))
    with bp.open(dataset) as reader:
        one = reader[0]
    width = one["image"].shape[1]
    nose, left, right = batch["pose"][0][0]
    assert nose.tolist() == [width - 1 - one["pose"][0, 0, 0], one["pose"][0, 0, 1], 2]
    assert right.tolist() == [width - 1 - one["pose"][0, 1, 0], one["pose"][0, 1, 1], 1]
    # Nobody knows where it is: it stays as it was.
    assert left.tolist() == [0, 0, 0]


def test_views_of_one_image_with_boxes_of_their_own(dataset):
    pipelines = {
        "image": [Resize(50)], "small": bp.Pipe("image", [Resize(10)]), "outline": None, "pose": None,
        "small boxes": bp.Pipe("boxes", [ops.MoveBoxes(of="small", labels=["small label"])]),
        "small label": bp.Pipe("label"),
        "plain": [ops.MoveBoxes(bp.Boxes(of="small"))],
    }  # fmt: skip
    with closing(bp.Loader(dataset, 4, pipelines=pipelines)) as loader:
        batch = next(iter(loader))
    np.testing.assert_allclose(batch["small boxes"][0] * 5, batch["boxes"][0], rtol=1e-5)
    np.testing.assert_allclose(batch["plain"][0], batch["small boxes"][0][::2], rtol=1e-5)
    assert batch["plain"][0].dtype == np.float32
    pipelines["small boxes"] = bp.Pipe("boxes")
    with pytest.raises(OptionError, match="'label' has rows for 'boxes' already"):
        bp.Loader(dataset, 4, pipelines=pipelines)


def test_images_that_are_left_out(dataset):
    with closing(bp.Loader(dataset, 2, pipelines={"image": None})) as loader, bp.open(dataset) as reader:
        np.testing.assert_array_equal(next(iter(loader))["boxes"][0][:2], reader[0]["boxes"])
    with pytest.raises(OptionError, match="its image 'image' is not in the batch"):
        bp.Loader(dataset, 2, pipelines={"image": None, "boxes": [ops.MoveBoxes()]})
    with closing(
        bp.Loader(dataset, 2, pipelines={"image": [Resize(8)], "boxes": [ops.MoveBoxes(of="")]})
    ) as loader:
        assert next(iter(loader))["boxes"][0].max() > 8


@pytest.mark.parametrize(
    ("pipelines", "reason"),
    [
        ({"boxes": [ops.MoveBoxes(of="label")]}, "of names an image of the batch, and 'label' is"),
        ({"boxes": [ops.MoveBoxes(of="imaje")]}, "did you mean image|image"),
        ({"plain": [ops.MoveBoxes()]}, "say what the boxes of"),
        ({"label": [ops.MoveBoxes(bp.Boxes())]}, "needs a field of boxes"),
        ({"boxes": [Pad(3), ops.MoveBoxes()]}, "it is the first step"),
        ({"boxes": [ops.MoveBoxes(labels=["lable"])]}, "no output 'lable' for labels"),
        ({"pose": [ops.MoveKeypoints(swap=[(0, 5)])]}, "keypoints from 0 to 2"),
        ({"image": bp.Pipe("image", [], keep="all")}, "keep="),
        (
            {"two": bp.Pipe("image", [Resize(4)]), "image": None, "one": bp.Pipe("image")},
            "say which one is meant",
        ),
    ],
)
def test_what_cannot_follow(dataset, pipelines, reason):
    with pytest.raises(OptionError, match=reason):
        bp.Loader(dataset, 2, pipelines=pipelines)


def test_labels_must_have_a_row_for_each_box(tmp_path):
    schema = {
        "image": bp.Image("png"),
        "boxes": bp.Boxes(labels="label"),
        "label": bp.Tensor("int64", (None,)),
    }
    with bp.create(tmp_path / "a.beton", schema) as out:
        for n in range(3):
            out.append(
                {
                    "image": np.zeros((8, 8, 3), np.uint8),
                    "boxes": np.ones((1, 4)).astype("f4"),
                    "label": [0] * n,
                }
            )
    with closing(bp.Loader(tmp_path / "a.beton", 3)) as loader, pytest.raises(DecodeError) as caught:
        next(iter(loader))
    assert str(caught.value).endswith("sample 0, field 'label': 0 rows of label for 1 boxes of boxes")
    with closing(bp.Loader(tmp_path / "a.beton", 3, on_error="skip", ids=True)) as loader:
        assert next(iter(loader))["ids"].tolist() == [1]


def test_what_was_drawn_is_kept(dataset):
    kept = bp.Pipe("image", MOVES, keep="geometry")
    with closing(bp.Loader(dataset, 8, pipelines={"image": kept}, ids=True)) as loader:
        batch = next(iter(loader))
        again = next(iter(bp.Loader(dataset, 8, pipelines={"image": kept}, cache="decoded")))
    with bp.open(dataset) as reader:
        shapes = [reader[int(item)]["image"].shape[:2] for item in batch["ids"]]
    np.testing.assert_array_equal(batch["image_size"], shapes)
    np.testing.assert_array_equal(batch["image_matrix"], again["image_matrix"])
    np.testing.assert_array_equal(batch["image_flip"], batch["image_matrix"][:, 0, 0] < 0)
    assert set(batch["image_angle"]) == {0.0}
    left, top, right, bottom = batch["image_box"].T
    scale = 64 / np.abs(batch["image_matrix"][:, 0, 0])
    np.testing.assert_allclose(right - left, scale)
    np.testing.assert_allclose(bottom - top, 64 / batch["image_matrix"][:, 1, 1])


def test_boxes_of_images_that_are_kept_decoded(dataset):
    options = {"pipelines": {"image": [CenterCrop(32)]}, "cache": "decoded"}
    with closing(bp.Loader(dataset, 16, **options)) as loader:
        first, second = next(iter(loader)), next(iter(loader))
    for item, other in zip(first["boxes"], second["boxes"], strict=True):
        np.testing.assert_array_equal(item, other)


def test_polygons_are_cut_where_the_image_ends():
    op = ops.MovePolygons().bind(bp.Polygons())
    square, beyond = [0, 0, 10, 0, 10, 10, 0, 10], [20, 20, 30, 20, 30, 30]
    sizes = np.array([[40, 40]], np.int32)
    (result,), _ = op.move_with(
        [[[square], [beyond, square], []]], [stretched([[5, 5, 15, 15]], (20, 20))], sizes
    )
    corner = sorted([(0.0, 0.0), (10.0, 0.0), (10.0, 10.0), (0.0, 10.0)])
    assert [sorted(zip(ring[::2], ring[1::2], strict=True)) for ring in result[0]] == [corner]
    assert len(result[1]) == 1
    assert result[2] == []
    # A corner that is cut off becomes two.
    corners = np.array([[-5.0, 5], [5, 5], [5, 15], [-9, -9], [-8, -9], [-8, -8], [1, 1], [25, 1], [1, 2]])
    points, ring = clip_rings(corners, np.repeat([0, 1, 2], 3), [(20, 20), (20, 20), (20, 13)])
    assert points[ring == 0].tolist() == [[0, 5], [5, 5], [5, 15], [0, 10]]
    assert ring.tolist() == [0] * 4 + [2] * 4
    assert points[ring == 2].tolist() == [[1, 1], [13, 1], [13, 1.5], [1, 2]]


@pytest.mark.parametrize("name", [*PIPELINES, "policy"])
def test_masks_go_with_their_image(masks, name):
    steps = PIPELINES.get(name, [Resize(64), ops.TrivialAugment()])
    pipelines = {"image": [*steps, Normalize([0] * 3, [1] * 3)], "mask": [ops.MoveMask()]}
    with closing(bp.Loader(masks, 8, pipelines=pipelines)) as loader:
        batch = next(iter(loader))
    # The values of a mask are not blended, and lie where the image is bright.
    assert set(np.unique(batch["mask"])) <= {0, 7}
    bright = batch["mask"][..., 0] == 7
    assert bright.any()
    if name != "policy":
        assert ((batch["image"][..., 0] > 127) == bright).mean() > 0.97


@pytest.fixture(scope="module")
def masks(dataset):
    path = dataset.with_name("masks.beton")
    with (
        bp.open(dataset) as reader,
        bp.create(path, {"image": bp.Image("png"), "mask": bp.Image("png", mode="L", mask=True)}) as out,
    ):
        for sample in reader:
            out.append({"image": sample["image"], "mask": sample["image"][..., 0] // 255 * 7})
    return path


@pytest.mark.parametrize(
    ("pipelines", "reason"),
    [
        ({"mask": [ops.MoveMask("imag")]}, "its image 'imag' is not in the batch"),
        ({"mask": [Resize(4), ops.MoveMask()]}, "is the first step of an image's pipeline"),
        ({"mask": [ops.MoveMask()], "image": [ops.MoveMask("mask")]}, "follows another image itself"),
    ],
)
def test_masks_that_cannot_follow(masks, pipelines, reason):
    with pytest.raises(OptionError, match=reason):
        bp.Loader(masks, 2, pipelines=pipelines)


def test_images_of_unequal_sizes_keep_their_boxes(dataset):
    mover = ops.MoveBoxes(normalized=True)
    pipelines = {"image": [ops.Resize(shorter=32), ops.Collate("pad")], "boxes": [mover], "outline": None}
    with closing(bp.Loader(dataset, 4, pipelines=pipelines)) as loader, bp.open(dataset) as reader:
        batch = next(iter(loader))
        boxes = np.concatenate(
            [reader[n]["boxes"] / np.tile(reader[n]["image"].shape[1::-1], 2) for n in range(4)]
        )
    # In parts of each image, not of what it is padded to.
    np.testing.assert_allclose(batch["boxes"][0], boxes, rtol=1e-5)


def test_images_made_on_a_device_keep_their_boxes(dataset):
    pytest.importorskip("torch")
    options = {"pipelines": {"image": MOVES, "outline": None, "word": None}}
    with closing(bp.Loader(dataset, 8, **options)) as here:
        mine = next(iter(here))
    with closing(bp.Loader(dataset, 8, **options, device="cpu", decode="cpu")) as there:
        batch = next(iter(there))
    for name in ("boxes", "label", "pose"):
        for item, other in zip(mine[name], batch[name], strict=True):
            np.testing.assert_array_equal(item, other.numpy())


def test_formats_that_know_only_the_wide_kind_take_them(tmp_path):
    one = {"image": np.zeros((4, 4, 3), np.uint8), "outline": [[[0, 0, 1, 1, 2, 0]]]}
    schema = {"image": bp.Image("png"), "outline": bp.Polygons()}
    with bp.create(tmp_path / "a", schema, format="imagefolder") as out:
        out.append(one)
    with bp.open(tmp_path / "a") as reader:
        assert reader[0]["outline"] == one["outline"]


EMPTY_MOVES = {
    "resize": [Resize(8)],
    "crop": [CenterCrop(8)],
    "letterbox": [ops.Letterbox(8)],
    "flip": [Resize(8), RandomHorizontalFlip(1)],
    "affine": [Resize(16), ops.RandomAffine(10)],
    "perspective": [Resize(16), ops.RandomPerspective()],
    "policy": [Resize(16), ops.TrivialAugment()],
}


@pytest.mark.parametrize("optional", [False, True])
@pytest.mark.parametrize("name", EMPTY_MOVES)
def test_batches_without_any_object(tmp_path, name, optional):
    schema = bp.Schema(
        {
            field: kind if field == "image" or not optional else dataclasses.replace(kind, optional=True)
            for field, kind in SCHEMA.items()
        }
    )
    with bp.create(tmp_path / "a.beton", schema) as out:
        for n in (2, 0, 0, 1):
            one = sample(n)
            if optional and n == 0:
                one = {field: value if field == "image" else None for field, value in one.items()}
            out.append(one)
    for size in (1, 2, 4):
        joint = [ops.Mosaic()] if name == "resize" and not optional else []
        loader = bp.Loader(
            tmp_path / "a.beton",
            size,
            workers=1,
            order="sequential",
            pipelines=[{"image": EMPTY_MOVES[name]}, *joint],
        )
        batches = list(loader)
        assert sum(len(batch["image"]) for batch in batches) == 4
        if size == 1:
            assert [len(batches[number]["boxes"][0]) for number in (1, 2)] == [0, 0]


# --- run-length masks and areas -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def segmented(tmp_path_factory):
    """Images of two objects: a run-length mask, which is a dense one, too, and an outline."""
    path = tmp_path_factory.mktemp("segmented") / "a.beton"
    schema = {
        "image": bp.Image("png"),
        "dense": bp.Image("png", mode="L", mask=True),
        "boxes": bp.Boxes("xywh", labels=("label", "rle", "polygons", "area")),
        "label": bp.Labels(),
        "rle": bp.List(bp.Text()),
        "polygons": bp.Polygons(),
        "area": bp.Tensor("float32", (None,)),
    }
    rng = np.random.default_rng(0)
    with bp.create(path, schema) as out:
        for _ in range(6):
            height, width = rng.integers(50, 90, 2)
            mask = np.zeros((height, width), np.uint8)
            x, y = rng.integers(5, 20, 2)
            mask[y : y + 20, x : x + 25] = rng.integers(0, 2, (20, 25))
            mask[y + 10, x] = mask[y, x + 3] = mask[y + 19, x + 5] = mask[y + 5, x + 24] = 1
            ring = [30.0, 10.0, 45.0, 10.0, 45.0, 40.0]
            out.append(
                {
                    "image": np.repeat(mask[..., None] * 255, 3, axis=2),
                    "dense": mask,
                    "boxes": np.array([[x, y, 25, 20], [30, 10, 15, 30]], np.float32),
                    "label": np.arange(2),
                    "rle": [rle.encode(mask), ""],
                    "polygons": [[], [ring]],
                    "area": np.array([mask.sum(), 225.0], np.float32),
                }
            )
    return path


RLE_MOVES = PIPELINES | {
    "flip": [Resize(64), RandomHorizontalFlip(1.0), RandomVerticalFlip(1.0)],
    "cut": [ops.RandomCrop(40)],
}


@pytest.mark.parametrize("name", RLE_MOVES)
def test_run_length_masks_and_areas_go_with_their_image(segmented, name):
    pipelines = {"image": RLE_MOVES[name], "dense": [ops.MoveMask(of="image")]}
    with closing(bp.Loader(segmented, 6, pipelines=pipelines, workers=1)) as loader:
        [batch] = loader
    areas, offsets = batch["area"]
    labels = batch["label"][0]
    different = pixels = seen = 0
    for row, texts in enumerate(batch["rle"]):
        mine = slice(offsets[row], offsets[row + 1])
        assert len(texts) == len(labels[mine])
        for text, rings, label, area in zip(
            texts, batch["polygons"][row], labels[mine], areas[mine], strict=True
        ):
            if label == 1:
                assert text == ""
                x, y = np.array(rings[0]).reshape(-1, 2).T if rings else np.zeros((2, 1))
                shoelace = abs(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1))) / 2
                assert area == pytest.approx(shoelace, rel=1e-4, abs=1e-3)
                continue
            dense = batch["dense"][row, ..., 0]
            mask = rle.decode(text, *dense.shape)
            assert area == mask.sum()
            different += (mask != dense).sum()
            pixels += dense.sum()
            seen += 1
    assert seen > 2
    # Which of two pixels is taken that are as near, depends on how numbers are rounded.
    assert different <= (0.05 * pixels if name == "letterbox" else 0)


def test_run_length_masks_in_a_mosaic(segmented):
    pipelines = {"image": [Resize(64)], "dense": [ops.MoveMask(of="image")]}
    with closing(bp.Loader(segmented, 6, pipelines=[pipelines, ops.Mosaic()], workers=1)) as loader:
        [batch] = loader
    areas, offsets = batch["area"]
    for row, texts in enumerate(batch["rle"]):
        own = batch["label"][0][offsets[row] : offsets[row + 1]]
        result = areas[offsets[row] : offsets[row + 1]]
        assert len(texts) == len(own)
        for text, area in zip(np.array(texts)[own == 0], result[own == 0], strict=True):
            assert rle.decode(str(text), 64, 64).sum() == pytest.approx(area, abs=1e-3)


def test_areas_of_boxes_alone(segmented):
    pipelines = {"image": [Resize(64), RandomHorizontalFlip(1.0)]}
    reader = bp.open(segmented).select(["image", "boxes", "area"])
    with closing(bp.Loader(reader, 6, pipelines=pipelines, workers=1, order="sequential")) as loader:
        [batch] = loader
    with bp.open(segmented) as stored:
        for row, sample in enumerate(stored):
            height, width = sample["image"].shape[:2]
            mine = slice(*batch["area"][1][row : row + 2])
            np.testing.assert_allclose(
                batch["area"][0][mine], sample["area"] * 64 * 64 / height / width, rtol=1e-5
            )


def test_run_length_masks_and_areas_can_stay_as_they_are_stored(segmented):
    pipelines = {
        "image": [Resize(32)],
        "dense": [ops.MoveMask(of="image")],
        "rle": [ops.MoveRle(of="")],
        "boxes": [ops.MoveBoxes(areas="")],
    }
    with closing(bp.Loader(segmented, 6, pipelines=pipelines, workers=1, order="sequential")) as loader:
        [batch] = loader
    with bp.open(segmented) as stored:
        assert batch["rle"] == [sample["rle"] for sample in stored]
        assert batch["area"][0].tolist() == np.concatenate([row["area"] for row in stored]).tolist()
    for asked, reason in (
        ({"boxes": [ops.MoveBoxes(areas="rle2")]}, "areas names one of the labels"),
        ({"label": [ops.MoveRle()]}, "needs a list of run-length texts"),
    ):
        with pytest.raises(OptionError, match=reason):
            bp.Loader(segmented, 6, pipelines={"image": [Resize(32)], **asked})


def test_run_length_masks_that_are_none(tmp_path):
    with bp.create(tmp_path / "a.beton", {"image": bp.Image("png"), "rle": bp.List(bp.Text())}) as out:
        for text in ("", "not a mask"):
            out.append({"image": np.zeros((8, 8, 3), np.uint8), "rle": [text]})
    loader = bp.Loader(
        tmp_path / "a.beton", 2, pipelines={"image": [Resize(4)]}, workers=1, order="sequential"
    )
    with closing(loader), pytest.raises(DecodeError, match="no run-length text of 8×8") as caught:
        list(loader)
    assert (caught.value.sample, caught.value.field) == (1, "rle")
