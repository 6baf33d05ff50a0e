"""Pickle: the suite, the objects of others, and that nothing is loaded without leave."""

import collections
import os
import pickle
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.formats import registry
from batchplant.formats.base.objects import pack_note
from batchplant.schema.columns import Ragged
from batchplant.testing import FormatSuite
from batchplant.testing.cases import jpeg, pixels
from variants import in_one_test


class TestSuite(FormatSuite):
    format = "pickle"
    suffix = ".pkl"
    open_options: ClassVar = {"allow_pickle": True}
    in_place = False


# --- leave --------------------------------------------------------------------------------------------


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.makedirs, (self.mark, 0o777, True)


@in_one_test("name", ["a.pkl", "a.bin", "a.parquet"])
@in_one_test("protocol", [2, 3, 4, 5])
def test_nothing_is_loaded_without_leave(name, protocol, tmp_path):
    mark = tmp_path / "mark"
    path = tmp_path / name
    path.write_bytes(pickle.dumps([Bomb(mark)], protocol=protocol))
    assert registry.find_format(str(path)).name == "pickle"
    with pytest.raises(
        bp.UnsafeError, match=r"can run any code.*allow_pickle=True.*only if you trust"
    ) as caught:
        bp.open(path)
    assert caught.value.path == str(path)
    for leave in (False, 1, "true", None):
        with pytest.raises((bp.UnsafeError, bp.OptionError)):
            bp.open(path, allow_pickle=leave)
    np.save(tmp_path / "n.npy", np.arange(1))
    for attempt in (
        lambda: bp.verify(path),
        lambda: bp.verify(tmp_path / "n.npy", against=path),
        lambda: bp.convert(path, tmp_path / "out.npz"),
        lambda: bp.Loader(str(path), 1),
    ):
        with pytest.raises(bp.UnsafeError):
            attempt()
    assert sorted(os.listdir(tmp_path)) == sorted([name, "n.npy"])


def test_no_command_loads_without_leave(tmp_path, capsys):
    path, mark = tmp_path / "a.pkl", tmp_path / "mark"
    path.write_bytes(pickle.dumps({"x": [1, 2], "bomb": [Bomb(mark)] * 2}))
    for command in (["info"], ["head"], ["verify"], ["bench", "loader"]):
        assert main([*command, str(path)]) == 2, command
    assert main(["index", str(path)]) == 0
    assert main(["convert", str(path), str(tmp_path / "a.npz")]) == 2
    assert "--option allow_pickle=true" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["a.pkl"]
    # With leave it is loaded: then the mark is there.
    options = ["--option", "allow_pickle=true", "--option", 'fields=["x"]']
    assert main(["info", str(path), *options]) == 0
    assert mark.exists()
    assert "a dict of columns" in capsys.readouterr().out
    assert main(["convert", str(path), str(tmp_path / "a.npz"), *options]) == 0
    assert [sample["x"] for sample in bp.open(tmp_path / "a.npz")] == [1, 2]


def test_what_loading_raises_is_a_damaged_file(tmp_path):
    (tmp_path / "a.pkl").write_bytes(pickle.dumps([Bomb("/proc/no/folder")]))
    with pytest.raises(bp.DamagedError, match="does not load: FileNotFoundError"):
        bp.open(tmp_path / "a.pkl", allow_pickle=True)
    (tmp_path / "a.pkl").write_bytes(b"")
    with pytest.raises(bp.DamagedError, match="the file is empty"):
        bp.open(tmp_path / "a.pkl", allow_pickle=True)


# --- objects of others --------------------------------------------------------------------------------


def opened(tmp_path, *objects, **options):
    with open(tmp_path / "a.pkl", "wb") as file:
        for item in objects:
            pickle.dump(item, file)
    return bp.open(tmp_path / "a.pkl", allow_pickle=True, **options)


Pair = collections.namedtuple("Pair", "x y")
ROWS = [{"n": 1, "t": "a"}, {"n": 2, "t": "ä"}, {"n": -3, "t": ""}]


