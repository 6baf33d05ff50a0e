"""Verifying: every problem is found and named, and nothing else."""

import fcntl
import json
import re
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant.data.reader import Reader
from batchplant.formats.base.tensors import TENSORS
from batchplant.storage import checksums, partial_folder
from batchplant.storage.cache import ChunkCache
from batchplant.testing.cases import flip, jpeg, pixels

SCHEMA = {"image": bp.Image(), "n": bp.Int(), "blob": bp.Bytes()}


def save(path, samples, schema=SCHEMA, **options):
    with bp.create(path, schema, **options) as out:
        for sample in samples:
            out.append(sample)
    return path


def sample(n, **other):
    return {"image": jpeg(8, 8 + n % 4), "n": n, "blob": bytes([n % 256]) * 20, **other}


def places(result):
    return [(problem.sample, problem.field) for problem in result.problems]


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    return save(tmp_path_factory.mktemp("a") / "a.beton", [sample(n) for n in range(600)], checksums=True)


@pytest.fixture
def dataset(template, tmp_path):
    """600 samples, which is more than verify reads at once, and their checksums."""
    shutil.copy(f"{template}.crc", tmp_path)
    return Path(shutil.copy(template, tmp_path))


def flip_cell(path, field, number, place=0):
    with bp.open(path) as reader:
        spans = reader.spans(field, [number])
    flip(path, int(spans.start[0]) + place, 0)


def put_outside(path, number):
    """Let the blob of a sample claim more bytes than there are."""
    with bp.open(path) as reader:
        [start] = reader.spans("blob", [number]).start
    data = path.read_bytes()
    at = data.index(struct.pack("<QQ", start, 20))
    with open(path, "r+b") as file:
        file.seek(at + 8)
        file.write(struct.pack("<Q", 1 << 40))


def test_a_sound_dataset(dataset):
    result = bp.verify(dataset, decode=True, against=dataset)
    assert result.ok
    assert (result.samples, result.problems) == (600, [])
    assert result.checks == ("structure", "bounds", "checksums", "decode", f"against {dataset}")


def test_every_damaged_sample_is_named_whatever_else_is_wrong_near_it(dataset):
    flip_cell(dataset, "blob", 3)
    flip_cell(dataset, "image", 299, 200)
    flip_cell(dataset, "n", 599)
    put_outside(dataset, 5)
    put_outside(dataset, 255)
    result = bp.verify(dataset)
    assert sorted(places(result)) == [(3, "blob"), (5, "blob"), (255, "blob"), (299, "image"), (599, "n")]
    by_sample = {problem.sample: problem.message for problem in result.problems}
    assert by_sample[3] == "the checksum is wrong"
    assert by_sample[5].startswith("the cell claims 1099511627776 bytes")
    assert {problem.path for problem in result.problems} == {str(dataset)}


def test_without_checksums_a_changed_byte_is_a_byte(dataset):
    flip_cell(dataset, "blob", 3)
    (dataset.parent / "a.beton.crc").unlink()
    assert bp.verify(dataset).ok


def test_decoding_finds_what_cannot_be_decoded(tmp_path):
    schema = {
        "image": bp.Image(),
        "text": bp.Text(),
        "meta": bp.Json(),
        "t": bp.Tensor("int16", (None, None)),
    }
    good = {"image": jpeg(), "text": "ä", "meta": [1], "t": np.ones((2, 2), np.int16)}
    path = save(
        tmp_path / "a.npz", [{**good, "image": jpeg()[:-30] if n == 4 else jpeg()} for n in range(6)], schema
    )
    with bp.open(path) as reader:
        spots = {name: int(reader.spans(name, [2]).start[0]) for name in ("text", "meta", "t")}
    for at in spots.values():
        flip(path, at, 7)
    result = bp.verify(path, decode=True)
    actual = {place for place in places(result) if place != (None, None)}
    assert actual == {(4, "image"), (2, "text"), (2, "meta"), (2, "t")}
    assert not any(place[0] is not None for place in places(bp.verify(path)))


