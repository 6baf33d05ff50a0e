"""Labels: in which order they stand, how often each comes, and what they are stored as."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np

from .... import order as orders
from ....errors import DataError, brief, shortened
from ....order import quality
from ....schema import Field, Int, Text
from ....schema.columns import I64, Masked, Ragged
from ..check import EXAMPLES, Batch, CellCheck, Check, Example, Finding, Subject, Tally

# Batches of an epoch that are looked at, in every order.
BATCHES = 8
# Of what random gives: an order that reaches this mixes the labels well enough.
ENOUGH = 0.9
# More classes than these are no classes.
MOST_CLASSES = 100_000
# The largest class to the smallest; from here on plain accuracy tells little.
UNEQUAL = 10
# Text with fewer different values than this share of the samples is a label.
FEW_VALUES = 0.1
# Blocks are held as one number for each sample.
MOST_BLOCKS = 20_000_000


class SortedLabels(Check):
    name = "sorted-labels"
    unit = "orders"
    title = "labels in an order that a shuffle buffer does not mix"
    severity = "warning"
    sentence = (
        "Where labels stand in order, a shuffle buffer gives batches of few classes, and training suffers."
    )

    def findings(self) -> Iterator[Finding]:
        subject, label = self.subject, self.subject.label
        if label is None or subject.samples < 2 * subject.batch_size:
            return
        try:
            codes = self._read_all(label)
        except DataError:
            # Those are for the check of corrupt samples.
            return
        mixed = {name: entropy for name, entropy in codes.items() if entropy is not None}
        overall, best = mixed.pop("all"), mixed.pop("random")
        if overall < 0.1 or best <= 0:
            return
        shares = {name: score / best for name, score in mixed.items()}
        if shares["windowed"] >= ENOUGH:
            return
        poor = [name for name in shares if shares[name] < ENOUGH]
        scores = {**shares, "random": 1.0}
        good = "quasi_random" if shares.get("quasi_random", 0) >= ENOUGH else "random"
        yield self.finding(
            f"{label} stands in order, and a shuffle buffer of {subject.window:,} samples does not mix it: "
            f"entropy of the labels in a batch of {subject.batch_size}, of what random gives",
            len(poor), len(shares) + 1,
            f'Loader(…, order="{good}") mixes them; for readers that only stream, shuffle once:\n'
            + subject.command("--shuffle"),
            field=label,
            examples=[Example(said=f"{name:<12} {min(share, 1):4.0%}") for name, share in scores.items()],
            facts={"of random's label entropy": scores},
        )  # fmt: skip

    def _read_all(self, label: str) -> dict[str, float | None]:
        """The entropy of batches in every order, and of the labels all together."""
        subject = self.subject
        n, size = subject.samples, subject.batch_size
        spread = np.unique(np.linspace(0, n - 1, min(n, BATCHES * size)).astype(np.int64))
        numbers: dict[Any, int] = {}
        codes = self._codes(label, spread, numbers)
        drawn = np.random.default_rng(0).choice(codes, BATCHES * size)
        scores: dict[str, float | None] = {
            "all": quality.entropy(codes),
            "random": quality.batch_entropy(drawn.astype(np.int64), size),
        }
        options: dict[str, dict[str, Any]] = {"sequential": {}, "windowed": {"window": subject.window}}
        blocks = subject.reader.blocks() if n <= MOST_BLOCKS else None
        if blocks is not None:
            options["quasi_random"] = {"blocks": blocks}
        starts = np.unique(np.linspace(0, n - size, BATCHES).astype(np.int64))
        places = (starts[:, None] + np.arange(size)).reshape(-1)
        for name, order_options in options.items():
            samples = orders.make(name, n, seed=0, epoch=0, **order_options).take(places)
            scores[name] = quality.batch_entropy(self._codes(label, samples, numbers), size)
        return scores

    def _codes(self, label: str, rows: I64, numbers: dict[Any, int]) -> I64:
        """Equal labels get equal numbers. Read in order, each once."""
        distinct, back = np.unique(rows, return_inverse=True)
        values: list[Any] = []
        for chunk in np.array_split(distinct, max(1, len(distinct) // 4096)):
            values += values_of(self.subject.reader.read(chunk, [label])[label])
        codes = np.fromiter(
            (numbers.setdefault(value, len(numbers)) for value in values), np.int64, len(values)
        )
        return codes[back.reshape(-1)]


class ClassImbalance(Check):
    name = "class-imbalance"
    unit = "classes"
    title = "classes that are much rarer than others"
    severity = "warning"
    sentence = "Rare classes are hardly learnt, and accuracy hides it."

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._counts: Counter[Any] = Counter()
        self._first: dict[Any, int] = {}
        self._too_many = False

    def look(self, batch: Batch) -> None:
        label = self.subject.label
        if label is None or self._too_many:
            return
        column = batch.columns[label]
        if isinstance(column, Ragged):
            for row, value in enumerate(values_of(column)):
                if value is not None:
                    self._counts[value] += 1
                    self._first.setdefault(value, int(batch.numbers[row]))
        else:
            values, rows, counts = np.unique(column, return_index=True, return_counts=True)
            for value, row, count in zip(values.tolist(), rows.tolist(), counts.tolist(), strict=True):
                self._counts[value] += count
                self._first.setdefault(value, int(batch.numbers[row]))
        self._too_many = len(self._counts) > MOST_CLASSES

    def findings(self) -> Iterator[Finding]:
        label, total = self.subject.label, self._counts.total()
        # A field in which every value is another one is no class, and few samples tell nothing of rare ones.
        if label is None or self._too_many or not 1 < len(self._counts) <= total // 10:
            return
        field = self.subject.schema[label]
        ranked = self._counts.most_common()
        (commonest, many), (_, few) = ranked[0], ranked[-1]
        names = (getattr(field, "names", None) or ()) if self.subject.every else ()
        absent = [name for number, name in enumerate(names) if number not in self._counts]
        if many >= UNEQUAL * few:
            rare = [value for value, count in reversed(ranked) if many >= UNEQUAL * count]
            examples = [
                self.subject.place(
                    self._first[value], label, f"{shown(field, value)}: {self._counts[value]:,} samples"
                )
                for value in rare[:EXAMPLES]
            ]
            yield self.finding(
                f"{label}: {shown(field, commonest)} comes {many / few:,.0f} times as often as the rarest "
                "class; "
                f"{len(rare):,} of {len(ranked):,} classes are {UNEQUAL} times as rare as it or more",
                len(rare), len(ranked),
                f'labels = data.read(range(len(data)), [{label!r}])[{label!r}]\n'
                'Loader(data, …, order=bp.order.ClassBalanced(labels))\n'
                "draws every class equally often; or weight the loss",
                examples=examples, field=label, about=not self.subject.every,
                facts={"largest": many, "smallest": few, "classes": len(ranked)},
            )  # fmt: skip
        if absent:
            yield self.finding(
                f"{label}: no sample has the class {', '.join(absent[:3])}{' …' if len(absent) > 3 else ''}",
                len(absent), len(ranked) + len(absent),
                "remove the names, or find out what became of the samples", field=label,
            )  # fmt: skip


class TextLabels(CellCheck):
    name = "text-labels"
    title = "labels stored as text"
    severity = "note"
    sentence = "Labels as text are turned into numbers in every step, and a typing error becomes a class."

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._values: dict[str, Counter[Any]] = {name: Counter() for name in self.tallies}

    def concerns(self, name: str, field: Field) -> bool:
        return type(field) is Text

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        values = values_of(batch.columns[name])
        self._values[name].update(value for value in values if value is not None)
        tally.add(batch, batch.present(name), functools.partial(_quoted, values), of=len(values))
        if len(self._values[name]) > MOST_CLASSES:
            del self.tallies[name]

    def report(self, name: str, tally: Tally) -> Finding | None:
        counts = self._values[name]
        total = counts.total()
        # One value says nothing, and a few samples do not tell a label from a caption.
        if total < 20 or not 1 < len(counts) <= max(2, FEW_VALUES * total):
            return None
        first = ", ".join(repr(_text(value)) for value in sorted(counts)[:2])
        alike = _alike([_text(value) for value in counts])
        also = f"; {' and '.join(map(repr, alike[0]))} look like one class" if alike else ""
        return self.cells(
            f"text with {len(counts):,} different values{also}", tally,
            f"store numbers and their names: Int(names=({first}, …));\n"
            f"or turn them into numbers in the Loader: pipelines={{{name!r}: [Categories(…)]}}",
            examples=tally.examples()[:2], severity="warning" if alike else None,
            facts={"values": len(counts), "alike": alike},
        )  # fmt: skip


def _alike(names: list[str]) -> list[tuple[str, ...]]:
    """Names that differ in case or spaces only."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(" ".join(name.split()).casefold(), []).append(name)
    return [tuple(sorted(same)) for same in groups.values() if len(same) > 1]


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def _quoted(values: list[Any], row: int) -> str:
    return repr(shortened(_text(values[row])))


def shown(field: Field, value: Any) -> str:
    """A label by its name, where it has one."""
    names = field.names if isinstance(field, Int) else None
    return brief(names[value] if names and 0 <= value < len(names) else _text(value))


def values_of(column: Any) -> list[Any]:
    """Labels as something that can be compared and counted; None where one is missing."""
    if isinstance(column, Ragged):
        if not isinstance(column, Masked):
            return [None if cell is None else cell.tobytes() for cell in column]
        pairs = zip(column.values.tolist(), column.mask, strict=True)
        return [value if valid else None for value, valid in pairs]
    return list(column.tolist())
