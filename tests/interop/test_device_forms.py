"""Every op that has a device form does the same there, and touches nothing that is elsewhere."""

import functools
import inspect
import warnings

import numpy as np
import pytest

from batchplant import ops
from batchplant.errors import OptionError
from batchplant.ops.base import Draws, Op, Spec
from batchplant.ops.joint import JointOp, OutputInfo
from batchplant.ops.video import adapt_op
from batchplant.ops.warping import Warp

torch = pytest.importorskip("torch")

from batchplant.interop import torch as torch_ops  # noqa: E402
from batchplant.interop.gpu.on_device import DeviceTensors  # noqa: E402
from devices import DEVICES, WATCHED, OneDevice, needs_gpu  # noqa: E402
from loaders import leaves_nothing  # noqa: E402

nothing_left_behind = pytest.fixture(autouse=True)(leaves_nothing)

# Of what a sample may be. An op is tried with all that it takes; of images, also the frames of clips.
SPECS = {
    "RGB": Spec(np.dtype(np.uint8), (21, 30, 3)),
    "grey": Spec(np.dtype(np.uint8), (21, 30, 1)),
    "square": Spec(np.dtype(np.uint8), (24, 24, 3)),
    "float": Spec(np.dtype(np.float32), (21, 30, 3)),
    "half": Spec(np.dtype(np.float16), (21, 30, 3)),
    "wide": Spec(np.dtype(np.uint16), (21, 30, 3)),
    "planes": Spec(np.dtype(np.float32), (3, 21, 30), channels_first=True),
    "clip": Spec(np.dtype(np.uint8), (3, 12, 16, 3)),
    "volume": Spec(np.dtype(np.int16), (8, 9, 9)),
    "microscope": Spec(np.dtype(np.uint16), (8, 9, 9, 2)),
    "scan": Spec(np.dtype(np.float32), (8, 9, 9)),
    "sound": Spec(np.dtype(np.float32), (700,)),
    "stereo": Spec(np.dtype(np.float32), (700, 2)),
    "spectrogram": Spec(np.dtype(np.float32), (20, 33)),
    "numbers": Spec(np.dtype(np.float32), (5,)),
}
# Those whose arguments matter, or that have none by default. All others are tried as they come.
EXAMPLES = {
    "AugMix": [ops.AugMix(), ops.AugMix(3, 2, 1, 1.0, fill=9, filter="bilinear")],
    "CenterCrop": [ops.CenterCrop(11), ops.CenterCrop((9, 12), filter="bicubic")],
    "CenterCrop3d": [ops.CenterCrop3d((5, 6, 7))],
    "ColorJitter": [ops.ColorJitter(0.4, 0.4, 0.4, 0.1, p=0.8), ops.ColorJitter(hue=0.5)],
    "Convert": [ops.Convert("float32"), ops.Convert("float16")],
    "CropOrPad": [ops.CropOrPad(500), ops.CropOrPad(900, pad="repeat"), ops.CropOrPad(900, "centre")],
    "GaussianBlur": [ops.GaussianBlur(3, p=1), ops.GaussianBlur(7, (0.5, 3.0)), ops.GaussianBlur(45, p=1)],
    "GaussianNoise": [ops.GaussianNoise((5, 40), p=0.8)],
    "ImagePad": [ops.ImagePad(3, 7), ops.ImagePad((1, 2, 3, 4))],
    "JpegArtifacts": [ops.JpegArtifacts((5, 100), p=0.9)],
    "Letterbox": [ops.Letterbox((16, 40), 7), ops.Letterbox(60, filter="bilinear")],
    "MelSpectrogram": [
        ops.MelSpectrogram(8000, 128, 20), ops.MelSpectrogram(8000, 100, 16, log="db", top_db=40.0),
    ],
    "ModuleWrapper": [torch_ops.ModuleWrapper(torch.nn.Identity())],
    "Normalize": [
        ops.Normalize((120, 110, 100), (60, 55, 50), dtype) for dtype in ("float16", "float32", "float64")
    ] + [ops.Normalize(0.5, 2.0)],
    "Posterize": [ops.Posterize((1, 8), p=0.9)],
    "RandAugment": [ops.RandAugment(3, 20), ops.RandAugment(fill=(1, 2, 3), filter="bilinear")],
    "RandomAffine": [
        ops.RandomAffine(30, (0.2, 0.1), (0.7, 1.4), (-20, 20, -10, 10), fill=9),
        ops.RandomAffine(45, filter="nearest"),
    ],
    "RandomBrightness": [ops.RandomBrightness(0.5)],
    "RandomContrast": [ops.RandomContrast(0.5)],
    "RandomCrop": [ops.RandomCrop((9, 11)), ops.RandomCrop(10, 2, 7), ops.RandomCrop(40, pad_if_needed=True)],
    "RandomCrop3d": [ops.RandomCrop3d((5, 6, 7))],
    "RandomErasing": [
        ops.RandomErasing(0.9), ops.RandomErasing(0.9, value=3), ops.RandomErasing(0.9, value="random"),
    ],
    "RandomHue": [ops.RandomHue(0.3)],
    "RandomIntensity": [ops.RandomIntensity(0.3, 5.0, (0.5, 2.0), 3.0, 0.8)],
    "RandomPerspective": [ops.RandomPerspective(0.5, 0.9), ops.RandomPerspective(0.3, 1, filter="nearest")],
    "RandomResizedCrop": [
        ops.RandomResizedCrop((16, 40), filter=text) for text in ("area", "bilinear", "bicubic", "nearest")
    ],
    "RandomRotation": [ops.RandomRotation(90, fill=(9, 8, 7)), ops.RandomRotation(20, filter="nearest")],
    "RandomSaturation": [ops.RandomSaturation(0.5)],
    "RandomTranslate": [ops.RandomTranslate(3, (1, 2, 3)), ops.RandomTranslate(4)],
    "Resize": [ops.Resize((33, 14)), ops.Resize(shorter=12, filter="bilinear"), ops.Resize(fit=(40, 40))],
    "SpecAugment": [ops.SpecAugment(10, 6), ops.SpecAugment(10, 6, value="mean")],
    "Spectrogram": [ops.Spectrogram(128), ops.Spectrogram(64, power=1, center=False, log="natural")],
    "TimeShift": [ops.TimeShift(0.5, 0.8), ops.TimeShift(40, wrap=False)],
    "ImageDecoder": [],  # What the decoders have in common.
    "ToDevice": [],  # It names a device of its own.
    "TrivialAugment": [ops.TrivialAugment(), ops.TrivialAugment(fill=5, filter="bilinear")],
}  # fmt: skip
# In levels. A blend that ends just below one may fall to the next, and what follows may double that.
FARTHEST = {"ColorJitter": 3, "AugMix": 3}
JOINT = [
    (ops.MixUp(0.8, num_classes=4), "RGB"), (ops.MixUp(0.8, num_classes=4, same=True, p=0.7), "float"),
    (ops.MixUp(0.8, num_classes=4), "wide"), (ops.CutMix(num_classes=4), "wide"),
    (ops.CutMix(num_classes=4), "float"), (ops.CutMix(num_classes=4, masks="mask", p=0.7), "RGB"),
]  # fmt: skip


