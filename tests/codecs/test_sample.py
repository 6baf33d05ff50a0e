"""Samples as MessagePack maps: every kind there and back, records of others, and records that lie."""

import dataclasses
import io
import itertools

import hypothesis.strategies as st
import msgpack
import numpy as np
import pytest
from hypothesis import given

import batchplant as bp
from batchplant.codecs import msgpack as codec
from batchplant.codecs.cells import cell_bytes, encode_samples
from batchplant.schema.columns import Ragged
from batchplant.testing.cases import all_cases, jpeg, pixels

EVERY = {
    **all_cases(),
    "long float": (bp.Float("longdouble"), [0.5, float("inf")]),
    "tensor of long float": (bp.Tensor("longdouble", (None,)), [np.ones(3, np.longdouble)]),
    "tensor complex256": (bp.Tensor("clongdouble", (2,)), [np.ones(2, np.clongdouble)]),
    "tensor timedelta": (bp.Tensor("timedelta64[us]", (None,)), [np.arange(2).astype("m8[us]")]),
    "tensor of many axes": (bp.Tensor("int8", (1,) * 20), [np.full((1,) * 20, 7, np.int8)]),
}


def packed(schema, samples, **how):
    return codec.pack(schema, encode_samples(schema, samples), **how)


def records(*values):
    """Records that the msgpack package wrote."""
    return Ragged.from_cells([msgpack.packb(value) for value in values])


def unpacked(schema, found, **how):
    schema = bp.Schema(schema)
    columns = codec.unpack(schema, list(schema), found.data, found.starts, found.sizes, **how)
    columns.check(schema)
    return columns


@pytest.mark.parametrize("case", list(EVERY))
def test_every_kind_there_and_back(case):
    plain, examples = EVERY[case]
    for optional, numpy in itertools.product((False, True), repeat=2):
        field = dataclasses.replace(plain, optional=optional)
        schema = bp.Schema(before=bp.Text(), value=field)
        values = [None, *examples, None] if optional else examples
        columns = encode_samples(schema, [{"before": "x", "value": value} for value in values])
        result = codec.pack(schema, columns, numpy=numpy)
        again = unpacked(schema, result)
        cells = [cell_bytes(columns["value"], row) for row in range(len(values))]
        assert [cell_bytes(again["value"], row) for row in range(len(values))] == cells
        if isinstance(field, bp.Image) and columns["value"].shape is not None:
            assert again["value"].shape.tolist() == columns["value"].shape.tolist()
        runs = codec.find(schema, "value", result.data, result.starts, result.sizes)
        numbers = isinstance(field, bp.Int | bp.Float | bp.Bool)
        whole_files = isinstance(field, bp.Tensor) and not field.flat
        assert (runs is None) == (numbers or (whole_files and field.cell is None))
        if runs is not None:
            places = zip(*runs[:2], strict=True)
            in_place = [None if size < 0 else result.data[at : at + size].tobytes() for at, size in places]
            assert in_place == cells


def test_the_bytes_of_a_record():
    """The layout that docs/guides/messagepack.md describes."""
    schema = bp.Schema(
        n=bp.Int(), f=bp.Float("float32"), b=bp.Bool(), t=bp.Text(), x=bp.Bytes(optional=True),
        a=bp.Tensor("int16", (None, 2)),
    )  # fmt: skip
    result = packed(
        schema, [{"n": -200, "f": 1.5, "b": True, "t": "ä", "x": None, "a": np.array([[1, 2]], np.int16)}]
    )
    assert result.data.tobytes() == bytes.fromhex(
        "86"  # a map of six
        " a1 6e d1 ff38"  # n: an integer of 16 bits
        " a1 66 ca 3fc00000"  # f: a float of 32 bits
        " a1 62 c3"  # b: true
        " a1 74 a2 c3a4"  # t: text of two bytes
        " a1 78 c0"  # x: nil
        " a1 61 c7 19 42"  # a: an extension of 25 bytes, of type 0x42
        " 03 3c6932 02 0100000000000000 0200000000000000 0100 0200"  # "<i2", two axes, 1 x 2, the values
    )


