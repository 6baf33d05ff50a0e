"""Orders: which sample stands at which position of an epoch, and which positions a rank takes.

An :class:`Order` is a pure function of (seed, epoch, position): there is no state to advance, so any
position can be asked for directly, by any rank, after any resume. :func:`make` finds an order by its
name; :func:`shard` deals positions out to ranks and batches.

Names in lower case compute the order of one epoch: ``random(1000, seed=0, epoch=3)``. Classes are what a
Loader takes, for all epochs: ``Loader(…, order=QuasiRandom(window=64))``.

Parameters that mean the same wherever they stand. n, samples: how many samples there are. length: how many
positions an order has. seed, epoch: what every draw depends on, beside the position. blocks: runs of samples
that are read together, as of ``Reader.blocks()``, or the :class:`BlockIndex` of them. labels: the class of
every sample. weights: of every sample, 0 or more. rank, world_size: which process this is, and of how many.
batch_size: samples of a batch on one rank. lane_size: samples of a turn, see :func:`in_lanes`. sizes: what a
sample is long, as :class:`Sizes`.
"""

from .orders import (
    BY_BLOCKS,
    NAMED,
    WINDOW,
    BlockIndex,
    Order,
    QuasiRandomOrder,
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
from .ranks import Batches, Shard, Sizes, Turns, bucketed, deal, default_threads, rank_and_world_size, shard
from .specs import (
    Balanced,
    ByAspect,
    ByLength,
    ClassBalanced,
    NamedOrder,
    OrderLike,
    OrderParts,
    QuasiRandom,
    Random,
    SampleSizes,
    Sequential,
    Shards,
    Weighted,
    Windowed,
    by_name,
    describe,
    difference,
    drawn,
    mark,
    marks,
    order_parts,
)

__all__ = [
    "BY_BLOCKS",
    "NAMED",
    "WINDOW",
    "Balanced",
    "Batches",
    "BlockIndex",
    "ByAspect",
    "ByLength",
    "ClassBalanced",
    "NamedOrder",
    "Order",
    "OrderLike",
    "OrderParts",
    "QuasiRandom",
    "QuasiRandomOrder",
    "Random",
    "SampleSizes",
    "Sequential",
    "Shard",
    "Shards",
    "Sizes",
    "Turns",
    "Weighted",
    "Windowed",
    "bucketed",
    "by_name",
    "class_balanced",
    "deal",
    "default_threads",
    "describe",
    "difference",
    "drawn",
    "from_array",
    "from_function",
    "in_lanes",
    "make",
    "mark",
    "marks",
    "order_parts",
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
