"""The native core, against Pillow, OpenCV's recorded results, and damaged data."""

import io
import itertools
import mmap
import os
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from batchplant import _native
from repository import GOLDEN

HUGE = 2**63 - 1

# --- helpers ------------------------------------------------------------------------------------------------


def i64(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def u8(data: bytes) -> np.ndarray:
    return np.frombuffer(data, np.uint8)


def photo(width: int, height: int, mode: str, seed: int = 0) -> Image.Image:
    """Smooth shapes with some noise: not trivial for an encoder, not incompressible either."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [128 + 90 * np.sin(x / (5 + k)) * np.cos(y / (7 - k)) for k in range(4)]
    noisy = np.stack(planes, -1) + rng.normal(0, 12, (height, width, 4))
    pixels = np.clip(noisy, 0, 255).astype(np.uint8)
    if mode == "CMYK":
        return Image.frombytes("CMYK", (width, height), pixels.tobytes())
    image = Image.fromarray(np.ascontiguousarray(pixels[..., :3])).convert(mode)
    if mode in ("LA", "RGBA"):
        image.putalpha(Image.fromarray(np.ascontiguousarray(pixels[..., 3])))
    return image


def encode(image: Image.Image, encoding: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, encoding, **options)
    return buffer.getvalue()


def jpeg(width: int = 24, height: int = 17, mode: str = "RGB", seed: int = 0, **options: object) -> bytes:
    return encode(photo(width, height, mode, seed), "JPEG", **options)


def pillow_pixels(data: bytes) -> np.ndarray:
    pixels = np.asarray(Image.open(io.BytesIO(data)))
    return pixels if pixels.ndim == 3 else pixels[..., None]


def decode_or_none(data: bytes, mode: str | None = None) -> np.ndarray | None:
    try:
        return _native.jpeg_decode(data, mode)
    except ValueError:
        return None


# --- crc32c -------------------------------------------------------------------------------------------------

CRC_VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(range(31, -1, -1)), 0x113FDB5C),
]


@pytest.mark.parametrize(("data", "expected"), CRC_VECTORS)
def test_crc32c_published_vectors(data, expected):
    assert _native.crc32c(data) == expected
    assert _native._crc32c_portable(data) == expected


@given(st.binary(max_size=200), st.integers(0, 2**32 - 1), st.integers(0, 9))
def test_crc32c_hardware_equals_portable(data, seed, skip):
    unaligned = u8(data)[skip:]
    assert _native.crc32c(unaligned, seed) == _native._crc32c_portable(unaligned, seed)


@given(st.binary(max_size=100), st.binary(max_size=100))
def test_crc32c_continues_from_a_seed(first, second):
    assert _native.crc32c(second, _native.crc32c(first)) == _native.crc32c(first + second)


def test_crc32c_takes_any_buffer(tmp_path):
    data = b"123456789"
    path = tmp_path / "data"
    path.write_bytes(data)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        assert _native.crc32c(mapped) == 0xE3069283
    for buffer in (bytearray(data), memoryview(data), u8(data), u8(data).copy()):
        assert _native.crc32c(buffer) == 0xE3069283


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        None,
        3,
        np.zeros(3),
        np.zeros(3, np.int8),
        np.zeros((2, 2), np.uint8),
        np.zeros(9, np.uint8)[::2],
    ],
)
def test_arrays_are_never_converted(wrong):
    with pytest.raises(TypeError):
        _native.crc32c(wrong)


def test_crc32c_runs():
    data = u8(bytes(range(256)))
    starts, sizes = i64(0, 10, 256, 3), i64(256, 7, 0, 1)
    sums = _native.crc32c_runs(data, starts, sizes)
    assert sums.dtype == np.uint32
    expected = [_native.crc32c(data[s : s + n]) for s, n in zip(starts, sizes, strict=True)]
    assert sums.tolist() == expected


# --- crc32 --------------------------------------------------------------------------------------------------


# Around the lengths at which the processors' ways of summing change over.
LENGTHS = [
    *range(0, 40),
    63,
    127,
    128,
    129,
    383,
    384,
    385,
    895,
    896,
    897,
    1791,
    1792,
    3071,
    3072,
    20_000,
    100_001,
]


@pytest.mark.parametrize("length", LENGTHS)
def test_sums_of_every_length(length):
    data = np.random.default_rng(length).integers(0, 256, length + 3, np.uint8)
    for skip in (0, 1, 3):
        part = data[skip : skip + length]
        for seed in (0, 0xDEADBEEF):
            assert _native.crc32(part, seed) == zlib.crc32(part, seed)
            assert _native.crc32c(part, seed) == _native._crc32c_portable(part, seed)


@given(st.binary(max_size=3000), st.integers(0, 2**32 - 1))
def test_crc32_is_that_of_zlib(data, seed):
    assert _native.crc32(data, seed) == zlib.crc32(data, seed)


def test_crc32_runs_with_and_without_a_copy():
    data = np.random.default_rng(0).integers(0, 256, 5000, np.uint8)
    starts, sizes = i64(0, 10, 5000, 3, 100), i64(4000, 7, 0, 1, 900)
    expected = [zlib.crc32(data[s : s + n]) for s, n in zip(starts, sizes, strict=True)]
    assert _native.crc32_runs(data, starts, sizes).tolist() == expected
    sums, which = np.array(expected[::-1], np.uint32), i64(4, 3, 2, 1, 0)
    out, offsets, bad = _native.gather_runs_crc32(data, starts, sizes, sums, which)
    assert bad == -1
    sums[[1, 2]] ^= 1
    assert _native.gather_runs_crc32(data, starts, sizes, sums, which)[2] == 2
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match="run 1 "):
            _native.gather_runs_crc32(data, starts, sizes, sums, i64(0, wrong, 0, 0, 0))
    assert offsets.tolist() == [0, 4000, 4007, 4007, 4008, 4908]
    assert out.tobytes() == b"".join(data[s : s + n].tobytes() for s, n in zip(starts, sizes, strict=True))
    again = _native.gather_runs(data, starts, sizes)
    assert again[0].tobytes() == out.tobytes()
    assert again[1].tolist() == offsets.tolist()
    none = _native.gather_runs(data, i64(), i64())
    assert none[0].size == 0
    assert none[1].tolist() == [0]


def test_more_than_there_is_memory_for():
    data = np.lib.stride_tricks.as_strided(np.zeros(1, np.uint8), (HUGE,), (1,))
    with pytest.raises(MemoryError):
        _native.gather_runs(data, i64(0, 0, 0), i64(HUGE, HUGE, HUGE))


@pytest.mark.parametrize(
    ("numbers", "good"), [([], True), ([0], True), ([4, 0], True), ([5], False), ([-1, 2], False)]
)
def test_numbers_below(numbers, good):
    assert _native.are_below(i64(*numbers), 5) == good
    assert _native.are_below(i64(*numbers), 0) == (not numbers)


# --- runs ---------------------------------------------------------------------------------------------------

BAD_RUNS = [
    (-1, 1),
    (0, -1),
    (0, 11),
    (11, 0),
    (10, 1),
    (1, HUGE),
    (HUGE, HUGE),
    (-HUGE, HUGE),
    (-HUGE - 1, 1),
]


def test_sizes_and_times_of_many_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "ü").write_bytes(b"")
    os.utime(tmp_path / "a", ns=(5, 1_700_000_000_123_456_789))
    os.symlink("a", tmp_path / "link")
    folder, names = os.fsencode(tmp_path), os.fsencode("a\0b\0b/ü\0gone\0link\0\0")
    sizes, times = _native.stat_files(folder, names)
    assert sizes.tolist() == [3, -1, 0, -1, 3, -1]
    assert times[[0, 1, 4]].tolist() == [1_700_000_000_123_456_789, -1, 1_700_000_000_123_456_789]
    assert [len(file) for file in _native.stat_files(folder, b"")] == [0, 0]
    with pytest.raises(ValueError, match="zero"):
        _native.stat_files(folder, b"a")
    with pytest.raises(FileNotFoundError):
        _native.stat_files(folder + b"/gone", b"a\0")


@pytest.mark.parametrize(("start", "size"), BAD_RUNS)
def test_runs_out_of_bounds_name_the_run(start, size):
    data = np.zeros(10, np.uint8)
    starts, sizes = i64(0, 10, start), i64(10, 0, size)
    with pytest.raises(IndexError, match="run 2 "):
        _native.crc32c_runs(data, starts, sizes)
    for gather in (_native.gather_runs, _native.tfrecord_gather):
        with pytest.raises(IndexError, match="run 2 "):
            gather(data, starts, sizes)
    with pytest.raises(IndexError, match="run 2 "):
        _native.gather_runs_crc32(data, starts, sizes, np.zeros(3, np.uint32), i64(0, 0, 0))
    assert _native.bad_run(starts, sizes, 0, 10) == 2
    assert _native.bad_run(starts[:2], sizes[:2], 0, 10) == -1
    assert _native.bad_run(starts[:2], sizes[:2], 1, 10) == 0


@pytest.mark.parametrize(("start", "size"), [run for run in BAD_RUNS if run[1] > 0])
def test_probe_checks_its_runs(start, size):
    with pytest.raises(IndexError, match="run 1 "):
        _native.probe(np.zeros(10, np.uint8), i64(0, start), i64(10, size))


@pytest.mark.parametrize(("start", "size"), BAD_RUNS)
@pytest.mark.parametrize("side", ["source", "destination"])
def test_copy_runs_checks_all_before_it_copies_any(start, size, side):
    good, bad = i64(0, 0), i64(0, start)
    src, dst = np.ones(10, np.uint8), np.zeros(10, np.uint8)
    src_starts, dst_starts = (bad, good) if side == "source" else (good, bad)
    with pytest.raises(IndexError, match="run 1 "):
        _native.copy_runs(src, src_starts, i64(5, size), dst, dst_starts)
    assert not dst.any()


@given(st.data())
def test_copy_runs_copies_as_numpy_would(data):
    src = u8(data.draw(st.binary(min_size=1, max_size=60)))
    runs = data.draw(
        st.lists(
            st.integers(0, len(src)).flatmap(
                lambda start: st.integers(0, len(src) - start).flatmap(
                    lambda size: st.tuples(st.just(start), st.just(size), st.integers(0, 80 - size))
                )
            ),
            max_size=8,
        )
    )
    dst, expected = np.zeros(80, np.uint8), np.zeros(80, np.uint8)
    for start, size, to in runs:
        expected[to : to + size] = src[start : start + size]
    columns = np.array(runs, np.int64).reshape(-1, 3).T.copy()
    _native.copy_runs(src, columns[0], columns[1], dst, columns[2])
    assert np.array_equal(dst, expected)


def test_copy_runs_inside_one_array():
    data = np.arange(10, dtype=np.uint8)
    _native.copy_runs(data, i64(0), i64(8), data, i64(2))
    assert data.tolist() == [0, 1, 0, 1, 2, 3, 4, 5, 6, 7]


@given(
    rows=st.lists(st.tuples(st.integers(0, 39), st.integers(1, 9)), max_size=8),
    width=st.sampled_from([1, 4, 24]),
)
def test_rows_that_follow_each_other_are_those_of_numpy(rows, width):
    """Runs of rows, which are copied at once, within a piece and over the end of one."""
    table = np.random.default_rng(0).integers(0, 256, (40, width), dtype=np.uint8)
    starts = i64(0, 8, 16, 40)
    numbers = np.array([n for first, count in rows for n in range(first, min(first + count, 40))], np.int64)
    pieces = _native.Pieces(3)
    texts = _native.Pieces(3)
    for number, (start, end) in enumerate(itertools.pairwise(starts.tolist())):
        pieces.put(number, table[start:end].reshape(-1))
        texts.put(number, table[start:end].reshape(-1), np.arange(end - start + 1) * width)
    piece, row = _native.pieces_of(starts, numbers)
    wanted = table[numbers].tobytes()
    assert pieces.rows(width, piece, row).tobytes() == wanted
    data, offsets = texts.cells(piece, row)
    assert data.tobytes() == wanted
    assert offsets.tolist() == [width * n for n in range(len(numbers) + 1)]
    sizes = np.full(len(numbers), width)
    assert _native.gather_runs(table.reshape(-1), numbers * width, sizes)[0].tobytes() == wanted
    assert _native.gather_strided(table.reshape(-1), 0, width, width, numbers).tobytes() == wanted


def test_texts():
    data = np.frombuffer("aäb€".encode(), np.uint8)
    assert _native.texts(data, i64(0, 1, 3, 3, 4, 7)) == ["a", "ä", "", "b", "€"]
    assert _native.texts(data, i64(4, 7)) == ["€"]
    assert _native.texts(data[:0], i64(0, 0)) == [""]
    assert _native.texts(data, i64()) == []
    # In the middle of a character.
    assert _native.texts(data, i64(0, 2, 3)) is None


@pytest.mark.parametrize("offsets", [(0, 8), (-1, 2), (3, 2), (0, HUGE), (-HUGE, HUGE), (HUGE, -HUGE)])
def test_texts_out_of_bounds(offsets):
    with pytest.raises(IndexError):
        _native.texts(np.zeros(7, np.uint8), i64(*offsets))


def test_copy_runs_refuses_wrong_arrays():
    src, dst, one = np.ones(4, np.uint8), np.zeros(4, np.uint8), i64(1)
    frozen = dst.copy()
    frozen.flags.writeable = False
    with pytest.raises(TypeError):
        _native.copy_runs(src, one, one, frozen, one)
    with pytest.raises(TypeError):
        _native.copy_runs(src, one.astype(np.int32), one, dst, one)
    with pytest.raises(ValueError, match="dst_starts has 2 values but sizes has 1"):
        _native.copy_runs(src, one, one, dst, i64(1, 2))
    assert not dst.any()


# --- probe --------------------------------------------------------------------------------------------------

ENCODINGS = {"JPEG": 1, "PNG": 2, "WEBP": 3, "GIF": 4, "BMP": 5, "TIFF": 6}
MODES = {"L": 1, "LA": 2, "RGB": 3, "RGBA": 4, "P": 5, "CMYK": 6, "1": 7}
IMAGES = [
    ("JPEG", "L", {}),
    ("JPEG", "RGB", {}),
    ("JPEG", "RGB", {"progressive": True, "exif": b"Exif\0\0" + bytes(700)}),
    ("JPEG", "CMYK", {}),
    ("PNG", "1", {}),
    ("PNG", "L", {}),
    ("PNG", "LA", {}),
    ("PNG", "P", {}),
    ("PNG", "RGB", {}),
    ("PNG", "RGBA", {}),
    ("WEBP", "RGB", {}),
    ("WEBP", "RGB", {"lossless": True}),
    ("WEBP", "RGB", {"icc_profile": bytes(10)}),
    ("WEBP", "RGBA", {}),
    ("WEBP", "RGBA", {"lossless": True}),
    ("GIF", "P", {}),
    ("BMP", "1", {}),
    ("BMP", "P", {}),
    ("BMP", "RGB", {}),
    ("BMP", "RGBA", {}),
    ("TIFF", "1", {}),
    ("TIFF", "L", {}),
    ("TIFF", "LA", {}),
    ("TIFF", "P", {}),
    ("TIFF", "RGB", {}),
    ("TIFF", "RGBA", {}),
    ("TIFF", "CMYK", {}),
]


def probe(data: bytes) -> list[int]:
    return _native.probe(u8(data), i64(0), i64(len(data)))[0].tolist()


@pytest.mark.parametrize(("encoding", "mode", "options"), IMAGES)
def test_probe_agrees_with_pillow(encoding, mode, options):
    data = encode(photo(37, 21, mode), encoding, **options)
    seen = Image.open(io.BytesIO(data))
    assert probe(data)[:4] == [ENCODINGS[seen.format], *seen.size, MODES[mode]]
    assert probe(data)[4] == (1 if mode == "1" else 8)


@pytest.mark.parametrize(("encoding", "mode", "options"), IMAGES)
def test_probe_of_every_truncation(encoding, mode, options):
    data = encode(photo(9, 5, mode), encoding, **options)
    whole = probe(data)
    damaged = [whole[0], 0, 0, 0, 0]
    for size in range(12, len(data)):
        assert probe(data[:size]) in (whole, damaged)


def test_probe_many_runs_at_once():
    images = [encode(photo(5 + k, 9, "RGB"), name) for k, name in enumerate(["PNG", "JPEG", "WEBP"])]
    sizes = np.array([len(image) for image in images], np.int64)
    starts = np.cumsum(sizes) - sizes
    rows = _native.probe(u8(b"".join(images)), starts, sizes)
    assert rows.dtype == np.int32
    assert rows[:, 1].tolist() == [5, 6, 7]


def test_probe_gives_zeros_for_nothing():
    rows = _native.probe(u8(b"BM"), i64(0, 7, 0), i64(0, -1, 2))
    assert rows.tolist() == [[0] * 5, [0] * 5, [5, 0, 0, 0, 0]]
    assert _native.probe(u8(b""), i64(), i64()).shape == (0, 5)


def is_photo(data: bytes, width: int, height: int) -> bool:
    return bool(_native.device_decodable(u8(data), i64(0), i64(len(data)), np.array([[height, width]]))[0])


@pytest.mark.parametrize(
    ("wanted", "options"),
    [
        (True, {}), (True, {"subsampling": 0}), (True, {"subsampling": 1}), (True, {"subsampling": 2}),
        (True, {"optimize": True}), (True, {"restart_marker_blocks": 1}),
        (True, {"exif": b"Exif\0\0" + bytes(700), "comment": "x"}),
        (False, {"progressive": True}), (False, {"keep_rgb": True}),
    ],
)  # fmt: skip
def test_photos_are_jpegs_of_the_common_kind(wanted, options):
    data = jpeg(37, 21, **options)
    assert is_photo(data, 37, 21) is wanted
    assert not is_photo(data, 21, 37)
    # What follows the end, fills, or is missing before it, is for a decoder that knows what to make of it.
    assert not is_photo(data + b"\0", 37, 21)
    assert not is_photo(data[:2] + b"\xff" + data[2:], 37, 21)
    assert not any(is_photo(data[:size], 37, 21) for size in range(len(data)))


def test_other_images_are_no_photos():
    for mode in ("L", "CMYK"):
        assert not is_photo(jpeg(37, 21, mode), 37, 21)
    for encoding in ("PNG", "WEBP", "BMP"):
        assert not is_photo(encode(photo(37, 21, "RGB"), encoding), 37, 21)
    data = jpeg(37, 21)
    first = data.index(b"\xff\xc0") + 11
    for sampling in (0x12, 0x41, 0x14, 0x44, 0x00):
        assert not is_photo(data[:first] + bytes([sampling]) + data[first + 1 :], 37, 21)
    result = _native.device_decodable(u8(data), i64(0, 0, 0), i64(-1, 0, len(data)), np.array([[21, 37]] * 3))
    assert result.tolist() == [0, 0, 0x22]
    with pytest.raises(IndexError):
        _native.device_decodable(u8(data), i64(1), i64(len(data)), np.array([[21, 37]]))
    with pytest.raises(ValueError, match="shapes has 2"):
        _native.device_decodable(u8(data), i64(0), i64(len(data)), np.array([[21, 37]] * 2))


@pytest.mark.parametrize(
    ("ids", "adobe", "wanted"),
    [(b"RGB", None, False), (b"\1\2\3", None, True), (b"RGB", 1, True), (b"\1\2\3", 0, False)],
)
def test_photos_have_the_colours_of_libjpeg(ids, adobe, wanted):
    """Without JFIF's segment, Adobe's tells how colours are stored; without that, the components' names."""
    data = jpeg(37, 21, subsampling=0)
    frame, scan = data.index(b"\xff\xc0"), data.index(b"\xff\xda")
    head = bytearray(data[20:])
    for n in range(3):
        head[frame - 20 + 10 + 3 * n] = head[scan - 20 + 5 + 2 * n] = ids[n]
    mark = b"" if adobe is None else b"\xff\xee\0\x0eAdobe\0\x64\0\0\0\0" + bytes([adobe])
    changed = b"\xff\xd8" + mark + bytes(head)
    with Image.open(io.BytesIO(data)) as plain, Image.open(io.BytesIO(changed)) as seen:
        same = np.array_equal(np.asarray(plain), np.asarray(seen))
    assert is_photo(changed, 37, 21) is same is wanted


@given(st.data())
def test_damaged_photos(data):
    """Whatever is taken for a photo has the size that was asked for, in the first frame that there is."""
    encoded = bytearray(jpeg(37, 21))
    for _ in range(data.draw(st.integers(1, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    output = probe(bytes(encoded))
    if is_photo(bytes(encoded), output[1], output[2]):
        assert output[:1] + output[3:] == [ENCODINGS["JPEG"], MODES["RGB"], 8]
    assert not is_photo(bytes(encoded), output[1] + 1, output[2])


def test_probe_tiff_big_endian_with_values_elsewhere():
    # tag, type (3 short, 4 long), count, value or where the values are
    entries = [
        (256, 3, 1, 300 << 16),
        (257, 4, 1, 200),
        (258, 3, 3, 74),
        (262, 3, 1, 2 << 16),
        (277, 3, 1, 3 << 16),
    ]
    directory = struct.pack(">H", len(entries)) + b"".join(struct.pack(">HHII", *entry) for entry in entries)
    head = b"MM\0*" + struct.pack(">I", 8) + directory + struct.pack(">I", 0)
    assert len(head) == 74
    assert probe(head + struct.pack(">HHH", 16, 16, 16)) == [6, 300, 200, 3, 16]
    assert probe(head) == [6, 0, 0, 0, 0]


def test_probe_bmp_top_down_and_old_headers():
    top_down = b"BM" + bytes(12) + struct.pack("<IiiHH", 40, 8, -6, 1, 24)
    old = b"BM" + bytes(12) + struct.pack("<IHHHH", 12, 8, 6, 1, 8)
    assert probe(top_down) == [5, 8, 6, 3, 8]
    assert probe(old) == [5, 8, 6, 5, 8]
    assert probe(b"BM" + bytes(12) + struct.pack("<IiiHH", 40, -8, 6, 1, 24)) == [5, 0, 0, 0, 0]
    assert probe(b"BM" + bytes(12) + struct.pack("<IiiHH", 40, 8, -(2**31), 1, 24)) == [5, 0, 0, 0, 0]


MAGICS = [
    b"",
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"RIFF....WEBPVP8 ",
    b"RIFF....WEBPVP8L",
    b"RIFF....WEBPVP8X",
    b"GIF89a",
    b"BM",
    b"II*\0\x08\0\0\0",
    b"MM\0*\0\0\0\x08",
]


@given(
    st.sampled_from(MAGICS),
    st.binary(max_size=120),
)
def test_probe_of_any_bytes_is_a_sane_row(magic, rest):
    encoding, width, height, mode, bits = probe(magic + rest)
    assert 0 <= encoding <= 6
    assert 0 <= mode <= 7
    assert (width > 0 and height > 0) or (width, height, mode, bits) == (0, 0, 0, 0)


# --- JPEG decode --------------------------------------------------------------------------------------------


@given(
    st.integers(1, 70),
    st.integers(1, 70),
    st.sampled_from(["L", "RGB", "CMYK"]),
    st.integers(3, 100),
    st.booleans(),
    st.sampled_from([0, 1, 2]),
)
def test_jpeg_decode_equals_pillow(width, height, mode, quality, progressive, subsampling):
    options = {"subsampling": subsampling} if mode == "RGB" else {}
    data = jpeg(width, height, mode, quality=quality, progressive=progressive, **options)
    pixels = _native.jpeg_decode(data)
    assert pixels.dtype == np.uint8
    assert np.array_equal(pixels, pillow_pixels(data))


def test_jpeg_decode_modes():
    gray, colour = jpeg(mode="L"), jpeg(mode="RGB")
    assert np.array_equal(_native.jpeg_decode(gray, "RGB"), np.repeat(pillow_pixels(gray), 3, axis=2))
    assert np.array_equal(_native.jpeg_decode(gray, "L"), pillow_pixels(gray))
    drafted = Image.open(io.BytesIO(colour))
    drafted.draft("L", drafted.size)
    assert np.array_equal(_native.jpeg_decode(colour, "L")[..., 0], np.asarray(drafted))
    with pytest.raises(ValueError, match="mode must be None, 'L' or 'RGB', not 'HSV'"):
        _native.jpeg_decode(colour, "HSV")


@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_cmyk_only_as_stored(mode):
    with pytest.raises(ValueError, match=f"CMYK, which cannot be decoded as {mode}"):
        _native.jpeg_decode(jpeg(mode="CMYK"), mode)


def test_jpeg_pixels_outlive_their_source_and_are_writable():
    data = bytearray(jpeg())
    pixels = _native.jpeg_decode(data)
    before = pixels.copy()
    data[:] = bytes(len(data))
    assert np.array_equal(pixels, before)
    pixels[:] = 0


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_jpeg_every_truncation_is_refused(options):
    data = jpeg(quality=30, **options)
    for size in range(len(data) - 2):
        with pytest.raises(ValueError, match=r"bad JPEG: .+"):
            _native.jpeg_decode(data[:size])


@given(
    st.sampled_from([jpeg(), jpeg(mode="L"), jpeg(mode="CMYK"), jpeg(progressive=True)]),
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 255)), min_size=1, max_size=4),
    st.sampled_from([None, "L", "RGB"]),
)
def test_jpeg_flips_give_an_array_or_a_value_error(data, flips, mode):
    damaged = bytearray(data)
    for at, bits in flips:
        damaged[at % len(damaged)] ^= bits
    decode_or_none(bytes(damaged), mode)


@given(st.binary(max_size=300))
def test_jpeg_of_any_bytes(data):
    assert decode_or_none(b"\xff\xd8\xff" + data) is None


def with_size(data: bytes, width: int, height: int) -> bytes:
    frame = data.index(b"\xff\xc0")
    return data[: frame + 5] + struct.pack(">HH", height, width) + data[frame + 9 :]


def test_jpeg_header_that_lies_is_refused_before_memory_is_taken():
    data = jpeg()
    with pytest.raises(ValueError, match="claims 65500 x 65500 pixels, more than"):
        _native.jpeg_decode(with_size(data, 65500, 65500))
    with pytest.raises(ValueError, match=f"claims 9000 x 9000 pixels but has only {len(data)} bytes"):
        _native.jpeg_decode(with_size(data, 9000, 9000))


def test_jpeg_plain_colour_is_not_taken_for_a_lie():
    plain = Image.new("RGB", (3000, 2000), (10, 200, 30))
    for options in ({"optimize": True}, {"progressive": True, "optimize": True}):
        data = encode(plain, "JPEG", quality=20, **options)
        assert _native.jpeg_decode(data).shape == (2000, 3000, 3)


def test_jpeg_stray_bytes_before_a_marker_are_harmless():
    data = jpeg()
    tables = data.index(b"\xff\xdb")
    assert np.array_equal(_native.jpeg_decode(data[:tables] + bytes(9) + data[tables:]), pillow_pixels(data))


def test_jpeg_borrows_no_tables_from_the_image_before():
    data = jpeg()
    tables, frame = data.index(b"\xff\xdb"), data.index(b"\xff\xc0")
    without_tables = data[:tables] + data[frame:]
    _native.jpeg_decode(data)
    with pytest.raises(ValueError, match="bad JPEG"):
        _native.jpeg_decode(without_tables)


def many_scans(count: int) -> bytes:
    """A valid progressive JPEG of one gray block, each bit of each coefficient in a scan of its own."""

    def segment(marker: int, body: bytes) -> bytes:
        return struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body

    only_symbol_zero = bytes([1]) + bytes(15) + bytes([0])
    head = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64)
    head += segment(0xC2, struct.pack(">BHHB", 8, 8, 8, 1) + b"\1\x11\0")
    head += segment(0xC4, b"\x00" + only_symbol_zero) + segment(0xC4, b"\x10" + only_symbol_zero)
    levels = [(0, 13)] + [(high, high - 1) for high in range(13, 0, -1)]
    scans = [(k, high, low) for k in range(64) for high, low in levels]
    body = b"".join(
        segment(0xDA, b"\1\1\0" + bytes([k, k, high << 4 | low])) + b"\x7f" for k, high, low in scans[:count]
    )
    return head + body + b"\xff\xd9"


