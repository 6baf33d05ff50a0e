"""What is said about arrays, from format to format; numbers that stand for others; missing chunks."""

import base64
import json
import pickle
import struct
import warnings

import numpy as np
import pytest

import batchplant as bp
from variants import in_one_test

h5py = pytest.importorskip("h5py")
zarr = pytest.importorskip("zarr")
tensorstore = pytest.importorskip("tensorstore")

FORMATS = ["zarr", "zarr2", "n5", "h5"]
SAID = {
    "": {"title": "sea", "counts": [1, 2, 3], "share": 0.5, "nested": {"a": [1, None]}},
    "t": {
        "units": "K",
        "long_name": "temperature ü",
        "_ARRAY_DIMENSIONS": ["time", "y", "x"],
        "valid_min": -5,
    },
    "time": {"units": "days since 2000-01-01", "_ARRAY_DIMENSIONS": ["time"]},
}
SCHEMA = {"t": bp.Tensor("float32", (2, 3)), "time": bp.Int()}


def target(tmp_path, name, kind):
    return str(tmp_path / f"{name}.{kind.rstrip('2')}"), {"zarr_format": 2} if kind == "zarr2" else {}


def write(tmp_path, kind, attributes=SAID, schema=SCHEMA, rows=None):
    path, options = target(tmp_path, "a", kind)
    with bp.create(path, schema, attributes=attributes, **options) as out:
        for n in range(4):
            out.append(rows[n] if rows else {"t": np.full((2, 3), n, np.float32), "time": n})
    return path


def same(found, expected):
    """HDF5 has no objects: they are JSON there."""
    found = {name: dict(values) for name, values in found.items()}
    nested = found[""]["nested"]
    found[""]["nested"] = json.loads(nested) if isinstance(nested, str) else nested
    assert found == expected


@pytest.mark.parametrize("kind", FORMATS)
def test_they_come_back(kind, tmp_path):
    path = write(tmp_path, kind)
    same(bp.open(path).attributes, SAID)


def pairs():
    """Each to the next; the others take long."""
    for number, source in enumerate(FORMATS):
        for other, name in enumerate(FORMATS):
            near = other == (number + 1) % len(FORMATS)
            yield pytest.param(source, name, marks=[] if near else [pytest.mark.exhaustive])


@pytest.mark.parametrize(("source", "result"), list(pairs()))
def test_they_are_kept_from_each_to_each(source, result, tmp_path):
    path = write(tmp_path, source)
    to, options = target(tmp_path, "b", result)
    converted = bp.convert(path, to, target_options=options)
    assert converted.remarks == []
    same(bp.open(to).attributes, SAID)
    # Of a renamed field, too; of one that is not taken, none.
    to, _ = target(tmp_path, "c", result)
    bp.convert(path, to, fields=["t"], rename={"t": "temperature"}, target_options=options)
    assert set(bp.open(to).attributes) == {"", "temperature"}


def test_where_they_are_lost_it_is_said(tmp_path):
    converted = bp.convert(write(tmp_path, "h5"), tmp_path / "b.npz")
    [output] = [remark for remark in converted.remarks if "attributes are not kept" in remark]
    assert "title" in output
    assert "t.units" in output


def test_names_of_axes_as_others_have_them(tmp_path):
    group = zarr.open(write(tmp_path, "zarr"), mode="r")
    assert group["t"].metadata.dimension_names == ("time", "y", "x")
    assert "_ARRAY_DIMENSIONS" not in group["t"].attrs
    assert group["t"].attrs["units"] == "K"
    with h5py.File(write(tmp_path, "h5")) as file:
        assert [axis.label for axis in file["t"].dims] == ["time", "y", "x"]
        assert file["time"].is_scale
        assert file["t"].dims[0][0] == file["time"]
    old = tmp_path / "old"
    old.mkdir()
    group = zarr.open(write(old, "zarr2"), mode="r")
    assert group["t"].attrs["_ARRAY_DIMENSIONS"] == ["time", "y", "x"]
    # xarray takes this one for the missing value.
    assert group["t"].fill_value is None


