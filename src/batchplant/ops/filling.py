"""Missing values filled."""

from __future__ import annotations

import json
import os
from typing import Any, Self

import numpy as np

from ..data.reader import Reader
from ..errors import DamagedError, OptionError
from ..schema import Field, Text
from ..schema.columns import I64, Column, Masked, Ragged, dense_of
from ..storage import NOTE_ERRORS, parse_object, put_file, read_whole
from .base import CellOp, Draws, Spec
from .fitting import typical

WAYS = ("mean", "median", "most_frequent", "min", "max")


class Fill(CellOp):
    """Another value in place of missing ones, and of NaN; the first step of a field of numbers or text.

    value: a number or text; or, found in the data by ``fit``: mean, median, most_frequent, min, max. The mask
    ``NAME_mask`` beside the values still says which were there.
    """

    keeps_mask = True

    def __init__(self, value: Any) -> None:
        self.value = value

    def fit(self, reader: Reader, field: str) -> Self:
        """With the value that ``Fill("median")`` names, of this field: the whole of it is read once.

        Of whole numbers, mean and median are rounded.
        """
        if not isinstance(self.value, str) or self.value not in WAYS:
            raise OptionError(f"Fill({self.value!r}) has its value already; to be found: {', '.join(WAYS)}")
        return type(self)(typical(reader, field, self.value))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """What ``save`` wrote."""
        where = os.fspath(path)
        try:
            return cls(parse_object(read_whole(where))["value"])
        except NOTE_ERRORS as error:
            raise DamagedError(f"no value to fill in: {error}", path=where) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """As a JSON file, which appears when it is complete."""
        if isinstance(self.value, np.ndarray | np.generic):
            raise OptionError(f"only numbers and text can be saved, not {self.value!r}")
        put_file(os.fspath(path), json.dumps({"batchplant": 1, "value": self.value}).encode())

    def infer_field(self, field: Field) -> Spec:
        if isinstance(field, Text):
            if not isinstance(self.value, str):
                raise OptionError(f"Fill of text needs text, not {self.value!r}")
            return Spec(None)
        dense = dense_of(field)
        if dense is None:
            raise OptionError(f"Fill needs numbers, arrays of one shape, or text, and this is {field}")
        if isinstance(self.value, str) and dense[0].kind not in "mM":
            how = f'Fill("{self.value}").fit(reader, field)'
            raise OptionError(
                f"its value is not found yet: {how} gives one that has it"
                if self.value in WAYS
                else f"Fill needs a number, or one of {', '.join(WAYS)}, not {self.value!r}"
            )
        self._as(*dense)
        return Spec(*dense)

    def _as(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        """The value, as it stands in an array of this dtype."""
        try:
            given = np.asarray(self.value)
            made = given.astype(dtype)
            fits = given.dtype.kind in "biuf" or dtype.kind in "mM"
            # A fraction, or what is out of range, would become another number.
            same = dtype.kind not in "iub" or np.array_equal(made, given)
            if fits and same and np.broadcast_shapes(made.shape, shape) == shape:
                return made
        except (ValueError, TypeError, OverflowError):
            pass
        raise OptionError(f"{self.value!r} cannot stand among values of {dtype} {shape}")

    def run(self, batch: Column, ids: I64, draws: Draws) -> Any:
        if isinstance(batch, Ragged) and not isinstance(batch, Masked):
            return [self.value if one is None else one.tobytes().decode() for one in batch]
        values = np.array(batch.values if isinstance(batch, Masked) else batch)
        filling = self._as(values.dtype, values.shape[1:])
        if isinstance(batch, Masked):
            values[~batch.mask] = filling
        if values.dtype.kind in "fcmM":
            gone = np.isnat(values) if values.dtype.kind in "mM" else np.isnan(values)
            values[gone] = np.broadcast_to(filling, values.shape)[gone]
        return values
