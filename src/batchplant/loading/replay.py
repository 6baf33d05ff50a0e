"""What a step of a run saw, from the seed alone: nothing is read."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from .. import order as orders
from ..data.mix import Mix
from ..schema.columns import I64
from .filling import lay_out
from .packing import PackedShard

if TYPE_CHECKING:
    from .loader import Loader


@dataclasses.dataclass(frozen=True)
class Seen:
    """A batch of one rank.

    samples: their numbers, of a packed loader those of the documents. pieces: which (row, place, size, start,
    document) the documents became. origins: of a mixture, (source, number there, pass) of every sample.
    """

    samples: I64
    pieces: I64 | None = None
    origins: list[tuple[str, int, int]] | None = None


class Replaying:
    def replay(  # type: ignore[misc]
        self: Loader,
        step: int,
        rank: int | None = None,
        world_size: int | None = None,
        *,
        epoch: int = 0,
        start: int = 0,
    ) -> Seen:
        """Which samples a step of a rank sees, or saw, without reading them.

        (Where ``Pack`` puts a token after documents, a few of each source are looked at: see there.)

        rank, world_size: of that run (default: those of this loader). start: the position that steps count
        from, where the run was resumed there; see ``state_dict``.
        """
        own = (
            self._place()
            if rank is None and world_size is None
            else orders.rank_and_world_size(rank, world_size)
        )
        shard: Any = self._shard(epoch, start, own)
        samples, pieces = self.ids_at(shard.batch(step)), None
        if isinstance(shard, PackedShard):
            pieces = lay_out(shard.pieces(step), shard.packed.pack)[0]
        if not isinstance(self.reader, Mix):
            return Seen(samples, pieces)
        source, number, lap = (one.tolist() for one in self.reader.origin(samples))
        names = [self.reader.names[one] for one in source]
        return Seen(samples, pieces, list(zip(names, number, lap, strict=True)))
