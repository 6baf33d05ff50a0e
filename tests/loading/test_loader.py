"""The Loader: exact batches in an exact order, made in the background, nothing left behind."""

from __future__ import annotations

import gc
import itertools
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image as Pillow

import batchplant as bp
import processes
from batchplant import ops
from batchplant import order as orders
from batchplant.codecs.media import image
from batchplant.data.buffers import BufferPool
from batchplant.errors import DamagedError, DecodeError, OptionError, SampleIndexError
from batchplant.loading import executor
from batchplant.loading.advice import ADVICE, advise
from batchplant.loading.executor import PRODUCERS
from batchplant.loading.images import locate
from batchplant.loading.loader import Loader
from batchplant.loading.plan import Pipe
from batchplant.ops import Draws
from batchplant.schema.columns import Ragged
from batchplant.testing.cases import EXAMPLE_FIELDS, equal
from loaders import (
    PATIENCE,
    Memory,
    assert_ended,
    assert_no_producers,
    checksum,
    ids_of,
    in_thread,
    leaves_nothing,
    numbers,
    pixels,
    running,
    write,
    write_jpeg,
    write_raw,
)

nothing_left_behind = pytest.fixture(autouse=True)(leaves_nothing)

MEAN, STD = [120.0, 115.0, 100.0], [60.0, 55.0, 50.0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("loader")


@pytest.fixture(scope="module")
def raw(folder):
    """20 raw images of 12×16 and their numbers."""
    return write_raw(folder / "raw.beton")


@pytest.fixture(scope="module")
def jpeg(folder):
    """23 JPEGs of several sizes and their numbers."""
    return write_jpeg(folder / "jpeg.beton", 23)


@pytest.fixture(scope="module")
def plain(folder):
    """20 numbers."""
    return numbers(folder / "plain.npz")


def image_folder(path: Path, count: int = 20, encodings: tuple[str, ...] = ("png",), **size: int) -> str:
    """``pixels(n)`` as files of these encodings in turn; labels n, from metadata."""
    path.mkdir()
    lines = []
    for n in range(count):
        encoding = encodings[n % len(encodings)]
        name = f"{n:04d}.{'jpg' if encoding == 'jpeg' else encoding}"
        (path / name).write_bytes(image.encode(pixels(n, **size), encoding))
        lines.append(json.dumps({"file_name": name, "label": n}))
    (path / "metadata.jsonl").write_text("\n".join(lines))
    return str(path)


# -- values -------------------------------------------------------------------------------------------------

SOURCES = {
    "raw beton": lambda path: write_raw(path / "a.beton"),
    "jpeg beton": lambda path: write(
        path / "a.beton",
        {"image": bp.Image(), "label": bp.Int()},
        ({"image": image.encode(pixels(n), "jpeg"), "label": n} for n in range(20)),
    ),
    "npz": lambda path: write_raw(path / "a.npz"),
    "png folder": lambda path: image_folder(path / "a"),
    "mixed folder": lambda path: image_folder(path / "a", encodings=("png", "jpeg", "webp", "bmp", "tiff")),
}


@pytest.mark.parametrize("source", SOURCES)
def test_batches_hold_what_the_reader_reads(tmp_path, source):
    reader = bp.open(SOURCES[source](tmp_path))
    result = []
    for batch in Loader(reader, 8):
        assert list(batch) == ["image", "label"]
        assert batch["image"].dtype == np.uint8
        assert batch["image"].shape[1:] == (12, 16, 3)
        result += zip(batch["image"], batch["label"], strict=True)
    assert len(result) == 20
    for sample, (photo, label) in zip(reader, result, strict=True):
        assert np.array_equal(photo, sample["image"])
        assert label == sample["label"]


def test_every_kind_of_field(tmp_path):
    schema = {name: field for name, (field, _) in EXAMPLE_FIELDS.items()} | {"perhaps": bp.Int(optional=True)}
    samples = [
        {name: value(n) for name, (_, value) in EXAMPLE_FIELDS.items()} | {"perhaps": n or None}
        for n in range(10)
    ]
    path = write(tmp_path / "data.npz", schema, samples)
    start = 0
    for batch in Loader(path, 4, pipelines={"image": None}):
        rows = samples[start : start + 4]
        start += 4
        for name in ("number", "real", "flag", "fixed"):
            want = np.array([row[name] for row in rows], dtype=getattr(schema[name], "dtype", "bool"))
            assert equal(batch[name], want)
        for name in ("text", "meta"):
            assert batch[name] == [row[name] for row in rows]
        assert batch["perhaps"].tolist() == [row["perhaps"] or 0 for row in rows]
        assert batch["perhaps_mask"].tolist() == [row["perhaps"] is not None for row in rows]
        for name in ("blob", "varied"):
            values, offsets = batch[name]
            for row, sample in enumerate(rows):
                part = values[offsets[row] : offsets[row + 1]]
                assert equal(part.tobytes() if name == "blob" else part, sample[name])
    assert start == 12


def optional_numbers(path):
    schema = {"x": bp.Float("float32", optional=True), "n": bp.Int(optional=True), "when": TIME, "box": BOX}
    present = {"x": 1.5, "n": 3, "when": np.datetime64(7, "s"), "box": [1, 2]}
    return write(path, schema, [present, dict.fromkeys(schema), present])


TIME = bp.Tensor("datetime64[s]", (), optional=True)
BOX = bp.Tensor("float64", (2,), optional=True)


@pytest.mark.parametrize("name", ["a.npz", "a.parquet", "a.msgpack", "a.h5", "a.zarr", "a.beton"])
def test_missing_numbers_have_a_mask_beside_them(name, tmp_path):
    path = optional_numbers(tmp_path / name)
    [batch] = Loader(path, 3)
    nan, nat = np.float32(np.nan), np.datetime64("NaT", "s")
    want = {
        "x": np.array([1.5, nan, 1.5], np.float32), "n": np.array([3, 0, 3]),
        "when": np.array([7, nat, 7], "datetime64[s]"), "box": np.array([[1.0, 2], [nan] * 2, [1, 2]]),
    }  # fmt: skip
    for field, values in want.items():
        np.testing.assert_array_equal(batch[field], values)
        assert batch[field].dtype == values.dtype
        assert batch[f"{field}_mask"].tolist() == [True, False, True]
        assert batch[field].flags.writeable
    with bp.open(path) as reader:
        for item in (reader.read([0, 1, 2]), next(iter(reader.scan()))):
            for field, values in want.items():
                np.testing.assert_array_equal(item[field], values)
                assert item[field].mask.tolist() == [True, False, True]


def test_masks_are_outputs_like_others(tmp_path):
    path = optional_numbers(tmp_path / "a.npz")
    steps = {"x": [lambda batch: np.nan_to_num(batch, nan=9)], "x_mask": [ops.Convert("uint8")]}
    [batch] = Loader(path, 3, pipelines={**steps, "n_mask": None, "when": None, "again": Pipe("box")})
    assert list(batch) == ["x", "x_mask", "n", "box", "box_mask", "again", "again_mask"]
    assert batch["x"].tolist() == [1.5, 9, 1.5]
    assert batch["x_mask"].tolist() == [1, 0, 1]
    assert not np.shares_memory(batch["box"], batch["again"])
    with pytest.raises(bp.OptionError, match="'when_mask' has no field"):
        Loader(path, 3, pipelines={"when": None, "when_mask": []})
    schema = {"x": bp.Int(optional=True), "x_mask": bp.Int()}
    clash = write(tmp_path / "b.npz", schema, [{"x": None, "x_mask": 1}])
    with pytest.raises(bp.OptionError, match=r"would be called 'x_mask', as is another output.*Pipe"):
        Loader(clash, 1)
    [batch] = Loader(clash, 1, pipelines={"x": None, "y": Pipe("x")})
    assert {name: value.tolist() for name, value in batch.items()} == {
        "x_mask": [1],
        "y": [0],
        "y_mask": [False],
    }


def test_ragged_fields_can_be_padded(tmp_path):
    schema = {"tokens": bp.Tensor("int32", (None,))}
    path = write(
        tmp_path / "data.npz", schema, ({"tokens": np.arange(n % 5, dtype=np.int32)} for n in range(7))
    )
    [batch] = Loader(path, 7, pipelines={"tokens": [ops.Pad(4, -1), ops.Convert("int64")]})
    want = [[*range(n % 5), *[-1] * 4][:4] for n in range(7)]
    assert batch["tokens"].tolist() == want
    assert batch["tokens"].dtype == np.int64


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA"])
def test_other_modes(tmp_path, mode):
    channels = len(mode)
    result = [pixels(n, channels=4)[:, :, :channels] for n in range(3)]
    path = write(tmp_path / "data.npz", {"image": bp.Image(mode=mode)}, ({"image": item} for item in result))
    [batch] = Loader(path, 3)
    assert np.array_equal(batch["image"], result)


@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "nearest", "area"])
def test_resize(jpeg, filter):
    reader = bp.open(jpeg)
    [batch] = Loader(reader, 23, pipelines={"image": [ops.Resize((9, 13), filter=filter)]})
    for n, photo in enumerate(batch["image"]):
        whole = reader[n]["image"]
        if filter == "area":
            down, across = coverage(whole.shape[0], 9), coverage(whole.shape[1], 13)
            want = np.einsum("yh,hwc,xw->yxc", down, whole, across)
        else:
            how = Pillow.Resampling[filter.upper()]
            want = np.asarray(Pillow.fromarray(whole).resize((13, 9), how)).astype(float)
        assert np.abs(photo - want).max() <= 1


