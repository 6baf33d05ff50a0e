"""To the GPU: photos in .beton, quasi-random order, to normalised float16 224 × 224 on the device.

jpeg256, jpeg500   random resized crop and flip; decoded on the CPU, on the GPU, and on both. Beside them what
                   either decoder does alone, full pictures, nothing after it: their sum is the limit; and
                   what torchvision's decode_jpeg does
raw256             raw pixels, random resized crop and flip on the device; the limit is the bus
step               a ResNet-50 in bfloat16 that trains on the batches: how much longer its steps take than on
                   a batch that lies on the device already, and how long it waits for data

All sides of a part run in turn in one process, several rounds, from a warm cache. Needs a CUDA device and
torchvision (nvJPEG); without them it says so.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from _common import arguments, interleaved, others, photos, save, workplace

import batchplant
from batchplant import _native
from batchplant.loading.loader import Loader
from batchplant.ops import ChannelsFirst, Normalize, RandomHorizontalFlip, RandomResizedCrop

CROP = 224
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
SIZES = {"jpeg256": 256, "jpeg500": 500}
Found = dict[str, Any]


def pipeline() -> list[Any]:
    return [
        RandomResizedCrop(CROP), RandomHorizontalFlip(), Normalize(MEAN, STD, "float16"), ChannelsFirst(),
    ]  # fmt: skip


def make(path: Path, size: int, count: int, distinct: int, raw: bool) -> None:
    """A few thousand photos, again and again: what is in them makes no difference, where they lie does."""
    schema = {"image": batchplant.Image(), "label": batchplant.Int()}
    if raw:
        draw = photos().photo
        cells: list[Any] = [
            draw(n, seed=0, width=size, height=size, label=0) for n in range(min(distinct, 128))
        ]
    else:
        folder = path.with_suffix("")
        photos().make_folder(folder, distinct, size=size)
        cells = [file.read_bytes() for file in sorted(folder.rglob("*.jpg"))]
    with batchplant.create(path, schema, write_mode="raw" if raw else None) as out:
        for number in range(count):
            out.append({"image": cells[number % len(cells)], "label": number % 8})
    with batchplant.open(path) as reader:
        for _ in reader.scan():
            pass


def speeds(seconds: dict[str, dict[str, float]], count: int) -> Found:
    return {name: {key: count / one[key] for key in ("best", "median")} for name, one in seconds.items()}


def epoch(loader: Loader) -> Callable[[], float]:
    import torch

    def run() -> float:
        began = time.perf_counter()
        for batch in loader:
            del batch
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return run


def decoders(path: Path, count: int) -> dict[str, Callable[[], float]]:
    """The two decoders alone, all pictures whole; and nvJPEG as torchvision uses it."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    from batchplant.interop.gpu.nvjpeg import decoder_on
    from batchplant.interop.gpu.on_device import FEEDERS

    reader = batchplant.open(path)
    cells = [np.array(cell) for cell in reader.read(range(256), ["image"])["image"]]
    encoded = [torch.from_numpy(cell) for cell in cells]

    def torchvision() -> float:
        began = time.perf_counter()
        for _ in range(count // 256):
            decode_jpeg(encoded, mode=ImageReadMode.RGB, device="cuda")
        torch.cuda.synchronize()
        return time.perf_counter() - began

    spans = reader.spans("image", np.arange(count))
    assert spans is not None
    base = np.memmap(path, np.uint8, "r")
    looked = _native.prefetch_pictures(
        [base], spans.file[:256], spans.start[:256], spans.size[:256], headers=True
    )
    size = looked[0]
    decoder = decoder_on(torch.device("cuda"))
    pinned = torch.from_numpy(np.concatenate(cells)).pin_memory().numpy()
    lengths = np.array([len(cell) for cell in cells])
    feeders = ThreadPoolExecutor(FEEDERS)

    def gpu() -> float:
        began = time.perf_counter()
        shapes = looked.astype(np.int64)

        def one(_: int) -> None:
            decoder.decode(pinned, np.cumsum(lengths) - lengths, lengths, shapes)

        for _ in feeders.map(one, range(count // 256)):
            pass
        return time.perf_counter() - began

    engine = _native.Engine(len(os.sched_getaffinity(0)), None)
    out = np.empty((256, int(size[0]), int(size[1]), 3), np.uint8)

    def cpu() -> float:
        began = time.perf_counter()
        for first in range(0, count - 255, 256):
            part = slice(first, first + 256)
            boxes = np.zeros((256, 4))
            engine.decode(
                [base], spans.file[part], spans.start[part], spans.size[part], None, boxes, None, out,
                layout="nhwc", filter="area", dct="accurate", fast_scale=False, strict=True,
                scale=None, offset=None, orient=None, mode="RGB", most_pixels=1 << 28,
            )  # fmt: skip
        return time.perf_counter() - began

    return {"torchvision": torchvision, "nvJPEG alone": gpu, "engine alone": cpu}


def bus(size: int, count: int) -> dict[str, Callable[[], float]]:
    """Whole raw pictures copied from pinned memory, nothing else."""
    import torch

    host = torch.empty((256, size, size, 3), dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device="cuda")

    def copy() -> float:
        began = time.perf_counter()
        for _ in range(count // 256):
            there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        return time.perf_counter() - began

    return {"bus alone": copy}


def measure(name: str, path: Path, args: argparse.Namespace) -> Found:
    count = len(batchplant.open(path))
    raw = name.startswith("raw")
    whole = count // 256 * 256
    tasks = bus(256, whole) if raw else decoders(path, whole)
    modes = ["auto"] if raw else args.modes
    loaders = {
        f"batchplant {mode}".replace(" auto", ""): loader_of(path, mode, args.batch, args) for mode in modes
    }
    tasks |= {title: epoch(loader) for title, loader in loaders.items()}
    print(f"{name}: {count:,} pictures, batches of {args.batch}", flush=True)
    for task in tasks.values():
        task()
    seconds = interleaved(tasks, args.rounds)
    for title, one in seconds.items():
        if "batchplant" not in title:
            one["best"] *= count / whole
            one["median"] *= count / whole
    found = speeds(seconds, count)
    alone = [one for title, one in found.items() if "alone" in title]
    limit = {key: sum(one[key] for one in alone) for key in ("best", "median")}
    best = found["batchplant" if raw else f"batchplant {args.modes[0]}"]
    ratio = {key: best[key] / limit[key] for key in limit}
    for title, one in found.items():
        print(f"  {title:<20} {one['median']:>10,.0f} images/s (best {one['best']:,.0f})")
    print(f"  limit {limit['median']:,.0f}, reached {ratio['median']:.2f} (best {ratio['best']:.2f})")
    stats = {title: _plain(loader.stats()) for title, loader in loaders.items()}
    for title, one in stats.items():
        print(f"  {title}: {one}")
    for loader in loaders.values():
        loader.close()
    return {
        "images": count, "images/s": found, "limit": limit, "ratio to the limit": ratio, "stats": stats,
        "by batch": {} if args.quick else by_batch(path, modes[0], args),
    }  # fmt: skip


def loader_of(path: Path, mode: str, batch: int, args: argparse.Namespace) -> Loader:
    return Loader(
        path, batch, order="quasi_random", device="cuda", decode=mode, ahead=args.ahead,
        workers=args.workers, pipelines={"image": pipeline(), "label": None},
    )  # fmt: skip


def by_batch(path: Path, mode: str, args: argparse.Namespace) -> Found:
    """The same with other batches: what is done once for each counts for more in small ones."""
    loaders = {str(size): loader_of(path, mode, size, args) for size in (256, 512, 1024)}
    tasks = {size: epoch(loader) for size, loader in loaders.items()}
    for task in tasks.values():
        task()
    found = speeds(interleaved(tasks, args.rounds), len(batchplant.open(path)))
    for size, one in found.items():
        print(
            f"  batches of {size:<9} {one['median']:>10,.0f} images/s (best {one['best']:,.0f})", flush=True
        )
    for loader in loaders.values():
        loader.close()
    return found


def _plain(stats: Found) -> Found:
    wanted = (
        "storage", "decode cpu", "decode gpu", "copy", "augment", "transforms", "device", "waited", "step",
        "decoded", "decode mode", "gpu share", "pictures/s",
    )  # fmt: skip
    return {name: stats[name] for name in wanted if name in stats}


def step(path: Path, args: argparse.Namespace) -> Found:
    """A training step on loaded batches, and on one that is there already."""
    import torch
    from torchvision.models import resnet50

    size = 256
    net = resnet50().cuda().to(memory_format=torch.channels_last)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()

    def train(images: Any, labels: Any) -> None:
        with torch.autocast("cuda", torch.bfloat16):
            loss = loss_of(net(images.contiguous(memory_format=torch.channels_last)), labels)
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()

    loader = Loader(
        path, size, order="quasi_random", device="cuda", decode=args.decode, drop_last=True,
        pipelines={"image": pipeline()},
    )  # fmt: skip
    # Within an epoch: the first batch is waited for.
    steps = min(len(loader) - 2, 10 if args.quick else 60)

    def timed_steps(batches: Any) -> tuple[float, float]:
        waited = 0.0
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(batches)
            waited += time.perf_counter() - asked
            train(batch["image"], batch["label"])
            # As a loop does that looks at its loss: the host does not run ahead, so waiting is seen.
            torch.cuda.current_stream().synchronize()
        return time.perf_counter() - began, waited

    fixed = {
        "image": torch.randn(size, 3, CROP, CROP, device="cuda", dtype=torch.float16),
        "label": torch.zeros(size, dtype=torch.int64, device="cuda"),
    }
    rounds: dict[str, list[float]] = {"loaded": [], "there already": [], "waited": []}
    for number in range(args.rounds + 1):
        alone, _ = timed_steps(iter(lambda: fixed, None))
        rest = iter(loader)
        next(rest)
        whole, waited = timed_steps(rest)
        del rest
        if number:
            rounds["loaded"].append(whole)
            rounds["there already"].append(alone)
            rounds["waited"].append(waited / whole)
    longer = np.array(rounds["loaded"]) / np.array(rounds["there already"]) - 1
    found = {
        "steps": steps, "batch": size, "images/s": size * steps / float(np.median(rounds["loaded"])),
        "waited": {"best": min(rounds["waited"]), "median": float(np.median(rounds["waited"]))},
        "longer": {"best": float(longer.min()), "median": float(np.median(longer))},
    }  # fmt: skip
    print(f"step: {found}")
    loader.close()
    return found


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, help="folder for the data sets, kept for the next run")
    parser.add_argument("--parts", nargs="+", default=["jpeg256", "jpeg500", "raw256", "step"])
    parser.add_argument("--decode", default="auto", help="of the training step")
    parser.add_argument("--batch", type=int, default=1024, help="default 1024")
    parser.add_argument("--ahead", type=int, default=4, help="batches made in advance (default 4)")
    parser.add_argument("--workers", type=int, help="decoding threads (default: all cores)")
    parser.add_argument("--modes", nargs="+", default=["hybrid", "gpu", "cpu"], help="of JPEG")
    parser.add_argument("--quick", action="store_true", help="little data: does it run at all?")
    args = parser.parse_args()
    try:
        import torch
        import torchvision.io  # noqa: F401
    except ImportError as error:
        sys.exit(f"PyTorch and torchvision are needed: {error}")
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device: nothing to measure")
    device = torch.cuda.get_device_properties(0)
    results: Found = {"gpu": device.name, "torch": torch.__version__, "batch": args.batch}
    with workplace() as scratch, others(results):
        folder = args.data or scratch
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("jpeg256", "jpeg500", "raw256"):
            path = folder / f"{name}.beton"
            wanted = name in args.parts or (name == "jpeg256" and "step" in args.parts)
            if wanted and not path.exists():
                raw = name.startswith("raw")
                count = 2048 if args.quick else 24_576 if raw else 32_768
                make(path, SIZES.get(name, 256), count, 256 if args.quick else 2048, raw)
            if name in args.parts:
                results[name] = measure(name, path, args)
        if "step" in args.parts:
            results["step"] = step(folder / "jpeg256.beton", args)
    save(args.out, "gpu", results)


if __name__ == "__main__":
    main()
