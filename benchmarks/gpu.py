"""To the GPU: photos in .beton, quasi-random order, to normalised float16 224 × 224 on the device.

jpeg256, jpeg500   random resized crop and flip, in every mode of decode, at several batch sizes; beside them
                   what torchvision's decode_jpeg (nvJPEG) does, whole images, nothing after it
raw256             raw pixels, random resized crop and flip on the device; the limit is the bus
step               a ResNet-50 in bfloat16 that trains on the batches: how much longer its steps take than on
                   a batch that lies on the device already, and how long it waits for data
detection          JPEGs of 640 px, cropped or letterboxed to 640, flipped, jittered: with boxes and their
                   classes, which go along, and without
processes          four processes on the one GPU, each on a quarter of the cores, beside one on all of them

All sides of a part run in turn, several rounds, from a warm cache, in one process but for the last part.
Needs a CUDA device; the JPEG parts and the step also torchvision (nvJPEG). Parts that are not measured keep
their results in OUT/gpu.json, if they are of the same device. To try whether detection and processes run at
all without a GPU: --device cpu --quick --parts detection processes --modes cpu.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _gpu_detection
import _gpu_processes
import numpy as np
from _common import arguments, interleaved, others, photos, save, workplace
from _gpu_common import CROP, Found, epoch, loader_of, pipeline, some_stats, speeds, warmed

import batchplant
from batchplant.loading.loader import Loader

SIZES = {"jpeg256": 256, "jpeg500": 500}
MODES = ("auto", "gpu", "hybrid", "split", "cpu")
# Seconds of each before it is timed: kernels are compiled, memory is taken; and auto gets to know the modes.
WARM_UP, KNOWS = 2.0, 5.0
PARTS = ("jpeg256", "jpeg500", "raw256", "step", "detection", "processes")


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
    warmed(path)


def peers(path: Path, count: int) -> dict[str, Callable[[], float]]:
    """Whole images decoded, nothing after it: by the engine, and by nvJPEG as torchvision uses it."""
    import torch
    from torchvision.io import ImageReadMode, decode_jpeg

    reader = batchplant.open(path)
    encoded = [torch.from_numpy(np.array(cell)) for cell in reader.read(range(256), ["image"])["image"]]

    def torchvision() -> float:
        began = time.perf_counter()
        for _ in range(count // 256):
            decode_jpeg(encoded, mode=ImageReadMode.RGB, device="cuda")
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * count / (count // 256 * 256)

    return {"torchvision's decode_jpeg alone": torchvision}


def bus(size: int, count: int) -> dict[str, Callable[[], float]]:
    """Whole raw images copied from pinned memory, nothing else."""
    import torch

    host = torch.empty((256, size, size, 3), dtype=torch.uint8, pin_memory=True)
    there = torch.empty_like(host, device="cuda")

    def copy() -> float:
        began = time.perf_counter()
        for _ in range(count // 256):
            there.copy_(host, non_blocking=True)
        torch.cuda.synchronize()
        return (time.perf_counter() - began) * count / (count // 256 * 256)

    return {"bus alone": copy}


def measure(name: str, path: Path, args: argparse.Namespace) -> Found:
    """Every mode at every batch; the first mode is what is compared with the others."""
    count = len(batchplant.open(path))
    raw = name.startswith("raw")
    tasks = {} if args.quick else bus(256, count) if raw else peers(path, count)
    modes = ["auto"] if raw else args.modes
    loaders = {(mode, batch): loader_of(path, mode, batch, args) for batch in args.batches for mode in modes}
    tasks |= {f"{mode} {batch}": epoch(loader, args.device) for (mode, batch), loader in loaders.items()}
    print(f"{name}: {count:,} images", flush=True)
    for title, task in tasks.items():
        began = time.perf_counter()
        while time.perf_counter() - began < (KNOWS if title.startswith("auto") and not raw else WARM_UP):
            task()
    seconds = interleaved(tasks, args.rounds)
    result = speeds(seconds, count)
    by_batch = {str(batch): {mode: result.pop(f"{mode} {batch}") for mode in modes} for batch in args.batches}
    for title, value in result.items():
        print(f"  {title:<34} {value['median']:>10,.0f} images/s (best {value['best']:,.0f})")
    against: Found = {}
    for batch, speed in by_batch.items():
        shown = ", ".join(
            f"{mode} {value['median']:,.0f} ({value['best']:,.0f})" for mode, value in speed.items()
        )
        print(f"  batches of {batch}: {shown}")
        if "auto" in modes and len(modes) > 1:
            against[batch] = against_fixed(seconds, speed, batch)
            print(f"    auto: {against[batch]['ratio']:.2f} of {against[batch]['mode']}, round by round; "
                  f"{loaders['auto', int(batch)].stats()['why']}")  # fmt: skip
    stats = {mode: some_stats(loaders[mode, args.batches[-1]]) for mode in modes}
    for mode, item in stats.items():
        print(f"  {mode}: {item}")
    for loader in loaders.values():
        loader.close()
    return {"images": count, "alone": result, "by batch": by_batch, "auto": against, "stats": stats}


def against_fixed(seconds: Found, speed: Found, batch: str) -> Found:
    """auto beside the fixed mode with the best median: what both took in a round, and the median of that.

    The machine's speed changes from round to round by more than what auto loses.
    """
    mode = max((mode for mode in speed if mode != "auto"), key=lambda mode: speed[mode]["median"])
    pairs = zip(seconds[f"{mode} {batch}"]["rounds"], seconds[f"auto {batch}"]["rounds"], strict=True)
    return {"mode": mode, "ratio": float(np.median([fixed / auto for fixed, auto in pairs]))}


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
    result = {
        "steps": steps, "batch": size, "images/s": size * steps / float(np.median(rounds["loaded"])),
        "waited": {"best": min(rounds["waited"]), "median": float(np.median(rounds["waited"]))},
        "longer": {"best": float(longer.min()), "median": float(np.median(longer))},
    }  # fmt: skip
    print(f"step: {result}")
    loader.close()
    return result


def earlier(out: Path, results: Found) -> Found:
    """The parts of a run before, on the same device, with the same torch."""
    path = out / "gpu.json"
    result: Found = json.loads(path.read_text()) if path.exists() else {}
    same = all(result.get(name) == results[name] for name in ("gpu", "torch"))
    return {name: result[name] for name in PARTS if same and name in result}


def data(name: str, folder: Path, args: argparse.Namespace) -> Path:
    """A data set, made unless it is there."""
    path = folder / f"{name}.beton"
    if not path.exists():
        raw = name.startswith("raw")
        count = 2048 if args.quick else 49_152 if name == "jpeg256" else 24_576
        make(path, SIZES.get(name, 256), count, 256 if args.quick else 512, raw)
    return path


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--data", type=Path, help="folder for the data sets, kept for the next run")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="default: all")
    parser.add_argument("--decode", default="auto", help="of the training step")
    parser.add_argument(
        "--batches", type=int, nargs="+", default=[64, 128, 256, 512, 1024], help="default 64 to 1024"
    )
    parser.add_argument("--prefetch-batches", type=int, default=4, help="batches made in advance (default 4)")
    parser.add_argument("--workers", type=int, help="decoding threads (default: all cores)")
    parser.add_argument("--modes", nargs="+", default=list(MODES), help="of JPEG")
    parser.add_argument("--device", default="cuda", help="default cuda")
    parser.add_argument("--quick", action="store_true", help="little data: does it run at all?")
    args = parser.parse_args()
    try:
        import torch

        if {"jpeg256", "jpeg500", "step"} & set(args.parts):
            import torchvision.io  # noqa: F401
    except ImportError as error:
        sys.exit(f"PyTorch and torchvision are needed: {error}")
    cuda = args.device.startswith("cuda")
    if cuda and not torch.cuda.is_available():
        sys.exit("there is no CUDA device: nothing to measure")
    name = torch.cuda.get_device_properties(torch.device(args.device)).name if cuda else args.device
    args.batch = args.batches[-1]
    results: Found = {"gpu": name, "torch": torch.__version__}
    results |= earlier(args.out, results)
    with workplace() as scratch, others(results):
        folder = args.data or scratch
        folder.mkdir(parents=True, exist_ok=True)
        for name in ("jpeg256", "jpeg500", "raw256"):
            if name in args.parts:
                results[name] = measure(name, data(name, folder, args), args)
        if "step" in args.parts:
            results["step"] = step(data("jpeg256", folder, args), args)
        if "detection" in args.parts:
            results["detection"] = _gpu_detection.measure(folder, args)
        if "processes" in args.parts:
            result = _gpu_processes.measure(data("jpeg256", folder, args), scratch, args)
            results["processes"] = result
    save(args.out, "gpu", results)


if __name__ == "__main__":
    main()
