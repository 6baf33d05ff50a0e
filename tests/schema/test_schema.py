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
    Boxes,
    Bytes,
    Decimal,
    Duration,
    Float,
    Image,
    Int,
    Json,
    Keypoints,
    Labels,
    List,
    Polygons,
    Schema,
    Sparse,
    Struct,
    Tensor,
    Text,
    Time,
    Uuid,
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
    Time("us"),
    Time("ns", "Europe/Berlin", optional=True),
    Time("D"),
    Time("ms", clock=True),
    Duration("s"),
    Decimal(12, 2),
    Uuid(),
    Sparse(20, "uint8", map(str, range(20))),
    List(Text()),
    List(List(Struct({"a": Int(names=("x", "y")), "b": Tensor("float32", (None, 2))})), optional=True),
    Struct({"when": Time("D", optional=True), "what": Struct({})}),
    Boxes(),
    Boxes("cxcywh", normalized=True, of="photo", labels=("label", "area"), dtype="float64", optional=True),
    Keypoints(3, swap=[(0, 2)]),
    Keypoints(names=("nose", "left_eye", "right_eye"), visibility=False, of="photo"),
    Labels(("cat", "dog")),
    Labels(dtype="uint8"),
    Polygons(),
    Polygons(of="photo", normalized=True),
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
        (Time("D"), (np.dtype("int64"), ())),
        (Duration("ns", optional=True), None),
        (Decimal(5), None),
        (List(Int()), None),
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
        (lambda: Time("h"), "the unit of a Time is D, s, ms, us, ns, not 'h'"),
        (lambda: Time("us", ""), "the name of a time zone"),
        (lambda: Time("D", "UTC"), "no time zone"),
        (lambda: Time("D", clock=True), "a date has no clock"),
        (lambda: Time("s", "UTC", clock=True), "no time zone"),
        (lambda: Duration("D"), "the unit of a Duration"),
        (lambda: Decimal(0), "precision is a whole number from 1 to 76"),
        (lambda: Decimal(5, 2.0), "scale is a whole number"),
        (lambda: List(Int), "holds field kinds"),
        (lambda: Boxes("xy"), "the format of boxes is xyxy, xywh, cxcywh, not 'xy'"),
        (lambda: Boxes("coco"), "what others call coco is xywh"),
        (lambda: Boxes(dtype="int32"), "Boxes cannot have dtype int32"),
        (lambda: Boxes(of=3), "of is the name of a field, not 3"),
        (lambda: Boxes(labels=[1]), "each of the labels is the name of a field"),
        (lambda: Keypoints(), "how many keypoints"),
        (lambda: Keypoints(2, ("a", "b", "c")), "2 keypoints have 3 names"),
        (lambda: Keypoints(3, swap=[(0, 3)]), "keypoints from 0 to 2"),
        (lambda: Keypoints(names=("a", "b"), swap=[("a", "z")]), "by number or name"),
        (lambda: Polygons(normalized=1), "normalized is True or False"),
        (lambda: Struct({"a": Tensor("complex64", (2,))}), "cannot hold complex64 values"),
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
        (Time("us", "UTC"), "Time(unit='us', tz='UTC')"),
        (Decimal(5, 2), "Decimal(precision=5, scale=2)"),
        (Boxes("xywh", labels="label"), "Boxes(format='xywh', labels=('label',))"),
        (List(Struct({"a": Int()}), optional=True), "List(optional=True, of=Struct({'a': Int()}))"),
    ],
)
def test_fields_in_words(field, text):
    assert str(field) == text


@pytest.mark.parametrize("kind", [Int, Labels])
@pytest.mark.parametrize("more", [0, 10])
def test_names_in_reprs_are_short_and_printable(kind, more):
    names = ["cat", "evil\u202egnp", "L" * 10_000, *map(str, range(more))]
    schema = Schema({"label": kind(names=names), "\u202e" + "x" * 5000: Float()})
    for text in (str(schema["label"]), repr(schema["label"]), repr(schema)):
        assert len(text) < 250
        assert text.isprintable()
        assert "cat" in text
    assert schema["label"].names == tuple(names)


def test_many_classes_are_not_all_listed():
    text = str(Int(names=[f"class {n}" for n in range(1000)]))
    assert "1000 classes" in text
    assert len(text) < 80


