"""MessagePack: the suite, streams of the msgpack package, and streams of nobody honest."""

import gzip
import json
import os
from pathlib import Path

import msgpack
import msgpack_numpy
import numpy as np
import pytest

import batchplant as bp
from batchplant.testing import FormatSuite
from batchplant.testing.cases import all_cases, cells, check_samples, jpeg, memory_bounded, pixels, png
from repository import GOLDEN
from trials import case


class TestSuite(FormatSuite):
    format = "msgpack"
    suffix = ".msgpack"
    golden = GOLDEN


class TestGzip(FormatSuite):
    wraps = True
    format = "msgpack"
    suffix = ".msgpack.gz"
    in_place = False


def stream(path, records, **options):
    path.write_bytes(b"".join(msgpack.packb(record, **options) for record in records))
    return path


def written(path, schema, samples, **options):
    with bp.create(path, schema, **options) as out:
        for sample in samples:
            out.append(sample)
    return path


# --- what others write --------------------------------------------------------------------------------


def golden_rows():
    for n in range(40):
        yield {
            "id": n, "name": f"Größe {n}", "score": n / 3, "ok": n % 2 == 0, "blob": bytes(range(n)),
            "tags": ["a"] * n, "box": [n, n + 1, n + 2, n + 3],
            "when": np.datetime64((1_700_000_000 + n) * 10**9 + 5, "ns"),
        }  # fmt: skip


@pytest.mark.parametrize("name", ["stream.msgpack", "list.msgpack", "stream.msgpack.gz"])
def test_golden_files(name):
    with bp.open(GOLDEN / "msgpack" / name) as reader:
        assert dict(reader.schema) == {
            "id": bp.Int(),
            "name": bp.Text(),
            "score": bp.Float(),
            "ok": bp.Bool(),
            "blob": bp.Bytes(),
            "tags": bp.Json(),
            "box": bp.Tensor("int64", (4,)),
            "when": bp.Tensor("datetime64[ns]"),
        }
        assert len(reader) == 40
        for sample, wanted in zip(reader, golden_rows(), strict=True):
            assert sample["box"].tolist() == wanted.pop("box")
            assert {name: sample[name] for name in wanted} == wanted
        compressed, one_array = name.endswith("gz"), name == "list.msgpack"
        facts = {"compressed": compressed, "records": "one array" if one_array else "a stream"}
        assert facts.items() <= reader.facts().items()
        assert (reader.spans("blob") is None) == compressed
    assert bp.verify(GOLDEN / "msgpack" / name, decode=True).problems == []


def test_golden_bytes_of_old_writers():
    with bp.open(GOLDEN / "msgpack" / "old.msgpack") as reader:
        assert reader.schema["raw"] == bp.Bytes()
        assert cells(reader)["raw"] == [b"\xff" * n for n in range(40)]


def test_golden_arrays():
    with bp.open(GOLDEN / "msgpack" / "numpy.mpk") as reader:
        assert dict(reader.schema) == {
            "id": bp.Int(),
            "x": bp.Tensor("float32", (2, 3)),
            "ids": bp.Tensor("int64", (None,)),
            "big": bp.Tensor("int16", (2,)),
            "one": bp.Tensor("float32"),
        }
        for n, sample in enumerate(reader):
            assert np.array_equal(sample["x"], np.full((2, 3), n, np.float32))
            assert sample["ids"].tolist() == list(range(n))
            assert sample["big"].tolist() == [n, n]
            assert sample["one"] == n
        # Only values that lie in the file as they are can be used in place.
        assert {name for name in reader.schema if reader.spans(name) is not None} == {"x", "ids"}


IMAGE = jpeg(5, 7)


