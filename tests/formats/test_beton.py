""".beton: the suite, files that FFCV wrote, the layout's odd corners, and FFCV reading what we write."""

import io
import json
import lzma
import os
import shutil
import struct
import sys
import zlib
from typing import ClassVar

import numpy as np
import psutil
import pytest
from PIL import Image as Pillow

import batchplant as bp
import processes
from batchplant.codecs.media import image
from batchplant.formats import beton
from batchplant.formats.beton import (
    ALLOCATION,
    BYTES,
    CUSTOM,
    DESCRIPTOR,
    HEADER,
    INT,
    NOTE_MAGIC,
    RGB,
    short_names,
    table_dtype,
)
from batchplant.testing import FormatSuite
from batchplant.testing.cases import cells, check_samples, jpeg, pixels, png
from repository import GOLDEN

MIB = 1 << 20
SMALL_PAGE = 2 * MIB


class TestSuite(FormatSuite):
    format = "beton"
    suffix = ".beton"
    options: ClassVar = {"page_size": SMALL_PAGE}
    golden = GOLDEN


def write(path, schema, samples, **options):
    with bp.create(path, schema, **options) as out:
        for sample in samples:
            out.append(sample)
    return bp.open(path)


# --- files that FFCV wrote ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """name → the unpacked file, and what went into it."""
    folder = tmp_path_factory.mktemp("golden")

    def unpack(name):
        path = folder / f"{name}.beton"
        if not path.exists():
            path.write_bytes(lzma.decompress((GOLDEN / "beton" / f"{name}.beton.xz").read_bytes()))
        with np.load(GOLDEN / "beton" / f"{name}.npz") as arrays:
            return path, dict(arrays)

    return unpack


def went_in(arrays):
    """The samples that an archive of expected values describes."""
    areas = arrays["image_shape"].prod(axis=1)
    images = np.split(arrays["image"], np.cumsum(areas)[:-1])
    blobs = np.split(arrays["blob"], np.cumsum(arrays["blob_len"])[:-1])
    for row, shape in enumerate(arrays["image_shape"]):
        yield {
            "image": images[row].reshape(shape),
            "label": int(arrays["label"][row]),
            "score": float(arrays["score"][row]),
            "feat": arrays["feat"][row],
            "blob": blobs[row].tobytes(),
            "meta": json.loads(str(arrays["meta"][row])),
            "tensor": arrays["tensor"][row],
        }


GOLDEN_FIELDS = {
    "image": bp.Image(),
    "label": bp.Int(),
    "score": bp.Float(),
    "feat": bp.Tensor("float32", (3, 4)),
    "blob": bp.Bytes(),
    "meta": bp.Json(),
    "tensor": bp.Tensor("int16", (2, 2, 2)),
}


@pytest.mark.parametrize("name", ["raw_fixed", "jpg", "proportion", "smart_resized"])
def test_files_of_ffcv_are_read_to_the_last_byte(golden, name):
    path, arrays = golden(name)
    with bp.open(path) as reader:
        assert dict(reader.schema) == GOLDEN_FIELDS
        assert len(reader) == 15
        for sample, wrote in zip(reader, went_in(arrays), strict=True):
            for field in ("label", "score", "blob", "meta"):
                assert sample[field] == wrote[field]
            for field in ("feat", "tensor"):
                assert np.array_equal(sample[field], wrote[field])
    assert bp.verify(path, decode=True).problems == []


def raw_rows(reader):
    column = reader.read(range(len(reader)), ["image"])["image"]
    return column.raw


def test_raw_images_of_ffcv_are_exact(golden):
    path, arrays = golden("raw_fixed")
    with bp.open(path) as reader:
        assert raw_rows(reader).all()
        for sample, wrote in zip(reader, went_in(arrays), strict=True):
            assert np.array_equal(sample["image"], wrote["image"])


