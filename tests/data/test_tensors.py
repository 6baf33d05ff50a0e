"""Models as datasets: arrays and samples, every pair of formats, what the command line says of them."""

import itertools
import json
import zipfile

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.data.reader import Reader, ReaderTuning
from batchplant.formats.base.tensors import (
    BITS,
    TENSORS,
    TensorReader,
    as_array,
    from_array,
    size_of,
    statistics,
)
from batchplant.schema.columns import end_within
from batchplant.storage import Partial, open_source
from batchplant.storage.zips import ZipMembers, ZipSpool
from batchplant.testing.suite import tensor

WHOLE = [name for name, bits in BITS.items() if bits >= 8]
PLAIN = ["float32", "int64", "bool", "float16", "uint8", "complex64"]
MODELS = {"safetensors": ".safetensors", "pytorch": ".pt", "npz": ".npz"}
CONTAINERS = {
    "parquet": ".parquet",
    "webdataset": ".tar",
    "lmdb": ".lmdb",
    "json": ".jsonl",
    "tfrecord": ".tfrecord",
}


def write(path, samples, **options):
    with bp.create(path, TENSORS, **options) as out:
        for sample in samples:
            out.append(sample)
    return path


def content(reader):
    return [(sample["name"], sample["dtype"], sample["shape"].tolist(), sample["data"]) for sample in reader]


def samples(dtypes=PLAIN):
    shapes = [(2, 3), (), (0, 4), (7,)]
    return [tensor(f"größe.{n}.{dtype}", dtype, shape) for dtype in dtypes for n, shape in enumerate(shapes)]


# -- arrays ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [name for name, bits in BITS.items() if bits != 6])
def test_arrays_and_back(dtype):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    for count in (0, 1, 2, 7, 8):
        values = (np.arange(count) % 2).astype(kind)
        result = from_array("x", values.reshape(1, count))
        assert (result["dtype"], result["shape"].tolist()) == (dtype, [1, count])
        assert len(result["data"]) == size_of(dtype, (1, count))
        back = as_array(dtype, (1, count), np.frombuffer(result["data"], np.uint8))
        assert back.dtype == kind
        assert back.tobytes() == values.tobytes()


def test_packed_values_stand_as_onnx_has_them():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    result = from_array("x", np.array([1, -2, 7], ml_dtypes.int4))
    assert result["data"] == bytes([0xE1, 0x07])
    assert as_array("int4", (3,), np.frombuffer(result["data"], np.uint8)).astype(int).tolist() == [1, -2, 7]


def test_arrays_of_any_layout():
    for array in (np.arange(6, dtype=">i4").reshape(2, 3), np.asfortranarray(np.arange(6.0).reshape(2, 3))):
        result = from_array("x", array)
        back = as_array(result["dtype"], (2, 3), np.frombuffer(result["data"], np.uint8))
        assert np.array_equal(back, array)
    with pytest.raises(bp.SchemaError, match="no tensors of a model"):
        from_array("x", np.array(["text"]))


def test_bytes_that_are_no_such_tensor():
    with pytest.raises(bp.DamagedError, match=r"3 bytes are not int8 \(2,\)"):
        as_array("int8", (2,), np.zeros(3, np.uint8))
    with pytest.raises(bp.SchemaError, match="no dtype 'nonsense'"):
        size_of("nonsense", (1,))
    with pytest.raises(bp.SchemaError, match="across bytes"):
        as_array("float6_e2m3fn", (4,), np.zeros(3, np.uint8))


def test_what_is_no_model_has_no_tensors(tmp_path):
    with bp.create(tmp_path / "a.npy", {"n": bp.Int()}) as out:
        out.append({"n": 1})
    with pytest.raises(bp.SchemaError, match="this is no model: its fields are n"):
        bp.open(tmp_path / "a.npy").tensors()


def test_tensors_of_parts_and_of_several_files(tmp_path):
    reader = bp.open(write(tmp_path / "a.safetensors", samples(["int8"])))
    two = bp.open(write(tmp_path / "b.pt", samples(["bool"])))
    both = bp.concat([reader, two]).tensors()
    assert len(both) == 8
    assert both["größe.3.bool"].shape == (7,)
    assert list(reader[1:3].tensors()) == ["größe.1.int8", "größe.2.int8"]
    assert bp.concat([reader, two]).sizes().tolist() == [6, 1, 0, 7] * 2
    with pytest.raises(bp.SchemaError, match="two tensors are called"):
        bp.concat([reader, reader]).tensors()


