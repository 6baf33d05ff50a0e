"""ArrayRecord: the suite, files of the original library, and files that are damaged."""

import lzma
import os

import numpy as np
import pytest

import batchplant as bp
from batchplant.data.writer import WriteOptions
from batchplant.formats.registry.creating import create_with
from batchplant.loading.loader import Loader
from batchplant.testing import FormatSuite
from batchplant.testing.cases import jpeg
from repository import GOLDEN

FILES = sorted((GOLDEN / "arrayrecord").glob("*.xz"))
READABLE = [file for file in FILES if not file.name.startswith("transposed")]
BLOCK = 1 << 16


class TestSuite(FormatSuite):
    format = "arrayrecord"
    suffix = ".array_record"
    in_place = False
    golden = GOLDEN


def unpacked(file, folder):
    """The golden file in a folder."""
    path = folder / file.name.removesuffix(".xz")
    path.write_bytes(lzma.decompress(file.read_bytes()))
    return path


def record(number):
    """A record of the golden files."""
    return bytes([number]) * (number * 7 if number < 11 else 150_000)


def records(path, **options):
    with bp.open(path, **options) as reader:
        return [bytes(sample["data"]) for sample in reader]


def write(path, samples, **options):
    with bp.create(path, {"data": bp.Bytes()}, overwrite=True, **options) as out:
        for sample in samples:
            out.append({"data": sample})


# -- the original library ------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", READABLE, ids=lambda file: file.name.partition(".")[0])
def test_golden_files_are_read_exactly(file, tmp_path):
    path = unpacked(file, tmp_path)
    with bp.open(path) as reader:
        assert reader.format == "arrayrecord"
        assert reader.facts()["written_with"].startswith("group_size:")
        samples = [record(number) for number in range(len(reader))]
        assert len(samples) == (2 if "padded" in file.name else 12)
        assert [bytes(sample["data"]) for sample in reader] == samples
        order = np.random.default_rng(0).permutation(len(samples))
        assert [bytes(cell) for cell in reader.read(order)["data"]] == [samples[n] for n in order]
    assert bp.verify(path).problems == []


def test_transposed_chunks_are_refused(tmp_path):
    path = unpacked(GOLDEN / "arrayrecord" / "transposed.array_record.xz", tmp_path)
    with bp.open(path) as reader, pytest.raises(bp.DamagedError, match="transposed") as caught:
        reader[3]
    assert caught.value.path == str(path)


@pytest.mark.reference
@pytest.mark.parametrize("compression", ["none", "zstd", "brotli", "snappy"])
@pytest.mark.parametrize("group_size", [1, 5])
def test_the_original_reads_what_we_write(tmp_path, compression, group_size):
    module = pytest.importorskip("array_record.python.array_record_module")
    rng, path = np.random.default_rng(1), tmp_path / "a.array_record"
    # Records around the sizes at which chunks, headers and padding meet the end of a block.
    sizes = [0, 1, *range(65_380, 65_560, 9), 200_000, 0, 0, 7]
    samples = [rng.bytes(size) for size in sizes]
    write(path, samples, group_size=group_size, compression=compression)
    theirs = module.ArrayRecordReader(str(path))
    assert theirs.num_records() == len(samples)
    assert theirs.read_all() == samples
    assert theirs.read([3, len(samples) - 1, 0]) == [samples[3], samples[-1], samples[0]]
    assert records(path) == samples


# -- ours ----------------------------------------------------------------------------------------------------


def test_records_at_every_place_of_a_block(tmp_path):
    path = tmp_path / "a.array_record"
    samples = [bytes(size) for size in range(0, 400, 3)] * 3
    for group_size in (1, 7):
        write(path, samples, group_size=group_size)
        assert os.path.getsize(path) % BLOCK == 0
        assert records(path) == samples


def test_empty(tmp_path):
    write(tmp_path / "a.array_record", [])
    assert records(tmp_path / "a.array_record") == []


def test_a_group_that_is_not_full_is_resumed(tmp_path):
    paths = tmp_path / "a.array_record", tmp_path / "b.array_record"
    samples = [bytes([number]) * 9 for number in range(12)]
    write(paths[0], samples, group_size=5)
    schema = {"data": bp.Bytes()}
    out = bp.create(paths[1], schema, group_size=5)
    for sample in samples[:7]:
        out.append({"data": sample})
    out.checkpoint()
    out.append({"data": b"lost"})
    out.suspend()
    options = WriteOptions(resume=True)
    with create_with(str(paths[1]), bp.Schema(schema), options, group_size=5) as out:
        for sample in samples[out.received :]:
            out.append({"data": sample})
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.parametrize("group_size", [1, 3])
def test_a_loader_reads_images(tmp_path, group_size):
    schema = {"image": bp.Image("jpeg"), "label": bp.Int()}
    with bp.create(tmp_path / "a.array_record", schema, group_size=group_size) as out:
        for number in range(10):
            out.append({"image": jpeg(8, 8), "label": number})
    labels = [batch["label"] for batch in Loader(tmp_path / "a.array_record", 4, seed=0)]
    assert sorted(np.concatenate(labels).tolist()) == list(range(10))


def test_options_are_checked(tmp_path):
    for options in ({"group_size": 0}, {"compression": "lz4"}):
        with pytest.raises(bp.OptionError):
            bp.create(tmp_path / "a.array_record", {"data": bp.Bytes()}, **options)


# -- damage --------------------------------------------------------------------------------------------------


def test_a_damaged_record_names_its_place(tmp_path):
    path = tmp_path / "a.array_record"
    for group_size in (1, 2):
        write(path, [b"a" * 90, b"b" * 90, b"c" * 90, b"d" * 90], group_size=group_size)
        data = bytearray(path.read_bytes())
        data[data.index(b"ccc") + 5] ^= 1
        path.write_bytes(data)
        with bp.open(path) as reader:
            assert reader[0]["data"] == b"a" * 90
            with pytest.raises(bp.DamagedError, match="hash of a chunk's data") as caught:
                reader.read([0, 2])
            assert (caught.value.path, caught.value.sample) == (str(path), 2)
            assert caught.value.offset is not None
        samples = [problem.sample for problem in bp.verify(path).problems]
        assert samples == ([2] if group_size == 1 else [2, 3])


@pytest.mark.parametrize("name", ["zstd", "brotli", "snappy"])
def test_lies_about_unpacked_sizes(tmp_path, name):
    """A size that is not that of the bytes, in a chunk whose hashes are right."""
    from batchplant.formats import arrayrecord

    pack = arrayrecord._packer(name)
    packed = pack(b"x" * 1000)
    unpacked = arrayrecord.unpack(memoryview(packed), 0, len(packed), arrayrecord.CODES[name])
    assert bytes(unpacked) == b"x" * 1000
    for claim in (b"\xe7\x07", b"\xe9\x07", b"\x00", b"\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 11):
        lie = memoryview(claim + packed[2:])
        with pytest.raises(bp.DamagedError):
            arrayrecord.unpack(lie, 0, len(lie), arrayrecord.CODES[name])


def test_a_file_without_its_end(tmp_path):
    path = tmp_path / "a.array_record"
    write(path, [b"a"])
    path.write_bytes(path.read_bytes()[:BLOCK])
    with pytest.raises(bp.DamagedError, match="not whole"):
        bp.open(path)
