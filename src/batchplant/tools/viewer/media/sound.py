"""Sounds: a window of one, drawn as a waveform and spectrogram, and as a file that every browser plays."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ....codecs import audio
from ....schema.columns import U8
from . import colours

# Limits of a window, which is decoded at once: seconds, and samples of all channels.
MAX_WINDOW_SECONDS, MAX_WINDOW_SAMPLES = 60.0, 12_000_000
# Colour of the waveform, legible on light and dark backgrounds.
WAVE_COLOUR = (47, 143, 136)
# Range of a spectrogram below the loudest value.
RANGE_DECIBELS = 80.0


class Window(NamedTuple):
    """Some seconds of a sound of ``duration``; ``samples`` is (frames, channels), full scale 1."""

    samples: npt.NDArray[np.float32]
    rate: int
    start: float
    duration: float


def facts(data: U8) -> dict[str, Any]:
    """Return what a page needs to know before it asks for a window."""
    head = audio.header(data)
    return {
        "encoding": head.encoding, "rate": head.rate, "channels": head.channels, "subtype": head.subtype,
        "seconds": head.frames / head.rate, "window": _window_frames(head) / head.rate,
    }  # fmt: skip


def window(data: U8, start: float = 0.0) -> Window:
    """Decode the window that begins at this second."""
    head = audio.header(data)
    first = min(max(0, int(start * head.rate)), max(0, head.frames - 1))
    samples = audio.decode(data, first, _window_frames(head), header_of_sound=head)
    return Window(samples, head.rate, first / head.rate, head.frames / head.rate)


def _window_frames(head: audio.Header) -> int:
    return max(1, min(head.frames, int(MAX_WINDOW_SECONDS * head.rate), MAX_WINDOW_SAMPLES // head.channels))


def wav(window: Window) -> bytes:
    """Encode a window as 16-bit WAV of at most two channels."""
    return audio.encode(_to_int16(window.samples[:, :2]), window.rate, "wav")


def _to_int16(samples: npt.NDArray[np.float32]) -> npt.NDArray[np.int16]:
    return np.asarray(np.rint(np.nan_to_num(samples).clip(-1, 1) * 32767), dtype=np.int16)


def peaks(samples: npt.NDArray[Any], width: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the minimum and maximum of each of up to ``width`` equal parts along the first axis."""
    width = max(1, min(width, len(samples)))
    edges = np.arange(width) * len(samples) // width
    return np.minimum.reduceat(samples, edges, axis=0), np.maximum.reduceat(samples, edges, axis=0)


def wave(window: Window, width: int, height: int) -> bytes:
    """Draw the waveform of a window, a band for each of up to two channels, on a transparent background."""
    channels = window.samples[:, :2]
    if not len(channels):
        return colours.encode_png(np.zeros((height, width, 4), dtype=np.uint8))
    low, high = peaks(np.nan_to_num(channels), width)
    # A short sound has fewer values than columns: draw each over several columns.
    across = np.arange(width) * len(low) // width
    band = height // channels.shape[1]
    middle = (np.arange(band)[:, None] + 0.5) / band * 2 - 1
    out = np.zeros((height, width, 4), dtype=np.uint8)
    for channel in range(channels.shape[1]):
        bottom, top = low[across, channel].clip(-1, 1), high[across, channel].clip(-1, 1)
        # Draw silence as a line.
        thick = 1.0 / band
        inked = (-middle >= bottom - thick) & (-middle <= top + thick)
        out[channel * band : channel * band + band][inked] = (*WAVE_COLOUR, 255)
    return colours.encode_png(out)


def spectrogram(window: Window, width: int, height: int) -> bytes:
    """Draw a spectrogram: time to the right, frequency up to half the rate, in decibels below the loudest."""
    mono = np.nan_to_num(window.samples.mean(axis=1)) if len(window.samples) else np.zeros(1, np.float32)
    size = _transform_size(len(mono), window.rate)
    width = max(1, min(width, len(mono)))
    padded = np.pad(mono, size // 2)
    shape = np.hanning(size + 1)[:-1].astype(np.float32)
    bins = size // 2 + 1
    # A column per pixel, from the frames around its middle; 128 columns at a time to bound memory.
    power = np.empty((width, bins), dtype=np.float32)
    middles = ((np.arange(width) + 0.5) * len(mono) / width).astype(np.int64)
    for first in range(0, width, 128):
        rows = middles[first : first + 128, None] + np.arange(size)
        power[first : first + 128] = np.abs(np.fft.rfft(padded[rows] * shape, axis=1)) ** 2
    loudest = float(power.max())
    decibels = 10 * np.log10(np.maximum(power, max(loudest, 1e-20) * 10 ** (-RANGE_DECIBELS / 10)))
    top = float(decibels.max())
    # Low frequencies are at the bottom.
    rows = ((np.arange(height)[::-1] + 0.5) * bins / height).astype(np.int64)
    return colours.encode_png(
        colours.of_values(decibels.T[rows], top - RANGE_DECIBELS if loudest > 0 else top, top)
    )


def _transform_size(frames: int, rate: int) -> int:
    """Return the frames of one Fourier transform: about 25 ms, a power of two, no longer than the sound."""
    size = 1 << max(4, round(math.log2(max(16, rate * 0.025))))
    while size > 16 and size > frames:
        size //= 2
    return size
