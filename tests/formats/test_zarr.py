"""Zarr: the suite, stores that zarr-python and tensorstore wrote, and those that nobody honest wrote."""

import itertools
import json
import multiprocessing
import os
import shutil
import struct
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.formats import zarr as format_zarr
from batchplant.schema.columns import Columns, Ragged
from batchplant.testing import FormatSuite
from batchplant.testing.cases import EXAMPLE_FIELDS, all_cases, check_samples, jpeg, memory_bounded
from repository import GOLDEN
from variants import exhaustive, first, in_one_test

zarr = pytest.importorskip("zarr")
numcodecs = pytest.importorskip("numcodecs")


class TestSuite(FormatSuite):
    format = "zarr"
    suffix = ".zarr"
    golden = GOLDEN

    def files(self, path):
        """The metadata that is read, one document that it repeats, and chunks of each packing."""
        names = ("zarr.json", "text/zarr.json", "text/offsets/c/0", "text/values/c/0", "fixed/c/0/0/0")
        return [Path(path, name) for name in names]


OPTIONS = [
    {"zarr_format": 2},
    {"compression": "none"},
    {"compression": "gzip", "chunk_samples": 2},
    {"chunk_samples": 2, "chunks_per_shard": 3},
    {"compression": "blosc", "level": 9, "zarr_format": 2},
    {"compression": "blosc"},
    {"compression": "none", "chunk_samples": 3, "zarr_format": 2},
    {"compression": "none", "chunk_samples": 2, "chunks_per_shard": 2},
]


def ordinary(count):
    schema = {name: field for name, (field, _) in EXAMPLE_FIELDS.items()}
    return schema, [{name: item(n) for name, (_, item) in EXAMPLE_FIELDS.items()} for n in range(count)]


def write(path, schema, samples, **options):
    with bp.create(path, schema, overwrite=True, **options) as out:
        for sample in samples:
            out.append(sample)
    return path


@pytest.mark.parametrize(
    ("options", "suffix"),
    first(
        2, ((options, ".zarr.zip" if number % 3 == 0 else ".zarr") for number, options in enumerate(OPTIONS))
    ),
    ids=str,
)
def test_every_kind_comes_back(options, suffix, tmp_path):
    cases = {name: case for name, case in all_cases().items() if len(case[1]) >= 2}
    schema = {f"f{n}": field for n, (field, _) in enumerate(cases.values())}
    values = {f"f{n}": item for n, (_, item) in enumerate(cases.values())}
    samples = [{name: value[row % len(value)] for name, value in values.items()} for row in range(7)]
    path = write(tmp_path / f"a{suffix}", schema, samples, **options)
    with bp.open(path) as reader:
        check_samples(reader, schema, samples)
        assert reader.facts()["version"] == f"Zarr {options.get('zarr_format', 3)}"
    assert bp.verify(path, decode=True).problems == []


def test_images_lie_plain_and_the_rest_is_packed(tmp_path):
    schema, samples = ordinary(20)
    path = write(tmp_path / "a.zarr", schema, samples)
    with bp.open(path) as reader:
        assert [name for name in reader.schema if reader.spans(name) is not None] == [
            "image", "audio", "video",
        ]  # fmt: skip
        assert reader.facts()["chunks of image/values"].endswith("none")
        assert reader.facts()["chunks of number"] == "20 int64 (160 bytes), zstd"
        order = np.random.default_rng(1).permutation(20)
        images = bp.Loader(reader.select(["image"]), 5, pipelines={"image": [bp.ops.CenterCrop(8)]})
        assert [batch["image"].shape for batch in images] == [(5, 8, 8, 3)] * 4
        loader = bp.Loader(reader.select(["number", "fixed"]), 5, order="sequential", indices=order)
        numbers = np.concatenate([batch["number"] for batch in loader])
        assert numbers.tolist() == [samples[n]["number"] for n in order]


def test_images_over_the_border_of_chunks(tmp_path):
    """Plain chunks have 64 MiB, in which two of these images fit."""
    image = np.random.default_rng(0).integers(0, 256, (3200, 3200, 3), np.uint8)
    path = write(tmp_path / "a.zarr", {"image": bp.Image()}, [{"image": image + n} for n in range(3)])
    assert len(list((path / "image" / "values" / "c").iterdir())) == 2
    with bp.open(path) as reader:
        for n in range(3):
            np.testing.assert_array_equal(reader[n]["image"], image + np.uint8(n))
        assert reader.spans("image") is None
        assert [reader.spans("image", [n]) is not None for n in range(3)] == [True, True, False]


# --- by other hands -----------------------------------------------------------------------------------

VALUES = np.random.default_rng(0).integers(0, 1000, (23, 4, 5)).astype("int32")


def v2(**how):
    return {"zarr_format": 2, **how}


