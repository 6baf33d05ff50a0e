"""SQLite tables: kinds, rows by number, and databases that lie or would run something."""

import os
import pickle
import sqlite3
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing.cases import cuts, flips, jpeg, memory_bounded, survive

ROWS = 40


def write(path, *statements, rows=()):
    """``rows``: of a table t, with as many values each."""
    with sqlite3.connect(path) as out:
        for statement in statements:
            out.execute(statement)
        if rows:
            out.executemany(f"INSERT INTO t VALUES ({', '.join('?' * len(rows[0]))})", rows)
    out.close()
    return path


def photos(path, count=ROWS):
    rows = [(2 * n + 5, jpeg(8, 8), f"größe {n}", n / 4, n % 2, None if n % 3 else n) for n in range(count)]
    table = (
        "CREATE TABLE t (id INTEGER PRIMARY KEY, photo BLOB NOT NULL, name VARCHAR(9), x REAL, ok BOOLEAN, n)"
    )
    return write(path, table, rows=rows)


def test_rows_and_kinds(tmp_path):
    path = photos(tmp_path / "a.sqlite")
    with bp.open(path) as data:
        assert data.format == "sqlite"
        assert data.schema == bp.Schema(
            id=bp.Int(), photo=bp.Image("jpeg", "RGB"), name=bp.Text(), x=bp.Float(), ok=bp.Bool(),
            n=bp.Int(optional=True),
        )  # fmt: skip
        assert len(data) == ROWS
        columns = data.read([7, 3, 3, 39], ["id", "name", "n"])
        assert columns["id"].tolist() == [19, 11, 11, 83]
        assert [bytes(cell).decode() for cell in columns["name"]] == [
            "größe 7",
            "größe 3",
            "größe 3",
            "größe 39",
        ]
        sample = data[4]
        assert (sample["x"], sample["ok"], sample["n"], sample["photo"].shape) == (
            1.0,
            False,
            None,
            (8, 8, 3),
        )
        again = pickle.loads(pickle.dumps(data))
        with ThreadPoolExecutor(4) as threads:
            numbers = list(threads.map(lambda row: again[row]["id"], range(ROWS)))
        assert numbers == [2 * n + 5 for n in range(ROWS)]
        assert data.facts()["table"] == "t"
    assert bp.verify(path, decode=True).ok
    loader = bp.Loader(bp.open(path, fields=["photo", "id"]), 8, order="random")
    assert sorted(np.concatenate([batch["id"] for batch in loader])) == numbers
    bp.convert(path, tmp_path / "a.parquet")
    with bp.open(path) as ours, bp.open(tmp_path / "a.parquet") as copied:
        assert copied.schema == ours.schema
        assert [repr(item) for item in copied] == [repr(our) for our in ours]


def test_tables_and_fields(tmp_path):
    path = write(
        tmp_path / "a.db",
        "CREATE TABLE one (x)",
        'CREATE TABLE "t""wo" (y TEXT)',
        "CREATE VIEW v AS SELECT 1",
    )
    with pytest.raises(bp.OptionError, match="2 tables; table=… is one of 'one', 't\"wo'"):
        bp.open(path)
    with pytest.raises(bp.OptionError, match="no table 'v'"):
        bp.open(path, table="v")
    assert list(bp.open(path, table='t"wo').schema) == ["y"]
    with pytest.raises(bp.OptionError, match="it has no table"):
        bp.open(write(tmp_path / "b.db", "CREATE VIEW v AS SELECT 1"))
    path = photos(tmp_path / "c.db")
    assert list(bp.open(path, fields=["x", "id"]).schema) == ["x", "id"]
    assert bp.open(path, schema={"photo": "bytes"})[0]["photo"] == jpeg(8, 8)
    with pytest.raises(bp.FieldNameError):
        bp.open(path, schema={"none": "bytes"})