def test_against_finds_one_changed_cell(tmp_path):
    first = save(tmp_path / "a.beton", [sample(n) for n in range(300)])
    second = save(
        tmp_path / "b.npz", [sample(n, **({"blob": b"other"} if n == 280 else {})) for n in range(300)]
    )
    result = bp.verify(first, against=second)
    assert places(result) == [(280, "blob")]
    assert str(second) in result.problems[0].message
    assert places(bp.verify(second, against=first)) == [(280, "blob")]


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        ((bp.Int("int8"), 5), (bp.Int("int64"), 5), True),
        ((bp.Int("int8"), 5), (bp.Float(), 5.0), True),
        ((bp.Int(), 5), (bp.Int(), 6), False),
        ((bp.Float("float32"), float("nan")), (bp.Float(), float("nan")), True),
        ((bp.Float("float32"), 0.1), (bp.Float(), 0.1), False),
        ((bp.Text(), "x"), (bp.Text(optional=True), "x"), True),
        ((bp.Text(), ""), (bp.Text(optional=True), None), False),
        ((bp.Json(), {"a": [1]}), (bp.Json(), {"a": [1]}), True),
        ((bp.Json(), {"a": 1, "b": 2}), (bp.Json(), {"b": 2, "a": 1}), True),
        ((bp.Tensor("float32", (2,)), [1, np.nan]), (bp.Tensor("float32", (None,)), [1, np.nan]), True),
        ((bp.Tensor("int8", (2, 2)), [[1, 1]] * 2), (bp.Tensor("int8", (None, None)), [[1, 1]] * 2), True),
        ((bp.Tensor("int8", (2,)), [1, 2]), (bp.Tensor("int8", (3,)), [1, 2, 3]), False),
        ((bp.Image(), pixels(4, 4, 3)), (bp.Image("png"), pixels(4, 4, 3)), True),
        ((bp.Image(), pixels(4, 4, 3)), (bp.Image(), pixels(4, 4, 3).transpose(1, 0, 2)), False),
        ((bp.Image(mode=None), b"no image"), (bp.Image(mode=None), b"no image"), True),
        ((bp.Image(mode=None), b"no image"), (bp.Image(mode=None), b"nor this"), False),
    ],
)  # fmt: skip
def test_values_are_compared_whatever_they_are_stored_as(one, two, same, tmp_path):
    paths = []
    for name, (field, value) in (("a", one), ("b", two)):
        options = {"write_mode": "raw"} if isinstance(value, np.ndarray) and value.ndim == 3 else {}
        paths.append(save(tmp_path / f"{name}.npz", [{"x": value}], {"x": field}, **options))
    assert bp.verify(paths[0], against=paths[1]).ok == same
    assert bp.verify(paths[1], against=paths[0]).ok == same


def test_against_compares_length_and_fields_as_well(tmp_path):
    first = save(tmp_path / "a.npz", [{"n": n, "x": n} for n in range(5)], {"n": bp.Int(), "x": bp.Int()})
    second = save(tmp_path / "b.npz", [{"n": n, "y": n} for n in range(3)], {"n": bp.Int(), "y": bp.Int()})
    messages = [problem.message for problem in bp.verify(first, against=second).problems]
    assert messages == [
        f"it has 5 samples, and {second} has 3",
        f"its fields are n, x, and those of {second} are n, y",
    ]


