"""Reader.array: N-d views of every array format, against NumPy; which chunks are read; damage; URLs."""

import contextlib
import math
import os
import pickle
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import batchplant as bp
from batchplant.data.arrays import RunArray, each

SHAPE, CHUNKS = (11, 13, 9), (4, 5, 3)
VALUES = np.arange(math.prod(SHAPE), dtype=np.int32).reshape(SHAPE)
RNG = np.random.default_rng(3)


def zarr_array(path, version=3, **options):
    zarr = pytest.importorskip("zarr")
    array = zarr.create_array(
        store=str(path), shape=SHAPE, dtype="int32", zarr_format=version, chunks=CHUNKS, **options
    )
    array[...] = VALUES
    return path, "data"


def zarr2(folder):
    return zarr_array(folder / "two.zarr", 2)


def zarr3(folder):
    return zarr_array(folder / "three.zarr")


def zarr_plain(folder):
    return zarr_array(folder / "plain.zarr", compressors=None)


def zarr_sharded(folder):
    return zarr_array(folder / "sharded.zarr", shards=(8, 10, 6))


def zarr_zip(folder):
    path, name = zarr3(folder)
    shutil.make_archive(str(folder / "packed.zarr"), "zip", path)
    return folder / "packed.zarr.zip", name


def n5(folder):
    """Blocks as the format says: header, big-endian values; the axes of N5 are reversed."""
    import json
    import zlib

    top = folder / "blocks.n5"
    for index in np.ndindex(*(-(-size // chunk) for size, chunk in zip(SHAPE, CHUNKS, strict=True))):
        box = tuple(slice(n * c, (n + 1) * c) for n, c in zip(index, CHUNKS, strict=True))
        block = VALUES[box]
        file = top / "volume" / os.path.join(*map(str, index[::-1]))
        file.parent.mkdir(parents=True, exist_ok=True)
        head = np.array([0, 3], ">u2").tobytes() + np.array(block.shape[::-1], ">u4").tobytes()
        packed = zlib.compressobj(wbits=31)
        file.write_bytes(head + packed.compress(block.astype(">i4").tobytes()) + packed.flush())
    about = {
        "dimensions": SHAPE[::-1], "blockSize": CHUNKS[::-1], "dataType": "int32",
        "compression": {"type": "gzip"},
    }  # fmt: skip
    (top / "attributes.json").write_text(json.dumps({"n5": "2.0.0"}))
    (top / "volume" / "attributes.json").write_text(json.dumps(about))
    return top, "volume"


def hdf5_chunks(folder, name="chunks.h5", **options):
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / name, "w") as file:
        file.create_dataset("scans/volume", data=VALUES, **options)
    return folder / name, "scans.volume"


def hdf5_packed(folder):
    return hdf5_chunks(folder, "packed.h5", chunks=CHUNKS, compression="gzip", shuffle=True)


def hdf5_unpacked(folder):
    return hdf5_chunks(folder, "unpacked.h5", chunks=CHUNKS)


def hdf5_plain(folder):
    return hdf5_chunks(folder, "plain.h5")


def hdf5_big_endian(folder):
    return hdf5_chunks(folder, "swapped.h5", dtype=">i4")


def hdf5_library(folder):
    return hdf5_chunks(folder, "lzf.h5", chunks=CHUNKS, compression="lzf")


def hdf5_compound(folder):
    h5py = pytest.importorskip("h5py")
    rows = np.zeros(SHAPE, dtype=[("other", "u1"), ("volume", "<i4")])
    rows["volume"] = VALUES
    with h5py.File(folder / "compound.h5", "w") as file:
        file.create_dataset("both", data=rows, chunks=CHUNKS)
    return folder / "compound.h5", "both.volume"


def npy(folder):
    np.save(folder / "values.npy", VALUES)
    return folder / "values.npy", "data"


def npy_fortran(folder):
    np.save(folder / "fortran.npy", np.asfortranarray(VALUES))
    return folder / "fortran.npy", "data"


def npy_big_endian(folder):
    np.save(folder / "swapped.npy", VALUES.astype(">i4"))
    return folder / "swapped.npy", "data"


def npz(folder):
    np.savez(folder / "values.npz", volume=VALUES)
    return folder / "values.npz", "volume"


def safetensors(folder):
    save = pytest.importorskip("safetensors.numpy").save_file
    save({"first": np.ones(3, dtype=np.float32), "volume": VALUES}, str(folder / "model.safetensors"))
    return folder / "model.safetensors", "volume"


def tiff(folder):
    tifffile = pytest.importorskip("tifffile")
    path = folder / "stack.tif"
    tifffile.imwrite(
        path, VALUES, photometric="minisblack", metadata=None, rowsperstrip=5, compression="zlib"
    )
    return path, "data"


def rows(folder):
    """A format that knows nothing of arrays."""
    with bp.create(folder / "rows.beton", {"volume": bp.Tensor("int32", SHAPE[1:])}) as out:
        out.append(bp.Columns(volume=VALUES))
    return folder / "rows.beton", "volume"


FORMATS = [
    zarr2, zarr3, zarr_plain, zarr_sharded, zarr_zip, n5, hdf5_packed, hdf5_unpacked, hdf5_plain,
    hdf5_big_endian, hdf5_library, hdf5_compound, npy, npy_fortran, npy_big_endian, npz, safetensors, tiff,
    rows,
]  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Each format's array, made when it is first asked for."""
    known = {}

    def of(make):
        if make not in known:
            path, name = make(tmp_path_factory.mktemp("arrays"))
            known[make] = bp.open(path).array(name)
        return known[make]

    return of


def index_of(size):
    return st.one_of(
        st.integers(-size, size - 1),
        st.slices(size),
        st.builds(
            slice,
            *[st.none() | st.integers(-size - 3, size + 3)] * 2,
            st.sampled_from([None, 1, -1, 2, 5, -3]),
        ),
    )


@st.composite
def keys(draw):
    result = [draw(index_of(size)) for size in SHAPE][: draw(st.integers(0, 3))]
    if draw(st.booleans()):
        at = draw(st.integers(0, len(result)))
        result[at:] = [Ellipsis, *(result[at:] if at + len(SHAPE) > len(result) else [])]
        # What stands behind the dots belongs to the last axes.
        behind = len(result) - at - 1
        result[at + 1 :] = [draw(index_of(size)) for size in SHAPE[len(SHAPE) - behind :]] if behind else []
    return tuple(result)


@pytest.fixture(scope="module")
def every(made):
    """The arrays of all formats whose libraries are there."""
    result = {}
    for make in FORMATS:
        with contextlib.suppress(pytest.skip.Exception):
            result[make.__name__] = made(make)
    assert result
    return result


@settings(deadline=None, max_examples=60)
@given(key=keys())
def test_slices_are_those_of_numpy(key, every):
    wanted = VALUES[key]
    for name, array in every.items():
        result = array[key]
        assert np.array_equal(result, wanted), name
        assert result.dtype == wanted.dtype, name
        assert result.shape == wanted.shape, name


@pytest.mark.parametrize("make", FORMATS, ids=lambda item: item.__name__)
def test_an_array_says_what_it_is(make, made):
    array = made(make)
    assert (array.shape, array.dtype, array.ndim, len(array)) == (SHAPE, np.dtype("int32"), 3, 11)
    assert (array.size, array.nbytes) == (VALUES.size, VALUES.nbytes)
    assert len(array.chunks) == 3
    assert np.array_equal(np.asarray(array), VALUES)
    assert np.asarray(array, dtype="f8").dtype == np.float64
    assert np.array_equal(next(iter(array)), VALUES[0])
    assert np.array_equal(pickle.loads(pickle.dumps(array))[3, :, -1], VALUES[3, :, -1])
    assert "int32" in repr(array)


@pytest.mark.parametrize("make", [zarr2, zarr3, zarr_plain, zarr_sharded, n5, hdf5_packed, hdf5_unpacked])
def test_chunks_are_those_of_the_file(make, made):
    assert made(make).chunks == CHUNKS


@pytest.mark.parametrize(
    ("key", "error"),
    [
        ((11,), IndexError), ((-12,), IndexError), ((0, 0, 0, 0), IndexError), ((..., ...), ValueError),
        ((None,), ValueError), ((1.5,), ValueError), (([0, 1],), ValueError), ((True,), ValueError),
        ((slice(0, 5, 0),), ValueError), ((slice("a"),), ValueError),
    ],
)  # fmt: skip
def test_what_is_no_index_is_named(key, error, made):
    with pytest.raises(error) as caught:
        made(npy)[key]
    assert isinstance(caught.value, bp.BatchplantError)
    assert "field 'data'" in str(caught.value)


def hdf5_gzip(folder):
    return hdf5_chunks(folder, chunks=CHUNKS, compression="gzip")


# --- what is read -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [zarr2, zarr3, zarr_sharded, hdf5_gzip])
def test_only_chunks_that_are_touched_are_decoded(make, tmp_path):
    path, name = make(tmp_path)
    with bp.open(path) as data:
        array = data.array(name)
        assert np.array_equal(array[3:5, 5:10, 1], VALUES[3:5, 5:10, 1])
        assert data._cache.misses == 2
        # They are in the cache now.
        array[0:8, 5:10, 0:3]
        assert data._cache.misses == 2
        # A step may pass over chunks.
        assert np.array_equal(array[::8, 0, 0], VALUES[::8, 0, 0])
        assert data._cache.misses == 4


def test_the_cache_is_bounded(tmp_path):
    path, name = zarr3(tmp_path)
    size = math.prod(CHUNKS) * 4
    with bp.open(path, cache=2 * size) as data:
        array = data.array(name)
        array[...]
        assert data._cache.misses == 3 * 3 * 3
        assert data._cache.bytes <= 2 * size
        array[0:4, 0:5, 0:3]
        assert data._cache.misses == 3 * 3 * 3 + 1


@pytest.mark.parametrize("make", [npy, hdf5_plain, safetensors])
def test_of_values_in_a_row_only_the_runs_are_read(make, tmp_path, monkeypatch):
    path, name = make(tmp_path)
    array = bp.open(path).array(name)
    assert isinstance(array, RunArray)
    taken = []
    real = array._source.gather
    monkeypatch.setattr(
        array._source, "gather", lambda starts, sizes: taken.append(sizes) or real(starts, sizes)
    )
    assert np.array_equal(array[2:4, 3:5, 1:4], VALUES[2:4, 3:5, 1:4])
    assert [sizes.tolist() for sizes in taken] == [[12] * 4]
    array[2:4]
    assert taken[1].tolist() == [2 * 13 * 9 * 4]


def test_missing_chunks_are_fill_values(tmp_path):
    zarr = pytest.importorskip("zarr")
    h5py = pytest.importorskip("h5py")
    array = zarr.create_array(
        store=str(tmp_path / "a.zarr"), shape=SHAPE, chunks=CHUNKS, dtype="int32", fill_value=7
    )
    array[0:4, 0:5, 0:3] = 1
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("data", SHAPE, "int32", chunks=CHUNKS, fillvalue=7, compression="gzip")
        data[0:4, 0:5, 0:3] = 1
    wanted = np.full(SHAPE, 7, dtype=np.int32)
    wanted[0:4, 0:5, 0:3] = 1
    for path in (tmp_path / "a.zarr", tmp_path / "a.h5"):
        assert np.array_equal(bp.open(path).array("data")[1:, ::2], wanted[1:, ::2])


def test_truth_values_and_times(tmp_path):
    h5py = pytest.importorskip("h5py")
    flags = RNG.random((5, 6)) > 0.5
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("flags", data=flags, chunks=(2, 4), compression="gzip")
    result = bp.open(tmp_path / "a.h5").array("flags")
    assert result.dtype == np.bool_
    assert np.array_equal(result[1:, 2], flags[1:, 2])
    times = np.arange(12).astype("datetime64[s]").reshape(4, 3)
    np.save(tmp_path / "times.npy", times)
    assert np.array_equal(bp.open(tmp_path / "times.npy").array("data")[::2, 1], times[::2, 1])


def test_what_we_write_is_an_array_too(tmp_path):
    volumes = RNG.random((6, 8, 5)).astype(np.float32)
    complexes = volumes[:, 0] * 1j
    fields = {"volume": bp.Tensor("float32", (8, 5)), "c": bp.Tensor("complex64", (5,)), "label": bp.Int()}
    columns = bp.Columns(volume=volumes, c=complexes, label=np.arange(6))
    for name in ("a.zarr", "a.n5", "a.h5", "a.npz", "a.parquet", "a.msgpack"):
        with bp.create(tmp_path / name, fields) as out:
            out.append(columns)
        with bp.open(tmp_path / name) as data:
            assert np.array_equal(data.array("volume")[1:, 3, ::2], volumes[1:, 3, ::2]), name
            assert np.array_equal(data.array("c")[2], complexes[2]), name
            assert np.array_equal(data.array("label")[::-1], np.arange(6)[::-1]), name


def test_views_and_joined_readers(tmp_path):
    path, name = zarr3(tmp_path)
    data = bp.open(path)
    assert np.array_equal(data.select([name]).array(name)[3:5, 2], VALUES[3:5, 2])
    assert np.array_equal(data.subset([5, 1]).array(name)[:, 2], VALUES[[5, 1], 2])
    both = bp.concat([data, data])
    assert np.array_equal(both.array(name)[9:14, 1:3], np.concatenate([VALUES, VALUES])[9:14, 1:3])


def test_arrays_that_are_no_fields(tmp_path):
    """Of another length than the others, or not chosen."""
    zarr = pytest.importorskip("zarr")
    h5py = pytest.importorskip("h5py")
    top = zarr.create_group(store=str(tmp_path / "a.zarr"))
    top.create_array("volume", data=VALUES, chunks=CHUNKS)
    top.create_array("table", data=np.arange(5))
    data = bp.open(tmp_path / "a.zarr", fields=["table"])
    assert np.array_equal(data.array("volume")[3:, 5], VALUES[3:, 5])
    with pytest.raises(bp.FieldNameError, match="did you mean volume"):
        data.array("volum")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["volume"], file["table"] = VALUES, np.arange(5)
    data = bp.open(tmp_path / "a.h5", fields=["table"])
    assert np.array_equal(data.array("volume")[3:, 5], VALUES[3:, 5])
    with pytest.raises(bp.FieldNameError):
        data.array("nothing")


def test_the_tensors_of_a_model(tmp_path):
    path, _ = safetensors(tmp_path)
    data = bp.open(path)
    assert data.array("first")[1:].tolist() == [1, 1]
    with pytest.raises(bp.FieldNameError, match="no tensor 'third'"):
        data.array("third")


@pytest.mark.parametrize("field", ["text", "varying", "maybe", "nothing"])
def test_what_is_no_array_is_refused(field, tmp_path):
    fields = {
        "text": bp.Text(),
        "varying": bp.Tensor("int32", (None,)),
        "maybe": bp.Tensor("int32", (3,), optional=True),
    }
    with bp.create(tmp_path / "a.zarr", fields) as out:
        out.append({"text": "x", "varying": np.arange(4, dtype="i4"), "maybe": None})
    with pytest.raises(bp.SchemaError):
        bp.open(tmp_path / "a.zarr").array(field)


# --- damage -------------------------------------------------------------------------------------------


def test_a_damaged_chunk_is_named(tmp_path):
    path, name = zarr3(tmp_path)
    chunk = path / "c" / "1" / "2" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-7])
    array = bp.open(path).array(name)
    assert np.array_equal(array[0:4], VALUES[0:4])
    for _ in range(2):
        with pytest.raises(bp.DamagedError) as caught:
            array[4:8]
        assert caught.value.path == str(chunk)
        assert caught.value.field == name
        assert caught.value.sample is None


