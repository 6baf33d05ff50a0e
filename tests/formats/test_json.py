"""JSON and JSON Lines: the suite, layouts, files of others, and appending from many processes."""

import json
import math
import sys
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import processes
from batchplant.formats.base.text import Content
from batchplant.formats.json import append
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, jpeg
from repository import GOLDEN
from trials import case


class TestLines(FormatSuite):
    format = "json"
    suffix = ".jsonl"
    golden = GOLDEN
    in_place = False


class TestArrayInGzip(FormatSuite):
    wraps = True
    format = "json"
    suffix = ".json.gz"
    in_place = False
    leave_out: ClassVar = [
        f"tensor {name}" for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32")
    ]


def opened(tmp_path, text, name="a.jsonl", **options):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return bp.open(tmp_path / name, **options)


def check_in_blocks(reader, block_bytes):
    """A pass in small blocks finds what the pass at opening found."""
    arrays, facts = reader._scan(Content(reader.source, False, lambda done: None, block_bytes))
    assert arrays["starts"].tolist() == reader._starts.tolist()
    assert facts["layout"] == reader._scan(Content(reader.source, False, lambda done: None))[1]["layout"]


def lines(values):
    return "".join(json.dumps(value) + "\n" for value in values)


TYPES = [
    ([1, -5], bp.Int()),
    ([2**63 - 1, -(2**63)], bp.Int()),
    ([2**64 - 1, 0], bp.Int("uint64")),
    ([2**64 - 1, -1], bp.Json()),
    ([2**70], bp.Json()),
    ([1, 2.5, math.inf], bp.Float()),
    ([2**53 + 1, 2.5], bp.Json()),
    ([True, False], bp.Bool()),
    ([True, 1], bp.Json()),
    (["a", ""], bp.Text()),
    (["a", None], bp.Text(optional=True)),
    (["a", 1], bp.Json()),
    ([{"a": 1}, {}], bp.Json()),
    ([None, None], bp.Json(optional=True)),
    ([[1, 2], [3, 4]], bp.Tensor("int64", (2,))),
    ([[1, 2.5], [], None], bp.Tensor("float64", (None,), optional=True)),
    ([[[1, 2], [3, 4]], [[5, 6]]], bp.Tensor("int64", (None, 2))),
    ([[True], [False]], bp.Tensor("bool", (1,))),
    ([[1, 2], [[3]]], bp.Json()),
    ([[[1], [2, 3]]], bp.Json()),
    ([[1, None]], bp.Json()),
    ([["a"]], bp.Json()),
    ([[], []], bp.Json()),
    ([[1], 2], bp.Json()),
]


def test_types_are_those_of_all_values(tmp_path):
    for number, (values, field) in enumerate(TYPES):
        with case(values):
            for name, text in (("a.jsonl", lines({"v": v} for v in values)), ("b.jsonl", lines(values))):
                with opened(tmp_path, text, f"{number}{name}") as reader:
                    key = "v" if name == "a.jsonl" else "data"
                    if key == "data" and any(isinstance(value, dict) for value in values):
                        continue
                    assert dict(reader.schema) == {key: field}
                    for value, sample in zip(values, reader, strict=True):
                        if isinstance(field, bp.Tensor) and value is not None:
                            assert np.array_equal(sample[key], np.array(value).reshape(sample[key].shape))
                        else:
                            assert value == sample[key]


def test_keys_come_and_go(tmp_path):
    text = '{"a": 1, "\\u00e9\\n": "x"}\n\n  {"é\\n": "y", "a": 2, "a": 3, "late": true, "": 0}\r\n'
    with opened(tmp_path, text) as reader:
        assert dict(reader.schema) == {"a": bp.Int(), "é\n": bp.Text(), "late": bp.Bool(optional=True)}
        assert list(reader) == [{"a": 1, "é\n": "x", "late": None}, {"a": 3, "é\n": "y", "late": True}]
        assert reader.facts()["keys left out"] == [""]
    with opened(tmp_path, '{"a": 1}\n[2]\n') as reader:
        assert list(reader) == [{"data": {"a": 1}}, {"data": [2]}]
    many = lines({f"key {n}": n} for n in range(10_001))
    with opened(tmp_path, many) as reader:
        assert dict(reader.schema) == {"data": bp.Json()}
        assert reader[10_000] == {"data": {"key 10000": 10_000}}


RECORDS: list = [{"a": n, "t": "x\ny" * n, "o": {"deep": [n]}} for n in range(3)]


