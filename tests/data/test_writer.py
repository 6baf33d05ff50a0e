"""What every writer shares: values to cells, errors that name the sample, nothing left behind."""

import copy
import errno
import os
import pickle
import resource
import threading

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant.formats.registry.creating import create_with
from batchplant.testing.cases import jpeg, pixels
from variants import exhaustive

SCHEMA = {"image": bp.Image(), "n": bp.Int()}


def sample(number, **other):
    return {"image": jpeg(8, 8 + number % 4), "n": number, **other}


def write(path, schema, samples, **options):
    with bp.create(path, schema, **options) as out:
        for sample in samples:
            out.append(sample)
    return out


class Explodes:
    """A tensor of another library on a bad day."""

    def __array__(self, dtype=None, copy=None):
        raise RuntimeError("out of memory on device 3")


class Tensorish:
    """A tensor of another library."""

    def __init__(self, values):
        self.values = np.asarray(values)

    def __array__(self, dtype=None, copy=None):
        return self.values


BAD = [
    ({"n": "five"}, bp.SchemaError, "needs a whole number, not 'five'"),
    ({"n": 1.5}, bp.SchemaError, "float does not fit Int"),
    ({"n": None}, bp.SchemaError, "the value is None, and the field is not optional"),
    ({"n": 2**63}, bp.SchemaError, "out of range for int64"),
    ({"n": Explodes()}, bp.SchemaError, "Explodes does not fit Int"),
    ({"image": Explodes()}, bp.EncodeError, "RuntimeError: out of memory on device 3"),
    ({"image": "no/such/file.jpg"}, bp.EncodeError, "no/such/file.jpg: No such file"),
    ({"image": object()}, bp.BatchplantError, "has no image format"),
]


@pytest.mark.parametrize(("bad", "kind", "reason"), BAD)
def test_an_error_names_sample_field_and_reason(bad, kind, reason, tmp_path):
    given = []

    def samples():
        for number in range(1000):
            given.append(number)
            yield sample(number, **(bad if number == 5 else {}))

    with pytest.raises(kind, match=reason) as caught:
        write(tmp_path / "a.npz", SCHEMA, samples())
    assert caught.value.sample == 5
    assert [caught.value.field] == list(bad)
    # It comes as soon as it is known, not at the end.
    assert len(given) < 200
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("bad", "kind", "reason"), BAD)
def test_what_cannot_be_encoded_is_skipped_and_reported(bad, kind, reason, tmp_path):
    samples = [sample(n, **(bad if n in (0, 20, 49) else {})) for n in range(50)]
    out = write(tmp_path / "a.npz", SCHEMA, samples, on_error="skip", checksums=True)
    assert [problem.sample for problem in out.skipped] == [0, 20, 49]
    assert all(reason.split(":")[-1].strip() in problem.message for problem in out.skipped)
    assert (out.received, out.written) == (50, 47)
    with bp.open(tmp_path / "a.npz") as reader:
        assert [row["n"] for row in reader] == [n for n in range(50) if n not in (0, 20, 49)]
    assert bp.verify(tmp_path / "a.npz").problems == []


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"image": jpeg()}, "it lacks n"),
        ({**sample(0), "more": 1}, "it has more besides"),
        ({}, "it lacks image, n"),
    ],
)
def test_samples_have_exactly_the_fields(wrong, reason, tmp_path):
    with pytest.raises(bp.SchemaError, match=f"sample 0: .*exactly the fields image, n; {reason}"):
        write(tmp_path / "a.npz", SCHEMA, [wrong])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("suffix", [".beton", ".npz"])
def test_any_number_of_workers_gives_the_same_file(suffix, tmp_path):
    samples = [sample(n, **({"image": 5} if n % 13 == 5 else {})) for n in range(60)]
    options = {"write_mode": "proportion"} if suffix == ".beton" else {}

    def written(workers):
        path = tmp_path / f"{workers}{suffix}"
        out = write(path, SCHEMA, samples, workers=workers, on_error="skip", max_resolution=10, **options)
        return path.read_bytes(), out.skipped

    alone = written(1)
    assert [problem.sample for problem in alone[1]] == [5, 18, 31, 44, 57]
    assert written(2) == alone
    assert written(7) == alone


