"""Samples by key: keys of formats, columns of keys, what is remembered, what a miss says."""

import pickle
import uuid
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant import Int, Schema, Text
from batchplant.data import keys as data_keys
from batchplant.data.keys import KeyTable, hash_cells, same_cells
from batchplant.schema.columns import Ragged, column_runs
from batchplant.storage import index

PIXELS = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)


def write(path: Path, schema: dict, rows: list[dict], **options) -> str:
    with bp.create(path, Schema(schema), **options) as out:
        for row in rows:
            out.append(row)
    return str(path)


@pytest.fixture
def people(tmp_path: Path) -> str:
    rows = [{"id": 3 * n, "name": f"n{n:03}", "value": n} for n in range(50)]
    return write(tmp_path / "people.parquet", {"id": Int(), "name": Text(), "value": Int()}, rows)


def test_a_column_of_numbers(people: str) -> None:
    with bp.open(people) as reader:
        keys = reader.keys("id")
        assert reader.by_key(21, field="id") == {"id": 21, "name": "n007", "value": 7}
        assert (21 in keys, 22 in keys, "21" in keys, None in keys) == (True, False, False, False)
        assert len(keys) == 50
        assert list(keys)[:3] == [0, 3, 6]
        assert keys.indices([6, 0, 147, 6]).tolist() == [2, 0, 49, 2]
        assert keys.indices(np.array([3, 6], np.int32)).tolist() == [1, 2]
        assert keys.indices([]).tolist() == []


def test_a_column_of_text(people: str) -> None:
    with bp.open(people) as reader:
        assert reader.by_key("n004", field="name")["value"] == 4
        assert reader.keys("name").index(b"n004") == 4
        assert reader.keys("name") is reader.keys("name")


def test_formats_without_keys_guess_no_field(people: str) -> None:
    with bp.open(people) as reader, pytest.raises(bp.OptionError, match="no keys of its own; name the field"):
        reader.by_key(3)
    with bp.open(people) as reader, pytest.raises(bp.FieldNameError, match="ids"):
        reader.by_key(3, field="ids")


def test_kinds_that_tell_nothing_apart(tmp_path: Path) -> None:
    reader = bp.open({"x": np.array([0.5, 1.5]), "b": np.array([True, False]), "v": np.zeros((2, 3))})
    for field in reader.schema:
        with pytest.raises(bp.OptionError, match="keys are whole numbers, text"):
            reader.keys(field)


def test_a_miss_is_named_with_keys_like_it(people: str) -> None:
    with bp.open(people) as reader:
        for key, meant in [
            ("N004", "n004"),
            ("n4", "n004"),
            ("n0004", "n004"),
            (" n001", "n001"),
        ]:
            with pytest.raises(
                bp.SampleKeyError, match=rf"no sample has the key '{key}' \(did you mean {meant}"
            ):
                reader.by_key(key, field="name")
        with pytest.raises(KeyError, match="there are 50: 0, 3, 6, 9, 12, …") as failure:
            reader.by_key(1, field="id")
        assert (failure.value.path, failure.value.field) == (people, "id")
        with pytest.raises(bp.SampleKeyError, match=r"'x'.* nor 1 others"):
            reader.keys("name").indices(["n001", "x", "y"])


def test_a_miss_among_many_keys_finds_another_form() -> None:
    # The key is not among those that are compared with all others.
    number = data_keys.MAX_SEARCHED_KEYS + 437
    reader = bp.open({"name": [f"image-{n}" for n in range(number + 1)]})
    with pytest.raises(bp.SampleKeyError, match=f"did you mean image-{number}"):
        reader.by_key(f"IMAGE-{number}", field="name")


def test_what_no_key_can_be_is_a_miss(people: str) -> None:
    with bp.open(people) as reader:
        for key, field in [("x", "id"), (2**80, "id"), (3, "name"), (None, "name")]:
            assert key not in reader.keys(field)
            with pytest.raises(bp.SampleKeyError, match="no sample has the key"):
                reader.by_key(key, field=field)


def test_a_key_that_several_have() -> None:
    reader = bp.open({"name": ["a", "b", "a", "c", "a"]})
    keys = reader.keys("name")
    assert keys.index("b") == 1
    assert "a" in keys
    with pytest.raises(bp.SampleKeyError, match="samples 0 and 2 and 1 more have the key 'a'"):
        keys.index("a")


def test_missing_values_are_no_keys() -> None:
    reader = bp.open({"id": [5, None, 7, None], "name": ["a", None, "", "b"]})
    assert (len(reader.keys("id")), list(reader.keys("id"))) == (2, [5, 7])
    assert reader.keys("id").index(7) == 2
    assert reader.keys("name").index("") == 2
    assert None not in reader.keys("name")


