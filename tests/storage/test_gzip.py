"""GZIP and ZLIB files as if they were not packed."""

import functools
import gzip
import os
import pickle
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.storage import compressed, open_source
from batchplant.storage.compressed import inflate, kind_of, open_gzip
from batchplant.testing.cases import memory_bounded

PACK = {"gzip": gzip.compress, "zlib": zlib.compress}


@pytest.fixture(scope="module")
def plain():
    """Compressible, and larger than the distance of three seek points."""
    return np.random.default_rng(0).integers(0, 50, 5 << 20, dtype=np.uint8).tobytes()


@pytest.fixture(params=["gzip", "zlib"])
def packed(request, plain, tmp_path):
    path = tmp_path / "data.packed"
    path.write_bytes(pack(request.param, plain))
    return str(path), request.param


@functools.cache
def pack(kind, data):
    return PACK[kind](data, 1)


def test_any_place_can_be_read(packed, plain):
    source = open_gzip(*packed)
    assert source.size == len(plain)
    starts = np.array([3 << 20, 0, 5 << 20, 17, (2 << 20) - 3, 0], dtype=np.int64)
    sizes = np.array([1000, 5, 0, 1 << 20, 7, 0], dtype=np.int64)
    result = source.gather(starts, sizes)
    for row, (start, size) in enumerate(zip(starts.tolist(), sizes.tolist(), strict=True)):
        assert result[row].tobytes() == plain[start : start + size]
        assert source.view(start, size).tobytes() == plain[start : start + size]
    with pytest.raises(bp.DamagedError, match="the file ends at"):
        source.view(len(plain) - 1, 2)
    assert source.file().read() == plain
    source.close()
    with pytest.raises(bp.OptionError, match="closed"):
        source.view(0, 1)


def test_many_threads(packed, plain):
    source = open_gzip(*packed)
    places = np.random.default_rng(1).integers(0, len(plain) - 100, 60).tolist()
    with ThreadPoolExecutor(8) as pool:
        actual = list(pool.map(lambda start: source.view(start, 100).tobytes(), places))
    assert actual == [plain[start : start + 100] for start in places]


def test_seek_points_are_kept(plain, tmp_path, monkeypatch):
    path = tmp_path / "a.gz"
    path.write_bytes(pack("gzip", plain))
    first = open_gzip(str(path))
    points = first.points()
    monkeypatch.setattr(compressed, "inflate", None)
    again = open_gzip(str(path), size=first.size, points=points)
    assert again.view(4 << 20, 50).tobytes() == plain[4 << 20 : (4 << 20) + 50]


