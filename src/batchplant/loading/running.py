"""Steps run on a batch, one output at a time or several together; errors say where."""

from __future__ import annotations

import functools
import threading
import time
from collections import defaultdict
from typing import Any

import numpy as np

from ..data.reader import Reader
from ..errors import BatchplantError, with_place
from ..ops.base import CellErrors, Draws, RowError
from ..ops.function import Function
from ..ops.joint import Map
from ..schema.columns import I64
from .images import Device, Failures
from .plan import Plan
from .stage import Step


class Timer:
    """Seconds by what they were spent on, added up from all threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, what: str, began: float) -> float:
        """Count the time since ``began``; returns the time now."""
        now = time.perf_counter()
        with self._lock:
            self.seconds[what] += now - began
        return now


class Running:
    """What an Executor runs steps with."""

    reader: Reader
    plan: Plan
    on_device: Device | None
    seed: int
    timer: Timer
    functions: Timer

    def _run(self, name: str, step: Step[Any], value: Any, ids: I64, epoch: int, there: Device | None) -> Any:
        """What a step makes of a value; errors say where."""
        began = time.perf_counter()
        failed: list[Any] = []
        try:
            run = step.op.run if there is None else functools.partial(there.run, step.op)
            value = run(value, ids, Draws(self.seed, epoch, ids, step.key))
        except CellErrors:
            raise
        except RowError as found:
            failed = [found.row, found.error]
        except Exception as error:
            self._noted(error, name, step, ids, self.reader.path)
            raise
        if failed:
            # Not where it was caught: that would be its context, and they would hold each other.
            self._raise(failed, name, step, ids)
        if isinstance(step.op, Function | Map):
            self.functions.add(f"{name}: {step.op.name}", began)
        return value

    def _together(self, values: dict[str, Any], ids: I64, epoch: int) -> tuple[dict[str, Any], Failures]:
        """The values after the steps that see several of them."""
        began = time.perf_counter()
        device = self.on_device
        away = {one.name for one in self.plan.on_device if one.device_steps == len(one.steps)}
        for step in self.plan.joint:
            op, name = step.op, ", ".join(step.op.inputs)
            there = device if op.device_form is not None and op.inputs[0] in away else None
            if device is not None:
                back = away.intersection(op.inputs).difference(() if there is None else op.there)
                values |= {one: device.fetch(values[one], tensor=False) for one in back}
                away -= back
            try:
                made = self._run(name, step, {one: values[one] for one in op.inputs}, ids, epoch, there)
            except CellErrors as found:
                return {}, {row: error.at(field=name) for row, error in found.errors.items()}
            values = {one: value for one, value in values.items() if one not in op.drops} | made
            here = {one for one, value in made.items() if isinstance(value, np.ndarray | tuple | list)}
            away = (away | set(made)) - here if there is not None else away - set(made)
        if self.plan.joint:
            self.timer.add("transforms", began)
        return values, {}

    def _raise(self, failed: list[Any], name: str, step: Step[Any], ids: I64) -> None:
        """Raise what went wrong with one sample, [row, error], with its place."""
        error, row = failed.pop(), failed.pop()
        self._noted(error, name, step, ids[row : row + 1], self.reader.where(int(ids[row])))
        try:
            raise error
        finally:
            # Else its traceback would hold it.
            del error

    def _noted(self, error: Exception, name: str, step: Step[Any], ids: I64, path: str | None) -> None:
        """Say where a user's function raised it."""
        if isinstance(error, BatchplantError):
            error.at(path=path, field=name, sample=int(ids[0]) if len(ids) == 1 else None)
        error.add_note(_where(name, step, ids, path))


def _where(name: str, step: Step[Any], ids: I64, path: str | None) -> str:
    """What a note on an exception says, beside the stack trace of whoever wrote the function."""
    some = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "")
    what = f"step {step.op!r}, sample{'' if len(ids) == 1 else 's'} {some}"
    return "batchplant: " + with_place(what, path, None, name, None)
