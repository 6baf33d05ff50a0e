"""Writing Pascal VOC folders."""

from __future__ import annotations

import os
from typing import Any

from ...errors import SchemaError
from ...families.detection import DetectionWriter
from ...families.detection.writer import Entry
from ...schema import Boxes, Int
from .annotation import FLAGS, SIDES, write
from .reader import ALL, ANNOTATIONS, IMAGES, MASKS, SETS


class VocWriter(DetectionWriter):
    """Writes ``Annotations/``, ``JPEGImages/`` and the lists of ``ImageSets/Main/``.

    ``boxes``: how boxes are meant (xyxy, xywh, cxcywh), where the field is a bare Tensor.
    """

    boxes = Boxes("xyxy")
    pictures = IMAGES

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        field = self.schema.get("split") if "split" in self.schema else None
        self._splits = tuple(field.names or ()) if isinstance(field, Int) else ()
        if field is not None and not self._splits:
            raise SchemaError(
                "the split of a sample is an Int with names such as train and val", field="split"
            )
        self._list = self.partial.spool("list")
        (self._folder / ANNOTATIONS).mkdir(exist_ok=True)

    def _put(self, entries: list[Entry]) -> None:
        for one in entries:
            values = one.values
            segmented = any(values.get(name) for name in MASKS)
            things = [self._thing(values, row) for row in range(len(values.get("labels", ())))]
            text = write(os.path.basename(one.file), one.width, one.height, 3, segmented, things)
            stem = os.path.splitext(one.file)[0]
            self._resumes, before = True, self._resumes
            self._save(f"{ANNOTATIONS}/{stem}.xml", text.encode(), one.number)
            self._resumes = before
            split = self._splits[values["split"]] if self._splits else ALL
            self._list.write(f"{split} {stem}\n".encode())

    def _thing(self, values: dict[str, Any], row: int) -> dict[str, str]:
        label = int(values["labels"][row])
        found = {"name": self.classes[label] if self.classes else str(label)}
        found["pose"] = values["pose"][row] if "pose" in values else "Unspecified"
        for flag in FLAGS:
            if flag != "occluded" or flag in values:
                found[flag] = str(int(values[flag][row])) if flag in values else "0"
        if "boxes" in values:
            left, top, right, bottom = (float(str(value)) for value in values["boxes"][row])
            box = (left + 1, top + 1, right, bottom)
        else:
            box = (0.0, 0.0, 0.0, 0.0)
        return found | dict(zip(SIDES, map(_number, box), strict=True))

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
        lines: dict[str, list[str]] = {name: [] for name in (*self._splits, ALL)}
        for line in self._list.read_at(self._list.size, 0).decode().splitlines():
            split, _, stem = line.partition(" ")
            for one in dict.fromkeys((split, ALL)):
                lines[one].append(stem + "\n")
        for split, stems in lines.items():
            (folder / f"{split}.txt").write_text("".join(stems), encoding="utf-8")
        return super()._finish()


def _number(value: float) -> str:
    return str(int(value)) if value.is_integer() else repr(value)
