"""Ops on sounds and spectrograms, against plain NumPy in float64 and against librosa's results."""

from __future__ import annotations

import pickle
from contextlib import closing
from typing import Any

import numpy as np
import pytest

import batchplant as bp
from batchplant import ops
from batchplant.errors import DecodeError, OptionError
from batchplant.ops import CellErrors, Draws, Spec
from repository import GOLDEN

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def draws(ids: Any, **how: Any) -> Draws:
    return Draws(how.get("seed", 1), how.get("epoch", 0), np.asarray(ids, dtype=np.int64), "op")


def sounds(count: int, *shape: int) -> Any:
    return np.random.default_rng(count).standard_normal((count, *shape)).astype(np.float32)


def run(op: ops.Op, batch: Any, ids: Any = None, **how: Any) -> Any:
    count = len(batch[1]) - 1 if isinstance(batch, tuple) else len(batch)
    ids = np.arange(count) if ids is None else np.asarray(ids)
    given = tuple(item.copy() for item in batch) if isinstance(batch, tuple) else batch.copy()
    return op.run(given, ids, draws(ids, **how))


def ragged(*lengths: int) -> Any:
    return sounds(sum(lengths), 2), np.concatenate([[0], np.cumsum(lengths)])


def decibels(values: Any) -> Any:
    return 10 * np.log10(np.square(values, dtype=np.float64).sum())


# -- what holds for all of them ------------------------------------------------------------------------------

OPS: dict[str, ops.Op] = {
    "gain": ops.RandomGain((-9, 9), p=0.7),
    "noise": ops.AddNoise((0, 20), p=0.7),
    "shift": ops.TimeShift(0.3, p=0.7),
    "shift in silence": ops.TimeShift(900, p=0.7, wrap=False),
    "window": ops.CropOrPad(700),
    "longer": ops.CropOrPad(5000, pad="repeat"),
    "filled": ops.CropOrPad(5000),
    "spectrogram": ops.Spectrogram(64, win_length=50, hop_length=20),
    "mel": ops.MelSpectrogram(8000, 100, 12, log="db", top_db=60.0),
}


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("shape", [(4000,), (4000, 2), (2, 4000)])
def test_a_sound_comes_out_the_same_in_any_batch_and_layout(name, shape):
    op, ids = OPS[name], np.array([5, 2, 9, 2, 30, 1])
    batch = sounds(len(ids), *shape)
    spec = op.infer(Spec(np.dtype(np.float32), shape))
    together = run(op, batch, ids)
    assert together.shape == (len(ids), *spec.shape)
    assert together.dtype == spec.dtype
    for row, sample in enumerate(ids):
        assert np.array_equal(run(op, batch[row : row + 1], [sample])[0], together[row])
    if shape == (2, 4000):
        turned = run(op, np.ascontiguousarray(batch.swapaxes(1, 2)), ids)
        if turned.shape != together.shape:
            turned = turned.swapaxes(1, 2)
        assert np.array_equal(turned, together)
    assert run(op, batch[:0]).shape == (0, *spec.shape)


@pytest.mark.parametrize("name", OPS)
def test_a_ragged_batch_is_its_sounds(name):
    op, (values, offsets) = OPS[name], ragged(2000, 900, 4000)
    spec = op.infer(Spec(np.dtype(np.float32), (None, 2), ragged=True))
    done = run(op, (values, offsets))
    for row in range(3):
        alone = run(op, values[None, offsets[row] : offsets[row + 1]], [row])[0]
        if not spec.ragged:
            assert np.array_equal(done[row], alone)
            continue
        part = done[0][done[1][row] : done[1][row + 1]]
        # Ragged spectrograms have time first.
        assert np.array_equal(part, np.moveaxis(alone, -1, 0) if alone.ndim == 3 else alone)
        assert done[0].shape[1:] == spec.shape[1:]


