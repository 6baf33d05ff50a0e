"""Say what a training run over a mixture will see, from a plan: tokens, repeats, rows, per rank.

examples:
  batchplant mix --example > plan.yaml             (a plan to start from)
  batchplant mix plan.yaml --dry-run
  batchplant mix plan.yaml --dry-run --world-size 64 --steps 100000
  batchplant mix plan.yaml --dry-run --by tokens   (weights count tokens, not documents)
  batchplant mix plan.yaml --dry-run --figure mix.png
  batchplant mix plan.yaml --dry-run --json

Nothing is read but indices, and nothing is written: the command is always a dry run, and --dry-run only says
so. The run itself is `batchplant.Loader.from_file("plan.yaml")`, or a Loader of
`batchplant.Mix.from_file("plan.yaml")`; both give exactly what is said here.

A plan (.yaml, .toml, .json) names sources with paths and weights, and may have: schedule, temperature, step,
stop, max_repeats, fields, seed, by; batch_size, order, drop_last, pack, steps, world_size. `--example`
explains them. Weights count samples. Where these are documents, the share of tokens is another one, which
is shown too; `by: tokens` in the plan, or --by tokens, makes weights count tokens.
Where a format does not know how long its documents are, some of them are read, and the output says so.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from ..data import mix_config as mixplan
from ..data.mix import Mix
from ..errors import OptionError
from ..loading.packing import pack_of
from ..tools.measure import figures
from ..tools.measure.mixing import DryRun, draw, dry_run
from .terminal import add_quiet, console, counted, progress_bar, show_result, wrapped

# Rows of a table; of more, the first, and what the others come to.
SHOWN, RANKS = 40, 8


def add_args(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN", nargs="?", help="a file: .yaml, .toml or .json")
    parser.add_argument("--dry-run", action="store_true", help="what it does anyway")
    parser.add_argument(
        "--world-size", type=int, metavar="N", help="processes that train (default: the plan's, or 1)"
    )
    parser.add_argument(
        "--steps", type=int, metavar="N", help="of the run (default: the plan's, or an epoch)"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="of a process (default: the plan's)")
    parser.add_argument(
        "--by", metavar="WHAT", help="what weights count: samples, or a field of tokens (default: the plan's)"
    )
    parser.add_argument("--example", action="store_true", help="print a plan to start from")
    parser.add_argument("--figure", metavar="FILE", help="draw the schedule into a .png, .svg or .pdf")
    add_quiet(parser)


def run(args: argparse.Namespace) -> int:
    if args.example:
        print(mixplan.EXAMPLE, end="")
        return 0
    if args.plan is None:
        raise OptionError("which plan? `batchplant mix --example > plan.yaml` makes one to start from")
    for name in ("world_size", "steps", "batch_size"):
        value = getattr(args, name)
        if value is not None and not 1 <= value <= 2**40:
            raise OptionError(f"--{name.replace('_', '-')} is at least 1, not {value}")
    figures.check(args.figure)
    plan = mixplan.read(args.plan)
    pack = pack_of(plan)
    loading = {**plan.loading, **_given(args)}
    if "batch_size" not in loading:
        raise OptionError("how large are batches? give batch_size, there or as --batch-size", path=plan.path)
    options = {**plan.options, **({} if args.by is None else {"by": args.by})}
    mix = plan.located(lambda: Mix(plan.open(), **options))
    with mix, progress_bar("planning", quiet=args.quiet or args.json) as progress:
        dry = plan.located(lambda: dry_run(mix, pack=pack, progress=progress, **loading))
    length = None if pack is None else pack.length
    said = {
        "plan": plan.path, "order": loading["order"], "seed": mix.seed,
        "by": options.get("by", "samples"), "length": length, **dry.as_dict(),
    }  # fmt: skip
    show_result(
        args, said, lambda: _print(plan.path, dry, length, loading, mix.seed), lambda: draw(dry, length)
    )
    return 0


def _given(args: argparse.Namespace) -> dict[str, Any]:
    names = ("world_size", "steps", "batch_size")
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}


def _print(path: str, dry: DryRun, length: int | None, loading: Mapping[str, Any], seed: int) -> None:
    unit = "rows" if length else "samples"
    wrapped(
        f"{path}: {counted(len(dry.sources), 'source')}, order {loading['order']}, seed {seed}; "
        f"{counted(dry.world_size, 'rank')}, {dry.batch_size:,} {unit} each at every step"
    )
    wrapped(_whole(dry, length, loading.get("steps")))
    print()
    console().print(_sources(dry))
    if dry.changes:
        print()
        console().print(_changes(dry))
    print()
    console().print(_ranks(dry, unit))
    hints = list(_hints(dry))
    if hints or dry.estimated:
        print()
    for hint in hints:
        wrapped(f"note: {hint}")
    for source in dry.estimated:
        wrapped(f"estimated (≈): {source}")


def _whole(dry: DryRun, length: int | None, requested: int | None) -> str:
    about = "≈ " if dry.estimated else ""
    parts = [f"{dry.samples:,} samples"]
    if dry.tokens is not None:
        parts.append(f"{about}{_short(dry.tokens)} tokens")
    if length:
        parts.append(f"in {about}{counted(dry.rows, 'row')} of {length:,}, {about}{dry.fill or 0:.1%} full")
    ended = dry.epoch_steps is not None
    span = "an epoch" if ended else "the run"
    text = f"{span}: {counted(dry.steps, 'step')}; {', '.join(parts)}"
    if ended and requested and dry.epoch_steps and requested > dry.epoch_steps:
        text += (
            f"\n{requested:,} steps are {requested / dry.epoch_steps:.2f} epochs, each in an order of its own"
        )
    return text


def _sources(dry: DryRun) -> Any:
    has_tokens = dry.tokens is not None
    heads = [
        "source",
        "weight",
        "samples",
        "passes",
        *(["tokens", "of all"] if has_tokens else []),
        "first",
        "last",
    ]
    table = figures.table(*heads)
    ordered = dry.sources
    if len(ordered) > SHOWN:
        ordered = sorted(ordered, key=lambda source: -source.samples)
    for source in ordered[:SHOWN]:
        _row(
            table,
            source.name,
            source.weight,
            source.samples,
            source.passes,
            source.tokens,
            dry,
            source.first,
            source.last,
        )
    if len(ordered) > SHOWN:
        folded = ordered[SHOWN:]
        tokens = sum(source.tokens or 0 for source in folded) if has_tokens else None
        passes = sum(source.samples for source in folded) / max(sum(source.size for source in folded), 1)
        firsts = [source.first for source in folded if source.first >= 0]
        _row(
            table, f"{len(folded):,} others", sum(source.weight for source in folded),
            sum(source.samples for source in folded),
            passes, tokens, dry, min(firsts, default=-1), max(source.last for source in folded),
        )  # fmt: skip
    return table


def _row(
    table: Any, name: str, weight: float, samples: int, passes: float, tokens: int | None, dry: DryRun,
    first: int, last: int,
) -> None:  # fmt: skip
    share = [] if tokens is None else [_short(tokens), f"{tokens / max(dry.tokens or 1, 1):.1%}"]
    places = ["–" if step < 0 else f"{step:,}" for step in (first, last)]
    table.add_row(_cut(name), f"{weight:.2%}", f"{samples:,}", f"{passes:,.2f}", *share, *places)


def _cut(name: str, max_letters: int = 24) -> str:
    return name if len(name) <= max_letters else "…" + name[1 - max_letters :]


def _changes(dry: DryRun) -> Any:
    """The weights in every part of the schedule, of the sources that have most of them."""
    shown = sorted(range(len(dry.sources)), key=lambda number: -dry.weights[:, number].max())[:4]
    names = [_cut(dry.sources[number].name, 14) for number in sorted(shown)]
    table = figures.table("about step", "position", *names)
    starts = [(0, 0), *dry.changes]
    for position, step in starts[:SHOWN]:
        row = dry.weights[dry.positions.searchsorted(position)]
        table.add_row(f"{step:,}", f"{position:,}", *(f"{row[number]:.2%}" for number in sorted(shown)))
    return table


def _ranks(dry: DryRun, unit: str) -> Any:
    has_tokens, packed = dry.tokens is not None, dry.fill is not None
    table = figures.table(
        "rank", "steps", unit, *(["tokens"] if has_tokens else []), *(["fill"] if packed else [])
    )

    def row(name: str, rank: Any) -> None:
        tokens = [f"{rank.tokens:,}"] if has_tokens else []
        table.add_row(
            name, f"{rank.steps:,}", f"{rank.rows:,}", *tokens, *([f"{rank.fill or 0:.2%}"] if packed else [])
        )

    if len(dry.ranks) <= RANKS:
        for rank in dry.ranks:
            row(str(rank.rank), rank)
        return table
    key = (lambda rank: rank.tokens) if has_tokens else (lambda rank: rank.rows)
    row("least", min(dry.ranks, key=key))
    row("most", max(dry.ranks, key=key))
    return table


def _hints(dry: DryRun) -> Any:
    for source in dry.sources:
        if source.passes > 4:
            yield f"{source.name} is repeated {source.passes:,.1f} times; max_repeats bounds that"
    never = [source.name for source in dry.sources if not source.samples and source.weight]
    if never:
        yield f"{', '.join(never[:4])} never comes: the run is too short for its weight"
    if dry.overlong:
        yield f"{dry.overlong:,} documents are longer than a row (overlong: split, truncate or drop)"
    if dry.fill is not None and dry.fill < 0.95:
        yield f"rows are {dry.fill:.1%} full; a larger window, or concat_split, fills them better"


def _short(number: int) -> str:
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M")):
        if number >= size:
            return f"{number / size:.2f} {unit}"
    return f"{number:,}"
