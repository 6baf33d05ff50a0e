"""Record formats in place: loading images, indexing, random reads and Examples.

loading    the same JPEGs (256 px, crop 224, flip) from .beton and from every record format, no conversion
indexing   a scan of a whole file that has no index yet, warm cache, 20-KB and 100-byte records
reading    encoded records by number, in random order, one thread, batches of 256, 20 KB and 1 KB
examples   tf.train.Examples of six features to arrays, one thread

All sides of a part run in turn in one process, several rounds; TensorFlow and ffrecord have one of their own
(BATCHPLANT_TF_PYTHON, BATCHPLANT_FFRECORD_PYTHON). A peer that is not installed is left out, and said so.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from _common import all_of, interleaved, others, part_arguments, photos, save, timed, workplace
from _record_peers import PEERS, TF_EXAMPLES

import batchplant
from batchplant.loading.loader import Loader
from batchplant.ops import RandomHorizontalFlip, RandomResizedCrop

BATCH, CROP = 256, 224
# Format → file name; the first is what the others are compared with.
FILES = {
    "beton": "photos.beton",
    "ffrecord": "photos.ffr",
    "tfrecord": "photos.tfrecord",
    "webdataset": "photos.tar",
    "recordio": "photos.rec",
    "lmdb": "photos.lmdb",
    "msgpack": "photos.msgpack",
}
SCANNED = {"tfrecord": "x.tfrecord", "webdataset": "x.tar", "recordio": "x.rec", "msgpack": "x.msgpack"}
READ = {"ffrecord": "x.ffr", "tfrecord": "x.tfrecord", "recordio": "x.rec", "lmdb": "x.lmdb"}

Found = dict[str, Any]


def speeds(found: dict[str, dict[str, float]], count: float) -> Found:
    return {name: {key: count / value[key] for key in ("best", "median")} for name, value in found.items()}


# --- loading ------------------------------------------------------------------------------------------


def loading(folder: Path, args: argparse.Namespace) -> Found:
    count = BATCH if args.quick else 10 * BATCH
    photos().make_folder(folder / "photos", count, size=256)
    for name in FILES.values():
        batchplant.convert(folder / "photos", folder / name)
    print(f"loading {count} JPEGs of 256 px, crop {CROP}, flip, batches of {BATCH}", flush=True)
    image = [RandomResizedCrop(CROP), RandomHorizontalFlip()]
    with ExitStack() as stack:
        epochs: dict[str, Callable[[], float]] = {}
        for format, name in FILES.items():
            loader = Loader(folder / name, BATCH, order="random", pipelines={"image": image})
            stack.callback(loader.close)
            epochs[format] = lambda loader=loader: timed(lambda: sum(len(batch["image"]) for batch in loader))
            epochs[format]()
        result = speeds(interleaved(epochs, args.rounds), count)
    ratios = {
        name: {key: value[key] / result["beton"][key] for key in value} for name, value in result.items()
    }
    for name, ratio in ratios.items():
        print(f"  {name:<12} {result[name]['median']:>8,.0f} images/s, {ratio['median']:.2f} × .beton")
    return {"images": count, "images/s": result, "ratio to beton": ratios}


# --- indexing -----------------------------------------------------------------------------------------


def blobs(count: int, size: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (count, size), dtype=np.uint8)


def write(path: Path, cells: np.ndarray[Any, Any], **options: Any) -> Path:
    """Records of one field of bytes; as raw as the format can."""
    with batchplant.create(path, {"data": batchplant.Bytes()}, **options) as out:
        count, size = cells.shape
        offsets = np.arange(count + 1, dtype=np.int64) * size
        out.append(batchplant.Columns(data=batchplant.Ragged(cells.reshape(-1), offsets)))
    return path


def raw_options(format: str) -> dict[str, Any]:
    return {"records": "raw"} if format == "tfrecord" else {}


def indexing(folder: Path, args: argparse.Namespace) -> Found:
    results: Found = {}
    cases = {"20 KB": (20_000, 20_000), "100 bytes": (1_000_000, 100)}
    for title, (count, size) in cases.items():
        count = count // 100 if args.quick else count
        tasks: dict[str, Callable[[], float]] = {}
        place = folder / f"index-{size}"
        place.mkdir()
        bytes_of: dict[str, int] = {}
        for format, name in SCANNED.items():
            path = write(place / name, blobs(count, size), **raw_options(format))
            bytes_of[format] = path.stat().st_size
            tasks[format] = lambda path=path: timed(lambda: batchplant.open(path, index="memory").close())
            tasks[format]()
        print(f"indexing {count:,} records of {title}", flush=True)
        seconds = interleaved(tasks, args.rounds)
        results[title] = {
            "records": count,
            "records/s": speeds(seconds, count),
            "GB/s": {
                name: {key: bytes_of[name] / 1e9 / second[key] for key in ("best", "median")}
                for name, second in seconds.items()
            },
        }
        for name in tasks:
            rate, volume = results[title]["records/s"][name]["median"], results[title]["GB/s"][name]["median"]
            print(f"  {name:<12} {rate:>12,.0f} records/s {volume:8.2f} GB/s")
    return results


# --- reading ------------------------------------------------------------------------------------------


def reading(folder: Path, args: argparse.Namespace) -> Found:
    results: Found = {}
    for title, count, size in (("20 KB", 20_000, 20_000), ("1 KB", 200_000, 1_000)):
        count = count // 50 if args.quick else count
        place = folder / f"read-{size}"
        place.mkdir()
        cells = blobs(count, size)
        order = np.random.default_rng(1).permutation(count)[: 40 * BATCH]
        batches = [order[first : first + BATCH] for first in range(0, len(order), BATCH)]
        tasks: dict[str, Callable[[], float]] = {}
        with ExitStack() as stack:
            for format, name in READ.items():
                path = write(place / name, cells, **raw_options(format))
                for check in (False, True) if format in ("ffrecord", "tfrecord") else (None,):
                    reader = batchplant.open(path, **({} if check is None else {"check": check}))
                    stack.callback(reader.close)
                    output = {None: "", True: " + CRC", False: ""}[check]
                    tasks[f"batchplant {format}{output}"] = lambda reader=reader, batches=batches: timed(
                        lambda: all_of(lambda rows: reader.read(rows, ["data"]), batches)
                    )
            for name, peer in PEERS.items():
                try:
                    read = peer(place, cells, stack)
                except ImportError as error:
                    print(f"  {name} is left out: {error}")
                    continue
                tasks[name] = lambda read=read, batches=batches: timed(lambda: all_of(read, batches))
            for task in tasks.values():
                task()
            print(f"reading records of {title} in random order, batches of {BATCH}", flush=True)
            result = speeds(interleaved(tasks, args.rounds), len(order))
        for name, value in sorted(result.items(), key=lambda pair: -pair[1]["median"]):
            print(f"  {name:<28} {value['median']:>12,.0f} records/s")
        results[title] = {"records": len(order), "records/s": result}
    return results


# --- Examples -----------------------------------------------------------------------------------------

FEATURES = 6


def write_examples(path: Path, count: int) -> None:
    rng = np.random.default_rng(0)
    schema = {
        "image": batchplant.Bytes(),
        "label": batchplant.Int(),
        "score": batchplant.Float("float32"),
        "box": batchplant.Tensor("float32", (4,)),
        "ids": batchplant.Tensor("int64", (16,)),
        "name": batchplant.Bytes(),
    }
    with batchplant.create(path, schema) as out:
        for number in range(count):
            out.append(
                {
                    "image": rng.bytes(1000), "label": number, "score": rng.random(),
                    "box": rng.random(4, dtype=np.float32), "ids": rng.integers(0, 10**6, 16),
                    "name": f"image {number}".encode(),
                }
            )  # fmt: skip


def examples(folder: Path, args: argparse.Namespace) -> Found:
    count = 2_000 if args.quick else 20_000
    path = folder / "examples.tfrecord"
    write_examples(path, count)
    # Others find the features by themselves; so do we.
    Path(f"{path}.schema.json").unlink(missing_ok=True)
    reader = batchplant.open(path)
    fields = list(reader.schema)

    def ours() -> None:
        for start in range(0, count, BATCH):
            reader.read(np.arange(start, min(start + BATCH, count)), fields)

    tasks: dict[str, Callable[[], float]] = {"batchplant": lambda: timed(ours)}
    if importlib.util.find_spec("tfrecord") is not None:
        from tfrecord.reader import tfrecord_loader

        description = {
            "image": "byte", "label": "int", "score": "float", "box": "float", "ids": "int", "name": "byte",
        }  # fmt: skip
        tasks["tfrecord package"] = lambda: timed(
            lambda: sum(1 for _ in tfrecord_loader(str(path), None, description))
        )
    else:
        print("the tfrecord package is not installed: its side is skipped")
    with ExitStack() as stack:
        if python := os.environ.get("BATCHPLANT_TF_PYTHON"):
            tasks["tf.data"] = outside(stack, python, TF_EXAMPLES, str(path), str(BATCH))
        else:
            print("TensorFlow: BATCHPLANT_TF_PYTHON names no Python that has it, its side is skipped")
        for task in tasks.values():
            task()
        print(f"parsing {count:,} Examples of {FEATURES} features, about 1.2 KB each", flush=True)
        result = speeds(interleaved(tasks, args.rounds), count)
    ratios = {
        name: {key: result["batchplant"][key] / value[key] for key in value}
        for name, value in result.items()
        if name != "batchplant"
    }
    for name, ratio in ratios.items():
        print(f"  {ratio['median']:.1f} × {name}")
    return {"examples": count, "examples/s": result, "ratio to": ratios}


def outside(stack: ExitStack, python: str, script: str, *arguments: str) -> Callable[[], float]:
    """A side in an interpreter of its own: it answers every line with its seconds."""
    process = subprocess.Popen(
        [python, "-c", script, *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    stack.callback(process.kill)

    def run() -> float:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        return float(json.loads(process.stdout.readline()))

    return run


PARTS: dict[str, Callable[[Path, argparse.Namespace], Found]] = {
    "loading": loading,
    "indexing": indexing,
    "reading": reading,
    "examples": examples,
}


def main() -> None:
    args = part_arguments(__doc__ or "", PARTS)
    results: Found = {"rounds": args.rounds, "batch": BATCH}
    began = time.perf_counter()
    with workplace() as folder, others(results):
        for name in args.parts:
            results[name] = PARTS[name](folder, args)
    print(f"took {time.perf_counter() - began:.0f} s")
    save(args.out, "records", results)


if __name__ == "__main__":
    sys.exit(main())
