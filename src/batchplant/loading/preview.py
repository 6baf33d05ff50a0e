"""One sample as a loader gives it in an epoch, and the crops drawn for it; for the viewer and notebooks."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError, OptionError
from ..ops.function import part_of
from ..schema.columns import I64
from .executor import Executor
from .loader import Loader
from .plan import Output


class Cut(NamedTuple):
    """The box of an image that an output is made of.

    size: height and width of the image after its EXIF rotation ``turn``. box: (left, top, right, bottom).
    flip: whether it is mirrored.
    """

    size: tuple[int, int]
    box: tuple[float, float, float, float]
    flip: bool
    turn: int


class Preview(NamedTuple):
    """``values`` by output, ``cuts`` by output of an image; ``batch``: the samples that it was made with."""

    values: dict[str, Any]
    cuts: dict[str, Cut]
    batch: I64


def mixes(loader: Loader) -> bool:
    """Return True if a sample may depend on the others of its batch."""
    return any(op.mixes for op in loader.plan.ops)


def preview(loader: Loader, sample: int, epoch: int) -> Preview:
    """Return what the loader's executor makes of a sample in an epoch: the same draws, the same pixels.

    Where ops mix samples, the complete batch is made that has it in this epoch.
    """
    ids = _batch_with(loader, sample, epoch) if mixes(loader) else np.array([sample], dtype=np.int64)
    batch = loader._executor.run(ids, epoch)
    rows = np.flatnonzero(batch.ids == sample)
    if not len(rows):
        # It was left out, with on_error="skip".
        problem = next((problem for problem in batch.skipped if problem.sample == sample), None)
        raise DataError("the loader leaves it out" if problem is None else str(problem), sample=sample)
    row = int(rows[0])
    values = {name: part_of(value, row) for name, value in batch.values.items()}
    cuts = {output.name: cut_of(loader._executor, output, sample, epoch) for output in loader.plan.images}
    return Preview(values, cuts, batch.ids)


def _batch_with(loader: Loader, sample: int, epoch: int) -> I64:
    shard = loader._shard(epoch, 0)
    for number in range(len(shard)):
        ids = loader.ids_at(shard.batch(number))
        if (ids == sample).any():
            return ids
    raise OptionError(f"epoch {epoch} has no sample {sample}: it is left out, or dropped with the last batch")


def cut_of(executor: Executor, output: Output, sample: int, epoch: int) -> Cut:
    """Return the box that an output of a sample is made of in an epoch."""
    request, failures = executor.request(output, np.array([sample], dtype=np.int64), epoch)
    if request is None or failures:
        raise next(iter(failures.values())).at(sample=sample)
    size, box = request.sizes[0], request.boxes[0]
    if not size.all():
        # The header tells no size; then the executor draws anew, for the decoded image.
        height, width = request.pixels(0).shape[:2]
        size, box = np.array([height, width]), request.redraw(0, (height, width)).boxes[0]
    left, top, right, bottom = map(float, box)
    return Cut(
        (int(size[0]), int(size[1])), (left, top, right, bottom),
        request.flips is not None and bool(request.flips[0]),
        1 if request.turns is None else int(request.turns[0]),
    )  # fmt: skip
