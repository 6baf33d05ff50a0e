"""FFRecord: the suite, files of the original library, and files that are damaged."""

import hashlib
import json
import os
import struct
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchplant as bp
from batchplant import Probe, ops
from batchplant.formats import ffrecord
from batchplant.loading.loader import Loader
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, jpeg, memory_bounded
from repository import GOLDEN
from variants import in_one_test

FILES = sorted((GOLDEN / "ffrecord").glob("*.ffr"))


class TestSuite(FormatSuite):
    format = "ffrecord"
    suffix = ".ffr"
    golden = GOLDEN


def packed(samples, *, header_sum=None):
    """A file as the description of the format says, without any code of ours."""
    sums = b"".join(struct.pack("<I", zlib.crc32(sample)) for sample in samples)
    ends = np.cumsum([12 + 12 * len(samples), *map(len, samples)])
    rest = struct.pack("<q", len(samples)) + sums + ends[:-1].astype("<i8").tobytes()
    head = zlib.crc32(rest) if header_sum is None else header_sum
    return struct.pack("<I", head) + rest + b"".join(samples)


def records(path, **options):
    with bp.open(path, format="ffrecord", **options) as reader:
        return cells(reader)["data"]


# --- files of the original library --------------------------------------------------------------------------


@in_one_test("file", FILES)
def test_golden_files_are_read_exactly(file):
    expected = json.loads(file.with_suffix(".json").read_text())
    with bp.open(file) as reader:
        assert reader.format == "ffrecord"
        assert dict(reader.schema) == {"data": bp.Bytes()}
        result = [sample["data"] for sample in reader]
        assert reader.facts() == {"header_checksum": True, "checked": True}
    assert [len(item) for item in result] == [value["len"] for value in expected]
    assert [hashlib.sha256(item).hexdigest() for item in result] == [value["sha256"] for value in expected]
    assert bp.verify(file).problems == []


@in_one_test("length", [None, "right", "wrong"])
@in_one_test("file", FILES)
def test_what_we_write_is_what_the_original_writes(file, length, tmp_path):
    samples = records(file)
    promised = {None: None, "right": len(samples), "wrong": len(samples) + 3}[length]
    with bp.create(tmp_path / "a.ffr", {"data": bp.Bytes()}, length=promised) as out:
        for sample in samples:
            out.append({"data": sample})
    assert (tmp_path / "a.ffr").read_bytes() == file.read_bytes()
    assert os.listdir(tmp_path) == ["a.ffr"]


def test_a_converted_file_is_the_same_file(tmp_path):
    bp.convert(GOLDEN / "ffrecord" / "odd.ffr", tmp_path / "b.ffr")
    assert (tmp_path / "b.ffr").read_bytes() == (GOLDEN / "ffrecord" / "odd.ffr").read_bytes()


def test_pickles_are_bytes():
    first = records(GOLDEN / "ffrecord" / "pickles.ffr")[0]
    assert first[:1] == b"\x80"


@settings(max_examples=40)
@given(samples=st.lists(st.binary(max_size=40), max_size=12))
def test_any_samples(samples, tmp_path_factory):
    path = tmp_path_factory.mktemp("any") / "a.ffr"
    with bp.create(path, {"data": bp.Bytes()}, overwrite=True) as out:
        for sample in samples:
            out.append({"data": sample})
    assert path.read_bytes() == packed(samples)
    assert records(path) == samples


# --- fields -------------------------------------------------------------------------------------------------


def test_fields_stand_in_a_schema_beside(tmp_path):
    schema = {"image": bp.Image("jpeg"), "label": bp.Int()}
    with bp.create(tmp_path / "a.ffr", schema) as out:
        for number in range(5):
            out.append({"image": jpeg(8, 8 + number), "label": number})
    assert sorted(os.listdir(tmp_path)) == ["a.ffr", "a.ffr.schema.json"]
    with bp.open(tmp_path / "a.ffr") as reader:
        assert dict(reader.schema) == schema
        spans = reader.spans("image", [3])
        whole = (tmp_path / "a.ffr").read_bytes()
        assert whole[spans.start[0] : spans.start[0] + spans.size[0]] == jpeg(8, 11)
    os.remove(tmp_path / "a.ffr.schema.json")
    assert all(record[:1] == b"\x82" for record in records(tmp_path / "a.ffr"))


def test_a_schema_can_be_given(tmp_path):
    (tmp_path / "a.ffr").write_bytes(packed([jpeg(), jpeg(5, 9)]))
    with bp.open(tmp_path / "a.ffr", schema={"data": bp.Image()}) as reader:
        assert reader[1]["data"].shape == (5, 9, 3)
        assert reader.spans("data").size.tolist() == [len(jpeg()), len(jpeg(5, 9))]


