"""Chunks of any shape in Zarr, N5 and HDF5: written, read by us and others, appended to, resumed."""

import os
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.cli import main
from batchplant.formats import n5 as format_n5
from batchplant.formats import zarr as format_zarr
from variants import exhaustive, in_one_test

pytest.importorskip("numcodecs")

SHAPES = {"v": (2, 32, -1), "c": (3, 2, 3), "o": (4, 5, 2)}
SCHEMA = {
    "v": bp.Tensor("uint16", (70, 50)),
    "c": bp.Tensor("complex64", (5, 7)),
    "o": bp.Tensor("float32", (5, 7), optional=True),
    "n": bp.Int(),
    "t": bp.Text(),
}
HOW = [
    ("zarr", {"zarr_format": 2}),
    ("zarr", {"compression": "none"}),
    ("zarr", {"chunks_per_shard": 3}),
    ("zarr.zip", {"compression": "gzip"}),
    ("n5", {}),
    ("h5", {"compression": "gzip"}),
    ("h5", {"resizable": True}),
    *exhaustive(
        ("zarr", {}),
        ("zarr", {"chunks_per_shard": 3, "compression": "none"}),
        ("n5", {"compression": "none"}),
        ("h5", {}),
        ("h5", {"compression": "lzf"}),
    ),
]


def values(count=10):
    numbers = np.random.default_rng(0)
    volume = numbers.integers(0, 60000, (count, 70, 50)).astype(np.uint16)
    waves = (numbers.normal(size=(count, 5, 7)) + 1j).astype(np.complex64)
    return [
        {"v": volume[n], "c": waves[n], "o": None if n % 3 == 0 else waves[n].real, "n": n, "t": str(n)}
        for n in range(count)
    ]


def write(path, samples, **options):
    with bp.create(path, SCHEMA, **options) as out:
        for sample in samples:
            out.append(sample)
    return str(path)


def same(path, samples):
    with bp.open(path) as reader:
        assert len(reader) == len(samples)
        for row in (*range(len(samples)), *reversed(range(len(samples)))):
            result = reader[row]
            for name, value in samples[row].items():
                assert np.array_equal(result[name], value) if value is not None else result[name] is None
        assert (reader.read([3, 1, 3])["v"] == [samples[n]["v"] for n in (3, 1, 3)]).all()


@pytest.fixture
def how(suffix, options):
    if suffix == "h5":
        pytest.importorskip("h5py")
    return suffix, options


@pytest.mark.parametrize(("suffix", "options"), HOW)
def test_they_come_back(how, tmp_path):
    suffix, options = how
    path = write(tmp_path / f"a.{suffix}", values(), chunks=SHAPES, **options)
    same(path, values())
    assert bp.verify(path, decode=True).problems == []
    with bp.open(path) as reader:
        assert "2×32×50" in str(reader.facts())
        loaded = [batch["v"] for batch in bp.Loader(reader.select(["v"]), 4, order="sequential")]
    assert (np.concatenate(loaded) == [value["v"] for value in values()]).all()


@pytest.mark.parametrize(("suffix", "options"), HOW)
def test_other_libraries_read_them(how, tmp_path):
    suffix, options = how
    path = write(tmp_path / f"a.{suffix}", values(), chunks=SHAPES, **options)
    expected = np.array([value["v"] for value in values()])
    waves = np.array([value["c"] for value in values()])
    if suffix.startswith("zarr"):
        zarr = pytest.importorskip("zarr")
        store = zarr.storage.ZipStore(path, mode="r") if suffix.endswith("zip") else path
        group = zarr.open(store, mode="r")
        assert group["v"].chunks == (2, 32, 50)
        assert group["c"].chunks == (3, 2, 3)
        assert group["v"].shards == ((6, 96, 50) if "chunks_per_shard" in options else None)
        assert (group["v"][:] == expected).all()
        assert (group["c"][:] == waves).all()
    elif suffix == "n5":
        tensorstore = pytest.importorskip("tensorstore")
        spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{path}/v/"}}
        result = tensorstore.open(spec).result()
        assert result.chunk_layout.read_chunk.shape == (50, 32, 2)
        assert (expected == result.read().result().T).all()
    else:
        h5py = pytest.importorskip("h5py")
        with h5py.File(path) as file:
            assert file["v"].chunks == (2, 32, 50)
            assert (file["v"][:] == expected).all()
            assert (file["c"][:] == waves).all()


@pytest.mark.parametrize(("suffix", "options"), HOW)
def test_more_is_appended(how, tmp_path):
    suffix, options = how
    if suffix == "zarr.zip" or (suffix == "h5" and "resizable" not in options):
        pytest.skip("it cannot be appended to")
    path = write(tmp_path / f"a.{suffix}", values(), chunks=SHAPES, **options)
    write(path, values(7), mode="append")
    same(path, values() + values(7))
    with bp.open(path) as reader:
        assert "2×32×50" in str(reader.facts())


