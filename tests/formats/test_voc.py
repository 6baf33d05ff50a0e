"""Pascal VOC: the suite, folders as the challenge lays them out, unsafe XML, damage."""

from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing.cases import jpeg, png
from objects import CLASSES, DetectionSuite, picture


def corners(n):
    return np.array([[one, 1.25, 2.5 + one, 3.5] for one in range(n % 4)], np.float32).reshape(-1, 4)


class TestSuite(DetectionSuite):
    format = "voc"
    suffix = ".voc"
    fields: ClassVar = {
        "image": (bp.Image(), picture),
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
    """Pictures of 8 by 10 pixels (height, width), and an annotation for each."""
    files = {f"Annotations/{stem}.xml": text.encode() for stem, text in annotations.items()}
    files |= {f"JPEGImages/{stem}.jpg": jpeg(8, 10) for stem in annotations}
    for name, data in {**files, **more}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def test_as_the_challenge_has_it(tmp_path):
    found = {"b": xml(("dog", (1, 1, 10, 8)), ("cat", (3, 2, 5, 4))), "a": xml()}
    lists = {"ImageSets/Main/train.txt": b"b\n", "ImageSets/Main/dog_train.txt": b"b  1\na -1\n"}
    data = voc(tmp_path / "data", found, **lists, **{"SegmentationClass/b.png": png(8, 10)})
    with bp.open(data) as reader:
        assert reader.format == "voc"
        assert reader.schema["boxes"] == bp.Boxes("xyxy", labels=("labels", "difficult", "truncated", "pose"))
        assert len(reader.schema["labels"].names) == 20
        assert reader.schema["mask"].optional
        first, second = reader
    assert first["mask"] is None
    assert first["boxes"].shape == (0, 4)
    assert second["boxes"].tolist() == [[0, 0, 10, 8], [2, 1, 5, 4]]
    assert [reader.schema["labels"].names[one] for one in second["labels"]] == ["dog", "cat"]
    assert second["truncated"].tolist() == [True, True]
    assert second["pose"] == ["Left", "Left"]
    assert second["mask"].shape == (8, 10)
    assert [one["file_name"] for one in bp.open(data, split="train")] == ["b.jpg"]
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
    said = [(one.sample, one.field, one.message) for one in bp.verify(data).problems]
    assert said == [
        (1, "image", "the picture has 11×9 pixels, and its annotation says 10×8"),
        (0, "boxes", "object 0: box [0, 0, 20, 8] (xyxy) does not lie in the picture of 10×8"),
        (1, "boxes", "object 0: box [4, 0, 4, 8] (xyxy) does not lie in the picture of 10×8"),
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
