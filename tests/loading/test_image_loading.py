"""Images of every encoding through the loader: masks, orientation, what the engine cannot decode."""

import io
import json
import struct
import sys
import threading
import zlib

import numpy as np
import pytest
from PIL import Image

import batchplant as bp
import processes
from batchplant import _native, ops
from batchplant.codecs.media import image as images
from batchplant.storage import limits
from processes import PATIENCE

WITHOUT = "none" in (_native.features()["png"], _native.features()["webp"])


def photo(width, height, seed=0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 256, (5, 6, 3), dtype=np.uint8))
    return np.asarray(small.resize((width, height), Image.Resampling.BICUBIC))


def saved(image, encoding, **options) -> bytes:
    out = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(out, encoding, **options)
    return out.getvalue()


def dataset(path, cells, field, name="image"):
    with bp.create(path, {name: field, "number": bp.Int()}) as out:
        for number, cell in enumerate(cells):
            out.append({name: cell, "number": number})
    return str(path)


def first(path, steps, **options):
    loader = bp.Loader(path, 64, pipelines={"image": steps}, **options)
    batch = next(iter(loader))
    loader.close()
    return batch["image"]


# -- which are native ---------------------------------------------------------------------------------------

ENCODINGS = ("PNG", "WEBP", "JPEG", "TIFF", "GIF", "BMP")


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("steps", [[ops.Resize(16)], [ops.RandomResizedCrop(12), ops.RandomHorizontalFlip()]])
def test_all_encodings_in_one_batch(tmp_path, steps, workers):
    """The pixels are those of decoding each by itself, then resizing as raw."""
    cells = [saved(photo(30 + n, 20 + n, n), ENCODINGS[n % 6]) for n in range(18)]
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(None, "RGB"))
    decoded = [images.decode(cell, "RGB") for cell in cells]
    raw = dataset(tmp_path / "raw.msgpack", decoded, bp.Image("raw", "RGB"))
    assert np.array_equal(first(path, steps, workers=workers), first(raw, steps))


@pytest.mark.skipif(WITHOUT, reason="built without libdeflate or libwebp")
@pytest.mark.parametrize("encoding", ["PNG", "WEBP"])
def test_the_interpreter_decodes_nothing(tmp_path, monkeypatch, encoding):
    cells = [saved(photo(30, 20, n), encoding) for n in range(4)]
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(encoding.lower(), "RGB"))
    monkeypatch.setattr(images, "decode", None)
    assert first(path, [ops.Resize(8)]).shape == (4, 8, 8, 3)


def test_others_are_decoded_in_as_many_threads_as_there_are_workers(tmp_path, monkeypatch):
    cells = [saved(photo(30, 20, n), "BMP") for n in range(12)]
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image("bmp", "RGB"))
    together = threading.Barrier(3)
    decode = images.decode

    def meet(data, mode=None, **options):
        # Breaks, and fails the test, unless three come here at once.
        together.wait(PATIENCE)
        return decode(data, mode, **options)

    monkeypatch.setattr(images, "decode", meet)
    assert first(path, [ops.Resize(8)], workers=3).shape == (12, 8, 8, 3)


@pytest.mark.parametrize("encoding", ["PNG", "WEBP", "BMP", "GIF"])
def test_damaged_images_are_named_in_order(tmp_path, encoding):
    cells = [saved(photo(30, 20, n), encoding) for n in range(9)]
    for number in (3, 7):
        cells[number] = cells[number][: len(cells[number]) // 3]
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(encoding.lower(), "RGB"))
    with pytest.raises(bp.DataError) as caught:
        first(path, [ops.Resize(8)], workers=3)
    assert (caught.value.sample, caught.value.field) == (3, "image")
    assert "a.msgpack" in str(caught.value)
    loader = bp.Loader(path, 9, pipelines={"image": [ops.Resize(8)]}, on_error="skip", workers=3)
    assert next(iter(loader))["number"].tolist() == [0, 1, 2, 4, 5, 6, 8]
    assert [problem.sample for problem in loader.skipped] == [3, 7]