# -- every pair of formats ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("source", "target"), list(itertools.permutations(MODELS, 2)))
def test_models_convert_to_the_last_bit(source, target, tmp_path):
    result = samples([name for name in PLAIN if name != "complex64"])
    path = write(tmp_path / f"a{MODELS[source]}", result)
    done = bp.convert(path, tmp_path / f"b{MODELS[target]}")
    assert done.samples == len(result)
    with bp.open(tmp_path / f"b{MODELS[target]}") as reader:
        assert reader.format == target
        assert content(reader) == content(bp.open(path))
        assert content(reader) == [(m["name"], m["dtype"], m["shape"].tolist(), m["data"]) for m in result]
    assert bp.verify(tmp_path / f"b{MODELS[target]}", against=str(path), decode=True).problems == []


@pytest.mark.parametrize("target", ["safetensors", "pytorch"])
def test_dtypes_that_numpy_lacks_convert_too(target, tmp_path):
    result = samples(["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu", "uint16"])
    first = write(tmp_path / "a.safetensors", result)
    bp.convert(first, tmp_path / f"b{MODELS[target]}")
    bp.convert(tmp_path / f"b{MODELS[target]}", tmp_path / "c.safetensors")
    assert content(bp.open(tmp_path / "c.safetensors")) == content(bp.open(first))
    with pytest.raises(bp.SchemaError, match=r"'größe\.0\.bfloat16': npz has no bfloat16; safetensors holds"):
        bp.convert(first, tmp_path / "c.npz")
    assert not (tmp_path / "c.npz").exists()


@pytest.mark.parametrize("container", list(CONTAINERS))
def test_every_container_holds_a_model(container, tmp_path):
    written = samples(["bfloat16", "float8_e5m2", "float32", "bool"])
    first = write(tmp_path / "a.safetensors", written)
    kept = tmp_path / f"b{CONTAINERS[container]}"
    try:
        bp.convert(first, kept)
    except bp.MissingLibraryError as error:
        pytest.skip(str(error))
    bp.convert(kept, tmp_path / "c.safetensors")
    assert (tmp_path / "c.safetensors").read_bytes() == first.read_bytes()
    with bp.open(kept) as reader:
        result = reader.tensors()
        assert result["größe.0.float32"].tobytes() == next(
            m["data"] for m in written if m["name"] == "größe.0.float32"
        )
    assert main(["info", str(kept)]) == 0
    assert main(["head", str(kept)]) == 0


def test_a_large_model_is_not_in_memory_at_once(tmp_path, monkeypatch, capsys):
    result = [from_array("small", np.zeros(1)), *(from_array(str(n), np.zeros(1 << 16)) for n in range(30))]
    write(tmp_path / "a.safetensors", result)
    asked, read = [], TensorReader._data

    def spy(self, indices, chosen):
        asked.append(sum(entry.size for entry in chosen))
        return read(self, indices, chosen)

    monkeypatch.setattr(TensorReader, "_data", spy)
    monkeypatch.setattr("batchplant.jobs.verify.Job.batch_bytes", 2 << 20)
    monkeypatch.setattr(Reader, "tuning", ReaderTuning(verify_bytes=2 << 20))
    options = bp.ConvertOptions(tuning=bp.ConvertTuning(batch_bytes=2 << 20))
    bp.convert(tmp_path / "a.safetensors", tmp_path / "b.pt", options=options)
    assert bp.verify(tmp_path / "b.pt").ok
    with bp.open(tmp_path / "b.pt") as reader:
        assert list(reader.verify()) == []
        assert len(list(reader)) == 31
    assert max(asked) == 2 << 20
    asked.clear()
    assert main(["head", str(tmp_path / "b.pt"), "-n", "3"]) == 0
    assert main(["info", str(tmp_path / "b.pt")]) == 0
    assert asked == []


def test_as_many_rows_as_fit():
    sizes = np.array([10, 1, 1, 50, 1])
    assert [end_within(sizes, start, 5, 12) for start in range(5)] == [3, 3, 3, 4, 5]
    assert end_within(sizes, 0, 2, 12) == 2
    assert end_within(None, 3, 7, 0) == 10


# -- NPZ ---------------------------------------------------------------------------------------------------


