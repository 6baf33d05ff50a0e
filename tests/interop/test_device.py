"""Images made on a device. The same plan runs on the CPU, where these tests always run, and on a GPU."""

import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import batchplant as bp
import processes
from batchplant import Spans, ops
from batchplant.codecs.media.image_rules import ImageOptions
from batchplant.errors import DecodeError, OptionError
from batchplant.interop.gpu.split import FIRST_TRIAL_BATCHES, Split
from batchplant.loading.loader import Loader
from loaders import assert_no_producers
from variants import exhaustive

torch = pytest.importorskip("torch")
image = pytest.importorskip("PIL.Image")

from batchplant.interop.gpu.on_device import OnDevice  # noqa: E402
from batchplant.interop.gpu.resample import taps  # noqa: E402
from batchplant.interop.torch import ToTensor  # noqa: E402
from devices import DEVICES, HAS_CUDA, needs_gpu  # noqa: E402

NORMAL = ops.Normalize((120.0, 110.0, 100.0), (60.0, 55.0, 50.0), "float16")


def photo(rng, width, height, form="JPEG", **options):
    small = rng.integers(0, 256, (height // 8 + 2, width // 8 + 2, 3), dtype=np.uint8)
    out = io.BytesIO()
    image.fromarray(small).resize((width, height), image.Resampling.BICUBIC).save(out, form, **options)
    return out.getvalue()


@pytest.fixture(scope="module")
def jpegs(tmp_path_factory):
    path = tmp_path_factory.mktemp("device") / "jpeg.beton"
    rng = np.random.default_rng(0)
    with bp.create(path, {"image": bp.Image(), "label": bp.Int()}) as out:
        for number in range(30):
            # A few are large.
            width, height = (int(integer) for integer in rng.integers(40, 120 if number % 8 else 300, 2))
            # Without subsampling, decoders differ by rounding alone.
            data = photo(rng, width, height, quality=92, subsampling=0)
            out.append({"image": data, "label": number})
    return path


@pytest.fixture(scope="module")
def raw(jpegs):
    path = jpegs.with_name("raw.beton")
    bp.convert(jpegs, path, images=ImageOptions(write_mode="raw"))
    return path


def batches(path, pipeline, **options):
    options = {"order": "random", "seed": 3, **options}
    loader = Loader(path, 7, pipelines={"image": pipeline}, **options)
    try:
        return [
            batch["image"] if options.get("device") is None else batch["image"].cpu().numpy()
            for batch in loader
        ]
    finally:
        loader.close()


def apart(some, others):
    assert [item.shape for item in some] == [item.shape for item in others]
    return max(
        np.abs(a.astype(np.float64) - b.astype(np.float64)).max() for a, b in zip(some, others, strict=True)
    )


# In levels. The engine rounds twice where it does as Pillow does, and the tails of bicubic amplify that.
FARTHEST = {"area": 2, "nearest": 0, "bilinear": 2, "bicubic": 3}

# --- the same images --------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("filter", "size"),
    [
        *[("area", 64), ("bicubic", (200, 31))],
        *exhaustive(("bilinear", (200, 31)), ("nearest", 64)),
        *exhaustive(("area", (200, 31)), ("bilinear", 64), ("bicubic", 64), ("nearest", (200, 31))),
    ],
)
def test_raw_images_are_those_of_the_engine(raw, device, filter, size):
    """Shrunk, grown, and grown on one side only: the same boxes and flips, and at most two levels apart."""
    pipeline = [ops.RandomResizedCrop(size, filter=filter), ops.RandomHorizontalFlip()]
    want = batches(raw, pipeline, indices=range(14))
    for mode in ("gpu", "hybrid"):
        got = batches(raw, pipeline, indices=range(14), device=device, decode=mode)
        assert apart(want, got) <= FARTHEST[filter]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["gpu", "hybrid", "cpu", *exhaustive("auto")])
def test_jpegs(jpegs, device, mode):
    pipeline = [ops.RandomResizedCrop(48), ops.RandomHorizontalFlip(), NORMAL, ops.ChannelsFirst()]
    want = batches(jpegs, pipeline)
    got = batches(jpegs, pipeline, device=device, decode=mode)
    assert got[0].dtype == np.float16
    assert got[0].shape[1:] == (3, 48, 48)
    # Two levels, normalised.
    assert apart(want, got) <= 2 / 50 + 0.01


