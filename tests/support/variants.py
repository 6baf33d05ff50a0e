"""Parameters of tests that only the thorough run, ``make test-all``, tries."""

from __future__ import annotations

from typing import Any

import pytest


def exhaustive(*values: Any) -> list[Any]:
    """Mark parameters, or tuples of them, as those that ``make test`` leaves out."""
    return [
        pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.exhaustive)
        for value in values
    ]


def first(number: int, values: Any) -> list[Any]:
    """Leave only the first parameters to ``make test``."""
    values = list(values)
    return [*values[:number], *exhaustive(*values[number:])]
