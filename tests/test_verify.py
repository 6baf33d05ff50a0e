"""Verifying: every problem is found and named, and nothing else."""

import shutil
import struct
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
from batchplant import checksums
from batchplant.testing.cases import jpeg, pixels
from batchplant.testing.damage import flip

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
    found = {place for place in places(result) if place != (None, None)}
    assert found == {(4, "image"), (2, "text"), (2, "meta"), (2, "t")}
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
        ((bp.Image(mode=None), b"no picture"), (bp.Image(mode=None), b"no picture"), True),
        ((bp.Image(mode=None), b"no picture"), (bp.Image(mode=None), b"nor this"), False),
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


# --- side-cars ----------------------------------------------------------------------------------------


def test_side_cars_are_read_back(dataset):
    fields, sums = checksums.load(str(dataset))
    assert fields == ["image", "n", "blob"]
    assert sums.shape == (600, 3)
    assert checksums.load(f"{dataset}.crc") is None


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no side-car"),
        (b"PNG nonsense", "no side-car"),
        (checksums.MAGIC, "cannot be read"),
        (checksums.MAGIC + b"\xff\xff\xff\xff{", "cannot be read"),
        (checksums.MAGIC + b"\2\0\0\0[]", "cannot be read"),
        (checksums.MAGIC + b"\2\0\0\0{}", "cannot be read"),
        (checksums.MAGIC + struct.pack("<I", 100_000) + b"[" * 100_000, "cannot be read"),
        (checksums.header(["image", "n", "blob"]) + bytes(12 * 600 - 1), "cannot be read"),
        (
            checksums.header(["image", "n", "blob"]) + bytes(12 * 599),
            "of 599 samples of image, n, blob, not of this",
        ),
        (checksums.header(["a", "b", "c"]) + bytes(12 * 600), "of 600 samples of a, b, c, not of this"),
    ],
)
def test_a_damaged_side_car_is_a_problem_of_its_own(data, reason, dataset):
    (dataset.parent / "a.beton.crc").write_bytes(data)
    result = bp.verify(dataset)
    [problem] = result.problems
    assert reason in problem.message
    assert problem.path == f"{dataset}.crc"
    assert "checksums" not in result.checks


def test_the_order_of_fields_in_a_side_car_does_not_matter(dataset):
    fields, sums = checksums.load(str(dataset))
    turned = np.ascontiguousarray(sums[:, ::-1])
    (dataset.parent / "a.beton.crc").write_bytes(checksums.header(fields[::-1]) + turned.tobytes())
    assert bp.verify(dataset).ok


def test_checksums_of_shards_and_parts_of_them(tmp_path):
    source = save(tmp_path / "source.npz", [sample(n) for n in range(40)])
    result = bp.convert(source, tmp_path / "out.beton", shard_size=10_000, checksums=True)
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
