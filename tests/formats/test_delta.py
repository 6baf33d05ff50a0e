"""Delta Lake: the suite, tables that deltalake or nobody honest wrote, and deltalake on ours."""

import base64
import datetime
import json
import struct
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing import FormatSuite
from batchplant.testing.cases import jpeg

deltalake = pytest.importorskip("deltalake")
pa = pytest.importorskip("pyarrow")


class TestSuite(FormatSuite):
    format = "delta"
    suffix = ".delta"
    in_place = False
    # A log that ends at the end of a line is one that did less.
    notices_cuts = False


def test_deltalake_reads_what_we_write(tmp_path):
    schema = {
        "n": bp.Int("uint32"), "huge": bp.Int("uint64"), "t": bp.Text(optional=True),
        "image": bp.Image("jpeg"), "x": bp.Tensor("int16", (2, 2)), "at": bp.Tensor("datetime64[s]"),
        "half": bp.Float("float16"),
    }  # fmt: skip
    with bp.create(tmp_path / "a.delta", schema) as out:
        for n in (1, 2**32 - 1):
            out.append(
                {"n": n, "huge": 2**64 - 1, "t": None, "image": jpeg(), "x": np.eye(2, dtype=np.int16),
                 "half": 0.5, "at": np.datetime64("2025-01-31T12:00:00")}
            )  # fmt: skip
    table = deltalake.DeltaTable(tmp_path / "a.delta")
    result = table.to_pyarrow_table().to_pylist()
    assert [row["n"] for row in result] == [1, 2**32 - 1]
    assert result[0]["huge"] == 2**64 - 1
    assert result[0]["x"] == [[1, 0], [0, 1]]
    assert result[0]["image"] == jpeg()
    assert result[0]["t"] is None
    assert result[0]["half"] == 0.5
    assert result[0]["at"] == datetime.datetime(2025, 1, 31, 12, tzinfo=datetime.UTC)
    assert table.protocol().min_reader_version == 1
    assert [row["operation"] for row in table.history()] == ["WRITE", "CREATE TABLE"]


def test_tables_of_deltalake(tmp_path):
    path = str(tmp_path / "t")
    data = pa.table(
        {
            "a": pa.array([1, None, 3], pa.int32()),
            "b": [jpeg(), None, jpeg()],
            "l": [[1.5], [], [2.5, 3.5]],
            "s": [{"x": 1, "y": "ä"}, None, {"x": 2, "y": None}],
            "at": pa.array([0, None, 1_000_000], pa.timestamp("us", "UTC")),
        }
    )
    deltalake.write_deltalake(path, data)
    deltalake.write_deltalake(path, data.slice(0, 1), mode="append")
    deltalake.write_deltalake(
        path, pa.table({"a": pa.array([7], pa.int32()), "new": ["x"]}), mode="append", schema_mode="merge"
    )
    with bp.open(path) as reader:
        assert reader.format == "delta"
        assert dict(reader.schema) == {
            "a": bp.Int("int32", optional=True),
            "b": bp.Image("jpeg", optional=True),
            "l": bp.Tensor("float64", (None,), optional=True),
            "s": bp.Struct({"x": bp.Int(optional=True), "y": bp.Text(optional=True)}, optional=True),
            "at": bp.Time("us", "UTC", optional=True),
            "new": bp.Text(optional=True),
        }
        samples = list(reader)
        assert reader.facts()["version"] == 2
    assert [sample["a"] for sample in samples] == [1, None, 3, 1, 7]
    assert [sample["new"] for sample in samples] == [None, None, None, None, "x"]
    assert samples[0]["s"] == {"x": 1, "y": "ä"}
    assert samples[2]["l"].tolist() == [2.5, 3.5]
    assert samples[0]["b"].shape == (8, 8, 3)
    assert bp.verify(path, decode=True).problems == []
    with bp.open(path, schema={"b": bp.Bytes(optional=True)}) as reader:
        assert reader[0]["b"] == jpeg()
    with bp.create(path, {"a": bp.Int("int32"), "b": bp.Image()}, format="delta", mode="append") as out:
        out.append({"a": 9, "b": jpeg()})
    assert [sample["a"] for sample in bp.open(path)] == [1, None, 3, 1, 7, 9]


