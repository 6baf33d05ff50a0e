"""COCO: the suite, files as others write them, masks, damage."""

import json
import shutil
import zipfile
from contextlib import closing
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.codecs import rle
from batchplant.codecs.media.rle import counts_of, painted
from batchplant.testing.cases import cells, jpeg, png
from objects import CLASSES, DetectionSuite, boxes, image

GOLDEN = repository.GOLDEN / "coco"


def ring(n):
    return [1.5, 1.0, 4.25, 1.0, 4.25 + n / 8, 6.0]


class TestSuite(DetectionSuite):
    format = "coco"
    suffix = ".coco"
    fields: ClassVar = {
        "image": (bp.Image(), image),
        "file_name": (bp.Text(), lambda n: f"a b/ü {n}.jpg"),
        "image_id": (bp.Int(), lambda n: 1000 - n),
        "boxes": (bp.Boxes("xywh", labels=("labels", "area", "iscrowd", "ids")), boxes),
        "labels": (bp.Labels(CLASSES), lambda n: np.arange(n % 4) % 3),
        "area": (bp.Tensor("float32", (None,)), lambda n: np.full(n % 4, 0.1, np.float32)),
        "iscrowd": (bp.Tensor("bool", (None,)), lambda n: np.arange(n % 4) == 1),
        "ids": (bp.Tensor("int64", (None,)), lambda n: 10 * n + np.arange(n % 4)),
        "polygons": (
            bp.Polygons(),
            lambda n: [[] if number == 1 else [ring(n)] * (number + 1) for number in range(n % 4)],
        ),
        "rle": (
            bp.List(bp.Text()),
            lambda n: ["P2" if number == 1 and n % 5 == 0 else "" for number in range(n % 4)],
        ),
        "keypoints": (
            bp.Keypoints(names=("nose", "left_eye", "right_eye")),
            lambda n: np.full((n % 4, 3, 3), n, np.float32),
        ),
    }


# --- files as others write them -----------------------------------------------------------------------


def coco(
    folder,
    annotations,
    *,
    images=1,
    categories=(("cat", 7), ("dog", 3)),
    name="instances_val2017.json",
    **more,
):
    """A dataset as COCO lays it out: images of 8 by 10 pixels (height, width)."""
    (folder / "annotations").mkdir(parents=True)
    (folder / "val2017").mkdir()
    listed = []
    for number in range(images):
        (folder / "val2017" / f"{number:012d}.jpg").write_bytes(jpeg(8, 10))
        listed.append({"id": 50 + number, "file_name": f"{number:012d}.jpg", "height": 8, "width": 10})
    result = {"info": {"year": 2017}, "images": listed, "annotations": annotations}
    result["categories"] = [
        category if isinstance(category, dict) else {"id": category[1], "name": category[0]}
        for category in categories
    ]
    (folder / "annotations" / name).write_text(json.dumps({**result, **more}, indent=1))
    return folder


def box(number=1, image=50, category=7, bbox=(1, 2, 3, 4), **more):
    return {
        "id": number,
        "image_id": image,
        "category_id": category,
        "bbox": list(bbox),
        "iscrowd": 0,
        **more,
    }


def test_instances(tmp_path):
    result = [box(9, 51, 3, area=5.5), box(8, 50, 7, [0.5, 0, 9.5, 8]), box(7, 51, 7)]
    coco(tmp_path / "data", result, images=3)
    for path in (tmp_path / "data", tmp_path / "data" / "annotations" / "instances_val2017.json"):
        with bp.open(path) as reader:
            assert reader.format == "coco"
            assert reader.schema["labels"] == bp.Labels(("cat", "dog"))
            assert reader.schema["boxes"] == bp.Boxes("xywh", labels=("labels", "area", "iscrowd", "ids"))
            samples = list(reader)
        assert [sample["image_id"] for sample in samples] == [50, 51, 52]
        assert samples[1]["ids"].tolist() == [9, 7]
        assert samples[1]["labels"].tolist() == [1, 0]
        assert samples[1]["area"].tolist() == [5.5, 12.0]
        assert samples[0]["boxes"].tolist() == [[0.5, 0, 9.5, 8]]
        assert samples[2]["boxes"].shape == (0, 4)
        assert samples[0]["image"].shape == (8, 10, 3)
        assert reader.attributes["labels"]["categories"][1] == {"id": 3, "name": "dog"}
        assert reader.by_key("000000000001.jpg")["image_id"] == 51
    assert bp.verify(tmp_path / "data", decode=True).ok