def test_a_damaged_chunk_of_hdf5_has_its_offset(tmp_path):
    h5py = pytest.importorskip("h5py")
    path, name = hdf5_packed(tmp_path)
    with h5py.File(path) as file:
        info = file["scans/volume"].id.get_chunk_info_by_coord((4, 5, 0))
    data = bytearray(path.read_bytes())
    data[info.byte_offset : info.byte_offset + info.size] = bytes(info.size)
    path.write_bytes(data)
    array = bp.open(path).array(name)
    assert np.array_equal(array[0:4], VALUES[0:4])
    with pytest.raises(bp.DamagedError, match=r"chunk 1\.1\.0") as caught:
        array[...]
    assert (caught.value.path, caught.value.field, caught.value.offset) == (str(path), name, info.byte_offset)


def test_a_shard_whose_table_lies(tmp_path):
    path, name = zarr_sharded(tmp_path)
    file = path / "c" / "0" / "0" / "0"
    data = bytearray(file.read_bytes())
    data[-30] ^= 255
    file.write_bytes(data)
    with pytest.raises(bp.DamagedError) as caught:
        bp.open(path).array(name)[0:2, 0:2, 0:2]
    assert caught.value.path == str(file)


def test_a_shape_that_lies_takes_no_memory(tmp_path):
    import json

    path, name = zarr3(tmp_path)
    about = json.loads((path / "zarr.json").read_text())
    about["shape"] = [400_000, 400_000, 9]
    (path / "zarr.json").write_text(json.dumps(about))
    with bp.open(path) as data:
        array = data.array(name)
        assert np.array_equal(array[0:4, 0:5, 0:3], VALUES[0:4, 0:5, 0:3])
        with pytest.raises(bp.DamagedError, match="limit"):
            array[...]
        with pytest.raises(bp.DamagedError, match="limit"):
            np.asarray(array)


