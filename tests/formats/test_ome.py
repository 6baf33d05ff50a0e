"""OME-Zarr: levels, labels, channels and plates, of versions 0.4 and 0.5, as zarr-python wrote them."""

import json
import pickle

import numpy as np
import pytest

import batchplant as bp

zarr = pytest.importorskip("zarr")
RNG = np.random.default_rng(5)
AXES = [{"name": name} for name in "tczyx"]


def multiscale(levels, axes=AXES):
    return {"axes": axes, "datasets": [{"path": str(n)} for n in range(levels)], "version": "0.4"}


def put(group, arrays, version, axes=AXES, **more):
    """Write levels into a group, with the attributes of OME."""
    for n, values in enumerate(arrays):
        chunks = (1,) * (values.ndim - 2) + (16, 16)
        group.create_array(str(n), data=values, chunks=chunks)
    document = {"multiscales": [multiscale(len(arrays), axes)], **more}
    group.attrs.update({"ome": {"version": "0.5", **document}} if version == 3 else document)


@pytest.fixture(scope="module", params=[2, 3])
def version(request):
    return request.param


@pytest.fixture(scope="module")
def image(version, tmp_path_factory):
    values = RNG.integers(0, 60000, (2, 3, 4, 45, 61)).astype("u2")
    masks = (values[:, :1] > 30000).astype("u1")
    path = tmp_path_factory.mktemp("ome") / "a.zarr"
    root = zarr.open_group(path, mode="w", zarr_format=version)
    put(root, [values, values[..., ::2, ::2]], version)
    put(root.require_group("labels/cells"), [masks, masks[..., ::2, ::2]], version)
    return path, values, masks


def test_levels_and_labels(image):
    path, values, masks = image
    for level, step in ((0, 1), (1, 2)):
        with bp.open(path, level=level) as data:
            assert data.format == "zarr"
            assert list(data.schema) == ["image", "labels.cells"]
            assert np.array_equal(data[1]["image"], values[1, ..., ::step, ::step])
            assert np.array_equal(data.array("labels.cells")[:, 0, 2], masks[:, 0, 2, ::step, ::step])
    for wrong in ({"level": 2}, {"level": -1}, {"channels": [3]}, {"channels": []}):
        with pytest.raises(bp.OptionError):
            bp.open(path, **wrong)


def test_channels(image):
    path, values, _ = image
    with bp.open(path, channels=[2, 0]) as data:
        assert np.array_equal(data.array("image")[:, :, 1, 5:30], values[:, [2, 0], 1, 5:30])
        assert np.array_equal(pickle.loads(pickle.dumps(data))[0]["image"], values[0, [2, 0]])
        patches = bp.Patches(data, "image", size=(1, 2, 1, 16, 16), random=9)
        for sample in patches:
            t, _, z, y, x = sample["position"]
            wanted = values[t, [2, 0], z, y : y + 16, x : x + 16]
            assert np.array_equal(sample["image"][0, :, 0], wanted)


@pytest.mark.parametrize("whole", [False, True])
def test_labels_without_channels(whole, version, tmp_path):
    values = RNG.integers(0, 60000, (3, 2, 37, 35)).astype("u2")
    masks = (values[0] > 30000).astype("u1")
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    put(root, [values], version, AXES[1:])
    put(root.require_group("labels/plain"), [masks], version, AXES[2:])
    put(root.require_group("labels/single"), [masks[None]], version, AXES[1:])
    if whole:
        # One chunk, as writers leave small arrays.
        for name, array in (("0", values), ("labels/plain/0", masks)):
            root.create_array(name, data=array, chunks=array.shape, overwrite=True, compressors=None)
    with bp.open(tmp_path / "a.zarr") as data:
        assert len(data) == 3
        for name in ("labels.plain", "labels.single"):
            assert np.array_equal(np.asarray(data.array(name)), np.stack([masks] * 3))
            assert np.array_equal(data[2][name], masks)
    with bp.open(tmp_path / "a.zarr", channels=[2, 0]) as data:
        assert np.array_equal(np.asarray(data.array("image")), values[[2, 0]])
        assert np.array_equal(data[1]["image"], values[0])
        patches = bp.Patches(data, ["image", "labels.plain"], size=(1, 2, 16, 16), random=5)
        for sample in patches:
            c, z, y, x = sample["position"]
            assert np.array_equal(sample["image"][0], values[[2, 0][c], z : z + 2, y : y + 16, x : x + 16])
            assert np.array_equal(sample["labels.plain"][0], masks[z : z + 2, y : y + 16, x : x + 16])


