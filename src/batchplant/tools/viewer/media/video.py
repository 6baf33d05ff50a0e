"""Videos: what they say of themselves, single frames, and a strip of frames along the time."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ....codecs import image
from ....codecs.media.video import Index, encoding_of, index_of
from ....codecs.media.video.frames import read_frames, rotation_of
from ....schema.columns import I64, U8

# What browsers have a player for, by encoding; they try, and the frames are shown anyway.
PLAYED = {"mp4": "video/mp4", "mov": "video/mp4", "webm": "video/webm", "mkv": "video/x-matroska"}
# Larger images of frames are made smaller.
LARGEST = 1280


class Movie:
    """The bytes of a video where they lie, without a copy, and what is known of them; made once."""

    def __init__(self, data: U8) -> None:
        self.data = data
        self._view: memoryview = data.data

    @functools.cached_property
    def index(self) -> Index:
        return index_of(self._view)

    @functools.cached_property
    def shape(self) -> tuple[int, int]:
        """Height and width as a player shows it: phones store their videos turned."""
        turned = rotation_of(self._view, self.index) % 180
        height, width = self.index.height, self.index.width
        return (width, height) if turned else (height, width)

    @property
    def frames(self) -> int:
        return len(self.index.times)

    def read(self, numbers: I64, size: tuple[int, int]) -> U8:
        return read_frames(self._view, self.index, numbers, size=size, upright=True)


def facts(movie: Movie) -> dict[str, Any]:
    (height, width), index = movie.shape, movie.index
    encoding = encoding_of(movie.data)
    return {
        "encoding": encoding, "codec": index.codec, "fps": index.fps, "frames": movie.frames,
        "width": width, "height": height, "seconds": index.duration,
        "sound": index.sound is not None, "plays": encoding in PLAYED,
    }  # fmt: skip


def frame(movie: Movie, number: int, largest: int) -> bytes:
    """One frame as JPEG, no side longer than ``largest``."""
    height, width = movie.shape
    longest = max(height, width, largest)
    size = max(1, height * largest // longest), max(1, width * largest // longest)
    number = min(max(0, number), movie.frames - 1)
    return image.encode(movie.read(np.array([number]), size)[0], "jpeg", quality=85)


def strip(movie: Movie, count: int, height: int) -> bytes:
    """Frames at equal distances in one image, from left to right."""
    tall, wide = movie.shape
    count = min(count, movie.frames)
    # However odd its shape, something of it is to be seen.
    width = min(max(8, round(wide * height / tall)), 8 * height)
    numbers = ((np.arange(count) + 0.5) * movie.frames / count).astype(np.int64)
    images = movie.read(numbers, (height, width))
    return image.encode(images.swapaxes(0, 1).reshape(height, -1, 3), "jpeg", quality=80)


__all__ = ["PLAYED", "Movie", "encoding_of", "facts", "frame", "strip"]
