"""What goes along with an image: boxes, keypoints and polygons with its pixels, labels with their boxes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, OptionError, listed, near
from ..ops.base import CellErrors, CellOp, Op, Spec
from ..ops.moving import AREA, MOVERS, RLE, MoveBoxes, MoveMask, MovePolygons, Mover, MoveRle
from ..ops.positions import rows_taken
from ..schema import Boxes, Image, Schema, Tensor
from ..schema.columns import I32, I64
from .geometry import Moves
from .images import Failures, Request
from .pipes import Pipe, as_op
from .plan import Output, Plan


class Follows(NamedTuple):
    """Of outputs by name: what moves their positions, and the boxes that their rows go with."""

    movers: dict[str, Mover]
    rows_of: dict[str, str]
    pipes: Mapping[str, Pipe]

    def moves_of(self, op: MoveMask) -> list[tuple[Op, str]]:
        """The steps of an image that move its pixels, with the names of their draws."""
        if op.of not in self.pipes:
            raise OptionError(f"its image {op.of!r} is not in the batch{near(op.of, self.pipes)}")
        ops = list(map(as_op, self.pipes[op.of].ops))
        if ops and isinstance(ops[0], MoveMask):
            raise OptionError(f"{op.of!r} follows another image itself: follow that one")
        named = [(one, one.share or f"{op.of}/{number}") for number, one in enumerate(ops)]
        return [(op.filled(one), key) for one, key in named if type(one).move is not Op.move]


def follows(pipes: Mapping[str, Pipe], schema: Schema) -> Follows:
    """Which outputs follow which, by the fields' kinds and the ops that come first."""
    found = Follows({}, {}, pipes)
    for name, pipe in pipes.items():
        try:
            mover = _mover(pipe, pipes, schema)
            if mover is None:
                continue
            found.movers[name] = mover
            for label in mover.labels or ():
                if found.rows_of.setdefault(label, name) != name:
                    raise OptionError(
                        f"{label!r} has rows for {found.rows_of[label]!r} already; say which outputs have "
                        f'rows for these boxes: MoveBoxes(of="{mover.of}", labels=[…])'
                    )
        except OptionError as error:
            raise error.at(field=name) from None
    return found


def first_op(pipe: Pipe) -> Any:
    return pipe.ops[0] if isinstance(pipe.ops, Sequence) and len(pipe.ops) else None


def _mover(pipe: Pipe, pipes: Mapping[str, Pipe], schema: Schema) -> Mover | None:
    field, first = schema[pipe.field], first_op(pipe)
    asked = first if isinstance(first, Mover) else None
    kind = MOVERS.get(type(field))
    if kind is None and pipe.field == RLE and MoveRle.fits(field):
        kind = MoveRle
    if asked is None and kind is None:
        return None
    mover = (asked or kind()).bound(field)  # type: ignore[misc]
    if isinstance(mover, MoveRle) and mover.of is None:
        boxes = (one for one in schema.values() if isinstance(one, Boxes) and pipe.field in one.labels)
        mover.of = next((one.of for one in boxes), "image")
    if mover.of == "":
        return None
    images = [one for one, other in pipes.items() if isinstance(schema[other.field], Image)]
    of = _output_of(mover.of or "", pipes, 'MoveX(of="…")'.replace("MoveX", type(mover).__name__))
    if of is None and asked is None:
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
    said = asked is not None and asked.labels is not None
    mover.labels = tuple(_labels(mover, pipes, schema, said=said))
    if isinstance(mover, MoveBoxes):
        mover._areas = _areas(mover, pipes, schema)
    return mover


def _areas(mover: MoveBoxes, pipes: Mapping[str, Pipe], schema: Schema) -> str | None:
    """The output of the areas of the objects."""
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


def _labels(mover: Mover, pipes: Mapping[str, Pipe], schema: Schema, *, said: bool) -> Sequence[str]:
    found = []
    for label in mover.labels or ():
        of = _output_of(label, pipes, f'MoveBoxes(of="{mover.of}", labels=["…"])')
        if of is not None:
            found.append(of)
        elif said and label not in schema:
            raise OptionError(f"there is no output {label!r} for labels{near(label, pipes)}; {listed(pipes)}")
    return found


