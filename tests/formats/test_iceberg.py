"""Iceberg: the suite, tables that pyiceberg or nobody honest wrote, and pyiceberg on ours."""

import contextlib
import datetime
import json
import os
import pickle
import signal
import sqlite3
import sys
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.testing import FormatSuite, cases
from batchplant.testing.cases import jpeg
from variants import exhaustive

pytest.importorskip("pyiceberg")
pa = pytest.importorskip("pyarrow")


class TestSuite(FormatSuite):
    format = "iceberg"
    suffix = ".iceberg"
    in_place = False
    # The library knows the years 1 to 9999; that it is said is tested below.
    values: ClassVar = {
        "time us": [datetime.datetime(2024, 2, 29, 1, 2, 3, 4), datetime.datetime(1, 1, 1)],
        "date": [datetime.date(9999, 12, 31)],
    }

    def files(self, path):
        """SQLite does not notice every change to a file of its own; see below."""
        return [file for file in super().files(path) if file.name != "catalog.db"]


@pytest.mark.parametrize("optional", [False, True])
def test_years_that_the_library_does_not_know(optional, tmp_path):
    for field in (bp.Time("D", optional=optional), bp.Time("us", "UTC", optional=optional)):
        with (
            pytest.raises(bp.EncodeError, match="the years 1 to 9999"),
            bp.create(tmp_path / "t.iceberg", {"at": field}) as out,
        ):
            out.append({"at": np.datetime64("10000-01-01")})


@pytest.fixture
def catalog(tmp_path):
    """Properties of a catalog as another program would have one."""
    return {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/other.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }


@pytest.fixture
def opened(catalog):
    from pyiceberg.catalog import load_catalog

    result = load_catalog("batchplant", **catalog)
    result.create_namespace("db")
    yield result
    result.close()


DATA = {
    "a": pa.array([1, None, 3], pa.int32()),
    "b": pa.array([jpeg(), None, jpeg()]),
    "l": [[1.5], [], [2.5, 3.5]],
    "s": [{"x": 1, "y": "ä"}, None, {"x": 2, "y": None}],
}


def test_pyiceberg_reads_what_we_write(tmp_path):
    from pyiceberg.catalog import load_catalog

    path = tmp_path / "a.iceberg"
    schema = {
        "n": bp.Int("uint8"),
        "t": bp.Text(optional=True),
        "x": bp.Tensor("uint64", (2,)),
        "image": bp.Image(),
    }
    with bp.create(path, schema) as out:
        out.append({"n": 255, "t": None, "x": [0, 2**64 - 1], "image": jpeg()})
    ours = load_catalog("batchplant", type="sql", uri=f"sqlite:///{path}/catalog.db")
    table = ours.load_table("default.table")
    actual = table.scan().to_arrow().to_pylist()
    ours.close()
    assert actual == [{"n": 255, "t": None, "x": [0, 2**64 - 1], "image": jpeg()}]
    assert table.metadata.format_version == 2


def test_tables_of_pyiceberg_by_path_and_by_name(opened, catalog):
    from pyiceberg import types

    data = pa.table(DATA)
    table = opened.create_table("db.t", data.schema)
    table.append(data)
    with table.update_schema() as update:
        update.rename_column("a", "ä")
        update.add_column("new", types.StringType())
        update.update_column("a", types.LongType())
    first = table.current_snapshot().snapshot_id
    table.append(pa.table({"ä": pa.array([2**40]), "new": ["x"]}))
    folder = table.location().removeprefix("file://")
    for source, options in ((folder, {}), ("db.t", {"format": "iceberg", "catalog": catalog})):
        with bp.open(source, **options) as reader:
            assert reader.format == "iceberg"
            assert reader.schema["ä"] == bp.Int("int64", optional=True)
            assert reader.schema["b"] == bp.Image("jpeg", optional=True)
            samples = list(reader)
        assert [sample["ä"] for sample in samples] == [1, None, 3, 2**40]
        assert [sample["new"] for sample in samples] == [None, None, None, "x"]
        assert samples[0]["s"] == {"x": 1, "y": "ä"}
        assert samples[2]["l"].tolist() == [2.5, 3.5]
        with bp.open(source, **options, snapshot=first) as reader:
            assert list(reader.schema) == ["a", "b", "l", "s"]
            assert [sample["a"] for sample in reader] == [1, None, 3]
    with pytest.raises(bp.OptionError, match="name it with catalog"):
        bp.create(folder, {"new": bp.Text()}, format="iceberg", mode="append")