def test_blocks_are_runs_of_the_file(tmp_path):
    big = bytes(3 << 20)
    (tmp_path / "a.ffr").write_bytes(packed([big] * 6))
    assert bp.open(tmp_path / "a.ffr").blocks().tolist() == [0, 0, 0, 1, 1, 1]


# --- old and damaged ----------------------------------------------------------------------------------------


def test_old_files_are_read_with_one_warning(tmp_path, monkeypatch):
    monkeypatch.setattr(ffrecord, "_warned", False)
    for name in ("a.ffr", "b.ffr"):
        (tmp_path / name).write_bytes(packed([b"one", b"two"], header_sum=0))
    with pytest.warns(UserWarning, match="old file without a checksum of its header"):
        assert records(tmp_path / "a.ffr") == [b"one", b"two"]
    # Warnings are errors here: a second one would fail.
    assert records(tmp_path / "b.ffr") == [b"one", b"two"]
    assert bp.open(tmp_path / "a.ffr").facts()["header_checksum"] is False


def test_without_checking_there_is_nothing_to_warn_of(tmp_path, monkeypatch):
    monkeypatch.setattr(ffrecord, "_warned", False)
    (tmp_path / "a.ffr").write_bytes(packed([b"one"], header_sum=0))
    assert records(tmp_path / "a.ffr", check=False) == [b"one"]


def test_a_wrong_byte_in_a_sample(tmp_path):
    samples = [bytes([number]) * 50 for number in range(9)]
    data = bytearray(packed(samples))
    place = len(data) - 3 * 50 + 7
    data[place] ^= 4
    (tmp_path / "a.ffr").write_bytes(data)
    with bp.open(tmp_path / "a.ffr") as reader:
        assert reader.read([0, 8, 5]).rows == 3
        with pytest.raises(bp.DamagedError, match=r"sample 6.*do not have the checksum") as caught:
            reader.read([0, 1, 2, 6])
    assert (caught.value.path, caught.value.sample) == (str(tmp_path / "a.ffr"), 6)
    assert caught.value.offset == len(data) - 3 * 50
    [problem] = bp.verify(tmp_path / "a.ffr").problems
    assert (problem.sample, problem.offset) == (6, len(data) - 3 * 50)
    assert len(records(tmp_path / "a.ffr", check=False)) == 9


def test_a_wrong_byte_in_the_header(tmp_path):
    whole = packed([b"one", b"two", b"three"])
    for place in range(12 + 36):
        data = bytearray(whole)
        data[place] ^= 1
        (tmp_path / "a.ffr").write_bytes(data)
        with pytest.raises(bp.DamagedError):
            records(tmp_path / "a.ffr")
        assert not bp.verify(tmp_path / "a.ffr", format="ffrecord").ok


def test_what_can_be_had_of_a_damaged_header(tmp_path):
    data = bytearray(packed([b"one", b"two", b"three"]))
    # The offset of the second sample now lies far behind the end.
    data[12 + 12 + 8 + 5] = 1
    (tmp_path / "a.ffr").write_bytes(data)
    with pytest.raises(bp.DamagedError, match="checksum of the header is wrong"):
        bp.open(tmp_path / "a.ffr")
    with bp.open(tmp_path / "a.ffr", check=False) as reader:
        assert reader[2] == {"data": b"three"}
        for lost in (0, 1):
            with pytest.raises(bp.DamagedError, match="outside of the file") as caught:
                reader[lost]
            assert caught.value.sample == lost
        problems = list(reader.verify())
    assert [problem.sample for problem in problems] == [None, None, 0, 1]
    assert "sample 2 begins at" in problems[1].message


@pytest.mark.parametrize("header_sum", [None, 0])
def test_cut_anywhere(tmp_path, header_sum, monkeypatch):
    monkeypatch.setattr(ffrecord, "_warned", True)
    samples = [b"first", b"", b"the third", b"4"]
    whole = packed(samples, header_sum=header_sum)
    path = tmp_path / "a.ffr"
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        if size < len(whole) - len(b"the third4"):
            with pytest.raises(bp.DamagedError):
                records(path)
        else:
            with pytest.raises(bp.DamagedError, match="sample"):
                records(path)
        assert not bp.verify(path, format="ffrecord").ok, size


@pytest.mark.parametrize("size", [13, 12 + 12, 200])
def test_what_a_dead_writer_leaves(size, tmp_path):
    (tmp_path / "a.ffr").write_bytes(bytes(size))
    for check in (True, False):
        with pytest.raises(bp.DamagedError, match="not written to the end"):
            bp.open(tmp_path / "a.ffr", check=check)