def test_values_of_many_kinds_of_objects(tmp_path):
    fields = {
        "n": bp.Int("int16"), "x": bp.Float("float32"), "ok": bp.Bool(), "blob": bp.Bytes(),
        "t": bp.Tensor("float32", (2,)), "image": bp.Image(), "gray": bp.Image(mode="L"),
    }  # fmt: skip
    colour, gray = pixels(3, 4, 3), pixels(3, 4)
    plain = {"n": 3, "x": 0.5, "ok": True, "blob": b"ab", "t": [1.0, 2.0], "image": colour, "gray": gray}
    numpy = {
        "n": np.uint8(3), "x": np.float64(0.5), "ok": np.bool_(True), "blob": np.frombuffer(b"ab", np.uint8),
        "t": np.array([1, 2], np.int16), "image": np.asfortranarray(colour), "gray": gray[:, :, None],
    }  # fmt: skip
    other = {
        "n": Tensorish(3), "x": np.array(0.5), "ok": True, "blob": memoryview(b"xabx")[1:3],
        "t": Tensorish(np.array([1, 2], np.float32)), "image": Tensorish(colour), "gray": Tensorish(gray),
    }  # fmt: skip
    write(tmp_path / "a.npz", fields, [plain, numpy, other])
    first, *rest = bp.open(tmp_path / "a.npz")
    assert (first["n"], first["x"], first["ok"], first["blob"]) == (3, 0.5, True, b"ab")
    for item in rest:
        for name in fields:
            assert np.array_equal(item[name], first[name]), name


@pytest.mark.parametrize(
    ("field", "value", "reason"),
    [
        (bp.Tensor("float32", (2,)), np.zeros(2), "float64 values do not fit float32 exactly"),
        (bp.Tensor("int8", (2,)), [1000, 0], "does not fit"),
        (bp.Tensor("int8", (2,)), [1, 2, 3], r"shape \(3,\) does not fit"),
        (bp.Tensor("int8", (None, 2)), np.zeros((2, 3), np.int8), r"shape \(2, 3\) does not fit"),
        (bp.Text(), b"bytes", "needs text, not bytes"),
        (bp.Text(), "\ud800", "does not fit Text"),
        (bp.Bytes(), "text", "needs bytes, not text"),
        (bp.Json(), {1, 2}, "does not fit Json"),
        (bp.Json(), {"a": b"x"}, "does not fit Json"),
        (bp.Bool(), 1, "needs True or False"),
        (bp.Float(), "1.5", "needs a number, not '1.5'"),
        (bp.Float(), [1.5], "does not fit Float"),
        (bp.Float("float16"), 1e5, "out of range for float16"),
        (bp.Audio(), 5, "does not fit Audio"),
    ],
)
def test_values_that_do_not_fit(field, value, reason, tmp_path):
    with pytest.raises(bp.SchemaError, match=reason):
        write(tmp_path / "a.npz", {"x": field}, [{"x": value}])


def test_a_value_that_contains_itself(tmp_path):
    value = []
    value.append(value)
    deep = current = []
    for _ in range(100_000):
        current.append([])
        current = current[0]
    values = [{"x": item} for item in (value, deep, [1])]
    out = write(tmp_path / "a.npz", {"x": bp.Json()}, values, on_error="skip")
    assert [problem.sample for problem in out.skipped] == [0, 1]
    assert list(bp.open(tmp_path / "a.npz")) == [{"x": [1]}]


def test_arrays_inside_of_tuples_may_be_refilled(tmp_path):
    row = np.zeros(2)
    with bp.create(tmp_path / "a.npz", {"x": bp.Tensor("float64", (2, 2))}) as out:
        for n in range(40):
            row[:] = n
            out.append({"x": (row, row)})
    assert [row["x"][1, 1] for row in bp.open(tmp_path / "a.npz")] == list(range(40))


def test_columns_and_samples_may_be_mixed(tmp_path):
    with bp.create(tmp_path / "a.npz", {"n": bp.Int()}) as out:
        out.append({"n": 0})
        out.append(bp.Columns(n=np.arange(1, 100)))
        out.append({"n": 100})
    assert [row["n"] for row in bp.open(tmp_path / "a.npz")] == list(range(101))


def test_a_closed_writer_takes_nothing(tmp_path):
    out = bp.create(tmp_path / "a.npz", {"n": bp.Int()})
    out.close()
    out.close()
    with pytest.raises(bp.OptionError, match="the writer is closed"):
        out.append({"n": 1})


def test_a_writer_that_met_an_error_takes_nothing_more(tmp_path):
    out = bp.create(tmp_path / "a.npz", {"n": bp.Int()})
    out.append({"n": "x"})
    with pytest.raises(bp.SchemaError):
        out.checkpoint()
    with pytest.raises(bp.OptionError, match="an error stopped it"):
        out.append({"n": 1})
    with pytest.raises(bp.OptionError):
        out.close()
    assert os.listdir(tmp_path) == []