@in_one_test(
    ("objects", "kind", "schema", "rows"),
    [
        ([ROWS], "a list of dicts", {"n": bp.Int(), "t": bp.Text()}, ROWS),
        ([tuple(ROWS)], "a list of dicts", {"n": bp.Int(), "t": bp.Text()}, ROWS),
        (ROWS, "3 pickles of dicts", {"n": bp.Int(), "t": bp.Text()}, ROWS),
        ([ROWS[:2], ROWS[2:]], "2 pickles of dicts", {"n": bp.Int(), "t": bp.Text()}, ROWS),
        ([ROWS[0]], "one sample of dicts", {"n": bp.Int(), "t": bp.Text()}, ROWS[:1]),
        (
            [[{"n": 1}, {"t": "x", "n": 2}]],
            "a list of dicts",
            {"n": bp.Int(), "t": bp.Text(optional=True)},
            [{"n": 1, "t": None}, {"n": 2, "t": "x"}],
        ),
        (
            [{"n": np.arange(3, dtype=">u2"), "t": ("a", "b", None), 7: [0.5, 1, 2]}],
            "a dict of columns",
            {"n": bp.Int("uint16"), "t": bp.Text(optional=True), "7": bp.Float()},
            [{"n": 0, "t": "a", "7": 0.5}, {"n": 1, "t": "b", "7": 1.0}, {"n": 2, "t": None, "7": 2.0}],
        ),
        (
            [[(1, b"x"), (2, b"")]],
            "a list of tuples",
            {"0": bp.Int(), "1": bp.Bytes()},
            [{"0": 1, "1": b"x"}, {"0": 2, "1": b""}],
        ),
        ([[Pair(1, [2])]], "a list of tuples", {"x": bp.Int(), "y": bp.Json()}, [{"x": 1, "y": [2]}]),
        (
            [["a", None]],
            "a list of values",
            {"data": bp.Text(optional=True)},
            [{"data": "a"}, {"data": None}],
        ),
        ([1, 2], "2 pickles of values", {"data": bp.Int()}, [{"data": 1}, {"data": 2}]),
        ([np.arange(2.0)], "an array", {"data": bp.Float()}, [{"data": 0.0}, {"data": 1.0}]),
        (
            [np.array([{"a": 1}, [2]], dtype=object)],
            "a list of values",
            {"data": bp.Json()},
            [{"data": {"a": 1}}, {"data": [2]}],
        ),
        (
            [np.array([(1, b"ab")], dtype=[("n", "i4"), ("b", "S2")])],
            "a structured array",
            {"n": bp.Int("int32"), "b": bp.Bytes()},
            [{"n": 1, "b": b"ab"}],
        ),
        ([[2**63, 0]], "a list of values", {"data": bp.Int("uint64")}, [{"data": 2**63}, {"data": 0}]),
    ],
)
def test_objects_that_are_datasets(objects, kind, schema, rows, tmp_path):
    with opened(tmp_path, *objects) as reader:
        assert dict(reader.schema) == schema
        assert list(reader) == rows
        assert reader.facts()["holds"] == kind
        assert list(reader.verify()) == []


def test_a_batch_of_cifar(tmp_path):
    """Bytes as keys, one value that is no column, images as rows of numbers."""
    data = np.random.default_rng(0).integers(0, 256, (4, 12), dtype=np.uint8)
    batch = {b"batch_label": b"1 of 1", b"labels": [6, 9, 9, 4], b"data": data, b"filenames": [b"a"] * 4}
    with opened(tmp_path, batch) as reader:
        assert list(reader.schema) == ["labels", "data", "filenames"]
        assert reader.facts()["besides"] == "batch_label"
        loader = bp.Loader(reader, 4)
        [got] = loader
        assert got["labels"].tolist() == [6, 9, 9, 4]
        assert np.array_equal(got["data"], data)


