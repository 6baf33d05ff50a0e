"""Translation of FFCV's pipelines to batchplant's."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from ... import ops
from ...errors import OptionError
from ...interop import torch as interop
from ...loading.plan import FieldPipelines, Pipe
from ...ops import ImageDecoder
from ...ops.base import Batch, Draws, Op, Spec
from ...schema.columns import I64
from .beton_fields import Field
from .operations import (
    USER_CODE_LOCK,
    Allocation,
    Compiler,
    Operation,
    State,
    allocate,
    is_ours,
    numba,
    spec_of,
    state_of,
)
from .reader import IDS, MemoryManager, Reader
from .steps import ModuleWrapper, NormalizeTensor, RandomResizedCrop, ToTensor


class PipelineSpec:
    """``PipelineSpec("image", decoder, [steps])``: one more view of the field ``image``.

    With an operation of another pipeline in place of the name, it continues from that operation's output.
    """

    def __init__(
        self, source: str | Operation, decoder: Operation | None = None, transforms: list[Any] | None = None
    ) -> None:
        self.source = source
        self.decoder = decoder
        # A copy: one list of steps may serve several loaders.
        self.transforms: list[Any] = list(transforms or ())
        self.default_pipeline = decoder is None and not self.transforms and isinstance(source, str)

    def __repr__(self) -> str:
        return repr((self.source, self.decoder, self.transforms))

    def accept_decoder(self, Decoder: Any, output_name: str) -> None:  # noqa: N803
        """Find the decoder: the first step, or the field's own; wrap torch modules."""
        if not isinstance(self.source, str) and self.decoder is not None:
            raise OptionError(
                f"the pipeline {output_name!r} starts at an operation of another, so it has no decoder"
            )
        if Decoder is not None and self.decoder is None:
            if self.transforms and isinstance(self.transforms[0], (Decoder, ImageDecoder)):
                self.decoder = self.transforms.pop(0)
            else:
                try:
                    self.decoder = Decoder()
                except TypeError as error:
                    raise OptionError(
                        f"the pipeline {output_name!r} needs a decoder as its first step: "
                        f"{Decoder.__name__} has no default ({error})"
                    ) from None
        if self.default_pipeline:
            self.transforms.append(ToTensor())
            self.default_pipeline = False
        self.transforms = [
            ModuleWrapper(step) if isinstance(step, torch.nn.Module) else step for step in self.transforms
        ]


TENSOR_OPS = (interop.ToTensor, interop.ToDevice, interop.ToTorchImage, interop.ModuleWrapper)


_LOCAL = threading.local()


class UserOp(Op):
    """Runs an operation that a user wrote.

    ``decodes``: the operation stands at the start of a pipeline and reads the file itself.
    """

    def __init__(
        self,
        operation: Operation,
        field: Field,
        metadata: Any,
        memory: MemoryManager,
        *,
        decodes: bool,
        recompile: bool,
    ) -> None:
        self.operation = operation
        self._field, self._metadata, self._memory = field, metadata, memory
        self._decodes, self._recompile = decodes, recompile
        self._code: Callable[..., Any] | None = None
        self._python_code: Callable[..., Any] | None = None
        self._fill_shared: Callable[..., Any] | None = None
        self._query: Allocation | None = None
        self._shared_query: Allocation | None = None

    def infer(self, spec: Spec) -> Spec:
        state = state_of(spec)
        if self._decodes:
            state = State(True, torch.device("cpu"), None, np.dtype(np.uint8))
        operation = self.operation
        with USER_CODE_LOCK:
            operation.accept_field(self._field)
            operation.accept_globals(self._metadata, self._memory.compile_reader())
            output, self._query = operation.declare_state_and_memory(state)
            self._shared_query = operation.declare_shared_memory(state)
            if self._code is None or self._recompile:
                self._python_code = operation.generate_code()
                self._fill_shared = operation.generate_code_for_shared_state()
                self._code = Compiler.compile(self._python_code) if output.jit_mode else self._python_code
        return spec_of(output)

    @property
    def code(self) -> Callable[..., Any] | None:
        """The operation's function, compiled or not."""
        return self._code

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        with USER_CODE_LOCK:
            arguments = [ids if self._decodes else batch, allocate(self._query, len(ids))]
            if getattr(self._python_code, "with_indices", False):
                arguments.append(ids)
            if self._decodes:
                arguments += [self._metadata, self._memory.schedule_epoch([]).state]
            if self._fill_shared is not None:
                arguments.append(self._shared(ids))
            return self._call(arguments)

    def _shared(self, ids: I64) -> Any:
        """Return the memory that all uses of this operation share, filled once for every batch."""
        # One thread makes all outputs of a batch, with the same array of sample numbers.
        if getattr(_LOCAL, "ids", None) is not ids:
            _LOCAL.ids, _LOCAL.shared = ids, {}
        if id(self.operation) not in _LOCAL.shared:
            memory = allocate(self._shared_query, len(ids))
            assert self._fill_shared is not None
            self._fill_shared(memory)
            _LOCAL.shared[id(self.operation)] = memory
        return _LOCAL.shared[id(self.operation)]

    def _call(self, arguments: list[Any]) -> Batch:
        assert self._code is not None
        if self._code is self._python_code:
            return self._code(*arguments)
        try:
            return self._code(*arguments)
        except numba().core.errors.NumbaError as error:
            name = type(self.operation).__name__
            reason = str(error).strip().splitlines()[0]
            warnings.warn(f"numba cannot compile {name}, so it runs as plain Python: {reason}", stacklevel=2)
            self._code = self._python_code
            return self._call(arguments)

    def __repr__(self) -> str:
        return f"UserOp({type(self.operation).__name__})"