@pytest.mark.parametrize("name", ["jpg", "proportion"])
def test_jpeg_images_of_ffcv_decode_near_what_went_in(golden, name):
    path, arrays = golden(name)
    with bp.open(path) as reader:
        raw = raw_rows(reader)
        assert not raw.all()
        assert raw.any() == (name == "proportion")
        for row, wrote in enumerate(went_in(arrays)):
            result = reader[row]["image"]
            assert result.shape == wrote["image"].shape
            if raw[row]:
                assert np.array_equal(result, wrote["image"])


def test_smart_images_of_ffcv_have_the_sizes_that_we_would_give_them(golden):
    path, arrays = golden("smart_resized")
    with bp.open(path) as reader:
        raw = raw_rows(reader)
        for row, wrote in enumerate(went_in(arrays)):
            ours = image.fit(wrote["image"], 64)
            result = reader[row]["image"]
            assert result.shape == ours.shape
            # FFCV shrinks with OpenCV, which computes areas of small images in fixed point.
            if raw[row]:
                assert np.abs(result.astype(int) - ours.astype(int)).max() <= 1


def test_several_pages_written_by_several_workers(golden):
    path, arrays = golden("pages")
    with bp.open(path) as reader:
        assert [sample["label"] for sample in reader] == arrays["label"].tolist()
        assert [int(sample["image"].sum()) for sample in reader] == arrays["image_sum"].tolist()
        assert len(set(reader.blocks().tolist())) == 5
    assert bp.verify(path, decode=True).problems == []


@pytest.mark.parametrize("name", ["raw_fixed", "jpg", "pages"])
def test_files_of_ffcv_convert_without_a_changed_byte(golden, name, tmp_path):
    path, _ = golden(name)
    bp.convert(path, tmp_path / "again.beton")
    bp.convert(tmp_path / "again.beton", tmp_path / "other.npz")
    with bp.open(path) as before, bp.open(tmp_path / "other.npz") as after:
        assert cells(before) == cells(after)
    assert bp.verify(tmp_path / "other.npz", against=path).problems == []


# --- fields -------------------------------------------------------------------------------------------


def patch(path, offset, data):
    with open(path, "r+b") as file:
        file.seek(offset)
        file.write(data)


def test_custom_field_types_are_read_when_told_how(golden, tmp_path):
    source, arrays = golden("raw_fixed")
    path = shutil.copy(source, tmp_path)
    number = list(GOLDEN_FIELDS).index("blob")
    patch(path, HEADER.itemsize + number * DESCRIPTOR.itemsize, bytes([CUSTOM]))
    with pytest.raises(bp.SchemaError, match=r"custom=\{'blob': Bytes\(\)\}") as caught:
        bp.open(path)
    assert caught.value.field == "blob"
    with bp.open(path, custom={"blob": bp.Bytes()}) as reader:
        blobs = [wrote["blob"] for wrote in went_in(arrays)]
        assert [sample["blob"] for sample in reader] == blobs
    as_text = {"custom": {"blob": bp.Text()}}
    problems = bp.verify(path, decode=True, **as_text).problems
    assert {problem.field for problem in problems} == {"blob"}


def test_an_unknown_field_type_is_damage(golden, tmp_path):
    path = shutil.copy(golden("raw_fixed")[0], tmp_path)
    patch(path, HEADER.itemsize, bytes([77]))
    with pytest.raises(bp.DamagedError, match="field type 77"):
        bp.open(path, format="beton")


