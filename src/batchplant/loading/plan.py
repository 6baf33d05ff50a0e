"""The plan of a loader: which fields are read, which step runs where, and the shape of every output.

``make_plan`` turns pipelines, as users write them, into a frozen ``Plan``. The first steps of an image
pipeline (decoder, crops, flips, normalisation, channels first) become one :class:`~.stage.ImageStage`, done
in one pass by the engine or by a device. The remaining steps run as ops on the batch: on that device as far
as they have a device form, then on the CPU.
"""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..data import hooks
from ..data.reader import Reader
from ..errors import OptionError, listed, located, near, no_such
from ..ops.annotations import AREA, MOVERS, RLE, MoveBoxes, MoveMask, Mover, MoveRle
from ..ops.base import CellOp, Op, Spec
from ..ops.crops import Collate, Decode, ImageDecoder
from ..ops.function import Function
from ..ops.joint import JointOp, Map, OutputInfo
from ..ops.values import Pad, Present
from ..ops.video import adapt_op, merge_cuts
from ..ops.volumes import CenterCrop3d
from ..schema import Bool, Boxes, Field, Float, Image, Int, List, Schema, Sparse, Tensor
from ..schema.columns import dense_of
from .stage import ImageStage, Step, fuse

# Suffixes of outputs: which values are present, and the sizes of padded images.
MASK = "_mask"
SIZES = "_sizes"
# The image modes that a device makes.
DEVICE_MODES = ("RGB", "L")
# What keep="geometry" adds to a batch; see GeometricTransforms.drawn.
DRAWN: dict[str, tuple[str, tuple[int, ...]]] = {
    "matrix": ("float64", (3, 3)), "size": ("int32", (2,)), "box": ("float64", (4,)), "flip": ("bool", ()),
    "angle": ("float64", ()),
}  # fmt: skip


# -- pipelines, as users write them ------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pipe:
    """A pipeline that starts at a field of another name: several views of one field.

    ops: steps of the pipeline, in order. keep: ``geometry`` adds what was drawn for an image, as outputs
    NAME_matrix, NAME_size, NAME_box, NAME_flip and NAME_angle; see
    :meth:`batchplant.loading.executor.GeometricTransforms.drawn`.
    """

    field: str
    ops: Sequence[Op | Callable[..., Any]] = ()
    keep: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.field, str):
            raise OptionError(
                f"Pipe starts at one field, not at {self.field!r}; steps that see several stand beside: "
                'Loader(…, pipelines=[Stack(["a", "b"], into="x")]) for a matrix, Map(fn, inputs=["a", "b"], '
                'outputs="x") for a function'
            )


FieldPipelines = Mapping[str, Pipe | Sequence[Op | Callable[..., Any]] | None]
# In a list, steps of several outputs and pipelines of single ones go on behind the entries before them.
Pipelines = FieldPipelines | Sequence[JointOp | FieldPipelines]


def as_op(step: object) -> Op:
    """Return a step of a pipeline as an op: functions and torch modules are wrapped."""
    if isinstance(step, Op):
        return step.for_loader()
    if isinstance(step, type) and issubclass(step, Op):
        raise OptionError(f"write {step.__name__}() with parentheses")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(step, type) and issubclass(step, torch.nn.Module):
        raise OptionError(f"write {step.__name__}() with parentheses")
    if torch is not None and isinstance(step, torch.nn.Module):
        # The plan knows no framework; the module is of one.
        return hooks.part("torch").ModuleWrapper(step)
    if callable(step):
        return Function(step)
    raise OptionError(f"a pipeline holds ops and functions, not {step!r}")


def _as_pipe(name: str, pipeline: Pipe | Sequence[Any] | None) -> Pipe:
    return pipeline if isinstance(pipeline, Pipe) else Pipe(name, pipeline or ())


def _names(schema: Schema, pipelines: FieldPipelines) -> list[str]:
    """Return the names of all fields, then those of outputs that are no fields."""
    return [*schema, *(name for name in pipelines if name not in schema)]


