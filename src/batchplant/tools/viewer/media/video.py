"""Videos: their metadata, single frames, and a strip of frames along the time."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ....codecs import image
from ....codecs.media.video import Index, encoding_of, index_of
from ....codecs.media.video.frames import read_frames, rotation_of
from ....schema.columns import I64, U8

# Media types of encodings that browsers may play; the page shows the frames in any case.
MEDIA_TYPES = {"mp4": "video/mp4", "mov": "video/mp4", "webm": "video/webm", "mkv": "video/x-matroska"}
# Longest side of an image of a frame.
MAX_SIDE_PIXELS = 1280


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


def facts(movie: Movie) -> dict[str, Any]:
    """Return the metadata that the page shows."""
    (height, width), index = movie.shape, movie.index
    encoding = encoding_of(movie.data)
    return {
        "encoding": encoding, "codec": index.codec, "fps": index.fps, "frames": movie.frames,
        "width": width, "height": height, "seconds": index.duration,
        "sound": index.sound is not None, "plays": encoding in MEDIA_TYPES,
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


__all__ = ["MEDIA_TYPES", "Movie", "encoding_of", "facts", "frame", "strip"]