def test_keypoints_and_what_they_are_called(tmp_path):
    names = ["nose", "left_eye", "right_eye"]
    result = [box(1, keypoints=[1, 2, 2, 0, 0, 0, 5, 6.5, 1], num_keypoints=2), box(2)]
    data = coco(tmp_path / "d", result, categories=[{"id": 7, "name": "person", "keypoints": names}])
    with bp.open(data) as reader:
        assert reader.schema["keypoints"] == bp.Keypoints(names=tuple(names))
        assert reader[0]["keypoints"].tolist() == [[[1, 2, 2], [0, 0, 0], [5, 6.5, 1]], [[0, 0, 0]] * 3]


def test_captions(tmp_path):
    result = [
        {"id": 1, "image_id": 50, "caption": 'a "cat"\n'},
        {"id": 2, "image_id": 50, "caption": "größe"},
    ]
    data = coco(tmp_path / "data", result, images=2, name="captions_val2017.json", categories=())
    with bp.open(data) as reader:
        assert list(reader.schema) == ["image", "file_name", "image_id", "captions"]
        assert [sample["captions"] for sample in reader] == [['a "cat"\n', "größe"], []]
    bp.convert(data, tmp_path / "again.coco")
    assert bp.verify(tmp_path / "again.coco", against=data).ok
    assert (tmp_path / "again.coco" / "annotations" / "captions.json").exists()


def test_panoptic(tmp_path):
    segments = [{"id": 5, "category_id": 3, "bbox": [0, 0, 4, 4], "area": 16, "iscrowd": 0}]
    result = [{"image_id": 50, "file_name": "000000000000.png", "segments_info": segments}]
    data = coco(tmp_path / "data", result, name="panoptic_val2017.json")
    (data / "annotations" / "panoptic_val2017").mkdir()
    (data / "annotations" / "panoptic_val2017" / "000000000000.png").write_bytes(png(8, 10, 3))
    with bp.open(data) as reader:
        assert reader.schema["panoptic"].mask
        assert reader[0]["panoptic"].shape == (8, 10, 3)
        assert reader[0]["ids"].tolist() == [5]
        assert reader[0]["labels"].tolist() == [1]
    bp.convert(data, tmp_path / "again.coco")
    assert bp.verify(tmp_path / "again.coco", against=data, decode=True).problems == []


def test_only_images(tmp_path):
    data = coco(tmp_path / "data", [], images=2, name="image_info_test2017.json")
    shutil.move(data / "val2017", data / "test2017")
    with bp.open(data) as reader:
        assert list(reader.schema) == ["image", "file_name", "image_id"]
        assert len(reader) == 2


def test_addresses_in_place_of_names(tmp_path):
    """As in LVIS: the address ends with folder and file."""
    data = coco(tmp_path / "data", [box()], name="lvis_v1_val.json")
    file = data / "annotations" / "lvis_v1_val.json"
    answer = json.loads(file.read_text())
    answer["images"][0]["coco_url"] = "http://x.org/val2017/" + answer["images"][0].pop("file_name")
    file.write_text(json.dumps(answer))
    with bp.open(data) as reader:
        assert reader[0]["file_name"] == "val2017/000000000000.jpg"
        assert reader[0]["image"].shape == (8, 10, 3)


def test_several_files_are_chosen_from(tmp_path):
    data = coco(tmp_path / "data", [box()])
    shutil.copy(data / "annotations" / "instances_val2017.json", data / "annotations" / "other.json")
    with pytest.raises(
        bp.OptionError, match=r"2 files of annotations: .*annotations='instances_val2017.json'"
    ):
        bp.open(data)
    assert len(bp.open(data, annotations="instances_val2017.json")) == 1
    with pytest.raises(bp.NotFoundError, match=r"no file 'nonsense\.json'"):
        bp.open(data, annotations="nonsense.json")


