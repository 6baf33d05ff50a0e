"""An epoch as a Loader with these options will read it: which rank sees which sample when, and how mixed."""

from __future__ import annotations

import dataclasses
import inspect
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ... import order as orders
from ...codecs.cells import decode_cell
from ...data.reader import Reader
from ...errors import DataError, OptionError, shortened
from ...order import quality
from ...schema import Bool, Int, Text
from ...schema.columns import I64, Columns
from ..doctor.check import find_label
from .session import whole

Progress = Callable[[int, int], None]

NAMES = ("sequential", "random", "quasi_random", "shards", "windowed", "class_balanced")
# Dots of the image of an epoch; columns of the one of labels, and samples that are read for each.
DOTS, COLUMNS, EACH, FEWEST = 3000, 80, 64, 32
# Of so few samples all labels are read. class_balanced, which needs all, stops here.
ALL_LABELS, MOST_LABELS = 20_000, 20_000_000
# Positions that tell how mixed batches are, in rows from all over the epoch.
STRETCH, PLACES_LOOKED_AT = 8192, 8
STEP = 4096
# Classes that have a colour of their own, and samples of a batch that are listed.
CLASSES, LISTED = 7, 512
CHUNK = 1 << 18
# Times that a sample is seen that are told.
PLACES = 5


@dataclasses.dataclass(frozen=True)
class Wish:
    """The options of a Loader that say what it reads."""

    order: str = "random"
    seed: int = 0
    epoch: int = 0
    batch_size: int = 256
    world_size: int = 1
    window: int = 0
    lanes: int = 1
    drop_last: bool = False

    @classmethod
    def of(cls, params: Mapping[str, str]) -> Wish:
        name = params.get("order", "random")
        if name not in NAMES:
            raise OptionError(f"there is no order {name[:40]!r} here; there are: {', '.join(NAMES)}")
        return cls(
            name, whole(params, "seed", 0, 0, 2**63), whole(params, "epoch", 0, 0, 2**31),
            whole(params, "batch_size", 256, 1, 1 << 24), whole(params, "world_size", 1, 1, 1 << 16),
            whole(params, "window", 0, 0, 1 << 31), whole(params, "lanes", 1, 1, 1 << 16),
            bool(params.get("drop_last")),
        )  # fmt: skip

    @property
    def options(self) -> dict[str, Any]:
        """``order_options`` of the Loader, but for what is read from the dataset."""
        takes = inspect.signature(orders.NAMED[self.order]).parameters
        found: dict[str, Any] = {}
        if self.window and "window" in takes:
            found["window"] = self.window
        if self.lanes > 1 and "lanes" in takes:
            found |= {"lanes": self.lanes, "lane_size": self.batch_size}
        return found