def test_a_file_that_does_not_open_is_a_problem(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\3\4" + bytes(100))
    result = bp.verify(tmp_path / "a.npz")
    assert not result.ok
    assert (result.samples, result.checks) == (0, ("structure",))
    with pytest.raises(bp.NotFoundError):
        bp.verify(tmp_path / "b.npz")


def test_parts_and_readers_are_verified_too(dataset):
    with bp.open(dataset) as reader:
        assert list(reader.verify()) == []
        part = bp.verify(reader.select(["blob", "n"])[5:])
        assert (part.problems, part.samples) == ([], 595)
        assert "checksums" in part.checks
    put_outside(dataset, 300)
    with bp.open(dataset) as reader:
        assert [(problem.sample, problem.field) for problem in reader.verify()] == [(300, "blob")]
        assert bp.verify(reader[:300]).ok


def test_progress_reaches_the_end(dataset):
    seen = []
    put_outside(dataset, 599)
    bp.verify(dataset, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(256, 600), (512, 600), (600, 600)]


# --- how much is looked at ----------------------------------------------------------------------------


def test_an_unrelated_dataset_is_compared_no_further_than_needed(tmp_path):
    first = save(tmp_path / "a.npz", [sample(n) for n in range(300)])
    second = save(tmp_path / "b.npz", [sample(n + 300, blob=b"other") for n in range(300)])
    result = bp.verify(first, against=second, max_differences=6)
    assert places(result) == [(0, "n"), (0, "blob"), (1, "n"), (1, "blob"), (2, "n"), (2, "blob")]
    [remark] = result.remarks
    assert remark == f"it differs from {second} in 6 cells of the first 3 samples; the rest was not compared"
    assert len(bp.verify(first, against=second).problems) == 100
    everything = bp.verify(first, against=second, max_differences=None)
    assert (len(everything.problems), everything.remarks) == (600, ())
    with pytest.raises(bp.OptionError, match="differences is at least 1"):
        bp.verify(first, against=second, max_differences=0)


def test_what_is_compared_with_may_be_damaged(dataset, tmp_path):
    put_outside(dataset, 5)
    other = save(tmp_path / "b.npz", [sample(n, **({"blob": b""} if n == 7 else {})) for n in range(600)])
    assert places(bp.verify(other, against=dataset)) == [(5, "blob"), (7, "blob")]


def test_it_stops_after_so_many_problems(dataset):
    for number in (3, 9, 300, 301):
        put_outside(dataset, number)
    result = bp.verify(dataset, max_problems=3)
    assert places(result) == [(3, "blob"), (9, "blob"), (300, "blob")]
    assert result.remarks == ("it stopped after 3 problems, at sample 300 of 600",)
    assert bp.verify(dataset).remarks == bp.verify(dataset, max_problems=None).remarks == ()


def count_reads(monkeypatch):
    """How many samples are read, and how often anything is."""
    read, counted = Reader.read, []
    monkeypatch.setattr(
        Reader, "read", lambda self, rows, *a: counted.append(len(rows)) or read(self, rows, *a)
    )
    return counted


@pytest.mark.parametrize(("byte", "each"), [(b"\0", 1), (b"\x80", 15)])
def test_damage_takes_a_few_reads_for_each_problem(byte, each, tmp_path, monkeypatch):
    """Every byte of it counts as a sample: one that is no map, or has none of its fields."""
    schema = {f"f{n}": bp.Int() for n in range(15)}
    path = save(tmp_path / "a.msgpack", [dict.fromkeys(schema, 1)], schema)
    path.write_bytes(path.read_bytes() + byte * 400)
    counted = count_reads(monkeypatch)
    result = bp.verify(path)
    assert len(result.problems) == 1 + 400 * each
    assert len(counted) < 3 * len(result.problems) + 50


def test_lines_are_counted_once(tmp_path):
    """A bad cell is named by its line, and the lines before it are not counted anew for each."""
    path = save(tmp_path / "a.csv", [{"n": n} for n in range(300)], {"n": bp.Int()})
    path.write_bytes(path.read_bytes().replace(b"7", b"x"))
    reader = bp.open(path)
    viewed = []
    view = reader.source.view
    reader.source.view = lambda start, size: viewed.append(size) or view(start, size)
    bad = [n for n in range(300) if "7" in str(n)]
    result = bp.verify(reader).problems
    assert [item.message.partition(",")[0] for item in result] == [f"line {n + 2}" for n in bad]
    whole = sum(size for size in viewed if size == reader.source.size)
    assert sum(viewed) - whole < 20 * reader.source.size
    assert "line 9," in str(next(iter(reader.verify())))


def test_one_damaged_sample_costs_few_reads(dataset, monkeypatch):
    put_outside(dataset, 200)
    counted = count_reads(monkeypatch)
    assert places(bp.verify(dataset)) == [(200, "blob")]
    assert len(counted) < 50


@pytest.mark.parametrize("name", ["a.zarr", "a.n5", "a.h5", "a.parquet", "a.arrow"])
def test_a_damaged_chunk_is_unpacked_once(name, tmp_path, monkeypatch):
    """Not once for each of its samples."""
    options = {"a.parquet": {"compression": "gzip"}, "a.arrow": {"compression": "zstd"}}
    path = save(
        tmp_path / name, [{"n": n * n} for n in range(200)], {"n": bp.Int()},
        **options.get(name, {"compression": "gzip"}),
    )  # fmt: skip
    files = [path] if path.is_file() else [item for item in path.rglob("*") if item.is_file()]
    begins = rb"\x1f\x8b\x08|\x78[\x01\x5e\x9c\xda]|\x28\xb5\x2f\xfd"
    [(file, answer)] = [(file, answer) for file in files if (answer := re.search(begins, file.read_bytes()))]
    data, at = file.read_bytes(), answer.start()
    file.write_bytes(data[: at + 4] + b"\xff" * 20 + data[at + 24 :])
    reader = bp.open(path)
    written = []
    get = ChunkCache.get
    monkeypatch.setattr(
        ChunkCache,
        "get",
        lambda self, key, make, size: get(self, key, lambda: written.append(key) or make(), size),
    )
    result = bp.verify(reader)
    assert len(result.problems) == 200
    assert len(written) == len(set(written))


# --- views and shards ---------------------------------------------------------------------------------


def test_samples_are_counted_in_what_is_verified(tmp_path):
    paths = [save(tmp_path / f"{k}.beton", [sample(n) for n in range(5)], checksums=True) for k in "ab"]
    put_outside(paths[1], 3)
    flip_cell(paths[1], "n", 1)
    joined = bp.open(paths)
    actual = sorted((problem.path, problem.sample, problem.field) for problem in bp.verify(joined).problems)
    assert actual == [(str(paths[1]), 6, "n"), (str(paths[1]), 8, "blob")]
    assert sorted(places(bp.verify(joined.subset([8, 0, 6])))) == [(0, "blob"), (2, "n")]
    assert places(bp.verify(joined.select(["n"]))) == [(6, "n")]
    assert bp.verify(joined[:5]).ok


def test_a_view_shows_what_is_wrong_with_the_whole(tmp_path):
    path = save(tmp_path / "a.npz", [{"a": n, "b": n} for n in range(9)], {"a": bp.Int(), "b": bp.Int()})
    with zipfile.ZipFile(path) as archive:
        start = archive.getinfo("a.npy").header_offset
    flip(path, start + 200, 0)
    reader = bp.open(path)
    assert [problem.message for problem in bp.verify(reader[3:5]).problems] == [
        "the checksum of a.npy is wrong"
    ]
    assert not bp.verify(bp.concat([reader, reader])).ok


def test_shards_with_side_cars(tmp_path):
    schema = {"t": bp.Text(optional=True)}
    paths = [save(tmp_path / f"{k}.csv", [{"t": None}, {"t": "x"}], schema, checksums=True) for k in "ab"]
    result = bp.verify(paths)
    assert (result.problems, "checksums" in result.checks) == ([], True)


# --- side-cars ----------------------------------------------------------------------------------------


class Sink(bytearray):
    """What ``checksums.finish`` needs of a file."""

    size = property(len)
    write = bytearray.extend

    def read_at(self, size, offset):
        return bytes(self[offset : offset + size])


def finished(data, samples):
    out = Sink(data)
    checksums.finish(out, samples)
    return bytes(out)


def test_side_cars_are_read_back(dataset):
    loaded = checksums.load(str(dataset))
    assert loaded.fields == ["image", "n", "blob"]
    assert loaded.schema == bp.open(dataset).schema
    assert loaded.sums.shape == (600, 3)
    assert checksums.load(f"{dataset}.crc") is None


NAMES = ["image", "n", "blob"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no side-car"),
        (b"PNG nonsense", "no side-car"),
        (checksums.MAGIC, "cut short, or changed"),
        (checksums.MAGIC + b"\xff\xff\xff\xff{", "cut short, or changed"),
        (finished(checksums.MAGIC + b"\2\0\0\0[]", 600), "cannot be read"),
        (finished(checksums.MAGIC + b"\2\0\0\0{}", 600), "cannot be read"),
        (finished(checksums.MAGIC + struct.pack("<I", 100_000) + b"[" * 100_000, 600), "cannot be read"),
        (checksums.header(NAMES) + bytes(12 * 600), "cut short, or changed"),
        (finished(checksums.header(NAMES) + bytes(12 * 600 - 1), 600), "cannot be read"),
        (
            finished(checksums.header(NAMES) + bytes(12 * 600), 599),
            "it has 600 rows, and not as many as it says",
        ),
        (finished(checksums.header(NAMES) + bytes(12 * 599), 599), "of 599 samples, and there are 600"),
        (
            finished(checksums.header(["a", "b", "c"]) + bytes(12 * 600), 600),
            "'image' is new, 'n' is new, 'blob' is new, 'a' is gone, 'b' is gone, 'c' is gone",
        ),
    ],
)
def test_a_damaged_side_car_is_a_problem_of_its_own(data, reason, dataset):
    (dataset.parent / "a.beton.crc").write_bytes(data)
    result = bp.verify(dataset)
    [problem] = result.problems
    assert reason in problem.message
    assert problem.path == f"{dataset}.crc"
    assert "checksums" not in result.checks


