"""Arrow IPC, Feather and the folders of Hugging Face's datasets: the suite, other writers, damage."""

import json
import shutil
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats.base import ipc
from batchplant.schema.columns import Columns, Ragged
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, check_samples, cuts, equal, flips, jpeg, survive
from repository import GOLDEN
from variants import exhaustive, in_one_test

pa = pytest.importorskip("pyarrow")


class TestSuite(FormatSuite):
    format = "arrow"
    suffix = ".arrow"
    golden = GOLDEN


class TestCompressedStream(FormatSuite):
    wraps = True
    format = "arrow"
    suffix = ".arrows"
    options: ClassVar = {"compression": "zstd"}
    in_place = False

    def test_an_interrupted_conversion_resumes(self) -> None:
        pytest.skip("the same as of files")


class Streams(FormatSuite):
    """Only its helpers are used here."""

    format = "arrow"
    suffix = ".arrows"


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damaged_streams_used_in_place(damage, tmp_path):
    suite = Streams()
    path = suite.written(tmp_path, 3, "number", "text", "fixed", "varied")
    for what, sound in survive(damage(Path(path)), lambda: suite.is_sound(path)):
        assert not (sound and damage is cuts), f"unnoticed: {what}"


@pytest.mark.parametrize("compression", ["lz4", *exhaustive("zstd")])
def test_compressed_files(compression, tmp_path):
    suite = TestSuite()
    schema, samples = suite.dataset(20)
    suite.write(suite.path(tmp_path), schema, samples, compression=compression, batch_size=500)
    with bp.open(suite.path(tmp_path)) as reader:
        check_samples(reader, schema, samples)
        assert reader.facts()["compressed"]
        assert reader.facts()["used in place"] == "none"
        assert reader.facts()["record batches"] > 2


# --- what others write and read ---------------------------------------------------------------------------

TABLE = pa.table({
    "n": pa.array([3, 1, 2**40, -5], pa.int64()),
    "t": ["a", "ß", "", "x" * 50],
    "maybe": [1.5, None, 2.5, None],
    "kind": pa.array(["x", "y", "x", "z"]).dictionary_encode(),
    "list": [[1], [], [2, 3], [4]],
    "pair": pa.array([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.float32(), 2)),
    "doc": [{"a": 1}, {"a": 2}, None, {"a": None}],
    "view": pa.array(["short", "long enough to be elsewhere", "", "y"], pa.string_view()),
    "b": [b"\0", b"", b"1", b"22"],
})  # fmt: skip


META = bp.Struct({"a": bp.Int("int32", optional=True), "b": bp.List(bp.Text(optional=True), optional=True)})
DOC = bp.Struct({"a": bp.Int(optional=True)}, optional=True)


def write_ipc(path, table, kind, size=3, **options):
    make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
    with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
        for batch in table.to_batches(max_chunksize=size):
            out.write_batch(batch)
    return path


def expected(name, row):
    value = TABLE.column(name)[row].as_py()
    dtype = {"list": np.int64, "pair": np.float32}.get(name)
    return value if dtype is None else np.array(value, dtype)


@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_files_of_pyarrow(kind, compression, tmp_path):
    path = write_ipc(tmp_path / "a.arrow", TABLE, kind, compression=compression)
    with bp.open(path) as reader:
        assert dict(reader.schema) == {
            "n": bp.Int(), "t": bp.Text(), "maybe": bp.Float(optional=True), "kind": bp.Text(),
            "list": bp.Tensor("int64", (None,)), "pair": bp.Tensor("float32", (2,)),
            "doc": DOC, "view": bp.Text(), "b": bp.Bytes(),
        }  # fmt: skip
        for row in (3, 0, 2, 1):
            sample = reader[row]
            assert all(equal(expected(name, row), sample[name]) for name in reader.schema)
        assert reader.facts()["layout"] == kind
        # Behind a column of views nobody can tell the buffers.
        used = "none" if compression else "n, t, list, pair"
        assert reader.facts()["used in place"] == used
        batch = reader.read([3, 0, 3], ["kind", "n"])
        assert list(batch) == ["kind", "n"]
        assert batch["n"].tolist() == [-5, 3, -5]
    assert bp.verify(path, decode=True).problems == []


@pytest.mark.parametrize("legacy", [False, True])
def test_old_metadata(legacy, tmp_path):
    table = TABLE.select(["n", "t"])
    version = pa.ipc.MetadataVersion.V4
    path = write_ipc(
        tmp_path / "a.arrow", table, "stream", metadata_version=version, use_legacy_format=legacy
    )
    with bp.open(path, format="arrow") as reader:
        assert [sample["n"] for sample in reader] == [3, 1, 2**40, -5]
        assert reader.spans("t") is not None


