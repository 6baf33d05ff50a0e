"""What filters skip: by statistics and page indexes of Parquet, by partitions, by ranges."""

import contextlib
import math
import os
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import batchplant as bp
from batchplant import col
from batchplant.formats.base.tables.footer import Leaf, footer_bytes, read_struct
from batchplant.formats.base.tables.page_reader import bounds_of, chunk_bounds, meaning_of
from variants import exhaustive

pa = pytest.importorskip("pyarrow", reason="pip install 'batchplant[arrow]'")
pc = pytest.importorskip("pyarrow.compute")
pq = pytest.importorskip("pyarrow.parquet")


@pytest.fixture(autouse=True)
def _own_index(tmp_path, monkeypatch):
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "index"))


# --- Parquet --------------------------------------------------------------------------------------------

LAYOUTS = {
    "plain": {},
    "page index": {"write_page_index": True},
    "second pages": {"data_page_version": "2.0", "write_page_index": True},
    "no dictionary": {"use_dictionary": False, "compression": "none"},
    "no statistics": {"write_statistics": False},
    "checksums": {"write_page_checksum": True, "compression": "zstd", "data_page_version": "2.0"},
}


def table_of(rows, seed, ordered):
    """Columns of many types with missing values and NaN."""
    rng = np.random.default_rng(seed)

    def missing(values, share=0.2):
        return pa.array(values, mask=rng.random(rows) < share)

    n = np.arange(rows) if ordered else rng.integers(0, rows, rows)
    u = rng.integers(2**63 - 5, 2**63 + 5, rows, dtype=np.uint64)
    f = rng.choice([-1.5, -0.0, 0.0, 2.5, math.nan, math.inf], rows)
    t = [f"{'long prefix ' * 8}{int(item):05}" if item % 3 else "" for item in n]
    return pa.table(
        {
            "n": pa.array(n.astype(np.int32)), "u": u, "f": missing(f), "g": f.astype(np.float32),
            "t": missing(np.array(t, dtype=object)), "b": missing(n % 7 < 3),
            "k": pa.array([str(int(item) % 11).encode() for item in n]),
            "e": pa.array([None] * rows, pa.int64()),
            "i8": missing((n % 100).astype(np.int8), 0.5),
            "d": pa.array(n.astype(np.int32), pa.date32()),
            "when": pa.array(n.astype(np.int64) * 1_000_000, pa.timestamp("us", "UTC")),
        }
    )  # fmt: skip


LEAVES = st.one_of(
    st.tuples(st.just("n"), st.sampled_from(["==", "<", "<=", ">", ">=", "!="]), st.integers(-5, 405)),
    st.tuples(
        st.just("u"), st.sampled_from(["==", "<", ">", ">=", "!="]), st.integers(2**63 - 6, 2**63 + 6)
    ),
    st.tuples(
        st.sampled_from(["f", "g"]), st.sampled_from(["==", "<", "<=", ">", ">=", "!="]),
        st.sampled_from([-2.0, -1.5, 0.0, -0.0, 2.5, 9.0]),
    ),
    st.tuples(
        st.just("t"), st.sampled_from(["==", "<", ">=", "!="]),
        st.sampled_from(["", "long prefix", "z", "long prefix " * 8 + "00100", "long prefix " * 8 + "1"]),
    ),
    st.tuples(st.just("b"), st.sampled_from(["==", "!="]), st.booleans()),
    st.tuples(st.just("k"), st.sampled_from(["==", "<", ">"]), st.sampled_from([b"", b"1", b"10", b"x"])),
    st.tuples(st.just("i8"), st.sampled_from(["==", "<", ">", "!="]), st.integers(-3, 103)),
    st.tuples(
        st.sampled_from(["n", "i8", "f", "t", "u"]), st.just("in"), st.just(0)
    ),
    st.tuples(st.sampled_from(["n", "f", "t", "e", "b", "i8"]), st.just("null"), st.just(0)),
    st.tuples(st.just("e"), st.sampled_from(["==", "!="]), st.just(3)),
)  # fmt: skip
MEMBERS = {
    "n": [0, 17, 399, 1000], "i8": [0, 5, 99], "f": [2.5, -0.0], "t": ["", "z"], "u": [2**63, 3],
}  # fmt: skip
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.tuples(st.just("and"), inner, inner),
        st.tuples(st.just("or"), inner, inner),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=5,
)


