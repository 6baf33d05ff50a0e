"""Row filters: Reader.filter, open(where=), what they skip, and what they remember."""

import contextlib
import decimal
import fractions
import operator
import pickle

import numpy as np
import pytest

import batchplant as bp
from batchplant import col
from batchplant.data import filters
from batchplant.storage import index

pa = pytest.importorskip("pyarrow", reason="pip install 'batchplant[arrow]'")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def _own_index(tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "index"))


PLAIN = {"==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">=": operator.ge}
SCHEMA = {
    "n": bp.Int(),
    "label": bp.Int("int16", names=("cat", "dog", "cow")),
    "name": bp.Text(optional=True),
    "x": bp.Float(),
}


def sample(n):
    return {"n": n, "label": n % 3, "name": None if n % 5 == 0 else f"name {n % 7}", "x": n / 2}


def save(path, count=200, first=0, **options):
    with bp.create(path, SCHEMA, **options) as out:
        for n in range(first, first + count):
            out.append(sample(n))
    return path


def numbers(reader):
    return [row["n"] for row in reader]


CASES = {
    "label == 'cat' and n >= 100": lambda row: row["label"] == 0 and row["n"] >= 100,
    "name is null or x < 3": lambda row: row["name"] is None or row["x"] < 3,
    "name > 'name 4' and label in ('dog', 2)": lambda row: (row["name"] or "") > "name 4" and row["label"],
    "not name == 'name 3'": lambda row: row["name"] not in (None, "name 3"),
    "n > 1000": lambda item: False,
    "n >= 0": lambda item: True,
}


# --- every reader ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """Return a file of a format, written once."""
    folder = tmp_path_factory.mktemp("filters")
    return lambda name: folder / name if (folder / name).exists() else save(folder / name)


@pytest.mark.parametrize("text", CASES)
@pytest.mark.parametrize(
    "name", ["a.parquet", "a.arrow", "a.jsonl", "a.beton", "a.msgpack", "a.tfrecord", "a.npz"]
)
def test_formats(name, text, kept):
    path = kept(name)
    reader = bp.open(path, where=text)
    wanted = [n for n in range(200) if CASES[text](sample(n))]
    assert len(reader) == len(wanted)
    assert numbers(reader) == wanted
    if wanted:
        assert reader[-1] == bp.open(path)[wanted[-1]]
        picked = reader.read([0, -1, 0])["n"]
        assert np.asarray(picked).tolist() == [wanted[0], wanted[-1], wanted[0]]
    facts = reader.facts()
    assert (facts["filter"], facts["filtered from"]) == (text, 200)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow", "a.jsonl", "a.csv", "a.beton", "a.msgpack"])
def test_decimals_against_other_fields(name, tmp_path):
    schema = {"price": bp.Decimal(12, 2), "n": bp.Int(), "x": bp.Float()}
    with bp.create(tmp_path / name, schema) as out:
        for n in range(40):
            out.append({"price": f"{n // 2}.{n % 2}", "n": n % 7 * 3, "x": n / 10})
    data = bp.open(tmp_path / name)
    for text in ("price < n", "price >= x", "price == x", "n != price", "x <= price"):
        left, op, right = text.split()
        wanted = [
            row
            for row, item in enumerate(data)
            if PLAIN[op](fractions.Fraction(item[left]), fractions.Fraction(item[right]))
        ]
        assert [row["price"] for row in data.filter(text)] == [data[row]["price"] for row in wanted]
    assert len(data.filter(col("n") < decimal.Decimal("2.5"))) == len(data.filter("n == 0"))


def test_csv_and_data_in_memory(tmp_path):
    (tmp_path / "a.csv").write_text("a,label\n1,cat\n2,dog\n3,cat\n")
    assert [row["a"] for row in bp.open(tmp_path / "a.csv", where="label == 'cat'")] == [1, 3]
    data = {"a": np.arange(5), "label": ["x", "y", "x", "y", "x"]}
    assert [row["a"] for row in bp.open(data, where=(col("label") == "x") & (col("a") > 0))] == [2, 4]
    with pytest.raises(bp.FieldNameError, match=r"column 1 .*\(did you mean label\?"):
        bp.open(tmp_path / "a.csv", where="lable == 'cat'")
    with pytest.raises(bp.OptionError, match="column 3"):
        bp.open(tmp_path / "nothing.csv", where="a = 3")


def test_shards(tmp_path):
    for number in range(4):
        save(tmp_path / f"part-{number}.parquet", 50, 50 * number)
    reader = bp.open(tmp_path / "part-*.parquet", where="n >= 120 and n < 130 or n == 3")
    assert numbers(reader) == [3, *range(120, 130)]
    assert reader.read([5, 0])["n"].tolist() == [124, 3]
    facts = reader.facts()
    assert facts["row groups skipped"] == "2 of 4"
    assert facts["bytes skipped"] > 0
    mixed = bp.concat([bp.open(tmp_path / "part-1.parquet"), bp.open(save(tmp_path / "b.beton", 50))])
    assert numbers(mixed.filter("n < 60 and label == 'cat'")) == [51, 54, 57, *range(0, 50, 3)]


def test_views(tmp_path):
    reader = bp.open(save(tmp_path / "a.parquet", row_group_size=500))
    back = reader.subset(np.arange(199, -1, -1))
    assert numbers(back.filter("n < 4")) == [3, 2, 1, 0]
    assert numbers(reader[::2].filter("n < 9")) == [0, 2, 4, 6, 8]
    narrow = reader.select(["n", "x"]).filter("x >= 98")
    assert list(narrow.schema) == ["n", "x"]
    assert numbers(narrow) == [196, 197, 198, 199]
    with pytest.raises(bp.FieldNameError):
        reader.select(["n"]).filter("x > 3")
    twice = reader.filter("n >= 50").filter("label == 'cow'").select(["n"])
    assert numbers(twice) == list(range(50, 200, 3))
    assert numbers(twice[3:5]) == [59, 62]
    assert not len(reader.filter("n < 0").filter("n > 0"))


def test_order_and_repeats_of_a_view_stay(tmp_path):
    reader = bp.open(save(tmp_path / "a.parquet", row_group_size=500)).subset([5, 150, 5, 3, 150])
    result = reader.filter("n > 3")
    assert numbers(result) == [5, 150, 5, 150]


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_a_filtered_reader_is_pickled_with_its_samples(name, tmp_path):
    reader = bp.open(save(tmp_path / name), where="label == 'dog'")
    again = pickle.loads(pickle.dumps(reader))
    assert numbers(again) == numbers(reader)
    assert again.facts()["filter"] == "label == 'dog'"


def test_refresh_filters_again(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"n": 1}\n{"n": 5}\n')
    reader = bp.open(path, where="n > 3")
    assert numbers(reader) == [5]
    path.write_text('{"n": 1}\n{"n": 5}\n{"n": 7}\n')
    assert numbers(reader.refresh()) == [5, 7]


def test_verify_counts_only_the_samples_that_are_left(tmp_path):
    path = save(tmp_path / "a.parquet")
    report = bp.verify(path, where="n < 10", decode=True)
    assert (report.samples, report.problems) == (10, [])


def test_convert_keeps_only_the_samples_that_are_left(tmp_path):
    source = bp.open(save(tmp_path / "a.parquet"), where="label == 'cow'")
    bp.convert(source, tmp_path / "b.jsonl")
    assert numbers(bp.open(tmp_path / "b.jsonl")) == list(range(2, 200, 3))


def test_resuming_a_conversion_with_another_filter_is_refused(tmp_path):
    options = bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0))
    path = save(tmp_path / "a.jsonl", 2000)

    def stop(done, total):
        if done > 1000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bp.convert(bp.open(path, where="n < 1900"), tmp_path / "b.npz", progress=stop, options=options)
    with pytest.raises(bp.OptionError, match=r"had other options \(filter\)"):
        bp.convert(bp.open(path, where="n >= 100"), tmp_path / "b.npz", resume=True)
    done = bp.convert(bp.open(path, where="n < 1900"), tmp_path / "b.npz", resume=True)
    assert done.resumed_at > 0
    assert numbers(bp.open(tmp_path / "b.npz")) == list(range(1900))


