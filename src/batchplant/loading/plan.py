"""From pipelines to a frozen plan: which fields are read, what the engine does, every shape known.

The first steps of a picture's pipeline (decoder, flip, normalisation, channels first) become one
:class:`ImageStage`, which the engine does in one pass. What follows runs as ops on the batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ..codecs.cells import decode_cell
from ..codecs.media import image as pictures
from ..columns import Ragged, dense_of
from ..errors import DataError, OptionError, listed, near, no_such
from ..ops.base import CellOp, Op, Spec
from ..ops.decode import ChannelsFirst, Decode, ImageDecoder, Normalize, RandomHorizontalFlip
from ..ops.values import Function, Present
from ..reader import Reader
from ..schema import Field, Image, Tensor

CHANNELS = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
# How many samples may be damaged before the size of pictures cannot be told.
LOOKED_AT = 64
# Of a picture in a batch; the engine makes none that is longer.
LONGEST_SIDE = 65535


@dataclasses.dataclass(frozen=True)
class Pipe:
    """A pipeline that starts at a field of another name: several views of one field."""

    field: str
    ops: Sequence[Op | Callable[..., Any]] = ()


Pipelines = Mapping[str, Pipe | Sequence[Op | Callable[..., Any]] | None]


@dataclasses.dataclass(frozen=True)
class Step:
    """An op and the name its random draws go by."""

    op: Op
    key: str


@dataclasses.dataclass(frozen=True)
class ImageStage:
    """What the engine does to pictures: box, resize, flip, table of values, layout.

    ``mode`` is the one that they are decoded to; P: the indices of palettes, the levels of gray pictures.
    """

    decoder: Step
    mode: str
    filter: str
    flip: Step | None
    normalize: Normalize | None
    channels_first: bool
    spec: Spec


@dataclasses.dataclass(frozen=True)
class Output:
    """One entry of every batch."""

    name: str
    field: str
    image: ImageStage | None
    steps: tuple[Step, ...]
    spec: Spec

    @property
    def is_mask(self) -> bool:
        """Whether it says which values of its field are there."""
        return bool(self.steps) and isinstance(self.steps[0].op, Present)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What every batch holds and how it is made."""

    outputs: tuple[Output, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields that are read as columns; pictures are decoded where they lie."""
        return tuple(dict.fromkeys(one.field for one in self.outputs if one.image is None))

    def __str__(self) -> str:
        lines = []
        for one in self.outputs:
            steps = [] if one.image is None else [f"engine({one.image.decoder.op!r})"]
            steps += [repr(step.op) for step in one.steps]
            lines.append(f"{one.name}: {' → '.join([one.field, *steps])} → {one.spec}")
        return "\n".join(lines)


def make_plan(reader: Reader, pipelines: Pipelines | None = None) -> Plan:
    """The plan for these pipelines; fields without one are given as they are, those with None left out."""
    given = dict(pipelines or {})
    outputs = []
    for name in [*reader.schema, *(one for one in given if one not in reader.schema)]:
        asked = given.get(name, ())
        if asked is None and name in reader.schema:
            continue
        pipe = asked if isinstance(asked, Pipe) else Pipe(name, asked or ())
        if _masked_by(name, reader, given) is not None and not isinstance(asked, Pipe):
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
        outputs.append(_output(reader, name, pipe))
        if _has_mask(outputs[-1], reader):
            outputs += _mask(outputs[-1], reader, given)
    if not outputs:
        raise OptionError("every field is left out; a batch would be empty")
    return Plan(tuple(outputs))


MASK = "_mask"


def _has_mask(output: Output, reader: Reader) -> bool:
    """Whether it is an array of which values may be missing: then another one says which."""
    first = output.steps[0].op if output.steps else None
    return _may_miss(reader.schema[output.field]) and not isinstance(first, CellOp)


def _may_miss(field: Field) -> bool:
    return field.optional and dense_of(field) is not None


def _masked_by(name: str, reader: Reader, given: Pipelines) -> str | None:
    """The output of which this is the mask, where no field has the name."""
    if name in reader.schema or not name.endswith(MASK):
        return None
    of = name.removesuffix(MASK)
    asked = given.get(of, ())
    field = asked.field if isinstance(asked, Pipe) else of
    there = asked is not None and field in reader.schema and _may_miss(reader.schema[field])
    return of if there else None


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


def _output(reader: Reader, name: str, pipe: Pipe) -> Output:
    field = reader.schema[pipe.field]
    image = None
    try:
        if isinstance(pipe.ops, Op | str) or not isinstance(pipe.ops, Iterable):
            raise OptionError(f"a pipeline is a list of ops, not {pipe.ops!r}")
        ops = [_as_op(one) for one in pipe.ops]
        steps = [Step(op, op.share or f"{name}/{number}") for number, op in enumerate(ops)]
        if isinstance(field, Image):
            if not steps or not isinstance(steps[0].op, ImageDecoder):
                steps.insert(0, Step(Decode(), f"{name}/decode"))
            image, steps = _fuse(reader, pipe.field, field, steps)
            spec = image.spec
        else:
            spec = spec_of(field)
        for number, step in enumerate(steps):
            if isinstance(step.op, CellOp) and number == 0 and image is None:
                spec = step.op.infer_field(field)
            else:
                spec = step.op.infer(spec)
    except OptionError as error:
        raise error.at(path=reader.path, field=name) from None
    return Output(name, pipe.field, image, tuple(steps), spec)


def _as_op(one: Any) -> Op:
    if isinstance(one, Op):
        return one
    if isinstance(one, type) and issubclass(one, Op):
        raise OptionError(f"write {one.__name__}() with parentheses")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(one, type) and issubclass(one, torch.nn.Module):
        raise OptionError(f"write {one.__name__}() with parentheses")
    if torch is not None and isinstance(one, torch.nn.Module):
        # The plan knows no framework; the module is of one.
        wrapped: Op = importlib.import_module("batchplant.interop.torch").ModuleWrapper(one)
        return wrapped
    if callable(one):
        return Function(one)
    raise OptionError(f"a pipeline holds ops and functions, not {one!r}")


def _fuse(reader: Reader, name: str, field: Image, steps: list[Step]) -> tuple[ImageStage, list[Step]]:
    """The stage that the engine does, and the steps that are left."""
    decoder = steps[0].op
    assert isinstance(decoder, ImageDecoder)
    mode = field.mode or "RGB"
    if field.mask and field.mode in (None, "L"):
        mode = "P"
    channels = CHANNELS.get(mode)
    if channels is None or field.optional:
        raise OptionError(f"{field} cannot be decoded into a batch; leave it out or convert it first")
    if field.mask and decoder.filter not in (None, "nearest"):
        raise OptionError(
            f"{decoder.filter} would blend the values of a mask: give filter='nearest', or none"
        )
    filter = decoder.filter or ("nearest" if field.mask else "area")
    size = decoder.size if decoder.size is not None else _first_size(reader, name, mode, decoder.orient)
    spec = Spec(np.dtype(np.uint8), (*size, channels))
    rest = steps[1:]
    flip: Step | None = None
    normalize: Normalize | None = None
    channels_first = False
    while rest:
        op = rest[0].op
        if type(op) is RandomHorizontalFlip and flip is None and normalize is None and not channels_first:
            flip = rest[0]
        elif type(op) is Normalize and normalize is None and not channels_first and op.dtype != np.float64:
            normalize = op
        elif type(op) is ChannelsFirst and not channels_first:
            channels_first = True
        else:
            break
        spec = op.infer(spec)
        rest = rest[1:]
    return ImageStage(steps[0], mode, filter, flip, normalize, channels_first, spec), rest


def _first_size(reader: Reader, name: str, mode: str, orient: bool) -> tuple[int, int]:
    """The size that all pictures have to have when none is asked for: that of the first that can be decoded.

    A header alone is not believed: batches take memory for it.
    """
    for sample in range(min(len(reader), LOOKED_AT)):
        # What is wrong with a sample is said when it is read.
        with contextlib.suppress(DataError):
            column = reader.read([sample], [name])[name]
            assert isinstance(column, Ragged)
            pixels = decode_cell(Image(mode=mode), column, 0)
            if pixels is None or max(pixels.shape) > LONGEST_SIDE:
                continue
            raw = column.shape is not None and column.shape[0].any()
            height, width = pixels.shape[:2]
            turned = orient and not raw and pictures.orientation(column[0]) >= 5
            return (width, height) if turned else (height, width)
    return (0, 0)


def spec_of(field: Field) -> Spec:
    """What a field gives without any op."""
    dense = dense_of(field)
    if dense is not None:
        return Spec(*dense)
    if isinstance(field, Tensor) and field.flat and not field.optional:
        return Spec(np.dtype(field.dtype), field.shape, ragged=True)
    if field.kind in ("bytes", "audio", "video") and not field.optional:
        return Spec(np.dtype(np.uint8), (None,), ragged=True)
    return Spec(None)