def test_a_gray_or_transparent_image_among_others(tmp_path):
    gray = saved(photo(9, 9)[:, :, 0], "PNG")
    path = dataset(tmp_path / "gray.msgpack", [gray, saved(photo(9, 9), "PNG")], bp.Image("png", "RGB"))
    assert np.array_equal(first(path, [])[0], np.repeat(photo(9, 9)[:, :, :1], 3, axis=2))
    clear = saved(np.dstack([photo(9, 9), photo(9, 9)[:, :, 0]]), "PNG")
    path = dataset(tmp_path / "clear.msgpack", [saved(photo(9, 9), "PNG"), clear], bp.Image("png", "RGB"))
    with pytest.raises(bp.DecodeError, match="the image is RGBA; making it RGB would change") as caught:
        first(path, [])
    assert caught.value.sample == 1


@pytest.mark.parametrize("encoding", ["PNG", "WEBP", "JPEG", "BMP"])
def test_the_limit_of_pixels_holds_for_every_encoding(tmp_path, monkeypatch, encoding):
    path = dataset(tmp_path / "a.msgpack", [saved(photo(20, 10), encoding)], bp.Image(None, "RGB"))
    monkeypatch.setattr(limits, "_most_pixels", 200)
    assert first(path, [ops.Resize(4)]).shape == (1, 4, 4, 3)
    monkeypatch.setattr(limits, "_most_pixels", 199)
    with pytest.raises(bp.DecodeError, match="the limit is 199"):
        first(path, [ops.Resize(4)])


# -- masks --------------------------------------------------------------------------------------------------


def palette_mask(seed=0, width=40, height=30) -> Image.Image:
    classes = np.random.default_rng(seed).choice([0, 3, 7, 255], (height, width)).astype(np.uint8)
    result = Image.frombytes("P", (width, height), classes.tobytes())
    result.putpalette(np.random.default_rng(1).bytes(768))
    return result


@pytest.mark.parametrize("mode", ["P", "L", None])
@pytest.mark.parametrize("encoding", ["PNG", "BMP", "TIFF"])
def test_a_mask_keeps_its_classes(tmp_path, encoding, mode):
    masks = [palette_mask(n) for n in range(3)]
    field = bp.Image(encoding.lower(), mode, mask=True)
    path = dataset(tmp_path / "a.msgpack", [saved(mask, encoding) for mask in masks], field)
    assert np.array_equal(first(path, [])[..., 0], np.stack([np.asarray(mask) for mask in masks]))
    result = first(path, [ops.RandomResizedCrop(50), ops.RandomHorizontalFlip()])
    assert result.shape == (3, 50, 50, 1)
    assert set(np.unique(result)) <= {0, 3, 7, 255}


def test_palette_and_gray_masks_in_one_field(tmp_path):
    levels = np.asarray(palette_mask(1))
    cells = [saved(palette_mask(0), "PNG"), saved(levels, "PNG")]
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image("png", "P", mask=True))
    assert np.array_equal(first(path, [])[1, ..., 0], levels)


def test_a_mask_is_never_blended(tmp_path):
    path = dataset(tmp_path / "a.msgpack", [saved(palette_mask(), "PNG")], bp.Image("png", "P", mask=True))
    for name in ("area", "bilinear", "bicubic"):
        with pytest.raises(bp.OptionError, match=f"{name} would blend the values of a mask") as caught:
            bp.Loader(path, 1, pipelines={"image": [ops.Resize(8, filter=name)]})
        assert caught.value.field == "image"
    plain, asked = first(path, [ops.Resize(9)]), first(path, [ops.Resize(9, filter="nearest")])
    assert np.array_equal(plain, asked)
    pillow = np.asarray(palette_mask().resize((9, 9), Image.Resampling.NEAREST))
    assert np.array_equal(plain[0, ..., 0], pillow)


