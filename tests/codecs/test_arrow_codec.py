"""Cells as Arrow arrays and back, and the fields that the types of others mean."""

import dataclasses
import datetime
import decimal
import json
import subprocess
import sys
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
from batchplant import _native
from batchplant.codecs.arrow import (
    arrow_schema,
    column_of,
    from_arrow,
    numbers,
    schema_of,
    to_arrow,
    unfit,
)
from batchplant.codecs.arrow.types import flags_of, valid_of
from batchplant.codecs.cells import decode_cell, encode_samples
from batchplant.errors import DecodeError
from batchplant.schema import Schema
from batchplant.schema.columns import Columns, Ragged
from batchplant.testing.cases import all_cases, equal, jpeg, png

pa = pytest.importorskip("pyarrow")


def decoded(field, column, count):
    return [decode_cell(field, column, row) for row in range(count)]


CASES = {name: case for name, case in all_cases().items() if not isinstance(case[0], bp.Image)}


@pytest.mark.parametrize("name", CASES)
def test_cells_go_and_come_back(name):
    field, values = CASES[name]
    go_and_come_back(field, values)
    maybe = dataclasses.replace(field, optional=True)
    go_and_come_back(maybe, [None, *values, None, values[0]])
    go_and_come_back(maybe, [None, None])


def go_and_come_back(field, values):
    schema = Schema({"x": field})
    batch = to_arrow(schema, encode_samples(schema, [{"x": value} for value in values]))
    batch.validate(full=True)
    assert schema_of(batch.schema) == schema
    back = from_arrow(schema, ["x"], batch)
    back.check(schema)
    assert all(map(equal, values, decoded(field, back["x"], len(values))))
    # A part of a table, and one of several pieces.
    part = from_arrow(schema, ["x"], batch.slice(1))
    part.check(schema)
    assert all(map(equal, values[1:], decoded(field, part["x"], len(values) - 1)))
    pieces = pa.Table.from_batches([batch.slice(0, 1), batch.slice(1), batch.slice(0, 0)])
    whole = from_arrow(schema, ["x"], pieces)
    whole.check(schema)
    assert all(map(equal, values, decoded(field, whole["x"], len(values))))
    nothing = from_arrow(schema, ["x"], batch.slice(0, 0))
    nothing.check(schema)
    assert nothing.rows == 0
    # The same without our metadata, where the type alone says as much.
    bare = pa.RecordBatch.from_arrays(batch.columns, names=["x"])
    assert equal(values[-1], decoded(field, from_arrow(schema, ["x"], bare)["x"], len(values))[-1])


# --- what others write ------------------------------------------------------------------------------------


def infer(array, name="x", **more):
    batch = pa.record_batch([array], names=[name])
    nulls = [name] if array.null_count else []
    schema = schema_of(batch.schema, batch, nulls=nulls, **more)
    columns = from_arrow(schema, [name], batch)
    columns.check(schema)
    return schema[name], decoded(schema[name], columns[name], len(array))


