"""Decoding and augmentation of sounds.

A decoded sound is (frames,), (frames, channels) or (channels, frames), of floating-point numbers; of two
sizes the longer one is time. Batches are arrays, or ragged: (values, offsets) with time first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..codecs.media import audio
from ..codecs.media.audio import Samples
from ..errors import DecodeError, OptionError
from ..schema import Audio, Bytes, Field
from ..schema.columns import I64, U8, AnyArray, Column, Ragged, starts_of
from .base import Batch, CellErrors, CellOp, Draws, Op, Spec, Tensors, check_probability, per_sample
from .dtypes import signed
from .parallel import Threads

WINDOWS = ("random", "centre", "start")
PADS = ("zero", "repeat", None)


class DecodeAudio(CellOp):
    """Encoded sounds as samples.

    Without a length: each sound whole, a ragged batch (values, offsets), values of shape (frames, channels).
    With ``seconds`` or ``frames``: a window of every sound, an array (samples, frames, channels); of longer
    sounds only the window is decoded, shorter ones are filled.

    window: random (each sample its own, anew in every epoch), centre, start. rate: resampled to it; frames
    and seconds are of the result. mono: the mean of the channels. dtype: float32, float64, int16, int32.
    pad: what comes behind a sound that is too short: zero, repeat (the sound again), None (an error).
    lengths: gives (array, lengths), how many frames of each are its own. channels_first: the array is
    (samples, channels, frames). workers: threads, by default as many as there are processors.
    """

    def __init__(
        self,
        seconds: float | None = None,
        frames: int | None = None,
        *,
        window: str = "random",
        rate: int | None = None,
        mono: bool = False,
        dtype: Any = "float32",
        pad: str | None = "zero",
        lengths: bool = False,
        channels_first: bool = False,
        workers: int | None = None,
        share: str | None = None,
    ) -> None:
        self.seconds, self.frames, self.window = seconds, frames, window
        self.rate, self.mono, self.dtype = rate, bool(mono), np.dtype(dtype)
        self.pad, self.lengths, self.channels_first = pad, bool(lengths), bool(channels_first)
        self.workers, self.share = workers, share
        self._threads = Threads(workers)
        if seconds is not None and frames is not None:
            raise OptionError("give seconds or frames, not both")
        if seconds is not None and not 0 < seconds < math.inf:
            raise OptionError(f"seconds is a number above 0, not {seconds!r}")
        for name, value in (("frames", frames), ("rate", rate)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} is a whole number from 1 on, not {value!r}")
        if window not in WINDOWS:
            raise OptionError(f"window is one of {', '.join(WINDOWS)}, not {window!r}")
        if pad not in PADS:
            raise OptionError(f"pad is zero, repeat or None, not {pad!r}")
        if self.dtype.name not in audio.DTYPES:
            raise OptionError(f"sounds are decoded to {', '.join(audio.DTYPES)}, not {self.dtype}")
        if self._whole and (lengths or channels_first):
            raise OptionError(
                "lengths and channels_first are for sounds of one length: give seconds or frames"
            )

    @property
    def _whole(self) -> bool:
        return self.seconds is None and self.frames is None

    def infer_field(self, field: Field) -> Spec:
        if not isinstance(field, Audio | Bytes) or field.optional:
            raise OptionError(f"DecodeAudio takes sounds that are never missing, and this is {field}")
        channels = 1 if self.mono else getattr(field, "channels", None)
        rate = self.rate or getattr(field, "rate", None)
        if self._whole:
            return Spec(self.dtype, (None, channels), ragged=True)
        if self.frames is None and rate is None:
            raise OptionError(
                "the sounds may differ in their rate: give a rate, or frames instead of seconds"
            )
        frames = self._length(rate or 0)
        shape = (channels, frames) if self.channels_first else (frames, channels)
        # An array and the lengths beside it are no array: a function has to take them apart.
        return Spec(None) if self.lengths else Spec(self.dtype, shape)

    def _length(self, rate: int) -> int:
        return self.frames if self.frames is not None else max(1, round((self.seconds or 0) * rate))

    def run(self, batch: Column, ids: I64, draws: Draws) -> Batch:
        assert isinstance(batch, Ragged)
        chance = draws.uniform()
        if not len(batch):
            return self._nothing()
        first = self._threads.each(1, lambda row: audio.header(_cell(batch, row)))[0]
        if self._whole:
            return self._run_whole(batch, first)
        length, channels = self._length(self.rate or first.rate), 1 if self.mono else first.channels
        shape = (channels, length) if self.channels_first else (length, channels)
        out = np.zeros((len(batch), *shape), dtype=self.dtype)

        def window(row: int) -> int:
            data = _cell(batch, row)
            part = self._window(data, self._header(data, first), length, float(chance[row]))
            destination = out[row].T if self.channels_first else out[row]
            destination[: len(part)] = part
            if self.pad == "repeat" and len(part):
                for start in range(len(part), length, len(part)):
                    destination[start : start + len(part)] = part[: length - start]
            return len(part)

        lengths = np.array(self._threads.each(len(batch), window), dtype=np.int64)
        return (out, lengths) if self.lengths else out

    def _nothing(self) -> Batch:
        zero = np.zeros(1, dtype=np.int64)
        if self._whole:
            return np.empty((0, 1), dtype=self.dtype), zero
        out = np.empty(
            (0, *(1, self._length(self.rate or 0))[:: 1 if self.channels_first else -1]), self.dtype
        )
        return (out, zero[:0]) if self.lengths else out

    def _run_whole(self, batch: Ragged, first: audio.Header) -> Batch:
        def whole(row: int) -> Samples:
            data = _cell(batch, row)
            return self._decode(data, self._header(data, first), 0, None)

        parts = self._threads.each(len(batch), whole)
        offsets = starts_of(np.array([len(part) for part in parts], dtype=np.int64))
        return np.concatenate(parts), offsets

    def _header(self, data: U8, first: audio.Header) -> audio.Header:
        """The sounds of one batch have to agree in what the op does not change."""
        header = audio.header(data)
        if not self.mono and header.channels != first.channels:
            raise DecodeError(
                f"it has {header.channels} channels, and the first sound of the batch {first.channels}; "
                "mono=True makes one of them"
            )
        if self.seconds is not None and self.rate is None and header.rate != first.rate:
            raise DecodeError(
                f"its rate is {header.rate} Hz, and that of the batch's first {first.rate} Hz; give a rate"
            )
        return header

    def _window(self, data: U8, header: audio.Header, length: int, chance: float) -> Samples:
        """At most ``length`` frames of the sound, at the rate of the batch."""
        rate = self.rate or header.rate
        needed = length if rate == header.rate else math.ceil(length * header.rate / rate)
        spare = max(0, header.frames - needed)
        start = {"start": 0, "centre": spare // 2}.get(self.window, min(spare, int(chance * (spare + 1))))
        part = self._decode(data, header, start, needed)[:length]
        if self.pad is None and len(part) < length:
            raise DecodeError(f"it has {len(part)} frames, and {length} are wanted; pad fills it")
        return part

    def _decode(self, data: U8, header: audio.Header, start: int, frames: int | None) -> Samples:
        return audio.decode(
            data, start, frames, rate=self.rate, mono=self.mono, dtype=self.dtype, header_of_sound=header
        )


def _cell(batch: Ragged, row: int) -> Batch:
    cell = batch[row]
    if cell is None:
        raise DecodeError("there is no sound")
    return cell.data


PLACES = ("random", "centre", "start")
FILLS = ("zero", "repeat", None)
# If only one size is known, a larger one is time.
MAX_CHANNELS = 64


def time_axis(shape: Sequence[int | None]) -> int:
    """Time axis of a sound (or, of three sizes, a spectrogram); ``shape`` is without the batch."""
    if len(shape) != 2:
        return len(shape) - 1
    first, last = shape
    if first is None or last is None:
        size = first if last is None else last
        return int((last is None) == (size is not None and size <= MAX_CHANNELS))
    return int(last > first)


def check_sound(spec: Spec, op: object) -> Spec:
    """The spec of a batch of sounds; OptionError where it is none."""
    name = type(op).__name__
    if spec.dtype is None or spec.torch or not 1 <= len(spec.shape) <= 2:
        raise OptionError(
            f"{name} needs sounds (frames, channels), not {spec}: put DecodeAudio() first (without lengths)"
        )
    if spec.dtype.kind != "f":
        raise OptionError(
            f'{name} needs sounds of floating-point numbers, not {spec}: DecodeAudio(dtype="float32") gives '
            "them, or Convert"
        )
    return spec


def span_of(value: float | Sequence[float], name: str) -> tuple[float, float]:
    """(low, high); one number stands for both."""
    pair = [float(number) for number in np.atleast_1d(np.asarray(value, dtype=np.float64)).flat]
    pair = pair * 2 if len(pair) == 1 else pair
    if len(pair) != 2 or not all(map(math.isfinite, pair)) or pair[0] > pair[1]:
        raise OptionError(f"{name} is one number or (low, high), not {value!r}")
    return pair[0], pair[1]


class SoundOp(Op):
    """Done to each sound with probability ``p``, by an amount that is drawn for it."""

    p: float

    def infer(self, spec: Spec) -> Spec:
        return check_sound(spec, self)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        chosen, amounts = draws.chance(self.p), self.amounts(draws)
        draws.reserve(1)
        for row in np.flatnonzero(chosen).tolist():
            if isinstance(batch, tuple):
                values, offsets = batch
                sound = values[offsets[row] : offsets[row + 1]]
            else:
                sound = np.moveaxis(batch[row], time_axis(batch.shape[1:]), 0)
            self.change(sound, float(amounts[row]), row, draws)
        return batch

    def amounts(self, draws: Draws) -> Batch:
        """One number for each sample of the batch."""
        raise NotImplementedError

    def change(self, sound: AnyArray, amount: float, row: int, draws: Draws) -> None:
        """Change one sound, time first, in place."""
        raise NotImplementedError


class RandomGain(SoundOp):
    """Louder or quieter by a random number of ``decibels``, (low, high)."""

    def __init__(
        self, decibels: float | Sequence[float] = (-6.0, 6.0), p: float = 1.0, *, share: str | None = None
    ) -> None:
        self.decibels, self.p, self.share = span_of(decibels, "decibels"), check_probability(p, "p"), share

    def amounts(self, draws: Draws) -> Batch:
        return 10 ** (draws.uniform(*self.decibels) / 20)

    def change(self, sound: AnyArray, amount: float, row: int, draws: Draws) -> None:
        sound *= np.asarray(amount, dtype=sound.dtype)

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        factor = np.where(draws.chance(self.p), self.amounts(draws), 1.0)
        return batch * tensors.send(per_sample(factor, batch.ndim)).to(batch.dtype)


class AddNoise(SoundOp):
    """White noise, so that the signal is a random number of decibels above it: ``snr``, (low, high)."""

    def __init__(
        self, snr: float | Sequence[float] = (10.0, 30.0), p: float = 1.0, *, share: str | None = None
    ) -> None:
        self.snr, self.p, self.share = span_of(snr, "snr"), check_probability(p, "p"), share

    def amounts(self, draws: Draws) -> Batch:
        return draws.uniform(*self.snr)

    def change(self, sound: AnyArray, amount: float, row: int, draws: Draws) -> None:
        noise = draws.noise(row, sound.shape)
        power = np.square(noise, dtype=np.float64).sum()
        if power > 0:
            signal = np.square(sound, dtype=np.float64).sum()
            noise *= np.float32(math.sqrt(signal / (power * 10 ** (amount / 10))))
            sound += noise.astype(sound.dtype, copy=False)

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        chosen, amounts = draws.chance(self.p), self.amounts(draws)
        draws.reserve(1)
        axis = time_axis(tuple(batch.shape[1:]))
        noise = np.zeros(tuple(batch.shape), dtype=np.float32)
        for row in np.flatnonzero(chosen).tolist():
            destination = np.moveaxis(noise[row], axis, 0)
            destination[...] = draws.noise(row, destination.shape)
        sent = tensors.send(noise)
        value_axes = tuple(range(1, batch.ndim))
        power = (sent.double() ** 2).sum(value_axes, keepdim=True)
        power = power + (power == 0)
        signal = (batch.double() ** 2).sum(value_axes, keepdim=True)
        ratio = tensors.send(per_sample(10 ** (amounts / 10), batch.ndim)).double()
        return batch + (sent * (signal / (power * ratio)).sqrt().float()).to(batch.dtype)


class TimeShift(SoundOp):
    """Earlier or later by up to ``most``: a part of the length (float), or frames (int).

    What leaves at one end comes in at the other; ``wrap=False``: silence comes in.
    """

    def __init__(
        self, most: float = 0.1, p: float = 1.0, *, wrap: bool = True, share: str | None = None
    ) -> None:
        if most < 0 or (isinstance(most, float) and not most <= 1):
            raise OptionError(f"most is a part of the length, from 0.0 to 1.0, or whole frames, not {most}")
        self.most, self.p, self.wrap, self.share = most, check_probability(p, "p"), bool(wrap), share

    def amounts(self, draws: Draws) -> Batch:
        return draws.uniform(-1.0, 1.0)

    def _frames(self, amount: AnyArray | float, length: int) -> Batch:
        max_frames = self.most * length if isinstance(self.most, float) else min(self.most, length)
        return np.rint(amount * max_frames).astype(np.int64)

    def change(self, sound: AnyArray, amount: float, row: int, draws: Draws) -> None:
        by = int(self._frames(np.float64(amount), len(sound)))
        if by and len(sound):
            sound[...] = np.roll(sound, by, axis=0)
            if not self.wrap:
                sound[slice(0, by) if by > 0 else slice(by, None)] = 0

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        chosen, amounts = draws.chance(self.p), self.amounts(draws)
        axis = time_axis(tuple(batch.shape[1:])) + 1
        length, torch = batch.shape[axis], tensors.torch
        by = np.where(chosen, self._frames(amounts, length), 0)
        source = np.arange(length) - by[:, None]
        shape = [len(by), *(length if dimension == axis else 1 for dimension in range(1, batch.ndim))]
        index = tensors.send(source % length if length else source).view(shape).expand(batch.shape)
        shifted = torch.gather(batch, axis, index)
        if self.wrap:
            return shifted
        return shifted * tensors.send((source >= 0) & (source < length)).view(shape)


class CropOrPad(Op):
    """Sounds, spectrograms or other sequences of one ``length``: longer ones cut, shorter ones filled.

    at: which part stays of a longer one: random, centre or start. pad: what comes behind a shorter one: zero,
    repeat (the same again), None (an error). Time is the first axis of ragged values and the last of
    spectrograms; of sounds, the longer one.
    """

    def __init__(
        self, length: int, at: str = "random", *, pad: str | None = "zero", share: str | None = None
    ) -> None:
        at = "centre" if at == "center" else at
        if isinstance(length, bool) or not isinstance(length, int) or length < 1:
            raise OptionError(f"length is a whole number from 1 on, not {length!r}")
        if at not in PLACES:
            raise OptionError(f"at is one of {', '.join(PLACES)}, not {at!r}")
        if pad not in FILLS:
            raise OptionError(f"pad is zero, repeat or None, not {pad!r}")
        self.length, self.at, self.pad, self.share = length, at, pad, share

    def infer(self, spec: Spec) -> Spec:
        if spec.dtype is None or spec.torch or not spec.shape:
            raise OptionError(f"CropOrPad needs sequences, such as sounds, not {spec}")
        axis = 0 if spec.ragged else time_axis(spec.shape)
        had = spec.shape[axis]
        if self.pad is None and had is not None and had < self.length:
            raise OptionError(f"CropOrPad to {self.length} would have to fill {spec}, and pad is None")
        shape = (*spec.shape[:axis], self.length, *spec.shape[axis + 1 :])
        return spec.replace(shape=shape, ragged=False)

    def _start(self, chance: float, length: int) -> int:
        free = max(0, length - self.length)
        return {"start": 0, "centre": free // 2}.get(self.at, min(free, int(chance * (free + 1))))

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        chances = draws.uniform()
        if not isinstance(batch, tuple):
            return self._dense(batch, chances)
        values, offsets = batch
        out = np.zeros((len(ids), self.length, *values.shape[1:]), dtype=values.dtype)
        short = {}
        for row, (first, last) in enumerate(zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)):
            if last - first < self.length and self.pad is None:
                short[row] = DecodeError(f"it is {last - first} long, and {self.length} are wanted")
                continue
            start = first + self._start(chances[row], last - first)
            part = values[start : min(last, start + self.length)]
            out[row, : len(part)] = part
            if self.pad == "repeat" and len(part):
                out[row] = np.resize(part, (self.length, *part.shape[1:]))
        if short:
            raise CellErrors(short)
        return out

    def _dense(self, batch: Batch, chances: AnyArray) -> Batch:
        axis = time_axis(batch.shape[1:]) + 1
        had, along = batch.shape[axis], np.moveaxis(batch, axis, 1)
        out = np.zeros((len(along), self.length, *along.shape[2:]), dtype=batch.dtype)
        if had < self.length:
            out[:, :had] = along
            if self.pad == "repeat" and had:
                out = along[:, np.arange(self.length) % had]
        else:
            for row, chance in enumerate(chances.tolist()):
                start = self._start(chance, had)
                out[row] = along[row, start : start + self.length]
        return np.ascontiguousarray(np.moveaxis(out, 1, axis))

    def on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        chances = draws.uniform()
        axis = time_axis(tuple(batch.shape[1:])) + 1
        had = batch.shape[axis]
        starts = np.array([self._start(chance, had) for chance in chances.tolist()], dtype=np.int64)
        source = starts[:, None] + np.arange(self.length)
        shape = [
            len(source),
            *(self.length if dimension == axis else 1 for dimension in range(1, batch.ndim)),
        ]
        result_shape = [*batch.shape[:axis], self.length, *batch.shape[axis + 1 :]]
        index = tensors.send(source % max(had, 1)).view(shape).expand(result_shape)
        cropped = tensors.torch.gather(signed(batch), axis, index)
        if self.pad != "repeat":
            cropped = cropped * tensors.send(source < had).view(shape)
        return cropped.view(batch.dtype)
