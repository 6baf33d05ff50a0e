"""Loaders that finish on a device give what those without one give: images and all that belongs to them."""

import functools
import io
import warnings
from contextlib import closing

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops

torch = pytest.importorskip("torch")
image = pytest.importorskip("PIL.Image")

from devices import GPU, WATCHED, here, same, watch  # noqa: E402
from loaders import leaves_nothing  # noqa: E402

nothing_left_behind = pytest.fixture(autouse=True)(leaves_nothing)

COUNT, BATCH = 11, 4
SCHEMA = {
    "image": bp.Image(), "mask": bp.Image(mode="L", mask=True),
    "boxes": bp.Boxes("xywh", labels=("kinds", "pose", "outline")), "kinds": bp.Tensor("int64", (None,)),
    "pose": bp.Keypoints(2, swap=[(0, 1)]), "outline": bp.Polygons(),
    "class": bp.Int(names=("cat", "dog", "cow")),
    "soft": bp.Tensor("float64", (3,)), "clip": bp.Tensor("uint8", (3, 14, 18, 3)),
    "scan": bp.Tensor("uint16", (7, 9, 9)), "sound": bp.Tensor("float32", (900, 1)), "text": bp.Text(),
}  # fmt: skip


def sample(number):
    rng = np.random.default_rng(number)
    height, width = (int(integer) for integer in rng.integers(30, 70, 2))
    small = rng.integers(0, 256, (6, 7, 3), dtype=np.uint8)
    photo = image.fromarray(small).resize((width, height), image.Resampling.BICUBIC)
    mask = np.zeros((height, width), np.uint8)
    boxes = []
    for k in range(number % 4):
        (x, y), (w, h) = rng.integers(0, 20, 2).tolist(), rng.integers(4, 10, 2).tolist()
        mask[y : y + h, x : x + w] = k + 1
        boxes.append((x, y, w, h))
    encoded = io.BytesIO()
    photo.save(encoded, "JPEG", quality=92, subsampling=0)
    return {
        "image": encoded.getvalue() if number % 2 else np.asarray(photo),
        "mask": mask,
        "boxes": np.array(boxes, np.float32).reshape(-1, 4),
        "kinds": 10 * number + np.arange(len(boxes)),
        "pose": np.array(
            [[[x + 1, y + 1, 2], [x + w - 1, y + 2, 1]] for x, y, w, h in boxes], np.float32
        ).reshape(-1, 2, 3),
        "outline": [[[x, y, x + w, y, x + w, y + h, x, y + h]] for x, y, w, h in boxes],
        "class": number % 3,
        "soft": np.eye(3)[number % 3],
        "clip": rng.integers(0, 256, (3, 14, 18, 3), dtype=np.uint8),
        "scan": rng.integers(0, 4000, (7, 9, 9)).astype(np.uint16),
        "sound": rng.normal(size=(900, 1)).astype(np.float32),
        "text": f"number {number}",
    }


@pytest.fixture(scope="module")
def scenes(tmp_path_factory):
    path = tmp_path_factory.mktemp("scenes") / "scenes.beton"
    with bp.create(path, SCHEMA) as out:
        for number in range(COUNT):
            out.append(sample(number))
    return path


def backwards(batch):
    """In time: an array whose axis runs the other way."""
    return batch[:, ::-1]


