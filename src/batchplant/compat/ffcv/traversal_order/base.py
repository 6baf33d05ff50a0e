"""TraversalOrder: what users subclass for an order of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class TraversalOrder(ABC):
    """Says which samples an epoch of this process reads, in which order."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.indices = loader.indices
        self.seed = loader.seed
        self.distributed = loader.distributed
        self.sampler: Any = None

    @abstractmethod
    def sample_order(self, epoch: int) -> Any:
        """The sample numbers of an epoch; ``self.indices`` are those that may be used."""


class Named(TraversalOrder):
    """One of batchplant's own orders; see :mod:`batchplant.order`."""

    name: str

    def sample_order(self, epoch: int) -> Any:
        return self.loader.samples_of(epoch)