def _output_of(name: str, pipes: Mapping[str, Pipe], how: str) -> str | None:
    """The output of that name, else the one that shows the field of that name."""
    if name in pipes:
        return name
    views = [one for one, pipe in pipes.items() if pipe.field == name]
    if len(views) > 1:
        raise OptionError(f"{listed(views)} show {name!r}: say which one is meant, with {how}")
    return views[0] if views else None


def rowless(spec: Spec, name: str, first: Op | None) -> Spec:
    """What is left of it once rows are dropped."""
    if isinstance(first, CellOp):
        raise OptionError(
            f"{first!r} takes {name!r} as it is stored, before the rows of boxes that are dropped leave it: "
            "name other labels with MoveBoxes(labels=[…])"
        )
    if spec.dtype is None:
        return spec
    if not spec.shape:
        raise OptionError(f"{name!r} has one number for each sample, not one for each box: {spec}")
    return spec.but(shape=(None, *spec.shape[1:]), ragged=True)


class Following:
    """Moves what goes along, batch by batch."""

    def __init__(self, plan: Plan) -> None:
        self._movers = [(one, one.mover) for one in plan.outputs if one.mover is not None]
        self._rows = [(one, one.rows_of) for one in plan.outputs if one.rows_of is not None]
        # The images whose moves somebody needs.
        self.of = {mover.of for _, mover in self._movers} | {one.of for one in plan.outputs if one.drawn}
        self._known: dict[tuple[str, bool], I32] = {}

    def sizes(self, request: Request, stored: Callable[[I64], I32] | None, key: Any, samples: int) -> I32:
        """Heights and widths of stored images. ``stored`` reads them where the request has other ones."""
        if stored is None:
            sizes = request.sizes.copy()
        else:
            known = self._known.setdefault(key, np.zeros((samples, 2), dtype=np.int32))
            new = request.ids[~known[request.ids].all(axis=1)]
            if len(new):
                known[new] = stored(new)
            sizes = known[request.ids]
        for row in np.flatnonzero(~sizes.all(axis=1)).tolist():
            # The header does not tell it.
            try:
                sizes[row] = request.pixels(row).shape[:2]
            except DataError:
                # It is said when the image is made.
                sizes[row] = 1
        return sizes

    def values(
        self, read: Callable[[Output], tuple[Any, Failures]], moves: Mapping[str, Moves]
    ) -> tuple[dict[str, Any], Failures]:
        """The values of all that goes along, moved, as its steps take them."""
        values: dict[str, Any] = {}
        stored: dict[str, Any] = {}
        dropped: dict[str, tuple[Any, I64]] = {}
        for output in dict.fromkeys([one for one, _ in (*self._movers, *self._rows)]):
            values[output.name], failures = read(output)
            if failures:
                return {}, {row: error.at(field=output.field) for row, error in failures.items()}
        field = ""
        try:
            for output, mover in self._movers:
                field = output.field
                done = moves[mover.of or ""]
                stored[output.name] = values[output.name]
                values[output.name], dropped[output.name] = mover.move_with(
                    values[output.name], done.steps, done.sizes
                )
            for output, mover in self._movers:
                if isinstance(mover, MoveBoxes) and mover._areas is not None:
                    done = moves[mover.of or ""]
                    outlines = [
                        (other, stored[one.name], values[one.name])
                        for one, other in self._movers
                        if one.name in (mover.labels or ()) and isinstance(other, MoveRle | MovePolygons)
                    ]
                    values[mover._areas] = mover.resized(
                        values[mover._areas], stored[output.name], outlines, (done.steps, done.sizes)
                    )
            for output, boxes in self._rows:
                field = output.field
                kept, offsets = dropped[boxes]
                values[output.name] = rows_taken(values[output.name], kept, offsets, output.name, boxes)
        except CellErrors as found:
            return {}, {row: error.at(field=field) for row, error in found.errors.items()}
        return values, {}