def test_no_byte_of_a_side_car_can_change(tmp_path):
    path = save(tmp_path / "a.csv", [{"t": None}, {"t": "x"}], {"t": bp.Text(optional=True)}, checksums=True)
    beside = Path(f"{path}.crc")
    for place in range(beside.stat().st_size):
        flip(beside, place, place % 8)
        [problem] = bp.verify(path).problems
        assert problem.path == str(beside)
        flip(beside, place, place % 8)
    assert bp.verify(path).ok


def test_the_order_of_fields_in_a_side_car_does_not_matter(dataset):
    loaded = checksums.load(str(dataset))
    turned = np.ascontiguousarray(loaded.sums[:, ::-1])
    data = finished(checksums.header(loaded.fields[::-1], loaded.schema) + turned.tobytes(), 600)
    (dataset.parent / "a.beton.crc").write_bytes(data)
    assert bp.verify(dataset).ok


# --- what checksums cover besides bytes ---------------------------------------------------------------


def test_a_missing_cell_is_not_an_empty_one(tmp_path):
    schema = {"t": bp.Text(optional=True), "b": bp.Bytes(optional=True), "n": bp.Int(optional=True)}
    for suffix in ("arrow", "npz", "msgpack"):
        first = save(tmp_path / f"a.{suffix}", [{"t": None, "b": b"", "n": 1}], schema, checksums=True)
        save(first, [{"t": "", "b": None, "n": 1}], schema, overwrite=True)
        save(tmp_path / f"b.{suffix}", [{"t": None, "b": b"", "n": 1}], schema, checksums=True)
        shutil.copy(f"{tmp_path}/b.{suffix}.crc", f"{first}.crc")
        assert places(bp.verify(first)) == [(0, "t"), (0, "b")]