def with_device_forms():
    """The kinds of ops that have one, by name."""
    result = {}
    for module in (ops, torch_ops):
        for name in module.__all__:
            kind = getattr(module, name)
            if inspect.isclass(kind) and issubclass(kind, Op) and kind.on_device is not None:
                result[name] = kind
    return result


def examples():
    for name, kind in with_device_forms().items():
        if issubclass(kind, JointOp):
            continue
        if name not in EXAMPLES and any(
            parameter.default is parameter.empty and parameter.kind is not parameter.VAR_POSITIONAL
            for parameter in inspect.signature(kind).parameters.values()
        ):
            pytest.fail(f"{name} has a device form: name arguments for it in EXAMPLES")
        for op in EXAMPLES.get(name) or ([kind()] if name not in EXAMPLES else []):
            yield pytest.param(op, id=repr(op)[:60])


def taken_by(op):
    """(name, the op as the plan has it, spec, what comes out) of all that an op takes."""
    for name, spec in SPECS.items():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                one, out = adapt_op(op, spec)
        except (OptionError, ValueError):
            continue
        if one.device_form is None:
            continue
        try:
            yield name, one, spec, out
        finally:
            one.close()


def batch_of(spec, count):
    rng = np.random.default_rng(7)
    shape = (count, *spec.shape)
    if spec.dtype.kind == "f":
        return rng.normal(size=shape).astype(spec.dtype)
    limits = np.iinfo(spec.dtype)
    # Flat places and steps, and not all levels: histograms are what they are of images.
    result = rng.integers(max(limits.min, -900), min(limits.max, 3000) + 1, shape).astype(spec.dtype)
    result[:, 2:, : shape[2] // 2] = result[:, 2:3, : shape[2] // 2] // 3
    return result


def draws_of(count, key="x"):
    ids = np.arange(count)
    return ids, Draws(1, 2, ids, key)


def compare(name, op, got, want):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), name
    if not want.size:
        return
    with np.errstate(invalid="ignore"):
        away = np.abs(got.astype(np.float64) - want)
    if want.dtype.kind == "f":
        worst = np.nanmax(np.abs(want)) * (2e-3 if want.dtype == np.float16 else 1e-4)
        assert np.array_equal(np.isnan(got), np.isnan(want)), name
        assert np.nanmax(away) <= worst + 1e-6, name
        return
    kind = getattr(op, "op", op)
    assert (away <= 1).mean() > 0.99, name
    if isinstance(kind, Warp):
        # A pixel that lies just at the edge falls to either side, by the last bit of its position.
        away = away[away <= 2] if (away > 2).mean() < 1e-3 else away
    assert away.max() <= FARTHEST.get(type(kind).__name__, 2), name


