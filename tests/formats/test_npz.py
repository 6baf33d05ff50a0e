"""NPZ: the suite, and archives that NumPy or nobody honest wrote."""

import io
import json
import struct
import zipfile
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
from batchplant.formats import npz
from batchplant.testing import FormatSuite, ModelSuite
from batchplant.testing.cases import cells, jpeg, memory_bounded, pixels
from repository import GOLDEN
from variants import in_one_test


class TestSuite(FormatSuite):
    format = "npz"
    suffix = ".npz"
    golden = GOLDEN


class TestCompressed(FormatSuite):
    wraps = True
    format = "npz"
    suffix = ".npz"
    options: ClassVar = {"compress": True}
    in_place = False


class TestModel(ModelSuite):
    format = "npz"
    suffix = ".npz"
    dtypes = npz.NpzWriter.dtypes


ARRAYS = {
    "label": np.arange(6, dtype=np.uint8),
    "größe": np.linspace(0, 1, 6, dtype=np.float32),
    "a.b": np.arange(24, dtype=">i4").reshape(6, 2, 2),
    "f": np.asfortranarray(np.arange(12.0).reshape(6, 2)),
    "text": np.array(list("abcdeä")),
    "raw": np.array([b"", b"1", b"22", b"333", b"\xff", b"5"]),
    "ok": np.arange(6) % 2 == 0,
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_archives_of_numpy(save, tmp_path):
    save(tmp_path / "a.npz", **ARRAYS)
    with bp.open(tmp_path / "a.npz") as reader:
        assert dict(reader.schema) == {
            "label": bp.Int("uint8"),
            "größe": bp.Float("float32"),
            "a.b": bp.Tensor("int32", (2, 2)),
            "f": bp.Tensor("float64", (2,)),
            "text": bp.Text(),
            "raw": bp.Bytes(),
            "ok": bp.Bool(),
        }
        assert len(reader) == 6
        for row, sample in enumerate(reader):
            for name, array in ARRAYS.items():
                assert np.array_equal(sample[name], array[row])
        assert reader.facts()["compressed"] == (save is np.savez_compressed)
        used_in_place = {name for name in reader.schema if reader.spans(name) is not None}
        assert used_in_place == (set() if save is np.savez_compressed else {"label", "größe", "ok"})
    assert bp.verify(tmp_path / "a.npz", decode=True).problems == []


def test_arrays_of_differing_length_have_to_be_chosen(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(4), y=np.arange(4.0), mean=np.arange(3))
    with pytest.raises(bp.SchemaError, match=r"x 4, y 4, mean 3\); choose equal ones with fields"):
        bp.open(tmp_path / "a.npz", as_tensors=False)
    # All of them together are no columns, but the tensors of a model.
    assert [sample["name"] for sample in bp.open(tmp_path / "a.npz")] == ["x", "y", "mean"]
    with bp.open(tmp_path / "a.npz", fields=["y", "x"]) as reader:
        assert list(reader.schema) == ["y", "x"]
        assert reader[3] == {"y": 3.0, "x": 3}
    with pytest.raises(bp.DamagedError, match="there is no member z"):
        bp.open(tmp_path / "a.npz", fields=["z"])


def test_choosing_fields_of_our_own(tmp_path):
    with bp.create(tmp_path / "a.npz", {"n": bp.Int(), "t": bp.Text()}) as out:
        out.append({"n": 1, "t": "one"})
    assert list(bp.open(tmp_path / "a.npz", fields=["t"])) == [{"t": "one"}]
    with pytest.raises(bp.FieldNameError, match="no field 'z'"):
        bp.open(tmp_path / "a.npz", fields=["z"])


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({}, "there are no arrays in it"),
        ({"x": np.zeros(2, "V3")}, "field 'x': arrays of .* have no field kind"),
    ],
)
def test_archives_that_are_no_dataset(arrays, reason, tmp_path):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(bp.BatchplantError, match=reason):
        bp.open(tmp_path / "a.npz", format="npz", as_tensors=False)


