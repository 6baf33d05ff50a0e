"""Joblib: the suite, mapped, compressed files of joblib, and that nothing is loaded without leave."""

import os
import sys
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.formats import registry
from batchplant.testing import FormatSuite
from variants import in_one_test

joblib = pytest.importorskip("joblib")


class TestSuite(FormatSuite):
    format = "joblib"
    suffix = ".joblib"
    open_options: ClassVar = {"allow_pickle": True}


KINDS = ["zlib", "gzip", "bz2", "lzma", "xz", "lz4"]


class Bomb:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark):
        self.mark = str(mark)

    def __reduce__(self):
        return os.makedirs, (self.mark, 0o777, True)


@in_one_test("compress", [0, *KINDS])
@in_one_test("name", ["a.joblib", "a.bin"])
def test_nothing_is_loaded_without_leave(compress, name, tmp_path):
    joblib.dump(
        {"x": np.arange(3), "bomb": [Bomb(tmp_path / "mark")] * 3}, tmp_path / name, compress=compress
    )
    if name == "a.bin":
        for spec in registry.all_formats().values():
            assert spec.matches(bp.Probe(str(tmp_path / name))) == (spec.name == "joblib" and not compress)
    with pytest.raises(bp.UnsafeError, match=r"can run any code.*allow_pickle=True"):
        bp.open(tmp_path / name, format="joblib")
    with pytest.raises(bp.UnsafeError):
        bp.convert(tmp_path / name, tmp_path / "out.npz", source_options={"format": "joblib"})
    assert main(["info", str(tmp_path / name), "--format", "joblib"]) == 2
    assert os.listdir(tmp_path) == [name]


@in_one_test("compress", [0, *KINDS])
def test_files_of_joblib(compress, tmp_path):
    x = np.random.default_rng(0).random((50, 3)).astype(np.float32)
    result = {"x": x, "n": np.arange(50), "t": [f"ä{row}" for row in range(50)], "f": np.asfortranarray(x)}
    joblib.dump(result, tmp_path / "a.joblib", compress=compress)
    with bp.open(tmp_path / "a.joblib", allow_pickle=True) as reader:
        assert dict(reader.schema) == {
            "x": bp.Tensor("float32", (3,)), "n": bp.Int(), "t": bp.Text(), "f": bp.Tensor("float32", (3,)),
        }  # fmt: skip
        assert reader.facts() == {
            "holds": "a dict of columns",
            "compression": compress or "none",
            "mapped columns": 0 if compress else 3,
        }
        assert {name for name in reader.schema if reader.spans(name) is not None} == (
            set() if compress else {"x", "n"}
        )
        got = reader.read([49, 0])
        assert np.array_equal(got["x"], x[[49, 0]])
        assert np.array_equal(got["f"], x[[49, 0]])
        assert reader[7]["t"] == "ä7"


def test_an_array_or_a_list_of_dicts(tmp_path):
    joblib.dump(np.arange(6).reshape(3, 2), tmp_path / "a.joblib")
    with bp.open(tmp_path / "a.joblib", allow_pickle=True) as reader:
        assert [sample["data"].tolist() for sample in reader] == [[0, 1], [2, 3], [4, 5]]
    joblib.dump([{"a": 1, "b": np.arange(2)}, {"a": 2, "b": np.arange(3)}], tmp_path / "a.joblib")
    with bp.open(tmp_path / "a.joblib", allow_pickle=True) as reader:
        assert reader.schema["b"] == bp.Tensor("int64", (None,))
        assert reader[1]["b"].tolist() == [0, 1, 2]


def test_joblib_loads_what_we_write(tmp_path):
    # Lists are pickled in blocks of some thousand rows.
    rows = 1500
    schema = {"n": bp.Int("uint8"), "t": bp.Text(optional=True), "v": bp.Tensor("float32", (None, 2))}
    with bp.create(tmp_path / "a.joblib", schema) as out:
        for row in range(rows):
            text = None if row % 2 else str(row)
            out.append({"n": row % 256, "t": text, "v": np.full((row % 3, 2), row, np.float32)})
    loaded = joblib.load(tmp_path / "a.joblib")
    assert list(loaded) == list(schema)
    assert type(loaded["n"]) is np.ndarray
    assert loaded["n"].tolist() == [row % 256 for row in range(rows)]
    assert loaded["t"][:4] == ["0", None, "2", None]
    assert loaded["v"][rows - 1].tolist() == [[rows - 1.0] * 2] * 2
    with bp.open(tmp_path / "a.joblib", allow_pickle=True) as reader:
        assert dict(reader.schema) == schema
        assert reader.facts()["compression"] == "none"
        assert reader.spans("n") is not None
    assert isinstance(joblib.load(tmp_path / "a.joblib", mmap_mode="r")["n"], np.memmap)


def test_more_arrays_than_can_be_mapped_are_read(tmp_path, monkeypatch):
    joblib.dump([{"a": np.arange(2)}] * 3, tmp_path / "a.joblib")
    load = joblib.load

    def refused(file, mmap_mode=None):
        if mmap_mode is not None:
            raise OSError(12, "Cannot allocate memory")
        return load(file)

    monkeypatch.setattr(joblib, "load", refused)
    with bp.open(tmp_path / "a.joblib", allow_pickle=True) as reader:
        assert len(reader) == 3


def test_without_the_library(tmp_path, monkeypatch):
    (tmp_path / "a.joblib").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "joblib", None)
    monkeypatch.setitem(sys.modules, "joblib.numpy_pickle", None)
    for attempt in (
        lambda: bp.open(tmp_path / "a.joblib", allow_pickle=True),
        lambda: bp.create(tmp_path / "b.joblib", {"n": bp.Int()}),
    ):
        with pytest.raises(bp.MissingLibraryError, match=r"pip install \"batchplant\[joblib\]\""):
            attempt()


@in_one_test("compress", KINDS)
def test_a_compressed_file_that_was_cut(compress, tmp_path):
    joblib.dump({"x": np.arange(3000)}, tmp_path / "a.joblib", compress=compress)
    data = (tmp_path / "a.joblib").read_bytes()
    for size in (0, 1, 3, 20, len(data) // 2):
        (tmp_path / "a.joblib").write_bytes(data[:size])
        with pytest.raises(bp.DamagedError):
            bp.open(tmp_path / "a.joblib", allow_pickle=True)