@pytest.mark.parametrize(
    ("text", "layout", "count"),
    [
        (lines(RECORDS), "lines", 3),
        (json.dumps(RECORDS), "array", 3),
        (" \ufeff"[1:] + json.dumps(RECORDS, indent=2) + "\n", "array", 3),
        ("\n".join(json.dumps(record, indent=1) for record in RECORDS), "stream", 3),
        ("".join(map(json.dumps, RECORDS)), "stream", 3),
        (json.dumps(RECORDS[0], indent=4), "stream", 1),
        ("[1, 2]\n[3, 4]\n", "lines", 2),
        ("[]", "array", 0),
    ],
)
def test_layouts(text, layout, count, tmp_path):
    options = {} if count else {"schema": {"a": "int"}}
    with opened(tmp_path, text, "a.json", **options) as reader:
        assert reader.facts()["layout"] == layout
        assert len(reader) == count
        if "a" in reader.schema:
            assert list(reader) == RECORDS[:count]
        else:
            assert [sample["data"].tolist() for sample in reader] == [[1, 2], [3, 4]]
        check_in_blocks(reader, 16)


@pytest.mark.parametrize(
    ("bad", "column", "reason"),
    [
        ('{"a": 1', 8, "it ends inside of a value"),
        ('{"a": 1} {"a": 2}', 10, "something stands behind the value"),
        ('{"a": 01}', 8, "no JSON"),
        ("{'a': 1}", 2, "no JSON"),
        ('{"a": 1,}', 9, "no JSON"),
        ('{"a": "é\t"}', 9, "control character"),
        ('{"a": "\\ud80x"}', 8, "stands for no character"),
        ('{"a": "\\x"}', 8, "stands for no character"),
        (b'{"a": "\xff"}', 8, "no UTF-8"),
        ("[" * 2000, 961, "nested too deep"),
        ("nul", 4, "it ends inside of a value"),
    ],
)
def test_bad_records(bad, column, reason, tmp_path):
    text = b'{"a": 1}\n' + (bad if isinstance(bad, bytes) else bad.encode()) + b'\n{"a": 2}\n'
    with pytest.raises(bp.DamagedError, match=rf"line 2, column {column}: .*{reason}.*bad_rows='skip'"):
        opened(tmp_path, text)
    with opened(tmp_path, text, bad_rows="skip") as reader:
        assert list(reader) == [{"a": 1}, {"a": 2}]
        assert [problem.message.split(":")[0] for problem in reader.skipped] == [f"line 2, column {column}"]


HALVES = [
    {"t": "a\ud800b", "j": {"k\udc00": ["\udfff", 1]}},
    {"t": "\U0001f600\ud83d", "j": []},
    {"t": "\ude00\ud83d\ud83d\ude00"[:2] + "\\u", "j": "\ud800"},
]


@pytest.mark.parametrize("layout", ["lines", "array", "stream"])
def test_half_of_a_surrogate_pair(layout, tmp_path):
    """Its escape is legal JSON: in Text it reads as U+FFFD, in Json it stays."""
    text = json.dumps(HALVES) if layout == "array" else lines(HALVES)
    with opened(tmp_path, text, "a.json", layout=layout) as reader:
        assert dict(reader.schema) == {"t": bp.Text(), "j": bp.Json()}
        assert [sample["t"] for sample in reader] == ["a\ufffdb", "\U0001f600\ufffd", "\ufffd\ufffd\\u"]
        assert [sample["j"] for sample in reader] == [halve["j"] for halve in HALVES]
        check_in_blocks(reader, 5)
    for name in ("b.jsonl", "b.csv", "b.msgpack"):
        bp.convert(tmp_path / "a.json", tmp_path / name, source_options={"layout": layout})
        assert bp.verify(tmp_path / name, decode=True, against=tmp_path / "a.json").ok
    with bp.create(tmp_path / "c.jsonl", {"j": bp.Json()}) as writer:
        writer.append({"j": HALVES})
    assert bp.open(tmp_path / "c.jsonl")[0]["j"] == HALVES


def test_halves_in_names_and_in_what_is_appended(tmp_path):
    with opened(tmp_path, '{"\\ud800": 1}\n{"\\ufffd": 2}\n') as reader:
        assert [sample["\ufffd"] for sample in reader] == [1, 2]
    append(tmp_path / "b.jsonl", [{"a": "\ud800"}])
    assert (tmp_path / "b.jsonl").read_text() == '{"a": "\\ud800"}\n'


@pytest.mark.parametrize(("encoding", "given"), [("utf-16", None), ("utf-8-sig", None), ("cp1252", "cp1252")])
def test_other_encodings(encoding, given, tmp_path):
    records = [{"a": "é", "ü": number} for number in range(20)]
    for name, text in (
        ("a.json", json.dumps(records, ensure_ascii=False)),
        ("a.jsonl", "\n".join(json.dumps(record, ensure_ascii=False) for record in records)),
    ):
        with opened(tmp_path, text.encode(encoding), name, encoding=given) as reader:
            assert list(reader) == records
            assert reader[19]["ü"] == 19
    with pytest.raises(bp.DamagedError, match="no UTF-8; where it is text of another encoding, name it"):
        opened(tmp_path, '{"a": "é"}'.encode("cp1252"))


