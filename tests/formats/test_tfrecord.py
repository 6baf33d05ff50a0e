"""TFRecord: the suite, the files of TensorFlow, and files that nobody honest wrote."""

import gzip
import hashlib
import json
import os
import struct
import zlib
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant import _native
from batchplant.data.concat import interleave, interleaved
from batchplant.formats.tfrecord import FixedLen, FixedLenSequence, VarLen
from batchplant.jobs.verify import verify
from batchplant.ops import CenterCrop
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, flip, jpeg, memory_bounded
from repository import GOLDEN
from trials import case

FILES = GOLDEN / "tfrecord"
EXPECTED = json.loads((FILES / "expected.json").read_text())
SHARDED = [*EXPECTED[0::3], *EXPECTED[1::3], *EXPECTED[2::3]]


class Records(FormatSuite):
    format = "tfrecord"
    suffix = ".tfrecord"
    golden = GOLDEN

    def test_checksums_find_a_flipped_bit(self, tmp_path):
        """The format's own checksum is of the record, and does not tell which field it was."""
        path = self.written(tmp_path, checksums=True)
        with self.open(path) as reader:
            spans = reader.spans("image", [11])
        if spans is None:
            pytest.skip("no cells in place")
        flip(Path(path), int(spans.start[0] + spans.size[0] // 2), 3)
        [problem] = verify(path).problems
        assert (problem.sample, problem.message) == (11, "the checksum of the record is wrong")
        # The cells' own checksums tell.
        result = verify(bp.open(path, check=False)).problems
        assert {(item.sample, item.field) for item in result} == {(11, None), (11, "image")}


class TestSuite(Records):
    pass


class TestGzip(Records):
    wraps = True
    suffix = ".tfrecord.gz"
    in_place = False


# TestGzip tries the same code but for the format of the stream.
@pytest.mark.exhaustive
class TestZlib(Records):
    wraps = True
    options: ClassVar = {"compression": "zlib"}
    in_place = False


# TestSuite tries the frames of records, and RecordIO's suite what is in them.
class TestRaw(Records):
    wraps = True
    options: ClassVar = {"records": "raw"}


# --- the files of TensorFlow ---------------------------------------------------------------------------


def check_expected(reader, expected):
    assert len(reader) == len(expected)
    images = cells(reader.select(["image"]))["image"]
    for image, sample, wanted in zip(images, reader, expected, strict=True):
        assert hashlib.sha256(image).hexdigest() == wanted["image_sha256"]
        assert sample["image"].shape == (wanted["height"], wanted["width"], 3)
        for name in ("label", "height", "width", "toks", "sometimes"):
            assert sample[name] == wanted[name]
        assert sample["emb"].tolist() == wanted["emb"]
        assert sample["ids"].tolist() == wanted["ids"]


FIELDS = {
    "emb": bp.Tensor("float32", (8,)),
    "height": bp.Int(),
    "ids": bp.Tensor("int64", (None,)),
    "image": bp.Image("jpeg"),
    "label": bp.Int(),
    "sometimes": bp.Float("float32", optional=True),
    "toks": bp.Json(),
    "width": bp.Int(),
}


@pytest.mark.parametrize("name", ["plain", "gzip", "zlib"])
def test_golden_examples(name):
    path = FILES / f"{name}.tfrecord"
    with bp.open(path) as reader:
        assert reader.format == "tfrecord"
        assert dict(reader.schema) == FIELDS
        assert reader.facts() == {"records": "Example", "compression": name.replace("plain", "none")}
        check_expected(reader, EXPECTED)
        order = [19, 3, 3, 0, 11]
        check_expected(reader.subset(order), [EXPECTED[number] for number in order])
    assert verify(path, decode=True).problems == []


@pytest.mark.parametrize("path", ["shard-*-of-00003.tfrecord", "shard-{00000..00002}-of-00003.tfrecord"])
def test_golden_shards(path):
    with bp.open(FILES / path) as reader:
        check_expected(reader, SHARDED)
        assert len(reader.readers) == 3
        # The samples were dealt out to the shards in turn.
        check_expected(interleave(reader.readers), EXPECTED)


def test_shards_without_a_suffix_in_a_folder(tmp_path):
    for number in range(3):
        name = f"shard-{number:05d}-of-00003"
        (tmp_path / f"train.tfrecord-{number:05d}-of-00003").write_bytes(
            (FILES / f"{name}.tfrecord").read_bytes()
        )
    for path in (tmp_path / "train.tfrecord-*-of-00003", tmp_path):
        with bp.open(path) as reader:
            check_expected(reader, SHARDED)


def test_golden_sequences():
    with bp.open(FILES / "sequence.tfrecord") as reader:
        assert dict(reader.schema) == {"id": bp.Int(), "frames": bp.Tensor("float32", (None, 2))}
        actual = [{"id": row["id"], "frames": row["frames"].tolist()} for row in reader]
        assert actual == json.loads((FILES / "sequence.json").read_text())
    given = {"id": FixedLen(int), "frames": FixedLenSequence("float32", (2,))}
    with bp.open(FILES / "sequence.tfrecord", features=given) as reader:
        assert [row["frames"].shape for row in reader] == [(n, 2) for n in range(6)]


def test_golden_raw_and_empty():
    with bp.open(FILES / "raw_bytes.tfrecord") as reader:
        assert dict(reader.schema) == {"data": bp.Bytes()}
        assert [len(row["data"]) for row in reader] == [0, 1, 0, 10240] or len(reader) == 4
        spans = reader.spans("data")
        whole = (FILES / "raw_bytes.tfrecord").read_bytes()
        for row, sample in enumerate(reader):
            assert whole[spans.start[row] : spans.start[row] + spans.size[row]] == sample["data"]
    with bp.open(FILES / "empty.tfrecord") as reader:
        assert len(reader) == 0
        assert list(reader) == []


def test_spans_lie_inside_of_the_records():
    """An image is decoded where it lies in the file."""
    with bp.open(FILES / "plain.tfrecord") as reader:
        whole = (FILES / "plain.tfrecord").read_bytes()
        spans = reader.spans("image", [4, 0])
        for row, number in enumerate((4, 0)):
            result = whole[spans.start[row] : spans.start[row] + spans.size[row]]
            assert hashlib.sha256(result).hexdigest() == EXPECTED[number]["image_sha256"]
        assert all(reader.spans(name) is None for name in ("label", "emb", "toks"))


def test_given_features():
    given = {
        "image": FixedLen(bytes),
        "label": FixedLen("int64"),
        "ids": VarLen(np.int64),
        "emb": FixedLen("float32", (2, 4)),
        "sometimes": FixedLen(float, default=-1.0),
        "toks": VarLen("string"),
        "never": VarLen("float32"),
    }
    with bp.open(FILES / "plain.tfrecord", features=given) as reader:
        assert list(reader.schema) == list(given)
        for sample, wanted in zip(reader, EXPECTED, strict=True):
            assert hashlib.sha256(sample["image"]).hexdigest() == wanted["image_sha256"]
            assert sample["emb"].reshape(-1).tolist() == wanted["emb"]
            assert sample["emb"].shape == (2, 4)
            assert sample["ids"].tolist() == wanted["ids"]
            assert sample["toks"] == wanted["toks"]
            assert sample["sometimes"] == (-1.0 if wanted["sometimes"] is None else wanted["sometimes"])
            assert sample["never"].shape == (0,)


def test_a_given_schema():
    given = {"image": "image", "label": bp.Int(names=tuple("abcdefghijklmnopqrstuvwxyz")), "toks": "json"}
    with bp.open(FILES / "plain.tfrecord", schema={**given, "label": bp.Int("int8")}) as reader:
        assert [row["label"] for row in reader] == [value["label"] for value in EXPECTED]
        assert [row["toks"] for row in reader] == [value["toks"] for value in EXPECTED]
    with bp.open(FILES / "plain.tfrecord", schema={"label": bp.Int("uint8")}) as reader:
        with pytest.raises(bp.DecodeError, match="-3 does not fit uint8") as caught:
            reader.read([5, 0])
        assert (caught.value.sample, caught.value.field) == (0, "label")


PIXELS = np.random.default_rng(0).integers(0, 256, (9, 4, 5, 3), np.uint8)


def pixels(path, cells=None):
    """A file whose feature "image" is the raw bytes of pixels; nothing tells their shape."""
    with bp.create(path, bp.Schema({"image": bp.Bytes(), "n": bp.Int()})) as out:
        for n, cell in enumerate(PIXELS if cells is None else cells):
            out.append({"image": cell if isinstance(cell, bytes) else cell.tobytes(), "n": n})
    os.remove(f"{path}.schema.json")
    return str(path)


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_bytes_as_numbers(tmp_path, suffix):
    path = pixels(tmp_path / f"a.tfrecord{suffix}")
    schema = {"image": bp.Tensor("uint8", (4, 5, 3)), "n": "int"}
    with bp.open(path, schema=schema) as reader:
        assert reader.schema == bp.Schema({"image": bp.Tensor("uint8", (4, 5, 3)), "n": bp.Int()})
        assert np.array_equal(reader.read([3, 0, 8])["image"], PIXELS[[3, 0, 8]])
        assert np.array_equal(reader[2]["image"], PIXELS[2])
        batches = list(bp.Loader(reader, 4, order="sequential"))
        assert np.array_equal(np.concatenate([np.asarray(batch["image"]) for batch in batches]), PIXELS)
    with bp.open(path, schema={"image": bp.Tensor("<u2", (None, 10))}) as reader:
        assert reader[1]["image"].tobytes() == PIXELS[1].tobytes()
        assert reader[1]["image"].shape == (3, 10)


def test_bytes_as_numbers_lie_where_they_are(tmp_path):
    path = pixels(tmp_path / "a.tfrecord")
    with bp.open(path, schema={"image": bp.Tensor("uint8", (4, 5, 3))}) as reader:
        spans = reader.spans("image", [7, 1])
        data = Path(path).read_bytes()
        for row, number in enumerate((7, 1)):
            start = int(spans.start[row])
            assert data[start : start + int(spans.size[row])] == PIXELS[number].tobytes()


@pytest.mark.parametrize(
    ("field", "says"),
    [
        (bp.Tensor("uint8", (4, 5, 3)), "takes 60"),
        (bp.Tensor("uint8", (4, 5, 3), optional=True), "takes 60"),
        (bp.Tensor("uint8", (None, 5, 3)), "takes 15 or a multiple of it"),
    ],
)
def test_bytes_of_another_size_are_named(tmp_path, field, says):
    path = pixels(tmp_path / "a.tfrecord", [b"x" * 60, b"x" * 60, b"abc" * 19, b"x" * 60])
    place = Path(path).read_bytes().index(b"abcabc")
    with bp.open(path, schema={"image": field}) as reader:
        for look in (lambda: reader.read([0, 3, 2]), lambda: reader[2], lambda: reader.spans("image")):
            with pytest.raises(bp.DataError, match=f"the value has 57 bytes, .* {says}") as caught:
                look()
            error = caught.value
            assert (error.path, error.sample, error.field, error.offset) == (path, 2, "image", place)
        assert reader.read([0, 1, 3])["image"] is not None
        assert [problem.sample for problem in verify(reader).problems] == [2]


def test_numbers_of_a_feature_that_is_missing(tmp_path):
    schema = bp.Schema({"image": bp.Bytes(optional=True), "n": bp.Int()})
    with bp.create(tmp_path / "a.tfrecord", schema) as out:
        for n in range(4):
            out.append({"image": None if n == 2 else bytes([n, n]), "n": n})
    given = {"image": bp.Tensor("uint8", (2,), optional=True)}
    with bp.open(tmp_path / "a.tfrecord", schema=given) as reader:
        assert [None if row["image"] is None else row["image"].tolist() for row in reader] == [
            [0, 0], [1, 1], None, [3, 3],
        ]  # fmt: skip


@pytest.mark.parametrize(
    ("feature", "sample", "reason"),
    [
        ({"label": FixedLen(bytes)}, 0, "the feature is int64, and bytes is asked for"),
        ({"image": FixedLen(int)}, 0, "the feature is bytes, and int64 is asked for"),
        ({"ids": FixedLen(int)}, 1, "the feature has 4 values"),
        ({"emb": FixedLen(float, (7,))}, 0, "the feature has 8 values"),
        ({"sometimes": FixedLen(float)}, 1, "there is no feature 'sometimes'"),
        ({"none": FixedLen(bytes)}, 0, "there is no feature 'none'"),
        ({"toks": FixedLen(bytes)}, 0, "the feature has 0 values, and 1 is asked for"),
    ],
)
def test_features_that_do_not_fit(feature, sample, reason):
    with bp.open(FILES / "plain.tfrecord", features=feature) as reader:
        with pytest.raises(bp.DecodeError, match=reason) as caught:
            reader.read(range(20))
        [name] = feature
        assert (caught.value.sample, caught.value.field) == (sample, name)
        assert caught.value.path == str(FILES / "plain.tfrecord")
        assert {problem.sample for problem in verify(reader).problems} >= {sample}


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"records": "exampel"}, "records is one of auto, example"),
        ({"compression": "bz2"}, "compression is one of auto, none"),
        ({"features": {"a": 3}}, "a feature is FixedLen, VarLen or a field kind"),
        ({"features": {"a": FixedLen("int32")}}, "bytes, int64 or float32, not 'int32'"),
        ({"features": {"a": FixedLen(int)}, "schema": {"a": "int"}}, "not both"),
        ({"features": {"a": FixedLen(int)}, "records": "raw"}, "raw records have no features"),
        ({"index": "no"}, "index is one of"),
    ],
)
def test_options_that_make_no_sense(options, reason):
    with pytest.raises(bp.OptionError, match=reason):
        bp.open(FILES / "plain.tfrecord", **options)


