"""tf.train.Example: every encoding that protobuf allows, and bytes that are none."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
from batchplant import _native
from batchplant.codecs import example
from batchplant.codecs.example import BYTES, FLOAT, INT64, Feature, RecordError, VarLen, infer, statistics_of
from batchplant.codecs.example import parse_features as given_features

# --- protobuf by hand ---------------------------------------------------------------------------------


def varint(number):
    number %= 1 << 64
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number, data):
    return varint(number << 3 | 2) + varint(len(data)) + data


def bytes_list(*values):
    return field(1, b"".join(field(1, value) for value in values))


def floats(*values):
    return field(2, field(1, struct.pack(f"<{len(values)}f", *values)) if values else b"")


def ints(*values):
    return field(3, field(1, b"".join(map(varint, values))) if values else b"")


def entry(key, value):
    return field(1, field(1, key.encode()) + field(2, value))


def message(*entries):
    return field(1, b"".join(entries))


def runs_of(records):
    data = np.frombuffer(b"".join(records), dtype=np.uint8)
    sizes = np.array([len(record) for record in records], dtype=np.int64)
    return data, np.cumsum(sizes) - sizes, sizes


def values(record, key, kind, sequence=False):
    """The values of a feature in one record; None where it is missing."""
    data, starts, sizes = runs_of([record])
    [result] = example.values_of(data, starts, sizes, [(key.encode(), sequence, kind)])
    if result.counts[0] < 0:
        return None
    if kind != BYTES:
        return result.values.tolist()
    return [data[start : start + size].tobytes() for start, size in result.values.tolist()]


UNKNOWN = [
    varint(9 << 3 | 0) + varint(2**63),
    varint(9 << 3 | 1) + bytes(8),
    varint(9 << 3 | 5) + bytes(4),
    field(9, b"whatever"),
    # A group in a group.
    varint(9 << 3 | 3) + varint(8 << 3 | 3) + field(1, b"x") + varint(8 << 3 | 4) + varint(9 << 3 | 4),
]


@pytest.mark.parametrize("unknown", UNKNOWN)
def test_unknown_fields_are_passed_over_everywhere(unknown):
    inner = field(3, unknown + field(1, b"\x05\x06") + unknown)
    feature = unknown + inner + unknown
    pair = field(1, unknown + field(1, b"a") + unknown + field(2, feature) + unknown)
    record = unknown + field(1, unknown + pair + unknown) + unknown
    assert values(record, "a", INT64) == [5, 6]
    survey = _native.ExampleSurvey()
    assert survey.add(*runs_of([record])) == -1
    assert survey.unknown > 0
    assert survey.foreign == 0
    assert [(item.key, item.kinds, item.most) for item in statistics_of(survey)] == [("a", 1 << INT64, 2)]
    # A record of nothing that is known belongs to somebody else.
    assert survey.add(*runs_of([unknown])) == -1
    assert survey.foreign == 1
    assert statistics_of(survey) is None


@pytest.mark.parametrize(
    ("record", "kind", "expected"),
    [
        (message(entry("a", ints())), INT64, []),
        (message(entry("a", b"")), INT64, None),
        (message(entry("b", ints(1))), INT64, None),
        (b"", INT64, None),
        (message(entry("a", ints(-1, 0, 127, 128, -(2**63), 2**63 - 1))), INT64,
         [-1, 0, 127, 128, -(2**63), 2**63 - 1]),
        # Unpacked, and both ways mixed.
        (message(entry("a", field(3, b"\x08\x05\x08\x80\x01\x0a\x02\x07\x08\x08\x09"))), INT64,
         [5, 128, 7, 8, 9]),
        (message(entry("a", field(2, b"\x0d" + struct.pack("<f", 1.5) + field(1, struct.pack("<f", 2.5))))),
         FLOAT, [1.5, 2.5]),
        (message(entry("a", floats(0.0, -1.5))), FLOAT, [0.0, -1.5]),
        (message(entry("a", bytes_list(b"", b"xy", b"\0"))), BYTES, [b"", b"xy", b"\0"]),
        # The last of two equal keys counts, also over two maps.
        (message(entry("a", ints(1)), entry("a", ints(2, 3))), INT64, [2, 3]),
        (message(entry("a", ints(1))) + message(entry("b", ints(9)), entry("a", ints(4))), INT64, [4]),
        (message(entry("a", ints(1)), entry("a", b"")), INT64, None),
        # Parts of one feature are merged; another kind replaces what was there.
        (message(entry("a", ints(1) + ints(2))), INT64, [1, 2]),
        (message(entry("a", floats(1) + ints(2))), INT64, [2]),
        (message(entry("a", ints(1) + floats(1) + ints(2))), INT64, [2]),
        (message(field(1, field(1, b"a") + field(2, ints(1)) + field(2, ints(2)))), INT64, [1, 2]),
        # The key may stand behind, come twice, or not at all.
        (message(field(1, field(2, ints(7)) + field(1, b"a"))), INT64, [7]),
        (message(field(1, field(1, b"b") + field(2, ints(7)) + field(1, b"a"))), INT64, [7]),
        (message(field(1, field(1, b"a") + field(2, ints(7)) + field(1, b"b"))), INT64, None),
        # A tag and a number may be longer than they need to be.
        (message(entry("a", field(3, b"\x8a\x80\x00\x02\x85\x00"))), INT64, [5]),
    ],
)  # fmt: skip
def test_what_protobuf_allows(record, kind, expected):
    assert values(record, "a", kind) == expected


def test_files_of_others(tmp_path):
    """Unknown fields, and values before their keys, are Examples all the same."""
    records = [
        message(
            field(1, field(2, ints(7)) + field(1, b"a")),
            field(1, field(2, bytes_list(b"x")) + field(1, b"b")),
        ),
        UNKNOWN[3]
        + message(UNKNOWN[0] + entry("a", UNKNOWN[1] + ints(8)), entry("b", bytes_list(b"yz")))
        + UNKNOWN[4],
        message(entry("a", field(3, b"\x08\x09"))) + message(entry("b", bytes_list(b""))),
    ]
    data, starts, sizes = runs_of(records)
    (tmp_path / "a.tfrecord").write_bytes(_native.tfrecord_frame(data, starts, sizes).tobytes())
    with bp.open(tmp_path / "a.tfrecord") as reader:
        assert dict(reader.schema) == {"a": bp.Int(), "b": bp.Bytes()}
        assert list(reader) == [{"a": 7, "b": b"x"}, {"a": 8, "b": b"yz"}, {"a": 9, "b": b""}]
        spans = reader.spans("b", [1, 0])
        assert spans.size.tolist() == [2, 1]
    data, starts, sizes = runs_of([*records, UNKNOWN[0]])
    (tmp_path / "b.tfrecord").write_bytes(_native.tfrecord_frame(data, starts, sizes).tobytes())
    assert dict(bp.open(tmp_path / "b.tfrecord").schema) == {"data": bp.Bytes()}


def test_the_empty_name():
    assert values(message(field(1, field(2, ints(7)))), "", INT64) == [7]


NO_EXAMPLES = [
    b"\xff",
    b"\x00",
    b"\x0a",
    b"\x0a\x05abc",
    b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x0c",
    b"\x0b" * 1000,
    b"\x0f\x01",
    message(b"\x0a\x7f"),
    message(entry("a", field(2, field(1, b"abc")))),
    message(entry("a", field(2, b"\x0dab"))),
    message(entry("a", field(3, field(1, b"\x80")))),
    message(entry("a", field(3, b"\x08"))),
    message(entry("a", field(1, b"\x0a\x09"))),
    message(entry("a", field(1, b"\x0a\xff\xff\xff\xff\x7f"))),
]


@pytest.mark.parametrize("record", NO_EXAMPLES)
def test_what_is_no_example(record):
    good = message(entry("a", ints(1)))
    data, starts, sizes = runs_of([good, record, good])
    for kind in (BYTES, FLOAT, INT64):
        with pytest.raises(RecordError) as caught:
            example.values_of(data, starts, sizes, [(b"a", False, kind)])
        assert caught.value.row == 1
        assert starts[1] <= caught.value.offset <= starts[2]
    survey = _native.ExampleSurvey()
    assert survey.add(data, starts, sizes) == 1
    assert survey.records == 1


def test_a_number_of_more_than_ten_bytes():
    record = message(entry("a", field(3, field(1, b"\x80" * 10 + b"\x01"))))
    with pytest.raises(RecordError):
        values(record, "a", INT64)


def test_runs_are_checked():
    data, starts, sizes = runs_of([message(entry("a", ints(1)))])
    for bad in ((starts - 1, sizes), (starts, sizes + 1), (starts + 2**62, sizes), (starts, sizes - 2**62)):
        with pytest.raises(IndexError):
            _native.example_read(data, *bad, [])
        with pytest.raises(IndexError):
            _native.ExampleSurvey().add(data, *bad)


# --- sequences ----------------------------------------------------------------------------------------


def sequence(context, lists):
    return message(*context) + field(2, b"".join(lists))


def steps(key, *features):
    return entry(key, b"".join(field(1, feature) for feature in features))


def read_inferred(records):
    """The fields that are found in records, and the values of all of them."""
    data, starts, sizes = runs_of(records)
    survey = _native.ExampleSurvey()
    assert survey.add(data, starts, sizes) == -1
    features = infer(statistics_of(survey), len(records), {})
    schema = bp.Schema({name: feature.field for name, feature in features.items()})
    columns = example.read(features, data, starts, sizes)
    columns.check(schema)
    decoded = [bp.codecs.cells.decode_sample(schema, columns, row) for row in range(len(records))]
    plain = [{k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in item.items()} for item in decoded]
    return dict(schema), plain


def test_feature_lists():
    records = [
        sequence([entry("id", ints(n))], [
            steps("frames", *[floats(n, step) for step in range(n)]),
            steps("tokens", *[ints(step) for step in range(2 * n)]),
            steps("ragged", *[ints(*range(step)) for step in range(n)]),
            steps("names", *[bytes_list(b"n%d" % step) for step in range(n)]),
            steps("id", floats(1)),
        ])
        for n in range(3)
    ]  # fmt: skip
    schema, result = read_inferred(records)
    assert schema == {
        "id": bp.Int(),
        "frames": bp.Tensor("float32", (None, 2)),
        "id[]": bp.Tensor("float32", (None,)),
        "names": bp.Json(),
        "ragged": bp.Json(),
        "tokens": bp.Tensor("int64", (None,)),
    }
    assert result[2] == {
        "id": 2,
        "frames": [[2.0, 0.0], [2.0, 1.0]],
        "id[]": [1.0],
        "names": [["n0"], ["n1"]],
        "ragged": [[], [0]],
        "tokens": [0, 1, 2, 3],
    }
    assert result[0]["frames"] == []
    assert result[0]["names"] == []


def test_inferred_fields():
    records = [
        message(
            entry("one", ints(n)),
            entry("row", floats(1, 2, 3)),
            entry("varied", ints(*range(n))),
            entry("blob", bytes_list(b"\xff" * n)),
            entry("words", bytes_list(*[b"w", b"\xff\xfe"][:n])),
            *([entry("maybe", floats(n))] if n else []),
            *([entry("unset", b"")] if n else [entry("unset", ints(1))]),
        )
        for n in range(3)
    ]
    schema, result = read_inferred(records)
    assert schema == {
        "blob": bp.Bytes(),
        "maybe": bp.Float("float32", optional=True),
        "one": bp.Int(),
        "row": bp.Tensor("float32", (3,)),
        "unset": bp.Int(optional=True),
        "varied": bp.Tensor("int64", (None,)),
        "words": bp.Json(),
    }
    assert [row["maybe"] for row in result] == [None, 1.0, 2.0]
    assert [row["unset"] for row in result] == [1, None, None]
    assert result[2]["words"] == ["w", {"base64": "//4="}]
    assert [row["varied"] for row in result] == [[], [0], [0, 1]]


def test_too_many_names():
    """Invented names must not take memory without end."""
    survey = _native.ExampleSurvey()
    records = [message(*[entry(f"{n} {key}", ints(1)) for key in range(100)]) for n in range(101)]
    assert survey.add(*runs_of(records)) == 100
    assert len(survey.features()) == 10_000


# --- writing ------------------------------------------------------------------------------------------

KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=6)
LISTS = st.one_of(
    st.tuples(st.just(BYTES), st.lists(st.binary(max_size=5), max_size=4)),
    st.tuples(st.just(FLOAT), st.lists(st.floats(width=32, allow_nan=False), max_size=4)),
    st.tuples(st.just(INT64), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)),
)


@given(st.dictionaries(KEYS, LISTS, max_size=5))
def test_what_is_written_is_what_protobuf_writes(features):
    make = {BYTES: bytes_list, FLOAT: floats, INT64: ints}
    ordered = sorted(features.items(), key=lambda feature: feature[0].encode())
    expected = message(*[entry(key, make[kind](*listed)) for key, (kind, listed) in ordered])
    sources = []
    for key, (kind, listed) in features.items():
        if kind == BYTES:
            data, starts, sizes = runs_of(listed)
            counts = np.array([len(listed)], dtype=np.int64)
        else:
            data = np.array(listed, dtype=example.WIRE_DTYPES[kind]).view(np.uint8)
            starts, sizes, counts = np.zeros(1, np.int64), np.array([len(data)], np.int64), None
        sources.append((key.encode(), kind, data, starts, sizes, counts))
    data, offsets = _native.example_write(1, sources)
    assert offsets.tolist() == [0, len(expected)]
    assert data.tobytes() == expected
    for key, (kind, listed) in features.items():
        assert values(expected, key, kind) == listed


@pytest.mark.parametrize(
    ("source", "error"),
    [
        ((b"a", 1, [0], [5], None), IndexError),
        ((b"a", 1, [-1], [1], None), IndexError),
        ((b"a", 1, [0], [-2], None), IndexError),
        ((b"a", 2, [0], [3], None), IndexError),
        ((b"a", 3, [0], [4], None), IndexError),
        ((b"a", 1, [0, 0], [1, 1], None), ValueError),
        ((b"a", 1, [0], [1], [2]), ValueError),
        ((b"a", 1, [0], [1], [2**62]), ValueError),
        ((b"a", 1, [0], [-1], [1]), IndexError),
        ((b"a", 3, [0], [0], [1]), ValueError),
        ((b"a", 0, [0], [0], None), ValueError),
        ((b"a", 4, [0], [0], None), ValueError),
    ],
)
def test_runs_to_write_are_checked(source, error):
    key, kind, *numbers = source
    arrays = [None if number is None else np.array(number, dtype=np.int64) for number in numbers]
    with pytest.raises(error):
        _native.example_write(1, [(key, kind, np.zeros(4, np.uint8), *arrays)])


def test_a_batch_is_read_without_a_loop():
    """Many records at once give the same as one by one."""
    rng = np.random.default_rng(0)
    records = [
        message(
            entry("a", ints(*rng.integers(-(2**40), 2**40, n % 5).tolist())), entry("b", bytes_list(bytes(n)))
        )
        for n in range(300)
    ]
    features = {
        "a": Feature(bp.Tensor("int64", (None,)), "a", INT64),
        "b": Feature(bp.Bytes(), "b", BYTES),
    }
    data, starts, sizes = runs_of(records)
    order = rng.permutation(300)
    result = example.read(features, data, starts[order], sizes[order])
    for row, number in enumerate(order):
        assert result["a"][row].view(np.int64).tolist() == values(records[number], "a", INT64)
        assert result["b"][row].tobytes() == bytes(number)
    where, length = example.runs(features["b"], data, starts[order], sizes[order])
    assert length.tolist() == order.tolist()
    assert data[where[3] : where[3] + length[3]].tobytes() == bytes(order[3])


def test_a_missing_variable_length_feature_is_empty():
    features = given_features({"a": VarLen("int64"), "b": VarLen(bytes)})
    data, starts, sizes = runs_of([message(entry("a", ints(1, 2))), message(entry("b", bytes_list(b"x")))])
    result = example.read(features, data, starts, sizes)
    assert [item.view(np.int64).tolist() for item in result["a"]] == [[1, 2], []]
    assert [item.tobytes() for item in result["b"]] == [b"[]", b'["x"]']
