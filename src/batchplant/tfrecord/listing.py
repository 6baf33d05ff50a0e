"""Files by pattern."""

from __future__ import annotations

import glob
from typing import Any

import numpy as np

from ..errors import NotFoundError, OptionError
from ..storage import is_remote
from .values import as_text


def texts(given: Any) -> list[str]:
    """One string or many, in any form, as a list of text."""
    if isinstance(given, np.ndarray) and given.ndim:
        given = given.reshape(-1).tolist()
    if isinstance(given, list | tuple):
        return [as_text(one) for one in given]
    return [as_text(given)]


def expand(pattern: str) -> list[str]:
    """What matches, sorted."""
    if not is_remote(pattern):
        return sorted(glob.glob(pattern))
    if glob.has_magic(pattern):
        raise OptionError(
            "patterns are looked for in local folders only; name the URLs one by one", path=pattern
        )
    return [pattern]


def list_paths(patterns: Any) -> list[str]:
    paths = [path for pattern in texts(patterns) for path in expand(pattern)]
    if not paths:
        raise NotFoundError(f"no file matches {', '.join(texts(patterns))}")
    return sorted(paths)
