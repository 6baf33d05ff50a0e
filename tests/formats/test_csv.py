"""CSV and TSV: the suite, and what other programs and people write."""

import csv
import datetime
import gzip
import io
import json
import math
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
from batchplant.cli import main
from batchplant.formats.base.text import Content
from batchplant.formats.registry import get_format
from batchplant.schema import KINDS
from batchplant.storage.compressed import zstd_compress
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, jpeg
from repository import GOLDEN
from trials import case


class TestCsv(FormatSuite):
    format = "csv"
    suffix = ".csv"
    golden = GOLDEN
    in_place = False


class TestZstd(FormatSuite):
    wraps = True
    format = "csv"
    suffix = ".tsv.zst"
    in_place = False
    # Whole numbers and text are enough for what is damaged in a packed file.
    leave_out: ClassVar = [
        f"tensor {name}" for name in ("int8", "uint8", "int16", "uint16", "int32", "uint32")
    ]


def opened(tmp_path, text, name="a.csv", **options):
    (tmp_path / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return bp.open(tmp_path / name, **options)


def check_in_blocks(reader, block_bytes):
    """A pass in small blocks finds what the pass at opening found."""
    content = Content(reader.source, False, lambda done: None, block_bytes)
    arrays, _ = reader._scan(content)
    assert arrays["starts"].tolist() == reader._starts.tolist()
    assert arrays["bad"].tolist() == reader._bad.tolist()


def values(reader, name):
    return [sample[name] for sample in reader]


TYPES = [
    (["1", "-7", "0"], bp.Int()),
    (["9223372036854775807", "-9223372036854775808"], bp.Int()),
    (["18446744073709551615", "0"], bp.Int("uint64")),
    (["18446744073709551615", "-1"], bp.Text()),
    (["18446744073709551616"], bp.Text()),
    (["007", "12"], bp.Text()),
    (["-01"], bp.Text()),
    (["+4912345"], bp.Text()),
    (["1", "2.5", "-0.0", "1e3", ".5", "5."], bp.Float()),
    (["1.5", "nan", "inf", "-Infinity"], bp.Float()),
    (["nan", "inf"], bp.Text()),
    (["1e400"], bp.Text()),
    (["9007199254740993", "0.5"], bp.Text()),
    (["true", "False", "TRUE"], bp.Bool()),
    (["true", "1"], bp.Text()),
    (["2024-01-31", "2024-02-01"], bp.Text()),
    (["1", ""], bp.Int(optional=True)),
    (["", ""], bp.Text(optional=True)),
    (["x", '""'], bp.Text()),
    (["1_000"], bp.Text()),
    (["0x10"], bp.Text()),
    (["nan(1)"], bp.Text()),
    ([" 5", "6 "], bp.Int()),
]


def test_types_are_those_of_all_cells(tmp_path):
    for number, (texts, field) in enumerate(TYPES):
        with case(texts):
            body = "".join(f"{text},end\n" for text in texts)
            with opened(tmp_path, f"x,y\n{body}", f"{number}.csv") as reader:
                assert dict(reader.schema) == {"x": field, "y": bp.Text()}
                assert reader.facts()["schema"] == "inferred"
                for text, value in zip(texts, values(reader, "x"), strict=True):
                    if isinstance(field, bp.Float):
                        assert value == float(text) or math.isnan(value)
                    elif isinstance(field, bp.Int) and text:
                        assert value == int(text)
                    elif isinstance(field, bp.Text):
                        assert value == (None if not text else text.strip('"'))


def test_a_last_row_decides(tmp_path):
    """No sample of the rows would have seen it."""
    rows = "".join(f"{n}\n" for n in range(200_000)) + "n.a.\n"
    with opened(tmp_path, "x\n" + rows) as reader:
        assert reader.schema["x"] == bp.Text()
        assert reader[199_999] == {"x": "199999"}
        assert reader[-1] == {"x": "n.a."}
    with opened(tmp_path, "x\n" + rows, missing=("", "n.a.")) as reader:
        assert reader.schema["x"] == bp.Int(optional=True)
        assert [reader[n]["x"] for n in (5, -1)] == [5, None]


def test_quotes_line_ends_and_marks(tmp_path):
    text = '\ufeff\r\nname,"a ""b""",c\r\n"line\r\nbreak, ""x""",é"t,\r\n\r\n"",2,"last"'
    with opened(tmp_path, text) as reader:
        assert list(reader) == [
            {"name": 'line\r\nbreak, "x"', 'a "b"': 'é"t', "c": None},
            {"name": "", 'a "b"': "2", "c": "last"},
        ]
    with opened(tmp_path, "a,b\r1,2\r3,4\r") as reader:
        assert values(reader, "b") == [2, 4]


@pytest.mark.parametrize(
    ("text", "name", "delimiter"),
    [
        ("a\tb\n1\t2\n", "a.tsv", "tab"),
        ("a;b\n1;2\n", "a.csv", ";"),
        ("a|b\n1|2\n", "a.csv", "|"),
        ("a,b;c\n1,2\n", "a.csv", ","),
        ("a,b\n1,2\n", "a.tsv", ","),
    ],
)
def test_delimiters(text, name, delimiter, tmp_path):
    with opened(tmp_path, text, name) as reader:
        assert reader.facts()["delimiter"] == delimiter
        assert list(reader[0].values()) == [1, 2]


def test_options_about_the_header(tmp_path):
    with opened(tmp_path, "1,x\n2,y\n", header=False) as reader:
        assert list(reader) == [{"column_1": 1, "column_2": "x"}, {"column_1": 2, "column_2": "y"}]
    with opened(tmp_path, "1,x\n2,y\n", header=False, schema={"n": "float", "t": "text"}) as reader:
        assert list(reader)[1] == {"n": 2.0, "t": "y"}
    with pytest.raises(bp.SchemaError, match="columns 1 and 3 have one name; duplicates='rename'") as caught:
        opened(tmp_path, "a,b,a\n1,2,3\n")
    assert caught.value.field == "a"
    with opened(tmp_path, "a,b,a,a_2,\n1,2,3,4,5\n", duplicates="rename") as reader:
        assert reader[0] == {"a": 1, "b": 2, "a_2": 3, "a_2_2": 4, "column_5": 5}
    for bad in ("", "\n\n"):
        with pytest.raises(bp.DamagedError, match="the file is empty"):
            opened(tmp_path, bad)
    with opened(tmp_path, "a,b\n") as reader:
        assert (len(reader), list(reader.schema)) == (0, ["a", "b"])
    for wrong in ("ab", "", "x", '"', "\n", "5", "é"):
        with pytest.raises(bp.OptionError, match="a delimiter is one sign"):
            opened(tmp_path, "a\n1\n", delimiter=wrong)


@pytest.mark.parametrize(
    ("text", "line", "column", "reason"),
    [
        ("a,b\n1,2\n3\n5,6\n", 3, 1, "the row has 1 fields, and the header has 2"),
        ("a,b\n1,2\n3,4,5\n5,6\n", 3, 1, "the row has 3 fields"),
        ('a,b\n"1\n",2\n3,"x"y\n5,6\n', 4, 6, "between a closing quote and the next field"),
        ("a,b\n1,2\n3,é\n".encode("latin-1") + b"5,6\n", 3, 3, "no UTF-8"),
        ('a,b\n1,2\n3,"never\n5,6\n', 3, 3, "a quote is never closed"),
    ],
)
def test_bad_rows(text, line, column, reason, tmp_path):
    with pytest.raises(bp.DamagedError, match=rf"line {line}, column {column}: .*{reason}.*bad_rows='skip'"):
        opened(tmp_path, text)
    with opened(tmp_path, text, bad_rows="skip") as reader:
        [problem] = reader.skipped
        assert reason in problem.message
        assert problem.path.endswith("a.csv")
        assert values(reader, "b")[-1] == 6
        assert len(reader) == 2
        assert reader.facts()["bad rows left out"] == 1
    with pytest.raises(bp.OptionError, match="bad_rows is raise or skip"):
        opened(tmp_path, text, bad_rows="ignore")


def test_a_cell_that_does_not_fit_what_was_given(tmp_path):
    text = 'n,"t\nt"\n1,a\n2,"b\nc"\nthree,d\n'
    with opened(tmp_path, text, types={"n": "int"}) as reader:
        assert reader[1] == {"n": 2, "t\nt": "b\nc"}
        with pytest.raises(bp.DecodeError, match=r"line 6, column 1: 'three' is not Int\(\)") as caught:
            reader.read([0, 2])
        assert (caught.value.sample, caught.value.field, caught.value.offset) == (2, "n", text.index("three"))
    result = bp.verify(reader.path, types={"n": bp.Int("int8")})
    assert [(problem.sample, problem.field) for problem in result.problems] == [(2, "n")]
    with pytest.raises(bp.SchemaError, match=r"no field 'x'; the fields are: .*types"):
        opened(tmp_path, text, types={"x": "int"})
    with pytest.raises(bp.SchemaError, match="there is no column 'x'"):
        opened(tmp_path, text, schema={"x": "int"})
    with opened(tmp_path, "n,m\n300,1\n,\n", types={"n": bp.Int("uint8"), "m": "float"}) as reader:
        assert reader.schema["m"] == bp.Float(optional=True)
        with pytest.raises(bp.DecodeError, match="'300' is out of range for uint8"):
            reader[0]
        assert reader[1] == {"n": None, "m": None}
    with opened(tmp_path, "n,m\n1,1\n,\n", schema={"n": bp.Int(), "x": bp.Text(optional=True)}) as reader:
        assert reader[0] == {"n": 1, "x": None}
        with pytest.raises(bp.DecodeError, match="line 3, column 1: the value is missing"):
            reader[1]


@pytest.mark.parametrize("packed", ["", ".gz"])
def test_words_for_missing_values_among_numbers_only(packed, tmp_path):
    rows = [
        "n,x,flag,word,mixed,only",
        "1,1.5,true,NA,a,NA",
        "NA,-,null,b,N/A,-",
        "-3,None,false,-,,null",
        ",nan,<NA>,null,c,NA",
        "n/a,#N/A,NULL,x,d,NA",
    ]
    path = tmp_path / f"a.csv{packed}"
    data = "\n".join(rows).encode()
    path.write_bytes(gzip.compress(data) if packed else data)
    reader = bp.open(path)
    assert dict(reader.schema) == {
        "n": bp.Int(optional=True), "x": bp.Float(optional=True), "flag": bp.Bool(optional=True),
        "word": bp.Text(), "mixed": bp.Text(optional=True), "only": bp.Text(),
    }  # fmt: skip
    samples = list(reader)
    assert [sample["n"] for sample in samples] == [1, None, -3, None, None]
    assert [sample["x"] for sample in samples if sample["x"] == sample["x"]] == [1.5, None, None, None]
    assert [sample["flag"] for sample in samples] == [True, None, False, None, None]
    assert [sample["word"] for sample in samples] == ["NA", "b", "-", "null", "x"]
    assert [sample["mixed"] for sample in samples] == ["a", "N/A", None, "c", "d"]
    assert [sample["only"] for sample in samples] == ["NA", "-", "null", "NA", "NA"]
    bp.convert(path, tmp_path / "b.csv")
    assert bp.verify(tmp_path / "b.csv", against=path).ok
    (tmp_path / "b.csv.schema.json").unlink()
    assert bp.verify(tmp_path / "b.csv", against=path).ok


def test_markers_that_are_named_stand_alone(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("n,t,d\n1,?,2024-01-31\n?,a,NA\nNA,b,?\n")
    assert bp.open(path, missing=["?"]).schema["n"] == bp.Text(optional=True)
    assert [sample["t"] for sample in bp.open(path, missing=["?"])] == [None, "a", "b"]
    # A known schema wins: what is text stays, what is a time has no such word.
    schema = {"n": bp.Text(), "d": bp.Time("D", optional=True)}
    samples = list(bp.open(path, schema=schema, missing=["?", "NA"]))
    assert [sample["d"] for sample in samples] == [datetime.date(2024, 1, 31), None, None]
    path.write_text("d\n2024-01-31\nNA\n")
    assert bp.open(path, types={"d": "date"})[1] == {"d": None}
    with pytest.raises(bp.DecodeError, match="missing, and the field is not optional"):
        bp.open(path, schema={"d": bp.Time("D")})[1]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_kind_can_be_named_or_says_what_it_needs(kind, tmp_path):
    (tmp_path / "a.csv").write_text("x\nabc\n")
    if kind in ("tensor", "decimal", "list", "struct", "keypoints", "sparse"):
        with pytest.raises(bp.SchemaError, match=rf'{kind} alone does not say enough; write \{{"kind": '):
            bp.open(tmp_path / "a.csv", types={"x": kind})
    else:
        assert bp.open(tmp_path / "a.csv", types={"x": kind}).schema["x"].kind == kind


def test_types_by_name_on_the_command_line(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("at,n,day\n2024-01-31T12:00:00,1,2024-01-31\n")
    arguments = ["info", str(tmp_path / "a.csv"), "--option", "types=at=time,n=uint8,day=date"]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "Time" in shown
    assert "uint8" in shown
    with pytest.raises(bp.SchemaError, match=r"no kind 'tiem' \(did you mean time\?\)"):
        bp.open(tmp_path / "a.csv", types={"at": "tiem"})


@pytest.mark.parametrize(
    ("numbers", "field"),
    [
        ([1, 2**64 - 1], bp.Int("uint64")),
        ([-(2**63), 2**63 - 1], bp.Int()),
        ([-1, 2**64 - 1], bp.Text()),
        ([2**70, -(2**70)], bp.Text()),
        ([1.5, 2**60], bp.Text()),
    ],
)
def test_wide_numbers_keep_all_of_their_digits(numbers, field, tmp_path):
    (tmp_path / "a.csv").write_text("x\n" + "".join(f"{number}\n" for number in numbers))
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"x": number}) + "\n" for number in numbers))
    reader = bp.open(tmp_path / "a.csv")
    assert reader.schema["x"] == field
    assert [str(sample["x"]) for sample in reader] == [str(number) for number in numbers]
    kept = bp.open(tmp_path / "a.jsonl")
    assert kept.schema["x"] == (bp.Json() if isinstance(field, bp.Text) else field)
    assert [row["x"] for row in kept] == numbers
    for name in ("a.csv", "a.jsonl"):
        exact = bp.open(tmp_path / name, types={"x": bp.Decimal(38, 1)})
        assert [row["x"] for row in exact] == numbers
    if abs(numbers[0]) >= 2**64:
        with pytest.raises(bp.DecodeError, match="is out of range for int64; uint64, a Decimal or a Float"):
            bp.open(tmp_path / "a.csv", types={"x": "int"})[0]