def test_partitions(tmp_path):
    path = str(tmp_path / "t")
    data = pa.table(
        {"n": [1, 2, 3, 4], "day": pa.array([0, 0, 1, None], pa.date32()), "p": ["x", "y ü/%", "x", None]}
    )
    deltalake.write_deltalake(path, data, partition_by=["day", "p"])
    with bp.open(path) as reader:
        actual = {sample["n"]: (sample["day"], sample["p"]) for sample in reader}
        assert reader.facts()["partitioned by"] == "day, p"
    days = [np.datetime64("1970-01-01"), np.datetime64("1970-01-02")]
    assert actual == {1: (days[0], "x"), 2: (days[0], "y ü/%"), 3: (days[1], "x"), 4: (None, None)}
    schema = {"n": bp.Int(), "day": bp.Tensor("datetime64[D]", optional=True), "p": bp.Text(optional=True)}
    with bp.create(path, schema, format="delta", mode="append") as out:
        out.append({"n": 5, "day": days[0], "p": "x"})
        out.append({"n": 6, "day": None, "p": "z"})
    assert {sample["n"]: sample["p"] for sample in bp.open(path)} == {
        1: "x",
        2: "y ü/%",
        3: "x",
        4: None,
        5: "x",
        6: "z",
    }
    with bp.create(
        path, {"q": bp.Int(), "p": bp.Text(), "day": schema["day"]}, format="delta", mode="overwrite"
    ) as out:
        out.append({"q": 1, "p": "x", "day": None})
    assert [(sample["q"], sample["p"]) for sample in bp.open(path)] == [(1, "x")]


def test_overwriting_may_change_the_fields(tmp_path):
    path = tmp_path / "a.delta"
    for schema, sample in (({"a": bp.Int()}, {"a": 1}), ({"b": bp.Text()}, {"b": "x"})):
        with bp.create(path, schema, mode="overwrite") as out:
            out.append(sample)
    assert list(bp.open(path)) == [{"b": "x"}]
    assert list(bp.open(path, version=1)) == [{"a": 1}]