def test_damaged_arrays_and_empty_files(tmp_path):
    for text, reason in (
        ('[{"a": 1}, {"a": 2}', "line 1, column 20: the array is never closed"),
        ('[{"a": 1},\n {"a": }]', "line 2, column 8: this is no JSON array"),
        ("[1 2]", "this is no JSON array"),
        ("[1,]", "this is no JSON array"),
    ):
        with pytest.raises(bp.DamagedError, match=reason):
            opened(tmp_path, text, "a.json")
    for text in ("", "\n\n"):
        with pytest.raises(bp.SchemaError, match="give a schema"):
            opened(tmp_path, text)
        assert len(opened(tmp_path, text, schema={"a": "int"})) == 0
    with pytest.raises(bp.DamagedError, match="no JSON array"):
        opened(tmp_path, '{"a": 1}', "a.json", layout="array")
    with pytest.raises(bp.OptionError, match="layout is one of"):
        opened(tmp_path, "1", layout="rows")


def test_a_value_that_does_not_fit_what_was_given(tmp_path):
    text = '{"n": 1, "b": true}\n{"b": 1, "n": "two"}\n{"n": null}\n'
    schema = {"n": bp.Int("int8"), "b": bp.Bool(optional=True)}
    with opened(tmp_path, text, schema=schema) as reader:
        assert reader[0] == {"n": 1, "b": True}
        for rows, name, reason in (
            ([0, 1], "n", r"line 2, column 16: a string where Int\(dtype='int8'\) is needed"),
            ([1], "b", r"line 2, column 7: a number where Bool"),
            ([2], "n", "line 3, column 7: the value is missing"),
        ):
            with pytest.raises(bp.DecodeError, match=reason) as caught:
                reader.read(rows, [name])
            assert (caught.value.sample, caught.value.field) == (rows[-1], name)
    with (
        opened(tmp_path, '{"n": 300}\n', types={"n": bp.Int("uint8")}) as reader,
        pytest.raises(bp.DecodeError, match="'300' is out of range"),
    ):
        reader[0]
    with opened(tmp_path, '{"n": [1, 2]}\n{"n": [1, 2.5]}\n', types={"n": bp.Tensor("int8", (2,))}) as reader:
        assert reader[0]["n"].tolist() == [1, 2]
        with pytest.raises(bp.DecodeError, match=r"line 2, column 7: '\[1, 2.5\]' is not Tensor"):
            reader[1]


def test_python_reads_what_we_write(tmp_path):
    schema = {
        "x": bp.Float("float32"), "t": bp.Text(optional=True), "j": bp.Json(optional=True), "b": bp.Bytes(),
        "v": bp.Tensor("float32", (None, 2)),
    }  # fmt: skip
    rows = [
        {"x": 0.1, "t": 'a"\n\\\x1f', "j": None, "b": b"\0", "v": np.ones((2, 2), "f4")},
        {"x": math.nan, "t": None, "j": {"k": [1, "é"]}, "b": b"", "v": np.zeros((0, 2), "f4")},
    ]
    for name in ("a.jsonl", "a.json"):
        with bp.create(tmp_path / name, schema) as out:
            for row in rows:
                out.append(row)
        text = (tmp_path / name).read_text("utf-8")
        first, second = json.loads(text) if name == "a.json" else map(json.loads, text.splitlines())
        assert first == {"x": 0.1, "t": rows[0]["t"], "b": "AA==", "v": [[1, 1], [1, 1]]}
        assert math.isnan(second.pop("x"))
        assert second == {"t": None, "j": {"k": [1, "é"]}, "b": "", "v": []}
    # A null that was written as such is not a value that is missing.
    with bp.create(tmp_path / "b.jsonl", {"j": bp.Json(optional=True)}) as out:
        out.append(bp.Columns(j=bp.Ragged.from_cells([b"null", None, b'{"a":\n1}'])))
    assert cells(bp.open(tmp_path / "b.jsonl"))["j"] == [b"null", None, b'{"a": 1}']


def test_images_reach_the_loader(tmp_path):
    with bp.create(tmp_path / "a.jsonl", {"image": bp.Image(), "n": bp.Int("int32")}) as out:
        for n in range(5):
            out.append({"image": jpeg(8, 8), "n": n})
    batch = next(iter(bp.Loader(tmp_path / "a.jsonl", batch_size=5)))
    assert batch["image"].shape == (5, 8, 8, 3)
    assert batch["n"].tolist() == [0, 1, 2, 3, 4]