def test_the_shape_of_raw_pixels_is_covered(tmp_path):
    for name, shape in (("a", (4, 6, 3)), ("b", (6, 4, 3))):
        image = np.arange(72, dtype=np.uint8).reshape(shape)
        save(tmp_path / f"{name}.npz", [{"image": image}], {"image": bp.Image()}, write_mode="raw",
             checksums=True)  # fmt: skip
    shutil.copy(tmp_path / "b.npz.crc", tmp_path / "a.npz.crc")
    assert places(bp.verify(tmp_path / "a.npz")) == [(0, "image")]


def test_a_changed_schema_is_named(tmp_path):
    schema = {"t": bp.Text(optional=True), "n": bp.Int(names=("cat", "dog"))}
    path = save(tmp_path / "a.csv", [{"t": None, "n": 1}, {"t": "x", "n": 0}], schema, checksums=True)
    note = Path(f"{path}.schema.json")
    note.write_text(note.read_text().replace("dog", "fox"))
    [problem] = bp.verify(path).problems
    assert problem.path == f"{path}.crc"
    assert "'n' is Int(names=('cat', 'fox')) and was Int(names=('cat', 'dog'))" in problem.message
    note.unlink()
    assert "the fields changed" in bp.verify(path).problems[0].message


def test_options_that_choose_fields_are_no_change(tmp_path):
    schema = {"n": bp.Int(), "t": bp.Text()}
    path = save(tmp_path / "a.csv", [{"n": 1, "t": "x"}], schema, checksums=True)
    assert bp.verify(path, types={"n": "text"}).problems == []
    assert bp.verify(path, index="memory").problems == []
    path = save(tmp_path / "a.zarr", [{"n": 1, "t": "x"}], schema, checksums=True)
    result = bp.verify(path, fields=["t"])
    assert (result.problems, "checksums" in result.checks) == ([], True)


# A name, options of create, and which sample is the first that goes.
CUT = [
    ("a.tfrecord", {}),
    ("a.tfrecord", {"records": "raw"}),
    ("a.msgpack", {}),
    ("a.ffr", {}),
    ("a.rec", {}),
    ("a.csv", {}),
    ("a.jsonl", {}),
    ("a.tar", {}),
]


@pytest.mark.parametrize("field", [bp.Int(), bp.Bytes()])
@pytest.mark.parametrize(("name", "options"), CUT)
def test_a_cut_behind_a_sample_is_noticed(name, options, field, tmp_path):
    """A file that ends where a sample ends may look whole; only a count tells."""
    if name.endswith((".csv", ".jsonl")) and field == bp.Bytes():
        field = bp.Text()
    values = {"int": range(9), "bytes": [b"%d" % n for n in range(9)], "text": [str(n) for n in range(9)]}
    samples = [{"data": value} for value in values[field.kind]]
    for count in (9, 5):
        (tmp_path / str(count)).mkdir()
        save(tmp_path / str(count) / name, samples[:count], {"data": field}, **options)
    path, shorter = tmp_path / "9" / name, tmp_path / "5" / name
    assert bp.verify(path).ok
    data, less = path.read_bytes(), shorter.read_bytes()
    size = len(less) if data.startswith(less) else len(data) * 5 // 9
    path.write_bytes(data[:size])
    result = bp.verify(path)
    assert not result.ok
    if data.startswith(less):
        assert result.samples == 5


