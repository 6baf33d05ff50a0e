"""Candidates measured by the workers of an engine, one by each at a time; every row says on which machine.

Speeds that are measured side by side on one machine disturb each other. So an engine of this machine has one
worker unless more are asked for, and a row says when there was another one beside it.
"""

from __future__ import annotations

import dataclasses
import functools
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...data.reader import Reader
from ...jobs.engines import Engine, make, run
from ...jobs.engines.sources import for_others
from ...jobs.scans import engine_of
from .choice import Candidate
from .machine import describe
from .measured import Measured

BESIDE = "measured while others were on the same machine: speeds are too low"

# formats(reader, [candidate], …)
Measure = Callable[..., list[Measured]]


@dataclasses.dataclass(frozen=True)
class _Found:
    """A row, the name of the machine, and when it was measured."""

    row: Measured
    host: str
    began: float
    ended: float

    def overlaps(self, other: _Found) -> bool:
        return self.host == other.host and self.began < other.ended and other.began < self.ended


@dataclasses.dataclass(frozen=True)
class _Work:
    measure: Measure
    reader: Reader
    candidates: Sequence[Candidate]
    how: Mapping[str, Any]

    def __call__(self, number: int) -> _Found:
        began = time.time()
        (row,) = self.measure(self.reader, [self.candidates[number]], **self.how)
        host = platform.node()
        return _Found(dataclasses.replace(row, machine=f"{host}: {_described()}"), host, began, time.time())


@functools.cache
def _described() -> str:
    return describe()


def workers_of(engine: str | Engine) -> Engine:
    """The engine of that name, with one worker if its workers are here."""
    if isinstance(engine, str) and engine in ("processes", "dask", "ray"):
        return make(engine, workers=1)
    return engine_of(engine)


def measured_by(
    engine: Engine, measure: Measure, reader: Reader, candidates: Sequence[Candidate],
    progress: Callable[[int, int, str], None] | None, **how: Any,
) -> list[Measured]:  # fmt: skip
    """A row for each candidate."""
    work = _Work(measure, for_others(reader), candidates, how)
    found: dict[int, _Found] = {}

    def show(what: str) -> None:
        if progress is not None:
            progress(len(found), len(candidates), what)

    def done(number: int, one: _Found) -> None:
        found[number] = one
        show(f"measured {candidates[number].label}")

    show("starting workers")
    run(engine, work, range(len(candidates)), done, name=lambda number: candidates[number].label)
    rows = []
    for number in range(len(candidates)):
        one = found[number]
        beside = any(other is not one and one.overlaps(other) for other in found.values())
        rows.append(dataclasses.replace(one.row, remarks=(*one.row.remarks, BESIDE)) if beside else one.row)
    return rows
