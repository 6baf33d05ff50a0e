"""Categories: text and numbers as codes, learnt, saved, in the Loader."""

import json
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
from batchplant import ops
from batchplant.schema.columns import Ragged

DRAWS = ops.Draws(0, 0, np.arange(0), "x")
COLORS = ["red", "green", "", "red", "grün", "red\0", "blue" * 9]


def codes(op, values, optional=False):
    cells = Ragged.from_cells([None if value is None else value.encode() for value in values])
    op.infer_field(bp.Text(optional=optional))
    return op.run(cells, np.arange(len(values)), DRAWS).tolist()


def written(path, field, values):
    with bp.create(path, {"x": field, "n": bp.Int()}) as out:
        for number, value in enumerate(values):
            out.append({"x": value, "n": number})
    return bp.open(path)


@given(
    st.lists(st.text(alphabet="ab\0ä", max_size=4), min_size=1, max_size=8, unique=True),
    st.lists(st.text("ab\0ä", max_size=6)),
)
def test_a_code_is_the_place_in_the_vocabulary(vocabulary, values):
    expected = [vocabulary.index(value) if value in vocabulary else -1 for value in values]
    assert codes(ops.Categories(vocabulary), values) == expected


@given(
    st.lists(
        st.integers(-(2**63), 2**63 - 1) | st.sampled_from([-1, 0, 1]), min_size=1, max_size=8, unique=True
    ),
    st.sampled_from(["int64", "uint64", "int8"]),
    st.data(),
)
def test_numbers_of_any_width(vocabulary, dtype, data):
    limits = np.iinfo(dtype)
    known = [value for value in vocabulary if limits.min <= value <= limits.max]
    values = data.draw(
        st.lists(st.sampled_from([*known, 0, limits.min, limits.max]) if known else st.just(0))
    )
    op = ops.Categories(vocabulary)
    op.infer_field(bp.Int(dtype))
    actual = op.run(np.array(values, dtype), np.arange(len(values)), DRAWS).tolist()
    assert actual == [vocabulary.index(value) if value in vocabulary else -1 for value in values]


def test_numbers_beyond_int64_are_not_mixed_up():
    op = ops.Categories([2**64 - 1, 5, 2**63])
    values = np.array([2**64 - 1, 2**63, 5, 2**64 - 2], np.uint64)
    assert op.run(values, np.arange(4), DRAWS).tolist() == [0, 2, 1, -1]
    assert op.run(np.array([-1, 5]), np.arange(2), DRAWS).tolist() == [-1, 1]


def test_missing_and_unknown_values():
    op = ops.Categories(["a", "b"], unknown=7)
    assert codes(op, ["b", None, "", "c"], optional=True) == [1, 7, 7, 7]
    strict = ops.Categories(["a", "b"], unknown=None)
    assert codes(strict, ["b", "a"]) == [1, 0]
    for wrong, text in (
        ("x" * 99, r"'x{60}' is not among the 2 values"),
        (None, "a missing value is not among"),
    ):
        with pytest.raises(bp.DecodeError, match=text) as caught:
            codes(strict, ["a", wrong], optional=True)
        assert caught.value.sample == 1


def test_learnt_saved_and_used(tmp_path):
    reader = written(tmp_path / "a.npz", bp.Text(optional=True), [*COLORS, None])
    op = ops.Categories.fit(reader, "x")
    assert op.vocabulary == sorted(set(COLORS))
    op.save(tmp_path / "colors.json")
    assert sorted(os.listdir(tmp_path)) == ["a.npz", "colors.json"]
    again = ops.Categories(tmp_path / "colors.json")
    assert again.vocabulary == op.vocabulary
    loader = bp.Loader(reader, 3, order="random", pipelines={"x": [again]})
    assert "Categories(6 values, unknown=-1)" in str(loader.plan)
    for batch in loader:
        assert batch["x"].dtype == np.int64
        for code, number in zip(batch["x"], batch["n"], strict=True):
            expected = ([*COLORS, None])[number]
            assert (None if code < 0 else again.vocabulary[code]) == expected


def test_learnt_from_numbers_and_followed_by_other_ops(tmp_path):
    reader = written(tmp_path / "a.npy", bp.Int("uint16"), [700, 5, 700, 9])
    op = ops.Categories.fit(reader, "x")
    assert op.vocabulary == [5, 9, 700]
    pipelines = {"x": [op, ops.Convert("int8")], "raw": bp.Pipe("x")}
    [batch] = bp.Loader(reader, 4, pipelines=pipelines)
    assert batch["x"].dtype == np.int8
    assert batch["x"].tolist() == [2, 0, 2, 1]
    assert batch["raw"].tolist() == [700, 5, 700, 9]


def test_the_loader_names_the_sample_that_is_unknown(tmp_path):
    reader = written(tmp_path / "a.npz", bp.Text(), ["a", "b", "c"])
    loader = bp.Loader(
        reader, 3, order=[2, 0, 1], pipelines={"x": [ops.Categories(["a", "b"], unknown=None)]}
    )
    with pytest.raises(bp.DecodeError, match=r"a\.npz, sample 2, field 'x': 'c' is not among the 2 values"):
        list(loader)


@pytest.mark.parametrize(
    ("field", "steps"),
    [
        (bp.Text(), [ops.Categories([1, 2])]),
        (bp.Int(), [ops.Categories(["a"])]),
        (bp.Float(), [ops.Categories([1])]),
        (bp.Json(), [ops.Categories(["a"])]),
        (bp.Int(optional=True), [ops.Categories([1])]),
        (bp.Text(), [len, ops.Categories(["a"])]),
    ],
)
def test_fields_that_have_no_categories(field, steps, tmp_path):
    value = {"text": "a", "json": "a"}.get(field.kind, 1)
    reader = written(tmp_path / "a.npz", field, [value])
    with pytest.raises(bp.OptionError, match=r"vocabulary is of|categories are text|only be the first step"):
        bp.Loader(reader, 1, pipelines={"x": steps})


@pytest.mark.parametrize("wrong", [[], ["a", 1], ["a", "a"], [1.5], [True], [2**64], [-1, 2**63], ["\ud800"]])
def test_vocabularies_that_cannot_be(wrong):
    with pytest.raises(bp.OptionError, match="vocabulary"):
        ops.Categories(wrong)


def test_what_is_no_category(tmp_path):
    reader = written(tmp_path / "a.npz", bp.Text(), ["x" * 5000, "y"])
    with pytest.raises(bp.OptionError, match="5,000 bytes is no category"):
        ops.Categories.fit(reader, "x")
    with pytest.raises(bp.OptionError, match="more than 1 values"):
        ops.Categories.fit(reader, "n", max_values=1)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"vocabulary": 3}', "[" * 100_000])
def test_files_that_are_no_vocabulary(text, tmp_path):
    (tmp_path / "v.json").write_text(text)
    with pytest.raises(bp.DamagedError, match="not a vocabulary") as caught:
        ops.Categories(tmp_path / "v.json")
    assert caught.value.path == str(tmp_path / "v.json")
    with pytest.raises(bp.NotFoundError):
        ops.Categories(tmp_path / "none.json")


def test_the_saved_file_is_plain_json(tmp_path):
    ops.Categories(["ä", "b"]).save(tmp_path / "v.json")
    assert json.loads((tmp_path / "v.json").read_text("utf-8")) == {"batchplant": 1, "vocabulary": ["ä", "b"]}