def test_checksums_of_shards_and_parts_of_them(tmp_path):
    source = save(tmp_path / "source.npz", [sample(n) for n in range(40)])
    result = bp.convert(
        source, tmp_path / "out.beton", shard_size=10_000, options=bp.ConvertOptions(checksums=True)
    )
    assert len(result.files) > 2
    with bp.open(result.files[1]) as second:
        first = len(bp.open(result.files[0]))
        spans = second.spans("blob", [2])
    flip(Path(result.files[1]), int(spans.start[0]), 0)
    joined = bp.open(result.files)
    result_of_all = bp.verify(joined)
    assert "checksums" in result_of_all.checks
    assert [problem.message for problem in result_of_all.problems] == ["the checksum is wrong"]
    assert places(bp.verify(joined.select(["n", "blob"]).subset([0, first + 2, 1]))) == [(1, "blob")]
    assert bp.verify(joined.select(["n"])).ok
    Path(f"{result.files[0]}.crc").unlink()
    assert "checksums" not in bp.verify(bp.open(result.files)).checks


# --- checksums of the formats' own --------------------------------------------------------------------


def weight(name, data):
    return {"name": name, "dtype": "uint8", "shape": np.array([len(data)]), "data": data}


@pytest.mark.parametrize(
    ("name", "options", "check"),
    [
        ("a.tfrecord", {}, "CRC of every record"),
        ("a.tfrecord.gz", {}, "checksum of gzip"),
        ("a.ffr", {}, "CRC of every sample"),
        ("a.ffr", {}, "CRC of the header"),
        ("a.tar", {}, "checksum of every tar header"),
        ("a.tar.gz", {}, "CRC of gzip"),
        ("a.csv.gz", {}, "CRC of gzip"),
        ("a.jsonl.gz", {}, "CRC of gzip"),
        ("a.msgpack.gz", {}, "CRC of gzip"),
        ("a.zarr", {"compression": "gzip"}, "CRC of every chunk"),
        ("a.zarr", {"chunks_per_shard": 2}, "CRC of every shard's table"),
        ("a.parquet", {}, "CRC of every page that has one"),
    ],
)
def test_checks_name_the_checksums_of_the_format(name, options, check, tmp_path):
    path = save(tmp_path / name, [{"n": n} for n in range(9)], {"n": bp.Int()}, **options)
    result = bp.verify(path)
    assert (result.ok, check in result.checks) == (True, True)
    with bp.open(path) as reader:
        assert check in bp.verify(reader[2:]).checks
        assert check in bp.verify(bp.concat([reader, reader])).checks


@pytest.mark.parametrize("name", ["a.csv.gz", "a.jsonl.gz", "a.msgpack.gz", "a.tar.gz", "a.tfrecord.gz"])
def test_the_checksum_of_a_packed_file_is_compared_though_there_is_an_index(name, tmp_path):
    path = save(tmp_path / name, [{"n": n} for n in range(9)], {"n": bp.Int()})
    with bp.open(path) as reader:
        # The last bytes are the CRC and the size of the last member.
        flip(path, path.stat().st_size - 8, 0)
        [problem] = bp.verify(reader).problems
    assert "gzip" in problem.message


def test_the_checksums_of_parquet_pages(tmp_path):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "a.parquet"
    table = pa.table({"n": np.arange(100) + (1 << 40)})
    pq.write_table(table, path, compression="none", use_dictionary=False, write_page_checksum=True)
    assert bp.verify(path).ok
    data = path.read_bytes()
    flip(path, data.index(np.int64((1 << 40) + 50).tobytes()), 0)
    assert "checksum" in bp.verify(path).problems[0].message


def test_two_tensors_of_one_name(tmp_path):
    for name, weights in (("a", "xy"), ("b", "yz")):
        samples = [weight(item, b"12") for item in weights]
        save(tmp_path / f"{name}.safetensors", samples, TENSORS)
    [problem] = bp.verify(tmp_path).problems
    assert problem.message == "two tensors are called 'y'"
    assert (problem.path, problem.sample) == (str(tmp_path / "b.safetensors"), 2)


