"""Sounds and videos: metadata, waveforms and spectrograms of a window, single frames and strips of frames."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ...codecs import audio, image
from ...codecs.media.video import Index, encoding_of, index_of, sound_format
from ...codecs.media.video.frames import read_frames, rotation_of
from ...data.reader import Reader
from ...errors import DecodeError, NotFoundError, shortened
from ...schema.columns import I64, U8, AnyArray
from ...schema.kinds import Bool, Field, Float, Image, Int, Tensor, Text
from .. import Document
from . import pixels
from .cells import Cell, Dataset

# Limits of a window, which is decoded at once: seconds, and samples of all channels.
MAX_WINDOW_SECONDS, MAX_WINDOW_SAMPLES = 60.0, 12_000_000
# Colour of the waveform, legible on light and dark backgrounds.
WAVE_COLOUR = (47, 143, 136)
# Range of a spectrogram below the loudest value.
RANGE_DECIBELS = 80.0
# Media types of encodings that browsers may play; the page shows the frames in any case.
MEDIA_TYPES = {"mp4": "video/mp4", "mov": "video/mp4", "webm": "video/webm", "mkv": "video/x-matroska"}
# Longest side of an image of a frame.
MAX_FRAME_PIXELS = 1280


class Window(NamedTuple):
    """Some seconds of a sound of ``duration``; ``samples`` is (frames, channels), full scale 1."""

    samples: npt.NDArray[np.float32]
    rate: int
    start: float
    duration: float

    @property
    def nbytes(self) -> int:
        return self.samples.nbytes


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
    scaled = np.nan_to_num(window.samples[:, :2]).clip(-1, 1) * 32767
    return audio.encode(np.rint(scaled).astype(np.int16), window.rate, "wav")


def peaks(samples: AnyArray, width: int) -> tuple[AnyArray, AnyArray]:
    """Return the minimum and maximum of each of up to ``width`` equal parts along the first axis."""
    width = max(1, min(width, len(samples)))
    edges = np.arange(width) * len(samples) // width
    return np.minimum.reduceat(samples, edges, axis=0), np.maximum.reduceat(samples, edges, axis=0)


def wave(window: Window, width: int, height: int) -> bytes:
    """Draw the waveform of a window, a band for each of up to two channels, on a transparent background."""
    channels = window.samples[:, :2]
    if not len(channels):
        return pixels.encode_png(np.zeros((height, width, 4), dtype=np.uint8))
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
    return pixels.encode_png(out)


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
    return pixels.encode_png(
        pixels.colours_of_values(decibels.T[rows], top - RANGE_DECIBELS if loudest > 0 else top, top)
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

    @property
    def nbytes(self) -> int:
        return self.data.nbytes

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


# -- episodes of robots --------------------------------------------------------------------------------

EPISODE, ACTION = "episode_index", "action"
# Fields that count frames; their curves are straight lines.
COUNTERS = frozenset(("episode_index", "frame_index", "index", "task_index", "timestamp"))
# Lines of one chart, points of each, and letters of their names and of texts.
MAX_LINES, MAX_POINTS, MAX_LETTERS = 64, 2000, 400


def begins_of(reader: Reader) -> I64:
    """Return the first frames of episodes; empty for a dataset that has none."""
    begins = reader.boundaries()
    if not len(reader) or (EPISODE not in reader.schema and not (len(begins) and ACTION in reader.schema)):
        return np.empty(0, np.int64)
    return np.append(0, begins)


def episode_of(dataset: Dataset, number: int) -> Document:
    """Return an episode: its frames, cameras, texts and curves."""
    reader = dataset.reader
    begins = begins_of(reader)
    if not 0 <= number < len(begins):
        raise NotFoundError(f"there is no episode {number}; there are {len(begins):,}")
    first, end = np.append(begins, len(reader))[number : number + 2].tolist()
    frames = np.arange(0, end - first, max(1, -(-(end - first) // MAX_POINTS)))
    schema = reader.schema
    names = [name for name, kind in schema.items() if 0 < _lines(kind) <= MAX_LINES and name not in COUNTERS]
    # State and action lead.
    names.sort(key=lambda name: ("state" not in name, ACTION not in name))
    columns = reader.read(first + frames, names) if names else {}
    texts = [name for name, kind in schema.items() if isinstance(kind, Text)]
    sample = {name: Cell(dataset, first, name).value() for name in texts}
    return {
        "episode": number,
        "of": len(begins),
        "first": first,
        "frames": end - first,
        "fps": _fps(reader.metadata),
        "cameras": [name for name, kind in schema.items() if is_camera(kind)],
        "texts": {name: shortened(text, MAX_LETTERS) for name, text in sample.items() if text},
        "at": frames,
        "curves": [
            {
                "field": name,
                "names": _names(reader.attributes.get(name, {}).get("names"), _lines(schema[name])),
                "values": np.asarray(columns[name], np.float64).reshape(len(frames), -1).T,
            }
            for name in names
        ],
    }


def is_camera(kind: Field) -> bool:
    """Return whether the cells of a field are images of a camera."""
    if isinstance(kind, Image):
        return not kind.mask
    shape = kind.shape if isinstance(kind, Tensor) and kind.dtype == "uint8" else ()
    return len(shape) == 3 and shape[2] in (1, 3)


def camera_image(cell: Cell, longest: int) -> tuple[bytes, str]:
    """Return the image of a camera, at most ``longest`` pixels high and wide, and its media type."""
    if not is_camera(cell.kind):
        raise DecodeError("the field is no camera", field=cell.name)
    if isinstance(cell.kind, Image):
        return pixels.for_browser(cell, longest)
    small = image.fit(np.asarray(cell.value()), longest)
    return image.encode(image.squeeze(small), "jpeg", quality=85), "image/jpeg"


def _lines(kind: Field) -> int:
    """Return how many numbers a cell has; 0 if they are not numbers, or not always as many."""
    if kind.optional or isinstance(kind, Text):
        return 0
    if isinstance(kind, Bool | Int | Float):
        return 1
    shape = kind.shape if isinstance(kind, Tensor) and np.dtype(kind.dtype).kind in "biuf" else (None,)
    return 0 if None in shape else math.prod(size or 0 for size in shape)


def _names(names: object, count: int) -> list[str]:
    """Return a name for each number: those of the dataset if they fit, else their positions."""
    while isinstance(names, Mapping) and len(names) == 1:
        (names,) = names.values()
    if isinstance(names, list | tuple) and len(names) == count:
        return [shortened(str(name), MAX_LETTERS) for name in names]
    return [str(number) for number in range(count)]


def _fps(metadata: Mapping[str, str]) -> float | None:
    try:
        fps = float(metadata.get("fps", ""))
    except ValueError:
        return None
    return fps if 0 < fps < math.inf else None
