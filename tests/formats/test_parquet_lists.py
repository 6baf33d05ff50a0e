"""Lists of numbers in Parquet files, which are decoded here: what pyarrow gives, or pyarrow does it."""

import contextlib
import io
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchplant as bp
from batchplant import _native
from batchplant.formats.base.tables import page_reader, pages, parquet
from batchplant.formats.base.tables.footer import Footer
from batchplant.storage import open_source
from variants import in_one_test

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

NUMBERS = {name: getattr(pa, name)() for name in (
    "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64"
)}  # fmt: skip


def values_of(kind, count, rng, distinct):
    dtype = np.dtype(kind.to_pandas_dtype())
    if dtype.kind == "f":
        some = rng.normal(size=distinct).astype(dtype)
    else:
        some = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max, distinct, dtype, endpoint=True)
    return pa.array(rng.choice(some, count) if count else some[:0], kind)


def lists_in(values, sizes, large):
    """One more level of lists around values, of these sizes in turn."""
    ends, total = [0], 0
    for size in itertools.cycle(sizes):
        if total + size > len(values):
            break
        total += size
        ends.append(total)
    result = pa.LargeListArray if large else pa.ListArray
    return result.from_arrays(pa.array(ends, pa.int64() if large else pa.int32()), values.slice(0, total))


def written(path, column, **options):
    pq.write_table(pa.table({"a": column}), path, **options)
    return path


def decoded(path, group=0):
    """A column as it is decoded here, without the library; None where that is left to it."""
    source = open_source(str(path))
    footer = Footer(source)
    chunk = footer.groups[group].chunks[0]
    data = source.view(chunk.start, chunk.size)
    result = pages.decode_lists(data, chunk, footer.leaves[0], pq.read_schema(path).field("a").type)
    source.close()
    return result


@settings(deadline=None, max_examples=30)
@given(data=st.data())
def test_what_pyarrow_gives(data, tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "a.parquet"
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    kind = NUMBERS[data.draw(st.sampled_from(sorted(NUMBERS)))]
    column = values_of(kind, data.draw(st.integers(1, 5000)), rng, data.draw(st.sampled_from([1, 2, 9, 300])))
    for _ in range(data.draw(st.integers(1, 5))):
        sizes = data.draw(st.lists(st.sampled_from([1, 2, 3, 8, 100, 700]), min_size=1, max_size=6))
        column = lists_in(column, sizes, data.draw(st.booleans()))
    if not len(column):
        return
    written(
        path,
        column,
        compression=data.draw(st.sampled_from(["none", "zstd", "snappy", "gzip"])),
        use_dictionary=data.draw(st.booleans()),
        data_page_version=data.draw(st.sampled_from(["1.0", "2.0"])),
        data_page_size=data.draw(st.sampled_from([64, 1000, 1 << 20])),
        write_batch_size=data.draw(st.sampled_from([1, 7, 1024])),
        dictionary_pagesize_limit=data.draw(st.sampled_from([64, 1 << 20])),
        write_page_index=data.draw(st.booleans()),
        write_page_checksum=data.draw(st.booleans()),
        version=data.draw(st.sampled_from(["1.0", "2.6"])),
    )
    want = pq.read_table(path)["a"]
    result = decoded(path)
    if result is None:
        # Older files have no such number.
        assert kind == pa.uint32()
        return
    assert result.type == want.type
    assert result.combine_chunks().equals(want.combine_chunks())
    result.validate(full=True)


@in_one_test(
    "column",
    [
        pa.array([[1, 2], []]),
        pa.array([[1, 2], None]),
        pa.array([[1, None]]),
        pa.array([[], []], pa.list_(pa.int32())),
        pa.array([[[1], []]]),
        pa.array([["a", "b"]]),
        pa.array([[True]]),
        pa.array([[{"x": 1, "y": 2}]]),
        pa.array([[{"x": 1}]]),
        pa.array([[1]], pa.list_(pa.timestamp("us"))),
        pa.array([[1]], pa.list_(pa.decimal128(5))),
        pa.array([[(1, 2)]], pa.map_(pa.int32(), pa.int32())),
    ],
)
def test_all_else_is_left_to_the_library(column, tmp_path):
    assert decoded(written(tmp_path / "a.parquet", column)) is None


@pytest.mark.parametrize("options", [{"compression": "brotli"}, {"compression": "lz4"}, {
    "use_dictionary": False, "column_encoding": {"a.list.element": "DELTA_BINARY_PACKED"}
}], ids=str)  # fmt: skip
def test_so_are_other_ways_to_pack(options, tmp_path):
    assert decoded(written(tmp_path / "a.parquet", pa.array([[1, 2, 3]] * 9), **options)) is None


def test_lists_of_one_size(tmp_path):
    column = pa.FixedSizeListArray.from_arrays(pa.array(np.arange(24, dtype=np.float32)), 6)
    result = decoded(written(tmp_path / "a.parquet", column))
    assert result.type == column.type
    assert result.combine_chunks().equals(column)
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(24.0).reshape(4, 2, 3))
    result = decoded(written(tmp_path / "b.parquet", tensor))
    assert result.type == tensor.type
    assert result.combine_chunks().equals(tensor)