def test_the_folder_of_the_images(tmp_path):
    data = coco(tmp_path / "data", [box()])
    elsewhere = tmp_path / "elsewhere"
    shutil.move(data / "val2017", elsewhere)
    with pytest.raises(bp.NotFoundError, match=r"000000000000.jpg is in none of val2017, .* images=FOLDER"):
        bp.open(data)
    assert bp.open(data, images=str(elsewhere))[0]["image"].shape == (8, 10, 3)
    shutil.move(elsewhere, data / "mine")
    assert bp.open(data, images="mine")[0]["image"].shape == (8, 10, 3)


@pytest.mark.parametrize("name", ["../x.jpg", "/etc/passwd", "", "a\0.jpg"])
def test_paths_that_leave_the_folder_are_refused(name, tmp_path):
    data = coco(tmp_path / "data", [], images=1)
    file = data / "annotations" / "instances_val2017.json"
    answer = json.loads(file.read_text())
    answer["images"].append({"id": 1, "file_name": name, "height": 8, "width": 10})
    file.write_text(json.dumps(answer))
    with pytest.raises(bp.DamagedError, match="not a path below the folder") as caught:
        bp.open(data)
    assert caught.value.sample == 1


# --- masks ----------------------------------------------------------------------------------------------


def test_masks_are_those_of_pycocotools():
    """Run-length text, counts and outlines, decoded and encoded as golden/coco/masks.json has them."""
    golden = json.loads((GOLDEN / "masks.json").read_text())
    assert len(golden) > 20
    for row in golden:
        height, width = row["size"]
        text = row["counts"].encode()
        counts = counts_of(text, height, width)
        assert bp._native.rle_text(counts).decode() == row["counts"]
        mask = painted([(1, [], row["counts"])], height, width)
        assert int(mask.sum()) == row["area"]
        assert bp._native.rle_text(bp._native.rle_of_mask(mask)).decode() == row["canonical"]
        if "polygon" in row:
            result = bp._native.rle_of_polygon(np.array(row["polygon"], np.float64), height, width)
            assert bp._native.rle_text(result).decode() == row["counts"], row["polygon"]


def test_masks_by_hand():
    mask = np.zeros((6, 8), np.uint8)
    mask[1:5, 2:7] = 1
    mask[2:4, 3:5] = 0
    text = rle.encode(mask)
    assert np.array_equal(rle.decode(text, 6, 8), mask)
    rings = rle.outlines(text, 6, 8)
    assert sorted(map(len, rings)) == [8, 8]
    filled = rle.decode(rle.of_polygons([max(rings, key=max)], 6, 8), 6, 8)
    assert filled.sum() == 20
    with pytest.raises(bp.EncodeError, match="a height and a width"):
        rle.encode(mask[None])


def test_masks_painted(tmp_path):
    square = [[2, 2, 5, 2, 5, 5, 2, 5]]
    runs = {"size": [8, 10], "counts": [0, 8, 72]}
    result = [box(1, segmentation=square, area=9), box(2, category=3, segmentation=runs, area=40, iscrowd=1)]
    data = coco(tmp_path / "data", result)
    with bp.open(data) as reader:
        sample = reader[0]
        assert sample["polygons"] == [square, []]
        assert sample["rle"][0] == ""
        assert counts_of(sample["rle"][1].encode(), 8, 10).tolist() == [0, 8, 72]
    with bp.open(data, masks="classes") as reader:
        mask = reader[0]["mask"]
        assert reader.schema["mask"] == bp.Image(mode="L", mask=True)
        assert (mask[:, 0] == 2).all()
        assert (mask[2:5, 2:5] == 1).all()
        assert int((mask > 0).sum()) == 8 + 9
    with bp.open(data, masks="instances") as reader:
        assert np.unique(reader[0]["mask"]).tolist() == [0, 1, 2]
        batch = next(iter(bp.Loader(reader.select(["image", "mask"]), 1)))
        assert batch["mask"].shape[:3] == (1, 8, 10)
    with pytest.raises(bp.OptionError, match="masks is classes or instances"):
        bp.open(data, masks="both")
    bp.convert(data, tmp_path / "again.coco")
    assert bp.verify(tmp_path / "again.coco", against=data).ok