@given(
    st.lists(st.integers(-(2**63), 2**64 - 1) | st.sampled_from([-33, -32, -1, 127, 128, 255, 256, 65536]))
)
def test_integers_in_every_form(numbers):
    for dtype in ("int8", "uint16", "int64", "uint64"):
        limits = np.iinfo(dtype)
        fit = [number for number in numbers if limits.min <= number <= limits.max]
        result = packed(bp.Schema(n=bp.Int(dtype)), [{"n": number} for number in fit])
        assert [cell.tobytes() for cell in result] == [msgpack.packb({"n": number}) for number in fit]
        assert unpacked({"n": bp.Int(dtype)}, records(*[{"n": n} for n in fit]))["n"].tolist() == fit


KEYS = st.sampled_from(["a", "b", "long" * 20, "ключ"])
VALUES = st.none() | st.booleans() | st.integers(-5, 2**40) | st.floats() | st.text() | st.binary()
NESTED = VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=3), VALUES, max_size=2)


def attempt(read, *args, **how):
    """What it gives, and the error in its place."""
    try:
        return read(*args, **how), None
    except bp.DataError as error:
        return None, error


@given(st.lists(st.dictionaries(KEYS | st.integers(-5, 99) | st.binary(), NESTED), max_size=4))
def test_any_record_gives_values_or_one_of_our_errors(found):
    packed = records(*found)
    for kind in (bp.Int, bp.Float, bp.Bool, bp.Text, bp.Bytes, bp.Json, bp.Image):
        for foreign in (False, True):
            columns, error = attempt(unpacked, {"a": kind(optional=True)}, packed, foreign=foreign)
            if error is not None:
                assert error.field == "a"
                assert found[error.sample].keys() & {"a", b"a"}
            elif not any(b"a" in item for item in found):
                assert [cell is None for cell in columns["a"]] == [item.get("a") is None for item in found]


@given(st.binary(max_size=60), st.data())
def test_any_bytes_give_values_or_one_of_our_errors(junk, data):
    schema = bp.Schema(x=bp.Tensor("uint8", (None, None)), i=bp.Image(), n=bp.Int(optional=True))
    whole = packed(schema, [{"x": np.ones((2, 3), np.uint8), "i": pixels(2, 2, 3), "n": 300}]).data.tobytes()
    at = data.draw(st.integers(0, len(whole)))
    result = Ragged.from_cells([whole[:at] + junk + whole[at + data.draw(st.integers(0, 8)) :]])
    for name in schema:
        for read, wanted in ((codec.unpack, [name]), (codec.find, name)):
            _, error = attempt(read, schema, wanted, result.data, result.starts, result.sizes)
            assert error is None or error.sample == 0


