"""RecordIO: the suite, files of dmlc-core, image records, split records, keys and damage."""

import hashlib
import json
import os
import shutil
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchplant as bp
import processes
from batchplant import _native, ops
from batchplant.formats import recordio
from batchplant.storage import open_source
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, cuts, flips, jpeg, memory_bounded, survive
from repository import GOLDEN

MAGIC = struct.pack("<I", 0xCED7230A)


class TestSuite(FormatSuite):
    format = "recordio"
    suffix = ".rec"
    golden = GOLDEN


def frame(data, part=0):
    """One part of a record as it stands in a file."""
    return MAGIC + struct.pack("<I", part << 29 | len(data)) + data + bytes(-len(data) % 4)


def image_record(image, label=0.0, number=0, number2=0):
    labels = [] if isinstance(label, float) else list(label)
    header = struct.pack("<IfQQ", len(labels), label if not labels else 0.0, number, number2)
    return header + np.array(labels, "<f4").tobytes() + image


def write(path, *records):
    path.write_bytes(b"".join(map(frame, records)))
    return path


def digests(values):
    return [{"len": len(value), "sha256": hashlib.sha256(value).hexdigest()} for value in values]


# --- files of dmlc-core -------------------------------------------------------------------------------


def test_golden_blobs_are_read_and_written_to_the_last_byte(tmp_path):
    expected = json.loads((GOLDEN / "recordio/blobs.json").read_text())
    with bp.open(GOLDEN / "recordio/blobs.rec") as reader:
        assert dict(reader.schema) == {"data": bp.Bytes()}
        assert digests(sample["data"] for sample in reader) == expected
        assert reader.facts() == {"records": "raw", "split records": 6}
        assert list(reader.verify()) == []
    bp.convert(GOLDEN / "recordio/blobs.rec", tmp_path / "blobs.rec")
    for name in ("blobs.rec", "blobs.idx"):
        assert (tmp_path / name).read_bytes() == (GOLDEN / "recordio" / name).read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["blobs.idx", "blobs.rec"]


def test_golden_images_with_one_or_several_labels(tmp_path):
    expected = json.loads((GOLDEN / "recordio/images_expected.json").read_text())
    with bp.open(GOLDEN / "recordio/images.rec") as reader:
        assert reader.schema["label"] == bp.Tensor("float32", (None,))
        assert reader.schema["id"] == reader.schema["id2"] == bp.Int("uint64")
        assert len(reader) == len(expected)
        for sample, cell, value in zip(reader, cells(reader)["image"], expected, strict=True):
            assert sample["label"].tolist() == np.atleast_1d(np.float32(value["label"])).tolist()
            assert (sample["id"], hashlib.sha256(cell).hexdigest()) == (value["id"], value["sha256"])
    assert bp.verify(GOLDEN / "recordio/images.rec", decode=True).problems == []
    bp.convert(GOLDEN / "recordio/images.rec", tmp_path / "images.rec")
    for name in ("images.rec", "images.idx"):
        assert (tmp_path / name).read_bytes() == (GOLDEN / "recordio" / name).read_bytes()


# --- split records ------------------------------------------------------------------------------------

words = st.lists(st.sampled_from([MAGIC, b"", b"a", b"1234", MAGIC[:3], MAGIC[1:], b"x" * 9]), max_size=8)


@given(st.lists(words.map(b"".join), max_size=6))
def test_the_magic_may_stand_anywhere(tmp_path_factory, records):
    path = tmp_path_factory.mktemp("split") / "a.rec"
    with bp.create(path, {"data": bp.Bytes()}) as out:
        for data in records:
            out.append({"data": data})
    with bp.open(path, format="recordio") as reader:
        assert [sample["data"] for sample in reader] == records
        split = [any(data[at : at + 4] == MAGIC for at in range(0, len(data), 4)) for data in records]
        assert reader.facts()["split records"] == sum(split)
        for row, item in enumerate(split):
            assert (reader.spans("data", [row]) is None) == item
        assert (reader.spans("data") is None) == any(split)
    whole = path.read_bytes()
    assert all(whole[at : at + 4] == MAGIC for at in map(int, offsets(path)))