@pytest.mark.parametrize(
    ("segmentation", "reason"),
    [
        ({"size": [8, 9], "counts": "P2"}, "mask of 8×9 in an image of 8×10"),
        ({"size": [8, 10], "counts": "P"}, "no run-length text of 8×10"),
        ({"size": [8, 10], "counts": "\x7f"}, "no run-length text of 8×10"),
        ({"size": [8, 10], "counts": [80, 1]}, "runs that are not 8×10"),
        ({"size": [8, 10], "counts": [-1, 81]}, "runs that are not 8×10"),
        ({"size": [8, 10]}, "is no run-length mask"),
    ],
)
def test_masks_that_are_none(segmentation, reason, tmp_path):
    with bp.open(coco(tmp_path / "data", [box(segmentation=segmentation)])) as reader:
        with pytest.raises(bp.DamagedError, match=reason) as caught:
            reader[0]
        assert (caught.value.sample, caught.value.field) == (0, "rle")


def test_outlines_that_reach_far_are_refused(tmp_path):
    far = [[0, 0, 1e300, 0, 1e300, 1e300]]
    reader = bp.open(coco(tmp_path / "data", [box(segmentation=far)]), masks="classes")
    with reader, pytest.raises(bp.DamagedError, match="reaches too far"):
        reader[0]


# --- nothing is lost --------------------------------------------------------------------------------------


def written(folder):
    """The one file of annotations that our writer wrote."""
    [file] = (folder / "annotations").glob("*.json")
    return json.loads(file.read_text())


RICH = {"license": 4, "coco_url": 'http://x/a"b".jpg', "date_captured": None, "meta": {"id": [1, {}]}}
THIRDS = [box(1, category=12), box(2, category=3), box(3, 51, 7)]


@pytest.mark.parametrize(
    "name",
    ["a.beton", "a.parquet", "a.arrow", "a.h5", "a.zarr", "a.tfrecord", "a.jsonl", "a.tar", "a.mds", "a.npz"],
)
def test_category_ids_survive_every_format(name, tmp_path):
    categories = [("cat", 3), ("dog", 7), ("emu", 12)]
    data = coco(tmp_path / "data", THIRDS, images=2, categories=categories)
    with bp.open(data) as reader:
        assert reader.schema["labels"].ids == (3, 7, 12)
        assert bp.Schema.from_json(reader.schema.to_json())["labels"].ids == (3, 7, 12)
    converted = bp.convert(data, tmp_path / name)
    assert not [remark for remark in converted.remarks if "categories" in remark]
    bp.convert(tmp_path / name, tmp_path / "again.coco")
    result = written(tmp_path / "again.coco")
    assert [(row["name"], row["id"]) for row in result["categories"]] == categories
    assert [row["category_id"] for row in result["annotations"]] == [12, 3, 7]
    assert bp.verify(tmp_path / "again.coco", against=data).ok


def test_verify_compares_the_ids_and_names_of_classes(tmp_path):
    first = coco(tmp_path / "first", THIRDS, images=2, categories=[("cat", 3), ("dog", 7), ("emu", 12)])
    moved = [{**third, "category_id": {3: 1, 7: 2, 12: 3}[third["category_id"]]} for third in THIRDS]
    second = coco(tmp_path / "second", moved, images=2, categories=[("cat", 1), ("dog", 2), ("emu", 3)])
    third = coco(tmp_path / "third", THIRDS, images=2, categories=[("cat", 3), ("dog", 7), ("gnu", 12)])
    [problem] = bp.verify(first, against=second).problems
    assert (problem.field, "class ids are 3, 7, 12, and those of" in problem.message) == ("labels", True)
    [problem] = bp.verify(first, against=third).problems
    assert (problem.field, "classes are cat, dog, emu, and" in problem.message) == ("labels", True)


