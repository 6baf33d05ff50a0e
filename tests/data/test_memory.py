"""Data in memory as datasets: what they hold is read, loaded, converted and verified like a file."""

from __future__ import annotations

import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.media import image
from batchplant.errors import DamagedError, DataError, OptionError, SchemaError
from batchplant.loading.loader import Loader
from loaders import ids_of, leaves_nothing, pixels

nothing_left_behind = pytest.fixture(autouse=True)(leaves_nothing)

X = np.arange(60, dtype=np.float32).reshape(20, 3)
Y = [n * n for n in range(20)]


class Sample(NamedTuple):
    x: Any
    y: int


def as_frame() -> Any:
    return pytest.importorskip("pandas").DataFrame({"x": list(X), "y": Y})


def as_table() -> Any:
    arrow = pytest.importorskip("pyarrow")
    x = arrow.FixedSizeListArray.from_arrays(arrow.array(X.reshape(-1)), 3)
    parts = [(x.slice(0, 7), Y[:7]), (x.slice(7), Y[7:])]
    return arrow.concat_tables([arrow.table({"x": some, "y": numbers}) for some, numbers in parts])


def as_tensors() -> Any:
    torch = pytest.importorskip("torch")
    return {"x": torch.from_numpy(X), "y": torch.tensor(Y)}


def as_rows_of_tensors() -> Any:
    torch = pytest.importorskip("torch")
    return [{"x": torch.from_numpy(X[n]), "y": torch.tensor(Y[n])} for n in range(20)]


SOURCES = {
    "columns": lambda: {"x": X, "y": Y},
    "samples": lambda: [{"x": X[n], "y": Y[n]} for n in range(20)],
    "a generator": lambda: ({"x": X[n], "y": Y[n]} for n in range(20)),
    "named tuples": lambda: [Sample(X[n], Y[n]) for n in range(20)],
    "a structured array": lambda: np.array(list(zip(X, Y, strict=True)), dtype=[("x", "f4", 3), ("y", "i8")]),
    "a data frame": as_frame,
    "an Arrow table": as_table,
    "an Arrow batch": lambda: as_table().combine_chunks().to_batches()[0],
    "tensors": as_tensors,
    "samples of tensors": as_rows_of_tensors,
}


@pytest.mark.parametrize("source", SOURCES)
def test_what_is_in_memory_is_a_dataset(tmp_path, source):
    data = bp.open(SOURCES[source]())
    assert len(data) == 20
    assert dict(data.schema) == {"x": bp.Tensor("float32", (3,)), "y": bp.Int()}
    assert data[7]["x"].tolist() == X[7].tolist()
    assert data[-1]["y"] == 361
    assert data.read([3, 0])["y"].tolist() == [9, 0]
    assert bp.verify(data, decode=True).ok

    batches = list(Loader(data, 6, order="random", ids=True))
    assert sorted(ids_of(batches)) == list(range(20))
    for batch in batches:
        assert np.array_equal(batch["x"], X[batch["ids"]])
        assert batch["y"].tolist() == [Y[n] for n in batch["ids"]]

    again = pickle.loads(pickle.dumps(data))
    assert np.array_equal(again.read(range(20))["x"], X)
    target = str(tmp_path / "data.npz")
    assert bp.convert(SOURCES[source](), target).samples == 20
    assert bp.verify(target, against=SOURCES[source]()).ok


@pytest.mark.parametrize("use", ["loader", "verify"])
def test_data_are_taken_where_a_path_is(use):
    if use == "loader":
        assert ids_of(Loader({"y": Y}, 8), "y") == Y
    else:
        done = bp.verify({"y": Y})
        assert (done.ok, done.path, done.samples) == (True, "<memory>", 20)


def test_arrays_stay_where_they_are():
    values = X.copy()
    data = bp.open({"x": values})
    values[4] = 7
    assert data[4]["x"].tolist() == [7, 7, 7]
    # What was read is the reader's own.
    data.read([4])["x"][:] = 0
    assert values[4].tolist() == [7, 7, 7]


def test_tensors_stay_where_they_are():
    torch = pytest.importorskip("torch")
    values = torch.zeros(4, 2, requires_grad=True)
    data = bp.open(torch.utils.data.TensorDataset(values, torch.arange(4)))
    assert list(data.schema) == ["0", "1"]
    with torch.no_grad():
        values[1] = 5
    assert data[1]["0"].tolist() == [5, 5]
    assert bp.open(torch.arange(3)).schema["data"] == bp.Int()
    with pytest.raises(SchemaError, match=r"NumPy has no torch.bfloat16: convert it, as with .float\(\)"):
        bp.open({"x": torch.zeros(3, dtype=torch.bfloat16)})