def both(tree):
    """The same condition as one of ours and of pyarrow's."""
    if tree[0] == "not":
        ours, theirs = both(tree[1])
        return ~ours, ~theirs
    if tree[0] in ("and", "or"):
        (ours, theirs), (more, others) = both(tree[1]), both(tree[2])
        return (ours & more, theirs & others) if tree[0] == "and" else (ours | more, theirs | others)
    name, op, value = tree
    if op == "null":
        return col(name).is_null(), pc.field(name).is_null()
    if op == "in":
        # Of a missing value theirs says that it is in no list.
        there = pc.if_else(pc.field(name).is_valid(), pc.field(name).isin(_typed(name)), None)
        return col(name).is_in(MEMBERS[name]), there
    compare = {"==": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}[
        op
    ]
    scalar = pa.scalar(value, {"u": pa.uint64(), "g": pa.float32(), "n": pa.int64()}.get(name))
    return getattr(col(name), compare)(value), getattr(pc.field(name), compare)(scalar)


def _typed(name):
    kinds = {"n": pa.int32(), "i8": pa.int8(), "f": pa.float64(), "t": pa.string(), "u": pa.uint64()}
    return pa.array(MEMBERS[name] if name != "f" else [2.5, -0.0, 0.0], kinds[name])


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """One table in every layout, in order and not, in row groups and pages of few rows."""
    folder = tmp_path_factory.mktemp("tables")
    result = {}
    for ordered in (True, False):
        table = table_of(400, 7, ordered)
        for name, options in LAYOUTS.items():
            path = folder / f"{name} {ordered}.parquet"
            pq.write_table(
                table, path, row_group_size=100, max_rows_per_page=16, write_batch_size=8, **options
            )
            result[name, ordered] = bp.open(path), table
    return result


@pytest.mark.parametrize("ordered", [True, False])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=TREES)
def test_rows_are_those_of_pyarrow(tables, ordered, tree):
    ours, theirs = both(tree)
    table = tables[next(iter(LAYOUTS)), ordered][1]
    wanted = table.append_column("row", pa.array(np.arange(400))).filter(theirs)
    fields = ["n", "t", "f", "u"]
    rows, cells = wanted["row"].to_pylist(), repr(wanted.select(fields).to_pylist())
    for layout in LAYOUTS:
        result = tables[layout, ordered][0].filter(ours)
        assert result.indices.tolist() == rows, layout
        # As text, for NaN equals nothing.
        assert repr(result.to_arrow(fields).to_pylist()) == cells, layout


def test_pyarrow_skips_the_same(tmp_path):
    """Its dataset, with its own push-down, where there is no NaN."""
    import pyarrow.dataset

    path = tmp_path / "a.parquet"
    table = table_of(400, 3, True).drop_columns(["f", "g"])
    pq.write_table(table, path, row_group_size=100, max_rows_per_page=16, write_page_index=True)
    theirs = pyarrow.dataset.dataset(path).to_table(filter=(pc.field("n") > 120) & (pc.field("t") < "m"))
    ours = bp.open(path, where="n > 120 and t < 'm'")
    assert ours.read(range(len(ours)))["n"].tolist() == theirs["n"].to_pylist()


# --- how much is skipped --------------------------------------------------------------------------------


def written(path, count=100_000, **options):
    options = {"row_group_size": 20_000, "max_rows_per_page": 1000, "use_dictionary": ["pad"], **options}
    n = np.arange(count)
    names = pc.binary_join_element_wise("photo", pa.array(n).cast(pa.string()), " ")
    table = pa.table({"n": n, "x": n * 0.5, "name": names, "pad": np.zeros(count)})
    pq.write_table(table, path, write_batch_size=500, **options)
    return path