def test_fields_of_structured_arrays_are_columns(tmp_path):
    kind = np.dtype([("n", ">i4"), ("at", [("x", "<f4"), ("y", "<f4")]), ("s", "S3"), ("v", "<f8", (2,))])
    rows = np.zeros(3, kind)
    rows["n"], rows["at"]["y"], rows["s"] = [1, 2, 3], [0.5, 1, 1.5], [b"a", b"bc", b""]
    kinds = {
        "n": bp.Int("int32"), "at.x": bp.Float("float32"), "at.y": bp.Float("float32"), "s": bp.Bytes(),
        "v": bp.Tensor("float64", (2,)),
    }  # fmt: skip
    np.savez(tmp_path / "alone.npz", rows)
    with bp.open(tmp_path / "alone.npz") as reader:
        assert dict(reader.schema) == kinds
        assert [(sample["n"], sample["at.y"], sample["s"]) for sample in reader] == [
            (1, 0.5, b"a"),
            (2, 1, b"bc"),
            (3, 1.5, b""),
        ]
    assert list(bp.open(tmp_path / "alone.npz", fields=["n"])) == [{"n": 1}, {"n": 2}, {"n": 3}]
    np.savez_compressed(tmp_path / "both.npz", t=rows, label=np.arange(3))
    with bp.open(tmp_path / "both.npz") as reader:
        assert dict(reader.schema) == {
            **{f"t.{name}": kind for name, kind in kinds.items()},
            "label": bp.Int(),
        }
        assert reader[2]["t.at.y"] == 1.5
    assert list(bp.open(tmp_path / "both.npz", fields=["t"]).schema) == [f"t.{name}" for name in kinds]
    assert bp.open(tmp_path / "both.npz", fields=["label", "t.n"])[1] == {"label": 1, "t.n": 2}
    with pytest.raises(bp.FieldNameError, match=r"'t\.m'"):
        bp.open(tmp_path / "both.npz", fields=["t.m"])


def test_single_values_are_no_columns(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.arange(3), rate=44100)
    assert list(bp.open(tmp_path / "a.npz")) == [{"x": 0}, {"x": 1}, {"x": 2}]
    assert list(bp.open(tmp_path / "a.npz", fields=["rate"])) == [{"rate": 44100}]
    np.savez(tmp_path / "b.npz", rate=44100, loss=0.5)
    assert list(bp.open(tmp_path / "b.npz")) == [{"rate": 44100, "loss": 0.5}]


def test_object_arrays_are_opened_only_by_leave(tmp_path):
    np.savez(tmp_path / "a.npz", n=np.arange(2), o=np.array([{"a": 1}, {"b": [2]}], dtype=object))
    with pytest.raises(bp.UnsafeError, match=r"can run any code.*allow_pickle=True") as caught:
        bp.open(tmp_path / "a.npz")
    assert caught.value.field == "o"
    assert list(bp.open(tmp_path / "a.npz", fields=["n"])) == [{"n": 0}, {"n": 1}]
    with bp.open(tmp_path / "a.npz", allow_pickle=True) as reader:
        assert reader.schema["o"] == bp.Json()
        assert reader[1] == {"n": 1, "o": {"b": [2]}}


def test_numpy_reads_what_we_write(tmp_path):
    schema = {"n": bp.Int("int16"), "text": bp.Text(optional=True), "image": bp.Image()}
    with bp.create(tmp_path / "a.npz", schema) as out:
        out.append({"n": 3, "text": "größe", "image": pixels(2, 3, 3)})
        out.append({"n": 4, "text": None, "image": jpeg()})
    with np.load(tmp_path / "a.npz") as arrays:
        assert arrays["n"].tolist() == [3, 4]
        assert arrays["text.data"].tobytes().decode() == "größe"
        assert arrays["text.offsets"].tolist() == [0, 7, 7]
        assert arrays["text.valid"].tolist() == [True, False]
        assert arrays["image.shape"].tolist() == [[2, 3, 3], [0, 0, 0]]


def test_equal_data_gives_equal_files(tmp_path):
    for name in ("a", "b"):
        with bp.create(tmp_path / f"{name}.npz", {"n": bp.Int(), "t": bp.Text()}) as out:
            for number in range(50):
                out.append({"n": number, "t": str(number)})
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize(
    "schema",
    [
        {"a": bp.Bytes(), "a.data": bp.Int()},
        {"a/b": bp.Int()},
        {"a\\b": bp.Bytes()},
    ],
)
def test_names_that_cannot_be_members(schema, tmp_path):
    with pytest.raises(bp.OptionError, match="rename the field"):
        bp.create(tmp_path / "a.npz", schema)


# --- lies ---------------------------------------------------------------------------------------------


