"""Base class of codecs of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ...codecs.msgpack import Runs
from ...schema import Field
from ...schema.columns import I64, U8, Columns


class Codec:
    """Turns values, which lie at ``starts`` of ``data``, into cells. Errors have the row as ``sample``."""

    name: str = ""
    fields: Mapping[str, Field]

    def read(self, fields: Sequence[str], data: U8, starts: I64, sizes: I64) -> Columns:
        raise NotImplementedError

    def find(self, field: str, data: U8, starts: I64, sizes: I64) -> Runs | None:
        """Locate the cells in ``data``; None if they are not contiguous."""
        return None
