"""Chunks in native threads: decoding them, and copying boxes out of them."""

import itertools
import os
import struct
import zlib

import numpy as np
import pytest

from batchplant import _native
from batchplant.formats.base.arrays.compression import Coding, pack
from batchplant.formats.hdf5.stored import fletcher32

VALUES = np.arange(20_000, dtype="<u4") // 3 % 1000
ITEM = VALUES.itemsize


def shuffled(data):
    return np.ascontiguousarray(np.frombuffer(data, np.uint8).reshape(-1, ITEM).T).tobytes()


def with_crc(data):
    return data + struct.pack("<I", _native.crc32c(np.frombuffer(data, np.uint8)))


def with_fletcher(data):
    low, high = fletcher32(np.frombuffer(data, np.uint8))
    return data + struct.pack("<I", high << 16 | low)


def lz4(data):
    from numcodecs.lz4 import compress

    return bytes(compress(data))


RAW = VALUES.tobytes()
CODINGS = {
    "none": (RAW, Coding()),
    "gzip": (bytes(pack("gzip", 5, RAW)), Coding((("gzip", 0),))),
    "zlib": (zlib.compress(RAW), Coding((("gzip", 0),))),
    "zstd": (bytes(pack("zstd", 3, RAW)), Coding((("zstd", 0),))),
    "blosc": (bytes(pack("blosc", 5, RAW, ITEM)), Coding((("blosc", 0),))),
    "lz4": (lz4(RAW), Coding((("lz4", 0),))),
    "crc32c": (with_crc(bytes(pack("zstd", 3, RAW))), Coding((("crc32c", 0), ("zstd", 0)))),
    "shuffle": (zlib.compress(shuffled(RAW)), Coding((("gzip", 0), ("shuffle", ITEM)))),
    "fletcher32": (
        with_fletcher(zlib.compress(shuffled(RAW))),
        Coding((("fletcher32", 0), ("gzip", 0), ("shuffle", ITEM))),
    ),
    "swapped behind a header": (b"head" + VALUES.astype(">u4").tobytes(), Coding((), b"head", ITEM)),
}


@pytest.fixture
def threads():
    return _native.ChunkThreads(3)


def decode(threads, coding, sources, starts=None, sizes=None):
    native = coding.native(len(RAW))
    if native is None:
        pytest.skip("this build or numcodecs has no such decoder for native threads")
    starts = np.zeros(len(sources), np.int64) if starts is None else np.array(starts)
    sizes = np.full(len(sources), -1) if sizes is None else np.array(sizes)
    return threads.decode(native, sources, starts, sizes)


@pytest.mark.parametrize("name", CODINGS)
def test_values_come_out_of_buffers_and_files(name, tmp_path, threads):
    data, coding = CODINGS[name]
    (tmp_path / "chunk").write_bytes(data)
    (tmp_path / "shard").write_bytes(b"12345" + data + b"678")
    path = os.fsencode(tmp_path)
    sources = [np.frombuffer(data, np.uint8), path + b"/chunk", path + b"/shard", path + b"/none"] * 5
    result = decode(threads, coding, sources, [0, 0, 5, 0] * 5, [-1, -1, len(data), -1] * 5)
    assert [None if item is None else item.tobytes() == RAW for item in result] == [
        True,
        True,
        True,
        None,
    ] * 5


@pytest.mark.parametrize("name", CODINGS)
def test_damaged_chunks_give_none_or_values(name, threads):
    data, coding = CODINGS[name]
    damaged = [data[:-1], data + b"x", b"", data[: len(data) // 2]]
    for place in range(0, min(len(data), 200), 3):
        damaged.append(data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :])
    result = decode(threads, coding, [np.frombuffer(item, np.uint8) for item in damaged])
    assert result[0] is result[2] is result[3] is None
    assert all(item is None or item.size == len(RAW) for item in result)


def test_neither_folders_nor_pipes_nor_ranges_outside_are_read(tmp_path, threads):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(RAW)
    path = os.fsencode(tmp_path)
    sources = [path, path + b"/pipe", *[path + b"/file"] * 4]
    starts, sizes = [0, 0, 1, -1, 2**62, 0], [-1, -1, len(RAW), len(RAW), 1, 2**62]
    assert decode(threads, Coding(), sources, starts, sizes) == [None] * 6


def test_boxes_are_those_of_numpy(threads):
    rng = np.random.default_rng(0)
    array = rng.integers(0, 1000, (7, 11, 5, 3)).astype(np.int16)
    for chunks, steps in itertools.product(
        [(2, 4, 5, 3), (3, 3, 2, 1), (7, 11, 5, 3)], [(1,) * 4, (2, 1, 3, 1)]
    ):
        boxes = np.zeros((9, 3, 4), dtype=np.int64)
        out = np.full((10, 4, 5, 2, 3), -1, np.int16)
        expected = out.copy()
        for box, row in zip(boxes, range(9, 0, -1), strict=True):
            for axis, (size, step) in enumerate(zip(array.shape, steps, strict=True)):
                box[1, axis] = rng.integers(1, min(out.shape[axis + 1], (size - 1) // step + 1) + 1)
                box[0, axis] = rng.integers(0, size - (box[1, axis] - 1) * step)
                box[2, axis] = rng.integers(0, out.shape[axis + 1] - box[1, axis] + 1)
            source = tuple(slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(*box[:2], steps, strict=True))
            target = tuple(slice(a, a + n) for a, n in zip(box[2], box[1], strict=True))
            expected[(row, *target)] = array[source]
        native = _native.ChunkBoxes(boxes, list(steps), list(chunks))
        assert native.indices == sorted(set(native.indices))
        values = [
            array[tuple(slice(n * size, (n + 1) * size) for n, size in zip(index, chunks, strict=True))]
            for index in native.indices
        ]
        half = len(values) // 2
        rows = np.arange(9, 0, -1)
        threads.copy(native, 0, values[:half], out, rows)
        threads.copy(native, half, values[half:], out, rows)
        assert np.array_equal(out, expected)


def test_boxes_that_leave_their_chunk_or_output_are_refused(threads):
    boxes = _native.ChunkBoxes(np.array([[[0], [4], [0]]]), [1], [4])
    rows, out = np.zeros(1, np.int64), np.zeros((1, 4), np.int32)
    for chunk, target, numbers in [
        (np.zeros(3, np.int32), out, rows), (np.zeros(4, np.int32), out[:, :3], rows),
        (np.zeros(4, np.int32), out, rows + 1), (np.zeros(4, np.int32), out, rows - 1),
    ]:  # fmt: skip
        with pytest.raises(IndexError):
            threads.copy(boxes, 0, [chunk], target, numbers)
    with pytest.raises(ValueError, match="values"):
        threads.copy(boxes, 0, [np.zeros(4, np.int16)], out, rows)
    with pytest.raises(IndexError):
        threads.copy(boxes, 1, [np.zeros(4, np.int32)], out, rows)
    with pytest.raises(ValueError, match="negative"):
        _native.ChunkBoxes(np.array([[[-1], [4], [0]]]), [1], [4])