@pytest.mark.parametrize("name", ["gain", "noise", "shift", "window"])
def test_draws_are_anew_by_sample_and_epoch(name):
    batch = np.repeat(sounds(1, 4000), 30, axis=0)
    done = run(OPS[name], batch)
    assert len(np.unique(done, axis=0)) > 15
    assert not np.array_equal(done, run(OPS[name], batch, epoch=1))


@pytest.fixture
def on(request: pytest.FixtureRequest) -> Any:
    """A device of torch, and what ops work with there."""
    torch = pytest.importorskip("torch")
    from batchplant.interop.gpu.on_device import DeviceTensors

    if request.param == "cuda" and not torch.cuda.is_available():
        pytest.skip("there is no CUDA device")
    device = torch.device(request.param)
    return device, DeviceTensors(device)


@pytest.mark.parametrize("name", OPS)
@pytest.mark.parametrize("on", DEVICES, indirect=True)
def test_the_device_form_gives_the_same(name, on):
    import torch

    op, batch = OPS[name], sounds(7, 4000, 2)
    assert op.device_form is not None
    there = op.device_form(torch.from_numpy(batch.copy()).to(on[0]), np.arange(7), draws(range(7)), on[1])
    here = run(op, batch)
    assert tuple(there.shape) == here.shape
    assert np.abs(there.cpu().numpy() - here).max() <= 1e-4 * max(1, np.abs(here).max())


def test_ops_refuse_what_is_no_sound():
    for op in (ops.RandomGain(), ops.MelSpectrogram()):
        with pytest.raises(OptionError, match='DecodeAudio\\(dtype="float32"\\)'):
            op.infer(Spec(np.dtype(np.int16), (4000, 1)))
        with pytest.raises(OptionError, match="put DecodeAudio"):
            op.infer(Spec(None))
    for wrong in (
        lambda: ops.RandomGain((3, -3)),
        lambda: ops.TimeShift(1.5),
        lambda: ops.CropOrPad(0),
        lambda: ops.CropOrPad(5, at="end"),
        lambda: ops.Spectrogram(64, win_length=65),
        lambda: ops.Spectrogram(log="bels"),
        lambda: ops.Spectrogram(top_db=80.0),
        lambda: ops.MelSpectrogram(f_min=9000),
        lambda: ops.MelSpectrogram(mel_scale="bark"),
        lambda: ops.SpecAugment(value="noise"),
    ):
        with pytest.raises(OptionError):
            wrong()


# -- one by one ----------------------------------------------------------------------------------------------


def test_gain_and_noise_are_as_many_decibels_as_drawn():
    batch = sounds(50, 4000)
    drawn = draws(range(50))
    drawn.chance(1.0)
    levels = drawn.uniform(-9, 9)
    louder = run(ops.RandomGain((-9, 9)), batch)
    noisy = run(ops.AddNoise((-9, 9)), batch)
    for row, level in enumerate(levels):
        assert abs(decibels(louder[row]) - decibels(batch[row]) - level) < 1e-3
        assert abs(decibels(batch[row]) - decibels(noisy[row] - batch[row]) - level) < 1e-3
    quiet = np.zeros((1, 100), dtype=np.float32)
    assert np.array_equal(run(ops.AddNoise(), quiet), quiet)


def test_shifts():
    batch = np.tile(np.arange(1, 101, dtype=np.float32), (200, 1))
    rolled = run(ops.TimeShift(0.1), batch)
    by = rolled.argmin(axis=1)
    assert set(((by + 50) % 100 - 50).tolist()) == set(range(-10, 11))
    for row, shift in enumerate(by):
        assert np.array_equal(rolled[row], np.roll(batch[row], shift))
    silent = run(ops.TimeShift(10, wrap=False), batch)
    for row in range(200):
        kept = silent[row] != 0
        assert np.array_equal(silent[row][kept], rolled[row][kept])
        assert (~kept).sum() == min(by[row], 100 - by[row])