def test_dictionaries_that_change_within_a_stream(tmp_path):
    kind = pa.dictionary(pa.int8(), pa.string())
    parts = [pa.array(values).dictionary_encode().cast(kind) for values in (["a", "b"], ["c"], ["b", "c"])]
    schema = pa.schema([("k", kind)])
    with pa.ipc.new_stream(str(tmp_path / "a.arrows"), schema) as out:
        for part in parts:
            out.write_batch(pa.record_batch([part], schema=schema))
    with bp.open(tmp_path / "a.arrows") as reader:
        assert [reader[n]["k"] for n in (4, 0, 2, 1, 3)] == ["c", "a", "c", "b", "b"]


@pytest.mark.parametrize("suffix", [".arrow", ".feather", ".arrows"])
@pytest.mark.parametrize("stops", [False, True])
def test_pyarrow_reads_what_we_write(suffix, stops, tmp_path):
    path = tmp_path / f"a{suffix}"
    schema = {
        "i": bp.Image(),
        "n": bp.Int("int8"),
        "x": bp.Tensor("float32", (2, 2)),
        "t": bp.Text(optional=True),
    }
    out = bp.create(path, schema, batch_size=3000)
    for n in range(30):
        out.append({"i": jpeg(), "n": n, "x": np.full((2, 2), n, np.float32), "t": None if n % 2 else "ß"})
        if stops and n % 11 == 10:
            out.checkpoint()
    out.close()
    with pa.memory_map(str(path)) as file:
        opened = pa.ipc.open_stream(file) if suffix == ".arrows" else pa.ipc.open_file(file)
        table = opened.read_all()
        assert suffix == ".arrows" or opened.num_record_batches > 1
    table.validate(full=True)
    assert table.column("n").to_pylist() == list(range(30))
    assert table.column("i").to_pylist() == [{"bytes": jpeg(), "path": None}] * 30
    assert table.column("x")[29].as_py() == [[29.0] * 2] * 2
    assert table.column("t").to_pylist() == ["ß", None] * 15
    assert dict(bp.open(path).schema) == schema


def test_an_empty_file_is_read_by_pyarrow(tmp_path):
    with bp.create(tmp_path / "a.feather", {"n": bp.Int()}):
        pass
    assert pa.ipc.open_file(str(tmp_path / "a.feather")).read_all().num_rows == 0
    assert len(bp.open(tmp_path / "a.feather")) == 0


def test_options_that_make_no_sense(tmp_path):
    for wrong in ({"compression": "gzip"}, {"batch_size": 0}):
        with pytest.raises(bp.OptionError):
            bp.create(tmp_path / "a.arrow", {"n": bp.Int()}, **wrong)


def test_the_first_version_of_feather_is_refused():
    with pytest.raises(bp.SchemaError, match=r"first version, .* pandas\.read_feather"):
        bp.open(GOLDEN / "arrow" / "version1.feather")


# --- other writers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["arro3.arrow", "polars.arrow"])
def test_files_whose_schema_stands_elsewhere_or_without_its_length(name):
    text = {"s": bp.Text(optional=True), "c": bp.Text()}
    with bp.open(GOLDEN / "arrow" / name) as reader:
        assert dict(reader.schema) == {"a": bp.Int(), "b": bp.Float(optional=True), **text}
        assert list(reader) == [
            {"a": 1, "b": 1.5, "s": "x", "c": "u"},
            {"a": 2, "b": None, "s": "yy", "c": "v"},
            {"a": 3, "b": 2.5, "s": None, "c": "u"},
            {"a": 4, "b": None, "s": "ü", "c": "v"},
        ]
        assert reader.read([3, 1])["a"].tolist() == [4, 2]


def test_damage_in_a_file_of_polars(tmp_path):
    copy = shutil.copy(GOLDEN / "arrow" / "polars.arrow", tmp_path)
    for what, _ in survive(flips(Path(copy)), lambda: Streams().is_sound(str(copy))):
        assert what