def test_raw_records_of_examples():
    with bp.open(FILES / "plain.tfrecord", records="raw") as reader:
        assert dict(reader.schema) == {"data": bp.Bytes()}
        assert reader[0]["data"][:1] == b"\n"
    with pytest.raises(bp.SchemaError, match="no features of Examples are found"):
        bp.open(FILES / "raw_bytes.tfrecord", records="example")


# --- writing ------------------------------------------------------------------------------------------

SCHEMA = {
    "image": bp.Image("jpeg"), "label": bp.Int(), "small": bp.Int("uint8"), "big": bp.Int("uint64"),
    "real": bp.Float("float32"), "half": bp.Float("float16"), "exact": bp.Float(), "flag": bp.Bool(),
    "text": bp.Text(), "row": bp.Tensor("float32", (2, 2)), "ids": bp.Tensor("int32", (None,)),
    "maybe": bp.Int(optional=True),
}  # fmt: skip


def sample(n):
    return {
        "image": jpeg(8, 9 + n), "label": n - 3, "small": n, "big": 2**64 - 1 - n, "real": n / 4,
        "half": n / 2, "exact": n / 3, "flag": n % 2 == 0, "text": f"№ {n}",
        "row": np.full((2, 2), n, np.float32), "ids": np.arange(n, dtype=np.int32),
        "maybe": None if n % 2 else n,
    }  # fmt: skip


