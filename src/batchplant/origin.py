"""Where the cells of a reader come from, so that what was found out about them can be remembered."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .errors import BatchplantError
from .storage import Source, is_remote, open_source, tree

if TYPE_CHECKING:
    from .reader import Reader

# Samples whose places tell in which files the cells lie.
ROWS = 1 << 14


def only_file(reader: Reader, fields: Sequence[str]) -> Source | None:
    """The file that all of these cells lie in; None where there are more, or nothing is to be remembered."""
    args, options = reader._made_with
    # A reader of another one has its path too, but the file does not tell which samples it has.
    opened = len(args) == 1 and isinstance(args[0], str)
    if not opened or not reader.path or options.get("index") == "memory":
        return None
    with contextlib.suppress(BatchplantError, OSError):
        if is_remote(reader.path) or tree.is_file(reader.path):
            ranges = reader._ranges(fields, np.arange(min(len(reader), ROWS)))
            if ranges is None or set(ranges.files) <= {reader.path}:
                return open_source(reader.path)
    return None


def made_how(reader: Reader, fields: Sequence[str]) -> str:
    """What tells apart the ways in which one file can be opened, as far as these fields go."""
    options = {name: value for name, value in reader._made_with[1].items() if name != "index"}
    kinds = [(name, str(reader.schema[name])) for name in fields]
    return f"{reader.format}\0{kinds}\0{sorted(options.items(), key=str)}"
