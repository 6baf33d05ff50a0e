"""Plans: what a batch will hold, what the engine does, and one clear sentence where that cannot be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.codecs.media import image
from batchplant.errors import OptionError
from batchplant.loading.plan import Pipe, Plan, make_plan, spec_of
from batchplant.ops import Spec
from batchplant.testing.cases import EXAMPLE_FIELDS
from loaders import pixels, smooth, write, write_jpeg, write_raw

MEAN, STD = [120.0, 115.0, 100.0], [60.0, 55.0, 50.0]


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    return bp.open(write_raw(tmp_path_factory.mktemp("plan") / "raw.beton", 4))


@pytest.fixture(scope="module")
def ordinary(tmp_path_factory):
    """One field of every kind."""
    path = tmp_path_factory.mktemp("plan") / "ordinary.npz"
    schema = {name: field for name, (field, _) in EXAMPLE_FIELDS.items()}
    samples = [{name: value(n) for name, (_, value) in EXAMPLE_FIELDS.items()} for n in range(3)]
    return bp.open(write(path, schema, samples))


def output(plan: Plan, name: str) -> Any:
    [result] = [item for item in plan.outputs if item.name == name]
    return result


# -- what comes out -----------------------------------------------------------------------------------------


def test_fields_come_as_they_are_without_pipelines(ordinary):
    plan = make_plan(ordinary, {"image": [ops.Resize(4)]})
    actual = {item.name: item.spec for item in plan.outputs}
    assert actual == {
        "image": Spec(np.dtype(np.uint8), (4, 4, 3)),
        "number": Spec(np.dtype(np.int64)),
        "real": Spec(np.dtype(np.float32)),
        "flag": Spec(np.dtype(np.bool_)),
        "blob": Spec(np.dtype(np.uint8), (None,), ragged=True),
        "text": Spec(None),
        "meta": Spec(None),
        "when": Spec(np.dtype(np.int64)),
        "span": Spec(np.dtype(np.int64)),
        "price": Spec(None),
        "id": Spec(None),
        "tags": Spec(None),
        "record": Spec(None),
        "fixed": Spec(np.dtype(np.int16), (2, 3)),
        "varied": Spec(np.dtype(np.float32), (None, 2), ragged=True),
        "audio": Spec(np.dtype(np.uint8), (None,), ragged=True),
        "video": Spec(np.dtype(np.uint8), (None,), ragged=True),
        "counts": Spec(None, sparse=EXAMPLE_FIELDS["counts"][0]),
    }
    assert plan.columns == (
        "audio", "video", "number", "real", "flag", "blob", "text", "meta", "when", "span",
        "price", "id", "tags", "counts", "record", "fixed", "varied",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("field", "spec"),
    [
        (bp.Int(optional=True), Spec(np.dtype("int64"))),
        (bp.Bytes(optional=True), Spec(None)),
        (bp.Time("D", optional=True), Spec(np.dtype("int64"))),
        (bp.List(bp.Duration("s")), Spec(np.dtype("int64"), (None,), ragged=True)),
        (bp.List(bp.Bool()), Spec(np.dtype("bool"), (None,), ragged=True)),
        (bp.List(bp.Int(optional=True)), Spec(None)),
        (bp.List(bp.Int(), optional=True), Spec(None)),
        (bp.Tensor("int8", (None, None)), Spec(None)),
        (bp.Tensor("int8", (None, 2), optional=True), Spec(None)),
        (bp.Audio(), Spec(np.dtype(np.uint8), (None,), ragged=True)),
    ],
)
def test_spec_of_odd_fields(field, spec):
    assert spec_of(field) == spec


def test_none_leaves_a_field_out_and_the_order_is_that_of_the_schema(ordinary):
    names = list(EXAMPLE_FIELDS)
    plan = make_plan(
        ordinary, {**dict.fromkeys(names), "varied": [ops.Pad(3)], "number": [], "more": Pipe("number")}
    )
    assert [item.name for item in plan.outputs] == ["number", "varied", "more"]
    assert plan.columns == ("number", "varied")
    assert output(plan, "varied").spec == Spec(np.dtype(np.float32), (3, 2))


def test_views_of_one_field(reader):
    pipelines = {
        "image": [ops.RandomResizedCrop(8)],
        "small": Pipe("image", [ops.RandomResizedCrop(4)]),
        "same": Pipe("image", [ops.RandomResizedCrop(8, share="view")]),
        "again": Pipe("image", [ops.RandomResizedCrop(6, share="view")]),
    }
    plan = make_plan(reader, pipelines)
    keys = {item.name: item.image.decoder.key for item in plan.outputs if item.image}
    assert {item.name: item.field for item in plan.outputs}["small"] == "image"
    assert keys["same"] == keys["again"] == "view"
    assert len({keys["image"], keys["small"], keys["same"]}) == 3


def test_every_step_draws_by_a_name_of_its_own(reader):
    steps = [ops.Resize(8), ops.RandomGrayscale(), ops.RandomHorizontalFlip(), ops.RandomHorizontalFlip()]
    result = output(make_plan(reader, {"image": steps, "other": Pipe("image", steps)}), "image")
    other = output(make_plan(reader, {"image": steps, "other": Pipe("image", steps)}), "other")
    keys = [step.key for item in (result, other) for step in (item.image.decoder, *item.steps)]
    assert len(set(keys)) == len(keys) == 8


def test_a_plan_can_be_read(reader):
    text = str(make_plan(reader, {"image": [ops.Resize(8), ops.ChannelsFirst(), np.copy], "label": None}))
    decoder = "Resize(size=(8, 8))"
    assert text.startswith(f"image: image → engine({decoder}, ChannelsFirst()) → Function(")
    assert text.endswith("→ uint8 (3, 8, 8) with channels first")


# -- what the engine does -----------------------------------------------------------------------------------

FLIP, NORMALIZE, FIRST = ops.RandomHorizontalFlip(), ops.Normalize(MEAN, STD), ops.ChannelsFirst()
FUSED = {
    "nothing": ([], ""),
    "decoder": ([ops.Resize(8)], ""),
    "flip": ([ops.Resize(8), FLIP], "F"),
    "flip without decoder": ([FLIP], "F"),
    "all": ([ops.Resize(8), FLIP, NORMALIZE, FIRST], "FNC"),
    "float16": ([ops.Resize(8), ops.Normalize(MEAN, STD, "float16")], "N"),
    "float64 is not the engine's": (
        [ops.Resize(8), FLIP, ops.Normalize(MEAN, STD, "float64")],
        "F+Normalize",
    ),
    "no flip after normalize": ([ops.Resize(8), NORMALIZE, FLIP], "N+RandomHorizontalFlip"),
    "two flips": ([ops.Resize(8), FLIP, FLIP], "F"),
    "crops": ([ops.Resize(8), ops.CenterCrop(6), ops.RandomCrop(4), ops.ImagePad(1)], "F"),
    "one resample": ([ops.Resize(8), FLIP, ops.Resize(4)], "F+Resize"),
    "no border resampled": ([ops.ImagePad(2), ops.Resize(4)], "F+Resize"),
    "one colour": ([ops.Resize(8), ops.ImagePad(1), ops.ImagePad(1, fill=9)], "F+ImagePad"),
    "warps": ([ops.Resize(8), ops.RandomRotation(9), ops.RandomAffine(9), FIRST], "+_Joined+ChannelsFirst"),
    "behind another op": (
        [ops.Resize(8), ops.RandomErasing(), FLIP, FIRST],
        "+RandomErasing+RandomHorizontalFlip+ChannelsFirst",
    ),
    "channels without normalize": ([ops.Resize(8), FIRST], "C"),
    "function last": ([ops.Resize(8), FIRST, np.copy], "C+Function"),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_the_engine_takes_over(reader, name):
    steps, want = FUSED[name]
    result = output(make_plan(reader, {"image": steps}), "image")
    stage = result.image
    taken = (
        ("F" if len(stage.steps) > 1 else "")
        + ("N" if stage.target.normalize else "")
        + ("C" if stage.target.channels_first else "")
    )
    assert taken + "".join(f"+{type(step.op).__name__}" for step in result.steps) == want


class _MyFlip(ops.RandomHorizontalFlip):
    def run(self, batch: Any, ids: Any, draws: Any) -> Any:
        return batch[:, ::-1]


def test_a_subclass_runs_its_own_code(reader):
    result = output(make_plan(reader, {"image": [ops.Resize(8), _MyFlip()]}), "image")
    assert len(result.image.steps) == 1
    assert isinstance(result.steps[0].op, _MyFlip)


@pytest.mark.parametrize(
    ("mode", "channels"),
    [("L", 1), ("LA", 2), ("RGB", 3), ("RGBA", 4), (None, 3), ("I;16", None), ("1", None)],
)
def test_modes(tmp_path, mode, channels):
    path = write(tmp_path / "data.npz", {"image": bp.Image(mode=mode)}, [])
    if channels is None:
        with pytest.raises(
            OptionError, match="cannot be decoded into a batch; leave it out or convert it first"
        ):
            make_plan(bp.open(path), {"image": [ops.Resize(8)]})
    else:
        assert make_plan(bp.open(path), {"image": [ops.Resize(8)]}).outputs[0].spec.shape == (8, 8, channels)


# -- the size of images without one -----------------------------------------------------------------------


def test_the_first_image_that_tells_its_size_does_so(tmp_path):
    good = image.encode(smooth(1, 20, 30), "jpeg")
    path = write(
        tmp_path / "data.npz",
        {"image": bp.Image(mode=None)},
        ({"image": item} for item in (b"no image", good)),
    )
    assert make_plan(bp.open(path)).outputs[0].spec.shape == (20, 30, 3)


def test_an_empty_dataset_has_a_plan(tmp_path):
    path = write(tmp_path / "data.beton", {"image": bp.Image(), "label": bp.Int()}, [])
    assert [item.name for item in make_plan(bp.open(path)).outputs] == ["image", "label"]


def test_the_size_of_raw_images_is_theirs(tmp_path):
    path = write(tmp_path / "data.beton", {"image": bp.Image()}, [{"image": pixels(1, 5, 9)}])
    assert make_plan(bp.open(path)).outputs[0].spec.shape == (5, 9, 3)


# -- what cannot be -----------------------------------------------------------------------------------------

WRONG: dict[str, tuple[Any, str | None, str]] = {
    "unknown field": (
        {"imgae": [ops.Resize(8)]}, None,
        "pipeline 'imgae' has no field (did you mean image?); name one with Pipe(field, ops); there are",
    ),
    "unknown field left out": ({"imgae": None}, None, "pipeline 'imgae' has no field"),
    "pipe of an unknown field": (
        {"view": Pipe("imgae", [])}, None,
        "pipeline 'view': there is no field 'imgae' (did you mean image?); the fields are: image, label",
    ),
    "a class": (
        {"image": [ops.Resize(8), ops.RandomErasing]}, "image", "write RandomErasing() with parentheses"
    ),
    "a class as decoder": ({"image": [ops.Decode]}, "image", "write Decode() with parentheses"),
    "no list": ({"image": ops.Resize(8)}, "image", "a pipeline is a list of ops, not Resize("),
    "no list in a pipe": ({"view": Pipe("image", ops.Resize(8))}, "view", "a pipeline is a list of ops"),
    "text": ({"label": "squeeze"}, "label", "a pipeline is a list of ops, not 'squeeze'"),
    "a number": ({"label": [4]}, "label", "a pipeline holds ops and functions, not 4"),
    "decoder of a label": (
        {"label": [ops.Resize(4)]}, "label", "Resize needs images (height, width, channels), not int64 ()",
    ),
    "unequal images": (
        {"image": [ops.RandomRotation(9, expand=True)]}, "image",
        'images of unequal sizes: put Collate("pad")',
    ),
    "image op on a label": (
        {"label": [ops.RandomHorizontalFlip()]}, "label",
        "needs images (height, width, channels), not int64 ()",
    ),
    "normalize after channels first": (
        {"image": [ops.Resize(8), ops.ChannelsFirst(), ops.Normalize(MEAN, STD)]}, "image",
        "Normalize needs images (height, width, channels), not uint8 (3, 8, 8) with channels first",
    ),
    "flip after channels first": (
        {"image": [ops.Resize(3), ops.ChannelsFirst(), ops.RandomHorizontalFlip()]}, "image",
        "RandomHorizontalFlip needs images",
    ),
    "channels first twice": ({"image": [ops.ChannelsFirst()] * 2}, "image", "ChannelsFirst needs images"),
    "colours after normalize": (
        {"image": [ops.Normalize(MEAN, STD), ops.RandomBrightness(0.1)]}, "image",
        "RandomBrightness needs uint8 images, not float32 (12, 16, 3)",
    ),
    "crop larger than the image": (
        {"image": [ops.Resize(8), ops.RandomCrop(9)]}, "image",
        "RandomCrop of (9, 9) does not fit images of 8×8",
    ),
    "pad of one number": ({"label": [ops.Pad()]}, "label", "Pad needs values whose first size varies"),
    "nothing left": ({"image": None, "label": None}, None, "every field is left out; a batch would be empty"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_wrong_pipelines_are_refused_in_one_sentence(reader, name):
    pipelines, field, message = WRONG[name]
    with pytest.raises(OptionError) as caught:
        make_plan(reader, pipelines)
    assert message in caught.value.message
    assert caught.value.field == field
    assert "\n" not in str(caught.value)
    assert len(caught.value.message) < 200
    if field is not None:
        assert caught.value.path == reader.path


def test_images_of_varying_sizes_need_a_size(tmp_path):
    reader = bp.open(write_jpeg(tmp_path / "data.beton", 3))
    # Only reading shows that they vary; the Loader's error is tested there.
    assert make_plan(reader).outputs[0].spec.shape == (24, 32, 3)
