"""Many files as one dataset, and one dataset as many files."""

import os
import pickle

import numpy as np
import pytest

import batchplant as bp
from batchplant.testing.cases import cells, jpeg, pixels


def save(path, schema, values, **options):
    with bp.create(path, schema, **options) as out:
        for value in values:
            out.append(value)
    return path


@pytest.fixture
def parts(tmp_path):
    """Numbers 0 … 9 in three files of three formats, and an empty one among them."""
    schema = {"n": bp.Int(), "x": bp.Tensor("float32", (2,))}

    def values(first, end):
        return [{"n": n, "x": np.full(2, n / 2, np.float32)} for n in range(first, end)]

    return [
        bp.open(save(tmp_path / "a.npz", schema, values(0, 4))),
        bp.open(save(tmp_path / "b.beton", schema, [])),
        bp.open(save(tmp_path / "c.beton", schema, values(4, 5))),
        bp.open(save(tmp_path / "d.npy", schema, values(5, 10))),
    ]


# --- reading ------------------------------------------------------------------------------------------


def test_samples_follow_one_another(parts):
    joined = bp.concat(parts)
    assert len(joined) == 10
    assert [sample["n"] for sample in joined] == list(range(10))
    assert joined[4]["x"].tolist() == [2, 2]
    assert joined.facts() == {"shards": 4}
    assert joined.path.endswith("a.npz … d.npy")


@pytest.mark.parametrize("order", [[9, 0, 4, 4, 3, 9], [-1, 5], [], list(range(9, -1, -1)), [4]])
def test_any_order_over_all_parts(parts, order):
    joined = bp.concat(parts)
    columns = joined.read(order)
    assert columns["n"].tolist() == [range(10)[number] for number in order]
    assert columns["x"][:, 0].tolist() == [range(10)[number] / 2 for number in order]


def test_spans_name_the_file_of_each_cell(parts):
    joined = bp.concat(parts)
    order = [9, 0, 4, 3]
    spans = joined.spans("x", order)
    for row, number in enumerate(order):
        with open(spans.files[spans.file[row]], "rb") as file:
            file.seek(spans.start[row])
            assert np.frombuffer(file.read(spans.size[row]), "<f4").tolist() == [number / 2] * 2
    assert {os.path.basename(spans.files[item]) for item in spans.file} == {"a.npz", "c.beton", "d.npy"}


def test_spans_are_none_where_a_part_has_none(parts, tmp_path):
    schema = {"n": bp.Int(), "x": bp.Tensor("float32", (2,))}
    packed = bp.open(save(tmp_path / "e.npz", schema, [{"n": 10, "x": [0, 0]}], compress=True))
    joined = bp.concat([*parts, packed])
    assert joined.spans("x") is None
    assert joined.spans("x", [0, 4]) is not None


def test_parts_are_blocks(parts):
    assert bp.concat(parts).blocks().tolist() == [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]


def test_joined_readers_travel_to_other_processes(parts):
    joined = bp.concat(parts)
    assert cells(pickle.loads(pickle.dumps(joined))) == cells(joined)


def test_images_may_differ_in_encoding_and_mode(tmp_path):
    reader = bp.open(save(tmp_path / "a.npz", {"image": bp.Image("jpeg")}, [{"image": jpeg()}]))
    two = bp.open(save(tmp_path / "b.npz", {"image": bp.Image(mode="L")}, [{"image": pixels(2, 3)}]))
    joined = bp.concat([reader, two])
    assert joined.schema["image"] == bp.Image(None, None)
    assert [sample["image"].shape for sample in joined] == [(8, 8, 3), (2, 3)]
    assert cells(joined.subset([1, 0]))["image"] == [pixels(2, 3).tobytes(), jpeg()]