def test_ids_of_labels_are_checked():
    assert bp.Labels(("a", "b"), ids=(9, 4)) == bp.Labels(("a", "b"))
    assert str(bp.Labels(("a", "b"), ids=(9, 4))) == str(bp.Labels(("a", "b")))
    for ids in [(1,), (1, 1), (1, 2.5), (True, 2)]:
        with pytest.raises(bp.OptionError, match="another one for each"):
            bp.Labels(("a", "b"), ids=ids)


@pytest.mark.parametrize("between", [None, "a.parquet", "a.h5"])
def test_unknown_keys_are_carried(between, tmp_path):
    extra = {"attributes": {"occluded": True}, "track_id": 4, "score": 0.25, "note": 'a "quoted", {note}'}
    categories = [{"id": 90, "name": "dog", "supercategory": "animal", "frequency": "r"}]
    result = [
        box(5, 51, 90, bbox=[1.123456789, 2, 3.5, 4.25], area=702.1057499999998, **extra),
        box(6, 51, 90, area=14, segmentation=[[1, 2, 4, 2, 4, 6]]),
    ]
    top = {"type": "instances", "licenses": [{"id": 4, "name": "L"}], "videos": [{"id": 1}]}
    data = coco(tmp_path / "data", result, images=2, categories=categories, **top)
    file = data / "annotations" / "instances_val2017.json"
    before = json.loads(file.read_text())
    before["images"][0] |= RICH
    file.write_text(json.dumps(before))
    with bp.open(data) as reader:
        first, second = reader
        assert reader.schema["boxes"].dtype == reader.schema["area"].dtype == "float64"
    assert first["image_extra"] == RICH
    assert (second["image_extra"], first["object_extra"]) == ({}, [])
    assert second["object_extra"] == [extra, {}]
    source = data
    if between is not None:
        bp.convert(data, tmp_path / between)
        source = tmp_path / between
    again = tmp_path / "again.coco"
    assert bp.convert(source, again).remarks == []
    after = written(again)
    assert bp.verify(again, against=data).ok
    assert after["images"] == before["images"]
    assert [{"segmentation": [], **item} for item in before["annotations"]] == after["annotations"]
    assert [row["bbox"][0] for row in after["annotations"]] == [1.123456789, 1]
    if between != "a.parquet":
        assert after["categories"] == categories
        assert {key: after[key] for key in top} == top
    # What differs in a key that has no field is seen.
    file.write_text(file.read_text().replace('"score": 0.25', '"score": 0.5'))
    [problem] = bp.verify(again, against=data).problems
    assert (problem.sample, problem.field) == (1, "object_extra")


def test_rows_of_unknown_keys_go_with_their_boxes(tmp_path):
    result = [box(1, bbox=[0, 0, 2, 2], score=1), box(2, bbox=[6, 4, 3, 3], score=2)]
    pipelines = {"image": [bp.ops.CenterCrop(4, ratio=None)]}
    with closing(bp.Loader(coco(tmp_path / "data", result), 1, pipelines=pipelines, workers=1)) as loader:
        [batch] = loader
    assert batch["object_extra"] == [[{"score": 2}]]


@pytest.mark.parametrize("value", [473.07, 1234.567, 0.1, 16777216, 640])
def test_numbers_of_few_digits_stay_float32(value, tmp_path):
    data = coco(tmp_path / "data", [box(bbox=[value, 1, 2, 3])])
    assert bp.open(data).schema["boxes"].dtype == "float32"
    bp.convert(data, tmp_path / "again.coco")
    assert written(tmp_path / "again.coco")["annotations"][0]["bbox"][0] == value
    assert bp.open(data, float64=["boxes"]).schema["boxes"].dtype == "float64"