@pytest.mark.parametrize("device", DEVICES)
def test_grey_images(tmp_path, device):
    rng = np.random.default_rng(1)
    with bp.create(tmp_path / "grey.beton", {"image": bp.Image(mode="RGB")}) as out:
        for _ in range(9):
            grey = image.fromarray(rng.integers(0, 256, (50, 60), dtype=np.uint8))
            data = io.BytesIO()
            grey.save(data, "JPEG", quality=95)
            out.append({"image": data.getvalue()})
    pipeline = [ops.CenterCrop(32)]
    want = batches(tmp_path / "grey.beton", pipeline)
    assert apart(want, batches(tmp_path / "grey.beton", pipeline, device=device, decode="gpu")) <= 2


def test_other_encodings_and_turned_images(tmp_path):
    rng = np.random.default_rng(2)
    path = tmp_path / "mixed.tar"
    exif = image.Exif()
    exif[0x0112] = 6
    with bp.create(path, {"image": bp.Image()}) as out:
        for number in range(12):
            form, more = [("JPEG", {"exif": exif}), ("PNG", {}), ("JPEG", {"quality": 95})][number % 3]
            out.append({"image": photo(rng, 90 + number, 60, form, **more)})
    pipeline = [ops.RandomResizedCrop(24, orient=True)]
    want = batches(path, pipeline)
    loader = Loader(
        path, 7, order="random", seed=3, pipelines={"image": pipeline}, device="cpu", decode="gpu"
    )
    got = [batch["image"].numpy() for batch in loader]
    assert apart(want, got) <= 2
    assert loader.stats()["decoded"] == {"cpu": 8, "gpu": 4, "split": 0, "raw": 0}
    loader.close()


KINDS = {
    "4:4:4": {"subsampling": 0}, "4:2:2": {"subsampling": 1}, "4:2:0": {"subsampling": 2},
    "optimised": {"optimize": True}, "restarts": {"restart_marker_blocks": 3},
    "RGB": {"keep_rgb": True}, "progressive": {"progressive": True},
}  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
def test_all_kinds_of_jpegs(tmp_path, device, kind):
    """Whoever decodes them, colours and places are right."""
    rng = np.random.default_rng(3)
    path = tmp_path / "kind.beton"
    with bp.create(path, {"image": bp.Image()}) as out:
        for _ in range(21):
            width, height = (int(integer) for integer in rng.integers(17, 200, 2))
            out.append({"image": photo(rng, width, height, quality=92, **KINDS[kind])})
    pipeline = [ops.RandomResizedCrop(32)]
    want, got = batches(path, pipeline), batches(path, pipeline, device=device, decode="gpu")
    assert apart(want, got) <= 2


@pytest.mark.parametrize("device", DEVICES)
def test_images_of_too_many_pixels_are_refused_as_anywhere(tmp_path, device, monkeypatch):
    path = tmp_path / "large.beton"
    rng = np.random.default_rng(4)
    with bp.create(path, {"image": bp.Image()}) as out:
        for side in (64, 65, 66):
            out.append({"image": photo(rng, side, side)})
    monkeypatch.setattr("batchplant.storage.limits._most_pixels", 65 * 65)
    how = {"pipelines": {"image": [ops.Resize(16)]}, "device": device, "decode": "gpu"}
    loader = Loader(path, 3, on_error="skip", ids=True, **how)
    [batch] = loader
    assert batch["ids"].tolist() == [0, 1]
    assert "pixels" in loader.skipped[0].message
    loader.close()


@needs_gpu
@pytest.mark.parametrize("mode", ["gpu", "hybrid", "split", "cpu"])
def test_pixels_are_the_same_whoever_decodes(tmp_path_factory, mode):
    """5,000 images of every kind, sides odd and even: at most two levels from what the engine makes."""
    path = tmp_path_factory.getbasetemp() / "kinds.beton"
    if not path.exists():
        rng = np.random.default_rng(20)
        with bp.create(path, {"image": bp.Image()}) as out:
            for number in range(5000):
                width, height = (int(integer) for integer in rng.integers(3, 200, 2))
                how = {"quality": int(rng.integers(60, 99)), "subsampling": number % 3}
                data = photo(rng, width, height, **how)
                if number % 10 == 9:
                    grey = io.BytesIO()
                    image.open(io.BytesIO(data)).convert("L").save(grey, "JPEG", quality=90)
                    data = grey.getvalue()
                out.append({"image": data})
    steps = [ops.RandomResizedCrop(96), ops.RandomHorizontalFlip()]
    result = {}
    for where in ({}, {"device": "cuda", "decode": mode}):
        loader = Loader(path, 250, pipelines={"image": steps}, seed=3, **where)
        taken = [np.asarray(batch["image"].cpu() if where else batch["image"]) for batch in loader]
        result[bool(where)] = np.concatenate(taken)
        loader.close()
    apart = np.abs(result[True].astype(np.int16) - result[False].astype(np.int16))
    assert apart.max() <= 2