def test_without_a_mask_the_filter_is_area(tmp_path):
    path = dataset(tmp_path / "a.msgpack", [saved(photo(40, 30), "PNG")], bp.Image("png", "RGB"))
    assert np.array_equal(first(path, [ops.Resize(8)]), first(path, [ops.Resize(8, filter="area")]))
    assert not np.array_equal(first(path, [ops.Resize(8)]), first(path, [ops.Resize(8, filter="nearest")]))


# -- orientation --------------------------------------------------------------------------------------------


def turned_cells(encoding) -> list[bytes]:
    cells = []
    for orientation in range(1, 9):
        exif = Image.Exif()
        exif[0x0112] = orientation
        cells.append(saved(photo(30, 20, orientation), encoding, exif=exif))
    return cells


@pytest.mark.parametrize("encoding", ["JPEG", "PNG", "WEBP", "TIFF"])
def test_images_are_turned_where_it_is_asked_for(tmp_path, encoding):
    cells = turned_cells(encoding)
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(encoding.lower(), "RGB"))
    decoded = [images.decode(cell, "RGB") for cell in cells]
    upright = [images.orient(pixels, n) for n, pixels in enumerate(decoded, 1)]
    raw = dataset(tmp_path / "raw.msgpack", upright, bp.Image("raw", "RGB"))
    for make in (ops.Resize, ops.CenterCrop, ops.RandomResizedCrop):
        assert np.array_equal(first(path, [make(14, orient=True)]), first(raw, [make(14)])), make
    stored = dataset(tmp_path / "stored.msgpack", decoded, bp.Image("raw", "RGB"))
    assert np.array_equal(first(path, [ops.Resize(14)]), first(stored, [ops.Resize(14)]))


def test_whole_images_that_are_turned(tmp_path):
    cells = turned_cells("JPEG")
    path = dataset(tmp_path / "a.msgpack", cells[4:], bp.Image("jpeg", "RGB"))
    assert first(path, [ops.Decode(orient=True)]).shape == (4, 30, 20, 3)
    assert first(path, []).shape == (4, 20, 30, 3)
    mixed = dataset(tmp_path / "b.msgpack", cells, bp.Image("jpeg", "RGB"))
    with pytest.raises(bp.DecodeError, match="the image is 20×30 and the first is 30×20") as caught:
        first(mixed, [ops.Decode(orient=True)])
    assert caught.value.sample == 4


def test_the_plan_tells(tmp_path):
    path = dataset(tmp_path / "a.msgpack", [saved(palette_mask(), "PNG")], bp.Image("png", "P", mask=True))
    loader = bp.Loader(path, 1, pipelines={"image": [ops.Resize(8, orient=True)]})
    assert "Resize(size=(8, 8), filter='nearest', orient=True)" in str(loader.plan)
    assert json.dumps(loader.plan.outputs[0].spec.shape) == "[8, 8, 1]"


# -- headers that lie --------------------------------------------------------------------------------------


def lying(encoding, width, height) -> bytes:
    """A small image whose header says that it is a large one."""
    data = bytearray(saved(photo(48, 40), encoding))
    if encoding == "JPEG":
        at = data.find(b"\xff\xc0") + 5
        data[at : at + 4] = struct.pack(">HH", height, width)
    elif encoding == "PNG":
        data[16:24] = struct.pack(">II", width, height)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
    elif encoding == "WEBP":
        # Lossy: behind three bytes of a frame and its mark.
        data[26:30] = struct.pack("<HH", width, height)
    elif encoding == "BMP":
        data[18:26] = struct.pack("<ii", width, height)
    else:
        data[6:10] = struct.pack("<HH", width, height)
    return bytes(data)