def test_a_zip_file_with_two_members_of_one_name(tmp_path):
    path = save(tmp_path / "a.npz", [{"n": 1}], {"n": bp.Int()})
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr("n.npy", archive.read("n.npy"))
    assert [problem.message for problem in bp.verify(path).problems] == ["two members are called n.npy"]


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("npz", {}),
        ("model.npz", {}),
        ("zarr.zip", {"compression": "none"}),
        ("zarr.zip", {"compression": "none", "zarr_format": 2}),
        ("n5.zip", {"compression": "none"}),
        ("pt", {}),
    ],
)
def test_every_zip_file_keeps_the_checksums_of_its_members(suffix, options, tmp_path):
    path = tmp_path / f"a.{suffix}"
    schema = {"blob": bp.Bytes()}
    if suffix in ("pt", "model.npz"):
        schema = TENSORS
    samples = (
        [{"blob": b"SAMPLE-%d" % n} for n in range(9)] if "blob" in schema else [weight("w", b"SAMPLE-3")]
    )
    save(path, samples, schema, **options)
    result = bp.verify(path)
    assert (result.ok, "CRC of every ZIP member" in result.checks) == (True, True)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"SAMPLE-3", b"SAMPLE-X"))
    with zipfile.ZipFile(path) as archive:
        bad = archive.testzip()
    [problem] = bp.verify(path).problems
    assert problem.message == f"the checksum of {bad} is wrong"


# -- some samples, and lists of bad ones ---------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    """Three files of ten; the image of sample 14 cannot be decoded."""
    for number in range(3):
        rows = [sample(n) for n in range(10 * number, 10 * number + 10)]
        save(tmp_path / f"s-{number}.beton", rows)
    with bp.open(tmp_path / "s-1.beton") as reader:
        start = int(reader.spans("image", [4]).start[0])
    content = bytearray((tmp_path / "s-1.beton").read_bytes())
    content[start : start + 4] = b"oops"
    (tmp_path / "s-1.beton").write_bytes(content)
    return tmp_path, start


def test_only_some_samples(dataset):
    flip_cell(dataset, "blob", 300)
    report = bp.verify(dataset, sample=50)
    assert report.samples == 50
    assert report.remarks == ("50 of 600 samples were checked, drawn with seed 0",)
    assert report.checks == ("bounds", "checksums")
    hits = [bp.verify(dataset, sample=100, seed=seed) for seed in range(12)]
    assert {tuple(places(hit)) for hit in hits} == {(), ((300, "blob"),)}
    assert places(bp.verify(dataset, sample=100, seed=3)) == places(hits[3])
    assert places(bp.verify(dataset, sample=10_000)) == [(300, "blob")]
    with pytest.raises(bp.OptionError, match="at least 1"):
        bp.verify(dataset, sample=0)


def test_a_list_of_bad_samples(shards, tmp_path):
    folder, start = shards
    bad = tmp_path / "bad.jsonl"
    report = bp.verify(str(folder / "s-*.beton"), decode=True, quarantine=bad)
    assert places(report) == [(14, "image")]
    (line,) = map(json.loads, bad.read_text().splitlines())
    message = report.problems[0].message
    assert line == {
        "path": str(folder / "s-1.beton"), "sample": 4, "in_set": 14, "field": "image",
        "offset": start, "problem": message,
    }  # fmt: skip
    with bp.open(str(folder / "s-*.beton"), skip=bad) as reader:
        assert [row["n"] for row in reader] == [n for n in range(30) if n != 14]
        assert reader.spans("image") is not None
        # What is left is numbered as it is in all files.
        assert bp.verify(reader, decode=True, quarantine=bad).ok
    # No problem, an empty list; and the old one is gone.
    assert bad.read_bytes() == b""
    with bp.open(str(folder / "s-*.beton"), skip=bad) as reader:
        assert len(reader) == 30


def test_a_list_is_good_for_the_same_files_elsewhere(shards, tmp_path):
    folder, _ = shards
    bad = tmp_path / "bad.jsonl"
    bp.verify(folder / "s-1.beton", decode=True, quarantine=bad)
    (tmp_path / "copy").mkdir()
    for number in (2, 1, 0):
        shutil.copy(folder / f"s-{number}.beton", tmp_path / "copy")
    with bp.open([tmp_path / "copy" / f"s-{number}.beton" for number in (2, 1)], skip=bad) as reader:
        assert [row["n"] for row in reader] == [*range(20, 30), *range(10, 14), *range(15, 20)]
    # Two files of that name: the one whose folder is called so too; where none is, neither.
    both = [tmp_path / "copy" / "s-1.beton", folder / "s-1.beton"]
    with bp.open(both, skip=bad) as reader:
        assert (len(reader), reader.base.readers[0].path) == (19, str(both[0]))
        assert reader.indices.tolist() == [n for n in range(20) if n != 14]
    (tmp_path / "other").mkdir()
    shutil.copy(folder / "s-1.beton", tmp_path / "other")
    with pytest.warns(UserWarning, match="1 of the samples to skip"):
        assert len(bp.open([both[0], tmp_path / "other" / "s-1.beton"], skip=bad)) == 20