def test_a_writer_that_is_forgotten_leaves_nothing(tmp_path):
    bp.create(tmp_path / "a.npz", {"n": bp.Int()}).append({"n": 1})
    assert os.listdir(tmp_path) == []


def test_no_thread_outlives_its_writer(tmp_path):
    before = set(threading.enumerate())
    for n, end in enumerate(("close", "abort", "suspend")):
        out = bp.create(tmp_path / f"{n}.npz", SCHEMA, workers=4)
        for number in range(20):
            out.append(sample(number))
        getattr(out, end)()
    # Threads of tests before this one may end meanwhile.
    assert set(threading.enumerate()) <= before


def test_overwriting_without_checksums_removes_the_old_ones(tmp_path):
    for checksums in (True, False):
        bp.create(tmp_path / "a.npz", {"n": bp.Int()}, overwrite=True, checksums=checksums).close()
        assert (tmp_path / "a.npz.crc").exists() == checksums


@pytest.mark.parametrize("how", ["create", "convert"])
@pytest.mark.parametrize(
    ("images", "sizes"),
    [
        (bp.ImageOptions(max_resolution=10), [(5, 10, 3), (5, 10, 3)]),
        ({"small": bp.ImageOptions(max_resolution=10)}, [(5, 10, 3), (20, 40, 3)]),
        ({}, [(20, 40, 3), (20, 40, 3)]),
        (None, [(20, 40, 3), (20, 40, 3)]),
    ],
)
def test_image_options_are_for_all_fields_or_by_field(how, images, sizes, tmp_path):
    schema = {"small": bp.Image(), "large": bp.Image()}
    samples = {name: [pixels(20, 40, 3)] for name in schema}
    if how == "create":
        with bp.create(tmp_path / "a.npz", schema, images=images) as out:
            out.append({name: values[0] for name, values in samples.items()})
    else:
        with bp.create(tmp_path / "b.npz", schema) as out:
            out.append({name: values[0] for name, values in samples.items()})
        bp.convert(tmp_path / "b.npz", tmp_path / "a.npz", images=images)
    [result] = bp.open(tmp_path / "a.npz")
    assert [result[name].shape for name in schema] == sizes


def test_fields_without_image_options_of_their_own_get_the_others(tmp_path):
    schema = {"small": bp.Image(), "large": bp.Image()}
    own = {"large": bp.ImageOptions()}
    with bp.create(tmp_path / "a.npz", schema, images=own, max_resolution=10) as out:
        out.append({"small": pixels(20, 40, 3), "large": pixels(20, 40, 3)})
    [result] = bp.open(tmp_path / "a.npz")
    assert (result["small"].shape, result["large"].shape) == ((5, 10, 3), (20, 40, 3))


@pytest.mark.parametrize(
    ("options", "error", "reason"),
    [
        ({"images": bp.ImageOptions(), "quality": 5}, bp.OptionError, "leave the other options for images"),
        ({"images": {"x": bp.ImageOptions()}}, bp.FieldNameError, "'x'"),
        ({"images": {"n": bp.ImageOptions()}}, bp.OptionError, "'n', which is Int.* and no image"),
        ({"images": {"i": {"quality": 5}}}, bp.OptionError, "images is an ImageOptions, or maps fields"),
    ],
)
def test_image_options_that_cannot_be(options, error, reason, tmp_path):
    with pytest.raises(error, match=reason):
        bp.create(tmp_path / "a.npz", {"n": bp.Int(), "i": bp.Image()}, **options)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"on_error": "ignore"}, "on_error is raise or skip"),
        ({"workers": 0}, "workers must be at least 1"),
        ({"write_mode": "gif"}, "write_mode is one of jpg, raw, smart, proportion"),
        ({"max_resolution": 0}, "max_resolution must be at least 1"),
        ({"jpeg_quality": 101}, "jpeg_quality must be from 1 to 100"),
        ({"compress_probability": 1.5}, "compress_probability must be from 0 to 1"),
        ({"seed": -1}, "seed must be"),
        ({"nonsense": 1}, "npz has no option 'nonsense'; its options are: compress"),
    ],
)
def test_options_that_cannot_be(options, reason, tmp_path):
    with pytest.raises(bp.OptionError, match=reason):
        bp.create(tmp_path / "a.npz", {"n": bp.Int()}, **options)
    assert os.listdir(tmp_path) == []


def test_a_dataset_needs_a_field(tmp_path):
    with pytest.raises(bp.OptionError, match="at least one field"):
        bp.create(tmp_path / "a.npz", {})