def with_log(folder, change):
    """Write the last entry of the log anew."""
    [*_, last] = sorted(Path(folder, "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in last.read_text().splitlines()]
    for line in lines:
        change(line)
    last.write_text("\n".join(map(json.dumps, lines)))


def table_of(folder, numbers):
    with bp.create(folder, {"n": bp.Int()}, row_group=50) as out:
        for n in numbers:
            out.append({"n": n})
    return str(folder)


def deletion_vector(rows):
    roaring = pytest.importorskip("pyroaring").BitMap(rows).serialize()
    data = struct.pack("<iqi", 1681511377, 1, 0) + roaring
    data += bytes(-len(data) % 4)
    rfc = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    text = base64.b85encode(data).decode().translate(str.maketrans(rfc, z85))
    return {
        "storageType": "i", "pathOrInlineDv": text, "sizeInBytes": len(data), "cardinality": len(rows),
    }  # fmt: skip


def test_deletion_vectors(tmp_path):
    path = table_of(tmp_path / "a.delta", range(60))
    gone = [0, 5, 16, 17, 59]

    def delete(line):
        if "add" in line:
            line["add"]["deletionVector"] = deletion_vector(gone)

    with_log(path, delete)
    entry = Path(path, "_delta_log", "00000000000000000000.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["deletionVectors"],
                "writerFeatures": ["deletionVectors"],
            }  # fmt: skip
    entry.write_text("\n".join(map(json.dumps, lines)))
    left = [n for n in range(60) if n not in gone]
    with bp.open(path) as reader:
        assert len(reader) == 55
        assert [sample["n"] for sample in reader] == left
        assert reader.read([54, 3, 0])["n"].tolist() == [left[54], left[3], left[0]]
        assert len(np.unique(reader.blocks())) > 1
        assert len(reader.blocks()) == 55


@pytest.mark.parametrize(
    "name", ["../other.parquet", "/etc/passwd", "file:///etc/passwd", "a/../../x.parquet"]
)
def test_files_of_others_are_not_read(name, tmp_path):
    path = table_of(tmp_path / "a.delta", range(3))
    with_log(path, lambda line: line.get("add", {}).update(path=name))
    with pytest.raises(bp.UnsafeError, match="which lies outside its folder; outside=True"):
        bp.open(path)
    with bp.open(path, outside=True) as reader, pytest.raises(bp.DamagedError):
        reader[0]


def test_files_elsewhere_are_read_when_asked_for(tmp_path):
    """As in a shallow clone of a remote table."""
    pytest.importorskip("fsspec")
    path = table_of(tmp_path / "a.delta", range(30))
    [file] = Path(path).glob("*.parquet")
    file.rename(tmp_path / "b.parquet")
    with_log(path, lambda line: line.get("add", {}).update(path=f"local://{tmp_path}/b.parquet"))
    with pytest.raises(bp.UnsafeError, match="outside=True"):
        bp.open(path)
    with bp.open(path, outside=True) as reader:
        assert reader.read([29, 3])["n"].tolist() == [29, 3]


@pytest.mark.parametrize("stats", ['{"numRecords": 99999999999}', '{"numRecords": -5}', '{"numRecords": 2}'])
def test_a_log_that_lies_about_rows(stats, tmp_path):
    path = table_of(tmp_path / "a.delta", range(3))
    with_log(path, lambda line: line.get("add", {}).update(stats=stats))
    with pytest.raises(bp.DamagedError, match="rows"), bp.open(path) as reader:
        reader.read([0])


def test_a_log_without_statistics(tmp_path):
    path = table_of(tmp_path / "a.delta", range(3))
    with_log(path, lambda line: line.get("add", {}).update(stats=None))
    assert [sample["n"] for sample in bp.open(path)] == [0, 1, 2]


def test_an_empty_entry_of_the_log(tmp_path):
    path = table_of(tmp_path / "a.delta", range(3))
    Path(path, "_delta_log", "00000000000000000001.json").write_bytes(b"")
    with pytest.raises(bp.DamagedError, match="this entry of the log is empty"):
        bp.open(path)


def test_a_table_that_needs_more(tmp_path):
    path = table_of(tmp_path / "a.delta", range(3))
    entry = Path(path, "_delta_log", "00000000000000000000.json")
    lines = [json.loads(line) for line in entry.read_text().splitlines()]
    for line in lines:
        if "protocol" in line:
            line["protocol"] = {
                "minReaderVersion": 3, "minWriterVersion": 7, "readerFeatures": ["newThing"],
                "writerFeatures": ["newThing"],
            }  # fmt: skip
    entry.write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(bp.BatchplantError, match=r"(?i)newThing|feature"):
        bp.open(path)


def test_no_table(tmp_path):
    with pytest.raises(bp.NotFoundError):
        bp.open(str(tmp_path / "nothing.delta"), format="delta")


@pytest.mark.parametrize("version", [-1, 7, 2**62])
def test_a_version_that_is_not_there_is_not_looked_for(version, tmp_path):
    """The library looks for every version up to it."""
    with bp.create(tmp_path / "a.delta", {"x": bp.Int()}) as out:
        out.append({"x": 1})
    latest = 1
    assert bp.open(tmp_path / "a.delta", version=latest)[0] == {"x": 1}
    with pytest.raises(bp.OptionError, match=f"there is no version {version}; the latest is {latest}"):
        bp.open(tmp_path / "a.delta", version=version)