def _pipes_of(schema: Schema, pipelines: FieldPipelines) -> dict[str, Pipe]:
    """Return the pipelines of outputs that start at a field, by output."""
    pipes = {}
    for name in _names(schema, pipelines):
        pipeline = pipelines.get(name, ())
        pipe = _as_pipe(name, pipeline)
        if pipeline is not None and pipe.field in schema:
            pipes[name] = pipe
    return pipes


def _may_miss(field: Field) -> bool:
    """Return True for an array field whose values may be missing."""
    return field.optional and dense_of(field) is not None


def _masked_by(name: str, schema: Schema, pipelines: FieldPipelines) -> str | None:
    """Return the output whose mask has this name, where no field has it."""
    if name in schema:
        return None
    for output, pipeline in pipelines.items():
        ops = pipeline.ops if isinstance(pipeline, Pipe) else pipeline
        if any(padding_name(op, output) == name for op in (ops if isinstance(ops, Iterable) else ())):
            return output
    if not name.endswith(MASK):
        return None
    output = name.removesuffix(MASK)
    pipeline = pipelines.get(output, ())
    field = pipeline.field if isinstance(pipeline, Pipe) else output
    has_mask = pipeline is not None and field in schema and _may_miss(schema[field])
    return output if has_mask else None


def padding_name(op: object, name: str) -> str | None:
    """Return the name of the mask, or sizes, that an op adds by padding output ``name``; None without one."""
    if isinstance(op, Collate):
        return name + SIZES if op.how == "pad" else None
    mask = op.mask if isinstance(op, Pad) else False
    return name + MASK if mask is True else mask or None


# -- the plan ----------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Output:
    """One entry of every batch.

    ``on_device``: a device makes the images and runs the first ``device_steps`` steps; the rest runs on the
    CPU, and ``obstacle`` says why. Without images it runs the steps from ``device_from`` on. ``beside``: the
    output starts with the mask that padding that output makes. ``mover``: moves its positions with an image
    first. ``rows_of``: the output loses the rows whose boxes are dropped there. ``drawn``: the output is a
    parameter drawn for the image ``of``, no field.
    """

    name: str
    field: str
    image: ImageStage | None
    steps: tuple[Step[Op], ...]
    spec: Spec
    on_device: bool = False
    device_steps: int = 0
    device_from: int = 0
    obstacle: str = ""
    beside: str | None = None
    mover: Mover | None = None
    rows_of: str | None = None
    drawn: str | None = None
    of: str | None = None

    @property
    def is_mask(self) -> bool:
        """True if it says which values of its field are present."""
        return self.beside is not None or (bool(self.steps) and isinstance(self.steps[0].op, Present))

    def __str__(self) -> str:
        kind = "sizes" if self.name.endswith(SIZES) else "mask"
        stages = [self.field if self.beside is None else f"{kind} of {self.beside}"]
        if self.image is not None:
            stages.append(f"{'device' if self.on_device else 'engine'}({self.image})")
        if self.drawn is not None:
            stages.append(f"{self.drawn} of {self.of}")
        stages += [] if self.mover is None else [repr(self.mover)]
        stages += [] if self.rows_of is None else [f"rows of {self.rows_of}"]
        for number, step in enumerate(self.steps):
            if self.on_device and number == self.device_steps:
                stages.append("CPU")
            if self.on_device and self.image is None and number == self.device_from:
                stages.append("device")
            stages.append(repr(step.op))
        line = f"{self.name}: {' → '.join(stages)} → {self.spec}"
        return f"{line}\n  {self.obstacle}" if self.obstacle else line