def test_the_schema_given_is_not_changed(tmp_path):
    schema = {"image": bp.Image("png"), "n": bp.Int()}
    before = copy.deepcopy(schema)
    bp.create(tmp_path / "a.beton", schema, write_mode="jpg").close()
    assert schema == before


@pytest.mark.parametrize(
    ("suffix", "damaged"), [("parquet", "footers"), ("parquet", "pending-0"), ("arrow", "pending-0")]
)
def test_damaged_files_to_resume_from_are_one_error(suffix, damaged, tmp_path):
    """Not whatever the library that completes the file raises."""
    pytest.importorskip("pyarrow")
    target, schema = tmp_path / f"a.{suffix}", bp.Schema({"n": bp.Int()})
    options = {"row_group_size": 1} if damaged == "footers" else {}
    out = bp.create(target, schema, **options)
    out.append({"n": 1})
    out.checkpoint()
    out.suspend()
    spool = tmp_path / f".a.{suffix}.partial" / damaged
    spool.write_bytes(b"\xff" * spool.stat().st_size)
    with pytest.raises(bp.DamagedError, match=r"left to resume from is damaged .* anew without resume"):
        create_with(str(target), schema, bp.WriteOptions(resume=True), **options).close()
    assert not target.exists()


@pytest.mark.parametrize(
    ("suffix", "options"),
    [
        ("parquet", {"row_group_size": 1000}),
        ("parquet", {}),
        # Also row groups that are written early, for there are too many partitions.
        ("parquet", {"row_group_size": 1000, "partition_by": "key"}),
        ("arrow", {"batch_size": 1000}),
        ("arrow", {"batch_size": 1000, "compression": "zstd"}),
        ("arrows", {}),
    ],
)
def test_checkpoints_do_not_change_a_byte(suffix, options, tmp_path):
    pytest.importorskip("pyarrow")
    schema = bp.Schema(
        {
            "key": bp.Int(),
            "flag": bp.Bool(),
            "text": bp.Text(optional=True),
            "array": bp.Tensor("int16", (3,)),
        }
    )
    samples = [
        {"key": n % 40, "flag": n % 3 == 1, "text": None if n % 5 == 0 else "ab" * n, "array": [n, 1, n]}
        for n in range(90)
    ]

    def files(name, every, stop=None):
        """Write with a checkpoint after every so many samples; after ``stop``, with a writer that resumes."""
        target = str(tmp_path / name / f"a.{suffix}")
        out = create_with(target, schema, bp.WriteOptions(), **options)
        for number, sample in enumerate(samples, 1):
            out.append(sample)
            if number % every == 0:
                out.checkpoint()
            if number == stop:
                out.append(samples[0])
                out.suspend()
                out = create_with(target, schema, bp.WriteOptions(resume=True), **options)
                assert out.received == number
        out.close()
        assert sorted(row["array"][0] for row in bp.open(target)) == list(range(90))
        top = tmp_path / name
        return {path.relative_to(top): path.read_bytes() for path in top.rglob("*") if path.is_file()}

    whole = files("none", every=1000)
    assert files("third", every=3, stop=3) == whole
    assert files("fortieth", every=40, stop=80) == whole


@pytest.mark.parametrize(
    ("suffix", "shards"),
    [
        *((suffix, None) for suffix in ("npy", "csv", "tfrecord", "arrow", "mds")),
        *((suffix, shards) for suffix in ("beton", "parquet", "zarr") for shards in (None, 30)),
        *exhaustive(*((suffix, 30) for suffix in ("npy", "csv", "tfrecord", "arrow", "mds"))),
    ],
)
def test_a_disk_that_takes_no_more(suffix, shards, tmp_path):
    """Here it is a limit on the size of files; a full disk takes the same way (see test_faults.py)."""
    target = tmp_path / f"t.{suffix}"

    def write(rows: int) -> None:
        with bp.create(
            target, {"x": bp.Tensor("uint8", (40_000,))}, overwrite=True, shard_samples=shards
        ) as out:
            for number in range(rows):
                out.append({"x": np.random.default_rng(number).integers(0, 256, 40_000, np.uint8)})

    def fail() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
        with pytest.raises(bp.WriteError, match="the old dataset is untouched") as caught:
            write(60)
        error, again = caught.value, pickle.loads(pickle.dumps(caught.value))
        assert isinstance(error, OSError)
        assert error.errno == again.errno == errno.EFBIG
        return (error.path, str(again)) == (str(target), str(error))

    write(2)
    assert processes.in_fork(fail)
    assert len(bp.open(target if shards is None else tmp_path)) == 2
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]
