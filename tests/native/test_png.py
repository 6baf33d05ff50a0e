"""PNG and WebP without the interpreter: the same pixels as Pillow's, through the function and the engine."""

import io
import itertools
import struct
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image, ImageOps

from batchplant import _native

FEATURES = _native.features()
pytestmark = pytest.mark.skipif(
    "none" in (FEATURES["png"], FEATURES["webp"]), reason="built without the libraries"
)

OK, FAILED, NOT_NATIVE = 0, 1, 2
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))
CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
KINDS = [(0, 1), (0, 2), (0, 4), (0, 8), (2, 8), (3, 1), (3, 2), (3, 4), (3, 8), (4, 8), (6, 8)]
SIGNATURE = b"\x89PNG\r\n\x1a\n"

# --- helpers ------------------------------------------------------------------------------------------------


def chunk(kind: bytes, data: bytes = b"") -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def header(width, height, bits, colour, lace=0) -> bytes:
    return chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, lace))


def rows_of(width, height, bits, colour, lace, seed=0, filters=(0, 1, 2, 3, 4)) -> bytes:
    """Rows before they are packed: random bytes are pixels under every filter."""
    rng = np.random.default_rng(seed)
    rows, number = b"", itertools.cycle(filters)
    for x0, y0, dx, dy in ADAM7 if lace else ((0, 0, 1, 1),):
        columns = len(range(x0, width, dx))
        size = (columns * CHANNELS[colour] * bits + 7) // 8
        for _ in range(len(range(y0, height, dy)) if columns else 0):
            rows += bytes([next(number)]) + rng.integers(0, 256, size, dtype=np.uint8).tobytes()
    return rows


def png(width, height, bits, colour, lace=0, *, more=(), parts=1, rows=None, **options) -> bytes:
    rows = rows_of(width, height, bits, colour, lace, **options) if rows is None else rows
    packed = zlib.compress(rows)
    cuts = [len(packed) * n // parts for n in range(parts + 1)]
    pieces = [SIGNATURE, header(width, height, bits, colour, lace)]
    if colour == 3 and not any(kind == b"PLTE" for kind, _ in more):
        pieces.append(chunk(b"PLTE", np.random.default_rng(1).bytes(3 << bits)))
    pieces += [chunk(*item) for item in more]
    pieces += [chunk(b"IDAT", packed[a:b]) for a, b in itertools.pairwise(cuts)]
    return b"".join([*pieces, chunk(b"IEND")])


def by_pillow(data: bytes, mode: str | None = None) -> np.ndarray:
    image = Image.open(io.BytesIO(data))
    image.load()
    if image.mode == "P" and mode != "P":
        image = image.convert("RGBA" if "transparency" in image.info else "RGB")
    elif image.mode == "1":
        image = image.convert("L")
    if mode not in (None, "P", image.mode):
        image = image.convert(mode)
    pixels = np.asarray(image)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


def run(engine, data, size, channels, box=(0, 0, 0, 0), filter="bilinear", shape=None, flip=False, **options):
    """Status, error and pixels of one image."""
    out = np.full((1, *size, channels), 77, np.uint8)
    status, errors, _ = engine.decode(
        [np.frombuffer(data, np.uint8)], np.zeros(1, np.int32), np.zeros(1, np.int64),
        np.array([len(data)], np.int64), None if shape is None else np.array([shape], np.int32),
        np.array([box], np.float64), np.array([flip]), out, layout="nhwc", filter=filter, **options,
    )  # fmt: skip
    return status[0], dict(errors).get(0), out[0]


@pytest.fixture(scope="module")
def engine():
    result = _native.Engine(2)
    yield result
    result.close()


def saved(pixels, encoding="PNG", **options) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, encoding, **options)
    return out.getvalue()