@pytest.fixture
def counted(monkeypatch):
    """Columns that were decoded here: how many rows each has; None of one that was left to the library."""
    seen = []

    def noted(*args):
        result = pages.decode_lists(*args)
        seen.append(None if result is None else len(result))
        return result

    monkeypatch.setattr(parquet, "decode_lists", noted)
    monkeypatch.setattr(page_reader, "decode_lists", noted)
    return seen


@pytest.mark.parametrize("compression", ["none", "zstd"])
def test_damage_anywhere_is_found_by_the_library(compression, tmp_path, counted):
    """Every byte of a column changed: never other values than those that the library gives, nor a crash."""
    rng = np.random.default_rng(0)
    values = pa.array(rng.integers(0, 40, 30).astype(np.uint8))
    buffer = io.BytesIO()
    options = {"write_page_index": True, "data_page_size": 16, "write_batch_size": 1}
    column = lists_in(lists_in(values, [3], False), [2, 1], False)
    pq.write_table(pa.table({"a": column}), buffer, compression=compression, **options)
    good = buffer.getvalue()
    chunk = pq.ParquetFile(io.BytesIO(good)).metadata.row_group(0).column(0)
    path = tmp_path / "a.parquet"
    ours = 0
    for at in range(4, 4 + chunk.total_compressed_size, 1 if compression == "none" else 3):
        bad = bytearray(good)
        bad[at] ^= 1 << rng.integers(8)
        path.write_bytes(bad)
        result = decoded(path)
        # Other levels, other rows: who asks for them sees that.
        if result is None or len(result) != len(column):
            continue
        ours += 1
        # The library refuses headers for what nobody needs, such as a statistic.
        want = column
        with contextlib.suppress(OSError, pa.ArrowException):
            want = pq.read_table(path)["a"].combine_chunks()
        assert result.combine_chunks().equals(want)
    assert ours
    path.write_bytes(good)
    with bp.open(path) as data:
        assert len(data.read(range(len(data)))["a"]) == len(data)
    assert counted[-1] == len(column)


def test_a_wrong_checksum_is_told(tmp_path, counted):
    path = written(
        tmp_path / "a.parquet", pa.array([[1, 2, 3]] * 99), write_page_checksum=True, compression="none",
        use_dictionary=False,
    )  # fmt: skip
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    with bp.open(path) as reader, pytest.raises(bp.DamagedError, match="CRC"):
        reader.read([0])
    assert counted == [None]


def test_levels_that_lie():
    """What says more than there is is refused, whatever it is."""
    empty = np.zeros(0, np.uint8)
    present = np.array([8, 1], np.uint8)  # four times 1
    for repetition in ([], [9], [3], [0, 0], [8], [8, 1], [3, 0b1111], [0x80], [0xFF] * 9):
        parquet_lists = _native.ParquetLists(1, 100)
        assert not parquet_lists.add(np.array(repetition, np.uint8), present, 1, 4), repetition
    parquet_lists = _native.ParquetLists(1, 100)
    assert parquet_lists.add(np.array([3, 0b1010], np.uint8), present, 1, 4)
    assert [offset.tolist() for offset in parquet_lists.offsets()] == [[0, 2, 4]]
    parquet_lists = _native.ParquetLists(2, 100)
    assert not parquet_lists.add(np.array([3, 0b10000101, 0], np.uint8), np.array([8, 5], np.uint8), 5, 4)
    # The second of these lists goes on in the next page.
    parquet_lists = _native.ParquetLists(2, 100)
    assert parquet_lists.add(np.array([3, 0b10011000, 0b0], np.uint8), np.array([8, 5], np.uint8), 5, 4)
    assert parquet_lists.add(np.array([8, 2], np.uint8), np.array([8, 5], np.uint8), 5, 4)
    assert [offset.tolist() for offset in parquet_lists.offsets()] == [[0, 2], [0, 2, 8]]
    # A level that lists of this depth do not have.
    parquet_lists = _native.ParquetLists(2, 100)
    assert not parquet_lists.add(np.array([3, 0b00001100, 0], np.uint8), np.array([8, 5], np.uint8), 5, 4)
    for depth, values in ((0, 1), (8, 1), (1, 1 << 40)):
        with pytest.raises(ValueError, match=r"no such depth|too many"):
            _native.ParquetLists(depth, values)
    with pytest.raises(TypeError):
        _native.ParquetLists(1, 10).add([], empty, 1, 1)


