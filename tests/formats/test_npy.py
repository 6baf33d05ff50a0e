"""NPY: the suite, and arrays of every dtype, order and shape that NumPy writes."""

import io
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs import npy
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, equal
from repository import GOLDEN
from variants import in_one_test


class TestSuite(FormatSuite):
    format = "npy"
    suffix = ".npy"
    # There is only the dtype: class names are lost, and a tensor without axes is a number.
    keeps_schema = False
    leave_out = ("tensor without axes",)
    golden = GOLDEN


@pytest.fixture
def saved(tmp_path):
    def save(array, **options):
        np.save(tmp_path / "a.npy", array, allow_pickle=True)
        return bp.open(tmp_path / "a.npy", **options)

    return save


@in_one_test(
    ("array", "field"),
    [
        (np.arange(5, dtype=np.int32), bp.Int("int32")),
        (np.arange(5, dtype=">i8"), bp.Int("int64")),
        (np.array([0.5, np.nan], ">f4"), bp.Float("float32")),
        (np.array([True, False]), bp.Bool()),
        (np.arange(24, dtype=np.uint16).reshape(4, 3, 2), bp.Tensor("uint16", (3, 2))),
        (np.asfortranarray(np.arange(24.0).reshape(4, 3, 2)), bp.Tensor("float64", (3, 2))),
        (np.asfortranarray(np.arange(12, dtype=">u4").reshape(4, 3)), bp.Tensor("uint32", (3,))),
        (np.array([1 + 2j, 3j], np.complex64), bp.Tensor("complex64")),
        (np.array(["2024-01-01", "NaT"], "datetime64[D]"), bp.Tensor("datetime64[D]")),
        (np.array([1, 2], "timedelta64[s]"), bp.Tensor("timedelta64[s]")),
        (np.zeros((3, 0), np.float32), bp.Tensor("float32", (0,))),
        (np.zeros((0, 4), np.int8), bp.Tensor("int8", (4,))),
        (np.array([b"ab", b"", b"\xff\0c"], "S4"), bp.Bytes()),
        (np.array(["größe", "", "🌱"], "U5"), bp.Text()),
    ],
)
def test_plain_arrays_are_one_field(saved, array, field):
    with saved(array) as reader:
        assert dict(reader.schema) == {"data": field}
        assert len(reader) == len(array)
        for sample, row in zip(reader, array, strict=True):
            value = row.item() if field.kind in ("int", "float", "bool", "text", "bytes") else row
            native = value.astype(value.dtype.newbyteorder("=")) if isinstance(value, np.ndarray) else value
            assert equal(native, sample["data"])


def test_structured_arrays_have_a_field_for_each_name(saved):
    dtype = [("id", "<u2"), ("größe", ">f8"), ("box", "<i2", (2, 2)), ("name", "U4"), ("ok", "?")]
    array = np.array([(1, 0.5, [[1, 2], [3, 4]], "ä", True), (2, -1, [[0, 0], [9, 9]], "", False)], dtype)
    with saved(array) as reader:
        assert reader.schema == bp.Schema(
            id=bp.Int("uint16"),
            größe=bp.Float(),
            box=bp.Tensor("int16", (2, 2)),
            name=bp.Text(),
            ok=bp.Bool(),
        )
        assert reader[1]["name"] == ""
        assert reader[0]["größe"] == 0.5
        assert reader[0]["box"].tolist() == [[1, 2], [3, 4]]
        # Behind one another in a row of 29 bytes; what is not native cannot be used in place.
        assert reader.spans("größe") is None
        assert np.diff(reader.spans("box").start).tolist() == [array.dtype.itemsize]


def test_structured_arrays_with_more_axes(saved):
    array = np.zeros((3, 2), [("a", "<i4"), ("b", "<f4", (2,))])
    array["a"] = np.arange(6).reshape(3, 2)
    with saved(array) as reader:
        assert dict(reader.schema) == {"a": bp.Tensor("int32", (2,)), "b": bp.Tensor("float32", (2, 2))}
        assert [sample["a"].tolist() for sample in reader] == [[0, 1], [2, 3], [4, 5]]