DAY = datetime.date(2024, 2, 29)
MOMENT = datetime.datetime(2024, 2, 29, 12, 30, 15, 250)
FILE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
FILES = bp.Struct({"bytes": bp.Bytes(optional=True), "path": bp.Text(optional=True)}, optional=True)
RECORD = bp.Struct(
    {"a": bp.Int(optional=True), "b": bp.Bytes(optional=True), "c": bp.Time("us", optional=True)}
)
ODD = [
    (pa.array([1, 2], pa.uint16()), bp.Int("uint16"), [1, 2]),
    (pa.array([1.5, None], pa.float16()), bp.Float("float16", optional=True), [1.5, None]),
    (pa.array(["a", "ß"]), bp.Text(), ["a", "ß"]),
    (pa.array(["a", None], pa.string_view()), bp.Text(optional=True), ["a", None]),
    (pa.array(["long enough not to be inline", "b"], pa.string_view()), bp.Text(), None),
    (pa.array([b"\0", b""], pa.binary_view()), bp.Bytes(), [b"\0", b""]),
    (pa.array([b"ab", b"cd"], pa.binary(2)), bp.Bytes(), [b"ab", b"cd"]),
    (pa.array([b"ab", None], pa.binary(2)), bp.Bytes(optional=True), [b"ab", None]),
    (pa.array(["x", "y", "x"]).dictionary_encode(), bp.Text(), ["x", "y", "x"]),
    (pa.array([3, None, 3]).dictionary_encode(), bp.Int(optional=True), [3, None, 3]),
    (pa.array([True, None]), bp.Bool(optional=True), [True, None]),
    (pa.array([None, None]), bp.Json(optional=True), [None, None]),
    (pa.array([decimal.Decimal("1.50"), None]), bp.Decimal(3, 2, optional=True), None),
    (pa.array([decimal.Decimal("1E-9"), None, 0], pa.decimal256(50, 9)),
     bp.Decimal(50, 9, optional=True), None),
    (pa.array([decimal.Decimal("1.50")], pa.decimal32(5, 2)), bp.Decimal(5, 2), None),
    (pa.array([MOMENT]), bp.Time("us"), [MOMENT]),
    (pa.array([MOMENT], pa.timestamp("ns", "Europe/Berlin")), bp.Time("ns", "Europe/Berlin"),
     [np.datetime64(MOMENT, "ns")]),
    (pa.array([MOMENT], pa.timestamp("us", "UTC")), bp.Time("us", "UTC"), None),
    (pa.array([DAY]), bp.Time("D"), [DAY]),
    (pa.array([DAY], pa.date64()), bp.Time("D"), [DAY]),
    (pa.array([DAY, None]), bp.Time("D", optional=True), [DAY, None]),
    (pa.array([datetime.time(1)]), bp.Time("us", clock=True), [datetime.time(1)]),
    (pa.array([1, None], pa.time32("s")), bp.Time("s", clock=True, optional=True), None),
    (pa.array([5], pa.time64("ns")), bp.Time("ns", clock=True), [np.timedelta64(5, "ns")]),
    (pa.array([5], pa.duration("ms")), bp.Duration("ms"), None),
    (pa.array([5, None], pa.duration("ns")), bp.Duration("ns", optional=True),
     [np.timedelta64(5, "ns"), None]),
    (pa.array([b"0123456789abcdef", None], pa.uuid()), bp.Uuid(optional=True),
     [uuid.UUID(bytes=b"0123456789abcdef"), None]),
    (pa.array([[1, 2], []]), bp.Tensor("int64", (None,)), [np.array([1, 2]), np.empty(0, np.int64)]),
    (pa.array([[1], None, [2, 3]]), bp.Tensor("int64", (None,), optional=True), None),
    (pa.array([[True], [False, True]]), bp.Tensor("bool", (None,)), None),
    (pa.array([[1, 2], [3, 4]], pa.list_(pa.int8(), 2)), bp.Tensor("int8", (2,)), None),
    (pa.array([[1], [2, 3]], pa.list_view(pa.int16())), bp.Tensor("int16", (None,)), None),
    (pa.array([[1], None, [2]], pa.large_list_view(pa.int8()))[1:],
     bp.Tensor("int8", (None,), optional=True), None),
    (pa.array([[[1], None, []]]), bp.List(bp.List(bp.Int(optional=True), optional=True)), None),
    (pa.array([["a", None], None, []]), bp.List(bp.Text(optional=True), optional=True), None),
    (pa.array([["a"], ["b", "a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
     bp.List(bp.Text(optional=True)), None),
    (pa.array([["a"], None, ["b"]], pa.list_view(pa.string()))[1:],
     bp.List(bp.Text(optional=True), optional=True), None),
    (pa.array([{"a": 2**62, "b": b"\xff", "c": MOMENT}, {"a": None, "b": None, "c": None}]), RECORD, None),
    (pa.array([None, {"a": 1, "b": b"", "c": MOMENT}]), dataclasses.replace(RECORD, optional=True), None),
    (pa.array([[("k", 1)], [("k", None), ("k", 2)]], pa.map_(pa.string(), pa.int8())),
     bp.List(bp.Struct({"key": bp.Text(), "value": bp.Int("int8", optional=True)})),
     [[{"key": "k", "value": 1}], [{"key": "k", "value": None}, {"key": "k", "value": 2}]]),
    (pa.array([[{"bytes": b"\1", "path": "x"}]], pa.list_(FILE)), bp.List(FILES), None),
    (pa.array([{}, {}], pa.struct([])), bp.Json(), [{}, {}]),
    (pa.array([{"": 1}], pa.struct([("", pa.int8())])), bp.Json(), [{"": 1}]),
    (pa.array([{"bytes": b"\1", "path": None}]), bp.Bytes(), [b"\1"]),
    (pa.array([{"bytes": None, "path": "x"}, None], FILE), bp.Bytes(optional=True), [None, None]),
]  # fmt: skip


@pytest.mark.parametrize(("array", "field", "values"), ODD, ids=[str(array.type) for array, *_ in ODD])
def test_types_of_others(array, field, values):
    actual, have = infer(array)
    assert actual == field
    if values is None:
        arrays = isinstance(field, bp.Tensor)
        values = [np.asarray(v, field.dtype) if arrays and v is not None else v for v in array.to_pylist()]
    assert all(map(equal, values, have)), have


def test_extension_types():
    tensor = pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.float32).reshape(2, 2, 3))
    field, have = infer(tensor)
    assert field == bp.Tensor("float32", (2, 3))
    assert equal(np.arange(6, 12, dtype=np.float32).reshape(2, 3), have[1])
    documents = pa.array(['{"a": 1}'], pa.json_())
    assert infer(documents) == (bp.Json(), [{"a": 1}])


def test_bytes_that_are_images():
    assert infer(pa.array([jpeg(), jpeg(9, 9)]))[0] == bp.Image("jpeg")
    assert infer(pa.array([None, png(4, 5)]))[0] == bp.Image("png", "L", optional=True)
    assert infer(pa.array([jpeg(), b"text"]))[0] == bp.Bytes()
    assert infer(pa.array([{"bytes": jpeg(), "path": "a.jpg"}]))[0] == bp.Image("jpeg")


def test_nullable_means_optional_where_nobody_counted():
    schema = pa.schema([pa.field("a", pa.int8()), pa.field("b", pa.int8(), nullable=False)])
    assert schema_of(schema) == Schema({"a": bp.Int("int8", optional=True), "b": bp.Int("int8")})


def test_metadata_that_the_type_belies_is_not_believed():
    described = arrow_schema(Schema({"x": bp.Tensor("float32", (2,))})).field("x").metadata
    schema = pa.schema([pa.field("x", pa.struct([("a", pa.int8())]), nullable=False, metadata=described)])
    assert schema_of(schema) == Schema({"x": bp.Struct({"a": bp.Int("int8", optional=True)})})
    # A plain list still holds it: others know no lists of fixed size.
    schema = pa.schema([pa.field("x", pa.list_(pa.float32()), metadata=described)])
    assert schema_of(schema) == Schema({"x": bp.Tensor("float32", (2,))})
    column = column_of(bp.Tensor("float32", (2,)), pa.array([[1, 2], [3, 4]], pa.list_(pa.float32())))
    assert column.tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("note", [b"[", b'{"kind": "nonsense"}', b"\xff", b"[" * 100_000, b"7"])
def test_damaged_metadata_is_no_metadata(note):
    schema = pa.schema([pa.field("x", pa.int8(), nullable=False, metadata={b"batchplant": note})])
    assert schema_of(schema) == Schema({"x": bp.Int("int8")})


def test_class_names_of_hugging_face():
    features = {"label": {"names": ["cat", "dog"], "_type": "ClassLabel"}, "other": 7}
    note = json.dumps({"info": {"features": features}}).encode()
    schema = pa.schema([("label", pa.int64()), ("other", pa.int8())], metadata={b"huggingface": note})
    assert schema_of(schema, nulls=[]) == Schema(
        {"label": bp.Int(names=("cat", "dog")), "other": bp.Int("int8")}
    )


@pytest.mark.parametrize(
    ("field", "array", "row", "reason"),
    [
        (bp.Int(), pa.array([1, None, None]), 1, "missing"),
        (bp.Text(), pa.array(["a", None]), 1, "missing"),
        (bp.Tensor("int64", (2,)), pa.array([[1, 2], [3]]), 1, "a list has 1 values where the field says 2"),
        (bp.Tensor("int64", (None,)), pa.array([[1, None]]), None, "inside of a list"),
        (
            bp.Tensor("complex64", (2,)),
            pa.array([b"x" * 16, b"y"], pa.large_binary()),
            1,
            "of 1 bytes where 16",
        ),
        (bp.Int("int8"), pa.array([300]), None, "not Int"),
        (bp.Tensor("int64", (None, 2)), pa.array([[1, 2]]), None, "fewer axes"),
    ],
)
def test_values_that_do_not_fit(field, array, row, reason):
    with pytest.raises(bp.DecodeError, match=reason) as caught:
        from_arrow(Schema({"x": field}), ["x"], pa.record_batch([array], names=["x"]))
    assert caught.value.field == "x"
    assert caught.value.sample == row


def test_the_row_is_counted_over_all_pieces():
    table = pa.chunked_array([pa.array([1, 2]), pa.array([3, None])])
    with pytest.raises(bp.DecodeError) as caught:
        column_of(bp.Int(), table)
    assert caught.value.sample == 3


def lying(kind, offsets, data=b"abcdef", count=2):
    wide = np.int64 if pa.types.is_large_binary(kind) else np.int32
    buffers = [None, pa.py_buffer(np.array(offsets, wide)), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, count, buffers)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary()])
