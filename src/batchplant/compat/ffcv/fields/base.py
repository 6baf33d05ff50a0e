"""Field: what users subclass for fields of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ..pipeline.operation import Operation

# The arguments of a field, as the file keeps them.
ARG_TYPE = np.dtype([("", "<u1", 1024)])

Malloc = Callable[[int], tuple[int, Any]]


class Field(ABC):
    """A part of every sample: how it is written, and which decoder reads it."""

    @property
    @abstractmethod
    def metadata_type(self) -> np.dtype[Any]:
        """What the table holds for each sample."""

    @staticmethod
    @abstractmethod
    def from_binary(binary: Any) -> Field:
        """The field that ``to_binary`` described."""

    @abstractmethod
    def to_binary(self) -> Any:
        """The field's own arguments, as an ARG_TYPE."""

    @abstractmethod
    def encode(self, destination: Any, field: Any, malloc: Malloc) -> None:
        """Fill a value's place in the table; ``malloc(size)`` gives a pointer and the bytes behind it."""

    @abstractmethod
    def get_decoder_class(self) -> type[Operation]:
        """The decoder of pipelines that name none."""
