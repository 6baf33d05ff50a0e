"""Levels of a TIFF file: the first page with those like it, and what is the same at a lower resolution."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ....codecs.xml import Parser
from ....data.arrays import Array
from ....errors import BatchplantError, DamagedError, OptionError
from ....schema.columns import I64
from ....storage import Source
from ....storage.cache import ChunkCache
from .directory import DESCRIPTION, SUBFILE_TYPE, Directory, TiffFile
from .geo import georeference
from .pages import DATA, Layout, Pages, tile_places

MASK = 4
# Pixels by which a level may differ from the size that its height implies.
ROUNDED = 2


@dataclasses.dataclass
class Level:
    """A stack of pages of one kind, and where their tiles lie."""

    layout: Layout
    outer: tuple[int, ...]
    starts: I64
    sizes: I64


@dataclasses.dataclass
class Pyramid:
    """The chosen level of a file, the sizes of all, and facts about them."""

    level: Level
    sizes: list[tuple[int, int]]
    pages: int
    left_out: int
    geo: dict[str, Any]


def read_pyramid(file: TiffFile, level: int = 0, page: int | None = None) -> Pyramid:
    """Return a level, of the first page and those like it, or of one page alone."""
    pages = list(file.pages())
    if page is not None and not 0 <= page < len(pages):
        raise OptionError(f"there is no page {page}; there are {len(pages)}")
    first = pages[page or 0]
    layout = Layout.of(first, file.order)
    stack = [first]
    if page is None:
        for following in pages[1:]:
            if _layout(following, file.order) != layout:
                break
            stack.append(following)
    outer = ome_axes(first.text(DESCRIPTION)) if page is None else ()
    planes = math.prod(outer)
    if not outer or planes > len(stack):
        outer, planes = ((len(stack),) if len(stack) > 1 else ()), len(stack)
    left_out, stack = len(pages) - planes, stack[:planes]
    levels: list[tuple[Layout, list[Directory]]] = [(layout, stack)]
    inner = file.below(first) if page is None else []
    for number, below in enumerate(inner):
        smaller = _layout(below, file.order)
        if smaller is not None and _is_level(levels[0][0], levels[-1][0], smaller):
            levels.append((smaller, [below]))
            if len(levels) == level + 1 and len(stack) > 1:
                every = [file.below(one) for one in stack]
                if any(len(one) != len(inner) for one in every):
                    raise DamagedError("its pages differ in levels", offset=first.offset)
                levels[-1] = smaller, [one[number] for one in every]
    for following in pages[1:] if page is None and len(stack) == 1 and not inner else ():
        smaller = _layout(following, file.order)
        masks = following.number(SUBFILE_TYPE, 0) & MASK
        if smaller is not None and not masks and _is_level(layout, levels[-1][0], smaller):
            levels.append((smaller, [following]))
            left_out -= 1
    if not 0 <= level < len(levels):
        raise OptionError(f"there is no level {level}; there are {len(levels)}")
    chosen, stack = levels[level]
    if any(_layout(one, file.order) != chosen for one in stack):
        raise DamagedError(f"the pages of level {level} differ", offset=stack[0].offset)
    places = [tile_places(one, chosen) for one in stack]
    starts, sizes = (np.concatenate(parts) for parts in zip(*places, strict=True))
    sizes_of_levels = [layout.size for layout, _ in levels]
    return Pyramid(
        Level(chosen, outer, starts, sizes), sizes_of_levels, len(stack), left_out, georeference(first)
    )


def level_arrays(
    path: str, source: Source, cache: ChunkCache, page: int | None = None, name: str = ""
) -> tuple[str, list[Array]]:
    """Return all levels as arrays, and a letter for each axis: I for those of the stack."""
    sizes, levels = read_pyramid(TiffFile(source), 0, page).sizes, []
    for number in range(len(sizes)):
        level = read_pyramid(TiffFile(source), number, page).level
        key = f"{name} level {number}"
        levels.append(
            Pages(path, DATA, level.layout, level.outer, level.starts, level.sizes, source, cache, key)
        )
    axes = levels[0].layout.axes
    return "I" * (levels[0].ndim - len(axes)) + axes, [*levels]


def _layout(page: Directory, order: str) -> Layout | None:
    """Return the layout of a page; None where it is not read."""
    try:
        return Layout.of(page, order)
    except BatchplantError:
        return None


def _is_level(full: Layout, last: Layout, layout: Layout) -> bool:
    """True for the same image, smaller than the last level."""
    # The lowest levels of NDPI have no slices.
    names = ("axes", "dtype") if full.sliced else ("axes", "dtype", "tiled")
    alike = all(getattr(full, name) == getattr(layout, name) for name in names)
    (height, width), (h, w), (before_h, before_w) = full.size, layout.size, last.size
    smaller = h <= before_h and w <= before_w and (h, w) != (before_h, before_w)
    off = min(abs(w - width * h / height), abs(h - height * w / width))
    other = [size for axis, size in zip(full.axes, full.shape, strict=True) if axis not in "YX"]
    other_of_level = [size for axis, size in zip(layout.axes, layout.shape, strict=True) if axis not in "YX"]
    return alike and smaller and off <= ROUNDED and other == other_of_level


def ome_axes(description: str) -> tuple[int, ...]:
    """Return the sizes of T, C and Z of OME-XML, slowest first, those above 1.

    None without OME-XML, and where it puts pages into another order than that in the file.
    """
    if "<OME" not in description[:4096]:
        return ()
    pixels: list[dict[str, str]] = []
    samples: list[int] = []
    planes: list[dict[str, str]] = []

    def start(tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if name == "Pixels":
            pixels.append(attributes)
        elif name == "Channel" and len(pixels) == 1:
            samples.append(int(attributes.get("SamplesPerPixel", "1")))
        elif name == "TiffData" and len(pixels) == 1:
            planes.append(attributes)

    try:
        Parser(start, lambda _: None, lambda _: None, "OME-TIFF").feed(description.encode(), True)
        order = pixels[0]["DimensionOrder"]
        sizes = {axis: int(pixels[0][f"Size{axis}"]) for axis in "TCZ"}
        # Colours of a pixel lie in one page.
        sizes["C"] = len(samples) or sizes["C"]
        names = [axis for axis in reversed(order) if axis in "TCZ"]
        for plane in planes:
            number = 0
            for axis in names:
                number = number * sizes[axis] + int(plane.get(f"First{axis}", "0"))
            if int(plane.get("IFD", number)) != number:
                return ()
        return _without_ones([sizes[axis] for axis in names])
    except (BatchplantError, LookupError, ValueError) as error:
        raise DamagedError(f"its OME-XML is damaged: {error}") from None


def _without_ones(sizes: Sequence[int]) -> tuple[int, ...]:
    if min(sizes) < 1:
        raise ValueError(f"sizes {tuple(sizes)}")
    return tuple(size for size in sizes if size > 1)