def test_damage_is_named(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"n": np.arange(1000), "x": np.arange(1000.0)}), path, row_group_size=100)
    chunk = pq.ParquetFile(path).metadata.row_group(5).column(1)
    data = bytearray(path.read_bytes())
    start = chunk.dictionary_page_offset
    data[start : start + 20] = bytes(20)
    path.write_bytes(data)
    assert len(bp.open(path, where="n >= 100")) == 900
    with pytest.raises(bp.DamagedError, match=r"a\.parquet"):
        bp.open(path, where="x >= 100 and x != 3")
    # The row group is skipped, so that nobody meets the damage.
    assert len(bp.open(path, where="x < 100")) == 100


# --- the loader -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("order", ["sequential", "random", "quasi_random"])
@pytest.mark.parametrize("name", ["a.parquet", "a.beton"])
def test_a_loader_over_a_filtered_reader_resumes(name, order, tmp_path):
    path = save(tmp_path / name)
    wanted = list(range(1, 200, 3))

    def loader():
        return bp.Loader(bp.open(path, where="label == 'dog'"), 8, order=order, seed=3, drop_last=False)

    with contextlib.closing(loader()) as whole:
        batches = [np.asarray(batch["n"]).tolist() for batch in whole]
    assert sorted(n for batch in batches for n in batch) == wanted
    with contextlib.closing(loader()) as first:
        epoch = iter(first)
        begun = [np.asarray(next(epoch)["n"]).tolist() for _ in range(3)]
        state = first.state_dict()
    with contextlib.closing(loader()) as second:
        second.load_state_dict(state)
        rest = [np.asarray(batch["n"]).tolist() for batch in second]
    assert begun + rest == batches


