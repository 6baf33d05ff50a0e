"""Reading Pascal VOC folders."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...codecs.nested import json_text
from ...errors import BatchplantError, DamagedError, OptionError, Problem
from ...schema import Field, Int, Json, Labels, List, Tensor, Text
from ...schema.columns import Columns, Ragged
from ...storage import is_below, is_plain, join, read_text, tree
from ..base.detection import DetectionReader, boxes_field, narrowed, ragged
from ..base.detection.notes import read_classes, read_float64, read_note
from ..base.folders import IMAGE_FILES
from ..base.folders.files import open_files
from .annotation import FLAGS, Annotation, parse

_CLASS_LIST = re.compile(r"\s+(-1|0|1)$")
ANNOTATIONS, IMAGES, SETS = "Annotations", "JPEGImages", "ImageSets"
MASKS = {"mask": "SegmentationClass", "instances": "SegmentationObject"}
# Files that are read at once.
ROWS = 1024
MOST_PROBLEMS = 100
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
        self._images, self._columns = {}, Columns()
        below = open_files(path)
        try:
            every = list(
                below.walk(lambda name: IMAGE_FILES.has(name) or name.endswith(".xml"), ".batchplant.json")
            )
            folders = (ANNOTATIONS, IMAGES)
            if not tree.is_folder(join(path, ANNOTATIONS)):
                folders = (ANNOTATIONS.lower(), "images")
            xml = sorted(name for name in every if _in(name, folders[0]) and name.endswith(".xml"))
            images = {_stem(name): name for name in sorted(every) if _in(name, folders[1])}
            stems = [_stem(name) for name in xml]
            if split is not None:
                stems = self._listed(split, set(stems))
            elif read_note(path) is not None:
                lists = [name for name in ORDER if tree.is_file(join(path, SETS, "Main", f"{name}.txt"))]
                listed = self._listed(lists[0], set(stems)) if lists else stems
                stems = listed if set(listed) == set(stems) and len(listed) == len(stems) else stems
            files = [images.get(stem, f"{folders[1]}/{stem}.jpg") for stem in stems]
            known = set(stems)
            self._alone = (
                sorted(name for stem, name in images.items() if stem not in known) if split is None else []
            )
            others: dict[str, Any] = {}
            for field, folder in MASKS.items() if masks else ():
                there = {_stem(name): name for name in every if _in(name, folder)}
                if any(stem in there for stem in stems):
                    others[field] = below, [there.get(stem) for stem in stems]
            self._set_images(below, files, **others)
            shown = [name.partition("/")[2] for name in files]
            self._columns["file_name"] = Ragged.from_cells([os.fsencode(name) for name in shown])
            sets = {} if split is not None else self._sets(stems)
            self._set_fields([f"{folders[0]}/{stem}.xml" for stem in stems], classes, list(others), sets)
        except BatchplantError as error:
            below.close()
            raise error.at(path=path) from None
        except OSError as error:
            raise DamagedError(f"{error.filename}: {error.strerror}", path=path) from None

    def _listed(self, split: str, there: set[str]) -> list[str]:
        """The images of a list of a split."""
        if not is_plain(split):
            raise OptionError(f"a split is the name of a list, such as train, not {split!r}")
        for folder in ("Main", "Segmentation", ""):
            path = join(self.path, SETS, *filter(None, [folder]), f"{split}.txt")
            if not tree.is_file(path):
                continue
            # Lists of one class have a second column: whether it is in the image.
            named = [line.strip() for line in read_text(path).splitlines() if line.strip()]
            stems = [line if line in there else _CLASS_LIST.sub("", line) for line in named]
            for number, stem in enumerate(stems, 1):
                if not is_below(stem) or stem not in there:
                    raise DamagedError(f"line {number}: there is no annotation of {stem!r}", path=path)
            return stems
        main = [name[:-4] for name in tree.names(join(self.path, SETS, "Main")) if name.endswith(".txt")]
        some = [name for name in main if "_" not in name] or main
        raise OptionError(f"there is no split {split!r}; there are {', '.join(some[:8]) or 'none'}")

    def _sets(self, stems: list[str]) -> dict[str, Field]:
        """The field that says which lists name an image, where there are lists that tell them apart.

        ``split``, where the lists of ImageSets/Main share the images out, else ``sets``.
        """
        lists: dict[str, list[str]] = {}
        there = set(stems)
        folder = join(self.path, SETS)
        for name in sorted(tree.names(folder)) if tree.is_folder(folder) else ():
            for file in sorted(tree.names(join(folder, name))) if tree.is_folder(join(folder, name)) else ():
                found = self._named(join(folder, name, file), there) if file.endswith(".txt") else None
                if found is not None:
                    lists[f"{name.rstrip('/')}/{file[:-4]}"] = found
        if read_note(self.path) is not None:
            lists.pop(f"{MAIN}{ORDER[0]}", None)
        if set(lists.get(f"{MAIN}{ALL}", ())) == there:
            del lists[f"{MAIN}{ALL}"]
        if not lists:
            return {}
        usual = ("train", "val", "test")
        shares = sorted(lists, key=lambda name: ([name != MAIN + one for one in usual], name))
        named = [stem for name in shares for stem in lists[name]]
        if len(named) == len(stems) and set(named) == there and all(name.startswith(MAIN) for name in lists):
            place = {stem: number for number, name in enumerate(shares) for stem in lists[name]}
            self._columns["split"] = np.array([place[stem] for stem in stems], dtype=np.int64)
            return {"split": Int(names=tuple(name.removeprefix(MAIN) for name in shares))}
        members = {name: set(found) for name, found in lists.items()}
        cells = [[name for name, found in members.items() if stem in found] for stem in stems]
        self._columns["sets"] = Ragged.from_cells([json_text(one) for one in cells])
        return {"sets": List(Text())}

    @staticmethod
    def _named(path: str, there: set[str]) -> list[str] | None:
        """The images of a list; None where it is one of a class, or names what is not there."""
        try:
            lines = [line.strip() for line in read_text(path).splitlines() if line.strip()]
        except BatchplantError:
            return None
        return lines if there.issuperset(lines) and len(set(lines)) == len(lines) else None

    def _set_fields(
        self, files: list[str], classes: Sequence[str] | None, masks: list[str], sets: dict[str, Field]
    ) -> None:
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
        # Subtraction may have changed the last digit.
        rounded = np.round(boxes, 9)
        boxes = np.where(np.isclose(rounded, boxes, rtol=1e-14, atol=1e-14), rounded, boxes)
        noted = read_note(self.path) or []
        wide = "boxes" in self._float64 or "boxes" in read_float64(self.path)
        with np.errstate(over="ignore"):
            boxes = boxes if wide else boxes.astype(np.float32) if noted else narrowed(boxes)
        self._class_of = names
        columns, has = self._columns, {key for thing in things for key in thing.told}
        has |= set(noted)
        fields: dict[str, Field] = {"image": self._look(), "file_name": Text(), **sets}
        fields["boxes"] = boxes_field("xyxy", ["labels", *FLAGS])
        fields["labels"] = Labels(tuple(classes) or None)
        columns["boxes"] = ragged(boxes, counts)
        columns["labels"] = ragged(np.array([places.get(name, -1) for name in names], dtype=np.int64), counts)
        for flag in FLAGS:
            if flag != "occluded" or flag in has:
                values = [
                    thing.told.get(flag, "0").strip().lower() in ("1", "true", "yes") for thing in things
                ]
                fields[flag] = Tensor("bool", (None,))
                columns[flag] = ragged(np.array(values, dtype=np.bool_), counts)
        fields["boxes"] = boxes_field("xyxy", fields, dtype=boxes.dtype.name)
        if "pose" in has:
            fields["pose"] = List(Text())
            poses = [[thing.told.get("pose", "Unspecified") for thing in one.things] for one in found]
            columns["pose"] = Ragged.from_cells([json_text(part) for part in poses])
        for field in masks:
            fields[field] = self._look(field, mask=True)
        extras = [self._extra(one, row) for row, one in enumerate(found)]
        if any(extras) or "image_extra" in noted:
            fields["image_extra"] = Json()
            columns["image_extra"] = Ragged.from_cells([json_text(one) for one in extras])
        if any(thing.extra for thing in things) or "object_extra" in noted:
            fields["object_extra"] = Json()
            cells = [json_text([thing.extra for thing in one.things]) for one in found]
            columns["object_extra"] = Ragged.from_cells(cells)
        self._sizes = np.array([_size(one) for one in found], dtype=np.int64).reshape(-1, 2)
        self.schema = self._chosen(fields)

    def _extra(self, annotation: Annotation, row: int) -> dict[str, Any]:
        """Attributes of an annotation that a writer cannot derive."""
        images = self._images
        masks = (images[field].names[row] for field in MASKS if field in images)
        segmented = "1" if any(name is not None for name in masks) else "0"
        file = os.path.basename(str(images["image"].names[row]))
        usual = {"filename": file, "segmented": segmented}
        extra = {key: value for key, value in annotation.extra.items() if usual.get(key, ...) != value}
        size = extra.pop("size", None)
        if isinstance(size, dict):
            rest = {key: side for key, side in size.items() if key not in ("width", "height")}
            if rest not in ({}, {"depth": "3"}):
                extra["size"] = rest
        return extra

    def _parsed(self, files: list[str]) -> Iterator[Annotation]:
        below = self._images["image"].below
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


def _size(annotation: Annotation) -> tuple[int, int]:
    """Width and height; 0 where the file does not tell."""
    try:
        sides = [float(annotation.told.get(side, 0)) for side in ("width", "height")]
    except ValueError:
        return 0, 0
    width, height = (int(side) if 0 <= side <= LONGEST_SIDE_PIXELS else 0 for side in sides)
    return width, height
