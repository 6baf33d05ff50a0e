"""Kinds of encoded files: images, sound, video."""

from __future__ import annotations

import dataclasses
import math

from ...errors import OptionError
from .base import Field


@dataclasses.dataclass(frozen=True)
class _Media(Field):
    encoding: str | None = None

    def __post_init__(self) -> None:
        for part in (self.encoding, getattr(self, "mode", None)):
            if not isinstance(part, str | None):
                raise OptionError(f"encoding and mode are names, not {part!r}")
        if self.encoding == "jpg":
            object.__setattr__(self, "encoding", "jpeg")

    def _check_sizes(self, *names: str) -> None:
        for name in names:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise OptionError(f"{name} is a number from 1 on, not {value!r}")


@dataclasses.dataclass(frozen=True)
class Image(_Media):
    """An image. ``encoding`` None: mixed; ``mode`` is what it decodes to (RGB, L, RGBA, …; None: varies).

    ``mask``: its values are classes, not colours. They are never blended with each other and never stored
    in a way that changes them. A mask has one channel, mode L unless another is named; in mode P its values
    are the indices of a palette. A mask whose classes are colours has the mode None.
    """

    mode: str | None = "RGB"
    mask: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.mask, bool):
            raise OptionError(f"mask is True or False, not {self.mask!r}")
        if self.mask and self.mode == "RGB":
            object.__setattr__(self, "mode", "L")


@dataclasses.dataclass(frozen=True)
class Audio(_Media):
    """Encoded sound. ``rate`` (samples a second), ``channels``: what all of them share; None: they differ."""

    rate: int | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes("rate", "channels")


@dataclasses.dataclass(frozen=True)
class Video(_Media):
    """Encoded moving images. ``fps``, ``width``, ``height``: what all of them share; None: they differ."""

    fps: float | None = None
    width: int | None = None
    height: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_sizes("width", "height")
        number = isinstance(self.fps, int | float) and not isinstance(self.fps, bool)
        if self.fps is not None and not (number and 0 < self.fps < math.inf):
            raise OptionError(f"fps is a number above 0, not {self.fps!r}")