def extension(dtype, shape, values):
    """An array as our extension."""
    sizes = np.array(shape, "<u8").tobytes()
    return msgpack.ExtType(0x42, bytes([len(dtype)]) + dtype + bytes([len(shape)]) + sizes + values)


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (bp.Int("int8"), 128, "out of range"),
        (bp.Int("uint8"), -1, "out of range"),
        (bp.Int("uint64"), -1, "out of range"),
        (bp.Int(), 2**63, "out of range"),
        (bp.Int(), True, "a whole number is needed"),
        (bp.Float(), 2**53 + 1, "too large to be a real one"),
        (bp.Float("float32"), 1e300, "out of range"),
        (bp.Float("float16"), 1e5, "out of range"),
        (bp.Float(), "1", "a number is needed"),
        (bp.Bool(), 1, "true or false is needed"),
        (bp.Text(), 1, "text is needed"),
        (bp.Bytes(), [1], "bytes are needed"),
        (bp.Image(), {"nd": True}, "bytes are needed"),
        (bp.Json(), [b"x"], "JSON cannot hold it"),
        (bp.Tensor("int8", (2,)), [1, 300], "out of range"),
        (bp.Tensor("int8", (2,)), [1, 2, 3], r"shape \(3,\)"),
        (bp.Tensor("uint64", (1,)), [-1], "out of range"),
        (bp.Tensor("int8", (2,)), [1.5, 2], "values of float64"),
        (bp.Tensor("float32", (1,)), [1e300], "out of range"),
        (bp.Tensor("int8", (None,)), "text", "not Tensor"),
        (bp.Tensor("int8", (1,)), extension(b"|i1", [2], b"x"), "does not match its bytes"),
        (bp.Tensor("int8", (1,)), extension(b"|i1", [2**64 - 1], b""), "does not match its bytes"),
        (bp.Tensor("int8", (1,)), msgpack.ExtType(0x42, b"\3|i1"), "cut short"),
        (bp.Tensor("int8", (1,)), extension(b"|O8", [], bytes(8)), "is not a dtype of numbers"),
        (bp.Image(), extension(b"|u1", [1, 1, 5], bytes(5)), "image"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit(field, value, reason):
    with pytest.raises(bp.DecodeError, match=reason) as caught:
        unpacked({"x": field}, records({"x": value}))
    assert (caught.value.sample, caught.value.field, caught.value.offset) == (0, "x", 3)


@pytest.mark.parametrize(
    ("field", "value", "cell"),
    [
        (bp.Float(), 3, np.float64(3).tobytes()),
        (bp.Bytes(), "ä", "ä".encode()),
        (bp.Json(), "[1]", b"[1]"),
        (bp.Json(), {"a": [1, None]}, b'{"a": [1, null]}'),
        (bp.Tensor("float32", (2,)), [1, 2.5], np.float32([1, 2.5]).tobytes()),
        (bp.Tensor("int16", (None, 2)), [], b""),
        (bp.Tensor("float64", (1,)), extension(b">f8", [1], b"\x3f\xf0" + bytes(6)), np.float64(1).tobytes()),
    ],
)  # fmt: skip
def test_other_forms_that_are_taken(field, value, cell):
    assert cell_bytes(unpacked({"x": field}, records({"x": value}))["x"], 0) == cell


@pytest.mark.parametrize(
    ("record", "reason", "offset"),
    [
        (b"", "the record is cut short", 0),
        (b"\x82\xa1x\x01", "the record is cut short", 4),
        (b"\x81\xa1x\xc4\x05abcd", "the record is cut short", 3),
        (b"\x81\xa1x\x01\x01", "bytes behind the record's map", 4),
        (b"\x91\x01", "not a MessagePack map", 0),
        (b"\xdf\xff\xff\xff\xff\xa1x\x01", "the record is cut short", 8),
    ],
)
def test_records_that_are_damaged(record, reason, offset):
    good = msgpack.packb({"x": 1})
    with pytest.raises(bp.DamagedError, match=reason) as caught:
        unpacked({"x": bp.Int()}, Ragged.from_cells([good, record, good]))
    assert (caught.value.sample, caught.value.offset) == (1, len(good) + offset)


def test_runs_outside_of_the_data():
    with pytest.raises(bp.DamagedError, match="does not lie in the file"):
        codec.unpack(bp.Schema(x=bp.Int()), ["x"], np.zeros(4, np.uint8), np.array([2]), np.array([3]))


def test_npy_files_that_we_would_write_otherwise_stay_as_they_are():
    schema = bp.Schema(x=bp.Tensor("int64", (None, None)))
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    columns = encode_samples(schema, [{"x": fortran}])
    out = io.BytesIO()
    np.save(out, fortran)
    columns["x"] = Ragged.from_cells([out.getvalue(), *columns["x"]])
    again = unpacked(schema, codec.pack(schema, columns))
    assert [cell.tobytes() for cell in again["x"]] == [cell.tobytes() for cell in columns["x"]]


def test_cells_that_cannot_be_packed():
    schema = bp.Schema(x=bp.Tensor("int64", (None,)))
    with pytest.raises(bp.EncodeError, match="sample 1, field 'x': 5 bytes are not"):
        codec.pack(schema, bp.Columns(x=Ragged.from_cells([bytes(8), bytes(5)])))
    schema = bp.Schema(x=bp.Int(optional=True))
    with pytest.raises(bp.EncodeError, match=r"sample 0, field 'x': .* does not match its dtype"):
        codec.pack(schema, bp.Columns(x=Ragged.from_cells([bytes(5)])))
    huge = Ragged(np.zeros(0, np.uint8), np.array([0, 5, 2**32 + 5]))
    assert list(codec.unfit(bp.Columns(x=huge))) == [1]


def test_fields_that_are_not_asked_for_are_not_looked_at():
    schema = bp.Schema(a=bp.Int(), image=bp.Image(), z=bp.Text())
    result = packed(schema, [{"a": n, "image": jpeg(), "z": "z" * n} for n in range(5)])
    columns = codec.unpack(schema, ["z", "a"], result.data, result.starts[[4, 0]], result.sizes[[4, 0]])
    assert list(columns) == ["z", "a"]
    assert columns["a"].tolist() == [4, 0]
    assert [cell.tobytes() for cell in columns["z"]] == [b"zzzz", b""]
