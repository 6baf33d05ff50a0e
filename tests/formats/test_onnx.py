"""ONNX models as named tensors."""

import contextlib
import itertools
import json
import os
import re
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import repository
from batchplant.codecs import protobuf
from batchplant.codecs.protobuf import block, number
from batchplant.formats import onnx as onnx_format
from batchplant.formats.base.tensors import BITS, TENSORS, from_array
from batchplant.testing.cases import cells, cuts, flips, memory_bounded, survive
from batchplant.testing.suite import read_in_other_process
from variants import in_one_test

GOLDEN = repository.GOLDEN / "models" / "onnx"
FLOAT = 1


def tensor(name, *rest, dtype=FLOAT, shape=(2,)):
    """An initialiser of a graph, with further fields."""
    dims = b"".join(number(1, size) for size in shape)
    return block(5, dims + number(2, dtype) + block(8, name.encode()) + b"".join(rest))


def raw(*values, dtype="<f4"):
    return block(9, np.array(values, dtype).tobytes())


def external(**said):
    pairs = (block(13, block(1, key.encode()) + block(2, str(value).encode())) for key, value in said.items())
    return b"".join(pairs) + number(14, 1)


def model(path, *parts, graph_parts=b""):
    graph = block(2, b"g") + b"".join(parts) + graph_parts
    Path(path).write_bytes(number(1, 8) + block(8, number(2, 17)) + block(7, graph))
    return path


def sound(path, **options):
    """Read it in every way; False where something was wrong and we said so in our own terms."""
    try:
        with bp.open(path, format="onnx", **options) as reader:
            for row in range(len(reader)):
                with contextlib.suppress(bp.BatchplantError):
                    reader[row]
            reader.facts()
        return bp.verify(path, format="onnx", **options).ok
    except bp.BatchplantError:
        return False


# -- reading -----------------------------------------------------------------------------------------------


def test_every_dtype_in_both_ways_of_storing():
    expected = json.loads((GOLDEN / "types.json").read_text())
    with bp.open(GOLDEN / "types.onnx") as reader:
        assert dict(reader.schema) == dict(TENSORS)
        result = {sample["name"]: sample for sample in reader}
        assert len(result) == 2 * len(expected) + 2
        for dtype, data in expected.items():
            for way in ("raw", "typed"):
                one = result[f"{way}.{dtype}"]
                assert (one["dtype"], one["shape"].tolist(), one["data"].hex()) == (dtype, [3, 5], data)
        assert result["empty"]["shape"].tolist() == [0, 3]
        assert reader.tensors()["scalar"] == -5
        assert reader.facts()["text tensors"] == {"texts": "(2)"}
        rows = {sample["name"]: row for row, sample in enumerate(reader)}
        for dtype, in_place in (("float32", True), ("complex128", True), ("int64", False), ("bool", False)):
            assert reader.spans("data", [rows[f"raw.{dtype}"]]) is not None
            assert (reader.spans("data", [rows[f"typed.{dtype}"]]) is not None) == in_place, dtype
    assert set(expected) < set(BITS)


def test_spans_are_where_the_values_are():
    with bp.open(GOLDEN / "branches.onnx") as reader:
        spans, columns = reader.spans("data"), reader.read(range(len(reader)))
        data = (GOLDEN / "branches.onnx").read_bytes()
        for row in range(len(reader)):
            start, size = int(spans.start[row]), int(spans.size[row])
            assert data[start : start + size] == columns["data"][row].tobytes()


