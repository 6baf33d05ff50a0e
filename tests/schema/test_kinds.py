"""Values of times, durations, decimals, UUIDs, lists and structs: their cells, their text, and back."""

import contextlib
import dataclasses
import datetime
import decimal
import json
import math
import uuid

import numpy as np
import pytest

import batchplant as bp
from batchplant.codecs import scalars, text
from batchplant.codecs.cells import cell_bytes, decode_cell, encode_samples
from batchplant.errors import DecodeError, SchemaError
from batchplant.schema import (
    Bool,
    Bytes,
    Decimal,
    Duration,
    Float,
    Image,
    Int,
    Json,
    List,
    Schema,
    Struct,
    Tensor,
    Text,
    Time,
    Uuid,
)
from batchplant.schema.columns import Columns, Ragged, column_runs
from batchplant.testing.cases import equal, jpeg, pixels

UTC = datetime.UTC
D = decimal.Decimal


def encoded(field, *values):
    return encode_samples(Schema(a=field), [{"a": value} for value in values])["a"]


def through(field, value):
    return decode_cell(field, encoded(field, value), 0)


@pytest.mark.parametrize(
    ("field", "value", "count"),
    [
        (Time("s"), datetime.datetime(2024, 2, 29, 12, 30, 5), 1709209805),
        (Time("us"), datetime.datetime(1969, 12, 31, 23, 59, 59, 999_999), -1),
        (Time("ms", "UTC"), datetime.datetime(2024, 2, 29, 12, 30, 5, tzinfo=UTC), 1709209805_000),
        (Time("D"), datetime.date(2024, 2, 29), 19782),
        (Time("us", clock=True), datetime.time(0, 1, 0, 7), 60_000_007),
        (Time("ns"), np.datetime64("1970-01-01T00:00:00.000000001"), 1),
        (Time("ns", clock=True), np.timedelta64(1, "ns"), 1),
        (Duration("us"), datetime.timedelta(days=-1, microseconds=1), -86_399_999_999),
        (Duration("ns"), np.timedelta64(-5, "ns"), -5),
        (Time("s"), np.datetime64(2**40, "s"), 2**40),
        (Time("D"), np.datetime64(2**31 - 1, "D"), 2**31 - 1),
    ],
)
def test_a_time_is_a_count_of_units(field, value, count):
    column = encoded(field, value)
    assert column.dtype == np.int64
    assert column.tolist() == [count]
    result = decode_cell(field, column, 0)
    assert equal(value, result)
    if isinstance(value, datetime.datetime):
        assert result.utcoffset() == value.utcoffset()