def test_axes_of_a_netcdf_file(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["time"] = np.arange(5.0)
        file["lat"] = np.arange(3.0)
        file["t"] = np.arange(15.0).reshape(5, 3)
        for number, name in enumerate(("time", "lat")):
            file[name].make_scale(name)
            file[name].attrs["_Netcdf4Dimid"] = np.int32(number)
            file["t"].dims[number].attach_scale(file[name])
        file["t"].attrs["units"] = "K"
        file.attrs["_NCProperties"] = "version=2"
    with bp.open(tmp_path / "a.h5", fields=["t", "time"]) as reader:
        result = reader.attributes
        assert result["t"] == {"units": "K", "_ARRAY_DIMENSIONS": ["time", "lat"]}
        assert result["time"] == {"_ARRAY_DIMENSIONS": ["time"]}
        assert "" not in result
        bp.convert(reader, tmp_path / "b.zarr")
    assert zarr.open(tmp_path / "b.zarr", mode="r")["t"].metadata.dimension_names == ("time", "lat")


def test_an_array_that_stands_alone_has_its_own(tmp_path):
    one = zarr.create_array(
        str(tmp_path / "a.zarr"), shape=(4, 2), dtype="int16", dimension_names=("time", "x")
    )
    one.attrs["units"] = "K"
    one[:] = 1
    spec = {
        "driver": "n5", "kvstore": {"driver": "file", "path": str(tmp_path / "b.n5")}, "create": True,
        "metadata": {"dimensions": [2, 4], "dataType": "int16", "units": ["K", "K"]},
    }  # fmt: skip
    tensorstore.open(spec).result()[:] = 1
    assert bp.open(tmp_path / "a.zarr").attributes == {
        "data": {"units": "K", "_ARRAY_DIMENSIONS": ["time", "x"]}
    }
    result = bp.open(tmp_path / "b.n5").attributes
    assert set(result) <= {"data"}
    assert not {"dimensions", "blockSize", "dataType", "compression"} & set(result.get("data", {}))


# -- numbers that stand for others ----------------------------------------------------------------------

PACKED = {"scale_factor": 0.01, "add_offset": 273.15, "_FillValue": -32768, "units": "K"}
STORED = np.array([[0, 100, -32768], [-500, 32767, 1], [5, 6, 7], [-32768, 0, 0]], np.int16)


def unpacked():
    result = STORED.astype(np.float32) * np.float32(0.01) + np.float32(273.15)
    result[STORED == -32768] = np.nan
    return result


def packed(tmp_path, kind, attributes=PACKED, stored=STORED):
    row = bp.Tensor(stored.dtype.name, stored.shape[1:])
    rows = [{"t": item} for item in stored]
    return write(tmp_path, kind, {"t": attributes}, {"t": row}, rows)


@pytest.mark.parametrize("kind", FORMATS)
def test_packed_numbers(kind, tmp_path):
    path = packed(tmp_path, kind)
    with pytest.warns(
        UserWarning, match=r"t \(scale_factor 0.01, add_offset 273.15, missing: -32768\); decode=True"
    ):
        reader = bp.open(path)
    assert (reader.read(range(4))["t"] == STORED).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with bp.open(path, decode=False) as reader:
            assert (reader.read(range(4))["t"] == STORED).all()
            assert reader.attributes["t"] == PACKED
            assert reader.spans("t") is None or reader.schema["t"].dtype == "int16"
        with bp.open(path, decode=True) as reader:
            assert reader.schema["t"] == bp.Tensor("float32", (3,))
            assert np.array_equal(reader.read(range(4))["t"], unpacked(), equal_nan=True)
            assert np.array_equal(reader[1]["t"], unpacked()[1])
            assert reader.attributes["t"] == {"units": "K"}
            assert reader.spans("t") is None
            assert np.array_equal(reader.array("t")[:2, 1:], unpacked()[:2, 1:], equal_nan=True)
            again = pickle.loads(pickle.dumps(reader))
            assert np.array_equal(again.read([0])["t"], unpacked()[:1], equal_nan=True)
            [batch] = bp.Loader(reader, 4, order="sequential")
            assert np.array_equal(batch["t"], unpacked(), equal_nan=True)


@pytest.mark.parametrize("kind", FORMATS)
def test_packed_numbers_are_converted_either_way(kind, tmp_path):
    path = packed(tmp_path, kind)
    to, options = target(tmp_path, "b", kind)
    bp.convert(path, to, source_options={"decode": False}, target_options=options)
    with bp.open(to, decode=True) as reader:
        assert np.array_equal(reader.read(range(4))["t"], unpacked(), equal_nan=True)
    to, options = target(tmp_path, "c", kind)
    bp.convert(path, to, source_options={"decode": True}, target_options=options)
    # Nothing is left to be applied a second time.
    with bp.open(to) as reader:
        assert np.array_equal(reader.read(range(4))["t"], unpacked(), equal_nan=True)
        assert reader.attributes["t"] == {"units": "K"}


@in_one_test(
    ("stored", "attributes", "expected"),
    [
        (np.array([1, -9999, 3], np.int32), {"missing_value": -9999}, np.array([1.0, np.nan, 3.0])),
        (np.array([1, 2, 3], np.int32), {"missing_value": [1, 3]}, np.array([np.nan, 2.0, np.nan])),
        (np.array([1.5, 1e20], np.float32), {"_FillValue": 1e20}, np.array([1.5, np.nan], np.float32)),
        (np.array([-1, 5], np.int8), {"_Unsigned": "true"}, np.array([255.0, 5.0], np.float32)),
        (
            np.array([-1, 5], np.int8),
            {"_Unsigned": "true", "_FillValue": -1},
            np.array([np.nan, 5.0], np.float32),
        ),
        (np.array([1, 2], np.uint8), {"scale_factor": [2.0]}, np.array([2.0, 4.0], np.float32)),
        (np.array([1, 2], np.int64), {"add_offset": 0.5}, np.array([1.5, 2.5])),
    ],
)
def test_rules(stored, attributes, expected, tmp_path):
    path = packed(tmp_path, "zarr", attributes, np.stack([stored] * 4))
    with bp.open(path, decode=True) as reader:
        result = reader.read([0])["t"][0]
    assert result.dtype == expected.dtype
    assert np.array_equal(result, expected, equal_nan=True)


@in_one_test(
    "attributes",
    [
        {"scale_factor": 1.0, "add_offset": 0},
        {"scale_factor": "large"},
        {"_FillValue": float("nan")},
        {"_FillValue": 1 << 40},
        {"units": "K"},
        {"missing_value": None, "_FillValue": "no number"},
    ],
)
def test_attributes_that_change_nothing(attributes, tmp_path):
    path = packed(tmp_path, "zarr", attributes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert bp.open(path).schema["t"] == bp.Tensor("int16", (3,))
        assert bp.open(path, decode=True).schema["t"] == bp.Tensor("int16", (3,))


def test_whole_numbers_that_floats_do_not_hold(tmp_path):
    path = packed(tmp_path, "h5", {"_FillValue": -1}, np.full((4, 1), (1 << 53) + 1))
    with bp.open(path, decode=True) as reader, pytest.raises(bp.SchemaError, match=r"2\*\*53"):
        reader.read([0])


def test_optional_numbers_and_ragged_ones(tmp_path):
    schema = {
        "n": bp.Int("int16", optional=True),
        "r": bp.Tensor("int16", (None,)),
        "c": bp.Int(names=("a", "b")),
    }
    output = {"n": {"scale_factor": 0.5}, "r": {"scale_factor": 2.0, "_FillValue": 9}, "c": {"_FillValue": 1}}
    for kind in ("zarr", "h5"):
        path, options = target(tmp_path, kind, kind)
        with bp.create(path, schema, attributes=output, **options) as out:
            out.append({"n": 3, "r": np.array([1, 9, 3], np.int16), "c": 1})
            out.append({"n": None, "r": np.array([], np.int16), "c": 0})
        with bp.open(path, decode=True) as reader:
            assert reader.schema["n"] == bp.Float("float32", optional=True)
            assert [sample["n"] for sample in reader] == [1.5, None]
            assert np.array_equal(reader[0]["r"], np.array([2, np.nan, 6], np.float32), equal_nan=True)
            assert len(reader[1]["r"]) == 0
            # Classes are no numbers.
            assert [sample["c"] for sample in reader] == [1, 0]


def test_a_store_as_xarray_writes_it(tmp_path):
    """Zarr 2: the fill value is the missing one. Zarr 3: it is an attribute, of floats in base64."""
    for version in (2, 3):
        group = zarr.open_group(str(tmp_path / f"{version}.zarr"), mode="w", zarr_format=version)
        more = {"dimension_names": ("time",)} if version == 3 else {}
        one = group.create_array(
            "t", shape=(3,), dtype="float64", fill_value=-1.0 if version == 2 else 0.0, **more
        )
        one[:] = [1.0, -1.0, 3.0]
        if version == 2:
            one.attrs["_ARRAY_DIMENSIONS"] = ["time"]
        else:
            one.attrs["_FillValue"] = base64.b64encode(struct.pack("<d", -1.0)).decode()
        with bp.open(tmp_path / f"{version}.zarr", decode=True) as reader:
            assert np.array_equal(reader.read(range(3))["t"], [1.0, np.nan, 3.0], equal_nan=True)
        with bp.open(tmp_path / f"{version}.zarr", decode=False) as reader:
            assert reader.attributes["t"] == {"_ARRAY_DIMENSIONS": ["time"], "_FillValue": -1.0}
            bp.convert(reader, tmp_path / f"{version}-again.zarr", target_options={"zarr_format": version})
        again = zarr.open(tmp_path / f"{version}-again.zarr", mode="r")["t"]
        if version == 2:
            assert again.fill_value == -1.0
        else:
            assert again.attrs["_FillValue"] == one.attrs["_FillValue"]


# -- chunks that are not there --------------------------------------------------------------------------


def test_missing_chunks_are_fill_values(tmp_path):
    for version in (2, 3):
        one = zarr.create_array(
            str(tmp_path / f"{version}.zarr"), shape=(6, 4), chunks=(2, 2), dtype="int16", fill_value=7,
            zarr_format=version,
        )  # fmt: skip
        one[2:4, :2] = 1
        with bp.open(tmp_path / f"{version}.zarr") as reader:
            assert (reader.read(range(6))["data"] == one[:]).all()
    spec = {
        "driver": "n5", "kvstore": {"driver": "file", "path": str(tmp_path / "a.n5")}, "create": True,
        "metadata": {"dimensions": [4, 6], "blockSize": [2, 2], "dataType": "int16"},
    }  # fmt: skip
    store = tensorstore.open(spec).result()
    store[:2, 2:4] = 1
    with bp.open(tmp_path / "a.n5") as reader:
        assert (reader.read(range(6))["data"] == store.read().result().T).all()
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("c", (6, 4), "i2", chunks=(2, 2), fillvalue=7)[2:4, :2] = 1
        file.create_dataset("never", (6,), "f4", fillvalue=0.5)
        file.create_dataset("packed", (6, 4), "i2", chunks=(2, 2), fillvalue=-3, compression="gzip")[0, 0] = 1
        expected = {name: file[name][:] for name in file}
    with bp.open(tmp_path / "a.h5") as reader:
        result = reader.read(range(6))
        assert all((result[name] == values).all() for name, values in expected.items())
