"""What is remembered of keys and filters, of datasets that are folders or tables with versions."""

import importlib
import json
import os
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant import Int, Schema, Text
from batchplant.cli import main
from batchplant.data import filters
from batchplant.data import keys as data_keys
from batchplant.data.reader import Reader, ReaderTuning
from batchplant.storage import index

SCHEMA = Schema(id=Int(), name=Text())
KINDS = ("delta", "iceberg", "zarr", "n5", "lmdb", "parquet")
NEEDS = {"delta": "deltalake", "lance": "lance", "iceberg": "pyiceberg", "parquet": "pyarrow"}


@pytest.fixture(autouse=True)
def scans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Every look at all samples; everything is worth remembering, in a cache of this test's own."""
    result: list[str] = []
    keys, scan = data_keys.scan_keys, filters.scan
    monkeypatch.setattr(data_keys, "scan_keys", lambda *given: (result.append("keys"), keys(*given))[1])
    monkeypatch.setattr(filters, "scan", lambda *given: (result.append("filter"), scan(*given))[1])
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=0, min_remote_bytes=0))
    monkeypatch.setattr(Reader, "tuning", ReaderTuning(min_indexed_bytes=0))
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "cache"))
    return result


def rows(first: int, count: int = 50, name: str = "n") -> list[dict]:
    return [{"id": 3 * n, "name": f"{name}{n:03}"} for n in range(first, first + count)]


def save(path: Path | str, samples: list[dict], **options) -> str:
    with bp.create(path, SCHEMA, **options) as out:
        for sample in samples:
            out.append(sample)
    return str(path)


def make(kind: str, folder: Path, samples: list[dict], **options) -> str:
    """A dataset of several files; ``name`` of the last sample lies in the last of them."""
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    if kind == "parquet":
        half = len(samples) // 2
        for number, some in enumerate((samples[:half], samples[half:])):
            (folder / f"d/part={number}").mkdir(parents=True, exist_ok=True)
            save(folder / f"d/part={number}/a.parquet", some, overwrite=True)
        return str(folder / "d")
    chunks = {"chunk_samples": 8} if kind in ("zarr", "n5") else {}
    return save(folder / f"d.{kind}", samples, format=kind, **chunks, **options)