@pytest.mark.parametrize(
    ("field", "value", "count"),
    [
        (Time("s"), "1970-01-01T00:01", 60),
        (Time("s"), 60, 60),
        (Time("s"), np.int32(60), 60),
        (Time("s"), datetime.date(1970, 1, 2), 86400),
        (Time("us"), np.datetime64("1970-01-02"), 86400_000_000),
        (Time("D"), np.datetime64("1970-01-02T00:00:00", "ns"), 1),
        (Time("s", "+01:00"), datetime.datetime(1970, 1, 1, 1), 0),
        (Time("s", "+01:00"), datetime.datetime(1970, 1, 1, tzinfo=UTC), 0),
        (Duration("s"), "PT1M", 60),
        (Duration("ms"), np.timedelta64(2, "s"), 2000),
    ],
)
def test_other_values_that_are_times(field, value, count):
    assert encoded(field, value).tolist() == [count]


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (Time("s"), datetime.datetime(2024, 1, 1, microsecond=1), "finer than s"),
        (Time("s"), datetime.datetime(2024, 1, 1, tzinfo=UTC), "the field has none"),
        (Time("s"), datetime.timedelta(1), "does not fit"),
        (Time("s"), datetime.time(1), "does not fit"),
        (Time("s", clock=True), datetime.date(2024, 1, 1), "does not fit"),
        (Time("s", clock=True), 86_400, "out of range"),
        (Time("D"), 2**31, "out of range"),
        (Time("s"), True, "does not fit"),
        (Time("s"), 1.5, "does not fit"),
        (Time("s"), np.datetime64("2024-01-01T00:00:00.5"), "exactly"),
        (Time("ns"), np.datetime64("2500-01-01", "s"), "exactly"),
        (Time("s"), np.timedelta64(1, "s"), "does not fit"),
        (Time("s"), np.datetime64("NaT"), "the field is not optional"),
        (Duration("s"), datetime.timedelta(microseconds=1), "finer than s"),
        (Duration("s"), datetime.date(2024, 1, 1), "does not fit"),
        (Decimal(4, 2), D("1.234"), "exactly"),
        (Decimal(4, 2), D("123.45"), "does not fit"),
        (Decimal(4, 2), D("NaN"), "does not fit"),
        (Decimal(4, 2), D("1E+100000"), "does not fit"),
        (Decimal(4, 2), 1.5, "no exact decimal"),
        (Decimal(4, 2), "one", "does not fit"),
        (Uuid(), "x", "does not fit"),
        (Uuid(), b"short", "does not fit"),
        (List(Int()), [1, None], "a value inside is None"),
        (List(Int("int8")), [1000], "out of range"),
        (List(Text()), "text", "a List needs a list, not str"),
        (Struct({"a": Int()}), {"a": 1, "b": 2}, "exactly the values a, not a, b"),
        (Struct({"a": Int()}), [1], "exactly the values a, not list"),
    ],
)
def test_values_that_do_not_fit(field, value, reason):
    with pytest.raises(SchemaError, match=reason):
        encoded(field, value)


def test_nat_is_a_missing_time():
    pandas = pytest.importorskip("pandas")
    result = encoded(Time("ns", optional=True), np.datetime64("NaT"), None, pandas.NaT, 5)
    assert result.valid.tolist() == [False, False, False, True]
    stamp = pandas.Timestamp("2024-01-01T00:00:00.000000001")
    assert encoded(Time("ns"), stamp).tolist() == [stamp.value]
    assert encoded(Duration("ns"), pandas.Timedelta(7, "ns")).tolist() == [7]


@pytest.mark.parametrize(
    ("field", "value", "cell"),
    [
        (Decimal(5, 2), D("-12.5"), b"-12.50"),
        (Decimal(5, 2), 7, b"7.00"),
        (Decimal(38, 37), D("1E-37"), b"0." + b"0" * 36 + b"1"),
        (Decimal(3, -3), D("-1E+3"), b"-1000"),
        (Decimal(5), D("-0"), b"0"),
        (Decimal(76), D("9" * 76), b"9" * 76),
        (Uuid(), uuid.UUID(int=5), b"00000000-0000-0000-0000-000000000005"),
    ],
)
def test_decimals_and_uuids_are_their_text(field, value, cell):
    column = encoded(field, value)
    assert cell_bytes(column, 0) == cell
    assert decode_cell(field, column, 0) == value
    assert type(decode_cell(field, column, 0)) is (D if isinstance(field, Decimal) else uuid.UUID)


DEEP = Struct(
    {
        "n": Int(),
        "f": Float("float32"),
        "b": Bytes(optional=True),
        "when": Time("ns", "UTC"),
        "price": Decimal(20, 2),
        "id": Uuid(),
        "on": List(Bool()),
        "x": List(List(Float(optional=True))),
        "t": Tensor("int16", (None, 2)),
        "e": Tensor("int16", (2, 0)),
        "any": Json(),
    }
)
VALUE = {
    "n": 2**63 - 1,
    "f": 0.1,
    "b": bytes(range(256)),
    "when": "2024-01-01T00:00:00.123456789Z",
    "price": D("123456789012345678.90"),
    "id": uuid.UUID(int=2**127),
    "on": [True, False],
    "x": [[], [1.5, None, math.inf]],
    "t": np.ones((2, 2), np.int16),
    "e": np.ones((2, 0), np.int16),
    "any": {"ключ": [None, 1.5]},
}


