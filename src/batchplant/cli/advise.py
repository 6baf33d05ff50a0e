"""Say which format and settings suit a dataset, this machine and a goal, and prove it.

examples:
  batchplant advise photos/
  batchplant advise photos/ --goal train --gpus 4 --step-ms 120 --explain
  batchplant advise table.csv --goal analyse --prove
  batchplant advise train.parquet --goal archive --safety --small
  batchplant advise s3://bucket/train.tar --goal stream --interop pytorch
  batchplant advise photos/ --ask   (answer the questions of the decision guide)

It looks at some samples, tries the formats that come into question on them, and prints the commands that
carry the advice out. --prove converts more samples and prints what was predicted beside what was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..errors import OptionError
from ..tools.advise import GOALS, QUESTIONS, STORAGES, Advice, Answers
from ..tools.advise.advice import TRIAL_SECONDS, advise
from ..tools.advise.contest import TrialResult
from ..tools.advise.prove import Proof, prove
from ..tools.advise.trial import GOAL_METRICS
from ..tools.measure.machine import busy
from .terminal import (
    add_source,
    console,
    counted,
    human_size,
    names_of,
    open_source,
    print_json,
    printable,
    progress_bar,
)

PROVE_SECONDS = 20.0
# The answer should come in ten seconds, with what opening and looking take.
LEAST_SECONDS = 3.0
INDENT = 12
# Of the formats that were not tried for one reason.
NAMED = 3


def add_args(parser: argparse.ArgumentParser) -> None:
    add_source(parser)
    parser.add_argument("--goal", choices=GOALS, default="train", help="what it is for (default train)")
    parser.add_argument(
        "--storage", choices=STORAGES, help="where it will be read from (default: where it lies now)"
    )
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="how many train on it (default 1)")
    parser.add_argument("--step-ms", type=float, metavar="T", help="how long a GPU works on a batch")
    parser.add_argument("--batch-size", type=int, default=256, metavar="N", help="of one GPU (default 256)")
    parser.add_argument(
        "--size",
        type=int,
        metavar="PX",
        help="of images in a batch (default 224, or less where the images are smaller)",
    )
    parser.add_argument("--formats", metavar="A,B", help="try only these")
    asked = parser.add_argument_group("questions of the decision guide")
    for one in QUESTIONS:
        asked.add_argument(f"--{one.name}", action="store_true", help=one.text.rstrip("?").lower())
    asked.add_argument("--interop", metavar="NAME", help="a program that must read it, as spark or pytorch")
    asked.add_argument("--ask", action="store_true", help="ask for what is not given, one by one")
    how = parser.add_argument_group("how")
    how.add_argument("--explain", action="store_true", help="every rule, what it saw, and where to read more")
    how.add_argument("--prove", action="store_true", help="convert a sample, and compare with the prediction")
    how.add_argument(
        "--seconds", type=float, metavar="S",
        help=f"how long formats may be tried (default {TRIAL_SECONDS:.0f}, less where opening takes long)",
    )  # fmt: skip
    how.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    answers = Answers(
        goal=args.goal, storage=args.storage, gpus=args.gpus, step_ms=args.step_ms,
        batch_size=args.batch_size, size=args.size, interop=args.interop,
        yes=frozenset(one.name for one in QUESTIONS if getattr(args, one.name.replace("-", "_"))),
        formats=tuple(names_of(args.formats)) if args.formats else (),
    )  # fmt: skip
    if args.ask:
        answers = _asked(answers)
    quiet = args.quiet or args.json
    began, load = time.monotonic(), busy()
    with open_source(args) as reader:
        opening = time.monotonic() - began
        seconds = max(LEAST_SECONDS, TRIAL_SECONDS - opening) if args.seconds is None else args.seconds
        with progress_bar("trying formats", quiet=quiet) as progress:
            found = advise(
                reader, answers, seconds=seconds, named=args.source, reading=_reading(args),
                progress=progress,
            )  # fmt: skip
        proofs: list[Proof] = []
        if args.prove:
            with progress_bar("measuring", quiet=quiet) as progress:
                proofs = prove(reader, found, seconds=PROVE_SECONDS, progress=progress)
    if args.json:
        print_json(found.to_json() | ({"proof": [one.to_json() for one in proofs]} if args.prove else {}))
        return 0
    _print(found, proofs, load)
    if args.explain:
        _explain(found)
    return 0


def _reading(args: argparse.Namespace) -> list[str]:
    """The flags that open the source, for the commands."""
    flags = [("--format", args.format), ("--skip", args.skip), ("--where", args.where)]
    options = [("--option", one) for one in args.option]
    return [word for name, value in [*flags, *options] if value for word in (name, value)]


def _asked(answers: Answers) -> Answers:
    """The questions that no flag answered, asked one by one."""
    if not sys.stdin.isatty():
        raise OptionError("--ask needs a terminal; give the answers as flags")
    yes = set(answers.yes)
    for one in QUESTIONS:
        if one.name not in yes and input(f"{one.text} [y/N] ").strip().lower() in ("y", "yes"):
            yes.add(one.name)
    interop = answers.interop or input("Which program must read it? [none] ").strip() or None
    return dataclasses.replace(answers, yes=frozenset(yes), interop=interop)


def _print(found: Advice, proofs: list[Proof], load: str | None) -> None:
    facts, machine, best = found.facts, found.machine, found.best
    size = f"{'about ' if facts.estimated else ''}{human_size(facts.bytes)}"
    speed = f"{machine.read_mb_s:,.0f} MB/s {'measured' if machine.measured else 'assumed'}"
    _row("dataset", f"{facts.format}, {counted(facts.samples)}, {size} in {counted(facts.files, 'file')}")
    _row("looked at", f"{counted(facts.looked_at)} spread over it, {facts.seconds:.1f} s")
    gpus = f", {len(machine.gpus)} × {machine.gpus[0]}" if machine.gpus else ""
    _row(
        "machine",
        f"{counted(machine.cores, 'core')}, {human_size(machine.memory)}{gpus}, {machine.storage} {speed}",
    )
    if load is not None:
        _row("busy", f"{load}: speeds are computed from CPU time, for the machine without that load")
    print()
    unchanged = best.option.unchanged
    _row(
        "advice",
        f"leave it as it is ({best.option.format})" if unchanged else f"convert it to {best.option.label}",
    )
    if found.reason:
        _row("because", found.reason)
    for name, value in _settings(found):
        _row("", f"{name}: {value}")
    for line in found.unmet:
        _row("but", f"no format that holds these fields can also {line}")
    _row("goal", f"{found.answers.goal}: {GOAL_METRICS[found.answers.goal][2]}")
    _row("predicted", _predicted(best, found))
    if found.now is not None and not unchanged and found.now.value is not None:
        _row("now", _short(found.now, found))
    _row("bottleneck", best.prediction.bottleneck + _enough(found))
    warned = [seen.message for _, seen in found.rules if seen.applies and seen.is_warning]
    for number, line in enumerate(warned):
        _row("" if number else "beware", line)
    if found.alternatives:
        print()
    for number, one in enumerate(found.alternatives):
        _row("" if number else "or", f"{one.option.label}: {_short(one, found)}  ({one.price})")
    if found.not_tried:
        _row("not tried", "; ".join(f"{why}: {_some(names)}" for why, names in found.not_tried.items()))
    for number, proof in enumerate(proofs):
        if not number:
            print()
        _row("" if number else "proved", f"{proof.label}, {counted(proof.samples)}")
        for line in proof.lines():
            _row("", f"  {line}")
    print()
    for line in found.commands:
        # As it is: a line that is broken cannot be pasted.
        print(f"  {printable(line)}")
    if found.answers.goal in ("train", "stream"):
        print()
        for line in found.loop.splitlines():
            print(f"  {printable(line)}" if line else "")


def _some(names: Sequence[str]) -> str:
    more = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {more} more" if more > 0 else "")


def _row(name: str, said: str, indent: int = INDENT) -> None:
    """A name and what is said of it, wrapped beside it."""
    room = max(20, console().width - indent - 1)
    for number, line in enumerate(textwrap.wrap(printable(said), room, break_on_hyphens=False) or [""]):
        print(f"{name if number == 0 else '':<{indent}}{line}")


def _settings(found: Advice) -> list[tuple[str, Any]]:
    """What is set besides the way itself."""
    named: dict[str, tuple[str, Callable[[Any], str]]] = {
        "shard_size": ("shard size", human_size), "shuffle": ("shuffled", lambda _: "once, when written"),
        "order": ("order", str), "workers": ("workers", str), "prefetch_batches": ("prefetch_batches", str),
        "cache": ("cache", lambda _: "on the local disk"),
    }  # fmt: skip
    skipped = ("shard_size", "shuffle") if found.best.option.unchanged else ()
    return [
        (label, show(found.settings[name]))
        for name, (label, show) in named.items()
        if name in found.settings and name not in skipped
    ]


def _predicted(one: TrialResult, found: Advice) -> str:
    said = [_short(one, found)]
    first = one.prediction.first
    if first is not None and one.prediction.rate is not None and first < 0.95 * one.prediction.rate:
        said.append(f"at first {_speed(first, found)}")
    if not one.option.unchanged:
        said.append(f"conversion {_duration(one.prediction.seconds)}")
    return ", ".join(said)


def _short(one: TrialResult, found: Advice) -> str:
    said = [_speed(one.prediction.rate, found)] if one.prediction.rate else []
    return ", ".join([*said, f"{human_size(one.prediction.bytes)} on disk"])


def _speed(rate: float, found: Advice) -> str:
    if found.answers.goal != "analyse":
        return f"{rate:,.0f} samples/s"
    # Nobody reads millions of rows a second as a speed; the time of a query is what is felt.
    return f"a column of {counted(found.facts.samples, 'row')} in {_duration(found.facts.samples / rate)}"


def _enough(found: Advice) -> str:
    needed, rate = found.prediction.needed, found.prediction.rate
    if needed is None or rate is None:
        return ""
    said = "enough comes" if rate >= needed else f"{rate / needed:.0%} of that comes"
    return f"; the GPUs take {needed:,.0f} samples/s, {said}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _explain(found: Advice) -> None:
    """Every rule; those that apply are marked."""
    print("\nrules (+ applies)")
    for rule, seen in found.rules:
        print(f"{'+' if seen.applies else ' '} {rule.name}")
        for line in (rule.sentence, f"saw: {seen.message}", rule.doc):
            _row("", line, 4)
    if found.left_out:
        print("\nformats that were left out")
    for name, why in found.left_out.items():
        _row("", f"{name}: {why}", 4)
