"""Samples and steps that a Loader leaves out: options, quarantine lists, and their place in its state."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from .. import order as orders
from ..data import quarantine
from ..data.mix import Mix
from ..data.reader import Reader
from ..errors import OptionError, exceptions_as
from ..order.keyed import whole
from ..order.ranks import SkippedShard, Skips
from ..schema.columns import I64, Flags
from ..storage import NOTE_ERRORS
from .packing import PackedShard, SkippedRows

REPLACEMENTS = ("drop", "next")
# (first, end, epoch) of steps or positions.
Range = tuple[int, int, int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Skip:
    """Samples and steps that a Loader leaves out; all others keep their positions, draws and ranks.

    samples: numbers of samples, as ``ids`` gives them. steps: (first, end) or (first, end, epoch), or several
    of these; they count from the beginning of the epoch (0 by default), like those of
    :meth:`Loader.replay`. positions: the same of positions in the epoch, which do not depend on the number of
    ranks. file: a list of bad samples, as ``verify`` writes it (``quarantine``). replace: ``drop`` makes a
    smaller batch, ``next`` puts the next sample of the order in the place of a skipped one. Steps are passed
    over in either case. resolved: positions of steps as a state had them; ``load_state_dict`` fills it in.
    """

    samples: npt.ArrayLike = ()
    steps: Sequence[Any] = ()
    positions: Sequence[Any] = ()
    file: str | os.PathLike[str] | None = None
    replace: str = "drop"
    resolved: Mapping[Range, tuple[int, int]] = dataclasses.field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.replace not in REPLACEMENTS:
            raise OptionError(f"replace is {' or '.join(REPLACEMENTS)}, not {self.replace!r}")
        samples = np.asarray(self.samples)
        if samples.ndim != 1 or (samples.size and samples.dtype.kind not in "iu"):
            raise OptionError(f"samples of skip are whole numbers, not {self.samples!r}")
        object.__setattr__(self, "samples", np.unique(samples).astype(np.int64))
        object.__setattr__(self, "steps", _ranges("steps", self.steps))
        object.__setattr__(self, "positions", _ranges("positions", self.positions))

    @classmethod
    def of(cls, value: object) -> Self | None:
        """Return the options that an argument stands for: a path is that of a list of bad samples."""
        if value is None or isinstance(value, cls):
            return value
        if isinstance(value, str | os.PathLike):
            return cls(file=value)
        raise OptionError(f"skip is a Skip, as Skip(samples=[17]), or a list of bad samples, not {value!r}")


def _ranges(name: str, value: Any) -> tuple[Range, ...]:
    entries = [value] if len(value) and isinstance(value[0], int | np.integer) else value
    ranges = []
    for entry in entries:
        if isinstance(entry, str) or len(entry) not in (2, 3):
            raise OptionError(f"{name} of skip are (first, end) or (first, end, epoch), not {entry!r}")
        first, stop, epoch = (*entry, 0)[:3]
        first = whole(f"the first of {name}", first, 0)
        ranges.append((first, whole(f"the end of {name}", stop, first), whole("epoch", epoch, 0)))
    return tuple(sorted(ranges))


class Skipping:
    """Takes what is skipped out of the shards of a loader."""

    def __init__(self, skip: Skip, reader: Reader, indices: I64 | None) -> None:
        self.skip, self._reader, self._indices = skip, reader, indices
        base = reader.base if isinstance(reader, Mix) else reader
        samples = reader._check(skip.samples)
        rows = reader._base_rows(samples) if isinstance(reader, Mix) else samples
        if skip.file is not None:
            rows = np.concatenate([rows, quarantine.bad_samples(base, os.fspath(skip.file))])
        self._rows: I64 = np.unique(rows)

    def is_skipped(self, numbers: I64) -> Flags:
        """Flag the numbers of an order whose samples are skipped."""
        if not len(self._rows):
            return np.zeros(len(numbers), dtype=np.bool_)
        samples = numbers if self._indices is None else self._indices[numbers]
        rows = self._reader._base_rows(samples) if isinstance(self._reader, Mix) else samples
        nearest = np.minimum(np.searchsorted(self._rows, rows), len(self._rows) - 1)
        return self._rows[nearest] == rows

    def shard(self, shard: orders.Shard | PackedShard, epoch: int) -> orders.Batches:
        """Return the batches of a shard without what is skipped."""
        of_steps = [self._positions(entry, shard) for entry in self.skip.steps if entry[2] == epoch]
        ranges = [(first, stop) for first, stop, number in self.skip.positions if number == epoch]
        ranges = _joined([*ranges, *of_steps])
        if not ranges and not len(self._rows):
            return shard
        skips = Skips(self.is_skipped, tuple(ranges), self.skip.replace == "next")
        return SkippedRows(shard, skips) if isinstance(shard, PackedShard) else SkippedShard(shard, skips)

    def _positions(self, steps: Range, shard: orders.Shard | PackedShard) -> tuple[int, int]:
        """Return the positions of steps: those of a state, else as this number of ranks takes them."""
        if steps in self.skip.resolved:
            return self.skip.resolved[steps]
        complete = dataclasses.replace(shard, start=0)
        first, stop = (_position(complete, step) for step in steps[:2])
        return first, stop

    def state(self, shard_of: Callable[[int], orders.Shard | PackedShard]) -> dict[str, Any]:
        """Return JSON of what is skipped; ``shard_of`` returns the shard of an epoch. Empty for nothing."""
        skip = self.skip
        steps = [[*entry, *self._positions(entry, shard_of(entry[2]))] for entry in skip.steps]
        if not (len(self._rows) or steps or skip.positions):
            return {}
        positions, samples = [list(entry) for entry in skip.positions], self._rows.tolist()
        return {"samples": samples, "positions": positions, "steps": steps, "replace": skip.replace}


def skip_of(state: Any, chosen: Skip | None) -> Skip | None:
    """Return what a loader skips that goes on from a state.

    ``chosen``: as the user said for this loader, where steps that the state has too are at its positions.
    """
    if not state:
        return chosen
    with exceptions_as(OptionError, "this is no state of a loader", *NOTE_ERRORS, AttributeError):
        resolved = {(first, stop, epoch): (begin, end) for first, stop, epoch, begin, end in state["steps"]}
        if chosen is not None:
            return dataclasses.replace(chosen, resolved=resolved)
        return Skip(
            samples=np.array(state["samples"], dtype=np.int64), steps=list(resolved),
            positions=state["positions"], replace=state["replace"], resolved=resolved,
        )  # fmt: skip


def _position(shard: orders.Shard | PackedShard, step: int) -> int:
    """Return the position at which a step of an epoch begins, or the end."""
    if isinstance(shard, PackedShard) and shard.step_start(step) is not None:
        return shard.position_after(step)
    planned = shard.planned_shard if isinstance(shard, PackedShard) else shard
    return planned.position_after(min(step, planned.steps))


def _joined(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, those that touch or overlap joined, without empty ones."""
    joined: list[tuple[int, int]] = []
    for first, stop in sorted(ranges):
        if joined and first <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(stop, joined[-1][1])
        elif first < stop:
            joined.append((first, stop))
    return joined
