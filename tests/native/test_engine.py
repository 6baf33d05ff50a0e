"""The engine: images to batches, against Pillow, NumPy, OpenCV's recorded results, and damaged data."""

import contextlib
import io
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import psutil
import pytest
from PIL import Image

from batchplant import _native
from processes import PATIENCE, in_fork
from repository import GOLDEN

HUGE = 2**63 - 1
OK, FAILED, NOT_NATIVE = 0, 1, 2
PILLOW = {name: Image.Resampling[name.upper()] for name in ("bilinear", "bicubic", "nearest")}

# What test_every_machine_computes_the_same_bytes gave where it was written, with NEON, AVX2 and neither.
EVERY_MACHINE = 2930304980

# --- helpers ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine():
    result = _native.Engine(2)
    yield result
    result.close()


@pytest.fixture(scope="module", params=_native.kernel_sets()[1:])
def other(request):
    """Loops over pixels that this machine can run and does not use."""
    engine = _native.Engine(1, _kernels=request.param)
    yield engine
    engine.close()


def photo(width: int, height: int, seed: int = 0) -> np.ndarray:
    """Smooth shapes with some noise: not trivial for an encoder, not incompressible either."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:height, :width]
    planes = [128 + 90 * np.sin(x / (5 + k)) * np.cos(y / (7 - k)) for k in range(3)]
    return np.clip(np.stack(planes, -1) + rng.normal(0, 25, (height, width, 3)), 0, 255).astype(np.uint8)


def noise(height: int, width: int, channels: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)


def jpeg(width: int = 40, height: int = 30, seed: int = 0, mode: str = "RGB", **options: object) -> bytes:
    image = Image.fromarray(photo(width, height, seed)).convert(mode)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **({"quality": 85} | options))
    return buffer.getvalue()


def tall_subsampling(data: bytes) -> bytes:
    """4:2:2 made 4:4:0 by exchanging the factors, and the sides so that the number of blocks stays."""
    at = next(data.index(marker) for marker in (b"\xff\xc0", b"\xff\xc2") if marker in data)
    assert data[at + 11] == 0x21
    height, width = data[at + 5 : at + 7], data[at + 7 : at + 9]
    return data[: at + 5] + width + height + data[at + 9 : at + 11] + b"\x12" + data[at + 12 :]


@dataclass
class Request:
    data: bytes
    shape: tuple[int, int, int] = (0, 0, 0)
    box: tuple[float, float, float, float] = (0, 0, 0, 0)
    flip: bool = False


def raw(pixels: np.ndarray, box: tuple[float, ...] = (0, 0, 0, 0), flip: bool = False) -> Request:
    return Request(pixels.tobytes(), pixels.shape, box, flip)


@dataclass
class Result:
    pixels: np.ndarray
    status: list[int]
    errors: dict[int, str] = field(default_factory=dict)
    warnings: int = 0


def decode(
    engine, images, size, channels=3, *, dtype=np.uint8, layout="nhwc", filter="area", **options
) -> Result:
    """Decode images to height and width `size`; an array that starts as 77s shows what was written."""
    height, width = size
    count = len(images)
    shape = (count, height, width, channels) if layout == "nhwc" else (count, channels, height, width)
    out = np.full(shape, 77, dtype)
    sizes = np.array([len(image.data) for image in images], np.int64)
    status, errors, warnings = engine.decode(
        [np.frombuffer(b"".join(image.data for image in images), np.uint8)],
        np.zeros(count, np.int32),
        np.cumsum(sizes) - sizes,
        sizes,
        np.array([image.shape for image in images], np.int32).reshape(-1, 3),
        np.array([image.box for image in images], np.float64).reshape(-1, 4),
        np.array([image.flip for image in images], bool),
        out,
        layout=layout,
        filter=filter,
        **options,
    )
    assert status.dtype == np.int32
    return Result(out, status.tolist(), dict(errors), warnings)


def decode_one(engine, image, size, channels=3, **options) -> np.ndarray:
    result = decode(engine, [image], size, channels, **options)
    assert result.status == [OK], result.errors
    return result.pixels[0]


# --- parts of JPEGs -----------------------------------------------------------------------------------------

SUBSAMPLINGS = ["4:4:4", "4:2:2", "4:2:0", "4:4:0", "4:1:1", "gray"]


def subsampled(kind: str, width: int, height: int, seed: int, **options: object) -> bytes:
    if kind == "gray":
        return jpeg(width, height, seed, "L", **options)
    if kind == "4:4:0":
        return tall_subsampling(jpeg(height, width, seed, subsampling="4:2:2", **options))
    return jpeg(width, height, seed, subsampling=kind, **options)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("kind", SUBSAMPLINGS)
def test_a_part_of_a_jpeg_equals_that_part_of_the_whole(engine, kind, progressive):
    rng = np.random.default_rng(SUBSAMPLINGS.index(kind))
    for seed in range(40):
        width, height = (int(side) for side in rng.integers(1, 110, 2)) if seed else (1, 1)
        restarts = {"restart_marker_blocks": int(rng.integers(1, 9))} if seed % 3 == 0 else {}
        data = subsampled(kind, width, height, seed, progressive=progressive, **restarts)
        for mode, channels in (("L", 1), ("RGB", 3)):
            whole = _native.jpeg_decode(data, mode)
            assert whole.shape == (height, width, channels)
            for _ in range(8):
                x0, y0 = int(rng.integers(width)), int(rng.integers(height))
                x1, y1 = int(rng.integers(x0 + 1, width + 1)), int(rng.integers(y0 + 1, height + 1))
                part = decode_one(engine, Request(data, box=(x0, y0, x1, y1)), (y1 - y0, x1 - x0), channels)
                assert np.array_equal(part, whole[y0:y1, x0:x1]), (seed, width, height, (x0, y0, x1, y1))


def test_a_part_of_a_progressive_jpeg_that_lacks_scans_equals_that_part_of_the_whole(engine):
    data = jpeg(90, 70, progressive=True)
    scans = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    assert len(scans) > 4
    cut = data[: scans[2]] + b"\xff\xd9"
    whole = _native.jpeg_decode(cut, "RGB")
    part = decode_one(engine, Request(cut, box=(21, 13, 64, 51)), (38, 43))
    assert np.array_equal(part, whole[13:51, 21:64])


def test_a_jpeg_without_tables_borrows_none(engine):
    good = jpeg(seed=1, optimize=True)
    tables, frame = good.index(b"\xff\xdb"), good.index(b"\xff\xc0")
    without = good[:tables] + good[frame:]
    one = _native.Engine(1)
    result = decode(one, [Request(good), Request(without), Request(good)], (30, 40))
    assert result.status == [OK, FAILED, OK]
    assert np.array_equal(result.pixels[0], result.pixels[2])
    # Standard Huffman tables may be left out, as in Motion JPEG: that too must not depend on the one before.
    plain = jpeg(seed=2)
    table = plain.index(b"\xff\xc4")
    abbreviated = plain[:table] + plain[plain.index(b"\xff\xda") :]
    fresh = decode(_native.Engine(1), [Request(abbreviated)], (30, 40))
    after = decode(one, [Request(good), Request(abbreviated)], (30, 40))
    assert after.status[1] == fresh.status[0]
    assert np.array_equal(after.pixels[1], fresh.pixels[0])


def test_fast_dct_and_fast_scale_stay_near(engine):
    y, x = np.mgrid[:400, :512]
    smooth = np.stack([128 + 100 * np.sin(x / (9 + k)) * np.cos(y / (11 - k)) for k in range(3)], -1)
    buffer = io.BytesIO()
    Image.fromarray(smooth.astype(np.uint8)).save(buffer, "JPEG", quality=92)
    data = buffer.getvalue()
    box = (8.0, 5.0, 500.0, 390.0)
    exact = decode_one(engine, Request(data, box=box), (96, 120)).astype(int)
    fast = decode_one(engine, Request(data, box=box), (96, 120), dct="fast").astype(int)
    scaled = decode_one(engine, Request(data, box=box), (96, 120), fast_scale=True).astype(int)
    assert 0 < np.abs(fast - exact).mean() < 1
    assert 0 < np.abs(scaled - exact).mean() < 2
    # Too small to be shrunk: the switch changes nothing.
    small = (0.0, 0.0, 200.0, 180.0)
    plain = decode_one(engine, Request(data, box=small), (96, 120))
    assert np.array_equal(plain, decode_one(engine, Request(data, box=small), (96, 120), fast_scale=True))


# --- resampling ---------------------------------------------------------------------------------------------


def random_case(rng, number):
    height, width, out_height, out_width = (int(side) for side in rng.integers(1, 80, 4))
    channels = int(rng.choice([1, 3, 4, 3]))
    x0, y0 = rng.uniform(0, 0.6 * width), rng.uniform(0, 0.6 * height)
    box = [x0, y0, rng.uniform(x0 + 0.3, width), rng.uniform(y0 + 0.3, height)]
    if number % 3 == 0:
        box = [int(box[0]), int(box[1]), int(np.ceil(box[2])), int(np.ceil(box[3]))]
    elif number % 7 == 0:
        box = [0, 0, width, height]
    box = [*box[:2], min(box[2], width), min(box[3], height)]
    return noise(height, width, channels, number), tuple(box), (out_height, out_width), bool(number % 2)


def pillow_resized(pixels, box, size, filter):
    (height, width, channels), (out_height, out_width) = pixels.shape, size
    image = Image.fromarray(pixels[..., 0]) if channels == 1 else Image.frombytes(
        {3: "RGB", 4: "RGBX"}[channels], (width, height), pixels.tobytes()
    )  # fmt: skip
    x0, y0, x1, y1 = box
    if filter == "nearest":
        image = image.resize((out_width, out_height), PILLOW[filter], box=box)
    else:
        # Some versions turn to the vertical pass first where that is cheaper; in two steps all agree.
        image = image.resize((out_width, height), PILLOW[filter], box=(x0, 0, x1, height))
        image = image.resize((out_width, out_height), PILLOW[filter], box=(0, y0, out_width, y1))
    return np.asarray(image).reshape(out_height, out_width, channels)


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "nearest"])
def test_resampling_equals_pillow(engine, other, filter):
    rng = np.random.default_rng(7)
    values = equal = 0
    for number in range(400):
        pixels, box, size, flip = random_case(rng, number)
        image, channels = raw(pixels, box, flip), pixels.shape[2]
        ours = decode_one(engine, image, size, channels, filter=filter)
        expected = pillow_resized(pixels, box, size, filter)
        expected = expected[:, ::-1] if flip else expected
        difference = np.abs(ours.astype(int) - expected)
        assert difference.max() <= 1, (number, pixels.shape, box, size)
        values, equal = values + difference.size, equal + np.count_nonzero(difference == 0)
        assert np.array_equal(ours, decode_one(other, image, size, channels, filter=filter))
    # All of them where it was written; the last bit of a weight may depend on the compiler of either side.
    assert equal / values > 0.999


@pytest.mark.parametrize("number", range(12))
def test_area_equals_opencv(engine, other, number):
    with np.load(GOLDEN / "engine_area.npz") as arrays:
        pixels, box, expected = (arrays[f"{number:02}_{name}"] for name in ("pixels", "box", "resized"))
    size, channels = expected.shape[:2], expected.shape[2]
    for flip in (False, True):
        image = raw(pixels, tuple(box), flip)
        ours = decode_one(engine, image, size, channels)
        difference = np.abs(ours.astype(int) - (expected[:, ::-1] if flip else expected))
        grows = box[2] - box[0] < size[1] or box[3] - box[1] < size[0]
        assert difference.max() <= (0 if grows else 1)
        assert (difference > 0).mean() <= 0.05
        assert np.array_equal(ours, decode_one(other, image, size, channels))


def test_area_agrees_with_the_writers_shrinking(engine):
    rng = np.random.default_rng(3)
    for number in range(60):
        width, height = (int(side) for side in rng.integers(2, 90, 2))
        to_width, to_height = int(rng.integers(1, width + 1)), int(rng.integers(1, height + 1))
        pixels = noise(height, width, 3, number)
        ours = decode_one(engine, raw(pixels), (to_height, to_width)).astype(int)
        assert np.abs(ours - _native.resize_area(pixels, to_width, to_height)).max() <= 1


@pytest.mark.parametrize("filter", ["area", "bilinear", "bicubic", "nearest"])
@pytest.mark.parametrize("level", [0, 1, 128, 254, 255])
def test_a_plain_colour_stays(engine, filter, level):
    rng = np.random.default_rng(level)
    for _ in range(12):
        height, width, to_height, to_width = (int(side) for side in rng.integers(1, 300, 4))
        image = raw(np.full((height, width, 3), level, np.uint8), (0, 0, width * 0.77, height * 0.9))
        assert (decode_one(engine, image, (to_height, to_width), filter=filter) == level).all()


def test_a_long_strip_to_one_pixel(engine):
    strip = np.tile(np.array([[[0], [255]]], np.uint8), (1, 20_000, 1))
    for filter in ("area", "bilinear"):
        for pixels in (strip, strip.reshape(-1, 1, 1)):
            assert decode_one(engine, raw(pixels), (1, 1), 1, filter=filter)[0, 0, 0] in (127, 128)


def test_fractional_boxes_of_the_area_filter(engine):
    # Each half-pixel step of the box moves a result by half a step of the ramp.
    ramp = np.repeat(np.arange(0, 200, 10, dtype=np.uint8)[None, :, None], 20, 0)
    shrunk = decode_one(engine, raw(ramp, (0.5, 0.5, 16.5, 16.5)), (4, 4), 1)[0, :, 0]
    assert np.abs(shrunk.astype(int) - [20, 60, 100, 140]).max() <= 1


# --- what comes out -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
@pytest.mark.parametrize("dtype", [np.uint8, np.float16, np.float32])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
@pytest.mark.parametrize("size", [(13, 11), (21, 37), (16, 16)])
def test_layouts_types_and_normalising(engine, other, layout, dtype, channels, size):
    pixels = noise(40, 50, channels)
    scale = np.array([1 / 58.395, 1 / 57.12, -3e-6, 200.0], np.float32)[:channels]
    offset = np.array([-2.1179, 2.0357, 1e-7, -12.0], np.float32)[:channels]
    options = {} if dtype == np.uint8 else {"scale": scale, "offset": offset}
    for flip in (False, True):
        for box in ((0, 0, 0, 0), (5, 6, 5 + size[1], 6 + size[0])):
            image = raw(pixels, box, flip)
            expected = decode_one(other, image, size, channels)
            if box != (0, 0, 0, 0):
                crop = pixels[6 : 6 + size[0], 5 : 5 + size[1]]
                assert np.array_equal(expected, crop[:, ::-1] if flip else crop)
            if dtype != np.uint8:
                expected = (expected.astype(np.float32) * scale + offset).astype(dtype)
            if layout == "nchw":
                expected = expected.transpose(2, 0, 1)
            for each in (engine, other):
                ours = decode_one(each, image, size, channels, dtype=dtype, layout=layout, **options)
                assert np.array_equal(ours, expected)


def test_floats_are_plain_values_unless_scaled(engine):
    pixels = noise(9, 9, 3)
    for dtype in (np.float16, np.float32):
        assert np.array_equal(decode_one(engine, raw(pixels), (9, 9), dtype=dtype), pixels.astype(dtype))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("channels", [1, 2, 3, 4])
def test_rows_of_every_width_are_copied_and_mirrored(engine, channels, flip):
    for width in range(1, 70):
        pixels = noise(3, width, channels, width)
        copied = decode_one(engine, raw(pixels, flip=flip), (3, width), channels)
        assert np.array_equal(copied, pixels[:, ::-1] if flip else pixels)


def test_halves_round_to_even_and_overflow(engine, other):
    pixels = np.arange(256, dtype=np.uint8).reshape(16, 16, 1)
    for scale in (1.0, 257.0, 2.0**-17, 2.0**-26, 1e-30, float("inf"), -700.0):
        options = {"scale": np.array([scale], np.float32), "offset": np.array([0.0], np.float32)}
        with np.errstate(over="ignore", invalid="ignore"):
            expected = (pixels.astype(np.float32) * np.float32(scale)).astype(np.float16)
        for each in (engine, other):
            ours = decode_one(each, raw(pixels), (16, 16), 1, dtype=np.float16, **options)
            assert np.array_equal(ours, expected, equal_nan=True)


def test_gray_and_colour_jpegs(engine):
    gray, colour = jpeg(mode="L"), jpeg()
    assert np.array_equal(decode_one(engine, Request(gray), (30, 40)), _native.jpeg_decode(gray, "RGB"))
    assert np.array_equal(decode_one(engine, Request(colour), (30, 40), 1), _native.jpeg_decode(colour, "L"))


# --- what cannot be decoded ---------------------------------------------------------------------------------


def test_one_bad_image_spoils_no_other(engine):
    good = [jpeg(seed=seed) for seed in range(6)]
    images = [Request(data) for data in good]
    images[1] = Request(good[1][:300])
    images[4] = Request(b"\xff\xd8\xff" + b"nonsense" * 9)
    result = decode(engine, images, (30, 40), strict=True)
    assert result.status == [OK, FAILED, OK, OK, FAILED, OK]
    assert sorted(result.errors) == [1, 4]
    assert all(message.startswith("bad JPEG: ") for message in result.errors.values())
    for index in (0, 2, 3, 5):
        assert np.array_equal(result.pixels[index], _native.jpeg_decode(good[index], "RGB"))
    assert not result.pixels[[1, 4]].any()


def test_what_is_not_native_is_left_alone(engine):
    image = Image.fromarray(photo(20, 20))
    images = [Request(jpeg(20, 20))]
    for name in ("GIF", "TIFF", "BMP"):
        buffer = io.BytesIO()
        image.save(buffer, name)
        images.append(Request(buffer.getvalue()))
    images += [
        Request(jpeg(20, 20, mode="CMYK")),
        raw(noise(20, 20, 1)),
        raw(noise(20, 20, 4)),
        Request(b"GIF"),
    ]
    result = decode(engine, images, (20, 20))
    assert result.status == [OK] + [NOT_NATIVE] * 7
    assert result.errors == {}
    assert (result.pixels[1:] == 77).all()
    assert decode(engine, [Request(jpeg())], (20, 20), channels=4).status == [NOT_NATIVE]


@pytest.mark.parametrize("options", [{}, {"progressive": True}])
def test_every_truncation_is_refused(engine, options):
    data = jpeg(24, 17, quality=30, **options)
    images = [Request(data[:size]) for size in range(4, len(data) - 2)]
    result = decode(engine, images, (17, 24))
    assert set(result.status) == {FAILED}
    assert all(message.startswith("bad JPEG: ") for message in result.errors.values())
    # Of a part at the top, cuts far below it are not noticed, and its pixels are right.
    expected = _native.jpeg_decode(data, "RGB")[:8]
    result = decode(engine, [Request(image.data, box=(0, 0, 24, 8)) for image in images], (8, 24))
    assert OK in result.status
    for status, pixels in zip(result.status, result.pixels, strict=True):
        assert np.array_equal(pixels, expected) if status == OK else not pixels.any()


def test_flipped_bytes_give_pixels_or_an_error(engine):
    rng = np.random.default_rng(11)
    seeds = [jpeg(), jpeg(mode="L"), jpeg(progressive=True), jpeg(mode="CMYK"), jpeg(restart_marker_blocks=2)]
    images = []
    for number in range(1500):
        damaged = bytearray(seeds[number % len(seeds)])
        for at in rng.integers(2, len(damaged), int(rng.integers(1, 4))):
            damaged[at] ^= int(rng.integers(1, 256))
        x0, y0 = rng.uniform(0, 20), rng.uniform(0, 15)
        images.append(Request(bytes(damaged), box=(x0, y0, x0 + 18, y0 + 14)))
    for strict in (True, False):
        result = decode(engine, images, (12, 16), filter="bilinear", strict=strict)
        assert {OK, FAILED} <= set(result.status)
        assert [index for index, status in enumerate(result.status) if status == FAILED] == list(
            result.errors
        )


def test_warnings_are_counted_and_pixels_kept_when_not_strict(engine):
    data = jpeg(64, 64)
    cut = data[: len(data) * 2 // 3]
    strict = decode(engine, [Request(data), Request(cut)], (64, 64))
    assert (strict.status, strict.warnings) == ([OK, FAILED], 1)
    loose = decode(engine, [Request(data), Request(cut)], (64, 64), strict=False)
    assert loose.status == [OK, OK]
    assert loose.warnings >= 1
    assert np.array_equal(loose.pixels[1][:24], loose.pixels[0][:24])
    assert not np.array_equal(loose.pixels[1], loose.pixels[0])
    # One that strict decoding overlooks too.
    stray = data[:2] + data[2 : data.index(b"\xff\xdb")] + bytes(9) + data[data.index(b"\xff\xdb") :]
    result = decode(engine, [Request(stray)], (64, 64))
    assert result.status == [OK]
    assert result.warnings == 1


def test_headers_that_lie_are_refused_before_memory_is_taken(engine):
    data = jpeg()
    frame = data.index(b"\xff\xc0")
    for side, message in ((65500, "claims 65500 x 65500 pixels, more than"), (9000, "but has only")):
        lie = data[: frame + 5] + side.to_bytes(2, "big") * 2 + data[frame + 9 :]
        assert message in decode(engine, [Request(lie)], (30, 40)).errors[0]


BAD_SPANS = [
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


@pytest.mark.parametrize(("start", "size"), BAD_SPANS)
def test_spans_out_of_bounds(engine, start, size):
    data = np.arange(10, dtype=np.uint8)
    out = np.full((2, 1, 1, 1), 77, np.uint8)
    starts, sizes = np.array([3, start]), np.array([1, size])
    shapes = np.ones((2, 3), np.int32)
    status, errors, _ = engine.decode(
        [data], np.zeros(2, np.int32), starts, sizes, shapes, None, None, out, layout="nhwc", filter="area"
    )
    assert status.tolist() == [OK, FAILED]
    assert errors == [(1, f"{size} bytes from {start} on leave the buffer, which has 10")]
    assert out.ravel().tolist() == [3, 0]
    to = np.zeros(10, np.uint8)
    once = np.ones(2, np.int64)
    lines = np.maximum(sizes, 1)
    with pytest.raises(IndexError, match="run 1 "):
        engine.gather([data], np.zeros(2, np.int32), starts, lines, once, sizes, to, np.array([0, 5]))
    assert not to.any()


@pytest.mark.parametrize("base", [-1, 2, -(2**31)])
def test_buffers_that_are_not_there(engine, base):
    bases = [np.zeros(4, np.uint8)] * 2
    one = np.ones(1, np.int64)
    out = np.zeros((1, 1, 1, 1), np.uint8)
    status, errors, _ = engine.decode(
        bases, np.array([base], np.int32), one, one, np.ones((1, 3), np.int32), None, None, out,
        layout="nhwc", filter="area",
    )  # fmt: skip
    assert status.tolist() == [FAILED]
    assert errors == [(0, f"there is no buffer {base}")]
    with pytest.raises(IndexError, match="run 0 "):
        engine.gather(bases, np.array([base], np.int32), one, one, one, one, np.zeros(9, np.uint8), one)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((4, 4, 4), "48 bytes cannot be pixels of the shape 4 x 4 x 4"),
        ((-4, -4, 3), "no image has the shape -4 x -4 x 3"),
        ((4, 0, 3), "no image has the shape 4 x 0 x 3"),
        ((2**31 - 1, 2**31 - 1, 2**31 - 1), "48 bytes cannot be pixels"),
        ((1, 1, 47), "48 bytes cannot be pixels"),
    ],
)
def test_raw_shapes_that_do_not_fit(engine, shape, message):
    result = decode(engine, [Request(bytes(48), shape), raw(noise(4, 4, 3))], (4, 4))
    assert result.status == [FAILED, OK]
    assert message in result.errors[0]


@pytest.mark.parametrize(
    "box",
    [
        (-0.5, 0, 4, 4),
        (0, 0, 9.25, 4),
        (0, 0, 4, 9.5),
        (4, 0, 4, 4),
        (5, 0, 4, 4),
        (0, 0, np.nan, 4),
        (np.inf, 0, np.inf, 4),
        (1, 1, 1.001, 4),
        (0, 0, 1e300, 1e300),
    ],
)
@pytest.mark.parametrize("filter", ["area", "bilinear"])
def test_boxes_that_are_not_in_the_image(engine, box, filter):
    for image in (raw(noise(9, 9, 3), box), Request(jpeg(9, 9), box=box)):
        result = decode(engine, [image], (4, 4), filter=filter)
        assert result.status == [FAILED]
        assert "is not in the image of 9 x 9 pixels" in result.errors[0]


def test_an_empty_cell_fails(engine):
    assert decode(engine, [Request(b""), Request(jpeg())], (30, 40)).errors == {0: "no bytes"}


def test_arguments_are_checked(engine):
    def call(**changes):
        arguments = {
            "bases": [np.zeros(12, np.uint8)],
            "base": np.zeros(1, np.int32),
            "start": np.zeros(1, np.int64),
            "size": np.full(1, 12, np.int64),
            "shape": np.array([[2, 2, 3]], np.int32),
            "box": None,
            "flip": None,
            "out": np.zeros((1, 2, 2, 3), np.uint8),
            "layout": "nhwc",
            "filter": "area",
        }
        return engine.decode(**(arguments | changes))

    assert call()[0].tolist() == [OK]
    assert call(flip=np.ones(1, np.uint8), box=np.zeros((1, 4)))[0].tolist() == [OK]
    frozen = np.zeros((1, 2, 2, 3), np.uint8)
    frozen.flags.writeable = False
    for wrong in (
        {"bases": [np.zeros(12, np.int8)]},
        {"bases": [b"text", None]},
        {"bases": np.zeros(12, np.uint8)},
        {"base": np.zeros(1, np.int64)},
        {"start": np.zeros(1, np.int32)},
        {"shape": np.zeros((1, 3), np.int64)},
        {"shape": np.zeros((1, 2), np.int32)},
        {"box": np.zeros((1, 4), np.float32)},
        {"flip": np.zeros(1, np.int32)},
        {"out": np.zeros((1, 2, 2, 3), np.int32)},
        {"out": np.zeros((1, 2, 4, 3), np.uint8)[:, :, ::2]},
        {"out": np.zeros((2, 2, 3), np.uint8)},
        {"out": frozen},
        {"out": np.zeros((1, 2, 2, 3), np.float32), "scale": np.ones(3)},
    ):
        with pytest.raises(TypeError):
            call(**wrong)
    for wrong, message in (
        ({"base": np.zeros(2, np.int32)}, "base has 2 entries, not 1"),
        ({"start": np.zeros(2, np.int64)}, "start has 2"),
        ({"size": np.zeros(0, np.int64)}, "size has 0"),
        ({"shape": np.zeros((2, 3), np.int32)}, "shape has 2"),
        ({"box": np.zeros((2, 4))}, "box has 2"),
        ({"flip": np.zeros(2, bool)}, "flip has 2"),
        (
            {"filter": "lanczos"},
            "filter must be one of 'nearest', 'area', 'bilinear', 'bicubic', not 'lanczos'",
        ),
        ({"layout": "hwc"}, "layout must be one of 'nhwc', 'nchw'"),
        ({"dct": "slow"}, "dct must be one of 'accurate', 'fast'"),
        ({"out": np.zeros((1, 2, 2, 5), np.uint8)}, "1 to 4 channels, not 5"),
        ({"out": np.zeros((1, 0, 2, 3), np.uint8)}, "images of 2 x 0 pixels"),
        ({"scale": np.ones(3, np.float32)}, "uint8 pixels cannot be scaled"),
        (
            {"out": np.zeros((1, 2, 2, 3), np.float32), "offset": np.ones(2, np.float32)},
            "offset has 2 entries, not 3",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            call(**wrong)


def test_an_empty_batch(engine):
    result = decode(engine, [], (4, 4))
    assert (result.status, result.errors, result.warnings) == ([], {}, 0)


# --- memory and threads -------------------------------------------------------------------------------------


def test_cells_in_several_buffers(engine):
    images = [jpeg(seed=seed) for seed in range(5)]
    bases = [np.frombuffer(b"x" * seed + data + b"y", np.uint8) for seed, data in enumerate(images)]
    order = np.array([3, 0, 4, 1, 2], np.int32)
    out = np.zeros((5, 30, 40, 3), np.uint8)
    sizes = np.array([len(images[k]) for k in order])
    status, _, _ = engine.decode(
        bases, order, order.astype(np.int64), sizes, None, None, None, out, layout="nhwc", filter="area"
    )
    assert not status.any()
    for k, pixels in zip(order, out, strict=True):
        assert np.array_equal(pixels, _native.jpeg_decode(images[k], "RGB"))


def test_gather_copies_as_numpy_would(engine):
    rng = np.random.default_rng(5)
    planes = [noise(*(int(integer) for integer in rng.integers(20, 90, 2)), 1, k)[..., 0] for k in range(4)]
    base = rng.integers(0, 4, 300).astype(np.int32)
    start, line, expected = np.zeros(300, np.int64), np.zeros(300, np.int64), []
    for n, b in enumerate(base):
        (y0, y1), (x0, x1) = (np.sort(rng.integers(0, side + 1, 2)) for side in planes[b].shape)
        # Some as wide as what they are taken from: those are copied at once.
        x0, x1 = (0, planes[b].shape[1]) if n % 5 == 0 else (x0, x1)
        line[n] = planes[b].shape[1]
        start[n] = min(y0 * line[n] + x0, planes[b].size)
        expected.append(planes[b][y0:y1, x0:x1])
    rows, width = (np.array([value.shape[side] for value in expected]) for side in (0, 1))
    size = rows * width
    to = np.cumsum(size) - size
    out = np.zeros(size.sum(), np.uint8)
    bases = [np.ascontiguousarray(plane).ravel() for plane in planes]
    engine.gather(bases, base, start, line, rows, width, out, to)
    assert np.array_equal(out, np.concatenate([value.ravel() for value in expected]))
    none = start[:0]
    engine.gather([], base[:0], none, none, none, none, out, none)


@pytest.mark.parametrize(
    ("start", "line", "rows", "width", "place"),
    [
        (0, 10, 11, 10, 0), (91, 10, 1, 10, 0), (1, 10, 10, 10, 0), (0, 9, 2, 10, 0), (0, 10, -1, 10, 0),
        (0, 10, 2, -1, 0), (0, -10, 2, 1, 0), (0, 10, 2, 10, 181), (0, 10, 2, 10, -1), (-1, 10, 1, 1, 0),
        (0, HUGE, 3, 1, 0), (0, HUGE, 2, HUGE, 0), (0, 2**61, 9, 0, 0), (HUGE, 10, 2, HUGE, 0),
        (0, 1, HUGE, 0, 0),
    ],
)  # fmt: skip
def test_gather_of_what_is_not_there(engine, start, line, rows, width, place):
    out = np.zeros(200, np.uint8)
    given = [np.array([1, wrong]) for wrong in (start, line, rows, width)]
    places = np.array([0, place])
    with pytest.raises(IndexError, match="run 1 "):
        engine.gather([np.ones(100, np.uint8)], np.zeros(2, np.int32), *given, out, places)
    assert not out.any()


@pytest.mark.parametrize("support", [0.0, 1.0, 2.0])
def test_windows_are_what_the_filters_see(support):
    rng = np.random.default_rng(6)
    shape = np.concatenate([rng.integers(1, 90, (200, 2)), np.full((200, 1), 3)], axis=1).astype(np.int32)
    low = rng.random((200, 2)) * shape[:, 1::-1]
    high = low + rng.random((200, 2)) * (shape[:, 1::-1] - low)
    start = rng.integers(0, 1000, 200)
    plan, room = _native.plan_windows(start, shape, np.concatenate([low, high], axis=1), support, 20.0, 30.0)
    top, left, rows, columns, begin, line, width, place = plan
    result = np.array([30, 20])
    beyond = np.ceil(support * np.maximum((high - low) / result, 1)) + 1 if support else 0
    first = np.maximum(np.floor(low) - beyond, 0)
    end = np.minimum(np.ceil(high) + beyond, shape[:, 1::-1])
    assert np.array_equal(np.stack([left, top], axis=1), first)
    assert np.array_equal(np.stack([left + columns, top + rows], axis=1), end)
    assert np.array_equal(line, 3 * shape[:, 1])
    assert np.array_equal(width, 3 * columns)
    assert np.array_equal(begin, start + top * line + 3 * left)
    assert not (place % 16).any()
    assert (np.append(place[1:], room) - place >= rows * width).all()
    wrong = np.array([[np.nan] * 4, [-1e300, np.nan, 1e300, 1e300]])
    plan, _ = _native.plan_windows(start[:2], shape[:2], wrong, support, 20.0, 30.0)
    assert (plan[:4] >= 0).all()
    assert (plan[:2] + plan[2:4] <= shape[:2, :2].T).all()


def test_threads_that_are_nice():
    def niceness():
        result = {}
        for item in map(int, os.listdir("/proc/self/task")):
            # Threads of other tests may end.
            with contextlib.suppress(ProcessLookupError):
                result[item] = os.getpriority(os.PRIO_PROCESS, item)
        return result

    before = niceness()
    nice = _native.Engine(2, nice=7)
    plain = _native.Engine(1)
    # They say so when they begin.
    deadline = time.monotonic() + PATIENCE
    while sorted(new := [value for task, value in niceness().items() if task not in before]) != sorted(
        [os.getpriority(os.PRIO_PROCESS, 0), 7, 7]
    ):
        assert time.monotonic() < deadline, new
    nice.close()
    plain.close()


def mixed_batch() -> list[Request]:
    rng = np.random.default_rng(9)
    images = []
    for seed in range(48):
        width, height = (int(side) for side in rng.integers(26, 90, 2))
        x0, y0 = (float(at) for at in rng.integers(0, 10, 2))
        box = (x0, y0, x0 + 10 + seed % 5, y0 + 8.5)
        if seed % 4 == 0:
            images.append(raw(photo(width, height, seed), box, seed % 3 == 0))
        else:
            images.append(
                Request(jpeg(width, height, seed, progressive=seed % 5 == 0), box=box, flip=seed % 3 == 0)
            )
    images[7] = Request(images[7].data[:200])
    return images


def test_any_number_of_threads_gives_the_same_bytes():
    images = mixed_batch()
    results = [decode(_native.Engine(threads), images, (24, 24), filter="bicubic") for threads in (1, 2, 8)]
    for other in results[1:]:
        assert np.array_equal(other.pixels, results[0].pixels)
        assert (other.status, other.errors) == (results[0].status, results[0].errors)
    assert sorted(results[0].errors) == [7]


def test_every_machine_computes_the_same_bytes(engine, other):
    scale, offset = np.array([0.017, 0.0175, 1e-6], np.float32), np.array([-2.1, 3.0, 1e-5], np.float32)
    for each in (engine, other):
        crc = 0
        for filter in ("area", "bilinear", "bicubic", "nearest"):
            for seed, size in enumerate([(20, 30), (75, 41), (97, 110)]):
                pixels = noise(70, 90, 3, seed)
                boxes = [(0, 0, 0, 0), (3, 4, 88, 60), (10.25, 20.5, 41.75, 59.125)]
                images = [raw(pixels, box, flip) for box in boxes for flip in (False, True)]
                for dtype in (np.float16, np.float32):
                    options = {"layout": "nchw", "scale": scale, "offset": offset}
                    result = decode(each, images, size, dtype=dtype, filter=filter, **options)
                    crc = _native.crc32c(result.pixels.view(np.uint8).ravel(), crc)
        assert crc == EVERY_MACHINE


def test_many_callers_at_once(engine):
    images = mixed_batch()
    expected = {
        filter: decode(engine, images, (24, 24), filter=filter).pixels for filter in ("area", "bilinear")
    }

    def work(number: int) -> bool:
        filter = "area" if number % 2 else "bilinear"
        return np.array_equal(decode(engine, images, (24, 24), filter=filter).pixels, expected[filter])

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(36)))


@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer keeps freed memory")
def test_memory_does_not_grow_with_the_images():
    engine = _native.Engine(2)
    rng = np.random.default_rng(2)
    images = [Request(jpeg(64 + seed, 48, seed, progressive=seed % 2 == 0)) for seed in range(40)]
    images += [Request(image.data[:500]) for image in images[:10]]

    def batches(count: int) -> int:
        for _ in range(count):
            boxes = rng.uniform(0, 20, (len(images), 2))
            for image, (x, y) in zip(images, boxes, strict=True):
                image.box = (x, y, x + 40, y + 25)
            decode(engine, images, (56, 56), filter="bilinear")
        return psutil.Process().memory_info().rss

    before = batches(10)
    # 2,000 images; a leak of the tables of each alone would be three megabytes.
    assert batches(40) - before < 2 << 20


def test_the_interpreter_runs_on_meanwhile(engine):
    images = [Request(jpeg(400, 400))] * 24
    most = 0
    # Once more where a busy machine gave this thread no time meanwhile.
    for _ in range(100):
        done = threading.Event()
        worker = threading.Thread(target=lambda done=done: (decode(engine, images, (64, 64)), done.set()))
        worker.start()
        steps = 0
        while not done.is_set():
            steps += 1
        worker.join()
        most = max(most, steps)
        if most > 100:
            break
    assert most > 100


def test_time_is_accounted_for():
    engine = _native.Engine(1)
    assert engine.seconds == (0, 0)
    decode(engine, [Request(jpeg(200, 200))] * 4, (64, 64))
    assert all(seconds > 0 for seconds in engine.seconds)


@pytest.mark.parametrize("size", [(64, 64), (20, 30)])
def test_raw_pixels_take_no_time_to_decode(size):
    engine = _native.Engine(1)
    decode(engine, [raw(np.zeros((20, 30, 3), np.uint8))] * 4, size)
    decoding, resampling = engine.seconds
    assert decoding == 0
    assert resampling > 0


def test_threads_and_closing():
    engine = _native.Engine(3)
    assert engine.threads == 3
    engine.close()
    engine.close()
    assert engine.threads == 3
    with pytest.raises(RuntimeError, match="closed"):
        decode(engine, [Request(jpeg())], (4, 4))
    for threads in (0, -1, 100_000):
        with pytest.raises(ValueError, match="an engine has 1 to 1024 threads, not"):
            _native.Engine(threads)


def test_threads_on_given_cpus():
    cpus = sorted(os.sched_getaffinity(0))
    before = {task.id for task in psutil.Process().threads()}
    engine = _native.Engine(3, cpus[:1])
    result = {task.id for task in psutil.Process().threads()} - before
    assert len(result) == 3
    assert all(os.sched_getaffinity(task) == {cpus[0]} for task in result)
    assert decode(engine, [Request(jpeg())], (4, 4)).status == [OK]
    for missing in (-1, 100_000):
        with pytest.raises(ValueError, match=f"cpu {missing} is not there"):
            _native.Engine(1, [missing])


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_child_is_told_and_does_not_hang(engine):
    decode(engine, [Request(jpeg())], (4, 4))

    def in_child() -> bool:
        with pytest.raises(RuntimeError, match="forked"):
            decode(engine, [Request(jpeg())], (4, 4))
        engine.close()
        own = _native.Engine(1)
        status = decode(own, [Request(jpeg())], (4, 4)).status
        own.close()
        return status == [OK]

    assert in_fork(in_child)
    assert decode(engine, [Request(jpeg())], (4, 4)).status == [OK]
