"""One side of the loader benchmark, in a process of its own: `python _sides.py NAME JOB`.

It runs in any interpreter and imports what its side needs, nothing else. It says when its warm-up is done,
then runs an epoch for every line on standard input and answers each with a line of JSON.

A side is a function of the job that imports its library and returns `build`; `build` makes the loader and
returns `epoch`; `epoch` yields the number of images in every batch.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

Epoch = Callable[[], Iterator[int]]
Build = Callable[[], Epoch]


def batchplant_side(job: dict[str, Any]) -> Build:
    from batchplant.loading.loader import Loader
    from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop

    def build() -> Epoch:
        image = [RandomResizedCrop(job["crop"]), RandomHorizontalFlip()] if job["crop"] else []
        loader = Loader(
            job["path"], job["batch"], order="random", pipelines={"image": image}, workers=job["workers"]
        )
        return lambda: (len(batch["image"]) for batch in loader)

    return build


def ffcv_side(job: dict[str, Any]) -> Build:
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor

    def build() -> Epoch:
        size = (job["crop"], job["crop"])
        cropped = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()] if job["crop"] else None
        loader = Loader(
            job["path"], batch_size=job["batch"], num_workers=job["workers"], os_cache=True,
            order=OrderOption.RANDOM, drop_last=False,
            pipelines={
                "image": [*(cropped or [SimpleRGBImageDecoder()]), ToTensor()],
                "label": [IntDecoder(), ToTensor()],
            },
        )  # fmt: skip
        return lambda: (len(batch[0]) for batch in loader)

    return build


class Cells:
    """The samples of the .beton as a torch dataset: the bytes from the file, decoded by Pillow or OpenCV."""

    def __init__(self, job: dict[str, Any], library: str) -> None:
        table = np.load(job["table"])
        self.path, self.crop, self.library = job["path"], job["crop"], library
        self.start, self.size, self.shape = table["start"].tolist(), table["size"].tolist(), table["shape"]
        self.label = table["label"].tolist()
        self.file: int | None = None

    def __len__(self) -> int:
        return len(self.start)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        if self.file is None:
            self.file = os.open(self.path, os.O_RDONLY)
        data = os.pread(self.file, self.size[index], self.start[index])
        shape = self.shape[index].tolist()
        pixels = DECODERS[self.library](data, self.crop, shape if shape[0] else None)
        return flipped(pixels), self.label[index]


def pillow(data: bytes, crop: int, shape: list[int] | None = None) -> Any:
    """The pixels of a random crop; ``shape``: of pixels that are not encoded."""
    import io

    from PIL import Image

    if shape:
        image = Image.frombytes("RGB", (shape[1], shape[0]), data)
    else:
        image = Image.open(io.BytesIO(data)).convert("RGB")
    box = random_box(image.width, image.height)
    return np.asarray(image.resize((crop, crop), Image.Resampling.BILINEAR, box=box))


def opencv(data: bytes, crop: int, shape: list[int] | None = None) -> Any:
    import cv2

    cv2.setNumThreads(0)
    pixels: Any = np.frombuffer(data, np.uint8)
    if shape:
        pixels = pixels.reshape(shape)
    else:
        pixels = cv2.cvtColor(cv2.imdecode(pixels, cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)
    left, top, right, bottom = random_box(pixels.shape[1], pixels.shape[0])
    return cv2.resize(pixels[top:bottom, left:right], (crop, crop), interpolation=cv2.INTER_AREA)


DECODERS: dict[str, Callable[..., Any]] = {"pillow": pillow, "opencv": opencv}


def flipped(pixels: Any) -> Any:
    """Half of them."""
    return np.array(pixels[:, ::-1] if random.random() < 0.5 else pixels)


def random_box(width: int, height: int) -> tuple[int, int, int, int]:
    """The box of torchvision's RandomResizedCrop."""
    for _ in range(10):
        area = width * height * random.uniform(0.08, 1)
        aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
        wide, high = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < high <= height:
            left, top = random.randint(0, width - wide), random.randint(0, height - high)
            return left, top, left + wide, top + high
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return left, top, left + side, top + side


def torch_side(library: str) -> Callable[[dict[str, Any]], Build]:
    def side(job: dict[str, Any]) -> Build:
        import importlib

        from torch.utils.data import DataLoader

        importlib.import_module({"pillow": "PIL", "opencv": "cv2"}[library])

        def build() -> Epoch:
            loader: Any = DataLoader(
                Cells(job, library), batch_size=job["batch"], shuffle=True, num_workers=job["workers"],
                persistent_workers=True,
            )  # type: ignore[arg-type,var-annotated]  # fmt: skip
            return lambda: (len(images) for images, _ in loader)

        return build

    return side


def memcpy_side(job: dict[str, Any]) -> Build:
    """Copy the same cells, in random order, into one buffer, each thread its share of a batch."""
    from batchplant import _native

    def build() -> Epoch:
        table = np.load(job["table"])
        start, size = table["start"], table["size"]
        source = np.memmap(job["path"], mode="r")
        target = np.empty(job["batch"] * int(size.max()), np.uint8)
        threads = ThreadPoolExecutor(job["workers"])

        def copy(rows: Any, places: Any) -> None:
            _native.copy_runs(source, start[rows], size[rows], target, places)

        def epoch() -> Iterator[int]:
            order = np.random.default_rng().permutation(len(start))
            for first in range(0, len(order), job["batch"]):
                rows = order[first : first + job["batch"]]
                places = np.arange(len(rows), dtype=np.int64) * int(size.max())
                parts = np.array_split(np.arange(len(rows)), job["workers"])
                list(threads.map(copy, [rows[part] for part in parts], [places[part] for part in parts]))
                yield len(rows)

        return epoch

    return build


SIDES: dict[str, Callable[[dict[str, Any]], Build]] = {
    "batchplant": batchplant_side,
    "FFCV": ffcv_side,
    "torch + Pillow": torch_side("pillow"),
    "torch + OpenCV": torch_side("opencv"),
    "memcpy": memcpy_side,
}


def peak_memory() -> int:
    """The most that this process and its children held; pages that they share count in each."""
    children = [child.pid for child in multiprocessing.active_children()]
    lines = [
        line for pid in ("self", *children) for line in Path(f"/proc/{pid}/status").read_text().splitlines()
    ]
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))


def processes(pid: str = "self") -> list[str]:
    """The process and all below it."""
    lists = [tasks.read_text() for tasks in Path(f"/proc/{pid}/task").glob("*/children")]
    return [pid, *(below for text in lists for child in text.split() for below in processes(child))]


def cpu_seconds() -> float:
    """CPU time of this process, its children and those that ended and were waited for."""
    ticks = 0
    for pid in processes():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def main(name: str, text: str) -> None:
    job = json.loads(text)
    # What a library prints is not the answer to a question.
    answers, sys.stdout = sys.stdout, sys.stderr
    build = SIDES[name](job)
    began = time.perf_counter()
    epoch = build()
    batches = epoch()
    next(batches)
    first = time.perf_counter() - began
    sum(batches)
    for _ in range(job["warm-up"] - 1):
        sum(epoch())
    print(json.dumps({"first batch": first}), file=answers, flush=True)
    for _ in sys.stdin:
        began, cpu = time.perf_counter(), cpu_seconds()
        images = sum(epoch())
        answer = {
            "images": images, "seconds": time.perf_counter() - began, "CPU s": cpu_seconds() - cpu,
            "peak memory": peak_memory(),
        }  # fmt: skip
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