def test_graphs_in_graphs_and_what_info_shows():
    path = GOLDEN / "branches.onnx"
    with bp.open(path) as reader:
        actual = {name: float(array[0, 0]) for name, array in reader.tensors().items()}
        assert actual == {"top": 0.5, "choose.then_branch.w": 1.0, "choose.else_branch.w": 2.0}
        facts = reader.facts()
        assert facts["inputs"] == {"x": "float32 (batch, 2)", "flag": "bool ()"}
        assert facts["outputs"] == {"y": "float32 (batch, ?)"}
        assert facts["operators"] == {"Add": 2, "Constant": 1, "If": 1, "MatMul": 1, "our.own.Twice": 1}
        assert facts["functions"] == {"our.own.Twice": 1}
        assert (facts["ir version"], facts["opsets"]) == (8, {"ai.onnx": 17, "our.own": 1})
        assert (facts["producer"], facts["domain"], facts["model version"]) == (
            "golden 1.0",
            "org.example",
            7,
        )
        assert facts["metadata"] == {"author": "nobody", "größe": "klein"}
        assert facts["sparse tensors"] == {"thin": "float32 (3, 4), 2 values"}
        assert facts["parameters"] == 12
        json.dumps(facts)
    with bp.open(path, constants=True) as reader:
        assert reader.tensors()["limit"] == 3.5


def test_nodes_without_names_of_their_own(tmp_path):
    inner = block(2, b"i") + tensor("w", raw(1, 2))
    attribute = block(5, block(1, b"body") + block(6, inner))
    loop = block(1, attribute + block(4, b"Loop"))
    named = block(1, attribute + block(4, b"Loop") + block(3, b"l"))
    with bp.open(model(tmp_path / "a.onnx", loop, named, named)) as reader:
        assert list(reader.tensors()) == ["Loop_0.body.w", "l.body.w", "Loop_2.body.w"]


def test_threads_pickles_and_processes(tmp_path):
    path = tmp_path / "types.onnx"
    shutil.copy(GOLDEN / "types.onnx", path)
    with bp.open(path) as reader, ThreadPoolExecutor(8) as pool:
        expected = cells(reader)
        assert all(item == expected for item in pool.map(lambda _: cells(reader), range(32)))
        assert read_in_other_process([reader]) == [expected]


def test_from_a_store_and_after_closing():
    fsspec = pytest.importorskip("fsspec")
    store = fsspec.filesystem("memory")
    store.pipe("/onnx/a.onnx", (GOLDEN / "types.onnx").read_bytes())
    reader = bp.open("memory://onnx/a.onnx")
    assert cells(reader) == cells(bp.open(GOLDEN / "types.onnx"))
    pytest.importorskip("onnx")
    assert bp.verify("memory://onnx/a.onnx").ok
    reader.close()
    for row in range(len(reader)):
        with pytest.raises(bp.OptionError, match="closed"):
            reader[row]


def test_content_tells_the_format(tmp_path):
    for name in ("types.onnx", "branches.onnx"):
        shutil.copy(GOLDEN / name, tmp_path / "nameless")
        assert bp.open(tmp_path / "nameless").format == "onnx"


# -- external data -----------------------------------------------------------------------------------------


def test_external_data_is_read_in_place(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "w.bin").write_bytes(b"....." + np.array([1, 2, 3, 4], "<f4").tobytes())
    path = model(
        tmp_path / "a.onnx",
        tensor("a", external(location="sub/w.bin", offset=5, length=8)),
        tensor("b", external(location="./sub/w.bin", offset=13)),
    )
    with bp.open(path) as reader:
        assert {name: array.tolist() for name, array in reader.tensors().items()} == {
            "a": [1, 2],
            "b": [3, 4],
        }
        assert reader.spans("data").start.tolist() == [5, 13]
        assert reader.facts()["external data"] == ["w.bin"]
        assert reader.where(1).endswith("w.bin")