def test_nested_values_come_back_exactly():
    result = through(
        List(DEEP), [VALUE, {**VALUE, "b": None, "f": math.nan, "x": [], "t": np.ones((0, 2), "i2")}]
    )
    assert list(result[0]) == list(VALUE)
    expected = {**VALUE, "when": np.datetime64("2024-01-01T00:00:00.123456789"), "f": float(np.float32(0.1))}
    for name, value in expected.items():
        assert equal(value, result[0][name]), name
    assert result[1]["b"] is None
    assert math.isnan(result[1]["f"])
    assert result[1]["t"].shape == (0, 2)


def test_images_in_a_list():
    one, other = through(List(Image()), [pixels(4, 5, 3), jpeg()])
    assert equal(one, pixels(4, 5, 3))
    assert other.shape == (8, 8, 3)


@pytest.mark.parametrize(
    ("field", "cell"),
    [
        (List(Int()), b"5"),
        (List(Int()), b"[1.5]"),
        (List(Int()), b"[true]"),
        (List(Int()), b"[null]"),
        (List(Int("int8")), b"[300]"),
        (List(Bool()), b"[1]"),
        (List(Bytes()), b'["%"]'),
        (List(Time("s")), b'["never"]'),
        (List(Decimal(3)), b'["1.5"]'),
        (List(Uuid()), b'["1"]'),
        (List(Text()), b"[1]"),
        (List(Tensor("int8", (2,))), b"[[1]]"),
        (Struct({"a": Int()}), b"[]"),
        (Struct({"a": Int()}), b"{}"),
        (Decimal(3), b"x"),
        (Uuid(), b"x"),
        (List(Json()), b"[" * 100_000),
    ],
)
def test_damaged_cells(field, cell):
    with pytest.raises(DecodeError):
        decode_cell(field, Ragged.from_cells([cell]), 0)


# --- text ---------------------------------------------------------------------------------------------

TIMES = [Time(unit) for unit in ("s", "ms", "us", "ns", "D")]
TIMES += [Time("us", "UTC"), Time("ns", clock=True), Time("s", clock=True), Duration("ns"), Duration("s")]


def runs(column):
    return text.Texts(*column_runs(column))


@pytest.mark.parametrize("field", TIMES, ids=str)
def test_times_as_text(field):
    counts = [
        0,
        1,
        86_399,
        *([] if getattr(field, "clock", False) else [-1, field.counts[1], field.counts[-1]]),
    ]
    texts = scalars.texts_of(field, np.array(counts))
    assert [field.parse(item.decode()) for item in texts] == counts
    assert scalars.counts_of(field, texts).tolist() == counts
    # Not what NumPy would write itself: one by one.
    spaced = np.char.replace(texts, b"T", b" ") if isinstance(field, Time) else texts
    assert scalars.counts_of(field, spaced).tolist() == counts


@pytest.mark.parametrize("field", TIMES, ids=str)
def test_no_times_are_no_text(field):
    assert scalars.texts_of(field, np.zeros(0, np.int64)).tolist() == []
    assert scalars.counts_of(field, np.zeros(0, "S1")).tolist() == []
    maybe = dataclasses.replace(field, optional=True)
    columns = Columns(a=Ragged.from_cells([None, None]))
    assert text.pack(Schema(a=maybe), columns, delimiter=",").tobytes() == b"\n\n"


def test_text_that_is_no_time_says_the_row():
    column = Ragged.from_cells([b"2024-01-01", None, b"2024-13-01"])
    with pytest.raises(DecodeError, match="no such day") as caught:
        text.column(Time("s", optional=True), runs(column))
    assert caught.value.sample == 2
    with pytest.raises(DecodeError, match="is not Time") as caught:
        text.column(Time("s", optional=True), runs(Ragged.from_cells([None, b"2" * 100])))
    assert caught.value.sample == 1


def test_a_count_beyond_the_calendar_is_no_text():
    schema = Schema(day=Time("D"), clock=Time("s", clock=True))
    columns = {"day": np.array([0, 2**31, 0]), "clock": np.array([86_400, 0, 0])}
    assert sorted(text.unfit(schema, Columns(columns))) == [0, 1]


# --- values in memory, batches, reports ---------------------------------------------------------------

