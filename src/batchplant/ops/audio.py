"""Sounds as arrays: whole, or a window of each."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..codecs.media import audio
from ..codecs.media.wav import Samples
from ..errors import DecodeError, OptionError
from ..schema import Audio, Bytes, Field
from ..schema.columns import I64, Column, Ragged, starts_of
from .base import CellOp, Draws, Spec
from .each import Threads

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

    def run(self, batch: Column, ids: I64, draws: Draws) -> Any:
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
            place = out[row].T if self.channels_first else out[row]
            place[: len(part)] = part
            if self.pad == "repeat" and len(part):
                for start in range(len(part), length, len(part)):
                    place[start : start + len(part)] = part[: length - start]
            return len(part)

        found = np.array(self._threads.each(len(batch), window), dtype=np.int64)
        return (out, found) if self.lengths else out

    def _nothing(self) -> Any:
        zero = np.zeros(1, dtype=np.int64)
        if self._whole:
            return np.empty((0, 1), dtype=self.dtype), zero
        out = np.empty(
            (0, *(1, self._length(self.rate or 0))[:: 1 if self.channels_first else -1]), self.dtype
        )
        return (out, zero[:0]) if self.lengths else out

    def _run_whole(self, batch: Ragged, first: audio.Header) -> Any:
        def whole(row: int) -> Samples:
            data = _cell(batch, row)
            return self._decode(data, self._header(data, first), 0, None)

        parts = self._threads.each(len(batch), whole)
        offsets = starts_of(np.array([len(part) for part in parts], dtype=np.int64))
        return np.concatenate(parts), offsets

    def _header(self, data: Any, first: audio.Header) -> audio.Header:
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

    def _window(self, data: Any, header: audio.Header, length: int, chance: float) -> Samples:
        """At most ``length`` frames of the sound, at the rate of the batch."""
        rate = self.rate or header.rate
        needed = length if rate == header.rate else math.ceil(length * header.rate / rate)
        spare = max(0, header.frames - needed)
        start = {"start": 0, "centre": spare // 2}.get(self.window, min(spare, int(chance * (spare + 1))))
        part = self._decode(data, header, start, needed)[:length]
        if self.pad is None and len(part) < length:
            raise DecodeError(f"it has {len(part)} frames, and {length} are wanted; pad fills it")
        return part

    def _decode(self, data: Any, header: audio.Header, start: int, frames: int | None) -> Samples:
        return audio.decode(
            data, start, frames, rate=self.rate, mono=self.mono, dtype=self.dtype, known=header
        )


def _cell(batch: Ragged, row: int) -> Any:
    cell = batch[row]
    if cell is None:
        raise DecodeError("there is no sound")
    return cell.data
