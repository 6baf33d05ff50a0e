"""One epoch, as tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....loading.epoch import Epoch


class EpochIterator:
    """The batches of an epoch; ``close``, or dropping the iterator, stops the work."""

    def __init__(self, epoch: Epoch, names: Sequence[str]) -> None:
        self._epoch, self._names = epoch, tuple(names)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        """Number of remaining batches."""
        return len(self._epoch)

    def __next__(self) -> tuple[Any, ...]:
        batch = next(self._epoch)
        return tuple(batch[name] for name in self._names)

    def close(self) -> None:
        self._epoch.close()
