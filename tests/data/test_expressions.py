"""Conditions: their text, what they mean for columns, and for bounds."""

import datetime
import decimal
import fractions
import math
import operator
import re
import uuid

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant
from batchplant import (
    Bool,
    Bytes,
    FieldNameError,
    Float,
    Image,
    Int,
    Json,
    OptionError,
    Schema,
    Tensor,
    Text,
    col,
)
from batchplant.codecs.cells import encode_samples
from batchplant.data.expressions import Bounds, as_condition, bind, can_match, fields_of, matching, parse
from batchplant.data.expressions.evaluate import pattern_of
from batchplant.schema import Decimal, Time, Uuid

# --- text -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("x > 3", "x > 3"),
        ("3 < x", "x > 3"),
        ("3 < x <= 5", "x > 3 and x <= 5"),
        ("x >= -1_000", "x >= -1000"),
        ("x==.5 or x == 1e3", "x == 0.5 or x == 1000.0"),
        ('label == "cat"', "label == 'cat'"),
        (r"label == 'it\'s\n'", r"label == 'it\x27s\x0a'"),
        ("key == b'\\xff'", "key == b'\\xff'"),
        ("a == 1 and b == 2 or c == 3 and not d", "a == 1 and b == 2 or c == 3 and not d"),
        ("a == 1 and (b == 2 or c == 3)", "a == 1 and (b == 2 or c == 3)"),
        ("not (a == 1 or b == 2)", "not (a == 1 or b == 2)"),
        ("((a == 1))", "a == 1"),
        ("a == 1 and (b == 2 and c == 3)", "a == 1 and b == 2 and c == 3"),
        ("x IN (1, 2) AND y Is Not Null", "x in (1, 2) and not y is null"),
        ("x not in [1, 2,]", "not x in (1, 2)"),
        ("x in ()", "x in ()"),
        ("flag", "flag"),
        ("flag == true", "flag"),
        ("flag == FALSE", "flag == false"),
        ("`odd name` < 1 and `a``b` == 2 and `in` == 3", "`odd name` < 1 and `a``b` == 2 and `in` == 3"),
        ("a.b.c == 1", "a.b.c == 1"),
        ("größe > 1", "größe > 1"),
        ("a < b", "a < b"),
        ("x between 1 and 5", "x >= 1 and x <= 5"),
        ("x BETWEEN a AND 5 and y", "x >= a and x <= 5 and y"),
        ("x not between 1 and 5 or y", "not (x >= 1 and x <= 5) or y"),
        ("name like 'a%_'", "name like 'a%_'"),
        ("name Not Like '%x'", "not name like '%x'"),
        ("like like 'a' and between between 1 and 2", "like like 'a' and between >= 1 and between <= 2"),
    ],
)
def test_text_and_back(text, same):
    result = parse(text)
    assert str(result) == same
    assert parse(same) == result


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "empty"),
        ("   ", 1, "empty"),
        ("x = 3", 3, "write == for ="),
        ("x <> 3", 3, "!="),
        ("x == 1 && y == 2", 8, "write and for &&"),
        ("x == 1 | y == 2", 8, "write or for |"),
        ("!x", 1, "write not for !"),
        ("x ==", 5, "a field or a value is needed, and the filter ends"),
        ("x == 1 y", 8, "and, or, or the end"),
        ("unit price > 3", 6, "in backticks: `unit price`"),
        ("x > 1 and unit price > 3", 16, "in backticks: `unit price`"),
        ("(unit price > 3)", 7, "in backticks: `unit price`"),
        ("price (USD) > 3", 7, "in backticks: `my field`"),
        ("top 5 == true", 5, "in backticks: `top 5`"),
        ("(x == 1", 8, ") is needed"),
        ("x in 3", 6, "( is needed"),
        ("x in (1 2)", 9, ", or ) is needed"),
        ("x in (y)", 7, "not fields"),
        ("x is 3", 6, "null"),
        ("x == null", 6, "is null"),
        ("x == None", 6, "is null"),
        ("1 < 2", 1, "two values"),
        ("3", 1, "compare a field"),
        ("x == 'abc", 6, "never closed"),
        ("x == 2024-01-31", 10, "and, or"),
        ("x == 12ab", 6, "no number"),
        ("x == 1 and @y", 12, "backticks"),
        ("x == '\\q'", 6, "means nothing"),
        ("`` == 1", 1, "empty"),
        ("not", 4, "a field or a value"),
        ("x + 1 == 2", 3, "means nothing"),
        ("x not 3", 7, "in, like or between is needed behind not"),
        ("x between 1, 5", 12, "and is needed, as in x between 1 and 5"),
        ("x between 1 and", 16, "a field or a value is needed"),
        ("3 like 'a'", 1, "the name of a field"),
        ("x like y", 8, "a pattern in quotes"),
        ("x like 3", 8, "a pattern in quotes"),
        ("(" * 500 + "x" + ")" * 500, 101, "too deep"),
        ("not " * 500 + "x", 401, "too deep"),
    ],
)
def test_an_error_points_at_the_column(text, column, message):
    with pytest.raises(OptionError) as caught:
        parse(text)
    assert str(caught.value).startswith(f"column {column} of the filter")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_any_text_parses_or_is_refused(text):
    try:
        result = parse(text)
    except OptionError:
        return
    assert parse(str(result)) == result


