"""Parquet: the suite, files of other programs, partitions, resuming, damage."""

import base64
import itertools
import json
import os
import pickle
import sys

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.formats import parquet as parquet_writer
from batchplant.formats.base.tables.footer import footer_bytes, read_struct
from batchplant.formats.registry import get_format
from batchplant.schema.columns import Columns, Ragged
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, equal, jpeg
from repository import GOLDEN
from variants import in_one_test

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


class TestSuite(FormatSuite):
    format = "parquet"
    suffix = ".parquet"
    in_place = False
    golden = GOLDEN


def numbered(path, count=100, **options):
    with bp.create(path, {"n": bp.Int(), "t": bp.Text()}, **options) as out:
        for n in range(count):
            out.append({"n": n, "t": f"text {n}"})
    return path


# --- files of other programs --------------------------------------------------------------------------


META = bp.Struct(
    {"a": bp.Int("int32", optional=True), "b": bp.List(bp.Text(optional=True), optional=True)}, optional=True
)


def test_a_file_of_hugging_face():
    with bp.open(GOLDEN / "parquet" / "hf.parquet") as reader:
        assert dict(reader.schema) == {
            "image": bp.Image("png"),
            "label": bp.Int(names=("cat", "dog")),
            "text": bp.Text(),
            "box": bp.Tensor("float32", (4,)),
            "grid": bp.Tensor("int32", (2, 3)),
            # Its statistics do not tell an empty list from a missing one.
            "tags": bp.Tensor("int64", (None,), optional=True),
            "meta": META,
        }
        sample = reader[5]
        assert equal(np.full((4, 5, 3), 100, np.uint8), sample["image"])
        assert equal(np.array([[5, 6, 7], [3, 4, 5]], np.int32), sample["grid"])
        assert equal(np.arange(5), sample["tags"])
        assert sample["meta"] == {"a": 5, "b": ["x"] * 5}
        assert "parquet-cpp" in reader.facts()["written by"]


def test_missing_values_by_the_files_own_statistics(tmp_path):
    table = pa.table({"a": [1, 2, 3], "b": [1, None, 3], "c": ["x", "y", None]})
    pq.write_table(table, tmp_path / "a.parquet")
    with bp.open(tmp_path / "a.parquet") as reader:
        assert [field.optional for field in reader.schema.values()] == [False, True, True]
        assert [sample["b"] for sample in reader] == [1, None, 3]
    pq.write_table(table, tmp_path / "b.parquet", write_statistics=False)
    with bp.open(tmp_path / "b.parquet") as reader:
        assert all(field.optional for field in reader.schema.values())
        assert [sample["a"] for sample in reader] == [1, 2, 3]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.delta"])
def test_numbers_that_are_missing_inside_of_lists(name, tmp_path):
    lists = {
        "whole": pa.array([[1, 2], [3, None], None, []]),
        "real": pa.array([[1, None], [2.5], None, []], pa.list_(pa.float32())),
        "fixed": pa.array([[1, 2], [3, 4], None, [5, 6]], pa.list_(pa.int8(), 2)),
        "sound": pa.array([[1, 2], [3], None, []]),
    }
    table, path = pa.table(lists), str(tmp_path / name)
    if name == "a.parquet":
        pq.write_table(table, path)
    elif name == "a.arrow":
        with pa.ipc.new_file(path, table.schema) as file:
            file.write(table)
    else:
        pytest.importorskip("deltalake").write_deltalake(path, table)
    with bp.open(path) as reader:
        assert [field.kind for field in reader.schema.values()][:2] == ["list", "tensor"]
        assert reader.schema["sound"].kind == "tensor"
        result = list(reader)
    assert [row["whole"] for row in result] == [[1, 2], [3, None], None, []]
    np.testing.assert_array_equal(result[0]["real"], np.array([1, np.nan], np.float32))
    assert result[2]["real"] is None
    assert result[1]["sound"].tolist() == [3]
    assert [None if row["fixed"] is None else row["fixed"].tolist() for row in result] == [
        [1, 2], [3, 4], None, [5, 6],
    ]  # fmt: skip


