"""What a dataset holds, in numbers: right, in bounded memory, and the same whoever works."""

from __future__ import annotations

import io
import json
import pickle
import random
import wave
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import batchplant as bp
from batchplant.cli import main
from batchplant.jobs import engines, scans, stats
from batchplant.jobs.stats.numbers import WIDTH, Hashes, Sketch, Sums, Tally
from batchplant.testing.cases import flip, jpeg

SCHEMA = {
    "label": bp.Int(names=("cat", "dog", "eel")),
    "score": bp.Float(optional=True),
    "text": bp.Text(),
    "blob": bp.Bytes(),
    "vector": bp.Tensor("float32", (3,)),
    "tags": bp.List(bp.Text()),
    "when": bp.Time("s"),
}
COUNT = 900


def sample(n: int) -> dict[str, Any]:
    return {
        "label": 0 if n % 3 else 2, "score": None if n % 10 == 0 else n / 4, "text": "ä" * (n % 5),
        "blob": b"same" if n in (7, 500, 899) else n.to_bytes(4, "big"), "vector": np.full(3, n, np.float32),
        "tags": ["x"] * (n % 4), "when": 1_700_000_000 + n,
    }  # fmt: skip


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    result = tmp_path_factory.mktemp("stats") / "a.npz"
    with bp.create(result, SCHEMA) as out:
        for n in range(COUNT):
            out.append(sample(n))
    return result


def test_every_field(path: Path) -> None:
    result = stats.collect(path)
    assert (result.samples, result.looked_at, result.unreadable) == (COUNT, COUNT, 0)
    fields = result.fields
    assert fields["label"].values["values"].counts == {"cat": 600, "eel": 300}
    score = fields["score"]
    values = np.array([n / 4 for n in range(COUNT) if n % 10])
    assert (score.count, score.missing) == (810, 90)
    numbers = score.numbers["values"]
    assert (numbers.min, numbers.max, numbers.count) == (0.25, 224.75, 810)
    assert numbers.mean == pytest.approx(values.mean())
    assert numbers.std == pytest.approx(values.std())
    assert numbers.median == np.quantile(values, 0.5, method="inverted_cdf")
    edges, counts = numbers.histogram
    assert (edges[0], edges[-1], sum(counts)) == (0.25, 224.75, 810)
    text = fields["text"]
    assert text.values["values"].counts == {"ä" * n: 180 for n in range(5)}
    length = text.numbers["length"]
    assert (length.min, length.max, length.mean) == (0, 4, 2.0)
    assert length.histogram == ([0, 1, 2, 3, 4, 4], [180] * 5)
    assert fields["tags"].numbers["length"].mean == 1.5
    assert fields["vector"].numbers["values"].count == 3 * COUNT
    assert fields["when"].times["max"] == "2023-11-14T22:28:19"
    copies = fields["blob"].copies
    assert copies == stats.Copies(2, COUNT - 2, [[7, 500, 899]])
    assert result.copies == stats.Copies(0, COUNT, [])
    assert result.bytes == sum(field.bytes for field in fields.values()) > 0


def test_the_same_on_processes(path: Path) -> None:
    assert len(stats.Job(dataset=scans.Dataset(path)).plan) > 2
    by = engines.make("processes", workers=2)
    seen: list[tuple[int, int]] = []
    assert stats.collect(path, engine=by, progress=lambda *now: seen.append(now)) == stats.collect(path)
    assert seen[-1] == (COUNT, COUNT)


def test_some_samples_and_fields(path: Path) -> None:
    actual = stats.collect(path, fields=["text", "label"], sample=100, seed=5, where="label == 'eel'")
    assert (actual.samples, actual.looked_at, list(actual.fields)) == (300, 100, ["text", "label"])
    assert actual.fields["label"].values["values"].counts == {"eel": 100}
    assert "drawn with seed 5" in actual.remarks[0]
    assert actual == stats.collect(path, fields=["text", "label"], sample=100, seed=5, where="label == 'eel'")
    with pytest.raises(bp.OptionError, match="at least 1"):
        stats.collect(path, sample=0)
    with pytest.raises(bp.FieldNameError, match="nope"):
        stats.collect(path, fields=["nope"])


