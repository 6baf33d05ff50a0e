"""The doctor: every check finds its gotcha with the right count, and is silent on a dataset without it."""

from __future__ import annotations

import gzip
import io
import itertools
import json
import os
import pickle
import re
import shlex
import signal
import struct
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pytest

import batchplant as bp
import processes
import repository
from batchplant.cli import build_parser, main
from batchplant.codecs.media import exif, image, rle
from batchplant.testing.cases import flip
from batchplant.tools import doctor
from batchplant.tools.doctor import examination
from batchplant.tools.doctor.check import FileLimits, Subject
from batchplant.tools.doctor.checks.duplicates import Hashes

GUIDE = repository.ROOT / "docs" / "guides" / "doctor.md"


def photo(seed, height=96, width=128, grain=8):
    """An image that is smooth as photographs are, with some grain, another one for every seed."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 255, (6, 8, 3)).astype(np.float64)
    rows, columns = np.linspace(0, 4.999, height), np.linspace(0, 6.999, width)
    at, below = rows.astype(int)[:, None], columns.astype(int)[None]
    down, right = (rows % 1)[:, None, None], (columns % 1)[None, :, None]
    top = coarse[at, below] * (1 - right) + coarse[at, below + 1] * right
    bottom = coarse[at + 1, below] * (1 - right) + coarse[at + 1, below + 1] * right
    smooth = top * (1 - down) + bottom * down
    return (smooth + rng.normal(0, grain, smooth.shape)).clip(0, 255).astype(np.uint8)


def jpeg(seed, quality=90, **size):
    return image.encode(photo(seed, **size), "jpeg", quality=quality)


IMAGES = [jpeg(seed) for seed in range(24)]


def data(samples, **schema):
    return bp.open(samples, schema=bp.Schema(schema))


def found(source, check, **options):
    """The findings of one check, run by itself."""
    return list(doctor.examine(source, only=[check], **options).findings)


def one(source, check, **options):
    [finding] = found(source, check, **options)
    assert finding.check == check
    assert finding.mend
    # A command that mends it is one that there is.
    for command in re.findall(
        r"batchplant ((?:convert|verify|doctor|formats) .*?)(?:  |`|$)", finding.mend, re.M
    ):
        build_parser().parse_args(shlex.split(command))
    return finding


def numbers(finding):
    return [example.sample for example in finding.examples]


def write(path, samples, **schema):
    options = {"format": "imagefolder"} if path.suffix == "" else {}
    with bp.create(path, bp.Schema(schema), **options) as out:
        for sample in samples:
            out.append(sample)
    return path


@pytest.fixture(scope="module")
def clean(tmp_path_factory):
    """Images with mixed labels, numbers and texts, in two equal files: nothing is wrong with them."""
    folder = tmp_path_factory.mktemp("clean")
    schema = {
        "image": bp.Image(),
        "label": bp.Int(names=("cat", "dog")),
        "x": bp.Float("float32"),
        "tokens": bp.Tensor("int32", (16,)),
        "caption": bp.Text(),
        "at": bp.Time("s", tz="UTC"),
    }
    rng = np.random.default_rng(0)
    for part in range(2):
        samples = (
            {
                "image": IMAGES[12 * part + n],
                "label": n % 2,
                "x": float(np.float32(rng.normal())),
                "tokens": rng.integers(0, 1000, 16).astype(np.int32),
                "caption": f"image {part} {n} of a {rng.integers(1 << 40)}",
                "at": np.datetime64(1_700_000_000 + n, "s"),
            }
            for n in range(12)
        )
        write(folder / f"clean-{part}.tar", samples, **schema)
    return str(folder / "clean-*.tar")


def test_silent_where_nothing_is_wrong(clean):
    report = doctor.examine(clean, world_size=2, batch_size=4, window=4)
    assert report.findings == ()
    assert report.ok
    assert (report.samples, report.looked_at, report.format) == (24, 24, "")
    assert report.checks == tuple(kind.name for kind in doctor.CHECKS)


# -- damage ----------------------------------------------------------------------------------------------


def test_no_samples():
    finding = one(bp.open({"n": np.empty(0, np.int64)}), "empty")
    assert (finding.severity, finding.count) == ("error", 1)


def test_corrupt_samples_are_counted_and_the_others_looked_at():
    cells = [*IMAGES]
    for bad in (3, 7, 20):
        cells[bad] = cells[bad][:100]
    finding = one(data([{"image": cell} for cell in cells], image=bp.Image()), "corrupt-samples")
    assert (finding.severity, finding.count, finding.of) == ("error", 3, 24)
    assert numbers(finding) == [3, 7, 20] == list(finding.samples)
    assert all(example.field == "image" and example.said for example in finding.examples)


def test_a_sample_that_cannot_be_read_is_a_finding(tmp_path):
    path = write(
        tmp_path / "a.ffr",
        ({"n": n, "blob": bytes([n]) * 50} for n in range(30)),
        n=bp.Int(),
        blob=bp.Bytes(),
    )
    with bp.open(path) as reader:
        start = int(reader.spans("blob", [5]).start[0])
    flip(path, start, 0)
    finding = one(path, "corrupt-samples")
    assert (finding.count, finding.of, numbers(finding)) == (1, 30, [5])


def test_a_file_that_cannot_be_opened_is_a_finding(tmp_path):
    path = tmp_path / "a.npy"
    path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00{'descr'")
    report = doctor.examine(path)
    assert not report.ok
    assert [finding.check for finding in report.findings] == ["corrupt-samples"]
    with pytest.raises(bp.DamagedError):
        doctor.examine(path, without=["corrupt-samples"])


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pkl"])
def test_pickles_are_not_loaded(tmp_path, name):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    path, objects = tmp_path / name, np.array([Evil()], dtype=object)
    if name == "a.npy":
        np.save(path, objects, allow_pickle=True)
    elif name == "a.npz":
        np.savez(path, x=objects)
    else:
        path.write_bytes(pickle.dumps(objects))
    finding = one(path, "pickles")
    assert (finding.severity, finding.count) == ("error", 1)
    assert "allow_pickle=true" in finding.mend
    assert not (tmp_path / "ran").exists()


def test_a_pickle_that_was_allowed_is_still_one(tmp_path):
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps([{"a": 1}]))
    assert one(bp.open(path, allow_pickle=True), "pickles").count == 1


def test_pickles_in_cells():
    cells = [pickle.dumps({"n": n}) if n % 3 == 0 else b"\x80 plain bytes" for n in range(9)]
    finding = one(data([{"x": cell} for cell in cells], x=bp.Bytes()), "pickles")
    assert (finding.severity, finding.count, finding.of, numbers(finding)) == ("warning", 3, 9, [0, 3, 6])


def test_names_that_are_no_utf8(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for number, name in enumerate((b"a.jpg", b"caf\xe9.jpg", b"d.jpg", b"\xff.jpg", "é.jpg".encode())):
        with open(os.path.join(os.fsencode(folder), name), "wb") as file:
            file.write(IMAGES[number])
    finding = one(folder, "non-utf8-names")
    assert (finding.severity, finding.count, finding.of) == ("warning", 2, 5)
    names = [os.fsencode(example.key) for example in finding.examples]
    assert names == [b"caf\xe9.jpg", b"\xff.jpg"]


def test_a_class_whose_name_is_no_utf8(tmp_path, capsys):
    folder = os.fsencode(tmp_path / "photos")
    for name in (b"cat", b"caf\xe9"):
        os.makedirs(os.path.join(folder, name))
        with open(os.path.join(folder, name, b"1.jpg"), "wb") as file:
            file.write(IMAGES[0])
    finding = one(tmp_path / "photos", "non-utf8-names")
    assert (finding.severity, finding.count) == ("error", 1)
    assert os.fsencode(finding.examples[0].path).endswith(b"caf\xe9")
    assert main(["doctor", str(tmp_path / "photos")]) == 1
    assert "caf\\udce9" in capsys.readouterr().out


def test_names_in_an_archive_that_are_no_utf8(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", encoding="latin1", format=tarfile.GNU_FORMAT) as archive:
        for name in ("a.txt", "café.txt", "b.txt"):
            member = tarfile.TarInfo(name)
            member.size = 3
            archive.addfile(member, io.BytesIO(b"abc"))
    finding = one(path, "non-utf8-names")
    assert (finding.count, finding.of, numbers(finding)) == (1, 3, [1])
    assert finding.examples[0].key == r"caf\xe9"


# -- values ----------------------------------------------------------------------------------------------


def test_missing_values():
    samples = [{"x": None if n % 4 == 1 else n, "y": n} for n in range(20)]
    finding = one(data(samples, x=bp.Int(optional=True), y=bp.Int(optional=True)), "missing-values")
    assert (finding.field, finding.severity, finding.count, finding.of) == ("x", "note", 5, 20)
    assert numbers(finding) == [1, 5, 9, 13, 17]
    mostly = data([{"x": None if n else "a"} for n in range(20)], x=bp.Text(optional=True))
    assert one(mostly, "missing-values").severity == "warning"


def test_a_few_words_among_numbers(tmp_path):
    path = tmp_path / "a.csv"
    rows = [["abc" if n in (17, 40) else n, f"word {n}", "007" if n % 2 else "12", n] for n in range(300)]
    path.write_text("x,text,zip,n\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    finding = one(bp.open(path), "odd-values")
    assert (finding.field, finding.count, finding.of, numbers(finding)) == ("x", 2, 300, [17, 40])
    assert "'abc' at sample 17" in finding.message
    assert "missing=['', 'abc']" in finding.mend
    assert bp.open(path, missing=["", "abc"]).schema["x"] == bp.Int(optional=True)


def test_nan_and_infinity_but_not_what_is_missing():
    values = [0.5, np.nan, 1.0, None, np.inf]
    arrays = [np.array([n, np.nan if n == 2 else 0], np.float32) for n in range(5)]
    samples = [{"x": x, "a": a} for x, a in zip(values, arrays, strict=True)]
    x, a = found(data(samples, x=bp.Float(optional=True), a=bp.Tensor("float32", (2,))), "not-finite")
    assert (x.count, x.of, numbers(x)) == (2, 5, [1, 4])
    assert (a.count, numbers(a), a.examples[0].said) == (1, [2], "1 of 2 values")


@pytest.mark.parametrize(
    ("values", "would_do"),
    [
        (np.random.default_rng(0).normal(size=100), True),
        (np.arange(100) / 7 + 1000, True),
        (np.full(100, 0.1), True),
        (1.7e9 + np.arange(100) / 10, False),
        (np.random.default_rng(0).normal(size=100) * 1e300, False),
        (np.random.default_rng(0).normal(size=100) * 1e-60, False),
        (np.full(100, np.nan), False),
    ],
)
def test_float64_where_float32_would_do(values, would_do):
    numbers = data([{"x": float(x)} for x in values], x=bp.Float())
    arrays = bp.open({"x": np.repeat(values[:, None], 3, 1)})
    for source, cells in ((numbers, 100), (arrays, 300)):
        assert [(item.count, item.field) for item in found(source, "float64")] == [(cells, "x")] * would_do


def test_float64_of_varying_length():
    samples = [{"x": np.arange(n + 1) / 3} for n in range(10)]
    assert one(data(samples, x=bp.Tensor("float64", (None,))), "float64").count == 55


def test_numbers_in_a_text_file_are_no_float64(tmp_path):
    (tmp_path / "a.csv").write_text("x\n0.5\n0.25\n")
    assert found(tmp_path / "a.csv", "float64") == []


def test_times_without_a_zone():
    samples = [
        {"naive": np.datetime64(n, "s"), "utc": np.datetime64(n, "s"), "day": np.datetime64(n, "D")}
        for n in range(10)
    ]
    schema = {"naive": bp.Time("s"), "utc": bp.Time("s", tz="UTC"), "day": bp.Time("D")}
    finding = one(data(samples, **schema), "naive-times")
    assert (finding.field, finding.severity, finding.count) == ("naive", "note", 10)


def test_texts_of_times_without_a_zone():
    samples = [
        {"a": f"2024-01-02T03:04:{n:02}", "b": f"2024-01-02T03:04:{n:02}Z", "c": f"at 3 on day {n}"}
        for n in range(10)
    ]
    finding = one(data(samples, a=bp.Text(), b=bp.Text(), c=bp.Text()), "naive-times")
    assert (finding.field, finding.count, finding.examples[0].said) == ("a", 10, "2024-01-02T03:04:00")


def test_padding():
    rng = np.random.default_rng(0)
    tokens = np.zeros((20, 64), np.int32)
    for row, used in enumerate(rng.integers(4, 20, 20)):
        tokens[row, :used] = rng.integers(1, 100, used)
    finding = one(bp.open({"tokens": tokens, "full": rng.integers(1, 100, (20, 64))}), "padding")
    assert (finding.field, finding.count, finding.of) == ("tokens", 20, 20)
    assert finding.facts["padding"] == pytest.approx((tokens == 0).mean())
    assert "padding with 0" in finding.message


def test_text_that_is_mostly_spaces():
    samples = [{"a": f"name {n}".ljust(40), "b": "a longer text that is not padded"} for n in range(9)]
    finding = one(data(samples, a=bp.Text(), b=bp.Text()), "padding")
    assert (finding.field, finding.count) == ("a", 9)


# -- labels ----------------------------------------------------------------------------------------------


def labels(values, **options):
    return data([{"label": value} for value in values], label=bp.Int(names=tuple("abcdefgh")), **options)


def test_sorted_labels():
    n = 4096
    finding = one(labels(np.arange(n) * 8 // n), "sorted-labels", batch_size=64, window=256)
    shares = finding.facts["of random's label entropy"]
    assert (finding.severity, finding.field) == ("warning", "label")
    assert (finding.count, finding.of, finding.unit) == (2, 3, "orders")
    assert shares["sequential"] < shares["windowed"] < 0.5
    assert "--shuffle" in finding.mend


def test_sorted_labels_that_the_window_mixes():
    n = 4096
    runs = labels(np.arange(n) // 16 % 8)
    assert found(runs, "sorted-labels", batch_size=64, window=1024) == []
    assert len(found(runs, "sorted-labels", batch_size=64, window=8)) == 1


def test_sorted_labels_by_name():
    n = 2048
    samples = [{"kind": "even" if row < n / 2 else "odd"} for row in range(n)]
    source = data(samples, kind=bp.Text())
    assert found(source, "sorted-labels", batch_size=64) == []
    assert one(source, "sorted-labels", batch_size=64, window=100, label="kind").field == "kind"


def test_what_mends_it_mends_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    samples = ({"b": b"%d" % n, "label": n // 128} for n in range(512))
    write(tmp_path / "a.tar", samples, b=bp.Bytes(), label=bp.Int(names=tuple("abcd")))
    finding = one("a.tar", "sorted-labels", batch_size=32, window=50)
    command = finding.mend.splitlines()[-1]
    assert command == "batchplant convert a.tar a-new.tar --shuffle"
    assert main([*shlex.split(command)[1:], "--quiet"]) == 0
    assert found("a-new.tar", "sorted-labels", batch_size=32, window=50) == []


def test_class_imbalance():
    finding, *_ = found(labels([0] * 200 + [1] * 30 + [2] * 5 + [3] * 200), "class-imbalance", sample=None)
    assert (finding.count, finding.of, finding.severity) == (1, 4, "warning")
    assert finding.facts == {"largest": 200, "smallest": 5, "classes": 4}
    assert numbers(finding) == [230]
    assert "c: 5 samples" in finding.examples[0].said


def test_classes_that_no_sample_has():
    some, *_ = absent = found(labels([0, 1, 2, 3] * 20), "class-imbalance", sample=None)
    assert len(absent) == 1
    assert (some.count, some.of) == (4, 8)


def test_text_labels_and_those_that_look_alike():
    words = ["cat", "dog", "emu", "Dog "]
    samples = [{"kind": words[n % 3], "other": words[n % 4], "caption": f"photo {n}"} for n in range(60)]
    kind, other = found(data(samples, kind=bp.Text(), other=bp.Text(), caption=bp.Text()), "text-labels")
    other, kind = (kind, other) if kind.field == "other" else (other, kind)
    assert (kind.field, kind.severity, kind.count, kind.facts["values"]) == ("kind", "note", 60, 3)
    assert (other.severity, other.facts["alike"]) == ("warning", [("Dog ", "dog")])


# -- duplicates ------------------------------------------------------------------------------------------


def test_duplicates():
    cells = [*IMAGES[:10], IMAGES[2], IMAGES[2], IMAGES[5]]
    finding = one(data([{"image": cell} for cell in cells], image=bp.Image()), "duplicates")
    assert (finding.count, finding.of, finding.samples) == (3, 13, (10, 11, 12))
    assert [example.said for example in finding.examples] == ["as sample 2", "as sample 2", "as sample 5"]


def test_labels_that_come_again_are_no_duplicates():
    hot = np.eye(8, dtype=np.float32)[np.arange(64) % 8]
    names = [f"a class with a long name, number {n % 4}" for n in range(64)]
    samples = [{"hot": item, "name": name} for item, name in zip(hot, names, strict=True)]
    schema = {"hot": bp.Tensor("float32", (8,)), "name": bp.Text()}
    assert found(data(samples, **schema), "duplicates") == []


def street(path, count=24, again=0):
    """Images of their own, whose objects are all alike; the last ``again`` images are there before."""
    schema = {
        "image": bp.Image("jpeg"),
        "boxes": bp.Boxes("xywh", labels=["labels", "area", "iscrowd", "rle", "polygons"]),
        "labels": bp.Labels(("car", "person")),
        "area": bp.Tensor("float32", (None,)),
        "iscrowd": bp.Tensor("bool", (None,)),
        "rle": bp.List(bp.Text()),
        "polygons": bp.Polygons(),
    }
    mask = rle.encode(np.ones(photo(0).shape[:2]))
    with bp.create(path, schema) as out:
        for n in range(count):
            photograph = IMAGES[n if n < count - again else n - count + again]
            alike = {"rle": [mask, "", ""], "area": np.full(3, 4.0, np.float32), "iscrowd": np.arange(3) == 0}
            outlines = [[], [[1.0, 1, 5, 1, 5, 5]], [[1.0, 1, 5, 1, 5, 5]]]
            boxes = np.full((3, 4), 2.0, np.float32)
            out.append(
                {"image": photograph, "boxes": boxes, "labels": np.array([0, 1, 1]), "polygons": outlines}
                | alike
            )
    return path


@pytest.mark.parametrize("name", ["street.coco", "street.beton"])
def test_annotations_that_are_alike_are_no_duplicates(name, tmp_path, capsys):
    path = street(tmp_path / name, again=2)
    finding = one(bp.open(path), "duplicates")
    assert (finding.field, finding.count, finding.of, finding.samples) == ("image", 2, 24, (22, 23))
    assert "here 2 of 24 samples" in finding.mend
    bad = tmp_path / "bad.jsonl"
    _, output = run(capsys, path, "--all", "--quarantine", bad)
    assert "--quarantine leaves out 2 of 24 samples: 2 (image: the same bytes" in " ".join(output.out.split())
    assert len(bp.open(path, skip=bad)) == 22


def test_what_differs_in_another_field_is_not_there_twice():
    asked = [f"what is the capital of country {n % 30}?" for n in range(40)]
    samples = [
        {"url": f"https://host/page-{n}", "question": question, "answer": f"the answer is this: {n % 35}"}
        for n, question in enumerate(asked)
    ]
    text = bp.Text()
    reader = data(samples, url=text, question=text, answer=text)
    question, answer = found(reader, "duplicates")
    assert (question.field, question.count, question.samples) == ("question", 10, ())
    assert (answer.field, answer.samples) == ("answer", ())
    assert "differ in url, answer" in question.mend
    samples[39] = samples[3] | {"url": "https://host/another-page"}
    question, _ = found(data(samples, url=text, question=text, answer=text), "duplicates")
    assert question.samples == (39,)


def test_images_that_look_alike_are_listed_only_by_name(tmp_path, capsys):
    path = tmp_path / "photos.tar"
    with bp.create(path, {"jpg": bp.Image("jpeg")}) as out:
        for cell in [*IMAGES[:8], jpeg(0, quality=60), jpeg(1, quality=60)]:
            out.append({"jpg": cell})
    bad = tmp_path / "bad.jsonl"
    run(capsys, path, "--all", "--quarantine", bad)
    assert bad.read_text() == ""
    run(capsys, path, "--all", "--only", "similar-images", "--quarantine", bad)
    assert [json.loads(line)["sample"] for line in bad.read_text().splitlines()] == [8, 9]


def test_duplicate_rows_of_a_table():
    table = {"a": np.arange(20) % 7, "b": np.arange(20) % 3, "c": np.arange(20) % 2}
    assert found(bp.open(table), "duplicates") == []
    table["a"][15] = table["b"][15] = table["c"][15] = 0
    finding = one(bp.open(table), "duplicates")
    assert (finding.count, finding.of, finding.samples) == (1, 20, (15,))


def test_duplicates_in_bounded_memory():
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 1 << 63, 20_000).astype(np.uint64)
    hashes[10_000:] = hashes[:10_000]
    held = Hashes(max_hashes=1000)
    for start in range(0, 20_000, 500):
        held.add(hashes[start : start + 500], np.arange(start, start + 500))
    count, pairs = held.repeats(10)
    assert held.one_in >= 20
    assert count == pytest.approx(10_000, rel=0.2)
    assert all(second == first + 10_000 for second, first in pairs)


def test_similar_images():
    cells = [*IMAGES[:12], jpeg(3, quality=60), image.encode(photo(7), "png"), IMAGES[1]]
    small = image.fit(photo(5, height=192, width=256), 128)
    cells.append(image.encode(small, "jpeg"))
    cells.append(image.encode(np.full((64, 64, 3), 200, np.uint8), "png"))
    cells.append(image.encode(np.full((32, 32, 3), 10, np.uint8), "png"))
    finding = one(data([{"image": cell} for cell in cells], image=bp.Image(mode=None)), "similar-images")
    assert (finding.severity, finding.count, finding.samples) == ("note", 3, (12, 13, 15))
    assert [example.said for example in finding.examples] == [f"looks like sample {n}" for n in (3, 7, 5)]


# -- images --------------------------------------------------------------------------------------------


def test_mixed_modes():
    grey = image.encode(photo(1)[..., 0], "png")
    clear = image.encode(np.dstack([photo(2), photo(3)[..., :1]]), "png")
    cells = [*IMAGES[:6], grey, clear, grey]
    finding = one(data([{"image": cell} for cell in cells], image=bp.Image(mode=None)), "mixed-modes")
    assert (finding.count, finding.of) == (3, 9)
    assert finding.facts["modes"] == {"RGB": 6, "L": 2, "RGBA": 1}
    assert numbers(finding) == [6, 7]


def test_exif_rotation():
    turned = struct.pack("<2sHIHHHIHHI", b"II", 42, 8, 1, 0x112, 3, 1, 6, 0, 0)
    cells = [
        exif.attach(cell, "jpeg", exif.Metadata(turned)) if n in (2, 4) else cell
        for n, cell in enumerate(IMAGES[:6])
    ]
    finding = one(data([{"image": cell} for cell in cells], image=bp.Image()), "exif-rotation")
    assert (finding.count, finding.of, numbers(finding)) == (2, 6, [2, 4])
    assert finding.examples[0].said == "orientation 6"


def test_large_images():
    source = data([{"image": cell} for cell in IMAGES[:8]], image=bp.Image())
    finding = one(source, "large-images", crop=40)
    assert (finding.count, finding.of, finding.facts["short side"]) == (8, 8, 96)
    assert "--max-resolution" in finding.mend
    assert found(source, "large-images", crop=48) == []


def test_png_photographs():
    photos = [image.encode(photo(n), "png") for n in range(4)]
    drawing = image.encode(np.kron(np.eye(8, dtype=np.uint8) * 255, np.ones((16, 16), np.uint8)), "png")
    finding = one(
        data([{"image": c} for c in [*photos, drawing]], image=bp.Image(mode=None)), "png-photographs"
    )
    assert (finding.count, finding.of) == (4, 5)
    assert found(data([{"image": drawing}] * 5, image=bp.Image(mode=None)), "png-photographs") == []


# -- storage ---------------------------------------------------------------------------------------------


@pytest.fixture
def shards(tmp_path):
    for part, count in enumerate((10, 10, 4)):
        write(
            tmp_path / f"part-{part}.tar",
            ({"n": n, "b": b"x%d" % n} for n in range(count)),
            n=bp.Int(),
            b=bp.Bytes(),
        )
    return str(tmp_path / "part-*.tar")


def test_unequal_shards(shards):
    finding = one(shards, "unequal-shards", world_size=3)
    assert (finding.count, finding.of) == (1, 3)
    assert finding.facts == {"largest": 10, "smallest": 4}
    assert "part-new.tar --shard-samples 8" in finding.mend
    assert one(shards, "unequal-shards", world_size=2).facts == {"largest": 14, "smallest": 10}
    assert found(shards, "unequal-shards") == []


def test_few_shards(shards):
    finding = one(shards, "few-shards", world_size=4)
    assert (finding.count, finding.of, finding.unit) == (1, 4, "ranks")
    assert "--shard-samples 6" in finding.mend
    assert found(shards, "few-shards", world_size=3) == []


def test_tiny_files(tmp_path, monkeypatch):
    monkeypatch.setattr(Subject, "limits", FileLimits(many_files=10))
    folder = write(tmp_path / "photos", ({"image": cell} for cell in IMAGES), image=bp.Image())
    finding = one(folder, "tiny-files")
    assert (finding.count, finding.severity) == (24, "warning")
    assert (
        found(write(tmp_path / "a.tar", ({"image": c} for c in IMAGES), image=bp.Image()), "tiny-files") == []
    )
    monkeypatch.setattr(Subject, "limits", FileLimits(many_files=10, tiny_file_bytes=100))
    assert found(folder, "tiny-files") == []


def test_large_blocks(tmp_path, monkeypatch):
    pytest.importorskip("pyarrow")
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": np.arange(1000.0)}), tmp_path / "a.parquet", row_group_size=400)
    assert found(tmp_path / "a.parquet", "large-blocks") == []
    monkeypatch.setattr(Subject, "limits", FileLimits(block_bytes=2000))
    finding = one(tmp_path / "a.parquet", "large-blocks")
    assert (finding.count, finding.of, numbers(finding)) == (2, 3, [0, 400])
    assert finding.facts["largest"] == 3200


def test_compressed_files(tmp_path, monkeypatch):
    pytest.importorskip("indexed_gzip")
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"n": %d}\n' % n for n in range(100))))
    assert found(path, "compressed-files") == []
    monkeypatch.setattr(Subject, "limits", FileLimits(packed_file_bytes=10))
    finding = one(path, "compressed-files")
    assert (finding.count, finding.of, finding.examples[0].said) == (1, 1, "gzip")


def test_a_model_is_not_taken_for_a_dataset(tmp_path):
    np.savez(tmp_path / "weights.npz", a=np.zeros((2, 3)), b=np.zeros(4), c=np.zeros((2, 3)))
    report = doctor.examine(tmp_path / "weights.npz", world_size=8)
    assert report.findings == ()
    assert report.checks == ("empty", "corrupt-samples", "pickles", "non-utf8-names")
    assert "model" in report.remarks[0]


def test_a_bucket(bucket, tmp_path):
    write(Path(bucket.root) / "a.tar", ({"image": c} for c in [*IMAGES, IMAGES[3]]), image=bp.Image())
    report = doctor.examine(f"s3://{bucket.name}/a.tar", endpoint=bucket.endpoint, cache=None)
    assert [(finding.check, finding.count, numbers(finding)) for finding in report.findings] == [
        ("duplicates", 1, [24])
    ]
    assert report.findings[0].examples[0].path == f"s3://{bucket.name}/a.tar"


# -- which samples ---------------------------------------------------------------------------------------


def test_samples_are_in_order_and_from_all_over():
    for count in (1, 10, 16, 100, 999):
        rows = examination.sample_numbers(1000, count)
        assert rows is not None
        assert 0 < len(rows) <= count
        assert (np.diff(rows) > 0).all()
        assert rows[0] == 0
        if count >= 100:
            assert rows[-1] == 999
            assert np.diff(rows).max() <= 200
    assert examination.sample_numbers(100, 100) is None
    assert examination.sample_numbers(100, None) is None


def test_large_samples_are_fewer():
    assert examination.affordable(2000, 100 << 20) == examination.MIN_SAMPLES
    assert examination.affordable(2000, 100) == 2000
    assert examination.affordable(None, 100 << 20) is None


def test_memory_does_not_grow_with_the_dataset():
    batches = list(examination.batches(bp.open({"x": np.zeros((100_000, 2))}), None, 16))
    assert max(map(len, batches)) == examination.BATCH_ROWS
    assert sum(map(len, batches)) == 100_000
    assert {len(batch) for batch in examination.batches(bp.open({"x": np.zeros(10)}), None, 1 << 30)} == {1}


def test_progress_and_what_was_looked_at():
    seen = []
    source = bp.open({"x": np.arange(10_000) % 100})
    report = doctor.examine(source, sample=300, progress=lambda done, total: seen.append((done, total)))
    assert report.samples == 10_000
    assert 200 < report.looked_at <= 300
    assert seen[-1] == (report.looked_at, report.looked_at)
    assert doctor.examine(source, sample=None).looked_at == 10_000


def test_wrong_arguments():
    for wrong in ({"sample": 0}, {"world_size": 0}, {"crop": -1}, {"only": ["nope"]}, {"label": "nope"}):
        with pytest.raises(bp.BatchplantError):
            doctor.examine(bp.open({"x": np.arange(3)}), **wrong)


# -- the command -----------------------------------------------------------------------------------------


def run(capsys, *args):
    code = main(["doctor", *map(str, args)])
    return code, capsys.readouterr()


@pytest.fixture
def damaged(tmp_path):
    cells = [*IMAGES[:10], IMAGES[4], IMAGES[5][:90]]
    return write(tmp_path / "photos.tar", ({"image": cell} for cell in cells), image=bp.Image())


def test_the_command_says_what_it_found(damaged, capsys):
    code, output = run(capsys, damaged)
    assert code == 1
    assert re.search(r"^error +corrupt-samples  1 of 12 samples$", output.out, re.MULTILINE)
    assert re.search(r"^warning +duplicates  1 of \d+ samples$", output.out, re.MULTILINE)
    assert "looked at all of them" in output.out
    assert output.out.endswith(f"{len(doctor.CHECKS)} checks: 1 error, 1 warning\n")


def test_only_and_without(damaged, capsys):
    code, output = run(capsys, damaged, "--only", "duplicates,empty", "--without", "empty")
    assert code == 0
    assert output.out.endswith("1 check: 1 warning\n")
    code, output = run(capsys, damaged, "--only", "duplicate")
    assert code == 2
    assert "did you mean duplicates" in output.err


def test_json(damaged, capsys):
    code, output = run(capsys, damaged, "--json", "--world-size", "2")
    report = json.loads(output.out)
    assert code == 1
    assert report["ok"] is False
    assert (report["samples"], report["looked_at"]) == (12, 12)
    corrupt = next(row for row in report["findings"] if row["check"] == "corrupt-samples")
    assert (corrupt["count"], corrupt["examples"][0]["sample"]) == (1, 11)
    assert corrupt["docs"] == "docs/guides/doctor.md#corrupt-samples"


def test_quarantine_lists_what_to_leave_out(damaged, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    run(capsys, damaged, "--all", "--quarantine", bad)
    assert [json.loads(line)["sample"] for line in bad.read_text().splitlines()] == [10, 11]
    assert len(bp.open(damaged, skip=bad)) == 10
    code, output = run(capsys, damaged, "--skip", bad)
    assert code == 0
    assert "nothing found" in output.out


def test_explain(capsys):
    code, output = run(capsys, "--explain")
    assert code == 0
    for kind in doctor.CHECKS:
        assert kind.name in output.out
        assert kind.sentence in output.out
    code, output = run(capsys, "--explain", "--json", "--only", "float64")
    assert [load["check"] for load in json.loads(output.out)] == ["float64"]
    assert run(capsys)[0] == 2


def test_help_lists_the_checks(capsys):
    with pytest.raises(SystemExit):
        main(["doctor", "--help"])
    out = capsys.readouterr().out
    assert all(
        re.search(rf"^  {kind.name} +{re.escape(kind.title)}$", out, re.MULTILINE) for kind in doctor.CHECKS
    )


@pytest.mark.parametrize("columns", [50, 80])
def test_lines_fit_the_terminal_and_commands_stay_whole(damaged, columns, monkeypatch):
    monkeypatch.chdir(damaged.parent)
    command = ["doctor", damaged.name, "--quiet", "--explain", "--only", "duplicates"]
    shown = processes.main_in_terminal(command, columns)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).splitlines()
    assert "warning duplicates  1 of 12 samples" in lines
    whole = "  → batchplant doctor photos.tar --all --only duplicates --quarantine twice.jsonl"
    assert whole in lines
    assert max(len(line) for line in lines if line != whole) <= columns


SLOW = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from batchplant.cli import build_parser, main
from batchplant.tools.doctor import examination
def slowly(reader, rows, each):
    yield next(batches(reader, rows, each))
    print("ready", flush=True)
    time.sleep(600)
batches, examination.batches = examination.batches, slowly
sys.exit(main(sys.argv[1:]))
"""


def test_ctrl_c_leaves_nothing(damaged, tmp_path):
    bad = tmp_path / "bad.jsonl"
    command = [sys.executable, "-c", SLOW, "doctor", str(damaged), "--all", "--quarantine", str(bad)]
    with processes.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        out, output = process.communicate(timeout=processes.PATIENCE)
    assert (process.returncode, out, output) == (130, "", "batchplant: stopped\n")
    assert not bad.exists()


# -- the guide -------------------------------------------------------------------------------------------


def test_every_check_has_a_sentence_and_a_section():
    headings = set(re.findall(r"^### (\S+)$", GUIDE.read_text(), re.MULTILINE))
    assert headings == {kind.name for kind in doctor.CHECKS}
    for kind in doctor.CHECKS:
        assert kind.severity in doctor.SEVERITIES
        assert kind.sentence.endswith(".")
        assert kind.docs().startswith("docs/guides/doctor.md#")
        assert len(kind.title) < 60


def test_names_are_told_apart():
    for combination, other in itertools.combinations(doctor.CHECKS, 2):
        assert combination.name != other.name
