"""TensorFlow's SavedModel and checkpoints, read without TensorFlow."""

import itertools
import json
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import repository
from batchplant import _native
from batchplant.codecs.protobuf import block, number, varint
from batchplant.formats.savedmodel import MAGIC, masked, read_table
from batchplant.testing.cases import cells, cuts, flip, flips, memory_bounded, survive
from batchplant.testing.suite import read_in_other_process
from variants import in_one_test

GOLDEN = repository.GOLDEN / "models"
MODEL = GOLDEN / "saved_model"
CHECKPOINTS = GOLDEN / "checkpoints"
FLOAT, STRING, INT4 = 1, 7, 29


# -- tables by hand ----------------------------------------------------------------------------------------


def entries(pairs):
    result, last = b"", b""
    for key, value in pairs:
        shared = next((n for n, (a, b) in enumerate(zip(key, last, strict=False)) if a != b), len(last))
        result += varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        last = key
    return result


def stored(content, pack=None):
    """A block and what stands behind it."""
    data, kind = (content, b"\0") if pack is None else (pack(content), b"\1")
    return data + kind + masked(_native.crc32c(data + kind)).to_bytes(4, "little"), len(data)


def table(*blocks, pack=None, handles=None):
    """A table of blocks, each a list of (key, value) or the bytes of its entries."""
    restarts = (0).to_bytes(4, "little") + (1).to_bytes(4, "little")
    out, places = b"", []
    for item in blocks:
        data, size = stored((item if isinstance(item, bytes) else entries(item)) + restarts, pack)
        places.append((f"{len(places):04}".encode(), varint(len(out)) + varint(size)))
        out += data
    data, size = stored(entries(places if handles is None else handles) + restarts)
    empty, none = stored(restarts)
    footer = varint(len(out + data)) + varint(none) + varint(len(out)) + varint(size)
    return out + data + empty + footer.ljust(40, b"\0") + MAGIC


def entry(*, dtype=FLOAT, shape=(2,), shard=0, start=0, size=8, crc=0):
    dims = b"".join(block(2, number(1, item)) for item in shape)
    crc = varint(6 << 3 | 5) + crc.to_bytes(4, "little")
    where = number(3, shard) + number(4, start) + number(5, size)
    return number(1, dtype) + block(2, dims) + where + crc


HEADER = (b"", number(1, 1))


def checkpoint(folder, *pairs, header=HEADER, data=bytes(64), **how):
    (folder / "c.index").write_bytes(table([header, *pairs], **how))
    (folder / "c.data-00000-of-00001").write_bytes(data)
    return folder / "c.index"


def sound(path, **options):
    try:
        with bp.open(path, format="savedmodel", **options) as reader:
            list(reader)
            reader.facts()
        return bp.verify(path, format="savedmodel", decode=True, **options).ok
    except bp.BatchplantError:
        return False


# -- reading -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [MODEL, MODEL / "saved_model.pb", MODEL / "variables" / "variables.index"])
def test_variables_without_tensorflow(path):
    expected = np.load(GOLDEN / "saved_model_expected.npz")
    with bp.open(path) as reader:
        assert reader.format == "savedmodel"
        tensors = reader.tensors()
        assert set(tensors) == set(expected)
        for name in expected:
            assert tensors[name].dtype == expected[name].dtype
            assert np.array_equal(tensors[name], expected[name])
        assert reader.spans("data") is not None
    assert bp.verify(path).problems == []


def test_what_info_shows():
    facts = bp.open(MODEL).facts()
    assert facts["parameters"] == 16
    assert facts["tags"] == ["serve"]
    assert facts["tensorflow"] == "2.21.0"
    assert facts["signatures"] == {
        "serving_default": {"inputs": {"x": "float32 (?, 4)"}, "outputs": {"logits": "float32 (?, 3)"}}
    }
    assert facts["operators"]["MatMul"] == 1
    assert facts["functions"] == 4
    assert facts["no numbers"] == {"_CHECKPOINTABLE_OBJECT_GRAPH": "string []"}
    json.dumps(facts)