def offsets(path):
    return [line.split("\t")[1] for line in path.with_suffix(".idx").read_text().splitlines()]


def test_a_split_image_record_is_read_whole(tmp_path):
    image = jpeg() + bytes(-len(jpeg()) % 4) + MAGIC + b"after the end"
    with bp.create(tmp_path / "a.rec", {"image": bp.Image(), "label": bp.Int()}) as out:
        for number in range(3):
            out.append({"image": image if number == 1 else jpeg(), "label": number})
    with bp.open(tmp_path / "a.rec") as reader:
        assert cells(reader)["image"] == [jpeg(), image, jpeg()]
        assert reader.spans("image", [0, 1]) is None
        assert reader.spans("image", [2, 0]).size.tolist() == [len(jpeg())] * 2


def test_a_record_is_longer_than_the_window_of_the_scan(tmp_path):
    records = [b"x" * size for size in (3, 500, 0, 70, 90)] + [b"1234" + MAGIC + b"y" * 300]
    with bp.create(tmp_path / "a.rec", {"data": bp.Bytes()}) as out:
        for data in records:
            out.append({"data": data})
    source = open_source(str(tmp_path / "a.rec"))
    expected, facts = recordio.scan(source, lambda done: None)
    arrays, same_facts = recordio.scan(source, lambda done: None, step_bytes=32)
    assert same_facts == facts
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: array.tolist() for name, array in expected.items()
    }


def test_the_scan_begins_and_stops_where_it_is_told(tmp_path):
    data = np.frombuffer(b"".join(frame(bytes(4 * n)) for n in range(10)), np.uint8)
    every = _native.recordio_scan(data, 0, len(data))
    some = _native.recordio_scan(data, int(every[0][3]), int(every[0][7]))
    assert some[0].tolist() == every[0][3:7].tolist()
    assert some[5] == every[0][7]
    with pytest.raises(IndexError):
        _native.recordio_scan(data, len(data) + 1, len(data) + 1)


# --- image records ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("labels", "field", "values"),
    [
        ([1.5, -2.0], bp.Float("float32"), [1.5, -2.0]),
        ([[1, 2], [3, 4]], bp.Tensor("float32", (2,)), [[1, 2], [3, 4]]),
        ([[1, 2], 7.0, [5]], bp.Tensor("float32", (None,)), [[1, 2], [7], [5]]),
    ],
)
def test_labels_of_others(labels, field, values, tmp_path):
    records = [image_record(jpeg(), label, 10 + n, 20 + n) for n, label in enumerate(labels)]
    with bp.open(write(tmp_path / "a.rec", *records)) as reader:
        assert reader.schema["label"] == field
        assert reader.schema["image"] == bp.Image("jpeg")
        assert [np.asarray(sample["label"]).tolist() for sample in reader] == values
        assert [(sample["id"], sample["id2"]) for sample in reader] == [
            (10 + n, 20 + n) for n in range(len(labels))
        ]
        spans = reader.spans("image")
        whole = (tmp_path / "a.rec").read_bytes()
        assert [whole[at : at + len(jpeg())] for at in spans.start] == [jpeg()] * len(labels)
        assert reader.spans("label") is None


def test_what_is_no_image_record_is_bytes(tmp_path):
    for other in (b"short", image_record(b"no image"), bytes(24), jpeg()):
        with bp.open(write(tmp_path / "a.rec", image_record(jpeg()), other)) as reader:
            assert dict(reader.schema) == {"data": bp.Bytes()}
            assert reader[1]["data"] == other