def test_images_and_sounds_say_what_they_are(tmp_path: Path) -> None:
    sound = io.BytesIO()
    with wave.open(sound, "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(4 * 2000))
    png = io.BytesIO()
    Image.new("L", (5, 6)).save(png, "png")
    schema = {"image": bp.Image(mode=None), "sound": bp.Audio()}
    data = [(jpeg(8, 9), sound.getvalue()), (png.getvalue(), b"no sound"), (b"no image", sound.getvalue())]
    with bp.create(tmp_path / "a.msgpack", schema) as out:
        for item, other in [*data, data[0]]:
            out.append({"image": item, "sound": other})
    result = stats.collect(tmp_path / "a.msgpack")
    image, heard = result.fields["image"], result.fields["sound"]
    height, width = 8, 9
    assert image.values["resolutions"].counts == {f"{width}×{height}": 2, "5×6": 1}
    assert image.values["modes"].counts == {"RGB": 2, "L": 1}
    assert image.values["encodings"].counts == {"jpeg": 2, "png": 1}
    assert (image.unknown, heard.unknown) == (1, 1)
    assert heard.numbers["seconds"].mean == 0.25
    assert heard.values["rates"].counts == {"8000": 3}
    assert result.copies == stats.Copies(1, 3, [[0, 3]])
    assert heard.copies == stats.Copies(2, 2, [[0, 2, 3]])


def test_classes_of_objects_are_counted(tmp_path: Path) -> None:
    with bp.create(tmp_path / "a.beton", {"labels": bp.Labels(("cat", "dog"))}) as out:
        for labels in ([0, 1, 1], [], [1]):
            out.append({"labels": np.array(labels, np.int64)})
    result = stats.collect(tmp_path / "a.beton").fields["labels"]
    assert result.values["values"].counts == {"dog": 3, "cat": 1}


def test_arrays_that_vary(tmp_path: Path) -> None:
    schema = {"x": bp.Tensor("int16", (None, None)), "y": bp.Tensor("uint8", (None,), optional=True)}
    with bp.create(tmp_path / "a.npz", schema) as out:
        for n in range(4):
            out.append({"x": np.full((n, 2), n, np.int16), "y": None if n == 2 else np.zeros(n, np.uint8)})
    result = stats.collect(tmp_path / "a.npz").fields
    assert result["x"].values["shapes"].counts == {"0×2": 1, "1×2": 1, "2×2": 1, "3×2": 1}
    assert result["x"].numbers["values"].mean == (2 + 8 + 18) / 12
    assert (result["y"].missing, result["y"].numbers["length"].mean) == (1, 4 / 3)


def test_damaged_samples_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.tfrecord"
    with bp.create(path, {"n": bp.Int(), "t": bp.Text()}) as out:
        for n in range(20):
            out.append({"n": n, "t": "some text"})
    with bp.open(path) as reader:
        flip(path, int(reader.spans("t", [11]).start[0]), 3)
    result = stats.collect(path)
    assert (result.looked_at, result.unreadable, result.fields["n"].count) == (20, 1, 19)
    assert [problem.sample for problem in result.problems] == [11]
    assert main(["stats", str(path)]) == 1
    assert "1 sample cannot be read" in capsys.readouterr().out


def test_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with bp.create(tmp_path / "a.npz", {"n": bp.Int(), "t": bp.Text()}):
        pass
    result = stats.collect(tmp_path / "a.npz")
    assert (result.samples, result.fields["n"].count, result.copies) == (0, 0, stats.Copies(0, 0, []))
    assert main(["stats", str(tmp_path / "a.npz")]) == 0


# --- what it is made of -------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), max_size=4))
def test_whole_numbers_are_exact(parts: list[list[int]]) -> None:
    whole = Sums()
    for part in parts:
        other = Sums()
        other.add(np.array(part, dtype=np.int64))
        whole.merge(other)
    values = [value for part in parts for value in part]
    result = whole.numbers()
    assert result.count == len(values)
    if values:
        mean = sum(values) / len(values)
        assert (result.min, result.max, result.mean) == (min(values), max(values), mean)
        spread = sum((len(values) * value - sum(values)) ** 2 for value in values) / len(values) ** 3
        assert result.std == pytest.approx(spread**0.5)


@pytest.mark.parametrize("dtype", ["uint64", "uint8", "bool"])
def test_unsigned_numbers_are_exact(dtype: str) -> None:
    values = np.array([0, 1, 1 if dtype == "bool" else np.iinfo(dtype).max], dtype=dtype)
    sums = Sums()
    sums.add(values)
    assert sums.numbers().mean == sum(map(int, values)) / 3


def test_numbers_that_are_none() -> None:
    sums = Sums()
    sums.add(np.array([1.0, np.nan, np.inf, -np.inf, 3.0]))
    result = sums.numbers()
    assert (result.count, result.nan, result.infinite, result.mean, result.std) == (2, 1, 2, 2.0, 1.0)


@pytest.mark.parametrize("batch", [100, 2500, 50_000, 200_000])
def test_quantiles_are_close_and_memory_is_bounded(batch: int) -> None:
    values = np.random.default_rng(1).lognormal(size=200_000)
    whole = Sketch()
    for at in range(0, len(values), 50_000 if batch < 50_000 else batch):
        part = Sketch()
        for start in range(at, min(at + max(batch, 50_000), len(values)), batch):
            part.add(values[start : start + batch])
        whole.merge(part)
    ordered, weights = whole._weighted()
    assert weights.sum() == len(values)
    assert len(ordered) < 2 * WIDTH * 8
    shares = (0.01, 0.25, 0.5, 0.95, 0.99)
    ranks = [(values <= quantile).mean() for quantile in whole.quantiles(shares)]
    assert ranks == pytest.approx(shares, abs=0.005)


def test_outliers_leave_room_in_a_histogram() -> None:
    sums = Sums()
    sums.add(np.append(np.linspace(0, 1, 2000), 1e9))
    edges, counts = sums.numbers().histogram
    assert (edges[0], edges[-1], sum(counts)) == (0, 1e9, 2001)
    assert sum(count > 50 for count in counts) > 20


def test_frequent_values_of_many() -> None:
    draw = random.Random(0)
    values = [draw.choice("abc") if draw.random() < 0.3 else f"rare {n}" for n in range(3000)]
    whole = Tally(max_values=50)
    for at in range(0, 3000, 300):
        part = Tally(max_values=50)
        part.add(values[at : at + 300])
        whole.merge(pickle.loads(pickle.dumps(part)))
    result, true = whole.values({}), Counter(values)
    assert not result.exact
    assert list(result.counts)[:3] == [item for item, _ in true.most_common(3)]
    assert result.slack <= 3000 / 50
    for value, count in result.counts.items():
        assert count <= true[value] <= count + result.slack


def test_copies_of_very_many_are_estimated() -> None:
    draw = np.random.default_rng(0)
    digests = draw.integers(0, 256, (40_000, 16), dtype=np.uint8)
    # Every second is like the one before it.
    digests[1::2] = digests[::2]
    held = Hashes(one_in=8)
    held.add(digests, np.arange(40_000))
    result = held.copies()
    assert result.one_in == 8
    assert result.count == pytest.approx(20_000, rel=0.1)
    assert result.different == pytest.approx(20_000, rel=0.1)
    assert all(other == group + 1 for group, other in result.groups)


def test_hashes_are_bounded(path: Path) -> None:
    job = stats.Job(dataset=scans.Dataset(path, fields=("blob",)), max_hashes=1000)
    assert job.one_in == 1
    assert stats.Job(dataset=scans.Dataset(path), max_hashes=1000).one_in == 8


# --- the command ---------------------------------------------------------------------------------------


def test_the_command(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stats", str(path), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["fields"]["label"]["values"]["values"]["counts"][0] == {"value": "cat", "count": 600}
    assert answer["fields"]["blob"]["copies"]["groups"] == [[7, 500, 899]]
    assert main(["stats", str(path), "--processes", "2", "--all"]) == 0
    out = capsys.readouterr().out
    assert "900 samples of npz, looked at all of them" in out
    assert "cat 600, eel 300" in out
    assert "7 = 500 = 899" in out
    assert max(map(len, out.splitlines()[1:])) <= 80


def test_numbers_of_boxes_and_points_are_told_apart() -> None:
    """x, y, width and height of boxes have nothing to do with each other, whatever the format."""
    same = {"xywh": [10, 20, 30, 40], "xyxy": [10, 20, 40, 60], "cxcywh": [25, 40, 30, 40]}
    for format, box in same.items():
        kinds = {"boxes": bp.Boxes(format), "points": bp.Keypoints(2)}
        data = {"boxes": [np.float32([box])], "points": [np.float32([[[5, 7, 2], [0, 0, 0]]])]}
        result = stats.collect(bp.open(data, schema=bp.Schema(kinds))).fields
        sides = {name: (number.min, number.max) for name, number in result["boxes"].numbers.items()}
        assert sides == {"left": (10, 10), "top": (20, 20), "width": (30, 30), "height": (40, 40)}
        # A point that is not there lies nowhere.
        assert {name: (number.min, number.max) for name, number in result["points"].numbers.items()} == {
            "x": (5, 5),
            "y": (7, 7),
        }


@pytest.mark.parametrize(("low", "high"), [(18, 89), (0, 299), (-7, 93), (0, 72)])
def test_bins_of_whole_numbers_hold_equally_many_of_them(low: int, high: int) -> None:
    numbers = stats.collect(bp.open({"age": np.arange(low, high + 1)})).fields["age"].numbers["values"]
    edges, counts = numbers.histogram
    assert 12 <= len(counts) <= 24
    assert sum(counts) == high - low + 1
    assert len(set(counts[:-1])) == 1
    assert counts[-1] <= counts[0]
    assert (edges[0], edges[-1]) == (low, high)
