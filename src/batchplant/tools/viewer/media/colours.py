"""Colours of numbers and of classes. ``page/colours.js`` has the same for what is drawn there."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from ....schema.columns import U8

# From low to high, each lighter than the one before, so that it also reads in grey.
STOPS = ((20, 14, 46), (44, 40, 110), (32, 92, 140), (26, 142, 134), (96, 190, 98), (250, 226, 90))
# Of the first classes, as unlike each other as they can be; the rest goes around the wheel of hues.
FIRST = (
    (230, 70, 60), (70, 130, 230), (245, 200, 50), (60, 180, 90), (190, 90, 220), (250, 150, 50),
    (70, 210, 220), (240, 130, 190), (160, 120, 80), (160, 220, 70), (100, 90, 200), (200, 200, 200),
)  # fmt: skip
# Of a turn: classes that follow each other get colours that are far apart.
GOLDEN = 0.618033988749895


@functools.cache
def ramp() -> U8:
    """256 colours from low to high."""
    at = np.linspace(0, len(STOPS) - 1, 256)
    channels = [np.interp(at, range(len(STOPS)), [stop[one] for stop in STOPS]) for one in range(3)]
    return np.stack(channels, axis=1).round().astype(np.uint8)


def of_values(values: npt.NDArray[np.floating], low: float, high: float) -> U8:
    """Each value as a colour; what is not finite as the lowest."""
    scaled = (values - low) * (255 / (high - low if high > low else 1.0))
    levels = np.nan_to_num(scaled, nan=0, posinf=255, neginf=0).clip(0, 255).astype(np.uint8)
    return np.asarray(ramp()[levels])


@functools.lru_cache(maxsize=4096)
def of_class(number: int) -> tuple[int, int, int]:
    """The colour of a class; 0, which mostly is the background, is black."""
    if number == 0:
        return 0, 0, 0
    if 0 < number <= len(FIRST):
        return FIRST[number - 1]
    hue = (number * GOLDEN) % 1.0 * 6
    # Three rows of lightness: neighbours on the wheel of hues differ by it.
    light, dark = ((235, 60), (200, 20), (255, 130))[number % 3]
    part = int(light - abs(hue % 2 - 1) * (light - dark))
    red, green, blue = (
        (light, part, dark), (part, light, dark), (dark, light, part),
        (dark, part, light), (part, dark, light), (light, dark, part),
    )[int(hue) % 6]  # fmt: skip
    return red, green, blue


def of_label(label: int | str | None) -> tuple[int, int, int]:
    """The colour of a label that is drawn as a line: never black."""
    if isinstance(label, int):
        return of_class(label + 1)
    total = 7
    for letter in str(label or ""):
        total = (total * 31 + ord(letter)) % 65_521
    return of_class(total + 1)


def css(colour: tuple[int, int, int]) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