def test_complex_numbers_are_said_to_be_refused(tmp_path):
    for name in ("csv", "json"):
        assert get_format(name).holds == "every kind, no complex numbers"
        with pytest.raises(bp.SchemaError, match="no text for complex64"):
            bp.create(tmp_path / f"a.{name}", {"x": bp.Tensor("complex64", (2,))})
    assert get_format("npz").holds == "every kind"


def test_empty_text_and_missing_text(tmp_path):
    with bp.create(tmp_path / "a.csv", {"t": bp.Text(optional=True)}) as out:
        for value in (None, "", "x", None):
            out.append({"t": value})
    assert (tmp_path / "a.csv").read_text() == 't\n\n""\nx\n\n'
    assert values(bp.open(tmp_path / "a.csv"), "t") == [None, "", "x", None]
    assert bp.verify(tmp_path / "a.csv").problems == []
    with opened(tmp_path, "t,n\n,1\n", "b.csv", schema={"t": bp.Text()}) as reader:
        assert reader[0] == {"t": ""}


def test_images_are_base64_beside_a_schema(tmp_path):
    with bp.create(tmp_path / "a.csv", {"image": bp.Image(), "n": bp.Int("uint8")}) as out:
        out.append({"image": jpeg(), "n": 3})
        [remark] = out.remarks()
    assert "image" in remark
    assert "base64" in remark
    assert cells(bp.open(tmp_path / "a.csv"))["image"] == [jpeg()]
    (tmp_path / "a.csv.schema.json").unlink()
    with bp.open(tmp_path / "a.csv") as reader:
        assert dict(reader.schema) == {"image": bp.Text(), "n": bp.Int()}
    with bp.open(tmp_path / "a.csv", types={"image": "image"}) as reader:
        assert cells(reader)["image"] == [jpeg()]
        loader = bp.Loader(reader, batch_size=1)
        assert next(iter(loader))["n"].tolist() == [3]
    (tmp_path / "b.csv").write_text("image,n\nabc,1\n")
    with (
        bp.open(tmp_path / "b.csv", types={"image": "image"}) as reader,
        pytest.raises(bp.DecodeError, match="line 2, column 1: 'abc' is not base64"),
    ):
        reader[0]


