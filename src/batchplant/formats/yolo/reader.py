"""Reading YOLO folders."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np

from ...codecs.nested import json_text
from ...errors import BatchplantError, DamagedError, OptionError, Problem
from ...schema import Field, Int, Keypoints, Labels, Polygons, Text
from ...schema.columns import I64, Columns, Ragged, starts_of
from ...storage import absolute, join, parent, tree
from ..base.detection import DetectionReader, boxes_field, ragged
from ..base.detection.notes import read_note
from ..base.folders.files import open_files
from . import labels
from .layout import class_names, find, label_of, read_yaml, yaml_of

ALL = "all"
MOST_PROBLEMS = 100


class YoloReader(DetectionReader):
    """Reads a folder with data.yaml, or with ``images/`` and ``labels/``; or such a YAML file.

    ``split``: train, val or test, where there are several; all: every one, with the field ``split``.
    """

    def __init__(self, path: str, *, split: str | None = None) -> None:
        self.path = path
        self._images, self._columns = {}, Columns()
        folder = tree.is_folder(path)
        root = path if folder else parent(absolute(path))
        below = open_files(root)
        try:
            yaml = yaml_of(path) if folder else os.path.basename(path)
            told = {} if yaml is None else read_yaml(join(root, yaml))
            found = find(root, below, told)
            chosen = self._split(split, found.splits)
            names = [name for one in chosen for name in found.splits[one]]
            self._set_images(below, names)
            self._labels = [label_of(name) for name in names]
            self._orphans = self._lonely(found.labels, found.splits)
            self._set_objects(found.labels, told)
            heads = [found.folders[one] for one in chosen for _ in found.splits[one]]
            shown = [name[len(head) + 1 :] if head and name.startswith(head + "/") else name
                     for name, head in zip(names, heads, strict=True)]  # fmt: skip
            self._columns["file_name"] = Ragged.from_cells([os.fsencode(name) for name in shown])
            self._set_fields(told, chosen if split == ALL else [], [len(found.splits[one]) for one in chosen])
        except BatchplantError as error:
            below.close()
            raise error.at(path=path) from None
        except OSError as error:
            raise DamagedError(f"{error.filename}: {error.strerror}", path=path) from None

    def _split(self, asked: str | None, splits: dict[str, Any]) -> list[str]:
        result = list(splits)
        if asked is None:
            if len(result) > 1:
                counts = [(one, len(splits[one])) for one in result]
                shown = ", ".join(f"{one} ({many:,} image{'s' * (many != 1)})" for one, many in counts)
                raise OptionError(
                    f"it has {shown}: choose with split={result[0]!r} (--option split={result[0]}); "
                    f"split={ALL!r} takes all, and adds the field split"
                )
            return result
        if asked == ALL:
            return result
        same = {"valid": "val", "val": "valid"}.get(asked)
        for one in (asked, same):
            if one in result:
                return [str(one)]
        raise OptionError(f"there is no split {asked!r}; it has {', '.join(filter(None, result)) or 'none'}")

    def _lonely(self, there: set[str], splits: dict[str, list[str]]) -> list[str]:
        """Labels without an image."""
        known = {label_of(name) for names in splits.values() for name in names}
        return sorted(name for name in there if "labels" in name.split("/")[:-1] and name not in known)

    def _set_objects(self, there: set[str], told: dict[str, Any]) -> None:
        """Labels of all images; one without a file of them has no objects."""
        below = self._images["image"].below
        rows = [row for row, name in enumerate(self._labels) if name in there]
        try:
            found = labels.parse(below.read([self._labels[row] for row in rows]))
            self._points = _points_of(told)
            self._objects = labels.objects_of(found, self._points)
        except BatchplantError as error:
            if error.sample is not None:
                row = rows[error.sample]
                raise DamagedError(f"{self._labels[row]}: {error.message}", sample=row) from None
            raise
        self._counts = np.zeros(self.length, dtype=np.int64)
        self._counts[rows] = found.counts
        self._firsts = starts_of(self._counts)

    def _set_fields(self, told: dict[str, Any], splits: list[str], sizes: list[int]) -> None:
        objects, counts = self._objects, self._counts
        fields: dict[str, Field] = {"image": self._look(), "file_name": Text()}
        if splits:
            fields["split"] = Int(names=tuple(splits))
            self._columns["split"] = np.repeat(np.arange(len(splits)), sizes).astype(np.int64)
        fields["boxes"] = boxes_field("cxcywh", ["labels"], normalized=True)
        fields["labels"] = Labels(class_names(told, self.path))
        self._columns["boxes"] = ragged(objects.boxes, counts)
        self._columns["labels"] = ragged(objects.labels, counts)
        if objects.rings is not None or (self._points is None and "polygons" in (read_note(self.path) or ())):
            fields["polygons"] = Polygons(normalized=True)
        if objects.keypoints is not None and self._points is not None:
            points, each = self._points
            names = told.get("kpt_names")
            names = names if isinstance(names, list) and len(names) == points else ()
            swap = _swap(told.get("flip_idx"), points)
            fields["keypoints"] = Keypoints(
                points, tuple(map(str, names)), swap=swap, visibility=each == 3, normalized=True
            )
            self._columns["keypoints"] = ragged(objects.keypoints, counts)
        self.schema = self._chosen(fields)

    # -- reading ---------------------------------------------------------------------------------------

    def _column(self, name: str, indices: I64) -> Any:
        if name != "polygons":
            return super()._column(name, indices)
        cells = []
        for index in indices.tolist():
            rows = range(int(self._firsts[index]), int(self._firsts[index + 1]))
            cells.append(json_text([self._rings(row) for row in rows]))
        return Ragged.from_cells(cells)

    def _rings(self, row: int) -> list[list[float]]:
        if self._objects.rings is None:
            return []
        values, starts, ends = self._objects.rings
        ring = values[starts[row] : ends[row]].tolist()
        return [ring] if ring else []

    def facts(self) -> dict[str, Any]:
        lost = self.length - sum(map(bool, self._counts.tolist()))
        return {"objects": int(self._counts.sum()), "images without objects": lost}

    def _verify(self) -> Iterator[Problem]:
        yield from super()._verify()
        for name in self._orphans[:MOST_PROBLEMS]:
            yield Problem(f"{name} has no image", self.path)
        if len(self._orphans) > MOST_PROBLEMS:
            yield Problem(f"{len(self._orphans) - MOST_PROBLEMS:,} more labels without an image", self.path)


def _points_of(told: dict[str, Any]) -> tuple[int, int] | None:
    shape = told.get("kpt_shape")
    if shape is None:
        return None
    if (
        not isinstance(shape, list) or len(shape) != 2 or not all(type(one) is int for one in shape)
        or not 0 < shape[0] < 10_000 or shape[1] not in (2, 3)
    ):  # fmt: skip
        raise DamagedError(f"kpt_shape is [points, 2 or 3], not {shape!r}")
    return shape[0], shape[1]


def _swap(flips: Any, points: int) -> tuple[tuple[int, int], ...] | None:
    """The pairs that a mirror exchanges, out of the number that each point gets."""
    if not isinstance(flips, list) or sorted(map(str, flips)) != sorted(map(str, range(points))):
        return None
    return tuple((one, other) for one, other in enumerate(flips) if one < other and flips[other] == one)
