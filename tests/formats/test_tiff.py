"""TIFF as an array: tiles, strips, pages, pyramids; what is damaged; images in folders stay images."""

import contextlib
import io
import pickle
import re
import struct

import numpy as np
import pytest

import batchplant as bp
import repository
from batchplant.testing.cases import cuts, flips, memory_bounded, survive
from variants import in_one_test

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")

RNG = np.random.default_rng(7)
STACK = RNG.integers(0, 60000, (5, 50, 70)).astype(np.uint16)
COLOURS = RNG.integers(0, 255, (50, 70, 3)).astype(np.uint8)


def written(path, values, **options):
    tifffile.imwrite(path, values, **{"photometric": "minisblack", "metadata": None, **options})
    return path


LAYOUTS = {
    "tiles": {"tile": (16, 32), "compression": "zlib", "predictor": True},
    "plain tiles": {"tile": (16, 32)},
    "strips": {"rowsperstrip": 16, "compression": "lzw"},
    "one strip": {},
    "big": {"bigtiff": True, "tile": (16, 16), "byteorder": ">"},
    "zstd": {"tile": (32, 32), "compression": "zstd", "byteorder": ">", "predictor": True},
}


@in_one_test("layout", LAYOUTS)
def test_a_stack_of_pages(layout, tmp_path):
    path = written(tmp_path / "a.tif", STACK, **LAYOUTS[layout])
    with bp.open(path) as data:
        assert data.schema == bp.Schema({"data": bp.Tensor("uint16", (50, 70))})
        assert len(data) == 5
        assert np.array_equal(data[3]["data"], STACK[3])
        assert np.array_equal(data.read([4, 0, 4])["data"], STACK[[4, 0, 4]])
        array = data.array("data")
        assert array.shape == STACK.shape
        assert np.array_equal(array[1:4:2, 7:40, -30:-1:3], STACK[1:4:2, 7:40, -30:-1:3])
        assert np.array_equal(np.asarray(array), STACK)
        assert np.array_equal(pickle.loads(pickle.dumps(array))[2, 3], STACK[2, 3])
        assert data.blocks().tolist() == [0, 1, 2, 3, 4]
    assert bp.verify(path).ok


def test_a_file_of_tifffile():
    folder = repository.GOLDEN / "tiff"
    assert np.array_equal(
        np.asarray(bp.open(folder / "stack.tif").array("data")), np.load(folder / "stack.npy")
    )


@pytest.mark.parametrize("name", ["cog-deflate", "cog-lerc"])
def test_files_of_gdal(name):
    path = repository.GOLDEN / "tiff" / name
    wanted = np.load(path.with_suffix(".npz"))
    for level, part in enumerate(("full", "low")):
        with bp.open(path.with_suffix(".tif"), level=level) as data:
            array = np.moveaxis(np.asarray(data.array("data")), -1, 0)
            assert np.array_equal(array, wanted[part], equal_nan=array.dtype.kind == "f")
            facts = data.attributes["data"]
            assert facts["transform"] == (10 * 2**level, 0, 500_000, 0, -10 * 2**level, 4_600_000)
            assert facts["crs"] == "EPSG:32633"
            assert facts["nodata"] == -999 or np.isnan(facts["nodata"])


@pytest.mark.parametrize("name", ["slices.ndpi", "tiles.svs"])
def test_files_of_slides(name):
    path = repository.GOLDEN / "tiff" / name
    wanted = np.load(path.with_suffix(".npz"))
    for level, part in enumerate(("full", "low")):
        with bp.open(path, level=level) as data:
            differences = np.abs(np.asarray(data.array("data")).astype(int) - wanted[part])
            # Slices know no neighbours, from which tifffile takes colours at their edges.
            assert differences.max() <= (2 if name == "slices.ndpi" else 0)


def test_one_page_is_its_rows(tmp_path):
    path = written(tmp_path / "a.tiff", STACK[0], tile=(16, 32))
    with bp.open(path) as data:
        assert len(data) == 50
        assert data.array("data").chunks == (16, 32)
        assert np.array_equal(data.array("data")[10:20, 5], STACK[0, 10:20, 5])
        assert data.facts() == {"pages": 1, "tiles": "16×32", "compression": "none"}


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_colours(compression, tmp_path):
    path = written(tmp_path / "a.tif", COLOURS, photometric="rgb", tile=(16, 32), compression=compression)
    assert np.array_equal(bp.open(path).array("data")[3:40, 20:60], COLOURS[3:40, 20:60])
    planes = np.ascontiguousarray(COLOURS.transpose(2, 0, 1))
    path = written(
        tmp_path / "b.tif", planes, photometric="rgb", planarconfig="separate", tile=(16, 32),
        compression=compression,
    )  # fmt: skip
    assert np.array_equal(bp.open(path).array("data")[1:, 3:40, 20:60], planes[1:, 3:40, 20:60])


