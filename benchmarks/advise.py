"""Is the advice good? Ten datasets: what `batchplant advise` picks and predicts, beside what is measured.

usage: advise.py [--only NAME …] [--seconds S] [--scale X]

For each dataset, advice is taken for its goal; then `measure.formats` measures every format that came into
question, written with the advised settings. A pick is good if it is within 10 % of the best of them in what
the goal is about:

    train    samples/s of a shuffled epoch through the Loader, files in memory (from a bucket: the first one)
    stream   samples/s of an epoch in order through the Loader
    analyse  samples/s of one column
    archive  bytes on disk
    share    bytes on disk

The error of a prediction is its distance from what was measured, as a part of that; the median is over all
formats that were tried. Takes about twelve minutes; the machine should do nothing else.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from _advise_data import DATASETS, Dataset
from _common import RESULTS, others, save, workplace
from _servers import KEY, SECRET, serving

import batchplant as bp
from batchplant.tools import advise, measure
from batchplant.tools.advise.trial import GOAL_METRICS, GOAL_ORDERS

NEAR = 0.10
# More than `bench formats` has by itself, and so the time is longer.
SECONDS, ROUNDS = 60.0, 5
BUCKET = "bench"
# How `measure` calls what a trial calls so; from a bucket, an epoch is what comes over the network.
MEASURED = {
    "epoch_rate": "epoch_warm",
    "column_rate": "column_rate",
    "bytes": "bytes",
}


def main() -> None:
    shown = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=shown)
    names = list(DATASETS)
    parser.add_argument(
        "--only", nargs="+", choices=names, default=names, metavar="NAME", help="default: all"
    )
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help=f"to measure a dataset (default {SECONDS:g})"
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the datasets (default 1)")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder for the JSON")
    args = parser.parse_args()
    results: dict[str, Any] = {"datasets": {}}
    with workplace() as folder, others(results):
        for name in args.only:
            inside = folder / name.replace(" ", "-").replace("^", "")
            inside.mkdir()
            result = results["datasets"][name] = one(DATASETS[name], inside, args.scale, args.seconds)
            print(line(name, result), flush=True)
    summarize(results)
    save(args.out, "advise", results)


@contextlib.contextmanager
def opened(dataset: Dataset, folder: Path, scale: float) -> Iterator[tuple[bp.Reader, dict[str, Any]]]:
    """The dataset, and how `measure` has to be called for it."""
    if not dataset.remote:
        with bp.open(str(dataset.make(folder, scale))) as reader:
            yield reader, {}
        return
    os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET, AWS_REGION="us-east-1")
    bucket = folder / "buckets" / BUCKET
    bucket.mkdir(parents=True)
    path = dataset.make(bucket, scale)
    with serving(bucket.parent, writable=True) as servers:
        where = {"endpoint": servers.endpoint}
        with bp.open(f"s3://{BUCKET}/{path.name}", **where) as reader:
            yield reader, {"remote": f"s3://{BUCKET}/tried", "remote_options": where}


def one(dataset: Dataset, folder: Path, scale: float, seconds: float) -> dict[str, Any]:
    goal, remote = dataset.goal, dataset.remote
    with opened(dataset, folder, scale) as (reader, how):
        began = time.perf_counter()
        result = advise.advise(reader, goal=goal)
        took = time.perf_counter() - began
        source = reader
        if result.best.option.images:
            # Once for all: what is compared is the format, not how images are encoded.
            path = folder / f"encoded{result.best.option.suffix}"
            bp.convert(
                reader,
                path,
                images=result.best.option.image_options,
                target_options={"format": result.format},
            )
            source = bp.open(str(path), format=result.format)
        # Those too that there was no time to try.
        results = [item for item in result.tried if not item.option.unchanged and not item.is_extra]
        if result.now is not None and result.facts.format not in [item.option.format for item in results]:
            # Written anew, it is as the source is.
            results.append(result.now)
        # The images are as they are to be already.
        plain = [dataclasses.replace(item.option, images={}).candidate for item in results]
        order = GOAL_ORDERS.get(goal, "random")
        rows = measure.formats(source, plain, seconds=seconds, rounds=ROUNDS, order=order, **how)
    figures = {
        item.option.format: {
            "predicted": predicted_figure(item, goal, row.samples, remote=remote),
            "measured": measured_figure(row, goal, remote=remote),
            "bytes predicted": item.trial.disk_bytes(row.samples), "bytes measured": row.bytes,
            "error": row.error,
        }
        for item, row in zip(results, rows, strict=True)
    }  # fmt: skip
    output = {
        "goal": goal,
        "pick": result.format,
        "stays": result.best.option.unchanged,
        "way": result.best.option.label,
    }
    return {
        **output,
        "seconds": took,
        "samples": result.facts.samples,
        **judged(figures, result.format, goal),
    }


def measured_figure(row: measure.Measurement, goal: str, *, remote: bool = False) -> float | None:
    """What a goal is about, as it was measured: the best of the rounds, as a prediction is of the trials."""
    name = MEASURED[GOAL_METRICS[goal][0]]
    if row.error is not None or name == "bytes":
        return None if row.error else row.bytes
    return row.best.get("epoch_cold" if remote and name == "epoch_warm" else name)


def predicted_figure(one: Any, goal: str, samples: int, *, remote: bool = False) -> float | None:
    """The same as it was predicted, for so many samples."""
    name = GOAL_METRICS[goal][0]
    if name == "bytes":
        return one.trial.disk_bytes(samples)
    result: float | None = one.prediction.rate if remote else getattr(one.trial, name)
    return result


def judged(figures: dict[str, Any], pick: str, goal: str) -> dict[str, Any]:
    """How far the pick is from the best, and the predictions from what was measured."""
    more = GOAL_METRICS[goal][1]
    known = {name: figure["measured"] for name, figure in figures.items() if figure["measured"]}
    best = (max if more else min)(known, key=lambda name: known[name])
    mine = known.get(pick)
    behind = None if mine is None else (known[best] / mine if more else mine / known[best]) - 1
    pairs = [(figure["predicted"], figure["measured"]) for figure in figures.values()]
    errors = [abs(guess / real - 1) for guess, real in pairs if guess and real]
    return {
        "figure": GOAL_METRICS[goal][2], "best": best, "behind the best": behind,
        "good": behind is not None and behind <= NEAR, "median error": statistics.median(errors),
        "errors": errors, "formats": figures,
    }  # fmt: skip


def line(name: str, found: dict[str, Any]) -> str:
    behind = "not measured" if found["behind the best"] is None else f"{found['behind the best']:.1%} behind"
    output = f"{found['goal']:<8} {found['pick']:<12} {behind} {found['best']:<12}"
    return f"{name:<22} {output} predictions {found['median error']:.0%} off, {found['seconds']:.1f} s"


def summarize(results: dict[str, Any]) -> None:
    datasets = results["datasets"].values()
    results["good"] = sum(dataset["good"] for dataset in datasets)
    results["median error"] = statistics.median(error for dataset in datasets for error in dataset["errors"])
    results["slowest advice, s"] = max(dataset["seconds"] for dataset in datasets)
    output = f"{results['good']} of {len(datasets)} picks within {NEAR:.0%} of the best"
    print(f"{output}; predictions {results['median error']:.0%} off (median)")


if __name__ == "__main__":
    sys.exit(main())
