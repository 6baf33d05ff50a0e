"""Lance: the suite, tables that pylance wrote, pylance on ours, blobs, and tables that reach outside."""

import datetime
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.jobs import lake
from batchplant.testing import FormatSuite
from batchplant.testing.cases import jpeg
from repository import GOLDEN

lance = pytest.importorskip("lance")
pa = pytest.importorskip("pyarrow")

TABLES = sorted((GOLDEN / "lance").iterdir())
BLOB = {"lance-encoding:blob": "true"}


class TestSuite(FormatSuite):
    format = "lance"
    suffix = ".lance"
    in_place = False
    # The files of past transactions are not read.
    notices_cuts = False


def golden_row(n, inner):
    row = {
        "n": n, "text": None if n == 4 else f"größe {n}", "point": [n, n / 2],
        "blob": None if n == 1 else bytes([n]) * (n * 50),
    }  # fmt: skip
    return {**row, "inner": None if n == 2 else {"a": n, "b": ["x"] * n}} if inner else row


def plain(sample):
    return {
        name: value.tolist() if isinstance(value, np.ndarray) else value for name, value in sample.items()
    }


# -- pylance -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_tables_of_pylance(path):
    inner = "v2_0" not in path.name
    with bp.open(path) as reader:
        assert reader.format == "lance"
        assert [name for name, field in reader.schema.items() if not field.optional] == ["n"]
        rows = [golden_row(n, inner) for n in (0, 1, 2, 4, 5)]
        assert [plain(sample) for sample in reader] == rows
        assert [plain(reader[n]) for n in (4, 0, 3)] == [rows[n] for n in (4, 0, 3)]
        assert [sample["n"] for sample in reader.select(["n"])] == [0, 1, 2, 4, 5]
    for version in (2, "whole"):
        with bp.open(path, version=version) as reader:
            assert reader.read(range(6))["n"].tolist() == list(range(6))
    assert bp.verify(path, decode=True).problems == []


def test_pylance_reads_what_we_write(tmp_path):
    schema = {
        "n": bp.Int("uint64"), "image": bp.Image("jpeg"), "a.b": bp.Text(optional=True),
        "x": bp.Tensor("int16", (2, 2)), "at": bp.Time("ms", "UTC"), "film": bp.Bytes(),
    }  # fmt: skip
    row = {
        "n": 2**64 - 1, "image": jpeg(), "a.b": None, "x": np.eye(2, dtype=np.int16), "at": 5, "film": b"f",
    }  # fmt: skip
    with bp.create(tmp_path / "a.lance", schema, blobs="film") as out:
        out.append(row)
    table = lance.dataset(tmp_path / "a.lance")
    result = table.take([0], columns=["n", "image", "a_b", "x"]).to_pylist()
    assert result == [{"n": 2**64 - 1, "image": jpeg(), "a_b": None, "x": [[1, 0], [0, 1]]}]
    assert [file.read() for file in table.take_blobs("film", indices=[0])] == [b"f"]
    with bp.open(tmp_path / "a.lance") as reader:
        assert dict(reader.schema) == schema


# -- blobs ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", TABLES[:2], ids=lambda path: path.name)
def test_blobs_are_read_where_they_lie(path):
    with bp.open(path) as reader:
        rows = [4, 0, 1, 2]
        spans = reader.spans("blob", rows)
        assert spans.size.tolist() == [250, 0, -1, 100]
        assert len(spans.files) == 2
        data = Path(spans.files[spans.file[0]]).read_bytes()
        assert data[spans.start[0] :][:250] == reader[4]["blob"]
        assert reader.spans("text", rows) is None


def test_blobs_in_files_of_their_own(tmp_path):
    cells = [b"a" * 10, b"b" * 100_000, None, b""]
    column = pa.array(cells, pa.large_binary())
    schema = pa.schema([pa.field("x", pa.large_binary(), metadata=BLOB)])
    lance.write_dataset(pa.table([column], schema), tmp_path / "a.lance", data_storage_version="2.2")
    with bp.open(tmp_path / "a.lance") as reader:
        assert [sample["x"] for sample in reader] == cells
        assert reader.spans("x", [0]) is None


def test_a_blob_outside_of_its_file(tmp_path):
    with bp.create(tmp_path / "a.lance", {"x": bp.Bytes()}, blobs="x") as out:
        out.append({"x": bytes(range(250)) * 40})
    with bp.open(tmp_path / "a.lance") as reader:
        (file,) = reader.spans("x", [0]).files
    # The size of the blob, where the table of blobs has it.
    whole, size = Path(file).read_bytes(), (10_000).to_bytes(8, "little")
    place = whole.index(size, 10_000)
    Path(file).write_bytes(whole[:place] + (1 << 40).to_bytes(8, "little") + whole[place + 8 :])
    with bp.open(tmp_path / "a.lance") as reader, pytest.raises(bp.DamagedError, match="outside") as caught:
        reader[0]
    assert (caught.value.path, caught.value.sample) == (file, 0)