INFERRED = [
    ([1, -1, 2**40], bp.Int(), None),
    ([0, 2**64 - 1], bp.Int("uint64"), None),
    ([-1, 2**64 - 1], bp.Json(), None),
    ([1, 2.5], bp.Float(), [1.0, 2.5]),
    ([2**60, 2.5], bp.Json(), None),
    ([True, False], bp.Bool(), None),
    ([True, 1], bp.Json(), None),
    (["a", ""], bp.Text(), None),
    ([b"a", b""], bp.Bytes(), None),
    ([b"a", "ä"], bp.Bytes(), [b"a", "ä".encode()]),
    ([None, 3], bp.Int(optional=True), None),
    ([None, None], bp.Json(optional=True), None),
    ([{"a": 1}, [1, "x"]], bp.Json(), None),
    (["text", {"a": None}], bp.Json(), None),
    ([[1, "2"], [3]], bp.Json(), None),
    ([[True, 2], [3, 4]], bp.Json(), None),
    ([[[1], [2, 3]]], bp.Json(), None),
    ([[]], bp.Json(), None),
    ([[1, 2], [3, 4]], bp.Tensor("int64", (2,)), None),
    ([[1, 2.5], [3]], bp.Tensor("float64", (None,)), [[1.0, 2.5], [3.0]]),
    ([[[1, 2]], []], bp.Tensor("int64", (None, 2)), None),
    ([[True], [False]], bp.Tensor("bool", (1,)), None),
    ([[1, b"x"], {"a": b""}], bp.Bytes(), [msgpack.packb([1, b"x"]), msgpack.packb({"a": b""})]),
    ([msgpack.ExtType(5, b"abc")], bp.Bytes(), [b"\xc7\x03\x05abc"]),
    ([msgpack.Timestamp(2**40)], bp.Bytes(), [msgpack.packb(msgpack.Timestamp(2**40))]),
    ([1, b"x"], bp.Bytes(), [b"\x01", b"x"]),
]


def test_fields_are_inferred(tmp_path):
    for number, (values, field, read) in enumerate(INFERRED):
        with case(values):
            path = stream(tmp_path / f"{number}.msgpack", [{"x": value, "n": 1} for value in values])
            with bp.open(path) as reader:
                assert reader.schema["x"] == field
                actual = [sample["x"] for sample in reader]
                actual = [item.tolist() if isinstance(item, np.ndarray) else item for item in actual]
                assert actual == (values if read is None else read)
                assert [type(item) for item in actual] == [
                    type(value) for value in (values if read is None else read)
                ]
            # And the same, where there are no maps around the values.
            if any(isinstance(value, dict) for value in values):
                return
            with bp.open(stream(tmp_path / "b.msgpack", [*values, *values])) as reader:
                assert dict(reader.schema) == {"data": field}
                assert len(reader) == 2 * len(values)


def test_images_are_found_by_their_bytes(tmp_path):
    records = [{"image": item, "mixed": other} for item, other in [(IMAGE, IMAGE), (IMAGE, png(3, 4, 3))]]
    with bp.open(stream(tmp_path / "a.msgpack", records)) as reader:
        assert reader.schema == bp.Schema(image=bp.Image("jpeg"), mixed=bp.Image())
        spans, data = reader.spans("image", [1]), Path(reader.path).read_bytes()
        assert data[spans.start[0] : spans.start[0] + spans.size[0]] == IMAGE
        assert reader[1]["mixed"].shape == (3, 4, 3)


def test_keys_of_any_kind(tmp_path):
    records = [{"a": 1, 7: "number", "": 0, "n\0l": 1, b"bytes": b"x"}, {b"bytes": b"y", "a": 2, (1, 2): 3}]
    with bp.open(stream(tmp_path / "a.msgpack", records[:1])) as reader:
        assert list(reader) == [{"a": 1, "bytes": b"x"}]
    stream(tmp_path / "a.msgpack", records)
    with pytest.raises(bp.DamagedError, match=r"sample 1, .*a key is itself a list or a map"):
        bp.open(tmp_path / "a.msgpack")