FRAMES = {"image": [ops.RandomResizedCrop(32), ops.RandomHorizontalFlip()], "mask": [ops.MoveMask()]}
# In the batches of those cases that say so.
SOME = ("clip", "scan", "sound", "soft")
CASES = {
    "crop, flip, colours": {"pipelines": {
        **FRAMES, "image": [*FRAMES["image"], ops.ColorJitter(0.2, 0.2), ops.Normalize([100] * 3, [50] * 3)],
    }},
    "letterbox": {"pipelines": {
        "image": [ops.Letterbox(40), ops.RandomVerticalFlip(), ops.Sharpness(), ops.ChannelsFirst()],
        "mask": [ops.MoveMask()], "boxes": [ops.MoveBoxes(normalized=True, min_visibility=0.2), ops.Pad(5)],
        "kinds": [ops.Pad(5, value=-1)],
    }},
    "warps": {"pipelines": {
        "image": [ops.Resize((30, 36)), ops.RandomAffine(20, (0.1, 0.1)), ops.RandomPerspective(0.3)],
        "mask": [ops.MoveMask()],
    }},
    "policy": {"pipelines": {"image": [ops.Resize(32), ops.TrivialAugment()], "mask": [ops.MoveMask()]}},
    "drawn": {"pipelines": {**FRAMES, "image": bp.Pipe("image", FRAMES["image"], keep="geometry")}},
    "padded": {"pipelines": {
        "image": [ops.Resize(shorter=24), ops.Collate("pad", multiple_of=8)], "mask": None,
    }},
    "list": {"pipelines": {"image": [ops.Resize(shorter=24), ops.Collate("list")], "mask": None}},
    "MixUp": {"pipelines": [FRAMES, ops.MixUp(0.8, labels="class")]},
    "MixUp with boxes": {"pipelines": [FRAMES, ops.MixUp(0.8, boxes="boxes")]},
    "CutMix": {"pipelines": [FRAMES,
        ops.CutMix(labels="class", masks="mask"), {"image": [ops.Normalize([100] * 3, [50] * 3)]},
    ]},
    "soft labels": {
        "pipelines": [{**FRAMES, "soft": [ops.Convert("float32")]}, ops.MixUp(0.8, labels="soft")],
    },
    "images of the CPU": {
        "pipelines": [
            {**FRAMES, "image": [ops.Resize(32), lambda batch: batch // 2], "soft": [ops.Convert("float32")]},
            ops.MixUp(0.8, labels="soft"),
        ],
    },
    "Mosaic": {"pipelines": [FRAMES, ops.Mosaic(masks="mask")]},
    "CopyPaste": {"pipelines": [FRAMES, ops.CopyPaste(p=0.9)]},
    "clips": {"pipelines": {"image": None, "mask": None, "clip": [
        backwards,
        ops.RandomCrop((10, 12)), ops.RandomHorizontalFlip(), ops.ColorJitter(0.3), ops.ChannelsFirst(),
    ]}},
    "volumes": {"pipelines": {"image": None, "mask": None, "scan": [
        ops.RandomCrop3d(6), ops.RandomFlip3d(), ops.RandomRotate90(), ops.RandomIntensity(0.2, 5, 1.2, 3),
    ]}},
    "sounds": {"pipelines": {"image": None, "mask": None, "sound": [
        ops.CropOrPad(800), ops.AddNoise(), ops.RandomGain(), ops.TimeShift(),
        ops.MelSpectrogram(8000, 128, 20, log="db"), ops.SpecAugment(4, 4),
    ]}},
}  # fmt: skip
# What part of the pixels may be farther than four levels off: at an edge, the last bit of a position says
# which of two is seen, and some changes of a policy make a level many.
FAR = {"warps": 0.01, "policy": 0.2, "Mosaic": 0.01, "CopyPaste": 0.01}


def epoch(scenes, case, **options):
    fields, *steps = case["pipelines"] if isinstance(case["pipelines"], list) else [case["pipelines"]]
    pipelines = [{**dict.fromkeys(SOME), **fields}, *steps]
    how = {"pipelines": pipelines, "order": "random", "seed": 5, **options}
    with warnings.catch_warnings():
        # Of steps without a device form, and of masks.
        warnings.simplefilter("ignore", UserWarning)
        loader = bp.Loader(scenes, BATCH, **how)
    with closing(loader):
        return list(loader)


def compared(one, other, far):
    """Positions and labels are equal. Images are in levels, or normalised by 50."""
    away = np.abs(one.astype(np.float64) - other)
    if one.ndim == 4 and 3 in one.shape[1:]:
        # They may be decoded and resized there, and what follows makes more of a difference.
        away = away * 50 if one.dtype == np.float32 else away
        assert far or away.max() <= 8
        assert (away > 4).mean() <= far
        assert far or (away > 2).mean() < 0.1
    elif one.dtype.kind == "f":
        assert away.max(initial=0) <= 1e-3 * max(1, np.abs(one).max(initial=0))
    else:
        assert away.max(initial=0) <= (1 if one.ndim == 5 or one.dtype == np.uint16 else 0)


# Without a GPU, one way is like the others.
WAYS = [("cpu", "cpu"), *(pytest.param("cuda", decode, marks=GPU) for decode in ("cpu", "auto", None))]


@pytest.mark.parametrize(("device", "decode"), WAYS)
@pytest.mark.parametrize("name", CASES)
def test_a_loader_gives_the_same_on_a_device(scenes, name, decode, device):
    want, got = epoch(scenes, CASES[name]), epoch(scenes, CASES[name], device=device, decode=decode)
    assert len(want) == len(got) == 3
    for mine, there in zip(want, got, strict=True):
        assert mine.keys() == there.keys()
        for field, value in mine.items():
            if isinstance(there[field], torch.Tensor):
                assert there[field].device.type == device, field
            same(value, here(there[field]), functools.partial(compared, far=FAR.get(name, 0)))


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_two_devices_meets(scenes, name, monkeypatch):
    """The whole way of a batch, on a device that has no numbers: see devices.py."""
    watch(monkeypatch)
    want, got = (epoch(scenes, CASES[name], **how) for how in ({}, {"device": "meta", "decode": "cpu"}))
    for mine, there in zip(want, got, strict=True):
        assert mine.keys() == there.keys()
        for field, value in there.items():
            if isinstance(value, torch.Tensor):
                assert value.device == WATCHED, field
                assert tuple(value.shape[1:]) == mine[field].shape[1:], field
