"""Pipelines as users write them: their steps as ops, and what masks beside their outputs are called."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ..data import hooks
from ..errors import OptionError
from ..ops.base import Op
from ..ops.framing import Collate
from ..ops.function import Function
from ..ops.values import Pad
from ..schema import Field, Schema
from ..schema.columns import dense_of

MASK = "_mask"
# Of images that were padded.
SIZES = "_sizes"


@dataclasses.dataclass(frozen=True)
class Pipe:
    """A pipeline that starts at a field of another name: several views of one field.

    keep: ``geometry`` adds what was drawn for an image, as outputs NAME_matrix, NAME_size, NAME_box,
    NAME_flip and NAME_angle; see :meth:`batchplant.loading.geometry.Moves.kept`.
    """

    field: str
    ops: Sequence[Op | Callable[..., Any]] = ()
    keep: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.field, str):
            raise OptionError(
                f"Pipe starts at one field, not at {self.field!r}; steps that see several go into joint: "
                'Loader(…, joint=[Stack(["a", "b"], into="x")]) for a matrix, joint=[Map(fn, inputs=["a", '
                '"b"], outputs="x")] for a function'
            )


Pipelines = Mapping[str, Pipe | Sequence[Op | Callable[..., Any]] | None]


def as_op(one: Any) -> Op:
    if isinstance(one, Op):
        return one.own()
    if isinstance(one, type) and issubclass(one, Op):
        raise OptionError(f"write {one.__name__}() with parentheses")
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(one, type) and issubclass(one, torch.nn.Module):
        raise OptionError(f"write {one.__name__}() with parentheses")
    if torch is not None and isinstance(one, torch.nn.Module):
        # The plan knows no framework; the module is of one.
        wrapped: Op = hooks.part("torch").ModuleWrapper(one)
        return wrapped
    if callable(one):
        return Function(one)
    raise OptionError(f"a pipeline holds ops and functions, not {one!r}")


def pipes_of(schema: Schema, given: Pipelines) -> dict[str, Pipe]:
    """The pipelines of what a batch has of fields."""
    found = {}
    for name in [*schema, *(one for one in given if one not in schema)]:
        asked = given.get(name, ())
        pipe = asked if isinstance(asked, Pipe) else Pipe(name, asked or ())
        if asked is not None and pipe.field in schema:
            found[name] = pipe
    return found


def may_miss(field: Field) -> bool:
    return field.optional and dense_of(field) is not None


def masked_by(name: str, schema: Schema, given: Pipelines) -> str | None:
    """The output of which this is the mask, where no field has the name."""
    if name in schema:
        return None
    for of, asked in given.items():
        ops = asked.ops if isinstance(asked, Pipe) else asked
        if any(padding_name(op, of) == name for op in (ops if isinstance(ops, Iterable) else ())):
            return of
    if not name.endswith(MASK):
        return None
    of = name.removesuffix(MASK)
    asked = given.get(of, ())
    field = asked.field if isinstance(asked, Pipe) else of
    there = asked is not None and field in schema and may_miss(schema[field])
    return of if there else None


def padding_name(op: Any, name: str) -> str | None:
    """What a step that pads the output of this name has its mask, or its sizes, called; None without one."""
    if isinstance(op, Collate):
        return name + SIZES if op.how == "pad" else None
    mask = op.mask if isinstance(op, Pad) else False
    return name + MASK if mask is True else mask or None
