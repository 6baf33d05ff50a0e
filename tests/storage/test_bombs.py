"""Small files that claim, or unpack to, very much: refused by the one limit, before memory is taken."""

import gzip
import json
import os
import resource
import struct
import sys
import tarfile
import zipfile
import zlib

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.storage import limits
from batchplant.storage.limits import VARIABLE

MIB = 1 << 20
# MiB that a bomb unpacks to.
COUNT = 8


@pytest.fixture
def low_limit(monkeypatch):
    """2 MiB, and sixteen times what is stored."""
    monkeypatch.setattr(limits, "_most", 2 * MIB)


def zeros(count, wbits=31, before=b"", after=b"", fill=b"\0"):
    """``before``, so many MiB of one byte, ``after``; packed."""
    packer = zlib.compressobj(9, zlib.DEFLATED, wbits)
    piece = fill * MIB
    parts = [packer.compress(before), *(packer.compress(piece) for _ in range(count)), packer.compress(after)]
    return b"".join(parts) + packer.flush()


def zeros_zstd(count, before=b"", after=b"", fill=b"\0"):
    pa = pytest.importorskip("pyarrow")
    codec = pa.Codec("zstd", 3)
    parts = [before, *([fill * MIB] * count), after]
    return b"".join(codec.compress(part, asbytes=True) for part in parts if part)


def refused(path, **options):
    """The error that opening it, or reading all of it, gives."""
    with pytest.raises(bp.DamagedError, match="the limit is") as caught, bp.open(path, **options) as reader:
        for _ in reader.scan(4):
            pass
    assert str(path) in str(caught.value)
    assert "BATCHPLANT_MAX_BYTES" in str(caught.value)
    return caught.value


# -- rows and records in packed files --------------------------------------------------------------------


TEXTS = {
    "csv": (b"a,b\n1,", b"\n2,x\n"),
    "jsonl": (b'{"a": 1, "b": "', b'"}\n{"a": 2, "b": "x"}\n'),
    "json": (b'[{"a": 1, "b": "', b'"}, {"a": 2, "b": "x"}]'),
}


@pytest.mark.parametrize("kind", TEXTS)
def test_a_row_of_text_in_gzip(kind, tmp_path, low_limit):
    pytest.importorskip("indexed_gzip")
    before, after = TEXTS[kind]
    path = tmp_path / f"a.{kind}.gz"
    path.write_bytes(zeros(COUNT, before=before, after=after, fill=b"x"))
    error = refused(path)
    assert error.offset is not None
    # A row that fits is read.
    path.write_bytes(zeros(1, before=before, after=after, fill=b"x"))
    with bp.open(path) as reader:
        assert len(reader[0]["b"]) == MIB


@pytest.mark.parametrize("kind", TEXTS)
def test_a_row_of_text_in_zstandard(kind, tmp_path, low_limit):
    before, after = TEXTS[kind]
    path = tmp_path / f"a.{kind}.zst"
    path.write_bytes(zeros_zstd(COUNT, before, after, b"x"))
    refused(path)
    path.write_bytes(zeros_zstd(1, before, after, b"x"))
    with bp.open(path) as reader:
        assert len(reader[0]["b"]) == MIB


def test_very_many_rows_in_gzip(tmp_path, low_limit):
    """The list of where rows begin is longer than the rows."""
    pytest.importorskip("indexed_gzip")
    for name, before, row in (("a.csv.gz", b"a\n", b"1\n"), ("a.jsonl.gz", b"", b"1\n")):
        (tmp_path / name).write_bytes(gzip.compress(before + row * (2 * MIB)))
        assert "rows" in str(refused(tmp_path / name))
    (tmp_path / "a.msgpack.gz").write_bytes(gzip.compress(b"\x01" * MIB))
    assert "rows" in str(refused(tmp_path / "a.msgpack.gz"))


def test_a_record_of_tfrecord(tmp_path, low_limit):
    pytest.importorskip("indexed_gzip")
    size = COUNT * MIB
    head = struct.pack("<Q", size)
    data = bytes(size)
    frame = head + struct.pack("<I", masked(head)), struct.pack("<I", masked(data))
    for wbits in (31, 15):
        path = tmp_path / f"a{wbits}.tfrecord.gz"
        path.write_bytes(zeros(COUNT, wbits, *frame))
        refused(path)