def test_structures_in_structures_and_single_values(saved):
    array = np.zeros(3, [("a", [("b", "<i4"), ("c", "<f8", (2,))]), ("d", "u1")])
    array["a"]["b"] = [1, 2, 3]
    with saved(array) as reader:
        assert list(reader.schema) == ["a.b", "a.c", "d"]
        assert [sample["a.b"] for sample in reader] == [1, 2, 3]
        spans = reader.spans("a.b", [2])
        data = Path(spans.files[0]).read_bytes()
        assert data[spans.start[0] : spans.start[0] + spans.size[0]] == (3).to_bytes(4, "little")
    with saved(np.float32(3)) as reader:
        assert list(reader) == [{"data": 3.0}]


@pytest.mark.parametrize(
    ("array", "reason"),
    [
        (np.zeros(3, "V5"), "no field kind"),
        (np.zeros((2, 3), "S4"), "no field kind"),
        (np.zeros(2, [("a", "V3"), ("b", "<i4")]), "no field kind"),
    ],
)
def test_arrays_that_are_no_dataset(saved, array, reason):
    with pytest.raises(bp.SchemaError, match=reason):
        saved(array)


class Harmless:
    """Notices when it is unpickled."""

    loaded = 0

    def __setstate__(self, state):
        Harmless.loaded += 1


def test_object_arrays_are_opened_only_by_leave(saved):
    texts = np.array(["a", "größe", None], dtype=object)
    with pytest.raises(bp.UnsafeError, match=r"can run any code.*allow_pickle=True"):
        saved(texts)
    with saved(texts, allow_pickle=True) as reader:
        assert dict(reader.schema) == {"data": bp.Text(optional=True)}
        assert [sample["data"] for sample in reader] == ["a", "größe", None]
        assert reader.spans("data") is None
    ragged = np.empty(2, dtype=object)
    ragged[:] = [np.arange(3), np.arange(5)]
    with saved(ragged, allow_pickle=True) as reader:
        assert dict(reader.schema) == {"data": bp.Tensor("int64", (None,))}
        assert reader[1]["data"].tolist() == [0, 1, 2, 3, 4]
    harmless = Harmless()
    harmless.x = 1
    with pytest.raises(bp.UnsafeError):
        saved(np.array([harmless], dtype=object))
    assert Harmless.loaded == 0


def test_a_damaged_pickle_is_an_error_of_ours(tmp_path):
    np.save(tmp_path / "a.npy", np.array(["a", "b"], dtype=object), allow_pickle=True)
    data = (tmp_path / "a.npy").read_bytes()
    (tmp_path / "a.npy").write_bytes(data[:-5])
    with pytest.raises(bp.DamagedError, match="the pickle does not load"):
        bp.open(tmp_path / "a.npy", allow_pickle=True)


def test_a_tensor_without_axes_comes_back_as_a_number(tmp_path):
    with bp.create(tmp_path / "a.npy", {"x": bp.Tensor("float32"), "n": bp.Int()}) as out:
        out.append({"x": np.float32(1.5), "n": 1})
    assert list(bp.open(tmp_path / "a.npy")) == [{"x": 1.5, "n": 1}]


def test_numpy_reads_what_we_write(tmp_path):
    with bp.create(tmp_path / "plain.npy", {"data": bp.Tensor("int16", (2, 3))}) as out:
        for n in range(1000):
            out.append({"data": np.full((2, 3), n, np.int16)})
    plain = np.load(tmp_path / "plain.npy")
    assert plain.shape == (1000, 2, 3)
    assert plain[:, 0, 0].tolist() == list(range(1000))
    with bp.create(tmp_path / "named.npy", {"größe": bp.Float(), "ラベル": bp.Int("uint8")}) as out:
        out.append({"größe": 0.25, "ラベル": 255})
    named = np.load(tmp_path / "named.npy")
    assert named.dtype.names == ("größe", "ラベル")
    assert named[0].item() == (0.25, 255)


def test_more_names_than_a_header_holds(tmp_path):
    schema = {f"field {number:06}": bp.Int() for number in range(1000)}
    with pytest.raises(bp.SchemaError, match="longer header than NumPy reads"):
        bp.create(tmp_path / "a.npy", schema)


# --- headers ------------------------------------------------------------------------------------------