def test_npz_is_one_array_for_each_tensor(tmp_path):
    result = samples()
    for compress in (False, True):
        path = write(tmp_path / f"{compress}.npz", result, compress=compress)
        with np.load(path) as arrays:
            assert arrays.files == [row["name"] for row in result]
            for row in result:
                assert arrays[row["name"]].dtype.name == row["dtype"]
                assert arrays[row["name"]].shape == tuple(row["shape"])
                assert arrays[row["name"]].tobytes() == row["data"]
        with bp.open(path) as reader:
            assert content(reader) == content(result)
            assert (reader.spans("data") is None) == compress
            assert reader.facts()["parameters"] == sum(int(np.prod(row["shape"])) for row in result)
            assert compress or all(array.flags.aligned for array in reader.tensors().values())
        assert bp.verify(path).problems == []


def test_npz_arrays_are_columns_or_tensors(tmp_path):
    same = {
        "w": np.arange(6.0).reshape(3, 2),
        "b": np.asfortranarray(np.arange(6, dtype=">i2").reshape(3, 2)),
    }
    np.savez(tmp_path / "a.npz", **same)
    assert list(bp.open(tmp_path / "a.npz").schema) == ["w", "b"]
    with bp.open(tmp_path / "a.npz", as_tensors=True) as reader:
        assert {name: array.tolist() for name, array in reader.tensors().items()} == {
            name: array.tolist() for name, array in same.items()
        }
        assert reader[1]["dtype"] == "int16"
    np.savez(tmp_path / "b.npz", w=np.ones((3, 2)), b=np.ones(2), s=np.float32(1))
    with bp.open(tmp_path / "b.npz") as reader:
        assert [sample["shape"].tolist() for sample in reader] == [[3, 2], [2], []]
        assert "tensors" not in reader.schema
    np.savez(tmp_path / "c.npz", w=np.ones((3, 2)), t=np.array(["a"]))
    with pytest.raises(bp.SchemaError, match="no tensor"):
        bp.open(tmp_path / "c.npz", as_tensors=True)
    with pytest.raises(bp.SchemaError, match="differ in length"):
        bp.open(tmp_path / "c.npz")
    np.savez(tmp_path / "d.npz", w=np.ones((3, 2)), o=np.array([{}], dtype=object))
    with pytest.raises(bp.UnsafeError):
        bp.open(tmp_path / "d.npz")


# -- ZIP ---------------------------------------------------------------------------------------------------


def zipped(folder, add, comment=b"", before=0):
    partial = Partial(str(folder / "a.zip"))
    file = partial.spool("data")
    file.resize(before)
    zip_spool = ZipSpool(file, partial.spool("directory"))
    add(zip_spool)
    zip_spool.finish(comment)
    partial.commit("data")
    return folder / "a.zip"


@pytest.mark.parametrize("align", [1, 4, 64])
def test_zip_members_begin_where_they_should(align, tmp_path):
    starts = []

    def add(made):
        for n in range(9):
            starts.append(made.add("ä" * n, bytes(n), b"|", bytes([n]), align=align, compress=n == 5))

    path = zipped(tmp_path, add, b"note")
    assert all(start % align == 0 for start in starts)
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert archive.comment == b"note"
        assert [archive.read("ä" * n) for n in range(9)] == [bytes(n) + b"|" + bytes([n]) for n in range(9)]
    members = ZipMembers(open_source(str(path)))
    assert [members.start("ä" * n) for n in range(9)] == starts
    assert [members.view("ä" * n).tobytes() for n in range(9)] == [
        bytes(n) + b"|" + bytes([n]) for n in range(9)
    ]
    assert members.head("ä" * 5, 3).tobytes() == bytes(3)
    assert list(members.problems(str(path))) == []


def test_zip_files_beyond_four_gigabytes(tmp_path):
    path = zipped(tmp_path, lambda item: item.add("x", b"abc", align=64), before=(4 << 30) + 5)
    with zipfile.ZipFile(path) as archive:
        assert archive.read("x") == b"abc"
    members = ZipMembers(open_source(str(path)))
    assert members.start("x") > 4 << 30
    assert members.view("x").tobytes() == b"abc"


def test_zip_files_of_very_many_members(tmp_path):
    def add(made):
        made.add("x", b"abc")
        [line] = made._directory.read_at(1000, 0).splitlines()
        made._directory.write(b"".join(line.replace(b'"x"', b'"%d"' % n) + b"\n" for n in range(66_000)))

    path = zipped(tmp_path, add)
    with zipfile.ZipFile(path) as archive:
        assert len(archive.infolist()) == 66_001
        assert archive.read("x") == b"abc"


