"""Forecast of a run over a mixture from its plan and the lengths of documents: nothing is trained.

Who comes when is arithmetic. Rows of packed documents are planned as the loader plans them, window after
window, from lengths alone. Of very long runs some windows, evenly spread, stand for all of them; where a
format does not know how long documents are, some that are read stand for the others. ``estimated`` says so.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import order as orders
from ...data.mix import Mix
from ...data.reader import Reader
from ...data.sizes import are_known, sizes_of
from ...errors import OptionError
from ...loading.packing.documents import Pack, image_sizes, stored_ends
from ...loading.packing.rows import Window, plan_window
from ...order.keyed import derive, key_of
from ...schema import Tensor
from ...schema.columns import I64, dense_of
from .. import Document
from . import figures

# Positions of a window, where nothing is packed.
UNPACKED = 1 << 14
TOKENS = "tokens"
# Places of the curves.
CURVE = 400

Progress = Callable[[int, int], None]
F64 = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True)
class SourceSeen:
    """Share of a source in a run; ``first`` and ``last`` are positions, -1 where it is never drawn."""

    name: str
    size: int
    weight: float
    samples: int
    passes: float
    tokens: int | None
    first: int
    last: int


@dataclasses.dataclass(frozen=True)
class RankSeen:
    rank: int
    steps: int
    rows: int
    tokens: int | None
    fill: float | None


@dataclasses.dataclass(frozen=True)
class DryRun:
    """A run, or one epoch of it. Without packing, rows are samples, and a fill rate is None.

    epoch_steps: of a whole epoch, None where it has no end. changes: (position, step) at which weights
    change. at: steps along the run, ``positions`` there, and ``weights`` and ``passes`` of every source.
    """

    world_size: int
    batch_size: int
    steps: int
    epoch_steps: int | None
    samples: int
    rows: int
    tokens: int | None
    fill: float | None
    overlong: int
    sources: list[SourceSeen]
    ranks: list[RankSeen]
    changes: list[tuple[int, int]]
    estimated: list[str]
    at: F64 = dataclasses.field(repr=False)
    positions: F64 = dataclasses.field(repr=False)
    weights: F64 = dataclasses.field(repr=False)
    passes: F64 = dataclasses.field(repr=False)

    def as_dict(self) -> Document:
        fields = dataclasses.asdict(self)
        for name in ("at", "positions", "weights", "passes"):
            fields[name] = getattr(self, name).tolist()
        return fields


@dataclasses.dataclass(frozen=True, kw_only=True)
class DryRunTuning:
    """Limits of a forecast; what is beyond them is estimated."""

    # Positions of a longer run are not all looked at, but those of some windows.
    max_positions: int = 1 << 23
    sampled_windows: int = 512
    # Documents of a source that are read, where nothing else tells how long they are.
    read_documents: int = 512


class _Lengths:
    """Token counts of documents; ``guessed`` names the sources where they are estimated."""

    def __init__(self, mix: Mix, field: str | None, read_documents: int) -> None:
        self._mix, self.field, self._read_documents = mix, field, read_documents
        self.guessed: list[str] = []
        self._fixed: int | None = None
        self._samples: dict[int, I64] = {}
        if field is None:
            return
        kind = mix.schema[field]
        assert isinstance(kind, Tensor)
        self._width = np.dtype(kind.dtype).itemsize
        if dense_of(kind) is not None:
            self._fixed = int(kind.shape[0] or 0)
            return
        firsts = np.concatenate([[0], np.cumsum(mix.sizes_of_sources)])
        if mix.token_counts(np.zeros(0, np.int64), field) is not None:
            return
        comes = mix.weighted_sources
        for source, name in enumerate(mix.names):
            if comes[source] and not self._known(source):
                self._samples[source] = self._read(source, int(firsts[source]))
                if len(self._samples[source]) < mix.sizes_of_sources[source]:
                    self.guessed.append(name)

    def _known(self, source: int) -> bool:
        assert self.field is not None
        readers = getattr(self._mix.base, "readers", None)
        return are_known(self._mix.base if readers is None else readers[source], [self.field])

    def _read(self, source: int, first: int) -> I64:
        """The lengths of some documents of a source, all over it."""
        size = int(self._mix.sizes_of_sources[source])
        rows = first + np.unique(np.linspace(0, size - 1, min(size, self._read_documents)).astype(np.int64))
        return self._exact(rows)

    def _exact(self, samples: I64) -> I64:
        reader: Reader = self._mix
        assert self.field is not None
        return sizes_of(reader, [self.field], samples) // self._width

    def __call__(self, samples: I64) -> I64 | None:
        if self.field is None:
            return None
        if self._fixed is not None:
            return np.full(len(samples), self._fixed, dtype=np.int64)
        counted = self._mix.token_counts(samples, self.field)
        if counted is not None:
            return counted
        if not self._samples:
            return self._exact(samples)
        lengths_found = np.empty(len(samples), dtype=np.int64)
        source, number, _ = self._mix.origin(samples)
        drawn = derive(key_of(0, 0, 11), samples)
        unsampled = np.ones(len(samples), dtype=np.bool_)
        for sampled, lengths in self._samples.items():
            rows = source == sampled
            unsampled &= ~rows
            complete = len(lengths) == self._mix.sizes_of_sources[sampled]
            index = number[rows] if complete else (drawn[rows] % np.uint64(len(lengths))).astype(np.int64)
            lengths_found[rows] = lengths[index]
        if unsampled.any():
            lengths_found[unsampled] = self._exact(samples[unsampled])
        return lengths_found


class _Run:
    """Goes through windows of positions, as the loader does, and adds up what they come to."""

    def __init__(self, mix: Mix, pack: Pack | None, order: str, tuning: DryRunTuning) -> None:
        self.mix, self.pack, self.tuning = mix, pack, tuning
        self.order = mix.epoch_order(order, seed=0, epoch=0)
        self.lengths = _Lengths(mix, token_field(mix, pack), tuning.read_documents)
        self.images = None if pack is None else image_sizes(pack, mix)
        self.ends = None
        if pack is not None and pack.eos is not None:
            self.ends = stored_ends(mix, pack.field, pack.eos)
        self.size = UNPACKED if pack is None else pack.window
        self.samples = np.zeros(len(mix.names), dtype=np.int64)
        self.tokens = np.zeros(len(mix.names), dtype=np.int64)
        # After each window that was looked at: the position there, and the rows so far.
        self.positions, self.rows = [0], [0]
        self.row_tokens: list[I64] = []
        self.overlong, self.stride = 0, 1.0

    def go(self, needed: int | None, progress: Progress) -> None:
        """Until there are as many rows as are needed, or to the end of the epoch."""
        windows = -(-self.order.length // self.size)
        if needed is not None:
            windows = min(windows, self._windows_for(needed))
        numbers = np.arange(windows)
        if windows * self.size > self.tuning.max_positions:
            sampled = min(self.tuning.sampled_windows, windows)
            numbers = np.linspace(0, windows - 1, sampled).astype(np.int64)
            self.stride = windows / len(numbers)
        for done, number in enumerate(numbers.tolist()):
            remaining = None if needed is None or self.stride > 1 else needed - self.rows[-1]
            self._window(number, remaining)
            end = (done + 1) * self.stride * self.size
            self.positions.append(min(int(end), self.order.length))
            progress(done + 1, len(numbers))
            if needed is not None and self.rows[-1] >= needed:
                break
        if self.stride > 1:
            self._scale(needed)

    def _windows_for(self, needed: int) -> int:
        """More windows than so many rows take, going by the first."""
        if self.pack is None:
            return -(-needed // self.size)
        rows = len(self._packed(0).rows) - 1
        return 2 + 2 * needed // max(rows, 1)

    def _packed(self, number: int) -> Window:
        """A window as the loader packs it."""
        assert self.pack is not None
        samples = self.order[number * self.size : (number + 1) * self.size]
        sizes = self.lengths(samples)
        assert sizes is not None
        if self.ends is not None:
            sizes = sizes + ~self.ends(samples)
        if self.images is not None:
            sizes = sizes + self.images(samples)
        return plan_window(samples, sizes, self.pack)

    def _window(self, number: int, remaining: int | None) -> None:
        """Add what a window comes to, or its first rows."""
        count = len(self.samples)
        if self.pack is None:
            samples = self.order[number * self.size : (number + 1) * self.size][:remaining]
            source = self.mix.origin(samples)[0]
            lengths = self.lengths(samples)
            self.samples += np.bincount(source, minlength=count)
            if lengths is not None:
                self.tokens += np.bincount(source, weights=lengths, minlength=count).astype(np.int64)
                self.row_tokens.append(lengths)
            self.rows.append(self.rows[-1] + len(samples))
            return
        window = self._packed(number)
        rows = window.rows if remaining is None else window.rows[: remaining + 1]
        document, size = window.document[: rows[-1]], window.size[: rows[-1]]
        begins = document[window.start[: rows[-1]] == 0]
        source = self.mix.origin(window.samples)[0]
        self.samples += np.bincount(source[begins], minlength=count)
        self.tokens += np.bincount(source[document], weights=size, minlength=count).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(size)])
        self.row_tokens.append(np.diff(before[rows]))
        self.overlong += int(window.overlong[:remaining].sum())
        self.rows.append(self.rows[-1] + len(rows) - 1)

    def _scale(self, needed: int | None) -> None:
        """Scale the counts of the examined samples to all."""
        self.rows = [round(count * self.stride) for count in self.rows]
        self.overlong = round(self.overlong * self.stride)
        part = 1.0 if needed is None else min(1.0, needed / max(self.rows[-1], 1))
        self.tokens = np.round(self.tokens * self.stride * part).astype(np.int64)
        end = round(self.positions[-1] * part)
        self.samples = self.order.blend.counts(end)
        if needed is not None and self.rows[-1] > needed:
            self.rows[-1], self.positions[-1] = needed, end

    def row_of(self, position: float) -> float:
        """About which row the samples of a position are in."""
        return float(np.interp(position, self.positions, self.rows))


def token_field(mix: Mix, pack: Pack | None) -> str | None:
    """The field whose lengths count as tokens; None where there is none."""
    field = TOKENS if pack is None else pack.field
    kind = mix.schema.get(field)
    if isinstance(kind, Tensor) and len(kind.shape) == 1 and np.dtype(kind.dtype).kind in "iu":
        return field
    if pack is not None:
        message = f"there is {kind}" if kind is not None else f"there are {', '.join(mix.schema)}"
        raise OptionError(f"packing needs a field {field!r} of token numbers, and {message}")
    return None


def dry_run(
    mix: Mix,
    *,
    batch_size: int,
    world_size: int = 1,
    steps: int | None = None,
    pack: Pack | None = None,
    order: str = "random",
    drop_last: bool = False,
    progress: Progress = lambda done, total: None,
    tuning: DryRunTuning = DryRunTuning(),
) -> DryRun:
    """Forecast ``Loader(mix, batch_size, order=order, pack=pack)`` for ``world_size`` processes."""
    endless = mix.is_endless
    if endless and steps is None:
        raise OptionError("the mixture never ends: say how many steps the run has (steps)")
    run = _Run(mix, pack, order, tuning)
    run.go(None if steps is None else steps * world_size * batch_size, progress)
    rows = run.rows[-1]
    shard = _shard(rows, 0, world_size, batch_size, drop_last)
    count = shard.steps if steps is None else min(steps, shard.steps)
    ended = endless or (steps is not None and count == steps and run.positions[-1] < run.order.length)
    exact = run.stride == 1
    used = min(rows, count * world_size * batch_size) if drop_last else rows
    if exact and used < rows:
        # The rows of the last step that is not full are left out of what is counted.
        rows, run = used, _Run(mix, pack, order, tuning)
        run.go(used, progress)
    ranks = _ranks(run, rows, world_size, batch_size, drop_last, count, exact)
    has_lengths = run.lengths.field is not None
    total = int(run.tokens.sum())
    end = min(run.positions[-1], run.order.length)
    at, places = _places(run, end, world_size * batch_size)
    estimated = []
    if not exact:
        estimated.append(f"{len(run.positions) - 1:,} windows of {run.size:,} samples stand for all")
    if run.lengths.guessed:
        names = ", ".join(run.lengths.guessed[:4]) + (", …" if len(run.lengths.guessed) > 4 else "")
        estimated.append(f"lengths in {names}: {tuning.read_documents} documents of each were read")
    return DryRun(
        world_size=world_size, batch_size=batch_size, steps=count, epoch_steps=None if ended else shard.steps,
        samples=int(run.samples.sum()), rows=used, tokens=total if has_lengths else None,
        fill=None if pack is None or not rows else total / (rows * pack.length),
        overlong=run.overlong, sources=_sources(run, end, has_lengths), ranks=ranks,
        changes=[
            (start, int(run.row_of(start)) // (world_size * batch_size))
            for start in run.order.blend.starts(end)[1:]
        ],
        estimated=estimated, at=at, positions=places,
        weights=np.array([run.order.blend.weights(int(position)) for position in places]),
        passes=np.array([run.order.blend.passes(int(position)) for position in places]),
    )  # fmt: skip


def _shard(rows: int, rank: int, world_size: int, batch_size: int, drop_last: bool) -> orders.Shard:
    return orders.shard(
        orders.sequential(rows), rank=rank, world_size=world_size, batch_size=batch_size, drop_last=drop_last
    )


def _sources(run: _Run, end: int, has_lengths: bool) -> list[SourceSeen]:
    first, last = run.order.blend.span(end)
    weights, sizes = run.order.blend.weights(0), run.mix.sizes_of_sources
    return [
        SourceSeen(
            name, int(sizes[source]), float(weights[source]), int(run.samples[source]),
            float(run.samples[source] / max(sizes[source], 1)),
            int(run.tokens[source]) if has_lengths else None,
            int(first[source]), int(last[source]),
        )
        for source, name in enumerate(run.mix.names)
    ]  # fmt: skip


def _ranks(
    run: _Run, rows: int, world_size: int, batch_size: int, drop_last: bool, steps: int, exact: bool
) -> list[RankSeen]:
    tokens = np.concatenate([np.zeros(0, np.int64), *run.row_tokens]) if exact and run.row_tokens else None
    length = None if run.pack is None else run.pack.length
    sums = None if tokens is None else np.concatenate([[0], np.cumsum(tokens)])
    # All but the last steps are alike: the tokens of the rows of each rank, added up at once.
    full = max(min(steps, rows // (world_size * batch_size)) - 2, 0)
    head = np.zeros(world_size, dtype=np.int64)
    if tokens is not None and full:
        step_tokens = tokens[: full * world_size * batch_size].reshape(full, world_size, batch_size)
        head = step_tokens.sum(axis=(0, 2))
    ranks = []
    for rank in range(world_size):
        shard = _shard(rows, rank, world_size, batch_size, drop_last)
        mine, count = int(head[rank]), full * batch_size
        for step in range(full, steps):
            positions = shard.positions(step)
            assert isinstance(positions, range)
            count += len(positions)
            mine += 0 if sums is None else int(sums[positions.stop] - sums[positions.start])
        share = None if sums is None else mine
        if sums is None and run.lengths.field is not None:
            share = round(int(run.tokens.sum()) * count / max(rows, 1))
        fill = None if share is None or length is None or not count else share / (count * length)
        ranks.append(RankSeen(rank, steps, count, share, fill))
    return ranks


def _places(run: _Run, end: int, step: int) -> tuple[F64, F64]:
    """Steps along the run, and the positions there; on either side of where weights change."""
    borders = run.order.blend.starts(end)[1:]
    spread = np.linspace(0, end, CURVE)
    near = np.array(
        [position for border in borders[:CURVE] for position in (border - 1, border)], dtype=np.float64
    )
    places = np.unique(np.concatenate([spread, near]))
    steps = np.interp(places, run.positions, np.array(run.rows) / step)
    return steps, places


# Sources with a colour of their own; the others are one.
MAX_COLOURED_SOURCES = len(figures.COLOURS) - 1
# Of the width that is too narrow for a name.
NARROW = 0.05


def draw(run: DryRun, length: int | None) -> figures.Figure:
    """Weights over steps, stacked; how often each source was gone through; where the tokens come from."""
    figure = figures.blank(9.0, 5.6)
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 1), height_ratios=(3, 2))
    weights, passes = figure.add_subplot(grid[0, 0]), figure.add_subplot(grid[1, 0])
    shares = figure.add_subplot(grid[:, 1])
    order = sorted(range(len(run.sources)), key=lambda number: -run.sources[number].samples)
    parts = [([source], run.sources[source].name) for source in order[:MAX_COLOURED_SOURCES]]
    if len(order) > MAX_COLOURED_SOURCES:
        parts.append((order[MAX_COLOURED_SOURCES:], f"{len(order) - MAX_COLOURED_SOURCES:,} others"))
    colours = figures.COLOURS[: len(parts)]
    stacked = np.array([run.weights[:, rows].sum(axis=1) for rows, _ in parts]) * 100
    weights.stackplot(run.at, stacked, colors=colours, linewidth=0)
    weights.set_ylim(0, 100)
    weights.set_ylabel("% of samples", fontsize=8)
    weights.set_title("what comes", fontsize=9)
    for axes in (weights, passes):
        axes.set_xlim(0, max(float(run.at[-1]), 1e-9))
    for _, step in run.changes[:20]:
        weights.axvline(step, color="white", linewidth=0.8, linestyle=":")
    for (rows, _), colour in zip(parts, colours, strict=True):
        size = sum(run.sources[source].size for source in rows)
        seen = sum(run.passes[:, source] * run.sources[source].size for source in rows) / max(size, 1)
        passes.plot(run.at, seen, color=colour, linewidth=1.6)
    passes.set_ylim(bottom=0)
    passes.axhline(1, color=figures.GREY, linewidth=0.8, linestyle=":")
    passes.set_xlabel("step", fontsize=8)
    passes.set_title("how often each source was gone through", fontsize=9)
    for axis in (weights.xaxis, passes.xaxis):
        figures.in_thousands(axis)
    _draw_shares(shares, run, parts, colours)
    for axes in (weights, passes, shares):
        figures.tidy(axes)
    figure.suptitle(_title(run, length), fontsize=10)
    return figure


def _draw_shares(axes: figures.Axes, run: DryRun, parts: list[Any], colours: Any) -> None:
    """Samples beside tokens: long documents weigh more than their number says."""
    columns = [("samples", [source.samples for source in run.sources])]
    if run.tokens is not None:
        columns.append(("tokens", [source.tokens or 0 for source in run.sources]))
    for column, (_, values) in enumerate(columns):
        below, total = 0.0, max(sum(values), 1)
        for (rows, name), colour in zip(parts, colours, strict=True):
            share = 100 * sum(values[row] for row in rows) / total
            axes.bar(column, share, 0.8, bottom=below, color=colour)
            if share > 100 * NARROW:
                shown = name if len(name) <= 12 else name[:11] + "…"
                axes.text(
                    column, below + share / 2, f"{shown}\n{share:.0f} %", ha="center", va="center",
                    fontsize=7,
                    color="white",
                )  # fmt: skip
            below += share
    axes.set_xticks(range(len(columns)), [name for name, _ in columns])
    axes.set_ylim(0, 100)
    axes.set_title("% of the run", fontsize=9)


def _title(run: DryRun, length: int | None) -> str:
    rows = f"{run.rows:,} rows of {length:,} tokens, {run.fill or 0:.1%} full" if length else ""
    parts = [f"{run.steps:,} steps", f"{run.samples:,} samples", *([rows] if rows else [])]
    ranks = f"{run.world_size:,} rank{'' if run.world_size == 1 else 's'}"
    return ", ".join([*parts, ranks]) + (" (estimated)" if run.estimated else "")