def test_lists_that_are_missing_inside_of_lists(tmp_path):
    kind = pa.list_(pa.list_(pa.float32(), 2))
    pq.write_table(pa.table({"x": pa.array([[[1, 2], None], [[3, 4]]], kind)}), tmp_path / "a.parquet")
    with bp.open(tmp_path / "a.parquet") as reader, pytest.raises(bp.DecodeError, match="inside of a list"):
        list(reader)
    with bp.open(tmp_path / "a.parquet", schema={"x": bp.Json()}) as reader:
        assert reader[0] == {"x": [[1.0, 2.0], None]}


def test_kinds_that_the_caller_knows_better(tmp_path):
    pq.write_table(pa.table({"x": [[1, None], [2]], "n": [1, 2]}), tmp_path / "a.parquet")
    reader = bp.open(tmp_path / "a.parquet", schema={"x": bp.Tensor("int64", (None,))})
    with reader, pytest.raises(bp.DecodeError, match="inside of a list"):
        list(reader)
    with bp.open(tmp_path / "a.parquet", schema={"x": bp.Json(), "n": bp.Float()}) as reader:
        assert list(reader) == [{"x": [1, None], "n": 1.0}, {"x": [2], "n": 2.0}]
    with pytest.raises(bp.FieldNameError, match="no field 'y'"):
        bp.open(tmp_path / "a.parquet", schema={"y": bp.Json()})


def test_names_with_dots_and_structs_beside_them(tmp_path):
    table = pa.table({"a": [{"b": 1, "c": 2}], "a.b": [3], "a.b.c": ["x"]})
    pq.write_table(table, tmp_path / "a.parquet")
    with bp.open(tmp_path / "a.parquet") as reader:
        assert reader[0] == {"a": {"b": 1, "c": 2}, "a.b": 3, "a.b.c": "x"}
        assert reader.select(["a.b"])[0] == {"a.b": 3}


def test_two_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "a.parquet"
    )
    with pytest.raises(bp.SchemaError, match="two columns are called 'a'"):
        bp.open(tmp_path / "a.parquet")


@in_one_test("compression", ["none", "snappy", "gzip", "brotli", "lz4", "zstd"])
def test_others_read_what_we_write(compression, tmp_path):
    schema = {
        "i": bp.Image(), "n": bp.Int("uint64"), "t": bp.Text(optional=True),
        "x": bp.Tensor("float32", (2, 3)), "v": bp.Tensor("int16", (None,)),
        "when": bp.Tensor("datetime64[ms]"), "ok": bp.Bool(),
    }  # fmt: skip
    level = 5 if compression in ("gzip", "zstd", "brotli") else None
    with bp.create(tmp_path / "a.parquet", schema, compression=compression, level=level) as out:
        for n in range(3):
            out.append({
                "i": jpeg(), "n": 2**64 - 1 - n, "t": None if n else "ß",
                "x": np.full((2, 3), n, np.float32), "v": np.arange(n, dtype=np.int16),
                "when": np.datetime64(n, "ms"), "ok": n == 1,
            })  # fmt: skip
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column("i").to_pylist() == [{"bytes": jpeg(), "path": None}] * 3
    assert table.column("n").to_pylist() == [2**64 - 1, 2**64 - 2, 2**64 - 3]
    assert table.column("t").to_pylist() == ["ß", None, None]
    assert table.column("x")[2].as_py() == [[2.0] * 3] * 2
    assert table.column("v").to_pylist() == [[], [0], [0, 1]]
    assert table.schema.field("when").type == pa.timestamp("ms")
    assert table.column("ok").to_pylist() == [False, True, False]
    group = pq.read_metadata(tmp_path / "a.parquet").row_group(0)
    used = {group.column(n).path_in_schema: group.column(n).compression for n in range(group.num_columns)}
    name = {"none": "UNCOMPRESSED"}.get(compression, compression.upper())
    # A JPEG is packed already.
    assert used.pop("i.bytes") == used.pop("i.path") == "UNCOMPRESSED"
    assert set(used.values()) == {name}


def test_options_that_make_no_sense(tmp_path):
    for wrong in (
        {"compression": "rar"},
        {"row_group_size": 0},
        {"partition_by": "t"},
        {"partition_by": "n,t"},
    ):
        with pytest.raises(bp.OptionError):
            bp.create(tmp_path / "a.parquet", {"n": bp.Int(), "t": bp.Float()}, **wrong)
    with pytest.raises(bp.FieldNameError):
        bp.create(tmp_path / "a.parquet", {"n": bp.Int()}, partition_by="m")


