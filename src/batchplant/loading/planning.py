"""From pipelines to a frozen plan: which fields are read, what runs where, every shape known.

The first steps of an image's pipeline (decoder, crops, flips, normalisation, channels first) become one
:class:`~.stage.ImageStage`, done in one pass: by the engine, or by a device. What follows runs as ops on the
batch: on that device as far as the ops have a device form, then on the CPU.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable

import numpy as np

from ..data.reader import Reader
from ..errors import OptionError, listed, near, no_such
from ..ops.base import CellOp, Op, Spec
from ..ops.clips import fitted
from ..ops.decode import Decode, ImageDecoder
from ..ops.framing import Collate
from ..ops.joint import JointOp
from ..ops.moving import MoveMask, Mover
from ..ops.values import Present
from ..ops.video import joined
from ..ops.volumes import CenterCrop3d
from ..schema import Bool, Field, Float, Image, Int, List, Schema, Tensor
from ..schema.columns import dense_of
from .following import Follows, follows, rowless
from .joining import Joint, joint_steps
from .pipes import MASK, Pipe, Pipelines, as_op, masked_by, may_miss, padding_name, pipes_of
from .plan import Output, Plan
from .stage import Step, fuse

# Of the modes of images, those that a device makes.
DEVICE_MODES = ("RGB", "L")
# What keep="geometry" adds to a batch; see Moves.kept.
DRAWN: dict[str, tuple[str, tuple[int, ...]]] = {
    "matrix": ("float64", (3, 3)), "size": ("int32", (2,)), "box": ("float64", (4,)), "flip": ("bool", ()),
    "angle": ("float64", ()),
}  # fmt: skip


def make_plan(
    reader: Reader, pipelines: Pipelines | None = None, joint: Joint = (), *, on_device: bool = False
) -> Plan:
    """The plan for these pipelines; fields without one are given as they are, those with None left out.

    ``joint``: steps of several outputs, behind all of them. ``on_device``: there is a device that can make
    images.
    """
    given = dict(pipelines or {})
    for name in given:
        if not isinstance(name, str):
            raise OptionError(
                f"a pipeline is that of one field, not of {name!r}: steps that see several go into joint=[…]",
                path=reader.path,
            )
    outputs: list[Output] = []
    along = follows(pipes_of(reader.schema, given), reader.schema)
    for name in [*reader.schema, *(one for one in given if one not in reader.schema)]:
        asked = given.get(name, ())
        if asked is None and name in reader.schema:
            continue
        pipe = asked if isinstance(asked, Pipe) else Pipe(name, asked or ())
        if masked_by(name, reader.schema, given) is not None and not isinstance(asked, Pipe):
            continue
        if pipe.field not in reader.schema:
            if isinstance(asked, Pipe):
                missing = no_such("field", pipe.field, reader.schema)
                raise OptionError(f"pipeline {name!r}: {missing}", path=reader.path)
            raise OptionError(
                f"pipeline {name!r} has no field{near(name, reader.schema)}; name one with Pipe(field, ops);"
                f" there are: {listed(reader.schema)}",
                path=reader.path,
            )
        output = _output(reader, name, pipe, along, on_device=on_device)
        outputs += [output, *_drawn(output, pipe, reader, given)]
        if _has_mask(output, reader):
            outputs += _mask(output, reader, given)
        outputs += _padding(output, reader, given)
    if not outputs:
        raise OptionError("every field is left out; a batch would be empty")
    try:
        steps = joint_steps(joint, outputs, reader.schema)
    except OptionError as error:
        raise error.at(path=reader.path) from None
    if on_device:
        outputs = [_fetched(_placed(one, reader.schema), steps) for one in outputs]
    return Plan(tuple(outputs), steps)


def _has_mask(output: Output, reader: Reader) -> bool:
    """Whether it is an array of which values may be missing: then another one says which."""
    first = output.steps[0].op if output.steps else None
    return may_miss(reader.schema[output.field]) and (not isinstance(first, CellOp) or first.keeps_mask)


def _mask(output: Output, reader: Reader, given: Pipelines) -> list[Output]:
    name = output.name + MASK
    asked = given.get(name, ())
    if asked is None:
        return []
    if name in reader.schema or isinstance(asked, Pipe):
        raise OptionError(
            f"values of {output.name!r} may be missing, and what says which would be called {name!r}, as is "
            f'another output; call it otherwise: {{"{output.name}": None, "value": Pipe("{output.field}")}}',
            path=reader.path,
        )
    return [_output(reader, name, Pipe(output.field, [Present(), *asked]))]


def _padding(output: Output, reader: Reader, given: Pipelines) -> list[Output]:
    """The mask of what was padded, if it is wanted, or the sizes of images that were."""
    found = [(one.op, one.spec) for one in output.steps]
    if output.image is not None and output.image.target.collate is not None:
        found.insert(0, (output.image.target.collate, output.spec))
    named = ((padding_name(op, output.name), op, spec) for op, spec in found)
    name, padded, spec = next((one for one in named if one[0]), (None, None, output.spec))
    if name is None:
        return []
    asked = given.get(name, ())
    if name in reader.schema or isinstance(asked, Pipe) or asked is None:
        raise OptionError(
            f"the mask of {output.name!r} would be called {name!r}, as is another output: Pad(mask=NAME)"
            if not isinstance(padded, Collate)
            else f"the sizes of {output.name!r} would be called {name!r}, as is another output: call the "
            f'images otherwise, {{"{output.name}": None, "NAME": Pipe("{output.field}", …)}}',
            path=reader.path,
        )
    sizes = isinstance(padded, Collate)
    spec = Spec(np.dtype(np.int32), (2,)) if sizes else Spec(np.dtype(np.bool_), (spec.shape[0],))
    steps = []
    for number, op in enumerate(map(as_op, asked)):
        spec = op.infer(spec)
        steps.append(Step(op, op.share or f"{name}/{number}", spec))
    return [Output(name, output.field, None, tuple(steps), spec, beside=output.name)]


def _placed(output: Output, schema: Schema) -> Output:
    """The output with its images on the device, and as many of its steps as can run there."""
    if output.image is None:
        return _tail_placed(output, schema)
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
        what = output.steps[count].op
        obstacle = f"{what!r} has no device form: it and what follows run on the CPU"
    return dataclasses.replace(output, on_device=True, device_steps=count, obstacle=obstacle)


def _fetched(output: Output, joint: Iterable[Step[JointOp]]) -> Output:
    """The output; where a joint step takes it back from the device, that is an obstacle."""
    found = [step.op for step in joint if output.name in step.op.inputs and step.op.device_form is None]
    if not found or not output.on_device or output.obstacle:
        return output
    obstacle = f"{found[0]!r} has no device form: it and what follows run on the CPU"
    return dataclasses.replace(output, obstacle=obstacle)


def _tail_placed(output: Output, schema: Schema) -> Output:
    """One without images (sounds, clips, volumes): as many of its last steps as can run on the device."""
    if output.mover is not None or output.beside is not None or output.drawn is not None:
        return output
    first = len(output.steps)
    while first > 0 and output.steps[first - 1].op.device_form is not None:
        before = output.steps[first - 2].spec if first > 1 else spec_of(schema[output.field])
        # Single numbers are made sooner than they are sent.
        if before.dtype is None or before.ragged or before.torch or before.unequal or not before.shape:
            break
        first -= 1
    if first == len(output.steps):
        return output
    return dataclasses.replace(output, on_device=True, device_from=first, device_steps=len(output.steps))


def _drawn(output: Output, pipe: Pipe, reader: Reader, given: Pipelines) -> list[Output]:
    """What was drawn for images, where it is kept."""
    if pipe.keep is None:
        return []
    if pipe.keep != "geometry" or output.image is None:
        raise OptionError(f'keep="geometry" is for images; not {pipe.keep!r} of {output.field!r}')
    made = []
    for what, (dtype, shape) in DRAWN.items():
        name = f"{output.name}_{what}"
        if name in reader.schema or name in given:
            raise OptionError(f"keep would add an output {name!r}, and there is one already")
        spec = Spec(np.dtype(dtype), shape)
        made.append(Output(name, output.field, None, (), spec, drawn=what, of=output.name))
    return made


def _output(
    reader: Reader, name: str, pipe: Pipe, along: Follows | None = None, *, on_device: bool = False
) -> Output:
    field = reader.schema[pipe.field]
    image = None
    try:
        if isinstance(pipe.ops, Op | str) or not isinstance(pipe.ops, Iterable):
            raise OptionError(f"a pipeline is a list of ops, not {pipe.ops!r}")
        ops = [(op, op.share or f"{name}/{number}") for number, op in enumerate(map(as_op, pipe.ops))]
        mover, rows_of = (along.movers.get(name), along.rows_of.get(name)) if along else (None, None)
        if ops and isinstance(ops[0][0], Mover):
            ops.pop(0)
        if ops and along and isinstance(field, Image) and isinstance(ops[0][0], MoveMask):
            ops[:1] = along.moves_of(ops[0][0])
        if isinstance(field, Image):
            if not ops or not isinstance(ops[0][0], ImageDecoder):
                ops.insert(0, (Decode(), f"{name}/decode"))
            image, spec, ops = fuse(reader, pipe.field, field, ops, on_device=on_device)
        else:
            spec, ops = spec_of(field), joined(ops)
            crops = bool(ops) and isinstance(ops[0][0], CenterCrop3d)
            if crops and isinstance(field, Tensor) and spec.dtype is None and not field.optional:
                spec = Spec(np.dtype(field.dtype), field.shape, unequal=True)
        if mover is not None:
            spec = mover.moved(spec)
        if rows_of is not None:
            spec = rowless(spec, name, ops[0][0] if ops else None)
        steps: list[Step[Op]] = []
        for number, (op, key) in enumerate(ops):
            if isinstance(op, CellOp) and number == 0 and image is None:
                spec = op.infer_field(field)
            else:
                op, spec = fitted(op, spec)
            steps.append(Step(op, key, spec))
        if image is not None and spec.unequal and not any(isinstance(op, Collate) for op in pipe.ops):
            raise OptionError('images of unequal sizes: put Collate("pad") or Collate("list") behind them')
    except OptionError as error:
        raise error.at(path=reader.path, field=name) from None
    return Output(name, pipe.field, image, tuple(steps), spec, mover=mover, rows_of=rows_of)


def is_number(field: Field) -> bool:
    return isinstance(field, Int | Float | Bool)


# A batch asks for it, too.
@functools.lru_cache(1024)
def spec_of(field: Field) -> Spec:
    """What a field gives without any op."""
    dense = dense_of(field)
    if dense is not None:
        return Spec(*dense, names=field.names if isinstance(field, Int) else None)
    if isinstance(field, Tensor) and field.flat and not field.optional:
        return Spec(np.dtype(field.dtype), field.shape, ragged=True)
    if isinstance(field, List) and not field.optional and not field.of.optional and is_number(field.of):
        return Spec(np.dtype(getattr(field.of, "dtype", "bool")), (None,), ragged=True)
    if field.kind in ("bytes", "audio", "video") and not field.optional:
        return Spec(np.dtype(np.uint8), (None,), ragged=True)
    return Spec(None)