def test_any_catalog(catalog, opened, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    how = {"format": "iceberg", "catalog": catalog}
    for n, mode in enumerate(("create", "append", "overwrite", "append")):
        with bp.create("db.made", {"n": bp.Int("int16")}, **how, mode=mode) as out:
            out.append({"n": n})
    with bp.open("db.made", **how) as reader:
        assert reader.schema["n"] == bp.Int("int16")
        assert [sample["n"] for sample in reader] == [2, 3]
    assert opened.load_table("db.made").scan().to_arrow()["n"].to_pylist() in ([2, 3], [3, 2])
    with pytest.raises(bp.ExistsError, match="mode append or overwrite"):
        bp.create("db.made", {"n": bp.Int()}, **how)
    with pytest.raises(bp.NotFoundError, match="no such table"):
        bp.open("db.nothing", **how)
    with pytest.raises(bp.OptionError, match="the catalog cannot be opened"):
        bp.open("db.made", format="iceberg", catalog="unheard of")
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_a_column_without_rows_yet(opened):
    from pyiceberg import types

    table = opened.create_table("db.t", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1]}))
    with table.update_schema() as update:
        update.add_column("new", types.LongType())
    with bp.open(table.location().removeprefix("file://")) as reader:
        assert list(reader) == [{"a": 1, "new": None}]
        packed = pickle.dumps(reader)
    with table.update_schema() as update:
        update.add_column("newer", types.LongType())
    assert list(pickle.loads(packed)) == [{"a": 1, "new": None}]


def test_branches_and_tags(opened):
    table = opened.create_table("db.t", pa.schema([("a", pa.int64())]))
    table.append(pa.table({"a": [1]}))
    with table.manage_snapshots() as change:
        change.create_tag(table.current_snapshot().snapshot_id, "release")
    table.append(pa.table({"a": [2]}))
    folder = table.location().removeprefix("file://")
    assert [sample["a"] for sample in bp.open(folder, ref="release")] == [1]
    assert [sample["a"] for sample in bp.open(folder)] == [1, 2]
    with pytest.raises(bp.OptionError, match="no snapshot nothing"):
        bp.open(folder, ref="nothing")


def test_partitions(opened):
    from pyiceberg.transforms import IdentityTransform

    table = opened.create_table("db.t", pa.schema([("a", pa.int64()), ("p", pa.string())]))
    with table.update_spec() as update:
        update.add_field("p", IdentityTransform(), "p")
    table.append(pa.table({"a": [1, 2, 3], "p": ["x", "y", "x"]}))
    folder = table.location().removeprefix("file://")
    with bp.open(folder) as reader:
        assert {sample["a"]: sample["p"] for sample in reader} == {1: "x", 2: "y", 3: "x"}
        assert reader.facts()["partitioned by"] == "p"


def partitioned(opened):
    from pyiceberg.transforms import DayTransform, IdentityTransform

    fields = [("a", pa.int64()), ("p", pa.string()), ("at", pa.timestamp("us"))]
    table = opened.create_table("db.t", pa.schema(fields))
    with table.update_spec() as update:
        update.add_field("p", IdentityTransform(), "p")
        update.add_field("at", DayTransform(), "day")
    return table


PARTITIONED = {
    "a": bp.Int(optional=True),
    "p": bp.Text(optional=True),
    "at": bp.Tensor("datetime64[us]", optional=True),
}


