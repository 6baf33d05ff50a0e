"""Safetensors: the suite, the reference library both ways, headers that lie."""

import json
import os
import shutil

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats import safetensors as ours
from batchplant.formats.base.tensors import TENSORS, from_array
from batchplant.testing import ModelSuite
from batchplant.testing.cases import memory_bounded
from batchplant.testing.suite import tensor
from repository import GOLDEN
from variants import in_one_test

DTYPES = [name for name in ours.NAMES if "float6" not in name and name != "float4_e2m1fn"]


class TestSuite(ModelSuite):
    format = "safetensors"
    suffix = ".safetensors"
    golden = GOLDEN
    dtypes = DTYPES


def write(path, samples, **options):
    with bp.create(path, TENSORS, **options) as out:
        for sample in samples:
            out.append(sample)
    return path


def raw(path, header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def said(**tensors):
    return {
        name: dict(zip(("dtype", "shape", "data_offsets"), item, strict=True))
        for name, item in tensors.items()
    }


@pytest.mark.parametrize("name", ["dtypes.safetensors", "one.safetensors"])
def test_files_of_the_reference(name):
    expected = json.loads((GOLDEN / "safetensors/expected.json").read_text())[name]
    with bp.open(GOLDEN / "safetensors" / name) as reader:
        actual = {
            sample["name"]: [sample["dtype"], sample["shape"].tolist(), sample["data"].hex()]
            for sample in reader
        }
        assert actual == expected
        assert dict(reader.metadata) == ({"format": "pt", "by": "größe"} if "dtypes" in name else {})
    assert bp.verify(GOLDEN / "safetensors" / name).problems == []


@pytest.mark.reference
def test_the_reference_reads_what_we_write(tmp_path):
    reference = pytest.importorskip("safetensors")
    samples = [
        tensor(f"{n} {dtype}", dtype, shape) for dtype in DTYPES for n, shape in enumerate([(3, 4), (), (0,)])
    ]
    path = write(
        tmp_path / "a.safetensors", [tensor("odd", "bool", (3,)), *samples], metadata={"größe": "ja"}
    )
    result = dict(reference.deserialize(path.read_bytes()))
    for sample in samples:
        there = result[sample["name"]]
        assert there["dtype"] == ours.NAMES[sample["dtype"]]
        assert there["shape"] == sample["shape"].tolist()
        assert bytes(there["data"]) == sample["data"]
    with reference.safe_open(path, "np") as opened:
        assert opened.metadata() == {"größe": "ja"}
    # Though there are no gaps, and a bool of three bytes came first.
    with bp.open(path) as reader:
        assert next(iter(reader.tensors())) == "odd"
        assert all(array.flags.aligned for array in reader.tensors().values())


@pytest.mark.reference
def test_arrays_of_the_reference(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    arrays = {
        "w": np.arange(12, dtype=np.float32).reshape(3, 4),
        "n": np.arange(5),
        "c": np.ones(2, np.complex64),
    }
    reference.save_file(arrays, tmp_path / "a.safetensors")
    with bp.open(tmp_path / "a.safetensors") as reader:
        result = reader.tensors()
        assert set(result) == set(arrays)
        assert all(np.array_equal(result[name], arrays[name]) for name in arrays)
    write(tmp_path / "b.safetensors", [from_array(name, array) for name, array in arrays.items()])
    back = reference.load_file(tmp_path / "b.safetensors")
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)


def test_tensors_lie_in_the_mapping(tmp_path):
    path = write(tmp_path / "a.safetensors", [tensor("a", "float32", (4, 4)), tensor("b", "int8", (3,))])
    with bp.open(path) as reader:
        one, two = reader.tensors()["a"], reader.tensors()["a"]
        assert np.shares_memory(one, two)
        assert not one.flags.writeable
        assert "a" in reader.tensors()
        assert "c" not in reader.tensors()
        with pytest.raises(KeyError):
            reader.tensors()["c"]


def test_a_model_in_several_files(tmp_path):
    write(
        tmp_path / "model-00001-of-00002.safetensors",
        [tensor("a", "float32", (2,)), tensor("b", "bool", (3,))],
    )
    write(tmp_path / "model-00002-of-00002.safetensors", [tensor("c", "bfloat16", (2, 2))])
    names = [("a", 1), ("b", 1), ("c", 2)]
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(
        json.dumps(
            {"metadata": {}, "weight_map": {name: f"model-0000{n}-of-00002.safetensors" for name, n in names}}
        )
    )
    with bp.open(index) as reader:
        assert reader.format == "safetensors"
        assert [sample["name"] for sample in reader] == ["a", "b", "c"]
        assert reader.where(2).endswith("00002-of-00002.safetensors")
        assert reader.facts()["files"] == 2
        assert len(reader.spans("data").files) == 2
    assert bp.verify(index).problems == []
    # A folder, a glob or a list of all of them: every tensor comes once, through the index.
    for every in (tmp_path, f"{tmp_path}/*", sorted(tmp_path.iterdir())):
        with bp.open(every) as reader:
            assert [sample["name"] for sample in reader] == ["a", "b", "c"]
    bp.convert(index, tmp_path / "whole.safetensors")
    assert bp.verify(tmp_path / "whole.safetensors", against=str(index)).problems == []
    os.rename(tmp_path / "model-00002-of-00002.safetensors", tmp_path / "elsewhere")
    with pytest.raises(bp.DamagedError, match=r"00002-of-00002\.safetensors is missing"):
        bp.open(index)
    shutil.copy(tmp_path / "model-00001-of-00002.safetensors", tmp_path / "model-00002-of-00002.safetensors")
    with pytest.raises(bp.DamagedError, match="no tensor 'c', which the index names"):
        bp.open(index)


@in_one_test(
    "text",
    ["{", "[]", '{"weight_map": []}', '{"weight_map": {"a": 1}}', '{"weight_map": {"a": "../b"}}', "{}", "",
     '{"weight_map": {"a": "/etc/passwd"}}', '{"weight_map": {"a": ""}}', "[" * 100_000,
     '{"weight_map": {"a": ".."}}', '{"weight_map": {"a": "x\\u0000"}}'],
)  # fmt: skip
def test_an_index_that_is_none(text, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(bp.DamagedError):
        bp.open(tmp_path / "model.safetensors.index.json", format="safetensors")


FOUR = b"\0" * 4


@in_one_test(
    ("header", "data", "reason"),
    [
        (said(a=("F32", [1], [0, 4])), FOUR + b"x", "the tensors end here"),
        (said(a=("F32", [1], [0, 4])), b"", "but the file ends|the tensors end here"),
        (said(a=("F32", [1], [0, 4]), b=("U8", [1], [3, 4])), FOUR, "overlap before 'b'"),
        (said(a=("U8", [1], [0, 1]), b=("U8", [1], [2, 3])), b"123", "gap before 'b'"),
        (said(a=("F32", [2], [0, 4])), FOUR, r"4 bytes are not float32 \[2\]"),
        (said(a=("F32", [-1], [0, 4])), FOUR, "does not say where"),
        (said(a=("F32", [1.0], [0, 4])), FOUR, "does not say where"),
        (said(a=("F32", [True], [0, 4])), FOUR, "does not say where"),
        (said(a=("F32", [1], [4, 0])), FOUR, "does not say where"),
        (said(a=("F32", [1], [0])), FOUR, "does not say where"),
        (said(a=("F32", 1, [0, 4])), FOUR, "does not say where"),
        (said(a=(None, [1], [0, 4])), FOUR, "does not say where"),
        (said(a=("F4", [1], [0, 1])), b"1", "does not fill its last byte"),
        (said(a=("U8", [2**40, 2**40], [0, 4])), FOUR, "cannot have the shape"),
        (said(a=("U8", [0] * 100, [0, 0])), b"", "cannot have the shape"),
        (said(a=("U8", [0, 2**70], [0, 0])), b"", "cannot have the shape"),
        ({"a": 3}, b"", "does not say where"),
        ({"__metadata__": {"a": 1}}, b"", "metadata is not text"),
        ({"__metadata__": []}, b"", "metadata is not text"),
        (b'{"a": {}, "a": {}}', b"", "stands in it twice"),
        (b'{"a": {"dtype": "U8", "dtype": "U8"}}', b"", "stands in it twice"),
        (b'{"\\ud800": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}}', b"", "is no name"),
        (b"[]", b"", "no JSON object"),
        (b"{\xff}", b"", "the header is damaged"),
        (b'{"a":' + b"[" * 100_000, b"", "the header is damaged"),
        (b'{"a": ' + b"9" * 5000 + b"}", b"", "the header is damaged"),
    ],
)  # fmt: skip
def test_headers_that_lie(header, data, reason, tmp_path):
    with pytest.raises(bp.DamagedError, match=reason) as caught:
        bp.open(raw(tmp_path / "a.safetensors", header, data), format="safetensors")
    assert caught.value.path is not None


@in_one_test("size", [0, 2**20, 100_000_001, 2**63, 2**64 - 1])
def test_a_header_that_is_not_as_long_as_it_says(size, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(size.to_bytes(8, "little") + b"{}")
    with memory_bounded(10), pytest.raises(bp.DamagedError):
        bp.open(path, format="safetensors")


def test_a_dtype_of_tomorrow_is_named(tmp_path):
    with pytest.raises(bp.SchemaError, match="'a' has the dtype 'F3'"):
        bp.open(raw(tmp_path / "a.safetensors", said(a=("F3", [1], [0, 1])), b"1"))


def test_header_padding_and_empty_files_of_the_reference_open(tmp_path):
    assert len(bp.open(raw(tmp_path / "a.safetensors", b"{}      "))) == 0
    header = json.dumps(said(a=("U8", [1], [0, 1]))).encode() + b"    "
    assert bp.open(raw(tmp_path / "b.safetensors", header, b"7"))[0]["data"] == b"7"


def test_what_cannot_be_written(tmp_path):
    path = tmp_path / "a.safetensors"
    for sample, reason in [
        (tensor("a", "complex128", (1,)), "safetensors has no complex128; npz and pytorch"),
        (tensor("a", "float4_e2m1fn", (3,)), "does not fill its last byte"),
        (tensor("__metadata__", "int8", (1,)), "cannot be called __metadata__"),
        (tensor("a", "int8", (2,)) | {"shape": np.array([3])}, r"int8 \[3\] has 3 bytes, and 2 were given"),
        (tensor("a", "int8", (2,)) | {"dtype": "int9"}, "there is no dtype 'int9'"),
        (tensor("a", "int8", (2,)) | {"shape": np.array([-2])}, "cannot have the shape"),
    ]:
        with pytest.raises(bp.BatchplantError, match=reason):
            write(path, [sample])
        assert os.listdir(tmp_path) == []
    with pytest.raises(bp.SchemaError, match="two tensors are called 'a'"):
        write(path, [tensor("a", "int8", (1,))] * 2)
    with pytest.raises(
        bp.SchemaError, match="named tensors, and needs exactly the fields name, dtype, shape, data"
    ):
        bp.create(path, {"image": bp.Image()})
    with pytest.raises(bp.OptionError, match="option metadata of safetensors is text by name or none"):
        bp.create(path, TENSORS, metadata={"a": 1})


def test_metadata_is_kept_by_a_conversion(tmp_path):
    write(tmp_path / "a.safetensors", [tensor("a", "int8", (1,))], metadata={"format": "pt"})
    bp.convert(tmp_path / "a.safetensors", tmp_path / "b.safetensors")
    assert dict(bp.open(tmp_path / "b.safetensors").metadata) == {"format": "pt"}
    bp.convert(
        tmp_path / "a.safetensors", tmp_path / "c.safetensors", target_options={"metadata": {"x": "y"}}
    )
    assert dict(bp.open(tmp_path / "c.safetensors").metadata) == {"x": "y"}
