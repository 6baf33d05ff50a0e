"""Prove the advice: convert and measure a larger sample, beside what was predicted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from ...data.reader import Reader
from .. import measure
from ..measure import Candidate, Measurement
from .advice import Advice
from .contest import TrialResult
from .facts import DEFAULT_CROP_PIXELS
from .trial import GOAL_METRICS, GOAL_ORDERS

# The advised option and the next best.
MAX_PROVED = 2


@dataclasses.dataclass(frozen=True)
class Figure:
    """A predicted and a measured number."""

    name: str
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """Error of the prediction relative to the measurement."""
        return abs(self.predicted - self.measured) / max(abs(self.measured), 1e-12)


@dataclasses.dataclass(frozen=True)
class Proof:
    """Measurements of a storage option beside its predictions."""

    label: str
    figures: tuple[Figure, ...]
    samples: int = 0
    failed: str | None = None

    def lines(self) -> Iterator[str]:
        if self.failed is not None:
            yield f"not measured: {self.failed}"
        for figure in self.figures:
            comparison = f"{figure.predicted:,.0f} predicted, {figure.measured:,.0f} measured"
            yield f"{figure.name}: {comparison} ({figure.error:.0%} off)"

    def to_json(self) -> dict[str, Any]:
        return {
            "way": self.label, "samples": self.samples, "failed": self.failed,
            "figures": [{**dataclasses.asdict(figure), "error": figure.error} for figure in self.figures],
        }  # fmt: skip


def candidate(result: TrialResult) -> Candidate:
    """Return an option as a candidate of `measure`."""
    images = {"images": result.option.image_options} if result.option.images else {}
    return Candidate(
        result.option.format, {**result.option.writer_options, **images}, result.option.suffix or None
    )


def prove(
    reader: Reader, advice: Advice, *, seconds: float, progress: Callable[[int, int], None] | None = None
) -> list[Proof]:
    """Measure the advised option and the runner-up on a sample that takes about so many seconds."""
    results = [advice.best, *advice.alternatives][:MAX_PROVED]
    on_progress = None if progress is None else lambda done, total, name: progress(done, total)
    rows = measure.formats(
        reader, [candidate(result) for result in results], size=advice.answers.size or DEFAULT_CROP_PIXELS,
        batch_size=advice.answers.batch_size, order=GOAL_ORDERS.get(advice.answers.goal, "random"),
        seconds=seconds, progress=on_progress,
    )  # fmt: skip
    return [compare(result, row, advice.answers.goal) for result, row in zip(results, rows, strict=True)]


def compare(result: TrialResult, row: Measurement, goal: str) -> Proof:
    """Compare the predictions for the measured number of samples with the measurements."""
    if row.error is not None:
        return Proof(result.option.label, (), row.samples, row.error)
    trial = result.trial
    seconds = trial.seconds_fixed + trial.seconds_per_sample * row.samples
    written = None if result.option.unchanged or not seconds else row.samples / seconds
    pairs = [
        ("samples/s of an epoch", trial.epoch_rate, row.best.get("epoch_warm")),
        ("samples/s of one column", trial.column_rate, row.best.get("column_rate")),
        ("bytes", trial.disk_bytes(row.samples), row.bytes),
        ("samples/s written", written, row.write_rate),
    ]  # fmt: skip
    figures = [
        Figure(name, predicted, measured)
        for name, predicted, measured in pairs
        if predicted is not None and measured is not None
    ]
    metric = GOAL_METRICS[goal][0]
    first = {"epoch_rate": 0, "column_rate": 1, "bytes": 2}.get(metric, 0)
    leading = [figure for figure in figures if figure.name == pairs[first][0]]
    return Proof(
        result.option.label, (*leading, *(figure for figure in figures if figure not in leading)), row.samples
    )