def coverage(size: int, result: int) -> Any:
    """How much of each result pixel each source pixel is."""
    edges = np.arange(result + 1) * size / result
    at = np.arange(size)
    covered = np.minimum(edges[1:, None], at + 1) - np.maximum(edges[:-1, None], at)
    return np.maximum(covered, 0) * result / size


def test_center_crop_without_resizing_is_exact(raw):
    batches = list(Loader(raw, 8, pipelines={"image": [ops.CenterCrop(12, ratio=1.0)]}))
    result = np.concatenate([batch["image"] for batch in batches])
    assert np.array_equal(result, [pixels(n)[:, 2:14] for n in range(20)])


def test_what_the_engine_does_is_what_the_ops_do(raw):
    flip = ops.RandomHorizontalFlip(0.5, share="flip")
    tail = [flip, ops.Normalize(MEAN, STD), ops.ChannelsFirst()]
    pipelines = {
        "image": [ops.Decode(), *tail],
        "slow": Pipe("image", [ops.Decode(), lambda batch: batch, *tail]),
        "plain": Pipe("image", [flip]),
        "half": Pipe("image", [flip, ops.Normalize(MEAN, STD, "float16")]),
    }
    flipped = 0
    for batch in Loader(raw, 8, pipelines=pipelines, ids=True):
        chosen = Draws(0, 0, batch["ids"], "flip").chance(0.5)
        flipped += chosen.sum()
        want = [
            pixels(n)[:, ::-1] if turned else pixels(n)
            for n, turned in zip(batch["ids"], chosen, strict=True)
        ]
        assert np.array_equal(batch["plain"], want)
        normal = (np.array(want) - MEAN) / STD
        for name in ("image", "slow"):
            assert batch[name].dtype == np.float32
            assert batch[name].shape[1:] == (3, 12, 16)
            np.testing.assert_allclose(batch[name], normal.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-6)
        assert batch["half"].dtype == np.float16
        np.testing.assert_allclose(batch["half"], normal, rtol=2e-3, atol=1e-3)
    assert 0 < flipped < 20


def test_a_image_that_python_decodes_gets_the_same_treatment(tmp_path, raw):
    how: dict[str, Any] = {
        "order": "random",
        "seed": 3,
        "pipelines": {
            "image": [ops.RandomResizedCrop(7), ops.RandomHorizontalFlip(), ops.Normalize(MEAN, STD)]
        },
    }
    native = checksum(Loader(raw, 6, **how))
    assert checksum(Loader(image_folder(tmp_path / "png"), 6, **how)) == native
    assert (
        checksum(Loader(image_folder(tmp_path / "mixed", encodings=("png", "tiff", "bmp")), 6, **how))
        == native
    )


def test_the_size_of_a_image_that_its_header_does_not_tell(tmp_path, monkeypatch, raw):
    """Some encodings hide it; then the box is drawn once the image is decoded."""
    how: dict[str, Any] = {"pipelines": {"image": [ops.RandomResizedCrop(7)]}}
    want = checksum(Loader(raw, 6, **how))
    path = image_folder(tmp_path / "bmp", encodings=("bmp",))
    monkeypatch.setattr(executor, "header_sizes", lambda cells: np.zeros((len(cells.start), 2), np.int32))
    assert checksum(Loader(path, 6, **how)) == want


def test_an_argument_that_is_not_there(raw):
    for wrong, meant in (("workrs", "workers"), ("dcode", "decode")):
        with pytest.raises(TypeError, match=rf"argument '{wrong}' \(did you mean {meant}\?\)"):
            Loader(raw, 6, **{wrong: 1})


def test_few_files_are_mapped_at_a_time(tmp_path):
    count = 150
    path = image_folder(tmp_path / "jpeg", count, ("png", "jpeg"), height=4, width=5)
    reader = bp.open(path)
    whole = [reader[n]["image"] for n in range(count)]

    def mapped():
        with open("/proc/self/maps") as file:
            return sum(str(tmp_path) in line for line in file)

    # Of a batch of many files none is mapped, of others some stay until the reader is closed.
    for size, most in ((75, 0), (50, 128)):
        for some in np.arange(count).reshape(-1, size):
            cells = locate(reader, "image", some)
            result = [image.decode(cells.cell(row)) for row in range(size)]
            assert np.array_equal(result, [whole[number] for number in some])
        del cells
        assert mapped() == most
        assert np.array_equal(np.concatenate([batch["image"] for batch in Loader(reader, size)]), whole)
    reader.close()
    assert mapped() == 0


def test_two_files_as_one(tmp_path):
    readers = [bp.open(write_raw(tmp_path / f"{n}.beton", 5)) for n in range(3)]
    loader = Loader(bp.concat(readers), 4, order="random", ids=True)
    for batch in loader:
        assert np.array_equal(batch["image"], [pixels(n % 5) for n in batch["ids"]])


def test_a_part_of_a_reader(raw):
    part = bp.open(raw).subset([7, 3, 11])
    [batch] = Loader(part, 5, ids=True)
    assert batch["ids"].tolist() == [0, 1, 2]
    assert np.array_equal(batch["image"], [pixels(n) for n in (7, 3, 11)])


# -- several views, shared draws ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def paired(folder):
    """Images and masks that are the same."""
    samples = ({"image": pixels(n), "mask": pixels(n)} for n in range(12))
    return write(folder / "paired.beton", {"image": bp.Image(), "mask": bp.Image()}, samples)


@pytest.mark.parametrize("share", ["place", None])
def test_image_and_mask_share_a_draw_if_asked(paired, share):
    steps = [
        ops.RandomResizedCrop(6, filter="nearest", share=share),
        ops.RandomHorizontalFlip(share=share and f"{share} flip"),
        ops.RandomCrop(5, padding=1, share=share and f"{share} crop"),
    ]
    for batch in Loader(paired, 6, order="random", pipelines={"image": steps, "mask": steps}):
        assert np.array_equal(batch["image"], batch["mask"]) == (share is not None)


def test_views_of_one_field_are_drawn_each_for_itself(raw):
    crop = [ops.RandomCrop(6)]
    pipelines = {
        "image": None,
        "one": Pipe("image", crop),
        "two": Pipe("image", crop),
        "whole": Pipe("image"),
    }
    for batch in Loader(raw, 10, pipelines=pipelines, ids=True):
        assert set(batch) == {"one", "two", "whole", "label", "ids"}
        assert not np.array_equal(batch["one"], batch["two"])
        assert np.array_equal(batch["whole"], [pixels(n) for n in batch["ids"]])
        for view in (batch["one"], batch["two"]):
            for row, n in enumerate(batch["ids"]):
                crops = np.lib.stride_tricks.sliding_window_view(pixels(n), (6, 6, 3)).reshape(-1, 6, 6, 3)
                assert (crops == view[row]).all(axis=(1, 2, 3)).any()


def test_what_is_done_to_one_view_is_not_done_to_another(plain):
    pipelines = {
        "value": [lambda batch: np.copyto(batch, -1) or batch],
        "before": Pipe("value"),
        "after": Pipe("value", [lambda batch: np.copyto(batch, -2) or batch]),
    }
    [batch] = Loader(plain, 20, pipelines=pipelines)
    assert set(batch["value"]) == {-1}
    assert batch["before"].tolist() == list(range(20))
    assert set(batch["after"]) == {-2}


def test_values_can_be_written_to_and_the_data_stays(plain, raw):
    for source, name in ((plain, "value"), (raw, "label"), (raw, "image")):
        loader = Loader(source, 20)
        [before] = loader
        kept = before[name].copy()
        before[name][:] = 0
        [after] = loader
        assert np.array_equal(after[name], kept)


class ReadOnly(Memory):
    """As a reader that gives views of a mapped file."""

    def _read(self, indices: Any, fields: Any) -> bp.Columns:
        result = super()._read(indices, fields)
        for column in result.values():
            (column.data if isinstance(column, Ragged) else column).flags.writeable = False
        return result


def test_values_can_be_written_to_whatever_the_reader_gives():
    schema = {
        "number": bp.Int(),
        "ragged": bp.Tensor("int64", (None,)),
        "free": bp.Tensor("int64", (None, None)),
    }
    samples = [{"number": n, "ragged": np.arange(n), "free": np.full((n, 2), n)} for n in range(4)]

    def replace(numbers: Any) -> Any:
        numbers[2] = 9
        return numbers

    [batch] = Loader(ReadOnly(schema, samples), 4, pipelines={"number": [replace]})
    assert batch["number"].tolist() == [0, 1, 9, 3]
    for array in (batch["number"], *batch["ragged"], *batch["free"]):
        array += 1


