"""What a user says of the features of Examples."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from ...errors import OptionError
from .values import DType, as_dtype, int32

# The native parser's numbers for the types of values.
KINDS = {"string": 1, "float32": 2, "int64": 3}


class _Feature:
    dtype: DType

    def _check_dtype(self) -> None:
        object.__setattr__(self, "dtype", as_dtype(self.dtype))
        if self.dtype.name not in KINDS:
            raise OptionError(f"an Example holds string, int64 and float32, not {self.dtype.name}")


@dataclasses.dataclass(frozen=True)
class FixedLenFeature(_Feature):
    """A feature that has as many values as the shape says; ``default_value`` stands in for a missing one."""

    shape: Any
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        self._check_dtype()
        object.__setattr__(self, "shape", _shape(self.shape))


@dataclasses.dataclass(frozen=True)
class VarLenFeature(_Feature):
    """A feature with any number of values; comes as a SparseTensor."""

    dtype: Any

    def __post_init__(self) -> None:
        self._check_dtype()


@dataclasses.dataclass(frozen=True)
class FixedLenSequenceFeature(_Feature):
    """A feature with any number of items of one shape."""

    shape: Any
    dtype: Any
    allow_missing: bool = False
    default_value: Any = None

    def __post_init__(self) -> None:
        self._check_dtype()
        object.__setattr__(self, "shape", _shape(self.shape))


@dataclasses.dataclass(frozen=True)
class RaggedFeature(_Feature):
    """A feature with any number of values; comes as a RaggedTensor, of a single Example as an array."""

    dtype: Any
    value_key: str | None = None
    partitions: Any = ()
    row_splits_dtype: Any = int32
    validate: bool = False

    def __post_init__(self) -> None:
        self._check_dtype()
        if self.partitions:
            raise OptionError("RaggedFeature(partitions=…) is not mirrored")


@dataclasses.dataclass(frozen=True)
class SparseFeature(_Feature):
    """Values in one feature, and where they lie in others, one for each axis; comes as a SparseTensor."""

    index_key: Any
    value_key: str
    dtype: Any
    size: Any
    already_sorted: bool = False

    def __post_init__(self) -> None:
        self._check_dtype()
        if len(self.keys) != len(self.sizes):
            raise OptionError(f"{len(self.keys)} keys of indices, and {len(self.sizes)} sizes")

    @property
    def keys(self) -> list[str]:
        return [self.index_key] if isinstance(self.index_key, str) else list(self.index_key)

    @property
    def sizes(self) -> list[int]:
        given = [self.size] if np.ndim(self.size) == 0 else list(self.size)
        return [int(size) for size in given]


def _shape(shape: Any) -> tuple[int, ...]:
    given = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
    if any(size is None or size < 0 for size in given):
        raise OptionError(f"every size of the shape {given} must be known; see FixedLenSequenceFeature")
    return tuple(int(size) for size in given)
