"""Pascal VOC: the suite, folders as the challenge lays them out, unsafe XML, damage."""

from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing.cases import jpeg, png
from objects import CLASSES, DetectionSuite, image


def corners(n):
    return np.array([[number, 1.25, 2.5 + number, 3.5] for number in range(n % 4)], np.float32).reshape(-1, 4)


class TestSuite(DetectionSuite):
    format = "voc"
    suffix = ".voc"
    fields: ClassVar = {
        "image": (bp.Image(), image),
        "file_name": (bp.Text(), lambda n: f"a b/ü {n}.jpg"),
        "boxes": (bp.Boxes(labels=("labels", "difficult", "truncated", "occluded")), corners),
        "labels": (bp.Labels(CLASSES), lambda n: np.arange(n % 4) % 3),
        "difficult": (bp.Tensor("bool", (None,)), lambda n: np.arange(n % 4) == 1),
        "truncated": (bp.Tensor("bool", (None,)), lambda n: np.arange(n % 4) == 0),
        "occluded": (bp.Tensor("bool", (None,)), lambda n: np.arange(n % 4) == 2),
        "pose": (bp.List(bp.Text()), lambda n: ["<Left> & right"] * (n % 4)),
    }


OBJECT = """<object><name>{name}</name><pose>Left</pose><truncated>1</truncated><difficult>0</difficult>
<bndbox><xmin>{0}</xmin><ymin>{1}</ymin><xmax>{2}</xmax><ymax>{3}</ymax></bndbox>
<part><name>head</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>2</xmax><ymax>2</ymax></bndbox></part></object>"""


def xml(*objects):
    inside = "".join(OBJECT.format(*box, name=name) for name, box in objects)
    size = "<size><width>10</width><height>8</height><depth>3</depth></size>"
    return f"<annotation><folder>VOC2012</folder><filename>x.jpg</filename>{size}{inside}</annotation>"


def voc(folder, annotations, **more):
    """Images of 8 by 10 pixels (height, width), and an annotation for each."""
    files = {f"Annotations/{stem}.xml": text.encode() for stem, text in annotations.items()}
    files |= {f"JPEGImages/{stem}.jpg": jpeg(8, 10) for stem in annotations}
    for name, data in {**files, **more}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_as_the_challenge_has_it(tmp_path):
    result = {"b": xml(("dog", (1, 1, 10, 8)), ("cat", (3, 2, 5, 4))), "a": xml()}
    lists = {"ImageSets/Main/train.txt": b"b\n", "ImageSets/Main/dog_train.txt": b"b  1\na -1\n"}
    data = voc(tmp_path / "data", result, **lists, **{"SegmentationClass/b.png": png(8, 10)})
    with bp.open(data) as reader:
        assert reader.format == "voc"
        assert reader.schema["boxes"] == bp.Boxes(
            "xyxy", labels=("labels", "difficult", "truncated", "pose", "object_extra")
        )
        assert len(reader.schema["labels"].names) == 20
        assert reader.schema["mask"].optional
        first, second = reader
    assert first["mask"] is None
    assert first["boxes"].shape == (0, 4)
    assert second["boxes"].tolist() == [[0, 0, 10, 8], [2, 1, 5, 4]]
    assert [reader.schema["labels"].names[item] for item in second["labels"]] == ["dog", "cat"]
    assert second["truncated"].tolist() == [True, True]
    assert second["pose"] == ["Left", "Left"]
    assert second["mask"].shape == (8, 10)
    assert [sample["file_name"] for sample in bp.open(data, split="train")] == ["b.jpg"]
    assert len(bp.open(data, split="dog_train")) == 2
    with pytest.raises(bp.OptionError, match="no split 'val'; there are train"):
        bp.open(data, split="val")
    assert bp.verify(data, decode=True).ok
    bp.convert(data, tmp_path / "again.voc")
    assert bp.verify(tmp_path / "again.voc", against=data).problems == []


def test_classes(tmp_path):
    data = voc(tmp_path, {"a": xml(("zebra", (1, 1, 2, 2)), ("ant", (1, 1, 2, 2)))})
    assert bp.open(data).schema["labels"] == bp.Labels(("ant", "zebra"))
    with bp.open(data, classes=["zebra"]) as reader:
        assert reader[0]["labels"].tolist() == [0, -1]
        [problem] = reader.verify()
        assert (problem.message, problem.sample) == ("object 1: there is no class 'ant'", 0)