@in_one_test("kind", ["string_view", "binary_view", "large_string"])
@in_one_test("packed", ["dictionary", "dictionary with a null", "runs"])
def test_packed_text_of_every_layout(kind, packed, tmp_path):
    values = pa.array(["a", None if "null" in packed else "b"], getattr(pa, kind)())
    if packed == "runs":
        column = pa.RunEndEncodedArray.from_arrays(pa.array([2, 4], pa.int32()), values)
    else:
        column = pa.DictionaryArray.from_arrays(pa.array([0, 0, 1, 1], pa.int8()), values)
    path = tmp_path / "x.arrow"
    with pa.ipc.new_file(path, pa.schema([("t", column.type)])) as file:
        file.write(pa.record_batch([column], names=["t"]))
    with bp.open(path) as reader:
        actual = [sample["t"] for sample in reader]
    want = ["a", "a", "b", "b"] if kind != "binary_view" else [b"a", b"a", b"b", b"b"]
    assert actual == ([*want[:2], None, None] if "null" in packed else want)


# --- in place ---------------------------------------------------------------------------------------------


def test_cells_of_many_batches_in_place(tmp_path):
    schema = {
        "x": bp.Tensor("int32", (3,)),
        "v": bp.Tensor("int16", (None, 2)),
        "b": bp.Bytes(),
        "n": bp.Float("float16"),
    }
    rng = np.random.default_rng(0)
    values = [
        {"x": np.full(3, n, np.int32), "v": np.full((n % 5, 2), n, np.int16), "b": bytes(n % 7), "n": n / 2}
        for n in range(300)
    ]
    with bp.create(tmp_path / "a.arrow", schema, batch_size=1000) as out:
        for value in values:
            out.append(value)
    with bp.open(tmp_path / "a.arrow") as reader:
        assert reader.facts()["record batches"] > 5
        assert reader.facts()["used in place"] == "x, v, b, n"
        data = (tmp_path / "a.arrow").read_bytes()
        for _ in range(5):
            wanted = rng.integers(0, 300, 64)
            columns = reader.read(wanted)
            for name in schema:
                spans = reader.spans(name, wanted)
                actual = [data[a : a + s] for a, s in zip(spans.start, spans.size, strict=True)]
                assert actual == cells(reader.subset(wanted))[name]
            assert columns["x"][:, 0].tolist() == wanted.tolist()
        check_samples(reader, schema, values)
        # Nothing was decoded for it.
        assert len(reader._cache) == 0


def test_several_files_in_place():
    with bp.open(GOLDEN / "arrow" / "hf_saved") as reader:
        spans = reader.spans("text", [5, 0, 3])
        texts = [Path(spans.files[f]).read_bytes()[a : a + s] for f, a, s in
                 zip(spans.file, spans.start, spans.size, strict=True)]  # fmt: skip
        assert texts == ["größe 5".encode(), "größe 0".encode(), "größe 3".encode()]
        assert reader.read([5, 0, 3], ["label"])["label"].tolist() == [1, 0, 1]


def test_images_are_decoded_in_place(tmp_path):
    with bp.create(tmp_path / "a.arrow", {"image": bp.Image(), "n": bp.Int()}) as out:
        for n in range(32):
            out.append({"image": jpeg(8, 8), "n": n})
    loader = bp.Loader(tmp_path / "a.arrow", 8, order="random", seed=1)
    assert sorted(np.concatenate([batch["n"] for batch in loader]).tolist()) == list(range(32))
    loader.close()


# --- Hugging Face -----------------------------------------------------------------------------------------


def test_folders_of_hugging_face():
    with bp.open(GOLDEN / "arrow" / "hf_saved") as reader:
        assert reader.format == "arrow"
        assert dict(reader.schema) == {
            "image": bp.Image("png"), "label": bp.Int(names=("cat", "dog")), "text": bp.Text(),
            "box": bp.Tensor("float32", (4,)), "grid": bp.Tensor("int32", (2, 3)),
            "tags": bp.Tensor("int64", (None,)), "meta": META,
        }  # fmt: skip
        assert reader.facts()["files"] == 2
        assert reader.spans("image") is not None
        for n, sample in enumerate(reader):
            assert equal(np.full((4, 5, 3), n * 20, np.uint8), sample["image"])
            assert sample["label"] == n % 2
            assert equal(np.arange(n), sample["tags"])


def test_folders_of_several_splits(tmp_path):
    folder = GOLDEN / "arrow" / "hf_dict"
    with pytest.raises(bp.OptionError, match=r"with split=….*train, test"):
        bp.open(folder)
    with pytest.raises(bp.OptionError, match="train, test"):
        bp.open(folder, split="valid")
    assert [s["text"] for s in bp.open(folder, split="test")] == ["größe 2", "größe 3"]
    assert len(bp.open(folder / "train")) == 2


