"""Part: one file of a table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from ....schema.columns import I64

# Least and greatest value as Arrow scalars, and how many are missing; None where nobody knows.
Said = tuple[Any, Any, int | None]


@dataclasses.dataclass(frozen=True)
class Part:
    """One file of a table.

    rows, size: what the table says about it, None where it says nothing. constants: Arrow scalars of fields
    that lie in no file. names: field → column, where they differ. deleted: rows that do not count any more.
    scan: the library's own reading of one field, for files that do not tell by themselves what counts.
    said: what the table says about the values of a field.
    """

    path: str
    rows: int | None = None
    size: int | None = None
    constants: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    deleted: I64 | None = None
    scan: Callable[[str], Any] | None = None
    said: Callable[[str], Said] | None = None
