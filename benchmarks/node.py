"""Readers of the same batches that share one decode, beside as many loaders on their own, and one alone.

Every reader is a process that runs whole epochs of JPEGs, cropped and resized to 224. The sides run in
turn, several rounds. On a busy machine, seconds depend on how many threads a side has; CPU seconds do not.
Memory is what readers and server have beyond a process that only imported batchplant, half way through an
epoch, pages that several share counted once.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from _common import arguments, interleaved, others, photos, save, workplace
from _process import Process

import batchplant
from batchplant.loading.node import wire
from batchplant.storage import platform

BATCH, CROP = 256, 224
READERS = 4
SIDES = {
    "one alone": (1, None), "one shared": (1, "node"),
    f"{READERS} alone": (READERS, None), f"{READERS} shared": (READERS, "node"),
}  # fmt: skip


def memory_of(process: object = "self") -> int:
    """Bytes of a process, of pages that several share its part."""
    for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    return 0


def read(path: str, share: str | None) -> None:
    """A reader: an epoch for every line of its input."""
    imported = memory_of()
    pipelines = {"image": [batchplant.ops.RandomResizedCrop(CROP), batchplant.ops.RandomHorizontalFlip()]}
    loader = batchplant.Loader(path, BATCH, order="random", pipelines=pipelines, share=share)
    print(json.dumps({"ready": True}), flush=True)
    for _ in sys.stdin:
        half = 0
        for number, _ in enumerate(loader):
            if number == len(loader) // 2:
                half = memory_of() - imported
        print(json.dumps({"memory": half, "node": loader.stats().get("node")}), flush=True)


def cpu_seconds(process: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Side:
    """Readers of one kind, and the memory of their latest epoch."""

    def __init__(self, stack: ExitStack, folder: Path, name: str, path: Path) -> None:
        readers, share = SIDES[name]
        # Each side has a server of its own.
        self.runtime = folder / f"{readers}-{share}"
        self.runtime.mkdir()
        self.enter()
        command = [sys.executable, __file__, "--reader", path, *([share] if share else [])]
        self.processes = [
            Process(name, command, folder / f"{name.replace(' ', '-')}-{number}.log")
            for number in range(readers)
        ]
        for process in self.processes:
            stack.callback(process.close)
        for process in self.processes:
            process.answer()
        self.share, self.memory, self.node = share, 0, dict[str, Any]()
        # Of each epoch.
        self.cpu: list[float] = []

    def enter(self) -> None:
        """Have this process, and those that it starts, find the server of this side."""
        os.environ["XDG_RUNTIME_DIR"] = str(self.runtime)

    def members(self) -> list[int]:
        """Process numbers of the readers, and of the server behind them."""
        members = [process.process.pid for process in self.processes]
        connection = wire.dial() if self.share else None
        if connection is not None:
            with connection:
                members.append(platform.peer_of(connection)[0])
        return members

    def epoch(self) -> float:
        """Seconds until the last reader has finished an epoch."""
        self.enter()
        members = self.members()
        began, cpu = time.perf_counter(), sum(map(cpu_seconds, members))
        for process in self.processes:
            process.ask()
        answers = [process.answer() for process in self.processes]
        seconds = time.perf_counter() - began
        self.cpu.append(sum(map(cpu_seconds, members)) - cpu)
        self.memory = sum(answer["memory"] for answer in answers)
        self.memory += sum(map(memory_of, members[len(self.processes) :]))
        self.node = answers[0]["node"] or {}
        return seconds


def main() -> None:
    parser = arguments(__doc__ or "", rounds=3)
    parser.add_argument("--images", type=int, default=2560)
    args = parser.parse_args()
    results: dict[str, Any] = {"batch": BATCH, "images": args.images}
    with workplace() as folder, ExitStack() as stack, others(results):
        path = folder / "photos.beton"
        photos().make_folder(folder / "photos", args.images, size=500)
        batchplant.convert(folder / "photos", path)
        sides = {}
        for name in SIDES:
            sides[name] = Side(stack, folder, name, path)
            sides[name].epoch()
        result = interleaved({name: side.epoch for name, side in sides.items()}, args.rounds)
        memory = {name: side.memory for name, side in sides.items()}
    seconds = {name: entry["median"] for name, entry in result.items()}
    # Without the first epoch, in which the dataset is opened.
    cpu = {name: statistics.median(side.cpu[1:]) for name, side in sides.items()}
    ratios = {
        "speed: readers, shared to alone": seconds[f"{READERS} alone"] / seconds[f"{READERS} shared"],
        "speed: one, shared to alone": seconds["one alone"] / seconds["one shared"],
        "CPU: readers, alone to shared": cpu[f"{READERS} alone"] / cpu[f"{READERS} shared"],
        "CPU: one, alone to shared": cpu["one alone"] / cpu["one shared"],
        "memory: readers to one, shared": memory[f"{READERS} shared"] / memory["one shared"],
        "memory: readers to one, alone": memory[f"{READERS} alone"] / memory["one alone"],
    }
    for name, ratio in ratios.items():
        print(f"  {name:<34} {ratio:.2f}")
    save(
        args.out,
        "node",
        {**results, "seconds": result, "CPU seconds": cpu, "bytes": memory, "ratios": ratios},
    )


if __name__ == "__main__":
    if sys.argv[1:2] == ["--reader"]:
        read(sys.argv[2], sys.argv[3] if sys.argv[3:] else None)
    else:
        main()
