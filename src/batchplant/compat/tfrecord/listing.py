"""Files by pattern."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import NotFoundError
from ...storage import is_remote, tree
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
    # A URL is opened to see whether it is there.
    return sorted(tree.glob(pattern)) if not is_remote(pattern) or tree.has_magic(pattern) else [pattern]


def list_paths(patterns: Any) -> list[str]:
    paths = [path for pattern in texts(patterns) for path in expand(pattern)]
    if not paths:
        raise NotFoundError(f"no file matches {', '.join(texts(patterns))}")
    return sorted(paths)