def test_windows_of_sounds():
    values, offsets = ragged(10, 4)
    assert np.array_equal(run(ops.CropOrPad(6, "start"), (values, offsets))[0], values[:6])
    assert np.array_equal(run(ops.CropOrPad(6, "center"), (values, offsets))[0], values[2:8])
    filled = run(ops.CropOrPad(6), (values, offsets))
    assert np.array_equal(filled[1], np.concatenate([values[10:], np.zeros((2, 2), np.float32)]))
    again = run(ops.CropOrPad(6, pad="repeat"), (values, offsets))
    assert np.array_equal(again[1], np.concatenate([values[10:], values[10:12]]))
    with pytest.raises(CellErrors) as caught:
        run(ops.CropOrPad(6, pad=None), (values, offsets))
    assert list(caught.value.errors) == [1]
    with pytest.raises(OptionError, match="pad is None"):
        ops.CropOrPad(6, pad=None).infer(Spec(np.dtype(np.float32), (4, 1)))
    spectra = sounds(3, 1, 20, 50)
    assert run(ops.CropOrPad(30), spectra).shape == (3, 1, 20, 30)


# -- spectrograms --------------------------------------------------------------------------------------------


def reference(sound: Any, size: int, hop: int, window: int, power: float, center: bool = True) -> Any:
    """By the definition, in float64."""
    hann = np.zeros(size)
    first = (size - window) // 2
    hann[first : first + window] = np.sin(np.pi * np.arange(window) / window) ** 2
    signal = np.pad(np.asarray(sound, np.float64), size // 2, mode="reflect") if center else sound
    frames = [signal[at : at + size] * hann for at in range(0, len(signal) - size + 1, hop)]
    return np.abs(np.fft.rfft(frames)).T ** power


@pytest.mark.parametrize("size", [2, 6, 64, 77, 100, 250, 400, 441, 512, 2 * 7 * 11, 1021])
@pytest.mark.parametrize("power", [1.0, 2.0, 1.5])
def test_spectra_are_those_of_the_definition(size, power):
    sound = sounds(1, 1111)
    window, hop = max(1, size - 3), max(1, size // 3)
    for center in (True, False):
        op = ops.Spectrogram(size, win_length=window, hop_length=hop, power=power, center=center)
        want = reference(sound[0], size, hop, window, power, center)
        result = run(op, sound)[0]
        assert result.shape == want.shape == op.infer(Spec(np.dtype(np.float32), (1111,))).shape
        assert np.abs(result - want).max() <= 1e-5 * want.max()


def mel_of(hertz: Any, scale: str) -> Any:
    if scale == "htk":
        return 2595 * np.log10(1 + np.asarray(hertz) / 700)
    return np.array([f * 3 / 200 if f < 1000 else 15 + 27 * np.log(f / 1000) / np.log(6.4) for f in hertz])


@pytest.mark.parametrize("scale", ["htk", "slaney"])
@pytest.mark.parametrize("norm", [None, "slaney"])
def test_mel_bands_are_those_of_the_definition(scale, norm):
    op = ops.MelSpectrogram(22050, 512, 40, f_min=30, f_max=9000, mel_scale=scale, norm=norm)
    # Frequencies that are equally far apart in mels, found by searching the scale.
    grid = np.linspace(0, 11025, 100_001)
    mels = np.linspace(*mel_of([30.0, 9000.0], scale), 42)
    edges = np.interp(mels, mel_of(grid, scale), grid)
    bins = np.arange(257) * 22050 / 512
    want = np.zeros((257, 40))
    for band in range(40):
        low, middle, high = edges[band : band + 3]
        height = 2 / (high - low) if norm else 1.0
        want[:, band] = height * np.interp(bins, [low, middle, high], [0, 1, 0])
    assert np.abs(op.filters() - want).max() < 1e-5
    sound = sounds(1, 4000)
    power = reference(sound[0], 512, op.hop_length, 512, 2.0)
    assert np.abs(run(op, sound)[0] / (want.T @ power) - 1).max() < 1e-4


@pytest.mark.parametrize("name", ["htk", "slaney", "magnitude", "uncentered"])
def test_mel_spectrograms_of_librosa(name):
    arguments: dict[str, Any] = {
        "htk": {"n_fft": 400, "n_mels": 40, "hop_length": 160},
        "slaney": {
            "n_fft": 512, "n_mels": 64, "hop_length": 128, "win_length": 400, "mel_scale": "slaney",
            "norm": "slaney",
        },
        "magnitude": {"n_fft": 250, "n_mels": 20, "hop_length": 100, "power": 1.0, "norm": "slaney"},
        "uncentered": {
            "n_fft": 400, "n_mels": 30, "hop_length": 200, "mel_scale": "slaney", "center": False,
            "f_min": 60.0, "f_max": 7000.0,
        },
    }  # fmt: skip
    with np.load(GOLDEN / "spectrograms.npz") as golden:
        sound, want = golden["sound"], golden[name]
    result = run(ops.MelSpectrogram(16000, **arguments[name]), sound[None])[0]
    assert result.shape == want.shape
    assert np.abs(result - want).max() <= 1e-4 * want.max()


def test_logarithms():
    sound = sounds(2, 3000)
    sound[1] = 0
    plain = run(ops.MelSpectrogram(n_mels=20), sound)
    done = run(ops.MelSpectrogram(n_mels=20, log="db"), sound)
    assert np.abs(done - 10 * np.log10(np.maximum(plain, 1e-10))).max() < 1e-3
    assert np.abs(done[1] + 100).max() < 1e-3
    magnitudes = run(ops.MelSpectrogram(n_mels=20, power=1.0, log="db"), sound)
    plain_1 = run(ops.MelSpectrogram(n_mels=20, power=1.0), sound)
    assert np.abs(magnitudes - 20 * np.log10(np.maximum(plain_1, 1e-10))).max() < 1e-3
    cut = run(ops.MelSpectrogram(n_mels=20, log="db", top_db=10.0), sound)
    assert np.abs(cut[0] - np.maximum(done[0], done[0].max() - 10)).max() < 1e-5
    natural = run(ops.MelSpectrogram(n_mels=20, log="natural"), sound)
    assert np.abs(natural - np.log(np.maximum(plain, 1e-10))).max() < 1e-4


def test_short_sounds():
    with pytest.raises(OptionError, match="200 frames is too short for n_fft=400, which needs 201"):
        ops.Spectrogram(400).infer(Spec(np.dtype(np.float32), (200,)))
    assert run(ops.Spectrogram(400), sounds(1, 201)).shape == (1, 201, 2)
    with pytest.raises(CellErrors) as caught:
        run(ops.Spectrogram(400), ragged(300, 7))
    assert isinstance(caught.value.errors[1], DecodeError)


def test_spectrograms_can_be_pickled():
    op = ops.MelSpectrogram(n_mels=20)
    sound = sounds(1, 3000)
    before = run(op, sound)
    assert np.array_equal(run(pickle.loads(pickle.dumps(op)), sound), before)


# -- SpecAugment ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [-3.0, "mean"])
def test_spec_augment(value):
    op = ops.SpecAugment(12, 5, time_masks=2, frequency_masks=1, value=value, p=0.8)
    batch = np.abs(sounds(60, 2, 20, 50)) + 1
    done = run(op, batch)
    hidden = done != batch
    assert np.array_equal(hidden[:, 0], hidden[:, 1])
    assert 5 < (~hidden.any(axis=(1, 2, 3))).sum() < 25
    for row, mask in enumerate(hidden[:, 0]):
        want = batch[row].mean() if value == "mean" else value
        assert np.allclose(done[row, 0][mask], want)
        columns, rows = mask.all(axis=0), mask.all(axis=1)
        # Nothing is hidden but whole columns and rows.
        assert np.array_equal(mask, columns[None] | rows[:, None])
        assert columns.sum() <= 24
        assert rows.sum() <= 5
    # Ragged, time first.
    values, offsets = np.moveaxis(batch[0], -1, 0).copy(), np.array([0, 50])
    alone = run(op, (values, offsets))[0]
    assert np.array_equal(np.moveaxis(alone, 0, -1), done[0])
    torch = pytest.importorskip("torch")
    from batchplant.interop.gpu.on_device import DeviceTensors

    tensors = DeviceTensors(torch.device("cpu"))
    there = op.on_device(torch.from_numpy(batch.copy()), np.arange(60), draws(range(60)), tensors)
    assert np.allclose(there.numpy(), done, atol=1e-6)


def test_masks_of_time_are_at_most_a_part():
    batch = np.ones((100, 10, 20), dtype=np.float32)
    done = run(ops.SpecAugment(40, 0, time_masks=1, longest=0.25), batch)
    assert (done == 0).all(axis=1).sum(axis=1).max() == 5
    with pytest.raises(OptionError, match="put MelSpectrogram"):
        ops.SpecAugment().infer(Spec(np.dtype(np.float32), (20,)))


def test_a_loader_of_spectrograms(tmp_path):
    with bp.create(tmp_path / "sounds.tar", {"audio": bp.Audio("wav", rate=8000, channels=1)}) as out:
        for number in range(6):
            wave = np.sin(np.arange(3000 + 500 * number) / (3 + number))
            out.append({"audio": ((8000 * wave[:, None]).astype(np.int16), 8000)})
    pipeline = [
        ops.DecodeAudio(), ops.AddNoise(), ops.CropOrPad(2000), ops.RandomGain(),
        ops.MelSpectrogram(8000, 256, 32, log="db"), ops.SpecAugment(4, 4),
    ]  # fmt: skip
    with closing(bp.Loader(tmp_path / "sounds.tar", 3, pipelines={"audio": pipeline}, seed=3)) as loader:
        first, again = ([batch["audio"] for batch in loader] for _ in range(2))
        assert [item.shape for item in first] == [(3, 1, 32, 16)] * 2
        assert not np.array_equal(first[0], again[0])
    with closing(bp.Loader(tmp_path / "sounds.tar", 2, pipelines={"audio": pipeline}, seed=3)) as loader:
        assert np.array_equal(next(iter(loader))["audio"], first[0][:2])


@pytest.mark.parametrize("on", DEVICES, indirect=True)
def test_steps_behind_a_decoder_run_on_a_device(tmp_path, on):
    fields = {"audio": bp.Audio("wav", rate=8000, channels=1), "label": bp.Int()}
    with bp.create(tmp_path / "sounds.tar", fields) as out:
        for number in range(5):
            wave = np.sin(np.arange(3000) / (3 + number))
            out.append({"audio": ((8000 * wave[:, None]).astype(np.int16), 8000), "label": number})
    pipelines = {
        "audio": [ops.DecodeAudio(frames=2000), ops.RandomGain(), ops.MelSpectrogram(8000, 256, 32)],
        "label": [ops.Convert("float32")],
    }
    with closing(bp.Loader(tmp_path / "sounds.tar", 5, pipelines=pipelines, seed=3)) as loader:
        here = next(iter(loader))
    with closing(
        bp.Loader(tmp_path / "sounds.tar", 5, pipelines=pipelines, seed=3, device=on[0], decode="cpu")
    ) as loader:
        assert "→ device → RandomGain" in str(loader.plan)
        assert "device → Convert" not in str(loader.plan)
        there = next(iter(loader))
    assert np.allclose(there["audio"].cpu().numpy(), here["audio"], rtol=1e-4, atol=1e-4)
    assert there["label"].tolist() == here["label"].tolist()
