"""A detection dataset, for the suites of COCO, YOLO and VOC."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import batchplant as bp
from batchplant.testing import FormatSuite
from batchplant.testing.cases import all_cases, jpeg

CLASSES = ("cat", "dog", "Größe: 1")


def boxes(n: int) -> np.ndarray:
    """Boxes as left, top, width and height, within images of 8 pixels and more."""
    rows = [[number, 1.25, 2 + number / 4, 3.5] for number in range(n % 4)]
    return np.array(rows, np.float32).reshape(-1, 4)


class DetectionSuite(FormatSuite):
    """One field of every kind that the format has, in the form that it keeps them in."""

    # A list that ends early is one of fewer objects.
    notices_cuts = False
    fields: ClassVar[dict[str, tuple[bp.Field, Any]]]

    def cases(self, *, supported: bool = True):
        if not supported:
            return super().cases(supported=False)
        return {name: case for name, case in all_cases().items() if name.startswith("image")}

    def files(self, path: str):
        """The first image, and every file of annotations that is not empty."""
        files = [file for file in super().files(path) if file.stat().st_size]
        images = [file for file in files if file.suffix == ".jpg"]
        return [file for file in files if file not in images[1:]]

    def dataset(self, count: int, *fields: str):
        schema = {name: field for name, (field, _) in self.fields.items()}
        return schema, [{name: make(n) for name, (_, make) in self.fields.items()} for n in range(count)]


def image(n: int) -> bytes:
    return jpeg(8, 8 + n % 5)
