"""Our own decoder of common JPEGs: the same pixels, errors and warnings as libjpeg alone gives."""

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from batchplant import _native
from batchplant.testing.cases import EXHAUSTIVE

SUBSAMPLINGS = ["4:4:4", "4:2:2", "4:2:0", "gray"]
OK = 0


@pytest.fixture(scope="module")
def engines():
    """Best kernels, portable kernels, libjpeg alone."""
    result = _native.Engine(1), _native.Engine(1, _kernels="portable"), _native.Engine(1, _baseline=False)
    yield result
    for engine in result:
        engine.close()


def pixels(width: int, height: int, rng: np.random.Generator) -> np.ndarray:
    """Smooth shapes with little or much noise, noise alone, or black and white: the hardest to transform."""
    kind = rng.integers(4)
    if kind == 0:
        return rng.integers(0, 256, (height, width, 3), dtype=np.uint8)
    if kind == 1:
        return (rng.integers(0, 2, (height, width, 3)) * 255).astype(np.uint8)
    y, x = np.mgrid[:height, :width]
    planes = [128 + 120 * np.sin(x / (5 + k)) * np.cos(y / (7 - k)) for k in range(3)]
    return np.clip(np.stack(planes, -1) + rng.normal(0, 3 * 8**kind, (height, width, 3)), 0, 255).astype(
        np.uint8
    )


def jpeg(array: np.ndarray, kind: str = "4:2:0", **options: object) -> bytes:
    image = Image.fromarray(array)
    if kind == "gray":
        image = image.convert("L")
    else:
        options["subsampling"] = kind
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def random_options(rng: np.random.Generator, progressive: bool = False) -> dict[str, object]:
    options: dict[str, object] = {"quality": int(rng.integers(1, 101)), "optimize": bool(rng.integers(2))}
    if progressive:
        options["progressive"] = True
    if rng.integers(3) == 0:
        options["restart_marker_blocks"] = int(rng.integers(1, 12))
    return options


def random_box(width: int, height: int, rng: np.random.Generator) -> tuple[int, int, int, int]:
    x0, y0 = int(rng.integers(width)), int(rng.integers(height))
    return x0, y0, int(rng.integers(x0 + 1, width + 1)), int(rng.integers(y0 + 1, height + 1))


def decode(engine, data: bytes, box: tuple[int, int, int, int], channels: int = 3, strict: bool = True):
    """The pixels in the box as they are, and the engine's verdict."""
    x0, y0, x1, y1 = box
    out = np.full((1, y1 - y0, x1 - x0, channels), 77, np.uint8)
    status, errors, warnings = engine.decode(
        [np.frombuffer(data, np.uint8)],
        np.zeros(1, np.int32),
        np.zeros(1, np.int64),
        np.array([len(data)]),
        None,
        np.array([box], np.float64),
        None,
        out,
        layout="nhwc",
        filter="nearest",
        strict=strict,
    )
    return out[0], (status.tolist(), errors, warnings)


def compare(
    engines, data: bytes, box: tuple[int, int, int, int], channels: int = 3, strict: bool = True
) -> bool:
    """All engines must agree. Returns whether ours needed no libjpeg."""
    before = [engine.baseline_jpegs for engine in engines]
    results = [decode(engine, data, box, channels, strict) for engine in engines]
    own = [engine.baseline_jpegs - count for engine, count in zip(engines, before, strict=True)]
    assert own[0] == own[1]
    assert own[2] == 0
    expected, verdict = results[2]
    for array, other in results[:2]:
        assert other == verdict, box
        assert np.array_equal(array, expected), box
    return own[0] == 1


@pytest.mark.parametrize("kind", SUBSAMPLINGS)
def test_every_small_size_equals_libjpeg(engines, kind):
    rng = np.random.default_rng(SUBSAMPLINGS.index(kind))
    for height in range(1, 41, 1 if EXHAUSTIVE else 3):
        for width in range(1, 41):
            data = jpeg(pixels(width, height, rng), kind, quality=int(rng.integers(1, 101)))
            channels = 1 if rng.integers(4) == 0 else 3
            own = compare(engines, data, (0, 0, width, height), channels)
            # Colours of so narrow an image are not interpolated.
            assert own == (width > 4 or kind in ("4:4:4", "gray"))
            whole = _native.jpeg_decode(data, "L" if channels == 1 else "RGB")
            assert np.array_equal(decode(engines[0], data, (0, 0, width, height), channels)[0], whole)


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("kind", SUBSAMPLINGS)
def test_parts_equal_those_of_the_whole(engines, kind, progressive):
    rng = np.random.default_rng(10 + SUBSAMPLINGS.index(kind))
    for _ in range(200 if EXHAUSTIVE else 25):
        width, height = (int(side) for side in rng.integers(5, 150, 2))
        data = jpeg(pixels(width, height, rng), kind, **random_options(rng, progressive))
        whole = {1: _native.jpeg_decode(data, "L"), 3: _native.jpeg_decode(data, "RGB")}
        for _ in range(6):
            box = x0, y0, x1, y1 = random_box(width, height, rng)
            channels = int(rng.choice([1, 3]))
            assert compare(engines, data, box, channels)
            part, _ = decode(engines[0], data, box, channels)
            assert np.array_equal(part, whole[channels][y0:y1, x0:x1]), box