def test_what_has_no_text_is_refused(tmp_path):
    for field in (bp.Tensor("complex64", (2,)), bp.Tensor("datetime64[ms]")):
        with pytest.raises(bp.SchemaError, match=r"csv has no text for .* values; write npz"):
            bp.create(tmp_path / "a.csv", {"x": field})
    with bp.create(tmp_path / "a.csv", {"t": bp.Text()}, on_error="skip") as out:
        out.append(bp.Columns(t=bp.Ragged.from_cells([b"\xff", b"x"])))
    [problem] = out.skipped
    assert problem.message == "the cell is no UTF-8"
    assert values(bp.open(tmp_path / "a.csv"), "t") == ["x"]


def test_a_long_file_in_blocks(tmp_path):
    """Rows that go over the ends of blocks, plain and packed; random access reads the same."""
    rng = np.random.default_rng(1)
    texts = ["x" * int(n) + '"\n,' for n in rng.integers(0, 20000, 300)]
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(["n", "text"])
    writer.writerows(enumerate(texts))
    data = out.getvalue().encode()
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(data[:100_000]) + gzip.compress(data[100_000:]))
    order = rng.permutation(300)
    for reader in (opened(tmp_path, data), bp.open(tmp_path / "b.csv.gz", index="write")):
        assert values(reader, "text") == texts
        assert values(reader.subset(order), "n") == order.tolist()
        assert reader.blocks().tolist() == sorted(reader.blocks().tolist())
        check_in_blocks(reader, 1 << 12)
    again = bp.open(tmp_path / "b.csv.gz")
    assert (again.facts()["compression"], len(again)) == ("gzip", 300)
    assert (tmp_path / "b.csv.gz.bpindex").exists()
    with pytest.raises(bp.DamagedError, match="gzip"):
        opened(tmp_path, (tmp_path / "b.csv.gz").read_bytes()[:-9], "c.csv.gz")