def written(path, count=8, **options):
    with bp.create(path, SCHEMA, format="tfrecord", **options) as out:
        for n in range(count):
            out.append(sample(n))
    return path


def test_without_the_side_car_the_features_are_found(tmp_path):
    path = written(tmp_path / "a.tfrecord")
    os.unlink(tmp_path / "a.tfrecord.schema.json")
    with bp.open(path) as reader:
        assert dict(reader.schema) == {
            "big": bp.Int(), "exact": bp.Bytes(), "flag": bp.Int(), "half": bp.Float("float32"),
            "ids": bp.Tensor("int64", (None,)), "image": bp.Image("jpeg"), "label": bp.Int(),
            "maybe": bp.Int(optional=True), "real": bp.Float("float32"),
            "row": bp.Tensor("float32", (4,)), "small": bp.Int(), "text": bp.Bytes(),
        }  # fmt: skip
        assert reader[3]["text"] == "№ 3".encode()
        assert reader[3]["big"] == -4
        assert reader[3]["exact"] == struct.pack("<d", 1.0)


def test_what_has_no_type_in_tfrecord_is_remarked_on(tmp_path):
    with bp.create(tmp_path / "a.tfrecord", SCHEMA) as out:
        [remark] = out.remarks()
    assert remark.startswith("exact: TFRecord has no type")


