"""An epoch as a Loader with these options will read it: samples of each rank and step, and how well mixed."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from typing import Any, ClassVar

import numpy as np

from ... import order as orders
from ...codecs.cells import decode_cell
from ...data.reader import Reader
from ...errors import DataError, OptionError, shortened
from ...order import quality
from ...schema import Bool, Int, Text
from ...schema.columns import I64, Columns
from .. import Document
from ..doctor.check import find_label
from .cells import Progress
from .session import PageRequest

ORDER_NAMES = ("sequential", "random", "quasi_random", "shards", "windowed", "class_balanced")
# The least and the largest value of options that are numbers.
OPTION_BOUNDS = {
    "seed": (0, 2**63),
    "epoch": (0, 2**31),
    "batch_size": (1, 1 << 24),
    "world_size": (1, 1 << 16),
    "window": (0, 1 << 31),
    "lanes": (1, 1 << 16),
}
# Dots of the chart of an epoch; columns of the chart of labels, labels per column, and samples per column.
MAX_DOTS, MAX_LABEL_COLUMNS, LABELS_PER_COLUMN, MIN_COLUMN_SAMPLES = 3000, 80, 64, 32
# Samples up to which all labels are read, and the limit of class_balanced, which needs all labels.
MAX_EXACT_LABELS, MAX_LABELS = 20_000, 20_000_000
# Stretches from all over an epoch that are examined for mixing.
STRETCHES = 8
READ_SAMPLES = 4096
# Classes with a colour of their own, and samples of a batch that are listed.
MAX_COLOURED_CLASSES, MAX_LISTED_SAMPLES = 7, 512
CHUNK_POSITIONS = 1 << 18
# Appearances of a sample that are listed.
MAX_APPEARANCES = 5


@dataclasses.dataclass(frozen=True)
class EpochOptions:
    """Options of a Loader that determine the order of an epoch."""

    order: str = "random"
    seed: int = 0
    epoch: int = 0
    batch_size: int = 256
    world_size: int = 1
    window: int = 0
    lanes: int = 1
    drop_last: bool = False

    @classmethod
    def of(cls, request: PageRequest) -> EpochOptions:
        name = request.params.get("order", "random")
        if name not in ORDER_NAMES:
            raise OptionError(f"there is no order {name[:40]!r} here; there are: {', '.join(ORDER_NAMES)}")
        numbers = {
            option: request.integer(option, getattr(cls, option), low, high)
            for option, (low, high) in OPTION_BOUNDS.items()
        }
        return cls(name, drop_last=bool(request.text("drop_last")), **numbers)

    @property
    def options(self) -> dict[str, Any]:
        """Options of the order, without those that are read from the dataset."""
        takes = inspect.signature(orders.NAMED[self.order]).parameters
        options: dict[str, Any] = {}
        if self.window and "window" in takes:
            options["window"] = self.window
        if self.lanes > 1 and "lanes" in takes:
            options |= {"lanes": self.lanes, "lane_size": self.batch_size}
        return options


class Epoch:
    """An epoch of the samples in ``rows``. Positions and ranks are those of the Loader."""

    # Positions that are examined for mixing.
    stretch_positions: ClassVar[int] = 8192

    def __init__(
        self, reader: Reader, rows: I64 | None, options: EpochOptions, label: str | None, progress: Progress
    ):
        self.reader, self.rows, self.options = reader, rows, options
        self.label = label
        order_options = options.options
        if options.order in orders.BY_BLOCKS:
            blocks = reader.blocks()
            if blocks is None:
                raise OptionError(
                    f"this format has no blocks, so {options.order} has nothing to go by; use random"
                )
            order_options["blocks"] = orders.BlockIndex(blocks, reader.window, rows)
        if options.order == "class_balanced":
            order_options["labels"] = self._all_labels(progress)
        self.order = orders.make(
            options.order, self.count, seed=options.seed, epoch=options.epoch, **order_options
        )

    @property
    def count(self) -> int:
        return len(self.reader) if self.rows is None else len(self.rows)

    def samples(self, positions: I64) -> I64:
        """Return the samples at these positions."""
        rows = self.order.take(positions)
        return rows if self.rows is None else self.rows[rows]

    def shard(self, rank: int) -> orders.Shard:
        names = ("world_size", "batch_size", "drop_last")
        options = {name: getattr(self.options, name) for name in names}
        return orders.shard(self.order, rank=rank, **options)

    def step(self, number: int, rank: int) -> Document:
        """Describe the batch of a rank at a step."""
        shard = self.shard(rank)
        if not 0 <= number < len(shard):
            raise OptionError(f"there is no step {number:,}; this rank has {len(shard):,}")
        batch = shard.positions(number)
        positions = np.asarray(batch if isinstance(batch, np.ndarray) else np.arange(batch.start, batch.stop))
        samples = self.samples(positions)
        summary: Document = {
            "step": number, "steps": len(shard), "rank": rank, "world_size": self.options.world_size,
            "count": len(samples), "position": int(positions[0]) if len(positions) else None,
            "samples": samples[:MAX_LISTED_SAMPLES],
        }  # fmt: skip
        if self.label is not None:
            counts = Counter(self._labels(samples[:MAX_EXACT_LABELS]))
            summary["classes"] = [{"label": name, "count": count} for name, count in counts.most_common(100)]
        return summary

    def appearances(self, sample: int, progress: Progress) -> list[dict[str, int]]:
        """Return the first positions of a sample, with step and rank; orders may repeat or omit samples."""
        row = sample
        if self.rows is not None:
            # Rows are in the order of the dataset.
            row = int(np.searchsorted(self.rows, sample))
            if row == len(self.rows) or self.rows[row] != sample:
                return []
        appearances: list[dict[str, int]] = []
        first, last = self._around(row)
        for start in range(first, last, CHUNK_POSITIONS):
            progress(start - first, last - first)
            positions = np.arange(start, min(start + CHUNK_POSITIONS, last))
            for position in positions[self.order.take(positions) == row].tolist():
                steps, ranks = self.steps_and_ranks(np.array([position]))
                # drop_last may leave it out.
                when = {"step": int(steps[0]), "rank": int(ranks[0])} if steps[0] >= 0 else {}
                appearances.append({"position": position, **when})
                if len(appearances) == MAX_APPEARANCES:
                    return appearances
            if appearances and self.options.order != "class_balanced":
                break
        return appearances

    def _around(self, row: int) -> tuple[int, int]:
        """Return the bounds of a sample's position that follow from the kind of order."""
        length = self.order.length
        if self.options.order == "sequential":
            return row, row + 1
        if self.options.order == "random":
            position = int(self.order.find(np.array([row]))[0])
            return position, position + 1
        if self.options.order == "windowed":
            far = self.options.window or inspect.signature(orders.windowed).parameters["window"].default
            return max(0, row - far), min(length, row + far + 1)
        return 0, length

    def steps_and_ranks(self, positions: I64) -> tuple[I64, I64]:
        """Return the step and the rank of each position; -1 for positions that are left out."""
        options = self.options
        step_samples = options.world_size * options.batch_size
        steps, remainders = np.divmod(positions, step_samples)
        ranks = remainders // options.batch_size
        first = self.shard(0)
        total = first.steps
        # The last two steps are distributed differently if they are not full.
        tail = first.position_after(max(total - 2, 0)) if total else 0
        for row in np.flatnonzero(positions >= tail).tolist():
            steps[row], ranks[row] = self._in_tail(int(positions[row]), total)
        return steps, ranks

    def _in_tail(self, position: int, total: int) -> tuple[int, int]:
        first = self.shard(0)
        for number in range(max(total - 2, 0), total):
            begin, end = first.position_after(number), first.position_after(number + 1)
            if begin <= position < end:
                # Parts differ by at most one sample, the larger ones first.
                size, larger_parts = divmod(end - begin, self.options.world_size)
                remainder = position - begin
                large = larger_parts * (size + 1)
                rank = (
                    remainder // (size + 1)
                    if remainder < large
                    else larger_parts + (remainder - large) // max(size, 1)
                )
                return number, rank
        return -1, -1

    # -- chart of an epoch -----------------------------------------------------------------------

    def chart(self, progress: Progress) -> Document:
        length = self.order.length
        shard = self.shard(0)
        chart: Document = {
            "count": self.count, "length": length, "steps": shard.steps, "idle": shard.idle,
            "left_out": length - shard.position_after(shard.steps) if shard.steps else length,
            "label": self.label, "labels": _candidates(self.reader), "dots": self._dots(),
        }  # fmt: skip
        stretches = [self.samples(positions) for positions in self._stretches()]
        batch = min(self.options.batch_size, self.stretch_positions)
        chart["kept_neighbours"] = _mean([quality.kept_neighbours(stretch) for stretch in stretches])
        blocks = self.reader.blocks()
        if blocks is not None and stretches:
            touched = [
                quality.blocks_per_batch(quality.codes_of(blocks[stretch]), batch) for stretch in stretches
            ]
            count = len(np.unique(blocks if self.rows is None else blocks[self.rows]))
            chart["blocks"] = {"count": count, "per_batch": _mean(touched)}
        if self.label is not None and length:
            chart["mixing"] = self._mixing(progress, stretches, batch)
        return chart

    def _stretches(self) -> list[I64]:
        """Return runs of consecutive positions, complete batches, from all over the epoch."""
        length, batch = self.order.length, min(self.options.batch_size, self.stretch_positions)
        if length <= self.stretch_positions:
            return [np.arange(length)] if length else []
        stretch_length = max(1, self.stretch_positions // STRETCHES // batch) * batch
        firsts = np.linspace(0, max(0, length - stretch_length), STRETCHES).astype(np.int64) // batch * batch
        return [np.arange(first, min(first + stretch_length, length)) for first in firsts.tolist()]

    def _dots(self) -> list[list[int]]:
        """Return random positions with step, sample and rank; evenly spaced ones could hide a pattern."""
        length = self.order.length
        if not length:
            return []
        rng = np.random.default_rng(0)
        positions = np.arange(length) if length <= MAX_DOTS else np.sort(rng.integers(0, length, MAX_DOTS))
        steps, ranks = self.steps_and_ranks(positions)
        present = steps >= 0
        rows = np.stack([positions, steps, self.samples(positions), ranks], axis=1)[present]
        return rows.tolist()

    def _mixing(self, progress: Progress, stretches: list[I64], batch: int) -> Document:
        """Count the classes along the epoch, and measure how well batches represent them."""
        length = self.order.length
        # A column of a few samples would show only chance.
        columns = int(np.clip(length // MIN_COLUMN_SAMPLES, min(length, 8), MAX_LABEL_COLUMNS))
        edges = np.linspace(0, length, columns + 1).astype(np.int64)
        rng = np.random.default_rng(0)
        every = length <= MAX_EXACT_LABELS
        parts = [
            np.arange(first, last)
            if every or last - first <= LABELS_PER_COLUMN
            else rng.integers(first, last, LABELS_PER_COLUMN)
            for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ]
        labels = self._labels(self.samples(np.concatenate(parts)), progress)
        counted = Counter(labels)
        common = sorted((name for name, _ in counted.most_common(MAX_COLOURED_CLASSES)), key=_label_sort_key)
        kinds = len(counted)
        names = (
            [*common, f"{kinds - MAX_COLOURED_CLASSES:,} others"] if kinds > MAX_COLOURED_CLASSES else common
        )
        number = {name: row for row, name in enumerate(common)}
        rows = np.array([number.get(name, len(names) - 1) for name in labels], dtype=np.int64)
        places = rows * columns + np.repeat(np.arange(columns), list(map(len, parts)))
        counts = np.bincount(places, minlength=len(names) * columns).reshape(len(names), columns)
        stretch_codes = [quality.codes_of(self._labels(stretch)) for stretch in stretches]
        # From the frequencies of all labels: within a stretch of one class, every repetition would be chance.
        chance = sum((count / len(labels)) ** 2 for count in counted.values())
        same = _mean([float((codes[1:] == codes[:-1]).mean()) for codes in stretch_codes if len(codes) > 1])
        return {
            "names": names, "counts": counts, "every": every, "kinds": kinds,
            "entropy": quality.entropy(quality.codes_of(labels)),
            "batch_entropy": _mean([quality.batch_entropy(codes, batch) for codes in stretch_codes]),
            "again": (same - chance) / (1 - chance) if chance < 1 else 0.0,
        }  # fmt: skip

    def _labels(self, samples: I64, progress: Progress | None = None) -> list[str]:
        """Return the classes of these samples, "(unreadable)" for those that cannot be read."""
        assert self.label is not None
        # Read in the order of the file.
        unique, back = np.unique(samples, return_inverse=True)
        labels: list[str] = []
        for start in range(0, len(unique), READ_SAMPLES):
            if progress is not None:
                progress(start, len(unique))
            labels += _texts(self.reader, unique[start : start + READ_SAMPLES], self.label)
        return [labels[row] for row in back.reshape(-1).tolist()]

    def _all_labels(self, progress: Progress) -> Any:
        if self.label is None:
            raise OptionError("class_balanced needs a field of classes, and there is none")
        if self.count > MAX_LABELS:
            raise OptionError(f"class_balanced reads all labels, here of up to {MAX_LABELS:,} samples")
        reader, name, count = self.reader, self.label, self.count
        codes = np.empty(count, dtype=np.int64)
        codes_by_label: dict[str, int] = {}
        for start in range(0, count, CHUNK_POSITIONS):
            progress(start, count)
            end = min(start + CHUNK_POSITIONS, count)
            samples = np.arange(start, end) if self.rows is None else self.rows[start:end]
            column = reader.read(samples, [name])[name] if type(reader.schema[name]) in (Int, Bool) else None
            if isinstance(column, np.ndarray):
                codes[start:end] = column
            else:
                codes[start:end] = [
                    codes_by_label.setdefault(label, len(codes_by_label)) for label in self._labels(samples)
                ]
        if codes_by_label:
            # Number classes in sorted order, as class_balanced does with plain labels.
            order = np.argsort(np.argsort(list(codes_by_label)))
            codes = order[codes]
        return codes


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _label_sort_key(label: str) -> tuple[bool, float, str]:
    """Sort numbers by value, before texts."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def label_field(reader: Reader, field: str | None) -> str | None:
    """Return the field of the classes."""
    if field and field not in _candidates(reader):
        raise OptionError(
            f"{field[:100]!r} is no field of classes; those are: whole numbers, true/false, text"
        )
    return find_label(reader.schema, field or None)


def _candidates(reader: Reader) -> list[str]:
    return [name for name, field in reader.schema.items() if type(field) in (Int, Bool, Text)]


def _texts(reader: Reader, samples: I64, name: str) -> list[str]:
    try:
        return _decoded(reader, reader.read(samples, [name]), name)
    except DataError:
        if len(samples) == 1:
            return ["(unreadable)"]
        half = len(samples) // 2
        return _texts(reader, samples[:half], name) + _texts(reader, samples[half:], name)


def _decoded(reader: Reader, columns: Columns, name: str) -> list[str]:
    field = reader.schema[name]
    names = field.names if isinstance(field, Int) else None
    texts = []
    for row in range(columns.rows):
        value = decode_cell(field, columns[name], row)
        if value is None:
            texts.append("(missing)")
        elif names and isinstance(value, int | np.integer) and 0 <= value < len(names):
            texts.append(shortened(names[int(value)]))
        else:
            texts.append(shortened(str(value)))
    return texts
