"""Orders: which sample stands at which position of an epoch, and which positions a rank takes.

An :class:`Order` is a pure function of (seed, epoch, position): there is no state to advance, so any
position can be asked for directly, by any rank, after any resume. :func:`make` finds an order by its
name; :func:`shard` deals positions out to ranks and batches.
"""

from .orders import (
    BY_BLOCKS,
    NAMED,
    BlockIndex,
    Order,
    QuasiRandom,
    class_balanced,
    from_array,
    from_function,
    make,
    quasi_random,
    random,
    sequential,
    shards,
    subset,
    weighted,
    windowed,
)
from .ranks import Shard, shard

__all__ = [
    "BY_BLOCKS",
    "NAMED",
    "BlockIndex",
    "Order",
    "QuasiRandom",
    "Shard",
    "class_balanced",
    "from_array",
    "from_function",
    "make",
    "quasi_random",
    "random",
    "sequential",
    "shard",
    "shards",
    "subset",
    "weighted",
    "windowed",
]