def photo(width, height, channels=3, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [128 + 90 * np.sin(x / (5 + k)) * np.cos(y / (7 - k)) for k in range(channels)]
    return np.clip(np.stack(planes, -1) + rng.normal(0, 9, (height, width, channels)), 0, 255).astype(
        np.uint8
    )


# --- PNG: the pixels ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("lace", [0, 1])
@pytest.mark.parametrize(("colour", "bits"), KINDS)
def test_every_kind_gives_the_pixels_of_pillow(colour, bits, lace):
    for width, height in ((1, 1), (2, 1), (1, 7), (3, 3), (5, 9), (8, 8), (33, 17)):
        data = png(width, height, bits, colour, lace, parts=3)
        assert np.array_equal(_native.png_decode(data), by_pillow(data)), (width, height)


@pytest.mark.parametrize("kind", range(5))
@pytest.mark.parametrize("colour", [0, 2, 4, 6])
def test_every_filter(colour, kind):
    data = png(19, 40, 8, colour, filters=(kind,))
    assert np.array_equal(_native.png_decode(data), by_pillow(data))


def test_the_filter_that_compares_neighbours_for_all_values():
    """Images of two by two: corner, above; left, and the zero that stands for what the filter chose."""
    left, above, corner = (axis.ravel() for axis in np.mgrid[0:256:7, 0:256:3, 0:256:5].astype(np.uint8))
    guess = left.astype(int) + above - corner
    distances = np.abs(guess - np.stack([left, above, corner]))
    want = np.choose(np.argmin(distances, axis=0), [left, above, corner])
    # All below each other in one.
    rows = np.zeros((len(left), 2, 3), np.uint8)
    rows[:, 0, 1:] = np.stack([corner, above], axis=1)
    rows[:, 1, 0] = 4
    # The first of a row has only what is above it.
    rows[:, 1, 1] = left - corner
    result = _native.png_decode(png(2, 2 * len(rows), 8, 0, rows=rows.tobytes()))
    assert np.array_equal(result.reshape(-1, 2, 2)[:, 1], np.stack([left, want], axis=1))


@pytest.mark.parametrize("parts", [1, 2, 7, 400])
def test_pixels_may_come_in_parts(parts):
    data = png(33, 17, 8, 2, parts=parts)
    assert np.array_equal(_native.png_decode(data), by_pillow(data))


@pytest.mark.parametrize("alphas", [b"", b"\0", b"\xff\0\xff", b"\x05\xff\x80", bytes(range(16))])
def test_a_palette_with_alpha(alphas):
    for bits in (4, 8):
        data = png(13, 9, bits, 3, more=[(b"PLTE", bytes(range(48))), (b"tRNS", alphas)])
        assert np.array_equal(_native.png_decode(data), by_pillow(data))
        assert _native.png_decode(data).shape[2] == 4
        assert _native.png_decode(data, "RGB") is None
        assert np.array_equal(_native.png_decode(data, "P"), by_pillow(data, "P"))


def test_indices_behind_the_palette_are_black():
    data = png(16, 1, 8, 3, more=[(b"PLTE", b"\1\2\3")], rows=b"\0" + bytes(range(16)))
    assert np.array_equal(_native.png_decode(data), by_pillow(data))
    assert _native.png_decode(data)[0, :2].tolist() == [[1, 2, 3], [0, 0, 0]]


@pytest.mark.parametrize(("colour", "bits"), KINDS)
@pytest.mark.parametrize("mode", ["L", "LA", "RGB", "RGBA", "P", "CMYK", "1"])
def test_a_mode_is_had_only_where_nothing_is_lost(colour, bits, mode):
    data = png(9, 5, bits, colour)
    natural = {0: "L", 2: "RGB", 3: "RGB", 4: "LA", 6: "RGBA"}[colour]
    exact = {("L", "LA"), ("L", "RGB"), ("L", "RGBA"), ("LA", "RGBA"), ("RGB", "RGBA")}
    result = _native.png_decode(data, mode)
    if mode == natural or (natural, mode) in exact or (mode == "P" and colour in (0, 3)):
        assert np.array_equal(result, by_pillow(data, mode))
    else:
        assert result is None


@pytest.mark.parametrize(("colour", "bits"), [(0, 1), (0, 8), (2, 8)])
def test_a_transparent_colour_is_kept_from_modes_with_alpha(colour, bits):
    data = png(9, 5, bits, colour, more=[(b"tRNS", b"\0\1" * CHANNELS[colour])])
    natural = "L" if colour == 0 else "RGB"
    assert np.array_equal(_native.png_decode(data, natural), by_pillow(data))
    assert np.array_equal(_native.png_decode(data), by_pillow(data))
    assert _native.png_decode(data, "RGBA") is None


@given(
    kind=st.sampled_from(KINDS), width=st.integers(1, 40), height=st.integers(1, 40), lace=st.integers(0, 1),
    parts=st.integers(1, 4), filters=st.lists(st.integers(0, 4), min_size=1, max_size=5),
    seed=st.integers(0, 9),
)  # fmt: skip
def test_any_image(kind, width, height, lace, parts, filters, seed):
    data = png(width, height, kind[1], kind[0], lace, parts=parts, filters=tuple(filters), seed=seed)
    assert np.array_equal(_native.png_decode(data), by_pillow(data))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA"])
@pytest.mark.parametrize("options", [{}, {"optimize": True}, {"compress_level": 0}])
def test_what_pillow_writes(mode, options):
    image = Image.fromarray(photo(61, 47, 4)).convert("RGB" if mode == "P" else "RGBA").convert(mode)
    out = io.BytesIO()
    image.save(out, "PNG", **options)
    assert np.array_equal(_native.png_decode(out.getvalue()), by_pillow(out.getvalue()))


# --- PNG: what it leaves to others --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        png(4, 4, 8, 2, more=[(b"acTL", struct.pack(">II", 1, 0))]),
        png(4, 4, 8, 2, more=[(b"CgBI", b"\0\0\0\0")]),
        png(4, 4, 8, 6, more=[(b"tRNS", b"\0\1")]),
        png(4, 4, 8, 3, more=[(b"PLTE", b"\1\2\3\4")]),
        png(4, 4, 8, 0, rows=bytes(4 * 5 + 1)),
        saved(np.full((3, 3), 300, np.uint16)),
    ],
    ids=["animated", "unknown", "alpha twice", "odd palette", "too many rows", "16 bits"],
)
def test_odd_ones_are_left_to_others(engine, data):
    assert _native.png_decode(data) is None
    assert run(engine, data, (4, 4), 3)[0] == NOT_NATIVE