def test_files_of_few_and_of_many_digits_are_one_dataset(tmp_path):
    few = coco(tmp_path / "few", [box(bbox=[1, 2, 3, 4])])
    many = coco(tmp_path / "many", [box(bbox=[1.123456789, 2, 3, 4], area=1.5)])
    for paths in ([few, many], [many, few]):
        with bp.open(paths) as reader:
            assert reader.schema["boxes"].dtype == "float64"
            assert sorted(sample["boxes"][0, 0] for sample in reader) == [1, 1.123456789]


def test_keypoints_only_for_classes_that_have_some(tmp_path):
    categories = [{"id": 7, "name": "person", "keypoints": ["nose", "chin"]}, {"id": 3, "name": "car"}]
    result = [box(1, keypoints=[1, 2, 2, 3, 4, 1]), box(2, category=3), box(3, keypoints=[0] * 6)]
    data = coco(tmp_path / "data", result, categories=categories)
    bp.convert(data, tmp_path / "again.coco")
    after = written(tmp_path / "again.coco")
    assert after["categories"] == categories
    assert ["keypoints" in item for item in after["annotations"]] == [True, False, True]
    # Without the categories' own notes, the classes that have keypoints tell.
    bp.convert(data, tmp_path / "a.beton")
    bp.convert(tmp_path / "a.beton", tmp_path / "third.coco")
    assert written(tmp_path / "third.coco")["categories"] == categories


def test_captions_keep_their_ids(tmp_path):
    first = {"id": 77, "image_id": 50, "caption": "a"}
    actual = [first, {"id": 5, "image_id": 51, "caption": "b", "by": "me"}]
    data = coco(tmp_path / "data", actual, images=2, name="captions_val2017.json", categories=())
    bp.convert(data, tmp_path / "again.coco")
    assert written(tmp_path / "again.coco")["annotations"] == actual


def test_extras_that_are_none(tmp_path):
    schema = {
        "image": bp.Image(), "boxes": bp.Boxes("xywh", labels=["labels"]), "labels": bp.Labels(("a",)),
        "object_extra": bp.Json(),
    }  # fmt: skip
    sample = {"image": jpeg(8, 10), "boxes": np.ones((2, 4), np.float32), "labels": np.zeros(2, np.int64)}
    for extra in ([{}], [{}, 3], {}):
        with (
            pytest.raises(bp.BatchplantError, match="object_extra is a list with"),
            bp.create(tmp_path / "a.coco", schema) as out,
        ):
            out.append({**sample, "object_extra": extra})


# --- checks ---------------------------------------------------------------------------------------------


def test_verify_names_what_is_wrong(tmp_path):
    wrong = [
        box(1),
        box(2, bbox=[5, 5, 20, 2]),
        box(3, 51, 99),
        box(4, 51, bbox=[1, 1, 0, 5]),
        box(5, 4711),
        box(6, segmentation=[[1, 2, 3]]),
    ]
    data = coco(tmp_path / "data", wrong, images=3)
    (data / "val2017" / "000000000002.jpg").unlink()
    problems = bp.verify(data).problems
    output = [(problem.sample, problem.field, problem.message) for problem in problems]
    assert (0, "boxes", "object 1: box [5, 5, 20, 2] (xywh) does not lie in the image of 10×8") in output
    assert (1, "boxes", "object 1: box [1, 1, 0, 5] (xywh) does not lie in the image of 10×8") in output
    assert (1, "labels", "object 0: there is no category 99") in output
    assert (2, "image", "000000000002.jpg: No such file or directory") in output
    assert any(sample == 0 and field == "polygons" for sample, field, _ in output)
    assert any("an image that is not there" in message for *_, message in output)
    assert len(problems) == 6


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda item: item.pop("images"), "no list of images"),
        (lambda row: row["images"].append({"id": 1}), "image 1 has no file_name"),
        (lambda row: row["images"].append(row["images"][0]), "has the id 50, as another has"),
        (lambda row: row["annotations"].append(3), "annotation 1: the record is not an object"),
        (lambda row: row["annotations"].append(box(bbox=[1, 2])), "annotation 1: bbox"),
        (lambda row: row["annotations"].append(box(category="cat")), "annotation 1: category_id"),
        (lambda row: row["categories"].append({"name": "x"}), "no id of its own"),
        (lambda row: row["annotations"].append(box(keypoints=[1, 2, 3, 4])), "annotation 1: keypoints"),
    ],
)
def test_files_that_are_none(change, reason, tmp_path):
    data = coco(tmp_path / "data", [box(keypoints=[1, 2, 3])])
    file = data / "annotations" / "instances_val2017.json"
    answer = json.loads(file.read_text())
    change(answer)
    file.write_text(json.dumps(answer))
    with pytest.raises(bp.DamagedError, match=reason):
        bp.open(data, format="coco")


