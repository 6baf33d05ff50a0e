"""The upkeep of Delta and Iceberg tables, and tables by their names in a catalog."""

import datetime
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.jobs import lake

deltalake = pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
pa = pytest.importorskip("pyarrow")

SCHEMA = {"n": bp.Int()}
NOW = datetime.timedelta(0)
# Whatever a table is made of was made before.
HOUR = datetime.timedelta(hours=1)


@pytest.fixture(params=["delta", "iceberg"])
def path(request, tmp_path):
    return str(tmp_path / f"t.{request.param}")


def write(path, numbers, schema=SCHEMA, **options):
    with bp.create(path, schema, **options) as out:
        for n in numbers:
            out.append({"n": n})


def read(path, **options):
    with bp.open(path, **options) as reader:
        return [sample["n"] for sample in reader]


def older(path, state):
    return read(path, **{"version" if path.endswith("delta") else "snapshot": state.id})


def data_files(path):
    return sorted(str(item) for item in Path(path).rglob("*.parquet"))


def after(seconds, monkeypatch):
    """Time has passed for whoever asks Python; what deltalake says it is stays."""
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + seconds)


# -- history --------------------------------------------------------------------------------------------


def test_history(path, capsys):
    write(path, range(3))
    write(path, range(2), mode="append")
    actual = lake.history(path)
    assert [item.rows for item in actual[:2]] in ([2, 3], [None, None])
    assert [item.current for item in actual] == [True, *[False] * (len(actual) - 1)]
    assert actual == sorted(actual, key=lambda item: item.at, reverse=True)
    assert older(path, actual[1]) == [0, 1, 2]
    assert main(["lake", "history", path]) == 0
    output = capsys.readouterr().out
    assert str(actual[0].id) in output
    assert output.splitlines()[1].startswith("*")
    assert main(["lake", "history", path, "--json", "-n", "1"]) == 0
    output = json.loads(capsys.readouterr().out)
    assert [row["id"] for row in output["states"]] == [actual[0].id]
    assert output["states"][0]["current"] is True


def test_what_is_no_table(tmp_path, capsys):
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(bp.OptionError, match="it is npy, and only delta, iceberg and lance tables"):
        lake.history(tmp_path / "a.npy")
    assert main(["lake", "history", str(tmp_path / "missing.delta")]) == 2
    assert "no such file" in capsys.readouterr().err


# -- rollback -------------------------------------------------------------------------------------------