@in_one_test("dtype", ["<f4", "|b1", ">i8", "<M8[25s]", "S5", "<U7", "c16", [("a", "<i4", (2,))], "O"])
@in_one_test("shape", [(), (3,), (0,), (10, 2), (5, 0, 7)])
def test_headers_are_those_of_numpy(dtype, shape):
    dtype = np.dtype(dtype)
    theirs = io.BytesIO()
    described = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(theirs, described)
    ours = npy.header_bytes(dtype, shape)
    assert ours == theirs.getvalue()
    assert npy.parse_header(ours) == (dtype, shape, False, len(ours))


def header(text, version=1):
    data = text.encode("utf8")
    size = len(data).to_bytes(2 if version == 1 else 4, "little")
    return npy.MAGIC + bytes([version, 0]) + size + data


@pytest.mark.parametrize("version", [1, 2, 3])
def test_every_version_and_any_order_of_keys(version):
    text = '{"shape": (2, 3),  "fortran_order": True, "descr": "<f4"}\n'
    assert npy.parse_header(header(text, version))[:3] == (np.dtype("<f4"), (2, 3), True)


PLAIN = "{{'descr': {}, 'fortran_order': {}, 'shape': {}, }}"


@in_one_test(
    "data",
    [
        b"",
        npy.MAGIC,
        npy.MAGIC + b"\1\0\xff\xff",
        header(PLAIN.format("'<f4'", "False", "(2,)"), version=4),
        header(PLAIN.format("'<f4'", "False", "(-2,)")),
        header(PLAIN.format("'<f4'", "False", "(2.0,)")),
        header(PLAIN.format("'<f4'", "False", "2")),
        header(PLAIN.format("'<f4'", "False", f"({'9' * 5000},)")),
        header(PLAIN.format("'<f4'", "0", "(2,)")),
        header(PLAIN.format("'<q9'", "False", "(2,)")),
        header(PLAIN.format("None", "False", "(2,)")),
        header(PLAIN.format("[('a',)]", "False", "(2,)")),
        header(PLAIN.format("__import__('os')", "False", "(2,)")),
        header("{'descr': '<f4', 'shape': (2,)}"),
        header("[1, 2]"),
        header("(" * 9000),
        header("0xfor x in 1if 2else 3"),
        header("{'descr': '<f4\\d'}"),
        npy.MAGIC + b"\3\0\2\0\0\0\xff\xff",
    ],
)
def test_what_is_no_header_is_damage(data):
    with pytest.raises(bp.DamagedError, match="not an NPY header"):
        npy.parse_header(data + b" " * 64)


@in_one_test(
    ("shape", "reason"),
    [
        ("(1000000000000,)", "promises 4000000000000"),
        ("(3000000000, 3000000000, 3000000000)", "promises"),
        ("(3,)", "8 bytes of values, and the header promises 12"),
        ("(1,)", "8 bytes of values, and the header promises 4"),
        ("(9223372036854775808, 0)", "rows of no bytes"),
        ("(4611686018427387904, 4, 0)", "rows of no bytes"),
    ],
)
def test_a_shape_that_lies(shape, reason, tmp_path):
    (tmp_path / "a.npy").write_bytes(
        header(PLAIN.format("'<f4'", "False", shape)) + bytes(8 if "0)" not in shape else 0)
    )
    with pytest.raises(bp.DamagedError, match=reason):
        bp.open(tmp_path / "a.npy")


def test_text_that_is_no_text_is_damage(tmp_path):
    np.save(tmp_path / "a.npy", np.array(["ab", "cd"], "U2"))
    data = bytearray((tmp_path / "a.npy").read_bytes())
    data[-4:] = (0xD800).to_bytes(4, "little")
    (tmp_path / "a.npy").write_bytes(data)
    with bp.open(tmp_path / "a.npy") as reader:
        assert reader[0] == {"data": "ab"}
        with pytest.raises(bp.DamagedError):
            reader[1]
    assert [problem.sample for problem in bp.verify(tmp_path / "a.npy").problems] == [1]


def test_rows_in_c_order_are_used_in_place(saved, tmp_path):
    array = np.arange(12, dtype=np.int16).reshape(4, 3)
    for given, in_place in ((array, True), (np.asfortranarray(array), False), (array.astype(">i2"), False)):
        with saved(given) as reader:
            spans = reader.spans("data", [2])
            assert (spans is not None) == in_place
            assert cells(reader)["data"][2] == array[2].tobytes()