def test_jpeg_scans_are_limited():
    assert np.array_equal(_native.jpeg_decode(many_scans(400)), np.full((8, 8, 1), 128))
    with pytest.raises(ValueError, match="more than 500 scans"):
        _native.jpeg_decode(many_scans(600))


def test_jpeg_decode_from_many_threads_with_damage_between():
    good = [jpeg(20 + k, 30, seed=k) for k in range(8)]
    expected = [pillow_pixels(data) for data in good]

    def work(number: int) -> bool:
        for k in range(40):
            which = (number + k) % len(good)
            assert decode_or_none(good[which][: 100 + 17 * k]) is None
            if not np.array_equal(_native.jpeg_decode(good[which]), expected[which]):
                return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


# --- JPEG encode --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quality", [1, 50, 90, 100])
@pytest.mark.parametrize("mode", ["L", "RGB"])
def test_jpeg_encode_equals_pillow(mode, quality):
    image = photo(53, 38, mode)
    pixels = np.asarray(image).reshape(38, 53, -1)
    ours = pillow_pixels(_native.jpeg_encode(pixels, quality))
    options = {"subsampling": "4:2:0"} if mode == "RGB" else {}
    assert np.array_equal(ours, pillow_pixels(encode(image, "JPEG", quality=quality, **options)))


