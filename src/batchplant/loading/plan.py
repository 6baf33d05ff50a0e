"""A plan: which fields are read, what runs where, every shape known; :mod:`.planning` makes it."""

from __future__ import annotations

import dataclasses

from ..ops.base import Op, Spec
from ..ops.joint import JointOp
from ..ops.moving import Mover
from ..ops.values import Present
from .pipes import SIZES
from .stage import ImageStage, Step


@dataclasses.dataclass(frozen=True)
class Output:
    """One entry of every batch.

    ``on_device``: a device makes the images and runs the first ``device_steps`` steps; the rest runs on the
    CPU, and ``obstacle`` says why. Without images it runs those from ``device_from`` on. ``beside``: it
    begins with the mask that comes of padding that output. ``mover``: its positions go with an image first.
    ``rows_of``: then it loses the rows whose boxes are dropped there. ``drawn``: it is what was drawn for the
    image ``of``, no field.
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
        """Whether it says which values of its field are there."""
        return self.beside is not None or (bool(self.steps) and isinstance(self.steps[0].op, Present))

    def __str__(self) -> str:
        what = "sizes" if self.name.endswith(SIZES) else "mask"
        ways = [self.field if self.beside is None else f"{what} of {self.beside}"]
        if self.image is not None:
            ways.append(f"{'device' if self.on_device else 'engine'}({self.image})")
        if self.drawn is not None:
            ways.append(f"{self.drawn} of {self.of}")
        ways += [] if self.mover is None else [repr(self.mover)]
        ways += [] if self.rows_of is None else [f"rows of {self.rows_of}"]
        for number, step in enumerate(self.steps):
            ways += ["CPU"] if self.on_device and number == self.device_steps else []
            ways += ["device"] if self.on_device and self.image is None and number == self.device_from else []
            ways.append(repr(step.op))
        said = f"{self.name}: {' → '.join(ways)} → {self.spec}"
        return f"{said}\n  {self.obstacle}" if self.obstacle else said


@dataclasses.dataclass(frozen=True)
class Plan:
    """What every batch holds and how it is made."""

    outputs: tuple[Output, ...]
    # Behind their pipelines.
    joint: tuple[Step[JointOp], ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """What a batch has."""
        added = [name for step in self.joint for name in step.op.outputs]
        dropped = {name for step in self.joint for name in step.op.drops}
        names = dict.fromkeys([*(one.name for one in self.outputs), *added])
        return tuple(name for name in names if name not in dropped)

    @property
    def columns(self) -> tuple[str, ...]:
        """The fields that are read as columns; images are decoded where they lie."""
        return tuple(dict.fromkeys(one.field for one in self.outputs if one.image is None and not one.drawn))

    @property
    def fields(self) -> tuple[str, ...]:
        """All fields that a batch needs."""
        return tuple(dict.fromkeys(one.field for one in self.outputs))

    @property
    def images(self) -> tuple[Output, ...]:
        return tuple(one for one in self.outputs if one.image is not None)

    @property
    def on_device(self) -> tuple[Output, ...]:
        """The outputs that a device makes."""
        return tuple(one for one in self.outputs if one.on_device)

    @property
    def ops(self) -> tuple[Op, ...]:
        """What runs on batches behind the decoders."""
        steps = [step.op for output in self.outputs for step in output.steps]
        return (*steps, *(step.op for step in self.joint))

    def __str__(self) -> str:
        return "\n".join([*map(str, self.outputs), *(f"then {step.op!r}" for step in self.joint)])