def test_every_joint_op_with_a_device_form_is_tried():
    kinds = {name for name, kind in with_device_forms().items() if issubclass(kind, JointOp)}
    assert kinds == {type(op).__name__ for op, _ in JOINT}
    assert len(with_device_forms()) > 50
    assert set(EXAMPLES) <= set(with_device_forms())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("op", list(examples()))
def test_a_device_gives_what_the_cpu_gives(op, device):
    tensors, tried = DeviceTensors(torch.device(device)), 0
    for name, item, spec, _ in taken_by(op):
        for count in (0, 4):
            batch = batch_of(spec, count)
            ids, draws = draws_of(count)
            want = item.run(batch.copy(), ids, draws)
            sent = tensors.send(batch.copy())
            got = item.device_form(sent, *draws_of(count), tensors)
            assert got.device.type == device
            want = want.numpy() if isinstance(want, torch.Tensor) else want
            compare(name, item, got.cpu().numpy(), want)
            tried += 1
    assert tried, f"{op!r} takes none of SPECS"


@pytest.mark.parametrize("op", list(examples()))
def test_a_device_form_stays_on_the_device(op):
    """No tensor of the CPU is mixed in, nothing is read back, and what comes out is what the plan says."""
    tensors = DeviceTensors(WATCHED)
    for name, item, spec, out in taken_by(op):
        # Their tensors meet the same others.
        if name in ("grey", "square", "half", "scan", "stereo"):
            continue
        with OneDevice():
            got = item.device_form(tensors.send(batch_of(spec, 2)), *draws_of(2), tensors)
        assert got.device == WATCHED, name
        assert tuple(got.shape[1:]) == tuple(out.shape), name
        assert torch_ops.numpy_dtype(got.dtype) == out.dtype, name


@pytest.fixture
def batches():
    def make(kind, count=6):
        rng = np.random.default_rng(3)
        return {
            "image": batch_of(SPECS[kind], count), "label": rng.integers(0, 4, count),
            "mask": rng.integers(0, 9, (count, 21, 30, 1)).astype(np.uint8),
        }  # fmt: skip

    return make


def joined(op, kind):
    """The op as a plan has it."""
    specs = {
        "image": SPECS[kind], "label": Spec(np.dtype(np.int64)), "mask": Spec(np.dtype(np.uint8), (21, 30, 1))
    }  # fmt: skip
    one = op.for_loader()
    one.infer_all(OutputInfo(specs, {}, {}, {}))
    return one


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("op", "kind"), JOINT, ids=lambda item: str(item)[:40])
def test_joint_ops_give_the_same(op, kind, device, batches):
    one, tensors = joined(op, kind), DeviceTensors(torch.device(device))
    batch = {name: value for name, value in batches(kind).items() if name in one.inputs}
    want = one.run({name: value.copy() for name, value in batch.items()}, *draws_of(6))
    given = {name: tensors.send(value) if name == "image" else value for name, value in batch.items()}
    got = one.device_form(given, *draws_of(6), tensors)
    assert set(got) == set(want)
    assert got["image"].device.type == device
    for name, value in got.items():
        compare(name, one, value.cpu().numpy() if isinstance(value, torch.Tensor) else value, want[name])


