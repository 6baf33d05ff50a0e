"""From pipelines to a frozen plan: which fields are read, what runs where, every shape known.

The first steps of a picture's pipeline (decoder, flip, normalisation, channels first) become one
:class:`ImageStage`, done in one pass: by the engine, or by a device. What follows runs as ops on the batch:
on that device as far as the ops have a device form, then on the CPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

from .. import frameworks
from ..codecs.cells import decode_cell
from ..codecs.media import image as pictures
from ..columns import Ragged, dense_of
from ..errors import DataError, OptionError, listed, near, no_such
from ..ops.base import CellOp, Op, Spec
from ..ops.decode import ChannelsFirst, Decode, ImageDecoder, Normalize, RandomHorizontalFlip
from ..ops.function import Function
from ..ops.values import Present
from ..reader import Reader
from ..schema import Bool, Field, Float, Image, Int, List, Tensor

CHANNELS = {"L": 1, "P": 1, "LA": 2, "RGB": 3, "RGBA": 4, "CMYK": 4}
# Of the modes of pictures, those that a device makes.
DEVICE_MODES = ("RGB", "L")
# How many samples may be damaged before the size of pictures cannot be told.
PROBED_SAMPLES = 64
# Of a picture in a batch; the engine makes none that is longer.
LONGEST_SIDE = 65535


OpT = TypeVar("OpT", bound=Op, covariant=True)


@dataclasses.dataclass(frozen=True)
class Pipe:
    """A pipeline that starts at a field of another name: several views of one field."""

    field: str
    ops: Sequence[Op | Callable[..., Any]] = ()


Pipelines = Mapping[str, Pipe | Sequence[Op | Callable[..., Any]] | None]


@dataclasses.dataclass(frozen=True)
class Step(Generic[OpT]):
    """An op, the name its random draws go by, and what comes out of it."""

    op: OpT
    key: str
    spec: Spec


@dataclasses.dataclass(frozen=True)
class Target:
    """What every picture of a batch becomes.

    ``mode`` is the one that they are decoded to; P: the indices of palettes, the levels of gray pictures.
    ``as_stored``: nobody asked for a size, so all must have that of the first.
    """

    mode: str
    filter: str
    height: int
    width: int
    channels: int
    as_stored: bool
    normalize: Normalize | None = None
    channels_first: bool = False

    @property
    def dtype(self) -> np.dtype[Any]:
        return np.dtype(np.uint8) if self.normalize is None else self.normalize.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        size = (self.height, self.width)
        return (self.channels, *size) if self.channels_first else (*size, self.channels)

    @property
    def pixels(self) -> Target:
        """The same without normalisation and with channels last."""
        return dataclasses.replace(self, normalize=None, channels_first=False)


@dataclasses.dataclass(frozen=True)
class ImageStage:
    """What is done to pictures in one pass: box, resize, flip, normalisation, layout."""

    decoder: Step[ImageDecoder]
    flip: Step[RandomHorizontalFlip] | None
    target: Target

    def __str__(self) -> str:
        steps: list[Any] = [self.decoder.op]
        steps += [one for one in (self.flip and self.flip.op, self.target.normalize) if one is not None]
        return ", ".join([*map(repr, steps), *(["ChannelsFirst()"] if self.target.channels_first else [])])


@dataclasses.dataclass(frozen=True)
class Output:
    """One entry of every batch.

    ``on_device``: a device makes the pictures and runs the first ``device_steps`` steps; the rest runs on the
    CPU, and ``obstacle`` says why.
    """

    name: str
    field: str
    image: ImageStage | None
    steps: tuple[Step[Op], ...]
    spec: Spec
    on_device: bool = False
    device_steps: int = 0
    obstacle: str = ""

    @property
    def is_mask(self) -> bool:
        """Whether it says which values of its field are there."""
        return bool(self.steps) and isinstance(self.steps[0].op, Present)

    def __str__(self) -> str:
        ways = [self.field]
        if self.image is not None:
            ways.append(f"{'device' if self.on_device else 'engine'}({self.image})")
        for number, step in enumerate(self.steps):
            ways += ["CPU"] if self.on_device and number == self.device_steps else []
            ways.append(repr(step.op))
        said = f"{self.name}: {' → '.join(ways)} → {self.spec}"
        return f"{said}\n  {self.obstacle}" if self.obstacle else said


@dataclasses.dataclass(frozen=True)
class Plan:
    """What every batch holds and how it is made."""

    outputs: tuple[Output, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields that are read as columns; pictures are decoded where they lie."""
        return tuple(dict.fromkeys(one.field for one in self.outputs if one.image is None))

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields that a batch needs."""
        return tuple(dict.fromkeys(one.field for one in self.outputs))

    @property
    def pictures(self) -> tuple[Output, ...]:
        return tuple(one for one in self.outputs if one.image is not None)

    @property
    def on_device(self) -> tuple[Output, ...]:
        """The outputs that a device makes."""
        return tuple(one for one in self.outputs if one.on_device)

    @property
    def ops(self) -> tuple[Op, ...]:
        """What runs on batches behind the decoders."""
        return tuple(step.op for output in self.outputs for step in output.steps)

    def __str__(self) -> str:
        return "\n".join(map(str, self.outputs))


def make_plan(reader: Reader, pipelines: Pipelines | None = None, *, on_device: bool = False) -> Plan:
    """The plan for these pipelines; fields without one are given as they are, those with None left out.

    ``on_device``: there is a device that can make pictures.
    """
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
    return Plan(tuple(map(_placed, outputs) if on_device else outputs))


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


def _placed(output: Output) -> Output:
    """The output with its pictures on the device, and as many of its steps as can run there."""
    if output.image is None:
        return output
    mode = output.image.target.mode
    if mode not in DEVICE_MODES:
        return dataclasses.replace(output, obstacle=f"the CPU makes pictures of mode {mode}")
    count = 0
    while count < len(output.steps) and output.steps[count].op.device_form is not None:
        count += 1
    obstacle = ""
    if count < len(output.steps):
        what = output.steps[count].op
        obstacle = f"{what!r} has no device form: it and what follows run on the CPU"
    return dataclasses.replace(output, on_device=True, device_steps=count, obstacle=obstacle)


def _output(reader: Reader, name: str, pipe: Pipe) -> Output:
    field = reader.schema[pipe.field]
    image = None
    try:
        if isinstance(pipe.ops, Op | str) or not isinstance(pipe.ops, Iterable):
            raise OptionError(f"a pipeline is a list of ops, not {pipe.ops!r}")
        ops = [(op, op.share or f"{name}/{number}") for number, op in enumerate(map(_as_op, pipe.ops))]
        if isinstance(field, Image):
            if not ops or not isinstance(ops[0][0], ImageDecoder):
                ops.insert(0, (Decode(), f"{name}/decode"))
            image, spec, ops = _fuse(reader, pipe.field, field, ops)
        else:
            spec = spec_of(field)
        steps: list[Step[Op]] = []
        for number, (op, key) in enumerate(ops):
            if isinstance(op, CellOp) and number == 0 and image is None:
                spec = op.infer_field(field)
            else:
                spec = op.infer(spec)
            steps.append(Step(op, key, spec))
    except OptionError as error:
        raise error.at(path=reader.path, field=name) from None
    return Output(name, pipe.field, image, tuple(steps), spec)


def _as_op(one: Any) -> Op:
    if isinstance(one, Op):
        return one.own()
    if isinstance(one, type) and issubclass(one, Op):
        raise OptionError(f"write {one.__name__}() with parentheses")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(one, type) and issubclass(one, torch.nn.Module):
        raise OptionError(f"write {one.__name__}() with parentheses")
    if torch is not None and isinstance(one, torch.nn.Module):
        # The plan knows no framework; the module is of one.
        wrapped: Op = frameworks.part("torch").ModuleWrapper(one)
        return wrapped
    if callable(one):
        return Function(one)
    raise OptionError(f"a pipeline holds ops and functions, not {one!r}")


def _fuse(
    reader: Reader, name: str, field: Image, ops: list[tuple[Op, str]]
) -> tuple[ImageStage, Spec, list[tuple[Op, str]]]:
    """The stage that is done in one pass, what comes out of it, and the ops that are left."""
    decoder = ops[0][0]
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
    first = Step(decoder, ops[0][1], spec)
    rest = ops[1:]
    flip: Step[RandomHorizontalFlip] | None = None
    normalize: Normalize | None = None
    channels_first = False
    while rest:
        op, key = rest[0]
        if type(op) is RandomHorizontalFlip and flip is None and normalize is None and not channels_first:
            flip = Step(op, key, op.infer(spec))
        elif type(op) is Normalize and normalize is None and not channels_first and op.dtype != np.float64:
            normalize = op
        elif type(op) is ChannelsFirst and not channels_first:
            channels_first = True
        else:
            break
        spec = op.infer(spec)
        rest = rest[1:]
    target = Target(mode, filter, *size, channels, decoder.size is None, normalize, channels_first)
    return ImageStage(first, flip, target), spec, rest


def _first_size(reader: Reader, name: str, mode: str, orient: bool) -> tuple[int, int]:
    """The size that all pictures have to have when none is asked for: that of the first that can be decoded.

    A header alone is not believed: batches take memory for it.
    """
    for sample in range(min(len(reader), PROBED_SAMPLES)):
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


def is_number(field: Field) -> bool:
    return isinstance(field, Int | Float | Bool)


def spec_of(field: Field) -> Spec:
    """What a field gives without any op."""
    dense = dense_of(field)
    if dense is not None:
        return Spec(*dense)
    if isinstance(field, Tensor) and field.flat and not field.optional:
        return Spec(np.dtype(field.dtype), field.shape, ragged=True)
    if isinstance(field, List) and not field.optional and not field.of.optional and is_number(field.of):
        return Spec(np.dtype(getattr(field.of, "dtype", "bool")), (None,), ragged=True)
    if field.kind in ("bytes", "audio", "video") and not field.optional:
        return Spec(np.dtype(np.uint8), (None,), ragged=True)
    return Spec(None)
