"""Say what a recorded run saw: samples of a step, steps of a sample, the worst, spikes of the loss.

examples:
  batchplant why run.bprun                          (the run: steps, resumes, dataset)
  batchplant why run.bprun --step 1240
  batchplant why run.bprun --step 1240 --rank 3 --open       (in the viewer, as they were augmented)
  batchplant why run.bprun --step 1240 --export step.beton   (as they are stored)
  batchplant why run.bprun --position 40000 --epoch 2
  batchplant why run.bprun --sample 4711            (every step that saw it; or its key)
  batchplant why run.bprun --worst 100
  batchplant why run.bprun --spikes                 (steps whose loss jumps, and what is in them)

A run is recorded with Loader(…, record="run.bprun"). Batches are computed from it, not looked up, so the
dataset has to be there; --data says where, if it was moved.
exit codes: 0 ok, 1 the run did not see it, or nothing was found, 2 wrong use
"""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from ..errors import OptionError
from ..tools.seen import Run, SeenSample
from . import terminal
from .terminal import counted, print_json, say

SHOWN = 32


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("record", metavar="RUN", help="the record of a run")
    parser.add_argument("--step", type=int, metavar="N", help="the samples of this step")
    parser.add_argument(
        "--position", type=int, metavar="N", help="the step that had this position of an epoch"
    )
    parser.add_argument("--epoch", type=int, metavar="N", default=0, help="of --position (default: 0)")
    parser.add_argument("--sample", metavar="ID", help="the steps that saw this sample, by its number or key")
    parser.add_argument("--worst", type=int, metavar="N", help="the samples with the largest losses")
    parser.add_argument(
        "--spikes",
        nargs="?",
        const="loss",
        metavar="NAME",
        help="steps where this value jumps (default: loss)",
    )
    parser.add_argument("--rank", type=int, metavar="N", help="only this rank (default: all)")
    parser.add_argument("-n", type=int, metavar="N", default=SHOWN, help=f"rows shown (default: {SHOWN})")
    parser.add_argument("--open", action="store_true", help="show the samples in the viewer, as augmented")
    parser.add_argument(
        "--export", metavar="PATH", help="write the samples, as they are stored, as a dataset"
    )
    parser.add_argument("--data", metavar="PATH", help="the dataset, where it was moved or was in memory")
    parser.add_argument(
        "--loader", metavar="FILE.py:NAME",
        help="a Loader with the options of the run, where some were code; FILE.py is run, so name only a "
        "file that you trust",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    chosen = [
        name for name in ("step", "position", "sample", "worst", "spikes") if getattr(args, name) is not None
    ]
    if len(chosen) > 1:
        raise OptionError(f"give one of --{' and --'.join(chosen)}")
    loader = None
    if args.loader is not None:
        from ..tools.viewer.augment import load

        loader = load(args.loader)
    with Run(args.record, source=args.data, loader=loader) as record:
        if not chosen:
            return _summary(args, record)
        if args.spikes is not None:
            return _spikes(args, record)
        if args.position is not None:
            args.step, args.rank = record.step_at(args.epoch, args.position)
        return _samples(args, record)


def _summary(args: argparse.Namespace, record: Run) -> int:
    dataset = record.stretches[-1].process["dataset"] if record.stretches else {}
    if args.json:
        names = ("step", "epoch", "start", "world_size", "batch_size", "steps", "lasting")
        parts = [{name: getattr(part, name) for name in names} for part in record.stretches]
        print_json({"steps": record.steps, "dataset": dataset, "stretches": parts})
        return 0
    samples = counted(dataset.get("samples", 0))
    say(f"{args.record}: {counted(record.steps, 'step')} of {dataset.get('path')}, {samples}")
    rows = [["step", "epoch", "position", "ranks", "batch", "steps", ""]]
    for part in record.stretches[-args.n :]:
        lost = part.steps - part.lasting
        note = f"{counted(lost, 'step')} repeated after a resume" if lost else ""
        numbers = [part.step, part.epoch, part.start, part.world_size, part.batch_size, part.steps]
        rows.append([*(f"{number:,}" for number in numbers), note])
    terminal.print_columns(rows, range(6))
    return 0


def _samples(args: argparse.Namespace, record: Run) -> int:
    if args.step is not None:
        seen = list(record.samples(args.step, args.rank, draws=False))
    elif args.worst is not None:
        seen = record.worst(args.worst)
    else:
        sample: Any = int(args.sample) if args.sample.lstrip("-").isdigit() else args.sample
        seen = [
            entry
            for step, rank, row in record.appearances(sample)
            if args.rank in (None, rank)
            for entry in [list(record.samples(step, rank, draws=False))[row]]
        ]
    values = record.notes(args.rank or 0).values(args.step) if args.step is not None else {}
    if args.json:
        shown = [record.with_draws(entry) for entry in seen[: max(args.n, 0) or None]]
        print_json({"count": len(seen), "notes": values, "samples": [_document(entry) for entry in shown]})
    else:
        _print(args, record, seen, values)
    if args.export and seen:
        from ..jobs.convert import convert

        convert(record.reader.subset([entry.sample for entry in seen]), args.export, overwrite=False)
        if not args.json:
            say(f"wrote {args.export}: {counted(len(seen))}")
    if args.open and seen:
        _open(args, record, seen)
    return 0 if seen else 1


def _document(entry: SeenSample) -> dict[str, Any]:
    return {**vars(entry), "draws": {name: cut._asdict() for name, cut in entry.draws.items()}}


def _print(args: argparse.Namespace, record: Run, seen: list[SeenSample], values: dict[str, float]) -> None:
    if not seen:
        say("no step of the run saw it")
        return
    if values:
        say(", ".join(f"{name} {value:.6g}" for name, value in values.items()))
    rows = [["step", "rank", "epoch", "sample", "loss", "file", "row", "key", "source", "draws"]]
    for entry in seen[: args.n]:
        entry = record.with_draws(entry)
        draws = "; ".join(
            f"{name} {', '.join(f'{edge:.0f}' for edge in cut.box)}{' flipped' if cut.flip else ''}"
            for name, cut in entry.draws.items()
        )
        rows.append([
            f"{entry.step:,}", str(entry.rank), str(entry.epoch), f"{entry.sample:,}",
            "" if entry.loss is None else f"{entry.loss:.4g}",
            terminal.printable(entry.file), f"{entry.file_row:,}",
            terminal.printable(entry.key or ""), terminal.printable(entry.source or ""), draws,
        ])  # fmt: skip
    used = [number for number in range(len(rows[0])) if any(row[number] for row in rows[1:])]
    terminal.print_columns([[row[number] for number in used] for row in rows])
    if len(seen) > args.n:
        say(f"… and {len(seen) - args.n:,} more; -n shows more")


def _spikes(args: argparse.Namespace, record: Run) -> int:
    spikes = record.spikes(args.spikes)
    if args.json:
        print_json(dataclasses.asdict(spikes))
        return 0 if spikes.steps else 1
    if not spikes.steps:
        say(f"{args.spikes} does not jump")
        return 1
    say(f"{args.spikes} jumps in {counted(len(spikes.steps), 'step')}")
    rows = [[f"{spike.step:,}", f"{spike.value:.6g}"] for spike in spikes.steps[: args.n]]
    terminal.print_columns([["step", args.spikes], *rows])
    for title, ranked in (("source", spikes.sources), ("file", spikes.files)):
        if len(ranked) > 1:
            rows = [
                [terminal.printable(name), f"{count:,}", f"{ratio:.2f}"]
                for name, count, ratio in ranked[: args.n]
            ]
            say("")
            terminal.print_columns([[title, "samples", "times as usual"], *rows], (1, 2))
    if spikes.samples:
        rows = [[f"{sample:,}", f"{count:,}"] for sample, count in spikes.samples[: args.n]]
        say("")
        terminal.print_columns([["sample", "spikes"], *rows], (0, 1))
    return 0


def _open(args: argparse.Namespace, record: Run, seen: list[SeenSample]) -> None:
    """Show the batches of samples in the viewer, until Ctrl-C."""
    from ..formats.registry import open as open_reader
    from ..tools.viewer.serve import Server
    from ..tools.viewer.session import Session
    from .view import run_server

    data, images = record.augmented(seen[: args.n])
    session = Session(open_reader(data, schema=images), title=f"{args.record}: as augmented")
    run_server(Server(session))
