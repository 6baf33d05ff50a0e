"""TensorFlow's names for what goes wrong, standing for batchplant's exceptions."""

from __future__ import annotations

from ...errors import BatchplantError, DamagedError, DecodeError, NotFoundError, OptionError, SchemaError


class OutOfRangeError(BatchplantError):
    """An iterator has ended."""


DataLossError = DamagedError
# Several of ours; an except clause takes a tuple.
InvalidArgumentError = (DecodeError, SchemaError, OptionError)
OpError = BatchplantError

__all__ = [
    "DataLossError",
    "InvalidArgumentError",
    "NotFoundError",
    "OpError",
    "OutOfRangeError",
]
