"""What other processes can open."""

from __future__ import annotations

import os
from typing import Any

from ...data.reader import Reader
from ...errors import OptionError
from ...storage import is_remote


def for_others(source: Any) -> Any:
    """A source that processes on this and other machines can open."""
    # It knows tables, too, and whoever imports batchplant need not wait for that.
    from ...formats.base.memory import MemoryReader

    if isinstance(source, str | os.PathLike):
        path = os.fspath(source)
        return path if is_remote(path) else os.path.abspath(path)
    if isinstance(source, list | tuple) and all(isinstance(one, str | os.PathLike) for one in source):
        return [for_others(one) for one in source]
    if isinstance(source, Reader) and not isinstance(source, MemoryReader):
        return source
    raise OptionError(
        "other processes cannot see what is in the memory of this one: write it to a file first, or use the "
        'engine "threads"'
    )