# -- which samples ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("indices", "want"),
    [
        ([3, 5, 3], [3, 5, 3]),
        ([-1, 0], [19, 0]),
        (np.arange(20) % 5 == 0, [0, 5, 10, 15]),
        ([], []),
        (range(17, 20), [17, 18, 19]),
    ],
)
def test_indices(plain, indices, want):
    loader = Loader(plain, 2, indices=indices, ids=True)
    assert ids_of(loader) == ids_of(loader, "value") == want
    assert len(loader) == -(-len(want) // 2)
    assert sorted(ids_of(Loader(plain, 2, indices=indices, order="random", ids=True))) == sorted(want)


def test_indices_out_of_range(plain):
    with pytest.raises(SampleIndexError, match="there is no sample 20; there are 20"):
        Loader(plain, 2, indices=[20])


def test_filter(plain, raw):
    loader = Loader(plain, 3, order="random", seed=4, ids=True)
    few = loader.filter("value", lambda value: value % 3 == 0)
    assert (few.batch_size, few.seed) == (3, 4)
    assert sorted(ids_of(few)) == [0, 3, 6, 9, 12, 15, 18]
    assert sorted(ids_of(few.filter("value", lambda value: value > 9))) == [12, 15, 18]
    assert ids_of(loader.filter("value", lambda value: False)) == []
    assert sorted(ids_of(loader)) == list(range(20))
    by_image = Loader(raw, 4, ids=True).filter("image", lambda image: image[0, 0, 1] >= 18)
    assert ids_of(by_image) == [18, 19]
    with pytest.raises(bp.FieldNameError, match="there is no field 'vlaue'"):
        loader.filter("vlaue", bool)


def test_filter_by_several_fields(raw):
    loader = Loader(raw, 4, ids=True)
    few = loader.filter(["label", "image"], lambda label, image: label > 2 and image[0, 0, 1] % 5 == 0)
    assert ids_of(few) == [5, 10, 15]
    assert ids_of(few.filter(("label",), lambda label: label > 9)) == [10, 15]
    with pytest.raises(bp.FieldNameError, match="there is no field 'colour'"):
        loader.filter(["label", "colour"], lambda label, colour: True)
    with pytest.raises(OptionError, match="at least one field"):
        loader.filter([], lambda: True)


def test_filter_says_which_sample_it_cannot_decode(tmp_path):
    loader = Loader(write_jpeg(tmp_path / "data.beton", 6, damaged=[4]), 2)
    with pytest.raises(DecodeError) as caught:
        loader.filter("image", lambda image: True)
    assert (caught.value.sample, caught.value.field) == (4, "image")
    assert caught.value.path == str(tmp_path / "data.beton")


def test_a_field_named_ids_and_the_sample_numbers_do_not_mix(tmp_path):
    path = write(tmp_path / "data.npz", {"ids": bp.Int()}, ({"ids": 7 * n} for n in range(3)))
    assert ids_of(Loader(path, 2)) == [0, 7, 14]
    with pytest.raises(OptionError, match="a field has that name already"):
        Loader(path, 2, ids=True)


# -- order --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "size", "drop", "want"),
    [
        (20, 6, False, [6, 6, 6, 2]),
        (20, 6, True, [6, 6, 6]),
        (20, 20, True, [20]),
        (20, 100, False, [20]),
        (20, 100, True, []),
        (0, 4, False, []),
        (0, 4, True, []),
    ],
)
def test_sizes_of_batches(plain, count, size, drop, want):
    loader = Loader(plain, size, indices=range(count), drop_last=drop)
    for _ in range(2):
        assert [len(batch["value"]) for batch in loader] == want
    assert len(loader) == len(want)


def test_an_empty_dataset(tmp_path):
    schema = {"image": bp.Image(), "label": bp.Int(), "text": bp.Text()}
    loader = Loader(write(tmp_path / "data.beton", schema, []), 4, order="random")
    assert list(loader) == list(loader) == []
    assert len(loader) == 0


def test_the_length_of_an_epoch_is_what_is_left(plain):
    epoch = iter(Loader(plain, 6))
    assert len(epoch) == 4
    next(epoch)
    assert len(epoch) == 3


def test_orders(plain, raw):
    assert ids_of(Loader(plain, 6, ids=True)) == list(range(20))
    assert ids_of(Loader(plain, 6, order=np.array([4, 4, 9]), ids=True)) == [4, 4, 9]
    assert ids_of(Loader(plain, 6, order=[19, 0], ids=True)) == [19, 0]
    assert (
        ids_of(Loader(plain, 6, order=lambda n, rng: np.arange(n)[::-1], ids=True)) == list(range(20))[::-1]
    )
    for order in ("random", orders.Random(), orders.Windowed(5), orders.QuasiRandom(window=2)):
        actual = ids_of(Loader(raw, 6, order=order, ids=True))
        assert sorted(actual) == list(range(20))
        assert actual != list(range(20))
    weights = np.zeros(20)
    weights[[3, 8]] = 1
    assert set(ids_of(Loader(plain, 6, order=orders.Weighted(weights), ids=True))) == {3, 8}


def test_quasi_random_of_a_part(raw):
    loader = Loader(raw, 4, order="quasi_random", indices=[1, 5, 8, 13], ids=True)
    assert sorted(ids_of(loader)) == [1, 5, 8, 13]


def test_epochs_differ_and_repeat_with_the_seed(plain):
    def epochs(**how: Any) -> list[list[int]]:
        loader = Loader(plain, 6, order="random", ids=True, **how)
        return [ids_of(loader) for _ in range(3)]

    first = epochs(seed=1)
    assert first == epochs(seed=1)
    result = [tuple(epoch) for epoch in first + epochs(seed=2)]
    assert len(set(result)) == 6
    assert all(sorted(item) == list(range(20)) for item in result)


def test_augmentation_differs_between_epochs_and_seeds_but_repeats(raw):
    def epochs(seed: int) -> list[str]:
        loader = Loader(raw, 6, seed=seed, pipelines={"image": [ops.RandomCrop(8)]})
        return [checksum(loader) for _ in range(2)]

    assert epochs(1) == epochs(1)
    assert len(set(epochs(1) + epochs(2))) == 4


# -- the same for any number of workers, ranks and resumes --------------------------------------------------


def _noise(batch: Any, rng: Draws) -> Any:
    return batch + rng.integers(3)[:, None, None, None].astype(np.uint8)


AUGMENTED: dict[str, Any] = {
    "order": "random",
    "seed": 11,
    "ids": True,
    "pipelines": {
        "image": [
            ops.RandomResizedCrop(10, share="place"),
            ops.RandomHorizontalFlip(share="flip"),
            ops.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8),
            ops.RandomGrayscale(0.2),
            ops.GaussianBlur(3, p=0.3),
            ops.RandomTranslate(2),
            ops.RandomErasing(1.0),
            _noise,
        ],
        "view": Pipe("image", [ops.CenterCrop(8), ops.RandomSolarization(p=0.3), ops.Normalize(MEAN, STD)]),
    },
}
BATCH = 4


@pytest.fixture(scope="module")
def epochs(jpeg):
    """The SHA-256 of the first two epochs of one worker and one rank."""
    loader = Loader(jpeg, BATCH, workers=1, prefetch_batches=1, **AUGMENTED)
    result = [checksum(loader), checksum(loader)]
    assert result[0] != result[1]
    return result


@pytest.mark.parametrize("workers", [1, 2, 8])
@pytest.mark.parametrize("prefetch_batches", [1, 5])
def test_one_epoch_for_any_number_of_workers(jpeg, epochs, workers, prefetch_batches):
    loader = Loader(jpeg, BATCH, workers=workers, prefetch_batches=prefetch_batches, **AUGMENTED)
    assert [checksum(loader), checksum(loader)] == epochs


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_one_epoch_for_any_batch_size(jpeg, epochs, batch_size):
    assert checksum(Loader(jpeg, batch_size, **AUGMENTED)) == epochs[0]


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_one_epoch_for_any_number_of_ranks(jpeg, epochs, world_size):
    ranks = [Loader(jpeg, BATCH, rank=rank, world_size=world_size, **AUGMENTED) for rank in range(world_size)]
    assert len({len(rank) for rank in ranks}) == 1
    for want in epochs:
        steps = zip(*ranks, strict=True)
        assert checksum(itertools.chain.from_iterable(steps)) == want


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_one_epoch_for_a_resume_at_every_batch(jpeg, epochs, world_size):
    """Each time with as many workers and ranks as before, then with others."""
    first = Loader(jpeg, BATCH, **AUGMENTED)
    before: list[Any] = []
    states = [first.state_dict()]
    for batch in first:
        before.append(batch)
        states.append(first.state_dict())
    assert checksum(before) == epochs[0]
    ranks = [
        Loader(jpeg, BATCH, rank=rank, world_size=world_size, workers=1 + rank, **AUGMENTED)
        for rank in range(world_size)
    ]
    for number, state in enumerate(states):
        for rank in ranks:
            rank.load_state_dict(json.loads(json.dumps(state)))
        rest = itertools.chain.from_iterable(zip(*ranks, strict=True))
        if number == len(before):
            assert checksum(rest) == epochs[1]
        else:
            assert checksum([*before[:number], *rest]) == epochs[0]
            # What follows a resumed epoch is the next one.
            assert state["epoch"] == 0
            assert ranks[0].state_dict()["epoch"] == 1


def test_all_ranks_have_the_same_state_and_one_rank_can_go_on_from_it(jpeg, epochs):
    ranks = [Loader(jpeg, 2, rank=rank, world_size=3, **AUGMENTED) for rank in range(3)]
    live = [iter(rank) for rank in ranks]
    before = [next(item) for _ in range(2) for item in live]
    states = [rank.state_dict() for rank in ranks]
    assert states[0] == states[1] == states[2]
    alone = Loader(jpeg, 5, **AUGMENTED)
    alone.load_state_dict(states[0])
    assert checksum([*before, *alone]) == epochs[0]


# -- ranks --------------------------------------------------------------------------------------------------


def test_every_sample_comes_on_one_rank(plain):
    for world_size, size, drop in itertools.product((1, 2, 3, 7), (1, 3, 6), (False, True)):
        ranks = [
            Loader(plain, size, rank=rank, world_size=world_size, drop_last=drop, order="random", ids=True)
            for rank in range(world_size)
        ]
        result = [ids_of(rank) for rank in ranks]
        joined = sorted(itertools.chain(*result))
        assert len(joined) == len(set(joined))
        if drop:
            assert {len(item) for item in result} == {20 // (world_size * size) * size}
        else:
            assert joined == list(range(20))


def test_more_ranks_than_samples(plain):
    result = [list(Loader(plain, 2, indices=[4], rank=rank, world_size=3)) for rank in range(3)]
    assert [len(item) for item in result] == [1, 1, 1]
    assert sorted(batch["value"].tolist() for [batch] in result) == [[], [], [4]]


# What launchers set, none of which may come from the machine that the tests run on.
PLACES = [
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
    "NNODES", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK", "PMI_SIZE", "SLURM_PROCID",
    "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS", "SLURM_JOB_ID",
]  # fmt: skip


@pytest.fixture
def launched(monkeypatch):
    """Sets the variables of a launcher, and those alone."""

    def launch(environment: dict[str, str]) -> None:
        for name in PLACES:
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)

    return launch