@needs_gpu
def test_flipped_bytes_hurt_nobody_else(tmp_path):
    """The device leaves what is damaged to the engine; good images beside and after it are as before."""
    rng = np.random.default_rng(5)
    path = tmp_path / "flipped.tar"
    good = [photo(rng, 120, 100, quality=92, subsampling=0) for _ in range(8)]
    with bp.create(path, {"image": bp.Image()}) as out:
        for number in range(400):
            data = bytearray(good[number % 8])
            if number % 2:
                for at in rng.integers(2, len(data) - 2, 1 + number % 5):
                    data[at] = int(rng.integers(0, 256))
            out.append({"image": bytes(data)})
    pipelines = {"image": [ops.Resize(48)]}
    loader = Loader(path, 16, ids=True, on_error="skip", pipelines=pipelines, device="cuda", decode="gpu")
    [want] = Loader(path, 8, indices=np.arange(0, 16, 2), pipelines=pipelines)
    seen = 0
    for _ in range(3):
        for batch in loader:
            for number, pixels in zip(batch["ids"].tolist(), batch["image"].cpu().numpy(), strict=True):
                if number % 2 == 0:
                    seen += 1
                    assert np.abs(pixels.astype(int) - want["image"][number // 2 % 8]).max() <= 4
    assert seen == 600
    loader.close()


def test_images_that_shrink_a_lot_go_by_the_engine(tmp_path):
    path = tmp_path / "large.beton"
    with bp.create(path, {"image": bp.Image()}, write_mode="raw") as out:
        out.append({"image": np.random.default_rng(0).integers(0, 256, (400, 400, 3), dtype=np.uint8)})
    loader = Loader(path, 1, pipelines={"image": [ops.Resize(8)]}, device="cpu", decode="gpu")
    [batch] = loader
    assert loader.stats()["decoded"] == {"cpu": 1, "gpu": 0, "split": 0, "raw": 0}
    [want] = Loader(path, 1, pipelines={"image": [ops.Resize(8)]})
    assert (batch["image"].numpy() == want["image"]).all()


# --- ops ----------------------------------------------------------------------------------------------------


class OwnFlip(ops.RandomHorizontalFlip):
    def run(self, batch, ids, draws):
        return batch[:, ::-1].copy()


def half(batch):
    assert isinstance(batch, np.ndarray)
    return batch // 2


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("step", [half, OwnFlip()], ids=["function", "subclass"])
def test_a_step_without_a_device_form_runs_on_the_cpu(raw, device, step):
    """Images and the steps before it stay on the device; the loader says which step is in the way, once."""
    pipeline = [ops.RandomResizedCrop(32), ops.RandomSolarization(100), step, ops.RandomErasing(1.0)]
    with pytest.warns(UserWarning, match=r"decode='gpu': image: .* has no device form") as message:
        loader = Loader(raw, 7, pipelines={"image": pipeline}, device=device, decode="gpu")
    assert len(message) == 1
    want = [batch["image"] for batch in Loader(raw, 7, pipelines={"image": pipeline})]
    got = [batch["image"] for batch in loader]
    assert {batch.device.type for batch in got} == {device}
    # Solarised levels beside the threshold may differ by as much as it inverts.
    away = [np.abs(a.astype(int) - b.cpu().numpy().astype(int)) for a, b in zip(want, got, strict=True)]
    assert np.mean([(item > 2).mean() for item in away]) < 0.03
    assert loader.stats()["decoded"] == {"cpu": 0, "gpu": 0, "split": 0, "raw": 30}
    [output] = loader.plan.on_device
    assert (output.device_steps, output.steps[1].op) == (1, output.steps[output.device_steps].op)
    assert "→ CPU → " in str(loader.plan)
    assert "has no device form" in str(loader.plan)
    loader.close()


def test_a_tensor_stays_one_for_the_steps_on_the_cpu(raw):
    seen = []
    pipeline = [ops.Resize(16), ToTensor(), lambda batch: seen.append(type(batch)) or batch]
    with pytest.warns(UserWarning, match="no device form"):
        loader = Loader(raw, 30, pipelines={"image": pipeline}, device="cpu", decode="gpu")
    [_] = loader
    assert seen == [torch.Tensor]


def test_modes_that_no_device_makes(tmp_path):
    path = tmp_path / "mask.tar"
    with bp.create(path, {"image": bp.Image(), "mask": bp.Image(mode="L", mask=True)}) as out:
        for number in range(3):
            grey = np.full((20, 30), number, np.uint8)
            out.append({"image": np.full((20, 30, 3), number, np.uint8), "mask": grey})
    crops = {"image": [ops.CenterCrop(8)], "mask": [ops.CenterCrop(8)]}
    # Masks are made here, beside images made there, and nothing is in the way.
    loader = Loader(path, 3, pipelines=crops, device="cpu", decode="gpu")
    assert [item.name for item in loader.plan.on_device] == ["image"]
    assert "the CPU makes images of mode P" in str(loader.plan)
    [batch] = loader
    assert batch["mask"].unique().tolist() == [0, 1, 2]
    loader.close()
    with pytest.warns(UserWarning, match="mask: the CPU makes images of mode P"):
        Loader(path, 3, pipelines={**crops, "image": None}, device="cpu", decode="gpu").close()


def test_all_images_of_a_batch_are_damaged(tmp_path):
    path = tmp_path / "damaged.tar"
    with bp.create(path, {"image": bp.Image()}) as out:
        for _ in range(3):
            out.append({"image": photo(np.random.default_rng(0), 60, 50)[:200]})
    how = {"pipelines": {"image": [ops.Resize(8)]}, "on_error": "skip"}
    loader = Loader(path, 3, **how, device="cpu", decode="gpu")
    [batch] = loader
    assert batch["image"].shape == (0, 8, 8, 3)
    assert len(loader.skipped) == 3


# --- order, errors, ends ------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_a_fixed_share_is_exact(jpegs, device):
    pipeline = [ops.RandomResizedCrop(32), ops.ColorJitter(0.4, 0.4), ops.RandomErasing(1.0)]
    how = {
        "device": device, "decode": bp.DecodeOptions("hybrid", gpu_share=0.3), "indices": range(16)
    }  # fmt: skip
    first = batches(jpegs, pipeline, workers=1, **how)
    assert apart(first, batches(jpegs, pipeline, workers=3, prefetch_batches=1, **how)) == 0
    loader = Loader(jpegs, 7, order="random", seed=3, pipelines={"image": pipeline}, **how)
    epoch = iter(loader)
    next(epoch)
    state = loader.state_dict()
    loader.close()
    again = Loader(jpegs, 7, order="random", seed=3, pipelines={"image": pipeline}, **how)
    again.load_state_dict(state)
    assert apart(first[1:], [batch["image"].cpu().numpy() for batch in again]) == 0
    decoded = again.stats()["decoded"]
    assert decoded["gpu"] == 2 + 1
    again.close()


@pytest.fixture
def damaged(jpegs, tmp_path):
    path = tmp_path / "damaged.tar"
    cells = [bytes(cell) for cell in bp.open(jpegs).read(range(8), ["image"])["image"]]
    cells[5] = cells[5][: len(cells[5]) // 3]
    with bp.create(path, {"image": bp.Image()}) as out:
        for cell in cells:
            out.append({"image": cell})
    return path


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", ["gpu", "hybrid"])
def test_a_damaged_image_is_named_or_skipped(damaged, device, mode):
    how = {"pipelines": {"image": [ops.Resize(32)]}, "device": device, "decode": mode}
    with pytest.raises(DecodeError) as caught:
        list(Loader(damaged, 8, **how))
    assert (caught.value.sample, caught.value.field) == (5, "image")
    loader = Loader(damaged, 8, on_error="skip", ids=True, **how)
    [batch] = loader
    assert batch["ids"].tolist() == [0, 1, 2, 3, 4, 6, 7]
    assert len(batch["image"]) == 7
    assert [problem.sample for problem in loader.skipped] == [5]


def test_a_full_device_is_said(jpegs, monkeypatch):
    loader = Loader(jpegs, 7, pipelines={"image": [ops.Resize(16)]}, device="cpu", decode="gpu")

    def full(*tables):
        raise torch.cuda.OutOfMemoryError("no room")

    monkeypatch.setattr("batchplant.interop.gpu.jpeg.Jpegs.decode", full)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="no room"):
        list(loader)
    loader.close()


def test_what_is_asked_wrongly(jpegs):
    for options, text in [
        ({"device": "cpu", "decode": "tpu"}, "decode is one of"),
        ({"decode": "gpu"}, "name one"),
        ({"device": "cpu", "decode": bp.DecodeOptions("gpu", gpu_share=0.5)}, "nothing is split"),
        ({"device": "cpu", "decode": bp.DecodeOptions("hybrid", gpu_share=2)}, "from 0 to 1"),
    ]:
        with pytest.raises(OptionError, match=text):
            Loader(jpegs, 4, **options)


@pytest.mark.parametrize("device", DEVICES)
def test_closing_amid_an_epoch(jpegs, device):
    loaders = [
        Loader(jpegs, 3, pipelines={"image": [ops.Resize(16)]}, device=device, decode="hybrid")
        for _ in range(3)
    ]
    for loader in loaders:
        next(iter(loader))
    for loader in loaders:
        loader.close()
    assert_no_producers()


def test_stats_tell_the_split(jpegs):
    loader = Loader(
        jpegs,
        5,
        pipelines={"image": [ops.Resize(16)]},
        device="cpu",
        decode=bp.DecodeOptions("hybrid", gpu_share=0.4),
    )
    for _ in loader:
        pass
    stats = loader.stats()
    assert stats["decoded"] == {"cpu": 0, "gpu": 12, "split": 18, "raw": 0}
    assert stats["decode mode"] == "hybrid"
    assert stats["why"] == "asked for"
    assert stats["decode gpu"] > 0
    assert stats["decode cpu"] > 0
    assert {"copy", "augment", "waited", "gpu share"} <= set(stats)


# --- the split ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cpu", "gpu", "hindrance", "mode", "share"),
    [
        # How much slower both are while both work; what is the best then.
        (1000, 3000, 1.0, "gpu", 1.0),
        (1000, 10, 1.0, "split", 0.0),
        (900, 1000, 1.0, "hybrid", 10 / 19),
        (900, 1000, 2.2, "gpu", 1.0),
        (77_000, 115_000, 2.0, "gpu", 1.0),
        (1000, 700, 3.0, "split", 0.0),
    ],
)
def test_auto_finds_the_best(cpu, gpu, hindrance, mode, share):
    """Batches are made by five threads: those under way when the mode changes are of the one before."""
    now = [0.0]
    split = Split("auto", clock=lambda: now[0])
    modes, under_way = [], []
    for _ in range(2000):
        under_way.append((split.mode, split.count(200)))
        if len(under_way) < 5:
            continue
        one, there = under_way.pop(0)
        slower = hindrance if 0 < there < 200 else 1
        taken = (200 - there) / cpu * slower, there / gpu * slower
        now[0] += max(taken)
        split.learn(one, (200 - there, taken[0]), (there, taken[1]))
        modes.append(one)
    # Looks at the others cost little in the end.
    assert modes[-1000:].count(mode) > 950
    assert {"gpu", "split"} <= set(modes)
    assert split.share == pytest.approx(share, abs=0.02)
    assert split.why.startswith(f"{mode} is the fastest (images/s: gpu ")
    assert set(split.rates) == {"gpu", "split", "hybrid"} - ({"hybrid"} if "hybrid" not in modes else set())


def test_auto_looks_seldom_however_long_the_pauses_are():
    """A loader that has been idle, while others were used, has not had a look for so long a time."""
    now = [0.0]
    split = Split("auto", clock=lambda: now[0])
    modes = []
    for number in range(50 * 80):
        there = split.count(1000)
        slower = 3 if 0 < there < 1000 else 1
        seconds = (1000 - there) / 80_000 * slower, there / 160_000 * slower
        now[0] += max(seconds) + (20 if number % 50 == 0 else 0)
        modes.append(split.mode)
        split.learn(split.mode, (1000 - there, seconds[0]), (there, seconds[1]))
    assert modes[2000:].count("gpu") > 0.97 * 2000


def test_auto_costs_little_where_the_machine_is_uneven():
    """Now and then the GPU takes longer for a while: no reason to try what was not worth trying before."""
    now = [0.0]
    split = Split("auto", clock=lambda: now[0])
    modes, under_way, least, spent = [], [], 0.0, 0.0
    for number in range(4000):
        gpu = 110_000 if number % 200 > 180 else 150_000
        under_way.append((split.mode, split.count(1000)))
        if len(under_way) < 5:
            continue
        one, there = under_way.pop(0)
        taken = (1000 - there) / 75_000 * (2 if there else 1), there / gpu
        now[0] += max(taken)
        if number > 200:
            least += 1000 / gpu
            spent += max(taken)
            modes.append(one)
        split.learn(one, (1000 - there, taken[0]), (there, taken[1]))
    assert "split" in modes
    assert "hybrid" not in modes
    assert spent < 1.02 * least


def test_auto_measures_again_as_batches_grow():
    """Of few images the CPU reads more a second, of many the GPU: those of small batches, made together."""
    now = [0.0]
    split = Split("auto", clock=lambda: now[0])
    modes = []
    for number in range(300):
        # They grow as soon as what was made only once is some time ago.
        images = min(1024, 64 << max(0, number - 40) // 3)
        there = split.count(images)
        seconds = (images - there) / 75_000, there and 0.0012 + there / 190_000
        if 0 < there < images:
            seconds = seconds[0] * 3, seconds[1] * 3
        now[0] += max(seconds)
        modes.append(split.mode)
        split.learn(split.mode, (images - there, seconds[0]), (there, seconds[1]))
    assert "split" in modes[:40]
    assert modes[-150:].count("gpu") > 130


def test_auto_leaves_the_gpu_to_a_step_that_takes_little():
    now = [0.0]
    split = Split("auto", clock=lambda: now[0])

    def batches_of(count, asked, gpu=5000):
        """The CPU reads 1000 a second, the step takes so many. What auto was for most of the last ones."""
        modes = []
        for _ in range(count):
            there = split.count(100)
            busy = max((100 - there) / 1000, there / gpu)
            now[0] += max(busy, 100 / asked)
            split.learn(split.mode, (100 - there, (100 - there) / 1000), (there, there / gpu))
            modes.append(split.mode)
        return max(set(modes[-20:]), key=modes[-20:].count)

    assert batches_of(8 * FIRST_TRIAL_BATCHES[1], 300) == "split"
    assert "the CPU is enough" in split.why
    # More, but the CPU can do it: nothing changes. Then more than that.
    assert batches_of(100, 700) == "split"
    assert batches_of(100, 5000) == "gpu"
    assert batches_of(100, 300) == "split"
    assert batches_of(100, 5000) == "gpu"
    # Somebody else uses the GPU, for a while: looking at the other side now and then tells.
    assert batches_of(400, 5000, gpu=100) == "split"
    assert batches_of(8000, 5000) == "gpu"
    for mode in ("hybrid", "gpu"):
        split = Split(mode, clock=lambda: now[0])
        assert batches_of(50, 100) == mode
        assert split.share > 0


def test_the_first_batch_tells_nothing():
    split = Split("hybrid")
    split.learn("hybrid", (50, 100.0), (50, 0.001))
    assert split.share == 0.5
    split.learn("hybrid", (50, 1.0), (50, 1.0))
    assert split.share == 0.5


def test_weights_add_up():
    low, high = (
        torch.tensor([[0.3], [10.0]], dtype=torch.float64),
        torch.tensor([[90.2], [17.5]], dtype=torch.float64),
    )
    source = torch.tensor([[100.0], [30.0]], dtype=torch.float64)
    linear = torch.tensor([[False], [True]])
    for filter, count in (("area", 6), ("bilinear", 9), ("bicubic", 15)):
        first, weight = taps(low, high, source, linear, 24, filter, count)
        assert torch.allclose(weight.sum(dim=-1), torch.ones(2, 24))
        assert (first >= 0).all()
        assert (first < source).all()


@pytest.mark.parametrize("device", DEVICES)
def test_the_gpu_gets_the_shortest_scans(jpegs, device, monkeypatch):
    """It takes as long as the longest of them, the CPU as long as all of its together."""
    routes = []
    route = OnDevice._route

    def routed(self, request):
        result = route(self, request)
        routes.append((request, result))
        return result

    monkeypatch.setattr(OnDevice, "_route", routed)
    pipelines = {"image": [ops.RandomResizedCrop(32)]}
    decode = bp.DecodeOptions("hybrid", gpu_share=0.4)
    loader = Loader(jpegs, 10, pipelines=pipelines, device=device, decode=decode)
    sizes = [
        (request.cells.size[gpu.rows], request.cells.size[both.rows], len(raw), len(cpu))
        for _ in [list(loader)]
        for request, (raw, gpu, both, cpu, _) in routes
    ]
    loader.close()
    assert len(sizes) == 3
    for gpu, both, raw, cpu in sizes:
        assert (len(gpu), len(both), raw, cpu) == (4, 6, 0, 0)
        assert gpu.max() <= both.min()


@pytest.mark.parametrize("device", DEVICES)
def test_what_would_keep_others_waiting_is_not_the_devices(jpegs, device, monkeypatch):
    """Scans that are too long for it are read by the engine; pixels that are too many for it, made there."""
    pipelines = {"image": [ops.Resize(16)]}
    want = batches(jpegs, pipelines["image"])
    for name, most, decoded in (("MAX_SCAN_BYTES", 0, "split"), ("MAX_BATCH_BYTES", 0, "cpu")):
        with monkeypatch.context() as patched:
            patched.setattr(f"batchplant.interop.gpu.on_device.{name}", most)
            loader = Loader(
                jpegs, 7, order="random", seed=3, pipelines=pipelines, device=device, decode="gpu"
            )
            got = [batch["image"].cpu().numpy() for batch in loader]
            assert loader.stats()["decoded"][decoded] == 30
            loader.close()
        assert apart(want, got) <= 2


@pytest.mark.exhaustive
@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_used_again_while_the_split_varies(jpegs, device, monkeypatch):
    """To take pinned memory stops the device: parts of ever new sizes must not ask for ever new memory."""
    monkeypatch.setattr("batchplant.interop.gpu.streams.MIN_ALLOCATION_BYTES", 1 << 10)
    taken, shares = [], iter(np.random.default_rng(0).random(1000).tolist())
    monkeypatch.setattr(Split, "count", lambda self, images: round(next(shares) * images))
    loader = Loader(
        jpegs, 10, order="random", pipelines={"image": [ops.RandomResizedCrop(32)]}, device=device,
        decode="hybrid", prefetch_batches=2,
    )  # fmt: skip
    buffers = loader._executor.on_cpu.buffers
    allocate = buffers._allocate
    buffers._allocate = lambda size: taken.append(size) or allocate(size)
    for _ in range(8):
        for _ in loader:
            pass
    loader.close()
    # Encoded bytes and levels of 24 batches, from 3 to 300 KB: eight sizes at most, a few of each.
    assert all(size & (size - 1) == 0 for size in taken)
    assert len(taken) <= 30


@pytest.mark.parametrize("device", DEVICES)
def test_several_loaders_at_once(jpegs, raw, device):
    """In turn, and each in a thread of its own: nobody sees another's images."""
    hows = [
        (jpegs, {"decode": "gpu"}), (raw, {"decode": "auto"}), (raw, {}),
        (jpegs, {"decode": bp.DecodeOptions("hybrid", gpu_share=0.5)}), (jpegs, {"decode": "cpu"}),
    ]  # fmt: skip
    pipeline = [ops.RandomResizedCrop(48), ops.RandomHorizontalFlip(), NORMAL, ops.ChannelsFirst()]
    hows = [(path, {"device": device, "indices": range(16), **how}) for path, how in hows]
    want = [batches(path, pipeline, **how) for path, how in hows]
    loaders = [
        Loader(path, 7, order="random", seed=3, pipelines={"image": pipeline}, **how) for path, how in hows
    ]
    for together in zip(zip(*loaders, strict=True), zip(*want, strict=True), strict=True):
        for row, wanted in zip(*together, strict=True):
            assert np.array_equal(row["image"].cpu().numpy(), wanted)
    for loader in loaders:
        loader.close()
    with ThreadPoolExecutor(len(hows)) as threads:
        several = threads.map(lambda item: batches(item[0], pipeline, **item[1]), hows)
        for item, wanted in zip(several, want, strict=True):
            assert all(np.array_equal(*pair) for pair in zip(item, wanted, strict=True))


@pytest.mark.parametrize("device", DEVICES)
def test_raw_images_that_are_not_what_they_say(raw, device):
    """A shape that does not fit the bytes: said as the engine says it, not by a fault of the copy."""

    class Lying:
        def __init__(self, reader):
            self._reader = reader

        def __len__(self):
            return len(self._reader)

        def __getattr__(self, name):
            return getattr(self._reader, name)

        def spans(self, field, ids):
            result = self._reader.spans(field, ids)
            shape = result.shape.copy()
            shape[ids == 4] *= (100, 1, 1)
            return Spans(result.sources, result.start, result.size, result.file, shape)

    for decode in (None, "auto"):
        loader = Loader(
            raw, 5, pipelines={"image": [ops.RandomResizedCrop(16)]}, device=device, decode=decode,
            on_error="skip", ids=True,
        )  # fmt: skip
        loader._executor.reader = Lying(loader.reader)
        ids = [int(item) for batch in loader for item in batch["ids"]]
        assert ids == [n for n in range(30) if n != 4]
        assert [(item.sample, item.field) for item in loader.skipped] == [(4, "image")]
        assert "cannot be pixels of the shape" in loader.skipped[0].message
        loader.close()


# --- streams ------------------------------------------------------------------------------------------------


@needs_gpu
@pytest.mark.parametrize("mode", ["gpu", "hybrid", "cpu"])
def test_no_batch_is_overwritten_while_it_is_read(jpegs, raw, mode):
    """The user's stream is kept busy, so that its reads come long after the loader has gone on."""
    pipeline = [ops.RandomResizedCrop(96), ops.RandomHorizontalFlip()]
    busy = torch.randn(4096, 4096, device="cuda")
    for path in (jpegs, raw):
        decode = bp.DecodeOptions(mode, gpu_share=0.5 if mode == "hybrid" else None)
        how = {
            "order": "random", "seed": 3, "pipelines": {"image": pipeline}, "device": "cuda",
            "decode": decode,
        }  # fmt: skip
        loader = Loader(path, 7, prefetch_batches=1, **how)
        sums = []
        for _ in range(12):
            for batch in loader:
                for _ in range(4):
                    busy = torch.tanh(busy @ busy * 1e-3)
                sums.append(batch["image"].to(torch.int64).sum(dim=(1, 2, 3)))
        torch.cuda.synchronize()
        got = [total.cpu().numpy() for total in sums]
        loader.close()
        calm = Loader(path, 7, **how)
        want = []
        for _ in range(12):
            for batch in calm:
                torch.cuda.synchronize()
                want.append(batch["image"].cpu().to(torch.int64).sum(dim=(1, 2, 3)).numpy())
        calm.close()
        assert all((item == other).all() for item, other in zip(got, want, strict=True))


@needs_gpu
def test_memory_stays_bounded_when_nobody_waits(raw):
    loader = Loader(
        raw, 7, order="random", pipelines={"image": [ops.RandomResizedCrop(64)]}, device="cuda", decode="gpu"
    )
    for _ in range(3):
        for _ in loader:
            pass
    torch.cuda.synchronize()
    before = torch.cuda.max_memory_allocated()
    for _ in range(20):
        for _ in loader:
            pass
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() <= 1.5 * before + (32 << 20)
    loader.close()


# --- the kernels, without a GPU -----------------------------------------------------------------------------

INTERPRETED = """
import contextlib, sys
import numpy as np, torch
torch.cuda.device = lambda device: contextlib.nullcontext()
from batchplant.interop.gpu import resample as by_torch, resample_kernel

rng = np.random.default_rng(0)
for filter in ("area", "bilinear", "bicubic"):
    for size in ((24, 20), (50, 9)):
        sizes = rng.integers(12, 60, (5, 2))
        images = [torch.from_numpy(rng.integers(0, 256, (h, w, 3), dtype=np.uint8)) for h, w in sizes]
        boxes = np.array([[*rng.integers(0, 4, 2), w - 3, h - 2] for h, w in sizes], dtype=np.float64)
        start = np.array([one.data_ptr() for one in images])
        strides = np.stack([sizes[:, 1] * 3, np.full(5, 3), np.ones(5, np.int64)], axis=1)
        sources = by_torch.Sources(start, strides, sizes, np.zeros((5, 2), np.int64), images, images)
        want, got = (torch.empty((5, *size, 3), dtype=torch.uint8) for _ in range(2))
        how = {"filter": filter, "channels_first": False, "scale": None, "offset": None}
        flip = np.array([0, 1, 0, 1, 1])
        parameters = by_torch.parameters_of(sources, boxes, flip)
        by_torch.resample(sources, parameters, want, upload=torch.from_numpy, **how)
        table = torch.from_numpy(parameters)
        counts = [by_torch.max_taps(filter, boxes[:, 3 - s] - boxes[:, 1 - s], size[s]) for s in (0, 1)]
        rows, columns = resample_kernel.taps(table, size, tuple(counts), filter)
        resample_kernel.resample(table, rows, columns, got, got.stride(), size, filter, None, None)
        apart = (got.int() - want.int()).abs().max().item()
        assert apart <= 1, (filter, size, apart)
"""


@pytest.mark.skipif(HAS_CUDA, reason="the kernels themselves run there")
def test_the_kernels_do_what_torch_does():
    """Triton can interpret kernels; where it is installed, that is how they are tried without a GPU."""
    pytest.importorskip("triton")
    done = processes.run(
        [sys.executable, "-W", "ignore", "-c", INTERPRETED],
        env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