def npy_bytes(array):
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def archive(path, members, kind=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", kind) as out:
        for name, data in members.items():
            out.writestr(name, data if isinstance(data, bytes) else npy_bytes(data))


def patch_directory(path, offset, data):
    """Overwrite a part of the first entry in the central directory."""
    whole = bytearray(path.read_bytes())
    at = whole.index(b"PK\1\2") + offset
    whole[at : at + len(data)] = data
    path.write_bytes(whole)


@pytest.fixture(scope="module")
def many_zeros(tmp_path_factory):
    path = tmp_path_factory.mktemp("zeros") / "a.npz"
    archive(path, {"x.npy": np.zeros(50 << 20, np.uint8)}, zipfile.ZIP_DEFLATED)
    return path.read_bytes()


@pytest.mark.parametrize("claimed", [0, 1, 1 << 20, (1 << 32) - 2])
def test_a_member_that_lies_about_its_size_takes_no_memory(claimed, many_zeros, tmp_path):
    path = tmp_path / "a.npz"
    path.write_bytes(many_zeros)
    assert path.stat().st_size < 100_000
    patch_directory(path, 24, struct.pack("<I", claimed))
    with memory_bounded(path.stat().st_size), pytest.raises(bp.DamagedError):
        bp.open(path)


def test_a_stored_member_that_lies_about_its_size_has_its_spans_all_the_same(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, {"x.npy": np.arange(5)})
    patch_directory(path, 24, struct.pack("<I", 999))
    with bp.open(path) as reader:
        spans = reader.spans("x")
        data = path.read_bytes()
        assert [data[at : at + 8] for at in spans.start] == cells(reader)["x"]


NOTE = json.dumps([{"name": "t", "kind": "text"}])
IMAGE_NOTE = json.dumps([{"name": "t", "kind": "image"}])
BYTES = np.frombuffer(b"abcdef", np.uint8)
ONE = np.array([0, 6])


@in_one_test(
    ("note", "members"),
    [
        (NOTE, {"t.data": BYTES, "t.offsets": np.array([0, 3, 7])}),
        (NOTE, {"t.data": BYTES, "t.offsets": np.array([1, 3, 6])}),
        (NOTE, {"t.data": BYTES, "t.offsets": np.array([0, 9, 6])}),
        (NOTE, {"t.data": BYTES, "t.offsets": np.array([0, 3, 6], np.int32)}),
        (NOTE, {"t.data": BYTES, "t.offsets": np.array([[0, 3, 6]])}),
        (NOTE, {"t.data": BYTES, "t.offsets": np.array(6)}),
        (NOTE, {"t.data": BYTES, "t.offsets": np.zeros(0, np.int64)}),
        (NOTE, {"t.data": BYTES.view(np.int8), "t.offsets": np.array([0, 3, 6])}),
        (NOTE, {"t.offsets": np.array([0, 3, 6])}),
        (NOTE, {"t.data": BYTES, "t.offsets": np.array([0, 3, 6]), "t.valid": np.array([1, 1])}),
        (IMAGE_NOTE, {"t.data": BYTES, "t.offsets": ONE, "t.shape": np.array([[-1, -2, 3]], np.int32)}),
        (IMAGE_NOTE, {"t.data": BYTES, "t.offsets": ONE, "t.shape": np.array([[1, 1, 6]], np.int32)}),
        (IMAGE_NOTE, {"t.data": BYTES, "t.offsets": ONE, "t.shape": np.zeros((2, 3), np.int32)}),
        (json.dumps([{"name": "t", "kind": "int"}]), {"t": np.arange(3.0)}),
        (json.dumps([{"name": "t", "kind": "int"}]), {"t": np.array(3)}),
        (json.dumps([{"name": "t", "kind": "tensor", "dtype": "int64", "shape": [2]}]), {"t": np.arange(3)}),
        (json.dumps([{"name": "t", "kind": "nonsense"}]), {"t": np.arange(3)}),
        (json.dumps([{"name": [], "kind": []}]), {"t": np.arange(3)}),
        (json.dumps([{"name": "t", "kind": "int"}] * 2), {"t": np.arange(3)}),
        (json.dumps({"t": "int"}), {"t": np.arange(3)}),
        ("[", {"t": np.arange(3)}),
        ("[" * 100_000, {"t": np.arange(3)}),
        ("\udcff", {"t": np.arange(3)}),
    ],
)  # fmt: skip
def test_members_that_do_not_fit_together(note, members, tmp_path):
    note = note.encode("utf8", "surrogateescape")
    archive(tmp_path / "a.npz", {npz.SCHEMA: note, **{f"{name}.npy": data for name, data in members.items()}})

    def read():
        with bp.open(tmp_path / "a.npz") as reader:
            return list(reader)

    with pytest.raises((bp.DataError, bp.SchemaError)):
        read()


def test_an_encrypted_or_strangely_packed_member(tmp_path):
    path = tmp_path / "a.npz"
    archive(path, {"x.npy": np.arange(5)}, zipfile.ZIP_BZIP2)
    with pytest.raises(bp.DamagedError, match="compressed in an unknown way"):
        bp.open(path)
    archive(path, {"x.npy": np.arange(5)})
    patch_directory(path, 8, b"\1\0")
    with pytest.raises(bp.DamagedError, match="encrypted"):
        bp.open(path)


def test_the_archives_own_checksums_are_verified(tmp_path):
    archive(tmp_path / "a.npz", {"x.npy": np.arange(5), "y.npy": np.arange(5)})
    data = bytearray((tmp_path / "a.npz").read_bytes())
    data[data.index(b"PK\3\4", 4) - 3] ^= 1
    (tmp_path / "a.npz").write_bytes(data)
    [problem] = bp.verify(tmp_path / "a.npz").problems
    assert problem.message == "the checksum of x.npy is wrong"
