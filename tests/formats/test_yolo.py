"""YOLO: the suite, folders as others lay them out, outlines, keypoints, damage."""

import json
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats import yolo
from batchplant.testing.cases import jpeg
from objects import CLASSES, DetectionSuite, image


def parts(n):
    return np.array([[0.5, 0.25, 0.1 + number / 7, 0.3] for number in range(n % 4)], np.float32).reshape(
        -1, 4
    )


class TestSuite(DetectionSuite):
    format = "yolo"
    suffix = ".yolo"
    fields: ClassVar = {
        "image": (bp.Image(), image),
        "file_name": (bp.Text(), lambda n: f"a b/ü {n}.jpg"),
        "boxes": (bp.Boxes("cxcywh", normalized=True, labels=("labels",)), parts),
        "labels": (bp.Labels(CLASSES), lambda n: np.arange(n % 4) % 3),
        "keypoints": (
            bp.Keypoints(names=("nose", "left_eye", "right_eye"), normalized=True),
            lambda n: np.full((n % 4, 3, 3), n / 32, np.float32),
        ),
    }


def fill(folder, **files):
    """Files by their paths; images of 8 by 10 pixels (height, width) where they are not given."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpeg(8, 10) if data is None else data.encode() if isinstance(data, str) else data)
    return folder


def fill_all(folder, files):
    return fill(folder, **files)


YAML = """\
# Where it comes from
path: ../datasets/small
train: images/train
val: images/val
nc: 2
names:
  0: cat
  1: "dog: large"
download: |
  import os
  os.system("nothing")
