"""Makes golden/coco/masks.json with pycocotools 2.0.11: python make_coco.py (pip install pycocotools)."""

import json
from pathlib import Path

import numpy as np
from pycocotools import mask as coco

rng = np.random.default_rng(7)
found = []


def add(rle, **more):
    counts = rle["counts"].decode()
    canonical = coco.encode(np.asfortranarray(coco.decode(rle)))["counts"].decode()
    found.append(
        {"size": rle["size"], "counts": counts, "canonical": canonical, "area": int(coco.area(rle)), **more}
    )


for height, width in ((1, 1), (1, 9), (9, 1), (7, 5), (24, 40)):
    for share in (0.0, 0.5, 0.97, 1.0):
        add(coco.encode(np.asfortranarray((rng.random((height, width)) < share).astype(np.uint8))))
polygons = [
    [2, 2, 5, 2, 5, 5, 2, 5], [0, 0, 40, 0, 40, 24, 0, 24], [-3, -2, 50, 3, 20, 30],
    [10.5, 3.25, 30.75, 4.5, 12.125, 20.875], [5, 5, 5, 5, 5, 5], [5, 5, 20, 5, 5, 5],
    [100, 100, 120, 100, 110, 130],
    [0.49, 0.51, 3.5, 0.5, 3.49, 3.51, 0.5, 3.5], [10, 2, 30, 22, 30, 2, 10, 22],
]  # fmt: skip
for points in (3, 5, 9, 30):
    for _ in range(4):
        polygons.append(np.round(rng.uniform(-4, 44, 2 * points), 2).tolist())
for polygon in polygons:
    [rle] = coco.frPyObjects([polygon], 24, 40)
    add(rle, polygon=polygon)
(Path(__file__).parent / "coco" / "masks.json").write_text(
    json.dumps(found, separators=(",", ":")).replace("},{", "},\n{") + "\n"
)