@pytest.mark.parametrize("offsets", [[0, 7, 6], [4, -9, 6], [0, 2**31 - 1, 6]])
def test_offsets_are_checked(kind, offsets):
    with pytest.raises(bp.DecodeError):
        column_of(bp.Bytes(), lying(kind, offsets))


def test_lists_that_reach_outside_of_their_values():
    kind = pa.list_(pa.int8())
    offsets = pa.py_buffer(np.array([0, 9, 2], np.int32))
    array = pa.Array.from_buffers(kind, 2, [None, offsets], children=[pa.array([1, 2], pa.int8())])
    with pytest.raises(bp.DecodeError):
        column_of(bp.Tensor("int8", (None,)), array)


def test_bytes_under_a_missing_value_are_no_cell():
    buffers = [
        pa.array([True, False, True]).buffers()[1],
        pa.py_buffer(np.array([0, 1, 3, 4])),
        pa.py_buffer(b"abcd"),
    ]
    column = column_of(bp.Bytes(optional=True), pa.Array.from_buffers(pa.large_binary(), 3, buffers))
    assert [None if cell is None else cell.tobytes() for cell in column] == [b"a", None, b"d"]
    assert column.sizes.tolist() == [1, 0, 1]


def test_numbers_and_bytes_are_not_copied():
    values, blob = np.arange(1000.0), np.arange(256, dtype=np.uint8)
    schema = Schema({"n": bp.Float(), "b": bp.Bytes(), "t": bp.Tensor("float64", (2, 5))})
    columns = Columns(n=values[:2], b=Ragged(blob, np.array([0, 100, 256])), t=values[:20].reshape(2, 2, 5))
    batch = to_arrow(schema, columns)
    back = from_arrow(schema, list(schema), batch)
    assert np.shares_memory(back["n"], values)
    assert np.shares_memory(back["t"], values)
    assert np.shares_memory(back["b"].data, blob)