@pytest.mark.parametrize(
    ("environment", "given", "want"),
    [
        ({}, {}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, {}, (2, 4)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, {"rank": 3}, (3, 4)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, {"world_size": 2}, (1, 2)),
        ({"RANK": "2", "WORLD_SIZE": "4"}, {"rank": 0, "world_size": 1}, (0, 1)),
        ({"RANK": "3"}, {}, (0, 1)),
        ({"RANK": "", "WORLD_SIZE": ""}, {}, (0, 1)),
        # Lightning starts the other processes of a node with these alone.
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1", "NODE_RANK": "0"}, {}, (1, 2)),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, {}, (1, 2)),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1", "LOCAL_WORLD_SIZE": "2"}, {}, (3, 4)),
        ({"WORLD_SIZE": "6", "LOCAL_RANK": "1", "GROUP_RANK": "1", "GROUP_WORLD_SIZE": "2"}, {}, (4, 6)),
        ({"WORLD_SIZE": "4", "RANK": "2", "LOCAL_RANK": "0", "GROUP_RANK": "1"}, {}, (2, 4)),
        ({"OMPI_COMM_WORLD_RANK": "2", "OMPI_COMM_WORLD_SIZE": "3"}, {}, (2, 3)),
        ({"PMI_RANK": "1", "PMI_SIZE": "3"}, {}, (1, 3)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, {}, (1, 2)),
        ({"WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, {}, (1, 2)),
        ({"WORLD_SIZE": "4", "RANK": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, {}, (3, 4)),
        # A step of srun, a step of one task, a batch script, and a shell with an allocation.
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, {}, (1, 2)),
        (
            {"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"},
            {},
            (0, 1),
        ),
        ({"SLURM_JOB_ID": "7", "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, {}, (0, 1)),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}, {}, (0, 1)),
    ],
)
def test_the_place_among_ranks(plain, launched, environment, given, want):
    launched(environment)
    loader = Loader(plain, 2, ids=True, **given)
    assert (loader.rank, loader.world_size) == want
    explicit = Loader(plain, 2, ids=True, rank=want[0], world_size=want[1])
    assert ids_of(loader) == ids_of(explicit)


@pytest.mark.parametrize(
    ("environment", "given", "message"),
    [
        ({"WORLD_SIZE": "two"}, {}, "WORLD_SIZE is 'two', not a number"),
        ({"WORLD_SIZE": "2", "RANK": "x"}, {}, "RANK is 'x', not a number"),
        ({"WORLD_SIZE": "2"}, {}, "2 processes, and nothing says which of them this is: set RANK"),
        ({"WORLD_SIZE": "4", "LOCAL_RANK": "1", "NODE_RANK": "1"}, {}, "nothing says which of them this is"),
        ({"WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "4"}, {}, "nothing says which of them"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "2"}, {}, "rank must be from 0 to 1, not 2"),
        ({}, {"world_size": 2}, "2 processes, and nothing says which of them this is"),
        ({}, {"rank": 1}, "rank must be from 0 to 0, not 1"),
        ({}, {"world_size": 0}, "world_size is at least 1, not 0"),
    ],
)
def test_a_wrong_place_among_ranks(plain, launched, environment, given, message):
    launched(environment)
    loader = Loader(plain, 2, **given)
    for ask in (lambda: next(iter(loader)), lambda: len(loader), lambda: loader.rank):
        with pytest.raises(OptionError, match=message):
            ask()
    launched({"WORLD_SIZE": "2", "RANK": "0"})
    if not given:
        assert len(ids_of(loader, "value")) == 10


@pytest.mark.parametrize("rank", [2, -1])
def test_a_place_that_cannot_be_is_refused_at_once(plain, rank):
    with pytest.raises(OptionError, match=f"rank must be from 0 to 1, not {rank}"):
        Loader(plain, 2, rank=rank, world_size=2)


def test_a_loader_made_before_its_processes_were_started(plain, launched):
    """A trainer may start them, or say which is which, when the loader has long been there."""
    launched({})
    loaders = [Loader(plain, 3, order="random", ids=True) for _ in range(2)]
    alone = ids_of(loaders[0])
    assert [ids_of(loader) for loader in loaders[1:]] == [alone]
    assert len(loaders[0]) == 7
    result = []
    for rank, loader in enumerate(loaders):
        launched({"WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "NODE_RANK": "0"})
        assert len(loader) == 4
        result.append(ids_of(loader))
    assert sorted(result[0] + result[1]) == list(range(20))


def test_an_epoch_keeps_the_place_that_it_began_with(plain, launched):
    launched({"WORLD_SIZE": "2", "RANK": "1"})
    loader = Loader(plain, 5, ids=True)
    epoch = iter(loader)
    first = next(epoch)["ids"].tolist()
    launched({})
    assert first + ids_of(epoch) == ids_of(Loader(plain, 5, ids=True, rank=1, world_size=2))
    assert ids_of(loader) == list(range(20))


# -- state --------------------------------------------------------------------------------------------------


def test_state_after_a_break(plain):
    """The epoch is gone by then; where it stood is not."""
    loader = Loader(plain, 3, order="random", ids=True)
    seen: list[int] = []
    for batch in loader:
        seen += batch["ids"].tolist()
        if len(seen) == 9:
            break
    state = loader.state_dict()
    other = Loader(plain, 3, order="random", ids=True)
    other.load_state_dict(state)
    assert sorted(seen + ids_of(other)) == list(range(20))
    # The loader itself goes on with the next epoch, as a DataLoader does.
    assert sorted(ids_of(loader)) == list(range(20))


def test_state_between_epochs(plain):
    loader = Loader(plain, 3, order="random", ids=True)
    start = loader.state_dict()
    first = ids_of(loader)
    between = loader.state_dict()
    second = ids_of(loader)
    assert (start["epoch"], start["position"]) == (0, 0)
    assert (between["epoch"], between["position"]) == (1, 0)
    loader.load_state_dict(start)
    assert ids_of(loader) == first
    loader.load_state_dict(between)
    assert ids_of(loader) == second


def test_state_counts_what_was_given_out_not_what_was_made(plain):
    semaphore = threading.Semaphore(0)

    def count(batch: Any) -> Any:
        semaphore.release()
        return batch

    loader = Loader(plain, 2, prefetch_batches=5, pipelines={"value": [count]})
    epoch = iter(loader)
    next(epoch)
    for _ in range(5):
        assert semaphore.acquire(timeout=PATIENCE)
    assert loader.state_dict()["position"] == 2


def test_an_iterator_that_nobody_uses_counts_for_nothing(plain):
    """Some trainers make one more than they need; a resumed epoch must not be lost to it."""
    loader = Loader(plain, 3, order="random", ids=True)
    first = ids_of(loader)
    loader = Loader(plain, 3, order="random", ids=True)
    unused = iter(loader)
    assert len(unused) == 7
    assert ids_of(loader) == first
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 9})
    unused = iter(loader)
    assert len(unused) == 4
    assert loader.state_dict()["position"] == 9
    assert ids_of(loader) == first[9:]
    assert loader.state_dict()["epoch"] == 1
    assert len(unused) == 7


def test_state_with_drop_last(plain):
    loader = Loader(plain, 6, drop_last=True, ids=True)
    assert len(ids_of(loader)) == 18
    assert loader.state_dict()["epoch"] == 1


def test_loading_a_state_while_an_epoch_is_under_way(plain):
    loader = Loader(plain, 5, ids=True)
    state = loader.state_dict()
    epoch = iter(loader)
    next(epoch)
    loader.load_state_dict(state)
    assert loader.state_dict() == state
    assert ids_of(loader) == list(range(20))
    assert ids_of(epoch) == list(range(5, 20))


GOOD = {"version": 1, "epoch": 0, "position": 4, "seed": 0, "samples": 20}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({**GOOD, "samples": 21}, "the state is of a dataset of 21 samples, this has 20"),
        ({**GOOD, "seed": 5}, "the state was made with seed 5, and this loader has 0"),
        ({**GOOD, "version": 9}, "the state is of version 9, and this reads version 1"),
        ({**GOOD, "position": 21}, "from 0 to 20, not 21"),
        ({**GOOD, "position": -1}, "from 0 to 20, not -1"),
        ({**GOOD, "epoch": -1}, "epoch must be from 0"),
        ({**GOOD, "epoch": "x"}, "no state of a loader"),
        ({}, "no state of a loader: KeyError\\('version'\\)"),
    ],
)
def test_wrong_states(plain, state, message):
    loader = Loader(plain, 4, order="random")
    before = loader.state_dict()
    with pytest.raises(OptionError, match=message):
        loader.load_state_dict(state)
    assert loader.state_dict() == before
    loader.load_state_dict(GOOD)
    assert len(iter(loader)) == 4


def backwards(n: int, rng: Any) -> Any:
    return np.arange(n)[::-1]


def shuffled(n: int, rng: Any) -> Any:
    return rng.permutation(n)


SMALL = np.arange(20) % 2
# Two ways to order samples, and what the refusal names.
OTHER_ORDERS = [
    ({"order": "random"}, {}, "made with order random, and this loader has sequential"),
    ({}, {"order": "windowed"}, "made with order sequential, and this loader has windowed"),
    ({"order": backwards}, {"order": "random"}, "made with order a function, and this loader has random"),
    ({"order": backwards}, {"order": shuffled}, "the order of epoch 0 is not the one .* another function"),
    ({"order": [3, 1, 2, 0]}, {"order": [3, 1, 0, 2]}, "order of 4 values with checksum .* has of 4 values"),
    ({"indices": range(10)}, {"indices": range(10, 20)}, "made with indices of 10 values .* of 10 values"),
    ({"indices": range(1, 20)}, {}, "the state is of a dataset of 19 samples, this has 20"),
    ({"indices": range(19, -1, -1)}, {}, "made with indices of 20 values .*, and this loader has None"),
    (
        {"order": orders.Windowed(4)},
        {"order": orders.Windowed(5)},
        "made with window 4, and this loader has 5",
    ),
    (
        {"order": orders.Windowed(4)},
        {"order": "windowed"},
        "made with window 4, and this loader has its default",
    ),
    (
        {"order": orders.ClassBalanced(SMALL)},
        {"order": orders.ClassBalanced(1 - SMALL)},
        "made with labels of 20 values",
    ),
    ({"seed": 3}, {}, "made with seed 3, and this loader has 0"),
]


@pytest.mark.parametrize(("was", "now", "message"), OTHER_ORDERS)
def test_a_state_is_not_taken_up_with_another_order(plain, was, now, message):
    loader = Loader(plain, 2, **was)
    next(iter(loader))
    state = json.loads(json.dumps(loader.state_dict()))
    other = Loader(plain, 2, **now)
    before = other.state_dict()
    with pytest.raises(OptionError, match=message):
        other.load_state_dict(state)
    assert other.state_dict() == before
    Loader(plain, 2, **was).load_state_dict(state)


@pytest.mark.parametrize(
    ("was", "now"),
    [
        ({"order": shuffled}, {"order": lambda n, rng: rng.permutation(n)}),
        ({"order": "windowed"}, {"order": orders.Windowed(1000)}),
        ({"indices": None}, {"indices": range(20)}),
        ({"order": [3, 1, 2]}, {"order": np.array([3, 1, 2], np.uint8)}),
        (
            {},
            {
                "batch_size": 5,
                "world_size": 2,
                "rank": 1,
                "workers": 1,
                "drop_last": True,
                "prefetch_batches": 1,
            },
        ),
        ({}, {"pipelines": {"value": [np.negative]}, "ids": True}),
    ],
)
def test_what_may_change_when_a_state_is_taken_up(plain, was, now):
    loader = Loader(plain, 2, **was)
    next(iter(loader))
    other = Loader(plain, **{"batch_size": 2, **now})
    other.load_state_dict(loader.state_dict())
    assert other.state_dict()["position"] == 2


def test_a_state_of_before_orders_were_told_is_taken_up(plain):
    loader = Loader(plain, 4, order="random")
    loader.load_state_dict(GOOD)
    assert loader.state_dict()["position"] == 4


def test_the_length_after_a_resume_is_that_of_the_whole_epoch(plain):
    """Trainers go on counting where they were: with what is left they would cut the epochs after it short."""
    loader = Loader(plain, 3, order="random", ids=True)
    assert len(loader) == 7
    loader.load_state_dict({**loader.state_dict(), "position": 9})
    assert len(loader) == 7
    assert len(iter(loader)) == 4
    lengths = [len(loader) for _ in loader]
    assert lengths == [7, 7, 7, 7]
    assert len(loader) == 7
    assert [len(loader) for _ in loader] == [7] * 7
    # Left in the middle, the next loop is a whole epoch.
    loader.load_state_dict({**loader.state_dict(), "epoch": 0, "position": 9})
    for _ in loader:
        break
    assert len(loader) == 7 == sum(1 for _ in loader)


def test_the_length_after_a_resume_on_other_ranks(plain):
    loader = Loader(plain, 3, order="random")
    next(iter(loader))
    for rank in range(2):
        other = Loader(plain, 3, order="random", rank=rank, world_size=2)
        assert len(other) == 4
        other.load_state_dict(loader.state_dict())
        assert len(other) == 4
        assert len(iter(other)) == 3 == sum(1 for _ in other)


# -- pickling -----------------------------------------------------------------------------------------------


def negative(batch: Any) -> Any:
    return -batch


def test_a_pickled_loader_goes_on_where_it_was(jpeg):
    how: dict[str, Any] = {
        "order": "random", "seed": 5, "ids": True, "indices": range(1, 22),
        "pipelines": {"image": AUGMENTED["pipelines"]["image"], "label": [negative]},
    }  # fmt: skip
    whole = list(Loader(jpeg, 4, **how))
    loader = Loader(jpeg, 4, **how)
    first = next(iter(loader))
    again = pickle.loads(pickle.dumps(loader))
    assert again.reader is not loader.reader
    assert again.state_dict() == loader.state_dict()
    assert checksum([first, *again]) == checksum(whole)
    assert ids_of(again) == ids_of(loader)


def test_a_loader_that_cannot_be_pickled_says_why(plain):
    loader = Loader(plain, 4, pipelines={"value": [lambda batch: batch]})
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(loader)


# -- in the background --------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch_batches", [1, 2, 4])
def test_batches_are_made_ahead_but_no_further(plain, prefetch_batches):
    result: list[int] = []

    def count(batch: Any) -> Any:
        result.extend(batch)
        return batch

    epoch = iter(Loader(plain, 1, prefetch_batches=prefetch_batches, pipelines={"value": [count]}))
    deadline = time.monotonic() + PATIENCE
    for number in range(20):
        assert next(epoch)["value"].tolist() == [number]
        room = min(number + 1 + prefetch_batches, 20)
        # Until a thread waits for room, or has nothing left to do; the other waits for that one.
        waiting = epoch._queue.changed._waiters  # type: ignore[attr-defined]
        while len(result) < room or not (waiting or not all(thread.is_alive() for thread in epoch._threads)):  # type: ignore[attr-defined]
            assert time.monotonic() < deadline
            os.sched_yield()
        assert sorted(result) == list(range(room))
    assert list(epoch) == []


def test_batches_come_in_order_whoever_is_ready_first(plain):
    """The first batch is held back until the second is made."""
    second = threading.Event()

    def hold(batch: Any) -> Any:
        if batch[0] == 0:
            assert second.wait(PATIENCE)
        else:
            second.set()
        return batch

    assert ids_of(Loader(plain, 5, pipelines={"value": [hold]}), "value") == list(range(20))


def test_several_epochs_at_once(raw):
    loader = Loader(raw, 3, order="random", ids=True, pipelines={"image": [ops.RandomCrop(8)]})
    one_by_one = [checksum(loader) for _ in range(3)]
    loader = Loader(raw, 3, order="random", ids=True, pipelines={"image": [ops.RandomCrop(8)]})
    steps = list(zip(*[iter(loader) for _ in range(3)], strict=True))
    assert [checksum(batches) for batches in zip(*steps, strict=True)] == one_by_one


def test_two_loaders_at_once(raw, jpeg):
    loader = Loader(raw, 4, pipelines={"image": [ops.Resize(8)]})
    other = Loader(jpeg, 4, pipelines={"image": [ops.Resize(8)]})
    want = checksum(loader), checksum(other)
    first, second = zip(*itertools.islice(zip(loader, other, strict=False), 5), strict=True)
    assert checksum(first) == want[0]
    rest = list(other)[5:]
    assert checksum([*second, *rest]) == want[1]


@pytest.fixture
def hasty():
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_one_loader_in_many_threads(raw):
    loader = Loader(raw, 3, order="random", ids=True)
    result: list[tuple[int, ...]] = []

    def consume() -> None:
        for _ in range(3):
            result.append(tuple(ids_of(loader)))

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    again = Loader(raw, 3, order="random", ids=True)
    assert sorted(result) == sorted(tuple(ids_of(again)) for _ in range(12))


@pytest.mark.usefixtures("hasty")
def test_one_epoch_in_many_threads(plain):
    epoch = iter(Loader(plain, 1, ids=True))
    result: list[int] = []
    threads = [threading.Thread(target=lambda: result.extend(ids_of(epoch))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(result) == list(range(20))


# -- a batch is never overwritten under its holder ----------------------------------------------------------


def test_all_batches_of_epochs_can_be_held(raw):
    loader = Loader(raw, 3, order="random", ids=True)
    held, sums = [], []
    for _ in range(4):
        for batch in loader:
            held.append(batch)
            sums.append(checksum([batch]))
    assert [checksum([batch]) for batch in held] == sums
    for batch in held:
        assert np.array_equal(batch["image"], [pixels(n) for n in batch["ids"]])


def test_a_part_of_a_batch_holds_its_memory(raw):
    """Slices, views of other dtypes, DLPack: whatever was made from it."""
    loader = Loader(raw, 1, prefetch_batches=1)
    kept: list[tuple[int, Any]] = []
    for _ in range(3):
        for number, batch in enumerate(loader):
            photo = batch["image"]
            del batch
            kept += [
                (number, photo[0]),
                (number, photo.view(np.int8)[0].view(np.uint8)),
                (number, np.from_dlpack(photo)[0]),
                (number, np.frombuffer(memoryview(photo).cast("B"), np.uint8).reshape(12, 16, 3)),
            ]
            del photo
    assert len(kept) == 240
    for number, photo in kept:
        assert np.array_equal(photo, pixels(number))


def addresses(loader: Loader, epochs: int) -> set[int]:
    return {batch["image"].ctypes.data for _ in range(epochs) for batch in loader}


def test_memory_is_used_again(raw):
    loader = Loader(raw, 4, prefetch_batches=2)
    # Those ahead, the one in the loop, and one that was just given up.
    assert len(addresses(loader, 10)) <= 4
    held = [batch["image"] for batch in loader]
    assert len({item.ctypes.data for item in held}) == len(held) == 5


def test_memory_is_bounded(tmp_path):
    path = write_raw(tmp_path / "data.beton", 256, 64, 64)
    loader = Loader(path, 128, order="random", ids=True)
    process = psutil.Process()
    for _ in range(3):
        list(loader)
    before = process.memory_info().rss
    given = 0
    for _ in range(60):
        for batch in loader:
            given += batch["image"].nbytes
    assert given > 180_000_000
    assert process.memory_info().rss - before < 40_000_000


def test_buffers_by_size_and_number():
    taken = []

    def allocate(size: int) -> Any:
        taken.append(size)
        return np.zeros(size, np.uint8)

    buffers = BufferPool(2, allocate)
    one = buffers.take((2, 3), np.dtype(np.float32))
    assert one.shape == (2, 3)
    assert one.dtype == np.float32
    one[:] = 7
    del one
    same = buffers.take((24,), np.dtype(np.uint8))
    assert taken == [24]
    assert same.view(np.float32).tolist() == [7.0] * 6
    other = buffers.take((25,), np.dtype(np.uint8))
    assert taken == [24, 25]
    more = [buffers.take((24,), np.dtype(np.uint8)) for _ in range(4)]
    assert taken == [24, 25, *[24] * 4]
    del more, same, other
    again = [buffers.take((24,), np.dtype(np.uint8)) for _ in range(4)]
    assert taken[6:] == [24, 24]
    assert len(again) == 4
    assert buffers.take((0, 5), np.dtype(np.float32)).shape == (0, 5)


def test_larger_buffers_serve_where_none_of_the_size_is_free():
    taken = []

    def allocate(size: int) -> Any:
        taken.append(size)
        return np.zeros(size, np.uint8)

    buffers = BufferPool(2, allocate)
    large = buffers.take_bytes(128)
    assert len(buffers.take_bytes(64)) == 64
    del large
    held = [buffers.take_bytes(64) for _ in range(3)]
    assert sorted(map(len, held)) == [64, 64, 128]
    assert taken == [128, 64, 64]
    # Far larger ones are for those who need them.
    del held
    assert len(buffers.take_bytes(16)) == 16


def test_a_batch_in_a_cycle_can_be_collected_at_any_moment():
    """A lease may end inside of ``take``, wherever the collector runs."""
    buffers, kind = BufferPool(3), np.dtype(np.uint8)

    def use() -> int:
        for size in range(1, 200):
            # So many allocations from here on it runs.
            gc.collect()
            gc.set_threshold(size % 40 + 1)
            cycle: list[Any] = [buffers.take((size,), kind)]
            cycle.append(cycle)
            cycle = []
            buffers.take((size + 1000,), kind)
        return 1

    threshold = gc.get_threshold()
    # All that is there already is left alone from now on, which is faster.
    gc.freeze()
    try:
        assert in_thread(use) == 1
    finally:
        gc.set_threshold(*threshold)


# -- nothing is left behind ---------------------------------------------------------------------------------


class StopError(Exception):
    pass


def _exhaust(loader: Loader) -> None:
    list(loader)


def _break(loader: Loader) -> None:
    for _ in loader:
        break


def _drop_unused(loader: Loader) -> None:
    iter(loader)


def _drop(loader: Loader) -> None:
    epoch = iter(loader)
    next(epoch)
    del epoch


def _raise_in_loop(loader: Loader, error: type[BaseException]) -> None:
    for _ in loader:
        raise error


def _raise(loader: Loader) -> None:
    with pytest.raises(StopError):
        _raise_in_loop(loader, StopError)


def _interrupt(loader: Loader) -> None:
    with pytest.raises(KeyboardInterrupt):
        _raise_in_loop(loader, KeyboardInterrupt)


def _close(loader: Loader) -> None:
    epoch = iter(loader)
    next(epoch)
    loader.close()
    assert list(epoch) == []


def _close_epochs(loader: Loader) -> None:
    epochs = [iter(loader) for _ in range(3)]
    next(epochs[1])
    for epoch in epochs:
        epoch.close()
        assert list(epoch) == []


def _fail(loader: Loader) -> None:
    loader._executor.reader.damaged.add(9)  # type: ignore[attr-defined]
    with pytest.raises(DamagedError):
        list(loader)


def _throw_into_generator(loader: Loader) -> None:
    def train() -> Iterator[Any]:
        yield from loader

    generator = train()
    next(generator)
    generator.close()


ENDINGS = [
    _exhaust, _break, _drop_unused, _drop, _raise, _interrupt, _close, _close_epochs, _fail,
    _throw_into_generator,
]  # fmt: skip


@pytest.mark.parametrize("end", ENDINGS)
@pytest.mark.parametrize("keep", [True, False])
def test_however_an_epoch_ends_nothing_is_left(end, keep):
    """Without the collector: no cycle may hold the threads or the memory."""
    gc.collect()
    gc.disable()
    try:
        before = running()
        samples = ({"image": pixels(n), "value": n} for n in range(20))
        reader = Memory({"image": bp.Image(), "value": bp.Int()}, samples)
        loader = Loader(reader, 3, workers=3)
        assert running() - before
        executor = weakref.ref(loader._executor)
        end(loader)
        if not keep:
            del loader
        assert_no_producers()
        if keep:
            del loader
        assert executor() is None
        assert_ended(before)
    finally:
        gc.enable()


def test_an_epoch_outlives_its_loader(raw):
    gc.collect()
    gc.disable()
    try:
        loader = Loader(raw, 3, ids=True)
        epoch = iter(loader)
        first = next(epoch)
        gone = weakref.ref(loader)
        del loader
        assert gone() is None
        assert ids_of([first, *epoch]) == list(range(20))
        del epoch
        assert_no_producers()
    finally:
        gc.enable()


def test_a_closed_loader_says_so(raw):
    loader = Loader(raw, 3)
    loader.close()
    loader.close()
    with pytest.raises(OptionError, match="the loader is closed"):
        iter(loader)


def test_all_epochs_of_a_closed_loader_end(raw):
    loader = Loader(raw, 3)
    epochs = [iter(loader) for _ in range(3)]
    loader.close()
    assert_no_producers()
    assert [list(epoch) for epoch in epochs] == [[], [], []]


def test_close_while_another_thread_waits(plain):
    entered, leave = threading.Event(), threading.Event()

    def block(batch: Any) -> Any:
        entered.set()
        assert leave.wait(PATIENCE)
        return batch

    epoch = iter(Loader(plain, 3, pipelines={"value": [block]}))
    result: list[Any] = []
    consumer = threading.Thread(target=lambda: result.append(list(epoch)))
    consumer.start()
    assert entered.wait(PATIENCE)
    closer = threading.Thread(target=epoch.close)
    closer.start()
    leave.set()
    for thread in (consumer, closer):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert len(result) == 1


@pytest.mark.parametrize("after", [0, 2])
def test_ctrl_c_ends_the_threads(plain, after):
    """At once, while the threads may still be starting, and later, while a batch is awaited."""
    here, leave = threading.Event(), threading.Event()

    def interrupt(batch: Any) -> Any:
        if batch[0] == 6:
            assert not after or here.wait(PATIENCE)
            os.kill(os.getpid(), signal.SIGINT)
            assert leave.wait(PATIENCE)
        return batch

    loader = Loader(plain, 3, pipelines={"value": [interrupt]})

    def use() -> None:
        for number, _ in enumerate(loader, 1):
            if number == after:
                here.set()

    with pytest.raises(KeyboardInterrupt) as caught:
        use()
    # The traceback, as a notebook keeps it, holds the epoch; its threads end all the same.
    assert caught.value.__traceback__ is not None
    leave.set()
    assert_no_producers()
    assert loader.state_dict()["position"] in ((6,) if after else (0, 3, 6))


def run_script(script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return processes.run(
        [sys.executable, "-X", "faulthandler", "-c", script, *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


EXIT = """
import sys
from batchplant.loading.loader import Loader
from batchplant.ops import RandomResizedCrop
held = []
for _ in range(3):
    loader = Loader(sys.argv[1], 4, order="random", pipelines={"image": [RandomResizedCrop(64)]})
    epoch = iter(loader)
    held.append((next(epoch), epoch, loader))
print("torch" in sys.modules)
"""


def test_the_interpreter_ends_amid_epochs_and_without_torch(jpeg):
    done = run_script(EXIT, jpeg)
    assert (done.returncode, done.stdout, done.stderr) == (0, "False\n", "")


FORK = """
import os, sys, traceback
from batchplant.errors import OptionError
from batchplant.loading.loader import Loader
loader = Loader(sys.argv[1], 4)
epoch = iter(loader)
first = next(epoch)
child = os.fork()
if child == 0:
    code = 1
    try:
        said = 0
        for use in (lambda: next(iter(loader)), lambda: next(epoch)):
            try:
                use()
            except OptionError as error:
                said += "make the loader in the process that uses it" in str(error)
        epoch.close()
        del epoch, loader
        own = sum(len(batch["label"]) for batch in Loader(sys.argv[1], 4))
        code = 0 if (said, own) == (2, 23) else 2
    except BaseException:
        traceback.print_exc()
    os._exit(code)
_, status = os.waitpid(child, 0)
rest = sum(len(batch["label"]) for batch in epoch)
print(os.waitstatus_to_exitcode(status), len(first["label"]) + rest)
"""


def test_a_child_of_a_fork_is_told_to_make_its_own(tmp_path):
    path = write_raw(tmp_path / "data.beton", 23)
    done = run_script("import warnings; warnings.simplefilter('ignore')\n" + FORK, path)
    assert (done.stdout, done.stderr) == ("0 23\n", "")


# -- failures -----------------------------------------------------------------------------------------------


def _bad_third(batch: Any) -> Any:
    if 6 in batch:
        raise ZeroDivisionError("six")
    return batch


def test_an_exception_in_a_function_comes_with_its_stack_and_place(plain):
    loader = Loader(plain, 3, pipelines={"value": [_bad_third]})
    epoch = iter(loader)
    assert next(epoch)["value"].tolist() == [0, 1, 2]
    assert next(epoch)["value"].tolist() == [3, 4, 5]
    with pytest.raises(ZeroDivisionError, match="six") as caught:
        next(epoch)
    text = "".join(traceback.format_exception(caught.value))
    assert 'raise ZeroDivisionError("six")' in text
    assert "_bad_third" in text
    [note] = caught.value.__notes__
    assert "field 'value'" in note
    assert "samples 6, 7, 8" in note
    assert list(epoch) == []
    assert loader.state_dict()["position"] == 6


def test_the_note_on_an_exception_is_short(plain):
    with pytest.raises(ZeroDivisionError) as caught:
        list(Loader(plain, 20, pipelines={"value": [_bad_third]}))
    assert caught.value.__notes__[0].endswith("samples 0, 1, 2, 3, 4, 5, 6, 7, …")


class _Broken(ops.Op):
    def run(self, batch: Any, ids: Any, draws: Any) -> Any:
        raise OptionError("this cannot be")


class _Quits(ops.Op):
    def run(self, batch: Any, ids: Any, draws: Any) -> Any:
        raise SystemExit(3)


def test_our_own_errors_in_ops_name_the_field(plain):
    with pytest.raises(OptionError) as caught:
        list(Loader(plain, 3, pipelines={"value": [_Broken()]}))
    assert (caught.value.field, caught.value.path) == ("value", plain)
    assert "_Broken()" in caught.value.__notes__[0]


def test_not_only_exceptions_surface(plain):
    with pytest.raises(SystemExit):
        list(Loader(plain, 3, pipelines={"value": [_Quits()]}))


def test_an_exception_is_raised_once_and_the_loader_stays_of_use(plain):
    failing = True

    def sometimes(batch: Any) -> Any:
        if failing and 6 in batch:
            raise ZeroDivisionError
        return batch

    loader = Loader(plain, 3, pipelines={"value": [sometimes]})
    with pytest.raises(ZeroDivisionError):
        list(loader)
    failing = False
    assert ids_of(loader, "value") == list(range(20))


def test_an_exception_in_the_order(plain):
    def order(n: int, rng: Any) -> Any:
        raise ZeroDivisionError("order")

    with pytest.raises(ZeroDivisionError, match="order"):
        list(Loader(plain, 3, order=order))


def damaged_beton(path: Path) -> str:
    return write_jpeg(path / "data.beton", 12, damaged=[3, 8])


def damaged_npz(path: Path) -> str:
    return write_jpeg(path / "data.npz", 12, damaged=[3, 8])


def damaged_folder(path: Path) -> str:
    result = Path(image_folder(path / "data", 12, ("jpeg", "png")))
    for name in ("0003.png", "0008.jpg"):
        data = (result / name).read_bytes()
        (result / name).write_bytes(data[: len(data) * 9 // 10])
    return str(result)


def emptied_folder(path: Path) -> str:
    result = Path(image_folder(path / "data", 12, ("jpeg", "png")))
    (result / "0003.png").write_bytes(b"")
    (result / "0008.jpg").write_bytes(b"this is text")
    return str(result)


def vanished_folder(path: Path) -> str:
    result = Path(image_folder(path / "data", 12, ("jpeg", "png")))
    (result / "0003.png").unlink()
    (result / "0008.jpg").unlink()
    return str(result)


def wrong_sizes(path: Path) -> str:
    samples = ({"image": pixels(n, 12, 16 + (n in (3, 8))), "label": n} for n in range(12))
    return write(path / "data.beton", {"image": bp.Image(), "label": bp.Int()}, samples)


def bad_text(path: Path) -> Memory:
    reader = Memory({"text": bp.Text(), "label": bp.Int()}, ({"text": f"{n}", "label": n} for n in range(12)))
    cells = [b"\xff\xfe" if n in (3, 8) else b"%d" % n for n in range(12)]
    reader.columns["text"] = Ragged.from_cells(cells)
    return reader


def bad_ragged(path: Path) -> Memory:
    field = bp.Tensor("float32", (None, 2))
    samples = ({"values": np.zeros((n % 3, 2), np.float32), "label": n} for n in range(12))
    reader = Memory({"values": field, "label": bp.Int()}, samples)
    reader.columns["values"] = Ragged.from_cells(
        [b"1234" if n in (3, 8) else bytes(8 * n) for n in range(12)]
    )
    return reader


def bad_reading(path: Path) -> Memory:
    return Memory({"label": bp.Int()}, ({"label": n} for n in range(12)), damaged=[3, 8])


def bad_image_reading(path: Path) -> Memory:
    schema = {"image": bp.Image(), "label": bp.Int()}
    reader = Memory(schema, ({"image": pixels(n), "label": n} for n in range(12)))
    whole = reader._read

    def read(indices: Any, fields: Any) -> Any:
        if "image" in fields and (bad := np.isin(indices, [3, 8])).any():
            raise DamagedError("it is gone", sample=int(indices[bad][0]))
        return whole(indices, fields)

    reader._read = read  # type: ignore[method-assign]
    return reader


RESIZE: dict[str, Any] = {"image": [ops.Resize(8), ops.RandomHorizontalFlip()]}
CROP: dict[str, Any] = {"image": [ops.RandomResizedCrop(8)]}
DAMAGES: dict[str, tuple[Any, Any, str]] = {
    "jpeg in beton": (damaged_beton, RESIZE, "image"),
    "jpeg in beton, cropped": (damaged_beton, CROP, "image"),
    "jpeg in npz": (damaged_npz, RESIZE, "image"),
    "files cut short": (damaged_folder, RESIZE, "image"),
    "files without images": (emptied_folder, RESIZE, "image"),
    "files without images, cropped": (emptied_folder, CROP, "image"),
    "files without images, centre": (emptied_folder, {"image": [ops.CenterCrop(8)]}, "image"),
    "files without images, whole": (emptied_folder, None, "image"),
    "files gone": (vanished_folder, RESIZE, "image"),
    "sizes that differ": (wrong_sizes, None, "image"),
    "sizes that differ, channels first": (wrong_sizes, {"image": [ops.ChannelsFirst()]}, "image"),
    "text": (bad_text, None, "text"),
    "ragged numbers": (bad_ragged, None, "values"),
    "reading": (bad_reading, None, "label"),
    "reading of images": (bad_image_reading, CROP, "image"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_sample_is_named(tmp_path, name):
    make, pipelines, field = DAMAGES[name]
    source = make(tmp_path)
    epoch = iter(Loader(source, 2, pipelines=pipelines, ids=True))
    assert next(epoch)["ids"].tolist() == [0, 1]
    with pytest.raises(bp.DataError) as caught:
        next(epoch)
    assert (caught.value.sample, caught.value.field) == (3, field)
    assert caught.value.path is not None
    assert caught.value.path.startswith("memory" if isinstance(source, Memory) else source)
    if "folder" in make.__name__:
        assert "0003.png" in str(caught.value)
    assert list(epoch) == []


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("size", [1, 2, 12])
def test_a_damaged_sample_is_left_out_alone(tmp_path, name, size):
    make, pipelines, field = DAMAGES[name]
    source = make(tmp_path)
    loader = Loader(source, size, pipelines=pipelines, ids=True, on_error="skip")
    batches = list(loader)
    assert len(batches) == len(loader) == 12 // size
    good = [n for n in range(12) if n not in (3, 8)]
    assert ids_of(batches) == ids_of(batches, "label") == good
    for batch in batches:
        for value in batch.values():
            rows = len(value[1]) - 1 if isinstance(value, tuple) else len(value)
            assert rows == len(batch["ids"])
    result = sorted(loader.skipped, key=lambda problem: problem.sample or 0)
    assert [(problem.sample, problem.field) for problem in result] == [(3, field), (8, field)]
    assert all(problem.path and problem.message for problem in result)
    assert loader.stats()["skipped"] == 2
    list(loader)
    assert len(loader.skipped) == 4


def test_what_is_left_is_as_if_the_damaged_had_not_been_there(tmp_path):
    how: dict[str, Any] = {
        "pipelines": {"image": [ops.RandomResizedCrop(8), ops.ColorJitter(0.4, 0.4)]},
        "ids": True,
    }
    damaged = Loader(write_jpeg(tmp_path / "a.beton", 12, damaged=[3, 8]), 4, on_error="skip", **how)
    good = [n for n in range(12) if n not in (3, 8)]
    assert checksum(damaged) == checksum(Loader(write_jpeg(tmp_path / "b.beton", 12), 4, indices=good, **how))


def test_a_batch_of_damaged_samples_alone_is_empty(tmp_path):
    path = write_jpeg(tmp_path / "data.beton", 6, damaged=range(2, 4))
    pipelines = {"image": [ops.RandomResizedCrop(8), ops.ColorJitter(0.5), ops.Normalize(MEAN, STD)]}
    batches = list(Loader(path, 2, pipelines=pipelines, ids=True, on_error="skip"))
    assert [batch["ids"].tolist() for batch in batches] == [[0, 1], [], [4, 5]]
    assert batches[1]["image"].shape == (0, 8, 8, 3)


def test_images_of_several_sizes_need_a_decoder_with_a_size(jpeg):
    with pytest.raises(DecodeError) as caught:
        list(Loader(jpeg, 4))
    assert "the image is 33×25 and the first is 32×24; give the pipeline a decoder with a size" in str(
        caught.value
    )
    assert (caught.value.sample, caught.value.field) == (1, "image")


def test_a_field_that_is_left_out_is_not_read(tmp_path):
    path = write_jpeg(tmp_path / "data.beton", 6, damaged=range(6))
    assert ids_of(Loader(path, 2, pipelines={"image": None}), "label") == list(range(6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size must be at least 1, not 0"),
        ({"prefetch_batches": 0}, "at least 1, not 0"),
        ({"on_error": "ignore"}, "on_error is raise or skip, not 'ignore'"),
        ({"order": "rnadom"}, "there is no order 'rnadom'"),
        ({"order": [20]}, "the order has sample 20, but there are 20 samples"),
        ({"order": "random", "seed": -1}, "seed must be from 0"),
        ({"order": "quasi_random"}, "no blocks, so quasi_random has nothing to go by; use random"),
        ({"order": orders.QuasiRandom}, r"order is an object, not a class: write QuasiRandom\(\)"),
        ({"decode": 3}, "decode is a back end"),
        ({"pipelines": {"valeu": []}}, "pipeline 'valeu' has no field"),
    ],
)
def test_wrong_options(plain, options, message):
    options = {"batch_size": 4, **options}
    with pytest.raises(OptionError, match=message):
        list(Loader(plain, **options))


# -- workers, statistics ------------------------------------------------------------------------------------


def test_workers_are_a_number_or_cores(jpeg):
    how: dict[str, Any] = {"pipelines": {"image": [ops.Resize(8)]}}
    want = checksum(Loader(jpeg, 4, **how))
    cpus = sorted(os.sched_getaffinity(0))
    assert checksum(Loader(jpeg, 4, workers=cpus[:1], **how)) == want
    assert checksum(Loader(jpeg, 4, workers=[*cpus, cpus[0]], **how)) == want
    with pytest.raises((OptionError, ValueError), match="cpu 100000 is not there"):
        Loader(jpeg, 4, workers=[100_000])
    with pytest.raises((OptionError, ValueError), match=r"threads|workers"):
        Loader(jpeg, 4, workers=-1)


@pytest.mark.parametrize("workers", [1, 3])
def test_as_many_native_threads_as_workers(jpeg, workers):
    # Threads of tests before this one may still be about to end: they are not counted.
    before = running()
    loader = Loader(jpeg, 4, workers=workers, pipelines={"image": [ops.Resize(8)]})
    assert len(running() - before) == workers
    epoch = iter(loader)
    next(epoch)
    # Those that read ahead end when they see that all is in memory.
    readers = [thread for thread in threading.enumerate() if thread.name.startswith("batchplant-readahead")]
    others = {str(thread.native_id) for thread in readers}
    assert workers <= len(running() - before - others) <= workers + PRODUCERS
    loader.close()
    assert_ended(before)


def test_statistics(jpeg):
    loader = Loader(jpeg, 4, pipelines={"image": [ops.Resize(8), ops.RandomGrayscale()]})
    assert loader.stats()["batches"] == 0
    list(loader)
    stats = loader.stats()
    assert stats["batches"] == len(loader) == 6
    for part in ("storage", "decode", "transforms", "waited", "step"):
        assert stats[part] > 0
    assert stats["device"] == 0
    assert stats["advice"] == ADVICE[stats["bottleneck"]]
    list(loader)
    assert loader.stats()["batches"] == 12
    assert loader.stats()["decode"] > stats["decode"]
    json.dumps(loader.stats())


def test_statistics_say_what_keeps_up_with_the_loop(jpeg):
    loader = Loader(jpeg, 4, pipelines={"image": [ops.Resize(8)]})
    assert loader.stats()["to keep up"] == {}
    for _ in loader:
        pass
    stats, spans = loader.stats(), bp.open(jpeg).ranges()
    assert stats["input bound"] == stats["waited"] / (stats["waited"] + stats["step"])
    needed = stats["to keep up"]
    assert needed["samples/s"] == pytest.approx(stats["samples"] / stats["step"])
    busy = stats["workers"]["decode"] + stats["workers"]["resize"] + stats["transforms"]
    assert needed["cores"] == pytest.approx(busy / stats["step"])
    assert needed["machines like this"] == math.ceil(needed["cores"] / len(os.sched_getaffinity(0)))
    # An image of 8 x 8 pixels and a number, and what they take in the file.
    assert needed["decoded MB/s"] == pytest.approx(needed["samples/s"] * (3 * 64 + 8) / 1e6)
    assert needed["stored MB/s"] == pytest.approx(
        needed["samples/s"] * spans.size.sum() / len(loader.reader) / 1e6
    )


def test_statistics_tell_decoding_from_resizing(jpeg):
    loader = Loader(jpeg, 4, workers=3, pipelines={"image": [ops.Resize(8)]})
    assert loader.stats()["workers"] == {"threads": 3, "decode": 0, "resize": 0}
    list(loader)
    loader.close()
    stats = loader.stats()
    assert stats["workers"]["decode"] > 0
    assert stats["workers"]["resize"] > 0
    # What the threads did lies within what was waited for them.
    assert stats["workers"]["decode"] + stats["workers"]["resize"] <= 3 * stats["decode"]


def test_images_that_the_engine_cannot_decode_are_counted_as_decoding(tmp_path):
    image = pytest.importorskip("PIL.Image")
    image.fromarray(np.zeros((9, 9, 3), np.uint8)).save(tmp_path / "a.bmp")
    loader = Loader(tmp_path, 1, pipelines={"image": [ops.Resize(8)]})
    list(loader)
    assert loader.stats()["workers"]["decode"] > 0
    loader.close()


@pytest.mark.parametrize(
    ("parts", "waited", "stepped", "want"),
    [
        ({"storage": 1, "decode": 9, "transforms": 1, "device": 1}, 5, 5, "decode"),
        ({"storage": 9, "decode": 1, "transforms": 1, "device": 1}, 5, 5, "storage"),
        ({"storage": 1, "decode": 1, "transforms": 9, "device": 1}, 0.1, 0, "transforms"),
        ({"storage": 1, "decode": 1, "transforms": 1, "device": 9}, 9, 1, "device"),
        ({"storage": 1, "decode": 9, "transforms": 1, "device": 1}, 0.1, 9.9, "step"),
        ({"storage": 0, "decode": 0, "transforms": 0, "device": 0}, 0, 0, "step"),
    ],
)
def test_the_bottleneck_is_named_with_advice(parts, waited, stepped, want):
    assert advise(parts, waited, stepped) == (want, ADVICE[want])


class _Clock:
    """Time that passes only where the test says so."""

    def __init__(self) -> None:
        self.now = 1.0

    def perf_counter(self) -> float:
        return self.now


def test_time_is_counted_where_it_passes(plain, monkeypatch):
    clock = _Clock()
    for module in ("executor", "epoch"):
        monkeypatch.setattr(f"batchplant.loading.{module}.time", clock)
    turn = threading.Semaphore(0)

    def slow(batch: Any) -> Any:
        # In turn with the loop below, so that nobody else's clock runs meanwhile.
        assert turn.acquire(timeout=PATIENCE)
        clock.now += 10.0
        return batch

    loader = Loader(plain, 20, indices=range(20), prefetch_batches=1, pipelines={"value": [slow]})
    epoch = iter(loader)
    turn.release()
    next(epoch)
    clock.now += 1000.0
    assert list(epoch) == []
    stats = loader.stats()
    assert stats["transforms"] == 10.0
    assert stats["storage"] == stats["decode"] == stats["device"] == 0
    assert stats["waited"] in (0.0, 10.0)
    assert stats["step"] == 1000.0
    assert stats["bottleneck"] == "step"


@pytest.mark.parametrize("words", [["plain", "", "text"], ["straße", "", "日本", "x"], ["", ""]])
def test_batches_of_text(words, tmp_path):
    schema = {"text": bp.Text(optional=True), "number": bp.Int()}
    texts = [*words, None, *reversed(words)]
    with bp.create(tmp_path / "x.jsonl", schema) as out:
        for number, text in enumerate(texts):
            out.append({"text": text, "number": number})
    [batch] = bp.Loader(tmp_path / "x.jsonl", len(texts))
    assert batch["text"] == texts
    [batch] = bp.Loader(tmp_path / "x.jsonl", len(texts), order="random")
    assert batch["text"] == [texts[number] for number in batch["number"]]


def test_text_that_is_damaged_spoils_only_its_sample(tmp_path):
    path = tmp_path / "x.msgpack"
    with bp.create(path, {"text": bp.Text(), "number": bp.Int()}) as out:
        for number in range(6):
            out.append({"text": "aé" if number in (2, 3) else "aa!", "number": number})
    content = path.read_bytes()
    # The first half of a character ends one cell, and the second half begins the next.
    first, second = content.index("aé".encode()), content.rindex("aé".encode())
    damaged = bytearray(content)
    damaged[first : first + 3] = b"a!\xc3"
    damaged[second : second + 3] = b"\xa9a!"
    path.write_bytes(damaged)
    with pytest.raises(bp.DecodeError) as raised:
        list(bp.Loader(path, 6, on_error="raise"))
    assert raised.value.sample == 2
    loader = bp.Loader(path, 6, on_error="skip")
    [batch] = loader
    assert batch["text"] == ["aa!"] * 4
    assert batch["number"].tolist() == [0, 1, 4, 5]