def test_equal_data_gives_equal_files(tmp_path):
    for suffix in ("tfrecord", "tfrecord.gz"):
        one, two = (written(tmp_path / f"{workers}.{suffix}", workers=workers) for workers in (1, 2))
        assert one.read_bytes() == two.read_bytes()


def test_shards_that_differ_in_what_is_there(tmp_path):
    """One shard alone would say that a feature is always there, or always of one size."""
    kinds = {"n": bp.Int(), "maybe": bp.Float("float32", optional=True), "ids": bp.Tensor("int64", (None,))}
    for shard in range(3):
        path = tmp_path / f"a-{shard:05d}-of-00003.tfrecord"
        with bp.create(path, kinds) as out:
            for n in range(4):
                count = (1, 3, n)[shard]
                maybe = (1.5, None, None if n % 2 else 2.5)[shard]
                out.append({"n": n, "maybe": maybe, "ids": np.arange(count)})
        os.unlink(f"{path}.schema.json")
    with bp.open(tmp_path / "a-*.tfrecord") as reader:
        assert dict(reader.schema) == {
            "ids": bp.Tensor("int64", (None,)),
            "n": bp.Int(),
            "maybe": bp.Float("float32", optional=True),
        }
        assert [len(row["ids"]) for row in reader] == [1] * 4 + [3] * 4 + [0, 1, 2, 3]
        assert [row["maybe"] for row in reader] == [1.5] * 4 + [None] * 4 + [2.5, None, 2.5, None]