def test_chunks_between_the_pixels_are_left_to_others():
    data = png(9, 9, 8, 2, parts=2)
    at = data.rindex(b"IDAT") - 4
    assert _native.png_decode(data[:at] + chunk(b"tEXt", b"a\0b") + data[at:]) is None


# --- PNG: only the rows that are needed ---------------------------------------------------------------------


@pytest.mark.parametrize(("colour", "bits"), KINDS)
def test_the_upper_rows_of_every_kind(engine, colour, bits):
    data = png(37, 29, bits, colour)
    whole = _native.png_decode(data)
    for bottom in (1, 13, 28):
        status, _, result = run(engine, data, (bottom, 37), whole.shape[2], (0, 0, 37, bottom), "nearest")
        assert status == OK
        assert np.array_equal(result, whole[:bottom])


def test_damage_below_the_box_is_noticed_except_for_a_wrong_filter(engine):
    rows = rows_of(20, 40, 8, 2, 0)
    packed = zlib.compress(rows)

    def top(packed: bytes) -> tuple[int, str | None, np.ndarray]:
        data = SIGNATURE + header(20, 40, 8, 2) + chunk(b"IDAT", packed) + chunk(b"IEND")
        return run(engine, data, (10, 20), 3, (0, 0, 20, 10), "nearest")

    expected = top(packed)[2]
    status, error, pixels = top(zlib.compress(rows[:-61] + b"\x09" * 61))
    assert (status, error) == (OK, None)
    assert np.array_equal(pixels, expected)
    wrong_checksum = packed[:-1] + bytes([packed[-1] ^ 1])
    for damaged in (packed[:-20], zlib.compress(rows[: 20 * 61]), wrong_checksum, b"\x79" + packed[1:], b""):
        status, error, pixels = top(damaged)
        assert status == FAILED
        assert error.startswith("PNG: ")
        assert not pixels.any()
    assert top(zlib.compress(rows + b"more"))[0] == NOT_NATIVE


# --- PNG: damage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lace", [0, 1])
def test_every_truncation_is_refused(engine, lace):
    data = png(9, 7, 8, 3, lace, parts=2, more=[(b"PLTE", bytes(range(60))), (b"tRNS", b"\7")])
    for size in range(len(data)):
        with pytest.raises(ValueError, match="PNG: "):
            _native.png_decode(data[:size])
    for size in range(8, len(data)):
        status, error, pixels = run(engine, data[:size], (4, 4), 4)
        assert status == FAILED
        assert error.startswith("PNG: ")
        assert not pixels.any()


def test_no_flipped_bit_goes_unnoticed():
    """Every byte but a few of the header stands under a checksum."""
    data = png(9, 7, 8, 2, parts=2)
    good = _native.png_decode(data)
    for at in range(8, len(data)):
        for bit in (0, 5, 7):
            flipped = bytearray(data)
            flipped[at] ^= 1 << bit
            try:
                result = _native.png_decode(bytes(flipped))
            except ValueError:
                continue
            assert result is None or np.array_equal(result, good)


def bad(**changes) -> bytes:
    fields = {
        "width": 4,
        "height": 4,
        "bits": 8,
        "colour": 2,
        "packing": 0,
        "filtering": 0,
        "lace": 0,
    } | changes
    return SIGNATURE + chunk(b"IHDR", struct.pack(">IIBBBBB", *fields.values()))