def test_equal_hashes_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_keys, "_hash_short", lambda data, starts, sizes: np.zeros(len(sizes), np.uint64))
    # More pairs of keys than are compared at once.
    count = data_keys.BATCH_ROWS // 2
    reader = bp.open({"name": [f"n{n}" for n in range(count)]})
    assert reader.keys("name").indices(["n9", "n0", "n5"]).tolist() == [9, 0, 5]
    assert f"n{count}" not in reader.keys("name")


def test_hashes_are_those_of_the_bytes_alone() -> None:
    cells = [b"", b"a", b"a\0", b"12345678", b"123456789", b"x" * 300, b"y" * 256]
    whole = hash_cells(*column_runs(Ragged.from_cells(cells)))
    alone = [int(hash_cells(*column_runs(Ragged.from_cells([cell])))[0]) for cell in cells]
    assert whole.tolist() == alone
    assert len(set(alone)) == len(cells)
    # They are remembered in files.
    assert alone[1] == 7860680498875604842


def test_cells_are_compared_byte_by_byte() -> None:
    one = Ragged.from_cells([b"ab", b"", None, b"x", b"yy", b""])
    other = Ragged.from_cells([b"ab", b"", None, b"z", b"y", None])
    assert same_cells(one, other).tolist() == [True, True, True, False, False, False]


def test_tables_of_parts_and_of_some_samples() -> None:
    first, second = (
        KeyTable.of(np.array([9, 4], np.uint64), np.arange(2)),
        KeyTable.of(np.array([7], np.uint64), np.arange(1)),
    )
    joined = KeyTable.joined([first, second], [0, 2])
    assert (joined.hashes.tolist(), joined.rows.tolist()) == ([4, 7, 9], [1, 2, 0])
    some = joined.take(np.array([2, 0, 2]), 3)
    assert (some.hashes.tolist(), some.rows.tolist()) == ([7, 7, 9], [0, 2, 1])


def test_views_and_shards(people: str, tmp_path: Path) -> None:
    rows = [{"id": 1000 + n, "name": f"m{n}", "value": n} for n in range(5)]
    more = write(tmp_path / "more.parquet", {"id": Int(), "name": Text(), "value": Int()}, rows)
    both = bp.open([people, more])
    assert both.keys("name").indices(["m4", "n000"]).tolist() == [54, 0]
    assert both.by_key(1003, field="id")["value"] == 3
    part = both.subset([52, 3, 7])
    assert part.keys("name").index("m2") == 0
    assert "n001" not in part.keys("name")
    assert len(part.keys("name")) == 3
    fields = both.select(["id"])
    assert fields.by_key(9, field="id") == {"id": 9}


def test_a_reader_and_its_keys_travel(people: str) -> None:
    with bp.open(people) as reader:
        keys = pickle.loads(pickle.dumps(reader.keys("name")))
        assert keys.index("n003") == 3


def test_lmdb(tmp_path: Path) -> None:
    path = write(tmp_path / "a.lmdb", {"x": Int()}, [{"x": n} for n in range(30)])
    with bp.open(path) as reader:
        keys = reader.keys()
        assert reader.by_key("0000000007") == {"x": 7}
        assert reader.keys().indices(["0000000029", "0000000000"]).tolist() == [29, 0]
        assert list(reader.keys())[:2] == ["0000000000", "0000000001"]
        assert "0000000030" not in keys
        # The note of the writer is no sample.
        assert "__batchplant__" not in keys
        with pytest.raises(bp.SampleKeyError, match="did you mean 0000000007"):
            reader.by_key("7")
        assert reader.subset([5, 3]).keys().index("0000000003") == 1


@pytest.mark.parametrize("ordered", [True, False])
def test_lmdb_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ordered: bool) -> None:
    lmdb = pytest.importorskip("lmdb")
    names = [
        b"",
        b"\0",
        b"a",
        b"a\0",
        b"a\0b",
        b"ab",
        b"b",
        b"\xff\xfe",
        *(b"k%04d" % n for n in range(500)),
    ]
    with lmdb.open(str(tmp_path / "e"), map_size=1 << 24) as env, env.begin(write=True) as writing:
        for name in names[1:]:
            writing.put(name, b"value of " + name)
    with bp.open(str(tmp_path / "e"), codec="bytes") as reader:
        assert reader._facts["ordered"] is True
        reader._facts["ordered"] = ordered
        keys = reader.keys()
        for name in names[1:]:
            assert reader.keys().index(name) == sorted(names[1:]).index(name)
        assert reader.by_key(b"a\0b")["value"] == b"value of a\0b"
        assert reader.keys().indices(["k0007", "a"]).tolist() == [
            sorted(names[1:]).index(n) for n in (b"k0007", b"a")
        ]
        for name in (b"", b"a\0\0", b"k2000", b"\xff\xff\xff", b"\x01"):
            assert name not in keys
        assert list(reader.keys()) == sorted(names[1:])


