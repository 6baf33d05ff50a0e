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
from ..tools.advise.advice import TRIAL_SECONDS, Proof, advise, prove
from ..tools.advise.trial import GOAL_METRICS, TrialResult
from ..tools.measure.timing import busy
from . import terminal
from .terminal import counted, human_size, printable

PROVE_SECONDS = 20.0
# The answer should come in ten seconds, with what opening and looking take.
LEAST_SECONDS = 3.0
INDENT = 12
# Of the formats that were not tried for one reason.
NAMED = 3


def add_args(parser: argparse.ArgumentParser) -> None:
    terminal.add_source(parser)
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
    group = parser.add_argument_group("questions of the decision guide")
    for question in QUESTIONS:
        group.add_argument(f"--{question.name}", action="store_true", help=question.text.rstrip("?").lower())
    group.add_argument("--interop", metavar="NAME", help="a program that must read it, as spark or pytorch")
    group.add_argument("--ask", action="store_true", help="ask for what is not given, one by one")
    group = parser.add_argument_group("how")
    group.add_argument(
        "--explain", action="store_true", help="every rule, what it saw, and where to read more"
    )
    group.add_argument(
        "--prove", action="store_true", help="convert a sample, and compare with the prediction"
    )
    group.add_argument(
        "--seconds", type=float, metavar="S",
        help=f"how long formats may be tried (default {TRIAL_SECONDS:.0f}, less where opening takes long)",
    )  # fmt: skip
    group.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    answers = Answers(
        goal=args.goal, storage=args.storage, gpus=args.gpus, step_ms=args.step_ms,
        batch_size=args.batch_size, size=args.size, interop=args.interop,
        yes=frozenset(
            question.name for question in QUESTIONS if getattr(args, question.name.replace("-", "_"))
        ),
        formats=tuple(terminal.names_of(args.formats)) if args.formats else (),
    )  # fmt: skip
    if args.ask:
        answers = _asked(answers)
    quiet = args.quiet or args.json
    began, load = time.monotonic(), busy()
    with terminal.open_source(args) as reader:
        opening = time.monotonic() - began
        seconds = max(LEAST_SECONDS, TRIAL_SECONDS - opening) if args.seconds is None else args.seconds
        with terminal.progress_bar("trying formats", quiet=quiet) as progress:
            advice = advise(
                reader, answers, seconds=seconds, named=args.source, reading=_reading(args),
                progress=progress,
            )  # fmt: skip
        proofs: list[Proof] = []
        if args.prove:
            with terminal.progress_bar("measuring", quiet=quiet) as progress:
                proofs = prove(reader, advice, seconds=PROVE_SECONDS, progress=progress)
    if args.json:
        terminal.print_json(
            advice.to_json() | ({"proof": [proof.to_json() for proof in proofs]} if args.prove else {})
        )
        return 0
    _print(advice, proofs, load)
    if args.explain:
        _explain(advice)
    return 0


def _reading(args: argparse.Namespace) -> list[str]:
    """The flags that open the source, for the commands."""
    flags = [("--format", args.format), ("--skip", args.skip), ("--where", args.where)]
    options = [("--option", option_text) for option_text in args.option]
    return [word for name, value in [*flags, *options] if value for word in (name, value)]


def _asked(answers: Answers) -> Answers:
    """The questions that no flag answered, asked one by one."""
    if not sys.stdin.isatty():
        raise OptionError("--ask needs a terminal; give the answers as flags")
    yes = set(answers.yes)
    for question in QUESTIONS:
        if question.name not in yes and input(f"{question.text} [y/N] ").strip().lower() in ("y", "yes"):
            yes.add(question.name)
    interop = answers.interop or input("Which program must read it? [none] ").strip() or None
    return dataclasses.replace(answers, yes=frozenset(yes), interop=interop)