def test_missing_values_of_one_part(tmp_path):
    field = {"t": bp.Text(optional=True)}
    reader = bp.open(save(tmp_path / "a.npz", field, [{"t": "x"}]))
    two = bp.open(save(tmp_path / "b.npz", field, [{"t": None}, {"t": ""}]))
    assert [sample["t"] for sample in bp.concat([reader, two])] == ["x", None, ""]
    assert [sample["t"] for sample in bp.concat([two, reader])] == [None, "", "x"]


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"n": bp.Int(), "y": bp.Int()}, "its fields are n, y, and those of .*a.npz are n, x"),
        ({"x": bp.Int(), "n": bp.Int()}, "its fields are x, n"),
        ({"n": bp.Int("int8"), "x": bp.Int()}, r"field 'n': it is Int\(dtype='int8'\), and in .* Int\(\)"),
    ],
)
def test_parts_that_do_not_belong_together(schema, reason, tmp_path):
    first = bp.open(save(tmp_path / "a.npz", {"n": bp.Int(), "x": bp.Int()}, []))
    second = bp.open(save(tmp_path / "b.npz", schema, []))
    with pytest.raises(bp.SchemaError, match=reason) as caught:
        bp.concat([first, second])
    assert caught.value.path.endswith("b.npz")


def test_nothing_cannot_be_joined():
    with pytest.raises(bp.OptionError, match="nothing to join"):
        bp.concat([])


def test_damage_names_the_part(tmp_path):
    for name in "ab":
        (tmp_path / name).mkdir()
        for n in range(3):
            (tmp_path / name / f"{n}.jpg").write_bytes(jpeg())
    joined = bp.concat([bp.open(tmp_path / "a"), bp.open(tmp_path / "b")])
    (tmp_path / "b" / "1.jpg").unlink()
    with pytest.raises(bp.DamagedError, match=r"1\.jpg") as caught:
        joined[4]
    assert (caught.value.path, caught.value.sample) == (str(tmp_path / "b"), 1)


# --- writing ------------------------------------------------------------------------------------------


@pytest.fixture
def source(tmp_path):
    """100 samples of 1,008 bytes."""
    schema = {"n": bp.Int(), "blob": bp.Bytes()}
    return save(tmp_path / "source.npz", schema, [{"n": n, "blob": bytes([n]) * 1000} for n in range(100)])


def shards(folder, pattern="out-*"):
    return sorted(path.name for path in folder.glob(pattern))


@pytest.mark.parametrize(("size", "count"), [(10_080, 10), (10_079, 12), (1, 100), (10**9, 1)])
def test_shards_are_as_large_as_told(source, size, count, tmp_path):
    result = bp.convert(source, tmp_path / "out.npz", shard_size=size)
    names = [f"out-{number:05}.npz" for number in range(count)]
    assert shards(tmp_path) == names
    assert [os.path.basename(file) for file in result.files] == names
    assert result.samples == 100
    assert sorted(os.listdir(tmp_path)) == [*names, "source.npz"]
    assert bp.verify(str(tmp_path / "out-*.npz"), against=source).problems == []


def test_an_empty_dataset_is_one_shard(tmp_path):
    empty = save(tmp_path / "source.npz", {"n": bp.Int()}, [])
    assert bp.convert(empty, tmp_path / "out.npz", shard_size=100).samples == 0
    assert len(bp.open(tmp_path / "out-00000.npz")) == 0


def test_each_shard_has_its_checksums(source, tmp_path):
    bp.convert(source, tmp_path / "out.npz", shard_size=50_000, options=bp.ConvertOptions(checksums=True))
    assert shards(tmp_path) == [f"out-0000{n}.npz{crc}" for n in range(3) for crc in ("", ".crc")]
    assert "checksums" in bp.verify(tmp_path / "out-00001.npz").checks
    assert len(bp.open(str(tmp_path / "out-*.npz"))) == 100


def test_shards_are_overwritten_only_by_leave_and_then_all_of_them(source, tmp_path):
    bp.convert(source, tmp_path / "out.npz", shard_size=10_080)
    (tmp_path / "out-notes.npz").write_text("not ours")
    with pytest.raises(bp.ExistsError, match="overwrite=True"):
        bp.convert(source, tmp_path / "out.npz", shard_size=50_400)
    bp.convert(source, tmp_path / "out.npz", shard_size=50_400, overwrite=True)
    assert shards(tmp_path) == ["out-00000.npz", "out-00001.npz", "out-notes.npz"]
    assert len(bp.open(str(tmp_path / "out-0*.npz"))) == 100


