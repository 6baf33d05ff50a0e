"""Write tests/golden/boxes.npz with albumentations: boxes and keypoints after steps whose draws are known.

usage: make_boxes.py FILE

For each case there is the size of the picture, what lies in it before, and what is left of it after; the
tests build the same motions and compare. Made with albumentations 2.0.8.
"""

import sys
from typing import Any

import albumentations
import numpy as np

HEIGHT, WIDTH = 60, 80
RNG = np.random.default_rng(20260)
COUNT = 12


def boxes() -> Any:
    first = RNG.uniform((0, 0), (WIDTH - 8, HEIGHT - 8), (COUNT, 2))
    second = first + RNG.uniform(4, (WIDTH - first[:, :1], HEIGHT - first[:, 1:])[0].min(), (COUNT, 2))
    return np.concatenate([first, np.minimum(second, (WIDTH, HEIGHT))], axis=1).round(2)


CASES = {
    "crop": [albumentations.Crop(10, 5, 50, 45, p=1)],
    "flip": [albumentations.HorizontalFlip(p=1)],
    "down": [albumentations.VerticalFlip(p=1)],
    "resize": [albumentations.Resize(30, 100, p=1)],
    "crop_resize_flip": [
        albumentations.Crop(10, 5, 50, 45, p=1),
        albumentations.Resize(64, 32, p=1),
        albumentations.HorizontalFlip(p=1),
    ],
    "pad": [albumentations.Pad(padding=(7, 3, 9, 5), p=1)],
    "crop_pad": [albumentations.Crop(10, 5, 50, 45, p=1), albumentations.Pad(padding=(7, 3, 9, 5), p=1)],
    "rotate": [albumentations.Affine(rotate=(25, 25), fit_output=False, p=1)],
    "affine": [
        albumentations.Affine(
            rotate=(-15, -15), scale=(0.8, 0.8), translate_px={"x": (6, 6), "y": (-4, -4)}, p=1
        )
    ],
}


def main() -> None:
    made: dict[str, Any] = {"size": np.array([HEIGHT, WIDTH])}
    before, points = boxes(), RNG.uniform((0, 0), (WIDTH - 1, HEIGHT - 1), (COUNT, 2)).round(2)
    made["boxes"], made["points"] = before, points
    picture = np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    for name, steps in CASES.items():
        # After each step albumentations drops what is small there; here it is what is small in the end.
        area = 4 if len(steps) == 1 else 0.01
        for case, least in ((name, 1e-6), (f"{name}_half", 0.5)):
            run = albumentations.Compose(
                steps,
                bbox_params=albumentations.BboxParams(
                    "pascal_voc", label_fields=["labels"], min_visibility=least, min_area=area
                ),
                keypoint_params=albumentations.KeypointParams("xy", remove_invisible=False),
            )
            found = run(image=picture, bboxes=before, labels=np.arange(COUNT), keypoints=points)
            made[f"{case}.boxes"] = np.asarray(found["bboxes"]).reshape(-1, 4).astype(np.float32)
            made[f"{case}.labels"] = np.asarray(found["labels"]).astype(np.int16)
            made[f"{case}.points"] = np.asarray(found["keypoints"]).reshape(-1, 2).astype(np.float32)
            made[f"{case}.size"] = np.array(found["image"].shape[:2])
    np.savez_compressed(sys.argv[1], **made)


main()