def test_shards_of_which_one_lacks_a_column(tmp_path):
    (tmp_path / "a-0.csv").write_text("x\n1\n\n2\n")
    (tmp_path / "a-1.csv").write_text("x,y\n,7\n")
    with bp.open(tmp_path, types={"x": "int"}) as reader:
        assert list(reader) == [{"x": 1, "y": None}, {"x": 2, "y": None}, {"x": None, "y": 7}]


def test_text_beside_data_of_another_format(tmp_path):
    for number in range(2):
        with bp.create(tmp_path / f"{number}.tfrecord", {"n": bp.Int()}) as out:
            out.append({"n": number})
    (tmp_path / "labels.csv").write_text("n,name\n0,cat\n")
    (tmp_path / "info.json").write_text("{}")
    assert values(bp.open(tmp_path), "n") == [0, 1]


texts_of = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
cells_of = st.one_of(st.none(), texts_of)


@given(st.lists(st.tuples(cells_of, cells_of), max_size=8), st.sampled_from([",", ";", "\t", "|", " "]))
def test_any_text_comes_back(tmp_path_factory, rows, delimiter):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    schema = {"a": bp.Text(optional=True), "b,;\t| \n": bp.Text(optional=True)}
    with bp.create(path, schema, delimiter=delimiter) as out:
        for row in rows:
            out.append(dict(zip(schema, row, strict=True)))
    with bp.open(path, delimiter=delimiter) as reader:
        assert [tuple(sample.values()) for sample in reader] == rows