def test_nothing_is_run():
    with pytest.raises(OptionError):
        parse("__import__('os').system('true')")


# --- objects --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (col("x") > 3, "x > 3"),
        (col("x") < 3, "x < 3"),
        (col("x") != "a", "x != 'a'"),
        ((col("x") >= 1) & (col("x") <= 2) & (col("y") == 3), "x >= 1 and x <= 2 and y == 3"),
        (~(col("x") == 1) | col("flag"), "not x == 1 or flag"),
        (~col("flag") & col("flag"), "not flag and flag"),
        (col("x").is_in(np.array([1, 2])), "x in (1, 2)"),
        (~col("x").is_null(), "not x is null"),
        (col("x").between(1, datetime.date(2024, 1, 31)), "x >= 1 and x <= '2024-01-31'"),
        (~col("x").like("a%"), "not x like 'a%'"),
        (col("a") < col("b"), "a < b"),
        (col("t") >= datetime.date(2024, 1, 31), "t >= '2024-01-31'"),
        (col("t") < np.datetime64("2024-01-31T12:00:00.5"), "t < '2024-01-31T12:00:00.500'"),
        (col("x") == np.float32(0.5), "x == 0.5"),
        (col("x") == decimal.Decimal("1.50"), "x == 1.5"),
        (col("x") == decimal.Decimal("-7.00"), "x == -7"),
        (col("x") < decimal.Decimal("0.12345678901234567890"), "x < 0.12345678901234567890"),
        (col("x") < decimal.Decimal("1e400"), "x < 1E+400"),
        (col("k") == memoryview(b"a"), "k == b'a'"),
    ],
)
def test_objects(result, text):
    assert str(as_condition(result)) == text
    assert parse(text) == as_condition(result)


def test_a_condition_has_no_truth():
    with pytest.raises(OptionError, match=r"& \| ~"):
        bool(col("x") > 3)
    with pytest.raises(OptionError):
        1 < col("x") < 3  # noqa: B015
    with pytest.raises(OptionError, match="parentheses"):
        (col("x") > 3) & 1
    with pytest.raises(OptionError, match="is null"):
        col("x") == None  # noqa: B015, E711
    with pytest.raises(OptionError, match="a list"):
        col("x").is_in("abc")
    with pytest.raises(OptionError):
        col("x") == [1, 2]  # noqa: B015
    with pytest.raises(OptionError):
        col("")


# --- fields ---------------------------------------------------------------------------------------------