def test_the_kind_of_the_records_can_be_told(tmp_path):
    path = write(tmp_path / "a.rec", image_record(b"any bytes", [1, 2], 3))
    with bp.open(path, records="header") as reader:
        assert list(reader.schema) == ["data", "label", "id", "id2"]
        assert reader[0]["data"] == b"any bytes"
    with bp.open(path, records="image") as reader, pytest.raises(bp.DecodeError, match="not an image"):
        reader[0]
    with bp.open(path, schema={"data": "text"}) as reader, pytest.raises(bp.DecodeError):
        reader[0]
    write(path, image_record(jpeg(), 1.0))
    schema = {"image": bp.Image(), "label": bp.Int("uint8", names=("a", "b"))}
    with bp.open(path, schema=schema) as reader:
        assert reader[0]["label"] == 1
    with bp.open(path, records="raw") as reader:
        assert reader[0]["data"] == image_record(jpeg(), 1.0)
    write(path, image_record(jpeg(), 1.5))
    with (
        bp.open(path, schema=schema) as reader,
        pytest.raises(bp.DamagedError, match=r"the label 1\.5 is no"),
    ):
        reader[0]
    with pytest.raises(bp.OptionError, match="records is one of"):
        bp.open(path, records="nonsense")
    with pytest.raises(bp.SchemaError, match="one image"):
        bp.open(path, records="image", schema={"a": bp.Text()})


def test_we_write_image_records(tmp_path):
    path = tmp_path / "a.rec"
    schema = {"image": bp.Image(), "class": bp.Int("uint8", names=("cat", "dog"))}
    with bp.create(path, schema) as out:
        for number in range(3):
            out.append({"image": jpeg(), "class": number % 2})
        assert out.remarks() == ["class is stored as float32, as MXNet and DALI read it"]
    records = [image_record(jpeg(), float(n % 2), n) for n in range(3)]
    assert path.read_bytes() == b"".join(map(frame, records))
    size = len(frame(records[0]))
    assert (tmp_path / "a.idx").read_text() == f"0\t0\n1\t{size}\n2\t{2 * size}\n"
    with bp.open(path) as reader:
        assert dict(reader.schema) == {"image": bp.Image(), "class": schema["class"]}
        assert [sample["class"] for sample in reader] == [0, 1, 0]
    # Without the side-car, it is what MXNet sees.
    os.unlink(f"{path}.schema.json")
    with bp.open(path) as reader:
        assert list(reader.schema) == ["image", "label", "id", "id2"]
        assert [sample["label"] for sample in reader] == [0, 1, 0]


def test_raw_pixels_become_files(tmp_path):
    pixels = np.arange(60, dtype=np.uint8).reshape(4, 5, 3)
    with bp.create(tmp_path / "a.rec", {"image": bp.Image()}) as out:
        out.append({"image": pixels})
    with bp.open(tmp_path / "a.rec", records="image", schema={"image": bp.Image()}) as reader:
        assert cells(reader)["image"][0].startswith(b"\x89PNG")
        assert np.array_equal(reader[0]["image"], pixels)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        (bp.Int(), 2**24 + 1),
        (bp.Int("uint64"), 2**64 - 1),
        (bp.Tensor("float32", (None,)), np.zeros(0, "f4")),
    ],
)
def test_labels_that_float32_cannot_hold(field, value, tmp_path):
    schema, sample = {"image": bp.Image(), "label": field}, {"image": jpeg(), "label": value}
    with pytest.raises(bp.EncodeError, match="records=packed"), bp.create(tmp_path / "a.rec", schema) as out:
        out.append(sample)
    with bp.create(tmp_path / "a.rec", schema, records="packed") as out:
        out.append(sample)
    with bp.open(tmp_path / "a.rec") as reader:
        assert reader.facts()["records"] == "packed"
        assert np.array_equal(reader[0]["label"], value)


def test_schemas_that_image_records_cannot_hold(tmp_path):
    for more in (
        {"text": bp.Text()},
        {"label": bp.Float()},
        {"label": bp.Int(optional=True)},
        {"n": bp.Int()},
    ):
        with pytest.raises(bp.SchemaError, match="an image record holds"):
            bp.create(tmp_path / "a.rec", {"image": bp.Image(), **more}, records="image")
        with bp.create(tmp_path / "a.rec", {"image": bp.Image(), **more}, overwrite=True) as out:
            assert out.remarks() == []