@pytest.mark.parametrize("mode", ["overwrite", *exhaustive("append")])
def test_rows_go_to_their_partitions(opened, catalog, mode):
    from pyiceberg.expressions import EqualTo

    table = partitioned(opened)
    with bp.create("db.t", PARTITIONED, format="iceberg", catalog=catalog, mode="append") as out:
        out.append({"a": 1, "p": "x", "at": np.datetime64(0, "us")})
    days = [np.datetime64("2025-01-31T23:59:59", "us"), np.datetime64("2025-02-01T00:00:00", "us"), None]
    rows = [{"a": n, "p": [None, "x", "y ü/%"][n % 3], "at": days[n // 3 % 3]} for n in range(10, 100)]
    with bp.create(
        "db.t", PARTITIONED, format="iceberg", catalog=catalog, mode=mode, row_group=100, file_size=150
    ) as out:
        for row in rows:
            out.append(row)
    table.refresh()
    files = [task.file for task in table.scan().plan_files()]
    assert {(file.partition[0], file.partition[1]) for file in files} >= {("x", 20119), (None, None)}
    assert len(files) > 9
    # The library finds the rows by their partitions.
    result = table.scan(EqualTo("p", "x"), selected_fields=("a",)).to_arrow()["a"].to_pylist()
    assert sorted(set(result) - {1}) == [row["a"] for row in rows if row["p"] == "x"]
    with bp.open("db.t", format="iceberg", catalog=catalog) as reader:
        known = {sample["a"]: sample for sample in reader}
        assert len(known) == len(reader)
    assert known.pop(1, None) == (
        {"a": 1, "p": "x", "at": np.datetime64(0, "us")} if mode == "append" else None
    )
    assert known == {row["a"]: row for row in rows}


def test_an_append_that_fails_leaves_no_file_in_partitions(opened, catalog, monkeypatch):
    from batchplant.formats.iceberg import files as datafiles

    def fail(*_):
        raise OSError(28, "No space left on device")

    table = partitioned(opened)
    folder = Path(table.location().removeprefix("file://"))
    monkeypatch.setattr(datafiles, "commit_files", fail)
    with (
        pytest.raises(OSError, match="No space"),
        bp.create("db.t", PARTITIONED, format="iceberg", catalog=catalog, mode="append") as out,
    ):
        out.append({"a": 1, "p": "x", "at": None})
    assert list(folder.rglob("*.parquet")) == []
    assert len(bp.open("db.t", format="iceberg", catalog=catalog)) == 0


@pytest.mark.parametrize(
    ("transform", "kind", "values"),
    [
        ("bucket[7]", pa.string(), ["", "iceberg", "ü" * 40, None]),
        ("truncate[10]", pa.int64(), [-1, 1, 10, 19]),
        ("identity", pa.date32(), [0, -1, 17486]),
        ("day", pa.timestamp("us"), [-1, 0, 86_399_999_999, 86_400_000_000, None]),
        ("month", pa.date32(), [-1, 0, 30, 31]),
        ("void", pa.int64(), [1, 2]),
        *exhaustive(
            ("bucket[7]", pa.int64(), [0, 1, 34, -5, None, 1 << 40]),
            ("bucket[7]", pa.date32(), [0, 17486, -1]),
            ("truncate[3]", pa.string(), ["abcdef", "a", "üüüü", None]),
            ("hour", pa.timestamp("us", "UTC"), [-1, 0, 3_600_000_000]),
            ("year", pa.timestamp("us"), [-1, 0, 1 << 50]),
        ),
    ],
)
def test_every_partitioning(transform, kind, values, opened, catalog):
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import NestedField

    written = opened.create_table("db.types", pa.schema([("a", kind)])).schema().fields[0].field_type
    table = opened.create_table(
        "db.t",
        Schema(NestedField(1, "a", written, required=False)),
        partition_spec=PartitionSpec(PartitionField(1, 1000, parse_transform(transform), "p")),
    )
    data = pa.array(values, pa.int64() if kind != pa.string() else kind)
    data = data.cast(pa.int32()).cast(kind) if kind == pa.date32() else data.cast(kind)
    rows = bp.open(pa.table({"a": data}))
    how = {"catalog": catalog, "mode": "append"}
    bp.convert(rows, "db.t", target_options={"format": "iceberg", **how})
    table.refresh()
    # The rule of each partition, by pyiceberg itself, value by value.
    rule = parse_transform(transform).transform(written)
    expected = {rule(value) for value in values}
    result = [task.file for task in table.scan().plan_files()]
    assert {item.partition[0] for item in result} == expected
    assert sum(item.record_count for item in result) == len(values)


def positional_delete(opened, rows):
    """A table, and a file that deletes rows of it, as other programs write them."""
    import pyarrow.parquet as pq
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    table = opened.create_table("db.t", pa.schema([("a", pa.int64()), ("b", pa.string())]))
    table.append(pa.table({"a": range(10), "b": [str(n) for n in range(10)]}))
    [task] = table.scan().plan_files()
    file = f"{table.location()}/data/deletes.parquet"
    fields = [
        pa.field("file_path", pa.string(), False, {"PARQUET:field_id": "2147483546"}),
        pa.field("pos", pa.int64(), False, {"PARQUET:field_id": "2147483545"}),
    ]
    result = pa.table({"file_path": [task.file.file_path] * len(rows), "pos": rows}, schema=pa.schema(fields))
    pq.write_table(result, file.removeprefix("file://"))
    deletes = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES, file_path=file, file_format=FileFormat.PARQUET,
        partition=Record(), record_count=len(rows), spec_id=0,
        file_size_in_bytes=os.path.getsize(file.removeprefix("file://")),
    )  # fmt: skip
    return table, deletes


def test_deleted_rows(opened, monkeypatch):
    from pyiceberg.table import FileScanTask

    from batchplant.formats.iceberg import files as manifests
    from batchplant.formats.iceberg import reader as module

    table, deletes = positional_delete(opened, [0, 3, 9])
    [task] = table.scan().plan_files()
    real = manifests.files_of
    # pyiceberg writes no such manifest itself.
    monkeypatch.setattr(manifests, "files_of", lambda *given: (real(*given)[0], True))
    monkeypatch.setattr(module.IcebergReader, "_plan", lambda *_: [FileScanTask(task.file, {deletes})])
    with bp.open(table.location().removeprefix("file://")) as reader:
        assert [sample["a"] for sample in reader] == [1, 2, 4, 5, 6, 7, 8]
        assert reader.read([6, 0], ["b"])["b"][0].tobytes() == b"8"


# --- lies ---------------------------------------------------------------------------------------------


def made(folder, numbers=range(3)):
    with bp.create(folder, {"n": bp.Int()}) as out:
        for n in numbers:
            out.append({"n": n})
    [file] = Path(folder, "metadata").glob("*.metadata.json")
    return str(folder), file


def changed(file, **parts):
    file.write_text(json.dumps({**json.loads(file.read_text()), **parts}))


def test_metadata_never_names_code(tmp_path):
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    path, file = made(tmp_path / "a.iceberg")
    properties = json.loads(file.read_text())["properties"]
    for name in ("py-io-impl", "write.py-location-provider.impl"):
        changed(file, properties={**properties, name: "this.Evil"})
        assert len(bp.open(path)) == 3
        with (
            pytest.raises(bp.UnsafeError, match="names code to be run"),
            bp.create(path, {"n": bp.Int()}, mode="append") as out,
        ):
            out.append({"n": 1})


def test_files_of_others_are_not_read(tmp_path):
    path, file = made(tmp_path / "a.iceberg")
    answer = json.loads(file.read_text())
    for row in answer["snapshots"]:
        row["manifest-list"] = str(tmp_path / "elsewhere.avro")
    changed(file, **answer)
    with pytest.raises(bp.UnsafeError, match="which lies outside its folder; outside=True"):
        bp.open(path)
    with pytest.raises(bp.DamagedError, match="it is not there"):
        bp.open(path, outside=True)


def test_a_catalog_that_lists_another_table(tmp_path):
    path, _ = made(tmp_path / "a.iceberg")
    with sqlite3.connect(Path(path, "catalog.db")) as database:
        database.execute("DELETE FROM iceberg_tables")
    database.close()
    with pytest.raises(bp.DamagedError, match="the catalog lists 0 tables"):
        bp.open(path)


@pytest.mark.parametrize("how", [cases.cuts, cases.flips])
def test_a_damaged_catalog(how, tmp_path):
    path, _ = made(tmp_path / "a.iceberg")
    for what in how(Path(path, "catalog.db")):
        with contextlib.suppress(bp.BatchplantError):
            assert len(bp.open(path)) == 3, what


def test_the_newest_metadata_without_a_catalog(tmp_path):
    path, file = made(tmp_path / "a.iceberg")
    with bp.create(path, {"n": bp.Int()}, mode="append") as out:
        out.append({"n": 9})
    os.unlink(os.path.join(path, "catalog.db"))
    assert len(bp.open(path)) == 4
    Path(path, "metadata", "version-hint.text").write_text(file.name)
    assert len(bp.open(path)) == 3


def test_manifests_that_lack_files(tmp_path):
    path, file = made(tmp_path / "a.iceberg")
    answer = json.loads(file.read_text())
    for row in answer["snapshots"]:
        row["summary"]["total-data-files"] = "2"
    changed(file, **answer)
    with pytest.raises(bp.DamagedError, match="list 1 files, and the snapshot says 2"):
        bp.open(path)


def test_no_table(tmp_path):
    with pytest.raises(bp.NotFoundError, match="no Iceberg table"):
        bp.open(str(tmp_path), format="iceberg")


def test_catalogs_of_another_name(tmp_path):
    sql = pytest.importorskip("pyiceberg.catalog.sql")
    given = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/all.db",
        "warehouse": f"file://{tmp_path}/warehouse",
    }
    with contextlib.closing(sql.SqlCatalog("production", **given)) as catalog:
        catalog.create_namespace("logs")
        rows = pa.table({"n": [1, 2, 3]})
        catalog.create_table("logs.events", rows.schema).append(rows)
    with bp.open("logs.events", format="iceberg", catalog={**given, "name": "production"}) as reader:
        assert [sample["n"] for sample in reader] == [1, 2, 3]
        assert [load["n"] for load in pickle.loads(pickle.dumps(reader))] == [1, 2, 3]
    with pytest.raises(bp.NotFoundError, match=r'no such table; .*give "name"'):
        bp.open("logs.events", format="iceberg", catalog=given)


KILLED = """
import os, signal, sqlite3, sys
opened = sqlite3.connect(sys.argv[1], isolation_level=None)
# So that pages of the change get into the file before it ends.
opened.execute("PRAGMA cache_size=1")
opened.execute("BEGIN IMMEDIATE")
opened.execute("CREATE TABLE other (x TEXT)")
opened.executemany("INSERT INTO other VALUES (?)", [("y" * 1000,)] * 200)
opened.execute("UPDATE iceberg_tables SET metadata_location = 'nowhere'")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_killed_amid_a_change_of_the_catalog(tmp_path):
    path = tmp_path / "t.iceberg"
    with bp.create(path, {"n": bp.Int()}) as out:
        out.append({"n": 7})
    killed = processes.run([sys.executable, "-c", KILLED, str(path / "catalog.db")], capture_output=True)
    assert killed.returncode == -signal.SIGKILL
    assert (path / "catalog.db-journal").exists()
    assert [sample["n"] for sample in bp.open(path)] == [7]
    with bp.create(path, mode="append") as out:
        out.append({"n": 8})
    assert [sample["n"] for sample in bp.open(path)] == [7, 8]
