"""The footer of a Parquet file, taken apart and put together again.

A writer that was stopped cannot go on in a Parquet file: where row groups lie stands only in the footer. So
every part that was written without a stop has a footer of its own, which stays in the file as bytes that
nobody looks at; :func:`merge` makes the one that counts, with all row groups at their true places.

Footers are Thrift structures in the compact protocol, which ``tables.thrift`` reads.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...families.tables.footer import footer_bytes
from ...families.tables.thrift import STRUCT, Struct, read_struct

# FileMetaData
_ROWS, _ROW_GROUPS = 3, 4
# RowGroup, ColumnChunk, ColumnMetaData: the fields that are offsets in the file.
_GROUP_COLUMNS, _GROUP_OFFSET, _GROUP_ORDINAL = 1, 5, 7
_CHUNK_DATA, _CHUNK_OFFSETS = 3, (2, 4, 6)
_DATA_OFFSETS = (9, 10, 11, 14)


def merge(footers: Sequence[tuple[int, bytes]]) -> bytes:
    """The end of the file: one footer of all row groups. Each footer stands with where its part begins."""
    whole: Struct = {}
    for start, data in footers:
        part = read_struct(data)[0]
        groups = part.get(_ROW_GROUPS, (9, (STRUCT, [])))[1][1]
        for group in groups:
            _move(group, start)
        if not whole:
            whole = part
            continue
        there = whole[_ROW_GROUPS][1][1]
        for group in groups:
            group[_GROUP_ORDINAL] = (4, min(len(there), 32767))
            there.append(group)
        whole[_ROWS] = (whole[_ROWS][0], whole[_ROWS][1] + part[_ROWS][1])
    return footer_bytes(whole)


def _move(group: Struct, by: int) -> None:
    """Shift everything in a row group that is a place in the file."""
    _shift(group, (_GROUP_OFFSET,), by)
    for chunk in group[_GROUP_COLUMNS][1][1]:
        _shift(chunk, _CHUNK_OFFSETS, by)
        if _CHUNK_DATA in chunk:
            _shift(chunk[_CHUNK_DATA][1], _DATA_OFFSETS, by)


def _shift(struct: Struct, fields: Sequence[int], by: int) -> None:
    for field in fields:
        # 0 stands for none.
        if field in struct and struct[field][1] > 0:
            struct[field] = (struct[field][0], struct[field][1] + by)