class Translator:
    """Makes the pipelines for every epoch; operations of users keep their compiled code."""

    def __init__(
        self, reader: Reader, memory: MemoryManager, specs: Mapping[str, PipelineSpec], recompile: bool
    ) -> None:
        self._reader, self._memory, self._specs, self._recompile = reader, memory, specs, recompile
        self._user_ops: dict[tuple[str, int], UserOp] = {}

    def pipelines(self) -> FieldPipelines:
        pipelines: dict[str, Any] = dict.fromkeys(self._reader.source.schema)
        for name in self._specs:
            pipelines[name] = self._pipe(name)
        return pipelines

    def fingerprint(self) -> str:
        """Return a text that changes when an attribute of an operation does."""
        hidden = ("metadata", "memory_read", "field")
        return repr(
            [
                (name, type(step), {key: value for key, value in vars(step).items() if key not in hidden})
                for name, spec in self._specs.items()
                for step in (spec.decoder, *spec.transforms)
                if isinstance(step, Operation)
            ]
        )

    def devices(self) -> set[torch.device]:
        """Return the CUDA devices that batches go to."""
        pipes = [pipe.ops for pipe in self.pipelines().values() if isinstance(pipe, Pipe)]
        return {step.device for steps in pipes for step in steps if isinstance(step, Deferred)}

    def _chain(self, name: str) -> tuple[str, list[tuple[str, int, Any]]]:
        """Return the source field of a pipeline, and (pipeline, position, operation) of its operations."""
        spec = self._specs[name]
        chain = [(name, number, step) for number, step in enumerate([spec.decoder, *spec.transforms])]
        if isinstance(spec.source, str):
            if spec.source not in self._reader.handlers:
                names = ", ".join(self._reader.handlers)
                raise OptionError(
                    f"the pipeline {name!r} starts at {spec.source!r}, which is no field; there are: {names}"
                )
            return spec.source, chain
        # It continues from an operation of another pipeline: the steps before are repeated, with the same
        # random draws.
        for origin in self._specs:
            operations = [self._specs[origin].decoder, *self._specs[origin].transforms]
            positions = [number for number, step in enumerate(operations) if step is spec.source]
            if positions and origin != name:
                source, before = self._chain(origin)
                before = before[: len(before) - len(operations) + positions[0] + 1]
                if all(is_ours(step) for _, _, step in before):
                    return source, before + chain[1:]
                raise OptionError(
                    f"the pipeline {name!r} starts behind an operation that batchplant does not know, and "
                    "cannot do the same twice; let it start at a field"
                )
        raise OptionError(f"the pipeline {name!r} starts at {spec.source!r}, which is in no other pipeline")

    def _pipe(self, name: str) -> Pipe:
        source, chain = self._chain(name)
        steps: list[Any] = []
        after_user_op = tensors = False
        op: Any
        for origin, number, operation in chain:
            # Only its own decoder can read the field of a user.
            is_foreign = number == 0 and source in self._reader.custom
            if is_ours(operation) and not is_foreign:
                self._inform(operation, source)
                is_decoded = [type(step) for step in steps] == [ops.Decode]
                if isinstance(operation, RandomResizedCrop) and is_decoded:
                    # Fused with the decoder, which then decodes no more than it needs.
                    steps, op = [], operation.as_decoder()
                elif after_user_op and steps:
                    op = ArraysOrTensors(operation.as_op(False), operation.as_op(True))
                else:
                    op = operation.as_op(tensors)
                op.share = op.share or f"{origin}/{number}"
            elif isinstance(operation, Operation):
                op, after_user_op = self._user_op(name, number, operation, source), True
            elif isinstance(operation, Op) or callable(operation):
                op = operation
            else:
                raise OptionError(f"the pipeline {name!r} holds operations and modules, not {operation!r}")
            tensors = tensors or isinstance(op, TENSOR_OPS)
            steps.append(op)
        first = IDS if isinstance(steps[0], UserOp) else source
        return Pipe(first, split_at_device(normalise_early(steps)))

    def _inform(self, operation: Operation, source: str) -> None:
        operation.accept_field(self._reader.handlers[source])
        operation.accept_globals(self._table(source), self._memory.compile_reader)

    def _table(self, source: str) -> Any:
        return self._reader.metadata[f"f{list(self._reader.handlers).index(source)}"]

    def _user_op(self, name: str, number: int, operation: Operation, source: str) -> UserOp:
        key = (name, number)
        if key not in self._user_ops:
            self._user_ops[key] = UserOp(
                operation, self._reader.handlers[source], self._table(source), self._memory,
                decodes=number == 0, recompile=self._recompile,
            )  # fmt: skip
        return self._user_ops[key]