@given(st.lists(st.tuples(st.floats(), st.floats(width=32), st.integers(-(2**63), 2**63 - 1)), min_size=1))
def test_any_number_comes_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("csv") / "a.csv"
    with bp.create(path, {"x": bp.Float(), "y": bp.Float("float32"), "n": bp.Int()}) as out:
        for x, y, n in rows:
            out.append({"x": x, "y": y, "n": n})
    result = bp.open(path).read(range(len(rows)))
    for number, (name, dtype) in enumerate((("x", "f8"), ("y", "f4"), ("n", "i8"))):
        want = np.array([row[number] for row in rows], dtype=dtype)
        same = (result[name] == want) & (np.signbit(result[name]) == np.signbit(want))
        assert (same | (np.isnan(result[name]) & np.isnan(want))).all()


@pytest.mark.reference
def test_pyarrow_and_pandas_read_what_we_write(tmp_path):
    arrow_csv = pytest.importorskip("pyarrow.csv")
    schema = {"n": bp.Int(), "x": bp.Float(optional=True), "t": bp.Text(optional=True), "f": bp.Bool()}
    rows = [(-3, 0.1, 'a "b",\n', True), (7, None, None, False), (8, math.inf, "", True)]
    with bp.create(tmp_path / "a.csv", schema) as out:
        for row in rows:
            out.append(dict(zip(schema, row, strict=True)))
    options = {
        "parse_options": arrow_csv.ParseOptions(newlines_in_values=True),
        "convert_options": arrow_csv.ConvertOptions(
            strings_can_be_null=True, quoted_strings_can_be_null=False
        ),
    }
    table = arrow_csv.read_csv(tmp_path / "a.csv", **options)
    assert [tuple(row.values()) for row in table.to_pylist()] == rows
    arrow_csv.write_csv(table, tmp_path / "b.csv")
    with bp.open(tmp_path / "b.csv") as reader:
        assert [tuple(sample.values()) for sample in reader] == rows
        assert reader.schema == bp.Schema(schema)