FOREIGN = {
    "v3": {},
    "v3 plain": {"compressors": None},
    "v3 gzip": {"compressors": zarr.codecs.GzipCodec(level=5)},
    "v3 blosc": {"compressors": zarr.codecs.BloscCodec(cname="lz4", shuffle="bitshuffle")},
    "v3 crc": {"compressors": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()]},
    "v3 turned": {"filters": [zarr.codecs.TransposeCodec(order=(2, 0, 1))]},
    "v3 turned, plain": {"filters": [zarr.codecs.TransposeCodec(order=(1, 2, 0))], "compressors": None},
    "v3 big-endian": {"serializer": zarr.codecs.BytesCodec(endian="big")},
    "v3 shards": {"shards": (10, 4, 6)},
    "v3 shards, plain": {"shards": (10, 4, 6), "compressors": None},
    "v3 keys": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    "v3 dots": {"chunk_key_encoding": {"name": "default", "separator": "."}},
    "v2": v2(),
    "v2 plain": v2(compressors=None),
    "v2 plain, Fortran": v2(compressors=None, order="F"),
    "v2 Fortran": v2(order="F"),
    "v2 nested": v2(chunk_key_encoding={"name": "v2", "separator": "/"}),
    "v2 zlib": v2(compressors=numcodecs.Zlib(3)),
    "v2 bz2": v2(compressors=numcodecs.BZ2()),
    "v2 lzma": v2(compressors=numcodecs.LZMA()),
    "v2 lz4": v2(compressors=numcodecs.LZ4()),
    "v2 filters": v2(filters=[numcodecs.Delta("i4"), numcodecs.Shuffle(4)]),
    "v2 narrow": v2(filters=[numcodecs.AsType("i2", "i4")]),
}