def test_damaged_seek_points_do_no_harm(plain, tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(pack("gzip", plain))
    points = open_gzip(str(path)).points()
    wanted = plain[3 << 20 : (3 << 20) + 100]
    rng = np.random.default_rng(2)
    for size in rng.integers(1, len(points), 20).tolist():
        with pytest.raises(bp.DamagedError):
            open_gzip(str(path), size=len(plain), points=points[:size])
    same = 0
    for _ in range(30):
        wrong = points.copy()
        wrong[rng.integers(0, 200, 3)] = rng.integers(0, 256, 3)
        try:
            result = open_gzip(str(path), size=len(plain), points=wrong).view(3 << 20, 100)
        except bp.DamagedError:
            continue
        # Where they lead elsewhere, as many bytes come from there: the index has a checksum of its own.
        assert len(result) == 100
        same += result.tobytes() == wanted
    assert same > 10


def test_damaged_seek_points_of_an_index_are_made_anew(tmp_path):
    path = tmp_path / "a.tfrecord.gz"
    # Everything is unpacked from the 32 KiB before it, which seek points hold.
    block = np.random.default_rng(0).bytes(20_000)
    samples = [{"data": bytes([n]) + block * 5} for n in range(40)]
    with bp.create(path, {"data": bp.Bytes()}) as out:
        for sample in samples:
            out.append(sample)
    assert list(bp.open(path, index="write")) == samples
    wanted = [39, 25, 12]
    kept = Path(f"{path}.bpindex")
    whole = kept.read_bytes()
    for place in np.random.default_rng(3).integers(0, len(whole), 20).tolist():
        kept.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        with bp.open(path) as reader:
            assert [reader[n] for n in wanted] == [samples[n] for n in wanted], place


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_files_of_several_members(kind, plain, tmp_path):
    path = tmp_path / "a"
    parts = [plain[:100], b"", plain[100 : 3 << 20], plain[3 << 20 :]]
    path.write_bytes(b"".join(PACK[kind](part, 1) for part in parts) + bytes(1000))
    source = open_gzip(str(path), kind)
    assert source.size == len(plain)
    assert source.view(50, 4 << 20).tobytes() == plain[50 : (4 << 20) + 50]


def test_very_many_members(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(gzip.compress(b"x") * 5000)
    assert sum(len(piece) for piece in inflate(open_source(str(path)))) == 5000


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_nothing(kind, tmp_path):
    path = tmp_path / "a"
    path.write_bytes(PACK[kind](b""))
    source = open_gzip(str(path), kind)
    assert source.size == 0
    assert source.view(0, 0).tobytes() == b""


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_damage_is_noticed(kind, plain, tmp_path):
    path = tmp_path / "a"
    whole = PACK[kind](plain[:20_000])
    for size in [*range(20), len(whole) // 2, *range(len(whole) - 12, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(bp.DamagedError) as caught:
            open_gzip(str(path), kind)
        assert caught.value.path == str(path)
        assert caught.value.offset is not None
    for place in [0, 1, len(whole) // 2, len(whole) - 2]:
        wrong = bytearray(whole)
        wrong[place] ^= 0xFF
        path.write_bytes(wrong)
        with pytest.raises(bp.DamagedError, match=f"not sound {kind}|ends too early"):
            open_gzip(str(path), kind)
    path.write_bytes(whole + b"behind it")
    with pytest.raises(bp.DamagedError, match="not sound"):
        open_gzip(str(path), kind)


def test_a_file_that_changes_under_its_reader(plain, tmp_path):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(plain[: 1 << 20], 1))
    source = open_gzip(str(path), size=len(plain))
    with pytest.raises(bp.DamagedError):
        source.view(2 << 20, 100)


@pytest.mark.parametrize("kind", ["gzip", "zlib"])
def test_a_bomb_takes_no_memory(kind, tmp_path):
    path = tmp_path / "a"
    pack = zlib.compressobj(9, zlib.DEFLATED, compressed.WBITS[kind])
    zeros = bytes(1 << 20)
    path.write_bytes(b"".join(pack.compress(zeros) for _ in range(100)) + pack.flush())
    with memory_bounded(0):
        assert sum(len(piece) for piece in inflate(open_source(str(path)), kind)) == 100 << 20


def test_large_zlib_files_go_to_a_temporary_file(plain, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr("tempfile.tempdir", None)
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "a.zz"
    path.write_bytes(zlib.compress(plain, 1))
    packed = open_source(str(path))
    source = compressed.collect(str(path), inflate(packed, "zlib"), packed.size, max_memory_bytes=2 << 20)
    assert source.view(4 << 20, 100).tobytes() == plain[4 << 20 : (4 << 20) + 100]
    assert os.listdir(tmp_path / "tmp") == []


def test_kinds():
    assert kind_of(gzip.compress(b"x")) == "gzip"
    for level in range(10):
        assert kind_of(zlib.compress(b"x", level)) == "zlib"
    for head in (b"", b"\x1f", b"x", b"PK\3\4", b"\x78", bytes(20)):
        assert kind_of(head) is None
    with pytest.raises(bp.OptionError, match="gzip or zlib, not 'bz2'"):
        open_gzip(__file__, "bz2")


def test_without_the_library(plain, tmp_path, monkeypatch):
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"x"))
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    with pytest.raises(bp.MissingLibraryError, match=r'pip install "batchplant\[gzip\]"'):
        open_gzip(str(path))


def test_readers_of_packed_files_go_to_other_processes(tmp_path):
    with bp.create(tmp_path / "a.tfrecord.gz", {"n": bp.Int()}) as out:
        for n in range(50):
            out.append({"n": n})
    with bp.open(tmp_path / "a.tfrecord.gz") as reader:
        again = pickle.loads(pickle.dumps(reader))
        assert [row["n"] for row in again] == list(range(50))
