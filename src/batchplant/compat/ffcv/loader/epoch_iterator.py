"""One epoch, as tuples."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....loading.epoch import Epoch


class EpochIterator:
    """The batches of an epoch; letting go of it, or ``close``, stops the work on it."""

    def __init__(self, epoch: Epoch, names: Sequence[str]) -> None:
        self._epoch, self._names = epoch, tuple(names)

    def __iter__(self) -> EpochIterator:
        return self

    def __len__(self) -> int:
        """Batches that are left."""
        return len(self._epoch)

    def __next__(self) -> tuple[Any, ...]:
        batch = next(self._epoch)
        return tuple(batch[name] for name in self._names)

    def close(self) -> None:
        self._epoch.close()
