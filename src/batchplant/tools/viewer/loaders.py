"""The loaders that make single samples for the page."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from ...loading.loader import Loader
from .pipelines import KEPT, arguments, picked

if TYPE_CHECKING:
    from .session import Side

# Loaders that are kept, each with an engine; threads of each.
LOADERS, THREADS = 4, 2
# Where a pipeline without a Loader mixes samples of a batch.
BATCH = 32


class Loaders:
    """Loaders by what they do, the last few; each makes single samples when it is asked to."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[str, str, int], Loader] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, side: Side, pipeline: Any, ops: str, seed: int | None) -> Loader:
        """``ops``: those picked in the page; "" for the pipeline that was given. seed None: its own."""
        key = side.name, ops, -1 if seed is None else seed
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            given = picked(ops, side.reader) if ops else arguments(pipeline or {}, side.reader)
            made = self._kept[key] = _loader(side, given, seed)
            while len(self._kept) > LOADERS:
                # Whoever still uses it keeps it, and its threads end when it is let go.
                self._kept.popitem(last=False)
        return made

    def close(self) -> None:
        with self._lock:
            for one in self._kept.values():
                one.close()
            self._kept.clear()


def _loader(side: Side, given: dict[str, Any], seed: int | None) -> Loader:
    options = {name: value for name, value in given.items() if name in KEPT}
    if seed is not None:
        options["seed"] = seed
    if (images := options.get("images")) is not None:
        options["images"] = images.but({"decode": None, "gpu_share": None}, ())
    # Only what batches can hold: other fields are seen beside it.
    size = int(given.get("batch_size", BATCH))
    return Loader(
        side.reader, size, workers=THREADS, ahead=1, rank=0, world_size=1, dashboard=False, **options
    )