def test_jpeg_encode_large_image_grows_its_buffer():
    noise = np.random.default_rng(0).integers(0, 256, (400, 600, 3), dtype=np.uint8)
    data = _native.jpeg_encode(noise, quality=95)
    assert len(data) > 2 * 65536
    assert np.array_equal(_native.jpeg_decode(data), pillow_pixels(data))


@pytest.mark.parametrize(
    ("shape", "quality", "message"),
    [
        ((8, 8, 2), 90, "1 or 3 channels, not 2"),
        ((0, 8, 3), 90, "not 8 x 0"),
        ((1, 70000, 1), 90, "not 70000 x 1"),
        ((8, 8, 3), 0, "quality goes from 1 to 100, not 0"),
        ((8, 8, 3), 101, "quality"),
    ],
)
def test_jpeg_encode_refuses(shape, quality, message):
    with pytest.raises(ValueError, match=message):
        _native.jpeg_encode(np.zeros(shape, np.uint8), quality)


def test_jpeg_encode_refuses_wrong_arrays():
    for wrong in (np.zeros((8, 8), np.uint8), np.zeros((8, 8, 3)), np.zeros((8, 8, 4), np.uint8)[..., :3]):
        with pytest.raises(TypeError):
            _native.jpeg_encode(wrong)


# --- resize -------------------------------------------------------------------------------------------------


