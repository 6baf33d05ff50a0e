"""Writing COCO files: ``images/`` and ``annotations/instances.json``."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...codecs.nested import json_text
from ...data.writer import WriteOptions
from ...errors import OptionError
from ...schema import Boxes, Keypoints, Schema
from ..base.detection import DetectionWriter, Entry
from .reader import NOTE
from .scan import TOP

FILE = "annotations/instances.json"
COPIED = 1 << 20


class CocoWriter(DetectionWriter):
    """Writes a folder with ``images/`` and ``annotations/instances.json``.

    ``boxes``: how boxes are meant (xyxy, xywh, cxcywh), where the field is a bare Tensor. ``attributes``:
    what stands in the file besides: ``{"": {"info": …, "licenses": …}, "labels": {"categories": […]}}``.
    """

    boxes = Boxes("xywh")

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        boxes: str | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        self._attributes = {name: _parsed(values) for name, values in (attributes or {}).items()}
        super().__init__(path, schema, options, boxes=boxes)

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        if {"captions", "boxes"} <= set(self.schema):
            raise OptionError(
                "captions and boxes stand in files of their own: write them one after another (--fields)",
                path=self.path,
            )
        self._categories = self._given_categories()
        self._images, self._objects = self.partial.spool("images"), self.partial.spool("annotations")
        self._next = int(state["next"]) if state else 1
        # The classes that have keypoints: those of which it is said, else those of which some are there.
        named = {row for row, category in enumerate(self._categories) if category.get("keypoints")}
        self._with_points = named or None
        self._points_seen = set(state["points_seen"] if state else ())

    def _given_categories(self) -> list[dict[str, Any]]:
        """The categories, with the ids and the rest that they had, where they are the same classes."""
        names = self._names_of_classes
        categories = self._attributes.get("labels", {}).get("categories")
        given_names = (
            [str(category.get("name", category.get("id"))) for category in categories]
            if isinstance(categories, list)
            else None
        )
        if categories is not None and given_names == names:
            return list(categories)
        labels = self.schema.get("labels")
        ids = getattr(labels, "ids", None) or range(1, len(names) + 1)
        return [{"id": number, "name": name} for number, name in zip(ids, names, strict=True)]

    def _pointed_categories(self) -> list[dict[str, Any]]:
        points = self.schema.get("keypoints")
        if self._with_points or not isinstance(points, Keypoints) or not points.names:
            return self._categories
        seen = self._points_seen or range(len(self._categories))
        return [
            {**category, "keypoints": list(points.names)} if row in seen else category
            for row, category in enumerate(self._categories)
        ]

    def _state(self) -> dict[str, Any]:
        return {"next": self._next, "points_seen": sorted(self._points_seen)}

    def _put(self, entries: list[Entry]) -> None:
        images, objects = [], []
        for entry in entries:
            number = int(entry.values.get("image_id", entry.number + 1))
            about = {"id": number, "file_name": entry.file, "width": entry.width, "height": entry.height}
            images.append(json_text(_merged_keys(about, entry.values.get("image_extra"))))
            if "captions" in entry.values:
                extras = entry.values.get("object_extra") or [{}] * len(entry.values["captions"])
                for caption, extra in zip(entry.values["captions"], extras, strict=True):
                    about = {"id": extra.get("id", self._next), "image_id": number, "caption": caption}
                    objects.append(json_text(_merged_keys(about, extra)))
                    self._next += 1
            elif "panoptic" in entry.values:
                if entry.values["panoptic"] is not None:
                    about = {"image_id": number, "file_name": entry.values["panoptic"]}
                    segments = b", ".join(self._segments(entry, number, panoptic=True))
                    objects.append(json_text(about)[:-1] + b', "segments_info": [' + segments + b"]}")
            else:
                objects += self._segments(entry, number)
        self._append(self._images, images)
        self._append(self._objects, objects)

    @staticmethod
    def _append(spool: Any, lines: list[bytes]) -> None:
        if lines:
            spool.write((b",\n" if spool.size else b"") + b",\n".join(lines))

    def _segments(self, entry: Entry, image: int, *, panoptic: bool = False) -> list[bytes]:
        values, segments = entry.values, []
        count = max(
            (
                len(values[name])
                for name in ("boxes", "labels", "polygons", "rle", "keypoints")
                if name in values
            ),
            default=0,
        )
        for row in range(count):
            about: dict[str, Any] = {"id": int(values["ids"][row]) if "ids" in values else self._next}
            self._next += 1
            if not panoptic:
                about["image_id"] = image
            if "labels" in values:
                label = int(values["labels"][row])
                about["category_id"] = self._categories[label]["id"] if self._categories else label
            if "boxes" in values:
                about["bbox"] = [_number(value) for value in values["boxes"][row]]
            if "area" in values:
                about["area"] = _number(values["area"][row])
            elif "boxes" in values:
                about["area"] = float(values["boxes"][row][2]) * float(values["boxes"][row][3])
            about["iscrowd"] = int(values["iscrowd"][row]) if "iscrowd" in values else 0
            if values.get("rle") and values["rle"][row]:
                about["segmentation"] = {"size": [entry.height, entry.width], "counts": values["rle"][row]}
            elif "polygons" in values:
                about["segmentation"] = values["polygons"][row]
            if "keypoints" in values and self._has_points(values, row):
                points = values["keypoints"][row]
                if points.shape[1] == 2:
                    points = np.concatenate([points, np.full((len(points), 1), 2, points.dtype)], axis=1)
                about["keypoints"] = [_number(value) for value in points.reshape(-1)]
                about["num_keypoints"] = int((points[:, 2] > 0).sum())
            extra = values["object_extra"][row] if "object_extra" in values else None
            segments.append(json_text(_merged_keys(about, extra)))
        return segments

    def _has_points(self, values: dict[str, Any], row: int) -> bool:
        """True if an object has keypoints: some are there, or its class has them."""
        label = int(values["labels"][row]) if "labels" in values else 0
        if values["keypoints"][row].any():
            self._points_seen.add(label)
            return True
        return self._with_points is None or label in self._with_points

    def _save_other(self, name: str, file: str, column: Any, row: int, number: int) -> str | None:
        cell = column[row]
        if cell is None:
            return None
        file = file.rpartition(".")[0] + ".png"
        self._save(f"annotations/panoptic/{file}", cell, number)
        return file

    def _finish(self) -> str:
        about = self._attributes.get("", {})
        info = {**dict(about.get("info") or {}), NOTE: {"fields": self._noted_schema().to_json()}}
        top = [f'"info": {json.dumps(info)}']
        if about.get("licenses"):
            top.append(f'"licenses": {json.dumps(about["licenses"])}')
        for key, value in about.items():
            if key not in TOP:
                top.append(f"{json.dumps(key)}: {json.dumps(value)}")
        top.append(f'"categories": {json.dumps(self._pointed_categories(), ensure_ascii=False)}')
        name = FILE.replace("instances", self._called())
        target = self._folder / name
        target.parent.mkdir(exist_ok=True)
        with open(target, "wb") as out:
            out.write(("{" + ",\n".join(top)).encode())
            for key in ("images", "annotations"):
                spool = self.partial.spool(key)
                out.write(f',\n"{key}": [\n'.encode())
                for start in range(0, spool.size, COPIED):
                    out.write(spool.read_at(min(COPIED, spool.size - start), start))
                out.write(b"\n]")
            out.write(b"}\n")
        return "folder"

    def _noted_schema(self) -> Schema:
        return Schema({name: self._stored(field, name) for name, field in self.schema.items()})

    def _called(self) -> str:
        for name, called in (
            ("captions", "captions"),
            ("panoptic", "panoptic"),
            ("keypoints", "person_keypoints"),
        ):
            if name in self.schema:
                return called
        return "instances"


def _parsed(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes, with lists and objects that another format keeps as their JSON text as what they are."""
    parsed = {}
    for key, value in attributes.items():
        parsed[key] = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
        if isinstance(value, str) and value[:1] in "[{":
            with contextlib.suppress(ValueError, RecursionError):
                parsed[key] = json.loads(value)
    return parsed


def _merged_keys(about: dict[str, Any], extra: dict[str, Any] | None) -> dict[str, Any]:
    return about | {key: value for key, value in (extra or {}).items() if key not in about}


def _number(value: Any) -> int | float:
    """The shortest digits that give the same 32 bits; whole numbers without a point."""
    number = float(str(value))
    return int(number) if number.is_integer() and abs(number) < 1 << 31 else number
