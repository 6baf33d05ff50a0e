"""The XML of one image: its size, and the objects in it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from ...codecs.xml import Parser
from ...errors import DamagedError

DEEPEST, LONGEST = 16, 1 << 20
# How JSON that is no text stands in XML: <score type="json">0.5</score>.
TYPE, JSON = "type", "json"
# Keys that are no names of elements.
OTHERS = "batchplant"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff\r]*")
KNOWN = frozenset({"filename", "object"})
KNOWN_OF_OBJECTS = frozenset({"name", "pose", "difficult", "truncated", "occluded", "bndbox"})
SIDES = ("xmin", "ymin", "xmax", "ymax")
FLAGS = ("difficult", "truncated", "occluded")


@dataclasses.dataclass
class Thing:
    """An object: the text of its elements, its box as the file has it, and other elements as JSON."""

    told: dict[str, str]
    box: tuple[float, float, float, float]
    extra: dict[str, Any]


@dataclasses.dataclass
class Annotation:
    """``told``: filename, width, height and the like; ``extra``: all elements besides objects, as JSON."""

    told: dict[str, str]
    things: list[Thing]
    extra: dict[str, Any]


class _Reading:
    def __init__(self) -> None:
        self.told: dict[str, str] = {}
        self.things: list[Thing] = []
        self._stack: list[str] = []
        self._text: list[str] = []
        self._letters = 0
        self._object: dict[str, str] = {}
        self._box: dict[str, str] = {}
        # The elements that are open, each with those inside that are closed.
        self._inside: list[dict[str, Any]] = []
        self.extra: dict[str, Any] = {}
        self.parser = Parser(self._start, self._end, self._take, "an annotation")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if not self._stack and name != "annotation":
            raise DamagedError(f"an XML file of {name[:80]}, not of an annotation")
        if len(self._stack) >= DEEPEST:
            raise DamagedError(f"elements are nested more than {DEEPEST} deep")
        self._stack.append(name)
        self._inside.append({f"@{key}": value for key, value in attributes.items()})
        self._text, self._letters = [], 0
        if self._stack[1:] == ["object"]:
            self._object, self._box = {}, {}

    def _take(self, letters: str) -> None:
        self._letters += len(letters)
        if self._letters <= LONGEST:
            self._text.append(letters)

    def _end(self, _: str) -> None:
        below, text = self._stack[1:], "".join(self._text).strip()
        name, inside = self._stack.pop(), self._inside.pop()
        self._text = []
        if self._inside and below != ["object"]:
            _add(self._inside[-1], name, _element(inside, text))
        if len(below) == 1 and below != ["object"]:
            self.told[below[0]] = text
        elif len(below) == 2 and below[0] == "size":
            self.told[below[1]] = text
        elif below[:1] == ["object"] and len(below) == 2:
            self._object[below[1]] = text
        elif below[:2] == ["object", "bndbox"] and len(below) == 3:
            self._box[below[2]] = text
        elif below == ["object"]:
            self.things.append(Thing(self._object, self._four(), _without(inside, KNOWN_OF_OBJECTS)))
        elif not below:
            self.extra = _without(inside, frozenset())

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
    return Annotation(reading.told, reading.things, reading.extra)


def _add(inside: dict[str, Any], name: str, value: Any) -> None:
    """Put an element into the one around it; several of one name are a list."""
    if name == OTHERS and isinstance(value, dict):
        inside.update(value)
    elif name not in inside:
        inside[name] = value
    elif isinstance(inside[name], _Several):
        inside[name].append(value)
    else:
        inside[name] = _Several([inside[name], value])


class _Several(list[Any]):
    """The elements of one name; not a list that stands in one of them as JSON."""


def _element(inside: dict[str, Any], text: str) -> Any:
    """The value of an element: its text, or what is in it."""
    if inside == {f"@{TYPE}": JSON}:
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    if inside and text:
        inside["#text"] = text
    return inside or text


def _without(inside: dict[str, Any], known: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in inside.items() if key not in known}


def write(file: str, size: tuple[int, int], extra: dict[str, Any], things: list[dict[str, Any]]) -> str:
    """The XML of an image of this width and height.

    ``extra``: other elements, which come first. Each thing has its elements in order, the sides of its box
    among them.
    """
    known = {"width": size[0], "height": size[1], "depth": 3}
    sides = extra.get("size")
    sides = {**known, **(sides if isinstance(sides, dict) else {})}
    head = {"filename": file, **_without(extra, KNOWN | {"size", "segmented"})}
    lines = [
        "<annotation>",
        *_lines(head, 1),
        *_lines({"size": {key: str(v) for key, v in sides.items()}}, 1),
    ]
    lines += _lines({"segmented": extra.get("segmented", "0")}, 1)
    for thing in things:
        box = {side: thing[side] for side in SIDES}
        lines += _lines({"object": {**_without(thing, frozenset(SIDES)), "bndbox": box}}, 1)
    return "\n".join([*lines, "</annotation>", ""])


def _lines(values: dict[str, Any], depth: int) -> Iterator[str]:
    """Elements, each with what is in it; what XML cannot say is JSON."""
    others = {key: value for key, value in values.items() if not _NAME.fullmatch(key)}
    space = "\t" * depth
    for key, value in values.items():
        if key in others:
            continue
        several = isinstance(value, list) and len(value) > 1 and all(isinstance(v, str | dict) for v in value)
        for one in value if several else [value]:
            if isinstance(one, str) and one == one.strip() and _PLAIN.fullmatch(one):
                yield f"{space}<{key}>{escape(one)}</{key}>"
            elif isinstance(one, dict) and one and depth < DEEPEST - 2 and not _has_marks(one):
                yield f"{space}<{key}>"
                yield from _lines(one, depth + 1)
                yield f"{space}</{key}>"
            else:
                yield f'{space}<{key} {TYPE}="{JSON}">{escape(json.dumps(one))}</{key}>'
    if others:
        yield f'{space}<{OTHERS} {TYPE}="{JSON}">{escape(json.dumps(others))}</{OTHERS}>'


def _has_marks(values: dict[str, Any]) -> bool:
    """True if it is an element with attributes: it stays what it was as JSON."""
    return any(key[:1] in "@#" for key in values)
