"""One side of the benchmark of augmentation, in a process of its own: `python _augment_sides.py NAME JOB`.

As _sides.py does it, with other sides. Those in a torch DataLoader are a function of the job that makes
`augment`, which takes the pixels of an image and gives a tensor of float32, channels first.
"""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import Callable
from typing import Any

import _sides
import numpy as np
from _sides import Build, Epoch

MEAN, STD = (123.7, 116.3, 103.5), (58.4, 57.1, 57.4)
DETECTION = ("letterbox", "crop")
# Brightness, contrast, saturation, hue.
JITTER = (0.2, 0.2, 0.3, 0.015)
Augment = Callable[[bytes], Any]


def batchplant_side(job: dict[str, Any]) -> Build:
    from batchplant import Loader
    from batchplant.ops import (
        ChannelsFirst,
        ColorJitter,
        Letterbox,
        Normalize,
        RandAugment,
        RandomHorizontalFlip,
        RandomResizedCrop,
    )

    def build() -> Epoch:
        size, detection = job["crop"], job["part"] in DETECTION
        first = Letterbox(size) if job["part"] == "letterbox" else RandomResizedCrop(size)
        change = ColorJitter(*JITTER) if detection else RandAugment()
        steps = [first, RandomHorizontalFlip(), change, Normalize(MEAN, STD), ChannelsFirst()]
        loader = Loader(
            job["path"], job["batch"], order="random", pipelines={"image": steps}, workers=job["workers"]
        )
        return lambda: (len(batch["image"]) for batch in loader)

    return build


def by_albumentations(job: dict[str, Any]) -> Augment:
    """Two of the same fourteen changes, at the magnitude of RandAugment's default."""
    import albumentations as alb
    import cv2
    import torch

    cv2.setNumThreads(0)
    side = job["crop"]
    shift = int(150 / 331 * 0.3 * side)

    def moved(**how: Any) -> Any:
        return alb.Affine(interpolation=cv2.INTER_NEAREST, p=1, **how)

    def jitter(**how: Any) -> Any:
        still = {"brightness": (1, 1), "contrast": (1, 1), "saturation": (1, 1), "hue": (0, 0)}
        return alb.ColorJitter(**{**still, **how}, p=1)

    angle = math.degrees(math.atan(0.09))
    changes = [
        alb.NoOp(), moved(shear={"x": (-angle, angle), "y": 0}), moved(shear={"x": 0, "y": (-angle, angle)}),
        moved(translate_px={"x": (-shift, shift), "y": 0}),
        moved(translate_px={"x": 0, "y": (-shift, shift)}),
        moved(rotate=(-9, 9)), jitter(brightness=(0.73, 1.27)), jitter(saturation=(0.73, 1.27)),
        jitter(contrast=(0.73, 1.27)), alb.Sharpen(alpha=(0.27, 0.27), p=1), alb.Posterize(num_bits=7, p=1),
        alb.Solarize(p=1), alb.AutoContrast(p=1), alb.Equalize(p=1),
    ]  # fmt: skip
    augment = alb.Compose([
        alb.RandomResizedCrop(size=(side, side), interpolation=cv2.INTER_AREA), alb.HorizontalFlip(p=0.5),
        alb.SomeOf(changes, n=2, replace=True, p=1),
        alb.Normalize(mean=[item / 255 for item in MEAN], std=[item / 255 for item in STD]),
    ])  # fmt: skip

    def one(data: bytes) -> Any:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        result = augment(image=cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB))["image"]
        return torch.from_numpy(np.ascontiguousarray(result.transpose(2, 0, 1)))

    return one


def detection_by_albumentations(job: dict[str, Any]) -> Callable[[bytes, Any], Any]:
    """Pixels and boxes, moved."""
    import albumentations as alb
    import cv2
    import torch

    cv2.setNumThreads(0)
    side = job["crop"]
    letterbox = [
        alb.LongestMaxSize(max_size=side, interpolation=cv2.INTER_AREA),
        alb.PadIfNeeded(min_height=side, min_width=side, border_mode=cv2.BORDER_CONSTANT, fill=114),
    ]
    crop = [alb.RandomResizedCrop(size=(side, side), interpolation=cv2.INTER_AREA)]
    augment = alb.Compose(
        [
            *(letterbox if job["part"] == "letterbox" else crop),
            alb.HorizontalFlip(p=0.5),
            alb.ColorJitter(*JITTER, p=1),
            alb.Normalize(mean=[item / 255 for item in MEAN], std=[item / 255 for item in STD]),
        ],
        bbox_params=alb.BboxParams(format="pascal_voc", label_fields=["classes"], min_area=1),
    )

    def one(data: bytes, boxes: Any) -> Any:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        classes = np.arange(len(boxes))
        result = augment(image=cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB), bboxes=boxes, classes=classes)
        tensor = torch.from_numpy(np.ascontiguousarray(result["image"].transpose(2, 0, 1)))
        return tensor, torch.tensor(np.asarray(result["bboxes"])), torch.tensor(np.asarray(result["classes"]))

    return one