# --- threads ------------------------------------------------------------------------------------------


def test_the_first_error_of_many_threads_ends_the_work():
    done = []

    def work(number):
        done.append(number)
        if number == 3:
            raise bp.DamagedError("three")

    with pytest.raises(bp.DamagedError, match="three"):
        each(work, list(range(100_000)), 1 << 30)
    assert len(done) < 100_000


def test_many_threads_slice_one_array(made):
    from concurrent.futures import ThreadPoolExecutor

    array = made(zarr3)
    boxes = [tuple(slice(a, a + 5) for a in RNG.integers(0, 6, 3)) for _ in range(64)]
    with ThreadPoolExecutor(8) as pool:
        for box, item in zip(boxes, pool.map(array.__getitem__, boxes), strict=True):
            assert np.array_equal(item, VALUES[box])


def test_after_a_fork(made):
    from processes import in_fork

    array = made(zarr3)
    array[...]
    assert in_fork(lambda: np.array_equal(array[...], VALUES))


# --- URLs ---------------------------------------------------------------------------------------------


def asked_for(proxy, name):
    """The objects below a name that were fetched, as far as they are chunks."""
    paths = [request.path.partition("?")[0] for request in list(proxy.requests) if request.kind == "GET"]
    return sorted(path.partition(f"{name}/c/")[2] for path in paths if f"{name}/c/" in path)


