"""Base class of fields, also of those that users write."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..pipeline.operation import Operation

# The arguments of a field as the file stores them.
ARG_TYPE = np.dtype([("", "<u1", 1024)])

Array = npt.NDArray[Any]
DType = np.dtype[Any]
# Returns a pointer and the bytes at it.
Malloc = Callable[[int], tuple[int, Array]]
# Returns the bytes at a pointer.
Read = Callable[[Any], Array]


class Field(ABC):
    """Writes one value of every sample and names the decoder that reads it."""

    @property
    @abstractmethod
    def metadata_type(self) -> DType:
        """Type of the field's entry in the table of samples."""

    @staticmethod
    @abstractmethod
    def from_binary(binary: Array) -> Field:
        """Return the field that ``to_binary`` described."""

    @abstractmethod
    def to_binary(self) -> Any:
        """Return the field's arguments as an ARG_TYPE."""

    @abstractmethod
    def encode(self, destination: Array, field: Any, malloc: Malloc) -> None:
        """Fill a value's entry of the table; ``malloc(size)`` returns a pointer and the bytes at it."""

    @abstractmethod
    def get_decoder_class(self) -> type[Operation]:
        """Return the decoder of pipelines that name none."""
