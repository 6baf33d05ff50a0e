"""Data that are not in memory: images from a disk, in every order, from several formats.

larger       the dataset is larger than memory: pages are dropped first, and a control group of the kernel
             gives the loader so little memory that they cannot stay. Where the kernel does not let us,
             batchplant is told to read past the page cache, as it does by itself where memory is short
first epoch  pages are dropped first, and there is room for all of them
warm         all pages are in memory: what decoding alone allows

Beside them the disk's own limit: the same cells in the same order (sequential: by the mebibyte), read by
threads of a small C++ program that does nothing with them, with the best number of threads, past the page
cache and through it (which a first epoch is measured by: its pages stay for the next). The goal is 0.9 of the
disk's limit or of the warm speed, whichever is lower. FFCV runs on the .beton, with os_cache and without;
torch's DataLoader with Pillow on the folder; both without a limit of memory, for they need more. Images are
cropped at random to 224 px; raw ones are given as they are (in a tar, LMDB or Parquet file they are arrays).

Pages are dropped by posix_fadvise(DONTNEED) after sync, and mincore tells whether they have left. Names and
inodes of files stay in memory. Every run is a process of its own; all runs of a case follow each other,
several rounds. What is missing (lmdb, pyarrow, FFCV, torch, a compiler) is left out, with a message. Kinds
that are not measured keep their results in OUT/cold.json, if they are of the same machine.

    cold.py --formats beton --kinds jpeg20 --seconds 1 --rounds 2 --size 600       about a minute
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from _cold_sides import cached, drop, files_of
from _common import HERE, arguments, ffcv_python, machine, others, photos, save

import batchplant
from batchplant.loading.loader import Loader
from batchplant.schema.columns import Columns, Ragged

KINDS = {"jpeg20": "JPEG, 20 KB", "jpeg75": "JPEG, 75 KB", "raw": "raw 256×256"}
# Pixels of the longer side, and the quality that makes files of about that size.
IMAGES = {"jpeg20": (256, 87), "jpeg75": (500, 87)}
FORMATS = {"beton": ".beton", "tar": ".tar", "lmdb": ".lmdb", "parquet": ".parquet", "folder": ""}
ORDERS = ("sequential", "quasi_random", "random")
NEEDED = {"lmdb": "lmdb", "parquet": "pyarrow"}
CROP, DISTINCT = 224, 100
# Threads that read at once, and whether past the page cache.
READS = ((8, True), (32, True), (128, True), (8, False), (32, False), (128, False))
PAST, THROUGH = "disk", "disk, through the page cache"
GOAL = 0.9


def cells_of(kind: str, folder: Path) -> list[Any]:
    """A few images, which are written again and again: what is in them makes no difference here."""
    if kind == "raw":
        return [photos().photo(n, seed=0, width=256, height=256, label=0) for n in range(16)]
    size, quality = IMAGES[kind]
    photos().make_folder(folder, DISTINCT, size=size, quality=quality)
    return [file.read_bytes() for file in sorted(folder.rglob("*.jpg"))]


def make(path: Path, format: str, kind: str, cells: list[Any], count: int) -> None:
    if format == "folder":
        # Not all in one folder, as nobody has them.
        for number in range(count):
            below = path / f"{number // 1000:03}"
            below.mkdir(parents=True, exist_ok=True)
            (below / f"{number:07}.jpg").write_bytes(cells[number % len(cells)])
        return
    raw = kind == "raw"
    image: Any = batchplant.Image()
    options: dict[str, Any] = {"write_mode": "raw"} if raw and format == "beton" else {}
    if raw and format != "beton":
        image = batchplant.Tensor("uint8", (256, 256, 3))
    with batchplant.create(path, {"image": image, "label": batchplant.Int()}, **options) as out:
        if raw:
            for number in range(count):
                out.append({"image": cells[number % len(cells)], "label": number % 8})
            return
        # Encoded cells, many at a time.
        for first in range(0, count, 1000):
            numbers = np.arange(first, min(first + 1000, count))
            some = Ragged.from_cells([cells[number % len(cells)] for number in numbers.tolist()])
            out.append(Columns(image=some, label=numbers % 8))


# -- memory --------------------------------------------------------------------------------------------------


@contextmanager
def limited(most: int) -> Iterator[str | None]:
    """A control group whose processes may have so much memory, pages of files included; None: not allowed."""
    result = None
    for base, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        folder = Path(base, f"batchplant-cold-{os.getpid()}")
        try:
            folder.mkdir()
            result = folder
            (folder / name).write_text(str(most))
            break
        except OSError:
            if result is not None:
                result.rmdir()
            result = None
    try:
        yield None if result is None else str(result)
    finally:
        if result is not None:
            # A process that has ended may be counted for a moment.
            for _ in range(100):
                try:
                    result.rmdir()
                    break
                except OSError:
                    subprocess.run(["sleep", "0.05"], check=False)


# -- the disk ------------------------------------------------------------------------------------------------


def compiled(folder: Path) -> Path | None:
    compiler = next((text for text in ("c++", "g++", "clang++") if shutil.which(text)), None)
    if compiler is None:
        print("no C++ compiler: the disk's own limit is not measured")
        return None
    program = folder / "disk"
    source = HERE / "_cold_disk.cpp"
    subprocess.run([compiler, "-O2", "-std=c++17", "-pthread", source, "-o", program], check=True)
    return program


def runs_of(path: Path, order: str, batch: int) -> tuple[np.ndarray, float]:
    """What is read of a .beton in that order, (start, size); and the bytes of an image."""
    loader = Loader(path, batch, order=order)
    try:
        spans = loader.reader.spans("image")
        assert spans is not None
        mean = float(spans.size.mean())
        if order == "sequential":
            first, last = int(spans.start.min()), int((spans.start + spans.size).max())
            starts = np.arange(first, last - (1 << 20), 1 << 20)
            return np.stack([starts, np.full_like(starts, 1 << 20)], 1), mean
        shard = loader._shard(0, 0)
        ids = np.concatenate([shard.batch(number) for number in range(len(shard))])
        return np.stack([spans.start[ids], spans.size[ids]], 1), mean
    finally:
        loader.close()


class Disk:
    """The disk's own limit, in images a second; ``how`` says how many threads were best."""

    def __init__(self, program: Path | None, path: Path, order: str, batch: int, scratch: Path) -> None:
        self._program, self._path, self._runs = program, path, scratch / "runs"
        runs, self._mean = runs_of(path, order, batch)
        self._runs.write_bytes(np.ascontiguousarray(runs, dtype=np.int64).tobytes())
        self.how: dict[str, str] = {}

    def measure(self, seconds: float) -> dict[str, float]:
        """Past the page cache and through it."""
        best: dict[str, float] = {}
        for threads, direct in READS if self._program else ():
            drop([str(self._path)])
            command = [self._program, self._path, self._runs, str(threads), str(int(direct)), str(seconds)]
            done = subprocess.run(command, capture_output=True, text=True)
            # A file system that reads only through the page cache.
            if done.returncode:
                continue
            size, took = done.stdout.split()
            title = PAST if direct else THROUGH
            if (rate := int(size) / float(took) / self._mean) > best.get(title, 0):
                best[title], self.how[title] = rate, f"{threads} threads"
        return best


