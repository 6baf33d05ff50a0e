"""COCO, YOLO and VOC among each other, into other formats and back, and in the loader."""

from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats.base.options import own_options
from batchplant.formats.registry import all_formats
from batchplant.ops import Letterbox, Pad
from batchplant.schema import EVERY_KIND
from batchplant.testing.cases import jpeg

NAMES = ("coco", "yolo", "voc")
FIELDS = ["image", "file_name", "boxes", "labels"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset as COCO, and what becomes of it in the others."""
    folder = tmp_path_factory.mktemp("detection")
    schema = {
        "image": bp.Image(), "file_name": bp.Text(), "boxes": bp.Boxes("xywh"),
        "labels": bp.Labels(("cat", "dog")), "iscrowd": bp.Tensor("bool", (None,)),
        "polygons": bp.Polygons(), "rle": bp.List(bp.Text()),
    }  # fmt: skip
    with bp.create(folder / "a.coco", schema) as out:
        for n in range(6):
            count = n % 3
            out.append({
                "image": jpeg(16, 20 + n), "file_name": f"{9 - n}.jpg", "labels": np.arange(count) % 2,
                "boxes": np.array([[2 + one, 1, 8, 12.5] for one in range(count)], np.float32).reshape(-1, 4),
                "iscrowd": np.zeros(count, np.bool_),
                "polygons": [[[2.0, 1, 10, 1, 10, 13.5, 2, 13.5]]] * count, "rle": [""] * count,
            })  # fmt: skip
    for name in NAMES[1:]:
        bp.convert(folder / "a.coco", folder / f"a.{name}", fields=FIELDS)
    return folder


def corners(sample, kind):
    """Boxes as left, top, right, bottom, in pixels."""
    height, width = sample["image"].shape[:2]
    boxes = sample["boxes"].astype(np.float64) * ([width, height] * 2 if kind.normalized else 1)
    if kind.format == "xyxy":
        return boxes
    start = boxes[:, :2] - (boxes[:, 2:] / 2 if kind.format == "cxcywh" else 0)
    return np.concatenate([start, start + boxes[:, 2:]], axis=1)


@pytest.mark.parametrize("target", NAMES)
@pytest.mark.parametrize("source", NAMES)
def test_into_each_other(source, target, folder, tmp_path):
    bp.convert(
        folder / f"a.{source}",
        tmp_path / f"b.{target}",
        fields=FIELDS,
        options=bp.ConvertOptions(checksums=True),
    )
    assert bp.verify(tmp_path / f"b.{target}", decode=True).problems == []
    with bp.open(tmp_path / f"b.{target}") as reader, bp.open(folder / "a.coco") as wanted:
        assert reader.format == target
        for row, other in zip(reader, wanted, strict=True):
            assert row["file_name"] == other["file_name"]
            assert np.array_equal(row["labels"], other["labels"])
            assert reader.schema["labels"] == wanted.schema["labels"]
            boxes = [corners(row, reader.schema["boxes"]), corners(other, wanted.schema["boxes"])]
            np.testing.assert_allclose(*boxes, atol=1e-4)
        assert [reader.read([n], ["image"])["image"][0].tobytes() for n in range(6)] == [
            wanted.read([n], ["image"])["image"][0].tobytes() for n in range(6)
        ]


@pytest.mark.parametrize("suffix", ["beton", "tar", "parquet", "tfrecord"])
def test_elsewhere_and_back(suffix, folder, tmp_path):
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    bp.convert(folder / "a.coco", tmp_path / f"b.{suffix}")
    assert bp.open(tmp_path / f"b.{suffix}").schema == bp.open(folder / "a.coco").schema
    bp.convert(tmp_path / f"b.{suffix}", tmp_path / "c.coco")
    assert bp.verify(tmp_path / "c.coco", against=folder / "a.coco").problems == []


@pytest.mark.parametrize("name", NAMES)
def test_in_the_loader(name, folder):
    """Boxes go with the image, whatever their form in the file."""
    pipelines = {"image": [Letterbox(32)], "boxes": [Pad(4)], "labels": [Pad(4, value=-1)]}
    result = bp.open(folder / f"a.{name}").select(["image", "boxes", "labels"])
    [batch] = bp.Loader(result, 6, pipelines=pipelines)
    assert batch["image"].shape == (6, 32, 32, 3)
    assert batch["boxes"].shape == (6, 4, 4)
    assert batch["labels"][2].tolist() == [0, 1, -1, -1]
    # 16 by 22 pixels become 32 wide, and about 23 high.
    first, kind = batch["boxes"][2, 0], result.schema["boxes"]
    wanted = {"xywh": [2, 1, 8, 12.5], "cxcywh": [6, 7.25, 8, 12.5], "xyxy": [2, 1, 10, 13.5]}[kind.format]
    scaled = np.array(wanted) * (1 / 22 if kind.normalized else 32 / 22)
    np.testing.assert_allclose(first[[0, 2]], scaled[[0, 2]], rtol=1e-4)
    assert len(batch["boxes"][0].nonzero()[0]) == 0


def test_what_is_left_out_is_said(folder, tmp_path):
    converted = bp.convert(folder / "a.coco", tmp_path / "b.voc")
    assert any(
        "voc has no place for iscrowd, polygons, rle: not written" in remark for remark in converted.remarks
    )
    with pytest.raises(bp.SchemaError, match=r"leave 'polygons' out \(--fields\)"):
        bp.convert(folder / "a.coco", tmp_path / "c.voc", fields=["image", "boxes", "labels", "polygons"])


def test_every_format_that_holds_everything_keeps_these_kinds(tmp_path):
    schema = {
        "boxes": bp.Boxes("xywh", labels=("labels",)), "labels": bp.Labels(("a", "b")),
        "outlines": bp.Polygons(),
        "points": bp.Keypoints(names=("left", "right")),
    }  # fmt: skip
    tried = 0
    for name, item in all_formats().items():
        if item.writer is None or item.kinds != EVERY_KIND:
            continue
        path = tmp_path / f"{name}{(item.suffixes or ('',))[0]}"
        try:
            with bp.create(path, schema, format=name) as out:
                for n in range(3):
                    boxes, points = np.full((n, 4), n, np.float32), np.zeros((n, 2, 3), np.float32)
                    sample = {"boxes": boxes, "labels": np.arange(n) % 2, "points": points}
                    out.append({**sample, "outlines": [[[0.0, 0, 1, 1, 2, 2]]] * n})
        except bp.MissingLibraryError:
            continue
        unsafe = {"allow_pickle": True} if "allow_pickle" in own_options(item.reader) else {}
        with bp.open(path, format=name, **unsafe) as reader:
            assert dict(reader.schema) == schema, name
            assert [len(sample["labels"]) for sample in reader] == [0, 1, 2], name
        tried += 1
    assert tried > 5
