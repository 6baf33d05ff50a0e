"""Orders: which sample stands at which position of an epoch, and which positions a rank takes.

An :class:`Order` is a pure function of (seed, epoch, position): there is no state to advance, so any
position can be asked for directly, by any rank, after any resume. :func:`make` finds an order by its
name; :func:`shard` deals positions out to ranks and batches.
"""

from .balance import Sizes, deal
from .buckets import bucketed
from .marks import difference, drawn, mark, marks
from .orders import (
    BY_BLOCKS,
    NAMED,
    WINDOW,
    BlockIndex,
    Order,
    QuasiRandom,
    class_balanced,
    from_array,
    from_function,
    in_lanes,
    make,
    quasi_random,
    random,
    sequential,
    shards,
    subset,
    weighted,
    windowed,
)
from .ranks import Batches, Shard, Turns, shard
from .world import default_threads, rank_and_world_size

__all__ = [
    "BY_BLOCKS",
    "NAMED",
    "WINDOW",
    "Batches",
    "BlockIndex",
    "Order",
    "QuasiRandom",
    "Shard",
    "Sizes",
    "Turns",
    "bucketed",
    "class_balanced",
    "deal",
    "default_threads",
    "difference",
    "drawn",
    "from_array",
    "from_function",
    "in_lanes",
    "make",
    "mark",
    "marks",
    "quasi_random",
    "random",
    "rank_and_world_size",
    "sequential",
    "shard",
    "shards",
    "subset",
    "weighted",
    "windowed",
]
