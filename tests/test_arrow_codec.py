"""Cells as Arrow arrays and back, and the fields that the types of others mean."""

import dataclasses
import datetime
import decimal
import json

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs.arrow import arrow_schema, column_of, from_arrow, schema_of, to_arrow, unfit
from batchplant.codecs.cells import decode_cell, encode_samples
from batchplant.columns import Columns, Ragged
from batchplant.schema import Schema
from batchplant.testing.cases import all_cases, equal, jpeg, png

pa = pytest.importorskip("pyarrow")


def decoded(field, column, count):
    return [decode_cell(field, column, row) for row in range(count)]


def cases():
    for name, (field, values) in all_cases().items():
        if isinstance(field, bp.Image):
            continue
        yield pytest.param(field, values, id=name)
        maybe = dataclasses.replace(field, optional=True)
        yield pytest.param(maybe, [None, *values, None, values[0]], id=f"{name}, optional")
        yield pytest.param(maybe, [None, None], id=f"{name}, all missing")


@pytest.mark.parametrize(("field", "values"), list(cases()))
def test_cells_go_and_come_back(field, values):
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
