"""`bench shuffle` of a mixture: how well its sources are mixed, and each is shuffled."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from ...data.mix import Mix
from ...errors import OptionError
from ...order import quality
from ...schema.columns import I64
from ...tools import Document
from ...tools.measure import figures
from ..terminal import console, open_source, show_result

PLANS = (".yaml", ".yml", ".toml")
ORDERS = ("sequential", "shards", "quasi_random", "random")
# Sources that are looked at, those with the most samples first.
SOURCES = 64
DOTS = 4000


def mixture_of(args: argparse.Namespace) -> Mix | None:
    """The mixture that was asked for: of a plan, or of several datasets with weights."""
    if args.weights is None:
        if len(args.source) != 1 or Path(args.source[0]).suffix.lower() not in PLANS:
            return None
        return Mix.from_file(args.source[0])
    try:
        weights = [float(weight) for weight in args.weights.split(",")]
    except ValueError:
        raise OptionError(f"--weights are numbers, such as 0.7,0.3, not {args.weights!r}") from None
    if len(weights) != len(args.source):
        raise OptionError(f"there are {len(args.source)} datasets, but {len(weights)} weights")
    readers = []
    for text in args.source:
        readers.append(open_source(argparse.Namespace(**{**vars(args), "source": [text]})))
    return Mix(list(zip(readers, weights, strict=True)), stop="all")


def compare(mix: Mix, args: argparse.Namespace) -> int:
    count = min(args.limit, mix.blend.length)
    source = mix.blend.at(np.arange(count))[0]
    weights = _Weights(mix, count)
    # What loaders do that draw the source of every sample by itself.
    drawn = _drawn(weights, args.seed)
    chosen = np.argsort(-np.bincount(source, minlength=len(mix.names)), kind="stable")[:SOURCES]
    result: Document = {
        "path": mix.path, "positions": count, "of positions": mix.blend.length, "batch size": args.batch_size,
        "sources": {mix.names[number]: _judge(number, source, drawn, weights) for number in chosen.tolist()},
        "of sources": len(mix.names),
        "source entropy": {
            name: quality.batch_entropy(codes, args.batch_size) / (quality.entropy(codes) or 1.0)
            for name, codes in (("mixture", source), ("drawn", drawn))
        },
        "orders": _orders(mix, count, source, chosen, args),
    }  # fmt: skip
    show_result(
        args, result, lambda: _print(result), lambda: _draw(result, mix, source, drawn, weights, args)
    )
    return 0


class _Weights:
    """The weights at every position: they change where the schedule says, or a source leaves."""

    def __init__(self, mix: Mix, count: int) -> None:
        self.starts = mix.blend.starts(count)
        self.sizes = np.diff([*self.starts, count])
        self.parts = [mix.weights(start) for start in self.starts]

    def of(self, source: int) -> Any:
        return np.repeat([part[source] for part in self.parts], self.sizes)


def _drawn(weights: _Weights, seed: int) -> I64:
    rng = np.random.default_rng(seed)
    parts = [
        rng.choice(len(part), size, p=part / part.sum())
        for part, size in zip(weights.parts, weights.sizes, strict=True)
    ]
    return np.concatenate(parts)


def _judge(number: int, source: I64, drawn: I64, weights: _Weights) -> Document:
    source_weights = weights.of(number)
    result: Document = {"weight": float(source_weights.mean()), "samples": int((source == number).sum())}
    for name, codes in (("mixture", source), ("drawn", drawn)):
        off = np.abs(quality.share_deviation(codes == number, source_weights))
        result[name] = {
            "most off": float(off.max(initial=0)),
            "mean off": float(off.mean()),
            "in a row": quality.longest_run(codes == number),
        }
    return result


def _orders(
    mix: Mix, count: int, source: I64, chosen: I64, args: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Randomness of the samples of sources by order, the mean over sources that have some."""
    result = {}
    for name in ORDERS:
        options = {"window": args.cache} if name == "quasi_random" else {}
        try:
            order = mix.epoch_order(name, seed=args.seed, epoch=0, **options)
            samples = order[:count]
        except OptionError:
            # A source that names no blocks.
            continue
        rows = []
        for number in chosen.tolist():
            numbers = mix.origin(samples[source == number][: int(mix.sizes_of_sources[number])])[1]
            if len(numbers) > 1:
                # Of a source that is not through, the ranks of those that came.
                ranks = np.argsort(np.argsort(numbers, kind="stable"), kind="stable")
                rows.append((
                    quality.displacement(ranks), quality.spread(ranks), quality.kept_neighbours(numbers)
                ))  # fmt: skip
        values = np.mean(rows, axis=0) if rows else np.zeros(3)
        result[name] = dict(zip(("moved", "apart", "neighbours"), values.tolist(), strict=True))
    return result


