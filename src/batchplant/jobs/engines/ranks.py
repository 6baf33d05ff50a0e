"""The engine ``ranks``: this process is one of several that somebody else starts, and does its share.

The processes need not know each other: they see the same folder, or the same bucket.
"""

from __future__ import annotations

import os

from ...order.place import place
from .inline import Inline

# How LitData's launchers number the machines of a conversion.
NODE, NODES = "DATA_OPTIMIZER_NODE_RANK", "DATA_OPTIMIZER_NUM_NODES"


class Ranks(Inline):
    """``rank`` of ``world``; by default what Slurm, torchrun, MPI or others say in the environment."""

    here = False

    def __init__(self, rank: int | None = None, world: int | None = None) -> None:
        super().__init__()
        if rank is None and world is None and NODES in os.environ:
            rank, world = int(os.environ.get(NODE, "0")), int(os.environ[NODES])
        self.rank, self.world = place(rank, world)

    def share(self, count: int) -> range:
        return range(self.rank, count, self.world)
