"""Datasets side by side: by position, by key; fields under other names."""

import pickle

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing.cases import jpeg


@pytest.fixture
def pair(tmp_path):
    """Images in a folder, and what is known of them, in another order, in a table."""
    (tmp_path / "photos").mkdir()
    for n in range(5):
        (tmp_path / "photos" / f"{n}.jpg").write_bytes(jpeg(8, 8 + n))
    rows = [{"name": f"{n}.jpg", "width": 8 + n} for n in (3, 0, 4, 1, 2)]
    with bp.create(tmp_path / "facts.jsonl", {"name": bp.Text(), "width": bp.Int()}) as out:
        for row in rows:
            out.append(row)
    return tmp_path / "photos", tmp_path / "facts.jsonl"


def test_by_position(pair):
    reader = bp.open({"a": np.arange(4)})
    other = bp.open({"b": np.arange(4) * 10, "c": ["x", "y", "z", "w"]})
    result = bp.join([reader, other])
    assert list(result.schema) == ["a", "b", "c"]
    assert result[2] == {"a": 2, "b": 20, "c": "z"}
    assert result.read([3, 0], ["c", "a"])["a"].tolist() == [3, 0]
    with pytest.raises(bp.OptionError, match=r"has 4, .* has 3: join them by key \(on=…\)"):
        bp.join([reader, other[:3]])
    assert len(bp.join([reader, other[:3]], how="inner")) == 3


def test_by_key_images_stay_in_place(pair):
    photos, facts = pair
    result = bp.join([photos, facts], on=[None, "name"])
    assert list(result.schema) == ["image", "name", "width"]
    assert all(sample["image"].shape[1] == sample["width"] for sample in result)
    assert result.spans("image", [4]).files == (str(photos / "4.jpg"),)
    assert result.by_key("3.jpg")["width"] == 11
    again = pickle.loads(pickle.dumps(result))
    assert again[1]["name"] == "1.jpg"
    batches = list(bp.Loader(result.subset([1, 1]), 2))
    assert batches[0]["width"].tolist() == [9, 9]
    assert bp.verify(result, decode=True).ok


def test_keys_of_their_own(tmp_path, pair):
    photos, _ = pair
    bp.convert(photos, tmp_path / "masks", rename={"image": "image"})
    one, other = bp.open(photos), bp.open(photos).rename({"image": "second"})
    result = bp.join([one, other[::-1]], on="key")
    assert all(np.array_equal(sample["image"], sample["second"]) for sample in result)


def test_what_has_no_partner(pair):
    photos, facts = pair
    some = bp.open(facts)[1:]
    with pytest.raises(bp.SampleKeyError, match=r"no sample has the key '3\.jpg'"):
        bp.join([photos, some], on=[None, "name"])
    with pytest.raises(bp.SampleKeyError, match=r"the sample '3.jpg' has no partner in .*how='inner'"):
        bp.join([some, photos], on=["name", None])
    result = bp.join([photos, some], on=[None, "name"], how="inner")
    assert [sample["name"] for sample in result] == ["0.jpg", "1.jpg", "2.jpg", "4.jpg"]
    assert all(sample["image"].shape[1] == sample["width"] for sample in result)


def test_one_field_in_both(pair):
    left, right = bp.open({"id": [1, 2, 3], "x": [4, 5, 6]}), bp.open({"id": [3, 1, 2], "x": [7, 8, 9]})
    with pytest.raises(
        bp.SchemaError, match=r"both have a field 'x': rename it in one, as with \.rename\(\{'x': 'x_2'\}\)"
    ):
        bp.join([left, right], on="id")
    result = bp.join([left, right.rename({"x": "y"})], on="id")
    assert list(result) == [{"id": 1, "x": 4, "y": 8}, {"id": 2, "x": 5, "y": 9}, {"id": 3, "x": 6, "y": 7}]


def test_a_key_that_two_have(pair):
    left, right = bp.open({"id": [1, 1], "x": [4, 5]}), bp.open({"id": [1, 2], "y": [7, 8]})
    with pytest.raises(bp.SampleKeyError, match="samples 0 and 1 have the key 1"):
        bp.join([left, right], on="id", how="inner")
    with pytest.raises(bp.SampleKeyError, match="samples 0 and 1 have the key 1"):
        bp.join([right, left], on="id")


@pytest.mark.parametrize(
    ("sources", "options", "reason"),
    [
        ([{"a": [1]}], {}, "a list of two datasets or more"),
        ([{"a": [1]}, {"b": [1]}], {"how": "outer"}, "how is strict or inner"),
        ([{"a": [1]}, {"b": [1]}], {"on": ["a"]}, "on names 1 fields for 2 datasets"),
        ([{"a": [1]}, {"b": [1]}], {"on": "a"}, "no field 'a'"),
        ([{"a": [1]}, {"b": [1]}], {"on": "key"}, "has no keys of its own"),
    ],
)
def test_arguments_that_are_none(sources, options, reason):
    with pytest.raises(bp.BatchplantError, match=reason):
        bp.join(sources, **options)


def test_renamed_fields(pair):
    result = bp.open(pair[0]).rename({"image": "photo"})
    assert list(result.schema) == ["photo"]
    assert result[0]["photo"].shape == (8, 8, 3)
    assert result.spans("photo", [0]).files == (str(pair[0] / "0.jpg"),)
    with pytest.raises(bp.FieldNameError, match="no field 'nonsense'"):
        result.rename({"nonsense": "x"})