@pytest.mark.parametrize("keypoints", [5, "nose", {}, None])
def test_keypoint_names_that_are_no_list(keypoints, tmp_path):
    named = {"id": 7, "name": "person", "keypoints": keypoints}
    with bp.open(coco(tmp_path / "data", [box(keypoints=[1, 2, 2])], categories=[named])) as reader:
        assert reader[0]["keypoints"].tolist() == [[[1, 2, 2]]]


def test_keypoint_of_thousands_of_digits(tmp_path):
    data = coco(tmp_path / "data", [box(keypoints="DIGITS")], categories=[("person", 7)])
    file = data / "annotations" / "instances_val2017.json"
    file.write_text(file.read_text().replace('"DIGITS"', f"[{'9' * 5000}, 2, 2]"))
    with pytest.raises(bp.DamagedError, match="annotation 0: keypoints"):
        bp.open(data)


def test_index_is_remembered(tmp_path):
    data = coco(tmp_path / "data", [box()], images=2)
    file = data / "annotations" / "instances_val2017.json"
    first = cells(bp.open(file, index="write"))
    assert (data / "annotations" / "instances_val2017.json.bpindex").exists()
    assert cells(bp.open(file)) == first
    answer = json.loads(file.read_text())
    answer["annotations"].append(box(2))
    file.write_text(json.dumps(answer))
    assert len(bp.open(file)[0]["ids"]) == 2


def test_ids_of_categories_are_kept(tmp_path):
    data = coco(tmp_path / "data", [box(1), box(2, category=3)], licenses=[{"id": 1, "name": "CC"}])
    bp.convert(data, tmp_path / "again.coco")
    answer = json.loads((tmp_path / "again.coco" / "annotations" / "instances.json").read_text())
    assert answer["categories"] == [{"id": 7, "name": "cat"}, {"id": 3, "name": "dog"}]
    assert [row["category_id"] for row in answer["annotations"]] == [7, 3]
    assert (answer["info"]["year"], answer["licenses"][0]["name"]) == (2017, "CC")
    assert answer["images"][0] == {"id": 50, "file_name": "000000000000.jpg", "width": 10, "height": 8}


# --- writing --------------------------------------------------------------------------------------------


def test_boxes_of_any_form_become_those_of_coco(tmp_path):
    given = {"xyxy": [2, 1, 6, 4], "xywh": [2, 1, 4, 3], "cxcywh": [4, 2.5, 4, 3]}
    for format, values in given.items():
        for scale in (1, 10):
            kind = bp.Boxes(format, normalized=scale > 1)
            parts = np.array([values], np.float32) / ([10, 8, 10, 8] if scale > 1 else 1)
            schema = {"image": bp.Image(), "boxes": kind, "labels": bp.Labels(("cat",))}
            with bp.create(tmp_path / "a.coco", schema, overwrite=True) as out:
                out.append({"image": jpeg(8, 10), "boxes": parts.astype(np.float32), "labels": np.array([0])})
            np.testing.assert_allclose(bp.open(tmp_path / "a.coco")[0]["boxes"], [[2, 1, 4, 3]], atol=1e-6)