def test_every_dtype_of_a_checkpoint():
    expected = np.load(CHECKPOINTS / "types.npz")
    with bp.open(CHECKPOINTS / "types.index") as reader:
        result = {sample["name"]: sample for sample in reader}
        assert {name.replace("/", "|") for name in result} == set(expected)
        for name, value in result.items():
            wanted = expected[name.replace("/", "|")]
            if value["dtype"] in ("int4", "uint4"):
                # TensorFlow keeps one in a byte, we two.
                pairs = np.append(wanted & 15, np.uint8(0)).reshape(-1, 2)
                wanted = pairs[:, 0] | pairs[:, 1] << 4
            assert value["data"] == wanted.tobytes(), name
            assert name in ("scalar", "empty", "ragged/key:0") or name == f"all/{value['dtype']}"
        assert reader.tensors()["all/int4"].astype(int).min() < 0
        assert reader.facts()["no numbers"] == {"texts": "string [3]"}
    assert bp.verify(CHECKPOINTS / "types.index").problems == []


def test_variables_in_two_files(tmp_path):
    path = checkpoint(tmp_path, (b"a", entry()), (b"b", entry(shard=1)), header=(b"", number(1, 2)))
    for shard in range(2):
        data = np.array([shard, 5], "<f4").tobytes()
        (tmp_path / f"c.data-0000{shard}-of-00002").write_bytes(data)
    with bp.open(path) as reader:
        assert [array.tolist() for array in reader.tensors().values()] == [[0, 5], [1, 5]]
        assert reader.where(1).endswith("data-00001-of-00002")


def test_a_variable_in_slices_is_refused():
    with pytest.raises(bp.SchemaError, match=r"a variable is saved in slices .* with TensorFlow"):
        bp.open(CHECKPOINTS / "sliced.index")


def test_spans_are_where_the_values_are():
    with bp.open(MODEL) as reader:
        spans, columns = reader.spans("data"), reader.read(range(len(reader)))
        for row in range(len(reader)):
            data, start = Path(spans.files[spans.file[row]]).read_bytes(), int(spans.start[row])
            assert data[start : start + int(spans.size[row])] == columns["data"][row].tobytes()


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt", ".onnx", ".parquet", ".tar"])
def test_to_other_formats_bit_by_bit(suffix, tmp_path):
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    lacking = {
        ".safetensors": ("float8_e4m3b11fnuz", "int4", "uint4", "complex128"),
        ".npz": ("bfloat16", "int4", "uint4", "float8"),
        ".pt": ("float8_e4m3b11fnuz", "int4", "uint4"),
        ".onnx": ("float8_e4m3b11fnuz",),
    }.get(suffix, ())
    with bp.open(CHECKPOINTS / "types.index") as reader:
        chosen = reader.subset(
            [n for n, sample in enumerate(reader) if not sample["dtype"].startswith(lacking or "-")]
        )
        assert len(chosen) >= 16
        bp.convert(chosen, tmp_path / f"a{suffix}")
        assert cells(bp.open(tmp_path / f"a{suffix}")) == cells(chosen)
    with pytest.raises(bp.OptionError, match="read only"):
        bp.convert(tmp_path / f"a{suffix}", tmp_path / "b.index")


def test_threads_pickles_and_processes():
    with bp.open(CHECKPOINTS / "types.index") as reader, ThreadPoolExecutor(8) as pool:
        expected = cells(reader)
        assert all(item == expected for item in pool.map(lambda _: cells(reader), range(32)))
        assert read_in_other_process([reader]) == [expected]


def test_from_a_store():
    fsspec = pytest.importorskip("fsspec")
    fsspec.filesystem("memory").put(str(MODEL), "/saved", recursive=True)
    expected = cells(bp.open(MODEL))
    for path in (
        "memory://saved",
        "memory://saved/saved_model.pb",
        "memory://saved/variables/variables.index",
    ):
        with bp.open(path, format="savedmodel") as reader:
            assert cells(reader) == expected
        assert bp.verify(path, format="savedmodel").ok