@settings(deadline=None, max_examples=200)
@given(
    width=st.integers(0, 34),
    data=st.binary(max_size=60),
    size=st.integers(0, 300),
    count=st.integers(0, 90),
    kind=st.sampled_from(["u1", "u2", "u4", "u8"]),
)
def test_numbers_of_a_dictionary(width, data, size, count, kind):
    """Any bytes: the same as bit by bit in Python, or refused as there."""
    dictionary = np.arange(size, dtype=np.uint64).astype(kind)
    out = np.zeros(count, kind)
    want = numbers_in(data, width, count)
    good = _native.parquet_look_up(np.frombuffer(data, np.uint8), width, dictionary, out)
    assert good == (want is not None and all(item < size for item in want))
    if good:
        assert out.tolist() == [int(dictionary[item]) for item in want]


def numbers_in(data, width, count):
    result, at = [], 0
    if width > 32:
        return None
    while len(result) < count:
        head = shift = 0
        while True:
            if at >= len(data) or shift > 28:
                return None
            head |= (data[at] & 127) << shift
            shift, at = shift + 7, at + 1
            if data[at - 1] < 128:
                break
        many = head >> 1
        size = many * width if head & 1 else (width + 7) // 8
        if not many or at + size > len(data):
            return None
        bits = int.from_bytes(data[at : at + size], "little")
        at += size
        if head & 1:
            here = min(8 * many, count - len(result))
            result += [bits >> (n * width) & ((1 << width) - 1) for n in range(here)]
        else:
            result += [bits] * min(many, count - len(result))
    return result


# --- rows here and there --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    """Row groups of seven arrays, each in a page of its own; and what is in them."""
    path = tmp_path_factory.mktemp("arrays") / "a.parquet"
    rng = np.random.default_rng(0)
    values = rng.integers(0, 256, (70, 64, 1024), np.uint8)
    fields = {"a": bp.Tensor("uint8", (64, 1024)), "label": bp.Int()}
    with bp.create(path, fields, compression="none", row_group_size=7 * 64 * 1024) as out:
        for n, value in enumerate(values):
            out.append({"a": value, "label": n})
    return path, values


def opened(path, cache=1 << 20):
    data = bp.open(path)
    data._cache.max_bytes = cache
    return data


def check(data, ids, values):
    result = data.read(ids)
    assert np.array_equal(result["a"], values[ids])
    assert np.array_equal(result["label"], ids)


def test_a_row_costs_its_pages(arrays, counted):
    path, values = arrays
    with opened(path, cache=2 << 20) as data:
        assert len(data._starts) > 9
        ids = np.array([0, 69, 35, 14, 35])
        before = data.ranges(["a"], ids)
        check(data, ids, values)
        # Three rows of a page at most, where a row group has seven.
        assert max(counted) <= 3
        assert int(before.size.sum()) < 4 * 3 * 64 * 1024 * 1.2
        counted.clear()
        # Soon again: then all of it.
        check(data, ids, values)
        assert max(counted) >= 6
        assert int(data.ranges(["a"], ids).size.sum()) > 4 * 6 * 64 * 1024


def test_what_fits_into_the_cache_is_decoded_once(arrays, counted):
    path, values = arrays
    with opened(path, cache=1 << 30) as data:
        for _ in range(2):
            check(data, np.array([0, 69, 35]), values)
        assert len(counted) == 3
        assert min(counted) >= 6


def test_so_is_what_a_window_goes_over(arrays, counted):
    """Many rows of few row groups at a time."""
    path, values = arrays
    with opened(path) as data:
        check(data, np.array([3, 0, 5, 1, 2]), values)
        assert len(counted) == 1
        assert counted[0] >= 6


def test_damage_is_told_as_ever(arrays, tmp_path):
    path, _ = arrays
    data = bytearray(path.read_bytes())
    result = bp.open(path).ranges(["a"], [30])
    bad = tmp_path / "bad.parquet"
    data[int(result.start[0]) + 2000 : int(result.start[0]) + 2040] = bytes(40)
    header = int(result.start[0])
    data[header : header + 30] = b"\xff" * 30
    bad.write_bytes(data)
    told = []
    for cache in (1 << 20, 1 << 30):
        with opened(bad, cache) as one, pytest.raises(bp.DamagedError) as caught:
            one.read([30, 2])
        told.append(str(caught.value))
    assert told[0] == told[1]


@pytest.mark.parametrize("cache", ["pages", False])
def test_a_random_epoch_of_more_than_the_cache(arrays, cache, monkeypatch):
    path, values = arrays
    monkeypatch.setenv("BATCHPLANT_CHUNK_CACHE", str(1 << 20))
    loader = bp.Loader(path, 4, order="random", seed=1, ids=True, cache=cache)
    seen = []
    for batch in loader:
        ids = np.asarray(batch["ids"])
        assert np.array_equal(batch["a"], values[ids])
        seen += ids.tolist()
    loader.close()
    assert sorted(seen) == list(range(70))