def test_a_record_that_is_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(recordio.RecordIOWriter, "max_record_bytes", 100)
    out = bp.create(tmp_path / "a.rec", {"data": bp.Bytes()})
    out.append({"data": bytes(101)})
    with pytest.raises(bp.EncodeError, match="at most 100 bytes"):
        out.close()


# --- keys ---------------------------------------------------------------------------------------------


def test_keys_of_the_idx_file(tmp_path):
    path = write(tmp_path / "a.rec", b"one", b"two!")
    with pytest.raises(bp.OptionError, match=r"no \.idx file"):
        bp.open(path, keys=True)
    index = tmp_path / "a.idx"
    index.write_text("7\t12\n5\t0\n")
    with bp.open(path, keys=True) as reader:
        assert dict(reader.schema) == {"key": bp.Int(), "data": bp.Bytes()}
        assert list(reader) == [{"key": 5, "data": b"one"}, {"key": 7, "data": b"two!"}]
        assert reader.spans("key") is None
    index.write_text("größe\t12\nb\t0\n")
    with bp.open(path, keys=True) as reader:
        assert [sample["key"] for sample in reader] == ["b", "größe"]
    assert bp.verify(path).problems == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("0\t0\n", "it has 1 keys, and there are 2 records"),
        ("0\t0\n1\t8\n", "does not name the places"),
        ("0 0\n1 12\n", "not lines of a key and an offset"),
        ("0\t0\n1\t99999999999999999999\n", "not lines of a key and an offset"),
    ],
)
def test_an_idx_file_that_does_not_fit(text, reason, tmp_path):
    path = write(tmp_path / "a.rec", b"one", b"two!")
    (tmp_path / "a.idx").write_text(text)
    assert len(bp.open(path)) == 2
    [problem] = bp.verify(path).problems
    assert reason in problem.message
    assert problem.path == str(tmp_path / "a.idx")
    with pytest.raises(bp.DamagedError, match=reason):
        bp.open(path, keys=True)


# --- damage -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "reason", "offset"),
    [
        (frame(b"one") + b"\0" * 8, "no record begins here; the 1 records before it are whole", 12),
        (frame(b"one") + frame(b"two")[:-1], "the file ends within a record", 12),
        (frame(b"one") + MAGIC, "the file ends within the header", 12),
        (frame(b"one", 3), "the beginning of a split record is missing", 0),
        (frame(b"1234", 1), "the file ends within the header", 12),
        (frame(b"1234", 1) + frame(b""), "the rest of a split record is missing", 12),
        (frame(b"1234", 1) + frame(b"", 1), "the rest of a split record is missing", 12),
        (frame(b"1234", 7), "the header of this record is damaged", 0),
    ],
)
def test_structure_that_is_wrong(data, reason, offset, tmp_path):
    (tmp_path / "a.rec").write_bytes(data)
    with pytest.raises(bp.DamagedError, match=reason) as caught:
        bp.open(tmp_path / "a.rec", format="recordio")
    assert caught.value.offset == offset


def test_an_empty_file(tmp_path):
    (tmp_path / "a.rec").write_bytes(b"")
    with bp.open(tmp_path / "a.rec") as reader:
        assert len(reader) == 0
        assert dict(reader.schema) == {"data": bp.Bytes()}


@pytest.mark.parametrize("damage", [cuts, flips])
def test_damaged_image_records(damage, tmp_path):
    schema = {"image": bp.Image(), "label": bp.Tensor("float32", (None,)), "id": bp.Int("uint64")}
    path = tmp_path / "a.rec"
    with bp.create(path, schema) as out:
        for number in range(2):
            label = np.ones(number + 1, np.float32)
            out.append({"image": jpeg(4, 4), "label": label, "id": number})

    def is_sound():
        with memory_bounded(path.stat().st_size):
            return TestSuite().is_sound(str(path))

    assert is_sound()
    for what, sound in survive(damage(path), is_sound):
        assert not (sound and damage is cuts), what


