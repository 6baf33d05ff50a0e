"""Measurements of one way to store a dataset, and the ways that no other one dominates."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .. import Document

# Epochs that are shorter measure the start of threads and the clock.
MIN_EPOCH_SECONDS = 0.2


@dataclasses.dataclass(frozen=True)
class Measurement:
    """One row of a comparison. Speeds and times are the median of the rounds; ``best`` has the best of each.

    ``bytes``: on disk (or in the bucket), all files, of ``samples`` samples; ``data``: of their cells, the
    same for every format. ``memory``: what the reading process held at most, without Python, NumPy and the
    pages of mapped files. Rates are samples/s but for ``sequential_mb_s``, which counts bytes of cells.
    ``column_rate``: one field from start to end (``pipelines.column_of``), as a query reads it.
    ``random_rate``: ``reader[i]``, decoded. ``epoch_cold``, ``epoch_warm``: a shuffled epoch through the
    Loader, when the system holds nothing of the files in memory, and when it holds them all: the cold one
    with its start, of which ``first_batch`` are the seconds; the warm one without it. ``fetched`` and
    ``requests``: of opening and one such epoch over the network; None for local files. None elsewhere: not
    measured, and ``error`` says why, or ``remarks`` where only a part could not be. ``machine``: where the
    worker of an engine measured it; None: here.
    """

    format: str
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    label: str = ""
    samples: int = 0
    data: int = 0
    bytes: int | None = None
    files: int | None = None
    write_seconds: float | None = None
    write_rate: float | None = None
    open_seconds: float | None = None
    memory: int | None = None
    sequential_mb_s: float | None = None
    sequential_rate: float | None = None
    column_rate: float | None = None
    random_rate: float | None = None
    first_batch: float | None = None
    epoch_cold: float | None = None
    epoch_warm: float | None = None
    fetched: int | None = None
    requests: int | None = None
    rounds: int = 0
    best: Mapping[str, float] = dataclasses.field(default_factory=dict)
    remarks: Sequence[str] = ()
    error: str | None = None
    machine: str | None = None

    @property
    def bytes_per_sample(self) -> float | None:
        return None if self.bytes is None or not self.samples else self.bytes / self.samples

    def to_json(self) -> Document:
        return {**dataclasses.asdict(self), "bytes_per_sample": self.bytes_per_sample}


def caveats(rows: Iterable[Measurement], speed: str = "epoch_warm") -> list[str]:
    """Reasons why the order of the fastest may be chance, each as a sentence; none where it is not."""
    measured = [row for row in rows if row.error is None and getattr(row, speed)]
    ordered = sorted(measured, key=lambda entry: -getattr(entry, speed))
    if len(ordered) < 2:
        return []
    sentences = []
    first = ordered[0]
    if max(row.rounds for row in ordered) < 2:
        sentences.append("Only one round was measured, so a difference may be chance: --rounds 5 tells more.")
    else:
        # How much better the best round of a format is than its median.
        spreads = [row.best[speed] / getattr(row, speed) - 1 for row in ordered if row.best.get(speed)]
        noise = max(statistics.median(spreads), 0.0) if spreads else 0.0
        near = [
            row.label for row in ordered[1:] if getattr(row, speed) >= getattr(first, speed) * (1 - noise)
        ]
        if near:
            who = f"{', '.join(near)} {'is' if len(near) == 1 else 'are'} within {noise:.0%} of {first.label}"
            sentences.append(f"{who}, and rounds of one format differ as much: take them as equally fast.")
    seconds = first.samples / getattr(first, speed)
    if speed.startswith("epoch") and seconds < MIN_EPOCH_SECONDS:
        sentences.append(
            f"An epoch of {first.samples:,} samples takes {seconds * 1e3:.0f} ms, which is too short to rank "
            "by: measure more samples (--sample, --seconds)."
        )
    return sentences


def pareto(rows: Iterable[Measurement], speed: str = "epoch_warm") -> list[Measurement]:
    """Those that no other beats: none is as small and as fast, and better in one of both. Smallest first."""
    measured = [row for row in rows if row.bytes_per_sample is not None and getattr(row, speed) is not None]
    front: list[Measurement] = []
    for row in sorted(measured, key=lambda entry: (entry.bytes_per_sample or 0, -getattr(entry, speed))):
        equal = front and (row.bytes_per_sample, getattr(row, speed)) == (
            front[-1].bytes_per_sample, getattr(front[-1], speed)
        )  # fmt: skip
        if not front or equal or getattr(row, speed) > getattr(front[-1], speed):
            front.append(row)
    return front