def test_what_a_list_names_and_is_not_there_gets_one_warning(shards, tmp_path):
    folder, _ = shards
    bad = tmp_path / "bad.jsonl"
    entries = [
        ("x/s-1.beton", 4),
        ("s-1.beton", 10),
        ("s-1.beton", -1),
        ("gone.beton", 0),
        ("s-0.beton", None),
    ]
    bad.write_text("\n\n".join(json.dumps({"path": path, "sample": n}) for path, n in entries))
    with pytest.warns(UserWarning, match=r"bad\.jsonl: 3 of the samples to skip are not in") as seen:
        reader = bp.open(str(folder / "s-*.beton"), skip=str(bad))
    assert len(seen) == 1
    assert len(reader) == 29


@pytest.mark.parametrize(
    "line", ["{", "[]", '{"path": "a"}', '{"path": 1, "sample": 1}', '{"path": "a", "sample": "1"}']
)
def test_what_is_no_list_is_refused(shards, tmp_path, line):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"path": "a", "sample": 1}\n' + line)
    with pytest.raises(bp.DamagedError, match=r"bad\.jsonl, byte 27: this is no list of bad samples"):
        bp.open(shards[0] / "s-0.beton", skip=bad)
    with pytest.raises(bp.NotFoundError):
        bp.open(shards[0] / "s-0.beton", skip=tmp_path / "none")
    with pytest.raises(bp.OptionError, match="skip"):
        bp.open({"n": np.arange(3)}, skip=bad)


def test_a_list_of_a_file_that_does_not_open(tmp_path):
    (tmp_path / "a.npz").write_bytes(b"PK\x03\x04")
    report = bp.verify(tmp_path / "a.npz", quarantine=tmp_path / "bad.jsonl")
    assert not report.ok
    (line,) = map(json.loads, (tmp_path / "bad.jsonl").read_text().splitlines())
    assert (line["path"], line["sample"]) == (str(tmp_path / "a.npz"), None)


def test_a_loader_and_the_commands_leave_samples_out(shards, tmp_path, capsys):
    from batchplant.cli import main

    folder, _ = shards
    bad, target = str(tmp_path / "bad.jsonl"), str(tmp_path / "sound.msgpack")
    files = [str(folder / f"s-{number}.beton") for number in range(3)]
    assert main(["verify", *files, "--decode", "--quarantine", bad]) == 1
    loader = bp.Loader(bp.open(files, skip=bad), 10, pipelines={"image": None, "blob": None})
    assert np.concatenate([batch["n"] for batch in loader]).tolist() == [n for n in range(30) if n != 14]
    loader.close()
    capsys.readouterr()
    assert main(["verify", *files, "--decode", "--skip", bad]) == 0
    assert "29 samples" in capsys.readouterr().out
    assert main(["info", *files, "--skip", bad, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 29
    assert main(["head", *files, "--skip", bad, "--start", "14", "-n", "1", "--fields", "n"]) == 0
    assert "15" in capsys.readouterr().out
    assert main(["convert", files[1], target, "--skip", bad]) == 0
    assert [row["n"] for row in bp.open(target)] == [10, 11, 12, 13, 15, 16, 17, 18, 19]
    capsys.readouterr()
    assert main(["verify", files[0], "--sample", "4", "--seed", "7"]) == 0
    assert "4 of 10 samples were checked, drawn with seed 7" in capsys.readouterr().out


@pytest.mark.parametrize("shards", [None, 2])
def test_what_a_killed_writer_left_is_mentioned(shards, tmp_path):
    """It lies beside a complete dataset. Reading removes nothing; the next writer does."""

    def write():
        with bp.create(tmp_path / "t.npy", {"x": bp.Int()}, overwrite=True, shard_samples=shards) as out:
            for number in range(4):
                out.append({"x": number})
        return out.files

    files = write()
    hidden = partial_folder(str(tmp_path / "t.npy"), sharded=shards is not None)
    hidden.mkdir()
    with open(hidden / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Somebody works there.
        assert bp.verify(files).remarks == ()
    done = bp.verify(files)
    assert done.ok
    assert any(f"{hidden.name} beside it was left by a writer" in remark for remark in done.remarks)
    assert hidden.exists()
    write()
    assert not hidden.exists()
    assert bp.verify(files).remarks == ()