class Epoch:
    """One epoch of the samples that a filter left. Positions and ranks are those of the Loader."""

    def __init__(self, reader: Reader, rows: I64 | None, wish: Wish, label: str | None, told: Progress):
        self.reader, self.rows, self.wish = reader, rows, wish
        self.label = label
        options = wish.options
        if wish.order in orders.BY_BLOCKS:
            blocks = reader.blocks()
            if blocks is None:
                raise OptionError(
                    f"this format has no blocks, so {wish.order} has nothing to go by; use random"
                )
            options["blocks"] = orders.BlockIndex(blocks, reader.window, rows)
        if wish.order == "class_balanced":
            options["labels"] = self._all_labels(told)
        self.order = orders.make(wish.order, self.count, seed=wish.seed, epoch=wish.epoch, **options)

    @property
    def count(self) -> int:
        return len(self.reader) if self.rows is None else len(self.rows)

    def samples(self, positions: I64) -> I64:
        """The numbers in the dataset of what stands at these positions."""
        taken = self.order.take(positions)
        return taken if self.rows is None else self.rows[taken]

    def shard(self, rank: int) -> orders.Shard:
        wish = self.wish
        return orders.shard(
            self.order,
            rank=rank,
            world_size=wish.world_size,
            batch_size=wish.batch_size,
            drop_last=wish.drop_last,
        )

    def step(self, number: int, rank: int) -> dict[str, Any]:
        """What a rank sees at a step."""
        shard = self.shard(rank)
        if not 0 <= number < len(shard):
            raise OptionError(f"there is no step {number:,}; this rank has {len(shard):,}")
        at = shard.positions(number)
        positions = np.asarray(at if isinstance(at, np.ndarray) else np.arange(at.start, at.stop))
        samples = self.samples(positions)
        found: dict[str, Any] = {
            "step": number, "steps": len(shard), "rank": rank, "world_size": self.wish.world_size,
            "count": len(samples), "position": int(positions[0]) if len(positions) else None,
            "samples": samples[:LISTED],
        }  # fmt: skip
        if self.label is not None:
            counts = Counter(self._labels(samples[:ALL_LABELS]))
            found["classes"] = [{"label": name, "count": count} for name, count in counts.most_common(100)]
        return found

    def place(self, sample: int, told: Progress) -> list[dict[str, int]]:
        """When this sample is seen: the first few times, for some orders repeat samples or leave some out."""
        row = sample
        if self.rows is not None:
            # In the order of the dataset.
            row = int(np.searchsorted(self.rows, sample))
            if row == len(self.rows) or self.rows[row] != sample:
                return []
        found: list[dict[str, int]] = []
        first, last = self._around(row)
        for start in range(first, last, CHUNK):
            told(start - first, last - first)
            positions = np.arange(start, min(start + CHUNK, last))
            for at in positions[self.order.take(positions) == row].tolist():
                found.append({"position": at, **self._when(at)})
                if len(found) == PLACES:
                    return found
            if found and self.wish.order != "class_balanced":
                break
        return found

    def _around(self, row: int) -> tuple[int, int]:
        """Between which positions a sample stands, as far as that is known without looking."""
        length = self.order.length
        if self.wish.order == "sequential":
            return row, row + 1
        if self.wish.order == "random":
            at = int(self.order.find(np.array([row]))[0])
            return at, at + 1
        if self.wish.order == "windowed":
            far = self.wish.window or inspect.signature(orders.windowed).parameters["window"].default
            return max(0, row - far), min(length, row + far + 1)
        return 0, length

    def _when(self, position: int) -> dict[str, int]:
        """The step and the rank that have a position; none where drop_last leaves it out."""
        steps, ranks = self.steps_and_ranks(np.array([position]))
        return {"step": int(steps[0]), "rank": int(ranks[0])} if steps[0] >= 0 else {}

    def steps_and_ranks(self, positions: I64) -> tuple[I64, I64]:
        """For each position the step and the rank that take it; -1 where none does."""
        wish = self.wish
        each = wish.world_size * wish.batch_size
        steps, rest = np.divmod(positions, each)
        ranks = rest // wish.batch_size
        first = self.shard(0)
        total = first.steps
        # The last two steps are dealt out otherwise where they are not full.
        tail = first.position_after(max(total - 2, 0)) if total else 0
        for at in np.flatnonzero(positions >= tail).tolist():
            steps[at], ranks[at] = self._in_tail(int(positions[at]), total)
        return steps, ranks

    def _in_tail(self, position: int, total: int) -> tuple[int, int]:
        first = self.shard(0)
        for number in range(max(total - 2, 0), total):
            begin, end = first.position_after(number), first.position_after(number + 1)
            if begin <= position < end:
                # Parts are equal but for one, the larger ones first.
                size, more = divmod(end - begin, self.wish.world_size)
                rest = position - begin
                large = more * (size + 1)
                rank = rest // (size + 1) if rest < large else more + (rest - large) // max(size, 1)
                return number, rank
        return -1, -1

    # -- the image of an epoch -----------------------------------------------------------------------

    def image(self, told: Progress) -> dict[str, Any]:
        length = self.order.length
        shard = self.shard(0)
        found: dict[str, Any] = {
            "count": self.count, "length": length, "steps": shard.steps, "idle": shard.idle,
            "left_out": length - shard.position_after(shard.steps) if shard.steps else length,
            "label": self.label, "labels": _candidates(self.reader), "dots": self._dots(),
        }  # fmt: skip
        stretches = [self.samples(at) for at in self._stretches()]
        batch = min(self.wish.batch_size, STRETCH)
        found["kept_neighbours"] = _mean([quality.kept_neighbours(one) for one in stretches])
        blocks = self.reader.blocks()
        if blocks is not None and stretches:
            touched = [quality.blocks_per_batch(quality.codes_of(blocks[one]), batch) for one in stretches]
            count = len(np.unique(blocks if self.rows is None else blocks[self.rows]))
            found["blocks"] = {"count": count, "per_batch": _mean(touched)}
        if self.label is not None and length:
            found["mixing"] = self._mixing(told, stretches, batch)
        return found

    def _stretches(self) -> list[I64]:
        """Positions in a row, whole batches, from all over the epoch; all of them where they are few."""
        length, batch = self.order.length, min(self.wish.batch_size, STRETCH)
        if length <= STRETCH:
            return [np.arange(length)] if length else []
        each = max(1, STRETCH // PLACES_LOOKED_AT // batch) * batch
        firsts = np.linspace(0, max(0, length - each), PLACES_LOOKED_AT).astype(np.int64) // batch * batch
        return [np.arange(first, min(first + each, length)) for first in firsts.tolist()]

    def _dots(self) -> list[list[int]]:
        """Some positions with step, sample and rank. Drawn, for evenly spaced ones would hide a pattern."""
        length = self.order.length
        if not length:
            return []
        rng = np.random.default_rng(0)
        at = np.arange(length) if length <= DOTS else np.sort(rng.integers(0, length, DOTS))
        steps, ranks = self.steps_and_ranks(at)
        there = steps >= 0
        rows = np.stack([at, steps, self.samples(at), ranks], axis=1)[there]
        found: list[list[int]] = rows.tolist()
        return found

    def _mixing(self, told: Progress, stretches: list[I64], batch: int) -> dict[str, Any]:
        """Classes along the epoch, and how much a batch tells of all of them."""
        length = self.order.length
        # A column of a handful would show chance alone.
        columns = int(np.clip(length // FEWEST, min(length, 8), COLUMNS))
        edges = np.linspace(0, length, columns + 1).astype(np.int64)
        rng = np.random.default_rng(0)
        every = length <= ALL_LABELS
        parts = [
            np.arange(first, last) if every or last - first <= EACH else rng.integers(first, last, EACH)
            for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
        ]
        labels = self._labels(self.samples(np.concatenate(parts)), told)
        counted = Counter(labels)
        common = sorted((name for name, _ in counted.most_common(CLASSES)), key=_place_of)
        kinds = len(counted)
        names = [*common, f"{kinds - CLASSES:,} others"] if kinds > CLASSES else common
        number = {name: at for at, name in enumerate(common)}
        counts = np.zeros((len(names), columns), dtype=np.int64)
        at = 0
        for column, part in enumerate(parts):
            for name in labels[at : at + len(part)]:
                counts[number.get(name, len(names) - 1), column] += 1
            at += len(part)
        in_a_row = [quality.codes_of(self._labels(one)) for one in stretches]
        # By the shares of all: within a row that has one class only, everything would be by chance.
        chance = sum((count / len(labels)) ** 2 for count in counted.values())
        same = _mean([float((one[1:] == one[:-1]).mean()) for one in in_a_row if len(one) > 1])
        return {
            "names": names, "counts": counts, "every": every, "kinds": kinds,
            "entropy": quality.entropy(quality.codes_of(labels)),
            "batch_entropy": _mean([quality.batch_entropy(one, batch) for one in in_a_row]),
            "again": (same - chance) / (1 - chance) if chance < 1 else 0.0,
        }  # fmt: skip

    def _labels(self, samples: I64, told: Progress | None = None) -> list[str]:
        """The classes of these samples; of those that cannot be read, a word for that."""
        assert self.label is not None
        # Read in the order of the file, whatever the epoch's is.
        wanted, back = np.unique(samples, return_inverse=True)
        found: list[str] = []
        for start in range(0, len(wanted), STEP):
            if told is not None:
                told(start, len(wanted))
            found += _texts(self.reader, wanted[start : start + STEP], self.label)
        return [found[at] for at in back.reshape(-1).tolist()]

    def _all_labels(self, told: Progress) -> Any:
        if self.label is None:
            raise OptionError("class_balanced needs a field of classes, and there is none")
        if self.count > MOST_LABELS:
            raise OptionError(f"class_balanced reads all labels, here of up to {MOST_LABELS:,} samples")
        reader, name, count = self.reader, self.label, self.count
        codes = np.empty(count, dtype=np.int64)
        known: dict[str, int] = {}
        for start in range(0, count, CHUNK):
            told(start, count)
            end = min(start + CHUNK, count)
            some = np.arange(start, end) if self.rows is None else self.rows[start:end]
            column = reader.read(some, [name])[name] if type(reader.schema[name]) in (Int, Bool) else None
            if isinstance(column, np.ndarray):
                codes[start:end] = column
            else:
                codes[start:end] = [known.setdefault(one, len(known)) for one in self._labels(some)]
        if known:
            # Classes count in their order, as they do where the labels themselves are given.
            order = np.argsort(np.argsort(list(known)))
            codes = order[codes]
        return codes


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _place_of(label: str) -> tuple[bool, float, str]:
    """Numbers by their size, before texts."""
    try:
        return False, float(label), label
    except ValueError:
        return True, 0.0, label


def label_of(reader: Reader, asked: str | None) -> str | None:
    """The field of the classes."""
    if asked and asked not in _candidates(reader):
        raise OptionError(
            f"{asked[:100]!r} is no field of classes; those are: whole numbers, true/false, text"
        )
    return find_label(reader.schema, asked or None)


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
    found = []
    for row in range(columns.rows):
        value = decode_cell(field, columns[name], row)
        if value is None:
            found.append("(missing)")
        elif names and isinstance(value, int | np.integer) and 0 <= value < len(names):
            found.append(shortened(names[int(value)]))
        else:
            found.append(shortened(str(value)))
    return found
