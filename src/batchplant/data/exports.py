"""Exported: a Reader as what others take, arrays, PyTorch, Arrow, pandas, a notebook."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from ..errors import MissingLibraryError
from . import hooks
from .arrays import Array, array_of
from .tensors import Tensors

if TYPE_CHECKING:
    from .reader import Reader


class Exported:
    """The part of :class:`~batchplant.data.reader.Reader` that hands its samples to other libraries."""

    def to_torch(self: Reader, fields: Iterable[str] | None = None) -> Any:  # type: ignore[misc]
        """A map-style dataset of torch: decoded samples as dicts, numbers and arrays as tensors."""
        return hooks.part("torch").Samples(self if fields is None else self.select(fields))

    def to_arrow(self: Reader, fields: Iterable[str] | None = None) -> Any:  # type: ignore[misc]
        """All samples as a pyarrow.Table, in memory; the kinds of the fields stand in its metadata."""
        from ..codecs.arrow import table_of

        schema = self.schema.select(self._names(fields))
        return table_of(schema, self.scan(4096, schema))

    def to_pandas(self: Reader, fields: Iterable[str] | None = None) -> Any:  # type: ignore[misc]
        """All samples as a pandas.DataFrame; tensors and lists are objects in it."""
        table = self.to_arrow(fields)
        try:
            return table.to_pandas()
        except ImportError:
            raise MissingLibraryError("data frames need pandas: pip install pandas") from None

    def array(self: Reader, field: str) -> Array:  # type: ignore[misc]
        """A field (of a model: a tensor) as one N-d array, samples first, that is read when it is sliced."""
        return array_of(self, field)

    def tensors(self: Reader) -> Mapping[str, npt.NDArray[Any]]:  # type: ignore[misc]
        """The tensors of a model by name, each read when it is asked for, in place where it can be."""
        return Tensors(self)

    def _repr_html_(self) -> str:
        """Its fields and first samples, small, for notebooks."""
        text: str = hooks.part("notebook").reader_html(self)
        return text