@in_one_test(
    "state",
    ["[", "[]", "{}", '{"_data_files": []}', '{"_data_files": [7]}', '{"_data_files": [{}]}', "\udcff",
     "[" * 100_000, '{"_data_files": [{"filename": "../x"}]}',
     '{"_data_files": [{"filename": "/etc/passwd"}]}'],
)  # fmt: skip
def test_folders_that_lead_elsewhere(state, tmp_path):
    shutil.copytree(GOLDEN / "arrow" / "hf_saved", tmp_path / "d")
    (tmp_path / "d" / "state.json").write_bytes(state.encode("utf8", "surrogateescape"))
    with pytest.raises((bp.DamagedError, bp.NotFoundError)):
        bp.open(tmp_path / "d")


def test_folders_with_a_list_of_indices(tmp_path):
    shutil.copytree(GOLDEN / "arrow" / "hf_saved", tmp_path / "d")
    state = json.loads((tmp_path / "d" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "i.arrow"}]
    (tmp_path / "d" / "state.json").write_text(json.dumps(state))
    with pytest.raises(bp.SchemaError, match="flatten_indices"):
        bp.open(tmp_path / "d")


# --- damage -----------------------------------------------------------------------------------------------


def test_a_stream_without_its_end(tmp_path):
    with bp.create(tmp_path / "a.arrows", {"n": bp.Int()}) as out:
        out.append(Columns(n=np.arange(100)))
    whole = (tmp_path / "a.arrows").read_bytes()
    (tmp_path / "a.arrows").write_bytes(whole[:-8])
    with bp.open(tmp_path / "a.arrows") as reader:
        assert len(reader) == 100
    [problem] = bp.verify(tmp_path / "a.arrows").problems
    assert "has no end" in problem.message


def batch_at(path):
    source = bp.storage.open_source(str(path))
    first = ipc.read_message(source, 8)
    return ipc.read_message(source, first.end)


@pytest.mark.parametrize("offset", [-1, 2**62, 7])
def test_offsets_that_lead_out_of_a_column(offset, tmp_path):
    path = tmp_path / "a.arrow"
    with bp.create(path, {"b": bp.Bytes()}, hugging_face=False) as out:
        out.append(Columns(b=Ragged(np.arange(6, dtype=np.uint8), np.array([0, 1, 3, 6]))))
    message = batch_at(path)
    batch = ipc.read_batch(message)
    whole = bytearray(path.read_bytes())
    at = message.body + int(batch.buffers[1]["offset"]) + 16
    whole[at : at + 8] = struct.pack("<q", offset)
    path.write_bytes(whole)
    with bp.open(path) as reader:
        assert cells(reader.subset([0]))["b"] == [b"\0"]
        with pytest.raises(bp.DamagedError, match="outside of its column") as caught:
            reader.read([0, 1])
        assert caught.value.sample == 1
        with pytest.raises(bp.DataError):
            reader.spans("b", [2])


def test_a_batch_that_promises_rows_it_has_no_bytes_for(tmp_path):
    path = write_ipc(tmp_path / "a.arrow", pa.table({"n": pa.nulls(5)}), "file")
    whole = bytearray(path.read_bytes())
    message = batch_at(path)
    at = message.header._place(0)
    start = message.body - len(message.header.data)
    whole[start + at : start + at + 8] = struct.pack("<q", 2**60)
    path.write_bytes(whole)
    with pytest.raises(bp.DamagedError):
        list(bp.open(path))


@in_one_test("data", [
    b"", b"ARROW1", b"ARROW1\0\0", b"ARROW1\0\0" + bytes(50) + b"ARROW1", b"FEA", b"ARROW1" * 9,
    b"\xff\xff\xff\xff\0\0\0\0", b"\xff\xff\xff\xff\xff\xff\xff\x7f", bytes(64), b"\xff" * 64,
])  # fmt: skip
def test_files_that_are_none(data, tmp_path):
    (tmp_path / "a.arrow").write_bytes(data)
    with pytest.raises(bp.DamagedError):
        bp.open(tmp_path / "a.arrow", format="arrow")


def test_footers_are_as_pyarrow_wants_them(tmp_path):
    """A schema of any length in front of any number of batches."""
    for names in (["n"], [f"column {n}" for n in range(50)]):
        for count in (0, 1, 2, 7):
            schema, batch_size = dict.fromkeys(names, bp.Int()), 3 * 8 * len(names)
            with bp.create(tmp_path / "a.arrow", schema, batch_size=batch_size, overwrite=True) as out:
                for n in range(count):
                    out.append(Columns((name, np.full(3, n)) for name in names))
            table = pa.ipc.open_file(str(tmp_path / "a.arrow"))
            assert table.num_record_batches == count
            assert table.read_all().column(names[-1]).to_pylist() == np.repeat(range(count), 3).tolist()