def masked(data):
    crc = bp._native.crc32c(np.frombuffer(data, np.uint8))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_a_record_of_messagepack(tmp_path, low_limit):
    pytest.importorskip("indexed_gzip")
    before = b"\x81\xa1x\xc6" + struct.pack(">I", COUNT * MIB)
    (tmp_path / "a.msgpack.gz").write_bytes(zeros(COUNT, before=before))
    refused(tmp_path / "a.msgpack.gz")


def test_a_record_for_the_mirror_of_tensorflow(tmp_path, low_limit):
    from batchplant.tfrecord.records import read_records

    head = struct.pack("<Q", COUNT * MIB)
    packed = zeros(COUNT, before=head + struct.pack("<I", masked(head)), after=bytes(4))
    (tmp_path / "a.tfrecord.gz").write_bytes(packed)
    with pytest.raises(bp.DamagedError, match="a record unpacks to too many bytes"):
        list(read_records(str(tmp_path / "a.tfrecord.gz"), "GZIP"))


def test_joblib(tmp_path, low_limit):
    joblib = pytest.importorskip("joblib")
    for kind in ("zlib", "gzip", "bz2", "xz"):
        joblib.dump(
            {"x": np.zeros((4, COUNT * MIB // 4), np.uint8)}, tmp_path / "a.joblib", compress=(kind, 1)
        )
        refused(tmp_path / "a.joblib", allow_pickle=True)
        joblib.dump({"x": np.arange(4), "t": list("abcd")}, tmp_path / "b.joblib", compress=(kind, 1))
        with bp.open(tmp_path / "b.joblib", allow_pickle=True) as reader:
            assert reader[3] == {"x": 3, "t": "d"}


def test_a_member_of_tar(tmp_path, low_limit):
    pytest.importorskip("indexed_gzip")
    head = tarfile.TarInfo("a.bin")
    head.size = COUNT * MIB
    data = zeros(COUNT, before=head.tobuf(), after=bytes(1024))
    for name in ("a.tar.gz", "a.tgz"):
        (tmp_path / name).write_bytes(data)
        assert refused(tmp_path / name).offset == 512


# -- ZIP members -----------------------------------------------------------------------------------------


def zipped(path, members):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return path


def test_a_member_of_npz(tmp_path, low_limit):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((2, COUNT * MIB), np.uint8))
    refused(tmp_path / "a.npz")
    np.savez_compressed(tmp_path / "b.npz", x=np.zeros((2, MIB // 2), np.uint8))
    with bp.open(tmp_path / "b.npz") as reader:
        assert not reader[1]["x"].any()


def test_a_member_of_pytorch(tmp_path, low_limit):
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.zeros(COUNT * MIB)}, tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    refused(zipped(tmp_path / "b.pt", members))
    # So does a tensor that repeats one value.
    torch.save({"w": torch.zeros(1).expand(COUNT * MIB)}, tmp_path / "c.pt")
    refused(tmp_path / "c.pt")


def zarr_v2(shape, chunks, compressor, fill=0):
    return {
        "zarr_format": 2, "shape": shape, "chunks": chunks, "dtype": "|u1", "compressor": compressor,
        "fill_value": fill, "order": "C", "filters": None,
    }  # fmt: skip


def test_a_member_of_zarr_and_n5_in_a_zip(tmp_path, low_limit):
    pytest.importorskip("numcodecs")
    size = COUNT * MIB
    plain = json.dumps(zarr_v2([1, size], [1, size], None))
    members = {".zgroup": '{"zarr_format": 2}', "x/.zarray": plain, "x/0.0": bytes(size)}
    refused(zipped(tmp_path / "a.zarr.zip", members))
    attributes = {
        "dimensions": [size, 1], "blockSize": [size, 1], "dataType": "uint8", "compression": {"type": "raw"},
    }  # fmt: skip
    block = struct.pack(">HHII", 0, 2, size, 1) + bytes(size)
    members = {
        "attributes.json": '{"n5": "2.5.1"}',
        "x/attributes.json": json.dumps(attributes),
        "x/0/0": block,
    }
    refused(zipped(tmp_path / "a.n5.zip", members))


# -- chunks ----------------------------------------------------------------------------------------------


def packed_chunks():
    size = COUNT * MIB
    yield "gzip", {"id": "gzip", "level": 1}, zeros(COUNT)
    yield "zlib", {"id": "zlib", "level": 1}, zeros(COUNT, 15)
    for kind in ("zstd", "lz4", "blosc"):
        numcodecs = pytest.importorskip("numcodecs")
        yield kind, {"id": kind}, numcodecs.get_codec({"id": kind}).encode(bytes(size))


def test_chunks_of_zarr(tmp_path, low_limit):
    size = COUNT * MIB
    for kind, config, data in packed_chunks():
        top = tmp_path / f"{kind}.zarr"
        (top / "x").mkdir(parents=True)
        (top / ".zgroup").write_text('{"zarr_format": 2}')
        # Rows are small; it is the chunk that is large.
        document = zarr_v2([size // 1024, 1024], [size // 1024, 1024], config)
        (top / "x/.zarray").write_text(json.dumps(document))
        (top / "x/0.0").write_bytes(data)
        error = refused(top)
        assert (error.sample, error.field) == (0, "x")


def test_chunks_of_n5(tmp_path, low_limit):
    top, size = tmp_path / "a.n5", COUNT * MIB
    (top / "x/0").mkdir(parents=True)
    (top / "attributes.json").write_text('{"n5": "2.5.1"}')
    attributes = {
        "dimensions": [1024, size // 1024], "blockSize": [1024, size // 1024], "dataType": "uint8",
        "compression": {"type": "gzip"},
    }  # fmt: skip
    (top / "x/attributes.json").write_text(json.dumps(attributes))
    (top / "x/0/0").write_bytes(struct.pack(">HHII", 0, 2, 1024, size // 1024) + zeros(COUNT))
    refused(top)


def test_chunks_of_hdf5(tmp_path, low_limit):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        shape = (COUNT * 1024, 1024)
        file.create_dataset("x", data=np.zeros(shape, "u1"), chunks=shape, compression="gzip")
    refused(tmp_path / "a.h5")


# -- fill values that no chunk backs ---------------------------------------------------------------------


def test_rows_of_fill_values(tmp_path, low_limit):
    h5py = pytest.importorskip("h5py")
    wide = COUNT * MIB
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", shape=(4, wide), dtype="u1", chunks=(1, MIB), compression="gzip")
    assert refused(tmp_path / "a.h5").field == "x"
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file.create_dataset("x", shape=(4, wide), dtype="u1")
    refused(tmp_path / "b.h5")
    for name in ("a.zarr", "a.n5"):
        (tmp_path / name / "x").mkdir(parents=True)
    (tmp_path / "a.zarr/.zgroup").write_text('{"zarr_format": 2}')
    (tmp_path / "a.zarr/x/.zarray").write_text(json.dumps(zarr_v2([4, wide], [1, MIB], None, 1)))
    assert refused(tmp_path / "a.zarr").field == "x"
    # So does a number of rows.
    (tmp_path / "a.zarr/x/.zarray").write_text(json.dumps(zarr_v2([2**50, 1], [MIB, 1], None, 1)))
    refused(tmp_path / "a.zarr")
    attributes = {
        "dimensions": [wide, 4], "blockSize": [MIB, 1], "dataType": "uint8", "compression": {"type": "raw"},
    }  # fmt: skip
    (tmp_path / "a.n5/attributes.json").write_text('{"n5": "2.5.1"}')
    (tmp_path / "a.n5/x/attributes.json").write_text(json.dumps(attributes))
    refused(tmp_path / "a.n5")


def test_large_rows_that_are_stored_are_read(tmp_path, low_limit):
    """Nothing that is on disk is refused."""
    h5py = pytest.importorskip("h5py")
    values = np.random.default_rng(0).integers(0, 255, (2, 3 * MIB), dtype=np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(1, MIB), compression="gzip")
    np.savez_compressed(tmp_path / "a.npz", x=values)
    with bp.create(tmp_path / "a.zarr", bp.Schema(x=bp.Tensor("uint8", (3 * MIB,)))) as writer:
        for row in values:
            writer.append({"x": row})
    for name in ("a.h5", "a.npz", "a.zarr"):
        with bp.open(tmp_path / name) as reader:
            assert all(np.array_equal(reader[n]["x"], values[n]) for n in range(2))


# -- Parquet ---------------------------------------------------------------------------------------------


def parquet(path, columns, **options):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table(columns), path, **options)
    return path


def test_pages_of_parquet(tmp_path, low_limit):
    texts = ["x" * MIB] * COUNT
    for compression in ("zstd", "gzip", "snappy", "brotli", "lz4"):
        path = parquet(
            tmp_path / "a.parquet",
            {"a": texts, "n": range(COUNT)},
            use_dictionary=False,
            compression=compression,
        )
        if path.stat().st_size < 2 * MIB:
            error = refused(path)
            assert error.field == "a"
            assert error.offset is not None
            with bp.open(path, fields=["n"]) as reader:
                assert reader[7] == {"n": 7}


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_values_that_a_dictionary_of_parquet_repeats(version, tmp_path, low_limit):
    long = "x" * 100_000
    rows = {"a": [long] * 100, "l": [[long, None], []] * 50, "s": [{"t": long}] * 100, "n": range(100)}
    path = parquet(tmp_path / "a.parquet", rows, data_page_version=version)
    for name in "als":
        with pytest.raises(bp.DamagedError, match="the limit is") as caught:
            bp.open(path).read([0], [name])
        assert caught.value.field == name
    # As many as may be are read, and as what they are.
    rows = {name: values[:10] for name, values in rows.items()}
    rows["a"][3] = None
    path = parquet(tmp_path / "b.parquet", rows, data_page_version=version, dictionary_pagesize_limit=4 * MIB)
    with bp.open(path) as reader:
        assert [row["a"] for row in reader] == rows["a"]
        assert [row["l"] for row in reader] == rows["l"]
        assert [row["s"] for row in reader] == rows["s"]


@pytest.mark.parametrize(("version", "compression"), [("1.0", "zstd"), ("2.0", "none")])
def test_beginnings_that_values_of_parquet_repeat(version, compression, tmp_path, low_limit):
    """A value of DELTA_BYTE_ARRAY is the beginning of the one before it, and a few bytes."""
    how = {
        "use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY", "data_page_version": version,
        "compression": compression,
    }  # fmt: skip
    long = "x" * 100_000
    for rows in ([f"{long}{n}" for n in range(100)], [[f"{long}{n}"] for n in range(100)]):
        error = refused(parquet(tmp_path / "a.parquet", {"a": rows}, **how))
        assert error.field == "a"
    # What is bounded only by counting is read.
    rows = [f"{n:06}" if n % 3 else None for n in range(5000)]
    lists = [[row, row] if n % 7 else [] for n, row in enumerate(rows)]
    with bp.open(parquet(tmp_path / "b.parquet", {"a": rows, "l": lists}, **how)) as reader:
        assert [row["a"] for row in reader] == rows
        assert [row["l"] for row in reader] == lists


def test_rows_of_parquet_that_take_no_bytes(tmp_path, low_limit):
    pa = pytest.importorskip("pyarrow")
    rows = 3 * MIB
    refused(parquet(tmp_path / "a.parquet", {"a": pa.array([7]).take(pa.array(np.zeros(rows, "i4")))}))
    refused(parquet(tmp_path / "a.parquet", {"a": pa.nulls(rows)}))


# -- Arrow -----------------------------------------------------------------------------------------------


def arrow(path, columns, compression=None, stream=False):
    pa = pytest.importorskip("pyarrow")
    table = pa.table(columns)
    options = pa.ipc.IpcWriteOptions(compression=compression)
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    with new(str(path), table.schema, options=options) as writer:
        writer.write_table(table)
    return path


@pytest.mark.parametrize(("stream", "compression"), [(False, "zstd"), (True, "lz4")])
def test_packed_buffers_of_arrow(compression, stream, tmp_path, low_limit):
    refused(arrow(tmp_path / "a.arrow", {"a": ["x" * COUNT * MIB]}, compression, stream))
    pa = pytest.importorskip("pyarrow")
    values = pa.DictionaryArray.from_arrays(pa.array([0]), pa.array(["x" * COUNT * MIB]))
    refused(arrow(tmp_path / "a.arrow", {"a": values}, compression, stream))


def test_values_that_arrow_repeats(tmp_path, low_limit):
    pa = pytest.importorskip("pyarrow")
    long = "x" * 100_000
    zeroes = pa.array(np.zeros(100, "i4"))
    view = pa.array([long], pa.string_view())
    views = pa.StringViewArray.from_buffers(
        pa.string_view(),
        100,
        [None, pa.py_buffer(view.buffers()[1].to_pybytes()[:16] * 100), view.buffers()[2]],
    )
    lists = pa.ListViewArray.from_arrays(
        zeroes, pa.array(np.full(100, 100_000, "i4")), np.zeros(100_000, "u1")
    )
    columns = {
        "dictionary": pa.DictionaryArray.from_arrays(zeroes, pa.array([long])),
        "runs": pa.RunEndEncodedArray.from_arrays(pa.array([100], pa.int32()), pa.array([long])),
        "views": views,
        "lists": lists,
        "inside": pa.StructArray.from_arrays(
            [pa.DictionaryArray.from_arrays(zeroes, pa.array([long]))], ["x"]
        ),
        "nulls": pa.FixedSizeListArray.from_arrays(pa.nulls(100 * 100_000), 100_000),
    }
    for name, values in columns.items():
        error = refused(arrow(tmp_path / f"{name}.arrow", {"a": values}))
        assert error.field == "a", name


def flips_of_counts(data, count):
    """The file with another number at each place where this one stands."""
    for place in range(8, len(data) - 8):
        if data[place : place + 8] == count.to_bytes(8, "little"):
            changed = bytearray(data)
            changed[place + 4] ^= 64
            yield bytes(changed)


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("stream", [False, True])
def test_rows_of_arrow_that_are_not_there(stream, compression, tmp_path):
    pa = pytest.importorskip("pyarrow")
    rows = [{"x": n, "y": str(n), "z": [n]} for n in range(3)]
    kinds = {
        "struct": rows,
        "number": [1, 2, 3],
        "text": ["a", "b", None],
        "truth": [True, None, False],
        "null": pa.nulls(3),
        "lists": [[1], [], None],
        "fixed": pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)),
        "view": pa.array(["a", "b" * 50, None], pa.string_view()),
        "tagged": pa.array(["a", "b", "a"]).dictionary_encode(),
    }
    for name, values in kinds.items():
        path = arrow(tmp_path / f"{name}.arrow", {"a": values}, compression, stream)
        with bp.open(path) as reader:
            assert len(reader) == len(list(reader)) == 3
        tried = 0
        for data in flips_of_counts(path.read_bytes(), 3):
            path.write_bytes(data)
            tried += 1
            try:
                with bp.open(path) as reader:
                    assert len(reader) == 3, name
            except bp.DamagedError:
                pass
        assert tried


# -- in little memory ------------------------------------------------------------------------------------


SCRIPT = """
import re, sys
import batchplant as bp
for path in sys.argv[1:]:
    try:
        with bp.open(path) as reader:
            for _ in reader.scan(1):
                pass
        print("read", path)
    except bp.DamagedError as error:
        print("refused" if "the limit is" in str(error) else "damaged", error)
# Not getrusage: that counts what the process was before it became this one, too.
with open("/proc/self/status") as status:
    print(int(re.search(r"VmHWM:\\s+(\\d+)", status.read())[1]) >> 10)
"""


def test_no_memory_is_taken(tmp_path):
    """Gigabytes in a few MB, in a process that may not take them."""
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("indexed_gzip")
    block = zlib.compressobj(9, wbits=-15)
    # A stream of zeros goes on as it began: the same bytes again and again.
    first = block.compress(bytes(8 * MIB)) + block.flush(zlib.Z_FULL_FLUSH)
    again = block.compress(bytes(8 * MIB)) + block.flush(zlib.Z_FULL_FLUSH)
    paths = []
    for name, before in (("a.csv.gz", b'a\n"'), ("a.jsonl.gz", b'{"a": "')):
        start = zlib.compressobj(9, wbits=-15)
        head = gzip.compress(b"")[:10] + start.compress(before) + start.flush(zlib.Z_FULL_FLUSH)
        # The end is never come to.
        (tmp_path / name).write_bytes(head + first + again * 511)
        paths.append(tmp_path / name)
    repeated = pa.DictionaryArray.from_arrays(np.zeros(4000, "i4"), pa.array(["x" * MIB]))
    paths.append(parquet(tmp_path / "a.parquet", {"a": repeated}, store_schema=False))
    size = sum(path.stat().st_size for path in paths)
    assert size < 10 * MIB
    done = processes.run(
        [sys.executable, "-c", SCRIPT, *map(str, paths)],
        env={**os.environ, VARIABLE: str(2 * MIB), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30)),
        capture_output=True, text=True,
    )  # fmt: skip
    *output, peak = done.stdout.split("\n")[:-1]
    assert [line.split()[0] for line in output] == ["refused"] * len(paths), (output, done.stderr[-500:])
    assert int(peak) < 700