@pytest.mark.parametrize("how", FOREIGN.values(), ids=FOREIGN)
def test_arrays_of_zarr_python(how, tmp_path):
    array = zarr.create_array(
        tmp_path / "a.zarr", shape=VALUES.shape, chunks=(5, 4, 3), dtype="int32", fill_value=-7, **how
    )
    # Rows 10 to 14 are never written.
    array[:10], array[15:] = VALUES[:10], VALUES[15:]
    expected = VALUES.copy()
    expected[10:15] = -7
    with bp.open(tmp_path / "a.zarr") as reader:
        assert dict(reader.schema) == {"data": bp.Tensor("int32", (4, 5))}
        rows = np.array([22, 0, 11, 4, 4, 9, 17])
        assert np.array_equal(reader.read(rows)["data"], expected[rows])
        assert np.array_equal(reader.read(range(23))["data"], expected)
        assert reader.blocks().tolist() == [n // 5 for n in range(23)]
    assert bp.verify(tmp_path / "a.zarr").problems == []
    with bp.open(tmp_path / "a.zarr", missing="error") as reader, pytest.raises(bp.DamagedError) as caught:
        reader.read([3, 12])
    assert (caught.value.sample, caught.value.field) == (12, "data")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
def test_groups_of_zarr_python(version, consolidated, tmp_path):
    arrays = {
        "label": np.arange(7, dtype="uint8"),
        "deep/er/größe": np.linspace(0, 1, 7, dtype="float16"),
        "time": np.arange(7).astype("datetime64[us]"),
        "ok": np.arange(7) % 2 == 0,
        "wave": np.arange(7) * 1j,
        "fixed": np.array([b"", b"1", b"22", b"333", b"\xff", b"5", b"6"]),
        "wide": np.array(list("abcdeä🌱")),
    }
    group = zarr.open_group(tmp_path / "a.zarr", mode="w", zarr_format=version)
    for name, values in arrays.items():
        group.create_array(name, data=values, chunks=(3,))
    text = group.create_array("text", shape=(7,), chunks=(2,), dtype=str)
    texts = ["", "größe", "x" * 500, "🌱", "\0", "5", "6"]
    text[:] = np.array(texts, dtype=object)
    blobs = group.create_array("blob", shape=(7,), chunks=(4,), dtype=zarr.dtype.VariableLengthBytes())
    blobs[:] = np.array([jpeg(8, 8 + n) for n in range(7)], dtype=object)
    if consolidated:
        zarr.consolidate_metadata(tmp_path / "a.zarr")
    with bp.open(tmp_path / "a.zarr") as reader:
        assert {name: str(field) for name, field in reader.schema.items()} == {
            "label": "Int(dtype='uint8')", "deep.er.größe": "Float(dtype='float16')", "ok": "Bool()",
            "time": "Tensor(dtype='datetime64[us]')", "wave": "Tensor(dtype='complex128')",
            "fixed": "Bytes()", "wide": "Text()", "text": "Text()", "blob": "Image(encoding='jpeg')",
        }  # fmt: skip
        for row, sample in enumerate(reader):
            for name, values in arrays.items():
                assert np.array_equal(sample[name.replace("/", ".")], values[row]), name
            assert sample["text"] == texts[row]
        assert reader.read([5, 0, 3], ["text"])["text"][2].tobytes() == "🌱".encode()
        assert reader.read([6], ["blob"])["blob"][0].tobytes() == jpeg(8, 14)
    assert bp.verify(tmp_path / "a.zarr", decode=True).problems == []


@pytest.mark.parametrize("options", [{}, *OPTIONS], ids=str)
def test_zarr_python_reads_what_we_write(options, tmp_path):
    schema, samples = ordinary(11)
    schema["maybe"] = bp.Int("int16", optional=True)
    for n, sample in enumerate(samples):
        sample["maybe"] = n if n % 2 else None
    write(tmp_path / "a.zarr", schema, samples, **options)
    group = zarr.open_group(tmp_path / "a.zarr", mode="r")
    assert group["number"][:].tolist() == [sample["number"] for sample in samples]
    assert np.array_equal(group["fixed"][:], np.stack([sample["fixed"] for sample in samples]))
    assert group["flag"][:].tolist() == [sample["flag"] for sample in samples]
    ends = group["text/offsets"][:]
    text = group["text/values"][:].tobytes()
    assert [text[a:b].decode() for a, b in itertools.pairwise(ends)] == [s["text"] for s in samples]
    assert np.array_equal(group["varied/values"][:], np.concatenate([sample["varied"] for sample in samples]))
    assert group["maybe/values"][group["maybe/valid"][:]].tolist() == [1, 3, 5, 7, 9]


@pytest.mark.reference
@in_one_test("options", [{}, *OPTIONS])
def test_tensorstore_reads_what_we_write(options, tmp_path):
    tensorstore = pytest.importorskip("tensorstore")
    schema = {"x": bp.Tensor("float32", (3,)), "n": bp.Int("uint16")}
    samples = [{"x": np.full(3, n / 7, "float32"), "n": n} for n in range(25)]
    write(tmp_path / "a.zarr", schema, samples, **options)
    driver = "zarr" if options.get("zarr_format") == 2 else "zarr3"
    for name in schema:
        kvstore = {"driver": "file", "path": str(tmp_path / "a.zarr" / name)}
        result = tensorstore.open({"driver": driver, "kvstore": kvstore}).result().read().result()
        assert np.array_equal(result, np.stack([sample[name] for sample in samples]))


# --- stores -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_zip_stores_of_zarr_python(version, tmp_path):
    with zarr.storage.ZipStore(tmp_path / "a.zip", mode="w") as store:
        group = zarr.open_group(store, mode="w", zarr_format=version)
        group.create_array("x", data=VALUES, chunks=(5, 4, 5), compressors=None)
    with bp.open(tmp_path / "a.zip") as reader:
        assert np.array_equal(reader.read(range(23))["x"], VALUES)
        spans = reader.spans("x", [7])
        assert spans.files == (str(tmp_path / "a.zip"),)
        with open(spans.files[0], "rb") as file:
            file.seek(spans.start[0])
            assert file.read(spans.size[0]) == VALUES[7].tobytes()


def test_a_folder_packed_by_hand(tmp_path):
    schema, samples = ordinary(5)
    write(tmp_path / "a.zarr", schema, samples)
    shutil.make_archive(str(tmp_path / "b"), "zip", tmp_path, "a.zarr")
    with bp.open(tmp_path / "b.zip") as reader:
        assert reader.format == "zarr"
        check_samples(reader, schema, samples)
    with zipfile.ZipFile(tmp_path / "b.zip", "a") as archive:
        archive.writestr("../../evil", b"x")
        archive.writestr("a.zarr/../../evil", b"x")
    with bp.open(tmp_path / "b.zip") as reader:
        check_samples(reader, schema, samples)
    assert not (tmp_path.parent / "evil").exists()


@pytest.mark.parametrize(
    ("version", "suffix"), [(2, ".zarr.zip"), (3, ".zarr"), *exhaustive((2, ".zarr"), (3, ".zarr.zip"))]
)
def test_below_a_url(version, suffix, tmp_path):
    fsspec = pytest.importorskip("fsspec")
    schema, samples = ordinary(9)
    path = write(tmp_path / f"a{suffix}", schema, samples, zarr_format=version, chunk_samples=2)
    memory = fsspec.filesystem("memory")
    root = f"/zarr-{version}{suffix}"
    for file in [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]:
        memory.pipe(root + (f"/{file.relative_to(path)}" if path.is_dir() else ""), file.read_bytes())
    try:
        with bp.open(f"memory:/{root}") as reader:
            check_samples(reader, schema, samples)
            assert reader.spans("image") is None
        if path.is_dir():
            for name in ("zarr.json", ".zmetadata"):
                if memory.exists(f"{root}/{name}"):
                    lone = json.loads(memory.cat_file(f"{root}/{name}"))
                    lone.pop("consolidated_metadata", None)
                    memory.rm(f"{root}/{name}") if name == ".zmetadata" else memory.pipe(
                        f"{root}/{name}", json.dumps(lone).encode()
                    )
            with bp.open(f"memory:/{root}") as reader:
                check_samples(reader, schema, samples)
    finally:
        memory.rm(root, recursive=True)


def test_shards_are_read_by_range_and_cut_ones_are_noticed(tmp_path):
    schema = {"x": bp.Tensor("int32", (100,))}
    samples = [{"x": np.arange(n, n + 100, dtype="int32")} for n in range(40)]
    path = write(tmp_path / "a.zarr", schema, samples, chunk_samples=2, chunks_per_shard=10)
    assert len([item for item in (path / "x").rglob("*") if item.is_file() and item.name != "zarr.json"]) == 2
    with bp.open(path) as reader:
        assert reader.facts()["chunks of x"] == "2×100 int32 (800 bytes), zstd in shards of 20×100"
        assert reader.read([33])["x"][0, 0] == 33
    shard = path / "x" / "c" / "1" / "0"
    whole = shard.read_bytes()
    for at in (-1, -5, -100, 3):
        broken = bytearray(whole)
        broken[at] ^= 1
        shard.write_bytes(broken)
        problems = bp.verify(path).problems
        assert problems
        assert all(problem.sample >= 20 and problem.field == "x" for problem in problems)
    for size in (0, 10, len(whole) - 1):
        shard.write_bytes(whole[:size])
        assert len(bp.verify(path).problems) == 20


# --- chunks -------------------------------------------------------------------------------------------


def test_an_epoch_unpacks_each_chunk_once(tmp_path):
    schema = {"x": bp.Tensor("float64", (16,)), "t": bp.Text()}
    with bp.create(tmp_path / "a.zarr", schema, chunk_samples=50) as out:
        for n in range(1000):
            out.append({"x": np.full(16, n), "t": f"{n}"})
    with bp.open(tmp_path / "a.zarr") as reader:
        assert reader.blocks().tolist() == [n // 50 for n in range(1000)]
        loader = bp.Loader(reader, 64, order="quasi_random", workers=2)
        result = np.concatenate([batch["x"][:, 0] for batch in loader])
        assert sorted(result.tolist()) == list(range(1000))
        assert not np.array_equal(result, np.sort(result))
        # 20 of x, 21 of the offsets, 1 of the text.
        assert reader._cache.misses <= 42


@pytest.mark.parametrize("options", first(1, [{"chunks_per_shard": 2}, {}, {"compression": "none"}]), ids=str)
def test_a_conversion_resumes_in_the_middle_of_chunks(options, tmp_path):
    schema, samples = ordinary(120)
    write(tmp_path / "a.npz", schema, samples)
    how = {
        "target_options": {"chunk_samples": 7, **options},
        "options": bp.ConvertOptions(tuning=bp.ConvertTuning(checkpoint_seconds=0)),
    }
    done = []

    def interrupt(now, _):
        done.append(now)
        if len(done) == 3:
            raise KeyboardInterrupt

    bp.convert(tmp_path / "a.npz", tmp_path / "whole.zarr", **how)
    with pytest.raises(KeyboardInterrupt):
        bp.convert(tmp_path / "a.npz", tmp_path / "b.zarr", progress=interrupt, **how)
    converted = bp.convert(tmp_path / "a.npz", tmp_path / "b.zarr", resume=True, **how)
    assert 0 < converted.resumed_at < 120
    files = [
        file.relative_to(tmp_path / "b.zarr") for file in (tmp_path / "b.zarr").rglob("*") if file.is_file()
    ]
    assert len(files) > 50 / options.get("chunks_per_shard", 1)
    for file in files:
        assert (tmp_path / "b.zarr" / file).read_bytes() == (tmp_path / "whole.zarr" / file).read_bytes()


def test_only_what_is_asked_for_is_read(tmp_path):
    schema, samples = ordinary(5)
    path = write(tmp_path / "a.zarr", schema, samples)
    shutil.rmtree(path / "text")
    with bp.open(path) as reader:
        assert reader.read(range(5), ["number"])["number"].tolist() == [s["number"] for s in samples]
        with pytest.raises(bp.DamagedError, match=r"chunk 0 is missing; missing='fill'"):
            reader.read([0], ["text"])
    assert {problem.field for problem in bp.verify(path).problems} == {None, "text"}


def test_arrays_of_differing_length_have_to_be_chosen(tmp_path):
    group = zarr.open_group(tmp_path / "a.zarr", mode="w")
    group.create_array("x", data=np.arange(4))
    group.create_array("y", data=np.arange(4.0))
    group.create_array("mean", data=np.arange(3))
    with pytest.raises(bp.SchemaError, match=r"differ in length \(mean 3, x 4, y 4\); choose equal ones"):
        bp.open(tmp_path / "a.zarr")
    with bp.open(tmp_path / "a.zarr", fields=["y", "x"]) as reader:
        assert reader[3] == {"y": 3.0, "x": 3}
    with pytest.raises(bp.SchemaError, match="there is no array 'z'"):
        bp.open(tmp_path / "a.zarr", fields=["z"])


@in_one_test("name", ["a/b", "..", ".hidden", "0", "zarr.json", "c", "x" * 300, "a\\b", "__x", "a:b"])
def test_names_that_are_no_paths(name, tmp_path):
    schema = {name: bp.Int(), "t": bp.Text(), "field-1": bp.Int()}
    samples = [{name: n, "t": str(n), "field-1": -n} for n in range(3)]
    path = write(tmp_path / "a.zarr", schema, samples)
    with bp.open(path) as reader:
        check_samples(reader, schema, samples)
    assert os.listdir(tmp_path) == ["a.zarr"]


def test_options_that_make_no_sense(tmp_path):
    for options, reason in [
        ({"zarr_format": 4}, "zarr_format is 2 or 3"),
        ({"compression": "rar"}, "one of none, zstd, gzip, blosc"),
        ({"level": 99}, "the level of zstd is 0 to 22"),
        ({"chunk_samples": 0}, "chunk_samples is a number from 1 on"),
        ({"zarr_format": 2, "chunks_per_shard": 2}, "shards need zarr_format=3"),
    ]:
        with pytest.raises(bp.OptionError, match=reason):
            bp.create(tmp_path / "a.zarr", {"n": bp.Int()}, **options)
    assert os.listdir(tmp_path) == []


# --- several processes --------------------------------------------------------------------------------


def write_every_other_range(path, part):
    unit = format_zarr.range_unit(path)
    for start in range(part * unit, 1000, 2 * unit):
        rows = np.arange(start, min(start + unit, 1000))
        maybe = Ragged.from_cells([None if n % 3 else np.int64(n).tobytes() for n in rows])
        x = (rows[:, None] * np.ones(8)).astype("float32")
        format_zarr.write_range(path, start, Columns(x=x, n=rows, maybe=maybe))


@pytest.mark.filterwarnings("ignore:.*fork.*")
@pytest.mark.parametrize("options", [{"compression": "none"}, {"chunks_per_shard": 2}])
def test_processes_write_ranges_of_one_dataset(options, tmp_path):
    path = str(tmp_path / "a.zarr")
    schema = {"x": bp.Tensor("float32", (8,)), "n": bp.Int(), "maybe": bp.Int(optional=True)}
    format_zarr.allocate(path, schema, 1000, chunk_samples=30, **options)
    with bp.open(path) as reader, pytest.raises(bp.DamagedError, match="missing"):
        reader.read([0])
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_every_other_range, args=(path, part)) for part in range(2)]
    with processes.started(*writers):
        for writer in writers:
            writer.join(processes.PATIENCE)
            assert writer.exitcode == 0
    with bp.open(path) as reader:
        assert bp.verify(reader).problems == []
        for n, sample in enumerate(reader):
            assert sample["n"] == n
            assert (sample["x"] == n).all()
            assert sample["maybe"] == (None if n % 3 else n)
    assert list(Path(path).rglob(".*")) == []
    assert zarr.open_group(path, mode="r")["n"][:].tolist() == list(range(1000))


