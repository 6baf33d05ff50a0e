"""What the benchmarks share: the machine's name, timing in turns, FFCV's Python, results."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from _figures import draw

import batchplant
from batchplant import _native

HERE = Path(__file__).parent
ROOT = HERE.parent
RESULTS = HERE / "results"


def photos() -> ModuleType:
    """The photo generator of the demo."""
    spec = importlib.util.spec_from_file_location("photos", ROOT / "demo" / "photos.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["photos"] = module
    spec.loader.exec_module(module)
    return module


def machine() -> dict[str, Any]:
    """What was measured on; part of every result."""
    model = platform.machine()
    # ARM's /proc/cpuinfo has numbers only; lscpu knows their names.
    output = subprocess.run(["lscpu"], capture_output=True, text=True) if shutil.which("lscpu") else None
    for line in output.stdout.splitlines() if output else Path("/proc/cpuinfo").read_text().splitlines():
        if line.lower().startswith("model name"):
            model = f"{line.partition(':')[2].strip()} ({platform.machine()})"
            break
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)),
        "system": platform.platform(),
        "python": platform.python_version(),
        "batchplant": batchplant.__version__,
        "native": _native.features(),
    }


def interleaved(tasks: dict[str, Callable[[], float]], rounds: int) -> dict[str, dict[str, Any]]:
    """Run all tasks in turn, several rounds; each returns its seconds. Best and median of each, and all."""
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    for number in range(rounds):
        for name, task in tasks.items():
            seconds[name].append(task())
            print(f"  round {number + 1}/{rounds}  {name:<28} {seconds[name][-1]:8.3f} s", flush=True)
    return {
        name: {"best": min(second), "median": statistics.median(second), "rounds": second}
        for name, second in seconds.items()
    }


def rates(found: dict[str, dict[str, float]], count: int, peer: str) -> dict[str, Any]:
    """Images per second, and our speed as a ratio to the peer's."""
    speeds = {name: {key: count / value[key] for key in ("best", "median")} for name, value in found.items()}
    result: dict[str, Any] = {"images": count, "images/s": speeds}
    if peer in speeds:
        mine, theirs = speeds["batchplant"], speeds[peer]
        result[f"ratio to {peer}"] = {key: mine[key] / theirs[key] for key in mine}
        print(f"  ratio to {peer}: best {mine['best'] / theirs['best']:.2f}, "
              f"median {mine['median'] / theirs['median']:.2f}")  # fmt: skip
    return result


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def all_of(read: Callable[[Any], Any], batches: list[Any]) -> None:
    """Read all batches, and keep none."""
    for batch in batches:
        read(batch)


def ffcv_python() -> str | None:
    """An interpreter that imports ffcv: ours, or the one that BATCHPLANT_FFCV_PYTHON names."""
    if named := os.environ.get("BATCHPLANT_FFCV_PYTHON"):
        return named
    if importlib.util.find_spec("ffcv") is not None:
        return sys.executable
    print("FFCV is not installed: its side is skipped (BATCHPLANT_FFCV_PYTHON may name a Python that has it)")
    return None


def arguments(about: str, rounds: int = 5) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default {rounds}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for JSON and figure")
    return parser


def part_arguments(
    about: str,
    parts: Iterable[str],
    rounds: int = 5,
    add: Callable[[argparse.ArgumentParser], None] = lambda parser: None,
) -> argparse.Namespace:
    """The command line of a benchmark that has parts, of which some can be chosen; ``add`` adds options."""
    parser = arguments(about, rounds)
    add(parser)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts), help="default: all")
    parser.add_argument("--quick", action="store_true", help="little data, two rounds: does it run at all?")
    args = parser.parse_args()
    args.rounds = 2 if args.quick else args.rounds
    return args


@contextmanager
def workplace() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="batchplant-bench-") as folder:
        yield Path(folder)


@contextmanager
def others(results: dict[str, Any]) -> Iterator[None]:
    """Notes how much of the machine other processes used meanwhile."""

    def spent() -> tuple[float, float, float]:
        fields = [int(part) for part in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
        busy = (sum(fields[:8]) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK")
        kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ours = sum(sum(resource.getrusage(kind)[:2]) for kind in kinds)
        return time.perf_counter(), busy, ours

    before = spent()
    yield
    wall, busy, ours = (after - began for after, began in zip(spent(), before, strict=True))
    share = max(0.0, busy - ours) / wall / (os.cpu_count() or 1)
    results["used by other processes"] = share
    print(f"other processes used {share:.1%} of the machine meanwhile")


def save(out: Path, name: str, results: dict[str, Any]) -> None:
    """OUT/NAME.json, and the figure drawn from it."""
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **results}, indent=2) + "\n")
    print(f"wrote {path}")
    draw(out, name)