def test_shards_of_folders(tmp_path):
    samples = [{"image": jpeg()}] * 6
    source = save(tmp_path / "source.npz", {"image": bp.Image()}, samples)
    size = 2 * len(jpeg())
    for shard_size, count in ((size, 3), (2 * size, 2)):
        bp.convert(source, tmp_path / "out", shard_size=shard_size, overwrite=True)
        assert shards(tmp_path) == [f"out-{number:05}" for number in range(count)]
        assert len(bp.open(str(tmp_path / "out-*"))) == 6


class Stop(BaseException):
    """Not an error: somebody pressed Ctrl-C."""


@pytest.mark.parametrize("after", [1, 2, 5, 7])
def test_an_interrupted_conversion_resumes_to_the_same_shards(source, after, tmp_path):
    tuning = bp.ConvertTuning(checkpoint_seconds=0, max_batch_rows=7)
    calls = []

    def stop(now, _):
        calls.append(now)
        if len(calls) == after:
            raise Stop

    options = {
        "shard_size": 12_000,
        "target_options": {"compress": False},
        "options": bp.ConvertOptions(checksums=True, tuning=tuning),
    }
    bp.convert(source, tmp_path / "whole.npz", **options)
    with pytest.raises(Stop):
        bp.convert(source, tmp_path / "out.npz", progress=stop, **options)
    assert shards(tmp_path) == []
    result = bp.convert(source, tmp_path / "out.npz", resume=True, **options)
    assert result.samples == 100
    assert (result.resumed_at > 0) == (after > 1)
    whole, out = shards(tmp_path, "whole-*"), shards(tmp_path)
    assert [name.removeprefix("out") for name in out] == [name.removeprefix("whole") for name in whole]
    for item, two in zip(whole, out, strict=True):
        assert (tmp_path / item).read_bytes() == (tmp_path / two).read_bytes()
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".")]


def test_what_shards_skip_is_named_by_its_number_in_the_whole(tmp_path):
    samples = [{"image": jpeg() if n not in (3, 17) else b"broken", "n": n} for n in range(20)]
    source = save(tmp_path / "source.npz", {"image": bp.Image(), "n": bp.Int()}, samples)
    size = 4 * (len(jpeg()) + 8)
    result = bp.convert(source, tmp_path / "out.beton", shard_size=size, on_error="skip")
    assert [problem.sample for problem in result.skipped] == [3, 17]
    assert result.samples == 18
    actual = [sample["n"] for sample in bp.open(str(tmp_path / "out-*.beton"))]
    assert actual == [n for n in range(20) if n not in (3, 17)]
    with pytest.raises(bp.DataError) as caught:
        bp.convert(source, tmp_path / "other.beton", shard_size=size, fields=["image"])
    assert (caught.value.sample, caught.value.path) == (3, str(source))
    with pytest.raises(bp.DataError) as caught:
        bp.convert(bp.open(source)[4:], tmp_path / "other.beton", shard_size=size)
    assert caught.value.sample == 13
    assert shards(tmp_path, "other*") == []


def test_shard_sizes_that_cannot_be(source, tmp_path):
    with pytest.raises(bp.OptionError, match="at least 1 byte"):
        bp.convert(source, tmp_path / "out.npz", shard_size=0)


def test_datasets_are_opened_where_they_are_no_readers() -> None:
    first, second = {"x": [1, 2]}, {"x": [3]}
    with bp.concat([first, bp.open(second)]) as joined:
        assert [sample["x"] for sample in joined] == [1, 2, 3]
    with bp.interleave([first, second]) as mixed:
        assert [sample["x"] for sample in mixed] == [1, 3, 2]
    for source in ("a.beton", bp.open(first)):
        with pytest.raises(bp.OptionError, match="give a list"):
            bp.concat(source)
