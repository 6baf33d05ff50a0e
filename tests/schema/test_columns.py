"""Ragged, Spans and Columns: cells one after another, checked against plain lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchplant import Bytes, Columns, DecodeError, Image, Int, Ragged, Schema, SchemaError, Spans, Tensor
from batchplant.schema.columns import Masked, as_bytes, column_runs, concat_columns

CELLS = st.lists(st.none() | st.binary(max_size=6), max_size=12)


def as_list(ragged):
    return [None if cell is None else cell.tobytes() for cell in ragged]


def check(ragged, expected):
    assert as_list(ragged) == expected
    assert len(ragged) == len(expected)
    assert ragged.offsets[0] == 0
    assert ragged.offsets[-1] == len(ragged.data)
    data, starts, sizes = column_runs(ragged)
    actual = [
        None if size < 0 else data[at : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)
    ]
    assert actual == expected


@given(CELLS)
def test_cells_come_back(cells):
    check(Ragged.from_cells(cells), cells)


@given(CELLS, st.data())
def test_take_is_indexing(cells, data):
    ragged = Ragged.from_cells(cells)
    rows = data.draw(st.slices(len(cells)))
    check(ragged.take(rows), cells[rows])
    mask = data.draw(st.lists(st.booleans(), min_size=len(cells), max_size=len(cells)))
    check(ragged.take(np.array(mask, dtype=bool)), [cell for cell, on in zip(cells, mask, strict=True) if on])
    if cells:
        numbers = data.draw(st.lists(st.integers(-len(cells), len(cells) - 1)))
        check(ragged.take(np.array(numbers, dtype=np.int64)), [cells[number] for number in numbers])


@given(st.lists(CELLS, min_size=1, max_size=4))
def test_concat_is_adding(parts):
    joined = Ragged.concat([Ragged.from_cells(cells).take(slice(None)) for cells in parts])
    check(joined, [cell for cells in parts for cell in cells])


@given(CELLS, CELLS)
def test_concat_of_parts_of_larger_ones(first, second):
    parts = [Ragged.from_cells(first).take(slice(1, None)), Ragged.from_cells(second).take(slice(0, -1))]
    check(Ragged.concat(parts), first[1:] + second[:-1])


def test_shapes_go_with_their_cells():
    ragged = Ragged.from_cells([bytes(6), b"jpeg", bytes(3)], [(1, 2, 3), None, (1, 1, 3)])
    assert ragged.raw.tolist() == [True, False, True]
    assert ragged.take([2, 1]).shape.tolist() == [[1, 1, 3], [0, 0, 0]]
    joined = Ragged.concat([Ragged.from_cells([b"x"]), ragged])
    assert joined.raw.tolist() == [False, True, False, True]
    assert Ragged.from_cells([b"x"]).shape is None


def test_one_cell():
    ragged = Ragged.from_cells([b"ab", None, b""])
    assert ragged[0].tobytes() == b"ab"
    assert ragged[-2] is None
    assert ragged[2].size == 0
    with pytest.raises(IndexError):
        ragged[3]
    assert "3 cells, 2 bytes" in repr(ragged)


def test_a_slice_is_a_view():
    ragged = Ragged.from_cells([b"ab", b"cd", b"ef"])
    assert np.shares_memory(ragged.take(slice(1, 3)).data, ragged.data)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"ab", b"ab"),
        (bytearray(b"ab"), b"ab"),
        (memoryview(b"abcd")[1:3], b"bc"),
        (np.array([[1, 2]], "<i2"), b"\1\0\2\0"),
        (np.arange(6, dtype=np.uint8)[::2], b"\0\2\4"),
        (np.zeros((0, 3)), b""),
        (np.float32(1.0).reshape(()), b"\0\0\x80?"),
    ],
)
def test_bytes_of_any_buffer(data, expected):
    assert as_bytes(data).tobytes() == expected


# --- Columns ------------------------------------------------------------------------------------------

SCHEMA = Schema(n=Int("int32"), box=Tensor("int8", (2,)), blob=Bytes(), maybe=Bytes(optional=True))


def columns(**other):
    good = {
        "n": np.arange(2, dtype=np.int32),
        "box": np.zeros((2, 2), np.int8),
        "blob": Ragged.from_cells([b"a", b"bc"]),
        "maybe": Ragged.from_cells([None, b"x"]),
    }
    return Columns({**good, **other})


def test_columns_that_fit():
    columns().check(SCHEMA)
    assert columns().rows == 2
    assert Columns().rows == 0


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"n": np.arange(2)}, "needs int32"),
        ({"n": np.arange(3, dtype=np.int32)}, "cells where other columns have"),
        ({"n": Ragged.from_cells([b"a", b"b"])}, "not ragged"),
        ({"box": np.zeros((2, 3), np.int8)}, r"not int8 \(3,\)"),
        ({"blob": np.arange(2)}, "needs a Ragged column"),
        ({"blob": Ragged.from_cells([b"", None])}, "sample 1, field 'blob': a cell is missing"),
        ({"more": np.arange(2)}, "columns n, box, blob, maybe, more were given"),
    ],
)
def test_columns_that_do_not_fit(other, reason):
    with pytest.raises(SchemaError, match=reason):
        columns(**other).check(SCHEMA)


def test_taking_and_joining_whole_columns():
    twice = Columns.concat([columns(), columns().take([1])])
    twice.check(SCHEMA)
    assert twice["n"].tolist() == [0, 1, 1]
    assert as_list(twice["maybe"]) == [None, b"x", b"x"]
    assert concat_columns([np.arange(2), np.arange(1)]).tolist() == [0, 1, 0]


def test_runs_of_an_array_are_its_rows():
    data, starts, sizes = column_runs(np.arange(6, dtype="<u2").reshape(3, 2))
    assert (data.size, starts.tolist(), sizes.tolist()) == (12, [0, 4, 8], [4, 4, 4])


def test_spans_lie_in_one_file_unless_told():
    spans = Spans(["a"], np.array([0, 5]), np.array([5, -1]))
    assert spans.file.tolist() == [0, 0]
    assert len(spans) == 2
    assert "2 cells in 1 files" in repr(spans)


def test_a_schema_of_images_needs_ragged_columns():
    with pytest.raises(SchemaError, match="needs a Ragged"):
        Columns(image=np.zeros((2, 4, 4, 3), np.uint8)).check(Schema(image=Image()))


def test_masked_numbers_stay_masked():
    cells = Ragged.from_cells([b"\1\0", None, b"\2\0", b"\3\0"])
    masked = Masked(cells, np.dtype("int16"))
    parts = concat_columns([masked.take(slice(0, 2)), masked.take(np.array([3, 1]))])
    assert isinstance(parts, Masked)
    assert parts.values.tolist() == [1, 0, 3, 0]
    assert parts.mask.tolist() == [True, False, True, False]
    assert np.asarray(masked, dtype="float32").tolist() == [1, 0, 2, 3]
    assert as_list(parts) == [b"\1\0", None, b"\3\0", None]
    assert Masked(cells.take(slice(2, 4)), np.dtype("int16")).mask.tolist() == [True, True]
    with pytest.raises(DecodeError, match="2 bytes are no int32"):
        _ = Masked(cells, np.dtype("int32")).values