REST = chunk(b"IDAT", zlib.compress(rows_of(4, 4, 8, 2, 0))) + chunk(b"IEND")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no image",
        SIGNATURE,
        SIGNATURE + chunk(b"IEND"),
        SIGNATURE + chunk(b"tEXt", b"a\0b") + bad()[8:] + REST,
        bad() + chunk(b"IEND"),
        bad() + bad()[8:] + REST,
        bad(width=0) + REST,
        bad(width=1 << 31) + REST,
        bad(bits=3) + REST,
        bad(bits=4) + REST,
        bad(bits=255) + REST,
        bad(colour=1) + REST,
        bad(colour=5) + REST,
        bad(colour=200) + REST,
        bad(colour=3) + REST,
        bad(packing=1) + REST,
        bad(filtering=1) + REST,
        bad(lace=2) + REST,
        bad() + chunk(b"IDAT", b"nothing packed") + chunk(b"IEND"),
        bad() + chunk(b"IDAT", b"") + chunk(b"IEND"),
        bad() + chunk(b"IDAT", zlib.compress(bytes(12))) + chunk(b"IEND"),
        bad() + chunk(b"IDAT", zlib.compress(rows_of(4, 4, 8, 2, 0))[:-1]) + chunk(b"IEND"),
        bad() + chunk(b"IDAT", zlib.compress(b"\5" * 52)) + chunk(b"IEND"),
        bad() + b"\xff\xff\xff\xffIDAT" + bytes(40),
        bad() + b"\0\0\0\1I1AT" + bytes(40),
    ],
)
def test_damage_is_said(engine, data):
    with pytest.raises(ValueError, match="PNG: "):
        _native.png_decode(data)
    assert run(engine, data, (4, 4), 3)[0] == (
        FAILED if data.startswith(SIGNATURE) else FAILED if not data else NOT_NATIVE
    )


def test_bombs_are_refused_before_memory_is_taken():
    data = png(4, 4, 8, 2)
    lying = SIGNATURE + header(1 << 20, 1 << 20, 8, 2) + data[33:]
    with pytest.raises(ValueError, match="the limit is 268435456"):
        _native.png_decode(lying)
    with pytest.raises(ValueError, match="cannot hold"):
        _native.png_decode(lying, most_pixels=1 << 62)
    with pytest.raises(ValueError, match="cannot hold"):
        _native.png_decode(SIGNATURE + header(1 << 14, 1 << 14, 1, 0, 1) + data[33:])
    with pytest.raises(ValueError, match="the limit is 15"):
        _native.png_decode(data, most_pixels=15)
    assert _native.png_decode(data, most_pixels=16).shape == (4, 4, 3)


# --- the engine ---------------------------------------------------------------------------------------------

BOXES = [(0, 0, 0, 0), (3, 5, 30, 20), (10.5, 0.25, 40.75, 11), (0, 30, 45, 31), (44, 0, 45, 1)]


@pytest.mark.parametrize("filter", ["nearest", "area", "bilinear", "bicubic"])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("encoding", ["PNG", "lossless", "lossy"])
def test_the_engine_equals_decoding_first(engine, encoding, channels, filter):
    if encoding != "PNG" and channels < 3:
        pytest.skip("WebP has colours")
    pixels = photo(45, 31, channels)
    options = {"lossless": encoding == "lossless", "quality": 70, "exact": True}
    image = pixels[:, :, 0] if channels == 1 else pixels
    data = saved(image) if encoding == "PNG" else saved(image, "WEBP", **options)
    decoded = by_pillow(data)
    assert decoded.shape[2] == channels
    for box, size, flip in itertools.product(BOXES, ((7, 9), (31, 45), (50, 60)), (False, True)):
        status, error, result = run(engine, data, size, channels, box, filter, flip=flip)
        assert (status, error) == (OK, None)
        raw = run(engine, decoded.tobytes(), size, channels, box, filter, decoded.shape, flip)[2]
        assert np.array_equal(result, raw), (box, size, flip)


@pytest.mark.parametrize("colour", [0, 3, 4, 2])
def test_the_engine_converts_where_nothing_is_lost(engine, colour):
    data = png(9, 7, 8, colour)
    for channels, mode in ((1, "L"), (2, "LA"), (3, "RGB"), (4, "RGBA"), (4, "CMYK"), (1, "P")):
        want = _native.png_decode(data, mode)
        status, _, result = run(engine, data, (7, 9), channels, mode=mode)
        assert status == (NOT_NATIVE if want is None else OK)
        assert want is None or np.array_equal(result, want)