def test_ranges_that_share_a_chunk_are_refused(tmp_path):
    path = str(tmp_path / "a.zarr")
    format_zarr.allocate(path, {"n": bp.Int()}, 100, chunk_samples=30)
    for start, count in ((1, 30), (0, 31), (90, 9), (90, 11), (-30, 30)):
        with pytest.raises(bp.OptionError, match="multiples of 30 samples"):
            format_zarr.write_range(path, start, {"n": np.arange(count)})
    with pytest.raises(bp.SchemaError, match="needs int64"):
        format_zarr.write_range(path, 0, {"n": np.arange(30.0)})
    with pytest.raises(bp.SchemaError, match="differing length"):
        format_zarr.allocate(path, {"t": bp.Text()}, 100, overwrite=True)
    zarr.create_array(tmp_path / "b.zarr", data=np.arange(10))
    with pytest.raises(bp.OptionError, match="allocate"):
        format_zarr.write_range(str(tmp_path / "b.zarr"), 0, {"data": np.arange(10)})


def _read_in_child(reader, expected, queue):
    queue.put(np.array_equal(reader.read(range(len(reader)))["x"], expected))


@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_reader_survives_a_fork(tmp_path):
    path = write(tmp_path / "a.zarr", {"x": bp.Float()}, [{"x": n / 3} for n in range(100)], chunk_samples=7)
    with bp.open(path) as reader:
        expected = reader.read(range(100))["x"]
        context = multiprocessing.get_context("fork")
        queue = context.Queue()
        child = context.Process(target=_read_in_child, args=(reader, expected, queue))
        with processes.started(child):
            assert processes.answers(queue, child) == [True]