@pytest.mark.parametrize(
    ("names", "short"),
    [
        (["label"], [b"label"]),
        (["a" * 16], [b"a" * 16]),
        (["a" * 17], [b"a" * 16]),
        (["Größe"], [b"Gr__e"]),
        (["a" * 20 + "1", "a" * 20 + "2"], [b"a" * 16, b"a" * 14 + b"~2"]),
        (["ä", "ö", "ü"], [b"_", b"_~2", b"_~2~3"]),
    ],
)
def test_names_that_ffcv_sees(names, short, tmp_path):
    assert short_names(names) == short
    path = tmp_path / "a.beton"
    samples = [{name: number for number, name in enumerate(names)}]
    reader = write(path, {name: bp.Int() for name in names}, samples)
    assert list(reader) == samples
    descriptors = np.frombuffer(path.read_bytes()[HEADER.itemsize :][: len(names) * 1041], DESCRIPTOR)
    assert [bytes(name) for name in descriptors["name"]] == short


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (bp.Int("int8"), 128, "128 is out of range for int8"),
        (bp.Int(), 2**63, "out of range for int64"),
        (bp.Int("uint64"), 2**64, "out of range for uint64"),
        (bp.Int("uint8"), -1, "-1 is out of range for uint8"),
        (bp.Float("float32"), 1e300, "1e.300 is out of range for float32"),
        (bp.Float("float16"), 65520, "65520.0 is out of range for float16"),
    ],
)
def test_numbers_out_of_range_are_refused(field, value, reason, tmp_path):
    def run(**options):
        with bp.create(tmp_path / "a.beton", {"n": field}, **options) as out:
            for number in (1, value, 2):
                out.append({"n": number})
            return out

    with pytest.raises(bp.BatchplantError, match=reason) as caught:
        run()
    assert (caught.value.sample, caught.value.field) == (1, "n")
    assert not (tmp_path / "a.beton").exists()
    [skipped] = run(on_error="skip").skipped
    assert (skipped.sample, skipped.field) == (1, "n")
    assert [sample["n"] for sample in bp.open(tmp_path / "a.beton")] == [1, 2]


# --- pages --------------------------------------------------------------------------------------------


def allocations(reader):
    """Every cell's place, from the file itself."""
    data = np.fromfile(reader.path, np.uint8)
    header = data[: HEADER.itemsize].view(HEADER)[0]
    return header, data[int(header["allocations"]) :].view(ALLOCATION)


