"""Episodes of robots: times off the grid, cameras that freeze, arms that rest, statistics that lie."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ....data.keys import same_cells
from ....errors import BatchplantError
from ....formats.lerobot import LeRobotReader
from ....schema import Field, Float, Image, Int, Tensor
from ....schema.columns import AnyArray, Ragged, take_cells
from ..check import (
    ACTION,
    EPISODE,
    EXAMPLES,
    FRAME,
    TIME,
    Batch,
    CellCheck,
    Check,
    Example,
    Finding,
    Subject,
    Tally,
)

# Part of the usual distance of two frames that one may be off.
MAX_TIME_ERROR = 0.2
# Of an episode, looked-at frames from which on it may be said to rest or to freeze.
MIN_FRAMES = 4
# Share of the frames of an episode that may equal the one before, or be black, and levels that are black.
MAX_FROZEN_SHARE, BLACK_LEVEL = 0.5, 4
# Part of the range of a field that a value may lie beyond it: statistics are rounded.
RANGE_SLACK = 1e-3
# Of rows that were looked at: how many tell the mean, and how often the deviation may be another one.
MIN_ROWS, MAX_SPREAD_RATIO = 16, 8.0

Flags = npt.NDArray[np.bool_]


class EpisodeCheck(CellCheck):
    """Base class of checks of datasets with episodes; examples name the episode and the frame."""

    unit: ClassVar[str] = "frames"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self.begins = np.zeros(1, np.int64) if subject.episodes is None else subject.episodes
        if subject.episodes is None:
            self.tallies = {}

    def place(self, batch: Batch, row: int) -> str:
        """Return the episode and the frame of a row."""
        return self.subject.moment(int(batch.numbers[row]))

    def follows(self, batch: Batch) -> Flags:
        """Return flags of the rows whose frame follows that of the row before, in one episode."""
        numbers = batch.numbers
        episodes = np.searchsorted(self.begins, numbers, side="right")
        flags = np.zeros(len(batch), dtype=np.bool_)
        flags[1:] = (np.diff(numbers) == 1) & (np.diff(episodes) == 0)
        return flags


class EpisodeTimes(EpisodeCheck):
    name = "episode-times"
    title = "times of frames that jump or run backwards"
    severity = "warning"
    sentence = "Actions and images that are joined by time are then those of other moments."

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        self._usual: float | None = None

    def concerns(self, name: str, field: Field) -> bool:
        return name == TIME and isinstance(field, Float)

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        times = batch.numbers_of(name)
        if times is None:
            return
        follows = self.follows(batch)
        steps = np.diff(times.astype(np.float64), prepend=np.nan)
        if self._usual is None and follows.any():
            self._usual = float(np.median(steps[follows]))
        with np.errstate(invalid="ignore"):
            off = np.abs(steps - (self._usual or 0)) > MAX_TIME_ERROR * abs(self._usual or 0)
        bad = follows & (off | ~(steps > 0))
        tally.add(
            batch, bad, lambda row: f"{self.place(batch, row)}: {steps[row]:.4g} s after the one before",
            of=int(follows.sum()),
        )  # fmt: skip

    def report(self, name: str, tally: Tally) -> Finding:
        usual = f"frames are {self._usual or 0:.4g} s apart, and some are not"
        return self.cells(
            usual, tally, "correct the times, or leave these episodes out: bp.open(…, episodes=[…])"
        )


class FrozenCameras(EpisodeCheck):
    name = "frozen-cameras"
    title = "cameras that freeze or show nothing"
    severity = "warning"
    sentence = "A policy learns to act without the camera that shows it nothing."
    unit = "episodes"
    # Images are black only once they are decoded.
    decodes = True
    message = "half of the frames of some episodes equal the one before, or are black"
    mend = "leave these episodes out: bp.open(…, episodes=[…]); or the camera: reader.select"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        # By camera and episode: frames that were looked at, those that show nothing new, the first of them.
        self._seen: dict[str, dict[int, tuple[int, int, int]]] = {name: {} for name in self.tallies}

    def concerns(self, name: str, field: Field) -> bool:
        shape = field.shape if isinstance(field, Tensor) and field.dtype == "uint8" else ()
        return isinstance(field, Image) or (len(shape) == 3 and shape[2] in (1, 3))

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        column, seen = batch.columns[name], self._seen[name]
        if not len(batch) or not isinstance(column, Ragged | np.ndarray):
            return
        same, black = np.zeros(len(batch), dtype=np.bool_), self._black(batch, name)
        same[1:] = same_cells(take_cells(column, slice(0, -1)), take_cells(column, slice(1, None)))
        follows = self.follows(batch)
        compared, bad = follows | black, (same & follows) | black
        episodes = np.searchsorted(self.begins, batch.numbers, side="right") - 1
        for episode in np.unique(episodes).tolist():
            rows = episodes == episode
            count, frozen, first = seen.get(episode, (0, 0, -1))
            if first < 0 and bad[rows].any():
                first = int(batch.numbers[np.argmax(rows & bad)])
            seen[episode] = count + int(compared[rows].sum()), frozen + int(bad[rows].sum()), first
        stuck = [
            first
            for count, frozen, first in seen.values()
            if count >= MIN_FRAMES - 1 and frozen >= MAX_FROZEN_SHARE * count
        ]
        tally.count, tally.of = len(stuck), len(seen)
        tally.first = [(first, f"from {self.subject.moment(first)} on") for first in stuck[:EXAMPLES]]

    def _black(self, batch: Batch, name: str) -> Flags:
        """Return flags of the frames on which nothing is to be seen."""
        column = batch.columns[name]
        if not isinstance(column, Ragged):
            values = np.asarray(batch.numbers_of(name))
            return np.asarray(values.reshape(len(batch), -1).max(axis=1, initial=0) < BLACK_LEVEL)
        damaged = {problem.sample for problem in batch.problems}
        flags = np.zeros(len(batch), dtype=np.bool_)
        for row, small in enumerate(batch.thumbnails.get(name, ())):
            if int(batch.numbers[row]) not in damaged:
                flags[row] = small is None or small.max() < BLACK_LEVEL
        return flags & batch.present(name)


class RestingEpisodes(EpisodeCheck):
    name = "resting-episodes"
    title = "episodes in which no action changes"
    severity = "warning"
    sentence = "Such episodes teach a policy to stand still."
    unit = "episodes"

    def __init__(self, subject: Subject) -> None:
        super().__init__(subject)
        # By episode: the first action, how many were looked at, whether another one differs.
        self._seen: dict[int, tuple[bytes, int, bool]] = {}

    def concerns(self, name: str, field: Field) -> bool:
        return name == ACTION and isinstance(field, Tensor | Float | Int)

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        values = batch.numbers_of(name)
        if values is None:
            return
        episodes = np.searchsorted(self.begins, batch.numbers, side="right") - 1
        for episode in np.unique(episodes).tolist():
            rows = np.ascontiguousarray(values[episodes == episode])
            first, count, moves = self._seen.get(episode, (rows[:1].tobytes(), 0, False))
            moves = moves or any(row.tobytes() != first for row in rows)
            self._seen[episode] = first, count + len(rows), moves
        resting = [n for n, (_, count, moves) in self._seen.items() if count >= MIN_FRAMES and not moves]
        tally.count, tally.of = len(resting), len(self._seen)
        tally.first = [(int(self.begins[episode]), f"episode {episode}") for episode in resting[:EXAMPLES]]

    def report(self, name: str, tally: Tally) -> Finding:
        mend = "leave these episodes out: bp.open(…, episodes=[…])"
        return self.cells("it never changes in some episodes", tally, mend, about=not self.subject.every)


class WrongStatistics(EpisodeCheck):
    name = "wrong-statistics"
    title = "values outside of the stored statistics"
    severity = "warning"
    sentence = "Numbers that are normalised by other data's range leave the range that a policy expects."
    message = "values lie outside of the stored minimum and maximum"
    mend = "compute the statistics anew: batchplant convert writes them; or look for joints that jump"

    def __init__(self, subject: Subject) -> None:
        self._stats: Mapping[str, Mapping[str, Any]] = {}
        # Another check reports what cannot be read.
        with contextlib.suppress(BatchplantError):
            self._stats = subject.reader.attributes
        # By field: rows that were looked at, the sums of their numbers, and of the squares of these.
        self._sums: dict[str, tuple[int, AnyArray, AnyArray]] = {}
        super().__init__(subject)

    def concerns(self, name: str, field: Field) -> bool:
        return isinstance(field, Float | Int) or (isinstance(field, Tensor) and field.dtype != "uint8")

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        values, stats = batch.numbers_of(name), self._stats.get(name, {})
        if values is None or not {"min", "max"} <= set(stats):
            return
        low, high = (np.asarray(stats[key], np.float64).reshape(-1) for key in ("min", "max"))
        rows = values.reshape(len(values), -1).astype(np.float64)
        if len(low) != rows.shape[1] or len(high) != rows.shape[1]:
            return
        # Counters of frames have another mean in every part of a dataset; large numbers overflow.
        if not isinstance(self.subject.schema[name], Int):
            with np.errstate(all="ignore"):
                count, total, squares = self._sums.get(name, (0, np.zeros(len(low)), np.zeros(len(low))))
                sums = total + rows.sum(axis=0), squares + (rows**2).sum(axis=0)
                self._sums[name] = count + len(rows), *sums
        slack = RANGE_SLACK * np.maximum(high - low, np.abs(high)) + 1e-6
        outside = (rows < low - slack) | (rows > high + slack)

        def describe(row: int) -> str:
            axis = int(np.argmax(outside[row]))
            return f"{self.place(batch, row)}: number {axis} is {rows[row, axis]:.4g}"

        tally.add(batch, np.asarray(outside.any(axis=1)), describe, of=len(rows))

    def findings(self) -> Iterator[Finding]:
        yield from super().findings()
        for name, tally in self.tallies.items() if self._is_whole() else ():
            sentence = None if tally.count else self._moved(name)
            if sentence is not None:
                mend = "compute the statistics anew: batchplant convert writes them"
                yield self.finding(f"{name}: {sentence}", tally.of, tally.of, mend, field=name)

    def _is_whole(self) -> bool:
        """Return whether the dataset is all that the statistics are about: some episodes may have others."""
        parts = self.subject.parts
        options = [part._init_args[1].get(name) for part in parts for name in ("episodes", "split")]
        return not any(option is not None for option in options) and (
            sum(len(part) for part in parts) == self.subject.samples
        )

    def _moved(self, name: str) -> str | None:
        """Return which number of a field lies elsewhere than its statistics say; None if none does."""
        count, total, squares = self._sums.get(name, (0, np.zeros(0), np.zeros(0)))
        stats = [np.asarray(self._stats.get(name, {}).get(key, ()), np.float64) for key in ("mean", "std")]
        mean, std = (values.reshape(-1) for values in stats)
        if count < MIN_ROWS or not len(mean) == len(std) == len(total):
            return None
        with np.errstate(all="ignore"):
            seen = total / count
            spread = np.sqrt(np.maximum(squares / count - seen**2, 0))
            far = np.abs(seen - mean) > std + RANGE_SLACK * np.abs(mean)
            far |= (spread > MAX_SPREAD_RATIO * std) | (MAX_SPREAD_RATIO * spread < std)
            # What rests in all rows differs by rounding alone.
            far &= np.maximum(spread, std) > RANGE_SLACK * np.maximum(np.abs(mean), np.abs(seen))
        if not far.any():
            return None
        axis = int(np.argmax(far))
        return (
            f"mean and deviation of number {axis} are {seen[axis]:.4g} and {spread[axis]:.4g}, and stored as "
            f"{mean[axis]:.4g} and {std[axis]:.4g}"
        )


class OrphanRows(EpisodeCheck):
    name = "orphan-rows"
    title = "rows that count as another episode or frame"
    severity = "error"
    sentence = "Their images are of another moment, and windows join rows that do not follow each other."
    message = "rows do not count as their place in the episode does"
    mend = "correct the lengths of episodes, or leave these out: bp.open(…, episodes=[…])"

    def concerns(self, name: str, field: Field) -> bool:
        return name in (EPISODE, FRAME) and isinstance(field, Int)

    def count(self, batch: Batch, name: str, tally: Tally) -> None:
        values = batch.numbers_of(name)
        if values is None:
            return
        if name == FRAME:
            episodes = np.searchsorted(self.begins, batch.numbers, side="right") - 1
            bad, of = values != batch.numbers - self.begins[episodes], len(batch)
        else:
            follows = self.follows(batch)
            bad, of = follows & (np.diff(values, prepend=values[:1]) != 0), int(follows.sum())
        tally.add(batch, bad, lambda row: f"{self.place(batch, row)}: {name} is {values[row]}", of=of)


class Leftovers(Check):
    name = "leftovers"
    unit = "files"
    title = "frames and files that belong to no episode"
    severity = "warning"
    sentence = "A recording was cut or edited by halves; what follows in the video may be shifted."

    def findings(self) -> Iterator[Finding]:
        parts = [part for part in self.subject.parts if isinstance(part, LeRobotReader)]
        sentences = [sentence for part in parts for sentence in part.leftovers()]
        if sentences:
            examples = [Example(said=sentence) for sentence in sentences]
            message = "files have frames, or are there, that no episode has"
            mend = "write the dataset anew: batchplant convert; or delete files that nothing refers to"
            yield self.finding(message, len(sentences), len(sentences), mend, examples=examples)