@pytest.mark.parametrize("index", [True, False])
def test_row_groups_and_pages_are_skipped(index, tmp_path):
    path = written(tmp_path / "a.parquet", write_page_index=index)
    reader = bp.open(path, where="n >= 50500 and n < 50600")
    assert reader.read([0, -1])["n"].tolist() == [50500, 50599]
    facts = reader.facts()
    assert facts["row groups skipped"] == "4 of 5"
    assert facts["bytes skipped"] > 0.75 * path.stat().st_size
    # Of each column one page is read, and the dictionary where it has one.
    taken = reader.ranges()
    whole = bp.open(path).ranges(indices=reader.indices)
    assert int(taken.size.sum()) < 0.3 * int(whole.size.sum())
    assert reader.ranges(["x"]).size.sum() < 0.3 * bp.open(path).ranges(["x"], reader.indices).size.sum()


def test_two_columns_whose_pages_differ(tmp_path):
    path = tmp_path / "a.parquet"
    n = np.arange(50_000)
    table = pa.table({"n": n, "t": [f"{item:06}" + "x" * (item % 50) for item in n]})
    pq.write_table(
        table, path, data_page_size=4096, write_batch_size=64, write_page_index=True, use_dictionary=False
    )
    reader = bp.open(path, where="n >= 20000 and t < '020100' or n == 3")
    assert reader.read(range(len(reader)))["n"].tolist() == [3, *range(20000, 20100)]
    assert reader[5]["t"] == f"{20004:06}" + "x" * (20004 % 50)


def test_nothing_is_read_where_nothing_can_match(tmp_path):
    path = written(tmp_path / "a.parquet")
    reader = bp.open(path, where="n < 0 or name > 'q'")
    assert len(reader) == 0
    assert reader.facts()["row groups skipped"] == "5 of 5"
    assert reader.read([], ["n"])["n"].tolist() == []
    assert list(reader) == []


def test_lists_and_images_beside_what_is_filtered(tmp_path):
    path = tmp_path / "a.parquet"
    n = np.arange(20_000)
    vectors = pa.FixedSizeListArray.from_arrays(pa.array(np.repeat(n, 4).astype(np.float32)), 4)
    lists = pa.array([list(range(item % 5)) for item in n])
    files = pa.array([{"bytes": b"%d" % item, "path": f"{item}.bin"} for item in n])
    table = pa.table({"n": n, "vector": vectors, "list": lists, "file": files})
    pq.write_table(table, path, max_rows_per_page=500, write_batch_size=100, write_page_index=True)
    reader = bp.open(path, where="n >= 7777 and n in (7777, 7778, 9000, 19999)")
    whole = bp.open(path)
    for row, n in enumerate((7777, 7778, 9000, 19999)):
        ours, theirs = reader[row], whole[n]
        assert ours["n"] == n
        assert ours["vector"].tolist() == theirs["vector"].tolist() == [n] * 4
        assert ours["list"].tolist() == list(range(n % 5))
        assert ours["file"] == theirs["file"] == b"%d" % n