def test_times_and_nat():
    field = bp.Tensor("datetime64[s]")
    schema = Schema({"t": field})
    cells = np.array(["2024-01-01", "NaT"], "M8[s]")
    batch = to_arrow(schema, Columns(t=cells))
    assert batch.column(0).type == pa.timestamp("s")
    assert batch.column(0).null_count == 1
    assert equal(cells, from_arrow(schema, ["t"], batch)["t"])


def test_what_arrow_cannot_hold():
    schema = Schema({"t": bp.Text(), "d": bp.Tensor("datetime64[D]")})
    days = np.array([0, 2**40, 1], "M8[D]")
    text = Ragged.from_cells([b"\xff", b"fine", "ß".encode()[1:]])
    result = unfit(schema, Columns(t=text, d=days))
    assert {row: error.field for row, error in result.items()} == {0: "t", 1: "d", 2: "t"}
    # One character over two cells.
    assert set(unfit(schema, Columns(t=Ragged.from_cells([b"\xc3", b"\x9f"]), d=days[:1].repeat(2)))) == {
        0,
        1,
    }
    assert unfit(schema, Columns(t=Ragged.from_cells(["ß".encode(), b""]), d=days[[0, 2]])) == {}


def test_raw_pixels_are_refused():
    pixels = Ragged.from_cells([bytes(12)], [(2, 2, 3)])
    with pytest.raises(bp.EncodeError, match="raw pixels"):
        to_arrow(Schema({"i": bp.Image()}), Columns(i=pixels))