def test_a_pickle_of_python_2(tmp_path):
    (tmp_path / "a.pkl").write_bytes(b"\x80\x02}U\x04nameq\x00]U\x01\xe4a s.".replace(b" ", b""))
    with pytest.raises(bp.DamagedError, match="encoding='latin1'"):
        bp.open(tmp_path / "a.pkl", allow_pickle=True)
    with bp.open(tmp_path / "a.pkl", allow_pickle=True, encoding="latin1") as reader:
        assert list(reader) == [{"name": "ä"}]


def test_the_oldest_protocols_have_no_magic_but_the_suffix(tmp_path):
    for protocol in (0, 1):
        (tmp_path / "a.pkl").write_bytes(pickle.dumps(ROWS, protocol))
        assert list(bp.open(tmp_path / "a.pkl", allow_pickle=True)) == ROWS


def test_images_are_found_in_bytes(tmp_path):
    with opened(tmp_path, {"image": [jpeg(), None, jpeg(9, 9)], "other": [jpeg(), b"no", b""]}) as reader:
        assert reader.schema["image"] == bp.Image("jpeg", optional=True)
        assert reader.schema["other"] == bp.Bytes()
        assert reader[2]["image"].shape == (9, 9, 3)


def test_data_frames(tmp_path):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(
        {
            "n": np.arange(3, dtype=np.int16),
            "x": [0.5, np.nan, np.inf],
            "t": ["a", None, "ä"],
            "when": pandas.to_datetime(["2024-01-02", None, "2024-01-03"]),
            "kind": pandas.Categorical(["b", "a", "b"]),
            "maybe": pandas.array([1, None, 3], dtype="Int64"),
        },
        index=[9, 8, 7],
    )
    with opened(tmp_path, frame) as reader:
        assert reader.facts()["holds"] == "a DataFrame"
        assert reader.schema["n"] == bp.Int("int16")
        assert reader.schema["x"] == bp.Float()
        assert reader.schema["t"] == bp.Text(optional=True)
        assert reader.schema["kind"] == bp.Text()
        assert reader.schema["maybe"] == bp.Int(optional=True)
        assert reader.schema["when"].kind == "tensor"
        assert [sample["t"] for sample in reader] == ["a", None, "ä"]
        assert [sample["maybe"] for sample in reader] == [1, None, 3]
        assert reader[0]["when"] == np.datetime64("2024-01-02")
        assert np.isnat(reader[1]["when"])


@in_one_test(
    ("expected", "reason"),
    [
        (3, "type int is not a dataset; pass a dict of columns, a list of dicts"),
        ("text", "type str is not a dataset"),
        ([], "it holds no samples"),
        ({"x": [1, 2], "y": [1]}, r"differ in length \(x 2, y 1\); choose equal ones with fields"),
        ({"x": [1], b"x": [2]}, "two columns have one name"),
        ({"x": [{1, 2}]}, "field 'x': values of type set have no field kind"),
        (np.zeros(2, [("a", "i4", (2,)), ("b", "O")]), "no field kind"),
    ],
)
def test_objects_that_are_none(expected, reason, tmp_path):
    with pytest.raises(bp.BatchplantError, match=reason):
        opened(tmp_path, expected)


def test_fields_can_be_chosen(tmp_path):
    result = {"x": [1, 2], "y": [1], "bad": [{1}, {2}]}
    with opened(tmp_path, result, fields=["x"]) as reader:
        assert list(reader) == [{"x": 1}, {"x": 2}]
    with pytest.raises(bp.FieldNameError, match="no field 'z'; the fields are: x, y, bad"):
        opened(tmp_path, result, fields=["z"])


# --- our own ------------------------------------------------------------------------------------------