SCHEMA = Schema(
    {
        "label": Int("int16", names=("cat", "dog", "cow", "dog")),
        "byte": Int("uint8"),
        "x": Float("float32"),
        "flag": Bool(),
        "name": Text(optional=True),
        "key": Bytes(),
        "photo": Image(optional=True),
        "more": Json(),
        "vector": Tensor("float32", (3,)),
        "at": Tensor("datetime64[ms]"),
        "day": Time("D"),
        "when": Time("us", "UTC", optional=True),
        "price": Decimal(10, 2),
        "id": Uuid(),
    }
)


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("lable == 1", FieldNameError, "did you mean label?"),
        ("label == 'catt'", OptionError, "did you mean cat?"),
        ("label < 'cat'", OptionError, "no order"),
        ("byte == 'x'", OptionError, "holds numbers"),
        ("byte == true", OptionError, "holds numbers"),
        ("flag == 1", OptionError, "true or false"),
        ("byte", OptionError, "holds numbers"),
        ("name == 3", OptionError, "text"),
        ("name == b'x'", OptionError, "text"),
        ("photo == 'x'", OptionError, "is null"),
        ("more == 'x'", OptionError, "is null"),
        ("vector == 1", OptionError, "is null"),
        ("at == 'yesterday'", OptionError, "no time"),
        ("at == '2024-01-01T00:00:00.0001'", OptionError, "finer"),
        ("day == '2024-13-01'", OptionError, "no such day"),
        ("price == 'dear'", OptionError, "decimal"),
        ("id == 'x'", OptionError, "UUID"),
        ("name == key", OptionError, "only numbers"),
        ("byte < name", OptionError, "only numbers"),
        ("byte like '1%'", OptionError, "only text, bytes and classes"),
        ("photo like '1%'", OptionError, "is null"),
        ("name like '\\ud800%'", OptionError, "half a letter"),
        ("day < when", OptionError, "only numbers"),
        ("byte == 1 and lable == 2", FieldNameError, "column 15"),
    ],
)
def test_what_does_not_fit_its_field_is_refused(text, error, message):
    with pytest.raises(error) as caught:
        bind(parse(text), SCHEMA)
    assert message in str(caught.value)
    assert str(caught.value).startswith("column ")


def test_the_fields_of_a_condition():
    assert fields_of(bind(parse("x > 1 or (not x < 0 and byte < label) or name is null"), SCHEMA)) == (
        "x", "byte", "label", "name",
    )  # fmt: skip


# --- rows -----------------------------------------------------------------------------------------------


def rows_of(text, schema, samples):
    columns = encode_samples(schema, samples)
    return np.flatnonzero(matching(bind(parse(text), schema), schema, columns)).tolist()


def test_classes_by_name_and_number():
    schema = Schema(label=SCHEMA["label"])
    samples = [{"label": number} for number in (0, 1, 2, 3)]
    assert rows_of("label == 'cat'", schema, samples) == [0]
    # Two classes have that name.
    assert rows_of("label == 'dog'", schema, samples) == [1, 3]
    assert rows_of("label in ('dog', 'cow', 0)", schema, samples) == [0, 1, 2, 3]
    assert rows_of("label != 'dog' and label < 2", schema, samples) == [0]
    assert rows_of("label like 'c%'", schema, samples) == [0, 2]
    assert rows_of("label not like '%o_'", schema, samples) == [0]
    assert rows_of("label like 'horse%'", schema, samples) == []


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("n < 300", [0, 1, 2]), ("n > 300", []), ("n == 300", []), ("n != 300", [0, 1, 2]),
        ("n >= -1", [0, 1, 2]), ("n < -1", []), ("n == -1", []), ("n in (300, 5)", [1]), ("n in (300)", []),
        ("n > 4.5", [1, 2]), ("n >= 5.5", [2]), ("n < 5.5", [0, 1]), ("n == 5.0", [1]), ("n == 5.5", []),
        ("n != 5.5", [0, 1, 2]), ("n < 1e400", [0, 1, 2]), ("n > -1e400", [0, 1, 2]), ("n > 1e400", []),
        ("not n == 5.5", [0, 1, 2]), ("not n < 300", []),
    ],
)  # fmt: skip
def test_whole_numbers_are_compared_exactly(text, rows):
    schema = Schema(n=Int("uint8"))
    assert rows_of(text, schema, [{"n": 0}, {"n": 5}, {"n": 255}]) == rows