def test_series_of_bioformats2raw(version, tmp_path):
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    values = RNG.integers(0, 255, (2, 20, 30)).astype("u1")
    for name in "01":
        put(root.require_group(name), [values], version, AXES[1:2] + AXES[3:])
    layout = {"bioformats2raw.layout": 3}
    root.attrs.update({"ome": layout} if version == 3 else layout)
    with pytest.raises(bp.SchemaError, match="0, 1"):
        bp.open(tmp_path / "a.zarr")
    assert np.array_equal(bp.open(tmp_path / "a.zarr/1")[1]["image"], values[1])


@pytest.mark.reference
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_images_of_ome_zarr(version, tmp_path):
    """Values and levels that the library of OME writes and reads."""
    writer, formats = (pytest.importorskip(f"ome_zarr.{part}") for part in ("writer", "format"))
    format = formats.FormatV04() if version == 2 else formats.FormatV05()
    values = RNG.integers(0, 60000, (3, 5, 65, 70)).astype("u2")
    root = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    writer.write_image(values, root, axes="czyx", fmt=format)
    writer.write_labels((values[0] > 30000).astype("i4"), root, name="cells", axes="zyx", fmt=format)
    attributes = root.attrs.asdict()
    levels = (attributes.get("ome") or attributes)["multiscales"][0]["datasets"]
    for level, entry in enumerate(levels):
        with bp.open(tmp_path / "a.zarr", level=level) as data:
            assert np.array_equal(np.asarray(data.array("image")), root[entry["path"]][...])
            labels = root[f"labels/cells/{entry['path']}"][...]
            assert np.array_equal(data.array("labels.cells")[1], labels)


def test_a_plate(version, tmp_path):
    root = zarr.open_group(tmp_path / "p.zarr", mode="w", zarr_format=version)
    fields, wells = [], []
    for well in ("A/1", "B/3"):
        group = root.require_group(well)
        for n in range(2):
            values = RNG.integers(0, 255, (2, 33, 40)).astype("u1")
            put(group.require_group(str(n)), [values, values[:, ::2, ::2]], version, AXES[1:2] + AXES[3:])
            fields.append(values)
        content = {"well": {"images": [{"path": "0"}, {"path": "1"}]}}
        group.attrs.update({"ome": content} if version == 3 else content)
        wells.append({"path": well})
    plate = {"plate": {"wells": wells}}
    root.attrs.update({"ome": plate} if version == 3 else plate)
    with bp.open(tmp_path / "p.zarr") as data:
        assert len(data) == 4
        assert data.schema == bp.Schema({"image": bp.Tensor("uint8", (2, 33, 40))})
        for row, values in enumerate(fields):
            assert np.array_equal(data[row]["image"], values)
        assert np.array_equal(data.array("image")[1:, 1, 30:], np.stack(fields)[1:, 1, 30:])
    with bp.open(tmp_path / "p.zarr", level=1, channels=[1]) as data:
        assert np.array_equal(data[3]["image"], fields[3][1:, ::2, ::2])
    zarr.open_group(tmp_path / "p.zarr/B/3/1", mode="a").create_array(
        "0", data=np.zeros((2, 33, 41), "u1"), overwrite=True
    )
    with pytest.raises(bp.SchemaError, match="differ"):
        bp.open(tmp_path / "p.zarr")


LIES = {
    "no level": {"multiscales": []}, "no path": {"multiscales": [{"datasets": [{}]}]},
    "elsewhere": {"multiscales": [{"datasets": [{"path": "../../b"}]}]}, "no list": {"multiscales": 7},
    "wells": {"plate": {"wells": "x"}}, "a well elsewhere": {"plate": {"wells": [{"path": "../b"}]}},
}  # fmt: skip


def test_damaged_metadata(version, tmp_path):
    path = tmp_path / "a.zarr"
    root = zarr.open_group(path, mode="w", zarr_format=version)
    put(root, [np.zeros((1, 1, 1, 4, 4), "u1")], version)
    name = path / ("zarr.json" if version == 3 else ".zattrs")
    document = json.loads(name.read_text())
    for lie, attributes in LIES.items():
        if version == 3:
            document["attributes"] = {"ome": attributes}
        else:
            document = attributes
        name.write_text(json.dumps(document))
        with pytest.raises((bp.DamagedError, bp.SchemaError)) as caught:
            bp.open(path)
        assert caught.value.path == str(path), lie


def test_options_need_ome(tmp_path):
    with bp.create(tmp_path / "a.zarr", {"x": bp.Int()}) as out:
        out.append({"x": 1})
    with pytest.raises(bp.OptionError, match="OME"):
        bp.open(tmp_path / "a.zarr", level=1)