MOMENT = datetime.datetime(2024, 5, 31, 12, 30)
TABLE = {
    "at": [MOMENT, MOMENT.replace(year=1969)],
    "zoned": [MOMENT.replace(tzinfo=UTC)] * 2,
    "day": [datetime.date(2024, 5, 31), datetime.date(1, 1, 1)],
    "clock": [datetime.time(1), datetime.time(2)],
    "span": [datetime.timedelta(seconds=1), datetime.timedelta(0)],
    "price": [D("1.50"), D("-100.125")],
    "id": [uuid.UUID(int=1), uuid.UUID(int=2)],
}


def test_values_in_memory_tell_their_kind():
    with bp.open(TABLE) as reader:
        assert dict(reader.schema) == {
            "at": Time("us"), "zoned": Time("us", "UTC"), "day": Time("D"), "clock": Time("us", clock=True),
            "span": Duration("us"), "price": Decimal(6, 3), "id": Uuid(),
        }  # fmt: skip
        assert list(reader) == [{name: values[row] for name, values in TABLE.items()} for row in range(2)]
    with pytest.raises(bp.SchemaError, match="no field kind"):
        bp.open({"a": [MOMENT, MOMENT.replace(tzinfo=UTC)]})
    with bp.open(
        {"a": np.array(["2024-01-01", "NaT"], "M8[s]")}, schema={"a": Time("s", optional=True)}
    ) as one:
        assert [sample["a"] for sample in one] == [datetime.datetime(2024, 1, 1), None]


@pytest.fixture
def lists(tmp_path):
    """A dataset of lists."""
    pytest.importorskip("pyarrow")
    schema = {
        "at": Time("s"), "maybe": Duration("ms", optional=True), "numbers": List(Float("float32")),
        "moments": List(Time("us", "UTC")), "flags": List(Bool()), "words": List(Text()),
        "gaps": List(Int(optional=True)),
    }  # fmt: skip
    with bp.create(tmp_path / "a.parquet", schema) as out:
        for n in range(4):
            out.append(
                {
                    "at": n, "maybe": None if n % 2 else datetime.timedelta(seconds=n),
                    "numbers": [n / 2, math.inf][: n % 3], "moments": [n, n + 1][: n % 3],
                    "flags": [True] * n, "words": ["ß"] * n, "gaps": [None, n],
                }
            )  # fmt: skip
    return tmp_path / "a.parquet"


def test_batches_hold_counts_and_ragged_numbers(lists):
    with contextlib.closing(bp.Loader(lists, 4, order="sequential")) as loader:
        [batch] = loader
    assert batch["at"].dtype == np.int64
    assert batch["at"].tolist() == [0, 1, 2, 3]
    assert batch["maybe"].tolist() == [0, 0, 2000, 0]
    assert batch["maybe_mask"].tolist() == [True, False, True, False]
    values, offsets = batch["numbers"]
    assert values.dtype == np.float32
    assert values.tolist() == [0.5, 1.0, math.inf]
    assert offsets.tolist() == [0, 0, 1, 3, 3]
    values, offsets = batch["moments"]
    assert values.dtype == np.int64
    assert values.tolist() == [1, 2, 3]
    assert offsets.tolist() == [0, 0, 1, 3, 3]
    assert batch["flags"][0].tolist() == [True] * 6
    assert batch["words"] == [[], ["ß"], ["ß", "ß"], ["ß", "ß", "ß"]]
    assert batch["gaps"][1] == [None, 1]


def test_a_list_that_is_none_names_its_sample(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"a": [1], "b": ["2024-01-01"]}\n{"a": [1, "x"], "b": [7]}\n')
    for name, field in (("a", List(Int())), ("b", List(Time("D")))):
        with bp.open(tmp_path / "a.jsonl", schema={name: field}) as reader:
            if name == "b":
                assert [sample["b"] for sample in reader] == [
                    [datetime.date(2024, 1, 1)],
                    [datetime.date(1970, 1, 8)],
                ]
                continue
            with (
                contextlib.closing(bp.Loader(reader, 2)) as loader,
                pytest.raises(bp.DecodeError, match="sample 1"),
            ):
                list(loader)