def test_large_whole_numbers_are_compared_exactly():
    schema = Schema(n=Int("int64"), u=Int("uint64"))
    samples = [{"n": 2**53, "u": 2**53 + 1}, {"n": -1, "u": 2**64 - 1}, {"n": 7, "u": 7}]
    assert rows_of(f"n >= {2**53}.0", schema, samples) == [0]
    assert rows_of(f"u == {2**53 + 1}", schema, samples) == [0]
    assert rows_of("n < u", schema, samples) == [0, 1]
    assert rows_of("u > n", schema, samples) == [0, 1]
    assert rows_of("n == u", schema, samples) == [2]
    assert rows_of(f"u > {2**63}", schema, samples) == [1]


def test_nan_equals_nothing_and_missing_is_neither():
    schema = Schema(x=Float(optional=True))
    samples = [{"x": 1.0}, {"x": math.nan}, {"x": None}]
    assert rows_of("x > 0", schema, samples) == [0]
    assert rows_of("not x > 0", schema, samples) == [1]
    assert rows_of("x != 1", schema, samples) == [1]
    assert rows_of("x == 1 or x != 1", schema, samples) == [0, 1]
    assert rows_of("x is null", schema, samples) == [2]
    assert rows_of("x is not null", schema, samples) == [0, 1]
    assert rows_of("x in (1, 2)", schema, samples) == [0]
    assert rows_of("x not in (1, 2)", schema, samples) == [1]
    assert rows_of("not (x is null or x == 1)", schema, samples) == [1]


def test_a_short_float_is_compared_with_its_own_digits():
    schema = Schema(x=Float("float32"))
    samples = [{"x": 0.1}, {"x": 0.2}]
    assert rows_of("x == 0.1", schema, samples) == [0]
    assert rows_of("x in (0.2)", schema, samples) == [1]
    assert rows_of("x < 1e300", schema, samples) == [0, 1]


def test_times():
    schema = Schema({name: SCHEMA[name] for name in ("at", "day", "when")})
    samples = [
        {"at": np.datetime64("2024-01-31T12:00", "ms"), "day": "2024-01-31", "when": "2024-01-31T12:00:00Z"},
        {"at": np.datetime64("NaT", "ms"), "day": "2023-12-31", "when": None},
    ]
    assert rows_of("at >= '2024-01-31'", schema, samples) == [0]
    assert rows_of("at == '2024-01-31T12:00:00Z'", schema, samples) == [0]
    assert rows_of("at is null", schema, samples) == [1]
    assert rows_of("not at < '1970-01-01'", schema, samples) == [0]
    assert rows_of("day >= '2024-01-01'", schema, samples) == [0]
    assert rows_of("day < 19750", schema, samples) == [1]
    assert rows_of("when > '2024-01-31T13:30:00+02:00'", schema, samples) == [0]
    assert rows_of("when is null", schema, samples) == [1]
    assert rows_of(str(col("day") == datetime.date(2023, 12, 31)), schema, samples) == [1]


def test_decimals_and_identifiers():
    schema = Schema({name: SCHEMA[name] for name in ("price", "id")})
    one = uuid.UUID(int=1)
    samples = [{"price": "9.50", "id": str(one)}, {"price": "10.00", "id": str(uuid.UUID(int=2))}]
    assert rows_of("price > 9.5", schema, samples) == [1]
    assert rows_of("price == 10", schema, samples) == [1]
    assert rows_of("price in ('9.5', 3)", schema, samples) == [0]
    assert rows_of(f"id == '{one.hex.upper()}'", schema, samples) == [0]


