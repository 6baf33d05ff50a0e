"""The image of docs/guides/augmentation.md: what each op makes of one photo.

python docs/augmentations.py     needs Pillow
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "demo"))

import photos  # noqa: E402

from batchplant import ops  # noqa: E402

FIGURE = ROOT / "docs" / "figures" / "augmentation.webp"
WIDTH, HEIGHT, COLUMNS, GAP, TITLE = 216, 162, 5, 10, 26

# Several draws of the policies: no two are alike.
SHOWN: list[tuple[str, ops.Op | None, int]] = [
    ("as it is", None, 0),
    ("AutoContrast()", ops.AutoContrast(1.0), 0),
    ("Equalize()", ops.Equalize(1.0), 0),
    ("Posterize(2)", ops.Posterize(2, 1.0), 0),
    ("Invert()", ops.Invert(1.0), 0),
    ("RandomSolarization(128)", ops.RandomSolarization(128, 1.0), 0),
    ("Sharpness(4)", ops.Sharpness(4, 1.0), 0),
    ("JpegArtifacts(15)", ops.JpegArtifacts(15, 1.0), 0),
    ("GaussianNoise(25)", ops.GaussianNoise(25, 1.0), 0),
    ('RandomErasing(value="random")', ops.RandomErasing(1.0, value="random"), 3),
    *(("RandAugment()", ops.RandAugment(fill=(124, 116, 104)), sample) for sample in (1, 3, 12, 11, 14)),
    *(("TrivialAugment()", ops.TrivialAugment(fill=(124, 116, 104)), sample) for sample in (3, 2, 9, 10, 7)),
    *(("AugMix(5)", ops.AugMix(5), sample) for sample in (0, 1, 2, 3, 4)),
]


def changed(photo: Any, op: ops.Op | None, sample: int) -> Any:
    if op is None:
        return photo
    ids = np.array([sample])
    return op.run(photo[None].copy(), ids, ops.Draws(0, 0, ids, "figure"))[0]


def main() -> None:
    large = Image.fromarray(photos.photo(28, width=4 * WIDTH, height=4 * HEIGHT, label=8))
    photo = np.asarray(large.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS))
    rows = -(-len(SHOWN) // COLUMNS)
    sheet = Image.new("RGB", (COLUMNS * (WIDTH + GAP) + GAP, rows * (HEIGHT + TITLE) + GAP), "white")
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for number, (title, op, sample) in enumerate(SHOWN):
        left, top = GAP + number % COLUMNS * (WIDTH + GAP), number // COLUMNS * (HEIGHT + TITLE)
        pen.text((left, top + 7), title, "black", font)
        sheet.paste(Image.fromarray(changed(photo, op, sample)), (left, top + TITLE))
    sheet.save(FIGURE, quality=72, method=6)
    print(FIGURE.relative_to(ROOT), f"{FIGURE.stat().st_size} bytes")


if __name__ == "__main__":
    main()
