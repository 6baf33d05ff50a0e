"""Names beside the dots of a figure, so that none lies on another."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

Point = tuple[float, float]

# Pixels around a dot that a name keeps clear of, and how far out it may go for a free place.
DOT = 7.0
DISTANCES = (11, 16, 24, 34, 46, 60, 76, 94, 114, 140, 170)
# From here on a thin line leads to the dot.
LED = 20
# Degrees, best first: to the right, to the left, above, below …
ANGLES = (0, 180, 90, 270, 35, 145, 325, 215)


class Box(NamedTuple):
    left: float
    bottom: float
    right: float
    top: float

    def meets(self, other: Box) -> bool:
        across = self.left < other.right and other.left < self.right
        return across and self.bottom < other.top and other.bottom < self.top

    def apart(self, dot: Point) -> float:
        """How far a dot is from the nearest edge."""
        across = max(self.left - dot[0], 0, dot[0] - self.right)
        return math.hypot(across, max(self.bottom - dot[1], 0, dot[1] - self.top))

    def inside(self, other: Box) -> bool:
        across = other.left <= self.left and self.right <= other.right
        return across and other.bottom <= self.bottom and self.top <= other.top


class Name(NamedTuple):
    """A name beside a dot, in data units."""

    x: float
    y: float
    text: str
    colour: str
    bold: bool = False


def write(
    axes: Any,
    renderer: Any,
    names: Sequence[Name],
    others: Iterable[Point] = (),
    lines: Iterable[tuple[Point, Point]] = (),
) -> None:
    """Names beside their dots, clear of ``others`` (dots without a name) and of level or upright lines."""
    pixels, points = axes.transData.transform, 72 / axes.figure.dpi
    dots = [_pair(pixels((one.x, one.y))) for one in names]
    texts = [
        axes.annotate(
            one.text, (one.x, one.y), (0, 0), textcoords="offset points", parse_math=False, fontsize=9,
            color=one.colour, fontweight="bold" if one.bold else "normal", va="bottom",
        )
        for one in names
    ]  # fmt: skip
    extents = [text.get_window_extent(renderer) for text in texts]
    frame = axes.get_window_extent(renderer)
    room = Box(frame.x0 + 2, frame.y0 + 2, frame.x1 - 2, frame.y1 - 2)
    taken = [around_dot(_pair(pixels(one))) for one in others]
    drawn = [_between(_pair(pixels(one)), _pair(pixels(two))) for one, two in lines]
    boxes = places(dots, [(one.width + 4, one.height + 2) for one in extents], room, taken, drawn)
    for text, (x, y), box in zip(texts, dots, boxes, strict=True):
        # In points, which stay right whatever resolution it is saved in.
        text.set_position(((box.left + 2 - x) * points, (box.bottom + 1 - y) * points))
        if box.apart((x, y)) > LED:
            near = min(max(x, box.left), box.right), min(max(y, box.bottom), box.top)
            ends = zip(*(axes.transData.inverted().transform(one) for one in ((x, y), near)), strict=True)
            axes.plot(*ends, linewidth=0.6, color=text.get_color(), alpha=0.6, zorder=1)


def places(
    dots: Sequence[Point],
    sizes: Sequence[Point],
    room: Box,
    taken: Iterable[Box] = (),
    lines: Sequence[Box] = (),
) -> list[Box]:
    """A box of each size near each dot, inside of ``room``; none meets a dot, another, or what is taken.

    Nor does it lie on a line, where there is a place beside one. Where every place is taken, the last that
    was tried is used: a name is better than none.
    """
    obstacles = [*map(around_dot, dots), *taken]
    found: list[Box] = []
    for (x, y), (width, height) in zip(dots, sizes, strict=True):
        tried = [box for box in around(x, y, width, height) if box.inside(room)]
        tried = tried or list(around(x, y, width, height))
        free = [box for box in tried if not any(box.meets(one) for one in obstacles)]
        clear = [box for box in free if not any(box.meets(one) for one in lines)]
        # Nobody is to take it for the name of another.
        own = [box for box in clear if all(box.apart((x, y)) <= box.apart(one) for one in dots)]
        found.append((own or clear or free or tried[-1:])[0])
        obstacles.append(found[-1])
    return found


def around(x: float, y: float, width: float, height: float) -> Iterator[Box]:
    """Boxes of a size around a dot, from near to far."""
    for distance in DISTANCES:
        for angle in ANGLES:
            across, up = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            left = x + across * (distance + width / 2) - width / 2
            bottom = y + up * (distance + height / 2) - height / 2
            yield Box(left, bottom, left + width, bottom + height)


def around_dot(dot: Point) -> Box:
    return Box(dot[0] - DOT, dot[1] - DOT, dot[0] + DOT, dot[1] + DOT)


def _between(one: Point, two: Point) -> Box:
    (left, right), (bottom, top) = (sorted(ends) for ends in zip(one, two, strict=True))
    return Box(left - 1, bottom - 1, right + 1, top + 1)


def _pair(found: Any) -> Point:
    return float(found[0]), float(found[1])