LIES = [
    ("JPEG", 28621, 10326), ("JPEG", 4000, 4000), ("PNG", 9764904, 50), ("PNG", 65537, 50),
    ("PNG", 3000, 3000), ("WEBP", 16383, 16383), ("BMP", 20000, 9000), ("BMP", 500000, 50),
    ("GIF", 65535, 65535),
]  # fmt: skip


@pytest.mark.parametrize(("encoding", "width", "height"), LIES)
@pytest.mark.parametrize("place", [0, 3])
def test_a_header_that_lies_is_left_out(tmp_path, encoding, width, height, place):
    cells = [saved(photo(48, 40, n), "JPEG") for n in range(7)]
    cells.insert(place, lying(encoding, width, height))
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(None, "RGB"))
    for steps, shape in (([], (40, 48)), ([ops.Resize(8)], (8, 8))):
        loader = bp.Loader(path, 8, pipelines={"image": steps}, on_error="skip", workers=2)
        result = [batch["image"].shape for batch in loader]
        assert result == [(7, *shape, 3)]
        assert [problem.sample for problem in loader.skipped] == [place]
    with pytest.raises(bp.DataError) as caught:
        bp.open(path)[place]
    with pytest.raises(bp.DataError) as met:
        first(path, [])
    assert (met.value.sample, met.value.field) == (place, "image")
    if place == 0:
        assert met.value.message == caught.value.message


def test_no_memory_is_taken_because_a_header_says_so(tmp_path):
    """In a process that may take one gigabyte more: eight times the claimed size would be seven."""
    cells = [lying("JPEG", 28621, 10326)] + [saved(photo(48, 40), "JPEG")] * 7
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(None, "RGB"))
    script = """
import resource, sys
import batchplant as bp
size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) << 10
resource.setrlimit(resource.RLIMIT_AS, (size + (1 << 30),) * 2)
loader = bp.Loader(sys.argv[1], 8, on_error="skip", workers=1)
print([batch["image"].shape for batch in loader], len(loader.skipped))
"""
    done = processes.run([sys.executable, "-c", script, path], capture_output=True, text=True)
    assert done.stdout.strip() == "[(7, 40, 48, 3)] 1", done.stderr


def test_when_no_image_can_be_read_the_cause_is_said(tmp_path):
    cells = [saved(photo(48, 40), "PNG")[:-30], lying("JPEG", 4000, 4000)]
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(None, "RGB"))
    with pytest.raises(bp.DecodeError, match=r"cut short|truncated") as caught:
        first(path, [])
    assert caught.value.sample == 0
    loader = bp.Loader(path, 2, on_error="skip", workers=1)
    assert [len(batch["image"]) for batch in loader] in ([], [0])
    assert [problem.sample for problem in loader.skipped] == [0, 1]


def test_a_side_longer_than_the_engine_makes(tmp_path):
    cells = [saved(np.zeros((1, 65536, 3), np.uint8), "PNG"), saved(photo(48, 40), "PNG")]
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(None, "RGB"))
    with pytest.raises(bp.DecodeError, match="a side of 65536 pixels is more than a batch can have"):
        first(path, [])
    loader = bp.Loader(path, 2, on_error="skip", workers=1)
    assert [batch["image"].shape for batch in loader] == [(1, 40, 48, 3)]
    assert first(path, [ops.Resize(8)]).shape == (2, 8, 8, 3)


def test_errors_of_a_batch_come_in_the_order_of_its_samples(tmp_path):
    cells = [saved(photo(48, 40, n), "JPEG") for n in range(6)]
    cells[2], cells[4] = cells[2][:-200], lying("PNG", 9764904, 50)
    path = dataset(tmp_path / "a.msgpack", cells, bp.Image(None, "RGB"))
    with pytest.raises(bp.DecodeError) as caught:
        first(path, [])
    assert caught.value.sample == 2
    loader = bp.Loader(path, 6, on_error="skip", workers=1)
    assert [batch["number"].tolist() for batch in loader] == [[0, 1, 3, 5]]
    assert [problem.sample for problem in loader.skipped] == [2, 4]