def test_lmdb_with_keys_in_another_order_is_searched_by_hashes(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    path = str(tmp_path / "e")
    with lmdb.open(path, map_size=1 << 20, max_dbs=1) as env, env.begin(write=True) as writing:
        db = env.open_db(b"d", txn=writing, reverse_key=True)
        for name in (b"ab", b"ba", b"ca", b"ac"):
            writing.put(name, name, db=db)
    with bp.open(str(tmp_path / "e"), codec="bytes", db="d") as reader:
        assert reader._facts["ordered"] is False
        assert [reader.by_key(name)["value"] for name in (b"ab", b"ba", b"ca", b"ac")] == [
            b"ab",
            b"ba",
            b"ca",
            b"ac",
        ]


def test_webdataset(tmp_path: Path) -> None:
    rows = [{"__key__": f"sub/img{n}", "cls": n} for n in range(4)]
    path = write(tmp_path / "a-000.tar", {"__key__": Text(), "cls": Int()}, rows)
    other = write(tmp_path / "b.tar", {"cls": Int()}, [{"cls": n} for n in range(4)])
    with bp.open(path) as reader, bp.open(other) as numbered:
        assert reader.by_key("sub/img3") == {"__key__": "sub/img3", "cls": 3}
        assert numbered.by_key("00000002") == {"cls": 2}
        with pytest.raises(bp.SampleKeyError, match="did you mean sub/img2"):
            reader.by_key("sub/img02")
        joined = bp.concat([reader.select(["cls"]), numbered])
        assert joined.keys().indices(["00000001", "sub/img1"]).tolist() == [5, 1]


def test_folders(tmp_path: Path) -> None:
    rows = [{"image": PIXELS + n, "label": n % 2} for n in range(4)]
    write(
        tmp_path / "d",
        {"image": bp.Image("png"), "label": Int(names=("cat", "dog"))},
        rows,
        format="imagefolder",
    )
    with bp.open(tmp_path / "d") as reader:
        assert list(reader.keys()) == [
            "cat/00000000.png", "dog/00000001.png", "cat/00000002.png", "dog/00000003.png",
        ]  # fmt: skip
        keys = reader.keys()
        assert reader.by_key("dog/00000001.png")["label"] == 1
        assert reader.keys().indices(["cat/00000002", "dog/00000003.png"]).tolist() == [2, 3]
        assert "cat/00000001" not in keys
        with pytest.raises(bp.SampleKeyError, match="did you mean cat/00000002"):
            reader.by_key("cat/2")
        assert reader.subset([3, 2]).keys().index("cat/00000002") == 1


def test_a_name_without_suffix_that_two_files_have(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("a.png", "a.bmp", "b.png", "a"):
        if "." in name:
            Image.fromarray(PIXELS).save(tmp_path / name)
    with bp.open(tmp_path, format="imagefolder") as reader:
        assert reader.keys().index("b") == 2
        assert reader.keys().index("a.png") == 1
        with pytest.raises(bp.SampleKeyError, match="samples 0 and 1 have the key 'a'"):
            reader.by_key("a")


def test_models(tmp_path: Path) -> None:
    from batchplant.data.tensors import TENSORS, from_array

    with bp.create(tmp_path / "m.safetensors", TENSORS) as out:
        for name in ("layer.weight", "layer.bias"):
            out.append(from_array(name, np.ones(3, np.float32)))
    with bp.open(tmp_path / "m.safetensors") as reader:
        assert reader.by_key("layer.bias")["name"] == "layer.bias"
        assert set(reader.keys()) == {"layer.weight", "layer.bias"}
        with pytest.raises(bp.SampleKeyError, match=r"did you mean layer\.bias"):
            reader.by_key("layer.biass")


def test_recordio_has_the_keys_of_its_list(tmp_path: Path) -> None:
    path = write(tmp_path / "a.rec", {"x": Int()}, [{"x": n} for n in range(5)])
    with bp.open(path, keys=True) as reader:
        assert reader.by_key(3)["x"] == 3
    with bp.open(path) as reader, pytest.raises(bp.OptionError, match="no keys of its own"):
        reader.by_key(3)


def test_dates_and_uuids_are_keys() -> None:
    day = np.array(["2024-05-01", "2024-05-02"], "datetime64[D]")
    names = [uuid.UUID(int=n) for n in (7, 9)]
    reader = bp.open({"day": day, "u": names, "n": [0, 1]}, schema={"u": bp.Uuid()})
    assert reader.by_key(np.datetime64("2024-05-02"), field="day")["n"] == 1
    assert reader.by_key(names[1], field="u")["n"] == 1


# -- what is remembered --------------------------------------------------------------------------------


@pytest.fixture
def scans(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """The fields whose keys were read; everything is worth remembering, in a cache of this test's own."""
    result: list[str] = []
    real = data_keys.scan_keys
    monkeypatch.setattr(
        data_keys,
        "scan_keys",
        lambda reader, field, short: (result.append(field), real(reader, field, short))[1],
    )
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=0))
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "cache"))
    return result


