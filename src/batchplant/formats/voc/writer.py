"""Writing Pascal VOC folders."""

from __future__ import annotations

import json
import math
import os
from typing import Any

from ...codecs.nested import json_text
from ...errors import BatchplantError, EncodeError, SchemaError, shown
from ...schema import Boxes, Int
from ...schema.columns import Columns
from ...storage import is_plain
from ..base.detection import DetectionWriter
from ..base.detection.writer import Entry
from .annotation import FLAGS, SIDES, write
from .reader import ALL, ANNOTATIONS, IMAGES, MASKS, ORDER, SETS


class VocWriter(DetectionWriter):
    """Writes ``Annotations/``, ``JPEGImages/`` and the lists of ``ImageSets/Main/``.

    ``boxes``: how boxes are meant (xyxy, xywh, cxcywh), where the field is a bare Tensor.
    """

    boxes = Boxes("xyxy")
    images = IMAGES

    def _begin(self, state: dict[str, Any] | None) -> None:
        super()._begin(state)
        field = self.schema.get("split") if "split" in self.schema else None
        self._splits = tuple(field.names or ()) if isinstance(field, Int) else ()
        if field is not None and not self._splits:
            raise SchemaError(
                "the split of a sample is an Int with names such as train and val", field="split"
            )
        if any(not is_plain(name) for name in self._splits):
            raise SchemaError("the name of a split is one of a file, such as train", field="split")
        self._some = "sets" in self.schema
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
            self._resumes, before = True, self._resumes
            self._save(f"{ANNOTATIONS}/{stem}.xml", text.encode(), entry.number)
            self._resumes = before
            split = self._splits[values["split"]] if self._splits else ""
            sets = [f"Main/{split}"] if split else values.get("sets", [])
            self._list.write(json_text([stem, *sets]) + b"\n")

    def _thing(self, values: dict[str, Any], row: int) -> dict[str, Any]:
        label = int(values["labels"][row])
        found: dict[str, Any] = {"name": self.classes[label] if self.classes else str(label)}
        found["pose"] = values["pose"][row] if "pose" in values else "Unspecified"
        for flag in FLAGS:
            if flag != "occluded" or flag in values:
                found[flag] = str(int(values[flag][row])) if flag in values else "0"
        if "boxes" in values:
            left, top, right, bottom = (float(str(value)) for value in values["boxes"][row])
            box = (left + 1, top + 1, right, bottom)
        else:
            box = (0.0, 0.0, 0.0, 0.0)
        extra = values["object_extra"][row] if "object_extra" in values else {}
        found |= {key: value for key, value in extra.items() if key not in found}
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
        lines: dict[str, list[str]] = {f"Main/{name}": [] for name in self._splits}
        # The list of the order is trainval, unless that is a list of some of them.
        order = f"Main/{ALL if not self._some and set(self._splits) <= {'train', 'val'} else ORDER[0]}"
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