def test_readers_become_tables(tmp_path):
    pytest.importorskip("pandas")
    schema = {
        "image": bp.Image(),
        "n": bp.Int(),
        "t": bp.Text(optional=True),
        "x": bp.Tensor("float32", (2,)),
    }
    with bp.create(tmp_path / "a.beton", {"image": bp.Image(), "n": bp.Int()}, write_mode="raw") as out:
        out.append({"image": np.full((2, 3, 3), 9, np.uint8), "n": 4})
    table = bp.open(tmp_path / "a.beton").to_arrow()
    assert table.column("n").to_pylist() == [4]
    assert table.column("image")[0].as_py().startswith(b"\x89PNG")
    with bp.create(tmp_path / "a.npz", schema) as out:
        for n in range(3):
            out.append({"image": jpeg(), "n": n, "t": None if n else "a", "x": np.full(2, n, np.float32)})
    reader = bp.open(tmp_path / "a.npz")
    assert dict(schema_of(reader.to_arrow().schema)) == schema
    frame = reader[1:].to_pandas(["n", "t", "x"])
    assert frame["n"].tolist() == [1, 2]
    assert frame["t"].isna().all()
    assert frame["x"][1].tolist() == [2, 2]


# --- picking cells out of pieces --------------------------------------------------------------------------


def ints(*values):
    return np.array(values, dtype=np.int64)


def pieces_of(data, offsets=None):
    pieces = _native.Pieces(len(data))
    for number, item in enumerate(data):
        pieces.put(number, item, None if offsets is None else offsets[number])
    return pieces


def test_cells_of_several_pieces():
    data = [np.frombuffer(b"abcdef", np.uint8), np.frombuffer(b"xyz", np.uint8)]
    offsets = [ints(0, 1, 3, 6), ints(0, 0, 3)]
    cells, places = pieces_of(data, offsets).cells(ints(1, 0, 1, 0), ints(1, 2, 0, 0))
    assert (cells.tobytes(), places.tolist()) == (b"xyzdefa", [0, 3, 6, 6, 7])
    assert pieces_of(data).rows(3, ints(1, 0), ints(0, 1)).tobytes() == b"xyzdef"
    assert pieces_of(data).rows(3, ints(), ints()).size == 0


def test_pieces_are_put_once():
    pieces = _native.Pieces(3)
    assert pieces.missing(ints(2, 0, 2, 7, -1)) == [0, 2]
    pieces.put(2, np.arange(4, dtype=np.uint8))
    assert pieces.missing(ints(2, 0, 2)) == [0]
    with pytest.raises(ValueError, match="already"):
        pieces.put(2, np.zeros(4, np.uint8))
    with pytest.raises(IndexError):
        pieces.put(3, np.zeros(4, np.uint8))
    with pytest.raises(IndexError, match="run 1 "):
        pieces.rows(2, ints(2, 0), ints(1, 0))
    assert pieces.rows(2, ints(2, 2), ints(1, 0)).tolist() == [2, 3, 0, 1]


@pytest.mark.parametrize(("piece", "row"), [(2, 0), (-1, 0), (0, 2), (0, -1), (1, 0), (2**62, 0), (0, 2**62)])
def test_picks_that_are_not_there(piece, row):
    data = [np.zeros(6, np.uint8), np.zeros(2, np.uint8)]
    with pytest.raises(IndexError):
        pieces_of(data).rows(3, ints(piece), ints(row))
    # The second piece has no cell that lies inside of it.
    with pytest.raises(IndexError):
        pieces_of(data, [ints(0, 3, 6), ints(0, 3)]).cells(ints(piece), ints(row))