class ArraysOrTensors(Op):
    """Chooses one of two ops by its input, whose kind only the user's operations before it determine."""

    def __init__(self, arrays: Op, tensors: Op) -> None:
        self.arrays, self.tensors = arrays, tensors
        self.share = arrays.share

    def infer(self, spec: Spec) -> Spec:
        return (self.tensors if spec.torch else self.arrays).infer(spec)

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        op = self.tensors if isinstance(batch, torch.Tensor) else self.arrays
        return op.run(batch, ids, draws)


def normalise_early(steps: list[Any]) -> list[Any]:
    """Move a normalisation of CPU tensors to the front, where the engine fuses it with decoding."""
    normalizations = [number for number, step in enumerate(steps) if isinstance(step, NormalizeTensor)]
    tensor_steps = [number for number, step in enumerate(steps) if isinstance(step, TENSOR_OPS)]
    if not normalizations or not tensor_steps or not isinstance(steps[0], ops.ImageDecoder):
        return steps
    old, new = normalizations[0], tensor_steps[0]
    if not all(_only_wraps(step) for step in steps[new:old]):
        return steps
    late = steps[old]
    early = ops.Normalize(late.mean.tolist(), late.std.tolist(), late.dtype)
    return [*steps[:new], early, *steps[new:old], *steps[old + 1 :]]


def _only_wraps(step: object) -> bool:
    if isinstance(step, interop.ToDevice):
        return bool(step.device.type == "cpu")
    return isinstance(step, interop.ToTensor | interop.ToTorchImage)


def split_at_device(steps: list[Any]) -> list[Any]:
    """Replace all steps from the first copy to a CUDA device on by one deferred step."""
    for number, step in enumerate(steps):
        if isinstance(step, interop.ToDevice) and step.device.type == "cuda":
            return [*steps[:number], Deferred(step.device, steps[number:])]
    return steps


class Pending:
    """A batch on the host, and its remaining steps on the device's own stream."""

    def __init__(self, batch: Batch, ids: I64, draws: Draws, steps: list[Any]) -> None:
        self.batch, self._ids, self._draws, self._steps = batch, ids, draws, steps

    def finish(self) -> Any:
        value = self.batch
        for step in self._steps:
            value = step.run(value, self._ids, self._draws)
        return value


class Deferred(Op):
    """Steps that run when the batch is delivered to the device."""

    def __init__(self, device: torch.device, steps: list[Any]) -> None:
        self.device = device
        self.steps = [step if isinstance(step, Op) else ops.Function(step) for step in steps]

    def infer(self, spec: Spec) -> Spec:
        for step in self.steps:
            spec = step.infer(spec)
        return spec

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        return Pending(batch, ids, draws, self.steps)


class Delivery(interop.Delivery):
    """Runs deferred steps on its own stream; values that stay on the host pass through."""

    def send(self, values: dict[str, Any]) -> tuple[dict[str, Any], Any]:
        with torch.cuda.stream(self.stream):
            batch = {
                name: value.finish() if isinstance(value, Pending) else value
                for name, value in values.items()
            }
            event = torch.cuda.Event()
            event.record(self.stream)
        # The host's memory must stay until the copy is complete.
        return batch, (event, values)


def delivery_for(devices: set[torch.device]) -> Delivery | None:
    if len(devices) > 1:
        names = ", ".join(sorted(map(str, devices)))
        raise OptionError(f"one loader feeds one device, and the pipelines name {names}")
    return Delivery(devices.pop()) if devices else None