def _print(result: Document) -> None:
    limited = "" if result["positions"] == result["of positions"] else " of an epoch"
    print(
        f"{result['path']}: {result['positions']:,} positions{limited}, "
        f"{result['of sources']:,} sources, batches of {result['batch size']:,}\n"
    )
    table = figures.table(
        "source", "weight", "samples", "most off", "(drawn)", "mean", "(drawn)", "in a row", "(drawn)"
    )
    for name, row in result["sources"].items():
        ours, drawn = row["mixture"], row["drawn"]
        table.add_row(
            name if len(name) <= 20 else "…" + name[-19:], f"{row['weight']:.2%}", f"{row['samples']:,}",
            f"{ours['most off']:.2f}", f"{drawn['most off']:,.1f}", f"{ours['mean off']:.2f}",
            f"{drawn['mean off']:,.1f}", f"{ours['in a row']:,}", f"{drawn['in a row']:,}",
        )  # fmt: skip
    console().print(table)
    if len(result["sources"]) < result["of sources"]:
        print(f"(the {len(result['sources'])} that come most often)")
    entropy = result["source entropy"]
    print(
        f"\nsource entropy of a batch: {entropy['mixture']:.1%} of the mixture's "
        f"(drawn: {entropy['drawn']:.1%})\n"
    )
    table = figures.table("within a source", "moved", "apart", "neighbours")
    for name, row in result["orders"].items():
        table.add_row(name, f"{row['moved']:.2f}", f"{row['apart']:.2f}", f"{row['neighbours']:.1%}")
    console().print(table)


def _draw(
    result: Document, mix: Mix, source: I64, drawn: I64, weights: _Weights, args: argparse.Namespace
) -> figures.Figure:
    """Lead of sources over their weights along the run, and the samples by position."""
    figure = figures.blank(9.0, 5.6)
    off, dots = figure.subplots(2, 1)
    names = list(result["sources"])[: len(figures.COLOURS) - 1]
    count = len(source)
    positions = np.unique(np.linspace(0, count - 1, min(DOTS, count)).astype(np.int64))
    samples = mix.epoch_order("random", seed=args.seed, epoch=0).take(positions)
    numbers, samples_in_source, _ = mix.origin(samples)
    for name, colour in zip(names, figures.COLOURS, strict=False):
        number = mix.names.index(name)
        source_weights = weights.of(number)
        chance = quality.share_deviation(drawn == number, source_weights)
        off.plot(positions, chance[positions], color=colour, linewidth=0.9, linestyle=":")
        off.plot(
            positions,
            quality.share_deviation(source == number, source_weights)[positions],
            color=colour,
            linewidth=1.2,
            label=name,
        )
        rows, last = numbers == number, max(int(mix.sizes_of_sources[number]) - 1, 1)
        dots.plot(
            positions[rows],
            samples_in_source[rows] / last,
            ".",
            markersize=1.6,
            color=colour,
            rasterized=True,
        )
    off.set_title("samples ahead of weight × position (dotted: sources drawn at random)", fontsize=9)
    off.legend(fontsize=8, loc="upper left", framealpha=0.8, edgecolor="none", ncols=4)
    dots.set_title(
        "which sample of its source comes, from the first to the last, in random order", fontsize=9
    )
    dots.set_xlabel("position", fontsize=8)
    for axes in (off, dots):
        axes.set_xlim(0, count)
        figures.in_thousands(axes.xaxis)
        figures.tidy(axes)
    figure.suptitle(f"{count:,} positions of {result['of sources']:,} sources", fontsize=10)
    return figure