def test_depth_and_bits(tmp_path):
    volume = RNG.integers(0, 200, (20, 50, 70)).astype(np.uint8)
    path = written(tmp_path / "a.tif", volume, volumetric=True, tile=(16, 16, 16), compression="zlib")
    array = bp.open(path).array("data")
    assert array.chunks == (16, 16, 16)
    assert np.array_equal(array[3:19, 40:, ::9], volume[3:19, 40:, ::9])
    bits = COLOURS[..., 0] > 100
    assert np.array_equal(bp.open(written(tmp_path / "b.tif", bits)).array("data")[5:, 60:], bits[5:, 60:])


def test_jpeg_tiles(tmp_path):
    y, x = np.mgrid[0:100, 0:140]
    smooth = np.stack([y, x, y // 2 + x // 2], axis=-1).astype(np.uint8)
    path = written(tmp_path / "a.tif", smooth, photometric="rgb", tile=(32, 32), compression="jpeg")
    array = bp.open(path).array("data")
    assert array.shape == (100, 140, 3)
    wanted = tifffile.imread(path)
    assert np.array_equal(array[20:70, 30:100], wanted[20:70, 30:100])


@pytest.mark.parametrize(
    ("photometric", "options"),
    [
        ("rgb", {"subsampling": 2}),
        ("rgb", {"keep_rgb": True}),
        ("ycbcr", {"subsampling": 1}),
        ("minisblack", {}),
    ],
)
def test_jpeg_tiles_with_headers_of_their_own(photometric, options, tmp_path):
    """What colours mean is said by JFIF or Adobe in the tile where it has them, else by the page."""
    pillow = pytest.importorskip("PIL.Image")
    y, x = np.mgrid[:64, :64]
    tile = np.stack([y * 3, x * 3, y + x], axis=-1).astype(np.uint8)[
        ..., : 1 if photometric == "minisblack" else 3
    ]
    out = io.BytesIO()
    pillow.fromarray(tile.squeeze()).save(out, "JPEG", quality=92, **options)
    subsampling = (2, 1) if photometric == "ycbcr" else None
    with tifffile.TiffWriter(tmp_path / "a.tif") as writer:
        writer.write(
            iter([out.getvalue()] * 4), shape=(128, 128, *tile.squeeze().shape[2:]), dtype="u1",
            tile=(64, 64), compression="jpeg", photometric=photometric, subsampling=subsampling,
            metadata=None,
        )  # fmt: skip
    wanted = tifffile.imread(tmp_path / "a.tif")
    assert np.abs(wanted[:64, :64].reshape(tile.shape).astype(int) - tile).mean() < 1
    assert np.array_equal(np.asarray(bp.open(tmp_path / "a.tif").array("data")), wanted)
    tiles = next(iter(bp.Loader(bp.open(tmp_path / "a.tif", tiles=True), 4)))["image"]
    assert np.array_equal(np.asarray(tiles[3]).squeeze(), wanted[64:, 64:].squeeze())


IMAGES = {"jpeg2000": 34712, "aperio": 33005, "webp": 50001, "lerc": 34887}


@pytest.mark.parametrize("name", IMAGES)
def test_tiles_that_are_images_of_their_own(name, tmp_path):
    y, x = np.mgrid[0:100, 0:140]
    smooth = np.stack([y, x, y // 2 + x // 2], axis=-1).astype(np.uint8)
    lossless = {"compressionargs": {"level": 0}} if "2000" in name or name == "aperio" else {}
    path = written(
        tmp_path / "a.tif", smooth, photometric="rgb", tile=(32, 48), compression=IMAGES[name], **lossless
    )
    with bp.open(path) as data:
        assert np.array_equal(np.asarray(data.array("data")), tifffile.imread(path))

    def sound():
        try:
            with bp.open(path, format="tiff") as data:
                data.read(range(len(data)))
            return True
        except bp.BatchplantError:
            return False

    with memory_bounded(64 << 20):
        for what, good in survive(cuts(path), sound):
            assert not good, f"unnoticed: {what}"
        for _ in survive(flips(path), sound):
            pass


def test_tiles_that_claim_another_size(tmp_path):
    values = np.zeros((64, 64, 3), np.uint8)
    size, many = b"\x3f\x00", struct.pack(">2I", 1, 1)
    for name, offset, lie in (
        ("jpeg2000", 8, size),
        ("jpeg2000", 24, many),
        ("lerc", 14, size),
        ("webp", 26, size),
    ):
        path = written(tmp_path / "a.tif", values, photometric="rgb", tile=(64, 64), compression=IMAGES[name])
        with tifffile.TiffFile(path) as file:
            start = file.pages[0].dataoffsets[0]
        data = bytearray(path.read_bytes())
        data[start + offset : start + offset + len(lie)] = lie
        path.write_bytes(data)
        with memory_bounded(64 << 20), pytest.raises(bp.DamagedError) as caught, bp.open(path) as reader:
            reader.read([0])
        assert caught.value.offset == start


def ndpi(path, levels, blocks=8, more=()):
    """A slide as of Hamamatsu: each page is one JPEG with restart markers, and offsets of 8 bytes."""
    pillow = pytest.importorskip("PIL.Image")
    data, pages = bytearray(b"II*\0" + bytes(8)), []
    for lens, values in zip((40.0, 20.0, 10.0), levels, strict=False):
        out = io.BytesIO()
        pillow.fromarray(values).save(out, "JPEG", quality=90, subsampling=1, restart_marker_blocks=blocks)
        jpeg = out.getvalue()
        header = jpeg.index(b"\xff\xda") + 2 + int.from_bytes(jpeg[jpeg.index(b"\xff\xda") + 2 :][:2], "big")
        places = [header, *(at.end() for at in re.finditer(rb"\xff[\xd0-\xd7]", jpeg) if at.start() > header)]
        start = len(data)
        data += jpeg
        lists = {}
        for name, content in (
            ("slices", struct.pack(f"<{len(places)}I", *places)), ("make", b"Hamamatsu\0"),
            ("bits", struct.pack("<3H", 8, 8, 8)),
        ):  # fmt: skip
            lists[name] = len(data)
            data += content
        height, width = values.shape[:2]
        tags = {
            256: (4, 1, width), 257: (4, 1, height), 258: (3, 3, lists["bits"]), 259: (3, 1, 7),
            262: (3, 1, 6),
            271: (2, 10, lists["make"]), 273: (4, 1, start), 277: (3, 1, 3), 278: (4, 1, height),
            279: (4, 1, len(jpeg)), 530: (3, 2, 1 << 16 | 2), 65420: (4, 1, 1),
            65421: (11, 1, int.from_bytes(struct.pack("<f", lens), "little")),
            65426: (4, len(places), lists["slices"]),
        } | dict(more)  # fmt: skip
        if len(pages) == 2:
            del tags[65426]
        pages.append((len(data), tags))
        data += bytes(2 + 12 * len(tags) + 8 + 4 * len(tags))
    for number, (at, tags) in enumerate(pages):
        table = struct.pack("<H", len(tags))
        table += b"".join(struct.pack("<HHII", tag, *value) for tag, value in sorted(tags.items()))
        after = pages[number + 1][0] if number + 1 < len(pages) else 0
        data[at : at + len(table) + 8] = table + struct.pack("<Q", after)
    data[4:12] = struct.pack("<Q", pages[0][0])
    path.write_bytes(data)
    return path


def test_slices_of_ndpi(tmp_path):
    y, x = np.mgrid[0:201, 0:384]
    full = np.stack([y, x // 2, y // 2 + x // 4], axis=-1).astype(np.uint8)
    levels = [full, full[::2, ::2].copy(), full[::4, ::4].copy()]
    path = ndpi(tmp_path / "a.ndpi", levels, blocks=6)
    for level, values in enumerate(levels):
        with bp.open(path, level=level) as data:
            assert data.levels == [(201, 384), (101, 192), (51, 96)]
            array = data.array("data")
            assert array.chunks == ((8, 96, 3) if level < 2 else (51, 96, 3))
            pixels = array[20:90, 50:]
            assert np.abs(pixels.astype(int) - values[20:90, 50:]).mean() < 4
            with tifffile.TiffFile(path) as file:
                assert np.abs(np.asarray(array).astype(int) - file.pages[level].asarray()).max() <= 2
            patches = bp.Patches(data, "data", size=(16, 16), random=4)
            assert patches[0]["data"].shape == (16, 16, 3)
    with pytest.raises(bp.OptionError, match="8 × 96"):
        bp.open(path, tiles=True)

    def sound():
        with contextlib.suppress(bp.BatchplantError), bp.open(path, format="tiff") as data:
            data.read(range(0, 201, 40))
        return True

    with memory_bounded(64 << 20):
        for damage in (cuts, flips):
            for _ in survive(damage(path), sound):
                pass


@in_one_test(
    "more",
    [
        {65426: (4, 2**30, 8)},
        {65426: (4, 3, 8)},
        {279: (4, 1, 2**31)},
        {256: (4, 1, 2**30)},
        {273: (4, 1, 0)},
    ],
)
def test_lies_about_slices(more, tmp_path):
    path = ndpi(tmp_path / "a.ndpi", [COLOURS.repeat(4, 1)[:, :256].copy()], more=more)
    with memory_bounded(64 << 20), pytest.raises((bp.DamagedError, bp.SchemaError)), bp.open(path) as data:
        data.read([0])


def test_a_pyramid(tmp_path):
    with tifffile.TiffWriter(tmp_path / "a.tif") as out:
        for step in (1, 2, 4):
            out.write(COLOURS[::step, ::step], photometric="rgb", tile=(16, 16), metadata=None)
    with bp.open(tmp_path / "a.tif") as data:
        assert data.array("data").shape == (50, 70, 3)
        assert data.levels == [(50, 70), (25, 35), (13, 18)]
        assert data.facts()["levels"] == "50×70, 25×35, 13×18"
    for choice in ({"level": 1}, {"page": 1}):
        with bp.open(tmp_path / "a.tif", **choice) as data:
            assert np.array_equal(np.asarray(data.array("data")), COLOURS[::2, ::2])
    with pytest.raises(bp.OptionError, match="no level 3"):
        bp.open(tmp_path / "a.tif", level=3)
    with bp.open(tmp_path / "a.tif", page=2) as data:
        assert np.array_equal(np.asarray(data.array("data")), COLOURS[::4, ::4])
    with pytest.raises(bp.OptionError, match="no page 3"):
        bp.open(tmp_path / "a.tif", page=3)


def test_only_tiles_that_are_touched_are_unpacked(tmp_path):
    path = written(tmp_path / "a.tif", STACK, tile=(16, 32), compression="zlib")
    with bp.open(path) as data:
        array = data.array("data")
        array[2, 10:20, 5:20]
        assert data._volume._cache.misses == 2
        array[2, 0:32, 0:32]
        assert data._volume._cache.misses == 2


def test_patches_of_a_stack(tmp_path):
    path = written(tmp_path / "a.tif", STACK, tile=(16, 32), compression="zlib")
    data = bp.Patches(path, "data", size=(1, 16, 16), random=20)
    for batch in bp.Loader(data, 5, order="quasi_random"):
        for patch, (page, y, x) in zip(batch["data"], batch["position"], strict=True):
            assert np.array_equal(patch[0], STACK[page, y : y + 16, x : x + 16])


def test_a_damaged_tile_is_named(tmp_path):
    path = written(tmp_path / "a.tif", STACK, tile=(16, 32), compression="zlib")
    with tifffile.TiffFile(path) as file:
        start = file.pages[2].dataoffsets[4]
    data = bytearray(path.read_bytes())
    data[start + 2 : start + 40] = bytes(38)
    path.write_bytes(data)
    reader = bp.open(path)
    assert np.array_equal(reader.array("data")[0], STACK[0])
    with pytest.raises(bp.DamagedError, match=r"tile 2\.1\.1") as caught:
        reader.read([1, 2])
    result = caught.value
    assert (result.path, result.field, result.sample, result.offset) == (str(path), "data", 2, start)


@pytest.mark.parametrize("damage", [cuts, flips])
@pytest.mark.parametrize("compression", ["zlib", "jpeg", None])
def test_damage_is_an_error_of_ours(damage, compression, tmp_path):
    path = written(tmp_path / "a.tif", COLOURS, photometric="rgb", tile=(16, 32), compression=compression)

    def sound():
        try:
            with bp.open(path, format="tiff") as data:
                data.read(range(len(data)))
            return True
        except bp.BatchplantError:
            return False

    with memory_bounded(64 << 20):
        for what, good in survive(damage(path), sound):
            assert not good or damage is flips, f"unnoticed: {what}"


def test_pages_that_lead_back(tmp_path):
    path = written(tmp_path / "a.tif", STACK[:3])
    with tifffile.TiffFile(path) as file:
        offsets = [page.offset for page in file.pages]
    data = bytearray(path.read_bytes())
    place = offsets[2] + 2 + 12 * int.from_bytes(data[offsets[2] : offsets[2] + 2], "little")
    data[place : place + 4] = offsets[0].to_bytes(4, "little")
    path.write_bytes(data)
    with pytest.raises(bp.DamagedError, match="no end"):
        bp.open(path)


def test_a_folder_of_images_stays_one(tmp_path):
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        tifffile.imwrite(tmp_path / "photos" / name / "1.tif", COLOURS, photometric="rgb")
    with bp.open(tmp_path / "photos") as data:
        assert data.format == "imagefolder"
    tifffile.imwrite(tmp_path / "1.tif", COLOURS, photometric="rgb")


def test_behind_a_url(bucket, tmp_path):
    path = written(tmp_path / "a.tif", STACK, tile=(16, 32), compression="zlib")
    url = bucket.put("a.tif", path.read_bytes())
    with bp.open(url, endpoint=bucket.endpoint) as data:
        assert np.array_equal(data.array("data")[1:4, 7:40, ::3], STACK[1:4, 7:40, ::3])
