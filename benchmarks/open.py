"""Opening a .beton of ten million samples: seconds and memory, beside FFCV's Reader.

The file is sparse: a true header, and a table and pages of zeros. Each opening is a fresh process; memory
is what the process grew by. FFCV reads the whole table; batchplant maps it.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from _common import arguments, ffcv_python, others, save, workplace

from batchplant.formats.beton import ALLOCATION, DESCRIPTOR, HEADER, INT, RGB, table_dtype

MEASURE = """
import json, os, sys, time
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")
{imports}
before, began = resident(), time.perf_counter()
{opens}
opened = time.perf_counter() - began
grown = resident() - before
began = time.perf_counter()
{reads}
read = time.perf_counter() - began
print(json.dumps({{"open": opened, "read": read, "grown": grown, "resident": resident()}}))
"""
OURS = MEASURE.format(
    imports="import batchplant",
    opens="dataset = batchplant.open(sys.argv[1]); count = len(dataset)",
    reads="dataset.read(range(0, count, count // 256), ['label'])",
)
FFCV = MEASURE.format(
    imports="from ffcv.reader import Reader",
    opens="dataset = Reader(sys.argv[1]); count = len(dataset.metadata)",
    reads="dataset.metadata['f1'][range(0, count, count // 256)]",
)


def make_sparse(path: Path, samples: int) -> None:
    """A header that promises image and label, then holes."""
    types = [RGB, INT]
    page = 1 << 23
    table = HEADER.itemsize + len(types) * DESCRIPTOR.itemsize
    pages = -(-(table + samples * table_dtype(types).itemsize) // page) * page
    end = pages + (samples // 400 + 1) * page
    descriptors = np.zeros(len(types), dtype=DESCRIPTOR)
    descriptors["type"], descriptors["name"] = types, [b"image", b"label"]
    header = np.array([(2, len(types), page, samples, end)], dtype=HEADER)
    with open(path, "wb") as file:
        file.write(header.tobytes() + descriptors.tobytes())
        file.truncate(end + samples * ALLOCATION.itemsize)


def measure(python: str, script: str, path: Path) -> dict[str, float]:
    done = subprocess.run([python, "-c", script, str(path)], check=True, capture_output=True, text=True)
    answer: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return answer


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--samples", type=int, default=10_000_000)
    args = parser.parse_args()
    python = ffcv_python()
    results: dict[str, Any] = {"samples": args.samples}
    sides = {"batchplant": (sys.executable, OURS)} | ({"FFCV": (python, FFCV)} if python else {})
    with workplace() as folder, others(results):
        path = folder / "large.beton"
        make_sparse(path, args.samples)
        print(f"{args.samples:,} samples, {path.stat().st_size / 1e9:.0f} GB, sparse")
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
        for _ in range(args.rounds):
            for name, (interpreter, script) in sides.items():
                runs[name].append(measure(interpreter, script, path))
    for name, run in runs.items():
        results[name] = {
            key: {
                "best": min(item[key] for item in run),
                "median": statistics.median(item[key] for item in run),
            }
            for key in run[0]
        }
        median = {key: value["median"] for key, value in results[name].items()}
        print(
            f"{name:<12} open {median['open'] * 1e3:9.2f} ms, memory grown {median['grown'] / 1e6:7.1f} MB, "
            f"process {median['resident'] / 1e6:6.1f} MB, 256 labels {median['read'] * 1e3:.2f} ms"
        )
    save(args.out, "open", results)


if __name__ == "__main__":
    main()