APPEND = """
import sys
from batchplant.formats.json import append
for n in range(40):
    append(sys.argv[1], [{"who": int(sys.argv[2]), "n": n, "text": "é" * 3000}] * 2)
"""


def test_many_processes_append(tmp_path):
    path = str(tmp_path / "a.jsonl")
    commands = [[sys.executable, "-c", APPEND, path, str(who)] for who in range(2)]
    assert [item.returncode for item in processes.run_together(*commands)] == [0] * 2
    with bp.open(path) as reader:
        assert len(reader) == 2 * 40 * 2
        result = reader.read(range(len(reader)))
        for who in range(2):
            assert result["n"][result["who"] == who].tolist() == [n for n in range(40) for _ in range(2)]


def test_appending_to_a_file_of_ours(tmp_path):
    path = tmp_path / "a.jsonl"
    schema = {"b": bp.Bytes(), "v": bp.Tensor("float32", (2,))}
    sample = {"b": b"\xff", "v": np.array([1, math.nan], "f4")}
    assert append(path, [sample], schema=schema) == 1
    assert append(path, [sample, sample]) == 2
    assert append(path, []) == 0
    with bp.open(path) as reader:
        assert reader.schema == bp.Schema(schema)
        assert [sample["b"] for sample in reader] == [b"\xff"] * 3
    assert bp.verify(path).problems == []
    with pytest.raises(bp.OptionError, match="the file has other fields"):
        append(path, [], schema={"b": bp.Text()})
    with pytest.raises(bp.SchemaError, match="it lacks v"):
        append(path, [{"b": b""}])
    with pytest.raises(bp.EncodeError, match="give a schema"):
        append(tmp_path / "b.jsonl", [{"b": b""}])
    with pytest.raises(bp.OptionError, match=r"only a \.jsonl file"):
        append(tmp_path / "a.json", [])
    # What create wrote says how many there are; that is not true any more.
    with bp.create(tmp_path / "c.jsonl", {"n": bp.Int()}) as out:
        out.append({"n": 1})
    append(tmp_path / "c.jsonl", [{"n": 2}])
    assert bp.verify(tmp_path / "c.jsonl").problems == []


def test_an_unfinished_last_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n{"a": 2}')
    append(path, [{"a": 3}])
    assert [sample["a"] for sample in bp.open(path)] == [1, 2, 3]
    with path.open("a") as file:
        file.write('{"a": ' + "[" * 70_000)
    with pytest.raises(bp.DamagedError, match="line 4"):
        bp.open(path)
    with pytest.warns(UserWarning, match="not finished; its 70006 bytes are cut off"):
        append(path, [{"a": 4}])
    assert [sample["a"] for sample in bp.open(path)] == [1, 2, 3, 4]


plain = st.none() | st.booleans() | st.floats() | st.integers(-(2**70), 2**70) | st.text(max_size=6)
names = st.text(max_size=6)
nested = st.recursive(
    plain, lambda of: st.lists(of, max_size=3) | st.dictionaries(names, of, max_size=3), max_leaves=9
)


def same(one, other):
    if isinstance(one, np.ndarray | list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(map(same, one.values(), other.values()))
    return one == other or (one != one and other != other)


@given(st.lists(st.dictionaries(st.sampled_from("abc"), nested, min_size=1), min_size=1, max_size=4))
def test_any_records_of_python(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("json") / "a.jsonl"
    try:
        text = "".join(json.dumps(record, ensure_ascii=len(records) % 2 == 0) + "\n" for record in records)
        path.write_text(text, "utf-8")
        text.encode().decode()
    except UnicodeEncodeError:
        return
    try:
        result = list(bp.open(path))
    except bp.DamagedError as error:
        # Half a pair of surrogates is no character.
        assert "stands for no character" in str(error)  # noqa: PT017
        return
    for record, sample in zip(records, result, strict=True):
        for key, value in sample.items():
            assert same(value, record.get(key)), (key, value, record)


@pytest.mark.reference
def test_pyarrow_reads_what_we_write(tmp_path):
    arrow_json = pytest.importorskip("pyarrow.json")
    schema = {"n": bp.Int(), "t": bp.Text(optional=True), "v": bp.Tensor("int64", (None,))}
    rows = [{"n": 1, "t": 'é"\n', "v": np.arange(3)}, {"n": 2, "t": None, "v": np.arange(0)}]
    with bp.create(tmp_path / "a.jsonl", schema) as out:
        for row in rows:
            out.append(row)
    actual = arrow_json.read_json(tmp_path / "a.jsonl").to_pylist()
    assert actual == [{"n": 1, "t": 'é"\n', "v": [0, 1, 2]}, {"n": 2, "t": None, "v": []}]