# --- encodings, escapes, and Excel's own line -------------------------------------------------------------

PEOPLE = 'näme;größe;stadt\nMüller;1;Köln\n"Ž;ižek\nS.";2;Ljubljana\nÉmile;;\n'
PACKERS = {
    "": bytes,
    ".gz": gzip.compress,
    ".zst": lambda data: zstd_compress()(np.frombuffer(data, np.uint8)),
}


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize(
    ("encoding", "given"),
    [
        ("cp1250", "cp1250"),
        ("utf-8-sig", None),
        ("utf-8-sig", "utf-8-sig"),
        ("utf-16", None),
        ("utf-16", "utf-16"),
        ("utf-16-be", "utf-16-be"),
        ("utf-32", None),
        ("utf-7", "utf-7"),
    ],
)
def test_other_encodings(encoding, given, packed, tmp_path):
    data = PACKERS[packed](PEOPLE.encode(encoding))
    with opened(tmp_path, data, f"a.csv{packed}", encoding=given) as reader:
        assert dict(reader.schema) == {
            "näme": bp.Text(),
            "größe": bp.Int(optional=True),
            "stadt": bp.Text(optional=True),
        }
        assert values(reader, "näme") == ["Müller", "Ž;ižek\nS.", "Émile"]
        assert reader[2] == {"näme": "Émile", "größe": None, "stadt": None}
        assert reader.facts().get("encoding") == (None if "utf-8" in encoding else encoding)
    with bp.open(tmp_path / f"a.csv{packed}", encoding=given, index="write") as reader:
        assert reader[1]["stadt"] == "Ljubljana"
    # The index of one encoding is not that of another.
    with bp.open(tmp_path / f"a.csv{packed}", encoding=given) as reader:
        assert reader[0]["stadt"] == "Köln"