def test_bare_numbers_have_to_be_told(tmp_path):
    schema = {
        "image": bp.Image(),
        "boxes": bp.Tensor("float64", (None, 4)),
        "labels": bp.Tensor("int32", (None,)),
    }
    with pytest.raises(bp.OptionError, match="does not tell how four numbers are a box: say so with boxes"):
        bp.create(tmp_path / "a.coco", schema)
    with bp.create(tmp_path / "a.coco", schema, boxes="xyxy") as out:
        out.append(
            {"image": jpeg(8, 10), "boxes": np.array([[1.0, 2, 3, 5]]), "labels": np.array([4], np.int32)}
        )
    sample = bp.open(tmp_path / "a.coco")[0]
    assert sample["boxes"].tolist() == [[1, 2, 2, 3]]
    assert sample["labels"].tolist() == [4]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"labels": np.array([0, 0])}, "2 rows, and boxes has 1"),
        ({"labels": np.array([5])}, "none of the classes"),
        ({"file_name": "../a.jpg"}, "is not a path below a folder"),
    ],
)
def test_samples_that_do_not_fit(sample, reason, tmp_path):
    schema = {"image": bp.Image(), "file_name": bp.Text(), "boxes": bp.Boxes(), "labels": bp.Labels(("cat",))}
    good = {
        "image": jpeg(),
        "file_name": "a.jpg",
        "boxes": np.ones((1, 4), np.float32),
        "labels": np.array([0]),
    }
    with pytest.raises(bp.EncodeError, match=reason), bp.create(tmp_path / "a.coco", schema) as out:
        out.append({**good, **sample})
    assert not (tmp_path / "a.coco").exists()


def test_one_file_name_for_two_images(tmp_path):
    schema = {"image": bp.Image(), "file_name": bp.Text()}

    def write():
        with bp.create(tmp_path / "a.coco", schema) as out:
            for _ in range(2):
                out.append({"image": jpeg(), "file_name": "a.jpg"})

    with pytest.raises(bp.ExistsError, match="another sample has the file name"):
        write()
    assert not (tmp_path / "a.coco").exists()


def test_other_json_is_not_taken_for_it(tmp_path):
    (tmp_path / "a.json").write_text('[{"images": [1], "id": 3}]')
    assert bp.open(tmp_path / "a.json").format == "json"
    (tmp_path / "b.json").write_text('{"annotations": [1, 2], "x": 3}')
    assert bp.open(tmp_path / "b.json").format == "json"


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_archives_as_they_are_published(tmp_path, compression):
    """val2017.zip beside annotations_trainval2017.zip, neither of them unpacked."""
    data = coco(tmp_path / "plain", [box()], images=2)
    plain = bp.open(data)
    folder = tmp_path / "published"
    folder.mkdir()
    with zipfile.ZipFile(folder / "val2017.zip", "w", compression) as out:
        for image in sorted((data / "val2017").iterdir()):
            out.write(image, f"val2017/{image.name}")
    with zipfile.ZipFile(folder / "annotations_trainval2017.zip", "w", zipfile.ZIP_DEFLATED) as out:
        for name in ("instances_val2017.json", "other.json"):
            out.write(data / "annotations" / "instances_val2017.json", f"annotations/{name}")
    with pytest.raises(bp.OptionError, match="2 files of annotations"):
        bp.open(folder)
    with bp.open(folder, annotations="instances_val2017.json") as reader:
        assert reader.format == "coco"
        assert dict(reader.schema) == dict(plain.schema)
        assert bytes(reader.read([0])["image"][0]) == bytes(plain.read([0])["image"][0])
        assert reader[0]["boxes"].tolist() == plain[0]["boxes"].tolist()
        in_place = reader.spans("image", [0])
        assert (in_place is not None) == (compression == zipfile.ZIP_STORED)
        assert in_place is None or in_place.files == (str(folder / "val2017.zip"),)
        batch = next(iter(bp.Loader(reader.select(["image"]), 1)))
        assert (np.asarray(batch["image"][0]) == plain[0]["image"]).all()
    assert bp.verify(folder, annotations="instances_val2017.json").ok
    (folder / "val2017.zip").write_bytes((folder / "val2017.zip").read_bytes()[:-9])
    with pytest.raises(bp.BatchplantError):
        bp.open(folder, annotations="instances_val2017.json")