@pytest.mark.parametrize(
    "expected",
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
        {"kind": "time"},
        {"kind": "time", "unit": "us", "dtype": "int8"},
        {"kind": "list"},
        {"kind": "list", "of": {"kind": "nonsense"}},
        {"kind": "struct", "fields": [{"name": "a", "kind": "nonsense"}]},
    ],
)
def test_what_is_no_field_is_refused(expected):
    with pytest.raises(SchemaError, match="not a field description"):
        field_from_json(expected)


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
    "expected",
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
def test_what_is_no_schema_is_refused(expected):
    with pytest.raises(SchemaError):
        Schema.from_json(expected)


def test_a_field_nested_too_deep_is_refused():
    result = {"kind": "int"}
    for _ in range(1000):
        result = {"kind": "list", "of": result}
    with pytest.raises(SchemaError, match="not a field description"):
        field_from_json(result)


# --- ISO 8601 -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "text", "count"),
    [
        (Time("s"), "1970-01-01", 0),
        (Time("s"), "2024-02-29T12:30:05", 1709209805),
        (Time("us"), " 2024-02-29 12:30:05.25 ", 1709209805_250_000),
        (Time("ns"), "1969-12-31T23:59:59.999999999", -1),
        (Time("D"), "2024-02-29", 19782),
        (Time("D"), "-001-03-01", -719834),
        (Time("s"), "292277026596-12-04T15:30:07", 2**63 - 1),
        (Time("s"), "1709209805", 1709209805),
        (Time("s", "UTC"), "2024-02-29T12:30:05Z", 1709209805),
        (Time("s", "UTC"), "2024-02-29T12:30:05", 1709209805),
        (Time("s", "Asia/Tokyo"), "2024-02-29T12:30:05-01:30", 1709209805 + 5400),
        (Time("s", "+02:00"), "2024-02-29T12:30:05", 1709209805 - 7200),
        (Time("s", "Nowhere/Land"), "2024-02-29T12:30:05+0000", 1709209805),
        (Time("ms", clock=True), "23:59:59.999", 86_399_999),
        (Time("s", clock=True), "00:01", 60),
        (Duration("us"), "PT1.5S", 1_500_000),
        (Duration("s"), "-P1W1DT1H1M1S", -(8 * 86400 + 3661)),
        (Duration("ms"), "-7", -7),
    ],
)
def test_times_are_read_from_their_text(field, text, count):
    assert field.parse(text) == count


def test_a_time_without_an_offset_is_one_of_the_fields_zone():
    pytest.importorskip("zoneinfo").reset_tzpath()
    field = Time("s", "America/New_York")
    if field.zone.utcoffset(None) is not None:
        pytest.skip("the machine has no time zones")
    assert field.parse("2024-07-01T00:00:00") - field.parse("2024-07-01T00:00:00Z") == 4 * 3600
    assert field.parse("2024-01-01T00:00:00") - field.parse("2024-01-01T00:00:00Z") == 5 * 3600


@pytest.mark.parametrize(
    ("field", "text", "reason"),
    [
        (Time("s"), "", "write it as 2024-05-31T12:30:00"),
        (Time("D"), "yesterday", "write it as 2024-05-31$"),
        (Time("s"), "2024-01-01T00:00:00.5", "finer than s"),
        (Time("D"), "2024-01-01T00:00:01", "finer than a day"),
        (Time("s"), "2023-02-29", "no such day"),
        (Time("s"), "2023-00-01", "no such day"),
        (Time("s"), "2023-01-01T24:00:00", "no such time of day"),
        (Time("s"), "2023-01-01T00:00:00Z", "has a time zone, and the field has none"),
        (Time("s", "UTC"), "2023-01-01T00:00:00+24:00", "no such offset"),
        (Time("s", "Nowhere/Land"), "2023-01-01T00:00:00", "the zone Nowhere/Land is unknown here"),
        (Time("s", "../../etc/passwd"), "2023-01-01T00:00:00", "unknown here"),
        (Time("ns"), "2300-01-01", "out of range"),
        (Time("us"), "9223372036854775808", "out of range"),
        (Time("D"), "5881580-07-12", "out of range"),
        (Time("s", clock=True), "2023-01-01", "write it as 12:30:00"),
        (Time("s", clock=True), "12:60", "no such time of day"),
        (Duration("s"), "P", "write it as PT1.5S"),
        (Duration("s"), "P1DT", "write it as PT1.5S"),
        (Duration("s"), "PT1.5S", "finer than s"),
    ],
)
def test_text_that_is_no_time_is_refused(field, text, reason):
    with pytest.raises(SchemaError, match=reason):
        field.parse(text)


def test_days_are_those_of_the_calendar():
    days = np.arange(-1_000_000, 1_000_000, 997)
    parsed = [Time("D").parse(text) for text in np.datetime_as_string(days.view("M8[D]"))]
    assert parsed == days.tolist()
