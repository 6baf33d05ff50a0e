"""Steps that see several outputs of a batch: planned here, run behind all pipelines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import OptionError
from ..ops.base import Op, Spec
from ..ops.joint import JointOp, Known, Map
from ..ops.moving import MOVERS
from ..schema import Schema
from .pipes import as_op
from .plan import Output
from .stage import Step

# A step, or pipelines of single outputs, which go on behind the steps before them.
Joint = Sequence[JointOp | Mapping[str, Sequence[Any]]]


def joint_steps(joint: Joint, outputs: Sequence[Output], schema: Schema) -> tuple[Step[JointOp], ...]:
    """The steps, each with the name of its draws, in order; OptionError where one does not fit."""
    if isinstance(joint, Op | Mapping | str):
        raise OptionError(f"joint is a list of steps, not {joint!r}")
    known = _known(outputs, schema)
    found: list[Step[JointOp]] = []
    for op in [one for given in joint for one in _ops(given)]:
        try:
            specs = op.infer_all(known)
        except OptionError as error:
            raise error.at(field=", ".join(op.inputs)) from None
        known.specs.update(specs)
        for name in op.drops:
            known.specs.pop(name, None)
        found.append(Step(op, op.share or f"joint/{len(found)}", Spec(None)))
    return tuple(found)


def _ops(given: Any) -> list[JointOp]:
    if isinstance(given, Mapping):
        pairs = [(name, op) for name, ops in given.items() for op in _steps(name, ops)]
        return [Map(op, name) for name, op in pairs]
    if isinstance(given, JointOp):
        own = given.own()
        assert isinstance(own, JointOp)
        return [own]
    if isinstance(given, type) and issubclass(given, Op):
        raise OptionError(f"write {given.__name__}() with parentheses")
    if callable(given):
        name = getattr(given, "__name__", "fn")
        raise OptionError(f"say which outputs {name} takes and gives: Map({name}, inputs=[…], outputs=[…])")
    raise OptionError(
        f"joint holds steps of several fields, such as Map(fn, inputs=[…]), and pipelines of single ones, "
        f'such as {{"image": [ToTensor()]}}; not {given!r}'
    )


def _steps(name: str, ops: Any) -> list[Op]:
    if isinstance(ops, Op | str) or not isinstance(ops, Sequence):
        raise OptionError(f"a pipeline is a list of ops, not {ops!r}", field=name)
    return [as_op(one) for one in ops]


def _known(outputs: Sequence[Output], schema: Schema) -> Known:
    found = Known({}, {}, {}, {})
    for output in outputs:
        field = schema[output.field]
        found.specs[output.name] = output.spec
        mover = output.mover or (MOVERS[type(field)]().bound(field) if type(field) in MOVERS else None)
        if mover is not None:
            found.movers[output.name] = mover.behind()
        if output.rows_of is not None:
            found.rows[output.rows_of] = (*found.rows.get(output.rows_of, ()), output.name)
        names = getattr(field, "names", None)
        if names and field.kind in ("int", "labels"):
            found.classes[output.name] = len(names)
    return found