def test_lies_about_cells():
    data = [np.zeros(6, np.uint8)]
    for wrong in (ints(-1, 3), ints(3, 2), ints(0, 7), ints(0, 2**63 - 1)):
        with pytest.raises(IndexError):
            pieces_of(data, [wrong]).cells(ints(0), ints(0))
    with pytest.raises(ValueError, match="offsets"):
        pieces_of(data, [ints()])
    with pytest.raises(IndexError):
        pieces_of(data).rows(0, ints(0), ints(0))


@given(st.lists(st.integers(0, 4), min_size=1), st.data())
def test_pieces_of_numbers(sizes, data):
    starts = np.concatenate([[0], np.cumsum(sizes)])
    some = data.draw(st.lists(st.integers(0, max(0, int(starts[-1]) - 1)), max_size=9 if starts[-1] else 0))
    piece, row = _native.pieces_of(starts, ints(*some))
    assert (starts[piece] + row).tolist() == some
    assert all(0 <= at < sizes[item] for item, at in zip(piece, row, strict=True))
    with pytest.raises(IndexError):
        _native.pieces_of(starts, ints(-1))


@given(st.lists(st.integers(-5, 5)))
def test_distinct_numbers(numbers):
    result, places = _native.distinct(ints(*numbers))
    want, back = np.unique(ints(*numbers), return_inverse=True)
    assert (result, places.tolist()) == (want.tolist(), back.tolist())


@given(
    st.integers(0, 40),
    st.integers(-2, 42),
    st.integers(-1, 7),
    st.integers(0, 9),
    st.lists(st.integers(-2, 9), max_size=4),
)
def test_rows_at_a_stride(size, start, stride, width, rows):
    data = np.arange(size, dtype=np.uint8)
    places = [start + row * stride for row in rows]
    inside = all(0 <= start <= place and place + width <= size for place in places)
    good = not rows or (stride >= 0 and inside and start + width <= size and min(rows) >= 0)
    if not good:
        with pytest.raises(IndexError):
            _native.gather_strided(data, start, stride, width, ints(*rows))
        return
    want = b"".join(data[place : place + width].tobytes() for place in places)
    assert _native.gather_strided(data, start, stride, width, ints(*rows)).tobytes() == want


def test_what_hugging_face_says_of_values_in_lists_and_structs():
    label = {"names": ["cat", "dog"], "_type": "ClassLabel"}
    features = {
        "boxes": [{"label": label, "at": {"dtype": "timestamp[us]", "_type": "Value"}}],
        "photos": {"feature": {"_type": "Image"}, "_type": "List"},
        "nonsense": {"feature": 7, "_type": "List"},
    }
    boxes = pa.struct([("label", pa.int64()), ("at", pa.timestamp("us"))])
    types = [("boxes", pa.list_(boxes)), ("photos", pa.list_(FILE)), ("nonsense", pa.list_(pa.string()))]
    note = json.dumps({"info": {"features": features}}).encode()
    result = schema_of(pa.schema(types, metadata={b"huggingface": note}), nulls=[])
    names = bp.Int(names=("cat", "dog"), optional=True)
    inside = bp.Struct({"label": names, "at": bp.Time("us", optional=True)}, optional=True)
    assert dict(result) == {
        "boxes": bp.List(inside),
        "photos": bp.List(bp.Image(mode=None, optional=True)),
        "nonsense": bp.List(bp.Text(optional=True)),
    }
    photos = pa.array([[{"bytes": png(4, 5), "path": None}, None]], pa.list_(FILE))
    [value] = decoded(result["photos"], column_of(result["photos"], photos), 1)
    assert value[0].shape == (4, 5)
    assert value[1] is None


@pytest.mark.parametrize(
    ("field", "cell"),
    [
        (bp.Decimal(3, 1), b"12.34"),
        (bp.Uuid(), b"x" * 36),
        (bp.List(bp.Int()), b"[1, null]"),
        (bp.Struct({"a": bp.Text()}), b'{"a": 7}'),
        (bp.List(bp.Text()), b"["),
    ],
    ids=str,
)
def test_cells_that_are_none_of_their_kind_are_named(field, cell):
    good = encode_samples(Schema(x=field), [{"x": SOUND[field.kind]}])["x"][0]
    column = Ragged.from_cells([good, cell, good])
    assert list(unfit(Schema(x=field), Columns(x=column))) == [1]