def test_everybody_loads_what_we_write(tmp_path):
    schema = {
        "n": bp.Int("int16"), "t": bp.Text(optional=True), "j": bp.Json(), "v": bp.Tensor("float32", (None,)),
        "image": bp.Image(), "maybe": bp.Float("float32", optional=True),
    }  # fmt: skip
    with bp.create(tmp_path / "a.pkl", schema) as out:
        for row in range(1100):
            values = {"v": np.arange(row % 3, dtype=np.float32), "image": jpeg() if row else pixels(2, 2, 3)}
            text = f"ä{row}" if row % 2 else None
            out.append({"n": row, "t": text, "j": {"a": [row]}, "maybe": None if row % 3 else 0.1, **values})
    answer = pickle.loads((tmp_path / "a.pkl").read_bytes())
    assert list(answer) == list(schema)
    assert answer["n"].dtype == np.int16
    answer["n"][0] = 7  # and can be written to
    assert answer["n"].tolist() == [7, *range(1, 1100)]
    assert answer["t"][:4] == [None, "ä1", None, "ä3"]
    assert answer["j"][1099] == {"a": [1099]}
    assert answer["maybe"][:2] == [float(np.float32(0.1)), None]
    assert answer["v"][2].tolist() == [0.0, 1.0]
    assert np.array_equal(answer["image"][0], pixels(2, 2, 3))
    assert answer["image"][1099] == jpeg()
    assert {len(column) for column in answer.values()} == {1100}
    with bp.open(tmp_path / "a.pkl", allow_pickle=True, fields=["t", "n"]) as reader:
        assert list(reader.schema) == ["t", "n"]
        assert reader[1099] == {"t": "ä1099", "n": 1099}


def noted(tmp_path, schema, samples, found, more=b""):
    data = pack_note(bp.Schema(schema), samples) + pickle.dumps(found, 5) + more
    (tmp_path / "a.pkl").write_bytes(data)
    with bp.open(tmp_path / "a.pkl", allow_pickle=True) as reader:
        return list(reader)


@in_one_test(
    ("schema", "samples", "expected"),
    [
        ({"n": bp.Int()}, 2, {"n": np.arange(3)}),
        ({"n": bp.Int()}, 2, {"n": np.arange(2.0)}),
        ({"n": bp.Int()}, 2, {"n": [1, 2]}),
        ({"n": bp.Int()}, 2, {"n": np.arange(4).reshape(2, 2)}),
        ({"n": bp.Int()}, 2, {"m": np.arange(2)}),
        ({"n": bp.Int()}, 2, [1, 2]),
        ({"t": bp.Text()}, 1, {"t": "x"}),
        ({"t": bp.Text()}, 1, {"t": [b"x"]}),
        ({"t": bp.Text()}, 1, {"t": [None]}),
        ({"t": bp.Text()}, 1, {"t": np.array(["x"])}),
        ({"i": bp.Image()}, 1, {"i": [__file__]}),
        ({"i": bp.Audio()}, 1, {"i": [Path(__file__)]}),
        ({"i": bp.Image()}, 1, {"i": [np.zeros((2, 2), complex)]}),
    ],
)
def test_columns_that_are_not_what_the_schema_says(schema, samples, expected, tmp_path):
    with pytest.raises(bp.DamagedError):
        noted(tmp_path, schema, samples, expected)


def test_a_damaged_schema_or_more_behind_the_end(tmp_path):
    good = {"n": bp.Int()}, 2, {"n": np.arange(2)}
    assert noted(tmp_path, *good) == [{"n": 0}, {"n": 1}]
    with pytest.raises(bp.DamagedError, match="not those of its schema"):
        noted(tmp_path, *good, more=pickle.dumps(1))
    with pytest.raises(bp.DamagedError, match="does not load"):
        noted(tmp_path, *good, more=b"more")
    data = (tmp_path / "a.pkl").read_bytes().replace(b'"kind"', b'"kinn"')
    (tmp_path / "a.pkl").write_bytes(data)
    with pytest.raises(bp.DamagedError, match="the schema is damaged"):
        bp.open(tmp_path / "a.pkl", allow_pickle=True)


def test_a_cell_that_is_no_value_is_named(tmp_path):
    columns = bp.Columns(j=Ragged.from_cells([b"{}", b"{", b"1"]))
    out = bp.create(tmp_path / "a.pkl", {"j": bp.Json()}, on_error="skip")
    out.append(columns)
    out.close()
    assert [(item.sample, item.field) for item in out.skipped] == [(1, "j")]
    assert [sample["j"] for sample in bp.open(tmp_path / "a.pkl", allow_pickle=True)] == [{}, 1]