"""


def test_detection_with_splits(tmp_path):
    files = {
        "data.yaml": YAML,
        "images/train/a.jpg": None, "images/train/b.jpg": None, "images/val/c.jpg": None,
        "labels/train/a.txt": "1 0.5 0.5 0.2 0.25\n0 0.25 0.5 0.5 1.0", "labels/val/c.txt": "",
    }  # fmt: skip
    fill_all(tmp_path, files)
    with pytest.raises(
        bp.OptionError, match=r"train \(2 images\), val \(1 image\): choose with split='train'"
    ):
        bp.open(tmp_path)
    for path in (tmp_path, tmp_path / "data.yaml"):
        with bp.open(path, split="train") as reader:
            assert reader.format == "yolo"
            assert reader.schema["labels"] == bp.Labels(("cat", "dog: large"))
            assert reader.schema["boxes"] == bp.Boxes("cxcywh", normalized=True, labels=("labels",))
            samples = list(reader)
        assert [sample["file_name"] for sample in samples] == ["a.jpg", "b.jpg"]
        assert samples[0]["labels"].tolist() == [1, 0]
        np.testing.assert_allclose(samples[0]["boxes"][0], [0.5, 0.5, 0.2, 0.25])
        assert samples[1]["boxes"].shape == (0, 4)
    with bp.open(tmp_path, split="all") as reader:
        assert reader.schema["split"] == bp.Int(names=("train", "val"))
        assert [sample["split"] for sample in reader] == [0, 0, 1]
        assert reader.by_key("c.jpg")["split"] == 1
    assert bp.verify(bp.open(tmp_path, split="all")).ok
    with pytest.raises(bp.OptionError, match="no split 'test'; it has train, val"):
        bp.open(tmp_path, split="test")


def test_splits_are_kept(tmp_path):
    fill_all(
        tmp_path / "a",
        {
            "data.yaml": YAML,
            "images/train/a.jpg": None,
            "images/val/c.jpg": None,
            "labels/val/c.txt": "0 .5 .5 1 1",
        },
    )
    bp.convert(tmp_path / "a", tmp_path / "b.yolo", source_options={"split": "all"})
    assert bp.verify(
        bp.open(tmp_path / "b.yolo", split="all"), against=bp.open(tmp_path / "a", split="all")
    ).ok
    assert (tmp_path / "b.yolo" / "labels" / "val" / "c.txt").exists()


@pytest.mark.parametrize(
    "names", ["names: [cat, dog]", "names: ['cat', 'dog']", "names:\n- cat\n- dog", "names: {0: cat, 1: dog}"]
)
def test_names_of_classes(names, tmp_path):
    fill_all(tmp_path, {"data.yaml": f"train: ../train/images\n{names}\n", "train/images/a.jpg": None})
    assert bp.open(tmp_path).schema["labels"] == bp.Labels(("cat", "dog"))


def test_lists_of_images(tmp_path):
    files = {
        "data.yaml": "train: train.txt\nnames: [cat]\n",
        "train.txt": "./images/b.jpg\nimages/a.jpg\n\n",
        "images/a.jpg": None, "images/b.jpg": None, "images/c.jpg": None, "labels/b.txt": "0 0.5 0.5 1 1",
    }  # fmt: skip
    with bp.open(fill_all(tmp_path, files)) as reader:
        assert [sample["file_name"] for sample in reader] == ["b.jpg", "a.jpg"]
        assert len(reader[0]["labels"]) == 1
    (tmp_path / "train.txt").write_text("../../etc/passwd.jpg")
    with pytest.raises(bp.DamagedError, match=r"line 1: .* is no path below the folder"):
        bp.open(tmp_path)


def test_images_beside_labels_without_yaml(tmp_path):
    files = {
        "images/a.jpg": None,
        "images/b.jpg": None,
        "labels/a.txt": "3 0.5 0.5 1 1\n",
        "labels/b.txt": "",
    }
    with bp.open(fill_all(tmp_path, files)) as reader:
        assert reader.format == "yolo"
        assert reader.schema["labels"] == bp.Labels()
        assert reader[0]["labels"].tolist() == [3]


def test_outlines(tmp_path):
    text = "0 0.1 0.1 0.5 0.1 0.5 0.9\n1 0.5 0.5 0.2 0.2\n"
    fill_all(tmp_path / "a", {"images/a.jpg": None, "labels/a.txt": text})
    with bp.open(tmp_path / "a") as reader:
        assert reader.schema["polygons"] == bp.Polygons(normalized=True)
        assert reader[0]["polygons"] == [[[0.1, 0.1, 0.5, 0.1, 0.5, 0.9]], []]
        np.testing.assert_allclose(
            reader[0]["boxes"], [[0.3, 0.5, 0.4, 0.8], [0.5, 0.5, 0.2, 0.2]], rtol=1e-6
        )
    bp.convert(tmp_path / "a", tmp_path / "b.coco")
    with bp.open(tmp_path / "b.coco") as reader:
        np.testing.assert_allclose(reader[0]["polygons"][0][0], [1, 0.8, 5, 0.8, 5, 7.2])
        np.testing.assert_allclose(reader[0]["boxes"][0], [1, 0.8, 4, 6.4], rtol=1e-6)
    bp.convert(tmp_path / "b.coco", tmp_path / "c.yolo")
    with bp.open(tmp_path / "c.yolo") as reader:
        np.testing.assert_allclose(reader[0]["polygons"][0][0], [0.1, 0.1, 0.5, 0.1, 0.5, 0.9])


def test_outlines_of_several_rings_become_one():
    square, other = [0, 0, 2, 0, 2, 2, 0, 2], [4, 0, 6, 0, 6, 2, 4, 2]
    ring = np.array(yolo.joined([square, other])).reshape(-1, 2)
    x, y = ring.T
    area = abs(float(np.dot(x, np.roll(y, -1)) - np.dot(y, np.roll(x, -1)))) / 2
    assert area == 8
    assert {tuple(point) for point in ring.tolist()} == {
        (0, 0),
        (2, 0),
        (2, 2),
        (0, 2),
        (4, 0),
        (6, 0),
        (6, 2),
        (4, 2),
    }


def test_pose(tmp_path):
    text = "0 0.5 0.5 1 1 0.1 0.2 2 0.3 0.4 0\n0 0.5 0.5 1 1\n"
    yaml = "train: images\nkpt_shape: [2, 3]\nflip_idx: [1, 0]\nnames: [person]\n"
    fill_all(tmp_path, {"data.yaml": yaml, "images/a.jpg": None, "labels/a.txt": text})
    with bp.open(tmp_path) as reader:
        assert reader.schema["keypoints"] == bp.Keypoints(2, swap=[(0, 1)], normalized=True)
        result = reader[0]["keypoints"]
    np.testing.assert_allclose(result, [[[0.1, 0.2, 2], [0.3, 0.4, 0]], [[0, 0, 0], [0, 0, 0]]])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0 0.5 0.5 1", "object 0 has 4 numbers, not 5"),
        ("0 0.5 0.5 1 1\n1 .1 .2 .3 .4 .5", "object 1 has 6 numbers"),
        ("cat 0.5 0.5 1 1", "'cat' is no number"),
        ("0.5 0.5 0.5 1 1", "0.5 is no class"),
        ("-1 0.5 0.5 1 1", "-1 is no class"),
        ("\0", "is no number"),
    ],
)
def test_lines_that_are_none(text, reason, tmp_path):
    files = {"data.yaml": "train: images\nnames: [cat]\n", "images/a.jpg": None, "images/b.jpg": None}
    fill_all(tmp_path, {**files, "labels/a.txt": "0 .5 .5 .1 .1", "labels/b.txt": text})
    with pytest.raises(bp.DamagedError, match=rf"labels/b.txt: .*{reason}") as caught:
        bp.open(tmp_path)
    assert caught.value.sample == 1


def test_verify_names_what_is_wrong(tmp_path):
    files = {
        "data.yaml": "train: images\nnames: [cat]\n", "images/a.jpg": None,
        "labels/a.txt": "0 0.9 0.5 0.5 0.5\n7 0.5 0.5 0.1 0.1\n", "labels/gone.txt": "0 0.5 0.5 0.1 0.1\n",
    }  # fmt: skip
    fill_all(tmp_path, files)
    output = [(problem.sample, problem.field, problem.message) for problem in bp.verify(tmp_path).problems]
    assert output == [
        (0, "boxes", "object 0: box [0.9, 0.5, 0.5, 0.5] (cxcywh) does not lie in the image"),
        (0, "labels", "object 1: there is no class 7"),
        (None, None, "labels/gone.txt has no image"),
    ]


@pytest.mark.parametrize(
    ("yaml", "reason"),
    [
        ("train: nowhere\nnames: [cat]\n", "names 'nowhere', and there is no such folder"),
        ("train: /etc\nnames: [cat]\n", "names '/etc'"),
        ("train: images\nnames: {a: cat}\n", "a class without a number"),
        ("train: images\nnames: [cat\n", "it cannot be read"),
        ("train: images\nnames: [cat]\nkpt_shape: [0, 3]\n", "kpt_shape is"),
    ],
)
def test_yaml_that_is_none(yaml, reason, tmp_path):
    fill_all(tmp_path, {"data.yaml": yaml, "images/a.jpg": None})
    with pytest.raises((bp.DamagedError, bp.NotFoundError), match=reason):
        bp.open(tmp_path)


def test_numbers_of_many_files_at_once():
    texts = [b"1 2 3 4 5", b"", b"\n\n 6 7 8 9 10 \r\n11 12 13 14 15", b"16 17 18 19 20\n"]
    lines = yolo.parse(bp.Ragged.from_cells(texts))
    assert lines.counts.tolist() == [1, 0, 2, 1]
    assert lines.values.tolist() == list(range(1, 21))
    assert lines.sizes.tolist() == [5] * 4


def test_what_our_writer_leaves(tmp_path):
    schema = {"image": bp.Image(), "boxes": bp.Boxes(), "labels": bp.Labels(("cat",))}
    with bp.create(tmp_path / "a.yolo", schema, split="val") as out:
        out.append(
            {"image": jpeg(8, 10), "boxes": np.array([[0, 0, 5, 8]], np.float32), "labels": np.array([0])}
        )
    assert (tmp_path / "a.yolo" / "labels" / "val" / "00000000.txt").read_text() == "0 0.25 0.5 0.5 1.0\n"
    assert json.loads((tmp_path / "a.yolo" / ".batchplant.json").read_text())["classes"] == ["cat"]
    with pytest.raises(bp.SchemaError, match="needs labels beside boxes"):
        bp.create(tmp_path / "b.yolo", {"image": bp.Image(), "boxes": bp.Boxes()})