def test_times_are_skipped_in_every_unit(tmp_path):
    seconds = np.arange(0, 4000, 10)
    columns = {
        unit: pa.array(seconds * scale, pa.timestamp(unit, zone))
        for unit, scale, zone in (
            ("s", 1, None),
            ("ms", 10**3, "UTC"),
            ("us", 10**6, None),
            ("ns", 10**9, "UTC"),
        )
    }
    columns["day"] = pa.array((seconds // 10).astype(np.int32), pa.date32())
    columns["clock"] = pa.array(seconds * 1000, pa.int64()).cast(pa.time64("us"))
    pq.write_table(pa.table(columns), tmp_path / "a.parquet", row_group_size=100)
    reader = bp.open(tmp_path / "a.parquet")
    for name in ("s", "ms", "us", "ns"):
        result = reader.filter(f"{name} >= '1970-01-01T00:50:00'")
        assert result.indices.tolist() == list(range(300, 400))
        assert result.facts()["row groups skipped"] == "3 of 4"
    result = reader.filter("day < '1970-01-11'")
    assert (result.indices.tolist(), result.facts()["row groups skipped"]) == (list(range(10)), "3 of 4")


# --- statistics that are not what they should be --------------------------------------------------------


def rewritten(path, change):
    """Change the statistics of every column of every row group in the footer."""
    whole = path.read_bytes()
    size = int.from_bytes(whole[-8:-4], "little")
    tree = read_struct(whole[-8 - size : -8])[0]
    for group in tree[4][1][1]:
        for chunk in group[1][1][1]:
            data = chunk[3][1]
            change(tree, chunk, data, data[12][1])
    path.write_bytes(whole[: -8 - size] + footer_bytes(tree))


def _swapped(tree, chunk, data, said):
    said[5], said[6] = said[6], said[5]


def _wrong_types(tree, chunk, data, said):
    said[5] = said[6] = (5, 7)


def _nonsense_counts(tree, chunk, data, said):
    said[3] = (6, 10**15)


def _unordered(tree, chunk, data, said):
    tree.pop(7, None)
    said[5], said[6] = (8, b"\xff" * 8), (8, b"\xff" * 8)


def _outside(tree, chunk, data, said):
    chunk[4], chunk[5], chunk[6], chunk[7] = (6, 10**12), (5, 50), (6, -5), (5, -7)


def _elsewhere(tree, chunk, data, said):
    # Something that is no index.
    chunk[4], chunk[5], chunk[6], chunk[7] = (6, 4), (5, 50), (6, 9), (5, 60)


def _empty_indexes(tree, chunk, data, said):
    chunk[5], chunk[7] = (5, 0), (5, 0)


@pytest.mark.parametrize(
    "change",
    [_swapped, _wrong_types, _nonsense_counts, _unordered, _outside, _elsewhere, _empty_indexes],
)
def test_statistics_that_cannot_be_true_are_not_used(change, tmp_path):
    path = written(tmp_path / "a.parquet", write_page_index=True)
    wanted = {
        text: bp.open(path, where=text).indices.tolist()
        for text in ("n >= 50500 and n < 50600", "name == 'photo 77'", "x is null or n == 3")
    }
    rewritten(path, change)
    for text, rows in wanted.items():
        assert bp.open(path, where=text).indices.tolist() == rows, text


def test_old_statistics_of_texts_are_not_used(tmp_path):
    path = written(tmp_path / "a.parquet")

    def old(tree, chunk, data, said):
        said[1], said[2] = said.pop(5), said.pop(6)

    rewritten(path, old)
    [part] = bp.open(path)._files
    chunks = zip(part.footer.groups[1].chunks, part.footer.leaves, strict=True)
    low = [
        chunk_bounds(20_000, chunk, leaf, part.footer.ordered, meaning_of(field, leaf, kind)).low
        for (chunk, leaf), field, kind in zip(
            chunks, (bp.Int(), bp.Float(), bp.Text(), bp.Float()), part.schema.types, strict=True
        )
    ]
    assert low == [20_000, 10_000.0, None, 0.0]
    assert bp.open(path, where="name >= 'photo 99999'")[0]["n"] == 99_999


@pytest.mark.parametrize(
    ("low", "high", "known"),
    [
        (b"\1" + bytes(7), b"\2" + bytes(7), (1, 2)), (b"abc", b"\2" + bytes(7), (None, 2)),
        (b"", b"", (None, None)), (b"\3" + bytes(7), b"\2" + bytes(7), (None, None)),
        (None, None, (None, None)),
    ],
)  # fmt: skip
def test_bounds_of_another_size_are_none(low, high, known):
    leaf = Leaf(("n",), 2, 8, 0, 1, "signed")
    result = bounds_of(10, low, high, 99, meaning_of(bp.Int(), leaf, pa.int64()))
    assert result[:4] == (10, None, *known)


def test_nan_is_no_bound():
    leaf = Leaf(("x",), 5, 8, 0, 1, "real")
    nan = np.float64("nan").tobytes()
    result = bounds_of(10, nan, np.float64(3).tobytes(), 0, meaning_of(bp.Float(), leaf, pa.float64()))
    assert result[:4] == (10, 0, None, None)


def test_bounds_that_were_cut_short_are_bounds(tmp_path):
    path = written(tmp_path / "a.parquet")

    def cut(tree, chunk, data, said):
        if data[1][1] == 6:
            low, high = said[6][1][:7], said[5][1][:7]
            said[6], said[5] = (8, low), (8, high[:-1] + bytes([high[-1] + 1]))
            said[7], said[8] = (2, False), (2, False)

    rewritten(path, cut)
    for text, count in {"name == 'photo 99999'": 1, "name > 'photo 99998'": 1, "name >= 'q'": 0}.items():
        assert len(bp.open(path, where=text)) == count
    assert bp.open(path, where="name >= 'q'").facts()["row groups skipped"] == "5 of 5"


def test_lies_hide_rows_and_nothing_worse(tmp_path):
    path = written(tmp_path / "a.parquet")

    def lie(tree, chunk, data, said):
        if data[1][1] == 2:
            said[5] = said[6] = (8, (7).to_bytes(8, "little"))

    rewritten(path, lie)
    assert len(bp.open(path, where="n > 99")) == 0
    assert len(bp.open(path)) == 100_000


@pytest.mark.parametrize("seed", [*range(12), *exhaustive(*range(12, 40))])
def test_damaged_page_indexes(seed, tmp_path):
    """Whatever they say, the answer is right, or fewer rows, or the damage is named."""
    path = written(tmp_path / "a.parquet", 20_000, write_page_index=True)
    metadata = pq.ParquetFile(path).metadata.row_group(0).column(0)
    whole = bytearray(path.read_bytes())
    size = int.from_bytes(whole[-8:-4], "little")
    end = len(whole) - 8 - size
    start = metadata.data_page_offset + metadata.total_compressed_size
    rng = np.random.default_rng(seed)
    for at in rng.integers(max(start, end - 3000), end, 5):
        whole[at] = rng.integers(256)
    path.write_bytes(whole)
    reader = bp.open(path)
    try:
        result = reader.filter("n >= 1500 and n < 1600")
        columns = result.read(range(len(result)))
    except bp.DamagedError:
        return
    assert set(columns["n"].tolist()) <= set(range(1500, 1600))
    names = [cell.tobytes().decode() for cell in columns["name"]]
    assert names == [f"photo {n}" for n in columns["n"].tolist()]


# --- partitions and lakes -------------------------------------------------------------------------------


def test_partitions_of_a_folder(tmp_path):
    schema = {"n": bp.Int(), "split": bp.Text(), "year": bp.Int()}
    with bp.create(tmp_path / "a", schema, format="parquet", partition_by="split,year") as out:
        for n in range(120):
            out.append({"n": n, "split": ("train", "test")[n % 2], "year": 2020 + n % 3})
    reader = bp.open(tmp_path / "a", where="split == 'test' and year in (2021, 2022)")
    assert sorted(reader.read(range(len(reader)))["n"].tolist()) == [n for n in range(120) if n % 2 and n % 3]
    assert reader.facts()["row groups skipped"] == "4 of 6"


def numbers(reader):
    return [sample["n"] for sample in reader]


def test_delta(tmp_path):
    deltalake = pytest.importorskip("deltalake", reason="pip install 'batchplant[delta]'")
    path = str(tmp_path / "t")
    for first in range(0, 4000, 1000):
        n = np.arange(first, first + 1000)
        part = pa.array([f"p{first // 2000}" if first < 3000 else None] * 1000, pa.string())
        # The log has milliseconds.
        when = pa.array(n * 1_000_123, pa.timestamp("us", "UTC"))
        table = pa.table({"n": n, "part": part, "t": [f"{item:05}" for item in n], "when": when})
        deltalake.write_deltalake(path, table, mode="append", partition_by=["part"])
    whole = bp.open(path)
    late = np.datetime_as_string(np.datetime64(1999 * 1_000_123, "us")) + "Z"
    for text, wanted, files in (
        ("n >= 1990 and part == 'p0'", range(1990, 2000), "3 of 4"),
        ("part is null and n < 3005", range(3000, 3005), "3 of 4"),
        ("part != 'p0' and t < '02500'", range(2000, 2500), "3 of 4"),
        ("not part == 'p0' and t < '02500'", range(2000, 2500), "3 of 4"),
        ("n < 3", range(3), "3 of 4"),
        (f"when >= '{late}' and n < 2000", [1999], "3 of 4"),
        ("n > 1000000000", [], "3 of 4"),
        ("n == 5 or t == '03005'", [5, 3005], "2 of 4"),
        ("n >= 0", range(4000), "0 of 4"),
    ):
        reader = bp.open(path, where=text)
        assert sorted(numbers(reader)) == list(wanted)
        assert reader.facts().get("files skipped", "0 of 4") == files
        assert sorted(numbers(pickle.loads(pickle.dumps(reader)))) == list(wanted)
        # The same of a table that is open, row group by row group.
        assert sorted(numbers(whole.filter(text))) == list(wanted)
        assert reader.schema == whole.schema
    assert whole.filter("n < 3").facts()["row groups skipped"] == "3 of 4"
    with pytest.raises(bp.FieldNameError, match="did you mean part"):
        bp.open(path, where="prat == 'p0'")
    deltalake.DeltaTable(path).delete("n >= 1995 and n < 2500")
    reader = bp.open(path, where="n >= 1990 and n < 2505")
    assert sorted(numbers(reader)) == [*range(1990, 1995), *range(2500, 2505)]


def test_files_that_are_skipped_are_not_opened(tmp_path):
    pytest.importorskip("deltalake", reason="pip install 'batchplant[delta]'")
    path = tmp_path / "t.delta"
    for first in range(0, 300, 100):
        options = {"mode": "append"} if first else {}
        with bp.create(path, {"n": bp.Int()}, **options) as out:
            for n in range(first, first + 100):
                out.append({"n": n})
    reader = bp.open(path)
    files = {sample["n"]: reader.where(number) for number, sample in enumerate(reader)}
    os.unlink(files[150])
    assert numbers(bp.open(path, where="n >= 290")) == list(range(290, 300))
    with pytest.raises(bp.DamagedError, match="not there"):
        numbers(bp.open(path, where="n >= 150"))


def test_iceberg(tmp_path):
    pytest.importorskip("pyiceberg", reason="pip install 'batchplant[iceberg]'")
    path = tmp_path / "t.iceberg"
    schema = {"n": bp.Int(), "t": bp.Text(optional=True), "x": bp.Float(), "day": bp.Time("D")}
    for first in range(0, 300, 100):
        options = {"mode": "append"} if first else {}
        with bp.create(path, schema, **options) as out:
            for n in range(first, first + 100):
                text = None if n % 10 else "a long text that is cut off " + str(n)
                out.append({"n": n, "t": text, "x": n / 2, "day": n})
    whole = bp.open(path)
    for text, wanted, files in (
        ("n >= 150 and n < 160", range(150, 160), "2 of 3"),
        ("x > 100 and t is not null", range(210, 300, 10), "2 of 3"),
        ("t == 'a long text that is cut off 150'", [150], "0 of 3"),
        ("day < '1970-01-11'", range(10), "2 of 3"),
        ("n < 0", [], "2 of 3"),
    ):
        reader = bp.open(path, where=text)
        assert sorted(numbers(reader)) == sorted(numbers(whole.filter(text))) == list(wanted)
        assert reader.facts().get("files skipped", "0 of 3") == files
        assert reader.facts()["bytes skipped"] > 0 or files == "0 of 3"


# --- over the network -----------------------------------------------------------------------------------


def test_only_what_is_needed_is_fetched(web, tmp_path):
    path = written(tmp_path / "a.parquet", 1_000_000, write_page_index=True, compression="none")
    url = web.put("a.parquet", path.read_bytes())
    reader = bp.open(url, where="n >= 500500 and n < 500600")
    assert reader.read(range(len(reader)))["x"].tolist() == [n / 2 for n in range(500500, 500600)]
    assert web.proxy.bytes_sent < 0.1 * path.stat().st_size
    with bp.open(url, where="n >= 500500 and n < 500600") as again:
        assert again[7]["name"] == "photo 500507"


def test_a_loader_fetches_only_the_pages_of_its_samples(web, tmp_path):
    path = written(tmp_path / "a.parquet", 1_000_000, write_page_index=True, compression="none")
    url = web.put("a.parquet", path.read_bytes())
    loader = bp.Loader(bp.open(url, where="n >= 300500 and n < 301500"), 100, order="random", seed=1)
    with contextlib.closing(loader):
        result = [n for batch in loader for n in np.asarray(batch["n"]).tolist()]
    assert sorted(result) == list(range(300500, 301500))
    assert web.proxy.bytes_sent < 0.1 * path.stat().st_size