def test_verify_names_what_is_wrong(tmp_path):
    data = voc(tmp_path, {"a": xml(("cat", (1, 1, 20, 8))), "b": xml(("cat", (5, 1, 4, 8))), "c": xml()})
    (data / "JPEGImages" / "c.jpg").unlink()
    (data / "JPEGImages" / "d.jpg").write_bytes(jpeg())
    (data / "JPEGImages" / "b.jpg").write_bytes(jpeg(9, 11))
    output = [(problem.sample, problem.field, problem.message) for problem in bp.verify(data).problems]
    assert output == [
        (1, "image", "the image has 11×9 pixels, and its annotation says 10×8"),
        (0, "boxes", "object 0: box [0, 0, 20, 8] (xyxy) does not lie in the image of 10×8"),
        (1, "boxes", "object 0: box [4, 0, 4, 8] (xyxy) does not lie in the image of 10×8"),
        (None, None, "JPEGImages/d.jpg has no annotation"),
        (2, "image", "JPEGImages/c.jpg: No such file or directory"),
    ]


@pytest.mark.parametrize(
    ("text", "kind", "reason"),
    [
        ('<!DOCTYPE a [<!ENTITY x "y">]><annotation>&x;</annotation>', bp.UnsafeError, "document type"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', bp.UnsafeError, "document type"),
        ("<html></html>", bp.DamagedError, "an XML file of html"),
        ("<annotation>", bp.DamagedError, "no XML"),
        ("<annotation><object><name>x</name></object></annotation>", bp.DamagedError, "object 0 has no box"),
        ("<annotation>" + "<a>" * 20 + "</a>" * 20 + "</annotation>", bp.DamagedError, "more than 16 deep"),
        ("", bp.DamagedError, "no XML"),
    ],
)
def test_xml_that_is_none(text, kind, reason, tmp_path):
    data = voc(tmp_path, {"a": xml(), "b": text})
    with pytest.raises(kind, match=reason) as caught:
        bp.open(data)
    assert caught.value.sample == 1
    assert caught.value.path.endswith("Annotations/b.xml")


@pytest.mark.parametrize("width", ["1e308", "1e19", "inf", "nan", "-5"])
def test_sizes_that_are_none(width, tmp_path):
    text = xml(("cat", (1, 1, 2, 2))).replace("<width>10</width>", f"<width>{width}</width>")
    data = voc(tmp_path, {"a": text})
    assert f"<width>{width}</width>" in (data / "Annotations" / "a.xml").read_text()
    with bp.open(data) as reader:
        assert reader[0]["boxes"].tolist() == [[0, 0, 2, 2]]
    assert bp.verify(data).ok


def test_splits_are_kept(tmp_path):
    result = {stem: xml(("cat", (1, 1, 2, 2))) for stem in "abcd"}
    lists = {"train": b"b\na\n", "val": b"c\n", "trainval": b"a\nb\nc\nd\n", "test": b"d\n"}
    data = voc(tmp_path / "data", result, **{f"ImageSets/Main/{item}.txt": lists[item] for item in lists})
    with bp.open(data) as reader:
        assert reader.schema["split"] == bp.Int(names=("train", "val", "test"))
        assert [sample["split"] for sample in reader] == [0, 0, 1, 2]
    again = tmp_path / "again.voc"
    assert bp.convert(data, again).remarks == []
    assert bp.verify(again, against=data).ok
    main = again / "ImageSets" / "Main"
    assert [(main / f"{text}.txt").read_text() for text in ("train", "val", "test")] == [
        "a\nb\n",
        "c\n",
        "d\n",
    ]
    assert not (main / "trainval.txt").exists()
    bp.convert(data, tmp_path / "a.yolo")
    assert len(bp.open(tmp_path / "a.yolo", split="val")) == 1


def test_lists_that_overlap_are_kept(tmp_path):
    lists = {"Main/train": b"a\nb\n", "Main/trainval": b"a\nb\nc\n", "Segmentation/val": b"c\n"}
    more = {f"ImageSets/{item}.txt": lists[item] for item in lists}
    data = voc(tmp_path / "data", {stem: xml() for stem in "abcd"}, **more)
    with bp.open(data) as reader:
        assert [sample["sets"] for sample in reader] == [
            ["Main/train", "Main/trainval"], ["Main/train", "Main/trainval"],
            ["Main/trainval", "Segmentation/val"], [],
        ]  # fmt: skip
    again = tmp_path / "again.voc"
    assert bp.convert(data, again).remarks == []
    assert bp.verify(again, against=data).ok
    for name, text in lists.items():
        assert (again / "ImageSets" / f"{name}.txt").read_bytes() == text
    schema = {"image": bp.Image(), "sets": bp.List(bp.Text())}
    with (
        pytest.raises(bp.BatchplantError, match="as Main/train"),
        bp.create(tmp_path / "b.voc", schema) as out,
    ):
        out.append({"image": jpeg(8, 10), "sets": ["../x"]})


def test_other_elements_are_kept(tmp_path):
    size = "<size><width>10</width><height>8</height><depth>1</depth></size>"
    part = "<part><name>{0}</name><bndbox><xmin>1.5</xmin></bndbox></part>"
    text = (
        "<annotation><folder>VOC2007</folder><filename>other.jpg</filename>"
        "<source><database>The &lt;VOC&gt; &amp; more</database><image>flickr</image></source><owner/>"
        f"{size}<segmented>1</segmented><object><name>cat</name><truncated>1</truncated>"
        "<bndbox><xmin>1.70000076293945</xmin><ymin>2</ymin><xmax>5.1</xmax><ymax>6</ymax></bndbox>"
        f"{part.format('head')}{part.format('foot')}<actions><jumping>1</jumping></actions>"
        '<point id="3">x</point></object></annotation>'
    )
    data = voc(tmp_path / "data", {"a": text, "b": xml(("cat", (1, 1, 2, 2)))})
    with bp.open(data) as reader:
        first, second = reader
        assert reader.schema["boxes"].dtype == "float64"
    assert first["image_extra"] == {
        "folder": "VOC2007", "filename": "other.jpg", "owner": "", "segmented": "1", "size": {"depth": "1"},
        "source": {"database": "The <VOC> & more", "image": "flickr"},
    }  # fmt: skip
    [extra] = first["object_extra"]
    assert [row["name"] for row in extra["part"]] == ["head", "foot"]
    assert extra["actions"] == {"jumping": "1"}
    assert extra["point"] == {"@id": "3", "#text": "x"}
    for name in ("again.voc", "a.coco", "a.parquet"):
        assert bp.convert(data, tmp_path / name).remarks in (
            [],
            [
                "coco has boxes as xywh, in pixels: they are converted",
                "coco has no place for difficult, truncated, pose: not written",
            ],
        )
        bp.convert(tmp_path / name, tmp_path / f"{name}.voc")
        with bp.open(tmp_path / f"{name}.voc") as reader:
            for sample, before in zip(reader, (first, second), strict=True):
                assert sample["image_extra"] == before["image_extra"]
                assert sample["object_extra"] == before["object_extra"]
    written = (tmp_path / "again.voc" / "Annotations" / "a.xml").read_text()
    assert "<xmin>1.70000076293945</xmin>" in written
    assert "<database>The &lt;VOC&gt; &amp; more</database>" in written
    assert written.count("<part>") == 2
    assert bp.verify(tmp_path / "again.voc", against=data).ok


def test_any_json_can_be_an_element(tmp_path):
    odd = {
        "a b": 1,
        "n": None,
        "x": 1.5,
        "list": [1, [2]],
        "one": ["x"],
        "two": ["x", "y"],
        " ": "\x01",
        "s": " x ",
    }
    schema = {"image": bp.Image(), "image_extra": bp.Json()}
    with bp.create(tmp_path / "a.voc", schema) as out:
        out.append({"image": jpeg(8, 10), "image_extra": {**odd, "deep": {"in": odd, "empty": {}}}})
    with bp.open(tmp_path / "a.voc") as reader:
        assert reader[0]["image_extra"] == {**odd, "deep": {"in": odd, "empty": {}}}


def test_lists_may_name_only_what_is_there(tmp_path):
    data = voc(tmp_path, {"a": xml()}, **{"ImageSets/Main/x.txt": b"a\n../a\n"})
    with pytest.raises(bp.DamagedError, match=r"line 2: there is no annotation of '\.\./a'"):
        bp.open(data, split="x")


def test_as_tools_call_the_folders(tmp_path):
    data = voc(tmp_path, {"a": xml(("cat", (1, 1, 2, 2)))})
    (data / "Annotations").rename(data / "annotations")
    (data / "JPEGImages").rename(data / "images")
    with bp.open(data) as reader:
        assert reader.format == "voc"
        assert reader[0]["boxes"].tolist() == [[0, 0, 2, 2]]