def check_pages(reader):
    """No cell crosses the end of a page, none overlaps another or the table."""
    header, table = allocations(reader)
    page = int(header["page"])
    starts, sizes = table["ptr"].astype(np.int64), np.maximum(table["size"].astype(np.int64), 1)
    assert (starts // page == (starts + sizes - 1) // page).all()
    order = np.argsort(starts)
    assert (starts[order][:-1] + sizes[order][:-1] <= starts[order][1:]).all()
    types = reader.types
    end = HEADER.itemsize + len(types) * DESCRIPTOR.itemsize
    assert starts.min() >= end + int(header["samples"]) * table_dtype(types).itemsize
    assert int(header["allocations"]) % page == 0 or int(header["allocations"]) >= (starts + sizes).max()
    return page


@pytest.mark.parametrize("may_move", [True, False])
def test_the_page_grows_for_a_large_sample(may_move, tmp_path, monkeypatch):
    """That alone moves nothing."""
    if not may_move:
        monkeypatch.setattr(beton.BetonWriter, "_move", None)
    sizes = [1000, 1_500_000, 1_500_000, 5 * MIB, 7, 0, 2_000_000]
    samples = [{"n": n, "blob": bytes([n + 1]) * size} for n, size in enumerate(sizes)]
    schema = {"n": bp.Int(), "blob": bp.Bytes()}
    reader = write(tmp_path / "a.beton", schema, samples, page_size=SMALL_PAGE)
    check_samples(reader, schema, samples)
    assert check_pages(reader) == 8 * MIB
    assert bp.verify(reader).problems == []


@pytest.mark.parametrize("length", [None, 10, 95_000])
def test_more_samples_than_there_was_room_for(length, tmp_path):
    """95,000 samples of 24 bytes need more than the page that is kept for the table."""
    count = 95_000
    schema = bp.Schema(n=bp.Int(), blob=bp.Bytes())
    blobs = [struct.pack("<I", n) * (n % 3) for n in range(count)]
    columns = bp.Columns(n=np.arange(count), blob=bp.Ragged.from_cells(blobs))
    with bp.create(tmp_path / "a.beton", schema, page_size=SMALL_PAGE, length=length) as out:
        out.append(columns)
    with bp.open(tmp_path / "a.beton") as reader:
        assert len(reader) == count
        assert reader.schema == schema
        result = reader.read(range(count))
        assert np.array_equal(result["n"], columns["n"])
        assert np.array_equal(result["blob"].data, columns["blob"].data)
        assert np.array_equal(result["blob"].offsets, columns["blob"].offsets)
        check_pages(reader)


@pytest.mark.parametrize("size", [0, 1000, 3 * MIB, 1 << 32, -SMALL_PAGE])
def test_page_sizes_that_cannot_be(size, tmp_path):
    if size == 0:
        assert write(tmp_path / "a.beton", {"n": bp.Int()}, [], page_size=size).page == SMALL_PAGE
        return
    with pytest.raises(bp.OptionError, match="power of two from 2 MiB to 2 GiB"):
        bp.create(tmp_path / "a.beton", {"n": bp.Int()}, page_size=size)
    assert os.listdir(tmp_path) == []


def test_large_files_have_the_pages_that_ffcv_uses(tmp_path):
    blob = bytes(MIB - 1)
    reader = write(tmp_path / "a.beton", {"blob": bp.Bytes()}, [{"blob": blob}] * 40)
    assert check_pages(reader) == 8 * MIB
    assert write(tmp_path / "b.beton", {"blob": bp.Bytes()}, [{"blob": blob}]).page == SMALL_PAGE


# --- images -----------------------------------------------------------------------------------------


def photo(height, width, channels=3):
    """Smooth, so that JPEG of it is small and near."""
    y, x = np.mgrid[:height, :width]
    planes = [127 + 100 * np.sin(x / 9 + k) * np.cos(y / 7 - k) for k in range(channels)]
    return image.squeeze(np.stack(planes, axis=-1).astype(np.uint8))


@pytest.mark.parametrize(
    ("mode", "options", "raw"),
    [
        (None, {}, [True, True]),
        ("raw", {}, [True, True]),
        ("jpg", {}, [False, False]),
        ("smart", {"smart_threshold": 40 * 50 * 3}, [True, False]),
        ("smart", {"smart_threshold": 40 * 50 * 3 - 1}, [False, False]),
        ("smart", {"smart_threshold": 40 * 50 * 3, "max_resolution": 40}, [True, True]),
        ("proportion", {"compress_probability": 0}, [True, True]),
        ("proportion", {"compress_probability": 1}, [False, False]),
    ],
)
def test_write_modes(mode, options, raw, tmp_path):
    photos = [photo(40, 50), photo(60, 64)]
    samples = [{"image": item} for item in photos]
    reader = write(tmp_path / "a.beton", {"image": bp.Image()}, samples, write_mode=mode, **options)
    assert raw_rows(reader).tolist() == raw
    for sample, original, exact in zip(reader, photos, raw, strict=True):
        expected = image.fit(original, options.get("max_resolution"))
        assert sample["image"].shape == expected.shape
        difference = np.abs(sample["image"].astype(int) - expected.astype(int)).max()
        assert difference == 0 if exact else 0 < difference < 40


def test_the_proportion_is_kept_and_depends_on_seed_and_number_alone(tmp_path):
    samples = [{"image": pixels(2, 2, 3)}] * 200

    def chosen(name, **options):
        path = tmp_path / f"{name}.beton"
        how = {"write_mode": "proportion", "compress_probability": 0.3, **options}
        return raw_rows(write(path, {"image": bp.Image()}, samples, **how))

    first = chosen("first", workers=1)
    assert 110 < first.sum() < 170
    assert np.array_equal(first, chosen("again", workers=4))
    assert not np.array_equal(first, chosen("other", seed=1))


@pytest.mark.parametrize(
    ("size", "longest", "expected"),
    [((100, 37), 64, (64, 23)), ((37, 100), 64, (23, 64)), ((64, 64), 64, (64, 64)), ((500, 1), 10, (10, 1))],
)
def test_max_resolution(size, longest, expected, tmp_path):
    samples = [{"image": photo(*size)}]
    reader = write(tmp_path / "a.beton", {"image": bp.Image()}, samples, max_resolution=longest)
    assert reader[0]["image"].shape == (*expected, 3)


def test_jpeg_files_pass_untouched_unless_they_must_not(tmp_path):
    data = image.encode(photo(40, 60), "jpeg", quality=85)

    def stored(**options):
        with write(
            tmp_path / "a.beton", {"image": bp.Image()}, [{"image": data}], overwrite=True, **options
        ) as reader:
            return cells(reader)["image"][0], reader[0]["image"]

    assert stored()[0] == data
    assert stored(write_mode="jpg")[0] == data
    assert stored(max_resolution=60)[0] == data
    again, decoded = stored(reencode=True, jpeg_quality=50)
    assert len(again) < len(data)
    assert decoded.shape == (40, 60, 3)
    assert np.array_equal(stored(write_mode="raw")[1], image.decode(data))
    small, decoded = stored(max_resolution=30)
    assert image.header(np.frombuffer(small, np.uint8)).encoding == "jpeg"
    assert decoded.shape == (20, 30, 3)


def encoded(photo, encoding, **options):
    buffer = io.BytesIO()
    photo.save(buffer, encoding, **options)
    return buffer.getvalue()


def palette(transparent=False):
    indexed = Pillow.fromarray(photo(8, 9)).quantize(16)
    return encoded(indexed, "PNG", **({"transparency": 0} if transparent else {}))


def rgb16():
    """A PNG of 16 bits a channel, which Pillow cannot write."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + struct.pack(">18H", *range(1000 + n, 1018 + n)) for n in range(5))
    head = struct.pack(">IIBBBBB", 6, 5, 16, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )


GRAY = photo(8, 9, 1)
GRAY_JPEG = image.encode(GRAY, "jpeg")
ODD_IMAGES = {
    "gray png": (png(5, 6), np.repeat(pixels(5, 6)[:, :, None], 3, axis=2)),
    "gray jpeg": (GRAY_JPEG, np.repeat(image.decode(GRAY_JPEG)[:, :, None], 3, axis=2)),
    "one bit": (
        encoded(Pillow.fromarray(GRAY).convert("1"), "PNG"),
        np.repeat(np.asarray(Pillow.fromarray(GRAY).convert("1").convert("L"))[:, :, None], 3, axis=2),
    ),
    "palette": (palette(), np.asarray(Pillow.open(io.BytesIO(palette())).convert("RGB"))),
    "bmp": (encoded(Pillow.fromarray(photo(8, 9)), "BMP"), photo(8, 9)),
    "tiff": (encoded(Pillow.fromarray(photo(8, 9)), "TIFF"), photo(8, 9)),
    "webp": (image.encode(photo(8, 9), "webp"), photo(8, 9)),
    "gif": (encoded(Pillow.fromarray(photo(8, 9)), "GIF"), None),
    "rgba png": (png(5, 6, 4), "RGBA"),
    "la png": (png(5, 6, 2), "LA"),
    "palette with transparency": (palette(transparent=True), "RGBA"),
    "16-bit gray": (image.encode(pixels(5, 6, dtype=np.uint16), "png"), "I;16"),
    "16-bit rgb": (rgb16(), "RGB;16"),
    "cmyk jpeg": (encoded(Pillow.fromarray(photo(8, 9)).convert("CMYK"), "JPEG"), "CMYK"),
    "cmyk tiff": (encoded(Pillow.fromarray(photo(8, 9)).convert("CMYK"), "TIFF"), "CMYK"),
}  # fmt: skip


@pytest.mark.parametrize("name", ODD_IMAGES)
def test_images_are_stored_exactly_or_refused(name, tmp_path):
    data, expected = ODD_IMAGES[name]
    path = tmp_path / "a.beton"
    if isinstance(expected, str):
        with pytest.raises(bp.EncodeError, match=rf"the image is {expected}, .*to_rgb") as caught:
            write(path, {"image": bp.Image()}, [{"image": data}])
        assert (caught.value.sample, caught.value.field) == (0, "image")
        assert not path.exists()
        reader = write(path, {"image": bp.Image()}, [{"image": data}], to_rgb=True)
        assert reader[0]["image"].shape[2] == 3
    else:
        if expected is None:
            expected = np.asarray(Pillow.open(io.BytesIO(data)).convert("RGB"))
        reader = write(path, {"image": bp.Image()}, [{"image": data}])
        assert np.array_equal(reader[0]["image"], expected)
    # A field of no certain mode keeps any file as it is.
    reader = write(path, {"image": bp.Image(mode=None)}, [{"image": data}], overwrite=True)
    assert cells(reader)["image"] == [data]


@pytest.mark.parametrize("name", [name for name, (_, held) in ODD_IMAGES.items() if isinstance(held, str)])
@pytest.mark.parametrize("options", [{"write_mode": "raw"}, {"max_resolution": 4}, {"reencode": True}])
def test_a_image_that_has_to_be_decoded_is_no_silent_change_either(name, options, tmp_path):
    data, mode = ODD_IMAGES[name]

    def run():
        return write(tmp_path / "a.npz", {"image": bp.Image(mode=None)}, [{"image": data}], **options)

    if mode in ("CMYK", "RGB;16", "I;16") and "write_mode" in options:
        with pytest.raises(bp.EncodeError, match=r"sample 0, field 'image': .*(CMYK|16)"):
            run()
        return
    reader = run()
    expected = image.fit(image.decode(data), options.get("max_resolution"))
    if name == "cmyk jpeg":
        assert image.header(reader.read([0])["image"][0]).mode == "CMYK"
        assert np.abs(reader[0]["image"].astype(int) - expected).mean() < 6
    else:
        assert np.array_equal(reader[0]["image"], expected)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (pixels(4, 4), "the image is L, and the field says RGB"),
        (pixels(4, 4, 4), "the image is RGBA, and the field says RGB"),
        (pixels(4, 4, 3).astype(np.float32), "the image is float32x3, and the field says RGB"),
        (pixels(4, 4, 3).astype(np.complex64), "an image of complex64 has no image format"),
        (pixels(4, 4, 5), "the image is uint8x5, and the field says RGB"),
        (pixels(2, 4, 4, 3), r"an image of shape \(2, 4, 4, 3\)"),
        (np.zeros((0, 4, 3), np.uint8), r"an image of shape \(0, 4, 3\)"),
        (b"no image", "not an image that batchplant knows"),
        (b"", "not an image that batchplant knows"),
        (jpeg()[:100], "bad JPEG"),
        (np.zeros((1, 70_000, 3), np.uint8), "at most 65535 pixels a side"),
    ],
)
def test_what_is_no_image_for_the_field_is_refused(value, reason, tmp_path):
    with pytest.raises(bp.BatchplantError, match=reason) as caught:
        write(tmp_path / "a.beton", {"image": bp.Image()}, [{"image": jpeg()}, {"image": value}])
    assert (caught.value.sample, caught.value.field) == (1, "image")
    with bp.create(tmp_path / "a.beton", {"image": bp.Image()}, on_error="skip") as out:
        for item in (jpeg(), value, jpeg()):
            out.append({"image": item})
    assert [problem.sample for problem in out.skipped] == [1]
    assert len(bp.open(tmp_path / "a.beton")) == 2


# --- lies and damage ----------------------------------------------------------------------------------


def make_small(path):
    """Four samples; where the table is, and its dtype."""
    samples = [{"image": jpeg(), "n": n, "blob": bytes([n])} for n in range(4)]
    schema = {"image": bp.Image(), "n": bp.Int(), "blob": bp.Bytes()}
    write(path, schema, samples, page_size=SMALL_PAGE).close()
    return HEADER.itemsize + 3 * DESCRIPTOR.itemsize, table_dtype([RGB, INT, BYTES])


def test_damage_is_named_by_sample_and_field(tmp_path):
    path = tmp_path / "a.beton"
    table, row = make_small(path)
    outside = struct.pack("<Q", 1 << 40)
    patch(path, table + 2 * row.itemsize + row.fields["f2"][1], outside)
    patch(path, table + 3 * row.itemsize + row.fields["f0"][1], b"\x09")
    result = bp.verify(path)
    assert [(problem.sample, problem.field) for problem in result.problems] == [(2, "blob"), (3, "image")]
    with bp.open(path) as reader:
        assert reader[1]["blob"] == b"\1"
        with pytest.raises(bp.DamagedError, match="the cell claims 1 bytes, and the file ends at") as caught:
            reader[2]
        assert (caught.value.sample, caught.value.field) == (2, "blob")
        with pytest.raises(bp.DamagedError, match="image mode 9"):
            reader.read([3])


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        ("version", 3, "version 3 is not FFCV's version 2"),
        ("fields", 0, "the header promises"),
        ("fields", 60_000, "bytes are needed here"),
        ("page", 0, "the header promises"),
        ("samples", 1 << 62, "the header promises 4611686018427387904 samples"),
        ("allocations", 1 << 63, "the header promises"),
        ("allocations", 0, "the header promises"),
    ],
)
def test_a_lying_header(field, value, reason, tmp_path):
    path = tmp_path / "a.beton"
    make_small(path)
    dtype, offset = HEADER.fields[field]
    patch(path, offset, np.array([value], dtype).tobytes())
    with pytest.raises(bp.DamagedError, match=reason):
        bp.open(path, format="beton")


def test_a_damaged_note_of_ours_is_noticed(tmp_path):
    path = tmp_path / "a.beton"
    make_small(path)
    at = path.read_bytes().index(NOTE_MAGIC)
    patch(path, at + 20, b"?")
    with pytest.raises(bp.DamagedError, match="schema is damaged: its checksum is wrong"):
        bp.open(path)


def test_an_unknown_jpeg_and_a_misplaced_allocation(tmp_path):
    path = tmp_path / "a.beton"
    make_small(path)
    header, table = allocations(bp.open(path))
    at = int(header["allocations"])
    patch(path, at + 8, struct.pack("<Q", int(table["ptr"][0]) + SMALL_PAGE * 9))
    result = bp.verify(path)
    assert "allocation 0 (" in result.problems[0].message
    assert (0, "image") in [(problem.sample, problem.field) for problem in result.problems]


def test_ten_million_samples_open_without_their_tables(tmp_path):
    """Only pages of the file that are touched take memory; the tables alone are half a gigabyte."""
    count, path = 10_000_000, tmp_path / "a.beton"
    types = [INT, BYTES]
    table = HEADER.itemsize + 2 * DESCRIPTOR.itemsize
    allocations_at = -(-(table + count * table_dtype(types).itemsize) // SMALL_PAGE) * SMALL_PAGE
    header = np.array([(2, 2, SMALL_PAGE, count, allocations_at)], HEADER)
    descriptors = np.zeros(2, DESCRIPTOR)
    descriptors["type"], descriptors["name"] = types, [b"n", b"blob"]
    with open(path, "wb") as file:
        file.write(header.tobytes() + descriptors.tobytes())
        file.truncate(allocations_at + count * ALLOCATION.itemsize)
    before = psutil.Process().memory_info().rss
    with bp.open(path) as reader:
        assert len(reader) == count
        assert reader[9_999_999] == {"n": 0, "blob": b""}
        assert psutil.Process().memory_info().rss - before < 100 * MIB


# --- FFCV itself --------------------------------------------------------------------------------------

# Reads files with FFCV's own loader, and saves what it gave: "FIELD SAMPLE" → array, one archive for each.
READ_WITH_FFCV = """
import json, sys
import numpy as np
from ffcv.fields import JSONField
from ffcv.fields.decoders import (
    BytesDecoder, FloatDecoder, IntDecoder, NDArrayDecoder, SimpleRGBImageDecoder)
from ffcv.loader import Loader, OrderOption

DECODERS = {"image": SimpleRGBImageDecoder, "number": IntDecoder, "score": FloatDecoder,
            "blob": BytesDecoder, "meta": BytesDecoder, "array": NDArrayDecoder}
for path in sys.argv[1:]:
    for os_cache in (True, False):
        loader = Loader(path, batch_size=1, num_workers=1, order=OrderOption.SEQUENTIAL, os_cache=os_cache,
                        pipelines={name: [make()] for name, make in DECODERS.items()})
        found = {}
        for row, batch in enumerate(loader):
            for name, value in zip(loader.reader.handlers, batch):
                value = np.asarray(value)[0]
                if name == "meta":
                    value = np.frombuffer(json.dumps(JSONField.unpack(value)).encode(), np.uint8)
                found[f"{name} {row}"] = value.copy()
        np.savez(f"{path}.{os_cache}.npz", **found)
"""


@pytest.fixture(scope="module")
def ffcv_python():
    """An interpreter that has FFCV."""
    result = os.environ.get("BATCHPLANT_FFCV_PYTHON", sys.executable)
    if processes.run([result, "-c", "import ffcv"], capture_output=True).returncode:
        pytest.skip("FFCV is not installed; BATCHPLANT_FFCV_PYTHON may name a Python that has it")
    return result


@pytest.mark.reference
def test_ffcv_reads_what_we_write(ffcv_python, tmp_path):
    """Raw and JPEG images, several pages, a page that grew, tables that had to be moved for."""
    schema = {
        "image": bp.Image(),
        "number": bp.Int(),
        "score": bp.Float(),
        "blob": bp.Bytes(),
        "meta": bp.Json(),
        "array": bp.Tensor("float32", (3, 4)),
    }
    rng = np.random.default_rng(5)

    def samples(largest):
        for n in range(24):
            yield {
                "image": np.roll(photo(48, 64), n, axis=1),
                "number": int(rng.integers(-(2**62), 2**62)),
                "score": float(rng.normal()),
                "blob": rng.bytes(largest if n == 7 else 200_000 + n),
                "meta": {"n": n, "text": "größe", "list": [None, 1.5]},
                "array": rng.normal(size=(3, 4)).astype(np.float32),
            }

    wrote = {}
    for name, largest, mode in (
        ("raw", 300_000, "raw"),
        ("jpg", 300_000, "jpg"),
        ("grown", 5 * MIB, "smart"),
    ):
        path = str(tmp_path / f"{name}.beton")
        wrote[path] = list(samples(largest))
        ours = write(path, schema, wrote[path], write_mode=mode, page_size=SMALL_PAGE)
        assert len(set(ours.blocks().tolist())) > 1
        assert (ours.page > SMALL_PAGE) == (name == "grown")
    done = processes.run([ffcv_python, "-c", READ_WITH_FFCV, *wrote], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    for path, expected in wrote.items():
        for os_cache in (True, False):
            with np.load(f"{path}.{os_cache}.npz") as read, bp.open(path) as ours:
                assert len(read.files) == len(expected) * len(schema)
                for row, sample in enumerate(expected):
                    theirs = {name: read[f"{name} {row}"] for name in schema}
                    assert int(theirs["number"].item()) == sample["number"]
                    assert float(theirs["score"].item()) == sample["score"]
                    # FFCV gives every sample the length of the longest, whatever lies behind it.
                    assert theirs["blob"].tobytes()[: len(sample["blob"])] == sample["blob"]
                    assert json.loads(theirs["meta"].tobytes()) == sample["meta"]
                    assert np.array_equal(theirs["array"], sample["array"])
                    away = np.abs(theirs["image"].astype(int) - ours[row]["image"].astype(int))
                    # Of JPEG's two transforms FFCV takes the fast one, and we the exact one.
                    assert away.mean() < 2 if path.endswith("jpg.beton") else away.max() == 0


def test_large_unsigned_numbers_keep_their_bits(tmp_path):
    """FFCV has no uint64: it sees the int64 of the same bits."""
    values = [0, 2**63 - 1, 2**63, 2**64 - 1]
    with bp.create(tmp_path / "a.beton", {"u": bp.Int("uint64")}) as out:
        for value in values:
            out.append({"u": value})
    with bp.open(tmp_path / "a.beton") as data:
        assert [sample["u"] for sample in data] == values
        assert data.read([3])["u"].dtype == np.uint64
    bp.convert(tmp_path / "a.beton", tmp_path / "b.csv")
    assert [sample["u"] for sample in bp.open(tmp_path / "b.csv")] == values