@pytest.mark.parametrize(("op", "kind"), JOINT, ids=lambda item: str(item)[:40])
def test_joint_ops_stay_on_the_device(op, kind, batches):
    one, tensors = joined(op, kind), DeviceTensors(WATCHED)
    batch = {name: value for name, value in batches(kind).items() if name in one.inputs}
    with OneDevice():
        got = one.device_form({**batch, "image": tensors.send(batch["image"])}, *draws_of(6), tensors)
    assert got["image"].device == WATCHED
    assert isinstance(got["label"], np.ndarray)


class Wrong(ops.RandomHorizontalFlip):
    """Does with a device what only memory stands."""

    def __init__(self, mistake):
        self.mistake = mistake

    def on_device(self, batch, ids, draws, tensors):
        return self.mistake(batch, tensors)


MISTAKES = {
    "a table of the CPU": lambda batch, tensors: batch * torch.arange(3),
    "an index of the CPU": lambda batch, tensors: batch[torch.arange(len(batch))],
    "a value of the CPU": lambda batch, tensors: batch.index_put((batch[:, 0, 0, 0].long(),), torch.ones(3)),
    "a matrix of the CPU": lambda batch, tensors: batch.float() @ torch.eye(3),
    "a look at it": lambda batch, tensors: batch if batch.sum() > 0 else -batch,
    "numpy": lambda batch, tensors: torch.from_numpy(batch.numpy()),
    "wide numbers": lambda batch, tensors: batch.to(torch.uint16).roll(1),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_seen(mistake):
    """Each of these works where the device is the CPU."""
    op = Wrong(MISTAKES[mistake])
    op.on_device(torch.ones(3, 4, 5, 3), *draws_of(3), DeviceTensors(torch.device("cpu")))
    with pytest.raises((AssertionError, RuntimeError, TypeError, NotImplementedError)), OneDevice():
        op.on_device(torch.empty(3, 4, 5, 3, device=WATCHED), *draws_of(3), DeviceTensors(WATCHED))


@needs_gpu
def test_rounding_of_products_does_not_move_pixels():
    """TF32, which trainers switch on: positions and spectra are not computed with it."""
    tensors = DeviceTensors(torch.device("cuda"))
    spec = Spec(np.dtype(np.uint8), (640, 700, 3))
    cases = [
        (ops.RandomRotation(90, filter="nearest"), spec),
        (ops.MelSpectrogram(8000, 128, 20), SPECS["sound"]),
    ]
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        for op, case in cases:
            batch = batch_of(case, 2)
            got = op.device_form(tensors.send(batch.copy()), *draws_of(2), tensors).cpu().numpy()
            want = op.run(batch, *draws_of(2)).astype(np.float64)
            # A pixel that lies between two may be either, wherever it is computed.
            assert (np.abs(got - want) <= 1e-4 * np.abs(want).max()).mean() > 0.999
            op.close()
    finally:
        torch.set_float32_matmul_precision(before)


@needs_gpu
@pytest.mark.parametrize("count", [1, 64, 257])
def test_large_batches(count):
    """More than one block of any kernel, and sizes that no block divides."""
    tensors = DeviceTensors(torch.device("cuda"))
    spec = Spec(np.dtype(np.uint8), (67, 131, 3))
    for op in (
        ops.RandAugment(),
        ops.ColorJitter(0.4, 0.4, 0.4, 0.1),
        ops.RandomResizedCrop(48),
        ops.Equalize(p=1),
    ):
        batch = batch_of(spec, count)
        got = op.device_form(tensors.send(batch.copy()), *draws_of(count), tensors).cpu().numpy()
        compare(repr(op), op, got, op.run(batch, *draws_of(count)))


def test_one_device_lets_copies_and_numbers_pass():
    there = torch.ones(3, device=WATCHED)
    with OneDevice():
        assert (there * torch.tensor(2.0)).device == WATCHED
        assert torch.arange(3).to(WATCHED).device == WATCHED
        there.copy_(torch.arange(3))
        assert functools.reduce(torch.add, [there] * 3).device == WATCHED
