"""Slides and scenes: pyramids, tiles as images, tissue, OME-TIFF, GeoTIFF, folders of scenes."""

import itertools
import json
import pickle
import struct

import numpy as np
import pytest

import batchplant as bp
from variants import first, in_one_test

tifffile = pytest.importorskip("tifffile")
pytest.importorskip("imagecodecs")

RNG = np.random.default_rng(11)
UTM = (500_000.0, 4_600_000.0)


def written(path, values, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    tifffile.imwrite(path, values, **{"photometric": "minisblack", "metadata": None, **options})
    return path


def geotags(origin=UTM, step=10.0, epsg=32633, nodata=None, point=False):
    """Tags of GeoTIFF, as rasterio writes them."""
    keys = (1, 1, 0, 3, 1024, 0, 1, 1, 1025, 0, 1, 2 if point else 1, 3072, 0, 1, epsg)
    tags = [
        (33550, "d", 3, (step, step, 0.0), True),
        (33922, "d", 6, (0.0, 0.0, 0.0, *origin, 0.0), True),
        (34735, "H", len(keys), keys, True),
    ]
    return tags if nodata is None else [*tags, (42113, "s", 0, str(nodata), True)]


# One of each kind first.
DTYPES = ("u1", "i2", "f4", "c8", "?", "u2", "u4", "u8", "i1", "i4", "i8", "f2", "f8")
LAYOUTS = ({}, {"tile": (16, 32)}, {"rowsperstrip": 7})


@pytest.mark.parametrize("dtype", first(5, DTYPES))
def test_values_are_those_of_tifffile(dtype, tmp_path):
    dtype = np.dtype(dtype)
    compressions = itertools.cycle([None, "zlib", "lzw", "zstd", "packbits", "lzma"])
    orders = itertools.cycle("<>")
    for layout, shape in itertools.product(LAYOUTS, [(37, 53), (37, 53, 3), (3, 37, 53)]):
        order = next(orders)
        if dtype.kind == "b" and len(shape) == 3:
            continue
        compression = next(compressions)
        predictors = [None, 2] if compression in ("zlib", "lzw", "zstd") and dtype.kind in "ui" else [None]
        predictors += [3] if compression in ("zlib", "zstd") and dtype.kind == "f" else []
        for predictor in predictors:
            values = (RNG.random(shape) * 100).astype(dtype)
            options = {"byteorder": order, "compression": compression, "predictor": predictor, **layout}
            if len(shape) == 3:
                planar = "contig" if shape[2] == 3 else "separate"
                options |= {"photometric": "rgb", "planarconfig": planar}
            path = written(tmp_path / "a.tif", values, bigtiff=order == ">", **options)
            with bp.open(path) as data:
                array = np.asarray(data.array("data"))
            assert array.dtype == dtype, options
            assert np.array_equal(array, tifffile.imread(path)), options


def test_odd_bits_and_jpeg(tmp_path):
    for bits, order in itertools.product((2, 4, 9, 12), "<>"):
        values = (RNG.random((37, 53)) * 2**bits).astype("u1" if bits <= 8 else "u2")
        path = written(tmp_path / "a.tif", values, bitspersample=bits, byteorder=order, tile=(16, 32))
        assert np.array_equal(np.asarray(bp.open(path).array("data")), tifffile.imread(path))
    y, x = np.mgrid[:100, :140]
    smooth = np.stack([y, x, y // 2 + x // 2], axis=-1).astype("u1")
    for colours, layout in itertools.product(
        ({"photometric": "rgb"}, {"photometric": "ycbcr"}, {"photometric": "ycbcr", "subsampling": (2, 2)}),
        ({"tile": (32, 32)}, {"rowsperstrip": 24}),
    ):
        path = written(tmp_path / "b.tif", smooth, compression="jpeg", **colours, **layout)
        assert np.array_equal(np.asarray(bp.open(path).array("data")), tifffile.imread(path))


def pyramid(path, values, levels=3, sub=False, **options):
    options = {"photometric": "rgb", "tile": (32, 32), "metadata": None, **options}
    with tifffile.TiffWriter(path) as out:
        out.write(values, **options, subifds=levels - 1 if sub else None)
        options.pop("extratags", None)
        for n in range(1, levels):
            out.write(values[:: 2**n, :: 2**n], **options, subfiletype=1)
    return path


@pytest.mark.parametrize("sub", [False, True])
def test_levels(sub, tmp_path):
    values = RNG.integers(0, 255, (150, 210, 3)).astype("u1")
    path = pyramid(tmp_path / "a.tif", values, sub=sub, compression="zlib")
    for n in range(3):
        with bp.open(path, level=n) as data:
            assert data.levels == [(150, 210), (75, 105), (38, 53)]
            assert np.array_equal(np.asarray(data.array("data")), values[:: 2**n, :: 2**n])
            assert "pages left out" not in data.facts()
    with pytest.raises(bp.OptionError, match="no level 3"):
        bp.open(path, level=3)


def slide(path):
    """A slide as of Aperio: JPEG tiles with shared tables, a thumbnail in strips, a lower level, a label."""
    y, x = np.mgrid[:300, :420]
    glass = np.full((300, 420, 3), 240, "u1")
    tissue = (y - 100) ** 2 + (x - 120) ** 2 < 80**2
    glass[tissue] = np.stack([180 + y % 20, 60 + x % 30, 150 + y % 9], -1)[tissue]
    with tifffile.TiffWriter(path) as out:
        tiled = {"tile": (64, 64), "compression": "jpeg", "photometric": "rgb", "metadata": None}
        out.write(glass, **tiled, description="Aperio Image Library|AppMag = 20|MPP = 0.5")
        out.write(glass[::6, ::6], photometric="rgb", metadata=None, compression="jpeg")
        out.write(glass[::4, ::4], **tiled)
        out.write(glass[:40, :90], photometric="rgb", metadata=None, compression="lzw", subfiletype=1)
    return path, glass


def test_a_slide(tmp_path):
    path, _ = slide(tmp_path / "a.svs")
    pages = [tifffile.imread(path, key=key) for key in (0, 2)]
    for level, page in enumerate(pages):
        with bp.open(path, level=level) as data:
            assert data.format == "tiff"
            assert data.levels == [(300, 420), (75, 105)]
            assert np.array_equal(data.array("data")[40:70, 50:101], page[40:70, 50:101])
        with bp.open(path, level=level, tiles=True) as tiles:
            assert tiles.schema["image"] == bp.Image("jpeg")
            assert len(tiles) == -(-page.shape[0] // 64) * -(-page.shape[1] // 64)
            for sample in tiles:
                y, x = sample["position"]
                cut = page[y : y + 64, x : x + 64]
                assert np.array_equal(np.asarray(sample["image"])[: cut.shape[0], : cut.shape[1]], cut)
            assert pickle.loads(pickle.dumps(tiles))[1]["position"].tolist() == [0, 64]


def test_tiles_are_decoded_by_the_engine(tmp_path):
    path, _ = slide(tmp_path / "a.svs")
    page = tifffile.imread(path, key=0)
    loader = bp.Loader(bp.open(path, tiles=True), 7, order="random")
    batches = [(batch["image"].copy(), batch["position"].copy()) for batch in loader]
    for images, positions in batches:
        for image, (y, x) in zip(images, positions, strict=True):
            cut = page[y : y + 64, x : x + 64]
            assert np.array_equal(image[: cut.shape[0], : cut.shape[1]], cut)


def test_tissue(tmp_path):
    path, glass = slide(tmp_path / "a.svs")
    share = np.array(
        [
            (glass[y : y + 64, x : x + 64, 1] < 200).mean()
            for y, x in bp.open(path, tiles=True).read(range(35))["position"]
        ]
    )
    with bp.open(path, tiles=True, tissue=0.5) as tiles:
        kept = {tuple(sample["position"].tolist()) for sample in tiles}
    every = [tuple(place) for place in bp.open(path, tiles=True).read(range(35))["position"].tolist()]
    for place, part in zip(every, share, strict=True):
        if abs(part - 0.5) > 0.1:
            assert (place in kept) == (part > 0.5), (place, part)
    reader = bp.open(path)
    patches = bp.Patches(reader, "data", size=(32, 32), random=40, where=reader.tissue((32, 32), 0.9))
    for sample in patches:
        y, x = sample["position"]
        assert (glass[y : y + 32, x : x + 32, 1] < 200).mean() > 0.6
    with pytest.raises(bp.OptionError, match="tiles=True"):
        bp.open(path, tissue=0.5)
    with pytest.raises(bp.OptionError, match="height, width"):
        reader.tissue((32, 32, 3))


def test_plain_tiles_are_images(tmp_path):
    values = RNG.integers(0, 255, (70, 90, 3)).astype("u1")
    path = written(tmp_path / "a.tif", values, photometric="rgb", tile=(32, 32), compression="zlib")
    with bp.open(path, tiles=True) as tiles:
        assert tiles.schema["image"].encoding is None
        assert np.array_equal(np.asarray(tiles[4]["image"]), values[32:64, 32:64])
    path = written(tmp_path / "b.tif", values.astype("u2"), photometric="rgb", tile=(32, 32))
    with pytest.raises(bp.OptionError, match="8 bits"):
        bp.open(path, tiles=True)


def test_ome_axes(tmp_path):
    values = RNG.integers(0, 60000, (2, 3, 4, 33, 47)).astype("u2")
    tifffile.imwrite(tmp_path / "a.ome.tif", values, metadata={"axes": "TCZYX"}, tile=(16, 16), ome=True)
    with bp.open(tmp_path / "a.ome.tif") as data:
        array = data.array("data")
        assert (len(data), array.shape) == (2, values.shape)
        assert np.array_equal(array[1, 2, 1:3, 5:20], values[1, 2, 1:3, 5:20])
        assert np.array_equal(data[1]["data"], values[1])
    with tifffile.TiffWriter(tmp_path / "b.ome.tif", ome=True) as out:
        out.write(values[0], subifds=1, metadata={"axes": "CZYX"}, tile=(16, 16))
        out.write(values[0, :, :, ::2, ::2], tile=(16, 16), subfiletype=1)
    with bp.open(tmp_path / "b.ome.tif", level=1) as data:
        assert np.array_equal(np.asarray(data.array("data")), values[0, :, :, ::2, ::2])
    axes = {}
    for order in ("TCZYX", "ZTCYX", "CZTYX"):
        stack = RNG.integers(0, 255, (2, 3, 4, 9, 11)).astype("u1")
        tifffile.imwrite(tmp_path / "d.ome.tif", stack, metadata={"axes": order}, ome=True)
        with bp.open(tmp_path / "d.ome.tif") as data:
            assert np.array_equal(np.asarray(data.array("data")), stack)
            axes[order] = data.array("data").shape
    assert set(axes.values()) == {(2, 3, 4, 9, 11)}
    # Pages in another order than that of the axes stay a stack.
    pixels = '<Pixels DimensionOrder="XYZCT" SizeT="1" SizeC="2" SizeZ="2">'
    for ifds, shape in (((0, 1, 2, 3), (2, 2, 9, 11)), ((0, 2, 1, 3), (4, 9, 11))):
        planes = "".join(
            f'<TiffData FirstC="{n // 2}" FirstZ="{n % 2}" IFD="{ifd}"/>' for n, ifd in enumerate(ifds)
        )
        description = f"<OME><Image>{pixels}{planes}</Pixels></Image></OME>"
        written(tmp_path / "e.tif", stack[0, 0], description=description)
        assert bp.open(tmp_path / "e.tif").array("data").shape == shape
    text = '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><OME><Image><Pixels/></Image></OME>'
    with pytest.raises(bp.DamagedError, match="OME-XML"):
        bp.open(written(tmp_path / "c.tif", values[0, 0], description=text))


def test_georeference(tmp_path):
    values = RNG.integers(0, 60000, (90, 120)).astype("u2")
    path = written(tmp_path / "a.tif", values, extratags=geotags(nodata=-9999))
    with bp.open(path) as data:
        attributes = data.attributes["data"]
        assert attributes == {
            "transform": (10, 0, UTM[0], 0, -10, UTM[1]),
            "crs": "EPSG:32633",
            "nodata": -9999,
        }
        rows, columns = data.window_of((UTM[0] + 100, UTM[1] - 355, UTM[0] + 200, UTM[1] - 50))
        assert (rows, columns) == (slice(5, 36), slice(10, 20))
        assert np.array_equal(data.array("data")[rows, columns], values[5:36, 10:20])
        for bounds in ((0, 0, 1, 1), (3, 3, 1, 1), (np.nan, 0, 1, 1), (0, 0, 1), "abcd", 7):
            with pytest.raises(bp.OptionError, match="bounds"):
                data.window_of(bounds)
    path = written(tmp_path / "b.tif", values, extratags=geotags(point=True))
    assert bp.open(path).attributes["data"]["transform"][2] == UTM[0] - 5
    path = pyramid(tmp_path / "c.tif", RNG.integers(0, 255, (64, 64, 3)).astype("u1"), extratags=geotags())
    assert bp.open(path, level=1).attributes["data"]["transform"] == (20, 0, UTM[0], 0, -20, UTM[1])


ZOO = [
    {"dtype": "uint8", "count": 3, "compress": "JPEG", "photometric": "YCBCR"},
    {"dtype": "uint8", "count": 4, "compress": "WEBP", "webp_lossless": True},
    {"dtype": "uint8", "count": 1, "compress": "PACKBITS", "nodata": 7, "bigtiff": "YES"},
    {"dtype": "int16", "count": 3, "compress": "DEFLATE", "predictor": 2, "interleave": "band"},
    {"dtype": "uint16", "count": 2, "compress": "LZW", "predictor": 2, "endianness": "BIG", "nodata": 0},
    {"dtype": "uint16", "count": 1, "compress": "ZSTD", "nbits": 12},
    {"dtype": "float32", "count": 2, "compress": "LERC_DEFLATE", "nodata": float("nan")},
    {
        "dtype": "float64",
        "count": 3,
        "compress": "ZSTD",
        "predictor": 3,
        "endianness": "BIG",
        "bigtiff": "YES",
    },
    {"dtype": "int32", "count": 1, "sparse_ok": True, "nodata": -5},
]


@pytest.mark.reference
@in_one_test("options", ZOO)
def test_values_are_those_of_rasterio(options, tmp_path):
    rasterio = pytest.importorskip("rasterio")
    count, dtype, nodata = options["count"], options["dtype"], options.get("nodata")
    y, x = np.mgrid[:150, :201]
    values = np.stack([x + y // 2 * (n + 1) for n in range(count)]).clip(0, 255).astype(dtype)
    values[:, 20:90, 40:130] = 7 if nodata is None else nodata
    path = tmp_path / "a.tif"
    transform = rasterio.Affine(10, 0.5, 500_000, -0.25, -10, 4_600_000)
    layout = {"tiled": True, "blockxsize": 64, "blockysize": 32, "interleave": "pixel"}
    profile = {"driver": "GTiff", "height": 150, "width": 201, "crs": "EPSG:3035", "transform": transform}
    with rasterio.open(path, "w", **profile | layout | options) as out:
        out.write(values[:, 64:128], window=rasterio.windows.Window(0, 64, 201, 64))
        if not options.get("sparse_ok"):
            out.write(values)
        out.build_overviews([2, 4], rasterio.enums.Resampling.nearest)
    for level in range(3):
        with rasterio.open(path, **({"overview_level": level - 1} if level else {})) as file:
            wanted, place = file.read(), tuple(file.transform)[:6]
        with bp.open(path, level=level) as data:
            array = np.asarray(data.array("data"))
            bands = (
                array[None] if count == 1 else array if array.shape[0] == count else array.transpose(2, 0, 1)
            )
            assert array.dtype == wanted.dtype
            if options.get("compress") == "JPEG":
                # GDAL smooths colours otherwise where blocks of JPEG meet; ours are those of tifffile.
                assert np.abs(bands.astype(int) - wanted).mean() < 1
            else:
                assert np.array_equal(bands, wanted, equal_nan=array.dtype.kind == "f")
            facts = data.attributes["data"]
            assert facts["transform"] == pytest.approx(place, rel=1e-12)
            assert facts["crs"] == "EPSG:3035"
            assert ("nodata" in facts) == (nodata is not None)


@pytest.mark.reference
def test_a_slide_is_as_openslide_reads_it(tmp_path):
    openslide = pytest.importorskip("openslide")
    path, _ = slide(tmp_path / "a.svs")
    with openslide.OpenSlide(str(path)) as reference:
        assert reference.detect_format(str(path)) == "aperio"
        for level, (width, height) in enumerate(reference.level_dimensions):
            region = np.asarray(reference.read_region((0, 0), level, (width, height)))[..., :3]
            with bp.open(path, level=level) as data:
                assert data.levels[level] == (height, width)
                values = np.asarray(data.array("data"))
            # Another build of the decoder may round differently.
            assert np.abs(values.astype(int) - region).max() <= 2


@pytest.fixture
def scenes(tmp_path):
    values = {}
    for n, (height, width) in enumerate([(90, 120), (64, 200), (70, 71)]):
        image = RNG.integers(0, 60000, (height, width, 4)).astype("u2")
        mask = (image[..., 0] > 30000).astype("u1")
        tags = geotags((UTM[0] + 10_000 * n, UTM[1]), nodata=0)
        layout = {"tile": (32, 32), "compression": "zlib"}
        written(
            tmp_path / f"scenes/images/{n}.tif",
            image,
            planarconfig="contig",
            predictor=2,
            extratags=tags,
            **layout,
        )
        written(tmp_path / f"scenes/masks/{n}.tif", mask, extratags=tags, **layout)
        values[n] = image, mask
    return tmp_path / "scenes", values


def test_a_folder_of_scenes(scenes):
    path, values = scenes
    with bp.open(path, format="scenes") as data:
        assert data.schema["image"] == bp.Tensor("uint16", (None, None, 4))
        sample = data[1]
        assert np.array_equal(sample["image"], values[1][0])
        assert np.array_equal(sample["mask"], values[1][1])
        assert sample["file_name"] == "images/1.tif"
        assert (sample["crs"], sample["nodata"], sample["transform"][2]) == ("EPSG:32633", 0, UTM[0] + 10_000)
        assert data.window_of(1, (UTM[0] + 10_000, UTM[1] - 50, UTM[0] + 10_100, UTM[1])) == (
            slice(0, 5),
            slice(0, 10),
        )
        for options in ({"random": 10}, {"stride": 40}, {"stride": 40, "pad": 7}):
            windows = bp.VolumePatches(data, size=(32, 48), **options)
            for sample in bp.Loader(windows, 1, order="random"):
                (y, x), scene = sample["position"][0], int(sample["volume"][0])
                for name, value in zip(("image", "mask"), values[scene], strict=True):
                    cut = value[y : y + 32, x : x + 48]
                    patch = sample[name][0]
                    assert np.array_equal(patch[: cut.shape[0], : cut.shape[1]], cut)
                    assert (patch[cut.shape[0] :] == 7).all()
        assert pickle.loads(pickle.dumps(windows))[3]["volume"] == windows[3]["volume"]


def test_windows_by_coordinates(scenes):
    path, values = scenes
    with bp.open(path, format="scenes") as data:
        points = [(UTM[0] + 10_000 * n + 400, UTM[1] - 300) for n in (2, 0)]
        windows = bp.VolumePatches(data, size=(20, 20), positions=data.positions_of(points, (20, 20)))
        assert len(windows) == 2
        for sample, n in zip(windows, (2, 0), strict=True):
            assert (sample["volume"], sample["position"].tolist()) == (n, [20, 30])
            assert np.array_equal(sample["image"], values[n][0][20:40, 30:50])
        with pytest.raises(bp.OptionError, match="no scene"):
            data.positions_of([(0, 0)], (20, 20))
        for bad in ([[3, 0, 0]], [[0, 80, 0]], [[0, -1, 0]], [[0, 1]]):
            with pytest.raises(bp.OptionError):
                bp.VolumePatches(data, size=(20, 20), positions=bad)


def test_places_of_tiles_are_remembered(scenes, monkeypatch, tmp_path):
    path, values = scenes
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    with bp.open(path, format="scenes", index="write"):
        assert list((tmp_path / "index").rglob("*"))
    with bp.open(path, format="scenes", index="write") as data:
        assert np.array_equal(data[2]["image"], values[2][0])
    written(path / "images/2.tif", values[0][0][:70, :71], planarconfig="contig")
    with bp.open(path, format="scenes", index="write") as data:
        assert np.array_equal(data[2]["image"], values[0][0][:70, :71])


def test_scenes_that_differ_are_refused(scenes):
    path, _ = scenes
    written(path / "masks/2.tif", np.zeros((70, 72), "u1"))
    with pytest.raises(bp.SchemaError, match="aligned"):
        bp.open(path, format="scenes")
    written(path / "masks/2.tif", np.zeros((70, 71), "u2"))
    with pytest.raises(bp.SchemaError, match="masks/2"):
        bp.open(path, format="scenes")
    (path / "masks/2.tif").write_bytes(b"II*\0\xff\xff\xff\x7f")
    with pytest.raises(bp.DamagedError, match=r"2\.tif"):
        bp.open(path, format="scenes")


def items(names, prefix="./images/"):
    """Items of STAC with the assets of the folder of scenes."""

    def asset(href):
        return {"href": href, "type": "image/tiff; application=geotiff; profile=cloud-optimized"}

    return [
        {
            "type": "Feature", "stac_version": "1.0.0", "id": f"scene-{n}", "geometry": None,
            "properties": {"datetime": f"2024-06-0{n + 1}T00:00:00Z"}, "links": [],
            "assets": {
                "visual": asset(f"{prefix}{n}.tif"),
                "scl": asset(f"{prefix}{n}.tif".replace("images", "masks")),
                "preview": {"href": "./a.png", "roles": ["thumbnail"]},
            },
        }
        for n in names
    ]  # fmt: skip


def put_items(path, documents):
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(item) + "\n" for item in documents))
    elif path.suffix == ".parquet":
        arrow, parquet = (pytest.importorskip(f"pyarrow{part}") for part in ("", ".parquet"))
        rows = [{"id": one["id"], "assets": one["assets"], **one["properties"]} for one in documents]
        parquet.write_table(arrow.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps({"type": "FeatureCollection", "features": documents}))
    return path


@pytest.mark.parametrize("suffix", [".json", ".jsonl", ".parquet"])
def test_items_of_stac(suffix, scenes):
    path, values = scenes
    document = put_items(path / f"items{suffix}", items([2, 0]))
    with bp.open(document, format="scenes", assets={"image": "visual", "mask": "scl"}) as data:
        assert len(data) == 2
        for sample, n in zip(data, (2, 0), strict=True):
            assert np.array_equal(sample["image"], values[n][0])
            assert np.array_equal(sample["mask"], values[n][1])
            assert (sample["item"], sample["datetime"]) == (f"scene-{n}", f"2024-06-0{n + 1}T00:00:00Z")
            assert sample["crs"] == "EPSG:32633"
        windows = bp.VolumePatches(data, ["image", "mask"], size=(16, 16), random=3)
        assert pickle.loads(pickle.dumps(windows))[4]["mask"].shape == (16, 16)
    with bp.open(document, format="scenes", assets="scl") as data:
        assert np.array_equal(data[1]["data"], values[0][1])
    with pytest.raises(bp.OptionError, match=r"visual, scl"):
        bp.open(document, format="scenes")
    for wrong in ({"assets": {}}, {"assets": {"crs": "visual"}}, {"assets": "scl", "pairs": ["images"]}):
        with pytest.raises(bp.OptionError):
            bp.open(document, format="scenes", **wrong)
    with pytest.raises(bp.OptionError, match="STAC"):
        bp.open(path, format="scenes", assets="visual")
    with pytest.raises(bp.DamagedError, match="'nir'"):
        bp.open(document, format="scenes", assets=["nir"])


def test_items_name_nothing_outside(scenes, tmp_path):
    path, values = scenes
    (tmp_path / "inner").mkdir()
    for prefix in ("../scenes/images/", f"{path}/images/", "file:///images/", "s3://other/images/"):
        document = put_items(tmp_path / "inner/items.json", items([0], prefix))
        with pytest.raises(bp.UnsafeError, match="outside"):
            bp.open(document, format="scenes", assets="visual")
    document = put_items(tmp_path / "inner/items.json", items([0], f"{path}/images/"))
    for outside in (str(path), [str(path / "images")], True):
        with bp.open(document, format="scenes", assets="visual", outside=outside) as data:
            assert np.array_equal(data[0]["data"], values[0][0])
    for text in ("{", "[]", "7", "[7]", "{}", '{"type": "Catalog", "links": []}', '[{"assets": 7}]'):
        document.write_text(text)
        with pytest.raises((bp.DamagedError, bp.SchemaError)) as caught:
            bp.open(document, format="scenes", assets="visual")
        assert caught.value.path == str(document)
    document.write_text(json.dumps([{**items([0], f"{path}/images/")[0], "properties": 7}]))
    with bp.open(document, format="scenes", assets="visual", outside=True) as data:
        assert data[0]["datetime"] == ""
    document = put_items(document, items([7], "./images/"))
    with pytest.raises(bp.NotFoundError):
        bp.open(document, format="scenes", assets="visual")


def reads(proxy):
    """Requests but for those of listings."""
    return [request for request in proxy.requests if "list-type" not in request.path]


def test_requests_of_scenes_behind_a_url(bucket, proxy, monkeypatch, tmp_path):
    """Once directories are remembered, a tile costs a request, whether a listing or items name the files."""
    monkeypatch.setenv("BATCHPLANT_INDEX_DIR", str(tmp_path / "index"))
    (tmp_path / "index").mkdir()
    image = RNG.integers(0, 60000, (1024, 1024)).astype("u2")
    written(tmp_path / "a.tif", image, tile=(256, 256), compression="zlib")
    for n in range(2):
        bucket.put(f"set/images/{n}.tif", (tmp_path / "a.tif").read_bytes())
    url = bucket.put("set/items.json", json.dumps(items(range(2))).encode())
    for name, options in (
        (url.removesuffix("/items.json"), {"pairs": False}), (url, {"assets": {"data": "visual"}}),
    ):  # fmt: skip
        options |= {"format": "scenes", "endpoint": proxy.endpoint, "index": "write"}
        bp.open(name, **options).close()
        del proxy.requests[:]
        with bp.open(name, **options) as data:
            # The items; how many pages of a listing are asked for at once depends on who is faster.
            assert len(reads(proxy)) <= 2
            del proxy.requests[:]
            tiles = np.random.default_rng(1).permutation(32)[:20]
            places = [(tile // 16, tile // 4 % 4 * 256, tile % 4 * 256) for tile in tiles]
            windows = bp.VolumePatches(data, "data", size=(256, 256), positions=places)
            for number in range(10):
                _, y, x = places[number]
                assert np.array_equal(windows[number]["data"], image[y : y + 256, x : x + 256])
            for batch in bp.Loader(windows.subset(range(10, 20)), 4, order="random"):
                for patch, (y, x) in zip(batch["data"], batch["position"], strict=True):
                    assert np.array_equal(patch, image[y : y + 256, x : x + 256])
        assert len(reads(proxy)) <= 1.05 * len(places)


def patched(path, tag, value=None, count=None):
    """Change a tag of the first page: its value, or the number of values that it claims."""
    data = bytearray(path.read_bytes())
    start = struct.unpack_from("<I", data, 4)[0]
    for place in range(start + 2, start + 2 + 12 * struct.unpack_from("<H", data, start)[0], 12):
        if struct.unpack_from("<H", data, place)[0] == tag:
            if value is not None:
                struct.pack_into("<I", data, place + 8, value)
                struct.pack_into("<H", data, place + 2, 4)
            if count is not None:
                struct.pack_into("<I", data, place + 4, count)
    path.write_bytes(data)


LIES = {
    "width": (256, {"value": 2**31}), "huge width": (256, {"value": 2**32 - 1}),
    "height": (257, {"value": 0}),
    "tile width": (322, {"value": 2**30}), "no tile": (322, {"value": 0}), "offsets": (324, {"value": 2**31}),
    "fewer offsets": (324, {"count": 3}), "more offsets": (324, {"count": 2**31}),
    "byte counts": (325, {"count": 2**30}), "samples": (258, {"count": 70_000}),
    "colours": (277, {"value": 2**16}), "bits": (258, {"count": 2**28}),
}  # fmt: skip


@in_one_test("lie", LIES)
@in_one_test("compression", [None, "zlib", "jpeg"])
def test_lies_are_damage(lie, compression, tmp_path):
    tag, change = LIES[lie]
    values = RNG.integers(0, 255, (100, 100, 3)).astype("u1")
    path = written(tmp_path / "a.tif", values, photometric="rgb", tile=(32, 32), compression=compression)
    patched(path, tag, **change)
    with pytest.raises((bp.DamagedError, bp.SchemaError)) as caught, bp.open(path) as data:
        data.read(range(len(data)))
    assert caught.value.path == str(path)


def test_levels_that_lead_back(tmp_path):
    path = pyramid(tmp_path / "a.tif", RNG.integers(0, 255, (150, 210, 3)).astype("u1"), sub=True)
    start = struct.unpack_from("<I", path.read_bytes(), 4)[0]
    patched(path, 330, value=start, count=1)
    # It is no smaller than itself.
    assert bp.open(path).levels == [(150, 210)]
    patched(path, 330, count=2**20)
    with pytest.raises(bp.DamagedError):
        bp.open(path)


def test_requests_of_a_bucket(bucket, proxy, tmp_path, monkeypatch):
    """A tile takes one request once the places of all tiles are remembered; opening again, a listing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    proxy.mend = True
    values = RNG.integers(0, 60000, (2, 256, 512), dtype="u2")
    for n in range(2):
        path = written(tmp_path / f"{n}.tif", values[n], tile=(64, 64), extratags=geotags())
        url = bucket.put(f"scenes/{n}.tif", path.read_bytes())
    options = {"endpoint": proxy.endpoint, "format": "scenes", "index": "write"}
    bp.open(url.rpartition("/")[0], **options).close()
    # On a busy machine, requests of the first opening may come late. Those of the second would come thrice.
    for _ in range(3):
        proxy.reset()
        bp.open(url.rpartition("/")[0], **options).close()
        if not (requests := proxy.count("GET", "scenes/0.tif") + proxy.count("GET", "scenes/1.tif")):
            break
    assert requests == 0
    with bp.open(url.rpartition("/")[0], **options) as data:
        places = [(n, 64 * y, 64 * x) for n in range(2) for y in range(4) for x in range(0, 8, 3)]
        windows = bp.VolumePatches(data, size=(64, 64), positions=places)
        for row, (n, y, x) in enumerate(places):
            assert np.array_equal(windows[row]["data"], values[n, y : y + 64, x : x + 64])
        requests = sum(proxy.count("GET", f"scenes/{n}.tif") for n in range(2))
        assert requests <= 1.05 * len(places)
