"""Pascal VOC: an XML file for each image.

``JPEGImages/2007_000027.jpg``, ``Annotations/2007_000027.xml``, and lists of images in ``ImageSets/Main/``;
some have masks in ``SegmentationClass/`` (``mask``) and ``SegmentationObject/`` (``instances``). Its boxes
count pixels from 1 on, and the last one is inside; ours count from 0, to the edge behind the last one. XML is
read by a parser that refuses document types: there are no entities to expand and no other files to fetch.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from ..codecs.nested import json_text
from ..codecs.xml import Parser
from ..errors import BatchplantError, DamagedError, EncodeError, OptionError, Problem, located, shown
from ..schema import Boxes, Field, Image, Int, Json, Labels, List, Tensor, Text
from ..schema.columns import Columns, Ragged
from ..storage import is_below, is_plain, join, read_text, tree
from .base.detection import (
    FIELDS,
    DetectionReader,
    DetectionWriter,
    Entry,
    boxes_field,
    left_out,
    narrowed,
    ragged,
)
from .base.folders import IMAGE_FILES
from .base.folders.files import open_files
from .base.folders.media import VOC, annotated
from .base.format import Capabilities, Format, Probe

# -- annotation ---------------------------------------------------------------------------------------
# The XML of one image: its size, and the objects in it.

MAX_DEPTH, MAX_TEXT_CHARS = 16, 1 << 20
# How JSON that is no text stands in XML: <score type="json">0.5</score>.
TYPE, JSON = "type", "json"
# Keys that are no names of elements.
EXTRA_TAG = "batchplant"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_PLAIN = re.compile(r"[^\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff\r]*")
KNOWN = frozenset({"filename", "object"})
KNOWN_OF_OBJECTS = frozenset({"name", "pose", "difficult", "truncated", "occluded", "bndbox"})
SIDES = ("xmin", "ymin", "xmax", "ymax")
FLAGS = ("difficult", "truncated", "occluded")


class Thing(NamedTuple):
    """An object: its elements, and its box as the file has it."""

    elements: dict[str, Any]
    box: tuple[float, float, float, float]

    def text(self, name: str, default: str) -> str:
        return _text(self.elements.get(name, default))

    @property
    def extra(self) -> dict[str, Any]:
        """The elements that have no field of their own."""
        return _without(self.elements, KNOWN_OF_OBJECTS)


class Annotation(NamedTuple):
    """``elements``: all besides objects, as JSON."""

    elements: dict[str, Any]
    things: list[Thing]


class _Reading:
    """Elements as JSON: text, or an object of what is inside; several of one name are a list."""

    def __init__(self) -> None:
        self._names: list[str] = []
        # The document and the elements that are open, each with those inside that are closed.
        self.inside: list[dict[str, Any]] = [{}]
        self._text: list[str] = []
        self._letters = 0
        self.parser = Parser(self._start, self._end, self._take, "an annotation")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        name = tag.rpartition(" ")[2]
        if not self._names and name != "annotation":
            raise DamagedError(f"an XML file of {name[:80]}, not of an annotation")
        if len(self._names) >= MAX_DEPTH:
            raise DamagedError(f"elements are nested more than {MAX_DEPTH} deep")
        self._names.append(name)
        self.inside.append({f"@{key}": value for key, value in attributes.items()})
        self._text, self._letters = [], 0

    def _take(self, letters: str) -> None:
        self._letters += len(letters)
        if self._letters <= MAX_TEXT_CHARS:
            self._text.append(letters)

    def _end(self, _: str) -> None:
        element = _element(self.inside.pop(), "".join(self._text).strip())
        _add(self.inside[-1], self._names.pop(), element)
        self._text = []


def parse(data: bytes) -> Annotation:
    reading = _Reading()
    reading.parser.feed(data, True)
    root = reading.inside[0]["annotation"]
    elements = root if isinstance(root, dict) else {}
    objects = elements.pop("object", _Repeated())
    things = []
    for number, element in enumerate(objects if isinstance(objects, _Repeated) else [objects]):
        try:
            left, top, right, bottom = (float(_text(element["bndbox"][side])) for side in SIDES)
        except (KeyError, TypeError, ValueError):
            raise DamagedError(f"object {number} has no box of xmin, ymin, xmax, ymax") from None
        things.append(Thing(element, (left, top, right, bottom)))
    return Annotation(elements, things)


def _text(element: Any) -> str:
    """The text of an element, of the last one of several."""
    if isinstance(element, _Repeated):
        return _text(element[-1])
    return str(element.get("#text", "")) if isinstance(element, dict) else str(element)


def _add(inside: dict[str, Any], name: str, value: Any) -> None:
    """Put an element into the one around it; several of one name are a list."""
    if name == EXTRA_TAG and isinstance(value, dict):
        inside.update(value)
    elif name not in inside:
        inside[name] = value
    elif isinstance(inside[name], _Repeated):
        inside[name].append(value)
    else:
        inside[name] = _Repeated([inside[name], value])


class _Repeated(list[Any]):
    """The elements of one name; not a list that stands in one of them as JSON."""


def _element(inside: dict[str, Any], text: str) -> Any:
    if inside == {f"@{TYPE}": JSON}:
        with contextlib.suppress(ValueError, RecursionError):
            return json.loads(text)
    if inside and text:
        inside["#text"] = text
    return inside or text


def _without(inside: dict[str, Any], keys: frozenset[str]) -> dict[str, Any]:
    return {key: value for key, value in inside.items() if key not in keys}


def write(file: str, size: tuple[int, int], extra: dict[str, Any], things: list[dict[str, Any]]) -> str:
    """The XML of an image of this width and height.

    ``extra``: other elements, which come first. Each thing has its elements in order, the sides of its box
    among them.
    """
    size_tags = {"width": size[0], "height": size[1], "depth": 3}
    sides = extra.get("size")
    sides = {**size_tags, **(sides if isinstance(sides, dict) else {})}
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
    unnameable = {key: value for key, value in values.items() if not _NAME.fullmatch(key)}
    space = "\t" * depth
    for key, value in values.items():
        if key in unnameable:
            continue
        several = isinstance(value, list) and len(value) > 1 and all(isinstance(v, str | dict) for v in value)
        for element in value if several else [value]:
            if isinstance(element, str) and element == element.strip() and _PLAIN.fullmatch(element):
                yield f"{space}<{key}>{escape(element)}</{key}>"
            elif isinstance(element, dict) and element and depth < MAX_DEPTH - 2 and not _has_marks(element):
                yield f"{space}<{key}>"
                yield from _lines(element, depth + 1)
                yield f"{space}</{key}>"
            else:
                yield f'{space}<{key} {TYPE}="{JSON}">{escape(json.dumps(element))}</{key}>'
    if unnameable:
        yield f'{space}<{EXTRA_TAG} {TYPE}="{JSON}">{escape(json.dumps(unnameable))}</{EXTRA_TAG}>'


def _has_marks(values: dict[str, Any]) -> bool:
    """True if it is an element with attributes: it stays what it was as JSON."""
    return any(key[:1] in "@#" for key in values)


# -- reader -------------------------------------------------------------------------------------------
# Reading Pascal VOC folders.

_CLASS_LIST = re.compile(r"\s+(-1|0|1)$")
ANNOTATIONS, IMAGES, SETS = "Annotations", "JPEGImages", "ImageSets"
MASKS = {"mask": "SegmentationClass", "instances": "SegmentationObject"}
# Files that are read at once.
FILES_PER_BATCH = 1024
MAX_PROBLEMS = 100
# A longer side is a mistake in the file.
LONGEST_SIDE_PIXELS = 1 << 31
# The list of all images, in the order in which our writer got them.
ALL = "trainval"
ORDER = ("all", ALL)
MAIN = "Main/"
# The classes of the challenge, so that its parts number them alike.
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


class VocReader(DetectionReader):
    """Reads a folder with ``Annotations/`` and ``JPEGImages/``.

    ``split``: only the images that a list in ``ImageSets/Main/`` (or ``Segmentation/``) names: train, val …
    ``classes``: the names of the classes, in order (default: those of the challenge where they are all among
    them, else all that there are, sorted). ``masks=False`` leaves the masks of ``SegmentationClass/`` and
    ``SegmentationObject/`` out. ``float64=["boxes"]``: boxes are float64 even where float32 keeps all digits.
    """

    widens_floats = True

    def __init__(
        self,
        path: str,
        *,
        split: str | None = None,
        classes: Sequence[str] | None = None,
        masks: bool = True,
        float64: Sequence[str] = (),
    ) -> None:
        self.path = path
        self._float64 = {float64} if isinstance(float64, str) else set(float64)
        if not self._float64 <= {"boxes"}:
            raise OptionError(f"float64 names boxes, or nothing, not {float64!r}", path=path)
        self._media, self._columns = {}, Columns()
        below = open_files(path)
        try:
            every = list(
                below.walk(lambda name: IMAGE_FILES.has(name) or name.endswith(".xml"), ".batchplant.json")
            )
            folders = (ANNOTATIONS, IMAGES)
            if not tree.is_folder(join(path, ANNOTATIONS)):
                folders = (ANNOTATIONS.lower(), "images")
            xml = sorted(name for name in every if _is_in(name, folders[0]) and name.endswith(".xml"))
            images = {_stem(name): name for name in sorted(every) if _is_in(name, folders[1])}
            stems = [_stem(name) for name in xml]
            if split is not None:
                stems = self._listed(split, set(stems))
            elif self._noted.detection:
                lists = [name for name in ORDER if tree.is_file(join(path, SETS, "Main", f"{name}.txt"))]
                listed = self._listed(lists[0], set(stems)) if lists else stems
                stems = listed if set(listed) == set(stems) and len(listed) == len(stems) else stems
            files = [images.get(stem, f"{folders[1]}/{stem}.jpg") for stem in stems]
            annotated = set(stems)
            self._unused_files = (
                sorted(name for stem, name in images.items() if stem not in annotated)
                if split is None
                else []
            )
            optional: dict[str, Any] = {}
            for field, folder in MASKS.items() if masks else ():
                masks_by_stem = {_stem(name): name for name in every if _is_in(name, folder)}
                if any(stem in masks_by_stem for stem in stems):
                    optional[field] = below, [masks_by_stem.get(stem) for stem in stems]
            self._set_images(below, files, **optional)
            shown = [name.partition("/")[2] for name in files]
            self._columns["file_name"] = Ragged.from_cells([os.fsencode(name) for name in shown])
            sets = {} if split is not None else self._sets(stems)
            self._set_fields([f"{folders[0]}/{stem}.xml" for stem in stems], classes, list(optional), sets)
        except BatchplantError as error:
            below.close()
            raise error.at(path=path) from None
        except OSError as error:
            raise DamagedError(f"{error.filename}: {error.strerror}", path=path) from None

    def _listed(self, split: str, known_stems: set[str]) -> list[str]:
        if not is_plain(split):
            raise OptionError(f"a split is the name of a list, such as train, not {split!r}")
        for folder in ("Main", "Segmentation", ""):
            path = join(self.path, SETS, *filter(None, [folder]), f"{split}.txt")
            if not tree.is_file(path):
                continue
            # Lists of one class have a second column: whether it is in the image.
            named = [line.strip() for line in read_text(path).splitlines() if line.strip()]
            stems = [line if line in known_stems else _CLASS_LIST.sub("", line) for line in named]
            for number, stem in enumerate(stems, 1):
                if not is_below(stem) or stem not in known_stems:
                    raise DamagedError(f"line {number}: there is no annotation of {stem!r}", path=path)
            return stems
        main = [name[:-4] for name in tree.names(join(self.path, SETS, "Main")) if name.endswith(".txt")]
        candidates = [name for name in main if "_" not in name] or main
        raise OptionError(f"there is no split {split!r}; there are {', '.join(candidates[:8]) or 'none'}")

    def _sets(self, stems: list[str]) -> dict[str, Field]:
        """The field that says which lists name an image, where there are lists that tell them apart.

        ``split``, where the lists of ImageSets/Main share the images out, else ``sets``.
        """
        lists: dict[str, list[str]] = {}
        known_stems = set(stems)
        folder = join(self.path, SETS)
        for name in sorted(tree.names(folder)) if tree.is_folder(folder) else ():
            for file in sorted(tree.names(join(folder, name))) if tree.is_folder(join(folder, name)) else ():
                members_of_list = (
                    self._named(join(folder, name, file), known_stems) if file.endswith(".txt") else None
                )
                if members_of_list is not None:
                    lists[f"{name.rstrip('/')}/{file[:-4]}"] = members_of_list
        if self._noted.detection:
            lists.pop(f"{MAIN}{ORDER[0]}", None)
        if set(lists.get(f"{MAIN}{ALL}", ())) == known_stems:
            del lists[f"{MAIN}{ALL}"]
        if not lists:
            return {}
        usual = ("train", "val", "test")
        shares = sorted(lists, key=lambda name: ([name != MAIN + split for split in usual], name))
        named = [stem for name in shares for stem in lists[name]]
        if (
            len(named) == len(stems)
            and set(named) == known_stems
            and all(name.startswith(MAIN) for name in lists)
        ):
            share_of = {stem: number for number, name in enumerate(shares) for stem in lists[name]}
            self._columns["split"] = np.array([share_of[stem] for stem in stems], dtype=np.int64)
            return {"split": Int(names=tuple(name.removeprefix(MAIN) for name in shares))}
        members = {name: set(listed) for name, listed in lists.items()}
        cells = [[name for name, listed in members.items() if stem in listed] for stem in stems]
        self._columns["sets"] = Ragged.from_cells([json_text(names) for names in cells])
        return {"sets": List(Text())}

    @staticmethod
    def _named(path: str, stems: set[str]) -> list[str] | None:
        """The images of a list; None where it is one of a class, or names what is not there."""
        try:
            lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
        except BatchplantError:
            return None
        return lines if stems.issuperset(lines) and len(set(lines)) == len(lines) else None

    def _set_fields(
        self, files: list[str], classes: Sequence[str] | None, masks: list[str], sets: dict[str, Field]
    ) -> None:
        annotations = list(self._parsed(files))
        things = [thing for annotation in annotations for thing in annotation.things]
        counts = np.array([len(annotation.things) for annotation in annotations], dtype=np.int64)
        names = [thing.text("name", "") for thing in things]
        if classes is None:
            usual = CLASSES if set(names) <= set(CLASSES) and names else sorted(set(names))
            classes = self._noted.classes or usual
        places = {name: number for number, name in enumerate(classes)}
        boxes = np.array([thing.box for thing in things], dtype=np.float64).reshape(-1, 4)
        # Pixels are counted from 1, and the last one is inside.
        boxes[:, :2] -= 1
        # Subtraction may have changed the last digit.
        rounded = np.round(boxes, 9)
        boxes = np.where(np.isclose(rounded, boxes, rtol=1e-14, atol=1e-14), rounded, boxes)
        noted = self._noted.detection
        wide = "boxes" in self._float64 or "boxes" in self._noted.float64
        with np.errstate(over="ignore"):
            boxes = boxes if wide else boxes.astype(np.float32) if noted else narrowed(boxes)
        self._class_of = names
        columns, has = self._columns, {*noted, *(key for thing in things for key in thing.elements)}
        fields: dict[str, Field] = {"image": self._look(), "file_name": Text(), **sets}
        fields["boxes"] = boxes_field("xyxy", ["labels", *FLAGS])
        fields["labels"] = Labels(tuple(classes) or None)
        columns["boxes"] = ragged(boxes, counts)
        columns["labels"] = ragged(np.array([places.get(name, -1) for name in names], dtype=np.int64), counts)
        for flag in FLAGS:
            if flag != "occluded" or flag in has:
                values = [thing.text(flag, "0").lower() in ("1", "true", "yes") for thing in things]
                fields[flag] = Tensor("bool", (None,))
                columns[flag] = ragged(np.array(values, dtype=np.bool_), counts)
        fields["boxes"] = boxes_field("xyxy", fields, dtype=boxes.dtype.name)
        if "pose" in has:
            fields["pose"] = List(Text())
            poses = [
                [thing.text("pose", "Unspecified") for thing in annotation.things]
                for annotation in annotations
            ]
            columns["pose"] = Ragged.from_cells(list(map(json_text, poses)))
        for field in masks:
            fields[field] = self._look(field, mask=True)
        extras = [self._extra(annotation, row) for row, annotation in enumerate(annotations)]
        if any(extras) or "image_extra" in noted:
            fields["image_extra"] = Json()
            columns["image_extra"] = Ragged.from_cells([json_text(extra) for extra in extras])
        if any(thing.extra for thing in things) or "object_extra" in noted:
            fields["object_extra"] = Json()
            cells = [json_text([thing.extra for thing in annotation.things]) for annotation in annotations]
            columns["object_extra"] = Ragged.from_cells(cells)
        self._sizes = np.array(list(map(_size, annotations)), dtype=np.int64).reshape(-1, 2)
        self.schema = self._chosen(fields)

    def _extra(self, annotation: Annotation, row: int) -> dict[str, Any]:
        images = self._media
        masks = (images[field].names[row] for field in MASKS if field in images)
        segmented = "1" if any(name is not None for name in masks) else "0"
        file = os.path.basename(str(images["image"].names[row]))
        usual = {"filename": file, "segmented": segmented}
        extra = {key: value for key, value in annotation.elements.items() if usual.get(key, ...) != value}
        size = extra.pop("size", None)
        if isinstance(size, dict):
            size_tags = {key: side for key, side in size.items() if key not in ("width", "height")}
            if size_tags not in ({}, {"depth": "3"}):
                extra["size"] = size_tags
        return extra

    def _parsed(self, files: list[str]) -> Iterator[Annotation]:
        below = self._media["image"].below
        for start in range(0, len(files), FILES_PER_BATCH):
            batch = files[start : start + FILES_PER_BATCH]
            try:
                cells = below.read(batch)
            except BatchplantError as error:
                error.sample = None if error.sample is None else start + error.sample
                raise
            for row, cell in enumerate(cells):
                with located(path=below.path(batch[row]), sample=start + row):
                    yield parse(bytes(cell if cell is not None else b""))

    def facts(self) -> dict[str, object]:
        return {"objects": len(self._class_of)}

    def _no_class(self, row: int, label: int) -> str:
        return f"there is no class {self._class_of[row]!r}"

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        for name in self._unused_files[:MAX_PROBLEMS]:
            yield Problem(f"{name} has no annotation", self.path)


def _is_in(name: str, folder: str) -> bool:
    return name.startswith(folder + "/")


def _stem(name: str) -> str:
    return os.path.splitext(name.partition("/")[2])[0]


def _size(annotation: Annotation) -> tuple[int, int]:
    """Width and height; 0 where the file does not tell."""
    try:
        size = annotation.elements["size"]
        sides = [float(_text(size.get(side, "0"))) for side in ("width", "height")]
    except (AttributeError, KeyError, ValueError):
        return 0, 0
    width, height = (int(side) if 0 <= side <= LONGEST_SIDE_PIXELS else 0 for side in sides)
    return width, height


# -- writer -------------------------------------------------------------------------------------------
# Writing Pascal VOC folders.


class VocWriter(DetectionWriter):
    """Writes ``Annotations/``, ``JPEGImages/`` and the lists of ``ImageSets/Main/``.

    ``boxes``: how boxes are meant (xyxy, xywh, cxcywh), where the field is a bare Tensor.
    """

    boxes = Boxes("xyxy")
    images = IMAGES

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        self._splits = self._split_names()
        self._has_sets = "sets" in self.schema
        self._list = self.partial.spool("list")
        (self._folder / ANNOTATIONS).mkdir(exist_ok=True)

    def _unfit(self, columns: Columns) -> dict[int, BatchplantError]:
        problems = super()._unfit(columns)
        for row, cell in enumerate(columns.get("sets", ())):
            for name in json.loads(bytes(cell)):
                parts = name.split("/") if isinstance(name, str) else []
                if len(parts) != 2 or not all(map(is_plain, parts)):
                    message = f"a set is the folder and name of a list, as Main/train, not {shown(str(name))}"
                    problems.setdefault(row, EncodeError(message, field="sets"))
        return problems

    def _put(self, entries: list[Entry]) -> None:
        for entry in entries:
            values = entry.values
            segmented = any(values.get(name) for name in MASKS)
            things = [self._thing(values, row) for row in range(len(values.get("labels", ())))]
            extra = {"segmented": str(int(segmented)), **values.get("image_extra", {})}
            file = extra.get("filename", os.path.basename(entry.file))
            text = write(str(file), (entry.width, entry.height), extra, things)
            stem = os.path.splitext(entry.file)[0]
            self._save(f"{ANNOTATIONS}/{stem}.xml", text.encode(), entry.number, replaces=True)
            split = self._splits[values["split"]] if self._splits else ""
            sets = [f"Main/{split}"] if split else values.get("sets", [])
            self._list.write(json_text([stem, *sets]) + b"\n")

    def _thing(self, values: dict[str, Any], row: int) -> dict[str, Any]:
        label = int(values["labels"][row])
        thing: dict[str, Any] = {"name": self.classes[label] if self.classes else str(label)}
        thing["pose"] = values["pose"][row] if "pose" in values else "Unspecified"
        for flag in FLAGS:
            if flag != "occluded" or flag in values:
                thing[flag] = str(int(values[flag][row])) if flag in values else "0"
        if "boxes" in values:
            left, top, right, bottom = (float(str(value)) for value in values["boxes"][row])
            box = (left + 1, top + 1, right, bottom)
        else:
            box = (0.0, 0.0, 0.0, 0.0)
        extra = values["object_extra"][row] if "object_extra" in values else {}
        thing |= {key: value for key, value in extra.items() if key not in thing}
        return thing | dict(zip(SIDES, map(_number, box), strict=True))

    def _save_other(self, name: str, file: str, column: Any, row: int, number: int) -> str | None:
        cell = column[row]
        if cell is None:
            return None
        stem = os.path.splitext(file)[0]
        self._save(f"{MASKS[name]}/{stem}.png", cell, number)
        return stem

    def _finish(self) -> str:
        folder = self._folder / SETS / "Main"
        folder.mkdir(parents=True, exist_ok=True)
        lines: dict[str, list[str]] = {f"Main/{name}": [] for name in self._splits}
        # The list of the order is trainval, unless that is a list of some of them.
        order = f"Main/{ALL if not self._has_sets and set(self._splits) <= {'train', 'val'} else ORDER[0]}"
        for line in self._list.read_at(self._list.size, 0).splitlines():
            stem, *sets = json.loads(line)
            for name in dict.fromkeys((*sets, order)):
                lines.setdefault(name, []).append(stem + "\n")
        lines.setdefault(order, [])
        for name, stems in lines.items():
            path = self._folder / SETS / f"{name}.txt"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("".join(stems), encoding="utf-8")
        return super()._finish()


def _number(value: float) -> str:
    # Addition may have changed the last digit.
    value = round(value, 9) if math.isclose(round(value, 9), value, rel_tol=1e-14) else value
    return str(int(value)) if value.is_integer() else repr(value)


# -- format -------------------------------------------------------------------------------------------

HELD = (
    "image", "file_name", "split", "boxes", "labels", "difficult", "truncated", "occluded", "pose", "mask",
    "instances", "sets", "image_extra", "object_extra",
)  # fmt: skip


def sniff(probe: Probe) -> bool:
    """A folder with Annotations/ and JPEGImages/."""
    return probe.ask(annotated) == VOC


FORMAT = Format(
    name="voc",
    title="Pascal VOC",
    suffixes=(".voc",),
    spec="http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/index.html",
    reader=VocReader,
    writer=VocWriter,
    sniff=sniff,
    kinds=(Image, Boxes, Labels, Tensor, Int, Text, List, Json),
    optional=True,
    fields={name: FIELDS[name] for name in HELD},
    leaves=left_out(HELD),
    folder=True,
    notes="boxes, flags and masks; lists of ImageSets with split=",
    can=Capabilities(
        random_access=True,
        column_pruning=True,
        remote_ranges=True,
        streaming_write=True,
        splittable=True,
        ecosystem=("torchvision", "MMDetection", "FiftyOne", "LabelImg"),
    ),
)