def test_keys_are_read_once(people: str, scans: list[str], tmp_path: Path) -> None:
    for _ in range(2):
        with bp.open(people) as reader:
            assert reader.keys("name").index("n009") == 9
    assert scans == ["name"]
    with bp.open(people) as reader:
        assert reader.keys("id").index(9) == 3
    assert scans == ["name", "id"]
    # Nothing is written beside the file.
    assert sorted(path.name for path in Path(people).parent.iterdir()) == ["cache", "people.parquet"]
    index.remove(people)
    with bp.open(people) as reader:
        assert reader.keys("id").index(9) == 3
    assert scans == ["name", "id", "id"]


def test_keys_of_shards_are_remembered_one_by_one(people: str, scans: list[str], tmp_path: Path) -> None:
    more = write(
        tmp_path / "more.parquet",
        {"id": Int(), "name": Text(), "value": Int()},
        [{"id": 1, "name": "q", "value": 2}],
    )
    with bp.open(people) as reader:
        reader.keys("name").index("n000")
    both = bp.open([people, more])
    assert both.keys("name").index("q") == 50
    assert scans == ["name", "name"]


def test_a_file_that_changed_is_read_again(people: str, scans: list[str]) -> None:
    with bp.open(people) as reader:
        assert "n009" in reader.keys("name")
    write(
        Path(people),
        {"id": Int(), "name": Text(), "value": Int()},
        [{"id": 1, "name": "q", "value": 2}],
        overwrite=True,
    )
    with bp.open(people) as reader:
        assert ("n009" in reader.keys("name"), reader.keys("name").index("q")) == (False, 0)
    assert scans == ["name", "name"]


def test_keys_of_windows_are_not_those_of_the_file(people: str, scans: list[str]) -> None:
    """A reader of another one has its path, too."""
    with bp.open(people) as reader:
        for first in (10, 20):
            windows = bp.Windows(reader.subset(range(first, first + 9)), 1, group="name")
            assert windows.keys("name").index(f"n{first + 3:03}") == 3
            assert "n000" not in windows.keys("name")
    assert scans == ["name", "name"]


def test_what_is_remembered_is_not_trusted(people: str, scans: list[str], tmp_path: Path) -> None:
    with bp.open(people) as reader:
        reader.keys("name").index("n001")
    [kept] = (tmp_path / "cache").rglob("*.bpindex")
    damaged = bytearray(kept.read_bytes())
    damaged[-20] ^= 1
    kept.write_bytes(damaged)
    with bp.open(people) as reader:
        assert reader.keys("name").index("n001") == 1
    assert scans == ["name", "name"]


def test_other_options_are_another_index(tmp_path: Path, scans: list[str]) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,a\n2,b,c\n3,d\n")
    with bp.open(tmp_path / "a.csv", bad_rows="skip") as reader:
        assert reader.keys("id").index(3) == 1
    (tmp_path / "b.csv").write_text("1;a\n2;b\n")
    with bp.open(tmp_path / "b.csv", delimiter=";", header=False) as reader:
        first = next(iter(reader.schema))
        assert reader.keys(first).index(1) == 0
    with bp.open(tmp_path / "b.csv", delimiter=";") as reader:
        assert len(reader) == 1
        assert reader.keys(next(iter(reader.schema))).index(2) == 0


def test_index_memory_remembers_nothing(tmp_path: Path, scans: list[str]) -> None:
    (tmp_path / "a.csv").write_text("id,name\n1,a\n3,d\n")
    for _ in range(2):
        with bp.open(tmp_path / "a.csv", index="memory") as reader:
            assert reader.keys("id").index(3) == 1
    assert scans == ["id", "id"]
    assert not (tmp_path / "cache").exists()


def test_by_url(
    bucket, people: str, scans: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=0, min_remote_bytes=0))
    url = bucket.put("people.parquet", Path(people).read_bytes())
    for _ in range(2):
        with bp.open(url, endpoint=bucket.endpoint) as reader:
            assert reader.by_key("n011", field="name")["value"] == 11
            with pytest.raises(bp.SampleKeyError, match="did you mean n011"):
                reader.by_key("n11", field="name")
    assert scans == ["name"]
    tar = write(
        tmp_path / "a.tar",
        {"__key__": Text(), "cls": Int()},
        [{"__key__": f"k{n}", "cls": n} for n in range(9)],
    )
    with bp.open(bucket.put("a.tar", Path(tar).read_bytes()), endpoint=bucket.endpoint) as reader:
        assert reader.by_key("k7")["cls"] == 7