@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "price": st.none() | st.decimals(-(10**6), 10**6, places=4, allow_nan=False),
                "other": st.decimals(-3, 3, places=1, allow_nan=False),
                "n": st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1),
                "u": st.integers(0, 2**64 - 1),
                "x": st.none() | st.sampled_from([0.5, 0.1, -2.0]) | st.floats(),
                "y": st.floats(width=32),
                "flag": st.booleans(),
            }
        ),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
)
def test_decimals_and_other_numbers_are_compared_exactly(samples, op):
    schema = Schema(
        price=Decimal(20, 4, optional=True), other=Decimal(4, 1), n=Int(), u=Int("uint64"),
        x=Float(optional=True), y=Float("float32"), flag=Bool(),
    )  # fmt: skip

    def exact(value):
        """A fraction; infinity and NaN compare with one as they do with any number."""
        return value if isinstance(value, float) and not math.isfinite(value) else fractions.Fraction(value)

    for left in ("price", "other"):
        for right in schema:
            for item, two in ((left, right), (right, left)):
                wanted = [
                    row
                    for row, sample in enumerate(samples)
                    if None not in (sample[item], sample[two])
                    and PLAIN[op](exact(sample[item]), exact(sample[two]))
                ]
                assert rows_of(f"{item} {op} {two}", schema, samples) == wanted


@given(
    st.decimals(-(10**9), 10**9, allow_nan=False) | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False),
    st.sampled_from(["==", "!=", "<", "<=", ">", ">="]),
)
def test_any_number_is_compared_with_its_own_digits(value, op):
    schema = Schema(price=Decimal(38, 10), n=Int(), u=Int("uint8"))
    samples = [
        {"price": str(n + decimal.Decimal("0.1")), "n": n, "u": abs(n)} for n in (-(10**9), -1, 0, 1, 200)
    ]
    samples = [{**sample, "u": sample["u"] % 256} for sample in samples]
    digits = decimal.Decimal(repr(value)) if isinstance(value, float) else decimal.Decimal(value)
    condition = PLAIN[op](col("price"), value)
    for name, exact in (("price", decimal.Decimal), ("n", int), ("u", int)):
        condition = as_condition(PLAIN[op](col(name), value))
        columns = encode_samples(schema, samples)
        actual = matching(bind(condition, schema), schema, columns).tolist()
        assert actual == [PLAIN[op](exact(sample[name]), digits) for sample in samples]


def test_cells_that_are_no_number_are_in_no_order():
    schema = Schema(price=Decimal(10, 2), x=Float())
    texts = ["1.00", "sNaN", "NaN", "words", "1e999999999"]
    columns = encode_samples(Schema(price=Text(), x=Float()), [{"price": text, "x": 0.0} for text in texts])

    def rows(text):
        return np.flatnonzero(matching(bind(parse(text), schema), schema, columns)).tolist()

    assert rows("price > 0.5") == rows("price > x") == [0, 4]
    assert rows("price != x") == [0, 1, 2, 3, 4]
    assert rows("price in (1, 2)") == [0]


@pytest.mark.parametrize("count", [1, 20_000])
def test_a_long_filter_is_cut_into_words_in_one_pass(count, monkeypatch):
    """Letters that are copied, not seconds: cutting copies nothing that grows with what is left."""

    class Letters(str):
        copied = 0

        def __getitem__(self, key):
            result = super().__getitem__(key)
            Letters.copied += len(result)
            return result

    parse(Letters(" or ".join(["x < 1"] * count)))
    assert Letters.copied <= 10


def test_a_pattern_with_many_single_letters_looks_through_a_cell_once():
    pattern = pattern_of("%" + "a_" * 2400 + "b%", letters=True)
    looks = 0

    class Text(str):
        def __getitem__(self, key):
            nonlocal looks
            looks += 1
            return super().__getitem__(key)

    assert pattern.pieces[1].search(Text("a" * 5000), 0) == -1
    assert looks <= 5000
    assert pattern.matches(b"xx" + b"a." * 2400 + b"bcd")
    assert not pattern.matches(b"xx" + b"a." * 2399 + b"bcd")
    with pytest.raises(OptionError, match="more than 16,384"):
        pattern_of("%" + "a_" * 10_000 + "%", letters=True)


