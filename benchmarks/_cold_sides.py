"""One side of the benchmark of cold data, in a process of its own: `python _cold_sides.py JOB`.

It runs in any interpreter and imports what its side needs, nothing else. The loader is made first; then the
files leave the page cache, or come into it; then batches are taken for some seconds. One line of JSON says
how many images came, and what memory it took.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

PAGE = 4096
Epoch = Callable[[], Iterator[int]]


def batchplant_side(job: dict[str, Any]) -> Epoch:
    from batchplant.loading.loader import Loader
    from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop

    image = [RandomResizedCrop(job["crop"]), RandomHorizontalFlip()] if job["crop"] else []
    loader = Loader(
        job["path"], job["batch"], order=job["order"], pipelines={"image": image}, seed=job["seed"],
        cache=job["page cache"] and "pages",
    )  # fmt: skip
    return lambda: (len(batch["image"]) for batch in loader)


def ffcv_side(job: dict[str, Any]) -> Epoch:
    from ffcv.fields.decoders import IntDecoder, RandomResizedCropRGBImageDecoder, SimpleRGBImageDecoder
    from ffcv.loader import Loader, OrderOption
    from ffcv.transforms import RandomHorizontalFlip, ToTensor

    size = (job["crop"], job["crop"])
    cropped = [RandomResizedCropRGBImageDecoder(size), RandomHorizontalFlip()] if job["crop"] else None
    loader = Loader(
        job["path"], batch_size=job["batch"], num_workers=len(os.sched_getaffinity(0)),
        os_cache=job["os cache"], order=OrderOption[job["order"].upper()], drop_last=False, seed=job["seed"],
        pipelines={
            "image": [*(cropped or [SimpleRGBImageDecoder()]), ToTensor()],
            "label": [IntDecoder(), ToTensor()],
        },
    )  # fmt: skip
    # What it compiles is compiled before the clock runs.
    for _ in zip(loader, range(2), strict=False):
        pass
    return lambda: (len(batch[0]) for batch in loader)


class Files:
    """A folder of images as a torch dataset, decoded by Pillow."""

    def __init__(self, folder: str, crop: int) -> None:
        self.crop, self.files = crop, sorted(map(str, Path(folder).rglob("*.jpg")))

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> Any:
        from PIL import Image

        with Image.open(self.files[index]) as image:
            width, height = image.size
            area = width * height * random.uniform(0.08, 1)
            aspect = math.exp(random.uniform(math.log(3 / 4), math.log(4 / 3)))
            w = min(width, max(1, round(math.sqrt(area * aspect))))
            h = min(height, max(1, round(math.sqrt(area / aspect))))
            x, y = random.randint(0, width - w), random.randint(0, height - h)
            size = (self.crop, self.crop)
            pixels = image.convert("RGB").resize(size, Image.Resampling.BILINEAR, box=(x, y, x + w, y + h))
        result = np.asarray(pixels)
        return np.ascontiguousarray(result[:, ::-1]) if random.random() < 0.5 else result


def torch_side(job: dict[str, Any]) -> Epoch:
    from torch.utils.data import DataLoader

    data = Files(job["path"], job["crop"])
    loader: Any = DataLoader(
        data, job["batch"], shuffle=job["order"] == "random", num_workers=len(os.sched_getaffinity(0))
    )
    return lambda: (len(batch) for batch in loader)


SIDES = {"batchplant": batchplant_side, "FFCV": ffcv_side, "torch": torch_side}


def files_of(path: str) -> list[str]:
    result = Path(path)
    return [path] if result.is_file() else sorted(str(path) for path in result.rglob("*") if path.is_file())


def drop(paths: list[str]) -> None:
    """Out of the page cache; pages that are not on the disk yet, or that some process has mapped, stay."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def warm(paths: list[str]) -> None:
    for path in paths:
        with open(path, "rb", buffering=0) as file:
            while file.read(1 << 24):
                pass


def cached(paths: list[str]) -> tuple[int, int]:
    """Bytes of these files in the page cache, as mincore tells, and bytes in all; of many files, of some."""
    system, held, whole = ctypes.CDLL(None, use_errno=True), 0, 0
    for path in paths[:: max(1, len(paths) // 500)]:
        size = os.path.getsize(path)
        if not size:
            continue
        with open(path, "rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as data:
            pages = np.zeros(-(-size // PAGE), dtype=np.uint8)
            view = np.frombuffer(data, np.uint8)
            where = ctypes.c_void_p(view.ctypes.data)
            if system.mincore(where, ctypes.c_size_t(size), ctypes.c_void_p(pages.ctypes.data)):
                raise OSError(ctypes.get_errno(), "mincore")
            del view
        held, whole = held + int((pages & 1).sum()) * PAGE, whole + size
    return held, whole


class Watch:
    """The most memory that this process held: its own, and pages of files that it had mapped."""

    def __init__(self) -> None:
        self.most = {"RssAnon": 0, "RssFile": 0}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.02):
            self.look()

    def look(self) -> None:
        for line in Path("/proc/self/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if name in self.most:
                self.most[name] = max(self.most[name], int(value.split()[0]) << 10)

    def close(self) -> dict[str, int]:
        self._over.set()
        self._thread.join()
        self.look()
        return self.most


def main(text: str) -> None:
    job = json.loads(text)
    answers, sys.stdout = sys.stdout, sys.stderr
    if job["group"]:
        Path(job["group"], "cgroup.procs").write_text(str(os.getpid()))
    epoch = SIDES[job["side"]](job)
    paths = files_of(job["path"])
    if job["warm"]:
        warm(paths)
    else:
        drop(paths)
    held, whole = cached(paths)
    watch, images = Watch(), 0
    used = time.process_time()
    began = time.perf_counter()
    for count in epoch():
        images += count
        if time.perf_counter() - began > job["seconds"]:
            break
    seconds, used = time.perf_counter() - began, time.process_time() - used
    most, after = watch.close(), cached(paths)
    output = {
        "images": images, "seconds": seconds, "CPU seconds": used,
        "cached before": held / max(1, whole), "cached after": after[0] / max(1, after[1]),
        "own MB": most["RssAnon"] / 1e6, "mapped MB": most["RssFile"] / 1e6,
    }  # fmt: skip
    print(json.dumps(output), file=answers, flush=True)
    # Workers of other libraries may take long to end.
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