def test_every_kind_of_column():
    data = bp.open(
        {
            "flag": [True, False],
            "number": np.array([1, 2], np.uint8),
            "text": ["a", "ü"],
            "bytes": [b"\x00", b""],
            "image": [image.encode(pixels(n), "png") for n in range(2)],
            "document": [{"a": [1]}, {}],
            "ragged": [np.zeros(2), np.zeros(3)],
            "maybe": [None, 3],
            "time": np.array(["2020-01-01", "2021-01-01"], "datetime64[D]"),
        }
    )
    kinds = {name: field.kind for name, field in data.schema.items()}
    assert kinds == {
        "flag": "bool", "number": "int", "text": "text", "bytes": "bytes", "image": "image",
        "document": "json", "ragged": "tensor", "maybe": "int", "time": "tensor",
    }  # fmt: skip
    assert data.schema["maybe"].optional
    sample = data[1]
    assert (sample["text"], sample["bytes"], sample["document"], sample["maybe"]) == ("ü", b"", {}, 3)
    assert np.array_equal(sample["image"], pixels(1))
    assert data[0]["maybe"] is None


def test_kinds_that_values_do_not_tell(tmp_path):
    """Pixels in an array, and paths of files, are images where the schema says so."""
    arrays = np.stack([pixels(n) for n in range(4)])
    paths = []
    for n in range(4):
        paths.append(tmp_path / f"{n}.png")
        paths[-1].write_bytes(image.encode(pixels(n), "png"))
    for given in (arrays, list(arrays), paths, [str(path) for path in paths]):
        data = bp.open({"image": given, "label": range(4)}, schema={"image": bp.Image()})
        assert np.array_equal(data[2]["image"], pixels(2))
        [batch] = Loader(data, 4)
        assert np.array_equal(batch["image"], arrays)
    data = bp.open({"label": [0, 1]}, schema={"label": bp.Int("uint8", names=("cat", "dog"))})
    assert data.schema["label"].names == ("cat", "dog")
    assert data.read([1])["label"].dtype == np.uint8
    missing = bp.open({"image": [tmp_path / "none.png"]}, schema={"image": bp.Image()})
    with pytest.raises(DataError) as caught:
        missing[0]
    assert (caught.value.path, caught.value.sample, caught.value.field) == ("<memory>", 0, "image")


def test_some_columns_of_a_table():
    assert list(bp.open(as_table(), fields=["y"]).schema) == ["y"]
    assert list(bp.open({"x": X, "y": Y[:3]}, fields=["y"]).schema) == ["y"]


def test_missing_values_of_frames_and_tables():
    arrow, pandas = pytest.importorskip("pyarrow"), pytest.importorskip("pandas")
    for source in (
        arrow.table({"n": [1, None, 3], "t": ["a", None, "c"]}),
        pandas.DataFrame({"n": pandas.array([1, None, 3], "Int64"), "t": ["a", None, "c"]}),
    ):
        data = bp.open(source)
        assert [sample["n"] for sample in data] == [1, None, 3]
        assert [sample["t"] for sample in data] == ["a", None, "c"]


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ({"x": X, "y": Y[:3]}, {}, "differ in length .x 20, y 3."),
        ({"x": X, "name": "train"}, {}, "name: one value is no column"),
        ({"x": X}, {"fields": ["z"]}, "there is no field 'z'"),
        ({"x": X}, {"schema": {"z": bp.Int()}}, "there is no field 'z'"),
        ({}, {}, "it holds no samples"),
        ({"x": [object()]}, {}, "values of type object have no field kind"),
        ({"x": X}, {"colour": 1}, "memory has no option 'colour'"),
        ({"x": X}, {"format": "npz"}, "data in memory have no format, and 'npz' was named"),
        ([], {}, "there is no path to open"),
    ],
)
def test_what_is_no_dataset(source, options, message):
    with pytest.raises(bp.BatchplantError, match=message):
        bp.open(source, **options)


def test_a_value_that_does_not_fit_is_named():
    data = bp.open({"n": [1, "two"]}, schema={"n": bp.Int()})
    assert data[0]["n"] == 1
    with pytest.raises(DamagedError) as caught:
        data[1]
    assert (caught.value.path, caught.value.sample, caught.value.field) == ("<memory>", 1, "n")
    problems = bp.verify(data).problems
    assert [(problem.sample, problem.field) for problem in problems] == [(1, "n")]


def test_lists_of_paths_are_paths(tmp_path):
    for name in "ab":
        np.save(tmp_path / f"{name}.npy", np.arange(3))
    assert len(bp.open([tmp_path / "a.npy", str(tmp_path / "b.npy")])) == 6
    assert len(bp.open(path for path in sorted(tmp_path.iterdir()))) == 6
    with pytest.raises(OptionError, match="no path"):
        bp.open(iter(()))