@given(
    st.text("ab", max_size=90),
    st.lists(st.text("ab_", min_size=33, max_size=40), min_size=1, max_size=2).map(
        lambda many: "%" + "%".join(many) + "%"
    ),
)
def test_long_pieces_of_a_pattern_are_found_where_they_are(cell, pattern):
    wanted = re.fullmatch(pattern.replace("%", ".*").replace("_", "."), cell) is not None
    assert pattern_of(pattern, letters=True).matches(cell.encode()) is wanted


def test_a_condition_of_objects_is_not_nested_without_end(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(5))
    reader = batchplant.open(tmp_path / "a.npy")
    condition = as_condition(col("data") == 1)
    for _ in range(5000):
        condition = ~condition
    with pytest.raises(OptionError, match="nested deeper"):
        reader.filter(condition)
    with pytest.raises(OptionError, match="nested deeper"):
        batchplant.open(tmp_path / "a.npy", where=condition)


PLAIN = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
FIELDS = Schema(
    n=Int("int8", optional=True),
    f=Float("float64", optional=True),
    t=Text(optional=True),
    b=Bytes(),
    flag=Bool(),
)
VALUES = {
    "n": st.integers(-5, 5),
    "f": st.sampled_from([-1.5, 0.0, -0.0, 2.0, math.inf, -math.inf, math.nan]),
    "t": st.sampled_from(["", "a", "ab", "a\0", "b", "é", "abc", "zz", "éaé", "a\nb", "a%b"]),
    "b": st.sampled_from([b"", b"\0", b"a", b"\xff", b"a\xff", b"abcdefghij", b"abcdefghijk"]),
    "flag": st.booleans(),
}
SAMPLES = st.lists(
    st.fixed_dictionaries(
        {
            "n": st.none() | VALUES["n"], "f": st.none() | VALUES["f"], "t": st.none() | VALUES["t"],
            "b": VALUES["b"], "flag": VALUES["flag"],
        }
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


def _leaf(name):
    value = VALUES[name]
    compare = st.builds(lambda op, item: ("compare", name, op, item), st.sampled_from(list(PLAIN)), value)
    member = st.builds(lambda many: ("in", name, many), st.lists(value, max_size=4))
    result = [compare, member, st.just(("null", name))]
    if name in "tb":
        result.append(st.builds(lambda text: ("like", name, text), st.text("a%_bé\\\n", max_size=5)))
    return st.one_of(result)


TREES = st.recursive(
    st.one_of([_leaf(name) for name in FIELDS]),
    lambda inner: st.one_of(
        st.tuples(st.just("and"), inner, inner),
        st.tuples(st.just("or"), inner, inner),
        st.tuples(st.just("not"), inner),
    ),
    max_leaves=6,
)


def made_of(tree):
    """The tree as a condition of ours."""
    kind = tree[0]
    if kind == "compare":
        return as_condition(PLAIN[tree[2]](col(tree[1]), tree[3]))
    if kind == "in":
        return col(tree[1]).is_in(tree[2])
    if kind == "null":
        return col(tree[1]).is_null()
    if kind == "like":
        return col(tree[1]).like(tree[2])
    if kind == "not":
        return ~made_of(tree[1])
    left, right = made_of(tree[1]), made_of(tree[2])
    return left & right if kind == "and" else left | right


def split_bytes(cell, pattern):
    """Both byte by byte, as letters of Latin-1."""
    return [*cell.decode("latin-1")], [*pattern.encode().decode("latin-1")]


def is_like(cell, pattern):
    """The plainest way: try everything."""
    if not pattern:
        return not cell
    if pattern[0] == "%":
        return is_like(cell, pattern[1:]) or bool(cell and is_like(cell[1:], pattern))
    one, rest = pattern[0], pattern[1:]
    if one == "\\" and rest:
        one, rest = rest[0], rest[1:]
        return bool(cell and cell[0] == one) and is_like(cell[1:], rest)
    return bool(cell and one in ("_", cell[0])) and is_like(cell[1:], rest)


def truth(tree, sample):
    """What plain Python makes of it: True, False, or None where a missing cell leaves it open."""
    kind = tree[0]
    if kind == "null":
        return sample[tree[1]] is None
    if kind in ("compare", "in", "like"):
        cell = sample[tree[1]]
        if cell is None:
            return None
        if kind == "like":
            return is_like(*([*cell], [*tree[2]]) if isinstance(cell, str) else split_bytes(cell, tree[2]))
        if kind == "in":
            return any(cell == item for item in tree[2])
        if isinstance(cell, str):
            return PLAIN[tree[2]](cell.encode(), tree[3].encode())
        return PLAIN[tree[2]](cell, tree[3])
    if kind == "not":
        inner = truth(tree[1], sample)
        return None if inner is None else not inner
    both = truth(tree[1], sample), truth(tree[2], sample)
    decided = kind == "or"
    if decided in both:
        return decided
    return None if None in both else not decided


@given(TREES, SAMPLES)
def test_rows_are_those_of_plain_python(tree, samples):
    condition = made_of(tree)
    columns = encode_samples(FIELDS, samples)
    actual = matching(bind(condition, FIELDS), FIELDS, columns).tolist()
    assert actual == [truth(tree, sample) is True for sample in samples]
    nan = any(isinstance(part, float) and math.isnan(part) for part in _flat(tree))
    infinite = any(isinstance(part, float) and math.isinf(part) for part in _flat(tree))
    if not nan and not infinite:
        # As text it means the same.
        assert parse(str(condition)) == condition


def _flat(tree):
    for part in tree:
        if isinstance(part, tuple | list):
            yield from _flat(part)
        else:
            yield part


def _bounds(name, samples):
    cells = [sample[name] for sample in samples]
    there = [cell for cell in cells if cell is not None and cell == cell]
    there = [cell.encode() if isinstance(cell, str) else cell for cell in there]
    missing = sum(cell is None for cell in cells)
    return Bounds(len(cells), missing, min(there, default=None), max(there, default=None))


@given(TREES, SAMPLES, st.sampled_from(["all", "no counts", "low only", "nothing"]))
def test_bounds_never_hide_a_row(tree, samples, known):
    bound = bind(made_of(tree), FIELDS)
    by_name = {name: _bounds(name, samples) for name in FIELDS}
    if known == "no counts":
        by_name = {name: value._replace(missing=None, rows=None) for name, value in by_name.items()}
    elif known == "low only":
        by_name = {name: value._replace(high=None) for name, value in by_name.items()}
    elif known == "nothing":
        by_name = dict.fromkeys(by_name, Bounds())
    if any(truth(tree, sample) is True for sample in samples):
        assert can_match(bound, by_name.__getitem__)


@pytest.mark.parametrize(
    ("text", "can"),
    [
        ("n > 9", False), ("n >= 9", True), ("n < 3", False), ("n <= 3", True), ("n == 2", False),
        ("n == 5", True), ("n != 5", True), ("not n >= 3", False), ("not n > 3", True),
        ("n in (1, 12)", False), ("n in (1, 4)", True), ("n is null", False), ("n is not null", True),
        ("m == 1", False),
        ("m is null", True), ("m is not null", False), ("not m == 1", False), ("k == 5", True),
        ("k != 5", False), ("k not in (5, 6)", False), ("k not in (6)", True), ("n > 9 or k == 5", True),
        ("n > 9 or k == 6", False), ("n > 5 and k == 6", False), ("n == 300", False), ("f > 2", False),
        ("t like 'a%'", False), ("t like 'b%x_'", True), ("t like '%a'", True), ("t not like 'b%'", False),
        ("not f > 0", True), ("f != 1", True),
    ],
)  # fmt: skip
def test_bounds_skip(text, can):
    schema = Schema(n=Int("uint8"), m=Int(optional=True), k=Int(), f=Float(), t=Text())
    known = {
        "n": Bounds(10, 0, 3, 9), "m": Bounds(10, 10), "k": Bounds(10, 0, 5, 5), "f": Bounds(10, 0, 1.0, 1.0),
        "t": Bounds(10, 0, b"ba", b"bz"),
    }  # fmt: skip
    assert can_match(bind(parse(text), schema), known.__getitem__) is can


def test_col_is_public():
    assert batchplant.col is col