def test_values_of_any_type_in_any_column(tmp_path):
    rows = [(n, "text", n / 2, n) for n in range(70)]
    rows[66] = (66, b"\xff", "word", 2.5)
    path = write(tmp_path / "a.db", "CREATE TABLE t (a, b, c, d)", rows=rows)
    with bp.open(path) as data:
        assert list(data.schema.values()) == [bp.Int(), bp.Text(), bp.Float(), bp.Int()]
        assert data[65]["d"] == 65
        for field in "bcd":
            with pytest.raises(bp.DecodeError) as caught:
                bp.open(path, fields=[field])[66]
            assert (caught.value.sample, caught.value.field) == (66, field)
    mixed = write(
        tmp_path / "b.db", "CREATE TABLE t (a, rowid TEXT)", rows=[(1, "x"), ("two", "y"), (3.5, None)]
    )
    assert [sample["a"] for sample in bp.open(mixed)] == ["1", "two", "3.5"]
    texts = write(tmp_path / "c.db", "CREATE TABLE t (a JSON, b INT)", rows=[('{"n": [1]}', 2**63 - 1)])
    assert bp.open(texts)[0] == {"a": {"n": [1]}, "b": 2**63 - 1}


def test_what_numbers_no_rows(tmp_path):
    with pytest.raises(bp.SchemaError, match="no rowid"):
        bp.open(write(tmp_path / "a.db", "CREATE TABLE t (a TEXT PRIMARY KEY) WITHOUT ROWID"))
    with pytest.raises(bp.SchemaError, match="no rowid"):
        bp.open(write(tmp_path / "b.db", "CREATE TABLE t (rowid, _rowid_, oid)"))
    with bp.open(write(tmp_path / "c.db", "CREATE TABLE t (a)")) as data:
        assert len(data) == 0


def test_nothing_is_run_and_nothing_written(tmp_path):
    path = write(
        tmp_path / "a.db",
        "CREATE TABLE t (a INT, b TEXT AS (printf('%.200000000c', 'x')), c INT AS (a * 2) STORED)",
        "INSERT INTO t (a) VALUES (7)",
    )
    before = path.read_bytes()
    with memory_bounded(len(before)), bp.open(path) as data:
        assert data[0] == {"a": 7, "c": 14}
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["a.db"]
    os.chmod(tmp_path, 0o500)
    try:
        assert len(bp.open(path)) == 1
    finally:
        os.chmod(tmp_path, 0o700)


def test_changes_that_are_not_in_the_file(tmp_path):
    path = photos(tmp_path / "a.db")
    writer = sqlite3.connect(path, isolation_level=None)
    writer.execute("PRAGMA journal_mode = WAL")
    writer.execute("DELETE FROM t WHERE id = 5")
    with pytest.raises(bp.BusyError, match=r"a\.db-wal"):
        bp.open(path)
    writer.close()
    with bp.open(path) as data:
        assert data[0]["id"] == 7


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damage(damage, tmp_path):
    path = photos(tmp_path / "a.db", 12)

    def read():
        try:
            with bp.open(path, format="sqlite") as data:
                return [row["name"] for row in data] != []
        except bp.BatchplantError:
            return False

    with memory_bounded(path.stat().st_size):
        assert [outcome for _, outcome in survive(damage(path), read)]


def test_pages_that_lead_in_a_circle(tmp_path):
    """Every child of the root is one page, so that its rows come again and again."""
    path = write(
        tmp_path / "a.db", "PRAGMA page_size = 512", "CREATE TABLE t (a TEXT)", rows=[("x" * 99,)] * 600
    )
    data = bytearray(path.read_bytes())
    root = 512
    assert data[root] == 5
    cells = int.from_bytes(data[root + 3 : root + 5], "big")
    places = [int.from_bytes(data[root + 12 + 2 * n :][:2], "big") for n in range(cells)]
    for place in places:
        data[root + place : root + place + 4] = data[root + places[0] : root + places[0] + 4]
    path.write_bytes(data)
    with pytest.raises(bp.DamagedError):
        bp.open(path)
