"""The XML of one picture: its size, and the objects in it."""

from __future__ import annotations

import dataclasses
from xml.sax.saxutils import escape

from ...codecs.xml import Parser
from ...errors import DamagedError

DEEPEST, LONGEST = 16, 1 << 12
SIDES = ("xmin", "ymin", "xmax", "ymax")
FLAGS = ("difficult", "truncated", "occluded")


@dataclasses.dataclass
class Thing:
    """An object: the text of its elements, and its box as the file has it."""

    told: dict[str, str]
    box: tuple[float, float, float, float]


@dataclasses.dataclass
class Annotation:
    """``told``: filename, width, height and the like."""

    told: dict[str, str]
    things: list[Thing]


class _Reading:
    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.things: list[Thing] = []
        self._stack: list[str] = []
        self._text: list[str] = []
        self._letters = 0
        self._object: dict[str, str] = {}
        self._box: dict[str, str] = {}
        self.parser = Parser(self._start, self._end, self._take, "an annotation")

    def _start(self, tag: str, _: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if not self._stack and name != "annotation":
            raise DamagedError(f"an XML file of {name[:80]}, not of an annotation")
        if len(self._stack) >= DEEPEST:
            raise DamagedError(f"elements are nested more than {DEEPEST} deep")
        self._stack.append(name)
        self._text, self._letters = [], 0
        if self._stack[1:] == ["object"]:
            self._object, self._box = {}, {}

    def _take(self, letters: str) -> None:
        self._letters += len(letters)
        if self._letters <= LONGEST:
            self._text.append(letters)

    def _end(self, _: str) -> None:
        below, text = self._stack[1:], "".join(self._text).strip()
        self._stack.pop()
        self._text = []
        if len(below) == 1 and below != ["object"]:
            self.told[below[0]] = text
        elif len(below) == 2 and below[0] == "size":
            self.told[below[1]] = text
        elif below[:1] == ["object"] and len(below) == 2:
            self._object[below[1]] = text
        elif below[:2] == ["object", "bndbox"] and len(below) == 3:
            self._box[below[2]] = text
        elif below == ["object"]:
            self.things.append(Thing(self._object, self._four()))

    def _four(self) -> tuple[float, float, float, float]:
        try:
            left, top, right, bottom = (float(self._box[side]) for side in SIDES)
        except (KeyError, ValueError):
            number = len(self.things)
            raise DamagedError(f"object {number} has no box of xmin, ymin, xmax, ymax") from None
        return left, top, right, bottom


def parse(data: bytes) -> Annotation:
    reading = _Reading()
    reading.parser.feed(data, True)
    return Annotation(reading.told, reading.things)


def write(
    file: str, width: int, height: int, channels: int, segmented: bool, things: list[dict[str, str]]
) -> str:
    """The XML of a picture; each thing has its elements in order, the sides of its box among them."""
    lines = [
        "<annotation>", f"\t<filename>{escape(file)}</filename>", "\t<size>", f"\t\t<width>{width}</width>",
        f"\t\t<height>{height}</height>", f"\t\t<depth>{channels}</depth>", "\t</size>",
        f"\t<segmented>{int(segmented)}</segmented>",
    ]  # fmt: skip
    for thing in things:
        lines.append("\t<object>")
        lines += [f"\t\t<{key}>{escape(value)}</{key}>" for key, value in thing.items() if key not in SIDES]
        lines.append("\t\t<bndbox>")
        lines += [f"\t\t\t<{side}>{thing[side]}</{side}>" for side in SIDES]
        lines += ["\t\t</bndbox>", "\t</object>"]
    return "\n".join([*lines, "</annotation>", ""])
