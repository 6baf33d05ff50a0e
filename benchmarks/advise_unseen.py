"""Is the advice good for data that it was not tuned on? Ten datasets; every sensible format is measured.

usage: advise_unseen.py [--only NAME …] [--rounds N]

For each dataset, advice is taken as `batchplant advise` gives it. Then the whole dataset is converted to
every format that can hold it, with the options that advise would give it, and whole shuffled epochs go
through the Loader, from each of them and from the dataset as it lies, in turns. After the first round,
formats of less than half the best speed are left out, and after three those of less than four fifths. A pick
is good if its best round is within 10 % of the best round of all. Formats that would take ten times the space
are not measured.

Where other processes keep the cores busy, speeds are those that there would be without them: the time is
shortened by as much as our threads waited for a core (`timing.EpochTiming`). Takes about five minutes on a
machine that does nothing else.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from _advise_data import DATASETS
from _advise_unseen import UNSEEN
from _common import RESULTS, ROOT, others, save, workplace

import batchplant as bp
from batchplant.formats.registry import get_format
from batchplant.tools import advise, measure
from batchplant.tools.advise.case import Case
from batchplant.tools.advise.trial import GOAL_METRICS, GOAL_ORDERS, StorageOption, storage_option
from batchplant.tools.measure import timing
from batchplant.tools.measure.timing import busy, column_of, core_seconds, core_share

NEAR = 0.10
ROUNDS = 6
BATCH = 256
MAX_GROWTH = 10
MIN_BATCHES = 32
# Scale of the datasets of advise.py.
DEVELOPING = 0.3
# Epochs of few samples are repeated until they take so long.
MIN_SECONDS = 0.2
# Of the best: slower formats are not measured after the first round, and after a few.
CLEARLY_SLOWER, NEARLY = 0.5, 0.8
FEW_ROUNDS = 3


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    known: dict[str, tuple[Callable[[Path], Path], str]] = {
        **UNSEEN,
        # Those of advise.py, for whoever changes the advice: the ten above are for judging it.
        **{
            name: (lambda folder, item=dataset: item.make(folder, DEVELOPING), dataset.goal)
            for name, dataset in DATASETS.items()
            if not dataset.remote
        },
    }
    parser.add_argument(
        "--only",
        nargs="+",
        choices=list(known),
        default=list(UNSEEN),
        metavar="NAME",
        help="default: the ten",
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"default {ROUNDS}")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    args = parser.parse_args()
    results: dict[str, Any] = {
        "date": datetime.date.today().isoformat(), "commit": commit(), "rounds": args.rounds, "datasets": {},
    }  # fmt: skip
    with others(results):
        for name in args.only:
            make, goal = known[name]
            with workplace() as folder:
                result = results["datasets"][name] = judge(make(folder), goal, folder, args.rounds)
            print(line(name, result), flush=True)
    results["good"] = sum(result["good"] for result in results["datasets"].values())
    print(f"{results['good']} of {len(results['datasets'])} picks within {NEAR:.0%} of the best")
    save(args.out, "advise_unseen", results)


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip()


def judge(path: Path, goal: str, folder: Path, rounds: int) -> dict[str, Any]:
    """The pick for a dataset, and how far it is from the best of all formats."""
    with bp.open(str(path)) as reader:
        began = time.perf_counter()
        result = advise.advise(reader, goal=goal)
        took = time.perf_counter() - began
        case = Case(result.facts, result.machine, result.answers)
        tried = {
            item.option.format: item.option
            for item in result.tried
            if not item.option.unchanged and not item.is_extra
        }
        names = list(dict.fromkeys([*tried, *measure.candidates(reader.schema)]))
        pick = "as it is" if result.best.option.unchanged else result.format
        readers, sizes = {"as it is": reader}, {"as it is": float(result.facts.bytes or 0)}
        left_out: dict[str, str] = {}
        source = reader
        if result.best.option.images:
            # Once for all: the formats are compared, not how images are encoded.
            place = folder / "encoded.beton"
            bp.convert(reader, place, images=result.best.option.image_options)
            source = bp.open(str(place))
        for name in names:
            option = tried.get(name) or storage_option(get_format(name), result.settings, reader.schema)
            if name == result.facts.format and name != pick:
                continue
            try:
                if growth(source, option, folder, name) * len(reader) > MAX_GROWTH * (
                    result.facts.bytes or 1
                ):
                    left_out[name] = "too large"
                    continue
                target = folder / f"{name}{option.suffix}"
                done = bp.convert(
                    source, target, target_options={"format": name, **dict(option.writer_options)}
                )
            except bp.errors.BatchplantError as error:
                left_out[name] = str(error)
                continue
            sizes[name] = sum(size_of(Path(file)) for file in done.files)
            readers[name] = bp.open(str(target), format=name)
        speeds = measured(readers, case, rounds, sizes, pick)
    more = GOAL_METRICS[goal][1]
    best = (max if more else min)(speeds, key=lambda name: speeds[name])
    behind = (speeds[best] / speeds[pick] if more else speeds[pick] / speeds[best]) - 1
    return {
        "goal": goal,
        "pick": pick,
        "way": result.best.option.label,
        "reason": result.reason,
        "best": best,
        "behind the best": behind,
        "good": behind <= NEAR,
        "seconds": took,
        "samples": result.facts.samples,
        "figure": GOAL_METRICS[goal][2],
        "measured": speeds,
        "bytes": sizes,
        "left out": left_out,
        "predicted": {
            "as it is" if item.option.unchanged else item.option.format: item.value for item in result.tried
        },
    }


def growth(reader: bp.Reader, option: StorageOption, folder: Path, name: str) -> float:
    """Bytes that a sample takes, from a handful of them."""
    sizes = []
    for count in (8, 32):
        done = bp.convert(
            reader,
            folder / f"few-{count}-{name}{option.suffix}",
            target_options={"format": name, **dict(option.writer_options)},
            options=bp.ConvertOptions(limit=count),
        )
        sizes.append(sum(size_of(Path(file)) for file in done.files))
    return (sizes[1] - sizes[0]) / 24


def size_of(path: Path) -> int:
    if path.is_dir():
        return sum(item.stat().st_size for item in path.rglob("*") if item.is_file())
    return path.stat().st_size


def measured(
    readers: dict[str, bp.Reader], case: Case, rounds: int, sizes: dict[str, float], pick: str
) -> dict[str, float]:
    """The best round of each, in what the goal is about."""
    if GOAL_METRICS[case.goal][0] == "bytes":
        return sizes
    best: dict[str, float] = {}
    for number in range(rounds):
        # Those that may be the best are told apart by more rounds; the others by few.
        least = 0.0 if number < 1 else CLEARLY_SLOWER if number < FEW_ROUNDS else NEARLY
        for name, reader in readers.items():
            if name != pick and best.get(name, 0.0) < least * max(best.values(), default=0.0):
                continue
            speed = column(reader) if case.goal == "analyse" else epoch(reader, case)
            best[name] = max(best.get(name, 0.0), speed)
    return best


def column(reader: bp.Reader) -> float:
    """Rows/s of a query that opens the file and reads one column."""
    began, cores = time.perf_counter(), core_seconds()
    bp.open(reader.path, format=reader.format).close()
    seconds = time.perf_counter() - began
    rate, _ = timing.scan(reader, sample_bytes=1, seconds=MIN_SECONDS, fields=[column_of(reader.schema)])
    seconds += len(reader) / rate
    return len(reader) / (seconds * (core_share(cores) if busy() is not None else 1.0))


def epoch(reader: bp.Reader, case: Case) -> float:
    """Samples/s of whole epochs."""
    how = timing.EpochSettings(BATCH, order=GOAL_ORDERS.get(case.goal, "random"), size=case.size)
    crowded = busy() is not None
    # Few samples are taken again and again, or most of an epoch would be its start.
    batch = min(BATCH, max(4, len(reader) // 8))
    rows = np.resize(np.arange(len(reader)), max(len(reader), MIN_BATCHES * batch))
    done, wall, free = 0, 0.0, 0.0
    before = time.process_time()
    while free < MIN_SECONDS:
        timed = timing.epoch(reader, how, batch_size=batch, seconds=None, indices=rows, seed=done)
        done, wall = done + timed.samples, wall + timed.samples / timed.rate_with_start
        free += timed.samples / timed.rate_with_start * (timed.core_share if crowded else 1.0)
    spent = time.process_time() - before
    # No faster than the CPU time that the samples take, on all cores.
    return min(done / free, len(os.sched_getaffinity(0)) * done / spent) if crowded else done / wall


def line(name: str, found: dict[str, Any]) -> str:
    output = f"{found['pick']:<11} {found['behind the best']:6.1%} behind {found['best']:<11}"
    speeds = sorted(found["measured"].items(), key=lambda pair: -pair[1])[:5]
    shown = ", ".join(f"{item} {speed:,.0f}" for item, speed in speeds)
    return f"{'' if found['good'] else '!'}{name:<24} {output} {found['seconds']:.0f} s  ({shown})"


if __name__ == "__main__":
    sys.exit(main())