@in_one_test(
    "location",
    ["/etc/passwd", "../w.bin", "sub/../../w.bin", "", "C:\\w.bin", "..\\w.bin", "http://a/b", "a\0b"],
)
def test_external_data_must_be_in_the_folder(location, tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (tmp_path / "m").mkdir()
    with pytest.raises(bp.UnsafeError, match="no file in the folder of the model") as caught:
        bp.open(model(tmp_path / "m" / "a.onnx", tensor("w", external(location=location))))
    assert "tensor 'w'" in str(caught.value)


def test_links_out_of_the_folder_have_to_be_allowed(tmp_path):
    (tmp_path / "w.bin").write_bytes(np.array([1, 2], "<f4").tobytes())
    (tmp_path / "m" / "real").mkdir(parents=True)
    (tmp_path / "m" / "link").symlink_to("../w.bin")
    path = model(tmp_path / "m" / "a.onnx", tensor("w", external(location="link")))
    with pytest.raises(bp.UnsafeError, match="links=True"):
        bp.open(path)
    assert bp.open(path, links=True).tensors()["w"].tolist() == [1, 2]
    (tmp_path / "m" / "out").symlink_to("..")
    path = model(tmp_path / "m" / "b.onnx", tensor("w", external(location="out/w.bin")))
    with pytest.raises(bp.UnsafeError, match="leads out"):
        bp.open(path)
    shutil.copy(tmp_path / "w.bin", tmp_path / "m" / "real" / "w.bin")
    (tmp_path / "m" / "within").symlink_to("real")
    path = model(tmp_path / "m" / "c.onnx", tensor("w", external(location="within/w.bin")))
    assert bp.open(path).tensors()["w"].tolist() == [1, 2]


@in_one_test(
    ("text", "message"),
    [
        ({"location": "none.bin"}, "is missing"),
        ({"location": "pipe"}, "is missing"),
        ({"location": "folder"}, "is missing"),
        ({"location": "w.bin", "offset": 5}, "the file ends at 8"),
        ({"location": "w.bin", "offset": 2**62}, "offset of its external data"),
        ({"location": "w.bin", "offset": "-4"}, "offset of its external data is '-4'"),
        ({"location": "w.bin", "offset": "1e1"}, "offset of its external data"),
        ({"location": "w.bin", "length": 4}, "4 bytes are not float32"),
        ({"location": "w.bin", "length": "99999999999999999"}, "bytes are not float32"),
    ],
)
def test_external_data_that_is_not_there(text, message, tmp_path):
    (tmp_path / "w.bin").write_bytes(bytes(8))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    path = model(tmp_path / "a.onnx", tensor("w", external(**text)))
    with pytest.raises(bp.DamagedError, match=message) as caught:
        bp.open(path)
    assert "tensor 'w'" in str(caught.value)
    assert not bp.verify(path).ok


def test_external_data_of_the_library(tmp_path):
    onnx = pytest.importorskip("onnx")
    source = onnx.load(GOLDEN / "types.onnx")
    onnx.save_model(
        source, tmp_path / "a.onnx", save_as_external_data=True, location="weights", size_threshold=20
    )
    with bp.open(tmp_path / "a.onnx") as reader, bp.open(GOLDEN / "types.onnx") as expected:
        assert cells(reader) == cells(expected)
        assert reader.facts()["external data"] == ["weights"]
    assert bp.verify(tmp_path / "a.onnx").ok


# -- writing -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("outside", [False, True])
def test_what_we_write_the_library_reads(outside, tmp_path):
    onnx = pytest.importorskip("onnx")
    target = tmp_path / "a.onnx"
    bp.convert(GOLDEN / "types.onnx", target, target_options={"external": outside, "metadata": {"a": "ä"}})
    assert sorted(os.listdir(tmp_path)) == (["a.onnx", "a.onnx.data"] if outside else ["a.onnx"])
    assert bp.verify(target, against=GOLDEN / "types.onnx").problems == []
    with bp.open(target) as reader:
        assert reader.metadata == {"a": "ä"}
        assert reader.spans("data") is not None
        assert dict(reader.facts()["opsets"]) == {"ai.onnx": 28}
    loaded = onnx.load(target)
    expected = {sample["name"]: sample["data"] for sample in bp.open(GOLDEN / "types.onnx")}
    assert {item.name: item.raw_data for item in loaded.graph.initializer} == expected


def test_the_oldest_version_that_has_the_dtypes(tmp_path):
    for dtypes, opset in ((["float32"], 17), (["float32", "float8_e5m2"], 19), (["int4", "float8_e5m2"], 21)):
        path = tmp_path / f"{opset}.onnx"
        with bp.create(path, TENSORS) as out:
            for dtype in dtypes:
                data = bytes(-(-BITS[dtype] * 3 // 8))
                out.append({"name": dtype, "dtype": dtype, "shape": np.array([3]), "data": data})
        assert bp.open(path).facts()["opsets"] == {"ai.onnx": opset}
        assert bp.verify(path).ok


def test_what_does_not_fit_goes_beside(tmp_path, monkeypatch):
    monkeypatch.setattr(onnx_format.OnnxWriter, "max_inline_bytes", 6000)
    arrays = {f"w{n}": np.arange(n * 1000, n * 1000 + 700, dtype=np.int32) for n in range(6)}
    with bp.create(tmp_path / "a.onnx", TENSORS) as out:
        for name, array in arrays.items():
            out.append(from_array(name, array))
    assert (tmp_path / "a.onnx").stat().st_size < 7000
    assert (tmp_path / "a.onnx.data").stat().st_size >= 4 * 2800
    with bp.open(tmp_path / "a.onnx") as reader:
        assert {name: array.tolist() for name, array in reader.tensors().items()} == {
            name: array.tolist() for name, array in arrays.items()
        }
        assert set(reader.spans("data").start[2:] % 64) == {0}
        assert len(reader.spans("data").files) == 2
    assert bp.verify(tmp_path / "a.onnx").ok
    # Nothing of the older model stays.
    with bp.create(tmp_path / "a.onnx", TENSORS, overwrite=True) as out:
        out.append(from_array("w", arrays["w1"]))
    assert os.listdir(tmp_path) == ["a.onnx"]


def test_what_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(bp.SchemaError, match="named tensors"):
        bp.create(tmp_path / "a.onnx", {"n": bp.Int()})
    for wrong, message in (
        ({"dtype": "float8_e4m3b11fnuz", "data": bytes(2)}, "onnx has no float8_e4m3b11fnuz"),
        ({"dtype": "float7"}, "no dtype 'float7'"),
        ({"data": bytes(7)}, "7 were given"),
        ({"name": ""}, "needs a name"),
    ):
        sample = {"name": "w", "dtype": "float32", "shape": np.array([2]), "data": bytes(8)} | wrong
        with pytest.raises(bp.SchemaError, match=message), bp.create(tmp_path / "a.onnx", TENSORS) as out:
            out.append(sample)
    assert os.listdir(tmp_path) == []


@given(
    st.dictionaries(st.text(min_size=1, max_size=9), st.lists(st.integers(0, 4), max_size=4), max_size=4),
    st.booleans(),
)
def test_any_names_and_shapes(shapes, outside):
    names = [name for name in shapes if name.isprintable()]
    with tempfile.TemporaryDirectory() as folder:
        with bp.create(f"{folder}/a.onnx", TENSORS, external=outside) as out:
            for name in names:
                out.append(from_array(name, np.full(shapes[name], 7, np.uint16)))
        result = bp.open(f"{folder}/a.onnx").tensors()
        assert [(name, array.shape, set(array.reshape(-1))) for name, array in result.items()] == [
            (name, tuple(shapes[name]), {7} if 0 not in shapes[name] else set()) for name in names
        ]


@pytest.mark.parametrize("suffix", [".safetensors", ".npz", ".pt", ".parquet", ".tar", ".msgpack"])
def test_to_other_formats_and_back_bit_by_bit(suffix, tmp_path):
    lacking = {
        # Values of 4 and 6 bits only where they fill their bytes.
        ".safetensors": ("complex128", *(name for name in BITS if BITS[name] < 8)),
        ".npz": tuple(name for name in BITS if not hasattr(np, name) and name != "bool"),
        ".pt": ("float8_e8m0fnu", *(name for name in BITS if BITS[name] < 8)),
    }.get(suffix, ())
    if suffix == ".parquet":
        pytest.importorskip("pyarrow")
    with bp.open(GOLDEN / "types.onnx") as reader:
        rows = [row for row, sample in enumerate(reader) if sample["dtype"] not in lacking]
        chosen = reader.subset(rows)
        assert len(rows) > 20
        bp.convert(chosen, tmp_path / f"a{suffix}")
        bp.convert(tmp_path / f"a{suffix}", tmp_path / "b.onnx")
        assert bp.verify(tmp_path / "b.onnx", against=chosen).problems == []
        assert cells(bp.open(tmp_path / "b.onnx")) == cells(chosen)


# -- damage ------------------------------------------------------------------------------------------------


@in_one_test(
    ("parts", "message"),
    [
        ([tensor("w", raw(1))], "4 bytes are not float32"),
        ([tensor("w", raw(1, 2, 3))], "12 bytes are not float32"),
        ([tensor("w")], "0 bytes are not float32"),
        ([tensor("w", raw(1, 2), shape=(2**31, 2**31, 2**31))], "cannot have the shape"),
        ([tensor("w", raw(1, 2), shape=(-2,))], re.escape("of the shape (-2,)")),
        ([tensor("w", raw(1, 2), shape=(1,) * 300)], "more than 254 dimensions"),
        ([tensor("w", raw(1, 2), dtype=99)], "type 99, which is not known"),
        ([tensor("w", raw(1, 2)), tensor("w", raw(1, 2))], "two of that name"),
        ([tensor("w", raw(1, 2), block(4, bytes(8)))], "stored twice"),
        ([tensor("w", block(7, b"\1\2"), shape=(10**9,), dtype=7)], "2 bytes are not int64"),
        ([block(5, block(8, b"\xff\xfe"))], "not UTF-8"),
    ],
)
def test_lies_are_found_when_it_is_opened(parts, message, tmp_path):
    path = model(tmp_path / "a.onnx", *parts)
    with memory_bounded(1000), pytest.raises((bp.DamagedError, bp.SchemaError), match=message) as caught:
        bp.open(path)
    assert caught.value.path == str(path)


def test_values_that_do_not_fit_their_list(tmp_path):
    for parts, message in (
        ((block(7, b"\1\2\3"),), "24 bytes came, not 16"),
        ((block(7, b"\1\x80"),), "ends inside a number"),
        ((block(7, b"\xff" * 11 + b"\1"),), "more than 64 bits"),
        ((block(5, b"\1\2"),), "the field of another type"),
    ):
        with bp.open(model(tmp_path / "a.onnx", tensor("w", *parts, dtype=7))) as reader:
            with pytest.raises(bp.DamagedError, match=message) as caught:
                reader[0]
            assert (caught.value.sample, "tensor 'w'" in str(caught.value)) == (0, True)
    # Numbers one by one are as good as packed ones.
    one_by_one = number(7, 1) + number(7, -2)
    assert bp.open(model(tmp_path / "a.onnx", tensor("w", one_by_one, dtype=7))).tensors()["w"].tolist() == [
        1,
        -2,
    ]


def test_graphs_nested_without_end(tmp_path):
    graph = b""
    for _ in range(3000):
        graph = block(1, block(4, b"If") + block(5, block(1, b"then_branch") + block(6, graph)))
    with pytest.raises(bp.DamagedError, match="nested more than"):
        bp.open(model(tmp_path / "a.onnx", graph))
    kind = b""
    for _ in range(3000):
        kind = block(4, block(1, kind))
    with pytest.raises(bp.DamagedError, match="nested too deep"):
        bp.open(model(tmp_path / "a.onnx", block(11, block(1, b"x") + block(2, kind))))


def written(path, **options):
    """Tensors, and the model of them that we write."""
    arrays = {
        "weight": np.arange(12, dtype=np.float32).reshape(3, 4), "bias": np.array(7, np.int64),
        "none": np.zeros((0, 3), np.float16), "mask": np.array([True, False]),
    }  # fmt: skip
    np.savez(path.with_suffix(".npz"), **arrays)
    bp.convert(path.with_suffix(".npz"), path, **options)
    return arrays


def test_every_tensor_is_an_output(tmp_path):
    onnx = pytest.importorskip("onnx")
    arrays = written(tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    onnx.checker.check_model(model, full_check=True)
    assert [item.name for item in model.graph.initializer] == list(arrays)
    outputs = {item.name: item.type.tensor_type for item in model.graph.output}
    assert {name: [d.dim_value for d in output.shape.dim] for name, output in outputs.items()} == {
        name: list(array.shape) for name, array in arrays.items()
    }
    with bp.open(tmp_path / "a.onnx") as data:
        assert all(np.array_equal(data.tensors()[name], array) for name, array in arrays.items())


@pytest.mark.reference
@pytest.mark.parametrize("external", [False, True])
def test_onnx_runtime_opens_what_we_write(external, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    arrays = written(tmp_path / "a.onnx", target_options={"external": external})
    session = onnxruntime.InferenceSession(str(tmp_path / "a.onnx"))
    outputs = dict(zip([output.name for output in session.get_outputs()], session.run(None, {}), strict=True))
    assert outputs.keys() == arrays.keys()
    assert all(np.array_equal(outputs[name], array) for name, array in arrays.items())


def test_what_is_no_model(tmp_path):
    path = tmp_path / "a.onnx"
    for data in (b"", b"\x08\x08", b"hello world", bytes(100), b"\x0b\x0c", b"\xff" * 20):
        path.write_bytes(data)
        with pytest.raises(bp.DamagedError) as caught:
            bp.open(path, format="onnx")
        assert caught.value.path == str(path)


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damage_gives_errors_or_values(damage, tmp_path):
    pytest.importorskip("onnx")
    bp.convert(GOLDEN / "branches.onnx", tmp_path / "ext.onnx", target_options={"external": True})
    shutil.copy(GOLDEN / "branches.onnx", tmp_path / "a.onnx")
    for file in sorted(tmp_path.iterdir()):
        path = tmp_path / file.name.removesuffix(".data")
        assert sound(path)

        def bounded(path=path):
            with memory_bounded(1000):
                return sound(path)

        data = memoryview(file.read_bytes())
        # A message has no end of its own: without its last fields it is a message still.
        ends = {part.end for part in protobuf.parts(data, 0, len(data))} if file == path else set()
        for what, good in survive(itertools.islice(damage(file), 700 if damage is cuts else 120), bounded):
            noticed = not good or damage is flips or file.stat().st_size in ends
            assert noticed, f"unnoticed: {what}"
        file.write_bytes(data)


def test_flips_in_typed_values(tmp_path):
    path = tmp_path / "types.onnx"
    shutil.copy(GOLDEN / "types.onnx", path)

    def read():
        with contextlib.suppress(bp.BatchplantError), bp.open(path, format="onnx") as reader:
            reader.read(range(len(reader)))
        return True

    assert all(good for _, good in survive(itertools.islice(flips(path), 150), read))


# -- the wire format ---------------------------------------------------------------------------------------


@given(st.lists(st.integers(-(2**63), 2**63 - 1)))
def test_varints_all_at_once(values):
    packed = np.frombuffer(b"".join(map(protobuf.varint, values)), np.uint8)
    assert protobuf.unpack(packed, 0).tolist() == values
    at, actual = 0, []
    while at < len(packed):
        value, at = protobuf.read_varint(packed.data, at, len(packed))
        actual.append(protobuf.signed(value))
    assert actual == values


@given(st.binary(max_size=200))
def test_any_bytes_as_a_message(data):
    with contextlib.suppress(bp.DamagedError):
        result = list(protobuf.parts(memoryview(data), 0, len(data)))
        assert all(item.number > 0 and item.start <= item.end <= len(data) for item in result)