def test_an_encoding_is_told_by_who_knows_it(tmp_path):
    latin = PEOPLE.replace("Ž", "Z").replace("ž", "z").encode("latin-1")
    with pytest.raises(bp.DamagedError, match=r"line 1: the header is no UTF-8.*encoding='cp1252'"):
        opened(tmp_path, latin)
    with opened(tmp_path, latin, encoding="latin-1", index="write") as reader:
        assert reader[0]["näme"] == "Müller"
    with opened(tmp_path, latin, encoding="cp437") as reader:
        assert reader[0]["n\u03a3me"] == "M\u207fller"
    with pytest.raises(bp.DamagedError, match=r"line 2, column 2: the bytes are no UTF-8.*encoding="):
        opened(tmp_path, b"a,b\nM\xfcller,1\n")
    with pytest.raises(bp.DamagedError, match="the bytes are not utf-16") as caught:
        opened(tmp_path, "a,b\n1,2\n".encode("utf-16") + b"\x00\xd8\x00\x00")
    assert caught.value.offset == 18
    with pytest.raises(bp.DamagedError, match="encoding='utf-16-le' reads that"):
        opened(tmp_path, "a,b\n1,2\n".encode("utf-16-le"))
    for wrong in ("klingon", "rot13", "zlib", "idna", "a\0b"):
        with pytest.raises(bp.OptionError, match="encoding is one such as"):
            opened(tmp_path, b"a\n1\n", encoding=wrong)


def test_a_large_file_in_another_encoding(tmp_path, monkeypatch):
    """In pieces that cut characters, and into a temporary file."""
    monkeypatch.setattr("batchplant.storage.compressed.MAX_MEMORY_BYTES", 5000)
    rows = [(number, "ä€\U0001f600"[number % 3] * (50 * number % 5003)) for number in range(1000)]
    body = "id,text\n" + "".join(f'{number},"{text}"\n' for number, text in rows)
    with opened(tmp_path, body.encode("utf-16-le"), encoding="utf-16-le") as reader:
        assert [reader[row]["text"] for row in (999, 0, 500)] == [rows[row][1] for row in (999, 0, 500)]
        assert values(reader, "id") == list(range(1000))


def test_an_encoding_on_the_command_line(tmp_path):
    from batchplant.cli import main

    (tmp_path / "a.csv").write_bytes("name\nMüller\n".encode("latin-1"))
    assert (
        main(["convert", str(tmp_path / "a.csv"), str(tmp_path / "a.jsonl"), "--option", "encoding=latin-1"])
        == 0
    )
    assert (tmp_path / "a.jsonl").read_text("utf-8") == '{"name":"Müller"}\n'


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_the_line_of_excel(ends, encoding, tmp_path):
    text = ends.join(["sep=;", "", "a;b,c", "1;x,y", "bad;x;y", ""])
    with pytest.raises(bp.DamagedError, match="line 5, column 1: the row has 3 fields"):
        opened(tmp_path, text.encode(encoding))
    with opened(tmp_path, text.encode(encoding), bad_rows="skip") as reader:
        assert reader.facts()["delimiter"] == ";"
        assert [dict(sample) for sample in reader] == [{"a": 1, "b,c": "x,y"}]
    with opened(tmp_path, "SEP=,\n1;2,3\n", header=False) as reader:
        assert reader[0] == {"column_1": "1;2", "column_2": 3}
    # What was given counts, and a column may have such a name.
    with opened(tmp_path, "sep=;\na,b;c\n1,2\n", delimiter=",") as reader:
        assert reader[0] == {"a": 1, "b;c": 2}
    with opened(tmp_path, "sep=x\n1\n") as reader:
        assert reader[0] == {"sep=x": 1}
    with pytest.raises(bp.DamagedError, match="the file is empty"):
        opened(tmp_path, "sep=;")


def test_cells_that_look_like_the_line_of_excel(tmp_path):
    """What we write reads back, with the side-car and without it."""
    for header in (True, False):
        path = tmp_path / f"{header}.csv"
        with bp.create(path, {"sep=;": bp.Text()}, header=header) as writer:
            writer.append({"sep=;": "sep=,"})
        with bp.open(path, header=header, schema=None if header else {"sep=;": "text"}) as reader:
            assert reader[0] == {"sep=;": "sep=,"}
    (tmp_path / "True.csv.schema.json").unlink()
    assert bp.open(tmp_path / "True.csv")[0] == {"sep=;": "sep=,"}