class Tools(NamedTuple):
    """The control group of our loader, and a Python that has FFCV; None where there is none."""

    group: str | None
    ffcv: str | None


# -- the sides -----------------------------------------------------------------------------------------------


def run(python: str, job: dict[str, Any]) -> dict[str, Any] | None:
    """A side's answer; None where it failed."""
    command = [python, str(HERE / "_cold_sides.py"), json.dumps(job)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        print(f"  {job['title']}: no answer within two minutes")
        return None
    if done.returncode or not done.stdout.strip():
        last = (done.stderr.strip().splitlines() or ["no answer"])[-1]
        print(f"  {job['title']}: {last[:300]} (exit status {done.returncode})")
        return None
    answer: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    if not job["warm"] and answer["cached before"] > 0.05:
        print(f"  {job['title']}: {answer['cached before']:.0%} of its pages did not leave the page cache")
    return answer


def sides(
    kind: str, order: str, paths: dict[str, Path], args: argparse.Namespace, tools: Tools
) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(title, interpreter, job) of everything that is run."""
    crop = 0 if kind == "raw" else CROP
    shared = {
        "order": order, "batch": args.batch, "seed": 1, "crop": crop, "seconds": args.seconds, "warm": False,
        "group": None,
    }  # fmt: skip
    # What would fit into the group is read past the page cache only if we say so.
    small = tools.group is None or args.size < 2 * args.memory
    for format, path in paths.items():
        # A folder has no blocks to go by.
        if (format, order) == ("folder", "quasi_random"):
            continue
        ours = {**shared, "side": "batchplant", "path": str(path), "page cache": None}
        larger = {**ours, "group": tools.group, "page cache": False if small else None}
        yield f"{format}, larger", sys.executable, larger
        yield f"{format}, first epoch", sys.executable, ours
        yield f"{format}, warm", sys.executable, {**ours, "warm": True}
    if tools.ffcv and "beton" in paths:
        job = {**shared, "side": "FFCV", "path": str(paths["beton"])}
        for cache in (True, False):
            yield f"FFCV, os_cache={cache}", tools.ffcv, {**job, "os cache": cache}
    if "folder" in paths and order != "quasi_random" and importlib.util.find_spec("torch"):
        yield "torch + Pillow", sys.executable, {**shared, "side": "torch", "path": str(paths["folder"])}


def case(
    kind: str, order: str, paths: dict[str, Path], disk: Disk, args: argparse.Namespace, tools: Tools
) -> dict[str, Any]:
    """All sides in turn, several rounds."""
    print(f"{KINDS[kind]}, {order}", flush=True)
    speeds: dict[str, list[float]] = {}
    memory: dict[str, dict[str, float]] = {}
    for number in range(args.rounds):
        for title, limit in disk.measure(args.seconds / 4).items():
            speeds.setdefault(title, []).append(limit)
        for title, python, job in sides(kind, order, paths, args, tools):
            answer = run(python, {**job, "title": title})
            if answer is None:
                continue
            speed = answer["images"] / answer["seconds"]
            speeds.setdefault(title, []).append(speed)
            held = {key: answer[key] for key in ("own MB", "mapped MB", "cached after")}
            held["CPU, µs"] = answer["CPU seconds"] / answer["images"] * 1e6
            known = memory.setdefault(title, held)
            memory[title] = {key: max(known[key], value) for key, value in held.items() if key in known}
            memory[title]["CPU, µs"] = min(known["CPU, µs"], held["CPU, µs"])
            print(
                f"  round {number + 1}/{args.rounds}  {title:<22} {speed:10,.0f}/s"
                f"  CPU {held['CPU, µs']:6.0f} µs  own {held['own MB']:5.0f} MB"
                f"  mapped {held['mapped MB']:5.0f} MB  cached after {held['cached after']:4.0%}",
                flush=True,
            )
    actual = {
        title: {"best": max(all), "median": statistics.median(all)} for title, all in speeds.items() if all
    }
    result: dict[str, Any] = {"images/s": actual, "memory": memory}
    result["disk, how"] = disk.how
    for title, how in disk.how.items():
        print(f"  {title}: {actual[title]['best']:,.0f}/s at best, by {how}")
    result["of the limit"] = {
        f"{format}, {which}": ratio
        for format in paths
        for which in ("larger", "first epoch")
        if (ratio := of_the_limit(actual, format, which)) is not None
    }
    for title, ratio in result["of the limit"].items():
        print(f"  {title:<22} {ratio['median']:.2f} of the limit (best {ratio['best']:.2f})")
    return result


def of_the_limit(found: dict[str, Any], format: str, which: str) -> dict[str, float] | None:
    """Our speed as a part of the disk's limit or of the warm speed, whichever is lower.

    Pages that are to stay for the next epoch have to go through the page cache.
    """
    ours, warm = found.get(f"{format}, {which}"), found.get(f"{format}, warm")
    if ours is None or warm is None:
        return None
    past, through = (found.get(title, warm) for title in (PAST, THROUGH))
    return {
        key: ours[key]
        / min(warm[key], through[key] if which == "first epoch" else max(past[key], through[key]))
        for key in ("median", "best")
    }


def parse() -> argparse.Namespace:
    parser = arguments(__doc__ or "", rounds=3)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS), help="default: all")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=list(FORMATS), help="default: all")
    parser.add_argument("--orders", nargs="+", choices=ORDERS, default=list(ORDERS), help="default: all")
    parser.add_argument("--size", type=int, default=2000, help="MB of each dataset (default 2000)")
    parser.add_argument("--seconds", type=float, default=3, help="at most, of each run (default 3)")
    parser.add_argument("--batch", type=int, default=256, help="default 256")
    parser.add_argument("--memory", type=int, default=800, help="MB for our loader (default 800; 0: any)")
    parser.add_argument("--folder", type=Path, help="on the disk to measure (default: the temporary folder)")
    parser.add_argument("--quick", action="store_true", help="little data, one round: does it run at all?")
    args = parser.parse_args()
    if args.quick:
        args.rounds, args.seconds, args.size = 1, min(args.seconds, 1), min(args.size, 100)
    return args


def have(formats: list[str]) -> list[str]:
    for format in [name for name in formats if name in NEEDED]:
        if importlib.util.find_spec(NEEDED[format]) is None:
            print(f"{NEEDED[format]} is not installed: {format} is left out")
            formats = [name for name in formats if name != format]
    return formats


def measure(kind: str, args: argparse.Namespace, tools: Tools) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="batchplant-cold-", dir=args.folder) as name:
        folder = Path(name)
        program = compiled(folder)
        cells = cells_of(kind, folder / "some")
        size = float(np.mean([len(cell) if isinstance(cell, bytes) else cell.nbytes for cell in cells]))
        count = max(2 * args.batch, int(args.size * 1e6 / size))
        paths = {}
        for format in ["beton", *(name for name in args.formats if name != "beton")]:
            if format == "folder" and kind == "raw":
                continue
            paths[format] = folder / f"data{FORMATS[format]}"
            make(paths[format], format, kind, cells, count)
            files = files_of(str(paths[format]))
            # Indexes and whatever else is made when it is first opened.
            batchplant.open(paths[format]).close()
            os.sync()
            drop(files)
            held, whole = cached(files)
            print(f"{KINDS[kind]}, {format}: {count:,} images, {held / max(1, whole):.0%} still cached")
        cases = {}
        chosen = {format: path for format, path in paths.items() if format in args.formats}
        for order in args.orders:
            disk = Disk(program, paths["beton"], order, args.batch, folder)
            cases[order] = case(kind, order, chosen, disk, args, tools)
        return {"title": KINDS[kind], "images": count, "bytes": size, "orders": cases}


def main() -> None:
    args = parse()
    args.formats = have(args.formats)
    if importlib.util.find_spec("torch") is None:
        print("torch is not installed: its side is left out")
    # Whoever ends us has folder and control group removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    results: dict[str, Any] = {"batch": args.batch, "size, MB": args.size, "kinds": measured(args.out)}
    with limited(args.memory * 1_000_000) if args.memory else nothing() as group:
        results["memory limit, MB"] = args.memory if group else None
        if args.memory and group is None:
            print("the kernel gives us no control group: batchplant is told to read past the page cache")
        output = f"{args.memory} MB, by a control group" if group else "none"
        print(f"caches are dropped by posix_fadvise; limit of memory: {output}")
        tools = Tools(group, ffcv_python())
        with others(results):
            for kind in args.kinds:
                results["kinds"][kind] = measure(kind, args, tools)
    met = [
        ratio["best"] >= GOAL
        for kind in args.kinds
        for result in results["kinds"][kind]["orders"].values()
        for ratio in result["of the limit"].values()
    ]
    print(f"{sum(met)} of {len(met)} reach {GOAL} of the lower limit, by their best round")
    save(args.out, "cold", results)


def measured(out: Path) -> dict[str, Any]:
    """Kinds of images that were measured before, on the same machine."""
    path = out / "cold.json"
    result = json.loads(path.read_text()) if path.exists() else {"machine": None}
    same = result["machine"] is not None and result["machine"]["cpu"] == machine()["cpu"]
    return {kind: result["kinds"][kind] for kind in KINDS if kind in result["kinds"]} if same else {}


@contextmanager
def nothing() -> Iterator[None]:
    yield None


if __name__ == "__main__":
    main()
