"""TensorFlow's names for batchplant's exceptions."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from ...errors import BatchplantError, DamagedError, DecodeError, NotFoundError, OptionError, SchemaError


class OutOfRangeError(BatchplantError):
    """An iterator has ended."""


DataLossError = DamagedError
# TensorFlow has one class for what are three here; an except clause accepts a tuple.
InvalidArgumentError = (DecodeError, SchemaError, OptionError)
OpError = BatchplantError


def missing_name(module: str) -> Callable[[str], NoReturn]:
    """Return a ``__getattr__`` for a module that mirrors only a part of TensorFlow's."""
    public = module.replace(".compat.", ".")

    def __getattr__(name: str) -> NoReturn:  # noqa: N807
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"{public} has no {name!r}: it mirrors TensorFlow's record files and input pipelines only; "
            "the guide 'From tf.data' names what to use instead"
        )

    return __getattr__


__all__ = ["DataLossError", "InvalidArgumentError", "NotFoundError", "OpError", "OutOfRangeError"]