def test_keys_that_come_and_go(tmp_path):
    records = [{"a": 1}, {"b": "x"}, {"b": "y", "a": 2}]
    with bp.open(stream(tmp_path / "a.msgpack", records)) as reader:
        assert reader.schema == bp.Schema(a=bp.Int(optional=True), b=bp.Text(optional=True))
        assert list(reader) == [{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": 2, "b": "y"}]


def test_of_a_key_that_comes_twice_the_last_counts(tmp_path):
    (tmp_path / "a.msgpack").write_bytes(b"\x83\xa1x\x01\xa1y\x02\xa1x\x03")
    assert list(bp.open(tmp_path / "a.msgpack")) == [{"x": 3, "y": 2}]


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ({}, "the value is missing"),
        ({"x": None}, "the value is missing"),
        ({"x": "text"}, "a whole number is needed"),
        ({"x": 2**63}, "out of range"),
        ({"x": 1.0}, "a whole number is needed"),
    ],
)
def test_records_that_are_not_like_the_first_ones(last, reason, tmp_path):
    path = stream(tmp_path / "a.msgpack", [*[{"x": n} for n in range(1000)], last])
    with bp.open(path) as reader:
        assert reader[999] == {"x": 999}
        with pytest.raises(bp.DecodeError, match=f"{reason}.*inferred from 1000 records") as caught:
            reader.read([3, 1000])
        place = (caught.value.path, caught.value.sample, caught.value.field)
        assert place == (str(path), 1000, "x")
        assert path.stat().st_size - 20 < caught.value.offset < path.stat().st_size
        [problem] = reader.verify()
        assert (problem.sample, problem.field) == (1000, "x")


def test_a_schema_can_be_given(tmp_path):
    path = stream(tmp_path / "a.msgpack", [{"x": 1, "y": [1, 2], "z": "skipped"}, {"x": 2.5, "y": []}])
    schema = {"y": bp.Tensor("float32", (None,)), "x": bp.Float("float32")}
    with bp.open(path, schema=schema) as reader:
        assert reader.schema == bp.Schema(schema)
        assert [(sample["x"], sample["y"].tolist()) for sample in reader] == [(1.0, [1.0, 2.0]), (2.5, [])]
    described = {"x": "float", "z": {"kind": "text", "optional": True}}
    assert list(bp.open(path, schema=described)) == [{"x": 1.0, "z": "skipped"}, {"x": 2.5, "z": None}]
    with pytest.raises(bp.SchemaError, match="there can be only one field"):
        bp.open(stream(tmp_path / "b.msgpack", [1, 2]), schema=described)
    assert list(bp.open(tmp_path / "b.msgpack", schema={"n": bp.Int("int8")})) == [{"n": 1}, {"n": 2}]


@pytest.mark.parametrize("data", [b"", b"\x90", gzip.compress(b"", mtime=0)])
def test_without_a_record_the_fields_have_to_be_given(data, tmp_path):
    (tmp_path / "a.msgpack").write_bytes(data)
    with pytest.raises(bp.SchemaError, match="there is no record to tell the fields by"):
        bp.open(tmp_path / "a.msgpack")
    with bp.open(tmp_path / "a.msgpack", schema={"n": bp.Int()}) as reader:
        assert len(reader) == 0
        assert reader.read([])["n"].shape == (0,)


def test_a_stream_of_arrays_is_no_array_of_samples(tmp_path):
    with bp.open(stream(tmp_path / "a.msgpack", [[1, 2], [3, 4], [5, 6]])) as reader:
        assert [sample["data"].tolist() for sample in reader] == [[1, 2], [3, 4], [5, 6]]
    with bp.open(stream(tmp_path / "b.msgpack", [list(range(70_000))])) as reader:
        assert len(reader) == 70_000
        assert reader[69_999] == {"data": 69_999}


# --- what others read ---------------------------------------------------------------------------------

SAMPLES = [
    {
        "id": -n, "big": 2**63 + n, "half": n / 8, "name": f"№ {n}", "meta": {"n": [n, None]},
        "blob": bytes(n), "flag": n == 1, "maybe": None if n else 5, "x": np.full((2, n), n, np.float32),
        "raw": pixels(3, 4, 3),
    }
    for n in range(3)
]  # fmt: skip
SCHEMA = {
    "id": bp.Int("int16"), "big": bp.Int("uint64"), "half": bp.Float("float16"), "name": bp.Text(),
    "meta": bp.Json(), "blob": bp.Bytes(), "flag": bp.Bool(), "maybe": bp.Int("int8", optional=True),
    "x": bp.Tensor("float32", (2, None)), "raw": bp.Image(),
}  # fmt: skip