def test_files_that_are_not_local():
    fsspec = pytest.importorskip("fsspec")
    memory = fsspec.filesystem("memory")
    for name in ("plain", "gzip", "zlib"):
        memory.pipe(f"/{name}.tfrecord", (FILES / f"{name}.tfrecord").read_bytes())
        with bp.open(f"memory://{name}.tfrecord", index="memory") as reader:
            assert dict(reader.schema) == FIELDS
            check_expected(reader, EXPECTED)
            assert reader.spans("image") is None


def test_no_fields_at_all():
    for options in ({}, {"records": "raw"}):
        with bp.open(FILES / "plain.tfrecord", **options) as reader:
            assert reader.read([1, 2], []) == {}


# --- interleaving -------------------------------------------------------------------------------------


def turns(lengths, cycle, block):
    """As tf.data does it, step by step."""
    ends = np.concatenate([[0], np.cumsum(lengths)]).tolist()
    result, waiting, at = [], list(range(len(lengths))), list(ends[:-1])
    slots = [None] * cycle
    turn = 0
    while waiting or any(slot is not None for slot in slots):
        if slots[turn] is None and waiting:
            slots[turn] = waiting.pop(0)
        if slots[turn] is not None:
            for _ in range(block):
                one = slots[turn]
                if at[one] == ends[one + 1]:
                    slots[turn] = None
                    break
                result.append(at[one])
                at[one] += 1
        turn = (turn + 1) % cycle
    return result


def test_the_order_of_interleaving():
    rng = np.random.default_rng(0)
    for _ in range(300):
        lengths = rng.integers(0, 12, rng.integers(1, 8)).tolist()
        cycle, block = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        assert interleaved(ends, cycle, block).tolist() == turns(lengths, cycle, block)


def test_interleaved_shards():
    shards = [bp.open(FILES / f"shard-{n:05d}-of-00003.tfrecord") for n in range(3)]
    labels = [[row["label"] for row in shard] for shard in shards]
    result = [row["label"] for row in interleave(shards, cycle=2, block=3)]
    assert result[:6] == labels[0][:3] + labels[1][:3]
    assert sorted(result) == sorted(value["label"] for value in EXPECTED)
    mixed = [[row["label"] for row in interleave(shards, seed=seed)] for seed in (0, 0, 1, 2, 3)]
    assert mixed[0] == mixed[1]
    assert len({tuple(item) for item in mixed}) > 1
    for wrong in ({"cycle": 0}, {"block": 0}):
        with pytest.raises(bp.OptionError, match="at least 1"):
            interleave(shards, **wrong)


# --- damage -------------------------------------------------------------------------------------------