def test_no_samples(tmp_path):
    (tmp_path / "a.ffr").write_bytes(packed([]))
    assert len((tmp_path / "a.ffr").read_bytes()) == 12
    assert records(tmp_path / "a.ffr") == []
    with bp.create(tmp_path / "b.ffr", {"data": bp.Bytes()}):
        pass
    assert (tmp_path / "b.ffr").read_bytes() == packed([])


@in_one_test("count", [-1, 4, 2**31, 2**60, 2**63 - 1, -(2**63)])
@in_one_test("check", [True, False])
def test_a_header_that_promises_too_much(count, check, tmp_path):
    data = bytearray(packed([b"one", b"two"]))
    data[4:12] = struct.pack("<q", count)
    (tmp_path / "a.ffr").write_bytes(data)
    with memory_bounded(len(data)), pytest.raises(bp.DamagedError, match=f"says {count} samples"):
        bp.open(tmp_path / "a.ffr", format="ffrecord", check=check)
    assert not ffrecord.sniff(Probe(str(tmp_path / "a.ffr")))


@pytest.mark.parametrize("offsets", [[36, 35], [35, 40], [0, 36], [-1, 36], [36, 2**62], [36, -(2**63)]])
def test_offsets_out_of_order_in_an_old_file(offsets, tmp_path, monkeypatch):
    monkeypatch.setattr(ffrecord, "_warned", True)
    data = bytearray(packed([b"one", b"two"], header_sum=0))
    data[20:36] = struct.pack("<qq", *offsets)
    (tmp_path / "a.ffr").write_bytes(data)
    with pytest.raises(bp.DamagedError, match="before the one in front of it ends"):
        bp.open(tmp_path / "a.ffr", format="ffrecord")


@pytest.mark.parametrize("check", [True, False])
def test_offsets_whose_differences_wrap_around(check, tmp_path, monkeypatch):
    monkeypatch.setattr(ffrecord, "_warned", True)
    data = bytearray(packed([b"one"] * 4, header_sum=0))
    data[28:60] = struct.pack("<qqqq", 60, 2**63 - 1, -(2**63), -1)
    (tmp_path / "a.ffr").write_bytes(data)
    assert not ffrecord.sniff(Probe(str(tmp_path / "a.ffr")))
    with (
        pytest.raises(bp.DamagedError),
        bp.open(tmp_path / "a.ffr", format="ffrecord", check=check) as reader,
    ):
        reader.read([0, 1, 2, 3])


# --- recognising --------------------------------------------------------------------------------------------


@in_one_test("header_sum", [None, 0])
@in_one_test("count", [1, 2, 300, 100_000])
def test_content_tells(count, header_sum, tmp_path):
    (tmp_path / "a").write_bytes(packed([b"x"] * count, header_sum=header_sum))
    assert ffrecord.sniff(Probe(str(tmp_path / "a")))


@in_one_test(
    "data",
    [
        b"",
        bytes(11),
        bytes(12),
        bytes(4096),
        b"\xff" * 4096,
        packed([b"one", b"two"], header_sum=77),
        packed([b"one", b"two"])[:30],
        packed([b"one"])[:4] + struct.pack("<q", 1) + bytes(100),
    ],
)
def test_other_content_is_not_ours(data, tmp_path):
    (tmp_path / "a").write_bytes(data)
    assert not ffrecord.sniff(Probe(str(tmp_path / "a")))


def test_a_large_header_is_not_summed_to_recognise_it(tmp_path):
    data = bytearray(packed([b"x"] * 100_000))
    data[14] ^= 1
    (tmp_path / "a").write_bytes(data)
    assert ffrecord.sniff(Probe(str(tmp_path / "a")))
    with pytest.raises(bp.DamagedError, match="checksum of the header"):
        bp.open(tmp_path / "a", format="ffrecord")


# --- many files, and the loader -----------------------------------------------------------------------------


def test_many_files_as_one(tmp_path):
    for number in range(4):
        (tmp_path / f"part-{number}.ffr").write_bytes(packed([bytes([number, row]) for row in range(number)]))
    with bp.open(tmp_path / "part-{0..3}.ffr") as reader:
        actual = [sample["data"] for sample in reader]
    assert actual == [bytes([number, row]) for number in range(4) for row in range(number)]


def test_images_go_through_the_loader(tmp_path):
    images = [jpeg(16, 16 + number) for number in range(8)]
    (tmp_path / "a.ffr").write_bytes(packed(images))
    reader = bp.open(tmp_path / "a.ffr", schema={"data": bp.Image("jpeg")})
    batches = list(Loader(reader, 4, pipelines={"data": [ops.CenterCrop(8)]}))
    assert [batch["data"].shape for batch in batches] == [(4, 8, 8, 3)] * 2
    assert np.unique(batches[0]["data"]).size > 1
