"""Schema and field kinds."""

import copy
import pickle

import numpy as np
import pytest

from batchplant import schema as kinds
from batchplant.errors import FieldNameError, OptionError, SchemaError
from batchplant.schema import (
    Audio,
    Bool,
    Bytes,
    Float,
    Image,
    Int,
    Json,
    Schema,
    Tensor,
    Text,
    Video,
    field_from_json,
)

FIELDS = [
    Int(),
    Int("uint8"),
    Int(names=("cat", "dog")),
    Int("int16", optional=True),
    Float(),
    Float("float16"),
    Bool(),
    Bool(optional=True),
    Bytes(),
    Text(),
    Json(),
    Tensor("float32", (2, 3)),
    Tensor("complex64", (None, 2), optional=True),
    Tensor("datetime64[ms]"),
    Image(),
    Image("png", "RGBA"),
    Image(mode=None),
    Audio("wav"),
    Video(),
]


@pytest.mark.parametrize("field", FIELDS, ids=str)
def test_fields_survive_json_pickle_and_copy(field):
    assert field_from_json(field.to_json()) == field
    assert pickle.loads(pickle.dumps(field)) == field
    assert copy.deepcopy(field) == field
    assert hash(copy.copy(field)) == hash(field)


def test_every_kind_is_tried_and_registered():
    assert {field.kind for field in FIELDS} == set(kinds.KINDS)
    assert {type(field) for field in FIELDS} == set(kinds.KINDS.values())


@pytest.mark.parametrize(
    ("field", "cell"),
    [
        (Int("uint8"), (np.dtype("uint8"), ())),
        (Bool(), (np.dtype("bool"), ())),
        (Float("float16"), (np.dtype("float16"), ())),
        (Tensor("int16", (2, 3)), (np.dtype("int16"), (2, 3))),
        (Tensor("int16"), (np.dtype("int16"), ())),
        (Tensor("int16", (None, 3)), None),
        (Int(optional=True), None),
        (Text(), None),
        (Image(), None),
    ],
)
def test_which_cells_have_one_size(field, cell):
    assert field.cell == cell


@pytest.mark.parametrize(
    ("shape", "flat"),
    [
        ((None,), True),
        ((None, 2), True),
        ((2, 2), True),
        ((2, None), False),
        ((None, None), False),
        ((None, 0), False),
    ],
)
def test_when_the_length_of_a_cell_tells_a_tensors_shape(shape, flat):
    assert Tensor("uint8", shape).flat == flat


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: Int("float32"), "Int cannot have dtype float32"),
        (lambda: Int("nonsense"), "Int cannot have dtype 'nonsense'"),
        (lambda: Float("int8"), "Float cannot have dtype int8"),
        (lambda: Tensor("O", (2,)), "Tensor cannot have dtype object"),
        (lambda: Tensor("S4"), "Tensor cannot have dtype bytes"),
        (lambda: Tensor("int8", (-1,)), "cannot have the shape"),
        (lambda: Tensor("int8", (2**40, 2**40)), "cannot have the shape"),
        (lambda: Image(5), "are names"),
        (lambda: Image(mode=("RGB",)), "are names"),
    ],
)
def test_fields_that_cannot_be(make, reason):
    with pytest.raises(OptionError, match=reason):
        make()


def test_dtypes_and_names_are_canonical():
    assert Int("<i4") == Int("int32") == Int(np.int32)
    assert Tensor(">f4", [2, None]) == Tensor("float32", (2, None))
    assert Int(names=["a", "b"]) == Int(names=("a", "b"))
    assert Image("jpg") == Image("jpeg")


@pytest.mark.parametrize(
    ("field", "text"),
    [
        (Int(), "Int()"),
        (Int("uint8", optional=True), "Int(optional=True, dtype='uint8')"),
        (Tensor("int8", (None,)), "Tensor(dtype='int8', shape=(None,))"),
        (Image("png", None), "Image(encoding='png', mode=None)"),
    ],
)
def test_fields_in_words(field, text):
    assert str(field) == text


def test_many_classes_are_not_all_listed():
    text = str(Int(names=[f"class {n}" for n in range(1000)]))
    assert "1000 classes" in text
    assert len(text) < 80


@pytest.mark.parametrize(
    "found",
    [
        None,
        [],
        {},
        {"kind": "nonsense"},
        {"kind": []},
        {"kind": "int", "dtype": "float32"},
        {"kind": "int", "dtype": "(2"},
        {"kind": "int", "unknown": 1},
        {"kind": "int", "names": 5},
        {"kind": "tensor"},
        {"kind": "tensor", "dtype": "int8", "shape": None},
        {"kind": "tensor", "dtype": "int8", "shape": ["x"]},
        {"kind": "tensor", "dtype": "int8", "shape": [10**30]},
        {"kind": "image", "mode": {}},
    ],
)
def test_what_is_no_field_is_refused(found):
    with pytest.raises(SchemaError, match="not a field description"):
        field_from_json(found)


# --- Schema -------------------------------------------------------------------------------------------

SCHEMA = Schema({"image": Image(), "label": Int(names=("a", "b"))}, größe=Float("float32"))


def test_a_schema_is_an_ordered_mapping():
    assert list(SCHEMA) == ["image", "label", "größe"]
    assert SCHEMA["größe"] == Float("float32")
    assert "image" in SCHEMA
    assert 5 not in SCHEMA
    assert len(SCHEMA) == 3
    assert Schema() == Schema({})


def test_schemas_are_equal_when_names_order_and_fields_are():
    assert Schema(a=Int(), b=Text()) == Schema([("a", Int()), ("b", Text())])
    assert hash(Schema(a=Int())) == hash(Schema(a=Int()))
    assert Schema(a=Int(), b=Text()) != Schema(b=Text(), a=Int())
    assert Schema(a=Int()) != Schema(a=Int("int8"))
    assert Schema(a=Int()) != {"a": Int()}


def test_schemas_survive_json_and_pickle():
    assert Schema.from_json(SCHEMA.to_json()) == SCHEMA
    assert pickle.loads(pickle.dumps(SCHEMA)) == SCHEMA


def test_select_and_rename():
    assert list(SCHEMA.select(["label", "image"])) == ["label", "image"]
    assert list(SCHEMA.select("label")) == ["label"]
    assert list(SCHEMA.rename({"label": "klasse"})) == ["image", "klasse", "größe"]
    assert list(SCHEMA.rename({"label": "image", "image": "label"})) == ["label", "image", "größe"]
    for use in (
        lambda: SCHEMA["nonsense"],
        lambda: SCHEMA.select(["nonsense"]),
        lambda: SCHEMA.rename({"nonsense": "x"}),
    ):
        with pytest.raises(FieldNameError, match="no field 'nonsense'; the fields are: image, label, größe"):
            use()
    with pytest.raises(SchemaError, match="two fields one name"):
        SCHEMA.rename({"label": "image"})


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"": Int()}, "must be text"),
        ({5: Int()}, "must be text"),
        ({"a\0": Int()}, "must be text"),
        ({"a": Int}, r"write Int\(\) with parentheses"),
        ({"a": "int"}, "a field kind is needed"),
    ],
)
def test_schemas_that_cannot_be(fields, reason):
    with pytest.raises(SchemaError, match=reason):
        Schema(fields)


@pytest.mark.parametrize(
    "found",
    [
        None,
        {},
        [1],
        [{}],
        [{"kind": "int"}],
        [{"name": "a", "kind": "int"}] * 2,
        [{"name": "", "kind": "int"}],
    ],
)
def test_what_is_no_schema_is_refused(found):
    with pytest.raises(SchemaError):
        Schema.from_json(found)