def golden_pairs() -> list[tuple[np.ndarray, np.ndarray]]:
    with np.load(GOLDEN / "resize_area.npz") as arrays:
        names = sorted(name for name in arrays if name.endswith("_pixels"))
        return [(arrays[name], arrays[name.replace("_pixels", "_resized")]) for name in names]


@pytest.mark.parametrize("number", range(12))
def test_resize_area_equals_opencv(number):
    pixels, expected = golden_pairs()[number]
    height, width, _ = expected.shape
    ours = _native.resize_area(pixels, width, height)
    difference = np.abs(ours.astype(int) - expected)
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.01


@given(st.integers(1, 40), st.integers(1, 40), st.integers(1, 6), st.integers(0, 255), st.data())
def test_resize_area_keeps_a_plain_colour(height, width, channels, level, data):
    pixels = np.full((height, width, channels), level, np.uint8)
    to_width, to_height = data.draw(st.integers(1, width)), data.draw(st.integers(1, height))
    resized = _native.resize_area(pixels, to_width, to_height)
    assert resized.shape == (to_height, to_width, channels)
    # Weights are rounded to floats and slivers are dropped, which may cost the top level.
    assert np.abs(resized.astype(int) - level).max() <= 1


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 5), st.integers(1, 9), st.integers(0, 99))
def test_resize_area_by_whole_ratios_is_the_mean(ratio_x, ratio_y, channels, size, seed):
    rng = np.random.default_rng(seed)
    pixels = rng.integers(0, 256, (size * ratio_y, size * ratio_x, channels), dtype=np.uint8)
    means = pixels.reshape(size, ratio_y, size, ratio_x, channels).mean(axis=(1, 3))
    assert np.abs(_native.resize_area(pixels, size, size) - means).max() <= 0.5


