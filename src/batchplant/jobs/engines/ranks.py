"""The engine ``ranks``: this process is one of several that somebody else starts, and does its share.

The processes need not know each other: they see the same folder, or the same bucket.
"""

from __future__ import annotations

import os

from ...order.world import rank_and_world_size
from .inline import Inline

# How LitData's launchers number the machines of a conversion.
NODE, NODES = "DATA_OPTIMIZER_NODE_RANK", "DATA_OPTIMIZER_NUM_NODES"


class Ranks(Inline):
    """``rank`` of ``world_size``; by default what Slurm, torchrun, MPI or others say in the environment."""

    here = False

    def __init__(self, rank: int | None = None, world_size: int | None = None) -> None:
        super().__init__()
        if rank is None and world_size is None and NODES in os.environ:
            rank, world_size = int(os.environ.get(NODE, "0")), int(os.environ[NODES])
        self.rank, self.world_size = rank_and_world_size(rank, world_size)

    def share(self, count: int) -> range:
        return range(self.rank, count, self.world_size)
