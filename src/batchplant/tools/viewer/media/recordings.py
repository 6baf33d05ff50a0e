"""Sounds and videos: metadata, waveforms and spectrograms of a window, single frames and strips of frames."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ....codecs import audio, image
from ....codecs.media.video import Index, encoding_of, index_of, sound_format
from ....codecs.media.video.frames import read_frames, rotation_of
from ....schema.columns import I64, U8, AnyArray
from ... import Document
from . import colours

# Limits of a window, which is decoded at once: seconds, and samples of all channels.
MAX_WINDOW_SECONDS, MAX_WINDOW_SAMPLES = 60.0, 12_000_000
# Colour of the waveform, legible on light and dark backgrounds.
WAVE_COLOUR = (47, 143, 136)
# Range of a spectrogram below the loudest value.
RANGE_DECIBELS = 80.0
# Media types of encodings that browsers may play; the page shows the frames in any case.
MEDIA_TYPES = {"mp4": "video/mp4", "mov": "video/mp4", "webm": "video/webm", "mkv": "video/x-matroska"}
# Longest side of an image of a frame.
MAX_SIDE_PIXELS = 1280


class Window(NamedTuple):
    """Some seconds of a sound of ``duration``; ``samples`` is (frames, channels), full scale 1."""

    samples: npt.NDArray[np.float32]
    rate: int
    start: float
    duration: float


def sound_facts(data: U8) -> Document:
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


def peaks(samples: AnyArray, width: int) -> tuple[AnyArray, AnyArray]:
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


class Movie:
    """A video: its bytes, not copied, and its index, made on first use."""

    def __init__(self, data: U8) -> None:
        self.data = data
        self._view: memoryview = data.data

    @functools.cached_property
    def index(self) -> Index:
        return index_of(self._view)

    @functools.cached_property
    def shape(self) -> tuple[int, int]:
        """Height and width as a player shows it: phones store videos rotated."""
        rotation = rotation_of(self._view, self.index) % 180
        height, width = self.index.height, self.index.width
        return (width, height) if rotation else (height, width)

    @property
    def frames(self) -> int:
        return len(self.index.times)

    def read(self, numbers: I64, size: tuple[int, int]) -> U8:
        return read_frames(self._view, self.index, numbers, size=size, upright=True)


def video_facts(movie: Movie) -> Document:
    """Return the metadata that the page shows."""
    (height, width), index = movie.shape, movie.index
    encoding = encoding_of(movie.data)
    return {
        "encoding": encoding, "codec": index.codec, "fps": index.fps, "frames": movie.frames,
        "width": width, "height": height, "seconds": index.duration,
        "sound": sound_format(movie.data.data) is not None, "plays": encoding in MEDIA_TYPES,
    }  # fmt: skip


def frame(movie: Movie, number: int, largest: int) -> bytes:
    """Return one frame as JPEG, no side longer than ``largest``."""
    height, width = movie.shape
    longest = max(height, width, largest)
    size = max(1, height * largest // longest), max(1, width * largest // longest)
    number = min(max(0, number), movie.frames - 1)
    return image.encode(movie.read(np.array([number]), size)[0], "jpeg", quality=85)


def strip(movie: Movie, count: int, height: int) -> bytes:
    """Return frames at equal distances side by side in one JPEG."""
    tall, wide = movie.shape
    count = min(count, movie.frames)
    # Keep frames of extreme shapes visible.
    width = min(max(8, round(wide * height / tall)), 8 * height)
    numbers = ((np.arange(count) + 0.5) * movie.frames / count).astype(np.int64)
    images = movie.read(numbers, (height, width))
    return image.encode(images.swapaxes(0, 1).reshape(height, -1, 3), "jpeg", quality=80)
