"""Where the pictures of a batch are taken by their whole pipeline; what belongs to them goes along."""

from __future__ import annotations

from ..columns import I32, I64
from ..ops.base import Draws
from ..ops.geometry import Motion, still
from .plan import Output


def motion(output: Output, sizes: I32, ids: I64, *, seed: int, epoch: int) -> Motion:
    """From stored pictures of these sizes (turned as their decoder turns them) to those of the batch."""
    made = still(sizes)
    stage = output.image
    first = [] if stage is None else [stage.decoder, *([] if stage.flip is None else [stage.flip])]
    for step in [*first, *output.steps]:
        moved = step.op.move(made.sizes, Draws(seed, epoch, ids, step.key))
        if moved is not None:
            made = made.then(moved)
    return made