@dataclasses.dataclass(frozen=True)
class Plan:
    """The outputs of every batch, and how each is made; ``joint`` steps run behind all pipelines."""

    outputs: tuple[Output, ...]
    joint: tuple[Step[JointOp], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The entries of a batch."""
        added = [name for step in self.joint for name in step.op.outputs]
        dropped = {name for step in self.joint for name in step.op.drops}
        names = dict.fromkeys([*(output.name for output in self.outputs), *added])
        return tuple(name for name in names if name not in dropped)

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields that are read as columns; images are decoded from where they lie."""
        outputs = [output for output in self.outputs if output.image is None and not output.drawn]
        return tuple(dict.fromkeys(output.field for output in outputs))

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields that a batch needs."""
        return tuple(dict.fromkeys(output.field for output in self.outputs))

    @property
    def images(self) -> tuple[Output, ...]:
        return tuple(output for output in self.outputs if output.image is not None)

    @property
    def on_device(self) -> tuple[Output, ...]:
        """The outputs that a device makes."""
        return tuple(output for output in self.outputs if output.on_device)

    @property
    def ops(self) -> tuple[Op, ...]:
        """The ops that run on batches behind the decoders."""
        steps = [step.op for output in self.outputs for step in output.steps]
        return (*steps, *(step.op for step in self.joint))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.outputs), *(f"then {step.op!r}" for step in self.joint)])


def make_plan(reader: Reader, pipelines: Pipelines | None = None, *, on_device: bool = False) -> Plan:
    """Return the plan for these pipelines; a field without one is given as it is, with None it is left out.

    ``on_device``: there is a device that can make images.
    """
    entries: Any = [pipelines or {}] if isinstance(pipelines or {}, Mapping) else pipelines
    if not isinstance(entries, Sequence) or isinstance(entries, str):
        raise OptionError(
            "pipelines holds ops by field, as {'image': [Resize(64)]}, or a list of these and of steps that "
            f"see several fields, not {pipelines!r}"
        )
    first, joint = (entries[0], entries[1:]) if isinstance(entries[0], Mapping) else ({}, entries)
    fields, schema = dict(first), reader.schema
    for name in fields:
        if not isinstance(name, str):
            raise OptionError(
                f"a pipeline is that of one field, not of {name!r}: steps that see several stand beside, "
                "as in pipelines=[{…}, Stack(…)]",
                path=reader.path,
            )
    outputs: list[Output] = []
    links = _annotation_links(_pipes_of(schema, fields), schema)
    for name in _names(schema, fields):
        pipeline = fields.get(name, ())
        if pipeline is None and name in schema:
            continue
        pipe = _as_pipe(name, pipeline)
        if _masked_by(name, schema, fields) is not None and not isinstance(pipeline, Pipe):
            continue
        if pipe.field not in schema:
            if isinstance(pipeline, Pipe):
                missing = no_such("field", pipe.field, schema)
                raise OptionError(f"pipeline {name!r}: {missing}", path=reader.path)
            raise OptionError(
                f"pipeline {name!r} has no field{near(name, schema)}; name one with Pipe(field, ops);"
                f" there are: {listed(schema)}",
                path=reader.path,
            )
        output = _make_output(reader, name, pipe, links, on_device=on_device)
        outputs += [output, *_drawn_outputs(output, pipe, reader, fields)]
        if _has_mask(output, reader):
            outputs += _mask_outputs(output, reader, fields)
        outputs += _padding_outputs(output, reader, fields)
    if not outputs:
        raise OptionError("every field is left out; a batch would be empty")
    with located(path=reader.path):
        steps = _joint_steps(joint, outputs, schema)
    if on_device:
        outputs = [_with_joint_obstacle(_place_on_device(output, schema), steps) for output in outputs]
    return Plan(tuple(outputs), steps)


def _make_output(
    reader: Reader, name: str, pipe: Pipe, links: AnnotationLinks | None = None, *, on_device: bool = False
) -> Output:
    field = reader.schema[pipe.field]
    image = None
    with located(path=reader.path, field=name):
        if isinstance(pipe.ops, Op | str) or not isinstance(pipe.ops, Iterable):
            raise OptionError(f"a pipeline is a list of ops, not {pipe.ops!r}")
        ops = [(op, op.share or f"{name}/{number}") for number, op in enumerate(map(as_op, pipe.ops))]
        mover, rows_of = (links.movers.get(name), links.rows_of.get(name)) if links else (None, None)
        if ops and isinstance(ops[0][0], Mover):
            ops.pop(0)
        if ops and links and isinstance(field, Image) and isinstance(ops[0][0], MoveMask):
            ops[:1] = links.moves_of(ops[0][0])
        if isinstance(field, Image):
            if not ops or not isinstance(ops[0][0], ImageDecoder):
                ops.insert(0, (Decode(), f"{name}/decode"))
            image, spec, ops = fuse(reader, pipe.field, field, ops, on_device=on_device)
        else:
            spec, ops = spec_of(field), merge_cuts(ops)
            crops = bool(ops) and isinstance(ops[0][0], CenterCrop3d)
            if crops and isinstance(field, Tensor) and spec.dtype is None and not field.optional:
                spec = Spec(np.dtype(field.dtype), field.shape, unequal=True)
        if mover is not None:
            spec = mover.infer_moved(spec)
        if rows_of is not None:
            spec = _without_fixed_rows(spec, name, ops[0][0] if ops else None)
        steps: list[Step[Op]] = []
        for number, (op, key) in enumerate(ops):
            if isinstance(op, CellOp) and number == 0 and image is None:
                spec = op.infer_field(field)
            else:
                op, spec = adapt_op(op, spec)
            steps.append(Step(op, key, spec))
        if image is not None and spec.unequal and not any(isinstance(op, Collate) for op in pipe.ops):
            raise OptionError('images of unequal sizes: put Collate("pad") or Collate("list") behind them')
    return Output(name, pipe.field, image, tuple(steps), spec, mover=mover, rows_of=rows_of)


# Cached, for every batch asks for it, too.
@functools.lru_cache(1024)
def spec_of(field: Field) -> Spec:
    """Return what a field gives without any op."""
    dense = dense_of(field)
    if dense is not None:
        return Spec(*dense, names=field.names if isinstance(field, Int) else None)
    if isinstance(field, Tensor) and field.flat and not field.optional:
        return Spec(np.dtype(field.dtype), field.shape, ragged=True)
    if (
        isinstance(field, List)
        and not field.optional
        and not field.of.optional
        and isinstance(field.of, Int | Float | Bool)
    ):
        return Spec(np.dtype(getattr(field.of, "dtype", "bool")), (None,), ragged=True)
    if isinstance(field, Sparse) and not field.optional:
        return Spec(None, sparse=field)
    if field.kind in ("bytes", "audio", "video") and not field.optional:
        return Spec(np.dtype(np.uint8), (None,), ragged=True)
    return Spec(None)


# -- outputs that accompany another ------------------------------------------------------------------------


def _has_mask(output: Output, reader: Reader) -> bool:
    """Return True for an array whose values may be missing: another output says which."""
    first = output.steps[0].op if output.steps else None
    return _may_miss(reader.schema[output.field]) and (not isinstance(first, CellOp) or first.keeps_mask)


def _mask_outputs(output: Output, reader: Reader, pipelines: FieldPipelines) -> list[Output]:
    name = output.name + MASK
    pipeline = pipelines.get(name, ())
    if pipeline is None:
        return []
    if name in reader.schema or isinstance(pipeline, Pipe):
        raise OptionError(
            f"values of {output.name!r} may be missing, and what says which would be called {name!r}, as is "
            f'another output; call it otherwise: {{"{output.name}": None, "value": Pipe("{output.field}")}}',
            path=reader.path,
        )
    return [_make_output(reader, name, Pipe(output.field, [Present(), *pipeline]))]


def _padding_outputs(output: Output, reader: Reader, pipelines: FieldPipelines) -> list[Output]:
    """Return the mask of padded values, if it is asked for, or the sizes of padded images."""
    steps = [(step.op, step.spec) for step in output.steps]
    if output.image is not None and output.image.target.collate is not None:
        steps.insert(0, (output.image.target.collate, output.spec))
    named = ((padding_name(op, output.name), op, spec) for op, spec in steps)
    name, padding, spec = next((entry for entry in named if entry[0]), (None, None, output.spec))
    if name is None:
        return []
    pipeline = pipelines.get(name, ())
    if name in reader.schema or isinstance(pipeline, Pipe) or pipeline is None:
        raise OptionError(
            f"the mask of {output.name!r} would be called {name!r}, as is another output: Pad(mask=NAME)"
            if not isinstance(padding, Collate)
            else f"the sizes of {output.name!r} would be called {name!r}, as is another output: call the "
            f'images otherwise, {{"{output.name}": None, "NAME": Pipe("{output.field}", …)}}',
            path=reader.path,
        )
    is_sizes = isinstance(padding, Collate)
    spec = Spec(np.dtype(np.int32), (2,)) if is_sizes else Spec(np.dtype(np.bool_), (spec.shape[0],))
    mask_steps = []
    for number, op in enumerate(map(as_op, pipeline)):
        spec = op.infer(spec)
        mask_steps.append(Step(op, op.share or f"{name}/{number}", spec))
    return [Output(name, output.field, None, tuple(mask_steps), spec, beside=output.name)]


def _drawn_outputs(output: Output, pipe: Pipe, reader: Reader, pipelines: FieldPipelines) -> list[Output]:
    """Return the parameters drawn for images, where the pipeline keeps them."""
    if pipe.keep is None:
        return []
    if pipe.keep != "geometry" or output.image is None:
        raise OptionError(f'keep="geometry" is for images; not {pipe.keep!r} of {output.field!r}')
    outputs = []
    for parameter, (dtype, shape) in DRAWN.items():
        name = f"{output.name}_{parameter}"
        if name in reader.schema or name in pipelines:
            raise OptionError(f"keep would add an output {name!r}, and there is one already")
        spec = Spec(np.dtype(dtype), shape)
        outputs.append(Output(name, output.field, None, (), spec, drawn=parameter, of=output.name))
    return outputs


# -- devices -----------------------------------------------------------------------------------------------


def _place_on_device(output: Output, schema: Schema) -> Output:
    """Return the output with its images on the device, and as many of its steps as can run there."""
    if output.image is None:
        return _place_tail_on_device(output, schema)
    mode = output.image.target.mode
    if mode not in DEVICE_MODES:
        return dataclasses.replace(output, obstacle=f"the CPU makes images of mode {mode}")
    if output.image.target.as_list:
        return dataclasses.replace(output, obstacle="the CPU makes images of unequal sizes")
    count = 0
    while count < len(output.steps) and output.steps[count].op.device_form is not None:
        count += 1
    obstacle = ""
    if count < len(output.steps):
        obstacle = _no_device_form(output.steps[count].op)
    return dataclasses.replace(output, on_device=True, device_steps=count, obstacle=obstacle)


def _no_device_form(op: Op) -> str:
    return f"{op!r} has no device form: it and what follows run on the CPU"


def _with_joint_obstacle(output: Output, joint: Iterable[Step[JointOp]]) -> Output:
    """Return the output with an obstacle if a joint step fetches it from the device."""
    ops = [step.op for step in joint if output.name in step.op.inputs and step.op.device_form is None]
    if not ops or not output.on_device or output.obstacle:
        return output
    return dataclasses.replace(output, obstacle=_no_device_form(ops[0]))


def _place_tail_on_device(output: Output, schema: Schema) -> Output:
    """Place as many of the last steps as possible on the device, for sounds, clips and volumes."""
    if output.mover is not None or output.beside is not None or output.drawn is not None:
        return output
    first = len(output.steps)
    while first > 0 and output.steps[first - 1].op.device_form is not None:
        before = output.steps[first - 2].spec if first > 1 else spec_of(schema[output.field])
        # Sending scalars takes longer than computing them.
        if before.dtype is None or before.ragged or before.torch or before.unequal or not before.shape:
            break
        first -= 1
    if first == len(output.steps):
        return output
    return dataclasses.replace(output, on_device=True, device_from=first, device_steps=len(output.steps))


# -- annotations -------------------------------------------------------------------------------------------


class AnnotationLinks(NamedTuple):
    """By output, the op that moves its positions with an image, and the boxes that its rows belong to."""

    movers: dict[str, Mover]
    rows_of: dict[str, str]
    pipes: Mapping[str, Pipe]

    def moves_of(self, op: MoveMask) -> list[tuple[Op, str]]:
        """Return the steps of an image that move its pixels, with the keys of their draws."""
        if op.of not in self.pipes:
            raise OptionError(f"its image {op.of!r} is not in the batch{near(op.of, self.pipes)}")
        ops = list(map(as_op, self.pipes[op.of].ops))
        if ops and isinstance(ops[0], MoveMask):
            raise OptionError(f"{op.of!r} follows another image itself: follow that one")
        keyed = [(step, step.share or f"{op.of}/{number}") for number, step in enumerate(ops)]
        return [(op.filled(step), key) for step, key in keyed if type(step).move is not Op.move]


def _annotation_links(pipes: Mapping[str, Pipe], schema: Schema) -> AnnotationLinks:
    """Find the outputs that follow images or boxes, by the kinds of fields and the first ops."""
    links = AnnotationLinks({}, {}, pipes)
    for name, pipe in pipes.items():
        with located(field=name):
            mover = _find_mover(pipe, pipes, schema)
            if mover is None:
                continue
            links.movers[name] = mover
            for label in mover.labels or ():
                if links.rows_of.setdefault(label, name) != name:
                    raise OptionError(
                        f"{label!r} has rows for {links.rows_of[label]!r} already; say which outputs have "
                        f'rows for these boxes: MoveBoxes(of="{mover.of}", labels=[…])'
                    )
    return links


def _find_mover(pipe: Pipe, pipes: Mapping[str, Pipe], schema: Schema) -> Mover | None:
    """Return the op that moves the positions of a field with its image, if it has positions."""
    field = schema[pipe.field]
    first = pipe.ops[0] if isinstance(pipe.ops, Sequence) and len(pipe.ops) else None
    explicit = first if isinstance(first, Mover) else None
    kind = MOVERS.get(type(field))
    if kind is None and pipe.field == RLE and MoveRle.fits(field):
        kind = MoveRle
    if explicit is not None:
        mover = explicit.bind(field)
    elif kind is not None:
        mover = kind().bind(field)
    else:
        return None
    if isinstance(mover, MoveRle) and mover.of is None:
        boxes = (boxes for boxes in schema.values() if isinstance(boxes, Boxes))
        mover.of = next((field.of for field in boxes if pipe.field in field.labels), "image")
    if mover.of == "":
        return None
    images = [name for name in pipes if isinstance(schema[pipes[name].field], Image)]
    of = _output_of(mover.of or "", pipes, 'MoveX(of="…")'.replace("MoveX", type(mover).__name__))
    if of is None and explicit is None:
        # Its image is not in the batch: it stays as it is stored.
        return None
    if of is None:
        raise OptionError(
            f"its image {mover.of!r} is not in the batch{near(mover.of or '', images)}: "
            f"do not leave it out, or name another with of="
        )
    if of not in images:
        raise OptionError(f"of names an image of the batch, and {of!r} is {schema[pipes[of].field]}")
    mover.of = of
    has_labels = explicit is not None and explicit.labels is not None
    mover.labels = tuple(_label_outputs(mover, pipes, schema, explicit=has_labels))
    if isinstance(mover, MoveBoxes):
        mover._areas = _area_output(mover, pipes, schema)
    return mover


def _area_output(mover: MoveBoxes, pipes: Mapping[str, Pipe], schema: Schema) -> str | None:
    """Return the output of the areas of the objects."""
    labels = {label: pipes[label] for label in mover.labels or ()}
    if mover.areas:
        if mover.areas not in labels:
            raise OptionError(f"areas names one of the labels, and {mover.areas!r} is none of them")
        return mover.areas
    for label, pipe in labels.items() if mover.areas is None else ():
        field = schema[pipe.field]
        if pipe.field == AREA and isinstance(field, Tensor) and field.shape == (None,):
            return label
    return None


def _label_outputs(
    mover: Mover, pipes: Mapping[str, Pipe], schema: Schema, *, explicit: bool
) -> Sequence[str]:
    outputs = []
    for label in mover.labels or ():
        output = _output_of(label, pipes, f'MoveBoxes(of="{mover.of}", labels=["…"])')
        if output is not None:
            outputs.append(output)
        elif explicit and label not in schema:
            raise OptionError(f"there is no output {label!r} for labels{near(label, pipes)}; {listed(pipes)}")
    return outputs


def _output_of(name: str, pipes: Mapping[str, Pipe], hint: str) -> str | None:
    """Return the output of that name, else the one that shows the field of that name."""
    if name in pipes:
        return name
    views = [output for output, pipe in pipes.items() if pipe.field == name]
    if len(views) > 1:
        raise OptionError(f"{listed(views)} show {name!r}: say which one is meant, with {hint}")
    return views[0] if views else None


def _without_fixed_rows(spec: Spec, name: str, first: Op | None) -> Spec:
    """Return the spec of an output that loses rows."""
    if isinstance(first, CellOp):
        raise OptionError(
            f"{first!r} takes {name!r} as it is stored, before the rows of boxes that are dropped leave it: "
            "name other labels with MoveBoxes(labels=[…])"
        )
    if spec.dtype is None:
        return spec
    if not spec.shape:
        raise OptionError(f"{name!r} has one number for each sample, not one for each box: {spec}")
    return spec.replace(shape=(None, *spec.shape[1:]), ragged=True)


# -- joint steps -------------------------------------------------------------------------------------------


def _joint_steps(
    joint: Sequence[JointOp | FieldPipelines], outputs: Sequence[Output], schema: Schema
) -> tuple[Step[JointOp], ...]:
    """Return the joint steps in order, each with the key of its draws; OptionError where one does not fit."""
    context = _known_outputs(outputs, schema)
    steps: list[Step[JointOp]] = []
    for op in [op for entry in joint for op in _joint_ops(entry)]:
        with located(field=", ".join(op.inputs)):
            specs = op.infer_all(context)
        context.specs.update(specs)
        for name in op.drops:
            context.specs.pop(name, None)
        steps.append(Step(op, op.share or f"joint/{len(steps)}", Spec(None)))
    return tuple(steps)


def _joint_ops(entry: object) -> list[JointOp]:
    """Return the joint ops of an entry of ``pipelines`` behind the first."""
    if isinstance(entry, Mapping):
        steps: list[JointOp] = []
        for name, ops in entry.items():
            if isinstance(ops, Op | str) or not isinstance(ops, Sequence):
                raise OptionError(f"a pipeline is a list of ops, not {ops!r}", field=name)
            steps += [Map(as_op(op), name) for op in ops]
        return steps
    if isinstance(entry, JointOp):
        op = entry.for_loader()
        assert isinstance(op, JointOp)
        return [op]
    if isinstance(entry, type) and issubclass(entry, Op):
        raise OptionError(f"write {entry.__name__}() with parentheses")
    if callable(entry):
        name = getattr(entry, "__name__", "fn")
        raise OptionError(f"say which outputs {name} takes and gives: Map({name}, inputs=[…], outputs=[…])")
    raise OptionError(
        "a list of pipelines holds steps of several fields, such as Map(fn, inputs=[…]), and pipelines of "
        f'single ones, such as {{"image": [ToTensor()]}}; not {entry!r}'
    )


def _known_outputs(outputs: Sequence[Output], schema: Schema) -> OutputInfo:
    """Return what joint ops may know of the outputs before them."""
    context = OutputInfo({}, {}, {}, {})
    for output in outputs:
        field = schema[output.field]
        context.specs[output.name] = output.spec
        mover = output.mover or (MOVERS[type(field)]().bind(field) if type(field) in MOVERS else None)
        if mover is not None:
            context.movers[output.name] = mover.for_output()
        if output.rows_of is not None:
            context.rows[output.rows_of] = (*context.rows.get(output.rows_of, ()), output.name)
        names = getattr(field, "names", None)
        if names and field.kind in ("int", "labels"):
            context.classes[output.name] = len(names)
    return context
