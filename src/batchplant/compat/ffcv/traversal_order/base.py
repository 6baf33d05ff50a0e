"""Base class of orders, also of those that users write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


class TraversalOrder(ABC):
    """Defines the samples that an epoch of this process reads, and their order."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.indices = loader.indices
        self.seed = loader.seed
        self.distributed = loader.distributed
        self.sampler: Any = None

    @abstractmethod
    def sample_order(self, epoch: int) -> Any:
        """Return the sample numbers of an epoch, taken from ``self.indices``."""


class Named(TraversalOrder):
    """One of batchplant's own orders; see :mod:`batchplant.order`."""

    name: str

    def sample_order(self, epoch: int) -> Any:
        return self.loader.samples_of(epoch)
