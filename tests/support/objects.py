"""What the suites of COCO, YOLO and VOC share: a dataset of detection, and images with objects."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

import batchplant as bp
from batchplant.testing import FormatSuite
from batchplant.testing.cases import all_cases, jpeg

CLASSES = ("cat", "dog", "Größe: 1")


def boxes(n: int) -> np.ndarray:
    """As left, top, width, height, in images of 8 pixels and more."""
    return np.array([[one, 1.25, 2 + one / 4, 3.5] for one in range(n % 4)], np.float32).reshape(-1, 4)


class DetectionSuite(FormatSuite):
    """One field of every kind that the format has, in the form that it keeps them in."""

    # A list that ends early is one of fewer objects.
    notices_cuts = False
    fields: ClassVar[dict[str, tuple[bp.Field, Any]]]

    def cases(self, *, supported: bool = True):
        if not supported:
            return super().cases(supported=False)
        return {name: one for name, one in all_cases().items() if name.startswith("image")}

    def files(self, path: str):
        """Of the images one, and of labels those that are there."""
        found = [file for file in super().files(path) if file.stat().st_size]
        images = [file for file in found if file.suffix == ".jpg"]
        return [file for file in found if file not in images[1:]]

    def dataset(self, count: int, *fields: str):
        schema = {name: field for name, (field, _) in self.fields.items()}
        return schema, [{name: make(n) for name, (_, make) in self.fields.items()} for n in range(count)]


def image(n: int) -> bytes:
    return jpeg(8, 8 + n % 5)
