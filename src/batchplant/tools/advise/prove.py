"""Prove the advice: convert and measure a larger sample, beside what was predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ...data.reader import Reader
from .. import measure
from ..measure import Candidate, Measured
from .advice import Advice
from .contest import Tried
from .facts import CROP
from .trial import FIGURES, ORDERS

# The way that is advised and the next best.
PROVED = 2


@dataclasses.dataclass(frozen=True)
class Figure:
    """One number, predicted and measured."""

    what: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """How far off the prediction was, as a part of what was measured."""
        return abs(self.predicted - self.measured) / max(abs(self.measured), 1e-12)


@dataclasses.dataclass(frozen=True)
class Proof:
    """What was measured of one way, beside its prediction."""

    label: str
    figures: tuple[Figure, ...]
    samples: int = 0
    failed: str | None = None

    def lines(self) -> Iterator[str]:
        if self.failed is not None:
            yield f"not measured: {self.failed}"
        for one in self.figures:
            found = f"{one.predicted:,.0f} predicted, {one.measured:,.0f} measured"
            yield f"{one.what}: {found} ({one.error:.0%} off)"

    def to_json(self) -> dict[str, Any]:
        return {
            "way": self.label, "samples": self.samples, "failed": self.failed,
            "figures": [{**dataclasses.asdict(one), "error": one.error} for one in self.figures],
        }  # fmt: skip


def candidate(one: Tried) -> Candidate:
    """A way as `measure` takes it."""
    images = {"images": one.way.image_options} if one.way.images else {}
    return Candidate(one.way.format, {**one.way.options, **images}, one.way.suffix or None)


def prove(
    reader: Reader, advice: Advice, *, seconds: float, progress: Callable[[int, int], None] | None = None
) -> list[Proof]:
    """Measure the advised way and the runner-up on a sample that takes about so many seconds."""
    ways = [advice.best, *advice.alternatives][:PROVED]
    told = None if progress is None else lambda done, total, what: progress(done, total)
    rows = measure.formats(
        reader, [candidate(one) for one in ways], size=advice.answers.size or CROP,
        batch_size=advice.answers.batch_size, order=ORDERS.get(advice.answers.goal, "random"),
        seconds=seconds, progress=told,
    )  # fmt: skip
    return [compare(one, row, advice.answers.goal) for one, row in zip(ways, rows, strict=True)]


def compare(tried: Tried, row: Measured, goal: str) -> Proof:
    """What was predicted for so many samples, beside what was measured of them."""
    if row.error is not None:
        return Proof(tried.way.label, (), row.samples, row.error)
    trial = tried.trial
    seconds = trial.seconds_fixed + trial.seconds_each * row.samples
    written = None if tried.way.stays or not seconds else row.samples / seconds
    pairs = [
        ("samples/s of an epoch", trial.epoch_rate, row.best.get("epoch_warm")),
        ("samples/s of one column", trial.column_rate, row.best.get("column_rate")),
        ("bytes", trial.disk(row.samples), row.bytes),
        ("samples/s written", written, row.write_rate),
    ]  # fmt: skip
    found = [
        Figure(what, mine, theirs) for what, mine, theirs in pairs if mine is not None and theirs is not None
    ]
    wanted = FIGURES[goal][0]
    first = {"epoch_rate": 0, "column_rate": 1, "bytes": 2}.get(wanted, 0)
    lead = [one for one in found if one.what == pairs[first][0]]
    return Proof(tried.way.label, (*lead, *(one for one in found if one not in lead)), row.samples)
