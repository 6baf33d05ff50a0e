"""Sounds as images of their frequencies, and masks over those."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from .. import _native
from ..errors import DecodeError, OptionError
from ..ops.base import Tensor
from ..schema.columns import I64, AnyArray, starts_of
from .audio import check_sound, time_axis
from .base import F64, Batch, CellErrors, Draws, Op, Spec, Tensors, check_probability
from .parallel import Threads

LOGS = (None, "db", "natural")
SCALES = ("htk", "slaney")
# Silence: no logarithm is minus infinity.
MIN_POWER = 1e-10


class Spectrogram(Op):
    """Strength of every frequency in windows of a sound, ``hop_length`` frames apart: float32.

    A sound (frames,) becomes (bins, windows), one of (frames, channels) becomes (channels, bins, windows);
    a ragged batch stays one, with time first: (windows, bins), or (windows, channels, bins). n_fft: length of
    a transform; bins: n_fft / 2 + 1. win_length: of the Hann window in its middle (default: n_fft).
    hop_length: default, half a window. power: 2 for energies, 1 for magnitudes. center: windows are around
    frames 0, hop_length, …, the sound mirrored at its ends; else only whole windows. log: None, db
    (decibels), or natural. top_db: with db, nothing is more than this below the loudest of its sound.
    workers: threads, by default as many as there are processors.
    """

    def __init__(
        self,
        n_fft: int = 400,
        *,
        win_length: int | None = None,
        hop_length: int | None = None,
        power: float = 2.0,
        center: bool = True,
        log: str | None = None,
        top_db: float | None = None,
        workers: int | None = None,
    ) -> None:
        self.n_fft = _check_integer("n_fft", n_fft, 2)
        self.win_length = self.n_fft if win_length is None else _check_integer("win_length", win_length)
        self.hop_length = (
            max(1, self.win_length // 2) if hop_length is None else _check_integer("hop_length", hop_length)
        )
        self.power, self.center, self.log, self.top_db = float(power), bool(center), log, top_db
        self.workers = workers
        self._threads = Threads(workers)
        if self.win_length > self.n_fft:
            raise OptionError(f"win_length {win_length} is more than n_fft, {n_fft}")
        if not 0 < self.power < math.inf:
            raise OptionError(f"power is a number above 0, such as 2 or 1, not {power}")
        if log not in LOGS:
            raise OptionError(f"log is None, 'db' or 'natural', not {log!r}")
        if top_db is not None and (log != "db" or not top_db > 0):
            raise OptionError("top_db is a number above 0, and goes with log='db'")

    @property
    def rows(self) -> int:
        """Numbers for each window."""
        return self.n_fft // 2 + 1

    def filters(self) -> F64 | None:
        """Return weights of bins in rows, (bins, rows); None: rows are the bins."""
        return None

    @functools.cached_property
    def _window(self) -> npt.NDArray[np.float32]:
        window = np.zeros(self.n_fft, dtype=np.float32)
        first = (self.n_fft - self.win_length) // 2
        # Periodic: the first point of the next window would be 0 again.
        turns = 2 * np.pi * np.arange(self.win_length) / self.win_length
        window[first : first + self.win_length] = 0.5 - 0.5 * np.cos(turns)
        return window

    @functools.cached_property
    def _spectra(self) -> _native.Spectrogram:
        filters = self.filters()
        none = np.empty(0, dtype=np.int64)
        if filters is None:
            parts = none, none, none.astype(np.float32)
        else:
            nonzero = filters != 0
            firsts = np.where(nonzero.any(axis=0), nonzero.argmax(axis=0), 0)
            ends = np.where(nonzero.any(axis=0), len(nonzero) - nonzero[::-1].argmax(axis=0), 0)
            runs = zip(firsts, ends, filters.T, strict=True)
            weights = [row[first:end] for first, end, row in runs]
            parts = firsts, starts_of(ends - firsts), np.concatenate(weights).astype(np.float32)
        return _native.Spectrogram(self._window, self.hop_length, self.center, self.power, *parts)

    def __getstate__(self) -> dict[str, object]:
        return {name: value for name, value in vars(self).items() if name != "_spectra"}

    def infer(self, spec: Spec) -> Spec:
        check_sound(spec, self)
        if spec.ragged:
            return Spec(np.dtype(np.float32), (None, *spec.shape[1:], self.rows), ragged=True)
        axis = time_axis(spec.shape)
        length, channels = spec.shape[axis], spec.shape[:axis] + spec.shape[axis + 1 :]
        count = None if length is None else self._spectra.frames(length)
        if count == 0:
            raise OptionError(f"{type(self).__name__}: {self._too_short(length or 0)}")
        return Spec(np.dtype(np.float32), (*channels, self.rows, count))

    def _too_short(self, length: int) -> str:
        min_frames = self.n_fft // 2 + 1 if self.center else self.n_fft
        return f"a sound of {length} frames is too short for n_fft={self.n_fft}, which needs {min_frames}"

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return self._run_ragged(*batch) if isinstance(batch, tuple) else self._run_dense(batch)

    def _run_dense(self, batch: Batch) -> Batch:
        axis = time_axis(batch.shape[1:]) + 1
        sounds = np.moveaxis(batch, axis, -1)
        out = np.empty((*sounds.shape[:-1], self.rows, self._spectra.frames(sounds.shape[-1])), np.float32)

        def transform(row: int) -> None:
            signals = np.ascontiguousarray(sounds[row], dtype=np.float32).reshape(-1, sounds.shape[-1])
            spectra = out[row].reshape(len(signals), *out.shape[-2:])
            self._spectra.run(signals, spectra)
            self._take_log(spectra)

        self._threads.each(len(batch), transform)
        return out

    def _run_ragged(self, values: AnyArray, offsets: I64) -> Batch:
        counts = np.array([self._spectra.frames(size) for size in np.diff(offsets).tolist()], dtype=np.int64)
        if len(counts) and not counts.min():
            short = np.flatnonzero(counts == 0).tolist()
            raise CellErrors(
                {row: DecodeError(self._too_short(int(offsets[row + 1] - offsets[row]))) for row in short}
            )
        starts = starts_of(counts)
        out = np.empty((int(starts[-1]), *values.shape[1:], self.rows), dtype=np.float32)

        def transform(row: int) -> None:
            signals = np.ascontiguousarray(values[offsets[row] : offsets[row + 1]].T, dtype=np.float32)
            spectra = out[starts[row] : starts[row + 1]]
            signals = signals.reshape(-1, signals.shape[-1])
            spread = spectra.reshape(len(spectra), -1, self.rows)
            self._spectra.run(signals, spread.transpose(1, 2, 0))
            self._take_log(spectra)

        self._threads.each(len(counts), transform)
        return out, starts

    def _take_log(self, spectra: AnyArray) -> None:
        """Take the logarithm of one sound in place."""
        if self.log is None:
            return
        np.log(np.maximum(spectra, MIN_POWER, out=spectra), out=spectra)
        if self.log == "db":
            spectra *= np.float32(self._decibels)
            if self.top_db is not None and spectra.size:
                np.maximum(spectra, spectra.max() - np.float32(self.top_db), out=spectra)

    @property
    def _decibels(self) -> float:
        return (20 / self.power) / math.log(10)

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        torch = tensors.torch
        sounds = batch.movedim(time_axis(tuple(batch.shape[1:])) + 1, -1).float()
        lead, length = sounds.shape[:-1], sounds.shape[-1]
        half = self.n_fft // 2
        if not len(sounds):
            return sounds.new_empty((*lead, self.rows, self._spectra.frames(length)))
        signals = sounds.reshape(1, -1, length)
        if self.center:
            signals = torch.nn.functional.pad(signals, (half, half), mode="reflect")
        windows = signals[0].unfold(-1, self.n_fft, self.hop_length) * tensors.send(self._window)
        spectra = torch.fft.rfft(windows).abs() ** self.power
        filters = self.filters()
        if filters is not None:
            # In float32, torch may be told to round what it multiplies (TF32).
            spectra = (spectra.double() @ tensors.send(filters).double()).float()
        spectra = spectra.transpose(-1, -2).reshape(*lead, self.rows, -1).contiguous()
        if self.log is None:
            return spectra
        spectra = spectra.clamp(min=MIN_POWER).log()
        if self.log == "db":
            spectra = spectra * self._decibels
            if self.top_db is not None:
                loudest = spectra.amax(tuple(range(1, spectra.ndim)), keepdim=True)
                spectra = torch.maximum(spectra, loudest - self.top_db)
        return spectra

    def close(self) -> None:
        self._threads.close()


class MelSpectrogram(Spectrogram):
    """A Spectrogram whose bins are summed to ``n_mels`` bands, as wide as hearing tells them apart: float32.

    sample_rate: of the sounds. f_min, f_max: of the bands, in Hz (default: 0 to half the rate). mel_scale:
    htk or slaney. norm: None, or slaney: divided by the width of its band. n_fft, win_length, hop_length,
    power, center, log, top_db: as of :class:`Spectrogram`. With the same arguments it gives what torchaudio's
    MelSpectrogram gives.
    """

    def __init__(
        self,
        sample_rate: int = 16000,
        n_fft: int = 400,
        n_mels: int = 128,
        *,
        win_length: int | None = None,
        hop_length: int | None = None,
        f_min: float = 0.0,
        f_max: float | None = None,
        mel_scale: str = "htk",
        norm: str | None = None,
        power: float = 2.0,
        center: bool = True,
        log: str | None = None,
        top_db: float | None = None,
        workers: int | None = None,
    ) -> None:
        self.sample_rate = _check_integer("sample_rate", sample_rate)
        super().__init__(
            n_fft, win_length=win_length, hop_length=hop_length, power=power, center=center, log=log,
            top_db=top_db, workers=workers,
        )  # fmt: skip
        self.n_mels = _check_integer("n_mels", n_mels)
        self.f_min, self.f_max = float(f_min), sample_rate / 2 if f_max is None else float(f_max)
        self.mel_scale, self.norm = mel_scale, norm
        if not 0 <= self.f_min < self.f_max:
            raise OptionError(f"f_min and f_max are from 0 on and ascend, not {f_min} and {self.f_max}")
        if mel_scale not in SCALES:
            raise OptionError(f"mel_scale is htk or slaney, not {mel_scale!r}")
        if norm not in (None, "slaney"):
            raise OptionError(f"norm is None or slaney, not {norm!r}")

    @property
    def rows(self) -> int:
        return self.n_mels

    def filters(self) -> F64:
        """Return triangles, from the middle of the band before to that of the band after."""
        low, high = _mels(np.array([self.f_min, self.f_max]), self.mel_scale).tolist()
        mels = np.linspace(low, high, self.n_mels + 2)
        edges = _hertz(mels, self.mel_scale)
        # As torchaudio counts them: half of an odd rate is not the last bin's.
        bins = np.linspace(0, self.sample_rate // 2, self.n_fft // 2 + 1)[:, None]
        rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
        falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
        triangles: F64 = np.maximum(0, np.minimum(rising, falling))
        return triangles * (2 / (edges[2:] - edges[:-2])) if self.norm == "slaney" else triangles


# Slaney's scale is linear below a kilohertz and a logarithm above.
_LINEAR = 200 / 3
_KNEE = 1000.0
_STEP = math.log(6.4) / 27


def _mels(hertz: F64, scale: str) -> F64:
    if scale == "htk":
        return 2595 * np.log10(1 + hertz / 700)
    above = _KNEE / _LINEAR + np.log(np.maximum(hertz, _KNEE) / _KNEE) / _STEP
    return np.where(hertz < _KNEE, hertz / _LINEAR, above)


def _hertz(mels: F64, scale: str) -> F64:
    if scale == "htk":
        return 700 * (10 ** (mels / 2595) - 1)
    knee = _KNEE / _LINEAR
    return np.where(mels < knee, mels * _LINEAR, _KNEE * np.exp(_STEP * (np.maximum(mels, knee) - knee)))


class SpecAugment(Op):
    """Masks over random stretches of time and bands of frequency of spectrograms.

    time, frequency: how wide a mask may be, in windows and in bands. time_masks, frequency_masks: how many.
    longest: a mask of time covers at most this part of a spectrogram. value: what a mask holds, or mean.
    Spectrograms are (…, frequency, time), or ragged with time first and frequency last.
    """

    def __init__(
        self,
        time: int = 40,
        frequency: int = 27,
        *,
        time_masks: int = 2,
        frequency_masks: int = 2,
        longest: float = 1.0,
        value: float | str = 0.0,
        p: float = 1.0,
        share: str | None = None,
    ) -> None:
        self.time, self.frequency = _check_integer("time", time, 0), _check_integer("frequency", frequency, 0)
        self.time_masks = _check_integer("time_masks", time_masks, 0)
        self.frequency_masks = _check_integer("frequency_masks", frequency_masks, 0)
        self.longest, self.p = check_probability(longest, "longest"), check_probability(p, "p")
        self.value, self.share = value, share
        if isinstance(value, str) and value != "mean":
            raise OptionError(f"value is a number, or 'mean', not {value!r}")

    def infer(self, spec: Spec) -> Spec:
        if spec.dtype is None or spec.dtype.kind != "f" or spec.torch or len(spec.shape) < 2:
            raise OptionError(f"SpecAugment needs spectrograms, not {spec}: put MelSpectrogram() before it")
        return spec

    def _masks(self, times: AnyArray, bands: int, draws: Draws) -> tuple[I64, I64]:
        """(samples, masks, 2) of time and of frequency: from and to; ``times``: windows of each sample."""
        chosen = draws.chance(self.p)
        times = np.broadcast_to(times, chosen.shape)
        masks = []
        for count, max_width, size in (
            (self.time_masks, np.minimum(self.time, self.longest * times), times),
            (self.frequency_masks, np.minimum(self.frequency, wide := np.full(len(chosen), bands)), wide),
        ):
            part, position = draws.uniform(0, 1, count), draws.uniform(0, 1, count)
            width = np.floor(part * (np.floor(max_width) + 1)[:, None]).astype(np.int64) * chosen[:, None]
            first = np.floor(position * (size[:, None] - width + 1)).astype(np.int64)
            masks.append(np.stack([first, first + width], axis=-1))
        return masks[0], masks[1]

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        values, offsets = batch if isinstance(batch, tuple) else (batch, None)
        times = values.shape[-1] if offsets is None else np.diff(offsets)
        masks = self._masks(times, values.shape[-2 if offsets is None else -1], draws)
        for row in range(len(ids)):
            spectrogram = values[row] if offsets is None else values[offsets[row] : offsets[row + 1]]
            if offsets is not None:
                # Frequency and time last.
                spectrogram = np.moveaxis(spectrogram, 0, -1)
            value = spectrogram.mean() if self.value == "mean" and spectrogram.size else self.value
            for first, last in masks[0][row].tolist():
                spectrogram[..., first:last] = value
            for first, last in masks[1][row].tolist():
                spectrogram[..., first:last, :] = value
        return batch

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        torch = tensors.torch
        lead = [1] * (batch.ndim - 3)
        hidden: Tensor = torch.zeros(1, dtype=torch.bool, device=batch.device)
        for axis, masks in zip((-1, -2), self._masks(batch.shape[-1], batch.shape[-2], draws), strict=True):
            index = torch.arange(batch.shape[axis], device=batch.device)
            first, last = tensors.send(masks).unbind(-1)
            under = ((index >= first[..., None]) & (index < last[..., None])).any(1)
            tail = (1, batch.shape[-1]) if axis == -1 else (batch.shape[-2], 1)
            hidden = hidden | under.view(len(under), *lead, *tail)
        if self.value == "mean":
            value = batch.mean(tuple(range(1, batch.ndim)), keepdim=True)
        else:
            value = torch.full((), float(self.value), dtype=batch.dtype, device=batch.device)
        return torch.where(hidden, value, batch)


def _check_integer(name: str, value: object, minimum: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < minimum:
        raise OptionError(f"{name} is a whole number from {minimum} on, not {value!r}")
    return int(value)
