"""Sounds: a window of one, drawn as a wave and as a spectrogram, and as a file that every browser plays."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....codecs import audio
from ....schema.columns import U8
from . import colours, png

# What is decoded at a time, in seconds and in samples of all channels; longer ones are looked at in windows.
SECONDS, SAMPLES = 60.0, 12_000_000
# Of the wave: reads on light and on dark ground.
INK = (47, 143, 136)
# Decibels below the loudest that a spectrogram shows.
RANGE = 80.0


class Window(NamedTuple):
    """Some seconds of a sound, from ``start`` on; ``samples`` is (frames, channels), full scale 1."""

    samples: npt.NDArray[np.float32]
    rate: int
    start: float
    whole: float


def facts(data: U8) -> dict[str, Any]:
    """What a page needs to know before it asks for a window."""
    head = audio.header(data)
    return {
        "encoding": head.encoding, "rate": head.rate, "channels": head.channels, "subtype": head.subtype,
        "seconds": head.frames / head.rate, "window": _most(head) / head.rate,
    }  # fmt: skip


def window(data: U8, start: float = 0.0) -> Window:
    """As much as is looked at at a time, from this second on."""
    head = audio.header(data)
    first = min(max(0, int(start * head.rate)), max(0, head.frames - 1))
    samples = audio.decode(data, first, _most(head), known=head)
    return Window(samples, head.rate, first / head.rate, head.frames / head.rate)


def _most(head: audio.Header) -> int:
    return max(1, min(head.frames, int(SECONDS * head.rate), SAMPLES // head.channels))


def wav(part: Window) -> bytes:
    """The window as 16-bit WAV of at most two channels."""
    return audio.encode(_whole(part.samples[:, :2]), part.rate, "wav")


def _whole(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    return np.asarray(np.rint(np.nan_to_num(samples).clip(-1, 1) * 32767), dtype=np.int16)


def peaks(samples: npt.NDArray[Any], width: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Lowest and highest value in each of up to ``width`` equal parts along the first axis."""
    width = max(1, min(width, len(samples)))
    edges = np.arange(width) * len(samples) // width
    return np.minimum.reduceat(samples, edges, axis=0), np.maximum.reduceat(samples, edges, axis=0)


def wave(part: Window, width: int, height: int) -> bytes:
    """An image of the window, one band for each of up to two channels; transparent around it."""
    channels = part.samples[:, :2]
    if not len(channels):
        return png.encode(np.zeros((height, width, 4), dtype=np.uint8))
    low, high = peaks(np.nan_to_num(channels), width)
    # A short sound has fewer values than columns: each is drawn as wide as it is.
    across = np.arange(width) * len(low) // width
    band = height // channels.shape[1]
    middle = (np.arange(band)[:, None] + 0.5) / band * 2 - 1
    out = np.zeros((height, width, 4), dtype=np.uint8)
    for channel in range(channels.shape[1]):
        bottom, top = low[across, channel].clip(-1, 1), high[across, channel].clip(-1, 1)
        # Silence is a line, not nothing.
        thick = 1.0 / band
        inked = (-middle >= bottom - thick) & (-middle <= top + thick)
        out[channel * band : channel * band + band][inked] = (*INK, 255)
    return png.encode(out)


def spectrogram(part: Window, width: int, height: int) -> bytes:
    """Time to the right, frequency from 0 up to half the rate, in decibels below the loudest."""
    mono = np.nan_to_num(part.samples.mean(axis=1)) if len(part.samples) else np.zeros(1, np.float32)
    size = _size(len(mono), part.rate)
    width = max(1, min(width, len(mono)))
    padded = np.pad(mono, size // 2)
    shape = np.hanning(size + 1)[:-1].astype(np.float32)
    bins = size // 2 + 1
    # A column per pixel, from the frames around its middle; some at a time, so that memory stays small.
    power = np.empty((width, bins), dtype=np.float32)
    middles = ((np.arange(width) + 0.5) * len(mono) / width).astype(np.int64)
    for at in range(0, width, 128):
        rows = middles[at : at + 128, None] + np.arange(size)
        power[at : at + 128] = np.abs(np.fft.rfft(padded[rows] * shape, axis=1)) ** 2
    loudest = float(power.max())
    decibels = 10 * np.log10(np.maximum(power, max(loudest, 1e-20) * 10 ** (-RANGE / 10)))
    top = float(decibels.max())
    # Low frequencies at the bottom; bins are spread over the height.
    rows = ((np.arange(height)[::-1] + 0.5) * bins / height).astype(np.int64)
    return png.encode(colours.of_values(decibels.T[rows], top - RANGE if loudest > 0 else top, top))


def _size(frames: int, rate: int) -> int:
    """Frames of a transform: about 25 ms, a power of two, no longer than the sound."""
    size = 1 << max(4, round(math.log2(max(16, rate * 0.025))))
    while size > 16 and size > frames:
        size //= 2
    return size
