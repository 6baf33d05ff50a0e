"""Images on their way into another file: encodings asked for, what travels with them, turned, masks."""

import io

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.codecs.media import exif, image, tiff
from batchplant.testing.cases import cells, pixels

Pillow = pytest.importorskip("PIL.Image")
pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")


def smooth(height=24, width=32, channels=3):
    rows, columns = np.mgrid[:height, :width]
    ramp = np.stack([rows * 5 + columns * (n + 1) for n in range(channels)], axis=2)
    return image.squeeze((ramp % 256 if channels > 4 else np.minimum(ramp, 255)).astype(np.uint8))


def saved(photo, encoding, **options):
    out = io.BytesIO()
    photo.save(out, format=encoding, **options)
    return out.getvalue()


def classes(height=24, width=32):
    return np.random.default_rng(0).choice(np.array([0, 3, 7, 200], np.uint8), (height, width))


def palette_mask(encoding="png"):
    photo = Pillow.frombytes("P", (32, 24), classes().tobytes())
    photo.putpalette([n * 37 % 256 for n in range(768)])
    return saved(photo, encoding)


SOURCES = {
    "jpeg": image.encode(smooth(), "jpeg"),
    "png": image.encode(smooth(), "png"),
    "webp": image.encode(smooth(), "webp"),
    "lossy webp": image.encode(smooth(), "webp", lossless=False),
    "tiff": image.encode(smooth(), "tiff"),
    "bmp": image.encode(smooth(), "bmp"),
    "gif": saved(Pillow.fromarray(smooth()).convert("P"), "gif"),
    "array": smooth(),
}


def stored(tmp_path, value, field=None, target="a.npz", **options):
    """What becomes of one image: the field, the bytes of the cell, its encoding, the pixels."""
    with bp.create(
        tmp_path / target, {"image": field or bp.Image(mode=None)}, overwrite=True, **options
    ) as out:
        out.append({"image": value})
    with bp.open(tmp_path / target) as reader:
        column = reader.read([0])["image"]
        raw = column.shape is not None and column.shape[0].any()
        data = cells(reader)["image"][0]
        encoding = "raw" if raw else image.header(np.frombuffer(data, np.uint8)).encoding
        return reader.schema["image"], data, encoding, reader[0]["image"]


def difference(mine, theirs):
    return float(np.abs(np.asarray(mine, float) - theirs).mean())


