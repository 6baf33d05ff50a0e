"""Steps that see several fields of a batch: functions, mosaics, MixUp, CutMix, copied objects."""

import pickle
from contextlib import closing

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.errors import OptionError
from batchplant.loading.preview import preview
from batchplant.ops import CopyPaste, CutMix, Map, MixUp, Mosaic, Normalize, Pad, Resize
from batchplant.ops.base import Draws, Spec
from batchplant.ops.joint import OutputInfo

COUNT = 6
SCHEMA = {
    "image": bp.Image("png"), "mask": bp.Image("png", mode="L", mask=True),
    "boxes": bp.Boxes("xywh", labels=("label", "number", "pose", "outline")),
    "label": bp.Tensor("int64", (None,)), "number": bp.Tensor("int64", (None,)), "pose": bp.Keypoints(1),
    "outline": bp.Polygons(), "class": bp.Int(names=("cat", "dog", "cow")), "text": bp.Text(),
}  # fmt: skip


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Images of one grey each, N objects in the N-th, each a block of its own."""
    path = tmp_path_factory.mktemp("joint") / "a.beton"
    with bp.create(path, SCHEMA) as out:
        for n in range(COUNT):
            mask = np.zeros((32, 48), np.uint8)
            boxes = [(8 * k, 4 * k, 6, 5) for k in range(n)]
            for k, (x, y, w, h) in enumerate(boxes):
                mask[y : y + h, x : x + w] = k + 1
            out.append(
                {
                    "image": np.full((32, 48, 3), 40 * n, np.uint8),
                    "mask": mask,
                    "class": n % 3,
                    "boxes": np.array(boxes, np.float32).reshape(-1, 4),
                    "text": f"{n}",
                    "label": 10 * n + np.arange(n),
                    "number": 1 + np.arange(n),
                    "pose": np.array([[[x + 2.5, y + 2, 2]] for x, y, _, _ in boxes], np.float32).reshape(
                        -1, 1, 3
                    ),
                    "outline": [[[x, y, x + w, y, x + w, y + h, x, y + h]] for x, y, w, h in boxes],
                }
            )
    return path


def first(dataset, joint, batch_size=COUNT, pipelines=None, **options):
    with closing(bp.Loader(dataset, batch_size, pipelines=[pipelines or {}, *joint], **options)) as loader:
        return next(iter(loader))


# -- functions ----------------------------------------------------------------------------------------------


def shrink(boxes, label):
    """Only the first box."""
    return boxes[:1], label[:1]


def test_a_function_of_each_sample(dataset):
    def count(image, label, text, rng):
        return {"count": len(label), "drawn": rng.uniform()[0], "said": f"{text}:{image[0, 0, 0]}"}

    joint = [
        Map(count, ["image", "label", "text"], ["count", "drawn", "said"]),
        Map(shrink, ["boxes", "label"]),
    ]
    batch = first(dataset, joint)
    assert batch["count"].tolist() == list(range(COUNT))
    assert batch["said"] == [f"{n}:{40 * n}" for n in range(COUNT)]
    assert batch["label"][0].tolist() == [10, 20, 30, 40, 50]
    assert batch["boxes"][0].shape == (5, 4)
    assert batch["boxes"][1].tolist() == [0, 0, 1, 2, 3, 4, 5]
    # Draws belong to samples: they are the same in any batch.
    assert batch["drawn"].tolist()[:2] == first(dataset, joint, 2)["drawn"].tolist()


@pytest.mark.parametrize("parallel", [None, "threads", "processes"])
def test_functions_run_elsewhere(dataset, parallel):
    batch = first(dataset, [Map(shrink, ["boxes", "label"], parallel=parallel, workers=parallel and 2)])
    assert batch["label"][0].tolist() == [10, 20, 30, 40, 50]


def halved(image, label):
    return image // 2, np.diff(label[1])


def test_a_function_of_a_batch_and_what_goes_on_behind_it(dataset):
    joint = [
        Map(halved, ["image", "label"], ["image", "count"], batched=True),
        {"image": [Normalize([0, 0, 0], [2, 2, 2])], "boxes": [Pad(3)]},
        Map(lambda image: image.mean(), "image", "mean", shape=(), dtype="float32"),
    ]
    batch = first(dataset, joint)
    assert batch["count"].tolist() == list(range(COUNT))
    assert batch["mean"].tolist() == [10.0 * n for n in range(COUNT)]
    assert batch["mean"].dtype == np.float32
    assert batch["boxes"].shape == (COUNT, 3, 4)


def test_a_loader_with_such_steps_can_be_copied_and_seen(dataset):
    with closing(
        bp.Loader(dataset, 3, pipelines=[Map(shrink, ["boxes", "label"]), Mosaic(labels="label")])
    ) as loader:
        copied = pickle.loads(pickle.dumps(loader))
        assert next(iter(copied))["label"][0].tolist() == next(iter(loader))["label"][0].tolist()
        copied.close()
        assert preview(loader, 1, 0).batch.tolist() == [0, 1, 2]
        assert "then Map(shrink, inputs=['boxes', 'label'])\nthen Mosaic(labels=('label',))" in str(
            loader.plan
        )
        assert loader.plan.names == tuple(SCHEMA)


@pytest.mark.parametrize(
    ("joint", "reason"),
    [
        (
            [Map(shrink, ["boxes", "lable"])],
            "needs 'lable', which the batch does not have .did you mean label",
        ),
        ([ops.Pad(3)], "steps of several fields"),
        ([Mosaic], "write Mosaic.. with parentheses"),
        ([shrink], "Map.shrink, inputs="),
        (Mosaic(), "a list of these and of steps"),
        ([{"image": Resize(3)}], "a pipeline is a list of ops"),
        ([{"boxes": [Pad(3)]}, Mosaic()], "pad after it"),
        ([{"image": [Normalize([0] * 3, [1] * 3)]}, Mosaic()], "normalize them after it"),
        ([MixUp()], "MixUp needs one label for each sample, not 'label'"),
        ([CutMix(labels="class", masks="text")], "needs images"),
    ],
)
def test_steps_that_do_not_fit(dataset, joint, reason):
    with pytest.raises(OptionError, match=reason):
        bp.Loader(dataset, 2, pipelines=joint)


def test_a_joint_step_is_no_step_of_a_field(dataset):
    with pytest.raises(OptionError, match="packed rows are no samples"):
        bp.Loader(dataset, 2, pipelines=[Mosaic()], pack=bp.Pack(8, field="label"))
    with pytest.raises(OptionError, match="steps that see several stand beside"):
        bp.Loader(dataset, 2, pipelines={("image", "boxes"): [Mosaic()]})
    with pytest.raises(OptionError, match="put it beside their pipelines"):
        bp.Loader(dataset, 2, pipelines={"image": [Mosaic()]})


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Map(3, "image"), "takes a function or an op"),
        (lambda: Map(Pad, "image"), "takes a function or an op"),
        (lambda: Map(shrink, []), "inputs are names"),
        (lambda: Map(shrink, ["a", "b"], shape=(3,)), "give shape as a dict"),
        (lambda: Map(shrink, ["a", "b"], dtype={"c": int}), "dtype names 'c'"),
        (lambda: Map(Pad(3), ["a", "b"]), "runs an op of values on one output"),
        (lambda: Mosaic(center=(0.8, 0.2)), "center is"),
        (lambda: CopyPaste(boxes=None, instances="number"), "name these"),
    ],
)
def test_steps_that_cannot_be(make, reason):
    with pytest.raises(OptionError, match=reason):
        make()


def test_errors_say_step_fields_and_sample(dataset):
    def fails(image, label):
        return image, label, 1 / (len(label) - 2)

    with pytest.raises(ZeroDivisionError) as caught:
        first(dataset, [Map(fails, ["image", "label"], ["image", "label", "x"])])
    (note,) = caught.value.__notes__
    assert "step Map(fails, inputs=['image', 'label'], outputs=['image', 'label', 'x']), sample 2" in note
    assert "image, label" in note
    with pytest.raises(
        OptionError, match=r"sample 0, field 'image, label': fails gives image, x: a tuple of 2"
    ):
        first(dataset, [Map(fails, ["image", "label"], ["image", "x"])], indices=[0, 1])
    with pytest.raises(
        OptionError, match=r"sample 1, .*if the first size varies, say so: shape={'x': \(None"
    ):
        first(dataset, [Map(lambda label: label, "label", "x")])


# -- mixing -------------------------------------------------------------------------------------------------


def rows(batch, name, row):
    values, offsets = batch[name]
    return values[offsets[row] : offsets[row + 1]]


def test_a_mosaic_of_four_images_with_their_boxes(dataset):
    batch = first(dataset, [Mosaic(masks="mask", fill=255)])
    whole = first(dataset, [])
    seen = set()
    for row in range(COUNT):
        greys = np.unique(batch["image"][row])
        assert len(greys) > 1
        seen.update(greys.tolist())
        labels, poses = rows(batch, "label", row), rows(batch, "pose", row)
        assert len(labels) == len(poses) == len(batch["outline"][row])
        for number, (box, label) in enumerate(zip(rows(batch, "boxes", row), labels, strict=True)):
            x, y, w, h = box
            # Its outline is cut as it is, and the point in its middle is where that is, if it is still there.
            (ring,) = batch["outline"][row][number]
            np.testing.assert_allclose([min(ring[::2]), max(ring[1::2])], [x, y + h], atol=1e-4)
            if w > 2.99 and h > 2.49:
                np.testing.assert_allclose(poses[number, 0], [x + w / 2 - 0.5, y + h / 2 - 0.5, 2], atol=1e-4)
            # In the middle of the box there is the image and the object that it is of.
            at = int(y + h / 2), int(x + w / 2)
            if w > 1.9 and h > 1.9:
                assert batch["image"][row][at].tolist() == [40 * (label // 10)] * 3
                assert batch["mask"][row][at] == label % 10 + 1
            assert 0 <= x < x + w <= 48.001
            assert w <= 3.001
    assert 255 in seen
    again = first(dataset, [Mosaic(masks="mask", fill=255)])
    np.testing.assert_array_equal(again["image"], batch["image"])
    untouched = first(dataset, [Mosaic(p=0)])
    np.testing.assert_array_equal(untouched["image"], whole["image"])
    np.testing.assert_array_equal(untouched["boxes"][0], whole["boxes"][0])
    assert len(first(dataset, [Mosaic(min_area=100)])["label"][0]) == 0


def test_normalized_boxes_in_a_mosaic(dataset):
    mover = {"boxes": [ops.MoveBoxes(format="cxcywh", normalized=True)]}
    plain, parts = (first(dataset, [Mosaic()], pipelines=item) for item in ({}, mover))
    x, y, w, h = plain["boxes"][0].T
    result = np.stack([(x + w / 2) / 48, (y + h / 2) / 32, w / 48, h / 32], axis=1)
    np.testing.assert_allclose(parts["boxes"][0], result, atol=1e-6)


def test_mixup_and_cutmix_make_soft_labels(dataset):
    for step in (MixUp(0.8, labels="class"), CutMix(labels="class", masks="mask")):
        batch = first(dataset, [step])
        assert batch["class"].shape == (COUNT, 3)
        np.testing.assert_allclose(batch["class"].sum(axis=1), 1, rtol=1e-6)
        assert ((batch["class"] > 0.01).sum(axis=1) == 2).any()
        means = batch["image"].reshape(COUNT, -1).mean(axis=1)
        # Two greys with the weights of their classes; which two, the weights tell, where they are two.
        for row, weights in enumerate(batch["class"]):
            own, other = weights[row % 3], int(np.argmax(np.where(np.arange(3) == row % 3, -1, weights)))
            grey = [own * 40 * row + (1 - own) * 40 * two for two in (other, other + 3)]
            assert own > 0.999 or min(abs(item - means[row]) for item in grey) < 1.01
    with pytest.raises(OptionError, match="there is a label 2 in 'class', of 2 classes"):
        first(dataset, [MixUp(labels="class", num_classes=2)])


def test_mixup_of_detection_keeps_the_boxes_of_both(dataset):
    batch = first(dataset, [MixUp(0.8, boxes="boxes")])
    counts = np.diff(batch["boxes"][1])
    assert counts.sum() > 15
    assert counts.tolist() == np.diff(batch["label"][1]).tolist()
    for row in range(COUNT):
        labels = rows(batch, "label", row)
        assert labels[:row].tolist() == (10 * row + np.arange(row)).tolist()


@pytest.mark.parametrize("instances", [None, "number"])
def test_objects_are_copied_with_their_boxes_and_labels(dataset, instances):
    step = CopyPaste(p=1.0, instances=instances, part=0.6)
    batch, whole = first(dataset, [step]), first(dataset, [])
    added = 0
    for row in range(COUNT):
        labels, boxes = rows(batch, "label", row), rows(batch, "boxes", row)
        foreign = labels // 10 != row
        added += foreign.sum()
        for number, (label, (x, y, w, h)) in enumerate(zip(labels, boxes, strict=True), 1):
            part = batch["image"][row, int(y) : int(y + h), int(x) : int(x + w)]
            if label // 10 != row:
                assert (part == 40 * (label // 10)).all()
            if instances:
                inside = batch["mask"][row, int(y) : int(y + h), int(x) : int(x + w), 0]
                assert (inside == rows(batch, "number", row)[number - 1]).any()
        # What no object covers is as before.
        beside = batch["mask"][row] == 0
        assert (batch["image"][row][beside[..., 0]] == 40 * row).all()
        if instances:
            assert batch["mask"][row].max() <= len(labels)
    assert added > 3
    assert len(batch["label"][0]) != len(whole["label"][0])


def test_an_empty_batch():
    image, rows = Spec(np.dtype(np.uint8), (8, 8, 3)), Spec(np.dtype(np.int64), (None,), ragged=True)
    specs = {
        "image": image, "mask": image.replace(shape=(8, 8, 1)), "class": rows.replace(shape=(), ragged=False),
        "label": rows, "boxes": Spec(np.dtype(np.float32), (None, 4), ragged=True),
    }  # fmt: skip
    known = OutputInfo(specs, {}, {}, {})
    none = np.zeros(1, np.int64)
    batch = {
        "image": np.empty((0, 8, 8, 3), np.uint8), "mask": np.empty((0, 8, 8, 1), np.uint8),
        "class": np.empty(0, np.int64), "boxes": (np.empty((0, 4), np.float32), none),
        "label": (np.empty(0, np.int64), none),
    }  # fmt: skip
    for step in (
        Mosaic(),
        CopyPaste(),
        MixUp(labels="class", num_classes=2),
        CutMix(labels="class", num_classes=2),
    ):
        result = step.infer_all(known)
        ids = np.empty(0, np.int64)
        done = step.run({name: batch[name] for name in step.inputs}, ids, Draws(0, 0, ids, "x"))
        assert set(done) == set(step.outputs) == set(result)


@pytest.mark.parametrize("step", [MixUp(0.8, labels="class"), CutMix(labels="class", masks="mask")])
def test_device_forms_give_the_same(dataset, step):
    torch = pytest.importorskip("torch")
    joint = [step, {"image": [Normalize([0] * 3, [1] * 3)]}, Map(len, "label", "count")]
    here, there = first(dataset, joint), first(dataset, joint, device="cpu", decode="cpu")
    assert there["image"].dtype == torch.float32
    np.testing.assert_allclose(there["image"].numpy(), here["image"], atol=1)
    np.testing.assert_allclose(there["class"].numpy(), here["class"])
    assert there["count"].tolist() == here["count"].tolist()
    # One without a device form takes them back.
    joint = [step, Mosaic(masks="mask")]
    here = first(dataset, joint)
    with pytest.warns(UserWarning, match=r"Mosaic\(masks=.*\) has no device form"):
        there = first(dataset, joint, device="cpu", decode="cpu")
    np.testing.assert_allclose(there["image"].numpy(), here["image"], atol=1)


def test_columns_become_one_matrix() -> None:
    rows = {f"f{n}": np.arange(50, dtype=np.float32) + n for n in range(200)}
    rows |= {"label": np.arange(50), "v": np.arange(100, dtype=np.int16).reshape(50, 2)}
    names = [f"f{n}" for n in range(200)]
    loader = bp.Loader(bp.open(rows), 16, pipelines=[ops.Stack([*names, "v"], into="x")])
    assert loader.plan.names == ("label", "x")
    batches = list(loader)
    assert [list(batch) for batch in batches] == [["label", "x"]] * 4
    result = np.concatenate([batch["x"] for batch in batches])
    assert result.dtype == np.float32
    expected = np.column_stack([*(rows[name] for name in names), rows["v"]])
    np.testing.assert_array_equal(result, expected)
    both = next(iter(bp.Loader(bp.open(rows), 4, pipelines=[ops.Stack(["f0", "label"], "x", keep=True)])))
    assert both["x"].dtype == np.float64
    assert "f0" in both
    half = ops.Stack(["f0", "label"], "x", dtype="float16")
    assert next(iter(bp.Loader(bp.open(rows), 4, pipelines=[half])))["x"].dtype == np.float16


def test_what_cannot_be_stacked_is_named() -> None:
    reader = bp.open({"a": [1, 2], "text": ["x", "y"], "m": np.zeros((2, 3, 3))})
    for names, text in ((["a", "text"], "'text' is"), (["a", "m"], "'m' is"), (["a", "b"], "needs 'b'")):
        with pytest.raises(OptionError, match=text):
            bp.Loader(reader, 2, pipelines=[ops.Stack(names, into="x")])
    # What a step took away is not there for the next.
    twice = [ops.Stack(["a"], into="x"), ops.Stack(["a", "x"], into="y")]
    with pytest.raises(OptionError, match="needs 'a'"):
        bp.Loader(reader, 2, pipelines=twice)


def test_a_pipe_of_several_fields_says_what_to_write() -> None:
    with pytest.raises(OptionError, match=r"one field, not at \['a', 'b'\].*pipelines=\[Stack"):
        bp.Pipe(["a", "b"], [])  # type: ignore[arg-type]
