"""Images in a terminal: two pixels to a character, or shades where there are no colours."""

from __future__ import annotations

import shutil
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.style import Style
from rich.text import Text

from ..codecs.media.image import expand, fit
from ..schema import Image

IMAGE_WIDTH = 32
# An image whose values are all below, 255 aside, would be black: they are classes.
MOST_CLASSES = 32
SHADES = " .:-=+*#%@"
# Of classes without colours: the first stands back.
SIGNS = "·123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
# Of classes: far apart from each other, the background dark.
BACKGROUND, VOID = (40, 40, 40), (235, 235, 235)
COLOURS = (
    (230, 25, 75), (60, 180, 75), (0, 130, 200), (255, 225, 25), (245, 130, 48), (145, 30, 180),
    (70, 240, 240), (240, 50, 230), (170, 110, 40), (0, 128, 128), (250, 190, 212), (128, 0, 0),
    (170, 255, 195), (128, 128, 0), (220, 190, 255), (0, 0, 160),
)  # fmt: skip

Array = npt.NDArray[Any]


def render(out: Console, pixels: Array, field: Image) -> Text:
    """The image as text; the classes of a mask each in a colour of their own."""
    if not pixels.size:
        return Text()
    columns = shutil.get_terminal_size().columns - 4
    classes = field.mask or _are_classes(pixels)
    small = expand(fit(pixels, max(8, min(IMAGE_WIDTH, columns)), nearest=classes))
    coloured = out.color_system is not None and not out.no_color
    if classes and small.shape[2] == 1:
        return _mask(small[:, :, 0], coloured)
    if small.dtype != np.uint8:
        # What is white is not known: the brightest is.
        small = np.nan_to_num(small.astype(np.float64), posinf=0, neginf=0)
        span = max(float(small.max() - small.min()), 1e-12)
        small = ((small - small.min()) / span * 255).astype(np.uint8)
    small = small[:, :, :3] if small.shape[2] >= 3 else np.repeat(small[:, :, :1], 3, axis=2)
    return _blocks(small) if coloured else _shades(small)


def _are_classes(pixels: Array) -> bool:
    """Whether the values of an image that nobody called a mask can only be classes: few, and all small."""
    if pixels.dtype.kind not in "iu" or (pixels.ndim > 2 and pixels.shape[2] > 1):
        return False
    values = np.unique(pixels)
    return len(values) > 1 and bool(((values < MOST_CLASSES) | (values == 255)).all()) and int(values[0]) >= 0


def colour_of(number: int) -> tuple[int, int, int]:
    """The colour of a class: 0 is dark, 255 (what many sets leave out) is light."""
    return BACKGROUND if number == 0 else VOID if number == 255 else COLOURS[(number - 1) % len(COLOURS)]


def _mask(numbers: Array, coloured: bool) -> Text:
    values = np.unique(numbers)
    if coloured:
        colours = np.array([colour_of(int(value)) for value in values], np.uint8)
        text = _blocks(colours[np.searchsorted(values, numbers)])
        text.append("\n ")
        for value, colour in zip(values[: len(COLOURS)].tolist(), colours, strict=False):
            text.append(" ██", Style(color=_hex(colour.tolist())))
            text.append(f" {value}")
        return text
    places = np.searchsorted(values, numbers[::2])
    rows = ["  " + "".join(SIGNS[index % len(SIGNS)] for index in row) for row in places.tolist()]
    shown = enumerate(values[: len(COLOURS)].tolist())
    legend = "  ".join(f"{SIGNS[index % len(SIGNS)]}={value}" for index, value in shown)
    return Text("\n".join([*rows, f"  {legend}"]))


def _blocks(pixels: Array) -> Text:
    """Half blocks: the upper pixel is the letter's colour, the lower that behind it."""
    if pixels.shape[0] % 2:
        pixels = np.concatenate([pixels, pixels[-1:]])
    text = Text()
    for number, (top, bottom) in enumerate(zip(pixels[::2], pixels[1::2], strict=True)):
        text.append("\n  " if number else "  ")
        for upper, lower in zip(top.tolist(), bottom.tolist(), strict=True):
            text.append("▀", Style(color=_hex(upper), bgcolor=_hex(lower)))
    return text


def _shades(pixels: Array) -> Text:
    """Letters that are the denser the brighter; every second row, for letters are high."""
    light = pixels[::2].mean(axis=2) / 256 * len(SHADES)
    return Text("\n".join("  " + "".join(SHADES[int(level)] for level in row) for row in light.tolist()))


def _hex(colour: Any) -> str:
    return "#{:02x}{:02x}{:02x}".format(*colour)