def masked(data):
    crc = _native.crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def frame(data):
    length = struct.pack("<Q", len(data))
    return length + masked(length) + data + masked(data)


def lying(length):
    head = struct.pack("<Q", length)
    return head + masked(head)


@pytest.mark.parametrize("pack", [bytes, gzip.compress, zlib.compress])
def test_a_length_that_lies(pack, tmp_path):
    for length in (100, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 17, 2**64 - 1):
        path = tmp_path / f"{length}.tfrecord"
        path.write_bytes(pack(frame(b"good") + lying(length) + b"short"))
        message = "the file ends inside of a record"
        with case(length), memory_bounded(100), pytest.raises(bp.DamagedError, match=message) as caught:
            bp.open(path, format="tfrecord")
        assert (caught.value.sample, caught.value.offset) == (1, 20), length


def test_a_record_whose_checksum_is_wrong(tmp_path):
    path = written(tmp_path / "a.tfrecord")
    with bp.open(path) as reader:
        start, size = (int(item[0]) for item in reader._runs(np.array([5])))
    flip(path, start + size // 2, 0)
    with bp.open(path) as reader:
        with pytest.raises(bp.DamagedError, match="the checksum of the record is wrong") as caught:
            reader.read(range(8))
        assert (caught.value.sample, caught.value.offset) == (5, start)
        assert reader[4]["label"] == 1
    with bp.open(path, check=False) as reader:
        assert [problem.sample for problem in verify(reader).problems] == [5]
    # The length itself: nothing behind it can be found.
    flip(path, start - 12, 0)
    with pytest.raises(bp.DamagedError, match="the checksum of a record's length is wrong") as caught:
        bp.open(path)
    assert (caught.value.sample, caught.value.offset) == (5, start - 12)


def test_a_damaged_record_does_not_change_what_the_others_are(tmp_path):
    path = written(tmp_path / "a.tfrecord")
    os.unlink(tmp_path / "a.tfrecord.schema.json")
    with bp.open(path) as reader:
        schema = reader.schema
        start = int(reader._runs(np.array([5]))[0][0])
    data = bytearray(path.read_bytes())
    data[start : start + 3] = b"\xff\xff\xff"
    path.write_bytes(data)
    with bp.open(path) as reader:
        assert reader.schema == schema
        assert reader[7]["label"] == 4
        with pytest.raises(bp.DamagedError, match="checksum"):
            reader[5]
    with bp.open(path, check=False) as reader:
        with pytest.raises(bp.DamagedError, match=r"no tf\.train\.Example") as caught:
            reader.read([1, 5])
        assert (caught.value.sample, caught.value.offset) == (5, start)


def test_a_feature_of_two_kinds(tmp_path):
    parts = [_native.example_write(1, [(b"x", 3, np.ones(1, np.int64).view(np.uint8), *run(8), None)])[0]] * 3
    parts.append(_native.example_write(1, [(b"x", 1, np.ones(1, np.uint8), *run(1), None)])[0])
    (tmp_path / "a.tfrecord").write_bytes(b"".join(frame(part.tobytes()) for part in parts))
    with pytest.raises(bp.SchemaError, match="name the features to read") as caught:
        bp.open(tmp_path / "a.tfrecord")
    assert (caught.value.sample, caught.value.field) == (3, "x")
    with bp.open(tmp_path / "a.tfrecord", features={"x": FixedLen(int)}) as reader:
        assert reader[2] == {"x": 1}
        with pytest.raises(bp.DecodeError, match="the feature is bytes"):
            reader[3]


def run(size):
    return np.zeros(1, np.int64), np.array([size], np.int64)


def test_a_packed_file_is_indexed_once(tmp_path, monkeypatch):
    path = written(tmp_path / "a.tfrecord.gz", 30)
    with bp.open(path, index="rebuild") as reader:
        expected = cells(reader)
    assert (tmp_path / "a.tfrecord.gz.bpindex").exists()

    def never(*_):
        raise AssertionError("it was unpacked again")

    monkeypatch.setattr("batchplant.formats.tfrecord.inflate", never)
    with bp.open(path) as reader:
        assert cells(reader) == expected


def test_records_larger_than_a_piece(tmp_path):
    """A packed file comes in pieces of 1 MiB, and records lie across them."""
    rng = np.random.default_rng(0)
    records = [rng.bytes(size) for size in (10, 3 << 20, 0, 1 << 20, (1 << 20) - 16, 5)]
    (tmp_path / "a.tfrecord.gz").write_bytes(gzip.compress(b"".join(map(frame, records)), 1))
    with bp.open(tmp_path / "a.tfrecord.gz") as reader:
        assert [row["data"] for row in reader] == records
        assert reader[1]["data"] == records[1]


def test_a_record_too_large_to_look_into(tmp_path):
    records = [b"one", bytes(65 << 20), b"two"]
    path = tmp_path / "a.tfrecord.gz"
    path.write_bytes(gzip.compress(b"".join(map(frame, records)), 1))
    with bp.open(path) as reader:
        assert [row["data"] for row in reader] == records
    path.write_bytes(gzip.compress(b"".join(map(frame, records))[: 2 << 20], 1))
    with pytest.raises(bp.DamagedError, match="ends inside of a record"):
        bp.open(path)


def test_through_the_loader():
    pipelines = {"image": [CenterCrop(16)], "label": []}
    batches = {}
    for name in ("plain", "gzip"):
        with bp.open(FILES / f"{name}.tfrecord") as reader:
            loader = bp.Loader(reader, 5, order="sequential", pipelines=pipelines)
            batches[name] = [(batch["image"].copy(), batch["label"].copy()) for batch in loader]
    actual = [label for _, labels in batches["plain"] for label in labels.reshape(-1).tolist()]
    assert actual == [value["label"] for value in EXPECTED]
    for item, two in zip(batches["plain"], batches["gzip"], strict=True):
        assert item[0].shape == (5, 16, 16, 3)
        assert np.array_equal(item[0], two[0])


# --- TensorFlow itself --------------------------------------------------------------------------------

TENSORFLOW = os.environ.get("BATCHPLANT_TF_PYTHON")

_READ = """
import json, sys
import tensorflow as tf
path, kind = sys.argv[1:]
found = []
for record in tf.data.TFRecordDataset(path, compression_type=kind):
    example = tf.train.Example.FromString(record.numpy())
    one = {}
    for name, feature in example.features.feature.items():
        values = list(getattr(feature, feature.WhichOneof("kind")).value)
        one[name] = [value.hex() if isinstance(value, bytes) else value for value in values]
    found.append(one)
    again = tf.io.parse_single_example(record, {"label": tf.io.FixedLenFeature([], tf.int64),
        "image": tf.io.FixedLenFeature([], tf.string), "ids": tf.io.VarLenFeature(tf.int64)})
    one["shape"] = list(tf.io.decode_jpeg(again["image"]).shape)
    assert example.SerializeToString(deterministic=True) == record.numpy(), "not the same bytes"
print(json.dumps(found))
"""


@pytest.mark.reference
@pytest.mark.skipif(not TENSORFLOW, reason="BATCHPLANT_TF_PYTHON names no interpreter with TensorFlow")
@pytest.mark.parametrize("kind", ["none", "gzip", "zlib"])
def test_tensorflow_reads_what_we_write(kind, tmp_path):
    path = written(tmp_path / "a.tfrecord", compression=kind)
    name = "" if kind == "none" else kind.upper()
    done = processes.run([TENSORFLOW, "-c", _READ, path, name], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    for n, load in enumerate(json.loads(done.stdout.splitlines()[-1])):
        wrote = sample(n)
        assert load["label"] == [wrote["label"]]
        assert load["small"] == [n]
        assert load["big"] == [-1 - n]
        assert (load["real"], load["half"]) == ([n / 4], [n / 2])
        assert bytes.fromhex(load["exact"][0]) == struct.pack("<d", n / 3)
        assert load["flag"] == [n % 2 == 0]
        assert bytes.fromhex(load["text"][0]).decode() == wrote["text"]
        assert load["row"] == [n] * 4
        assert load["ids"] == list(range(n))
        assert load.get("maybe") == (None if n % 2 else [n])
        assert bytes.fromhex(load["image"][0]) == wrote["image"]
        assert load["shape"] == [8, 9 + n, 3]