def test_content_tells_the_format(tmp_path):
    shutil.copytree(MODEL, tmp_path / "nameless")
    assert bp.open(tmp_path / "nameless").format == "savedmodel"
    shutil.copy(CHECKPOINTS / "types.index", tmp_path / "table")
    with pytest.raises(bp.DamagedError, match="a file of the checkpoint is missing"):
        bp.open(tmp_path / "table")
    shutil.copy(CHECKPOINTS / "types.data-00000-of-00001", tmp_path / "table.data-00000-of-00001")
    assert bp.open(tmp_path / "table").format == "savedmodel"


def test_a_model_without_variables(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m")
    shutil.rmtree(tmp_path / "m" / "variables")
    with bp.open(tmp_path / "m") as reader:
        assert len(reader) == 0
        assert reader.facts()["tags"] == ["serve"]
    assert bp.verify(tmp_path / "m").ok


def test_names_that_would_be_the_same_keep_their_ends(tmp_path):
    long = b"w/.ATTRIBUTES/VARIABLE_VALUE"
    path = checkpoint(tmp_path, (b"v/.ATTRIBUTES/VARIABLE_VALUE", entry()), (b"w", entry()), (long, entry()))
    assert list(bp.open(path).tensors()) == ["v", "w", long.decode()]


# -- checksums ---------------------------------------------------------------------------------------------


def test_a_flipped_bit_is_found(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m")
    [file] = (tmp_path / "m" / "variables").glob("*.data-*")
    with bp.open(tmp_path / "m") as reader:
        spans = reader.spans("data", [2])
    flip(file, int(spans.start[0]) + 5, 3)
    [problem] = bp.verify(tmp_path / "m").problems
    assert (problem.sample, problem.path, problem.offset) == (2, str(file), int(spans.start[0]))
    assert "checksum of 'w" in problem.message
    bp.open(tmp_path / "m")[2]
    # In the text that is no sample.
    flip(file, int(spans.start[0]) + 5, 3)
    flip(file, file.stat().st_size - 1, 0)
    [problem] = bp.verify(tmp_path / "m").problems
    assert (problem.sample, "_CHECKPOINTABLE_OBJECT_GRAPH" in problem.message) == (None, True)


# -- tables ------------------------------------------------------------------------------------------------


@given(
    st.dictionaries(st.binary(min_size=1, max_size=9), st.binary(max_size=9), max_size=20), st.integers(1, 5)
)
def test_any_keys(pairs, size):
    ordered = sorted(pairs.items())
    blocks = [ordered[at : at + size] for at in range(0, len(ordered), size)]
    assert read_table(memoryview(table(*blocks))) == dict(ordered)


@in_one_test(
    ("result", "message"),
    [
        (table([(b"b", b""), (b"a", b"")]), "in no order"),
        (table([(b"a", b""), (b"a", b"")]), "in no order"),
        (table(b"\1\1\0a"), "reaches beyond its block"),
        (table(b"\0\7\0a"), "reaches beyond its block"),
        (table(b"\0\xff"), "ends inside a number"),
        (table(b"\0\3\0abc" + b"\xff\xff\3\1\0x" * 9), "reaches beyond its block"),
        (table([HEADER], handles=[(b"a", varint(2**40) + varint(9))]), "reaches beyond it"),
        (table([HEADER], handles=[(b"a", varint(0) + varint(2**63))]), "reaches beyond it"),
        (table([HEADER], pack=lambda _: b"\xff\xff\xff\xff\7" + b"x" * 9), "packed in a way"),
        (bytes(100), "no footer"),
        (b"", "no footer"),
        (bytes(40) + MAGIC, "reaches beyond it"),
    ],
)
def test_tables_that_lie(result, message, tmp_path):
    (tmp_path / "c.index").write_bytes(result)
    with memory_bounded(len(result)), pytest.raises(bp.DamagedError, match=message) as caught:
        bp.open(tmp_path / "c.index", format="savedmodel")
    assert caught.value.path == str(tmp_path / "c.index")


def test_blocks_that_are_read_again_and_again(tmp_path):
    twice = table([HEADER], handles=[(b"a", varint(0) + varint(13)), (b"b", varint(0) + varint(13))])
    (tmp_path / "c.index").write_bytes(twice)
    with pytest.raises(bp.DamagedError, match="overlap"):
        bp.open(tmp_path / "c.index", format="savedmodel")


def test_keys_that_grow_without_bound():
    # Each entry of five bytes repeats the 65,000 of the key before.
    first = b"\0" + varint(65000) + b"\0" + b"a" * 65000
    more = b"".join(varint(65000 + n) + b"\1\0z" for n in range(400))
    with pytest.raises(bp.DamagedError, match="larger than the file explains"):
        read_table(memoryview(table(first + more)))


# -- checkpoints that lie ----------------------------------------------------------------------------------


@in_one_test(
    ("how", "message"),
    [
        ({"start": 60}, "the file ends at 64"),
        ({"start": -8}, "needed here|ends at"),
        ({"start": 2**62, "size": 2**62}, "needed here|ends at"),
        ({"size": 4}, "4 bytes are not float32"),
        ({"size": -1}, "ends at|not float32"),
        ({"shape": (2**40, 2**40)}, "cannot have the shape"),
        ({"shape": (-1,)}, "shape that is not known"),
        ({"shape": (1,) * 300}, "more than 254 dimensions"),
        ({"shard": 1}, "file 1 of 1"),
        ({"shard": -1}, "file -1 of 1"),
        ({"dtype": INT4, "shape": (9,), "size": 8}, "8 bytes are not int4"),
    ],
)
def test_entries_that_lie(how, message, tmp_path):
    path = checkpoint(tmp_path, (b"w", entry(**how)))
    with memory_bounded(1000), pytest.raises(bp.DamagedError, match=message):
        bp.open(path)
    assert not bp.verify(path).ok


def test_headers_that_lie(tmp_path):
    for header, message in (
        ((b"", number(1, 2**40)), "a checkpoint of 1099511627776 files"),
        ((b"", number(1, 1) + number(2, 1)), "big-endian"),
        ((b"a", entry()), "without the header"),
        ((b"", b"\xff"), "ends inside a number"),
    ):
        with pytest.raises(bp.DamagedError, match=message):
            bp.open(checkpoint(tmp_path, header=header))
    with pytest.raises(bp.DamagedError, match="the entry of b'w' is damaged"):
        bp.open(checkpoint(tmp_path, (b"w", b"\x0a\xff")))


def test_a_graph_that_is_damaged(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m")
    (tmp_path / "m" / "saved_model.pb").write_bytes(b"")
    [problem] = bp.verify(tmp_path / "m").problems
    assert "no graph" in problem.message
    (tmp_path / "m" / "variables" / "variables.data-00000-of-00001").unlink()
    [problem] = bp.verify(tmp_path / "m").problems
    assert "missing" in problem.message


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damage_gives_errors_or_values(damage, tmp_path):
    for name in ("types.index", "types.data-00000-of-00001"):
        shutil.copy(CHECKPOINTS / name, tmp_path)
    path = tmp_path / "types.index"
    assert sound(path)

    def bounded():
        with memory_bounded(1000):
            return sound(path)

    for file in sorted(tmp_path.iterdir()):
        # All is under some checksum but the footer, which has room to spare.
        unread = {*range(file.stat().st_size - 48, file.stat().st_size)} if file == path else set()
        data = file.read_bytes()
        for what, good in survive(itertools.islice(damage(file), 400 if damage is cuts else 120), bounded):
            result = damage is cuts or not unread & {int(word) for word in what.split() if word.isdigit()}
            assert not (good and result), f"unnoticed: {what}"
        file.write_bytes(data)


def test_damage_to_the_graph(tmp_path):
    shutil.copytree(MODEL, tmp_path / "m")
    graph = tmp_path / "m" / "saved_model.pb"
    data = graph.read_bytes()
    for size in range(0, len(data), 97):
        graph.write_bytes(data[:size])
        assert not sound(tmp_path / "m"), size
    graph.write_bytes(data)
    for _ in survive(itertools.islice(flips(graph), 100), lambda: sound(tmp_path / "m")):
        pass
    graph.write_bytes(data)
    assert sound(tmp_path / "m")