@pytest.mark.parametrize("target", ["jpeg", "png", "webp", "tiff", "bmp", "raw"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("lossless", [False, True])
def test_every_encoding_becomes_every_other(source, target, lossless, tmp_path):
    if lossless and target == "jpeg":
        pytest.skip("there is no such")
    value = SOURCES[source]
    field, data, encoding, result = stored(tmp_path, value, image_format=target, lossless=lossless)
    assert encoding == target
    assert field.encoding == target
    before = value if source == "array" else image.decode(value)
    if source.split()[-1] == target:
        assert data == value
    elif target in ("png", "tiff", "bmp", "raw") or lossless:
        assert np.array_equal(result, before)
    else:
        # The colours of the GIF are a pattern of dots.
        assert 0 < difference(result, before) < (40 if source == "gif" else 12)
        assert exif.is_lossy_webp(data) == (target == "webp")


@pytest.mark.parametrize("target", ["jpeg", "webp"])
def test_quality_is_of_both_lossy_encodings(target, tmp_path):
    sizes = [
        len(stored(tmp_path, pixels(64, 64, 3), image_format=target, quality=quality)[1])
        for quality in (10, 50, 90)
    ]
    assert sizes == sorted(sizes)
    assert sizes[2] > 2 * sizes[0]
    old, new = ({"jpeg_quality": 50}, {"quality": 50})
    assert (
        stored(tmp_path, pixels(64, 64, 3), image_format=target, **old)[1]
        == (stored(tmp_path, pixels(64, 64, 3), image_format=target, **new)[1])
    )


def test_what_has_the_encoding_passes_unless_it_is_to_be_encoded_again(tmp_path):
    data = SOURCES["jpeg"]
    assert stored(tmp_path, data, image_format="jpeg", quality=20)[1] == data
    again = stored(tmp_path, data, image_format="jpeg", quality=20, reencode=True)[1]
    assert len(again) < len(data)


def test_what_shrinks_stays_as_lossy_as_it_was(tmp_path):
    for source in ("jpeg", "lossy webp", "webp", "png", "tiff"):
        _, data, encoding, result = stored(tmp_path, SOURCES[source], max_resolution=16)
        assert encoding == source.split()[-1]
        assert result.shape == (12, 16, 3)
        assert exif.is_lossy_webp(data) == (source == "lossy webp")


@pytest.mark.parametrize("kind", ["RGB", "L", "CMYK", "progressive"])
def test_a_jpeg_shrinks_as_its_pixels_do(kind, tmp_path):
    """In one go where it is in color and undamaged, which rounds once less than decoding and shrinking."""
    photo = Pillow.fromarray(smooth(120, 90))
    buffer = io.BytesIO()
    mode = kind if kind in ("L", "CMYK") else "RGB"
    photo.convert(mode).save(buffer, "JPEG", progressive=kind == "progressive")
    data = buffer.getvalue()
    shrunk = stored(tmp_path, data, max_resolution=50, image_format="png" if mode != "CMYK" else "tiff")[3]
    expected = image.fit(image.decode(data), 50)
    assert shrunk.shape == expected.shape
    assert np.abs(shrunk.astype(int) - expected).max() <= 1


def test_a_cut_jpeg_is_refused_when_it_shrinks(tmp_path):
    data = SOURCES["jpeg"]
    with pytest.raises(bp.DecodeError, match="sample 0"):
        stored(tmp_path, data[: len(data) * 3 // 4] + b"\xff\xd9", max_resolution=16)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"image_format": "avif"}, "image_format is one of jpeg, png"),
        ({"image_format": "webp", "write_mode": "jpg"}, "give one of them"),
        ({"image_format": "jpeg", "lossless": True}, "jpeg cannot be lossless"),
        ({"lossless": True}, "lossless needs an image_format"),
        ({"image_format": "webp", "lossless": True, "quality": 80}, "stored without loss"),
        ({"image_format": "png", "quality": 80}, "png is stored without loss"),
        ({"image_format": "webp", "quality": 0}, "quality must be from 1 to 100"),
    ],
)
def test_options_that_contradict_each_other(options, reason, tmp_path):
    with pytest.raises(bp.OptionError, match=reason):
        bp.ImageOptions(**options)
    with pytest.raises(bp.OptionError, match=reason):
        bp.create(tmp_path / "a.npz", {"image": bp.Image()}, **options)
    assert bp.ImageOptions(image_format="jpg").image_format == "jpeg"


@pytest.mark.parametrize(
    ("value", "target", "reason"),
    [
        (smooth(channels=4), "jpeg", "JPEG cannot hold RGBA"),
        (smooth(channels=2), "bmp", "bmp cannot hold LA"),
        (smooth().astype(np.float32), "png", "png cannot hold float32x3 pixels; use tiff"),
        (smooth().astype(np.uint16), "webp", "webp cannot hold RGB;16 pixels; use png or tiff"),
        (smooth().astype(np.uint16), "raw", "the image is RGB;16"),
    ],
)
def test_what_an_encoding_cannot_hold_is_refused(value, target, reason, tmp_path):
    with pytest.raises(bp.EncodeError, match=rf"sample 0, field 'image': .*{reason}"):
        stored(tmp_path, value, image_format=target)


def test_gray_as_webp_comes_back_as_rgb(tmp_path):
    field, _, _, result = stored(
        tmp_path, smooth(channels=1), bp.Image(mode="L"), image_format="webp", lossless=True
    )
    assert field == bp.Image("webp", None)
    assert np.array_equal(result, np.repeat(smooth(channels=1)[:, :, None], 3, axis=2))


def test_only_the_first_page_is_never_kept_in_silence(tmp_path):
    frames = [Pillow.fromarray(pixels(8, 8, 3)).rotate(90 * n) for n in range(3)]
    for encoding in ("gif", "webp", "tiff", "png"):
        data = saved(frames[0], encoding, save_all=True, append_images=frames[1:])
        assert stored(tmp_path, data)[1] == data
        other = "png" if encoding != "png" else "tiff"
        with pytest.raises(bp.EncodeError, match="it has 3 pages, and only the first would be kept"):
            stored(tmp_path, data, image_format=other)
        assert stored(tmp_path, data, image_format=other, to_rgb=True)[3].shape == (8, 8, 3)


# -- EXIF ----------------------------------------------------------------------------------------------


def with_exif(encoding, orientation=6):
    notes = Pillow.Exif()
    notes[tiff.ORIENTATION] = orientation
    notes[271] = "Maker"
    icc = bytes(16) + b"RGB " + bytes(120)
    metadata = exif.Metadata(notes.tobytes()[6:], icc)
    return exif.attach(image.encode(smooth(), encoding), encoding, metadata)


@pytest.mark.parametrize("target", ["jpeg", "png", "webp", "tiff"])
@pytest.mark.parametrize("source", ["jpeg", "png", "webp", "tiff"])
def test_a_image_that_is_encoded_anew_keeps_its_notes(source, target, tmp_path):
    data = with_exif(source)
    for options in ({"image_format": target}, {"image_format": target, "max_resolution": 16}):
        _, written, encoding, result = stored(tmp_path, data, **options, reencode=True)
        assert (encoding, image.orientation(written)) == (target, 6)
        assert Pillow.open(io.BytesIO(written)).getexif()[271] == "Maker"
        assert exif.read(written).icc == exif.read(data).icc
        assert result.shape == ((12, 16, 3) if "max_resolution" in options else (24, 32, 3))


@pytest.mark.parametrize("encoding", ["jpeg", "png", "webp", "tiff"])
def test_images_are_stored_upright_on_request(encoding, tmp_path):
    for orientation in range(1, 9):
        data = with_exif(encoding, orientation)
        assert stored(tmp_path, data)[1] == data
        _, written, kept, result = stored(tmp_path, data, orient=True)
        if orientation == 1:
            assert written == data
            continue
        assert (kept, image.orientation(written)) == (encoding, 1)
        assert Pillow.open(io.BytesIO(written)).getexif()[271] == "Maker"
        upright = image.orient(image.decode(data), orientation)
        assert difference(result, upright) <= (4 if encoding == "jpeg" else 0)


def test_upright_before_it_is_bounded_and_as_raw(tmp_path):
    data = with_exif("png", 6)
    _, _, encoding, result = stored(tmp_path, data, orient=True, max_resolution=16, image_format="raw")
    assert (encoding, result.shape) == ("raw", (16, 12, 3))
    assert np.array_equal(result, image.fit(image.orient(smooth(), 6), 16))


# -- masks ---------------------------------------------------------------------------------------------

LOSSY = [
    {"write_mode": "jpg"},
    {"write_mode": "smart", "smart_threshold": 1},
    {"write_mode": "proportion", "compress_probability": 1.0},
    {"image_format": "jpeg"},
    {"image_format": "webp"},
    {"image_format": "webp", "quality": 5},
    {"to_rgb": True},
]


@pytest.mark.parametrize("options", LOSSY, ids=str)
@pytest.mark.parametrize("source", ["array", "png", "tiff", "palette", "palette gif"])
def test_masks_are_never_lossy(options, source, tmp_path):
    value = {
        "array": classes(),
        "png": image.encode(classes(), "png"),
        "tiff": image.encode(classes(), "tiff"),
        "palette": palette_mask(),
        "palette gif": palette_mask("gif"),
    }[source]
    field, data, encoding, result = stored(tmp_path, value, bp.Image(mask=True), **options)
    # A GIF numbers its colours anew.
    assert np.array_equal(result, image.decode(value, mask=True) if source == "palette gif" else classes())
    assert field.mask
    assert encoding not in ("jpeg", "webp")
    if source != "array":
        assert data == value


def test_a_mask_that_is_lossy_already_passes_and_is_not_made_worse(tmp_path):
    data = image.encode(classes(), "jpeg")
    mask = bp.Image(mask=True)
    for options in ({}, {"image_format": "jpeg"}, {"write_mode": "jpg"}):
        assert stored(tmp_path, data, mask, **options)[1] == data
    for options in ({"reencode": True}, {"reencode": True, "image_format": "jpeg"}):
        _, _, encoding, result = stored(tmp_path, data, mask, target="a.tar", **options)
        assert encoding == "png"
        assert np.array_equal(result, image.decode(data))
    _, _, encoding, result = stored(tmp_path, data, mask, target="a.tar", max_resolution=16)
    assert encoding == "png"
    assert np.array_equal(result, image.fit(image.decode(data), 16, nearest=True))


@pytest.mark.parametrize("source", ["png", "bmp", "tiff", "gif"])
@pytest.mark.parametrize(
    "options", [{"max_resolution": 16}, {"image_format": "tiff"}, {"image_format": "png"}], ids=str
)
def test_palette_masks_keep_palette_and_indices(source, options, tmp_path):
    data = palette_mask(source)
    _, written, encoding, result = stored(
        tmp_path, data, bp.Image(mask=True, mode="P"), target="a.tar", **options
    )
    assert encoding == options.get("image_format", "png" if source == "gif" else source)
    assert np.array_equal(
        result, image.fit(image.decode(data, mask=True), options.get("max_resolution"), nearest=True)
    )
    before, after = Pillow.open(io.BytesIO(data)), Pillow.open(io.BytesIO(written))
    assert after.mode == "P"
    used = 3 * 201 if source != "gif" else 3 * (int(result.max()) + 1)
    assert after.getpalette()[:used] == before.getpalette()[:used]


def test_a_palette_image_of_pillow_is_a_mask_with_its_palette(tmp_path):
    photo = Pillow.open(io.BytesIO(palette_mask()))
    _, data, _, result = stored(tmp_path, photo, bp.Image(mask=True))
    assert np.array_equal(result, classes())
    assert Pillow.open(io.BytesIO(data)).getpalette()[:603] == photo.getpalette()[:603]
    # Not a mask: colours.
    assert stored(tmp_path, photo)[3].shape == (24, 32, 3)


def test_the_kind_of_a_mask():
    assert bp.Image(mask=True) == bp.Image(mode="L", mask=True)
    assert bp.Image(mask=True, mode=None).mode is None
    schema = bp.Schema({"m": bp.Image("png", "P", mask=True), "n": bp.Image(mask=True, mode=None)})
    assert bp.Schema.from_json(schema.to_json()) == schema
    with pytest.raises(bp.OptionError):
        bp.Image(mask=1)


def pairs(path, mask=None, count=5):
    fields = {"image": bp.Image(), "mask": bp.Image(mode=None), "label": bp.Int()}
    with bp.create(path, fields) as out:
        for n in range(count):
            out.append({"image": SOURCES["jpeg"], "mask": mask or palette_mask(), "label": n})
    return path


def test_the_user_says_which_fields_are_masks(tmp_path):
    pairs(tmp_path / "a.npz")
    with bp.open(tmp_path / "a.npz") as reader:
        assert reader[0]["mask"].shape == (24, 32, 3)
        masks = reader.with_masks(["mask"])
        assert masks.schema["mask"] == bp.Image(mode="P", mask=True)
        assert masks.schema["image"] == reader.schema["image"]
        for some in (masks, masks[1:3], masks.select(["mask"])):
            assert np.array_equal(some[0]["mask"], classes())
        with pytest.raises(bp.OptionError, match="a mask is an image, and 'label' is Int"):
            reader.with_masks(["label"])
        with pytest.raises(bp.FieldNameError):
            reader.with_masks(["nothing"])
    for cell, mode in (
        (image.encode(classes(), "png"), "L"),
        (image.encode(smooth(), "png"), None),
        (image.encode(classes().astype(np.uint16), "png"), "I;16"),
    ):
        path = pairs(tmp_path / f"{mode}.npz", cell)
        assert bp.open(path).with_masks(["mask"]).schema["mask"].mode == mode


def test_convert_keeps_masks_exactly_and_says_so(tmp_path):
    pairs(tmp_path / "a.npz")
    options = bp.ImageOptions(image_format="webp", quality=50, max_resolution=16)
    done = bp.convert(
        tmp_path / "a.npz", tmp_path / "b.tar", images=options, options=bp.ConvertOptions(masks=["mask"])
    )
    assert done.remarks[-1].startswith("mask: a mask is stored without loss")
    with bp.open(tmp_path / "b.tar") as reader:
        assert reader.schema["mask"].mask
        assert np.array_equal(reader[0]["mask"], image.fit(classes(), 16, nearest=True))
        assert exif.is_lossy_webp(cells(reader)["image"][0])
    # Once said it is remembered.
    done = bp.convert(tmp_path / "b.tar", tmp_path / "c.npz", images=bp.ImageOptions(write_mode="jpg"))
    with bp.open(tmp_path / "c.npz") as reader:
        assert reader.schema["mask"].mask
        assert np.array_equal(reader[0]["mask"], image.fit(classes(), 16, nearest=True))


# -- the command line ----------------------------------------------------------------------------------


def test_the_command_line(tmp_path, capsys):
    source = str(pairs(tmp_path / "a.npz"))
    target = str(tmp_path / "b.npz")
    assert (
        main(["convert", source, target, "--image-format", "webp", "--quality", "80", "--mask", "mask"]) == 0
    )
    assert "note: mask: a mask is stored without loss" in capsys.readouterr().out
    with bp.open(target) as reader:
        assert reader.schema["image"].encoding == "webp"
        assert np.array_equal(reader[0]["mask"], classes())
    assert main(["convert", source, target, "--overwrite", "--image-format", "webp", "--lossless"]) == 0
    with bp.open(target) as reader:
        assert np.array_equal(reader[0]["image"], image.decode(SOURCES["jpeg"]))
    assert main(["info", target]) == 0
    assert "webp" in capsys.readouterr().out
    wrong = ["convert", source, target, "--overwrite", "--image-format", "png", "--quality", "80"]
    assert main(wrong) == 2
    assert "png is stored without loss" in capsys.readouterr().err


def test_the_command_line_turns_images(tmp_path):
    with bp.create(tmp_path / "a.npz", {"image": bp.Image(mode=None)}) as out:
        for orientation in (1, 6):
            out.append({"image": with_exif("jpeg", orientation)})
    for options, shapes in (([], {(24, 32, 3)}), (["--orient"], {(24, 32, 3), (32, 24, 3)})):
        target = str(tmp_path / "b.npz")
        assert main(["convert", str(tmp_path / "a.npz"), target, "--overwrite", *options]) == 0
        with bp.open(target) as reader:
            assert {sample["image"].shape for sample in reader} == shapes
            assert cells(reader)["image"][0] == with_exif("jpeg", 1)
            assert image.orientation(cells(reader)["image"][1]) == (1 if options else 6)
