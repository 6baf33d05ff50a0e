"""Reading Pascal VOC folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...codecs.nested import json_text
from ...columns import Columns, Ragged
from ...errors import BatchplantError, DamagedError, OptionError, Problem
from ...families.detection import DetectionReader, boxes_field, ragged
from ...families.detection.notes import read_classes, read_note
from ...families.folders import PICTURES
from ...families.folders.files import open_files
from ...schema import Field, Labels, List, Tensor, Text
from ...storage import is_below, is_plain, join, read_text, tree
from .annotation import FLAGS, Annotation, parse

_CLASS_LIST = re.compile(r"\s+(-1|0|1)$")
ANNOTATIONS, IMAGES, SETS = "Annotations", "JPEGImages", "ImageSets"
MASKS = {"mask": "SegmentationClass", "instances": "SegmentationObject"}
# Files that are read at once.
ROWS = 1024
MOST_PROBLEMS = 100
# A longer side is a mistake in the file.
LONGEST_SIDE_PIXELS = 1 << 31
# The list of all pictures, in the order in which our writer got them.
ALL = "trainval"
# The classes of the challenge, so that its parts number them alike.
CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow", "diningtable",
    "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train", "tvmonitor",
)  # fmt: skip


class VocReader(DetectionReader):
    """Reads a folder with ``Annotations/`` and ``JPEGImages/``.

    ``split``: only the pictures that a list in ``ImageSets/Main/`` (or ``Segmentation/``) names: train, val …
    ``classes``: the names of the classes, in order (default: those of the challenge where they are all among
    them, else all that there are, sorted). ``masks=False`` leaves the masks of ``SegmentationClass/`` and
    ``SegmentationObject/`` out.
    """

    def __init__(
        self, path: str, *, split: str | None = None, classes: Sequence[str] | None = None, masks: bool = True
    ) -> None:
        self.path = path
        self._pictures, self._columns = {}, Columns()
        below = open_files(path)
        try:
            every = list(
                below.walk(lambda name: PICTURES.has(name) or name.endswith(".xml"), ".batchplant.json")
            )
            folders = (ANNOTATIONS, IMAGES)
            if not tree.is_folder(join(path, ANNOTATIONS)):
                folders = (ANNOTATIONS.lower(), "images")
            xml = sorted(name for name in every if _in(name, folders[0]) and name.endswith(".xml"))
            pictures = {_stem(name): name for name in sorted(every) if _in(name, folders[1])}
            stems = [_stem(name) for name in xml]
            if split is not None:
                stems = self._listed(split, set(stems))
            elif read_note(path) is not None and tree.is_file(join(path, SETS, "Main", f"{ALL}.txt")):
                listed = self._listed(ALL, set(stems))
                stems = listed if set(listed) == set(stems) else stems
            files = [pictures.get(stem, f"{folders[1]}/{stem}.jpg") for stem in stems]
            known = set(stems)
            self._alone = (
                sorted(name for stem, name in pictures.items() if stem not in known) if split is None else []
            )
            others: dict[str, Any] = {}
            for field, folder in MASKS.items() if masks else ():
                there = {_stem(name): name for name in every if _in(name, folder)}
                if any(stem in there for stem in stems):
                    others[field] = below, [there.get(stem) for stem in stems]
            self._set_pictures(below, files, **others)
            shown = [name.partition("/")[2] for name in files]
            self._columns["file_name"] = Ragged.from_cells([os.fsencode(name) for name in shown])
            self._set_fields([f"{folders[0]}/{stem}.xml" for stem in stems], classes, list(others))
        except BatchplantError as error:
            below.close()
            raise error.at(path=path) from None
        except OSError as error:
            raise DamagedError(f"{error.filename}: {error.strerror}", path=path) from None

    def _listed(self, split: str, there: set[str]) -> list[str]:
        """The pictures of a list of a split."""
        if not is_plain(split):
            raise OptionError(f"a split is the name of a list, such as train, not {split!r}")
        for folder in ("Main", "Segmentation", ""):
            path = join(self.path, SETS, *filter(None, [folder]), f"{split}.txt")
            if not tree.is_file(path):
                continue
            # Lists of one class have a second column: whether it is in the picture.
            named = [line.strip() for line in read_text(path).splitlines() if line.strip()]
            stems = [line if line in there else _CLASS_LIST.sub("", line) for line in named]
            for number, stem in enumerate(stems, 1):
                if not is_below(stem) or stem not in there:
                    raise DamagedError(f"line {number}: there is no annotation of {stem!r}", path=path)
            return stems
        main = [name[:-4] for name in tree.names(join(self.path, SETS, "Main")) if name.endswith(".txt")]
        some = [name for name in main if "_" not in name] or main
        raise OptionError(f"there is no split {split!r}; there are {', '.join(some[:8]) or 'none'}")

    def _set_fields(self, files: list[str], classes: Sequence[str] | None, masks: list[str]) -> None:
        found = list(self._parsed(files))
        things = [thing for one in found for thing in one.things]
        counts = np.array([len(one.things) for one in found], dtype=np.int64)
        names = [thing.told.get("name", "") for thing in things]
        if classes is None:
            classes = read_classes(self.path)
        if classes is None:
            classes = CLASSES if set(names) <= set(CLASSES) and names else sorted(set(names))
        places = {name: number for number, name in enumerate(classes)}
        boxes = np.array([thing.box for thing in things], dtype=np.float64).reshape(-1, 4)
        # Pixels are counted from 1, and the last one is inside.
        boxes[:, :2] -= 1
        self._class_of = names
        columns, has = self._columns, {key for thing in things for key in thing.told}
        has |= set(read_note(self.path) or ())
        fields: dict[str, Field] = {"image": self._look(), "file_name": Text()}
        fields["boxes"] = boxes_field("xyxy", ["labels", *FLAGS])
        fields["labels"] = Labels(tuple(classes) or None)
        columns["boxes"] = ragged(boxes.astype(np.float32), counts)
        columns["labels"] = ragged(np.array([places.get(name, -1) for name in names], dtype=np.int64), counts)
        for flag in FLAGS:
            if flag != "occluded" or flag in has:
                values = [
                    thing.told.get(flag, "0").strip().lower() in ("1", "true", "yes") for thing in things
                ]
                fields[flag] = Tensor("bool", (None,))
                columns[flag] = ragged(np.array(values, dtype=np.bool_), counts)
        fields["boxes"] = boxes_field("xyxy", fields)
        if "pose" in has:
            fields["pose"] = List(Text())
            ends = np.cumsum(counts).tolist()
            poses = [thing.told.get("pose", "Unspecified") for thing in things]
            parts = [poses[end - count : end] for end, count in zip(ends, counts.tolist(), strict=True)]
            columns["pose"] = Ragged.from_cells([json_text(part) for part in parts])
        for field in masks:
            fields[field] = self._look(field, mask=True)
        self._sizes = np.array([_size(one) for one in found], dtype=np.int64).reshape(-1, 2)
        self.schema = self._chosen(fields)

    def _parsed(self, files: list[str]) -> Iterator[Annotation]:
        below = self._pictures["image"].below
        for start in range(0, len(files), ROWS):
            some = files[start : start + ROWS]
            try:
                cells = below.read(some)
            except BatchplantError as error:
                error.sample = None if error.sample is None else start + error.sample
                raise
            for row, cell in enumerate(cells):
                try:
                    yield parse(bytes(cell if cell is not None else b""))
                except BatchplantError as error:
                    raise error.at(path=below.path(some[row]), sample=start + row) from None

    def facts(self) -> dict[str, Any]:
        return {"objects": len(self._class_of)}

    def _no_class(self, row: int, label: int) -> str:
        return f"there is no class {self._class_of[row]!r}"

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        for name in self._alone[:MOST_PROBLEMS]:
            yield Problem(f"{name} has no annotation", self.path)


def _in(name: str, folder: str) -> bool:
    return name.startswith(folder + "/")


def _stem(name: str) -> str:
    return os.path.splitext(name.partition("/")[2])[0]


def _size(one: Annotation) -> tuple[int, int]:
    """Width and height; 0 where the file does not tell."""
    try:
        sides = [float(one.told.get(side, 0)) for side in ("width", "height")]
    except ValueError:
        return 0, 0
    width, height = (int(side) if 0 <= side <= LONGEST_SIDE_PIXELS else 0 for side in sides)
    return width, height