# --- lies ---------------------------------------------------------------------------------------------


def array_v3(**changes):
    return {
        "zarr_format": 3, "node_type": "array", "shape": [4], "data_type": "int64",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2]}},
        "chunk_key_encoding": {"name": "default"}, "fill_value": 0, "codecs": [{"name": "bytes"}], **changes,
    }  # fmt: skip


def array_v2(**changes):
    return {
        "zarr_format": 2, "shape": [4], "chunks": [2], "dtype": "<i8", "compressor": None, "filters": None,
        "fill_value": 0, "order": "C", **changes,
    }  # fmt: skip


def grid(*sizes):
    return {"name": "regular", "configuration": {"chunk_shape": list(sizes)}}


def sharding(**config):
    whole = {"chunk_shape": [1], "codecs": ["bytes"], "index_codecs": ["bytes"], **config}
    return [{"name": "sharding_indexed", "configuration": whole}]


LIES = [
    array_v3(shape=[-1]), array_v3(shape=[2**70]), array_v3(shape="4"), array_v3(shape=[1.5]),
    array_v3(shape=None),
    array_v3(shape=[4, 4]), array_v3(chunk_grid=grid(0)), array_v3(chunk_grid=grid(-2)),
    array_v3(chunk_grid=grid(2**61)), array_v3(chunk_grid={}), array_v3(chunk_grid={"name": "rectilinear"}),
    array_v3(data_type="float128"), array_v3(data_type={"name": []}), array_v3(data_type=None),
    array_v3(data_type={"name": "numpy.datetime64", "configuration": {"unit": "x", "scale_factor": -3}}),
    array_v3(data_type={"name": "null_terminated_bytes", "configuration": {"length_bytes": -1}}),
    array_v3(codecs=[]), array_v3(codecs=None), array_v3(codecs=["nonsense"]), array_v3(codecs=[3]),
    array_v3(codecs=["bytes", "numcodecs.pickle"]), array_v3(codecs=["bytes", "numcodecs.delta"]),
    array_v3(codecs=[{"name": "transpose", "configuration": {"order": [1]}}, "bytes"]),
    array_v3(codecs=["vlen-utf8"]), array_v3(data_type="string"),
    array_v3(codecs=sharding(chunk_shape=[0])), array_v3(codecs=sharding(chunk_shape=[3])),
    array_v3(codecs=sharding(chunk_shape=[1, 1])), array_v3(codecs=sharding(index_codecs=["gzip"])),
    array_v3(codecs=sharding(codecs=sharding())), array_v3(codecs=[*sharding(), "gzip"]),
    array_v3(chunk_key_encoding={"name": "default", "configuration": {"separator": "../"}}),
    array_v3(chunk_key_encoding={"name": "x"}), array_v3(zarr_format=4), array_v3(node_type=7),
    array_v2(dtype="|O"), array_v2(dtype="|O", filters=[{"id": "pickle"}]), array_v2(dtype=[["a", "<i4"]]),
    array_v2(dtype="|V8"), array_v2(dtype="nonsense"), array_v2(dtype="|S0"), array_v2(order="X"),
    array_v2(compressor={"id": "nonsense"}), array_v2(compressor={}), array_v2(compressor="gzip"),
    array_v2(filters=[{"id": "delta", "dtype": "O"}]), array_v2(filters=[{"id": "delta"}]),
    array_v2(filters=[7]),
    array_v2(chunks=[]), array_v2(chunks=[0]), array_v2(dimension_separator="/../"), array_v2(shape=[[4]]),
]  # fmt: skip