@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(SUBSAMPLINGS),
    quality=st.integers(1, 100),
    progressive=st.booleans(),
)
def test_any_image_and_part(engines, seed, kind, quality, progressive):
    rng = np.random.default_rng(seed)
    width, height = (int(side) for side in rng.integers(5, 70, 2))
    data = jpeg(pixels(width, height, rng), kind, **(random_options(rng, progressive) | {"quality": quality}))
    assert compare(engines, data, random_box(width, height, rng))


def test_a_scan_longer_than_the_buffer(engines):
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, (400, 400, 3), dtype=np.uint8)
    for options in ({}, {"restart_marker_blocks": 500}, {"progressive": True}):
        data = jpeg(noise, quality=100, **options)
        assert len(data) > 150_000
        for box in ((0, 0, 400, 400), (100, 300, 180, 400), (390, 10, 400, 30)):
            assert compare(engines, data, box)


OTHER_KINDS = {
    "rgb": {"keep_rgb": True, "kind": "4:4:4"},
    "4:4:0": {"kind": "4:2:2"},
    "large steps": {"qtables": [[300] * 64, [300] * 64]},
}


@pytest.mark.parametrize("name", OTHER_KINDS)
def test_other_kinds_are_left_to_libjpeg(engines, name):
    options = {"kind": "4:2:0"} | OTHER_KINDS[name]
    rng = np.random.default_rng(4)
    data = jpeg(pixels(50, 50, rng), **options)
    if name == "4:4:0":  # the factors exchanged; at 50 x 50 there are 4 x 7 MCUs either way
        at = data.index(b"\xff\xc0") + 11
        assert data[at] == 0x21
        data = data[:at] + b"\x12" + data[at + 1 :]
    for _ in range(10):
        assert not compare(engines, data, random_box(50, 50, rng))


def scans_of(data: bytes) -> list[bytes]:
    """What is before the first scan, and each scan with its tables: all of them together are the image."""
    starts = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    cuts = [0]
    for at in starts[1:]:
        tables = data.rfind(b"\xff\xc4", cuts[-1], at)  # an encoder writes those of a scan right before it
        cuts.append(tables if tables > starts[len(cuts) - 1] else at)
    head = data.index(b"\xff\xc4")
    cuts[0] = head
    return [data[:head]] + [data[a:b] for a, b in zip(cuts, [*cuts[1:], len(data) - 2], strict=True)]


def test_scans_that_are_missing_repeated_or_split_by_something_are_left_to_libjpeg(engines):
    rng = np.random.default_rng(11)
    data = jpeg(pixels(60, 70, rng), "4:2:0", progressive=True, quality=90)
    head, *scans = scans_of(data)
    end = b"\xff\xd9"
    assert len(scans) == 10
    assert head + b"".join(scans) + end == data
    assert compare(engines, data, (3, 5, 50, 60))
    comment = b"\xff\xfe\x00\x04hi"
    steps = data[data.index(b"\xff\xdb") :][: 2 + 67]
    others = [
        scans[:-1],
        scans[:5],
        [*scans, scans[3]],
        [scans[0], *scans],
        [*scans[:4], comment, *scans[4:]],
    ]
    others += [[*scans[:4], steps, *scans[4:]], scans[1:], [scans[0], *scans[:0:-1]]]
    for other in others:
        changed = head + b"".join(other) + end
        for strict in (True, False):
            assert not compare(engines, changed, (3, 5, 50, 60), strict=strict)
            assert not compare(engines, changed, (0, 0, 60, 70), strict=strict)


# --- damage -------------------------------------------------------------------------------------------------


