"""From FFCV's pipelines to batchplant's: which op does what, and what happens on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ... import ops
from ...errors import OptionError
from ...interop import torch as interop
from ...loading.pipes import Pipe, Pipelines
from ...ops.base import Draws, Op, Spec
from ...schema.columns import I64
from .adapter import UserOp
from .builtin import is_ours
from .pipeline.operation import Operation
from .pipeline.pipeline_spec import PipelineSpec
from .source import IDS
from .transforms import RandomResizedCrop
from .transforms.normalize import NormalizeTensor

TENSOR_OPS = (interop.ToTensor, interop.ToDevice, interop.ToTorchImage, interop.ModuleWrapper)


class Translator:
    """Makes the pipelines anew for every epoch; operations of users keep their compiled code."""

    def __init__(self, reader: Any, memory: Any, specs: Mapping[str, PipelineSpec], recompile: bool) -> None:
        self._reader, self._memory, self._specs, self._recompile = reader, memory, specs, recompile
        self._adapters: dict[tuple[str, int], UserOp] = {}

    def pipelines(self) -> Pipelines:
        made: dict[str, Any] = dict.fromkeys(self._reader.source.schema)
        for name in self._specs:
            made[name] = self._pipe(name)
        return made

    def fingerprint(self) -> str:
        """Changes when an attribute of an operation does."""
        hidden = ("metadata", "memory_read", "field")
        return repr([
            [(type(one), {key: value for key, value in vars(one).items() if key not in hidden})
             for one in (spec.decoder, *spec.transforms) if isinstance(one, Operation)]
            for spec in self._specs.values()
        ])  # fmt: skip

    def devices(self) -> set[Any]:
        """The CUDA devices that batches go to."""
        pipes = [pipe.ops for pipe in self.pipelines().values() if isinstance(pipe, Pipe)]
        return {step.device for steps in pipes for step in steps if isinstance(step, Deferred)}

    def _chain(self, name: str) -> tuple[str, list[tuple[str, int, Any]]]:
        """The field that a pipeline starts at, and its operations, each with the place it was written at."""
        spec = self._specs[name]
        own = [(name, number, one) for number, one in enumerate([spec.decoder, *spec.transforms])]
        if isinstance(spec.source, str):
            if spec.source not in self._reader.handlers:
                known = ", ".join(self._reader.handlers)
                raise OptionError(
                    f"the pipeline {name!r} starts at {spec.source!r}, which is no field; there are: {known}"
                )
            return spec.source, own
        # It goes on from an operation of another pipeline: what comes before is done again, with the same
        # random draws.
        for other in self._specs:
            operations = [self._specs[other].decoder, *self._specs[other].transforms]
            at = [number for number, one in enumerate(operations) if one is spec.source]
            if at and other != name:
                source, before = self._chain(other)
                before = before[: len(before) - len(operations) + at[0] + 1]
                if all(is_ours(one) for _, _, one in before):
                    return source, before + own[1:]
                raise OptionError(
                    f"the pipeline {name!r} starts behind an operation that batchplant does not know, and "
                    "cannot do the same twice; let it start at a field"
                )
        raise OptionError(f"the pipeline {name!r} starts at {spec.source!r}, which is in no other pipeline")

    def _pipe(self, name: str) -> Pipe:
        source, chain = self._chain(name)
        steps: list[Any] = []
        own = tensors = False
        made: Any
        for origin, number, one in chain:
            # Nobody but the decoder itself knows what a field of the user's own holds.
            foreign = number == 0 and source in self._reader.custom
            if is_ours(one) and not foreign:
                self._tell(one, source)
                if isinstance(one, RandomResizedCrop) and [type(step) for step in steps] == [ops.Decode]:
                    # One with the decoder, which then decodes no more than it needs.
                    steps, made = [], one.as_decoder()
                elif own and steps:
                    made = Either(one.as_op(False), one.as_op(True))
                else:
                    made = one.as_op(tensors)
                made.share = made.share or f"{origin}/{number}"
            elif isinstance(one, Operation):
                made, own = self._adapter(name, number, one, source), True
            elif isinstance(one, Op) or callable(one):
                made = one
            else:
                raise OptionError(f"the pipeline {name!r} holds operations and modules, not {one!r}")
            tensors = tensors or isinstance(made, TENSOR_OPS)
            steps.append(made)
        first = IDS if isinstance(steps[0], UserOp) else source
        return Pipe(first, split_at_device(normalise_early(steps)))

    def _tell(self, operation: Operation, source: str) -> None:
        operation.accept_field(self._reader.handlers[source])
        operation.accept_globals(self._table(source), self._memory.compile_reader)

    def _table(self, source: str) -> Any:
        return self._reader.metadata[f"f{list(self._reader.handlers).index(source)}"]

    def _adapter(self, name: str, number: int, operation: Operation, source: str) -> UserOp:
        key = (name, number)
        if key not in self._adapters:
            self._adapters[key] = UserOp(
                operation, self._reader.handlers[source], self._table(source), self._memory,
                decodes=number == 0, recompile=self._recompile,
            )  # fmt: skip
        return self._adapters[key]


class Either(Op):
    """An op of which nobody knows, before the user's operations were asked, whether it gets tensors."""

    def __init__(self, arrays: Op, tensors: Op) -> None:
        self.arrays, self.tensors = arrays, tensors
        self.share = arrays.share

    def infer(self, spec: Spec) -> Spec:
        return (self.tensors if spec.torch else self.arrays).infer(spec)

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        chosen = self.tensors if isinstance(batch, torch.Tensor) else self.arrays
        return chosen.run(batch, ids, draws)