# -- the command line --------------------------------------------------------------------------------------


def test_statistics():
    def of(array):
        result = from_array("x", array)
        return statistics(result["dtype"], tuple(result["shape"]), np.frombuffer(result["data"], np.uint8))

    assert of(np.array([1.0, np.nan, 3.0])) == {"mean": 2.0, "min": 1.0, "max": 3.0, "nan": 1}
    assert of(np.array([1.0, np.inf])) == {"mean": np.inf, "min": 1.0, "max": np.inf}
    assert of(np.array([np.nan])) == {"nan": 1}
    assert of(np.zeros(0)) == {}
    assert of(np.array([True, False])) == {"mean": 0.5, "min": 0, "max": 1}
    assert of(np.array([1j, 3])) == {"mean": 1.5 + 0.5j}
    many = np.random.default_rng(1).normal(size=(1 << 20) + 17).astype(np.float32)
    assert of(many)["mean"] == pytest.approx(many.astype(np.float64).mean(), rel=1e-9)
    assert of(many)["max"] == many.max()
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert of(np.array([-8, 7, 1], ml_dtypes.int4)) == {"mean": 0, "min": -8, "max": 7}
    assert of(np.array([0.5, 1], ml_dtypes.bfloat16)) == {"mean": 0.75, "min": 0.5, "max": 1}
    assert statistics("float6_e2m3fn", (4,), np.zeros(3, np.uint8)) == {}


def test_head_and_info_of_a_model(tmp_path, capsys):
    arrays = {"a": np.array([[1.0, 2.0]], np.float32), "b\x1b[31m": np.arange(3), "c": np.float64(np.nan)}
    result = [from_array(name, array) for name, array in arrays.items()]
    path = write(tmp_path / "a.safetensors", result, metadata={"format": "pt"})
    assert main(["head", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["name", "dtype", "shape", "mean", "min", "max"]
    assert lines[1].split() == ["a", "float32", "1×2", "1.5", "1", "2"]
    assert lines[2].split() == ["b\\x1b[31m", "int64", "3", "1", "0", "2"]
    assert lines[3].split() == ["c", "float64", "()", "–", "–", "–", "1", "NaN"]
    assert main(["head", str(path), "-n", "1", "--start", "1"]) == 0
    assert "… and 1 more (-n 2)" in capsys.readouterr().out
    assert main(["head", str(path), "--json", "-n", "1"]) == 0
    assert json.loads(capsys.readouterr().out) == [
        {"name": "a", "dtype": "float32", "shape": [1, 2], "mean": 1.5, "min": 1.0, "max": 2.0}
    ]
    assert main(["info", str(path)]) == 0
    text = capsys.readouterr().out
    for line in ("tensors        3", "parameters     6", "  int64    tensors 1, 24 B", "  format  pt"):
        assert line in text
    assert main(["info", str(path), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["parameters"] == 6
    assert facts["dtypes"]["float32"] == {"tensors": 1, "bytes": 8}
    assert facts["metadata"] == {"format": "pt"}


def test_what_a_file_says_of_itself_comes_along(tmp_path):
    write(tmp_path / "a.safetensors", [from_array("w", np.arange(3))], metadata={"by": "me"})
    given = {"": {"made": 7}, "x": {"unit": "m"}, "y": {"unit": "s"}}
    with bp.create(tmp_path / "a.zarr", {"x": bp.Int(), "y": bp.Int()}, attributes=given) as out:
        out.append({"x": 1, "y": 2})
    model, arrays = bp.open(tmp_path / "a.safetensors"), bp.open(tmp_path / "a.zarr")
    assert (dict(model.metadata), dict(model.attributes)) == ({"by": "me"}, {})
    assert (dict(arrays.metadata), dict(arrays.attributes)) == ({}, given)
    assert dict(model[:1].metadata) == {"by": "me"}
    some = arrays.select(["y"])
    assert some.attributes == {"": {"made": 7}, "y": {"unit": "s"}}
    bp.convert(some, tmp_path / "b.zarr")
    assert bp.open(tmp_path / "b.zarr").attributes == {"": {"made": 7}, "y": {"unit": "s"}}
    bp.convert(model[:1], tmp_path / "b.safetensors")
    assert dict(bp.open(tmp_path / "b.safetensors").metadata) == {"by": "me"}
    assert (dict(bp.concat([model]).metadata), dict(bp.open({"n": [1]}).attributes)) == ({}, {})