SOUND = {"decimal": 1, "uuid": uuid.UUID(int=1), "list": [], "struct": {"a": ""}}


def test_times_out_of_range_are_named():
    schema = Schema(day=bp.Time("D"), clock=bp.Time("s", clock=True))
    columns = Columns(day=np.array([0, 2**40, 0]), clock=np.array([0, 0, -1]))
    assert sorted(unfit(schema, columns)) == [1, 2]


def test_values_missing_where_none_may_be():
    with pytest.raises(DecodeError, match="is missing"):
        column_of(bp.List(bp.Text()), pa.array([["a"], ["b", None]]))
    with pytest.raises(DecodeError, match="is missing"):
        column_of(bp.Struct({"a": bp.Int()}, optional=True), pa.array([None, {"a": None}]))
    with pytest.raises(DecodeError, match="is needed"):
        column_of(bp.Struct({"a": bp.Int()}), pa.array([{"b": 1}]))
    with pytest.raises(DecodeError):
        column_of(bp.Time("D"), pa.array([1], pa.date64()))


class TestBuffers:
    """Numbers and flags as arrays and back, without what pyarrow would import for it."""

    @given(st.lists(st.booleans(), max_size=70), st.integers(0, 20), st.integers(0, 20))
    def test_flags(self, flags, first, last):
        array = numbers(np.array(flags, np.bool_))
        array.validate(full=True)
        assert array.equals(pa.array(flags, pa.bool_()))
        part = array[first : len(flags) - last] if first + last < len(flags) else array[:0]
        assert flags_of(part).tolist() == part.to_pylist()

    @pytest.mark.parametrize("dtype", ["int8", "uint16", "int32", "int64", "float16", "float32", "float64"])
    def test_numbers(self, dtype):
        values = np.arange(10).astype(dtype)
        for some in (values, values[::2], values[:0]):
            assert numbers(some).equals(pa.array(some))

    @given(st.lists(st.none() | st.booleans(), max_size=40), st.integers(0, 10))
    def test_what_is_there(self, values, first):
        part = pa.array(values, pa.bool_())[first:]
        assert valid_of(part).tolist() == [value is not None for value in values[first:]]

    def test_first_batches_do_not_import_pandas(self, tmp_path):
        """Where it is installed, that takes longer than the batch."""
        pytest.importorskip("pandas")
        rows = [
            {
                "number": number, "flag": number % 3 == 0, "text": f"text {number}",
                "maybe": None if number % 7 == 0 else number, "flag or none": [None, True, False][number % 3],
                "fixed": np.full((4, 2), number, np.int16),
                "varying": np.arange(number % 5, dtype=np.float32),
                "tags": None if number % 11 == 0 else ["a", str(number)], "image": jpeg(8, 8),
            }
            for number in range(300)
        ]  # fmt: skip
        schema = {
            "number": bp.Int(), "flag": bp.Bool(), "text": bp.Text(), "maybe": bp.Int(optional=True),
            "flag or none": bp.Bool(optional=True), "fixed": bp.Tensor("int16", (4, 2)),
            "varying": bp.Tensor("float32", (None,)), "tags": bp.List(bp.Text(), optional=True),
            "image": bp.Image(),
        }  # fmt: skip
        path = tmp_path / "a.parquet"
        with bp.create(path, schema, row_group_size=50) as out:
            for row in rows:
                out.append(row)
        script = """
import sys
import batchplant as bp
for order in ("sequential", "quasi_random", "random"):
    loader = bp.Loader(sys.argv[1], 16, order=order, seed=1, ids=True)
    batch = next(iter(loader))
    assert batch["number"].tolist() == batch["ids"].tolist()
    loader.close()
assert "pyarrow" in sys.modules
print("pandas" in sys.modules)
"""
        done = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True)
        assert done.stdout.strip() == "False", done.stderr
