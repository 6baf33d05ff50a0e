"""Writing YOLO folders: ``images/train/``, ``labels/train/`` and data.yaml."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...codecs.nested import json_text
from ...data.write_options import WriteOptions
from ...errors import OptionError, SchemaError
from ...schema import Boxes, Int, Keypoints, Schema
from ...schema.columns import Columns, Ragged
from ...storage import is_plain
from ..base.detection import DetectionWriter, ragged, spread
from ..base.detection.writer import Entry
from .labels import bounds, joined


class YoloWriter(DetectionWriter):
    """Writes a folder with data.yaml, ``images/SPLIT/`` and ``labels/SPLIT/``.

    ``split``: what the split is called (default: train), where there is no field ``split``. ``boxes``: how
    boxes are meant (xyxy, xywh, cxcywh), where the field is a bare Tensor.
    """

    boxes = Boxes("cxcywh", normalized=True)
    keeps_float64 = False

    def __init__(
        self,
        path: str,
        schema: Schema,
        options: WriteOptions,
        *,
        split: str = "train",
        boxes: str | None = None,
    ) -> None:
        if not is_plain(split):
            raise OptionError(f"a split is train, val or test, not {split!r}", path=path)
        self._split = split
        super().__init__(path, schema, options, boxes=boxes)

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        if {"polygons", "keypoints"} <= set(self.schema):
            raise SchemaError("a line of YOLO has an outline or keypoints; leave one out", field="polygons")
        field = self.schema.get("split") if "split" in self.schema else None
        self._splits = tuple(field.names or ()) if isinstance(field, Int) else (self._split,)
        if field is not None and (not self._splits or not all(map(is_plain, self._splits))):
            raise SchemaError(
                "the split of a sample is an Int with names such as train and val", field="split"
            )
        if any("\n" in name or '"' in name for name in self._names_of_classes):
            raise SchemaError('the name of a class has no line breaks and no "', field="labels")
        # Names of their own do not tell in which order the images came: lists do.
        self._list = self.partial.spool("list") if "file_name" in self.schema else None
        self._most = int(state["most"]) if state else -1
        self._joined = bool(state["joined"]) if state else False

    def _state(self) -> dict[str, Any]:
        return {"most": self._most, "joined": self._joined}

    def remarks(self) -> list[str]:
        joined = ["outlines of several rings are joined to one, as YOLO has them"] * self._joined
        return [*super().remarks(), *joined]

    def _converted(self, columns: Columns) -> Columns:
        done = super()._converted(columns)
        if "polygons" in done:
            outlines = [self._joined_rings(cell) for cell in done["polygons"]]
            done["polygons"] = Ragged.from_cells([json_text(outline) for outline in outlines])
            if "boxes" in done:
                done["boxes"] = _around(done["boxes"], outlines)
        return done

    def _joined_rings(self, cell: Any) -> list[list[list[float]]]:
        """One ring for each object."""
        objects = json.loads(bytes(cell))
        self._joined |= any(len(rings) > 1 for rings in objects)
        return [[joined(rings)] if rings else [] for rings in objects]

    def _place(self, values: Mapping[str, Any]) -> str:
        return self._splits[values["split"]] if "split" in values else self._split

    def _put(self, entries: list[Entry]) -> None:
        for entry in entries:
            lines = [self._line(entry.values, row) for row in range(len(entry.values.get("labels", ())))]
            name = os.path.join("labels", os.path.splitext(entry.file)[0] + ".txt")
            self._resumes, before = True, self._resumes
            self._save(name, "".join(f"{line}\n" for line in lines).encode(), entry.number)
            self._resumes = before
            if self._list is not None:
                self._list.write(f"./images/{entry.file}\n".encode())

    def _line(self, values: Mapping[str, Any], row: int) -> str:
        label = int(values["labels"][row])
        self._most = max(self._most, label)
        rings = values["polygons"][row] if "polygons" in values else []
        if rings:
            numbers = [repr(value) for value in rings[0]]
        else:
            numbers = [str(value) for value in values["boxes"][row]] if "boxes" in values else ["0"] * 4
        if "keypoints" in values:
            numbers += [str(value) for value in values["keypoints"][row].reshape(-1)]
        return " ".join([str(label), *numbers])

    def _finish(self) -> str:
        names = self._names_of_classes or [str(number) for number in range(self._most + 1)]
        lists = self._lists()
        lines = [
            "path: .",
            *(f"{split}: {f'{split}.txt' if lists else f'images/{split}'}" for split in self._splits),
        ]
        for split in self._splits:
            for top in ("images", "labels"):
                (self._folder / top / split).mkdir(parents=True, exist_ok=True)
        points = self.schema.get("keypoints") if "keypoints" in self.schema else None
        if isinstance(points, Keypoints):
            lines.append(f"kpt_shape: [{points.shape[1]}, {points.shape[2]}]")
            if points.swap:
                flips = list(range(int(points.points or 0)))
                for a, b in points.swap:
                    flips[a], flips[b] = b, a
                lines.append(f"flip_idx: {flips}")
            if points.names:
                lines.append(
                    f"kpt_names: [{', '.join(json.dumps(name, ensure_ascii=False) for name in points.names)}]"
                )
        if names:
            lines += ["names:", *(f'  {number}: "{name}"' for number, name in enumerate(names))]
        (self._folder / "data.yaml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return super()._finish()

    def _lists(self) -> bool:
        """Write the lists of the images of each split, where they are needed."""
        if self._list is None:
            return False
        every = self._list.read_at(self._list.size, 0).decode().splitlines(keepends=True)
        for split in self._splits:
            mine = [line for line in every if line.startswith(f"./images/{split}/")]
            (self._folder / f"{split}.txt").write_text("".join(mine), encoding="utf-8")
        return True


def _around(boxes: Any, outlined: list[list[Any]]) -> Ragged:
    """Boxes, those of objects with an outline being what lies around it: YOLO has no others."""
    values, counts = spread(boxes, "float32", (None, 4))
    values = values.copy()
    for row, rings in enumerate(rings for objects in outlined for rings in objects):
        if rings:
            values[row] = bounds(rings[0]).astype(np.float32)
    return ragged(values, counts)