def _print(advice: Advice, proofs: list[Proof], load: str | None) -> None:
    facts, machine, best = advice.facts, advice.machine, advice.best
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
    if advice.reason:
        _row("because", advice.reason)
    for name, value in _settings(advice):
        _row("", f"{name}: {value}")
    for line in advice.unmet:
        _row("but", f"no format that holds these fields can also {line}")
    _row("goal", f"{advice.answers.goal}: {GOAL_METRICS[advice.answers.goal][2]}")
    _row("predicted", _predicted(best, advice))
    if advice.now is not None and not unchanged and advice.now.value is not None:
        _row("now", _short(advice.now, advice))
    _row("bottleneck", best.prediction.bottleneck + _enough(advice))
    warned = [seen.message for _, seen in advice.rules if seen.applies and seen.is_warning]
    for number, line in enumerate(warned):
        _row("" if number else "beware", line)
    if advice.alternatives:
        print()
    for number, alternative in enumerate(advice.alternatives):
        _row(
            "" if number else "or",
            f"{alternative.option.label}: {_short(alternative, advice)}  ({alternative.price})",
        )
    if advice.not_tried:
        _row("not tried", "; ".join(f"{why}: {_some(names)}" for why, names in advice.not_tried.items()))
    for number, proof in enumerate(proofs):
        if not number:
            print()
        _row("" if number else "proved", f"{proof.label}, {counted(proof.samples)}")
        for line in proof.lines():
            _row("", f"  {line}")
    print()
    for line in advice.commands:
        # As it is: a line that is broken cannot be pasted.
        print(f"  {printable(line)}")
    if advice.answers.goal in ("train", "stream"):
        print()
        for line in advice.loop.splitlines():
            print(f"  {printable(line)}" if line else "")


def _some(names: Sequence[str]) -> str:
    hidden = len(names) - NAMED
    return ", ".join(names[:NAMED]) + (f" and {hidden} more" if hidden > 0 else "")


def _row(name: str, text: str, indent: int = INDENT) -> None:
    """A name and what is said of it, wrapped beside it."""
    room = max(20, terminal.console().width - indent - 1)
    for number, line in enumerate(textwrap.wrap(printable(text), room, break_on_hyphens=False) or [""]):
        print(f"{name if number == 0 else '':<{indent}}{line}")


def _settings(advice: Advice) -> list[tuple[str, Any]]:
    """Settings besides the storage option itself."""
    named: dict[str, tuple[str, Callable[[Any], str]]] = {
        "shard_size": ("shard size", human_size), "shuffle": ("shuffled", lambda _: "once, when written"),
        "order": ("order", str), "workers": ("workers", str), "prefetch_batches": ("prefetch_batches", str),
        "cache": ("cache", lambda _: "on the local disk"),
    }  # fmt: skip
    skipped = ("shard_size", "shuffle") if advice.best.option.unchanged else ()
    return [
        (label, show(advice.settings[name]))
        for name, (label, show) in named.items()
        if name in advice.settings and name not in skipped
    ]


def _predicted(result: TrialResult, advice: Advice) -> str:
    text = [_short(result, advice)]
    first = result.prediction.first
    if first is not None and result.prediction.rate is not None and first < 0.95 * result.prediction.rate:
        text.append(f"at first {_speed(first, advice)}")
    if not result.option.unchanged:
        text.append(f"conversion {_duration(result.prediction.seconds)}")
    return ", ".join(text)


def _short(result: TrialResult, advice: Advice) -> str:
    text = [_speed(result.prediction.rate, advice)] if result.prediction.rate else []
    return ", ".join([*text, f"{human_size(result.prediction.bytes)} on disk"])


def _speed(rate: float, advice: Advice) -> str:
    if advice.answers.goal != "analyse":
        return f"{rate:,.0f} samples/s"
    # Nobody reads millions of rows a second as a speed; the time of a query is what is felt.
    return f"a column of {counted(advice.facts.samples, 'row')} in {_duration(advice.facts.samples / rate)}"


def _enough(advice: Advice) -> str:
    needed, rate = advice.prediction.needed, advice.prediction.rate
    if needed is None or rate is None:
        return ""
    text = "enough comes" if rate >= needed else f"{rate / needed:.0%} of that comes"
    return f"; the GPUs take {needed:,.0f} samples/s, {text}"


def _duration(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1e3:.0f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2g} ms"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _explain(advice: Advice) -> None:
    """Every rule; those that apply are marked."""
    print("\nrules (+ applies)")
    for rule, seen in advice.rules:
        print(f"{'+' if seen.applies else ' '} {rule.name}")
        for line in (rule.sentence, f"saw: {seen.message}", rule.doc):
            _row("", line, 4)
    if advice.left_out:
        print("\nformats that were left out")
    for name, why in advice.left_out.items():
        _row("", f"{name}: {why}", 4)