@pytest.mark.parametrize("place", [-13, -9])
def test_counts_of_a_footer(tmp_path, place):
    """The library would allocate them, and end the process."""
    path = tmp_path / "a.lance"
    shutil.copytree(TABLES[1], path)
    file = next((path / "data").iterdir())
    data = bytearray(file.read_bytes())
    data[place] ^= 0x80
    file.write_bytes(data)
    with pytest.raises(bp.DamagedError, match="claims") as caught:
        bp.open(path)
    assert caught.value.path == str(file)


def test_options_of_blobs(tmp_path):
    with pytest.raises(bp.OptionError, match="fields of bytes"):
        bp.create(tmp_path / "a.lance", {"x": bp.Int()}, blobs=["x"])
    with pytest.raises(bp.FieldNameError):
        bp.create(tmp_path / "a.lance", {"x": bp.Int()}, blobs=["y"])


# -- outside -------------------------------------------------------------------------------------------------


def test_clones_read_another_table(tmp_path):
    shutil.copytree(TABLES[1], tmp_path / "a.lance")
    lance.dataset(tmp_path / "a.lance").shallow_clone(str(tmp_path / "b.lance"), 2)
    with pytest.raises(bp.UnsafeError, match="outside its folder"):
        bp.open(tmp_path / "b.lance")
    with bp.open(tmp_path / "b.lance", outside=True) as reader:
        assert [sample["text"] for sample in reader.select(["text"])][:2] == ["größe 0", "größe 1"]


@pytest.mark.linux
def test_a_pipe_is_no_table(tmp_path):
    path = tmp_path / "a.lance"
    shutil.copytree(TABLES[0], path)
    file = next((path / "_versions").glob("*.manifest"))
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(bp.DamagedError):
        bp.open(path)


def test_a_fork_reads_on(tmp_path):
    with bp.open(TABLES[1]) as reader:
        assert reader[0]["n"] == 0
        child = os.fork()
        if child == 0:
            os._exit(0 if reader[4]["n"] == 5 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert reader[4]["n"] == 5


# -- versions ------------------------------------------------------------------------------------------------


def write(path, numbers, schema=None, **options):
    with bp.create(path, schema or {"n": bp.Int()}, **options) as out:
        for n in numbers:
            out.append({"n": n, **({"t": f"№ {n}"} if schema else {})})


def read(path, **options):
    with bp.open(path, **options) as reader:
        return [sample["n"] for sample in reader]


def test_rows_are_appended_and_older_versions_stay(tmp_path):
    path = tmp_path / "a.lance"
    write(path, range(3))
    with bp.open(path) as before:
        write(path, [7, 8], mode="append")
        assert len(before) == 3
        assert len(before.refresh()) == 5
    write(path, [9], {"n": bp.Int(), "t": bp.Text()}, mode="append")
    with bp.open(path) as reader:
        assert [(sample["n"], sample["t"]) for sample in reader][4:] == [(8, None), (9, "№ 9")]
    write(path, [1], mode="overwrite")
    assert read(path) == [1]
    assert read(path, version=2) == [0, 1, 2, 7, 8]
    with pytest.raises(bp.SchemaError):
        write(path, [1], {"n": bp.Int(optional=True), "t": bp.Text()}, mode="append")


def test_versions_that_there_are_not(tmp_path):
    write(tmp_path / "a.lance", [1])
    for wrong, text in (
        ({"version": 77}, "no version 77; the latest version is 1"),
        ({"version": "best"}, "no tag 'best'"),
        ({"at": "2001-01-01"}, "no version yet"),
        ({"version": 1, "at": "2001-01-01"}, "not both"),
    ):
        with pytest.raises(bp.OptionError, match=text):
            bp.open(tmp_path / "a.lance", **wrong)
    with pytest.raises(bp.NotFoundError):
        bp.open(tmp_path, format="lance")


def test_upkeep(tmp_path):
    path = str(tmp_path / "a.lance")
    write(path, range(3))
    write(path, [3], mode="append")
    lance.dataset(path).tags.create("good", 2)
    write(path, [9], mode="overwrite")
    states = lake.history(path)
    assert [(state.id, state.operation, state.rows, state.refs) for state in states] == [
        (3, "OVERWRITE", 1, ()), (2, "APPEND", 1, ("good",)), (1, "OVERWRITE", 3, ()),
    ]  # fmt: skip
    assert read(path, at=states[1].at) == [0, 1, 2, 3]
    lake.rollback(path, 2)
    assert read(path) == [0, 1, 2, 3]
    done = lake.compact(path)
    assert (done.removed, done.added) == (2, 1)
    assert read(path) == [0, 1, 2, 3]
    planned = lake.vacuum(path, older_than=datetime.timedelta(0), dry_run=True)
    # Compacting makes a version of its own beforehand.
    assert planned.states == [1, 3, 4, 5]
    assert all(os.path.exists(os.path.join(path, file)) for file in planned.files)
    assert lake.vacuum(path, older_than=datetime.timedelta(0)).states == planned.states
    assert read(path) == read(path, version="good") == [0, 1, 2, 3]