@pytest.mark.parametrize("filter", ["nearest", "area", "bicubic"])
@pytest.mark.parametrize("encoding", ["PNG", "WEBP", "JPEG"])
def test_images_are_turned_before_the_box(engine, encoding, filter):
    data = saved(photo(45, 31), encoding, **({} if encoding == "PNG" else {"quality": 90}))
    pixels = _native.jpeg_decode(data) if encoding == "JPEG" else by_pillow(data)
    for orientation in range(1, 9):
        image = Image.fromarray(pixels)
        image.getexif()[0x0112] = orientation
        turned = np.asarray(ImageOps.exif_transpose(image))
        for box in ((0, 0, 0, 0), (3, 5, 20, 21), (7.5, 2.25, 29, 30.5)):
            # What is turned is not shrunk first.
            options = {"orient": np.array([orientation], np.uint8), "fast_scale": orientation > 1}
            result = run(engine, data, (9, 11), 3, box, filter, **options)[2]
            want = run(engine, turned.tobytes(), (9, 11), 3, box, filter, turned.shape)[2]
            assert np.array_equal(result, want), (orientation, box)


@pytest.mark.parametrize("encoding", ["PNG", "WEBP", "JPEG"])
def test_the_limit_of_pixels(engine, encoding):
    data = saved(photo(20, 10), encoding)
    assert run(engine, data, (5, 5), 3, most_pixels=200)[0] == OK
    status, error, _ = run(engine, data, (5, 5), 3, most_pixels=199)
    assert status == FAILED
    assert error == "the image has 20 x 10 pixels, and the limit is 199; raise it with BATCHPLANT_MAX_PIXELS"


def test_images_of_all_sizes_and_kinds_through_the_same_threads(engine):
    """Scratch memory is kept from image to image; none sees the one before it."""
    cells = [png(1 + 7 * n % 40, 1 + 11 * n % 30, bits, colour, n % 2, seed=n)
             for n, (colour, bits) in enumerate(KINDS * 3)]  # fmt: skip
    with ThreadPoolExecutor(4) as pool:
        for data, item in zip(cells, pool.map(lambda item: run(engine, item, (5, 6), 4), cells), strict=True):
            decoded = _native.png_decode(data, "RGBA")
            assert item[0] == OK
            assert np.array_equal(item[2], run(engine, decoded.tobytes(), (5, 6), 4, shape=decoded.shape)[2])


# --- WebP ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 30}, {"quality": 95}])
def test_webp_gives_the_pixels_of_pillow(channels, options):
    for width, height in ((1, 1), (16, 16), (45, 31), (130, 99)):
        data = saved(photo(width, height, channels), "WEBP", **options)
        assert np.array_equal(_native.webp_decode(data), by_pillow(data))
        assert np.array_equal(_native.webp_decode(data, "RGBA"), by_pillow(data, "RGBA"))
        assert _native.webp_decode(data, "L") is None
    assert (_native.webp_decode(data, "RGB") is None) == (channels == 4)


def test_animations_are_left_to_others(engine):
    frames = [Image.fromarray(photo(20, 10, seed=n)) for n in range(2)]
    out = io.BytesIO()
    frames[0].save(out, "WEBP", save_all=True, append_images=frames[1:])
    assert _native.webp_decode(out.getvalue()) is None
    assert run(engine, out.getvalue(), (5, 5), 3)[0] == NOT_NATIVE


@pytest.mark.parametrize("options", [{"lossless": True}, {"quality": 50}])
def test_truncated_webp_is_refused(engine, options):
    data = saved(photo(24, 17, 4), "WEBP", **options)
    for size in range(12, len(data) - 1):
        status, error, pixels = run(engine, data[:size], (4, 4), 4)
        assert status == FAILED
        assert error.startswith("WebP: ")
        assert not pixels.any()
    with pytest.raises(ValueError, match="the limit is 100;"):
        _native.webp_decode(data, most_pixels=100)


def test_flipped_webp_never_crashes():
    for options in ({"lossless": True}, {"quality": 50}):
        data = saved(photo(24, 17, 4), "WEBP", **options)
        rng = np.random.default_rng(0)
        for _ in range(400):
            flipped = bytearray(data)
            flipped[rng.integers(len(data))] ^= 1 << rng.integers(8)
            try:
                result = _native.webp_decode(bytes(flipped))
            except ValueError:
                continue
            assert result is None or result.dtype == np.uint8