@pytest.mark.parametrize("suffix", [".msgpack", ".mpk.gz"])
@pytest.mark.parametrize("way", ["ext", "msgpack-numpy"])
def test_msgpack_reads_what_we_write(way, suffix, tmp_path):
    path = written(tmp_path / f"a{suffix}", SCHEMA, SAMPLES, numpy=way, write_mode="raw")
    check_samples(bp.open(path), SCHEMA, SAMPLES)
    hook = msgpack_numpy.decode if way == "msgpack-numpy" else None
    with (gzip.open if suffix.endswith("gz") else open)(path, "rb") as file:
        result = list(msgpack.Unpacker(file, object_hook=hook))
    for sample, read in zip(SAMPLES, result, strict=True):
        assert list(read) == list(SCHEMA)
        assert json.loads(read.pop("meta")) == sample["meta"]
        x, raw = read.pop("x"), read.pop("raw")
        if way == "ext":
            assert x.code == raw.code == 0x42
            assert x.data == b"\3<f4\2" + np.array(sample["x"].shape, "<u8").tobytes() + sample["x"].tobytes()
            assert raw.data == b"\3|u1\3" + np.array([3, 4, 3], "<u8").tobytes() + sample["raw"].tobytes()
        else:
            assert x.dtype == np.float32
            assert np.array_equal(x, sample["x"])
            assert np.array_equal(raw, sample["raw"])
        assert read == {name: sample[name] for name in read}


def test_arrays_in_the_way_of_msgpack_numpy(tmp_path):
    """Every kind of field comes back, also by way of images that are arrays."""
    for number, (name, (field, values)) in enumerate(all_cases().items()):
        samples = [{"v": value} for value in values]
        path = written(tmp_path / f"{number}.mpk", {"v": field}, samples, numpy="msgpack-numpy")
        with case(name), bp.open(path) as reader:
            check_samples(reader, {"v": field}, samples)


def test_pixels_of_others_as_images(tmp_path):
    path = tmp_path / "a.msgpack"
    images = [pixels(4, 5, 3), pixels(2, 3)]
    stream(path, [{"image": image} for image in images], default=msgpack_numpy.encode)
    with bp.open(path, schema={"image": bp.Image(mode=None)}) as reader:
        assert all(
            np.array_equal(sample["image"], image) for sample, image in zip(reader, images, strict=True)
        )
        assert reader.spans("image").shape.tolist() == [[4, 5, 3], [2, 3, 1]]


def test_the_schema_is_beside_the_file(tmp_path):
    path = written(tmp_path / "a.msgpack", {"data": bp.Bytes(), "t": bp.Json()}, [{"data": b"x", "t": 1}])
    assert sorted(os.listdir(tmp_path)) == ["a.msgpack", "a.msgpack.schema.json"]
    note = json.loads((tmp_path / "a.msgpack.schema.json").read_text())
    fields = [{"name": "data", "kind": "bytes"}, {"name": "t", "kind": "json"}]
    assert note == {"batchplant": 1, "schema": fields, "samples": 1}
    os.remove(tmp_path / "a.msgpack.schema.json")
    # JSON is text to others.
    assert list(bp.open(path)) == [{"data": b"x", "t": "1"}]


def test_a_single_field_of_bytes_is_a_map_all_the_same(tmp_path):
    path = written(tmp_path / "a.msgpack", {"data": bp.Bytes()}, [{"data": b"x"}])
    assert msgpack.unpackb(path.read_bytes()) == {"data": b"x"}
    assert list(bp.open(path)) == [{"data": b"x"}]


def test_equal_data_gives_equal_files(tmp_path):
    for name in ("a", "b"):
        written(tmp_path / f"{name}.msgpack.gz", {"n": bp.Int()}, [{"n": n} for n in range(500)])
    assert (tmp_path / "a.msgpack.gz").read_bytes() == (tmp_path / "b.msgpack.gz").read_bytes()


def test_gzip_is_written_in_members_that_can_be_sought(tmp_path):
    blobs = [np.random.default_rng(n).bytes(100_000) for n in range(30)]
    path = written(tmp_path / "a.msgpack.gz", {"b": bp.Bytes()}, [{"b": blob} for blob in blobs], level=1)
    assert path.read_bytes().count(b"\x1f\x8b\x08") >= 2
    with bp.open(path) as reader:
        assert [reader[n]["b"] == blobs[n] for n in (29, 0, 17)] == [True] * 3


