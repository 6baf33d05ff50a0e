"""Missing values filled, and what is fitted to the data: Fill, Normalize."""

from __future__ import annotations

import warnings
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.errors import DamagedError, OptionError
from batchplant.ops import Draws, Spec

AGES = [31, None, 40, 22, None, 31, 70]
WEIGHTS = [1.5, float("nan"), None, 3.0, 8.0, 1.5, None]
TOWNS = ["Ulm", None, "Bonn", "Ulm", None, "Bonn", None]


@pytest.fixture(scope="module")
def people(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("missing") / "people.jsonl"
    fields = {
        "age": bp.Int("int32", optional=True),
        "weight": bp.Float("float32", optional=True),
        "town": bp.Text(optional=True),
        "point": bp.Tensor("float32", (2,)),
    }
    with bp.create(path, fields) as out:
        for number, (age, weight, town) in enumerate(zip(AGES, WEIGHTS, TOWNS, strict=True)):
            point = np.array([number, 5.0], dtype=np.float32)
            out.append({"age": age, "weight": weight, "town": town, "point": point})
    return path


def one_batch(path: Path, pipelines: Any) -> Any:
    with closing(bp.Loader(path, 7, pipelines={"point": None, **pipelines})) as loader:
        return next(iter(loader))


def run(op: ops.Op, batch: Any) -> Any:
    ids = np.arange(len(batch))
    return op.run(batch, ids, Draws(0, 0, ids, "op"))


# -- Fill ----------------------------------------------------------------------------------------------------


def test_missing_values_are_filled_and_the_mask_stays(people):
    batch = one_batch(people, {"age": [ops.Fill(-1)], "weight": [ops.Fill(0.5)], "town": [ops.Fill("?")]})
    assert batch["age"].tolist() == [31, -1, 40, 22, -1, 31, 70]
    assert batch["age"].dtype == np.int32
    assert batch["age_mask"].tolist() == [age is not None for age in AGES]
    assert batch["weight"].tolist() == [1.5, 0.5, 0.5, 3.0, 8.0, 1.5, 0.5]
    assert batch["town"] == ["Ulm", "?", "Bonn", "Ulm", "?", "Bonn", "?"]
    more = one_batch(people, {"age": [ops.Fill(0), ops.Convert("float32")], "age_mask": None})
    assert more["age"].dtype == np.float32
    assert "age_mask" not in more


@pytest.mark.parametrize(
    ("field", "how", "value"),
    [
        ("age", "mean", 39), ("age", "median", 31), ("age", "most_frequent", 31), ("age", "min", 22),
        ("age", "max", 70), ("weight", "mean", 3.5), ("weight", "median", 2.25), ("weight", "min", 1.5),
        ("weight", "most_frequent", 1.5), ("town", "most_frequent", "Bonn"),
    ],
)  # fmt: skip
def test_what_is_filled_in_is_found_in_the_data(people, tmp_path, field, how, value):
    fitted = ops.Fill(how).fit(bp.open(people), field)
    assert fitted.value == value
    assert type(fitted.value) is type(value)
    fitted.save(tmp_path / "fill.json")
    assert repr(ops.Fill.load(tmp_path / "fill.json")) == repr(fitted) == f"Fill(value={value!r})"


def test_errors_of_fill(people, tmp_path):
    reader = bp.open(people)
    with pytest.raises(OptionError, match=r'Fill\("mean"\)\.fit\(reader, field\) gives one'):
        one_batch(people, {"age": [ops.Fill("mean")]})
    for field, value in (("age", 0.5), ("age", "zero"), ("age", 2**40), ("town", 3), ("weight", None)):
        with pytest.raises(OptionError):
            one_batch(people, {field: [ops.Fill(value)]})
    with pytest.raises(OptionError, match="did you mean age"):
        ops.Fill("mean").fit(reader, "agee")
    with pytest.raises(OptionError, match="the mean is of numbers"):
        ops.Fill("mean").fit(reader, "town")
    with pytest.raises(OptionError, match="has its value already"):
        ops.Fill(3).fit(reader, "age")
    (tmp_path / "no.json").write_text("[]")
    with pytest.raises(DamagedError):
        ops.Fill.load(tmp_path / "no.json")


def test_columns_with_missing_values_are_arrays(people):
    for reader in (bp.open(people), bp.open(people)[0:7]):
        ages = reader.read(range(7), ["age", "weight"])
        assert ages["age"].mask.tolist() == [age is not None for age in AGES]
        assert np.asarray(ages["age"]).tolist() == [age or 0 for age in AGES]
        assert np.isnan(ages["weight"].values).tolist() == [False, True, True, False, False, False, True]


# -- Normalize -----------------------------------------------------------------------------------------------


def test_numbers_are_normalized_by_what_was_found(people, tmp_path):
    reader = bp.open(people)
    there = np.array([age for age in AGES if age is not None], dtype=float)
    op = ops.Normalize.fit(reader, "age")
    assert np.allclose([op.mean[0], op.std[0]], [there.mean(), there.std()])
    batch = one_batch(people, {"age": [ops.Fill(39), op]})
    assert batch["age"].dtype == np.float32
    assert np.allclose(batch["age"][0], (31 - there.mean()) / there.std())
    # NaN counts no more than what is missing.
    weight = ops.Normalize.fit(reader, "weight")
    assert np.allclose([weight.mean[0], weight.std[0]], [3.5, np.std([1.5, 3, 8, 1.5])])
    point = ops.Normalize.fit(reader, "point", dtype="float64")
    # What never varies is only moved.
    assert np.allclose([point.mean, point.std], [[3, 5], [2, 1]])
    assert ops.Normalize.fit(reader, "point", each=False).mean.tolist() == [4.0]
    point.save(tmp_path / "point.json")
    assert repr(ops.Normalize.load(tmp_path / "point.json")) == repr(point)
    done = run(point, np.array([[3.0, 5.0], [5.0, 6.0]], dtype=np.float32))
    assert done.tolist() == [[0, 0], [1, 1]]
    with pytest.raises(OptionError, match="not of Text"):
        ops.Normalize.fit(reader, "town")
    with pytest.raises(OptionError, match="did you mean point"):
        ops.Normalize.fit(reader, "pont")


def test_moments_of_many_parts_are_those_of_all():
    from batchplant.ops.values import Moments

    values = np.random.default_rng(0).normal(1e6, 3, (1000, 2))
    values[::7, 1] = np.nan
    moments = Moments()
    for start in range(0, 1000, 130):
        moments.add(values[start : start + 130])
    mean, std = moments.mean_and_std(None, "x")
    assert np.allclose(mean, np.nanmean(values, axis=0), rtol=1e-12)
    assert np.allclose(std, np.nanstd(values, axis=0), rtol=1e-9)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_means_of_images(tmp_path, mode):
    rng = np.random.default_rng(1)
    shapes = [(9, 7), (4, 12), (6, 6)]
    images = [rng.integers(0, 256, (*shape, 3), dtype=np.uint8) for shape in shapes]
    if mode == "L":
        images = [image[..., 0] for image in images]
    with bp.create(tmp_path / "a.msgpack", {"image": bp.Image("png", mode=mode)}) as out:
        for image in images:
            out.append({"image": image})
    op = ops.Normalize.fit(bp.open(tmp_path / "a.msgpack"), "image")
    levels = np.concatenate([image.reshape(-1, 3 if mode == "RGB" else 1) for image in images]).astype(float)
    assert np.allclose(op.mean, levels.mean(axis=0))
    assert np.allclose(op.std, levels.std(axis=0))
    first = ops.Normalize.fit(bp.open(tmp_path / "a.msgpack"), "image", samples=1)
    assert np.allclose(first.mean, images[0].reshape(-1, len(op.mean)).mean(axis=0))
    assert f"mean={op.mean.tolist()}" in repr(op)


def test_means_below_1_are_told():
    image = Spec(np.dtype(np.uint8), (8, 8, 3))
    clip = Spec(np.dtype(np.uint8), (4, 8, 8, 3))
    imagenet = ops.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    for spec in (image, clip):
        with pytest.warns(UserWarning, match=r"\(123\.675, 116\.28, 103\.53\), \(58\.395, 57\.12, 57\.375\)"):
            assert imagenet.infer(spec).shape == spec.shape
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ops.Normalize([0] * 3, [255] * 3).infer(image)
        imagenet.infer(Spec(np.dtype(np.float32), (8, 8, 3)))


def test_channels_first_images_are_told():
    for op in (
        ops.RandomGrayscale(),
        ops.Normalize([1] * 3, [1] * 3),
        ops.ChannelsFirst(),
        ops.RandomTranslate(3),
    ):
        with pytest.raises(OptionError, match=r"looks like \(channels, height, width\).*moveaxis"):
            op.infer(Spec(np.dtype(np.uint8), (3, 32, 32)))


# -- names of classes, and arguments of another loader -------------------------------------------------------


def test_a_class_is_called_by_its_name(tmp_path):
    fields = {"label": bp.Int(names=("cat", "dog", "cow"))}
    with bp.create(tmp_path / "a.beton", fields) as out:
        for label in ("dog", 0, np.str_("cow"), "cat"):
            out.append({"label": label})
    reader = bp.open(tmp_path / "a.beton")
    assert np.asarray(reader.read(range(4))["label"]).tolist() == [1, 0, 2, 0]
    assert len(reader.filter('label == "cat"')) == 2
    with (
        pytest.raises(bp.SchemaError, match=r"no class 'caat' \(did you mean cat\?\); the classes are: cat"),
        bp.create(tmp_path / "b.beton", fields) as out,
    ):
        out.append({"label": "caat"})
    with (
        pytest.raises(bp.SchemaError, match="without names of classes needs a whole number, not 'cat'"),
        bp.create(tmp_path / "c.beton", {"label": bp.Int()}) as out,
    ):
        out.append({"label": "cat"})
    with (
        pytest.raises(bp.SchemaError, match=r"has labl besides \(did you mean label\?\)"),
        bp.create(tmp_path / "d.beton", fields) as out,
    ):
        out.append({"labl": 1})


@pytest.mark.parametrize(
    ("name", "called"),
    [
        ("shuffle", 'order="random"'), ("num_workers", "workers="), ("pin_memory", 'device="cuda"'),
        ("collate_fn", "pipelines="), ("sampler", "order="), ("prefetch_factor", "prefetch_batches="),
        ("persistent_workers", "threads stay"), ("timeout", "bp.open"), ("transform", "pipelines="),
    ],
)  # fmt: skip
def test_arguments_of_a_dataloader_are_told_what_they_are_called(people, name, called):
    with pytest.raises(TypeError, match=rf"'{name}', which is one of torch's DataLoader: .*{called}"):
        bp.Loader(people, 2, **{name: 1})
    with pytest.raises(TypeError, match=r"'prefetch_batch' \(did you mean prefetch_batches\?\)"):
        bp.Loader(people, 2, prefetch_batch=1)


def test_images_with_channels_first_are_told_when_they_are_written(tmp_path):
    with (
        pytest.raises(bp.SchemaError, match=r"\(3, 32, 40\) looks like \(channels, height, width\)"),
        bp.create(tmp_path / "a.beton", {"image": bp.Image()}) as out,
    ):
        out.append({"image": np.zeros((3, 32, 40), np.uint8)})