@pytest.mark.parametrize(
    ("suffix", "options"), [("zarr", {"chunks_per_shard": 2}), ("n5", {}), *exhaustive(("zarr", {}))]
)
def test_a_conversion_resumes(suffix, options, tmp_path):
    # One sample at a time, so that it stops in the middle of a chunk.
    tuning = bp.ConvertTuning(checkpoint_seconds=0, batch_bytes=1)
    source = write(tmp_path / "s.npz", values(40))
    target = str(tmp_path / f"a.{suffix}")

    def interrupt(done, _):
        if done > 25:
            raise KeyboardInterrupt

    how = {"target_options": {"chunks": SHAPES, **options}, "options": bp.ConvertOptions(tuning=tuning)}
    with pytest.raises(KeyboardInterrupt):
        bp.convert(source, target, progress=interrupt, **how)
    assert bp.convert(source, target, resume=True, **how).resumed_at > 0
    same(target, values(40))
    whole = str(tmp_path / f"b.{suffix}")
    bp.convert(source, whole, **how)
    assert files(target) == files(whole)


def files(folder):
    below = (path for path in Path(folder).rglob("*") if path.is_file())
    return {str(item.relative_to(folder)): item.read_bytes() for item in below}


@pytest.mark.parametrize("result", [format_zarr, format_n5])
def test_ranges_of_several_processes(result, tmp_path):
    path = str(tmp_path / f"a.{result.FORMAT.name}")
    data = np.arange(10 * 6 * 8).reshape(10, 6, 8)
    result.allocate(path, {"x": bp.Tensor("int64", (6, 8))}, 10, chunks=(4, 4, 3))
    assert result.range_unit(path) == 4
    for start in (8, 0, 4):
        result.write_range(path, start, {"x": data[start : start + 4]})
    with bp.open(path) as reader:
        assert (reader.read(range(10))["x"] == data).all()


def test_one_shape_for_all_goes_to_the_fields_that_have_as_many_axes(tmp_path):
    zarr = pytest.importorskip("zarr")
    path = write(tmp_path / "a.zarr", values(), chunks=(5, 4, 4))
    group = zarr.open(path, mode="r")
    assert [group[name].chunks for name in ("v", "c", "o/values")] == [(5, 4, 4)] * 3
    assert len(group["n"].chunks) == 1
    path = write(tmp_path / "b.zarr", values(), chunks=3)
    assert zarr.open(path, mode="r")["v"].chunks == (3, 70, 50)


@in_one_test(
    ("chunks", "message"),
    [
        ((1, 2, 3, 4), "no field has 4 axes"),
        ({"v": (1, 0, 5)}, r"sizes from 1 on along \(samples, 70, 50\)"),
        ({"v": (-1, 5, 5)}, "sizes from 1 on"),
        ({"v": (1, 5)}, "sizes from 1 on"),
        ({"v": (1.5, 5, 5)}, "sizes from 1 on"),
        ({"t": (1,)}, "only where all cells have one"),
        ({"nothing": (1,)}, "nothing"),
        ("abc", "no field has|sizes from|chunks"),
    ],
)
def test_shapes_that_make_no_sense(chunks, message, tmp_path):
    pytest.importorskip("h5py")
    for suffix in ("zarr", "n5", "h5"):
        with pytest.raises((bp.OptionError, bp.FieldNameError), match=message):
            bp.create(tmp_path / f"a.{suffix}", SCHEMA, chunks=chunks)
    assert os.listdir(tmp_path) == []


def test_from_the_command_line(tmp_path, capsys):
    h5py = pytest.importorskip("h5py")
    source, target = write(tmp_path / "s.npz", values()), str(tmp_path / "a.h5")
    wanted = ["--chunks", "v=1,32,32", "--chunks", "c=2,-1,3", "--quiet"]
    assert main(["convert", source, target, *wanted]) == 0
    with h5py.File(target) as file:
        assert (file["v"].chunks, file["c"].chunks) == ((1, 32, 32), (2, 5, 3))
    assert main(["convert", source, target, "--overwrite", "--chunks", "1,5,5", "--quiet"]) == 0
    with h5py.File(target) as file:
        assert file["v"].chunks == (1, 5, 5)
    with pytest.raises(SystemExit, match="2"):
        main(["convert", source, target, "--chunks", "v=big"])
    assert "is no shape" in capsys.readouterr().err
    assert main(["convert", source, target, "--overwrite", "--chunks", "1,5,5", "--chunks", "v=1"]) == 2
    assert main(["convert", source, str(tmp_path / "a.tfrecord"), "--chunks", "1,5,5"]) == 2