@pytest.mark.parametrize("options", [{"numpy": "pickle"}, {"level": 10}])
def test_options_that_cannot_be(options, tmp_path):
    with pytest.raises(bp.OptionError, match=next(iter(options))):
        bp.create(tmp_path / "a.msgpack", {"n": bp.Int()}, **options)
    assert os.listdir(tmp_path) == []


def test_the_index_is_written_and_used(tmp_path):
    path = stream(tmp_path / "a.msgpack", [{"n": n, "t": "x" * n} for n in range(100)])
    with bp.open(path, index="write") as reader:
        every = cells(reader)
    assert (tmp_path / "a.msgpack.bpindex").exists()
    with bp.open(path) as reader:
        assert cells(reader) == every
        assert reader.blocks().tolist() == [0] * 100


# --- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason", "offset"),
    [
        (b"\x81\xa1x\x01\x81\xa1", "ends inside of a value", 4),
        (b"\x81\xa1x\x01\xc1", "the byte 0xc1 begins no value", 4),
        (b"\x81\xa1x\xdb\xff\xff\xff\xffabc", "ends inside of a value", 3),
        (b"\x81\xa1x\xdd\xff\xff\xff\xff\x01", "ends inside of a value", 3),
        (b"\xdf\xff\xff\xff\xff" + b"\xa1x\x01" * 9, "ends inside of a value", 0),
        (b"\xdd\x00\x00\x00\x03\x01\x02", "ends inside of a value", 0),
        (b"\xc9\xff\xff\xff\xff", "ends inside of a value", 0),
    ],
)
def test_streams_that_promise_more_than_they_hold(data, reason, offset, tmp_path):
    (tmp_path / "a.msgpack").write_bytes(data)
    with memory_bounded(len(data)), pytest.raises(bp.DamagedError, match=reason) as caught:
        bp.open(tmp_path / "a.msgpack")
    assert caught.value.offset == offset
    (tmp_path / "b.msgpack.gz").write_bytes(gzip.compress(data))
    with memory_bounded(len(data)), pytest.raises(bp.DamagedError, match=reason):
        bp.open(tmp_path / "b.msgpack.gz")


def test_deep_nesting_is_an_error_where_it_has_to_be_followed(tmp_path):
    deep = b"\x81\xa1x" + b"\x91" * 100_000 + b"\xc0"
    (tmp_path / "a.msgpack").write_bytes(b"\x81\xa1x\x01" * 3 + deep)
    with pytest.raises(bp.DamagedError, match=r"sample 3, .*nested too deeply"):
        bp.open(tmp_path / "a.msgpack")
    # Where it is skipped, its depth is all the same.
    (tmp_path / "b.msgpack").write_bytes(b"\x82\xa1x" + deep[3:] + b"\xa1y\x07")
    assert list(bp.open(tmp_path / "b.msgpack", schema={"y": bp.Int()})) == [{"y": 7}]
    with bp.open(tmp_path / "b.msgpack", schema={"x": bp.Json()}) as reader, pytest.raises(bp.DecodeError):
        reader[0]


def test_a_schema_that_is_damaged_or_of_another_file(tmp_path):
    path = written(tmp_path / "a.msgpack", {"n": bp.Int()}, [{"n": 1}, {"n": 2}])
    beside = tmp_path / "a.msgpack.schema.json"
    note = beside.read_text()
    beside.write_text(note[:-5])
    with pytest.raises(bp.DamagedError, match=r"schema\.json: the schema is damaged"):
        bp.open(path)
    beside.write_text(note.replace('"n"', '"other"'))
    with bp.open(path) as reader, pytest.raises(bp.DecodeError, match=r"sample 0, field 'other'.*missing"):
        reader[0]
    beside.write_text(note.replace('"samples": 2', '"samples": 3'))
    [problem] = bp.verify(path).problems
    assert problem.message == "there are 2 samples, and 3 were written"