def test_resize_area_to_its_own_size_copies():
    pixels = np.asarray(photo(30, 20, "RGB"))
    assert np.array_equal(_native.resize_area(pixels, 30, 20), pixels)


def test_resize_area_of_a_long_strip_to_one_pixel():
    strip = np.tile(np.array([[[0], [255]]], np.uint8), (1, 50_000, 1))
    assert _native.resize_area(strip, 1, 1)[0, 0, 0] in (127, 128)
    assert _native.resize_area(strip.reshape(-1, 1, 1), 1, 1)[0, 0, 0] in (127, 128)


@pytest.mark.parametrize(("width", "height"), [(0, 1), (1, 0), (-1, 1), (31, 20), (30, 21), (HUGE, 1)])
def test_resize_area_only_shrinks(width, height):
    with pytest.raises(ValueError, match="cannot shrink 30 x 20 pixels to"):
        _native.resize_area(np.zeros((20, 30, 3), np.uint8), width, height)


def test_resize_area_without_channels():
    with pytest.raises(ValueError, match="without channels"):
        _native.resize_area(np.zeros((4, 4, 0), np.uint8), 2, 2)


def test_resize_area_from_many_threads():
    pixels = np.asarray(photo(211, 173, "RGB"))
    expected = _native.resize_area(pixels, 100, 80)
    with ThreadPoolExecutor(8) as pool:
        results = pool.map(lambda _: _native.resize_area(pixels, 100, 80), range(64))
    assert all(np.array_equal(result, expected) for result in results)


# --- features -----------------------------------------------------------------------------------------------


def test_features_name_what_is_used():
    features = _native.features()
    assert features["crc32"] in ("libdeflate", "slicing-by-8")
    assert features["crc32c"] in ("sse4.2", "armv8", "slicing-by-8")
    assert features["jpeg"].startswith("libjpeg")
    assert features["png"] == "none" or features["png"].startswith("libdeflate ")
    assert features["webp"] == "none" or features["webp"].startswith("libwebp ")
    first, *_, last = _native.kernel_sets()
    assert (features["pixels"], last) == (first, "portable")