def test_only_chunks_that_are_touched_are_fetched(bucket, proxy, tmp_path):
    path, name = zarr3(tmp_path)
    shutil.copytree(path, os.path.join(bucket.root, "a.zarr"))
    with bp.open(f"{bucket.url}/a.zarr", endpoint=proxy.endpoint) as data:
        array = data.array(name)
        assert asked_for(proxy, "a.zarr") == []
        assert np.array_equal(array[3:5, 5:10, 1], VALUES[3:5, 5:10, 1])
        assert asked_for(proxy, "a.zarr") == ["0/1/0", "1/1/0"]
        array[0:8, 5:10, 0:3]
        assert asked_for(proxy, "a.zarr") == ["0/1/0", "1/1/0"]


@pytest.mark.parametrize("make", [zarr_sharded, n5, hdf5_packed, npy, npy_fortran, npz, safetensors, rows])
def test_slices_behind_a_url(make, bucket, proxy, tmp_path):
    path, name = make(tmp_path)
    target = os.path.join(bucket.root, path.name)
    shutil.copytree(path, target) if path.is_dir() else shutil.copy(path, target)
    with bp.open(f"{bucket.url}/{path.name}", endpoint=proxy.endpoint) as data:
        array = data.array(name)
        assert np.array_equal(array[3:5, 5:10, -1], VALUES[3:5, 5:10, -1])
        assert np.array_equal(array[::-3, ..., 2:4], VALUES[::-3, ..., 2:4])
        assert np.array_equal(np.asarray(array), VALUES)


def test_of_a_large_file_only_the_runs_are_fetched(bucket, proxy, tmp_path):
    values = np.arange(24 << 20, dtype=np.uint8).reshape(24, 1024, 1024)
    np.save(os.path.join(bucket.root, "a.npy"), values)
    with bp.open(f"{bucket.url}/a.npy", endpoint=proxy.endpoint) as data:
        array = data.array("data")
        assert np.array_equal(array[3:21:17, 512, 100:200], values[3:21:17, 512, 100:200])
    assert proxy.bytes_sent < 4 << 20