# --- row groups -----------------------------------------------------------------------------------------


def grouped(path, count=1000, groups=10, width=100):
    """Groups of equal size, of numbers and bytes."""
    with bp.create(
        path, {"n": bp.Int(), "b": bp.Bytes()}, row_group_size=count // groups * (width + 16)
    ) as out:
        for start in range(0, count, count // groups):
            rows = np.arange(start, start + count // groups)
            data = np.repeat(rows.astype(np.uint8), width)
            out.append(Columns(n=rows, b=Ragged(data, np.arange(len(rows) + 1) * width)))
    return path


def test_row_groups_are_as_large_as_asked_for_however_large_the_batches(tmp_path):
    cells = Ragged(np.zeros(100_000, np.uint8), np.arange(1001) * 100)
    with bp.create(tmp_path / "a.parquet", {"n": bp.Int(), "b": bp.Bytes()}, row_group_size=100 * 116) as out:
        # Whole batches at once, and what is left of one goes together with the next.
        for start in (0, 1000):
            out.append(Columns(n=np.arange(start, start + 1000), b=cells))
        out.append(Columns(n=np.arange(50), b=Ragged(cells.data[:5000], cells.offsets[:51])))
    about = pq.ParquetFile(tmp_path / "a.parquet").metadata
    assert [about.row_group(number).num_rows for number in range(about.num_row_groups)] == [*[100] * 20, 50]
    with bp.open(tmp_path / "a.parquet") as reader:
        assert reader.read(np.arange(2050))["n"].tolist() == [*range(2000), *range(50)]


def loads(reader, monkeypatch):
    """What was decoded, in order."""
    seen = []
    load = type(reader)._load

    def noted(self, unit, fields):
        seen.append((unit, tuple(fields)))
        return load(self, unit, fields)

    monkeypatch.setattr(type(reader), "_load", noted)
    return seen


def test_row_groups_by_bytes(tmp_path):
    with bp.open(grouped(tmp_path / "a.parquet")) as reader:
        assert reader.facts()["row groups"] == 10
        assert np.bincount(reader.blocks()).tolist() == [100] * 10


def test_fields_that_are_not_asked_for_are_not_read(tmp_path, monkeypatch):
    with bp.open(grouped(tmp_path / "a.parquet")) as reader:
        seen = loads(reader, monkeypatch)
        assert reader.read([150, 3], ["n"])["n"].tolist() == [150, 3]
        assert seen == [(0, ("n",)), (1, ("n",))]
    # Not even by the library: a damaged column does not disturb the others.
    whole = bytearray((tmp_path / "a.parquet").read_bytes())
    chunk = pq.read_metadata(tmp_path / "a.parquet").row_group(0).column(1)
    whole[chunk.data_page_offset : chunk.data_page_offset + chunk.total_compressed_size] = bytes(
        chunk.total_compressed_size
    )
    (tmp_path / "b.parquet").write_bytes(whole)
    with bp.open(tmp_path / "b.parquet") as reader:
        assert reader.select(["n"])[7] == {"n": 7}
        with pytest.raises(bp.DamagedError, match="row group 0 cannot be read"):
            reader[7]
        assert reader[100]["n"] == 100


def test_a_quasi_random_epoch_decodes_each_group_once(tmp_path, monkeypatch):
    with bp.open(grouped(tmp_path / "a.parquet")) as reader:
        seen = loads(reader, monkeypatch)
        order = bp.order.quasi_random(len(reader), seed=1, epoch=0, blocks=reader.blocks(), window=4)
        actual = []
        for start in range(0, 1000, 64):
            batch = reader.read(order.take(np.arange(start, min(start + 64, 1000))))
            assert [cell[0] for cell in batch["b"]] == (batch["n"] % 256).tolist()
            actual += batch["n"].tolist()
        assert sorted(actual) == list(range(1000))
        assert actual != sorted(actual)
        assert len(seen) == 10


def test_more_groups_than_the_cache_holds(tmp_path, monkeypatch):
    with bp.open(grouped(tmp_path / "a.parquet"), cache=30_000) as reader:
        wanted = np.random.default_rng(0).permutation(1000)
        batch = reader.read(wanted)
        assert batch["n"].tolist() == wanted.tolist()
        assert [cell[0] for cell in batch["b"]] == (wanted % 256).tolist()
        assert reader._cache.bytes <= 30_000


def test_missing_cells_of_several_groups(tmp_path):
    schema = {"t": bp.Text(optional=True), "n": bp.Int(optional=True), "m": bp.Int()}
    with bp.create(tmp_path / "a.parquet", schema, row_group_size=1) as out:
        for n in range(90):
            # The first groups have no missing cell.
            out.append({"t": None if n > 50 and n % 3 else str(n), "n": None if n % 2 else n, "m": n})
    with bp.open(tmp_path / "a.parquet") as reader:
        assert reader.facts()["row groups"] > 3
        for n in np.random.default_rng(0).permutation(90)[:30]:
            numbers = [int(n), 89 - int(n), 4]
            result = reader.subset(numbers)
            assert [s["t"] for s in result] == [None if k > 50 and k % 3 else str(k) for k in numbers]
            assert [s["n"] for s in result] == [None if k % 2 else k for k in numbers]


@pytest.mark.parametrize("size", [1, 7, 100, 130, 1000, 5000])
def test_scanning_in_pieces_of_any_size(size, tmp_path):
    with bp.open(grouped(tmp_path / "a.parquet")) as reader:
        parts = list(reader.scan(size, ["n"]))
        assert [part.rows for part in parts[:-1]] == [size] * (len(parts) - 1)
        assert np.concatenate([part["n"] for part in parts]).tolist() == list(range(1000))
        # Leaving in the middle leaves no thread behind that would wait.
        assert next(iter(reader.scan(size)))["n"][0] == 0


def test_batches_may_be_changed(tmp_path):
    with bp.open(grouped(tmp_path / "a.parquet")) as reader:
        for wanted in ([1, 2, 3], [3, 1], [1, 500]):
            reader.read(wanted)["n"][:] = 0
            assert reader.read(wanted)["n"].tolist() == wanted


def test_readers_survive_a_fork(tmp_path):
    with bp.open(grouped(tmp_path / "a.parquet")) as reader:
        reader.read([1, 500])
        assert processes.in_fork(lambda: reader.read([2, 700])["n"].tolist() == [2, 700])
        assert reader.read([900])["n"].tolist() == [900]


def test_loader_gives_arrays_and_images(tmp_path):
    schema = {"image": bp.Image(), "x": bp.Tensor("float32", (3,)), "n": bp.Int()}
    with bp.create(tmp_path / "a.parquet", schema, row_group_size=2000) as out:
        for n in range(64):
            out.append({"image": jpeg(8, 8), "x": np.full(3, n, np.float32), "n": n})
    loader = bp.Loader(tmp_path / "a.parquet", 16, order="quasi_random", seed=3)
    batches = list(loader)
    loader.close()
    assert {batch["image"].shape for batch in batches} == {(16, 8, 8, 3)}
    numbers = np.concatenate([batch["n"] for batch in batches])
    assert sorted(numbers.tolist()) == list(range(64))
    assert np.array_equal(np.concatenate([batch["x"] for batch in batches])[:, 1], numbers)


# --- folders --------------------------------------------------------------------------------------------


def test_folders_with_partitions(tmp_path):
    table = pa.table({"year": [2023, 2024, 2024], "kind": ["a/b", "a/b", None], "n": [1, 2, 3]})
    pq.write_to_dataset(table, tmp_path / "table", partition_cols=["year", "kind"])
    with bp.open(tmp_path / "table") as reader:
        assert reader.format == "parquet"
        assert dict(reader.schema) == {"n": bp.Int(), "year": bp.Int(), "kind": bp.Text(optional=True)}
        actual = sorted((s["n"], s["year"], s["kind"]) for s in reader)
        assert actual == [(1, 2023, "a/b"), (2, 2024, "a/b"), (3, 2024, None)]
        assert reader.select(["year"])[0] == {"year": 2023}
        assert reader.facts()["files"] == 3
        again = pickle.loads(pickle.dumps(reader))
        assert list(again) == list(reader)


def test_writing_partitions(tmp_path):
    schema = {"n": bp.Int("int16"), "kind": bp.Text(optional=True), "ok": bp.Bool(), "t": bp.Bytes()}
    kinds = ["a", "b=c/d", None, "%", "ß", "..", "07"]
    with bp.create(tmp_path / "a.parquet", schema, partition_by=["kind", "ok"]) as out:
        for n in range(60):
            out.append({"n": n, "kind": kinds[n % 7], "ok": n % 2 == 0, "t": bytes([n])})
        assert "ordered by kind, ok" in out.remarks()[0]
    with bp.open(tmp_path / "a.parquet") as reader:
        assert dict(reader.schema) == schema
        actual = {s["n"]: s for s in reader}
        assert actual == {
            n: {"n": n, "kind": kinds[n % 7], "ok": n % 2 == 0, "t": bytes([n])} for n in range(60)
        }
    theirs = pq.read_table(tmp_path / "a.parquet", partitioning="hive")
    assert sorted(theirs.column("n").to_pylist()) == list(range(60))
    assert set(theirs.column("kind").to_pylist()) == set(kinds)
    assert [name for name in os.listdir(tmp_path) if name != "a.parquet"] == []


def test_partitions_of_nothing_and_too_many(tmp_path):
    with bp.create(tmp_path / "a.parquet", {"n": bp.Int(), "m": bp.Int()}, partition_by="m"):
        pass
    assert len(bp.open(tmp_path / "a.parquet")) == 0
    out = bp.create(tmp_path / "b.parquet", {"n": bp.Int(), "m": bp.Int()}, partition_by="m")

    def write():
        with out:
            out.append(Columns(n=np.arange(1001), m=np.arange(1001)))

    with pytest.raises(bp.OptionError, match="more than 1000 partitions"):
        write()
    schema = {"n": bp.Int(), "t": bp.Text()}
    with bp.create(tmp_path / "c.parquet", schema, partition_by="t", on_error="skip") as other:
        for text in ("", "x" * 300, "fine"):
            other.append({"n": 1, "t": text})
    assert [problem.field for problem in other.skipped] == ["t", "t"]
    assert [s["t"] for s in bp.open(tmp_path / "c.parquet")] == ["fine"]


def test_folders_of_files(tmp_path):
    (tmp_path / "d").mkdir()
    for n in range(11):
        pq.write_table(pa.table({"n": pa.array([n], pa.int32())}), tmp_path / "d" / f"part-{n}.parquet")
    (tmp_path / "d" / "_SUCCESS").touch()
    (tmp_path / "d" / ".part-3.parquet.crc").touch()
    assert [s["n"] for s in bp.open(tmp_path / "d")] == list(range(11))
    # A later file has a column more, and a wider one.
    pq.write_table(pa.table({"n": [2**40], "t": ["x"]}), tmp_path / "d" / "part-11.parquet")
    with bp.open(tmp_path / "d") as reader:
        assert dict(reader.schema) == {"n": bp.Int(), "t": bp.Text(optional=True)}
        assert list(reader)[10:] == [{"n": 10, "t": None}, {"n": 2**40, "t": "x"}]
        assert reader.where(11).endswith("part-11.parquet")
    pq.write_table(pa.table({"n": [[1]]}), tmp_path / "d" / "part-12.parquet")
    with pytest.raises(bp.SchemaError, match="different columns"):
        bp.open(tmp_path / "d")


def test_folders_that_are_something_else(tmp_path):
    for name in ("_delta_log", "metadata"):
        pq.write_to_dataset(pa.table({"n": [1]}), tmp_path / name / "t")
        (tmp_path / name / "t" / name).mkdir()
        assert not get_format("parquet").matches(bp.Probe(str(tmp_path / name / "t")))
    (tmp_path / "e").mkdir()
    with pytest.raises(bp.DamagedError, match="no Parquet file"):
        bp.open(tmp_path / "e", format="parquet")


# --- parts of a file ------------------------------------------------------------------------------------


def test_a_file_of_many_row_groups_has_one_footer(tmp_path):
    schema = {"n": bp.Int(), "t": bp.Text(), "x": bp.Tensor("float32", (2,)), "i": bp.Image()}
    # Of numbers, offsets, texts, arrays and images.
    row_bytes = 8 + 8 + 2 + 8 + 8 + len(jpeg())
    with bp.create(tmp_path / "a.parquet", schema, row_group_size=10 * row_bytes) as out:
        for n in range(10, 50):
            out.append({"n": n, "t": str(n), "x": np.full(2, n, np.float32), "i": jpeg()})
            if n % 7 == 0:
                out.checkpoint()
    table = pq.read_table(tmp_path / "a.parquet")
    assert table.column("n").to_pylist() == list(range(10, 50))
    assert table.column("x")[39].as_py() == [49.0, 49.0]
    about = pq.read_metadata(tmp_path / "a.parquet")
    assert [about.row_group(number).num_rows for number in range(about.num_row_groups)] == [10] * 4
    # Footers of row groups do not stay in the file.
    assert (tmp_path / "a.parquet").read_bytes().count(b"ARROW:schema") == 1
    assert bp.verify(tmp_path / "a.parquet", decode=True).problems == []
    assert cells(bp.open(tmp_path / "a.parquet"))["t"] == [str(n).encode() for n in range(10, 50)]


def test_partitions_resume(tmp_path):
    target = str(tmp_path / "a.parquet")
    schema = bp.Schema({"n": bp.Int(), "m": bp.Int()})
    writer = get_format("parquet").writer
    for resume, part in ((False, range(30)), (True, range(30, 60))):
        out = writer(target, schema, bp.WriteOptions(resume=resume), partition_by=["m"])
        for n in part:
            out.append({"n": n, "m": n % 4})
        if resume:
            out.close()
        else:
            out.checkpoint()
            out.append({"n": 99, "m": 9})
            out.suspend()
    assert sorted((s["n"], s["m"]) for s in bp.open(target)) == [(n, n % 4) for n in range(60)]


def test_footers_come_apart_and_together(tmp_path):
    """Every kind of value that a footer may have is kept."""
    table = pa.table({f"column {n}": pa.array([n, None, 2]) for n in range(20)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1, write_page_index=True, store_schema=True)
    whole = (tmp_path / "a.parquet").read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    tail = parquet_writer.merge([(0, whole[-8 - size : -8])], len(whole), None)
    assert tail == whole[-8 - size :]
    moved = b"x" * 100 + whole
    moved += parquet_writer.merge(
        [(100, whole[-8 - size : -8])], len(moved), lambda size, at: moved[at : at + size]
    )
    assert pq.ParquetFile(pa.BufferReader(moved)).read().equals(table)


def test_filters_skip_pages_of_what_we_wrote(tmp_path):
    """In one go, and with checkpoints."""
    path, parted = tmp_path / "a.parquet", tmp_path / "b.parquet"
    for target in (path, parted):
        with bp.create(target, {"n": bp.Int(), "x": bp.Float()}, row_group_size=1 << 30) as out:
            for first in (0, 60_000):
                n = np.arange(first, first + 60_000)
                out.append(bp.Columns(n=n, x=n / 2))
                if target == parted:
                    out.checkpoint()
        result = bp.open(target, where="n >= 100000 and n < 100010")
        assert result.read(range(10))["x"].tolist() == [n / 2 for n in range(100_000, 100_010)]
        # The numbers have a dictionary, which is read whole.
        assert result.facts()["bytes skipped"] > 0.4 * target.stat().st_size
        taken, whole = (reader.ranges(["x"]).size.sum() for reader in (result, bp.open(target)))
        assert taken < 0.3 * whole
        # And others see the same.
        table = pq.read_table(target)
        assert table.column("x").to_numpy().tolist() == (np.arange(120_000) / 2).tolist()
        column = pq.read_metadata(target).row_group(0).column(0)
        assert column.has_column_index
        assert column.has_offset_index


# --- damage ---------------------------------------------------------------------------------------------


def rewritten(path, change):
    """The file with another footer."""
    whole = path.read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    tree = read_struct(whole[-8 - size : -8])[0]
    change(tree)
    path.write_bytes(whole[: -8 - size] + footer_bytes(tree))


@in_one_test("rows", [-1, 0, 99, 2**62])
@in_one_test("everywhere", [False, True])
def test_lies_about_the_number_of_rows(rows, everywhere, tmp_path):
    numbered(tmp_path / "a.parquet")

    def change(tree):
        tree[3] = (6, rows)
        if everywhere:
            for group in tree[4][1][1]:
                group[3] = (6, rows)
                for column in group[1][1][1]:
                    column[3][1][5] = (6, rows)

    rewritten(tmp_path / "a.parquet", change)
    if everywhere and rows in (0, 99):
        # Nothing contradicts it: these are the rows.
        assert len(bp.open(tmp_path / "a.parquet")) == rows
    else:
        with pytest.raises(bp.DamagedError, match=r"a\.parquet"):
            bp.open(tmp_path / "a.parquet")


def test_a_damaged_row_group_is_not_tried_again_and_again(tmp_path, monkeypatch):
    path = grouped(tmp_path / "a.parquet")
    whole = bytearray(path.read_bytes())
    chunk = pq.read_metadata(path).row_group(3).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    whole[start : start + 16] = bytes(16)
    path.write_bytes(whole)
    with bp.open(path) as reader:
        seen = loads(reader, monkeypatch)
        problems = list(reader.verify())
        assert {problem.sample for problem in problems} == set(range(300, 400))
        assert all("row group 3" in problem.message for problem in problems)
        # Once with all fields, once with none, once with each.
        assert len([item for item in seen if item[0] == 3]) == 4


@in_one_test("data", [b"", b"PAR1", b"PAR1PAR1", b"PAR1\xff\xff\xff\x7fPAR1", bytes(100)])
def test_files_that_are_none(data, tmp_path):
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(bp.DamagedError):
        bp.open(tmp_path / "a.parquet", format="parquet")


def test_closed_readers_hold_nothing(tmp_path):
    reader = bp.open(numbered(tmp_path / "a.parquet"))
    list(itertools.islice(reader, 5))
    reader.read([0])
    reader.close()
    assert len(reader._cache) == 0
    with pytest.raises(bp.OptionError, match="closed"):
        reader.read([1])


FLIPS = """
import sys
import batchplant as bp
path = sys.argv[1]
whole = open(path, "rb").read()
first = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
said = set()
for place in range(first, len(whole) - 8):
    # One of each byte, for time; a while ago six of all 7,500 ended the process.
    for bit in [place * 3 % 8]:
        with open(path, "wb") as file:
            file.write(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1:])
        try:
            with bp.open(path) as reader:
                reader.facts()
                for _ in reader.scan():
                    pass
            said.add("read")
        except bp.BatchplantError as error:
            said.add(type(error).__name__)
print(sorted(said))
"""


def test_no_flipped_bit_of_a_footer_ends_the_process(tmp_path):
    path = tmp_path / "a.parquet"
    table = pa.table({"a": pa.array(["x", None])})
    pq.write_table(table, path, store_schema=False, compression="none")
    done = processes.run([sys.executable, "-c", FLIPS, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]
    assert "DamagedError" in done.stdout
    assert "read" in done.stdout


def test_another_type_in_a_row_group(tmp_path):
    """pyarrow ends the process when it is asked about such a column."""
    numbered(tmp_path / "a.parquet")

    def change(tree):
        tree[4][1][1][0][1][1][1][0][3][1][1] = (5, 5)

    rewritten(tmp_path / "a.parquet", change)
    with pytest.raises(bp.DamagedError, match="another type than the schema"):
        bp.open(tmp_path / "a.parquet")


def test_who_wrote_it_need_not_be_text(tmp_path):
    numbered(tmp_path / "a.parquet")

    def change(tree):
        tree[6] = (8, b"\xff\xfe writer")

    rewritten(tmp_path / "a.parquet", change)
    with bp.open(tmp_path / "a.parquet") as reader:
        assert reader.facts()["written by"].endswith("writer")


def encrypted(path, plaintext_footer):
    encryption = pytest.importorskip("pyarrow.parquet.encryption")

    class Keys(encryption.KmsClient):
        def __init__(self, config):
            encryption.KmsClient.__init__(self)

        def wrap_key(self, key, name):
            return base64.b64encode(key)

    how = encryption.EncryptionConfiguration(
        footer_key="f", column_keys={"k": ["secret"]}, plaintext_footer=plaintext_footer
    )
    factory = encryption.CryptoFactory(Keys)
    properties = factory.file_encryption_properties(encryption.KmsConnectionConfig(), how)
    table = pa.table({"n": range(10), "secret": [str(n) for n in range(10)]})
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    return path


def test_an_encrypted_column(tmp_path):
    path = encrypted(tmp_path / "a.parquet", True)
    with pytest.raises(bp.SchemaError, match=r"encrypted columns are not read: secret; .*fields="):
        bp.open(path)
    with bp.open(path, fields=["n"]) as reader:
        assert [row["n"] for row in reader] == list(range(10))
        assert list(reader.verify()) == []


def test_an_encrypted_footer(tmp_path):
    with pytest.raises(bp.SchemaError, match="its footer is encrypted"):
        bp.open(encrypted(tmp_path / "a.parquet", False))


def test_fields_that_are_chosen(tmp_path):
    path = grouped(tmp_path / "a.parquet")
    with bp.open(path, fields=["b"]) as reader:
        assert list(reader.schema) == ["b"]
        assert reader[7] == {"b": bp.open(path)[7]["b"]}
    with pytest.raises(bp.FieldNameError, match="no field 'c'"):
        bp.open(path, fields=["c"])


def test_a_file_that_is_not_mapped_is_fetched_once(tmp_path):
    """The headers of pages are looked at before; a remote file is not read twice for that."""
    fsspec = pytest.importorskip("fsspec")
    path = grouped(tmp_path / "a.parquet")
    with fsspec.open("memory://a.parquet", "wb") as file:
        file.write(path.read_bytes())
    with bp.open("memory://a.parquet") as remote, bp.open(path) as local:
        fetched = []
        source = remote._files[0].source
        view = source._view

        def seen(start, size):
            fetched.append((start, size))
            return view(start, size)

        source._view = seen
        assert remote.read([5, 250])["n"].tolist() == local.read([5, 250])["n"].tolist()
        # One run for each row group: its columns lie side by side.
        assert len(fetched) == 2


# --- files of which only the path is there ----------------------------------------------------------------

FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def with_paths(folder, name, rows, kind=FILE):
    info = {"info": {"features": {"image": {"_type": "Image"}}}}
    table = pa.table({"image": pa.array(rows, kind), "n": range(len(rows))})
    table = table.replace_schema_metadata({"huggingface": json.dumps(info)})
    if name.endswith(".parquet"):
        pq.write_table(table, folder / name)
    else:
        with pa.ipc.new_file(folder / name, table.schema) as file:
            file.write_table(table, max_chunksize=2)
    return folder / name


@in_one_test("order", [("bytes", "path"), ("path", "bytes")])
@in_one_test("name", ["a.parquet", "a.arrow"])
def test_images_of_which_only_the_path_is_there(name, order, tmp_path):
    (tmp_path / "images").mkdir()
    for n in range(3):
        (tmp_path / "images" / f"{n}.jpg").write_bytes(jpeg(4 + n))
    rows = [
        {"bytes": None, "path": "images/0.jpg"}, {"bytes": jpeg(7), "path": "elsewhere.jpg"},
        {"bytes": None, "path": str(tmp_path / "images" / "2.jpg")},
    ]  # fmt: skip
    kind = pa.struct([FILE.field(item) for item in order])
    with bp.open(with_paths(tmp_path, name, rows, kind)) as reader:
        assert reader.schema["image"].kind == "image"
        assert not reader.schema["image"].optional
        assert [cell.tobytes() for cell in reader.read([2, 1, 0])["image"]] == [jpeg(6), jpeg(7), jpeg(4)]
        assert [sample["n"] for sample in reader] == [0, 1, 2]


@in_one_test("name", ["a.parquet", "a.arrow"])
@in_one_test(
    ("path", "reason"),
    [
        ("lost.jpg", "no such file"),
        ("../up.jpg", "does not lie in"),
        ("/etc/hostname", "does not lie in"),
        ("pipe", "a named pipe"),
    ],
)
def test_a_path_that_leads_nowhere_is_said(name, path, reason, tmp_path):
    inside = tmp_path / "inside"
    inside.mkdir()
    os.mkfifo(inside / "pipe")
    (tmp_path / "up.jpg").write_bytes(jpeg())
    rows = [{"bytes": None, "path": path}, None]
    with bp.open(with_paths(inside, name, rows)) as reader:
        assert reader.schema["image"].optional
        assert reader.read([0, 1], ["n"])["n"].tolist() == [0, 1]
        with pytest.raises(
            bp.DecodeError, match=f"bytes are not in the table, and its file .*{reason}"
        ) as caught:
            reader[0]
    assert (caught.value.sample, caught.value.field) == (0, "image")