def look(path: str, key: str, **options) -> tuple[int, list[int]]:
    """Where a key is, and which samples a filter finds."""
    with bp.open(path, **options) as reader:
        result = reader.filter(f"name >= '{key}'")
        return reader.keys("name").index(key), [row["id"] // 3 for row in result]


ONCE = ["filter", "keys"]


@pytest.mark.parametrize("kind", KINDS)
def test_is_looked_for_once(kind: str, tmp_path: Path, scans: list[str]) -> None:
    path = make(kind, tmp_path, rows(0))
    before = sorted(tmp_path.rglob("*"))
    for _ in range(3):
        assert look(path, "n047") == (47, [47, 48, 49])
    assert scans == ONCE
    # Nothing is written into it, or beside it.
    assert sorted(path for path in tmp_path.rglob("*") if "cache" not in path.parts) == before


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "parquet"])
def test_what_was_appended_is_found(kind: str, tmp_path: Path, scans: list[str]) -> None:
    path = make(kind, tmp_path, rows(0))
    with bp.open(path) as older:
        assert look(path, "n049") == (49, [49])
        save(path, rows(50, 3), format=kind, mode="append")
        assert look(path, "n049") == (49, [49, 50, 51, 52])
        assert look(path, "n052") == (52, [52])
        # Whoever opened it before sees what it was; what that one finds is nobody else's.
        assert [row["id"] // 3 for row in older.filter("name >= 'n048'")] == [48, 49]
        assert look(path, "n048") == (48, [48, 49, 50, 51, 52])


@pytest.mark.parametrize("kind", KINDS)
def test_another_in_its_place(kind: str, tmp_path: Path, scans: list[str]) -> None:
    """As many samples, and just as long."""
    path = make(kind, tmp_path, rows(0))
    assert look(path, "n049") == (49, [49])
    make(kind, tmp_path, [*rows(0, 49), {"id": 0, "name": "n999"}], overwrite=True)
    assert look(path, "n999") == (49, [0])
    with bp.open(path) as reader:
        assert "n049" not in reader.keys("name")
    assert scans[:4] == ONCE * 2


@pytest.mark.parametrize("kind", ["delta", "iceberg", "lance"])
def test_versions_have_their_own(kind: str, tmp_path: Path, scans: list[str]) -> None:
    path = make(kind, tmp_path, rows(0))
    option = "snapshot" if kind == "iceberg" else "version"
    with bp.open(path) as reader:
        first = {option: int(reader.facts()[option])}
    save(path, [{"id": 3 * n, "name": f"m{n:03}"} for n in range(50)], format=kind, mode="overwrite")
    for _ in range(2):
        assert look(path, "n049", **first) == (49, [49])
        assert look(path, "m049")[0] == 49
        # Files that a filter left out are left out of what is remembered, too.
        with bp.open(path, where="name >= 'm048'") as reader:
            assert [sample["id"] // 3 for sample in reader] == [48, 49]
            assert reader.keys("name").index("m049") == 1
    kept = list((tmp_path / "cache").rglob("*.bpindex"))
    save(path, rows(0), format=kind, mode="append")
    assert look(path, "n049")[0] == 99
    # The entry of the latest version is that of the new one; versions do not pile up.
    assert len(list((tmp_path / "cache").rglob("*.bpindex"))) == len(kept) + 1


def test_a_file_of_a_table_that_somebody_replaced(tmp_path: Path, scans: list[str]) -> None:
    path = make("delta", tmp_path, rows(0))
    assert look(path, "n049") == (49, [49])
    [file] = Path(path).glob("*.parquet")
    data = file.read_bytes()
    file.unlink()
    file.write_bytes(data)
    assert look(path, "n049") == (49, [49])
    assert scans == ONCE * 2


@pytest.mark.parametrize("kind", ["zarr", "n5"])
def test_a_chunk_that_was_rewritten_in_place(kind: str, tmp_path: Path, scans: list[str]) -> None:
    """Who has the chunk in its cache does not tell others what was in it."""
    path = str(tmp_path / f"d.{kind}")
    with bp.create(path, Schema(id=Int()), chunk_samples=8) as out:
        for n in range(50):
            out.append({"id": n})

    def find(reader: bp.Reader) -> list[int]:
        return [row["id"] for row in reader.filter("id > 45")]

    with bp.open(path) as older:
        assert (find(older), older[0]["id"]) == ([46, 47, 48, 49], 0)
        importlib.import_module(f"batchplant.formats.{kind}").write_range(
            path, 0, {"id": np.arange(100, 108)}
        )
        # Of what is in its cache.
        assert older[0]["id"] == 0
        find(older)
    with bp.open(path) as reader:
        assert find(reader) == [*range(100, 108), 46, 47, 48, 49]
    assert scans == ["filter", "filter"]


def test_metadata_that_was_rewritten_while_it_was_open(tmp_path: Path) -> None:
    """What one finds who knows the older metadata is nothing for those who know the newer."""
    path = tmp_path / "d.zarr"
    with bp.create(path, Schema(id=Int()), chunk_samples=8) as out:
        for n in range(50):
            out.append({"id": n})
    (path / "id/c/0").unlink()
    with bp.open(path, missing="fill") as older:
        for item in path.rglob("zarr.json"):
            item.write_text(item.read_text().replace('"fill_value": 0', '"fill_value": 77'))
        assert len(older.filter("id > 45")) == 4
    with bp.open(path, missing="fill") as reader:
        assert len(reader.filter("id > 45")) == 12


def test_fields_of_a_store_go_by_their_own_files(tmp_path: Path, scans: list[str]) -> None:
    path = make("zarr", tmp_path, rows(0))
    assert look(path, "n049") == (49, [49])
    for item in (Path(path) / "id").rglob("*"):
        os.utime(item)
    assert look(path, "n049") == (49, [49])
    assert scans == ONCE
    for value in (Path(path) / "name").rglob("*"):
        os.utime(value)
    assert look(path, "n049") == (49, [49])
    assert scans == ONCE * 2


def test_a_folder_that_leads_elsewhere_is_looked_at_each_time(tmp_path: Path, scans: list[str]) -> None:
    path = make("zarr", tmp_path, rows(0))
    inside = Path(path) / "name" / "values" / "c"
    inside.rename(tmp_path / "elsewhere")
    inside.symlink_to(tmp_path / "elsewhere")
    for _ in range(2):
        assert look(path, "n049") == (49, [49])
    assert scans == ONCE * 2


def test_a_file_that_was_replaced_while_it_was_open(tmp_path: Path, scans: list[str]) -> None:
    path = save(tmp_path / "a.jsonl", rows(0))
    with bp.open(path) as older:
        save(path, rows(100), overwrite=True)
        assert len(older.filter("id < 9")) == 3
        assert older.keys("id").index(9) == 3
    with bp.open(path) as reader:
        assert len(reader.filter("id < 9")) == 0
        assert reader.keys("id").index(303) == 1


def test_small_ones_are_not_remembered(
    tmp_path: Path, scans: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "tuning", index.IndexTuning())
    path = make("zarr", tmp_path, rows(0))
    for _ in range(2):
        assert look(path, "n047")[0] == 47
    assert scans == ONCE * 2
    assert not (tmp_path / "cache").exists()


def test_damage_is_made_good(tmp_path: Path, scans: list[str]) -> None:
    path = make("zarr", tmp_path, rows(0))
    look(path, "n047")
    for kept in (tmp_path / "cache").rglob("*.bpindex"):
        kept.write_bytes(kept.read_bytes()[:-9])
    assert look(path, "n047") == (47, [47, 48, 49])
    assert scans == ONCE * 2


@pytest.mark.parametrize("kind", ["zarr", "parquet", "delta"])
def test_in_a_bucket(kind: str, bucket, tmp_path: Path, scans: list[str]) -> None:
    def put() -> None:
        for path in Path(local).rglob("*"):
            if path.is_file():
                bucket.put(f"{kind}/{path.relative_to(local)}", path.read_bytes())

    local = make(kind, tmp_path, rows(0))
    put()
    url = f"{bucket.url}/{kind}"
    for _ in range(2):
        assert look(url, "n049", endpoint=bucket.endpoint) == (49, [49])
    assert scans == ONCE
    if kind == "delta":
        save(local, rows(50, 1), mode="append", format="delta")
    else:
        make(kind, tmp_path, [*rows(0, 49), {"id": 150, "name": "n999"}], overwrite=True)
    put()
    last = ("n050", (50, [50])) if kind == "delta" else ("n999", (49, [50]))
    assert look(url, last[0], endpoint=bucket.endpoint) == last[1]
    assert scans == ONCE * 2


@pytest.mark.parametrize("kind", ["delta", "lmdb"])
def test_the_command_tells_and_removes_it(kind: str, tmp_path: Path, scans: list[str], capsys) -> None:
    path = make(kind, tmp_path, rows(0))
    look(path, "n047")

    def told(*options: str) -> dict:
        assert main(["index", path, *options, "--json"]) == 0
        [row] = json.loads(capsys.readouterr().out)
        return row

    row = told("--where")
    kept = list((tmp_path / "cache").rglob("*.d/*.bpindex"))
    assert row["remembered"] == sum(item.stat().st_size for item in kept)
    assert len(kept) == 2
    assert "removed" in told("--remove")["state"]
    assert not list((tmp_path / "cache").rglob("*.d/*.bpindex"))
    assert "remembered" not in told("--where")
    assert look(path, "n047") == (47, [47, 48, 49])
    assert scans == ONCE * 2