# --- what is remembered ---------------------------------------------------------------------------------


@pytest.fixture
def scans(monkeypatch):
    """Counts how often samples are looked at."""
    counted = []
    scan = filters.scan

    def counting(reader, *rest):
        counted.append(len(reader))
        return scan(reader, *rest)

    monkeypatch.setattr(filters, "scan", counting)
    return counted


def test_a_scan_is_remembered(scans, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=0))
    path = save(tmp_path / "a.jsonl")
    for text in ("n < 9", "n<9", "not n >= 9", "label == 'cat'"):
        first = numbers(bp.open(path, where=text))
        assert numbers(bp.open(path, where=text)) == first
    # The text is that of the tree, however it was written.
    assert len(scans) == 3
    # Another kind for a field is another filter.
    assert numbers(bp.open(path, where="n < 9", schema={**SCHEMA, "n": bp.Float()})) == [
        float(n) for n in range(9)
    ]
    assert len(scans) == 4
    save(path, 20, overwrite=True)
    assert numbers(bp.open(path, where="n < 9")) == list(range(9))
    assert len(scans) == 5


def test_what_is_remembered_is_not_believed(scans, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=0))
    path = save(tmp_path / "a.jsonl")
    wanted = numbers(bp.open(path, where="label == 'cow'"))
    places = [path for path in (tmp_path / "index").rglob("*") if path.is_file()]
    assert places
    for place in places:
        place.write_bytes(place.read_bytes()[:-8] + b"\xff" * 8)
    assert numbers(bp.open(path, where="label == 'cow'")) == wanted
    assert len(scans) == 2


@pytest.mark.parametrize(
    "rows", [[], [0], [9], [0, 1, 2], list(range(10)), [1, 3, 5, 7], list(range(0, 10_000, 2)), [5, 9_999]]
)
def test_samples_are_packed_and_unpacked(rows):
    length = 10_000
    packed = filters.pack_rows(np.array(rows, dtype=np.int64), length)
    assert sum(array.nbytes for array in packed.values()) <= length // 8
    assert filters.unpack_rows(packed, length).tolist() == rows


@pytest.mark.parametrize(
    "arrays",
    [
        {},
        {"bits": np.zeros(3, np.uint8)},
        {"ranges": np.array([[5, 3]])},
        {"ranges": np.array([[-1, 3]])},
        {"ranges": np.array([[0, 3], [2, 9]])},
        {"ranges": np.array([[0, 10_001]])},
        {"ranges": np.array([0, 3])},
        {"ranges": np.array([[0.0, 3.0]])},
    ],
)
def test_nonsense_is_not_unpacked(arrays):
    assert filters.unpack_rows(arrays, 10_000) is None


def test_views_of_files_are_not_remembered(scans, tmp_path, monkeypatch):
    monkeypatch.setattr(index, "tuning", index.IndexTuning(min_indexed_bytes=0))
    reader = bp.open(save(tmp_path / "a.jsonl"))
    assert numbers(reader[:50].filter("label == 'cow'"))[-1] == 47
    assert numbers(reader[:20].filter("label == 'cow'"))[-1] == 17
    assert len(scans) == 2
