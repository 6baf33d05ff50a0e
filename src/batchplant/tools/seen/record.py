"""Reads the record of a run: its stretches of steps, and what was noted of them."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...errors import DamagedError, DataError, NotFoundError, exceptions_as
from ...loading.recording import FAILED, LOSSES, NOTE, VERSION, notes_names
from ...schema.columns import I64, AnyArray, Flags
from ...storage import NOTE_ERRORS, parse_object

# Ranks of a run whose files are looked for.
MAX_RANKS = 1 << 12
# Losses that are looked at together.
CHUNK_LOSSES = 1 << 22
# Of spikes: steps that are looked at together, values that tell what is usual, and the standard deviation of
# a normal distribution whose median deviation is 1.
CHUNK_STEPS, MIN_BEFORE, NORMAL_DEVIATION = 1 << 16, 10, 1.4826


@dataclasses.dataclass(frozen=True)
class Stretch:
    """Consecutive steps of a run: ``steps`` of them from ``step`` on, at position ``start`` of an epoch.

    lasting: how many of its steps belong to the run as it went on; a run that was resumed from an earlier
    state repeats the others.
    """

    process: dict[str, Any]
    settings: dict[str, Any]
    step: int
    epoch: int
    start: int
    world_size: int
    batch_size: int
    steps: int
    window: tuple[int, int] | None = None
    lasting: int = 0


def read_stretches(path: str) -> list[Stretch]:
    """Return the stretches of a record in the order of the file.

    Half a line that a killed process left is ignored: the last one, or the one before a process line.
    """
    if not os.path.exists(path):
        raise NotFoundError("there is no such record of a run", path=path)
    with open(path, "rb") as file:
        lines = file.read().split(b"\n")
    stretches: list[Stretch] = []
    process: dict[str, Any] | None = None
    settings: dict[str, Any] = {}
    offset = 0
    for number, line in enumerate(lines):
        with exceptions_as(DamagedError, "not the record of a run", *NOTE_ERRORS, path=path, offset=offset):
            entry = _entry(lines, number)
            if "process" in entry:
                process, settings = entry, {}
                if entry["process"] != VERSION:
                    raise DataError(f"the record is of version {entry['process']}, and this reads {VERSION}")
            elif entry and process is None:
                raise ValueError("it does not begin with a process")
            elif "settings" in entry:
                settings = dict(entry["settings"])
            elif "stretch" in entry and process is not None:
                stretches.append(_stretch(process, settings, entry))
        offset += len(line) + 1
    if process is None:
        raise DamagedError("not the record of a run", path=path)
    return _lasting(stretches)


def _entry(lines: list[bytes], number: int) -> dict[str, Any]:
    line = lines[number]
    if not line.strip() or number == len(lines) - 1:
        return {}
    try:
        return parse_object(line)
    except ValueError:
        if lines[number + 1].startswith(b'{"process"'):
            return {}
        raise


def _stretch(process: dict[str, Any], settings: dict[str, Any], entry: dict[str, Any]) -> Stretch:
    values = entry["stretch"]
    names = ("step", "epoch", "start", "world_size", "batch_size")
    numbers = [values[name] for name in names] + [entry["steps"]]
    if not all(type(value) is int and value >= 0 for value in numbers) or not all(numbers[3:5]):
        raise ValueError("a number of a stretch is none")
    window = values.get("window")
    pair = None if window is None else (int(window[0]), int(window[1]))
    step, epoch, start, world_size, batch_size, steps = numbers
    return Stretch(process, settings, step, epoch, start, world_size, batch_size, steps, pair)


def _lasting(stretches: list[Stretch]) -> list[Stretch]:
    """Return the stretches with what lasts of each: steps that a later stretch does not repeat."""
    limit, lasting = 2**62, []
    for stretch in reversed(stretches):
        lasting.append(dataclasses.replace(stretch, lasting=min(stretch.steps, max(0, limit - stretch.step))))
        limit = min(limit, stretch.step)
    return lasting[::-1]


class Notes:
    """Values that were noted of steps by one rank."""

    def __init__(self, path: str, rank: int) -> None:
        self.rank = rank
        self.names = notes_names(f"{path}.names-{rank}")
        self.entries = _column(f"{path}.notes-{rank}", NOTE)
        self._losses = _column(f"{path}.losses-{rank}", np.dtype("<f2"))

    def values(self, step: int) -> dict[str, float]:
        """Return the values of a step; of one that was repeated, the latest."""
        entries = self.entries[(self.entries["step"] == step) & (self.entries["name"] != LOSSES)]
        return {
            self.names[entry["name"] - 1]: float(entry["value"])
            for entry in entries
            if entry["name"] <= len(self.names)
        }

    def failed(self, step: int) -> I64:
        """Return the samples of a step that could not be read and were left out."""
        entries = self.entries
        return entries["value"][(entries["step"] == step) & (entries["name"] == FAILED)].astype(np.int64)

    def failed_before(self, step: int) -> list[int]:
        """Return the samples of all steps before one that could not be read; those of repeated steps once."""
        entries = self.entries[(self.entries["name"] == FAILED) & (self.entries["step"] < step)]
        return [int(entry["value"]) for entry in np.unique(entries)]

    def series(self, name: str) -> tuple[I64, npt.NDArray[np.float64]]:
        """Return the steps with a value of this name, in order, and their latest values."""
        if name not in self.names:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        entries = self._latest(self.entries[self.entries["name"] == self.names.index(name) + 1])
        return entries["step"].astype(np.int64), entries["value"].astype(np.float64)

    def _latest(self, entries: AnyArray) -> AnyArray:
        _, last = np.unique(entries["step"][::-1], return_index=True)
        return entries[len(entries) - 1 - last]

    def _with_losses(self) -> AnyArray:
        entries = self._latest(self.entries[self.entries["name"] == LOSSES])
        return entries[entries["value"] + entries["count"] <= len(self._losses)]

    def losses(self, step: int) -> npt.NDArray[np.float32] | None:
        """Return the losses of the samples of a step; None where there are none."""
        entries = self.entries[(self.entries["step"] == step) & (self.entries["name"] == LOSSES)]
        if not len(entries):
            return None
        start, count = int(entries[-1]["value"]), int(entries[-1]["count"])
        return np.asarray(self._losses[start : start + count], dtype=np.float32)

    def worst(self, count: int) -> list[tuple[float, int, int]]:
        """Return the largest losses, as (loss, step, row); NaN is larger than any."""
        entries = self._with_losses()
        entries = entries[np.argsort(entries["value"])]
        starts, counts = entries["value"].astype(np.int64), entries["count"].astype(np.int64)
        worst: list[tuple[float, int, int]] = []
        first = 0
        while first < len(entries):
            last = max(int(np.searchsorted(starts, starts[first] + CHUNK_LOSSES)), first + 1)
            entry = np.repeat(np.arange(first, last), counts[first:last])
            row = np.arange(len(entry)) - np.repeat(
                np.cumsum(counts[first:last]) - counts[first:last], counts[first:last]
            )
            losses = np.asarray(self._losses[starts[entry] + row], dtype=np.float32)
            ranked = np.where(np.isnan(losses), np.inf, losses)
            top = np.argsort(-ranked, kind="stable")[:count]
            steps = entries["step"][entry[top]].tolist()
            worst += zip(losses[top].tolist(), steps, row[top].tolist(), strict=True)
            worst = sorted(worst, key=lambda item: -np.nan_to_num(item[0], nan=np.inf))[:count]
            first = last
        return worst


def all_notes(path: str) -> Iterator[Notes]:
    """Yield the notes of every rank that has some."""
    for rank in range(MAX_RANKS):
        if os.path.exists(f"{path}.notes-{rank}"):
            yield Notes(path, rank)


def _column(path: str, dtype: npt.DTypeLike) -> AnyArray:
    """Map a column; half an entry at its end is ignored."""
    width = np.dtype(dtype).itemsize
    count = os.path.getsize(path) // width if os.path.exists(path) else 0
    return np.memmap(path, dtype=dtype, mode="r", shape=(count,)) if count else np.zeros(0, dtype=dtype)


def spikes_in(values: npt.NDArray[np.float64], window: int, threshold: float) -> Flags:
    """Flag values that exceed the median of the ``window`` before them by a multiple of the deviation there.

    The deviation is the median one, scaled to that of a normal distribution. NaN and infinity are flagged.
    """
    flags: Flags = ~np.isfinite(values)
    padded = np.concatenate([np.full(window, np.nan), np.where(flags, np.nan, values)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, window)[:-1]
    for first in range(0, len(values), CHUNK_STEPS):
        before = windows[first : first + CHUNK_STEPS]
        enough = np.flatnonzero(np.isfinite(before).sum(axis=1) >= min(MIN_BEFORE, window))
        medians = np.nanmedian(before[enough], axis=1)
        deviations = np.nanmedian(np.abs(before[enough] - medians[:, None]), axis=1) * NORMAL_DEVIATION
        limits = medians + threshold * np.maximum(deviations, 1e-6 * np.abs(medians))
        flags[first + enough] |= values[first + enough] > limits
    return flags