def normalise_early(steps: list[Any]) -> list[Any]:
    """A normalisation of tensors that never left the CPU, moved to where the engine does it in passing."""
    places = [number for number, one in enumerate(steps) if isinstance(one, NormalizeTensor)]
    firsts = [number for number, one in enumerate(steps) if isinstance(one, TENSOR_OPS)]
    if not places or not firsts or not isinstance(steps[0], ops.ImageDecoder):
        return steps
    place, first = places[0], firsts[0]
    if not all(_only_wraps(one) for one in steps[first:place]):
        return steps
    late = steps[place]
    early = ops.Normalize(late.mean.tolist(), late.std.tolist(), late.dtype)
    return [*steps[:first], early, *steps[first:place], *steps[place + 1 :]]


def _only_wraps(step: Any) -> bool:
    if isinstance(step, interop.ToDevice):
        return bool(step.device.type == "cpu")
    return isinstance(step, interop.ToTensor | interop.ToTorchImage)


def split_at_device(steps: list[Any]) -> list[Any]:
    """The steps, with all from the first copy to a CUDA device on as one that is put off."""
    for number, one in enumerate(steps):
        if isinstance(one, interop.ToDevice) and one.device.type == "cuda":
            return [*steps[:number], Deferred(steps[number:])]
    return steps


class Pending:
    """A batch on the host, and the steps that are left to do on the device's own stream."""

    def __init__(self, batch: Any, ids: I64, draws: Draws, steps: list[Any]) -> None:
        self.batch, self._ids, self._draws, self._steps = batch, ids, draws, steps

    def finish(self) -> Any:
        value = self.batch
        for step in self._steps:
            value = step.run(value, self._ids, self._draws)
        return value


class Deferred(Op):
    """Steps that are done when the batch is handed over to the device."""

    def __init__(self, steps: list[Any]) -> None:
        self.steps = [one if isinstance(one, Op) else ops.Function(one) for one in steps]

    @property
    def device(self) -> Any:
        return self.steps[0].device  # type: ignore[attr-defined]

    def infer(self, spec: Spec) -> Spec:
        for step in self.steps:
            spec = step.infer(spec)
        return spec

    def run(self, batch: Any, ids: I64, draws: Draws) -> Any:
        return Pending(batch, ids, draws, self.steps)


class Delivery(interop.Delivery):
    """Does what was put off, on a stream of its own; what stays on the host is left as it is."""

    def send(self, values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        with torch.cuda.stream(self.stream):
            done = {name: one.finish() if isinstance(one, Pending) else one for name, one in values.items()}
            event = torch.cuda.Event()
            event.record(self.stream)
        # The host's memory has to stay until it is copied.
        return done, (event, values)


def delivery_for(devices: set[Any]) -> Delivery | None:
    if len(devices) > 1:
        said = ", ".join(sorted(map(str, devices)))
        raise OptionError(f"one loader feeds one device, and the pipelines name {said}")
    return Delivery(devices.pop()) if devices else None