def test_a_count_of_labels_that_lies(tmp_path):
    record = bytearray(image_record(jpeg(), 1.0))
    path = write(tmp_path / "a.rec", image_record(jpeg(), 1.0), record)
    with bp.open(path, schema={"image": bp.Image(), "label": bp.Float("float32")}) as reader:
        assert reader[1]["label"] == 1.0
        for flag, reason in ((2**32 - 1, "too short"), (2, "it has 2 labels, not 1")):
            record[:4] = struct.pack("<I", flag)
            # In place, so that the reader's mapping sees it.
            with open(path, "r+b") as file:
                file.seek(len(frame(record)) + 8)
                file.write(record)
            with pytest.raises(bp.DamagedError, match=reason) as caught:
                reader.read([0, 1], ["label"])
            assert caught.value.sample == 1


# --- together with the rest ---------------------------------------------------------------------------


def test_the_loader_sees_the_same_pixels_as_from_beton(tmp_path):
    schema = {"image": bp.Image(), "label": bp.Int()}
    for name in ("a.beton", "a.rec"):
        with bp.create(tmp_path / name, schema) as out:
            for number in range(24):
                out.append({"image": jpeg(40 + number, 50 - number), "label": number})
    pipelines = {"image": [ops.RandomResizedCrop(24), ops.RandomHorizontalFlip()], "label": []}
    loaders = [
        bp.Loader(tmp_path / name, 8, order="random", seed=3, pipelines=pipelines)
        for name in ("a.beton", "a.rec")
    ]
    for mine, theirs in zip(*loaders, strict=True):
        assert np.array_equal(mine["image"], theirs["image"])
        assert np.array_equal(mine["label"], theirs["label"])
    for loader in loaders:
        loader.close()


def test_blocks_are_runs_of_the_file(tmp_path):
    with bp.create(tmp_path / "a.rec", {"data": bp.Bytes()}) as out:
        for _ in range(5):
            out.append({"data": bytes(3 << 20)})
    with bp.open(tmp_path / "a.rec") as reader:
        assert reader.blocks().tolist() == [0, 0, 0, 1, 1]


def test_an_index_of_another_file_is_found_out(tmp_path):
    for name, size in (("a", 100), ("b", 50)):
        write(tmp_path / f"{name}.rec", *[bytes([65]) * size] * 3)
    with bp.open(tmp_path / "b.rec") as reader:
        reader._starts, reader._sizes = reader._starts + 10, reader._sizes + 100
        with pytest.raises(bp.DamagedError, match="outside of the file") as caught:
            reader.read([0, 2])
        assert caught.value.sample == 2
        assert next(reader.verify()).message.startswith("the index is not that of")


def test_files_from_afar(tmp_path):
    pytest.importorskip("fsspec")
    shutil.copy(GOLDEN / "recordio/blobs.rec", tmp_path)
    far = bp.open(f"file://{tmp_path}/blobs.rec", index="memory")
    with far, bp.open(GOLDEN / "recordio/blobs.rec") as near:
        assert cells(near) == cells(far)


MXNET = os.environ.get("BATCHPLANT_MXNET_PYTHON", "")
READ_BY_MXNET = """
import sys, mxnet
found = mxnet.recordio.MXIndexedRecordIO(sys.argv[1][:-4] + ".idx", sys.argv[1], "r")
for key in sorted(found.keys):
    header, data = mxnet.recordio.unpack(found.read_idx(key))
    print(key, header.id, float(header.label), data.hex())
"""


@pytest.mark.reference
@pytest.mark.skipif(not MXNET, reason="BATCHPLANT_MXNET_PYTHON names no Python that has mxnet")
def test_mxnet_reads_what_we_write(tmp_path):
    with bp.create(tmp_path / "a.rec", {"image": bp.Image(), "label": bp.Int()}) as out:
        for number in range(5):
            out.append({"image": jpeg() + MAGIC * number, "label": number})
    done = processes.run(
        [MXNET, "-c", READ_BY_MXNET, str(tmp_path / "a.rec")], capture_output=True, text=True, check=True
    )
    expected = [f"{n} {n} {float(n)} {(jpeg() + MAGIC * n).hex()}" for n in range(5)]
    assert done.stdout.splitlines() == expected