def test_rollback_and_forward_again(path, capsys):
    write(path, [1])
    first = lake.history(path)[0]
    write(path, [2], mode="append")
    second = lake.history(path)[0]
    assert lake.rollback(path, first.id, dry_run=True).id == first.id
    assert read(path) == [1, 2]
    assert lake.rollback(path, first.id).id == first.id
    assert read(path) == [1]
    write(path, [3], mode="append")
    assert read(path) == [1, 3]
    # Nothing is lost by it.
    assert older(path, second) == [1, 2]
    assert main(["lake", "rollback", path, "--to", str(second.id), "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["done"] is True
    assert read(path) == [1, 2]


def test_rollback_to_a_time(path):
    write(path, [1])
    at = lake.history(path)[0].at
    write(path, [2], mode="overwrite")
    lake.rollback(path, at=at)
    assert read(path) == [1]
    with pytest.raises(bp.OptionError, match="there was no"):
        lake.rollback(path, at="2001-01-01")


def test_a_rollback_that_is_not_possible(path, capsys):
    write(path, [1])
    with pytest.raises(bp.OptionError, match=r"there is no (version|snapshot) 77; the latest are"):
        lake.rollback(path, 77)
    with pytest.raises(bp.OptionError, match="say which"):
        lake.rollback(path)
    write(path, [2], mode="append")
    # Nobody is asked who cannot answer, and then nothing happens.
    assert main(["lake", "rollback", path, "--to", str(lake.history(path)[1].id)]) == 2
    assert "--yes" in capsys.readouterr().err
    assert read(path) == [1, 2]


# -- vacuum ---------------------------------------------------------------------------------------------


def test_vacuum_removes_what_no_state_needs(path, capsys):
    write(path, [1])
    old = lake.history(path)[0]
    [first] = data_files(path)
    write(path, [2], mode="overwrite")
    assert main(["lake", "vacuum", path, "--dry-run", "--older-than", "0", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["removed"] is False
    assert answer["bytes"] >= os.path.getsize(first)
    assert os.path.basename(first) in " ".join(answer["files"])
    assert older(path, old) == [1]
    assert main(["lake", "vacuum", path, "--older-than", "0", "--yes"]) == 0
    assert "removed" in capsys.readouterr().out
    assert first not in data_files(path)
    assert read(path) == [2]
    assert bp.verify(path).problems == []
    write(path, [3], mode="append")
    assert read(path) == [2, 3]
    assert lake.vacuum(path, older_than=HOUR).files == []


def test_vacuum_keeps_what_a_reader_may_have_open(path):
    write(path, [1])
    old = lake.history(path)[0]
    write(path, [2], mode="overwrite")
    result = lake.vacuum(path)
    assert (result.files, result.states, result.done) == ([], [], True)
    assert older(path, old) == [1]


def test_vacuum_asks(path, capsys):
    write(path, [1])
    write(path, [2], mode="overwrite")
    before = data_files(path)
    assert main(["lake", "vacuum", path, "--older-than", "0"]) == 2
    assert "--yes" in capsys.readouterr().err
    assert data_files(path) == before
    with pytest.raises(SystemExit, match="2"):
        main(["lake", "vacuum", path, "--older-than", "yesterday"])
    assert "write 7d, 12h or 30m" in capsys.readouterr().err


def test_a_person_is_asked(path, monkeypatch, capsys):
    import io

    write(path, [1])
    write(path, [2], mode="overwrite")
    before = len(data_files(path))
    for answer in ("", "no", "y"):
        given = io.StringIO(answer + "\n")
        given.isatty = lambda: True
        monkeypatch.setattr("sys.stdin", given)
        assert main(["lake", "vacuum", path, "--older-than", "0"]) == 0
        assert "Remove 1 file" in capsys.readouterr().out or path.endswith("iceberg")
        assert len(data_files(path)) == (before - 1 if answer == "y" else before), answer


def test_strays_of_killed_writers_go_when_they_are_old(path):
    write(path, [1])
    [file] = data_files(path)
    folder = os.path.dirname(file)
    young, old = (os.path.join(folder, name) for name in ("young.parquet", "old.parquet"))
    for item in (young, old):
        Path(item).write_bytes(b"x" * 10)
    os.utime(old, (time.time() - 10 * 86400,) * 2)
    result = lake.vacuum(path, older_than=datetime.timedelta(days=7))
    assert [os.path.basename(file) for file in result.files] == ["old.parquet"]
    assert result.bytes == 10
    assert os.path.exists(young)
    assert not os.path.exists(old)
    assert read(path) == [1]


def test_what_somebody_else_put_there_stays(path):
    write(path, [1])
    write(path, [2], mode="overwrite")
    mine = os.path.join(os.path.dirname(data_files(path)[0]), "mine.txt")
    Path(mine).write_text("notes")
    os.utime(mine, (time.time() - 10 * 86400,) * 2)
    result = lake.vacuum(path, older_than=NOW)
    assert any(file.endswith(".parquet") for file in result.files)
    assert not any(file.endswith(".txt") for file in result.files)
    assert Path(mine).read_text() == "notes"
    assert len(data_files(path)) == 1


def test_tags_and_what_was_current_lately_stay(tmp_path, monkeypatch):
    path = str(tmp_path / "t.iceberg")
    from batchplant.formats.iceberg.files import writable

    write(path, [1])
    tagged = lake.history(path)[0]
    with writable(path) as table, table.manage_snapshots() as change:
        change.create_tag(tagged.id, "release")
    write(path, [2], mode="overwrite")
    middle = lake.history(path)[0]
    assert lake.history(path)[-1].refs == ("release",)
    write(path, [3], mode="overwrite")
    # The middle one is long over, by a clock that is ahead.
    after(30 * 86400, monkeypatch)
    result = lake.vacuum(path, dry_run=True)
    assert middle.id in result.states
    assert tagged.id not in result.states
    lake.vacuum(path)
    assert read(path, ref="release") == [1]
    assert read(path) == [3]
    with pytest.raises(bp.OptionError, match="no snapshot"):
        older(path, middle)


def test_a_table_may_keep_more(tmp_path, monkeypatch):
    path = str(tmp_path / "t.iceberg")
    from batchplant.formats.iceberg.files import writable

    for n in range(5):
        write(path, [n], mode="overwrite")
    with writable(path) as table, table.transaction() as change:
        change.set_properties({"history.expire.min-snapshots-to-keep": "3"})
    kept = [item.id for item in lake.history(path)][:3]
    after(30 * 86400, monkeypatch)
    assert not set(kept) & set(lake.vacuum(path).states)
    assert [item.id for item in lake.history(path)][:3] == kept


def test_a_damaged_table_loses_nothing(tmp_path):
    path = str(tmp_path / "t.iceberg")
    write(path, [1])
    write(path, [2], mode="append")
    before = data_files(path)
    manifest = sorted(Path(path, "metadata").glob("*-m0.avro"))[0]
    manifest.write_bytes(manifest.read_bytes()[:-3])
    with pytest.raises(bp.DamagedError):
        lake.vacuum(path, older_than=NOW)
    assert data_files(path) == before


# -- compact --------------------------------------------------------------------------------------------


def test_compact(path, capsys):
    for n in range(6):
        write(path, range(10 * n, 10 * n + 10), mode="append")
    old = lake.history(path)[0]
    assert main(["lake", "compact", path, "--dry-run", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert (answer["removed"], answer["added"], answer["done"]) == (6, 1, False)
    assert main(["lake", "compact", path, "--quiet"]) == 0
    assert "6 files" in capsys.readouterr().out
    with bp.open(path) as reader:
        assert reader.facts()["files"] == 1
        assert sorted(sample["n"] for sample in reader) == [*range(60)]
        assert reader.schema == bp.Schema(SCHEMA)
    assert sorted(older(path, old)) == [*range(60)]
    # There is nothing more to do.
    assert lake.compact(path).removed == 0
    lake.vacuum(path, older_than=NOW)
    assert sorted(read(path)) == [*range(60)]
    assert len(data_files(path)) == 1


def test_compact_keeps_the_order_of_iceberg(tmp_path):
    path = str(tmp_path / "t.iceberg")
    for n in range(4):
        write(path, range(3 * n, 3 * n + 3), mode="append")
    lake.compact(path)
    assert read(path) == [*range(12)]


def test_large_files_stay(path):
    write(path, range(1000))
    write(path, [1], mode="append")
    [large, *_] = sorted(data_files(path), key=os.path.getsize, reverse=True)
    assert lake.compact(path, file_size=os.path.getsize(large)).removed == 0
    assert large in data_files(path)


def test_compact_by_partitions(tmp_path):
    path = str(tmp_path / "t")
    for n in range(3):
        rows = pa.table({"n": [n, n + 10], "p": ["a", "b"]})
        deltalake.write_deltalake(path, rows, mode="append", partition_by=["p"])
    result = lake.compact(path, dry_run=True)
    assert (result.removed, result.added) == (6, 2)
    assert lake.compact(path).added == 2
    with bp.open(path) as reader:
        assert {(sample["n"], sample["p"]) for sample in reader} == {
            (n + 10 * (p == "b"), p) for n in range(3) for p in "ab"
        }


def test_someone_appends_while_files_are_put_together(tmp_path, monkeypatch):
    path = str(tmp_path / "t.iceberg")
    for n in range(3):
        write(path, [n], mode="append")
    before = data_files(path)

    def meanwhile(done, total):
        if done == total:
            write(path, [9], mode="overwrite")

    with pytest.raises(bp.BusyError, match="another process changed the table meanwhile"):
        lake.compact(path, progress=meanwhile)
    assert read(path) == [9]
    # What was written for nothing is gone.
    assert len(data_files(path)) == len(before) + 1


# -- catalogs -------------------------------------------------------------------------------------------


@pytest.fixture
def catalog(tmp_path, monkeypatch):
    """A catalog by its name in pyiceberg's configuration."""
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"""catalog:
  production:
    type: sql
    uri: sqlite:///{tmp_path}/production.db
    warehouse: file://{tmp_path}/warehouse
"""
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    from pyiceberg import catalog as catalogs
    from pyiceberg.utils.config import Config

    monkeypatch.setattr(catalogs, "_ENV_CONFIG", Config())
    return "production"


def test_a_table_by_its_name(catalog, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    url = f"iceberg://{catalog}/logs.events"
    write(url, [1, 2])
    write(url, [3], mode="append")
    assert read(url) == [1, 2, 3]
    assert read("logs.events", format="iceberg", catalog=catalog) == [1, 2, 3]
    with bp.open(url) as reader:
        assert reader.format == "iceberg"
        write(url, [4], mode="append")
        assert [len(reader), len(reader.refresh())] == [3, 4]
    assert main(["info", url]) == 0
    assert "4" in capsys.readouterr().out
    first = lake.history(url)[-1]
    assert main(["lake", "compact", url, "--quiet"]) == 0
    assert main(["lake", "rollback", url, "--to", str(first.id), "--yes"]) == 0
    assert read(url) == [1, 2]
    assert main(["convert", url, str(tmp_path / "a.jsonl"), "--quiet"]) == 0
    assert main(["convert", str(tmp_path / "a.jsonl"), url, "--append", "--quiet"]) == 0
    assert read(url) == [1, 2, 1, 2]
    assert lake.vacuum(url, older_than=NOW).done
    assert read(url) == [1, 2, 1, 2]
    assert [name for name in os.listdir(tmp_path) if name.endswith(".partial")] == []
    from pyiceberg.catalog import load_catalog

    assert load_catalog(catalog).load_table("logs.events").scan().to_arrow()["n"].to_pylist() == [1, 2, 1, 2]


def test_names_that_are_none(catalog):
    with pytest.raises(bp.NotFoundError, match="no such table"):
        bp.open(f"iceberg://{catalog}/logs.nothing")
    for wrong in ("iceberg://production", "iceberg://production/events", "iceberg:///logs.events"):
        with pytest.raises(bp.OptionError, match=r"iceberg://CATALOG/NAMESPACE\.TABLE"):
            bp.open(wrong)
    with pytest.raises(bp.OptionError, match="the catalog cannot be opened"):
        bp.open("iceberg://nowhere/logs.events")


@pytest.fixture
def store(tmp_path, _no_settings, monkeypatch):
    """The URL of an empty bucket to write to, the endpoint of its server, and one that gives ranges."""
    pytest.importorskip("obstore")
    from proxy import Proxy
    from servers import KEY, SECRET, s3_server

    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.setenv("BATCHPLANT_WORK", str(tmp_path / "work"))
    (tmp_path / "buckets" / "tables").mkdir(parents=True)
    with (
        s3_server(str(tmp_path / "buckets"), writable=True) as endpoint,
        Proxy(endpoint, mend=True) as proxy,
    ):
        yield "s3://tables", endpoint, proxy.endpoint


def test_a_catalog_whose_tables_lie_in_a_bucket(store, tmp_path, monkeypatch):
    url, _, endpoint = store
    monkeypatch.chdir(tmp_path)
    # The server wants to know how long an upload is.
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    given = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/all.db",
        "warehouse": f"{url}/warehouse",
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
    }
    how = {"format": "iceberg", "catalog": given}
    for n in range(3):
        write("logs.events", [n], mode="append", **how)
    assert read("logs.events", **how) == [0, 1, 2]
    assert lake.compact("logs.events", **how).added == 1
    assert lake.vacuum("logs.events", older_than=NOW, **how).files
    assert read("logs.events", **how) == [0, 1, 2]
    keys = {"s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"]}
    keys["s3.secret-access-key"] = os.environ["AWS_SECRET_ACCESS_KEY"]
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    # Only the catalog knows the keys.
    assert read("logs.events", format="iceberg", catalog={**given, **keys}) == [0, 1, 2]


def test_delta_in_a_bucket(store):
    url, how = f"{store[0]}/t.delta", {"endpoint": store[1]}
    write(url, [1], mode="append", **how)
    first = lake.history(url, **how)[0]
    write(url, [2, 3], mode="append", **how)
    lake.rollback(url, first.id, **how)
    assert read(url, **how) == [1]
    write(url, [4], mode="overwrite", **how)
    # The server cannot give deltalake what it asks for to put files together.
    assert lake.compact(url, dry_run=True, **how).removed == 0
    assert lake.vacuum(url, older_than=NOW, **how).bytes > 0
    assert read(url, **how) == [4]
    with pytest.raises(bp.DamagedError, match="are gone, vacuumed perhaps"):
        lake.rollback(url, first.id, **how)
