"""Parameters of tests that only the thorough run, ``make test-all``, tries."""

from __future__ import annotations

from typing import Any

import pytest

# Suffixes that are other names for another one of their format.
_ALIASES = "feather ipc hdf5 he5 nc nc4 mat ndjson mpk pq pickle pth ckpt tfrecords tfrec tgz tab arrayrecord"
# Other names for those whose compressed files are tried.
_ALIASES_COMPRESSED = ("tsv", "json")


def is_alias(suffix: str) -> bool:
    """Return whether ``make test`` can do without a suffix: another has the same format and compression."""
    first, *compression = suffix.split(".")[1:] or [""]
    return first in _ALIASES.split() or (first in _ALIASES_COMPRESSED and bool(compression))


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