@in_one_test("document", LIES)
def test_metadata_that_lies(document, tmp_path):
    top = tmp_path / "a.zarr"
    (top / "c").mkdir(parents=True)
    (top / ("zarr.json" if "node_type" in document else ".zarray")).write_text(json.dumps(document))
    for name in ("0", "c/0", "1", "c/1"):
        (top / name).write_bytes(bytes(16))

    def read():
        with bp.open(top, format="zarr") as reader:
            reader.read([0, 3])

    with memory_bounded(1000), pytest.raises(bp.BatchplantError):
        read()


def test_a_pickle_is_not_loaded(tmp_path):
    top = tmp_path / "a.zarr"
    top.mkdir()
    document = array_v2(dtype="|O", filters=[{"id": "vlen-utf8"}, {"id": "pickle", "protocol": 5}])
    (top / ".zarray").write_text(json.dumps(document))
    with pytest.raises(bp.UnsafeError, match="can run any code"):
        bp.open(top)


@in_one_test("name", ["../out", "/etc", "a/../../out", "", "a//b", "a\0b"])
def test_names_in_the_metadata_stay_inside(name, tmp_path):
    outside = write(tmp_path / "out", {"n": bp.Int()}, [{"n": 1}], format="zarr")
    inner = json.loads((outside / "n" / "zarr.json").read_text())
    top = tmp_path / "a.zarr"
    top.mkdir()
    document = {
        "zarr_format": 3, "node_type": "group", "attributes": {},
        "consolidated_metadata": {"metadata": {name: inner}},
    }  # fmt: skip
    (top / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(bp.DamagedError, match="an array is called"):
        bp.open(top)
    document["consolidated_metadata"] = None
    schema = [{"name": "n", "kind": "int"}]
    document["attributes"]["batchplant"] = {
        "schema": schema, "paths": [name], "samples": 1, "packing": {"kind": "none", "level": 0},
    }  # fmt: skip
    (top / "zarr.json").write_text(json.dumps(document))
    with pytest.raises(bp.DamagedError, match="paths"):
        bp.open(top)


def packed(kind, claim):
    """A chunk that claims to be larger than it is."""
    if kind == "zstd":
        return bytes.fromhex("28b52ffd") + b"\xe0" + struct.pack("<Q", claim) + b"\x01\x00\x00"
    if kind == "blosc":
        return bytes([2, 1, 0x21, 8]) + struct.pack("<III", claim % 2**32, 8, 20) + bytes(4)
    return struct.pack("<I", claim % 2**32) + bytes(8)


@in_one_test("kind", ["zstd", "blosc", "lz4"])
@in_one_test("claim", [17, 2**31, 2**40 + 16, 2**63])
def test_a_chunk_that_lies_about_its_size_takes_no_memory(kind, claim, tmp_path):
    top = tmp_path / "a.zarr"
    top.mkdir()
    (top / ".zarray").write_text(json.dumps(array_v2(compressor={"id": kind})))
    (top / "0").write_bytes(packed(kind, claim))
    with memory_bounded(1000), bp.open(top) as reader, pytest.raises(bp.DamagedError) as caught:
        reader.read([1])
    assert caught.value.path.endswith("a.zarr/0")
    assert (caught.value.sample, caught.value.field) == (1, "data")


@pytest.mark.parametrize("kind", ["gzip", "bz2", "lzma", "zstd", "blosc", "lz4"])
def test_a_bomb_is_stopped(kind, tmp_path):
    top = tmp_path / "a.zarr"
    top.mkdir()
    (top / ".zarray").write_text(json.dumps(array_v2(compressor={"id": kind})))
    how = {"preset": 0} if kind == "lzma" else {}
    (top / "0").write_bytes(numcodecs.get_codec({"id": kind, **how}).encode(bytes(16 << 20)))
    with memory_bounded(100_000), bp.open(top) as reader, pytest.raises(bp.DamagedError):
        reader.read([1])


@pytest.mark.parametrize("kind", ["gzip", "zstd", "blosc", *exhaustive("bz2", "lzma", "lz4")])
def test_damaged_chunks(kind, tmp_path):
    top = tmp_path / "a.zarr"
    top.mkdir()
    (top / ".zarray").write_text(json.dumps(array_v2(compressor={"id": kind}, chunks=[500], shape=[500])))
    whole = numcodecs.get_codec({"id": kind}).encode(np.arange(500) % 7)
    rng = np.random.default_rng(1)
    for size in [*rng.integers(0, len(whole), 12).tolist(), len(whole) - 1]:
        (top / "0").write_bytes(whole[:size])
        with bp.open(top, format="zarr") as reader, pytest.raises(bp.DamagedError):
            reader.read([1])
    for place in rng.integers(0, len(whole), 30):
        broken = bytearray(whole)
        broken[place] ^= 1 << int(rng.integers(8))
        (top / "0").write_bytes(broken)
        with bp.open(top, format="zarr") as reader:
            try:
                reader.read([1])
            except bp.DamagedError:
                continue


def test_texts_that_lie_about_their_number(tmp_path):
    top = tmp_path / "a.zarr"
    top.mkdir()
    (top / ".zarray").write_text(json.dumps(array_v2(dtype="|O", filters=[{"id": "vlen-utf8"}])))
    for data in (b"", b"\2\0\0\0", struct.pack("<III", 2**32 - 1, 0, 0), struct.pack("<III", 2, 0, 2**31)):
        (top / "0").write_bytes(data)
        with bp.open(top) as reader, pytest.raises(bp.DamagedError):
            reader.read([0])


def test_offsets_that_lie(tmp_path):
    path = write(tmp_path / "a.zarr", {"t": bp.Text()}, [{"t": "ab"}] * 3, compression="none")
    for offsets in ([0, 2, 4, 7], [0, 5, 4, 6], [-1, 2, 4, 6], [0, 2, 2**62, 6]):
        (path / "t" / "offsets" / "c" / "0").write_bytes(np.array(offsets).tobytes())
        with bp.open(path) as reader, pytest.raises(bp.DamagedError, match="offsets") as caught:
            reader.read(range(3))
        assert caught.value.field == "t"
        assert bp.verify(path).problems


def test_metadata_that_differs_from_what_the_top_repeats_is_found(tmp_path):
    path = write(tmp_path / "a.zarr", {"n": bp.Int()}, [{"n": 1}])
    inner = path / "n" / "zarr.json"
    inner.write_text(inner.read_text().replace('"shape": [1]', '"shape": [2]'))
    [problem] = bp.verify(path).problems
    assert "differs" in problem.message
    assert problem.path == str(inner)


# --- arrays that are not like the others ------------------------------------------------------------------

PLAIN_SCALE = {"offset": 0, "scale": 1, "dtype": "f8"}
RETYPED = {
    "offset": (np.linspace(0, 10, 24), [("FixedScaleOffset", {**PLAIN_SCALE, "scale": 100, "astype": "u2"})]),
    "wider": (np.arange(24, dtype="f4"), [("AsType", {"encode_dtype": "f8", "decode_dtype": "f4"})]),
    "narrower": (np.arange(24), [("AsType", {"encode_dtype": "i2", "decode_dtype": "i8"})]),
    "bits": (np.arange(24) % 3 == 0, [("PackBits", {})]),
    "differences": (np.arange(24) ** 2, [("Delta", {"dtype": "i8", "astype": "i2"})]),
    "rounded": (np.linspace(0, 10, 24, dtype="f4"), [("BitRound", {"keepbits": 10})]),
    "two": (
        np.arange(24.0),
        [("FixedScaleOffset", {**PLAIN_SCALE, "astype": "i4"}), ("Delta", {"dtype": "i4", "astype": "i2"})],
    ),
}


@in_one_test("version", [2, 3])
@in_one_test("case", RETYPED)
def test_filters_that_change_the_dtype(case, version, tmp_path):
    values, filters = RETYPED[case]
    values = values.reshape(8, 3)
    about = {"shape": values.shape, "chunks": (3, 3), "dtype": values.dtype, "zarr_format": version}
    with warnings.catch_warnings():
        # These codecs are in no specification yet.
        warnings.simplefilter("ignore")
        theirs = numcodecs if version == 2 else pytest.importorskip("zarr.codecs.numcodecs")
        written = [getattr(theirs, name)(**config) for name, config in filters]
        array = zarr.create_array(tmp_path / "a.zarr", filters=written, **about)
        array[:] = values
        want = array[:]
    with bp.open(tmp_path / "a.zarr") as reader:
        result = reader.read(range(8))["data"]
    assert result.dtype == values.dtype
    np.testing.assert_array_equal(result, want)


@pytest.mark.parametrize("version", [2, 3])
def test_one_array_that_is_not_read_leaves_the_others(version, tmp_path):
    group = zarr.create_group(tmp_path / "a.zarr", zarr_format=version)
    group.create_array("x", data=np.arange(4))
    group.create_array("rate", shape=(), dtype="f4")[...] = 0.5
    group.create_array("odd", data=np.arange(4))
    name = tmp_path / "a.zarr" / "odd" / (".zarray" if version == 2 else "zarr.json")
    document = json.loads(name.read_text())
    if version == 2:
        document["filters"] = [{"id": "pickle", "protocol": 5}]
    else:
        document["codecs"].insert(0, {"name": "numcodecs.json2"})
    name.write_text(json.dumps(document))
    for fields in (None, ["x"]):
        with bp.open(tmp_path / "a.zarr", fields=fields) as reader:
            assert list(reader) == [{"x": n} for n in range(4)]
            output = reader.facts().get("left out", "")
            assert ("is not read" in output, "rate: a single value" in output) == (fields is None,) * 2
    with pytest.raises(bp.BatchplantError, match="is not read") as caught:
        bp.open(tmp_path / "a.zarr", fields=["x", "odd"])
    assert caught.value.field == "odd"
    with bp.open(tmp_path / "a.zarr", fields=["rate"]) as reader:
        assert list(reader) == [{"rate": 0.5}]


def test_only_single_values_are_one_sample(tmp_path):
    group = zarr.create_group(tmp_path / "a.zarr")
    group.create_array("loss", shape=(), dtype="f8")[...] = 0.25
    group.create_array("step", shape=(), dtype="i4")[...] = 7
    with bp.open(tmp_path / "a.zarr") as reader:
        assert list(reader) == [{"loss": 0.25, "step": 7}]


@pytest.mark.parametrize("axes", [64, 65, 2000])
def test_more_axes_than_numpy_has_are_refused(axes, tmp_path):
    group = {"zarr_format": 3, "node_type": "group", "attributes": {}}
    array = {
        "zarr_format": 3, "node_type": "array", "shape": [1] * axes, "data_type": "uint8", "fill_value": 0,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1] * axes}}, "attributes": {},
        "chunk_key_encoding": {"name": "default"}, "codecs": [{"name": "bytes"}],
    }  # fmt: skip
    (tmp_path / "a.zarr" / "x").mkdir(parents=True)
    (tmp_path / "a.zarr" / "zarr.json").write_text(json.dumps(group))
    (tmp_path / "a.zarr" / "x" / "zarr.json").write_text(json.dumps(array))
    if axes == 64:
        assert bp.open(tmp_path / "a.zarr")[0]["x"].ndim == 63
    else:
        with pytest.raises(bp.SchemaError, match=f"{axes} dimensions"):
            bp.open(tmp_path / "a.zarr")