def escaped_csv(rows, **dialect):
    out = io.StringIO()
    csv.writer(out, escapechar="\\", lineterminator="\r\n", **dialect).writerows(rows)
    return out.getvalue()


TEXTS = [
    'he said "no"',
    "a,b",
    "back\\slash",
    "two\nlines",
    "\\",
    '"',
    "",
    "C:\\new\\table",
    "x\r\ny",
    "\\N",
    "ü\\ü",
]


@pytest.mark.parametrize("packed", PACKERS)
@pytest.mark.parametrize(
    "dialect",
    [
        {"doublequote": False},
        {"doublequote": False, "quoting": csv.QUOTE_ALL},
        {"quoting": csv.QUOTE_NONE},
        {"doublequote": True, "quoting": csv.QUOTE_ALL},
    ],
)
def test_escapes_as_python_and_pandas_write_them(dialect, packed, tmp_path):
    rows = [[str(number), text, text[::-1]] for number, text in enumerate(TEXTS * 3)]
    data = escaped_csv([["id", "te,xt", "more"], *rows], **dialect)
    with opened(
        tmp_path,
        PACKERS[packed](data.encode()),
        f"a.csv{packed}",
        escape="\\",
        types={"te,xt": "text", "more": "text"},
    ) as reader:
        assert [[str(sample["id"]), sample["te,xt"] or "", sample["more"] or ""] for sample in reader] == rows
        assert reader[len(rows) - 1]["more"] == rows[-1][2]
        check_in_blocks(reader, 7)


def test_escapes_as_mysql_writes_them(tmp_path):
    data = '1\ttab\\\there\t\\N\n2\tline\\\nend\t5\n3\t\\\\N\\0\\n\\Z\t\\N\n4\t"open\t7\n'
    with opened(tmp_path, data, "a.tsv", header=False, escape="\\", bad_rows="skip") as reader:
        # The last is no row: MySQL quotes nothing unless it is told to, and then quotes all.
        assert [tuple(sample.values()) for sample in reader] == [
            (1, "tab\there", None),
            (2, "line\nend", 5),
            (3, "\\N\0\n\x1a", None),
        ]
        assert [(problem.message.split(":")[0], problem.offset) for problem in reader.skipped] == [
            ("line 5, column 3", data.index('"'))
        ]
    quoted = '"1","say \\"hi\\"",\\N\n"2","back\\\\","x""y"\n'
    with opened(tmp_path, quoted, header=False, escape="\\") as reader:
        assert [tuple(sample.values()) for sample in reader] == [(1, 'say "hi"', None), (2, "back\\", 'x"y')]


def test_which_escapes_there_are(tmp_path):
    for wrong in ("ab", "a", " ", "\n", "ä", ","):
        with pytest.raises(bp.OptionError, match="an escape is one sign"):
            opened(tmp_path, "a,b\n1,2\n", escape=wrong, delimiter=",")
    with opened(tmp_path, 'a,b\n"x""y",2\\\n', escape='"') as reader:
        assert reader[0] == {"a": 'x"y', "b": "2\\"}
    # One at the very end stands for itself.
    with opened(tmp_path, "a,b\n1^,2,x^", escape="^") as reader:
        assert reader[0] == {"a": "1,2", "b": "x^"}


@given(st.lists(st.tuples(texts_of, texts_of), min_size=1, max_size=6), st.booleans(), st.booleans())
def test_any_text_that_python_escapes(tmp_path_factory, rows, doublequote, bare):
    quoting = csv.QUOTE_NONE if bare else csv.QUOTE_MINIMAL
    data = escaped_csv([("a", "b"), *rows], doublequote=doublequote, quoting=quoting)
    folder = tmp_path_factory.mktemp("escaped")
    with opened(folder, data, escape="\\", missing=[], schema={"a": "text", "b": "text"}) as reader:
        assert [tuple(sample.values()) for sample in reader] == rows
