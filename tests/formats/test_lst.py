"""LST: lists of images, and what im2rec makes of them."""

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing.cases import cells, jpeg


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "cats").mkdir()
    for number in range(3):
        (tmp_path / f"cats/größe {number}.jpg").write_bytes(jpeg(8 + number, 8))
    return tmp_path


def listed(folder, *labels, name="a.lst"):
    rows = [f"{10 + n}\t{label}\tcats/größe {n}.jpg\n" for n, label in enumerate(labels)]
    (folder / name).write_text("".join(rows))
    return folder / name


def test_a_list_becomes_what_im2rec_makes(folder):
    path = listed(folder, "0.000000", "1", "-2.5")
    with bp.open(path) as reader:
        kinds = {"image": bp.Image("jpeg"), "label": bp.Float("float32"), "id": bp.Int("uint64")}
        assert dict(reader.schema) == kinds
        assert [(sample["label"], sample["id"]) for sample in reader] == [(0, 10), (1, 11), (-2.5, 12)]
        assert cells(reader)["image"] == [jpeg(8 + n, 8) for n in range(3)]
        spans = reader.spans("image", [2, 0])
        assert spans.size.tolist() == [len(jpeg(10, 8)), len(jpeg(8, 8))]
        assert reader.spans("label") is None
        assert reader.where(1).endswith("größe 1.jpg")
    bp.convert(path, folder / "a.rec")
    with bp.open(folder / "a.rec") as result, bp.open(path) as reader:
        assert result.facts()["records"] == "image"
        assert cells(result) == cells(reader)
    assert bp.verify(path, decode=True).problems == []


def test_several_labels(folder):
    with bp.open(listed(folder, "1\t2", "3\t4")) as reader:
        assert reader.schema["label"] == bp.Tensor("float32", (2,))
        assert reader[1]["label"].tolist() == [3, 4]
    with bp.open(listed(folder, "1\t2", "3")) as reader:
        assert reader.schema["label"] == bp.Tensor("float32", (None,))
        assert [sample["label"].tolist() for sample in reader] == [[1, 2], [3]]


def test_the_root_can_be_elsewhere(folder, tmp_path_factory):
    path = listed(folder, "1")
    moved = tmp_path_factory.mktemp("lists") / "b.lst"
    moved.write_bytes(path.read_bytes())
    assert np.array_equal(bp.open(moved, root=str(folder))[0]["image"], bp.open(path)[0]["image"])
    with (
        bp.open(moved) as reader,
        pytest.raises(bp.DamagedError, match=r"größe 0\.jpg: No such file") as caught,
    ):
        reader[0]
    assert (caught.value.sample, caught.value.field) == (0, "image")
    with pytest.raises(bp.DamagedError, match="No such file"):
        bp.open(moved).spans("image")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0\t1\n", "line 1: a label is missing"),
        ("\n0\tx\ta.jpg\n", "line 2: could not convert"),
        ("x\t1\ta.jpg\n", "line 1: invalid literal"),
        ("-1\t1\ta.jpg\n", "line 1: -1 is no index"),
        ("0\t1\t/etc/passwd\n", "no path below the root"),
        ("0\t1\ta/../../b\n", "no path below the root"),
        ("0\t1\t\n", "no path below the root"),
        ("1.e999\t1\ta.jpg\n", "line 1"),
    ],
)
def test_lists_that_are_wrong(text, reason, tmp_path):
    (tmp_path / "a.lst").write_text(text)
    with pytest.raises(bp.DamagedError, match=reason):
        bp.open(tmp_path / "a.lst")


def test_bytes_and_nothing(tmp_path):
    (tmp_path / "a.lst").write_bytes(b"\xff\xfe")
    with pytest.raises(bp.DamagedError, match="not text"):
        bp.open(tmp_path / "a.lst")
    (tmp_path / "a.lst").write_bytes(b"")
    assert len(bp.open(tmp_path / "a.lst")) == 0
    (tmp_path / "a.lst").write_bytes(b"1.0\t1e300\tnone.jpg\n")
    assert bp.open(tmp_path / "a.lst").read([0], ["id", "label"])["label"].tolist() == [np.inf]