def by_torchvision(job: dict[str, Any]) -> Augment:
    import io

    import torch
    from PIL import Image
    from torchvision.transforms import v2

    augment = v2.Compose([
        v2.RandomResizedCrop(job["crop"]), v2.RandomHorizontalFlip(), v2.RandAugment(), v2.PILToTensor(),
        v2.ToDtype(torch.float32), v2.Normalize(MEAN, STD),
    ])  # fmt: skip
    return lambda data: augment(Image.open(io.BytesIO(data)).convert("RGB"))


def by_pillow(job: dict[str, Any]) -> Augment:
    """What torchvision does with images of Pillow, by Pillow alone."""
    import torch
    from PIL import Image, ImageEnhance, ImageOps

    def moved(image: Any, matrix: tuple[float, ...]) -> Any:
        return image.transform(image.size, Image.Transform.AFFINE, matrix)

    def either(amount: float) -> float:
        return random.choice((-amount, amount))

    shift = int(150 / 331 * 0.3 * job["crop"])
    changes: list[Callable[[Any], Any]] = [
        lambda image: image,
        lambda image: moved(image, (1, either(0.09), 0, 0, 1, 0)),
        lambda image: moved(image, (1, 0, 0, either(0.09), 1, 0)),
        lambda image: moved(image, (1, 0, either(shift), 0, 1, 0)),
        lambda image: moved(image, (1, 0, 0, 0, 1, either(shift))),
        lambda image: image.rotate(either(9)),
        lambda image: ImageEnhance.Brightness(image).enhance(1 + either(0.27)),
        lambda image: ImageEnhance.Color(image).enhance(1 + either(0.27)),
        lambda image: ImageEnhance.Contrast(image).enhance(1 + either(0.27)),
        lambda image: ImageEnhance.Sharpness(image).enhance(1 + either(0.27)),
        lambda image: ImageOps.posterize(image, 7),
        lambda image: ImageOps.solarize(image, 178),
        ImageOps.autocontrast,
        ImageOps.equalize,
    ]
    mean, std = (torch.tensor(item).view(3, 1, 1) for item in (MEAN, STD))

    def one(data: bytes) -> Any:
        image = Image.fromarray(_sides.flipped(_sides.pillow(data, job["crop"])))
        for change in random.choices(changes, k=2):
            image = change(image)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1).float()
        return (pixels - mean) / std

    return one


class Cells:
    """The images of the .beton as a torch dataset."""

    def __init__(self, job: dict[str, Any], make: Callable[[dict[str, Any]], Augment]) -> None:
        table = np.load(job["table"])
        self.job, self.make = job, make
        self.start, self.size = table["start"].tolist(), table["size"].tolist()
        self.boxes = np.load(job["boxes"]) if job["part"] in DETECTION else None
        self.file, self.augment = -1, None

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: int) -> Any:
        if self.augment is None:
            # In the worker: not all of it can be sent there.
            self.file, self.augment = os.open(self.job["path"], os.O_RDONLY), self.make(self.job)
        data = os.pread(self.file, self.size[index], self.start[index])
        return self.augment(data) if self.boxes is None else self.augment(data, self.boxes[index])


def together(samples: list[Any]) -> Any:
    """The images of a batch; the boxes of each came with it."""
    import torch

    images, boxes, classes = zip(*samples, strict=True)
    result = torch.stack(images)
    assert len(boxes) == len(classes) == len(result)
    return result


def in_data_loader(make: Callable[[dict[str, Any]], Augment]) -> Callable[[dict[str, Any]], Build]:
    def side(job: dict[str, Any]) -> Build:
        import torch
        from torch.utils.data import DataLoader

        torch.set_num_threads(1)

        def build() -> Epoch:
            loader: Any = DataLoader(
                Cells(job, make), batch_size=job["batch"], shuffle=True, num_workers=job["workers"],
                persistent_workers=True, collate_fn=together if job["part"] in DETECTION else None,
            )  # type: ignore[arg-type,var-annotated]  # fmt: skip
            return lambda: (len(images) for images in loader)

        return build

    return side


def by_name(job: dict[str, Any]) -> Any:
    return detection_by_albumentations(job) if job["part"] in DETECTION else by_albumentations(job)


_sides.SIDES = {
    "batchplant": batchplant_side,
    "albumentations": in_data_loader(by_name),
    "torchvision": in_data_loader(by_torchvision),
    "Pillow": in_data_loader(by_pillow),
}

if __name__ == "__main__":
    _sides.main(*sys.argv[1:])