def samples(rng: np.random.Generator) -> list[bytes]:
    kinds = [*SUBSAMPLINGS, "4:2:0", "4:2:2"]
    return [jpeg(pixels(45, 50, rng), kind, **random_options(rng)) for kind in kinds]


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_cut_off_gets_the_same_verdict(engines, strict):
    rng = np.random.default_rng(5)
    failed = 0
    for data in samples(rng):
        for _ in range(40):
            cut = data[: int(rng.integers(2, len(data)))]
            bottom = 50 if rng.integers(2) else int(rng.integers(1, 51))
            compare(engines, cut, (0, bottom // 2, 45, bottom), strict=strict)
            failed += decode(engines[0], cut, (0, 0, 45, 50), strict=strict)[1][0] != [OK]
    assert failed > 0


@pytest.mark.parametrize("strict", [True, False])
def test_what_is_flipped_gets_the_same_verdict(engines, strict):
    rng = np.random.default_rng(6)
    own = 0
    for data in samples(rng):
        for _ in range(100):
            flipped = bytearray(data)
            for _ in range(int(rng.integers(1, 4))):
                # Mostly in the scan, so that the image opens.
                at = int(rng.integers(len(data) // 2 if rng.integers(5) else 2, len(data)))
                flipped[at] ^= 1 << int(rng.integers(8))
            own += compare(engines, bytes(flipped), random_box(45, 50, rng), strict=strict)
    assert own > 0


@pytest.mark.parametrize("strict", [True, False])
def test_damage_of_a_progressive_image(engines, strict):
    """The same verdict, but that what is below the part may go unnoticed; the pixels are then the same."""
    rng = np.random.default_rng(12)
    unnoticed = failed = 0
    for kind in (*SUBSAMPLINGS, "4:2:0", "4:2:2"):
        data = jpeg(pixels(45, 50, rng), kind, **random_options(rng, True))
        start = data.index(b"\xff\xda")
        for _ in range(60):
            damaged = bytearray(data)
            for _ in range(int(rng.integers(1, 3))):
                damaged[int(rng.integers(start, len(data)))] ^= 1 << int(rng.integers(8))
            if rng.integers(3) == 0:
                del damaged[int(rng.integers(start, len(data))) :]
            box, channels = random_box(45, 50, rng), int(rng.choice([1, 3]))
            ours, portable, theirs = (
                decode(engine, bytes(damaged), box, channels, strict) for engine in engines
            )
            assert ours[1] == portable[1]
            assert np.array_equal(ours[0], portable[0])
            failed += ours[1][0] != [OK]
            if ours[1] != theirs[1]:
                assert box[3] < 50
                assert ours[1] == ([OK], [], 0)
                theirs = decode(engines[2], bytes(damaged), box, channels, strict=False)
                unnoticed += 1
            assert np.array_equal(ours[0], theirs[0])
    assert unnoticed > 0
    assert failed > 0 or not strict


def test_a_missing_end_is_noticed_at_the_bottom_only(engines):
    data = jpeg(pixels(40, 40, np.random.default_rng(7)))
    assert data.endswith(b"\xff\xd9")
    assert compare(engines, data[:-2] + b"\xff\xe0" + data, (0, 0, 40, 20))
    for damaged in (data[:-2], data[:-1], data[:-2] + b"\x00\xff\xd9", data[:-2] + b"\xff\xff\xd9"):
        assert not compare(engines, damaged, (0, 0, 40, 40))
        compare(engines, damaged, (0, 0, 40, 39))
    assert compare(engines, data + b"more", (0, 0, 40, 40))


@pytest.mark.parametrize("progressive", [False, True])
@pytest.mark.parametrize("step", [1, 40, 255])
def test_coefficients_that_no_image_has(engines, step, progressive):
    """Far too large for pixels: libjpeg's vectors may then wrap around, so it must say what comes of it."""
    rng = np.random.default_rng(8)
    noise = rng.integers(0, 256, (48, 48, 3), dtype=np.uint8)
    data = bytearray(jpeg(noise, "4:4:4", quality=100, progressive=progressive))
    at = data.index(b"\xff\xdb")
    while data[at : at + 2] == b"\xff\xdb":
        size = int.from_bytes(data[at + 2 : at + 4], "big")
        data[at + 5 : at + 2 + size] = bytes([step]) * (size - 3)
        at += 2 + size
    assert compare(engines, bytes(data), (0, 0, 48, 48)) == (step == 1)


def test_wrong_restart_markers(engines):
    rng = np.random.default_rng(9)
    data = jpeg(pixels(64, 64, rng), restart_marker_blocks=2)
    assert compare(engines, data, (0, 0, 64, 64))
    at = data.index(b"\xff\xd2")
    for other in (b"\xff\xd3", b"\xff\xd9", b"\xff\xe1", b"\xff\x00", b"", b"\xff\xff\xd2", b"\x00\xff\xd2"):
        for strict in (True, False):
            damaged = data[:at] + other + data[at + 2 :]
            assert not compare(engines, damaged, (0, 0, 64, 64), strict=strict)


def test_tables_of_one_image_are_not_used_for_the_next(engines):
    rng = np.random.default_rng(10)
    images = [jpeg(pixels(40, 40, rng), quality=quality, optimize=True) for quality in (20, 95, 60)]
    for data in images * 3:
        assert compare(engines, data, (3, 5, 38, 40))
    start = images[0].index(b"\xff\xc4")
    size = int.from_bytes(images[0][start + 2 : start + 4], "big")
    without = images[0][:start] + images[0][start + 2 + size :]
    # libjpeg has tables for those that have none.
    assert not compare(engines, without, (0, 0, 40, 40))