def test_samples_for_torch_have_counts(lists):
    torch = pytest.importorskip("torch")
    with contextlib.closing(bp.Loader(lists, 2)) as loader:
        sample = loader.as_map_dataset()[2]
    assert sample["at"].dtype == torch.int64
    assert sample["at"].item() == 2
    assert sample["maybe"].item() == 2000


def test_parts_are_named_by_the_day(tmp_path):
    days = [datetime.date(2024, 1, 1 + n % 2) for n in range(6)]
    parts = bp.split({"day": days}, by="day")
    assert sorted(parts) == ["2024-01-01", "2024-01-02"]
    assert len(parts["2024-01-01"]) == 3


def test_info_and_head_show_times(lists, capsys):
    from batchplant.cli import main

    assert main(["info", str(lists), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)["fields"]
    assert fields["at"]["values"] == {"first": "1970-01-01T00:00:00", "last": "1970-01-01T00:00:03"}
    assert main(["head", str(lists), "--json", "-n", "3"]) == 0
    assert '"1970-01-01T00:00:02"' in capsys.readouterr().out
    assert main(["head", str(lists)]) == 0
    assert "ß" in capsys.readouterr().out


def test_csv_and_json_hold_iso_text(tmp_path):
    schema = {
        "at": Time("ms", "UTC"),
        "day": Time("D", optional=True),
        "span": Duration("s"),
        "price": Decimal(5, 2),
    }
    row = {"at": "2024-05-31T12:30:00.5Z", "day": None, "span": "PT90S", "price": D("1.5")}
    for name, expected in (
        ("a.csv", "at,day,span,price\n2024-05-31T12:30:00.500Z,,PT90S,1.50\n"),
        ("a.jsonl", '{"at":"2024-05-31T12:30:00.500Z","day":null,"span":"PT90S","price":"1.50"}\n'),
    ):
        with bp.create(tmp_path / name, schema) as out:
            out.append(row)
        assert (tmp_path / name).read_text() == expected
    (tmp_path / "b.jsonl").write_text('{"at": 1717158600500, "tags": [{"k": "ä", "v": 1.5}], "price": 1.5}\n')
    given = {
        "at": Time("ms", "UTC"),
        "tags": List(Struct({"k": Text(), "v": Float()})),
        "price": Decimal(5, 2),
    }
    with bp.open(tmp_path / "b.jsonl", schema=given) as reader:
        at = datetime.datetime(2024, 5, 31, 12, 30, 0, 500_000, tzinfo=UTC)
        assert list(reader) == [{"at": at, "tags": [{"k": "ä", "v": 1.5}], "price": D("1.50")}]
    (tmp_path / "c.csv").write_text("at\n2024-05-31\nnever\n")
    with bp.open(tmp_path / "c.csv", schema={"at": Time("s")}) as reader:
        assert reader[0]["at"] == datetime.datetime(2024, 5, 31)
        with pytest.raises(
            bp.DecodeError, match=r"line 3.*'never' is not Time.*write it as 2024-05-31T12:30:00"
        ):
            reader[1]


def test_shards_whose_structs_differ_are_json(tmp_path):
    pytest.importorskip("pyarrow")
    kinds = [
        Struct({"a": Int(), "at": Time("D")}),
        Struct({"a": Text()}),
        Struct({"a": Text()}, optional=True),
    ]
    values = [{"a": 1, "at": datetime.date(2024, 1, 1)}, {"a": "x"}, None]
    for number, (field, value) in enumerate(zip(kinds, values, strict=True)):
        with bp.create(tmp_path / f"a-{number}.parquet", {"s": field}) as out:
            out.append({"s": value})
    with bp.open(tmp_path / "a-*.parquet") as reader:
        assert reader.schema["s"] == Json(optional=True)
        assert [sample["s"] for sample in reader] == [{"a": 1, "at": "2024-01-01"}, {"a": "x"}, None]
    with bp.open([tmp_path / "a-1.parquet", tmp_path / "a-2.parquet"]) as reader:
        assert reader.schema["s"] == kinds[2]
