"""Steps that see several outputs of a batch at once, and change or add some: ``Loader(pipelines=[…])``."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptionError, listed, near
from ..ops.base import DeviceForm, DType, Tensors
from ..schema.columns import I64, AnyDType
from .annotations import Mover
from .base import Batch, CellOp, Draws, Op, RowError, Spec
from .function import Function, part_of
from .video import adapt_op


class OutputInfo(NamedTuple):
    """Facts about the outputs of a batch, by name.

    movers: what moves those that lie in an image, as they are in the batch. rows: the outputs with a row for
    each of these boxes. classes: how many a field names.
    """

    specs: dict[str, Spec]
    movers: dict[str, Mover]
    rows: dict[str, tuple[str, ...]]
    classes: dict[str, int]

    def spec(self, name: str, op: object) -> Spec:
        if name not in self.specs:
            raise OptionError(
                f"{op!r} needs {name!r}, which the batch does not have{near(name, self.specs)}; "
                f"there are: {listed(self.specs)}"
            )
        return self.specs[name]


class JointOp(Op):
    """A step of several outputs: ``run`` takes those of ``inputs`` by name and gives those of ``outputs``.

    So does ``on_device``, where it has one. It is run where the first of ``inputs`` is on the device.
    """

    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    # Inputs that this step removes from the batch.
    drops: tuple[str, ...] = ()

    @property
    def device_inputs(self) -> tuple[str, ...]:
        """Inputs that ``on_device`` takes as tensors or arrays; the others come to it as arrays."""
        return self.inputs[:1]

    def infer(self, spec: Spec) -> Spec:
        raise OptionError(
            f"{self!r} sees several fields: put it beside their pipelines, as in "
            f"pipelines=[{{…}}, {type(self).__name__}(…)]"
        )

    def infer_all(self, outputs: OutputInfo) -> dict[str, Spec]:
        """Return the specs of ``outputs``; raise OptionError if the op cannot take the inputs."""
        raise NotImplementedError


class Map(JointOp):
    """A function, or an op, of several outputs of a batch: ``Map(fn, inputs=["image", "boxes"])``.

    It gets the values of the inputs of a sample, one argument each, and gives those of the outputs (default:
    the inputs) in that order, or a dict of them. Outputs that are not there yet are added. rng: a parameter
    of that name gets the random draws of the sample. batched: it gets and gives what a whole batch has:
    arrays, (values, offsets), lists. shape, dtype: what comes out, or a dict by output; None as the first
    size: it varies, and the batch has (values, offsets). parallel, workers: as in Function.
    """

    def __init__(
        self,
        function: Callable[..., Any] | Op,
        inputs: str | Sequence[str],
        outputs: str | Sequence[str] | None = None,
        *,
        batched: bool = False,
        shape: Any = None,
        dtype: DType = None,
        parallel: str | None = None,
        workers: int | None = None,
        share: str | None = None,
    ) -> None:
        self.function, self.batched, self.share = function, bool(batched), share
        self.inputs = _names(inputs, "inputs")
        self.outputs = self.inputs if outputs is None else _names(outputs, "outputs")
        self._shapes = _by_output(shape, self.outputs, "shape")
        self._dtypes = _by_output(dtype, self.outputs, "dtype")
        self.op = function if isinstance(function, Op) else None
        self._called: Function | None = None
        # By output, whether it is an array, of varying length, or a list.
        self._layout: dict[str, str] = {}
        if self.op is not None:
            self._check_op(self.op)
        elif not callable(function) or (isinstance(function, type) and issubclass(function, Op)):
            raise OptionError(f"Map takes a function or an op, not {function!r}")
        else:
            self._called = Function(
                _Spread(function), each=not self.batched, parallel=parallel, workers=workers
            )
            self.batches, self.mixes = self._called.batches, self.batched

    def _check_op(self, op: Op) -> None:
        if len(self.inputs) > 1 or len(self.outputs) > 1 or isinstance(op, JointOp | CellOp):
            raise OptionError(f"Map runs an op of values on one output, as in Map({op!r}, 'image')")
        self.batches, self.mixes, self.share = op.batches, op.mixes, self.share or op.share

    @property
    def name(self) -> str:
        return str(getattr(self.function, "__name__", None) or repr(self.function))

    def __repr__(self) -> str:
        outputs = "" if self.outputs == self.inputs else f", outputs={list(self.outputs)}"
        return (
            f"Map({self.name}, inputs={list(self.inputs)}{outputs}{', batched=True' if self.batched else ''})"
        )

    def for_loader(self) -> Map:
        copied = copy.copy(self)
        copied.op = None if self.op is None else self.op.for_loader()
        copied._called = None if self._called is None else self._called.for_loader()
        copied._layout = {}
        return copied

    def close(self) -> None:
        for step in (self.op, self._called):
            if step is not None:
                step.close()

    def infer_all(self, outputs: OutputInfo) -> dict[str, Spec]:
        specs = [outputs.spec(name, self) for name in self.inputs]
        if self.op is not None:
            self.op, spec = adapt_op(self.op, specs[0])
            return {self.outputs[0]: spec}
        output_specs = {}
        for name in self.outputs:
            before, shape, dtype = outputs.specs.get(name, Spec(None)), self._shapes[name], self._dtypes[name]
            if shape is not None:
                ragged = bool(shape) and shape[0] is None
                output_specs[name] = Spec(
                    np.dtype(dtype) if dtype else before.dtype or np.dtype(np.float32), shape, ragged=ragged
                )
            else:
                output_specs[name] = before if dtype is None else before.replace(dtype=np.dtype(dtype))
            spec = output_specs[name]
            new = name not in outputs.specs and shape is None
            self._layout[name] = (
                "any" if new else "ragged" if spec.ragged else "list" if spec.dtype is None else "array"
            )
        return output_specs

    @property
    def device_form(self) -> DeviceForm | None:
        return None if self.op is None or self.op.device_form is None else self._run_on_device

    def _run_on_device(self, batch: Batch, ids: I64, draws: Draws, tensors: Tensors) -> Batch:
        assert self.op is not None
        assert self.op.device_form is not None
        return {self.outputs[0]: self.op.device_form(batch[self.inputs[0]], ids, draws, tensors)}

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        if self.op is not None:
            return {self.outputs[0]: self.op.run(batch[self.inputs[0]], ids, draws)}
        assert self._called is not None
        inputs = [batch[name] for name in self.inputs]
        if self.batched:
            results = self._by_name(self._called.run(inputs, ids, draws))
            return {name: self._typed(name, value) for name, value in results.items()}
        rows = [[part_of(value, row) for value in inputs] for row in range(len(ids))]
        results_by_row = []
        for row, result in enumerate(self._called.run(rows, ids, draws)):
            try:
                results_by_row.append(self._by_name(result))
            except OptionError as error:
                raise RowError(row, error) from None
        return {name: self._join(name, [result[name] for result in results_by_row]) for name in self.outputs}

    def _by_name(self, result: Batch) -> dict[str, Batch]:
        """Results of the function, by output."""
        if isinstance(result, Mapping) and set(result) == set(self.outputs):
            return dict(result)
        if len(self.outputs) == 1:
            return {self.outputs[0]: result}
        if isinstance(result, tuple | list) and len(result) == len(self.outputs):
            return dict(zip(self.outputs, result, strict=True))
        many = f" of {len(result)}" if isinstance(result, tuple | list) else ""
        raise OptionError(
            f"{self.name} gives {listed(self.outputs)}: a tuple of {len(self.outputs)}, or a dict of these; "
            f"not a {type(result).__name__}{many}"
        )

    def _typed(self, name: str, value: Batch) -> Batch:
        dtype = self._dtypes[name]
        if isinstance(value, tuple):
            return np.asarray(value[0], dtype=dtype), np.asarray(value[1], dtype=np.int64)
        return value if isinstance(value, list) or dtype is None else np.asarray(value, dtype=dtype)

    def _join(self, name: str, values: list[Batch]) -> Batch:
        """The values of samples as a batch."""
        layout, dtype, shape = self._layout.get(name, "any"), self._dtypes[name], self._shapes[name]
        if layout == "list" or (layout == "any" and not all(map(_is_number, values))):
            return values
        arrays = [np.asarray(array, dtype=dtype) for array in values]
        skip = int(layout == "ragged")
        for row, array in enumerate(arrays):
            if array.shape[skip:] != arrays[0].shape[skip:] or (skip and not array.ndim):
                problem = (
                    f"{self.name} gave the shape {array.shape} for {name!r}, and {arrays[0].shape} for others"
                )
                raise RowError(
                    row,
                    OptionError(
                        f"{problem}; if the first size varies, say so: shape={{'{name}': (None, …)}}"
                    ),
                )
        if not arrays:
            return np.empty((0, *(size or 0 for size in (shape or ())[skip:])), dtype or np.float32)
        if not skip:
            return np.stack(arrays)
        return np.concatenate(arrays), np.cumsum([0, *map(len, arrays)], dtype=np.int64)


class Stack(JointOp):
    """Columns of a table as one matrix: ``pipelines=[Stack(["age", "income"], into="x")]``.

    Each of ``inputs`` is a column of numbers, which becomes a column of the matrix, or one of rows of
    numbers, which become several; they stand in the order of ``inputs``. dtype: that of the matrix (default:
    the one that NumPy converts all of them to, so int64 beside float32 gives float64). keep: the batch also
    has the inputs. Missing numbers are what they are in the batch, NaN or 0.
    """

    def __init__(
        self, inputs: str | Sequence[str], into: str, *, dtype: DType = None, keep: bool = False
    ) -> None:
        self.inputs, self.outputs = _names(inputs, "inputs"), _names(into, "into")
        if len(self.outputs) != 1:
            raise OptionError(f"into is the name of the matrix, not {into!r}")
        self.dtype = None if dtype is None else np.dtype(dtype)
        self.keep = bool(keep)
        self.drops = () if keep else tuple(name for name in self.inputs if name not in self.outputs)
        self._dtype: AnyDType = np.dtype(np.float32)
        self._ends = [0]

    def __repr__(self) -> str:
        dtype = "" if self.dtype is None else f", dtype={self.dtype.name!r}"
        return f"Stack([{listed(map(repr, self.inputs))}], into={self.outputs[0]!r}{dtype})"

    def for_loader(self) -> Stack:
        return copy.copy(self)

    def infer_all(self, outputs: OutputInfo) -> dict[str, Spec]:
        dtypes, widths = [], []
        for name in self.inputs:
            spec = outputs.spec(name, self)
            shape = spec.shape
            if (
                spec.dtype is None or spec.dtype.kind not in "biuf" or spec.ragged or spec.unequal
                or len(shape) > 1 or None in shape
            ):  # fmt: skip
                raise OptionError(
                    f"Stack joins numbers, and rows of numbers of one length; {name!r} is {spec}"
                )
            dtypes.append(spec.dtype)
            widths.append(shape[0] if shape else 1)
        self._dtype = np.result_type(*dtypes) if self.dtype is None else self.dtype
        self._ends = np.cumsum([0, *widths]).tolist()
        return {self.outputs[0]: Spec(self._dtype, (self._ends[-1],))}

    def run(self, batch: Batch, ids: I64, draws: Draws) -> Batch:
        matrix = np.empty((len(ids), self._ends[-1]), dtype=self._dtype)
        for number, name in enumerate(self.inputs):
            begin, end = self._ends[number : number + 2]
            matrix[:, begin:end] = np.asarray(batch[name]).reshape(len(ids), end - begin)
        return {self.outputs[0]: matrix}


class _Spread:
    """A function of several arguments as one of a list of them; it can go to another process."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.__name__ = str(getattr(function, "__name__", function))
        self.__qualname__, self.__module__ = self.__name__, str(getattr(function, "__module__", None))
        try:
            self._rng = "rng" in inspect.signature(function).parameters
        except (TypeError, ValueError):  # built in C
            self._rng = False

    def __call__(self, values: Batch, rng: Draws | None = None) -> Batch:
        return self.function(*values, rng=rng) if self._rng else self.function(*values)


def _is_number(value: object) -> bool:
    return (
        isinstance(value, np.ndarray | np.generic | int | float | bool)
        and np.asarray(value).dtype.kind in "biufc"
    )


def _names(names_or_name: str | Sequence[str], option: str) -> tuple[str, ...]:
    names = (names_or_name,) if isinstance(names_or_name, str) else tuple(names_or_name)
    if not names or not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
        raise OptionError(f"{option} are names of outputs, each once, not {names_or_name!r}")
    return names


def _by_output(value: Batch, outputs: tuple[str, ...], option: str) -> dict[str, Batch]:
    if isinstance(value, Mapping):
        wrong = [name for name in value if name not in outputs]
        if wrong:
            raise OptionError(f"{option} names {wrong[0]!r}, which is no output{near(wrong[0], outputs)}")
        by_output = {name: value.get(name) for name in outputs}
    elif value is not None and len(outputs) > 1:
        raise OptionError(f"there are {len(outputs)} outputs: give {option} as a dict, by their names")
    else:
        by_output = dict.fromkeys(outputs, value)
    if option == "shape":
        return {name: None if entry is None else tuple(entry) for name, entry in by_output.items()}
    return {name: None if entry is None else np.dtype(entry) for name, entry in by_output.items()}
